-- One charge on a window of sub-buckets; the twin of src/engine/algorithm/sliding_window.rs.
--
-- KEYS[1]  the state: a hash, bucket number -> count
-- ARGV[1]  little-endian doubles: op, hits, window in us, precision in us, limit, now in us (0: this server's clock)
-- reply    now in us; then what this charge found, and what it left: used, when its hits fit, when nothing counts any
--          more (both in us, 0 for now or never), the newest bucket's number
--
-- op: as in fixed_window.lua; 2 is not used.
local op, hits, W, precision, L, now = struct.unpack('<dddddd', ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
-- The hits that the verdict and the wait are about [dc-9].
local asked = hits
if op == 4 then
  asked = 1
elseif op == 5 then
  asked = 0
end

-- The buckets, oldest first, and those of them that count now [sw-2].
local raw = redis.call('HGETALL', KEYS[1])
local stored, counts = {}, {}
for i = 1, #raw, 2 do
  local number, count = tonumber(raw[i]), tonumber(raw[i + 1])
  if not number or not count or not (number >= 0 and number < 9007199254740992)
    or not (count >= 0 and count < 9007199254740992) then
    return redis.error_reply('STATE the value at the key was not written by weir')
  end
  stored[#stored + 1] = number
  counts[number] = count
end
table.sort(stored)
local here = math.floor(now / precision)
local at, rebased = now, false
local newest = stored[#stored]
if newest and newest > here then
  at = newest * precision
  if at - now <= math.max(W, 60000000) then
    here = newest
  else
    rebased = true
  end
end
local oldest = math.floor(math.max(0, at + 1 - W) / precision)
local numbers, dead, used = {}, {}, 0
for _, number in ipairs(stored) do
  if number < oldest then
    dead[#dead + 1] = string.format('%d', number)
  else
    numbers[#numbers + 1] = number
    used = used + counts[number]
  end
end
if rebased then
  numbers, counts = {}, {}
  if used > 0 then
    used = math.min(used, 4294967295)
    numbers, counts = {here}, {[here] = used}
  end
end

local function told(reply, sum)
  local fits_at, empty_at, mark = 0, 0, 0
  local excess = sum + asked - L
  if excess > 0 and asked > 0 and asked <= L and sum > 0 then
    local last, before = here, 0
    for _, number in ipairs(numbers) do
      before = before + counts[number]
      if before >= excess then
        last = number
        break
      end
    end
    fits_at = (last + 1) * precision + W - 1
  end
  if sum > 0 then
    mark = numbers[#numbers]
    empty_at = (mark + 1) * precision + W - 1
  end
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = math.min(sum, 4294967295), fits_at, empty_at, mark
  return empty_at
end
local reply = {now}
told(reply, used)

-- What becomes of it [dc-4].
local added, gone = 0, {}
if L == 0 then
  added = 0
elseif op == 4 or (op ~= 0 and op ~= 5 and used + hits <= L) then
  added = hits
elseif op == 3 then
  added = math.max(0, L - used)
end
local changed = added > 0 or ((op == 5 or rebased) and used > 0 and L > 0)
if added > 0 then
  if numbers[#numbers] ~= here then
    numbers[#numbers + 1] = here
    counts[here] = 0
  end
  counts[here] = math.min(counts[here] + added, 4294967295)
  used = used + added
elseif op == 5 and changed then
  local rest = hits
  while rest > 0 and #numbers > 0 do
    local number = numbers[#numbers]
    local part = math.min(rest, counts[number])
    counts[number] = counts[number] - part
    rest, used = rest - part, used - part
    if counts[number] == 0 then
      numbers[#numbers] = nil
      gone[#gone + 1] = string.format('%d', number)
    end
  end
end
local empty_at = told(reply, used)
if changed then
  if #numbers == 0 then
    redis.call('DEL', KEYS[1])
  else
    if rebased then
      redis.call('DEL', KEYS[1])
    else
      for _, fields in ipairs({dead, gone}) do
        if #fields > 0 then
          redis.call('HDEL', KEYS[1], unpack(fields))
        end
      end
    end
    local last = numbers[#numbers]
    redis.call('HSET', KEYS[1], string.format('%d', last), string.format('%d', counts[last]))
    redis.call('PEXPIREAT', KEYS[1], string.format('%d', math.ceil(empty_at / 1000)))
  end
end
return reply
