//! Which decisions report that a share of a limit was crossed, on random schedules. [al-1] [al-2]

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_engine::decision::{decide, key_indices};
use weir_engine::{
    Algorithm, Anchor, Bounds, CalendarUnit, Charge, Count, Limit, Micros, Mode, Operation, Rise, Role, Shares, State,
    Unit,
};

const REQUESTS: u32 = 20;
const SHARES: [u8; 5] = [1, 33, 50, 80, 100];
/// 2033-05-18, three hours and a half into the day.
const START: Micros = 2_000_000_000_000_000;
const DAY_US: u64 = 86_400_000_000;

fn limits() -> [Limit; 3] {
    [Anchor::Clock, Anchor::FirstHit, Anchor::Calendar(CalendarUnit::Day)].map(|anchor| {
        let algorithm = Algorithm::FixedWindow { anchor };
        let mut limit = Limit::new(REQUESTS.into(), Unit::Day.window(), algorithm).unwrap();
        limit.alert_at = Shares::new(&SHARES.map(u32::from)).unwrap();
        limit
    })
}

fn bounds(limit: &Limit, now: Micros) -> Option<Bounds> {
    let start = now / DAY_US * DAY_US;
    limit.calendar().map(|_| [start - DAY_US, start, start + DAY_US, start + 2 * DAY_US])
}

/// The window of a key and its hits, straight from the state.
fn counted(limit: &Limit, state: Option<&State>, now: Micros) -> (Micros, Count) {
    let window = limit.kind().counted(&limit.kind().within(bounds(limit, now)).observe(state, 0, now), now).unwrap();
    (window.start, window.count)
}

/// The least hits that are a share of the limit.
fn hits_of(share: u8) -> u32 {
    (1..=REQUESTS).find(|hits| hits * 100 >= u32::from(share) * REQUESTS).unwrap()
}

#[derive(Clone, Debug)]
struct Step {
    takes: Vec<(usize, Operation, Role)>,
    mode: Mode,
    after: Micros,
}

fn take(refunds: bool) -> impl Strategy<Value = Operation> {
    let refund = if refunds { 2 } else { 0 };
    prop_oneof![
        8 => (1..30_u32).prop_map(Operation::Consume),
        2 => (1..30_u32).prop_map(Operation::Report),
        1 => Just(Operation::Peek),
        refund => (1..30_u32).prop_map(Operation::Refund),
    ]
}

fn steps(refunds: bool) -> impl Strategy<Value = Vec<Step>> {
    let role = prop_oneof![4 => Just(Role::Enforced), 1 => Just(Role::Shadow), 1 => Just(Role::Quota)];
    let takes = prop::collection::vec((0..2_usize, take(refunds), role), 1..4);
    let after = prop_oneof![3 => 0..DAY_US / 20, 1 => 0..DAY_US * 2];
    let step = (takes, prop::sample::select(&Mode::ALL[..]), after);
    prop::collection::vec(step.prop_map(|(takes, mode, after)| Step { takes, mode, after }), 1..40)
}

/// Makes all decisions on two keys of the limit, and answers each report: which key, its window, the share. Checks each against the
/// states before and after.
fn reported(limit: &Limit, steps: &[Step]) -> BTreeMap<(usize, Micros, u8), u32> {
    let keys = ["a", "b"];
    let mut states: [Option<State>; 2] = [None, None];
    let mut reports = BTreeMap::new();
    let mut now = START;
    for step in steps {
        now += step.after;
        let charge = |&(key, operation, role): &(usize, Operation, Role)| Charge {
            role,
            bounds: bounds(limit, now),
            ..Charge::alone(keys[key], limit, operation)
        };
        let charges: Vec<Charge<'_>> = step.takes.iter().map(charge).collect();
        let (places, firsts) = key_indices(&charges);
        let key_of = |place: u16| step.takes[usize::from(firsts[usize::from(place)])].0;
        let before = [0, 1].map(|key: usize| counted(limit, states[key].as_ref(), now));
        // By place.
        let mut found: Vec<Option<State>> =
            (0..).take(firsts.len()).map(|place| states[key_of(place)].take()).collect();
        let decision = decide(&charges, &places, &mut found[..], step.mode, now).expect("the bounds hold now");
        for (place, state) in (0..).zip(found) {
            states[key_of(place)] = state;
        }
        let mut of_step = Vec::new();
        for (at, rise) in Rise::of_keys(&charges, &places, &decision, step.mode) {
            let key = step.takes[at].0;
            of_step.extend(rise.shares(&charges[at]).map(|share| (key, rise.window.start, share)));
        }
        let mut expected = Vec::new();
        for key in [0, 1] {
            let ((start_before, from), (start, to)) = (before[key], counted(limit, states[key].as_ref(), now));
            let from = if start_before == start { from } else { 0 };
            let crossed = |share: &u8| (from..to).contains(&(Count::from(hits_of(*share)) - 1));
            expected.extend(SHARES.into_iter().filter(crossed).map(|share| (key, start, share)));
        }
        of_step.sort_unstable();
        assert_eq!(of_step, expected, "{charges:#?} on {before:?}");
        of_step.into_iter().for_each(|report| *reports.entry(report).or_default() += 1);
    }
    reports
}

proptest! {
    /// What a decision reports is what it did to the states, refunds and denied decisions included.
    #[test]
    fn a_decision_reports_what_it_crossed(steps in steps(true)) {
        for limit in limits() {
            reported(&limit, &steps);
        }
    }

    /// Without refunds a count only rises, so each share is reported once in a window.
    #[test]
    fn without_refunds_each_share_is_reported_once_in_a_window(steps in steps(false)) {
        for limit in limits() {
            for (report, times) in reported(&limit, &steps) {
                prop_assert_eq!(times, 1, "{:?}", report);
            }
        }
    }
}

#[test]
fn other_algorithms_have_no_window_in_which_a_share_could_be_crossed_once() {
    let burst = REQUESTS;
    for algorithm in [Algorithm::SlidingWindowCounter, Algorithm::SlidingWindowLog, Algorithm::Gcra { burst }] {
        let limit = Limit::new(REQUESTS.into(), Unit::Day.window(), algorithm).unwrap();
        assert_eq!(limit.kind().counted(&limit.kind().observe(None, 0, START), START), None);
    }
}
