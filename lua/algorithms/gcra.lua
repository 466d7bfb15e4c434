-- gcra, leaky_bucket, and token_bucket with refill: continuous; the twin of src/engine/algorithm/gcra.rs.
--
-- Stored: three little-endian doubles: the instant in us at which the debt is paid, its fraction, the limit's requests
-- when it was written. [pc-2]
-- Numbers: what the hits cost (us, fraction), period P in us, requests L, burst B, debt of a full burst (T us, F), 1 if
-- post-paid.

--- numbers cost, cost_f, P, L, B, T, F, post_paid
--- state tat, fraction, per
--- read GET doubles if L > 0
if not (tat >= 0 and tat < 9007199254740992 and per >= 0 and per <= 4294967295)
  or not (fraction == 0 or (fraction > 0 and fraction < per)) then
  return redis.error_reply(NOT_OURS)
end

--- helpers
-- What is left of a debt (d, f) without the debt (e, g): no less than nothing.
local function minus(d, f, e, g, L)
  d, f = d - e, f - g
  if f < 0 then
    d, f = d - 1, f + L
  end
  if d < 0 then
    return 0, 0
  end
  return d, f
end

--- see
-- The debt as it is now [pc-3]: d us and f / L us.
local d, f, moved = 0, 0, false
if tat and tat >= now and L > 0 then
  d, f = tat - now, fraction
  local d_max, f_max = T, F
  if post_paid == 1 then
    d_max, f_max = 281474976710656, 0
  end
  -- Stored anew even if nothing is charged [tm-3]: another limit wrote it, or it is too large to be believed [pc-5].
  moved = (d > 0 or f > 0) and (per ~= L or d > d_max + 60000000)
  if per ~= L then
    -- Another limit wrote it [pc-6]: u + w / P hits are owed.
    if d >= 281474976710656 then
      d, f = 281474976710656, 0
    end
    local u, w = mul_div(d, per, P)
    w = w + f
    u, w = u + floor(w / P), w % P
    local u_max = B
    if post_paid == 1 then
      u_max = 562949953421311
    end
    if u > u_max or (u == u_max and w > 0) then
      d, f = d_max, f_max
    else
      local a, b = mul_div(u, P, L)
      b = b + w % L
      d, f = a + floor(w / L) + floor(b / L), b % L
    end
    if d > d_max or (d == d_max and f > f_max) then
      d, f = d_max, f_max
    end
  elseif moved then
    d, f = d_max, f_max
  end
end

--- finds 2 d, f

--- over
-- The debt with these hits.
local would_d, would_f = d + cost, f + cost_f
if would_f >= L then
  would_d, would_f = would_d + 1, would_f - L
end
if needed == hits then
  is_over = hits > B or would_d > T or (would_d == T and would_f > F)
elseif needed == 1 then
  -- One hit costs P / L.
  is_over = L == 0
  if L > 0 then
    local one, one_f = d + floor(P / L), f + P % L
    if one_f >= L then
      one, one_f = one + 1, one_f - L
    end
    is_over = one > T or (one == T and one_f > F)
  end
else
  is_over = needed == 0 and (d > T or (d == T and f > F))
end

--- stateless L == 0
--- effect
local before, before_f = d, f
--- add
d, f = would_d, would_f
if d >= 281474976710656 then
  d, f = 281474976710656, 0
end
--- drain
-- As many whole hits as fit.
if d < T or (d == T and f < F) then
  local gap, gap_f = T - d, F - f
  if gap_f < 0 then
    gap, gap_f = gap - 1, gap_f + L
  end
  local u, w = mul_div(gap, L, P)
  cost, cost_f = mul_div(u + floor((w + gap_f) / P), P, L)
  d, f = d + cost, f + cost_f
  if f >= L then
    d, f = d + 1, f - L
  end
end
--- refund
d, f = minus(d, f, cost, cost_f, L)
--- undo
-- The cost less what has drained since [un-3].
cost, cost_f = minus(cost, cost_f, max(0, now - proof), 0, L)
d, f = minus(d, f, cost, cost_f, L)
--- changed d ~= before or f ~= before_f or moved

--- keep
tat, fraction, per, till = (d > 0 or f > 0) and now + d, f, L, now + d
if f > 0 then
  till = till + 1
end
