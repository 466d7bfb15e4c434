-- Decides a list of decisions of one or more charges each, one after the other; the twin of src/engine/decision.rs.
--
-- KEYS     the distinct keys of states, then the distinct keys of rows
-- ARGV[1]  three letters for each charge: its algorithm, its op and its role
-- ARGV[2]  little-endian doubles: now in us (0: this server's clock); then for each charge: key (1 ..), hits, the numbers
--          of its algorithm, and for an undo its proof
-- ARGV[3]  if there are rows: little-endian doubles, the version that each row must have
-- reply    now in us, then for each charge what it found; or now, and a list of the version of each row: then a row has
--          another version, and no decision was made [rw-2]
--
-- algorithm: @table@.
-- op: 0 peek; 1 consume if it fits; 2 consume, and count what does not fit too; 3 consume, and drain what is left where
-- it does not fit; 4 report: over where one hit would not fit [dc-9]; 5 refund; 6 peek, over only when more has been
-- charged than the limit holds; 7 undo what the proof names: the receipt's mark, or the time of the charge for
-- a debt; 8 consume, and drain what is left where it does not fit and its decision is denied. A peek has 1 for hits.
-- role: `-` a decision of its own, which each charge of an independent decision is; e, s, q a charge of a decision that is
-- all or nothing: enforced, shadow, quota; E, S, Q the same for the decision's last charge.
--
-- Strategy: all states are read before the first is written, since Redis does not undo a script that fails. Each charge works on
-- copies of the states, in x, y and z: the fields of its state in their order; x is nil where the key was not read yet and
-- false where the state is empty. A charge finds what the charges before it left. A copy has an expiry once a charge has
-- changed it, or found it in need of rewriting (moved, [tm-3]), and is written. A decision that is all or nothing keeps in
-- `undo_k` and its neighbours what it changed: if it is denied, the copies go back, and its charges run a second time if
-- one of them has an effect on a denial too. Branches are inline: at this size closures cost more than they save.
local plan, blob, row_versions = ARGV[1], ARGV[2], ARGV[3]
--@ locals
local now, at = unpack_struct('<d', blob)
--@ clock
local raw = call('MGET', unpack(KEYS))
local states = #KEYS
if row_versions then
  local count, is_other = #row_versions / 8, false
  local versions = {unpack_struct('<' .. rep('d', count), row_versions)}
  states = states - count
  for j = 1, count do
    local value, known = raw[states + j], versions[j]
    --@ row KEYS[states + j]
    if version ~= known then
      versions[j], is_other = version, true
    end
  end
  if is_other then
    -- The last result of unpack is a position.
    versions[count + 1] = nil
    return {now, versions}
  end
end
local x, y, z, kinds, expires = {}, {}, {}, {}, {}
local reply, replied = {now}, 1

-- Of the decision that is being made: where it begins, its verdicts, what it changed, and whether a denial leaves anything.
local first, first_at = 1, at
local denied, quotas, quotas_over, stale = false, 0, 0, false
local undo_k, undo_x, undo_y, undo_z, undo_expires, changes, over = {}, {}, {}, {}, {}, 0, {}
local again, second = false, false

local i, length = 1, #plan
while i <= length do
  local algorithm, op, role = byte(plan, i, i + 2)
  local k, hits, proof, is_over, act
  i, op = i + 3, op - 48

  --@ branches

  if role ~= ALONE then
    if not second then
      local is_last = role < LAST
      if is_last then
        role = role + 32
      end
      if role == QUOTA then
        quotas = quotas + 1
        if is_over then
          quotas_over = quotas_over + 1
        end
      elseif is_over and role == ENFORCED then
        denied = true
      end
      if is_last then
        if stale or denied or (quotas > 0 and quotas == quotas_over) then
          for j = changes, 1, -1 do
            local back = undo_k[j]
            x[back], y[back], z[back], expires[back] = undo_x[j], undo_y[j], undo_z[j], undo_expires[j]
          end
          second = again and not stale
        end
        denied, quotas, quotas_over, stale, changes, again = false, 0, 0, false, 0, false
        if second then
          i, at = first, first_at
        else
          first, first_at = i, at
        end
      end
    elseif role < LAST then
      second, first, first_at = false, i, at
    end
  else
    stale, again, first, first_at = false, false, i, at
  end
end

-- MGET takes a key of another type for none. Before such a key is overwritten a GET raises WRONGTYPE: only a key's
-- first charge pays for it.
for j = 1, states do
  if expires[j] and not raw[j]@reads_itself@ then
    call('GET', KEYS[j])
  end
end
for j = 1, states do
  local till = expires[j]
  if till then
    local key, kind = KEYS[j], kinds[j]
    if not x[j] then
      call('DEL', key)
    --@ writes
    end
  end
end
return reply
