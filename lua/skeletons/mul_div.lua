-- floor(a * b / c) and the rest [ar-1]: for a < 2^49, b and c <= 2^45.
local function mul_div(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local rest = product % c
    return (product - rest) / c, rest
  end
  local q, r, unit = 0, 0, 4398046511104
  for _ = 1, 7 do
    local limb = floor(a / unit)
    a = a - limb * unit
    unit = unit / 128
    local dividend = 128 * r + limb * b
    r = dividend % c
    q = 128 * q + (dividend - r) / c
  end
  return q, r
end
