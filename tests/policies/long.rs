//! Long requests: one of 60 values of 59 KB took 79 ms of a core, and every other request of that core waited for it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Waker};
use std::time::Instant;

use futures_util::future::{Either, join, select};
use weir_engine::observer::Silent;
use weir_engine::{Entry, Operation};
use weir_limiter::{DescriptorRequest, Limiter, Options, Policies, Query};
use weir_store::memory::Memory;

use crate::support::manual::ManualClock;

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: word, value: '*z*y*', rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: word, rate_limit: {unit: year, requests_per_unit: 1000}}
";
const DESCRIPTORS: usize = 60;

fn limiter() -> Limiter {
    let policies = weir_policies::parse(&[("shop.yaml", POLICY)]).expect("good policies").policies;
    let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
    let store = Memory::new(10_000, Arc::new(ManualClock::in_2041()), Arc::new(Silent));
    Limiter::new(policies, Options::new(Arc::new(store)), Arc::new(Silent))
}

/// A descriptor for each of these values.
fn query(values: &[String]) -> Query<'_> {
    let asked = |value| DescriptorRequest {
        entries: vec![Entry { key: "word", value }].leak(),
        operation: Operation::Consume(1),
        limit: None,
    };
    Query { domain: "shop", caller: None, descriptors: values.iter().map(|value| asked(value)).collect(), settle: None }
}

/// Values that a wildcard of the policy has to search for in vain, and one that meets it.
fn long_values() -> Vec<String> {
    let value = |number| format!("{number}{}", "z".repeat(1_000));
    let mut values: Vec<_> = (0..DESCRIPTORS).map(value).collect();
    values[7].push('y');
    values
}

#[tokio::test]
async fn others_run_between_two_descriptors_of_long_requests() {
    let (limiter, values) = (limiter(), long_values());
    let query = query(&values);
    assert!(query.is_long());
    let turns = AtomicUsize::new(0);
    let others = async {
        loop {
            turns.fetch_add(1, Relaxed);
            tokio::task::yield_now().await;
        }
    };
    let decide = || limiter.decide(&query, Instant::now(), None, None);
    let both = pin!(join(decide(), decide()));
    let Either::Left(((first, second), _)) = select(both, pin!(others)).await;
    assert!(turns.load(Relaxed) >= 2 * DESCRIPTORS, "{turns:?} turns of others beside two long requests");

    let (first, second) = (first.expect("an answer"), second.expect("an answer"));
    assert!(!first.denied && second.denied, "the wildcard's limit is 1");
    assert_eq!(first.statuses.iter().filter(|status| status.remaining == 999).count(), DESCRIPTORS - 1);
    assert!(second.statuses[7].over && !second.statuses[8].over);
    // Without turns the decision is the same.
    assert_eq!(limiter.decide_now(&query, Instant::now(), None).expect("an answer"), second);
}

#[test]
fn a_short_request_needs_no_turn() {
    let (limiter, values) = (limiter(), vec!["short".to_owned(); DESCRIPTORS]);
    let query = query(&values);
    assert!(!query.is_long());
    let decision = pin!(limiter.decide(&query, Instant::now(), None, None));
    assert!(decision.poll(&mut Context::from_waker(Waker::noop())).is_ready());
}
