//! Alerts by the settings: the webhook, its secret, its TLS, and its metrics.
//!
//! Not here: what an alert is, and how it is delivered (telemetry/alerts.rs).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tonic::codegen::http::Uri;
use weir_lifecycle::on_own_thread;
use weir_telemetry::alerts::signature::Secret;
use weir_telemetry::alerts::webhook::{Deliveries, Options, Outbox, Webhook};
use weir_telemetry::metrics::Metrics;
use weir_tls::{Tls, TlsFiles};

use super::{AppError, certificates};

/// The protocols that a webhook connection offers by ALPN.
const PROTOCOLS: &[&[u8]] = &[b"http/1.1"];

/// The webhook and its outbox. None if the settings name no webhook. Reads its files once.
/// Fails when a file cannot be used.
pub(super) async fn open(
    settings: &weir_settings::Alerts,
    metrics: &Metrics,
) -> Result<Option<(Outbox, Webhook)>, AppError> {
    let (Some(url), Some(secret_file)) = (&settings.webhook_url, &settings.webhook_secret_file) else {
        return Ok(None);
    };
    // The settings have checked it. An error would print the URL, which can contain a secret.
    let url: Uri = url.expose().parse().map_err(|_| AppError::Alerts("alerts.webhook_url: not a URL".to_owned()))?;
    let secret = read(secret_file.clone()).await?;
    let tls = match url.scheme_str() {
        Some("https") => Some(tls(settings.webhook_ca_file.as_deref()).await?),
        _ => None,
    };
    if let Some(tls) = &tls {
        certificates::show("alerts", tls.validity(), metrics);
    }
    tracing::info!(host = url.host().unwrap_or_default(), tls = tls.is_some(), "sending alerts to a webhook");
    let options = Options {
        url,
        secret_file: secret_file.clone(),
        tls,
        timeout: settings.webhook_timeout,
        attempts: settings.webhook_attempts,
        retry_for: settings.webhook_retry_for,
        queue: settings.webhook_queue,
    };
    let [delivered, given_up, dropped] =
        metrics.each("weir_alert_webhook_alerts_total", ["delivered", "given_up", "dropped"]);
    let failed = metrics.number("weir_alert_webhook_failures_total", &[]);
    let waiting = metrics.number("weir_alert_webhook_waiting", &[]);
    let deliveries = Deliveries { delivered, given_up, dropped, failed, waiting };
    Ok(Some(Webhook::new(options, secret, deliveries)))
}

async fn read(file: PathBuf) -> Result<Secret, AppError> {
    let read = on_own_thread(move || Secret::read(&file)).await;
    read.map_err(|error| AppError::Alerts(format!("alerts.webhook_secret_file: {error}")))
}

async fn tls(ca_file: Option<&Path>) -> Result<Arc<Tls>, AppError> {
    let tls = Arc::new(Tls::new(TlsFiles::of(ca_file.map(Path::to_owned), None, None)).offering(PROTOCOLS));
    let reading = tls.clone();
    on_own_thread(move || reading.config(|_| {}).map(drop)).await?;
    Ok(tls)
}
