//! A limit: how many hits, per how long, by which algorithm; checked once, when it is made.
//!
//! Not here: where a limit hangs (policy.rs) and what has been used of it (algorithm.rs).

use std::fmt;

use super::arith::mul_div;

/// The shortest window or period: 1 ms, in microseconds. [lm-1]
pub const WINDOW_US_MIN: u64 = 1_000;
/// The longest window or period: 366 days, in microseconds. [lm-1]
pub const WINDOW_US_MAX: u64 = 366 * 86_400 * 1_000_000;
/// The longest time that a full burst may take to drain: 2^48 us, 8.9 years. [lm-2]
pub const DEBT_US_MAX: u64 = 1 << 48;

/// A unit of time as policies and Envoy name it; months have 30 days and years 365. [lm-3]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 3,600 s.
    Hour,
    /// 86,400 s.
    Day,
    /// 7 days, starting on Thursday 00:00 UTC as the epoch did.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// Every unit, shortest first.
    pub const ALL: [Self; 7] = [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The unit's lower-case name in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The unit of that name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The unit's length.
    #[must_use]
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
    /// A window of so many microseconds.
    ///
    /// # Errors
    /// When it is shorter than 1 ms or longer than 366 days.
    pub const fn from_micros(us: u64) -> Result<Self, LimitError> {
        if us < WINDOW_US_MIN {
            return Err(LimitError::WindowTooShort { us });
        }
        if us > WINDOW_US_MAX {
            return Err(LimitError::WindowTooLong { us });
        }
        Ok(Self(us))
    }

    /// The length in microseconds.
    #[must_use]
    pub const fn us(self) -> u64 {
        self.0
    }

    /// The unit that is exactly so long, if there is one.
    #[must_use]
    pub fn unit(self) -> Option<Unit> {
        Unit::ALL.into_iter().find(|unit| unit.window() == self)
    }
}

impl fmt::Display for Window {
    /// In the largest of `s`, `ms` and `us` that divides it: an hour is `3600s`.
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

/// How a limit counts. The parameters that are not here (hits, window) are the limit's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Windows aligned to the clock; admits at most twice the limit over any span of one window.
    FixedWindow,
    /// The generic cell rate algorithm: a steady rate with a burst, in one number a key.
    Gcra {
        /// The most hits at one instant, at least 1.
        burst: u32,
    },
}

impl Algorithm {
    /// The names of all algorithms, as policies write them.
    pub const NAMES: [&'static str; 2] = ["fixed_window", "gcra"];

    /// The name that policies use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => Self::NAMES[0],
            Self::Gcra { .. } => Self::NAMES[1],
        }
    }
}

/// What is wrong with the numbers of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// The window is shorter than 1 ms.
    WindowTooShort {
        /// The window asked for, in microseconds.
        us: u64,
    },
    /// The window is longer than 366 days.
    WindowTooLong {
        /// The window asked for, in microseconds.
        us: u64,
    },
    /// A burst of 0 could never admit anything.
    BurstZero,
    /// A full burst would take longer than 2^48 us (8.9 years) to drain.
    BurstTooLong {
        /// How long it would take, in microseconds.
        us: u64,
    },
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::WindowTooShort { us } => {
                write!(f, "a window of {us} us is too short: at least 1 ms")
            }
            Self::WindowTooLong { us } => {
                write!(f, "a window of {} s is too long: at most 366 days", us / 1_000_000)
            }
            Self::BurstZero => f.write_str("a burst of 0 admits nothing: at least 1"),
            Self::BurstTooLong { us } => {
                write!(f, "a full burst would take {} days to drain: at most 8.9 years (2^48 us)", us / 86_400_000_000)
            }
        }
    }
}

impl std::error::Error for LimitError {}

/// A limit whose numbers have been checked. Two limits of equal shape share states, whatever their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    requests: u32,
    window: Window,
    algorithm: Algorithm,
    /// A name for people and for `replaces`; part of the key only where [`Limit::keyed_by_name`] says so.
    pub name: Option<Box<str>>,
    /// A denied charge takes what this limit has left. [dc-4]
    pub drain: bool,
    /// Usage is reported after the fact: every take is forced. [dc-5]
    pub post_paid: bool,
    /// The debt of a pacing limit that is full, as whole microseconds and a fraction over `requests`. [pc-2]
    full: (u64, u64),
    id: Box<str>,
}

impl Limit {
    /// A limit of `requests` hits per `window`.
    ///
    /// # Errors
    /// When a bound of the algorithm is broken; 0 requests skip those bounds, since nothing is ever admitted. [lm-2]
    pub fn new(requests: u32, window: Window, algorithm: Algorithm) -> Result<Self, LimitError> {
        let full = match algorithm {
            Algorithm::FixedWindow => (0, 0),
            Algorithm::Gcra { .. } if requests == 0 => (0, 0),
            Algorithm::Gcra { burst } => {
                if burst == 0 {
                    return Err(LimitError::BurstZero);
                }
                let full = mul_div(u64::from(burst), window.us(), u64::from(requests));
                if full.0 > DEBT_US_MAX || (full.0 == DEBT_US_MAX && full.1 > 0) {
                    return Err(LimitError::BurstTooLong { us: full.0 });
                }
                full
            }
        };
        let mut limit =
            Self { requests, window, algorithm, name: None, drain: false, post_paid: false, full, id: "".into() };
        limit.id = super::key::limit_id(&limit, None);
        Ok(limit)
    }

    /// A fixed window of one unit: what a limit in the request is, and what a policy gives by default.
    #[must_use]
    pub fn per_unit(requests: u32, unit: Unit) -> Self {
        match Self::new(requests, unit.window(), Algorithm::FixedWindow) {
            Ok(limit) => limit,
            Err(error) => unreachable!("every unit is a window: {error}"),
        }
    }

    /// Makes the name part of the key: one list holds limits of equal shape, told apart by their names.
    #[must_use]
    pub fn keyed_by_name(mut self) -> Self {
        self.id = super::key::limit_id(&self, self.name.as_deref());
        self
    }

    /// Hits per window. 0 denies everything; it never means unlimited. [lm-5]
    #[must_use]
    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// The window, or the period of the rate.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// How it counts.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The most hits that this limit can hold at one instant: more than that is never admitted. [lm-4]
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        match self.algorithm {
            Algorithm::FixedWindow => self.requests,
            Algorithm::Gcra { .. } if self.requests == 0 => 0,
            Algorithm::Gcra { burst } => burst,
        }
    }

    /// The part of the key that says which shape of state is kept. Limits with one id share states.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The debt at which a pacing limit is full: whole microseconds, and a fraction over [`Limit::requests`].
    #[must_use]
    pub const fn full(&self) -> (u64, u64) {
        self.full
    }
}
