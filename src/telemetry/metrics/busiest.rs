//! The limits with most hits since the last read, and since then the results of requests and the requests of each caller.
//!
//! Each read compares the counters with those of the last read, so it costs nothing in between. All callers share one
//! read. Not here: which keys were denied (limited.rs).

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir_api::numbers::JsonAmount;
use weir_api::top::{Busiest, BusyCaller, BusyLimit, ByOnError, Requests};

use super::labels::Labels;
use super::latency::Distribution;
use super::rules::{Labelled, Rules};
use crate::counts::Values;

/// Callers get the last result until it is this old.
pub const LOOK_AGE: Duration = Duration::from_secs(1);
/// An older result is not used for a comparison, because the difference would not be a current rate.
const LOOK_AGE_MAX: Duration = Duration::from_secs(60);
/// The most limits of one result.
pub const BUSIEST_MAX: usize = 64;

/// The busiest `max` limits of the wanted domains in a read, which has at most [`BUSIEST_MAX`] limits by hits and as many by hits above the limit.
/// The callers only if all domains are wanted, because a caller's requests are of several.
pub fn busiest_of(read: &Busiest, max: usize, is_wanted: impl Fn(&str) -> bool, are_all_wanted: bool) -> Busiest {
    let wanted = read.limits.iter().filter(|limit| is_wanted(&limit.domain));
    let limits = most(wanted.collect(), max, |limit| limit.over_limit_hits);
    let callers = if are_all_wanted { read.callers.clone() } else { Vec::new() };
    Busiest { limits: limits.into_iter().cloned().collect(), callers, ..*read }
}

/// The last read.
#[derive(Default)]
pub(super) struct Looks(Mutex<Option<Look>>);

type Entry = (Arc<Labels>, Labelled);

/// Allowed and refused requests, by caller.
pub(super) type Callers = BTreeMap<String, [u64; 2]>;

/// What has happened since the start.
pub(super) struct Totals {
    pub(super) requests: [u64; 3],
    pub(super) by_on_error: [u64; 4],
    pub(super) times: Distribution,
    pub(super) callers: Callers,
}

struct Look {
    at: Instant,
    totals: Totals,
    /// The limits at that time, to detect that they were replaced since.
    entries: Weak<[Entry]>,
    /// Hits and hits above the limit, by position.
    counts: Vec<[u64; 2]>,
    found: Arc<Busiest>,
}

impl Looks {
    /// The events since the last read. It takes milliseconds for 10,000 limits. `totals` is called only for a new read.
    pub(super) fn look(&self, rules: &Rules, totals: impl FnOnce() -> Totals, now: Instant) -> Arc<Busiest> {
        let mut last = self.0.lock();
        if let Some(look) = last.as_ref().filter(|look| now.saturating_duration_since(look.at) < LOOK_AGE) {
            return look.found.clone();
        }
        let entries = rules.entries();
        let totals = totals();
        let count = |(_, labelled): &Entry| {
            let Values { hits, over, .. } = labelled.values();
            [hits, over]
        };
        let counts: Vec<[u64; 2]> = entries.iter().map(count).collect();
        let mut found = Busiest::default();
        let before = last.as_ref().filter(|look| now.saturating_duration_since(look.at) <= LOOK_AGE_MAX);
        if let Some(before) = before {
            found.interval_ms = u64::try_from(now.saturating_duration_since(before.at).as_millis()).unwrap_or(u64::MAX);
            totals.since(&before.totals, &mut found);
            if before.entries.upgrade().is_some_and(|known| Arc::ptr_eq(&known, &entries)) {
                found.limits = busiest(&entries, &before.counts, &counts);
            }
        }
        let found = Arc::new(found);
        *last = Some(Look { at: now, totals, entries: Arc::downgrade(&entries), counts, found: found.clone() });
        found
    }
}

impl Totals {
    fn since(&self, before: &Self, found: &mut Busiest) {
        let [ok, over_limit, store_failed] = [0, 1, 2].map(|at| self.requests[at].saturating_sub(before.requests[at]));
        found.requests = Requests { ok, over_limit, store_failed };
        let [error, allow, deny, local] =
            [0, 1, 2, 3].map(|at| self.by_on_error[at].saturating_sub(before.by_on_error[at]));
        found.on_error = ByOnError { error, allow, deny, local };
        let times = self.times.since(&before.times);
        let at_most = |percent: u64| {
            let rank = (times.count() * percent).div_ceil(100);
            times.bound_of(rank.max(1)).map(|ns| ns / 1_000)
        };
        (found.p50_us, found.p99_us) = (at_most(50), at_most(99));
        found.callers = callers_since(&self.callers, &before.callers);
    }
}

fn callers_since(now: &Callers, before: &Callers) -> Vec<BusyCaller> {
    let of_caller = |(caller, now): (&String, &[u64; 2])| {
        let before = before.get(caller).unwrap_or(&[0; 2]);
        let [allowed, refused] = [0, 1].map(|at| now[at].saturating_sub(before[at]));
        BusyCaller { caller: caller.clone(), requests: allowed + refused, refused }
    };
    now.iter().map(of_caller).collect()
}

fn busiest(entries: &[Entry], before: &[[u64; 2]], now: &[[u64; 2]]) -> Vec<BusyLimit> {
    let mut asked: Vec<(u64, u64, usize)> = Vec::new();
    for (at, (now, before)) in now.iter().zip(before).enumerate() {
        let (hits, over) = (now[0].wrapping_sub(before[0]), now[1].wrapping_sub(before[1]));
        if hits > 0 {
            asked.push((hits, over, at));
        }
    }
    asked.sort_unstable_by_key(|&(hits, over, at)| (Reverse((hits, over)), at));
    let limits = most(asked, BUSIEST_MAX, |&(_, over, _)| over).into_iter().map(|(hits, over, at)| {
        let Labels { domain, rule, limit } = &*entries[at].0;
        let [domain, rule, limit] = [&**domain, rule, limit].map(str::to_owned);
        let amount = entries[at].1.amount.as_deref().map(JsonAmount::from);
        BusyLimit { domain, rule, limit, hits, over_limit_hits: over, amount }
    });
    limits.collect()
}

/// The first `max` limits, and the `max` limits with most hits above the limit. Keeps the order of `by_hits`.
fn most<T>(by_hits: Vec<T>, max: usize, over: impl Fn(&T) -> u64) -> Vec<T> {
    let mut by_over: Vec<(Reverse<u64>, usize)> = by_hits
        .iter()
        .enumerate()
        .map(|(at, limit)| (Reverse(over(limit)), at))
        .filter(|(Reverse(over), _)| *over > 0)
        .collect();
    by_over.sort_unstable();
    let chosen: HashSet<usize> = by_over.into_iter().take(max).map(|(_, at)| at).collect();
    let kept = by_hits.into_iter().enumerate().filter(|(at, _)| *at < max || chosen.contains(at));
    kept.map(|(_, limit)| limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_shown_only_with_all_domains() {
        let of_caller = |caller: &str, requests, refused| BusyCaller { caller: caller.to_owned(), requests, refused };
        let counts = |counts: &[(&str, [u64; 2])]| counts.iter().map(|(name, of)| ((*name).to_owned(), *of)).collect();
        let now = counts(&[("a", [9, 3]), ("new", [2, 0])]);
        let callers = callers_since(&now, &counts(&[("a", [4, 1]), ("gone", [1, 1])]));
        assert_eq!(callers, [of_caller("a", 7, 2), of_caller("new", 2, 0)]);
        let found = Busiest { callers, ..Busiest::default() };
        assert_eq!(busiest_of(&found, 1, |_| true, true).callers, found.callers);
        assert_eq!(busiest_of(&found, 1, |_| true, false).callers, []);
    }

    #[test]
    fn limits_with_few_hits_and_many_denials_are_among_the_busiest() {
        let asked = vec![(90, 0), (80, 1), (70, 0), (60, 60), (50, 0), (40, 2), (30, 30)];
        let of = |max| most(asked.clone(), max, |&(_, over)| over);
        assert_eq!(of(2), [(90, 0), (80, 1), (60, 60), (30, 30)]);
        assert_eq!(of(1), [(90, 0), (60, 60)]);
        assert_eq!(of(7), asked);
        assert_eq!(most(Vec::<u64>::new(), 3, |over| *over), Vec::<u64>::new());
    }
}
