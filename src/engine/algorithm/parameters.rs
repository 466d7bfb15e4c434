//! The parameters that distinguish the variants of an algorithm.

use crate::time::CalendarUnit;

/// Where a fixed window begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// At multiples of its length since the epoch.
    Clock,
    FirstHit,
    /// With a day, week, month or year of the calendar in the limit's time zone.
    Calendar(CalendarUnit),
}

/// How a token bucket is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// At a steady rate.
    Continuous,
    /// With all tokens of a period at its end.
    Interval,
}

/// The length of a sub-bucket in microseconds; not 0.
pub type Precision = std::num::NonZeroU64;

/// A value for each parameter of all algorithms. An algorithm reads its own parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    pub anchor: Anchor,
    pub precision: Precision,
    /// The most hits at one instant.
    pub burst: u32,
    pub refill: Refill,
}

impl Parameters {
    /// The smallest value of each parameter.
    pub const LEAST: Self =
        Self { anchor: Anchor::Clock, precision: Precision::MIN, burst: 1, refill: Refill::Continuous };
}

/// One parameter of an algorithm, as policies name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its key in a policy.
    pub name: &'static str,
    pub value: ParameterValue,
    /// Whether a policy that omits the parameter has this value.
    pub is_default: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterValue {
    Hits(u32),
    /// A length in microseconds.
    Length(u64),
    Word(&'static str),
    /// The window of a calendar, in the limit's time zone.
    Calendar(CalendarUnit),
}
