//! Sends one unary gRPC call many times, a number in its body counted up: so each request can have a key of its own. Or
//! one PING after the other, to a Redis.
//!
//! `load ADDRESS BODY CONNECTIONS STREAMS REQUESTS FIRST KEYS STRIDE RATE` sends REQUESTS calls and answers, in one line of
//! JSON, what was answered and how late. BODY is a file that holds a gRPC message with its five bytes of framing. Ten zeros
//! in it are the place of the number: request n has (FIRST + n) x STRIDE modulo KEYS, so that with a STRIDE of 1 keys come
//! in order, and with a large prime in an order that no cache foresees. With a STRIDE of `zipf` numbers follow Zipf's law with
//! exponent 1, the smallest the most frequent, the same for each n in every run. An ADDRESS that is a path is Redis' socket; then
//! BODY, FIRST, KEYS and STRIDE mean nothing.
//!
//! - With a RATE of 0 the loop is closed: STREAMS calls are in flight on each connection, and an answer makes room for the
//!   next call. That shows how much a server can do.
//! - Else the loop is open: RATE calls a second are sent, in all, whatever the server does, at most STREAMS in flight on each
//!   connection. A latency counts from when its call was written, or was due where it had to wait for room, so that a
//!   server that falls behind cannot hide it. That shows how long a caller waits at that load.
//!
//! It speaks as much of HTTP/2 as that takes and no more, so that it needs no crates and leaves the processor to what is
//! measured: each connection has a thread, or one to write and one to read where the loop is open. Flow control is left
//! out: all calls in flight together are far smaller than the smallest window. Only the programs in bench/ use it.

mod paced;

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The path of the one method that is called.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The place of the number in the body.
const PLACE: &[u8] = b"0000000000";
/// A connection that is silent for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// The most calls in flight on one connection, so that they stay within the server's first windows.
const STREAMS_MAX: usize = 256;
/// The most bytes of a body, for the same reason.
const BODY_BYTES_MAX: usize = 255;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// The flags of a frame: it ends its stream (or acknowledges), and its headers are complete.
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const FRAME_HEAD: usize = 9;
/// A window that no run uses up.
const WINDOW: u32 = 1 << 30;
const SETTING_INITIAL_WINDOW: u16 = 4;

type Failed = Box<dyn Error + Send + Sync>;

/// What is sent, by every connection.
struct Job {
    address: String,
    body: Vec<u8>,
    /// Where in the body the number stands.
    place: usize,
    streams: usize,
    first: u64,
    keys: u64,
    /// None for Zipf's law.
    stride: Option<u64>,
    /// Calls a second over all connections; 0 where each answer makes room for the next call.
    rate: u64,
}

impl Job {
    /// The number in the body of the n-th request.
    fn number(&self, n: u64) -> u64 {
        match self.stride {
            Some(stride) => (self.first + n) * stride % self.keys,
            None => zipf(self.first + n, self.keys),
        }
    }
}

/// The n-th number by Zipf's law with exponent 1 of `keys` numbers, by the inverse of its distribution as a continuous one.
fn zipf(n: u64, keys: u64) -> u64 {
    // A hash of n (splitmix64), as a part of 1.
    let mut mixed = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let part = ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
    ((keys as f64 + 1.0).powf(part) as u64 - 1).min(keys - 1)
}

/// What was answered.
#[derive(Default)]
struct Answers {
    ok: u64,
    over_limit: u64,
    latencies_us: Vec<u32>,
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, body, connections, streams, requests, first, keys, stride, rate] = arguments.as_slice() else {
        return Err("usage: load ADDRESS BODY CONNECTIONS STREAMS REQUESTS FIRST KEYS STRIDE RATE".into());
    };
    let is_redis = address.starts_with('/');
    let body = if is_redis { PLACE.to_vec() } else { std::fs::read(body)? };
    let place = body.windows(PLACE.len()).position(|part| part == PLACE).ok_or("the body has no place for a number")?;
    let (connections, requests): (u64, u64) = (connections.parse()?, requests.parse()?);
    let job = Job {
        address: address.clone(),
        body,
        place,
        streams: streams.parse()?,
        first: first.parse()?,
        keys: keys.parse()?,
        stride: if stride == "zipf" { None } else { Some(stride.parse()?) },
        rate: rate.parse()?,
    };
    if job.streams > STREAMS_MAX || job.body.len() > BODY_BYTES_MAX {
        return Err(format!("at most {STREAMS_MAX} streams and bodies of {BODY_BYTES_MAX} bytes").into());
    }
    if job.keys == 0 || job.first.saturating_add(requests).checked_mul(job.stride.unwrap_or(1)).is_none() {
        return Err("the numbers of so many requests do not fit".into());
    }
    if is_redis && job.rate == 0 {
        return Err("PINGs are sent at a rate".into());
    }
    let job = Arc::new(job);
    let started = Instant::now();
    let mut threads = Vec::new();
    for number in 0..connections {
        let job = job.clone();
        // Connection 1 of 8 sends the numbers 1, 9, 17, and so on.
        let count = requests / connections + u64::from(number < requests % connections);
        threads.push(std::thread::spawn(move || {
            if job.rate > 0 {
                paced::run(&job, count, number, connections, started)
            } else {
                Connection::open(&job)?.run(&job, count, number, connections)
            }
        }));
    }
    let mut all = Answers::default();
    for thread in threads {
        let answers = thread.join().map_err(|_| "a connection's thread panicked")??;
        all.ok += answers.ok;
        all.over_limit += answers.over_limit;
        all.latencies_us.extend(answers.latencies_us);
    }
    let seconds = started.elapsed().as_secs_f64();
    all.latencies_us.sort_unstable();
    let percentile = |percent: usize| {
        let at = all.latencies_us.len() * percent / 100;
        all.latencies_us.get(at).copied().unwrap_or_default()
    };
    println!(
        "{{\"ok\": {}, \"over_limit\": {}, \"seconds\": {seconds:.6}, \"p50_us\": {}, \"p99_us\": {}}}",
        all.ok,
        all.over_limit,
        percentile(50),
        percentile(99)
    );
    Ok(())
}

struct Connection {
    stream: TcpStream,
    /// What was read and not understood yet.
    read: Vec<u8>,
    /// What is to be written.
    write: Vec<u8>,
}

fn frame(write: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    write.extend(&length[1..]);
    write.extend([kind, flags]);
    write.extend(stream.to_be_bytes());
    write.extend(payload);
}

/// What a client says first: windows that no run uses up.
fn preface() -> Vec<u8> {
    let mut write = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut settings = SETTING_INITIAL_WINDOW.to_be_bytes().to_vec();
    settings.extend(WINDOW.to_be_bytes());
    frame(&mut write, SETTINGS, 0, 0, &settings);
    frame(&mut write, WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
    write
}

fn connect(job: &Job) -> Result<TcpStream, Failed> {
    let stream = TcpStream::connect(&job.address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}

/// One call: its headers and its body with a number.
fn call(write: &mut Vec<u8>, job: &Job, stream: u32, number: u64) {
    frame(write, HEADERS, END_HEADERS, stream, &headers(&job.address, stream == 1));
    let body = write.len() + FRAME_HEAD;
    frame(write, DATA, END_STREAM, stream, &job.body);
    let place = body + job.place;
    let mut rest = number;
    for digit in write[place..place + PLACE.len()].iter_mut().rev() {
        *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
        rest /= 10;
    }
}

impl Connection {
    fn open(job: &Job) -> Result<Self, Failed> {
        Ok(Self { stream: connect(job)?, read: Vec::new(), write: preface() })
    }

    /// Sends `count` calls, whose numbers start at `number` and grow by `step`.
    fn run(mut self, job: &Job, count: u64, number: u64, step: u64) -> Result<Answers, Failed> {
        let mut answers = Answers::default();
        let mut started = Vec::new();
        let mut done = 0;
        while done < count {
            while (started.len() as u64) < count && started.len() as u64 - done < job.streams as u64 {
                let number = job.number(number + started.len() as u64 * step);
                call(&mut self.write, job, u32::try_from(started.len())? * 2 + 1, number);
                started.push(Instant::now());
            }
            self.stream.write_all(&self.write)?;
            self.write.clear();
            done += self.receive(&started, &mut answers)?;
        }
        if answers.ok + answers.over_limit != count {
            return Err(format!("{count} calls, {} ok, {} over limit", answers.ok, answers.over_limit).into());
        }
        Ok(answers)
    }

    /// Reads once and takes what is complete. Answers how many calls ended.
    fn receive(&mut self, started: &[Instant], answers: &mut Answers) -> Result<u64, Failed> {
        let mut buffer = [0; 64 << 10];
        let bytes = self.stream.read(&mut buffer)?;
        let now = Instant::now();
        self.read.extend(&buffer[..bytes]);
        let mut done = 0;
        let mut back = Vec::new();
        take_frames(&mut self.read, bytes, &mut back, answers, |stream, answers| {
            let began = started.get(stream as usize / 2).ok_or("an answer that nobody asked for")?;
            answers.took(now.duration_since(*began));
            done += 1;
            Ok(())
        })?;
        self.write.extend(back);
        Ok(done)
    }
}

impl Answers {
    fn took(&mut self, latency: Duration) {
        self.latencies_us.push(u32::try_from(latency.as_micros()).unwrap_or(u32::MAX));
    }
}

/// Takes the complete frames out of `read`, of which the last `bytes` are new. Puts what the server is owed into `back`,
/// and calls `ended` with each stream that has ended.
fn take_frames(
    read: &mut Vec<u8>,
    bytes: usize,
    back: &mut Vec<u8>,
    answers: &mut Answers,
    mut ended: impl FnMut(u32, &mut Answers) -> Result<(), Failed>,
) -> Result<(), Failed> {
    if bytes == 0 {
        return Err("the server closed a connection".into());
    }
    let mut rest = read.as_slice();
    while let Some((head, after)) = rest.split_first_chunk::<FRAME_HEAD>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, after)) = after.split_at_checked(length) else {
            break;
        };
        rest = after;
        let (kind, flags) = (head[3], head[4]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        match kind {
            DATA => match answer(payload, flags)? {
                Answer::Ok => answers.ok += 1,
                Answer::OverLimit => answers.over_limit += 1,
            },
            SETTINGS if flags & ACK == 0 => frame(back, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => frame(back, PING, ACK, 0, payload),
            RST_STREAM | GOAWAY => return Err(format!("the server sent a frame of type {kind}").into()),
            _ => {}
        }
        if (kind == HEADERS || kind == DATA) && flags & END_STREAM != 0 {
            ended(stream, answers)?;
        }
    }
    *read = rest.to_vec();
    Ok(())
}

/// The headers of a call: spelled out the first time, by their numbers in the connection's table from then on, as
/// clients that keep a connection do.
fn headers(authority: &str, first: bool) -> Vec<u8> {
    // POST and http.
    let mut block = vec![0x83, 0x86];
    if !first {
        block.extend([0xc1, 0xc0, 0xbf, 0xbe]);
        return block;
    }
    let mut put = |bytes: &[u8], value: &str| {
        block.extend(bytes);
        block.push(u8::try_from(value.len()).unwrap_or_default());
        block.extend(value.as_bytes());
    };
    // :path, :authority and content-type have numbers from the start; te has not.
    put(&[0x44], PATH);
    put(&[0x41], authority);
    put(&[0x5f], "application/grpc");
    put(&[0x40, 2, b't', b'e'], "trailers");
    block
}

enum Answer {
    Ok,
    OverLimit,
}

/// A response's code, which is the first field of its message.
fn answer(payload: &[u8], flags: u8) -> Result<Answer, Failed> {
    match payload {
        [0, _, _, _, _, 0x08, 1, ..] if flags & PADDED == 0 => Ok(Answer::Ok),
        [0, _, _, _, _, 0x08, 2, ..] if flags & PADDED == 0 => Ok(Answer::OverLimit),
        _ => Err(format!("an answer that is no decision: {payload:?}").into()),
    }
}
