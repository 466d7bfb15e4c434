//! The messages of xDS held against an independent definition of the same API, the crate `envoy-types`.
//!
//! Each message is compared through bytes, written by one side and read by the other, with every field set to a value of its
//! own. What weir's messages do not have is not in theirs here.

use std::fmt::Debug;

use envoy_types::pb::envoy::config::core::v3 as their_core;
use envoy_types::pb::envoy::service::discovery::v3 as their_discovery;
use envoy_types::pb::google::protobuf as their_google;
use envoy_types::pb::google::rpc as their_rpc;
use envoy_types::pb::ratelimit::config::ratelimit::v3 as theirs;
use prost::Message;
use prost_types::value::Kind;
use weir_xds::proto as ours;

/// Reads as one type what was written as another, and back.
fn same<A, B>(one: &A, other: &B)
where
    A: Message + Default + PartialEq + Debug,
    B: Message + Default + PartialEq + Debug,
{
    assert_eq!(A::decode(other.encode_to_vec().as_slice()).expect("a message"), *one);
    assert_eq!(B::decode(one.encode_to_vec().as_slice()).expect("a message"), *other);
}

fn our_struct() -> prost_types::Struct {
    let value = prost_types::Value { kind: Some(Kind::StringValue("v".into())) };
    prost_types::Struct { fields: [("k".to_owned(), value)].into() }
}

fn their_struct() -> their_google::Struct {
    let value = their_google::Value { kind: Some(their_google::value::Kind::StringValue("v".into())) };
    their_google::Struct { fields: [("k".to_owned(), value)].into() }
}

#[test]
fn configurations_are_theirs() {
    for number in 0..=7 {
        let below = ours::RateLimitDescriptor { key: "below".into(), ..Default::default() };
        let descriptor = ours::RateLimitDescriptor {
            key: "key".into(),
            value: "value".into(),
            rate_limit: Some(ours::RateLimitPolicy {
                unit: number,
                requests_per_unit: 7,
                unlimited: true,
                name: "name".into(),
                replaces: vec![ours::RateLimitReplace { name: "other".into() }],
            }),
            descriptors: vec![below],
            shadow_mode: true,
            detailed_metric: true,
            quota_mode: true,
            metadata: Some(our_struct()),
        };
        let one = ours::RateLimitConfig { name: "n".into(), domain: "d".into(), descriptors: vec![descriptor] };
        let below = theirs::RateLimitDescriptor { key: "below".into(), ..Default::default() };
        let descriptor = theirs::RateLimitDescriptor {
            key: "key".into(),
            value: "value".into(),
            rate_limit: Some(theirs::RateLimitPolicy {
                unit: number,
                requests_per_unit: 7,
                unlimited: true,
                name: "name".into(),
                replaces: vec![theirs::RateLimitReplace { name: "other".into() }],
            }),
            descriptors: vec![below],
            shadow_mode: true,
            detailed_metric: true,
            quota_mode: true,
            metadata: Some(their_struct()),
        };
        let other = theirs::RateLimitConfig { name: "n".into(), domain: "d".into(), descriptors: vec![descriptor] };
        same(&one, &other);
        let names = [
            ours::RateLimitUnit::try_from(number).expect("a unit").as_str_name(),
            theirs::RateLimitUnit::try_from(number).expect("a unit").as_str_name(),
        ];
        assert_eq!(names[0], names[1]);
    }
}

#[test]
fn each_flag_has_its_own_number() {
    for flag in 0..3 {
        let on = [flag == 0, flag == 1, flag == 2];
        let one = ours::RateLimitDescriptor {
            shadow_mode: on[0],
            detailed_metric: on[1],
            quota_mode: on[2],
            ..Default::default()
        };
        let other = theirs::RateLimitDescriptor {
            shadow_mode: on[0],
            detailed_metric: on[1],
            quota_mode: on[2],
            ..Default::default()
        };
        same(&one, &other);
    }
}

#[test]
fn requests_and_responses_are_theirs() {
    let one = ours::DiscoveryRequest {
        version_info: "1".into(),
        node: Some(ours::Node {
            id: "id".into(),
            cluster: "cluster".into(),
            metadata: Some(our_struct()),
            user_agent_name: "agent".into(),
        }),
        resource_names: vec!["name".into()],
        type_url: "type".into(),
        response_nonce: "nonce".into(),
        error_detail: Some(ours::Status { code: 3, message: "message".into() }),
    };
    let other = their_discovery::DiscoveryRequest {
        version_info: "1".into(),
        node: Some(their_core::Node {
            id: "id".into(),
            cluster: "cluster".into(),
            metadata: Some(their_struct()),
            user_agent_name: "agent".into(),
            ..Default::default()
        }),
        resource_names: vec!["name".into()],
        type_url: "type".into(),
        response_nonce: "nonce".into(),
        error_detail: Some(their_rpc::Status { code: 3, message: "message".into(), ..Default::default() }),
        ..Default::default()
    };
    same(&one, &other);

    let one = ours::DiscoveryResponse {
        version_info: "1".into(),
        resources: vec![prost_types::Any { type_url: "type".into(), value: vec![7] }],
        type_url: "type".into(),
        nonce: "nonce".into(),
    };
    let other = their_discovery::DiscoveryResponse {
        version_info: "1".into(),
        resources: vec![their_google::Any { type_url: "type".into(), value: vec![7] }],
        type_url: "type".into(),
        nonce: "nonce".into(),
        ..Default::default()
    };
    same(&one, &other);
}
