-- One charge on a log of every charge; the twin of src/engine/algorithm/sliding_window_log.rs.
--
-- KEYS[1]  the state: a sorted set; score: the time of a charge in us; member: '%016.0f:%d', the sum of all hits up to
--          and with this charge, and its own hits. The zeros keep charges of one instant in order.
-- ARGV[1]  little-endian doubles: op, hits, window in us, limit, now in us (0: this server's clock)
-- reply    now in us; then what this charge found, and what it left: used, when its hits fit, when nothing counts any
--          more (both in us, 0 for now or never), the newest charge's sum
--
-- op: as in fixed_window.lua; 2 is not used.
local op, hits, W, L, now = struct.unpack('<ddddd', ARGV[1])
if now == 0 then
  local t = redis.call('TIME')
  now = t[1] * 1000000 + t[2]
end
local key = KEYS[1]
-- The hits that the verdict and the wait are about [dc-9].
local asked = hits
if op == 4 then
  asked = 1
elseif op == 5 then
  asked = 0
end

local NOT_OURS = 'STATE the value at the key was not written by weir'
local function parsed(member)
  local sum, its_hits = tonumber(string.sub(member, 1, 16)), tonumber(string.sub(member, 18))
  if not sum or not its_hits or not (its_hits >= 0 and its_hits <= sum) or not (sum < 9007199254740992) then
    error(NOT_OURS)
  end
  return sum, its_hits
end

-- What counts now [sl-2]: used hits, from base to sum; at is the time of the next charge.
local at, base, sum, used, rebased, first = now, 0, 0, 0, false, 0
local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
local newest_at = now
if newest[1] then
  newest_at = tonumber(newest[2])
  if not (newest_at >= 0 and newest_at < 9007199254740992) or not parsed(newest[1]) then
    error(NOT_OURS)
  end
  at = math.max(now, newest_at)
  local oldest = redis.call('ZRANGEBYSCORE', key, string.format('(%d', at - W), '+inf', 'LIMIT', 0, 1)[1]
  if oldest then
    local oldest_sum, oldest_hits = parsed(oldest)
    sum, base = parsed(newest[1]), oldest_sum - oldest_hits
    used = sum - base
    first = redis.call('ZRANK', key, oldest)
  end
  if at - now > math.max(W, 60000000) then
    rebased, at, newest_at = true, now, now
  end
end
local last = redis.call('ZCARD', key) - 1

-- The rank, time, sum and hits of the first live charge whose sum is at least this.
local function find(least)
  local low, high = first, last
  while low < high do
    local middle = math.floor((low + high) / 2)
    if parsed(redis.call('ZRANGE', key, middle, middle)[1]) >= least then
      high = middle
    else
      low = middle + 1
    end
  end
  local found = redis.call('ZRANGE', key, low, low, 'WITHSCORES')
  local its_sum, its_hits = parsed(found[1])
  return low, tonumber(found[2]), its_sum, its_hits
end

-- When the hits asked for would fit [sl-3], where so many are used.
local function fits_at(total)
  local excess = total + asked - L
  if excess <= 0 or asked == 0 or asked > L then
    return 0
  end
  if rebased or excess > used then
    return at + W
  end
  local _, leaves = find(base + excess)
  return leaves + W
end

local reply = {now, math.min(used, 4294967295), fits_at(used), 0, sum}
if used > 0 then
  reply[4] = newest_at + W
end

-- What becomes of it [dc-4].
local added, given = 0, 0
if L > 0 then
  if op == 5 then
    given = math.min(hits, used)
  elseif op == 4 or (op ~= 0 and used + hits <= L) then
    added = hits
  elseif op == 3 then
    added = math.max(0, L - used)
  end
end
local left = used + added - given
local rank, cut_at, cut_sum, cut_hits
if added > 0 then
  newest_at = at
elseif given > 0 and left > 0 and not rebased then
  local _
  _, newest_at = find(base + left)
  rank, cut_at, cut_sum, cut_hits = find(base + left + 1)
end
reply[6], reply[7], reply[8], reply[9] = math.min(left, 4294967295), fits_at(left), 0, sum + added - given
if left > 0 then
  reply[8] = newest_at + W
end

if added > 0 or given > 0 or (rebased and used > 0 and L > 0) then
  if left == 0 or rebased or used == 0 then
    redis.call('DEL', key)
    if rebased and left > 0 and used > 0 then
      local kept = used - given
      redis.call('ZADD', key, string.format('%d', at), string.format('%016.0f:%d', base + kept, kept))
    end
  else
    -- Of those that count no more, a bounded number: each takes time.
    local gone = math.min(first, 128)
    if gone > 0 then
      redis.call('ZREMRANGEBYRANK', key, 0, gone - 1)
    end
    if given > 0 then
      redis.call('ZREMRANGEBYRANK', key, rank - gone, -1)
      local kept = base + left - (cut_sum - cut_hits)
      if kept > 0 then
        redis.call('ZADD', key, string.format('%d', cut_at), string.format('%016.0f:%d', base + left, kept))
      end
    end
  end
  if added > 0 then
    redis.call('ZADD', key, string.format('%d', at), string.format('%016.0f:%d', sum + added, added))
  end
  if left > 0 then
    redis.call('PEXPIREAT', key, string.format('%d', math.ceil((newest_at + W) / 1000)))
  end
end
return reply
