//! Requests in flight, bounded by a real Envoy and two replicas of weir on one Redis: the upstream counts them, and what dies
//! leaves no permit behind for good.
//!
//! `WEIR_IN_FLIGHT_REQUESTS` sets how many requests the upstream serves in the first test, and `WEIR_IN_FLIGHT_TIMES` how many times
//! as long as here each takes. The test prints how many were in flight on average: how soon another request takes a permit that
//! has come back depends on the machine.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::rolling_restart::address_of_our_own;
use crate::support::envoy::Envoy;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::served::metric;
use crate::support::wait::{PATIENCE, until};

const PERMITS: usize = 50;
const CLIENTS: u64 = 200;
/// How many requests the upstream serves, unless the environment says otherwise; and the most.
const SERVED: u64 = 600;
const SERVED_MAX: u64 = 100_000;
const TIMES_MAX: u64 = 20;
/// How long requests take at the upstream, and denied clients wait, in milliseconds.
const LENGTHS_MS: (u64, u64) = (200, 1_000);
const PAUSES_MS: (u64, u64) = (100, 500);
/// The longest answer without a body that is read.
const HEAD_BYTES_MAX: usize = 8_192;

fn policy(window: &str) -> PolicyDirectory {
    let limit = format!("{{algorithm: concurrency, requests_per_unit: {PERMITS}, window: {window}}}");
    PolicyDirectory::with_file(
        "shop.yaml",
        &format!("domain: shop\ndescriptors: [{{key: user, rate_limit: {limit}}}]\n"),
    )
}

fn replica(policies: &Path, redis: &RedisServer, address: SocketAddr) -> Weir {
    let (url, address) = (redis.url(), address.to_string());
    Weir::start(policies, &["--store", "redis", "--redis-url", &url, "--set", "redis.timeout=5s", "--grpc", &address])
}

/// What the upstream counts.
#[derive(Debug)]
struct Counted {
    now: usize,
    most: usize,
    served: u64,
    /// Requests times microseconds in flight, while all clients ask for more.
    sum: u128,
    changed: Instant,
}

impl Counted {
    fn change(&mut self, now: usize) {
        self.sum += self.now as u128 * self.changed.elapsed().as_micros();
        (self.now, self.most, self.changed) = (now, self.most.max(now), Instant::now());
    }
}

/// An upstream that counts the requests in it.
struct Upstream {
    counted: Mutex<Counted>,
}

/// A request in the upstream; also one whose connection breaks leaves it.
struct Entered(Arc<Upstream>);

impl Entered {
    fn new(upstream: &Arc<Upstream>) -> Self {
        let mut counted = upstream.counted.lock();
        let now = counted.now + 1;
        counted.change(now);
        Self(upstream.clone())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut counted = self.0.counted.lock();
        let now = counted.now - 1;
        counted.change(now);
        counted.served += 1;
    }
}

impl Upstream {
    fn start(runtime: &Handle) -> (Arc<Self>, SocketAddr) {
        let counted = Counted { now: 0, most: 0, served: 0, sum: 0, changed: Instant::now() };
        let upstream = Arc::new(Self { counted: Mutex::new(counted) });
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("its address");
        let shared = upstream.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, shared.clone()));
            }
        });
        (upstream, address)
    }

    fn now(&self) -> usize {
        self.counted.lock().now
    }
}

/// Answers one request after the other. A connection that closes ends the request in it.
async fn connection(mut stream: TcpStream, upstream: Arc<Upstream>) {
    while let Some(head) = read_head(&mut stream).await {
        let length = head.lines().find_map(|line| line.strip_prefix("x-ms: ")?.parse().ok());
        {
            let _entered = Entered::new(&upstream);
            match length {
                Some(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
                // Without a length it lasts as long as its connection: nothing else comes before the answer.
                None => return drop(stream.readable().await),
            }
        }
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
            return;
        }
    }
}

/// A head without a body; none at the end of the connection.
async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert!(head.len() < HEAD_BYTES_MAX, "a head without an end");
        if stream.read_buf(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    Some(String::from_utf8_lossy(&head).to_lowercase())
}

/// What clients were answered, by status: 200, 429, and all else.
#[derive(Debug, Default)]
struct Answers([AtomicU64; 3]);

impl Answers {
    fn get(&self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.0[at].load(SeqCst))
    }
}

/// Numbers that look random: a multiplicative generator, other ones for each client.
struct Lengths(u64);

impl Lengths {
    fn between(&mut self, (least, most): (u64, u64)) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        least + (self.0 >> 33) % (most - least + 1)
    }
}

/// Sends one request after the other until so many have passed, over all clients. After a denial it waits a little.
async fn client(envoy: SocketAddr, number: u64, times: u64, wanted: u64, answers: Arc<Answers>) {
    let mut lengths = Lengths(number);
    let mut stream = None;
    while answers.0[0].load(SeqCst) < wanted {
        let ms = lengths.between(LENGTHS_MS) * times;
        let answered = async {
            let mut open = match stream.take() {
                Some(open) => open,
                None => TcpStream::connect(envoy).await.ok()?,
            };
            let request = format!("GET / HTTP/1.1\r\nhost: shop\r\nx-user: ann\r\nx-ms: {ms}\r\n\r\n");
            open.write_all(request.as_bytes()).await.ok()?;
            let head = read_head(&mut open).await?;
            // Another answer may have a body, so that its connection is not used again.
            let status: u16 = head.split(' ').nth(1)?.parse().ok()?;
            stream = (head.contains("content-length: 0") || status == 429).then_some(open);
            Some(status)
        };
        let kind = match answered.await {
            Some(200) => 0,
            Some(429) => 1,
            _ => 2,
        };
        answers.0[kind].fetch_add(1, SeqCst);
        if kind > 0 {
            tokio::time::sleep(Duration::from_millis(lengths.between(PAUSES_MS))).await;
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// How many permits are free, by the replica at this address.
fn free(weir: SocketAddr) -> usize {
    let answer = Client::connect(weir).ask(rls::look("shop", &[("user", "ann")])).expect("an answer");
    answer.statuses[0].limit_remaining as usize
}

fn holds(weir: &Weir, result: &str) -> u64 {
    metric(weir.http, &format!("weir_holds_total{{domain=\"shop\",result=\"{result}\"}}")).unwrap_or(0)
}

/// A runtime on a thread of its own, for clients and the upstream. It ends when the second part is dropped.
fn runtime() -> (Handle, oneshot::Sender<()>) {
    let (end, ended) = oneshot::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let handle = runtime.handle().clone();
    std::thread::spawn(move || runtime.block_on(async { ended.await.ok() }));
    (handle, end)
}

#[test]
fn the_upstream_never_has_more_than_the_limit_in_flight() {
    let wanted = number("WEIR_IN_FLIGHT_REQUESTS").unwrap_or(SERVED).min(SERVED_MAX);
    let times = number("WEIR_IN_FLIGHT_TIMES").unwrap_or(1).min(TIMES_MAX);
    let (redis, policies, (runtime, _end)) = (RedisServer::start(), policy("30s"), runtime());
    let addresses = [address_of_our_own(11), address_of_our_own(12)];
    let replicas = addresses.map(|address| replica(&policies.path(), &redis, address));
    let (upstream, address) = Upstream::start(&runtime);
    let envoy = Envoy::start_with_permits(&addresses, address);
    let answers = Arc::new(Answers::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| runtime.spawn(client(envoy.ingress, number, times, wanted, answers.clone())))
        .collect();
    // From when all permits are out until clients stop, there is more demand than permits.
    until("all permits to be out", PATIENCE * 2, || (upstream.now() == PERMITS).then_some(()));
    let began = {
        let mut counted = upstream.counted.lock();
        (counted.sum, counted.changed) = (0, Instant::now());
        counted.changed
    };
    until("so many requests", PATIENCE + Duration::from_millis(wanted * times * 50), || {
        (upstream.counted.lock().served >= wanted).then_some(())
    });
    let (used, took) = {
        let mut counted = upstream.counted.lock();
        let now = counted.now;
        counted.change(now);
        (counted.sum, began.elapsed())
    };
    let average = used as f64 / took.as_micros() as f64;
    runtime.block_on(async {
        for client in clients {
            client.await.expect("a client ends");
        }
    });
    let most = upstream.counted.lock().most;
    println!(
        "{:?} of 200, 429 and others in {took:?}: at most {most}, on average {average:.1} in flight",
        answers.get()
    );
    assert_eq!(most, PERMITS, "the limit is reached, and never passed");
    let [passed, denied, failed] = answers.get();
    assert!(passed >= wanted && denied > 0, "{passed} passed, {denied} denied");
    assert_eq!(failed, 0);

    // All are settled, and denied requests have settled nothing.
    let sum = |result| replicas.iter().map(|weir| holds(weir, result)).sum::<u64>();
    until("the last settles", PATIENCE, || (sum("settled") == passed && sum("reported") == denied).then_some(()));
    assert_eq!((sum("opened"), sum("lost")), (passed, 0));
    assert_eq!(free(addresses[0]), PERMITS);
}

/// Opens a request of ann. Its head says how long it takes; without that it lasts as long as its connection.
async fn begin(envoy: SocketAddr, length: &str) -> TcpStream {
    let mut stream = TcpStream::connect(envoy).await.expect("a connection");
    let request = format!("GET / HTTP/1.1\r\nhost: shop\r\nx-user: ann\r\n{length}\r\n");
    stream.write_all(request.as_bytes()).await.expect("a request");
    stream
}

/// [cc-1]
#[test]
fn a_backend_that_works_on_after_its_client_has_left_has_more_than_the_limit() {
    let (redis, policies, (runtime, _end)) = (RedisServer::start(), policy("30s"), runtime());
    let addresses = [address_of_our_own(16)];
    let weir = replica(&policies.path(), &redis, addresses[0]);
    let (upstream, address) = Upstream::start(&runtime);
    let envoy = Envoy::start_with_permits(&addresses, address);
    let begin_all = |length: &'static str| {
        runtime.block_on(async {
            let mut streams = Vec::new();
            for _ in 0..PERMITS {
                streams.push(begin(envoy.ingress, length).await);
            }
            streams
        })
    };
    // An hour: this work notices nothing.
    let working = begin_all("x-ms: 3600000\r\n");
    until("all requests at the upstream", PATIENCE, || (upstream.now() == PERMITS).then_some(()));
    assert_eq!(free(addresses[0]), 0);
    drop(working);
    until("the receipts of clients that left", PATIENCE, || (free(addresses[0]) == PERMITS).then_some(()));
    assert_eq!(upstream.now(), PERMITS, "the backend works on without permits");

    let waiting = begin_all("");
    until("as many again", PATIENCE, || (upstream.now() == 2 * PERMITS).then_some(()));
    // Work that ends with its connection is over soon after its permit.
    drop(waiting);
    until("the work of these to end", PATIENCE, || (upstream.now() == PERMITS).then_some(()));
    until("their receipts", PATIENCE, || (free(addresses[0]) == PERMITS).then_some(()));
    // A permit is free in Redis before weir has read and counted the answer.
    until("their count", PATIENCE, || (holds(&weir, "settled") == 2 * PERMITS as u64).then_some(()));
    assert_eq!(holds(&weir, "lost"), 0);
    let most = upstream.counted.lock().most;
    assert_eq!(most, 2 * PERMITS, "never more than the limit beside work that goes on");
}

#[test]
fn permits_of_an_envoy_that_is_killed_are_free_again_after_their_window() {
    const WINDOW: Duration = Duration::from_secs(3);
    let (redis, policies, (runtime, _end)) = (RedisServer::start(), policy("3s"), runtime());
    let addresses = [address_of_our_own(13)];
    let weir = replica(&policies.path(), &redis, addresses[0]);
    let (upstream, address) = Upstream::start(&runtime);
    let envoy = Envoy::start_with_permits(&addresses, address);
    let (streams, last_began) = runtime.block_on(async {
        let (mut streams, mut last_began) = (Vec::new(), Instant::now());
        for _ in 0..PERMITS {
            last_began = Instant::now();
            streams.push(begin(envoy.ingress, "").await);
        }
        (streams, last_began)
    });
    until("all requests at the upstream", PATIENCE, || (upstream.now() == PERMITS).then_some(()));
    drop(envoy);
    until("the upstream to notice", PATIENCE, || (upstream.now() == 0).then_some(()));
    let look = Client::connect(addresses[0]).ask(rls::look("shop", &[("user", "ann")])).expect("an answer");
    let reset = look.statuses[0].duration_until_reset.as_ref().map_or(0, |reset| reset.seconds);
    // 3 s and a sub-bucket of 50 ms, rounded up.
    assert!(reset <= 4, "{look:?}");
    until("the permits to end", PATIENCE, || (free(addresses[0]) == PERMITS).then_some(()));
    let free_after = last_began.elapsed();
    let (opened, settled) = (holds(&weir, "opened"), holds(&weir, "settled"));
    println!("{opened} opened, {settled} settled, all free {free_after:?} after the last began");
    assert_eq!((opened, settled), (PERMITS as u64, 0));
    assert!(free_after >= WINDOW, "{free_after:?}");
    drop(streams);
}

#[test]
fn replicas_that_are_killed_only_leave_fewer_permits() {
    const KILLS: usize = 4;
    let (redis, policies, (runtime, _end)) = (RedisServer::start(), policy("2s"), runtime());
    let addresses = [address_of_our_own(14), address_of_our_own(15)];
    let mut replicas = addresses.map(|address| replica(&policies.path(), &redis, address));
    let (upstream, address) = Upstream::start(&runtime);
    let envoy = Envoy::start_with_permits(&addresses, address);
    let answers = Arc::new(Answers::default());
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| runtime.spawn(client(envoy.ingress, number, 1, u64::MAX, answers.clone()))).collect();
    for kill in 0..KILLS {
        let before = upstream.counted.lock().served;
        until("requests between two kills", PATIENCE, || (upstream.counted.lock().served > before + 100).then_some(()));
        let at = kill % 2;
        replicas[at].signal("KILL");
        replicas[at].wait_for_exit();
        replicas[at] = replica(&policies.path(), &redis, addresses[at]);
    }
    clients.iter().for_each(tokio::task::JoinHandle::abort);
    let most = upstream.counted.lock().most;
    println!("{:?} of 200, 429 and others over {KILLS} kills: at most {most} in flight", answers.get());
    assert!(most <= PERMITS, "{most} in flight");
    until("all permits to be free", PATIENCE, || (free(addresses[0]) == PERMITS).then_some(()));
}
