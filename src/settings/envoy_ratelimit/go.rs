//! Values of environment variables as envoyproxy/ratelimit reads them: Go's own syntax for numbers, durations and
//! booleans, and the lists and maps of its configuration library.
//!
//! Not here: what a variable means (envoy_ratelimit.rs), and durations (package `text`).

use weir_text::go_duration;

weir_engine::named! {
    /// The type of a variable's text.
    pub enum Type {
        Text = "string",
        /// A whole number of 64 bits, also in base 2, 8 and 16.
        Integer = "int",
        Float = "float",
        /// `true`, `false` and their short forms.
        Bool = "bool",
        /// Numbers with units, usually the longest first: `1h30m`.
        Duration = "duration",
        /// Parts between commas.
        List = "list",
        /// Pairs between commas, each with a colon: `k:v,k:v`.
        Map = "map",
    }
}

impl Type {
    /// Checks a text.
    ///
    /// # Errors
    /// The required form. The message does not quote the text.
    pub(super) fn check(self, text: &str) -> Result<(), &'static str> {
        match self {
            Self::Text | Self::List => Ok(()),
            Self::Integer => integer(text).map(drop).ok_or("not a whole number"),
            Self::Float => float(text).map(drop).ok_or("not a number such as 0.8"),
            Self::Bool => boolean(text).map(drop).ok_or("not a boolean: write true or false"),
            Self::Duration => go_duration(text).map(drop).ok_or("not a duration such as 150us, 10s or 1h30m"),
            Self::Map => pairs(text).map(drop).ok_or("not a map such as key:value,key:value"),
        }
    }
}

/// A whole number: decimal, or with the prefix `0x`, `0o`, `0` or `0b`. Underscores are allowed between digits and
/// after the prefix.
pub(super) fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match lower.get(..2) {
        Some("0x") => (16, &lower[2..]),
        Some("0o") => (8, &lower[2..]),
        Some("0b") => (2, &lower[2..]),
        _ if lower.len() > 1 && lower.starts_with('0') => (8, &lower[1..]),
        _ => (10, &lower[..]),
    };
    // After the prefix an underscore is allowed, as after a digit.
    let is_prefixed = base != 10;
    let misplaced = digits.ends_with('_')
        || digits.contains("__")
        || (digits.starts_with('_') && !is_prefixed)
        || digits.is_empty();
    if misplaced {
        return None;
    }
    let plain: String = digits.chars().filter(|&digit| digit != '_').collect();
    // The sign was removed above; `from_str_radix` would accept a second one.
    if !plain.chars().all(|digit| digit.is_digit(base)) {
        return None;
    }
    let magnitude = i128::from_str_radix(&plain, base).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// A finite number with a fraction.
pub(super) fn float(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// The parts of a list. A blank text has none.
pub(super) fn list(text: &str) -> Vec<&str> {
    if text.trim().is_empty() { Vec::new() } else { text.split(',').collect() }
}

/// The pairs of a map. A blank text has none. A value may contain a colon; a key may not.
pub(super) fn pairs(text: &str) -> Option<Vec<(&str, &str)>> {
    list(text).into_iter().map(|pair| pair.split_once(':')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_every_base() {
        for (text, number) in [
            ("0", 0),
            ("8080", 8080),
            ("-1", -1),
            ("+5", 5),
            ("0x1F90", 8080),
            ("0X1f90", 8080),
            ("017", 15),
            ("0o17", 15),
            ("0b101", 5),
            ("1_000", 1000),
            ("0x_ff", 255),
            ("9223372036854775807", i64::MAX),
            ("-9223372036854775808", i64::MIN),
        ] {
            assert_eq!(integer(text), Some(number), "{text}");
        }
        for text in
            ["", "-", "1.5", "8080 ", "0x", "09", "1__0", "_1", "1_", "ten", "9223372036854775808", "--1", "-+1"]
        {
            assert_eq!(integer(text), None, "{text}");
        }
    }

    #[test]
    fn booleans_have_twelve_forms() {
        for text in ["1", "t", "T", "true", "TRUE", "True"] {
            assert_eq!(boolean(text), Some(true), "{text}");
        }
        for text in ["0", "f", "F", "false", "FALSE", "False"] {
            assert_eq!(boolean(text), Some(false), "{text}");
        }
        for text in ["", "yes", "on", "tRUE", " true"] {
            assert_eq!(boolean(text), None, "{text}");
        }
    }

    #[test]
    fn lists_and_maps_are_split_at_commas_and_colons() {
        assert_eq!(list(""), Vec::<&str>::new());
        assert_eq!(list(" "), Vec::<&str>::new());
        assert_eq!(list("a,b"), ["a", "b"]);
        assert_eq!(pairs(""), Some(vec![]));
        assert_eq!(pairs("a:b,c:d:e"), Some(vec![("a", "b"), ("c", "d:e")]));
        assert_eq!(pairs("a:b,c"), None);
        assert_eq!(pairs("a:b,"), None);
    }

    #[test]
    fn floats_are_finite() {
        assert_eq!(float("0.8"), Some(0.8));
        assert_eq!(float("1"), Some(1.0));
        for text in ["", "NaN", "inf", "80%", "1,5"] {
            assert_eq!(float(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in "[-+0-9a-zA-Z._:,\u{b5}\u{3bc} ]{0,24}") {
            for form in [Type::Integer, Type::Float, Type::Bool, Type::Duration, Type::List, Type::Map] {
                let _ = form.check(&text);
            }
        }
    }
}
