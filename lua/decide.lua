-- One decision over several charges, all or nothing; the twin of src/engine/decision.rs.
--
-- KEYS     the distinct keys
-- ARGV[1]  little-endian doubles: now in us (0: this server's clock), 1 if atomic, the number of charges; then for each
--          charge: algorithm, key (1 ..), role (0 enforced, 1 shadow, 2 quota), op, hits, and
--          for algorithm 1 (fixed_window): window in us, limit, mark (of an undo)
--          for algorithm 2 (pacing): cost (us, fraction), P, L, B, T, F, 1 if post-paid, at (of an undo)
-- reply    now in us, then for each charge its state as the charge found it: one integer (fixed_window, packed) or two
--          (pacing: us, fraction)
--
-- op: as in fixed_window.lua, and 6 look, over only when more has been taken than the limit holds; 7 undo what the
-- mark (a window) or the time of the charge proves. A look has 1 for hits.
--
-- Strategy: all keys are read before the first write, since Redis does not undo a script that fails [rd-1]. Each
-- charge works on the copies that the charges before it left: a fixed window's are (w, c), a debt's (tat, fraction,
-- requests). Where an atomic decision denies, the copies are made anew and take only what is taken whatever the verdict.
-- Branches are inline: at this size closures cost more than they save.
local blob = ARGV[1]
local now, atomic, count, start = struct.unpack('<ddd', blob)
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local floor = math.floor

-- floor(a * b / c) and the rest [ar-1]: for a < 2^49, b and c <= 2^45.
local function mul_div(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local rest = product % c
    return (product - rest) / c, rest
  end
  local q, r, unit = 0, 0, 4398046511104
  for _ = 1, 7 do
    local limb = floor(a / unit)
    a = a - limb * unit
    unit = unit / 128
    local x = 128 * r + limb * b
    r = x % c
    q = 128 * q + (x - r) / c
  end
  return q, r
end

local raw = redis.call('MGET', unpack(KEYS))
-- Working copies by key; x is nil where there is no state. kind tells how a changed one is written.
local x, y, z, kind, ends = {}, {}, {}, {}, {}
local reply = {now}
local over = {}
local denied, quotas, quotas_over = false, 0, 0

for pass = 1, 2 do
  for k = 1, #KEYS do
    kind[k] = nil
    x[k] = nil
  end
  local at = start
  for i = 1, count do
    local algorithm, k, role, op, hits
    algorithm, k, role, op, hits, at = struct.unpack('<ddddd', blob, at)
    local value = raw[k]
    local act = op
    if pass == 2 and op ~= 4 and not (op == 3 and over[i]) then
      act = 0
    end
    local is_over = false
    if algorithm == 1 then
      local W, L, mark
      W, L, mark, at = struct.unpack('<ddd', blob, at)
      -- The state as it is now [fw-3] [fw-5].
      local n = floor(now / W)
      local here = n % 2097152
      local w, c, moved = here, 0, false
      if not kind[k] and value then
        local packed = tonumber(value)
        local low = packed % 4294967296
        x[k], y[k] = (packed - low) / 4294967296, low
      end
      if x[k] then
        local ahead = (x[k] - here) % 2097152
        if ahead == 0 then
          c = y[k]
        elseif ahead <= 1048576 then
          c = y[k]
          if (n + ahead) * W - now <= math.max(W, 60000000) then
            w, n = x[k], n + ahead
          else
            moved = true
          end
        end
      end
      if pass == 1 then
        reply[#reply + 1] = w * 4294967296 + c
      end
      if op == 6 then
        is_over = c > L
      elseif op < 5 then
        is_over = c + hits > L
      end
      -- What becomes of it [dc-4].
      local after = c
      if act == 5 or (act == 7 and w == mark) then
        after = math.max(0, c - hits)
      elseif act == 4 or act == 2 or ((act == 1 or act == 3) and not is_over and pass == 1) then
        after = math.min(c + hits, 4294967295)
      elseif act == 3 and (atomic == 0 or pass == 2) then
        after = math.max(c, L)
      end
      if after ~= c or moved then
        kind[k], x[k], y[k], ends[k] = 1, w, after, (n + 1) * W
        if after == 0 then
          x[k] = nil
        end
      end
    else
      local cost, cost_f, P, L, B, T, F, post_paid, taken_at
      cost, cost_f, P, L, B, T, F, post_paid, taken_at, at = struct.unpack('<ddddddddd', blob, at)
      -- The debt as it is now [pc-3] [pc-6]; far past what is believed it is stored anew even if nothing is charged [pc-5].
      local d, f, changed = 0, 0, false
      if not kind[k] and value then
        x[k], y[k], z[k] = struct.unpack('<ddd', value)
      end
      if x[k] and x[k] >= now and L > 0 then
        d, f = x[k] - now, y[k]
        local max, max_f = T, F
        if post_paid == 1 then
          max, max_f = 281474976710656, 0
        end
        changed = z[k] == L and d > max + 60000000
        if z[k] ~= L then
          if d >= 281474976710656 then
            d, f = 281474976710656, 0
          end
          local u, w = mul_div(d, z[k], P)
          w = w + f
          u, w = u + floor(w / P), w % P
          local u_max = B
          if post_paid == 1 then
            u_max = 562949953421311
          end
          if u > u_max or (u == u_max and w > 0) then
            d, f = max, max_f
          else
            local a, b = mul_div(u, P, L)
            b = b + w % L
            d, f = a + floor(w / L) + floor(b / L), b % L
          end
        end
        if d > max or (d == max and f > max_f) then
          d, f = max, max_f
        end
      end
      if pass == 1 then
        reply[#reply + 1] = d
        reply[#reply + 1] = f
      end
      local would_d, would_f = d + cost, f + cost_f
      if would_f >= L then
        would_d, would_f = would_d + 1, would_f - L
      end
      if op == 6 then
        is_over = d > T or (d == T and f > F)
      elseif op < 5 then
        is_over = hits > B or would_d > T or (would_d == T and would_f > F)
      end
      -- What becomes of it [dc-4].
      if L > 0 then
        if act == 7 then
          -- The cost less what has drained since [un-3].
          cost = cost - math.max(0, now - taken_at)
          if cost < 0 then
            cost, cost_f = 0, 0
          end
        end
        if act == 5 or act == 7 then
          changed = changed or ((d > 0 or f > 0) and (cost > 0 or cost_f > 0))
          d, f = d - cost, f - cost_f
          if f < 0 then
            d, f = d - 1, f + L
          end
          if d < 0 then
            d, f = 0, 0
          end
        elseif act == 4 or ((act == 1 or act == 3) and not is_over and pass == 1) then
          d, f, changed = would_d, would_f, true
        elseif act == 3 and (atomic == 0 or pass == 2) and (d < T or (d == T and f < F)) then
          local gap, gap_f = T - d, F - f
          if gap_f < 0 then
            gap, gap_f = gap - 1, gap_f + L
          end
          local u, w = mul_div(gap, L, P)
          u = u + floor((w + gap_f) / P)
          if u > 0 then
            local c, c_f = mul_div(u, P, L)
            d, f, changed = d + c, f + c_f, true
            if f >= L then
              d, f = d + 1, f - L
            end
          end
        end
      end
      if changed then
        if d >= 281474976710656 then
          d, f = 281474976710656, 0
        end
        kind[k], x[k], y[k], z[k] = 2, now + d, f, L
        if d == 0 and f == 0 then
          x[k] = nil
        end
      end
    end
    if pass == 1 then
      over[i] = is_over
      if role == 0 then
        denied = denied or is_over
      elseif role == 2 then
        quotas = quotas + 1
        if is_over then
          quotas_over = quotas_over + 1
        end
      end
    end
  end
  if atomic == 0 or not (denied or (quotas > 0 and quotas == quotas_over)) then
    break
  end
end

-- Each state that changed is written, with the instant at which it equals an empty one [rd-2].
for k = 1, #KEYS do
  if kind[k] and not x[k] then
    redis.call('DEL', KEYS[k])
  elseif kind[k] == 1 then
    local packed = x[k] * 4294967296 + y[k]
    local before = raw[k] and tonumber(raw[k])
    if before and floor(before / 4294967296) == x[k] then
      redis.call('INCRBY', KEYS[k], string.format('%d', packed - before))
    else
      redis.call('SET', KEYS[k], string.format('%d', packed), 'PXAT', string.format('%d', math.ceil(ends[k] / 1000)))
    end
  elseif kind[k] == 2 then
    local paid = x[k]
    if y[k] > 0 then
      paid = paid + 1
    end
    redis.call('SET', KEYS[k], struct.pack('<ddd', x[k], y[k], z[k]),
      'PXAT', string.format('%d', math.ceil(paid / 1000)))
  end
end
return reply
