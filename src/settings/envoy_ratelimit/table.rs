//! The table of envoyproxy/ratelimit's environment variables: name, type, default, and what weir does with each.
//!
//! The mapping (envoy_ratelimit.rs), the log lines about variables without effect, and the table in docs/variables.md come
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
    pub fn find(name: &str) -> Option<&'static Self> {
        VARIABLES.iter().find(|variable| variable.name == name)
    }

    /// The settings that it affects.
    pub fn settings(&self) -> Vec<&'static str> {
        match self.effect {
            Effect::Is(setting, _) => vec![setting],
            Effect::Part(settings) => settings.to_vec(),
            Effect::Nothing => Vec::new(),
        }
    }
}

/// The settings made from the address and login of the first Redis.
const REDIS: &[&str] = &["store", "redis.url", "redis.topology", "redis.sentinel.master"];
/// The settings made from the address and login of the second Redis.
const PER_SECOND: &[&str] = &["redis.per_second.url", "redis.per_second.topology", "redis.per_second.sentinel.master"];
/// The sink of statistics.
const STATSD: &[&str] = &["statsd.address", "statsd.format"];

/// Declares the variables, each with its type, default and effect. The comment of a variable is its `about`.
macro_rules! variables {
    ($($(#[doc = $about:literal])+ $name:ident: $kind:ident = $default:literal, $effect:expr;)+) => {
        /// Every variable, in the order of envoyproxy/ratelimit's own settings.
        pub const VARIABLES: &[Variable] = {
            use Effect::{Is, Nothing, Part};
            &[$(Variable {
                name: stringify!($name),
                kind: Type::$kind,
                default: $default,
                effect: $effect,
                about: concat!($($about),+).trim_ascii(),
            }),+]
        };
    };
}

variables! {
    /// The address of the HTTP listener. A name is resolved once, at the start.
    HOST: Text = "0.0.0.0", Part(&["listen.http"]);
    /// The port of the HTTP listener; 0 for any.
    PORT: Integer = "8080", Part(&["listen.http"]);
    /// The address of the debug listener, which only shows and changes nothing.
    DEBUG_HOST: Text = "0.0.0.0", Part(&["listen.admin"]);
    /// The port of the debug listener; 0 for any.
    DEBUG_PORT: Integer = "6070", Part(&["listen.admin"]);
    /// The path of a Unix socket in place of GRPC_HOST and GRPC_PORT.
    GRPC_UDS: Text = "", Part(&["listen.grpc"]);
    /// The address of the gRPC listener.
    GRPC_HOST: Text = "0.0.0.0", Part(&["listen.grpc"]);
    /// The port of the gRPC listener; 0 for any.
    GRPC_PORT: Integer = "8081", Part(&["listen.grpc"]);
    /// How long a gRPC connection lives before weir asks its client for a new one, plus or minus 10 %.
    GRPC_MAX_CONNECTION_AGE: Duration = "24h", Is("listen.max_connection_age", Form::Duration);
    /// How long after that weir closes the connection.
    GRPC_MAX_CONNECTION_AGE_GRACE: Duration = "1h", Is("listen.max_connection_age_grace", Form::Duration);
    /// TLS on the gRPC listener.
    GRPC_SERVER_USE_TLS: Bool = "false", Part(&["listen.tls.cert_file", "listen.tls.key_file"]);
    /// The certificate of the gRPC listener, in PEM.
    GRPC_SERVER_TLS_CERT: Text = "", Part(&["listen.tls.cert_file"]);
    /// The key of that certificate, in PEM.
    GRPC_SERVER_TLS_KEY: Text = "", Part(&["listen.tls.key_file"]);
    /// The authorities that may sign the certificates of callers, in PEM.
    GRPC_CLIENT_TLS_CACERT: Text = "", Part(&["listen.tls.client_ca_file"]);
    /// The name that the certificates of callers must have.
    GRPC_CLIENT_TLS_SAN: Text = "", Part(&["listen.tls.client_names"]);
    /// The least level that is logged, in any case. Unset, weir logs from info on: its start, its policies and its drain.
    /// panic and fatal are error.
    LOG_LEVEL: Text = "WARN", Part(&["log.level"]);
    /// json writes one object a line, with `@timestamp` and `@message`. Every other value is text.
    LOG_FORMAT: Text = "text", Part(&["log.format"]);
    /// FILE reads the policies from a directory, GRPC_XDS_SOTW from an xDS server.
    CONFIG_TYPE: Text = "FILE", Part(&["policies.source"]);
    /// Whether the listeners open before the xDS server has sent policies. Decisions are UNAVAILABLE until then.
    FORCE_START_WITHOUT_INITIAL_CONFIG: Bool = "false", Part(&["policies.xds.start_without_config"]);
    /// The node id that weir sends to the xDS server.
    CONFIG_GRPC_XDS_NODE_ID: Text = "default", Part(&["policies.xds.node_id"]);
    /// The metadata of that node: `k=v,k=v`. A part without an equals sign is left out and named in the log.
    CONFIG_GRPC_XDS_NODE_METADATA: Text = "", Part(&["policies.xds.node_metadata"]);
    /// The xDS server: HOST:PORT, also after `dns:///`. Without a port it is 443.
    CONFIG_GRPC_XDS_SERVER_URL: Text = "localhost:18000", Part(&["policies.xds.server"]);
    /// The longest wait before weir dials the xDS server again. The first is 250 ms.
    CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL: Duration = "3s", Part(&["policies.xds.connect_retry"]);
    /// Headers that weir sends to the xDS server. The log does not show their values.
    CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: Map = "", Part(&["policies.xds.headers"]);
    /// TLS to the xDS server. weir trusts the system's authorities and those of CONFIG_GRPC_XDS_SERVER_TLS_CACERT.
    CONFIG_GRPC_XDS_SERVER_USE_TLS: Bool = "false", Part(&["policies.xds.tls.enabled", "policies.xds.tls.system_store"]);
    /// The certificate that weir shows to the xDS server, in PEM. weir reads the files again at each connection.
    CONFIG_GRPC_XDS_CLIENT_TLS_CERT: Text = "", Part(&["policies.xds.tls.cert_file"]);
    /// The key of that certificate, in PEM. One without the other has no effect.
    CONFIG_GRPC_XDS_CLIENT_TLS_KEY: Text = "", Part(&["policies.xds.tls.key_file"]);
    /// Authorities that weir trusts beside those of the system, in PEM.
    CONFIG_GRPC_XDS_SERVER_TLS_CACERT: Text = "", Part(&["policies.xds.tls.ca_file"]);
    /// The name that the xDS server's certificate must have. Unset it is the host of CONFIG_GRPC_XDS_SERVER_URL.
    CONFIG_GRPC_XDS_SERVER_TLS_SAN: Text = "", Part(&["policies.xds.tls.server_name"]);
    /// The first wait after a stream that ended. Unset it is weir's own 1 s.
    XDS_CLIENT_BACKOFF_INITIAL_INTERVAL: Duration = "10s", Part(&["policies.xds.backoff.initial", "policies.xds.backoff.max"]);
    /// The longest such wait. Unset it is weir's own 30 s, or 60 s where XDS_CLIENT_BACKOFF_INITIAL_INTERVAL is set.
    XDS_CLIENT_BACKOFF_MAX_INTERVAL: Duration = "60s", Part(&["policies.xds.backoff.max", "policies.xds.backoff.initial"]);
    /// The part of each wait that is random, from 0 to 1.
    XDS_CLIENT_BACKOFF_RANDOM_FACTOR: Float = "0.5", Part(&["policies.xds.backoff.random_percent"]);
    /// Whether the waits are random at all.
    XDS_CLIENT_BACKOFF_JITTER: Bool = "true", Part(&["policies.xds.backoff.random_percent"]);
    /// The largest message that weir takes from the xDS server. Unset or 0 it is weir's own 32 MiB.
    XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES: Integer = "", Part(&["policies.xds.max_message_bytes"]);
    /// Sends the statistics as DogStatsD datagrams. Wins over USE_STATSD.
    USE_DOG_STATSD: Bool = "false", Part(STATSD);
    /// The names of the rules that turn parts of a name into tags. Each rule NAME is in DOG_STATSD_MOGRIFIER_NAME_PATTERN,
    /// _NAME and _TAGS.
    USE_DOG_STATSD_MOGRIFIERS: List = "", Part(&["statsd.mogrifiers"]);
    /// Sends the statistics to a StatsD server. With no server there weir logs one warning and goes on.
    USE_STATSD: Bool = "true", Part(STATSD);
    /// The host of the StatsD server.
    STATSD_HOST: Text = "localhost", Part(&["statsd.address"]);
    /// Its port. STATSD_PROTOCOL is tcp unless it is udp.
    STATSD_PORT: Integer = "8125", Part(&["statsd.address"]);
    /// Tags of every statistic that is sent.
    EXTRA_TAGS: Map = "", Is("statsd.tags", Form::Text);
    /// How often the statistics are sent.
    STATS_FLUSH_INTERVAL: Duration = "10s", Is("statsd.interval", Form::Duration);
    /// Turns every sink of statistics off.
    DISABLE_STATS: Bool = "false", Part(&["statsd.address", "listen.metrics"]);
    /// Serves the statistics to Prometheus at PROMETHEUS_ADDR. Wins over both kinds of StatsD.
    USE_PROMETHEUS: Bool = "false", Part(&["listen.metrics", "metrics.ratelimit_names"]);
    /// Where Prometheus scrapes.
    PROMETHEUS_ADDR: Text = ":9090", Part(&["listen.metrics"]);
    /// The path of the statistics there.
    PROMETHEUS_PATH: Text = "/metrics", Is("metrics.path", Form::Text);
    /// A file in statsd_exporter's format that gives the statistics their Prometheus names.
    PROMETHEUS_MAPPER_YAML: Text = "", Is("metrics.mapper", Form::Text);
    /// Response times in milliseconds in place of seconds.
    PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS: Bool = "false", Is("metrics.response_time_milliseconds", Form::Switch);
    /// The policies are in RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY, every file of it. A symlink that is
    /// swapped anywhere on that path is followed.
    RUNTIME_ROOT: Text = "/srv/runtime_data/current", Part(&["policies.directory"]);
    /// The middle of that path. Unset, weir reads RUNTIME_ROOT/RUNTIME_APPDIRECTORY; envoyproxy/ratelimit reads nothing.
    RUNTIME_SUBDIRECTORY: Text = "", Part(&["policies.directory"]);
    /// The end of that path.
    RUNTIME_APPDIRECTORY: Text = "config", Part(&["policies.directory"]);
    /// Whether names that begin with a dot are left out. weir always leaves out names that begin with two dots: in a
    /// Kubernetes volume they hold every file a second time.
    RUNTIME_IGNOREDOTFILES: Bool = "false", Part(&["policies.dot_files"]);
    /// Where it is true, a file beside the directory whose name begins with the directory's and a dot is a policy too, such
    /// as config.yaml. weir sees every change either way.
    RUNTIME_WATCH_ROOT: Bool = "true", Part(&["policies.beside"]);
    /// The keys of a window expire with it, each in its turn, and Redis removes expired keys in small steps.
    EXPIRATION_JITTER_MAX_SECONDS: Integer = "300", Nothing;
    /// 0 turns the cache of denials off. Any other size turns it on, with one key for each 100 bytes. envoyproxy/ratelimit repeats a denial until the window ends, also after hits were given back at another replica. weir repeats it for at most `deny_cache.max_age`, 1 s by default.
    LOCAL_CACHE_SIZE_IN_BYTES: Integer = "0", Part(&["deny_cache.max_age", "deny_cache.max_keys"]);
    /// The part of a limit above which hits count as near it.
    NEAR_LIMIT_RATIO: Float = "0.8", Is("near_limit_ratio", Form::Ratio);
    /// Dots in keys and values of descriptors are `_` in the names of statistics.
    SANITIZE_DESCRIPTOR_METRIC_DOTS: Bool = "false", Is("metrics.sanitize_dots", Form::Switch);
    /// The prefix of every key in Redis. weir's keys are not those of envoyproxy/ratelimit; bytes that a prefix cannot have
    /// are written in hexadecimal.
    CACHE_KEY_PREFIX: Text = "", Part(&["redis.key_prefix"]);
    /// redis is the only backend. weir does not start with memcache.
    BACKEND_TYPE: Text = "redis", Part(&["store"]);
    /// true is `charging: atomic`: a request that one limit denies is charged to none. false is `charging: independent`.
    STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: Bool = "false", Part(&["charging"]);
    /// Adds limit, remaining and reset to the response as headers.
    LIMIT_RESPONSE_HEADERS_ENABLED: Bool = "false", Is("response.limit_headers", Form::Switch);
    /// The name of the header with the limit.
    LIMIT_LIMIT_HEADER: Text = "RateLimit-Limit", Is("response.limit_header", Form::Text);
    /// The name of the header with what remains.
    LIMIT_REMAINING_HEADER: Text = "RateLimit-Remaining", Is("response.remaining_header", Form::Text);
    /// The name of the header with the seconds until the window ends.
    LIMIT_RESET_HEADER: Text = "RateLimit-Reset", Is("response.reset_header", Form::Text);
    /// weir is healthy only while the policies have at least one domain.
    HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED: Bool = "false", Is("health.policies", Form::Switch);
    /// unix, tcp, or tls for TCP with TLS. Where REDIS_URL is unmistakable its form decides.
    REDIS_SOCKET_TYPE: Text = "unix", Part(&["redis.url"]);
    /// SINGLE, SENTINEL or CLUSTER, in any case.
    REDIS_TYPE: Text = "SINGLE", Part(REDIS);
    /// HOST:PORT, the path of a socket, redis:// or rediss://. A list with commas for SENTINEL, the master's name first, and
    /// for CLUSTER. Unset, weir keeps the limits in its own memory and logs that.
    REDIS_URL: Text = "/var/run/nutcracker/ratelimit.sock", Part(REDIS);
    /// Connections to Redis. weir divides them by its cores, from 1 to 64 for each. Unset, each core has 2.
    REDIS_POOL_SIZE: Integer = "10", Part(&["redis.pool_size"]);
    /// The password, or USER:PASSWORD.
    REDIS_AUTH: Text = "", Part(&["redis.username", "redis.password"]);
    /// TLS to Redis. weir trusts the system's authorities and those of REDIS_TLS_CACERT.
    REDIS_TLS: Bool = "false", Part(&["redis.url", "redis.tls.system_store"]);
    /// The certificate that weir shows to Redis, in PEM.
    REDIS_TLS_CLIENT_CERT: Text = "", Part(&["redis.tls.cert_file"]);
    /// The key of that certificate, in PEM.
    REDIS_TLS_CLIENT_KEY: Text = "", Part(&["redis.tls.key_file"]);
    /// Authorities that weir trusts beside those of the system, in PEM.
    REDIS_TLS_CACERT: Text = "", Part(&["redis.tls.ca_file"]);
    /// Accepts a certificate of any name, as long as a trusted authority has signed it.
    REDIS_TLS_SKIP_HOSTNAME_VERIFICATION: Bool = "false", Part(&["redis.tls.skip_hostname_verification"]);
    /// weir sends what waits as soon as a connection is free, so no call waits for a window.
    REDIS_PIPELINE_WINDOW: Duration = "0", Nothing;
    /// `redis.batch_max` bounds a pipeline.
    REDIS_PIPELINE_LIMIT: Integer = "0", Nothing;
    /// weir always asks all nodes of a cluster at the same time.
    REDIS_CLUSTER_PIPELINE_PARALLELISM: Integer = "1", Nothing;
    /// Limits per second have their own Redis.
    REDIS_PERSECOND: Bool = "false", Part(PER_SECOND);
    /// As REDIS_SOCKET_TYPE.
    REDIS_PERSECOND_SOCKET_TYPE: Text = "unix", Part(&["redis.per_second.url"]);
    /// As REDIS_TYPE.
    REDIS_PERSECOND_TYPE: Text = "SINGLE", Part(PER_SECOND);
    /// As REDIS_URL. Required with REDIS_PERSECOND.
    REDIS_PERSECOND_URL: Text = "/var/run/nutcracker/ratelimitpersecond.sock", Part(PER_SECOND);
    /// Both have the same number of connections: the larger one counts.
    REDIS_PERSECOND_POOL_SIZE: Integer = "10", Part(&["redis.pool_size"]);
    /// As REDIS_AUTH.
    REDIS_PERSECOND_AUTH: Text = "", Part(&["redis.per_second.username", "redis.per_second.password"]);
    /// TLS to that Redis, with the same files.
    REDIS_PERSECOND_TLS: Bool = "false", Part(&["redis.per_second.url"]);
    /// The password at the sentinels, or USER:PASSWORD.
    REDIS_SENTINEL_AUTH: Text = "", Part(&["redis.sentinel.username", "redis.sentinel.password"]);
    /// The same at the sentinels of the second Redis.
    REDIS_PERSECOND_SENTINEL_AUTH: Text = "", Part(&["redis.per_second.sentinel.username", "redis.per_second.sentinel.password"]);
    /// As REDIS_PIPELINE_WINDOW.
    REDIS_PERSECOND_PIPELINE_WINDOW: Duration = "0", Nothing;
    /// As REDIS_PIPELINE_LIMIT.
    REDIS_PERSECOND_PIPELINE_LIMIT: Integer = "0", Nothing;
    /// As REDIS_CLUSTER_PIPELINE_PARALLELISM.
    REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM: Integer = "1", Nothing;
    /// weir is healthy only while Redis answers.
    REDIS_HEALTH_CHECK_ACTIVE_CONNECTION: Bool = "false", Is("health.redis", Form::Switch);
    /// How long a decision may wait for Redis. Unset or 0 it is weir's own 10 ms: Envoy does not wait 10 s.
    REDIS_TIMEOUT: Duration = "10s", Is("redis.timeout", Form::Duration);
    /// REDIS_TIMEOUT is the time of a whole decision, over both.
    REDIS_PERSECOND_TIMEOUT: Duration = "10s", Nothing;
    /// A decision waits for a connection within REDIS_TIMEOUT, and `redis.queue` bounds how many wait.
    REDIS_POOL_ON_EMPTY_BEHAVIOR: Text = "WAIT", Nothing;
    /// As REDIS_POOL_ON_EMPTY_BEHAVIOR.
    REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR: Text = "WAIT", Nothing;
    /// weir asks Redis every 100 ms at the start, while its listeners are open and it is not healthy.
    REDIS_STARTUP_INITIAL_INTERVAL: Duration = "1s", Nothing;
    /// weir asks Redis every 100 ms at the start, and every second after `redis.ready_after`.
    REDIS_STARTUP_MAX_INTERVAL: Duration = "30s", Nothing;
    /// weir ends with an error if Redis has not answered by this time after the start. 0 waits forever.
    REDIS_STARTUP_MAX_ELAPSED_TIME: Duration = "0", Is("redis.start_within", Form::Duration);
    /// weir has no Memcached backend.
    MEMCACHE_HOST_PORT: List = "", Nothing;
    /// weir has no Memcached backend.
    MEMCACHE_MAX_IDLE_CONNS: Integer = "2", Nothing;
    /// weir has no Memcached backend.
    MEMCACHE_SRV: Text = "", Nothing;
    /// weir has no Memcached backend.
    MEMCACHE_SRV_REFRESH: Duration = "0", Nothing;
    /// weir has no Memcached backend.
    MEMCACHE_TLS: Bool = "false", Nothing;
    /// weir has no Memcached backend.
    MEMCACHE_TLS_CLIENT_CERT: Text = "", Nothing;
    /// weir has no Memcached backend.
    MEMCACHE_TLS_CLIENT_KEY: Text = "", Nothing;
    /// weir has no Memcached backend.
    MEMCACHE_TLS_CACERT: Text = "", Nothing;
    /// weir has no Memcached backend.
    MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION: Bool = "false", Nothing;
    /// Every answer is OK. Limits are still charged and counted.
    SHADOW_MODE: Bool = "false", Is("shadow_mode", Form::Switch);
    /// Every rule is in quota mode.
    QUOTA_MODE: Bool = "false", Is("quota_mode", Form::Switch);
    /// The response carries the request and the rules' metadata as dynamic metadata.
    RESPONSE_DYNAMIC_METADATA: Bool = "false", Is("response.limit_metadata", Form::Switch);
    /// Files of one domain are merged. Without it a second file of a domain is refused.
    MERGE_DOMAIN_CONFIG: Bool = "false", Is("policies.merge_domains", Form::Switch);
    /// `unit: month` in policies is a month of the calendar in UTC. A month in the limit of a request has 30 days.
    USE_CALENDAR_MONTH_RATE_LIMIT: Bool = "false", Is("policies.calendar_months", Form::Switch);
    /// Whether the spans of decisions go to a collector by OTLP. OTEL_SDK_DISABLED=true turns them off.
    TRACING_ENABLED: Bool = "false", Part(&["tracing.exporter"]);
    /// service.name of all spans. Unset, OTEL_SERVICE_NAME counts, then the default.
    TRACING_SERVICE_NAME: Text = "RateLimit", Part(&["tracing.service_name"]);
    /// service.namespace of all spans.
    TRACING_SERVICE_NAMESPACE: Text = "", Is("tracing.service_namespace", Form::Text);
    /// service.instance.id of all spans. Unset or empty it is a random UUID for each start.
    TRACING_SERVICE_INSTANCE_ID: Text = "", Is("tracing.service_instance_id", Form::Text);
    /// http is OTLP by HTTP with protobuf, grpc is OTLP by gRPC.
    TRACING_EXPORTER_PROTOCOL: Text = "http", Part(&["tracing.otlp.protocol"]);
    /// The part of decisions that weir traces where the caller did not decide that.
    TRACING_SAMPLING_RATE: Float = "1", Is("tracing.sample_ratio", Form::Ratio);
    /// The collector. Other OTEL_* variables count too, as docs/configuration.md lists them.
    OTEL_EXPORTER_OTLP_ENDPOINT: Text = "", Part(&["tracing.otlp.endpoint"]);
}
