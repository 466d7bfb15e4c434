-- sliding_window_log; the twin of src/engine/algorithm/sliding_window_log.rs.
--
-- Stored: a sorted set; score: the time of a charge in us; member: '%016.0f:%d', the sum of all hits up to and with this
-- charge, and its own hits. The zeros keep charges of one instant in order. [sl-5]
-- Numbers: window W in us, limit L.

--- numbers W, L
-- What is stored and what is to be written, as read_log makes it.
--- state log
--- long
--- read
log = read_log(key, now, W)

--- helpers
-- The rank, time, sum and hits of the first stored charge from the rank `low` on whose sum is at least this.
local function find(log, low, least)
  -- The first charge comes first: one hit that does not fit waits for it.
  local high, middle = log.last, low
  while low < high do
    if parsed(call('ZRANGE', log.key, middle, middle)[1]) >= least then
      high = middle
    else
      low = middle + 1
    end
    middle = floor((low + high) / 2)
  end
  local found = call('ZRANGE', log.key, low, low, 'WITHSCORES')
  local sum, hits = parsed(found[1])
  return low, tonumber(found[2]), sum, hits
end

-- A log as stored, and what of it counts now [sl-2]: hits from `base` to `sum`; `at` is the time of the next charge,
-- `newest` that of the last. `first` is the rank of the first charge that counts, `last` that of the last, `kept` the sum
-- up to which stored charges stay, and `extra` what was added.
local function read_log(key, now, W)
  local log = {key = key, base = 0, sum = 0, at = now, newest = now, kept = 0, first = 0, extra = {}}
  local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
  if newest[1] then
    local newest_at, sum = tonumber(newest[2]), parsed(newest[1])
    if not (newest_at >= 0 and newest_at < 9007199254740992) then
      error(NOT_OURS)
    end
    log.at, log.newest, log.last = max(now, newest_at), newest_at, call('ZCARD', key) - 1
    local oldest = call('ZRANGEBYSCORE', key, format('(%d', log.at - W), '+inf', 'LIMIT', 0, 1)[1]
    if oldest then
      local oldest_sum, oldest_hits = parsed(oldest)
      log.base, log.sum, log.kept = oldest_sum - oldest_hits, sum, sum
      log.first = call('ZRANK', key, oldest)
    end
    if log.at - now > max(W, 60000000) then
      -- The clock has stepped back too far [tm-2]: what counts moves to now, as one charge.
      log.at, log.newest, log.anew, log.moved = now, now, true, true
      log.kept = log.base
      if log.sum > log.base then
        log.extra[1] = {at = now, sum = log.sum, hits = log.sum - log.base}
      end
    end
  end
  return log
end

-- Used, when the hits would fit, when nothing counts any more (us; 0 for now or never), the newest charge's sum [sl-3].
local function summary_of_log(log, asked, W, L)
  local total = log.sum - log.base
  local fits_at, empty_at = 0, 0
  local excess = total + asked - L
  if excess > 0 and asked > 0 and asked <= L then
    local target = log.base + excess
    local leaves = log.at
    if target <= log.kept and log.kept > log.base then
      local _
      _, leaves = find(log, log.first, target)
    else
      for _, entry in ipairs(log.extra) do
        if entry.sum >= target then
          leaves = entry.at
          break
        end
      end
    end
    fits_at = leaves + W
  end
  if total > 0 then
    empty_at = log.newest + W
  end
  return total, fits_at, empty_at, log.sum
end

--- see
if log.sum == log.base then
  -- Where nothing counts, the log begins anew.
  log.base, log.sum, log.kept, log.at, log.anew = 0, 0, 0, now, true
end
local used = log.sum - log.base
local moved = log.moved and used > 0 and L > 0
local asked = op == PEEK_PAST and 1 or max(0, needed)

--- finds 4 summary_of_log(log, asked, W, L)

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
error('a log is undone by undo_log.lua')
--- changed added > 0 or refunded > 0 or moved

--- keep
-- A copy: a decision that denies goes back to the log as it was.
local left = {}
for name, field in pairs(log) do
  left[name] = field
end
left.extra, left.moved = {unpack(log.extra)}, false
log = left
if added > 0 then
  log.sum = log.sum + added
  log.extra[#log.extra + 1] = {at = log.at, sum = log.sum, hits = added}
  log.newest = log.at
elseif refunded > 0 then
  log.sum = log.sum - refunded
  while #log.extra > 0 and log.extra[#log.extra].sum > log.sum do
    local last = log.extra[#log.extra]
    if last.sum - last.hits < log.sum then
      log.extra[#log.extra] = {at = last.at, sum = log.sum, hits = log.sum - (last.sum - last.hits)}
    else
      log.extra[#log.extra] = nil
    end
  end
  if log.kept > log.sum then
    log.kept = log.sum
    log.cut, log.cut_at, log.cut_sum, log.cut_hits = find(log, log.first, log.kept + 1)
  end
  if #log.extra > 0 then
    log.newest = log.extra[#log.extra].at
  elseif log.sum > log.base then
    local _
    _, log.newest = find(log, log.first, log.sum)
  end
end
till = log.newest + W
log.at = max(now, log.newest)

--- leaves 4 summary_of_log(log, asked, W, L)

--- write
if log.sum == log.base then
  call('DEL', key)
else
  if log.anew then
    call('DEL', key)
  else
    -- Of those that count no more, a bounded number: each takes time.
    local gone = min(log.first, 128)
    if gone > 0 then
      call('ZREMRANGEBYRANK', key, 0, gone - 1)
    end
    if log.cut then
      call('ZREMRANGEBYRANK', key, log.cut - gone, -1)
      local rest = log.kept - (log.cut_sum - log.cut_hits)
      if rest > 0 then
        call('ZADD', key, format('%d', log.cut_at), format('%016.0f:%d', log.kept, rest))
      end
    end
  end
  for _, entry in ipairs(log.extra) do
    call('ZADD', key, format('%d', entry.at), format('%016.0f:%d', entry.sum, entry.hits))
  end
  call('PEXPIREAT', key, format('%d', ceil(till / 1000)))
end
