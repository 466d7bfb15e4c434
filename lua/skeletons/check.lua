  elseif algorithm == CHECK then
    -- The charges after it are on limits that depend on this row. If it has another version, or has ended, the decision
    -- charges nothing [rw-2].
    local known, version, till
    k, known, at = unpack_struct('<dd', blob, at)
    local value = raw[k]
    if value and #value > 16 then
      version, till = unpack_struct('<dd', value)
    end
    -- No row; a value that is none of weir's, in which a number may be none; and a row that has ended.
    if not version or version % 1 ~= 0 or version < 0 or version >= 9007199254740992 or not (till == 0 or till > now) then
      version = 0
    end
    if not second then
      replied = replied + 1
      reply[replied] = version
      stale = stale or version ~= known
    end
