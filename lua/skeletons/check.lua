  elseif algorithm == CHECK then
    -- The charges after it are on limits that depend on this row. If it has another version, or has ended, the decision
    -- charges nothing [rw-2]. Decisions that share a row share x: no charge is on its key.
    local known
    k, known, at = unpack_struct('<dd', blob, at)
    if not x[k] then
      local value = raw[k]
      --@ row KEYS[k]
      x[k] = version
    end
    if not second then
      replied = replied + 1
      reply[replied] = x[k]
      stale = stale or x[k] ~= known
    end
