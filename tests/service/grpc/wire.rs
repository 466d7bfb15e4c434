//! weir's wire format held against an independent definition of the same API, the crate `envoy-types`.
//!
//! Both sides are compared as Rust values, through bytes that the other side wrote, so a wrong field
//! number, type or enum value shows as a difference. Messages are written out in full, without `..`: a field
//! that either side gains stops this file from compiling until it is looked at. Nothing here decides
//! anything; the calls at the end reach a service that gives a fixed answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use envoy_types::pb::envoy::config::core::v3 as their_core;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as their_descriptor;
use envoy_types::pb::envoy::service::ratelimit::v3 as theirs;
use envoy_types::pb::envoy::r#type::v3 as their_type;
use envoy_types::pb::google::protobuf as their_google;
use proptest::collection::{hash_map, vec};
use proptest::option;
use proptest::prelude::{Strategy, any, prop_assert_eq, prop_assume, prop_compose, proptest};
use prost::Message;
use tonic::codegen::{Service, http};
use tonic::{Request, Response, Status};
use weir_rls::proto as ours;
use weir_rls::proto::rate_limit_service_client::RateLimitServiceClient;
use weir_rls::proto::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};

/// The request path that Envoy calls. Nobody's generated code is asked for it.
const METHOD_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Makes a request and a response of one definition, from the modules that have its types.
macro_rules! messages {
    ($request:ident, $response:ident: $api:ident, $descriptor:ident, $unit:ident, $header:ident, $google:ident $(, $newer:ident)?) => {
        /// A request with every field set, each to a value of its own.
        fn $request() -> $api::RateLimitRequest {
            use $descriptor::rate_limit_descriptor::{Entry, RateLimitOverride};
            $api::RateLimitRequest {
                domain: "shop".into(),
                descriptors: vec![
                    $descriptor::RateLimitDescriptor {
                        entries: vec![
                            Entry { key: "user".into(), value: "ann".into() },
                            Entry { key: "path".into(), value: "/ü".into() },
                        ],
                        limit: Some(RateLimitOverride {
                            requests_per_unit: 7,
                            unit: $unit::RateLimitUnit::Day.into(),
                            $($newer: None,)?
                        }),
                        hits_addend: Some($google::UInt64Value { value: u64::MAX }),
                        is_negative_hits: true,
                    },
                    // An addend of 0 that is present differs from one that is absent.
                    $descriptor::RateLimitDescriptor {
                        entries: vec![],
                        limit: None,
                        hits_addend: Some($google::UInt64Value { value: 0 }),
                        is_negative_hits: false,
                    },
                ],
                hits_addend: u32::MAX,
            }
        }

        /// A response with every field set, each to a value of its own.
        fn $response() -> $api::RateLimitResponse {
            use $api::rate_limit_response::quota::ExpirationSpecifier;
            use $api::rate_limit_response::rate_limit::Unit;
            use $api::rate_limit_response::{Code, DescriptorStatus, Quota, RateLimit};
            use $google::value::Kind;
            use $google::{Duration, ListValue, Struct, Timestamp, Value};
            let value = |kind| Value { kind: Some(kind) };
            $api::RateLimitResponse {
                overall_code: Code::OverLimit.into(),
                statuses: vec![DescriptorStatus {
                    code: Code::Ok.into(),
                    current_limit: Some(RateLimit {
                        requests_per_unit: 11,
                        unit: Unit::Week.into(),
                        name: "weekly".into(),
                        $($newer: None,)?
                    }),
                    limit_remaining: 12,
                    duration_until_reset: Some(Duration { seconds: 13, nanos: 14 }),
                    quota: Some(Quota {
                        requests: 15,
                        id: "one".into(),
                        expiration_specifier: Some(ExpirationSpecifier::ValidUntil(Timestamp {
                            seconds: 16,
                            nanos: 17,
                        })),
                    }),
                }],
                response_headers_to_add: vec![$header::HeaderValue {
                    key: "x-response".into(),
                    value: "a".into(),
                    raw_value: vec![0xff, 1],
                }],
                request_headers_to_add: vec![$header::HeaderValue {
                    key: "x-request".into(),
                    value: "b".into(),
                    raw_value: vec![0xfe, 2],
                }],
                raw_body: vec![0xfd, 3],
                dynamic_metadata: Some(Struct {
                    fields: HashMap::from([(
                        "all".into(),
                        value(Kind::ListValue(ListValue {
                            values: vec![
                                value(Kind::NullValue(0)),
                                value(Kind::NumberValue(1.5)),
                                value(Kind::StringValue("s".into())),
                                value(Kind::BoolValue(true)),
                                value(Kind::StructValue(Struct { fields: HashMap::new() })),
                            ],
                        })),
                    )]),
                }),
                quota: Some(Quota {
                    requests: 18,
                    id: "all".into(),
                    expiration_specifier: Some(ExpirationSpecifier::ValidUntil(Timestamp { seconds: 19, nanos: 20 })),
                }),
            }
        }
    };
}

// The crate does not have the field of Envoy 1.40 yet.
messages!(our_request, our_response: ours, ours, ours, ours, pbjson_types, unit_multiplier);
messages!(their_request, their_response: theirs, their_descriptor, their_type, their_core, their_google);

/// Reads as one type what the other has written.
#[track_caller]
fn carried<T: Message + Default>(message: &impl Message) -> T {
    T::decode(message.encode_to_vec().as_slice()).unwrap()
}

#[test]
fn every_field_of_a_request_is_the_same_on_the_wire() {
    assert_eq!(carried::<theirs::RateLimitRequest>(&our_request()), their_request());
    assert_eq!(carried::<ours::RateLimitRequest>(&their_request()), our_request());
}

#[test]
fn every_field_of_a_response_is_the_same_on_the_wire() {
    assert_eq!(carried::<theirs::RateLimitResponse>(&our_response()), their_response());
    assert_eq!(carried::<ours::RateLimitResponse>(&their_response()), our_response());
}

#[test]
fn enum_values_have_the_same_names_and_numbers() {
    use ours::rate_limit_response as our;
    use theirs::rate_limit_response as their;

    // The name of each number on both sides, and none past the last.
    const UNITS: [&str; 7] = ["UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"];
    for number in -10..100_i32 {
        let at = usize::try_from(number).unwrap_or(usize::MAX);

        let expected = ["UNKNOWN", "OK", "OVER_LIMIT"].get(at).copied();
        assert_eq!(our::Code::try_from(number).ok().map(|code| code.as_str_name()), expected);
        assert_eq!(their::Code::try_from(number).ok().map(|code| code.as_str_name()), expected);

        let expected = UNITS.get(at).copied();
        assert_eq!(ours::RateLimitUnit::try_from(number).ok().map(|unit| unit.as_str_name()), expected);
        assert_eq!(their_type::RateLimitUnit::try_from(number).ok().map(|unit| unit.as_str_name()), expected);

        // Limits in answers have one more.
        let expected = if number == 7 { Some("WEEK") } else { expected };
        assert_eq!(our::rate_limit::Unit::try_from(number).ok().map(|unit| unit.as_str_name()), expected);
        assert_eq!(their::rate_limit::Unit::try_from(number).ok().map(|unit| unit.as_str_name()), expected);
    }
}

#[test]
fn an_enum_value_without_a_name_arrives_as_its_number() {
    let mut request = their_request();
    request.descriptors[0].limit.as_mut().unwrap().unit = 99;
    let request: ours::RateLimitRequest = carried(&request);
    assert_eq!(request.descriptors[0].limit.unwrap().unit, 99);
}

/// A field of each wire type, with numbers that no message of this API has.
fn unknown_fields() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, wire_type, payload) in [
        (1_000, 0, &[0x96, 0x01][..]),
        (1_001, 1, &[1, 2, 3, 4, 5, 6, 7, 8]),
        (1_002, 2, &[3, b'a', b'b', b'c']),
        (1_003, 5, &[1, 2, 3, 4]),
    ] {
        prost::encoding::encode_varint((number << 3) | wire_type, &mut bytes);
        bytes.extend_from_slice(payload);
    }
    bytes
}

/// The encoded message with unknown fields before and after what it holds.
fn with_unknown_fields(message: &impl Message) -> Vec<u8> {
    [unknown_fields(), message.encode_to_vec(), unknown_fields()].concat()
}

/// A field of bytes, text or an encoded message.
fn field(number: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint((number << 3) | 2, &mut bytes);
    prost::encoding::encode_varint(payload.len() as u64, &mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn fields_of_a_later_version_are_skipped() {
    let request = ours::RateLimitRequest::decode(with_unknown_fields(&their_request()).as_slice());
    assert_eq!(request.unwrap(), our_request());
    let response = ours::RateLimitResponse::decode(with_unknown_fields(&their_response()).as_slice());
    assert_eq!(response.unwrap(), our_response());

    // The same inside a descriptor, its entries and its limit.
    let mut full = their_request().descriptors.remove(0);
    let mut descriptor = unknown_fields();
    for entry in full.entries.drain(..) {
        descriptor.extend(field(1, &with_unknown_fields(&entry)));
    }
    descriptor.extend(field(2, &with_unknown_fields(&full.limit.take().unwrap())));
    descriptor.extend(full.encode_to_vec());
    let request = ours::RateLimitRequest::decode(field(2, &descriptor).as_slice()).unwrap();
    assert_eq!(request.descriptors, our_request().descriptors[..1]);
}

#[test]
fn what_is_cut_short_or_no_utf8_is_an_error() {
    let bytes = their_request().encode_to_vec();
    let domain = field(1, b"shop").len();
    // Inside the domain and inside the first descriptor: between fields, a prefix is a request of its own.
    for cut in [1, domain - 1, domain + 1, domain + 5] {
        assert!(ours::RateLimitRequest::decode(&bytes[..cut]).is_err(), "{cut}");
    }
    assert!(ours::RateLimitRequest::decode(&bytes[..domain]).is_ok());
    assert!(ours::RateLimitRequest::decode(field(1, &[0xff, 0xfe]).as_slice()).is_err());
}

prop_compose! {
    fn any_descriptor()(
        entries in vec((".{0,8}", ".{0,8}"), 0..4),
        limit in option::of((any::<u32>(), any::<i32>())),
        hits_addend in option::of(any::<u64>()),
        is_negative_hits in any::<bool>(),
    ) -> ours::RateLimitDescriptor {
        use ours::rate_limit_descriptor::{Entry, RateLimitOverride};
        ours::RateLimitDescriptor {
            entries: entries.into_iter().map(|(key, value)| Entry { key, value }).collect(),
            // The crate does not have the multiplier yet.
            limit: limit.map(|(requests_per_unit, unit)| RateLimitOverride {
                requests_per_unit,
                unit,
                unit_multiplier: None,
            }),
            hits_addend: hits_addend.map(|value| pbjson_types::UInt64Value { value }),
            is_negative_hits,
        }
    }
}

prop_compose! {
    fn any_request()(
        domain in ".{0,8}",
        descriptors in vec(any_descriptor(), 0..4),
        hits_addend in any::<u32>(),
    ) -> ours::RateLimitRequest {
        ours::RateLimitRequest { domain, descriptors, hits_addend }
    }
}

prop_compose! {
    fn any_quota()(
        requests in any::<u32>(),
        id in ".{0,8}",
        valid_until in option::of((any::<i64>(), any::<i32>())),
    ) -> ours::rate_limit_response::Quota {
        use ours::rate_limit_response::quota::ExpirationSpecifier;
        let instant = |(seconds, nanos)| pbjson_types::Timestamp { seconds, nanos };
        ours::rate_limit_response::Quota {
            requests,
            id,
            expiration_specifier: valid_until.map(instant).map(ExpirationSpecifier::ValidUntil),
        }
    }
}

prop_compose! {
    fn any_status()(
        code in any::<i32>(),
        current_limit in option::of((any::<u32>(), any::<i32>(), ".{0,8}")),
        limit_remaining in any::<u32>(),
        duration_until_reset in option::of((any::<i64>(), any::<i32>())),
        quota in option::of(any_quota()),
    ) -> ours::rate_limit_response::DescriptorStatus {
        use ours::rate_limit_response::{DescriptorStatus, RateLimit};
        DescriptorStatus {
            code,
            current_limit: current_limit
                .map(|(requests_per_unit, unit, name)| RateLimit {
                    requests_per_unit,
                    unit,
                    name,
                    unit_multiplier: None,
                }),
            limit_remaining,
            duration_until_reset: duration_until_reset
                .map(|(seconds, nanos)| pbjson_types::Duration { seconds, nanos }),
            quota,
        }
    }
}

fn any_headers() -> impl Strategy<Value = Vec<ours::HeaderValue>> {
    let header = (".{0,8}", ".{0,8}", vec(any::<u8>(), 0..8)).prop_map(|(key, value, raw_value)| ours::HeaderValue {
        key,
        value,
        raw_value,
    });
    vec(header, 0..3)
}

prop_compose! {
    fn any_response()(
        overall_code in any::<i32>(),
        statuses in vec(any_status(), 0..4),
        response_headers_to_add in any_headers(),
        request_headers_to_add in any_headers(),
        raw_body in vec(any::<u8>(), 0..16),
        metadata in option::of(hash_map(".{0,8}", ".{0,8}", 0..4)),
        quota in option::of(any_quota()),
    ) -> ours::RateLimitResponse {
        let text = |(key, value): (String, String)| (key, pbjson_types::Value::from(value));
        ours::RateLimitResponse {
            overall_code,
            statuses,
            response_headers_to_add,
            request_headers_to_add,
            raw_body,
            dynamic_metadata: metadata.map(|fields| fields.into_iter().map(text).collect()),
            quota,
        }
    }
}

proptest! {
    #[test]
    fn any_request_survives_the_other_side(request in any_request()) {
        let other: theirs::RateLimitRequest = carried(&request);
        prop_assert_eq!(carried::<ours::RateLimitRequest>(&other), request);
    }

    #[test]
    fn any_response_survives_the_other_side(response in any_response()) {
        let other: theirs::RateLimitResponse = carried(&response);
        prop_assert_eq!(carried::<ours::RateLimitResponse>(&other), response);
    }

    /// A request with one byte changed is taken or refused as the other side does it, and never a panic.
    #[test]
    fn a_damaged_request_is_judged_alike(request in any_request(), at in any::<usize>(), byte in any::<u8>()) {
        // These bytes begin the field 3, which the crate does not have in a limit.
        prop_assume!(!(0x18..=0x1f).contains(&byte));
        let mut bytes = request.encode_to_vec();
        bytes.push(0);
        let at = at % bytes.len();
        bytes[at] = byte;
        let ours = ours::RateLimitRequest::decode(bytes.as_slice());
        let theirs = theirs::RateLimitRequest::decode(bytes.as_slice());
        prop_assert_eq!(ours.ok(), theirs.ok().map(|theirs| carried(&theirs)));
    }
}

/// Our service, with an answer that is always the same, to the one request that it expects.
struct Fixed;

#[tonic::async_trait]
impl RateLimitService for Fixed {
    async fn should_rate_limit(
        &self,
        request: Request<ours::RateLimitRequest>,
    ) -> Result<Response<ours::RateLimitResponse>, Status> {
        assert_eq!(request.into_inner(), our_request());
        Ok(Response::new(our_response()))
    }
}

/// The same in the other definition.
struct TheirFixed;

#[tonic::async_trait]
impl theirs::rate_limit_service_server::RateLimitService for TheirFixed {
    async fn should_rate_limit(
        &self,
        request: Request<theirs::RateLimitRequest>,
    ) -> Result<Response<theirs::RateLimitResponse>, Status> {
        assert_eq!(request.into_inner(), their_request());
        Ok(Response::new(their_response()))
    }
}

/// Passes calls on and keeps the paths that were called.
#[derive(Clone)]
struct Paths<S> {
    inner: S,
    called: Arc<Mutex<Vec<String>>>,
}

impl<S> Paths<S> {
    fn new(inner: S) -> Self {
        Self { inner, called: Arc::default() }
    }
}

impl<S: Service<http::Request<B>>, B> Service<http::Request<B>> for Paths<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        self.called.lock().unwrap().push(request.uri().path().to_owned());
        self.inner.call(request)
    }
}

#[tokio::test]
async fn their_client_calls_our_service() {
    let service = Paths::new(RateLimitServiceServer::new(Fixed));
    let called = service.called.clone();
    let mut client = theirs::rate_limit_service_client::RateLimitServiceClient::new(service);
    let response = client.should_rate_limit(their_request()).await.unwrap();
    assert_eq!(response.into_inner(), their_response());
    assert_eq!(*called.lock().unwrap(), [METHOD_PATH]);
}

#[tokio::test]
async fn our_client_calls_their_service() {
    let service = theirs::rate_limit_service_server::RateLimitServiceServer::new(TheirFixed);
    let service = Paths::new(service);
    let called = service.called.clone();
    let mut client = RateLimitServiceClient::new(service);
    let response = client.should_rate_limit(our_request()).await.unwrap();
    assert_eq!(response.into_inner(), our_response());
    assert_eq!(*called.lock().unwrap(), [METHOD_PATH]);
}

#[test]
fn the_service_is_routed_by_the_name_that_envoy_calls() {
    let name = <RateLimitServiceServer<Fixed> as tonic::server::NamedService>::NAME;
    assert_eq!(METHOD_PATH, format!("/{name}/ShouldRateLimit"));
}

/// The file that reflection gives for a name.
async fn reflected(symbol: &str) -> Result<Vec<u8>, Status> {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

    let server = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(ours::FILE_DESCRIPTOR_SET)
        .build_v1()
        .unwrap();
    let question = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(symbol.to_owned())),
    };
    let mut client = ServerReflectionClient::new(server);
    let mut answers = client.server_reflection_info(tokio_stream::once(question)).await?.into_inner();
    match answers.message().await?.unwrap().message_response.unwrap() {
        MessageResponse::FileDescriptorResponse(mut files) => Ok(files.file_descriptor_proto.remove(0)),
        other => panic!("no file for {symbol}: {other:?}"),
    }
}

#[tokio::test]
async fn the_descriptor_set_is_whole() {
    for symbol in [
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit",
        "envoy.service.ratelimit.v3.RateLimitRequest",
        "envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus",
        "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor",
        "envoy.config.core.v3.HeaderValue",
        "envoy.type.v3.RateLimitUnit",
        // A client that reflects needs what the files import as well.
        "google.protobuf.Duration",
        "google.protobuf.Struct",
        "google.protobuf.Timestamp",
        "google.protobuf.UInt64Value",
    ] {
        let file = reflected(symbol).await.unwrap();
        assert!(!file.is_empty(), "{symbol}");
    }
    let unknown = reflected("envoy.service.ratelimit.v2.RateLimitService").await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
}
