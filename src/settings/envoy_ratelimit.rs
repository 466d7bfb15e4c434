//! The environment variables of envoyproxy/ratelimit as settings of weir.
//!
//! [`read`] makes two layers of settings: the defaults of weir as `ratelimit`, and the settings of the variables.
//! `WEIR__*` overrides both. The variables are in `table.rs`, their syntax in `go.rs`, the addresses of Redis in
//! `redis.rs`, the xDS server in `xds.rs`. Not here: the variables of OpenTelemetry (otel.rs), and when these variables
//! apply, which depends only on the program's name (cli).
//!
//! A variable that cannot be parsed is a problem of the layer. A variable without effect is a [`Note`] for the log.

mod go;
mod redis;
mod table;
mod xds;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

pub use go::Type;
pub use table::{Effect, Form, VARIABLES, Variable};
use weir_engine::arith::Fraction;
use weir_text::{go_duration, nearest_within, spell};

use crate::{ENV_PREFIX, HIDDEN, Kind, Layer, Preset, SETTINGS, Setting};

pub const ORIGIN: &str = "as ratelimit";

/// The defaults of weir as `ratelimit`. The largest request is that of envoyproxy/ratelimit.
const FIXED: &[(&str, &str)] = &[
    ("admin.endpoints", "ratelimit"),
    ("limits.descriptors", "64"),
    ("limits.entries", "64"),
    ("limits.domain_bytes", "4096"),
    ("limits.key_bytes", "65536"),
    ("limits.value_bytes", "1048576"),
    ("limits.request_bytes", "4194304"),
    ("limits.hits", "4294967295"),
    ("listen.max_connection_age", "1d"),
    ("listen.max_connection_age_grace", "1h"),
    ("metrics.ratelimit_names", "on"),
    ("policies.allow_empty", "on"),
    ("policies.compatible", "on"),
    ("policies.files", "all"),
];

/// How the variables of envoyproxy/ratelimit begin. Its newer versions have more of them, and typing mistakes look the same. Programs
/// beside it read no variables that begin so, except those that [`is_of_kubernetes`] finds.
const FAMILIES: &[&str] = &[
    "CONFIG_GRPC_XDS_",
    "GRPC_CLIENT_TLS_",
    "GRPC_MAX_CONNECTION_",
    "GRPC_SERVER_",
    "LIMIT_RESPONSE_",
    "LOCAL_CACHE_",
    "MEMCACHE_",
    "PROMETHEUS_",
    "REDIS_",
    "RUNTIME_",
    "SANITIZE_DESCRIPTOR_",
    "STOP_CACHE_",
    "TRACING_",
    "USE_CALENDAR_",
    "USE_DOG_STATSD",
    "USE_STATSD",
    "XDS_CLIENT_",
];

/// How many letters a misspelled name differs in.
const LETTERS_OFF_MAX: usize = 2;

/// The most variables that weir names because it does not support them.
const UNKNOWN_MAX: usize = 16;

/// Whether Kubernetes sets a variable of this name for a Service, such as `REDIS_PORT_6379_TCP_ADDR`.
fn is_of_kubernetes(name: &str) -> bool {
    ["_SERVICE_HOST", "_SERVICE_PORT", "_PORT"].iter().any(|part| name.ends_with(part))
        || ["_SERVICE_PORT_", "_TCP", "_UDP"].iter().any(|part| name.contains(part))
}

/// The approximate size of one denial in envoyproxy/ratelimit's local cache, in bytes.
const CACHE_BYTES_PER_KEY: i64 = 100;
/// The smallest cache that envoyproxy/ratelimit makes, in bytes.
const CACHE_BYTES_MIN: i64 = 512 * 1024;

/// The properties of the machine that affect the mapping.
pub struct Machine<'a> {
    pub cores: usize,
    /// The address for all interfaces, if a variable has no host.
    pub any: IpAddr,
    /// Finds the address of a host name.
    pub resolve: &'a dyn Fn(&str) -> Option<IpAddr>,
}

pub struct RatelimitVariables {
    /// The defaults of weir as `ratelimit`.
    pub fixed: Layer,
    pub variables: Layer,
    pub notes: Vec<Note>,
}

/// A note about a valid variable, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub variable: String,
    pub text: String,
}

/// Reads the environment of a process, [`std::env::vars_os`]. Variables that are not in [`VARIABLES`] are ignored.
pub fn read(environment: impl IntoIterator<Item = (OsString, OsString)>, machine: &Machine<'_>) -> RatelimitVariables {
    let mut mapping = Mapping::new(environment, machine);
    for &(setting, text) in FIXED {
        mapping.put(&[], setting, text);
    }
    for variable in VARIABLES {
        mapping.single(variable);
    }
    mapping.listeners();
    mapping.log();
    mapping.policies();
    mapping.statistics();
    mapping.charging();
    mapping.tracing();
    redis::map(&mut mapping);
    mapping.unknown();
    RatelimitVariables { fixed: mapping.fixed, variables: mapping.layer, notes: mapping.notes }
}

/// Whether the text of a variable must not be printed.
fn is_secret(variable: &Variable) -> bool {
    let mut kinds = variable.settings().into_iter().filter_map(|name| Setting::find(name).map(|setting| setting.kind));
    kinds.any(|kind| matches!(kind, Kind::Secret | Kind::Headers))
}

struct Mapping<'a> {
    machine: &'a Machine<'a>,
    /// The texts of the variables that are set and valid.
    given: BTreeMap<&'static str, String>,
    /// All other variables: some have names that no table can list.
    others: BTreeMap<String, String>,
    /// The settings that `WEIR__*` sets.
    ours: BTreeSet<&'static str>,
    fixed: Layer,
    layer: Layer,
    notes: Vec<Note>,
}

impl<'a> Mapping<'a> {
    fn new(environment: impl IntoIterator<Item = (OsString, OsString)>, machine: &'a Machine<'a>) -> Self {
        let mut mapping = Self {
            machine,
            given: BTreeMap::new(),
            others: BTreeMap::new(),
            ours: BTreeSet::new(),
            fixed: Layer::default(),
            layer: Layer::default(),
            notes: Vec::new(),
        };
        for (name, text) in environment {
            let Some(name) = name.to_str() else { continue };
            if name.starts_with(ENV_PREFIX) {
                mapping.ours.extend(SETTINGS.iter().find(|ours| ours.env_name() == name).map(|ours| ours.name));
                continue;
            }
            let variable = Variable::find(name);
            match (variable, text.into_string()) {
                (Some(variable), Ok(text)) => match variable.kind.check(&text) {
                    Ok(()) => drop(mapping.given.insert(variable.name, text)),
                    Err(reason) => {
                        let shown = if is_secret(variable) { HIDDEN.to_owned() } else { format!("{text:?}") };
                        mapping.layer.refuse(variable.name, &format!("{shown}: {reason}"));
                    }
                },
                (Some(variable), Err(_)) => mapping.layer.refuse(variable.name, "not UTF-8"),
                (None, Ok(text)) => drop(mapping.others.insert(name.to_owned(), text)),
                (None, Err(_)) => {}
            }
        }
        mapping
    }

    /// Maps a variable to its single setting, or adds a note if it has no effect.
    fn single(&mut self, variable: &'static Variable) {
        let name = variable.name;
        let Some(text) = self.given.get(name).cloned() else { return };
        match variable.effect {
            Effect::Is(setting, form) => {
                if let Some(text) = self.formed(name, setting, form, &text) {
                    self.put(&[name], setting, &text);
                }
            }
            Effect::Part(_) => {}
            Effect::Nothing => self.note(name, format!("has no effect: {}", variable.about)),
        }
    }

    /// The text of a variable in the form of its setting. None if the setting keeps its default.
    fn formed(&mut self, name: &'static str, setting: &'static str, form: Form, text: &str) -> Option<String> {
        match form {
            Form::Text => (!text.is_empty()).then(|| text.to_owned()),
            Form::Switch => Some(if go::boolean(text)? { "on" } else { "off" }.to_owned()),
            Form::Integer => {
                let number = go::integer(text)?;
                match Setting::find(setting).map(|ours| ours.kind) {
                    Some(Kind::Integer { min, max, unit }) => {
                        let fitting = u64::try_from(number).unwrap_or(0).clamp(min, max);
                        if i128::from(fitting) != i128::from(number) {
                            self.note(
                                name,
                                format!("{text} is used as {fitting} {unit}, the nearest value that weir supports"),
                            );
                        }
                        Some(fitting.to_string())
                    }
                    _ => Some(number.to_string()),
                }
            }
            Form::Ratio => {
                let number = go::float(text)?;
                let fitting = number.clamp(0.0, 1.0).abs();
                if fitting.total_cmp(&number).is_ne() {
                    self.note(name, format!("{text} is used as {fitting}, the nearest value that weir supports"));
                }
                Some(format!("{fitting:.decimals$}", decimals = Fraction::DECIMALS_MAX))
            }
            Form::Duration => {
                let micros = u64::try_from(go_duration(text)?).unwrap_or(0).div_ceil(1_000);
                let length = std::time::Duration::from_micros(micros);
                let ours = Setting::find(setting)?;
                if micros == 0 {
                    if ours.default != Preset::Is("0s") {
                        self.note(name, format!("0 keeps weir's own bound, which is {}", ours.default_text()));
                    }
                    return None;
                }
                let Kind::Duration { min, max } = ours.kind else { return Some(spell(length)) };
                let fitting = length.clamp(min, max);
                if fitting != length {
                    self.note(
                        name,
                        format!("{text} is used as {}, the nearest value that weir supports", spell(fitting)),
                    );
                }
                Some(spell(fitting))
            }
        }
    }

    /// Sets the text of a setting. Its origin is the first variable of the list that is set, or [`ORIGIN`].
    fn put(&mut self, variables: &[&'static str], setting: &'static str, text: &str) {
        let origin = variables.iter().copied().find(|name| self.given.contains_key(name));
        if self.ours.contains(setting) {
            return;
        }
        match origin {
            Some(name) => self.layer.flag(setting, text, name),
            None => self.fixed.flag(setting, text, ORIGIN),
        }
    }

    fn note(&mut self, variable: &'static str, text: String) {
        if !self.notes.iter().any(|note| note.variable == variable && note.text == text) {
            self.notes.push(Note { variable: variable.to_owned(), text });
        }
    }

    /// Notes variables that look like those of envoyproxy/ratelimit, and that weir does not support.
    fn unknown(&mut self) {
        let is_unknown =
            |name: &&String| FAMILIES.iter().any(|family| name.starts_with(family)) && !is_of_kubernetes(name);
        for name in self.others.keys().filter(is_unknown).take(UNKNOWN_MAX) {
            let meant = nearest_within(name, VARIABLES.iter().map(|variable| variable.name), LETTERS_OFF_MAX);
            let hint = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
            let text = format!("has no effect: weir has no such variable of envoyproxy/ratelimit{hint}");
            self.notes.push(Note { variable: name.clone(), text });
        }
    }

    fn text(&self, name: &'static str) -> &str {
        match self.given.get(name) {
            Some(text) => text,
            None => Variable::find(name).map_or("", |variable| variable.default),
        }
    }

    /// The text of a variable, if it is set and not empty.
    fn some_text(&self, name: &'static str) -> Option<&str> {
        self.given.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    fn bool(&self, name: &'static str) -> bool {
        go::boolean(self.text(name)).unwrap_or_default()
    }

    fn integer(&self, name: &'static str) -> i64 {
        go::integer(self.text(name)).unwrap_or_default()
    }

    fn listeners(&mut self) {
        self.listener("HOST", "PORT", "listen.http");
        self.listener("DEBUG_HOST", "DEBUG_PORT", "listen.admin");
        match self.some_text("GRPC_UDS").map(str::to_owned) {
            Some(path) => self.put(&["GRPC_UDS"], "listen.grpc", &format!("unix:{path}")),
            None => self.listener("GRPC_HOST", "GRPC_PORT", "listen.grpc"),
        }
        if self.bool("GRPC_SERVER_USE_TLS") {
            self.server_tls();
        }
    }

    fn server_tls(&mut self) {
        for (variable, setting) in
            [("GRPC_SERVER_TLS_CERT", "listen.tls.cert_file"), ("GRPC_SERVER_TLS_KEY", "listen.tls.key_file")]
        {
            match self.some_text(variable).map(str::to_owned) {
                Some(path) => self.put(&[variable], setting, &path),
                None if self.ours.contains(setting) => {}
                None => self.layer.refuse(variable, "GRPC_SERVER_USE_TLS needs it"),
            }
        }
        let Some(authorities) = self.some_text("GRPC_CLIENT_TLS_CACERT").map(str::to_owned) else { return };
        self.put(&["GRPC_CLIENT_TLS_CACERT"], "listen.tls.client_ca_file", &authorities);
        if let Some(name) = self.some_text("GRPC_CLIENT_TLS_SAN").map(str::to_owned) {
            self.put(&["GRPC_CLIENT_TLS_SAN"], "listen.tls.client_names", &name);
        }
    }

    fn listener(&mut self, host: &'static str, port: &'static str, setting: &'static str) {
        let Ok(number) = u16::try_from(self.integer(port)) else {
            let reason = format!("{}: not a port, which is from 0 to 65535", self.text(port));
            return self.layer.refuse(port, &reason);
        };
        match self.address(self.text(host)) {
            Some(ip) => self.put(&[host, port], setting, &SocketAddr::new(ip, number).to_string()),
            None => {
                let reason = format!("{:?}: this host has no address here", self.text(host));
                self.layer.refuse(host, &reason);
            }
        }
    }

    /// The address that Go listens on for a host: an IP, a name, or empty for all interfaces.
    fn address(&self, host: &str) -> Option<IpAddr> {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match bare.parse() {
            Ok(ip) => Some(ip),
            Err(_) if bare.is_empty() => Some(self.machine.any),
            Err(_) => (self.machine.resolve)(bare),
        }
    }

    fn log(&mut self) {
        if let Some(level) = self.some_text("LOG_LEVEL") {
            let ours = match level.to_ascii_lowercase().as_str() {
                "panic" | "fatal" | "error" => "error",
                "warn" | "warning" => "warn",
                "info" => "info",
                "debug" => "debug",
                "trace" => "trace",
                _ => {
                    let reason = format!("{level:?}: must be panic, fatal, error, warn, info, debug or trace");
                    return self.layer.refuse("LOG_LEVEL", &reason);
                }
            };
            self.put(&["LOG_LEVEL"], "log.level", ours);
        }
        if self.text("LOG_FORMAT").eq_ignore_ascii_case("json") {
            self.put(&["LOG_FORMAT"], "log.format", "json_at");
        }
    }

    fn policies(&mut self) {
        match self.text("CONFIG_TYPE") {
            "FILE" => self.put(&["CONFIG_TYPE"], "policies.source", "directory"),
            "GRPC_XDS_SOTW" => {
                self.put(&["CONFIG_TYPE"], "policies.source", "xds");
                xds::map(self);
            }
            other => {
                let reason = format!("{other:?}: must be FILE or GRPC_XDS_SOTW");
                self.layer.refuse("CONFIG_TYPE", &reason);
            }
        }
        const PLACE: [&str; 3] = ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"];
        let mut directory = Path::new(self.text("RUNTIME_ROOT")).to_owned();
        for name in ["RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"] {
            // Like envoyproxy/ratelimit, append the path to the root even if it begins with a slash.
            let part = self.text(name).trim_matches('/');
            if !part.is_empty() {
                directory.push(part);
            }
        }
        let beside = self.bool("RUNTIME_WATCH_ROOT") && !self.text("RUNTIME_APPDIRECTORY").trim_matches('/').is_empty();
        self.put(&PLACE, "policies.directory", &directory.to_string_lossy());
        let dots = if self.bool("RUNTIME_IGNOREDOTFILES") { "off" } else { "on" };
        self.put(&["RUNTIME_IGNOREDOTFILES"], "policies.dot_files", dots);
        self.put(&["RUNTIME_WATCH_ROOT"], "policies.beside", if beside { "on" } else { "off" });
    }

    fn statistics(&mut self) {
        if self.bool("DISABLE_STATS") {
            return;
        }
        if self.bool("USE_PROMETHEUS") {
            let text = self.text("PROMETHEUS_ADDR");
            let parts = text.rsplit_once(':').and_then(|(host, port)| Some((self.address(host)?, port.parse().ok()?)));
            match parts {
                Some((ip, port)) => {
                    let address = SocketAddr::new(ip, port).to_string();
                    self.put(&["PROMETHEUS_ADDR", "USE_PROMETHEUS"], "listen.metrics", &address);
                }
                None => {
                    let reason = format!("{text:?}: not an address such as :9090 or 127.0.0.1:9090");
                    self.layer.refuse("PROMETHEUS_ADDR", &reason);
                }
            }
            return;
        }
        let format = match (self.bool("USE_DOG_STATSD"), self.bool("USE_STATSD")) {
            (true, _) => "dogstatsd",
            (false, true) => "statsd",
            (false, false) => return,
        };
        let Ok(port) = u16::try_from(self.integer("STATSD_PORT")) else {
            let reason = format!("{}: not a port, which is from 0 to 65535", self.text("STATSD_PORT"));
            return self.layer.refuse("STATSD_PORT", &reason);
        };
        let host = self.text("STATSD_HOST").to_owned();
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        const SINK: [&str; 4] = ["STATSD_HOST", "STATSD_PORT", "USE_DOG_STATSD", "USE_STATSD"];
        self.put(&SINK, "statsd.address", &address);
        self.put(&["USE_DOG_STATSD"], "statsd.format", format);
        let is_udp = self.others.get("STATSD_PROTOCOL").is_some_and(|text| text.eq_ignore_ascii_case("udp"));
        if is_udp {
            self.put(&[], "statsd.protocol", "udp");
        }
        self.mogrifiers();
    }

    /// The mogrifiers of DogStatsD: a variable lists their names, and each has variables with its name.
    fn mogrifiers(&mut self) {
        const LIST: &str = "USE_DOG_STATSD_MOGRIFIERS";
        let names: Vec<String> = go::list(self.text(LIST)).into_iter().map(str::to_owned).collect();
        let mut rules = Vec::new();
        for name in names {
            let of_rule = |part: &str| format!("DOG_STATSD_MOGRIFIER_{}_{part}", name.to_ascii_uppercase());
            let text = |part: &str| self.others.get(&of_rule(part)).map_or("", String::as_str);
            let Some(tags) = go::pairs(text("TAGS")) else {
                let reason = format!("{}: not a map such as key:value,key:value", of_rule("TAGS"));
                return self.layer.refuse(LIST, &reason);
            };
            if text("PATTERN").is_empty() || text("NAME").is_empty() {
                let reason = format!("{name} needs {} and {}", of_rule("PATTERN"), of_rule("NAME"));
                return self.layer.refuse(LIST, &reason);
            }
            let tags: BTreeMap<&str, &str> = tags.into_iter().collect();
            rules.push(serde_json::json!({ "pattern": text("PATTERN"), "name": text("NAME"), "tags": tags }));
        }
        if !rules.is_empty() {
            self.put(&[LIST], "statsd.mogrifiers", &serde_json::Value::from(rules).to_string());
        }
    }

    /// Not here: the collector, which the variables of OpenTelemetry name (otel.rs).
    fn tracing(&mut self) {
        let exporter = if self.bool("TRACING_ENABLED") { "otlp" } else { "none" };
        self.put(&["TRACING_ENABLED"], "tracing.exporter", exporter);
        let name = self.some_text("TRACING_SERVICE_NAME").map(str::to_owned);
        match name {
            Some(name) => self.put(&["TRACING_SERVICE_NAME"], "tracing.service_name", &name),
            // The variables of OpenTelemetry may set another name, and have priority.
            None => self.put(&[], "tracing.service_name", "RateLimit"),
        }
        let protocol = match self.text("TRACING_EXPORTER_PROTOCOL") {
            "" | "http" => "http/protobuf",
            "grpc" => "grpc",
            other => {
                let reason = format!("{other:?}: must be http or grpc");
                return self.layer.refuse("TRACING_EXPORTER_PROTOCOL", &reason);
            }
        };
        // If it is not set, a variable of OpenTelemetry may set the protocol.
        self.put(&["TRACING_EXPORTER_PROTOCOL"], "tracing.otlp.protocol", protocol);
    }

    fn charging(&mut self) {
        let mode = if self.bool("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT") { "atomic" } else { "independent" };
        self.put(&["STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"], "charging", mode);
        const CACHE: [&str; 1] = ["LOCAL_CACHE_SIZE_IN_BYTES"];
        match self.integer("LOCAL_CACHE_SIZE_IN_BYTES") {
            0 => self.put(&CACHE, "deny_cache.max_age", "0s"),
            bytes => {
                let keys = bytes.max(CACHE_BYTES_MIN) / CACHE_BYTES_PER_KEY;
                let keys = self.formed(CACHE[0], "deny_cache.max_keys", Form::Integer, &keys.to_string());
                self.put(&CACHE, "deny_cache.max_keys", &keys.unwrap_or_default());
            }
        }
    }
}
