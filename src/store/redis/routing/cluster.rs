//! A Redis Cluster: each call goes to the node that holds its key's slot, by a map that weir keeps.
//!
//! Not here: connections, batches and deadlines (transport), when a failing node gets no calls (node.rs), and what a call
//! means (scripts). docs/adr/0011 explains why weir uses no cluster client.
//!
//! Guarantees beyond those of a pipeline:
//!
//! 1. A call is sent again only after an answer that proves that it did not run (MOVED, ASK, TRYAGAIN), at most
//!    [`RESENDS_MAX`] times, and never beyond its deadline. Every other error of a call is passed on as it is.
//! 2. Each node has a pipeline and a breaker of its own: one that is dead or slow costs only calls for its own slots.
//! 3. Only the calls before the first map wait for a map.
//! 4. One task learns the map anew: when a call was redirected or a node gave no answer, with pauses that grow while
//!    that goes on, and from time to time.
pub(in crate::redis) mod fuzz;
mod learn;
mod map;
mod members;
pub(crate) mod slot;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::{ServerError, ServerErrorKind, Value};
use tokio::task::JoinSet;
use weir_tls::backoff::{doubled, jittered};

use self::learn::keep_learning;
use self::members::{Members, NOT_ASSIGNED, no_node};
use crate::redis::dial::endpoint::Endpoint;
use crate::redis::dial::host_port::HostPort;
use crate::redis::transport::call::Call;
use crate::redis::transport::error::{CallError, Reason};
use crate::redis::transport::options::Options;

/// How often one call is sent again at most. A move of a slot needs two; the rest is for a map that is out of date.
const RESENDS_MAX: u32 = 6;

/// The pause before a call is sent again to a cluster that is between two states (TRYAGAIN, or sent to and fro). It
/// doubles each time, and is cut by up to half at random.
const RESEND_PAUSE_MIN: Duration = Duration::from_millis(1);

/// The longest such pause, before the last time of all.
const RESEND_PAUSE_MAX: Duration = Duration::from_millis(32);

/// Routes calls to the nodes of one cluster. One for each runtime, as a pipeline is.
pub(crate) struct Cluster {
    members: Arc<Members>,
    /// The task that learns the map. Aborted when dropped; it ends by itself only by a panic.
    learner: tokio::sync::Mutex<JoinSet<()>>,
}

impl Cluster {
    /// Starts the task that learns the map, on the current runtime. Nothing is dialled before the first call. The target
    /// in `options` is not used: each node has its own.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and without seeds.
    pub(crate) fn start(seeds: Vec<Endpoint>, options: Options) -> Self {
        assert!(!seeds.is_empty(), "a cluster is found by at least one of its nodes");
        let members = Arc::new(Members::new(seeds, options));
        let mut learner = JoinSet::new();
        learner.spawn(keep_learning(members.clone()));
        Self { members, learner: tokio::sync::Mutex::new(learner) }
    }

    /// Makes a call on the node that holds `slot`, by `deadline`. `call` makes it, once for each time that it is sent.
    ///
    /// # Errors
    /// As [`Node::call`](super::node::Node::call); a redirection is the answer only where it led nowhere.
    pub(crate) async fn call(&self, slot: u16, call: impl Fn() -> Call, deadline: Instant) -> Result<Value, CallError> {
        let mut member = self.members.member(slot, deadline).await?;
        let mut next = call();
        let (mut resends, mut asking) = (0, false);
        let mut sent_back: Option<ServerError> = None;
        loop {
            let error = match member.node.call(next, deadline).await {
                Err(CallError::Refused(error)) => error,
                Err(error) => {
                    let is_late = matches!(error, CallError::NotSent { reason: Reason::Deadline });
                    // The refusal that used up the time helps more than the missed deadline.
                    if let (true, Some(refused)) = (is_late, sent_back) {
                        return Err(CallError::Refused(refused));
                    }
                    if casts_doubt(&error) {
                        self.members.map_wanted.notify_one();
                    }
                    return Err(error);
                }
                answer => return answer,
            };
            let redirection = Redirection::read(&error, &member.host);
            if matches!(redirection, Redirection::Moved(_) | Redirection::MapUncertain) {
                self.members.map_wanted.notify_one();
            }
            resends += 1;
            if resends > RESENDS_MAX {
                return Err(CallError::Refused(error));
            }
            // A move of a slot takes two hops; more of them mean that the nodes do not agree yet.
            let unsettled = redirection == Redirection::TryAgain || resends > 2;
            let elsewhere = match &redirection {
                Redirection::Moved(to) => self.members.redirected(to, Some(slot)),
                Redirection::Ask(to) => self.members.redirected(to, None),
                // The same node again; it answers MOVED once the slot has gone.
                Redirection::TryAgain => Some(member),
                Redirection::MapUncertain | Redirection::None => None,
            };
            let Some(elsewhere) = elsewhere else {
                return Err(CallError::Refused(error));
            };
            if unsettled && !pause_before(resends, deadline).await {
                return Err(CallError::Refused(error));
            }
            member = elsewhere;
            sent_back = Some(error);
            next = call();
            match redirection {
                Redirection::Ask(_) => asking = true,
                Redirection::Moved(_) => asking = false,
                _ => {}
            }
            if asking {
                next = next.asking();
            }
        }
    }

    /// Whether every slot has a master, and every master answers.
    ///
    /// # Errors
    /// Of the first master that does not answer, or with a slot that has no master.
    pub(crate) async fn ping(&self, deadline: Instant) -> Result<(), CallError> {
        self.members.member(0, deadline).await?;
        let (nodes, uncovered) = {
            let state = self.members.state.lock();
            (state.map.nodes(), state.map.uncovered())
        };
        if let Some(slot) = uncovered {
            self.members.map_wanted.notify_one();
            return Err(no_node(slot, NOT_ASSIGNED.into()));
        }
        let pings = nodes.iter().map(|(_, member)| member.node.ping(deadline));
        for answer in join_all(pings).await {
            if let Err(error) = answer {
                if casts_doubt(&error) {
                    self.members.map_wanted.notify_one();
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Asks every node that holds slots the same, past its breaker, and returns its address with its answer.
    pub(crate) async fn ask_all(
        &self,
        question: impl Fn() -> Call,
        deadline: Instant,
    ) -> Vec<(String, Result<Value, CallError>)> {
        let nodes = self.members.state.lock().map.nodes();
        let asked = nodes.iter().map(|(_, member)| async {
            (member.node.address().to_owned(), member.node.ask(question(), deadline).await)
        });
        join_all(asked).await
    }

    /// Asks the node of this number among those that hold slots, past its breaker; none behind the last.
    pub(crate) async fn ask_one(
        &self,
        number: usize,
        question: impl FnOnce() -> Call,
        deadline: Instant,
    ) -> Option<Result<Value, CallError>> {
        let nodes = self.members.state.lock().map.nodes();
        let (_, member) = nodes.get(number)?;
        Some(member.node.ask(question(), deadline).await)
    }

    /// Returns, with its reason, when the task that learns the map or a task of a node has died. Waits for ever otherwise.
    pub(crate) async fn died(&self) -> String {
        let mut learner = self.learner.lock().await;
        loop {
            // It listens before it lists the nodes, so that it misses no change.
            let mut changed = pin!(self.members.changed.notified());
            changed.as_mut().enable();
            let nodes = self.members.state.lock().map.nodes();
            let mut ends: FuturesUnordered<_> = nodes.iter().map(|(_, member)| member.node.died()).collect();
            tokio::select! {
                Some(reason) = ends.next() => return reason,
                ended = learner.join_next() => return match ended {
                    Some(Err(error)) => format!("the task that learns a redis cluster's slots died: {error}"),
                    Some(Ok(())) | None => "the task that learns a redis cluster's slots ended".to_owned(),
                },
                () = changed => {}
            }
        }
    }
}

/// What to do with a call that a node refused.
#[derive(Debug, PartialEq, Eq)]
enum Redirection {
    /// The slot is another node's: send this call and all later ones there.
    Moved(HostPort),
    /// The slot is on the move and the key is not here: send this call there, with ASKING.
    Ask(HostPort),
    /// The slot is on the move and some of the keys are here, some there: send it again in a moment.
    TryAgain,
    /// Nothing, but weir's map may be wrong, or the node has another role now.
    MapUncertain,
    /// Nothing.
    None,
}

impl Redirection {
    /// Reads the refusal of the node on the host `asked`.
    fn read(error: &ServerError, asked: &str) -> Self {
        // After the code stands the slot, and the address.
        let named = || map::address(error.details()?.split(' ').nth(1)?, asked);
        match error.kind() {
            Some(ServerErrorKind::Moved) => named().map_or(Self::MapUncertain, Self::Moved),
            Some(ServerErrorKind::Ask) => named().map_or(Self::None, Self::Ask),
            Some(ServerErrorKind::TryAgain) => Self::TryAgain,
            Some(
                ServerErrorKind::ClusterDown
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown,
            ) => Self::MapUncertain,
            _ => Self::None,
        }
    }
}

/// Whether a call that got no answer suggests that its node is gone.
fn casts_doubt(error: &CallError) -> bool {
    match error {
        CallError::NotSent { reason } | CallError::Unknown { reason } => {
            !matches!(reason, Reason::QueueFull { .. } | Reason::NoNode { .. })
        }
        CallError::Refused(_) => false,
    }
}

/// Waits before a call is sent for the time `resends` again. Not at all, and false, where its deadline is too near.
async fn pause_before(resends: u32, deadline: Instant) -> bool {
    let whole = doubled(RESEND_PAUSE_MIN, resends.saturating_sub(1), RESEND_PAUSE_MAX);
    let until = Instant::now() + jittered(whole);
    if until >= deadline {
        return false;
    }
    tokio::time::sleep_until(until.into()).await;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_where_to_go() {
        let read = |answer: &str| match redis::parse_redis_value(answer.as_bytes()).unwrap() {
            Value::ServerError(error) => Redirection::read(&error, "asked"),
            other => panic!("{other:?}"),
        };
        let at = |host: &str| HostPort { host: host.into(), port: 6381 };
        assert_eq!(read("-MOVED 3999 127.0.0.1:6381\r\n"), Redirection::Moved(at("127.0.0.1")));
        assert_eq!(read("-MOVED 3999 :6381\r\n"), Redirection::Moved(at("asked")));
        assert_eq!(read("-MOVED 3999 fd00::1:6381\r\n"), Redirection::Moved(at("fd00::1")));
        assert_eq!(read("-MOVED 3999 ?:6381\r\n"), Redirection::MapUncertain);
        assert_eq!(read("-MOVED\r\n"), Redirection::MapUncertain);
        assert_eq!(read("-ASK 3999 127.0.0.1:6381\r\n"), Redirection::Ask(at("127.0.0.1")));
        assert_eq!(read("-ASK 3999 ?:6381\r\n"), Redirection::None);
        assert_eq!(read("-TRYAGAIN Multiple keys request during rehashing of slot\r\n"), Redirection::TryAgain);
        assert_eq!(read("-CLUSTERDOWN The cluster is down\r\n"), Redirection::MapUncertain);
        assert_eq!(read("-LOADING Redis is loading the dataset in memory\r\n"), Redirection::MapUncertain);
        assert_eq!(read("-CROSSSLOT Keys in request don't hash to the same slot\r\n"), Redirection::None);
        assert_eq!(read("-OOM command not allowed\r\n"), Redirection::None);
        assert_eq!(read("-ERR value is not an integer\r\n"), Redirection::None);
    }

    #[tokio::test]
    async fn a_pause_never_goes_beyond_the_deadline() {
        let soon = Instant::now() + Duration::from_micros(100);
        assert!(!pause_before(1, soon).await);
        assert!(Instant::now() < soon + Duration::from_secs(1));
        assert!(pause_before(1, Instant::now() + Duration::from_secs(60)).await);
    }
}
