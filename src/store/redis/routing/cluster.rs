//! A Redis Cluster: each call goes to the node that has its key's slot, by a map that weir maintains.
//!
//! Not here: connections, batches and deadlines (transport), when a failing node gets no calls (node.rs), and what a call
//! means (scripts). docs/adr/0011 explains why weir uses no cluster client.
//!
//! Guarantees beyond those of a pipeline:
//!
//! 1. A call is sent again only after an answer that proves that it did not run (MOVED, ASK, TRYAGAIN), at most
//!    [`RESENDS_MAX`] times, and never after its deadline. Every other error of a call is returned unchanged.
//! 2. Each node has its own pipeline and breaker: a dead or slow node affects only calls for its own slots.
//! 3. Only calls before the first map wait for a map.
//! 4. One task updates the map: after a redirection, after a node gave no answer, and periodically. The pauses between
//!    attempts grow while they fail.
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
use crate::redis::base::tasks::Tasks;
use crate::redis::dial::endpoint::Endpoint;
use crate::redis::dial::host_port::HostPort;
use crate::redis::transport::call::Call;
use crate::redis::transport::error::{CallError, Reason};
use crate::redis::transport::options::Options;

/// The most times that one call is sent again. A migration of a slot needs two; the rest is for an outdated map.
const RESENDS_MAX: u32 = 6;

/// The pause before a call is sent again to a cluster in transition (TRYAGAIN, or redirected repeatedly). It doubles
/// each time. Up to half of it is cut at random.
const RESEND_PAUSE_MIN: Duration = Duration::from_millis(1);

/// The longest such pause, before the last attempt.
const RESEND_PAUSE_MAX: Duration = Duration::from_millis(32);

/// Routes calls to the nodes of one cluster. Each runtime has its own.
pub(crate) struct Cluster {
    members: Arc<Members>,
    learner: Tasks,
}

impl Cluster {
    /// Starts the task that updates the map, on the current runtime. Dials nothing before the first call. The target in
    /// `options` is not used: each node has its own.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and without seeds.
    pub(crate) fn start(seeds: Vec<Endpoint>, options: Options) -> Self {
        assert!(!seeds.is_empty(), "at least one node is needed to find a cluster");
        let members = Arc::new(Members::new(seeds, options));
        let mut learner = JoinSet::new();
        learner.spawn(keep_learning(members.clone()));
        Self { members, learner: Tasks::new("the task that reads a redis cluster's slots", learner) }
    }

    /// Makes a call on the node that has `slot`, by `deadline`. `call` makes the call again for each attempt.
    /// Fails as [`Node::call`](super::node::Node::call). A redirection is an error only after the last attempt.
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
                    // The refusal of the last attempt explains more than the missed deadline.
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
            // A migration of a slot takes two redirections; more mean that the nodes do not agree yet.
            let unsettled = redirection == Redirection::TryAgain || resends > 2;
            let elsewhere = match &redirection {
                Redirection::Moved(to) => self.members.redirected(to, Some(slot)),
                Redirection::Ask(to) => self.members.redirected(to, None),
                // The same node again. It answers MOVED after the migration.
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
    /// The error of the first master that does not answer, or the first slot without a master.
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

    /// Sends the same question to every node with slots, bypassing the breakers. Returns each address with its answer.
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

    /// Sends a question to the node with this number among those with slots, bypassing its breaker. None if there is no
    /// such node.
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

    /// Returns the reason when the task that updates the map, or a task of a node, has died. Otherwise never returns.
    pub(crate) async fn died(&self) -> String {
        loop {
            // Subscribes before it lists the nodes, so it misses no change.
            let mut changed = pin!(self.members.changed.notified());
            changed.as_mut().enable();
            let nodes = self.members.state.lock().map.nodes();
            let mut ends: FuturesUnordered<_> = nodes.iter().map(|(_, member)| member.node.died()).collect();
            tokio::select! {
                Some(reason) = ends.next() => return reason,
                reason = self.learner.died() => return reason,
                () = changed => {}
            }
        }
    }
}

/// The reaction to a node's refusal.
#[derive(Debug, PartialEq, Eq)]
enum Redirection {
    /// The slot belongs to another node: send this call and all later ones there.
    Moved(HostPort),
    /// The slot is migrating, and the key has moved: send only this call there, with ASKING.
    Ask(HostPort),
    /// The slot is migrating, and only some of the keys have moved: send the call again after a pause.
    TryAgain,
    /// Do not send again, but update the map: it may be wrong, or the node's role has changed.
    MapUncertain,
    /// Do not send again.
    None,
}

impl Redirection {
    /// Reads the refusal from the node on the host `asked`.
    fn read(error: &ServerError, asked: &str) -> Self {
        // The slot and the address follow the code.
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

/// Whether a call without an answer suggests that its node is gone.
fn casts_doubt(error: &CallError) -> bool {
    match error {
        CallError::NotSent { reason } | CallError::Unknown { reason } => {
            !matches!(reason, Reason::QueueFull { .. } | Reason::NoNode { .. })
        }
        CallError::Refused(_) => false,
    }
}

/// Waits before a call is sent again. Returns false without waiting if the deadline is too near.
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
