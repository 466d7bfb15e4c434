//! TLS of a listener: its certificate and the accepted clients, from files that may be replaced at any time.
//!
//! Not here: accepting connections (grpc), and when the files are read again (app).
//!
//! A handshake uses the current configuration. New files apply to later connections; open connections are not affected.
//! Each connection of a client with a certificate has a full handshake, which checks the certificate.

use std::cell::Cell;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{fmt, io};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use strum::{IntoStaticStr, VariantArray};
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig,
    SignatureScheme,
};
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::asn1::AnyRef;
use x509_cert::der::oid::AssociatedOid as _;
use x509_cert::der::{Decode as _, Tag, Tagged as _};
use x509_cert::ext::pkix::SubjectAltName;

use super::files::{self, FileError};
use super::validity::{Expiry, Holder, Validity, date};
use super::verify::signatures_by;
use super::{Identity, TLS_FILE_BYTES_MAX, certificates};

/// The TLS session tickets that a client gets for each handshake, if it needs no certificate. One is enough: a client
/// resumes once.
const TICKETS: usize = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    pub identity: Identity,
    /// The accepted clients. None: every client.
    pub clients: Option<Clients>,
}

impl ServerFiles {
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let Identity { certificate, key } = &self.identity;
        [certificate, key].into_iter().chain(self.clients.as_ref().map(|clients| &clients.ca)).map(PathBuf::as_path)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// Authorities in PEM. One of them must have signed a client's certificate.
    pub ca: PathBuf,
    /// A client's certificate must have one of these names. An empty list accepts every name.
    pub names: Vec<ClientName>,
}

/// A name that a client's certificate may have, among its subject alternative names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientName {
    /// A DNS name. A wildcard in the certificate covers it.
    Dns(String),
    Ip(IpAddr),
    /// A URI, such as a SPIFFE ID. It must be equal, byte by byte.
    Uri(String),
}

impl ClientName {
    /// Reads a name: an IP address, a URI (it has `://`), or a DNS name.
    ///
    /// # Errors
    /// With the mistake in the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(ip) = text.parse() {
            return Ok(Self::Ip(ip));
        }
        if text.contains("://") && text.ends_with("/*") {
            return Err("only the same URI matches: for all URIs below one, write it in certificates of callers.file"
                .to_owned());
        }
        if text.contains("://") {
            return Ok(Self::Uri(text.to_owned()));
        }
        match ServerName::try_from(text) {
            Ok(_) => Ok(Self::Dns(text.to_owned())),
            Err(_) => Err("not a DNS name, an IP address or a URI".to_owned()),
        }
    }

    fn is_in(&self, certificate: &webpki::EndEntityCert<'_>) -> bool {
        let has = |name: ServerName<'_>| certificate.verify_is_valid_for_subject_name(&name).is_ok();
        match self {
            Self::Dns(name) => ServerName::try_from(name.as_str()).is_ok_and(has),
            Self::Ip(ip) => has((*ip).into()),
            Self::Uri(uri) => certificate.valid_uri_names().any(|name| name == uri),
        }
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) | Self::Uri(name) => f.write_str(name),
            Self::Ip(ip) => ip.fmt(f),
        }
    }
}

/// The most names of a client's certificate that are read, and their most bytes together.
const NAMES_READ_MAX: usize = 64;
const NAMES_READ_BYTES_MAX: usize = 4 * 1_024;

/// The most names of a list in the log, and the most characters of each.
const NAMES_LOGGED_MAX: usize = 3;
const NAME_CHARS_LOGGED_MAX: usize = 256;

/// The DNS names of a certificate, in lower case, and its URIs. None if there are too many to read, or if the list of names is
/// malformed.
pub type CertificateNames = Option<Box<[Box<str>]>>;

/// The names of a client's certificate that was accepted. A URI without `://` is left out: it could be taken for a DNS
/// name.
pub fn names_of(certificate: &CertificateDer<'_>) -> CertificateNames {
    if !has_well_formed_names(certificate) {
        return None;
    }
    // It was read before, when it was accepted.
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let uris = certificate.valid_uri_names().filter(|uri| uri.contains("://")).map(Box::<str>::from);
    let names = certificate.valid_dns_names().map(|name| name.to_ascii_lowercase().into_boxed_str()).chain(uris);
    let (mut read, mut bytes) = (Vec::<Box<str>>::new(), 0);
    for name in names {
        bytes += name.len();
        if read.len() == NAMES_READ_MAX || bytes > NAMES_READ_BYTES_MAX {
            return None;
        }
        read.push(name);
    }
    Some(read.into())
}

/// Whether webpki reads the subject alternative names to their end. It stops without an error at the first that is malformed,
/// so that a name of another caller could stand behind it.
fn has_well_formed_names(certificate: &CertificateDer<'_>) -> bool {
    let Ok(certificate) = CertificateInner::<Raw>::from_der(certificate) else { return false };
    let extensions = certificate.tbs_certificate().extensions().into_iter().flatten();
    extensions.filter(|extension| extension.extn_id == SubjectAltName::OID).all(|extension| {
        let names = Vec::<AnyRef<'_>>::from_der(extension.extn_value.as_bytes());
        names.is_ok_and(|names| names.iter().all(is_general_name))
    })
}

/// Whether this has the tag of a `GeneralName` of RFC 5280.
fn is_general_name(name: &AnyRef<'_>) -> bool {
    match name.tag() {
        Tag::ContextSpecific { constructed: true, number } => [0, 3, 4, 5].contains(&number.value()),
        Tag::ContextSpecific { constructed: false, number } => [1, 2, 6, 7, 8].contains(&number.value()),
        _ => false,
    }
}

/// The TLS of a listener with its current files.
pub struct ServerTls {
    files: ServerFiles,
    /// The bytes that the configuration was made from. Locked while the files are read, so only one thread reads at a
    /// time.
    from: Mutex<Bytes>,
    config: ArcSwap<ServerConfig>,
    validity: Arc<Validity>,
    /// One counter for each variant, in their order.
    failures: [AtomicU64; HandshakeFailure::VARIANTS.len()],
}

#[derive(PartialEq, Eq)]
struct Bytes {
    certificate: Vec<u8>,
    key: Vec<u8>,
    clients: Option<Vec<u8>>,
}

impl ServerTls {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// The first unusable file.
    pub fn new(files: ServerFiles) -> Result<Self, FileError> {
        let bytes = read(&files)?;
        let validity = Arc::default();
        let config = ArcSwap::from_pointee(make(&files, &bytes, &validity)?);
        Ok(Self { files, from: Mutex::new(bytes), config, validity, failures: Default::default() })
    }

    /// Reads the files again, and uses them if they have changed. Returns whether they have. Blocks.
    ///
    /// # Errors
    /// The first unusable file. The last good files stay in use.
    pub fn reread(&self) -> Result<bool, FileError> {
        let mut from = self.from.lock();
        let bytes = read(&self.files)?;
        if *from == bytes {
            return Ok(false);
        }
        self.config.store(Arc::new(make(&self.files, &bytes, &self.validity)?));
        *from = bytes;
        Ok(true)
    }

    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Which certificates have expired, by the system's clock. weir still uses them.
    pub fn expired(&self) -> Vec<String> {
        let of_clients = self.files.clients.iter().map(|clients| (Holder::Authority, &clients.ca));
        let all = [(Holder::Own, &self.files.identity.certificate)].into_iter().chain(of_clients);
        let expired = all.filter_map(|(holder, path)| Some((path, self.validity.expired(holder)?)));
        expired.map(|(path, date)| format!("{}: expired, it was valid until {date}", path.display())).collect()
    }

    /// The expiry of the listener's certificates and of its clients' authorities.
    pub const fn validity(&self) -> &Arc<Validity> {
        &self.validity
    }

    pub fn handshake_failed(&self, failure: HandshakeFailure) {
        self.failures[failure as usize].fetch_add(1, Relaxed);
    }

    pub fn failures(&self, kind: HandshakeFailure) -> u64 {
        self.failures[kind as usize].load(Relaxed)
    }

    /// What a log says about a handshake that has failed. Call it on the thread that polled the handshake, before it polls
    /// another one.
    pub fn describe(&self, error: &io::Error) -> FailedHandshake {
        let names = REFUSED_NAMES.take();
        let kind = HandshakeFailure::of(error);
        let reason = match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            Some(Error::InvalidCertificate(CertificateError::NotValidForName)) => {
                let wanted = self.files.clients.iter().flat_map(|clients| &clients.names).map(ClientName::to_string);
                format!("the certificate has no name of listen.tls.client_names: {}", some_of(wanted))
            }
            Some(Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => {
                format!("the certificate has expired: it was valid until {}", date(not_after.as_secs()))
            }
            Some(Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => {
                format!("the certificate is not valid yet: it is valid from {}", date(not_before.as_secs()))
            }
            _ => error.to_string(),
        };
        let names = matches!(kind, HandshakeFailure::Certificate | HandshakeFailure::Name).then_some(names).flatten();
        FailedHandshake { kind, reason, names }
    }

    pub const fn files(&self) -> &ServerFiles {
        &self.files
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

fn read(files: &ServerFiles) -> Result<Bytes, FileError> {
    let read = |path: &Path| files::read_bounded(path, TLS_FILE_BYTES_MAX);
    Ok(Bytes {
        certificate: read(&files.identity.certificate)?,
        key: read(&files.identity.key)?,
        clients: files.clients.as_ref().map(|clients| read(&clients.ca)).transpose()?,
    })
}

fn make(files: &ServerFiles, bytes: &Bytes, validity: &Validity) -> Result<ServerConfig, FileError> {
    // Set explicitly, because a library in this process can install another default.
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ClientCertVerifier> = match files.clients.as_ref().zip(bytes.clients.as_deref()) {
        None => WebPkiClientVerifier::no_client_auth(),
        Some((clients, pem)) => {
            let mut roots = RootCertStore::empty();
            let authorities = certificates(&clients.ca, pem)?;
            for certificate in &authorities {
                roots.add(certificate.clone()).map_err(|error| FileError::new(&clients.ca, error.to_string()))?;
            }
            validity.put_authorities(&clients.ca, &authorities);
            let signed = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .build()
                .map_err(|error| FileError::new(&clients.ca, error.to_string()))?;
            Arc::new(KnownClients { signed, names: clients.names.clone() })
        }
    };
    let (chain, key) = super::chain_and_key(&files.identity, &bytes.certificate, &bytes.key)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the protocol's versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key)
        .map_err(|error| super::wrong_identity(&files.identity, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    if files.clients.is_some() {
        // A resumed session would accept the certificate of its first handshake without checking it again.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
    } else {
        config.send_tls13_tickets = TICKETS;
        config.ticketer = ring::Ticketer::new()
            .map_err(|error| FileError::new(&files.identity.key, format!("no tickets: {error}")))?;
    }
    validity.put_own(&files.identity.certificate, &chain);
    Ok(config)
}

/// Accepts a client whose certificate is signed by a trusted authority, has one of the names, and has a time of expiry
/// that weir can read, at which the connection ends.
#[derive(Debug)]
struct KnownClients {
    signed: Arc<dyn ClientCertVerifier>,
    /// Empty for every name.
    names: Vec<ClientName>,
}

impl ClientCertVerifier for KnownClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.signed.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let checked = self.check(end_entity, intermediates, now);
        if checked.is_err() {
            let names = names_of(end_entity).filter(|names| !names.is_empty());
            REFUSED_NAMES.set(names.map(|names| some_of(names.iter().map(|name| String::from(&**name)))));
        }
        checked
    }

    signatures_by!(signed);
}

impl KnownClients {
    fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.signed.verify_client_cert(end_entity, intermediates, now)?;
        let unreadable = || Error::from(CertificateError::BadEncoding);
        let certificate = webpki::EndEntityCert::try_from(end_entity).map_err(|_| unreadable())?;
        Expiry::of(end_entity).ok_or_else(unreadable)?;
        if self.names.is_empty() || self.names.iter().any(|name| name.is_in(&certificate)) {
            Ok(verified)
        } else {
            Err(CertificateError::NotValidForName.into())
        }
    }
}

thread_local! {
    /// The names of the last certificate that this thread has refused: the library's errors have no place for them. The
    /// poll that refuses the certificate ends the handshake.
    static REFUSED_NAMES: Cell<Option<String>> = const { Cell::new(None) };
}

/// The first names, each cut to [`NAME_CHARS_LOGGED_MAX`].
fn some_of(names: impl Iterator<Item = String>) -> String {
    let shown = names.take(NAMES_LOGGED_MAX).map(|name| name.chars().take(NAME_CHARS_LOGGED_MAX).collect::<String>());
    shown.collect::<Vec<_>>().join(", ")
}

/// A handshake that has failed, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedHandshake {
    pub kind: HandshakeFailure,
    pub reason: String,
    /// The first names of the client's certificate that was refused.
    pub names: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum HandshakeFailure {
    Closed,
    NoCertificate,
    /// The client's certificate is not accepted because of its authority, its validity or its use.
    Certificate,
    /// The client's certificate has none of the allowed names.
    Name,
    /// The client does not accept the listener's certificate.
    Refused,
    /// The client does not use TLS, or no version that the listener supports.
    Protocol,
    /// The listener aborted it, because too many handshakes of all clients were unfinished.
    TooMany,
    /// The listener aborted it, because too many handshakes of the client's address were unfinished.
    TooManyOfPeer,
}

impl HandshakeFailure {
    pub fn of(error: &io::Error) -> Self {
        use AlertDescription::{
            BadCertificate, CertificateExpired, CertificateRevoked, CertificateUnknown, UnknownCA,
            UnsupportedCertificate,
        };
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
        match inner {
            None => Self::Closed,
            Some(Error::NoCertificatesPresented) => Self::NoCertificate,
            Some(Error::InvalidCertificate(CertificateError::NotValidForName)) => Self::Name,
            Some(Error::InvalidCertificate(_)) => Self::Certificate,
            Some(Error::AlertReceived(
                BadCertificate
                | CertificateExpired
                | CertificateRevoked
                | CertificateUnknown
                | UnknownCA
                | UnsupportedCertificate,
            )) => Self::Refused,
            Some(_) => Self::Protocol,
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CustomExtension, KeyPair};

    use super::*;

    /// A name of another caller stood behind a name that webpki cannot read.
    #[test]
    fn a_malformed_list_of_names_gives_none() {
        const DNS: u8 = 0x82;
        let key = KeyPair::generate().unwrap();
        let read = |names: &[(u8, &[u8])], more: &[u8]| {
            let names =
                names.iter().flat_map(|(tag, name)| [&[*tag, u8::try_from(name.len()).unwrap()], *name].concat());
            let names: Vec<u8> = names.chain(more.iter().copied()).collect();
            let list = [&[0x30, u8::try_from(names.len()).unwrap()], &names[..]].concat();
            let mut params = CertificateParams::default();
            params.custom_extensions.push(CustomExtension::from_oid_content(&[2, 5, 29, 17], list));
            names_of(params.self_signed(&key).unwrap().der()).map(|names| names.join(" "))
        };
        let (a, b) = ((DNS, &b"a.mesh"[..]), (DNS, &b"b.mesh"[..]));
        assert_eq!(read(&[a, b], &[]).as_deref(), Some("a.mesh b.mesh"));
        assert_eq!(read(&[], &[]).as_deref(), Some(""));
        // A name of another kind, and one that is no DNS name.
        assert_eq!(read(&[a, (0x87, &[10, 0, 0, 1]), (DNS, b"\xff"), b], &[]).as_deref(), Some("a.mesh b.mesh"));
        for tag in [0x9f, 0x83, 0xa2, 0x89, 0x02, 0xc2, 0x80] {
            assert_eq!(read(&[a, (tag, b"zz"), b], &[]), None, "{tag:#x}");
        }
        assert_eq!(read(&[a], &[DNS, 0x30, b'b']), None, "it ends within a name");
        assert_eq!(read(&[a], &[DNS]), None);
    }

    #[test]
    fn a_client_name_is_an_ip_a_uri_or_a_dns_name() {
        assert_eq!(ClientName::parse("10.0.0.1"), Ok(ClientName::Ip([10, 0, 0, 1].into())));
        assert_eq!(ClientName::parse("::1"), Ok(ClientName::Ip("::1".parse().unwrap())));
        assert_eq!(ClientName::parse("spiffe://a/b"), Ok(ClientName::Uri("spiffe://a/b".to_owned())));
        assert_eq!(ClientName::parse("envoy.mesh"), Ok(ClientName::Dns("envoy.mesh".to_owned())));
        assert!(ClientName::parse("spiffe://a/*").unwrap_err().contains("callers.file"), "it matched nobody");
        assert!(ClientName::parse("a b").is_err());
        assert!(ClientName::parse("").is_err());
    }
}
