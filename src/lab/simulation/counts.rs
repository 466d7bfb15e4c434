//! Counts the decisions of one set of policies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use weir_engine::decision::deny;
use weir_engine::observer::{Charged, DecisionResult, LimitOf, Observer, Tally};
use weir_engine::policy::Domain;
use weir_engine::{Limit, Micros, Operation, PolicySet, Role, Verdict};
use weir_limiter::Answer;

use super::keys::{Count, Keys};
use super::spread::{Spread, Times};
use super::timeline::{Timeline, joined, slot_of};

/// The most limits that are counted over time: the first ones that requests meet.
const SERIES_MAX: usize = 64;

/// Counts, shared with the limiter's observer.
#[derive(Clone)]
pub(super) struct Counts(Arc<Shared>);

struct Shared {
    /// The time of the current request.
    now: AtomicU64,
    /// Whether the current decision is a settle, which is not a request.
    is_settle: AtomicBool,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The index of the first limit of each rule.
    firsts: Vec<usize>,
    /// The limits of all rules. The last one is for all limits of the request.
    limits: Vec<LimitCounts>,
    series: usize,
    keys: Keys,
    timeline: Timeline,
    /// Admitted requests, delayed ones among them, and denied ones.
    slots: Vec<[u64; 3]>,
    totals: Totals,
    /// The limits of the current request, and whether they never admit its hits.
    never: Vec<(Role, bool)>,
    retry_after: Spread,
    delay: Spread,
}

#[derive(Clone, Default)]
pub(super) struct LimitCounts {
    pub(super) count: Count,
    /// The requests with other numbers than the limit of the rule: numbers of their own, or of a row. [mt-10]
    pub(super) other_numbers: u64,
    /// Requests within the limit, and over it.
    pub(super) slots: Option<Vec<[u64; 2]>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) passed: u64,
    /// The delayed ones among the admitted.
    pub(super) delayed: u64,
    pub(super) denied: u64,
    /// The denied requests for which no wait helps.
    pub(super) never: u64,
    pub(super) failed: u64,
    pub(super) unknown_domain: u64,
    pub(super) unmatched: u64,
    /// States that the memory store evicted.
    pub(super) evicted: u64,
}

pub(super) struct Counted {
    pub(super) totals: Totals,
    pub(super) retry_after: Times,
    pub(super) delay: Times,
    pub(super) start: Micros,
    pub(super) width: Micros,
    pub(super) slots: Vec<[u64; 3]>,
    /// By the index of the limit. The last one is for all limits of the request.
    pub(super) limits: Vec<LimitCounts>,
    /// Keys of states, with the index of their limit.
    pub(super) keys: Vec<(String, usize, Count)>,
    pub(super) keys_known: usize,
    pub(super) other_keys: Count,
}

impl Counts {
    pub(super) fn new(policies: &PolicySet) -> Self {
        let mut firsts = Vec::with_capacity(policies.rules().len());
        let mut limits = 0;
        for rule in policies.rules() {
            firsts.push(limits);
            limits += rule.limits.len();
        }
        let inner = Inner {
            firsts,
            limits: vec![LimitCounts::default(); limits + 1],
            series: 0,
            keys: Keys::default(),
            timeline: Timeline::default(),
            slots: Vec::new(),
            totals: Totals::default(),
            never: Vec::new(),
            retry_after: Spread::default(),
            delay: Spread::default(),
        };
        Self(Arc::new(Shared { now: AtomicU64::new(0), is_settle: AtomicBool::new(false), inner: Mutex::new(inner) }))
    }

    /// Sets the start of the slots. By default they start with the first request.
    pub(super) fn start(&self, start: Option<Micros>) {
        self.0.inner.lock().timeline.start_at(start);
    }

    /// Begins a request.
    pub(super) fn begin(&self, now: Micros) {
        self.0.now.store(now, Relaxed);
    }

    /// Sets whether the following decisions are settles.
    pub(super) fn settling(&self, is_settle: bool) {
        self.0.is_settle.store(is_settle, Relaxed);
    }

    /// Counts the answer of the current request, or its error.
    pub(super) fn answered(&self, answer: Option<&Answer>) {
        let inner = &mut *self.0.inner.lock();
        inner.advance(self.0.now.load(Relaxed));
        let never = deny(inner.never.drain(..));
        let slot = slot_of(&mut inner.slots, inner.timeline.slot());
        match answer {
            None => inner.totals.failed += 1,
            Some(answer) if answer.denied => {
                slot[2] += 1;
                inner.totals.denied += 1;
                match answer.retry_after {
                    Some(wait) => inner.retry_after.add(wait),
                    None => inner.totals.never += u64::from(never),
                }
            }
            Some(answer) => {
                slot[0] += 1;
                inner.totals.passed += 1;
                if answer.wait > 0 {
                    slot[1] += 1;
                    inner.totals.delayed += 1;
                    inner.delay.add(answer.wait);
                }
            }
        }
    }

    /// All counts, with at most this many keys.
    pub(super) fn counted(&self, keys: usize) -> Counted {
        let inner = self.0.inner.lock();
        let top = inner.keys.top(keys).into_iter();
        Counted {
            totals: inner.totals,
            retry_after: inner.retry_after.times(),
            delay: inner.delay.times(),
            start: inner.timeline.start(),
            width: inner.timeline.width(),
            slots: inner.slots.clone(),
            limits: inner.limits.clone(),
            keys: top.map(|(key, limit, count)| (key.to_owned(), limit as usize, count)).collect(),
            keys_known: inner.keys.len(),
            other_keys: inner.keys.others(),
        }
    }
}

impl Inner {
    fn advance(&mut self, now: Micros) {
        let Self { timeline, slots, limits, .. } = self;
        timeline.advance(now, |count| {
            *slots = joined(slots, count);
            for slots in limits.iter_mut().filter_map(|limit| limit.slots.as_mut()) {
                *slots = joined(slots, count);
            }
        });
    }

    fn charged(&mut self, charged: &Charged<'_>) {
        let numbers = |limit: &Limit| (limit.requests(), limit.window());
        let (at, has_other_numbers) = match charged.limit {
            LimitOf::Rule(rule, limit) => {
                let written = rule.limits.get(limit).map(numbers);
                (self.firsts[rule.id as usize] + limit, written != Some(numbers(charged.charge.limit)))
            }
            LimitOf::Request { .. } => (self.limits.len() - 1, false),
        };
        let hits = match charged.charge.operation {
            Operation::Consume(hits) | Operation::Report(hits) => u64::from(hits),
            Operation::Peek | Operation::Refund(_) => 0,
        };
        let is_over = charged.outcome.verdict.is_over();
        self.never.push((charged.charge.role, charged.outcome.verdict == Verdict::Never));
        let limit = &mut self.limits[at];
        if limit.count.requests == 0 && self.series < SERIES_MAX {
            self.series += 1;
            limit.slots = Some(Vec::new());
        }
        limit.count.add(hits, is_over);
        limit.other_numbers += u64::from(has_other_numbers);
        if let Some(slots) = &mut limit.slots {
            slot_of(slots, self.timeline.slot())[usize::from(is_over)] += 1;
        }
        self.keys.add(charged.charge.key, u32::try_from(at).unwrap_or(u32::MAX), hits, is_over);
    }
}

impl Observer for Counts {
    fn loaded(&self, _: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(self.clone())
    }

    fn unknown_domain(&self, _: &str, descriptors: usize) {
        let inner = &mut *self.0.inner.lock();
        inner.totals.unknown_domain += 1;
        inner.totals.unmatched += descriptors as u64;
    }

    fn evicted(&self, _: weir_engine::Count) {
        self.0.inner.lock().totals.evicted += 1;
    }
}

impl Tally for Counts {
    fn charged(&self, charged: &Charged<'_>) {
        if self.0.is_settle.load(Relaxed) {
            return;
        }
        let inner = &mut *self.0.inner.lock();
        inner.advance(self.0.now.load(Relaxed));
        inner.charged(charged);
    }

    fn decided(&self, _: &Domain, _: usize, _: DecisionResult, unmatched: u32) {
        if unmatched > 0 && !self.0.is_settle.load(Relaxed) {
            self.0.inner.lock().totals.unmatched += u64::from(unmatched);
        }
    }
}
