-- sliding_window; the twin of src/engine/algorithm/sliding_window.rs.
--
-- Stored: one byte, how many bytes a count has (1, 2 or 4); a little-endian double, the number of the first bucket; then the
-- counts of all buckets from that one to the newest, which is not 0. [sw-5]
-- Numbers: window W in us, precision in us, limit L.

--- numbers W, precision, L
--- state stored
--- long
--- read GET
stored = value

--- helpers
-- The format of so many counts of so many bytes each.
local function counts_format(width, size)
  return rep(width == 1 and 'B' or width == 2 and 'H' or 'I4', size)
end

-- Used, when the hits would fit, when nothing counts any more (us; 0 for now or never), the newest bucket's number [sw-3].
local function summary_of_buckets(counts, first, size, used, asked, here, W, precision, L)
  if used == 0 then
    return 0, 0, 0, 0
  end
  local fits_at, newest = 0, first + size - 1
  local excess = used + asked - L
  if excess > 0 and asked > 0 and asked <= L then
    local last, sum = here, 0
    for j = 1, size do
      sum = sum + counts[j]
      if sum >= excess then
        last = first + j - 1
        break
      end
    end
    fits_at = (last + 1) * precision + W - 1
  end
  return used, fits_at, (newest + 1) * precision + W - 1, newest
end

--- see
-- `counts` are those of the buckets that count now [sw-2]: `size` of them from the number `first` on.
local here, instant, rebased = floor(now / precision), now, false
local counts, first, size, used = {}, here, 0, 0
if stored then
  -- The length is checked first: no window has more than 257 buckets, of 4 bytes at most.
  local room, width, oldest, newest = #stored - 9
  if room > 0 and room <= 1028 then
    width, first = unpack_struct('<Bd', stored)
  end
  if not (width == 1 or width == 2 or width == 4) or room % width > 0 or room > 257 * width
    or not (first >= 0 and first < 9007199254740735 and first % 1 == 0) then
    return redis.error_reply(NOT_OURS)
  end
  size = room / width
  newest = first + size - 1
  if newest > here then
    instant = newest * precision
    if instant - now <= max(W, 60000000) then
      here = newest
    else
      rebased = true
    end
  end
  oldest = floor(max(0, instant + 1 - W) / precision)
  first = max(first, oldest)
  size = newest - first + 1
  if size > 0 then
    counts = {unpack_struct('<' .. counts_format(width, size), stored, #stored - size * width + 1)}
    if counts[size] == 0 then
      return redis.error_reply(NOT_OURS)
    end
    for j = 1, size do
      used = used + counts[j]
    end
  end
  if rebased or size <= 0 then
    used = min(used, 4294967295)
    counts, first, size = {used}, here, used > 0 and 1 or 0
  end
end
local moved = rebased and used > 0 and L > 0
local asked = op == PEEK_PAST and 1 or max(0, needed)

--- finds 4 summary_of_buckets(counts, first, size, used, asked, here, W, precision, L)

--- over
is_over = used + needed > L

--- stateless L == 0
--- effect
local added, refunded = 0, 0
--- add
added = hits
--- drain
added = max(0, L - used)
--- refund
refunded = min(hits, used)
--- undo
-- The bucket of the receipt, if it counts [un-2].
local place = proof - first + 1
if not rebased and place >= 1 and place <= size and counts[place] > 0 then
  refunded = min(hits, counts[place])
  counts[place] = counts[place] - refunded
  used = used - refunded
end
--- changed added > 0 or refunded > 0 or (moved and act ~= 'undo')

--- keep
if added > 0 then
  for j = size + 1, here - first + 1 do
    counts[j] = 0
  end
  size = here - first + 1
  added = min(added, 4294967295 - counts[size])
  counts[size], used = counts[size] + added, used + added
elseif act == 'refund' then
  -- The newest first.
  used = used - refunded
  while refunded > 0 do
    local part = min(refunded, counts[size])
    counts[size], refunded = counts[size] - part, refunded - part
    if counts[size] == 0 then
      size = size - 1
    end
  end
end
while size > 0 and counts[size] == 0 do
  size = size - 1
end
stored, till = false, 0
if size > 0 then
  local from = 1
  while counts[from] == 0 do
    from = from + 1
  end
  local most = max(unpack(counts, from, size))
  local width = most < 256 and 1 or most < 65536 and 2 or 4
  stored = pack_struct('<Bd' .. counts_format(width, size - from + 1), width, first + from - 1, unpack(counts, from, size))
  till = (first + size) * precision + W - 1
end

--- leaves 4 summary_of_buckets(counts, first, size, used, asked, here, W, precision, L)

--- write
call('SET', key, stored, 'PXAT', format('%d', ceil(till / 1000)))
