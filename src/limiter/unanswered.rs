//! Keys with alerts whose last charge has an unknown outcome: its answer was lost, or it was taken back.
//!
//! Such a charge may have crossed a share without a report, and later charges find the count above the share. So the
//! next decision about the key that begins afterwards reports every share that it finds crossed. [al-4]

use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use weir_engine::Charge;

/// The most keys. Beyond that, a new key replaces another one.
pub const UNANSWERED_MAX: usize = 4_096;
/// The bits of a slot that hold the time; the others hold part of the hash.
const TIME_BITS: u32 = 48;

/// The keys, by their hashes. One table for the process. It has no locks, and uses no memory before the first key.
#[derive(Debug, Default)]
pub struct Unanswered {
    hasher: RandomState,
    table: OnceLock<Table>,
}

#[derive(Debug)]
struct Table {
    made: Instant,
    /// Each key is in the slot of its hash: 16 bits of the hash, and the time when it was added. 0 is empty.
    places: Box<[AtomicU64]>,
}

impl Unanswered {
    /// Adds a key whose charge has an unknown outcome.
    pub(super) fn add(&self, key: &str) {
        let table = self.table.get_or_init(|| Table {
            made: Instant::now(),
            places: (0..UNANSWERED_MAX).map(|_| AtomicU64::new(0)).collect(),
        });
        let hash = self.hasher.hash_one(key);
        table.place(hash).store(tag(hash) | table.time(Instant::now()), Relaxed);
    }

    /// Removes the key if it was added before a decision that began at `started`, and returns whether it was. A
    /// decision that was already running when the key was added may have found an earlier count.
    pub(super) fn take(&self, key: &str, started: Instant) -> bool {
        let Some(table) = self.table.get() else { return false };
        let hash = self.hasher.hash_one(key);
        let place = table.place(hash);
        let found = place.load(Relaxed);
        let is_it = found != 0 && found >> TIME_BITS == tag(hash) >> TIME_BITS;
        let is_older = found % (1 << TIME_BITS) < table.time(started);
        is_it && is_older && place.compare_exchange(found, 0, Relaxed, Relaxed).is_ok()
    }

    /// Adds the keys with alerts unless [`Asked::answered`] is called. None if there are no such keys.
    pub(super) fn ask<'a>(&'a self, charges: &'a [Charge<'a>]) -> Option<Asked<'a>> {
        charges.iter().any(has_alerts).then_some(Asked { unanswered: self, charges })
    }
}

impl Table {
    fn place(&self, hash: u64) -> &AtomicU64 {
        &self.places[usize::try_from(hash % self.places.len() as u64).unwrap_or_default()]
    }

    /// Microseconds since the table was made, plus one, so that no time is 0. They fit for eight years.
    fn time(&self, at: Instant) -> u64 {
        let since = u64::try_from(at.saturating_duration_since(self.made).as_micros()).unwrap_or(u64::MAX - 1);
        (since + 1) % (1 << TIME_BITS)
    }
}

/// The part of a hash that distinguishes keys of one slot.
fn tag(hash: u64) -> u64 {
    hash >> TIME_BITS << TIME_BITS
}

fn has_alerts(charge: &Charge<'_>) -> bool {
    !charge.limit.alert_at.is_empty()
}

/// A store call in flight. Its caller may drop it at any time, and the charges remain.
pub(super) struct Asked<'a> {
    unanswered: &'a Unanswered,
    charges: &'a [Charge<'a>],
}

impl Asked<'_> {
    /// The outcome of each charge is known.
    pub(super) fn answered(self) {
        std::mem::forget(self);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.charges.iter().filter(|charge| has_alerts(charge)).for_each(|charge| self.unanswered.add(charge.key));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_engine::{Limit, Operation, Shares, Unit};

    use super::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    #[test]
    fn a_key_is_taken_once_and_by_a_decision_that_began_later() {
        let unanswered = Unanswered::default();
        let before = Instant::now();
        assert!(!unanswered.take("a", later()));
        unanswered.add("a");
        assert!(!unanswered.take("b", later()));
        assert!(!unanswered.take("a", before));
        assert!(unanswered.take("a", later()));
        assert!(!unanswered.take("a", later()));
    }

    #[test]
    fn any_number_of_keys_has_bounded_room() {
        let unanswered = Unanswered::default();
        let keys: Vec<String> = (0..20 * UNANSWERED_MAX).map(|i| i.to_string()).collect();
        keys.iter().for_each(|key| unanswered.add(key));
        let kept = keys.iter().filter(|key| unanswered.take(key, later())).count();
        assert!((UNANSWERED_MAX / 2..=UNANSWERED_MAX).contains(&kept), "{kept}");
        assert!(unanswered.table.get().is_some_and(|table| table.places.len() == UNANSWERED_MAX));
    }

    #[test]
    fn a_call_that_is_dropped_adds_the_keys_with_alerts() {
        let plain = Limit::per_unit(10, Unit::Hour);
        let mut watched = plain.clone();
        watched.alert_at = Shares::new(&[80]).unwrap();
        let charge = |key, limit| Charge::alone(key, limit, Operation::Consume(1));
        let unanswered = Unanswered::default();
        assert!(unanswered.ask(&[charge("plain", &plain)]).is_none());
        let charges = [charge("plain", &plain), charge("watched", &watched)];
        unanswered.ask(&charges).unwrap().answered();
        assert!(!unanswered.take("watched", later()));
        drop(unanswered.ask(&charges));
        assert!(!unanswered.take("plain", later()));
        assert!(unanswered.take("watched", later()));
    }
}
