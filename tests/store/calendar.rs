//! Calendar windows by the store's own clock, on both stores: a limiter whose clock is elsewhere learns where the windows
//! are from the store, asks once more, and has charged nothing before. Not in here: where a zone's days begin, which is
//! tested beside the code.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weir_engine::observer::Silent;
use weir_engine::{
    Algorithm, Anchor, Bounds, CalendarUnit, Charge, Decision, Entry, Limit, Micros, Mode, Operation, Unit,
};
use weir_limiter::{Answer, DescriptorRequest, Limiter, Options, Policies, Query, Undecided};
use weir_store::memory::Memory;
use weir_store::redis::{Endpoint, Redis, pipeline};
use weir_store::{Before, Deciding, Inspected, Reply, ScanPosition, Scanned, StatesRead, Store, StoreError, Undo};

use crate::support::algorithms::without_calendars;
use crate::support::manual::{ManualClock, charge, far};
use crate::support::redis::RedisServer;

/// Two a day in Berlin: alone, and behind a pacing limit that has room for more.
const POLICY: &str = "\
domain: shop
descriptors:
  - key: alone
    rate_limit: {rate: 2/day, calendar: true, timezone: Europe/Berlin}
  - key: listed
    rate_limits:
      - {rate: 10/day, algorithm: gcra}
      - {rate: 2/day, calendar: true, timezone: Europe/Berlin}
";

/// 2041-03-30T23:00:00Z: in Berlin the 31st of March begins, which ends after 23 hours.
const DAY_STARTS_US: Micros = 2_248_297_200 * 1_000_000;
const DAY_ENDS_US: Micros = DAY_STARTS_US + 23 * HOUR_US;
const HOUR_US: Micros = 3_600 * 1_000_000;
const DAY_US: Micros = 24 * HOUR_US;

/// Keys in the memory store; more than a test here uses.
const KEYS_MAX: usize = 1_000;
/// Longer than any healthy call takes.
const BUDGET: Duration = Duration::from_secs(20);

/// The ways by which a limiter asks a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The memory store, without a future.
    Memory,
    /// The memory store, as one that has to be waited for.
    MemoryLater,
    Redis,
}

const WAYS: [Way; 3] = [Way::Memory, Way::MemoryLater, Way::Redis];

/// One store under a clock that the test sets, and what was asked of it.
struct Machine {
    way: Way,
    runtime: tokio::runtime::Runtime,
    clock: Arc<ManualClock>,
    memory: Arc<Memory>,
    server: Option<RedisServer>,
}

impl Machine {
    fn new(way: Way) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let clock = Arc::new(ManualClock::default());
        let memory = Arc::new(Memory::new(KEYS_MAX, clock.clone(), Arc::new(Silent)));
        let server = (way == Way::Redis).then(RedisServer::start);
        Self { way, runtime, clock, memory, server }
    }

    /// The store at this time.
    fn store(&self, now: Micros) -> Arc<dyn Store> {
        self.clock.set(now);
        let Some(server) = &self.server else {
            return self.memory.clone();
        };
        let _entered = self.runtime.enter();
        let options = pipeline::Options::new(Endpoint::parse(&server.url()).expect("its url"));
        Arc::new(Redis::start(options, "").at(now))
    }

    /// One hit of a rule at a time of the store's, which is not the limiter's: the machine's clock is years behind.
    /// With it the calls that the limiter made of the store.
    fn ask(&self, key: &str, now: Micros) -> (Answer, Vec<Call>) {
        let watched = Arc::new(Watched { inner: self.store(now), way: self.way, calls: Mutex::default() });
        let answer = self.decide(watched.clone(), key).unwrap_or_else(|error| panic!("{:?}: {error}", self.way));
        let calls = std::mem::take(&mut *watched.calls.lock().expect("no panic while it is held"));
        (answer, calls)
    }

    fn decide(&self, store: Arc<dyn Store>, key: &str) -> Result<Answer, StoreError> {
        let limiter = limiter(store);
        let entries = &[Entry { key, value: "ann" }];
        let asked = DescriptorRequest { entries, operation: Operation::Consume(1), limit: None };
        let query = Query { domain: "shop", caller: None, descriptors: [asked].into_iter().collect(), settle: None };
        let answer = if limiter.is_immediate() {
            limiter.decide_now(&query, Instant::now(), None)
        } else {
            self.runtime.block_on(limiter.decide(&query, Instant::now(), None, None))
        };
        answer.map_err(|undecided| match undecided {
            Undecided::Store(error) => error,
            Undecided::NoPolicies | Undecided::Unweighed(_) => panic!("{undecided}"),
        })
    }
}

fn limiter(store: Arc<dyn Store>) -> Limiter {
    let policies = weir_policies::parse(&[("shop.yaml", POLICY)]).expect("good policies").policies;
    let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
    Limiter::new(policies, Options { budget: BUDGET, ..Options::new(store) }, Arc::new(Silent))
}

/// One call: the boundaries of its last charge, and whether it was a decision or the store's clock.
#[derive(Debug)]
struct Call {
    bounds: Bounds,
    answer: Result<(), StoreError>,
}

/// A store that remembers what was asked of it.
struct Watched {
    inner: Arc<dyn Store>,
    way: Way,
    calls: Mutex<Vec<Call>>,
}

impl Watched {
    fn remember(&self, charges: &[Charge<'_>], answer: &Result<Decision, StoreError>) {
        let bounds = charges.last().and_then(|charge| charge.bounds).expect("a calendar has boundaries");
        let answer = answer.as_ref().map(|_| ()).map_err(Clone::clone);
        self.calls.lock().expect("no panic while it is held").push(Call { bounds, answer });
    }
}

impl Store for Watched {}

impl Deciding for Watched {
    fn is_immediate(&self) -> bool {
        self.way == Way::Memory
    }

    fn decide_after<'a>(
        &'a self,
        before: Before<'a>,
        charges: &'a [Charge<'a>],
        mode: Mode,
        deadline: Instant,
    ) -> Reply<'a, Decision> {
        let reply = self.inner.decide_after(before, charges, mode, deadline);
        if let Reply::Ready(answer) = &reply {
            self.remember(charges, answer);
            if self.way == Way::Memory {
                return reply;
            }
        }
        Reply::Pending(Box::pin(async move {
            let at_hand = matches!(reply, Reply::Ready(_));
            let answer = reply.get().await;
            if !at_hand {
                self.remember(charges, &answer);
            }
            answer
        }))
    }

    fn undo<'a>(&'a self, charges: &'a [Undo<'a>], deadline: Instant) -> Reply<'a, ()> {
        self.inner.undo(charges, deadline)
    }
}

impl Inspected for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn reset<'a>(&'a self, keys: &'a [&'a str], deadline: Instant) -> Reply<'a, u64> {
        self.inner.reset(keys, deadline)
    }

    fn read_states<'a>(&'a self, keys: &'a [(&'a str, &'a Limit)], deadline: Instant) -> Reply<'a, StatesRead> {
        self.inner.read_states(keys, deadline)
    }

    fn ping(&self, deadline: Instant) -> Reply<'_, ()> {
        self.inner.ping(deadline)
    }

    fn scan<'a>(&'a self, _: &'a str, _: ScanPosition, _: Instant) -> Reply<'a, Scanned> {
        unreachable!("no test asks")
    }
}

/// Whether the boundaries hold this instant.
fn hold(bounds: &Bounds, now: Micros) -> bool {
    bounds[0] <= now && now < bounds[3]
}

#[test]
fn a_store_with_another_clock_is_asked_once_more() {
    for way in WAYS {
        let machine = Machine::new(way);
        for key in ["alone", "listed"] {
            let now = DAY_STARTS_US + HOUR_US;
            for remaining in [1, 0] {
                let (answer, calls) = machine.ask(key, now);
                let [first, second] = &calls[..] else { panic!("two calls: {way:?} {key} {calls:?}") };
                assert!(!hold(&first.bounds, now), "{way:?} {key} {first:?}");
                assert_eq!(first.answer, Err(StoreError::StaleBounds { now }), "{way:?} {key}");
                assert_eq!(second.bounds[1..3], [DAY_STARTS_US, DAY_ENDS_US], "{way:?} {key}");
                assert_eq!(second.answer, Ok(()), "{way:?} {key}");
                // Each request is charged once, and the two are told when the day ends: after 23 hours and not 24.
                let status = &answer.statuses[0];
                assert_eq!((answer.denied, status.remaining), (false, remaining), "{way:?} {key}");
                assert_eq!(status.until_reset, Some(22 * HOUR_US), "{way:?} {key}");
            }
            let (denied, _) = machine.ask(key, DAY_ENDS_US - 1);
            assert!(denied.denied, "{way:?} {key}: the day has not ended");
            assert_eq!(denied.statuses[0].until_reset, Some(1), "{way:?} {key}");
            let (next, _) = machine.ask(key, DAY_ENDS_US);
            assert_eq!((next.denied, next.statuses[0].remaining), (false, 1), "{way:?} {key}");
            // What an operator sees goes by the store's clock too.
            let limiter = limiter(machine.store(DAY_ENDS_US + HOUR_US));
            let entries = [Entry { key, value: "ann" }];
            let peeks = machine.runtime.block_on(limiter.show_states("shop", &entries)).expect("an answer");
            let peek = peeks.last().expect("a limit");
            assert_eq!((peek.remaining, peek.reset_after_us), (1, 23 * HOUR_US), "{way:?} {key}");
        }
    }
}

/// Whatever else is in the decision, and wherever the calendar charge stands in it.
#[test]
fn nothing_is_charged_where_no_window_holds_the_clock() {
    let day = Algorithm::FixedWindow { anchor: Anchor::Calendar(CalendarUnit::Day) };
    let day = Limit::new(5, Unit::Day.window(), day).expect("a limit");
    let others = without_calendars(Algorithm::default_precision(Unit::Day.window()), 5);
    // No request of `concurrency` takes a day.
    let window = |algorithm| if Algorithm::counts_permits(algorithm) { Unit::Hour } else { Unit::Day }.window();
    let others = others.into_iter().map(|algorithm| Limit::new(5, window(algorithm), algorithm).expect("a limit"));
    let others: Vec<Limit> = others.collect();
    let now = DAY_STARTS_US;
    // Four days before: they end with the instant that is now.
    let past: Bounds = std::array::from_fn(|i| now - (3 - i as u64) * 24 * HOUR_US);
    let future = past.map(|bound| bound + 3 * 24 * HOUR_US + 1);
    for way in [Way::Memory, Way::Redis] {
        let machine = Machine::new(way);
        let store = machine.store(now);
        for mode in [Mode::Atomic, Mode::Independent] {
            for bounds in [past, future] {
                let calendar = || Charge { bounds: Some(bounds), ..charge("calendar", &day, Operation::Report(1)) };
                let mut lists = vec![vec![calendar()]];
                for other in &others {
                    let other = || charge("other", other, Operation::Report(1));
                    lists.push(vec![calendar(), other()]);
                    lists.push(vec![other(), calendar()]);
                    lists.push(vec![other(), calendar(), other()]);
                }
                for list in lists {
                    let answer = machine.runtime.block_on(store.decide(&list, mode, far()).get());
                    assert_eq!(answer, Err(StoreError::StaleBounds { now }), "{way:?} {mode:?} {list:?}");
                    let keys: Vec<_> = list.iter().map(|charge| (charge.key, charge.limit)).collect();
                    let peeked = machine.runtime.block_on(store.read_states(&keys, far()).get()).expect("an answer");
                    assert!(peeked.states.iter().all(Option::is_none), "{way:?} {mode:?} {list:?}: {peeked:?}");
                }
            }
        }
    }
}

/// An undo asks for new boundaries where those of its charge do not hold the clock any more, and changes nothing.
#[test]
fn nothing_is_taken_back_where_no_window_holds_the_clock() {
    let day = Algorithm::FixedWindow { anchor: Anchor::Calendar(CalendarUnit::Day) };
    let day = Limit::new(5, Unit::Day.window(), day).expect("a limit");
    let hourly = Limit::new(5, Unit::Hour.window(), Algorithm::Gcra { burst: 5 }).expect("a limit");
    let log = Limit::new(5, Unit::Hour.window(), Algorithm::SlidingWindowLog).expect("a limit");
    let around = |now: Micros| -> Bounds { std::array::from_fn(|i| now - now % DAY_US + i as u64 * DAY_US - DAY_US) };
    let charged_at = DAY_STARTS_US + 2 * HOUR_US;
    // The clock, and the boundaries that the undo brings: those of the charge, or of another time.
    let cases = [
        (charged_at - 5 * DAY_US, around(charged_at)),
        (charged_at + 5 * DAY_US, around(charged_at)),
        (charged_at, around(charged_at + 5 * DAY_US)),
    ];
    for way in [Way::Memory, Way::Redis] {
        for (now, bounds) in cases {
            let machine = Machine::new(way);
            let store = machine.store(charged_at);
            let charges = [
                charge("log", &log, Operation::Consume(2)),
                Charge { bounds: Some(around(charged_at)), ..charge("calendar", &day, Operation::Consume(2)) },
                charge("hourly", &hourly, Operation::Consume(2)),
            ];
            let decided =
                machine.runtime.block_on(store.decide(&charges, Mode::Atomic, far()).get()).expect("an answer");
            let undos: Vec<Undo<'_>> = charges
                .iter()
                .zip(&decided.outcomes)
                .map(|(charge, outcome)| Undo {
                    key: charge.key,
                    limit: charge.limit,
                    receipt: outcome.receipt.expect("it was charged"),
                    bounds: charge.bounds.map(|_| bounds),
                })
                .collect();
            let keys: Vec<_> = charges.iter().map(|charge| (charge.key, charge.limit)).collect();
            let states = |store: &Arc<dyn Store>| {
                machine.runtime.block_on(store.read_states(&keys, far()).get()).expect("an answer").states
            };
            let before = states(&store);
            let store = machine.store(now);
            let undone = machine.runtime.block_on(store.undo(&undos, far()).get());
            assert_eq!(undone, Err(StoreError::StaleBounds { now }), "{way:?} at {now}");
            if now == charged_at {
                let expected = vec![None, before[1].clone(), None];
                assert_eq!(states(&store), expected, "{way:?}: those beside it are taken back");
            } else if now < charged_at {
                assert_eq!(states(&store)[1], before[1], "{way:?}");
            }
            let again = [Undo { bounds: Some(around(now)), ..undos[1] }];
            let undone = machine.runtime.block_on(store.undo(&again, far()).get());
            assert_eq!(undone, Ok(()), "{way:?} at {now}");
            let next = [Charge { bounds: Some(around(now)), ..charge("calendar", &day, Operation::Consume(1)) }];
            let next = machine.runtime.block_on(store.decide(&next, Mode::Atomic, far()).get()).expect("an answer");
            // Where the clock has stepped back, the count has moved to another day than the receipt's.
            let left = if now < charged_at { 2 } else { 4 };
            assert_eq!((next.denied, next.outcomes[0].remaining), (false, left), "{way:?} at {now}");
        }
    }
}

/// A store whose clock jumps whenever it is asked.
struct Jumpy {
    asked: Mutex<Vec<Bounds>>,
}

impl Store for Jumpy {}

impl Deciding for Jumpy {
    fn decide_after<'a>(
        &'a self,
        _: Before<'a>,
        charges: &'a [Charge<'a>],
        _: Mode,
        _: Instant,
    ) -> Reply<'a, Decision> {
        let mut asked = self.asked.lock().expect("no panic while it is held");
        asked.push(charges[0].bounds.expect("a calendar has boundaries"));
        let now = DAY_STARTS_US + asked.len() as u64 * 30 * 24 * HOUR_US;
        Reply::Ready(Err(StoreError::StaleBounds { now }))
    }

    fn undo<'a>(&'a self, _: &'a [Undo<'a>], _: Instant) -> Reply<'a, ()> {
        unreachable!("nothing was charged")
    }
}

impl Inspected for Jumpy {
    fn name(&self) -> &'static str {
        "jumpy"
    }

    fn reset<'a>(&'a self, _: &'a [&'a str], _: Instant) -> Reply<'a, u64> {
        unreachable!("nobody asks")
    }

    fn read_states<'a>(&'a self, _: &'a [(&'a str, &'a Limit)], _: Instant) -> Reply<'a, StatesRead> {
        unreachable!("nobody asks")
    }

    fn ping(&self, _: Instant) -> Reply<'_, ()> {
        Reply::Ready(Ok(()))
    }

    fn scan<'a>(&'a self, _: &'a str, _: ScanPosition, _: Instant) -> Reply<'a, Scanned> {
        unreachable!("no test asks")
    }
}

#[test]
fn a_clock_that_jumps_again_is_not_followed_for_ever() {
    let machine = Machine::new(Way::Memory);
    let jumpy = Arc::new(Jumpy { asked: Mutex::default() });
    let answer = machine.decide(jumpy.clone(), "alone");
    let month_us = 30 * 24 * HOUR_US;
    assert_eq!(answer, Err(StoreError::StaleBounds { now: DAY_STARTS_US + 2 * month_us }));
    let asked = jumpy.asked.lock().expect("no panic while it is held");
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(hold(&asked[1], DAY_STARTS_US + month_us), "{asked:?}");
}
