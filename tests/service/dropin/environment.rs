//! What each variable of envoyproxy/ratelimit becomes in weir: the mapping by itself, and the page that lists it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use weir_cli::ratelimit;
use weir_engine::Mode;
use weir_settings::envoy_ratelimit::{self, Effect, Machine, Note, Type, VARIABLES};
use weir_settings::otel::{self, TurnsOn};
use weir_settings::{
    Endpoints, Layer, LogFormat, PolicySource, Problems, Secret, Setting, Settings, StoreKind, Topology,
};

fn variables(given: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    given.iter().map(|(name, text)| (OsString::from(name), OsString::from(text))).collect()
}

/// The settings of these variables on a machine of four cores, which knows one host.
fn read(given: &[(&str, &str)]) -> Result<(Settings, Vec<Note>), Problems> {
    let resolve = |host: &str| (host == "localhost").then_some(IpAddr::from(Ipv4Addr::LOCALHOST));
    let machine = Machine { cores: 4, any: Ipv6Addr::UNSPECIFIED.into(), resolve: &resolve };
    let reading = envoy_ratelimit::read(variables(given), &machine);
    let standard = otel::read(variables(given), TurnsOn::No);
    let layers =
        [reading.fixed, standard.settings, reading.variables, Layer::environment(variables(given)), standard.last];
    Ok((Settings::load(&layers)?, [reading.notes, standard.notes].concat()))
}

#[track_caller]
fn settings(given: &[(&str, &str)]) -> Settings {
    read(given).unwrap_or_else(|problems| panic!("{given:?}: {problems}")).0
}

#[track_caller]
fn problems(given: &[(&str, &str)]) -> String {
    match read(given) {
        Ok((settings, _)) => panic!("{given:?} was accepted: {settings:?}"),
        Err(problems) => problems.to_string(),
    }
}

#[track_caller]
fn notes(given: &[(&str, &str)]) -> String {
    let (_, notes) = read(given).unwrap_or_else(|problems| panic!("{given:?}: {problems}"));
    let lines: Vec<String> = notes.iter().map(|note| format!("{} {}", note.variable, note.text)).collect();
    lines.join("\n")
}

#[test]
fn without_a_variable_it_is_as_envoyproxy_ratelimit_is() {
    let found = settings(&[]);
    assert_eq!(found.listen.grpc[0].to_string(), "0.0.0.0:8081");
    assert_eq!(found.listen.http.to_string(), "0.0.0.0:8080");
    assert_eq!(found.listen.admin.to_string(), "0.0.0.0:6070");
    assert_eq!(found.listen.metrics, None);
    assert_eq!(found.admin_endpoints, Endpoints::Ratelimit, "everybody may reach that address");
    assert_eq!(found.policies.directory, Path::new("/srv/runtime_data/current/config"));
    assert!(
        found.policies.all_files && found.policies.dot_files && found.policies.beside && found.policies.allow_empty
    );
    assert_eq!(found.store, StoreKind::Memory);
    assert_eq!(found.charging, Mode::Independent);
    assert_eq!(found.deny_cache.max_age, Duration::ZERO);
    assert_eq!(found.redis.timeout, Duration::from_millis(10));
    assert_eq!(found.redis.start_within, Duration::ZERO);
    assert_eq!(found.log.level, "info");
    let limits = [found.limits.descriptors, found.limits.entries, found.limits.domain_bytes, found.limits.key_bytes];
    assert_eq!(limits, [64, 64, 4096, 65_536]);
    assert_eq!([found.limits.value_bytes, found.limits.request_bytes], [1_048_576, 4_194_304]);
    assert_eq!(found.limits.hits, u32::MAX);
    assert!(!found.health.redis && !found.health.policies);
    let told = notes(&[]);
    assert!(told.starts_with("REDIS_URL is unset: weir keeps the limits in its own memory"), "{told}");
}

/// Where the bounds of weir's own settings end, so do those of weir as `ratelimit`.
#[test]
fn the_bounds_on_input_are_the_widest_there_are() {
    let found = settings(&[]);
    for name in
        ["limits.descriptors", "limits.entries", "limits.domain_bytes", "limits.key_bytes", "limits.value_bytes"]
    {
        let bounds = Setting::find(name).unwrap().bounds();
        let widest = bounds.split(' ').nth(2).unwrap();
        let text = format!("{:?}", found.limits);
        let field = name.strip_prefix("limits.").unwrap();
        assert!(text.contains(&format!("{field}: {widest}")), "{name}: {bounds}, {text}");
    }
}

#[test]
fn listeners_have_a_host_and_a_port() {
    let found = settings(&[
        ("HOST", "127.0.0.1"),
        ("PORT", "0x1F90"),
        ("DEBUG_HOST", "::1"),
        ("DEBUG_PORT", "7000"),
        ("GRPC_HOST", "localhost"),
        ("GRPC_PORT", "0"),
    ]);
    assert_eq!(found.listen.http.to_string(), "127.0.0.1:8080");
    assert_eq!(found.listen.admin.to_string(), "[::1]:7000");
    assert_eq!(found.listen.grpc[0].to_string(), "127.0.0.1:0");
    assert_eq!(settings(&[("HOST", "")]).listen.http.to_string(), "[::]:8080");
    assert_eq!(
        problems(&[("HOST", "nowhere.invalid"), ("GRPC_PORT", "65536")]),
        "HOST: \"nowhere.invalid\": this host has no address here\nGRPC_PORT: 65536: not a port, which is from 0 to 65535"
    );
    let both = problems(&[("PORT", "8081")]);
    assert_eq!(both, "PORT: listen.http = \"0.0.0.0:8081\": already taken by listen.grpc = 0.0.0.0:8081");
}

#[test]
fn grpc_by_tls_and_a_socket() {
    let found = settings(&[("GRPC_UDS", "/run/ratelimit.sock"), ("GRPC_MAX_CONNECTION_AGE", "90s")]).listen;
    assert_eq!(found.grpc[0].to_string(), "unix:/run/ratelimit.sock");
    assert_eq!(found.max_connection_age, Duration::from_secs(90));
    let files = [
        ("GRPC_SERVER_TLS_CERT", "/tls/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/tls/tls.key"),
        ("GRPC_CLIENT_TLS_CACERT", "/tls/ca.crt"),
        ("GRPC_CLIENT_TLS_SAN", "envoy.mesh"),
    ];
    assert_eq!(settings(&files).listen.tls, None, "GRPC_SERVER_USE_TLS is false");
    let tls = settings(&[&files[..], &[("GRPC_SERVER_USE_TLS", "true")]].concat()).listen.tls.unwrap();
    assert_eq!(tls.cert_file, Path::new("/tls/tls.crt"));
    assert_eq!(tls.key_file, Path::new("/tls/tls.key"));
    assert_eq!(tls.client_ca_file.as_deref(), Some(Path::new("/tls/ca.crt")));
    assert_eq!(tls.client_names.len(), 1);
    let without =
        [("GRPC_SERVER_USE_TLS", "true"), files[0], files[1], files[3], ("GRPC_SERVER_TLS_CA_CERT", "/tls/ca.crt")];
    let tls = settings(&without).listen.tls.unwrap();
    assert_eq!(tls.client_ca_file, None, "no such variable: clients need no certificate");
    assert_eq!(
        problems(&[("GRPC_SERVER_USE_TLS", "true")]),
        "GRPC_SERVER_TLS_CERT: GRPC_SERVER_USE_TLS needs it\nGRPC_SERVER_TLS_KEY: GRPC_SERVER_USE_TLS needs it"
    );
}

#[test]
fn prometheus_has_a_listener_of_its_own_where_it_is_wanted() {
    let metrics = |given: &[(&str, &str)]| settings(given).listen.metrics.map(|address| address.to_string());
    assert_eq!(metrics(&[("PROMETHEUS_ADDR", ":9191")]), None);
    assert_eq!(metrics(&[("USE_PROMETHEUS", "true")]).as_deref(), Some("[::]:9090"));
    let given = [("USE_PROMETHEUS", "1"), ("PROMETHEUS_ADDR", "127.0.0.1:9191"), ("PROMETHEUS_PATH", "/stats")];
    assert_eq!(metrics(&given).as_deref(), Some("127.0.0.1:9191"));
    assert_eq!(settings(&given).metrics.path, "/stats");
    assert_eq!(metrics(&[("USE_PROMETHEUS", "true"), ("DISABLE_STATS", "true")]), None);
    let problem = problems(&[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "9090")]);
    assert_eq!(problem, "PROMETHEUS_ADDR: \"9090\": not an address such as :9090 or 127.0.0.1:9090");
}

#[test]
fn one_sink_of_statistics_is_on_at_most() {
    let statsd = |given: &[(&str, &str)]| settings(given).statsd;
    assert_eq!(statsd(&[]).address.as_deref(), Some("localhost:8125"));
    assert!(!statsd(&[]).is_udp && !statsd(&[]).is_dogstatsd);
    let given = [("STATSD_HOST", "::1"), ("STATSD_PORT", "1"), ("STATSD_PROTOCOL", "UDP"), ("EXTRA_TAGS", "a:b")];
    let found = statsd(&given);
    assert_eq!(found.address.as_deref(), Some("[::1]:1"));
    assert!(found.is_udp);
    assert_eq!(found.tags.len(), 1);
    assert_eq!(statsd(&[("STATS_FLUSH_INTERVAL", "5ms")]).interval, Duration::from_millis(5));
    for off in [("USE_STATSD", "false"), ("DISABLE_STATS", "true"), ("USE_PROMETHEUS", "true")] {
        assert_eq!(statsd(&[off, ("EXTRA_TAGS", "a:b")]).address, None, "{off:?}");
    }
    let dog = [
        ("USE_DOG_STATSD", "true"),
        ("USE_DOG_STATSD_MOGRIFIERS", "TAG"),
        ("DOG_STATSD_MOGRIFIER_TAG_PATTERN", "^a\\.(.*)$"),
        ("DOG_STATSD_MOGRIFIER_TAG_NAME", "a"),
        ("DOG_STATSD_MOGRIFIER_TAG_TAGS", "rest:$1"),
    ];
    let found = statsd(&dog);
    assert!(found.is_dogstatsd);
    assert_eq!(found.mogrifiers.len(), 1);
    assert_eq!(found.mogrifiers[0].tags.get("rest").map(String::as_str), Some("$1"));
    assert_eq!(
        problems(&dog[..3]),
        "USE_DOG_STATSD_MOGRIFIERS: TAG needs DOG_STATSD_MOGRIFIER_TAG_PATTERN and DOG_STATSD_MOGRIFIER_TAG_NAME"
    );
}

#[test]
fn the_log_takes_their_levels() {
    for (theirs, ours) in [
        ("panic", "error"),
        ("FATAL", "error"),
        ("Error", "error"),
        ("WARN", "warn"),
        ("warning", "warn"),
        ("info", "info"),
        ("debug", "debug"),
        ("trace", "trace"),
    ] {
        assert_eq!(settings(&[("LOG_LEVEL", theirs)]).log.level, ours);
    }
    assert_eq!(settings(&[("LOG_FORMAT", "JSON")]).log.format, LogFormat::JsonAt);
    assert_eq!(settings(&[("LOG_FORMAT", "yaml")]).log.format, LogFormat::Text);
    let problem = problems(&[("LOG_LEVEL", "loud")]);
    assert_eq!(problem, "LOG_LEVEL: \"loud\": must be panic, fatal, error, warn, info, debug or trace");
}

#[test]
fn policies_are_below_the_root() {
    let policies = |given: &[(&str, &str)]| settings(given).policies;
    let found = policies(&[("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "ratelimit")]);
    assert_eq!(found.directory, Path::new("/data/ratelimit/config"));
    let found = policies(&[("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "/a"), ("RUNTIME_APPDIRECTORY", "b/")]);
    assert_eq!(found.directory, Path::new("/data/a/b"));
    assert!(!policies(&[("RUNTIME_WATCH_ROOT", "false")]).beside);
    assert!(!policies(&[("RUNTIME_IGNOREDOTFILES", "true")]).dot_files);
    let problem = problems(&[("CONFIG_TYPE", "HTTP")]);
    assert_eq!(problem, "CONFIG_TYPE: \"HTTP\": must be FILE or GRPC_XDS_SOTW");
}

/// The same, where policies come from an xDS server.
fn by_xds<'a>(given: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&[("CONFIG_TYPE", "GRPC_XDS_SOTW")], given].concat()
}

#[test]
fn policies_come_from_an_xds_server() {
    let found = settings(&by_xds(&[])).policies;
    assert_eq!(found.source, PolicySource::Xds);
    assert_eq!(found.xds.server, Some(("localhost".to_owned(), 18000)));
    assert_eq!(found.xds.node_id, "default");
    assert!(!found.xds.start_without_config && !found.xds.tls.enabled);
    assert_eq!(settings(&[]).policies.source, PolicySource::Directory);
    assert_eq!(settings(&[("CONFIG_TYPE", "FILE")]).policies.source, PolicySource::Directory);

    let server = |url: &str| settings(&by_xds(&[("CONFIG_GRPC_XDS_SERVER_URL", url)])).policies.xds.server;
    let at = |host: &str, port: u16| Some((host.to_owned(), port));
    assert_eq!(server("envoy-gateway:18001"), at("envoy-gateway", 18001));
    assert_eq!(server("dns:///xds.internal:1"), at("xds.internal", 1));
    assert_eq!(server("passthrough:///10.0.0.1:1"), at("10.0.0.1", 1));
    assert_eq!(server("xds.internal"), at("xds.internal", 443));
    assert_eq!(server("[::1]:18000"), at("::1", 18000));
    assert_eq!(server("[::1]"), at("::1", 443));
    assert_eq!(server(":18000"), at("localhost", 18000));
    let problem = problems(&by_xds(&[("CONFIG_GRPC_XDS_SERVER_URL", "unix:///run/xds.sock")]));
    assert!(problem.starts_with("CONFIG_GRPC_XDS_SERVER_URL: policies.xds.server: not HOST:PORT"), "{problem}");
    // Where policies come from files, no variable of the server counts.
    assert_eq!(settings(&[("CONFIG_GRPC_XDS_SERVER_URL", "?")]).policies.xds.server, None);

    let node = settings(&by_xds(&[
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=eu,flag,a=b=c,zone=us"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "Authorization:Basic a:b"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "1"),
    ]))
    .policies
    .xds;
    assert_eq!(node.node_id, "envoy-ratelimit");
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(node.node_metadata, [pair("zone", "us"), pair("a", "b=c")]);
    assert_eq!(node.headers.0, [pair("authorization", "Basic a:b")]);
    assert!(node.start_without_config);
    let told = notes(&by_xds(&[("CONFIG_GRPC_XDS_NODE_METADATA", "flag")]));
    assert!(told.contains("CONFIG_GRPC_XDS_NODE_METADATA has 1 of its parts without a key"), "{told}");
}

#[test]
fn tls_to_the_xds_server_counts_where_it_is_on() {
    let files = [
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "envoy-gateway"),
    ];
    assert!(!settings(&by_xds(&files)).policies.xds.tls.enabled);
    let on = ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true");
    let tls = settings(&by_xds(&[&files[..], &[on]].concat())).policies.xds.tls;
    assert!(tls.enabled && tls.system_store_always);
    let paths = [tls.cert_file, tls.key_file, tls.ca_file].map(|path| path.unwrap().to_str().unwrap().to_owned());
    assert_eq!(paths, ["/certs/tls.crt", "/certs/tls.key", "/certs/ca.crt"]);
    assert_eq!(tls.server_name.as_deref(), Some("envoy-gateway"));
    let tls = settings(&by_xds(&[on])).policies.xds.tls;
    assert!(tls.enabled && tls.ca_file.is_none() && tls.cert_file.is_none() && tls.server_name.is_none());

    let alone = by_xds(&[on, files[0]]);
    assert_eq!(settings(&alone).policies.xds.tls.cert_file, None);
    let told = notes(&alone);
    let expected = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT has no effect: CONFIG_GRPC_XDS_CLIENT_TLS_KEY is not set";
    assert!(told.contains(expected), "{told}");
}

#[test]
fn pauses_and_sizes_of_the_xds_client() {
    let found = |given: &[(&str, &str)]| settings(&by_xds(given)).policies.xds;
    let pauses = |given: &[(&str, &str)]| {
        let found = found(given);
        (found.backoff_initial.as_millis(), found.backoff_max.as_millis())
    };
    const FIRST: &str = "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL";
    const MOST: &str = "XDS_CLIENT_BACKOFF_MAX_INTERVAL";
    assert_eq!(pauses(&[]), (1_000, 30_000));
    assert_eq!(pauses(&[(FIRST, "10s"), (MOST, "60s")]), (10_000, 60_000));
    assert_eq!(pauses(&[(FIRST, "2m")]), (120_000, 120_000));
    assert_eq!(pauses(&[(MOST, "500ms")]), (500, 500));
    assert_eq!(pauses(&[(FIRST, "10s"), (MOST, "1s")]), (10_000, 10_000));
    let told = notes(&by_xds(&[(FIRST, "10s"), (MOST, "1s")]));
    assert!(told.contains("XDS_CLIENT_BACKOFF_MAX_INTERVAL is less than"), "{told}");
    let retry = ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "1.5s");
    assert_eq!(found(&[retry]).connect_retry, Duration::from_millis(1500));

    let percent = |given: &[(&str, &str)]| found(given).random_percent;
    const FACTOR: &str = "XDS_CLIENT_BACKOFF_RANDOM_FACTOR";
    assert_eq!([percent(&[(FACTOR, "0.25")]), percent(&[(FACTOR, "7")]), percent(&[(FACTOR, "-1")])], [25, 100, 0]);
    assert_eq!(percent(&[(FACTOR, "0.25"), ("XDS_CLIENT_BACKOFF_JITTER", "false")]), 0);
    assert_eq!(percent(&[("XDS_CLIENT_BACKOFF_JITTER", "true")]), 50);

    let size = |text: &str| found(&[("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", text)]).max_message_bytes;
    assert_eq!([size("0"), size("-1"), size("8388608"), size("1")], [33_554_432, 33_554_432, 8_388_608, 1_024]);
}

/// What a REDIS_URL becomes, with a type and a socket type.
#[track_caller]
fn url(url: &str, kind: &str, socket_type: &str, more: &[(&str, &str)]) -> Settings {
    let given = [("REDIS_URL", url), ("REDIS_TYPE", kind), ("REDIS_SOCKET_TYPE", socket_type)];
    settings(&[&given[..], more].concat())
}

#[test]
fn redis_is_found_by_each_of_their_forms() {
    let first = |url_of: &str, kind: &str, socket_type: &str| {
        let found = url(url_of, kind, socket_type, &[]);
        assert_eq!(found.store, StoreKind::Redis);
        found.redis.server.url.to_string()
    };
    assert_eq!(first("redis:6379", "SINGLE", "tcp"), "redis://redis:6379");
    assert_eq!(first("redis:6379", "single", "unix"), "redis://redis:6379", "its form is unmistakable");
    assert_eq!(first("redis:6379", "single", "tls"), "rediss://redis:6379");
    assert_eq!(first(":6379", "single", "tcp"), "redis://localhost:6379");
    assert_eq!(first("[::1]:6379", "single", "tcp"), "redis://[::1]:6379");
    assert_eq!(first("/run/r d.sock", "single", "unix"), "redis+unix:///run/r%20d.sock");
    assert_eq!(first("/run/redis.sock", "single", "tcp"), "redis+unix:///run/redis.sock");
    assert_eq!(first("redis://:pw@cache:6379/3", "single", "tcp"), "redis://***@cache:6379/3");
    assert_eq!(first("rediss://cache:6379", "single", "tcp"), "rediss://cache:6379");
    assert_eq!(first("a:1,b:2", "CLUSTER", "tcp"), "redis://a:1,b:2");
    assert_eq!(first("redis://a:1,redis://b:2", "CLUSTER", "tcp"), "redis://a:1,b:2");

    let found = url("mymaster,a:26379,b:26379", "SENTINEL", "tcp", &[("REDIS_SENTINEL_AUTH", "ann:pw:x")]);
    assert_eq!(found.redis.server.topology, Topology::Sentinel);
    assert_eq!(found.redis.server.url.to_string(), "redis://a:26379,b:26379");
    let sentinel = found.redis.server.sentinel.unwrap();
    assert_eq!(sentinel.master, "mymaster");
    assert_eq!(sentinel.username.as_ref().map(Secret::expose), Some("ann"));
    assert_eq!(sentinel.password.as_ref().map(Secret::expose), Some("pw:x"));

    let tcp = ("REDIS_URL", "redis:6379");
    assert!(settings(&[tcp, ("REDIS_TLS", "true")]).redis.server.url.is_tls());
    for (given, problem) in [
        (("REDIS_TYPE", "PROXY"), "REDIS_TYPE: \"proxy\": must be SINGLE, SENTINEL or CLUSTER"),
        (("REDIS_SOCKET_TYPE", "udp"), "REDIS_SOCKET_TYPE: \"udp\": must be unix, tcp or tls"),
        (
            ("REDIS_TYPE", "SENTINEL"),
            "REDIS_URL: SENTINEL needs the name of the master and one sentinel or more: master,HOST:PORT,HOST:PORT",
        ),
    ] {
        assert_eq!(problems(&[tcp, given]), problem);
    }
    let problem = problems(&[("REDIS_URL", "redis://:hunter2@cache:port")]);
    assert!(problem.starts_with("REDIS_URL: redis.url: not a Redis URL"), "{problem}");
}

#[test]
fn who_weir_is_at_redis() {
    let login = |auth: &str| {
        let server = settings(&[("REDIS_URL", "redis:6379"), ("REDIS_AUTH", auth)]).redis.server;
        let expose = |secret: Option<Secret>| secret.map(|secret| secret.expose().to_owned());
        (expose(server.username), expose(server.password))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(login(""), (None, None));
    assert_eq!(login("hunter2"), (None, some("hunter2")));
    assert_eq!(login("weir:hunter2"), (some("weir"), some("hunter2")));
    assert_eq!(login("weir:a:b"), (some("weir"), some("a:b")));
    assert_eq!(login(":hunter2"), (None, some("hunter2")));
}

#[test]
fn a_second_redis_counts_only_where_it_is_turned_on() {
    let given = [("REDIS_URL", "one:1"), ("REDIS_PERSECOND_URL", "two:2"), ("REDIS_PERSECOND_AUTH", "pw")];
    assert_eq!(settings(&given).redis.per_second, None);
    let second = settings(&[&given[..], &[("REDIS_PERSECOND", "true")]].concat()).redis.per_second.unwrap();
    assert_eq!(second.url.to_string(), "redis://two:2");
    assert_eq!(second.password.as_ref().map(Secret::expose), Some("pw"));
    let second = [("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_TLS", "true")];
    let found = settings(&[&given[..], &second].concat()).redis;
    assert!(found.per_second.unwrap().url.is_tls() && !found.server.url.is_tls());
}

#[test]
fn connections_are_divided_by_the_cores() {
    let pool = |size: &str| settings(&[("REDIS_URL", "r:1"), ("REDIS_POOL_SIZE", size)]).redis.pool_size;
    assert_eq!([pool("10"), pool("3"), pool("0"), pool("8"), pool("100000")], [2, 1, 1, 2, 64]);
    let both = [("REDIS_URL", "r:1"), ("REDIS_POOL_SIZE", "10"), ("REDIS_PERSECOND_POOL_SIZE", "20")];
    assert_eq!(settings(&both).redis.pool_size, 5);
    assert_eq!(settings(&[("REDIS_URL", "r:1")]).redis.pool_size, 2);
}

#[test]
fn times_of_redis_are_moved_into_weirs_bounds_and_that_is_told() {
    let timeout = |text: &str| settings(&[("REDIS_TIMEOUT", text)]).redis.timeout;
    assert_eq!(timeout("250ms"), Duration::from_millis(250));
    assert_eq!(timeout("1.5s"), Duration::from_millis(1500));
    assert_eq!(timeout("10us"), Duration::from_millis(1));
    assert_eq!(timeout("2h"), Duration::from_secs(60));
    assert_eq!(timeout("0"), Duration::from_millis(10));
    let told = notes(&[("REDIS_TIMEOUT", "0")]);
    assert!(told.contains("REDIS_TIMEOUT 0 keeps weir's own bound, which is 10ms"), "{told}");
    let told = notes(&[("REDIS_TIMEOUT", "2h")]);
    assert!(told.contains("REDIS_TIMEOUT 2h is used as 1m, the nearest value that weir supports"), "{told}");
    let start = settings(&[("REDIS_STARTUP_MAX_ELAPSED_TIME", "45s")]).redis.start_within;
    assert_eq!(start, Duration::from_secs(45));
}

#[test]
fn a_prefix_stands_before_every_key_whatever_is_in_it() {
    let prefix = |text: &str| settings(&[("CACHE_KEY_PREFIX", text)]).redis.key_prefix;
    assert_eq!(prefix("eu:"), "eu:");
    assert_eq!(prefix("{eu} %"), "%7Beu%7D%20%25");
    let (long, longer) = ("x".repeat(65), "x".repeat(66));
    assert_ne!(prefix(&long), prefix(&longer));
    assert_eq!(prefix(&long).len(), 64);
    assert!(notes(&[("CACHE_KEY_PREFIX", "a b")]).contains("CACHE_KEY_PREFIX is \"a%20b\" in Redis"));
}

#[test]
fn every_number_that_go_reads_is_a_near_limit_ratio() {
    for (text, expected) in [
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("8e-1", "0.8"),
        ("0.80000000001", "0.8"),
        ("1.5", "1"),
        ("-0.5", "0"),
        ("-0", "0"),
    ] {
        assert_eq!(format!("{:?}", settings(&[("NEAR_LIMIT_RATIO", text)]).near_limit_ratio), expected, "{text}");
    }
    assert_eq!(notes(&[("NEAR_LIMIT_RATIO", "8e-1")]), notes(&[]));
    assert!(notes(&[("NEAR_LIMIT_RATIO", "1.5")]).contains("NEAR_LIMIT_RATIO 1.5 is used as 1, the nearest"));
    assert!(problems(&[("NEAR_LIMIT_RATIO", "80%")]).contains("NEAR_LIMIT_RATIO"));
}

#[test]
fn charging_and_the_local_cache() {
    let found =
        settings(&[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"), ("LOCAL_CACHE_SIZE_IN_BYTES", "1000000")]);
    assert_eq!(found.charging, Mode::Atomic);
    assert_eq!(found.deny_cache.max_keys, 10_000);
    assert_eq!(found.deny_cache.until_window_end, None);
    assert_eq!(found.deny_cache.max_age, Duration::from_secs(1));
    assert!(settings(&[("LOCAL_CACHE_SIZE_IN_BYTES", "1")]).deny_cache.max_keys > 1_000);
}

#[test]
fn memcached_is_an_error_that_names_what_to_do() {
    let problem = problems(&[("BACKEND_TYPE", "memcache"), ("MEMCACHE_HOST_PORT", "m:11211")]);
    assert!(problem.starts_with("BACKEND_TYPE: memcache: weir has no Memcached backend. Set REDIS_URL"), "{problem}");
    assert_eq!(problems(&[("BACKEND_TYPE", "disk")]), "BACKEND_TYPE: \"disk\": must be redis");
}

#[test]
fn every_malformed_value_is_an_error_that_names_its_variable() {
    for variable in VARIABLES {
        let malformed = match variable.kind {
            Type::Text | Type::List => continue,
            Type::Integer => "8080/tcp",
            Type::Float => "80%",
            Type::Bool => "yes",
            Type::Duration => "10",
            Type::Map => "a",
        };
        let problem = problems(&[(variable.name, malformed)]);
        let is_secret = variable.name == "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
        let shown = if is_secret { "***".to_owned() } else { format!("{malformed:?}") };
        assert!(problem.starts_with(&format!("{}: {shown}: not a", variable.name)), "{problem}");
        if variable.kind != Type::Map {
            let problem = problems(&[(variable.name, "")]);
            assert!(problem.starts_with(&format!("{}: \"\": not a", variable.name)), "{problem}");
        }
    }
    let all = problems(&[("PORT", "http"), ("REDIS_TLS", "on"), ("REDIS_TIMEOUT", "fast")]);
    assert_eq!(all.lines().count(), 3, "{all}");
}

#[test]
fn their_defaults_are_well_formed_and_legal() {
    for variable in VARIABLES {
        if variable.default.is_empty() || variable.name == "REDIS_URL" {
            continue;
        }
        if let Err(problems) = read(&[(variable.name, variable.default)]) {
            panic!("{}: {problems}", variable.name);
        }
    }
}

#[test]
fn variables_without_effect_are_named_once_and_others_are_not() {
    let told = notes(&[("REDIS_URL", "r:1"), ("REDIS_PIPELINE_WINDOW", "150us"), ("PATH", "/bin")]);
    assert_eq!(
        told,
        "REDIS_PIPELINE_WINDOW has no effect: weir sends what waits as soon as a connection is free, so no call waits for a \
         window."
    );
    for variable in VARIABLES.iter().filter(|variable| variable.effect == Effect::Nothing) {
        let text = if variable.default.is_empty() { "x" } else { variable.default };
        let told = notes(&[(variable.name, text)]);
        let times = told.lines().filter(|line| line.starts_with(&format!("{} has no effect: ", variable.name))).count();
        assert_eq!(times, 1, "{told}");
    }
}

/// Variables of newer versions, and typing mistakes, had no effect and no line in the log.
#[test]
fn variables_that_weir_does_not_have_are_named_but_not_those_of_kubernetes() {
    let told = notes(&[
        ("REDIS_URL", "r:1"),
        ("REDIS_POOLSIZE", "5"),
        ("RUNTIME_NEW_THING", "1"),
        ("REDIS_HOST", "r"),
        ("HOME", "/root"),
        ("STATSD_PROTOCOL", "udp"),
    ]);
    assert_eq!(
        told,
        "REDIS_HOST has no effect: weir has no such variable of envoyproxy/ratelimit\n\
         REDIS_POOLSIZE has no effect: weir has no such variable of envoyproxy/ratelimit; did you mean REDIS_POOL_SIZE?\n\
         RUNTIME_NEW_THING has no effect: weir has no such variable of envoyproxy/ratelimit"
    );
    let of_kubernetes = [
        ("REDIS_URL", "r:1"),
        ("REDIS_SERVICE_HOST", "10.0.0.1"),
        ("REDIS_MASTER_SERVICE_PORT_TCP_REDIS", "6379"),
        ("REDIS_PORT", "tcp://10.0.0.1:6379"),
        ("REDIS_PORT_6379_TCP_ADDR", "10.0.0.1"),
        ("PROMETHEUS_PORT_9090_TCP", "tcp://10.0.0.1:9090"),
    ];
    assert_eq!(notes(&of_kubernetes), "");
    let many: Vec<(String, &str)> = (0..100).map(|i| (format!("REDIS_X{i}"), "1")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, text)| (name.as_str(), *text)).collect();
    let told = notes(&many);
    assert_eq!(told.matches("weir has no such variable").count(), 16, "{told}");
}

#[test]
fn traces_are_set_by_their_own_variables_and_by_those_of_opentelemetry() {
    let off = settings(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"), ("OTEL_TRACES_EXPORTER", "otlp")]).tracing;
    assert!(!off.enabled, "TRACING_ENABLED alone turns them on");
    let found = settings(&[
        ("TRACING_ENABLED", "true"),
        ("TRACING_SERVICE_NAMESPACE", "edge"),
        ("TRACING_SERVICE_INSTANCE_ID", "one"),
        ("TRACING_SAMPLING_RATE", "0.6"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "4096"),
    ])
    .tracing;
    assert!(found.enabled && !found.otlp.is_grpc);
    assert_eq!(found.otlp.endpoint.as_deref(), Some("http://c:4318/v1/traces"));
    assert_eq!((found.service_name.as_str(), found.queue), ("RateLimit", 4_096));
    assert_eq!((found.service_namespace.as_deref(), found.service_instance_id.as_deref()), (Some("edge"), Some("one")));
    assert_eq!((found.sampler.is_parent_based, found.sampler.ratio.billionths()), (true, 600_000_000));
    let grpc = settings(&[("TRACING_EXPORTER_PROTOCOL", "grpc"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]);
    assert!(grpc.tracing.otlp.is_grpc);
    let name = |variables: &[(&str, &str)]| settings(variables).tracing.service_name;
    assert_eq!(name(&[("OTEL_SERVICE_NAME", "theirs")]), "theirs");
    assert_eq!(name(&[("OTEL_SERVICE_NAME", "theirs"), ("TRACING_SERVICE_NAME", "limits")]), "limits");
    assert!(!settings(&[("TRACING_ENABLED", "true"), ("OTEL_SDK_DISABLED", "true")]).tracing.enabled);
    let wrong = read(&[("TRACING_EXPORTER_PROTOCOL", "thrift")]).unwrap_err().to_string();
    assert_eq!(wrong, "TRACING_EXPORTER_PROTOCOL: \"thrift\": must be http or grpc");
}

#[test]
fn weirs_own_variables_win() {
    let found = settings(&[
        ("PORT", "1"),
        ("WEIR__LISTEN__HTTP", "127.0.0.1:2"),
        ("REDIS_URL", "theirs:1"),
        ("REDIS_AUTH", "theirs"),
        ("WEIR__REDIS__URL", "redis://ours:2"),
        ("LOG_LEVEL", "debug"),
        ("WEIR__LOG__LEVEL", "warn"),
        ("WEIR__ADMIN__ENDPOINTS", "weir"),
        ("WEIR__LIMITS__ENTRIES", "3"),
    ]);
    assert_eq!(found.listen.http.port(), 2);
    assert_eq!(found.redis.server.url.to_string(), "redis://ours:2");
    assert_eq!(found.redis.server.password, None, "no part of another place");
    assert_eq!(found.store, StoreKind::Redis);
    assert_eq!(found.log.level, "warn");
    assert_eq!(found.admin_endpoints, Endpoints::Weir);
    assert_eq!(found.limits.entries, 3);
    let file = [("REDIS_URL", "r:1"), ("REDIS_AUTH", "pw"), ("WEIR__REDIS__PASSWORD_FILE", "/p")];
    assert_eq!(settings(&file).redis.server.password, None);
}

#[test]
fn the_machine_is_asked_for_what_only_it_knows() {
    let environment =
        |text: &str| variables(&[("HOST", "localhost"), ("REDIS_POOL_SIZE", "9"), ("WEIR__RUNTIME__CORES", text)]);
    let (settings, _) = ratelimit::settings(environment("3")).unwrap();
    assert!(settings.listen.http.ip().is_loopback());
    assert_eq!(settings.redis.pool_size, 3);
}

/// The settings that rows name exist.
#[test]
fn rows_name_the_settings_that_exist() {
    let mut unknown = BTreeSet::new();
    for variable in VARIABLES {
        let missing = |name: &&str| Setting::find(name).is_none();
        unknown.extend(variable.settings().into_iter().filter(missing));
        assert!(!variable.about.is_empty() && variable.about.ends_with('.'), "{}", variable.name);
    }
    assert!(unknown.is_empty(), "no such settings: {unknown:?}");
}
