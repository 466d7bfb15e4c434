//! Settings as an operator meets them: precedence, mistakes, what is never printed, and docs/configuration.md against the code.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

use weir_engine::{Mode, OnError};
use weir_settings::{FILE_BYTES_MAX, Kind, Layer, LogFormat, Preset, SETTINGS, Setting, Settings, StoreKind};

pub(super) fn environment(variables: &[(&str, &str)]) -> Layer {
    Layer::environment(variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
}

pub(crate) fn flags(assignments: &[&str]) -> Layer {
    let mut layer = Layer::default();
    assignments.iter().for_each(|assignment| layer.set(assignment));
    layer
}

pub(super) fn file(text: &str) -> Layer {
    Layer::yaml("weir.yaml", text)
}

/// The only setting without a default.
pub(crate) fn policies() -> Layer {
    flags(&["policies.directory=policies"])
}

/// What the operator reads when this file is the whole configuration.
fn problems_of(text: &str) -> String {
    problems(&[file(text), policies()])
}

pub(crate) fn problems(layers: &[Layer]) -> String {
    match Settings::load(layers) {
        Ok(settings) => panic!("accepted: {settings:?}"),
        Err(problems) => problems.to_string(),
    }
}

/// The page lists the defaults as texts (page.rs).
#[test]
fn a_default_that_is_given_changes_nothing() {
    for setting in SETTINGS {
        if let Preset::Is(default) = setting.default {
            let base = flags(&around(setting.name));
            let given = flags(&[&format!("{}={default}", setting.name)]);
            let with = Settings::load(&[base.clone(), given]).unwrap();
            assert_eq!(with, Settings::load(&[base]).unwrap(), "{}", setting.name);
        }
    }
}

#[test]
fn each_layer_wins_over_those_before_it() {
    let file = file(
        "policies: {directory: from-file}\n\
         store: redis\n\
         redis:\n  timeout: 1ms\n  queue: 1\n  pool_size: 3\n",
    );
    let environment = environment(&[
        ("WEIR__REDIS__TIMEOUT", "2ms"),
        ("WEIR__REDIS__QUEUE", "2"),
        ("WEIR_PORT", "tcp://10.0.0.1:8081"),
        ("PATH", "/bin"),
    ]);
    let flags = flags(&["redis.timeout=3ms"]);
    let settings = Settings::load(&[file, environment, flags]).unwrap();
    assert_eq!(settings.redis.timeout, Duration::from_millis(3));
    assert_eq!(settings.redis.queue, 2);
    assert_eq!(settings.redis.pool_size, 3);
    assert_eq!(settings.redis.batch_max, 64);
    assert_eq!(settings.store, StoreKind::Redis);
    assert_eq!(settings.policies.directory, Path::new("from-file"));
}

#[test]
fn every_setting_can_be_given_in_every_layer() {
    for setting in SETTINGS {
        let example = example(setting.name);
        for layer in [
            file(&format!("{}: {example:?}", setting.name)),
            file(&nested(setting.name, example)),
            environment(&[(&setting.env_name(), example)]),
            flags(&[&format!("{}={example}", setting.name)]),
        ] {
            let base = flags(&around(setting.name));
            let with = Settings::load(&[base.clone(), layer]).unwrap();
            let without = Settings::load(&[base]).unwrap();
            assert_ne!(with, without, "{} changes nothing", setting.name);
        }
    }
}

/// What a setting needs around it to be legal.
fn around(name: &str) -> Vec<&'static str> {
    let mut around = vec!["policies.directory=p"];
    if name.starts_with("redis.tls.") {
        around.push("redis.url=rediss://cache");
        around.extend(["redis.tls.cert_file=cert", "redis.tls.key_file=key"]);
    }
    if name.starts_with("listen.tls.") {
        around.extend(["listen.tls.cert_file=cert", "listen.tls.key_file=key", "listen.tls.client_ca_file=ca"]);
    }
    if name.starts_with("alerts.") {
        around.extend(["alerts.webhook_url=https://alerts.example/base", "alerts.webhook_secret_file=base"]);
    }
    if name == "admin.metrics_token" {
        around.push("admin.token_file=tokens");
    }
    if name == "policies.source" {
        around.push("policies.xds.server=xds.internal:18000");
    }
    if name.starts_with("policies.xds.tls.") && name != "policies.xds.tls.enabled" {
        around.push("policies.xds.tls.enabled=on");
        around.extend(["policies.xds.tls.cert_file=cert", "policies.xds.tls.key_file=key"]);
    }
    if name.starts_with("tracing.otlp.tls.") {
        around.extend(["tracing.otlp.tls.cert_file=cert", "tracing.otlp.tls.key_file=key"]);
    }
    if name == "tracing.queue" {
        around.push("tracing.batch_max=1");
    }
    if name == "policies.xds.backoff.max" {
        around.push("policies.xds.backoff.initial=10ms");
    }
    if name.starts_with("redis.sentinel.") {
        around.extend(["redis.topology=sentinel", "redis.sentinel.master=m"]);
    }
    if name.starts_with("redis.per_second.") {
        around.push("redis.per_second.url=redis://cache");
    }
    if name.starts_with("redis.per_second.sentinel.") {
        around.extend(["redis.per_second.topology=sentinel", "redis.per_second.sentinel.master=m"]);
    }
    match name {
        "redis.username" => around.push("redis.password=p"),
        "redis.sentinel.username" => around.push("redis.sentinel.password=p"),
        "redis.per_second.username" => around.push("redis.per_second.password=p"),
        "redis.per_second.sentinel.username" => around.push("redis.per_second.sentinel.password=p"),
        _ => {}
    }
    around
}

/// A legal value that is not the default.
fn example(name: &str) -> &'static str {
    match name {
        "listen.grpc" | "listen.http" | "listen.admin" | "listen.metrics" => "127.0.0.2:0",
        "metrics.path" => "/stats/prometheus",
        "admin.endpoints" => "ratelimit",
        "admin.values" => "hashed",
        "tap.values" => "shown",
        "policies.files" => "all",
        "redis.tls.system_store" | "policies.xds.tls.system_store" => "always",
        "listen.socket_mode" => "0600",
        "listen.tls.client_names" => "envoy.mesh,10.0.0.1,spiffe://mesh/envoy",
        "policies.directory" => "elsewhere",
        "policies.source" => "xds",
        "policies.xds.server" => "dns:///xds.internal:18000",
        "policies.xds.node_metadata" => "zone=eu-1,stage=a=b",
        "policies.xds.headers" => "authorization:Bearer x:y,x-tenant:blue",
        "policies.xds.start_without_config" | "policies.xds.tls.enabled" | "deny_cache.until_window_end" => "on",
        "policies.xds.max_message_bytes" | "limits.request_bytes" => "1024",
        "policies.file_bytes" | "policies.total_bytes" => "65536",
        "policies.xds.tls.server_name" => "xds.internal",
        "policies.xds.keepalive.interval"
        | "policies.xds.connect_timeout"
        | "metrics.export_interval"
        | "alerts.webhook_timeout"
        | "alerts.webhook_retry_for"
        | "tap.max_duration" => "1s",
        _ if name.starts_with("policies.xds.") && Setting::find(name).is_some_and(is_time) => "70ms",
        "store" => "redis",
        "charging" => "independent",
        "on_error" => "local",
        "redis.breaker.window" | "redis.breaker.probe" | "tracing.otlp.timeout" | "tracing.export_timeout" => "70ms",
        "metrics.weir_names" | "metrics.per_rule" => "off",
        "response.limit_header" | "response.remaining_header" | "response.reset_header" => "X-Limit",
        "redis.url" | "redis.per_second.url" => "redis+unix:///run/redis.sock?db=2",
        "near_limit_ratio" => "0.75",
        "statsd.address" => "stats.internal:8125",
        "statsd.protocol" => "udp",
        "statsd.format" => "dogstatsd",
        "statsd.tags" => "zone:a",
        "statsd.mogrifiers" => r#"[{"pattern": "a", "name": "b"}]"#,
        "tracing.exporter" | "metrics.exporter" => "otlp",
        "tracing.otlp.endpoint" | "metrics.otlp.endpoint" => "http://collector:4318",
        "alerts.webhook_url" => "https://alerts.example/weir",
        "tracing.otlp.protocol" => "grpc",
        "tracing.otlp.headers" => "authorization:Bearer x:y",
        "tracing.otlp.compression" => "gzip",
        "tracing.sampler" => "always_off",
        "tracing.sample_ratio" => "0.25",
        "tracing.propagators" => "b3",
        "tracing.resource_attributes" => "zone=eu-1",
        "redis.topology" | "redis.per_second.topology" => "cluster",
        "redis.key_prefix" => "eu:",
        "redis.tls.server_name" => "cache.internal",
        "log.level" => "weir=debug",
        "log.format" => "json",
        "grpc.connection_held_bytes" => "16777216",
        "grpc.held_bytes" => "67108864",
        "http.admin_hosts" => "weir.internal,limits.example.com",
        "http.allowed_origins" => "https://console.example",
        "memory.max_keys" => "64",
        _ if Setting::find(name).is_some_and(|row| row.default_text() == "off") => "on",
        _ if Setting::find(name).is_some_and(|row| row.default_text().ends_with('s')) => "7ms",
        _ => "3",
    }
}

fn is_time(row: &Setting) -> bool {
    row.default_text().ends_with(['s', 'm'])
}

fn nested(name: &str, value: &str) -> String {
    let mut text = String::new();
    for (depth, part) in name.split('.').enumerate() {
        if depth > 0 {
            text.push('\n');
        }
        text.push_str(&format!("{}{part}:", "  ".repeat(depth)));
    }
    format!("{text} {value:?}")
}

#[test]
fn every_bound_holds_at_and_past_its_edge() {
    let cases = [
        ("limits.descriptors", "1", "0"),
        ("grpc.max_streams", "1", "0"),
        ("grpc.receive_timeout", "1ms", "999us"),
        ("grpc.connection_held_bytes", "4198400", "65535"),
        ("grpc.held_bytes", "8388608", "65535"),
        ("http.admin_hosts", "a.example,b.example", "a.example,,b.example"),
        ("http.admin_hosts", "", "10.0.0.1"),
        ("http.allowed_origins", "https://a.example, http://[::1]:8080", "https://a.example/"),
        ("policies.source", "directory", "files"),
        ("policies.xds.server", "[::1]:1", "::1:1"),
        ("policies.xds.server", "xds.internal:65535", "xds.internal:65536"),
        ("policies.xds.server", "10.0.0.1:1", "10.0.0.1:0"),
        ("policies.xds.server", "dns:///xds:1", "http://xds:1"),
        ("policies.xds.server", "xds:1", "xds"),
        ("policies.xds.server", "xds:1", "x ds:1"),
        ("policies.xds.node_metadata", "a=,b==", "a"),
        ("policies.xds.node_metadata", "a=b", "a=b,a=c"),
        ("policies.xds.node_metadata", "a=b", "=b"),
        ("policies.xds.connect_timeout", "10ms", "9ms"),
        ("policies.xds.backoff.random_percent", "100", "101"),
        ("policies.xds.max_message_bytes", "268435456", "268435457"),
        ("policies.xds.keepalive.interval", "1s", "999ms"),
        ("limits.descriptors", "64", "65"),
        ("listen.grpc", "unix:/run/weir.sock", "unix:"),
        ("listen.socket_mode", "0777", "1777"),
        ("listen.socket_mode", "000", "0888"),
        ("listen.max_connection_age", "365d", "365d1ms"),
        ("listen.max_connection_age_grace", "1ms", "999us"),
        ("limits.hits", "4294967295", "4294967296"),
        ("near_limit_ratio", "1.0", "1.1"),
        ("runtime.cores", "0", "257"),
        ("redis.timeout", "1ms", "999us"),
        ("redis.timeout", "1m", "1m1us"),
        ("shutdown.pause", "0s", "5m1ms"),
        ("redis.key_prefix", "a:b", "a{b"),
        ("memory.max_keys", "1000000000", "1000000001"),
        ("on_error", "local", "Local"),
        ("quota_mode", "true", "tRUE"),
        ("response.limit_header", "X-Limit", "X Limit"),
        ("response.reset_header", "x-reset_2", "x:reset"),
        ("holds.receipt_key", "gateway.receipt", "gateway receipt"),
        ("holds.receipt_key", "r", ""),
        ("deny_cache.max_age", "0s", "1m1us"),
        ("deny_cache.max_keys", "10000000", "10000001"),
        ("deny_cache.max_keys", "1", "0"),
        ("metrics.dynamic_series", "0", "1000001"),
        ("statsd.interval", "5ms", "4ms"),
        ("metrics.export_interval", "100ms", "99ms"),
        ("metrics.export_interval", "1h", "3601s"),
        ("statsd.address", "localhost:8125", "localhost"),
        ("statsd.address", "[::1]:1", "::1:1"),
        ("statsd.address", "10.0.0.1:65535", "10.0.0.1:0"),
        ("statsd.tags", "a:b,c:d", "a:b,c"),
        ("redis.breaker.error_percent", "0", "-1"),
        ("redis.breaker.error_percent", "100", "101"),
        ("redis.breaker.calls", "1", "0"),
        ("redis.breaker.calls", "1000000", "1000001"),
        ("redis.breaker.window", "10ms", "9ms"),
        ("redis.breaker.window", "5m", "5m1us"),
        ("redis.breaker.probe", "10ms", "9ms"),
        ("redis.breaker.probe", "1m", "1m1us"),
        ("redis.ready_after", "0s", "5m1us"),
        ("tracing.otlp.endpoint", "https://collector", "collector:4317"),
        ("tracing.otlp.endpoint", "http://[::1]:4318/v1/traces", "grpc://collector:4317"),
        ("tracing.otlp.endpoint", "http://collector", "http://me:secret@collector"),
        ("tracing.propagators", "tracecontext", "tracecontext,b3,b3"),
        ("tracing.propagators", "none", "w3c"),
        ("tracing.sample_ratio", "0.000000001", "1.1"),
        ("tracing.queue", "1000000", "1000001"),
        ("tracing.batch_max", "1", "0"),
        ("tracing.delay", "1ms", "999us"),
        ("tracing.export_timeout", "10m", "10m1us"),
    ];
    for (name, good, bad) in cases {
        let good = flags(&[&format!("{name}={good}")]);
        assert!(Settings::load(&[policies(), good]).is_ok(), "{name}");
        let bad = flags(&[&format!("{name}={bad}")]);
        let text = problems(&[policies(), bad]);
        assert!(
            text.starts_with(&format!("--set: {name} = ")) || text.starts_with(&format!("--set: {name}: ")),
            "{text}"
        );
    }
    let long = flags(&[&format!("redis.key_prefix={}", "x".repeat(65))]);
    assert!(problems(&[policies(), long]).ends_with("65 bytes: at most 64"));
}

#[test]
fn all_problems_of_all_layers_come_at_once_each_with_its_place() {
    let file = file(
        "store: memroy\n\
         redis:\n\
         \x20 timeout: 10\n\
         \x20 timout: 10ms\n\
         listen:\n\
         \x20 grpc: localhost:8081\n\
         log: {level: inof}\n\
         colour: blue\n",
    );
    let environment = environment(&[
        ("WEIR__REDIS__POOLSIZE", "3"),
        ("WEIR__LIMITS__DESCRIPTORS", "65"),
        ("WEIR__redis__queue", "3"),
        ("WEIR__X", "3"),
    ]);
    let flags = flags(&["redis.queue=-1", "redis=cache", "shutdown.grace=1.5s"]);
    insta::assert_snapshot!(problems(&[file, environment, flags]), @r#"
    weir.yaml:1:1: store = "memroy": must be memory or redis
    weir.yaml:3:3: redis.timeout = "10": has no unit: write 10ms or 10s
    weir.yaml:4:3: redis.timout: no such setting, the nearest is redis.timeout
    weir.yaml:6:3: listen.grpc = "localhost:8081": not IP:PORT, such as 0.0.0.0:8081 or [::1]:8081
    weir.yaml:7:7: log.level = "inof": "inof" is neither a level (off, error, warn, info, debug, trace) nor target=level
    weir.yaml:8:1: colour: no such setting
    WEIR__LIMITS__DESCRIPTORS: limits.descriptors = "65": must be from 1 to 64 descriptors
    environment: WEIR__REDIS__POOLSIZE: no such setting, the nearest is WEIR__REDIS__POOL_SIZE
    environment: WEIR__X: no such setting
    environment: WEIR__redis__queue: no such setting, the nearest is WEIR__REDIS__QUEUE
    --set: redis.queue = "-1": not a whole number
    --set: redis: a group of settings, not one: redis.url, redis.topology, redis.username, redis.password, redis.password_file, redis.sentinel.*, redis.tls.*, redis.per_second.*, redis.timeout, redis.connect_timeout, redis.pool_size, redis.queue, redis.batch_max, redis.merge_max, redis.key_prefix, redis.breaker.*, redis.ready_after, redis.start_within
    --set: shutdown.grace = "1.5s": fractions are not supported: write 1s500ms in place of 1.5s
    settings: policies.directory: required: give --policies or WEIR__POLICIES__DIRECTORY
    "#);
}

#[test]
fn a_bad_value_is_reported_even_where_a_later_layer_replaces_it() {
    let text = problems(&[file("redis: {timeout: soon}"), policies(), flags(&["redis.timeout=10ms"])]);
    insta::assert_snapshot!(text, @r#"weir.yaml:1:9: redis.timeout = "soon": not a duration: write a number with its unit, such as 10ms"#);
}

#[test]
fn what_a_file_of_settings_cannot_be() {
    insta::assert_snapshot!(problems_of("- store"), @"weir.yaml:1:1: settings are a mapping of names to values");
    insta::assert_snapshot!(problems_of("store"), @"weir.yaml:1:1: settings are a mapping of names to values");
    insta::assert_snapshot!(problems_of("store: [memory, redis]\nx: [[1], {a: b}]\nlog: [a]"), @r#"
    weir.yaml:1:1: store: a list, but one value is expected
    weir.yaml:2:1: x: no such setting
    weir.yaml:3:1: log: a group of settings, not one: log.level, log.format, log.file
    "#);
    insta::assert_snapshot!(problems_of("store:\nlog:\nredis: {url: ~, colour: }"), @r#"
    weir.yaml:1:1: store: has no value: give one, or remove the name
    weir.yaml:3:9: redis.url: has no value: give one, or remove the name
    weir.yaml:3:17: redis.colour: no such setting
    "#);
    insta::assert_snapshot!(problems_of("store: {kind: redis}"), @"weir.yaml:1:9: store.kind: store takes one value, not a group");
    insta::assert_snapshot!(problems_of("store: memory\nstore: redis"), @"weir.yaml:2:1: store: given twice, before by weir.yaml:1:1");
    insta::assert_snapshot!(problems_of("redis: {queue: 5}\nredis.queue: 5"), @"weir.yaml:2:1: redis.queue: given twice, before by weir.yaml:1:9");
    insta::assert_snapshot!(problems_of("a: &a 1ms\nb: *a"), @r#"
    weir.yaml:1:1: no such setting
    weir.yaml:2:1: no such setting
    "#);
    insta::assert_snapshot!(problems_of("store: memory\n---\nstore: redis"), @"weir.yaml:2:1: a second document: a file has only one");
    insta::assert_snapshot!(problems_of("store: 'memory"), @"weir.yaml:1:8: not valid YAML: while scanning a quoted scalar, found unexpected end of stream");
    insta::assert_snapshot!(problems_of("{a: 1}: 2"), @"weir.yaml:1:1: a key must be text, not a list or a mapping");
    insta::assert_snapshot!(problems_of("a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}"), @"weir.yaml:1:32: nested deeper than 8 lists and mappings");
}

#[test]
fn aliases_and_merge_keys_of_a_file_are_followed() {
    let text = "memory: &keys {max_keys: &n 5000}\ndeny_cache: {<<: *keys, max_age: 2s}\nredis: {queue: *n}";
    let settings = Settings::load(&[file(text), policies()]).unwrap();
    assert_eq!((settings.memory.max_keys, settings.deny_cache.max_keys, settings.redis.queue), (5000, 5000, 5000));
}

#[test]
fn problems_of_a_file_past_the_bound_are_one_problem() {
    let text: String = (0..1_005).map(|i| format!("x{i}: 1\n")).collect();
    let problems = problems_of(&format!("store: memory\n{text}"));
    assert_eq!(problems.lines().count(), 1_001);
    assert!(problems.ends_with("weir.yaml:1002:1: more than 1000 problems"), "{}", &problems[problems.len() - 100..]);
}

#[test]
fn an_empty_file_and_empty_groups_are_legal() {
    for text in ["", "# nothing\n", "---\n", "redis:\n  # timeout: 5ms\n", "~"] {
        assert!(Settings::load(&[file(text), policies()]).is_ok(), "{text:?}");
    }
}

#[test]
fn a_file_that_is_missing_or_too_large_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weir.yaml");
    let text = problems(&[Layer::file(&path), policies()]);
    assert_eq!(text, format!("{}: cannot be opened: No such file or directory (os error 2)", path.display()));
    let size = usize::try_from(FILE_BYTES_MAX).unwrap();
    std::fs::write(&path, " ".repeat(size)).unwrap();
    assert!(Settings::load(&[Layer::file(&path), policies()]).is_ok());
    std::fs::write(&path, " ".repeat(size + 1)).unwrap();
    let text = problems(&[Layer::file(&path), policies()]);
    assert!(text.ends_with("weir.yaml: more than 1048576 bytes"), "{text}");
    let text = problems(&[Layer::file(dir.path()), policies()]);
    assert!(text.contains("cannot be read"), "{text}");
}

#[test]
fn a_variable_that_is_not_utf8_is_named() {
    let value = OsString::from_vec(vec![0xff]);
    let layer = Layer::environment([(OsString::from("WEIR__LOG__LEVEL"), value)]);
    assert_eq!(problems(&[layer, policies()]), "WEIR__LOG__LEVEL: log.level: not UTF-8");
}

#[test]
fn policies_are_required() {
    insta::assert_snapshot!(problems(&[]), @"settings: policies.directory: required: give --policies or WEIR__POLICIES__DIRECTORY");
}

#[test]
fn no_output_shows_a_secret() {
    const SECRET: &str = "hunter2";
    let layer = flags(&[
        &format!("redis.password={SECRET}"),
        &format!("redis.username={SECRET}"),
        &format!("redis.url=redis://me:{SECRET}@cache:6379/1"),
    ]);
    let settings = Settings::load(&[policies(), layer.clone()]).unwrap();
    for output in
        [format!("{settings:?}"), format!("{settings:#?}"), format!("{layer:?}"), settings.redis.server.url.to_string()]
    {
        assert!(!output.contains(SECRET), "{output}");
        assert!(!output.is_empty());
    }
    assert_eq!(settings.redis.server.url.to_string(), "redis://***@cache:6379/1");
    assert_eq!(settings.redis.server.password.unwrap().expose(), SECRET);

    // Wrong in every way a secret can be: in a bad URL, under a misspelled name, given twice.
    let text = problems(&[
        flags(&[&format!("redis.url=redis://me:{SECRET}@cache:port"), &format!("redis.pasword={SECRET}"), SECRET]),
        environment(&[("WEIR__REDIS__PASWORD", SECRET)]),
        file(&format!("redis: {{password: {SECRET}, pass: {SECRET}}}\nredis.password: {SECRET}")),
        flags(&[&format!("redis.password={}", SECRET.repeat(1000))]),
        policies(),
    ]);
    assert!(!text.contains(SECRET), "{text}");
    insta::assert_snapshot!(text, @r#"
    --set: redis.url: not a Redis URL: write redis://HOST:PORT, rediss://HOST:PORT for TLS, or redis+unix:///PATH
    --set: redis.pasword: no such setting, the nearest is redis.password
    --set: an argument without "=": write NAME=VALUE
    environment: WEIR__REDIS__PASWORD: no such setting, the nearest is WEIR__REDIS__PASSWORD
    weir.yaml:1:28: redis.pass: no such setting, the nearest is redis.password
    weir.yaml:2:1: redis.password: given twice, before by weir.yaml:1:9
    --set: redis.password: 7000 bytes: at most 4096
    "#);
}

/// The login of an OTLP endpoint was in the error that refused it, and the key of one with another path.
#[test]
fn no_error_prints_the_value_of_a_setting_that_names_a_server() {
    let is_server =
        |kind| matches!(kind, Kind::RedisUrl | Kind::Url | Kind::SecretUrl | Kind::HostPort | Kind::Origins { .. });
    let servers: Vec<&str> = SETTINGS.iter().filter(|s| is_server(s.kind)).map(|s| s.name).collect();
    assert!(servers.len() >= 8, "{servers:?}");
    for value in [
        "https://me:hunter2@collector:4318/",
        "ftp://collector/v1/traces?key=hunter2",
        "redis://me:hunter2@cache:port",
        "me:hunter2@cache:6379",
        "collector:hunter2",
        "hunter2",
        "https://collector/hunter2 ?key=hunter2",
    ] {
        for name in &servers {
            let text = problems(&[policies(), flags(&[&format!("{name}={value}")])]);
            assert!(text.starts_with(&format!("--set: {name}: ")) && !text.contains("hunter2"), "{text}");
        }
        let unnamed = problems(&[policies(), flags(&[&format!("tracing.otlp.endpoint:{value}/?a=b")])]);
        assert!(!unnamed.contains("hunter2"), "{unnamed}");
    }
    for contradiction in [
        &["metrics.exporter=otlp", "tracing.otlp.endpoint=http://c/hunter2?key=hunter2"][..],
        &["redis.url=redis://:hunter2@one,two"],
        &["redis.topology=cluster", "redis.url=redis://:hunter2@one/1"],
    ] {
        let text = problems(&[policies(), flags(contradiction)]);
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[test]
fn cores_are_what_is_set_or_what_there_is() {
    let cores = |assignment: &str| {
        let settings = Settings::load(&[policies(), flags(&[assignment])]).unwrap();
        settings.runtime.cores().get()
    };
    assert_eq!(cores("runtime.cores=3"), 3);
    let here = std::thread::available_parallelism().unwrap().get();
    assert_eq!(cores("runtime.cores=0"), here);
}

#[test]
fn words_become_what_they_name() {
    let layer = flags(&["store=redis", "charging=independent", "log.format=json", "on_error=local"]);
    let settings = Settings::load(&[policies(), layer]).unwrap();
    assert_eq!(settings.store, StoreKind::Redis);
    assert_eq!(settings.charging, Mode::Independent);
    assert_eq!(settings.log.format, LogFormat::Json);
    assert_eq!(settings.on_error, OnError::Local);
    for charging in Mode::ALL {
        let layer = flags(&[&format!("charging={}", charging.name())]);
        assert_eq!(Settings::load(&[policies(), layer]).unwrap().charging, charging);
    }
    for on_error in OnError::ALL {
        let layer = flags(&[&format!("on_error={}", on_error.name())]);
        assert_eq!(Settings::load(&[policies(), layer]).unwrap().on_error, on_error);
    }
    let text = problems(&[policies(), flags(&["on_error=fail"])]);
    assert_eq!(text, "--set: on_error = \"fail\": must be error, allow, deny or local");
}

proptest::proptest! {
    #[test]
    fn no_file_makes_the_reader_panic(text in "([a-c:{}\\[\\],&*?!|>'\"#~. \n-]|store|redis|log: ){0,40}") {
        let _ = Settings::load(&[file(&text)]);
    }
}
