//! TLS to a server: the trusted authorities and weir's own certificate, from files that may be replaced at any time.
//!
//! Not in here: the protocol above (store/redis, xds). `tcp` opens sockets, `dial` connections by a URL.
//!
//! The files are read at each dial. The configuration is made again only if they have changed, so sessions are resumed, and a
//! rotated certificate is in force at the next connection. A session is resumed for an hour at most, because the server sends its
//! certificate only in a full handshake. A file that cannot be used leaves the last good ones in force. So does a certificate
//! whose key has not been replaced yet.

pub mod backoff;
pub mod causes;
pub mod dial;
pub mod files;
pub mod server;
pub mod tcp;
pub mod validity;
mod verify;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, io};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore, crypto};

use self::files::{FileError, OneAtATime, Reread};
use self::validity::{ClientStream, Validity};
use self::verify::Verifier;

/// The largest file of certificates or a key, in bytes. A bundle of all public authorities has a quarter of it.
pub const TLS_FILE_BYTES_MAX: u64 = 1 << 20;

/// How long sessions are resumed before a server must send its certificate again.
const SESSIONS_MAX: Duration = Duration::from_secs(3_600);

/// The protocols that a gRPC client offers by ALPN. Servers require them.
pub const GRPC_PROTOCOLS: &[&[u8]] = &[b"h2"];

/// The files of TLS. The default has no own certificate. It trusts the authorities of the system, or if the system has none, the
/// Mozilla list that this version was built with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The trusted authorities in PEM, in place of those of the system.
    pub ca: Option<PathBuf>,
    /// Whether to trust the authorities of the system in addition to `ca`.
    pub system_store_always: bool,
    /// The client's certificate, followed by its intermediates, and its key; both in PEM.
    pub identity: Option<Identity>,
    /// The name that the server's certificate must have, instead of the dialled host.
    pub server_name: Option<String>,
    /// Whether the server's certificate may have any name.
    pub any_name: bool,
}

impl TlsFiles {
    /// The files of a client's settings. It has an own certificate if both `certificate` and `key` are set.
    pub fn of(ca: Option<PathBuf>, certificate: Option<PathBuf>, key: Option<PathBuf>) -> Self {
        let identity = certificate.zip(key).map(|(certificate, key)| Identity { certificate, key });
        Self { ca, identity, ..Self::default() }
    }
}

/// weir's own certificate and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub certificate: PathBuf,
    /// Its private key: PKCS#8, SEC1 or PKCS#1, not encrypted.
    pub key: PathBuf,
}

impl Identity {
    /// Why each server refuses this certificate now, if the certificate shows it.
    pub fn unfit(&self) -> Option<String> {
        let pem = files::read_bounded(&self.certificate, TLS_FILE_BYTES_MAX).ok()?;
        let reason = validity::unfit(&certificates(&self.certificate, &pem).ok()?)?;
        Some(format!("{} {reason}", self.certificate.display()))
    }
}

pub struct Tls {
    files: TlsFiles,
    /// The protocols offered by ALPN; none if empty.
    protocols: &'static [&'static [u8]],
    reread: Reread<Made>,
    gate: OneAtATime,
    validity: Arc<Validity>,
    /// [`SESSIONS_MAX`], except in tests.
    sessions_max: Duration,
}

/// A configuration, and the bytes of the files that it was made from.
#[derive(Clone)]
struct Made {
    from: Arc<Bytes>,
    config: Arc<ClientConfig>,
    /// When `config` started to store sessions.
    since: Instant,
}

#[derive(PartialEq, Eq)]
struct Bytes {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// Creates TLS that uses these files. Reads none of them yet.
    pub fn new(files: TlsFiles) -> Tls {
        Tls {
            files,
            protocols: &[],
            reread: Reread::default(),
            gate: OneAtATime::default(),
            validity: Arc::default(),
            sessions_max: SESSIONS_MAX,
        }
    }

    /// The expiry of the certificates in use here.
    pub const fn validity(&self) -> &Arc<Validity> {
        &self.validity
    }

    pub fn offering(self, protocols: &'static [&'static [u8]]) -> Tls {
        Tls { protocols, ..self }
    }

    /// The configuration with the current files. If a file cannot be used, calls `refused` and returns the last good
    /// configuration.
    ///
    /// # Errors
    /// The first unusable file, if there is no good configuration.
    pub fn config(&self, refused: impl FnOnce(&FileError)) -> Result<Arc<ClientConfig>, FileError> {
        let made = self.reread.read(refused, |last| {
            let from = self.bytes()?;
            let config = match last {
                Some(last) if *last.from != from => self.make(&from)?,
                Some(last) if last.since.elapsed() < self.sessions_max => return Ok(last.clone()),
                Some(last) => {
                    let mut config = (*last.config).clone();
                    config.resumption = Resumption::default();
                    config
                }
                None => self.make(&from)?,
            };
            Ok(Made { config: Arc::new(config), from: Arc::new(from), since: Instant::now() })
        })?;
        Ok(made.config)
    }

    /// Performs the handshake on a stream to `host`. Calls `refused` as [`Tls::config`] does.
    ///
    /// # Errors
    /// When the files cannot be used, or the handshake fails.
    pub async fn handshake<S>(
        self: Arc<Self>,
        host: &str,
        stream: S,
        refused: impl FnOnce(&FileError) + Send + 'static,
    ) -> Result<ClientStream<S>, String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = self.files.server_name.as_deref().unwrap_or(host).to_owned();
        let Ok(name) = ServerName::try_from(name.clone()) else {
            return Err(format!("no certificate can have the name {name:?}"));
        };
        let (gate, validity) = (self.gate.clone(), self.validity.clone());
        let config = files::off_the_runtime(&gate, move || self.config(refused)).await?;
        let stream = TlsConnector::from(config).connect(name, stream).await.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection during the tls handshake".to_owned(),
            _ => in_words(&error),
        })?;
        Ok(ClientStream::new(stream, &validity, host))
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
        let mut config = self.without_protocols(bytes)?;
        config.alpn_protocols = self.protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(config)
    }

    fn without_protocols(&self, bytes: &Bytes) -> Result<ClientConfig, FileError> {
        let mut roots = RootCertStore::empty();
        let mut trusted = Vec::new();
        if let Some((path, pem)) = self.files.ca.as_deref().zip(bytes.ca.as_deref()) {
            trusted = certificates(path, pem)?;
            for certificate in &trusted {
                roots.add(certificate.clone()).map_err(|error| FileError::new(path, error.to_string()))?;
            }
            self.validity.put_authorities(path, &trusted);
        }
        if self.files.ca.is_none() || self.files.system_store_always {
            // An unparsable certificate of the system is skipped.
            let system = rustls_native_certs::load_native_certs().certs;
            roots.add_parsable_certificates(system.iter().cloned());
            trusted.extend(system);
        }
        if roots.is_empty() {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        // Set explicitly, because a library in this process can install another default.
        let provider = Arc::new(crypto::ring::default_provider());
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .expect("there is a root, and no revocation list");
        let verifier = Verifier { inner, trusted, any_name: self.files.any_name };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider supports the protocol's versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let Some((paths, (certificate, key))) = self.files.identity.as_ref().zip(bytes.identity.as_ref()) else {
            return Ok(config.with_no_client_auth());
        };
        let (chain, key) = chain_and_key(paths, certificate, key)?;
        let config = config.with_client_auth_cert(chain.clone(), key).map_err(|error| wrong_identity(paths, &error))?;
        self.validity.put_own(&paths.certificate, &chain);
        Ok(config)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

fn chain_and_key(
    paths: &Identity,
    certificate: &[u8],
    key: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), FileError> {
    let chain = certificates(&paths.certificate, certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| match error {
        pem::Error::NoItemsFound => FileError::new(&paths.key, "contains no unencrypted private key"),
        error => FileError::new(&paths.key, not_pem(&error)),
    })?;
    Ok((chain, key))
}

/// The error of a certificate and a key that cannot be used together.
fn wrong_identity(paths: &Identity, error: &Error) -> FileError {
    match error {
        Error::InconsistentKeys(_) => {
            FileError::new(&paths.key, format!("is not the key of {}", paths.certificate.display()))
        }
        error => FileError::new(&paths.key, error.to_string()),
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let mut found = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        found.push(certificate.map_err(|error| FileError::new(path, not_pem(&error)))?);
    }
    if found.is_empty() {
        return Err(FileError::new(path, "contains no certificate in PEM"));
    }
    Ok(found)
}

/// Omits what the error quotes, which can be a line of a key.
fn not_pem(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::MissingSectionEnd { .. } => "not PEM: a section has no end",
        pem::Error::IllegalSectionStart { .. } => "not PEM: a section begins wrong",
        pem::Error::Base64Decode(_) => "not PEM: a section is not base64",
        _ => "not PEM",
    }
}

/// The error of a stream as a sentence. An error of TLS says what to check.
pub fn in_words(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "no trusted authority has signed its certificate".to_owned()
        }
        Some(Error::InvalidCertificate(CertificateError::NotValidForNameContext { expected, presented })) => {
            // Each is a text like `DnsName("cache")` or `IpAddress(10.0.0.1)`, in no particular order.
            let mut names: Vec<&str> = Vec::with_capacity(presented.len());
            for name in presented {
                let inner = name.split_once('(').and_then(|(_, inner)| inner.strip_suffix(')'));
                names.push(inner.unwrap_or(name).trim_matches('"'));
            }
            names.sort_unstable();
            let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
            format!("its certificate is for {names}, and not for {}", expected.to_str())
        }
        Some(Error::InvalidCertificate(CertificateError::Other(reason)))
            if reason.to_string().contains(verify::CAN_SIGN) =>
        {
            "its certificate can sign others, like a self-signed one, and is not trusted itself".to_owned()
        }
        Some(Error::InvalidCertificate(reason)) => format!("its certificate is not accepted: {reason}"),
        Some(Error::InvalidMessage(_)) => "its answer is not tls".to_owned(),
        Some(Error::AlertReceived(alert)) => format!("it refused tls: {alert:?}"),
        Some(other) => format!("tls: {other}"),
        // The library's text would describe the end of a TLS stream.
        None if error.kind() == io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_sends_its_certificate_again_when_sessions_are_old() {
        let mut tls = Tls::new(TlsFiles::default());
        let config = |tls: &Tls| tls.config(|_| ()).unwrap();
        assert!(Arc::ptr_eq(&config(&tls), &config(&tls)), "sessions are resumed");
        tls.sessions_max = Duration::ZERO;
        assert!(!Arc::ptr_eq(&config(&tls), &config(&tls)), "sessions are forgotten");
    }
}
