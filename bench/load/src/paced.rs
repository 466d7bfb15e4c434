//! The open loop: calls at a rate that does not depend on the answers.
//!
//! Not here: what a call is (main.rs).

#![expect(clippy::disallowed_methods, reason = "a steady load sends at set times")]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::{Answers, Failed, Job, SILENCE_MAX, call, connect, preface, take_frames};

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PONG: &[u8] = b"+PONG\r\n";
/// How long to wait for room before looking again.
const FULL_PAUSE: Duration = Duration::from_micros(50);

/// When each call of one connection began, in nanoseconds since the run's start, and how many were answered.
struct Flight {
    began: Vec<AtomicU64>,
    done: AtomicU64,
}

/// Sends `count` calls on one connection, the `number`-th of `connections`, in its share of the rate.
pub fn run(job: &Arc<Job>, count: u64, number: u64, connections: u64, start: Instant) -> Result<Answers, Failed> {
    let flight = Arc::new(Flight { began: (0..count).map(|_| AtomicU64::new(0)).collect(), done: AtomicU64::new(0) });
    let every = 1_000_000_000 * connections / job.rate;
    let first = every * number / connections;
    let due = move |n: u64| first + n * every;
    let is_redis = job.address.starts_with('/');
    let (mut reader, mut writer): (Box<dyn Read + Send>, Box<dyn Write + Send>) = if is_redis {
        let stream = UnixStream::connect(&job.address)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        (Box::new(stream.try_clone()?), Box::new(stream))
    } else {
        let stream = connect(job)?;
        (Box::new(stream.try_clone()?), Box::new(stream))
    };
    if !is_redis {
        // Before the reader can answer anything.
        writer.write_all(&preface())?;
    }
    // Both threads write: the reader what the protocol owes the server.
    let writer = Arc::new(Mutex::new(writer));
    let receiving = {
        let (flight, writer) = (flight.clone(), writer.clone());
        std::thread::spawn(move || receive(&mut *reader, &writer, &flight, is_redis, start))
    };
    let mut write = Vec::new();
    let mut sent = 0;
    let mut waited = false;
    while sent < count {
        let now = nanos(start);
        let mut room = (job.streams as u64).saturating_sub(sent - flight.done.load(Acquire));
        while sent < count && room > 0 && due(sent) <= now {
            let began = if waited { due(sent) } else { now };
            flight.began[usize::try_from(sent)?].store(began, Release);
            if is_redis {
                write.extend(PING);
            } else {
                call(&mut write, job, u32::try_from(sent)? * 2 + 1, job.number(number + sent * connections));
            }
            sent += 1;
            room -= 1;
        }
        if !write.is_empty() {
            if writer.lock().map_err(|_| "the reader panicked")?.write_all(&write).is_err() {
                // The reader knows why.
                break;
            }
            write.clear();
        }
        waited = room == 0;
        if waited {
            if receiving.is_finished() {
                break;
            }
            std::thread::sleep(FULL_PAUSE);
        } else if sent < count {
            std::thread::sleep(Duration::from_nanos(due(sent).saturating_sub(nanos(start))));
        }
    }
    receiving.join().map_err(|_| "the reader panicked")?
}

fn nanos(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Reads until every call was answered.
fn receive(
    reader: &mut dyn Read,
    writer: &Mutex<Box<dyn Write + Send>>,
    flight: &Flight,
    is_redis: bool,
    start: Instant,
) -> Result<Answers, Failed> {
    let count = flight.began.len() as u64;
    let mut answers = Answers::default();
    let mut read = Vec::new();
    let mut back = Vec::new();
    let mut buffer = [0; 64 << 10];
    let mut done = 0;
    while done < count {
        let bytes = reader.read(&mut buffer)?;
        let now = nanos(start);
        let mut ended = |n: u64, answers: &mut Answers| -> Result<(), Failed> {
            let began = flight.began.get(usize::try_from(n)?).ok_or("an answer that nobody asked for")?.load(Acquire);
            answers.took(Duration::from_nanos(now.saturating_sub(began)));
            done += 1;
            Ok(())
        };
        read.extend(&buffer[..bytes]);
        if is_redis {
            if bytes == 0 {
                return Err("redis closed a connection".into());
            }
            // Redis answers in order.
            let whole = read.len() / PONG.len() * PONG.len();
            for pong in read.drain(..whole).as_slice().chunks(PONG.len()) {
                if pong != PONG {
                    return Err(format!("an answer that is no PONG: {:?}", String::from_utf8_lossy(pong)).into());
                }
                ended(answers.ok, &mut answers)?;
                answers.ok += 1;
            }
        } else {
            take_frames(&mut read, bytes, &mut back, &mut answers, |stream, answers| {
                ended(u64::from(stream / 2), answers)
            })?;
            if !back.is_empty() {
                writer.lock().map_err(|_| "the writer panicked")?.write_all(&back)?;
                back.clear();
            }
        }
        flight.done.store(done, Release);
    }
    if answers.ok + answers.over_limit != count {
        return Err(format!("{count} calls, {} ok, {} over limit", answers.ok, answers.over_limit).into());
    }
    Ok(answers)
}
