//! A real Redis Cluster whose nodes die, hand over or lose their answers: what is affected and what is not, and that
//! nothing which may have run is sent again. Not in here: what a cluster does in health (redis/cluster.rs).

use std::rc::Rc;
use std::time::{Duration, Instant};

use redis::cmd;
use tokio::task::{JoinSet, LocalSet};
use weir_store::{Inspected as _, StoreError};

use crate::support::cluster::{FAILOVER, Plan, RedisCluster};
use crate::support::clustered::{Load, SHORT, daily, hit, key_in, not_sent, open, plenty, store, used, used_soon};
use crate::support::wait::{PATIENCE, eventually, until};

/// How long nodes try to carry out an order to fail over before they give it up.
const ORDER_LASTS: Duration = Duration::from_secs(6);
/// What a node that is well is never near, on however busy a machine, and what waiting for a dead one would exceed.
const UNHURT: Duration = Duration::from_secs(5);

/// An operator has a replica take over, as for an upgrade: the callers see nothing of it, and no hit is forgotten.
#[tokio::test]
async fn a_planned_failover_under_load_loses_and_doubles_nothing() {
    const LIMIT: u32 = 300;
    let cluster = RedisCluster::start(&Plan { replicas: 1, ..Plan::of(3) });
    let stores = [Rc::new(store(&cluster)), Rc::new(store(&cluster))];
    let mut keys = Vec::new();
    for node in 0..3 {
        keys.extend((0..4).map(|i| key_in(&stores[0], |slot| cluster.master_of(slot) == node, i)));
    }
    let load = Load::new(daily(LIMIT));
    let local = LocalSet::new();
    let mut tasks = Vec::new();
    for task in 0..8 {
        tasks.push(local.spawn_local(load.clone().run(stores[task % 2].clone(), keys.clone())));
    }
    local
        .run_until(async {
            load.more(500).await;
            cluster.ok(3, &["CLUSTER", "FAILOVER"]);
            let mut ordered = Instant::now();
            eventually("the replica to be master", FAILOVER, async || {
                // On a busy machine nodes may give an order up.
                if ordered.elapsed() > ORDER_LASTS {
                    ordered = Instant::now();
                    let _ = cluster.nodes[3].command(&["CLUSTER", "FAILOVER"]);
                }
                cluster.is_master(3)
            })
            .await;
            load.more(500).await;
            load.finish(tasks).await;
        })
        .await;
    load.check(&keys);
    assert!(cluster.is_master(3) && !cluster.is_master(0));
    assert!(cluster.nodes[3].runs("evalsha") > 0);
}

/// A master dies and its replica takes over. With `cluster-require-full-coverage no` an operator sees that decisions on
/// the dead master's keys fail, each by its deadline, until the replica is master; that all others go on as before; and
/// that nobody has to restart anything.
#[tokio::test]
async fn a_dead_master_costs_only_its_own_slots_until_its_replica_takes_over() {
    let mut cluster = RedisCluster::start(&Plan { replicas: 1, full_coverage: false, ..Plan::of(3) });
    let store = Rc::new(store(&cluster));
    let limit = plenty();
    let lost = key_in(&store, |slot| cluster.master_of(slot) == 0, 0);
    let kept: Vec<String> = [1, 2].map(|node| key_in(&store, |slot| cluster.master_of(slot) == node, 0)).into();
    for key in kept.iter().chain([&lost]) {
        assert!(hit(&store, key, &limit, PATIENCE).await.unwrap());
    }
    // What the replica has not heard of yet would be forgotten.
    let (mut master, mut replica) = (cluster.connect(0), cluster.connect(3));
    until("the charge to be replicated", PATIENCE, || {
        let told = |node: &mut redis::Connection| -> String { cmd("INFO").arg("replication").query(node).unwrap() };
        let offset = |info: &str, name: &str| {
            let line = info.lines().find(|line| line.starts_with(name)).unwrap();
            line.split(':').nth(1).unwrap().trim().to_owned()
        };
        let sent = offset(&told(&mut master), "master_repl_offset:");
        (offset(&told(&mut replica), "slave_repl_offset:") == sent).then_some(())
    });

    cluster.nodes[0].kill();
    let died = Instant::now();
    let (mut failed, mut slowest, mut slowest_failure) = (0, Duration::ZERO, Duration::ZERO);
    loop {
        for key in &kept {
            let begun = Instant::now();
            assert!(hit(&store, key, &limit, PATIENCE).await.unwrap(), "{key}");
            slowest = slowest.max(begun.elapsed());
        }
        let begun = Instant::now();
        match hit(&store, &lost, &limit, Duration::from_millis(20)).await {
            Ok(true) => break,
            Ok(false) => panic!("the limit is far"),
            Err(_) => failed += 1,
        }
        slowest_failure = slowest_failure.max(begun.elapsed());
        assert!(died.elapsed() < FAILOVER, "the replica never took over");
    }
    assert!(failed > 0);
    assert!(slowest < UNHURT, "keys of other nodes were decided within {slowest:?}");
    assert!(slowest_failure < UNHURT, "the dead node's were answered within {slowest_failure:?}");
    assert!(cluster.is_master(3), "the dead master's replica");
    assert!(used(&store, &lost, &limit).await >= 2, "what was charged before still counts");

    // The old master comes back as a replica; it is not asked any more.
    cluster.nodes[0].restart();
    until("the old master to follow", FAILOVER, || (!cluster.is_master(0)).then_some(()));
    for key in kept.iter().chain([&lost]) {
        assert!(hit(&store, key, &limit, PATIENCE).await.unwrap());
    }
    store.ping(Instant::now() + PATIENCE).get().await.unwrap();
}

/// A master without a replica dies, with Redis' default `cluster-require-full-coverage yes`: once the others have agreed
/// on it, an operator sees every decision fail with `clusterdown`, certainly not charged, and `/readyz` of a weir that
/// starts then says not ready. When the node is back decisions are, without a restart.
#[tokio::test]
async fn a_node_lost_without_a_replica_silences_the_cluster_until_it_is_back() {
    let mut cluster = RedisCluster::start(&Plan::of(3));
    let store = store(&cluster);
    let limit = plenty();
    let lost = key_in(&store, |slot| cluster.master_of(slot) == 2, 0);
    let kept = key_in(&store, |slot| cluster.master_of(slot) == 1, 0);
    assert!(hit(&store, &kept, &limit, PATIENCE).await.unwrap());
    store.ping(Instant::now() + PATIENCE).get().await.unwrap();

    cluster.nodes[2].kill();
    let mut charged = 1;
    let kind = loop {
        match hit(&store, &kept, &limit, SHORT).await {
            Ok(admitted) => charged += u32::from(admitted),
            error => break not_sent(error),
        }
    };
    assert_eq!(kind, "clusterdown");
    let kind = not_sent(hit(&store, &lost, &limit, SHORT).await);
    assert!(["no_connection", "no_node"].contains(&kind), "{kind}");
    assert!(store.ping(Instant::now() + SHORT).get().await.is_err(), "not all slots are served");

    cluster.nodes[2].restart();
    eventually("the node to be used again", FAILOVER, async || hit(&store, &lost, &limit, SHORT).await.is_ok()).await;
    eventually("the others too", FAILOVER, async || used_soon(&store, &kept, &limit).await.is_some()).await;
    assert_eq!(used(&store, &kept, &limit).await, u64::from(charged), "what was refused was not charged");
    store.ping(Instant::now() + PATIENCE).get().await.unwrap();
}

/// A network that swallows answers: an operator sees DEADLINE_EXCEEDED and never a charge made twice. What Redis ran is
/// counted by Redis.
#[tokio::test]
async fn a_call_whose_answer_is_lost_is_sent_to_no_node_again() {
    const CALLS: u32 = 20;
    let cluster = RedisCluster::start(&Plan { proxied: true, ..Plan::of(3) });
    let store = Rc::new(store(&cluster));
    let limit = daily(1_000);
    let key = key_in(&store, |slot| cluster.master_of(slot) == 1, 0);
    let other = key_in(&store, |slot| cluster.master_of(slot) == 2, 0);
    for key in [&key, &other] {
        assert!(hit(&store, key, &limit, PATIENCE).await.unwrap());
    }
    let before = cluster.runs("evalsha");

    cluster.proxies[1].swallow(true);
    let mut sent = 0;
    for _ in 0..CALLS {
        match hit(&store, &key, &limit, Duration::from_millis(20)).await {
            Err(StoreError::Unknown(failure)) => {
                assert_eq!(failure.kind, "deadline");
                sent += 1;
            }
            // The connections that owe answers are closed, and a new one is not made without an answer.
            Err(StoreError::NotSent(_)) => {}
            answer => panic!("{answer:?}"),
        }
        assert!(hit(&store, &other, &limit, SHORT).await.unwrap(), "other nodes answer");
    }
    assert!(sent > 0);
    // Each was in its socket before the connection was given up: Redis runs it, once, and the other node's as well.
    let ran = || cluster.runs("evalsha") - before;
    until("what was sent to run", PATIENCE, || (ran() >= u64::from(sent + CALLS)).then_some(()));
    cluster.proxies[1].swallow(false);
    eventually("the node to be pinged again", PATIENCE, async || {
        store.ping(Instant::now() + SHORT).get().await.is_ok()
    })
    .await;
    assert_eq!(ran(), u64::from(sent + CALLS));
    assert_eq!(used(&store, &key, &limit).await, u64::from(1 + sent));

    // An answer that breaks off in the middle is no answer either.
    let sure = used(&store, &key, &limit).await;
    cluster.proxies[1].cut_after(5);
    match hit(&store, &key, &limit, PATIENCE).await {
        Err(StoreError::Unknown(failure)) => assert_eq!(failure.kind, "broken"),
        answer => panic!("{answer:?}"),
    }
    eventually("the node to be used again", PATIENCE, async || used_soon(&store, &key, &limit).await.is_some()).await;
    assert_eq!(used(&store, &key, &limit).await, sure + 1);
}

/// The breaker of a dead node opens for its slots alone: an operator sees its keys answered at once by policy, and the
/// other nodes' as always.
#[tokio::test]
async fn the_breaker_of_one_node_leaves_the_others_alone() {
    let mut cluster = RedisCluster::start(&Plan { full_coverage: false, ..Plan::of(2) });
    let store = Rc::new(open(cluster.seeds(), |options| options.breaker.error_percent = 50));
    let limit = plenty();
    let [kept, lost] = [0, 1].map(|node| key_in(&store, |slot| cluster.master_of(slot) == node, 0));
    for key in [&kept, &lost] {
        assert!(hit(&store, key, &limit, PATIENCE).await.unwrap());
    }
    cluster.nodes[1].kill();
    let local = LocalSet::new();
    let tripped = local.run_until(async {
        eventually("the breaker to open", PATIENCE, async || {
            let mut calls = JoinSet::new();
            for _ in 0..30 {
                let (store, lost, limit) = (store.clone(), lost.clone(), limit.clone());
                calls.spawn_local(async move { hit(&store, &lost, &limit, Duration::from_millis(20)).await });
            }
            let mut open = false;
            while let Some(answer) = calls.join_next().await {
                open |= answer.unwrap().is_err_and(|error| error.kind() == "circuit_open");
            }
            open
        })
        .await;
    });
    tripped.await;
    assert!(hit(&store, &kept, &limit, SHORT).await.unwrap());
    cluster.nodes[1].restart();
    eventually("the node to be used again", FAILOVER, async || hit(&store, &lost, &limit, SHORT).await.is_ok()).await;
}
