//! Calls to one Redis server that share round trips: a bounded queue, and one worker for each connection of the pool. A
//! worker sends the waiting calls as one pipeline.
//!
//! Not here: the queue (queue.rs), batches (worker.rs), connections and how they are made (pool.rs), and what a call is
//! (call.rs) and means (scripts).
//!
//! The strategy. An idle pipeline sends a call at once, alone. While a worker waits for an answer, new calls wait in
//! the queue, and the next worker takes all of them: batches grow with the load, and no call waits for a batch to fill.
//! A worker has its connection before it takes calls, so a call that is still in the queue was certainly not sent.
//!
//! The promises for each call:
//!
//! 1. It is sent at most once. There are two exceptions, and both prove that nothing ran: Redis does not have the
//!    script, so the script is loaded and the call sent once more [rd-3]; or a merged command failed before anything
//!    was written. If a cluster node redirects a call, the caller decides (routing/cluster.rs).
//! 2. It is answered at its deadline at the latest (to the millisecond of the runtime's timer), and the answer states
//!    whether it may have run. A caller needs no timer.
//! 3. It is not sent once its deadline has passed or its caller has gone.
//! 4. It gets its own error; the other calls of the batch get their answers. Merged calls share an error only if the
//!    error is about the server, or does not prove that nothing ran.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Instant;

use redis::Value;
use tokio::task::JoinSet;

pub use super::call::Call;
pub use super::error::{CallError, Reason};
pub use super::options::Options;
use super::pool::Pool;
use super::queue::{Queue, Waiting, expire};
pub use super::script::Script;
use super::worker::Worker;
pub use super::worker::{SILENCE_MAX, SILENCE_TIMEOUTS};
pub use crate::redis::base::observer::Load;
use crate::redis::base::observer::{Loaded, RedisObserver};
use crate::redis::base::tasks::Tasks;

/// Sends calls to one Redis in batches. Each runtime has its own. Its tasks run on the runtime that started it and end
/// when it is dropped.
pub struct Pipeline {
    parts: Arc<Parts>,
    address: Arc<str>,
    observer: Arc<dyn RedisObserver>,
    tasks: Tasks,
}

struct Parts {
    queue: Arc<Queue>,
    pool: Pool,
}

impl Loaded for Parts {
    fn waiting(&self) -> usize {
        self.queue.waiting()
    }

    fn connections(&self) -> usize {
        self.pool.open()
    }
}

impl Pipeline {
    /// Starts the tasks of a pipeline on the current runtime. Dials nothing before the first call.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, and when one of the numbers in `options` is zero.
    #[must_use]
    pub fn start(options: Options) -> Pipeline {
        assert!(options.queue_max > 0, "a queue holds at least one call");
        assert!(options.batch_max > 0, "a batch has at least one call");
        let address: Arc<str> = options.target.to_string().into();
        let queue = Arc::new(Queue::new(options.queue_max));
        let pool = Pool::new(&options, address.clone());
        let mut tasks = JoinSet::new();
        for _ in 0..options.connections {
            tasks.spawn(Worker::new(queue.clone(), address.clone(), &options).run(pool.clone()));
        }
        tasks.spawn(expire(queue.clone()));
        if let Some(watch) = options.target.watch(options.observer.clone(), options.connect_timeout) {
            tasks.spawn(watch);
        }
        let parts = Arc::new(Parts { queue, pool });
        let load: Weak<Parts> = Arc::downgrade(&parts);
        // No call starts before this returns, so nothing is reported before the start.
        options.observer.started(&address, Load::of(load));
        let tasks = Tasks::new("a task of the redis pipeline", tasks);
        Pipeline { parts, address, observer: options.observer, tasks }
    }

    /// Queues `call` at once. The future returns Redis' answer, by `deadline`. If you drop it, a call that still waits is
    /// not sent.
    ///
    /// # Errors
    ///
    /// A [`CallError`]: certainly not sent, perhaps run, or refused by Redis.
    pub fn call(&self, call: Call, deadline: Instant) -> impl Future<Output = Result<Value, CallError>> + use<> {
        // Not in the future: a call is large, and each future around this one would hold and copy it too.
        let (waiting, answer) = Waiting::new(call, deadline);
        let queued = self.parts.queue.push(waiting);
        async move {
            queued?;
            // An answer is lost only if the worker's task died.
            answer
                .await
                .unwrap_or_else(|_| Err(CallError::Unknown { reason: Reason::Broken("its worker died".into()) }))
        }
    }

    /// Returns the reason when a task of the pipeline has died. Otherwise never returns.
    pub async fn died(&self) -> String {
        self.tasks.died().await
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.observer.ended(&self.address);
    }
}
