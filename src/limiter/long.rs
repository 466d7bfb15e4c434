//! Long requests are matched in turns.
//!
//! A value of 60 KB can take half a millisecond to match [mt-3], and a request can have dozens of them. So a long request is
//! matched descriptor by descriptor. Of all long requests of a limiter, one descriptor is matched between two polls for new
//! bytes: they delay other requests of the runtime no longer than that.

use weir_engine::PolicySet;
use weir_engine::policy::{Domain, Match};
use weir_lifecycle::Turns;

use super::Query;

/// A request whose values have more bytes together is long.
pub const LONG_VALUES_BYTES_MAX: usize = 16 * 1_024;

impl Query<'_> {
    /// Whether its match takes so long that other requests should go first.
    #[must_use]
    pub fn is_long(&self) -> bool {
        let entries = self.descriptors.iter().flat_map(|descriptor| descriptor.entries);
        entries.map(|entry| entry.value.len()).sum::<usize>() > LONG_VALUES_BYTES_MAX
    }
}

/// Finds the match of each descriptor of a long request.
pub(super) async fn find<'p>(
    turns: &Turns,
    policies: &'p PolicySet,
    domain: &'p Domain,
    query: &Query<'_>,
) -> Vec<Match<'p>> {
    let mut met = Vec::with_capacity(query.descriptors.len());
    for descriptor in &query.descriptors {
        let _turn = turns.next().await;
        met.push(policies.find(domain, descriptor.entries));
    }
    met
}
