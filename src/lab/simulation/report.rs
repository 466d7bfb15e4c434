//! The results of a simulation. These types, in this order, are their JSON form; docs/simulation.md explains it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use weir_engine::descriptor::spell_entries;
use weir_engine::key::{self, ParsedValue};
use weir_engine::words::counted;
use weir_engine::{Entry, Limit, Micros, PolicySet, Role, Rule};
use weir_policies::Location;
use weir_rls::convert::Invalid;
use weir_text::{amount, instant_text, parameters};

use super::counts::{Counted, LimitCounts};
use super::hidden::MayMeet;
pub use super::keys::Count;
pub use super::spread::Times;
use super::traffic::{Request, Traffic};

const VERSION: u32 = 1;
/// Replaces the rule for limits of the request.
const OF_REQUESTS: &str = "(request)";

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this form, 1.
    pub weir_simulation: u32,
    pub traffic: TrafficReport,
    /// Of two policies, the limits whose counts differ, as positions in the `limits` of each; the largest difference first.
    pub differences: Option<Vec<LimitPair>>,
    pub policies: Vec<PolicyReport>,
}

/// A limit of each of two policies. None if no request asked it.
pub type LimitPair = [Option<usize>; 2];

#[derive(Clone, Debug, Serialize)]
pub struct TrafficReport {
    pub file: String,
    pub seed: Option<u64>,
    /// When it begins. None if there is no request.
    pub start: Option<String>,
    /// The time of the last request.
    pub end: Option<String>,
    pub requests: u64,
    /// The requests that every server refuses, because they exceed a bound on input.
    pub refused: u64,
    /// The requests that were sent to none of the policies, because their rules depend on hidden values.
    pub could_not_tell: u64,
    /// The domain of the first of these, and what it may meet.
    #[serde(skip)]
    first: Option<(String, MayMeet)>,
    /// Recorded requests by their recorded answers: passed, over a limit, error.
    pub recorded: Option<[u64; 3]>,
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PolicyReport {
    pub name: String,
    pub passed: u64,
    /// Admitted requests that wait for their turn (`leaky_bucket`).
    pub delayed: u64,
    pub denied: u64,
    /// Denied requests for which no wait helps.
    pub denied_for_ever: u64,
    pub failed: u64,
    /// Requests for a domain that the policies do not have. They passed.
    pub unknown_domain: u64,
    pub unmatched_descriptors: u64,
    /// States that the memory store evicted before their end.
    pub evicted: u64,
    /// When denied requests would have passed.
    pub retry_after: Times,
    pub delay: Times,
    pub over_time: OverTime,
    /// The limits with requests, in the order of the policies.
    pub limits: Vec<LimitReport>,
    /// The number of limits without requests.
    pub limits_unasked: usize,
    /// Keys of limits, most denied first.
    pub keys: Vec<KeyReport>,
    pub keys_counted: usize,
    pub other_keys: Count,
}

/// Requests over time, in slots of equal length.
#[derive(Clone, Debug, Serialize)]
pub struct OverTime {
    pub start: String,
    /// When the first slot begins, in microseconds since 1970.
    pub start_us: Micros,
    /// The length of a slot, in microseconds.
    pub slot_us: Micros,
    pub passed: Vec<u64>,
    /// Admitted requests that were delayed.
    pub delayed: Vec<u64>,
    pub denied: Vec<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct LimitReport {
    /// The domain. None for limits of the request.
    pub domain: Option<String>,
    /// The path of the rule; `(request)` for limits of the request.
    pub rule: String,
    /// The limit: `10 per minute`.
    pub limit: Option<String>,
    pub name: Option<String>,
    pub algorithm: Option<&'static str>,
    /// The parameters that are not the default: `burst 5`.
    pub parameters: Option<String>,
    /// Its role: `enforced`, `shadow` or `quota`.
    pub role: &'static str,
    pub place: Option<String>,
    #[serde(flatten)]
    pub count: Count,
    /// Requests with other numbers than `limit`: numbers of their own, or of a row.
    pub other_numbers: u64,
    /// Requests over time, in the slots of all requests; only for the first 64 limits that requests met.
    pub over_time: Option<LimitOverTime>,
}

#[derive(Clone, Debug, Serialize)]
pub struct LimitOverTime {
    pub within: Vec<u64>,
    pub over: Vec<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct KeyReport {
    /// The descriptor, in the short form of `weir explain`. Values that share a state are shown as a wildcard or a name.
    pub key: String,
    pub domain: Option<String>,
    pub rule: String,
    pub limit: Option<String>,
    pub name: Option<String>,
    #[serde(flatten)]
    pub count: Count,
}

impl Report {
    pub fn new(traffic: TrafficReport, policies: Vec<PolicyReport>) -> Self {
        Self { weir_simulation: VERSION, traffic, differences: differences(&policies), policies }
    }
}

/// The limits whose counts differ, the largest difference first. None unless there are two policies.
fn differences(policies: &[PolicyReport]) -> Option<Vec<LimitPair>> {
    let [old, new] = policies else { return None };
    let count =
        |policies: &PolicyReport, at: Option<usize>| at.map_or_else(Count::default, |at| policies.limits[at].count);
    let counts = |[one, other]: LimitPair| [count(old, one), count(new, other)];
    let mut pairs: Vec<LimitPair> = paired(&old.limits, &new.limits);
    pairs.retain(|pair| counts(*pair)[0] != counts(*pair)[1]);
    pairs.sort_by_key(|pair| {
        let [old, new] = counts(*pair);
        Reverse((old.over.abs_diff(new.over), old.requests.abs_diff(new.requests)))
    });
    Some(pairs)
}

/// Pairs the limits of each rule: first by name, then by order.
fn paired(old: &[LimitReport], new: &[LimitReport]) -> Vec<LimitPair> {
    let mut rules: BTreeMap<(Option<&str>, &str), [Vec<usize>; 2]> = BTreeMap::new();
    for (side, limits) in [old, new].into_iter().enumerate() {
        for (at, limit) in limits.iter().enumerate() {
            rules.entry((limit.domain.as_deref(), &limit.rule)).or_default()[side].push(at);
        }
    }
    let mut pairs = Vec::new();
    for [of_old, mut left] in rules.into_values() {
        let mut others = Vec::new();
        for one in of_old {
            match left.iter().position(|other| old[one].name == new[*other].name) {
                Some(at) => pairs.push([Some(one), Some(left.remove(at))]),
                None => others.push(one),
            }
        }
        let length = others.len().max(left.len());
        pairs.extend((0..length).map(|at| [others.get(at).copied(), left.get(at).copied()]));
    }
    pairs
}

impl TrafficReport {
    pub(super) fn new(traffic: &Traffic) -> Self {
        Self {
            file: traffic.name().to_owned(),
            seed: traffic.seed(),
            start: traffic.start().map(instant_text),
            end: None,
            requests: 0,
            refused: 0,
            could_not_tell: 0,
            first: None,
            recorded: None,
            notes: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, request: &Request) {
        self.requests += 1;
        if self.start.is_none() {
            self.start = Some(instant_text(request.time));
        }
        if let Some(verdict) = request.verdict {
            self.recorded.get_or_insert_default()[verdict as usize] += 1;
        }
    }

    pub(super) fn refuse(&mut self, invalid: &Invalid) {
        self.refused += 1;
        if self.refused == 1 {
            self.notes.push(format!("every server refuses some of the requests, the first because of {invalid}"));
        }
    }

    pub(super) fn could_not_tell_of(&mut self, domain: &str, rules: &MayMeet) {
        self.could_not_tell += 1;
        self.first.get_or_insert_with(|| (domain.to_owned(), rules.clone()));
    }

    pub(super) fn note_could_not_tell(&mut self) {
        let Some((domain, rules)) = &self.first else { return };
        self.notes.push(format!(
            "could not tell for {} of {}, because values are hidden: no result has them. The first may meet {} in \
             {domain:?}. Record with values shown",
            self.could_not_tell,
            counted(self.requests, "request"),
            rules.in_words()
        ));
    }

    /// Requests that were sent to the policies.
    pub const fn sent(&self) -> u64 {
        self.requests - self.refused - self.could_not_tell
    }

    pub(super) fn end_at(&mut self, last: Option<Micros>) {
        self.end = last.map(instant_text);
    }
}

impl PolicyReport {
    pub(super) fn new(name: &str, policies: &PolicySet, places: &[Location], counted: &Counted) -> Self {
        let named = Named::all(policies, places);
        let totals = counted.totals;
        let of_slots = |i: usize| counted.slots.iter().map(|slot| slot[i]).collect::<Vec<_>>();
        let length = counted.slots.len();
        let limits = named.iter().zip(&counted.limits).filter(|(_, limit)| limit.count.requests > 0);
        Self {
            name: name.to_owned(),
            passed: totals.passed,
            delayed: totals.delayed,
            denied: totals.denied,
            denied_for_ever: totals.never,
            failed: totals.failed,
            unknown_domain: totals.unknown_domain,
            unmatched_descriptors: totals.unmatched,
            evicted: totals.evicted,
            retry_after: counted.retry_after,
            delay: counted.delay,
            over_time: OverTime {
                start: instant_text(counted.start),
                start_us: counted.start,
                slot_us: counted.width,
                passed: of_slots(0),
                delayed: of_slots(1),
                denied: of_slots(2),
            },
            limits: limits.map(|(named, counts)| named.report(counts, length)).collect(),
            // The last one is for limits of the request.
            limits_unasked: counted.limits.iter().rev().skip(1).filter(|limit| limit.count.requests == 0).count(),
            keys: counted.keys.iter().map(|(key, limit, count)| named[*limit].key(key, *count)).collect(),
            keys_counted: counted.keys_known,
            other_keys: counted.other_keys,
        }
    }

    /// Requests that were decided or got an error.
    pub fn requests(&self) -> u64 {
        self.passed + self.denied + self.failed
    }
}

struct Named {
    domain: Option<String>,
    rule: String,
    limit: Option<String>,
    name: Option<String>,
    algorithm: Option<&'static str>,
    parameters: Option<String>,
    role: &'static str,
    place: Option<String>,
}

impl Named {
    /// All limits in the order in which they are counted.
    fn all(policies: &PolicySet, places: &[Location]) -> Vec<Self> {
        let mut all = Vec::new();
        for (rule, place) in policies.rules().iter().zip(places) {
            all.extend(rule.limits.iter().map(|limit| Self::of(rule, limit, place)));
        }
        all.push(Self {
            domain: None,
            rule: OF_REQUESTS.into(),
            limit: None,
            name: None,
            algorithm: None,
            parameters: None,
            role: "enforced",
            place: None,
        });
        all
    }

    fn of(rule: &Rule, limit: &Limit, place: &Location) -> Self {
        Self {
            domain: Some(rule.domain.to_string()),
            rule: rule.path.to_string(),
            limit: Some(amount(limit)),
            name: limit.name.as_deref().map(str::to_owned),
            algorithm: Some(limit.algorithm().name()),
            parameters: Some(parameters(limit)).filter(|text| !text.is_empty()),
            role: if limit.shadow { Role::Shadow.name() } else { rule.role.name() },
            place: Some(place.to_string()),
        }
    }

    fn report(&self, counts: &LimitCounts, length: usize) -> LimitReport {
        let column = |slots: &[[u64; 2]], i: usize| {
            let mut column: Vec<u64> = slots.iter().map(|slot| slot[i]).collect();
            column.resize(length, 0);
            column
        };
        LimitReport {
            domain: self.domain.clone(),
            rule: self.rule.clone(),
            limit: self.limit.clone(),
            name: self.name.clone(),
            algorithm: self.algorithm,
            parameters: self.parameters.clone(),
            role: self.role,
            place: self.place.clone(),
            count: counts.count,
            other_numbers: counts.other_numbers,
            over_time: counts
                .slots
                .as_ref()
                .map(|slots| LimitOverTime { within: column(slots, 0), over: column(slots, 1) }),
        }
    }

    fn key(&self, key: &str, count: Count) -> KeyReport {
        KeyReport {
            key: shown(key),
            domain: self.domain.clone(),
            rule: self.rule.clone(),
            limit: self.limit.clone(),
            name: self.name.clone(),
            count,
        }
    }
}

/// The descriptor of a key, as people type it. A shortened descriptor ends with an ellipsis.
fn shown(text: &str) -> String {
    let Some(read) = key::parse(text) else { return text.to_owned() };
    let mut shown = spell_entries(read.entries.iter().map(|(key, value)| match value {
        ParsedValue::Text(value) | ParsedValue::Name(value) => Entry { key, value },
    }));
    if read.is_hashed {
        shown.push('\u{2026}');
    }
    shown
}
