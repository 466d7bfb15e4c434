//! weir in the place of the rate limit service of Envoy Gateway: with the environment that Envoy Gateway gives it, with
//! certificates and policies as Envoy Gateway makes them, and started before there is a control plane.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor as WireDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::ratelimit::config::ratelimit::v3::{RateLimitConfig, RateLimitDescriptor};
use prost::Message as _;
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tonic::Code;
use tonic::transport::Channel;

use super::started::{Environment, Ratelimit, launch, program};
use crate::support::ads::{self, Ads, limited};
use crate::support::authority::{Authority, Issued};
use crate::support::envoy::Envoy as RealEnvoy;
use crate::support::http;
use crate::support::process::{LogLine, Process};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, RateLimitRequest, RateLimitResponse};
use crate::support::secured::{Address, Connector, config};
use crate::support::wait::{PATIENCE, until, within};

/// The text of a decision while there are no policies.
const NO_POLICIES: &str = "no rate limit configuration loaded";
/// The domain of a listener, and the names of two of its routes.
const DOMAIN: &str = "default/eg/http";
const ROUTE: &str = "httproute/default/backend/rule/0/match/0/www_example_com";
const ANY_HOST: &str = "httproute/default/backend/rule/1/match/-1/*";
/// The key of a rule that holds for every request.
const EVERY: &str = "rule-0-match--1";

/// Mappings of statistics: globs for the counters, a regular expression for rules of any depth, and a histogram.
const MAPPER: &str = r#"
mappings:
  - match: "ratelimit.service.rate_limit.*.*.*.over_limit"
    name: gateway_denied
    match_metric_type: counter
    labels:
      listener: "$1"
      route: "$2"
      rule: "$3"
  - match: 'ratelimit\.service\.rate_limit\.([^.]+)\.(.+)\.(total_hits|shadow_mode)'
    match_type: regex
    name: "gateway_$3"
    labels:
      listener: "$1"
      path: "$2"
  - match: "ratelimit.service.call.should_rate_limit.*"
    name: gateway_errors
    match_metric_type: counter
    labels: {kind: "$1"}
  - match: "ratelimit.service.config_load_success"
    name: gateway_loads
    match_metric_type: counter
    labels: {source: xds}
  - match: "ratelimit_server.*.total_requests"
    name: gateway_calls
    match_metric_type: counter
    labels: {method: "$1"}
  - match: "ratelimit_server.*.response_time"
    name: gateway_seconds
    timer_type: histogram
    labels: {method: "$1"}
  - match: '.'
    match_type: regex
    action: drop
    name: dropped
"#;

/// Where the files are that Envoy Gateway mounts, and all that runs beside weir.
struct Gateway {
    authority: Authority,
    redis: RedisServer,
    files: TempDir,
    /// Where the control plane will listen.
    control_plane: SocketAddr,
}

impl Gateway {
    fn new() -> Self {
        let authority = Authority::new("envoy-gateway");
        let issued = authority.of_a_gateway("rate-limit", &["*.envoy-gateway-system", "localhost"]);
        let files = TempDir::new().unwrap();
        for (from, to) in [(&issued.certificate, "tls.crt"), (&issued.key, "tls.key"), (&authority.file(), "ca.crt")] {
            fs::copy(from, files.path().join(to)).unwrap();
        }
        fs::write(files.path().join("conf.yaml"), MAPPER).unwrap();
        Self { authority, redis: RedisServer::start(), files, control_plane: free_address() }
    }

    fn file(&self, name: &str) -> String {
        self.files.path().join(name).to_str().unwrap().to_owned()
    }

    /// What Envoy Gateway sets, with this machine's ports and paths.
    fn environment(&self) -> Environment {
        let server = format!("localhost:{}", self.control_plane.port());
        let redis = format!("localhost:{}", self.redis.port());
        let (certificate, key, authorities) = (self.file("tls.crt"), self.file("tls.key"), self.file("ca.crt"));
        let mapper = self.file("conf.yaml");
        [
            ("RUNTIME_ROOT", "/data"),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("RUNTIME_IGNOREDOTFILES", "true"),
            ("RUNTIME_WATCH_ROOT", "false"),
            ("LOG_LEVEL", "info"),
            ("USE_STATSD", "false"),
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &server),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", &certificate),
            ("GRPC_SERVER_TLS_KEY", &key),
            ("GRPC_SERVER_TLS_CA_CERT", &authorities),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &certificate),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &authorities),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", &redis),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", ":0"),
            ("PROMETHEUS_MAPPER_YAML", &mapper),
            ("TRACING_ENABLED", "true"),
            ("TRACING_SERVICE_NAME", "envoy-ratelimit"),
            ("TRACING_SERVICE_NAMESPACE", "envoy-gateway-system"),
            ("TRACING_SERVICE_INSTANCE_ID", "envoy-ratelimit-0"),
            ("TRACING_SAMPLING_RATE", "0.6"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://trace-collector.envoy-gateway-system.svc.cluster.local:4318"),
            // Beyond theirs: a machine that runs many tests at once is slow.
            ("REDIS_TIMEOUT", "10s"),
        ]
        .into_iter()
        .fold(Environment::default(), |environment, (name, text)| environment.with(name, text))
    }

    /// A control plane that asks for certificates, as Envoy Gateway's does.
    fn start(&self) -> Ads {
        let names = ["envoy-gateway", "envoy-gateway.envoy-gateway-system", "localhost"];
        let server = self.authority.of_a_gateway("envoy-gateway", &names);
        Ads::start_with(self.control_plane, Some(ads::secured(&server, Some(&self.authority))))
    }

    /// A connection as Envoy makes it: TLS, with a certificate that weir does not ask for.
    fn envoy(&self, grpc: SocketAddr) -> Envoy {
        let own = self.authority.client("envoy");
        Envoy::connect(Address::Tls(grpc, Arc::new(config(&self.authority, Some(&own)))))
    }
}

/// A client on one connection.
struct Envoy {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Envoy {
    fn connect(place: Address) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let channel = runtime.block_on(Connector::new(place).channel()).expect("a connection");
        Self { runtime, channel }
    }

    fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
        self.runtime.block_on(rls::ask(self.channel.clone(), request))
    }

    /// Whether a request of this route with these entries passes.
    fn admits(&self, route: &str, entries: &[(&str, &str)]) -> bool {
        rls::admits(&self.ask(routed(route, entries)).expect("an answer"))
    }

    fn all<const N: usize>(&self, route: &str, entries: &[(&str, &str)]) -> [bool; N] {
        [(); N].map(|()| self.admits(route, entries))
    }
}

/// A request with one descriptor: the route, which is its own value, and what the rule asks about.
fn routed(route: &str, entries: &[(&str, &str)]) -> RateLimitRequest {
    let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
    let entries = std::iter::once(entry(route, route)).chain(entries.iter().map(|(key, value)| entry(key, value)));
    let descriptor = WireDescriptor { entries: entries.collect(), ..WireDescriptor::default() };
    RateLimitRequest { domain: DOMAIN.to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// A node of the tree of descriptors that has others below it.
fn node(key: &str, value: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitDescriptor {
    RateLimitDescriptor { key: key.to_owned(), value: value.to_owned(), descriptors, ..RateLimitDescriptor::default() }
}

/// A leaf with a limit.
fn leaf(key: &str, value: &str, requests: u32) -> RateLimitDescriptor {
    RateLimitDescriptor { value: value.to_owned(), ..limited(key, requests) }
}

fn resource(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> envoy_types::pb::google::protobuf::Any {
    let config = RateLimitConfig { name: domain.to_owned(), domain: domain.to_owned(), descriptors };
    envoy_types::pb::google::protobuf::Any { type_url: ads::TYPE_URL.to_owned(), value: config.encode_to_vec() }
}

/// What Envoy Gateway makes of rules for a route: each value of a header, a header with one value, client addresses, each
/// address, and shadow.
fn policies(requests: u32) -> Vec<envoy_types::pb::google::protobuf::Any> {
    let shadowed = |descriptor: RateLimitDescriptor| RateLimitDescriptor { shadow_mode: true, ..descriptor };
    let each_address = leaf("remote_address", "", requests);
    let rules = vec![
        leaf("rule-0-match-0", "", requests),
        node("rule-1-match-0", "rule-1-match-0", vec![leaf("rule-1-match-1", "rule-1-match-1", requests)]),
        node("masked_remote_address", "127.0.0.0/16", vec![each_address]),
        leaf("masked_remote_address", "2001:db8::/32", requests),
        shadowed(node("rule-4-match-0", "rule-4-match-0", vec![shadowed(leaf("rule-4-match-1", "", requests))])),
    ];
    let any_host = node(ANY_HOST, ANY_HOST, vec![leaf(EVERY, EVERY, requests)]);
    vec![resource(DOMAIN, vec![node(ROUTE, ROUTE, rules), any_host]), resource("default/eg/https", Vec::new())]
}

fn free_address() -> SocketAddr {
    TcpListener::bind(ads::any_port()).unwrap().local_addr().unwrap()
}

fn status_of(http: SocketAddr, path: &str) -> Option<u16> {
    http::get(http, path).ok().map(|answer| answer.status)
}

/// The regular files that a process has open for writing.
fn written_files(process: &Process) -> Vec<PathBuf> {
    let of = |part: &str| PathBuf::from(format!("/proc/{}/{part}", process.id()));
    let mut files = Vec::new();
    for entry in fs::read_dir(of("fd")).unwrap().flatten() {
        // One may be closed meanwhile.
        let number = entry.file_name().into_string().unwrap();
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let Ok(info) = fs::read_to_string(of(&format!("fdinfo/{number}"))) else { continue };
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
        let is_for_reading = u32::from_str_radix(flags, 8).unwrap() & 0b11 == 0;
        if !is_for_reading && target.is_absolute() && !target.starts_with("/dev") {
            files.push(target);
        }
    }
    files
}

#[test]
fn weir_serves_in_the_place_of_envoy_gateways_rate_limit_service() {
    let gateway = Gateway::new();
    let empty = TempDir::new().unwrap();
    let mut command = program("ratelimit", &gateway.environment());
    for variable in ["HOST", "DEBUG_HOST", "GRPC_HOST"] {
        command.env(variable, "127.0.0.1");
    }
    for variable in ["PORT", "DEBUG_PORT", "GRPC_PORT"] {
        command.env(variable, "0");
    }
    command.env("WEIR__LOG__FORMAT", "json");
    command.current_dir(empty.path()).env("HOME", empty.path()).env("TMPDIR", empty.path());
    let before = listed(gateway.files.path());
    let mut process = Process::spawn(command);
    let [grpc, http] = ["grpc", "http"].map(|listener| process.address_of(listener).unwrap());
    let metrics: SocketAddr = process.address_of("metrics").unwrap();
    let metrics = SocketAddr::from(([127, 0, 0, 1], metrics.port()));

    // There is no control plane yet: the probes are answered, and decisions are not.
    until("the probes to pass", PATIENCE, || (status_of(http, "/healthcheck") == Some(200)).then_some(()));
    let envoy = gateway.envoy(grpc);
    let refused = envoy.ask(routed(ROUTE, &[("rule-0-match-0", "ann")])).expect_err("there are no policies");
    assert_eq!((refused.code(), refused.message()), (Code::Unavailable, NO_POLICIES));

    let ads = gateway.start();
    ads.set("1", policies(2));
    let ack = ads.wait_for_ack("1");
    let node = ack.request.node.as_ref().expect("a node");
    assert_eq!(node.id, "envoy-ratelimit");
    let shown = CertificateDer::from_pem_file(gateway.file("tls.crt")).unwrap();
    assert_eq!(ack.certificate.as_deref(), Some(shown.as_ref()));

    // Each value of a header, two headers together, and addresses.
    assert_eq!(envoy.all(ROUTE, &[("rule-0-match-0", "ann")]), [true, true, false]);
    assert_eq!(envoy.all(ROUTE, &[("rule-0-match-0", "bob|*/:")]), [true, true, false]);
    let both = [("rule-1-match-0", "rule-1-match-0"), ("rule-1-match-1", "rule-1-match-1")];
    assert_eq!(envoy.all(ROUTE, &both), [true, true, false]);
    assert!(envoy.admits(ROUTE, &both[..1]), "one of both headers alone has no limit");
    let from = |address: &'static str| [("masked_remote_address", "127.0.0.0/16"), ("remote_address", address)];
    assert_eq!(envoy.all(ROUTE, &from("127.0.0.1")), [true, true, false]);
    assert!(envoy.admits(ROUTE, &from("127.0.0.2")), "each address has a limit of its own");
    assert_eq!(envoy.all(ROUTE, &[("masked_remote_address", "2001:db8::/32")]), [true, true, false]);
    assert!(envoy.admits(ROUTE, &[("masked_remote_address", "10.0.0.0/16"), ("remote_address", "10.0.0.1")]));
    let shadowed = [("rule-4-match-0", "rule-4-match-0"), ("rule-4-match-1", "ann")];
    assert_eq!(envoy.all(ROUTE, &shadowed), [true, true, true], "shadow denies nothing");
    assert_eq!(envoy.all(ANY_HOST, &[(EVERY, EVERY)]), [true, true, false]);

    // GRPC_SERVER_TLS_CA_CERT is no variable of envoyproxy/ratelimit: a client needs no certificate.
    let anonymous = Envoy::connect(Address::Tls(grpc, Arc::new(config(&gateway.authority, None))));
    assert!(!anonymous.admits(ANY_HOST, &[(EVERY, EVERY)]), "it is served, and the limit is used up");

    // The mapping file's names. Requests of one rule have one name, whatever their values.
    let text = http::get(metrics, "/metrics").unwrap().body;
    let series = |name: &str, labels: &[&str]| {
        let found = text.lines().find(|line| {
            line.split_once('{').is_some_and(|(of, _)| of == name) && labels.iter().all(|label| line.contains(label))
        });
        found.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    };
    let listener = format!("listener=\"{DOMAIN}\"");
    let route = format!("route=\"{ROUTE}_{ROUTE}\"");
    assert_eq!(series("gateway_denied", &[&listener, &route, "rule=\"rule-0-match-0\""]), 2.0, "{text}");
    assert_eq!(series("gateway_total_hits", &[&listener, "rule-1-match-1_rule-1-match-1\""]), 3.0, "{text}");
    assert_eq!(series("gateway_shadow_mode", &[&listener, "rule-4-match-1"]), 1.0, "{text}");
    assert_eq!(
        series("gateway_errors", &["kind=\"service_error\""]),
        1.0,
        "the one before there were policies: {text}"
    );
    assert_eq!(series("gateway_loads", &["source=\"xds\""]), 1.0, "{text}");
    assert!(series("gateway_calls", &["method=\"ShouldRateLimit\""]) > 20.0, "{text}");
    assert!(series("gateway_seconds_count", &["method=\"ShouldRateLimit\""]) > 20.0, "{text}");
    assert!(!text.lines().any(|line| line.starts_with("ratelimit")), "the last mapping drops the rest: {text}");

    // An update: what was used stays used.
    ads.set("2", policies(3));
    ads.wait_for_ack("2");
    assert_eq!(envoy.all(ROUTE, &[("rule-0-match-0", "carol")]), [true, true, true, false]);
    assert_eq!(status_of(http, "/healthcheck"), Some(200));

    // There is no collector here: what it costs is a line of log a minute, at most.
    let exporting = process.count_in_log(|line: &LogLine| line.message() == Some("exporting traces"));
    assert_eq!(exporting, 1, "{}", process.written());
    let warned = |line: &LogLine| line.message() == Some("policies load with a warning");
    assert!(!process.has_logged(warned), "Envoy Gateway's policies are not worth a warning: {}", process.written());
    assert_eq!(written_files(&process), Vec::<PathBuf>::new());

    process.terminate();
    let (status, written) = process.finish();
    assert_eq!(status.code(), Some(0), "{written}");
    assert_eq!(listed(empty.path()), Vec::<String>::new(), "nothing is written where weir ran");
    assert_eq!(listed(gateway.files.path()), before, "nor beside its certificates");
}

fn listed(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

/// What the callers of a real Envoy see before there are policies, with policies, and after an update.
#[test]
fn a_real_envoy_asks_by_tls() {
    let gateway = Gateway::new();
    let weir = Ratelimit::listening(&gateway.environment()).unwrap();
    until("the probes to pass", PATIENCE, || (status_of(weir.http, "/healthcheck") == Some(200)).then_some(()));
    let envoy = RealEnvoy::start_for_gateway(weir.grpc, gateway.files.path());
    let get = |path: &str, headers: &[(&str, &str)]| {
        http::request(envoy.ingress, "GET", path, headers, "").expect("an answer").status
    };
    assert_eq!(get("/users", &[("x-user", "ann")]), 200, "requests pass while there are no policies");

    let ads = gateway.start();
    ads.set("1", policies(2));
    ads.wait_for_ack("1");
    let thrice = |path: &str, headers: &[(&str, &str)]| [(); 3].map(|()| get(path, headers));
    assert_eq!(thrice("/users", &[("x-user", "ann")]), [200, 200, 429]);
    assert_eq!(thrice("/users", &[("x-user", "bob")]), [200, 200, 429], "each value has a limit of its own");
    assert_eq!(thrice("/addresses", &[]), [200, 200, 429]);
    assert_eq!(thrice("/shadow", &[("x-user", "ann"), ("x-plan", "trial")]), [200, 200, 200]);
    assert_eq!(thrice("/users", &[]), [200, 200, 200], "without the header no limit holds");

    ads.set("2", policies(4));
    ads.wait_for_ack("2");
    assert_eq!(get("/users", &[("x-user", "carol")]), 200);
    assert_eq!(thrice("/users", &[("x-user", "carol")]), [200, 200, 200]);
    assert_eq!(get("/users", &[("x-user", "carol")]), 429, "the update is in force");
}

/// The control plane of envoyproxy/ratelimit's own suite: without TLS, at a name that has an address of each IP version,
/// with resources that have no name. It ends the first streams.
#[test]
fn a_control_plane_without_tls_is_found_by_name_and_chosen_by_metadata() {
    let address = free_address();
    let environment = Environment::default()
        .with("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .with("CONFIG_GRPC_XDS_SERVER_URL", &format!("localhost:{}", address.port()))
        .with("CONFIG_GRPC_XDS_NODE_ID", "init-test-node")
        .with("CONFIG_GRPC_XDS_NODE_METADATA", "zone=eu-1,stage=a=b,spoiled,=x,zone=eu-2")
        .with("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "Authorization:Bearer hunter2,x-tenant:blue")
        .with("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "20ms");
    let mut process = launch(&environment, &[]);
    let ads = Ads::start_with(address, None);
    for stream in 0..3 {
        ads.wait_for("a stream", |seen| seen.stream == stream);
        ads.end_streams(Some(&tonic::Status::unavailable("not yet")));
    }
    assert!(!process.has_logged(|line| line.message() == Some("listening")), "listeners wait for the first policies");
    let domain = |domain: &str, key: &str, requests: u32| {
        let descriptors = vec![limited(key, requests)];
        let config = RateLimitConfig { name: String::new(), domain: domain.to_owned(), descriptors };
        envoy_types::pb::google::protobuf::Any { type_url: ads::TYPE_URL.to_owned(), value: config.encode_to_vec() }
    };
    ads.set("1", vec![domain("basic", "key1", 50), domain("another", "key2", 1)]);
    let ack = ads.wait_for_ack("1");
    let node = ack.request.node.as_ref().unwrap();
    assert_eq!(node.id, "init-test-node");
    let metadata = &node.metadata.as_ref().unwrap().fields;
    let text = |key: &str| metadata.get(key).and_then(|value| value.kind.clone());
    assert_eq!(text("zone"), Some(Kind::StringValue("eu-2".into())), "the last one");
    assert_eq!(text("stage"), Some(Kind::StringValue("a=b".into())));
    assert_eq!(metadata.len(), 2, "{metadata:?}");
    assert_eq!(ack.headers["authorization"], "Bearer hunter2");
    assert_eq!(ack.headers["x-tenant"], "blue");

    let grpc = process.address_of("grpc").unwrap();
    let mut client = rls::Client::connect(grpc);
    assert_eq!([(); 2].map(|()| client.admits("another", "key2", "a")), [true, false]);
    ads.set("2", vec![domain("basic", "key1", 1), domain("another", "key2", 50)]);
    ads.wait_for_ack("2");
    assert_eq!([(); 2].map(|()| client.admits("basic", "key1", "a")), [true, false]);
    assert!(client.admits("another", "key2", "a"));
    let told = |text: &str| process.has_logged(|line| line.raw().contains(text));
    assert!(told("CONFIG_GRPC_XDS_NODE_METADATA") && told("2 of its parts"), "{}", process.written());
    assert!(!told("hunter2"), "headers may be secrets");
}

#[test]
fn health_can_wait_for_policies() {
    let ads = Ads::start();
    let environment = Environment::default()
        .with("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .with("CONFIG_GRPC_XDS_SERVER_URL", &ads.server())
        .with("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
        .with("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let weir = Ratelimit::listening(&environment).unwrap();
    ads.wait_for("a request", |_| true);
    assert_eq!(status_of(weir.http, "/healthcheck"), Some(500));
    ads.set("1", vec![ads::shop(1)]);
    ads.wait_for_ack("1");
    let becomes =
        |status: u16| within(PATIENCE, || (status_of(weir.http, "/healthcheck") == Some(status)).then_some(()));
    assert!(becomes(200).is_some(), "{}", weir.process.written());
    ads.set("2", Vec::new());
    ads.wait_for_ack("2");
    assert!(becomes(500).is_some(), "no domain is left");
}

/// The listener as envoyproxy/ratelimit's suite has it: keys in PKCS#1, a client that must be called `localhost` and
/// offers no protocol, and certificates that are replaced by two renames.
#[test]
fn callers_need_the_name_and_certificates_are_replaced_by_renames() {
    let (servers, callers) = (Authority::new("servers"), Authority::new("callers"));
    let issued = servers.of_a_gateway("server", &["localhost"]);
    let runtime = super::started::Runtime::with([("shop.yaml", "domain: shop\n")]);
    let environment = runtime
        .variables()
        .with("GRPC_SERVER_USE_TLS", "true")
        .with("GRPC_SERVER_TLS_CERT", issued.certificate.to_str().unwrap())
        .with("GRPC_SERVER_TLS_KEY", issued.key.to_str().unwrap())
        .with("GRPC_CLIENT_TLS_CACERT", callers.file().to_str().unwrap())
        .with("GRPC_CLIENT_TLS_SAN", "localhost");
    let weir = Ratelimit::try_start(&environment).unwrap();
    let ask = |trusted: &Authority, own: &Issued| {
        let mut client = config(trusted, Some(own));
        client.alpn_protocols.clear();
        let connector = Connector::new(Address::Tls(weir.grpc, Arc::new(client)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let channel = connector.channel().await.map_err(|error| format!("{error:?}"))?;
            let answer = rls::ask(channel, rls::request("shop", &[("user", "ann")])).await;
            answer.map(|answer| rls::admits(&answer)).map_err(|status| status.to_string())
        })
    };
    let named = callers.client_named("named", &["localhost"], &[]);
    assert_eq!(ask(&servers, &named), Ok(true));
    let other = callers.client_named("other", &["localhost.example"], &[]);
    assert!(ask(&servers, &other).is_err());
    let foreign = servers.client_named("foreign", &["localhost"], &[]);
    assert!(ask(&servers, &foreign).is_err());

    let next = Authority::new("next");
    let second = next.server("second", &["localhost"]);
    fs::rename(&second.certificate, &issued.certificate).unwrap();
    fs::rename(&second.key, &issued.key).unwrap();
    until("the new certificate", PATIENCE, || (ask(&next, &named) == Ok(true)).then_some(()));
    assert!(ask(&servers, &named).is_err(), "the old certificate is gone");
}
