//! The state of a circuit, and the settings of a circuit breaker.
//!
//! Not here: the state machine of the breaker (routing/breaker.rs).

use std::time::Duration;

/// When the breaker opens, and how it closes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// How long failures are counted together.
    pub window: Duration,
    /// The breaker does not open if fewer calls end within the window.
    pub calls: u32,
    /// The share of failed calls, in percent from 1 to 100, at which the breaker opens; 0 disables it.
    pub error_percent: u32,
    /// The time from the opening to the first probe. Up to half of it is cut at random. It doubles with each further
    /// probe, up to `routing::breaker::DOUBLINGS_MAX` times.
    pub probe: Duration,
    /// The usual timeout of a call. A late call with less than half of this timeout does not count as a failure:
    /// otherwise a caller with short deadlines could open the breaker for all callers.
    pub timeout: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(1),
            calls: 20,
            error_percent: 50,
            probe: Duration::from_millis(250),
            timeout: Duration::from_millis(10),
        }
    }
}

weir_engine::named! {
    /// Whether calls pass. In ascending order of severity.
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub enum Circuit {
        /// All calls pass.
        #[default]
        Closed = "closed",
        /// A few calls pass, as trials.
        HalfOpen = "half_open",
        /// No call passes.
        Open = "open",
    }
}
