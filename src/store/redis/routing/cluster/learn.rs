//! How the map of a cluster is read: which node is asked, how long weir waits for each, and which answer counts.
//!
//! Not here: the content of the map (map.rs), and how calls use it (cluster.rs).
//!
//! The strategy. One task asks one node after the other, and does not wait for a slow node before it asks the next. The
//! first view from a node that sees a working cluster counts. A node that is disconnected from the rest reports a
//! failed cluster; its view is used only if there is no better one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::task::JoinSet;
use weir_tls::backoff::{jittered, random};
use weir_tls::files::FileError;

use super::map::View;
use super::members::{Member, Members, Problem};
use crate::redis::base::dial_error::DialError;
use crate::redis::base::error_class::RedisErrorClass;
use crate::redis::base::observer::RedisObserver;
use crate::redis::dial::endpoint::Endpoint;
use crate::redis::dial::host_port::HostPort;
use crate::redis::routing::node::Node;
use crate::redis::transport::call::Call;
use crate::redis::transport::error::CallError;
use crate::redis::transport::options::Options;

/// The pause between two rounds of questions after a failure. It doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(50);

/// The longest such pause: a new master is unknown for about this time at most.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often the map is updated without a failure. The update finds new replicas, which weir can ask if the masters do
/// not answer.
const EVERY: Duration = Duration::from_secs(30);

/// How long one node may take to answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait for a node's answer before another node is asked too.
const HEDGE: Duration = Duration::from_millis(100);

/// The most nodes that are asked in one round.
const NODES_MAX: usize = 16;

/// A node to ask.
enum Candidate {
    InUse(Arc<Member>),
    /// Any other node. It gets its own connection, which is closed after the answer.
    Other(Endpoint),
}

struct NodeReport {
    view: View,
    /// Whether the node sees a working cluster.
    in_order: bool,
}

/// Updates the map on request, and periodically after the first success. Ends with its task.
pub(super) async fn keep_learning(members: Arc<Members>) {
    members.map_wanted.notified().await;
    let mut pause = PAUSE_MIN;
    loop {
        members.learn().await;
        tokio::time::sleep(jittered(pause)).await;
        let rested = Instant::now();
        tokio::select! {
            () = members.map_wanted.notified() => {}
            () = tokio::time::sleep(jittered(EVERY)) => {}
        }
        let was_calm = rested.elapsed() > PAUSE_MAX;
        pause = if was_calm { PAUSE_MIN } else { (pause * 2).min(PAUSE_MAX) };
    }
}

impl Members {
    /// One round of questions.
    async fn learn(self: &Arc<Self>) {
        let mut candidates = self.candidates().into_iter();
        let mut asked = JoinSet::new();
        let (mut best, mut problem) = (None::<View>, None);
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
                Ok(Ok(report)) if report.in_order && report.view.covered() > 0 => return self.adopt(report.view),
                Ok(Ok(report)) => {
                    if best.as_ref().is_none_or(|best| report.view.covered() > best.covered()) {
                        best = Some(report.view);
                    }
                }
                Ok(Err(error)) => problem = Some(error),
                Err(error) => problem = Some(Problem::Answer(format!("the question failed: {error}").into())),
            }
        }
        match best {
            Some(best) if best.covered() > 0 => self.adopt(best),
            Some(_) => self.nothing_learned(Problem::Answer("the cluster has no slots yet".into())),
            None => self.nothing_learned(problem.unwrap_or_else(|| Problem::Answer("no node was asked".into()))),
        }
    }

    fn adopt(&self, view: View) {
        let gone = {
            let mut state = self.state.lock();
            state.problem = None;
            state.map.adopt(view, Instant::now(), |to| self.dial(to))
        };
        self.changed.notify_waiters();
        // Closes their connections, except those with a call in flight.
        drop(gone);
    }

    /// Keeps the existing map, if there is one.
    fn nothing_learned(&self, problem: Problem) {
        self.state.lock().problem = Some(problem);
        self.changed.notify_waiters();
    }

    /// The nodes to ask, in this order: the node that a redirection named last, then alternately a node of the cluster
    /// and a seed. So a cluster at new addresses, or seeds that are gone, cost little time.
    fn candidates(&self) -> Vec<Candidate> {
        let (mut known, replicas, preferred) = {
            let mut state = self.state.lock();
            (state.map.nodes(), state.map.replicas().to_vec(), state.preferred.take())
        };
        if !known.is_empty() {
            let turn = random(known.len());
            known.rotate_left(turn);
        }
        if let Some(at) = known.iter().position(|(address, _)| Some(address) == preferred.as_ref()) {
            let preferred = known.remove(at);
            known.insert(0, preferred);
        }
        let is_known = |seed: &&Endpoint| {
            let of_seed = seed.host_and_port();
            known.iter().any(|(address, _)| Some((&*address.host, address.port)) == of_seed)
        };
        let mut seeds: Vec<Endpoint> = self.seeds.iter().filter(|seed| !is_known(seed)).cloned().collect();
        if !seeds.is_empty() {
            let turn = random(seeds.len());
            seeds.rotate_left(turn);
        }
        let at = |address: &HostPort| self.seeds[0].at(&address.host, address.port);
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

    async fn ask(self: Arc<Self>, candidate: Candidate) -> Result<NodeReport, Problem> {
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
                    self.options.observer.refused(member.node.address(), RedisErrorClass::of(answer), answer);
                }
                return Err(Problem::of(error));
            }
        };
        let info = member.node.ask(Call::command(cluster("INFO")), deadline).await;
        let Some(view) = View::read(&slots, &member.host) else {
            return Err(Problem::Answer("the answer to CLUSTER SLOTS has an unknown form".into()));
        };
        let in_order = match info {
            Ok(info) => is_in_order(&info),
            // A user without the right to this command still gets the slots.
            Err(CallError::Refused(_)) => true,
            Err(_) => false,
        };
        Ok(NodeReport { view, in_order })
    }
}

/// The observer of a node that is asked only for the map. It does not report the node's pipeline and breaker, because
/// no decision uses them.
struct Unlisted(Arc<dyn RedisObserver>);

impl RedisObserver for Unlisted {
    fn batch_answered(&self, calls: usize, took: Duration) {
        self.0.batch_answered(calls, took);
    }

    fn dial_failed(&self, address: &str, error: &DialError) {
        self.0.dial_failed(address, error);
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

fn is_in_order(info: &Value) -> bool {
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

impl Problem {
    fn of(error: CallError) -> Self {
        match error {
            // The calls that wait for the answer were not sent, even if the question was.
            CallError::NotSent { reason } | CallError::Unknown { reason } => Self::NoAnswer(reason),
            CallError::Refused(error) => {
                Self::Answer(format!("a node refused the command: {}", RedisErrorClass::of(&error).code).into())
            }
        }
    }
}
