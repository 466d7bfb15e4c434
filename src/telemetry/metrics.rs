//! Metrics in Prometheus' text format.
//!
//! The request path adds to plain atomics: what it adds to was looked up when the policies were loaded. Names, labels
//! and floats come into it only when somebody reads /metrics. Labels of weir's own metrics come from policies, never from
//! callers. In metrics/: the counters of limits (rules.rs), times (latency.rs), Redis (redis.rs), and the metrics of
//! envoyproxy/ratelimit (mapped.rs).
//! Not here: when something is worth counting, which engine, store and limiter tell their observer.

mod families;
mod latency;
mod mapped;
mod redis;
mod rules;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, Metric, MetricFamily, MetricType};
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};
use tokio::time::MissedTickBehavior;

use self::families::{Collected, family};
pub(super) use self::latency::TimesSeen;
use self::latency::{Latencies, Recorder};
use self::mapped::MappedStatistics;
pub(super) use self::mapped::RESPONSE_TIME;
use self::rules::Rules;
use super::mapper::Mapper;
use super::statistics::{Kind, Statistics};
use super::trouble::{self, Outages, Trouble};
use crate::engine::arith::Fraction;
use crate::engine::observer::{DecisionResult, Observer, Tally};
use crate::engine::weight::TOO_HEAVY;
use crate::engine::{Hits, OnError, PolicySet};

pub use self::latency::{BUCKETS_US, Door};
pub use self::redis::RedisMetrics;

/// What is counted, and who is shown it.
#[derive(Debug)]
pub struct Options {
    /// The part of a limit above which hits are near it.
    pub near_limit: Fraction,
    /// How many names of statistics requests may give.
    pub dynamic_series: usize,
    /// Whether weir's own metrics are shown.
    pub weir_names: bool,
    /// What makes metrics of the statistics of envoyproxy/ratelimit; none where they are not shown.
    pub mapper: Option<Mapper>,
    /// Whether the statistics go to a StatsD server.
    pub statsd: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            near_limit: Fraction::percent(80),
            dynamic_series: 10_000,
            weir_names: true,
            mapper: None,
            statsd: false,
        }
    }
}

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
    near_limit: Fraction,
    statistics: Arc<Statistics>,
    global_shadows: Arc<AtomicU64>,
    mapped: Option<MappedStatistics>,
    weir_names: bool,
    statsd_dropped: IntCounter,
}

impl Metrics {
    /// Nothing counted yet.
    ///
    /// # Errors
    /// Two metrics have one name, which only a mistake in this file can cause.
    pub fn new(options: Options) -> Result<Self, prometheus::Error> {
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
        let statsd_dropped =
            counter("weir_statsd_dropped_lines_total", "Lines of statistics that did not reach the StatsD server.")?;
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

        let statistics = Arc::new(Statistics::new(options.dynamic_series, options.mapper.is_some() || options.statsd));
        let rules = Arc::new(Rules::new(statistics.clone())?);
        registry.register(Box::new(Collected(rules.clone())))?;
        let requests = Arc::new(Latencies::new(
            "weir_decision_duration_seconds",
            "Time from a decoded request to its answer.",
            Some("weir_requests_total"),
            &options.mapper.as_ref().map(mapped::response_time_bounds).unwrap_or_default(),
            options.statsd,
        )?);
        registry.register(Box::new(Collected(requests.clone())))?;
        let stores = Arc::new(Latencies::new(
            "weir_store_duration_seconds",
            "Time that a store outside this process took for a decision.",
            None,
            &[],
            false,
        )?);
        registry.register(Box::new(Collected(stores.clone())))?;
        let global_shadows = Arc::<AtomicU64>::default();
        add_service(&statistics, &requests, [&loads, &load_errors], &global_shadows);
        let mapped = options.mapper.map(|mapper| MappedStatistics::new(mapper, statistics.clone(), requests.clone()));
        let metrics = Self {
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
            near_limit: options.near_limit,
            statistics,
            global_shadows,
            mapped,
            weir_names: options.weir_names,
            statsd_dropped,
        };
        let statistics = metrics.statistics.clone();
        let help = "Names of statistics that requests gave.";
        metrics.gauge("weir_dynamic_series", help, &[], move || statistics.dynamic_names() as u64)?;
        let statistics = metrics.statistics.clone();
        let help = "Counts of statistics for which there was no room under the name that the request gave.";
        metrics.counter("weir_dynamic_series_refused_total", help, move || statistics.refused())?;
        Ok(metrics)
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

    /// An observer for one runtime that serves gRPC, which shares what it writes most often with no other.
    #[must_use]
    pub fn observer(self: &Arc<Self>) -> Arc<dyn Observer> {
        self.observer_of(Door::Grpc)
    }

    /// The same for a runtime whose requests come by this door.
    #[must_use]
    pub fn observer_of(self: &Arc<Self>, door: Door) -> Arc<dyn Observer> {
        Arc::new(PerRuntime {
            metrics: self.clone(),
            requests: self.requests.recorder(door),
            stores: self.stores.recorder(door),
        })
    }

    /// Logs the outages of stores that began or ended, for as long as it is polled.
    pub async fn log_outages(&self) {
        let mut outages = Outages::default();
        let mut ticks = tokio::time::interval(trouble::TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.trouble.tick(&mut outages, Instant::now());
        }
    }

    /// The statistics by the names of envoyproxy/ratelimit.
    #[must_use]
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Shows the times in microseconds of gRPC requests since the last look, the last ones of each runtime. Answers how
    /// many there were.
    pub(super) fn times_since(&self, seen: &mut TimesSeen, see: impl FnMut(u32)) -> u64 {
        self.requests.times_since(seen, see)
    }

    /// Lines that did not reach the StatsD server.
    pub(super) fn statsd_dropped(&self, lines: u64) {
        self.statsd_dropped.inc_by(lines);
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
        let mut families = if self.weir_names { self.registry.gather() } else { Vec::new() };
        if let Some(mapped) = &self.mapped {
            let others = mapped.families(Instant::now());
            // A mapping may give a name that a metric of weir's has: a family can be there once only.
            let (mut others, taken): (Vec<_>, Vec<_>) = others
                .into_iter()
                .partition(|other| families.iter().all(|family: &MetricFamily| family.name() != other.name()));
            for family in taken {
                tracing::debug!(name = family.name(), "a mapping gives the name of one of weir's metrics");
            }
            families.append(&mut others);
        }
        TextEncoder::new().encode_to_string(&families)
    }
}

/// Adds the statistics that are not about limits.
fn add_service(
    statistics: &Statistics,
    requests: &Arc<Latencies>,
    [loads, load_errors]: [&IntCounter; 2],
    global_shadows: &Arc<AtomicU64>,
) {
    let (loads, load_errors, global_shadows) = (loads.clone(), load_errors.clone(), global_shadows.clone());
    statistics.add("ratelimit.service.config_load_success", Kind::Counter, move || loads.get());
    statistics.add("ratelimit.service.config_load_error", Kind::Counter, move || load_errors.get());
    statistics.add("ratelimit.service.global_shadow_mode", Kind::Counter, move || global_shadows.load(Relaxed));
    let of = requests.clone();
    statistics.add("ratelimit.service.call.should_rate_limit.service_error", Kind::Counter, move || {
        // What cannot be read never reaches the service.
        let invalid = of.ended(DecisionResult::Invalid).saturating_sub(of.unreadable());
        invalid + of.ended(DecisionResult::NoPolicies)
    });
    let of = requests.clone();
    statistics.add("ratelimit.service.call.should_rate_limit.redis_error", Kind::Counter, move || {
        of.ended(DecisionResult::StoreFailed)
    });
    let of = requests.clone();
    let name = "ratelimit_server.ShouldRateLimit.total_requests";
    statistics.add(name, Kind::Counter, move || of.requests(Door::Grpc));
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
        Arc::new(metrics.rules.load(policies, metrics.near_limit))
    }

    fn unreadable(&self) {
        self.requests.unreadable();
    }

    fn shadowed(&self) {
        self.metrics.global_shadows.fetch_add(1, Relaxed);
    }

    fn unknown_domain(&self, domain: &str, descriptors: usize) {
        self.metrics.statistics.unknown_domain(domain, descriptors);
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
            None => self.metrics.trouble.answered(),
        }
    }

    fn fell_back(&self, action: OnError, kind: &'static str) {
        self.metrics.fallbacks[action as usize].inc();
        // No store was asked, so none is in trouble.
        if kind != TOO_HEAVY {
            self.metrics.trouble.fell_back(action, kind, Instant::now);
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

fn labelled(name: &str, help: &str, labels: &[(&str, &str)]) -> Opts {
    let opts = Opts::new(name, help);
    labels.iter().fold(opts, |opts, (name, value)| opts.const_label(*name, *value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::decision;
    use crate::engine::observer::{AnsweredBy, Charged, LimitOf};
    use crate::engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use crate::engine::{Charge, Entry, Limit, Mode, Role, Take, Unit};

    const NOW: u64 = 2_000_000_000_000_000;

    fn metrics() -> Arc<Metrics> {
        Arc::new(Metrics::new(Options::default()).unwrap())
    }

    fn per_hour(requests: u32) -> Limit {
        Limit::per_unit(requests, Unit::Hour)
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
        let limit = LimitOf::Rule(rule, 0);
        let (charge, outcome) = (&charges[0], &decision.outcomes[0]);
        let by = AnsweredBy::Store;
        tally.charged(&Charged { limit, entries: &[], mode: Mode::Atomic, charge, outcome, by });
    }

    fn lines(metrics: &Metrics, start: &str) -> Vec<String> {
        let text = metrics.text().unwrap();
        text.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }

    #[test]
    fn a_reload_keeps_the_counts_of_rules_that_stay_and_drops_the_others() {
        let metrics = metrics();
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
        let metrics = metrics();
        let policies = policies(&["user"]);
        let tally = metrics.observer().loaded(&policies);
        let limit = per_hour(5);
        let take = Take::Take(2);
        let charges =
            [Charge { key: "k", limit: &limit, take, group: 0, role: Role::Enforced, share: 0, bounds: None }];
        let (decision, _) = decision::decide(&charges, &[0], |_| None, Mode::Atomic, NOW).expect("no calendar");
        let limit = LimitOf::Override { domain: "shop" };
        let (charge, outcome) = (&charges[0], &decision.outcomes[0]);
        let entries = [Entry { key: "user", value: "ann" }];
        let by = AnsweredBy::Store;
        tally.charged(&Charged { limit, entries: &entries, mode: Mode::Atomic, charge, outcome, by });
        let line = "weir_hits_total{domain=\"shop\",limit=\"(request)\",rule=\"(request)\"} 2";
        assert!(lines(&metrics, "weir_hits_total").contains(&line.to_owned()));
    }

    #[test]
    fn runtimes_add_up_and_buckets_hold_their_bound() {
        let metrics = metrics();
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
    fn the_names_of_envoyproxy_ratelimit_stand_beside_those_of_weir_or_alone() {
        let text = |weir_names: bool| {
            let mapper = Some(Mapper::built_in(false));
            let metrics = Arc::new(Metrics::new(Options { mapper, weir_names, ..Options::default() }).unwrap());
            let policies = policies(&["user"]);
            let tally = metrics.observer().loaded(&policies);
            charge_first_rule(&policies, &*tally, 11);
            metrics.observer().decided(DecisionResult::OverLimit, Duration::ZERO);
            metrics.observer_of(Door::Http).decided(DecisionResult::Invalid, Duration::ZERO);
            metrics.policies_loaded();
            metrics.text().unwrap()
        };
        let alone = text(false);
        let lines: Vec<&str> =
            alone.lines().filter(|line| !line.starts_with('#') && !line.contains("response_time_seconds")).collect();
        assert_eq!(
            lines,
            [
                "ratelimit_service_config_load_success 1",
                "ratelimit_service_rate_limit_over_limit{domain=\"shop\",key1=\"user\"} 11",
                "ratelimit_service_rate_limit_shadow_mode{domain=\"shop\",key1=\"user\"} 11",
                "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"user\"} 11",
                "ratelimit_service_should_rate_limit_error{err_type=\"service_error\"} 1",
                "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 1",
            ]
        );
        let both = text(true);
        assert!(
            both.contains("weir_hits_total{") && both.contains("ratelimit_service_rate_limit_total_hits{"),
            "{both}"
        );
    }
}
