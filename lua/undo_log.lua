-- Undoes one charge of a log; the twin of `take_back` in src/engine/algorithm/sliding_window_log.rs.
--
-- KEYS[1]  the state, as in sliding_window_log.lua
-- ARGV[1]  little-endian doubles: window in us, the charge's mark (its sum), time in us and hits, now in us (0: this
--          server's clock)
-- reply    1 if the charge still stood, else 0
--
-- The charge goes, and the sums after it are lowered [un-4]; a refund would remove the newest hits.
--@ locals
local W, mark, made_at, hits, now = unpack_struct('<ddddd', ARGV[1])
--@ clock
local key = KEYS[1]
local newest = call('ZRANGE', key, -1, -1, 'WITHSCORES')
if not newest[1] then
  return 0
end
local newest_at = tonumber(newest[2])
if not (newest_at >= 0 and newest_at < 9007199254740992) then
  error(NOT_OURS)
end
local at = max(now, newest_at)
if at - now > max(W, 60000000) or made_at <= at - W then
  return 0
end
-- Charges of one instant lie together; the receipt's has its hits. Its sum is no more than it was: charges before it
-- may have been undone meanwhile.
local instant = format('%d', made_at)
local of_instant = call('ZRANGE', key, instant, instant, 'BYSCORE')
local member
for i = #of_instant, 1, -1 do
  local its_sum, its_hits = parsed(of_instant[i])
  if its_hits == hits and its_sum <= mark then
    member = of_instant[i]
    break
  end
end
if not member then
  return 0
end
-- All is read before the first write: Redis does not undo a script that fails.
local rank = call('ZRANK', key, member)
local later = call('ZRANGE', key, rank + 1, -1, 'WITHSCORES')
local lowered, last = {}, nil
for i = 1, #later, 2 do
  local its_sum, its_hits = parsed(later[i])
  if its_sum - its_hits < hits then
    error(NOT_OURS)
  end
  last = tonumber(later[i + 1])
  lowered[#lowered + 1] = {format('%d', last), format('%016.0f:%d', its_sum - hits, its_hits)}
end
if not last and rank > 0 then
  local before = tonumber(call('ZRANGE', key, rank - 1, rank - 1, 'WITHSCORES')[2])
  last = before > at - W and before
end
call('ZREMRANGEBYRANK', key, rank, -1)
call('ZREMRANGEBYSCORE', key, '-inf', format('%d', at - W))
for _, entry in ipairs(lowered) do
  call('ZADD', key, entry[1], entry[2])
end
if last then
  call('PEXPIREAT', key, format('%d', ceil((last + W) / 1000)))
end
return 1
