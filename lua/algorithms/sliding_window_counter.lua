-- sliding_window_counter; the twin of src/engine/algorithm/sliding_window_counter.rs.
--
-- Stored: three little-endian doubles: start in us, the earlier window's count, the later window's. [sc-5]

--- numbers W, L
--- state begun, earlier, later
--- read GET doubles
if not (begun >= 0 and begun < 9007199254740992 and earlier >= 0 and earlier <= 4294967295
  and later >= 0 and later <= 4294967295) then
  return redis.error_reply(NOT_OURS)
end

--- see
-- The counts as they are now [sc-2], and how many hits they make.
local start, p, c, moved = now - now % W, 0, 0, false
if begun then
  if begun == start then
    p, c = earlier, later
  elseif begun - now > max(W, 60000000) then
    -- Too far ahead: all hits move to the window of now [sc-7].
    c, moved = min(earlier + later, 4294967295), L > 0
  elseif begun > start then
    start, p, c = begun, earlier, later
  elseif begun + W == start then
    p = later
  end
end
local used = c
if p > 0 then
  used = c + mul_div(p, W - max(0, now - start), W)
end

--- finds 3 start, p, c

--- over
is_over = used + needed > L

--- stateless L == 0
--- effect
local after_p, after_c = p, c
--- add
after_c = min(c + hits, 4294967295)
--- drain
after_c = c + max(0, L - used)
--- refund
after_p, after_c = max(0, p - max(0, hits - c)), max(0, c - hits)
--- undo
if start == proof then
  after_c = max(0, c - hits)
elseif start == proof + W then
  after_p = max(0, p - hits)
end
--- changed after_p ~= p or after_c ~= c or moved

--- keep
begun, earlier, later, till = (after_p > 0 or after_c > 0) and start, after_p, after_c, start + W
if after_c > 0 then
  till = till + W
end
