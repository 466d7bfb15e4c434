//! Which decisions are traced, where the spans go, and contradictions between these settings.
//!
//! Not here: the variables of OpenTelemetry (config/otel.rs), and what a span holds (telemetry/traces.rs).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use weir_engine::arith::Fraction;
use weir_text::duration;

use super::contradictions::ProblemList;
use super::traces_rows::{ATTRIBUTES, ENDPOINT, OWN_ATTRIBUTES, PROPAGATORS, TLS_FILES};
use super::value::{self};
use super::{HIDDEN, Merged, Problem};

/// Which decisions are traced, and where the spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracing {
    /// Whether any are.
    pub enabled: bool,
    /// The collector.
    pub otlp: Otlp,
    /// `service.name`.
    pub service_name: String,
    /// `service.namespace`.
    pub service_namespace: Option<String>,
    /// `service.instance.id`; random if there is none.
    pub service_instance_id: Option<String>,
    /// All other attributes of the resource.
    pub attributes: Vec<(String, String)>,
    /// Which decisions are sampled.
    pub sampler: Sampler,
    /// `traceparent` is read.
    pub w3c: bool,
    /// `b3` and `x-b3-*` are read.
    pub b3: bool,
    /// Spans hold the values of descriptors.
    pub descriptor_values: bool,
    /// The most spans that wait for the collector.
    pub queue: usize,
    /// The most spans of one batch.
    pub batch_max: usize,
    /// How long spans wait for more.
    pub delay: Duration,
    /// How long one batch may take.
    pub export_timeout: Duration,
}

/// A collector that takes OTLP.
#[derive(Clone, PartialEq, Eq)]
pub struct Otlp {
    /// Its URL, as written.
    pub endpoint: Option<String>,
    /// By gRPC, in place of HTTP.
    pub is_grpc: bool,
    /// Headers of each request, names in lower case. May hold secrets.
    pub headers: Vec<(String, String)>,
    /// How long one request may take.
    pub timeout: Duration,
    /// Whether requests are compressed by gzip.
    pub gzip: bool,
    /// The authorities to trust, in place of those of the system.
    pub ca_file: Option<PathBuf>,
    /// The client's certificate. Not without the key.
    pub cert_file: Option<PathBuf>,
    /// Its key. Not without the certificate.
    pub key_file: Option<PathBuf>,
}

/// Which decisions are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// The caller's decision stands where it made one.
    pub is_parent_based: bool,
    /// The part of the others.
    pub ratio: Fraction,
}

impl Tracing {
    pub(super) fn read(from: &Merged) -> Result<Self, Problem> {
        let sampler = from.value("tracing.sampler", |text| Ok(text.to_owned()))?;
        let ratio: Fraction = from.value("tracing.sample_ratio", str::parse)?;
        let (is_parent_based, root) = match sampler.strip_prefix("parentbased_") {
            Some(root) => (true, root),
            None => (false, sampler.as_str()),
        };
        let ratio = match root {
            "always_on" => Fraction::percent(100),
            "always_off" => Fraction::percent(0),
            _ => ratio,
        };
        let propagators = from.value("tracing.propagators", |text| value::words(text, PROPAGATORS))?;
        Ok(Self {
            enabled: from.value("tracing.exporter", |text| Ok(text == "otlp"))?,
            otlp: Otlp::read(from)?,
            service_name: from.value("tracing.service_name", |text| Ok(text.to_owned()))?,
            service_namespace: from.optional("tracing.service_namespace"),
            service_instance_id: from.optional("tracing.service_instance_id"),
            attributes: from.given(ATTRIBUTES, |text| value::pairs(text, '='))?.unwrap_or_default(),
            sampler: Sampler { is_parent_based, ratio },
            w3c: propagators.contains(&"tracecontext"),
            b3: propagators.contains(&"b3"),
            descriptor_values: from.value("tracing.descriptor_values", value::switch)?,
            queue: from.value("tracing.queue", value::integer)?,
            batch_max: from.value("tracing.batch_max", value::integer)?,
            delay: from.value("tracing.delay", duration)?,
            export_timeout: from.value("tracing.export_timeout", duration)?,
        })
    }

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

impl Otlp {
    fn read(from: &Merged) -> Result<Self, Problem> {
        let [ca_file, cert_file, key_file] = TLS_FILES;
        Ok(Self {
            endpoint: from.optional(ENDPOINT),
            is_grpc: from.value("tracing.otlp.protocol", |text| Ok(text == "grpc"))?,
            headers: from.given("tracing.otlp.headers", value::headers)?.unwrap_or_default(),
            timeout: from.value("tracing.otlp.timeout", duration)?,
            gzip: from.value("tracing.otlp.compression", |text| Ok(text == "gzip"))?,
            ca_file: from.path(ca_file),
            cert_file: from.path(cert_file),
            key_file: from.path(key_file),
        })
    }
}

/// Without the values of headers.
impl fmt::Debug for Otlp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<(&str, &str)> = self.headers.iter().map(|(name, _)| (name.as_str(), HIDDEN)).collect();
        f.debug_struct("Otlp")
            .field("endpoint", &self.endpoint)
            .field("is_grpc", &self.is_grpc)
            .field("headers", &headers)
            .field("timeout", &self.timeout)
            .field("gzip", &self.gzip)
            .field("ca_file", &self.ca_file)
            .field("cert_file", &self.cert_file)
            .field("key_file", &self.key_file)
            .finish()
    }
}
