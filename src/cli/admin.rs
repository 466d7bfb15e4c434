//! A client of a running server's admin listener. An answer has bounds of time and size, or is read line by line.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use http_body::Body as _;
pub use hyper::Method;
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::http::uri::InvalidUri;
use hyper::{Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use weir_api::ErrorAnswer;
use weir_engine::words::printable;
use weir_settings::Setting;
use weir_text::percent_encoded;
use weir_tls::dial::{AbortOnDrop, Answered, Dial, NoResponse, Trouble};

use super::token::Token;

/// The most bytes until the end of the head of an answer, including heads of 100 Continue and the part of the body that
/// is read with it.
const UNANSWERED_BYTES_MAX: usize = 256 * 1_024;
/// The most parts of an answer that wait for their reader.
const PARTS_MAX: usize = 4;
/// The largest error of a server, in bytes.
const ERROR_BYTES_MAX: usize = 64 * 1_024;
/// How much of an error's text is shown, in characters.
const REASON_CHARS_MAX: usize = 300;

/// The address of an admin listener: `HOST:PORT`, `HOST`, `[IPV6]:PORT`, `IPV6`, each also after `http://`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminServer {
    /// A name, or an address without brackets.
    host: String,
    port: u16,
}

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The largest body in bytes.
    pub bytes_max: usize,
    /// The longest time from connecting to the last byte.
    pub timeout: Duration,
}

/// Why there is no usable answer. Each variant has the address.
#[derive(Debug, thiserror::Error)]
pub enum NoAnswer {
    #[error("cannot connect to {0}: {1}")]
    Connect(AdminServer, String),
    #[error("no answer from {0} to {1} within {2:?}")]
    Timeout(AdminServer, String, Duration),
    /// The connection broke, or the answer is not HTTP.
    #[error("{0} does not answer {1} by HTTP: {2}")]
    Broken(AdminServer, String, String),
    #[error("{0} answers {1} with {2}: {3}")]
    Refused(AdminServer, String, StatusCode, String),
    #[error("the answer of {0} to {1} is larger than {2} bytes")]
    TooLarge(AdminServer, String, usize),
    #[error("{0} is not a weir of this version: {1}: {2}")]
    Unknown(AdminServer, String, String),
}

/// Why a command has no answer to its request.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// The file with the token cannot be used.
    #[error("{0}")]
    Token(String),
    /// The server gave no usable answer, or refused.
    #[error("{0}")]
    NoAnswer(#[from] NoAnswer),
    #[error("cannot start: {0}")]
    Start(io::Error),
}

#[derive(Clone, Debug)]
struct Sent<'a> {
    method: Method,
    path: &'a str,
    /// The JSON body; empty for none.
    body: String,
    token: &'a Token,
}

impl<'a> Sent<'a> {
    const fn get(path: &'a str, token: &'a Token) -> Self {
        Self { method: Method::GET, path, body: String::new(), token }
    }
}

impl fmt::Display for Sent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// 200.
    Ok,
    /// 200 and 503: with 503, `/readyz` gives the reason why weir is not ready.
    OkOrUnready,
}

impl Default for AdminServer {
    fn default() -> Self {
        let preset = Setting::find("listen.admin").map(Setting::default_text).unwrap_or_default();
        preset.parse().unwrap_or_else(|_| Self { host: "127.0.0.1".to_owned(), port: 6070 })
    }
}

impl FromStr for AdminServer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("https://") {
            return Err("the admin listener has no TLS: write http://HOST:PORT".to_owned());
        }
        let bare = text.strip_prefix("http://").unwrap_or(text);
        let bare = bare.strip_suffix('/').unwrap_or(bare);
        let (host, port) =
            host_and_port(bare).ok_or_else(|| "not an address such as localhost:6070 or [::1]:6070".to_owned())?;
        let port = port.unwrap_or_else(|| Self::default().port);
        Ok(Self { host: host.to_owned(), port })
    }
}

/// A name or an address without brackets, and an optional port: `HOST`, `HOST:PORT`, `IPV6`, `[IPV6]`, `[IPV6]:PORT`.
pub(super) fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, port) = if text.parse::<Ipv6Addr>().is_ok() {
        (text, None)
    } else if let Some((host, rest)) = text.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        host.parse::<Ipv6Addr>().ok()?;
        (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
    } else {
        let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if host.is_empty() || !host.chars().all(is_of_name) {
            return None;
        }
        (host, port)
    };
    let port = match port {
        None => None,
        Some(port) => Some(port.parse().ok().filter(|port| *port > 0)?),
    };
    Some((host, port))
}

impl fmt::Display for AdminServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V6(host)) => write!(f, "[{host}]:{}", self.port),
            _ => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// The server, and the token for it.
#[derive(clap::Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerArguments {
    /// The server's admin listener, HOST:PORT
    #[arg(long, value_name = "ADDR", default_value_t)]
    pub server: AdminServer,
    /// A file with a token of the server's admin.token_file
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

impl ServerArguments {
    /// The answer to one request of a command.
    /// Fails when there is no valid answer.
    pub(super) fn request<T: DeserializeOwned + Send + 'static>(
        &self,
        (method, path, body): (Method, &str, String),
        bounds: Bounds,
    ) -> Result<T, Unanswered> {
        let token = Token::of_file(self.token_file.as_deref()).map_err(Unanswered::Token)?;
        let sent = Sent { method, path, body, token: &token };
        Ok(block_on(self.server.ask(&sent, Expected::Ok, bounds)).map_err(Unanswered::Start)??)
    }
}

impl AdminServer {
    /// The JSON at a path.
    ///
    /// # Errors
    /// When there is no valid answer.
    pub async fn json<T: DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
        token: &Token,
        expected: Expected,
        bounds: Bounds,
    ) -> Result<T, NoAnswer> {
        self.ask(&Sent::get(path, token), expected, bounds).await
    }

    async fn ask<T: DeserializeOwned + Send + 'static>(
        &self,
        sent: &Sent<'_>,
        expected: Expected,
        bounds: Bounds,
    ) -> Result<T, NoAnswer> {
        match tokio::time::timeout(bounds.timeout, self.answer(sent, expected, bounds.bytes_max)).await {
            Ok(answer) => answer,
            Err(_) => Err(NoAnswer::Timeout(self.clone(), sent.to_string(), bounds.timeout)),
        }
    }

    async fn answer<T: DeserializeOwned + Send + 'static>(
        &self,
        sent: &Sent<'_>,
        expected: Expected,
        bytes_max: usize,
    ) -> Result<T, NoAnswer> {
        let Answered { response, connection: _connection } = self.send(sent).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::SERVICE_UNAVAILABLE if expected == Expected::OkOrUnready => {}
            status => {
                let body = self.body(response, sent, bytes_max.min(ERROR_BYTES_MAX)).await?;
                return Err(self.refused(sent, status, &body));
            }
        }
        // Read as it arrives, on another thread: the text of an answer is never in memory as a whole.
        let (parts, reader) = mpsc::channel(PARTS_MAX);
        let reading = tokio::task::spawn_blocking(|| {
            let mut reader = PartReader { parts: reader, part: Bytes::new() };
            serde_json::from_reader::<_, T>(io::BufReader::new(&mut reader))
        });
        // A reader that has refused the answer takes no more parts.
        self.parts(response, sent, bytes_max, async |part| parts.send(part).await.is_ok()).await?;
        drop(parts);
        let unknown = |reason: &str| NoAnswer::Unknown(self.clone(), sent.to_string(), shown(reason));
        match reading.await {
            Ok(read) => read.map_err(|error| unknown(&error.to_string())),
            Err(error) => Err(unknown(&error.to_string())),
        }
    }

    /// An answer of lines without an end. `bounds` limit the time until its first byte, and the size of a line or of an
    /// error.
    ///
    /// # Errors
    /// When there is no valid answer.
    pub async fn lines(&self, path: &str, token: &Token, bounds: Bounds) -> Result<Lines, NoAnswer> {
        let sent = &Sent::get(path, token);
        let begin = async {
            let Answered { response, connection } = self.send(sent).await?;
            let status = response.status();
            if status != StatusCode::OK {
                let body = self.body(response, sent, bounds.bytes_max).await?;
                return Err(self.refused(sent, status, &body));
            }
            let (server, path, body) = (self.clone(), sent.to_string(), response.into_body());
            let (bytes, bytes_max) = (VecDeque::new(), bounds.bytes_max);
            Ok(Lines { server, path, body, bytes, bytes_max, searched: 0, _connection: connection })
        };
        match tokio::time::timeout(bounds.timeout, begin).await {
            Ok(begun) => begun,
            Err(_) => Err(NoAnswer::Timeout(self.clone(), sent.to_string(), bounds.timeout)),
        }
    }

    fn refused(&self, sent: &Sent<'_>, status: StatusCode, body: &[u8]) -> NoAnswer {
        let mut reason = reason(body);
        if status == StatusCode::UNAUTHORIZED {
            reason.push_str("; ");
            reason.push_str(sent.token.advice());
        }
        NoAnswer::Refused(self.clone(), sent.to_string(), status, reason)
    }

    async fn send(&self, sent: &Sent<'_>) -> Result<Answered, NoAnswer> {
        let broken = |reason: String| NoAnswer::Broken(self.clone(), sent.to_string(), reason);
        let mut request = Request::builder().method(sent.method.clone()).uri(sent.path).header("connection", "close");
        if let Some(token) = sent.token.text() {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if !sent.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(sent.body.clone()).map_err(|error| broken(error.to_string()))?;
        let uri = format!("http://{self}").parse().map_err(|error: InvalidUri| broken(error.to_string()))?;
        let dial = Dial { tls: None, trouble: Trouble::default(), answer_bytes_max: UNANSWERED_BYTES_MAX };
        dial.send(&uri, request).await.map_err(|error| match error {
            NoResponse::Connect(error) => NoAnswer::Connect(self.clone(), error.to_string()),
            NoResponse::Broken(error) => broken(innermost(&error)),
        })
    }

    async fn body(&self, response: Response<Incoming>, sent: &Sent<'_>, bytes_max: usize) -> Result<Vec<u8>, NoAnswer> {
        let mut body = Vec::new();
        let add = async |part: Bytes| {
            body.extend_from_slice(&part);
            true
        };
        self.parts(response, sent, bytes_max, add).await?;
        Ok(body)
    }

    /// Gives each part of a body to `take`, until that returns false.
    async fn parts(
        &self,
        response: Response<Incoming>,
        sent: &Sent<'_>,
        bytes_max: usize,
        mut take: impl AsyncFnMut(Bytes) -> bool,
    ) -> Result<(), NoAnswer> {
        let mut incoming = response.into_body();
        let mut bytes = 0;
        while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut incoming).poll_frame(context)).await {
            let frame = frame.map_err(|error| NoAnswer::Broken(self.clone(), sent.to_string(), innermost(&error)))?;
            let Ok(data) = frame.into_data() else { continue };
            bytes += data.len();
            if bytes > bytes_max {
                return Err(NoAnswer::TooLarge(self.clone(), sent.to_string(), bytes_max));
            }
            if !take(data).await {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The parts of a body as one stream, for a thread that may block.
struct PartReader {
    parts: mpsc::Receiver<Bytes>,
    /// What is left of the last part.
    part: Bytes,
}

impl Read for PartReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.parts.blocking_recv() {
                Some(part) => self.part = part,
                None => return Ok(0),
            }
        }
        let count = into.len().min(self.part.len());
        into[..count].copy_from_slice(&self.part.split_to(count));
        Ok(count)
    }
}

/// The lines of an answer without an end.
pub struct Lines {
    server: AdminServer,
    path: String,
    body: Incoming,
    bytes: VecDeque<u8>,
    /// How many of these bytes were already searched for a line end.
    searched: usize,
    bytes_max: usize,
    _connection: AbortOnDrop,
}

impl Lines {
    /// The next line without its end. None after the last. A cancelled call loses nothing.
    ///
    /// # Errors
    /// If the connection breaks, or a line is too long or not UTF-8.
    pub async fn next(&mut self) -> Result<Option<String>, NoAnswer> {
        loop {
            let end = self.bytes.range(self.searched..).position(|byte| *byte == b'\n');
            if let Some(end) = end {
                let mut line: Vec<u8> = self.bytes.drain(..=self.searched + end).collect();
                self.searched = 0;
                line.pop();
                let no_text = |_| NoAnswer::Unknown(self.server.clone(), self.path.clone(), "no UTF-8".to_owned());
                return String::from_utf8(line).map(Some).map_err(no_text);
            }
            self.searched = self.bytes.len();
            if self.bytes.len() > self.bytes_max {
                return Err(NoAnswer::TooLarge(self.server.clone(), self.path.clone(), self.bytes_max));
            }
            let frame = std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await;
            match frame {
                // An incomplete last line is dropped.
                None => return Ok(None),
                Some(Ok(frame)) => self.bytes.extend(frame.into_data().unwrap_or_default()),
                Some(Err(error)) => {
                    return Err(NoAnswer::Broken(self.server.clone(), self.path.clone(), innermost(&error)));
                }
            }
        }
    }
}

fn reason(body: &[u8]) -> String {
    match serde_json::from_slice::<ErrorAnswer>(body) {
        Ok(body) => shown(&body.error),
        Err(_) => shown(String::from_utf8_lossy(body).trim()),
    }
}

/// A server's text, shortened, with control characters escaped.
fn shown(text: &str) -> String {
    let cut: String = text.chars().take(REASON_CHARS_MAX).collect();
    printable(&cut)
}

fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => shown(&error.to_string()),
    }
}

/// Percent-encodes a value of a query.
pub(super) fn encoded(text: &str) -> String {
    percent_encoded(text, |_| false)
}

/// Runs asynchronous work of a command on this thread.
///
/// # Errors
/// If this process cannot start a runtime.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(work);
    // Does not wait for a name server without an answer.
    runtime.shutdown_background();
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_in_each_form() {
        for (text, expected) in [
            ("localhost:6070", "localhost:6070"),
            ("localhost", "localhost:6070"),
            ("http://weir-0.weir.prod:7000/", "weir-0.weir.prod:7000"),
            ("10.1.2.3", "10.1.2.3:6070"),
            ("10.1.2.3:1", "10.1.2.3:1"),
            ("::1", "[::1]:6070"),
            ("[::1]", "[::1]:6070"),
            ("[2001:db8::1]:80", "[2001:db8::1]:80"),
            ("http://[::1]:6070", "[::1]:6070"),
        ] {
            assert_eq!(text.parse::<AdminServer>().map(|server| server.to_string()), Ok(expected.to_owned()), "{text}");
        }
        assert_eq!(AdminServer::default().to_string(), "127.0.0.1:6070");
        for text in [
            "",
            ":6070",
            "localhost:",
            "localhost:0",
            "localhost:65536",
            "localhost:6070/top",
            "a b",
            "user@host",
            "[::1",
            "[::1]6070",
            "[localhost]:1",
            "::1:x",
            "http://",
            "a\u{1b}[31m",
            "localhost:6070?x",
        ] {
            assert!(text.parse::<AdminServer>().unwrap_err().starts_with("not an address"), "{text}");
        }
        assert!("https://localhost:6070".parse::<AdminServer>().unwrap_err().contains("has no TLS"));
    }

    #[tokio::test]
    async fn a_server_that_sends_100_continue_without_end_is_left() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server: AdminServer = listener.local_addr().unwrap().to_string().parse().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // An answer before the request is none.
            tokio::io::AsyncReadExt::read_u8(&mut stream).await.unwrap();
            while tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 100 Continue\r\n\r\n").await.is_ok() {}
        });
        // The time is longer than a test may take, so only the bound of bytes can end the request.
        let bounds = Bounds { bytes_max: 1 << 20, timeout: Duration::from_secs(3_600) };
        let token = Token::default();
        let answer = server.json::<serde_json::Value>("/top", &token, Expected::Ok, bounds);
        let error = tokio::time::timeout(Duration::from_secs(60), answer).await.expect("an end").unwrap_err();
        assert!(error.to_string().contains("has sent more than 262144 bytes"), "{error}");
    }

    /// An answer of 512 MB was held as a whole before its first byte was read.
    #[test]
    fn a_large_answer_is_read_as_it_arrives() {
        const BYTES: usize = 64 << 20;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server: AdminServer = listener.local_addr().unwrap().to_string().parse().unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // An answer before the request is none.
            io::Read::read_exact(&mut stream, &mut [0]).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BYTES}\r\n\r\n");
            io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
            // The first byte is wrong.
            let part = vec![b'x'; 1 << 20];
            (0..BYTES / part.len()).take_while(|_| io::Write::write_all(&mut stream, &part).is_ok()).count() << 20
        });
        let bounds = Bounds { bytes_max: BYTES, timeout: Duration::from_secs(60) };
        let token = Token::default();
        let asked = server.json::<serde_json::Value>("/policies/source", &token, Expected::Ok, bounds);
        let answer = block_on(asked).unwrap();
        assert!(matches!(answer, Err(NoAnswer::Unknown(..))), "{answer:?}");
        let sent = answering.join().unwrap();
        assert!(sent < BYTES / 2, "{sent} bytes were taken after the first wrong one");
    }

    #[test]
    fn the_text_of_an_error_is_cut_and_harmless() {
        assert_eq!(reason(b"{\"error\":\"no \\u001b[31m\"}"), "no \\u{1b}[31m");
        assert_eq!(reason(b"no /top, only GET /\n"), "no /top, only GET /");
        assert_eq!(reason(&[b'x'; 1_000]).len(), REASON_CHARS_MAX);
    }
}
