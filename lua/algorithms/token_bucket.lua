-- token_bucket with refill: interval; the twin of src/engine/algorithm/token_bucket.rs.
--
-- Stored: two little-endian doubles: start of the period in us, tokens used. [tb-5]
-- Numbers: period P in us, requests L, burst B, the most used tokens that are believed, the most that can be used.

--- numbers P, L, B, ceiling, most
--- state begun, stored
--- read GET doubles if L > 0
if not (begun >= 0 and begun < 9007199254740992 and stored >= 0 and stored <= 4294967295) then
  return redis.error_reply(NOT_OURS)
end

--- see
-- The bucket as it is now [tb-2].
local a, u, moved = now, 0, false
if begun and L > 0 then
  local used = min(stored, ceiling)
  if begun > now then
    u = used
    moved = begun - now > max(P, 60000000)
    if not moved then
      a = begun
    end
  else
    local periods = floor((now - begun) / P)
    if periods < ceil(used / L) then
      a, u = begun + periods * P, used - periods * L
    end
  end
end

--- finds 2 a, u

--- over
is_over = u + needed > B

--- stateless L == 0
--- effect
local after = u
--- add
after = min(u + hits, most)
--- drain
after = max(u, B)
--- refund
after = max(0, u - hits)
--- undo
-- Less what has been refilled since [un-5].
after = max(0, u - max(0, hits - floor(max(0, a - proof) / P) * L))
--- changed after ~= u or moved

--- keep
begun, stored, till = after > 0 and a, after, a + ceil(after / L) * P
