//! Holds through a real Envoy, with the configuration and the model of deploy/holds: an estimate before each request, what was
//! really used after it.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use envoy_types::pb::google::protobuf::UInt64Value;
use serde_json::Value;

use super::rolling_restart::address_of_our_own;
use crate::support::envoy::Envoy;
use crate::support::process::{PolicyDirectory, Weir, end};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::served::metric;
use crate::support::tools::repository;
use crate::support::wait::{PATIENCE, pace, until};
use crate::support::{http, python};

pub(super) const EXAMPLE: &str = include_str!("../../../examples/holds/ai.yaml");
/// What the example holds for each request, and what its user has in a minute and in a month.
const ESTIMATE: u64 = 2_000;
const PER_MINUTE: u64 = 10_000;
pub(super) const PER_MONTH: u64 = 2_000_000;

/// The model of the example, at a free port.
pub(super) struct Model {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Model {
    pub(super) fn start() -> Model {
        let mut command = Command::new(python::venv().join("bin/python"));
        command.arg("-B").arg(repository().join("deploy/holds/model.py")).arg("0");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the model starts");
        let mut port = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut port).expect("its port");
        let port: u16 = port.trim().parse().expect("a port");
        Model { child, address: SocketAddr::from(([127, 0, 0, 1], port)) }
    }

    fn count(&self) -> Value {
        let answer = http::get(self.address, "/count").expect("an answer");
        serde_json::from_str(&answer.body).expect("JSON")
    }

    fn running(&self) -> u64 {
        self.count()["running"].as_u64().expect("a number")
    }

    /// How many requests with this x-case have reached it.
    pub(super) fn asked(&self, case: &str) -> u64 {
        self.count()["asked"][case].as_u64().unwrap_or(0)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// The status of a request that the model answers with so many tokens; `None` if the stream broke off.
fn ask(envoy: &Envoy, user: &str, tokens: u64, more: &[(&str, &str)]) -> Option<u16> {
    let tokens = tokens.to_string();
    let headers = [&[("x-user", user), ("x-tokens", &*tokens)], more].concat();
    http::request(envoy.ingress, "POST", "/", &headers, "").ok().map(|answer| answer.status)
}

/// What a user has left of the two limits of the example.
pub(super) fn left(weir: &Weir, user: &str) -> [u64; 2] {
    left_of(weir, "ai", user)
}

pub(super) fn left_of(weir: &Weir, domain: &str, user: &str) -> [u64; 2] {
    let answer = http::get(weir.admin, &format!("/state?domain={domain}&descriptor=user={user}")).expect("an answer");
    let states: Value = serde_json::from_str(&answer.body).expect("JSON");
    let list = states["limits"].as_array().unwrap_or_else(|| panic!("{states}"));
    [0, 1].map(|at| list[at]["remaining"].as_u64().expect("a number"))
}

fn wait_for_left(weir: &Weir, user: &str, minute: u64, month: u64) {
    until(&format!("{user} to have {minute} and {month} left"), PATIENCE, || {
        (left(weir, user) == [minute, month]).then_some(())
    });
}

pub(super) fn on_redis(policies: &PolicyDirectory, redis: &RedisServer, more: &[&str]) -> Weir {
    let url = redis.url();
    // Busy machines: the time that Envoy waits for an answer.
    let store = ["--store", "redis", "--redis-url", &url, "--set", "redis.timeout=1900ms"];
    Weir::start(&policies.path(), &[&store[..], more].concat())
}

#[test]
fn a_stream_settles_in_whichever_way_it_ends() {
    let redis = RedisServer::start();
    // The minute could end within the test: an hour in its place.
    let policies = PolicyDirectory::with_file("ai.yaml", &EXAMPLE.replace("10_000/min", "10_000/h"));
    let weir = on_redis(&policies, &redis, &[]);
    let model = Model::start();
    let envoy = Envoy::start_with_holds(&[weir.grpc], model.address, ESTIMATE);

    // The model counts less than was held, and more.
    assert_eq!(ask(&envoy, "ann", 137, &[]), Some(200));
    wait_for_left(&weir, "ann", PER_MINUTE - 137, PER_MONTH - 137);
    assert_eq!(ask(&envoy, "ann", 5_000, &[]), Some(200));
    wait_for_left(&weir, "ann", PER_MINUTE - 5_137, PER_MONTH - 5_137);

    // While a stream runs, its estimate is held.
    thread::scope(|scope| {
        let running = scope.spawn(|| ask(&envoy, "ann", 100, &[("x-seconds", "2")]));
        wait_for_left(&weir, "ann", PER_MINUTE - 5_137 - ESTIMATE, PER_MONTH - 5_137);
        assert_eq!(running.join().expect("an answer"), Some(200));
    });
    wait_for_left(&weir, "ann", PER_MINUTE - 5_237, PER_MONTH - 5_237);

    // The model dies without a count, and the client leaves in mid-stream: the estimate stays.
    assert_eq!(ask(&envoy, "bob", 100, &[("x-end", "broken")]), None);
    wait_for_left(&weir, "bob", PER_MINUTE - ESTIMATE, PER_MONTH - ESTIMATE);
    let mut client = http::connect(envoy.ingress).expect("a connection");
    let head = http::head("POST", "/", &[("x-user", "bob"), ("x-seconds", "60")], 0);
    client.write_all(head.as_bytes()).expect("a request");
    client.read_exact(&mut [0; 16]).expect("the begin of an answer");
    assert_eq!(left(&weir, "bob"), [PER_MINUTE - 2 * ESTIMATE, PER_MONTH - ESTIMATE]);
    drop(client);
    wait_for_left(&weir, "bob", PER_MINUTE - 2 * ESTIMATE, PER_MONTH - 2 * ESTIMATE);

    // The model answers with an error: all is given back.
    assert_eq!(ask(&envoy, "zoe", 100, &[("x-status", "503")]), Some(503));
    wait_for_left(&weir, "zoe", PER_MINUTE, PER_MONTH);

    // Denied requests have no receipt, and change nothing.
    assert_eq!(ask(&envoy, "eve", 9_000, &[]), Some(200));
    wait_for_left(&weir, "eve", 1_000, PER_MONTH - 9_000);
    for _ in 0..20 {
        assert_eq!(ask(&envoy, "eve", 1, &[]), Some(429));
    }
    let mut client = Client::connect(weir.grpc);
    let mut request = rls::request("ai", &[("user", "eve")]);
    request.descriptors[0].hits_addend = Some(UInt64Value { value: ESTIMATE });
    for _ in 0..980 {
        assert!(!rls::admits(&client.ask(request.clone()).expect("an answer")));
    }
    let results = || {
        ["opened", "settled", "lost"]
            .map(|of| metric(weir.http, &format!("weir_holds_total{{domain=\"ai\",result=\"{of}\"}}")))
    };
    until("every hold to be settled", PATIENCE, || (results() == [Some(7), Some(7), Some(0)]).then_some(()));
    assert_eq!(left(&weir, "eve"), [1_000, PER_MONTH - 9_000]);
    assert_eq!(ask(&envoy, "ann", 1, &[]), Some(200));
    wait_for_left(&weir, "ann", PER_MINUTE - 5_238, PER_MONTH - 5_238);
}

/// Both filters write dynamic metadata under one name, so the key below it has the domain.
#[test]
fn two_filters_of_one_route_find_their_own_receipts() {
    let redis = RedisServer::start();
    let hourly = EXAMPLE.replace("10_000/min", "10_000/h");
    let files = [("ai", hourly.clone()), ("team", hourly.replace("domain: ai", "domain: team"))];
    let policies = PolicyDirectory::with_files(&files.map(|(domain, text)| (format!("{domain}.yaml"), text)));
    let weir = on_redis(&policies, &redis, &[]);
    let model = Model::start();
    let other = [("weir.ai", "weir.team"), ("domain: ai", "domain: team")];
    let envoy = Envoy::start_with_two_holds(weir.grpc, model.address, ESTIMATE, &other);
    assert_eq!(ask(&envoy, "ann", 137, &[]), Some(200));
    wait_for_left(&weir, "ann", PER_MINUTE - 137, PER_MONTH - 137);
    until("the hold of the other domain to be settled", PATIENCE, || {
        (left_of(&weir, "team", "ann") == [PER_MINUTE - 137, PER_MONTH - 137]).then_some(())
    });
}

/// Two filters of one domain write their receipts to one key, unless one of them has a `metadata_namespace`.
#[test]
fn two_filters_of_one_domain_find_their_own_receipts_in_their_namespaces() {
    let redis = RedisServer::start();
    let policy = "domain: ai\ndescriptors: [{key: user, rate_limit: &limit {rate: 10_000/h, hold: true}}, {key: team, rate_limit: *limit}]";
    let policies = PolicyDirectory::with_file("ai.yaml", policy);
    let weir = on_redis(&policies, &redis, &[]);
    let model = Model::start();
    let other = [
        ("descriptor_key: user", "descriptor_key: team"),
        ("key: envoy.filters.http.ratelimit", "key: team"),
        ("domain: ai", "domain: ai\n                      metadata_namespace: team"),
    ];
    let envoy = Envoy::start_with_two_holds(weir.grpc, model.address, ESTIMATE, &other);
    assert_eq!(ask(&envoy, "ann", 137, &[]), Some(200));
    for key in ["user", "team"] {
        until("the hold to be settled", PATIENCE, || {
            let answer = Client::connect(weir.grpc).ask(rls::look("ai", &[(key, "ann")])).expect("an answer");
            (u64::from(answer.statuses[0].limit_remaining) == PER_MINUTE - 137).then_some(())
        });
    }
    let lost = metric(weir.http, "weir_holds_total{domain=\"ai\",result=\"lost\"}");
    assert_eq!(lost, Some(0));
}

/// What an Envoy that dies has opened stays charged until its window ends, and shows in the metrics.
#[test]
fn holds_of_an_envoy_that_is_killed_stay() {
    const STREAMS: u64 = 100;
    let redis = RedisServer::start();
    let policies = PolicyDirectory::with_file("ai.yaml", &EXAMPLE.replace("10_000/min", "10_000/h"));
    let weir = on_redis(&policies, &redis, &[]);
    let model = Model::start();
    let envoy = Envoy::start_with_holds(&[weir.grpc], model.address, 50);
    thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| {
                // Its end is that of Envoy.
                assert_eq!(ask(&envoy, "ann", 1, &[("x-seconds", "60")]), None);
            });
        }
        until("all streams to run", PATIENCE, || (model.running() == STREAMS).then_some(()));
        envoy.kill();
    });
    let holds = |of: &str| metric(weir.http, &format!("weir_holds_total{{domain=\"ai\",result=\"{of}\"}}"));
    assert_eq!((holds("opened"), holds("settled"), holds("lost")), (Some(STREAMS), Some(0), Some(0)));
    assert_eq!(left(&weir, "ann"), [PER_MINUTE - 50 * STREAMS, PER_MONTH]);
}

/// Clients at once, what each request holds, and what a user has.
const CLIENTS: usize = 100;
const HELD: u64 = 200;
const LIMIT: u64 = 40_000;
const POLICY: &str = "\
domain: ai
descriptors:
  - key: user
    rate_limit: {rate: 40_000/year, hold: true}
";
/// The next user begins after so many denials of the last: requests that still run give some of theirs back.
const DENIALS: usize = 20;
const KILL_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long the load lasts. `WEIR_HOLDS_SECONDS` sets another time.
const SECONDS: u64 = 12;
/// A settle arrives within this time after the end of its stream, unless its replica was killed.
const SETTLE_TIME: Duration = Duration::from_millis(500);

/// One request of a client.
#[derive(Clone, Copy, Debug)]
struct Sent {
    user: usize,
    started: Instant,
    ended: Instant,
    tokens: u64,
    status: Option<u16>,
}

/// What was charged to a user at a time.
#[derive(Clone, Copy, Debug)]
struct Look {
    user: usize,
    at: Instant,
    charged: u64,
}

#[derive(Default)]
struct Run {
    /// By user.
    sent: Vec<Vec<Sent>>,
    looks: Vec<Look>,
    /// From each kill until the replica was there again.
    outages: Vec<(Instant, Instant)>,
}

/// Clients that stream through Envoy in front of three replicas on one Redis, for some time. Then `check` gets what was sent, what
/// was seen meanwhile, and what reads the charges of a user now.
fn run(time: Duration, check: impl FnOnce(&Run, &dyn Fn(usize) -> u64)) {
    let server = RedisServer::start();
    let policies = PolicyDirectory::with_file("ai.yaml", POLICY);
    let addresses = [1, 2, 3].map(address_of_our_own);
    let start = |address: SocketAddr| on_redis(&policies, &server, &["--grpc", &address.to_string()]);
    let mut replicas = addresses.map(start);
    let model = Model::start();
    let envoy = Envoy::start_with_holds(&addresses, model.address, HELD);
    let connection =
        redis::Client::open(server.url()).and_then(|client| client.get_connection()).expect("Redis answers");
    let connection = Mutex::new(connection);
    let charged = |user: usize| {
        let mut connection = connection.lock().expect("no panic");
        let get =
            redis::cmd("GET").arg(format!("w1:{{ai|user=u{user}}}f31536000s")).query::<Option<u64>>(&mut connection);
        // The window is above, the count below. [fw-2]
        get.expect("a state").map_or(0, |state| state & u64::from(u32::MAX))
    };
    let (user, denials) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (sent, looks, mut outages) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()), Vec::new());
    let begin = Instant::now();
    let goes_on = || begin.elapsed() < time;
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (envoy, user, denials, sent) = (&envoy, &user, &denials, &sent);
            scope.spawn(move || {
                let mut random = client as u64 + 1;
                while goes_on() {
                    // A linear congruential generator: the same requests in each run.
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (tokens, milliseconds) = ((random >> 33) % (3 * HELD + 1), (random >> 20) % 200);
                    let (own, started) = (user.load(SeqCst), Instant::now());
                    let seconds = format!("0.{milliseconds:03}");
                    let status = ask(envoy, &format!("u{own}"), tokens, &[("x-seconds", &seconds)]);
                    sent.lock().expect("no panic").push(Sent {
                        user: own,
                        started,
                        ended: Instant::now(),
                        tokens,
                        status,
                    });
                    if status == Some(429) && user.load(SeqCst) == own && denials.fetch_add(1, SeqCst) + 1 == DENIALS {
                        denials.store(0, SeqCst);
                        user.store(own + 1, SeqCst);
                    }
                }
            });
        }
        scope.spawn(|| {
            for at in (0..).map(|count| begin + count * LOOK_EVERY).take_while(|_| goes_on()) {
                pace(at);
                let user = user.load(SeqCst);
                let charged = charged(user);
                looks.lock().expect("no panic").push(Look { user, at: Instant::now(), charged });
            }
        });
        for count in 1.. {
            pace(begin + (count * KILL_EVERY).min(time));
            if !goes_on() {
                break;
            }
            let at = count as usize % replicas.len();
            let from = Instant::now();
            replicas[at].signal("KILL");
            replicas[at].wait_for_exit();
            replicas[at] = start(addresses[at]);
            outages.push((from, Instant::now()));
        }
    });
    let mut run = Run { sent: Vec::new(), looks: looks.into_inner().expect("no panic"), outages };
    run.sent.resize(user.into_inner() + 1, Vec::new());
    for sent in sent.into_inner().expect("no panic") {
        run.sent[sent.user].push(sent);
    }
    check(&run, &charged);
}

impl Run {
    fn of(&self, user: usize) -> impl Iterator<Item = &Sent> {
        self.sent[user].iter()
    }

    /// The tokens that the streams of a user have used.
    fn used(&self, user: usize) -> u64 {
        self.of(user).filter(|sent| sent.status == Some(200)).map(|sent| sent.tokens).sum()
    }

    /// What requests without an answer may have opened, which no settle gives back.
    fn unanswered(&self, user: usize) -> u64 {
        self.of(user).filter(|sent| !matches!(sent.status, Some(200 | 429))).count() as u64 * HELD
    }

    /// What lost settles may have left charged of a user, or not charged: those of streams that ended around an outage.
    fn unsettled(&self, user: usize) -> (u64, u64) {
        let is_unsure = |sent: &&Sent| {
            let overlaps = |&(from, to): &(Instant, Instant)| sent.ended + SETTLE_TIME >= from && sent.ended <= to;
            sent.status == Some(200) && self.outages.iter().any(overlaps)
        };
        let unsure = self.of(user).filter(is_unsure);
        unsure.fold((0, 0), |(more, less), sent| {
            (more + HELD.saturating_sub(sent.tokens), less + sent.tokens.saturating_sub(HELD))
        })
    }

    /// At no look more was charged than the limit, what the streams until then had used beyond their holds, and what is not known.
    fn check_looks(&self) {
        assert!(self.looks.len() > 50, "{}", self.looks.len());
        for look in &self.looks {
            let begun = self.of(look.user).filter(|sent| sent.started <= look.at && sent.status != Some(429));
            let excess: u64 = begun.map(|sent| sent.tokens.saturating_sub(HELD)).sum();
            let most = LIMIT + excess + self.unanswered(look.user);
            assert!(look.charged <= most, "{look:?}: at most {most}");
        }
    }
}

#[test]
fn a_killed_replica_changes_charges_by_no_more_than_was_in_flight() {
    let seconds =
        std::env::var("WEIR_HOLDS_SECONDS").map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    run(Duration::from_secs(seconds), |run, charged| {
        run.check_looks();
        let (mut off, mut doubts) = (0, 0);
        for user in 0..run.sent.len() {
            let used = run.used(user);
            let (more, less) = run.unsettled(user);
            let most = used + more + run.unanswered(user);
            let within = |charged: u64| (used.saturating_sub(less)..=most).contains(&charged);
            let what = format!("charges of user {user} between {used} - {less} and {most}");
            let charged = until(&what, PATIENCE, || Some(charged(user)).filter(|charged| within(*charged)));
            off += charged.abs_diff(used);
            doubts += more + less + run.unanswered(user);
        }
        assert!(run.outages.len() as u64 >= seconds / 10, "{} kills", run.outages.len());
        let failed = run.sent.iter().flatten().filter(|sent| !matches!(sent.status, Some(200 | 429))).count();
        let (streams, kills) = (run.sent.iter().map(Vec::len).sum::<usize>(), run.outages.len());
        println!("{streams} requests, {kills} kills, {failed} failed: {off} tokens off, at most {doubts} in flight");
    });
}
