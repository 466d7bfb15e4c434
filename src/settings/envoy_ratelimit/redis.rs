//! The address and login of Redis from envoyproxy/ratelimit's forms: a host with its port, the path of a socket, a URL, or a
//! list of them for sentinels and clusters.

use sha2::{Digest as _, Sha256};
use weir_text::{hex, percent_encoded};

use super::Mapping;
use crate::KEY_PREFIX_BYTES_MAX;

/// The most connections of one core: the bound of `redis.pool_size`.
const POOL_MAX: i64 = 64;
/// A longer key prefix is replaced by this many of its bytes and a hash.
const PREFIX_BYTES_KEPT: usize = 31;
/// The length of that hash, in bytes.
const PREFIX_HASH_BYTES: usize = 16;

/// The names of the variables and settings of one Redis.
struct Names {
    socket_type: &'static str,
    kind: &'static str,
    url: &'static str,
    auth: &'static str,
    tls: &'static str,
    sentinel_auth: &'static str,
    to_url: &'static str,
    to_topology: &'static str,
    to_login: [&'static str; 2],
    to_master: &'static str,
    to_sentinel_login: [&'static str; 2],
}

const FIRST: Names = Names {
    socket_type: "REDIS_SOCKET_TYPE",
    kind: "REDIS_TYPE",
    url: "REDIS_URL",
    auth: "REDIS_AUTH",
    tls: "REDIS_TLS",
    sentinel_auth: "REDIS_SENTINEL_AUTH",
    to_url: "redis.url",
    to_topology: "redis.topology",
    to_login: ["redis.username", "redis.password"],
    to_master: "redis.sentinel.master",
    to_sentinel_login: ["redis.sentinel.username", "redis.sentinel.password"],
};

const PER_SECOND: Names = Names {
    socket_type: "REDIS_PERSECOND_SOCKET_TYPE",
    kind: "REDIS_PERSECOND_TYPE",
    url: "REDIS_PERSECOND_URL",
    auth: "REDIS_PERSECOND_AUTH",
    tls: "REDIS_PERSECOND_TLS",
    sentinel_auth: "REDIS_PERSECOND_SENTINEL_AUTH",
    to_url: "redis.per_second.url",
    to_topology: "redis.per_second.topology",
    to_login: ["redis.per_second.username", "redis.per_second.password"],
    to_master: "redis.per_second.sentinel.master",
    to_sentinel_login: ["redis.per_second.sentinel.username", "redis.per_second.sentinel.password"],
};

/// Maps all variables about Redis.
pub(super) fn map(mapping: &mut Mapping<'_>) {
    match mapping.text("BACKEND_TYPE") {
        "redis" | "" => {}
        "memcache" => {
            let reason = "memcache: weir has no Memcached backend. Set REDIS_URL, or unset BACKEND_TYPE and REDIS_URL \
                          to keep the limits in weir's own memory";
            return mapping.layer.refuse("BACKEND_TYPE", reason);
        }
        other => {
            let reason = format!("{other:?}: must be redis");
            return mapping.layer.refuse("BACKEND_TYPE", &reason);
        }
    }
    key_prefix(mapping);
    pool(mapping);
    if mapping.ours.contains("redis.url") {
        // Parts of two addresses cannot be combined: if weir's own settings name the Redis, the variables have no
        // effect.
        mapping.put(&[], "store", "redis");
        return;
    }
    if mapping.some_text("REDIS_URL").is_none() {
        mapping.put(&[], "store", "memory");
        if !mapping.ours.contains("store") {
            let text = "is unset: weir keeps the limits in its own memory. Replicas do not share them, and a restart \
                        forgets them";
            mapping.note("REDIS_URL", text.to_owned());
        }
        return;
    }
    mapping.put(&["REDIS_URL"], "store", "redis");
    let mut is_tls = place(mapping, &FIRST);
    if mapping.bool("REDIS_PERSECOND") {
        is_tls |= place(mapping, &PER_SECOND);
    }
    if is_tls {
        tls(mapping);
    }
}

/// Maps one Redis. Returns whether it uses TLS.
fn place(mapping: &mut Mapping<'_>, names: &Names) -> bool {
    let text = mapping.text(names.url).to_owned();
    let is_tls = mapping.bool(names.tls)
        || mapping.text(names.socket_type).eq_ignore_ascii_case("tls")
        || text.contains("rediss://");
    let socket_type = mapping.text(names.socket_type).to_ascii_lowercase();
    if !["unix", "tcp", "tls", ""].contains(&socket_type.as_str()) {
        let reason = format!("{socket_type:?}: must be unix, tcp or tls");
        mapping.layer.refuse(names.socket_type, &reason);
        return is_tls;
    }
    let hosts: Vec<&str> = text.split(',').map(str::trim).collect();
    let (topology, hosts, master) = match mapping.text(names.kind).to_ascii_lowercase().as_str() {
        "single" | "" => ("single", &hosts[..], None),
        "cluster" => ("cluster", &hosts[..], None),
        "sentinel" => match hosts.split_first() {
            Some((master, sentinels)) if !sentinels.is_empty() => ("sentinel", sentinels, Some(*master)),
            _ => {
                let reason =
                    "SENTINEL needs the name of the master and one sentinel or more: master,HOST:PORT,HOST:PORT";
                mapping.layer.refuse(names.url, reason);
                return is_tls;
            }
        },
        other => {
            let reason = format!("{other:?}: must be SINGLE, SENTINEL or CLUSTER");
            mapping.layer.refuse(names.kind, &reason);
            return is_tls;
        }
    };
    mapping.put(&[names.url], names.to_url, &url(hosts, is_tls));
    mapping.put(&[names.kind, names.url], names.to_topology, topology);
    login(mapping, names.auth, names.to_login);
    if let Some(master) = master {
        mapping.put(&[names.url], names.to_master, master);
        login(mapping, names.sentinel_auth, names.to_sentinel_login);
    }
    is_tls
}

/// The URL of these hosts, or of one socket, in weir's form.
fn url(hosts: &[&str], is_tls: bool) -> String {
    if let [only] = hosts {
        if only.starts_with("unix://") || only.starts_with("redis+unix://") {
            return (*only).to_owned();
        }
        if only.starts_with(['/', '.']) {
            let path = std::path::absolute(only).unwrap_or_else(|_| only.into());
            return format!("redis+unix://{}", percent_encoded(&path.to_string_lossy(), |byte| byte == b'/'));
        }
    }
    let mut login = "";
    let mut tail = "";
    let mut places = Vec::new();
    for host in hosts {
        let bare = host.strip_prefix("redis://").or_else(|| host.strip_prefix("rediss://"));
        let Some(bare) = bare else {
            places.push(host_and_port(host));
            continue;
        };
        let (authority, rest) = bare.split_at(bare.find(['/', '?']).unwrap_or(bare.len()));
        let (who, place) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        if login.is_empty() {
            login = who;
        }
        if tail.is_empty() {
            tail = rest;
        }
        places.push(host_and_port(place));
    }
    let scheme = if is_tls { "rediss" } else { "redis" };
    format!("{scheme}://{login}{}{tail}", places.join(","))
}

/// As in Go, `:6379` means this machine.
fn host_and_port(text: &str) -> String {
    if text.starts_with(':') { format!("localhost{text}") } else { text.to_owned() }
}

/// `PASSWORD`, or `USER:PASSWORD` up to the first colon.
fn login(mapping: &mut Mapping<'_>, variable: &'static str, [username, password]: [&'static str; 2]) {
    let Some(text) = mapping.some_text(variable).map(str::to_owned) else { return };
    let file = format!("{password}_file");
    if mapping.ours.contains(password) || mapping.ours.contains(file.as_str()) {
        return;
    }
    let (user, secret) = text.split_once(':').map_or((None, text.as_str()), |(user, secret)| (Some(user), secret));
    if let Some(user) = user.filter(|user| !user.is_empty()) {
        mapping.put(&[variable], username, user);
    }
    mapping.put(&[variable], password, secret);
}

fn tls(mapping: &mut Mapping<'_>) {
    for (variable, setting) in [
        ("REDIS_TLS_CACERT", "redis.tls.ca_file"),
        ("REDIS_TLS_CLIENT_CERT", "redis.tls.cert_file"),
        ("REDIS_TLS_CLIENT_KEY", "redis.tls.key_file"),
    ] {
        if let Some(path) = mapping.some_text(variable).map(str::to_owned) {
            mapping.put(&[variable], setting, &path);
        }
    }
    mapping.put(&[], "redis.tls.system_store", "always");
    if mapping.bool("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION") {
        mapping.put(&["REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"], "redis.tls.skip_hostname_verification", "on");
    }
}

fn pool(mapping: &mut Mapping<'_>) {
    const SIZES: [&str; 2] = ["REDIS_POOL_SIZE", "REDIS_PERSECOND_POOL_SIZE"];
    let given = SIZES.into_iter().filter(|name| mapping.given.contains_key(name));
    let Some(size) = given.map(|name| mapping.integer(name)).max() else { return };
    let cores = i64::try_from(mapping.machine.cores).unwrap_or(i64::MAX).max(1);
    // Rounded down: weir opens no more connections than configured, except that each core has at least one.
    let each = (size / cores).clamp(1, POOL_MAX);
    mapping.put(&SIZES, "redis.pool_size", &each.to_string());
}

fn key_prefix(mapping: &mut Mapping<'_>) {
    let Some(text) = mapping.some_text("CACHE_KEY_PREFIX") else { return };
    let mut prefix = percent_encoded(text, |byte| byte.is_ascii_graphic() && !b"{}%".contains(&byte));
    if prefix.len() > KEY_PREFIX_BYTES_MAX {
        let hash = Sha256::digest(text.as_bytes());
        prefix.truncate(PREFIX_BYTES_KEPT);
        prefix.push('~');
        prefix.push_str(&hex(&hash[..PREFIX_HASH_BYTES]));
    }
    if prefix != text {
        let text = format!(
            "is {prefix:?} in Redis: weir's keys begin with at most {KEY_PREFIX_BYTES_MAX} bytes, without braces and blanks"
        );
        mapping.note("CACHE_KEY_PREFIX", text);
    }
    mapping.put(&["CACHE_KEY_PREFIX"], "redis.key_prefix", &prefix);
}
