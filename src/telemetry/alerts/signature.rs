//! The signature of a webhook's message and its secret, in the format of Standard Webhooks: HMAC-SHA256 over
//! `id.timestamp.body`, in Base64 after `v1,`; the secret is `whsec_` followed by Base64.

use std::fmt;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use weir_tls::files::{self, FileError};

const PREFIX: &[u8] = b"whsec_";
/// The shortest secret, decoded, in bytes.
pub const SECRET_BYTES_MIN: usize = 24;
/// The longest secret, decoded, in bytes.
pub const SECRET_BYTES_MAX: usize = 64;
/// The largest file of a secret, in bytes: far more than the longest secret.
const FILE_BYTES_MAX: u64 = 4_096;

#[derive(Clone)]
pub struct Secret(hmac::Key);

impl Secret {
    /// The secret in a file, without surrounding blanks.
    ///
    /// # Errors
    /// With the reason, which quotes nothing from the file.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        let text = files::read_bounded(path, FILE_BYTES_MAX)?;
        Self::parse(&text).map_err(|reason| FileError::new(path, reason))
    }

    /// A secret in the format of the file.
    ///
    /// # Errors
    /// With the reason, which quotes nothing from the text.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let encoded = text.trim_ascii().strip_prefix(PREFIX).ok_or("a secret begins with whsec_")?;
        let secret = STANDARD.decode(encoded).map_err(|_| "the part after whsec_ is not Base64")?;
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
            let bytes = secret.len();
            return Err(format!("a secret of {bytes} bytes: from {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}, decoded"));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &secret)))
    }

    /// The value of the header `webhook-signature`.
    pub fn sign(&self, id: &str, timestamp: u64, body: &str) -> String {
        let signed = hmac::sign(&self.0, format!("{id}.{timestamp}.{body}").as_bytes());
        format!("v1,{}", STANDARD.encode(signed))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_signed_as_standard_webhooks_has_it() {
        let secret = Secret::parse(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let body = r#"{"test": 2432232314}"#;
        // python3: base64.b64encode(hmac.new(base64.b64decode(SECRET), b"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330." + BODY,
        // "sha256").digest())
        let signature = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        assert_eq!(format!("{secret:?}"), "***");
    }

    #[test]
    fn an_invalid_secret_is_refused_and_not_quoted() {
        for (text, reason) in [
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "a secret begins with whsec_"),
            ("whsec_not*base64", "the part after whsec_ is not Base64"),
            ("whsec_c2hvcnQ=", "a secret of 5 bytes: from 24 to 64, decoded"),
        ] {
            assert_eq!(Secret::parse(text.as_bytes()).unwrap_err(), reason);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "x".repeat(4_097)).unwrap();
        assert_eq!(Secret::read(file.path()).unwrap_err().problem(), "more than 4096 bytes");
        assert!(Secret::read(Path::new("/nowhere/secret")).unwrap_err().to_string().contains("No such file"));
    }
}
