//! Windows of several units, which Envoy's API has since 1.40, and fields of limits that are newer than weir.
//!
//! The messages are weir's own: envoy-types does not have these fields yet. tests/repository/api.rs compares weir's messages with Envoy's.

use serde_json::{Value, json};
use tonic::Code;
use tonic::codegen::http::uri::PathAndQuery;
use tonic_prost::ProstCodec;
use weir_rls::proto::rate_limit_descriptor::{Entry, RateLimitOverride};
use weir_rls::proto::rate_limit_response::RateLimit;
use weir_rls::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

use super::{OK, POLICY, block_on};
use crate::support::process::{LogLine, Weir};
use crate::support::seen::{metric, warns};
use crate::support::served::Served;
use crate::support::wait::PATIENCE;
use crate::support::{http, rls};

const SECOND: i32 = 1;
const DAY: i32 = 4;

/// A limit with the field 9, which no version has.
#[derive(Clone, PartialEq, prost::Message)]
struct LaterLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(uint32, tag = "9")]
    later: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LaterDescriptor {
    #[prost(message, optional, tag = "2")]
    limit: Option<LaterLimit>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LaterRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<LaterDescriptor>,
}

fn ask<M: prost::Message + 'static>(
    address: std::net::SocketAddr,
    request: M,
) -> Result<RateLimitResponse, tonic::Status> {
    block_on(async {
        let mut grpc = tonic::client::Grpc::new(rls::channel(address).await);
        grpc.ready().await.expect("a connection");
        let path = PathAndQuery::from_static("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        let codec = ProstCodec::<M, RateLimitResponse>::default();
        grpc.unary(tonic::Request::new(request), path, codec).await.map(tonic::Response::into_inner)
    })
}

fn with_limit(unit: i32, count: u32) -> RateLimitRequest {
    let limit = RateLimitOverride { requests_per_unit: 1, unit, unit_multiplier: Some(count.into()) };
    let entries = vec![Entry { key: "user".into(), value: "ann".into() }];
    let descriptor = RateLimitDescriptor { entries, limit: Some(limit), ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "shop".into(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// A limit of one in 30 days of the request admitted one a day: weir dropped the field of Envoy 1.40.
#[test]
fn a_limit_of_one_in_thirty_days_of_the_request_is_not_one_a_day() {
    for (setting, unit, unit_multiplier, name) in [("off", 0, None, "1728000s"), ("on", DAY, Some(20), "")] {
        let served = Served::start(POLICY, &[&format!("response.unit_multiplier={setting}")]);
        let answer = ask(served.at.grpc, with_limit(DAY, 20)).expect("an answer");
        let multiplier = unit_multiplier.map(u32::into);
        let expected = RateLimit { requests_per_unit: 1, unit, name: name.into(), unit_multiplier: multiplier };
        assert_eq!(answer.statuses[0].current_limit, Some(expected));
        let again = ask(served.at.grpc, with_limit(DAY, 20)).expect("an answer");
        assert_ne!(again.overall_code, OK);
        // Another limit, with a state of its own.
        assert_eq!(ask(served.at.grpc, with_limit(DAY, 1)).expect("an answer").overall_code, OK);

        let of_request = json!({"requestsPerUnit": 1, "unit": "DAY", "unitMultiplier": 20});
        let entries = json!([{"key": "user", "value": "ann"}]);
        let body = json!({"domain": "shop", "descriptors": [{"entries": entries, "limit": of_request}]});
        let answer = http::post_json(served.at.http, "/json", &body.to_string()).expect("an answer");
        assert_eq!(answer.status, 429, "the same state: {}", answer.body);
        let shown: Value = serde_json::from_str(&answer.body).expect("JSON");
        let named = json!({"requestsPerUnit": 1, "name": name});
        assert_eq!(shown["statuses"][0]["currentLimit"], if setting == "on" { of_request } else { named });
    }
}

#[test]
fn a_window_that_no_limit_can_have_is_refused() {
    let served = Served::start(POLICY, &[]);
    let field = "descriptors[0].limit.unit_multiplier";
    for (count, problem) in
        [(0, "0 units, at least 1"), (367, "a window of 367 times 1 DAY is too long, at most 366 days")]
    {
        let status = ask(served.at.grpc, with_limit(DAY, count)).expect_err("a refusal");
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, &*format!("{field}: {problem}")));
        let limit = json!({"requestsPerUnit": 1, "unit": "DAY", "unit_multiplier": count});
        let body = json!({"domain": "shop", "descriptors": [{"limit": limit}]});
        let answer = http::post_json(served.at.http, "/json", &body.to_string()).expect("an answer");
        assert_eq!(answer.status, 400);
        assert!(answer.body.contains(problem), "{}", answer.body);
    }
}

#[test]
fn a_field_of_a_limit_that_weir_does_not_know_is_counted_and_logged_once_a_minute() {
    let policies = tempfile::tempdir().expect("a folder");
    std::fs::write(policies.path().join("shop.yaml"), POLICY).expect("a policy");
    let weir = Weir::start::<&str>(policies.path(), &[]);
    let series = "weir_unknown_limit_fields_total{source=\"grpc\"}";
    ask(weir.grpc, with_limit(SECOND, 2)).expect("an answer");
    assert_eq!(metric(&weir, series), 0);
    let limit = Some(LaterLimit { requests_per_unit: 7, unit: DAY, later: 1 });
    let request = LaterRequest { domain: "shop".into(), descriptors: vec![LaterDescriptor { limit }] };
    for count in 1..=5 {
        let answer = ask(weir.grpc, request.clone()).expect("an answer");
        assert_eq!(answer.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit), Some(7));
        assert_eq!(metric(&weir, series), count);
    }
    let is_about_it = |line: &LogLine| warns(line, "\"field\":9");
    assert!(weir.wait_for_log(0, PATIENCE, is_about_it), "{}", weir.written());
    assert_eq!(weir.count_in_log(is_about_it), 1);
}

/// [mt-10] [mt-11]
#[test]
fn a_limit_of_the_request_gives_its_numbers_to_the_rule_and_one_without_effect_is_counted() {
    let policies = tempfile::tempdir().expect("a folder");
    let policy = "domain: shop\ndescriptors:\n- {key: user, request_limit: numbers, rate_limit: {rate: 5/h, algorithm: gcra, name: plan}}\n\
                  - {key: path, request_limit: ignored, rate_limit: 5/h}\n";
    std::fs::write(policies.path().join("shop.yaml"), policy).expect("a policy");
    let weir = Weir::start::<&str>(policies.path(), &[]);
    let mut shown = Vec::new();
    for key in ["user", "path"] {
        let limit = json!({"requestsPerUnit": 30, "unit": "MINUTE"});
        let request =
            json!({"domain": "shop", "descriptors": [{"entries": [{"key": key, "value": "a"}], "limit": limit}]});
        let answer = ask(weir.grpc, rls::request_from_json(&request).expect("a request")).expect("an answer");
        let limit = answer.statuses[0].current_limit.clone().expect("a limit");
        shown.push((limit.requests_per_unit, limit.name, answer.statuses[0].limit_remaining));
    }
    assert_eq!(shown, [(30, "plan".to_owned(), 29), (5, String::new(), 4)]);
    assert_eq!(metric(&weir, "weir_unused_request_limits_total{reason=\"ignored\"}"), 1);
    assert_eq!(metric(&weir, "weir_unused_request_limits_total{reason=\"bound\"}"), 0);
}

/// "3 of 4 per minute left", `"unit":"MINUTE"` and `q=4;w=60`: a limit of 4 requests in flight was shown as a rate.
#[test]
fn four_requests_in_flight_are_not_four_a_minute() {
    let policy = "domain: shop\ndescriptors:\n  \
                  - {key: user, rate_limit: {algorithm: concurrency, requests_per_unit: 4, window: 60s}}\n";
    for setting in ["off", "on"] {
        let multiplier = format!("response.unit_multiplier={setting}");
        let served = Served::start(policy, &["response.ietf_headers=on", &multiplier]);
        let answer = ask(served.at.grpc, rls_request()).expect("an answer");
        let expected = RateLimit { requests_per_unit: 4, name: "in flight".into(), ..RateLimit::default() };
        assert_eq!(answer.statuses[0].current_limit, Some(expected));
        let headers = answer.response_headers_to_add.iter().map(|header| (&*header.key, &*header.value));
        let expected = [("RateLimit", r#""user";r=3"#), ("RateLimit-Policy", r#""user";q=4;qu="concurrent-requests""#)];
        assert_eq!(headers.collect::<Vec<_>>(), expected);
        let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
        let answer = http::post_json(served.at.http, "/json", body).expect("an answer");
        let shown: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(shown["statuses"][0]["currentLimit"], json!({"requestsPerUnit": 4, "name": "in flight"}));
    }
}

fn rls_request() -> RateLimitRequest {
    let mut request = with_limit(SECOND, 1);
    request.descriptors[0].limit = None;
    request
}
