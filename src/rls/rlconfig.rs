//! The policies in force as envoyproxy/ratelimit prints them on `/rlconfig`.

use std::fmt::Write as _;

use weir_engine::{Limit, Role, Rule};

/// Adds one line for each limit of a rule, or one for a rule without limits.
///
/// ```text
/// shop.tenant.path_/pay: unit=MINUTE requests_per_unit=2, shadow_mode: false, quota_mode: false
/// ```
pub fn add_rule(text: &mut String, rule: &Rule) {
    if rule.limits.is_empty() {
        add_line(text, rule, None);
    }
    rule.limits.iter().for_each(|limit| add_line(text, rule, Some(limit)));
}

fn add_line(text: &mut String, rule: &Rule, limit: Option<&Limit>) {
    text.push_str(&rule.domain);
    for level in &rule.levels {
        text.push('.');
        text.push_str(&level.key);
        if let Some(value) = &level.value {
            text.push('_');
            text.push_str(&value.name());
        }
    }
    let unit = limit.and_then(|limit| limit.window().unit());
    let unit = unit.map_or_else(|| "UNKNOWN".to_owned(), |unit| unit.name().to_ascii_uppercase());
    let requests = limit.map_or(0, Limit::requests);
    let shadow = rule.role == Role::Shadow || limit.is_some_and(|limit| limit.shadow);
    let quota = rule.is_quota;
    // Writing to a string cannot fail.
    let _ = writeln!(text, ": unit={unit} requests_per_unit={requests}, shadow_mode: {shadow}, quota_mode: {quota}");
}
