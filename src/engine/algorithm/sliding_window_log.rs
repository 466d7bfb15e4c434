//! A log of every admitted charge: the exact limit in any window, for small limits. [sl-1]
//!
//! Known from sorted-set limiters. Each entry has the sum of all hits up to it. So the sum over the window is one
//! subtraction, and bisection finds the wait. Entries of one instant stay separate. Its Lua twin is
//! lua/algorithms/sliding_window_log.lua.
//!
//! Three hits in any minute:
//!
//! ```
//! use std::slice::from_mut;
//! use weir_engine::decision::{Verdict, decide};
//! use weir_engine::{Algorithm, Charge, Limit, Mode, Operation, Unit};
//!
//! let limit = Limit::new(3, Unit::Minute.window(), Algorithm::SlidingWindowLog).unwrap();
//! let mut state = None;
//! let mut hits = |hits, seconds: u64| {
//!     let charge = Charge::alone("key", &limit, Operation::Consume(hits));
//!     decide(&[charge], &[0], from_mut(&mut state), Mode::Atomic, seconds * 1_000_000).unwrap().outcomes[0].verdict
//! };
//! let wait = |seconds: u64| Verdict::Over { retry_after: seconds * 1_000_000 };
//! assert_eq!(hits(2, 5), Verdict::Within);
//! assert_eq!(hits(1, 30), Verdict::Within);
//! assert_eq!(hits(1, 31), wait(34), "those of 5 count until 65");
//! assert_eq!(hits(2, 65), Verdict::Within);
//! assert_eq!(hits(1, 65), wait(25), "that of 30 counts until 90");
//! ```

use std::collections::VecDeque;

use super::State;
use super::counting::{
    Counting, Effect, Found, Receipt, StateNumbers, StoredFormat, Summary, UndoScript, Work, is_believed,
};
use crate::descriptor::{Count, Hits};
use crate::time::{Micros, Window};

/// The largest limit of a log. A log also has at most this many entries, because each has at least one hit. [sl-1]
pub const REQUESTS_MAX: u32 = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry {
    pub at: Micros,
    /// The hits of the log up to and including this entry.
    pub sum: u64,
}

/// The charges of a window, oldest first. [sl-5]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The sum before the oldest entry.
    pub base: u64,
    pub entries: VecDeque<LogEntry>,
}

impl Log {
    /// The hits of one entry.
    pub fn hits(&self, index: usize) -> u64 {
        let before = if index == 0 { self.base } else { self.entries[index - 1].sum };
        self.entries[index].sum - before
    }

    pub(super) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.entries.capacity() * size_of::<LogEntry>()
    }

    fn sum(&self) -> u64 {
        self.entries.back().map_or(self.base, |entry| entry.sum)
    }
}

/// The window over the log at one instant.
struct LiveEntries {
    /// The index of the oldest entry that counts.
    first: usize,
    /// The sum before that entry.
    base: u64,
    /// The hits that count.
    used: u64,
    /// The time of the next charge: now, or the newest entry's time if the clock has stepped back. [tm-2]
    at: Micros,
    /// The clock has stepped back too far: all counted hits move to now, as one entry. [tm-2]
    rebased: bool,
}

impl LiveEntries {
    fn of(counting: &SlidingWindowLog, log: Option<&Log>, now: Micros) -> Self {
        let window_us = counting.window.us();
        let nothing = Self { first: 0, base: 0, used: 0, at: now, rebased: false };
        let Some(log) = log else { return nothing };
        let Some(newest) = log.entries.back() else { return Self { base: log.base, ..nothing } };
        let at = now.max(newest.at);
        let first = log.entries.partition_point(|entry| entry.at + window_us <= at);
        let before = if first == 0 { log.base } else { log.entries[first - 1].sum };
        let used = log.sum() - before;
        // If nothing counts, the log starts from zero. [sl-2]
        let base = if used > 0 { before } else { 0 };
        if is_believed(u128::from(at - now), window_us) {
            Self { first, base, used, at, rebased: false }
        } else {
            Self { first, base, used, at: now, rebased: true }
        }
    }
}

/// Limits hits in any window, by a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindowLog {
    requests: u32,
    window: Window,
}

impl SlidingWindowLog {
    /// None if the log would be longer than [`REQUESTS_MAX`].
    pub(super) fn new(requests: u32, window: Window) -> Option<Self> {
        (requests <= REQUESTS_MAX).then_some(Self { requests, window })
    }

    /// What a charge of `hits` finds in the log, under the limit as it is now. [sl-2] [sl-3] [lm-6]
    fn summary(&self, log: Option<&Log>, live: &LiveEntries, hits: Hits) -> Summary {
        let window_us = self.window.us();
        let entries = log.map(|log| &log.entries);
        let newest = match entries.and_then(VecDeque::back) {
            Some(entry) if !live.rebased => entry.at,
            _ => live.at,
        };
        let excess = (live.used + u64::from(hits)).saturating_sub(u64::from(self.requests));
        let mut fits_at = 0;
        if excess > 0 && hits > 0 && hits <= self.requests {
            let within = entries.filter(|_| !live.rebased && excess <= live.used);
            let last = within
                .map_or(live.at, |entries| entries[entries.partition_point(|entry| entry.sum < live.base + excess)].at);
            fits_at = last + window_us;
        }
        Summary {
            used: live.used,
            fits_at,
            empty_at: if live.used > 0 { newest + window_us } else { 0 },
            mark: live.base + live.used,
        }
    }

    /// Changes the log to the next state; the log is empty if nothing counts any more. [sl-2] [sl-4]
    fn change(&self, log: &mut Log, effect: Effect, now: Micros) {
        if let Effect::Undo(receipt) = effect {
            return self.take_back(log, receipt, now);
        }
        let live = LiveEntries::of(self, Some(log), now);
        if live.used == 0 {
            *log = Log::default();
        } else if live.rebased {
            let sum = live.base + live.used;
            *log = Log { base: live.base, entries: VecDeque::from([LogEntry { at: live.at, sum }]) };
        } else {
            log.entries.drain(..live.first);
            log.base = live.base;
        }
        match effect {
            Effect::Add(hits) => {
                let sum = log.sum() + hits;
                if log.entries.is_empty() {
                    // Many keys never have more than one entry, and space for four would double their memory.
                    log.entries.reserve_exact(1);
                }
                log.entries.push_back(LogEntry { at: live.at, sum });
            }
            Effect::Refund(hits) => {
                // Removes from the newest entry on. The last changed entry keeps the rest of its hits.
                let left = log.sum().saturating_sub(u64::from(hits)).max(log.base);
                let whole = log.entries.partition_point(|entry| entry.sum <= left);
                let kept = whole.checked_sub(1).map_or(log.base, |last| log.entries[last].sum);
                let split = log.entries.get(whole).map(|entry| LogEntry { at: entry.at, sum: left });
                log.entries.truncate(whole);
                log.entries.extend(split.filter(|_| kept < left));
            }
            Effect::Nothing | Effect::Drain | Effect::Undo(_) => {}
        }
    }

    /// Undoes one charge if it still counts: removes its entry and lowers the later sums. [un-4]
    fn take_back(&self, log: &mut Log, receipt: Receipt, now: Micros) {
        let live = LiveEntries::of(self, Some(log), now);
        let hits = u64::from(receipt.hits);
        // The sum can be lower than in the receipt, because earlier charges may have been undone meanwhile.
        let end = log.entries.partition_point(|entry| (entry.at, entry.sum) <= (receipt.at, receipt.mark));
        let of_instant = (live.first..end).rev().take_while(|&index| log.entries[index].at == receipt.at);
        let made = of_instant.into_iter().find(|&index| log.hits(index) == hits);
        let Some(index) = made.filter(|_| !live.rebased) else { return };
        log.entries.drain(..live.first);
        log.base = live.base;
        let index = index - live.first;
        log.entries.remove(index);
        for entry in log.entries.range_mut(index..) {
            entry.sum -= hits;
        }
    }
}

impl Counting for SlidingWindowLog {
    type View = Summary;

    const NUMBER: u8 = 6;
    const FORMAT: StoredFormat = StoredFormat::SortedSet;
    const REPLY: usize = 8;
    const UNDO: UndoScript = UndoScript::Log;

    fn capacity(&self) -> Count {
        self.requests.into()
    }

    fn id(&self, _zone: &str) -> String {
        format!("l{}", self.window)
    }

    /// Two binary searches, and the expired charges. A refund drops up to as many charges as it has hits, and an undo
    /// rewrites each later charge.
    fn weight(&self, work: Work) -> u32 {
        let found = 14 + 2 * (u32::BITS - self.requests.leading_zeros());
        match work {
            Work::Charge => found,
            Work::Refund(hits) => found + hits.min(self.requests).div_ceil(16),
            Work::Undo => found + self.requests / 2,
        }
    }

    /// The log is stale if the clock has stepped back so far that all counted hits move to now. [sl-6] [tm-2]
    fn find(&self, state: Option<&State>, asked: Hits, now: Micros) -> Found<Summary> {
        let log = if let Some(State::SlidingWindowLog(log)) = state { Some(&**log) } else { None };
        let live = LiveEntries::of(self, log, now);
        Found { view: self.summary(log, &live, asked), is_stale: live.rebased && live.used > 0 }
    }

    fn write(&self, state: &mut Option<State>, _: Summary, effect: Effect, now: Micros) {
        let empty = || State::SlidingWindowLog(Box::default());
        if let State::SlidingWindowLog(log) = state.get_or_insert_with(empty) {
            self.change(log, effect, now);
        }
    }

    fn script_numbers(&self, _hits: Hits) -> StateNumbers {
        StateNumbers::from_slice(&[self.window.us(), u64::from(self.requests)])
    }

    fn read_stored(&self, numbers: &[u64]) -> Option<State> {
        let (charges, []) = numbers.as_chunks::<3>() else {
            return None;
        };
        let mut log = Log::default();
        for &[sum, hits, at] in charges {
            if log.entries.is_empty() {
                log.base = sum.checked_sub(hits)?;
            }
            log.entries.push_back(LogEntry { at, sum });
        }
        Some(State::SlidingWindowLog(Box::new(log)))
    }
}
