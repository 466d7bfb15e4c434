//! What docs/semantics.md shows is what the engine does: its diagrams of the same traffic, and the numbers of its
//! examples. Not in here: whether the engine is right, which vectors, properties and oracles say.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use weir_engine::algorithm::Effect;
use weir_engine::{
    Algorithm, Anchor, Bounds, CalendarUnit, Charge, Count, Limit, Micros, Mode, Operation, Outcome, Precision,
    Receipt, Refill, State, Verdict, Window, decision,
};

use crate::support::algorithms::every_algorithm;

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// The `now` of the page: 2023-11-14 22:13:20 UTC.
const NOW: Micros = 1_700_000_000 * SECOND;
/// 22:14:00.
const FOURTEEN: Micros = NOW + 40 * SECOND;

const FIRST_HIT: Algorithm = Algorithm::FixedWindow { anchor: Anchor::FirstHit };

const fn sub_buckets(seconds: u64) -> Algorithm {
    Algorithm::SlidingWindow { precision: Precision::new(seconds * SECOND).unwrap() }
}

const fn by_interval(burst: u32) -> Algorithm {
    Algorithm::TokenBucket { burst, refill: Refill::Interval }
}

/// One limit and its state.
struct Page {
    limit: Limit,
    state: Option<State>,
    bounds: Option<Bounds>,
}

impl Page {
    fn of(requests: Count, period: u64, algorithm: Algorithm) -> Self {
        Self { limit: limit(requests, period, algorithm), state: None, bounds: None }
    }

    /// Changes the limit's numbers.
    fn now_is(&mut self, requests: Count, period: u64, algorithm: Algorithm) {
        let changed = limit(requests, period, algorithm);
        assert_eq!(changed.id(), self.limit.id(), "the state would be another");
        self.limit = changed;
    }

    fn charge(&mut self, now: Micros, operation: Operation) -> Outcome {
        let (limit, bounds) = (&self.limit, self.bounds);
        let charge = Charge { bounds, ..Charge::alone("k", limit, operation) };
        let decided = decision::decide(&[charge], &[0], std::slice::from_mut(&mut self.state), Mode::Atomic, now);
        let decision = decided.unwrap_or_else(|_| panic!("{bounds:?} do not hold {now}"));
        decision.outcomes[0].clone()
    }

    /// Takes hits that fit: remaining, wait and reset.
    fn take(&mut self, now: Micros, hits: u32) -> (Count, u64, u64) {
        let outcome = self.charge(now, Operation::Consume(hits));
        assert_eq!(outcome.verdict, Verdict::Within, "{outcome:?}");
        (outcome.remaining, outcome.wait, outcome.reset_after)
    }

    /// Asks for hits that do not fit: how long they wait.
    fn over(&mut self, now: Micros, hits: u32) -> u64 {
        match self.charge(now, Operation::Consume(hits)).verdict {
            Verdict::Over { retry_after } => retry_after,
            other => panic!("{other:?}"),
        }
    }

    /// Looks: remaining and reset.
    fn look(&mut self, now: Micros) -> (Count, u64) {
        let outcome = self.charge(now, Operation::Peek);
        (outcome.remaining, outcome.reset_after)
    }

    /// Gives back: what remains.
    fn give(&mut self, now: Micros, hits: u32) -> Count {
        self.charge(now, Operation::Refund(hits)).remaining
    }

    fn receipt(&mut self, now: Micros, hits: u32) -> Receipt {
        self.charge(now, Operation::Consume(hits)).receipt.unwrap()
    }

    fn undo(&mut self, now: Micros, receipt: Receipt) -> (Count, u64) {
        self.limit.kind().within(self.bounds).change(&mut self.state, Effect::Undo(receipt), now);
        self.look(now)
    }
}

fn limit(requests: Count, period: u64, algorithm: Algorithm) -> Limit {
    Limit::new(requests, Window::from_micros(period).unwrap(), algorithm).unwrap()
}

#[test]
fn the_tables_of_ids_and_of_bounds_have_every_algorithm() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/semantics.md");
    let page = fs::read_to_string(path).unwrap();
    let part = |from: &str| page[page.find(from).unwrap()..].split("Example:").next().unwrap();
    let (ids, bounds) = (part("**[ky-4]"), part("**[ex-1]"));
    for algorithm in every_algorithm(Precision::new(10 * SECOND).unwrap(), 6) {
        let (name, id) = (algorithm.name(), limit(6, MINUTE, algorithm).id().to_owned());
        let row = format!("| `{}` | `{name}`", &id[..1]);
        assert!(ids.contains(&row), "ky-4 has no row {row}");
        assert!(bounds.contains(&format!("`{name}`")), "ex-1 has no bound of {name}");
    }
}

#[test]
fn the_diagrams_are_what_the_engine_admits() {
    let burst = 6;
    let rows = [
        ("fixed_window", Algorithm::FIXED_WINDOW),
        ("... anchor: first_hit", FIRST_HIT),
        ("sliding_window_counter", Algorithm::SlidingWindowCounter),
        ("sliding_window", sub_buckets(10)),
        ("sliding_window_log", Algorithm::SlidingWindowLog),
        ("gcra", Algorithm::Gcra { burst }),
        ("token_bucket", Algorithm::TokenBucket { burst, refill: Refill::Continuous }),
        ("... refill: interval", by_interval(burst)),
        ("leaky_bucket", Algorithm::LeakyBucket { burst }),
        ("concurrency", Algorithm::Concurrency),
    ];
    for name in Algorithm::NAMES {
        assert!(rows.iter().any(|(_, algorithm)| algorithm.name() == name), "the diagrams have no row for {name}");
    }
    let fits = |page: &mut Page, now| page.charge(now, Operation::Consume(1)).verdict == Verdict::Within;
    let (mut steady, mut bursts) = (String::new(), String::new());
    for (name, algorithm) in rows {
        let mut page = Page::of(6, MINUTE, algorithm);
        let line: String =
            (0..36).map(|i| if fits(&mut page, FOURTEEN + 20 * SECOND + i * 5 * SECOND) { '#' } else { '.' }).collect();
        writeln!(steady, "{name:<25}{line}  {}", line.matches('#').count()).unwrap();

        let mut page = Page::of(6, MINUTE, algorithm);
        let mut all = 0;
        write!(bursts, "{name:<24}").unwrap();
        for seconds in [55, 60, 65, 70, 80, 90, 100, 110, 120] {
            let admitted = (0..10).filter(|_| fits(&mut page, FOURTEEN + seconds * SECOND)).count();
            all += admitted;
            write!(bursts, "{admitted:>5} ").unwrap();
        }
        writeln!(bursts, "{all:>4}").unwrap();
    }
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/semantics.md")).unwrap();
    assert!(page.contains(&steady), "not on the page:\n{steady}");
    assert!(page.contains(&bursts), "not on the page:\n{bursts}");
}

#[test]
fn windows_of_the_clock_and_from_the_first_hit() {
    // [fw-5]
    let mut page = Page::of(40, MINUTE, Algorithm::FIXED_WINDOW);
    page.take(FOURTEEN, 40);
    assert_eq!(page.over(NOW + 10 * SECOND, 1), 90 * SECOND);
    assert_eq!(page.over(FOURTEEN - 61 * SECOND, 1), SECOND);

    // [aw-2] [aw-3] [aw-4]
    let mut page = Page::of(3, MINUTE, FIRST_HIT);
    assert_eq!(page.take(NOW, 2), (1, 0, MINUTE));
    assert_eq!(page.over(NOW + 59 * SECOND, 2), SECOND);
    assert_eq!(page.take(NOW + 59 * SECOND, 1), (0, 0, SECOND));
    assert_eq!(page.over(NOW + MINUTE - 1, 1), 1);
    assert_eq!(page.take(NOW + MINUTE, 3), (0, 0, MINUTE));
    page.give(NOW + 61 * SECOND, 5);
    assert_eq!(page.state, None);

    // [aw-6] [lm-6]
    page.take(NOW, 3);
    assert_eq!(page.over(NOW - MINUTE, 1), 2 * MINUTE);
    assert_eq!(page.over(NOW - MINUTE - 1, 1), MINUTE);
    page.now_is(5, MINUTE, FIRST_HIT);
    assert_eq!(page.look(NOW - MINUTE - 1), (2, MINUTE));

    // [cl-2]
    let mut page = Page::of(3, 24 * HOUR, Algorithm::FixedWindow { anchor: Anchor::Calendar(CalendarUnit::Day) });
    page.bounds = Some([1_699_833_600, 1_699_920_000, 1_700_006_400, 1_700_092_800].map(|seconds| seconds * SECOND));
    assert_eq!(page.take(NOW, 2), (1, 0, 6_400 * SECOND));
}

#[test]
fn windows_that_slide() {
    // [sc-2] [sc-3] [sc-4] [lm-6]
    let mut page = Page::of(10, MINUTE, Algorithm::SlidingWindowCounter);
    page.take(NOW, 8);
    assert_eq!(page.look(FOURTEEN + 15 * SECOND).0, 4);
    page.now_is(20, MINUTE, Algorithm::SlidingWindowCounter);
    assert_eq!(page.look(FOURTEEN + 15 * SECOND).0, 14);
    page.now_is(5, MINUTE, Algorithm::SlidingWindowCounter);
    assert_eq!(page.over(FOURTEEN + 15 * SECOND, 1), 7_500_001);
    page.now_is(10, MINUTE, Algorithm::SlidingWindowCounter);
    assert_eq!(page.take(FOURTEEN + 15 * SECOND, 3), (1, 0, 105 * SECOND));
    assert_eq!(page.over(FOURTEEN + 15 * SECOND, 2), 1);
    let mut page = Page::of(10, MINUTE, Algorithm::SlidingWindowCounter);
    page.take(NOW, 10);
    assert_eq!(page.over(NOW, 3), 52_000_001);

    // [sc-1]: twice the limit within a window.
    let mut page = Page::of(10, MINUTE, Algorithm::SlidingWindowCounter);
    page.take(FOURTEEN - 1, 10);
    page.take(FOURTEEN + MINUTE - 2, 10);

    // [sc-7]
    let mut page = Page::of(10, MINUTE, Algorithm::SlidingWindowCounter);
    page.take(NOW, 4);
    page.take(FOURTEEN + 15 * SECOND, 5);
    assert_eq!(page.look(NOW), (1, 160 * SECOND));
    assert_eq!(page.look(FOURTEEN - MINUTE - 1).0, 1);

    // [sw-2] [sw-3] [sw-4] [sw-6]
    let mut page = Page::of(3, MINUTE, sub_buckets(10));
    page.take(NOW + 5 * SECOND, 2);
    assert_eq!(page.take(NOW + 12 * SECOND, 1), (0, 0, 67_999_999));
    assert_eq!(page.over(NOW + 12 * SECOND, 1), 57_999_999);
    assert_eq!(page.over(NOW + 12 * SECOND, 3), 67_999_999);
    assert_eq!(page.over(NOW - 50 * SECOND, 1), 119_999_999);
    assert_eq!(page.give(NOW + 20 * SECOND, 2), 2);
    page.take(NOW + 20 * SECOND, 2);
    assert_eq!(page.over(NOW - 40 * SECOND - 1, 1), MINUTE);

    // [sl-2] [sl-3] [sl-4]
    let mut page = Page::of(5, MINUTE, Algorithm::SlidingWindowLog);
    for (seconds, hits) in [(0, 2), (10, 1), (10, 2)] {
        page.take(NOW + seconds * SECOND, hits);
    }
    assert_eq!(page.over(NOW + 20 * SECOND, 1), 40 * SECOND);
    assert_eq!(page.over(NOW + 20 * SECOND, 3), 50 * SECOND);
    assert_eq!(page.over(NOW + MINUTE - 1, 1), 1);
    assert_eq!(page.take(NOW + MINUTE, 1).0, 1);
    assert_eq!(page.give(NOW + 61 * SECOND, 2), 3);

    // [sl-6]
    let mut page = Page::of(5, MINUTE, Algorithm::SlidingWindowLog);
    page.take(NOW, 2);
    page.take(NOW + 10 * SECOND, 1);
    assert_eq!(page.look(NOW - 50 * SECOND), (2, 2 * MINUTE));
    assert_eq!(page.look(NOW - 50 * SECOND - 1), (2, MINUTE));
}

#[test]
fn permits() {
    // [cc-1] [cc-4] [cc-5]
    let mut page = Page::of(3, 30 * SECOND, Algorithm::Concurrency);
    let receipts = [(); 3].map(|()| page.receipt(NOW, 1));
    assert_eq!(page.over(NOW + 4 * SECOND, 1), 26_499_999);
    assert_eq!(page.undo(NOW + 5 * SECOND, receipts[0]).0, 1);
    page.take(NOW + 5 * SECOND, 1);
    for left in [1, 2, 2] {
        assert_eq!(page.undo(NOW + 6 * SECOND, receipts[1]).0, left);
    }

    // [cc-2]
    let mut page = Page::of(1, 30 * SECOND, Algorithm::Concurrency);
    page.take(NOW + SECOND / 5, 1);
    assert_eq!(page.over(NOW + 30 * SECOND + 499_998, 1), 1);
    page.take(NOW + 30 * SECOND + 499_999, 1);
    for seconds in 1..=3_600 {
        let window = seconds * SECOND;
        let mut page = Page::of(1, window, Algorithm::Concurrency);
        let (_, _, reset) = page.take(NOW, 1);
        assert!((window..=window + window / 50).contains(&reset), "{reset} of {window}");
    }

    // [cc-6]
    let mut page = Page::of(3, 30 * SECOND, Algorithm::Concurrency);
    page.take(NOW, 3);
    page.now_is(5, 30 * SECOND, Algorithm::Concurrency);
    assert_eq!(page.look(NOW).0, 2);
    page.now_is(1, 30 * SECOND, Algorithm::Concurrency);
    assert_eq!(page.look(NOW + 30 * SECOND).0, 0);
}

#[test]
fn debts_and_buckets() {
    // [tm-2] [tm-3] [pc-5]
    let hourly = |burst| Algorithm::Gcra { burst };
    for back in [5 * MINUTE, HOUR] {
        let mut page = Page::of(10, HOUR, hourly(10));
        page.take(NOW, 10);
        assert_eq!(page.over(NOW - back, 1), 6 * MINUTE);
        assert_eq!(page.take(NOW - back + 6 * MINUTE, 1).0, 0);
    }

    // [pc-5] The wait has all of a step back in it that is believed.
    let mut page = Page::of(5, MINUTE, hourly(5));
    page.take(NOW, 5);
    let back = NOW - 59 * SECOND;
    assert_eq!(page.over(back, 1), 71 * SECOND);
    assert_eq!(page.over(back + 12 * SECOND, 1), 59 * SECOND);
    assert_eq!(page.take(back + 71 * SECOND, 1).0, 0);

    // [pc-6]
    let mut page = Page::of(10, HOUR, hourly(10));
    page.take(NOW, 4);
    page.now_is(20, HOUR, hourly(20));
    assert_eq!(page.look(NOW), (16, 12 * MINUTE));
    assert_eq!(page.look(NOW + 6 * MINUTE).0, 18);

    // [lb-1] [lb-2] [dt-1]
    let bucket = Algorithm::LeakyBucket { burst: 3 };
    let mut page = Page::of(10, SECOND, bucket);
    assert_eq!([(); 3].map(|()| page.take(NOW, 1).1), [0, 100_000, 200_000]);
    assert_eq!(page.over(NOW, 1), 100_000);
    let mut page = Page::of(7, SECOND, bucket);
    assert_eq!([(); 3].map(|()| page.take(NOW, 1).1), [0, 142_858, 285_715]);

    // [tb-2] [tb-3] [tb-4]
    let mut page = Page::of(3, MINUTE, by_interval(5));
    assert_eq!(page.take(NOW, 4), (1, 0, 2 * MINUTE));
    assert_eq!(page.over(NOW + 10 * SECOND, 2), 50 * SECOND);
    assert_eq!(page.over(NOW + MINUTE - 1, 2), 1);
    assert_eq!(page.take(NOW + MINUTE, 2).0, 2);
    assert_eq!(page.give(NOW + 61 * SECOND, 1), 3);

    // [tb-6] [lm-6]
    let mut page = Page::of(3, MINUTE, by_interval(5));
    page.take(NOW, 4);
    assert_eq!(page.look(NOW - MINUTE), (1, 3 * MINUTE));
    assert_eq!(page.look(NOW - MINUTE - 1), (1, 2 * MINUTE));
    let mut page = Page::of(3, MINUTE, by_interval(5));
    page.take(NOW, 5);
    page.now_is(6, MINUTE, by_interval(10));
    assert_eq!(page.look(NOW).0, 5);
    page.now_is(3, MINUTE, by_interval(2));
    assert_eq!(page.look(NOW), (0, MINUTE));
}

#[test]
fn undoing() {
    // [un-3]
    let mut page = Page::of(10, HOUR, Algorithm::Gcra { burst: 10 });
    let receipt = page.receipt(NOW, 1);
    page.take(NOW, 2);
    assert_eq!(page.undo(NOW + 100 * SECOND, receipt).1, 720 * SECOND);

    // [un-4]
    let mut page = Page::of(5, MINUTE, Algorithm::SlidingWindowLog);
    let receipt = page.receipt(NOW, 2);
    page.take(NOW + 10 * SECOND, 1);
    assert_eq!(page.undo(NOW + 20 * SECOND, receipt), (4, 50 * SECOND));
    assert_eq!(page.undo(NOW + 20 * SECOND, receipt), (4, 50 * SECOND));

    // [un-5]
    let mut page = Page::of(3, MINUTE, by_interval(10));
    let receipt = page.receipt(NOW, 5);
    page.take(NOW, 4);
    assert_eq!(page.undo(NOW + 61 * SECOND, receipt).0, 6);
}
