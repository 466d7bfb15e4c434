//! Limits with a term, on both stores: each answer is that of a policy that has only the limits that apply then. Not in here:
//! the transition alone (vectors/decide.toml, differential.rs), and when the spans of zones begin (weir-text).

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use proptest::sample::{select, subsequence};
use weir_engine::overrides::Numbers;
use weir_engine::{Micros, Mode, Operation, Unit};
use weir_limiter::{Answer, Settle};
use weir_text::instant_text;

use crate::support::arbitrary::START_US;
use crate::support::redis::RedisServer;
use crate::support::worlds::{Worlds, on_both_stores};

/// Limits of different shapes: no two of a list share a state.
const LIMITS: [&str; 9] = [
    "rate: 3/hour",
    "rate: 4/hour, anchor: first_hit",
    "rate: 5/day, calendar: true, timezone: Europe/Berlin",
    "rate: 5/hour, algorithm: gcra, burst: 2, shadow: true",
    "rate: 4/hour, algorithm: sliding_window_counter",
    "rate: 3/hour, algorithm: sliding_window, precision: 10m",
    "rate: 4/hour, algorithm: sliding_window_log, drain: true",
    "rate: 3/hour, algorithm: token_bucket, refill: interval",
    "rate: 9/hour, algorithm: leaky_bucket, post_paid: true",
];
/// How many histories one proptest case stands for: each starts two stores.
const SHARE: u32 = 10;

/// A limit by its place, and when it begins and ends, in microseconds since the start.
#[derive(Clone, Copy, Debug)]
struct Timed {
    place: usize,
    from: Option<Micros>,
    until: Option<Micros>,
    /// Spans of each day, in minutes.
    during: &'static [(Micros, Micros)],
}

/// Spans within the first hours, of which some touch or overlap.
const SPANS: [&[(Micros, Micros)]; 6] = [
    &[(0, 60)],
    &[(30, 45), (45, 50)],
    &[(10, 100), (20, 130)],
    &[(1_380, 20)],
    &[(5, 6), (7, 8), (90, 1_440)],
    &[(0, 1_440)],
];
const MINUTE_US: Micros = 60_000_000;
const DAY_MINUTES: Micros = 1_440;

impl Timed {
    fn applies_at(&self, since: Micros) -> bool {
        let is_within = self.from.is_none_or(|from| from <= since) && self.until.is_none_or(|until| since < until);
        let minute = since / MINUTE_US % DAY_MINUTES;
        let shows = |&(from, until): &(Micros, Micros)| {
            if from < until { from <= minute && minute < until } else { from <= minute || minute < until }
        };
        is_within && (self.during.is_empty() || self.during.iter().any(shows))
    }

    /// The starts and ends of its spans after an instant.
    fn edges(&self, since: Micros) -> impl Iterator<Item = Micros> {
        let today = since / MINUTE_US / DAY_MINUTES;
        let minutes = self.during.iter().flat_map(|(from, until)| [*from, *until]);
        let days =
            minutes.flat_map(move |minute| [today, today + 1].map(|day| (day * DAY_MINUTES + minute) * MINUTE_US));
        days.filter(move |edge| *edge > since)
    }

    /// Its end, of a limit that applies.
    fn ends_at(&self, since: Micros) -> Option<Micros> {
        self.edges(since).chain(self.until).filter(|end| *end > since && !self.applies_at(*end)).min()
    }

    fn text(&self, with_term: bool) -> String {
        let key = |name: &str, at: Option<Micros>| match at.filter(|_| with_term) {
            Some(at) => format!(", {name}: \"{}\"", instant_text(START_US + at)),
            None => String::new(),
        };
        let (from, until) = (key("from", self.from), key("until", self.until));
        let spans = self.during.iter().filter(|_| with_term).map(|(from, until)| {
            let [from, until] = [from, until].map(|minute| format!("{:02}:{:02}", minute / 60, minute % 60));
            format!("{from}-{until}")
        });
        let spans: Vec<String> = spans.map(|span| format!("'{span}'")).collect();
        let during = if spans.is_empty() { String::new() } else { format!(", during: [{}]", spans.join(", ")) };
        format!("  - {{{}, name: '{}'{from}{until}{during}}}\n", LIMITS[self.place], self.place)
    }
}

fn policy<'t>(limits: impl Iterator<Item = &'t Timed>, with_terms: bool) -> String {
    let limits: String = limits.map(|limit| limit.text(with_terms)).collect();
    let list = if limits.is_empty() { String::new() } else { format!("  rate_limits:\n{limits}") };
    format!("domain: shop\ndescriptors:\n- key: user\n  metadata: {{plan: free}}\n{list}")
}

fn lists() -> impl Strategy<Value = Vec<Timed>> {
    let places: Vec<usize> = (0..LIMITS.len()).collect();
    let at = || 1..9_000_u64;
    let term = prop_oneof![
        1 => Just((None, None)),
        2 => at().prop_map(|from| (Some(from), None)),
        2 => at().prop_map(|until| (None, Some(until))),
        2 => (at(), at()).prop_map(|(from, length)| (Some(from), Some(from + length))),
    ];
    let during = prop_oneof![1 => Just(&[][..]), 1 => select(SPANS.to_vec())];
    (subsequence(places, 1..6), vec((term, during), 6)).prop_map(|(places, terms)| {
        let us = |seconds: Option<u64>| seconds.map(|seconds| seconds * 1_000_000);
        let timed = |(place, ((from, until), during))| Timed { place, from: us(from), until: us(until), during };
        places.into_iter().zip(terms).map(timed).collect()
    })
}

/// How the clock goes on before a request.
#[derive(Clone, Copy, Debug)]
enum Move {
    By(Micros),
    /// To the next begin or end of a limit, or one microsecond before it.
    ToEdge(Micros),
}

fn asks() -> impl Strategy<Value = Vec<(Operation, Move)>> {
    let operation = prop_oneof![
        6 => (1..4_u32).prop_map(Operation::Consume),
        1 => Just(Operation::Peek),
        1 => (1..3_u32).prop_map(Operation::Refund),
    ];
    let step = prop_oneof![
        3 => Just(Move::By(0)),
        3 => (0..1_200_000_000_u64).prop_map(Move::By),
        3 => (0..2_u64).prop_map(Move::ToEdge),
    ];
    vec((operation, step), 1..25)
}

/// What does not depend on when limits end.
fn told(answer: &Answer) -> String {
    let statuses = answer.statuses.iter().map(|status| {
        let charged = status.detail.map(|detail| detail.charged);
        (status.over, status.limit.is_some(), if status.over { 0 } else { status.remaining }, charged)
    });
    format!("{} {:?} {:?}", answer.denied, statuses.collect::<Vec<_>>(), answer.metadata)
}

/// Runs one history on one store. [te-1] [te-4] [te-5]
fn check(worlds: &Worlds<'_>, limits: &[Timed], mode: Mode, asks: &[(Operation, Move)]) {
    let all = worlds.with(&policy(limits.iter(), true), mode);
    let other = worlds.with(&policy(limits.iter(), false), mode);
    for &(operation, step) in asks {
        let since = all.now() - START_US;
        let step = match step {
            Move::By(us) => us,
            Move::ToEdge(before) => {
                let edges = limits.iter().flat_map(|limit| [limit.from, limit.until]).flatten();
                let edges = edges.chain(limits.iter().flat_map(|limit| limit.edges(since)));
                edges.map(|edge| edge - before).filter(|edge| *edge > since).min().map_or(0, |edge| edge - since)
            }
        };
        all.step(step);
        other.step(step);
        let applying: Vec<&Timed> = limits.iter().filter(|limit| limit.applies_at(since + step)).collect();
        other.swap(&policy(applying.iter().copied(), false));
        let (answer, expected) = (all.ask(operation), other.ask(operation));
        assert_eq!(told(&answer), told(&expected), "{operation:?} {} us after the start", since + step);
        assert_eq!(all.trials.take(), other.trials.take(), "what is counted");
        if applying.iter().all(|limit| limit.until.is_none() && limit.during.is_empty()) {
            assert_eq!(answer, expected);
            continue;
        }
        // With every other limit gone at its end, nobody waits longer than to the last of the ends.
        let ends = applying.iter().map(|limit| limit.ends_at(since + step).map(|end| end - since - step));
        let last = ends.max_by_key(|end| end.unwrap_or(Micros::MAX)).flatten();
        if let (Some(last), true) = (last, answer.denied) {
            assert!(answer.retry_after.is_some_and(|wait| wait <= last), "{answer:?}, {last} us to the last end");
        }
    }
    other.swap(&policy(limits.iter(), false));
    assert_eq!(all.states(), other.states());
}

#[test]
fn each_answer_is_that_of_the_limits_that_apply_then() {
    let histories = (lists(), prop_oneof![Just(Mode::Atomic), Just(Mode::Independent)], asks());
    on_both_stores(&histories, SHARE, |worlds, (limits, mode, asks)| check(worlds, &limits, mode, &asks));
}

const MAINTENANCE: &str = "domain: shop
descriptors:
- key: user
  rate_limits:
  - {rate: 90/day, name: usual}
  - {rate: 3/day, name: strict, during: [\"Thu 00:10-00:20\", \"Thu 00:20-00:30\", \"daily 01:00-01:10\"]}
";

/// [te-6] [te-3] [te-4]
#[test]
fn a_wait_ends_with_the_last_of_the_spans_that_touch_and_the_state_stays() {
    let server = RedisServer::start();
    for worlds in [Worlds::of(None), Worlds::of(Some(&server))] {
        let world = worlds.with(MAINTENANCE, Mode::Atomic);
        let remaining = |operation| world.ask(operation).statuses[0].remaining;
        assert_eq!(remaining(Operation::Consume(4)), 86, "before the first span");
        world.step(10 * MINUTE_US);
        assert_eq!(remaining(Operation::Consume(2)), 1, "of the strict limit");
        // 4 never fit, but the limit ends.
        for hits in [2, 4] {
            assert_eq!(world.ask(Operation::Consume(hits)).retry_after, Some(20 * MINUTE_US), "{hits} hits");
        }
        world.step(20 * MINUTE_US - 1);
        assert_eq!(world.ask(Operation::Consume(2)).retry_after, Some(1));
        world.step(1);
        assert_eq!(remaining(Operation::Consume(2)), 82, "between two spans");
        world.step(30 * MINUTE_US);
        assert_eq!(remaining(Operation::Peek), 1, "2 of this day are used");
        world.step(1_440 * MINUTE_US);
        assert_eq!(remaining(Operation::Consume(1)), 2, "another day");
        // Other numbers, the same spans.
        let (name, window) = (Some("strict".into()), Unit::Day.window());
        world.set_override(&[Numbers { name, requests: 7, window, burst: None }]);
        assert_eq!(remaining(Operation::Peek), 6);
        world.step(10 * MINUTE_US);
        assert_eq!(remaining(Operation::Peek), 89, "after the span");
    }
}

/// [te-5] [te-4] A settle outside of the span gives back what was held in it.
#[test]
fn a_hold_of_a_span_is_settled_after_it() {
    let policy = "domain: shop\ndescriptors:\n- key: user\n  rate_limits:\n  - \
                  {rate: 9/day, hold: true, during: \"daily 00:00-00:10\"}\n";
    let server = RedisServer::start();
    for worlds in [Worlds::of(None), Worlds::of(Some(&server))] {
        let world = worlds.with(policy, Mode::Atomic);
        let holds = world.ask(Operation::Consume(6)).holds;
        assert_eq!(holds.len(), 1);
        world.step(10 * MINUTE_US);
        let settle = Settle { descriptors: 1, holds };
        let answer = world.ask_for(&[("user", "ann", Operation::Consume(2))], Some(settle));
        assert_eq!(answer.statuses[0].limit, None, "outside of the span the status is bare");
        assert!(world.ask(Operation::Consume(9)).holds.is_empty(), "no limit, so no hold");
        world.swap(&policy.replace("daily 00:00-00:10", "daily 00:00-00:20"));
        assert_eq!(world.ask(Operation::Peek).statuses[0].remaining, 7, "9 less 2");
    }
}

/// By day, a hold of the night made each report of a request a peek. [te-1] [hd-3]
#[test]
fn a_hold_outside_of_its_span_has_no_say_about_post_paid_limits() {
    let policy = "domain: shop\ndescriptors:\n- key: user\n  rate_limits:\n  - \
                  {rate: 1000/h, hold: true, during: \"daily 00:00-00:10\"}\n  - {rate: 100/day, post_paid: true}\n";
    let server = RedisServer::start();
    for worlds in [Worlds::of(None), Worlds::of(Some(&server))] {
        let world = worlds.with(policy, Mode::Atomic);
        let left = || world.ask(Operation::Peek).statuses[0].remaining;
        let settle = |used, holds| {
            world.ask_for(&[("user", "ann", Operation::Consume(used))], Some(Settle { descriptors: 1, holds }));
        };
        let holds = world.ask(Operation::Consume(6)).holds;
        assert_eq!((holds.len(), left()), (1, 100), "within the span the settle reports");
        world.step(10 * MINUTE_US);
        assert!(world.ask(Operation::Consume(5)).holds.is_empty(), "outside of it nothing is held");
        assert_eq!(left(), 95, "and the opening reports");
        settle(3, Vec::new());
        assert_eq!(left(), 95, "its settle does not");
        settle(2, holds);
        assert_eq!(left(), 93, "a hold of the span is settled");
    }
}
