//! Sends one unary gRPC call many times, a number in its body counted up: so each request can have a key of its own.
//!
//! `load ADDRESS BODY CONNECTIONS STREAMS REQUESTS FIRST KEYS` keeps STREAMS calls in flight on each connection until
//! REQUESTS were answered. BODY is a file that holds a gRPC message with its five bytes of framing. Ten zeros in it are the
//! place of the number, which starts at FIRST and begins again at 0 after KEYS - 1. One line of JSON says what was answered.
//! Only bench/run uses it.
//!
//! It speaks as much of HTTP/2 as that takes and no more, so that it needs no crates and leaves the processor to what is
//! measured: each connection is one thread that writes what it can and reads what there is. Flow control is left out:
//! all calls in flight together are far smaller than the smallest window.

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
    let [address, body, connections, streams, requests, first, keys] = arguments.as_slice() else {
        return Err("usage: load ADDRESS BODY CONNECTIONS STREAMS REQUESTS FIRST KEYS".into());
    };
    let body = std::fs::read(body)?;
    let place = body.windows(PLACE.len()).position(|part| part == PLACE).ok_or("the body has no place for a number")?;
    let (connections, requests): (u64, u64) = (connections.parse()?, requests.parse()?);
    let job = Job {
        address: address.clone(),
        body,
        place,
        streams: streams.parse()?,
        first: first.parse()?,
        keys: keys.parse()?,
    };
    if job.streams > STREAMS_MAX || job.body.len() > BODY_BYTES_MAX {
        return Err(format!("at most {STREAMS_MAX} streams and bodies of {BODY_BYTES_MAX} bytes").into());
    }
    let job = Arc::new(job);
    let started = Instant::now();
    let mut threads = Vec::new();
    for number in 0..connections {
        let job = job.clone();
        // Connection 1 of 8 sends the numbers 1, 9, 17, and so on.
        let count = requests / connections + u64::from(number < requests % connections);
        threads.push(std::thread::spawn(move || Connection::open(&job)?.run(&job, count, number, connections)));
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

impl Connection {
    fn open(job: &Job) -> Result<Self, Failed> {
        let stream = TcpStream::connect(&job.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let mut connection = Self { stream, read: Vec::new(), write: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec() };
        let mut settings = SETTING_INITIAL_WINDOW.to_be_bytes().to_vec();
        settings.extend(WINDOW.to_be_bytes());
        connection.frame(SETTINGS, 0, 0, &settings);
        connection.frame(WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        Ok(connection)
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
        self.write.extend(&length[1..]);
        self.write.extend([kind, flags]);
        self.write.extend(stream.to_be_bytes());
        self.write.extend(payload);
    }

    /// Sends `count` calls, whose numbers start at `number` and grow by `step`.
    fn run(mut self, job: &Job, count: u64, number: u64, step: u64) -> Result<Answers, Failed> {
        let mut answers = Answers::default();
        let mut started = Vec::new();
        let mut done = 0;
        while done < count {
            while (started.len() as u64) < count && started.len() as u64 - done < job.streams as u64 {
                let number = (job.first + number + started.len() as u64 * step) % job.keys;
                self.call(job, u32::try_from(started.len())? * 2 + 1, number);
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

    fn call(&mut self, job: &Job, stream: u32, number: u64) {
        self.frame(HEADERS, END_HEADERS, stream, &headers(&job.address, stream == 1));
        let body = self.write.len() + FRAME_HEAD;
        self.frame(DATA, END_STREAM, stream, &job.body);
        let place = body + job.place;
        let mut rest = number;
        for digit in self.write[place..place + PLACE.len()].iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or_default();
            rest /= 10;
        }
    }

    /// Reads once and takes what is complete. Answers how many calls ended.
    fn receive(&mut self, started: &[Instant], answers: &mut Answers) -> Result<u64, Failed> {
        let mut buffer = [0; 64 << 10];
        let bytes = self.stream.read(&mut buffer)?;
        if bytes == 0 {
            return Err("the server closed a connection".into());
        }
        let now = Instant::now();
        let mut read = std::mem::take(&mut self.read);
        read.extend(&buffer[..bytes]);
        let mut rest = read.as_slice();
        let mut done = 0;
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
                SETTINGS if flags & ACK == 0 => self.frame(SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => self.frame(PING, ACK, 0, payload),
                RST_STREAM | GOAWAY => return Err(format!("the server sent a frame of type {kind}").into()),
                _ => {}
            }
            if (kind == HEADERS || kind == DATA) && flags & END_STREAM != 0 {
                let began = started.get(stream as usize / 2).ok_or("an answer that nobody asked for")?;
                let latency = now.duration_since(*began).as_micros();
                answers.latencies_us.push(u32::try_from(latency).unwrap_or(u32::MAX));
                done += 1;
            }
        }
        self.read = rest.to_vec();
        Ok(done)
    }
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
