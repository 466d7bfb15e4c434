//! Warns about more wildcards than weir accepts by default: a compatible reading accepts them.
//!
//! Not here: what a value may cost, which is bounded in each reading (engine/wildcards.rs).

use std::collections::HashMap;

use weir_engine::automaton::PATTERNS_MAX;
use weir_engine::matcher::Matcher;
use weir_text::quoted;

use super::allowed::Allowed;
use super::{Code, DomainOutline, Outline, Warning, Warnings};

/// Adds warnings about policies of a compatible reading, at the first wildcard that is too many.
pub(super) fn warn(domains: &[DomainOutline], allowed: &mut Allowed, warnings: &mut Warnings) {
    for domain in domains {
        warn_of_level(&domain.descriptors, allowed, warnings);
    }
}

fn warn_of_level(level: &[Outline], allowed: &mut Allowed, warnings: &mut Warnings) {
    let mut of_key: HashMap<&str, usize> = HashMap::new();
    let mut of_keys = 0;
    for outline in level {
        if matches!(&outline.value, Some(Matcher::Text(text)) if text.contains('*')) {
            let count = of_key.entry(&outline.key).or_default();
            *count += 1;
            if *count == PATTERNS_MAX + 1 {
                let key = quoted(&outline.key);
                let message = format!(
                    "more than {PATTERNS_MAX} wildcards of the key {key} at one level, which weir refuses by default"
                );
                add(outline, message, allowed, warnings);
            }
        }
        if outline.key.contains('*') {
            of_keys += 1;
            if of_keys == PATTERNS_MAX + 1 {
                let message =
                    format!("more than {PATTERNS_MAX} keys with a * at one level, each of which is a pattern");
                add(outline, message, allowed, warnings);
            }
        }
        warn_of_level(&outline.descriptors, allowed, warnings);
    }
}

fn add(outline: &Outline, message: String, allowed: &mut Allowed, warnings: &mut Warnings) {
    let place = outline.note.place();
    if !allowed.has(&place, Code::ManyWildcards) {
        warnings.push(Warning::at(&place, Code::ManyWildcards, message));
    }
}
