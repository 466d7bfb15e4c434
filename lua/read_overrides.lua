-- Reads the overrides of weir, if they have changed.
--
-- KEYS[1]  their version
-- KEYS[2]  their text
-- ARGV[1]  the version that the caller knows
-- ARGV[2]  the most bytes of a text
-- reply    nothing if the version is that one; else the version and the text, which is left out if it is longer
--@ version
if version == ARGV[1] then
  return {}
end
local text = redis.call('GET', KEYS[2]) or ''
if #text > tonumber(ARGV[2]) then
  return {version}
end
return {version, text}
