//! Exact integer arithmetic for decisions. [ar-1]

/// `(floor(a * b / c), a * b mod c)`, exact for every input whose quotient fits 64 bits. [ar-1]
///
/// # Panics
/// When `c` is 0: a rate of nothing per period is decided before any arithmetic.
///
/// ```
/// use weir::engine::arith::mul_div;
/// // Seven a second: the third hit costs 3 * 1,000,000 / 7 us, and 4/7 of a microsecond are kept.
/// assert_eq!(mul_div(3, 1_000_000, 7), (428_571, 3));
/// ```
#[inline]
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "a remainder is below its divisor, which is a u64")]
pub fn mul_div(a: u64, b: u64, c: u64) -> (u64, u64) {
    if let Some(product) = a.checked_mul(b) {
        return (product / c, product % c);
    }
    let (product, c) = (u128::from(a) * u128::from(b), u128::from(c));
    let quotient = u64::try_from(product / c).unwrap_or(u64::MAX);
    (quotient, (product % c) as u64)
}
