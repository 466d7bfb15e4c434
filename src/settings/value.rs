//! How the text of a setting becomes a value, and types whose `Debug` hides secrets.
//!
//! An error gives the reason and a correction. The caller adds the place. No error contains a secret. Nothing here uses
//! the network.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::codegen::http::{HeaderName, Uri};
use tracing_subscriber::EnvFilter;
use weir_engine::arith::Fraction;
use weir_engine::{Mode, OnError};
use weir_text::{boolean, duration};

/// The longest value of a setting, in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;
/// The longest name of a master at its sentinels, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The most names in `listen.tls.client_names`.
pub const CLIENT_NAMES_MAX: usize = 64;
/// The most addresses of `listen.grpc`.
pub(super) const GRPC_LISTENERS_MAX: usize = 8;
/// Printed in place of a secret.
pub const HIDDEN: &str = "***";

pub const PAIRS_MAX: usize = 32;
/// The levels of the log, in any case of letters.
pub const LOG_LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// How much of an invalid value an error prints, in characters.
const SHOWN_CHARS_MAX: usize = 100;

/// A text that is never printed: `Debug` and `Display` both give `***`.
///
/// ```
/// use weir_settings::Secret;
///
/// let password = Secret::from("hunter2");
/// assert_eq!(format!("{password} {password:?}"), "*** ***");
/// assert_eq!(password.expose(), "hunter2");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// Headers of requests to another server, with names in lower case. `Debug` prints only the names, because values can
/// be secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, String)>);

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| (name, HIDDEN))).finish()
    }
}

/// The address of a Redis: one or more hosts, or a Unix socket. Every output hides the credentials.
///
/// ```
/// use weir_settings::RedisUrl;
///
/// let url: RedisUrl = "redis://:hunter2@cache:6379/3".parse().unwrap();
/// assert_eq!(url.to_string(), "redis://***@cache:6379/3");
/// let url: RedisUrl = "rediss://:hunter2@one:7000,two/3".parse().unwrap();
/// assert_eq!(url.to_string(), "rediss://***@one:7000,two/3");
/// assert_eq!(url.places(26379), [("one".to_owned(), 7000), ("two".to_owned(), 26379)]);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    text: String,
    /// The URL with the first host only.
    first: String,
    /// Each host, with its port if the URL has one; at most [`HOSTS_MAX`]. Empty for a socket.
    hosts: Vec<(String, Option<u16>)>,
    tls: bool,
    database: i64,
    has_password: bool,
}

/// The most hosts in one [`RedisUrl`]. A few seeds or sentinels are enough.
pub const HOSTS_MAX: usize = 32;

const NO_URL: &str = "not a Redis URL: write redis://HOST:PORT, rediss://HOST:PORT for TLS, or redis+unix:///PATH";

impl RedisUrl {
    /// The URL with its credentials and its first host.
    pub fn expose(&self) -> &str {
        &self.first
    }

    /// Each host with its port, or with `port` if the URL has none. Empty for a Unix socket.
    pub fn places(&self, port: u16) -> Vec<(String, u16)> {
        self.hosts.iter().map(|(host, written)| (host.clone(), written.unwrap_or(port))).collect()
    }

    pub fn is_tls(&self) -> bool {
        self.tls
    }

    pub fn database(&self) -> i64 {
        self.database
    }

    pub fn has_password(&self) -> bool {
        self.has_password
    }
}

impl FromStr for RedisUrl {
    type Err = String;

    /// Parses each host with the parser of the Redis client, so an accepted URL cannot fail later. Refuses parts that
    /// this parser would ignore.
    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").ok_or(NO_URL)?;
        if rest.contains('#') {
            return Err("an unencoded # in it: write %23".to_owned());
        }
        let (tls, scheme) = match scheme {
            "rediss" => (true, "redis"),
            "valkeys" => (true, "valkey"),
            scheme => (false, scheme),
        };
        if scheme.ends_with("unix") {
            let info = read_one(text)?;
            let settings = info.redis_settings();
            return Ok(Self {
                text: text.to_owned(),
                first: text.to_owned(),
                hosts: Vec::new(),
                tls,
                database: settings.db(),
                has_password: settings.password().is_some(),
            });
        }
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let mut info = None;
        let mut found = Vec::new();
        for host in hosts.split(',') {
            let one = format!("{scheme}://{login}{host}{tail}");
            let this = read_one(&one)?;
            let ConnectionAddr::Tcp(name, port) = this.addr() else {
                return Err(NO_URL.to_owned());
            };
            let written = redis::parse_redis_url(&one).is_some_and(|url| url.port().is_some());
            found.push((name.clone(), written.then_some(*port)));
            info.get_or_insert(this);
        }
        if found.len() > HOSTS_MAX {
            return Err(format!("{} hosts: at most {HOSTS_MAX}", found.len()));
        }
        let info = info.ok_or(NO_URL)?;
        let settings = info.redis_settings();
        let host = hosts.split(',').next().unwrap_or(hosts);
        Ok(Self {
            text: text.to_owned(),
            first: format!("{scheme}{}://{login}{host}{tail}", if tls { "s" } else { "" }),
            hosts: found,
            tls,
            database: settings.db(),
            has_password: settings.password().is_some(),
        })
    }
}

/// Reads a URL of one host, or of a socket.
fn read_one(text: &str) -> Result<ConnectionInfo, String> {
    let Some(url) = redis::parse_redis_url(text) else {
        return Err(NO_URL.to_owned());
    };
    let on_socket = url.scheme().ends_with("unix");
    let parameters: &[&str] = if on_socket { &["db", "user", "pass", "protocol"] } else { &["protocol"] };
    for (parameter, _) in url.query_pairs() {
        if !parameters.contains(&parameter.as_ref()) {
            // The message does not quote the text: it may be the end of a password with a question mark.
            return Err(format!(
                "an unknown parameter after the question mark: {} may stand there",
                parameters.join(", ")
            ));
        }
    }
    let info = match text.into_connection_info() {
        Ok(info) => info,
        Err(error) => {
            // Without the detail, which may quote the URL.
            let reason = error.to_string();
            return Err(lower_first(reason.split(" - ").next().unwrap_or(&reason)));
        }
    };
    if info.redis_settings().db() < 0 {
        return Err("the database number is below 0".to_owned());
    }
    Ok(info)
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&self.text))
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact(&self.text))
    }
}

pub(super) trait FromText: Sized {
    fn from_text(text: &str) -> Result<Self, String>;

    /// The value if no layer sets a text.
    fn unset() -> Result<Self, String> {
        Err("no value".to_owned())
    }
}

impl<T: FromText> FromText for Option<T> {
    fn from_text(text: &str) -> Result<Self, String> {
        T::from_text(text).map(Some)
    }

    fn unset() -> Result<Self, String> {
        Ok(None)
    }
}

impl FromText for Headers {
    fn from_text(text: &str) -> Result<Self, String> {
        headers(text).map(Self)
    }

    fn unset() -> Result<Self, String> {
        Ok(Self::default())
    }
}

/// Implements [`FromText`] for a type with a function.
macro_rules! from_text {
    ($($Type:ty: $read:expr;)+) => {
        $(impl FromText for $Type {
            fn from_text(text: &str) -> Result<Self, String> {
                $read(text)
            }
        })+
    };
}

from_text! {
    bool: switch;
    u32: integer;
    usize: integer;
    Duration: duration;
    Fraction: str::parse;
    SocketAddr: address;
    (String, u16): host_port;
    RedisUrl: str::parse;
    String: |text: &str| Ok(text.to_owned());
    PathBuf: |text| Ok(PathBuf::from(text));
    Secret: |text| Ok(Secret::from(text));
    Mode: |text| Mode::named(text).ok_or_else(|| "no such charging".to_owned());
    OnError: |text| OnError::named(text).ok_or_else(|| "no such on_error".to_owned());
}

/// Parses the URL of a collector. Refuses a login in it: a header can send it, and is not printed.
pub(super) fn url(text: &str) -> Result<Uri, String> {
    web_url(text, "http://collector:4318", "has a login: send a header in its place")
}

pub(super) fn secret_url(text: &str) -> Result<(), String> {
    web_url(text, "https://alerts.example/weir", "has a login, which weir does not send").map(drop)
}

fn web_url(text: &str, example: &str, has_login: &str) -> Result<Uri, String> {
    let form = || format!("not a URL such as {example}");
    let url: Uri = text.parse().map_err(|_| form())?;
    if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
        return Err(form());
    }
    match url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        true => Err(has_login.to_owned()),
        false => Ok(url),
    }
}

/// Sets the value of a key, and replaces an earlier one.
pub(super) fn set<T: PartialEq>(pairs: &mut Vec<(T, T)>, key: T, value: T) {
    match pairs.iter_mut().find(|(other, _)| *other == key) {
        Some(pair) => pair.1 = value,
        None => pairs.push((key, value)),
    }
}

/// Parses known words, separated by commas.
pub(super) fn words(text: &str, known: &[&'static str]) -> Result<Vec<&'static str>, String> {
    let mut found = Vec::new();
    for word in text.split(',').map(str::trim) {
        let Some(known) = known.iter().find(|known| **known == word) else {
            return Err(format!("{:?} is not one of {}", shorten(word), known.join(", ")));
        };
        if found.contains(known) {
            return Err(format!("{known} appears twice"));
        }
        found.push(*known);
    }
    Ok(found)
}

/// Parses DNS names, separated by commas. They are compared in lower case.
pub(super) fn host_names(text: &str) -> Result<Vec<String>, String> {
    let names = text.split(',').map(str::trim).filter(|_| !text.is_empty());
    names
        .map(|name| match ServerName::try_from(name) {
            Ok(ServerName::DnsName(_)) => Ok(name.to_ascii_lowercase()),
            _ => Err(format!("{name:?} is not a DNS name")),
        })
        .collect()
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.strip_prefix(':').unwrap_or("8081");
        if port.parse::<u16>().is_ok() && text.starts_with(':') {
            format!("has no IP: write 0.0.0.0:{port} for every interface")
        } else {
            "not IP:PORT, such as 0.0.0.0:8081 or [::1]:8081".to_owned()
        }
    })
}

/// A name or an IP, and a port. An IPv6 address needs brackets. gRPC's prefix `dns:///` is accepted.
pub(super) fn host_port(text: &str) -> Result<(String, u16), String> {
    const FORM: &str = "not HOST:PORT, such as xds.internal:18000";
    let place = text.strip_prefix("dns:///").unwrap_or(text);
    if place.contains("://") {
        return Err(format!("{FORM}: remove the scheme, such as https://"));
    }
    let (host, port) = place.rsplit_once(':').ok_or(FORM)?;
    let port = match integer::<u16>(port) {
        Ok(port) if port > 0 => port,
        _ => return Err(format!("{FORM}: the port is a number from 1 to 65535")),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    match (bare, ServerName::try_from(bare.unwrap_or(host))) {
        (None, Ok(_)) if host.contains(':') => Err(format!("{FORM}: an IP of version 6 needs brackets, [::1]:18000")),
        (_, Ok(_)) => Ok((bare.unwrap_or(host).to_owned(), port)),
        (_, Err(_)) => Err(format!("{FORM}: the host is neither a DNS name nor an IP")),
    }
}

/// Pairs of keys and values, separated by commas. No error prints a value.
pub(super) fn pairs(text: &str, between: char) -> Result<Vec<(String, String)>, String> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for pair in text.split(',') {
        let form = format!("not KEY{between}VALUE separated by commas");
        let (key, value) = pair.split_once(between).ok_or(form.as_str())?;
        if key.is_empty() {
            return Err(format!("{form}: a key is empty"));
        }
        if pairs.iter().any(|(other, _)| other == key) {
            return Err(format!("the key {:?} appears twice", shorten(key)));
        }
        pairs.push((key.to_owned(), value.to_owned()));
    }
    if pairs.len() > PAIRS_MAX {
        return Err(format!("{} keys: at most {PAIRS_MAX}", pairs.len()));
    }
    Ok(pairs)
}

/// Headers, separated by commas. Their names are in lower case.
pub(super) fn headers(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut headers = pairs(text, ':')?;
    for (name, value) in &mut headers {
        *name = name.trim().to_ascii_lowercase();
        *value = value.trim().to_owned();
        let shown = shorten(name);
        if name.starts_with("grpc-") || HeaderName::from_bytes(name.as_bytes()).is_err() {
            return Err(format!("{shown:?} is not the name of a header that can be set"));
        }
        if !value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            return Err(format!("the value of {shown:?} must be printable ASCII"));
        }
    }
    Ok(headers)
}

/// `on` or `off`, or another word of YAML for true or false.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    boolean(text).ok_or_else(|| "must be off or on".to_owned())
}

/// Digits only: `FromStr` alone would accept a plus sign.
pub(super) fn integer<T: FromStr>(text: &str) -> Result<T, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("not a whole number".to_owned());
    }
    text.parse().map_err(|_| "is too large".to_owned())
}

/// Letters, digits and other characters that a path need not encode. The router would read braces and colons as parameters.
pub(super) fn url_path(text: &str, bytes_max: usize) -> Result<(), String> {
    if !text.starts_with('/') {
        return Err("does not begin with a slash".to_owned());
    }
    if text.len() > bytes_max {
        return Err(format!("{} bytes: at most {bytes_max}", text.len()));
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || "/-._~".contains(*c))) {
        Some(c) => Err(format!("{c:?} is not allowed: letters, digits and / - . _ ~ can")),
        None => Ok(()),
    }
}

pub(super) fn header_name(text: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(is_allowed) {
        return Err(format!("not the name of a header: 1 to {NAME_BYTES_MAX} letters, digits and dashes"));
    }
    Ok(())
}

pub(super) fn name(text: &str, bytes_max: usize) -> Result<(), String> {
    if text.is_empty() {
        return Err("empty: remove the setting instead".to_owned());
    }
    if text.len() > bytes_max {
        return Err(format!("{} bytes: at most {bytes_max}", text.len()));
    }
    match text.chars().find(|c| !c.is_ascii_graphic()) {
        Some(bad) => Err(format!("must not hold {bad:?}")),
        None => Ok(()),
    }
}

/// Braces are refused: Redis Cluster would read them as a hash tag and put every key on one node.
pub(super) fn key_prefix(text: &str, bytes_max: usize) -> Result<(), String> {
    if text.len() > bytes_max {
        return Err(format!("{} bytes: at most {bytes_max}", text.len()));
    }
    let bad = text.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '{' | '}'));
    match bad {
        Some(bad) => Err(format!("must not hold {bad:?}")),
        None => Ok(()),
    }
}

/// Refuses words that are not a level, such as `inof`: `EnvFilter` would interpret them as targets, and nothing would
/// be logged. Also refuses targets that no crate can have, such as `info weir` in `info weir=debug`.
pub(super) fn log_level(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("empty: write {}", LOG_LEVELS.join(", ")));
    }
    for directive in text.split(',') {
        let level = LOG_LEVELS.iter().any(|level| level.eq_ignore_ascii_case(directive));
        let target = directive.split(['[', '=']).next().unwrap_or(directive);
        let target_ok = target.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-' | '.'));
        let legal = level || (target_ok && directive.contains('=') && EnvFilter::builder().parse(directive).is_ok());
        if !legal {
            return Err(format!(
                "{:?} is neither a level ({}) nor target=level",
                shorten(directive),
                LOG_LEVELS.join(", ")
            ));
        }
    }
    Ok(())
}

/// The URL of a Redis, without anything that could be a credential. Hides everything if the text is ambiguous.
fn redact(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let (place, query) = match rest.split_once('?') {
        Some((place, query)) => (place, Some(query)),
        None => (rest, None),
    };
    if scheme.contains('@') || query.is_some_and(|query| query.contains('@')) {
        return HIDDEN.to_owned();
    }
    let authority = place.split('/').next().unwrap_or(place);
    for host in authority.split(',') {
        let port = match host.rsplit_once(':') {
            Some((_, port)) if !host.ends_with(']') => port,
            _ => "",
        };
        let looks_like_password = host.starts_with(':') || port.contains(|c: char| !c.is_ascii_digit());
        if !place.contains('@') && looks_like_password {
            return HIDDEN.to_owned();
        }
    }
    let mut shown = scheme;
    match place.rsplit_once('@') {
        Some((_, host)) => {
            shown.push_str(HIDDEN);
            shown.push('@');
            shown.push_str(host);
        }
        None => shown.push_str(place),
    }
    if let Some(query) = query {
        // Shows all or none: an unescaped & in a password looks like the start of a parameter.
        let harmless = query.split('&').all(|parameter| {
            matches!(parameter.split_once('='), Some(("db" | "protocol", value))
                if value.len() <= 5 && value.bytes().all(|byte| byte.is_ascii_alphanumeric()))
        });
        shown.push('?');
        shown.push_str(if harmless { query } else { HIDDEN });
    }
    shown
}

/// At most [`SHOWN_CHARS_MAX`] characters of a text, for an error.
pub(super) fn shorten(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_makes_a_reader_panic(text in "\\PC*") {
            let _ = text.parse::<RedisUrl>();
            let _ = log_level(&text);
            let _ = address(&text);
        }

        #[test]
        fn a_password_is_never_shown(password in "[A-Za-z0-9/?#:@&=%]{6,20}") {
            for url in [
                format!("redis://user:{password}@cache:6379/3"),
                format!("redis://:{password}@cache"),
                format!("redis+unix:///s?db=1&pass={password}"),
                format!(":{password}@cache"),
            ] {
                let shown = redact(&url);
                prop_assert!(!shown.contains(&password), "{} shows {}", url, shown);
            }
        }
    }

    #[test]
    fn urls_as_they_are_shown() {
        let cases = [
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("redis://me:pw@h:1/2", "redis://***@h:1/2"),
            ("redis://h/1?protocol=resp3", "redis://h/1?protocol=resp3"),
            ("redis+unix:///run/r.sock?db=2&user=me&pass=pw", "redis+unix:///run/r.sock?***"),
            ("unix:///s?db=2", "unix:///s?db=2"),
            ("unix:///s?pass=a&Bcdef=g", "unix:///s?***"),
            ("unix:///s?pass=a@b", "***"),
            ("redis://:p?w@h", "***"),
            ("me:pw@h:6379", "***@h:6379"),
            ("127.0.0.1:6379", "127.0.0.1:6379"),
            ("redis://[::1]/1", "redis://[::1]/1"),
            ("redis://:1234", "***"),
            ("rediss://me:p,w@one:1,two,[::1]:2/3", "rediss://***@one:1,two,[::1]:2/3"),
            ("redis://one:1,two,[::1]:2/3", "redis://one:1,two,[::1]:2/3"),
            ("redis://me:pw,two:1", "***"),
            ("redis://two:1,me:pw", "***"),
            ("redis://me:pw", "***"),
        ];
        for (url, shown) in cases {
            assert_eq!(redact(url), shown);
        }
    }

    #[test]
    fn urls_that_redis_would_misread_are_refused() {
        let cases = [
            ("127.0.0.1:6379", "not a Redis URL"),
            ("http://h", "not a Redis URL"),
            ("redis://h?db=3", "an unknown parameter"),
            ("redis://h/x", "invalid database number"),
            ("redis://h/-1", "below 0"),
            ("redis+unix://tmp/s.sock", "missing path"),
            ("redis://", "missing hostname"),
            ("redis://a,,b", "missing hostname"),
            ("redis://a,b:x", "not a Redis URL"),
            ("redis://a,0.0.0.0", "wildcard"),
            ("rediss://h/#insecure", "an unencoded #"),
            ("redis://a,b/x", "invalid database number"),
        ];
        for (url, why) in cases {
            let error = url.parse::<RedisUrl>().unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
        for url in ["redis://h", "unix:///s?db=1&pass=p", "redis://[::1]:1/0", "rediss://h"] {
            assert!(url.parse::<RedisUrl>().is_ok(), "{url}");
        }
        let many = |count: usize| format!("redis://{}", vec!["h"; count].join(","));
        assert!(many(HOSTS_MAX).parse::<RedisUrl>().is_ok());
        assert_eq!(many(HOSTS_MAX + 1).parse::<RedisUrl>().unwrap_err(), "33 hosts: at most 32");
    }

    #[test]
    fn several_hosts_share_what_stands_around_them() {
        let url: RedisUrl = "rediss://me:p%40,w@one:1,two,[::1]:2/3".parse().unwrap();
        let expected = [("one".to_owned(), 1), ("two".to_owned(), 9), ("::1".to_owned(), 2)];
        assert_eq!(url.places(9), expected);
        assert_eq!(url.expose(), "rediss://me:p%40,w@one:1/3");
        assert!(url.is_tls() && url.has_password());
        assert_eq!(url.database(), 3);
        let url: RedisUrl = "redis+unix:///run/r.sock?db=2".parse().unwrap();
        assert_eq!((url.places(9), url.database(), url.is_tls()), (vec![], 2, false));
    }

    #[test]
    fn log_levels_that_would_silence_the_log_are_refused() {
        for good in ["info", "WARN", "off", "weir=debug,tonic=warn", "info,weir_store=trace"] {
            assert_eq!(log_level(good), Ok(()), "{good}");
        }
        for bad in ["inof", "", "info,", "weir", "weir=debg", "info weir=debug"] {
            assert!(log_level(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn debug_hides_the_password_of_a_url() {
        let url: RedisUrl = "redis://:hunter2@h".parse().unwrap();
        assert_eq!(format!("{url:?}"), "redis://***@h");
        assert!(url.has_password());
    }
}
