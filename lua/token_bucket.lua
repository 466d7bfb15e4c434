-- One charge on a bucket that is refilled in steps; the twin of src/engine/algorithm/token_bucket.rs.
--
-- KEYS[1]  the state: two little-endian doubles: anchor in us, tokens used
-- ARGV[1]  little-endian doubles: op, hits, period P in us, requests L, burst B, the most used tokens that are believed,
--          the most that can be used, now in us (0: this server's clock)
-- reply    now in us, and the state as this charge found it: anchor, used
--
-- op: as in fixed_window.lua; 2 is not used.
local op, hits, P, L, B, ceiling, most, now = struct.unpack('<dddddddd', ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- The bucket as it is now [tb-2].
local a, u, moved = now, 0, false
local stored = redis.call('GET', KEYS[1])
if stored and L > 0 then
  if #stored ~= 16 then
    return redis.error_reply('STATE the value at the key was not written by weir')
  end
  local anchor, used = struct.unpack('<dd', stored)
  if not (anchor >= 0 and anchor < 9007199254740992 and used >= 0 and used <= 4294967295) then
    return redis.error_reply('STATE the value at the key was not written by weir')
  end
  used = math.min(used, ceiling)
  if anchor > now then
    u = used
    moved = anchor - now > math.max(P, 60000000)
    if not moved then
      a = anchor
    end
  else
    local periods = math.floor((now - anchor) / P)
    if periods < math.ceil(used / L) then
      a, u = anchor + periods * P, used - periods * L
    end
  end
end
local reply = {now, a, u}

-- What becomes of it [dc-4].
local after = u
if L > 0 then
  if op == 5 then
    after = math.max(0, u - hits)
  elseif op == 4 or (op ~= 0 and u + hits <= B) then
    after = math.min(u + hits, most)
  elseif op == 3 then
    after = math.max(u, B)
  end
end
if after ~= u or moved then
  if after == 0 then
    redis.call('DEL', KEYS[1])
  else
    local finish = a + math.ceil(after / L) * P
    redis.call('SET', KEYS[1], struct.pack('<dd', a, after), 'PXAT', string.format('%d', math.ceil(finish / 1000)))
  end
end
return reply
