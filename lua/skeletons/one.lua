-- One charge on @algorithm@.
--
-- KEYS[1]  the state
-- KEYS[2]  the row that the limit depends on, if there can be one [rw-2]
-- ARGV[1]  little-endian doubles: op, hits, @numbers@, now in us (0: this server's clock), and the version that the row must have
-- reply    now in us, and what this charge found: see lua/README.md; or now, and a list of the version of the row: then it is
--          another one, and nothing was charged
--
-- op: 0 peek; 1 consume if it fits; 2 consume, and count what does not fit too; 3 consume, and drain what is left where
-- it does not fit; 4 report; 5 refund.
--@ locals
local op, hits, @numbers@, now, at = unpack_struct('<dd@doubles@d', ARGV[1])
--@ clock
local key, row_key = KEYS[1], KEYS[2]
if row_key then
  -- A key of another type is an error, which has no length as a table.
  local value, known = try('GET', row_key), unpack_struct('<d', ARGV[1], at)
  --@ row row_key
  if version ~= known then
    return {now, {version}}
  end
end
local @state@
--@ if_stale local stale = false
--@ value
-- The hits that have to fit for the verdict [dc-9].
local needed = hits
if op == REPORT then
  needed = 1
elseif op == REFUND then
  needed = NEVER_OVER
end
--@ see
local reply = {now, @finds@}
local is_over
--@ over
local act
if op == CONSUME then
  if not is_over then
    act = 'add'
  end
elseif op == REFUND then
  act = 'refund'
elseif op ~= PEEK then
  act = (op == CONSUME_OR_DRAIN and is_over) and 'drain' or 'add'
end
--@ if_stale if stale then act = nil end
--@ stateless
-- The state after the charge [dc-4].
--@ effect
local till
if @changed@ then
  --@ keep
end
--@ leaves
if till then
  if @first@ then
    --@ write
  else
    call('DEL', key)
  end
end
return reply
