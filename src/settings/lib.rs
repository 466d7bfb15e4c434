//! Settings: one tree from four layers, defaults < file < environment < command line.
//!
//! [`Settings::load`] merges the layers with the `config` crate and returns typed values, or every problem at once: a layer checks each value it
//! is given, also one that a later layer replaces.
//! The rows are in `table.rs`, what a row is in `row.rs`, reading a text in `value.rs`, sources in `layer.rs`. Nothing is bound,
//! connected or created; logging and stores are built elsewhere from what stands here.
//!
//! The `config` crate's own deserialising is not used: it ends at the first error and knows no line.

mod alerts;
mod alerts_rows;
mod contradictions;
pub mod envoy_ratelimit;
mod kind;
mod layer;
mod listen;
mod metrics_export;
mod metrics_export_rows;
pub mod otel;
mod redis;
mod row;
mod statsd;
mod table;
mod tap;
mod tap_rows;
mod traces;
mod traces_rows;
mod value;
mod xds;
mod xds_rows;

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

pub use alerts::Alerts;
use config::Config;
use contradictions::ProblemList;
pub use layer::{FILE_BYTES_MAX, Layer};
pub use listen::{CLIENT_NAMES_MAX, Endpoint, Listen, ListenTls, SOCKET_PATH_BYTES_MAX};
pub use metrics_export::MetricsExport;
pub use redis::{RedisServer, RedisTls, Sentinel, Topology};
pub use row::{ENV_PREFIX, Kind, Preset, Setting};
pub use statsd::{Mogrifier, Statsd};
pub use table::{
    HOST_NAMES_MAX, KEY_PREFIX_BYTES_MAX, NAME_BYTES_MAX, SETTINGS, URL_PATH_BYTES_MAX, VALUE_BYTES_MAX, listing,
    nearest,
};
pub use tap::Tap;
pub use traces::{Otlp, Sampler, Tracing};
pub use value::{HIDDEN, HOSTS_MAX, PAIRS_MAX, RedisUrl, Secret};
use weir_engine::arith::Fraction;
use weir_engine::words::printable;
use weir_engine::{Mode, OnError};
use weir_text::duration;
pub use xds::{Xds, XdsTls};

/// What a gRPC connection holds for a request beside its message, in bytes.
const GRPC_REQUEST_EXTRA_BYTES: usize = 4 * 1_024;

/// Everything that can be set. `Debug` shows no secret.
///
/// Bounds and defaults are in [`SETTINGS`] and in docs/configuration.md.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where weir listens.
    pub listen: Listen,
    /// What the admin listener serves.
    pub admin_endpoints: Endpoints,
    /// The file of the token that changes by the admin listener need.
    pub admin_token_file: Option<PathBuf>,
    /// How values of descriptors are shown to operators.
    pub admin_values: ShownValues,
    /// Where alerts about the use of limits are sent.
    pub alerts: Alerts,
    /// What the health of weir depends on.
    pub health: Health,
    /// What gRPC callers may make weir hold.
    pub grpc: Grpc,
    /// Bounds of the HTTP listeners.
    pub http: Http,
    /// Where the policies are.
    pub policies: Policies,
    /// Which store holds the state of limits.
    pub store: StoreKind,
    /// How a decision over several limits is charged.
    pub charging: Mode,
    /// What happens to a request whose store does not answer, unless its rule or domain sets that.
    pub on_error: OnError,
    /// No limit denies; statuses and metrics are as if it did.
    pub shadow_mode: bool,
    /// Every limit that denies is a quota: a request is denied when all of its limits are over.
    pub quota_mode: bool,
    /// The part of a limit above which hits count as near it.
    pub near_limit_ratio: Fraction,
    /// What responses have beyond the statuses.
    pub response: Response,
    /// The memory store.
    pub memory: Memory,
    /// Denials that are repeated without asking Redis again.
    pub deny_cache: DenyCache,
    /// The Redis store.
    pub redis: Redis,
    /// Threads.
    pub runtime: Runtime,
    /// How weir ends.
    pub shutdown: Shutdown,
    /// What is logged, and how.
    pub log: Log,
    /// What is counted under which names.
    pub metrics: Metrics,
    /// Where statistics are sent.
    pub statsd: Statsd,
    /// Which decisions are traced, and where the spans go.
    pub tracing: Tracing,
    /// What taps on live requests show, and for how long.
    pub tap: Tap,
    /// Bounds on what a caller may send.
    pub limits: Limits,
}

/// The values of `admin.endpoints`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// Policies and states, which can be reset.
    Weir,
    /// What envoyproxy/ratelimit shows at its debug port, and nothing that changes anything.
    Ratelimit,
}

/// The values of `admin.values`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownValues {
    /// As they are.
    Shown,
    /// By a hash.
    Hashed,
    /// Not at all.
    Hidden,
}

/// What the health of weir depends on, besides its own phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether Redis answers.
    pub redis: bool,
    /// Whether the policies have a domain.
    pub policies: bool,
}

/// What gRPC callers may make weir hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grpc {
    /// Requests in flight on one connection.
    pub max_streams: u32,
    /// How long the message of a request may take to arrive after its headers.
    pub receive_timeout: Duration,
    /// Bytes of requests and responses for one connection.
    pub connection_held_bytes: usize,
    /// The same for all connections.
    pub held_bytes: usize,
}

/// Bounds of the HTTP listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// Connections of one IP address to one listener; 0 for no bound.
    pub connections_per_peer: usize,
    /// Names by which the admin listener may be addressed, in lower case, beside loopback names and IPs.
    pub admin_hosts: Vec<String>,
    /// Origins of web pages that may send requests, in lower case.
    pub allowed_origins: Vec<String>,
}

/// Where the policies come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policies {
    /// Which of the two below.
    pub source: PolicySource,
    /// The directory of policy files; not checked to exist. May be empty if the source is another.
    pub directory: PathBuf,
    /// Whether every file is a policy, and not only `*.yaml` and `*.yml`.
    pub all_files: bool,
    /// Whether names that begin with one dot are read.
    pub dot_files: bool,
    /// Whether files beside the directory that have its name, a dot and an ending are policies too.
    pub beside: bool,
    /// Whether there may be no policy at all.
    pub allow_empty: bool,
    /// Files are read as envoyproxy/ratelimit reads them.
    pub compatible: bool,
    /// Files of one domain are joined instead of refused.
    pub merge_domains: bool,
    /// The server that is asked by xDS.
    pub xds: Xds,
}

/// The values of `policies.source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicySource {
    /// Files.
    Directory,
    /// A control plane.
    Xds,
}

/// The values of `store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// In this process.
    Memory,
    /// In Redis.
    Redis,
}

/// What responses have beyond the statuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Exact waits in the dynamic metadata.
    pub dynamic_metadata: bool,
    /// `leaky_bucket`'s wait as a request header for Envoy's fault filter.
    pub delay_header: bool,
    /// The request and the metadata of the limits that it passed in the dynamic metadata.
    pub limit_metadata: bool,
    /// `Retry-After`, `RateLimit` and `RateLimit-Policy` for the caller's client.
    pub ietf_headers: bool,
    /// A body for the client of a denied request, which names the limits.
    pub problem_body: bool,
    /// Three headers that show a limit to the caller's client.
    pub limit_headers: bool,
    /// The name of the header with the hits per window.
    pub limit_header: String,
    /// The name of the header for the remaining hits.
    pub remaining_header: String,
    /// The name of the header with the seconds until the limit is reset.
    pub reset_header: String,
}

/// The names of the headers of `response.ietf_headers`.
const IETF_HEADERS: [&str; 3] = ["Retry-After", "RateLimit", "RateLimit-Policy"];

impl Response {
    /// The setting that gives a header of `limit_headers` the name of one of `ietf_headers`, where both are on.
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

/// The memory store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// How many states are kept at most.
    pub max_keys: usize,
}

/// Denials that are repeated without asking Redis again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenyCache {
    /// How long after it was asked for a denial may be repeated; zero for not at all.
    pub max_age: Duration,
    /// How many keys have a denial kept at once.
    pub max_keys: usize,
    /// Whether a denial may be repeated until the window of its limit ends, in place of `max_age`.
    pub until_window_end: bool,
}

/// The Redis store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redis {
    /// Where it is.
    pub server: RedisServer,
    /// Where limits per second are, if they have a Redis of their own. The fields below apply to both.
    pub per_second: Option<RedisServer>,
    /// TLS, where a URL asks for it.
    pub tls: RedisTls,
    /// The budget of one decision, queueing included.
    pub timeout: Duration,
    /// The budget of opening one connection.
    pub connect_timeout: Duration,
    /// Connections per core.
    pub pool_size: u32,
    /// Decisions that may wait, per core.
    pub queue: usize,
    /// Decisions in one pipeline at most.
    pub batch_max: usize,
    /// Decisions in one script call at most; below 4 each has its own.
    pub merge_max: usize,
    /// What every key starts with.
    pub key_prefix: String,
    /// When weir stops asking a server.
    pub breaker: Breaker,
    /// How long to wait at the start for a first answer before being ready without.
    pub ready_after: Duration,
    /// How long after the start weir ends without a first answer; zero for never.
    pub start_within: Duration,
}

/// When weir stops asking a Redis, and when it probes it: for each core and server by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// So many of the calls that ended within the window must have failed, in percent; 0 for never.
    pub error_percent: u32,
    /// So many calls must have ended within the window.
    pub calls: u32,
    /// How far back calls are counted.
    pub window: Duration,
    /// How long until the first probe.
    pub probe: Duration,
}

/// Threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Cores that serve gRPC as it was set; 0 for as many as there are. See [`Runtime::cores`].
    pub cores: usize,
}

impl Runtime {
    /// The number of cores to serve gRPC on: as set, or what the cgroup's quota and the CPU affinity
    /// of this process allow (a quota of 2.5 CPUs is 2), at least one.
    #[must_use]
    pub fn cores(&self) -> NonZeroUsize {
        NonZeroUsize::new(self.cores).or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }
}

/// How weir ends after SIGTERM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// How long connections are still accepted.
    pub pause: Duration,
    /// How long requests in flight may take after that.
    pub grace: Duration,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Directives of `EnvFilter`, already checked.
    pub level: String,
    /// Text or JSON.
    pub format: LogFormat,
    /// Where it goes; none for standard error.
    pub file: Option<PathBuf>,
}

/// The values of `log.format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
    /// The same with `@timestamp` and `@message`.
    JsonAt,
}

/// How metrics are served, and what is counted under which names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Their path at their own listener.
    pub path: String,
    /// Whether weir's own metrics are shown.
    pub weir_names: bool,
    /// Whether those of single limits are among them.
    pub per_rule: bool,
    /// Whether those of envoyproxy/ratelimit are.
    pub ratelimit_names: bool,
    /// A mapping file for them, in place of the built-in mappings.
    pub mapper: Option<PathBuf>,
    /// Whether the built-in mappings leave response times in milliseconds.
    pub response_time_milliseconds: bool,
    /// How many names can hold values of requests.
    pub dynamic_series: usize,
    /// Whether they are sent to a collector of OpenTelemetry too.
    pub export: MetricsExport,
}

/// Bounds on what a caller may send, each the largest that is accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Descriptors in a request.
    pub descriptors: usize,
    /// Entries in a descriptor.
    pub entries: usize,
    /// Bytes of a domain.
    pub domain_bytes: usize,
    /// Bytes of an entry's key.
    pub key_bytes: usize,
    /// Bytes of an entry's value.
    pub value_bytes: usize,
    /// Bytes of a request as it arrives.
    pub request_bytes: usize,
    /// Hits that one descriptor asks for.
    pub hits: u32,
}

impl Settings {
    /// Merges the layers over the defaults; each wins over those before it.
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
    /// Every problem of every layer, in the order of the layers, then those of the whole.
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

    /// Every text was checked by its layer: an error here is a row and a field that disagree, which
    /// the first load with defaults shows.
    fn read(from: &Merged) -> Result<Self, Problem> {
        Ok(Self {
            listen: Listen::read(from)?,
            admin_endpoints: from.value("admin.endpoints", |text| match text {
                "weir" => Ok(Endpoints::Weir),
                "ratelimit" => Ok(Endpoints::Ratelimit),
                _ => Err("no such endpoints".to_owned()),
            })?,
            admin_token_file: from.path("admin.token_file"),
            admin_values: from.value("admin.values", |text| match text {
                "shown" => Ok(ShownValues::Shown),
                "hashed" => Ok(ShownValues::Hashed),
                "hidden" => Ok(ShownValues::Hidden),
                _ => Err("no such way to show values".to_owned()),
            })?,
            alerts: Alerts::read(from)?,
            health: Health {
                redis: from.value("health.redis", value::switch)?,
                policies: from.value("health.policies", value::switch)?,
            },
            policies: Policies {
                source: from.value("policies.source", |text| match text {
                    "directory" => Ok(PolicySource::Directory),
                    "xds" => Ok(PolicySource::Xds),
                    _ => Err("no such source".to_owned()),
                })?,
                directory: from.path("policies.directory").unwrap_or_default(),
                all_files: from.value("policies.files", |text| Ok(text == "all"))?,
                dot_files: from.value("policies.dot_files", value::switch)?,
                beside: from.value("policies.beside", value::switch)?,
                allow_empty: from.value("policies.allow_empty", value::switch)?,
                compatible: from.value("policies.compatible", value::switch)?,
                merge_domains: from.value("policies.merge_domains", value::switch)?,
                xds: Xds::read(from)?,
            },
            grpc: Grpc {
                max_streams: from.value("grpc.max_streams", value::integer)?,
                receive_timeout: from.value("grpc.receive_timeout", duration)?,
                connection_held_bytes: from.value("grpc.connection_held_bytes", value::integer)?,
                held_bytes: from.value("grpc.held_bytes", value::integer)?,
            },
            http: Http {
                connections_per_peer: from.value("http.connections_per_peer", value::integer)?,
                admin_hosts: from.value("http.admin_hosts", value::host_names)?,
                allowed_origins: from.value("http.allowed_origins", listen::origins)?,
            },
            store: from.value("store", |text| match text {
                "memory" => Ok(StoreKind::Memory),
                "redis" => Ok(StoreKind::Redis),
                _ => Err("no such store".to_owned()),
            })?,
            charging: from.value("charging", |text| Mode::named(text).ok_or_else(|| "no such charging".to_owned()))?,
            on_error: from
                .value("on_error", |text| OnError::named(text).ok_or_else(|| "no such way to go on".to_owned()))?,
            shadow_mode: from.value("shadow_mode", value::switch)?,
            quota_mode: from.value("quota_mode", value::switch)?,
            near_limit_ratio: from.value("near_limit_ratio", str::parse)?,
            response: Response {
                dynamic_metadata: from.value("response.dynamic_metadata", value::switch)?,
                delay_header: from.value("response.delay_header", value::switch)?,
                limit_metadata: from.value("response.limit_metadata", value::switch)?,
                ietf_headers: from.value("response.ietf_headers", value::switch)?,
                problem_body: from.value("response.problem_body", value::switch)?,
                limit_headers: from.value("response.limit_headers", value::switch)?,
                limit_header: from.value("response.limit_header", |text| Ok(text.to_owned()))?,
                remaining_header: from.value("response.remaining_header", |text| Ok(text.to_owned()))?,
                reset_header: from.value("response.reset_header", |text| Ok(text.to_owned()))?,
            },
            memory: Memory { max_keys: from.value("memory.max_keys", value::integer)? },
            deny_cache: DenyCache {
                max_age: from.value("deny_cache.max_age", duration)?,
                max_keys: from.value("deny_cache.max_keys", value::integer)?,
                until_window_end: from.value("deny_cache.until_window_end", value::switch)?,
            },
            redis: Redis {
                server: RedisServer::read(from)?,
                per_second: RedisServer::read_per_second(from)?,
                tls: RedisTls::read(from)?,
                timeout: from.value("redis.timeout", duration)?,
                connect_timeout: from.value("redis.connect_timeout", duration)?,
                pool_size: from.value("redis.pool_size", value::integer)?,
                queue: from.value("redis.queue", value::integer)?,
                batch_max: from.value("redis.batch_max", value::integer)?,
                merge_max: from.value("redis.merge_max", value::integer)?,
                key_prefix: from.value("redis.key_prefix", |text| Ok(text.to_owned()))?,
                breaker: Breaker {
                    error_percent: from.value("redis.breaker.error_percent", value::integer)?,
                    calls: from.value("redis.breaker.calls", value::integer)?,
                    window: from.value("redis.breaker.window", duration)?,
                    probe: from.value("redis.breaker.probe", duration)?,
                },
                ready_after: from.value("redis.ready_after", duration)?,
                start_within: from.value("redis.start_within", duration)?,
            },
            runtime: Runtime { cores: from.value("runtime.cores", value::integer)? },
            shutdown: Shutdown {
                pause: from.value("shutdown.pause", duration)?,
                grace: from.value("shutdown.grace", duration)?,
            },
            log: Log {
                level: from.value("log.level", |text| Ok(text.to_owned()))?,
                format: from.value("log.format", |text| match text {
                    "text" => Ok(LogFormat::Text),
                    "json" => Ok(LogFormat::Json),
                    "json_at" => Ok(LogFormat::JsonAt),
                    _ => Err("no such format".to_owned()),
                })?,
                file: from.path("log.file"),
            },
            metrics: Metrics {
                path: from.value("metrics.path", |text| Ok(text.to_owned()))?,
                weir_names: from.value("metrics.weir_names", value::switch)?,
                per_rule: from.value("metrics.per_rule", value::switch)?,
                ratelimit_names: from.value("metrics.ratelimit_names", value::switch)?,
                mapper: from.path("metrics.mapper"),
                response_time_milliseconds: from.value("metrics.response_time_milliseconds", value::switch)?,
                dynamic_series: from.value("metrics.dynamic_series", value::integer)?,
                export: MetricsExport::read(from)?,
            },
            statsd: Statsd::read(from)?,
            tracing: Tracing::read(from)?,
            tap: Tap::read(from)?,
            limits: Limits {
                descriptors: from.value("limits.descriptors", value::integer)?,
                entries: from.value("limits.entries", value::integer)?,
                domain_bytes: from.value("limits.domain_bytes", value::integer)?,
                key_bytes: from.value("limits.key_bytes", value::integer)?,
                value_bytes: from.value("limits.value_bytes", value::integer)?,
                request_bytes: from.value("limits.request_bytes", value::integer)?,
                hits: from.value("limits.hits", value::integer)?,
            },
        })
    }

    /// Reports settings that are valid alone and contradict each other. The place named is that of the later setting.
    fn contradictions(&self, problems: &mut ProblemList<'_>) {
        self.listen.contradictions(problems);
        // A connection must be able to hold its largest request.
        let largest = self.limits.request_bytes + GRPC_REQUEST_EXTRA_BYTES;
        if self.grpc.connection_held_bytes < largest || self.grpc.held_bytes < self.grpc.connection_held_bytes {
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
        self.policies.xds.contradictions(self.policies.source, problems);
        self.redis.contradictions(problems);
        self.tracing.contradictions(problems);
        self.metrics.export.contradictions(&self.tracing, problems);
        self.alerts.contradictions(problems);
    }
}

/// The layers as one, as text: a later layer wins.
struct Merged {
    config: Config,
}

impl Merged {
    fn value<T>(&self, name: &'static str, read: impl Fn(&str) -> Result<T, String>) -> Result<T, Problem> {
        let text = self.text(name).ok_or_else(|| Problem::internal(name, &"no value"))?;
        read(&text).map_err(|reason| Problem::internal(name, &reason))
    }

    fn optional(&self, name: &str) -> Option<String> {
        self.text(name)
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// A setting that may be left out.
    fn given<T>(&self, name: &'static str, read: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, Problem> {
        self.text(name).map(|_| self.value(name, read)).transpose()
    }

    fn text(&self, name: &str) -> Option<String> {
        self.config.get_string(name).ok()
    }
}

/// One thing that is wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was given: `weir.yaml:3:5`, an environment variable, a flag.
    pub origin: String,
    /// The setting, as it was written.
    pub name: Option<String>,
    /// The value, where it may be shown.
    pub value: Option<String>,
    /// What is wrong.
    pub reason: String,
}

impl Problem {
    /// A row of the table and its typed field disagree.
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

/// Everything that is wrong with the settings; one line each when displayed. Never empty.
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

/// Whether policies come by xDS, so that no directory is needed.
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
    /// Loads assignments beside a directory of policies, for tests.
    fn of_test(assignments: &[&str]) -> Result<Self, String> {
        let mut layer = Layer::default();
        layer.set("policies.directory=policies");
        assignments.iter().for_each(|assignment| layer.set(assignment));
        Self::load(&[layer]).map_err(|problems| problems.to_string())
    }
}
