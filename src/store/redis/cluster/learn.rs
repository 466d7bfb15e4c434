//! How the map of a cluster is learned: whom to ask, how long to wait for each, and whom to believe.
//!
//! Not in here: what the map holds (map.rs) and what is done with it (cluster.rs).
//!
//! The strategy. One task asks one node after the other and does not wait for a slow one before it asks the next. The
//! first view that counts is that of a node which itself takes part: one that is cut off from the rest says that the
//! cluster has failed, and its view is taken only if no better one comes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::task::JoinSet;

use super::map::{Address, View};
use super::{Member, Shared, Trouble};
use crate::store::redis::node::Node;
use crate::store::redis::pause::{jittered, random};
use crate::store::redis::pipeline::{Call, CallError, Options};
use crate::store::redis::refusal::Refusal;
use crate::store::redis::{DialError, Endpoint, FileError, Observer};

/// The pause between two rounds of questions while something is wrong. It doubles while that goes on.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The longest such pause, and so about the time that a new master may stay unknown.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often the map is learned anew while all is well: tells of replicas that came, which can be asked in need.
const EVERY: Duration = Duration::from_secs(30);

/// How long one node may take to tell what it knows.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How long a node is waited for before another one is asked too.
const HEDGE: Duration = Duration::from_millis(100);

/// Nodes that are asked at most in one round.
const NODES_MAX: usize = 16;

/// Whom to ask.
enum Candidate {
    /// A node in use.
    InUse(Arc<Member>),
    /// Any other, by a connection of its own that is closed afterwards.
    Other(Endpoint),
}

/// What one node told.
struct Told {
    view: View,
    /// It says that the cluster works.
    in_order: bool,
}

impl Shared {
    /// Learns the map whenever that is wanted, and from time to time once it was. Ends with its task.
    pub(super) async fn keep_learning(self: Arc<Self>) {
        self.wanted.notified().await;
        let mut pause = PAUSE_MIN;
        loop {
            self.learn().await;
            tokio::time::sleep(jittered(pause)).await;
            let rested = Instant::now();
            tokio::select! {
                () = self.wanted.notified() => {}
                () = tokio::time::sleep(jittered(EVERY)) => {}
            }
            let was_calm = rested.elapsed() > PAUSE_MAX;
            pause = if was_calm { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
        }
    }

    /// One round of questions.
    async fn learn(self: &Arc<Self>) {
        let mut candidates = self.candidates().into_iter();
        let mut asked = JoinSet::new();
        let (mut best, mut trouble) = (None::<View>, None);
        loop {
            match candidates.next() {
                Some(candidate) => drop(asked.spawn(self.clone().ask(candidate))),
                None if asked.is_empty() => break,
                None => {}
            }
            let answer = tokio::select! {
                Some(answer) = asked.join_next() => answer,
                () = tokio::time::sleep(HEDGE) => continue,
            };
            match answer {
                Ok(Ok(told)) if told.in_order && told.view.covered() > 0 => return self.adopt(told.view),
                Ok(Ok(told)) => {
                    if best.as_ref().is_none_or(|best| told.view.covered() > best.covered()) {
                        best = Some(told.view);
                    }
                }
                Ok(Err(error)) => trouble = Some(error),
                Err(error) => trouble = Some(Trouble::Said(format!("a question to it failed: {error}").into())),
            }
        }
        match best {
            Some(best) if best.covered() > 0 => self.adopt(best),
            Some(_) => self.nothing_learned(Trouble::Said("the cluster has no slots yet".into())),
            None => self.nothing_learned(trouble.unwrap_or_else(|| Trouble::Said("nobody was asked".into()))),
        }
    }

    fn adopt(&self, view: View) {
        let gone = {
            let mut state = self.state.lock();
            state.trouble = None;
            state.map.adopt(view, Instant::now(), |to| self.dial(to))
        };
        self.changed.notify_waiters();
        // Their connections close here, unless a call is still on its way on them.
        drop(gone);
    }

    /// The map stays as it is, if there is one.
    fn nothing_learned(&self, trouble: Trouble) {
        self.state.lock().trouble = Some(trouble);
        self.changed.notify_waiters();
    }

    /// Whom to ask, in this order: who just knew better than we, then by turns a node of the cluster and a seed. So
    /// neither a cluster that has left all its old addresses costs much time, nor seeds that are no more.
    fn candidates(&self) -> Vec<Candidate> {
        let (mut known, replicas, wise) = {
            let mut state = self.state.lock();
            (state.map.nodes(), state.map.replicas().to_vec(), state.wise.take())
        };
        if !known.is_empty() {
            let turn = random(known.len());
            known.rotate_left(turn);
        }
        if let Some(place) = known.iter().position(|(address, _)| Some(address) == wise.as_ref()) {
            let wise = known.remove(place);
            known.insert(0, wise);
        }
        let is_known = |seed: &&Endpoint| {
            let place = seed.host_and_port();
            known.iter().any(|(address, _)| Some((&*address.host, address.port)) == place)
        };
        let mut seeds: Vec<Endpoint> = self.seeds.iter().filter(|seed| !is_known(seed)).cloned().collect();
        if !seeds.is_empty() {
            let turn = random(seeds.len());
            seeds.rotate_left(turn);
        }
        let at = |address: &Address| self.seeds[0].at(&address.host, address.port);
        let mut others = seeds.into_iter().chain(replicas.iter().map(at)).map(Candidate::Other);
        let mut known = known.into_iter().map(|(_, member)| Candidate::InUse(member));
        let mut candidates = Vec::new();
        loop {
            let (one, other) = (known.next(), others.next());
            if (one.is_none() && other.is_none()) || candidates.len() >= NODES_MAX {
                return candidates;
            }
            candidates.extend(one);
            candidates.extend(other);
        }
    }

    async fn ask(self: Arc<Self>, candidate: Candidate) -> Result<Told, Trouble> {
        let member = match candidate {
            Candidate::InUse(member) => member,
            Candidate::Other(endpoint) => {
                let host = endpoint.host_and_port().map_or("localhost", |(host, _)| host).into();
                let observer = Arc::new(Unlisted(self.options.observer.clone()));
                let options = Options { target: endpoint.into(), connections: 1, observer, ..self.options.clone() };
                Arc::new(Member { node: Node::start(options), host })
            }
        };
        let deadline = Instant::now() + TIMEOUT;
        let slots = match member.node.ask(Call::command(cluster("SLOTS")), deadline).await {
            Ok(slots) => slots,
            Err(error) => {
                if let CallError::Refused(answer) = &error {
                    self.options.observer.refused(member.node.address(), Refusal::of(answer), answer);
                }
                return Err(Trouble::of(error));
            }
        };
        let info = member.node.ask(Call::command(cluster("INFO")), deadline).await;
        let Some(view) = View::read(&slots, &member.host) else {
            return Err(Trouble::Said("the answer to CLUSTER SLOTS has an unknown form".into()));
        };
        let in_order = match info {
            Ok(info) => says_in_order(&info),
            // A user who may not ask is told no less for it.
            Err(CallError::Refused(_)) => true,
            Err(_) => false,
        };
        Ok(Told { view, in_order })
    }
}

/// Hears of a node that is only asked what it knows: that it is there is told nobody, since no decision goes to it, and
/// its breaker hears of nothing.
struct Unlisted(Arc<dyn Observer>);

impl Observer for Unlisted {
    fn batch_answered(&self, calls: usize, took: Duration) {
        self.0.batch_answered(calls, took);
    }

    fn dial_failed(&self, error: &DialError) {
        self.0.dial_failed(error);
    }

    fn file_refused(&self, error: &FileError) {
        self.0.file_refused(error);
    }

    fn connection_dropped(&self, reason: &str) {
        self.0.connection_dropped(reason);
    }

    fn connection_broke(&self, address: &str, reason: &str) {
        self.0.connection_broke(address, reason);
    }

    fn dial_held(&self, address: &str, wait: Duration) {
        self.0.dial_held(address, wait);
    }
}

fn says_in_order(info: &Value) -> bool {
    match info {
        Value::BulkString(text) => {
            String::from_utf8_lossy(text).lines().any(|line| line.trim_end() == "cluster_state:ok")
        }
        _ => false,
    }
}

fn cluster(subcommand: &str) -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg(subcommand);
    command
}

impl Trouble {
    fn of(error: CallError) -> Self {
        match error {
            // Whatever became of the question, the calls that wait for its answer were not sent.
            CallError::NotSent { reason } | CallError::Unknown { reason } => Self::Silent(reason),
            CallError::Refused(error) => {
                Self::Said(format!("a node refused to tell: {}", Refusal::of(&error).code).into())
            }
        }
    }
}
