-- One charge on two weighted windows; the twin of src/engine/algorithm/sliding_window_counter.rs.
--
-- KEYS[1]  the state: three little-endian doubles: start in us, the earlier window's count, the later window's
-- ARGV[1]  little-endian doubles: op, hits, window in us, limit, now in us (0: this server's clock)
-- reply    now in us, and the state as this charge found it: start, earlier count, later count
--
-- op: as in fixed_window.lua; 2 is not used.
local op, hits, W, L, now = struct.unpack('<ddddd', ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- The counts as they are now [sc-2].
local start, p, c, moved = now - now % W, 0, 0, false
local stored = redis.call('GET', KEYS[1])
if stored then
  if #stored ~= 24 then
    return redis.error_reply('STATE the value at the key was not written by weir')
  end
  local theirs, previous, count = struct.unpack('<ddd', stored)
  if not (theirs >= 0 and theirs < 9007199254740992 and previous >= 0 and previous <= 4294967295
    and count >= 0 and count <= 4294967295) then
    return redis.error_reply('STATE the value at the key was not written by weir')
  end
  if theirs == start then
    p, c = previous, count
  elseif theirs > start then
    p, c = previous, count
    moved = theirs - now > math.max(W, 60000000) and L > 0
    if theirs - now <= math.max(W, 60000000) then
      start = theirs
    end
  elseif theirs + W == start then
    p = count
  end
end
local reply = {now, start, p, c}

-- What of the earlier window still counts: floor(p * (W - elapsed) / W) [ar-1].
local a, b = p, W - math.max(0, now - start)
local x = a * b
if x < 9007199254740992 then
  x = math.floor(x / W)
else
  local q, r, unit = 0, 0, 4398046511104
  for _ = 1, 7 do
    local limb = math.floor(a / unit)
    a = a - limb * unit
    unit = unit / 128
    local y = 128 * r + limb * b
    r = y % W
    q = 128 * q + (y - r) / W
  end
  x = q
end

-- What becomes of it [dc-4].
local after_p, after_c = p, c
if L == 0 then
  after_c = c
elseif op == 5 then
  after_p = math.max(0, p - math.max(0, hits - c))
  after_c = math.max(0, c - hits)
elseif op == 4 or (op ~= 0 and c + x + hits <= L) then
  after_c = math.min(c + hits, 4294967295)
elseif op == 3 then
  after_c = c + math.max(0, L - c - x)
end
if after_p ~= p or after_c ~= c or moved then
  if after_p == 0 and after_c == 0 then
    redis.call('DEL', KEYS[1])
  else
    local finish = start + W
    if after_c > 0 then
      finish = finish + W
    end
    redis.call('SET', KEYS[1], struct.pack('<ddd', start, after_p, after_c),
      'PXAT', string.format('%d', math.ceil(finish / 1000)))
  end
end
return reply
