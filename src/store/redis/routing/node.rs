//! One Redis server: a pipeline behind a circuit breaker, and the probes that detect when a failed Redis answers again.
//!
//! Not here: batching, deadlines and the lane of heavy calls (transport), when the breaker opens (breaker.rs), and
//! which server has a key (cluster.rs).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::future::Either;
use parking_lot::Mutex;
use redis::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use weir_tls::backoff::jittered;

use super::breaker::{Breaker, BreakerSettings, CallOutcome, Circuit, CircuitChange, Pass, TRIALS};
use crate::redis::base::error_class::{Blame, RedisErrorClass};
use crate::redis::base::observer::RedisObserver;
use crate::redis::base::tasks::Tasks;
use crate::redis::transport::call::Call;
use crate::redis::transport::error::{CallError, Reason};
use crate::redis::transport::heavy::Lane;
use crate::redis::transport::options::Options;
use crate::redis::transport::pipeline::Pipeline;

/// The fewest PINGs in a window after a failed call.
const WATCH_PINGS: u32 = 8;

/// A server and its breaker. Each runtime has its own for each server. Its tasks run on the runtime that started it and
/// end when it is dropped.
pub struct Node {
    pipeline: Arc<Pipeline>,
    /// The lane of calls that would delay others.
    heavy: Lane,
    gate: Arc<Gate>,
    prober: Tasks,
}

impl Node {
    /// Starts the tasks on the current runtime. Dials nothing before the first call.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and when one of the numbers in `options` is out of its bounds.
    #[must_use]
    pub fn start(options: Options) -> Self {
        let settings = options.breaker;
        let connect_timeout = options.connect_timeout;
        let gate = Arc::new(Gate {
            address: options.target.to_string().into(),
            timeout: settings.timeout,
            calm: AtomicBool::new(true),
            breaker: Mutex::new(Breaker::new(settings)),
            trouble: Notify::new(),
            observer: options.observer.clone(),
        });
        let heavy = Lane::start(&options);
        let pipeline = Arc::new(Pipeline::start(options));
        let mut prober = JoinSet::new();
        prober.spawn(probe(gate.clone(), pipeline.clone(), settings, connect_timeout));
        Self { pipeline, heavy, gate, prober: Tasks::new("the task that sends probes to redis", prober) }
    }

    /// Makes a call; see [`Pipeline::call`]. Fails at once if the breaker is open.
    ///
    /// # Errors
    /// Those of the pipeline, and [`Reason::CircuitOpen`].
    pub fn call(&self, call: Call, deadline: Instant) -> impl Future<Output = Result<Value, CallError>> + use<'_> {
        // Not in the future, as in the pipeline.
        let admitted = self.gate.admit().map(|mut passing| {
            if Lane::takes(&call) {
                passing.is_heavy = true;
                // A box keeps the futures of light calls small.
                (passing, Either::Left(Box::pin(self.heavy.call(call, deadline))))
            } else {
                (passing, Either::Right(self.pipeline.call(call, deadline)))
            }
        });
        async move {
            let Some((mut passing, answer)) = admitted else {
                return Err(CallError::NotSent { reason: Reason::CircuitOpen });
            };
            let answer = answer.await;
            passing.end(&answer, deadline);
            answer
        }
    }

    /// Makes a call that bypasses the breaker and does not count there. For questions about the server, which no caller
    /// of weir waits for.
    ///
    /// # Errors
    /// Those of the pipeline.
    pub async fn ask(&self, question: Call, deadline: Instant) -> Result<Value, CallError> {
        self.pipeline.call(question, deadline).await
    }

    /// Whether the server answers a PING. Bypasses the breaker. NOPERM is an answer too.
    ///
    /// # Errors
    /// Those of the pipeline.
    pub async fn ping(&self, deadline: Instant) -> Result<(), CallError> {
        ping(&self.pipeline, deadline).await
    }

    pub fn circuit(&self) -> Circuit {
        self.gate.breaker.lock().circuit()
    }

    /// The address of the server, without user and password.
    pub fn address(&self) -> &str {
        &self.gate.address
    }

    /// Returns the reason when a task of the node has died. Otherwise never returns.
    pub async fn died(&self) -> String {
        tokio::select! {
            reason = self.pipeline.died() => reason,
            reason = self.heavy.died() => reason,
            reason = self.prober.died() => reason,
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The count of open circuits includes only existing nodes.
        let was = self.circuit();
        if was != Circuit::Closed {
            self.gate.observer.circuit_gone(&self.gate.address, was);
        }
    }
}

/// The breaker, shared by the calls and probes of one runtime.
///
/// A plain mutex is right: nothing is awaited while it is held, a single-threaded runtime has no contention, and a calm
/// breaker is not locked at all.
struct Gate {
    address: Box<str>,
    timeout: Duration,
    /// The last result of [`Breaker::is_calm`].
    calm: AtomicBool,
    breaker: Mutex<Breaker>,
    /// Wakes the task that sends probes: a call has failed, or the circuit has opened.
    trouble: Notify,
    observer: Arc<dyn RedisObserver>,
}

impl Gate {
    fn admit(&self) -> Option<Passing<'_>> {
        if self.calm.load(Relaxed) {
            return Some(Passing { gate: self, pass: Some(Pass::Ordinary), begun: None, is_heavy: false });
        }
        let pass = self.breaker.lock().admit()?;
        Some(Passing { gate: self, pass: Some(pass), begun: Some(Instant::now()), is_heavy: false })
    }

    /// Admits a probe as one of the trials of a half-open breaker.
    fn admit_probe(&self) -> Option<Passing<'_>> {
        let pass = self.breaker.lock().admit_probe()?;
        Some(Passing { gate: self, pass: Some(pass), begun: Some(Instant::now()), is_heavy: false })
    }

    fn ended(&self, pass: Pass, outcome: CallOutcome) {
        let failed = matches!(outcome, CallOutcome::Failure | CallOutcome::Down);
        if !failed && self.calm.load(Relaxed) {
            return;
        }
        self.change(|breaker| breaker.ended(pass, outcome, Instant::now()));
        if failed {
            self.trouble.notify_one();
        }
    }

    fn change(&self, change: impl FnOnce(&mut Breaker) -> Option<CircuitChange>) {
        let changed = {
            let mut breaker = self.breaker.lock();
            let changed = change(&mut breaker);
            self.calm.store(breaker.is_calm(), Relaxed);
            changed
        };
        if let Some(CircuitChange { from, to }) = changed {
            if to == Circuit::Open {
                self.trouble.notify_one();
            }
            self.observer.circuit_changed(&self.address, from, to);
        }
    }
}

/// A call that the breaker admitted. If dropped without an answer, it does not count and frees its trial.
struct Passing<'a> {
    gate: &'a Gate,
    pass: Option<Pass>,
    /// When the call was admitted. Unknown for a call through a calm breaker, because reading the clock costs more than
    /// all other steps here.
    begun: Option<Instant>,
    /// Whether the call takes long on every server: then a missed deadline means nothing.
    is_heavy: bool,
}

impl Passing<'_> {
    /// The call ended with `answer`; it had time until `deadline`.
    fn end(&mut self, answer: &Result<Value, CallError>, deadline: Instant) {
        let gate = self.gate;
        if let Err(CallError::Refused(error)) = answer {
            gate.observer.refused(&gate.address, RedisErrorClass::of(error), error);
        }
        let Some(pass) = self.pass.take() else {
            return;
        };
        let time_given = match self.begun {
            _ if self.is_heavy => Some(Duration::ZERO),
            begun => begun.map(|begun| deadline.saturating_duration_since(begun)),
        };
        match judge(answer, time_given, gate.timeout) {
            Some(outcome) => gate.ended(pass, outcome),
            None => {
                gate.change(|breaker| {
                    breaker.suspect(Instant::now());
                    None
                });
                gate.trouble.notify_one();
            }
        }
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.gate.ended(pass, CallOutcome::Neutral);
        }
    }
}

/// What an answer means for the server's health. The call had `time_given`; `timeout` is the usual time. None for a
/// missed deadline with an unknown `time_given`.
fn judge(answer: &Result<Value, CallError>, time_given: Option<Duration>, timeout: Duration) -> Option<CallOutcome> {
    Some(match answer {
        Ok(_) => CallOutcome::Success,
        Err(CallError::NotSent { reason } | CallError::Unknown { reason }) => match reason {
            Reason::NoConnection { error, .. } if error.is_refused => CallOutcome::Down,
            Reason::NoConnection { .. } | Reason::Broken(_) => CallOutcome::Failure,
            Reason::Deadline if time_given? >= timeout / 2 => CallOutcome::Failure,
            Reason::Deadline | Reason::QueueFull { .. } | Reason::CircuitOpen | Reason::NoNode { .. } => {
                CallOutcome::Neutral
            }
        },
        Err(CallError::Refused(error)) => match RedisErrorClass::of(error).blame {
            Blame::Server => CallOutcome::Failure,
            Blame::Call | Blame::Route => CallOutcome::Neutral,
        },
    })
}

/// Sends PINGs after a call has failed, and opens the breaker if they fail too. Probes the server of an open breaker
/// until it answers. Then makes the trials itself while there are no calls.
async fn probe(gate: Arc<Gate>, pipeline: Arc<Pipeline>, settings: BreakerSettings, connect_timeout: Duration) {
    loop {
        let pause = loop {
            let pause = gate.breaker.lock().next_probe();
            match pause {
                Some(pause) => break pause,
                // A call that failed meanwhile has left a permit here.
                None => {
                    gate.trouble.notified().await;
                    watch(&gate, &pipeline, settings).await;
                }
            }
        };
        if gate.breaker.lock().circuit() == Circuit::Open {
            tokio::time::sleep(jittered(pause)).await;
            let answered = is_back(&pipeline, settings.timeout, connect_timeout).await;
            gate.change(|breaker| breaker.probed(answered));
        } else {
            tokio::select! {
                () = tokio::time::sleep(pause) => stand_in(&gate, &pipeline).await,
                // A trial failed, so the pause has changed.
                () = gate.trouble.notified() => {}
            }
        }
    }
}

/// Sends PINGs to the server of a closed breaker until one is answered, or until all in a window have failed. Then the
/// server is down, at any call rate.
async fn watch(gate: &Gate, pipeline: &Pipeline, settings: BreakerSettings) {
    let begun = Instant::now();
    while settings.error_percent > 0 && gate.breaker.lock().circuit() == Circuit::Closed {
        let now = Instant::now();
        let answer = ping(pipeline, now + settings.timeout).await.map(|()| Value::Okay);
        match judge(&answer, Some(settings.timeout), settings.timeout) {
            Some(CallOutcome::Down) => gate.ended(Pass::Ordinary, CallOutcome::Down),
            Some(CallOutcome::Failure) if now - begun >= settings.window => {
                gate.ended(Pass::Ordinary, CallOutcome::Down);
            }
            Some(CallOutcome::Failure) => tokio::time::sleep(settings.window / WATCH_PINGS).await,
            Some(CallOutcome::Success | CallOutcome::Neutral) | None => {
                // Further failed calls cause no further PINGs.
                tokio::time::sleep(settings.probe).await;
                return;
            }
        }
    }
}

/// Makes the trials that calls have not made.
async fn stand_in(gate: &Gate, pipeline: &Pipeline) {
    for _ in 0..TRIALS {
        let Some(mut passing) = gate.admit_probe() else {
            return;
        };
        let deadline = Instant::now() + gate.timeout;
        let answer = ping(pipeline, deadline).await.map(|()| Value::Okay);
        passing.end(&answer, deadline);
    }
}

/// Whether a server answers as fast as calls need. Sends one PING with time for a dial, because there may be no
/// connection, and then one without.
async fn is_back(pipeline: &Pipeline, timeout: Duration, connect_timeout: Duration) -> bool {
    let patient = ping(pipeline, Instant::now() + connect_timeout + timeout).await;
    patient.is_ok() && ping(pipeline, Instant::now() + timeout).await.is_ok()
}

async fn ping(pipeline: &Pipeline, deadline: Instant) -> Result<(), CallError> {
    match pipeline.call(Call::command(redis::cmd("PING")), deadline).await {
        Ok(_) => Ok(()),
        // A user without the right to PING is acceptable.
        Err(CallError::Refused(error)) if RedisErrorClass::of(&error).kind == "noperm" => Ok(()),
        Err(error) => Err(error),
    }
}
