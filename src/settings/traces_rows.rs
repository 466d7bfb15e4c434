//! The rows of the settings' table that begin with `tracing`.
//!
//! Not here: what they become (traces.rs).

use std::time::Duration;

use super::row::{Kind, Preset, Setting};
use super::value::NAME_BYTES_MAX;

/// The values of `tracing.exporter`.
const EXPORTERS: &[&str] = &["none", "otlp"];
/// The values of `tracing.otlp.protocol`.
const PROTOCOLS: &[&str] = &["grpc", "http/protobuf"];
/// The values of `tracing.otlp.compression`.
const COMPRESSIONS: &[&str] = &["none", "gzip"];
/// The values of `tracing.sampler`, by the names that OpenTelemetry gives them.
const SAMPLERS: &[&str] = &[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];
/// The values of `tracing.propagators`.
pub(super) const PROPAGATORS: &[&str] = &["tracecontext", "b3", "none"];

pub(super) const ENDPOINT: &str = "tracing.otlp.endpoint";
pub(super) const TLS_FILES: [&str; 3] =
    ["tracing.otlp.tls.ca_file", "tracing.otlp.tls.cert_file", "tracing.otlp.tls.key_file"];
pub(super) const ATTRIBUTES: &str = "tracing.resource_attributes";
/// Attributes that are settings by themselves.
pub(super) const OWN_ATTRIBUTES: [(&str, &str); 3] = [
    ("service.name", "tracing.service_name"),
    ("service.namespace", "tracing.service_namespace"),
    ("service.instance.id", "tracing.service_instance_id"),
];

/// The rows of the table that begin with `tracing`.
pub(super) const ROWS: &[Setting] = &[
    Setting {
        name: "tracing.exporter",
        kind: Kind::Choice(EXPORTERS),
        default: Preset::Is("none"),
        about: "where the spans of decisions go: nowhere, or to a collector by OTLP",
    },
    Setting {
        name: "tracing.otlp.endpoint",
        kind: Kind::Url,
        default: Preset::Unset,
        about: "the collector; none: port 4317 of localhost with grpc, 4318 with http/protobuf; without a path /v1/traces",
    },
    Setting {
        name: "tracing.otlp.protocol",
        kind: Kind::Choice(PROTOCOLS),
        default: Preset::Is("http/protobuf"),
        about: "how spans are sent",
    },
    Setting {
        name: "tracing.otlp.headers",
        kind: Kind::Headers,
        default: Preset::Unset,
        about: "headers of each request to the collector, such as a token: name:value by commas",
    },
    Setting {
        name: "tracing.otlp.timeout",
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(300) },
        default: Preset::Is("10s"),
        about: "how long one request to the collector may take, attempts included",
    },
    Setting {
        name: "tracing.otlp.compression",
        kind: Kind::Choice(COMPRESSIONS),
        default: Preset::Is("none"),
        about: "how requests to the collector are compressed",
    },
    Setting {
        name: "tracing.otlp.tls.ca_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the authorities to trust, in PEM, in place of those of the system",
    },
    Setting {
        name: "tracing.otlp.tls.cert_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the certificate to show to the collector, in PEM, with its intermediates; needs the key",
    },
    Setting {
        name: "tracing.otlp.tls.key_file",
        kind: Kind::File,
        default: Preset::Unset,
        about: "the key of that certificate, in PEM",
    },
    Setting {
        name: "tracing.service_name",
        kind: Kind::Name { bytes_max: NAME_BYTES_MAX },
        default: Preset::Is("weir"),
        about: "service.name of all spans",
    },
    Setting {
        name: "tracing.service_namespace",
        kind: Kind::Name { bytes_max: NAME_BYTES_MAX },
        default: Preset::Unset,
        about: "service.namespace of all spans",
    },
    Setting {
        name: "tracing.service_instance_id",
        kind: Kind::Name { bytes_max: NAME_BYTES_MAX },
        default: Preset::Unset,
        about: "service.instance.id of all spans; none: a random UUID for each start",
    },
    Setting {
        name: "tracing.resource_attributes",
        kind: Kind::Pairs { between: '=' },
        default: Preset::Unset,
        about: "other attributes of the resource: key=value by commas",
    },
    Setting {
        name: "tracing.sampler",
        kind: Kind::Choice(SAMPLERS),
        default: Preset::Is("parentbased_traceidratio"),
        about: "which decisions are traced; parentbased: the caller's decision stands where it made one",
    },
    Setting {
        name: "tracing.sample_ratio",
        kind: Kind::Fraction,
        default: Preset::Is("1"),
        about: "the part of decisions that traceidratio traces",
    },
    Setting {
        name: "tracing.propagators",
        kind: Kind::Words(PROPAGATORS),
        default: Preset::Is("tracecontext,b3"),
        about: "the headers that the caller's context comes from",
    },
    Setting {
        name: "tracing.descriptor_values",
        kind: Kind::Switch,
        default: Preset::Is("off"),
        about: "whether spans hold the values of descriptors beside their keys",
    },
    Setting {
        name: "tracing.queue",
        kind: Kind::Integer { min: 1, max: 1_000_000, unit: "spans" },
        default: Preset::Is("2048"),
        about: "spans that may wait for the collector; more are dropped and counted",
    },
    Setting {
        name: "tracing.batch_max",
        kind: Kind::Integer { min: 1, max: 65_536, unit: "spans" },
        default: Preset::Is("512"),
        about: "spans in one request to the collector at most",
    },
    Setting {
        name: "tracing.delay",
        kind: Kind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(600) },
        default: Preset::Is("5s"),
        about: "how long spans wait for a full batch",
    },
    Setting {
        name: "tracing.export_timeout",
        kind: Kind::Duration { min: Duration::from_millis(10), max: Duration::from_secs(600) },
        default: Preset::Is("30s"),
        about: "how long one batch may take until it is dropped",
    },
];
