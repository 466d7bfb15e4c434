//! Steps that test nothing: their requests meet no rule, and they expect these requests to pass.
//!
//! Such a step passes with any policies. Usually a key or a domain is misspelled. Not here: which expectations a
//! request without a rule meets (policies).

use weir_engine::{Entry, PolicySet};
use weir_rls::proto::RateLimitRequest;
use weir_text::nearest;
use weir_text::yaml::Position;

use super::coverage::Load;
use super::{Difference, FAILURES_MAX, Failure, Outcome, Warning};

/// The name and the expected value of the difference in a strict run.
const WHAT: &str = "rule";
const EXPECTED: &str = "a rule, or rule: none in the test (--strict)";

/// The steps of one case that test nothing.
#[derive(Default)]
pub(super) struct Unmet {
    pub(super) warnings: Vec<Warning>,
    /// The number of further such steps.
    pub(super) more: usize,
}

impl Unmet {
    /// Adds a step whose requests met no rule, with one of its requests.
    pub(super) fn add(&mut self, position: Position, step: String, request: &RateLimitRequest, load: &Load) {
        if self.warnings.len() < FAILURES_MAX {
            self.warnings.push(Warning { position, step, reason: reason(request, &load.policies) });
        } else {
            self.more += 1;
        }
    }

    /// The outcome of a case if its warnings are failures.
    pub(super) fn into_failures(self, outcome: Outcome) -> Outcome {
        let (mut failures, mut more) = match outcome {
            Outcome::Passed if self.warnings.is_empty() => return Outcome::Passed,
            Outcome::Passed => (Vec::new(), 0),
            Outcome::Failed { failures, more } => (failures, more),
            Outcome::Skipped(_) | Outcome::Broken(_) => return outcome,
        };
        more += self.more;
        for Warning { position, step, reason } in self.warnings {
            if failures.len() == FAILURES_MAX {
                more += 1;
                continue;
            }
            let difference = Difference { position, what: WHAT.to_owned(), expected: EXPECTED.to_owned(), got: reason };
            failures.push(Failure { position, step, decided_by: None, differences: vec![difference], more: 0 });
        }
        Outcome::Failed { failures, more }
    }
}

/// Why a request meets no rule, with a probable correction.
fn reason(request: &RateLimitRequest, policies: &PolicySet) -> String {
    let meant = |meant: Option<&str>| meant.map_or_else(String::new, |meant| format!(", did you mean {meant:?}?"));
    let domain = &*request.domain;
    let Some(found) = policies.domain(domain) else {
        let names = policies.domains().map(|domain| &*domain.name);
        return format!("no rule: no policy has the domain {domain:?}{}", meant(nearest(domain, names)));
    };
    let keys = || policies.rules().iter().filter(|rule| *rule.domain == *domain).map(|rule| &*rule.levels[0].key);
    let first_keys = request.descriptors.iter().filter_map(|descriptor| descriptor.entries.first());
    let unknown = first_keys.map(|entry| &*entry.key).find(|key| keys().all(|known| known != *key));
    match unknown {
        Some(key) => format!("no rule: no descriptor begins with the key {key:?}{}", meant(nearest(key, keys()))),
        None => {
            let unweighed = request.descriptors.iter().find_map(|descriptor| {
                let entries = descriptor.entries.iter();
                let entries: Vec<_> = entries.map(|entry| Entry { key: &entry.key, value: &entry.value }).collect();
                policies.unweighed(found, &entries)
            });
            unweighed.map_or_else(
                || "no rule".to_owned(),
                |(rule, key)| format!("no rule: the rule {:?} does not weigh by {key:?}", rule.path),
            )
        }
    }
}
