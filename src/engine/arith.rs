//! Exact integer arithmetic for decisions. [ar-1]

/// `(floor(a * b / c), a * b mod c)`, exact for every input whose quotient fits 64 bits. [ar-1]
///
/// # Panics
/// When `c` is 0. A limit of 0 is decided before any arithmetic.
///
/// ```
/// use weir_engine::arith::mul_div;
/// // Seven a second: three hits cost 3 * 1,000,000 / 7 us, which is 428,571 us and 3/7 of a microsecond.
/// assert_eq!(mul_div(3, 1_000_000, 7), (428_571, 3));
/// ```
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a remainder is below its divisor, which is a u64")]
pub fn mul_div(a: u64, b: u64, c: u64) -> (u64, u64) {
    if let Some(product) = a.checked_mul(b) {
        return (product / c, product % c);
    }
    let (product, c) = (u128::from(a) * u128::from(b), u128::from(c));
    let quotient = u64::try_from(product / c).unwrap_or(u64::MAX);
    (quotient, (product % c) as u64)
}

/// An exact fraction from 0 to 1.
///
/// ```
/// use weir_engine::arith::Fraction;
///
/// let ratio: Fraction = "0.8".parse().unwrap();
/// assert_eq!(ratio.billionths(), 800_000_000);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fraction {
    /// In units of 1 / [`Fraction::UNITS`].
    units: u32,
}

impl Fraction {
    /// The most digits after the decimal point.
    pub const DECIMALS_MAX: usize = 9;
    /// 10 to the power of the decimals.
    const UNITS: u32 = 1_000_000_000;

    /// A fraction in percent, at most 100.
    pub const fn percent(percent: u32) -> Self {
        let percent = if percent > 100 { 100 } else { percent };
        Self { units: Self::UNITS / 100 * percent }
    }

    /// The fraction in billionths: 1,000,000,000 is the whole.
    pub const fn billionths(self) -> u32 {
        self.units
    }
}

/// Prints decimal text without trailing zeros.
impl std::fmt::Debug for Fraction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, decimals) = (self.units / Self::UNITS, self.units % Self::UNITS);
        let decimals = format!("{decimals:0width$}", width = Self::DECIMALS_MAX);
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{whole}"),
            decimals => write!(f, "{whole}.{decimals}"),
        }
    }
}

/// Reads decimal text from 0 to 1: `0.8`, `1`, `0.125`.
impl std::str::FromStr for Fraction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const NO_FRACTION: &str = "not a decimal number from 0 to 1, such as 0.8";
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits_only = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if text.trim_matches('.').is_empty() || !digits_only(whole) || !digits_only(decimals) {
            return Err(NO_FRACTION.to_owned());
        }
        if decimals.len() > Self::DECIMALS_MAX {
            return Err(format!("more than {} decimals", Self::DECIMALS_MAX));
        }
        let decimals: u32 =
            format!("{decimals:0<width$}", width = Self::DECIMALS_MAX).parse().map_err(|_| NO_FRACTION)?;
        let whole = whole.trim_start_matches('0');
        let units = match whole {
            "" => decimals,
            "1" if decimals == 0 => Self::UNITS,
            _ => return Err("must be from 0 to 1".to_owned()),
        };
        Ok(Self { units })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_read_exactly() {
        let read = |text: &str| text.parse::<Fraction>().map(Fraction::billionths);
        assert_eq!(read("0.8"), Ok(800_000_000));
        assert_eq!(read(".8"), Ok(800_000_000));
        assert_eq!(read("1.000"), Ok(1_000_000_000));
        assert_eq!(read("0"), Ok(0));
        assert_eq!("0.8".parse(), Ok(Fraction::percent(80)));
        assert_eq!(read("0.333333333"), Ok(333_333_333));
        assert_eq!(read("00.999999999"), Ok(999_999_999));
        for bad in ["", ".", "-0.1", "+0.1", "0,8", "80%", "1e-1", "0.8.1", " 0.8", "NaN"] {
            assert!(read(bad).unwrap_err().starts_with("not a decimal number"), "{bad}");
        }
        for above in ["1.1", "2", "10", "1.000000001"] {
            assert_eq!(read(above), Err("must be from 0 to 1".to_owned()), "{above}");
        }
        assert_eq!(read("0.1234567891"), Err("more than 9 decimals".to_owned()));
    }
}
