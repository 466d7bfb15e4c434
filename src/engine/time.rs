//! Times: microseconds of a clock, lengths of windows, units, boundaries of calendar windows, and terms of limits.
//!
//! Not here: a clock, and a time zone.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use super::during::During;

/// Microseconds since the Unix epoch, at most 2^52 (the year 2112). [tm-1]
pub type Micros = u64;

/// The last instant of weir's clocks. [tm-1]
pub const MICROS_MAX: Micros = 1 << 52;

/// The boundaries of a calendar's windows around now, in microseconds: the start of the previous, the current and the
/// next window, and of the window after the next. [cl-1]
pub type Bounds = [Micros; 4];

/// The time in which a limit applies: from one instant until another, and only during some spans of the week if it has any.
/// [te-1] [te-5]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    from: Micros,
    until: Micros,
    during: Option<Arc<During>>,
}

/// Whether a limit applies at an instant, and the next instant at which that can change: [`Term::NO_END`] if it cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    pub applies: bool,
    pub until: Micros,
}

impl Phase {
    /// Of a limit without a term.
    pub const ALWAYS: Self = Self { applies: true, until: Term::NO_END };

    /// The time from `now` until its end, in microseconds. None if it has no end.
    pub const fn ends_after(self, now: Micros) -> Option<NonZeroU64> {
        if self.until == Term::NO_END { None } else { NonZeroU64::new(self.until.saturating_sub(now)) }
    }
}

impl Term {
    /// The end of a term that never ends: later than every clock, and exact as a double. [ar-2]
    pub const NO_END: Micros = (1 << 53) - 1;

    /// Makes a term. None if it would be empty.
    pub const fn new(from: Micros, until: Micros) -> Option<Self> {
        if from < until { Some(Self { from, until, during: None }) } else { None }
    }

    /// The part of the term that lies in spans of the week.
    #[must_use]
    pub fn in_spans(self, during: Option<Arc<During>>) -> Self {
        Self { during, ..self }
    }

    pub const fn from(&self) -> Micros {
        self.from
    }

    /// The instant at which the term ends; [`Term::NO_END`] if it never ends.
    pub const fn until(&self) -> Micros {
        self.until
    }

    pub const fn during(&self) -> Option<&Arc<During>> {
        self.during.as_ref()
    }

    /// The phase at an instant, of which `of_spans` has that of the spans.
    pub fn phase(&self, now: Micros, of_spans: impl FnOnce(&Arc<During>) -> Phase) -> Phase {
        if now >= self.until {
            return Phase { applies: false, until: Self::NO_END };
        }
        if now < self.from {
            return Phase { applies: false, until: self.from };
        }
        let phase = self.during.as_ref().map_or(Phase::ALWAYS, of_spans);
        Phase { until: if phase.applies { phase.until.min(self.until) } else { phase.until }, ..phase }
    }
}

/// The shortest window or period: 1 ms, in microseconds. [lm-1]
pub const WINDOW_US_MIN: u64 = 1_000;
/// The longest window or period: 366 days, in microseconds. [lm-1]
pub const WINDOW_US_MAX: u64 = 366 * 86_400 * 1_000_000;
crate::named! {
    /// A unit of time with the names of policies and Envoy. Months have 30 days and years 365. [lm-3]
    #[derive(Hash)]
    pub enum Unit {
        /// 1 s.
        Second = "second",
        /// 60 s.
        Minute = "minute",
        /// 3,600 s.
        Hour = "hour",
        /// 86,400 s.
        Day = "day",
        /// 7 days, starting on Thursday 00:00 UTC, because the epoch did.
        Week = "week",
        /// 30 days.
        Month = "month",
        /// 365 days.
        Year = "year",
    }
}

impl Unit {
    /// The unit with this name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The units of Envoy's API that a limit of the request can have: all but the week. [mt-6]
    pub const OF_REQUESTS: [Self; 6] = [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Month, Self::Year];

    pub const fn window(self) -> Window {
        let seconds = match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        };
        Window(seconds * 1_000_000)
    }
}

/// The length of a window, or the period of a rate: 1 ms to 366 days in whole microseconds. [lm-1]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Window(u64);

impl Window {
    /// A window of this many microseconds.
    ///
    /// # Errors
    /// When it is shorter than 1 ms or longer than 366 days.
    pub const fn from_micros(us: u64) -> Result<Self, WindowError> {
        if us < WINDOW_US_MIN {
            return Err(WindowError::TooShort { us });
        }
        if us > WINDOW_US_MAX {
            return Err(WindowError::TooLong { us });
        }
        Ok(Self(us))
    }

    /// The length in microseconds.
    pub const fn us(self) -> u64 {
        self.0
    }

    /// The window of this many units. None if that is none, or longer than 366 days.
    pub fn of_units(count: u32, unit: Unit) -> Option<Self> {
        let us = unit.window().us().checked_mul(count.into())?;
        Self::from_micros(us).ok()
    }

    /// The length as a number of the longest of these units that divides it. None if none of them does.
    ///
    /// ```
    /// use weir_engine::{Unit, Window};
    ///
    /// let days = |count| Window::of_units(count, Unit::Day).expect("at most 366");
    /// assert_eq!(days(14).in_units(&Unit::ALL), Some((2, Unit::Week)));
    /// assert_eq!(days(14).in_units(&Unit::OF_REQUESTS), Some((14, Unit::Day)));
    /// ```
    pub fn in_units(self, units: &[Unit]) -> Option<(u32, Unit)> {
        let longest = units.iter().rev().find(|unit| self.0.is_multiple_of(unit.window().us()))?;
        u32::try_from(self.0 / longest.window().us()).ok().map(|count| (count, *longest))
    }

    /// The unit of exactly this length, if there is one.
    pub fn unit(self) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.window() == self)
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Duration(self.0).fmt(f)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    #[error("a window of {us} us is too short: at least 1 ms")]
    TooShort { us: u64 },
    #[error("a window of {} s is too long: at most 366 days", us / 1_000_000)]
    TooLong { us: u64 },
}

/// Microseconds, shown in the largest of `s`, `ms` and `us` that divides them: an hour is `3600s`.
pub(super) struct Duration(pub(super) u64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1_000_000) {
            write!(f, "{}s", self.0 / 1_000_000)
        } else if self.0.is_multiple_of(1_000) {
            write!(f, "{}ms", self.0 / 1_000)
        } else {
            write!(f, "{}us", self.0)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// A local day, of 23 to 25 hours.
    Day,
    /// Seven local days from Monday.
    Week,
    /// A month of 28 to 31 local days.
    Month,
    /// A year of 365 or 366 local days.
    Year,
}

impl CalendarUnit {
    /// The unit, whose name policies use.
    pub const fn unit(self) -> Unit {
        match self {
            Self::Day => Unit::Day,
            Self::Week => Unit::Week,
            Self::Month => Unit::Month,
            Self::Year => Unit::Year,
        }
    }
}
