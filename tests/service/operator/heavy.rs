//! Reports that are long, asked for by callers that do not read them: health and decisions do not wait for them.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use crate::support::http;
use crate::support::rls::{self, Client};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};

/// Rules that deny everything, each with a long name so that the sources take more than sockets buffer.
const RULES: usize = 800;
const NAME_BYTES: usize = 4_000;
/// States of the first rule.
const STATES: usize = 3_000;
/// Callers of each report.
const CALLERS: usize = 8;
/// More than the buffers of a connection on the loopback hold.
const LONG_BYTES: usize = 12 << 20;

const REPORTS: [&str; 5] = [
    "/top?limits=64&keys=16",
    "/limited?domain=shop&rule=user",
    "/states?domain=shop&rule=user&max=256",
    "/policies",
    "/policies/source",
];

fn policy() -> String {
    let mut policy =
        "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {requests_per_unit: 1, unit: hour}}\n".to_owned();
    for number in 0..RULES {
        let value = format!("{number:0>NAME_BYTES$}");
        writeln!(policy, "  - {{key: k, value: '{value}', rate_limit: {{requests_per_unit: 0, unit: hour}}}}").unwrap();
        // Comments are in the source, and in no rule.
        writeln!(policy, "# {}", "\u{e9}\"".repeat(NAME_BYTES)).unwrap();
    }
    policy
}

fn asked(admin: SocketAddr, path: &str) -> TcpStream {
    let mut stream = http::connect(admin).unwrap();
    stream.write_all(http::head("GET", path, &[], 0).as_bytes()).unwrap();
    stream
}

#[test]
fn reports_that_nobody_reads_delay_neither_health_nor_decisions() {
    let served = Served::start(&policy(), &[]);
    let mut client = Client::connect(served.at.grpc);
    let mut decide = |value: &str| client.ask(rls::request("shop", &[("user", value)])).unwrap();
    for number in 0..STATES {
        let value = format!("{number}{}", "\u{1}".repeat(150));
        decide(&value);
        decide(&value);
    }
    until("the denials", PATIENCE, || {
        http::get(served.at.admin, "/top").unwrap().body.contains("\"rule\":\"user\"").then_some(())
    });
    let mut unread: Vec<(&str, TcpStream)> =
        (0..CALLERS).flat_map(|_| REPORTS).map(|path| (path, asked(served.at.admin, path))).collect();
    for listener in [served.at.http, served.at.admin] {
        for _ in 0..CALLERS {
            assert_eq!(http::get(listener, "/readyz").unwrap().status, 200);
            decide("ann");
        }
    }
    assert_eq!(http::get(served.at.http, "/healthz").unwrap().status, 200);
    // One report of each kind was on its way all the time, and is whole.
    unread.truncate(REPORTS.len());
    for (path, mut stream) in unread {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(
            answer.starts_with(b"HTTP/1.1 200 OK") && answer.trim_ascii_end().ends_with(b"0") || answer.ends_with(b"}")
        );
        if path == "/policies/source" {
            assert!(answer.len() > LONG_BYTES, "{} bytes could be buffered", answer.len());
        }
    }
}
