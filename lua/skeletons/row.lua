-- The version of a row is 0 if there is none, if its value is none of weir's, in which a number may be none, and if it has ended.
local version, till = 0, 0
if value and #value > 16 then
  version, till = unpack_struct('<dd', value)
end
-- The known version is a version: what equals it is one.
if version ~= known or not (till == 0 or till > now) then
  local is_version = version % 1 == 0 and version >= 0 and version < 9007199254740992
  -- A row that ended a minute ago is removed [rw-4].
  if is_version and version > 0 and till % 1 == 0 and till > 0 and till + 60000000 <= now then
    call('DEL', @key@)
  end
  if not is_version or not (till == 0 or till > now) then
    version = 0
  end
end
