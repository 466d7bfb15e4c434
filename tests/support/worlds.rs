//! A limiter of one policy over a store of its own, in memory or on Redis, on a clock that the test moves. Not in here: what is
//! asked, and what is checked.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proptest::strategy::Strategy;
use proptest::test_runner::TestRunner;
use tokio::runtime::Runtime;
use weir_engine::descriptor::Entries;
use weir_engine::observer::{Charged, HoldHits, HoldResult, Observer, Silent, Tally};
use weir_engine::overrides::{Numbers, Override};
use weir_engine::request_limit::UnusedLimit;
use weir_engine::{Domain, Entry, Micros, Mode, Operation, PolicySet, Row, RowContent};
use weir_limiter::overrides::{OverrideTable, SetOverride};
use weir_limiter::rows::RowTable;
use weir_limiter::{
    Answer, DescriptorRequest, HeldCharge, Limiter, Modes, Options, Policies, Query, Settle, ShownState, Undecided,
};
use weir_store::memory::Memory;
use weir_store::redis::{Endpoint, Redis, pipeline};
use weir_store::{Clock as _, Store};

use super::arbitrary::{START_US, config};
use super::manual::ManualClock;
use super::redis::RedisServer;

/// Longer than any healthy call takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// The names of limits on trial since they were last taken, and whether each was over; what was counted of holds; and why limits
/// of requests had no effect.
#[derive(Clone, Default)]
pub struct Trials(Arc<Mutex<Vec<(String, bool)>>>, Arc<HoldCounts>, Arc<Mutex<Vec<UnusedLimit>>>);

impl Trials {
    /// What was heard.
    pub fn take(&self) -> Vec<(String, bool)> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Why limits of requests had no effect, since this was last called.
    pub fn take_unused(&self) -> Vec<UnusedLimit> {
        std::mem::take(&mut *self.2.lock())
    }
}

impl Observer for Trials {
    fn loaded(&self, _: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(self.clone())
    }

    fn unused_limit(&self, why: UnusedLimit) {
        self.2.lock().push(why);
    }
}

impl Tally for Trials {
    fn charged(&self, charged: &Charged<'_>) {
        let limit = charged.charge.limit;
        if limit.shadow {
            let name = limit.name.as_deref().unwrap_or_default().to_owned();
            self.0.lock().push((name, charged.outcome.verdict.is_over()));
        }
    }

    fn holds(&self, _domain: &Domain, result: HoldResult, count: u64) {
        self.1.0.lock().0[result as usize] += count;
    }

    fn hold_hits(&self, _domain: &Domain, kind: HoldHits, hits: u64) {
        self.1.0.lock().1[kind as usize] += hits;
    }
}

/// What was counted of holds: by [`HoldResult::NAMES`], and hits by [`HoldHits::NAMES`].
#[derive(Default)]
pub struct HoldCounts(Mutex<([u64; 6], [u64; 3])>);

impl HoldCounts {
    /// What was counted so far, without late and repeated settles, of which there must be none.
    pub fn get(&self) -> ([u64; 4], [u64; 3]) {
        let ([opened, settled, late, again, reported, lost], hits) = self.all();
        assert_eq!((late, again), (0, 0), "late settles, and settles of what was settled");
        ([opened, settled, reported, lost], hits)
    }

    /// All that was counted so far.
    pub fn all(&self) -> ([u64; 6], [u64; 3]) {
        *self.0.lock()
    }
}

/// A limiter with a store of its own.
pub struct World<'w> {
    runtime: &'w Runtime,
    limiter: Limiter,
    policies: Arc<Policies>,
    overrides: OverrideTable,
    rows: RowTable,
    clock: Arc<ManualClock>,
    redis: Option<Arc<Redis>>,
    /// What was heard of limits on trial.
    pub trials: Trials,
    /// What was heard of holds.
    pub holds: Arc<HoldCounts>,
}

/// Where worlds are made.
pub struct Worlds<'s> {
    runtime: Runtime,
    /// None for the memory store.
    server: Option<&'s RedisServer>,
    made: Cell<u32>,
}

impl<'s> Worlds<'s> {
    /// In memory, or on this Redis.
    pub fn of(server: Option<&'s RedisServer>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Self { runtime, server, made: Cell::default() }
    }

    /// Whether they are on Redis.
    pub fn are_on_redis(&self) -> bool {
        self.server.is_some()
    }

    /// One with this policy, of the domain `shop`.
    pub fn with(&self, policy: &str, mode: Mode) -> World<'_> {
        let clock = Arc::new(ManualClock::in_2041());
        let trials = Trials::default();
        self.made.set(self.made.get() + 1);
        let redis = self.server.map(|server| {
            let _entered = self.runtime.enter();
            let mut options = pipeline::Options::new(Endpoint::parse(&server.url()).expect("its url"));
            options.connections = 1;
            Arc::new(Redis::start(options, &format!("world{}:", self.made.get())).at(START_US))
        });
        let store: Arc<dyn Store> = match &redis {
            Some(redis) => redis.clone(),
            None => Arc::new(Memory::new(1_000, clock.clone(), Arc::new(Silent))),
        };
        let modes = Modes { limits: true, metadata: true, ..Modes::default() };
        let shared = store.clone();
        let options = Options { mode, modes, budget: PATIENCE, clock: clock.clone(), ..Options::new(store) };
        let policies = Arc::new(Policies::new(parsed(policy), Arc::new(trials.clone())));
        let overrides = OverrideTable::new(shared.clone(), policies.clone(), clock.clone());
        let rows = RowTable::new(shared, policies.clone(), options.rows.clone(), clock.clone(), Arc::new(Silent));
        let holds = trials.1.clone();
        let limiter = Limiter::new(policies.clone(), options, Arc::new(trials.clone()));
        World { runtime: &self.runtime, limiter, policies, overrides, rows, clock, redis, trials, holds }
    }
}

fn ann() -> Entries {
    [("user".into(), "ann".into())].into()
}

fn parsed(policy: &str) -> PolicySet {
    weir_policies::parse(&[("shop.yaml", policy)]).unwrap_or_else(|problems| panic!("{problems}\n{policy}")).policies
}

impl World<'_> {
    /// The clock.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Moves the clock.
    pub fn step(&self, by: Micros) {
        self.clock.set(self.now() + by);
        if let Some(redis) = &self.redis {
            redis.set_now(self.now());
        }
    }

    /// Puts another policy in force; states stay.
    pub fn swap(&self, policy: &str) {
        self.policies.replace(parsed(policy));
    }

    /// Sets an override of the user ann that lasts an hour.
    pub fn set_override(&self, numbers: &[Numbers]) {
        let set = Override {
            domain: "shop".into(),
            entries: ann(),
            numbers: numbers.into(),
            until: self.now() + 3_600_000_000,
        };
        let set = SetOverride { set, set_at: 0, by: "test".into(), reason: "test".into() };
        self.runtime.block_on(self.overrides.set(&set)).expect("it fits");
    }

    /// Deletes her override.
    pub fn delete_override(&self) {
        self.runtime.block_on(self.overrides.delete("shop", &ann(), "test")).expect("there is one");
    }

    /// Reads the overrides that other processes have set.
    pub fn read_overrides(&self) {
        self.runtime.block_on(self.overrides.look()).expect("the store answers");
    }

    /// Sets the row of a descriptor of one entry.
    pub fn set_row(&self, key: &str, value: &str, content: RowContent) {
        let entries = [(key.into(), value.into())].into();
        self.write_row(Row { domain: "shop".into(), entries, content, until: None, note: "".into() });
    }

    /// Writes a row.
    pub fn write_row(&self, row: Row) {
        self.runtime.block_on(self.rows.write(vec![row])).remove(0).expect("it fits");
    }

    /// Removes it.
    pub fn remove_row(&self, key: &str, value: &str) {
        self.runtime.block_on(self.rows.remove("shop", &[Entry { key, value }])).expect("there is one");
    }

    /// Gives back the hits of leases, as at the end of a process.
    pub fn leave(&self) {
        self.runtime.block_on(self.limiter.leave());
    }

    /// A request of the user ann.
    pub fn ask(&self, operation: Operation) -> Answer {
        self.ask_for(&[("user", "ann", operation)], None)
    }

    /// A request of descriptors of one entry, some of which may settle holds.
    pub fn ask_for(&self, asked: &[(&str, &str, Operation)], settle: Option<Settle>) -> Answer {
        let entries: Vec<_> = asked.iter().map(|&(key, value, _)| [Entry { key, value }]).collect();
        self.decide(&query(&entries, asked, settle)).expect("the store answers")
    }

    /// Any request.
    pub fn decide(&self, query: &Query<'_>) -> Result<Answer, Undecided> {
        self.runtime.block_on(self.limiter.decide(query, Instant::now(), None, None))
    }

    /// Releases the holds of a request whose caller has gone.
    pub fn release_query(&self, query: Query<'_>, holds: Vec<HeldCharge>) {
        self.runtime.block_on(self.limiter.release(query, holds));
    }

    /// Releases the holds of such a request, whose caller has gone.
    pub fn release(&self, asked: &[(&str, &str, Operation)], holds: Vec<HeldCharge>) {
        let entries: Vec<_> = asked.iter().map(|&(key, value, _)| [Entry { key, value }]).collect();
        self.release_query(query(&entries, asked, None), holds);
    }

    /// Her states.
    pub fn states(&self) -> Vec<ShownState> {
        let entry = [Entry { key: "user", value: "ann" }];
        self.runtime.block_on(self.limiter.show_states("shop", &entry)).expect("the store answers")
    }
}

fn query<'q>(entries: &'q [[Entry<'q>; 1]], asked: &[(&str, &str, Operation)], settle: Option<Settle>) -> Query<'q> {
    let of = |(entries, &(.., operation)): (&'q [Entry<'q>; 1], &(&str, &str, Operation))| DescriptorRequest {
        entries,
        operation,
        limit: None,
    };
    let descriptors = entries.iter().zip(asked).map(of).collect();
    Query { domain: "shop", caller: None, descriptors, settle: settle.map(Box::new) }
}

/// Runs a test on the memory store and on Redis.
pub fn on_both(test: impl Fn(&Worlds)) {
    let server = RedisServer::start();
    test(&Worlds::of(None));
    test(&Worlds::of(Some(&server)));
}

/// Runs a property on random histories, in memory and then on Redis, there with a part of the cases.
pub fn on_both_stores<S: Strategy>(histories: &S, redis_share: u32, property: impl Fn(&Worlds, S::Value)) {
    let server = RedisServer::start();
    for worlds in [Worlds::of(None), Worlds::of(Some(&server))] {
        let share = if worlds.are_on_redis() { redis_share } else { 1 };
        let ran = TestRunner::new(config(share)).run(histories, |history| {
            property(&worlds, history);
            Ok(())
        });
        ran.unwrap_or_else(|error| panic!("{error}"));
    }
}
