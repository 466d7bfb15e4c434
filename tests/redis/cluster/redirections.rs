//! What nodes of a Redis Cluster seldom say, or not for long, said to the Redis store by nodes that are made up: hosts left
//! out, slots sent to and fro, nodes that are cut off. Not in here: real clusters (redis/cluster.rs).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_engine::{Algorithm, Anchor, Charge, Limit, Mode, Operation, Window};
use weir_store::redis::pipeline::Options;
use weir_store::redis::{Endpoint, Redis, RedisObserver};
use weir_store::{Deciding as _, Inspected as _, StoreError};

use crate::support::fake_node::{FakeNode, all_slots, bulk};
use crate::support::wait::PATIENCE;

/// How often one call is sent at most: once, and six times again.
const SENT_MAX: usize = 7;

/// How long one node may take to send its map.
const SLOW_NODE_TIMEOUT: Duration = Duration::from_secs(1);

fn store(seeds: &[&FakeNode]) -> Redis {
    watched(seeds, Arc::new(()))
}

fn watched(seeds: &[&FakeNode], observer: Arc<dyn RedisObserver>) -> Redis {
    let at = |node: &&FakeNode| Endpoint::parse(&format!("redis://127.0.0.1:{}", node.port())).unwrap();
    let seeds: Vec<Endpoint> = seeds.iter().map(at).collect();
    let mut options = Options::new(seeds[0].clone());
    options.connections = 1;
    options.breaker.error_percent = 0;
    options.observer = observer;
    Redis::start_cluster(seeds, options, "")
}

async fn hit(store: &Redis, within: Duration) -> Result<(), StoreError> {
    let limit = Limit::new(10, Window::from_micros(1_000_000).unwrap(), fixed()).unwrap();
    let charges = [Charge::alone("w1:{shop}", &limit, Operation::Consume(1))];
    store.decide(&charges, Mode::Atomic, Instant::now() + within).get().await.map(drop)
}

fn fixed() -> Algorithm {
    Algorithm::FixedWindow { anchor: Anchor::Clock }
}

/// The slot of `w1:{shop}`, by CLUSTER KEYSLOT.
const SLOT: u16 = 3_808;

/// A fixed window's reply: a clock, and a state of which nothing is used.
fn admitted() -> String {
    let (now, window_us, numbers) = (1_700_000_000_000_000_u64, 1_000_000, 1 << 21);
    format!("*2\r\n:{now}\r\n:{}\r\n", (now / window_us % numbers) << 32)
}

/// What a node says that has its map from `slots`, is in order or not, and answers decisions as told.
fn member(
    slots: String,
    state: &'static str,
    decides: impl Fn() -> String + Send + Sync + 'static,
) -> impl Fn(&[String]) -> String + Send + Sync + 'static {
    move |command| match (command[0].as_str(), command.get(1).map(String::as_str)) {
        ("CLUSTER", Some("SLOTS")) => slots.clone(),
        ("CLUSTER", Some("INFO")) => bulk(&format!("cluster_state:{state}\r\ncluster_size:1\r\n")),
        ("EVALSHA", _) => decides(),
        _ => "-ERR not expected\r\n".into(),
    }
}

fn decisions(node: &FakeNode) -> usize {
    node.heard().iter().filter(|name| *name == "EVALSHA").count()
}

fn not_sent(answer: Result<(), StoreError>) -> &'static str {
    match answer {
        Err(StoreError::NotSent(failure)) => failure.kind,
        other => panic!("expected a call that was not sent: {other:?}"),
    }
}

/// Nodes that do not know their own names yet, as in a young cluster: an operator sees weir find them where it asked.
#[tokio::test]
async fn a_node_that_names_no_host_is_where_it_was_asked() {
    let (one, two) = (FakeNode::start(), FakeNode::start());
    let there = format!("-MOVED {SLOT} :{}\r\n", two.port());
    one.says(member(all_slots(None, one.port()), "ok", move || there.clone()));
    two.says(member(all_slots(Some(""), one.port()), "ok", admitted));
    let store = store(&[&one]);
    hit(&store, PATIENCE).await.unwrap();
    assert_eq!((decisions(&one), decisions(&two)), (1, 1));
    assert_eq!(store.slot_of("w1:{shop}"), SLOT);
}

/// Two nodes that each say that the other has the slot: an operator sees `moved`, not charged, after a few tries and
/// never past the deadline.
#[tokio::test]
async fn a_call_sent_to_and_fro_ends() {
    let (one, two) = (FakeNode::start(), FakeNode::start());
    for (node, other) in [(&one, &two), (&two, &one)] {
        let there = format!("-MOVED {SLOT} 127.0.0.1:{}\r\n", other.port());
        node.says(member(all_slots(Some("127.0.0.1"), node.port()), "ok", move || there.clone()));
    }
    let store = store(&[&one, &two]);
    assert_eq!(not_sent(hit(&store, PATIENCE).await), "moved");
    assert_eq!(decisions(&one) + decisions(&two), SENT_MAX);
    // On a busy machine the call may be late in other ways than by its tries.
    hit(&store, Duration::from_millis(5)).await.expect_err("both nodes refuse");
    assert!(decisions(&one) + decisions(&two) < 2 * SENT_MAX, "the pauses between tries count");
}

/// A slot on the move for good: an operator sees `tryagain`, not charged. ASKING stands before each try on the new node.
#[tokio::test]
async fn a_call_that_is_to_be_tried_again_for_ever_ends() {
    let (one, two) = (FakeNode::start(), FakeNode::start());
    let there = format!("-ASK {SLOT} 127.0.0.1:{}\r\n", two.port());
    one.says(member(all_slots(Some("127.0.0.1"), one.port()), "ok", move || there.clone()));
    two.says(|command| match command[0].as_str() {
        "ASKING" => "+OK\r\n".into(),
        _ => "-TRYAGAIN Multiple keys request during rehashing of slot\r\n".into(),
    });
    let store = store(&[&one]);
    assert_eq!(not_sent(hit(&store, PATIENCE).await), "tryagain");
    assert_eq!(decisions(&one), 1);
    assert_eq!(two.heard(), ["ASKING", "EVALSHA"].repeat(SENT_MAX - 1));
}

/// A node that takes a slot over and does not know the script: an operator sees the decision made there, after one round
/// trip more. The call that is sent again has ASKING of its own right before it, or the node would send it away.
#[tokio::test]
async fn a_script_that_is_loaded_after_an_ask_is_asked_for_again() {
    let (one, two) = (FakeNode::start(), FakeNode::start());
    let there = format!("-ASK {SLOT} 127.0.0.1:{}\r\n", two.port());
    one.says(member(all_slots(Some("127.0.0.1"), one.port()), "ok", move || there.clone()));
    let is_loaded = AtomicBool::new(false);
    two.says(move |command| match command[0].as_str() {
        "ASKING" => "+OK\r\n".into(),
        "SCRIPT" => {
            is_loaded.store(true, Ordering::SeqCst);
            bulk("the hash of the script")
        }
        _ if is_loaded.load(Ordering::SeqCst) => admitted(),
        _ => "-NOSCRIPT No matching script. Please use EVAL.\r\n".into(),
    });
    hit(&store(&[&one]), PATIENCE).await.unwrap();
    assert_eq!(decisions(&one), 1);
    assert_eq!(two.heard(), ["ASKING", "EVALSHA", "SCRIPT", "ASKING", "EVALSHA"]);
}

/// A user without the right to ASKING: an operator sees `noperm`, and not the `moved` that follows from it.
#[tokio::test]
async fn a_refused_asking_is_the_reason_that_is_told() {
    let (one, two) = (FakeNode::start(), FakeNode::start());
    let (there, back) =
        (format!("-ASK {SLOT} 127.0.0.1:{}\r\n", two.port()), format!("-MOVED {SLOT} 127.0.0.1:{}\r\n", one.port()));
    one.says(member(all_slots(Some("127.0.0.1"), one.port()), "ok", move || there.clone()));
    two.says(move |command| match command[0].as_str() {
        "ASKING" => "-NOPERM this user has no permissions to run the 'asking' command\r\n".into(),
        _ => back.clone(),
    });
    assert_eq!(not_sent(hit(&store(&[&one]), PATIENCE).await), "noperm");
    assert_eq!(two.heard(), ["ASKING", "EVALSHA"]);
}

/// A node that is cut off from the rest, and still has the old map: an operator sees weir believe the others.
#[tokio::test]
async fn a_node_that_is_cut_off_is_not_believed() {
    let (cut_off, well) = (FakeNode::start(), FakeNode::start());
    cut_off.says(member(all_slots(Some("127.0.0.1"), cut_off.port()), "fail", || {
        "-CLUSTERDOWN The cluster is down\r\n".into()
    }));
    well.says(member(all_slots(Some("127.0.0.1"), well.port()), "ok", admitted));
    // Whichever of the two is asked first.
    for _ in 0..20 {
        hit(&store(&[&cut_off, &well]), PATIENCE).await.unwrap();
    }
    assert_eq!(decisions(&cut_off), 0);
    assert!(cut_off.heard().contains(&"CLUSTER".into()), "it was asked at times");
    // Without any other it is.
    assert_eq!(not_sent(hit(&store(&[&cut_off]), PATIENCE).await), "clusterdown");
}

/// A node that is slow to answer: an operator sees weir start by the others, well before the slow one's time is over.
#[tokio::test]
async fn a_slow_node_is_not_waited_for() {
    let (slow, well) = (FakeNode::start(), FakeNode::start());
    let (held, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    slow.says(move |_| {
        // Until the test is over.
        let _ = gate.lock().unwrap().recv();
        "-ERR too late\r\n".into()
    });
    well.says(member(all_slots(Some("127.0.0.1"), well.port()), "ok", admitted));
    let mut fastest = None;
    for _ in 0..10 {
        let (asked, begun) = (slow.heard().len(), Instant::now());
        hit(&store(&[&slow, &well]), PATIENCE).await.unwrap();
        if slow.heard().len() > asked {
            fastest = Some(fastest.unwrap_or(PATIENCE).min(begun.elapsed()));
        }
    }
    // The others may be late on a busy machine.
    let fastest = fastest.expect("the slow node is asked first at times");
    assert!(fastest < SLOW_NODE_TIMEOUT, "{fastest:?}");
    drop(held);
}

/// What is no map is not taken for one: an operator is told so.
#[tokio::test]
async fn a_strange_map_is_told_as_one() {
    let node = FakeNode::start();
    node.says(member("*1\r\n*2\r\n:0\r\n:99999\r\n".into(), "ok", admitted));
    let error = hit(&store(&[&node]), PATIENCE).await.unwrap_err().to_string();
    assert!(error.contains("the answer to CLUSTER SLOTS has an unknown form"), "{error}");
    node.says(member("*0\r\n".into(), "ok", admitted));
    let error = hit(&store(&[&node]), PATIENCE).await.unwrap_err().to_string();
    assert!(error.contains("the cluster has no slots yet"), "{error}");
    assert_eq!(decisions(&node), 0);
}

/// A fault of ours in the tasks of one node: it is reported to whoever supervises, as with a single Redis.
#[tokio::test]
async fn a_node_whose_task_dies_is_reported() {
    #[derive(Default)]
    struct Faulty(AtomicBool);
    impl RedisObserver for Faulty {
        fn batch_answered(&self, _: usize, _: Duration) {
            assert!(!self.0.load(Ordering::SeqCst), "a fault in a test");
        }
    }
    let node = FakeNode::start();
    node.says(member(all_slots(Some("127.0.0.1"), node.port()), "ok", admitted));
    let faulty = Arc::new(Faulty::default());
    let store = watched(&[&node], faulty.clone());
    let (report, ()) = tokio::join!(store.died(), async {
        hit(&store, PATIENCE).await.unwrap();
        faulty.0.store(true, Ordering::SeqCst);
        let error = hit(&store, PATIENCE).await.unwrap_err().to_string();
        assert!(error.contains("the connection broke"), "{error}");
    });
    assert!(report.contains("a fault in a test"), "{report}");
}
