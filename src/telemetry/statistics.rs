//! The statistics of envoyproxy/ratelimit with its names: the source of mapped metrics, StatsD lines and `/stats`.
//!
//! Rules with fixed names share their counters with weir's own metrics, so they cost nothing on the request path. The
//! number of names with values of requests is bounded (setting `metrics.dynamic_series`). Not here: how they are shown
//! (metrics.rs, statsd.rs), and what a charge adds (counts.rs).

mod dynamic;
mod names;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use weir_engine::{Entry, Rule};

use self::dynamic::{Dynamic, Room};
use self::names::{Buffer, Naming};
use super::counts::{Counts, Number, SplitHits, Values};

/// The prefix of the names of limits and of unknown domains.
const RATE_LIMIT: &str = "ratelimit.service.rate_limit.";
/// Replaces the entries in the name of a limit of the request, if that name does not fit.
const REST: &str = "_other";
const DOMAIN_NOT_FOUND: &str = "domain_not_found";

/// The statistics of one limit: the last part of the name, and the number of hits. envoyproxy/ratelimit counts hits
/// within a limit even if another limit denied the request.
const LIMIT_STATISTICS: [(&str, Number); 6] = [
    ("near_limit", |values| values.near.wrapping_add(values.uncharged_near)),
    ("over_limit", |values| values.over),
    ("over_limit_with_local_cache", |values| values.over_cached),
    ("shadow_mode", |values| values.shadow_over),
    ("total_hits", |values| values.hits),
    ("within_limit", |values| values.within.wrapping_add(values.uncharged_within)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises.
    Counter,
    Gauge,
}

/// A number that is stored elsewhere, read with the statistics.
struct Read {
    name: String,
    kind: Kind,
    read: Box<dyn Fn() -> u64 + Send + Sync>,
}

pub struct Statistics {
    named: Mutex<Named>,
    dynamic: Dynamic<Counts>,
    unknown_domains: Dynamic<AtomicU64>,
    /// The space for the names in `dynamic` and `unknown_domains`.
    room: Room,
    /// Whether requests can determine names. False if nothing shows them.
    by_request: bool,
    /// How many names did not fit.
    refused: AtomicU64,
    reads: Mutex<Vec<Read>>,
}

/// The counters whose names come from policies.
#[derive(Debug, Default)]
struct Named {
    by_name: BTreeMap<Box<str>, Kept>,
    loads: u64,
    /// The most names that are kept after their rule was removed.
    gone_max: usize,
}

/// The counters of one name. A name keeps counting when its rule changes, or is removed and added again.
#[derive(Debug, Default)]
struct Kept {
    /// The counters in force.
    live: Vec<Arc<Counts>>,
    /// The counters of earlier policies, which requests in flight may still use.
    leaving: Vec<Arc<Counts>>,
    /// The sum of counters that are no longer used.
    before: Values,
    /// The last load that had such a rule.
    last_load: u64,
}

impl Kept {
    fn values(&self) -> Values {
        let mut values = self.before;
        self.live.iter().chain(&self.leaving).for_each(|counts| values.add(counts.values()));
        values
    }

    /// Adds unused counters to `before`, and drops them.
    fn fold(&mut self) {
        let before = &mut self.before;
        self.leaving.retain(|counts| {
            let is_used = Arc::strong_count(counts) > 1;
            if !is_used {
                before.add(counts.values());
            }
            is_used
        });
    }
}

impl Named {
    fn replace(&mut self, live: Vec<(String, Arc<Counts>)>) {
        self.loads += 1;
        for kept in self.by_name.values_mut() {
            kept.leaving.append(&mut kept.live);
        }
        for (name, counts) in live {
            let kept = self.by_name.entry(name.into()).or_default();
            kept.leaving.retain(|leaving| !Arc::ptr_eq(leaving, &counts));
            if !kept.live.iter().any(|live| Arc::ptr_eq(live, &counts)) {
                kept.live.push(counts);
            }
            kept.last_load = self.loads;
        }
        self.by_name.values_mut().for_each(Kept::fold);
        let gone = |kept: &Kept| kept.live.is_empty();
        let mut loads: Vec<u64> = self.by_name.values().filter(|kept| gone(kept)).map(|kept| kept.last_load).collect();
        if loads.len() > self.gone_max {
            loads.sort_unstable();
            // Removes the names that were unused first, and all names of the same load.
            let forgotten = loads[loads.len() - self.gone_max - 1];
            self.by_name.retain(|_, kept| !gone(kept) || kept.last_load > forgotten);
        }
    }
}

#[derive(Debug)]
pub(super) enum LimitName {
    /// By the policy alone.
    Fixed(String),
    ByRequest(RequestName),
}

#[derive(Debug)]
pub(super) struct RequestName {
    naming: Naming,
    /// The part of the name after the rule, if the rule has several limits.
    limit: Option<Box<str>>,
    /// The counters for requests whose name does not fit. Their name is that of the policy.
    pub(super) rest: Arc<Counts>,
    /// The name of `rest`. Both go to [`Statistics::replace`].
    pub(super) rest_name: String,
}

impl Statistics {
    /// Starts with no statistics. Requests can add `dynamic_max` names, or none if `by_request` is false.
    pub(super) fn new(dynamic_max: usize, by_request: bool) -> Self {
        Self {
            named: Mutex::new(Named { gone_max: dynamic_max, ..Named::default() }),
            dynamic: Dynamic::default(),
            unknown_domains: Dynamic::default(),
            room: Room::new(dynamic_max),
            by_request,
            refused: AtomicU64::new(0),
            reads: Mutex::default(),
        }
    }

    /// The name of a rule's `limit`-th limit: one level below the rule, if the rule has several limits or the limit is
    /// on trial.
    pub(super) fn name_of(&self, rule: &Rule, limit: usize) -> LimitName {
        let limit = rule.limits.get(limit).filter(|limit| limit.shadow || !rule.has_one_limit());
        let limit = limit.map(|limit| names::cleaned(limit.name.as_deref().unwrap_or(limit.id()).to_owned()));
        let mut name = names::of_rule(rule);
        if let Some(limit) = &limit {
            name.push('.');
            name.push_str(limit);
        }
        let naming = Naming::of(rule);
        if !self.by_request || !naming.is_by_request() {
            return LimitName::Fixed(name);
        }
        let limit = limit.map(Into::into);
        LimitName::ByRequest(RequestName { naming, limit, rest: Arc::default(), rest_name: name })
    }

    /// Replaces the counters in force, by name.
    pub(super) fn replace(&self, live: Vec<(String, Arc<Counts>)>) {
        self.named.lock().replace(live);
    }

    pub(super) fn count_by_request(&self, of: &RequestName, entries: &[Entry<'_>], split: &SplitHits) {
        let mut name = Buffer::new();
        of.naming.write(entries, &mut name);
        if let Some(limit) = &of.limit {
            name.push(b'.');
            name.extend_from_slice(limit.as_bytes());
        }
        self.count(&name, &of.rest, split);
    }

    pub(super) fn count_request_limit(&self, domain: &str, entries: &[Entry<'_>], rest: &Counts, split: &SplitHits) {
        if !self.by_request {
            return;
        }
        let mut name = Buffer::new();
        names::write_request_limit(domain, entries, &mut name);
        self.count(&name, rest, split);
    }

    fn count(&self, name: &[u8], rest: &Counts, split: &SplitHits) {
        if !self.dynamic.count(name, &self.room, |counts| counts.add(split)) {
            rest.add(split);
            self.refused.fetch_add(1, Relaxed);
        }
    }

    /// The name of the counters for limits of the request whose own name does not fit.
    pub(super) fn rest_of_request_limits(domain: &str) -> String {
        format!("{}.{REST}", names::cleaned(domain.to_owned()))
    }

    pub(super) fn unknown_domain(&self, domain: &str, descriptors: usize) {
        if !self.by_request {
            return;
        }
        let mut name = Buffer::new();
        names::write_request_limit(domain, &[], &mut name);
        let descriptors = descriptors as u64;
        let count = |count: &AtomicU64| {
            count.fetch_add(descriptors, Relaxed);
        };
        if !self.unknown_domains.count(&name, &self.room, count) {
            self.refused.fetch_add(descriptors, Relaxed);
        }
    }

    /// How many names come from requests.
    pub(super) fn dynamic_names(&self) -> usize {
        self.room.taken()
    }

    /// How many names of requests did not fit.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Adds a number that is stored elsewhere.
    pub fn add(&self, name: &str, kind: Kind, read: impl Fn() -> u64 + Send + Sync + 'static) {
        self.reads.lock().push(Read { name: name.to_owned(), kind, read: Box::new(read) });
    }

    /// Passes every number with its full name to `see`, once, in no particular order. Includes numbers that are 0.
    pub fn visit(&self, mut see: impl FnMut(&str, Kind, u64)) {
        let mut full = String::from(RATE_LIMIT);
        let mut see_limit = |name: &str, values: &Values| {
            full.truncate(RATE_LIMIT.len());
            full.push_str(name);
            full.push('.');
            let length = full.len();
            for (statistic, value) in LIMIT_STATISTICS {
                full.truncate(length);
                full.push_str(statistic);
                see(&full, Kind::Counter, value(values));
            }
        };
        let named = self.named.lock();
        // A request can have a name that a policy has too.
        let mut shared: HashMap<Box<str>, Values> = HashMap::new();
        self.dynamic.visit(Counts::values, |name, values| {
            if named.by_name.contains_key(name) {
                shared.insert(name.into(), values);
            } else {
                see_limit(name, &values);
            }
        });
        for (name, kept) in &named.by_name {
            let mut values = kept.values();
            if let Some(more) = shared.get(name) {
                values.add(*more);
            }
            see_limit(name, &values);
        }
        drop(named);
        let count = |count: &AtomicU64| count.load(Relaxed);
        self.unknown_domains.visit(count, |domain, count| {
            see(&format!("{RATE_LIMIT}{domain}.{DOMAIN_NOT_FOUND}"), Kind::Counter, count);
        });
        for Read { name, kind, read } in self.reads.lock().iter() {
            see(name, *kind, read());
        }
    }

    /// One line for each number, `name: value`, sorted by name: the content of envoyproxy/ratelimit's `/stats`.
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        self.visit(|name, _, value| lines.push(format!("{name}: {value}\n")));
        lines.sort_unstable();
        lines.concat()
    }
}

impl fmt::Debug for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statistics").field("dynamic_names", &self.dynamic_names()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use weir_engine::{Limit, PolicySet, Unit};

    use super::*;

    fn hits(count: u64) -> SplitHits {
        SplitHits { hits: count, ..SplitHits::default() }
    }

    fn total_hits(statistics: &Statistics) -> BTreeMap<String, u64> {
        let mut found = BTreeMap::new();
        statistics.visit(|name, kind, value| {
            if let Some(name) = name.strip_suffix(".total_hits") {
                assert_eq!(kind, Kind::Counter);
                let again = found.insert(name.trim_start_matches(RATE_LIMIT).to_owned(), value);
                assert_eq!(again, None, "{name} comes twice");
            }
        });
        found
    }

    fn load(statistics: &Statistics, live: &[(&str, &Arc<Counts>)]) {
        statistics.replace(live.iter().map(|(name, counts)| ((*name).to_owned(), (*counts).clone())).collect());
    }

    /// [tr-3]
    #[test]
    fn a_limit_on_trial_has_a_level_of_its_own_and_leaves_the_name_of_the_other() {
        let statistics = Statistics::new(10, true);
        let names = |limits: &[(&str, bool)]| -> Vec<String> {
            let limit = |&(name, shadow): &(&str, bool)| {
                let mut limit = Limit::per_unit(10, Unit::Hour);
                limit.name = Some(name.into()).filter(|_| !name.is_empty());
                limit.shadow = shadow;
                limit.keyed_by_name()
            };
            let limits = limits.iter().map(limit).collect();
            let rule = Some(RuleSpec::of(RuleKind::Limits(limits)));
            let descriptors = vec![NodeSpec { key: "user".to_owned(), rule, ..NodeSpec::default() }];
            let domain = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors };
            let policies = PolicySet::compile(vec![domain]).unwrap();
            let rule = &policies.rules()[0];
            let name = |limit| match statistics.name_of(rule, limit) {
                LimitName::Fixed(name) => name,
                LimitName::ByRequest(_) => panic!("no value of a request is in the name"),
            };
            (0..rule.limits.len()).map(name).collect()
        };
        assert_eq!(names(&[("", false), ("tight", true)]), ["shop.user", "shop.user.tight"]);
        assert_eq!(names(&[("tight", true)]), ["shop.user.tight"]);
        assert_eq!(names(&[("a", false), ("b", false), ("c", true)]), ["shop.user.a", "shop.user.b", "shop.user.c"]);
    }

    #[test]
    fn a_name_counts_on_when_its_rule_changes_goes_and_comes_back() {
        let statistics = Statistics::new(10, true);
        let (first, second, third) = (Arc::<Counts>::default(), Arc::<Counts>::default(), Arc::<Counts>::default());
        load(&statistics, &[("shop.user", &first)]);
        first.add(&hits(3));
        load(&statistics, &[("shop.user", &second)]);
        second.add(&hits(1));
        // A request that began under the first policies.
        first.add(&hits(1));
        assert_eq!(total_hits(&statistics)["shop.user"], 5);
        drop(first);
        load(&statistics, &[]);
        assert_eq!(total_hits(&statistics)["shop.user"], 5);
        load(&statistics, &[("shop.user", &third)]);
        third.add(&hits(1));
        assert_eq!(total_hits(&statistics)["shop.user"], 6);
        let named = statistics.named.lock();
        assert_eq!(named.by_name["shop.user"].leaving.len(), 1, "only counters in use are kept");
    }

    #[test]
    fn no_more_names_of_rules_that_are_gone_are_kept_than_there_may_be() {
        let statistics = Statistics::new(2, true);
        for load_number in 0..5 {
            let counts = Arc::<Counts>::default();
            counts.add(&hits(1));
            load(&statistics, &[(&format!("shop.user_{load_number}"), &counts)]);
        }
        let names: Vec<String> = total_hits(&statistics).into_keys().collect();
        assert_eq!(names, ["shop.user_2", "shop.user_3", "shop.user_4"]);
    }

    #[test]
    fn names_that_requests_give_are_bounded_and_add_up_with_those_of_policies() {
        let statistics = Statistics::new(2, true);
        let (own, rest) = (Arc::<Counts>::default(), Arc::<Counts>::default());
        load(&statistics, &[("shop.user_ann", &own), ("shop._other", &rest)]);
        own.add(&hits(1));
        for value in ["ann", "bob", "cy", "dan", "bob"] {
            let entries = [Entry { key: "user", value }];
            statistics.count_request_limit("shop", &entries, &rest, &hits(2));
        }
        let expected = [("shop._other", 4), ("shop.user_ann", 3), ("shop.user_bob", 4)];
        assert_eq!(total_hits(&statistics), expected.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!((statistics.dynamic_names(), statistics.refused()), (2, 2));
        statistics.unknown_domain("nowhere", 2);
        assert_eq!(statistics.refused(), 4);
    }

    #[test]
    fn requests_give_no_names_where_nobody_is_shown_them() {
        let statistics = Statistics::new(2, false);
        let rest = Counts::default();
        statistics.count_request_limit("shop", &[Entry { key: "a", value: "b" }], &rest, &hits(1));
        statistics.unknown_domain("nowhere", 1);
        assert_eq!((statistics.text(), statistics.dynamic_names(), statistics.refused()), (String::new(), 0, 0));
    }
}
