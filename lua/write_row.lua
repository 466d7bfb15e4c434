-- Writes a row, unless the same row is there. [rw-2]
--
-- KEYS[1]  the key of the row
-- ARGV[1]  its value, as src/store/redis/scripts/rows.rs writes it
-- ARGV[2]  the index of the last byte of the reply
-- ARGV[3]  the value that it replaces; without this argument, any
-- reply    the value that was there, without the bytes after that one; empty if there was none. If the key has another type, an
--          error. With ARGV[3] it is 0 if the key has another value, no value or another type. Then nothing is written
local before = redis.pcall('GETRANGE', KEYS[1], 0, ARGV[2])
if ARGV[3] and before ~= ARGV[3] then
  return 0
end
if type(before) == 'string' and before ~= ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1])
end
return before
