-- Replaces the overrides of weir, if their version is the one that the caller has read.
--
-- KEYS, ARGV[1]  as in read_overrides.lua
-- ARGV[2]        the next version
-- ARGV[3]        the next text
-- reply          1 if it was, else 0
--
-- The keys never expire, so that Redis evicts them last.
--@ version
if version ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], ARGV[2])
return 1
