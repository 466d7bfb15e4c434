//! Many limits, and a reader of the metrics, of the statistics and of the limits.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use crate::support::http;
use crate::support::process::{POLICIES_LOADED, PolicyDirectory, Process, Weir};
use crate::support::rls::{self, Client};
use crate::support::wait::{PATIENCE, until};

/// How many rules there are, and how many limits each has: 100,000 together. Fewer rules than limits, since a debug build
/// takes long to read them.
const RULES: usize = 12_500;
const LIMITS: usize = 8;
/// How much a scrape may add to the memory of the process, in KiB.
const GROWTH_KIB_MAX: u64 = 16 * 1_024;
/// How often the memory is read, in bytes of the scrape.
const LOOK_EVERY: usize = 1 << 20;

/// A weir whose metrics are some 50 MB, with the paths of envoyproxy/ratelimit's debug port.
fn start() -> (Weir, PolicyDirectory) {
    let mut policy = "domain: shop\ndescriptors:\n- key: user\n  value: u0\n  rate_limits: &limits\n".to_owned();
    for number in 0..LIMITS {
        writeln!(policy, "  - {{name: limit-{number}, requests_per_unit: 3, unit: hour}}").unwrap();
    }
    for number in 1..RULES {
        writeln!(policy, "- {{key: user, value: u{number}, rate_limits: *limits}}").unwrap();
    }
    let policies = PolicyDirectory::with_file("shop.yaml", &policy);
    let process = Process::start(&policies.path(), &["--set", "admin.endpoints=ratelimit"], &[]);
    // Reading so many limits takes a while in a debug build.
    until("the limits to be loaded", 6 * PATIENCE, || {
        process.has_logged(|line| line.message() == Some(POLICIES_LOADED)).then_some(())
    });
    (Weir::from_process(process).expect("weir serves"), policies)
}

#[test]
fn a_scrape_of_100_000_limits_holds_no_copy_and_delays_no_decision() {
    let (weir, _policies) = start();
    let mut client = Client::connect(weir.grpc);
    let mut decide = || client.ask(rls::request("shop", &[("user", "u1")])).expect("a decision");
    decide();
    assert_eq!(http::get(weir.http, "/readyz").expect("an answer").status, 200);

    for (address, path, bytes_min) in
        [(weir.http, "/metrics", 30 << 20), (weir.admin, "/stats", 30 << 20), (weir.admin, "/rlconfig", 5 << 20)]
    {
        let before = weir.memory_kib();
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(socket, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut piece = vec![0; 64 * 1_024];
        let (mut bytes, mut looks, mut most) = (0, 0, before);
        let mut end = Vec::new();
        loop {
            let count = socket.read(&mut piece).expect("the scrape goes on");
            if count == 0 {
                break;
            }
            bytes += count;
            end.extend_from_slice(&piece[..count]);
            end.drain(..end.len().saturating_sub(16));
            if bytes / LOOK_EVERY > looks {
                looks = bytes / LOOK_EVERY;
                most = most.max(weir.memory_kib());
                decide();
            }
        }
        assert!(end.ends_with(b"\r\n0\r\n\r\n"), "{path} broke off: {}", end.escape_ascii());
        assert!(bytes > bytes_min, "{path} is long: {bytes} bytes");
        let grown = most - before;
        assert!(grown < GROWTH_KIB_MAX, "{path} grew by {grown} KiB over {bytes} bytes");
    }
}
