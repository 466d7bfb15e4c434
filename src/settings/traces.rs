//! The settings of traces, and contradictions between them.
//!
//! Not here: the variables of OpenTelemetry (otel.rs), and the content of a span (telemetry/traces.rs).

use std::path::PathBuf;
use std::time::Duration;

use weir_engine::arith::Fraction;

use super::contradictions::ProblemList;
use super::group::{Entry, Group};
use super::setting::Preset::{Is, Unset};
use super::setting::{Kind, ms, secs};
use super::value::{self, FromText, Headers, NAME_BYTES_MAX};
use super::{Merged, Problem};

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
const PROPAGATORS: &[&str] = &["tracecontext", "b3", "none"];

pub(super) const ENDPOINT: &str = "tracing.otlp.endpoint";
const TLS_FILES: [&str; 3] = ["tracing.otlp.tls.ca_file", "tracing.otlp.tls.cert_file", "tracing.otlp.tls.key_file"];
const ATTRIBUTES: &str = "tracing.resource_attributes";
/// Attributes that have their own settings.
pub(super) const OWN_ATTRIBUTES: [(&str, &str); 3] = [
    ("service.name", "tracing.service_name"),
    ("service.namespace", "tracing.service_namespace"),
    ("service.instance.id", "tracing.service_instance_id"),
];

settings! {
    /// Which decisions are traced, and where the spans go.
    pub struct Tracing {
        /// where the spans of decisions go: nowhere, or to a collector by OTLP
        enabled: bool = "tracing.exporter", Kind::Choice(&["none", "otlp"]), Is("none"), |text| Ok(text == "otlp");
        /// The collector.
        otlp: Otlp;
        /// service.name of all spans
        service_name: String = "tracing.service_name", Kind::Name { bytes_max: NAME_BYTES_MAX }, Is("weir");
        /// service.namespace of all spans
        service_namespace: Option<String> = "tracing.service_namespace",
            Kind::Name { bytes_max: NAME_BYTES_MAX }, Unset;
        /// service.instance.id of all spans; none: a random UUID for each start
        service_instance_id: Option<String> = "tracing.service_instance_id",
            Kind::Name { bytes_max: NAME_BYTES_MAX }, Unset;
        /// other attributes of the resource: key=value separated by commas
        attributes: Vec<(String, String)> = "tracing.resource_attributes",
            Kind::Pairs { between: '=' }, Unset, |text| value::pairs(text, '=');
        /// Which decisions are sampled.
        sampler: Sampler;
        /// the headers that the caller's context comes from
        propagators: PropagatorFormats = "tracing.propagators", Kind::Words(PROPAGATORS), Is("tracecontext,b3");
        /// whether spans hold the values of descriptors beside their keys
        descriptor_values: bool = "tracing.descriptor_values", Kind::Switch, Is("off");
        /// spans that may wait for the collector; more are dropped and counted
        queue: usize = "tracing.queue", Kind::integer(1, 1_000_000, "spans"), Is("2048");
        /// the most spans in one request to the collector
        batch_max: usize = "tracing.batch_max", Kind::integer(1, 65_536, "spans"), Is("512");
        /// how long spans wait for a full batch
        delay: Duration = "tracing.delay", Kind::duration(ms(1), secs(600)), Is("5s");
        /// how long one batch may take until it is dropped
        export_timeout: Duration = "tracing.export_timeout", Kind::duration(ms(10), secs(600)), Is("30s");
    }
}

settings! {
    /// A collector that accepts OTLP. Its URL is unchanged.
    pub struct Otlp {
        /// the collector; none: port 4317 of localhost with grpc, 4318 with http/protobuf; without a path /v1/traces
        endpoint: Option<String> = "tracing.otlp.endpoint", Kind::Url, Unset;
        /// how spans are sent
        is_grpc: bool = "tracing.otlp.protocol",
            Kind::Choice(&["grpc", "http/protobuf"]), Is("http/protobuf"), |text| Ok(text == "grpc");
        /// headers of each request to the collector, such as a token: name:value separated by commas
        headers: Headers = "tracing.otlp.headers", Kind::Headers, Unset;
        /// how long one request to the collector may take, attempts included
        timeout: Duration = "tracing.otlp.timeout", Kind::duration(ms(10), secs(300)), Is("10s");
        /// how requests to the collector are compressed
        gzip: bool = "tracing.otlp.compression", Kind::Choice(&["none", "gzip"]), Is("none"), |text| Ok(text == "gzip");
        /// the authorities to trust, in PEM, in place of those of the system
        ca_file: Option<PathBuf> = "tracing.otlp.tls.ca_file", Kind::File, Unset;
        /// the certificate to show to the collector, in PEM, with its intermediates; needs the key
        cert_file: Option<PathBuf> = "tracing.otlp.tls.cert_file", Kind::File, Unset;
        /// the key of that certificate, in PEM
        key_file: Option<PathBuf> = "tracing.otlp.tls.key_file", Kind::File, Unset;
    }
}

/// Which decisions are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// Whether the caller's sampling decision is kept.
    pub is_parent_based: bool,
    /// The ratio of sampled decisions among the others.
    pub ratio: Fraction,
}

/// Two settings define one sampler.
impl Group for Sampler {
    const ENTRIES: &'static [Entry] = entries! {
        /// which decisions are traced; parentbased: a caller's sampling decision has priority
        "tracing.sampler", Kind::Choice(SAMPLERS), Is("parentbased_traceidratio");
        /// the part of decisions that traceidratio traces
        "tracing.sample_ratio", Kind::Fraction, Is("1");
    };

    fn read(from: &Merged) -> Result<Self, Problem> {
        let sampler: String = from.read("tracing.sampler")?;
        let ratio = from.read("tracing.sample_ratio")?;
        let (is_parent_based, root) = match sampler.strip_prefix("parentbased_") {
            Some(root) => (true, root),
            None => (false, sampler.as_str()),
        };
        let ratio = match root {
            "always_on" => Fraction::percent(100),
            "always_off" => Fraction::percent(0),
            _ => ratio,
        };
        Ok(Self { is_parent_based, ratio })
    }
}

/// The headers that the caller's context is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropagatorFormats {
    /// `traceparent` is read.
    pub w3c: bool,
    /// `b3` and `x-b3-*` are read.
    pub b3: bool,
}

impl FromText for PropagatorFormats {
    fn from_text(text: &str) -> Result<Self, String> {
        let words = value::words(text, PROPAGATORS)?;
        Ok(Self { w3c: words.contains(&"tracecontext"), b3: words.contains(&"b3") })
    }
}

impl Tracing {
    /// Reports settings that are valid alone and contradict each other.
    pub(super) fn contradictions(&self, problems: &mut ProblemList<'_>) {
        if self.batch_max > self.queue {
            let reason = format!("a batch of {} is more than tracing.queue = {} holds", self.batch_max, self.queue);
            problems.add("tracing.batch_max", reason);
        }
        let [_, cert_file, key_file] = TLS_FILES;
        problems.certificate(cert_file, key_file);
        for (attribute, setting) in OWN_ATTRIBUTES {
            if self.attributes.iter().any(|(key, _)| key == attribute) {
                problems.add(ATTRIBUTES, format!("{attribute} is a setting by itself: {setting}"));
            }
        }
    }
}
