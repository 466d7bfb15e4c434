//! Metrics from the settings: which are shown, the numbers of other parts, and where they are sent.

use std::sync::{Arc, Weak};

use opentelemetry_sdk::Resource;
use strum::VariantArray as _;
use weir_http2::{CODES, CloseReason, Memory};
use weir_limiter::deny_cache::DenyCache;
use weir_settings::{Program, Settings};
use weir_store::Store;
use weir_telemetry::mapper::Mapper;
use weir_telemetry::metrics::{Metrics, Options};
use weir_telemetry::metrics_export::MetricsExporter;
use weir_telemetry::shed::{ShedCounts, ShedReason};
use weir_telemetry::tap;

use super::{AppError, certificates, otlp};

const EXPORT_PATH: &str = "/v1/metrics";

/// The options of the metrics.
/// Fails when the mapping file cannot be used.
pub(super) fn options(settings: &Settings) -> Result<Options, AppError> {
    let names = &settings.metrics;
    let mapper = match &names.mapper {
        Some(path) => {
            let shown = path.display();
            let text = std::fs::read_to_string(path)
                .map_err(|error| AppError::Statistics(format!("metrics.mapper: {shown}: {error}")))?;
            let mapper = Mapper::parse(&text);
            Some(mapper.map_err(|error| AppError::Statistics(format!("metrics.mapper: {shown}:{error}")))?)
        }
        // Built only if needed: its regular expressions use megabytes.
        None => names.ratelimit_names.then(|| Mapper::built_in(names.response_time_milliseconds)),
    };
    Ok(Options {
        near_limit: settings.near_limit_ratio,
        dynamic_series: names.dynamic_series,
        sanitize_dots: names.sanitize_dots,
        weir_names: names.weir_names,
        per_rule: names.per_rule,
        // One for each core, and one for HTTP.
        runtimes: settings.runtime.cores().get() + 1,
        mapper: mapper.filter(|_| names.ratelimit_names),
        statsd: settings.statsd.address.is_some(),
        values: settings.admin_values,
        tap: tap::Options {
            shows_values: settings.tap.shows_values,
            records_per_second: settings.tap.records_per_second,
        },
    })
}

/// The exporter of metrics to a collector, if the settings enable it.
/// Fails when the settings cannot be used: a file, or the URL.
pub(super) async fn export(
    settings: &Settings,
    resource: &Resource,
    metrics: &Arc<Metrics>,
) -> Result<Option<MetricsExporter>, AppError> {
    let (export, collector) = (&settings.metrics.export, &settings.tracing.otlp);
    if !export.enabled {
        return Ok(None);
    }
    let endpoint = export.endpoint(collector);
    let url = endpoint.and_then(|endpoint| otlp::url(endpoint.as_deref(), collector.is_grpc, EXPORT_PATH));
    let url = url.map_err(|problem| AppError::MetricsExport(format!("metrics.otlp.endpoint: {problem}")))?;
    let opened = otlp::open(collector, url.clone()).await?;
    if let Some(tls) = &opened.tls {
        certificates::show("metrics", tls.validity(), metrics);
    }
    let sender = opened.metrics();
    let sender = sender.map_err(|error| AppError::MetricsExport(error.to_string()))?;
    let exporter = MetricsExporter::new(metrics.clone(), sender, resource, export.interval);
    let protocol = if collector.is_grpc { "grpc" } else { "http/protobuf" };
    let collector = otlp::server(&url);
    tracing::info!(collector, protocol, interval = ?export.interval, "exporting metrics");
    Ok(Some(exporter))
}

/// Metrics that are read only at a scrape. The store is weak, because it refers to the metrics, which would refer to
/// it.
pub(super) fn show(
    metrics: &Metrics,
    grpc: &weir_grpc::Serving,
    embedded: &Weak<dyn Store>,
    deny_cache: Option<Arc<DenyCache>>,
    program: Program,
) {
    metrics.show("weir_build_info", &[super::banner::COMMIT, super::banner::VERSION], &(), |()| 1);
    for (core, load) in grpc.loads.iter().enumerate() {
        metrics.show("weir_connections", &[&core.to_string()], load, |load| load.connections() as u64);
    }
    let memory = &grpc.memory;
    metrics.show("weir_grpc_held_bytes", &[], memory, Memory::bytes);
    metrics.show("weir_grpc_connections_bytes", &[], memory, Memory::tables_bytes);
    metrics.show("weir_grpc_refused_total", &[], memory, |memory| memory.ended().refused());
    for &reason in CloseReason::VARIANTS {
        metrics.show("weir_grpc_closed_total", &[reason.into()], memory, move |memory| memory.ended().closed(reason));
    }
    for (number, code) in CODES.into_iter().enumerate() {
        metrics.show("weir_grpc_reset_requests_total", &[code], memory, move |memory| memory.ended().reset(number));
    }
    let keys = |store: &Weak<dyn Store>| store.upgrade().and_then(|store| store.keys());
    if keys(embedded).is_some() {
        metrics.show("weir_keys", &[], embedded, move |store| keys(store).unwrap_or_default());
    }
    if let Some(cache) = deny_cache {
        metrics.show("weir_deny_cache_hits_total", &[], &cache, |cache| cache.hits());
        metrics.show("weir_deny_cache_entries", &[], &cache, |cache| cache.len() as u64);
        if program == Program::Ratelimit {
            show_local_cache(metrics, &cache);
        }
    }
}

/// The connections that this kind of listener closed to stay within its bounds.
pub(super) fn show_shed(metrics: &Metrics, listener: &str, counts: &Arc<ShedCounts>, reasons: [ShedReason; 2]) {
    for reason in reasons {
        let labels = [listener, reason.into()];
        metrics.show("weir_connections_shed_total", &labels, counts, move |counts| counts.count(reason));
    }
}

/// envoyproxy/ratelimit's metrics of its local cache. weir stores no time of access; evacuated counts the evicted keys.
fn show_local_cache(metrics: &Metrics, cache: &Arc<DenyCache>) {
    let show = |name: &str, read: fn(&DenyCache) -> u64| {
        metrics.show(&format!("ratelimit.localcache.{name}"), &[], cache, move |cache| read(cache));
    };
    show("averageAccessTime", |_| 0);
    show("entryCount", |cache| cache.len() as u64);
    show("evacuateCount", |cache| cache.usage().evicted);
    show("expiredCount", |cache| cache.usage().expired);
    show("hitCount", |cache| cache.usage().found);
    show("lookupCount", |cache| cache.usage().lookups);
    show("missCount", |cache| {
        let usage = cache.usage();
        usage.lookups.saturating_sub(usage.found)
    });
    show("overwriteCount", |cache| cache.usage().overwritten);
}
