//! The whole of weir over a real Redis Cluster: requests whose descriptors lie in several slots. Not in here: how calls
//! find their node (redis/cluster.rs), and such requests over made-up stores, step by step (store/split.rs).

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use crate::support::cluster::{Plan, RedisCluster};
use crate::support::process::{LogLine, PolicyDirectory, Weir};
use crate::support::rls::{self, Client};
use crate::support::wait::{PATIENCE, until};
use crate::support::{http, seen};

/// Every algorithm, five hits each, so that requests of several users are often denied by one of them; and what carries
/// on without a node.
const POLICY: &str = "\
domain: shop
descriptors:
  - key: fixed_window
    rate_limit: {rate: 5/year}
  - key: sliding_window_counter
    rate_limit: {rate: 5/day, algorithm: sliding_window_counter}
  - key: sliding_window
    rate_limit: {rate: 5/day, algorithm: sliding_window, precision: 1h}
  - key: sliding_window_log
    rate_limit: {rate: 5/day, algorithm: sliding_window_log}
  - key: gcra
    rate_limit: {rate: 5/day, algorithm: gcra}
  - key: interval
    rate_limit: {rate: 5/day, algorithm: token_bucket, refill: interval}
  - key: local
    on_error: local
    rate_limit: {rate: 5/day}
";

const KEYS: [&str; 6] =
    ["fixed_window", "sliding_window_counter", "sliding_window", "sliding_window_log", "gcra", "interval"];
/// Hits that each user has.
const HITS: usize = 5;
/// Users of one key: in slots all over the cluster.
const USERS: usize = 6;

/// `timeout` is longer than a busy machine needs, so that no healthy call is late.
fn start(cluster: &RedisCluster, policies: &PolicyDirectory, timeout: &str) -> Weir {
    let places: Vec<String> = cluster.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    let url = format!("redis://{}", places.join(","));
    let arguments = ["--store", "redis", "--redis-url", &url, "--set", "redis.topology=cluster"];
    let timeout = format!("redis.timeout={timeout}");
    Weir::start(&policies.path(), &[&arguments[..], &["--set", &timeout]].concat())
}

/// Asks for one hit of each of these users at once.
fn ask(client: &mut Client, key: &str, users: &[usize]) -> rls::RateLimitResponse {
    let mut request = rls::request("shop", &[]);
    request.descriptors.clear();
    for user in users {
        let user = format!("u{user}");
        request.descriptors.extend(rls::request("shop", &[(key, &user)]).descriptors);
    }
    client.ask(request).unwrap()
}

/// What the admin listener says is left for a user.
fn left(weir: &Weir, key: &str, user: usize) -> u64 {
    let path = format!("/state?domain=shop&descriptor={key}%3Du{user}");
    let answer = http::get(weir.admin, &path).unwrap();
    let state: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    state["limits"][0]["remaining"].as_u64().unwrap_or_else(|| panic!("{answer:?}"))
}

/// An operator sees that denied requests cost nobody anything, from two replicas at once, although each request is
/// over several slots and nodes: what is left is what was not admitted.
#[test]
fn replicas_charge_exactly_what_they_admit_over_several_slots() {
    let cluster = RedisCluster::start(&Plan::of(3));
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let replicas = [start(&cluster, &policies, "5s"), start(&cluster, &policies, "5s")];
    for key in KEYS {
        let admitted = Mutex::new(BTreeMap::<usize, usize>::new());
        thread::scope(|scope| {
            for number in 0..4 {
                let (weir, admitted) = (&replicas[number % replicas.len()], &admitted);
                scope.spawn(move || {
                    let mut client = Client::connect(weir.grpc);
                    for turn in 0..12 {
                        let first = (number * 5 + turn * 7) % USERS;
                        let users = [first, (first + 1 + turn % 3) % USERS];
                        if rls::admits(&ask(&mut client, key, &users)) {
                            let mut admitted = admitted.lock().unwrap();
                            users.iter().for_each(|&user| *admitted.entry(user).or_default() += 1);
                        }
                    }
                });
            }
        });
        let admitted = admitted.into_inner().unwrap();
        assert!(admitted.values().any(|&hits| hits == HITS), "{key}: nobody has come to an end: {admitted:?}");
        for user in 0..USERS {
            let hits = admitted.get(&user).copied().unwrap_or_default();
            assert!(hits <= HITS, "{key} u{user}: {hits} admitted");
            assert_eq!(left(&replicas[0], key, user), (HITS - hits) as u64, "{key} u{user}");
        }
    }
    let undone = |result: &str| -> u64 {
        let series = format!("weir_undone_total{{result=\"{result}\"}}");
        replicas.iter().map(|weir| seen::metric(weir, &series)).sum()
    };
    assert_eq!(undone("unconfirmed"), 0);
    assert!(undone("confirmed") > 0, "requests met each other");
}

/// An operator sees, when a node without a replica dies, that users on the other nodes are limited as before, and that
/// those of its own are by the embedded store: a warning in the log, and `weir_on_error_total{action="local"}`.
#[test]
fn without_one_node_the_others_still_count_and_its_own_carry_on_locally() {
    let mut cluster = RedisCluster::start(&Plan { full_coverage: false, ..Plan::of(3) });
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = start(&cluster, &policies, "1s");
    let mut client = Client::connect(weir.grpc);
    // Which users are on which node: those whose key is there after one hit.
    ask(&mut client, "local", &(0..USERS).collect::<Vec<_>>());
    let mut on_first = Vec::new();
    for user in 0..USERS {
        let key = format!("w1:{{shop|local=u{user}}}f86400s");
        let there = cluster.nodes[0].command(&["EXISTS", &key]);
        if there.is_some_and(|answer| answer.trim() == "1") {
            on_first.push(user);
        }
    }
    let elsewhere = (0..USERS).find(|user| !on_first.contains(user)).expect("users on other nodes");
    let &lost = on_first.first().expect("users on the first node");
    cluster.nodes[0].kill();

    let over = |answer: &rls::RateLimitResponse| {
        answer.statuses.iter().map(|status| status.code() == rls::Code::OverLimit).collect::<Vec<_>>()
    };
    // The user on a living node has four left there; the other one has the five of the local store.
    for _ in 0..4 {
        assert_eq!(over(&ask(&mut client, "local", &[elsewhere, lost])), [false, false]);
    }
    assert_eq!(over(&ask(&mut client, "local", &[elsewhere, lost])), [true, false]);
    assert_eq!(left(&weir, "local", elsewhere), 0);
    assert_eq!(over(&ask(&mut client, "local", &[lost])), [false], "the denied request took nothing");
    assert_eq!(over(&ask(&mut client, "local", &[lost])), [true]);
    until("the fallback in the metrics", PATIENCE, || {
        let metrics = http::get(weir.http, "/metrics").ok()?.body;
        let line = metrics.lines().find(|line| line.starts_with("weir_on_error_total{action=\"local\"}"))?;
        (!line.ends_with(" 0")).then_some(())
    });
    let begins =
        |line: &LogLine| line.message().is_some_and(|text| text.contains("a store does not answer: on_error applies"));
    assert!(weir.wait_for_log(0, PATIENCE, begins), "{}", weir.written());
    assert_eq!(weir.count_in_log(begins), 1);
    assert_eq!(http::get(weir.http, "/readyz").unwrap().status, 200, "a node that is gone is no reason to leave");
}

/// An override that one replica sets is in force on the other.
#[test]
fn overrides_are_shared_over_a_cluster() {
    let cluster = RedisCluster::start(&Plan::of(3));
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let (one, other) = (start(&cluster, &policies, "5s"), start(&cluster, &policies, "5s"));
    let body = r#"{"domain":"shop","descriptor":"gcra=u1","limits":[{"requests":9,"window_us":86400000000}],
                   "for_us":3600000000,"reason":"a launch"}"#;
    let answer = http::request(one.admin, "PUT", "/overrides", &[], body).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(left(&one, "gcra", 1), 9);
    until("the other replica to have it", PATIENCE, || (left(&other, "gcra", 1) == 9).then_some(()));
    assert_eq!(left(&other, "gcra", 2), HITS as u64);
}

/// An operator sees the states of a rule on all nodes, each once, and no others; and the reason when a node is gone.
#[test]
fn states_of_a_rule_are_listed_from_every_node() {
    const ASKED: usize = 300;
    let mut cluster = RedisCluster::start(&Plan::of(3));
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = start(&cluster, &policies, "5s");
    let mut client = Client::connect(weir.grpc);
    for key in ["fixed_window", "gcra"] {
        for user in 0..ASKED {
            ask(&mut client, key, &[user]);
        }
    }
    let on_node = |node: usize| {
        let keys = cluster.nodes[node].command(&["DBSIZE"]).unwrap();
        keys.trim().parse::<usize>().unwrap()
    };
    assert!((0..3).all(|node| on_node(node) > ASKED / 10), "keys lie on every node");
    let page = |from: &str| {
        let path = format!("/states?domain=shop&rule=fixed_window&max=50{from}");
        http::get(weir.admin, &path).unwrap()
    };
    let (mut states, mut pages, mut from) = (BTreeMap::new(), 0, String::new());
    loop {
        let page: serde_json::Value = serde_json::from_str(&page(&from).body).unwrap();
        pages += 1;
        for state in page["states"].as_array().unwrap() {
            let used = (state["used"].as_u64().unwrap(), state["remaining"].as_u64().unwrap());
            states.insert(state["descriptor"].as_str().unwrap().to_owned(), used);
        }
        match page["next"].as_str() {
            Some(next) => from = format!("&from={next}"),
            None => break,
        }
        assert!(pages < 1_000);
    }
    assert!(pages > 3, "{pages}");
    let expected: BTreeMap<String, (u64, u64)> =
        (0..ASKED).map(|user| (format!("fixed_window=u{user}"), (1, HITS as u64 - 1))).collect();
    assert_eq!(states, expected);

    cluster.nodes[2].kill();
    until("the reason", PATIENCE, || {
        let mut from = String::new();
        for _ in 0..1_000 {
            let answer = page(&from);
            if answer.status == 503 {
                return Some(());
            }
            let page: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
            from = format!("&from={}", page["next"].as_str()?);
        }
        None
    });
}
