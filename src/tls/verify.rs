//! Accepts a server's certificate if the library accepts it, and in two more cases.
//!
//! First, a trusted certificate is accepted for its own names, even if it can sign others, as OpenSSL's default
//! self-signed certificates can. Second, a certificate with any name is accepted if the settings allow it.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// The library's reason for refusing a certificate that can sign others. The library has checked its validity before.
pub(super) const CAN_SIGN: &str = "CaUsedAsEndEntity";

/// Methods that call the verifier in this field for signatures.
macro_rules! signatures_by {
    ($inner:ident) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.$inner.verify_tls12_signature(message, certificate, signature)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.$inner.verify_tls13_signature(message, certificate, signature)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.$inner.supported_verify_schemes()
        }
    };
}
pub(super) use signatures_by;

#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) inner: Arc<WebPkiServerVerifier>,
    pub(super) trusted: Vec<CertificateDer<'static>>,
    /// Whether a certificate with any name is accepted.
    pub(super) any_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.inner.verify_server_cert(certificate, intermediates, name, ocsp_response, now) {
            // The library checks the names last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.any_name => Ok(ServerCertVerified::assertion()),
            Err(Error::InvalidCertificate(CertificateError::Other(reason)))
                if reason.to_string().contains(CAN_SIGN) && self.trusted.iter().any(|known| known == certificate) =>
            {
                if !self.any_name {
                    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    signatures_by!(inner);
}
