//! The rows of the settings' table that begin with `policies.xds`.
//!
//! Not here: what they become (xds.rs).

use std::time::Duration;

use super::row::{Kind, Preset, SYSTEM_STORE, Setting};
use super::value::NAME_BYTES_MAX;

/// The rows of the table that begin with `policies.xds`.
pub(super) const ROWS: &[Setting] = &[
    Setting {
        name: "policies.xds.server",
        kind: Kind::HostPort,
        default: Preset::Unset,
        about: "the control plane's discovery service; needed with policies.source = xds",
    },
    Setting {
        name: "policies.xds.node_id",
        kind: Kind::Name { bytes_max: NAME_BYTES_MAX },
        default: Preset::Is("weir"),
        about: "the name by which the control plane knows this replica",
    },
    Setting {
        name: "policies.xds.node_metadata",
        kind: Kind::Pairs { between: '=' },
        default: Preset::Unset,
        about: "metadata by which the control plane can choose policies: key=value by commas",
    },
    Setting {
        name: "policies.xds.headers",
        kind: Kind::Headers,
        default: Preset::Unset,
        about: "headers of the stream, such as a token: name:value by commas",
    },
    Setting {
        name: "policies.xds.start_without_config",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "on: listeners open at once, and decisions are UNAVAILABLE until there are policies",
    },
    Setting {
        name: "policies.xds.tls.enabled",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "whether the connection has TLS",
    },
    Setting {
        name: "policies.xds.tls.ca_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the authorities to trust, in PEM, in place of those of the system",
    },
    Setting {
        name: "policies.xds.tls.system_store",
        kind: Kind::Choice(SYSTEM_STORE),
        default: Preset::Is("fallback"),
        about: "when the system's authorities are trusted: without policies.xds.tls.ca_file, or always",
    },
    Setting {
        name: "policies.xds.tls.cert_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the certificate to show to the control plane, in PEM, with its intermediates; needs the key",
    },
    Setting {
        name: "policies.xds.tls.key_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the key of that certificate, in PEM",
    },
    Setting {
        name: "policies.xds.tls.server_name",
        kind: Kind::ServerName,
        default: Preset::Unset,
        about: "the name that the control plane's certificate must have, in place of the host",
    },
    Setting {
        name: "policies.xds.connect_timeout",
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(60) },
        default: Preset::Is("5s"),
        about: "how long opening the connection may take, TLS included",
    },
    Setting {
        name: "policies.xds.connect_retry",
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(3600) },
        default: Preset::Is("3s"),
        about: "the longest pause after a connection that could not be made; the first is 250ms",
    },
    Setting {
        name: "policies.xds.backoff.initial",
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(3600) },
        default: Preset::Is("1s"),
        about: "the pause after a stream that ended",
    },
    Setting {
        name: "policies.xds.backoff.max",
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(3600) },
        default: Preset::Is("30s"),
        about: "the longest pause, where streams end again and again without a response",
    },
    Setting {
        name: "policies.xds.backoff.random_percent",
        kind: Kind::Integer { min: 0, max: 100, unit: "percent" },
        default: Preset::Is("50"),
        about: "by how much a pause is longer or shorter at random, so that replicas do not move in step",
    },
    Setting {
        name: "policies.xds.max_message_bytes",
        kind: Kind::Integer { min: 1024, max: 268_435_456, unit: "bytes" },
        default: Preset::Is("33554432"),
        about: "the largest response of the control plane",
    },
    Setting {
        name: "policies.xds.keepalive.interval",
        kind: Kind::Duration { min: Duration::from_secs(1), max: Duration::from_secs(86_400) },
        default: Preset::Is("6m"),
        about: "how long a connection is idle before an HTTP/2 PING; many servers end one that sends more often than every 5m",
    },
    Setting {
        name: "policies.xds.keepalive.timeout",
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(300) },
        default: Preset::Is("20s"),
        about: "how long the answer to that PING may take",
    },
];

pub(super) const SERVER: &str = "policies.xds.server";
/// The one of TLS that has a default.
pub(super) const TRUST: &str = "policies.xds.tls.system_store";
pub(super) const TLS_FILES: [&str; 4] = [
    "policies.xds.tls.ca_file",
    "policies.xds.tls.cert_file",
    "policies.xds.tls.key_file",
    "policies.xds.tls.server_name",
];
