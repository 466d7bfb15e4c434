//! A webhook that keeps what it gets, by HTTP or HTTPS on a port of its own, and answers as a test asks. It checks signatures by
//! reckoning of its own.
//!
//! Not in here: what weir should send.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::wait::{PATIENCE, until};

/// The secret of all tests: 32 bytes of 7.
pub const SECRET: &str = "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
const SECRET_BYTES: [u8; 32] = [7; 32];

/// What the webhook does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// Answers 204.
    Take,
    /// Answers with this status, and with a `location` and a body.
    Answer(u16),
    /// Never answers, until the test ends.
    Nothing,
    /// Closes the connection.
    Close,
    /// Answers 200 with a body that has no end.
    Flood,
    /// Sends 100 Continue without end.
    Continue,
    /// Answers 500 to a body with this text, and takes others.
    Refuse(&'static str),
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// `POST /path`.
    pub target: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: String,
    /// What the webhook did with it.
    pub done: Does,
}

impl Delivery {
    /// `webhook-id`.
    pub fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    /// The `data` of the message.
    pub fn data(&self) -> Value {
        serde_json::from_str::<Value>(&self.body).expect("JSON")["data"].clone()
    }

    /// Whether the signature is that of the secret.
    pub fn is_signed(&self) -> bool {
        let signed = format!("{}.{}.{}", self.id(), self.headers["webhook-timestamp"], self.body);
        self.headers["webhook-signature"] == format!("v1,{}", base64(&hmac_sha256(&SECRET_BYTES, signed.as_bytes())))
    }
}

/// HMAC as RFC 2104 has it, for keys of at most 64 bytes.
fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
    let pad = |byte: u8| (0..64).map(|i| key.get(i).copied().unwrap_or(0) ^ byte).collect::<Vec<u8>>();
    let inner = Sha256::digest([&pad(0x36)[..], text].concat());
    Sha256::digest([&pad(0x5c)[..], &inner[..]].concat()).to_vec()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let at = (bits >> (18 - 6 * digit)) & 63;
            text.push(if digit > three.len() { '=' } else { char::from(DIGITS[at as usize]) });
        }
    }
    text
}

struct Shared {
    /// What is done with the next requests, the last one first, and with all after them.
    plan: Mutex<(Vec<Does>, Does)>,
    deliveries: Mutex<Vec<Delivery>>,
    is_over: AtomicBool,
}

/// A running webhook.
pub struct Webhook {
    /// Where it listens.
    pub address: SocketAddr,
    scheme: &'static str,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    secret: tempfile::NamedTempFile,
}

impl Webhook {
    /// By HTTP.
    pub fn start(does: Does) -> Webhook {
        Webhook::listening(does, None)
    }

    /// By HTTPS.
    pub fn start_tls(does: Does, tls: &ServerConfig) -> Webhook {
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Webhook::listening(does, Some(Arc::new(tls)))
    }

    fn listening(does: Does, tls: Option<Arc<ServerConfig>>) -> Webhook {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let plan = Mutex::new((Vec::new(), does));
        let shared = Arc::new(Shared { plan, deliveries: Mutex::default(), is_over: AtomicBool::new(false) });
        let of_thread = shared.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if of_thread.is_over.load(SeqCst) {
                    return;
                }
                let (shared, tls) = (of_thread.clone(), tls.clone());
                let stream = stream.expect("a connection");
                // A client that goes away is no failure of the test.
                std::thread::spawn(move || drop(serve(&shared, stream, tls)));
            }
        });
        let secret = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(secret.path(), format!("{SECRET}\n")).expect("the secret is written");
        Webhook { address, scheme, shared, thread: Some(thread), secret }
    }

    /// The settings with which weir sends to it.
    pub fn settings(&self) -> [String; 2] {
        [
            format!("alerts.webhook_url={}://localhost:{}/hooks/weir?token=T0KEN", self.scheme, self.address.port()),
            format!("alerts.webhook_secret_file={}", self.secret.path().display()),
        ]
    }

    /// What it does with the next requests, one after the other, and with those after them.
    pub fn plan(&self, next: &[Does], then: Does) {
        *self.shared.plan.lock().unwrap() = (next.iter().rev().copied().collect(), then);
    }

    /// All requests so far.
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.shared.deliveries.lock().unwrap().clone()
    }

    /// The requests that it took, once there are so many.
    pub fn taken(&self, count: usize) -> Vec<Delivery> {
        until("the webhook to get its alerts", PATIENCE, || {
            let taken: Vec<Delivery> = self.deliveries().into_iter().filter(|it| it.done == Does::Take).collect();
            (taken.len() >= count).then_some(taken)
        })
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.shared.is_over.store(true, SeqCst);
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the webhook does not panic");
        }
    }
}

fn serve(shared: &Shared, stream: TcpStream, tls: Option<Arc<ServerConfig>>) -> io::Result<()> {
    match tls {
        None => answer(shared, &stream, &stream),
        Some(tls) => {
            let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
            let stream = std::cell::RefCell::new(StreamOwned::new(connection, stream));
            answer(shared, Half(&stream), Half(&stream))
        }
    }
}

/// One direction of a stream that cannot be split.
struct Half<'a, S>(&'a std::cell::RefCell<S>);

impl<S: Read> Read for Half<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().read(buffer)
    }
}

impl<S: Write> Write for Half<'_, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

fn answer(shared: &Shared, from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = String::new();
    from.read_line(&mut line)?;
    let target = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        from.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().expect("a length"))];
    from.read_exact(&mut body)?;
    let body = String::from_utf8(body).expect("UTF-8");
    let done = {
        let (next, then) = &mut *shared.plan.lock().unwrap();
        match next.pop().unwrap_or(*then) {
            Does::Refuse(text) if body.contains(text) => Does::Answer(500),
            Does::Refuse(_) => Does::Take,
            does => does,
        }
    };
    if !target.is_empty() {
        shared.deliveries.lock().unwrap().push(Delivery { target, headers, body, done });
    }
    match done {
        Does::Take => to.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?,
        Does::Answer(status) => {
            let head = format!("HTTP/1.1 {status} Because\r\nlocation: /elsewhere\r\ncontent-length: 3\r\n\r\nno\n");
            to.write_all(head.as_bytes())?;
        }
        Does::Flood => {
            to.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            while !shared.is_over.load(SeqCst) {
                to.write_all(&[b'x'; 4_096])?;
            }
        }
        Does::Continue => {
            while !shared.is_over.load(SeqCst) {
                to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
        }
        Does::Refuse(_) => unreachable!("it was decided above"),
        // The client's patience ends first.
        Does::Nothing => drop(from.read(&mut [0])?),
        Does::Close => {}
    }
    to.flush()
}
