//! Requests and holds by the domains in force, and descriptors that met no rule.
//!
//! Each runtime adds to its own lane, so that cores that serve the same domain do not slow each other down. Not here:
//! requests of unknown domains (latency.rs counts them by result).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use weir_engine::PolicySet;
use weir_engine::observer::{DecisionResult, HoldHits, HoldResult};

use super::families::{Single, Source, Value, Visitor};
use super::latency::Latencies;
use super::listed::{Listed, ListedFamily};
use super::registry::Number;
use super::table::{HOLD_HITS, HOLDS, REQUESTS_TOTAL, UNMATCHED, WEIGHED_BY_DEFAULT};

/// The label `domain` of unknown domains, and of requests that cannot be read.
pub(super) const UNKNOWN: &str = "(unknown)";
/// If there are more runtimes, some share lanes. A domain uses 64 bytes for each lane.
const LANES_MAX: usize = 16;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Lane {
    ok: AtomicU64,
    over_limit: AtomicU64,
    store_failed: AtomicU64,
    unmatched: AtomicU64,
}

#[derive(Debug)]
pub(super) struct DomainCounts {
    lanes: Box<[Lane]>,
    /// Without lanes, because a hold costs more than a shared counter. None if the domain never had holds.
    holds: OnceLock<Box<Holds>>,
    /// The same for descriptors with the default factor. None if the domain never weighed hits.
    weighed_by_default: OnceLock<AtomicU64>,
}

#[derive(Debug, Default)]
struct Holds {
    /// By [`HoldResult::ALL`].
    results: [AtomicU64; HoldResult::ALL.len()],
    /// By [`HoldHits::ALL`].
    hits: [AtomicU64; HoldHits::ALL.len()],
}

/// The name of a result, and its counter in a lane.
type Counted = (&'static str, fn(&Lane) -> &AtomicU64);

/// The results that a request for a known domain can have.
const RESULTS: [Counted; 3] =
    [("ok", |lane| &lane.ok), ("over_limit", |lane| &lane.over_limit), ("store_failed", |lane| &lane.store_failed)];

impl DomainCounts {
    fn new(lanes: usize) -> Self {
        let lanes = (0..lanes).map(|_| Lane::default()).collect();
        Self { lanes, holds: OnceLock::new(), weighed_by_default: OnceLock::new() }
    }

    pub(super) fn add_weighed_by_default(&self, descriptors: u64) {
        self.weighed_by_default.get_or_init(AtomicU64::default).fetch_add(descriptors, Relaxed);
    }

    pub(super) fn add_holds(&self, result: HoldResult, count: u64) {
        self.holds.get_or_init(Box::default).results[result as usize].fetch_add(count, Relaxed);
    }

    pub(super) fn add_hold_hits(&self, kind: HoldHits, hits: u64) {
        self.holds.get_or_init(Box::default).hits[kind as usize].fetch_add(hits, Relaxed);
    }

    pub(super) fn add(&self, lane: usize, result: DecisionResult, unmatched: u32) {
        let lane = &self.lanes[lane % self.lanes.len()];
        let count = match result {
            DecisionResult::Ok => &lane.ok,
            DecisionResult::OverLimit => &lane.over_limit,
            DecisionResult::StoreFailed => &lane.store_failed,
            // These have no domain.
            DecisionResult::Invalid
            | DecisionResult::UnknownDomain
            | DecisionResult::NoPolicies
            | DecisionResult::NotAllowed => return,
        };
        count.fetch_add(1, Relaxed);
        if unmatched > 0 {
            lane.unmatched.fetch_add(u64::from(unmatched), Relaxed);
        }
    }

    fn sum(&self, count: fn(&Lane) -> &AtomicU64) -> u64 {
        self.lanes.iter().map(|lane| count(lane).load(Relaxed)).sum()
    }
}

#[derive(Debug)]
pub(super) struct Domains {
    named: Arc<Listed<Arc<str>, Arc<DomainCounts>>>,
    lanes: usize,
}

impl Domains {
    pub(super) fn new(runtimes: usize) -> Self {
        Self { named: Arc::default(), lanes: runtimes.clamp(1, LANES_MAX) }
    }

    /// Returns the counters of all these domains, by id, and removes those of other domains. One load at a time.
    pub(super) fn load(&self, policies: &PolicySet) -> Box<[Arc<DomainCounts>]> {
        let before = self.named.entries();
        let mut domains: Vec<_> = policies.domains().collect();
        domains.sort_unstable_by_key(|domain| domain.id);
        let counts = domains.iter().map(|domain| {
            let known = before.binary_search_by(|(name, _)| (**name).cmp(&*domain.name));
            known.map_or_else(|_| Arc::new(DomainCounts::new(self.lanes)), |at| before[at].1.clone())
        });
        let counts: Box<[Arc<DomainCounts>]> = counts.collect();
        for (_, counts) in domains.iter().zip(&counts).filter(|(domain, _)| domain.has_holds) {
            counts.holds.get_or_init(Box::default);
        }
        domains.iter().zip(&counts).filter(|(domain, _)| domain.weighs()).for_each(|(_, counts)| {
            counts.add_weighed_by_default(0);
        });
        let names = domains.iter().map(|domain| Arc::<str>::from(&*domain.name));
        let mut named: Vec<_> = names.zip(counts.iter().cloned()).collect();
        named.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        self.named.replace(named.into());
        counts
    }

    /// The requests for all domains, by result in the order of [`RESULTS`].
    pub(super) fn totals(&self) -> [u64; RESULTS.len()] {
        let entries = self.named.entries();
        RESULTS.map(|(_, count)| entries.iter().map(|(_, counts)| counts.sum(count)).sum())
    }
}

/// Shows the series of one domain.
type Show = fn(&str, &DomainCounts, &mut dyn Visitor);

/// The metrics of all domains. `latencies` have the results without a known domain, and `descriptors` are those of unknown
/// domains.
pub(super) fn metrics_of_domains(
    domains: &Domains,
    latencies: Arc<Latencies>,
    descriptors: Number,
) -> [Box<dyn Source>; 7] {
    let listed = |name, show: Show| -> Box<dyn Source> {
        let show = move |domain: &Arc<str>, counts: &Arc<DomainCounts>, to: &mut dyn Visitor| show(domain, counts, to);
        Box::new(ListedFamily::new(name, domains.named.clone(), show))
    };
    let requests = listed(REQUESTS_TOTAL, |domain, counts, to| {
        for (result, count) in RESULTS {
            to.series(&[("domain", domain), ("result", result)], Value::Count(counts.sum(count)));
        }
    });
    let of_unknown = Single(Some(move |to: &mut dyn Visitor| {
        for result in [
            DecisionResult::Invalid,
            DecisionResult::NoPolicies,
            DecisionResult::NotAllowed,
            DecisionResult::UnknownDomain,
        ] {
            let count = latencies.failures(result);
            to.series(&[("domain", UNKNOWN), ("result", result.name())], Value::Count(count));
        }
    }));
    // A policy may have the name that represents unknown domains. Each series is shown once.
    let unmatched = listed(UNMATCHED, |domain, counts, to| {
        if domain != UNKNOWN {
            to.series(&[("domain", domain)], Value::Count(counts.sum(|lane| &lane.unmatched)));
        }
    });
    let named = domains.named.clone();
    let unmatched_of_unknown = Single(Some(move |to: &mut dyn Visitor| {
        let entries = named.entries();
        let of_policy = entries.iter().find(|(domain, _)| **domain == *UNKNOWN);
        let of_policy = of_policy.map_or(0, |(_, counts)| counts.sum(|lane| &lane.unmatched));
        to.series(&[("domain", UNKNOWN)], Value::Count(descriptors.get() + of_policy));
    }));
    let weighed_by_default = listed(WEIGHED_BY_DEFAULT, |domain, counts, to| {
        if let Some(count) = counts.weighed_by_default.get() {
            to.series(&[("domain", domain)], Value::Count(count.load(Relaxed)));
        }
    });
    // Of the domains that have or had holds.
    let holds = listed(HOLDS, |domain, counts, to| {
        for (result, count) in HoldResult::NAMES.iter().zip(counts.holds.get().iter().flat_map(|holds| &holds.results))
        {
            to.series(&[("domain", domain), ("result", result)], Value::Count(count.load(Relaxed)));
        }
    });
    let hits = listed(HOLD_HITS, |domain, counts, to| {
        for (kind, hits) in HoldHits::NAMES.iter().zip(counts.holds.get().iter().flat_map(|holds| &holds.hits)) {
            to.series(&[("domain", domain), ("kind", kind)], Value::Count(hits.load(Relaxed)));
        }
    });
    [requests, Box::new(of_unknown), unmatched, Box::new(unmatched_of_unknown), weighed_by_default, holds, hits]
}
