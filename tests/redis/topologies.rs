//! The ways to one Redis, each with a real server: TCP, Unix socket and TLS, database, prefix, passwords in files
//! that are rotated. Not in here: what a user needs to be allowed (redis/acl.rs), Sentinel (redis/sentinel.rs) and
//! Cluster (redis/cluster.rs).

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use redis::{Cmd, Value, cmd};
use tempfile::TempDir;
use weir_store::redis::pipeline::{Call, CallError, Options, Pipeline, Reason};
use weir_store::redis::{Endpoint, RedisObserver};
use weir_tls::files::FileError;
use weir_tls::{Identity, TlsFiles};

use crate::support::authority::{Authority, Issued};
use crate::support::cluster::{Plan, RedisCluster};
use crate::support::process::{PolicyDirectory, Process, Weir};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::served::Served;
use crate::support::wait::PATIENCE;
use crate::support::{http, served};

/// A deadline that a healthy Redis is never near, and that a sick one is to reach.
const SHORT: Duration = Duration::from_millis(300);

/// Its window cannot turn while a test runs.
const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3, anchor: first_hit}
";

/// The real binary on a Redis, with more settings (`NAME=VALUE`).
fn serve(url: &str, settings: &[String]) -> Weir {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    Weir::start(&policies.path(), &arguments(url, settings))
}

fn arguments(url: &str, settings: &[String]) -> Vec<String> {
    let mut arguments = vec!["--store".to_owned(), "redis".to_owned(), "--redis-url".to_owned(), url.to_owned()];
    for setting in ["redis.timeout=5s", "shutdown.pause=0s"].into_iter().chain(settings.iter().map(String::as_str)) {
        arguments.extend(["--set".to_owned(), setting.to_owned()]);
    }
    arguments
}

/// Decides by gRPC, and looks at and forgets a state by the admin listener.
fn check_decides(weir: &Weir) {
    let mut client = Client::connect(weir.grpc);
    let mut admitted = || client.admits("shop", "user", "ann");
    assert_eq!([admitted(), admitted(), admitted(), admitted()], [true, true, true, false]);
    let path = "/state?domain=shop&descriptor=user=ann";
    let state = http::get(weir.admin, path).unwrap();
    assert!(state.body.contains("\"remaining\":0") && state.body.contains("\"stored\":true"), "{state:?}");
    let gone = http::request(weir.admin, "DELETE", path, &[], "").unwrap();
    assert!(gone.body.contains("\"stored\":1"), "{gone:?}");
    assert!(admitted());
}

#[test]
fn redis_is_reached_by_tcp_with_a_database_a_password_and_a_prefix() {
    let server = RedisServer::start_with(Some("geheim"), &[]);
    let weir = serve(&format!("{}/3", server.url()), &["redis.key_prefix=eu:".to_owned()]);
    check_decides(&weir);
    assert!(!weir.written().contains("geheim"), "{}", weir.written());
    let keys = server.command(&["-n", "3", "KEYS", "*"]).unwrap();
    assert_eq!(keys.trim(), "eu:w1:{shop|user=ann}h86400s");
    assert_eq!(server.command(&["DBSIZE"]).unwrap().trim(), "0");
}

#[test]
fn redis_is_reached_by_a_unix_socket() {
    let server = RedisServer::start_with(Some("geheim"), &[]);
    let weir = serve(&format!("redis+unix://{}?db=2&pass=geheim", server.socket().display()), &[]);
    check_decides(&weir);
    let keys = server.command(&["-n", "2", "KEYS", "*"]).unwrap();
    assert_eq!(keys.trim(), "w1:{shop|user=ann}h86400s");
}

#[test]
fn redis_is_reached_by_tls_with_a_private_authority_a_client_certificate_and_another_name() {
    let authority = Authority::new("weir's tests");
    let server = RedisServer::start_with(Some("geheim"), &[]);
    let port = authority.secure(&server, &authority.server("redis", &["redis.internal"]), "yes");
    let client = authority.client("weir");
    let settings = [
        format!("redis.tls.ca_file={}", authority.file().display()),
        format!("redis.tls.cert_file={}", client.certificate.display()),
        format!("redis.tls.key_file={}", client.key.display()),
        "redis.tls.server_name=redis.internal".to_owned(),
    ];
    let weir = serve(&format!("rediss://:geheim@127.0.0.1:{port}/1"), &settings);
    check_decides(&weir);
    let clients = server.command(&["CLIENT", "LIST"]).unwrap();
    let ours: Vec<&str> = clients.lines().filter(|line| line.contains("name=weir")).collect();
    assert!(!ours.is_empty() && ours.iter().all(|line| line.contains(&format!(":{port} "))), "{clients}");
    for of in ["own", "authority", "peer"] {
        let name = format!("weir_certificate_not_after_timestamp_seconds{{certificate=\"{of}\",use=\"redis\"}}");
        assert!(served::metric(weir.http, &name).unwrap() > 2_000_000_000, "{of}");
    }
}

#[test]
fn a_password_that_is_rotated_in_its_file_needs_no_restart() {
    let server = RedisServer::start_with(Some("old"), &[]);
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("password");
    fs::write(&file, "old\n").unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let settings = [format!("redis.password_file={}", file.display()), "redis.breaker.probe=10ms".to_owned()];
    let mut weir = serve(&url, &settings);
    let mut client = Client::connect(weir.grpc);
    assert!(client.admits("shop", "user", "ann"));

    // One connection of redis-cli's does both: it is logged in before the password changes, and killed last.
    let rotated = server.command(&["CONFIG", "SET", "requirepass", "new"]).unwrap();
    assert_eq!(rotated.trim(), "OK");
    let other = |arguments: &[&str]| {
        let output = std::process::Command::new("redis-cli")
            .args(["-p", &server.port().to_string(), "--no-auth-warning", "-a", "new"])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let killed = other(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert!(killed.trim().parse::<u32>().unwrap() >= 1, "{killed}");

    // What is open is closed, and nobody can log in: nothing is charged, for certain.
    let refused = client.ask(rls::request("shop", &[("user", "ann")])).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "{refused}");
    let told =
        weir.wait_for_log(0, PATIENCE, |line| line.raw().contains("it does not accept the user or the password"));
    assert!(told, "{}", weir.written());
    assert_eq!(http::get(weir.http, "/readyz").unwrap().status, 200, "readiness does not drop");

    fs::write(&file, "new\n").unwrap();
    let end = Instant::now() + PATIENCE;
    let admitted = loop {
        match client.ask(rls::request("shop", &[("user", "ann")])) {
            Ok(answer) => break rls::admits(&answer),
            Err(status) => assert!(Instant::now() < end, "not back in time: {status}"),
        }
    };
    assert!(admitted, "one hit was taken before");
    assert!(weir.is_running());
    for secret in ["old", "new"] {
        assert!(!weir.written().contains(&format!("\"{secret}")), "{}", weir.written());
    }
    // A second and a third hit, and no more: what failed meanwhile was not charged.
    assert!(client.admits("shop", "user", "ann"));
    assert!(!client.admits("shop", "user", "ann"));
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let authority = Authority::new("weir's tests");
    let (client, other) = (authority.client("weir"), authority.client("other"));
    let directory = TempDir::new().unwrap();
    let missing = directory.path().join("missing");
    let empty = directory.path().join("empty");
    fs::write(&empty, "\n").unwrap();
    let set = |name: &str, path: &Path| format!("redis.{name}={}", path.display());
    let identity = |certificate: &Path, key: &Path| vec![set("tls.cert_file", certificate), set("tls.key_file", key)];
    let cases: [(Vec<String>, String); 7] = [
        (vec![set("password_file", &missing)], format!("{}: cannot be opened: No such file", missing.display())),
        (vec![set("password_file", &empty)], format!("{}: contains no password", empty.display())),
        (vec![set("tls.ca_file", &missing)], format!("{}: cannot be opened: No such file", missing.display())),
        (vec![set("tls.ca_file", &empty)], format!("{}: contains no certificate in PEM", empty.display())),
        (identity(&client.key, &client.key), format!("{}: contains no certificate in PEM", client.key.display())),
        (
            identity(&client.certificate, &client.certificate),
            format!("{}: contains no unencrypted private key", client.certificate.display()),
        ),
        (
            identity(&client.certificate, &other.key),
            format!("{}: is not the key of {}", other.key.display(), client.certificate.display()),
        ),
    ];
    for (settings, expected) in cases {
        let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
        let process = Process::start(&policies.path(), &arguments("rediss://127.0.0.1:1", &settings), &[]);
        let (status, written) = process.finish();
        assert_eq!(status.code(), Some(1), "{written}");
        assert!(written.contains(&expected), "{settings:?}: {written}");
        assert!(!written.contains("PRIVATE"), "{written}");
    }
}

/// weir was ready, and every request of two descriptors failed with CROSSSLOT, which Envoy lets pass: seen with serverless
/// Redis and with a node of a cluster.
#[test]
fn a_redis_that_checks_slots_at_one_address_is_named_at_the_start() {
    let cluster = RedisCluster::start(&Plan::of(1));
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let process = Process::start(&policies.path(), &arguments(&cluster.nodes[0].url(), &[]), &[]);
    let (status, written) = process.finish();
    assert_eq!(status.code(), Some(1), "{written}");
    assert!(written.contains("keys of two slots (CROSSSLOT)"), "{written}");
    assert!(written.contains("set redis.topology to cluster") && written.contains("set it to proxy"), "{written}");
}

/// The same Redis as a proxy: calls are split by slot, at one address and without the map of a cluster.
#[test]
fn a_redis_that_checks_slots_at_one_address_decides_as_a_proxy() {
    let cluster = RedisCluster::start(&Plan::of(1));
    let weir = serve(&cluster.nodes[0].url(), &["redis.topology=proxy".to_owned(), "runtime.cores=1".to_owned()]);
    check_decides(&weir);
    let users = |users: &[&str]| {
        let mut request = rls::request("shop", &[]);
        request.descriptors =
            users.iter().flat_map(|user| rls::request("shop", &[("user", user)]).descriptors).collect();
        request
    };
    // Ten keys in ten slots. Then one of them denies, and the hits of the others are given back.
    let names: Vec<String> = (0..10).map(|i| format!("u{i}")).collect();
    let ten: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut client = Client::connect(weir.grpc);
    let mut admits = |users_of: &[&str]| rls::admits(&client.ask(users(users_of)).unwrap());
    assert!(admits(&ten) && admits(&ten[..1]) && admits(&ten[..1]));
    assert!(!admits(&ten));
    assert!(admits(&ten[1..]) && admits(&ten[1..]) && !admits(&ten[1..]));
    // Calls that wait together are not merged: their keys are in different slots.
    let decided: Vec<bool> = thread::scope(|scope| {
        let ask = |i: usize| {
            let grpc = weir.grpc;
            scope.spawn(move || Client::connect(grpc).admits("shop", "user", &format!("many{i}")))
        };
        let asks: Vec<_> = (0..64).map(ask).collect();
        asks.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert!(decided.iter().all(|admitted| *admitted));
    assert_eq!(cluster.runs("cluster|slots"), 0);
}

/// Rows, overrides and calls that decisions share, with a Redis whose scripts return numbers as texts.
#[test]
fn a_redis_whose_scripts_return_numbers_as_texts_decides_with_rows_and_overrides() {
    let policy =
        "domain: shop\ndescriptors: [{key: user, rows: {default: free}, rate_limit: {rate: 3/day, anchor: first_hit}}]";
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.numbers_as_texts();
    let url = format!("redis.url={}", proxy.url());
    let weir = Served::start(policy, &["store=redis", "redis.timeout=5s", "runtime.cores=1", &url]);
    let put = |path: &str, user: &str, requests: u32, more: &str| {
        let limits = format!(r#"[{{"requests":{requests},"window_us":86400000000}}]"#);
        let body = format!(r#"{{"domain":"shop","descriptor":"user={user}","limits":{limits}{more}}}"#);
        let answer = http::request(weir.at.admin, "PUT", path, &[], &body).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    let admitted = |user: &str| {
        let mut client = Client::connect(weir.at.grpc);
        (0..20).filter(|_| client.admits("shop", "user", user)).count()
    };
    put("/rows", "row", 5, "");
    put("/overrides", "override", 7, r#","for_us":3600000000,"reason":"x""#);
    assert_eq!((admitted("row"), admitted("override"), admitted("new")), (5, 7, 3));
    // The rows that the process knows are replaced while many ask.
    put("/rows", "row", 9, "");
    let more: usize = thread::scope(|scope| {
        let asks = [(); 8].map(|()| scope.spawn(|| admitted("row")));
        asks.into_iter().map(|asked| asked.join().unwrap()).sum()
    });
    assert_eq!(more, 4);
}

/// What the pipeline told its observer.
#[derive(Debug, Default)]
struct Tally {
    files: Mutex<Vec<String>>,
}

impl RedisObserver for Tally {
    fn file_refused(&self, error: &FileError) {
        self.files.lock().unwrap().push(error.to_string());
    }
}

struct Setup {
    pipeline: Pipeline,
    tally: Arc<Tally>,
}

/// A pipeline of one connection.
fn start(endpoint: Endpoint) -> Setup {
    let tally = Arc::new(Tally::default());
    let mut options = Options::new(endpoint);
    options.connections = 1;
    options.observer = tally.clone();
    Setup { pipeline: Pipeline::start(options), tally }
}

impl Setup {
    async fn call(&self, command: Cmd, within: Duration) -> Result<Value, CallError> {
        self.pipeline.call(Call::command(command), Instant::now() + within).await
    }

    /// Counts one more, and returns the count, once Redis answers.
    async fn count(&self) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.call(incr(), SHORT).await {
                Ok(count) => return count,
                Err(error) => assert!(Instant::now() < end, "{error}"),
            }
        }
    }

    /// Why there is no connection.
    async fn refused(&self) -> String {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.call(incr(), SHORT).await {
                Err(CallError::NotSent { reason: reason @ Reason::NoConnection { .. } }) => return reason.to_string(),
                // One that was open when it was sent on, or a dial that is not at its end yet.
                Err(error) => assert!(Instant::now() < end, "{error}"),
                Ok(answer) => panic!("expected no connection: {answer:?}"),
            }
        }
    }
}

fn incr() -> Cmd {
    let mut command = cmd("INCR");
    command.arg("n");
    command
}

fn trusting(authority: &Authority) -> TlsFiles {
    TlsFiles { ca: Some(authority.file()), ..TlsFiles::default() }
}

fn showing(authority: &Authority, client: &Issued) -> TlsFiles {
    let identity = Identity { certificate: client.certificate.clone(), key: client.key.clone() };
    TlsFiles { identity: Some(identity), ..trusting(authority) }
}

fn tls(port: u16, files: TlsFiles) -> Endpoint {
    Endpoint::parse(&format!("rediss://127.0.0.1:{port}")).unwrap().with_tls(files)
}

#[tokio::test]
async fn what_tls_refuses_is_said_in_words() {
    let authority = Authority::new("weir's tests");
    let stranger = Authority::new("somebody else's");
    let server = RedisServer::start();
    let port = authority.secure(&server, &authority.server("redis", &["127.0.0.1", "redis.internal"]), "yes");
    let client = authority.client("weir");
    let known = showing(&authority, &client);
    assert_eq!(start(tls(port, known.clone())).count().await, Value::Int(1));
    let at = format!("no connection to redis at 127.0.0.1:{port}: ");

    let check = async |files: TlsFiles, expected: &str| {
        let reason = start(tls(port, files)).refused().await;
        assert_eq!(reason, format!("{at}{expected}"));
    };
    let untrusted = "no trusted authority has signed its certificate";
    check(TlsFiles { ca: Some(stranger.file()), ..known.clone() }, untrusted).await;
    check(TlsFiles { ca: None, ..known.clone() }, untrusted).await;
    let elsewhere = Some("cache.internal".to_owned());
    check(
        TlsFiles { server_name: elsewhere, ..known.clone() },
        "its certificate is for 127.0.0.1, redis.internal, and not for cache.internal",
    )
    .await;
    check(trusting(&authority), "it refused tls: CertificateRequired").await;
    check(showing(&authority, &stranger.client("weir")), "it refused tls: UnknownCA").await;
    let named = TlsFiles { server_name: Some("redis.internal".to_owned()), ..known.clone() };
    assert_eq!(start(tls(port, named)).count().await, Value::Int(2));

    // Redis takes the handshake for the beginning of a command, and waits for the rest.
    let to_plain = start(tls(server.port(), known)).refused().await;
    assert_eq!(to_plain, format!("no connection to redis at 127.0.0.1:{}: no answer within 1s", server.port()));
    let from_plain = start(Endpoint::parse(&format!("redis://127.0.0.1:{port}")).unwrap()).refused().await;
    assert!(from_plain.starts_with(&at), "{from_plain}");
}

#[tokio::test]
async fn certificates_that_are_replaced_are_in_force_at_the_next_connection() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let server = RedisServer::start();
    let port = old.secure(&server, &old.server("redis", &["127.0.0.1"]), "no");
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("ca.pem");
    fs::write(&file, old.pem()).unwrap();
    let setup = start(tls(port, TlsFiles { ca: Some(file.clone()), ..TlsFiles::default() }));
    assert_eq!(setup.count().await, Value::Int(1));
    let hang_up = || server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();

    // Half written: what was read before stays in force, and is complained about.
    fs::write(&file, &new.pem()[..100]).unwrap();
    hang_up();
    assert_eq!(setup.count().await, Value::Int(2));
    let told = setup.tally.files.lock().unwrap().clone();
    assert_eq!(told, [format!("{}: not PEM: a section has no end", file.display())]);

    new.present(&server, &new.server("redis", &["127.0.0.1"]));
    fs::write(&file, new.pem()).unwrap();
    hang_up();
    assert_eq!(setup.count().await, Value::Int(3));

    fs::write(&file, old.pem()).unwrap();
    hang_up();
    let reason = setup.refused().await;
    assert!(reason.ends_with("no trusted authority has signed its certificate"), "{reason}");
}

#[tokio::test]
async fn a_password_file_that_is_gone_leaves_the_last_password_in_force() {
    let server = RedisServer::start_with(Some("geheim"), &[]);
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("password");
    fs::write(&file, "geheim").unwrap();
    let url = format!("redis://127.0.0.1:{}", server.port());
    let setup = start(Endpoint::parse(&url).unwrap().with_password_file(&file));
    assert_eq!(setup.count().await, Value::Int(1));
    fs::remove_file(&file).unwrap();
    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap();
    assert_eq!(setup.count().await, Value::Int(2));
    let told = setup.tally.files.lock().unwrap().clone();
    assert_eq!(told, [format!("{}: cannot be opened: No such file or directory (os error 2)", file.display())]);
}

#[tokio::test]
async fn through_tls_too_a_call_whose_answer_is_lost_is_never_sent_again() {
    let authority = Authority::new("weir's tests");
    let server = RedisServer::start();
    let proxy = Proxy::start(authority.secure(&server, &authority.server("redis", &["127.0.0.1"]), "no"));
    let port = proxy.url().rsplit(':').next().unwrap().parse().unwrap();
    let setup = start(tls(port, trusting(&authority)));
    assert_eq!(setup.count().await, Value::Int(1));
    proxy.swallow(true);
    let lost = setup.call(incr(), SHORT).await;
    assert!(matches!(lost, Err(CallError::Unknown { reason: Reason::Deadline })), "{lost:?}");
    // Nor is anything sent that no handshake came before.
    let late = setup.call(incr(), SHORT).await;
    assert!(matches!(late, Err(CallError::NotSent { .. })), "{late:?}");
    proxy.swallow(false);
    assert_eq!(setup.count().await, Value::Int(3));
    assert_eq!(server.runs("incr"), 3);
    // Cut within a record: the answer is lost, the call ran.
    proxy.cut_after(5);
    let cut = setup.call(incr(), PATIENCE).await;
    assert!(matches!(cut, Err(CallError::Unknown { reason: Reason::Broken(_) })), "{cut:?}");
    assert_eq!(setup.count().await, Value::Int(5));
    assert_eq!(server.runs("incr"), 5);
}
