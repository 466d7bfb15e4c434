-- One decision over several charges, all or nothing; the twin of src/engine/decision.rs.
--
-- KEYS     the distinct keys
-- ARGV[1]  for each charge the digit of its algorithm, in the order of the charges
-- ARGV[2]  little-endian doubles: now in us (0: this server's clock), 1 if atomic, the number of charges, 1 if a state
--          is a hash or a sorted set; then for each charge: key (1 ..), role (0 enforced, 1 shadow, 2 quota), op, hits,
--          proof (of an undo: the receipt's mark, or the time of the charge for a debt), and the numbers of its
--          algorithm:
--          1 fixed_window            window W in us, limit L
--          2 pacing                  cost (us, fraction), period P, requests L, burst B, full debt T, F, 1 if post-paid
--          3 anchored_window         W, L, four boundaries (zeros: the first hit begins the window)
--          4 sliding_window_counter  W, L
--          5 sliding_window          W, precision, L
--          6 sliding_window_log      W, L
--          7 token_bucket            P, L, B, the most used that is believed, the most that can be used
-- reply    now in us, then for each charge what its own script would tell; now alone where no window of a calendar
--          holds it, with nothing written
--
-- op: as in fixed_window.lua, and 6 look, over only when more has been taken than the limit holds; 7 undo what the
-- proof names (but for a log, which has undo_log.lua). A look has 1 for hits. A charge of op 4 is over where one hit
-- would not fit [dc-9].
--
-- Strategy: all keys are read before the first write, since Redis does not undo a script that fails. Each charge works
-- on the copies that the charges before it left, in x, y and z, whose meaning is the algorithm's: the fields of its
-- state in their order. A copy is dirty once a charge has changed it, or found it in need of rewriting (moved, [tm-3]);
-- then x is nil where the state is empty. Where an
-- atomic decision denies, the copies are made anew and take only what is taken whatever the verdict. Branches are
-- inline: at this size closures cost more than they save; those that are rarely called are functions.
local algorithms, blob = ARGV[1], ARGV[2]
local now, atomic, count, has_lists, start = struct.unpack('<dddd', blob)
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local floor, max, min, call, format, byte, unpack_struct =
  math.floor, math.max, math.min, redis.call, string.format, string.byte, struct.unpack

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
    local y = 128 * r + limb * b
    r = y % c
    q = 128 * q + (y - r) / c
  end
  return q, r
end

local NOT_OURS = 'STATE the value at the key was not written by weir'
local read_buckets, parsed, read_log, find
if has_lists == 1 then
  -- The buckets of a hash: their numbers in order, and the counts by number.
  function read_buckets(key)
    local raw = call('HGETALL', key)
    local numbers, counts = {}, {}
    for i = 1, #raw, 2 do
      local number, count = tonumber(raw[i]), tonumber(raw[i + 1])
      if not number or not count or not (number >= 0 and number < 9007199254740992)
        or not (count >= 0 and count < 9007199254740992) then
        error(NOT_OURS)
      end
      numbers[#numbers + 1] = number
      counts[number] = count
    end
    table.sort(numbers)
    return numbers, counts
  end

  function parsed(member)
    local sum, hits = tonumber(string.sub(member, 1, 16)), tonumber(string.sub(member, 18))
    if not sum or not hits or not (hits >= 0 and hits <= sum) or not (sum < 9007199254740992) then
      error(NOT_OURS)
    end
    return sum, hits
  end

  -- A log as stored: its newest charge and how many there are. What counts of it depends on the charge's window.
  function read_log(key)
    local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
    if not newest[1] then
      return nil
    end
    local at = tonumber(newest[2])
    if not (at >= 0 and at < 9007199254740992) then
      error(NOT_OURS)
    end
    return {key = key, at = at, sum = (parsed(newest[1])), last = call('ZCARD', key) - 1}
  end

  -- The rank, time, sum and hits of the first stored charge from the rank `low` on whose sum is at least this.
  function find(log, low, least)
    local high = log.last
    while low < high do
      local middle = floor((low + high) / 2)
      if parsed(call('ZRANGE', log.key, middle, middle)[1]) >= least then
        high = middle
      else
        low = middle + 1
      end
    end
    local found = call('ZRANGE', log.key, low, low, 'WITHSCORES')
    local sum, hits = parsed(found[1])
    return low, tonumber(found[2]), sum, hits
  end
end

local raw = call('MGET', unpack(KEYS))
local x, y, z, dirty, ends = {}, {}, {}, {}, {}
local reply, told = {now}, 1
local over = {}
local denied, quotas, quotas_over = false, 0, 0

for pass = 1, 2 do
  if pass == 2 then
    x, y, z, dirty, ends = {}, {}, {}, {}, {}
  end
  local at = start
  for i = 1, count do
    local algorithm = byte(algorithms, i)
    local k, role, op, hits, proof, is_over

    if algorithm == 49 then
      local W, L
      k, role, op, hits, proof, W, L, at = unpack_struct('<ddddddd', blob, at)
      local value = not dirty[k] and raw[k]
      -- What is done in this pass: in the second only what a denied decision does.
      local act = op
      if pass == 2 and op ~= 4 and not (op == 3 and over[i]) then
        act = 0
      end
      -- The state as it is now [fw-3].
      local n = floor(now / W)
      local here = n % 2097152
      local w, c, moved = here, 0, false
      if value then
        local packed = tonumber(value)
        if not packed or not (packed >= 0 and packed < 9007199254740992) or packed % 1 ~= 0 then
          return redis.error_reply(NOT_OURS)
        end
        local low = packed % 4294967296
        x[k], y[k], z[k] = (packed - low) / 4294967296, low, packed
      end
      if x[k] then
        local ahead = (x[k] - here) % 2097152
        if ahead == 0 then
          c = y[k]
        elseif ahead <= 1048576 then
          c = y[k]
          if (n + ahead) * W - now <= max(W, 60000000) then
            w, n = x[k], n + ahead
          else
            moved = true
          end
        end
      end
      if pass == 1 then
        told = told + 1
        reply[told] = w * 4294967296 + c
      end
      is_over = (op == 6 and c > L) or (op < 5 and c + (op == 4 and 1 or hits) > L)
      -- What becomes of it [dc-4].
      local after = c
      if act == 5 or (act == 7 and w == proof) then
        after = max(0, c - hits)
      elseif act == 4 or act == 2 or ((act == 1 or act == 3) and not is_over and pass == 1) then
        after = c + hits
        if after > 4294967295 then
          after = 4294967295
        end
      elseif act == 3 and (atomic == 0 or pass == 2) then
        after = max(c, L)
      end
      if after ~= c or moved then
        dirty[k], x[k], y[k], ends[k] = 1, w, after, (n + 1) * W
        if after == 0 then
          x[k] = nil
        end
      end

    elseif algorithm == 50 then
      local cost, cost_f, P, L, B, T, F, post_paid
      k, role, op, hits, proof, cost, cost_f, P, L, B, T, F, post_paid, at = unpack_struct('<ddddddddddddd', blob, at)
      local value = not dirty[k] and raw[k]
      local act = op
      if pass == 2 and op ~= 4 and not (op == 3 and over[i]) then
        act = 0
      end
      local may_drain = act == 3 and (atomic == 0 or pass == 2)
      -- The debt as it is now [pc-3].
      local d, f, moved = 0, 0, false
      if value then
        if #value ~= 24 then
          return redis.error_reply(NOT_OURS)
        end
        local tat, fraction, over_l = unpack_struct('<ddd', value)
        if not (tat >= 0 and tat < 9007199254740992 and over_l >= 0 and over_l <= 4294967295)
          or not (fraction == 0 or (fraction > 0 and fraction < over_l)) then
          return redis.error_reply(NOT_OURS)
        end
        x[k], y[k], z[k] = tat, fraction, over_l
      end
      if x[k] and x[k] >= now and L > 0 then
        d, f = x[k] - now, y[k]
        local d_max, f_max = T, F
        if post_paid == 1 then
          d_max, f_max = 281474976710656, 0
        end
        moved = (d > 0 or f > 0) and (z[k] ~= L or d > d_max + 60000000)
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
            d, f = d_max, f_max
          else
            local a, b = mul_div(u, P, L)
            b = b + w % L
            d, f = a + floor(w / L) + floor(b / L), b % L
          end
        end
        if d > d_max or (d == d_max and f > f_max) then
          d, f = d_max, f_max
        end
      end
      if pass == 1 then
        reply[told + 1], reply[told + 2] = d, f
        told = told + 2
      end
      local would_d, would_f = d + cost, f + cost_f
      if would_f >= L then
        would_d, would_f = would_d + 1, would_f - L
      end
      if op == 6 then
        is_over = d > T or (d == T and f > F)
      elseif op == 4 then
        -- One hit costs P / L.
        is_over = L == 0
        if L > 0 then
          local one, one_f = d + floor(P / L), f + P % L
          if one_f >= L then
            one, one_f = one + 1, one_f - L
          end
          is_over = one > T or (one == T and one_f > F)
        end
      elseif op < 5 then
        is_over = hits > B or would_d > T or (would_d == T and would_f > F)
      end
      -- What becomes of it [dc-4].
      local before, before_f = d, f
      if L == 0 then
        d = before
      elseif act == 5 or act == 7 then
        if act == 7 then
          -- The cost less what has drained since [un-3].
          cost = cost - max(0, now - proof)
          if cost < 0 then
            cost, cost_f = 0, 0
          end
        end
        d, f = d - cost, f - cost_f
        if f < 0 then
          d, f = d - 1, f + L
        end
        if d < 0 then
          d, f = 0, 0
        end
      elseif act == 4 or act == 2 or ((act == 1 or act == 3) and not is_over and pass == 1) then
        d, f = would_d, would_f
      elseif may_drain and (d < T or (d == T and f < F)) then
        local gap, gap_f = T - d, F - f
        if gap_f < 0 then
          gap, gap_f = gap - 1, gap_f + L
        end
        local u, w = mul_div(gap, L, P)
        u = u + floor((w + gap_f) / P)
        if u > 0 then
          local c, c_f = mul_div(u, P, L)
          d, f = d + c, f + c_f
          if f >= L then
            d, f = d + 1, f - L
          end
        end
      end
      if d >= 281474976710656 then
        d, f = 281474976710656, 0
      end
      if d ~= before or f ~= before_f or moved then
        dirty[k], x[k], y[k], z[k], ends[k] = 2, now + d, f, L, now + d
        if f > 0 then
          ends[k] = now + d + 1
        end
        if d == 0 and f == 0 then
          x[k] = nil
        end
      end

    elseif algorithm == 51 then
      local W, L, b0, b1, b2, b3
      k, role, op, hits, proof, W, L, b0, b1, b2, b3, at = unpack_struct('<ddddddddddd', blob, at)
      local value = not dirty[k] and raw[k]
      local act = op
      if pass == 2 and op ~= 4 and not (op == 3 and over[i]) then
        act = 0
      end
      local may_drain = act == 3 and (atomic == 0 or pass == 2)
      -- The window as it is now: [aw-2], and by the calendar [cl-2].
      if value then
        if #value ~= 16 then
          return redis.error_reply(NOT_OURS)
        end
        x[k], y[k] = unpack_struct('<dd', value)
        if not (x[k] >= 0 and x[k] < 9007199254740992 and y[k] >= 0 and y[k] <= 4294967295) then
          return redis.error_reply(NOT_OURS)
        end
      end
      local from, till, c, moved = now, now, 0, false
      if b3 == 0 then
        if x[k] and y[k] > 0 and x[k] > now then
          c = y[k]
          moved = x[k] - now > max(W, 60000000)
          if not moved then
            from = x[k]
          end
          till = from + W
        elseif x[k] and y[k] > 0 and now < x[k] + W then
          from, till, c = x[k], x[k] + W, y[k]
        end
      else
        if b0 <= now and now < b1 then
          from, till = b0, b1
        elseif b1 <= now and now < b2 then
          from, till = b1, b2
        elseif b2 <= now and now < b3 then
          from, till = b2, b3
        else
          return {now}
        end
        if x[k] and x[k] == from then
          c = y[k]
        elseif x[k] and x[k] > from then
          c = y[k]
          moved = x[k] - now > max(till - from, 60000000)
          if not moved then
            local length = till - from
            from, till = x[k], x[k] + length
            if b1 > from then
              till = b1
            elseif b2 > from then
              till = b2
            elseif b3 > from then
              till = b3
            end
          end
        end
      end
      if pass == 1 then
        reply[told + 1], reply[told + 2], reply[told + 3] = from, till, c
        told = told + 3
      end
      is_over = (op == 6 and c > L) or (op < 5 and c + (op == 4 and 1 or hits) > L)
      -- What becomes of it [dc-4].
      local after = c
      if act == 5 or (act == 7 and from == proof) then
        after = max(0, c - hits)
      elseif act == 4 or act == 2 or ((act == 1 or act == 3) and not is_over and pass == 1) then
        after = min(c + hits, 4294967295)
      elseif may_drain then
        after = max(c, L)
      end
      if after ~= c or moved then
        if from == till then
          till = now + W
        end
        dirty[k], x[k], y[k], ends[k] = 3, from, after, till
        if after == 0 then
          x[k] = nil
        end
      end

    elseif algorithm == 52 then
      local W, L
      k, role, op, hits, proof, W, L, at = unpack_struct('<ddddddd', blob, at)
      local value = not dirty[k] and raw[k]
      local act = op
      if pass == 2 and op ~= 4 and not (op == 3 and over[i]) then
        act = 0
      end
      local may_drain = act == 3 and (atomic == 0 or pass == 2)
      -- The counts as they are now [sc-2].
      if value then
        if #value ~= 24 then
          return redis.error_reply(NOT_OURS)
        end
        x[k], y[k], z[k] = unpack_struct('<ddd', value)
        if not (x[k] >= 0 and x[k] < 9007199254740992 and y[k] >= 0 and y[k] <= 4294967295
          and z[k] >= 0 and z[k] <= 4294967295) then
          return redis.error_reply(NOT_OURS)
        end
      end
      local from, p, c, moved = now - now % W, 0, 0, false
      if x[k] then
        if x[k] == from then
          p, c = y[k], z[k]
        elseif x[k] > from then
          p, c = y[k], z[k]
          moved = x[k] - now > max(W, 60000000)
          if not moved then
            from = x[k]
          end
        elseif x[k] + W == from then
          p = z[k]
        end
      end
      if pass == 1 then
        reply[told + 1], reply[told + 2], reply[told + 3] = from, p, c
        told = told + 3
      end
      local used = c + mul_div(p, W - max(0, now - from), W)
      is_over = (op == 6 and used > L) or (op < 5 and used + (op == 4 and 1 or hits) > L)
      -- What becomes of it [dc-4].
      local after_p, after_c = p, c
      if L == 0 then
        after_c = c
      elseif act == 5 then
        after_p, after_c = max(0, p - max(0, hits - c)), max(0, c - hits)
      elseif act == 7 then
        if from == proof then
          after_c = max(0, c - hits)
        elseif from == proof + W then
          after_p = max(0, p - hits)
        end
      elseif act == 4 or act == 2 or ((act == 1 or act == 3) and not is_over and pass == 1) then
        after_c = min(c + hits, 4294967295)
      elseif may_drain then
        after_c = c + max(0, L - used)
      end
      if after_p ~= p or after_c ~= c or (moved and L > 0) then
        dirty[k], x[k], y[k], z[k], ends[k] = 4, from, after_p, after_c, from + W
        if after_c > 0 then
          ends[k] = from + W + W
        elseif after_p == 0 then
          x[k] = nil
        end
      end

    elseif algorithm == 53 then
      local W, precision, L
      k, role, op, hits, proof, W, precision, L, at = unpack_struct('<dddddddd', blob, at)
      local act = op
      if pass == 2 and op ~= 4 and not (op == 3 and over[i]) then
        act = 0
      end
      local may_drain = act == 3 and (atomic == 0 or pass == 2)
      -- The buckets that count now [sw-2]: x holds their numbers in order, y the counts by number.
      if not x[k] and not dirty[k] then
        x[k], y[k] = read_buckets(KEYS[k])
      end
      local stored, counts = x[k] or {}, y[k] or {}
      local here = floor(now / precision)
      local instant, rebased = now, false
      local newest = stored[#stored]
      if newest and newest > here then
        instant = newest * precision
        if instant - now <= max(W, 60000000) then
          here = newest
        else
          rebased = true
        end
      end
      local oldest = floor(max(0, instant + 1 - W) / precision)
      local numbers, live, used = {}, {}, 0
      for _, number in ipairs(stored) do
        if number >= oldest then
          numbers[#numbers + 1] = number
          live[number] = counts[number]
          used = used + counts[number]
        end
      end
      if rebased then
        numbers, live = {}, {}
        if used > 0 then
          used = min(used, 4294967295)
          numbers, live = {here}, {[here] = used}
        end
      end
      local asked = hits
      if op == 4 then
        asked = 1
      elseif op >= 5 and op ~= 6 then
        asked = 0
      end
      is_over = (op == 6 and used > L) or (op < 5 and used + asked > L)
      local added = 0
      if L == 0 then
        added = 0
      elseif act == 4 or act == 2 or ((act == 1 or act == 3) and not is_over and pass == 1) then
        added = hits
      elseif may_drain then
        added = max(0, L - used)
      end
      -- What is told before and after the charge: used, fits_at, empty_at, mark [sw-3].
      for side = 1, 2 do
        if side == 2 then
          -- What becomes of it [dc-4].
          local changed = added > 0 or (rebased and used > 0 and act ~= 7 and L > 0)
          if added > 0 then
            if numbers[#numbers] ~= here then
              numbers[#numbers + 1] = here
              live[here] = 0
            end
            live[here] = min(live[here] + added, 4294967295)
            used = used + added
          elseif act == 5 and L > 0 and used > 0 then
            changed = true
            local rest = hits
            while rest > 0 and #numbers > 0 do
              local number = numbers[#numbers]
              local part = min(rest, live[number])
              live[number] = live[number] - part
              rest, used = rest - part, used - part
              if live[number] == 0 then
                numbers[#numbers], live[number] = nil, nil
              end
            end
          elseif act == 7 and L > 0 and not rebased and live[proof] then
            -- The buckets that count stay, but for the receipt's [un-2].
            changed = true
            live[proof] = max(0, live[proof] - hits)
            local left = {}
            for _, number in ipairs(numbers) do
              if live[number] > 0 then
                left[#left + 1] = number
              end
            end
            numbers = left
          end
          if changed then
            dirty[k], x[k], y[k] = 5, numbers, live
            if #numbers == 0 then
              x[k] = nil
            else
              ends[k] = (numbers[#numbers] + 1) * precision + W - 1
            end
          end
        end
        if pass == 1 then
          local fits_at, empty_at, mark = 0, 0, 0
          local excess = used + asked - L
          if excess > 0 and asked > 0 and asked <= L and used > 0 then
            local last, sum = here, 0
            for _, number in ipairs(numbers) do
              sum = sum + live[number]
              if sum >= excess then
                last = number
                break
              end
            end
            fits_at = (last + 1) * precision + W - 1
          end
          if used > 0 then
            mark = numbers[#numbers] or 0
            empty_at = (mark + 1) * precision + W - 1
          end
          reply[told + 1], reply[told + 2], reply[told + 3], reply[told + 4] = min(used, 4294967295), fits_at, empty_at, mark
          told = told + 4
        end
      end

    elseif algorithm == 54 then
      local W, L
      k, role, op, hits, proof, W, L, at = unpack_struct('<ddddddd', blob, at)
      local act = op
      if pass == 2 and op ~= 4 and not (op == 3 and over[i]) then
        act = 0
      end
      local may_drain = act == 3 and (atomic == 0 or pass == 2)
      -- The working copy of a log, in x: `log` what is stored, `first` the rank of its first live charge, `base` and
      -- `sum` as in sliding_window_log.lua, `kept` the sum up to which stored charges stay, `extra` what was added.
      local copy = x[k]
      if not copy then
        copy = {base = 0, sum = 0, at = now, newest = now, kept = 0, first = 0, extra = {}}
        x[k] = copy
        if not dirty[k] then
          copy.log = read_log(KEYS[k])
        end
        local log = copy.log
        if log then
          copy.at, copy.newest = max(now, log.at), log.at
          local oldest = call('ZRANGEBYSCORE', KEYS[k], format('(%d', copy.at - W), '+inf', 'LIMIT', 0, 1)[1]
          if oldest then
            local oldest_sum, oldest_hits = parsed(oldest)
            copy.base, copy.sum, copy.kept = oldest_sum - oldest_hits, log.sum, log.sum
            copy.first = call('ZRANK', KEYS[k], oldest)
          end
          if copy.at - now > max(W, 60000000) then
            -- The clock has stepped back too far [tm-2]: what counts moves to now, as one charge.
            copy.at, copy.newest, copy.anew, copy.moved = now, now, true, true
            copy.kept = copy.base
            if copy.sum > copy.base then
              copy.extra[1] = {at = now, sum = copy.sum, hits = copy.sum - copy.base}
            end
          end
        end
      end
      if copy.sum == copy.base then
        -- Where nothing counts, the log begins anew.
        copy.base, copy.sum, copy.kept, copy.at, copy.anew = 0, 0, 0, now, true
      end
      local used = copy.sum - copy.base
      local asked = hits
      if op == 4 then
        asked = 1
      elseif op >= 5 and op ~= 6 then
        asked = 0
      end
      is_over = (op == 6 and used > L) or (op < 5 and used + asked > L)
      local added, given = 0, 0
      if L == 0 then
        added = 0
      elseif act == 5 then
        given = min(hits, used)
      elseif act == 4 or act == 2 or ((act == 1 or act == 3) and not is_over and pass == 1) then
        added = hits
      elseif may_drain then
        added = max(0, L - used)
      end
      for side = 1, 2 do
        if side == 2 then
          -- What becomes of it [dc-4].
          if added > 0 then
            copy.sum = copy.sum + added
            copy.extra[#copy.extra + 1] = {at = copy.at, sum = copy.sum, hits = added}
            copy.newest = copy.at
          elseif given > 0 then
            copy.sum = copy.sum - given
            while #copy.extra > 0 and copy.extra[#copy.extra].sum > copy.sum do
              local last = copy.extra[#copy.extra]
              if last.sum - last.hits < copy.sum then
                copy.extra[#copy.extra] = {at = last.at, sum = copy.sum, hits = copy.sum - (last.sum - last.hits)}
              else
                copy.extra[#copy.extra] = nil
              end
            end
            if copy.kept > copy.sum then
              copy.kept = copy.sum
              copy.cut, copy.cut_at, copy.cut_sum, copy.cut_hits = find(copy.log, copy.first, copy.kept + 1)
            end
            if #copy.extra > 0 then
              copy.newest = copy.extra[#copy.extra].at
            elseif copy.sum > copy.base then
              local _
              _, copy.newest = find(copy.log, copy.first, copy.sum)
            end
          end
          if added > 0 or given > 0 or (copy.moved and used > 0 and L > 0) then
            copy.moved = false
            dirty[k] = 6
            ends[k] = copy.newest + W
            copy.at = max(now, copy.newest)
          end
        end
        if pass == 1 then
          local total = copy.sum - copy.base
          local fits_at, empty_at = 0, 0
          local excess = total + asked - L
          if excess > 0 and asked > 0 and asked <= L then
            local target = copy.base + excess
            local leaves = copy.at
            if target <= copy.kept and copy.kept > copy.base then
              local _
              _, leaves = find(copy.log, copy.first, target)
            else
              for _, entry in ipairs(copy.extra) do
                if entry.sum >= target then
                  leaves = entry.at
                  break
                end
              end
            end
            fits_at = leaves + W
          end
          if total > 0 then
            empty_at = copy.newest + W
          end
          reply[told + 1], reply[told + 2], reply[told + 3], reply[told + 4] = min(total, 4294967295), fits_at, empty_at, copy.sum
          told = told + 4
        end
      end

    elseif algorithm == 55 then
      local P, L, B, ceiling, most
      k, role, op, hits, proof, P, L, B, ceiling, most, at = unpack_struct('<dddddddddd', blob, at)
      local value = not dirty[k] and raw[k]
      local act = op
      if pass == 2 and op ~= 4 and not (op == 3 and over[i]) then
        act = 0
      end
      local may_drain = act == 3 and (atomic == 0 or pass == 2)
      -- The bucket as it is now [tb-2].
      if value then
        if #value ~= 16 then
          return redis.error_reply(NOT_OURS)
        end
        x[k], y[k] = unpack_struct('<dd', value)
        if not (x[k] >= 0 and x[k] < 9007199254740992 and y[k] >= 0 and y[k] <= 4294967295) then
          return redis.error_reply(NOT_OURS)
        end
      end
      local a, u, moved = now, 0, false
      if x[k] and L > 0 then
        local used = min(y[k], ceiling)
        if x[k] > now then
          u = used
          moved = x[k] - now > max(P, 60000000)
          if not moved then
            a = x[k]
          end
        else
          local periods = floor((now - x[k]) / P)
          if periods < math.ceil(used / L) then
            a, u = x[k] + periods * P, used - periods * L
          end
        end
      end
      if pass == 1 then
        reply[told + 1], reply[told + 2] = a, u
        told = told + 2
      end
      is_over = (op == 6 and u > B) or (op < 5 and u + (op == 4 and 1 or hits) > B)
      -- What becomes of it [dc-4].
      local after = u
      if L == 0 then
        after = u
      elseif act == 5 then
        after = max(0, u - hits)
      elseif act == 7 then
        -- Less what has been refilled since [un-5].
        after = max(0, u - max(0, hits - floor(max(0, a - proof) / P) * L))
      elseif act == 4 or act == 2 or ((act == 1 or act == 3) and not is_over and pass == 1) then
        after = min(u + hits, most)
      elseif may_drain then
        after = max(u, B)
      end
      if after ~= u or moved then
        dirty[k], x[k], y[k] = 7, a, after
        if after == 0 then
          x[k] = nil
        else
          ends[k] = a + math.ceil(after / L) * P
        end
      end

    else
      error('no algorithm ' .. string.char(algorithm))
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

-- MGET takes a key of another type for none. Before such a key is overwritten a GET raises WRONGTYPE: only a key's
-- first charge pays for it.
for k = 1, #KEYS do
  if dirty[k] and not raw[k] and dirty[k] ~= 5 and dirty[k] ~= 6 then
    call('GET', KEYS[k])
  end
end
for k = 1, #KEYS do
  local key, kind = KEYS[k], dirty[k]
  if kind == 6 then
    local copy = x[k]
    if copy.sum == copy.base then
      call('DEL', key)
    else
      if copy.anew then
        call('DEL', key)
      else
        -- Of those that count no more, a bounded number: each takes time.
        local gone = min(copy.first, 128)
        if gone > 0 then
          call('ZREMRANGEBYRANK', key, 0, gone - 1)
        end
        if copy.cut then
          call('ZREMRANGEBYRANK', key, copy.cut - gone, -1)
          local rest = copy.kept - (copy.cut_sum - copy.cut_hits)
          if rest > 0 then
            call('ZADD', key, format('%d', copy.cut_at), format('%016.0f:%d', copy.kept, rest))
          end
        end
      end
      for _, entry in ipairs(copy.extra) do
        call('ZADD', key, format('%d', entry.at), format('%016.0f:%d', entry.sum, entry.hits))
      end
      call('PEXPIREAT', key, format('%d', math.ceil(ends[k] / 1000)))
    end
  elseif kind and not x[k] then
    call('DEL', key)
  elseif kind == 1 then
    local packed, before = x[k] * 4294967296 + y[k], z[k]
    local goes_on = before and floor(before / 4294967296) == x[k]
    -- A number that INCRBY cannot read (another program may write one as 1e3) is written anew.
    if not goes_on or type(redis.pcall('INCRBY', key, format('%d', packed - before))) == 'table' then
      call('SET', key, format('%d', packed), 'PXAT', format('%d', math.ceil(ends[k] / 1000)))
    end
  elseif kind == 5 then
    -- A hash of at most 257 small fields: written whole.
    local fields = {}
    for _, number in ipairs(x[k]) do
      fields[#fields + 1] = format('%d', number)
      fields[#fields + 1] = format('%d', y[k][number])
    end
    call('DEL', key)
    call('HSET', key, unpack(fields))
    call('PEXPIREAT', key, format('%d', math.ceil(ends[k] / 1000)))
  elseif kind then
    local state
    if kind == 2 or kind == 4 then
      state = struct.pack('<ddd', x[k], y[k], z[k])
    else
      state = struct.pack('<dd', x[k], y[k])
    end
    call('SET', key, state, 'PXAT', format('%d', math.ceil(ends[k] / 1000)))
  end
end
return reply
