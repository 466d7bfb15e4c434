//! The xDS server of policies and the connection to it, from the variables of envoyproxy/ratelimit: a gRPC target,
//! `k=v` pairs, and a jitter factor for pauses.
//!
//! Not here: the source of the policies (envoy_ratelimit.rs), and the settings (settings/xds.rs).

use std::time::Duration;

use weir_text::spell;

use super::super::value::set;
use super::table::Form;
use super::{Mapping, go};

/// The default port of a gRPC target.
const PORT: &str = "443";
/// The longest wait before a retry, if only the first wait is given: envoyproxy/ratelimit's default.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Maps all variables about the xDS server.
pub(super) fn map(mapping: &mut Mapping<'_>) {
    let server = server(mapping.text("CONFIG_GRPC_XDS_SERVER_URL"));
    mapping.put(&["CONFIG_GRPC_XDS_SERVER_URL"], "policies.xds.server", &server);
    let start = if mapping.bool("FORCE_START_WITHOUT_INITIAL_CONFIG") { "on" } else { "off" };
    mapping.put(&["FORCE_START_WITHOUT_INITIAL_CONFIG"], "policies.xds.start_without_config", start);
    node(mapping);
    headers(mapping);
    pauses(mapping);
    message_size(mapping);
    if mapping.bool("CONFIG_GRPC_XDS_SERVER_USE_TLS") {
        tls(mapping);
    }
}

/// A gRPC target as `HOST:PORT`. Any other text is unchanged, and the setting refuses it.
fn server(target: &str) -> String {
    let place = ["dns:///", "passthrough:///", "dns:"].iter().find_map(|scheme| target.strip_prefix(scheme));
    let place = place.unwrap_or(target);
    match place.rsplit_once(':') {
        Some(("", port)) => format!("localhost:{port}"),
        // The last colon is part of an IPv6 address.
        Some(_) if place.ends_with(']') => format!("{place}:{PORT}"),
        Some(_) => place.to_owned(),
        None => format!("{place}:{PORT}"),
    }
}

fn node(mapping: &mut Mapping<'_>) {
    const ID: &str = "CONFIG_GRPC_XDS_NODE_ID";
    const METADATA: &str = "CONFIG_GRPC_XDS_NODE_METADATA";
    let mut id = mapping.text(ID).to_owned();
    if id.is_empty() {
        id = "default".to_owned();
        mapping.note(ID, "is empty: weir sends the node id \"default\"".to_owned());
    }
    mapping.put(&[ID], "policies.xds.node_id", &id);

    let Some(text) = mapping.some_text(METADATA).map(str::to_owned) else { return };
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    let mut skipped = 0_usize;
    for part in text.split(',') {
        match part.split_once('=') {
            Some((key, value)) if !key.is_empty() => set(&mut pairs, key, value),
            _ => skipped += 1,
        }
    }
    if skipped > 0 {
        let text = format!("has {skipped} of its parts without a key and an equals sign: weir does not send them");
        mapping.note(METADATA, text);
    }
    if !pairs.is_empty() {
        mapping.put(&[METADATA], "policies.xds.node_metadata", &joined(&pairs, '='));
    }
}

fn headers(mapping: &mut Mapping<'_>) {
    const HEADERS: &str = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
    let text = mapping.text(HEADERS).to_owned();
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for (name, value) in go::pairs(&text).unwrap_or_default() {
        set(&mut pairs, name, value);
    }
    if !pairs.is_empty() {
        mapping.put(&[HEADERS], "policies.xds.headers", &joined(&pairs, ':'));
    }
}

fn joined(pairs: &[(&str, &str)], between: char) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}{between}{value}")).collect();
    pairs.join(",")
}

fn pauses(mapping: &mut Mapping<'_>) {
    const RETRY: &str = "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL";
    const FIRST: &str = "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL";
    const MOST: &str = "XDS_CLIENT_BACKOFF_MAX_INTERVAL";
    const FACTOR: &str = "XDS_CLIENT_BACKOFF_RANDOM_FACTOR";
    const JITTER: &str = "XDS_CLIENT_BACKOFF_JITTER";
    if let Some(text) = length(mapping, RETRY, "policies.xds.connect_retry") {
        mapping.put(&[RETRY], "policies.xds.connect_retry", &spell(text));
    }
    let first = length(mapping, FIRST, "policies.xds.backoff.initial");
    let most = length(mapping, MOST, "policies.xds.backoff.max");
    if let (Some(first), Some(most)) = (first, most)
        && most < first
    {
        let text = format!("is less than {FIRST}: weir uses {} for both", spell(first));
        mapping.note(MOST, text);
    }
    // If only one of the two is set, weir's default of the other may contradict it.
    match (first, most) {
        (None, None) => {}
        (Some(first), most) => {
            mapping.put(&[FIRST], "policies.xds.backoff.initial", &spell(first));
            let most = most.unwrap_or(BACKOFF_MAX).max(first);
            mapping.put(&[MOST, FIRST], "policies.xds.backoff.max", &spell(most));
        }
        (None, Some(most)) => {
            mapping.put(&[MOST], "policies.xds.backoff.max", &spell(most));
            let ours = default_of("policies.xds.backoff.initial");
            if ours.is_some_and(|ours| ours > most) {
                mapping.put(&[MOST], "policies.xds.backoff.initial", &spell(most));
            }
        }
    }
    if mapping.given.contains_key(FACTOR) || mapping.given.contains_key(JITTER) {
        let percent = if mapping.bool(JITTER) { percent(mapping, FACTOR) } else { 0 };
        mapping.put(&[FACTOR, JITTER], "policies.xds.backoff.random_percent", &percent.to_string());
    }
}

/// A duration, if set, clamped to the bounds of its setting.
fn length(mapping: &mut Mapping<'_>, variable: &'static str, setting: &'static str) -> Option<Duration> {
    let text = mapping.given.get(variable)?.clone();
    let text = mapping.formed(variable, setting, Form::Duration, &text)?;
    weir_text::duration(&text).ok()
}

fn default_of(setting: &str) -> Option<Duration> {
    let ours = crate::Setting::find(setting)?;
    weir_text::duration(&ours.default_text()).ok()
}

/// The random part of a pause in percent, rounded.
fn percent(mapping: &mut Mapping<'_>, variable: &'static str) -> u8 {
    let asked = go::float(mapping.text(variable)).unwrap_or_default();
    let fitting = asked.clamp(0.0, 1.0);
    if !(0.0..=1.0).contains(&asked) {
        mapping.note(variable, format!("is used as {fitting}: randomness at most doubles a pause"));
    }
    // Two decimals, without the point.
    let digits = format!("{fitting:.2}").replace('.', "");
    digits.parse().unwrap_or_default()
}

fn message_size(mapping: &mut Mapping<'_>) {
    const SIZE: &str = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";
    const SETTING: &str = "policies.xds.max_message_bytes";
    let Some(text) = mapping.given.get(SIZE).cloned() else { return };
    if mapping.integer(SIZE) <= 0 {
        // Other texts were refused before.
        return mapping.note(SIZE, format!("{text} keeps weir's own bound"));
    }
    if let Some(bytes) = mapping.formed(SIZE, SETTING, Form::Integer, &text) {
        mapping.put(&[SIZE], SETTING, &bytes);
    }
}

fn tls(mapping: &mut Mapping<'_>) {
    const CERTIFICATE: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_CERT";
    const KEY: &str = "CONFIG_GRPC_XDS_CLIENT_TLS_KEY";
    const AUTHORITIES: &str = "CONFIG_GRPC_XDS_SERVER_TLS_CACERT";
    const NAME: &str = "CONFIG_GRPC_XDS_SERVER_TLS_SAN";
    mapping.put(&["CONFIG_GRPC_XDS_SERVER_USE_TLS"], "policies.xds.tls.enabled", "on");
    mapping.put(&[], "policies.xds.tls.system_store", "always");
    for (variable, setting) in [(AUTHORITIES, "policies.xds.tls.ca_file"), (NAME, "policies.xds.tls.server_name")] {
        if let Some(text) = mapping.some_text(variable).map(str::to_owned) {
            mapping.put(&[variable], setting, &text);
        }
    }
    let certificate = mapping.some_text(CERTIFICATE).map(str::to_owned);
    let key = mapping.some_text(KEY).map(str::to_owned);
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            mapping.put(&[CERTIFICATE], "policies.xds.tls.cert_file", &certificate);
            mapping.put(&[KEY], "policies.xds.tls.key_file", &key);
        }
        (Some(_), None) => mapping.note(CERTIFICATE, format!("has no effect: {KEY} is not set")),
        (None, Some(_)) => mapping.note(KEY, format!("has no effect: {CERTIFICATE} is not set")),
        (None, None) => {}
    }
}
