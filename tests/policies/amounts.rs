//! `weir diff`: the direction of a changed limit against the answers to traffic, for every pair of algorithms and of flags.
//!
//! Two servers, one with each limit, begin empty and get the same requests of one hit. Where `weir diff` says "looser", the new
//! limit has never let fewer of them pass than the old one; where it says "stricter", never more; where it says neither, always as
//! many. `WEIR_PROPTEST_CASES` sets how many pairs there are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any};
use proptest::sample::select;
use proptest::{prop_assert, prop_oneof, proptest};
use weir_engine::observer::Silent;
use weir_engine::{Entry, Micros, Operation, PolicySet};
use weir_lab::comparison::{Direction, compare};
use weir_lab::world::World;
use weir_limiter::{Answer, DescriptorRequest, HeldCharge, Query, Settle};
use weir_policies::parse;
use weir_policies::test_file::with_defaults;

use crate::support::arbitrary::{START_US, config};

/// The unit of windows: six of them are a day.
const UNIT_S: u64 = 4 * 3_600;
const UNIT_US: Micros = UNIT_S * 1_000_000;
/// The longest term and traffic, in units.
const SPAN: u64 = 60;

/// A way in which limits count: its keys, and whether its window is of a calendar.
type Form = (&'static str, bool);

const FORMS: [Form; 15] = [
    ("algorithm: fixed_window", false),
    ("anchor: first_hit", false),
    ("unit: day, calendar: true", true),
    ("unit: day, calendar: true, timezone: America/New_York", true),
    ("unit: week, calendar: true", true),
    ("algorithm: sliding_window_counter", false),
    ("algorithm: sliding_window, precision: 20m", false),
    ("algorithm: sliding_window, precision: 1h", false),
    ("algorithm: sliding_window, precision: 4h", false),
    ("algorithm: sliding_window_log", false),
    ("algorithm: gcra, burst: BURST", false),
    ("algorithm: leaky_bucket, burst: BURST", false),
    ("algorithm: token_bucket, burst: BURST", false),
    ("algorithm: token_bucket, refill: interval, burst: BURST", false),
    (PERMITS, true),
];
const PERMITS: &str = "algorithm: concurrency, window: 1h";

/// Flags that can be together, of which a limit has those that its algorithm takes.
const FLAGS: [&str; 10] = [
    "",
    "drain: true",
    "post_paid: true",
    "hold: true",
    "hold: {at_least: 1}",
    "shadow: true",
    "post_paid: true, drain: true",
    "hold: true, shadow: true",
    "drain: true, shadow: true",
    "counts: requests",
];
/// Spans of the week, of which some cover others. The traffic begins on a Thursday.
const DURING: [&str; 7] = [
    "",
    "'00:00-24:00'",
    "'06:00-18:00'",
    "'Thu-Sat 08:00-16:00'",
    "['22:00-06:00', 'Sun 10:00-12:00']",
    "['20:00-06:00', 'Sat,Sun 08:00-16:00']",
    "'06:00-18:00 America/New_York'",
];

#[derive(Clone, Debug, PartialEq, Eq)]
struct Spec {
    form: Form,
    hits: u32,
    burst: u32,
    /// In units.
    window: u64,
    flags: &'static str,
    /// From and until, in units after the first one of the traffic.
    term: (Option<u64>, Option<u64>),
    during: &'static str,
}

impl Spec {
    fn of(form: Form, hits: u32) -> Self {
        Self { form, hits, burst: hits.max(1), window: 3, flags: "", term: (None, None), during: "" }
    }

    fn yaml(&self) -> String {
        let (keys, has_window) = self.form;
        let mut yaml =
            format!("{{requests_per_unit: {}, {}", self.hits, keys.replace("BURST", &self.burst.to_string()));
        if !has_window {
            let _ = write!(yaml, ", window: {}s", self.window * UNIT_S);
        }
        let is_refused = |flag: &str| match flag {
            "hold: true" | "hold: {at_least: 1}" => {
                !["fixed_window", "first_hit", "calendar", "sliding_window,", "counter"]
                    .iter()
                    .any(|of| keys.contains(of))
            }
            "post_paid: true" | "drain: true" | "counts: requests" => {
                keys == PERMITS || flag.starts_with('p') && keys.contains("log")
            }
            _ => false,
        };
        for flag in self.flags.split(", ").filter(|flag| !flag.is_empty() && !is_refused(flag)) {
            let _ = write!(yaml, ", {flag}");
        }
        let instant = |units: u64| weir_text::instant_text(START_US + units * UNIT_US);
        let (from, until) = self.term;
        for (key, at) in [("from", from), ("until", until)] {
            if let Some(at) = at {
                let _ = write!(yaml, ", {key}: \"{}\"", instant(at));
            }
        }
        if !self.during.is_empty() {
            let _ = write!(yaml, ", during: {}", self.during);
        }
        yaml + "}"
    }

    fn policies(&self) -> PolicySet {
        let yaml = format!("domain: shop\ndescriptors: [{{key: user, rate_limit: {}}}]\n", self.yaml());
        parse(&[("shop.yaml", &yaml)]).unwrap_or_else(|problems| panic!("{problems}\n{yaml}")).policies
    }
}

fn hits() -> impl Strategy<Value = u32> {
    prop_oneof![1 => Just(0), 6 => 1..5_u32, 3 => 5..13_u32, 1 => 13..80_u32]
}

fn window() -> impl Strategy<Value = u64> {
    select(vec![1_u64, 2, 3, 4, 6, 8, 12])
}

fn term() -> impl Strategy<Value = (Option<u64>, Option<u64>)> {
    let end = || prop_oneof![2 => Just(None), 1 => (0..SPAN / 2).prop_map(Some)];
    let length = prop_oneof![1 => Just(None), 1 => (1..SPAN / 2).prop_map(Some)];
    let both = (end(), length).prop_map(|(from, length)| (from, length.map(|length| from.unwrap_or(0) + length)));
    prop_oneof![8 => Just((None, None)), 1 => both]
}

fn spec() -> impl Strategy<Value = Spec> {
    let flags = prop_oneof![3 => Just(""), 2 => select(FLAGS.to_vec())];
    let burst = prop_oneof![1 => Just(None), 1 => (1..13_u32).prop_map(Some)];
    let during = prop_oneof![3 => Just(""), 2 => select(DURING.to_vec())];
    (select(FORMS.to_vec()), hits(), burst, window(), flags, term(), during).prop_map(
        |(form, hits, burst, window, flags, term, during)| {
            let burst = burst.unwrap_or(hits.max(1));
            Spec { form, hits, burst, window, flags, term, during }
        },
    )
}

/// The old limit and the new one, which often differ only in a part.
fn pair() -> impl Strategy<Value = (Spec, Spec)> {
    (spec(), spec(), vec(any::<bool>(), 6)).prop_map(|(old, other, kept)| {
        let mut new = other;
        if kept[0] {
            new.form = old.form;
        }
        if kept[1] {
            (new.window, new.flags) = (old.window, old.flags);
        }
        if kept[2] || kept[3] {
            new.term = old.term;
        }
        if kept[1] || kept[3] {
            new.during = old.during;
        }
        if kept[4] {
            new.hits = old.hits;
        }
        if kept[5] {
            new.burst = old.burst;
        }
        (old, new)
    })
}

/// A request: how long after the one before, and when it settles with how many hits, if it holds some.
type Ask = (Micros, Option<(Micros, u32)>);

fn ask() -> impl Strategy<Value = Ask> {
    let step = || {
        prop_oneof![
            6 => Just(0),
            1 => Just(1),
            2 => (1..13_u64).prop_map(|parts| UNIT_US / parts),
            2 => (1..7_u64).prop_map(|units| units * UNIT_US),
            1 => (1..7_u64).prop_map(|units| units * UNIT_US - 1),
            4 => 0..3 * UNIT_US,
        ]
    };
    (step(), prop_oneof![1 => Just(None), 2 => (step(), 0..2_u32).prop_map(Some)])
}

/// A server with one limit.
struct Server {
    world: World,
    /// What is held, by the time at which it is settled.
    held: BTreeMap<(Micros, usize), (u32, Vec<HeldCharge>)>,
}

impl Server {
    fn of(policies: PolicySet) -> Self {
        let settings = Arc::new(with_defaults(&[]).unwrap());
        Self { world: World::new(Arc::new(policies), &settings, Arc::new(Silent)), held: BTreeMap::new() }
    }

    fn send(&self, hits: u32, settle: Option<Vec<HeldCharge>>) -> Answer {
        let entries = [Entry { key: "user", value: "ann" }];
        let operation = if hits == 0 { Operation::Peek } else { Operation::Consume(hits) };
        let mut query = Query { domain: "shop", caller: None, descriptors: Default::default(), settle: None };
        query.descriptors.push(DescriptorRequest { entries: &entries, operation, limit: None });
        query.settle = settle.map(|holds| Box::new(Settle { descriptors: 1, holds }));
        self.world.decide_now(&query).unwrap()
    }

    /// Whether a request passes. What is settled until then is settled before.
    fn passes(&mut self, now: Micros, hits: u32, number: usize, settles: Option<(Micros, u32)>) -> bool {
        while let Some(first) = self.held.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), (used, holds)) = first.remove_entry();
            self.world.set_now(at);
            self.send(used, Some(holds));
        }
        self.world.set_now(now);
        let answer = self.send(hits, None);
        if let Some((lasts, used)) = settles.filter(|_| !answer.holds.is_empty()) {
            self.held.insert((now + lasts, number), (used, answer.holds));
        }
        !answer.denied
    }
}

/// What `weir diff` says.
fn said(old: &PolicySet, new: &PolicySet) -> Direction {
    let comparison = compare(old, new);
    assert!(comparison.unknown.is_empty());
    comparison.rules.first().map_or(Direction::Neither, |change| change.direction)
}

/// The hits that have passed, old and new, when traffic refuted what was said.
fn refuted(old: &Spec, new: &Spec, start: Micros, asks: &[(u32, Ask)]) -> Option<(Direction, u64, u64)> {
    let (old, new) = (old.policies(), new.policies());
    let direction = said(&old, &new);
    let (mut before, mut now) = (Server::of(old), Server::of(new));
    let (mut time, mut passed_before, mut passed_now) = (START_US + start, 0, 0);
    for (number, (hits, (step, settles))) in asks.iter().enumerate() {
        time += step;
        passed_before += u64::from(*hits) * u64::from(before.passes(time, *hits, number, *settles));
        passed_now += u64::from(*hits) * u64::from(now.passes(time, *hits, number, *settles));
        let is_true = match direction {
            Direction::Looser => passed_now >= passed_before,
            Direction::Stricter => passed_now <= passed_before,
            Direction::Neither => passed_now == passed_before,
            Direction::Both => true,
        };
        if !is_true {
            return Some((direction, passed_before, passed_now));
        }
    }
    None
}

proptest! {
    #![proptest_config(config(1))]

    #[test]
    fn no_traffic_refutes_the_direction_of_a_changed_limit(
        (old, new) in pair(),
        start in prop_oneof![Just(0), 0..6 * UNIT_US],
        asks in vec(ask(), 1..120),
    ) {
        let asks: Vec<(u32, Ask)> = asks.into_iter().map(|ask| (1, ask)).collect();
        let refuted = refuted(&old, &new, start, &asks);
        prop_assert!(refuted.is_none(), "{}\n{}\n{refuted:?}", old.yaml(), new.yaml());
    }

    #[test]
    fn no_traffic_refutes_it_where_hits_are_held_or_reported(
        form in select(FORMS.to_vec()),
        flags in select(vec!["hold: true", "post_paid: true"]),
        [old_hits, new_hits] in [1..5_u32, 1..5_u32],
        [old_burst, new_burst] in [1..7_u32, 1..7_u32],
        asks in vec(ask(), 1..120),
    ) {
        let old = Spec { flags, burst: old_burst, window: 1, ..Spec::of(form, old_hits) };
        let new = Spec { flags, burst: new_burst, window: 1, ..Spec::of(form, new_hits) };
        let asks: Vec<(u32, Ask)> = asks.into_iter().map(|ask| (1, ask)).collect();
        let refuted = refuted(&old, &new, 0, &asks);
        prop_assert!(refuted.is_none(), "{}\n{}\n{refuted:?}", old.yaml(), new.yaml());
    }

    /// In windows of the clock and of the calendar the direction is true of larger requests too, with `drain` among others.
    #[test]
    fn no_larger_requests_refute_the_direction_in_the_same_windows(
        form in select(vec![FORMS[0], FORMS[3], FORMS[4]]),
        [old_hits, new_hits] in [hits(), hits()],
        [old_flags, new_flags] in [select(vec!["", "drain: true"]), select(vec!["", "drain: true"])],
        asks in vec((1..7_u32, ask()), 1..60),
    ) {
        let old = Spec { flags: old_flags, ..Spec::of(form, old_hits) };
        let new = Spec { flags: new_flags, ..Spec::of(form, new_hits) };
        let refuted = refuted(&old, &new, 0, &asks);
        prop_assert!(refuted.is_none(), "{}\n{}\n{refuted:?}", old.yaml(), new.yaml());
    }
}

/// Pairs for which random traffic seldom finds what refutes "looser", each with traffic that does.
#[test]
fn larger_numbers_are_not_looser_where_windows_or_holds_can_be_used_up_earlier() {
    /// Requests at one time, in thousandths of a unit: how many, and after how long each gives all back.
    type At = (u64, usize, Option<u64>);
    let first_hit = Spec { window: 1, flags: "hold: true", ..Spec::of(FORMS[1], 1) };
    let counter = Spec { window: 1, flags: "hold: true", ..Spec::of(FORMS[5], 10) };
    let steps = Spec { window: 10, burst: 4, ..Spec::of(FORMS[13], 3) };
    let permits = Spec { window: 1, ..Spec::of((PERMITS, true), 1) };
    let shorter = ("algorithm: concurrency, window: 30m", true);
    let cases: [(Spec, Spec, &[At]); 5] = [
        // The second request is admitted by 2 only: its window begins at 0 and not at 900, and the next one is used up at 1,850.
        (
            first_hit.clone(),
            Spec { hits: 2, ..first_hit },
            &[
                (0, 1, Some(100)),
                (50, 1, None),
                (900, 1, None),
                (1_500, 1, None),
                (1_850, 1, None),
                (1_950, 9, Some(0)),
            ],
        ),
        // 11 weighs the earlier window by another fraction, so that its second hit at 1,095 leaves no room at 1,101.
        (counter.clone(), Spec { hits: 11, ..counter }, &[(0, 11, None), (1_095, 2, None), (1_101, 9, Some(0))]),
        // The bucket of 4 tokens is full again at 10,000, so its next period begins at 19,000 and not at 20,000.
        (steps.clone(), Spec { hits: 4, ..steps.clone() }, &[(0, 4, None), (19_000, 3, None), (20_001, 3, None)]),
        (
            Spec { flags: "post_paid: true", ..steps.clone() },
            Spec { hits: 4, flags: "post_paid: true", ..steps },
            &[(0, 4, None), (19_000, 3, None), (20_001, 3, None)],
        ),
        // A permit of half an hour is free for a request that stays when one of an hour is not.
        (permits.clone(), Spec { form: shorter, ..permits }, &[(0, 1, None), (240, 1, None), (260, 9, Some(0))]),
    ];
    for (old, new, traffic) in cases {
        assert_eq!(said(&old.policies(), &new.policies()), Direction::Both, "{}", old.yaml());
        let (mut before, mut now) = (Server::of(old.policies()), Server::of(new.policies()));
        let mut passed = [0, 0];
        for (number, (at, count, gives_back)) in traffic.iter().enumerate() {
            let time = START_US + at * UNIT_US / 1_000;
            let settles = gives_back.map(|after| (after * UNIT_US / 1_000, 0));
            for _ in 0..*count {
                passed[0] += usize::from(before.passes(time, 1, number, settles));
                passed[1] += usize::from(now.passes(time, 1, number, settles));
            }
        }
        assert!(passed[0] > passed[1], "{}\n{}: {passed:?}", old.yaml(), new.yaml());
    }
}

/// Whether the window of a form is of a calendar with other days than those of the clock.
fn is_local(form: Form) -> bool {
    form.0.contains("week") || form.0.contains("timezone")
}

#[test]
fn every_pair_of_algorithms_has_a_direction_or_none() {
    for old in FORMS {
        for new in FORMS {
            let direction =
                |old_hits, new_hits| said(&Spec::of(old, old_hits).policies(), &Spec::of(new, new_hits).policies());
            let is_other = old.0 != new.0;
            let has_none = is_other && [old, new].into_iter().any(|form| is_local(form) || form.0 == PERMITS);
            let expected = if has_none { [Direction::Both; 2] } else { [Direction::Looser, Direction::Stricter] };
            assert_eq!([direction(2, 900), direction(900, 2)], expected, "{} > {}", old.0, new.0);
            assert!(is_other || direction(2, 2) == Direction::Neither, "{}", old.0);
        }
    }
}

#[test]
fn every_pair_of_flags_has_a_direction() {
    let form = FORMS[0];
    let changes_what_is_charged = |flags: &str| ["hold", "post_paid", "counts"].iter().any(|key| flags.contains(key));
    for old in FLAGS {
        for new in FLAGS.into_iter().filter(|new| *new != old) {
            let direction = said(
                &Spec { flags: old, ..Spec::of(form, 5) }.policies(),
                &Spec { flags: new, ..Spec::of(form, 5) }.policies(),
            );
            let is_shadow = |flags: &str| flags.contains("shadow");
            let drains = |flags: &str| flags.contains("drain");
            let expected = match (is_shadow(old), is_shadow(new)) {
                (true, true) => Direction::Neither,
                (false, true) => Direction::Looser,
                (true, false) => Direction::Stricter,
                _ if changes_what_is_charged(old) || changes_what_is_charged(new) => {
                    let same = old.replace(", drain: true", "") == new.replace(", drain: true", "");
                    if !same {
                        Direction::Both
                    } else if drains(new) {
                        Direction::Stricter
                    } else {
                        Direction::Looser
                    }
                }
                _ if drains(new) => Direction::Stricter,
                _ => Direction::Looser,
            };
            assert_eq!(direction, expected, "{old:?} > {new:?}");
        }
    }
}
