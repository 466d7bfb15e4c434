//! The HTTP listeners: what one caller can hold, and that probes are answered meanwhile.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::support::frames::{SETTINGS, frame};
use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::served::{Served, metric};
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 3, unit: hour}}
";

/// How much a process may have grown by an attack, in KiB, beside [`CONNECTION_KIB_MAX`] for each connection.
const GROWTH_KIB_MAX: u64 = 64 * 1_024;
const CONNECTION_KIB_MAX: u64 = 32;
/// How much of it may be left when the callers have gone, in KiB.
const KEPT_KIB_MAX: u64 = 8 * 1_024;
/// The longest body of a request, and of a change of rows.
const BODY_BYTES: usize = 4 << 20;
/// The most connections of a listener.
const CONNECTIONS_MAX: u64 = 1_024;

pub(super) fn rules(count: usize) -> String {
    let mut policy = "domain: shop\ndescriptors:\n".to_owned();
    for number in 0..count {
        writeln!(policy, "  - {{key: user, value: u{number}, rate_limit: {{requests_per_unit: 3, unit: hour}}}}")
            .unwrap();
    }
    policy
}

fn start(policy: &str) -> (Weir, PolicyDirectory) {
    let policies = PolicyDirectory::with_file("shop.yaml", policy);
    (Weir::start::<&str>(&policies.path(), &[]), policies)
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
    socket
}

fn assert_alive(address: SocketAddr) {
    assert_eq!(http::get(address, "/readyz").expect("an answer").status, 200);
}

#[test]
fn http2_is_not_spoken() {
    let served = Served::start(POLICY, &[]);
    for address in [served.at.http, served.at.admin] {
        let mut socket = connect(address);
        socket.write_all(&[&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, &[])].concat()).unwrap();
        let mut answer = Vec::new();
        // The end may be a reset, since weir does not read what follows.
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.is_empty(), "{}", answer.escape_ascii());
    }
}

#[test]
fn half_sent_requests_do_not_keep_probes_from_being_answered() {
    let (weir, _policies) = start(POLICY);
    let json = "POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n{";
    let halves = ["", "G", "GET /healthz HTTP/1.1\r\nhost: loc", json];
    let mut half_sent = Vec::new();
    for number in 0..1_300 {
        let mut socket = connect(weir.http);
        socket.write_all(halves[number % halves.len()].as_bytes()).unwrap();
        half_sent.push(socket);
    }
    for _ in 0..20 {
        assert_eq!(http::get(weir.http, "/healthz").expect("an answer").status, 200);
    }
    // Not one more than the listener has room for is open; the oldest were closed.
    assert!((weir.open_files() as u64) < CONNECTIONS_MAX + 100, "{} files", weir.open_files());
    let shed = metric(weir.http, "weir_connections_shed_total{listener=\"http\",reason=\"full\"}");
    assert!(shed >= Some(1_300 - CONNECTIONS_MAX), "{shed:?}");
    let mut rest = Vec::new();
    let _ = half_sent[0].read_to_end(&mut rest);
    assert!(rest.is_empty());
    drop(half_sent);
    until("the sockets to be let go", PATIENCE, || (weir.open_files() < 100).then_some(()));
}

#[test]
fn half_sent_bodies_hold_a_bounded_amount() {
    let (weir, _policies) = start(POLICY);
    assert_alive(weir.http);
    let before = weir.memory_kib();
    for body in [15_000, 40_000, 200_000] {
        let mut half_sent = Vec::new();
        for _ in 0..1_500 {
            let mut socket = connect(weir.http);
            socket.set_write_timeout(Some(Duration::from_secs(40))).unwrap();
            let head = "POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000000\r\n\r\n";
            // weir may refuse the body, or close the connection for a newer one.
            let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&vec![b' '; body]));
            half_sent.push(socket);
        }
        assert_alive(weir.http);
        let most = GROWTH_KIB_MAX + CONNECTIONS_MAX * CONNECTION_KIB_MAX;
        // A connection that weir has closed for a newer one holds its memory until its handler has ended, on another thread.
        until(&format!("bodies of {body} bytes to hold less than {most} KiB"), PATIENCE, || {
            (weir.memory_kib().saturating_sub(before) < most).then_some(())
        });
    }
}

/// A connection that begins a body of 4 MiB and does not end it.
fn unfinished_body(address: SocketAddr, line: &str) -> TcpStream {
    let mut socket = connect(address);
    socket.set_write_timeout(Some(Duration::from_secs(40))).unwrap();
    let head = format!("{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {BODY_BYTES}\r\n\r\n");
    // weir may end the body to make room for another.
    let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&vec![b' '; BODY_BYTES - 1]));
    socket
}

/// 727 of 730 requests got 503: the bodies took the memory for the bodies of all callers.
#[test]
fn seven_unfinished_bodies_do_not_stop_json() {
    let served = Served::start(POLICY, &[]);
    for attacked in ["POST /json", "PUT /rows"] {
        let address = if attacked == "PUT /rows" { served.at.admin } else { served.at.http };
        let unfinished: Vec<TcpStream> = (0..7).map(|_| unfinished_body(address, attacked)).collect();
        for number in 0..100 {
            let request = format!(
                r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"user","value":"{attacked} {number}"}}]}}]}}"#
            );
            let answer = http::post_json(served.at.http, "/json", &request).expect("an answer");
            assert_eq!(answer.status, 200, "{attacked}, request {number}: {}", answer.body);
        }
        // A change of an operator has room too.
        let change = r#"{"domain":"shop","descriptor":"user=ann","limits":[{"requests":9,"window_us":3600000000}],
            "for_us":60000000,"reason":"a launch"}"#;
        let answer = http::request(served.at.admin, "PUT", "/overrides", &[], change).expect("an answer");
        assert_eq!(answer.status, 200, "{attacked}: {}", answer.body);
        drop(unfinished);
    }
}

/// 300 unfinished bodies took 1,237 MB.
#[test]
fn unfinished_changes_of_rows_hold_a_bounded_amount() {
    const CALLERS: u64 = 300;
    let (weir, _policies) = start(POLICY);
    assert_alive(weir.admin);
    let before = weir.memory_kib();
    let mut most = before;
    let unfinished: Vec<TcpStream> = (0..CALLERS)
        .map(|_| {
            let socket = unfinished_body(weir.admin, "PUT /rows");
            most = most.max(weir.memory_kib());
            socket
        })
        .collect();
    assert_alive(weir.admin);
    let grown = most.max(weir.memory_kib()).saturating_sub(before);
    let bound = GROWTH_KIB_MAX + CALLERS * CONNECTION_KIB_MAX;
    assert!(grown < bound, "grew by {grown} KiB of {bound} KiB");
    drop(unfinished);
}

/// The listener kept 28 to 37 MiB until a caller came again.
#[test]
fn memory_of_bodies_goes_back_to_the_system_without_another_request() {
    let (weir, _policies) = start(POLICY);
    assert_alive(weir.http);
    let before = weir.memory_kib();
    let mut half_sent = Vec::new();
    for _ in 0..CONNECTIONS_MAX / 2 {
        let mut socket = connect(weir.http);
        socket.write_all(b"POST /json HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000000\r\n\r\n").unwrap();
        socket.write_all(&[b' '; 40_000]).unwrap();
        half_sent.push(socket);
    }
    until("the bodies to be held", PATIENCE, || (weir.memory_kib() > before + 3 * KEPT_KIB_MAX).then_some(()));
    drop(half_sent);
    until("the memory to be given back", PATIENCE, || (weir.memory_kib() < before + KEPT_KIB_MAX).then_some(()));
}

/// The statistics of the debug port were one text, which each slow reader held.
#[test]
fn metrics_and_statistics_that_are_not_read_hold_a_bounded_amount() {
    let policies = PolicyDirectory::with_file("shop.yaml", &rules(5_000));
    let weir = Weir::start(&policies.path(), &["--set", "admin.endpoints=ratelimit"]);
    for (address, path) in [(weir.http, "/metrics"), (weir.admin, "/stats")] {
        let full = http::get(address, path).expect("an answer");
        assert!(full.body.len() > 1 << 20, "{path} is long: {} bytes", full.body.len());
        for _ in 0..3 {
            http::get(address, path).expect("an answer");
        }
        let before = weir.memory_kib();
        let mut slow = Vec::new();
        for _ in 0..100 {
            let mut socket = connect(address);
            write!(socket, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
            slow.push(socket);
        }
        // Each has begun to be answered.
        for socket in &mut slow {
            let mut begun = [0; 15];
            socket.read_exact(&mut begun).unwrap();
            assert!([&b"HTTP/1.1 200 OK"[..], b"HTTP/1.1 503 Se"].contains(&&begun[..]), "{}", begun.escape_ascii());
        }
        assert_alive(weir.http);
        let grown = weir.memory_kib().saturating_sub(before);
        assert!(grown < GROWTH_KIB_MAX, "{path} grew by {grown} KiB, a text has {} bytes", full.body.len());
        // A caller that reads gets the whole text, also beside callers that do not read.
        let again = http::get(address, path).expect("an answer");
        assert_eq!(again.status, 200);
        assert!(again.body.ends_with('\n') && again.body.len() > 1 << 20);
        drop(slow);
        assert_alive(weir.http);
    }
}

#[test]
fn an_answer_that_is_not_read_ends_its_connection() {
    // More than the buffers of the system hold.
    let (weir, _policies) = start(&rules(40_000));
    assert_alive(weir.http);
    let before = until("the probe's socket to be let go", PATIENCE, || {
        let (one, other) = (weir.open_files(), weir.open_files());
        (one == other).then_some(one)
    });
    let mut socket = connect(weir.http);
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut begun = [0; 15];
    socket.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200 OK");
    until("the connection to be closed", Duration::from_secs(60), || (weir.open_files() <= before).then_some(()));
    assert_alive(weir.http);
}

#[test]
fn policies_are_listed_whole_and_in_pieces() {
    let served = Served::start(&rules(3_000), &[]);
    let answer = http::get(served.at.admin, "/policies").expect("an answer");
    assert_eq!(answer.header("transfer-encoding"), Some("chunked"), "no whole copy is made");
    let listed: Value = serde_json::from_str(&answer.body).expect("JSON");
    let rules = listed["domains"][0]["rules"].as_array().expect("rules");
    assert_eq!((rules.len(), rules[2_999]["descriptor"].as_str()), (3_000, Some("user=u2999")), "{}", rules[2_999]);
    assert_eq!(listed["domains"].as_array().map(Vec::len), Some(1));
}

#[test]
fn a_name_of_somebody_else_does_not_lead_to_the_admin_listener() {
    let served = Served::start(POLICY, &["http.admin_hosts=weir.internal"]);
    let ask = |address: SocketAddr, path: &str, host: &str| {
        let mut socket = connect(address);
        write!(socket, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
        http::read_answer(socket).expect("an answer")
    };
    for host in ["localhost", "127.0.0.1:6070", "[::1]:6070", "weir.internal:6070"] {
        assert_eq!(ask(served.at.admin, "/policies", host).status, 200, "{host}");
    }
    for path in ["/policies", "/state?domain=shop&descriptor=user=ann", "/metrics", "/nowhere"] {
        let refused = ask(served.at.admin, path, "rebound.example:6070");
        assert_eq!(refused.status, 403, "{path}");
        assert!(
            refused.body.contains("rebound.example:6070") && refused.body.contains("http.admin_hosts"),
            "{refused:?}"
        );
        // By a request line that names the host itself.
        let absolute = format!("http://rebound.example{path}");
        assert_eq!(ask(served.at.admin, &absolute, "localhost").status, 403, "{path}");
    }
    assert_eq!(ask(served.at.http, "/metrics", "rebound.example").status, 200, "the public listener has no secrets");
}

/// What a browser sends for `fetch(url, {method: "POST", mode: "no-cors", body})` of a page of another site.
#[test]
fn a_page_of_another_site_spends_no_hits() {
    let served = Served::start(POLICY, &["http.allowed_origins=https://console.example"]);
    let send = |address: SocketAddr, line: &str, headers: &str| {
        let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;
        let mut socket = connect(address);
        let length = body.len();
        write!(
            socket,
            "{line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: text/plain\r\n\
             content-length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        http::read_answer(socket).expect("an answer")
    };
    let spent = || served.metric("weir_requests_total{domain=\"shop\",result=\"ok\"}").unwrap_or_default();
    for headers in ["origin: https://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"] {
        let refused = send(served.at.http, "POST /json", headers);
        assert_eq!(refused.status, 403, "{headers}");
        assert!(refused.body.contains("http.allowed_origins"), "{refused:?}");
        for line in ["DELETE /state?domain=shop&descriptor=user=ann", "PUT /overrides", "DELETE /overrides"] {
            let refused = send(served.at.admin, line, headers);
            assert_eq!(refused.status, 403, "{line} {headers}");
            assert!(refused.body.contains("http.allowed_origins"), "{refused:?}");
        }
    }
    assert_eq!(spent(), 0);
    let own = format!("origin: http://{}\r\n", served.at.http);
    for headers in ["", &own, "origin: https://console.example\r\n"] {
        assert_eq!(send(served.at.http, "POST /json", headers).status, 200, "{headers}");
    }
    assert_eq!(spent(), 3);
    let reset =
        send(served.at.admin, "DELETE /state?domain=shop&descriptor=user=ann", "origin: https://console.example\r\n");
    assert_eq!(reset.status, 200, "{reset:?}");
    // A page may read, as far as its browser lets it.
    assert_eq!(send(served.at.http, "GET /healthz", "origin: https://evil.example\r\n").status, 200);
}

#[test]
fn one_address_may_have_as_many_connections_as_the_setting_says() {
    let served = Served::start(POLICY, &["http.connections_per_peer=3"]);
    let open: Vec<TcpStream> = (0..2).map(|_| connect(served.at.http)).collect();
    assert_alive(served.at.http);
    let third = connect(served.at.http);
    let mut fourth = connect(served.at.http);
    let mut nothing = Vec::new();
    let ended = fourth.read_to_end(&mut nothing);
    assert!(ended.is_ok() && nothing.is_empty() || ended.is_err(), "closed at once");
    drop((open, third));
    until("room for more", PATIENCE, || {
        http::get(served.at.http, "/healthz").ok().filter(|answer| answer.status == 200)
    });
    let refused = served.metric("weir_connections_shed_total{listener=\"http\",reason=\"peer\"}");
    assert!(refused >= Some(1), "{refused:?}");
}
