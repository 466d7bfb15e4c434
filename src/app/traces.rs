//! Traces from the settings: the queue, its exporter, and their metrics.
//!
//! Not here: what is traced (telemetry/traces.rs), and the collector (otlp.rs).

use std::sync::Arc;

use opentelemetry_sdk::Resource;
use weir_settings::Tracing;
use weir_telemetry::metrics::Metrics;
use weir_telemetry::otlp::SpanSender;
use weir_telemetry::traces::{Batches, Exporting, Options, Sampler, Spans, Tracer};

use super::{AppError, certificates, otlp};

const PATH: &str = "/v1/traces";

/// The tracer and the exporter. None if traces are off. Reads the TLS files once.
/// Fails when the settings cannot be used: a file, or the URL.
pub(super) async fn open(
    settings: &Tracing,
    resource: &Resource,
    metrics: &Metrics,
) -> Result<Option<(Arc<Tracer>, Exporting<SpanSender>)>, AppError> {
    if !settings.enabled {
        return Ok(None);
    }
    let url = otlp::url(settings.otlp.endpoint.as_deref(), settings.otlp.is_grpc, PATH)
        .map_err(|problem| AppError::Traces(format!("tracing.otlp.endpoint: {problem}")))?;
    let collector = otlp::open(&settings.otlp, url.clone()).await?;
    if let Some(tls) = &collector.tls {
        certificates::show("traces", tls.validity(), metrics);
    }
    let exporter = collector.spans(resource).map_err(|error| AppError::Traces(error.to_string()))?;
    let batches = Batches {
        queue: settings.queue,
        batch_max: settings.batch_max,
        delay: settings.delay,
        export_timeout: settings.export_timeout,
    };
    let (spans, exporting) = Spans::new(batches, exporter, metrics);
    let options = Options {
        propagators: settings.propagators,
        sampler: Sampler::ratio(settings.sampler.ratio, settings.sampler.is_parent_based),
        descriptor_values: settings.descriptor_values,
    };
    let protocol = if settings.otlp.is_grpc { "grpc" } else { "http/protobuf" };
    let collector = otlp::server(&url);
    tracing::info!(collector, protocol, sample_ratio = ?settings.sampler.ratio, "exporting traces");
    Ok(Some((Arc::new(Tracer::new(options, spans)), exporting)))
}
