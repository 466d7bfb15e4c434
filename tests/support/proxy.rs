//! A TCP proxy in front of a server, and what a network does to those who talk over it: answers that are lost or cut, a
//! line that goes dead without a word, and one that is slow.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::wait;

/// The most bytes that are passed on at once.
const CHUNK_BYTES: usize = 16 << 10;

/// A running proxy. It ends with the test process; its threads wait on sockets and do nothing else.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    swallow: AtomicBool,
    silent: AtomicBool,
    numbers_as_texts: AtomicBool,
    delay_us: AtomicU64,
    cut_after: AtomicUsize,
    connections: AtomicU64,
    reads: AtomicU64,
}

impl Proxy {
    /// Listens on a free port of loopback and passes everything to `target` there.
    pub fn start(target: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("the port has a number").port();
        let state = Arc::new(State { cut_after: AtomicUsize::new(usize::MAX), ..State::default() });
        let shared = state.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if shared.silent.load(Ordering::SeqCst) {
                    thread::spawn(move || hold(&client));
                    continue;
                }
                // Where the server is down, the client sees a connection that closes at once.
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else {
                    continue;
                };
                shared.connections.fetch_add(1, Ordering::SeqCst);
                pass(client, server, &shared);
            }
        });
        Proxy { port, state }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of Redis behind this proxy.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on the server's answers are thrown away (or passed on again). The connections stay.
    pub fn swallow(&self, swallow: bool) {
        self.state.swallow.store(swallow, Ordering::SeqCst);
    }

    /// From now on nothing passes, in no direction, and nobody is told: what is sent is lost, and new connections are
    /// accepted and lead nowhere. A connection that has lost something stays dead when the others pass again.
    pub fn silence(&self, silent: bool) {
        self.state.silent.store(silent, Ordering::SeqCst);
    }

    /// From now on numbers that a script computes reach the client as texts: each number in an array. This is how Redis'
    /// relatives answer whose Lua has floats beside integers.
    pub fn numbers_as_texts(&self) {
        self.state.numbers_as_texts.store(true, Ordering::SeqCst);
    }

    /// From now on every answer takes so much longer. Those of one connection are delayed one after the other.
    pub fn delay(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).expect("a delay that a test can wait for");
        self.state.delay_us.store(micros, Ordering::SeqCst);
    }

    /// Passes on that many further bytes of answers, and then closes the connection that the next one
    /// belongs to. Once.
    pub fn cut_after(&self, bytes: usize) {
        self.state.cut_after.store(bytes, Ordering::SeqCst);
    }

    /// Connections made through it so far.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::SeqCst)
    }

    /// How often something was read from a client so far: about one for each batch.
    pub fn reads(&self) -> u64 {
        self.state.reads.load(Ordering::SeqCst)
    }
}

/// Copies both ways, each in a thread of its own, until one side closes.
fn pass(client: TcpStream, server: TcpStream, state: &Arc<State>) {
    // Small answers must not wait for more of them.
    client.set_nodelay(true).expect("the socket is open");
    server.set_nodelay(true).expect("the socket is open");
    let (from_client, to_server) = (clone(&client), clone(&server));
    let dead = Arc::new(AtomicBool::new(false));
    let (shared, is_dead) = (state.clone(), dead.clone());
    thread::spawn(move || {
        copy(&from_client, &to_server, |_| {
            shared.reads.fetch_add(1, Ordering::SeqCst);
            if is_lost(&shared, &is_dead) { Fate::Swallow } else { Fate::Pass }
        });
    });
    let shared = state.clone();
    let mut texts = NumbersAsTexts::default();
    thread::spawn(move || {
        copy(&server, &client, |bytes| {
            if shared.numbers_as_texts.load(Ordering::SeqCst) {
                *bytes = texts.of(bytes);
            }
            let bytes = bytes.len();
            if is_lost(&shared, &dead) || shared.swallow.load(Ordering::SeqCst) {
                return Fate::Swallow;
            }
            let delay = Duration::from_micros(shared.delay_us.load(Ordering::SeqCst));
            if !delay.is_zero() {
                wait::delay(delay);
            }
            let left = shared.cut_after.load(Ordering::SeqCst);
            if left == usize::MAX {
                return Fate::Pass;
            }
            if bytes <= left {
                shared.cut_after.store(left - bytes, Ordering::SeqCst);
                return Fate::Pass;
            }
            shared.cut_after.store(usize::MAX, Ordering::SeqCst);
            Fate::Cut(left)
        });
    });
}

/// Whether what was just read goes nowhere: the line is silent, or was when something of this connection was lost.
fn is_lost(state: &State, dead: &AtomicBool) -> bool {
    if state.silent.load(Ordering::SeqCst) {
        dead.store(true, Ordering::SeqCst);
    }
    dead.load(Ordering::SeqCst)
}

/// Reads what comes and answers nothing, until the client closes.
fn hold(mut client: &TcpStream) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(1..) = client.read(&mut chunk) {}
}

enum Fate {
    Pass,
    Swallow,
    /// Pass so many bytes and close.
    Cut(usize),
}

fn copy(mut from: &TcpStream, mut to: &TcpStream, mut judge: impl FnMut(&mut Vec<u8>) -> Fate) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(bytes @ 1..) = from.read(&mut chunk) {
        let mut read = chunk[..bytes].to_vec();
        let sent = match judge(&mut read) {
            Fate::Pass => to.write_all(&read),
            Fate::Swallow => Ok(()),
            Fate::Cut(bytes) => {
                let _ = to.write_all(&read[..bytes]);
                break;
            }
        };
        if sent.is_err() {
            break;
        }
    }
    // A side that has already closed needs no more.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Answers in RESP, with the numbers of arrays as texts.
#[derive(Default)]
struct NumbersAsTexts {
    line: Vec<u8>,
    /// The bytes of a text that are still to come.
    text_left: usize,
    /// The elements that are still to come of each array that has begun.
    left: Vec<usize>,
}

impl NumbersAsTexts {
    fn of(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut written = Vec::new();
        for &byte in bytes {
            if self.text_left > 0 {
                written.push(byte);
                self.text_left -= 1;
                if self.text_left == 0 {
                    self.element_ends();
                }
                continue;
            }
            self.line.push(byte);
            if byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.add(&line, &mut written);
            }
        }
        written
    }

    fn add(&mut self, line: &[u8], written: &mut Vec<u8>) {
        let text = str::from_utf8(line).expect("lines of Redis are text").trim_end();
        let (kind, rest) = text.split_at(1);
        if kind == ":" && !self.left.is_empty() {
            written.extend(format!("${}\r\n{rest}\r\n", rest.len()).bytes());
        } else {
            written.extend(line);
        }
        match (kind, rest.parse()) {
            ("*", Ok(count @ 1..)) => self.left.push(count),
            ("$", Ok(bytes)) => self.text_left = bytes + 2,
            _ => self.element_ends(),
        }
    }

    fn element_ends(&mut self) {
        while let Some(left) = self.left.last_mut() {
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.left.pop();
        }
    }
}

fn clone(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a second handle on the socket")
}
