//! What callers may send too much of: each bound at its edge and one past it, and bytes that are no request at all.

use std::io::Write as _;
use std::marker::PhantomData;
use std::net::SocketAddr;

use envoy_types::pb::google::protobuf::UInt64Value;
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Code, Status};

use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::rls::{self, Client, RateLimitRequest, RateLimitResponse};
use crate::support::served::Served;

const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 4294967295}
";

/// The bounds that hold unless settings say otherwise.
const DESCRIPTORS: usize = 64;
const ENTRIES: usize = 16;
const DOMAIN_BYTES: usize = 256;
const KEY_BYTES: usize = 4_096;
const VALUE_BYTES: usize = 65_536;
const REQUEST_BYTES: usize = 4_194_304;

fn ann() -> RateLimitRequest {
    rls::request("shop", &[("user", "ann")])
}

#[track_caller]
fn assert_edge(edge: &Result<RateLimitResponse, Status>, past: &Result<RateLimitResponse, Status>, text: &str) {
    assert!(edge.is_ok(), "{edge:?}");
    let status = past.as_ref().expect_err("one more is refused");
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, text));
}

/// Asks with `edge` of something, and with one more.
#[track_caller]
fn assert_bound(client: &mut Client, edge: usize, request: impl Fn(usize) -> RateLimitRequest, text: &str) {
    let at = client.ask(request(edge));
    let past = client.ask(request(edge + 1));
    assert_edge(&at, &past, text);
}

#[test]
fn each_default_bound_admits_its_edge_and_no_more() {
    let served = Served::start(POLICY, &[]);
    let mut client = Client::connect(served.at.grpc);
    let descriptors = |count: usize| {
        let mut request = ann();
        request.descriptors = vec![request.descriptors[0].clone(); count];
        request
    };
    let entries = |count: usize| rls::request("shop", &vec![("user", "ann"); count]);
    let domain = |bytes: usize| rls::request(&"d".repeat(bytes), &[("user", "ann")]);
    let key = |bytes: usize| rls::request("shop", &[("user", "ann"), (&"k".repeat(bytes), "")]);
    let value = |bytes: usize| rls::request("shop", &[("user", &"v".repeat(bytes))]);
    assert_bound(&mut client, DESCRIPTORS, descriptors, "descriptors: 65 or more descriptors, at most 64");
    assert_bound(&mut client, ENTRIES, entries, "descriptors[0].entries: 17 entries, at most 16");
    assert_bound(&mut client, DOMAIN_BYTES, domain, "domain: 257 bytes, at most 256");
    assert_bound(&mut client, KEY_BYTES, key, "descriptors[0].entries[1].key: 4097 bytes, at most 4096");
    assert_bound(&mut client, VALUE_BYTES, value, "descriptors[0].entries[0].value: 65537 bytes, at most 65536");
}

#[test]
fn hits_of_32_bits_are_taken_and_no_more() {
    let served = Served::start(POLICY, &[]);
    let mut client = Client::connect(served.at.grpc);
    let hits = |value: u64| {
        let mut request = ann();
        request.descriptors[0].hits_addend = Some(UInt64Value { value });
        request
    };
    let most = u64::from(u32::MAX);
    let (at, past) = (client.ask(hits(most)), client.ask(hits(most + 1)));
    assert_eq!(at.as_ref().expect("an answer").statuses[0].limit_remaining, 0);
    assert_edge(&at, &past, "descriptors[0].hits_addend: 4294967296 hits, at most 4294967295");
}

#[test]
fn bounds_that_are_set_hold_instead() {
    let settings = [
        "limits.descriptors=1",
        "limits.entries=1",
        "limits.domain_bytes=4",
        "limits.key_bytes=4",
        "limits.value_bytes=3",
        "limits.hits=2",
    ];
    let served = Served::start(POLICY, &settings);
    let mut client = Client::connect(served.at.grpc);
    let change = |change: &dyn Fn(&mut RateLimitRequest)| {
        let mut request = ann();
        request.hits_addend = 2;
        change(&mut request);
        request
    };
    let entry = ann().descriptors[0].entries[0].clone();
    for (request, text) in [
        (change(&|r| r.descriptors.push(r.descriptors[0].clone())), "descriptors: 2 descriptors, at most 1"),
        (change(&|r| r.descriptors[0].entries.push(entry.clone())), "descriptors[0].entries: 2 entries, at most 1"),
        (change(&|r| r.domain.push('s')), "domain: 5 bytes, at most 4"),
        (change(&|r| r.descriptors[0].entries[0].key.push('s')), "descriptors[0].entries[0].key: 5 bytes, at most 4"),
        (
            change(&|r| r.descriptors[0].entries[0].value.push('a')),
            "descriptors[0].entries[0].value: 4 bytes, at most 3",
        ),
        (change(&|r| r.hits_addend = 3), "hits_addend: 3 hits, at most 2"),
    ] {
        let edge = client.ask(change(&|_| {}));
        assert_edge(&edge, &client.ask(request), text);
    }
}

#[test]
fn a_request_may_have_its_bytes_and_no_more() {
    let served = Served::start(POLICY, &[]);
    let mut raw = Raw::connect(&served);
    let at = raw.ask(&padded(REQUEST_BYTES)).expect("an answer");
    assert_eq!(at.statuses.len(), 1);
    let past = raw.ask(&padded(REQUEST_BYTES + 1)).expect_err("one more is refused");
    assert_eq!(past.code(), Code::InvalidArgument);
    assert!(past.message().starts_with("request: "), "{past}");
    for number in ["4194304", "4194305"] {
        assert!(past.message().contains(number), "{past:?}");
    }
    assert!(raw.ask(&padded(100)).is_ok());
}

#[test]
fn a_request_of_two_million_empty_elements_costs_no_more_than_its_bytes() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start::<&str>(&policies.path(), &[]);
    let mut raw = Raw::to(weir.grpc);
    let head = b"\x0a\x04shop".to_vec();
    let mut descriptors = head.clone();
    descriptors.extend([0x12, 0].repeat(2_097_000));
    let mut entries = head;
    entries.push(0x12);
    prost::encoding::encode_varint(4_180_000, &mut entries);
    entries.extend([0x0a, 0].repeat(2_090_000));
    assert!(raw.ask(&ann().encode_to_vec()).is_ok());
    let before = weir.peak_memory_kib();
    for (bytes, text) in [
        (&descriptors, "descriptors: 65 or more descriptors, at most 64"),
        (&entries, "descriptors[0].entries: 65 or more entries, at most 16"),
    ] {
        let status = raw.ask(bytes).expect_err("too many");
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, text));
    }
    let body = format!(r#"{{"domain":"shop","descriptors":[{}{{}}]}}"#, "{},".repeat(1_398_000));
    let answer = http::post_json(weir.http, "/json", &body).expect("an answer");
    assert_eq!((answer.status, answer.body.as_str()), (400, "descriptors: 1398001 or more descriptors, at most 64\n"));
    // Each was held once, and its buffers grew by doubling.
    let grown = weir.peak_memory_kib() - before;
    assert!(grown < 32 * 1_024, "{grown} KiB");
}

/// A request of so many bytes, most of them in a field that nobody knows.
fn padded(bytes: usize) -> Vec<u8> {
    const UNKNOWN_FIELD: u32 = 1_000;
    let mut message = ann().encode_to_vec();
    let mut key = Vec::new();
    prost::encoding::encode_key(UNKNOWN_FIELD, prost::encoding::WireType::LengthDelimited, &mut key);
    let mut padding = bytes - message.len() - key.len();
    // The length is written in front, in as few bytes as it takes.
    padding -= (1..=5).find(|&n| prost::encoding::encoded_len_varint((padding - n) as u64) == n).expect("a length");
    message.extend(key);
    prost::encoding::encode_varint(padding as u64, &mut message);
    message.resize(message.len() + padding, 0);
    assert_eq!(message.len(), bytes);
    message
}

#[test]
fn bytes_that_are_no_request_are_invalid_and_harm_nobody() {
    let served = Served::start(POLICY, &[]);
    let mut raw = Raw::connect(&served);
    let mut cut = ann().encode_to_vec();
    cut.truncate(cut.len() - 1);
    // Field 1, a text of four bytes that are not UTF-8.
    let not_utf8 = [&[0x0a, 4][..], &[0xff, 0xfe, 0xc0, 0x80]].concat();
    // Descriptors in descriptors: a message deep enough to overflow the stack of a careless reader.
    let mut nested = Vec::new();
    for _ in 0..10_000 {
        let mut outer = vec![0x12];
        prost::encoding::encode_varint(nested.len() as u64, &mut outer);
        outer.append(&mut nested);
        nested = outer;
    }
    for bytes in [&cut[..], &not_utf8, &[0xff; 64], &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f], &nested] {
        let status = raw.ask(bytes).expect_err("no request");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    }
    let empty = raw.ask(&[]).expect_err("a request without a domain");
    assert_eq!((empty.code(), empty.message()), (Code::InvalidArgument, "rate limit domain must not be empty"));
    assert!(Client::connect(served.at.grpc).admits("shop", "user", "ann"));
}

#[test]
fn bytes_that_are_no_http_harm_nobody() {
    let served = Served::start(POLICY, &[]);
    for address in [served.at.grpc, served.at.http, served.at.admin] {
        let mut stream = http::connect(address).expect("a connection");
        // The other side may hang up before it has read everything.
        let _ = stream.write_all(&[0xff; 4_096]);
    }
    assert!(Client::connect(served.at.grpc).admits("shop", "user", "ann"));
    assert_eq!(http::get(served.at.http, "/healthz").expect("an answer").status, 200);
}

#[test]
fn json_has_the_same_bounds() {
    let served = Served::start(POLICY, &[]);
    let post = |body: &str| http::post_json(served.at.http, "/json", body).expect("an answer");
    let valued = |bytes: usize| {
        let value = "v".repeat(bytes);
        format!(r#"{{"domain":"shop","descriptors":[{{"entries":[{{"key":"user","value":"{value}"}}]}}]}}"#)
    };
    assert_eq!(post(&valued(VALUE_BYTES)).status, 200);
    let past = post(&valued(VALUE_BYTES + 1));
    let text = "descriptors[0].entries[0].value: 65537 bytes, at most 65536\n";
    assert_eq!((past.status, past.body.as_str()), (400, text));

    let padded = |bytes: usize| {
        let body = valued(1);
        let padding = " ".repeat(bytes - body.len());
        format!("{body}{padding}")
    };
    assert_eq!(post(&padded(REQUEST_BYTES)).status, 200);
    let past = post(&padded(REQUEST_BYTES + 1));
    assert_eq!((past.status, past.body.as_str()), (413, "body: more than 4194304 bytes\n"));
}

/// A client that sends bytes as they are.
struct Raw {
    runtime: tokio::runtime::Runtime,
    grpc: tonic::client::Grpc<tonic::transport::Channel>,
}

impl Raw {
    fn connect(served: &Served) -> Raw {
        Raw::to(served.at.grpc)
    }

    fn to(address: SocketAddr) -> Raw {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let channel = runtime.block_on(rls::channel(address));
        Raw { runtime, grpc: tonic::client::Grpc::new(channel) }
    }

    fn ask(&mut self, bytes: &[u8]) -> Result<RateLimitResponse, Status> {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
        self.runtime.block_on(async {
            self.grpc.ready().await.expect("a connection");
            let request = tonic::Request::new(bytes.to_vec());
            let answer = self.grpc.unary(request, path, Bytes(PhantomData::<RateLimitResponse>)).await;
            answer.map(tonic::Response::into_inner)
        })
    }
}

/// Bytes out, a message in.
struct Bytes<M>(PhantomData<M>);

impl<M: Message + Default + 'static> Codec for Bytes<M> {
    type Encode = Vec<u8>;
    type Decode = M;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Bytes(PhantomData)
    }

    fn decoder(&mut self) -> Self {
        Bytes(PhantomData)
    }
}

impl<M> Encoder for Bytes<M> {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(buffer, &bytes);
        Ok(())
    }
}

impl<M: Message + Default> Decoder for Bytes<M> {
    type Item = M;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<M>, Status> {
        M::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
