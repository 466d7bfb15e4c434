//! The bearer tokens of the admin listener, and who may ask what.
//!
//! The file is read for each request that needs a token, so you can replace tokens without a restart, and every second
//! besides. If the file cannot be used, the last good tokens stay valid. Without good tokens every such request is
//! refused. Not here: what a line of the file means (rights.rs).

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use parking_lot::Mutex;
use tokio::time::MissedTickBehavior;
use weir_engine::words::printable;
use weir_lifecycle::{Life, Phase};
use weir_telemetry::complaint::{Complaint, Complaints};
use weir_telemetry::logging;
use weir_tls::files::{self, OneAtATime};

use super::rights::{self, Caller, Lacking, Right, TokenHash};
use super::{Site, json_error};

/// The largest file of tokens, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1_024;
/// How often refusals of one token, and a file that cannot be used, are logged.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// The most characters of a reason in the log: it has the domain of a request.
const REASON_CHARS_LOGGED_MAX: usize = 300;
/// How long a change waits for room in the log.
pub(super) const LOG_ROOM_WAIT: Duration = Duration::from_secs(5);
/// How long one request waits for room for all its lines.
pub(super) const LOG_ROOM_WAIT_IN_ALL: Duration = Duration::from_secs(60);
/// Why a change is refused if it has no room.
pub(super) const NO_LOG_ROOM: &str =
    "the log has no room for the line of a change, because its target does not take lines";
/// Why a request with another token is refused.
const WRONG_TOKEN: &str = "the token is none of the server's";
/// How often the file is read besides requests.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The address of a request's sender, as an extension of the request.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) IpAddr);

/// What a path needs of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No token.
    Open,
    /// A token with the right to look.
    Look,
    /// A token with the right to change.
    Change,
    /// With `admin.metrics_token`, a token with the right to look in all domains.
    Metrics,
}

#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    last_good: Mutex<Option<Tokens>>,
    /// Why the file could not be used when it was last read.
    problem: Mutex<Option<String>>,
    /// A file system that does not answer costs one thread, and not one for each request.
    gate: OneAtATime,
    refused: AtomicU64,
    /// Log lines about an unusable file.
    unusable: Mutex<Complaint>,
    /// Log lines about refused requests, by the name of their token.
    refusals: Mutex<Complaints>,
}

type Tokens = Arc<[Arc<Caller>]>;

impl TokenFile {
    /// The tokens of this file. It is read when a request needs a token.
    pub fn new(path: PathBuf) -> Self {
        let (last_good, problem, gate) = (Mutex::default(), Mutex::default(), OneAtATime::default());
        let unusable = Mutex::new(Complaint::new(LOG_EVERY));
        let refusals = Mutex::new(Complaints::new(LOG_EVERY));
        Self { path, last_good, problem, gate, refused: AtomicU64::new(0), unusable, refusals }
    }

    /// Requests that had no token of the file, or a token without the right or the domain.
    pub fn refused(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Whether the file could not be used when it was last read.
    pub fn is_unusable(&self) -> bool {
        self.problem.lock().is_some()
    }

    /// Why the file could not be used when it was last read, with its path.
    pub(super) fn problem(&self) -> Option<String> {
        let problem = self.problem.lock();
        problem.as_ref().map(|reason| in_file(&self.path, reason))
    }

    /// Reads the file every second until weir drains, so that a file that cannot be used shows without a request.
    pub async fn follow(self: Arc<Self>, life: Life) {
        let mut ticks = tokio::time::interval(READ_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let read = async {
                ticks.tick().await;
                self.current().await
            };
            tokio::select! {
                () = life.reached(Phase::Draining) => return,
                // What is wrong is logged.
                _ = read => {}
            }
        }
    }

    /// The tokens, read off the runtime.
    async fn current(self: &Arc<Self>) -> Result<Tokens, String> {
        let reading = self.clone();
        files::off_the_runtime(&self.gate, move || Ok(reading.tokens())).await.flatten()
    }

    /// Whether a caller still had its token and the same rights when the file was last read.
    pub(super) fn still_has(&self, caller: &Arc<Caller>) -> bool {
        self.last_good.lock().as_ref().is_some_and(|tokens| tokens.contains(caller))
    }

    fn tokens(&self) -> Result<Tokens, String> {
        let read = read(&self.path);
        *self.problem.lock() = read.as_ref().err().cloned();
        match read {
            Ok(tokens) => {
                let tokens: Tokens = tokens.into();
                *self.last_good.lock() = Some(tokens.clone());
                Ok(tokens)
            }
            Err(reason) => {
                let last_good = self.last_good.lock().clone();
                if self.unusable.lock().failed(1).is_some() {
                    let file = self.path.display();
                    let effect = if last_good.is_some() {
                        "the last good tokens stay valid"
                    } else {
                        "requests that need a token are refused"
                    };
                    tracing::error!(%file, reason, effect, "token file refused");
                }
                last_good.ok_or(reason)
            }
        }
    }

    /// Counts a refused request. `token` is the name of its token, if it has one of the file.
    fn refuse(&self, Refused { peer, method, path }: &Refused, token: Option<&str>, reason: &str) {
        self.refused.fetch_add(1, Relaxed);
        // Without a token, one line for each of the few reasons.
        let of_line = token.unwrap_or(reason);
        let Some(refused) = self.refusals.lock().failed((token.is_some(), of_line)) else { return };
        let peer = peer.map(tracing::field::display);
        let message = match token {
            None => "refused a request without a token of admin.token_file",
            Some(_) => "refused a request whose token lacks a right or a domain",
        };
        let reason: String = reason.chars().take(REASON_CHARS_LOGGED_MAX).collect();
        tracing::warn!(peer, token, reason, %method, path, refused, "{message}");
    }
}

/// A request that may be refused, for the log.
struct Refused {
    peer: Option<IpAddr>,
    method: Method,
    path: String,
}

impl Refused {
    fn of(method: &Method, uri: &Uri, extensions: &Extensions) -> Self {
        let peer = extensions.get().map(|PeerAddress(address)| *address);
        Self { peer, method: method.clone(), path: uri.path().to_owned() }
    }
}

/// Lets callers pass that have what a path needs, and gives the caller to its handler.
pub(super) async fn authorize(
    State((site, needs)): State<(Arc<Site>, Access)>,
    mut request: Request,
    next: Next,
) -> Response {
    let is_open = match needs {
        Access::Open => true,
        Access::Metrics => !site.admin.metrics_token,
        Access::Look | Access::Change => false,
    };
    if is_open {
        return next.run(request).await;
    }
    let of_log = Refused::of(request.method(), request.uri(), request.extensions());
    let caller = match caller(site.admin.tokens.as_ref(), request.headers(), &of_log).await {
        Ok(caller) => caller,
        Err(refusal) => return refusal,
    };
    let allowed = match needs {
        Access::Change => caller.check_right(Right::Change),
        Access::Metrics => caller.check_right(Right::Look).and_then(|()| caller.check_metrics()),
        Access::Look | Access::Open => caller.check_right(Right::Look),
    };
    request.extensions_mut().insert(caller.clone());
    let answer = match allowed {
        Ok(()) if needs == Access::Change => match waited_for_log(&site, &caller).await {
            Ok(()) => next.run(request).await,
            Err(refused) => refused,
        },
        Ok(()) => next.run(request).await,
        Err(lacking) => lacking.into(),
    };
    if let (Some(file), Some(Lacking(reason))) = (&site.admin.tokens, answer.extensions().get()) {
        file.refuse(&of_log, Some(&caller.name), reason);
    }
    answer
}

/// Waits until the log has room for the line of what a caller does. Meanwhile its token can be removed.
///
/// # Errors
/// The answer if there is no room in time, or if the token has gone.
pub(super) async fn waited_for_log(site: &Site, caller: &Arc<Caller>) -> Result<(), Response> {
    if logging::has_room(Instant::now()).await {
        return Ok(());
    }
    if !logging::has_room(Instant::now() + LOG_ROOM_WAIT).await {
        return Err(json_error(StatusCode::SERVICE_UNAVAILABLE, NO_LOG_ROOM));
    }
    check_again(site, caller).await.map_err(Response::from)
}

/// Whether the caller of a change still has its token with the same rights. Its body may have arrived slowly.
///
/// # Errors
/// If not.
pub(super) async fn check_again(site: &Site, caller: &Arc<Caller>) -> Result<(), Lacking> {
    let Some(file) = &site.admin.tokens else { return Ok(()) };
    // If it cannot be read now, the last good tokens count.
    let _ = file.current().await;
    let reason = || format!("the token {} was removed or changed before its request had arrived", caller.name);
    if file.still_has(caller) { Ok(()) } else { Err(Lacking(reason())) }
}

/// Whether a request to a path that needs nothing may see what only operators of all domains see. Counts a wrong token.
pub(super) async fn sees_all(site: &Site, request: &Parts) -> bool {
    let Some(file) = &site.admin.tokens else { return true };
    let Some(given) = request.headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes())) else {
        return false;
    };
    let tokens = file.current().await.unwrap_or_default();
    let caller = caller_of(&tokens, given);
    if caller.is_none() {
        file.refuse(&Refused::of(&request.method, &request.uri, &request.extensions), None, WRONG_TOKEN);
    }
    caller.is_some_and(|caller| caller.may(Right::Look) && caller.has_all_domains())
}

/// The caller with the request's token. Without a file no token is needed.
///
/// # Errors
/// The answer to a request without one.
async fn caller(file: Option<&Arc<TokenFile>>, headers: &HeaderMap, of_log: &Refused) -> Result<Arc<Caller>, Response> {
    let Some(file) = file else { return Ok(Arc::new(Caller::anyone())) };
    let Ok(tokens) = file.current().await else {
        return Err(json_error(StatusCode::SERVICE_UNAVAILABLE, "the server cannot read its admin.token_file"));
    };
    let given = headers.get(header::AUTHORIZATION);
    let reason = match given.map(|value| bearer(value.as_bytes())) {
        None => "the request has no header \"authorization\"",
        Some(None) => "the header \"authorization\" does not begin with \"Bearer \"",
        Some(Some(token)) => match caller_of(&tokens, token) {
            Some(caller) => return Ok(caller.clone()),
            None => WRONG_TOKEN,
        },
    };
    file.refuse(of_log, None, reason);
    let advice = "send the header \"authorization: Bearer TOKEN\" with a token of admin.token_file";
    let refusal = json_error(StatusCode::UNAUTHORIZED, format!("{reason}: {advice}"));
    Err(([(header::WWW_AUTHENTICATE, "Bearer")], refusal).into_response())
}

/// The caller with a token. All hashes are compared, so that the time reveals nothing.
fn caller_of<'t>(tokens: &'t [Arc<Caller>], given: &[u8]) -> Option<&'t Arc<Caller>> {
    let given = rights::hash_of(given);
    tokens.iter().fold(None, |found, caller| if is_same(&given, &caller.hash) { Some(caller) } else { found })
}

/// Checks a file of tokens.
///
/// # Errors
/// The reason, which quotes no part of a token.
pub fn check_tokens(path: &Path) -> Result<(), String> {
    read(path).map(drop).map_err(|reason| in_file(path, &reason))
}

fn in_file(path: &Path, reason: &str) -> String {
    format!("{}: {reason}", printable(&path.display().to_string()))
}

/// The tokens of a file.
///
/// # Errors
/// The reason, which quotes no part of a token.
fn read(path: &Path) -> Result<Vec<Arc<Caller>>, String> {
    parse(&files::read_bounded(path, FILE_BYTES_MAX).map_err(|error| error.problem().to_owned())?)
}

pub(super) fn parse(text: &[u8]) -> Result<Vec<Arc<Caller>>, String> {
    let mut tokens: Vec<Arc<Caller>> = Vec::new();
    let (mut names, mut hashes) = (HashSet::new(), HashSet::new());
    for (number, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let at = |reason: String| format!("line {}: {reason}", number + 1);
        let Some(caller) = rights::parse(line).map_err(at)? else { continue };
        // A line that was cut could have more rights, or fewer letters of its token.
        if !line.ends_with(b"\n") {
            return Err(at("has no line end, so a part of it can be missing".to_owned()));
        }
        if !names.insert(caller.name.clone()) {
            return Err(at(format!("two tokens have the name {}", caller.name)));
        }
        if !hashes.insert(caller.hash) {
            return Err(at(format!("the token of {} has another name too", caller.name)));
        }
        tokens.push(Arc::new(caller));
    }
    if tokens.is_empty() {
        return Err("no line NAME TOKEN".to_owned());
    }
    Ok(tokens)
}

/// The token of an `authorization` header. The scheme may be in any case.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Compares in constant time.
fn is_same(one: &TokenHash, other: &TokenHash) -> bool {
    one.iter().zip(other).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "s3cret-s3cret-s3";
    const OTHER: &str = "0ther-0ther-0the";

    fn names(tokens: &[Arc<Caller>]) -> Vec<&str> {
        tokens.iter().map(|caller| &*caller.name).collect()
    }

    #[test]
    fn the_tokens_of_a_file_are_read_and_compared_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            read(file.path())
        };
        assert!(read(Path::new("/nowhere/token")).unwrap_err().contains("No such file"));
        let two = with(&format!("ann\t{SECRET}\r\n\n deploy@ci  {OTHER} \n \n")).unwrap();
        assert_eq!(names(&two), ["ann", "deploy@ci"]);
        assert_eq!(caller_of(&two, OTHER.as_bytes()).map(|caller| &*caller.name), Some("deploy@ci"));
        for other in ["ann", "", &OTHER[1..], "0THER-0ther-0the"] {
            assert_eq!(caller_of(&two, other.as_bytes()), None, "{other}");
        }
        let hashed = weir_text::hex(&rights::hash_of(SECRET.as_bytes()));
        let one = with(&format!("ann sha256:{hashed} look *\n")).unwrap();
        assert_eq!(caller_of(&one, SECRET.as_bytes()).map(|caller| &*caller.name), Some("ann"));
        assert_eq!(caller_of(&one, format!("sha256:{hashed}").as_bytes()), None, "the hash is no token");
        let twice = format!("ann {SECRET}\nbob sha256:{hashed} look *\n");
        assert_eq!(with(&twice), Err("line 2: the token of bob has another name too".to_owned()));
    }

    /// The name in a cut line became the token. A line that lost its rights would have more of them.
    #[test]
    fn a_file_that_was_cut_anywhere_in_a_line_is_refused_with_the_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let with = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            read(file.path())
        };
        let first = format!("ann {SECRET} look team-a/*\n");
        let whole = format!("{first}bob {OTHER}0123456789 all team-b/*,shared\n");
        assert_eq!(names(&with(&whole).unwrap()), ["ann", "bob"]);
        for end in 1..whole.len() {
            let refused = with(&whole[..end]);
            if end == first.len() {
                // Each line counts as it is.
                assert_eq!(names(&refused.unwrap()), ["ann"]);
                continue;
            }
            let (line, reason) = (if end < first.len() { 1 } else { 2 }, refused.unwrap_err());
            assert!(reason.starts_with(&format!("line {line}: ")) && !reason.contains("s3cret"), "{end}: {reason}");
        }
        for (text, reason) in [
            (String::new(), "no line NAME TOKEN"),
            (" \n".to_owned(), "no line NAME TOKEN"),
            (format!("ann {SECRET}\nann {OTHER}\n"), "line 2: two tokens have the name ann"),
            (format!("ann {SECRET}\nbob {OTHER} lok *\n"), "line 2: no right \"lok\""),
            ("\n".repeat(65_537), "more than 65536 bytes"),
            ((0..100_000).map(|n| format!("a{n} {SECRET}{n} look *\n")).collect(), "more than 65536 bytes"),
        ] {
            let refused = with(&text).unwrap_err();
            assert!(refused.starts_with(reason) && !refused.contains("s3cret"), "{reason:?}: {refused}");
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
        std::fs::write(file.path(), format!("ann {SECRET}\n")).unwrap();
        let tokens = Arc::new(TokenFile::new(file.path().to_owned()));
        let reading = tokens.gate.clone().lock_owned().await;
        let asking = tokens.clone();
        let mut asking = tokio::spawn(async move {
            caller(Some(&asking), &HeaderMap::new(), &Refused { peer: None, method: Method::GET, path: String::new() })
                .await
                .map(drop)
        });
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut asking).await.is_err(), "it waits for its turn");
        drop(reading);
        assert_eq!(asking.await.unwrap().unwrap_err().status(), StatusCode::UNAUTHORIZED);
    }

    #[test]
    fn the_last_good_tokens_stay_in_force() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let tokens = TokenFile::new(file.path().to_owned());
        assert!(tokens.tokens().is_err() && tokens.is_unusable(), "an empty file, and none before it");
        let good = format!("ann {SECRET} look shop\n");
        for (text, expected) in [
            (SECRET, None),
            ("ann s\n", None),
            (&*good, Some("shop")),
            ("", Some("shop")),
            (&good[..good.len() - 1], Some("shop")),
            (&good[..SECRET.len() + 4], Some("shop")),
        ] {
            std::fs::write(file.path(), text).unwrap();
            let read = tokens.tokens().ok();
            let callers = read.iter().flat_map(|tokens| tokens.iter());
            let domains: Vec<_> = callers.map(|caller| (caller.has("shop"), caller.has_all_domains())).collect();
            assert_eq!(domains, expected.map(|_| (true, false)).into_iter().collect::<Vec<_>>(), "{text:?}");
            assert_eq!(tokens.is_unusable(), text != good, "{text:?}");
        }
    }

    #[test]
    fn hashes_are_compared_whole() {
        let hash = rights::hash_of(b"s3cret");
        assert!(is_same(&hash, &hash.clone()));
        for at in 0..hash.len() {
            let mut other = hash;
            other[at] ^= 1;
            assert!(!is_same(&hash, &other), "{at}");
        }
        assert_eq!(bearer(b"bearer x"), Some(&b"x"[..]));
        assert_eq!(bearer(b"Basic x"), None);
        assert_eq!(bearer("bearer\u{e9}x".as_bytes()), None);
    }
}
