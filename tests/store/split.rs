//! Requests over several slots or stores, and stores that give no answer: what stands afterwards, and what callers are
//! told. Not in here: a real Redis Cluster (redis/cluster.rs) and a Redis in trouble (redis/faults.rs).

mod alerts;
mod holds;
mod large;
mod leases;
mod rows;
mod slotted;
mod terms;
mod trials;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weir_engine::observer::{HoldResult, Silent, Tally};
use weir_engine::overrides::{Numbers, Override};
use weir_engine::{Domain, Entry, Micros, Mode, Observer, OnError, Operation, PolicySet, Unit};
use weir_limiter::overrides::{OverrideTable, SetOverride};
use weir_limiter::states::StatesPosition;
use weir_limiter::{Answer, DescriptorRequest, Limiter, Options, Policies, Query, Settle, Status, Undecided};
use weir_store::memory::Memory;
use weir_store::{Clock, Inspected as _, StoreError, SystemClock};

use self::slotted::{Call, Fault, Slotted, next_random, slot_of};
use crate::support::arbitrary::START_US;
use crate::support::manual::ManualClock;

const DAY_US: Micros = 86_400 * 1_000_000;
/// Slots of the store under test.
const SLOTS: u16 = 4;
/// Keys in the memory store; more than a test here uses.
const KEYS_MAX: usize = 10_000;
/// Longer than any call here takes.
const BUDGET: Duration = Duration::from_secs(20);

/// One rule for each algorithm, each of three hits, and one of each thing that on_error can say.
const POLICY: &str = "\
domain: shop
descriptors:
  - key: fixed_window
    rate_limit: {rate: 3/hour}
  - key: first_hit
    rate_limit: {rate: 3/hour, anchor: first_hit}
  - key: calendar
    rate_limit: {rate: 3/day, calendar: true, timezone: Europe/Berlin}
  - key: sliding_window_counter
    rate_limit: {rate: 3/hour, algorithm: sliding_window_counter}
  - key: sliding_window
    rate_limit: {rate: 3/hour, algorithm: sliding_window, precision: 1m}
  - key: sliding_window_log
    rate_limit: {rate: 3/hour, algorithm: sliding_window_log}
  - key: token_bucket
    rate_limit: {rate: 3/hour, algorithm: token_bucket}
  - key: interval
    rate_limit: {rate: 3/hour, algorithm: token_bucket, refill: interval}
  - key: leaky_bucket
    rate_limit: {rate: 3/hour, algorithm: leaky_bucket}
  - key: gcra
    rate_limit: {rate: 3/hour, algorithm: gcra}
  - key: listed
    rate_limits:
      - {rate: 3/hour}
      - {rate: 3/hour, algorithm: gcra}
  - key: paid_later
    rate_limit: {rate: 3/hour, post_paid: true}
  - key: watched
    shadow_mode: true
    rate_limit: {rate: 3/hour}
  - key: per_second
    rate_limit: {rate: 3/second}
  - key: per_second_listed
    rate_limits:
      - {rate: 3/second}
      - {rate: 3/hour}
";

/// Those of them that hold three hits and deny the fourth.
const PLAIN: [&str; 10] = [
    "fixed_window",
    "first_hit",
    "calendar",
    "sliding_window_counter",
    "sliding_window",
    "sliding_window_log",
    "token_bucket",
    "interval",
    "leaky_bucket",
    "gcra",
];

/// Counts what the policies did without a store, and what was taken back.
#[derive(Default)]
struct Heard {
    fell_back: Mutex<Vec<OnError>>,
    undone: Mutex<Vec<bool>>,
    alerts_lost: AtomicU64,
    holds: HoldResults,
}

/// By [`HoldResult::NAMES`].
#[derive(Clone, Default)]
struct HoldResults(Arc<Mutex<[u64; HoldResult::ALL.len()]>>);

impl HoldResults {
    /// How many holds were opened, settled, reported and lost. None is settled late or twice.
    fn get(&self) -> [u64; 4] {
        let [opened, settled, late, again, reported, lost] = *self.0.lock();
        assert_eq!((late, again), (0, 0));
        [opened, settled, reported, lost]
    }
}

impl Tally for HoldResults {
    fn holds(&self, _domain: &Domain, result: HoldResult, count: u64) {
        self.0.lock()[result as usize] += count;
    }
}

impl Observer for Heard {
    fn loaded(&self, _policies: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(self.holds.clone())
    }

    fn fell_back(&self, action: OnError, _kind: &'static str) {
        self.fell_back.lock().push(action);
    }

    fn undone(&self, confirmed: bool) {
        self.undone.lock().push(confirmed);
    }

    fn alerts_lost(&self, charges: u64) {
        self.alerts_lost.fetch_add(charges, SeqCst);
    }
}

/// A limiter over stores under test.
struct Bench {
    store: Arc<Slotted>,
    limiter: Arc<Limiter>,
    heard: Arc<Heard>,
}

impl Bench {
    fn new() -> Self {
        Self::with(POLICY, Mode::Atomic, OnError::Error, 1)
    }

    fn with(policy: &str, mode: Mode, on_error: OnError, seed: u64) -> Self {
        Self::in_store(Slotted::new(seed), Arc::new(SystemClock), policy, mode, on_error)
    }

    /// One whose clock is the store's.
    fn in_time() -> Self {
        let store = Slotted::new(1);
        Self::in_store(store.clone(), store.clock.clone(), POLICY, Mode::Atomic, OnError::Error)
    }

    /// One with this clock of weir.
    fn in_store(store: Arc<Slotted>, clock: Arc<dyn Clock>, policy: &str, mode: Mode, on_error: OnError) -> Self {
        let local = Memory::new(KEYS_MAX, Arc::new(ManualClock::in_2041()), Arc::new(Silent));
        let options = Options {
            mode,
            on_error,
            local: Some(Arc::new(local)),
            budget: BUDGET,
            clock,
            ..Options::new(store.clone())
        };
        let heard = Arc::new(Heard::default());
        Self { store, limiter: Arc::new(limiter(policy, options, heard.clone())), heard }
    }

    /// Asks for hits of several descriptors at once.
    fn ask(&self, asked: &[(&str, &str, Operation)]) -> Result<Answer, StoreError> {
        run(decide(&self.limiter, asked))
    }

    /// What is left for a descriptor, by its store.
    fn left(&self, key: &str, value: &str) -> u64 {
        run(self.limiter.show_states("shop", &[Entry { key, value }])).expect("it peeks")[0].remaining
    }

    /// The key of a descriptor's state.
    fn key(&self, key: &str, value: &str) -> String {
        run(self.limiter.show_states("shop", &[Entry { key, value }])).expect("it peeks")[0].key.clone()
    }

    /// A value that puts a descriptor of this key into this slot.
    fn value_in(&self, key: &str, slot: u16) -> String {
        let mut values = (0..).map(|i| format!("v{i}"));
        values.find(|value| slot_of(&self.key(key, value)) == slot).expect("there is no end of values")
    }
}

fn limiter(policy: &str, options: Options, observer: Arc<dyn Observer>) -> Limiter {
    let policies = weir_policies::parse(&[("shop.yaml", policy)]).expect("good policies").policies;
    let policies = Arc::new(Policies::new(policies, observer.clone()));
    Limiter::new(policies, options, observer)
}

async fn decide(limiter: &Limiter, asked: &[(&str, &str, Operation)]) -> Result<Answer, StoreError> {
    decide_or_settle(limiter, asked, None).await
}

async fn decide_or_settle(
    limiter: &Limiter,
    asked: &[(&str, &str, Operation)],
    settle: Option<Box<Settle>>,
) -> Result<Answer, StoreError> {
    let entries: Vec<_> = asked.iter().map(|&(key, value, _)| [Entry { key, value }]).collect();
    let descriptors = entries.iter().zip(asked);
    let descriptors = descriptors
        .map(|(entries, &(_, _, operation))| DescriptorRequest { entries, operation, limit: None })
        .collect();
    let answer =
        limiter.decide(&Query { domain: "shop", caller: None, descriptors, settle }, Instant::now(), None, None).await;
    answer.map_err(|undecided| match undecided {
        Undecided::Store(error) => error,
        Undecided::NoPolicies | Undecided::Unweighed(_) => panic!("{undecided}"),
    })
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

const ONE: Operation = Operation::Consume(1);
/// What a request asks.
type Asked<'a> = &'a [(&'a str, &'a str, Operation)];

#[test]
fn a_request_that_one_slot_denies_charges_none() {
    for key in PLAIN {
        let bench = Bench::new();
        let (full, other) = (bench.value_in(key, 0), bench.value_in(key, 1));
        assert!(!bench.ask(&[(key, &full, Operation::Consume(3)), (key, &other, ONE)]).unwrap().denied, "{key}");
        assert_eq!((bench.left(key, &full), bench.left(key, &other)), (0, 2), "{key}");

        let answer = bench.ask(&[(key, &other, ONE), (key, &full, ONE)]).unwrap();
        assert!(answer.denied && !answer.statuses[0].over && answer.statuses[1].over, "{key}: {answer:?}");
        // A denied request shows what there was before it, and leaves it so.
        assert_eq!(answer.statuses[0].remaining, 2, "{key}");
        assert_eq!((bench.left(key, &full), bench.left(key, &other)), (0, 2), "{key}");
        assert_eq!(*bench.heard.undone.lock(), [true], "{key}");
    }
}

/// The undo brings the boundaries around weir's clock. A store whose clock has left them is asked once more with others.
#[test]
fn a_charge_of_a_calendar_is_taken_back_after_the_clock_has_stepped() {
    for (now, undos) in [(START_US, 1), (START_US - 4 * DAY_US, 2), (START_US + 4 * DAY_US, 2)] {
        let bench = Bench::in_time();
        let full = bench.value_in("gcra", 0);
        let (calendar, other) = (bench.value_in("calendar", 1), bench.value_in("calendar", 2));
        assert!(!bench.ask(&[("gcra", &full, Operation::Consume(3)), ("calendar", &other, ONE)]).unwrap().denied);
        *bench.store.clock_at_undo.lock() = Some(now);
        assert!(bench.ask(&[("calendar", &calendar, ONE), ("gcra", &full, ONE)]).unwrap().denied);
        assert_eq!(*bench.heard.undone.lock(), [true], "the undo at {now} is confirmed");
        assert_eq!(bench.store.undos.load(SeqCst), undos, "the undo at {now}");
        // What has moved to another day counts there; the key is in order, and those beside it are untouched.
        let left = if now < START_US { 2 } else { 3 };
        assert_eq!(bench.left("calendar", &calendar), left, "the clock at {now}");
        assert!(!bench.ask(&[("calendar", &calendar, ONE)]).unwrap().denied);
        assert_eq!(bench.left("calendar", &calendar), left - 1, "the clock at {now}");
        bench.store.clock.set(START_US);
        assert_eq!(bench.left("calendar", &other), 2);
    }
}

/// The detail of a descriptor tells whether its hits stand.
#[test]
fn the_detail_tells_what_was_charged() {
    let bench = Bench::new();
    let charged = |answer: &Answer| -> Vec<bool> {
        answer.statuses.iter().map(|status| status.detail.expect("it has a limit").charged).collect()
    };
    let (full, other) = (bench.value_in("gcra", 0), bench.value_in("gcra", 1));
    let paid = bench.value_in("paid_later", 2);
    let admitted = bench.ask(&[("gcra", &full, Operation::Consume(3)), ("gcra", &other, ONE)]).unwrap();
    assert_eq!((admitted.denied, charged(&admitted)), (false, vec![true, true]));
    // Looks and refunds charge nothing.
    let answer = bench.ask(&[("gcra", &other, Operation::Peek), ("gcra", &other, Operation::Refund(1))]).unwrap();
    assert_eq!((answer.denied, charged(&answer)), (false, vec![false, false]));
    // Denied elsewhere: the take is taken back, and the report stands.
    let asked = [("gcra", other.as_str(), ONE), ("gcra", &full, ONE), ("paid_later", &paid, Operation::Consume(9))];
    let denied = bench.ask(&asked).unwrap();
    assert_eq!((denied.denied, charged(&denied)), (true, vec![false, false, true]));
    assert_eq!(bench.left("gcra", &other), 3);
    // A report is over where no hit was left before it, and is charged all the same.
    let before = bench.left("paid_later", &paid);
    let report = bench.ask(&[("paid_later", &paid, ONE)]).unwrap();
    assert_eq!((before, report.denied, charged(&report)), (0, true, vec![true]));
    assert_eq!(
        report.statuses[0].detail.expect("it has a limit").fits_after.map(|wait| wait.us),
        report.statuses[0].until_reset
    );
}

#[test]
fn however_requests_over_slots_interleave_exactly_what_was_admitted_is_charged() {
    const TASKS: usize = 8;
    const REQUESTS: usize = 12;
    for seed in 0..40 {
        for key in PLAIN {
            let bench = Bench::with(POLICY, Mode::Atomic, OnError::Error, seed * 1_000 + key.len() as u64);
            let random = Arc::new(AtomicU64::new(seed));
            let admitted = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
            run(async {
                let mut tasks = tokio::task::JoinSet::new();
                for _ in 0..TASKS {
                    let (limiter, random, admitted) = (bench.limiter.clone(), random.clone(), admitted.clone());
                    tasks.spawn(async move {
                        for _ in 0..REQUESTS {
                            let mut values: Vec<String> = (0..=next_random(&random, 3))
                                .map(|_| format!("u{}", next_random(&random, 5)))
                                .collect();
                            values.sort_unstable();
                            values.dedup();
                            let asked: Vec<_> = values.iter().map(|value| (key, value.as_str(), ONE)).collect();
                            if !decide(&limiter, &asked).await.unwrap().denied {
                                let mut admitted = admitted.lock();
                                values.into_iter().for_each(|value| *admitted.entry(value).or_default() += 1);
                            }
                        }
                    });
                }
                while let Some(done) = tasks.join_next().await {
                    done.unwrap();
                }
            });
            for (value, &hits) in admitted.lock().iter() {
                assert!(hits <= 3, "{key} {value}: {hits} of 3 admitted, seed {seed}");
                assert_eq!(bench.left(key, value), 3 - u64::from(hits), "{key} {value}, seed {seed}");
            }
        }
    }
}

#[test]
fn a_member_killed_between_reserve_and_undo_leaves_a_charge_and_never_admits_more() {
    for fault in [Fault::NotSent, Fault::Lost, Fault::AnswerLost] {
        for key in PLAIN {
            let bench = Bench::in_time();
            let (full, other) = (bench.value_in(key, 0), bench.value_in(key, 1));
            assert!(!bench.ask(&[(key, &full, Operation::Consume(3))]).unwrap().denied);
            bench.store.fails(Call::Undo, &bench.key(key, &other), fault);
            assert!(bench.ask(&[(key, &other, ONE), (key, &full, ONE)]).unwrap().denied, "{key}");
            assert_eq!(*bench.heard.undone.lock(), [false], "{key}: it must be told that it is not confirmed");
            let stands = u32::from(fault != Fault::AnswerLost);
            assert_eq!(bench.left(key, &other), 3 - u64::from(stands), "{key} {fault:?}");
            bench.store.heal();
            let mut admitted = 0;
            while !bench.ask(&[(key, &other, ONE)]).unwrap().denied {
                admitted += 1;
            }
            assert_eq!(admitted, 3 - u64::from(stands), "{key} {fault:?}");
        }
    }
}

#[test]
fn a_caller_who_goes_away_between_the_answers_of_two_slots_leaves_no_charge() {
    let mut taken_back = 0;
    for seed in 0..50 {
        let bench = Bench::with(POLICY, Mode::Atomic, OnError::Error, seed);
        let (one, other) = (bench.value_in("gcra", 0), bench.value_in("gcra", 1));
        run(async {
            // The second slot's answer is always the later one: the caller leaves before it is there.
            let asked = [("gcra", one.as_str(), ONE), ("gcra", other.as_str(), ONE)];
            let mut context = Context::from_waker(Waker::noop());
            let polls = seed % 12;
            {
                let mut request = pin!(decide(&bench.limiter, &asked));
                for _ in 0..polls {
                    if request.as_mut().poll(&mut context).is_ready() {
                        return;
                    }
                }
            }
            // What was answered is taken back in a task of its own.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let peeked = |value: &str| {
                let (limiter, value) = (bench.limiter.clone(), value.to_owned());
                async move {
                    limiter.show_states("shop", &[Entry { key: "gcra", value: &value }]).await.unwrap()[0].remaining
                }
            };
            let undone = bench.heard.undone.lock().clone();
            let left = (peeked(&one).await, peeked(&other).await);
            // A call that was made and not answered yet stands: nobody can prove it.
            assert!(left.0 >= 2 && left.1 >= 2, "{left:?} after {polls} polls");
            assert!(undone.is_empty() || (undone == [true] && left.0 + left.1 >= 5), "{undone:?}, {left:?}");
        });
        taken_back += bench.heard.undone.lock().len();
    }
    assert!(taken_back > 0, "no caller left at the moment that this is about");
}

#[test]
fn a_part_that_fails_fails_the_request_and_the_others_are_taken_back() {
    for (fault, undo, is_sent) in [
        (Fault::NotSent, None, false),
        (Fault::Lost, None, true),
        (Fault::AnswerLost, None, true),
        // What was charged elsewhere may stand: a client must not try again as if nothing were.
        (Fault::NotSent, Some(Fault::Lost), true),
    ] {
        let bench = Bench::new();
        let (good, bad) = (bench.value_in("gcra", 0), bench.value_in("gcra", 1));
        bench.store.fails(Call::Decide, &bench.key("gcra", &bad), fault);
        if let Some(undo) = undo {
            bench.store.fails(Call::Undo, &bench.key("gcra", &good), undo);
        }
        let error = bench.ask(&[("gcra", &good, ONE), ("gcra", &bad, ONE)]).unwrap_err();
        assert_eq!(matches!(error, StoreError::Unknown(_)), is_sent, "{fault:?}: {error}");
        assert_eq!(bench.left("gcra", &good), if undo.is_some() { 2 } else { 3 }, "{fault:?}");
        assert_eq!(*bench.heard.fell_back.lock(), [OnError::Error]);
    }
}

/// A client tries again on UNAVAILABLE, which is what NotSent becomes: what stands would be charged twice.
#[test]
fn a_request_of_which_something_stands_is_never_told_to_be_not_sent() {
    let give = Operation::Refund(1);
    for (mode, key, operation) in
        [(Mode::Independent, "gcra", ONE), (Mode::Independent, "gcra", give), (Mode::Atomic, "paid_later", ONE)]
    {
        let bench = Bench::with(POLICY, mode, OnError::Error, 1);
        let (good, bad) = (bench.value_in(key, 0), bench.value_in(key, 1));
        bench.ask(&[(key, &good, Operation::Consume(2))]).unwrap();
        bench.store.fails(Call::Decide, &bench.key(key, &bad), Fault::NotSent);
        let error = bench.ask(&[(key, &good, operation), (key, &bad, operation)]).unwrap_err();
        assert!(matches!(error, StoreError::Unknown(_)), "{mode:?} {key} {operation:?}: {error}");
    }
    // Two refunds that nothing can deny are made at once; looks charge nothing.
    let bench = Bench::new();
    let (good, bad) = (bench.value_in("gcra", 0), bench.value_in("gcra", 1));
    bench.store.fails(Call::Decide, &bench.key("gcra", &bad), Fault::NotSent);
    let error = bench.ask(&[("gcra", &good, give), ("gcra", &bad, give)]).unwrap_err();
    assert!(matches!(error, StoreError::Unknown(_)), "{error}");
    let error = bench.ask(&[("gcra", &good, Operation::Peek), ("gcra", &bad, ONE)]).unwrap_err();
    assert!(matches!(error, StoreError::NotSent(_)), "{error}");
}

#[test]
fn what_is_reported_stays_and_refunds_wait_for_the_others() {
    let bench = Bench::new();
    let (full, refunded) = (bench.value_in("gcra", 0), bench.value_in("gcra", 1));
    let paid = bench.value_in("paid_later", 2);
    for value in [&full, &refunded] {
        assert!(!bench.ask(&[("gcra", value, Operation::Consume(3))]).unwrap().denied);
    }
    let asked = [
        ("gcra", full.as_str(), ONE),
        ("gcra", &refunded, Operation::Refund(2)),
        ("paid_later", &paid, Operation::Consume(2)),
    ];
    let answer = bench.ask(&asked).unwrap();
    assert!(answer.denied);
    assert_eq!(
        [bench.left("gcra", &full), bench.left("gcra", &refunded)],
        [0, 0],
        "a denied request gives nothing back"
    );
    assert_eq!(bench.left("paid_later", &paid), 1, "usage that has happened is charged all the same");

    let asked = [("gcra", refunded.as_str(), Operation::Refund(2)), ("paid_later", &paid, Operation::Consume(1))];
    let answer = bench.ask(&asked).unwrap();
    assert!(!answer.denied);
    assert_eq!(answer.statuses.iter().map(|status| status.remaining).collect::<Vec<_>>(), [2, 0]);
    assert_eq!((bench.left("gcra", &refunded), bench.left("paid_later", &paid)), (2, 0));
}

#[test]
fn independent_limits_of_several_slots_are_charged_each_for_itself() {
    let bench = Bench::with(POLICY, Mode::Independent, OnError::Error, 1);
    let (full, other) = (bench.value_in("gcra", 0), bench.value_in("gcra", 1));
    assert!(!bench.ask(&[("gcra", &full, Operation::Consume(3))]).unwrap().denied);
    let answer = bench.ask(&[("gcra", &full, ONE), ("gcra", &other, ONE)]).unwrap();
    assert!(answer.denied && answer.statuses[0].over && !answer.statuses[1].over);
    assert_eq!(bench.left("gcra", &other), 2);
    assert!(bench.heard.undone.lock().is_empty());
}

#[test]
fn a_request_within_one_slot_is_one_call() {
    let bench = Bench::new();
    let value = bench.value_in("listed", 2);
    assert!(!bench.ask(&[("listed", &value, ONE)]).unwrap().denied);
    assert_eq!(bench.store.calls.load(SeqCst), 1, "both limits of the list are in one call");
}

#[test]
fn single_limits_per_second_have_a_store_of_their_own_and_lists_stay_together() {
    let (main, seconds) = (Slotted::new(1), Slotted::new(2));
    let options = Options { per_second: Some(seconds.clone()), budget: BUDGET, ..Options::new(main.clone()) };
    let limiter = limiter(POLICY, options, Arc::new(Silent));
    let calls = || (main.calls.load(SeqCst), seconds.calls.load(SeqCst));
    assert!(!run(decide(&limiter, &[("per_second", "ann", ONE)])).unwrap().denied);
    assert_eq!(calls(), (0, 1));
    assert!(!run(decide(&limiter, &[("per_second_listed", "ann", ONE)])).unwrap().denied);
    assert_eq!(calls(), (1, 1));

    // A limit in the request goes on from what a rule of the same shape has used.
    let entries = [Entry { key: "per_second", value: "ann" }];
    let asked = DescriptorRequest { entries: &entries, operation: ONE, limit: Some((3, Unit::Second.window())) };
    let query = Query { domain: "shop", caller: None, descriptors: [asked].into_iter().collect(), settle: None };
    let answer = run(limiter.decide(&query, Instant::now(), None, None)).unwrap();
    assert_eq!((calls(), answer.statuses[0].remaining), ((1, 2), 1));

    // Both in one request: all or nothing.
    assert!(!run(decide(&limiter, &[("fixed_window", "ann", Operation::Consume(3))])).unwrap().denied);
    let answer = run(decide(&limiter, &[("per_second", "ann", ONE), ("fixed_window", "ann", ONE)])).unwrap();
    assert!(answer.denied);
    let left = |key| run(limiter.show_states("shop", &[Entry { key, value: "ann" }])).unwrap()[0].remaining;
    assert_eq!((left("per_second"), left("fixed_window")), (1, 0));
    assert_eq!(run(limiter.reset("shop", &[Entry { key: "per_second", value: "ann" }])).unwrap().stored, 1);
    assert_eq!(left("per_second"), 3);
}

/// An override can move the state of a single limit to the other store: the list of states read only the store of the rule.
#[test]
fn states_that_an_override_has_moved_to_the_other_store_are_listed() {
    const PLAIN: &str = "\
domain: shop
descriptors:
- {key: second, rate_limit: {rate: 9/second}}
- {key: minute, rate_limit: {rate: 9/minute}}
";
    let clock = Arc::new(ManualClock::in_2041());
    let store = || Arc::new(Memory::new(KEYS_MAX, clock.clone(), Arc::new(Silent)));
    let (main, seconds) = (store(), store());
    let options = Options {
        per_second: Some(seconds.clone()),
        clock: clock.clone(),
        budget: BUDGET,
        ..Options::new(main.clone())
    };
    let policies = weir_policies::parse(&[("shop.yaml", PLAIN)]).expect("good policies").policies;
    let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
    let overrides = OverrideTable::new(main.clone(), policies.clone(), clock.clone());
    let limiter = Limiter::new(policies, options, Arc::new(Silent));
    for (key, unit) in [("second", Unit::Minute), ("minute", Unit::Second)] {
        let numbers = [Numbers { name: None, requests: 5, window: unit.window(), burst: None }].into();
        let entries = [(key.into(), "ann".into())].into();
        let set = Override { domain: "shop".into(), entries, numbers, until: clock.now() + 1_000_000_000 };
        let set = SetOverride { set, set_at: 0, by: "test".into(), reason: "test".into() };
        // A state of before, which is not in force.
        assert!(!run(decide(&limiter, &[(key, "ann", ONE)])).unwrap().denied);
        run(overrides.set(&set)).expect("it fits");
        assert!(!run(decide(&limiter, &[(key, "ann", ONE), (key, "bob", ONE)])).unwrap().denied);
    }
    assert_eq!((main.keys(), seconds.keys()), (Some(3), Some(3)));
    for rule in ["second", "minute"] {
        for most in [1, 10] {
            let (mut found, mut next) = (Vec::new(), Some(StatesPosition::default()));
            while let Some(from) = next {
                let page = run(limiter.states("shop", rule, from, most)).expect("the stores answer");
                found.extend(page.states.into_iter().map(|state| (state.key, state.used, state.capacity)));
                next = page.next;
            }
            found.sort();
            let (of_ann, of_bob) = if rule == "second" { ("f60s", "f1s") } else { ("f1s", "f60s") };
            let key = |value, id| format!("w1:{{shop|{rule}={value}}}{id}");
            assert_eq!(found, [(key("ann", of_ann), 1, 5), (key("bob", of_bob), 1, 9)], "{rule}");
        }
    }
}

/// Rules that say each thing, on a domain that says `local`.
const MIXED: &str = "\
domain: shop
on_error: local
descriptors:
  - key: fails
    on_error: error
    rate_limit: {rate: 3/hour}
  - key: passes
    on_error: allow
    rate_limit: {rate: 3/hour}
  - key: denies
    on_error: deny
    rate_limit: {rate: 3/hour}
  - key: watched
    on_error: deny
    shadow_mode: true
    rate_limit: {rate: 3/hour}
  - key: carries_on
    rate_limit: {rate: 3/hour}
  - key: free
    rate_limit: {unlimited: true}
";

/// A limiter none of whose calls is answered.
fn in_trouble(mode: Mode) -> Bench {
    let bench = Bench::with(MIXED, mode, OnError::Error, 1);
    for key in ["fails", "passes", "denies", "watched", "carries_on"] {
        for slot in 0..SLOTS {
            bench.store.fails(Call::Decide, &bench.key(key, &bench.value_in(key, slot)), Fault::Lost);
        }
    }
    bench
}

#[test]
fn without_a_store_an_error_fails_the_request_whatever_else_it_asks() {
    let bench = in_trouble(Mode::Atomic);
    let asked = [("carries_on", "a", ONE), ("denies", "a", ONE), ("passes", "a", ONE), ("fails", "a", ONE)];
    assert!(bench.ask(&asked).is_err());
    // Nothing else was evaluated: the local store has all three hits.
    let answer = bench.ask(&[("carries_on", "a", Operation::Consume(3))]).unwrap();
    assert!(!answer.denied);
}

#[test]
fn without_a_store_a_denial_denies_and_nothing_else_is_charged() {
    let bench = in_trouble(Mode::Atomic);
    let answer = bench.ask(&[("carries_on", "a", ONE), ("denies", "a", ONE), ("passes", "a", ONE)]).unwrap();
    let over: Vec<bool> = answer.statuses.iter().map(|status| status.over).collect();
    assert_eq!((answer.denied, over), (true, vec![false, true, false]));
    assert!(answer.statuses.iter().all(|status| status.limit.is_none()));
    assert!(
        !bench.ask(&[("carries_on", "a", Operation::Consume(3))]).unwrap().denied,
        "the local store was not charged"
    );
}

#[test]
fn without_a_store_a_refund_is_never_denied() {
    let bench = in_trouble(Mode::Atomic);
    let answer = bench.ask(&[("denies", "a", Operation::Refund(1))]).unwrap();
    assert_eq!((answer.denied, &answer.statuses[0]), (false, &Status::default()));
}

#[test]
fn without_a_store_the_local_one_carries_on_and_the_rest_passes() {
    let bench = in_trouble(Mode::Atomic);
    let asked = [("carries_on", "a", ONE), ("passes", "a", ONE), ("free", "a", ONE), ("watched", "a", ONE)];
    for left in [2, 1, 0] {
        let answer = bench.ask(&asked).unwrap();
        assert!(!answer.denied);
        assert_eq!(answer.statuses[0].remaining, left);
        assert_eq!(answer.statuses[1], Status::default(), "it passes without a current limit");
        assert_eq!(answer.statuses[2].remaining, u64::from(u32::MAX), "what is unlimited stays so");
        assert_eq!(answer.statuses[3], Status::default(), "a rule that only watches denies nobody");
    }
    let answer = bench.ask(&asked).unwrap();
    assert!(answer.denied && answer.statuses[0].over);
    let heard = bench.heard.fell_back.lock();
    let count = |action| heard.iter().filter(|&&other| other == action).count();
    assert_eq!((count(OnError::Local), count(OnError::Allow), count(OnError::Deny)), (4, 4, 4));
}

/// A request passed without an answer, although a quota has `on_error: deny`, if another quota is in shadow mode. [st-4]
#[test]
fn on_error_deny_of_a_quota_denies_beside_an_open_quota() {
    const QUOTAS: &str = "\
domain: shop
descriptors:
  - {key: denies, on_error: deny, quota_mode: true, rate_limit: 2/day}
  - {key: open, quota_mode: true, shadow_mode: true, rate_limit: 2/day}
  - {key: used, rate_limit: 3/day}
";
    let bench = Bench::with(QUOTAS, Mode::Atomic, OnError::Allow, 1);
    let [denies, open, used] = [("denies", 0), ("open", 1), ("used", 2)].map(|(key, slot)| bench.value_in(key, slot));
    assert!(!bench.ask(&[("used", &used, Operation::Consume(2))]).unwrap().denied);
    bench.store.fails(Call::Decide, &bench.key("denies", &denies), Fault::NotSent);
    let asked = [("denies", denies.as_str(), ONE), ("open", &open, ONE), ("used", &used, Operation::Refund(1))];
    let answer = bench.ask(&asked).unwrap();
    let over: Vec<_> = answer.statuses.iter().map(|status| status.over).collect();
    assert_eq!((answer.denied, &*over), (true, &[true, false, false][..]));
    // A denied request charges and refunds nothing. [dc-4]
    assert_eq!((bench.left("open", &open), bench.left("used", &used)), (2, 1));
}

#[test]
fn without_one_slot_the_others_still_count() {
    let bench = Bench::with(MIXED, Mode::Atomic, OnError::Error, 1);
    let (good, bad) = (bench.value_in("carries_on", 0), bench.value_in("carries_on", 1));
    bench.store.fails(Call::Decide, &bench.key("carries_on", &bad), Fault::NotSent);
    let asked = [("carries_on", good.as_str(), ONE), ("carries_on", &bad, ONE)];
    for _ in 0..3 {
        assert!(!bench.ask(&asked).unwrap().denied);
    }
    assert_eq!(bench.left("carries_on", &good), 0, "its own store was charged");
    let answer = bench.ask(&asked).unwrap();
    assert!(answer.denied && answer.statuses[0].over);
    // Three of the local store's are used, and the denied request took none.
    let bad_passes = bench.value_in("passes", 1);
    let spare = bench.value_in("carries_on", 2);
    let answer = bench.ask(&[("passes", &bad_passes, ONE), ("carries_on", &spare, ONE)]).unwrap();
    assert!(!answer.denied);
    assert_eq!((answer.statuses[0].clone(), answer.statuses[1].remaining), (Status::default(), 2));
}

#[test]
fn a_refund_without_a_store_is_made_once_by_the_local_one() {
    let bench = Bench::with(MIXED, Mode::Atomic, OnError::Error, 1);
    let (good, bad) = (bench.value_in("carries_on", 0), bench.value_in("carries_on", 1));
    assert!(!bench.ask(&[("carries_on", &bad, Operation::Consume(3))]).unwrap().denied);
    // The refund fails at the store, which has made it all the same: it may not be made a second time.
    bench.store.fails(Call::Decide, &bench.key("carries_on", &bad), Fault::AnswerLost);
    let calls = bench.store.calls.load(SeqCst);
    let asked = [("carries_on", good.as_str(), ONE), ("carries_on", &bad, Operation::Refund(1))];
    assert!(!bench.ask(&asked).unwrap().denied);
    assert_eq!(bench.store.calls.load(SeqCst) - calls, 2, "each slot was asked once");
}

/// A denied request refunds nothing, whether the local store decides all of it or a part. [dc-4]
#[test]
fn a_refund_of_a_request_that_quotas_deny_is_not_made_by_the_local_store() {
    const QUOTAS: &str = "\
domain: shop
on_error: local
descriptors:
  - {key: user, rate_limit: 100/hour}
  - {key: quota, quota_mode: true, rate_limit: 5/hour}
";
    for is_whole in [true, false] {
        let bench = Bench::with(QUOTAS, Mode::Atomic, OnError::Error, 1);
        let (user, quota) = (bench.value_in("user", 0), bench.value_in("quota", 1));
        bench.store.fails(Call::Decide, &bench.key("user", &user), Fault::NotSent);
        if is_whole {
            bench.store.fails(Call::Decide, &bench.key("quota", &quota), Fault::NotSent);
        }
        let left = || bench.ask(&[("user", &user, Operation::Peek)]).unwrap().statuses[0].remaining;
        assert!(!bench.ask(&[("user", &user, Operation::Consume(20))]).unwrap().denied);
        let refund =
            |hits| [("user", user.as_str(), Operation::Refund(7)), ("quota", &quota, Operation::Consume(hits))];
        let answer = bench.ask(&refund(600)).unwrap();
        assert_eq!((answer.denied, answer.statuses[0].over, left()), (true, false, 80), "{is_whole}");
        let answer = bench.ask(&refund(1)).unwrap();
        assert_eq!((answer.denied, answer.statuses[0].remaining, left()), (false, 87, 87), "{is_whole}");
    }
}

#[test]
fn a_local_denial_takes_back_what_the_stores_charged() {
    let bench = Bench::with(MIXED, Mode::Atomic, OnError::Error, 1);
    let (good, bad) = (bench.value_in("carries_on", 0), bench.value_in("carries_on", 1));
    bench.store.fails(Call::Decide, &bench.key("carries_on", &bad), Fault::Lost);
    assert!(!bench.ask(&[("carries_on", &bad, Operation::Consume(3))]).unwrap().denied);
    let answer = bench.ask(&[("carries_on", &good, ONE), ("carries_on", &bad, ONE)]).unwrap();
    assert!(answer.denied && !answer.statuses[0].over && answer.statuses[1].over);
    assert_eq!((bench.left("carries_on", &good), answer.statuses[0].remaining), (3, 3));
}

#[test]
fn a_reset_reaches_the_local_store() {
    let bench = in_trouble(Mode::Independent);
    assert!(!bench.ask(&[("carries_on", "a", Operation::Consume(3))]).unwrap().denied);
    assert!(bench.ask(&[("carries_on", "a", ONE)]).unwrap().denied);
    run(bench.limiter.reset("shop", &[Entry { key: "carries_on", value: "a" }])).unwrap();
    assert!(!bench.ask(&[("carries_on", "a", ONE)]).unwrap().denied);
}
