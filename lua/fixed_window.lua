-- One charge on a fixed window of the clock; the twin of src/engine/algorithm/fixed_window.rs.
--
-- KEYS[1]  the state: (window number mod 2^21) * 2^32 + count, one decimal integer
-- ARGV[1]  little-endian doubles: op, hits, window in us, limit, now in us (0: this server's clock)
-- reply    now in us, and the state as this charge found it, packed as above
--
-- op: 0 look; 1 take if it fits; 2 take, and count what does not fit too; 3 take, and drain what is left where it does
-- not fit; 4 add whatever the limit says; 5 give back.
--
-- Example: a look at a limit of 3 per hour in redis-cli is this file with one key and
-- struct.pack('<ddddd', 0, 1, 3600000000, 3, 0) as its argument; on an unused key it answers {now, window * 2^32}.
local op, hits, W, L, now = struct.unpack('<ddddd', ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end

-- The state as it is now [fw-3]: w and c are its window and count, n the number of its window unshortened.
local n = math.floor(now / W)
local here = n % 2097152
local w, c = here, 0
local stored = redis.call('GET', KEYS[1])
local stored_w, stored_c
local moved = false
if stored then
  stored = tonumber(stored)
  if not stored or not (stored >= 0 and stored < 9007199254740992) or stored % 1 ~= 0 then
    return redis.error_reply('STATE the value at the key was not written by weir')
  end
  stored_c = stored % 4294967296
  stored_w = (stored - stored_c) / 4294967296
  local ahead = (stored_w - here) % 2097152
  if ahead == 0 then
    c = stored_c
  elseif ahead <= 1048576 then
    -- The clock stepped back [fw-5]: a little, the state's window goes on; by more, its count moves to this window, and
    -- is stored there even if nothing is charged [tm-3].
    c = stored_c
    if (n + ahead) * W - now <= math.max(W, 60000000) then
      w, n = stored_w, n + ahead
    else
      moved = true
    end
  end
end
local reply = {now, w * 4294967296 + c}

-- What becomes of it [dc-4]; it expires when its window ends [rd-2].
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
  -- A number that INCRBY cannot read (another program may write one as 1e3) is written anew.
  elseif stored_w ~= w or type(redis.pcall('INCRBY', KEYS[1], string.format('%d', after - stored_c))) == 'table' then
    redis.call('SET', KEYS[1], string.format('%d', w * 4294967296 + after),
      'PXAT', string.format('%d', math.ceil((n + 1) * W / 1000)))
  end
end
return reply
