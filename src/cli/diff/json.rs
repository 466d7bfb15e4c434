//! The report as one JSON document.

use serde_json::{Value, json};
use weir_engine::{Limit, Rule};
use weir_lab::comparison::answers::{Answers, Changed};
use weir_lab::comparison::{
    CouldNotTell, Direction, DomainChange, Effect, Fate, Kind, RuleChange, StateChange, Subject,
};

use super::words::{place, rule_in_words};
use super::{Report, Side};
use crate::check::limit_in_words;

/// The most descriptors in the report.
const KEYS_MAX: usize = 1_000;

pub(super) fn document(report: &Report<'_>) -> Value {
    let all = report.comparison;
    json!({
        "summary": {
            "added": all.of_kind(Kind::Added),
            "removed": all.of_kind(Kind::Removed),
            "changed": all.of_kind(Kind::Changed),
            "renamed": all.of_kind(Kind::Renamed),
            "moved": all.of_kind(Kind::Moved),
            "stricter": all.with_direction(Direction::Stricter),
            "looser": all.with_direction(Direction::Looser),
            "forgotten": all.forgetting(),
            "lost_rows": all.lost_rows,
            "same": all.same,
            "unknown": all.unknown.len(),
        },
        "domains": all.domains.iter().map(of_domain).collect::<Vec<_>>(),
        "rules": all.rules.iter().map(|change| of_rule(report, change)).collect::<Vec<_>>(),
        "unknown": all.unknown.iter().map(|unknown| of_could_not_tell(report, unknown)).collect::<Vec<_>>(),
        "traffic": report.answers.map(of_answers),
    })
}

fn of_answers(answers: &Answers) -> Value {
    let with = |mut value: Value, changed: &Changed| {
        value["now_denied"] = changed.now_denied.into();
        value["now_passed"] = changed.now_passed.into();
        value["errors"] = changed.errors.into();
        value
    };
    let rules = answers.rules.iter();
    let rules =
        rules.map(|(met, changed)| with(json!({ "domain": met.domain, "old": met.old, "new": met.new }), changed));
    let keys = answers.keys.iter().take(KEYS_MAX);
    let keys = keys.map(|(domain, key, changed)| with(json!({ "domain": domain, "descriptor": key }), changed));
    let whole = json!({
        "name": answers.traffic,
        "requests": answers.requests,
        "refused": answers.refused,
        "rules": rules.collect::<Vec<_>>(),
        "descriptors": keys.collect::<Vec<_>>(),
        "descriptors_known": answers.keys.len(),
        "other_descriptors": with(json!({}), &answers.other_keys),
        "notes": answers.notes,
    });
    with(whole, &answers.changed)
}

fn of_domain(change: &DomainChange<'_>) -> Value {
    json!({
        "name": change.name,
        "change": change.kind.name(),
        "was": change.was,
        "effects": change.effects.iter().map(of_effect).collect::<Vec<_>>(),
    })
}

fn of_rule(report: &Report<'_>, change: &RuleChange<'_>) -> Value {
    let domain = change.new.or(change.old).map(|rule| &rule.domain);
    json!({
        "domain": domain,
        "change": change.kind.name(),
        "tend": direction(change.direction),
        "old": side(report.old, change.old),
        "new": side(report.new, change.new),
        "example": change.example,
        "met": change.is_met,
        "effects": change.effects.iter().map(of_effect).collect::<Vec<_>>(),
        "states": change.states.iter().map(of_state).collect::<Vec<_>>(),
    })
}

fn of_could_not_tell(report: &Report<'_>, unknown: &CouldNotTell<'_>) -> Value {
    let CouldNotTell { domain, old, new, why } = unknown;
    json!({ "domain": domain, "old": side(report.old, *old), "new": side(report.new, *new), "why": why })
}

fn side(side: &Side, rule: Option<&Rule>) -> Value {
    let Some(rule) = rule else { return Value::Null };
    let place = place(side, rule);
    json!({
        "path": rule.path,
        "file": place.map(|place| &*place.file),
        "line": place.map(|place| place.position.line),
        "column": place.map(|place| place.position.column),
    })
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Both => "both",
        Direction::Neither => "neither",
        one => one.name(),
    }
}

fn of_effect(effect: &Effect<'_>) -> Value {
    let limit = |limit: &Option<&Limit>| limit.map(limit_in_words);
    let (what, old, new) = match &effect.subject {
        Subject::Limit(old, new) => ("limit", json!(limit(old)), json!(limit(new))),
        Subject::Plan(_, old, new) => ("plan", json!(limit(old)), json!(limit(new))),
        Subject::Key(key, old, new) => (*key, json!(old), json!(new)),
        Subject::LostRows(rows) => ("lost_rows", json!(rows), Value::Null),
        Subject::Values(added, gone) => ("values", json!(gone), json!(added)),
        Subject::Met { old, new, .. } => ("met", json!(rule_in_words(*old)), json!(rule_in_words(*new))),
        Subject::Together { limit, is_replaced_now, .. } => {
            let (limit, replaced) = (json!(limit_in_words(limit)), json!("replaced"));
            let (old, new) = if *is_replaced_now { (limit, replaced) } else { (replaced, limit) };
            ("together", old, new)
        }
        Subject::MoreExamples(more) => ("more_examples", Value::Null, json!(more)),
    };
    let mut document = json!({ "what": what, "tend": direction(effect.direction), "old": old, "new": new });
    if let Subject::Met { example, .. } | Subject::Together { example, .. } = &effect.subject {
        document["example"] = json!(example);
    }
    if let Subject::Plan(plan, ..) = &effect.subject {
        document["plan"] = json!(plan);
    }
    document
}

fn of_state(change: &StateChange<'_>) -> Value {
    let causes = match &change.fate {
        Fate::Forgotten(causes) => causes.iter().map(|cause| cause.name()).collect(),
        _ => Vec::new(),
    };
    let mut document = json!({ "limit": limit_in_words(change.limit), "fate": change.fate.name(), "causes": causes });
    if let Some(plan) = change.plan {
        document["plan"] = json!(plan);
    }
    document
}
