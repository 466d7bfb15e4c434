-- Removes a row, if it is the one that the caller has read. [rw-2]
--
-- KEYS[1]  the key of the row
-- ARGV[1]  its value, as src/store/redis/scripts/rows.rs writes it
-- reply    1 if it was removed, else 0
-- Of a longer value one byte more than the row has. A key of another type is an error, which no text equals.
if redis.pcall('GETRANGE', KEYS[1], 0, #ARGV[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
