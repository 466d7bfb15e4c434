//! One Redis server as its callers see it: a pipeline behind a circuit breaker, and the probes that find out when a
//! Redis that failed is back.
//!
//! Not here: batching and deadlines (pipeline.rs), calls that would keep others waiting (heavy.rs), when the breaker opens (breaker.rs) and which server a key lives on
//! (cluster.rs).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Value;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::breaker::{Breaker, Change, Circuit, Outcome, Pass, Settings, TRIALS};
use super::heavy::Lane;
use super::observer::Observer;
use super::pause::jittered;
use super::pipeline::{Call, CallError, Options, Pipeline, Reason};
use super::refusal::{Blame, Refusal};

/// A server and its breaker. One for each runtime and server: its tasks live on the runtime that started it and end
/// when it is dropped.
#[derive(Debug)]
pub struct Node {
    pipeline: Arc<Pipeline>,
    /// For calls that would keep others waiting.
    heavy: Lane,
    gate: Arc<Gate>,
    /// The one that probes. Aborted when dropped; it ends by itself only by a panic.
    prober: tokio::sync::Mutex<JoinSet<()>>,
}

impl Node {
    /// Starts the tasks on the current runtime. Nothing is dialled before the first call.
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
            opened: Notify::new(),
            observer: options.observer.clone(),
        });
        let heavy = Lane::start(&options);
        let pipeline = Arc::new(Pipeline::start(options));
        let mut prober = JoinSet::new();
        prober.spawn(probe(gate.clone(), pipeline.clone(), settings, connect_timeout));
        Self { pipeline, heavy, gate, prober: tokio::sync::Mutex::new(prober) }
    }

    /// Makes a call; see [`Pipeline::call`]. Where the breaker is open it is answered at once.
    ///
    /// # Errors
    /// Those of the pipeline, and [`Reason::CircuitOpen`].
    pub async fn call(&self, call: Call, deadline: Instant) -> Result<Value, CallError> {
        let Some(mut passing) = self.gate.admit() else {
            return Err(CallError::NotSent { reason: Reason::CircuitOpen });
        };
        if Lane::takes(&call) {
            passing.lateness = Lateness::Expected;
            // A box, so that light calls do not carry the room for this.
            let answer = Box::pin(self.heavy.call(call, deadline)).await;
            passing.end(&answer, deadline);
            return answer;
        }
        let answer = self.pipeline.call(call, deadline).await;
        passing.end(&answer, deadline);
        answer
    }

    /// Makes a call past the breaker, which does not hear of it: a question about the server, and none that a caller of
    /// weir waits for.
    ///
    /// # Errors
    /// Those of the pipeline.
    pub async fn ask(&self, question: Call, deadline: Instant) -> Result<Value, CallError> {
        self.pipeline.call(question, deadline).await
    }

    /// Whether the server answers a PING, past the breaker. A user who may not ask has his answer too.
    ///
    /// # Errors
    /// Those of the pipeline.
    pub async fn ping(&self, deadline: Instant) -> Result<(), CallError> {
        ping(&self.pipeline, deadline).await
    }

    /// Whether calls pass, now.
    #[must_use]
    pub fn circuit(&self) -> Circuit {
        self.gate.breaker.lock().circuit()
    }

    /// Where the server is, without user and password.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.gate.address
    }

    /// Returns, with its reason, when a task of the node has died: for whoever supervises. Waits for ever otherwise.
    pub async fn died(&self) -> String {
        let prober_died = async {
            match self.prober.lock().await.join_next().await {
                Some(Err(error)) => format!("the task that probes redis died: {error}"),
                Some(Ok(())) | None => "the task that probes redis ended".to_owned(),
            }
        };
        tokio::select! {
            reason = self.pipeline.died() => reason,
            reason = self.heavy.died() => reason,
            reason = prober_died => reason,
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Whoever counts open circuits counts those of nodes that are there.
        let was = self.circuit();
        if was != Circuit::Closed {
            self.gate.observer.circuit_gone(&self.gate.address, was);
        }
    }
}

/// The breaker, for all who share it on one runtime.
///
/// A plain mutex is right: nothing is awaited while it is held, it is contended by nobody on a runtime of one thread,
/// and a calm breaker is not asked at all.
struct Gate {
    address: Box<str>,
    timeout: Duration,
    /// What [`Breaker::is_calm`] said last.
    calm: AtomicBool,
    breaker: Mutex<Breaker>,
    /// Wakes the task that probes.
    opened: Notify,
    observer: Arc<dyn Observer>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("address", &self.address).field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

impl Gate {
    fn admit(&self) -> Option<Passing<'_>> {
        if self.calm.load(Relaxed) {
            return Some(Passing { gate: self, pass: Some(Pass::Ordinary), begun: None, lateness: Lateness::Counts });
        }
        let pass = self.breaker.lock().admit()?;
        Some(Passing { gate: self, pass: Some(pass), begun: Some(Instant::now()), lateness: Lateness::Counts })
    }

    /// Lets a probe be one of the trials of a half-open breaker.
    fn admit_probe(&self) -> Option<Passing<'_>> {
        let pass = self.breaker.lock().admit_probe()?;
        Some(Passing { gate: self, pass: Some(pass), begun: Some(Instant::now()), lateness: Lateness::Counts })
    }

    fn ended(&self, pass: Pass, outcome: Outcome) {
        if outcome != Outcome::Failure && self.calm.load(Relaxed) {
            return;
        }
        self.change(|breaker| breaker.ended(pass, outcome, Instant::now()));
    }

    fn change(&self, change: impl FnOnce(&mut Breaker) -> Option<Change>) {
        let changed = {
            let mut breaker = self.breaker.lock();
            let changed = change(&mut breaker);
            self.calm.store(breaker.is_calm(), Relaxed);
            changed
        };
        if let Some(Change { from, to }) = changed {
            if to == Circuit::Open {
                self.opened.notify_one();
            }
            self.observer.circuit_changed(&self.address, from, to);
        }
    }
}

/// A call that was let pass. One that is dropped unanswered says nothing, and gives its place back.
struct Passing<'a> {
    gate: &'a Gate,
    pass: Option<Pass>,
    /// When it was let pass. Not known of a call through a calm breaker: reading the clock costs more than all the rest
    /// here.
    begun: Option<Instant>,
    lateness: Lateness,
}

/// What a missed deadline says about the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lateness {
    /// That it is slow, if the call had time enough.
    Counts,
    /// Nothing: the call takes any server long.
    Expected,
}

impl Passing<'_> {
    /// The call ended with `answer`; it had time until `deadline`.
    fn end(&mut self, answer: &Result<Value, CallError>, deadline: Instant) {
        let gate = self.gate;
        if let Err(CallError::Refused(error)) = answer {
            gate.observer.refused(&gate.address, Refusal::of(error), error);
        }
        let Some(pass) = self.pass.take() else {
            return;
        };
        let patience = match self.lateness {
            Lateness::Counts => self.begun.map(|begun| deadline.saturating_duration_since(begun)),
            Lateness::Expected => Some(Duration::ZERO),
        };
        match judge(answer, patience, gate.timeout) {
            Some(outcome) => gate.ended(pass, outcome),
            None => gate.change(|breaker| {
                breaker.suspect(Instant::now());
                None
            }),
        }
    }
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take() {
            self.gate.ended(pass, Outcome::Neutral);
        }
    }
}

/// What an answer says about the server, to a call that had `patience` where calls usually have `timeout`. None for a
/// missed deadline whose length is not known.
fn judge(answer: &Result<Value, CallError>, patience: Option<Duration>, timeout: Duration) -> Option<Outcome> {
    Some(match answer {
        Ok(_) => Outcome::Success,
        Err(CallError::NotSent { reason } | CallError::Unknown { reason }) => match reason {
            Reason::NoConnection(_) | Reason::Broken(_) => Outcome::Failure,
            Reason::Deadline if patience? >= timeout / 2 => Outcome::Failure,
            Reason::Deadline | Reason::QueueFull { .. } | Reason::CircuitOpen | Reason::NoNode { .. } => {
                Outcome::Neutral
            }
        },
        Err(CallError::Refused(error)) => match Refusal::of(error).blame {
            Blame::Server => Outcome::Failure,
            Blame::Call | Blame::Route => Outcome::Neutral,
        },
    })
}

/// Asks an open breaker's server, now and then, whether it is back; and then, while no calls try it out, does that.
async fn probe(gate: Arc<Gate>, pipeline: Arc<Pipeline>, settings: Settings, connect_timeout: Duration) {
    loop {
        let pause = loop {
            let pause = gate.breaker.lock().next_probe();
            match pause {
                Some(pause) => break pause,
                // One that opened meanwhile has left its permit here.
                None => gate.opened.notified().await,
            }
        };
        if gate.breaker.lock().circuit() == Circuit::Open {
            tokio::time::sleep(jittered(pause)).await;
            let answered = is_back(&pipeline, settings.timeout, connect_timeout).await;
            gate.change(|breaker| breaker.probed(answered));
        } else {
            tokio::select! {
                () = tokio::time::sleep(pause) => stand_in(&gate, &pipeline).await,
                // A trial has failed: the pause is another one now.
                () = gate.opened.notified() => {}
            }
        }
    }
}

/// Makes the trials for which no calls came.
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

/// Whether a server answers as fast as calls need it: first a PING that may take the time of a dial, since there may be
/// no connection; then one that may not.
async fn is_back(pipeline: &Pipeline, timeout: Duration, connect_timeout: Duration) -> bool {
    let patient = ping(pipeline, Instant::now() + connect_timeout + timeout).await;
    patient.is_ok() && ping(pipeline, Instant::now() + timeout).await.is_ok()
}

async fn ping(pipeline: &Pipeline, deadline: Instant) -> Result<(), CallError> {
    match pipeline.call(Call::command(redis::cmd("PING")), deadline).await {
        Ok(_) => Ok(()),
        // A user may be denied PING and still be the right one.
        Err(CallError::Refused(error)) if Refusal::of(&error).kind == "noperm" => Ok(()),
        Err(error) => Err(error),
    }
}
