//! The exports to other systems: statistics to StatsD, spans and metrics to a collector, alerts to a webhook.
//!
//! Not here: how each export is made from the settings (metrics.rs, traces.rs, alerts.rs).

use std::sync::Arc;

use tokio::sync::watch;
use weir_lifecycle::{Done, Supervisor};
use weir_settings::Settings;
use weir_telemetry::alerts::follow;
use weir_telemetry::alerts::webhook::{Outbox, Webhook};
use weir_telemetry::metrics::Metrics;
use weir_telemetry::metrics_export::MetricsExporter;
use weir_telemetry::otlp::SpanSender;
use weir_telemetry::statsd;
use weir_telemetry::traces::{Exporting, Tracer};

use super::{AppError, alerts, metrics, otlp, traces};

/// The exports of the settings, before anything is sent.
pub(super) struct Exports {
    tracer: Option<Arc<Tracer>>,
    statsd: weir_settings::Statsd,
    spans: Option<Exporting<SpanSender>>,
    metrics: Option<MetricsExporter>,
    outbox: Option<Outbox>,
    webhook: Option<Webhook>,
}

pub(super) struct Senders {
    tasks: Vec<Done>,
    /// Dropping it makes the tasks send the rest and end.
    stop: watch::Sender<()>,
}

impl Exports {
    /// # Errors
    /// When a URL or a file of the settings cannot be used.
    pub(super) async fn open(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Self, AppError> {
        let resource = otlp::resource(&settings.tracing);
        let (tracer, spans) = traces::open(&settings.tracing, &resource, metrics).await?.unzip();
        let exporter = metrics::export(settings, &resource, metrics).await?;
        let (outbox, webhook) = alerts::open(&settings.alerts, metrics).await?.unzip();
        Ok(Self { tracer, statsd: settings.statsd.clone(), spans, metrics: exporter, outbox, webhook })
    }

    /// Starts the traces of decisions, if they are exported.
    pub(super) fn tracer(&self) -> Option<Arc<Tracer>> {
        self.tracer.clone()
    }

    pub(super) fn start(self, supervisor: &Supervisor, metrics: &Arc<Metrics>) -> Senders {
        let (stop, stopped) = watch::channel(());
        let stopped = || {
            let mut stopped = stopped.clone();
            async move { while stopped.changed().await.is_ok() {} }
        };
        let mut tasks = Vec::new();
        if let Some(address) = self.statsd.address.clone() {
            tasks.push(supervisor.task("statsd", statsd::run(address, self.statsd, metrics.clone(), stopped())));
        }
        if let Some(spans) = self.spans {
            tasks.push(supervisor.task("traces", spans.run(stopped())));
        }
        if let Some(exporter) = self.metrics {
            tasks.push(supervisor.task("metrics export", exporter.run(stopped())));
        }
        if let Some(crossed) = metrics.alerts().take() {
            tasks.push(supervisor.task("alerts", follow(crossed, self.outbox, stopped())));
        }
        if let Some(webhook) = self.webhook {
            tasks.push(supervisor.task("webhook", webhook.run()));
        }
        Senders { tasks, stop }
    }
}

impl Senders {
    /// Sends the rest, all at the same time. Each task limits its own time.
    pub(super) async fn finish(self) {
        drop(self.stop);
        for mut task in self.tasks {
            task.wait().await;
        }
    }
}
