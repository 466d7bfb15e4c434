//! The state of a `sliding_window` as Redis has it, byte for byte, and strings that are none. Not here: what is decided on
//! such states (store/conformance.rs, store/differential.rs).

use std::time::{Duration, Instant};

use redis::Connection;
use tokio::runtime::Runtime;
use weir_engine::algorithm::sliding_window::BUCKETS_MAX;
use weir_engine::{Algorithm, Charge, Decision, Limit, Mode, Operation, Outcome, Precision, Receipt, Verdict, Window};
use weir_store::redis::pipeline::Options;
use weir_store::redis::{Endpoint, Redis};
use weir_store::{Deciding as _, Inspected as _, StoreError, Undo};

use crate::support::manual::charge;
use crate::support::redis::RedisServer;

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// In the future, so that no key expires: 2096.
const NOW: u64 = 4_000_000_000_000_000;
/// The precision of all limits here.
const PRECISION_US: u64 = 1_000_000;
/// The bucket of NOW.
const HERE: u64 = NOW / PRECISION_US;

fn limit(requests: u32, buckets: u64) -> Limit {
    let precision = Precision::new(PRECISION_US).unwrap();
    Limit::new(
        requests.into(),
        Window::from_micros(buckets * PRECISION_US).unwrap(),
        Algorithm::SlidingWindow { precision },
    )
    .unwrap()
}

/// A state as it is stored.
fn stored(width: u8, first: f64, counts: &[u8]) -> Vec<u8> {
    [&[width][..], &first.to_le_bytes(), counts].concat()
}

/// Strings that no weir has written, with all but one thing right about most of them: `here` is a bucket that counts.
pub(crate) fn malformed(here: u64) -> Vec<Vec<u8>> {
    let first = here as f64;
    let mut strings = vec![Vec::new(), b"garbage".to_vec(), vec![1], stored(1, first, &[])[..8].to_vec()];
    strings.extend([1, 2, 4].map(|width| stored(width, first, &[])));
    strings.extend([0, 3, 8, b'1', 255].map(|width| stored(width, first, &[1; 24])));
    // The last count is cut off.
    let cut = [(2, 1), (2, 3), (4, 1), (4, 2), (4, 3), (4, 7)];
    strings.extend(cut.map(|(width, length)| stored(width, first, &vec![1; length])));
    // The last count is 0.
    let empty = [(1, &[0][..]), (1, &[1, 0]), (2, &[1, 0, 0, 0]), (4, &[1, 0, 0, 0, 0, 0, 0, 0])];
    strings.extend(empty.map(|(width, counts)| stored(width, first, counts)));
    // More buckets than any window has, and far more.
    for width in [1, 2, 4] {
        let too_many = (usize::from(width)) * (usize::try_from(BUCKETS_MAX).unwrap() + 2);
        strings.extend([too_many, 1 << 16].map(|length| stored(width, first, &vec![1; length])));
    }
    let numbers = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1.5, 1e300, 9_007_199_254_740_735.0];
    strings.extend(numbers.map(|number| stored(1, number, &[1])));
    strings
}

/// One Redis with a store.
struct Rig {
    server: RedisServer,
    runtime: Runtime,
    store: Redis,
    raw: Connection,
}

impl Rig {
    fn start() -> Self {
        let (server, runtime) =
            (RedisServer::start(), tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
        let entered = runtime.enter();
        let store = Redis::start(Options::new(Endpoint::parse(&server.url()).unwrap()), "");
        drop(entered);
        store.set_now(NOW);
        let raw = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        Self { server, runtime, store, raw }
    }

    /// So many sub-buckets after the first.
    fn at(&self, bucket: u64) -> &Self {
        self.store.set_now(NOW + bucket * PRECISION_US);
        self
    }

    fn decide(&self, charges: &[Charge<'_>]) -> Result<Decision, StoreError> {
        self.runtime.block_on(self.store.decide(charges, Mode::Atomic, Instant::now() + PATIENCE).get())
    }

    fn one(&self, limit: &Limit, operation: Operation) -> Outcome {
        self.decide(&[charge("k", limit, operation)]).unwrap().outcomes.remove(0)
    }

    fn undo(&self, limit: &Limit, receipt: Receipt) {
        let undo = Undo { key: "k", limit, receipt, bounds: None };
        self.runtime.block_on(self.store.undo(&[undo], Instant::now() + PATIENCE).get()).unwrap();
    }

    fn string(&mut self) -> Vec<u8> {
        redis::cmd("GET").arg("k").query(&mut self.raw).unwrap()
    }
}

#[test]
fn strings_that_weir_has_not_written_fail_the_decision_and_stay() {
    let mut rig = Rig::start();
    let (limit, good) = (limit(9, 60), Limit::per_unit(9, weir_engine::Unit::Hour));
    for bad in malformed(HERE) {
        let what = format!("{} bytes, {:?}", bad.len(), &bad[..bad.len().min(40)]);
        redis::cmd("SET").arg("k").arg(&bad).exec(&mut rig.raw).unwrap();
        for operation in [Operation::Consume(1), Operation::Peek, Operation::Refund(1), Operation::Report(1)] {
            let lists = [
                &[charge("k", &limit, operation)][..],
                &[charge("other", &good, Operation::Consume(1)), charge("k", &limit, operation)],
            ];
            for charges in lists {
                match rig.decide(charges) {
                    Err(StoreError::NotSent(failure)) => assert_eq!(failure.kind, "state", "{what}"),
                    other => panic!("{what}, {operation:?}: {other:?}"),
                }
            }
        }
        let receipt = Receipt { hits: 1, at: NOW, mark: HERE };
        let undos = [Undo { key: "k", limit: &limit, receipt, bounds: None }];
        let undone = rig.runtime.block_on(rig.store.undo(&undos, Instant::now() + PATIENCE).get());
        assert_eq!(undone.unwrap_err().kind(), "state", "{what}");
        let read = rig.runtime.block_on(rig.store.read_states(&[("k", &limit)], Instant::now() + PATIENCE).get());
        assert_eq!(read.unwrap_err().kind(), "state", "{what}");
        assert_eq!(rig.string(), bad, "overwritten");
    }
    assert_eq!(rig.server.command(&["EXISTS", "other"]).unwrap().trim(), "0");
}

#[test]
fn a_count_has_as_many_bytes_as_the_largest_needs() {
    let mut rig = Rig::start();
    let (limit, first) = (limit(u32::MAX, 60), HERE as f64);
    rig.one(&limit, Operation::Consume(255));
    assert_eq!(rig.string(), stored(1, first, &[255]));
    let over = rig.one(&limit, Operation::Consume(1)).receipt.unwrap();
    assert_eq!(rig.string(), stored(2, first, &[0, 1]));
    rig.undo(&limit, over);
    assert_eq!(rig.string(), stored(1, first, &[255]));

    // Empty buckets between two are there, and empty ones at the ends are not.
    rig.at(3).one(&limit, Operation::Consume(65_535));
    assert_eq!(rig.string(), stored(2, first, &[255, 0, 0, 0, 0, 0, 255, 255]));
    let over = rig.one(&limit, Operation::Consume(1)).receipt.unwrap();
    let wide = [255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(rig.string(), stored(4, first, &wide));
    rig.undo(&limit, over);
    rig.one(&limit, Operation::Refund(65_535));
    assert_eq!(rig.string(), stored(1, first, &[255]));

    // Forced hits past the most that a count holds.
    for _ in 0..2 {
        rig.at(5).one(&limit, Operation::Report(u32::MAX));
    }
    let most = [&[255][..], &[0; 19], &[255; 4]].concat();
    assert_eq!(rig.string(), stored(4, first, &most));
    assert_eq!(rig.one(&limit, Operation::Peek).verdict, Verdict::Over { retry_after: 60_999_999 });

    // The oldest bucket has left at the last instant of its sixty-first second.
    rig.store.set_now(NOW + 60 * PRECISION_US + PRECISION_US - 1);
    rig.one(&limit, Operation::Refund(u32::MAX - 7));
    assert_eq!(rig.string(), stored(1, first + 5.0, &[7]));
    rig.one(&limit, Operation::Refund(7));
    assert_eq!(rig.server.command(&["EXISTS", "k"]).unwrap().trim(), "0");
}

#[test]
fn a_window_of_256_buckets_has_257_counts_at_most() {
    let mut rig = Rig::start();
    let (limit, first) = (limit(1_000, BUCKETS_MAX), HERE as f64);
    let mut receipts = Vec::new();
    for bucket in 0..=BUCKETS_MAX {
        receipts.push(rig.at(bucket).one(&limit, Operation::Consume(1)).receipt.unwrap());
    }
    assert_eq!(rig.string(), stored(1, first, &[1; 257]));
    let left = rig.one(&limit, Operation::Consume(745));
    // Two hits more than fit: until the second bucket leaves.
    assert_eq!(left.verdict, Verdict::Over { retry_after: 2 * PRECISION_US - 1 });
    assert_eq!(rig.one(&limit, Operation::Consume(743)).remaining, 0);

    // In the middle, once and once more.
    for _ in 0..2 {
        rig.undo(&limit, receipts[128]);
    }
    let mut counts = [1_u16; 257];
    (counts[128], counts[256]) = (0, 744);
    let mut expected: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
    assert_eq!(rig.string(), stored(2, first, &expected));

    // The next bucket takes the place of the first two, of which one was undone too.
    rig.undo(&limit, receipts[1]);
    expected.drain(..4);
    rig.at(BUCKETS_MAX + 1).one(&limit, Operation::Consume(1));
    expected.extend([1, 0]);
    assert_eq!(rig.string(), stored(2, first + 2.0, &expected));

    // Hits after most of the window leave what still counts, and hits after all of it nothing.
    rig.at(2 * BUCKETS_MAX).one(&limit, Operation::Consume(3));
    let gap = [&744_u16.to_le_bytes()[..], &[1, 0], &[0; 508], &[3, 0]].concat();
    assert_eq!(rig.string(), stored(2, first + 256.0, &gap));
    rig.at(4 * BUCKETS_MAX).one(&limit, Operation::Consume(3));
    assert_eq!(rig.string(), stored(1, first + 1024.0, &[3]));
}
