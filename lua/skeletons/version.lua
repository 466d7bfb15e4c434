-- The version of the overrides. weir never makes one that is long or has other characters.
local version = redis.call('GET', KEYS[1]) or ''
if #version > 64 or string.find(version, '%W') then
  version = 'strange'
end
