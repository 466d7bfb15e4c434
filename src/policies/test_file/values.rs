//! Values of tests: ranges, lengths of time and instants.

use std::fmt;

use weir_engine::Micros;
use weir_engine::words::IN_FLIGHT;
use weir_text::{duration, spell};

use super::ExpectedLimit;
use crate::rate;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub min: u64,
    pub max: u64,
}

impl Range {
    pub const fn has(&self, number: u64) -> bool {
        self.min <= number && number <= self.max
    }

    /// The range as a test writes it. `spelled` formats its numbers.
    pub fn written(&self, spelled: impl Fn(u64) -> String) -> String {
        match (self.min, self.max) {
            (min, max) if min == max => spelled(min),
            (0, max) => format!("<= {}", spelled(max)),
            (min, u64::MAX) => format!(">= {}", spelled(min)),
            (min, max) => format!("{}..{}", spelled(min), spelled(max)),
        }
    }

    /// Reads `3`, `<= 3`, `>= 3` or `1..3`.
    fn parse(text: &str, number: impl Fn(&str) -> Result<u64, String>) -> Result<Self, String> {
        if let Some(max) = text.strip_prefix("<=") {
            return Ok(Self { min: 0, max: number(max.trim())? });
        }
        if let Some(min) = text.strip_prefix(">=") {
            return Ok(Self { min: number(min.trim())?, max: u64::MAX });
        }
        if let Some((min, max)) = text.split_once("..") {
            let range = Self { min: number(min.trim())?, max: number(max.trim())? };
            return if range.min <= range.max {
                Ok(range)
            } else {
                Err("its first number is the larger one".to_owned())
            };
        }
        let exact = number(text)?;
        Ok(Self { min: exact, max: exact })
    }

    pub(crate) fn of_numbers(text: &str) -> Result<Self, String> {
        Self::parse(text, |number| {
            let digits: String = number.split('_').collect();
            let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            let parsed = digits.parse().ok().filter(|_| is_whole);
            parsed.ok_or_else(|| "write 3, <= 3, >= 3 or 1..3".to_owned())
        })
    }

    /// Lengths of time, in microseconds.
    pub(crate) fn of_lengths(text: &str) -> Result<Self, String> {
        Self::parse(text, |length| micros(length).map_err(|reason| format!("{reason}; or <= 10s, >= 10s, 5s..10s")))
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written(|number| number.to_string()))
    }
}

/// A length of time, in microseconds.
pub(super) fn micros(text: &str) -> Result<Micros, String> {
    let length = duration(text)?;
    u64::try_from(length.as_micros()).map_err(|_| format!("{} is too long", spell(length)))
}

/// The word for an absent header, receipt, rule or wait.
pub(super) const NONE: &str = "none";

/// Reads the hits and the window of a limit, `3/minute`, or `3 in flight`.
pub(super) fn amount(text: &str) -> Result<ExpectedLimit, String> {
    match text.strip_suffix(IN_FLIGHT).map(|number| number.trim_end().parse()) {
        Some(Ok(requests)) => Ok((requests, None)),
        _ => rate::read(text).map(|(requests, period)| (requests, Some(period.window))),
    }
}

/// Accepts `none`, and otherwise the texts of `parse`.
pub(super) fn or_none<T>(parse: impl Fn(&str) -> Result<T, String>) -> impl Fn(&str) -> Result<Option<T>, String> {
    move |text| if text == NONE { Ok(None) } else { parse(text).map(Some) }
}
