//! The TLS of the gRPC listener: its files are read at the start and again at runtime. Also the expiry of certificates,
//! for each use of TLS.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use strum::VariantArray as _;
use tokio::time::MissedTickBehavior;
use weir_lifecycle::{Life, Phase, Reloads, on_own_thread};
use weir_settings::Listen;
use weir_telemetry::metrics::{Metrics, Number};
use weir_tls::Identity;
use weir_tls::files::FileError;
use weir_tls::server::{Clients, HandshakeFailure, ServerFiles, ServerTls};
use weir_tls::validity::{Holder, Validity};

use super::AppError;

/// How often weir reads the files.
const READ_EVERY: Duration = Duration::from_secs(1);

/// How often weir looks which certificates begin to expire soon.
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// The TLS of the gRPC listener, and how often its files were replaced and refused.
pub(super) struct Certificates {
    tls: Arc<ServerTls>,
    /// The counts of replaced and refused files.
    reloads: [Number; 2],
    /// 1 while the files are refused.
    refused: Number,
}

/// TLS from the settings. None for cleartext.
///
/// # Errors
/// The first unusable file.
pub(super) async fn open(listen: &Listen) -> Result<Option<Arc<ServerTls>>, AppError> {
    let Some(files) = files(listen) else { return Ok(None) };
    let tls = on_own_thread(|| ServerTls::new(files)).await?;
    Ok(Some(Arc::new(tls)))
}

/// The files of TLS from the settings. None for cleartext.
pub(super) fn files(listen: &Listen) -> Option<ServerFiles> {
    let tls = listen.tls.as_ref()?;
    let names = tls.client_names.clone();
    Some(ServerFiles {
        identity: Identity { certificate: tls.cert_file.clone(), key: tls.key_file.clone() },
        clients: tls.client_ca_file.clone().map(|ca| Clients { ca, names }),
    })
}

/// Adds the expiry of the certificates of one use to the metrics, and logs when one begins to expire soon.
pub(super) fn show(used_for: &'static str, validity: &Arc<Validity>, metrics: &Metrics) {
    let (used, mut looked_at) = (Arc::downgrade(validity), SystemTime::now());
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(validity) = used.upgrade() else { return };
            validity.look(used_for, &mut looked_at);
        }
    });
    for &holder in Holder::VARIANTS {
        let labels = [holder.into(), used_for];
        let name = "weir_certificate_not_after_timestamp_seconds";
        metrics.show(name, &labels, validity, move |validity| validity.not_after(holder));
    }
}

impl Certificates {
    /// Adds the expiry of its certificates, the failed handshakes, and the reloads to the metrics.
    pub(super) fn new(tls: Arc<ServerTls>, metrics: &Metrics) -> Self {
        show("grpc", tls.validity(), metrics);
        for &kind in HandshakeFailure::VARIANTS {
            metrics.show("weir_tls_handshake_errors_total", &[kind.into()], &tls, move |tls| tls.failures(kind));
        }
        let reloads = metrics.each("weir_tls_reloads_total", ["replaced", "refused"]);
        Self { tls, reloads, refused: metrics.number("weir_input_refused", &["certificate"]) }
    }

    /// Reads the files every second, and at each order to reload, until weir drains. A file system that does not answer
    /// blocks one thread.
    pub(super) async fn follow(self, reloads: Reloads, life: Life) -> Result<(), String> {
        self.read_every(READ_EVERY, reloads, life).await
    }

    async fn read_every(self, period: Duration, mut reloads: Reloads, life: Life) -> Result<(), String> {
        let Self { tls, reloads: [replaced, refusals], refused } = self;
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut problem: Option<FileError> = None;
        loop {
            let read = async {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = reloads.next() => {}
                }
                let tls = tls.clone();
                on_own_thread(move || tls.reread()).await
            };
            let read = tokio::select! {
                () = life.reached(Phase::Draining) => return Ok(()),
                read = read => read,
            };
            match read {
                Ok(false) => problem = None,
                Ok(true) => {
                    problem = None;
                    replaced.add(1);
                    let certificate = tls.files().identity.certificate.display();
                    tracing::info!(%certificate, "certificate replaced");
                }
                // Each problem is logged once, not at each read.
                Err(error) if problem.as_ref() == Some(&error) => {}
                Err(error) => {
                    refusals.add(1);
                    tracing::error!(%error, "certificate refused, the last good one stays in use");
                    problem = Some(error);
                }
            }
            refused.set(u64::from(problem.is_some()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair};
    use weir_lifecycle::{Phases, shutdown};

    use super::*;

    fn issue(identity: &Identity) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        fs::write(&identity.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(&identity.key, key.serialize_pem()).unwrap();
    }

    #[tokio::test]
    async fn an_order_to_reload_reads_the_files_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let (certificate, key) = (directory.path().join("tls.crt"), directory.path().join("tls.key"));
        let identity = Identity { certificate, key };
        issue(&identity);
        let tls = ServerTls::new(ServerFiles { identity: identity.clone(), clients: None }).unwrap();
        let certificates = Certificates { tls: Arc::new(tls), reloads: Default::default(), refused: Number::default() };
        let (tls, replaced) = (certificates.tls.clone(), certificates.reloads[0].clone());
        let before = tls.config();
        let (stop, shutdown) = shutdown();
        let phases = Phases::starting();
        // Without an order, the next read is in an hour.
        let following = certificates.read_every(Duration::from_secs(3_600), shutdown.reloads(), phases.watch());
        let orders = async {
            for order in 1..=2 {
                issue(&identity);
                stop.reload();
                while replaced.get() < order {
                    tokio::task::yield_now().await;
                }
            }
        };
        tokio::select! {
            ended = following => panic!("{ended:?}"),
            () = orders => {}
        }
        assert!(!Arc::ptr_eq(&before, &tls.config()), "new connections get the new certificate");
    }
}
