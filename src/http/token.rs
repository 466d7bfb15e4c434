//! The bearer tokens for requests that change something, or that show live requests.
//!
//! The file is read for each such request, so that tokens can be replaced without a restart. A file that cannot be read lets
//! nothing pass.

use std::io::Read as _;
use std::path::Path;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::json_error;

/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 4_096;
/// The longest name of a token, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The largest file of tokens, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1_024;
/// Who makes a request with a token that has no name.
const UNNAMED: &str = "admin";
/// Who makes a request where none needs a token.
const ANYONE: &str = "anyone";

/// The right to see the values of requests that a tap otherwise hides.
const TAP_VALUES: &str = "tap-values";

/// A token of the file.
#[derive(Debug, PartialEq, Eq)]
struct Token {
    caller: Caller,
    secret: Vec<u8>,
}

/// Who makes a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    /// The name of the token.
    pub(super) name: String,
    /// Whether a tap may show this caller the values of requests where `tap.values` hides them.
    pub(super) may_see_values: bool,
}

/// The name of the token of this file that a request has; it needs none where there is no file.
///
/// # Errors
/// With the answer to a request that has none.
pub(super) async fn check(file: Option<&Path>, headers: &HeaderMap) -> Result<String, Response> {
    caller(file, headers).await.map(|caller| caller.name)
}

/// The same, with what else the token allows.
///
/// # Errors
/// With the answer to a request that has none.
pub(super) async fn caller(file: Option<&Path>, headers: &HeaderMap) -> Result<Caller, Response> {
    let Some(file) = file else { return Ok(Caller { name: ANYONE.to_owned(), may_see_values: false }) };
    let path = file.to_owned();
    let read = tokio::task::spawn_blocking(move || read(&path)).await;
    let tokens = match read.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(tokens) => tokens,
        Err(reason) => {
            tracing::warn!(file = %file.display(), reason, "the file of the admin token cannot be used: changes and taps are refused");
            return Err(json_error(StatusCode::SERVICE_UNAVAILABLE, "the server cannot read its admin.token_file"));
        }
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    if let Some(caller) = given.and_then(|given| caller_of(tokens, given)) {
        return Ok(caller);
    }
    let reason = "this needs one of the tokens of admin.token_file: send the header \"authorization: Bearer TOKEN\"";
    let refusal = json_error(StatusCode::UNAUTHORIZED, reason);
    Err(([(header::WWW_AUTHENTICATE, "Bearer")], refusal).into_response())
}

/// Whose token was given. All are compared, so that the time says nothing.
fn caller_of(tokens: Vec<Token>, given: &[u8]) -> Option<Caller> {
    tokens.into_iter().fold(None, |found, token| if is_same(given, &token.secret) { Some(token.caller) } else { found })
}

/// The tokens of a file: one alone, or a line `NAME TOKEN` for each, with `tap-values` behind it for one that has that right.
///
/// # Errors
/// With the reason, when there is none. It has no part of a token.
fn read(path: &Path) -> Result<Vec<Token>, String> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("more than {FILE_BYTES_MAX} bytes"));
    }
    let whole = text.trim_ascii();
    if whole.is_empty() {
        return Err("empty".to_owned());
    }
    if !whole.iter().any(u8::is_ascii_whitespace) {
        return Ok(vec![token(UNNAMED, whole, false)?]);
    }
    let mut tokens: Vec<Token> = Vec::new();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let read = match (words.next(), words.next(), words.next(), words.next()) {
            (None, ..) => continue,
            (Some(name), Some(secret), None, _) => name_from(name).and_then(|name| token(name, secret, false)),
            (Some(name), Some(secret), Some(right), None) if right == TAP_VALUES.as_bytes() => {
                name_from(name).and_then(|name| token(name, secret, true))
            }
            // Another word may be a part of a token.
            _ => Err(format!("neither NAME TOKEN nor NAME TOKEN {TAP_VALUES}")),
        };
        let read = read.map_err(|reason| format!("line {}: {reason}", number + 1))?;
        if tokens.iter().any(|other| other.caller.name == read.caller.name) {
            return Err(format!("line {}: two tokens are called {}", number + 1, read.caller.name));
        }
        tokens.push(read);
    }
    Ok(tokens)
}

fn name_from(word: &[u8]) -> Result<&str, String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(byte);
    let name = std::str::from_utf8(word).ok().filter(|_| word.len() <= NAME_BYTES_MAX && word.iter().all(is_plain));
    name.ok_or_else(|| format!("a name has at most {NAME_BYTES_MAX} letters, digits and any of - _ . @"))
}

fn token(name: &str, secret: &[u8], may_see_values: bool) -> Result<Token, String> {
    if secret.len() > TOKEN_BYTES_MAX {
        return Err(format!("a token of more than {TOKEN_BYTES_MAX} bytes"));
    }
    Ok(Token { caller: Caller { name: name.to_owned(), may_see_values }, secret: secret.to_vec() })
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
        let caller = |name: &str, may_see_values| Caller { name: name.into(), may_see_values };
        let token = |name: &str, secret: &str| Token { caller: caller(name, false), secret: secret.into() };
        assert_eq!(with(" s3cret\n"), Ok(vec![token("admin", "s3cret")]));
        assert_eq!(with(" \n"), Err("empty".to_owned()));
        assert_eq!(with(&"x".repeat(4_096)), Ok(vec![token("admin", &"x".repeat(4_096))]));
        assert_eq!(with(&"x".repeat(4_097)), Err("a token of more than 4096 bytes".to_owned()));
        assert_eq!(with(&"x".repeat(65_537)), Err("more than 65536 bytes".to_owned()));
        assert!(read(Path::new("/nowhere/token")).unwrap_err().contains("No such file"));
        let two = with("ann\ts3cret\r\n\n deploy@ci  other \n").unwrap();
        assert_eq!(two, [token("ann", "s3cret"), token("deploy@ci", "other")]);
        assert_eq!(caller_of(two, b"other"), Some(caller("deploy@ci", false)));
        let rights = with("ann s3cret tap-values\nbob other\n").unwrap();
        assert_eq!(rights.iter().map(|token| token.caller.may_see_values).collect::<Vec<_>>(), [true, false]);
        for (text, reason) in [
            ("ann s3cret\nbob\n", "line 2: neither NAME TOKEN"),
            ("ann more s3cret", "line 1: neither NAME TOKEN nor NAME TOKEN tap-values"),
            ("ann s3cret tap-values more", "line 1: neither NAME TOKEN"),
            ("ann s3cret\nann other", "line 2: two tokens are called ann"),
            ("a/b s3cret", "line 1: a name has"),
            (&format!("{} s3cret", "x".repeat(65)), "line 1: a name has"),
        ] {
            let refused = with(text).unwrap_err();
            assert!(refused.starts_with(reason) && !refused.contains("s3cret"), "{refused}");
        }
        assert!(is_same(b"s3cret", b"s3cret"));
        for other in ["", "s3cre", "s3crets", "S3cret"] {
            assert!(!is_same(other.as_bytes(), b"s3cret"), "{other}");
        }
        assert_eq!(bearer(b"bearer x"), Some(&b"x"[..]));
        assert_eq!(bearer(b"Basic x"), None);
        assert_eq!(bearer("bearer\u{e9}x".as_bytes()), None);
    }
}
