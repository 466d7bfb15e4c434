//! A setting: its name, its kind with its bounds, and its default.
//!
//! Not here: the settings, which their groups declare (group.rs), and how a text is parsed (value.rs).

use std::time::Duration;

use weir_engine::arith::Fraction;

use super::value::{CLIENT_NAMES_MAX, GRPC_LISTENERS_MAX, PAIRS_MAX};

pub const ENV_PREFIX: &str = "WEIR__";

/// The longest age of a connection: a year.
pub(super) const CONNECTION_AGE_MAX: Duration = secs(365 * 24 * 60 * 60);
/// The longest `redis.key_prefix`, in bytes: every key in Redis contains it.
pub const KEY_PREFIX_BYTES_MAX: usize = 64;
/// The longest path of a URL, in bytes.
pub const URL_PATH_BYTES_MAX: usize = 255;
pub const HOST_NAMES_MAX: usize = 16;
pub(super) const ORIGINS_MAX: usize = 16;

/// The values of `redis.tls.system_store` and `policies.xds.tls.system_store`.
pub(super) const SYSTEM_STORE: &[&str] = &["fallback", "always"];

/// The words that weir prints for a switch. It also accepts YAML's words for true and false.
const SWITCH: &[&str] = &["off", "on"];

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The name, with groups separated by dots: `redis.timeout`.
    pub name: &'static str,
    /// Whether it changes answers of a test, so that a file of tests can set it.
    pub is_of_tests: bool,
    /// How its text is parsed, and which values are allowed.
    pub kind: Kind,
    /// The value if no layer sets it.
    pub default: Preset,
    pub about: &'static str,
}

/// The value of a setting that no layer sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// This text, read like a text in the file.
    Is(&'static str),
    /// None: the setting is optional.
    Unset,
    /// An error: the setting is required.
    Required,
}

/// How the text of a setting is parsed. Bounds are inclusive.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// IP and port to listen on; port 0 lets the system choose.
    Address,
    /// As `Address`, or the path of a Unix socket after `unix:`; or several, each with its name.
    Endpoints,
    /// Permissions of a file, in octal digits.
    Permissions,
    /// Names that a client's certificate may have, separated by commas.
    ClientNames,
    /// A path, relative to the working directory. It is checked only when used.
    Directory,
    /// The path of a file, relative to the working directory. It is checked only when used.
    File,
    /// A DNS name, or an IP, that a certificate may have.
    ServerName,
    /// The name or IP of a server, and its port.
    HostPort,
    /// Pairs of keys and values, separated by commas.
    Pairs {
        /// The character between a key and its value.
        between: char,
    },
    /// Pairs of HTTP/2 header names and values, separated by commas; never printed.
    Headers,
    /// One word of printable characters.
    Name {
        bytes_max: usize,
    },
    HeaderName,
    /// `on` or `off`, or another word of YAML for true or false.
    Switch,
    Choice(&'static [&'static str]),
    /// A whole number in `unit`.
    Integer {
        min: u64,
        max: u64,
        unit: &'static str,
    },
    /// A decimal number from 0 to 1.
    Fraction,
    /// A number with its unit, such as `10ms` or `1m30s`.
    Duration {
        min: Duration,
        max: Duration,
    },
    /// Pairs of texts, `key:value,key:value`.
    Tags,
    /// A list of patterns, names and tags, in JSON.
    Mogrifiers,
    /// Printable characters at the beginning of Redis keys.
    KeyPrefix {
        bytes_max: usize,
    },
    UrlPath {
        bytes_max: usize,
    },
    /// The URL of a collector, `http` or `https`.
    Url,
    /// The URL of a webhook, `http` or `https`; never printed.
    SecretUrl,
    /// Some of these words, separated by commas.
    Words(&'static [&'static str]),
    /// DNS names, separated by commas. May be empty.
    HostNames {
        most: usize,
    },
    /// Origins of web pages, separated by commas. May be empty.
    Origins {
        most: usize,
    },
    /// A text that is never printed.
    Secret,
    /// The address of a Redis, printed without its credentials.
    RedisUrl,
    /// Directives of tracing-subscriber's `EnvFilter`.
    LogLevel,
}

impl Kind {
    /// A whole number from `min` to `max`.
    pub(super) const fn integer(min: u64, max: u64, unit: &'static str) -> Self {
        Self::Integer { min, max, unit }
    }

    /// A length of time from `min` to `max`.
    pub(super) const fn duration(min: Duration, max: Duration) -> Self {
        Self::Duration { min, max }
    }
}

pub(super) const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

pub(super) const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The settings with their own flag in `weir serve`, besides `--set`.
const FLAGS: [(&str, &str); 7] = [
    ("listen.grpc", "--grpc"),
    ("listen.http", "--http"),
    ("listen.admin", "--admin"),
    ("policies.directory", "--policies"),
    ("store", "--store"),
    ("charging", "--charging"),
    ("redis.url", "--redis-url"),
];

impl Setting {
    /// The flag of `weir serve` that sets it, besides `--set`.
    pub fn flag(&self) -> Option<&'static str> {
        FLAGS.iter().find(|(name, _)| *name == self.name).map(|(_, flag)| *flag)
    }

    /// The environment variable that sets it: `redis.timeout` is `WEIR__REDIS__TIMEOUT`.
    pub fn env_name(&self) -> String {
        env_name(self.name)
    }

    pub fn default_text(&self) -> String {
        match self.default {
            Preset::Is("") => "empty".to_owned(),
            Preset::Is(text) => text.to_owned(),
            Preset::Unset => "none".to_owned(),
            Preset::Required => "required".to_owned(),
        }
    }

    /// The help of its flag: what it does, and its default.
    pub fn help(&self) -> String {
        format!("{} [{}]", self.about, self.default_note())
    }

    pub(super) fn default_note(&self) -> String {
        match self.default {
            Preset::Is(_) | Preset::Unset => format!("default: {}", self.default_text()),
            Preset::Required => self.default_text(),
        }
    }

    /// The allowed values as the documentation writes them, with their unit.
    pub fn bounds(&self) -> String {
        match self.kind {
            Kind::Address => "IP:PORT, port 0 for any".to_owned(),
            Kind::Endpoints => {
                format!(
                    "IP:PORT, port 0 for any, or unix:/PATH; NAME=ADDRESS separated by commas, at most {GRPC_LISTENERS_MAX}"
                )
            }
            Kind::Permissions => "octal digits, 0000 to 0777".to_owned(),
            Kind::ClientNames => format!("at most {CLIENT_NAMES_MAX} names"),
            Kind::Directory | Kind::File => "a path".to_owned(),
            Kind::ServerName => "a DNS name or an IP".to_owned(),
            Kind::HostPort => "HOST:PORT".to_owned(),
            Kind::Pairs { between } => format!("KEY{between}VALUE separated by commas, at most {PAIRS_MAX}"),
            Kind::Headers => format!("NAME:VALUE separated by commas, at most {PAIRS_MAX}, never printed"),
            Kind::Name { bytes_max } => format!("at most {bytes_max} printable ASCII bytes, no blanks"),
            Kind::HeaderName => "the name of an HTTP header".to_owned(),
            Kind::Switch => alternatives(SWITCH),
            Kind::Choice(words) => alternatives(words),
            Kind::Integer { min, max, unit } => format!("{min} to {max} {unit}"),
            Kind::Duration { min, max } => {
                format!("{} to {}", weir_text::spell(min), weir_text::spell(max))
            }
            Kind::KeyPrefix { bytes_max } => {
                format!("at most {bytes_max} printable ASCII bytes, no braces or blanks")
            }
            Kind::UrlPath { bytes_max } => format!("a path of at most {bytes_max} bytes, from its slash on"),
            Kind::Url => "http://HOST:PORT or https://HOST:PORT, with a path".to_owned(),
            Kind::SecretUrl => "http://HOST:PORT or https://HOST:PORT, with a path; never printed".to_owned(),
            Kind::Words(words) => format!("{}, separated by commas", alternatives(words)),
            Kind::HostNames { most } => format!("at most {most} DNS names, separated by commas"),
            Kind::Origins { most } => {
                format!("at most {most} origins such as https://console.example, separated by commas")
            }
            Kind::Fraction => format!("0 to 1, at most {} decimals", Fraction::DECIMALS_MAX),
            Kind::Tags => "key:value,key:value".to_owned(),
            Kind::Mogrifiers => "a list in JSON".to_owned(),
            Kind::Secret => "a text, never printed".to_owned(),
            Kind::RedisUrl => "a URL, printed without credentials".to_owned(),
            Kind::LogLevel => "levels by target".to_owned(),
        }
    }
}

/// Words as a sentence lists them: `error, allow, deny or local`.
pub(super) fn alternatives(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

pub(super) fn env_name(name: &str) -> String {
    format!("{ENV_PREFIX}{}", name.replace('.', "__").to_ascii_uppercase())
}
