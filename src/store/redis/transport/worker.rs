//! Takes batches from the queue, sends each as one pipeline over a connection of the pool, and gives each call its answer.
//!
//! Not here: how connections are made (pool.rs), and which calls share a command (charge_list.rs).

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{ServerError, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::time::Sleep;
use weir_engine::words::counted;
use weir_tls::backoff::{doubled, jittered};

use super::charge_list::{ChargeList, Run, script_of_run};
use super::error::{CallError, Reason};
use super::options::{BATCH_MAX, Options};
use super::pool::{Pool, SUPERSEDED};
use super::queue::{Queue, Waiting};
use super::script::Script;
use crate::redis::base::error_class::{After, RedisErrorClass};
use crate::redis::base::observer::RedisObserver;
use crate::redis::dial::command_buffer::CommandBuffer;
use crate::redis::dial::connection::Connection;

/// The pause of a worker before its second dial in a row. It doubles with each further dial. Up to half of each pause
/// is cut at random, so that workers and replicas do not dial at the same time.
const BACKOFF_MIN: Duration = Duration::from_millis(5);

/// The longest pause between two dials of a worker: it delays the detection of a recovered Redis by this time at most.
/// A hundred workers without a connection dial Redis about 500 times a second.
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// How long a connection may be silent while answers are pending, in timeouts of calls. A Redis that stops for a moment
/// still sends the answers afterwards; a new connection would cost a dial and get its answers no earlier.
pub const SILENCE_TIMEOUTS: u32 = 10;

/// The longest such silence, unless one timeout is longer. A connection whose peer is gone blocks its worker for this
/// time.
pub const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Takes batches from the queue and sends them, over one connection at a time.
pub(crate) struct Worker {
    queue: Arc<Queue>,
    /// The address of its connections, for people.
    address: Arc<str>,
    observer: Arc<dyn RedisObserver>,
    batch_max: usize,
    merge_max: usize,
    /// How long the connection may be silent while answers are pending. Their callers may have gone: late answers are
    /// read and dropped.
    silence_max: Duration,
    /// The encoded batch. Empty between batches.
    request: CommandBuffer,
    /// The timer of the current batch. Resetting it is cheaper than a new timer, because a later deadline costs the
    /// runtime almost nothing.
    alarm: Pin<Box<Sleep>>,
    /// Failed dials and abandoned connections since the last answered batch.
    setbacks: u32,
}

/// Whether a connection can be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    Bad,
}

impl Worker {
    /// A worker that serves `queue` with connections to `address`.
    pub(crate) fn new(queue: Arc<Queue>, address: Arc<str>, options: &Options) -> Self {
        Self {
            queue,
            address,
            observer: options.observer.clone(),
            batch_max: options.batch_max,
            merge_max: options.merge_max,
            silence_max: silence_max(options.breaker.timeout),
            request: CommandBuffer::default(),
            alarm: Box::pin(tokio::time::sleep(Duration::ZERO)),
            setbacks: 0,
        }
    }

    /// Serves the queue until it is aborted.
    pub(crate) async fn run(mut self, pool: Pool) {
        // Waits before the first read of the queue; otherwise the first call would make every worker dial.
        self.queue.arrival().await;
        loop {
            self.queue.nonempty().await;
            match pool.checkout().await {
                Ok(mut connection) => {
                    if self.serve(&mut connection).await == Health::Good {
                        continue;
                    }
                }
                Err(error) => {
                    self.queue.dial_failed(Reason::NoConnection { address: self.address.clone(), error });
                }
            }
            self.pause().await;
        }
    }

    /// Waits before the next dial: not after the first setback, then longer each time.
    async fn pause(&mut self) {
        if self.setbacks > 0 {
            let whole = doubled(BACKOFF_MIN, self.setbacks - 1, BACKOFF_MAX);
            tokio::time::sleep(jittered(whole)).await;
        }
        self.setbacks = self.setbacks.saturating_add(1);
    }

    /// Sends batch after batch until the queue is empty or the connection must be closed.
    async fn serve(&mut self, connection: &mut Connection) -> Health {
        let mut batch = Vec::with_capacity(self.batch_max);
        loop {
            if connection.is_superseded() {
                self.observer.connection_dropped(SUPERSEDED);
                return Health::Good;
            }
            let now = Instant::now();
            self.queue.take(&mut batch, self.batch_max, now);
            if batch.is_empty() {
                return Health::Good;
            }
            if self.send(connection, &mut batch, now).await == Health::Bad {
                return Health::Bad;
            }
            if let Some(fault) = connection.fault() {
                let reason = fault.to_string();
                self.observer.connection_broke(&self.address, &reason);
                self.observer.connection_dropped(&reason);
                return Health::Bad;
            }
            self.setbacks = 0;
            batch.clear();
        }
    }

    /// Sends one batch and answers its calls. Sends again, once, the calls that certainly did not run and can succeed
    /// now.
    async fn send(&mut self, connection: &mut Connection, batch: &mut Vec<Waiting>, now: Instant) -> Health {
        let mut groups = SmallVec::<[usize; BATCH_MAX]>::new();
        let mut rest = &batch[..];
        while let Some(first) = rest.first() {
            let run = if self.merge_max > 1 { Run::of(lists(rest), self.merge_max) } else { None };
            let count = run.as_ref().map_or(1, Run::len);
            match run {
                Some(run) => run.add_to(&mut self.request),
                None => first.call.add_to(&mut self.request),
            }
            groups.push(count);
            rest = &rest[count..];
        }
        let Some(answers) = self.exchange(connection, batch, now).await else {
            return Health::Bad;
        };
        self.observer.batch_answered(batch.len(), now.elapsed());
        let mut close_reason = None;
        let mut scripts: Vec<&'static Script> = Vec::new();
        let mut answers = answers.into_iter();
        let mut rest = &mut batch[..];
        for count in groups {
            let (group, others) = rest.split_at_mut(count);
            rest = others;
            // The exchange returns one answer for each command.
            let [waiting] = group else {
                let Some(answer) = answers.next() else { break };
                if let RunEnd::Resend { missing } = answer_run(group, answer, &mut close_reason) {
                    scripts.extend(missing);
                }
                continue;
            };
            let Some(answer) = waiting.call.take_answer(&mut answers) else { break };
            match answer {
                // It is not answered here, so it is sent again.
                Value::ServerError(error) if waiting.call.needed_script().is_some() && is_no_script(&error) => {}
                Value::ServerError(error) => refuse(waiting, error, &mut close_reason),
                value => waiting.answer(Ok(value)),
            }
        }
        batch.retain(Waiting::is_wanted);
        if !batch.is_empty() && self.send_again(connection, batch, scripts, &mut close_reason).await == Health::Bad {
            return Health::Bad;
        }
        match close_reason {
            None => Health::Good,
            Some(reason) => {
                connection.close_after_use();
                self.observer.connection_dropped(&reason);
                Health::Bad
            }
        }
    }

    /// Loads these scripts and the scripts of the calls, and sends the calls again, each separately, in one round trip.
    async fn send_again(
        &mut self,
        connection: &mut Connection,
        batch: &mut Vec<Waiting>,
        mut scripts: Vec<&'static Script>,
        close_reason: &mut Option<String>,
    ) -> Health {
        let now = Instant::now();
        answer_late(batch, now, |reason| CallError::NotSent { reason });
        batch.retain(Waiting::is_wanted);
        if batch.is_empty() {
            return Health::Good;
        }
        scripts.extend(batch.iter().filter_map(|waiting| waiting.call.needed_script()));
        scripts.sort_unstable_by_key(|script| &script.sha1);
        scripts.dedup_by_key(|script| &script.sha1);
        for script in &scripts {
            self.request.add(&script.load());
        }
        for waiting in &*batch {
            waiting.call.add_to(&mut self.request);
        }
        let Some(answers) = self.exchange(connection, batch, now).await else {
            return Health::Bad;
        };
        self.observer.batch_answered(batch.len(), now.elapsed());
        let mut answers = answers.into_iter();
        let mut load_error = None;
        for loaded in answers.by_ref().take(scripts.len()) {
            if let Value::ServerError(error) = loaded {
                load_error = Some(error);
            }
        }
        for waiting in batch {
            let Some(answer) = waiting.call.take_answer(&mut answers) else { break };
            match answer {
                Value::ServerError(error) if is_no_script(&error) => {
                    // The error of SCRIPT LOAD explains more than NOSCRIPT.
                    refuse(waiting, load_error.clone().unwrap_or(error), close_reason);
                }
                Value::ServerError(error) => refuse(waiting, error, close_reason),
                value => waiting.answer(Ok(value)),
            }
        }
        Health::Good
    }

    /// Sends `self.request`, which has the calls of `batch`, at the time `sent`, and clears it. Meanwhile, answers
    /// calls whose deadline passes. After the last deadline, the worker waits for the answers for `silence_max` and
    /// drops them: then none is pending, and the connection can be reused. Returns `None` if there are no answers; then
    /// every call of the batch has its error.
    async fn exchange(
        &mut self,
        connection: &mut Connection,
        batch: &mut [Waiting],
        sent: Instant,
    ) -> Option<Vec<Value>> {
        let written = connection.bytes_written();
        let meter = connection.meter();
        let end = sent + self.silence_max;
        let alarm = &mut self.alarm;
        let ended = {
            let mut exchange = pin!(connection.exchange(&self.request));
            let mut at = earliest(batch, None).unwrap_or(end);
            loop {
                alarm.as_mut().reset(at.into());
                tokio::select! {
                    biased;
                    answers = &mut exchange => match answers {
                        Ok(answers) => break Ok(answers),
                        Err(broken) => break Err(Reason::Broken(broken.into_reason())),
                    },
                    () = alarm.as_mut() => {
                        let now = Instant::now();
                        at = match earliest(batch, Some(now)) {
                            Some(next) => next,
                            // No caller waits for bytes that are still unwritten.
                            None if now < end && meter.bytes_written() > written => end,
                            None => break Err(Reason::Deadline),
                        };
                        // The calls may have run.
                        answer_late(batch, now, |reason| CallError::Unknown { reason });
                    }
                }
            }
        };
        self.request.clear();
        let reason = match ended {
            Ok(answers) => return Some(answers),
            Err(reason) => reason,
        };
        if let Reason::Broken(why) = &reason {
            self.observer.connection_broke(&self.address, why);
        }
        // The exchange is over, so the count is final.
        let unwritten = connection.bytes_written() == written;
        self.observer.connection_dropped(&match &reason {
            Reason::Deadline => format!("{} not answered in time", counted(batch.len(), "call")),
            reason => reason.to_string(),
        });
        for waiting in batch {
            let reason = reason.clone();
            waiting.answer(Err(if unwritten { CallError::NotSent { reason } } else { CallError::Unknown { reason } }));
        }
        None
    }
}

/// How long a connection may be silent if the usual timeout of calls is `timeout`.
fn silence_max(timeout: Duration) -> Duration {
    timeout.saturating_mul(SILENCE_TIMEOUTS).min(SILENCE_MAX).max(timeout)
}

/// The earliest deadline of a batch, after `now` if given.
fn earliest(batch: &[Waiting], now: Option<Instant>) -> Option<Instant> {
    let mut earliest: Option<Instant> = None;
    for waiting in batch {
        if now.is_some_and(|now| waiting.deadline <= now) {
            continue;
        }
        earliest = Some(earliest.map_or(waiting.deadline, |at| at.min(waiting.deadline)));
    }
    earliest
}

/// Answers the calls whose deadline has passed with an error.
fn answer_late(batch: &mut [Waiting], now: Instant, error: impl Fn(Reason) -> CallError) {
    for waiting in batch {
        if waiting.deadline <= now {
            waiting.answer(Err(error(Reason::Deadline)));
        }
    }
}

/// Answers a call with an error of Redis, and sets `close_reason` if the connection must not be reused.
fn refuse(waiting: &mut Waiting, error: ServerError, close_reason: &mut Option<String>) {
    if close_reason.is_none() && RedisErrorClass::of(&error).connection == After::Redial {
        *close_reason = Some(format!("redis answered {}", error.code()));
    }
    waiting.answer(Err(CallError::Refused(error)));
}

/// How a merged command has ended.
enum RunEnd {
    /// Each of its calls has its answer.
    Answered,
    /// Nothing was decided. Each of its calls is sent again, and gets its own answer: some succeed, because they have
    /// another key, write nothing, or depend on another row.
    Resend {
        /// A script that Redis may not have.
        missing: Option<&'static Script>,
    },
}

/// Answers the calls of one merged command, unless its answer proves that nothing was decided.
fn answer_run(group: &mut [Waiting], answer: Value, close_reason: &mut Option<String>) -> RunEnd {
    match answer {
        Value::ServerError(error) => {
            let class = RedisErrorClass::of(&error);
            if class.connection == After::Keep && class.proves_nothing_ran(&error) {
                return RunEnd::Resend { missing: script_of_run(lists(group)) };
            }
            for waiting in group {
                refuse(waiting, error.clone(), close_reason);
            }
        }
        // A row that some of the calls depend on has another version. [rw-2]
        Value::Array(numbers) if matches!(numbers[..], [_, Value::Array(_)]) => {
            return RunEnd::Resend { missing: None };
        }
        Value::Array(numbers) => {
            let mut numbers = numbers.into_iter();
            let clock = numbers.next().unwrap_or(Value::Nil);
            for waiting in group {
                let own = waiting.call.mergeable().and_then(|list| list.answer_of(&clock, &mut numbers));
                // Nil is not an answer to a decision.
                waiting.answer(Ok(own.unwrap_or(Value::Nil)));
            }
        }
        other => {
            for waiting in group {
                waiting.answer(Ok(other.clone()));
            }
        }
    }
    RunEnd::Answered
}

/// The charges of the first calls that may share a command.
fn lists(batch: &[Waiting]) -> impl Iterator<Item = &ChargeList> {
    batch.iter().map_while(|waiting| waiting.call.mergeable())
}

fn is_no_script(error: &ServerError) -> bool {
    error.kind() == Some(ServerErrorKind::NoScript)
}
