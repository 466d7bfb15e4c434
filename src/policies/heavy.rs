//! Warns about rules that can make a request too heavy for every store.
//!
//! Not here: the weights (engine/weight.rs), and what happens to such a request (limiter).

use std::collections::BTreeMap;

use weir_engine::PolicySet;
use weir_engine::weight::{DESCRIPTORS_MAX, WEIGHT_MAX, WEIGHT_SHARED_MAX, of_limit};
use weir_engine::words::counted;

use super::allowed::Allowed;
use super::{Code, DomainOutline, Location, Outline, Warning, Warnings};

/// Adds warnings about a policy set, first about rules, then about domains. [dc-11]
pub(super) fn warn(policies: &PolicySet, domains: &[DomainOutline], allowed: &mut Allowed, warnings: &mut Warnings) {
    // A domain can be spread over several files; its first place is reported.
    let mut by_name: BTreeMap<&str, (&Location, Vec<u32>)> = BTreeMap::new();
    for domain in domains {
        let (_, weights) = by_name.entry(&domain.name).or_insert((&domain.place, Vec::new()));
        for outline in &domain.descriptors {
            warn_of_rules(policies, outline, weights, allowed, warnings);
        }
    }
    for (place, mut weights) in by_name.into_values() {
        weights.sort_unstable_by(|one, other| other.cmp(one));
        weights.truncate(DESCRIPTORS_MAX as usize);
        let together: u32 = weights.iter().sum();
        if together > WEIGHT_MAX && weights.len() > 1 && !allowed.has(place, Code::Heavy) {
            let message = format!(
                "a request that meets the {} heaviest rules of this domain weighs {together}, more than \
                 {WEIGHT_MAX}: weir does not ask the store, and on_error applies",
                weights.len()
            );
            warnings.push(Warning::at(place, Code::Heavy, message));
        }
    }
}

fn warn_of_rules(
    policies: &PolicySet,
    outline: &Outline,
    weights: &mut Vec<u32>,
    allowed: &mut Allowed,
    warnings: &mut Warnings,
) {
    if let Some(rule) = outline.note.rule.and_then(|id| policies.rules().get(id as usize)) {
        let weight: u32 = rule.limits.iter().map(of_limit).sum();
        weights.push(weight);
        // A lighter rule is too heavy only with unusually many descriptors of one kind in a request.
        if weight > WEIGHT_SHARED_MAX && !allowed.has(&outline.note.place(), Code::Heavy) {
            let message = format!(
                "these limits weigh {weight} in total, so a request with {} of it weighs more than \
                 {WEIGHT_MAX}: weir does not ask the store, and on_error applies; a coarser precision, or fewer limits, weigh less",
                counted(WEIGHT_MAX / weight + 1, "descriptor")
            );
            warnings.push(Warning::at(&outline.note.place(), Code::Heavy, message));
        }
    }
    for below in &outline.descriptors {
        warn_of_rules(policies, below, weights, allowed, warnings);
    }
}

#[cfg(test)]
mod tests {
    use crate::load_dir;

    const LOG: &str = "{rate: 10000/min, algorithm: sliding_window_log}";

    fn warnings(rules: usize, limits: &[&str]) -> Vec<String> {
        let directory = tempfile::TempDir::new().unwrap();
        let rule = |i| format!("  - key: k{i}\n    rate_limits: [{}]\n", limits.join(", "));
        let policy = format!("domain: shop\ndescriptors:\n{}", (0..rules).map(rule).collect::<String>());
        std::fs::write(directory.path().join("policy.yaml"), policy).unwrap();
        let loaded = load_dir(directory.path()).unwrap_or_else(|problems| panic!("{problems}"));
        let shown = loaded.warnings.list().iter().map(ToString::to_string);
        shown.map(|text| text.rsplit_once("policy.yaml:").unwrap().1.to_owned()).collect()
    }

    #[test]
    fn a_rule_that_few_descriptors_make_too_heavy_is_named_with_its_place() {
        let four = ["min", "h", "day", "30d"].map(|unit| LOG.replace("min", unit));
        let four = four.each_ref().map(String::as_str);
        let expected = "3:5: warning: these limits weigh 168 in total, so a request with 7 descriptors of it weighs \
                        more than 1024: weir does not ask the store, and on_error applies; a coarser precision, or \
                        fewer limits, weigh less [heavy]";
        assert_eq!(warnings(1, &four), [expected]);
        assert!(warnings(1, &four[..3]).is_empty(), "126 is light enough");
    }

    #[test]
    fn rules_that_are_too_heavy_together_are_a_warning_of_their_domain() {
        assert!(warnings(24, &[LOG]).is_empty());
        let found = warnings(25, &[LOG]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].contains("meets the 25 heaviest rules of this domain weighs 1050, more than 1024"),
            "{found:?}"
        );
    }

    #[test]
    fn light_rules_are_no_reason_to_warn() {
        assert!(warnings(70, &["{rate: 9/min}", "{rate: 99/h, algorithm: gcra}"]).is_empty());
    }
}
