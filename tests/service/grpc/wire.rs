//! weir's wire format held against an independent definition of the same API, the crate `envoy-types`: what one side writes, the
//! other reads. Not in here: that each field is there (tests/repository/api.rs), and calls, which all tests make with the client of
//! that crate.

use envoy_types::pb::envoy::service::ratelimit::v3 as theirs;
use proptest::collection::{hash_map, vec};
use proptest::option;
use proptest::prelude::{Strategy, any, prop_assert_eq, prop_assume, prop_compose, proptest};
use prost::Message;
use tonic::Status;
use weir_rls::proto as ours;

/// Reads as one type what the other has written.
#[track_caller]
fn carried<T: Message + Default>(message: &impl Message) -> T {
    T::decode(message.encode_to_vec().as_slice()).unwrap()
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

    /// A request with one byte changed, or cut short, is taken or refused as the other side does it, and never a panic.
    #[test]
    fn a_damaged_request_is_judged_alike(request in any_request(), at in any::<usize>(), byte in any::<u8>()) {
        // These bytes begin the field 3, which the crate does not have in a limit.
        prop_assume!(!(0x18..=0x1f).contains(&byte));
        let mut bytes = request.encode_to_vec();
        bytes.push(0);
        let at = at % bytes.len();
        let cut = bytes[..at].to_vec();
        bytes[at] = byte;
        for bytes in [bytes, cut] {
            let ours = ours::RateLimitRequest::decode(bytes.as_slice());
            let theirs = theirs::RateLimitRequest::decode(bytes.as_slice());
            prop_assert_eq!(ours.ok(), theirs.ok().map(|theirs| carried(&theirs)));
        }
    }

    #[test]
    fn fields_of_a_later_version_are_skipped(request in any_request(), response in any_response()) {
        let read = ours::RateLimitRequest::decode(with_unknown_fields(&request).as_slice());
        prop_assert_eq!(read.unwrap(), request.clone());
        let read = ours::RateLimitResponse::decode(with_unknown_fields(&response).as_slice());
        prop_assert_eq!(read.unwrap(), response);
        // The same inside a descriptor, its entries and its limit.
        for descriptor in request.descriptors {
            let mut rest = descriptor.clone();
            let mut newer = unknown_fields();
            for entry in rest.entries.drain(..) {
                newer.extend(field(1, &with_unknown_fields(&entry)));
            }
            if let Some(limit) = rest.limit.take() {
                newer.extend(field(2, &with_unknown_fields(&limit)));
            }
            newer.extend(rest.encode_to_vec());
            let read = ours::RateLimitRequest::decode(field(2, &newer).as_slice()).unwrap();
            prop_assert_eq!(read.descriptors, [descriptor]);
        }
    }
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
