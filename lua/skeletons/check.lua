  elseif algorithm == CHECK then
    -- The charges after it are on limits that depend on this row. If it has another version, or has ended, the decision
    -- charges nothing [rw-2].
    local known
    k, known, at = unpack_struct('<dd', blob, at)
    local value = raw[k]
    --@ row KEYS[k]
    if not second then
      replied = replied + 1
      reply[replied] = version
      stale = stale or version ~= known
    end
