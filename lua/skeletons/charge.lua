  if algorithm == @digit@ then
    local @numbers@
    k, hits, @numbers@, at = unpack_struct('<dd@doubles@', blob, at)
    if op == UNDO then
      proof, at = unpack_struct('<d', blob, at)
    end
    local @state@ = @stored@
    --@ key local key = KEYS[k]
    if @first@ == nil then
      --@ value
      kinds[k], @stored@ = @digit@, @state_or_none@
    end
    -- The hits that have to fit for the verdict [dc-9].
    local needed = hits
    if op > CONSUME_OR_DRAIN and op ~= DRAIN_IF_DENIED then
      needed = op == REPORT and 1 or (op == PEEK_PAST and 0 or NEVER_OVER)
    end
    --@ see
    if not second then
      @places@ = @finds@
      replied = replied + @found@
    end
    --@ over
    -- The effect of the charge. The second pass has only the effects of a denied decision.
    if second then
      if op == REPORT then
        act = 'add'
      elseif op == UNDO then
        act = 'undo'
      elseif over[i] then
        act = 'drain'
      end
    elseif op == CONSUME then
      if not is_over then
        act = 'add'
      end
    elseif op == CONSUME_COUNTED then
      act = 'add'
    elseif op == REPORT then
      act, again = 'add', true
    elseif op == REFUND then
      -- Without its effect the charges after it can find a state in need of rewriting.
      act, again = 'refund', true
    elseif op == UNDO then
      act, again = 'undo', true
    elseif op == CONSUME_OR_DRAIN then
      act = is_over and 'drain' or 'add'
    elseif op == DRAIN_IF_DENIED then
      if is_over then
        over[i], again = true, true
      else
        act = 'add'
      end
    end
    if stale then
      act, moved = nil, false
    end
    --@ stateless
    -- The state after the charge [dc-4].
    --@ effect
    local till
    if @changed@ then
      if role ~= ALONE and not second then
        changes, again = changes + 1, again or moved
        undo_k[changes], undo_expires[changes] = k, expires[k]
        @undo@ = @stored@
      end
      --@ keep
      @stored@ = @state@
      expires[k] = till
    end
    --@ leaves
