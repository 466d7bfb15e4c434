//! The TLS of the gRPC listener: read at the start, and read again while weir serves.
//!
//! Not here: what the files mean (tls/server.rs).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::AppError;
use crate::config::settings::Listen;
use crate::lifecycle::{Life, Phase, Reloads};
use crate::telemetry::metrics::Metrics;
use crate::tls::Identity;
use crate::tls::files::FileError;
use crate::tls::server::{Clients, HandshakeFailure, ServerFiles, ServerTls};

/// How often the files are read.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The TLS of the gRPC listener, and how often its files were replaced and refused.
pub(super) struct Certificates {
    tls: Arc<ServerTls>,
    /// Replaced, and refused.
    reloads: [Arc<AtomicU64>; 2],
}

/// TLS as the settings have it; none for cleartext.
///
/// # Errors
/// The first file that cannot be used.
pub(super) async fn open(listen: &Listen) -> Result<Option<Arc<ServerTls>>, AppError> {
    let Some(tls) = &listen.tls else { return Ok(None) };
    let names = tls.client_names.clone();
    let files = ServerFiles {
        identity: Identity { certificate: tls.cert_file.clone(), key: tls.key_file.clone() },
        clients: tls.client_ca_file.clone().map(|ca| Clients { ca, names }),
    };
    match tokio::task::spawn_blocking(|| ServerTls::new(files)).await {
        Ok(tls) => Ok(Some(Arc::new(tls?))),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

impl Certificates {
    /// Shows the handshakes that failed, and the reloads.
    ///
    /// # Errors
    /// A name is taken.
    pub(super) fn new(tls: Arc<ServerTls>, metrics: &Metrics) -> Result<Self, prometheus::Error> {
        for kind in HandshakeFailure::ALL {
            let tls = tls.clone();
            let help = "TLS handshakes of gRPC clients that failed, by reason.";
            let read = move || tls.failures(kind);
            metrics.labelled_counter("weir_tls_handshake_errors_total", help, &[("kind", kind.name())], read)?;
        }
        let reloads: [Arc<AtomicU64>; 2] = Default::default();
        for (count, result) in reloads.iter().zip(["replaced", "refused"]) {
            let count = count.clone();
            let help = "Changed files of the gRPC listener's TLS, by whether they were put in force.";
            let read = move || count.load(Relaxed);
            metrics.labelled_counter("weir_tls_reloads_total", help, &[("result", result)], read)?;
        }
        Ok(Self { tls, reloads })
    }

    /// Reads the files again and again, and at every order to reload, until weir drains. A file system that does not answer costs one thread.
    pub(super) async fn follow(self, mut reloads: Reloads, life: Life) -> Result<(), String> {
        let Self { tls, reloads: [replaced, refused] } = self;
        let mut ticks = tokio::time::interval(READ_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut problem: Option<FileError> = None;
        loop {
            let read = async {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = reloads.next() => {}
                }
                let tls = tls.clone();
                tokio::task::spawn_blocking(move || tls.reread()).await
            };
            let read = tokio::select! {
                () = life.reached(Phase::Draining) => return Ok(()),
                read = read => read.map_err(|error| format!("cannot read the certificate: {error}"))?,
            };
            match read {
                Ok(false) => problem = None,
                Ok(true) => {
                    problem = None;
                    replaced.fetch_add(1, Relaxed);
                    let certificate = tls.files().identity.certificate.display();
                    tracing::info!(%certificate, "certificate replaced");
                }
                // Once for each problem, and not at each reading.
                Err(error) if problem.as_ref() == Some(&error) => {}
                Err(error) => {
                    refused.fetch_add(1, Relaxed);
                    tracing::error!(%error, "certificate refused, the last good one stays in force");
                    problem = Some(error);
                }
            }
        }
    }
}
