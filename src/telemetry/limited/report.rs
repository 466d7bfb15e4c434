//! The denials of all cores and several minutes: for each limit the keys with most denials.
//!
//! The count of a key is between two bounds: a sketch may have counted other keys under its name, or may have dropped
//! the key. Not here: how values are printed (values.rs), and JSON (http).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use weir_engine::{Role, RowContent};

use super::recorder::{Denials, MINUTES_MAX, STEP_MS, STEPS, Whose};
use super::sketch::Sketch;

pub const REPORTED_KEYS_MAX: usize = 128;
pub const REPORTED_LIMITS_MAX: usize = 256;

/// The denied keys of the last minutes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// When the report was made, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// The minutes that it covers, including the current one.
    pub minutes: usize,
    /// The limits that were over, most denials first.
    pub limits: Vec<LimitReport>,
    /// Denials by limits that are not in the report.
    pub left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitReport {
    pub domain: String,
    /// The path of the rule; `(request)` for limits in requests.
    pub rule: String,
    /// The name of the limit, or its id; `(request)` for limits in requests.
    pub limit: String,
    /// The role of the limit at the last denial.
    pub role: Role,
    /// How often a request was over this limit.
    pub denials: u64,
    /// Denials by steps of [`STEP_MS`], oldest first. The last step is the current one.
    pub history: Vec<u64>,
    /// The keys with most denials, in the order of their lower bounds.
    pub keys: Vec<KeyReport>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyReport {
    /// The tag of the key, see [`weir_engine::key`].
    pub key: String,
    pub at_least: u64,
    pub at_most: u64,
    /// Its first stored denial, in milliseconds since the Unix epoch.
    pub first_ms: u64,
    /// Its last denial.
    pub last_ms: u64,
    /// The row that counted at its last denial; none for the default plan and rules without rows.
    pub row: Option<Arc<RowContent>>,
}

#[derive(Debug)]
pub(super) struct Maker {
    now_ms: u64,
    minutes: usize,
    limits: BTreeMap<Whose, LimitSums>,
    left_out: u64,
}

#[derive(Debug)]
struct LimitSums {
    role: Role,
    denials: u64,
    history: Vec<u64>,
    sketches: Vec<Sketch>,
}

impl Maker {
    /// A report of the last `minutes`, at most [`MINUTES_MAX`].
    pub(super) fn new(minutes: usize, now_ms: u64) -> Self {
        let minutes = minutes.clamp(1, MINUTES_MAX);
        Self { now_ms, minutes, limits: BTreeMap::new(), left_out: 0 }
    }

    /// The numbers of its minutes, oldest first.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> + use<> {
        let last = self.now_ms / (STEP_MS * STEPS as u64);
        (0..self.minutes as u64).rev().map(move |back| last.saturating_sub(back))
    }

    pub(super) fn add(&mut self, number: u64, denials: Denials) {
        let steps = self.steps();
        let sums = self.limits.entry(denials.whose).or_insert_with(|| LimitSums {
            role: denials.role,
            denials: 0,
            history: vec![0; steps],
            sketches: Vec::new(),
        });
        sums.role = denials.role;
        sums.denials += denials.count;
        let first = number * STEPS as u64;
        let oldest = (self.now_ms / STEP_MS + 1).saturating_sub(steps as u64);
        for (step, count) in (first..).zip(denials.steps) {
            let at = step.checked_sub(oldest).and_then(|at| usize::try_from(at).ok());
            if let Some(sum) = at.and_then(|at| sums.history.get_mut(at)) {
                *sum += u64::from(count);
            }
        }
        sums.sketches.push(denials.keys);
    }

    pub(super) fn left_out(&mut self, denials: u64) {
        self.left_out += denials;
    }

    pub(super) fn report(self) -> Report {
        let mut limits: Vec<LimitReport> = self.limits.into_iter().map(|(whose, sums)| sums.report(whose)).collect();
        limits.sort_by_key(|limit| std::cmp::Reverse(limit.denials));
        let dropped = limits.split_off(limits.len().min(REPORTED_LIMITS_MAX));
        let left_out = self.left_out + dropped.iter().map(|limit| limit.denials).sum::<u64>();
        Report { now_ms: self.now_ms, minutes: self.minutes, limits, left_out }
    }

    const fn steps(&self) -> usize {
        self.minutes * STEPS
    }
}

impl LimitSums {
    fn report(self, whose: Whose) -> LimitReport {
        let Whose { domain, rule, limit } = whose;
        let keys = keys(&self.sketches);
        LimitReport { domain, rule, limit, role: self.role, denials: self.denials, history: self.history, keys }
    }
}

/// The keys of all sketches. If a sketch lacks a key, the upper bound includes the denials that the sketch may have
/// missed.
fn keys(sketches: &[Sketch]) -> Vec<KeyReport> {
    let missed: u64 = sketches.iter().map(|sketch| u64::from(sketch.missed_max())).sum();
    let mut keys: HashMap<&str, KeyReport> = HashMap::new();
    for sketch in sketches {
        let missed_here = u64::from(sketch.missed_max());
        for counted in sketch.keys() {
            let key = keys.entry(&counted.key).or_insert_with(|| KeyReport {
                key: counted.key.clone(),
                at_least: 0,
                at_most: missed,
                first_ms: counted.first_ms,
                last_ms: counted.last_ms,
                row: counted.row.clone(),
            });
            key.at_least += u64::from(counted.count - counted.error);
            key.at_most += u64::from(counted.count) - missed_here;
            key.first_ms = key.first_ms.min(counted.first_ms);
            if counted.last_ms > key.last_ms {
                (key.last_ms, key.row) = (counted.last_ms, counted.row.clone());
            }
        }
    }
    let mut keys: Vec<KeyReport> = keys.into_values().collect();
    keys.sort_by(|one, other| (other.at_least, other.at_most, &one.key).cmp(&(one.at_least, one.at_most, &other.key)));
    keys.truncate(REPORTED_KEYS_MAX);
    keys
}
