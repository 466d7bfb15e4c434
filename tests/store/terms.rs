//! Limits with a term, on both stores: each answer is that of a policy that has only the limits that apply then. Not in here:
//! the transition alone (vectors/decide.toml, differential.rs).

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy};
use proptest::prop_oneof;
use proptest::sample::subsequence;
use weir_engine::{Micros, Mode, Take};
use weir_limiter::Answer;
use weir_text::instant_text;

use crate::support::arbitrary::START_US;
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
}

impl Timed {
    fn applies_at(&self, since: Micros) -> bool {
        self.from.is_none_or(|from| from <= since) && self.until.is_none_or(|until| since < until)
    }

    fn text(&self, with_term: bool) -> String {
        let key = |name: &str, at: Option<Micros>| match at.filter(|_| with_term) {
            Some(at) => format!(", {name}: \"{}\"", instant_text(START_US + at)),
            None => String::new(),
        };
        let (from, until) = (key("from", self.from), key("until", self.until));
        format!("  - {{{}, name: '{}'{from}{until}}}\n", LIMITS[self.place], self.place)
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
    (subsequence(places, 1..6), vec(term, 6)).prop_map(|(places, terms)| {
        let us = |seconds: Option<u64>| seconds.map(|seconds| seconds * 1_000_000);
        let timed = |(place, (from, until))| Timed { place, from: us(from), until: us(until) };
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

fn asks() -> impl Strategy<Value = Vec<(Take, Move)>> {
    let take = prop_oneof![
        6 => (1..4_u32).prop_map(Take::Consume),
        1 => Just(Take::Peek),
        1 => (1..3_u32).prop_map(Take::Refund),
    ];
    let step = prop_oneof![
        3 => Just(Move::By(0)),
        3 => (0..1_200_000_000_u64).prop_map(Move::By),
        3 => (0..2_u64).prop_map(Move::ToEdge),
    ];
    vec((take, step), 1..25)
}

/// What does not depend on when limits end.
fn told(answer: &Answer) -> String {
    let statuses = answer.statuses.iter().map(|status| {
        let charged = status.detail.map(|detail| detail.charged);
        (status.over, status.limit.is_some(), if status.over { 0 } else { status.remaining }, charged)
    });
    format!("{} {:?} {:?}", answer.denied, statuses.collect::<Vec<_>>(), answer.metadata)
}

/// Runs one history on one store. [te-1] [te-4]
fn check(worlds: &Worlds<'_>, limits: &[Timed], mode: Mode, asks: &[(Take, Move)]) {
    let all = worlds.with(&policy(limits.iter(), true), mode);
    let other = worlds.with(&policy(limits.iter(), false), mode);
    for &(take, step) in asks {
        let since = all.now() - START_US;
        let step = match step {
            Move::By(us) => us,
            Move::ToEdge(before) => {
                let edges = limits.iter().flat_map(|limit| [limit.from, limit.until]).flatten();
                edges.map(|edge| edge - before).filter(|edge| *edge > since).min().map_or(0, |edge| edge - since)
            }
        };
        all.step(step);
        other.step(step);
        let applying: Vec<&Timed> = limits.iter().filter(|limit| limit.applies_at(since + step)).collect();
        other.swap(&policy(applying.iter().copied(), false));
        let (answer, expected) = (all.ask(take), other.ask(take));
        assert_eq!(told(&answer), told(&expected), "{take:?} {} us after the start", since + step);
        assert_eq!(all.trials.take(), other.trials.take(), "what is counted");
        if applying.iter().all(|limit| limit.until.is_none()) {
            assert_eq!(answer, expected);
            continue;
        }
        // With every other limit gone at its end, nobody waits longer than to the last of the ends.
        let ends = applying.iter().map(|limit| limit.until.map(|until| until - since - step));
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
