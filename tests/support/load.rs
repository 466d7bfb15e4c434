//! A steady load of decisions from real gRPC clients, and what each of them was told.
//!
//! Requests are sent when their time has come, whether those before them were answered or not: a server that stalls is
//! asked no less for it, as by users. A machine that has no time for the load itself sends less of it. Not here: what they should have been told.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;
use tonic::Code;

use super::rls::{self, RateLimitRequest, RateLimitResponse};
use super::wait::{PATIENCE, until};

/// Connections to each server: more than it has runtimes, as several Envoys would open.
const CONNECTIONS_EACH: usize = 4;

/// The most requests of one load.
const REQUESTS_MAX: usize = 50_000;

/// The most requests that wait for an answer at the same time. A server that then answers none hangs.
const IN_FLIGHT_MAX: usize = 5_000;

/// A load that runs on a thread of its own until it is told to end.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    ending: AtomicBool,
    sent: AtomicUsize,
    samples: Mutex<Vec<Sample>>,
}

/// One request and its end.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Which request of its load, counted from 0.
    pub number: usize,
    /// When it was sent.
    pub sent: Instant,
    /// When its answer was there.
    pub answered: Instant,
    /// The answer.
    pub said: Said,
    /// The text of a gRPC status; empty where there is an answer.
    pub text: String,
}

/// What a request was told, as far as a caller can tell who decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// OK, with a limit for each descriptor: some store has counted them all.
    Within,
    /// OVER_LIMIT, with a limit for each descriptor.
    Over,
    /// OK, and no limit where nobody has counted.
    Passed,
    /// OVER_LIMIT, and no limit where nobody has counted.
    Refused,
    /// A gRPC status in place of an answer.
    Failed(Code),
}

impl Said {
    /// What an answer says.
    pub fn of(answer: &Result<RateLimitResponse, tonic::Status>) -> Said {
        let answer = match answer {
            Ok(answer) => answer,
            Err(status) => return Said::Failed(status.code()),
        };
        let is_counted = answer.statuses.iter().all(|status| status.current_limit.is_some());
        match (rls::admits(answer), is_counted) {
            (true, true) => Said::Within,
            (false, true) => Said::Over,
            (true, false) => Said::Passed,
            (false, false) => Said::Refused,
        }
    }

    /// Whether a store has decided.
    pub fn is_counted(self) -> bool {
        matches!(self, Said::Within | Said::Over)
    }
}

impl Load {
    /// Sends `per_second` requests a second to these servers in turn; `ask` makes each from its number.
    pub fn start(
        servers: &[SocketAddr],
        per_second: u32,
        ask: impl Fn(usize) -> RateLimitRequest + Send + 'static,
    ) -> Load {
        let shared = Arc::new(Shared::default());
        let (servers, between) = (servers.to_vec(), Duration::from_secs(1) / per_second);
        let run = run(shared.clone(), servers, between, ask);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let thread = std::thread::spawn(move || runtime.block_on(run));
        Load { shared, thread: Some(thread) }
    }

    /// Waits until so many more requests were answered than were sent when this is called.
    pub fn pass(&self, more: usize) {
        let enough = self.shared.sent.load(SeqCst) + more;
        // What the schedule needs, and some time on top: it is the caller who says how much may pass.
        until("the load's answers", PATIENCE * 4, || {
            self.is_alive();
            (self.shared.samples.lock().expect("no sender panics").len() >= enough).then_some(())
        });
    }

    /// Waits until `wanted` accepts an answer to a request that was sent from now on.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Sample) -> bool) {
        let since = Instant::now();
        until(what, PATIENCE, || {
            self.is_alive();
            let samples = self.shared.samples.lock().expect("no sender panics");
            let later = samples.iter().rev().take_while(|sample| sample.answered >= since);
            let mut later = later.filter(|sample| sample.sent >= since);
            later.any(&wanted).then_some(())
        });
    }

    /// What was answered so far.
    pub fn samples(&self) -> Vec<Sample> {
        self.shared.samples.lock().expect("no sender panics").clone()
    }

    /// Sends nothing more, waits for what is on its way, and returns everything in the order of the answers.
    pub fn finish(mut self) -> Vec<Sample> {
        self.end();
        std::mem::take(&mut *self.shared.samples.lock().expect("no sender panics"))
    }

    fn is_alive(&self) {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        assert!(!ended, "the load ended before its time: more requests than {REQUESTS_MAX}, or a fault above");
    }

    fn end(&mut self) {
        self.shared.ending.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the load failed");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.end();
    }
}

async fn run(
    shared: Arc<Shared>,
    servers: Vec<SocketAddr>,
    between: Duration,
    ask: impl Fn(usize) -> RateLimitRequest,
) {
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS_EACH {
        for &server in &servers {
            channels.push(rls::channel(server).await);
        }
    }
    let mut clock = tokio::time::interval(between);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..REQUESTS_MAX {
        clock.tick().await;
        if shared.ending.load(SeqCst) {
            break;
        }
        while waiting.try_join_next().is_some() {}
        if waiting.len() >= IN_FLIGHT_MAX {
            let answered = tokio::time::timeout(PATIENCE, waiting.join_next()).await;
            assert!(answered.is_ok(), "{IN_FLIGHT_MAX} requests wait for an answer, and none comes");
        }
        let (request, channel) = (ask(number), channels[number % channels.len()].clone());
        let shared = shared.clone();
        shared.sent.fetch_add(1, SeqCst);
        waiting.spawn(async move {
            let sent = Instant::now();
            let answer = rls::ask(channel, request).await;
            let said = Said::of(&answer);
            let text = answer.err().map_or_else(String::new, |status| status.message().to_owned());
            let sample = Sample { number, sent, answered: Instant::now(), said, text };
            shared.samples.lock().expect("no sender panics").push(sample);
        });
    }
    while let Some(done) = waiting.join_next().await {
        done.expect("a request that does not panic");
    }
}

/// The answers to requests that were sent after one time and answered before another.
pub fn between(samples: &[Sample], from: Instant, to: Instant) -> Vec<Sample> {
    samples.iter().filter(|sample| sample.sent >= from && sample.answered <= to).cloned().collect()
}

/// How often each thing was said, for people.
pub fn summary(samples: &[Sample]) -> String {
    let mut counts = BTreeMap::new();
    for sample in samples {
        *counts.entry(format!("{:?}", sample.said)).or_insert(0) += 1;
    }
    let mut text = format!("{} answers", samples.len());
    for (said, count) in counts {
        let _ = write!(text, ", {count} {said}");
    }
    text
}

/// The time within which so many of a thousand requests were answered; zero where there are none.
pub fn permille(samples: &[Sample], share: usize) -> Duration {
    let mut took: Vec<Duration> = samples.iter().map(|sample| sample.answered - sample.sent).collect();
    took.sort_unstable();
    let rank = (took.len() * share).div_ceil(1000);
    rank.checked_sub(1).map_or(Duration::ZERO, |rank| took[rank])
}
