//! The denials of one core: for each of the last minutes, the limits that were over and their keys with most denials. Not here:
//! adding up cores and minutes (report.rs).

use std::hash::BuildHasher as _;

use hashbrown::DefaultHashBuilder;
use weir_engine::observer::{Charged, LimitOf};
use weir_engine::{Limit, Role, key};

use super::sketch::Sketch;

/// The stored minutes, including the current one.
pub const MINUTES_MAX: usize = 5;
/// The most limits that one core stores for one minute. If more are over, the one with the fewest denials is dropped.
pub const LIMITS_MAX: usize = 64;
/// The length of a step of a history, in milliseconds.
pub const STEP_MS: u64 = 5_000;
pub const STEPS: usize = 12;
/// The rule and the limit of limits that came with a request.
const OVERRIDE: &str = "(request)";
/// The longest stored key, in bytes: a whole tag.
const KEY_BYTES_MAX: usize = key::VERSION.len() + key::TAG_BYTES_MAX + 2;

const MINUTE_MS: u64 = 60_000;
const _: () = assert!(STEP_MS * STEPS as u64 == MINUTE_MS, "steps fill a minute");

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Whose {
    pub(super) domain: String,
    pub(super) rule: String,
    pub(super) limit: String,
}

impl Whose {
    fn is(&self, [domain, rule, limit]: [&str; 3]) -> bool {
        self.limit == limit && self.rule == rule && self.domain == domain
    }

    fn set(&mut self, texts: [&str; 3]) {
        for (to, text) in [&mut self.domain, &mut self.rule, &mut self.limit].into_iter().zip(texts) {
            to.clear();
            to.push_str(text);
        }
    }
}

pub(super) fn names<'a>(charged: &Charged<'a>) -> [&'a str; 3] {
    match charged.limit {
        LimitOf::Rule(rule, at) => [&rule.domain, &rule.path, rule.limits.get(at).map_or("", label)],
        LimitOf::Request { domain } => [domain, OVERRIDE, OVERRIDE],
    }
}

/// A limit's name, or its id, as in the metrics.
fn label(limit: &Limit) -> &str {
    limit.name.as_deref().unwrap_or(limit.id())
}

#[derive(Clone, Debug)]
pub(super) struct Denials {
    pub(super) whose: Whose,
    /// The role at the last denial.
    pub(super) role: Role,
    pub(super) count: u64,
    /// By step of the minute.
    pub(super) steps: [u32; STEPS],
    pub(super) keys: Sketch,
}

#[derive(Debug, Default)]
struct Minute {
    /// The number of the minute since the Unix epoch.
    number: u64,
    len: usize,
    /// The limits after `len` are unused. Their buffers are reused.
    limits: Vec<Denials>,
    /// Denials of limits that were dropped.
    left_out: u64,
}

#[derive(Debug, Default)]
pub(super) struct Recorder {
    hasher: DefaultHashBuilder,
    minutes: [Minute; MINUTES_MAX],
}

impl Recorder {
    pub(super) fn add(&mut self, charged: &Charged<'_>, now_ms: u64) {
        let text = tag(charged.charge.key);
        let hash = self.hasher.hash_one(text);
        let number = now_ms / MINUTE_MS;
        let minute = &mut self.minutes[(number % MINUTES_MAX as u64) as usize];
        // If the clock steps back, this drops a later minute.
        if minute.number != number {
            (minute.number, minute.len, minute.left_out) = (number, 0, 0);
        }
        let denials = minute.of(names(charged), charged.charge.origin.shown_role);
        denials.role = charged.charge.origin.shown_role;
        denials.count += 1;
        let step = &mut denials.steps[(now_ms % MINUTE_MS / STEP_MS) as usize];
        *step = step.saturating_add(1);
        denials.keys.add(hash, text, charged.row, now_ms);
    }

    /// The denials of the limit at this position, in the minute with this number. None after the last limit.
    pub(super) fn denials(&self, number: u64, at: usize) -> Option<Denials> {
        self.minute(number).filter(|minute| at < minute.len).and_then(|minute| minute.limits.get(at)).cloned()
    }

    /// Denials of dropped limits, in the minute with this number.
    pub(super) fn left_out(&self, number: u64) -> u64 {
        self.minute(number).map_or(0, |minute| minute.left_out)
    }

    fn minute(&self, number: u64) -> Option<&Minute> {
        let minute = &self.minutes[usize::try_from(number % MINUTES_MAX as u64).unwrap_or_default()];
        (minute.number == number).then_some(minute)
    }
}

impl Minute {
    fn of(&mut self, names: [&str; 3], role: Role) -> &mut Denials {
        let at = match self.limits[..self.len].iter().position(|denials| denials.whose.is(names)) {
            Some(at) => return &mut self.limits[at],
            None if self.len < LIMITS_MAX => {
                self.len += 1;
                self.len - 1
            }
            None => {
                let fewest = self.limits.iter().enumerate().min_by_key(|(_, denials)| denials.count);
                let (at, count) = fewest.map_or((0, 0), |(at, denials)| (at, denials.count));
                self.left_out += count;
                at
            }
        };
        if self.limits.len() < self.len {
            let (whose, keys) = (Whose::default(), Sketch::default());
            self.limits.push(Denials { whose, role, count: 0, steps: [0; STEPS], keys });
        }
        let denials = &mut self.limits[at];
        denials.whose.set(names);
        (denials.count, denials.steps) = (0, [0; STEPS]);
        denials.keys.clear();
        denials
    }
}

/// The part of a key with the descriptor. All limits of a descriptor share it.
fn tag(key: &str) -> &str {
    let end = key.find('}').map_or(key.len(), |at| at + 1);
    debug_assert!(end <= KEY_BYTES_MAX, "{end} bytes of a tag");
    &key[..end]
}
