//! Policies by xDS: a control plane of the test's own sends good and bad snapshots, starts again, breaks off, says nothing,
//! and shows certificates of every kind. weir is the real binary.

mod go_control_plane;
mod overlays;

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct, Value};
use envoy_types::pb::ratelimit::config::ratelimit::v3::{RateLimitPolicy, RateLimitUnit};
use prost::Message as _;
use serde_json::Value as Json;
use weir_telemetry::metrics::table::SECTIONS;

use crate::support::ads::{self, Ads, TYPE_URL, limited, shop};
use crate::support::http;
use crate::support::process::{LogLine, POLICIES_REFUSED, Process, Weir};
use crate::support::proxy::Proxy;
use crate::support::rls::{self, Client};
use crate::support::wait::{PATIENCE, until};

/// The text of a decision while there are no policies.
const NO_POLICIES: &str = "no rate limit configuration loaded";

/// `weir serve` with the policies of this server, which it finds again soon, and with more settings.
fn start(server: &str, settings: &[&str]) -> Process {
    let mut arguments = vec!["--store".to_owned(), "memory".to_owned()];
    let quick = ["connect_retry=50ms", "backoff.initial=20ms", "backoff.max=100ms"];
    let own = quick.iter().map(|setting| format!("policies.xds.{setting}"));
    let base = ["policies.source=xds".to_owned(), format!("policies.xds.server={server}")];
    let more = settings.iter().map(|&setting| setting.to_owned());
    for setting in base.into_iter().chain(own).chain(["shutdown.pause=0s".to_owned()]).chain(more) {
        arguments.extend(["--set".to_owned(), setting]);
    }
    Process::start(Path::new("unused"), &arguments, &[])
}

/// The same, once it is ready.
fn serving(server: &str, settings: &[&str]) -> Weir {
    Weir::from_process(start(server, settings)).unwrap_or_else(|problem| panic!("{problem}"))
}

/// The same, without a wait for policies.
fn at_once(server: &str, settings: &[&str]) -> Weir {
    serving(server, &[&["policies.xds.start_without_config=on"], settings].concat())
}

/// The limit in force for `user=ann` of a domain, if any; asking takes nothing.
fn limit(client: &mut Client, domain: &str) -> Option<u32> {
    let answer = client.ask(rls::look(domain, &[("user", "ann")])).expect("an answer");
    answer.statuses[0].current_limit.as_ref().map(|limit| limit.requests_per_unit)
}

/// What `/readyz` says of policies.
fn policies(weir: &Weir) -> Json {
    let answer = http::get(weir.admin, "/readyz").expect("an answer");
    let whole: Json = serde_json::from_str(&answer.body).expect("JSON");
    whole["policies"].clone()
}

/// Waits until `/readyz` says this of policies.
fn wait_for_state(weir: &Weir, what: &str, wanted: impl Fn(&Json) -> bool) -> Json {
    let found = crate::support::wait::within(PATIENCE, || Some(policies(weir)).filter(&wanted));
    found.unwrap_or_else(|| panic!("never {what}: {:#}", policies(weir)))
}

/// Waits until there is no connection for this reason.
fn wait_for_trouble(weir: &Weir, reason: &str) {
    wait_for_state(weir, reason, |state| {
        state["server"]["connected"] == false
            && state["server"]["trouble"].as_str().is_some_and(|it| it.contains(reason))
    });
}

/// Some series of `/metrics`, added up.
fn metric(weir: &Weir, name: &str) -> u64 {
    crate::support::served::metric(weir.http, name).unwrap_or_else(|| panic!("no {name}"))
}

/// As `RateLimitPolicy`, and the messages around it, with a field that weir does not know.
#[derive(Clone, PartialEq, prost::Message)]
struct LaterLimit {
    #[prost(int32, tag = "1")]
    unit: i32,
    #[prost(uint32, tag = "2")]
    requests_per_unit: u32,
    #[prost(uint32, tag = "9")]
    later: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LaterDescriptor {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "3")]
    rate_limit: Option<LaterLimit>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LaterConfig {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(message, repeated, tag = "3")]
    descriptors: Vec<LaterDescriptor>,
}

#[test]
fn a_field_of_a_limit_that_weir_does_not_know_is_counted_and_logged_once_a_minute() {
    let ads = Ads::start();
    ads.set("1", vec![shop(2)]);
    let weir = serving(&ads.server(), &[]);
    let series = "weir_unknown_limit_fields_total{source=\"xds\"}";
    assert_eq!(metric(&weir, series), 0);
    let descriptor = |key: &str| LaterDescriptor {
        key: key.to_owned(),
        rate_limit: Some(LaterLimit { unit: RateLimitUnit::Year.into(), requests_per_unit: 7, later: 1 }),
    };
    let config = LaterConfig {
        name: "later".to_owned(),
        domain: "shop".to_owned(),
        descriptors: ["user", "tenant"].map(descriptor).to_vec(),
    };
    let later = Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() };
    for (version, count) in [("2", 2), ("3", 4)] {
        ads.set(version, vec![later.clone()]);
        ads.wait_for_ack(version);
        assert_eq!(metric(&weir, series), count, "two limits of each version");
    }
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(7), "the rest of the limit is in force");
    let is_of_limit = |line: &LogLine| {
        let is_it = line.message().is_some_and(|message| message.starts_with("limits have a field"));
        is_it && line.field("message_type") == Some(&"RateLimitPolicy".into()) && line.field("field") == Some(&9.into())
    };
    assert_eq!(weir.count_in_log(is_of_limit), 1);
}

fn is_message(message: &'static str) -> impl Fn(&LogLine) -> bool {
    move |line| line.message() == Some(message)
}

#[test]
fn listeners_wait_for_the_first_snapshot_and_the_request_says_who_asks() {
    let ads = Ads::start();
    let process = start(
        &ads.server(),
        &[
            "policies.xds.node_id=replica-7",
            "policies.xds.node_metadata=zone=eu-1,stage=a=b",
            "policies.xds.headers=authorization:Bearer t:1, X-Tenant:blue",
        ],
    );
    let first = ads.wait_for("a request", |_| true);
    let node = first.request.node.as_ref().expect("a node");
    assert_eq!((node.id.as_str(), node.user_agent_name.as_str()), ("replica-7", "weir"));
    let metadata = &node.metadata.as_ref().expect("metadata").fields;
    let text = |key: &str| metadata[key].kind.clone();
    assert_eq!(text("zone"), Some(Kind::StringValue("eu-1".into())));
    assert_eq!(text("stage"), Some(Kind::StringValue("a=b".into())));
    assert_eq!(first.request.type_url, TYPE_URL);
    assert_eq!((first.request.version_info.as_str(), first.request.response_nonce.as_str()), ("", ""));
    assert!(first.request.resource_names.is_empty() && first.request.error_detail.is_none());
    assert_eq!(first.headers["authorization"], "Bearer t:1");
    assert_eq!(first.headers["x-tenant"], "blue");
    assert!(first.headers["user-agent"].starts_with("weir/"), "{:?}", first.headers);
    assert!(!process.has_logged(|line| line.message() == Some("listening")), "no listener before the policies");

    ads.set("1", vec![shop(2)]);
    let weir = Weir::from_process(process).unwrap_or_else(|problem| panic!("{problem}"));
    let ack = ads.wait_for_ack("1");
    assert_eq!(ack.request.response_nonce, "nonce-1");
    assert_eq!(ack.request.node.as_ref().map(|node| node.id.as_str()), Some("replica-7"));
    let mut client = Client::connect(weir.grpc);
    let answers = [(); 3].map(|()| client.admits("shop", "user", "ann"));
    assert_eq!(answers, [true, true, false]);
    assert!(!weir.written().contains("Bearer"), "headers may be secrets");
}

#[test]
fn an_update_replaces_all_and_keeps_what_was_used() {
    let ads = Ads::start();
    ads.set("1", vec![shop(10), ads::config("bank", vec![limited("user", 3)])]);
    let weir = serving(&ads.server(), &[]);
    let mut client = Client::connect(weir.grpc);
    for _ in 0..4 {
        assert!(client.admits("shop", "user", "ann"));
    }
    assert_eq!(limit(&mut client, "bank"), Some(3));

    ads.set("2", vec![shop(5)]);
    ads.wait_for_ack("2");
    // The ACK comes after the swap.
    assert_eq!(limit(&mut client, "shop"), Some(5));
    assert_eq!(limit(&mut client, "bank"), None, "only what the last response holds is in force");
    assert!(client.admits("shop", "user", "ann"));
    assert!(!client.admits("shop", "user", "ann"), "four and one were used");

    let state = policies(&weir);
    assert_eq!(state["domains"], 1);
    let server = &state["server"];
    assert_eq!((&server["protocol"], &server["connected"]), (&"xds".into(), &true.into()));
    assert_eq!((&server["version"], &server["address"]), (&"2".into(), &ads.server().into()));
    assert!(server["accepted_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{server}");
    assert_eq!((&server["last_refused"], &server["trouble"]), (&Json::Null, &Json::Null));
    let names = ["connected", "connections_total", "accepted_total", "refused_total", "failures_total"];
    let values = names.map(|name| metric(&weir, &format!("weir_xds_{name}")));
    assert_eq!(values, [1, 1, 2, 0, 0]);
    assert!(metric(&weir, "weir_xds_accepted_timestamp_seconds") > 1_600_000_000);
}

/// [cr-4]
#[test]
fn callers_have_rights_in_domains_that_come_by_xds() {
    let callers = tempfile::NamedTempFile::new().expect("a file");
    let text = "callers: [{name: shops, listeners: [grpc], domains: ['shop*'], may: [charge, peek]}]\n";
    std::fs::write(callers.path(), text).expect("it is written");
    let ads = Ads::start();
    ads.set("1", vec![shop(10), ads::config("bank", vec![limited("user", 3)])]);
    let weir = serving(&ads.server(), &[&format!("callers.file={}", callers.path().display())]);
    let mut client = Client::connect(weir.grpc);
    let mut ask = |domain: &str| client.ask(rls::request(domain, &[("user", "ann")])).map_err(|status| status.code());
    let refused = tonic::Code::PermissionDenied;
    assert!(ask("shop").is_ok());
    assert_eq!(ask("bank").unwrap_err(), refused);
    // A domain of an update is theirs at once, by its name.
    ads.set("2", vec![shop(10), ads::config("shop/eu", vec![limited("user", 3)])]);
    ads.wait_for_ack("2");
    assert!(ask("shop/eu").is_ok_and(|answer| answer.statuses[0].current_limit.is_some()));
    assert_eq!(ask("bank").unwrap_err(), refused);
}

#[test]
fn a_bad_update_is_refused_whole_and_the_old_one_stays() {
    let ads = Ads::start();
    ads.set("1", vec![shop(10)]);
    let weir = serving(&ads.server(), &[]);
    let mut client = Client::connect(weir.grpc);
    ads.wait_for_ack("1");

    let mut bad = limited("user", 1);
    bad.value = "bob".into();
    bad.rate_limit = Some(RateLimitPolicy { requests_per_unit: 1, ..RateLimitPolicy::default() });
    ads.set("2", vec![shop(99), ads::config("bank", vec![limited("a", 1), bad])]);
    let nack = ads.wait_for_nack("without unit");
    assert_eq!(nack.request.version_info, "1", "that of the last accepted");
    assert_eq!(nack.request.response_nonce, "nonce-2");
    assert_eq!(nack.request.error_detail.as_ref().map(|status| status.code), Some(3));
    let said = nack.error().unwrap_or_default();
    assert!(
        said.starts_with("rules-of-bank: descriptors[1].rate_limit (user=bob): a rate limit without unit"),
        "{said}"
    );
    assert_eq!(limit(&mut client, "shop"), Some(10));
    assert_eq!(limit(&mut client, "bank"), None);
    assert_eq!(weir.count_in_log(is_message(POLICIES_REFUSED)), 1);
    let state = policies(&weir);
    assert_eq!(state["problems"].as_array().map(Vec::len), Some(1), "{state}");
    assert_eq!(state["server"]["version"], "1");
    assert_eq!(state["server"]["last_refused"]["version"], "2");
    assert_eq!(state["server"]["last_refused"]["reason"], said);
    assert_eq!(metric(&weir, "weir_xds_refused_total"), 1);
    assert_eq!(metric(&weir, "weir_config_load_errors_total"), 1);
    assert_eq!(metric(&weir, "weir_input_refused{input=\"control_plane\"}"), 1);

    ads.set("3", vec![shop(12)]);
    ads.wait_for_ack("3");
    assert_eq!(limit(&mut client, "shop"), Some(12));
    assert_eq!(policies(&weir)["problems"].as_array().map(Vec::len), Some(0));
    until("the gauge to fall", PATIENCE, || {
        (metric(&weir, "weir_input_refused{input=\"control_plane\"}") == 0).then_some(())
    });
}

#[test]
fn a_bad_first_snapshot_is_refused_and_listeners_go_on_waiting() {
    let ads = Ads::start();
    ads.set("1", vec![ads::config("", vec![limited("user", 1)])]);
    let process = start(&ads.server(), &[]);
    let nack = ads.wait_for_nack("domain is empty");
    assert_eq!(nack.request.version_info, "", "nothing was accepted yet");
    assert!(!process.has_logged(|line| line.message() == Some("listening")));
    ads.set("2", vec![shop(1)]);
    let weir = Weir::from_process(process).unwrap_or_else(|problem| panic!("{problem}"));
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(1));
}

#[test]
fn everything_that_cannot_be_in_force_is_refused() {
    let ads = Ads::start();
    ads.set("1", vec![shop(10)]);
    let weir = serving(&ads.server(), &[]);
    ads.wait_for_ack("1");
    let of = |resources: Vec<Any>| DiscoveryResponse {
        version_info: "2".into(),
        resources,
        type_url: TYPE_URL.into(),
        ..DiscoveryResponse::default()
    };
    let strange = Any { type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".into(), value: Vec::new() };
    let broken = Any { type_url: TYPE_URL.into(), value: vec![0xff, 0xff] };
    let other_type = DiscoveryResponse { type_url: "type.googleapis.com/envoy.Listener".into(), ..of(vec![]) };
    for (response, reason) in [
        (of(vec![shop(1), strange]), "resource 1: the type is \"type.googleapis.com/envoy.config.cluster.v3.Cluster\""),
        (of(vec![broken]), "resource 0: not a RateLimitConfig"),
        (of(vec![shop(1), shop(2)]), "domain \"shop\" is defined already, at rules-of-shop"),
        (other_type, "a response of the type \"type.googleapis.com/envoy.Listener\""),
    ] {
        ads.send(response);
        let nack = ads.wait_for_nack(reason);
        assert_eq!(nack.request.version_info, "1", "{reason}");
        assert_eq!(nack.stream, 0, "{reason}");
    }
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(10));
}

#[test]
fn a_response_of_empty_elements_is_refused_before_it_is_decoded() {
    let ads = Ads::start();
    ads.set("1", vec![shop(10)]);
    let weir = serving(&ads.server(), &[]);
    ads.wait_for_ack("1");
    let of = |version: &str, resources: Vec<Any>| DiscoveryResponse {
        version_info: version.into(),
        resources,
        type_url: TYPE_URL.into(),
        ..DiscoveryResponse::default()
    };
    let descriptors = Any { type_url: TYPE_URL.into(), value: [0x1a, 0].repeat(525_000) };
    for (response, reason) in [
        (
            of("2", vec![descriptors]),
            "resources: descriptors: 1050000 bytes with at least 65581 descriptors and 0 values of metadata would take \
             more than 256 MiB",
        ),
        (of("3", vec![Any::default(); 2_000_000]), "resources: 2000000 resources, at most 10000"),
    ] {
        ads.send(response);
        let nack = ads.wait_for_nack(reason);
        assert_eq!((nack.request.version_info.as_str(), nack.stream), ("1", 0), "{reason}");
    }
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(10));
}

#[test]
fn no_resources_are_a_configuration() {
    let ads = Ads::start();
    ads.set("1", Vec::new());
    let weir = serving(&ads.server(), &[]);
    ads.wait_for_ack("1");
    let mut client = Client::connect(weir.grpc);
    assert_eq!(limit(&mut client, "shop"), None, "an unknown domain is no error");
    ads.set("2", vec![shop(4)]);
    ads.wait_for_ack("2");
    assert_eq!(limit(&mut client, "shop"), Some(4));
    ads.set("3", Vec::new());
    ads.wait_for_ack("3");
    assert_eq!(limit(&mut client, "shop"), None);
}

#[test]
fn each_response_is_answered_by_its_nonce_even_if_that_comes_twice() {
    let ads = Ads::start();
    ads.set("1", vec![shop(1)]);
    let weir = serving(&ads.server(), &[]);
    ads.wait_for_ack("1");
    let response = |version: &str, requests: u32| DiscoveryResponse {
        version_info: version.into(),
        resources: vec![shop(requests)],
        type_url: TYPE_URL.into(),
        nonce: "same".into(),
        ..DiscoveryResponse::default()
    };
    ads.send(response("2", 2));
    ads.send(response("3", 3));
    // Some control planes leave the type out.
    ads.send(DiscoveryResponse { type_url: String::new(), ..response("4", 4) });
    for version in ["2", "3", "4"] {
        assert_eq!(ads.wait_for_ack(version).request.response_nonce, "same");
    }
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(4));
}

/// Some control planes answer a NACK by the same version at once.
#[test]
fn a_refused_version_that_comes_again_and_again_is_logged_once_and_does_not_keep_a_good_one_away() {
    let ads = Ads::start();
    ads.set("1", vec![shop(1)]);
    let weir = serving(&ads.server(), &[]);
    ads.wait_for_ack("1");
    ads.insist();
    ads.set("2", vec![ads::config("", Vec::new())]);
    until("three NACKs", PATIENCE, || {
        (ads.seen().iter().filter(|seen| seen.error().is_some()).count() >= 3).then_some(())
    });
    ads.set("3", vec![shop(3)]);
    ads.wait_for_ack("3");
    assert_eq!(weir.count_in_log(is_message(POLICIES_REFUSED)), 1);
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(3));
}

#[test]
fn a_server_that_starts_again_is_asked_from_the_beginning() {
    let ads = Ads::start();
    ads.set("7", vec![shop(7)]);
    let weir = serving(&ads.server(), &[]);
    ads.wait_for_ack("7");
    let mut client = Client::connect(weir.grpc);
    assert!(client.admits("shop", "user", "ann"));

    let address = ads.stop();
    wait_for_trouble(&weir, "onnection refused");
    assert!(weir.wait_for_log(0, PATIENCE, is_message("policy stream failed: the current policies stay in force")));
    assert_eq!(limit(&mut client, "shop"), Some(7), "without a server the policies stay");
    assert_eq!(policies(&weir)["server"]["version"], "7");
    assert_eq!(metric(&weir, "weir_xds_connected"), 0);
    assert!(metric(&weir, "weir_xds_failures_total") > 0);

    let again = Ads::start_with(address, None);
    again.set("1", vec![shop(8)]);
    again.wait_for_ack("1");
    let first = again.seen()[0].clone();
    assert_eq!((first.request.version_info.as_str(), first.request.response_nonce.as_str()), ("", ""));
    assert_eq!(limit(&mut client, "shop"), Some(8));
    assert_eq!(policies(&weir)["server"]["version"], "1");
}

#[test]
fn a_stream_that_breaks_is_opened_again() {
    let ads = Ads::start();
    ads.set("1", vec![shop(1)]);
    let weir = serving(&ads.server(), &[]);
    ads.wait_for_ack("1");
    for (stream, status, reason) in [
        (1, None, "the server ended the stream"),
        (2, Some(tonic::Status::unavailable("gone for lunch")), "gone for lunch"),
        (3, Some(tonic::Status::permission_denied("not you")), "not you"),
    ] {
        ads.end_streams(status.as_ref());
        let again = ads.wait_for("a stream", |seen| seen.stream == stream);
        assert_eq!((again.request.version_info.as_str(), again.request.response_nonce.as_str()), ("", ""));
        let told = weir.wait_for_log(0, PATIENCE, |line| line.raw().contains(reason));
        assert!(told, "the log does not say {reason:?}");
        ads.wait_for("an ACK", |seen| seen.stream == stream && seen.accepts("1"));
    }
    ads.set("2", vec![shop(2)]);
    ads.wait_for_ack("2");
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(2));
}

#[test]
fn without_policies_decisions_are_unavailable_where_listeners_open_at_once() {
    let ads = Ads::start();
    let mut weir = at_once(&ads.server(), &[]);
    ads.wait_for("a request", |_| true);
    let mut client = Client::connect(weir.grpc);
    let refused = client.ask(rls::request("shop", &[("user", "ann")])).expect_err("there are no policies");
    assert_eq!((refused.code(), refused.message()), (tonic::Code::Unavailable, NO_POLICIES));
    let json = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
    let refused = http::post_json(weir.http, "/json", json).expect("an answer");
    assert_eq!((refused.status, refused.body.trim()), (503, NO_POLICIES));
    assert_eq!(http::get(weir.http, "/healthcheck").expect("an answer").status, 200);
    assert_eq!(metric(&weir, "weir_requests_total{result=\"no_policies\"}"), 2);
    let state = wait_for_state(&weir, "connected", |state| state["server"]["connected"] == true);
    assert_eq!(state["server"]["version"], Json::Null);

    // The server says nothing for a while, and then it does.
    ads.set("1", vec![shop(1)]);
    ads.wait_for_ack("1");
    assert!(client.admits("shop", "user", "ann"));
    assert!(!client.admits("shop", "user", "ann"));
    weir.terminate();
    assert!(weir.wait_for_exit().success());
}

#[test]
fn a_server_that_comes_later_is_found() {
    let listener = TcpListener::bind(ads::any_port()).expect("a free port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let weir = at_once(&address.to_string(), &[]);
    wait_for_trouble(&weir, "onnection refused");
    let none_yet = is_message("policy stream failed: no policies are in force yet");
    assert!(weir.wait_for_log(0, PATIENCE, none_yet));
    let ads = Ads::start_with(address, None);
    ads.set("1", vec![shop(5)]);
    ads.wait_for_ack("1");
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(5));
    // Each attempt is not a line of its own.
    assert_eq!(weir.count_in_log(|line| line.raw().contains("onnection refused")), 1);
}

#[test]
fn sigterm_ends_the_wait_for_policies() {
    let silent = Ads::start();
    let process = start(&silent.server(), &[]);
    silent.wait_for("a request", |_| true);
    process.terminate();
    let (status, written) = process.finish();
    assert!(status.success(), "{written}");

    // Nor does a server that does not even shake hands keep weir from ending.
    let (black_hole, address) = accepts_and_says_nothing();
    let authority = crate::support::authority::Authority::new("weir test");
    let process = start(&address.to_string(), &with_tls(&authority.file(), &[]).each());
    until("weir to wait", PATIENCE, || {
        process.has_logged(|line| line.message() == Some("waiting for the first policies")).then_some(())
    });
    process.terminate();
    assert!(process.finish().0.success());
    drop(black_hole);
}

#[test]
fn a_response_beyond_the_bound_is_not_read() {
    let ads = Ads::start();
    ads.set("1", vec![shop(1)]);
    let weir = serving(&ads.server(), &["policies.xds.max_message_bytes=4096"]);
    ads.wait_for_ack("1");
    let many = (0..400).map(|number| limited(&format!("key-{number}"), 1)).collect();
    ads.set("2", vec![ads::config("shop", many)]);
    let told = weir.wait_for_log(0, PATIENCE, |line| line.raw().contains("policies.xds.max_message_bytes = 4096"));
    assert!(told, "{}", weir.written());
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(1));
    ads.set("3", vec![shop(3)]);
    ads.wait_for_ack("3");
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(3));
}

/// Metadata with further keys of a rate limit, as texts or numbers.
fn own_fields(fields: &[(&str, &str)]) -> Struct {
    let kind = |text: &str| text.parse().map_or_else(|_| Kind::StringValue(text.into()), Kind::NumberValue);
    let fields = fields.iter().map(|(key, text)| ((*key).to_owned(), Value { kind: Some(kind(text)) })).collect();
    let fields = Value { kind: Some(Kind::StructValue(Struct { fields })) };
    Struct { fields: [("weir".to_owned(), fields)].into() }
}

#[test]
fn the_algorithms_of_weir_come_by_metadata() {
    let ads = Ads::start();
    let mut paced = limited("a|b*/c", 60);
    paced.value = "x/*|y".into();
    paced.metadata = Some(own_fields(&[("algorithm", "gcra"), ("burst", "2")]));
    ads.set("1", vec![ads::config("shop", vec![paced])]);
    let weir = serving(&ads.server(), &[]);
    let mut client = Client::connect(weir.grpc);
    let answers = [(); 3].map(|()| client.admits("shop", "a|b*/c", "x/1/2|y"));
    assert_eq!(answers, [true, true, false], "a burst of two");
    assert!(client.admits("shop", "a|b*/c", "elsewhere"), "the star is a pattern in values only");
    let shown = http::get(weir.admin, "/policies").expect("an answer").body;
    assert!(shown.contains("\"gcra\"") && shown.contains("rules-of-shop: descriptors[0]"), "{shown}");
}

/// Settings of TLS.
struct Tls(Vec<String>);

impl Tls {
    fn each(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}

fn with_tls(ca: &Path, more: &[(&str, &Path)]) -> Tls {
    let mut settings = vec!["policies.xds.tls.enabled=on".to_owned()];
    let all = [("ca_file", ca)].into_iter().chain(more.iter().copied());
    settings.extend(all.map(|(name, path)| format!("policies.xds.tls.{name}={}", path.display())));
    Tls(settings)
}

fn accepts_and_says_nothing() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(ads::any_port()).expect("a free port");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

mod tls {
    use tokio_rustls::rustls::pki_types::CertificateDer;
    use tokio_rustls::rustls::pki_types::pem::PemObject as _;

    use super::*;
    use crate::support::authority::{Authority, Issued};

    fn certificate(issued: &Issued) -> Vec<u8> {
        CertificateDer::from_pem_file(&issued.certificate).expect("PEM").to_vec()
    }

    #[test]
    fn both_sides_show_certificates_and_new_ones_are_taken_up_under_load() {
        let authority = Authority::new("weir test");
        let server = authority.server("server", &["127.0.0.1"]);
        let one = authority.client("one");
        let ads = Ads::start_with(ads::any_port(), Some(ads::secured(&server, Some(&authority))));
        ads.set("1", vec![shop(1_000_000)]);
        let files: [(&str, &Path); 2] = [("cert_file", &one.certificate), ("key_file", &one.key)];
        let weir = serving(&ads.server(), &with_tls(&authority.file(), &files).each());
        let ack = ads.wait_for_ack("1");
        assert_eq!(ack.certificate, Some(certificate(&one)));

        let mut client = Client::connect(weir.grpc);
        let other = authority.client("other");
        let before = certificate(&one);
        // Only the certificate first: it and the key do not belong together, so the old pair stays in force.
        std::fs::copy(&other.certificate, &one.certificate).expect("the certificate is replaced");
        ads.end_streams(None);
        let again = ads.wait_for("a second stream", |seen| seen.stream == 1);
        assert_eq!(again.certificate.as_ref(), Some(&before));
        std::fs::copy(&other.key, &one.key).expect("the key is replaced");
        ads.end_streams(None);
        let rotated = until("a stream by the new certificate", PATIENCE, || {
            assert!(client.admits("shop", "user", "ann"), "decisions go on");
            ads.seen().into_iter().find(|seen| seen.stream >= 2)
        });
        assert_eq!(rotated.certificate, Some(certificate(&other)));
        ads.set("2", vec![shop(5)]);
        ads.wait_for_ack("2");
        assert_eq!(limit(&mut client, "shop"), Some(5));
    }

    #[test]
    fn a_certificate_that_is_not_to_be_trusted_is_told_in_words() {
        let authority = Authority::new("weir test");
        let stranger = Authority::new("somebody else");
        let good = authority.server("good", &["127.0.0.1", "xds.internal"]);
        let foreign = stranger.server("foreign", &["127.0.0.1"]);
        let check = |server: &Issued, clients: Option<&Authority>, more: &[&str], reason: &str| {
            let ads = Ads::start_with(ads::any_port(), Some(ads::secured(server, clients)));
            ads.set("1", vec![shop(1)]);
            let settings = with_tls(&authority.file(), &[]);
            let weir = at_once(&ads.server(), &[&settings.each()[..], more].concat());
            wait_for_trouble(&weir, reason);
            let refused = Client::connect(weir.grpc).ask(rls::request("shop", &[("user", "ann")]));
            assert_eq!(refused.expect_err("no policies").message(), NO_POLICIES);
        };
        check(&foreign, None, &[], "no trusted authority has signed its certificate");
        check(&good, None, &["policies.xds.tls.server_name=xds.example"], "and not for xds.example");
        check(&good, Some(&authority), &[], "it refused tls: CertificateRequired");

        let ads = Ads::start_with(ads::any_port(), Some(ads::secured(&good, None)));
        ads.set("1", vec![shop(1)]);
        let settings = with_tls(&authority.file(), &[]);
        let named = [&settings.each()[..], &["policies.xds.tls.server_name=xds.internal"]].concat();
        let _weir = serving(&ads.server(), &named);
        ads.wait_for_ack("1");
    }

    #[test]
    fn tls_on_one_side_only_is_told_in_words() {
        let authority = Authority::new("weir test");
        let plain = Ads::start();
        let weir = at_once(&plain.server(), &with_tls(&authority.file(), &[]).each());
        wait_for_trouble(&weir, "its answer is not tls");
        drop(weir);
        let server = authority.server("server", &["127.0.0.1"]);
        let secure = Ads::start_with(ads::any_port(), Some(ads::secured(&server, None)));
        let weir = at_once(&secure.server(), &[]);
        wait_for_state(&weir, "without a connection", |state| state["server"]["trouble"].is_string());
        drop(weir);
        let (silent, address) = accepts_and_says_nothing();
        let settings = with_tls(&authority.file(), &[]);
        let settings = [&settings.each()[..], &["policies.xds.connect_timeout=100ms"]].concat();
        let weir = at_once(&address.to_string(), &settings);
        wait_for_trouble(&weir, "no connection within 100ms");
        drop(silent);
    }

    #[test]
    fn files_that_cannot_be_used_end_the_start() {
        let missing = Path::new("/nowhere/ca.pem");
        let (status, written) = start("127.0.0.1:1", &with_tls(missing, &[]).each()).finish();
        assert!(!status.success());
        assert!(written.contains("policies by xds: /nowhere/ca.pem: cannot be opened"), "{written}");
    }
}

/// The table that docs/metrics.md is made from has every metric, and no other.
#[test]
fn metrics_are_those_of_the_page_about_them() {
    let ads = Ads::start();
    let weir = at_once(&ads.server(), &[]);
    let rows = SECTIONS.iter().flat_map(|section| section.metrics).map(|row| row.name);
    let documented: BTreeSet<&str> = rows.filter(|name| name.starts_with("weir_xds_")).collect();
    let text = http::get(weir.http, "/metrics").expect("an answer").body;
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let shown: BTreeSet<&str> = types.filter(|name| name.starts_with("weir_xds_")).collect();
    assert_eq!(shown, documented);
}

#[test]
fn a_connection_that_goes_dead_without_a_word_is_found_by_a_ping() {
    let ads = Ads::start();
    ads.set("1", vec![shop(1)]);
    let proxy = Proxy::start(ads.address.port());
    let settings = ["policies.xds.keepalive.interval=1s", "policies.xds.keepalive.timeout=200ms"];
    let weir = serving(&format!("127.0.0.1:{}", proxy.port()), &settings);
    ads.wait_for_ack("1");
    proxy.swallow(true);
    wait_for_state(&weir, "without a connection", |state| state["server"]["connected"] == false);
    proxy.swallow(false);
    ads.set("2", vec![shop(2)]);
    ads.wait_for_ack("2");
    assert_eq!(limit(&mut Client::connect(weir.grpc), "shop"), Some(2));
}

#[test]
fn a_slow_line_is_no_dead_one() {
    let ads = Ads::start();
    ads.set("1", vec![shop(1)]);
    let proxy = Proxy::start(ads.address.port());
    proxy.delay(Duration::from_millis(100));
    let weir = serving(&format!("localhost:{}", proxy.port()), &[]);
    ads.wait_for_ack("1");
    ads.set("2", vec![shop(2)]);
    ads.wait_for_ack("2");
    assert_eq!(metric(&weir, "weir_xds_failures_total"), 0);
    assert_eq!(ads.seen().iter().map(|seen| seen.stream).max(), Some(0), "one stream");
}
