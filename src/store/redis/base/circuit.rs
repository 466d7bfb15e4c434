//! Whether calls to a server pass, as a value that is reported, and the settings by which a circuit breaker decides it.
//!
//! Not here: the state machine that decides it (routing/breaker.rs).

use std::time::Duration;

/// When the breaker opens and how it finds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    /// How long failures are counted together.
    pub window: Duration,
    /// Fewer calls than that within the window open nothing.
    pub calls: u32,
    /// The share of the calls in percent, 1 to 100, that must have failed; 0 turns the breaker off.
    pub error_percent: u32,
    /// The time from the opening to the first probe, of which up to half is left out at random. It doubles with each
    /// further one, up to `routing::breaker::DOUBLINGS_MAX` times.
    pub probe: Duration,
    /// The time that a call usually has. A late call that had less than half of it does not count as a failure: else a
    /// caller with short deadlines could open the breaker for all.
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
    /// Whether calls pass. In the order of badness.
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub enum Circuit {
        /// All of them.
        #[default]
        Closed = "closed",
        /// A few, on trial.
        HalfOpen = "half_open",
        /// None.
        Open = "open",
    }
}
