-- fixed_window from the first hit or by a calendar; the twin of src/engine/algorithm/anchored_window.rs.
--
-- Stored: two little-endian doubles: start in us, count. [aw-5]
-- Numbers: window W in us, limit L, four boundaries of a calendar in us (all 0: the first hit begins the window).

--- numbers W, L, b0, b1, b2, b3
--- state begun, count
--- read GET doubles
if not (begun >= 0 and begun < 9007199254740992 and count >= 0 and count <= 999999999999999) then
  return redis.error_reply(NOT_OURS)
end

--- see
-- The window as it is now: [aw-2], and by the calendar [cl-2].
local start, finish, c, moved = now, now, 0, false
if b3 == 0 then
  if begun and count > 0 and begun > now then
    c = count
    moved = begun - now > max(W, 60000000)
    if not moved then
      start = begun
    end
    finish = start + W
  elseif begun and count > 0 and now < begun + W then
    start, finish, c = begun, begun + W, count
  end
else
  if b0 <= now and now < b1 then
    start, finish = b0, b1
  elseif b1 <= now and now < b2 then
    start, finish = b1, b2
  elseif b2 <= now and now < b3 then
    start, finish = b2, b3
  else
    -- No window holds the clock: nothing of this decision is written [cl-3].
    start, finish, stale = 0, 0, true
  end
  if stale then
    c = 0
  elseif begun and begun == start then
    c = count
  elseif begun and begun > start then
    c = count
    moved = begun - now > max(finish - start, 60000000)
    if not moved then
      local length = finish - start
      start, finish = begun, begun + length
      if b1 > begun then
        finish = b1
      elseif b2 > begun then
        finish = b2
      elseif b3 > begun then
        finish = b3
      end
    end
  end
end

--- finds 3 start, finish, c

--- over
is_over = c + needed > L

--- effect
local after = c
--- add
-- A count stops at 2^32 - 1 while the limit has no more hits than that [aw-5]. Sums stay below 10^15 + 2^32, which is
-- below 2^53: all of them are exact.
after = max(c, min(c + hits, L > 4294967295 and 999999999999999 or 4294967295))
--- drain
after = max(c, L)
--- refund
after = max(0, c - hits)
--- undo
if start == proof then
  after = max(0, c - hits)
end
--- changed after ~= c or moved

--- keep
if finish == start then
  finish = now + W
end
begun, count, till = after > 0 and start, after, finish
