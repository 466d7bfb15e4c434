//! Metrics in Prometheus' text format.
//!
//! The request path adds to plain atomics: what it adds to was looked up when the policies were loaded. Names, labels
//! and floats come into it only when somebody reads /metrics. Labels come from policies, never from callers.
//! Not here: when something is worth counting, which engine, store and limiter tell their observer.

mod redis;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

pub use self::redis::RedisMetrics;
use super::trouble::Trouble;
use crate::engine::observer::{Charged, DecisionResult, Observer, Tally};
use crate::engine::weight::TOO_HEAVY;
use crate::engine::{Charge, Hits, Mode, OnError, Outcome, PolicySet, Role, Take};

/// The upper bounds of the latency histograms, in microseconds. The last bucket has none.
pub const BUCKETS_US: [u64; 15] =
    [50, 100, 200, 400, 800, 1_500, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000, 250_000, 1_000_000, 5_000_000];

/// What stands in the labels `rule` and `limit` for limits that came with a request.
const OVERRIDE: &str = "(request)";

/// How decisions end, in the order in which they are counted.
const RESULTS: [(DecisionResult, &str); 6] = [
    (DecisionResult::Ok, "ok"),
    (DecisionResult::OverLimit, "over_limit"),
    (DecisionResult::Invalid, "invalid"),
    (DecisionResult::UnknownDomain, "unknown_domain"),
    (DecisionResult::NoPolicies, "no_policies"),
    (DecisionResult::StoreFailed, "store_failed"),
];

/// Everything that is counted. One for the process, shared by all runtimes.
pub struct Metrics {
    registry: Registry,
    rules: Arc<Rules>,
    requests: Arc<Latencies>,
    stores: Arc<Latencies>,
    store_errors: IntCounterVec,
    fallbacks: [IntCounter; OnError::ALL.len()],
    undone: [IntCounter; 2],
    trouble: Trouble,
    evictions: IntCounter,
    evicted_hits: IntCounter,
    loads: IntCounter,
    load_errors: IntCounter,
    last_load: IntGauge,
    near_percent: u32,
}

impl Metrics {
    /// Nothing counted yet. Hits are near their limit above `near_percent` of it.
    ///
    /// # Errors
    /// Two metrics have one name, which only a mistake in this file can cause.
    pub fn new(near_percent: u32) -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let evictions = counter(
            "weir_evictions_total",
            "States that still mattered and were dropped because the memory store was full.",
        )?;
        let evicted_hits = counter(
            "weir_evicted_hits_total",
            "Hits in the states that the memory store dropped: so many more may be admitted.",
        )?;
        let loads = counter("weir_config_loads_total", "Policy directories that were loaded and put in force.")?;
        let load_errors = counter(
            "weir_config_load_errors_total",
            "Policy directories that were refused, the last good policies kept.",
        )?;
        let last_load = IntGauge::new(
            "weir_config_last_load_success_timestamp",
            "When policies were last put in force, in seconds since the epoch.",
        )?;
        registry.register(Box::new(last_load.clone()))?;
        let store_errors = IntCounterVec::new(
            Opts::new("weir_store_errors_total", "Calls to the store that gave no answer, by reason."),
            &["kind"],
        )?;
        registry.register(Box::new(store_errors.clone()))?;
        // The one failure that every store has.
        store_errors.with_label_values(&[TOO_HEAVY]);
        let fallbacks = IntCounterVec::new(
            Opts::new("weir_on_error_total", "Descriptors whose store gave no answer, by what the policies then did."),
            &["action"],
        )?;
        registry.register(Box::new(fallbacks.clone()))?;
        let undone = IntCounterVec::new(
            Opts::new(
                "weir_undone_total",
                "Requests over several stores or slots that took charges back, by whether that was confirmed in time.",
            ),
            &["result"],
        )?;
        registry.register(Box::new(undone.clone()))?;

        let rules = Arc::new(Rules::new()?);
        registry.register(Box::new(Collected(rules.clone())))?;
        let requests = Arc::new(Latencies::new(
            "weir_decision_duration_seconds",
            "Time from a decoded request to its answer.",
            Some("weir_requests_total"),
        )?);
        registry.register(Box::new(Collected(requests.clone())))?;
        let stores = Arc::new(Latencies::new(
            "weir_store_duration_seconds",
            "Time that a store outside this process took for a decision.",
            None,
        )?);
        registry.register(Box::new(Collected(stores.clone())))?;
        Ok(Self {
            registry,
            rules,
            requests,
            stores,
            store_errors,
            fallbacks: OnError::NAMES.map(|action| fallbacks.with_label_values(&[action])),
            undone: ["unconfirmed", "confirmed"].map(|result| undone.with_label_values(&[result])),
            trouble: Trouble::default(),
            evictions,
            evicted_hits,
            loads,
            load_errors,
            last_load,
            near_percent,
        })
    }

    /// Adds a number that is read when /metrics is.
    ///
    /// # Errors
    /// The name is taken, or is none.
    pub fn gauge(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<(), prometheus::Error> {
        self.read(&labelled(name, help, labels), MetricType::GAUGE, Box::new(read))
    }

    /// Adds a number that only grows and is read when /metrics is.
    ///
    /// # Errors
    /// The name is taken, or is none.
    pub fn counter(
        &self,
        name: &str,
        help: &str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<(), prometheus::Error> {
        self.labelled_counter(name, help, &[], read)
    }

    /// The same with labels.
    ///
    /// # Errors
    /// Name and labels are taken, or are none.
    pub fn labelled_counter(
        &self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<(), prometheus::Error> {
        self.read(&labelled(name, help, labels), MetricType::COUNTER, Box::new(read))
    }

    fn read(
        &self,
        opts: &Opts,
        kind: MetricType,
        read: Box<dyn Fn() -> u64 + Send + Sync>,
    ) -> Result<(), prometheus::Error> {
        let desc = prometheus::core::Describer::describe(opts)?;
        self.registry.register(Box::new(ReadNumber { desc, kind, read }))
    }

    /// An observer for one runtime, which shares what it writes most often with no other.
    #[must_use]
    pub fn observer(self: &Arc<Self>) -> Arc<dyn Observer> {
        Arc::new(PerRuntime {
            metrics: self.clone(),
            requests: self.requests.recorder(),
            stores: self.stores.recorder(),
        })
    }

    /// Policies were put in force.
    pub fn policies_loaded(&self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.loads.inc();
        self.last_load.set(i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    }

    /// Policies were refused.
    pub fn policies_refused(&self) {
        self.load_errors.inc();
    }

    /// All of it, in the text format.
    ///
    /// # Errors
    /// A metric is malformed.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// What one runtime tells.
struct PerRuntime {
    metrics: Arc<Metrics>,
    requests: Arc<Recorder>,
    stores: Arc<Recorder>,
}

impl Observer for PerRuntime {
    fn loaded(&self, policies: &PolicySet) -> Arc<dyn Tally> {
        let metrics = &self.metrics;
        Arc::new(metrics.rules.load(policies, metrics.near_percent))
    }

    fn decided(&self, result: DecisionResult, took: Duration) {
        self.requests.record(result as usize, took);
    }

    fn store_called(&self, error: Option<&'static str>, took: Option<Duration>) {
        if let Some(took) = took {
            self.stores.record(0, took);
        }
        match error {
            Some(kind) => {
                self.metrics.store_errors.with_label_values(&[kind]).inc();
                if kind == TOO_HEAVY {
                    tracing::warn!(kind, "a request is too heavy to be decided: it goes by on_error (see weir check)");
                }
            }
            None => self.metrics.trouble.answered(Instant::now),
        }
    }

    fn fell_back(&self, action: OnError, kind: &'static str) {
        self.metrics.fallbacks[action as usize].inc();
        // No store was asked, so none is in trouble.
        if kind != TOO_HEAVY {
            self.metrics.trouble.fell_back(action, kind, Instant::now());
        }
    }

    fn undone(&self, confirmed: bool) {
        self.metrics.undone[usize::from(confirmed)].inc();
    }

    fn evicted(&self, hits_lost: Hits) {
        self.metrics.evictions.inc();
        self.metrics.evicted_hits.inc_by(u64::from(hits_lost));
    }
}

/// What has happened to one limit of one rule. On a line of its own, so that busy rules do not slow each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts {
    hits: AtomicU64,
    over: AtomicU64,
    near: AtomicU64,
    within: AtomicU64,
    shadow: AtomicU64,
}

/// The names of [`Counts`]' fields, and what they count.
const RULE_METRICS: [(&str, &str); 5] = [
    ("weir_hits_total", "Hits asked of a limit."),
    ("weir_over_limit_hits_total", "Hits above a limit."),
    (
        "weir_near_limit_hits_total",
        "Hits within a limit that used it nearly up (setting near_limit_percent), or those below it of a charge that crossed it.",
    ),
    ("weir_within_limit_hits_total", "Hits that a limit let pass."),
    ("weir_shadow_hits_total", "Hits that a limit in shadow mode would have denied."),
];

impl Counts {
    fn values(&self) -> [u64; 5] {
        [&self.hits, &self.over, &self.near, &self.within, &self.shadow].map(|count| count.load(Relaxed))
    }

    fn add(&self, part: &Part, shadow: bool) {
        self.hits.fetch_add(part.hits, Relaxed);
        for (count, hits) in [(&self.over, part.over), (&self.near, part.near), (&self.within, part.within)] {
            if hits > 0 {
                count.fetch_add(hits, Relaxed);
            }
        }
        if shadow {
            self.shadow.fetch_add(part.hits, Relaxed);
        }
    }
}

/// How the hits of one charge lie about its limit.
#[derive(Debug, Default, PartialEq, Eq)]
struct Part {
    hits: u64,
    over: u64,
    near: u64,
    within: u64,
}

/// Splits the hits of a charge at the limit and at the near threshold, as envoyproxy/ratelimit counts them: of a
/// charge that crosses the limit only the part above is over, and the part between threshold and limit is near.
/// Where an over limit takes nothing, all the hits are over.
fn split(charge: &Charge<'_>, outcome: &Outcome, mode: Mode, near_percent: u32) -> Part {
    let (hits, counted_when_over) = match charge.take {
        Take::Take(hits) => {
            let counts = mode == Mode::Independent && crate::engine::algorithm::counts_denied(charge.limit);
            (u64::from(hits), counts)
        }
        Take::Force(hits) => (u64::from(hits), true),
        Take::Look | Take::Give(_) => return Part::default(),
    };
    let limit = u64::from(charge.limit.capacity());
    // Rounded down, as the reference does.
    let threshold = limit * u64::from(near_percent) / 100;
    let before = limit.saturating_sub(u64::from(outcome.remaining_before));
    let after = before + hits;
    let mut part = Part { hits, ..Part::default() };
    if !outcome.verdict.is_over() {
        // A report can be within and still end above the limit. [dc-9]
        part.over = after.saturating_sub(limit);
        part.within = hits - part.over;
        part.near = after.min(limit).saturating_sub(threshold.max(before));
    } else if counted_when_over && before < limit {
        part.over = after - limit;
        part.near = limit - threshold.max(before);
    } else {
        part.over = hits;
    }
    part
}

/// Domain, rule and limit.
type Labels = (Box<str>, Box<str>, Box<str>);

/// The counts of all limits of the policies in force.
struct Rules {
    counts: Mutex<BTreeMap<Labels, Arc<Counts>>>,
    descs: Vec<Desc>,
}

impl Rules {
    fn new() -> Result<Self, prometheus::Error> {
        let labels = || ["domain", "rule", "limit"].map(str::to_owned).to_vec();
        let mut descs = Vec::new();
        for (name, help) in RULE_METRICS {
            descs.push(Desc::new(name.to_owned(), help.to_owned(), labels(), Default::default())?);
        }
        Ok(Self { counts: Mutex::default(), descs })
    }

    /// Looks up the counts of all these rules, and forgets those of rules that are gone.
    fn load(&self, policies: &PolicySet, near_percent: u32) -> RuleTally {
        let mut before = self.counts.lock();
        let mut counts = BTreeMap::new();
        let mut keep = |labels: Labels| -> Arc<Counts> {
            let known = before.get(&labels).cloned().unwrap_or_default();
            counts.entry(labels).or_insert(known).clone()
        };
        let mut rules = Vec::new();
        for rule in policies.rules() {
            let of_rule = rule.limits.iter().map(|limit| {
                let name = limit.name.as_deref().unwrap_or(limit.id());
                keep((rule.domain.clone(), rule.path.clone(), name.into()))
            });
            rules.push(of_rule.collect());
        }
        let mut overrides = BTreeMap::new();
        for domain in policies.domains() {
            let labels = (domain.name.clone(), OVERRIDE.into(), OVERRIDE.into());
            overrides.insert(domain.name.clone(), keep(labels));
        }
        *before = counts;
        RuleTally { rules, overrides, near_percent }
    }
}

/// The counts of one load, by the position of rule and limit.
struct RuleTally {
    rules: Vec<Box<[Arc<Counts>]>>,
    overrides: BTreeMap<Box<str>, Arc<Counts>>,
    near_percent: u32,
}

impl Tally for RuleTally {
    fn charged(&self, limit: Charged<'_>, mode: Mode, charge: &Charge<'_>, outcome: &Outcome) {
        let counts = match limit {
            Charged::Rule(rule, limit) => self.rules.get(rule.id as usize).and_then(|limits| limits.get(limit)),
            Charged::Override { domain } => self.overrides.get(domain),
        };
        let Some(counts) = counts else {
            return;
        };
        let part = split(charge, outcome, mode, self.near_percent);
        if part.hits > 0 {
            let shadow = charge.role == Role::Shadow && outcome.verdict.is_over();
            counts.add(&part, shadow);
        }
    }
}

impl Source for Rules {
    fn descs(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn families(&self) -> Vec<MetricFamily> {
        let counts = self.counts.lock();
        let mut metrics: [Vec<Metric>; RULE_METRICS.len()] = Default::default();
        for ((domain, rule, limit), counts) in counts.iter() {
            let values = counts.values();
            if **rule == *OVERRIDE && values[0] == 0 {
                // Most domains never see a limit in a request.
                continue;
            }
            let labels = [("domain", &**domain), ("limit", &**limit), ("rule", &**rule)];
            for (metrics, value) in metrics.iter_mut().zip(values) {
                metrics.push(counter(&labels, value));
            }
        }
        let named = RULE_METRICS.iter().zip(metrics);
        named.map(|((name, help), metrics)| family(name, help, MetricType::COUNTER, metrics)).collect()
    }
}

/// Latencies of all runtimes, with a count for each way to end where there are several.
struct Latencies {
    descs: Vec<Desc>,
    recorders: Mutex<Vec<Arc<Recorder>>>,
}

/// What one runtime has measured.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Recorder {
    buckets: [AtomicU64; BUCKETS_US.len() + 1],
    sum_ns: AtomicU64,
    results: [AtomicU64; RESULTS.len()],
}

impl Recorder {
    fn record(&self, result: usize, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BUCKETS_US.partition_point(|bound| bound * 1_000 < ns);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
        self.results[result].fetch_add(1, Relaxed);
    }
}

impl Latencies {
    fn new(name: &str, help: &str, results: Option<&str>) -> Result<Self, prometheus::Error> {
        let desc = |name: &str, help: &str, labels: Vec<String>| {
            Desc::new(name.to_owned(), help.to_owned(), labels, Default::default())
        };
        let mut descs = vec![desc(name, help, Vec::new())?];
        if let Some(results) = results {
            let help = "Requests, by how their decision ended.";
            descs.push(desc(results, help, vec!["result".to_owned()])?);
        }
        Ok(Self { descs, recorders: Mutex::default() })
    }

    fn recorder(&self) -> Arc<Recorder> {
        let recorder = Arc::new(Recorder::default());
        self.recorders.lock().push(recorder.clone());
        recorder
    }
}

impl Source for Latencies {
    fn descs(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn families(&self) -> Vec<MetricFamily> {
        let recorders = self.recorders.lock();
        let sum = |of: &dyn Fn(&Recorder) -> &AtomicU64| -> u64 {
            recorders.iter().map(|recorder| of(recorder).load(Relaxed)).sum()
        };
        let mut histogram = Histogram::default();
        let mut buckets = Vec::new();
        let mut count = 0;
        for (i, bound_us) in BUCKETS_US.iter().enumerate() {
            count += sum(&|recorder| &recorder.buckets[i]);
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(Duration::from_micros(*bound_us).as_secs_f64());
            bucket.set_cumulative_count(count);
            buckets.push(bucket);
        }
        count += sum(&|recorder| &recorder.buckets[BUCKETS_US.len()]);
        histogram.set_bucket(buckets);
        histogram.set_sample_count(count);
        histogram.set_sample_sum(Duration::from_nanos(sum(&|recorder| &recorder.sum_ns)).as_secs_f64());
        let mut metric = Metric::default();
        metric.set_histogram(histogram);
        let latency = &self.descs[0];
        let mut families = vec![family(&latency.fq_name, &latency.help, MetricType::HISTOGRAM, vec![metric])];
        if let Some(results) = self.descs.get(1) {
            let metrics = RESULTS.iter().map(|&(result, label)| {
                let count = sum(&|recorder| &recorder.results[result as usize]);
                counter(&[("result", label)], count)
            });
            let metrics = metrics.collect();
            families.push(family(&results.fq_name, &results.help, MetricType::COUNTER, metrics));
        }
        families
    }
}

/// A number that somebody else keeps.
struct ReadNumber {
    desc: Desc,
    kind: MetricType,
    read: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl Collector for ReadNumber {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let value = (self.read)() as f64;
        let mut metric = Metric::from_label(self.desc.const_label_pairs.clone());
        if self.kind == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        vec![family(&self.desc.fq_name, &self.desc.help, self.kind, vec![metric])]
    }
}

/// Something shared that makes metric families when asked.
trait Source: Send + Sync {
    fn descs(&self) -> Vec<&Desc>;
    fn families(&self) -> Vec<MetricFamily>;
}

/// A shared source, as the registry takes it.
struct Collected<S>(Arc<S>);

impl<S: Source> Collector for Collected<S> {
    fn desc(&self) -> Vec<&Desc> {
        self.0.descs()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.families()
    }
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// Labels in alphabetical order, as the text format's readers expect them.
fn labelled(name: &str, help: &str, labels: &[(&str, &str)]) -> Opts {
    let opts = Opts::new(name, help);
    labels.iter().fold(opts, |opts, (name, value)| opts.const_label(*name, *value))
}

fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let pairs = labels.iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    });
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    let mut metric = Metric::from_label(pairs.collect());
    metric.set_counter(counter);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::decision;
    use crate::engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use crate::engine::{Algorithm, Limit, State, Unit, algorithm};

    const NOW: u64 = 2_000_000_000_000_000;

    /// Charges one key with one take after the other, and adds up what is counted.
    fn counted(limit: &Limit, mode: Mode, near_percent: u32, takes: &[Take]) -> Part {
        let mut state: Option<State> = None;
        let mut sum = Part::default();
        for &take in takes {
            let charge = Charge { key: "k", limit, take, group: 0, role: Role::Enforced, share: 0, bounds: None };
            let charges = [charge];
            let decided = decision::decide(&charges, &[0], |_| state.as_ref(), mode, NOW);
            let (decision, effects) = decided.expect("no calendar");
            state = algorithm::apply(limit, state.take(), effects[0], None, NOW).into_state();
            let part = split(&charges[0], &decision.outcomes[0], mode, near_percent);
            sum.hits += part.hits;
            sum.over += part.over;
            sum.near += part.near;
            sum.within += part.within;
        }
        sum
    }

    fn per_hour(requests: u32) -> Limit {
        Limit::per_unit(requests, Unit::Hour)
    }

    /// Counts that envoyproxy/ratelimit has been recorded to make.
    #[test]
    fn hits_are_split_as_the_reference_splits_them() {
        let one_by_one = [Take::Take(1); 13];
        let plain = counted(&per_hour(10), Mode::Independent, 80, &one_by_one);
        assert_eq!(plain, Part { hits: 13, over: 3, near: 2, within: 10 });
        let crossing = counted(&per_hour(10), Mode::Independent, 80, &[Take::Take(9), Take::Take(4)]);
        assert_eq!(crossing, Part { hits: 13, over: 3, near: 2, within: 9 });
        let all_at_once = counted(&per_hour(10), Mode::Independent, 80, &[Take::Take(15)]);
        assert_eq!(all_at_once, Part { hits: 15, over: 5, near: 2, within: 0 });
        let half = counted(&per_hour(7), Mode::Independent, 50, &[Take::Take(5), Take::Take(3)]);
        assert_eq!(half, Part { hits: 8, over: 1, near: 4, within: 5 });
        let to_the_brim = counted(&per_hour(7), Mode::Independent, 50, &[Take::Take(7), Take::Look]);
        assert_eq!(to_the_brim, Part { hits: 7, over: 0, near: 4, within: 7 });
    }

    #[test]
    fn where_a_denied_take_takes_nothing_all_its_hits_are_over() {
        let takes = [Take::Take(9), Take::Take(4), Take::Take(1)];
        let atomic = counted(&per_hour(10), Mode::Atomic, 80, &takes);
        assert_eq!(atomic, Part { hits: 14, over: 4, near: 2, within: 10 });
        let gcra = Limit::new(10, Unit::Day.window(), Algorithm::Gcra { burst: 10 }).unwrap();
        assert_eq!(counted(&gcra, Mode::Independent, 80, &takes), atomic);
    }

    #[test]
    fn forced_hits_are_split_and_refunds_are_not_counted() {
        let takes = [Take::Force(9), Take::Force(4), Take::Force(2), Take::Give(5)];
        for mode in Mode::ALL {
            let forced = counted(&per_hour(10), mode, 80, &takes);
            assert_eq!(forced, Part { hits: 15, over: 5, near: 2, within: 10 });
        }
        // More than the limit in one report: what fits is within, and all that is left is near.
        let at_once = counted(&per_hour(10), Mode::Atomic, 80, &[Take::Force(25)]);
        assert_eq!(at_once, Part { hits: 25, over: 15, near: 2, within: 10 });
        let gcra = Limit::new(10, Unit::Day.window(), Algorithm::Gcra { burst: 5 }).unwrap();
        let paced = counted(&gcra, Mode::Atomic, 80, &[Take::Force(3), Take::Force(3), Take::Force(1)]);
        assert_eq!(paced, Part { hits: 7, over: 2, near: 1, within: 5 });
    }

    fn policies(keys: &[&str]) -> PolicySet {
        let descriptors = keys.iter().map(|key| NodeSpec {
            key: (*key).to_owned(),
            rule: Some(RuleSpec { role: Role::Shadow, ..RuleSpec::of(RuleKind::Limits(vec![per_hour(10)])) }),
            ..NodeSpec::default()
        });
        let domain = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors: descriptors.collect() };
        PolicySet::compile(vec![domain]).unwrap()
    }

    fn charge_first_rule(policies: &PolicySet, tally: &dyn Tally, hits: Hits) {
        let rule = &policies.rules()[0];
        let limit = &rule.limits[0];
        let take = Take::Take(hits);
        let charges = [Charge { key: "k", limit, take, group: 0, role: rule.role, share: 0, bounds: None }];
        let (decision, _) = decision::decide(&charges, &[0], |_| None, Mode::Atomic, NOW).expect("no calendar");
        tally.charged(Charged::Rule(rule, 0), Mode::Atomic, &charges[0], &decision.outcomes[0]);
    }

    fn lines(metrics: &Metrics, start: &str) -> Vec<String> {
        let text = metrics.text().unwrap();
        text.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }

    #[test]
    fn a_reload_keeps_the_counts_of_rules_that_stay_and_drops_the_others() {
        let metrics = Arc::new(Metrics::new(80).unwrap());
        let observer = metrics.observer();
        let before = policies(&["user", "tenant"]);
        let old = observer.loaded(&before);
        charge_first_rule(&before, &*old, 3);
        let hits = "weir_hits_total{domain=\"shop\",limit=\"f3600s\",rule=";
        assert_eq!(
            lines(&metrics, "weir_hits_total"),
            [format!("{hits}\"tenant\"}} 0"), format!("{hits}\"user\"}} 3")]
        );
        let after = policies(&["user"]);
        let new = observer.loaded(&after);
        charge_first_rule(&after, &*new, 11);
        // A request that began under the old policies.
        charge_first_rule(&before, &*old, 1);
        assert_eq!(lines(&metrics, "weir_hits_total"), [format!("{hits}\"user\"}} 15")]);
        let shadow = "weir_shadow_hits_total{domain=\"shop\",limit=\"f3600s\",rule=\"user\"} 11";
        assert_eq!(lines(&metrics, "weir_shadow_hits_total"), [shadow]);
    }

    #[test]
    fn an_override_is_counted_by_its_domain() {
        let metrics = Arc::new(Metrics::new(80).unwrap());
        let policies = policies(&["user"]);
        let tally = metrics.observer().loaded(&policies);
        let limit = per_hour(5);
        let take = Take::Take(2);
        let charges =
            [Charge { key: "k", limit: &limit, take, group: 0, role: Role::Enforced, share: 0, bounds: None }];
        let (decision, _) = decision::decide(&charges, &[0], |_| None, Mode::Atomic, NOW).expect("no calendar");
        tally.charged(Charged::Override { domain: "shop" }, Mode::Atomic, &charges[0], &decision.outcomes[0]);
        let line = "weir_hits_total{domain=\"shop\",limit=\"(request)\",rule=\"(request)\"} 2";
        assert!(lines(&metrics, "weir_hits_total").contains(&line.to_owned()));
    }

    #[test]
    fn runtimes_add_up_and_buckets_hold_their_bound() {
        let metrics = Arc::new(Metrics::new(80).unwrap());
        let (one, other) = (metrics.observer(), metrics.observer());
        one.decided(DecisionResult::Ok, Duration::from_micros(50));
        other.decided(DecisionResult::Ok, Duration::from_nanos(50_001));
        other.decided(DecisionResult::OverLimit, Duration::from_secs(6));
        one.store_called(Some("deadline"), Some(Duration::from_millis(10)));
        let name = "weir_decision_duration_seconds";
        assert_eq!(
            lines(&metrics, &format!("{name}_bucket{{le=\"0.00005\"}}")),
            [format!("{name}_bucket{{le=\"0.00005\"}} 1")]
        );
        assert_eq!(
            lines(&metrics, &format!("{name}_bucket{{le=\"0.0001\"}}")),
            [format!("{name}_bucket{{le=\"0.0001\"}} 2")]
        );
        assert_eq!(lines(&metrics, &format!("{name}_bucket{{le=\"5\"}}")), [format!("{name}_bucket{{le=\"5\"}} 2")]);
        assert_eq!(lines(&metrics, &format!("{name}_count")), [format!("{name}_count 3")]);
        assert_eq!(lines(&metrics, &format!("{name}_sum")), [format!("{name}_sum 6.000100001")]);
        assert_eq!(
            lines(&metrics, "weir_requests_total"),
            [
                "weir_requests_total{result=\"invalid\"} 0",
                "weir_requests_total{result=\"no_policies\"} 0",
                "weir_requests_total{result=\"ok\"} 2",
                "weir_requests_total{result=\"over_limit\"} 1",
                "weir_requests_total{result=\"store_failed\"} 0",
                "weir_requests_total{result=\"unknown_domain\"} 0",
            ]
        );
        let errors = ["weir_store_errors_total{kind=\"deadline\"} 1", "weir_store_errors_total{kind=\"too_heavy\"} 0"];
        assert_eq!(lines(&metrics, "weir_store_errors_total"), errors);
    }

    #[test]
    fn each_result_is_counted_under_its_own_name() {
        for (i, (result, _)) in RESULTS.into_iter().enumerate() {
            assert_eq!(result as usize, i, "{result:?}");
        }
    }
}
