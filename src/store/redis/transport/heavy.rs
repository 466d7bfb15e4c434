//! The lane of heavy calls to one server: each is sent alone, on a connection that no other call uses.
//!
//! A light call never waits behind a heavy one in a queue or a batch. It waits at most while Redis runs one script,
//! whose weight is bounded (src/engine/weight.rs). Not here: which server that is, and its breaker (routing/node.rs).

use std::sync::Arc;
use std::time::Instant;

use redis::Value;
use weir_engine::weight::WEIGHT_SHARED_MAX;

use super::call::Call;
use super::error::{CallError, Reason};
use super::options::Options;
use super::pipeline::Pipeline;
use super::turns::{HEAVY_WAITING_MAX, NoTurn, Turn};

/// The lane of one runtime to one server.
pub(crate) struct Lane {
    pipeline: Pipeline,
    turn: Arc<Turn>,
}

impl Lane {
    /// Starts its tasks on the current runtime. Dials nothing before the first heavy call.
    pub(crate) fn start(options: &Options) -> Self {
        let turn = options.turns.of(&options.target.to_string());
        let mut own = Options { connections: 1, batch_max: 1, merge_max: 0, ..options.clone() };
        // weir waits longer than usual for a call whose caller has gone: Redis would still be busy for a second one.
        own.breaker.timeout = own.breaker.timeout.max(own.connect_timeout);
        Self { pipeline: Pipeline::start(own), turn }
    }

    /// Whether the call must use this lane.
    pub(crate) const fn takes(call: &Call) -> bool {
        call.weight > WEIGHT_SHARED_MAX
    }

    /// Makes the call when its turn comes.
    /// Fails as the pipeline; also when the turn does not come in time.
    pub(crate) async fn call(&self, call: Call, deadline: Instant) -> Result<Value, CallError> {
        let reason = match self.turn.take(deadline).await {
            Ok(_running) => return self.pipeline.call(call, deadline).await,
            Err(NoTurn::Full) => Reason::QueueFull { max: HEAVY_WAITING_MAX },
            Err(NoTurn::Deadline) => Reason::Deadline,
        };
        Err(CallError::NotSent { reason })
    }

    /// Returns the reason when a task of the lane has died. Otherwise never returns.
    pub(crate) async fn died(&self) -> String {
        self.pipeline.died().await
    }
}
