//! A Redis Cluster: each call goes to the node that holds its key's slot, by a map that is kept here.
//!
//! Not in here: connections (pool.rs), batches and deadlines (pipeline.rs), when a failing node is left alone (node.rs),
//! and what a call means (the store above).
//! docs/adr/0011 says why this is not left to a cluster client.
//!
//! What is promised beyond what a pipeline promises:
//!
//! 1. A call is sent again only after an answer that proves that it did not run (MOVED, ASK, TRYAGAIN), at most
//!    [`RESENDS_MAX`] times, and never beyond its deadline. Every other end of a call is told as it is.
//! 2. Each node has a pipeline and a breaker of its own: one that is dead or slow costs only calls for its own slots.
//! 3. No call waits for the map, but the first ones before there is any.
//! 4. One task learns the map anew: when a call was redirected or a node gave no answer, with pauses that grow while
//!    that goes on, and from time to time.

mod learn;
mod map;
pub(super) mod slot;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use redis::{ServerError, ServerErrorKind, Value};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use self::map::{Address, Map};
use super::endpoint::Endpoint;
use super::node::Node;
use super::pause::{doubled, jittered};
use super::pipeline::{Call, CallError, Options, Reason};

/// How often one call is sent again at most. A move of a slot needs two; the rest is for a map that is out of date.
const RESENDS_MAX: u32 = 6;

/// The pause before a call is sent again to a cluster that is between two states (TRYAGAIN, or sent to and fro). It
/// doubles each time, and is cut by up to half at random.
const RESEND_PAUSE_MIN: Duration = Duration::from_millis(1);

/// The longest such pause, before the last time of all.
const RESEND_PAUSE_MAX: Duration = Duration::from_millis(32);

/// Routes calls to the nodes of one cluster. One for each runtime, as a pipeline is.
pub(super) struct Cluster {
    shared: Arc<Shared>,
    /// The task that learns. Aborted when dropped; it ends of itself only by a panic.
    learner: tokio::sync::Mutex<JoinSet<()>>,
}

impl Cluster {
    /// Starts the task that learns the map, on the current runtime. Nothing is dialled before the first call. The place
    /// in `options` does not count: each node has its own.
    ///
    /// # Panics
    /// Outside of a tokio runtime, and without seeds.
    pub(super) fn start(seeds: Vec<Endpoint>, options: Options) -> Self {
        assert!(!seeds.is_empty(), "a cluster is found by at least one of its nodes");
        let shared = Arc::new(Shared {
            seeds,
            waiting: Semaphore::new(options.queue_max.min(Semaphore::MAX_PERMITS)),
            options,
            runtime: tokio::runtime::Handle::current(),
            state: Mutex::new(State { map: Map::new(), trouble: None, wise: None }),
            wanted: Notify::new(),
            changed: Notify::new(),
        });
        let mut learner = JoinSet::new();
        learner.spawn(shared.clone().keep_learning());
        Self { shared, learner: tokio::sync::Mutex::new(learner) }
    }

    /// Makes a call on the node that holds `slot`, by `deadline`. `call` makes it, once for each time that it is sent.
    ///
    /// # Errors
    /// As [`Node::call`]; a redirection is the answer only where it led nowhere.
    pub(super) async fn call(&self, slot: u16, call: impl Fn() -> Call, deadline: Instant) -> Result<Value, CallError> {
        let mut member = self.shared.member(slot, deadline).await?;
        let mut next = call();
        let (mut resends, mut asking) = (0, false);
        let mut sent_back: Option<ServerError> = None;
        loop {
            let error = match member.node.call(next, deadline).await {
                Err(CallError::Refused(error)) => error,
                // What used up the time says more than that it is used up.
                Err(CallError::NotSent { reason: Reason::Deadline }) if let Some(refused) = sent_back => {
                    return Err(CallError::Refused(refused));
                }
                Err(error) => {
                    if casts_doubt(&error) {
                        self.shared.wanted.notify_one();
                    }
                    return Err(error);
                }
                answer => return answer,
            };
            let redirection = Redirection::read(&error, &member.host);
            if matches!(redirection, Redirection::Moved(_) | Redirection::MapInDoubt) {
                self.shared.wanted.notify_one();
            }
            resends += 1;
            if resends > RESENDS_MAX {
                return Err(CallError::Refused(error));
            }
            // A move of a slot takes two hops; more of them mean that the nodes are not of one mind yet.
            let unsettled = redirection == Redirection::TryAgain || resends > 2;
            let elsewhere = match &redirection {
                Redirection::Moved(to) => self.shared.redirected(to, Some(slot)),
                Redirection::Ask(to) => self.shared.redirected(to, None),
                // The same node again; it answers MOVED once the slot has gone.
                Redirection::TryAgain => Some(member),
                Redirection::MapInDoubt | Redirection::None => None,
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

    /// Whether every slot has a master, and every master answers: then no key is left out.
    ///
    /// # Errors
    /// Of the first master that does not answer, or with a slot that nobody holds.
    pub(super) async fn ping(&self, deadline: Instant) -> Result<(), CallError> {
        self.shared.member(0, deadline).await?;
        let (members, uncovered) = {
            let state = self.shared.state.lock();
            (state.map.nodes(), state.map.uncovered())
        };
        if let Some(slot) = uncovered {
            self.shared.wanted.notify_one();
            return Err(no_node(slot, NOBODY_HOLDS_IT.into()));
        }
        let pings = members.iter().map(|(_, member)| member.node.ping(deadline));
        for answer in join_all(pings).await {
            if let Err(error) = answer {
                if casts_doubt(&error) {
                    self.shared.wanted.notify_one();
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Asks every node that holds slots the same, past its breaker, and returns its address with its answer.
    pub(super) async fn ask_all(
        &self,
        question: impl Fn() -> Call,
        deadline: Instant,
    ) -> Vec<(String, Result<Value, CallError>)> {
        let members = self.shared.state.lock().map.nodes();
        let asked = members.iter().map(|(_, member)| async {
            (member.node.address().to_owned(), member.node.ask(question(), deadline).await)
        });
        join_all(asked).await
    }

    /// Returns, with its reason, when a task of ours or of a node has died. Waits for ever otherwise.
    pub(super) async fn died(&self) -> String {
        let mut learner = self.learner.lock().await;
        loop {
            // Listening begins before the nodes are listed, so that no change is missed.
            let mut changed = pin!(self.shared.changed.notified());
            changed.as_mut().enable();
            let members = self.shared.state.lock().map.nodes();
            let mut ends: FuturesUnordered<_> = members.iter().map(|(_, member)| member.node.died()).collect();
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

/// Why a slot that the cluster does not mention has no node.
const NOBODY_HOLDS_IT: &str = "the cluster has given it to nobody";

fn no_node(slot: u16, why: Arc<str>) -> CallError {
    CallError::NotSent { reason: Reason::NoNode { slot, why } }
}

/// A node in use.
struct Member {
    node: Node,
    /// Its own host: what it tells without one lies there.
    host: Box<str>,
}

struct Shared {
    /// Where the cluster is asked about itself at first, and again when other nodes do not answer.
    seeds: Vec<Endpoint>,
    /// How each node's pipeline is built, but for the place.
    options: Options,
    /// Where the pipelines' tasks live, whoever has need of a new one.
    runtime: tokio::runtime::Handle,
    /// Never held across an await; on a runtime of one thread never contended.
    state: Mutex<State>,
    /// Bounds the calls that wait for the first map, as each pipeline bounds its queue.
    waiting: Semaphore,
    /// Wakes the learner.
    wanted: Notify,
    /// Wakes the calls that wait for the first map, and whoever watches over the nodes' tasks.
    changed: Notify,
}

struct State {
    map: Map<Member>,
    /// Why there is no map: what stood in the way of the last attempt.
    trouble: Option<Trouble>,
    /// A node that knew better than our map: it is asked first.
    wise: Option<Address>,
}

impl Shared {
    /// The node that holds a slot. While nothing is known of the cluster yet, waits for it.
    async fn member(&self, slot: u16, deadline: Instant) -> Result<Arc<Member>, CallError> {
        if let Some(member) = self.known(slot)? {
            return Ok(member);
        }
        let Ok(_place) = self.waiting.try_acquire() else {
            return Err(CallError::NotSent { reason: Reason::QueueFull { max: self.options.queue_max } });
        };
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(member) = self.known(slot)? {
                return Ok(member);
            }
            self.wanted.notify_one();
            if tokio::time::timeout_at(deadline.into(), changed).await.is_err() {
                return Err(CallError::NotSent { reason: Reason::Deadline });
            }
        }
    }

    /// The node that holds a slot; none where the first attempt to learn of the cluster is not over yet.
    fn known(&self, slot: u16) -> Result<Option<Arc<Member>>, CallError> {
        let state = self.state.lock();
        if let Some(member) = state.map.node(slot) {
            return Ok(Some(member));
        }
        if !state.map.is_known() && state.trouble.is_none() {
            return Ok(None);
        }
        let error = match &state.trouble {
            Some(Trouble::Silent(reason)) if !state.map.is_known() => CallError::NotSent { reason: reason.clone() },
            Some(Trouble::Said(why)) if !state.map.is_known() => no_node(slot, why.clone()),
            _ => no_node(slot, NOBODY_HOLDS_IT.into()),
        };
        drop(state);
        self.wanted.notify_one();
        Err(error)
    }

    /// The node that a redirection names, which holds `moved` from now on if a slot is given.
    fn redirected(&self, to: &Address, moved: Option<u16>) -> Option<Arc<Member>> {
        let now = Instant::now();
        let (member, is_new) = {
            let mut state = self.state.lock();
            let before = state.map.len();
            let member = match moved {
                Some(slot) => {
                    state.wise = Some(to.clone());
                    state.map.moved(slot, to, now, |to| self.dial(to))
                }
                None => state.map.redirected(to, now, |to| self.dial(to)),
            };
            (member, state.map.len() > before)
        };
        if is_new {
            self.changed.notify_waiters();
        }
        member
    }

    /// A pipeline to a node. Nothing is dialled before its first call.
    fn dial(&self, to: &Address) -> Member {
        let _on = self.runtime.enter();
        // The seeds share login and TLS: any of them will do.
        let endpoint = self.seeds[0].at(&to.host, to.port);
        // The keys of one call lie in one slot, and those of calls that happen to wait together do not.
        let options = Options { target: endpoint.into(), merge_max: 0, ..self.options.clone() };
        Member { node: Node::start(options), host: to.host.clone() }
    }
}

/// Why nobody told us the map.
#[derive(Clone)]
enum Trouble {
    /// No node could be asked.
    Silent(Reason),
    /// One was asked, and said this.
    Said(Arc<str>),
}

/// What is to be done with a call that a node refused.
#[derive(Debug, PartialEq, Eq)]
enum Redirection {
    /// The slot is another node's: send this call and all later ones there.
    Moved(Address),
    /// The slot is on the move and the key is not here: send this call there, with ASKING.
    Ask(Address),
    /// The slot is on the move and some of the keys are here, some there: send it again in a moment.
    TryAgain,
    /// Nothing, but our map may be wrong, or the node is not what it was.
    MapInDoubt,
    /// Nothing.
    None,
}

impl Redirection {
    /// Reads the refusal of the node on the host `asked`.
    fn read(error: &ServerError, asked: &str) -> Self {
        // After the code stands the slot, and the address.
        let named = || map::address(error.details()?.split(' ').nth(1)?, asked);
        match error.kind() {
            Some(ServerErrorKind::Moved) => named().map_or(Self::MapInDoubt, Self::Moved),
            Some(ServerErrorKind::Ask) => named().map_or(Self::None, Self::Ask),
            Some(ServerErrorKind::TryAgain) => Self::TryAgain,
            Some(
                ServerErrorKind::ClusterDown
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown,
            ) => Self::MapInDoubt,
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
        let at = |host: &str| Address { host: host.into(), port: 6381 };
        assert_eq!(read("-MOVED 3999 127.0.0.1:6381\r\n"), Redirection::Moved(at("127.0.0.1")));
        assert_eq!(read("-MOVED 3999 :6381\r\n"), Redirection::Moved(at("asked")));
        assert_eq!(read("-MOVED 3999 fd00::1:6381\r\n"), Redirection::Moved(at("fd00::1")));
        assert_eq!(read("-MOVED 3999 ?:6381\r\n"), Redirection::MapInDoubt);
        assert_eq!(read("-MOVED\r\n"), Redirection::MapInDoubt);
        assert_eq!(read("-ASK 3999 127.0.0.1:6381\r\n"), Redirection::Ask(at("127.0.0.1")));
        assert_eq!(read("-ASK 3999 ?:6381\r\n"), Redirection::None);
        assert_eq!(read("-TRYAGAIN Multiple keys request during rehashing of slot\r\n"), Redirection::TryAgain);
        assert_eq!(read("-CLUSTERDOWN The cluster is down\r\n"), Redirection::MapInDoubt);
        assert_eq!(read("-LOADING Redis is loading the dataset in memory\r\n"), Redirection::MapInDoubt);
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
