//! Requests whose `:authority` is no host name, as Envoy sends them for most clusters, frame by frame.

use prost::Message as _;

use crate::support::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, Raw, SHOULD_RATE_LIMIT, frame, message};
use crate::support::process::{LogLine, PolicyDirectory, Process, Weir};
use crate::support::rls;
use crate::support::served::metric;
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 4000000000, unit: year}}
";
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// A text in a header block.
fn text(octets: &[u8]) -> Vec<u8> {
    [&[u8::try_from(octets.len()).expect("a short text")], octets].concat()
}

/// A header block with this field for the authority.
fn block(authority: &[u8]) -> Vec<u8> {
    let path = text(SHOULD_RATE_LIMIT.as_bytes());
    [&b"\x83\x86\x04"[..], &path, authority, b"\x0f\x10", &text(b"application/grpc")].concat()
}

/// The rest of a request.
fn body(stream: u32) -> Vec<u8> {
    let request = rls::request("shop", &[("user", "ann")]).encode_to_vec();
    frame(DATA, END_STREAM, stream, &message(&request))
}

/// Whether the request of these header frames is answered with a decision.
fn is_decided(peer: &mut Raw, stream: u32, headers: &[u8]) -> bool {
    peer.send(&[headers, &body(stream)].concat()).expect("weir reads");
    peer.answered(stream)
}

#[test]
fn every_text_of_an_authority_is_accepted() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start::<&str>(&policies.path(), &[]);
    let mut peer = Raw::connect(weir.grpc, 1 << 20);
    let mut streams = (1..).step_by(2);
    let istio = b"outbound|8081||weir.default.svc.cluster.local";
    for authority in [&istio[..], b"/", b"%", b" ", b"a b", b"a/b", b"\"\\", b"[", b"a:b:c", b"\xff\xfe", &[b'|'; 126]]
    {
        for name in [&b"\x41"[..], b"\x01", b"\x11", b"\x40\x0a:authority", b"\x40\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f"]
        {
            let stream = streams.next().unwrap();
            let headers = frame(HEADERS, END_HEADERS, stream, &block(&[name, &text(authority)].concat()));
            assert!(is_decided(&mut peer, stream, &headers), "{authority:?} {name:?}");
        }
    }
    // The entry that was added last, by its index: it has the value that weir wrote.
    let stream = streams.next().unwrap();
    assert!(is_decided(&mut peer, stream, &frame(HEADERS, END_HEADERS, stream, &block(b"\xbe"))));
    // `|` in Huffman's code, which no host name has.
    let stream = streams.next().unwrap();
    assert!(is_decided(&mut peer, stream, &frame(HEADERS, END_HEADERS, stream, &block(b"\x41\x82\xff\x9f"))));

    let block = block(&[&b"\x41"[..], &text(istio)].concat());
    let stream = streams.next().unwrap();
    let payload = [&[7, 0, 0, 0, 0, 9], &block[..], &[0x41; 7]].concat();
    let padded = frame(HEADERS, END_HEADERS | PADDED | PRIORITY, stream, &payload);
    assert!(is_decided(&mut peer, stream, &padded), "padding and a priority");
    for cut in 0..=block.len() {
        let stream = streams.next().unwrap();
        let (one, other) = block.split_at(cut);
        let frames = [frame(HEADERS, 0, stream, one), frame(CONTINUATION, END_HEADERS, stream, other)].concat();
        assert!(is_decided(&mut peer, stream, &frames), "cut at {cut}");
    }
    let reset = metric(weir.http, "weir_grpc_reset_requests_total{code=\"protocol_error\"}");
    assert_eq!(reset, Some(0));
}

/// Lines of closed connections named each listener `grpc`, although the setting gave it another name.
#[test]
fn lines_and_counts_of_connections_have_the_name_of_their_listener() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let mut weir = Process::start(&policies.path(), &["--grpc", "mesh=127.0.0.1:0,other=127.0.0.1:0"], &[]);
    let [mesh, http] = ["mesh", "http"].map(|listener| weir.address_of(listener).expect("an address"));
    let mut peer = Raw::connect(mesh, 1 << 20);
    assert!(!is_decided(&mut peer, 1, &frame(HEADERS, END_HEADERS, 1, &block(b"\x41\x00"))), "an empty authority");
    // HEADERS of a stream of the server.
    let _ = peer.send(&frame(HEADERS, END_HEADERS, 2, &block(b"\x41\x00")));
    for message in ["HTTP/2 reset a request before it was decided", "closed a connection"] {
        let is_it = |line: &LogLine| {
            line.message() == Some(message) && line.field("listener").is_some_and(|listener| listener == "mesh")
        };
        assert!(weir.wait_for_log(0, PATIENCE, is_it), "{}", weir.written());
    }
    for listener in ["mesh", "other"] {
        let shed = format!("weir_connections_shed_total{{listener=\"{listener}\",reason=\"full\"}}");
        assert_eq!(metric(http, &shed), Some(0));
    }
    let taken = format!("edge={mesh}");
    let (status, written) = Process::start(&policies.path(), &["--grpc", &taken], &[]).finish();
    assert_eq!(status.code(), Some(1));
    assert!(written.contains(&format!("cannot listen on {mesh} for edge: ")), "{written}");
}

/// HTTP/2 reports such a request to nobody: its caller fails open, and weir showed nothing.
#[test]
fn a_request_that_http2_resets_is_counted_and_logged_with_its_peer() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start::<&str>(&policies.path(), &[]);
    let mut peer = Raw::connect(weir.grpc, 1 << 20);
    // An empty authority, written out and by its index.
    for (stream, authority) in [(1, &b"\x41\x00"[..]), (3, b"\x81")] {
        let headers = frame(HEADERS, END_HEADERS, stream, &block(authority));
        assert!(!is_decided(&mut peer, stream, &headers), "{authority:?}");
    }
    until("the resets in the metrics", PATIENCE, || {
        let reset = metric(weir.http, "weir_grpc_reset_requests_total{code=\"protocol_error\"}");
        (reset == Some(2)).then_some(())
    });
    let reset = |line: &LogLine| {
        line.message() == Some("HTTP/2 reset a request before it was decided")
            && line.raw().contains("protocol_error")
            && line.raw().contains("127.0.0.1")
    };
    assert!(weir.wait_for_log(0, PATIENCE, reset), "{}", weir.written());
    assert!(peer.send(&frame(6, 0, 0, b"12345678")).is_ok(), "the connection stays");
}
