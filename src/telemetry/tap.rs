//! Taps: live requests with their answers, for operators.
//!
//! A decision reads one flag: whether there is a tap. If so, each tap draws whether the request is in its sample,
//! applies its filter, and takes a place of the budget that all taps share. Then the request is copied into a bounded
//! queue. A request without a place is counted as lost. In tap/: filters (filter.rs), the budget (budget.rs), the copy
//! and its line (record.rs), and how values are printed (values.rs). Not here: who may open a tap, and for how long
//! (http).

mod budget;
mod filter;
mod record;
mod values;

use std::cell::Cell;
use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_engine::observer::{self, AnsweredRequest};

use self::budget::Budget;
pub use self::filter::{Filter, VERDICTS};
pub use self::record::{Record, header};
pub use self::values::{Named, TapValues};
use super::metrics::registry::{Number, Registry};

/// The most taps that can be open at the same time.
pub const TAPS_MAX: usize = 4;
pub const RECORDS_WAITING_MAX: usize = 4_096;
pub const BYTES_WAITING_MAX: usize = 2 << 20;
/// The most bytes of text in a recorded request. A larger one is counted as lost.
pub const RECORD_BYTES_MAX: usize = 64 * 1_024;
/// The largest sample: one in this many.
pub const SAMPLE_MAX: u32 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether values of requests are printed in plain text.
    pub shows_values: bool,
    /// The most records of all taps in a second, in total.
    pub records_per_second: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { shows_values: false, records_per_second: 1_000 }
    }
}

pub struct Taps {
    has_any: AtomicBool,
    open: ArcSwap<Vec<Arc<Tap>>>,
    /// Locked while a tap is opened or closed.
    changing: Mutex<()>,
    budget: Budget,
    /// Whether a tap prints values in plain text if its request does not set it.
    shows_values: bool,
    hidden: TapValues,
    shown: TapValues,
    /// Requests that were recorded, once for each tap.
    recorded: Number,
    /// Requests that matched a tap and were lost.
    lost: Number,
}

/// There are already as many taps as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyTaps;

struct Tap {
    filter: Filter,
    sample: u32,
    queue: Mutex<Queue>,
    /// Notified when the queue is half full.
    is_filling: Notify,
    /// How many requests were lost since the last record in the queue.
    lost: AtomicU64,
}

#[derive(Default)]
struct Queue {
    records: VecDeque<Record>,
    bytes: usize,
}

/// The reader of a tap. Dropping it closes the tap.
pub struct Listener {
    taps: Arc<Taps>,
    tap: Arc<Tap>,
    shows_values: bool,
}

impl Taps {
    pub(super) fn new(options: Options, registry: &Registry) -> Self {
        Self {
            has_any: AtomicBool::new(false),
            open: ArcSwap::default(),
            changing: Mutex::default(),
            budget: Budget::new(options.records_per_second),
            shows_values: options.shows_values,
            hidden: TapValues::new(false),
            shown: TapValues::new(true),
            recorded: registry.number("weir_tap_records_total", &[]),
            lost: registry.number("weir_tap_lost_records_total", &[]),
        }
    }

    pub(super) fn receiver(&self) -> Option<&dyn observer::Tap> {
        if self.has_any.load(Relaxed) { Some(self) } else { None }
    }

    /// Opens a tap on one in `sample` of the requests that pass the filter.
    ///
    /// # Errors
    /// When `most` are open already, or [`TAPS_MAX`].
    pub fn listen(self: &Arc<Self>, filter: Filter, sample: u32, most: usize) -> Result<Listener, TooManyTaps> {
        let tap = Arc::new(Tap {
            filter,
            sample: sample.clamp(1, SAMPLE_MAX),
            queue: Mutex::default(),
            is_filling: Notify::new(),
            lost: AtomicU64::new(0),
        });
        let _changing = self.changing.lock();
        let mut open = Vec::clone(&self.open.load());
        if open.len() >= most.min(TAPS_MAX) {
            return Err(TooManyTaps);
        }
        open.push(tap.clone());
        self.open.store(Arc::new(open));
        self.has_any.store(true, Relaxed);
        Ok(Listener { taps: self.clone(), tap, shows_values: self.shows_values })
    }

    fn close(&self, tap: &Arc<Tap>) {
        let _changing = self.changing.lock();
        let mut open = Vec::clone(&self.open.load());
        open.retain(|other| !Arc::ptr_eq(other, tap));
        self.has_any.store(!open.is_empty(), Relaxed);
        self.open.store(Arc::new(open));
    }

    /// Whether a tap prints values in plain text if its request does not set it.
    #[must_use]
    pub const fn shows_values(&self) -> bool {
        self.shows_values
    }

    #[must_use]
    pub fn open(&self) -> u64 {
        self.open.load().len() as u64
    }
}

impl observer::Tap for Taps {
    fn answered(&self, request: &dyn AnsweredRequest) {
        for tap in self.open.load().iter() {
            if !is_drawn(tap.sample) || !tap.filter.wants(request) {
                continue;
            }
            let bytes = record::bytes_of(request);
            let is_taken =
                bytes <= RECORD_BYTES_MAX && self.budget.take(bytes, Instant::now()) && tap.put(request, bytes);
            let count = if is_taken { &self.recorded } else { &self.lost };
            count.add(1);
            if !is_taken {
                tap.lost.fetch_add(1, Relaxed);
            }
        }
    }
}

impl Tap {
    /// Copies a request into the queue. Returns false if it is full.
    fn put(&self, request: &dyn AnsweredRequest, bytes: usize) -> bool {
        let is_full =
            |queue: &Queue| queue.records.len() >= RECORDS_WAITING_MAX || queue.bytes + bytes > BYTES_WAITING_MAX;
        if is_full(&self.queue.lock()) {
            return false;
        }
        // Made before the lock is taken.
        let mut record = Record::new(request, bytes);
        let mut queue = self.queue.lock();
        if is_full(&queue) {
            return false;
        }
        record.lost = self.lost.swap(0, Relaxed);
        queue.bytes += bytes;
        queue.records.push_back(record);
        if queue.records.len() == RECORDS_WAITING_MAX / 2 || queue.bytes > BYTES_WAITING_MAX / 2 {
            self.is_filling.notify_one();
        }
        true
    }
}

impl Listener {
    /// Prints or hides values for this reader only.
    #[must_use]
    pub fn with_values(mut self, is_shown: bool) -> Self {
        self.shows_values = is_shown;
        self
    }

    #[must_use]
    pub fn values(&self) -> &TapValues {
        if self.shows_values { &self.taps.shown } else { &self.taps.hidden }
    }

    /// Waits until the queue is half full. A reader also polls the queue, so that a decision rarely wakes it.
    pub async fn is_filling(&self) {
        self.tap.is_filling.notified().await;
    }

    /// Takes records of about `bytes_max` bytes, at least one if there is one, and writes them as lines.
    pub fn lines(&self, bytes_max: usize, named: Option<&Named>) -> Vec<u8> {
        let mut lines = Vec::new();
        let mut bytes = 0;
        while bytes < bytes_max {
            let Some(record) = self.next() else { break };
            bytes += record.bytes();
            record.write(&mut lines, self.values(), named);
        }
        lines
    }

    fn next(&self) -> Option<Record> {
        let mut queue = self.tap.queue.lock();
        let record = queue.records.pop_front()?;
        queue.bytes -= record.bytes();
        Some(record)
    }

    /// How many requests were lost since the last record.
    #[must_use]
    pub fn take_lost(&self) -> u64 {
        self.tap.lost.swap(0, Relaxed)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.taps.close(&self.tap);
    }
}

thread_local! {
    /// The state of a xorshift generator; never 0.
    static DRAWN: Cell<u64> = Cell::new(RandomState::new().hash_one(0_u8) | 1);
}

/// True for one in `sample` calls, at random.
fn is_drawn(sample: u32) -> bool {
    if sample <= 1 {
        return true;
    }
    DRAWN.with(|state| {
        let mut x = state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        // The upper half of a product is in 0..sample, and uniformly distributed.
        (u128::from(x) * u128::from(sample)) >> u64::BITS == 0
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use weir_engine::observer::{AnsweredDescriptor, DecisionResult, DescriptorVerdict, Tap as _};
    use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use weir_engine::{Entry, Group, Limit, Operation, PolicySet, Rule, Unit};

    use super::*;

    /// A request that stores which methods were called.
    struct Asked<'a> {
        entries: [Entry<'a>; 1],
        asked: RefCell<Vec<&'static str>>,
    }

    impl<'a> Asked<'a> {
        const fn of(value: &'a str) -> Self {
            Self { entries: [Entry { key: "user", value }], asked: RefCell::new(Vec::new()) }
        }
    }

    impl AnsweredRequest for Asked<'_> {
        fn domain(&self) -> &str {
            self.asked.borrow_mut().push("domain");
            "shop"
        }

        fn result(&self) -> DecisionResult {
            self.asked.borrow_mut().push("result");
            DecisionResult::OverLimit
        }

        fn descriptors(&self) -> usize {
            1
        }

        fn entries(&self, _: Group) -> &[Entry<'_>] {
            self.asked.borrow_mut().push("entries");
            &self.entries
        }

        fn rule(&self, _: Group) -> Option<&Rule> {
            self.asked.borrow_mut().push("rule");
            None
        }

        fn descriptor(&self, _: Group) -> AnsweredDescriptor {
            self.asked.borrow_mut().push("descriptor");
            let verdict = Some(DescriptorVerdict::Over);
            AnsweredDescriptor {
                operation: Operation::Consume(1),
                limit: None,
                verdict,
                remaining: Some(0),
                settles: false,
                held: None,
                given_back: None,
                factor: None,
            }
        }
    }

    fn taps(options: Options) -> Arc<Taps> {
        Arc::new(Taps::new(options, &Registry::default()))
    }

    fn lines(listener: &Listener) -> Vec<serde_json::Value> {
        let lines = String::from_utf8(listener.lines(usize::MAX, None)).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn nobody_hears_a_request_but_while_somebody_listens() {
        let taps = taps(Options::default());
        assert!(taps.receiver().is_none());
        let listener = taps.listen(Filter::default(), 1, TAPS_MAX).unwrap();
        assert!(taps.receiver().is_some());
        let others: Vec<_> = (1..TAPS_MAX).map(|_| taps.listen(Filter::default(), 1, TAPS_MAX).unwrap()).collect();
        assert!(taps.listen(Filter::default(), 1, TAPS_MAX).is_err());
        drop(others);
        assert!(taps.receiver().is_some());
        drop(listener);
        assert!(taps.receiver().is_none() && taps.open() == 0);
    }

    #[test]
    fn nothing_is_gathered_of_a_request_that_is_not_wanted() {
        let taps = taps(Options::default());
        let _sampled = taps.listen(Filter::default(), SAMPLE_MAX, TAPS_MAX).unwrap();
        let _other = taps.listen(Filter { domain: Some("other".into()), ..Filter::default() }, 1, TAPS_MAX).unwrap();
        let _passed = taps.listen(Filter { verdict: Some("ok"), ..Filter::default() }, 1, TAPS_MAX).unwrap();
        let request = Asked::of("ann");
        taps.answered(&request);
        assert_eq!(*request.asked.borrow(), ["domain", "result"]);
        assert_eq!((taps.recorded.get(), taps.lost.get()), (0, 0));
    }

    #[test]
    fn what_is_lost_is_told_by_the_next_record() {
        let taps = taps(Options { records_per_second: 1_000_000, ..Options::default() });
        let listener = taps.listen(Filter::default(), 1, TAPS_MAX).unwrap();
        for _ in 0..RECORDS_WAITING_MAX + 3 {
            taps.answered(&Asked::of("ann"));
        }
        assert_eq!(listener.tap.queue.lock().records.len(), RECORDS_WAITING_MAX);
        assert_eq!((taps.recorded.get(), taps.lost.get()), (RECORDS_WAITING_MAX as u64, 3));
        assert!(lines(&listener).iter().all(|line| line.get("lost").is_none()));
        taps.answered(&Asked::of("ann"));
        taps.answered(&Asked::of(&"x".repeat(RECORD_BYTES_MAX)));
        let told = lines(&listener);
        assert_eq!((told.len(), &told[0]["lost"]), (1, &3.into()));
        assert_eq!((listener.take_lost(), listener.take_lost()), (1, 0));
        assert_eq!(listener.tap.queue.lock().bytes, 0);
    }

    #[test]
    fn the_bytes_that_wait_are_bounded() {
        let taps = taps(Options { records_per_second: 1_000_000, ..Options::default() });
        let listener = taps.listen(Filter::default(), 1, TAPS_MAX).unwrap();
        let value = "x".repeat(RECORD_BYTES_MAX / 2);
        for _ in 0..100 {
            taps.answered(&Asked::of(&value));
        }
        let queue = listener.tap.queue.lock();
        assert!(queue.bytes <= BYTES_WAITING_MAX && queue.records.len() >= 30, "{}", queue.records.len());
    }

    #[test]
    fn all_taps_together_have_one_budget() {
        let taps = taps(Options { records_per_second: 10, ..Options::default() });
        let listeners = [(); 2].map(|()| taps.listen(Filter::default(), 1, TAPS_MAX).unwrap());
        for _ in 0..100 {
            taps.answered(&Asked::of("ann"));
        }
        // Ten, and one for each tenth of a second of this test.
        assert!((10..100).contains(&taps.recorded.get()), "{}", taps.recorded.get());
        assert_eq!(listeners.iter().map(|listener| lines(listener).len() as u64).sum::<u64>(), taps.recorded.get());
    }

    #[test]
    fn a_sample_is_one_in_n() {
        for (sample, expected) in [(1, 100_000..=100_000), (10, 9_500..=10_500), (SAMPLE_MAX, 0..=10)] {
            let drawn = (0..100_000).filter(|_| is_drawn(sample)).count();
            assert!(expected.contains(&drawn), "{sample}: {drawn}");
        }
    }

    #[test]
    fn values_that_policies_name_are_shown_and_others_are_hashes() {
        let node = |key: &str, value: Option<&str>| NodeSpec {
            key: key.to_owned(),
            value: value.map(Into::into),
            rule: Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(1, Unit::Hour)]))),
            ..NodeSpec::default()
        };
        let descriptors = vec![node("plan", Some("free")), node("path", Some("/a/*")), node("user", None)];
        let shop = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors };
        let named = Named::of(&PolicySet::compile(vec![shop]).unwrap());
        let (hidden, again) = (TapValues::new(false), TapValues::new(false));
        let show = |values: &TapValues, domain: &str, key: &str, value: &str| {
            values.show(Some(&named), domain, key, value).into_owned()
        };
        assert_eq!(show(&hidden, "shop", "plan", "free"), "free");
        for (domain, key, value) in
            [("blog", "plan", "free"), ("shop", "user", "free"), ("shop", "path", "/a/*"), ("shop", "plan", "fre")]
        {
            let shown = show(&hidden, domain, key, value);
            assert!(shown.len() == 13 && shown.starts_with('~'), "{shown}");
            assert_eq!(shown, show(&hidden, "shop", "other", value), "the same value looks the same");
            assert_ne!(shown, show(&again, domain, key, value), "another process has another key");
        }
        assert_ne!(show(&hidden, "shop", "user", "ann"), show(&hidden, "shop", "user", "bob"));
        assert_eq!(show(&TapValues::new(true), "shop", "user", "ann"), "ann");
    }
}
