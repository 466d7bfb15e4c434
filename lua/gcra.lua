-- One charge on a pacing limit; the twin of src/engine/algorithm/gcra.rs.
--
-- KEYS[1]  the state: three little-endian doubles: tat in us, fraction, the limit's requests when it was written
-- ARGV[1]  little-endian doubles: op, hits, cost (us, fraction), period P in us, requests L, burst B,
--          full burst's debt T, F (us, fraction), 1 if post-paid, now in us (0: this server's clock)
-- reply    now in us, and the debt as this charge found it: us, fraction
--
-- op: as in fixed_window.lua; 2 is not used, since a debt never counts what was denied.
local op, hits, cost, cost_f, P, L, B, T, F, post_paid, now = struct.unpack('<ddddddddddd', ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- floor(a * b / c) and the rest [ar-1]: for a < 2^49, b and c <= 2^45.
local function mul_div(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local rest = product % c
    return (product - rest) / c, rest
  end
  local q, r, unit = 0, 0, 4398046511104
  for _ = 1, 7 do
    local limb = math.floor(a / unit)
    a = a - limb * unit
    unit = unit / 128
    local x = 128 * r + limb * b
    r = x % c
    q = 128 * q + (x - r) / c
  end
  return q, r
end

-- The debt as it is now [pc-3]: d us and f / L us.
local d, f, moved = 0, 0, false
local stored = redis.call('GET', KEYS[1])
if stored and L > 0 then
  if #stored ~= 24 then
    return redis.error_reply('STATE the value at the key was not written by weir')
  end
  local tat, stored_f, stored_L = struct.unpack('<ddd', stored)
  if not (tat >= 0 and tat < 9007199254740992 and stored_L >= 0 and stored_L <= 4294967295)
    or not (stored_f == 0 or (stored_f > 0 and stored_f < stored_L)) then
    return redis.error_reply('STATE the value at the key was not written by weir')
  end
  if tat >= now then
    d, f = tat - now, stored_f
    local max, max_f = T, F
    if post_paid == 1 then
      max, max_f = 281474976710656, 0
    end
    -- Stored anew even if nothing is charged [tm-3].
    moved = (d > 0 or f > 0) and (stored_L ~= L or d > max + 60000000)
    if stored_L ~= L then
      -- Another limit wrote it [pc-6]: u + w / P hits are owed.
      if d >= 281474976710656 then
        d, f = 281474976710656, 0
      end
      local u, w = mul_div(d, stored_L, P)
      w = w + f
      u, w = u + math.floor(w / P), w % P
      local u_max = B
      if post_paid == 1 then
        u_max = 562949953421311
      end
      if u > u_max or (u == u_max and w > 0) then
        d, f = max, max_f
      else
        local a, b = mul_div(u, P, L)
        b = b + w % L
        d, f = a + math.floor(w / L) + math.floor(b / L), b % L
      end
    end
    if d > max or (d == max and f > max_f) then
      d, f = max, max_f
    end
  end
end
local reply = {now, d, f}
local before, before_f = d, f

-- What becomes of it [dc-4].
if L > 0 and op == 5 then
  d, f = d - cost, f - cost_f
  if f < 0 then
    d, f = d - 1, f + L
  end
  if d < 0 then
    d, f = 0, 0
  end
elseif L > 0 and op ~= 0 then
  local would_d, would_f = d + cost, f + cost_f
  if would_f >= L then
    would_d, would_f = would_d + 1, would_f - L
  end
  if op == 4 or not (hits > B or would_d > T or (would_d == T and would_f > F)) then
    d, f = would_d, would_f
  elseif op == 3 and (d < T or (d == T and f < F)) then
    -- Drain: as many whole hits as fit.
    local gap, gap_f = T - d, F - f
    if gap_f < 0 then
      gap, gap_f = gap - 1, gap_f + L
    end
    local u, w = mul_div(gap, L, P)
    cost, cost_f = mul_div(u + math.floor((w + gap_f) / P), P, L)
    d, f = d + cost, f + cost_f
    if f >= L then
      d, f = d + 1, f - L
    end
  end
  if d >= 281474976710656 then
    d, f = 281474976710656, 0
  end
end
if d == before and f == before_f and not moved then
  return reply
end
if d == 0 and f == 0 then
  redis.call('DEL', KEYS[1])
else
  local paid = now + d
  if f > 0 then
    paid = paid + 1
  end
  redis.call('SET', KEYS[1], struct.pack('<ddd', now + d, f, L), 'PXAT', string.format('%d', math.ceil(paid / 1000)))
end
return reply
