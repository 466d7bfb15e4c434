//! The statistics of envoyproxy/ratelimit with its names: the source of mapped metrics, StatsD lines and `/stats`.
//!
//! Rules with fixed names share their counters with weir's own metrics, so they cost nothing on the request path. The
//! number of names with values of requests is bounded (setting `metrics.dynamic_series`). Not here: how they are shown
//! (metrics.rs, statsd.rs), and what a charge adds (counts.rs).

mod dynamic;
mod names;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use weir_engine::{Entry, Rule};

use self::dynamic::{Dynamic, Room};
use self::names::{Buffer, Dots, Naming};
use super::counts::{self, Counts, SplitHits, Values};
use super::metrics::families::FamilyKind;
use super::metrics::registry::{Number, Registry};

/// The prefix of the names of limits and of unknown domains.
const RATE_LIMIT: &str = "ratelimit.service.rate_limit.";
/// Replaces the entries in the name of a limit of the request, if that name does not fit.
const REST: &str = "_other";
const DOMAIN_NOT_FOUND: &str = "domain_not_found";
/// How many names a reader reads in one step.
const BATCH: usize = 64;

/// The statistics of one limit: the last part of the name, and the number of hits. envoyproxy/ratelimit counts hits
/// within a limit even if another limit denied the request.
const LIMIT_STATISTICS: [(&str, counts::Number); 6] = [
    ("near_limit", |values| values.near.wrapping_add(values.uncharged_near)),
    ("over_limit", |values| values.over),
    ("over_limit_with_local_cache", |values| values.over_cached),
    ("shadow_mode", |values| values.shadow_over),
    ("total_hits", |values| values.hits),
    ("within_limit", |values| values.within.wrapping_add(values.uncharged_within)),
];

pub struct Statistics {
    named: Mutex<Named>,
    dynamic: Dynamic<Counts>,
    unknown_domains: Dynamic<AtomicU64>,
    /// The space for the names in `dynamic` and `unknown_domains`.
    room: Room,
    /// Whether requests can determine names. False if nothing shows them.
    by_request: bool,
    dots: Dots,
    /// How many names did not fit.
    refused: Number,
    /// The statistics without a limit or a domain.
    registry: Arc<Registry>,
}

/// The position of a reader. It has no copy of the statistics, so a slow reader keeps none in memory.
#[derive(Debug, Default)]
pub struct StatisticsCursor(Stage);

#[derive(Debug, Default)]
enum Stage {
    /// The numbers whose names are before those of limits.
    #[default]
    Before,
    /// The limits after this name.
    Limits(Option<Box<str>>),
    /// The numbers whose names are after those of limits.
    After,
    End,
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
    pub(super) fn new(registry: Arc<Registry>, dynamic_max: usize, by_request: bool, sanitize_dots: bool) -> Self {
        Self {
            dots: if sanitize_dots { Dots::Replaced } else { Dots::Kept },
            named: Mutex::new(Named { gone_max: dynamic_max, ..Named::default() }),
            dynamic: Dynamic::default(),
            unknown_domains: Dynamic::default(),
            room: Room::new(dynamic_max),
            by_request,
            refused: registry.number("weir_dynamic_series_refused_total", &[]),
            registry,
        }
    }

    /// The name of a rule's `limit`-th limit: one level below the rule, if the rule has several limits or the limit is
    /// on trial.
    pub(super) fn name_of(&self, rule: &Rule, limit: usize) -> LimitName {
        let limit = rule.limits.get(limit).filter(|limit| limit.shadow || !rule.has_one_limit());
        let limit = limit.map(|limit| names::cleaned(limit.name.as_deref().unwrap_or(limit.id()).to_owned()));
        let mut name = names::of_rule(rule, self.dots);
        if let Some(limit) = &limit {
            name.push('.');
            name.push_str(limit);
        }
        let naming = Naming::of(rule, self.dots);
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
        names::write_request_limit(domain, entries, self.dots, &mut name);
        self.count(&name, rest, split);
    }

    fn count(&self, name: &[u8], rest: &Counts, split: &SplitHits) {
        if !self.dynamic.count(name, &self.room, |counts| counts.add(split)) {
            rest.add(split);
            self.refused.add(1);
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
        names::write_request_limit(domain, &[], self.dots, &mut name);
        let descriptors = descriptors as u64;
        let count = |count: &AtomicU64| {
            count.fetch_add(descriptors, Relaxed);
        };
        if !self.unknown_domains.count(&name, &self.room, count) {
            self.refused.add(descriptors);
        }
    }

    /// How many names come from requests.
    pub(super) fn dynamic_names(&self) -> usize {
        self.room.taken()
    }

    /// Passes every number with its full name to `see`, once. Includes numbers that are 0.
    pub fn visit(&self, mut see: impl FnMut(&str, FamilyKind, u64)) {
        let mut cursor = StatisticsCursor::default();
        while self.advance(&mut cursor, &mut see) {}
    }

    /// Passes the next numbers to `see`, of at most 64 limits, and advances the cursor. Returns false at the end. Names are in
    /// order, apart from those of a limit that begin with the whole name of another. Nothing is locked between two steps.
    pub fn advance(&self, cursor: &mut StatisticsCursor, mut see: impl FnMut(&str, FamilyKind, u64)) -> bool {
        match &cursor.0 {
            Stage::Before => {
                self.registry.statistics(|name| name < RATE_LIMIT, see);
                cursor.0 = Stage::Limits(None);
            }
            Stage::Limits(last) => match self.read_limits(last.as_deref(), &mut see) {
                Some(last) => cursor.0 = Stage::Limits(Some(last)),
                None => cursor.0 = Stage::After,
            },
            Stage::After => {
                self.registry.statistics(|name| name >= RATE_LIMIT, see);
                cursor.0 = Stage::End;
            }
            Stage::End => return false,
        }
        true
    }

    /// Passes the numbers of the next limits and unknown domains to `see`. Returns the last name. None if there were none.
    fn read_limits(&self, last: Option<&str>, mut see: impl FnMut(&str, FamilyKind, u64)) -> Option<Box<str>> {
        let last = last.map_or(Bound::Unbounded, Bound::Excluded);
        // A name can be of a policy, of requests, and an unknown domain.
        let mut found: BTreeMap<Arc<str>, Option<Values>> = BTreeMap::new();
        for (name, kept) in self.named.lock().by_name.range::<str, _>((last, Bound::Unbounded)).take(BATCH) {
            found.insert((**name).into(), Some(kept.values()));
        }
        for name in [self.dynamic.names_after(last, BATCH), self.unknown_domains.names_after(last, BATCH)].concat() {
            found.entry(name).or_default();
        }
        let mut full = String::from(RATE_LIMIT);
        let mut end = None;
        for (name, named) in found.into_iter().take(BATCH) {
            full.truncate(RATE_LIMIT.len());
            full.push_str(&name);
            full.push('.');
            let length = full.len();
            let mut see = |statistic: &str, value| {
                full.truncate(length);
                full.push_str(statistic);
                see(&full, FamilyKind::Counter, value);
            };
            if let Some(count) = self.unknown_domains.read(&name, |count| count.load(Relaxed)) {
                see(DOMAIN_NOT_FOUND, count);
            }
            let by_request = self.dynamic.read(&name, Counts::values);
            if named.is_some() || by_request.is_some() {
                let mut values = named.unwrap_or_default();
                values.add(by_request.unwrap_or_default());
                LIMIT_STATISTICS.iter().for_each(|(statistic, value)| see(statistic, value(&values)));
            }
            end = Some((*name).into());
        }
        end
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

    fn statistics(dynamic_max: usize, by_request: bool) -> Statistics {
        Statistics::new(Arc::default(), dynamic_max, by_request, false)
    }

    fn hits(count: u64) -> SplitHits {
        SplitHits { hits: count, ..SplitHits::default() }
    }

    fn total_hits(statistics: &Statistics) -> BTreeMap<String, u64> {
        let mut found = BTreeMap::new();
        statistics.visit(|name, kind, value| {
            if let Some(name) = name.strip_suffix(".total_hits") {
                assert_eq!(kind, FamilyKind::Counter);
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
        let statistics = statistics(10, true);
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
        let statistics = statistics(10, true);
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
        let statistics = statistics(2, true);
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
        let statistics = statistics(2, true);
        let (own, rest) = (Arc::<Counts>::default(), Arc::<Counts>::default());
        load(&statistics, &[("shop.user_ann", &own), ("shop._other", &rest)]);
        own.add(&hits(1));
        for value in ["ann", "bob", "cy", "dan", "bob"] {
            let entries = [Entry { key: "user", value }];
            statistics.count_request_limit("shop", &entries, &rest, &hits(2));
        }
        let expected = [("shop._other", 4), ("shop.user_ann", 3), ("shop.user_bob", 4)];
        assert_eq!(total_hits(&statistics), expected.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!((statistics.dynamic_names(), statistics.refused.get()), (2, 2));
        statistics.unknown_domain("nowhere", 2);
        assert_eq!(statistics.refused.get(), 4);
    }

    #[test]
    fn requests_give_no_names_where_nobody_is_shown_them() {
        let statistics = statistics(2, false);
        let rest = Counts::default();
        statistics.count_request_limit("shop", &[Entry { key: "a", value: "b" }], &rest, &hits(1));
        statistics.unknown_domain("nowhere", 1);
        assert!(total_hits(&statistics).is_empty());
        assert_eq!((statistics.dynamic_names(), statistics.refused.get()), (0, 0));
    }

    /// [`Registry::show`]: `service_error` and `cx_local_close` are differences of two numbers.
    #[test]
    fn a_counter_that_is_read_in_several_steps_never_falls() {
        let statistics = statistics(10, true);
        let value = Arc::new(AtomicU64::new(0));
        let (counter_name, gauge_name) = ("ratelimit.service.global_shadow_mode", "ratelimit.redis_pool.cx_active");
        for name in [counter_name, gauge_name] {
            statistics.registry.show(name, &[], &value, |value| value.load(Relaxed));
        }
        for (now, counter) in [(3, 3), (2, 3), (4, 4), (0, 4)] {
            value.store(now, Relaxed);
            let mut shown = Vec::new();
            statistics.visit(|name, _, value| shown.push((name.to_owned(), value)));
            assert_eq!(shown, [(gauge_name.to_owned(), now), (counter_name.to_owned(), counter)]);
        }
    }

    #[test]
    fn statistics_are_read_in_order_and_in_small_steps() {
        let statistics = statistics(1_000, true);
        let counts: Vec<(String, Arc<Counts>)> =
            (0..300).map(|number| (format!("shop.user_{number:03}"), Arc::default())).collect();
        statistics.replace(counts.clone());
        for number in 0..500 {
            let value = format!("{number:03}");
            let entries = [Entry { key: "user", value: &value }];
            statistics.count_request_limit("shop", &entries, &Counts::default(), &hits(1));
        }
        for domain in ["nowhere", "shop.user_007"] {
            statistics.unknown_domain(domain, 2);
        }
        let (first, last) = ("ratelimit.localcache.hitCount", "ratelimit_server.ShouldRateLimit.total_requests");
        for name in [first, last] {
            statistics.registry.show(name, &[], &(), |()| 1);
        }
        counts[7].1.add(&hits(2));
        let (mut cursor, mut lines, mut longest) = (StatisticsCursor::default(), Vec::new(), 0);
        loop {
            let before = lines.len();
            if !statistics.advance(&mut cursor, |name, _, value| lines.push((name.to_owned(), value))) {
                break;
            }
            longest = longest.max(lines.len() - before);
        }
        assert!(longest <= BATCH * 7, "{longest} lines in one step");
        assert_eq!(lines.len(), 500 * 6 + 2 + 2);
        assert!(lines.is_sorted() && lines.windows(2).all(|two| two[0].0 != two[1].0), "{lines:?}");
        let value = |name: &str| lines.iter().find(|line| line.0 == name).map(|line| line.1);
        assert_eq!(value("ratelimit.service.rate_limit.shop.user_007.total_hits"), Some(3));
        assert_eq!(value("ratelimit.service.rate_limit.shop.user_007.domain_not_found"), Some(2));
        assert_eq!(value("ratelimit.service.rate_limit.shop.user_499.total_hits"), Some(1));
        assert_eq!((lines[0].0.as_str(), lines[3_003].0.as_str()), (first, last));
    }

    /// A slow reader, and policies that are replaced meanwhile.
    #[test]
    fn a_reader_goes_on_after_its_last_name_when_policies_change() {
        let statistics = statistics(0, true);
        let of = |numbers: std::ops::Range<usize>| {
            numbers.map(|number| (format!("shop.user_{number:03}"), Arc::default())).collect::<Vec<_>>()
        };
        statistics.replace(of(0..100));
        let (mut cursor, mut names) = (StatisticsCursor::default(), Vec::new());
        let mut see = |name: &str, _, _| names.push(name.to_owned());
        assert!(statistics.advance(&mut cursor, &mut see) && statistics.advance(&mut cursor, &mut see));
        statistics.replace(of(50..80));
        while statistics.advance(&mut cursor, &mut see) {}
        assert_eq!(names.len(), 80 * 6, "0 to 63 before, and then 64 to 79");
        assert!(names.is_sorted());
    }
}
