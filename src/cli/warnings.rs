//! What is valid in policies and likely not meant: for people who run `weir check`.
//!
//! Not here: mistakes, which keep policies from being loaded (config/policy_file.rs), and how warnings are shown (check.rs).

use std::fmt;
use std::sync::Arc;

use crate::config::policy_file::{DomainOutline, Loaded, Outline, Place};
use crate::engine::PolicySet;
use crate::engine::weight::{DESCRIPTORS_MAX, WEIGHT_MAX, WEIGHT_SHARED_MAX, of_limit};

/// The most warnings of one check. One more line counts the rest.
pub const WARNINGS_MAX: usize = 100;

/// One of them; displayed as `file:line:column: warning: text`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// What it is about.
    pub place: Place,
    /// What is to be expected, and what to do about it.
    pub text: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: warning: {}", self.place, self.text)
    }
}

/// Everything to be warned of in valid policies, in the order of the policies, and how many there are in all. At most
/// [`WARNINGS_MAX`] are listed.
#[must_use]
pub fn of(loaded: &Loaded) -> (Vec<Warning>, usize) {
    let mut found = Found { warnings: Vec::new(), count: 0 };
    for domain in &loaded.domains {
        warn_of_weights(&loaded.policies, domain, &mut found);
    }
    (found.warnings, found.count)
}

struct Found {
    warnings: Vec<Warning>,
    count: usize,
}

impl Found {
    fn add(&mut self, place: Place, text: String) {
        self.count += 1;
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(Warning { place, text });
        }
    }
}

/// Rules that a request can meet so often, or so many of, that no store decides it. [dc-11]
fn warn_of_weights(policies: &PolicySet, domain: &DomainOutline, found: &mut Found) {
    let mut weights = Vec::new();
    for outline in &domain.descriptors {
        warn_of_heavy_rules(policies, &domain.place.file, outline, &mut weights, found);
    }
    weights.sort_unstable_by(|one, other| other.cmp(one));
    let together: u32 = weights.iter().take(DESCRIPTORS_MAX as usize).sum();
    if together > WEIGHT_MAX && weights.len() > 1 {
        found.add(
            domain.place.clone(),
            format!(
                "a request that meets the heaviest rules of this domain once each weighs {together}, more than \
                 {WEIGHT_MAX}: no store decides it, and it goes by on_error"
            ),
        );
    }
}

/// The descriptor as it is written: `key=value`, or the key alone.
fn named(outline: &Outline) -> String {
    match &outline.value {
        Some(value) => format!("{}={value}", outline.key),
        None => outline.key.to_string(),
    }
}

fn warn_of_heavy_rules(
    policies: &PolicySet,
    file: &Arc<str>,
    outline: &Outline,
    weights: &mut Vec<u32>,
    found: &mut Found,
) {
    if let Some(rule) = outline.rule.and_then(|id| policies.rules().get(id as usize)) {
        let weight: u32 = rule.limits.iter().map(of_limit).sum();
        weights.push(weight);
        // Lighter rules need more descriptors of one kind in a request than are usual.
        if weight > WEIGHT_SHARED_MAX {
            let descriptors = WEIGHT_MAX / weight;
            let which = match descriptors {
                0 => "any request".to_owned(),
                1 => "a request with 2 descriptors".to_owned(),
                most => format!("a request with more than {most} descriptors"),
            };
            found.add(
                Place { file: file.clone(), position: outline.position },
                format!(
                    "the limits of {} weigh {weight}, so that {which} of it is heavier than {WEIGHT_MAX}: no store \
                     decides it, and it goes by on_error (a coarser precision, or fewer limits, weigh less)",
                    named(outline),
                ),
            );
        }
    }
    for below in &outline.descriptors {
        warn_of_heavy_rules(policies, file, below, weights, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::policy_file::load_dir;

    fn warnings(policy: &str) -> (Vec<String>, usize) {
        let directory = tempfile::TempDir::new().unwrap();
        std::fs::write(directory.path().join("policy.yaml"), policy).unwrap();
        let loaded = load_dir(directory.path()).unwrap_or_else(|problems| panic!("{problems}"));
        let (listed, count) = of(&loaded);
        let shown = |warning: &Warning| {
            let text = warning.to_string();
            text.rsplit_once("policy.yaml:").unwrap().1.to_owned()
        };
        (listed.iter().map(shown).collect(), count)
    }

    #[test]
    fn a_rule_that_few_descriptors_make_too_heavy_is_named_with_its_place() {
        let (warnings, count) = warnings(
            "
domain: shop
descriptors:
  - key: user
    descriptors:
      - key: path
        value: /pay
        rate_limits:
          - {rate: 10/min, algorithm: sliding_window}
          - {rate: 100/h, algorithm: sliding_window}
          - {rate: 1000/day, algorithm: sliding_window}
  - key: light
    rate_limits:
      - {rate: 10/min, algorithm: sliding_window}
      - {rate: 100/h, algorithm: sliding_window}
",
        );
        assert_eq!(count, 1);
        assert_eq!(
            warnings,
            [
                "6:9: warning: the limits of path=/pay weigh 147, so that a request with more than 6 descriptors of it is \
              heavier than 1024: no store decides it, and it goes by on_error (a coarser precision, or fewer limits, \
              weigh less)"
            ]
        );
    }

    #[test]
    fn a_rule_that_is_too_heavy_alone_is_told_as_such() {
        let limits: Vec<String> = (1..5)
            .map(|i| {
                format!("{{window: {}s, requests_per_unit: 9, algorithm: sliding_window, precision: {i}s}}", 256 * i)
            })
            .collect();
        let policy = format!("domain: shop\ndescriptors:\n  - key: k\n    rate_limits: [{}]\n", limits.join(", "));
        let (warnings, count) = warnings(&policy);
        assert_eq!(count, 1);
        assert!(warnings[0].contains("weigh 1088, so that any request of it is heavier"), "{warnings:?}");
    }

    #[test]
    fn rules_that_are_too_heavy_together_are_a_warning_of_their_domain() {
        let domain = |rules: usize| {
            let rule = |i| format!("  - key: k{i}\n    rate_limit: {{rate: 9/min, algorithm: sliding_window}}\n");
            format!("domain: shop\ndescriptors:\n{}", (0..rules).map(rule).collect::<String>())
        };
        assert_eq!(warnings(&domain(20)), (Vec::new(), 0));
        let (warnings, count) = warnings(&domain(21));
        assert_eq!(count, 1);
        assert!(warnings[0].contains("a request that meets the heaviest rules"), "{warnings:?}");
        assert!(warnings[0].contains("weighs 1029,"), "{warnings:?}");
    }

    #[test]
    fn light_rules_are_no_reason_to_warn() {
        let rule = |i| format!("  - key: k{i}\n    rate_limits: [{{rate: 9/min}}, {{rate: 99/h, algorithm: gcra}}]\n");
        let policy = format!("domain: shop\ndescriptors:\n{}", (0..70).map(rule).collect::<String>());
        assert_eq!(warnings(&policy), (Vec::new(), 0));
    }

    #[test]
    fn a_great_many_warnings_are_counted_and_not_listed() {
        let three = "[{rate: 9/min, algorithm: sliding_window}, {rate: 9/h, algorithm: sliding_window}, \
                     {rate: 9/day, algorithm: sliding_window}]";
        let rule = |i| format!("  - key: k{i}\n    rate_limits: {three}\n");
        let policy = format!("domain: shop\ndescriptors:\n{}", (0..2 * WARNINGS_MAX).map(rule).collect::<String>());
        let (warnings, count) = warnings(&policy);
        assert_eq!((warnings.len(), count), (WARNINGS_MAX, 2 * WARNINGS_MAX + 1));
    }
}
