-- One charge on a window that begins with its first hit, or where a calendar says; the twin of
-- src/engine/algorithm/anchored_window.rs.
--
-- KEYS[1]  the state: two little-endian doubles: start in us, count
-- ARGV[1]  little-endian doubles: op, hits, window in us, limit, four boundaries of a calendar in us (zeros: the first
--          hit begins the window), now in us (0: this server's clock)
-- reply    now in us, and the window as this charge found it: start, end, count; now alone where no window of the
--          calendar holds it, with nothing written
--
-- op: as in fixed_window.lua.
local op, hits, W, L, b0, b1, b2, b3, now = struct.unpack('<ddddddddd', ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- The window as it is now: [aw-2], and by the calendar [cl-2].
local start, finish, c, moved = now, now, 0, false
local theirs, count
local stored = redis.call('GET', KEYS[1])
if stored then
  if #stored ~= 16 then
    return redis.error_reply('STATE the value at the key was not written by weir')
  end
  theirs, count = struct.unpack('<dd', stored)
  if not (theirs >= 0 and theirs < 9007199254740992 and count >= 0 and count <= 4294967295) then
    return redis.error_reply('STATE the value at the key was not written by weir')
  end
end
if b3 == 0 then
  if stored and count > 0 and theirs > now then
    start, c = now, count
    moved = theirs - now > math.max(W, 60000000)
    if not moved then
      start = theirs
    end
    finish = start + W
  elseif stored and count > 0 and now < theirs + W then
    start, finish, c = theirs, theirs + W, count
  end
else
  if b0 <= now and now < b1 then
    start, finish = b0, b1
  elseif b1 <= now and now < b2 then
    start, finish = b1, b2
  elseif b2 <= now and now < b3 then
    start, finish = b2, b3
  else
    return {now}
  end
  if stored and theirs == start then
    c = count
  elseif stored and theirs > start then
    c = count
    moved = theirs - now > math.max(finish - start, 60000000)
    if not moved then
      local length = finish - start
      start, finish = theirs, theirs + length
      if b1 > theirs then
        finish = b1
      elseif b2 > theirs then
        finish = b2
      elseif b3 > theirs then
        finish = b3
      end
    end
  end
end
local reply = {now, start, finish, c}

-- What becomes of it [dc-4].
local after = c
if op == 5 then
  after = math.max(0, c - hits)
elseif op == 4 or op == 2 or (op ~= 0 and c + hits <= L) then
  after = math.min(c + hits, 4294967295)
elseif op == 3 then
  after = math.max(c, L)
end
if after ~= c or moved then
  if after == 0 then
    redis.call('DEL', KEYS[1])
  else
    if finish == start then
      finish = now + W
    end
    redis.call('SET', KEYS[1], struct.pack('<dd', start, after),
      'PXAT', string.format('%d', math.ceil(finish / 1000)))
  end
end
return reply
