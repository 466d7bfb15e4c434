//! Whether a runtime still runs its tasks. Only a task of that runtime can answer this.
//!
//! Not here: the caller, and the reaction to a runtime without an answer (app).

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;

/// Checks whether one runtime runs its tasks.
#[derive(Debug)]
pub struct Pulse {
    /// The number of the last question of all pulses of this runtime. The first is 1.
    asked: watch::Sender<u64>,
    answered: Arc<AtomicU64>,
    /// The number of this pulse's last question, and when it was asked. None before the first.
    last: Mutex<Option<(u64, Instant)>>,
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
    let pulse = Pulse { asked, answered: answered.clone(), last: Mutex::default() };
    (pulse, Heart { asked: questions, answered })
}

impl Pulse {
    /// How long the last question has had no answer. None if it has one, or if this is the first call: then asks the next one.
    fn check(&self, now: Instant) -> Option<Duration> {
        let mut last = self.last.lock();
        if let Some((number, asked)) = *last
            && self.answered.load(Relaxed) < number
        {
            return Some(now.saturating_duration_since(asked));
        }
        self.asked.send_modify(|number| {
            *number += 1;
            *last = Some((*number, now));
        });
        None
    }

    /// A pulse of the same runtime, with its own questions. One that checks seldom does not disturb one that checks often.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { asked: self.asked.clone(), answered: self.answered.clone(), last: Mutex::default() }
    }
}

/// How long each runtime that does not answer has not answered. Asks each of them, even if another one has not answered.
pub fn stuck_for(pulses: &[Pulse]) -> Vec<Duration> {
    let now = Instant::now();
    pulses.iter().filter_map(|pulse| pulse.check(now)).collect()
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
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pulse.check(start), None, "nothing was asked before");
        assert_eq!(pulse.check(start), Some(Duration::ZERO));
        assert_eq!(pulse.check(after(3)), Some(Duration::from_secs(3)));
        heart.beat().await;
        assert_eq!(pulse.check(after(60)), None);
        assert_eq!(pulse.check(after(61)), Some(Duration::from_secs(1)), "the next question is open");
    }

    /// Probes of Kubernetes and the watchdog of systemd ask at times of their own.
    #[tokio::test]
    async fn pulses_of_one_runtime_do_not_disturb_each_other() {
        let (often, mut heart) = pulse();
        let seldom = often.another();
        let now = Instant::now();
        assert_eq!((often.check(now), seldom.check(now)), (None, None));
        heart.beat().await;
        for _ in 0..3 {
            assert_eq!(often.check(now), None);
            heart.beat().await;
        }
        assert_eq!(often.check(now), None);
        assert_eq!(seldom.check(now), None, "the open question is of the other one");
        assert_eq!((often.check(now), seldom.check(now)), (Some(Duration::ZERO), Some(Duration::ZERO)));
        heart.beat().await;
        assert_eq!((often.check(now), seldom.check(now)), (None, None));
    }

    #[tokio::test]
    async fn a_runtime_that_has_ended_does_not_count_as_stuck() {
        let (pulse, heart) = pulse();
        let now = Instant::now();
        assert_eq!(pulse.check(now), None);
        drop(heart);
        assert_eq!(pulse.check(now), None);
        assert_eq!(pulse.check(now), None);
    }
}
