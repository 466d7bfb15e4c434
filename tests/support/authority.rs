//! A certificate authority of the test's own, and a redis-server that speaks TLS by its certificates.
//!
//! Not in here: what weir should make of them.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::redis::RedisServer;
use super::wait::{PATIENCE, until};

/// An authority, and a directory for all that it issues.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

/// A certificate and its key, as files in PEM.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: PathBuf,
    /// The key.
    pub key: PathBuf,
}

impl Authority {
    /// A new one.
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let authority = Authority { issuer, directory: TempDir::new().expect("a temporary directory") };
        fs::write(authority.file(), authority.pem()).expect("the certificate is written");
        authority
    }

    /// The file of its own certificate.
    pub fn file(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Its own certificate.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Its own certificate and key, for a server that shows a self-signed certificate.
    pub fn itself(&self) -> Issued {
        let key = self.directory.path().join("ca.key");
        fs::write(&key, self.issuer.key().serialize_pem()).expect("the key is written");
        Issued { certificate: self.file(), key }
    }

    /// A certificate for a server with these names, which may be IPs.
    pub fn server(&self, file: &str, names: &[&str]) -> Issued {
        self.issue(file, names, &[], ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a client.
    pub fn client(&self, file: &str) -> Issued {
        self.issue(file, &[], &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A certificate for a client that expires at this second since 1970.
    pub fn client_until(&self, file: &str, second: u64) -> Issued {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_after = date_time_ymd(1970, 1, 1) + Duration::from_secs(second);
        self.sign(file, params, &KeyPair::generate().expect("a key"))
    }

    /// A certificate for a client with these names, which may be IPs, and these URIs.
    pub fn client_named(&self, file: &str, names: &[&str], uris: &[&str]) -> Issued {
        self.issue(file, names, uris, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A certificate for a client with names of any kind.
    pub fn client_with(&self, file: &str, names: Vec<SanType>) -> Issued {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, params, &KeyPair::generate().expect("a key"))
    }

    /// The same of a given key, without a file.
    pub fn certificate_with(&self, names: Vec<SanType>, key: &KeyPair) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.signed_by(key, &self.issuer).expect("a certificate").der().clone()
    }

    /// A certificate for these names and no usage in particular, as Envoy Gateway makes them: of an RSA key, which is
    /// stored in PKCS#1, for servers and clients.
    pub fn of_a_gateway(&self, file: &str, names: &[&str]) -> Issued {
        let keys = super::tools::repository().join("tests/data/keys");
        let pem = fs::read_to_string(keys.join("rsa-pkcs8.pem")).expect("a key");
        let issued = self.sign(file, named(names), &KeyPair::from_pem(&pem).expect("a key"));
        fs::copy(keys.join("rsa-pkcs1.pem"), &issued.key).expect("the same key in the other form");
        issued
    }

    /// A certificate for a server that has not been valid for years.
    pub fn expired_server(&self, file: &str, names: &[&str]) -> Issued {
        let mut params = named(names);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
        self.sign(file, params, &KeyPair::generate().expect("a key"))
    }

    fn issue(&self, file: &str, names: &[&str], uris: &[&str], usage: ExtendedKeyUsagePurpose) -> Issued {
        let mut params = named(names);
        for uri in uris {
            params.subject_alt_names.push(SanType::URI((*uri).try_into().expect("ASCII")));
        }
        params.extended_key_usages = vec![usage];
        self.sign(file, params, &KeyPair::generate().expect("a key"))
    }

    fn sign(&self, file: &str, mut params: CertificateParams, key: &KeyPair) -> Issued {
        params.distinguished_name.push(DnType::CommonName, file);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let certificate = params.signed_by(key, &self.issuer).expect("a certificate");
        let issued = Issued {
            certificate: self.directory.path().join(format!("{file}.pem")),
            key: self.directory.path().join(format!("{file}.key")),
        };
        fs::write(&issued.certificate, certificate.pem()).expect("the certificate is written");
        fs::write(&issued.key, key.serialize_pem()).expect("the key is written");
        issued
    }

    /// Has a server speak TLS on a port of its own, beside the one without, and returns that port. `clients` is what it
    /// wants to know of them: `yes` for a certificate of this authority, `no` for nothing.
    pub fn secure(&self, server: &RedisServer, certificate: &Issued, clients: &str) -> u16 {
        configure(server, &["tls-auth-clients", clients, "tls-ca-cert-file", text(&self.file())]);
        self.present(server, certificate);
        until("a free port for TLS", PATIENCE, || {
            let listener = TcpListener::bind("127.0.0.1:0").ok()?;
            let port = listener.local_addr().ok()?.port();
            drop(listener);
            let answer = server.command(&["CONFIG", "SET", "tls-port", &port.to_string()])?;
            (answer.trim() == "OK").then_some(port)
        })
    }

    /// Has a server show this certificate from now on.
    pub fn present(&self, server: &RedisServer, certificate: &Issued) {
        let (certificate, key) = (text(&certificate.certificate), text(&certificate.key));
        configure(server, &["tls-cert-file", certificate, "tls-key-file", key]);
    }
}

fn named(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    CertificateParams::new(names).expect("names that a certificate can have")
}

fn configure(server: &RedisServer, pairs: &[&str]) {
    let answer = server.command(&[&["CONFIG", "SET"], pairs].concat());
    assert_eq!(answer.as_deref().map(str::trim), Some("OK"), "this redis-server was built without TLS? {pairs:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is text")
}
