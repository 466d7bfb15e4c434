//! How often shares of limits were crossed, by domain, rule, limit and share.
//!
//! Not here: what an alert is and where it goes (telemetry/alerts.rs).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use weir_engine::Shares;

use super::families::{Source, Value, Visitor};
use super::labels::Labels;
use super::listed::{Listed, ListedFamily};
use super::table::ALERTS;

type Share = (Arc<Labels>, u8);

pub(super) type AlertCounts = Listed<Share, Arc<AtomicU64>>;

/// The counters of one limit, each with its share. Empty for most limits.
pub(super) type LimitAlerts = Box<[(u8, Arc<AtomicU64>)]>;

/// Looks up the counters of a load. A share that is already in force keeps its counter.
pub(super) struct AlertLoad {
    before: Arc<[(Share, Arc<AtomicU64>)]>,
    counts: BTreeMap<Share, Arc<AtomicU64>>,
}

impl AlertLoad {
    pub(super) fn begin(counts: &AlertCounts) -> Self {
        Self { before: counts.entries(), counts: BTreeMap::new() }
    }

    pub(super) fn of(&mut self, labels: &Arc<Labels>, shares: &Shares) -> LimitAlerts {
        shares.iter().map(|share| (share, self.of_share((labels.clone(), share)))).collect()
    }

    fn of_share(&mut self, share: Share) -> Arc<AtomicU64> {
        let known = self.before.binary_search_by(|(known, _)| known.cmp(&share)).ok();
        let known = known.map(|at| self.before[at].1.clone());
        self.counts.entry(share).or_insert_with(|| known.unwrap_or_default()).clone()
    }

    /// Applies the counters, and removes those of other shares.
    pub(super) fn end(self, counts: &AlertCounts) {
        counts.replace(self.counts.into_iter().collect());
    }
}

pub(super) fn count(alerts: &LimitAlerts, share: u8) {
    if let Some((_, count)) = alerts.iter().find(|(of, _)| *of == share) {
        count.fetch_add(1, Relaxed);
    }
}

pub(super) fn alerts_of_limits(counts: Arc<AlertCounts>) -> impl Source {
    ListedFamily::new(ALERTS, counts, |(labels, share): &Share, count: &Arc<AtomicU64>, to: &mut dyn Visitor| {
        let Labels { domain, rule, limit } = &**labels;
        let share = share.to_string();
        let labels = [("domain", &**domain), ("limit", limit), ("rule", rule), ("share", &share)];
        to.series(&labels, Value::Count(count.load(Relaxed)));
    })
}
