//! Whether a runtime still runs its tasks. Only a task of that runtime can answer this.
//!
//! Not here: the caller, and the reaction to a runtime without an answer (app).

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::watch;

/// Checks whether one runtime runs its tasks.
#[derive(Debug)]
pub struct Pulse {
    /// The number of the last question. The first is 1.
    asked: watch::Sender<u64>,
    answered: Arc<AtomicU64>,
}

/// Answers for one runtime, in one of its tasks. A dropped heart counts as answering: its runtime has ended, and the
/// supervisor reports that.
#[derive(Debug)]
pub struct Heart {
    asked: watch::Receiver<u64>,
    answered: Arc<AtomicU64>,
}

pub fn pulse() -> (Pulse, Heart) {
    let answered = Arc::new(AtomicU64::new(0));
    let (asked, questions) = watch::channel(0);
    (Pulse { asked, answered: answered.clone() }, Heart { asked: questions, answered })
}

impl Pulse {
    /// Whether the last question has an answer. If so, asks the next one. The first call returns true.
    pub fn check(&self) -> bool {
        let beats = self.answered.load(Relaxed) >= *self.asked.borrow();
        if beats {
            self.asked.send_modify(|number| *number += 1);
        }
        beats
    }
}

impl Heart {
    /// Waits for the next question and answers it. Waits forever if the pulse was dropped.
    pub async fn beat(&mut self) {
        if self.asked.changed().await.is_err() {
            pending::<()>().await;
        }
        self.answered.store(*self.asked.borrow_and_update(), Relaxed);
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.answered.store(u64::MAX, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_question_stays_open_until_it_is_answered() {
        let (pulse, mut heart) = pulse();
        assert!(pulse.check(), "nothing was asked before");
        assert!(!pulse.check());
        assert!(!pulse.check());
        heart.beat().await;
        assert!(pulse.check());
        assert!(!pulse.check(), "the next question is open");
    }

    #[tokio::test]
    async fn a_runtime_that_has_ended_does_not_count_as_stuck() {
        let (pulse, heart) = pulse();
        assert!(pulse.check());
        drop(heart);
        assert!(pulse.check());
        assert!(pulse.check());
    }
}
