//! A settle leaves what the actual alone would have left, on random histories. [hd-7]

use proptest::collection::vec;
use proptest::prelude::Strategy;
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert_eq, prop_oneof, proptest};
use weir_engine::descriptor::saturated;
use weir_engine::{Algorithm, Anchor, CalendarUnit, Count, Limit, Micros, Observed, Operation, Receipt, State, Window};

use crate::properties::Key;
use crate::support::arbitrary::config;

const MINUTE_US: u64 = 60_000_000;
const DAY_US: u64 = 86_400_000_000;

/// The windows that can be holds, of few hits.
fn limits() -> impl Strategy<Value = Limit> {
    let calendar = Anchor::Calendar(CalendarUnit::Day);
    let sliding =
        |window: u64| Algorithm::SlidingWindow { precision: weir_engine::Precision::new(window / 6).unwrap() };
    let of = |window: u64, algorithm: Algorithm| {
        (1..30_u32).prop_map(move |requests| {
            let mut limit = Limit::new(requests.into(), Window::from_micros(window).unwrap(), algorithm).unwrap();
            limit.hold = true;
            assert!(algorithm.takes_holds());
            limit
        })
    };
    prop_oneof![
        of(MINUTE_US, Algorithm::FIXED_WINDOW),
        of(MINUTE_US, Algorithm::FixedWindow { anchor: Anchor::FirstHit }),
        of(DAY_US, Algorithm::FixedWindow { anchor: calendar }),
        of(MINUTE_US, Algorithm::SlidingWindowCounter),
        of(MINUTE_US, sliding(MINUTE_US)),
    ]
}

/// One step of a history: time passes, and then a request opens a hold, or one of the open holds is settled.
#[derive(Clone, Copy, Debug)]
enum Event {
    Open { estimate: u32, used: u32 },
    Settle { which: usize },
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        (1..20_u32, 0..40_u32).prop_map(|(estimate, used)| Event::Open { estimate, used }),
        (0..8_usize).prop_map(|which| Event::Settle { which }),
    ];
    // In parts of the window: within it, to its neighbour, and past all of it.
    vec((prop_oneof![0..10_u64, 0..100_u64, 0..300_u64], event), 1..24)
}

/// A request that was admitted.
struct Held {
    at: Micros,
    used: u32,
    receipt: Receipt,
    settled_at: Option<Micros>,
}

/// The state if each settled request had charged what it used of its hold at once, and the excess when it was settled.
fn expected(limit: &Limit, holds: &[Held], now: Micros) -> Key {
    let mut reports = Vec::new();
    for hold in holds {
        let held = hold.receipt.hits;
        let at_once = if hold.settled_at.is_some() { hold.used.min(held) } else { held };
        reports.push((hold.at, at_once));
        reports.extend(hold.settled_at.map(|at| (at, hold.used.saturating_sub(held))));
    }
    reports.sort_by_key(|(at, _)| *at);
    let mut key = Key::new();
    for (at, hits) in reports.into_iter().filter(|(_, hits)| *hits > 0) {
        key.step(at.cast_signed() - key.now.cast_signed());
        key.take(limit, Operation::Report(hits));
    }
    key.step(now.cast_signed() - key.now.cast_signed());
    key
}

/// What a charge of so many hits finds, but for the mark of a receipt, which an empty state lacks.
fn found(limit: &Limit, key: &Key, hits: u32) -> (Count, u64, u64, Option<Observed>) {
    let seen = key.seen(limit, hits);
    let whole = (!matches!(seen, Observed::Summary(_) | Observed::AnchoredWindow(_))).then_some(seen);
    let wait = limit.kind().fits_after(&seen, hits, key.now);
    (limit.kind().remaining(&seen, key.now), wait.unwrap_or(u64::MAX), limit.kind().reset_after(&seen, key.now), whole)
}

fn check(limit: &Limit, events: &[(u64, Event)]) -> Result<(), TestCaseError> {
    let from_first_hit = limit.algorithm().anchor() == Anchor::FirstHit;
    let mut key = Key::new();
    let mut holds: Vec<Held> = Vec::new();
    for &(percent, event) in events {
        key.step((limit.window().us() / 100 * percent).cast_signed());
        match event {
            Event::Open { estimate, used } => {
                let outcome = key.take(limit, Operation::Consume(limit.consumed(estimate)));
                // A window that begins with a hit begins with a hold too, also if none of it is used.
                let used = used.max(u32::from(from_first_hit));
                holds.extend(outcome.receipt.map(|receipt| Held { at: key.now, used, receipt, settled_at: None }));
            }
            Event::Settle { which } => {
                let open = holds.iter_mut().filter(|hold| hold.settled_at.is_none()).nth(which);
                let Some(hold) = open else { continue };
                hold.settled_at = Some(key.now);
                let (held, used) = (hold.receipt.hits, hold.used);
                if used < held {
                    key.undo(limit, Receipt { hits: held - used, ..hold.receipt });
                } else if used > held {
                    key.take(limit, Operation::Report(used - held));
                }
                let expected = expected(limit, &holds, key.now);
                let all = saturated(limit.requests());
                for hits in [1, all.div_ceil(2), all] {
                    prop_assert_eq!(found(limit, &key, hits), found(limit, &expected, hits));
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(1))]

    #[test]
    fn a_state_after_a_settle_is_that_of_the_actual(limit in limits(), events in events()) {
        check(&limit, &events)?;
    }
}

/// The one exception. [hd-7]
#[test]
fn a_window_that_began_with_an_unused_hold_goes_on_while_it_has_other_hits() {
    let window = Window::from_micros(MINUTE_US).unwrap();
    let limit = Limit::new(3, window, Algorithm::FixedWindow { anchor: Anchor::FirstHit }).unwrap();
    let mut key = Key::new();
    let receipt = key.take(&limit, Operation::Consume(2)).receipt.unwrap();
    key.step(50_000_000);
    key.take(&limit, Operation::Consume(1));
    key.undo(&limit, receipt);
    assert_eq!(found(&limit, &key, 3), (2, 10_000_000, 10_000_000, None));
    let mut alone = Key::new();
    let receipt = alone.take(&limit, Operation::Consume(2)).receipt.unwrap();
    alone.undo(&limit, receipt);
    assert_eq!(alone.state, None::<State>, "without others the next hit begins a window");
}
