//! The nodes of a cluster in use, each with a pipeline, and the map of slots.
//!
//! Not here: how the map is read (learn.rs), and how refusals are handled (cluster.rs).

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use super::map::Map;
use crate::redis::dial::endpoint::Endpoint;
use crate::redis::dial::host_port::HostPort;
use crate::redis::routing::node::Node;
use crate::redis::transport::error::{CallError, Reason};
use crate::redis::transport::options::Options;

/// Why a slot that the cluster does not report has no node.
pub(super) const NOT_ASSIGNED: &str = "the cluster has not assigned it to a node";

/// The error of a call to a slot that has no node.
pub(super) fn no_node(slot: u16, why: Arc<str>) -> CallError {
    CallError::NotSent { reason: Reason::NoNode { slot, why } }
}

/// A node in use.
pub(super) struct Member {
    pub(super) node: Node,
    /// The node's host, for redirections without a host.
    pub(super) host: Box<str>,
}

/// The nodes of one cluster. Each runtime has its own.
pub(super) struct Members {
    /// Asked for the map at first, and again when other nodes do not answer.
    pub(super) seeds: Vec<Endpoint>,
    /// The options of each node's pipeline, except the address.
    pub(super) options: Options,
    /// Runs the tasks of each pipeline.
    runtime: tokio::runtime::Handle,
    /// Never held across an await. No contention on a single-threaded runtime.
    pub(super) state: Mutex<MembersState>,
    /// The maximum number of calls that wait for the first map, as in each pipeline's queue.
    waiting: Semaphore,
    /// Wakes the task that updates the map.
    pub(super) map_wanted: Notify,
    /// Wakes the calls that wait for the first map, and the task that supervises the nodes' tasks.
    pub(super) changed: Notify,
}

/// The state of the cluster.
pub(super) struct MembersState {
    pub(super) map: Map<Member>,
    /// Why the last update of the map failed.
    pub(super) problem: Option<Problem>,
    /// The node of the last redirection. It is asked for the map first.
    pub(super) preferred: Option<HostPort>,
}

impl Members {
    /// Starts without a map. Uses the current runtime for the tasks of the nodes.
    pub(super) fn new(seeds: Vec<Endpoint>, options: Options) -> Self {
        Self {
            seeds,
            waiting: Semaphore::new(options.queue_max.min(Semaphore::MAX_PERMITS)),
            options,
            runtime: tokio::runtime::Handle::current(),
            state: Mutex::new(MembersState { map: Map::new(), problem: None, preferred: None }),
            map_wanted: Notify::new(),
            changed: Notify::new(),
        }
    }

    /// The node that has a slot. Waits until the first map is known.
    pub(super) async fn member(&self, slot: u16, deadline: Instant) -> Result<Arc<Member>, CallError> {
        if let Some(member) = self.known(slot)? {
            return Ok(member);
        }
        let Ok(_permit) = self.waiting.try_acquire() else {
            return Err(CallError::NotSent { reason: Reason::QueueFull { max: self.options.queue_max } });
        };
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(member) = self.known(slot)? {
                return Ok(member);
            }
            self.map_wanted.notify_one();
            if tokio::time::timeout_at(deadline.into(), changed).await.is_err() {
                return Err(CallError::NotSent { reason: Reason::Deadline });
            }
        }
    }

    /// The node that has a slot. None before the first map.
    fn known(&self, slot: u16) -> Result<Option<Arc<Member>>, CallError> {
        let state = self.state.lock();
        if let Some(member) = state.map.node(slot) {
            return Ok(Some(member));
        }
        if !state.map.is_known() && state.problem.is_none() {
            return Ok(None);
        }
        let error = match &state.problem {
            Some(Problem::NoAnswer(reason)) if !state.map.is_known() => CallError::NotSent { reason: reason.clone() },
            Some(Problem::Answer(why)) if !state.map.is_known() => no_node(slot, why.clone()),
            _ => no_node(slot, NOT_ASSIGNED.into()),
        };
        drop(state);
        self.map_wanted.notify_one();
        Err(error)
    }

    /// The node of a redirection. If `moved` is given, the node has that slot from now on.
    pub(super) fn redirected(&self, to: &HostPort, moved: Option<u16>) -> Option<Arc<Member>> {
        let now = Instant::now();
        let (member, is_new) = {
            let mut state = self.state.lock();
            let before = state.map.len();
            if moved.is_some() {
                state.preferred = Some(to.clone());
            }
            let member = state.map.redirected(to, moved, now, |to| self.dial(to));
            (member, state.map.len() > before)
        };
        if is_new {
            self.changed.notify_waiters();
        }
        member
    }

    /// A pipeline to a node. Dials nothing before its first call.
    pub(super) fn dial(&self, to: &HostPort) -> Member {
        let _on = self.runtime.enter();
        // The seeds share login and TLS, so any seed has them.
        let endpoint = self.seeds[0].at(&to.host, to.port);
        // The keys of one call are in one slot. The keys of calls that wait together may be in several, so calls are
        // not merged.
        let options = Options { target: endpoint.into(), merge_max: 0, ..self.options.clone() };
        Member { node: Node::start(options), host: to.host.clone() }
    }
}

/// Why there is no new map.
#[derive(Clone)]
pub(super) enum Problem {
    NoAnswer(Reason),
    /// A node's answer was not a map.
    Answer(Arc<str>),
}
