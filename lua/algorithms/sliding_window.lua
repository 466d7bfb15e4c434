-- sliding_window; the twin of src/engine/algorithm/sliding_window.rs.
--
-- Stored: a hash, bucket number -> count. [sw-4]
-- Numbers: window W in us, precision in us, limit L.

--- numbers W, precision, L
-- The numbers of the buckets in order, their counts by number, and what is to be written: by number, 0 for none; `whole`
-- if the hash is written anew.
--- state stored, counts, altered
--- read HGETALL
local pairs_read = value
stored, counts, altered = {}, {}, {}
for j = 1, #pairs_read, 2 do
  local number, count = tonumber(pairs_read[j]), tonumber(pairs_read[j + 1])
  if not number or not count or not (number >= 0 and number < 9007199254740992)
    or not (count >= 0 and count < 9007199254740992) then
    error(NOT_OURS)
  end
  stored[#stored + 1] = number
  counts[number] = count
end
table.sort(stored)

--- helpers
-- Used, when the hits would fit, when nothing counts any more (us; 0 for now or never), the newest bucket's number [sw-3].
local function summary_of_buckets(numbers, live, used, asked, here, W, precision, L)
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
  return min(used, 4294967295), fits_at, empty_at, mark
end

--- see
-- The buckets that count now [sw-2].
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
local numbers, live, dead, used = {}, {}, {}, 0
for _, number in ipairs(stored or {}) do
  if number >= oldest then
    numbers[#numbers + 1] = number
    live[number] = counts[number]
    used = used + counts[number]
  else
    dead[#dead + 1] = number
  end
end
if rebased then
  numbers, live = {}, {}
  if used > 0 then
    used = min(used, 4294967295)
    numbers, live = {here}, {[here] = used}
  end
end
local moved = rebased and used > 0 and L > 0
local asked = op == LOOK_PAST and 1 or max(0, needed)

--- finds 4 summary_of_buckets(numbers, live, used, asked, here, W, precision, L)

--- over
is_over = used + needed > L

--- stateless L == 0
--- effect
local changed = {}
--- add
if numbers[#numbers] ~= here then
  numbers[#numbers + 1] = here
  live[here] = 0
end
live[here] = min(live[here] + hits, 4294967295)
changed[here] = live[here]
used = used + hits
--- drain
if used < L then
  if numbers[#numbers] ~= here then
    numbers[#numbers + 1] = here
    live[here] = 0
  end
  live[here] = min(live[here] + L - used, 4294967295)
  changed[here] = live[here]
  used = L
end
--- give
local rest = hits
while rest > 0 and #numbers > 0 do
  local number = numbers[#numbers]
  local part = min(rest, live[number])
  live[number] = live[number] - part
  changed[number] = live[number]
  rest, used = rest - part, used - part
  if live[number] == 0 then
    numbers[#numbers], live[number] = nil, nil
  end
end
--- undo
-- The buckets that count stay, but for the receipt's [un-2].
if not rebased and live[proof] then
  live[proof] = max(0, live[proof] - hits)
  changed[proof] = live[proof]
  local left = {}
  for _, number in ipairs(numbers) do
    if live[number] > 0 then
      left[#left + 1] = number
    end
  end
  numbers = left
end
--- changed next(changed) or (moved and act ~= 'undo')

--- keep
-- The charges before it on this key have their changes, which another decision may still need.
for number, count in pairs(altered or {}) do
  if changed[number] == nil then
    changed[number] = count
  end
end
for _, number in ipairs(dead) do
  changed[number] = 0
end
changed.whole = rebased or changed.whole
stored, counts, altered, till = #numbers > 0 and numbers, live, changed, 0
if stored then
  till = (numbers[#numbers] + 1) * precision + W - 1
end

--- leaves 4 summary_of_buckets(numbers, live, used, asked, here, W, precision, L)

--- write
-- Of the hash only what has changed.
local gone, fields = {}, {}
if altered.whole then
  call('DEL', key)
  for _, number in ipairs(stored) do
    fields[#fields + 1] = format('%d', number)
    fields[#fields + 1] = format('%d', counts[number])
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
