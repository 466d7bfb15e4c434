  elseif algorithm == TERM then
    -- The next charge is on a limit that applies for some time only. Otherwise the charge is left out [te-1], and finds zeros; it
    -- can still be the last one of its decision.
    local from, till, length, count
    from, till, length, count, at = unpack_struct('<dddd', blob, at)
    if now < from or now >= till then
      role = byte(plan, i + 2)
      if role ~= ALONE then
        role = role < LAST and LAST_SHADOW or SHADOW
      end
      i, at = i + 3, at + length
      if not second then
        for j = 1, count do
          reply[replied + j] = 0
        end
        replied = replied + count
      end
    end
