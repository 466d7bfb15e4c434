//! Sends metrics to an OpenTelemetry collector at intervals.
//!
//! Each export reads all metrics as a scrape does, request by request, and never has a copy of all of them. One export
//! runs at a time. Numbers are cumulative: a failed export is not repeated, because the next one has the same counts
//! and more. Not here: families as messages (messages.rs), the connection (otlp.rs), and what is counted (metrics.rs).

mod messages;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use tokio::time::{MissedTickBehavior, timeout};
use weir_lifecycle::on_own_thread;

use self::messages::Messages;
use super::complaint::Complaint;
use super::metrics::{Cursor, Metrics, Number};
use super::otlp::MetricsSender;

/// The timeout of the last export during shutdown.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// The shortest time between two log lines about a collector that accepts nothing.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

pub struct MetricsExporter {
    metrics: Arc<Metrics>,
    sender: MetricsSender,
    resource: Resource,
    interval: Duration,
    started: SystemTime,
    taken: Number,
    failed: Number,
    complaint: Complaint,
}

impl MetricsExporter {
    /// An exporter of these metrics. It adds its own counters to them.
    /// Panics when the metrics have an exporter already.
    pub fn new(
        metrics: Arc<Metrics>,
        sender: MetricsSender,
        resource: &opentelemetry_sdk::Resource,
        interval: Duration,
    ) -> Self {
        let [taken, failed] = metrics.each("weir_metrics_exports_total", ["ok", "failed"]);
        let attributes = ResourceAttributesWithSchema::from(resource).attributes.0;
        Self {
            metrics,
            sender,
            resource: Resource { attributes, ..Resource::default() },
            interval,
            started: SystemTime::now(),
            taken,
            failed,
            complaint: Complaint::new(COMPLAIN_EVERY),
        }
    }

    /// Exports at once, then at intervals until `stop` ends, and then once more for at most two seconds.
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), String> {
        let mut stop = pin!(stop);
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = &mut stop => break,
                _ = ticks.tick() => {}
            }
            let result = tokio::select! {
                // The last export below has the same numbers.
                () = &mut stop => break,
                result = self.export() => result,
            };
            self.count(result);
        }
        let last = timeout(FLUSH_MAX, self.export()).await;
        self.count(last.unwrap_or_else(|_| Err(format!("no answer to the last export within {FLUSH_MAX:?}"))));
        Ok(())
    }

    /// Sends all metrics once. Stops at the first request that fails.
    async fn export(&self) -> Result<(), String> {
        let (metrics, resource, started) = (self.metrics.clone(), self.resource.clone(), self.started);
        // Reading many series takes milliseconds.
        let mut requests = on_own_thread(move || Requests {
            reading: metrics.read(&metrics.prepare()),
            messages: Messages::new(resource, started, SystemTime::now()),
        })
        .await;
        loop {
            let (request, rest) = on_own_thread(move || (requests.next(), requests)).await;
            let Some(request) = request else { return Ok(()) };
            self.sender.send(request).await?;
            requests = rest;
        }
    }

    fn count(&mut self, result: Result<(), String>) {
        let Err(reason) = result else {
            self.taken.add(1);
            if let Some(failed) = self.complaint.ended() {
                tracing::info!(failed, "the collector accepts metrics again");
            }
            return;
        };
        self.failed.add(1);
        if let Some(failed) = self.complaint.failed(1) {
            tracing::warn!(failed, reason, "the collector does not accept metrics");
        }
    }
}

/// One export as requests. Each is made when the one before it was sent.
struct Requests {
    reading: Cursor,
    messages: Messages,
}

impl Requests {
    fn next(&mut self) -> Option<ExportMetricsServiceRequest> {
        while !self.messages.is_full() && self.reading.advance(&mut self.messages) {}
        self.messages.take()
    }
}
