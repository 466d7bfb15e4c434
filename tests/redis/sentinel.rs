//! Redis behind sentinels: which server is dialled, what a failover costs, and that nothing is sent twice by it. With
//! real servers and sentinels, and with sentinels that say what the test wants.
//!
//! Not in here: how the servers come to agree, which is Redis' own business.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, Value, cmd};
use weir_store::redis::pipeline::{Call, CallError, Options, Pipeline, Reason};
use weir_store::redis::{Endpoint, RedisTarget, Sentinels};

use crate::support::http;
use crate::support::process::{LogLine, PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::sentinel::{FAILOVER_PATIENCE, FakeSentinel, MASTER, SentinelSet};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, pace, until};

/// A deadline that a healthy Redis is never near, and that a sick one is to reach.
const SHORT: Duration = Duration::from_millis(300);

/// Passwords of the servers and of the sentinels.
const REDIS_PASSWORD: &str = "geheim";
const SENTINEL_PASSWORD: &str = "wachsam";

/// Callers that count at the same time while something happens.
const CALLERS: usize = 8;
/// Calls that have to succeed one after the other before a failover counts as over.
const CALM: u64 = 200;

/// The servers behind these sentinels.
fn behind(sentinels: &[u16], password: Option<&str>) -> RedisTarget {
    let sentinel = Endpoint::parse("redis://127.0.0.1").unwrap();
    let redis = sentinel.clone().with_login(None, password);
    let sentinels = sentinels.iter().map(|port| sentinel.at("127.0.0.1", *port)).collect();
    Sentinels::new(MASTER, sentinels, redis).into()
}

fn start(target: RedisTarget, change: impl FnOnce(&mut Options)) -> Arc<Pipeline> {
    let mut options = Options::new(target);
    options.connections = 1;
    change(&mut options);
    Arc::new(Pipeline::start(options))
}

fn incr() -> Cmd {
    let mut command = cmd("INCR");
    command.arg("n");
    command
}

async fn count(pipeline: &Pipeline, within: Duration) -> Result<Value, CallError> {
    pipeline.call(Call::command(incr()), Instant::now() + within).await
}

/// Why there is no connection.
async fn refused(pipeline: &Pipeline) -> String {
    let end = Instant::now() + PATIENCE;
    loop {
        match count(pipeline, SHORT).await {
            Err(CallError::NotSent { reason: reason @ Reason::NoConnection { .. } }) => return reason.to_string(),
            // A dial that is not at its end yet.
            Err(error) => assert!(Instant::now() < end, "{error}"),
            Ok(answer) => panic!("expected no connection: {answer:?}"),
        }
    }
}

#[tokio::test]
async fn the_master_that_a_sentinel_names_is_dialled_and_the_sentinel_that_answered_is_asked_first() {
    let server = RedisServer::start_with(Some(REDIS_PASSWORD), &[]);
    let (silent, good) = (FakeSentinel::naming(None), FakeSentinel::naming(Some(server.port())));
    silent.silence(true);
    let sentinels = [silent.port(), good.port()];
    let pipeline = start(behind(&sentinels, Some(REDIS_PASSWORD)), |options| {
        options.connect_timeout = Duration::from_secs(3);
    });
    // One that does not answer costs its part only.
    assert_eq!(count(&pipeline, PATIENCE).await.unwrap(), Value::Int(1));
    assert!(!good.commands().contains(&"AUTH".to_owned()), "they do not get the password of redis");
    assert!(silent.connections() > 0);
    for n in 2..=5 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
        until_counted(&pipeline, n).await;
    }
    // One of the first dial, and those of the subscription to its failovers.
    assert!(silent.connections() <= 3, "it is not asked again");
    assert!(good.asked() >= 5);
}

/// Counts until the count is `n`, over connections that break meanwhile.
async fn until_counted(pipeline: &Pipeline, n: i64) {
    let end = Instant::now() + PATIENCE;
    loop {
        match count(pipeline, SHORT).await {
            Ok(Value::Int(count)) if count >= n => return,
            other => assert!(Instant::now() < end, "{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_server_that_is_no_master_is_refused_until_another_sentinel_knows_better() {
    let master = RedisServer::start();
    let port = master.port().to_string();
    let replica = RedisServer::start_with(None, &["--replicaof", "127.0.0.1", &port]);
    let stale = FakeSentinel::naming(Some(replica.port()));
    let pipeline = start(behind(&[stale.port()], None), |_| {});
    let expected = format!(
        "no connection to redis at limits (sentinels 127.0.0.1:{sentinel}): 127.0.0.1:{}, named by the sentinel at \
         127.0.0.1:{sentinel}: it is not a master but a slave",
        replica.port(),
        sentinel = stale.port(),
    );
    assert_eq!(refused(&pipeline).await, expected);

    let fresh = FakeSentinel::naming(Some(master.port()));
    let pipeline = start(behind(&[stale.port(), fresh.port()], None), |_| {});
    assert_eq!(count(&pipeline, PATIENCE).await.unwrap(), Value::Int(1));
    assert_eq!(replica.runs("incr"), 0);
}

#[tokio::test]
async fn a_user_who_may_not_ask_for_the_role_is_told_so() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "weir", "on", ">pw", "~*", "+incr", "+ping", "+client|setname"]).unwrap();
    let sentinel = FakeSentinel::naming(Some(server.port()));
    let base = Endpoint::parse("redis://127.0.0.1").unwrap();
    let redis = base.clone().with_login(Some("weir"), Some("pw"));
    let pipeline = start(Sentinels::new(MASTER, vec![base.at("127.0.0.1", sentinel.port())], redis).into(), |_| {});
    let reason = refused(&pipeline).await;
    assert!(reason.contains("NOPERM") && reason.contains("'role'"), "{reason}");
    server.command(&["ACL", "SETUSER", "weir", "+role"]).unwrap();
    until_counted(&pipeline, 1).await;
}

#[tokio::test]
async fn a_master_that_became_a_replica_is_left_and_the_sentinels_are_asked_again() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let sentinel = FakeSentinel::naming(Some(old.port()));
    let pipeline = start(behind(&[sentinel.port()], None), |_| {});
    assert_eq!(count(&pipeline, PATIENCE).await.unwrap(), Value::Int(1));
    assert_eq!(sentinel.asked(), 1);
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).unwrap();
    sentinel.name(Some(new.port()));
    // The socket to the old one is alive: its answer says that it wrote nothing.
    match count(&pipeline, PATIENCE).await {
        Err(CallError::Refused(error)) => assert_eq!(error.code(), "READONLY"),
        other => panic!("{other:?}"),
    }
    assert_eq!(count(&pipeline, PATIENCE).await.unwrap(), Value::Int(1));
    assert_eq!(sentinel.asked(), 2);
    assert_eq!(new.runs("incr"), 1);
}

#[tokio::test]
async fn an_old_master_that_goes_on_as_if_nothing_had_happened_is_left_within_seconds() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let sentinel = FakeSentinel::naming(Some(old.port()));
    let pipeline = start(behind(&[sentinel.port()], None), |options| options.connections = 2);
    let (load, callers) = Load::start(&pipeline);
    load.calm().await;
    sentinel.name(Some(new.port()));
    load.moved_to(&new).await;
    // Between two batches: nobody notices.
    load.calm_again().await;
    let left_with_the_old = old.runs("incr");
    load.calm_again().await;
    load.end(callers).await;
    assert_eq!(old.runs("incr"), left_with_the_old, "no connection stays with it");
    let answered = load.answered.load(Ordering::SeqCst);
    assert_eq!(old.runs("incr") + new.runs("incr"), answered, "{load:?}");
    assert_eq!(load.unknown.load(Ordering::SeqCst) + load.not_sent.load(Ordering::SeqCst), 0, "{load:?}");
}

/// Until sentinels named the new master, a second or two after it was one, hits went to the old master and were lost.
#[tokio::test]
async fn a_replica_is_used_as_soon_as_it_is_the_master_and_not_left_for_the_old_one() {
    let old = RedisServer::start();
    let new = RedisServer::start_with(None, &["--replicaof", "127.0.0.1", &old.port().to_string()]);
    let sentinel = FakeSentinel::naming(Some(old.port()));
    let pipeline = start(behind(&[sentinel.port()], None), |options| options.connections = 2);
    let (load, callers) = Load::start(&pipeline);
    load.calm().await;
    let event = |master: &str| format!("slave x 127.0.0.1 {} @ {master} 127.0.0.1 {}", new.port(), old.port());
    for text in ["", "slave", &event("other")] {
        sentinel.publish("+failover-state-wait-promotion", text);
    }
    // No replica yet: weir waits for its role.
    let ordered = event(MASTER);
    until("the subscription", PATIENCE, || {
        (sentinel.publish("+failover-state-wait-promotion", &ordered) == 1).then_some(())
    });
    load.calm_again().await;
    assert_eq!(new.runs("incr"), 0, "it is a replica: {load:?}");
    let asks = |more: usize| {
        let (before, sentinel) = (sentinel.asked(), sentinel.clone());
        async move {
            let end = Instant::now() + PATIENCE;
            while sentinel.asked() < before + more {
                assert!(Instant::now() < end, "{} questions", sentinel.asked());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    // As a sentinel does: it closes the connections too, also the one on which weir asks for the role.
    new.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    new.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    load.moved_to(&new).await;
    load.calm_again().await;
    // The sentinel still names the old one, which is still a master.
    let left_with_the_old = old.runs("incr");
    asks(2).await;
    load.calm_again().await;
    assert_eq!(old.runs("incr"), left_with_the_old, "{load:?}");
    // The promotion is undone.
    new.command(&["REPLICAOF", "127.0.0.1", &old.port().to_string()]).unwrap();
    load.calm_again().await;
    assert!(old.runs("incr") > left_with_the_old, "{load:?}");
    load.end(callers).await;
}

#[tokio::test]
async fn what_sentinels_say_in_place_of_a_master_is_told() {
    let unknowing = FakeSentinel::naming(None);
    let server = RedisServer::start();
    let ports = [unknowing.port(), server.port(), 1];
    let pipeline = start(behind(&ports, None), |_| {});
    let reason = refused(&pipeline).await;
    let [unknowing, server, nobody] = ports;
    let expected = format!(
        "no connection to redis at limits (sentinels 127.0.0.1:{unknowing},127.0.0.1:{server},127.0.0.1:{nobody}): \
         no sentinel returned its address: 127.0.0.1:{unknowing}: it has no master with this name; 127.0.0.1:{server}: \
         ERR unknown command 'SENTINEL'; \
         127.0.0.1:{nobody}: Connection refused (os error 111)"
    );
    assert_eq!(reason, expected);
}

/// Counts outcomes while something happens.
#[derive(Debug, Default)]
struct Load {
    stop: AtomicBool,
    answered: AtomicU64,
    /// Answered since the last call that was not.
    in_a_row: AtomicU64,
    not_sent: AtomicU64,
    unknown: AtomicU64,
}

impl Load {
    fn start(pipeline: &Arc<Pipeline>) -> (Arc<Load>, tokio::task::JoinSet<()>) {
        let load = Arc::new(Load::default());
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..CALLERS {
            let (pipeline, load) = (pipeline.clone(), load.clone());
            callers.spawn(async move {
                while !load.stop.load(Ordering::SeqCst) {
                    load.count(&count(&pipeline, SHORT).await);
                    // The runtime has one thread, and sockets to look at.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            });
        }
        (load, callers)
    }

    fn count(&self, outcome: &Result<Value, CallError>) {
        let counter = match outcome {
            Ok(_) => {
                self.in_a_row.fetch_add(1, Ordering::SeqCst);
                self.answered.fetch_add(1, Ordering::SeqCst);
                return;
            }
            Err(CallError::Unknown { .. }) => &self.unknown,
            Err(CallError::NotSent { .. } | CallError::Refused(_)) => &self.not_sent,
        };
        counter.fetch_add(1, Ordering::SeqCst);
        self.in_a_row.store(0, Ordering::SeqCst);
    }

    /// Waits until calls succeed again, one after the other.
    async fn calm(&self) {
        let end = Instant::now() + FAILOVER_PATIENCE;
        while self.in_a_row.load(Ordering::SeqCst) < CALM {
            assert!(Instant::now() < end, "no calm in {FAILOVER_PATIENCE:?}: {self:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// As [`Load::calm`], from now on.
    async fn calm_again(&self) {
        self.in_a_row.store(0, Ordering::SeqCst);
        self.calm().await;
    }

    /// Waits until this server is asked, in place of the old master.
    async fn moved_to(&self, new: &RedisServer) {
        let end = Instant::now() + PATIENCE;
        while new.runs("incr") == 0 {
            assert!(Instant::now() < end, "still with the old master: {self:?}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until the master is another one than `before`, and then for calm.
    async fn over(&self, sentinels: &SentinelSet, before: u16) {
        let end = Instant::now() + FAILOVER_PATIENCE;
        while sentinels.master().is_none_or(|master| master == before) {
            assert!(Instant::now() < end, "no failover in {FAILOVER_PATIENCE:?}: {self:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.calm_again().await;
    }

    async fn end(&self, callers: tokio::task::JoinSet<()>) {
        self.stop.store(true, Ordering::SeqCst);
        callers.join_all().await;
    }
}

fn counted(server: &RedisServer) -> u64 {
    server.command(&["GET", "n"]).unwrap().trim().parse().unwrap()
}

/// A master, a replica of it, and three sentinels that know both. All want passwords, the sentinels one of their own.
struct Group {
    servers: [RedisServer; 2],
    sentinels: SentinelSet,
}

impl Group {
    fn start() -> Group {
        let login = ["--masterauth", REDIS_PASSWORD, "--repl-diskless-sync-delay", "0"];
        let master = RedisServer::start_with(Some(REDIS_PASSWORD), &login);
        let port = master.port().to_string();
        let of_master = ["--replicaof", "127.0.0.1", &port];
        let replica = RedisServer::start_with(Some(REDIS_PASSWORD), &[&login[..], &of_master[..]].concat());
        let sentinels = SentinelSet::start(3, SENTINEL_PASSWORD, &master, REDIS_PASSWORD, 1);
        Group { servers: [master, replica], sentinels }
    }

    fn target(&self) -> RedisTarget {
        let base = Endpoint::parse("redis://127.0.0.1").unwrap();
        let redis = base.clone().with_login(None, Some(REDIS_PASSWORD));
        let sentinel = base.with_login(None, Some(SENTINEL_PASSWORD));
        let ports = self.sentinels.ports();
        let sentinels = ports.iter().map(|port| sentinel.at("127.0.0.1", *port)).collect();
        Sentinels::new(MASTER, sentinels, redis).into()
    }

    /// Two servers with this policy that reach the master by the sentinels.
    fn serve(&self, policy: &str) -> [Served; 2] {
        let settings = [
            "store=redis".to_owned(),
            "redis.timeout=500ms".to_owned(),
            "redis.topology=sentinel".to_owned(),
            format!("redis.url=redis://:{REDIS_PASSWORD}@{}/1", self.sentinels.hosts()),
            format!("redis.sentinel.master={MASTER}"),
            format!("redis.sentinel.password={SENTINEL_PASSWORD}"),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        [(); 2].map(|()| Served::start(policy, &settings))
    }

    /// The server on this port.
    fn server(&mut self, port: u16) -> &mut RedisServer {
        self.servers.iter_mut().find(|server| server.port() == port).unwrap()
    }
}

#[tokio::test]
async fn a_failover_by_order_costs_few_calls_and_none_runs_twice() {
    let group = Group::start();
    let pipeline = start(group.target(), |options| options.connections = 2);
    let (load, callers) = Load::start(&pipeline);
    load.calm().await;
    let before = group.sentinels.master().unwrap();
    assert_eq!(before, group.servers[0].port());
    group.sentinels.wait_for_subscribers(1);
    group.sentinels.fail_over();
    load.over(&group.sentinels, before).await;
    let [old, new] = &group.servers;
    // Sentinels make a replica of the old master only when they have seen for some seconds that it thinks otherwise:
    // by then nobody asks it any more.
    let role = |server: &RedisServer| server.command(&["ROLE"]).unwrap().lines().next().unwrap().to_owned();
    let begun = Instant::now();
    while old.command(&["CLIENT", "LIST"]).unwrap().contains("name=weir") {
        assert!(begun.elapsed() < FAILOVER_PATIENCE, "still connected to the old master: {load:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    load.calm_again().await;
    load.end(callers).await;

    assert_eq!(role(new), "master");
    let answered = load.answered.load(Ordering::SeqCst);
    let unknown = load.unknown.load(Ordering::SeqCst);
    let stored = counted(new);
    assert!(stored <= answered + unknown, "{stored} stored of {load:?}");
    // Some milliseconds after the promotion; about 2,000 calls before weir subscribed to failovers.
    assert!(answered <= stored + CALM, "{stored} stored of {load:?}");
    assert!(stored >= CALM, "the new master is the one that is written to: {load:?}");
    assert!(unknown <= 4 * CALLERS as u64, "more than what was in flight when the sockets were closed: {load:?}");
}

#[tokio::test]
async fn a_master_that_is_killed_is_replaced_and_nobody_restarts_anything() {
    let mut group = Group::start();
    let pipeline = start(group.target(), |options| options.connections = 2);
    let (load, callers) = Load::start(&pipeline);
    load.calm().await;
    let before = group.sentinels.master().unwrap();
    group.server(before).kill();
    load.over(&group.sentinels, before).await;
    load.end(callers).await;

    let master = group.sentinels.master().unwrap();
    let stored = counted(group.server(master));
    let answered = load.answered.load(Ordering::SeqCst);
    let unknown = load.unknown.load(Ordering::SeqCst);
    assert!(stored <= answered + unknown, "{stored} stored of {load:?}");
    assert!(unknown <= 2 * CALLERS as u64, "more than what was in flight at the end: {load:?}");
    assert!(load.not_sent.load(Ordering::SeqCst) > 0, "nobody could answer meanwhile: {load:?}");
}

/// Two servers behind the sentinels, and the overrides that operators set by either of them.
struct Operators {
    servers: [Served; 2],
    /// The hits of each user whose override was confirmed.
    confirmed: BTreeMap<String, u32>,
    /// The same where the store did not confirm it.
    unconfirmed: BTreeMap<String, u32>,
}

impl Operators {
    /// The hits of the rule of all users.
    const OF_RULE: u32 = 9;

    fn start(group: &Group) -> Operators {
        let policy = format!(
            "domain: shop\ndescriptors: [{{key: user, rate_limit: {{requests_per_unit: {}, unit: day}}}}]\n",
            Self::OF_RULE
        );
        Operators { servers: group.serve(&policy), confirmed: BTreeMap::new(), unconfirmed: BTreeMap::new() }
    }

    /// Sets the override of one more user by each server. Says how many of them were confirmed.
    fn set(&mut self) -> usize {
        let before = self.confirmed.len();
        for server in &self.servers {
            let number = self.confirmed.len() + self.unconfirmed.len();
            let (user, requests) = (format!("u{number:04}"), 10 + u32::try_from(number).unwrap());
            let limit = format!(r#"{{"requests":{requests},"window_us":86400000000}}"#);
            let body = format!(
                r#"{{"domain":"shop","descriptor":"user={user}","limits":[{limit}],"for_us":3600000000,"reason":"x"}}"#
            );
            let answer = http::request(server.at.admin, "PUT", "/overrides", &[], &body).unwrap();
            match answer.status {
                200 => self.confirmed.insert(user, requests),
                503 => self.unconfirmed.insert(user, requests),
                status => panic!("{status}: {}", answer.body),
            };
        }
        self.confirmed.len() - before
    }

    /// What the list of a server has of each user.
    fn listed(server: &Served) -> BTreeMap<String, u32> {
        let answer = http::get(server.at.admin, "/overrides").unwrap();
        let list: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        let one = |one: &serde_json::Value| {
            let user = one["descriptor"].as_str()?.strip_prefix("user=")?.to_owned();
            Some((user, u32::try_from(one["limits"][0]["requests"].as_u64()?).ok()?))
        };
        list["overrides"].as_array().unwrap().iter().map(|it| one(it).unwrap_or_else(|| panic!("{it}"))).collect()
    }

    /// Waits until both servers have the overrides that are kept, and the same of all others; then asks both for decisions.
    fn agree(&self, master: &RedisServer, kept: &BTreeMap<String, u32>) {
        let listed = until("both servers to have what is kept", FAILOVER_PATIENCE, || {
            let [one, other] = self.servers.each_ref().map(Self::listed);
            let has_all = kept.iter().all(|(user, requests)| one.get(user) == Some(requests));
            let text = master.command(&["-n", "1", "GET", "w1:{weir}overrides"])?;
            let is_stored = one.keys().all(|user| text.contains(&format!("\"{user}\"")));
            (one == other && has_all && is_stored).then_some(one)
        });
        for (user, requests) in self.confirmed.iter().chain(&self.unconfirmed) {
            let expected = listed.get(user).copied().unwrap_or(Self::OF_RULE);
            assert!([*requests, Self::OF_RULE].contains(&expected), "{user}: {expected}");
            for server in &self.servers {
                let look = rls::look("shop", &[("user", user)]);
                let mut client = Client::connect(server.at.grpc);
                let answer = until("a decision", PATIENCE, || client.ask(look.clone()).ok());
                let limit = answer.statuses[0].current_limit.as_ref().expect("a limit");
                assert_eq!(limit.requests_per_unit, expected, "{user}");
            }
        }
    }
}

/// Sets overrides while the master is replaced, in this way. Of all that were confirmed and those that were before the
/// failover, `kept` selects the overrides that must be in force after it.
fn overrides_through_a_failover(
    replace: impl FnOnce(&mut Group, u16),
    kept: impl FnOnce(&BTreeMap<String, u32>, BTreeMap<String, u32>) -> BTreeMap<String, u32>,
) {
    let mut group = Group::start();
    let mut operators = Operators::start(&group);
    until("overrides before", PATIENCE, || {
        operators.set();
        (operators.confirmed.len() >= 4).then_some(())
    });
    let first = operators.confirmed.clone();
    let before = group.sentinels.master().unwrap();
    replace(&mut group, before);
    let after = until("another master", FAILOVER_PATIENCE, || {
        operators.set();
        group.sentinels.master().filter(|master| *master != before)
    });
    // The old master may still be asked for a while.
    until("overrides by the new master", FAILOVER_PATIENCE, || {
        operators.set();
        let text = group.server(after).command(&["-n", "1", "GET", "w1:{weir}overrides"])?;
        let last = operators.confirmed.keys().next_back()?;
        text.contains(&format!("\"{last}\"")).then_some(())
    });
    operators.agree(group.server(after), &kept(&operators.confirmed, first));
}

#[test]
fn overrides_survive_a_master_that_dies_and_none_that_was_confirmed_is_lost() {
    overrides_through_a_failover(|group, master| group.server(master).kill(), |confirmed, _| confirmed.clone());
}

/// The old master and the new one may both confirm changes for a while. The newest text wins. [ov-3]
#[test]
fn overrides_after_a_failover_by_order_are_those_of_the_newest_text() {
    overrides_through_a_failover(
        |group, _| group.sentinels.fail_over(),
        |confirmed, first| first.into_iter().chain(confirmed.clone().pop_last()).collect(),
    );
}

/// Decisions by a replaced row that a replica makes until it has moved, at most: those of some ten milliseconds.
const OUTDATED_MAX: u64 = 50;

/// The row of a tenant, which one replica changes without a pause while others decide by another replica.
#[derive(Debug, Default)]
struct RowSeen {
    stop: AtomicBool,
    /// The newest number that a change was confirmed for. Each change has a higher one.
    confirmed: AtomicU64,
    decided: AtomicU64,
    /// Decisions by a number that was replaced before they were asked for.
    outdated: AtomicU64,
}

/// Stops the callers, also when the test fails: they are waited for.
struct StopOnDrop<'s>(&'s RowSeen);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

impl RowSeen {
    fn change(&self, server: &Served) {
        let mut number = 1;
        while !self.stop.load(Ordering::SeqCst) {
            number += 1;
            let limits = format!(r#"[{{"requests":{number},"window_us":86400000000}}]"#);
            let body = format!(r#"{{"domain":"shop","descriptor":"tenant=a","limits":{limits}}}"#);
            match http::request(server.at.admin, "PUT", "/rows", &[], &body).unwrap() {
                answer if answer.status == 200 => self.confirmed.store(number, Ordering::SeqCst),
                answer => assert_eq!(answer.status, 503, "{}", answer.body),
            }
        }
    }

    fn ask(&self, server: &Served) {
        let mut client = Client::connect(server.at.grpc);
        while !self.stop.load(Ordering::SeqCst) {
            pace(Instant::now() + Duration::from_millis(1));
            let confirmed = self.confirmed.load(Ordering::SeqCst);
            let Ok(answer) = client.ask(rls::look("shop", &[("tenant", "a")])) else { continue };
            let limit = answer.statuses[0].current_limit.as_ref().expect("a limit");
            self.decided.fetch_add(1, Ordering::SeqCst);
            if u64::from(limit.requests_per_unit) < confirmed {
                self.outdated.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    /// Waits for more decisions and a further change.
    fn goes_on(&self) {
        let (decided, confirmed) = (self.decided.load(Ordering::SeqCst), self.confirmed.load(Ordering::SeqCst));
        until("decisions and a change", FAILOVER_PATIENCE, || {
            let has_more = self.decided.load(Ordering::SeqCst) >= decided + CALM;
            (has_more && self.confirmed.load(Ordering::SeqCst) > confirmed).then_some(())
        });
    }
}

/// Replicas move to the new master one by one. Until a replica has moved, it decides by the rows of the old one: for some
/// milliseconds, and never again afterwards. [rw-2]
#[test]
fn a_replica_decides_by_a_replaced_row_only_until_it_has_moved_to_the_new_master() {
    const POLICY: &str = "\
domain: shop
descriptors:
  - key: tenant
    rows: {default: free}
    rate_limit: {rate: 1/day, anchor: first_hit}
";
    let group = Group::start();
    let servers = group.serve(POLICY);
    let seen = RowSeen::default();
    let before = group.sentinels.master().unwrap();
    std::thread::scope(|scope| {
        let _stop = StopOnDrop(&seen);
        scope.spawn(|| seen.change(&servers[0]));
        until("the first row", PATIENCE, || (seen.confirmed.load(Ordering::SeqCst) > 0).then_some(()));
        for _ in 0..CALLERS {
            scope.spawn(|| seen.ask(&servers[1]));
        }
        seen.goes_on();
        assert_eq!(seen.outdated.load(Ordering::SeqCst), 0, "{seen:?}");
        group.sentinels.wait_for_subscribers(servers.len());
        group.sentinels.fail_over();
        until("another master", FAILOVER_PATIENCE, || group.sentinels.master().filter(|master| *master != before));
        until("no connection to the old master", FAILOVER_PATIENCE, || {
            (!group.servers[0].command(&["CLIENT", "LIST"])?.contains("name=weir")).then_some(())
        });
        // A change that only the old master had is lost. The next one is written to the new one.
        seen.goes_on();
        let outdated = seen.outdated.load(Ordering::SeqCst);
        println!("{outdated} decisions by a replaced row, {seen:?}");
        assert!(outdated <= OUTDATED_MAX, "{seen:?}");
        seen.goes_on();
        seen.goes_on();
        assert_eq!(seen.outdated.load(Ordering::SeqCst), outdated, "after all have moved: {seen:?}");
    });
}

#[test]
fn the_binary_follows_a_failover() {
    const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 100000, anchor: first_hit}
";
    let mut group = Group::start();
    // No more than docs/stores.md says that a user needs there.
    let password = format!(">{SENTINEL_PASSWORD}");
    let rights = ["-@all", "+sentinel|get-master-addr-by-name", "+client|setname", "+ping", "+subscribe"];
    let channels = ["resetchannels", "&+failover-state-wait-promotion", "&+switch-master"];
    group.sentinels.command(&[&["ACL", "SETUSER", "weir", "on", &password][..], &rights, &channels].concat());
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let url = format!("redis://:{REDIS_PASSWORD}@{}/1", group.sentinels.hosts());
    let settings = [
        "redis.topology=sentinel".to_owned(),
        format!("redis.sentinel.master={MASTER}"),
        "redis.sentinel.username=weir".to_owned(),
        format!("redis.sentinel.password={SENTINEL_PASSWORD}"),
        "shutdown.pause=0s".to_owned(),
    ];
    let mut arguments = vec!["--store".to_owned(), "redis".to_owned(), "--redis-url".to_owned(), url];
    for setting in settings {
        arguments.extend(["--set".to_owned(), setting]);
    }
    let mut weir = Weir::start(&policies.path(), &arguments);
    let mut client = Client::connect(weir.grpc);
    let mut charged = 0;
    let mut lost = 0;
    let mut ask = || match client.ask(rls::request("shop", &[("user", "ann")])) {
        Ok(answer) => {
            assert!(rls::admits(&answer));
            charged += 1;
            true
        }
        Err(status) => {
            let code = status.code();
            assert!(matches!(code, tonic::Code::Unavailable | tonic::Code::DeadlineExceeded), "{status}");
            lost += 1;
            false
        }
    };
    until("the first decision", PATIENCE, || ask().then_some(()));
    let before = group.sentinels.master().unwrap();
    group.server(before).kill();
    until("another master", FAILOVER_PATIENCE, || {
        ask();
        group.sentinels.master().filter(|master| *master != before)
    });
    for _ in 0..50 {
        until("a decision by the new master", FAILOVER_PATIENCE, || ask().then_some(()));
    }
    assert!(lost > 0 && charged >= 51, "{charged} charged, {lost} lost");
    assert!(weir.is_running());
    assert!(!weir.written().contains("no subscription to failovers"), "{}", weir.written());
    // Without the right, the log names it, and weir asks every second.
    group.sentinels.command(&["ACL", "SETUSER", "weir", "-subscribe"]);
    let refused = Weir::start(&policies.path(), &arguments);
    let names = |line: &LogLine| line.message().is_some_and(|it| it.starts_with("no subscription to failovers"));
    assert!(refused.wait_for_log(0, PATIENCE, names), "{}", refused.written());
    for secret in [REDIS_PASSWORD, SENTINEL_PASSWORD] {
        assert!(!weir.written().contains(secret), "{}", weir.written());
    }
}
