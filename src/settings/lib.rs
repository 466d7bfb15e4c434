//! Settings: one tree from four layers, defaults < file < environment < command line.
//!
//! [`Settings::load`] merges the layers with the `config` crate. It returns typed values, or all problems at once. A layer
//! checks all of its values, even those that a later layer replaces.
//!
//! A setting is declared once, in its group: here, or in the group's own file. `group.rs` has the syntax, `setting.rs` the
//! kinds, `value.rs` the parsers, `layer.rs` the sources. Nothing is bound, connected or created: other packages build
//! the log and the stores from these settings.
//!
//! The deserialiser of the `config` crate is not used: it stops at the first error, and its errors have no line.

#[macro_use]
mod group;

mod alerts;
mod contradictions;
pub mod envoy_ratelimit;
mod kind;
mod layer;
mod listen;
mod metrics_export;
pub mod otel;
mod redis;
mod setting;
mod statsd;
mod table;
mod tap;
mod traces;
mod value;
mod xds;

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

pub use alerts::Alerts;
use config::Config;
use contradictions::ProblemList;
use group::Group as _;
pub use layer::{FILE_BYTES_MAX, Layer};
pub use listen::{Endpoint, HTTP_LISTENER, Listen, ListenTls, NamedEndpoint, SOCKET_PATH_BYTES_MAX};
pub use metrics_export::MetricsExport;
pub use redis::{RedisServer, RedisTls, Sentinel, Topology};
use setting::Preset::{Is, Required, Unset};
pub use setting::{ENV_PREFIX, HOST_NAMES_MAX, KEY_PREFIX_BYTES_MAX, Kind, Preset, Setting, URL_PATH_BYTES_MAX};
use setting::{ORIGINS_MAX, ms, secs};
pub use statsd::{Mogrifier, Statsd};
pub use table::{SETTINGS, listing, nearest};
pub use tap::Tap;
pub use traces::{Otlp, PropagatorFormats, Sampler, Tracing};
use value::FromText;
pub use value::{
    CLIENT_NAMES_MAX, HIDDEN, HOSTS_MAX, Headers, LOG_LEVELS, NAME_BYTES_MAX, PAIRS_MAX, RedisUrl, Secret,
    VALUE_BYTES_MAX,
};
use weir_engine::arith::Fraction;
use weir_engine::words::printable;
use weir_engine::{Mode, OnError};
use weir_lifecycle::MemoryPart;
pub use xds::{Xds, XdsTls};

/// The memory of a request on a gRPC connection, besides its message, in bytes.
const GRPC_REQUEST_EXTRA_BYTES: usize = 4 * 1_024;
/// What a state of one number and its key take in memory (docs/running.md).
const KEY_BYTES: usize = 128;
/// The least number of states that have room.
const KEYS_MIN: usize = 1_024;

settings! {
    /// All settings. `Debug` prints no secret.
    ///
    /// Bounds and defaults are beside the fields, and in docs/configuration.md.
    pub struct Settings {
        /// What weir was started as.
        program: Program;
        /// Where weir listens.
        listen: Listen;
        /// the file of callers and their rights, watched for changes; none: everyone may do everything
        callers_file: Option<PathBuf> = "callers.file", Kind::File, Unset;
        /// what listen.admin serves: weir, the admin endpoints; ratelimit, the read-only debug port of
        /// envoyproxy/ratelimit
        admin_endpoints: Endpoints = "admin.endpoints", Endpoints::KIND, Is("weir");
        /// the file of bearer tokens, with their rights and domains, for requests to listen.admin that change something or
        /// show keys of callers; none: no token
        admin_token_file: Option<PathBuf> = "admin.token_file", Kind::File, Unset;
        /// whether the metrics need a token too, at each listener
        admin_metrics_token: bool = "admin.metrics_token", Kind::Switch, Is("off");
        /// how listen.admin and the log show values of descriptors: in plain text, as a hash, or as *
        admin_values: ShownValues = "admin.values", ShownValues::KIND, Is("shown");
        /// Conditions of weir's health.
        health: Health;
        /// Bounds on what weir holds for gRPC callers.
        grpc: Grpc;
        /// Bounds of the HTTP listeners.
        http: Http;
        /// Where the policies are.
        policies: Policies;
        /// where the states of limits are: in this process, or in a Redis that replicas share
        store: StoreKind = "store", StoreKind::KIND, Is("memory");
        /// atomic: a denied request is charged nowhere; independent: each limit charges for itself
        charging: Mode = "charging" in tests, Kind::Choice(&Mode::NAMES), Is("atomic");
        /// what happens to a request whose store does not answer, unless its rule or domain sets that
        on_error: OnError = "on_error", Kind::Choice(&OnError::NAMES), Is("error");
        /// no limit denies: statuses and metrics show what would be denied, and every request passes
        shadow_mode: bool = "shadow_mode" in tests, Kind::Switch, Is("off");
        /// every limit that denies is a quota: a request is denied when all of its limits are over
        quota_mode: bool = "quota_mode" in tests, Kind::Switch, Is("off");
        /// Parts of responses besides the statuses.
        response: Response;
        /// Holds.
        holds: Holds;
        /// the part of a limit above which hits are counted as near it
        near_limit_ratio: Fraction = "near_limit_ratio", Kind::Fraction, Is("0.8");
        /// The memory store.
        memory: Memory;
        /// Denials that weir repeats without asking Redis.
        deny_cache: DenyCache;
        /// The Redis store.
        redis: Redis;
        /// Threads.
        runtime: Runtime;
        /// How weir ends.
        shutdown: Shutdown;
        /// The log.
        log: Log;
        /// Where statistics are sent.
        statsd: Statsd;
        /// Bounds on what a caller may send.
        limits: Limits;
        /// Which decisions are traced, and where the spans go.
        tracing: Tracing;
        /// Metrics and their names.
        metrics: Metrics;
        /// Where alerts about the use of limits are sent.
        alerts: Alerts;
        /// The taps on live requests.
        tap: Tap;
    }
}

/// What weir was started as. No setting: the name of the program decides it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Program {
    #[default]
    Weir,
    /// A replacement of envoyproxy/ratelimit.
    Ratelimit,
}

impl group::Group for Program {
    const ENTRIES: &'static [group::Entry] = &[];

    fn read(_: &Merged) -> Result<Self, Problem> {
        Ok(Self::default())
    }
}

choice! {
    /// The values of `admin.endpoints`.
    pub enum Endpoints {
        /// Policies and states, which can be reset.
        Weir = "weir",
        /// The read-only debug port of envoyproxy/ratelimit.
        Ratelimit = "ratelimit",
    }
}

choice! {
    /// The values of `admin.values`.
    pub enum ShownValues {
        /// In plain text.
        Shown = "shown",
        /// As a hash.
        Hashed = "hashed",
        /// As `*`.
        Hidden = "hidden",
    }
}

settings! {
    /// Conditions of weir's health, besides its own phase.
    #[derive(Copy)]
    pub struct Health {
        /// whether weir is unhealthy while Redis does not answer
        redis: bool = "health.redis", Kind::Switch, Is("off");
        /// whether weir is unhealthy while the policies have no domain
        policies: bool = "health.policies", Kind::Switch, Is("off");
    }
}

settings! {
    /// Bounds on what weir holds for gRPC callers.
    pub struct Grpc {
        /// how many requests one gRPC connection may have in flight; Envoy opens another connection for more
        max_streams: u32 = "grpc.max_streams", Kind::integer(1, 65_536, "requests"), Is("256");
        /// how long the message of a gRPC request may take to arrive after its headers
        receive_timeout: Duration = "grpc.receive_timeout", Kind::duration(ms(1), secs(300)), Is("5s");
        /// how many bytes of requests and responses weir holds for one gRPC connection
        connection_held_bytes: usize = "grpc.connection_held_bytes",
            Kind::integer(65_536, 1 << 32, "bytes"), Is("8388608");
        /// how many bytes of requests and responses weir holds for all gRPC connections; 0 takes an eighth of the memory
        /// that the process may use, at most 32 MiB
        held_bytes: usize = "grpc.held_bytes", Kind::integer(0, 1 << 40, "bytes"), Is("0");
    }
}

settings! {
    /// Bounds of the HTTP listeners. Names and origins are in lower case.
    pub struct Http {
        /// how many connections one IP address may have to an HTTP listener; 0 for no bound
        connections_per_peer: usize = "http.connections_per_peer", Kind::integer(0, 1024, "connections"), Is("0");
        /// hosts that a request to the admin listener may name, separated by commas; loopback names and IPs are always allowed
        admin_hosts: Vec<String> = "http.admin_hosts",
            Kind::HostNames { most: HOST_NAMES_MAX }, Is(""), value::host_names;
        /// sites whose web pages may send requests to /json, and changes to the admin listener, separated by commas
        allowed_origins: Vec<String> = "http.allowed_origins",
            Kind::Origins { most: ORIGINS_MAX }, Is(""), listen::origins;
    }
}

settings! {
    /// Where the policies come from.
    pub struct Policies {
        /// where policies come from: files of a directory, or a control plane that is asked by xDS
        source: PolicySource = "policies.source", PolicySource::KIND, Is("directory");
        /// the directory of YAML policy files, watched for changes; not needed with policies.source = xds
        directory: PathBuf = "policies.directory", Kind::Directory, Required, |text| Ok(text.into());
        /// The server that is asked by xDS.
        xds: Xds;
        /// which files of the directory are policies: *.yaml and *.yml, or all
        all_files: bool = "policies.files", Kind::Choice(&["yaml", "all"]), Is("yaml"), |text| Ok(text == "all");
        /// whether names that begin with one dot are read; names that begin with two never are
        dot_files: bool = "policies.dot_files", Kind::Switch, Is("off");
        /// whether files beside the directory that have its name, a dot and an ending are policies too
        beside: bool = "policies.beside", Kind::Switch, Is("off");
        /// a file of overlays, which add to policies what their author or control plane cannot write; none: no overlay
        overlay: Option<PathBuf> = "policies.overlay" in tests, Kind::File, Unset;
        /// the most bytes of a policy file, aliases written out; a 128th of the memory of the process, at most 32 MiB
        file_bytes: Option<usize> = "policies.file_bytes", Kind::integer(65_536, 1 << 30, "bytes"), Unset;
        /// the most bytes of all policy files; a 32nd of the memory of the process, at most 256 MiB. One descriptor is
        /// allowed for each 256 bytes
        total_bytes: Option<usize> = "policies.total_bytes", Kind::integer(65_536, 1 << 32, "bytes"), Unset;
        /// whether the directory may be missing or without policies; every request passes then
        allow_empty: bool = "policies.allow_empty", Kind::Switch, Is("off");
        /// policy files are read as envoyproxy/ratelimit reads them, with a warning where weir would refuse
        compatible: bool = "policies.compatible" in tests, Kind::Switch, Is("off");
        /// files that name the same domain are joined; off, the second one is an error
        merge_domains: bool = "policies.merge_domains" in tests, Kind::Switch, Is("off");
        /// months without `calendar` are those of the calendar in UTC; off, they have 30 days
        calendar_months: bool = "policies.calendar_months" in tests, Kind::Switch, Is("off");
        /// a wrong file keeps the last policies of its domain only, and other files change; off, of all domains
        isolate: bool = "policies.isolate", Kind::Switch, Is("off");
    }
}

choice! {
    /// The values of `policies.source`.
    pub enum PolicySource {
        /// Files.
        Directory = "directory",
        /// A control plane.
        Xds = "xds",
    }
}

choice! {
    /// The values of `store`.
    pub enum StoreKind {
        /// In this process.
        Memory = "memory",
        /// In Redis.
        Redis = "redis",
    }
}

settings! {
    /// Parts of responses besides the statuses.
    pub struct Response {
        /// exact waits of each status in the response's dynamic metadata, under the key weir
        dynamic_metadata: bool = "response.dynamic_metadata" in tests, Kind::Switch, Is("off");
        /// leaky_bucket's wait as a request header, so that Envoy's fault filter delays the request
        delay_header: bool = "response.delay_header" in tests, Kind::Switch, Is("off");
        /// the request and the metadata of the limits that it passed, in the response's dynamic metadata
        limit_metadata: bool = "response.limit_metadata" in tests, Kind::Switch, Is("off");
        /// Retry-After on denials, and RateLimit and RateLimit-Policy, as headers for the client
        ietf_headers: bool = "response.ietf_headers" in tests, Kind::Switch, Is("off");
        /// on denials by limits, a body for the client that names them: application/problem+json
        problem_body: bool = "response.problem_body" in tests, Kind::Switch, Is("off");
        /// three headers for the client: the limit nearest to its end, what is left of it, when it is reset
        limit_headers: bool = "response.limit_headers" in tests, Kind::Switch, Is("off");
        /// the name of the header with the requests per unit
        limit_header: String = "response.limit_header" in tests, Kind::HeaderName, Is("RateLimit-Limit");
        /// the name of the header with what is left
        remaining_header: String = "response.remaining_header" in tests, Kind::HeaderName, Is("RateLimit-Remaining");
        /// the name of the header with the seconds until the limit is reset
        reset_header: String = "response.reset_header" in tests, Kind::HeaderName, Is("RateLimit-Reset");
        /// a window of several units as a unit and a multiplier, which Envoy knows from 1.40
        unit_multiplier: bool = "response.unit_multiplier" in tests, Kind::Switch, Is("off");
    }
}

settings! {
    /// Holds.
    pub struct Holds {
        /// the key of the entry that returns a receipt, in domains with holds; no rule there meets it
        receipt_key: String = "holds.receipt_key" in tests, Kind::Name { bytes_max: NAME_BYTES_MAX }, Is(RECEIPT_KEY);
    }
}

/// The default key of the entry that returns a receipt.
pub const RECEIPT_KEY: &str = "weir.receipt";

/// The names of the headers of `response.ietf_headers`.
const IETF_HEADERS: [&str; 3] = ["Retry-After", "RateLimit", "RateLimit-Policy"];

impl Response {
    /// If both are on: the setting that gives a header of `limit_headers` the name of one of `ietf_headers`.
    fn taken_header(&self) -> Option<(&'static str, &str)> {
        let named = [
            ("response.limit_header", &self.limit_header),
            ("response.remaining_header", &self.remaining_header),
            ("response.reset_header", &self.reset_header),
        ];
        let is_taken = |header: &str| IETF_HEADERS.iter().any(|taken| taken.eq_ignore_ascii_case(header));
        let mut taken = named.into_iter().filter(|(_, header)| is_taken(header));
        taken.next().filter(|_| self.limit_headers && self.ietf_headers).map(|(name, header)| (name, header.as_str()))
    }
}

settings! {
    /// The memory store.
    pub struct Memory {
        /// how many states the memory store keeps before it evicts; fewer if a quarter of the memory of the process has no room for so many
        max_keys: usize = "memory.max_keys" in tests, Kind::integer(64, 1_000_000_000, "keys"), Is("1000000");
    }
}

settings! {
    /// Denials that weir repeats without asking Redis.
    pub struct DenyCache {
        /// how long a denial by Redis may be repeated without asking it again; 0s turns that off
        max_age: Duration = "deny_cache.max_age", Kind::duration(Duration::ZERO, secs(60)), Is("1s");
        /// how many keys can have a denial in the cache
        max_keys: usize = "deny_cache.max_keys", Kind::integer(1, 10_000_000, "keys"), Is("65536");
        /// no effect; the next version refuses it
        until_window_end: Option<bool> = "deny_cache.until_window_end", Kind::Switch, Unset;
    }
}

settings! {
    /// The Redis store. The settings below `per_second` apply to both servers.
    pub struct Redis {
        /// Where it is.
        server: RedisServer;
        /// TLS, for URLs that ask for it.
        tls: RedisTls;
        /// A second Redis for limits per second.
        per_second: Option<RedisServer>;
        /// how long a decision may wait for Redis, queueing included; keep it below the caller's own timeout
        timeout: Duration = "redis.timeout", Kind::duration(ms(1), secs(60)), Is("10ms");
        /// how long opening one connection may take, authentication included
        connect_timeout: Duration = "redis.connect_timeout", Kind::duration(ms(1), secs(60)), Is("1s");
        /// how many connections a core has to Redis; each has one round trip under way at a time
        pool_size: u32 = "redis.pool_size", Kind::integer(1, 64, "connections per core"), Is("2");
        /// how many decisions may wait for a pipeline; one more is refused at once
        queue: usize = "redis.queue", Kind::integer(1, 65_536, "decisions per core"), Is("1024");
        /// the most waiting decisions that share one round trip
        batch_max: usize = "redis.batch_max", Kind::integer(1, 1024, "decisions per pipeline"), Is("64");
        /// the most decisions that share one script call, which blocks other clients of Redis; 0: none share
        merge_max: usize = "redis.merge_max", Kind::integer(0, 64, "decisions per script call"), Is("16");
        /// the prefix of every key; replicas that share limits need the same one
        key_prefix: String = "redis.key_prefix", Kind::KeyPrefix { bytes_max: KEY_PREFIX_BYTES_MAX }, Is("");
        /// When weir stops asking a server.
        breaker: Breaker;
        /// how long weir waits at the start for an answer of Redis; then it is ready without one
        ready_after: Duration = "redis.ready_after", Kind::duration(Duration::ZERO, secs(300)), Is("5s");
        /// weir ends if Redis has not answered within this time after the start; 0s waits forever
        start_within: Duration = "redis.start_within", Kind::duration(Duration::ZERO, secs(86_400)), Is("0s");
    }
}

settings! {
    /// The circuit breaker of a Redis. Each core has its own.
    pub struct Breaker {
        /// the share of failed calls at which weir stops calls to a Redis until it answers a probe; 0 turns that off
        error_percent: u32 = "redis.breaker.error_percent", Kind::integer(0, 100, "percent"), Is("50");
        /// how many calls must have ended within the window before their errors count, per core and Redis
        calls: u32 = "redis.breaker.calls", Kind::integer(1, 1_000_000, "calls"), Is("20");
        /// how far back calls are counted
        window: Duration = "redis.breaker.window", Kind::duration(ms(10), secs(300)), Is("1s");
        /// the first time until an open circuit is probed; up to eight times as long later
        probe: Duration = "redis.breaker.probe", Kind::duration(ms(10), secs(60)), Is("250ms");
    }
}

settings! {
    /// Threads. See [`Runtime::cores`].
    pub struct Runtime {
        /// how many cores serve gRPC; 0 takes what the cgroup and the CPU affinity allow
        cores: usize = "runtime.cores", Kind::integer(0, 256, "cores"), Is("0");
    }
}

impl Runtime {
    /// The number of cores that serve gRPC: the setting, or as many as the cgroup's quota and the CPU affinity of this
    /// process allow (a quota of 2.5 CPUs is 2). At least one.
    pub fn cores(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.cores).or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }
}

settings! {
    /// How weir ends after SIGTERM.
    pub struct Shutdown {
        /// how long weir still accepts connections after SIGTERM, while its health is NOT_SERVING
        pause: Duration = "shutdown.pause", Kind::duration(Duration::ZERO, secs(300)), Is("2s");
        /// how long requests in flight may take to end after the pause
        grace: Duration = "shutdown.grace", Kind::duration(Duration::ZERO, secs(3600)), Is("10s");
    }
}

settings! {
    /// The log.
    pub struct Log {
        /// weir's level: off, error, warn, info, debug or trace; libraries log at error, or by target: info,h2=warn
        level: String = "log.level", Kind::LogLevel, Is("info");
        /// text for people, json for machines: one object a line; json_at is json with @timestamp and @message
        format: LogFormat = "log.format", LogFormat::KIND, Is("text");
        /// a file for the log in place of standard error; SIGHUP opens it again
        file: Option<PathBuf> = "log.file", Kind::File, Unset;
    }
}

choice! {
    /// The values of `log.format`.
    pub enum LogFormat {
        /// For people.
        Text = "text",
        /// One object a line.
        Json = "json",
        /// One object a line, with `@timestamp` and `@message`.
        JsonAt = "json_at",
    }
}

settings! {
    /// The metrics, their names and their path.
    pub struct Metrics {
        /// the path of the metrics at listen.metrics
        path: String = "metrics.path", Kind::UrlPath { bytes_max: URL_PATH_BYTES_MAX }, Is("/metrics");
        /// shows weir's own metrics at /metrics
        weir_names: bool = "metrics.weir_names", Kind::Switch, Is("on");
        /// shows the series of each limit among weir's own metrics
        per_rule: bool = "metrics.per_rule", Kind::Switch, Is("on");
        /// shows the metrics of envoyproxy/ratelimit at /metrics, under the names that they have there
        ratelimit_names: bool = "metrics.ratelimit_names", Kind::Switch, Is("off");
        /// a mapping file of statsd_exporter for those names, in place of the built-in mappings
        mapper: Option<PathBuf> = "metrics.mapper", Kind::File, Unset;
        /// the built-in mapping shows response times in milliseconds, in place of seconds
        response_time_milliseconds: bool = "metrics.response_time_milliseconds", Kind::Switch, Is("off");
        /// dots in keys and values of descriptors are underscores in names of statistics, where a dot begins a level
        sanitize_dots: bool = "metrics.sanitize_dots", Kind::Switch, Is("off");
        /// how many names of statistics can hold values of requests; more are counted under the name of the rule
        dynamic_series: usize = "metrics.dynamic_series", Kind::integer(0, 1_000_000, "names"), Is("10000");
        /// Their export to a collector of OpenTelemetry.
        export: MetricsExport;
    }
}

settings! {
    /// The largest accepted requests and parts of requests.
    pub struct Limits {
        /// the most descriptors in one request
        descriptors: usize = "limits.descriptors" in tests, Kind::integer(1, 64, "descriptors"), Is("64");
        /// the most entries in one descriptor
        entries: usize = "limits.entries" in tests, Kind::integer(1, 64, "entries"), Is("16");
        /// the longest domain
        domain_bytes: usize = "limits.domain_bytes" in tests, Kind::integer(1, 4096, "bytes"), Is("256");
        /// the longest key of an entry
        key_bytes: usize = "limits.key_bytes" in tests, Kind::integer(1, 65_536, "bytes"), Is("4096");
        /// the longest value of an entry
        value_bytes: usize = "limits.value_bytes" in tests, Kind::integer(1, 1_048_576, "bytes"), Is("65536");
        /// the largest request as it arrives, by gRPC or as JSON
        request_bytes: usize = "limits.request_bytes", Kind::integer(1024, 16_777_216, "bytes"), Is("4194304");
        /// the most hits that one descriptor may ask for
        hits: u32 = "limits.hits" in tests, Kind::integer(1, u32::MAX as u64, "hits"), Is("4294967295");
    }
}

impl Settings {
    /// Merges the layers over the defaults. A later layer overrides an earlier one.
    ///
    /// ```
    /// use weir_settings::{Layer, Settings};
    ///
    /// let file = Layer::yaml("weir.yaml", "policies: {directory: policies}\nredis: {timeout: 5ms}");
    /// let mut flags = Layer::default();
    /// flags.set("redis.timeout=20ms");
    /// let settings = Settings::load(&[file, flags]).unwrap();
    /// assert_eq!(settings.redis.timeout.as_millis(), 20);
    /// ```
    ///
    /// # Errors
    ///
    /// Every problem of every layer, in the order of the layers, then contradictions.
    pub fn load(layers: &[Layer]) -> Result<Self, Problems> {
        let defaults = Layer::defaults();
        let all = || std::iter::once(&defaults).chain(layers);
        let mut problems: Vec<Problem> = all().flat_map(Layer::problems).cloned().collect();
        for setting in SETTINGS {
            let given = layers.iter().any(|layer| layer.origin(setting.name).is_some());
            let elsewhere = setting.name == "policies.directory" && is_xds(layers);
            if setting.default == Preset::Required && !given && !elsewhere {
                problems.push(Problem {
                    origin: "settings".to_owned(),
                    name: Some(setting.name.to_owned()),
                    value: None,
                    reason: how_to_give(setting),
                });
            }
        }
        if !problems.is_empty() {
            return Err(Problems(problems));
        }
        let builder = all().fold(Config::builder(), |builder, layer| builder.add_source(layer.clone()));
        let merged = match builder.build() {
            Ok(config) => Merged { config },
            Err(error) => return Err(Problems(vec![Problem::internal("settings", &error)])),
        };
        let settings = Self::read(&merged).map_err(|problem| Problems(vec![problem]))?;
        let mut contradictions = ProblemList::new(layers);
        settings.contradictions(&mut contradictions);
        let problems = contradictions.problems;
        if problems.is_empty() { Ok(settings) } else { Err(Problems(problems)) }
    }

    /// What weir reserves for the largest request.
    const fn largest_request_bytes(&self) -> usize {
        self.limits.request_bytes + GRPC_REQUEST_EXTRA_BYTES
    }

    /// How many bytes weir reserves for all gRPC connections, if the process may use `memory_limit` bytes: the setting, or a part of the limit that
    /// has room for the largest request.
    pub fn grpc_held_bytes(&self, memory_limit: u64) -> usize {
        match self.grpc.held_bytes {
            0 => MemoryPart::GRPC_HELD.of(memory_limit).max(self.largest_request_bytes()),
            bytes => bytes,
        }
    }

    /// How many states the memory store keeps, if the process may use `memory_limit` bytes: as many as the setting, or as have room.
    pub fn memory_keys(&self, memory_limit: u64) -> usize {
        let room = MemoryPart::KEYS.of(memory_limit) / KEY_BYTES;
        self.memory.max_keys.min(room.max(KEYS_MIN))
    }

    /// Reports settings that are valid separately but contradict each other, at the place of the later one.
    fn contradictions(&self, problems: &mut ProblemList<'_>) {
        self.listen.contradictions(problems);
        if self.admin_metrics_token && self.admin_token_file.is_none() {
            problems.add("admin.metrics_token", "has no token to ask for: set admin.token_file too".to_owned());
        }
        // A connection must be able to hold its largest request.
        let largest = self.largest_request_bytes();
        let is_total_less = (1..self.grpc.connection_held_bytes).contains(&self.grpc.held_bytes);
        if self.grpc.connection_held_bytes < largest || is_total_less {
            let (name, value, least) = if self.grpc.connection_held_bytes < largest {
                let reason = format!("limits.request_bytes = {} needs at least {largest}", self.limits.request_bytes);
                ("grpc.connection_held_bytes", self.grpc.connection_held_bytes, reason)
            } else {
                let reason = format!("less than grpc.connection_held_bytes = {}", self.grpc.connection_held_bytes);
                ("grpc.held_bytes", self.grpc.held_bytes, reason)
            };
            problems.add_with_value(name, Some(value.to_string()), least);
        }
        if let Some((name, value)) = self.response.taken_header() {
            let reason = "response.ietf_headers = on sets a header of this name".to_owned();
            problems.add_with_value(name, Some(value.to_owned()), reason);
        }
        self.policies.xds.contradictions(&self.policies, problems);
        self.redis.contradictions(problems);
        self.tracing.contradictions(problems);
        self.metrics.export.contradictions(&self.tracing, problems);
        self.alerts.contradictions(problems);
    }
}

/// All layers merged, as text.
struct Merged {
    config: Config,
}

impl Merged {
    /// The value of a setting. [`FromText::unset`] if no layer sets it.
    fn read<T: FromText>(&self, name: &str) -> Result<T, Problem> {
        let value = self.text(name).map_or_else(T::unset, |text| T::from_text(&text));
        value.map_err(|reason| Problem::internal(name, &reason))
    }

    /// The result of `read` for the text. The type's default if no layer sets it.
    fn read_with<T: Default>(&self, name: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<T, Problem> {
        let value = self.text(name).map_or_else(|| Ok(T::default()), |text| read(&text));
        value.map_err(|reason| Problem::internal(name, &reason))
    }

    fn text(&self, name: &str) -> Option<String> {
        self.config.get_string(name).ok()
    }
}

/// One mistake in the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Its place: `weir.yaml:3:5`, an environment variable or a flag.
    pub origin: String,
    /// The setting as written.
    pub name: Option<String>,
    /// The value, if it is not secret.
    pub value: Option<String>,
    /// The reason.
    pub reason: String,
}

impl Problem {
    /// The kind and the type of a setting disagree.
    fn internal(name: &str, reason: &dyn fmt::Display) -> Self {
        Self {
            origin: "settings".to_owned(),
            name: Some(name.to_owned()),
            value: None,
            reason: format!("cannot be read: {reason}"),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if let Some(name) = &self.name {
            f.write_str(&printable(name))?;
            if let Some(value) = &self.value {
                write!(f, " = {value:?}")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.reason)
    }
}

/// All problems of the settings, at least one; displayed one per line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// The problems, in the order of the layers.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Whether policies come from xDS, so no directory is needed.
fn is_xds(layers: &[Layer]) -> bool {
    layers.iter().rev().find_map(|layer| layer.text("policies.source")) == Some("xds")
}

fn how_to_give(setting: &Setting) -> String {
    match setting.flag() {
        Some(flag) => format!("required: give {flag} or {}", setting.env_name()),
        None => format!("required: give {}", setting.env_name()),
    }
}

#[cfg(test)]
impl Settings {
    /// Loads assignments and a directory of policies, for tests.
    fn of_test(assignments: &[&str]) -> Result<Self, String> {
        let mut layer = Layer::default();
        layer.set("policies.directory=policies");
        assignments.iter().for_each(|assignment| layer.set(assignment));
        Self::load(&[layer]).map_err(|problems| problems.to_string())
    }
}
