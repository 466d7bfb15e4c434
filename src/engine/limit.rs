//! A limit: how many hits, per how long, by which algorithm; checked once, when it is made.
//!
//! Not here: where a limit hangs (policy.rs) and what has been used of it (algorithm.rs).

use std::fmt;

use super::algorithm::sliding_window::BUCKETS_MAX;
use super::algorithm::sliding_window_log::REQUESTS_MAX as LOG_REQUESTS_MAX;
use super::arith::mul_div;
use super::escape::escape;
use super::time::{CalendarUnit, Duration, Unit, Window};

/// The longest time that a full burst may take to drain: 2^48 us, 8.9 years. [lm-2]
pub const DEBT_US_MAX: u64 = 1 << 48;

/// Where a fixed window begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// At multiples of its length since the epoch.
    Clock,
    /// With the first hit.
    FirstHit,
    /// With a calendar's day, week, month or year; the time zone is the limit's.
    Calendar(CalendarUnit),
}

/// How a token bucket is refilled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refill {
    /// At a steady rate.
    Continuous,
    /// By all tokens of a period at its end.
    Interval,
}

/// The length of a sub-bucket in microseconds; not 0.
pub type Precision = std::num::NonZeroU64;

/// How a limit counts. The parameters that are not here (hits, window) are the limit's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Counts in windows; admits at most twice the limit over any span of one window.
    FixedWindow {
        /// Where the windows begin.
        anchor: Anchor,
    },
    /// Two windows, the earlier one weighted.
    SlidingWindowCounter,
    /// A window in sub-buckets; never admits more than the limit over any span of one window.
    SlidingWindow {
        /// The length of a sub-bucket: divides the window into at most 256.
        precision: Precision,
    },
    /// Every charge remembered; at most 10,000 hits.
    SlidingWindowLog,
    /// A steady rate with a purse.
    TokenBucket {
        /// The most hits at one instant, at least 1.
        burst: u32,
        /// How it is refilled.
        refill: Refill,
    },
    /// Pacing: admits what `gcra` does, and tells each request its turn. [lb-1]
    LeakyBucket {
        /// The most hits at one instant, at least 1.
        burst: u32,
    },
    /// The generic cell rate algorithm: a steady rate with a burst.
    Gcra {
        /// The most hits at one instant, at least 1.
        burst: u32,
    },
}

impl Algorithm {
    /// A fixed window aligned to the clock: what a policy gives by default.
    pub const FIXED_WINDOW: Self = Self::FixedWindow { anchor: Anchor::Clock };

    /// The names of all algorithms, as policies write them.
    pub const NAMES: [&'static str; 7] = [
        "fixed_window",
        "sliding_window_counter",
        "sliding_window",
        "sliding_window_log",
        "token_bucket",
        "leaky_bucket",
        "gcra",
    ];

    /// The name that policies use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow { .. } => Self::NAMES[0],
            Self::SlidingWindowCounter => Self::NAMES[1],
            Self::SlidingWindow { .. } => Self::NAMES[2],
            Self::SlidingWindowLog => Self::NAMES[3],
            Self::TokenBucket { .. } => Self::NAMES[4],
            Self::LeakyBucket { .. } => Self::NAMES[5],
            Self::Gcra { .. } => Self::NAMES[6],
        }
    }

    /// The most hits at one instant, where that is a number of its own.
    #[must_use]
    pub const fn burst(self) -> Option<u32> {
        match self {
            Self::TokenBucket { burst, .. } | Self::LeakyBucket { burst } | Self::Gcra { burst } => Some(burst),
            _ => None,
        }
    }

    /// Where windows begin: at the clock's for all but some fixed ones.
    #[must_use]
    pub const fn anchor(self) -> Anchor {
        match self {
            Self::FixedWindow { anchor } => anchor,
            _ => Anchor::Clock,
        }
    }

    /// The sub-buckets that a sliding window has where a policy does not say: 60, or the most below that divide it.
    #[must_use]
    pub fn default_precision(window: Window) -> Precision {
        const BUCKETS: u64 = 60;
        let buckets = (1..=BUCKETS).rev().find(|count| window.us().is_multiple_of(*count)).unwrap_or(1);
        Precision::new(window.us() / buckets).unwrap_or(Precision::MIN)
    }
}

/// What is wrong with the numbers of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// A burst of 0 could never admit anything.
    BurstZero,
    /// A full burst would take longer than 2^48 us (8.9 years) to drain.
    BurstTooLong {
        /// How long it would take, in microseconds.
        us: u64,
    },
    /// The sub-buckets do not divide the window, or are more than 256.
    Precision {
        /// The precision asked for, in microseconds.
        us: u64,
        /// The window, in microseconds.
        window_us: u64,
    },
    /// A log keeps every charge, so that its limit is bounded.
    LogTooLong {
        /// The hits asked for.
        requests: u32,
    },
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::BurstZero => f.write_str("a burst of 0 admits nothing: at least 1"),
            Self::BurstTooLong { us } => {
                write!(f, "a full burst would take {} days to drain: at most 8.9 years (2^48 us)", us / 86_400_000_000)
            }
            Self::Precision { us, window_us } if !window_us.is_multiple_of(us) => {
                write!(f, "a precision of {} does not divide the window of {}", Duration(us), Duration(window_us))
            }
            Self::Precision { us, window_us } => {
                let count = window_us / us;
                write!(f, "a precision of {} makes {count} sub-buckets: at most {BUCKETS_MAX}", Duration(us))
            }
            Self::LogTooLong { requests } => write!(
                f,
                "a log of {requests} hits is too long: at most {LOG_REQUESTS_MAX} \
                 (sliding_window has the same bound in constant memory)"
            ),
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
    /// The IANA name of a calendar's time zone; empty for UTC, and for every other limit.
    zone: Box<str>,
    is_keyed_by_name: bool,
    id: Box<str>,
}

impl Limit {
    /// A limit of `requests` hits per `window`.
    ///
    /// # Errors
    /// When a bound of the algorithm is broken; 0 requests skip those bounds, since nothing is ever admitted. [lm-2]
    pub fn new(requests: u32, window: Window, algorithm: Algorithm) -> Result<Self, LimitError> {
        let mut full = (0, 0);
        match algorithm {
            _ if requests == 0 => {}
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWindowCounter => {}
            Algorithm::SlidingWindow { precision } => {
                let (us, window_us) = (precision.get(), window.us());
                if !window_us.is_multiple_of(us) || window_us / us > BUCKETS_MAX {
                    return Err(LimitError::Precision { us, window_us });
                }
            }
            Algorithm::SlidingWindowLog => {
                if requests > LOG_REQUESTS_MAX {
                    return Err(LimitError::LogTooLong { requests });
                }
            }
            Algorithm::TokenBucket { burst, .. } | Algorithm::LeakyBucket { burst } | Algorithm::Gcra { burst } => {
                if burst == 0 {
                    return Err(LimitError::BurstZero);
                }
                full = mul_div(u64::from(burst), window.us(), u64::from(requests));
                if full > (DEBT_US_MAX, 0) {
                    return Err(LimitError::BurstTooLong { us: full.0 });
                }
            }
        }
        let limit = Self {
            requests,
            window,
            algorithm,
            name: None,
            drain: false,
            post_paid: false,
            full,
            zone: "".into(),
            is_keyed_by_name: false,
            id: "".into(),
        };
        Ok(limit.with_id())
    }

    /// A fixed window of one unit: what a limit in the request is, and what a policy gives by default.
    #[must_use]
    pub fn per_unit(requests: u32, unit: Unit) -> Self {
        match Self::new(requests, unit.window(), Algorithm::FIXED_WINDOW) {
            Ok(limit) => limit,
            Err(error) => unreachable!("every unit is a window: {error}"),
        }
    }

    /// Gives a calendar's windows a time zone, by its IANA name. Without one they are UTC's.
    #[must_use]
    pub fn in_zone(mut self, zone: &str) -> Self {
        self.zone = zone.into();
        self.with_id()
    }

    /// The IANA name of a calendar's time zone; empty for UTC, and for every limit without a calendar.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// Makes the name part of the key: one list holds limits of equal shape, told apart by their names.
    #[must_use]
    pub fn keyed_by_name(mut self) -> Self {
        self.is_keyed_by_name = true;
        self.with_id()
    }

    fn with_id(mut self) -> Self {
        let name = self.name.as_deref().filter(|_| self.is_keyed_by_name);
        self.id = limit_id(&self, name);
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
        match self.algorithm.burst() {
            Some(burst) if self.requests > 0 => burst,
            _ => self.requests,
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

/// The id of a limit: a letter for the algorithm, then every parameter that shapes the state. [ky-4]
fn limit_id(limit: &Limit, name: Option<&str>) -> Box<str> {
    let window = limit.window();
    let mut id = match limit.algorithm() {
        Algorithm::FixedWindow { anchor: Anchor::Clock } => format!("f{window}"),
        Algorithm::FixedWindow { anchor: Anchor::FirstHit } => format!("h{window}"),
        Algorithm::FixedWindow { anchor: Anchor::Calendar(unit) } => {
            format!("k{}@{}", unit.unit().name(), limit.zone())
        }
        Algorithm::SlidingWindowCounter => format!("c{window}"),
        Algorithm::SlidingWindow { precision } => format!("s{window}/{}", Duration(precision.get())),
        Algorithm::SlidingWindowLog => format!("l{window}"),
        Algorithm::TokenBucket { refill: Refill::Continuous, .. } => format!("t{window}"),
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => format!("i{window}"),
        Algorithm::LeakyBucket { .. } => format!("b{window}"),
        Algorithm::Gcra { .. } => format!("g{window}"),
    };
    if let Some(name) = name {
        id.push(':');
        escape(&mut id, name);
    }
    id.into()
}
