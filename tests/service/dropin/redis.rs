//! Redis by the variables of envoyproxy/ratelimit, with real servers: two of them, and TLS. Not in here: what each form of a
//! variable becomes (environment.rs), and each way to reach Redis (redis/topologies.rs).

use std::path::Path;

use super::started::{Environment, Ratelimit, Runtime};
use crate::support::authority::Authority;
use crate::support::http;
use crate::support::redis::RedisServer;

const SHOP: [(&str, &str); 1] = [(
    "shop.yaml",
    "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 2}\n  - key: burst\n    \
     rate_limit: {unit: second, requests_per_unit: 1000000}\n",
)];

/// Starts one with these variables and asks it three times about one user: the third is too many.
#[track_caller]
fn assert_limits(given: &[(&str, &str)]) {
    let runtime = Runtime::with(SHOP);
    let given =
        given.iter().fold(runtime.variables().with("REDIS_TIMEOUT", "5s"), |all, (name, text)| all.with(name, text));
    let started = Ratelimit::try_start(&given).unwrap_or_else(|problem| panic!("{given:?}: {problem}"));
    let found = [ask(&started, "user"), ask(&started, "user"), ask(&started, "user"), ask(&started, "burst")];
    assert_eq!(found, [200, 200, 429, 200], "{given:?}\n{}", started.process.written());
}

fn ask(started: &Ratelimit, key: &str) -> u16 {
    let body = format!(r#"{{"domain": "shop", "descriptors": [{{"entries": [{{"key": "{key}", "value": "ann"}}]}}]}}"#);
    http::post_json(started.http, "/json", &body).expect("an answer").status
}

fn keys(server: &RedisServer) -> usize {
    let keys = server.command(&["KEYS", "*"]).expect("redis answers");
    keys.lines().filter(|line| !line.trim().is_empty()).count()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn limits_per_second_go_to_the_second_redis() {
    let (first, second) = (RedisServer::start(), RedisServer::start_with(Some("hunter2"), &[]));
    let urls = [first.port(), second.port()].map(|port| format!("127.0.0.1:{port}"));
    assert_limits(&[
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", &urls[0]),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_SOCKET_TYPE", "tcp"),
        ("REDIS_PERSECOND_URL", &urls[1]),
        ("REDIS_PERSECOND_AUTH", "hunter2"),
    ]);
    assert_eq!(keys(&first), 1, "the limit per hour");
    assert!(second.runs("evalsha") > 0, "the limit per second is charged there");
}

#[test]
fn by_tls_with_the_systems_authorities_or_one_that_is_given() {
    let (authority, stranger) = (Authority::new("weir's tests"), Authority::new("another one"));
    let server = RedisServer::start();
    let port = authority.secure(&server, &authority.server("redis", &["127.0.0.1"]), "yes");
    let client = authority.client("weir");
    let url = format!("127.0.0.1:{port}");
    let tls = [
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("REDIS_URL", url.as_str()),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CLIENT_CERT", text(&client.certificate)),
        ("REDIS_TLS_CLIENT_KEY", text(&client.key)),
    ];
    let (known, other) = (authority.file(), stranger.file());
    let with = |more: &[(&'static str, &str)]| {
        let all: Vec<(&str, &str)> = tls.iter().copied().chain(more.iter().copied()).collect();
        assert_limits(&all);
    };
    with(&[("REDIS_TLS_CACERT", text(&known)), ("CACHE_KEY_PREFIX", "a:")]);
    with(&[("SSL_CERT_FILE", text(&known)), ("CACHE_KEY_PREFIX", "b:")]);
    with(&[("SSL_CERT_FILE", text(&known)), ("REDIS_TLS_CACERT", text(&other)), ("CACHE_KEY_PREFIX", "c:")]);

    // A certificate of another name.
    authority.present(&server, &authority.server("elsewhere", &["cache.internal"]));
    let skip = ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true");
    with(&[("REDIS_TLS_CACERT", text(&known)), skip, ("CACHE_KEY_PREFIX", "d:")]);
    let refused = |more: &[(&str, &str)]| {
        let runtime = Runtime::with(SHOP);
        let given = runtime.variables().with("REDIS_STARTUP_MAX_ELAPSED_TIME", "1s");
        let given = tls.iter().chain(more).fold(given, |all: Environment, (name, text)| all.with(name, text));
        let (status, written) = super::started::launch(&given, &[]).finish();
        assert_eq!(status.code(), Some(1), "{written}");
        written
    };
    let written = refused(&[("REDIS_TLS_CACERT", text(&known))]);
    assert!(written.contains("its certificate is for cache.internal"), "{written}");
    let written = refused(&[("SSL_CERT_FILE", text(&other)), skip]);
    assert!(written.contains("no trusted authority has signed its certificate"), "{written}");

    // A self-signed certificate.
    authority.present(&server, &authority.itself());
    let written = refused(&[("REDIS_TLS_CACERT", text(&other))]);
    assert!(written.contains("can sign others, like a self-signed one, and is not trusted itself"), "{written}");
}
