//! A rolling restart under load: a real Envoy asks two replicas that share a Redis, and each is replaced in turn.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::envoy::Envoy;
use crate::support::http;
use crate::support::process::{LogLine, PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::wait::{PATIENCE, pace, until};

/// Each user has this many requests, and the test goes on until each has used them up.
const LIMIT: u64 = 700;
const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 700}
";

/// The users take turns.
const USERS: usize = 5;
/// The load, over all connections.
const REQUESTS_PER_SECOND: u32 = 500;
/// The connections to Envoy, each of which sends one request after the other.
const CONNECTIONS: u32 = 10;
/// The most requests of one run.
const REQUESTS_MAX: usize = 200_000;
/// Requests before, between and after the restarts.
const REQUESTS_BETWEEN: u64 = 500;

#[test]
fn no_call_fails_and_limits_stay_exact_while_each_replica_is_replaced() {
    let redis = RedisServer::start();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let addresses = [address_of_our_own(1), address_of_our_own(2)];
    let mut replicas = addresses.map(|address| replica(&policies.path(), &redis, address));
    let envoy = Envoy::start_with_replicas(&addresses);
    for address in addresses {
        until("a replica that is healthy for Envoy", PATIENCE, || envoy.replica(address).is_healthy.then_some(()));
    }

    let load = Load::start(envoy.ingress);
    load.pass(REQUESTS_BETWEEN);
    for (replica, address) in replicas.iter_mut().zip(addresses) {
        replica.terminate();
        until("Envoy to notice", PATIENCE, || (!envoy.replica(address).is_healthy).then_some(()));
        // The second signal ends the pause. A fixed one would have to be right for every machine that runs this.
        replica.terminate();
        assert_eq!(replica.wait_for_exit().code(), Some(0));
        let cut_off = |line: &LogLine| line.message().is_some_and(|text| text.contains("cut off"));
        assert_eq!(replica.count_in_log(cut_off), 0, "{}", replica.written());
        load.pass(REQUESTS_BETWEEN);

        *replica = self::replica(&policies.path(), &redis, address);
        until("the new replica to be healthy for Envoy", PATIENCE, || envoy.replica(address).is_healthy.then_some(()));
        let before = envoy.replica(address).requests;
        until("requests to the new replica", PATIENCE, || {
            (envoy.replica(address).requests > before + REQUESTS_BETWEEN / 4).then_some(())
        });
    }
    // However slow the machine is, each user comes to an end.
    until("each user to be denied", PATIENCE * 6, || {
        let answers = load.answers();
        (0..USERS).all(|user| answers.contains_key(&(user, 429))).then_some(())
    });
    let answers = load.finish();

    let failed: BTreeMap<_, _> = answers.iter().filter(|((_, status), _)| ![200, 429].contains(status)).collect();
    assert!(failed.is_empty(), "(user, status) and count: {failed:?} of {answers:?}");
    let counted = ["ok", "over_limit", "error"].map(|what| envoy.counted(what));
    let by_status = |status: u16| -> u64 {
        answers.iter().filter(|((_, given), _)| *given == status).map(|(_, count)| count).sum()
    };
    assert_eq!(counted, [by_status(200), by_status(429), 0], "ok, over limit and errors of {answers:?}");
    for user in 0..USERS {
        assert_eq!(answers.get(&(user, 200)), Some(&LIMIT), "user {user} of {answers:?}");
    }
}

/// Starts a weir at this address. Times are generous, for a busy machine.
fn replica(policies: &Path, redis: &RedisServer, address: SocketAddr) -> Weir {
    let (url, address) = (redis.url(), address.to_string());
    let store = ["--store", "redis", "--redis-url", &url, "--set", "redis.timeout=10s"];
    let rest = ["--grpc", &address, "--set", "shutdown.pause=5m", "--set", "shutdown.grace=15s"];
    Weir::start(policies, &[&store[..], &rest[..]].concat())
}

/// An address for a process and the one after it. The port is free again between the two, so that the IP must be one that
/// nothing else on the machine uses: one of 127.0.0.0/8 for this process and number.
pub(super) fn address_of_our_own(number: u8) -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    let ip = IpAddr::V4(Ipv4Addr::new(127, high, low, number));
    let listener = TcpListener::bind((ip, 0)).expect("a free port");
    listener.local_addr().expect("its address")
}

/// How many answers there were, by user and status.
type Answers = BTreeMap<(usize, u16), u64>;

/// Requests at an even pace by several connections, until it is told to end.
struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    ending: AtomicBool,
    next: AtomicUsize,
    answered: AtomicU64,
    answers: Mutex<Answers>,
}

impl Load {
    fn start(ingress: SocketAddr) -> Load {
        let shared = Arc::new(Shared::default());
        let threads = (0..CONNECTIONS).map(|_| {
            let shared = shared.clone();
            std::thread::spawn(move || send(ingress, &shared))
        });
        Load { threads: threads.collect(), shared }
    }

    /// Waits for so many more answers.
    fn pass(&self, more: u64) {
        let enough = self.shared.answered.load(SeqCst) + more;
        until("answers", PATIENCE * 2, || {
            let alive = self.threads.iter().all(|thread| !thread.is_finished());
            assert!(alive, "a connection ended before its time: a fault above, or {REQUESTS_MAX} requests");
            (self.shared.answered.load(SeqCst) >= enough).then_some(())
        });
    }

    fn answers(&self) -> Answers {
        self.shared.answers.lock().expect("no sender panics").clone()
    }

    fn finish(mut self) -> Answers {
        self.shared.ending.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().expect("a connection that stands to the end");
        }
        self.answers()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.ending.store(true, SeqCst);
    }
}

/// Sends requests by one connection.
fn send(ingress: SocketAddr, shared: &Shared) {
    let stream = http::connect(ingress).expect("a connection to Envoy");
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let between = Duration::from_secs(1) * CONNECTIONS / REQUESTS_PER_SECOND;
    let begun = Instant::now();
    for turn in 0.. {
        pace(begun + between * turn);
        let number = shared.next.fetch_add(1, SeqCst);
        if shared.ending.load(SeqCst) || number >= REQUESTS_MAX {
            return;
        }
        let user = number % USERS;
        let status = ask(&stream, &mut reader, user);
        *shared.answers.lock().expect("no sender panics").entry((user, status)).or_default() += 1;
        shared.answered.fetch_add(1, SeqCst);
    }
}

/// Sends one request and reads its answer, whose connection goes on.
fn ask(mut stream: &TcpStream, reader: &mut BufReader<TcpStream>, user: usize) -> u16 {
    let head = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx-user: user-{user}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("the request is sent");
    let mut line = || {
        let mut text = String::new();
        let bytes = reader.read_line(&mut text).expect("an answer");
        assert!(bytes > 0, "Envoy closed the connection");
        text.trim_end().to_ascii_lowercase()
    };
    let first = line();
    let status = first.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let mut length = 0;
    loop {
        let header = line();
        if header.is_empty() {
            break;
        }
        assert!(!header.starts_with("transfer-encoding"), "the body has a length");
        if let Some(text) = header.strip_prefix("content-length: ") {
            length = text.parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    status
}
