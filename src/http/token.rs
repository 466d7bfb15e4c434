//! The bearer tokens for changes and for taps.
//!
//! The file is read for each such request, so you can replace tokens without a restart. If the file cannot be used, the
//! last good tokens stay valid. Without good tokens every such request is refused.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use parking_lot::Mutex;
use weir_telemetry::complaint::Complaint;
use weir_tls::files::{self, OneAtATime};

use super::json_error;

/// The shortest and the longest token, in bytes.
const TOKEN_BYTES_MIN: usize = 16;
const TOKEN_BYTES_MAX: usize = 4_096;
/// The longest name of a token, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The largest file of tokens, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1_024;
/// The name of the caller if no token is needed.
const ANYONE: &str = "anyone";
/// The right to see the values of requests that a tap otherwise hides.
const TAP_VALUES: &str = "tap-values";
/// How often refused tokens, and a file that cannot be used, are logged.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The address of a request's sender, as an extension of the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) IpAddr);

/// The name of a change's token, as an extension of the request.
#[derive(Clone, Debug)]
pub(super) struct By(pub(super) String);

#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    last_good: Mutex<Option<Arc<[Token]>>>,
    /// A file system that does not answer costs one thread, and not one for each request.
    gate: OneAtATime,
    refused: AtomicU64,
    /// Log lines about refused tokens, and about an unusable file.
    complaints: Mutex<[Complaint; 2]>,
}

#[derive(Debug, PartialEq, Eq)]
struct Token {
    caller: Caller,
    secret: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) name: String,
    /// Whether a tap may print the values of requests for this caller if `tap.values` hides them.
    pub(super) may_see_values: bool,
}

impl TokenFile {
    /// The tokens of this file. It is read when a request needs a token.
    pub fn new(path: PathBuf) -> Self {
        let complaints = Mutex::new([const { Complaint::new(LOG_EVERY) }; 2]);
        let gate = OneAtATime::default();
        Self { path, last_good: Mutex::default(), gate, refused: AtomicU64::new(0), complaints }
    }

    /// Requests that had no token of the file.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    fn tokens(&self) -> Result<Arc<[Token]>, String> {
        match read(&self.path) {
            Ok(tokens) => {
                let tokens: Arc<[Token]> = tokens.into();
                *self.last_good.lock() = Some(tokens.clone());
                Ok(tokens)
            }
            Err(reason) => {
                let last_good = self.last_good.lock().clone();
                if self.is_due(1) {
                    let file = self.path.display();
                    let effect = if last_good.is_some() {
                        "the last good tokens stay valid"
                    } else {
                        "changes and taps are refused"
                    };
                    tracing::error!(%file, reason, effect, "token file refused");
                }
                last_good.ok_or(reason)
            }
        }
    }

    fn refuse(&self, peer: Option<IpAddr>, has_token: bool) {
        let refused = self.refused.fetch_add(1, Relaxed) + 1;
        if self.is_due(0) {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(
                listener = "admin",
                peer,
                has_token,
                refused,
                "refused a request without a token of admin.token_file"
            );
        }
    }

    fn is_due(&self, what: usize) -> bool {
        self.complaints.lock()[what].failed(1).is_some()
    }
}

/// The caller with the request's token. Without a file no token is needed.
///
/// # Errors
/// The answer to a request without one.
pub(super) async fn caller(
    file: Option<&Arc<TokenFile>>,
    headers: &HeaderMap,
    peer: Option<PeerAddress>,
) -> Result<Caller, Response> {
    let Some(file) = file else { return Ok(Caller { name: ANYONE.to_owned(), may_see_values: false }) };
    let reading = file.clone();
    let read = files::off_the_runtime(&file.gate, move || Ok(reading.tokens())).await;
    let Ok(tokens) = read.and_then(|tokens| tokens) else {
        return Err(json_error(StatusCode::SERVICE_UNAVAILABLE, "the server cannot read its admin.token_file"));
    };
    let given = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
    if let Some(caller) = given.and_then(|given| caller_of(&tokens, given)) {
        return Ok(caller);
    }
    file.refuse(peer.map(|PeerAddress(address)| address), given.is_some());
    let reason = "this needs one of the tokens of admin.token_file: send the header \"authorization: Bearer TOKEN\"";
    let refusal = json_error(StatusCode::UNAUTHORIZED, reason);
    Err(([(header::WWW_AUTHENTICATE, "Bearer")], refusal).into_response())
}

/// The caller with a token. All tokens are compared, so that the time reveals nothing.
fn caller_of(tokens: &[Token], given: &[u8]) -> Option<Caller> {
    let found =
        tokens.iter().fold(None, |found, token| if is_same(given, &token.secret) { Some(token) } else { found });
    found.map(|token| token.caller.clone())
}

/// The tokens of a file: one line `NAME TOKEN` each, followed by `tap-values` for a token with that right.
///
/// # Errors
/// The reason, which quotes no part of a token.
fn read(path: &Path) -> Result<Vec<Token>, String> {
    let text = files::read_bounded(path, FILE_BYTES_MAX).map_err(|error| error.problem().to_owned())?;
    let mut tokens: Vec<Token> = Vec::new();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let read = match (words.next(), words.next(), words.next(), words.next()) {
            (None, ..) => continue,
            (Some(name), Some(secret), None, _) => name_from(name).and_then(|name| token(name, secret, false)),
            (Some(name), Some(secret), Some(right), None) if right == TAP_VALUES.as_bytes() => {
                name_from(name).and_then(|name| token(name, secret, true))
            }
            // Quotes no word, because it can be part of a token.
            _ => Err(format!("neither NAME TOKEN nor NAME TOKEN {TAP_VALUES}")),
        };
        let read = read.map_err(|reason| format!("line {}: {reason}", number + 1))?;
        if tokens.iter().any(|other| other.caller.name == read.caller.name) {
            return Err(format!("line {}: two tokens have the name {}", number + 1, read.caller.name));
        }
        tokens.push(read);
    }
    if tokens.is_empty() {
        return Err("no line NAME TOKEN".to_owned());
    }
    Ok(tokens)
}

fn name_from(word: &[u8]) -> Result<&str, String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(byte);
    let name = std::str::from_utf8(word).ok().filter(|_| word.len() <= NAME_BYTES_MAX && word.iter().all(is_plain));
    name.ok_or_else(|| format!("a name has at most {NAME_BYTES_MAX} letters, digits and any of - _ . @"))
}

fn token(name: &str, secret: &[u8], may_see_values: bool) -> Result<Token, String> {
    if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&secret.len()) {
        return Err(format!("a token has {TOKEN_BYTES_MIN} to {TOKEN_BYTES_MAX} bytes, this one has {}", secret.len()));
    }
    Ok(Token { caller: Caller { name: name.to_owned(), may_see_values }, secret: secret.to_vec() })
}

/// The token of an `authorization` header. The scheme may be in any case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Compares in a time that depends only on the lengths.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "s3cret-s3cret-s3";
    const OTHER: &str = "0ther-0ther-0the";

    #[test]
    fn a_token_is_read_and_compared_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            read(file.path())
        };
        let caller = |name: &str, may_see_values| Caller { name: name.into(), may_see_values };
        let token = |name: &str, secret: &str| Token { caller: caller(name, false), secret: secret.into() };
        assert_eq!(with(&format!("a {}", "x".repeat(4_096))), Ok(vec![token("a", &"x".repeat(4_096))]));
        assert_eq!(with(&"x".repeat(65_537)), Err("more than 65536 bytes".to_owned()));
        assert!(read(Path::new("/nowhere/token")).unwrap_err().contains("No such file"));
        let two = with(&format!("ann\t{SECRET}\r\n\n deploy@ci  {OTHER} \n")).unwrap();
        assert_eq!(two, [token("ann", SECRET), token("deploy@ci", OTHER)]);
        assert_eq!(caller_of(&two, OTHER.as_bytes()), Some(caller("deploy@ci", false)));
        assert_eq!(caller_of(&two, b"ann"), None);
        let rights = with(&format!("ann {SECRET} tap-values\nbob {OTHER}\n")).unwrap();
        assert_eq!(rights.iter().map(|token| token.caller.may_see_values).collect::<Vec<_>>(), [true, false]);
    }

    /// The name in a cut line became the token.
    #[test]
    fn a_line_that_was_cut_is_refused_with_its_number_and_without_its_text() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, reason) in [
            ("", "no line NAME TOKEN"),
            (" \n", "no line NAME TOKEN"),
            ("ann", "line 1: neither NAME TOKEN"),
            ("#", "line 1: neither NAME TOKEN"),
            (SECRET, "line 1: neither NAME TOKEN"),
            (&format!("ann {SECRET}\nbob\n"), "line 2: neither NAME TOKEN"),
            (&format!("ann {}", &SECRET[..15]), "line 1: a token has 16 to 4096 bytes, this one has 15"),
            (&format!("ann {}", "x".repeat(4_097)), "line 1: a token has 16 to 4096 bytes, this one has 4097"),
            (&format!("ann more {SECRET}"), "line 1: neither NAME TOKEN nor NAME TOKEN tap-values"),
            (&format!("ann {SECRET} tap-values more"), "line 1: neither NAME TOKEN"),
            (&format!("ann {SECRET}\nann {OTHER}"), "line 2: two tokens have the name ann"),
            (&format!("a/b {SECRET}"), "line 1: a name has"),
            (&format!("# {SECRET}"), "line 1: a name has"),
            (&format!("{} {SECRET}", "x".repeat(65)), "line 1: a name has"),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let refused = read(file.path()).unwrap_err();
            assert!(refused.starts_with(reason) && !refused.contains("s3cret"), "{text:?}: {refused}");
        }
    }

    /// Each request waited for a writer of the pipe, on a thread of its own: after 509 requests no thread was left.
    #[test]
    fn a_token_file_that_is_a_pipe_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("tokens");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(read(&pipe), Err("cannot be opened: not a regular file".to_owned()));
    }

    /// A file system that does not answer kept a thread for each request.
    #[tokio::test]
    async fn one_request_at_a_time_reads_the_token_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("ann {SECRET}")).unwrap();
        let tokens = Arc::new(TokenFile::new(file.path().to_owned()));
        let reading = tokens.gate.clone().lock_owned().await;
        let asking = tokens.clone();
        let mut asking = tokio::spawn(async move { caller(Some(&asking), &HeaderMap::new(), None).await.map(drop) });
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut asking).await.is_err(), "it waits for its turn");
        drop(reading);
        assert_eq!(asking.await.unwrap().unwrap_err().status(), StatusCode::UNAUTHORIZED);
    }

    #[test]
    fn the_last_good_tokens_stay_in_force() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let tokens = TokenFile::new(file.path().to_owned());
        assert!(tokens.tokens().is_err(), "an empty file, and none before it");
        for (text, expected) in [(SECRET, None), ("ann s", None), (OTHER, Some("ann")), ("", Some("ann"))] {
            let written = if text == OTHER { format!("ann {text}") } else { text.to_owned() };
            std::fs::write(file.path(), written).unwrap();
            let names = tokens.tokens().ok().map(|tokens| tokens[0].caller.name.clone());
            assert_eq!(names.as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_token_is_compared_whole() {
        assert!(is_same(b"s3cret", b"s3cret"));
        for other in ["", "s3cre", "s3crets", "S3cret"] {
            assert!(!is_same(other.as_bytes(), b"s3cret"), "{other}");
        }
        assert_eq!(bearer(b"bearer x"), Some(&b"x"[..]));
        assert_eq!(bearer(b"Basic x"), None);
        assert_eq!(bearer("bearer\u{e9}x".as_bytes()), None);
    }
}
