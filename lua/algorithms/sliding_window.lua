-- sliding_window; the twin of src/engine/algorithm/sliding_window.rs.
--
-- Stored: a hash, bucket number -> count. [sw-4]
-- Numbers: window W in us, precision in us, limit L.

--- numbers W, precision, L
-- The numbers of the buckets in order, their counts in the same order, and what is to be written: count by number, 0 for
-- none; `whole` if the hash is written anew.
--- state stored, counts, altered
--- read HGETALL
local pairs_read, newest_read, in_order = value, -1, true
stored, counts, altered = {}, {}, {}
-- Far more than the buckets of any window.
if #pairs_read > 4096 then
  error(NOT_OURS)
end
for j = 1, #pairs_read / 2 do
  local number, count = tonumber(pairs_read[2 * j - 1]), tonumber(pairs_read[2 * j])
  if not number or not count or not (number >= 0 and number < 9007199254740992)
    or not (count >= 0 and count < 9007199254740992) then
    error(NOT_OURS)
  end
  in_order, newest_read = in_order and number > newest_read, number
  stored[j], counts[j] = number, count
end
-- Redis keeps short hashes in the order in which their fields were made.
if not in_order then
  local count_of = {}
  for j = 1, #stored do
    count_of[stored[j]] = counts[j]
  end
  table.sort(stored)
  for j = 1, #stored do
    counts[j] = count_of[stored[j]]
  end
end

--- helpers
-- Used, when the hits would fit, when nothing counts any more (us; 0 for now or never), the newest bucket's number [sw-3].
local function summary_of_buckets(numbers, live, from, used, asked, here, W, precision, L)
  local fits_at, empty_at, mark = 0, 0, 0
  local excess = used + asked - L
  if excess > 0 and asked > 0 and asked <= L and used > 0 then
    local last, sum = here, 0
    for j = from, #numbers do
      sum = sum + live[j]
      if sum >= excess then
        last = numbers[j]
        break
      end
    end
    fits_at = (last + 1) * precision + W - 1
  end
  if used > 0 then
    mark = numbers[#numbers] or 0
    empty_at = (mark + 1) * precision + W - 1
  end
  return min(used, 4294967295), fits_at, empty_at, mark
end

--- see
-- The buckets that count now are those from `from` on [sw-2].
local here, instant, rebased = floor(now / precision), now, false
local newest = stored and stored[#stored]
if newest and newest > here then
  instant = newest * precision
  if instant - now <= max(W, 60000000) then
    here = newest
  else
    rebased = true
  end
end
local oldest = floor(max(0, instant + 1 - W) / precision)
local numbers, live, from, used = stored or {}, counts or {}, 1, 0
local size = #numbers
while from <= size and numbers[from] < oldest do
  from = from + 1
end
for j = from, size do
  used = used + live[j]
end
local dead = from - 1
if rebased then
  numbers, live, from = {}, {}, 1
  if used > 0 then
    used = min(used, 4294967295)
    numbers, live = {here}, {used}
  end
end
local moved = rebased and used > 0 and L > 0
local asked = op == LOOK_PAST and 1 or max(0, needed)

--- finds 4 summary_of_buckets(numbers, live, from, used, asked, here, W, precision, L)

--- over
is_over = used + needed > L

--- stateless L == 0
--- effect
local changed = {}
if act then
  -- What was found stays as it is: a denied decision goes back to it.
  numbers, live, from = {unpack(numbers, from)}, {unpack(live, from)}, 1
  size = #numbers
end
--- add
if numbers[size] ~= here then
  size = size + 1
  numbers[size], live[size] = here, 0
end
live[size] = min(live[size] + hits, 4294967295)
changed[here] = live[size]
used = used + hits
--- drain
if used < L then
  if numbers[size] ~= here then
    size = size + 1
    numbers[size], live[size] = here, 0
  end
  live[size] = min(live[size] + L - used, 4294967295)
  changed[here] = live[size]
  used = L
end
--- give
local rest = hits
while rest > 0 and size > 0 do
  local part = min(rest, live[size])
  live[size] = live[size] - part
  changed[numbers[size]] = live[size]
  rest, used = rest - part, used - part
  if live[size] == 0 then
    numbers[size], live[size] = nil, nil
    size = size - 1
  end
end
--- undo
-- The buckets that count stay, but for the receipt's [un-2].
local found
for j = 1, rebased and 0 or size do
  found = numbers[j] == proof and j or found
end
if found then
  live[found] = max(0, live[found] - hits)
  changed[proof] = live[found]
  local left_numbers, left = {}, {}
  for j = 1, size do
    if live[j] > 0 then
      left_numbers[#left + 1], left[#left + 1] = numbers[j], live[j]
    end
  end
  numbers, live = left_numbers, left
end
--- changed next(changed) or (moved and act ~= 'undo')

--- keep
-- The charges before it on this key have their changes, which another decision may still need.
for number, count in pairs(altered or {}) do
  if changed[number] == nil then
    changed[number] = count
  end
end
for j = 1, dead do
  changed[stored[j]] = 0
end
changed.whole = rebased or changed.whole
stored, counts, altered, till = #numbers > 0 and numbers, live, changed, 0
if stored then
  till = (numbers[#numbers] + 1) * precision + W - 1
end

--- leaves 4 summary_of_buckets(numbers, live, from, used, asked, here, W, precision, L)

--- write
-- Of the hash only what has changed.
local gone, fields = {}, {}
if altered.whole then
  call('DEL', key)
  for j = 1, #stored do
    fields[#fields + 1] = format('%d', stored[j])
    fields[#fields + 1] = format('%d', counts[j])
  end
else
  for number, count in pairs(altered) do
    if number == 'whole' then
      -- Not a bucket.
    elseif count == 0 then
      gone[#gone + 1] = format('%d', number)
    else
      fields[#fields + 1] = format('%d', number)
      fields[#fields + 1] = format('%d', count)
    end
  end
end
if #gone > 0 then
  call('HDEL', key, unpack(gone))
end
if #fields > 0 then
  call('HSET', key, unpack(fields))
end
call('PEXPIREAT', key, format('%d', ceil(till / 1000)))
