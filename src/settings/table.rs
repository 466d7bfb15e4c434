//! The one table of settings.
//!
//! Defaults, the search for unknown names, the listing in `weir serve --help` and the check of
//! docs/configuration.md all come from it. A new setting is a row here and its typed field in
//! [`Settings`](super::Settings). What a row is stands in `row.rs`, and how a kind reads its text in `value.rs`.

use std::time::Duration;

use weir_engine::{Mode, OnError};

use super::row::{Kind, Preset, SYSTEM_STORE, Setting};
pub use super::value::{NAME_BYTES_MAX, VALUE_BYTES_MAX};
use super::{alerts_rows, metrics_export_rows, tap_rows, traces_rows, xds_rows};

/// Every setting, grouped as in the documentation.
pub const SETTINGS: &[Setting] = &flat::<{ count(GROUPS) }>(GROUPS);

/// The groups in their order. A large one stands beside its typed fields.
const GROUPS: &[&[Setting]] = &[
    UP_TO_POLICIES,
    xds_rows::ROWS,
    FROM_STORE_ON,
    traces_rows::ROWS,
    metrics_export_rows::ROWS,
    alerts_rows::ROWS,
    tap_rows::ROWS,
];

const fn count(groups: &[&[Setting]]) -> usize {
    let (mut sum, mut group) = (0, 0);
    while group < groups.len() {
        sum += groups[group].len();
        group += 1;
    }
    sum
}

const fn flat<const N: usize>(groups: &[&[Setting]]) -> [Setting; N] {
    let mut all = [groups[0][0]; N];
    let (mut next, mut group) = (0, 0);
    while group < groups.len() {
        let mut row = 0;
        while row < groups[group].len() {
            all[next] = groups[group][row];
            next += 1;
            row += 1;
        }
        group += 1;
    }
    all
}

const UP_TO_POLICIES: &[Setting] = &[
    Setting {
        name: "listen.grpc",
        kind: Kind::Endpoint,
        default: Preset::Is("0.0.0.0:8081"),
        about: "where gRPC is served: decisions, health, reflection; an address, or unix:/path",
    },
    Setting {
        name: "listen.socket_mode",
        kind: Kind::Permissions,
        default: Preset::Is("0660"),
        about: "the permissions of the Unix socket of listen.grpc",
    },
    Setting {
        name: "listen.tls.cert_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the certificate of the gRPC listener, in PEM, with its intermediates; needs the key",
    },
    Setting {
        name: "listen.tls.key_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the key of that certificate, in PEM",
    },
    Setting {
        name: "listen.tls.client_ca_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the authorities that must have signed a client's certificate, in PEM; none: clients need no certificate",
    },
    Setting {
        name: "listen.tls.client_names",
        kind: Kind::ClientNames,
        default: Preset::Unset,
        about: "names of clients: a certificate must have one of them; DNS names, IPs, URIs, by commas; none: any name",
    },
    Setting {
        name: "listen.max_connection_age",
        kind: Kind::Duration { min: Duration::ZERO, max: CONNECTION_AGE_MAX },
        default: Preset::Is("0s"),
        about: "the age at which weir asks the client of a gRPC connection for a new one, plus or minus 10 %; 0s: never",
    },
    Setting {
        name: "listen.max_connection_age_grace",
        kind: Kind::Duration { min: Duration::from_millis(1), max: CONNECTION_AGE_MAX },
        default: Preset::Is("10s"),
        about: "how long requests of such a connection may take after that; then weir closes it",
    },
    Setting {
        name: "listen.http",
        kind: Kind::Address,
        default: Preset::Is("0.0.0.0:8080"),
        about: "where HTTP is served: /json, health, /metrics",
    },
    Setting {
        name: "listen.admin",
        kind: Kind::Address,
        default: Preset::Is("127.0.0.1:6070"),
        about: "where the admin endpoints are served: they can reset limits, so keep this private",
    },
    Setting {
        name: "listen.metrics",
        kind: Kind::Address,
        default: Preset::Unset,
        about: "where the metrics are served by themselves, besides the other listeners",
    },
    Setting {
        name: "metrics.path",
        kind: Kind::UrlPath { bytes_max: URL_PATH_BYTES_MAX },
        default: Preset::Is("/metrics"),
        about: "the path of the metrics at listen.metrics",
    },
    Setting {
        name: "admin.endpoints",
        kind: Kind::Choice(ENDPOINTS),
        default: Preset::Is("weir"),
        about: "what listen.admin serves: weir, the admin endpoints; ratelimit, the read-only debug port of envoyproxy/ratelimit",
    },
    Setting {
        name: "admin.token_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the file of bearer tokens, lines NAME TOKEN, for requests that change something at listen.admin; none: no token",
    },
    Setting {
        name: "admin.values",
        kind: Kind::Choice(VALUES),
        default: Preset::Is("shown"),
        about: "how values of descriptors look at listen.admin and in the log: as they are, as a hash, or as *",
    },
    Setting {
        name: "health.redis",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "whether weir is unhealthy while Redis does not answer",
    },
    Setting {
        name: "health.policies",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "whether weir is unhealthy while the policies have no domain",
    },
    Setting {
        name: "grpc.max_streams",
        kind: Kind::Integer { min: 1, max: 65_536, unit: "requests" },
        default: Preset::Is("256"),
        about: "how many requests one gRPC connection may have in flight; Envoy opens another connection for more",
    },
    Setting {
        name: "grpc.receive_timeout",
        kind: Kind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(300) },
        default: Preset::Is("5s"),
        about: "how long the message of a gRPC request may take to arrive after its headers",
    },
    Setting {
        name: "grpc.connection_held_bytes",
        kind: Kind::Integer { min: 65_536, max: 1 << 32, unit: "bytes" },
        default: Preset::Is("8388608"),
        about: "how many bytes of requests and responses weir holds for one gRPC connection",
    },
    Setting {
        name: "grpc.held_bytes",
        kind: Kind::Integer { min: 65_536, max: 1 << 40, unit: "bytes" },
        default: Preset::Is("33554432"),
        about: "how many bytes of requests and responses weir holds for all gRPC connections",
    },
    Setting {
        name: "http.connections_per_peer",
        kind: Kind::Integer { min: 0, max: 1024, unit: "connections" },
        default: Preset::Is("0"),
        about: "how many connections one IP address may have to an HTTP listener; 0 for no bound",
    },
    Setting {
        name: "http.admin_hosts",
        kind: Kind::HostNames { most: HOST_NAMES_MAX },
        default: Preset::Is(""),
        about: "hosts that a request to the admin listener may name, by commas; loopback names and IPs are always allowed",
    },
    Setting {
        name: "http.allowed_origins",
        kind: Kind::Origins { most: ORIGINS_MAX },
        default: Preset::Is(""),
        about: "sites whose web pages may send requests to /json, and changes to the admin listener, by commas",
    },
    Setting {
        name: "policies.source",
        kind: Kind::Choice(SOURCES),
        default: Preset::Is("directory"),
        about: "where policies come from: files of a directory, or a control plane that is asked by xDS",
    },
    Setting {
        name: "policies.directory",
        kind: Kind::Directory,
        default: Preset::Required,
        about: "the directory of YAML policy files, watched for changes; not needed with policies.source = xds",
    },
];

/// The rows behind those of `policies.xds`.
const FROM_STORE_ON: &[Setting] = &[
    Setting {
        name: "policies.files",
        kind: Kind::Choice(POLICY_FILES),
        default: Preset::Is("yaml"),
        about: "which files of the directory are policies: *.yaml and *.yml, or all",
    },
    Setting {
        name: "policies.dot_files",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "whether names that begin with one dot are read; names that begin with two never are",
    },
    Setting {
        name: "policies.beside",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "whether files beside the directory that have its name, a dot and an ending are policies too",
    },
    Setting {
        name: "policies.allow_empty",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "whether a directory without policies, or none at all, is legal: every request passes then",
    },
    Setting {
        name: "policies.compatible",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "policy files are read as envoyproxy/ratelimit reads them, with a warning where weir would refuse",
    },
    Setting {
        name: "policies.merge_domains",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "files that name the same domain are joined; off, the second one is an error",
    },
    Setting {
        name: "store",
        kind: Kind::Choice(STORES),
        default: Preset::Is("memory"),
        about: "where the states of limits are: in this process, or in a Redis that replicas share",
    },
    Setting {
        name: "charging",
        kind: Kind::Choice(CHARGINGS),
        default: Preset::Is("atomic"),
        about: "atomic: a denied request is charged nowhere; independent: each limit charges for itself",
    },
    Setting {
        name: "on_error",
        kind: Kind::Choice(ON_ERRORS),
        default: Preset::Is("error"),
        about: "what happens to a request whose store does not answer, unless its rule or domain sets that",
    },
    Setting {
        name: "shadow_mode",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "no limit denies: statuses and metrics show what would be denied, and every request passes",
    },
    Setting {
        name: "quota_mode",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "every limit that denies is a quota: a request is denied when all of its limits are over",
    },
    Setting {
        name: "response.dynamic_metadata",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "exact waits of each status in the response's dynamic metadata, under the key weir",
    },
    Setting {
        name: "response.delay_header",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "leaky_bucket's wait as the request header by which Envoy's fault filter delays",
    },
    Setting {
        name: "response.limit_metadata",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "the request and the metadata of the limits that it passed, in the response's dynamic metadata",
    },
    Setting {
        name: "response.ietf_headers",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "Retry-After on denials, and RateLimit and RateLimit-Policy, as headers for the client",
    },
    Setting {
        name: "response.problem_body",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "on denials by limits, a body for the client that names them: application/problem+json",
    },
    Setting {
        name: "response.limit_headers",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "three headers for the client: the limit nearest to its end, what is left of it, when it is reset",
    },
    Setting {
        name: "response.limit_header",
        kind: Kind::HeaderName,
        default: Preset::Is("RateLimit-Limit"),
        about: "the name of the header with the requests per unit",
    },
    Setting {
        name: "response.remaining_header",
        kind: Kind::HeaderName,
        default: Preset::Is("RateLimit-Remaining"),
        about: "the name of the header with what is left",
    },
    Setting {
        name: "response.reset_header",
        kind: Kind::HeaderName,
        default: Preset::Is("RateLimit-Reset"),
        about: "the name of the header with the seconds until the limit is reset",
    },
    Setting {
        name: "near_limit_ratio",
        kind: Kind::Fraction,
        default: Preset::Is("0.8"),
        about: "the part of a limit above which hits are counted as near it",
    },
    Setting {
        name: "memory.max_keys",
        kind: Kind::Integer { min: 64, max: 1_000_000_000, unit: "keys" },
        default: Preset::Is("1000000"),
        about: "how many states the memory store keeps before it evicts",
    },
    Setting {
        name: "deny_cache.max_age",
        kind: Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(60) },
        default: Preset::Is("1s"),
        about: "how long a denial by Redis may be repeated without asking it again; 0s turns that off",
    },
    Setting {
        name: "deny_cache.max_keys",
        kind: Kind::Integer { min: 1, max: 10_000_000, unit: "keys" },
        default: Preset::Is("65536"),
        about: "how many keys can have a denial in the cache",
    },
    Setting {
        name: "deny_cache.until_window_end",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "keeps a denial until the window of its limit ends, in place of deny_cache.max_age, and counts lookups",
    },
    Setting {
        name: "redis.url",
        kind: Kind::RedisUrl,
        default: Preset::Is("redis://127.0.0.1:6379"),
        about: "the Redis to use: redis://host:port/db, rediss:// for TLS, redis+unix:///path; several hosts by commas",
    },
    Setting {
        name: "redis.topology",
        kind: Kind::Choice(TOPOLOGIES),
        default: Preset::Is("single"),
        about: "what the hosts of redis.url are: the server, its sentinels, or nodes of a cluster to begin with",
    },
    Setting {
        name: "redis.username",
        kind: Kind::Secret,
        default: Preset::Unset,
        about: "the ACL user, in place of one in the URL; needs a password",
    },
    Setting {
        name: "redis.password",
        kind: Kind::Secret,
        default: Preset::Unset,
        about: "the password, in place of one in the URL",
    },
    Setting {
        name: "redis.password_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "a file that holds the password, read again for every new connection",
    },
    Setting {
        name: "redis.sentinel.master",
        kind: Kind::Name { bytes_max: NAME_BYTES_MAX },
        default: Preset::Unset,
        about: "the name by which the sentinels know the master",
    },
    Setting {
        name: "redis.sentinel.username",
        kind: Kind::Secret,
        default: Preset::Unset,
        about: "the ACL user at the sentinels; needs a password",
    },
    Setting {
        name: "redis.sentinel.password",
        kind: Kind::Secret,
        default: Preset::Unset,
        about: "the password at the sentinels, which do not get that of Redis",
    },
    Setting {
        name: "redis.sentinel.password_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "a file that holds it, read again for every new connection",
    },
    Setting {
        name: "redis.tls.ca_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the authorities to trust, in PEM, in place of those of the system",
    },
    Setting {
        name: "redis.tls.cert_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the certificate to show to Redis, in PEM, with its intermediates; needs the key",
    },
    Setting {
        name: "redis.tls.key_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the key of that certificate, in PEM",
    },
    Setting {
        name: "redis.tls.server_name",
        kind: Kind::ServerName,
        default: Preset::Unset,
        about: "the name that the certificate of Redis must have, in place of the host",
    },
    Setting {
        name: "redis.tls.system_store",
        kind: Kind::Choice(SYSTEM_STORE),
        default: Preset::Is("fallback"),
        about: "when the system's authorities are trusted: without redis.tls.ca_file, or always",
    },
    Setting {
        name: "redis.tls.skip_hostname_verification",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "whether the certificate of Redis may have any name",
    },
    Setting {
        name: "redis.per_second.url",
        kind: Kind::RedisUrl,
        default: Preset::Unset,
        about: "a second Redis, for limits per second; all of them stay on the first without it",
    },
    Setting {
        name: "redis.per_second.topology",
        kind: Kind::Choice(TOPOLOGIES),
        default: Preset::Is("single"),
        about: "what the hosts of its URL are",
    },
    Setting {
        name: "redis.per_second.username",
        kind: Kind::Secret,
        default: Preset::Unset,
        about: "the ACL user there",
    },
    Setting {
        name: "redis.per_second.password",
        kind: Kind::Secret,
        default: Preset::Unset,
        about: "the password there",
    },
    Setting {
        name: "redis.per_second.password_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "a file that holds it, read again for every new connection",
    },
    Setting {
        name: "redis.per_second.sentinel.master",
        kind: Kind::Name { bytes_max: NAME_BYTES_MAX },
        default: Preset::Unset,
        about: "the name by which its sentinels know the master",
    },
    Setting {
        name: "redis.per_second.sentinel.username",
        kind: Kind::Secret,
        default: Preset::Unset,
        about: "the ACL user at its sentinels",
    },
    Setting {
        name: "redis.per_second.sentinel.password",
        kind: Kind::Secret,
        default: Preset::Unset,
        about: "the password at its sentinels",
    },
    Setting {
        name: "redis.per_second.sentinel.password_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "a file that holds it, read again for every new connection",
    },
    Setting {
        name: "redis.timeout",
        kind: Kind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) },
        default: Preset::Is("10ms"),
        about: "how long a decision may wait for Redis, queueing included; keep it below the caller's own timeout",
    },
    Setting {
        name: "redis.connect_timeout",
        kind: Kind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(60) },
        default: Preset::Is("1s"),
        about: "how long opening one connection may take, authentication included",
    },
    Setting {
        name: "redis.pool_size",
        kind: Kind::Integer { min: 1, max: 64, unit: "connections per core" },
        default: Preset::Is("2"),
        about: "how many connections a core has to Redis; each has one round trip under way at a time",
    },
    Setting {
        name: "redis.queue",
        kind: Kind::Integer { min: 1, max: 65_536, unit: "decisions per core" },
        default: Preset::Is("1024"),
        about: "how many decisions may wait for a pipeline; one more is refused at once",
    },
    Setting {
        name: "redis.batch_max",
        kind: Kind::Integer { min: 1, max: 1024, unit: "decisions per pipeline" },
        default: Preset::Is("64"),
        about: "how many waiting decisions share one round trip at most",
    },
    Setting {
        name: "redis.merge_max",
        kind: Kind::Integer { min: 0, max: 64, unit: "decisions per script call" },
        default: Preset::Is("16"),
        about: "the most of them that share one script call, in which Redis serves no other client; 0: none share",
    },
    Setting {
        name: "redis.key_prefix",
        kind: Kind::KeyPrefix { bytes_max: KEY_PREFIX_BYTES_MAX },
        default: Preset::Is(""),
        about: "put before every key; replicas that share limits share the prefix",
    },
    Setting {
        name: "redis.breaker.error_percent",
        kind: Kind::Integer { min: 0, max: 100, unit: "percent" },
        default: Preset::Is("50"),
        about: "the share of failed calls at which weir stops asking a Redis until it answers a probe; 0 turns that off",
    },
    Setting {
        name: "redis.breaker.calls",
        kind: Kind::Integer { min: 1, max: 1_000_000, unit: "calls" },
        default: Preset::Is("20"),
        about: "how many calls must have ended within the window before their errors count, per core and Redis",
    },
    Setting {
        name: "redis.breaker.window",
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(300) },
        default: Preset::Is("1s"),
        about: "how far back calls are counted",
    },
    Setting {
        name: "redis.breaker.probe",
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(60) },
        default: Preset::Is("250ms"),
        about: "the first time until an open circuit is probed; up to eight times as long later",
    },
    Setting {
        name: "redis.ready_after",
        kind: Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(300) },
        default: Preset::Is("5s"),
        about: "how long weir waits at the start for a first answer of Redis before it is ready without one",
    },
    Setting {
        name: "redis.start_within",
        kind: Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(86_400) },
        default: Preset::Is("0s"),
        about: "weir ends if Redis has not answered within this time after the start; 0s waits for ever",
    },
    Setting {
        name: "runtime.cores",
        kind: Kind::Integer { min: 0, max: 256, unit: "cores" },
        default: Preset::Is("0"),
        about: "how many cores serve gRPC; 0 takes what the cgroup and the CPU affinity allow",
    },
    Setting {
        name: "shutdown.pause",
        kind: Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(300) },
        default: Preset::Is("2s"),
        about: "how long weir still accepts connections after SIGTERM, while its health is NOT_SERVING",
    },
    Setting {
        name: "shutdown.grace",
        kind: Kind::Duration { min: Duration::ZERO, max: Duration::from_secs(3600) },
        default: Preset::Is("10s"),
        about: "how long requests in flight may take to end after the pause",
    },
    Setting {
        name: "log.level",
        kind: Kind::LogLevel,
        default: Preset::Is("info"),
        about: "weir's level: off, error, warn, info, debug or trace; libraries log at error, or by target: info,h2=warn",
    },
    Setting {
        name: "log.format",
        kind: Kind::Choice(LOG_FORMATS),
        default: Preset::Is("text"),
        about: "text for people, json for machines: one object a line; json_at is json with @timestamp and @message",
    },
    Setting {
        name: "log.file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "a file for the log in place of standard error; SIGHUP opens it again",
    },
    Setting {
        name: "metrics.weir_names",
        kind: Kind::Switch,
        default: Preset::Is("on"),
        about: "shows weir's own metrics at /metrics",
    },
    Setting {
        name: "metrics.per_rule",
        kind: Kind::Switch,
        default: Preset::Is("on"),
        about: "shows the series of each limit among weir's own metrics",
    },
    Setting {
        name: "metrics.ratelimit_names",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "shows the metrics of envoyproxy/ratelimit at /metrics, under the names that they have there",
    },
    Setting {
        name: "metrics.mapper",
        kind: Kind::File,
        default: Preset::Unset,
        about: "a mapping file of statsd_exporter for those names, in place of the built-in mappings",
    },
    Setting {
        name: "metrics.response_time_milliseconds",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "the built-in mapping shows response times in milliseconds, in place of seconds",
    },
    Setting {
        name: "metrics.dynamic_series",
        kind: Kind::Integer { min: 0, max: 1_000_000, unit: "names" },
        default: Preset::Is("10000"),
        about: "how many names of statistics can hold values of requests; more are counted under the name of the rule",
    },
    Setting {
        name: "statsd.address",
        kind: Kind::HostPort,
        default: Preset::Unset,
        about: "the StatsD server that gets the statistics of envoyproxy/ratelimit; none are sent without it",
    },
    Setting {
        name: "statsd.protocol",
        kind: Kind::Choice(STATSD_PROTOCOLS),
        default: Preset::Is("tcp"),
        about: "how the StatsD server is reached; dogstatsd always goes by udp",
    },
    Setting {
        name: "statsd.format",
        kind: Kind::Choice(STATSD_FORMATS),
        default: Preset::Is("statsd"),
        about: "statsd writes tags into the names, as .__key=value; dogstatsd behind the values, as |#key:value",
    },
    Setting {
        name: "statsd.interval",
        kind: Kind::Duration { min: Duration::from_millis(5), max: Duration::from_secs(3600) },
        default: Preset::Is("10s"),
        about: "how often statistics are sent",
    },
    Setting {
        name: "statsd.tags",
        kind: Kind::Tags,
        default: Preset::Is(""),
        about: "tags of every statistic that is sent: key:value,key:value",
    },
    Setting {
        name: "statsd.mogrifiers",
        kind: Kind::Mogrifiers,
        default: Preset::Is("[]"),
        about: "names and tags that dogstatsd makes of other names: [{\"pattern\": ..., \"name\": ..., \"tags\": {...}}]",
    },
    Setting {
        name: "limits.descriptors",
        kind: Kind::Integer { min: 1, max: 64, unit: "descriptors" },
        default: Preset::Is("64"),
        about: "the most descriptors in one request",
    },
    Setting {
        name: "limits.entries",
        kind: Kind::Integer { min: 1, max: 64, unit: "entries" },
        default: Preset::Is("16"),
        about: "the most entries in one descriptor",
    },
    Setting {
        name: "limits.domain_bytes",
        kind: Kind::Integer { min: 1, max: 4096, unit: "bytes" },
        default: Preset::Is("256"),
        about: "the longest domain",
    },
    Setting {
        name: "limits.key_bytes",
        kind: Kind::Integer { min: 1, max: 65_536, unit: "bytes" },
        default: Preset::Is("4096"),
        about: "the longest key of an entry",
    },
    Setting {
        name: "limits.value_bytes",
        kind: Kind::Integer { min: 1, max: 1_048_576, unit: "bytes" },
        default: Preset::Is("65536"),
        about: "the longest value of an entry",
    },
    Setting {
        name: "limits.request_bytes",
        kind: Kind::Integer { min: 1024, max: 16_777_216, unit: "bytes" },
        default: Preset::Is("4194304"),
        about: "the largest request as it arrives, by gRPC or as JSON",
    },
    Setting {
        name: "limits.hits",
        kind: Kind::Integer { min: 1, max: u32::MAX as u64, unit: "hits" },
        default: Preset::Is("4294967295"),
        about: "the most hits that one descriptor may ask for",
    },
];

/// The values of `admin.endpoints`.
pub(super) const ENDPOINTS: &[&str] = &["weir", "ratelimit"];
const VALUES: &[&str] = &["shown", "hashed", "hidden"];
/// The values of `policies.files`.
pub(super) const POLICY_FILES: &[&str] = &["yaml", "all"];
/// The values of `policies.source`.
pub(super) const SOURCES: &[&str] = &["directory", "xds"];
/// The values of `store`.
pub(super) const STORES: &[&str] = &["memory", "redis"];
/// The values of `redis.topology`.
pub(super) const TOPOLOGIES: &[&str] = &["single", "sentinel", "cluster"];
/// The values of `charging`.
pub(super) const CHARGINGS: &[&str] = &Mode::NAMES;
/// The values of `on_error`.
pub(super) const ON_ERRORS: &[&str] = &OnError::NAMES;
/// The values of `log.format`.
pub(super) const LOG_FORMATS: &[&str] = &["text", "json", "json_at"];

/// The values of `statsd.protocol`.
pub(super) const STATSD_PROTOCOLS: &[&str] = &["tcp", "udp"];
/// The values of `statsd.format`.
pub(super) const STATSD_FORMATS: &[&str] = &["statsd", "dogstatsd"];
/// The longest age of a connection: a year.
const CONNECTION_AGE_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// The longest `redis.key_prefix`, in bytes: it is paid for with every key in Redis.
pub const KEY_PREFIX_BYTES_MAX: usize = 64;
/// The longest path of a URL, in bytes.
pub const URL_PATH_BYTES_MAX: usize = 255;
/// The most names of hosts in one setting.
pub const HOST_NAMES_MAX: usize = 16;
/// The most origins in one setting.
pub(super) const ORIGINS_MAX: usize = 16;

impl Setting {
    /// The row of a name, if there is one.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }
}

/// Whether some settings stand below this name, as they do below `redis`.
pub(super) fn is_group(name: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The name that a misspelled one most likely meant, if any is near.
///
/// A name without its group is recognised too: `key_prefix` is near `redis.key_prefix`.
#[must_use]
pub fn nearest(unknown: &str) -> Option<&'static str> {
    let last_part = |setting: &'static Setting| setting.name.rsplit('.').next();
    weir_text::nearest(unknown, SETTINGS.iter().map(|setting| setting.name)).or_else(|| {
        let last = weir_text::nearest(unknown, SETTINGS.iter().filter_map(last_part))?;
        SETTINGS.iter().find(|setting| last_part(setting) == Some(last)).map(|setting| setting.name)
    })
}

/// Every setting with its default and explanation, for `weir serve --help`.
#[must_use]
pub fn listing() -> String {
    let mut text = String::new();
    for setting in SETTINGS {
        text.push_str(&format!(
            "  {}\n      {}\n      [{}; {}]\n",
            setting.name,
            setting.about,
            setting.default_note(),
            setting.bounds()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_legal_value() {
        for setting in SETTINGS {
            if let Preset::Is(text) = setting.default {
                assert_eq!(setting.kind.check(text), Ok(()), "{}", setting.name);
            }
        }
    }

    #[test]
    fn no_name_is_given_twice_or_is_a_group_itself() {
        for (index, setting) in SETTINGS.iter().enumerate() {
            for other in &SETTINGS[..index] {
                assert_ne!(setting.name, other.name);
                assert_ne!(setting.env_name(), other.env_name());
            }
            assert!(!is_group(setting.name), "{}", setting.name);
        }
    }

    #[test]
    fn nearest_knows_typos_and_missing_groups_and_does_not_guess() {
        assert_eq!(nearest("redis.timout"), Some("redis.timeout"));
        assert_eq!(nearest("redis.pool-size"), Some("redis.pool_size"));
        assert_eq!(nearest("key_prefix"), Some("redis.key_prefix"));
        assert_eq!(nearest("stroe"), Some("store"));
        assert_eq!(nearest("colour"), None);
        assert_eq!(nearest(""), None);
    }
}
