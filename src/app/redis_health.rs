//! Reports the state of Redis: one log line for each change of state (not for each call), metrics, and the circuit at
//! `/readyz`.
//!
//! Not here: the events (store), the decision (limiter), and whether a store answers (ready.rs).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::ServerError;
use weir_store::redis::breaker::Circuit;
use weir_store::redis::error_class::{self, Blame, ERROR_CLASSES, RedisErrorClass};
use weir_store::redis::pipeline::Load;
use weir_store::redis::{DialError, KINDS, RedisObserver};
use weir_telemetry::complaint::Complaint;
use weir_telemetry::metrics::{Metrics, Numbers};
use weir_tls::files::FileError;

/// The shortest time between two log lines about one kind of problem in one outage.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// The state of all connections to Redis. One for the process.
pub(super) struct RedisHealth {
    /// On how many runtimes the circuit of an address is open, and how often it opened.
    open: Numbers,
    opened: Numbers,
    /// By kind of failure.
    dial_errors: Numbers,
    /// The addresses whose circuit is not closed on every runtime.
    circuits: Mutex<BTreeMap<Box<str>, Troubled>>,
    complaints: Mutex<Complaints>,
    outages_ended: Arc<AtomicU64>,
    batches: Mutex<Vec<Arc<Batches>>>,
    loads: Mutex<Vec<(Pool, Load)>>,
    /// How many connections were made, for each [`Pool`].
    connected: [AtomicU64; Pool::ALL.len()],
    /// How many runtimes have a pipeline to an address.
    servers: Mutex<BTreeMap<Box<str>, usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pool {
    /// The Redis for all limits, or for all except those per second.
    First,
    PerSecond,
}

impl Pool {
    const ALL: [Self; 2] = [Self::First, Self::PerSecond];

    /// The name in the statistics of envoyproxy/ratelimit.
    const fn name(self) -> &'static str {
        match self {
            Self::First => "redis_pool",
            Self::PerSecond => "redis_per_second_pool",
        }
    }
}

/// An address whose circuit is not closed on every runtime.
struct Troubled {
    since: Instant,
    /// The number of runtimes on which it is open.
    open: u32,
    /// The number of runtimes on which it is half open.
    half_open: u32,
}

impl Troubled {
    const fn count(&mut self, circuit: Circuit) -> Option<&mut u32> {
        match circuit {
            Circuit::Closed => None,
            Circuit::HalfOpen => Some(&mut self.half_open),
            Circuit::Open => Some(&mut self.open),
        }
    }
}

/// The problems of one outage. Each outage logs its own first lines.
#[derive(Default)]
struct Complaints {
    outages_ended: u64,
    by_kind: BTreeMap<&'static str, Complaint>,
}

/// The batches of one runtime. On its own cache line, because every batch writes it.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Batches {
    batches: AtomicU64,
    calls: AtomicU64,
}

impl RedisHealth {
    pub(super) fn new(metrics: &Metrics) -> Arc<Self> {
        metrics.expect_store_errors(KINDS.into_iter().chain(ERROR_CLASSES.iter().map(|row| row.kind)));
        let health = Arc::new(Self {
            open: metrics.numbers("weir_redis_circuit_open"),
            opened: metrics.numbers("weir_redis_circuit_opened_total"),
            dial_errors: metrics.numbers("weir_redis_dial_errors_total"),
            circuits: Mutex::default(),
            complaints: Mutex::default(),
            outages_ended: metrics.outages_ended(),
            batches: Mutex::default(),
            loads: Mutex::default(),
            connected: Default::default(),
            servers: Mutex::default(),
        });
        metrics.show("weir_redis_connections", &[], &health, |of| of.sum(&Pool::ALL, Load::connections));
        metrics.show("weir_redis_queue", &[], &health, |of| of.waiting());
        metrics.show("weir_redis_batches_total", &[], &health, |of| {
            of.batches.lock().iter().map(|tally| tally.batches.load(Relaxed)).sum()
        });
        metrics.show("weir_redis_batched_calls_total", &[], &health, |of| {
            of.batches.lock().iter().map(|tally| tally.calls.load(Relaxed)).sum()
        });
        health
    }

    /// Adds envoyproxy/ratelimit's statistics about connections to one Redis.
    pub(super) fn show_statistics(self: &Arc<Self>, metrics: &Metrics, pool: Pool) {
        let name = |name: &str| format!("ratelimit.{}.{name}", pool.name());
        metrics.show(&name("cx_active"), &[], self, move |of| of.sum(&[pool], Load::connections));
        metrics.show(&name("cx_total"), &[], self, move |of| of.connected[pool as usize].load(Relaxed));
        metrics.show(&name("cx_local_close"), &[], self, move |of| {
            // A connection is active before it counts as made. In this order a connection that opens meanwhile can make the
            // number too small, which statistics do not show, but never too large.
            let connected = of.connected[pool as usize].load(Relaxed);
            connected.saturating_sub(of.sum(&[pool], Load::connections))
        });
    }

    /// The observer of one runtime's calls to one Redis. It does not report redirections within a cluster.
    pub(super) fn listener(self: &Arc<Self>, pool: Pool, is_cluster: bool) -> Arc<dyn RedisObserver> {
        let batches = Arc::new(Batches::default());
        self.batches.lock().push(batches.clone());
        Arc::new(Listener { health: self.clone(), batches, pool, is_cluster })
    }

    /// The worst circuit state of all runtimes and servers.
    pub(super) fn circuit(&self) -> Circuit {
        let circuits = self.circuits.lock();
        let worst = circuits.values().map(|troubled| if troubled.open > 0 { Circuit::Open } else { Circuit::HalfOpen });
        worst.max().unwrap_or_default()
    }

    /// The calls that wait to be sent, of all runtimes.
    pub(super) fn waiting(&self) -> u64 {
        self.sum(&Pool::ALL, Load::waiting)
    }

    fn sum(&self, pools: &[Pool], number: impl Fn(&Load) -> Option<usize>) -> u64 {
        let loads = self.loads.lock();
        let of_pools = loads.iter().filter(|(pool, _)| pools.contains(pool));
        of_pools.filter_map(|(_, load)| number(load)).map(|number| number as u64).sum()
    }

    fn server_started(&self, address: &str) {
        let mut servers = self.servers.lock();
        *servers.entry(address.into()).or_default() += 1;
        self.open.of(address);
        self.opened.of(address);
    }

    /// Counts that a runtime no longer uses this address. The last one removes the metrics, because nodes of a cluster
    /// come and go.
    fn server_ended(&self, address: &str) {
        let mut servers = self.servers.lock();
        let Some(runtimes) = servers.get_mut(address) else { return };
        *runtimes -= 1;
        if *runtimes == 0 {
            servers.remove(address);
            self.open.remove(address);
            self.opened.remove(address);
        }
    }

    /// Counts this kind of problem. If a line is due, returns how often it occurred in this outage since the last line.
    fn complain(&self, kind: &'static str) -> Option<u64> {
        let outages_ended = self.outages_ended.load(Relaxed);
        let mut complaints = self.complaints.lock();
        if complaints.outages_ended != outages_ended {
            *complaints = Complaints { outages_ended, by_kind: BTreeMap::new() };
        }
        complaints.by_kind.entry(kind).or_insert_with(|| Complaint::new(COMPLAIN_EVERY)).failed(1)
    }

    fn circuit_changed(&self, address: &str, from: Circuit, to: Circuit, now: Instant) {
        if to == Circuit::Open {
            self.open.of(address).add(1);
            self.opened.of(address).add(1);
        } else if from == Circuit::Open {
            self.open.of(address).take_one();
        }
        let mut circuits = self.circuits.lock();
        let is_new = !circuits.contains_key(address);
        let troubled = circuits.entry(address.into()).or_insert(Troubled { since: now, open: 0, half_open: 0 });
        if let Some(count) = troubled.count(from) {
            *count = count.saturating_sub(1);
        }
        if let Some(count) = troubled.count(to) {
            *count += 1;
        }
        let (open, half_open) = (troubled.open, troubled.half_open);
        if open + half_open == 0 {
            let lasted = now.saturating_duration_since(troubled.since);
            circuits.remove(address);
            tracing::info!(address, after = ?lasted, "circuit closed: calls go to redis again");
        } else if is_new {
            tracing::warn!(
                address,
                "circuit open: too many calls to redis failed, and calls resume after it answers a PING"
            );
        } else {
            tracing::debug!(address, from = from.name(), to = to.name(), open, half_open, "circuit changed");
        }
    }

    /// The circuit was removed, because its server left or weir is ending. It no longer counts, and does not show the
    /// state of Redis.
    fn circuit_gone(&self, address: &str, was: Circuit) {
        if was == Circuit::Open {
            self.open.of(address).take_one();
        }
        let mut circuits = self.circuits.lock();
        let Some(troubled) = circuits.get_mut(address) else {
            return;
        };
        if let Some(count) = troubled.count(was) {
            *count = count.saturating_sub(1);
        }
        if troubled.open + troubled.half_open == 0 {
            circuits.remove(address);
        }
        tracing::debug!(address, was = was.name(), "circuit removed: weir no longer uses this redis");
    }
}

struct Listener {
    health: Arc<RedisHealth>,
    batches: Arc<Batches>,
    pool: Pool,
    is_cluster: bool,
}

impl RedisObserver for Listener {
    fn started(&self, address: &str, load: Load) {
        self.health.server_started(address);
        let mut loads = self.health.loads.lock();
        // Nodes of a cluster come and go.
        loads.retain(|(_, load)| load.connections().is_some());
        loads.push((self.pool, load));
    }

    fn connected(&self) {
        self.health.connected[self.pool as usize].fetch_add(1, Relaxed);
    }

    fn ended(&self, address: &str) {
        self.health.server_ended(address);
    }

    fn batch_answered(&self, calls: usize, _took: Duration) {
        self.batches.batches.fetch_add(1, Relaxed);
        self.batches.calls.fetch_add(calls as u64, Relaxed);
    }

    fn dial_failed(&self, address: &str, error: &DialError) {
        self.health.dial_errors.of(error.kind).add(1);
        if let Some(count) = self.health.complain(error.kind) {
            tracing::warn!(store = "redis", kind = error.kind, count, "no connection to redis at {address}: {error}");
        }
    }

    fn file_refused(&self, error: &FileError) {
        if let Some(count) = self.health.complain("file") {
            tracing::warn!(store = "redis", count, "{error}; its last good content stays in use");
        }
    }

    fn connection_dropped(&self, reason: &str) {
        tracing::debug!(store = "redis", reason, "connection dropped");
    }

    fn connection_broke(&self, address: &str, reason: &str) {
        if let Some(count) = self.health.complain("broken") {
            tracing::warn!(store = "redis", address, kind = "broken", count, "the connection broke: {reason}");
        }
    }

    fn master_changed(&self, address: &str) {
        tracing::info!(store = "redis", "the master is now {address}");
    }

    fn subscription_failed(&self, address: &str, error: &DialError) {
        if error.kind == "noperm"
            && let Some(count) = self.health.complain("subscription")
        {
            tracing::warn!(
                store = "redis",
                kind = error.kind,
                count,
                "no subscription to failovers at the sentinel {address}: {error}; weir finds a new master up to two seconds later"
            );
        } else {
            tracing::debug!(store = "redis", "no subscription to failovers at the sentinel {address}: {error}");
        }
    }

    fn dial_held(&self, address: &str, wait: Duration) {
        if let Some(count) = self.health.complain("dial_held") {
            tracing::warn!(
                store = "redis",
                address,
                ?wait,
                count,
                "many dials in a short time: weir delays the next one"
            );
        }
    }

    fn strange_reply(&self) {
        if let Some(count) = self.health.complain("reply") {
            tracing::warn!(store = "redis", kind = "reply", count, "redis sent a reply with an unexpected form");
        }
    }

    fn refused(&self, address: &str, class: &RedisErrorClass, error: &ServerError) {
        if self.is_cluster && class.blame == Blame::Route {
            return;
        }
        if let Some(count) = self.health.complain(class.kind) {
            let text = error_class::for_log(error);
            tracing::warn!(store = "redis", address, kind = class.kind, count, "redis returned an error: {text}");
        }
    }

    fn circuit_changed(&self, address: &str, from: Circuit, to: Circuit) {
        self.health.circuit_changed(address, from, to, Instant::now());
    }

    fn circuit_gone(&self, address: &str, was: Circuit) {
        self.health.circuit_gone(address, was);
    }
}

#[cfg(test)]
mod tests {
    use weir_telemetry::metrics::Options;

    use super::*;

    fn health() -> (Arc<Metrics>, Arc<RedisHealth>) {
        let metrics = Arc::new(Metrics::new(Options::default()));
        let health = RedisHealth::new(&metrics);
        (metrics, health)
    }

    #[test]
    fn the_worst_circuit_of_all_runtimes_is_reported() {
        let (metrics, health) = health();
        let (one, other) = (health.listener(Pool::First, false), health.listener(Pool::First, false));
        let check = |worst: Circuit, open: u32, opened: u32| {
            assert_eq!(health.circuit(), worst);
            let text = metrics.text();
            assert!(text.contains(&format!("weir_redis_circuit_open{{address=\"a:1\"}} {open}\n")), "{text}");
            assert!(text.contains(&format!("weir_redis_circuit_opened_total{{address=\"a:1\"}} {opened}\n")), "{text}");
        };
        assert_eq!(health.circuit(), Circuit::Closed);
        one.circuit_changed("a:1", Circuit::Closed, Circuit::Open);
        check(Circuit::Open, 1, 1);
        other.circuit_changed("a:1", Circuit::Closed, Circuit::Open);
        check(Circuit::Open, 2, 2);
        one.circuit_changed("a:1", Circuit::Open, Circuit::HalfOpen);
        check(Circuit::Open, 1, 2);
        other.circuit_changed("a:1", Circuit::Open, Circuit::HalfOpen);
        check(Circuit::HalfOpen, 0, 2);
        other.circuit_changed("a:1", Circuit::HalfOpen, Circuit::Open);
        check(Circuit::Open, 1, 3);
        one.circuit_changed("a:1", Circuit::HalfOpen, Circuit::Closed);
        check(Circuit::Open, 1, 3);
        // A node that has left.
        other.circuit_gone("a:1", Circuit::Open);
        check(Circuit::Closed, 0, 3);
        one.circuit_changed("a:1", Circuit::Closed, Circuit::Open);
        one.circuit_changed("a:1", Circuit::Open, Circuit::HalfOpen);
        one.circuit_gone("a:1", Circuit::HalfOpen);
        check(Circuit::Closed, 0, 4);
        one.circuit_changed("b:2", Circuit::Closed, Circuit::Open);
        check(Circuit::Open, 0, 4);
    }

    #[test]
    fn a_server_is_shown_until_no_runtime_uses_it() {
        let (metrics, health) = health();
        let (one, other) = (health.listener(Pool::First, true), health.listener(Pool::First, true));
        let shown = || {
            let text = metrics.text();
            let names = ["weir_redis_circuit_open", "weir_redis_circuit_opened_total"];
            names.map(|name| text.contains(&format!("{name}{{address=\"a:1\"}} 0\n")))
        };
        assert_eq!(shown(), [false, false]);
        one.started("a:1", Load::default());
        other.started("a:1", Load::default());
        one.ended("a:1");
        assert_eq!(shown(), [true, true]);
        other.ended("a:1");
        assert_eq!(shown(), [false, false]);
        one.started("a:1", Load::default());
        assert_eq!(shown(), [true, true]);
    }

    #[test]
    fn each_outage_has_its_reasons_and_counts_for_itself() {
        let (_, health) = health();
        assert_eq!([health.complain("oom"), health.complain("oom")], [Some(1), None]);
        assert_eq!(health.complain("readonly"), Some(1), "another kind has its own turn");
        health.outages_ended.fetch_add(1, Relaxed);
        assert_eq!([health.complain("oom"), health.complain("oom")], [Some(1), None]);
    }

    #[test]
    fn batches_of_all_runtimes_add_up() {
        let (metrics, health) = health();
        let (one, other) = (health.listener(Pool::First, false), health.listener(Pool::First, true));
        one.batch_answered(3, Duration::ZERO);
        one.batch_answered(1, Duration::ZERO);
        other.batch_answered(5, Duration::ZERO);
        let text = metrics.text();
        assert!(text.contains("# TYPE weir_redis_batches_total counter\nweir_redis_batches_total 3\n"), "{text}");
        assert!(text.contains("weir_redis_batched_calls_total 9\n"), "{text}");
    }
}
