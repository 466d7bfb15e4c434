//! TLS to Redis: whom we trust, and who we are, from files that may be replaced at any time.
//!
//! Not in here: the socket below and the protocol above (endpoint.rs, connection.rs).
//!
//! The files are read at every dial, and the handshake's configuration is made anew only when a byte of
//! them has changed: so sessions are resumed, and a certificate that was rotated is in force at the next
//! connection. A file that cannot be used, or a certificate and a key that do not belong together because
//! only one of them was replaced so far, leave the last good ones in force.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore, crypto};

use super::files::{self, FileError, OneAtATime, Reread};
use super::observer::Observer;

/// The largest file of certificates or a key, in bytes: a bundle of all public authorities has a quarter
/// of it.
pub const TLS_FILE_BYTES_MAX: u64 = 1 << 20;

/// What TLS is made from. The default trusts the public authorities of the Mozilla list that this version
/// was built with, and has no certificate of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authorities to trust, in PEM, in place of the public ones.
    pub ca: Option<PathBuf>,
    /// The client's certificate, followed by its intermediates, and its key; both in PEM.
    pub identity: Option<Identity>,
    /// The name that the server's certificate must have, in place of the host that is dialled.
    pub server_name: Option<String>,
}

/// Who we are for a server that wants to know it by a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, followed by its intermediates.
    pub certificate: PathBuf,
    /// Its private key: PKCS#8, SEC1 or PKCS#1, not encrypted.
    pub key: PathBuf,
}

/// TLS as it is at the moment.
pub(super) struct Tls {
    files: TlsFiles,
    reread: Reread<Made>,
    gate: OneAtATime,
}

/// A configuration and the bytes that it was made from.
#[derive(Clone)]
struct Made {
    from: Arc<Bytes>,
    config: Arc<ClientConfig>,
}

#[derive(PartialEq, Eq)]
struct Bytes {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    pub(super) fn new(files: TlsFiles) -> Tls {
        Tls { files, reread: Reread::default(), gate: OneAtATime::default() }
    }

    /// The configuration that the files say, or the last one that they could be used for.
    pub(super) fn config(&self, observer: &dyn Observer) -> Result<Arc<ClientConfig>, FileError> {
        let made = self.reread.read(observer, |last| {
            let from = self.bytes()?;
            match last {
                Some(last) if *last.from == from => Ok(last.clone()),
                _ => Ok(Made { config: Arc::new(self.make(&from)?), from: Arc::new(from) }),
            }
        })?;
        Ok(made.config)
    }

    /// Shakes hands on a stream to `host`.
    ///
    /// # Errors
    ///
    /// What is wrong with the files or with the peer, for people.
    pub(super) async fn handshake<S>(
        self: Arc<Self>,
        host: &str,
        stream: S,
        observer: &Arc<dyn Observer>,
    ) -> Result<TlsStream<S>, String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = self.files.server_name.as_deref().unwrap_or(host).to_owned();
        let Ok(name) = ServerName::try_from(name.clone()) else {
            return Err(format!("no certificate can have the name {name:?}"));
        };
        let (gate, observer) = (self.gate.clone(), observer.clone());
        let config = files::off_the_runtime(&gate, move || self.config(&*observer)).await?;
        TlsConnector::from(config).connect(name, stream).await.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection in place of a tls handshake".to_owned(),
            _ => in_words(&error),
        })
    }

    fn bytes(&self) -> Result<Bytes, FileError> {
        let read = |path: &Path| files::read_bounded(path, TLS_FILE_BYTES_MAX);
        let identity = match &self.files.identity {
            Some(identity) => Some((read(&identity.certificate)?, read(&identity.key)?)),
            None => None,
        };
        Ok(Bytes { ca: self.files.ca.as_deref().map(read).transpose()?, identity })
    }

    fn make(&self, bytes: &Bytes) -> Result<ClientConfig, FileError> {
        let mut roots = RootCertStore::empty();
        match self.files.ca.as_deref().zip(bytes.ca.as_deref()) {
            Some((path, pem)) => {
                for certificate in certificates(path, pem)? {
                    roots.add(certificate).map_err(|error| FileError::new(path, error.to_string()))?;
                }
            }
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        // Of our own choice, whatever else of this process may install as the default.
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider knows the protocol's versions")
            .with_root_certificates(roots);
        let Some((paths, (certificate, key))) = self.files.identity.as_ref().zip(bytes.identity.as_ref()) else {
            return Ok(config.with_no_client_auth());
        };
        let chain = certificates(&paths.certificate, certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
            pem::Error::NoItemsFound => FileError::new(&paths.key, "holds no private key that is not encrypted"),
            error => FileError::new(&paths.key, not_pem(&error)),
        })?;
        config.with_client_auth_cert(chain, key).map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                FileError::new(&paths.key, format!("is not the key of {}", paths.certificate.display()))
            }
            error => FileError::new(&paths.key, error.to_string()),
        })
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        found.push(certificate.map_err(|error| FileError::new(path, not_pem(&error)))?);
    }
    if found.is_empty() {
        return Err(FileError::new(path, "holds no certificate in PEM"));
    }
    Ok(found)
}

/// Without what the error quotes: it may be a line of a key.
fn not_pem(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "not PEM: a section has no end",
        pem::Error::IllegalSectionStart { .. } => "not PEM: a section begins wrong",
        pem::Error::Base64Decode(_) => "not PEM: a section is not base64",
        _ => "not PEM",
    }
}

/// What went wrong on a stream. If it was TLS, so that an operator knows which file or name to look at.
pub(super) fn in_words(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "its certificate is signed by no authority that is trusted here".to_owned()
        }
        Some(Error::InvalidCertificate(CertificateError::NotValidForNameContext { expected, presented })) => {
            // Each comes as `DnsName("cache")` or `IpAddress(10.0.0.1)`, in no order of its own.
            let mut names: Vec<&str> = Vec::with_capacity(presented.len());
            for name in presented {
                let inner = name.split_once('(').and_then(|(_, inner)| inner.strip_suffix(')'));
                names.push(inner.unwrap_or(name).trim_matches('"'));
            }
            names.sort_unstable();
            let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
            format!("its certificate is for {names}, and not for {}", expected.to_str())
        }
        Some(Error::InvalidCertificate(reason)) => format!("its certificate is not accepted: {reason}"),
        Some(Error::InvalidMessage(_)) => "it does not speak tls".to_owned(),
        Some(Error::AlertReceived(alert)) => format!("it refused tls: {alert:?}"),
        Some(other) => format!("tls: {other}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll};

    use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
    use redis::RedisConnectionInfo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf};
    use tokio_rustls::TlsAcceptor;
    use tokio_rustls::rustls::ServerConfig;
    use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;

    use super::super::connection::{Connection, Meter, Metered};
    use super::*;

    /// A pipe whose writing end can be stopped up: what is written then waits for ever.
    struct Stopped {
        pipe: DuplexStream,
        stopped: Arc<AtomicBool>,
    }

    impl AsyncRead for Stopped {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.pipe).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Stopped {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            if self.stopped.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
            Pin::new(&mut self.pipe).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.pipe).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.pipe).poll_shutdown(context)
        }
    }

    /// Serves TLS on one end of a pipe, answers the greeting, and then counts what it reads.
    async fn serve(pipe: DuplexStream, config: ServerConfig) -> usize {
        let mut stream = TlsAcceptor::from(Arc::new(config)).accept(pipe).await.unwrap();
        let mut greeting = [0; 256];
        assert!(stream.read(&mut greeting).await.unwrap() > 0);
        stream.write_all(b"+OK\r\n+PONG\r\n").await.unwrap();
        stream.flush().await.unwrap();
        let mut rest = Vec::new();
        // The other end hangs up without a word of TLS.
        let _ = stream.read_to_end(&mut rest).await;
        rest.len()
    }

    #[tokio::test]
    async fn what_tls_keeps_back_does_not_count_as_written_and_goes_with_the_connection() {
        let params = CertificateParams::new(vec!["redis.internal".to_owned()]).unwrap();
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.pem");
        std::fs::write(&ca, issuer.pem()).unwrap();
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issuer.der().clone()], PrivatePkcs8KeyDer::from(issuer.key().serialize_der()).into())
            .unwrap();

        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let server = tokio::spawn(serve(theirs, config));
        let stopped = Arc::new(AtomicBool::new(false));
        let meter = Arc::new(Meter::default());
        let below = Metered::new(Stopped { pipe: ours, stopped: stopped.clone() }, &meter);
        let observer: Arc<dyn Observer> = Arc::new(());
        let tls = Arc::new(Tls::new(TlsFiles { ca: Some(ca), ..TlsFiles::default() }));
        let stream = tls.handshake("redis.internal", below, &observer).await.unwrap();
        let login = RedisConnectionInfo::default().set_skip_set_lib_name();
        let mut connection = Connection::greet(stream, meter, &login).await.unwrap();

        let before = connection.bytes_written();
        assert!(before > 0, "the greeting was written");
        stopped.store(true, Ordering::SeqCst);
        let mut batch = redis::pipe();
        batch.cmd("INCR").arg("n");
        {
            let mut exchange = std::pin::pin!(connection.exchange(&batch));
            // As often as a runtime would: the batch is with TLS now, and TLS cannot get rid of it.
            for _ in 0..10 {
                let polled = std::future::poll_fn(|context| Poll::Ready(exchange.as_mut().poll(context))).await;
                assert!(polled.is_pending());
            }
        }
        assert_eq!(connection.bytes_written(), before);
        assert!(!connection.fit());
        stopped.store(false, Ordering::SeqCst);
        drop(connection);
        assert_eq!(server.await.unwrap(), 0, "nothing of the batch has left");
    }
}
