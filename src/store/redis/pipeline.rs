//! Calls to Redis that share round trips: a bounded queue, and for each connection of the pool a
//! worker that sends what waits there as one pipeline.
//!
//! Not in here: connections and how they are made (pool.rs), what a call is (call.rs), and what it means (the
//! store above).
//!
//! The strategy. An idle pipeline sends a call at once, alone. While an answer is awaited, calls pile
//! up, and the next worker takes them all: batches grow with the load and nothing ever waits for a
//! batch to fill. A worker has its connection before it takes calls, so a call that is still in the
//! queue was certainly not sent.
//!
//! What is promised for each call:
//!
//! 1. It is sent at most once, unless Redis answers that it does not know the script, which proves that
//!    nothing ran: then the script is loaded and the call sent once more [rd-3]; so are calls that were made
//!    together, where one of them made that fail before anything was written. Where a node of a cluster
//!    sends a call elsewhere, the caller decides (cluster.rs).
//! 2. It is answered at its deadline at the latest (to the millisecond of the runtime's timer), and the
//!    answer says whether it can have run. No caller needs a timer of its own.
//! 3. It is not sent once its deadline has passed or its caller has gone.
//! 4. Its error is its own; the other calls of the batch get their answers. Decisions that shared a script call
//!    (merge.rs) share its error only where that is about the server, or does not prove that nothing ran.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{ServerError, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use super::breaker;
pub use super::call::{Call, Script};
use super::endpoint::Target;
use super::merge::{self, MERGE_MAX};
use super::observer::{Announced, DialError, Observer};
use super::pause::{doubled, jittered};
use super::pool::{Connection, Pool, SUPERSEDED};
use super::refusal::{After, Refusal};
use super::turns::Turns;

/// Calls that may wait in one pipeline by default. With answers in 10 ms this is 100,000 calls a second
/// on one core: more cannot be served in time, so they are refused at once.
const QUEUE_MAX: usize = 1024;

/// Calls in one batch by default. Redis' cost per call hardly falls beyond 32, and the first call of a
/// batch waits for the last.
const BATCH_MAX: usize = 64;

/// Connections of one pipeline by default.
const CONNECTIONS: u32 = 2;

/// How long a dial may take by default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause of a worker before its second dial in a row. It doubles with each further one; each pause
/// is cut by up to half at random, so that workers and replicas do not dial in step.
const BACKOFF_MIN: Duration = Duration::from_millis(5);

/// The longest pause between two dials of a worker, and so the time that a Redis which is back may stay
/// unnoticed. A hundred workers that wait for one Redis dial it some 500 times a second.
const BACKOFF_MAX: Duration = Duration::from_millis(250);

/// Sends calls to one Redis, in batches. One for each runtime: its tasks live on the runtime that
/// started it and end when it is dropped.
#[derive(Debug)]
pub struct Pipeline {
    queue: Arc<Queue>,
    /// Aborts the tasks when dropped. They end of themselves only by a panic.
    tasks: tokio::sync::Mutex<JoinSet<()>>,
    /// Tells the observer of the end.
    _announced: Announced,
}

/// How a pipeline is built. Start from [`Options::new`].
#[derive(Clone)]
pub struct Options {
    /// Where Redis is.
    pub target: Target,
    /// Connections, each with a worker; at least 1. Fewer make larger batches.
    pub connections: u32,
    /// The bound for a dial, from the address to the answered handshake; more than zero.
    pub connect_timeout: Duration,
    /// Calls that may wait; at least 1.
    pub queue_max: usize,
    /// Calls in one batch; at least 1.
    pub batch_max: usize,
    /// Decisions of a batch that one script call makes at most; below 4 each has its own. See merge.rs.
    pub merge_max: usize,
    /// When the breaker before a pipeline opens; for whoever puts one there (node.rs). The pipeline itself heeds
    /// `timeout`: for so long the answers to a batch are awaited at least, before its connection is given up.
    pub breaker: breaker::Settings,
    /// Whose turn it is to make a heavy call; for whoever puts a lane for those beside a pipeline (node.rs).
    pub turns: Turns,
    /// Who hears of batches, failed dials and dropped connections.
    pub observer: Arc<dyn Observer>,
}

impl Options {
    /// The defaults, with nobody observing.
    #[must_use]
    pub fn new(target: impl Into<Target>) -> Options {
        Options {
            target: target.into(),
            connections: CONNECTIONS,
            connect_timeout: CONNECT_TIMEOUT,
            queue_max: QUEUE_MAX,
            batch_max: BATCH_MAX,
            merge_max: MERGE_MAX,
            breaker: breaker::Settings::default(),
            turns: Turns::default(),
            observer: Arc::new(()),
        }
    }
}

impl Pipeline {
    /// Starts the tasks of a pipeline on the current runtime. Nothing is dialled before the first call.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, and when one of the numbers in `options` is zero.
    #[must_use]
    pub fn start(options: Options) -> Pipeline {
        assert!(options.queue_max > 0, "a queue holds at least one call");
        assert!(options.batch_max > 0, "a batch has at least one call");
        let queue = Arc::new(Queue::new(options.queue_max));
        let watch = options.target.watch(options.observer.clone(), options.connect_timeout);
        let pool = Pool::new(options.target, options.connections, options.connect_timeout, options.observer.clone());
        let load = Load { queue: Arc::downgrade(&queue), open: Arc::downgrade(pool.open()) };
        let announced = Announced::start(pool.address(), load, options.observer.clone());
        let mut tasks = JoinSet::new();
        for _ in 0..options.connections {
            let worker = Worker {
                queue: queue.clone(),
                address: pool.address().into(),
                observer: options.observer.clone(),
                batch_max: options.batch_max,
                merge_max: options.merge_max,
                patience: options.breaker.timeout,
                request: redis::Pipeline::with_capacity(options.batch_max),
                alarm: Box::pin(tokio::time::sleep(Duration::ZERO)),
                setbacks: 0,
            };
            tasks.spawn(worker.run(pool.clone()));
        }
        tasks.spawn(expire(queue.clone()));
        if let Some(watch) = watch {
            tasks.spawn(watch);
        }
        Pipeline { queue, tasks: tokio::sync::Mutex::new(tasks), _announced: announced }
    }

    /// Sends `call` and returns what Redis answers, by `deadline`. Dropping the future takes the call
    /// out of the queue, if it still waits there.
    ///
    /// # Errors
    ///
    /// [`CallError`]: certainly not sent, perhaps run, or refused by Redis.
    pub async fn call(&self, call: Call, deadline: Instant) -> Result<Value, CallError> {
        let (reply, answer) = oneshot::channel();
        let ticket = self.queue.push(Waiting { call, deadline, reply: Some(reply) })?;
        let mut place = Place { queue: &self.queue, ticket: Some(ticket) };
        let answer = answer.await;
        place.ticket = None;
        // A reply is lost only with the task that owed it.
        answer.unwrap_or_else(|_| Err(CallError::Unknown { reason: Reason::Broken("its worker died".into()) }))
    }

    /// Returns, with its reason, when a task of the pipeline has died: for whoever supervises. Waits
    /// for ever otherwise.
    pub async fn died(&self) -> String {
        match self.tasks.lock().await.join_next().await {
            Some(Err(error)) => format!("a task of the redis pipeline died: {error}"),
            Some(Ok(())) | None => "a task of the redis pipeline ended".to_owned(),
        }
    }
}

/// What a pipeline has at hand, for gauges: each number is out of date at once, and none once the pipeline is gone.
#[derive(Clone, Debug, Default)]
pub struct Load {
    queue: Weak<Queue>,
    open: Weak<AtomicUsize>,
}

impl Load {
    /// Calls that wait to be sent.
    #[must_use]
    pub fn waiting(&self) -> Option<usize> {
        self.queue.upgrade().map(|queue| queue.state.lock().entries.len())
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> Option<usize> {
        self.open.upgrade().map(|open| open.load(Ordering::Relaxed))
    }
}

/// Why a call has no answer that can be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// It was not run: nothing was written, or Redis said that it did not run. May be tried again.
    #[error("not sent to redis: {reason}")]
    NotSent {
        /// What stood in the way.
        reason: Reason,
    },
    /// It may have been written and no answer was read: it ran once or not at all. Never to be tried
    /// again.
    #[error("sent to redis, outcome unknown: {reason}")]
    Unknown {
        /// Why no answer was read.
        reason: Reason,
    },
    /// Redis answered with an error. Its text is for the log, and the beginning that we know for the caller.
    #[error("refused by redis: {}", Refusal::of(.0).code)]
    Refused(ServerError),
}

/// What kept a call from its answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Reason {
    /// As many calls wait as may wait.
    #[error("the queue is full ({max} calls)")]
    QueueFull {
        /// The bound.
        max: usize,
    },
    /// The deadline has passed.
    #[error("the deadline has passed")]
    Deadline,
    /// The deadline has passed, and there was no connection to send it on.
    #[error("{0}")]
    NoConnection(DialError),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// No node of the cluster is known to hold the key's slot.
    #[error("no node of the redis cluster is known to hold slot {slot}: {why}")]
    NoNode {
        /// The slot, below 16,384.
        slot: u16,
        /// What the cluster said last, or why it said nothing.
        why: Arc<str>,
    },
    /// Redis has failed too often lately, and is left alone until it answers again.
    #[error("the circuit breaker is open")]
    CircuitOpen,
}

type Answer = Result<Value, CallError>;

/// A call and who waits for its answer.
#[derive(Debug)]
struct Waiting {
    call: Call,
    deadline: Instant,
    /// Taken by the first answer.
    reply: Option<oneshot::Sender<Answer>>,
}

impl Waiting {
    fn answer(&mut self, answer: Answer) {
        if let Some(reply) = self.reply.take() {
            // Nobody listens where the caller has gone.
            let _ = reply.send(answer);
        }
    }

    /// The same, to be sent again; what is left has no caller.
    fn take(&mut self) -> Waiting {
        let command = std::mem::take(&mut self.call.command);
        Waiting { call: Call { command, ..self.call }, deadline: self.deadline, reply: self.reply.take() }
    }

    /// Somebody still waits for the answer.
    fn wanted(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| !reply.is_closed())
    }
}

/// A caller's place in the queue, given up when the caller goes.
struct Place<'a> {
    queue: &'a Queue,
    ticket: Option<u64>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.queue.withdraw(ticket);
        }
    }
}

/// The calls that wait, oldest first.
///
/// A plain mutex is right: nothing is awaited while it is held, and on a runtime of one thread it is
/// never contended.
#[derive(Debug)]
struct Queue {
    max: usize,
    state: Mutex<QueueState>,
    /// Wakes one worker.
    arrived: Notify,
    /// Wakes the task that expires calls, when a deadline is earlier than what it sleeps for.
    hurry: Notify,
}

#[derive(Debug)]
struct QueueState {
    /// A call that expired or was withdrawn leaves a hole, which counts until it is the oldest. The
    /// first entry is never a hole.
    entries: VecDeque<Option<Waiting>>,
    /// The ticket of the first entry; the others follow in order. Tickets are never used again.
    first: u64,
    /// A worker was woken and has not looked yet: it will take everything, so no other is woken.
    waking: bool,
    /// When the expiring task looks next.
    expiry: Option<Instant>,
    /// Why there is no connection, where the last dial failed.
    dial_error: Option<DialError>,
}

impl Queue {
    fn new(max: usize) -> Queue {
        Queue {
            max,
            state: Mutex::new(QueueState {
                entries: VecDeque::new(),
                first: 0,
                waking: false,
                expiry: None,
                dial_error: None,
            }),
            arrived: Notify::new(),
            hurry: Notify::new(),
        }
    }

    /// Appends a call and returns its ticket.
    fn push(&self, waiting: Waiting) -> Result<u64, CallError> {
        let deadline = waiting.deadline;
        let mut state = self.state.lock();
        if state.entries.len() >= self.max {
            return Err(CallError::NotSent { reason: Reason::QueueFull { max: self.max } });
        }
        let ticket = state.first + state.entries.len() as u64;
        state.entries.push_back(Some(waiting));
        let wake = !std::mem::replace(&mut state.waking, true);
        let hurry = state.expiry.is_none_or(|expiry| deadline < expiry);
        if hurry {
            state.expiry = Some(deadline);
        }
        drop(state);
        if wake {
            self.arrived.notify_one();
        }
        if hurry {
            self.hurry.notify_one();
        }
        Ok(ticket)
    }

    /// Returns when there are calls to send.
    async fn nonempty(&self) {
        loop {
            {
                let mut state = self.state.lock();
                state.waking = false;
                if !state.entries.is_empty() {
                    return;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Moves up to `max` calls that can still be sent into `batch`, and has the next worker woken if
    /// more are left.
    fn take(&self, batch: &mut Vec<Waiting>, max: usize, now: Instant) {
        let mut state = self.state.lock();
        state.dial_error = None;
        while batch.len() < max {
            let Some(entry) = state.entries.pop_front() else {
                break;
            };
            state.first += 1;
            let Some(mut waiting) = entry else { continue };
            if waiting.deadline <= now {
                waiting.answer(Err(CallError::NotSent { reason: Reason::Deadline }));
            } else {
                batch.push(waiting);
            }
        }
        state.trim();
        if !state.entries.is_empty() && !std::mem::replace(&mut state.waking, true) {
            self.arrived.notify_one();
        }
    }

    /// Takes out the call with this ticket, if it still waits.
    fn withdraw(&self, ticket: u64) {
        let mut state = self.state.lock();
        let Some(index) = ticket.checked_sub(state.first) else {
            return;
        };
        if let Some(entry) = usize::try_from(index).ok().and_then(|index| state.entries.get_mut(index)) {
            *entry = None;
            state.trim();
        }
    }

    /// Answers the calls whose deadline has passed, and returns when the next one does.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state.lock();
        let reason = match &state.dial_error {
            Some(error) => Reason::NoConnection(error.clone()),
            None => Reason::Deadline,
        };
        let mut next: Option<Instant> = None;
        for entry in &mut state.entries {
            let Some(waiting) = entry else { continue };
            if waiting.deadline <= now {
                waiting.answer(Err(CallError::NotSent { reason: reason.clone() }));
                *entry = None;
            } else {
                next = Some(next.map_or(waiting.deadline, |next| next.min(waiting.deadline)));
            }
        }
        state.trim();
        state.expiry = next;
        next
    }
}

impl QueueState {
    fn trim(&mut self) {
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
        }
    }
}

/// The task that answers calls which wait in the queue past their deadline. It sleeps until the
/// earliest one and seldom has anything to do: one timer for all calls, where a timer for each would
/// cost more than the rest of the queue.
async fn expire(queue: Arc<Queue>) {
    loop {
        match queue.expire(Instant::now()) {
            Some(next) => tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                () = queue.hurry.notified() => {}
            },
            None => queue.hurry.notified().await,
        }
    }
}

/// Takes batches from the queue and sends them, over one connection at a time.
struct Worker {
    queue: Arc<Queue>,
    /// Where its connections go, for people.
    address: Arc<str>,
    observer: Arc<dyn Observer>,
    batch_max: usize,
    merge_max: usize,
    /// For how long the answers to a batch are awaited at least: callers in a hurry, whose deadlines pass before,
    /// must not cost the others the connection.
    patience: Duration,
    /// The batch as it is sent, kept for its room.
    request: redis::Pipeline,
    /// The timer for the batch in flight, reset for each batch: cheaper than a new one, because a later
    /// deadline costs the runtime next to nothing.
    alarm: Pin<Box<Sleep>>,
    /// Dials that failed and connections that were given up, since a batch was last answered.
    setbacks: u32,
}

/// Whether a connection can be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Good,
    Bad,
}

impl Worker {
    async fn run(mut self, pool: Pool) {
        // Called before it looks for the first time: else the first call would have every worker dial.
        self.queue.arrived.notified().await;
        loop {
            self.queue.nonempty().await;
            match pool.checkout().await {
                Ok(mut connection) => {
                    if self.serve(&mut connection).await == Health::Good {
                        continue;
                    }
                }
                Err(error) => self.queue.state.lock().dial_error = Some(error),
            }
            self.pause().await;
        }
    }

    /// Waits before the next dial: not at all after the first setback, then longer each time.
    async fn pause(&mut self) {
        if self.setbacks > 0 {
            let whole = doubled(BACKOFF_MIN, self.setbacks - 1, BACKOFF_MAX);
            tokio::time::sleep(jittered(whole)).await;
        }
        self.setbacks = self.setbacks.saturating_add(1);
    }

    /// Sends batch after batch until the queue is empty or the connection is to be given up.
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
            self.setbacks = 0;
            batch.clear();
        }
    }

    /// Sends one batch and answers its calls; those whose script Redis does not know, after a second
    /// round.
    async fn send(&mut self, connection: &mut Connection, batch: &mut [Waiting], now: Instant) -> Health {
        self.request.clear();
        let mut groups = SmallVec::<[usize; BATCH_MAX]>::new();
        let mut rest = &mut *batch;
        while !rest.is_empty() {
            let count = merge::count(rest.iter().map(|waiting| &waiting.call), self.merge_max);
            let (group, others) = rest.split_at_mut(count);
            match group {
                [alone] => alone.call.add_to(&mut self.request),
                group => {
                    self.request.add_command(merge::command(group.iter().map(|waiting| &waiting.call)));
                }
            }
            groups.push(count);
            rest = others;
        }
        let Some(answers) = self.exchange(connection, batch, now).await else {
            return Health::Bad;
        };
        self.observer.batch_answered(batch.len(), now.elapsed());
        let mut farewell = None;
        let mut again = Vec::new();
        let mut merged_again = false;
        let (mut answers, mut commands) = (answers.into_iter(), self.request.cmd_iter());
        let mut rest = &mut *batch;
        for count in groups {
            let (group, others) = rest.split_at_mut(count);
            rest = others;
            // There are as many answers as commands: the exchange saw to it.
            let [waiting] = group else {
                let Some((answer, _)) = answers.next().zip(commands.next()) else { break };
                merged_again |= answer_group(group, answer, &mut again, &mut farewell);
                continue;
            };
            let Some((answer, command)) = waiting.call.take_answer(&mut answers, &mut commands) else { break };
            match answer {
                Value::ServerError(error) if waiting.call.script.is_some() && is_no_script(&error) => {
                    waiting.call.command = command.clone();
                    again.push(waiting.take());
                }
                Value::ServerError(error) => refuse(waiting, error, &mut farewell),
                value => waiting.answer(Ok(value)),
            }
        }
        drop(commands);
        if !again.is_empty() && self.send_again(connection, again, merged_again, &mut farewell).await == Health::Bad {
            return Health::Bad;
        }
        match farewell {
            None => Health::Good,
            Some(reason) => {
                connection.condemn();
                self.observer.connection_dropped(&reason);
                Health::Bad
            }
        }
    }

    /// Loads the scripts that Redis did not know and sends their calls once more, each alone, in one round trip. Those
    /// that were `merged` could not be made together: the script that merges them is loaded too.
    async fn send_again(
        &mut self,
        connection: &mut Connection,
        mut batch: Vec<Waiting>,
        merged: bool,
        farewell: &mut Option<String>,
    ) -> Health {
        let now = Instant::now();
        batch.retain_mut(|waiting| {
            if waiting.deadline <= now {
                waiting.answer(Err(CallError::NotSent { reason: Reason::Deadline }));
            }
            waiting.wanted()
        });
        if batch.is_empty() {
            return Health::Good;
        }
        let mut scripts: Vec<&'static Script> = if merged { vec![merge::script()] } else { Vec::new() };
        for script in batch.iter().filter_map(|waiting| waiting.call.script) {
            if !scripts.iter().any(|known| known.sha1 == script.sha1) {
                scripts.push(script);
            }
        }
        self.request.clear();
        for script in &scripts {
            self.request.cmd("SCRIPT").arg("LOAD").arg(script.code);
        }
        for waiting in &mut batch {
            waiting.call.add_to(&mut self.request);
        }
        let Some(answers) = self.exchange(connection, &mut batch, now).await else {
            return Health::Bad;
        };
        self.observer.batch_answered(batch.len(), now.elapsed());
        let (mut answers, mut commands) = (answers.into_iter(), self.request.cmd_iter());
        let mut load_error = None;
        for (loaded, _) in answers.by_ref().zip(commands.by_ref()).take(scripts.len()) {
            if let Value::ServerError(error) = loaded {
                load_error = Some(error);
            }
        }
        for waiting in &mut batch {
            let Some((answer, _)) = waiting.call.take_answer(&mut answers, &mut commands) else { break };
            match answer {
                Value::ServerError(error) if is_no_script(&error) => {
                    // Why it could not be loaded says more than that it is missing.
                    refuse(waiting, load_error.clone().unwrap_or(error), farewell);
                }
                Value::ServerError(error) => refuse(waiting, error, farewell),
                value => waiting.answer(Ok(value)),
            }
        }
        Health::Good
    }

    /// Sends `self.request`, which asks for the calls of `batch`, at the time `sent`. Calls that pass their deadline are
    /// answered meanwhile; once all have, the answers are awaited until they have had our patience, and dropped, so that
    /// the connection owes none and is used again. `None` when there are no answers, after the whole batch was told so.
    async fn exchange(
        &mut self,
        connection: &mut Connection,
        batch: &mut [Waiting],
        sent: Instant,
    ) -> Option<Vec<Value>> {
        let written = connection.bytes_written();
        let meter = connection.meter();
        let end = sent + self.patience;
        let alarm = &mut self.alarm;
        let reason = {
            let mut exchange = pin!(connection.exchange(&self.request));
            let mut at = earliest(batch, None).unwrap_or(end);
            loop {
                alarm.as_mut().reset(at.into());
                tokio::select! {
                    biased;
                    answers = &mut exchange => match answers {
                        Ok(answers) => return Some(answers),
                        Err(error) => break Reason::Broken(error.to_string().into()),
                    },
                    () = alarm.as_mut() => {
                        let now = Instant::now();
                        at = match earliest(batch, Some(now)) {
                            Some(next) => next,
                            // What has not been written by now is for nobody.
                            None if now < end && meter.bytes_written() > written => end,
                            None => break Reason::Deadline,
                        };
                        answer_late(batch, now);
                    }
                }
            }
        };
        if let Reason::Broken(why) = &reason {
            self.observer.connection_broke(&self.address, why);
        }
        // The exchange is over, so the count is final.
        let unwritten = connection.bytes_written() == written;
        self.observer.connection_dropped(&match &reason {
            Reason::Deadline => format!("{} calls were not answered in time", batch.len()),
            reason => reason.to_string(),
        });
        for waiting in batch {
            let reason = reason.clone();
            waiting.answer(Err(if unwritten { CallError::NotSent { reason } } else { CallError::Unknown { reason } }));
        }
        None
    }
}

/// The earliest deadline of a batch, of those after `now` where it is given.
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

/// Answers the calls of a batch in flight whose deadline has passed. They may have run.
fn answer_late(batch: &mut [Waiting], now: Instant) {
    for waiting in batch {
        if waiting.deadline <= now {
            waiting.answer(Err(CallError::Unknown { reason: Reason::Deadline }));
        }
    }
}

/// Passes an error of Redis on, and notes in `farewell` when the connection is not to be used again.
fn refuse(waiting: &mut Waiting, error: ServerError, farewell: &mut Option<String>) {
    if farewell.is_none() && Refusal::of(&error).connection == After::Redial {
        *farewell = Some(format!("redis answered {}", error.code()));
    }
    waiting.answer(Err(CallError::Refused(error)));
}

/// Answers calls that one script call made. Where its error proves that nothing ran, and the connection stays, all of
/// them go to `again`, where each gets its own answer: alone some would have been right, by another key, or because they
/// write nothing. Returns whether they were put there.
fn answer_group(group: &mut [Waiting], answer: Value, again: &mut Vec<Waiting>, farewell: &mut Option<String>) -> bool {
    match answer {
        Value::ServerError(error) => {
            let refusal = Refusal::of(&error);
            let is_undone = refusal.connection == After::Keep && refusal.proves_nothing_ran(&error);
            for waiting in group {
                if is_undone {
                    again.push(waiting.take());
                } else {
                    refuse(waiting, error.clone(), farewell);
                }
            }
            is_undone
        }
        Value::Array(numbers) => {
            let mut numbers = numbers.into_iter();
            let clock = numbers.next().unwrap_or(Value::Nil);
            for waiting in group {
                // Nothing where it has the wrong form, which whoever asked will notice.
                let own = merge::take_answer(&waiting.call, &clock, &mut numbers).unwrap_or(Value::Nil);
                waiting.answer(Ok(own));
            }
            false
        }
        strange => {
            for waiting in group {
                waiting.answer(Ok(strange.clone()));
            }
            false
        }
    }
}

fn is_no_script(error: &ServerError) -> bool {
    error.kind() == Some(ServerErrorKind::NoScript)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(deadline: Instant) -> (Waiting, oneshot::Receiver<Answer>) {
        let (reply, answer) = oneshot::channel();
        let waiting = Waiting { call: Call::command(redis::cmd("PING")), deadline, reply: Some(reply) };
        (waiting, answer)
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_full_queue_refuses_and_a_withdrawn_call_makes_room() {
        let now = Instant::now();
        let queue = Queue::new(2);
        let (one, _one) = waiting(now + seconds(1));
        let (two, _two) = waiting(now + seconds(1));
        let (three, _three) = waiting(now + seconds(1));
        let (four, _four) = waiting(now + seconds(1));
        let first = queue.push(one).unwrap();
        queue.push(two).unwrap();
        assert!(matches!(queue.push(three), Err(CallError::NotSent { reason: Reason::QueueFull { max: 2 } })));
        queue.withdraw(first);
        queue.push(four).unwrap();
    }

    #[test]
    fn a_stale_ticket_withdraws_nobody_else() {
        let now = Instant::now();
        let queue = Queue::new(2);
        let (one, _one) = waiting(now + seconds(1));
        let (two, _two) = waiting(now + seconds(2));
        let first = queue.push(one).unwrap();
        assert_eq!(queue.expire(now + seconds(1)), None, "nobody waits any more");
        queue.push(two).unwrap();
        queue.withdraw(first);
        let mut batch = Vec::new();
        queue.take(&mut batch, 9, now);
        assert_eq!(batch.len(), 1);
    }

    #[test]
    fn what_is_late_is_answered_and_not_taken() {
        let now = Instant::now();
        let queue = Queue::new(9);
        let (late, mut late_answer) = waiting(now);
        let (later, _later_answer) = waiting(now + seconds(2));
        let (timely, _timely_answer) = waiting(now + seconds(1));
        queue.push(later).unwrap();
        queue.push(late).unwrap();
        queue.push(timely).unwrap();
        assert_eq!(queue.expire(now), Some(now + seconds(1)));
        assert!(matches!(late_answer.try_recv().unwrap(), Err(CallError::NotSent { reason: Reason::Deadline })));
        let mut batch = Vec::new();
        queue.take(&mut batch, 9, now + seconds(1));
        assert_eq!(batch.len(), 1, "at its deadline a call is late");
        assert_eq!(batch[0].deadline, now + seconds(2));
    }

    #[test]
    fn a_batch_is_bounded_and_oldest_first() {
        let now = Instant::now();
        let queue = Queue::new(9);
        let mut answers = Vec::new();
        for n in 1..=5 {
            let (one, answer) = waiting(now + seconds(n));
            queue.push(one).unwrap();
            answers.push(answer);
        }
        let mut batch = Vec::new();
        queue.take(&mut batch, 3, now);
        let deadlines: Vec<_> = batch.iter().map(|waiting| waiting.deadline - now).collect();
        assert_eq!(deadlines, [seconds(1), seconds(2), seconds(3)]);
        assert!(queue.state.lock().waking, "another worker is called");
    }

    #[test]
    fn a_script_is_named_as_redis_names_it() {
        // `redis-cli script load "return 1"` answers this.
        let script = Script::new("return 1");
        assert_eq!(script.sha1(), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}
