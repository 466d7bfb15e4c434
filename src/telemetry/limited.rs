//! Denied keys: for each limit, the keys with most denials in the last minutes.
//!
//! Each core stores its own denials behind a lock. Only a reader contends for it, while it copies one limit. In
//! limited/: one core (recorder.rs), the most frequent keys (sketch.rs), the sum of all cores (report.rs), and how
//! values are printed (values.rs). Memory is bounded by [`LANES_MAX`] cores of [`MINUTES_MAX`] minutes of
//! [`LIMITS_MAX`] limits of [`KEYS_MAX`] keys. It is allocated on demand. Requests within their limits cost nothing
//! here.

mod recorder;
mod report;
mod sketch;
mod values;

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use weir_engine::Operation;
use weir_engine::observer::Charged;
use weir_settings::ShownValues;

pub use self::recorder::{LIMITS_MAX, MINUTES_MAX, STEP_MS, STEPS};
use self::recorder::{Recorder, names};
use self::report::Maker;
pub use self::report::{KeyReport, LimitReport, REPORTED_KEYS_MAX, REPORTED_LIMITS_MAX, Report};
pub use self::sketch::KEYS_MAX;
pub use self::values::ShownDescriptor;

/// If there are more cores, some share a lane.
pub const LANES_MAX: usize = 16;

#[derive(Debug)]
pub struct Limited {
    lanes: Box<[Lane]>,
    values: ShownValues,
}

/// The denials of one core, on their own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Lane(Mutex<Recorder>);

impl Limited {
    pub fn new(runtimes: usize, values: ShownValues) -> Self {
        Self { lanes: (0..runtimes.clamp(1, LANES_MAX)).map(|_| Lane::default()).collect(), values }
    }

    pub const fn values(&self) -> ShownValues {
        self.values
    }

    /// Records that a request was over a limit. `lane` is that of the observer.
    pub fn record(&self, lane: usize, charged: &Charged<'_>) {
        self.record_at(lane, charged, now_ms());
        let [domain, rule, limit] = names(charged);
        tracing::debug!(
            domain,
            rule,
            key = %ShownKey(self.values, charged.charge.key),
            limit,
            requests = charged.charge.limit.requests(),
            window = %charged.charge.limit.window(),
            role = charged.charge.origin.shown_role.name(),
            "over limit"
        );
    }

    fn record_at(&self, lane: usize, charged: &Charged<'_>, now_ms: u64) {
        // A peek has no denial.
        if charged.charge.operation != Operation::Peek {
            self.lanes[lane % self.lanes.len()].0.lock().add(charged, now_ms);
        }
    }

    /// The denied keys of the last `minutes`, at most [`MINUTES_MAX`]. It can take milliseconds, so call it on a thread
    /// that makes no decisions.
    pub fn report(&self, minutes: usize) -> Report {
        self.report_at(minutes, now_ms())
    }

    fn report_at(&self, minutes: usize, now_ms: u64) -> Report {
        let mut maker = Maker::new(minutes, now_ms);
        for number in maker.numbers() {
            for lane in &self.lanes {
                maker.left_out(lane.0.lock().left_out(number));
                for at in 0..LIMITS_MAX {
                    // Copies one limit at a time, so that a decision waits no longer than that.
                    let Some(denials) = lane.0.lock().denials(number, at) else { break };
                    maker.add(number, denials);
                }
            }
        }
        maker.report()
    }
}

/// Formats a key when it is written.
struct ShownKey<'a>(ShownValues, &'a str);

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ShownDescriptor::of(self.1, self.0).text())
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use weir_engine::decision::{self, Outcome};
    use weir_engine::observer::{AnsweredBy, LimitOf};
    use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use weir_engine::{Charge, Entry, Limit, Mode, PolicySet, Unit, key};

    use super::*;

    /// The beginning of a minute.
    const START_MS: u64 = 1_800_000_000_000;

    fn policies(rules: usize) -> PolicySet {
        let node = |number: usize| NodeSpec {
            key: format!("key-{number:03}"),
            rule: Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(1, Unit::Hour)]))),
            ..NodeSpec::default()
        };
        let descriptors = (0..rules).map(node).collect();
        PolicySet::compile(vec![DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors }]).unwrap()
    }

    fn outcome(charge: &Charge<'_>) -> Outcome {
        let charges = std::slice::from_ref(charge);
        let decided = decision::decide(charges, &[0], &mut [None][..], Mode::Atomic, START_MS * 1_000);
        let decision = decided.expect("no calendar");
        decision.outcomes.into_iter().next().unwrap()
    }

    fn deny(limited: &Limited, policies: &PolicySet, lane: usize, rule: usize, value: &str, now_ms: u64) {
        let rule = &policies.rules()[rule];
        let mut text = String::new();
        let entries = [Entry { key: &rule.path, value }];
        key::write_key(&mut text, "shop", entries.into_iter(), &[], &rule.limits[0]);
        let charge = Charge::alone(&text, &rule.limits[0], Operation::Consume(2));
        let (outcome, by) = (outcome(&charge), AnsweredBy::Store);
        let limit = LimitOf::Rule(rule, 0);
        let (mode, row) = (Mode::Atomic, None);
        let charged = Charged { limit, entries: &entries, row, mode, charge: &charge, outcome: &outcome, by };
        limited.record_at(lane, &charged, now_ms);
    }

    fn denied(report: &Report) -> Vec<(String, u64, u64)> {
        let keys = report.limits.iter().flat_map(|limit| &limit.keys);
        keys.map(|key| (ShownDescriptor::of(&key.key, ShownValues::Shown).text(), key.at_least, key.at_most)).collect()
    }

    #[test]
    fn cores_and_minutes_add_up_and_old_minutes_are_forgotten() {
        let (limited, policies) = (Limited::new(3, ShownValues::Shown), policies(2));
        for (lane, rule, value, at_s) in
            [(0, 0, "ann", 0), (1, 0, "ann", 61), (2, 0, "bob", 62), (2, 1, "eve", 62), (0, 0, "ann", 299)]
        {
            deny(&limited, &policies, lane, rule, value, START_MS + at_s * 1_000);
        }
        let report = limited.report_at(5, START_MS + 299_000);
        assert_eq!(
            denied(&report),
            [("key-000=ann".into(), 3, 3), ("key-000=bob".into(), 1, 1), ("key-001=eve".into(), 1, 1)]
        );
        let first = &report.limits[0];
        assert_eq!((first.rule.as_str(), first.limit.as_str(), first.denials), ("key-000", "f3600s", 4));
        assert_eq!((first.keys[0].first_ms, first.keys[0].last_ms), (START_MS, START_MS + 299_000));
        assert_eq!(first.history.len(), 60);
        let at: Vec<usize> = (0..60).filter(|&at| first.history[at] > 0).collect();
        assert_eq!((at, first.history[12]), (vec![0, 12, 59], 2));

        assert_eq!(denied(&limited.report_at(1, START_MS + 299_000)), [("key-000=ann".into(), 1, 1)]);
        // A minute later the first minute has expired.
        assert_eq!(limited.report_at(5, START_MS + 300_000).limits[0].denials, 3);
        assert_eq!(
            limited.report_at(5, START_MS + 3_600_000),
            Report { now_ms: START_MS + 3_600_000, minutes: 5, ..Report::default() }
        );
    }

    #[test]
    fn a_flood_of_keys_is_bounded_and_does_not_hide_who_is_denied_most() {
        let (limited, policies) = (Limited::new(2, ShownValues::Shown), policies(1));
        for number in 0..20_000_u64 {
            let value = if number % 10 == 0 { "ann".to_owned() } else { format!("random-{number}") };
            deny(&limited, &policies, (number % 2) as usize, 0, &value, START_MS + number);
        }
        let report = limited.report_at(1, START_MS + 20_000);
        let limit = &report.limits[0];
        assert_eq!(limit.denials, 20_000);
        assert!(limit.keys.len() <= 2 * KEYS_MAX);
        let ann = &limit.keys[0];
        assert_eq!(ShownDescriptor::of(&ann.key, ShownValues::Shown).text(), "key-000=ann");
        assert!(ann.at_least <= 2_000 && ann.at_most >= 2_000, "{ann:?}");
        // Each of the two sketches is wrong by a part of what it saw.
        assert!(ann.at_most - ann.at_least <= 20_000 / KEYS_MAX as u64, "{ann:?}");
    }

    #[test]
    fn more_limits_than_are_remembered_leave_out_those_with_fewest_denials() {
        let (limited, policies) = (Limited::new(1, ShownValues::Shown), policies(LIMITS_MAX + 3));
        for _ in 0..2 {
            deny(&limited, &policies, 0, 0, "ann", START_MS);
        }
        for rule in 1..LIMITS_MAX + 3 {
            deny(&limited, &policies, 0, rule, "ann", START_MS);
        }
        let report = limited.report_at(1, START_MS);
        assert_eq!((report.limits.len(), report.left_out), (LIMITS_MAX, 3));
        assert_eq!((report.limits[0].rule.as_str(), report.limits[0].denials), ("key-000", 2));
    }
}
