//! The bearer token for requests that change something.
//!
//! The file is read for each such request, so that a token can be replaced without a restart. A file that cannot be read lets
//! nothing pass.

use std::io::Read as _;
use std::path::Path;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::json_error;

/// The longest token, in bytes.
const TOKEN_BYTES_MAX: u64 = 4_096;

/// Whether a request has the token of this file; it needs none where there is no file.
///
/// # Errors
/// With the answer to a request that has not.
pub(super) async fn check(file: Option<&Path>, headers: &HeaderMap) -> Result<(), Response> {
    let Some(file) = file else { return Ok(()) };
    let path = file.to_owned();
    let read = tokio::task::spawn_blocking(move || read(&path)).await;
    let expected = match read.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(token) => token,
        Err(reason) => {
            tracing::warn!(file = %file.display(), reason, "the file of the admin token cannot be used: changes are refused");
            return Err(json_error(StatusCode::SERVICE_UNAVAILABLE, "the server cannot read its admin.token_file"));
        }
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    if given.is_some_and(|given| is_same(given, &expected)) {
        return Ok(());
    }
    let reason =
        "this changes something: send the header \"authorization: Bearer TOKEN\" with the token of admin.token_file";
    let refusal = json_error(StatusCode::UNAUTHORIZED, reason);
    Err(([(header::WWW_AUTHENTICATE, "Bearer")], refusal).into_response())
}

/// The token of a file, without the blanks around it.
///
/// # Errors
/// With the reason, when there is none.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(TOKEN_BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > TOKEN_BYTES_MAX {
        return Err(format!("more than {TOKEN_BYTES_MAX} bytes"));
    }
    match text.trim_ascii() {
        [] => Err("empty".to_owned()),
        token => Ok(token.to_vec()),
    }
}

/// The token of an `authorization` header. The name of the scheme is in any case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Compares in a time that depends on the lengths alone.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_and_compared_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            read(file.path())
        };
        assert_eq!(with(" s3cret\n"), Ok(b"s3cret".to_vec()));
        assert_eq!(with(" \n"), Err("empty".to_owned()));
        assert_eq!(with(&"x".repeat(4_096)), Ok(vec![b'x'; 4_096]));
        assert_eq!(with(&"x".repeat(4_097)), Err("more than 4096 bytes".to_owned()));
        assert!(read(Path::new("/nowhere/token")).unwrap_err().contains("No such file"));
        assert!(is_same(b"s3cret", b"s3cret"));
        for other in ["", "s3cre", "s3crets", "S3cret"] {
            assert!(!is_same(other.as_bytes(), b"s3cret"), "{other}");
        }
        assert_eq!(bearer(b"bearer x"), Some(&b"x"[..]));
        assert_eq!(bearer(b"Basic x"), None);
        assert_eq!(bearer("bearer\u{e9}x".as_bytes()), None);
    }
}
