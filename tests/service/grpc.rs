//! The gRPC listener as clients see it: decisions, refusals, health, reflection, and connections over the runtimes.

mod authority;
mod tls;
mod units;
mod wire;

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response;
use envoy_types::pb::google::protobuf::UInt64Value;
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::rls::{self, Client};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};

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
            stop.order();
        }
        seen
    });
    assert_eq!(seen[..2], [ServingStatus::Serving, ServingStatus::NotServing]);
    served.stop().expect("it ends well before its grace does");
}

/// The services that this version of reflection lists.
macro_rules! listed_services {
    ($version:ident, $address:expr) => {
        block_on(async {
            use tonic_reflection::pb::$version::ServerReflectionRequest;
            use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
            use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
            use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
            let mut client = ServerReflectionClient::new(rls::channel($address).await);
            let message_request = Some(MessageRequest::ListServices(String::new()));
            let request = ServerReflectionRequest { host: String::new(), message_request };
            let asked = client.server_reflection_info(tokio_stream::once(request)).await;
            let answer = asked.expect("a stream").into_inner().next().await.expect("an answer").expect("no error");
            let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
                panic!("{answer:?}");
            };
            let mut names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
            names.sort();
            names
        })
    };
}

#[test]
fn reflection_lists_the_services_in_both_versions() {
    let served = Served::start(POLICY, &[]);
    let v1 = listed_services!(v1, served.at.grpc);
    let v1alpha = listed_services!(v1alpha, served.at.grpc);
    assert_eq!(v1, [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"]);
    assert_eq!(v1alpha, [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"]);
}

const QUEUES: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {rate: 4/d, algorithm: leaky_bucket}}
  - {key: tenant, rate_limit: {rate: 8/d, algorithm: leaky_bucket}}
  - {key: watched, shadow_mode: true, rate_limit: {rate: 1/d, algorithm: leaky_bucket, burst: 3}}
  - {key: steady, rate_limit: {rate: 4/d, algorithm: gcra}}
  - {key: staff, rate_limit: {unlimited: true}}
";

const DAY_MS: u64 = 86_400_000;

/// The time that may pass between two requests of a test here, in milliseconds: so much less may a wait be.
const SLACK_MS: u64 = 60_000;

/// A request for one hit of each of these keys.
fn each_of(keys: &[&str]) -> rls::RateLimitRequest {
    let mut request = rls::request("shop", &[]);
    request.descriptors = keys.iter().flat_map(|key| rls::request("shop", &[(key, "a")]).descriptors).collect();
    request
}

/// The delay that an answer asks for, in milliseconds; it is all that the answer asks for.
fn delay(answer: &rls::RateLimitResponse) -> Option<u64> {
    assert!(answer.response_headers_to_add.is_empty(), "{answer:?}");
    match &answer.request_headers_to_add[..] {
        [] => None,
        [header] => {
            assert_eq!(header.key, "x-envoy-fault-delay-request");
            Some(header.value.parse().expect("whole milliseconds"))
        }
        more => panic!("one header at most: {more:?}"),
    }
}

fn assert_is_about(delay: Option<u64>, expected_ms: u64) {
    let told = delay.expect("a delay");
    assert!((expected_ms - SLACK_MS..=expected_ms).contains(&told), "{told} ms, expected {expected_ms}");
}

#[test]
fn waits_are_told_only_where_a_setting_asks_for_it() {
    for (settings, header, metadata) in [
        (&[][..], false, false),
        (&["response.delay_header=on"], true, false),
        (&["response.dynamic_metadata=on"], false, true),
    ] {
        let served = Served::start(QUEUES, settings);
        let mut client = Client::connect(served.at.grpc);
        client.ask(each_of(&["user"])).expect("an answer");
        let answer = client.ask(each_of(&["user"])).expect("an answer");
        assert_eq!(delay(&answer).is_some(), header, "{settings:?}");
        assert_eq!(answer.dynamic_metadata.is_some(), metadata, "{settings:?}");
    }
}

#[test]
fn the_longest_wait_of_all_descriptors_is_the_delay() {
    let served = Served::start(QUEUES, &["response.delay_header=on"]);
    let mut client = Client::connect(served.at.grpc);
    let mut ask = |keys: &[&str]| client.ask(each_of(keys)).expect("an answer");
    // The first of each has its turn at once.
    assert_eq!(delay(&ask(&["user", "tenant", "staff", "nobody"])), None);
    assert_is_about(delay(&ask(&["tenant", "user"])), DAY_MS / 4);
    assert_is_about(delay(&ask(&["user", "tenant"])), DAY_MS / 2);
    assert_is_about(delay(&ask(&["tenant"])), 3 * DAY_MS / 8);
    // The second of two on one key comes after the first.
    assert_is_about(delay(&ask(&["tenant", "tenant"])), 5 * DAY_MS / 8);
    // gcra admits the same and holds nobody.
    for _ in 0..4 {
        let answer = ask(&["steady"]);
        assert_eq!((answer.overall_code, delay(&answer)), (OK, None));
    }
}

#[test]
fn who_takes_no_place_in_a_queue_is_not_held() {
    let served = Served::start(QUEUES, &["response.delay_header=on"]);
    let mut client = Client::connect(served.at.grpc);
    for _ in 0..2 {
        // A rule that only watches.
        let answer = client.ask(each_of(&["watched"])).expect("an answer");
        assert_eq!((answer.overall_code, delay(&answer)), (OK, None));
    }
    client.ask(each_of(&["user", "user"])).expect("an answer");
    let look = client.ask(rls::look("shop", &[("user", "a")])).expect("an answer");
    assert_eq!((look.overall_code, delay(&look)), (OK, None));
    let mut refund = each_of(&["user"]);
    refund.descriptors[0].is_negative_hits = true;
    let refund = client.ask(refund).expect("an answer");
    assert_eq!((refund.overall_code, refund.statuses[0].limit_remaining, delay(&refund)), (OK, 3, None));
}

#[test]
fn who_is_denied_is_not_held() {
    for charging in ["charging=atomic", "charging=independent"] {
        let settings = [charging, "response.delay_header=on", "response.dynamic_metadata=on"];
        let served = Served::start(QUEUES, &settings);
        let mut client = Client::connect(served.at.grpc);
        let mut ask = |keys: &[&str]| client.ask(each_of(keys)).expect("an answer");
        for _ in 0..4 {
            assert_eq!(ask(&["user"]).overall_code, OK);
        }
        ask(&["tenant"]);
        // The tenant has a turn to wait for, and the user none that would ever come.
        let denied = ask(&["tenant", "user"]);
        assert_eq!((denied.overall_code, delay(&denied)), (OVER_LIMIT, None), "{charging}");
        let details = metadata(&denied);
        assert_eq!([&details[0]["wait_us"], &details[1]["wait_us"]], [0.0, 0.0], "{charging}: {details}");
    }
}

/// The list of details in an answer's metadata.
fn metadata(answer: &rls::RateLimitResponse) -> serde_json::Value {
    let json = rls::response_to_json(answer);
    let metadata = &json["dynamicMetadata"];
    assert_eq!(metadata.as_object().expect("metadata").len(), 1, "{json}");
    metadata["weir"]["detail"].clone()
}

#[test]
fn metadata_has_an_entry_for_each_status_in_order() {
    let served = Served::start(QUEUES, &["response.dynamic_metadata=on"]);
    let mut client = Client::connect(served.at.grpc);
    client.ask(each_of(&["user"])).expect("an answer");
    let mut request = each_of(&["staff", "user", "nobody", "steady"]);
    request.hits_addend = 3;
    let details = metadata(&client.ask(request).expect("an answer"));
    let details = details.as_array().expect("a list");
    assert_eq!(details.len(), 4);
    assert!(details[0].is_null() && details[2].is_null(), "{details:?}");
    let numbers = |detail: &serde_json::Value| {
        ["fits_after_us", "reset_after_us", "wait_us"].map(|name| detail[name].as_f64().expect("a number"))
    };
    let (day_us, slack_us) = ((DAY_MS * 1_000) as f64, (SLACK_MS * 1_000) as f64);
    assert_eq!(details[1]["algorithm"], "leaky_bucket");
    // Full: three fit again when three are paid, and all four are paid after a day. One was before it.
    for (told, expected) in numbers(&details[1]).into_iter().zip([0.75 * day_us, day_us, 0.25 * day_us]) {
        assert!((expected - slack_us..=expected).contains(&told), "{details:?}");
    }
    assert_eq!(details[3]["algorithm"], "gcra");
    assert_eq!(numbers(&details[3]), [0.5 * day_us, 0.75 * day_us, 0.0]);

    // No unknown domain and no descriptor without a limit makes it empty: there is an entry for each status.
    let nothing = client.ask(rls::request("nowhere", &[("user", "a")])).expect("an answer");
    assert_eq!(metadata(&nothing), serde_json::json!([null]));
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

#[test]
fn connections_go_where_the_least_is_to_do() {
    let served = Served::start(POLICY, &["runtime.cores=2"]);
    let connections = || {
        let of = |runtime: u32| served.metric(&format!("weir_connections{{runtime=\"{runtime}\"}}"));
        [of(0), of(1)]
    };
    let _busy = Busy::connect(served.at.grpc);
    let busy = until("the busy connection", PATIENCE, || connections().iter().position(|&count| count == Some(1)));
    let _idle = Client::connect(served.at.grpc);
    assert_eq!(connections(), [Some(1); 2]);
    // Two more would be one for each, did only their number count. That the one is busy is known after a while.
    until("connections to go to the runtime that is not busy", PATIENCE, || {
        let more = [Client::connect(served.at.grpc), Client::connect(served.at.grpc)];
        let all_went_there = connections()[1 - busy] == Some(3);
        drop(more);
        until("the two to be gone", PATIENCE, || (connections() == [Some(1); 2]).then_some(()));
        all_went_there.then_some(())
    });
}

/// One connection on which requests are always in flight, until it is dropped.
struct Busy {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    const IN_FLIGHT: usize = 64;

    fn connect(address: SocketAddr) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let until = done.clone();
        let thread = std::thread::spawn(move || {
            block_on(async {
                let channel = rls::channel(address).await;
                let mut asking = JoinSet::new();
                for _ in 0..Self::IN_FLIGHT {
                    let (channel, until) = (channel.clone(), until.clone());
                    asking.spawn(async move {
                        while !until.load(Ordering::Relaxed) {
                            let request = rls::request("shop", &[("staff", "1")]);
                            rls::ask(channel.clone(), request).await.expect("an answer");
                        }
                    });
                }
                asking.join_all().await;
            });
        });
        Self { done, thread: Some(thread) }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "the load failed: {ended:?}");
    }
}
