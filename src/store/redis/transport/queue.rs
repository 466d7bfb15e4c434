//! The bounded queue of the calls to one server, and the deadline of each call in it.
//!
//! Not here: the task that takes calls out and sends them (worker.rs).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

#[cfg(not(test))]
use parking_lot::Mutex;
use redis::Value;
use tokio::sync::{Notify, oneshot};
#[cfg(test)]
use weir_schedules::Mutex;

use super::call::Call;
use super::error::{CallError, Reason};

pub(crate) type Answer = Result<Value, CallError>;

/// A waiting call, with the sender of its answer.
pub(crate) struct Waiting {
    pub(crate) call: Call,
    pub(crate) deadline: Instant,
    /// The first answer takes it.
    reply: Option<oneshot::Sender<Answer>>,
}

impl Waiting {
    /// A waiting call, with the sender of its answer.
    pub(crate) fn new(call: Call, deadline: Instant) -> (Waiting, oneshot::Receiver<Answer>) {
        let (reply, answer) = oneshot::channel();
        (Waiting { call, deadline, reply: Some(reply) }, answer)
    }

    pub(crate) fn answer(&mut self, answer: Answer) {
        if let Some(reply) = self.reply.take() {
            // The receiver may have been dropped: then the caller needs no answer.
            let _ = reply.send(answer);
        }
    }

    /// Whether it has no answer yet, and its caller still waits.
    pub(crate) fn is_wanted(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| !reply.is_closed())
    }
}

/// The waiting calls, oldest first.
///
/// A plain mutex is right: nothing is awaited while it is held, and a single-threaded runtime has no contention.
pub(crate) struct Queue {
    max: usize,
    state: Mutex<QueueState>,
    /// Wakes one worker.
    arrived: Notify,
    /// Wakes the task that expires calls, if a deadline is earlier than its current timer.
    hurry: Notify,
}

#[derive(Default)]
struct QueueState {
    /// A call whose caller has gone stays until a worker or the task that expires calls finds it.
    entries: VecDeque<Waiting>,
    /// Whether a worker was woken and has not taken calls yet. It will take all of them, so no other worker is woken.
    waking: bool,
    /// The time at which the task that expires calls runs next.
    expiry: Option<Instant>,
    /// Why there is no connection, if the last dial failed.
    no_connection: Option<Reason>,
}

impl Queue {
    pub(crate) fn new(max: usize) -> Queue {
        Queue { max, state: Mutex::new(QueueState::default()), arrived: Notify::new(), hurry: Notify::new() }
    }

    /// How many calls wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().entries.iter().filter(|waiting| waiting.is_wanted()).count()
    }

    /// Returns when a call arrives.
    pub(crate) async fn arrival(&self) {
        self.arrived.notified().await;
    }

    /// Stores why there is no connection, for the calls that expire.
    pub(crate) fn dial_failed(&self, reason: Reason) {
        self.state.lock().no_connection = Some(reason);
    }

    /// Appends a call.
    /// Fails when the queue is full.
    pub(crate) fn push(&self, waiting: Waiting) -> Result<(), CallError> {
        let deadline = waiting.deadline;
        let mut state = self.state.lock();
        if state.entries.len() >= self.max {
            return Err(CallError::NotSent { reason: Reason::QueueFull { max: self.max } });
        }
        state.entries.push_back(waiting);
        let wake = !std::mem::replace(&mut state.waking, true);
        let hurry = state.expiry.is_none_or(|expiry| deadline < expiry);
        if hurry {
            state.expiry = Some(deadline);
        }
        drop(state);
        if wake {
            self.arrived.notify_one();
        }
        if hurry {
            self.hurry.notify_one();
        }
        Ok(())
    }

    /// Returns when there are calls to send.
    pub(crate) async fn nonempty(&self) {
        loop {
            {
                let mut state = self.state.lock();
                state.waking = false;
                if !state.entries.is_empty() {
                    return;
                }
            }
            self.arrived.notified().await;
        }
    }

    /// Moves up to `max` sendable calls into `batch`, and wakes the next worker if more are left.
    pub(crate) fn take(&self, batch: &mut Vec<Waiting>, max: usize, now: Instant) {
        let mut state = self.state.lock();
        state.no_connection = None;
        while batch.len() < max
            && let Some(mut waiting) = state.entries.pop_front()
        {
            if waiting.deadline <= now {
                waiting.answer(Err(CallError::NotSent { reason: Reason::Deadline }));
            } else if waiting.is_wanted() {
                batch.push(waiting);
            }
        }
        if !state.entries.is_empty() && !std::mem::replace(&mut state.waking, true) {
            self.arrived.notify_one();
        }
    }

    /// Answers the calls whose deadline has passed, and returns the next deadline.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let state = &mut *self.state.lock();
        state.expiry = None;
        state.entries.retain_mut(|waiting| {
            if waiting.deadline <= now {
                let reason = state.no_connection.clone().unwrap_or(Reason::Deadline);
                waiting.answer(Err(CallError::NotSent { reason }));
            } else if waiting.is_wanted() {
                state.expiry = Some(state.expiry.map_or(waiting.deadline, |next| next.min(waiting.deadline)));
                return true;
            }
            false
        });
        state.expiry
    }
}

/// The task that answers calls whose deadline passes in the queue. It sleeps until the earliest deadline. One timer
/// serves all calls: one timer each would cost more than the rest of the queue.
pub(crate) async fn expire(queue: Arc<Queue>) {
    loop {
        match queue.expire(Instant::now()) {
            Some(next) => tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {}
                () = queue.hurry.notified() => {}
            },
            None => queue.hurry.notified().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shuttle::{future, thread};
    use weir_schedules::explore;

    use super::*;

    fn waiting(deadline: Instant) -> (Waiting, oneshot::Receiver<Answer>) {
        Waiting::new(Call::command(redis::cmd("PING")), deadline)
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn a_full_queue_refuses_and_a_call_whose_caller_has_gone_makes_room() {
        let now = Instant::now();
        let queue = Queue::new(2);
        let (one, first) = waiting(now + seconds(1));
        let (two, _second) = waiting(now + seconds(2));
        let (three, _three) = waiting(now + seconds(1));
        let (four, _four) = waiting(now + seconds(1));
        queue.push(one).unwrap();
        queue.push(two).unwrap();
        assert!(matches!(queue.push(three), Err(CallError::NotSent { reason: Reason::QueueFull { max: 2 } })));
        drop(first);
        assert_eq!(queue.waiting(), 1);
        let mut batch = Vec::new();
        queue.take(&mut batch, 1, now);
        assert_eq!(batch[0].deadline, now + seconds(2), "the call whose caller has gone is not sent");
        queue.push(four).unwrap();
    }

    #[test]
    fn what_is_late_is_answered_and_not_taken() {
        let now = Instant::now();
        let queue = Queue::new(9);
        let (late, mut late_answer) = waiting(now);
        let (later, _later_answer) = waiting(now + seconds(2));
        let (timely, _timely_answer) = waiting(now + seconds(1));
        queue.push(later).unwrap();
        queue.push(late).unwrap();
        queue.push(timely).unwrap();
        assert_eq!(queue.expire(now), Some(now + seconds(1)));
        assert!(matches!(late_answer.try_recv().unwrap(), Err(CallError::NotSent { reason: Reason::Deadline })));
        let mut batch = Vec::new();
        queue.take(&mut batch, 9, now + seconds(1));
        assert_eq!(batch.len(), 1, "at its deadline a call is late");
        assert_eq!(batch[0].deadline, now + seconds(2));
    }

    #[test]
    fn a_batch_is_bounded_and_oldest_first() {
        let now = Instant::now();
        let queue = Queue::new(9);
        let mut answers = Vec::new();
        for n in 1..=5 {
            let (one, answer) = waiting(now + seconds(n));
            queue.push(one).unwrap();
            answers.push(answer);
        }
        let mut batch = Vec::new();
        queue.take(&mut batch, 3, now);
        let deadlines: Vec<_> = batch.iter().map(|waiting| waiting.deadline - now).collect();
        assert_eq!(deadlines, [seconds(1), seconds(2), seconds(3)]);
        assert!(queue.state.lock().waking, "another worker is called");
    }

    /// A worker like the transport's: it waits for calls, takes some, and answers them.
    async fn work(queue: Arc<Queue>, max: usize) {
        loop {
            queue.nonempty().await;
            let mut batch = Vec::new();
            queue.take(&mut batch, max, Instant::now());
            for waiting in &mut batch {
                waiting.answer(Ok(Value::Int(1)));
            }
        }
    }

    #[test]
    fn in_any_schedule_every_call_is_answered_or_refused() {
        explore(|| {
            let queue = Arc::new(Queue::new(2));
            let workers = [1, 2].map(|max| future::spawn(work(queue.clone(), max)));
            let deadline = Instant::now() + seconds(3_600);
            let callers = [false, true, false].map(|gives_up| {
                let queue = queue.clone();
                thread::spawn(move || {
                    for _ in 0..2 {
                        let (call, answer) = waiting(deadline);
                        if queue.push(call).is_ok() && !gives_up {
                            assert_eq!(future::block_on(answer).unwrap().unwrap(), Value::Int(1));
                        }
                    }
                })
            });
            callers.into_iter().for_each(|caller| caller.join().unwrap());
            assert_eq!(queue.waiting(), 0);
            workers.iter().for_each(future::JoinHandle::abort);
        });
    }

    #[test]
    fn in_any_schedule_a_call_that_a_worker_leaves_wakes_another_worker() {
        explore(|| {
            let queue = Arc::new(Queue::new(9));
            // Neither worker answers before the other has a call.
            let both = Arc::new(shuttle::sync::Barrier::new(2));
            let workers = [(); 2].map(|()| {
                let (queue, both) = (queue.clone(), both.clone());
                future::spawn(async move {
                    let mut batch = Vec::new();
                    while batch.is_empty() {
                        queue.nonempty().await;
                        queue.take(&mut batch, 1, Instant::now());
                    }
                    both.wait();
                    batch[0].answer(Ok(Value::Nil));
                })
            });
            let answers = [(); 2].map(|()| {
                let (call, answer) = waiting(Instant::now() + seconds(3_600));
                queue.push(call).unwrap();
                answer
            });
            answers.into_iter().for_each(|answer| assert_eq!(future::block_on(answer).unwrap().unwrap(), Value::Nil));
            workers.into_iter().for_each(|worker| future::block_on(worker).unwrap());
        });
    }

    #[test]
    fn in_any_schedule_a_call_is_sent_or_expires_or_its_caller_goes() {
        explore(|| {
            let queue = Arc::new(Queue::new(9));
            let now = Instant::now();
            let (late, mut late_answer) = waiting(now);
            let (given_up, given_up_answer) = waiting(now + seconds(1));
            let (timely, mut timely_answer) = waiting(now + seconds(2));
            queue.push(late).unwrap();
            queue.push(given_up).unwrap();
            queue.push(timely).unwrap();
            let expiring = thread::spawn({
                let queue = queue.clone();
                move || queue.expire(now)
            });
            let giving_up = thread::spawn(move || drop(given_up_answer));
            let mut batch = Vec::new();
            while !batch.iter().any(|waiting: &Waiting| waiting.deadline == now + seconds(2)) {
                let one_more = batch.len() + 1;
                queue.take(&mut batch, one_more, now);
            }
            expiring.join().unwrap();
            giving_up.join().unwrap();
            assert!(matches!(late_answer.try_recv().unwrap(), Err(CallError::NotSent { reason: Reason::Deadline })));
            assert!(timely_answer.try_recv().is_err(), "it was sent, and has no answer yet");
            assert!(batch.len() <= 2, "the late call was not sent");
            assert_eq!(queue.waiting(), 0);
        });
    }
}
