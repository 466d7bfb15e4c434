-- The version is 0 if there is no row, if weir did not write the value, and if the row has ended.
-- A value that weir did not write can have any numbers, also NaN.
local version, till = 0, 0
if value and #value > 16 then
  version, till = unpack_struct('<dd', value)
end
-- A version that equals the known one is a version.
if version ~= known or not (till == 0 or till > now) then
  local is_version = version % 1 == 0 and version >= 0 and version < 9007199254740992
  -- A row that ended a while ago is removed [rw-4].
  if is_version and version > 0 and till % 1 == 0 and till > 0 and till + @ended_row_kept_us@ <= now then
    call('DEL', @key@)
  end
  if not is_version or not (till == 0 or till > now) then
    version = 0
  end
end
