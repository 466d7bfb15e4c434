//! The metrics: counting and reading.
//!
//! The request path adds to plain atomics, which are looked up when policies load. Names, labels and floats are used
//! only when metrics are read, in small steps ([`Cursor`]). Labels of weir's own metrics come from policies, never from
//! callers. In metrics/: every metric with its name (table.rs), numbers without a limit or a domain (registry.rs),
//! requests by domain (domains.rs), the counters of limits (rules.rs), times (latency.rs), the
//! process (process.rs), the metrics of envoyproxy/ratelimit (mapped.rs), and the text formats (text.rs). Not here: the
//! events of a decision, which engine, store and limiter report to their observer.

mod alerts;
mod busiest;
mod domains;
pub mod families;
mod labels;
mod latency;
mod listed;
mod mapped;
mod process;
pub(crate) mod registry;
mod rules;
pub mod table;
pub mod text;
mod unknown_fields;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;
use weir_api::top::Busiest;
use weir_engine::arith::Fraction;
use weir_engine::callers::Refusal;
use weir_engine::observer::{
    self, Charged, DecisionResult, LeaseHits, LeaseResult, Observer, RefusedCaller, RowEvent, Tally, TraceIds,
};
use weir_engine::request_limit::UnusedLimit;
use weir_engine::weight::TOO_HEAVY;
use weir_engine::words::printable;
use weir_engine::{Count, Hits, OnError, PolicySet, key};
use weir_settings::ShownValues;

use self::alerts::alerts_of_limits;
pub use self::busiest::{BUSIEST_MAX, LOOK_AGE, busiest_of};
use self::domains::{Domains, metrics_of_domains};
use self::families::{Source, Visitor};
pub(super) use self::latency::TimesSeen;
pub use self::latency::{BUCKETS_US, Protocol};
use self::latency::{Latencies, Recorder};
pub(super) use self::mapped::RESPONSE_TIME;
use self::mapped::{MappedFamilies, MappedStatistics, ReadMapped};
use self::process::Process;
pub use self::registry::{Number, Numbers};
use self::registry::{Registered, Registry};
use self::rules::{Rules, hits_of_limits};
use self::table::{DECISION_DURATION, STORE_DURATION};
use self::text::{Format, TextWriter};
pub use self::unknown_fields::LimitSource;
use self::unknown_fields::UnknownFields;
use super::alerts::Alerts;
use super::complaint::{Complaint, Complaints};
use super::limited::{Limited, ShownDescriptor};
use super::mapper::Mapper;
use super::statistics::Statistics;
use super::tap::{self, Taps};
use super::trouble::{self, Outages, Trouble};

/// The requests of callers. `/top` reads them too.
pub const CALLER_REQUESTS: &str = "weir_caller_requests_total";
/// The result of a request that its caller may send.
pub const CALLER_ALLOWED: &str = "allowed";

#[derive(Debug)]
pub struct Options {
    /// Hits above this part of a limit are near it.
    pub near_limit: Fraction,
    /// The most names of statistics that have values of requests.
    pub dynamic_series: usize,
    /// Whether dots in keys and values of descriptors are underscores in the names of statistics.
    pub sanitize_dots: bool,
    /// Whether weir's own metrics are shown.
    pub weir_names: bool,
    /// Whether weir's own metrics include those of single limits.
    pub per_rule: bool,
    /// How many runtimes count. If there are more, some share counters.
    pub runtimes: usize,
    /// Maps the statistics of envoyproxy/ratelimit to metrics. None if they are not shown.
    pub mapper: Option<Mapper>,
    /// Whether the statistics go to a StatsD server.
    pub statsd: bool,
    pub values: ShownValues,
    pub tap: tap::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            near_limit: Fraction::percent(80),
            dynamic_series: 10_000,
            sanitize_dots: false,
            weir_names: true,
            per_rule: true,
            runtimes: 1,
            mapper: None,
            statsd: false,
            values: ShownValues::Shown,
            tap: tap::Options::default(),
        }
    }
}

/// Everything that is counted. One for the process, shared by all runtimes.
pub struct Metrics {
    registry: Arc<Registry>,
    rules: Arc<Rules>,
    domains: Arc<Domains>,
    /// Locked while policies load.
    loading: Mutex<()>,
    unknown_descriptors: Number,
    /// How many observers there are.
    lanes: AtomicUsize,
    requests: Arc<Latencies>,
    stores: Arc<Latencies>,
    store_errors: Numbers,
    fallbacks: [Number; OnError::ALL.len()],
    undone: [Number; 2],
    alert_answers_lost: Number,
    leases: [Number; LeaseResult::NAMES.len()],
    lease_hits: [Number; LeaseHits::NAMES.len()],
    rows: [Number; RowEvent::NAMES.len()],
    unused_limits: [Number; UnusedLimit::NAMES.len()],
    foreign_rows: Mutex<Complaint>,
    refused_callers: Mutex<Complaints>,
    unknown_fields: UnknownFields,
    values: ShownValues,
    trouble: Trouble,
    evictions: Number,
    evicted_hits: Number,
    loads: Number,
    load_errors: Number,
    last_load: Number,
    near_limit: Fraction,
    statistics: Arc<Statistics>,
    global_shadows: Number,
    mapped: Option<MappedStatistics>,
    weir_names: bool,
    per_rule: bool,
    statsd_dropped: Number,
    limited: Limited,
    alerts: Arc<Alerts>,
    looks: busiest::Looks,
    started: Instant,
    taps: Arc<Taps>,
}

impl Metrics {
    /// Starts with no counts.
    /// Panics when the table lacks a metric that is counted here: a mistake in weir.
    pub fn new(options: Options) -> Self {
        let registry = Arc::<Registry>::default();
        let number = |name| registry.number(name, &[]);
        let store_errors = Numbers::new(&registry, "weir_store_errors_total");
        // The only failure that every store can have.
        store_errors.of(TOO_HEAVY);
        let has_statistics = options.mapper.is_some() || options.statsd;
        let statistics =
            Arc::new(Statistics::new(registry.clone(), options.dynamic_series, has_statistics, options.sanitize_dots));
        let alerts = Arc::new(Alerts::new(options.values, number("weir_alerts_dropped_total")));
        let bounds = options.mapper.as_ref().map(mapped::response_time_bounds).unwrap_or_default();
        let requests = Arc::new(Latencies::new(&bounds, options.statsd));
        let mapped = options.mapper.map(|mapper| MappedStatistics::new(mapper, statistics.clone(), requests.clone()));
        let metrics = Self {
            rules: Arc::new(Rules::new(statistics.clone(), alerts.clone())),
            domains: Arc::new(Domains::new(options.runtimes)),
            loading: Mutex::default(),
            unknown_descriptors: Number::default(),
            lanes: AtomicUsize::new(0),
            requests,
            stores: Arc::new(Latencies::new(&[], false)),
            store_errors,
            fallbacks: registry.each("weir_on_error_total", OnError::NAMES),
            undone: registry.each("weir_undone_total", ["unconfirmed", "confirmed"]),
            alert_answers_lost: number("weir_alert_lost_answers_total"),
            leases: registry.each("weir_leases_total", LeaseResult::NAMES),
            lease_hits: registry.each("weir_lease_hits_total", LeaseHits::NAMES),
            rows: registry.each("weir_rows_total", RowEvent::NAMES),
            unused_limits: registry.each("weir_unused_request_limits_total", UnusedLimit::NAMES),
            foreign_rows: Mutex::new(Complaint::new(FOREIGN_ROWS_EVERY)),
            refused_callers: Mutex::new(Complaints::new(REFUSED_CALLERS_EVERY)),
            unknown_fields: UnknownFields::new(&registry),
            values: options.values,
            trouble: Trouble::default(),
            evictions: number("weir_evictions_total"),
            evicted_hits: number("weir_evicted_hits_total"),
            loads: number("weir_config_loads_total"),
            load_errors: number("weir_config_load_errors_total"),
            last_load: number("weir_config_last_load_success_timestamp_seconds"),
            near_limit: options.near_limit,
            statistics,
            global_shadows: number("ratelimit.service.global_shadow_mode"),
            mapped,
            weir_names: options.weir_names,
            per_rule: options.per_rule,
            statsd_dropped: number("weir_statsd_dropped_lines_total"),
            limited: Limited::new(options.runtimes, options.values),
            alerts,
            looks: busiest::Looks::default(),
            started: Instant::now(),
            taps: Arc::new(Taps::new(options.tap, &registry)),
            registry,
        };
        metrics.show_own();
        metrics
    }

    /// Adds the numbers that other parts of this package store.
    fn show_own(&self) {
        for (name, latencies) in [(DECISION_DURATION, &self.requests), (STORE_DURATION, &self.stores)] {
            let latencies = latencies.clone();
            self.registry.histogram(name, move || latencies.histogram());
        }
        self.show("weir_taps", &[], &self.taps, |taps| taps.open());
        self.show("weir_dynamic_series", &[], &self.statistics, |statistics| statistics.dynamic_names() as u64);

        self.show("ratelimit.service.config_load_success", &[], &self.loads, Number::get);
        self.show("ratelimit.service.config_load_error", &[], &self.load_errors, Number::get);
        let call = "ratelimit.service.call.should_rate_limit";
        self.show(&format!("{call}.service_error"), &[], &self.requests, |requests| {
            // A request that cannot be read never reaches the service. It counts as unreadable first: in this order the number is
            // never too large.
            let invalid = requests.failures(DecisionResult::Invalid).saturating_sub(requests.unreadable());
            invalid + requests.failures(DecisionResult::NoPolicies)
        });
        self.show(&format!("{call}.redis_error"), &[], &self.requests, |requests| {
            requests.failures(DecisionResult::StoreFailed)
        });
        self.show("ratelimit_server.ShouldRateLimit.total_requests", &[], &self.requests, |requests| {
            requests.requests(Protocol::Grpc)
        });
    }

    /// Adds a number that `read` finds in `of` whenever metrics are read. `name` is that of a row of the table, and `labels` are
    /// the values of its labels, in its order.
    /// Panics when the table has no such row, when it has another number of labels, or when the series exists.
    pub fn show<T: Clone + Send + Sync + 'static>(
        &self,
        name: &str,
        labels: &[&str],
        of: &T,
        read: impl Fn(&T) -> u64 + Send + Sync + 'static,
    ) {
        self.registry.show(name, labels, of, read);
    }

    /// Adds a number that its caller changes. Panics as [`Metrics::show`].
    pub fn number(&self, name: &str, labels: &[&str]) -> Number {
        self.registry.number(name, labels)
    }

    /// Adds a number for each of these values of the only label. Panics as [`Metrics::show`].
    pub fn each<const N: usize>(&self, name: &str, values: [&str; N]) -> [Number; N] {
        self.registry.each(name, values)
    }

    /// The numbers of a row with one label, whose values become known at runtime.
    pub fn numbers(&self, name: &'static str) -> Numbers {
        Numbers::new(&self.registry, name)
    }

    /// Shows store errors of these kinds, as 0 at first.
    pub fn expect_store_errors(&self, kinds: impl IntoIterator<Item = &'static str>) {
        for kind in kinds {
            self.store_errors.of(kind);
        }
    }

    /// An observer for one runtime that serves gRPC. It has its own copy of the counters that it writes most often.
    pub fn observer(self: &Arc<Self>) -> Arc<dyn Observer> {
        self.observer_of(Protocol::Grpc)
    }

    pub fn observer_of(self: &Arc<Self>, protocol: Protocol) -> Arc<dyn Observer> {
        Arc::new(PerRuntime {
            metrics: self.clone(),
            taps: self.taps.clone(),
            lane: self.lanes.fetch_add(1, Relaxed),
            requests: self.requests.recorder(protocol),
            stores: self.stores.recorder(protocol),
        })
    }

    /// Logs the start and the end of store outages. `is_reached` is whether the stores answer PINGs. Never returns.
    pub async fn log_outages(&self, is_reached: impl Fn() -> bool) {
        let mut outages = Outages::default();
        let mut ticks = tokio::time::interval(trouble::TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.trouble.tick(&mut outages, Instant::now(), &is_reached);
        }
    }

    pub fn outages_ended(&self) -> Arc<AtomicU64> {
        self.trouble.ended()
    }

    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    pub const fn limited(&self) -> &Limited {
        &self.limited
    }

    pub fn alerts(&self) -> &Alerts {
        &self.alerts
    }

    pub const fn taps(&self) -> &Arc<Taps> {
        &self.taps
    }

    /// The busiest limits since the last call, by any caller. It reads the counters of every limit, so call it on a
    /// thread that makes no decisions.
    pub fn busiest(&self) -> Arc<Busiest> {
        self.looks.look(&self.rules, || self.totals(), Instant::now())
    }

    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    fn totals(&self) -> busiest::Totals {
        busiest::Totals {
            requests: self.domains.totals(),
            by_on_error: self.trouble.counts(),
            times: self.requests.distribution(&[Protocol::Grpc, Protocol::Http]),
            callers: self.callers(),
        }
    }

    /// The allowed and the refused requests of each caller.
    fn callers(&self) -> busiest::Callers {
        let mut callers = busiest::Callers::new();
        for (labels, requests) in self.registry.series(CALLER_REQUESTS) {
            let [caller, result] = labels.try_into().expect("the row has two labels");
            let is_refused = usize::from(result != CALLER_ALLOWED);
            callers.entry(caller).or_default()[is_refused] += requests;
        }
        callers
    }

    /// Passes the latest times of gRPC requests since the last call to `see`, in microseconds. Returns how many there were.
    pub(super) fn times_since(&self, seen: &mut TimesSeen, see: impl FnMut(u32)) -> u64 {
        self.requests.times_since(seen, see)
    }

    /// Lines that did not reach the StatsD server.
    pub(super) const fn statsd_dropped(&self) -> &Number {
        &self.statsd_dropped
    }

    pub fn policies_loaded(&self) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.loads.add(1);
        self.last_load.set(since.as_secs());
    }

    /// Counts messages with fields of limits that weir does not know, and logs one of them: its name and the number of
    /// the field.
    pub fn unknown_limit_fields(&self, source: LimitSource, messages: u64, message: &str, field: u32) {
        self.unknown_fields.found(source, messages, message, field);
    }

    pub fn policies_refused(&self) {
        self.load_errors.add(1);
    }

    /// Whether [`Metrics::prepare`] copies many series.
    pub fn is_copied(&self) -> bool {
        self.mapped.is_some()
    }

    /// Makes the part of a scrape that readers can share: the metrics of envoyproxy/ratelimit, if they are shown. It
    /// takes milliseconds for each thousand series, so call it on a thread that makes no decisions.
    pub fn prepare(&self) -> Prepared {
        let families = self.mapped.as_ref().map(|mapped| mapped.families(Instant::now(), self.weir_names));
        Prepared(Arc::new(families.unwrap_or_default()))
    }

    pub fn read(&self, prepared: &Prepared) -> Cursor {
        let mut sources: VecDeque<Box<dyn Source>> = VecDeque::new();
        if self.weir_names {
            sources.push_back(Box::new(Registered::new(&self.registry)));
            sources.extend(metrics_of_domains(&self.domains, self.requests.clone(), self.unknown_descriptors.clone()));
        }
        sources.push_back(Box::new(Process::default()));
        if self.weir_names && self.per_rule {
            sources.extend(hits_of_limits(&self.rules));
            sources.push_back(Box::new(alerts_of_limits(self.rules.alert_counts())));
        }
        sources.push_back(Box::new(ReadMapped::new(prepared.0.clone())));
        Cursor { sources }
    }

    /// All metrics in the text format of Prometheus. Only for few rules.
    pub fn text(&self) -> String {
        let mut writer = TextWriter::new(Format::Text);
        let mut reading = self.read(&self.prepare());
        while reading.advance(&mut writer) {}
        writer.take()
    }
}

/// The part of a scrape that several readers can share.
#[derive(Debug, Default)]
pub struct Prepared(Arc<MappedFamilies>);

/// Reads all metrics in small steps. It stores its position, but no copy of the counters of rules.
pub struct Cursor {
    sources: VecDeque<Box<dyn Source>>,
}

impl Cursor {
    /// Shows at most a few hundred further series. Returns false at the end.
    pub fn advance(&mut self, to: &mut dyn Visitor) -> bool {
        while let Some(source) = self.sources.front_mut() {
            if source.advance(to) {
                return true;
            }
            self.sources.pop_front();
        }
        false
    }
}

/// The least time between two log lines about requests of one caller that were refused for the same reason.
const REFUSED_CALLERS_EVERY: Duration = Duration::from_secs(10);
/// The most names of a certificate in such a line, and the most characters of each text.
const REFUSED_NAMES_LOGGED_MAX: usize = 3;
const REFUSED_CHARS_LOGGED_MAX: usize = 256;

/// The least time between two log lines about values at keys of rows that weir did not write.
const FOREIGN_ROWS_EVERY: Duration = Duration::from_secs(60);

struct PerRuntime {
    metrics: Arc<Metrics>,
    taps: Arc<Taps>,
    lane: usize,
    requests: Arc<Recorder>,
    stores: Arc<Recorder>,
}

impl Observer for PerRuntime {
    fn loaded(&self, policies: &PolicySet) -> Arc<dyn Tally> {
        let metrics = &self.metrics;
        let _loading = metrics.loading.lock();
        let domains = metrics.domains.load(policies);
        Arc::new(metrics.rules.load(policies, metrics.near_limit, domains))
    }

    fn tap(&self) -> Option<&dyn observer::Tap> {
        self.taps.receiver()
    }

    fn lane(&self) -> usize {
        self.lane
    }

    fn unreadable(&self) {
        self.requests.unreadable();
    }

    fn shadowed(&self) {
        self.metrics.global_shadows.add(1);
    }

    fn not_allowed(&self, refused: &RefusedCaller<'_>) {
        // Without a caller, the first name of the certificate, or else the listener, stands for it.
        let first = refused.names.first().map_or(refused.listener, |name| name);
        let who = (refused.refusal.index(), refused.caller, refused.caller.is_none().then_some(first));
        let Some(requests) = self.metrics.refused_callers.lock().failed(who) else { return };
        let shown = |text: &str| printable(&text.chars().take(REFUSED_CHARS_LOGGED_MAX).collect::<String>());
        let names = refused.names.iter().take(REFUSED_NAMES_LOGGED_MAX).map(|name| shown(name));
        let names = Some(names.collect::<Vec<_>>().join(", ")).filter(|names| !names.is_empty());
        let names = names.or_else(|| {
            (refused.refusal == Refusal::Unlisted).then(|| "none: no certificate with a DNS name or a URI".to_owned())
        });
        let (lacks, domain) = (refused.refusal.name(), shown(refused.domain));
        let (caller, listener) = (refused.caller, refused.listener);
        tracing::warn!(
            requests,
            caller,
            lacks,
            domain,
            listener,
            names,
            "refused requests that their caller may not send"
        );
    }

    fn unknown_domain(&self, domain: &str, descriptors: usize) {
        self.metrics.unknown_descriptors.add(descriptors as u64);
        self.metrics.statistics.unknown_domain(domain, descriptors);
    }

    fn decided(&self, result: DecisionResult, took: &dyn Fn() -> Duration, trace: Option<TraceIds>) {
        let took = took();
        self.requests.record(took);
        self.requests.ended(result);
        if let Some(ids) = trace {
            self.metrics.requests.sampled(took, ids);
        }
    }

    fn store_called(&self, error: Option<&'static str>, took: Option<Duration>) {
        if let Some(took) = took {
            self.stores.record(took);
        }
        match error {
            Some(kind) => {
                self.metrics.store_errors.of(kind).add(1);
                if kind == TOO_HEAVY {
                    tracing::warn!(kind, "request too heavy: on_error applied (see weir tap --verdict error)");
                }
            }
            None => self.metrics.trouble.answered(),
        }
    }

    fn fell_back(&self, action: OnError, kind: &'static str) {
        self.metrics.fallbacks[action as usize].add(1);
        // No store was called, so no store has an outage.
        if kind != TOO_HEAVY {
            self.metrics.trouble.fell_back(action, kind, Instant::now);
        }
    }

    fn over(&self, charged: &Charged<'_>) {
        self.metrics.limited.record(self.lane, charged);
    }

    fn undone(&self, confirmed: bool) {
        self.metrics.undone[usize::from(confirmed)].add(1);
    }

    fn alerts_lost(&self, charges: u64) {
        self.metrics.alert_answers_lost.add(charges);
    }

    fn lease_asked(&self, result: LeaseResult) {
        self.metrics.leases[result as usize].add(1);
    }

    fn lease_hits(&self, kind: LeaseHits, hits: Hits) {
        self.metrics.lease_hits[kind as usize].add(u64::from(hits));
    }

    fn rows(&self, event: RowEvent, count: u64) {
        self.metrics.rows[event as usize].add(count);
    }

    fn foreign_row(&self, key: &str) {
        if let Some(count) = self.metrics.foreign_rows.lock().failed(1) {
            let descriptor = ShownDescriptor::of(key, self.metrics.values).text();
            let domain = key::parse(key).map(|key| key.domain);
            tracing::warn!(
                count,
                domain,
                descriptor,
                "weir did not write the value at the key of a row: the default plan counts"
            );
        }
    }

    fn unknown_limit_field(&self, number: u32) {
        self.metrics.unknown_limit_fields(LimitSource::Grpc, 1, "RateLimitOverride", number);
    }

    fn unused_limit(&self, why: UnusedLimit) {
        self.metrics.unused_limits[why as usize].add(1);
    }

    fn evicted(&self, hits_lost: Count) {
        self.metrics.evictions.add(1);
        self.metrics.evicted_hits.add(hits_lost);
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::charge::Origin;
    use weir_engine::observer::{AnsweredBy, LimitOf};
    use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use weir_engine::{Charge, Limit, Mode, Operation, Role, Unit, decision};

    use super::*;

    const NOW: u64 = 2_000_000_000_000_000;

    fn metrics() -> Arc<Metrics> {
        Arc::new(Metrics::new(Options::default()))
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
        let operation = Operation::Consume(hits);
        let origin = Origin { shown_role: rule.role, ..Origin::NONE };
        let charges = [Charge { role: rule.role, origin, ..Charge::alone("k", limit, operation) }];
        let decision = decision::decide(&charges, &[0], &mut [None][..], Mode::Atomic, NOW).expect("no calendar");
        let limit = LimitOf::Rule(rule, 0);
        let (charge, outcome) = (&charges[0], &decision.outcomes[0]);
        let by = AnsweredBy::Store;
        tally.charged(&Charged { limit, entries: &[], row: None, mode: Mode::Atomic, charge, outcome, by });
    }

    fn lines(metrics: &Metrics, start: &str) -> Vec<String> {
        let text = metrics.text();
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
    fn runtimes_add_up_and_buckets_hold_their_bound() {
        let metrics = metrics();
        let (one, other) = (metrics.observer(), metrics.observer());
        one.decided(DecisionResult::Ok, &|| Duration::from_micros(50), None);
        other.decided(DecisionResult::Ok, &|| Duration::from_nanos(50_001), None);
        other.decided(DecisionResult::OverLimit, &|| Duration::from_secs(6), None);
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
        let errors = ["weir_store_errors_total{kind=\"deadline\"} 1", "weir_store_errors_total{kind=\"too_heavy\"} 0"];
        assert_eq!(lines(&metrics, "weir_store_errors_total"), errors);
    }

    #[test]
    fn requests_are_counted_by_domain_and_result() {
        let metrics = metrics();
        let (one, other) = (metrics.observer(), metrics.observer());
        assert_ne!(one.lane(), other.lane());
        let policies = policies(&["user"]);
        let tally = one.loaded(&policies);
        let shop = policies.domain("shop").unwrap();
        tally.decided(shop, one.lane(), DecisionResult::Ok, 0);
        tally.decided(shop, other.lane(), DecisionResult::Ok, 2);
        tally.decided(shop, 99, DecisionResult::StoreFailed, 1);
        one.decided(DecisionResult::Invalid, &|| Duration::ZERO, None);
        other.decided(DecisionResult::UnknownDomain, &|| Duration::ZERO, None);
        other.unknown_domain("nowhere", 3);
        assert_eq!(
            lines(&metrics, "weir_requests_total"),
            [
                "weir_requests_total{domain=\"shop\",result=\"ok\"} 2",
                "weir_requests_total{domain=\"shop\",result=\"over_limit\"} 0",
                "weir_requests_total{domain=\"shop\",result=\"store_failed\"} 1",
                "weir_requests_total{domain=\"(unknown)\",result=\"invalid\"} 1",
                "weir_requests_total{domain=\"(unknown)\",result=\"no_policies\"} 0",
                "weir_requests_total{domain=\"(unknown)\",result=\"not_allowed\"} 0",
                "weir_requests_total{domain=\"(unknown)\",result=\"unknown_domain\"} 1",
            ]
        );
        let unmatched = "weir_unmatched_descriptors_total{domain=";
        assert_eq!(
            lines(&metrics, unmatched),
            [format!("{unmatched}\"shop\"}} 3"), format!("{unmatched}\"(unknown)\"}} 3")]
        );
        // A domain keeps its counts over a reload, and loses them when its policy is removed.
        let tally = one.loaded(&policies);
        tally.decided(shop, 0, DecisionResult::Ok, 0);
        assert!(
            lines(&metrics, "weir_requests_total")
                .contains(&"weir_requests_total{domain=\"shop\",result=\"ok\"} 3".to_owned())
        );
        one.loaded(&PolicySet::default());
        assert_eq!(lines(&metrics, "weir_requests_total").len(), 4);
    }

    #[test]
    fn a_domain_with_the_name_of_the_unknown_ones_is_shown_once() {
        let metrics = metrics();
        let spec = DomainSpec { name: domains::UNKNOWN.into(), mode: None, on_error: None, descriptors: Vec::new() };
        let policies = PolicySet::compile(vec![spec]).unwrap();
        let observer = metrics.observer();
        let tally = observer.loaded(&policies);
        tally.decided(policies.domain(domains::UNKNOWN).unwrap(), 0, DecisionResult::Ok, 1);
        observer.unknown_domain("nowhere", 3);
        let unmatched = "weir_unmatched_descriptors_total{domain=";
        assert_eq!(lines(&metrics, unmatched), [format!("{unmatched}\"(unknown)\"}} 4")]);
        let text = metrics.text();
        let mut series: Vec<&str> =
            text.lines().filter_map(|line| line.rsplit_once(' ')).map(|(series, _)| series).collect();
        let count = series.len();
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), count);
    }

    #[test]
    fn a_metric_that_is_not_in_the_table_or_has_other_labels_is_a_mistake() {
        let panics = |add: &dyn Fn(&Metrics)| {
            let metrics = metrics();
            metrics.show("weir_keys", &[], &0, |zero| *zero);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| add(&metrics))).is_err()
        };
        let show = |name: &'static str, labels: &'static [&'static str]| {
            panics(&|metrics| metrics.show(name, labels, &0, |zero| *zero))
        };
        assert!(show("weir_nonsense", &[]));
        assert!(show("weir_connections", &[]));
        assert!(show("weir_connections", &["0", "1"]));
        assert!(show("weir_keys", &[]), "it is there already");
        assert!(!show("weir_connections", &["0"]));
    }

    #[test]
    fn the_names_of_envoyproxy_ratelimit_stand_beside_those_of_weir_or_alone() {
        let text = |weir_names: bool| {
            let mapper = Some(Mapper::built_in(false));
            let metrics = Arc::new(Metrics::new(Options { mapper, weir_names, ..Options::default() }));
            let policies = policies(&["user"]);
            let tally = metrics.observer().loaded(&policies);
            charge_first_rule(&policies, &*tally, 11);
            metrics.observer().decided(DecisionResult::OverLimit, &|| Duration::ZERO, None);
            metrics.observer_of(Protocol::Http).decided(DecisionResult::Invalid, &|| Duration::ZERO, None);
            metrics.policies_loaded();
            metrics.text()
        };
        let alone = text(false);
        let lines: Vec<&str> = alone
            .lines()
            .filter(|line| line.starts_with("ratelimit") && !line.contains("response_time_seconds"))
            .collect();
        assert!(!alone.contains("weir_"), "{alone}");
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
