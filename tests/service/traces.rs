//! Traces as a collector gets them: which decisions have spans, what is in the spans, whose children they are, and that a
//! collector that is slow or gone costs spans and nothing else.

use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use serde_json::{Value, json};
use tonic::metadata::MetadataMap;

use crate::support::authority::Authority;
use crate::support::otlp::{By, Collector, Does, ReceivedSpan};
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, RateLimitRequest, RateLimitResponse};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};
use crate::support::{ads, http, served};

const POLICY: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000}
  - key: full
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: plan
    value: free
    descriptors:
      - key: path
        rate_limit: {unit: year, requests_per_unit: 1000}
";
const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";
const SERVER: i32 = 2;
const CLIENT: i32 = 3;
const ERROR: i32 = 2;

/// A weir that sends each span soon.
fn traced(collector: &Collector, by: By, settings: &[&str]) -> Served {
    traced_with(POLICY, collector, by, settings)
}

fn traced_with(policy: &str, collector: &Collector, by: By, settings: &[&str]) -> Served {
    let endpoint = format!("tracing.otlp.endpoint={}", collector.url());
    let protocol = format!("tracing.otlp.protocol={}", by.setting());
    let own = ["tracing.exporter=otlp", &endpoint, &protocol];
    let delay = ["tracing.delay=5ms"];
    let delay = if settings.iter().any(|setting| setting.starts_with("tracing.delay=")) { &[][..] } else { &delay };
    Served::start(policy, &[&own[..], delay, settings].concat())
}

/// A client that sends metadata along.
struct Client {
    runtime: tokio::runtime::Runtime,
    service: RateLimitServiceClient<tonic::transport::Channel>,
}

impl Client {
    fn connect(served: &Served) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let service = RateLimitServiceClient::new(runtime.block_on(rls::channel(served.at.grpc)));
        Client { runtime, service }
    }

    fn ask(
        &mut self,
        request: RateLimitRequest,
        metadata: &[(&'static str, &str)],
    ) -> Result<RateLimitResponse, tonic::Status> {
        let mut headers = MetadataMap::new();
        for (name, value) in metadata {
            headers.append(*name, value.parse().unwrap());
        }
        let request = tonic::Request::from_parts(headers, tonic::Extensions::default(), request);
        self.runtime.block_on(self.service.should_rate_limit(request)).map(tonic::Response::into_inner)
    }
}

fn user(value: &str) -> RateLimitRequest {
    rls::request("shop", &[("user", value)])
}

fn of_kind(spans: &[ReceivedSpan], kind: i32) -> Vec<&ReceivedSpan> {
    spans.iter().filter(|span| span.kind == kind).collect()
}

#[test]
fn a_decision_by_grpc_has_one_span_with_domain_rules_and_outcome() {
    for by in [By::Grpc, By::Http] {
        let collector = Collector::start(by);
        let served =
            traced(&collector, by, &["tracing.service_name=limits", "tracing.resource_attributes=k8s.pod.name=w0"]);
        let mut client = Client::connect(&served);
        let mut request = rls::request("shop", &[("plan", "free"), ("path", "/a")]);
        request.descriptors.extend(user("ann").descriptors);
        request.descriptors.extend(rls::request("shop", &[("unknown", "x")]).descriptors);
        client.ask(request, &[]).unwrap();
        let spans = collector.wait_for(1);
        let span = &spans[0];
        assert_eq!((span.name.as_str(), span.kind, span.status), (NAME, SERVER, 0), "{by:?}");
        assert_eq!((span.trace.len(), span.id.len(), span.parent.as_str()), (32, 16, ""), "a root: {span:?}");
        assert!(span.times.0 <= span.times.1);
        let expected = [
            ("rpc.system", json!("grpc")),
            ("rpc.service", json!("envoy.service.ratelimit.v3.RateLimitService")),
            ("rpc.method", json!("ShouldRateLimit")),
            ("rpc.grpc.status_code", json!(0)),
            ("weir.domain", json!("shop")),
            ("weir.outcome", json!("ok")),
            ("weir.descriptors", json!(["plan|path", "user", "unknown"])),
            ("weir.rules", json!(["plan=free|path", "user"])),
            ("weir.unmatched_descriptors", json!(1)),
            ("weir.store", json!("memory")),
        ];
        let expected = expected.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        assert_eq!(span.attributes, expected);
        assert_eq!(span.resource["service.name"], "limits");
        assert_eq!(span.resource["k8s.pod.name"], "w0");
        assert_eq!(span.resource["service.version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(span.resource["service.instance.id"].as_str().unwrap().len(), 36);
        let (path, headers) = &collector.requests()[0];
        assert_eq!(path, if by == By::Http { "/v1/traces" } else { "grpc" });
        assert!(headers["user-agent"].starts_with("weir/"), "{headers:?}");
        until("the span to be counted", PATIENCE, || {
            (served.metric("weir_traces_spans_exported_total") == Some(1)).then_some(())
        });
    }
}

#[test]
fn each_way_to_end_is_an_outcome() {
    let collector = Collector::start(By::Http);
    let served = traced(&collector, By::Http, &[]);
    let mut client = Client::connect(&served);
    let full = || rls::request("shop", &[("full", "x")]);
    let outcome = |wanted: &str| {
        until(wanted, PATIENCE, || collector.spans().into_iter().find(|span| span.attribute("weir.outcome") == wanted))
    };
    client.ask(full(), &[]).unwrap();
    client.ask(full(), &[]).unwrap();
    let over = outcome("over_limit");
    assert_eq!(over.attribute("weir.limits_over"), json!(["full f31536000s"]));
    assert_eq!((over.attribute("rpc.grpc.status_code"), over.status), (json!(0), 0), "a denial is no error");
    client.ask(rls::request("nowhere", &[("user", "ann")]), &[]).unwrap();
    let unknown = outcome("unknown_domain");
    assert_eq!(unknown.attribute("weir.domain"), json!("nowhere"));
    assert_eq!(unknown.attribute("weir.descriptors"), json!(["user"]));
    client.ask(rls::request("", &[("user", "ann")]), &[]).unwrap_err();
    let invalid = outcome("invalid");
    assert_eq!((invalid.attribute("rpc.grpc.status_code"), invalid.status), (json!(3), 0));
    assert_eq!(invalid.attribute("weir.domain"), Value::Null);
}

#[test]
fn a_decision_by_http_has_a_span_of_http() {
    let collector = Collector::start(By::Grpc);
    let served = traced(&collector, By::Grpc, &[]);
    let ask = |key: &str| {
        let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": key, "value": "ann"}]}]}).to_string();
        let traceparent = format!("00-{TRACE}-{SPAN}-01");
        let headers = [("traceparent", traceparent.as_str())];
        http::request(served.at.http, "POST", "/json", &headers, &body).unwrap().status
    };
    assert_eq!((ask("full"), ask("full")), (200, 429));
    http::post_json(served.at.http, "/json", "{").unwrap();
    let spans = collector.wait_for(3);
    for (span, status, outcome) in [(&spans[0], 200, "ok"), (&spans[1], 429, "over_limit"), (&spans[2], 400, "invalid")]
    {
        assert_eq!((span.name.as_str(), span.kind, span.status), ("POST /json", SERVER, 0));
        assert_eq!(span.attribute("http.request.method"), json!("POST"));
        assert_eq!(span.attribute("http.route"), json!("/json"));
        assert_eq!(span.attribute("http.response.status_code"), json!(status));
        assert_eq!(span.attribute("weir.outcome"), json!(outcome));
    }
    assert_eq!((spans[0].trace.as_str(), spans[0].parent.as_str()), (TRACE, SPAN));
    assert_eq!(spans[2].parent, "");
}

#[test]
fn the_round_trip_to_redis_is_a_child() {
    let redis = RedisServer::start();
    let collector = Collector::start(By::Grpc);
    let url = format!("redis.url={}", redis.url());
    let served = traced(&collector, By::Grpc, &["store=redis", &url, "redis.timeout=10s"]);
    let mut client = Client::connect(&served);
    client.ask(user("ann"), &[("traceparent", &format!("00-{TRACE}-{SPAN}-01"))]).unwrap();
    let spans = collector.wait_for_trace(TRACE, 2);
    let (servers, clients) = (of_kind(&spans, SERVER), of_kind(&spans, CLIENT));
    let ([server], [child]) = (&servers[..], &clients[..]) else { panic!("{spans:?}") };
    assert_eq!(server.parent, SPAN);
    assert_eq!(child.parent, server.id);
    assert_ne!(child.id, server.id);
    assert!(server.times.0 <= child.times.0 && child.times.1 <= server.times.1, "{spans:?}");
    assert_eq!((child.name.as_str(), child.status), ("EVALSHA", 0));
    let expected = [
        ("db.system.name", json!("redis")),
        ("db.system", json!("redis")),
        ("db.operation.name", json!("EVALSHA")),
        ("server.address", json!("127.0.0.1")),
        ("server.port", json!(redis.port())),
        ("weir.charges", json!(1)),
    ];
    let expected = expected.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    assert_eq!(child.attributes, expected);
    assert_eq!(server.attribute("weir.store"), json!("redis"));
    assert_eq!(server.attribute("weir.store_calls"), json!(1));
}

#[test]
fn a_redis_that_is_gone_is_an_error_of_its_span_and_on_error_is_named() {
    for (on_error, code, outcome, is_error) in
        [("allow", 0, "ok", false), ("local", 0, "ok", false), ("error", 14, "store_failed", true)]
    {
        let mut redis = RedisServer::start();
        let collector = Collector::start(By::Grpc);
        let (url, on_error_is) = (format!("redis.url={}", redis.url()), format!("on_error={on_error}"));
        let served = traced(&collector, By::Grpc, &["store=redis", &url, &on_error_is]);
        redis.kill();
        let mut client = Client::connect(&served);
        let traceparent = format!("00-{TRACE}-{SPAN}-01");
        // One that was on its way to a Redis that still answered may be another failure: until it is the refused dial.
        let spans = until("a span with the failure", PATIENCE, || {
            let _ = client.ask(user("ann"), &[("traceparent", &traceparent)]);
            let spans = collector.spans();
            let wanted = json!(code);
            spans
                .iter()
                .any(|span| {
                    span.kind == SERVER
                        && span.attribute("rpc.grpc.status_code") == wanted
                        && span.attribute("weir.on_error") == json!(on_error)
                })
                .then_some(spans)
        });
        let server = spans.iter().find(|span| {
            span.attribute("weir.on_error") == json!(on_error) && span.attribute("rpc.grpc.status_code") == json!(code)
        });
        let server = server.unwrap();
        assert_eq!(server.attribute("weir.outcome"), json!(outcome), "{on_error}");
        assert_eq!(server.status == ERROR, is_error, "{on_error}: {server:?}");
        assert!(server.attribute("weir.store_error").is_string(), "{server:?}");
        assert_eq!(server.attribute("weir.rules"), json!(["user"]), "{on_error}");
        if is_error {
            assert_eq!(server.attribute("error.type"), server.attribute("weir.store_error"));
        }
        let child = spans.iter().find(|span| span.parent == server.id).expect("the call has a span");
        assert_eq!(child.status, ERROR);
        assert_eq!(child.attribute("error.type"), server.attribute("weir.store_error"));
    }
}

#[test]
fn the_callers_context_is_the_parent_in_each_of_its_forms() {
    let collector = Collector::start(By::Grpc);
    let served = traced(&collector, By::Grpc, &["tracing.sampler=parentbased_always_off"]);
    let mut client = Client::connect(&served);
    let id = |n: u32| format!("{n:032x}");
    let forms: [Vec<(&'static str, String)>; 4] = [
        vec![("traceparent", format!("00-{}-{SPAN}-01", id(1))), ("tracestate", "vendor=a,other=b".into())],
        vec![("b3", format!("{}-{SPAN}-1", id(2)))],
        vec![("b3", format!("{}-{SPAN}-d-{SPAN}", id(3)))],
        vec![("x-b3-traceid", id(4)), ("x-b3-spanid", SPAN.into()), ("x-b3-sampled", "1".into())],
    ];
    for form in &forms {
        let metadata: Vec<(&'static str, &str)> = form.iter().map(|(name, value)| (*name, value.as_str())).collect();
        client.ask(user("ann"), &metadata).unwrap();
    }
    for n in 1..=4 {
        let spans = collector.wait_for_trace(&id(n), 1);
        assert_eq!(spans[0].parent, SPAN, "form {n}");
        assert_eq!(spans[0].state, if n == 1 { "vendor=a,other=b" } else { "" }, "form {n}");
    }
    // A caller that decided against it, and one that left it to weir, whose sampler is off.
    for metadata in [
        vec![("traceparent", format!("00-{}-{SPAN}-00", id(5)))],
        vec![("b3", format!("{}-{SPAN}-0", id(6)))],
        vec![("b3", "0".to_owned())],
        vec![("b3", format!("{}-{SPAN}", id(7)))],
        vec![],
    ] {
        let metadata: Vec<(&'static str, &str)> =
            metadata.iter().map(|(name, value)| (*name, value.as_str())).collect();
        client.ask(user("ann"), &metadata).unwrap();
    }
    client.ask(user("ann"), &[("traceparent", &format!("00-{}-{SPAN}-01", id(8)))]).unwrap();
    collector.wait_for_trace(&id(8), 1);
    assert_eq!(collector.spans().len(), 5, "what came before the last one and was not sampled");
}

#[test]
fn a_ratio_decides_by_the_trace_and_a_caller_overrules_it_where_it_may() {
    // The last 63 bits of an id decide: the least is sampled by any ratio, the greatest by none but 1.
    let (low, high) = (format!("{}{}", "f".repeat(16), "0".repeat(15) + "2"), "f".repeat(32));
    let ask = |sampler: &str, trace: &str, flags: &str| {
        let collector = Collector::start(By::Http);
        let sampler = format!("tracing.sampler={sampler}");
        let served = traced(&collector, By::Http, &[&sampler, "tracing.sample_ratio=0.01"]);
        let mut client = Client::connect(&served);
        client.ask(user("ann"), &[("traceparent", &format!("00-{trace}-{SPAN}-{flags}"))]).unwrap();
        drop(client);
        served.stop().unwrap();
        collector.spans().len()
    };
    assert_eq!(ask("traceidratio", &low, "00"), 1, "the id decides, and not the caller");
    assert_eq!(ask("traceidratio", &high, "01"), 0);
    assert_eq!(ask("parentbased_traceidratio", &high, "01"), 1, "the caller decides");
    assert_eq!(ask("parentbased_traceidratio", &low, "00"), 0);
    assert_eq!(ask("always_on", &high, "00"), 1);
    assert_eq!(ask("always_off", &low, "01"), 0);
}

#[test]
fn values_of_descriptors_are_in_spans_only_where_the_setting_says_so() {
    for (setting, expected) in [("off", "plan|path"), ("on", "plan=free|path=/secret")] {
        let collector = Collector::start(By::Http);
        let served = traced(&collector, By::Http, &[&format!("tracing.descriptor_values={setting}")]);
        let mut client = Client::connect(&served);
        client.ask(rls::request("shop", &[("plan", "free"), ("path", "/secret")]), &[]).unwrap();
        let spans = collector.wait_for(1);
        assert_eq!(spans[0].attribute("weir.descriptors"), json!([expected]));
        assert_eq!(format!("{spans:?}").contains("/secret"), setting == "on");
    }
}

#[test]
fn a_collector_that_is_gone_or_refuses_costs_spans_and_nothing_else() {
    for (by, does) in
        [(By::Grpc, None), (By::Http, None), (By::Grpc, Some(Does::Refuse)), (By::Http, Some(Does::Refuse))]
    {
        let collector = Collector::start(by);
        let served = match does {
            Some(does) => {
                collector.does(does);
                traced(&collector, by, &["tracing.otlp.timeout=1s"])
            }
            None => {
                let url = Collector::start(by).url();
                let endpoint = format!("tracing.otlp.endpoint={url}");
                let protocol = format!("tracing.otlp.protocol={}", by.setting());
                let settings =
                    ["tracing.exporter=otlp", &endpoint, &protocol, "tracing.delay=5ms", "tracing.otlp.timeout=1s"];
                Served::start(POLICY, &settings)
            }
        };
        let mut client = Client::connect(&served);
        for _ in 0..10 {
            assert!(rls::admits(&client.ask(user("ann"), &[]).unwrap()));
        }
        let dropped = || served.metric("weir_traces_spans_dropped_total{reason=\"export_failed\"}");
        until("the spans to be counted as dropped", PATIENCE, || (dropped() == Some(10)).then_some(()));
        assert_eq!(served.metric("weir_traces_spans_exported_total"), Some(0));
    }
}

#[test]
fn a_collector_that_does_not_answer_fills_the_queue_and_no_decision_waits() {
    let collector = Collector::start(By::Grpc);
    collector.does(Does::Nothing);
    let settings = ["tracing.queue=8", "tracing.batch_max=4", "tracing.otlp.timeout=5m", "tracing.export_timeout=10m"];
    let served = traced(&collector, By::Grpc, &settings);
    let mut client = Client::connect(&served);
    let dropped = |reason: &str| served.metric(&format!("weir_traces_spans_dropped_total{{reason=\"{reason}\"}}"));
    // One batch is on its way for as long as the test lives, and the queue has room for eight.
    client.ask(user("ann"), &[]).unwrap();
    until("the batch to be on its way", PATIENCE, || (!collector.requests().is_empty()).then_some(()));
    for _ in 0..30 {
        assert!(rls::admits(&client.ask(user("ann"), &[]).unwrap()));
    }
    assert_eq!(dropped("queue_full"), Some(22));
    assert_eq!(dropped("shutdown"), Some(0));
    // The end does not wait for it either: it has minutes left.
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(served.stop().is_ok()));
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(true));
}

#[test]
fn what_waits_at_the_end_is_sent_before_it() {
    for by in [By::Grpc, By::Http] {
        let collector = Collector::start(by);
        let served = traced(&collector, by, &["tracing.delay=10m"]);
        let mut client = Client::connect(&served);
        for _ in 0..5 {
            client.ask(user("ann"), &[]).unwrap();
        }
        assert!(collector.spans().is_empty(), "they wait for a batch");
        drop(client);
        served.stop().unwrap();
        assert_eq!(collector.spans().len(), 5, "{by:?}");
    }
}

#[test]
fn headers_and_compression_are_as_set() {
    for by in [By::Grpc, By::Http] {
        let collector = Collector::start(by);
        let settings = ["tracing.otlp.headers=authorization:Bearer t0k,x-scope:7", "tracing.otlp.compression=gzip"];
        let served = traced(&collector, by, &settings);
        Client::connect(&served).ask(user("ann"), &[]).unwrap();
        collector.wait_for(1);
        let (_, headers) = &collector.requests()[0];
        assert_eq!((headers["authorization"].as_str(), headers["x-scope"].as_str()), ("Bearer t0k", "7"));
        let coding = if by == By::Grpc { "grpc-encoding" } else { "content-encoding" };
        assert_eq!(headers[coding], "gzip", "{headers:?}");
    }
}

#[test]
fn the_collector_may_ask_for_tls_and_for_a_certificate() {
    let authority = Authority::new("traces");
    let (server, client) = (authority.server("collector", &["localhost"]), authority.client("weir"));
    for by in [By::Grpc, By::Http] {
        let mut config = (*ads::secured(&server, Some(&authority))).clone();
        if by == By::Http {
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
        }
        let collector = Collector::start_with(by, Some(config.into()));
        let endpoint = format!("tracing.otlp.endpoint=https://localhost:{}", collector.address.port());
        let files = [
            format!("tracing.otlp.tls.ca_file={}", authority.file().display()),
            format!("tracing.otlp.tls.cert_file={}", client.certificate.display()),
            format!("tracing.otlp.tls.key_file={}", client.key.display()),
        ];
        let protocol = format!("tracing.otlp.protocol={}", by.setting());
        let mut settings = vec!["tracing.exporter=otlp", "tracing.delay=5ms", &endpoint, &protocol];
        settings.extend(files.iter().map(String::as_str));
        let served = Served::start(POLICY, &settings);
        Client::connect(&served).ask(user("ann"), &[]).unwrap();
        assert_eq!(collector.wait_for(1).len(), 1, "{by:?}");
    }
}

#[test]
fn a_file_of_tls_that_cannot_be_used_ends_the_start() {
    let directory = PolicyDirectory::with_file("policy.yaml", POLICY);
    let arguments = [
        "--set",
        "tracing.exporter=otlp",
        "--set",
        "tracing.otlp.endpoint=https://localhost:1",
        "--set",
        "tracing.otlp.tls.ca_file=/no/such/ca.pem",
    ];
    let problem = Weir::try_start(&directory.path(), &arguments, &[]).unwrap_err();
    assert!(problem.contains("/no/such/ca.pem"), "{problem}");
}

#[test]
fn the_variables_of_opentelemetry_are_enough() {
    let collector = Collector::start(By::Grpc);
    let directory = PolicyDirectory::with_file("policy.yaml", POLICY);
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc".into()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-words=two%20words".into()),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-traces=1".into()),
        ("OTEL_SERVICE_NAME", "limits".into()),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.namespace=edge".into()),
        ("OTEL_BSP_SCHEDULE_DELAY", "5".into()),
        ("OTEL_PROPAGATORS", "tracecontext,baggage".into()),
    ];
    let variables: Vec<(String, String)> = variables.map(|(name, text)| (name.to_owned(), text)).into();
    let weir = Weir::try_start(&directory.path(), &[] as &[&str], &variables).unwrap();
    let mut client = rls::Client::connect(weir.grpc);
    assert!(client.admits("shop", "user", "ann"));
    let spans = collector.wait_for(1);
    for (key, value) in
        [("service.name", "limits"), ("service.namespace", "edge"), ("deployment.environment.name", "test")]
    {
        assert_eq!(spans[0].resource[key], value);
    }
    let (_, headers) = &collector.requests()[0];
    assert_eq!(headers.get("x-words").map(String::as_str), Some("two words"));
    assert_eq!(headers.get("x-traces"), None, "of one signal only the endpoint counts");
    let noted =
        weir.count_in_log(|line| line.message() == Some("OTEL_PROPAGATORS names baggage, which weir does not read"));
    assert_eq!(noted, 1, "{}", weir.written());
}

#[test]
fn headers_of_the_settings_replace_those_of_the_environment() {
    for by in [By::Grpc, By::Http] {
        let collector = Collector::start(by);
        let directory = PolicyDirectory::with_file("policy.yaml", POLICY);
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", by.setting().to_owned()),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-theirs=1".to_owned()),
            ("OTEL_BSP_SCHEDULE_DELAY", "5".to_owned()),
        ];
        let variables: Vec<(String, String)> = variables.map(|(name, text)| (name.to_owned(), text)).into();
        let arguments = ["--set", "tracing.otlp.headers=x-ours:2"];
        let weir = Weir::try_start(&directory.path(), &arguments, &variables).unwrap();
        assert!(rls::Client::connect(weir.grpc).admits("shop", "user", "ann"));
        collector.wait_for(1);
        let (_, headers) = &collector.requests()[0];
        assert_eq!((headers.get("x-theirs"), headers["x-ours"].as_str()), (None, "2"), "{by:?}");
    }
}

#[test]
fn without_the_setting_nothing_is_traced_or_counted() {
    let served = Served::start(POLICY, &[]);
    let mut client = Client::connect(&served);
    client.ask(user("ann"), &[("traceparent", &format!("00-{TRACE}-{SPAN}-01"))]).unwrap();
    assert_eq!(served::metric(served.at.http, "weir_traces_spans_exported_total"), None);
}

/// A caller that goes away while Redis is silent.
#[test]
fn a_request_that_its_caller_gives_up_has_a_span() {
    let redis = RedisServer::start();
    let collector = Collector::start(By::Grpc);
    let url = format!("redis.url={}", redis.url());
    let served = traced(&collector, By::Grpc, &["store=redis", &url, "redis.timeout=1m"]);
    redis.freeze();
    let mut client = Client::connect(&served);
    let before = Instant::now();
    let timeout = Duration::from_millis(300);
    let service = &mut client.service;
    let given_up =
        client.runtime.block_on(async { tokio::time::timeout(timeout, service.should_rate_limit(user("ann"))).await });
    assert!(given_up.is_err(), "{:?}", before.elapsed());
    drop(client);
    redis.thaw();
    let spans = until("the span", PATIENCE, || {
        let spans = collector.spans();
        spans.iter().any(|span| span.attribute("weir.outcome") == json!("cancelled")).then_some(spans)
    });
    let server = of_kind(&spans, SERVER)[0];
    assert_eq!((server.status, server.attribute("rpc.grpc.status_code")), (0, Value::Null));
}

#[test]
fn a_span_has_what_became_of_holds() {
    let policy =
        "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 100, hold: true}}\n";
    let collector = Collector::start(By::Http);
    let served = traced_with(policy, &collector, By::Http, &[]);
    let ask = |hits: u64, receipt: Option<&str>| -> Value {
        let mut entries = vec![json!({"key": "user", "value": "ann"})];
        entries.extend(receipt.map(|receipt| json!({"key": "weir.receipt", "value": receipt})));
        let body = json!({"domain": "shop", "descriptors": [{"entries": entries, "hitsAddend": hits}]});
        let answer = http::post_json(served.at.http, "/json", &body.to_string()).unwrap();
        serde_json::from_str(&answer.body).unwrap()
    };
    let (less, more) = (ask(40, None), ask(10, None));
    ask(7, less["receipt"].as_str());
    ask(15, more["receipt"].as_str());
    ask(1, Some("none"));
    let mut spans = collector.wait_for(5);
    spans.sort_by_key(|span| span.times);
    let of_holds = spans.iter().map(|span| {
        let is_of_holds = |key: &&String| key.starts_with("weir.holds_") || key.starts_with("weir.hits_");
        let keys = span.attributes.keys().filter(is_of_holds);
        keys.map(|key| format!("{key}={}", span.attributes[key])).collect::<Vec<_>>().join(" ")
    });
    assert_eq!(
        of_holds.collect::<Vec<_>>(),
        [
            "weir.hits_held=40 weir.holds_opened=1",
            "weir.hits_held=10 weir.holds_opened=1",
            "weir.hits_given_back=33 weir.holds_settled=1",
            "weir.hits_excess=5 weir.holds_settled=1",
            "weir.holds_reported=1",
        ]
    );
}

#[test]
fn a_span_names_the_caller_also_of_a_request_that_it_may_not_send() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("callers.yaml");
    std::fs::write(&file, "callers: [{name: edge, listeners: [grpc], domains: [shop], may: [charge]}]\n").unwrap();
    let collector = Collector::start(By::Http);
    let served = traced(&collector, By::Http, &[&format!("callers.file={}", file.display())]);
    let mut client = Client::connect(&served);
    client.ask(user("ann"), &[]).unwrap();
    client.ask(rls::look("shop", &[("user", "ann")]), &[]).unwrap_err();
    for (outcome, code) in [("ok", 0), ("not_allowed", 7)] {
        let span = until(outcome, PATIENCE, || {
            collector.spans().into_iter().find(|span| span.attribute("weir.outcome") == outcome)
        });
        assert_eq!((span.attribute("weir.caller"), span.status), (json!("edge"), 0), "{outcome}");
        assert_eq!(span.attribute("rpc.grpc.status_code"), json!(code));
    }
}
