-- The sum and the hits of a charge in a log.
local function parsed(member)
  local sum, hits = tonumber(string.sub(member, 1, 16)), tonumber(string.sub(member, 18))
  if not sum or not hits or not (hits >= 0 and hits <= sum) or not (sum < 9007199254740992) then
    error(NOT_OURS)
  end
  return sum, hits
end
