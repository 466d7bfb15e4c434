//! The lane of heavy calls to one server: each travels alone, on a connection that no other call uses.
//!
//! A light call never waits behind a heavy one in a queue or a batch; it waits at most while Redis runs one script, whose
//! weight has a bound (src/engine/weight.rs). Not here: which server that is, and its breaker (routing/node.rs).

use std::sync::Arc;
use std::time::Instant;

use redis::Value;
use weir_engine::weight::WEIGHT_SHARED_MAX;

use super::call::Call;
use super::error::{CallError, Reason};
use super::options::Options;
use super::pipeline::Pipeline;
use super::turns::{HEAVY_WAITING_MAX, NoTurn, Turn};

/// One runtime's lane to one server.
#[derive(Debug)]
pub(crate) struct Lane {
    pipeline: Pipeline,
    turn: Arc<Turn>,
}

impl Lane {
    /// Starts its tasks on the current runtime. Nothing is dialled before the first heavy call.
    pub(crate) fn start(options: &Options) -> Self {
        let turn = options.turns.of(&options.target.to_string());
        let mut own = Options { connections: 1, batch_max: 1, merge_max: 0, ..options.clone() };
        // A call whose caller has gone is awaited for longer than usual: a second one would find Redis still busy.
        own.breaker.timeout = own.breaker.timeout.max(own.connect_timeout);
        Self { pipeline: Pipeline::start(own), turn }
    }

    /// Whether the call has to travel here.
    pub(crate) const fn takes(call: &Call) -> bool {
        call.weight > WEIGHT_SHARED_MAX
    }

    /// Makes the call when it has its turn.
    ///
    /// # Errors
    /// Those of the pipeline, also for a turn that does not come in time.
    pub(crate) async fn call(&self, call: Call, deadline: Instant) -> Result<Value, CallError> {
        let reason = match self.turn.take(deadline).await {
            Ok(_running) => return self.pipeline.call(call, deadline).await,
            Err(NoTurn::Full) => Reason::QueueFull { max: HEAVY_WAITING_MAX },
            Err(NoTurn::Deadline) => Reason::Deadline,
        };
        Err(CallError::NotSent { reason })
    }

    /// Returns, with its reason, when a task of the lane has died. Waits for ever otherwise.
    pub(crate) async fn died(&self) -> String {
        self.pipeline.died().await
    }
}
