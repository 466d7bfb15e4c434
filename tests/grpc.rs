//! The gRPC listener as clients see it: decisions, refusals, health, reflection, and connections over the runtimes.

mod support;

use std::future::Future;
use std::net::{SocketAddr, TcpListener};

use support::rls::{self, Client};
use support::served::Served;
use support::wait::{PATIENCE, until};
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response;
use envoy_types::pb::google::protobuf::UInt64Value;

const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: tenant
    rate_limit: {unit: week, requests_per_unit: 5, name: weekly}
  - key: staff
    rate_limit: {unlimited: true}
";

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

const OK: i32 = rate_limit_response::Code::Ok as i32;
const OVER_LIMIT: i32 = rate_limit_response::Code::OverLimit as i32;

const YEAR_SECONDS: i64 = 365 * 86_400;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(future)
}

#[test]
fn a_limit_admits_its_hits_and_then_no_more() {
    let served = Served::start(POLICY, &[]);
    let mut client = Client::connect(served.at.grpc);
    for remaining in [2, 1, 0] {
        let answer = client.ask(rls::request("shop", &[("user", "ann")])).expect("an answer");
        assert_eq!(answer.overall_code, OK);
        assert_eq!((answer.statuses[0].code, answer.statuses[0].limit_remaining), (OK, remaining));
    }
    let answer = client.ask(rls::request("shop", &[("user", "ann")])).expect("an answer");
    assert_eq!(answer.overall_code, OVER_LIMIT);
    let [status] = &answer.statuses[..] else { panic!("one status each: {answer:?}") };
    assert_eq!((status.code, status.limit_remaining), (OVER_LIMIT, 0));
    let limit = status.current_limit.as_ref().expect("a limit");
    let year = rate_limit_response::rate_limit::Unit::Year;
    assert_eq!((limit.requests_per_unit, limit.unit(), limit.name.as_str()), (3, year, ""));
    let reset = status.duration_until_reset.as_ref().expect("a time");
    assert!((1..=YEAR_SECONDS).contains(&reset.seconds) && reset.nanos == 0, "{reset:?}");
    assert!(client.admits("shop", "user", "bob"));
}

#[test]
fn each_descriptor_has_its_status_in_order() {
    let served = Served::start(POLICY, &[]);
    let mut client = Client::connect(served.at.grpc);
    let mut request = rls::request("shop", &[("staff", "1")]);
    request.descriptors.extend(rls::request("shop", &[("nobody", "knows")]).descriptors);
    request.descriptors.extend(rls::request("shop", &[("tenant", "a")]).descriptors);
    request.descriptors.extend(rls::request("shop", &[]).descriptors);
    request.hits_addend = 2;
    let answer = client.ask(request).expect("an answer");
    assert_eq!(answer.overall_code, OK);
    let [staff, nobody, tenant, empty] = &answer.statuses[..] else { panic!("one status each: {answer:?}") };
    assert_eq!((staff.limit_remaining, &staff.current_limit, &staff.duration_until_reset), (u32::MAX, &None, &None));
    for bare in [nobody, empty] {
        let expected = rate_limit_response::DescriptorStatus { code: OK, ..Default::default() };
        assert_eq!(*bare, expected);
    }
    let limit = tenant.current_limit.as_ref().expect("a limit");
    assert_eq!((limit.requests_per_unit, limit.unit, limit.name.as_str()), (5, 7, "weekly"));
    assert_eq!(tenant.limit_remaining, 3);
}

#[test]
fn an_unknown_domain_passes_and_is_counted_once_for_all() {
    let served = Served::start(POLICY, &[]);
    let mut client = Client::connect(served.at.grpc);
    for domain in ["nowhere", "elsewhere"] {
        let answer = client.ask(rls::request(domain, &[("user", "ann")])).expect("an answer");
        assert_eq!((answer.overall_code, answer.statuses.len(), answer.statuses[0].code), (OK, 1, OK));
    }
    assert_eq!(served.metric("weir_requests_total{result=\"unknown_domain\"}"), Some(2));
}

#[test]
fn what_cannot_be_decided_is_refused_by_its_field_and_counted() {
    let served = Served::start(POLICY, &[]);
    let mut client = Client::connect(served.at.grpc);
    let mut no_descriptors = rls::request("shop", &[("user", "ann")]);
    no_descriptors.descriptors.clear();
    let with_unit = |unit: i32| {
        let mut request = rls::request("shop", &[("user", "ann")]);
        request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 5, unit });
        request
    };
    let mut many_hits = rls::request("shop", &[("user", "ann")]);
    many_hits.descriptors[0].hits_addend = Some(UInt64Value { value: u64::MAX });
    let unit = |unit: i32| format!("descriptors[0].limit.unit: unknown unit {unit}, expected 1 (SECOND) to 6 (YEAR)");
    let cases = [
        (rls::request("", &[("user", "ann")]), "rate limit domain must not be empty".to_owned()),
        (no_descriptors, "rate limit descriptor list must not be empty".to_owned()),
        (with_unit(0), unit(0)),
        (with_unit(7), unit(7)),
        (with_unit(i32::MIN), unit(i32::MIN)),
        (many_hits, "descriptors[0].hits_addend: 18446744073709551615 hits, at most 4294967295".to_owned()),
    ];
    let count = cases.len() as u64;
    for (request, text) in cases {
        let status = client.ask(request).expect_err("a refusal");
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, text.as_str()));
    }
    assert_eq!(served.metric("weir_requests_total{result=\"invalid\"}"), Some(count));
    assert!(client.admits("shop", "user", "ann"));
}

#[test]
fn an_override_takes_the_place_of_the_rules() {
    let served = Served::start(POLICY, &[]);
    let mut client = Client::connect(served.at.grpc);
    let mut request = rls::request("shop", &[("user", "ann")]);
    let hour = rate_limit_response::rate_limit::Unit::Hour as i32;
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 7, unit: hour });
    let answer = client.ask(request).expect("an answer");
    let limit = answer.statuses[0].current_limit.as_ref().expect("a limit");
    assert_eq!((limit.requests_per_unit, limit.unit), (7, hour));
    assert_eq!(answer.statuses[0].limit_remaining, 6);
    let series = "weir_hits_total{domain=\"shop\",limit=\"(request)\",rule=\"(request)\"}";
    assert_eq!(served.metric(series), Some(1));
}

#[test]
fn a_method_that_is_not_there_is_unimplemented() {
    let served = Served::start(POLICY, &[]);
    let status = block_on(async {
        let mut grpc = tonic::client::Grpc::new(rls::channel(served.at.grpc).await);
        grpc.ready().await.expect("a connection");
        let path = tonic::codegen::http::uri::PathAndQuery::from_static("/no.Such/Method");
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
        grpc.unary(tonic::Request::new(HealthCheckRequest::default()), path, codec).await.expect_err("a refusal")
    });
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("/no.Such/Method"), "{status:?}");
}

#[test]
fn a_store_that_is_not_there_is_unavailable_and_nothing_worse() {
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let url = format!("redis.url=redis://{nobody}");
    let served = Served::starting(POLICY, &["store=redis", &url]);
    let mut client = Client::connect(served.at.grpc);
    let status = client.ask(rls::request("shop", &[("user", "ann")])).expect_err("no decision");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(status.message().contains("nothing was charged"), "{status:?}");
    // What needs no store is decided all the same.
    assert!(client.admits("shop", "staff", "1"));
    assert_eq!(health(served.at.grpc, ""), Ok(ServingStatus::NotServing), "it has not heard of the store yet");
    assert_eq!(served.metric("weir_requests_total{result=\"store_failed\"}"), Some(1));
}

fn health(address: SocketAddr, service: &str) -> Result<ServingStatus, Code> {
    block_on(async {
        let mut client = HealthClient::new(rls::channel(address).await);
        let answer = client.check(HealthCheckRequest { service: service.to_owned() }).await;
        answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
    })
}

#[test]
fn health_is_told_for_the_server_and_its_service() {
    let served = Served::start(POLICY, &[]);
    assert_eq!(health(served.at.grpc, ""), Ok(ServingStatus::Serving));
    assert_eq!(health(served.at.grpc, SERVICE), Ok(ServingStatus::Serving));
    assert_eq!(health(served.at.grpc, "no.Such"), Err(Code::NotFound));
}

/// Who watches health learns that the server leaves, and then does not keep it from leaving.
#[test]
fn a_watch_of_the_health_is_told_and_ended() {
    let mut served = Served::start(POLICY, &["shutdown.pause=100ms", "shutdown.grace=1h"]);
    let stop = served.stop.take().expect("it is running");
    let address = served.at.grpc;
    let seen = block_on(async move {
        let mut client = HealthClient::new(rls::channel(address).await);
        let request = HealthCheckRequest { service: SERVICE.to_owned() };
        let mut watch = client.watch(request).await.expect("a stream").into_inner();
        let mut seen = Vec::new();
        while let Some(Ok(answer)) = watch.next().await {
            seen.push(answer.status());
            stop.tell();
        }
        seen
    });
    assert_eq!(seen[..2], [ServingStatus::Serving, ServingStatus::NotServing]);
    served.stop().expect("it ends well before its grace does");
}

#[test]
fn reflection_lists_the_services_in_both_versions() {
    let served = Served::start(POLICY, &[]);
    let mut v1 = block_on(async {
        use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
        let mut client = ServerReflectionClient::new(rls::channel(served.at.grpc).await);
        let message_request = Some(MessageRequest::ListServices(String::new()));
        let request = tonic_reflection::pb::v1::ServerReflectionRequest { host: String::new(), message_request };
        let asked = client.server_reflection_info(tokio_stream::once(request)).await;
        let answer = asked.expect("a stream").into_inner().next().await.expect("an answer").expect("no error");
        match answer.message_response {
            Some(MessageResponse::ListServicesResponse(list)) => {
                list.service.into_iter().map(|service| service.name).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    });
    let mut v1alpha = block_on(async {
        use tonic_reflection::pb::v1alpha::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::v1alpha::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::v1alpha::server_reflection_response::MessageResponse;
        let mut client = ServerReflectionClient::new(rls::channel(served.at.grpc).await);
        let message_request = Some(MessageRequest::ListServices(String::new()));
        let request = tonic_reflection::pb::v1alpha::ServerReflectionRequest { host: String::new(), message_request };
        let asked = client.server_reflection_info(tokio_stream::once(request)).await;
        let answer = asked.expect("a stream").into_inner().next().await.expect("an answer").expect("no error");
        match answer.message_response {
            Some(MessageResponse::ListServicesResponse(list)) => {
                list.service.into_iter().map(|service| service.name).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    });
    v1.sort();
    v1alpha.sort();
    assert_eq!(v1, [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"]);
    assert_eq!(v1alpha, [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]);
}

#[test]
fn connections_are_spread_evenly_and_counted_while_they_last() {
    let served = Served::start(POLICY, &["runtime.cores=3"]);
    let connections = || {
        let of = |runtime: u32| served.metric(&format!("weir_connections{{runtime=\"{runtime}\"}}"));
        [of(0), of(1), of(2)]
    };
    let mut clients = Vec::new();
    for _ in 0..9 {
        let mut client = Client::connect(served.at.grpc);
        assert!(client.admits("shop", "staff", "1"));
        clients.push(client);
    }
    assert_eq!(connections(), [Some(3); 3]);
    clients.truncate(1);
    until("closed connections not to be counted", PATIENCE, || {
        let open: u64 = connections().iter().flatten().sum();
        (open == 1).then_some(())
    });
    // The runtimes without a connection are filled up first.
    for _ in 0..2 {
        let mut client = Client::connect(served.at.grpc);
        assert!(client.admits("shop", "staff", "1"));
        clients.push(client);
    }
    assert_eq!(connections(), [Some(1); 3]);
}
