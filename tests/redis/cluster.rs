//! A real Redis Cluster under the Redis store: keys lie where Redis says, decisions are those of any other store, and slots
//! move while they are used without a hit lost or made twice. Not in here: nodes that fail (redis/cluster/faults.rs) and
//! what real nodes seldom say (redis/cluster/redirections.rs).

mod faults;
mod redirections;
mod served;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::test_runner::TestRunner;
use redis::ServerError;
use tokio::task::LocalSet;
use weir_engine::observer::Silent;
use weir_engine::{Charge, Limit, Mode, Operation, Receipt};
use weir_store::memory::Memory;
use weir_store::redis::error_class::{self, RedisErrorClass};
use weir_store::redis::pipeline::{self, Options};
use weir_store::redis::{Endpoint, Redis, RedisObserver};
use weir_store::{Deciding as _, Inspected as _, Store, Undo};

use crate::acl::{further_rights, rights};
use crate::support::arbitrary::{START_US, bounds, config, fitting, limit, mode, operation, role};
use crate::support::cluster::{Plan, RedisCluster, SLOTS};
use crate::support::clustered::{Load, SHORT, daily, daily_log, hit, key_in, not_sent, open, store, used};
use crate::support::manual::{ManualClock, charge};
use crate::support::wait::{PATIENCE, eventually};

/// An operator sees every key on the node that `CLUSTER KEYSLOT` names.
#[tokio::test]
async fn a_slot_is_the_one_that_redis_computes() {
    let cluster = RedisCluster::start(&Plan::of(1));
    let mut node = cluster.connect(0);
    let parts = ["", "{", "}", "{}", "a", "w1:", "{shop|user=4}", "{a}{b}", "}{", "\u{e9}", "weir:", "f60"];
    for prefix in parts {
        let options = Options::new(cluster.seeds().remove(0));
        let store = Redis::start_cluster(cluster.seeds(), options, prefix);
        let (mut keys, mut ask) = (Vec::new(), redis::pipe());
        for one in parts {
            for two in parts {
                for three in parts {
                    let key = [one, two, three].concat();
                    ask.cmd("CLUSTER").arg("KEYSLOT").arg([prefix, &key].concat());
                    keys.push(key);
                }
            }
        }
        let slots: Vec<u16> = ask.query(&mut node).unwrap();
        for (key, slot) in keys.iter().zip(slots) {
            assert_eq!(store.slot_of(key), slot, "{prefix:?} {key:?}");
        }
    }
}

/// An operator who moves from one Redis, or from memory, to a cluster sees the same decisions; undos and resets reach
/// every node.
#[test]
fn a_cluster_decides_as_the_memory_store_does() {
    const KEYS: usize = 3;
    let cluster = RedisCluster::start(&Plan::of(3));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let clock = Arc::new(ManualClock::in_2041());
    let memory = Memory::new(100_000, clock, Arc::new(Silent));
    let redis = runtime.block_on(async { store(&cluster).at(START_US) });
    let deadline = || Instant::now() + PATIENCE;
    let both: [&dyn Store; 2] = [&memory, &redis];
    let story = Cell::new(0_u32);
    let masters = RefCell::new([0; 3]);

    let decisions = vec((mode(), vec((0..KEYS, operation(), role()), 1..5)), 1..12);
    // Two families of keys, each in a slot of its own.
    let stories = vec((vec(limit(), KEYS), decisions), 2);
    let result = TestRunner::new(config(8)).run(&stories, |families| {
        let mut keys: Vec<(String, Limit)> = Vec::new();
        let mut receipts: [Vec<(usize, Receipt)>; 2] = [Vec::new(), Vec::new()];
        for (limits, decisions) in families {
            story.set(story.get() + 1);
            let first = keys.len();
            for (i, limit) in limits.into_iter().enumerate() {
                keys.push((format!("w1:{{{}}}{i}", story.get()), limit));
            }
            masters.borrow_mut()[cluster.master_of(redis.slot_of(&keys[first].0))] += 1;
            for (mode, parts) in decisions {
                let mut charges = Vec::new();
                for (which, operation, role) in &parts {
                    let (key, limit) = &keys[first + which];
                    let bounds = bounds(limit, START_US);
                    charges.push(Charge { role: *role, bounds, ..charge(key, limit, fitting(limit, *operation)) });
                }
                let [memory, redis] =
                    both.map(|store| runtime.block_on(store.decide(&charges, mode, deadline()).get()).unwrap());
                assert_eq!(memory, redis, "{charges:?} {mode:?}");
                for (i, (which, _, _)) in parts.iter().enumerate() {
                    for (receipts, decision) in receipts.iter_mut().zip([&memory, &redis]) {
                        receipts.extend(decision.outcomes[i].receipt.map(|receipt| (first + which, receipt)));
                    }
                }
            }
        }
        let names: Vec<(&str, &Limit)> = keys.iter().map(|(key, limit)| (key.as_str(), limit)).collect();
        let states = || both.map(|store| runtime.block_on(store.read_states(&names, deadline()).get()).unwrap().states);
        let [in_memory, in_redis] = states();
        assert_eq!(in_memory, in_redis);
        // Every other charge is taken back, in one call over all slots.
        for (store, receipts) in both.iter().zip(&receipts) {
            let undos: Vec<Undo<'_>> = receipts
                .iter()
                .step_by(2)
                .map(|(which, receipt)| {
                    let (key, limit) = names[*which];
                    Undo { key, limit, receipt: *receipt, bounds: bounds(limit, START_US) }
                })
                .collect();
            runtime.block_on(store.undo(&undos, deadline()).get()).unwrap();
        }
        let [in_memory, in_redis] = states();
        assert_eq!(in_memory, in_redis, "after undo");
        let names: Vec<&str> = names.iter().map(|(key, _)| *key).collect();
        let [memory, redis] = both.map(|store| runtime.block_on(store.reset(&names, deadline()).get()).unwrap());
        assert_eq!(memory, redis, "keys that were there");
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(masters.borrow().iter().all(|stories| *stories > 0), "some master was not used: {masters:?}");
    let charges: Vec<(String, Limit)> = (0..9).map(|i| (format!("w1:{{{i}}}"), daily(1))).collect();
    let charges: Vec<Charge<'_>> =
        charges.iter().map(|(key, limit)| charge(key, limit, Operation::Consume(1))).collect();
    let over_slots = runtime.block_on(redis.decide(&charges, Mode::Atomic, deadline()).get());
    assert_eq!(not_sent(over_slots), "crossslot", "whoever decides splits first");
}

/// An operator who moves a slot sees nothing of it: no decision fails, none is lost or made twice, and every key of the
/// slot admits exactly its limit, before, during and after.
#[tokio::test]
async fn a_slot_that_moves_under_load_loses_and_doubles_nothing() {
    const KEYS: u32 = 12;
    const LIMIT: u32 = 150;
    const TASKS: usize = 8;
    let cluster = RedisCluster::start(&Plan::of(3));
    let stores = [Rc::new(store(&cluster)), Rc::new(store(&cluster))];
    let slot = stores[0].slot_of("w1:{shop}");
    let (from, to) = (cluster.master_of(slot), (cluster.master_of(slot) + 1) % 3);
    let keys: Vec<String> = (0..KEYS).map(|i| format!("w1:{{shop}}{i}")).collect();
    let load = Load::new(daily(LIMIT));
    let local = LocalSet::new();
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        // Keys that are new while their slot moves are a case of their own: the second half begins in the middle.
        let own = if task % 4 < 2 { keys[..keys.len() / 2].to_vec() } else { keys.clone() };
        let (load, store) = (load.clone(), stores[task % 2].clone());
        let late = task % 4 >= 2;
        tasks.push(local.spawn_local(async move {
            if late {
                load.more(500).await;
            }
            load.run(store, own).await;
        }));
    }
    local
        .run_until(async {
            load.more(200).await;
            cluster.begin_move(slot, from, to);
            load.more(600).await;
            let mut source = cluster.connect(from);
            loop {
                let left = cluster.keys_in(slot, &mut source);
                let Some(key) = left.first() else { break };
                cluster.move_key(key, &mut source, to);
                // Each key is used on both sides of its own move.
                load.more(50).await;
            }
            cluster.end_move(slot, from, to);
            load.more(200).await;
            load.finish(tasks).await;
        })
        .await;
    load.check(&keys);
    // Whoever comes later, from whatever node, finds the same.
    let late = store(&cluster);
    for key in &keys {
        assert_eq!(used(&late, key, &daily(LIMIT)).await, u64::from(LIMIT), "{key}");
    }
    assert!(cluster.nodes[to].runs("asking") > 0, "some decisions were redirected in the middle of the move");
}

/// While a slot moves, an operator sees decisions over several of its keys fail with kind `tryagain` (not charged, so
/// callers may ask again), where the keys are not all on one side: Redis cannot run them. Once the keys are together
/// again they work, and nothing was charged meanwhile.
#[tokio::test]
async fn several_keys_of_a_moving_slot_are_decided_where_they_are_together() {
    let cluster = RedisCluster::start(&Plan::of(2));
    let store = store(&cluster);
    let (pace, log) = (daily(100), daily_log(100));
    let (a, b) = ("w1:{shop}a", "w1:{shop}b");
    let both = [charge(a, &pace, Operation::Consume(1)), charge(b, &log, Operation::Consume(1))];
    let decide = async |within| store.decide(&both, Mode::Atomic, Instant::now() + within).get().await;
    let at = async || [used(&store, a, &pace).await, used(&store, b, &log).await];
    let slot = store.slot_of(a);
    let (from, to) = (cluster.master_of(slot), 1 - cluster.master_of(slot));
    let mut source = cluster.connect(from);

    decide(PATIENCE).await.unwrap();
    cluster.begin_move(slot, from, to);
    let decision = decide(PATIENCE).await.unwrap();
    assert_eq!(decision.outcomes.len(), 2, "both are still at the old place");
    cluster.move_key("weir:w1:{shop}a", &mut source, to);
    for _ in 0..20 {
        assert_eq!(not_sent(decide(SHORT).await), "tryagain");
    }
    decide(Duration::from_millis(5)).await.expect_err("the slot is on the move");
    assert_eq!(at().await, [2, 2], "single keys are decided on either side, and nothing was charged meanwhile");
    let receipt = |n: usize| decision.outcomes[n].receipt.unwrap();
    let undos = [
        Undo { key: a, limit: &pace, receipt: receipt(0), bounds: None },
        Undo { key: b, limit: &log, receipt: receipt(1), bounds: None },
    ];
    store.undo(&undos, Instant::now() + PATIENCE).get().await.unwrap();
    assert_eq!(at().await[1], 1, "an undo takes key by key, and so works in the middle of a move");
    cluster.move_key("weir:w1:{shop}b", &mut source, to);
    decide(PATIENCE).await.unwrap();
    assert_eq!(at().await[1], 2, "both are at the new place, and the slot still at the old one");

    // Keys that are nowhere yet may be on either side: Redis refuses those until the move is over.
    let fresh = [charge("w1:{shop}c", &pace, Operation::Consume(1)), charge("w1:{shop}d", &log, Operation::Consume(1))];
    assert_eq!(not_sent(store.decide(&fresh, Mode::Atomic, Instant::now() + SHORT).get().await), "tryagain");
    assert_eq!(store.reset(&["w1:{shop}c", a], Instant::now() + PATIENCE).get().await.unwrap(), 1);
    cluster.end_move(slot, from, to);
    store.decide(&fresh, Mode::Atomic, Instant::now() + PATIENCE).get().await.unwrap();
    assert_eq!(at().await, [0, 2]);
}

/// An operator whose Redis forgets its scripts in the middle of a move sees nothing either: they are loaded again, and
/// each call that is sent again has its ASKING right before it.
#[tokio::test]
async fn a_node_that_takes_a_slot_over_and_knows_no_script_is_taught_it() {
    let cluster = RedisCluster::start(&Plan::of(2));
    let store = Rc::new(store(&cluster));
    let slot = store.slot_of("w1:{shop}");
    let (from, to) = (cluster.master_of(slot), 1 - cluster.master_of(slot));
    let (pace, log) = (daily(1_000), daily_log(1_000));
    cluster.begin_move(slot, from, to);
    for round in 0..5_u32 {
        cluster.nodes[to].command(&["SCRIPT", "FLUSH"]).unwrap();
        let local = LocalSet::new();
        let mut tasks = Vec::new();
        for task in 0..20_u32 {
            let (store, limit) = (store.clone(), if task % 2 == 0 { pace.clone() } else { log.clone() });
            tasks.push(local.spawn_local(async move {
                // New keys are asked for at the new place; two scripts are missing there at once.
                hit(&store, &format!("w1:{{shop}}{round}/{}", task % 4), &limit, PATIENCE).await.unwrap()
            }));
        }
        local
            .run_until(async {
                for task in tasks {
                    assert!(task.await.unwrap());
                }
            })
            .await;
        for key in 0..4 {
            let limit = if key % 2 == 0 { &pace } else { &log };
            assert_eq!(used(&store, &format!("w1:{{shop}}{round}/{key}"), limit).await, 5);
        }
    }
    assert_eq!(cluster.nodes[from].runs("evalsha"), 0, "nothing ran at the old place");
    assert!(cluster.nodes[to].runs("script|load") >= 10);
}

/// The first decision on each node of a store that was made ready is sent once: whoever starts weir has dialled every
/// master by then, and taught it the scripts.
#[tokio::test]
async fn every_node_is_made_ready_before_the_first_decision() {
    let cluster = RedisCluster::start(&Plan::of(2));
    let store = store(&cluster);
    store.prepare(Instant::now() + PATIENCE).get().await.unwrap();
    let loaded = [0, 1].map(|node| cluster.nodes[node].runs("script|load"));
    assert!(loaded.iter().all(|&loads| loads > 0), "{loaded:?}");
    let limit = daily(10);
    let mut asked = [0; 2];
    for n in 0..8 {
        let key = format!("w1:{{{n}}}");
        asked[cluster.master_of(store.slot_of(&key))] += 1;
        assert!(hit(&store, &key, &limit, PATIENCE).await.unwrap());
    }
    assert!(asked.iter().all(|&asked| asked > 0), "{asked:?}");
    assert_eq!([0, 1].map(|node| cluster.nodes[node].runs("evalsha")), asked);
    assert_eq!([0, 1].map(|node| cluster.nodes[node].runs("script|load")), loaded);
}

/// An operator gives weir a user with the rights of docs/stores.md, and it does all it needs to; a password that is
/// wrong is told as what it is, and never shown.
#[tokio::test]
async fn a_user_with_the_documented_rights_is_enough() {
    let cluster = RedisCluster::start(&Plan { password: Some("geheim"), ..Plan::of(2) });
    let of_page = rights().join(" ").replace("~w1:*", "~weir:w1:*");
    let more = further_rights();
    let more = more.iter().filter(|(_, what)| *what == "a cluster").map(|(right, _)| right.as_str());
    let words: Vec<&str> = ["ACL", "SETUSER", "weir"].into_iter().chain(of_page.split(' ')).chain(more).collect();
    for node in 0..2 {
        cluster.ok(node, &words);
    }
    let bare = Endpoint::parse(&format!("redis://127.0.0.1:{}", cluster.nodes[0].port())).unwrap();
    let store = open(vec![bare.clone().with_login(Some("weir"), Some("secret"))], |_| {});
    store.ping(Instant::now() + PATIENCE).get().await.unwrap();
    let (pace, log) = (daily(100), daily_log(100));
    let (a, b) = ("w1:{shop}a", "w1:{shop}b");
    let slot = store.slot_of(a);
    let (from, to) = (cluster.master_of(slot), 1 - cluster.master_of(slot));
    assert!(hit(&store, a, &pace, PATIENCE).await.unwrap());
    cluster.begin_move(slot, from, to);
    assert!(hit(&store, b, &log, PATIENCE).await.unwrap(), "with ASKING");
    assert!(cluster.nodes[to].runs("asking") > 0);
    let mut source = cluster.connect(from);
    cluster.move_key("weir:w1:{shop}a", &mut source, to);
    cluster.end_move(slot, from, to);
    let both = [charge(a, &pace, Operation::Consume(1)), charge(b, &log, Operation::Consume(1))];
    store.decide(&both, Mode::Atomic, Instant::now() + PATIENCE).get().await.unwrap();
    let read = store.read_states(&[(a, &pace), (b, &log)], Instant::now() + PATIENCE).get().await.unwrap();
    assert!(read.states.iter().all(Option::is_some) && read.now > 0);
    assert_eq!(store.reset(&[a, b], Instant::now() + PATIENCE).get().await.unwrap(), 2);

    let store = open(vec![bare.with_login(Some("weir"), Some("falsch"))], |_| {});
    let error = store.ping(Instant::now() + SHORT).get().await;
    eventually("the reason to be known", PATIENCE, async || {
        let error = hit(&store, a, &pace, SHORT).await.unwrap_err();
        assert!(!error.to_string().contains("falsch"), "{error}");
        error.kind() == "wrongpass"
    })
    .await;
    not_sent(error);
}

/// What nodes said against a question or a call, as it is logged.
#[derive(Default)]
struct Said(Mutex<Vec<String>>);

impl RedisObserver for Said {
    fn refused(&self, _: &str, _: &RedisErrorClass, error: &ServerError) {
        self.0.lock().unwrap().push(error_class::for_log(error));
    }
}

/// Seeds of which some are dead, or no cluster at all: an operator sees weir find the cluster by the others, and what a
/// Redis that is no cluster says about it.
#[tokio::test]
async fn a_cluster_is_found_by_any_seed_that_lives() {
    let cluster = RedisCluster::start(&Plan::of(1));
    let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dead = Endpoint::parse(&format!("redis://{dead}")).unwrap();
    let seeds = vec![dead.clone(), dead.clone(), cluster.seeds().remove(0)];
    let limit = daily(100);
    let store = open(seeds, |_| {});
    assert!(hit(&store, "w1:{shop}", &limit, PATIENCE).await.unwrap());

    let begun = Instant::now();
    let store = open(vec![dead], |_| {});
    assert_eq!(not_sent(hit(&store, "w1:{shop}", &limit, SHORT).await), "deadline", "still looking");
    assert!(begun.elapsed() >= SHORT);
    eventually("it to be known that nobody answers", PATIENCE, async || {
        not_sent(hit(&store, "w1:{shop}", &limit, SHORT).await) == "no_connection"
    })
    .await;
    let begun = Instant::now();
    not_sent(hit(&store, "w1:{shop}", &limit, PATIENCE).await);
    assert!(begun.elapsed() < PATIENCE / 2, "it does not wait for its deadline");

    let single = crate::support::redis::RedisServer::start();
    let said = Arc::new(Said::default());
    let store = open(vec![Endpoint::parse(&single.url()).unwrap()], |options| options.observer = said.clone());
    let error = hit(&store, "w1:{shop}", &limit, PATIENCE).await.unwrap_err();
    assert_eq!(error.kind(), "no_node");
    assert!(error.to_string().contains("a node refused the command: ERR"), "{error}");
    let logged = said.0.lock().unwrap();
    assert!(logged.iter().any(|text| text.contains("cluster support disabled")), "{logged:?}");
}

/// Calls that come before anything is known of the cluster are bounded like those in any queue.
#[tokio::test]
async fn callers_that_wait_for_the_first_map_are_bounded() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let seed = Endpoint::parse(&format!("redis://{}", silent.local_addr().unwrap())).unwrap();
    let store = Rc::new(open(vec![seed], |options| options.queue_max = 3));
    let local = LocalSet::new();
    let mut tasks: Vec<_> = Vec::new();
    for i in 0..5 {
        let store = store.clone();
        tasks.push(
            local.spawn_local(async move { not_sent(hit(&store, &format!("w1:{{{i}}}"), &daily(1), SHORT).await) }),
        );
    }
    let mut kinds = Vec::new();
    local
        .run_until(async {
            for task in tasks {
                kinds.push(task.await.unwrap());
            }
        })
        .await;
    assert_eq!(kinds, ["deadline", "deadline", "deadline", "queue_full", "queue_full"]);
}

/// What is told of nodes that decisions go to.
#[derive(Default)]
struct Nodes {
    started: Mutex<Vec<String>>,
    ended: Mutex<Vec<String>>,
}

impl RedisObserver for Nodes {
    fn started(&self, address: &str, _: pipeline::Load) {
        self.started.lock().unwrap().push(address.to_owned());
    }

    fn ended(&self, address: &str) {
        self.ended.lock().unwrap().push(address.to_owned());
    }
}

/// An operator who takes a node out of the cluster sees weir's connections to it close, and the node leave the metrics;
/// nodes that were only asked for the map never came into them.
#[tokio::test]
async fn a_node_without_slots_is_left() {
    let cluster = RedisCluster::start(&Plan::of(2));
    let nodes = Arc::new(Nodes::default());
    let store = open(cluster.seeds(), |options| options.observer = nodes.clone());
    let limit = daily(100);
    let mut moved = BTreeMap::new();
    for node in [0, 1] {
        let key = key_in(&store, |slot| cluster.master_of(slot) == node, 0);
        assert!(hit(&store, &key, &limit, PATIENCE).await.unwrap());
        moved.insert(node, key);
    }
    let connected = || cluster.nodes[1].command(&["CLIENT", "LIST"]).unwrap().contains("name=weir");
    assert!(connected());
    // All its slots at once: none holds a key but one, which is moved as an operator's tool would.
    let slot = store.slot_of(&moved[&1]);
    cluster.move_slot(slot, 1, 0);
    assert!(hit(&store, &moved[&1], &limit, PATIENCE).await.unwrap());
    assert_eq!(used(&store, &moved[&1], &limit).await, 2);
    let rest: Vec<u16> = (0..SLOTS).filter(|other| cluster.master_of(*other) == 1 && *other != slot).collect();
    cluster.give_all(&rest, 0);
    // Any call to a slot that has moved shows that the map is out of date.
    let key = key_in(&store, |other| rest.contains(&other), 0);
    eventually("the connections to close", PATIENCE, async || {
        hit(&store, &key, &limit, PATIENCE).await.unwrap();
        !connected()
    })
    .await;
    store.ping(Instant::now() + PATIENCE).get().await.unwrap();
    let places = [0, 1].map(|node: usize| format!("127.0.0.1:{}", cluster.nodes[node].port()));
    // A node has two pipelines: one for most calls, and one for those that would keep others waiting.
    let (mut started, mut both) = (nodes.started.lock().unwrap().clone(), [places.clone(), places.clone()].concat());
    started.sort();
    both.sort();
    assert_eq!(started, both, "once each");
    assert_eq!(*nodes.ended.lock().unwrap(), [places[1].clone(), places[1].clone()]);
}
