//! A weir of little memory: what connections, the tables of HTTP/2 and policy files may take follows the memory of the process.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Stdio;

use prost::Message as _;

use crate::support::frames::{DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Raw, SHOULD_RATE_LIMIT, frame, message};
use crate::support::memory_limit::MemoryLimit;
use crate::support::process::{PolicyDirectory, Process, Weir, serve};
use crate::support::rls::{self, Client};
use crate::support::served::metric;
use crate::support::wait::{PATIENCE, until};
use weir_policies::Limits;

use super::policies::problems;

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 4000000000, unit: year}}
";
/// The window of a peer that reads.
const WIDE: u32 = 1 << 20;
/// The attacker's address. Honest callers have another one.
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
/// An address space includes what is mapped and never touched: threads' stacks, the program, the allocator's reserve.
const ADDRESS_SPACE_MIB: u64 = 1_536;

/// The headers of a first request, whose values HTTP/2 keeps for the next ones.
fn first_headers(stream: u32) -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    for (index, value) in [(0x44, SHOULD_RATE_LIMIT), (0x41, "weir.test"), (0x5f, "application/grpc")] {
        block.extend([index, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    frame(HEADERS, END_HEADERS, stream, &block)
}

/// The headers of a later request: 14 bytes.
fn next_headers(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &[0x83, 0x86, 0xc0, 0xbf, 0xbe])
}

/// A weir that listens with this little memory.
fn start(limit: &MemoryLimit) -> (Weir, PolicyDirectory) {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let mut command = limit.limit(&serve(&policies.path(), &["--set", "runtime.cores=2"]));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    (Weir::from_process(Process::spawn(command)).expect("weir starts in little memory"), policies)
}

/// A connection of the attacker that has one answer. None if weir has closed it.
fn answered_once(address: SocketAddr, decision: &[u8]) -> Option<Raw> {
    let mut peer = Raw::connect_from(ATTACKER, address, WIDE);
    let body = frame(DATA, END_STREAM, 1, &message(decision));
    peer.send(&[first_headers(1), body].concat()).ok()?;
    peer.answered(1).then_some(peer)
}

/// 600 connections with 200 unfinished requests each ended a weir of 64 MiB, and 1,200 one of 128 MiB: HTTP/2 keeps 156 KB for them until the
/// connection ends, and no bound followed the memory of the process.
#[test]
fn connections_with_many_unfinished_requests_do_not_end_a_weir_of_little_memory() {
    const UNFINISHED: u32 = 200;
    for (mib, connections) in [(64, 600), (128, 1_200)] {
        let mut limit = MemoryLimit::mib(mib);
        if !limit.is_group() {
            eprintln!("no cgroup can be made here: the address space is limited to {ADDRESS_SPACE_MIB} MiB");
            limit = MemoryLimit::mib(ADDRESS_SPACE_MIB);
        }
        let (mut weir, _policies) = start(&limit);
        let mut honest = Client::connect(weir.grpc);
        assert!(honest.admits("shop", "user", "ann"));

        let decision = rls::request("shop", &[("user", "eve")]).encode_to_vec();
        let mut peers: Vec<Raw> = (0..connections).filter_map(|_| answered_once(weir.grpc, &decision)).collect();
        let unfinished: Vec<u8> = (1..=UNFINISHED).flat_map(|number| next_headers(2 * number + 1)).collect();
        for (number, peer) in peers.iter_mut().enumerate() {
            // weir may have closed it.
            let _ = peer.send(&unfinished);
            if number % 50 == 0 {
                assert!(honest.admits("shop", "user", "ann"), "{mib} MiB, beside {number} connections");
            }
        }
        let budget = (mib << 20) / 4;
        for number in 0..20 {
            assert!(honest.admits("shop", "user", "ann"), "{mib} MiB, afterwards, request {number}");
            assert!(
                Client::connect(weir.grpc).admits("shop", "user", "bob"),
                "{mib} MiB, afterwards, connection {number}"
            );
        }
        assert!(weir.is_running(), "a weir of {mib} MiB has ended");
        if limit.is_group() {
            let closed = || metric(weir.http, "weir_grpc_closed_total{reason=\"memory\"}").expect("a metric");
            until("the attacker to give way", PATIENCE, || (closed() > 0).then_some(()));
            let held = || metric(weir.http, "weir_grpc_connections_bytes").expect("a metric");
            until("the budget to hold", PATIENCE, || (held() <= budget).then_some(()));
        }
        drop(peers);
        drop(weir);
    }
}

/// HTTP/2 keeps the table of a burst as long as its connection lives.
#[test]
fn an_idle_connection_whose_burst_is_over_gets_a_goaway_and_loses_no_request() {
    const BURST: u32 = 100;
    /// More than half of the budget.
    const OTHERS: usize = 300;
    const LAST: u32 = 2 * BURST + 1;
    let limit = MemoryLimit::mib(64);
    if !limit.is_group() {
        eprintln!("no cgroup can be made here: nothing is tested");
        return;
    }
    let (weir, _policies) = start(&limit);
    let decision = rls::request("shop", &[("user", "ann")]).encode_to_vec();
    let mut bursty = Raw::connect(weir.grpc, WIDE);
    let body = |stream: u32| frame(DATA, END_STREAM, stream, &message(&decision));
    let streams = || (0..BURST).map(|number| 2 * number + 1);
    bursty.send(&[first_headers(1), body(1)].concat()).unwrap();
    assert!(bursty.answered(1));
    bursty.send(&streams().skip(1).flat_map(next_headers).collect::<Vec<u8>>()).unwrap();
    bursty.send(&streams().skip(1).flat_map(body).collect::<Vec<u8>>()).unwrap();
    assert!(bursty.answered(LAST - 2));
    let others: Vec<Raw> = (0..OTHERS).filter_map(|_| answered_once(weir.grpc, &decision)).collect();
    assert_eq!(others.len(), OTHERS, "the budget has room for all");
    // A request that crosses the GOAWAY is answered.
    let mut last_stream = None;
    while last_stream.is_none() {
        let frame = bursty.next().expect("a GOAWAY in time").expect("the connection stays until then");
        if frame.kind == GOAWAY {
            last_stream = frame.payload.first_chunk().map(|id: &[u8; 4]| u32::from_be_bytes(*id));
            assert_eq!(frame.payload[4..8], [0; 4], "no error");
        }
    }
    assert_eq!(last_stream, Some(u32::MAX >> 1), "all requests so far, and those on their way");
    bursty.send(&[next_headers(LAST), body(LAST)].concat()).unwrap();
    assert!(bursty.answered(LAST), "a request after the GOAWAY was lost");
    assert!(metric(weir.http, "weir_grpc_closed_total{reason=\"retired\"}").expect("a metric") > 0);
    drop(weir);
}

/// A policy file of up to `bytes` bytes that ends with the next whole entry.
fn filled(head: &str, bytes: usize, tail: &str, entry: impl Fn(usize) -> String) -> String {
    let mut text = head.to_owned();
    for number in 0.. {
        let entry = entry(number);
        if text.len() + entry.len() + tail.len() > bytes {
            break;
        }
        text.push_str(&entry);
    }
    text + tail
}

/// Files of 26 MB and of 300,000 descriptors ended a weir of 512 MiB, again at each start.
#[test]
fn policy_files_of_any_content_do_not_end_a_weir_of_little_memory() {
    for mib in [64, 128] {
        let limit = MemoryLimit::mib(mib);
        if !limit.is_group() {
            eprintln!("no cgroup can be made here: nothing is tested");
            return;
        }
        let bounds = Limits::within(mib << 20);
        let (size, rules) = (bounds.file_bytes, "domain: team\ndescriptors:\n");
        let file = |name: &str, text: String| (name.to_owned(), text);
        let unknown = |size| filled("domain: team\n", size, "", |number| format!("key{number}: x\n"));
        let marks = filled("domain: team\nunknown: [", size, "]\n", |number| format!("&a{number} [],"));
        let expressions = filled(rules, size, "", |number| {
            format!("  - {{key: k{number}, regex: '[a-z]{{1,90}}{number}[0-9]{{1,90}}', rate_limit: 1/s}}\n")
        });
        let files: Vec<(String, String)> = (0..bounds.total_bytes / size)
            .map(|number| {
                let text = filled(&format!("domain: team{number}\ndescriptors:\n"), size - 64, "", |number| {
                    format!("  - {{key: k{number}, rate_limit: {{requests_per_unit: {number}, unit: hour}}}}\n")
                });
                file(&format!("team{number}.yaml"), text)
            })
            .collect();
        let hostile = [
            ("unknown keys", vec![file("team.yaml", unknown(size))]),
            ("a large file of unknown keys", vec![file("team.yaml", unknown(26_000_000))]),
            ("lists with anchors", vec![file("team.yaml", marks)]),
            ("regular expressions", vec![file("team.yaml", expressions)]),
            ("descriptors", files),
        ];
        let (mut weir, mut policies) = start(&limit);
        let mut honest = Client::connect(weir.grpc);
        for (what, files) in hostile {
            let shop = || file("shop.yaml", POLICY.to_owned());
            let before = metric(weir.http, "weir_config_loads_total");
            policies.replace(&[files, vec![shop()]].concat());
            until(what, PATIENCE, || {
                assert!(weir.is_running(), "{what}: a weir of {mib} MiB has ended: {}", weir.written());
                let is_loaded = metric(weir.http, "weir_config_loads_total") > before;
                (is_loaded || !problems(&weir).is_empty()).then_some(())
            });
            assert!(honest.admits("shop", "user", "ann"), "{what}");
            policies.replace(&[shop()]);
            until("the good file alone", PATIENCE, || problems(&weir).is_empty().then_some(()));
        }
    }
}
