//! Policies from a control plane: asks for them, and shows their state at `/readyz` and in metrics.
//!
//! Not here: the client (xds), how resources are put in force (xds_target.rs), and policies from files (policies.rs).

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::watch;
use weir_telemetry::metrics::Metrics;
use weir_tls::{GRPC_PROTOCOLS, Tls, TlsFiles};
use weir_xds::{Options, Pauses, Status, Subscription, Watch};

use super::xds_target::PolicyTarget;
use super::{AppError, certificates};

/// Signals when the first policies are in force.
pub(super) struct First(watch::Receiver<bool>);

impl First {
    pub(super) async fn in_force(&mut self) {
        // The sender is in the sink, which lives as long as the subscription.
        let _ = self.0.wait_for(|in_force| *in_force).await;
    }
}

/// A subscription to the server of the settings. Reads its files once.
/// Fails when a file cannot be used.
pub(super) fn subscribe(
    settings: &weir_settings::Xds,
    target: Arc<PolicyTarget>,
) -> Result<(Subscription, First), AppError> {
    let options = options(settings)?;
    let server = format!("{}:{}", options.host, options.port);
    let watched = Arc::new(Watch::default());
    gauges(&target.load.metrics, &watched);
    if let Some(tls) = &options.tls {
        certificates::show("xds", tls.validity(), &target.load.metrics);
    }
    let shown = watched.clone();
    target.load.report.source_is(move || shown.read(|status| as_json(&server, status)));
    let (accepted, first) = watch::channel(false);
    let sink = move |resources: &[weir_xds::Resource]| {
        target.put(resources)?;
        accepted.send_replace(true);
        Ok(())
    };
    Ok((Subscription::new(options, Arc::new(sink), watched), First(first)))
}

fn options(settings: &weir_settings::Xds) -> Result<Options, AppError> {
    let refused = |reason: String| AppError::Policies(vec![format!("policies by xds: {reason}")]);
    // The settings refuse the source without a server.
    let (host, port) = settings.server.clone().ok_or_else(|| refused("no server is set".to_owned()))?;
    let tls = settings.tls.enabled.then(|| {
        let of = &settings.tls;
        let files = TlsFiles::of(of.ca_file.clone(), of.cert_file.clone(), of.key_file.clone());
        Tls::new(TlsFiles { server_name: of.server_name.clone(), ..files }).offering(GRPC_PROTOCOLS)
    });
    if let Some(tls) = &tls {
        tls.config(|_| ()).map_err(|error| refused(error.to_string()))?;
    }
    Ok(Options {
        host,
        port,
        tls: tls.map(Arc::new),
        node_id: settings.node_id.clone(),
        node_metadata: settings.node_metadata.clone(),
        headers: settings.headers.0.clone(),
        connect_timeout: settings.connect_timeout,
        pauses: Pauses {
            dial_max: settings.connect_retry,
            stream_first: settings.backoff_initial,
            stream_max: settings.backoff_max,
            random_percent: settings.random_percent,
        },
        message_bytes_max: settings.max_message_bytes,
        keepalive_interval: settings.keepalive_interval,
        keepalive_timeout: settings.keepalive_timeout,
    })
}

fn gauges(metrics: &Metrics, watched: &Arc<Watch>) {
    let show = |name: &str, labels: &[&str], read: fn(&Status) -> u64| {
        metrics.show(name, labels, watched, move |watched| watched.read(read));
    };
    show("weir_xds_connected", &[], |status| u64::from(status.connected));
    show("weir_input_refused", &["control_plane"], |status| u64::from(status.refused));
    show("weir_xds_accepted_timestamp_seconds", &[], |status| status.acked_at.map_or(0, seconds));
    show("weir_xds_connections_total", &[], |status| status.connections);
    show("weir_xds_failures_total", &[], |status| status.failures);
    show("weir_xds_accepted_total", &[], |status| status.acks);
    show("weir_xds_refused_total", &[], |status| status.nacks);
}

fn as_json(server: &str, status: &Status) -> Value {
    let nack = status
        .nack
        .as_ref()
        .map(|nack| json!({ "version": nack.version, "reason": nack.reason, "at": text_of(nack.at) }));
    json!({
        "protocol": "xds",
        "address": server,
        "connected": status.connected,
        "trouble": status.trouble,
        "version": status.version.as_deref().map(weir_xds::shown),
        "accepted_at": status.acked_at.map(text_of),
        "last_refused": nack,
    })
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A time in UTC, to the second.
fn text_of(time: SystemTime) -> Option<String> {
    let seconds = i64::try_from(seconds(time)).ok()?;
    jiff::Timestamp::from_second(seconds).ok().map(|time| time.to_string())
}
