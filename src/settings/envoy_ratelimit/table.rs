//! The table of envoyproxy/ratelimit's environment variables: name, type, default, and what weir does with each.
//!
//! The mapping (envoy_ratelimit.rs), the log lines about variables without effect, and the table in docs/migrating.md come
//! from it. A variable that is exactly one setting needs only a row here.

use super::go::Type;

/// One variable.
#[derive(Debug)]
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// How its text is read.
    pub kind: Type,
    /// Its default in envoyproxy/ratelimit; empty for an empty text, list or map.
    pub default: &'static str,
    /// The settings that it affects.
    pub effect: Effect,
    /// How weir uses it, in one or two sentences.
    pub about: &'static str,
}

/// The effect of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Sets this setting alone.
    Is(&'static str, Form),
    /// Sets these settings, together with other variables. The code is in envoy_ratelimit.rs.
    Part(&'static [&'static str]),
    /// None: weir does not use it. A log line gives the reason, from `about`.
    Nothing,
}

/// How the value of a variable is converted to the text of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The same text. An empty one leaves the setting at its default.
    Text,
    /// `on` or `off`.
    Switch,
    /// A whole number, moved into the setting's bounds.
    Integer,
    /// A number with a fraction, moved into 0 to 1 and rounded to nine decimals.
    Ratio,
    /// A length of time, moved into the setting's bounds. 0 leaves the setting at its default.
    Duration,
}

impl Variable {
    /// The row with this name, if any.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        VARIABLES.iter().find(|variable| variable.name == name)
    }

    /// The settings that it affects.
    #[must_use]
    pub fn settings(&self) -> Vec<&'static str> {
        match self.effect {
            Effect::Is(setting, _) => vec![setting],
            Effect::Part(settings) => settings.to_vec(),
            Effect::Nothing => Vec::new(),
        }
    }
}

const fn row(name: &'static str, kind: Type, default: &'static str, effect: Effect, about: &'static str) -> Variable {
    Variable { name, kind, default, effect, about }
}

/// The settings made from the address and login of the first Redis.
const REDIS: &[&str] = &["store", "redis.url", "redis.topology", "redis.sentinel.master"];
/// The settings made from the address and login of the second Redis.
const PER_SECOND: &[&str] = &["redis.per_second.url", "redis.per_second.topology", "redis.per_second.sentinel.master"];
/// The sink of statistics.
const STATSD: &[&str] = &["statsd.address", "statsd.format"];

/// Every variable, in the order of envoyproxy/ratelimit's own settings.
pub const VARIABLES: &[Variable] = {
    use Effect::{Is, Nothing, Part};
    use Type::{Bool, Duration, Float, Integer, List, Map, Text};
    &[
        row(
            "HOST",
            Text,
            "0.0.0.0",
            Part(&["listen.http"]),
            "The address of the HTTP listener. A name is resolved once, at the start.",
        ),
        row("PORT", Integer, "8080", Part(&["listen.http"]), "The port of the HTTP listener; 0 for any."),
        row(
            "DEBUG_HOST",
            Text,
            "0.0.0.0",
            Part(&["listen.admin"]),
            "The address of the debug listener, which only shows and changes nothing.",
        ),
        row("DEBUG_PORT", Integer, "6070", Part(&["listen.admin"]), "The port of the debug listener; 0 for any."),
        row(
            "GRPC_UDS",
            Text,
            "",
            Part(&["listen.grpc"]),
            "The path of a Unix socket in place of GRPC_HOST and GRPC_PORT.",
        ),
        row("GRPC_HOST", Text, "0.0.0.0", Part(&["listen.grpc"]), "The address of the gRPC listener."),
        row("GRPC_PORT", Integer, "8081", Part(&["listen.grpc"]), "The port of the gRPC listener; 0 for any."),
        row(
            "GRPC_MAX_CONNECTION_AGE",
            Duration,
            "24h",
            Is("listen.max_connection_age", Form::Duration),
            "How long a gRPC connection lives before weir asks its client for a new one, plus or minus 10 %.",
        ),
        row(
            "GRPC_MAX_CONNECTION_AGE_GRACE",
            Duration,
            "1h",
            Is("listen.max_connection_age_grace", Form::Duration),
            "How long after that weir closes the connection.",
        ),
        row(
            "GRPC_SERVER_USE_TLS",
            Bool,
            "false",
            Part(&["listen.tls.cert_file", "listen.tls.key_file"]),
            "TLS on the gRPC listener.",
        ),
        row(
            "GRPC_SERVER_TLS_CERT",
            Text,
            "",
            Part(&["listen.tls.cert_file"]),
            "The certificate of the gRPC listener, in PEM.",
        ),
        row("GRPC_SERVER_TLS_KEY", Text, "", Part(&["listen.tls.key_file"]), "The key of that certificate, in PEM."),
        row(
            "GRPC_CLIENT_TLS_CACERT",
            Text,
            "",
            Part(&["listen.tls.client_ca_file"]),
            "The authorities that may sign the certificates of callers, in PEM.",
        ),
        row(
            "GRPC_CLIENT_TLS_SAN",
            Text,
            "",
            Part(&["listen.tls.client_names"]),
            "The name that the certificates of callers must have.",
        ),
        row(
            "LOG_LEVEL",
            Text,
            "WARN",
            Part(&["log.level"]),
            "The least level that is logged, in any case. Unset, weir logs from info on: its start, its policies and its drain. panic and fatal are error.",
        ),
        row(
            "LOG_FORMAT",
            Text,
            "text",
            Part(&["log.format"]),
            "json writes one object a line, with `@timestamp` and `@message`. Every other value is text.",
        ),
        row(
            "CONFIG_TYPE",
            Text,
            "FILE",
            Part(&["policies.source"]),
            "FILE reads the policies from a directory, GRPC_XDS_SOTW from an xDS server.",
        ),
        row(
            "FORCE_START_WITHOUT_INITIAL_CONFIG",
            Bool,
            "false",
            Part(&["policies.xds.start_without_config"]),
            "Whether the listeners open before the xDS server has sent policies. Decisions are UNAVAILABLE until then.",
        ),
        row(
            "CONFIG_GRPC_XDS_NODE_ID",
            Text,
            "default",
            Part(&["policies.xds.node_id"]),
            "The node id that weir sends to the xDS server.",
        ),
        row(
            "CONFIG_GRPC_XDS_NODE_METADATA",
            Text,
            "",
            Part(&["policies.xds.node_metadata"]),
            "The metadata of that node: `k=v,k=v`. A part without an equals sign is left out and named in the log.",
        ),
        row(
            "CONFIG_GRPC_XDS_SERVER_URL",
            Text,
            "localhost:18000",
            Part(&["policies.xds.server"]),
            "The xDS server: HOST:PORT, also after `dns:///`. Without a port it is 443.",
        ),
        row(
            "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
            Duration,
            "3s",
            Part(&["policies.xds.connect_retry"]),
            "The longest wait before weir dials the xDS server again. The first is 250 ms.",
        ),
        row(
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            Map,
            "",
            Part(&["policies.xds.headers"]),
            "Headers that weir sends to the xDS server. The log does not show their values.",
        ),
        row(
            "CONFIG_GRPC_XDS_SERVER_USE_TLS",
            Bool,
            "false",
            Part(&["policies.xds.tls.enabled", "policies.xds.tls.system_store"]),
            "TLS to the xDS server. weir trusts the system's authorities and those of CONFIG_GRPC_XDS_SERVER_TLS_CACERT.",
        ),
        row(
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
            Text,
            "",
            Part(&["policies.xds.tls.cert_file"]),
            "The certificate that weir shows to the xDS server, in PEM. weir reads the files again at each connection.",
        ),
        row(
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
            Text,
            "",
            Part(&["policies.xds.tls.key_file"]),
            "The key of that certificate, in PEM. One without the other has no effect.",
        ),
        row(
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
            Text,
            "",
            Part(&["policies.xds.tls.ca_file"]),
            "Authorities that weir trusts beside those of the system, in PEM.",
        ),
        row(
            "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
            Text,
            "",
            Part(&["policies.xds.tls.server_name"]),
            "The name that the xDS server's certificate must have. Unset it is the host of CONFIG_GRPC_XDS_SERVER_URL.",
        ),
        row(
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
            Duration,
            "10s",
            Part(&["policies.xds.backoff.initial", "policies.xds.backoff.max"]),
            "The first wait after a stream that ended. Unset it is weir's own 1 s.",
        ),
        row(
            "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
            Duration,
            "60s",
            Part(&["policies.xds.backoff.max", "policies.xds.backoff.initial"]),
            "The longest such wait. Unset it is weir's own 30 s, or 60 s where XDS_CLIENT_BACKOFF_INITIAL_INTERVAL is set.",
        ),
        row(
            "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
            Float,
            "0.5",
            Part(&["policies.xds.backoff.random_percent"]),
            "The part of each wait that is random, from 0 to 1.",
        ),
        row(
            "XDS_CLIENT_BACKOFF_JITTER",
            Bool,
            "true",
            Part(&["policies.xds.backoff.random_percent"]),
            "Whether the waits are random at all.",
        ),
        row(
            "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
            Integer,
            "",
            Part(&["policies.xds.max_message_bytes"]),
            "The largest message that weir takes from the xDS server. Unset or 0 it is weir's own 32 MiB.",
        ),
        row(
            "USE_DOG_STATSD",
            Bool,
            "false",
            Part(STATSD),
            "Sends the statistics as DogStatsD datagrams. Wins over USE_STATSD.",
        ),
        row(
            "USE_DOG_STATSD_MOGRIFIERS",
            List,
            "",
            Part(&["statsd.mogrifiers"]),
            "The names of the rules that turn parts of a name into tags. Each rule NAME is in DOG_STATSD_MOGRIFIER_NAME_PATTERN, _NAME and _TAGS.",
        ),
        row(
            "USE_STATSD",
            Bool,
            "true",
            Part(STATSD),
            "Sends the statistics to a StatsD server. With no server there weir logs one warning and goes on.",
        ),
        row("STATSD_HOST", Text, "localhost", Part(&["statsd.address"]), "The host of the StatsD server."),
        row(
            "STATSD_PORT",
            Integer,
            "8125",
            Part(&["statsd.address"]),
            "Its port. STATSD_PROTOCOL is tcp unless it is udp.",
        ),
        row("EXTRA_TAGS", Map, "", Is("statsd.tags", Form::Text), "Tags of every statistic that is sent."),
        row(
            "STATS_FLUSH_INTERVAL",
            Duration,
            "10s",
            Is("statsd.interval", Form::Duration),
            "How often the statistics are sent.",
        ),
        row(
            "DISABLE_STATS",
            Bool,
            "false",
            Part(&["statsd.address", "listen.metrics"]),
            "Turns every sink of statistics off.",
        ),
        row(
            "USE_PROMETHEUS",
            Bool,
            "false",
            Part(&["listen.metrics", "metrics.ratelimit_names"]),
            "Serves the statistics to Prometheus at PROMETHEUS_ADDR. Wins over both kinds of StatsD.",
        ),
        row("PROMETHEUS_ADDR", Text, ":9090", Part(&["listen.metrics"]), "Where Prometheus scrapes."),
        row("PROMETHEUS_PATH", Text, "/metrics", Is("metrics.path", Form::Text), "The path of the statistics there."),
        row(
            "PROMETHEUS_MAPPER_YAML",
            Text,
            "",
            Is("metrics.mapper", Form::Text),
            "A file in statsd_exporter's format that gives the statistics their Prometheus names.",
        ),
        row(
            "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
            Bool,
            "false",
            Is("metrics.response_time_milliseconds", Form::Switch),
            "Response times in milliseconds in place of seconds.",
        ),
        row(
            "RUNTIME_ROOT",
            Text,
            "/srv/runtime_data/current",
            Part(&["policies.directory"]),
            "The policies are in RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY, every file of it. A symlink that is swapped anywhere on that path is followed.",
        ),
        row(
            "RUNTIME_SUBDIRECTORY",
            Text,
            "",
            Part(&["policies.directory"]),
            "The middle of that path. Unset, weir reads RUNTIME_ROOT/RUNTIME_APPDIRECTORY; envoyproxy/ratelimit reads nothing.",
        ),
        row("RUNTIME_APPDIRECTORY", Text, "config", Part(&["policies.directory"]), "The end of that path."),
        row(
            "RUNTIME_IGNOREDOTFILES",
            Bool,
            "false",
            Part(&["policies.dot_files"]),
            "Whether names that begin with a dot are left out. weir always leaves out names that begin with two dots: in a Kubernetes volume they hold every file a second time.",
        ),
        row(
            "RUNTIME_WATCH_ROOT",
            Bool,
            "true",
            Part(&["policies.beside"]),
            "Where it is true, a file beside the directory whose name begins with the directory's and a dot is a policy too, such as config.yaml. weir sees every change either way.",
        ),
        row(
            "EXPIRATION_JITTER_MAX_SECONDS",
            Integer,
            "300",
            Nothing,
            "The keys of a window expire with it, each in its turn, and Redis removes expired keys in small steps.",
        ),
        row(
            "LOCAL_CACHE_SIZE_IN_BYTES",
            Integer,
            "0",
            Part(&["deny_cache.max_age", "deny_cache.max_keys", "deny_cache.until_window_end"]),
            "0 turns the cache of denials off. Any other size turns it on, with one key for each 100 bytes.",
        ),
        row(
            "NEAR_LIMIT_RATIO",
            Float,
            "0.8",
            Is("near_limit_ratio", Form::Ratio),
            "The part of a limit above which hits count as near it.",
        ),
        row(
            "CACHE_KEY_PREFIX",
            Text,
            "",
            Part(&["redis.key_prefix"]),
            "What every key in Redis begins with. weir's keys are not those of envoyproxy/ratelimit; bytes that cannot stand in a prefix are written in hexadecimal.",
        ),
        row(
            "BACKEND_TYPE",
            Text,
            "redis",
            Part(&["store"]),
            "redis is the only backend. weir does not start with memcache.",
        ),
        row(
            "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
            Bool,
            "false",
            Part(&["charging"]),
            "true is `charging: atomic`: a request that one limit denies is charged to none. false is `charging: independent`.",
        ),
        row(
            "LIMIT_RESPONSE_HEADERS_ENABLED",
            Bool,
            "false",
            Is("response.limit_headers", Form::Switch),
            "Adds limit, remaining and reset to the response as headers.",
        ),
        row(
            "LIMIT_LIMIT_HEADER",
            Text,
            "RateLimit-Limit",
            Is("response.limit_header", Form::Text),
            "The name of the header with the limit.",
        ),
        row(
            "LIMIT_REMAINING_HEADER",
            Text,
            "RateLimit-Remaining",
            Is("response.remaining_header", Form::Text),
            "The name of the header with what remains.",
        ),
        row(
            "LIMIT_RESET_HEADER",
            Text,
            "RateLimit-Reset",
            Is("response.reset_header", Form::Text),
            "The name of the header with the seconds until the window ends.",
        ),
        row(
            "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
            Bool,
            "false",
            Is("health.policies", Form::Switch),
            "weir is healthy only while the policies have at least one domain.",
        ),
        row(
            "REDIS_SOCKET_TYPE",
            Text,
            "unix",
            Part(&["redis.url"]),
            "unix, tcp, or tls for TCP with TLS. Where REDIS_URL is unmistakable its form decides.",
        ),
        row("REDIS_TYPE", Text, "SINGLE", Part(REDIS), "SINGLE, SENTINEL or CLUSTER, in any case."),
        row(
            "REDIS_URL",
            Text,
            "/var/run/nutcracker/ratelimit.sock",
            Part(REDIS),
            "HOST:PORT, the path of a socket, redis:// or rediss://. A list with commas for SENTINEL, the master's name first, and for CLUSTER. Unset, weir keeps the limits in its own memory and logs that.",
        ),
        row(
            "REDIS_POOL_SIZE",
            Integer,
            "10",
            Part(&["redis.pool_size"]),
            "Connections to Redis. weir divides them by its cores, from 1 to 64 for each. Unset, each core has 2.",
        ),
        row("REDIS_AUTH", Text, "", Part(&["redis.username", "redis.password"]), "The password, or USER:PASSWORD."),
        row(
            "REDIS_TLS",
            Bool,
            "false",
            Part(&["redis.url", "redis.tls.system_store"]),
            "TLS to Redis. weir trusts the system's authorities and those of REDIS_TLS_CACERT.",
        ),
        row(
            "REDIS_TLS_CLIENT_CERT",
            Text,
            "",
            Part(&["redis.tls.cert_file"]),
            "The certificate that weir shows to Redis, in PEM.",
        ),
        row("REDIS_TLS_CLIENT_KEY", Text, "", Part(&["redis.tls.key_file"]), "The key of that certificate, in PEM."),
        row(
            "REDIS_TLS_CACERT",
            Text,
            "",
            Part(&["redis.tls.ca_file"]),
            "Authorities that weir trusts beside those of the system, in PEM.",
        ),
        row(
            "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
            Bool,
            "false",
            Part(&["redis.tls.skip_hostname_verification"]),
            "Accepts a certificate of any name, as long as a trusted authority has signed it.",
        ),
        row(
            "REDIS_PIPELINE_WINDOW",
            Duration,
            "0",
            Nothing,
            "weir sends what waits as soon as a connection is free, so no call waits for a window.",
        ),
        row("REDIS_PIPELINE_LIMIT", Integer, "0", Nothing, "`redis.batch_max` bounds a pipeline."),
        row(
            "REDIS_CLUSTER_PIPELINE_PARALLELISM",
            Integer,
            "1",
            Nothing,
            "weir always asks all nodes of a cluster at the same time.",
        ),
        row("REDIS_PERSECOND", Bool, "false", Part(PER_SECOND), "Limits per second have a Redis of their own."),
        row("REDIS_PERSECOND_SOCKET_TYPE", Text, "unix", Part(&["redis.per_second.url"]), "As REDIS_SOCKET_TYPE."),
        row("REDIS_PERSECOND_TYPE", Text, "SINGLE", Part(PER_SECOND), "As REDIS_TYPE."),
        row(
            "REDIS_PERSECOND_URL",
            Text,
            "/var/run/nutcracker/ratelimitpersecond.sock",
            Part(PER_SECOND),
            "As REDIS_URL. Required with REDIS_PERSECOND.",
        ),
        row(
            "REDIS_PERSECOND_POOL_SIZE",
            Integer,
            "10",
            Part(&["redis.pool_size"]),
            "Both have the same number of connections: the larger one counts.",
        ),
        row(
            "REDIS_PERSECOND_AUTH",
            Text,
            "",
            Part(&["redis.per_second.username", "redis.per_second.password"]),
            "As REDIS_AUTH.",
        ),
        row(
            "REDIS_PERSECOND_TLS",
            Bool,
            "false",
            Part(&["redis.per_second.url"]),
            "TLS to that Redis, with the same files.",
        ),
        row(
            "REDIS_SENTINEL_AUTH",
            Text,
            "",
            Part(&["redis.sentinel.username", "redis.sentinel.password"]),
            "The password at the sentinels, or USER:PASSWORD.",
        ),
        row(
            "REDIS_PERSECOND_SENTINEL_AUTH",
            Text,
            "",
            Part(&["redis.per_second.sentinel.username", "redis.per_second.sentinel.password"]),
            "The same at the sentinels of the second Redis.",
        ),
        row("REDIS_PERSECOND_PIPELINE_WINDOW", Duration, "0", Nothing, "As REDIS_PIPELINE_WINDOW."),
        row("REDIS_PERSECOND_PIPELINE_LIMIT", Integer, "0", Nothing, "As REDIS_PIPELINE_LIMIT."),
        row(
            "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
            Integer,
            "1",
            Nothing,
            "As REDIS_CLUSTER_PIPELINE_PARALLELISM.",
        ),
        row(
            "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
            Bool,
            "false",
            Is("health.redis", Form::Switch),
            "weir is healthy only while Redis answers.",
        ),
        row(
            "REDIS_TIMEOUT",
            Duration,
            "10s",
            Is("redis.timeout", Form::Duration),
            "How long a decision may wait for Redis. Unset or 0 it is weir's own 10 ms: Envoy does not wait 10 s.",
        ),
        row(
            "REDIS_PERSECOND_TIMEOUT",
            Duration,
            "10s",
            Nothing,
            "REDIS_TIMEOUT is the time of a whole decision, over both.",
        ),
        row(
            "REDIS_POOL_ON_EMPTY_BEHAVIOR",
            Text,
            "WAIT",
            Nothing,
            "A decision waits for a connection within REDIS_TIMEOUT, and `redis.queue` bounds how many wait.",
        ),
        row("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", Text, "WAIT", Nothing, "As REDIS_POOL_ON_EMPTY_BEHAVIOR."),
        row(
            "REDIS_STARTUP_INITIAL_INTERVAL",
            Duration,
            "1s",
            Nothing,
            "weir asks Redis every 100 ms at the start, while its listeners are open and it is not healthy.",
        ),
        row(
            "REDIS_STARTUP_MAX_INTERVAL",
            Duration,
            "30s",
            Nothing,
            "weir asks Redis every 100 ms at the start, and every second after `redis.ready_after`.",
        ),
        row(
            "REDIS_STARTUP_MAX_ELAPSED_TIME",
            Duration,
            "0",
            Is("redis.start_within", Form::Duration),
            "weir ends with an error where Redis has not answered so long after the start. 0 waits forever.",
        ),
        row("MEMCACHE_HOST_PORT", List, "", Nothing, "weir has no Memcached backend."),
        row("MEMCACHE_MAX_IDLE_CONNS", Integer, "2", Nothing, "weir has no Memcached backend."),
        row("MEMCACHE_SRV", Text, "", Nothing, "weir has no Memcached backend."),
        row("MEMCACHE_SRV_REFRESH", Duration, "0", Nothing, "weir has no Memcached backend."),
        row("MEMCACHE_TLS", Bool, "false", Nothing, "weir has no Memcached backend."),
        row("MEMCACHE_TLS_CLIENT_CERT", Text, "", Nothing, "weir has no Memcached backend."),
        row("MEMCACHE_TLS_CLIENT_KEY", Text, "", Nothing, "weir has no Memcached backend."),
        row("MEMCACHE_TLS_CACERT", Text, "", Nothing, "weir has no Memcached backend."),
        row("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", Bool, "false", Nothing, "weir has no Memcached backend."),
        row(
            "SHADOW_MODE",
            Bool,
            "false",
            Is("shadow_mode", Form::Switch),
            "Every answer is OK. Limits are still charged and counted.",
        ),
        row("QUOTA_MODE", Bool, "false", Is("quota_mode", Form::Switch), "Every rule is in quota mode."),
        row(
            "RESPONSE_DYNAMIC_METADATA",
            Bool,
            "false",
            Is("response.limit_metadata", Form::Switch),
            "The response carries the request and the rules' metadata as dynamic metadata.",
        ),
        row(
            "MERGE_DOMAIN_CONFIG",
            Bool,
            "false",
            Is("policies.merge_domains", Form::Switch),
            "Files of one domain are merged. Without it a second file of a domain is refused.",
        ),
        row(
            "TRACING_ENABLED",
            Bool,
            "false",
            Part(&["tracing.exporter"]),
            "Whether the spans of decisions go to a collector by OTLP. OTEL_SDK_DISABLED=true turns them off.",
        ),
        row(
            "TRACING_SERVICE_NAME",
            Text,
            "RateLimit",
            Part(&["tracing.service_name"]),
            "service.name of all spans. Unset, OTEL_SERVICE_NAME counts, then the default.",
        ),
        row(
            "TRACING_SERVICE_NAMESPACE",
            Text,
            "",
            Is("tracing.service_namespace", Form::Text),
            "service.namespace of all spans.",
        ),
        row(
            "TRACING_SERVICE_INSTANCE_ID",
            Text,
            "",
            Is("tracing.service_instance_id", Form::Text),
            "service.instance.id of all spans. Unset or empty it is a random UUID for each start.",
        ),
        row(
            "TRACING_EXPORTER_PROTOCOL",
            Text,
            "http",
            Part(&["tracing.otlp.protocol"]),
            "http is OTLP by HTTP with protobuf, grpc is OTLP by gRPC.",
        ),
        row(
            "TRACING_SAMPLING_RATE",
            Float,
            "1",
            Is("tracing.sample_ratio", Form::Ratio),
            "The part of decisions that weir traces where the caller did not decide that.",
        ),
        row(
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            Text,
            "",
            Part(&["tracing.otlp.endpoint"]),
            "The collector. Other OTEL_* variables count too, as docs/configuration.md lists them.",
        ),
    ]
};
