//! Which traces are recorded.
//!
//! Not here: the caller's context (context.rs).

/// A ratio of 1.
const BILLIONTHS: u128 = 1_000_000_000;
/// The number of possible results of [`value`].
const VALUES: u128 = 1 << 63;

/// Decides from the caller's decision or from the trace's id, so that all services with one ratio keep the same traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// Ids with a value below it are sampled.
    threshold: u64,
    is_parent_based: bool,
}

impl Sampler {
    /// Samples this many billionths of all traces. With `is_parent_based` the caller's decision has priority.
    pub(super) fn new(billionths: u64, is_parent_based: bool) -> Self {
        let threshold = VALUES * u128::from(billionths) / BILLIONTHS;
        Self { threshold: u64::try_from(threshold).unwrap_or(u64::MAX), is_parent_based }
    }

    /// Whether a trace is recorded. Calls `id` only if the id decides.
    pub(super) fn samples(self, caller: Option<bool>, id: impl FnOnce() -> u128) -> bool {
        match caller {
            Some(sampled) if self.is_parent_based => sampled,
            _ if self.threshold == 0 => false,
            _ => value(id()) < self.threshold,
        }
    }
}

/// The last 63 random bits of an id. Other implementations of OpenTelemetry use the same bits.
#[expect(clippy::cast_possible_truncation, reason = "the last eight bytes are meant")]
const fn value(id: u128) -> u64 {
    (id as u64) >> 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_decision_stands_where_it_counts() {
        for (billionths, caller, expected) in
            [(0, Some(true), true), (1_000_000_000, Some(false), false), (0, None, false), (1_000_000_000, None, true)]
        {
            assert_eq!(Sampler::new(billionths, true).samples(caller, || 7), expected, "{billionths} {caller:?}");
        }
        assert!(!Sampler::new(0, false).samples(Some(true), || 7));
        assert!(Sampler::new(1_000_000_000, false).samples(Some(false), || u128::MAX));
    }

    #[test]
    fn a_ratio_is_the_part_of_all_ids() {
        let sampler = Sampler::new(250_000_000, true);
        // Ids spread evenly over all values, each in the middle of its part.
        let ids = (0..1_000_u64).map(|i| u128::from(i * (u64::MAX / 1_000) + u64::MAX / 2_000));
        let sampled = ids.filter(|id| sampler.samples(None, || *id)).count();
        assert_eq!(sampled, 250);
        // Only the last bytes count: a trace is kept by all services or by none.
        assert!(sampler.samples(None, || 0xffff << 64));
        assert!(!sampler.samples(None, || u128::from(u64::MAX)));
    }
}
