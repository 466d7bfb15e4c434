//! Taps: how many there can be, and what one that is not read holds.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::rls::{self, Client};
use crate::support::served::{Served, metric};
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 1000000, unit: hour}}
";
const TAPS_MAX: usize = 4;
/// How much a process may have grown, in KiB.
const GROWTH_KIB_MAX: u64 = 64 * 1_024;

/// Opens a tap, and reads only that it has begun.
fn open(admin: SocketAddr, query: &str) -> TcpStream {
    let mut stream = http::connect(admin).unwrap();
    stream.write_all(http::head("GET", &format!("/tap?{query}"), &[], 0).as_bytes()).unwrap();
    let mut begun = [0; 15];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200 OK");
    stream
}

#[test]
fn there_are_at_most_so_many_taps_and_one_that_ends_makes_room() {
    let served = Served::start(POLICY, &[]);
    let mut taps: Vec<TcpStream> = (0..TAPS_MAX).map(|_| open(served.at.admin, "")).collect();
    let refused = http::get(served.at.admin, "/tap").unwrap();
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("4 taps are open, which is the maximum"), "{}", refused.body);
    assert_eq!(served.metric("weir_taps"), Some(TAPS_MAX as u64));
    taps.pop();
    until("a free place", PATIENCE, || (served.metric("weir_taps") == Some(TAPS_MAX as u64 - 1)).then_some(()));
    taps.push(open(served.at.admin, ""));
}

#[test]
fn a_tap_that_is_not_read_holds_a_bounded_amount_and_is_told_what_it_lost() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let arguments = ["--set", "tap.records_per_second=1000000", "--set", "tap.values=shown"];
    let weir = Weir::start(&policies.path(), &arguments);
    let mut client = Client::connect(weir.grpc);
    // Each byte takes six in JSON.
    let value = "\u{1}".repeat(1_000);
    let mut descriptor = rls::request("shop", &[("user", &value)]);
    descriptor.descriptors = vec![descriptor.descriptors[0].clone(); 48];
    client.ask(descriptor.clone()).unwrap();
    let before = weir.memory_kib();
    let mut unread: Vec<TcpStream> = (0..TAPS_MAX).map(|_| open(weir.admin, "notes=true")).collect();
    let lost = || metric(weir.http, "weir_tap_lost_records_total").unwrap();
    // More than all buffers on the way hold. A tap whose reader takes nothing for 10 s is closed, so this must take less.
    let mut asked = 0;
    while lost() < 50 {
        for _ in 0..10 {
            client.ask(descriptor.clone()).unwrap();
        }
        asked += 10;
        assert!(asked < 2_000, "nothing is lost");
    }
    let grown = weir.memory_kib().saturating_sub(before);
    assert!(grown < GROWTH_KIB_MAX, "grew by {grown} KiB in {asked} requests");
    // One who reads on finds out what it missed.
    let mut one = unread.remove(0);
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        one.read_to_string(&mut text).map(|_| text)
    });
    weir.terminate();
    let text = reader.join().unwrap().unwrap();
    let lost: u64 = text
        .lines()
        .filter(|line| line.starts_with('{'))
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|line| line["lost"].as_u64())
        .sum();
    assert!(lost > 0, "{} bytes without a word of what was lost", text.len());
}
