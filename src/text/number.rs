//! Whole numbers within bounds.

/// A parser of whole numbers from `least` to `most`.
///
/// ```
/// use weir_text::number;
///
/// let percent = number::<u8>(0, 100);
/// assert_eq!(percent("7"), Ok(7));
/// assert_eq!(percent("101"), Err("must be a whole number from 0 to 100".to_owned()));
/// ```
pub fn number<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_within_its_bounds() {
        let percent = number::<u32>(0, 100);
        assert_eq!((percent("0"), percent("100")), (Ok(0), Ok(100)));
        for text in ["", "-1", "101", "1.5", "x", "99999999999999999999"] {
            assert_eq!(percent(text), Err("must be a whole number from 0 to 100".to_owned()), "{text}");
        }
    }
}
