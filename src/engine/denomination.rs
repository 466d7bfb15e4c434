//! The unit in which people read the hits of a limit, such as dollars for hits of a millionth each. [lm-9]
//!
//! No decision depends on it. Not here: where amounts are shown.

use super::descriptor::Count;

/// The longest name of a unit.
pub const UNIT_BYTES_MAX: usize = 16;
/// The most decimals of an amount.
pub const DECIMALS_MAX: u32 = 9;
/// The most hits of one unit.
pub const SCALE_MAX: Count = Count::pow(10, DECIMALS_MAX);
/// The fewest decimals of an amount as it is shown.
const DECIMALS_MIN: usize = 2;

/// A unit with its hits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denomination {
    unit: Box<str>,
    /// The hits of one unit: 10 to the power of the decimals.
    scale: Count,
    decimals: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DenominationError {
    #[error("a unit has 1 to {UNIT_BYTES_MAX} letters, digits, - and _, such as usd")]
    Unit,
    #[error("{0} is not a power of ten from 1 to {SCALE_MAX}")]
    Scale(Count),
}

impl Denomination {
    /// A unit of `scale` hits.
    ///
    /// # Errors
    /// When the name cannot stand in a header, or the scale is not a power of ten.
    pub fn new(unit: &str, scale: Count) -> Result<Self, DenominationError> {
        let is_letter = |letter: u8| letter.is_ascii_alphanumeric() || matches!(letter, b'-' | b'_');
        if unit.is_empty() || unit.len() > UNIT_BYTES_MAX || !unit.bytes().all(is_letter) {
            return Err(DenominationError::Unit);
        }
        let decimals = Self::decimals(scale).ok_or(DenominationError::Scale(scale))?;
        Ok(Self { unit: unit.into(), scale, decimals: decimals as usize })
    }

    /// The decimals of a unit of `scale` hits. None if that is no scale.
    pub fn decimals(scale: Count) -> Option<u32> {
        (0..=DECIMALS_MAX).find(|decimals| Count::pow(10, *decimals) == scale)
    }

    pub const fn unit(&self) -> &str {
        &self.unit
    }

    pub const fn scale(&self) -> Count {
        self.scale
    }

    /// So many hits in this unit, exactly, with at least two decimals.
    ///
    /// ```
    /// use weir_engine::Denomination;
    ///
    /// let usd = Denomination::new("usd", 1_000_000).unwrap();
    /// assert_eq!(usd.text(12_500_000), "12.50 usd");
    /// assert_eq!(usd.text(1), "0.000001 usd");
    /// ```
    pub fn text(&self, hits: Count) -> String {
        let decimals = match self.decimals {
            0 => String::new(),
            decimals => format!("{:0decimals$}", hits % self.scale),
        };
        format!("{}.{:0<DECIMALS_MIN$} {}", hits / self.scale, decimals.trim_end_matches('0'), self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::COUNT_MAX;

    #[test]
    fn an_amount_is_exact_and_has_at_least_two_decimals() {
        for (scale, hits, text) in [
            (1_000_000, 0, "0.00 x"),
            (1_000_000, 10_000_000_000_000, "10000000.00 x"),
            (1_000_000, 1_230_000, "1.23 x"),
            (1_000_000, 1_234_500, "1.2345 x"),
            (1_000_000, COUNT_MAX, "999999999.999999 x"),
            (1_000_000_000, 1, "0.000000001 x"),
            (100, 1_205, "12.05 x"),
            (10, 125, "12.50 x"),
            (1, 12, "12.00 x"),
        ] {
            assert_eq!(Denomination::new("x", scale).unwrap().text(hits), text);
        }
    }

    #[test]
    fn a_unit_can_stand_in_a_header_and_a_scale_is_a_power_of_ten() {
        for unit in ["", "a b", "\u{20ac}", "a\"", "a\n", "seventeen-letters"] {
            assert_eq!(Denomination::new(unit, 1), Err(DenominationError::Unit), "{unit:?}");
        }
        for scale in [0, 3, 11, 10_000_000_000, Count::MAX] {
            assert_eq!(Denomination::new("usd", scale), Err(DenominationError::Scale(scale)));
        }
        assert_eq!(Denomination::new("gpu-hours_16_ch", 1).unwrap().unit(), "gpu-hours_16_ch");
    }
}
