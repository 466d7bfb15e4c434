//! What is counted beside decisions, and under which names.
//!
//! Not here: the numbers themselves (telemetry, and the parts of weir that keep them).

use std::sync::{Arc, Weak};

use regex::Regex;

use super::AppError;
use crate::config::settings::Settings;
use crate::grpc;
use crate::limiter::deny_cache::DenyCache;
use crate::store::Store;
use crate::telemetry::mapper::Mapper;
use crate::telemetry::metrics::{Metrics, Options};
use crate::telemetry::statistics::Kind;
use crate::telemetry::statsd::{self, Format, Mogrifier, Transport};

/// What the settings say.
///
/// # Errors
/// When the mapping file cannot be used.
pub(super) fn options(settings: &Settings) -> Result<Options, AppError> {
    let names = &settings.metrics;
    let mapper = match &names.mapper {
        Some(path) => {
            let shown = path.display();
            let text = std::fs::read_to_string(path)
                .map_err(|error| AppError::Statistics(format!("metrics.mapper: {shown}: {error}")))?;
            Mapper::parse(&text).map_err(|error| AppError::Statistics(format!("metrics.mapper: {shown}:{error}")))?
        }
        None => Mapper::built_in(names.response_time_milliseconds),
    };
    Ok(Options {
        near_limit: settings.near_limit_ratio,
        dynamic_series: names.dynamic_series,
        weir_names: names.weir_names,
        mapper: names.ratelimit_names.then_some(mapper),
        statsd: settings.statsd.address.is_some(),
    })
}

/// Where the statistics are sent, if they are.
///
/// # Errors
/// When a pattern is no regular expression.
pub(super) fn statsd(settings: &Settings) -> Result<Option<statsd::Options>, AppError> {
    let settings = &settings.statsd;
    let Some(address) = settings.address.clone() else { return Ok(None) };
    let mogrifiers = settings.mogrifiers.iter().map(|mogrifier| {
        let pattern = Regex::new(&mogrifier.pattern);
        let pattern = pattern.map_err(|error| AppError::Statistics(format!("statsd.mogrifiers: {error}")))?;
        let tags = mogrifier.tags.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        Ok(Mogrifier { pattern, name: mogrifier.name.clone(), tags })
    });
    Ok(Some(statsd::Options {
        address,
        transport: if settings.is_udp { Transport::Udp } else { Transport::Tcp },
        format: if settings.is_dogstatsd { Format::DogStatsd } else { Format::Statsd },
        interval: settings.interval,
        tags: settings.tags.clone(),
        mogrifiers: mogrifiers.collect::<Result<_, AppError>>()?,
    }))
}

/// What is read only when somebody looks at the metrics. The store is weak: it holds the metrics, which would hold it.
pub(super) fn add_gauges(
    metrics: &Metrics,
    grpc: &grpc::Serving,
    embedded: Weak<dyn Store>,
    deny_cache: Option<Arc<DenyCache>>,
    is_local_cache: bool,
) -> Result<(), prometheus::Error> {
    let build = [("version", super::screen::VERSION), ("commit", super::screen::COMMIT)];
    metrics.gauge("weir_build_info", "Always 1; which build this is.", &build, || 1)?;
    for (core, load) in grpc.loads.iter().enumerate() {
        let help = "gRPC connections that are open, by runtime.";
        let load = load.clone();
        metrics
            .gauge("weir_connections", help, &[("runtime", &core.to_string())], move || load.connections() as u64)?;
    }
    let held = grpc.held.clone();
    let help = "Bytes of requests and responses that weir holds for gRPC callers, as accounted.";
    metrics.gauge("weir_grpc_held_bytes", help, &[], move || held.bytes())?;
    let held = grpc.held.clone();
    let help = "gRPC requests refused because too much was held for callers.";
    metrics.counter("weir_grpc_refused_total", help, move || held.refused())?;
    let held = grpc.held.clone();
    let help = "gRPC connections that weir closed for what their peers sent, or did not send or take in time.";
    metrics.counter("weir_grpc_closed_total", help, move || held.closed())?;
    let keys = move || embedded.upgrade().and_then(|store| store.keys());
    if keys().is_some() {
        let help = "States in the memory store, which with redis is that of on_error local; those that expired and were \
                    not dropped yet included.";
        metrics.gauge("weir_keys", help, &[], move || keys().unwrap_or_default())?;
    }
    if let Some(hits) = deny_cache {
        let kept = hits.clone();
        let help = "Requests that were denied without asking a store.";
        metrics.counter("weir_deny_cache_hits_total", help, move || hits.hits())?;
        let help = "Keys whose denial is known, those that have ended and were not dropped yet included.";
        let of = kept.clone();
        metrics.gauge("weir_deny_cache_entries", help, &[], move || kept.len() as u64)?;
        if is_local_cache {
            add_local_cache(metrics, &of);
        }
    }
    Ok(())
}

/// What envoyproxy/ratelimit shows of its local cache. It keeps no time of access, and evacuates what was evicted.
fn add_local_cache(metrics: &Metrics, cache: &Arc<DenyCache>) {
    let add = |name: &str, read: fn(&DenyCache) -> u64| {
        let cache = cache.clone();
        metrics.statistics().add(&format!("ratelimit.localcache.{name}"), Kind::Gauge, move || read(&cache));
    };
    add("averageAccessTime", |_| 0);
    add("entryCount", |cache| cache.len() as u64);
    add("evacuateCount", |cache| cache.usage().evicted);
    add("expiredCount", |cache| cache.usage().expired);
    add("hitCount", |cache| cache.usage().found);
    add("lookupCount", |cache| cache.usage().lookups);
    add("missCount", |cache| {
        let usage = cache.usage();
        usage.lookups.saturating_sub(usage.found)
    });
    add("overwriteCount", |cache| cache.usage().overwritten);
}
