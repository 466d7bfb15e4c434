-- fixed_window of the clock; the twin of src/engine/algorithm/fixed_window.rs.
--
-- Stored: (window number mod 2^21) * 2^32 + count, as one decimal integer. [fw-2]

--- numbers W, L
--- state window, count, packed
--- read GET
packed = tonumber(value)
if not packed or not (packed >= 0 and packed < 9007199254740992) or packed % 1 ~= 0 then
  return redis.error_reply(NOT_OURS)
end
count = packed % 4294967296
window = (packed - count) / 4294967296

--- see
-- The state as it is now [fw-3]: w and c are its window and count, n the number of its window unshortened.
local n = (now - now % W) / W
local w, c, moved = n % 2097152, 0, false
if window then
  local ahead = (window - w) % 2097152
  if ahead == 0 then
    c = count
  elseif ahead <= 1048576 then
    -- The clock stepped back [fw-5]: a little, and the state's window continues; by more, and its count moves to this
    -- window, and is stored there even if nothing is charged [tm-3].
    c = count
    if (n + ahead) * W - now <= max(W, 60000000) then
      w, n = window, n + ahead
    else
      moved = true
    end
  end
end

--- finds 1 w * 4294967296 + c

--- over
is_over = c + needed > L

--- effect
local after = c
--- add
after = c + hits
if after > 4294967295 then
  after = 4294967295
end
--- drain
after = max(c, L)
--- refund
after = max(0, c - hits)
--- undo
if w == proof then
  after = max(0, c - hits)
end
--- changed after ~= c or moved

--- keep
-- Until its window ends [rd-2].
window, count, till = after > 0 and w, after, (n + 1) * W

--- write
local rise = window * 4294967296 + count - (packed or 0)
local refused = true
-- A window that continues keeps its expiry.
if packed and floor(packed / 4294967296) == window then
  refused = type(try('INCRBY', key, rise == 1 and '1' or format('%d', rise))) == 'table'
end
-- A number that INCRBY cannot read (another program may write one as 1e3) is written anew.
if refused then
  call('SET', key, format('%d', window * 4294967296 + count), 'PXAT', format('%d', ceil(till / 1000)))
end
