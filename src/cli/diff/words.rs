//! A comparison in words, for both formats for people.

use weir_engine::words::counted;
use weir_engine::{Limit, Rule};
use weir_lab::comparison::answers::{Changed, MetRules};
use weir_lab::comparison::{
    CouldNotTell, Direction, DomainChange, Effect, Fate, Kind, RuleChange, StateChange, Subject,
};
use weir_policies::Location;
use weir_text::amount;

use super::{Report, Side};
use crate::check::limit_in_words;

pub(super) struct RuleWords {
    pub(super) domain: String,
    pub(super) kind: &'static str,
    /// Its path, or both paths if it was renamed.
    pub(super) rule: String,
    pub(super) place: Option<Location>,
    pub(super) direction: &'static str,
    /// The differences: old and new.
    pub(super) lines: Vec<ChangeLine>,
    pub(super) states: Vec<String>,
}

pub(super) enum ChangeLine {
    Gone(String),
    New(String),
    Note(String),
}

impl Report<'_> {
    pub(super) fn rules(&self) -> Vec<RuleWords> {
        self.comparison.rules.iter().map(|change| self.rule(change)).collect()
    }

    fn rule(&self, change: &RuleChange<'_>) -> RuleWords {
        // The changed rule, and whether it is the removed one.
        let is_gone = change.kind == Kind::Removed || change.new.is_none();
        let (own, side) = if is_gone { (change.old, self.old) } else { (change.new, self.new) };
        let mut lines: Vec<ChangeLine> = change.effects.iter().flat_map(lines).collect();
        lines.extend(context(change));
        lines.extend(change.example.as_ref().map(|example| ChangeLine::Note(met(example, change.old, change.new))));
        RuleWords {
            domain: own.map_or_else(String::new, |rule| rule.domain.to_string()),
            kind: change.kind.name(),
            rule: named(change),
            place: own.and_then(|rule| place(side, rule)).cloned(),
            direction: change.direction.name(),
            lines,
            states: change.states.iter().map(state).collect(),
        }
    }

    pub(super) fn summary(&self) -> String {
        let all = self.comparison;
        let unknown = match all.unknown.len() {
            0 => String::new(),
            number => format!("could not tell in {}", counted(number, "case")),
        };
        if all.is_empty() {
            let rules = counted(all.same, "rule");
            return match unknown.is_empty() {
                true => format!("no change in {rules}"),
                false => format!("{unknown}; no other change in {rules}"),
            };
        }
        let kinds = [Kind::Added, Kind::Removed, Kind::Changed, Kind::Renamed, Kind::Moved];
        let of_kinds = kinds.map(|kind| (all.of_kind(kind), kind.name()));
        let of_tends =
            [Direction::Stricter, Direction::Looser].map(|direction| (all.with_direction(direction), direction.name()));
        let numbered = |(number, word): &(usize, &str)| (*number > 0).then(|| format!("{number} {word}"));
        let mut parts: Vec<String> = of_kinds.iter().chain(&of_tends).filter_map(numbered).collect();
        if all.forgetting() > 0 {
            parts.push(format!("states of {} forgotten", counted(all.forgetting(), "change")));
        }
        if all.lost_rows > 0 {
            parts.push(format!("{} without effect now", counted(all.lost_rows, "row")));
        }
        if !all.domains.is_empty() {
            parts.push(counted(all.domains.len(), "domain"));
        }
        if !unknown.is_empty() {
            parts.push(unknown);
        }
        format!("{}; {} as before", parts.join(", "), counted(all.same, "rule"))
    }
}

pub(super) fn place<'s>(side: &'s Side, rule: &Rule) -> Option<&'s Location> {
    side.places.get(rule.id as usize)
}

/// The path of a rule. Both paths if it was renamed, or if its descriptors match another rule now.
fn named(change: &RuleChange<'_>) -> String {
    let path = |rule: Option<&Rule>| rule.map_or_else(|| "no rule".to_owned(), |rule| rule.path.to_string());
    match change.kind {
        Kind::Added | Kind::Changed => path(change.new),
        Kind::Removed => path(change.old),
        Kind::Renamed | Kind::Moved => format!("{} -> {}", path(change.old), path(change.new)),
    }
}

/// A descriptor with its old and new limits, if they differ: `for example a=/c: 10 per minute -> 100 per minute`.
fn met(example: &str, old: Option<&Rule>, new: Option<&Rule>) -> String {
    // Another unit shows the same hits as another amount.
    let numbers = |rule: &Rule| {
        let of_limit = |limit: &Limit| (limit.requests(), limit.window(), limit.algorithm().counts_permits());
        rule.limits.iter().map(of_limit).collect::<Vec<_>>()
    };
    let has_same_numbers =
        old.zip(new).is_some_and(|(old, new)| old.unlimited == new.unlimited && numbers(old) == numbers(new));
    let (old, new) = (rule_in_words(old), rule_in_words(new));
    if has_same_numbers || old == new {
        format!("for example {example}")
    } else {
        format!("for example {example}: {old} -> {new}")
    }
}

pub(super) fn rule_in_words(rule: Option<&Rule>) -> String {
    match rule {
        None => "no limit".to_owned(),
        Some(rule) if rule.unlimited => "unlimited".to_owned(),
        Some(rule) => rule.limits.iter().map(amount).collect::<Vec<_>>().join(" and "),
    }
}

/// The rule that the descriptors of a new rule matched before, or that those of a removed rule match now.
fn context(change: &RuleChange<'_>) -> Option<ChangeLine> {
    let text = match (change.kind, change.old, change.new) {
        (Kind::Added | Kind::Removed, ..) if !change.is_met => "no request can match it".to_owned(),
        (_, Some(_), Some(_)) if !change.is_met => "no request matches it, before and now".to_owned(),
        (Kind::Added, Some(old), _) => format!("before, these descriptors matched {}", old.path),
        (Kind::Added, None, _) => "before, these descriptors matched no rule and passed".to_owned(),
        (Kind::Removed, _, Some(new)) => format!("now these descriptors match {}", new.path),
        (Kind::Removed, _, None) => "now these descriptors match no rule and pass".to_owned(),
        _ => return None,
    };
    Some(ChangeLine::Note(text))
}

pub(super) fn lines(effect: &Effect<'_>) -> Vec<ChangeLine> {
    // If the unit changes too, only the hits show which of two limits is larger.
    let has_other_unit = match &effect.subject {
        Subject::Limit(old, new) | Subject::Plan(_, old, new) => {
            old.zip(*new).is_some_and(|(old, new)| old.amount != new.amount)
        }
        _ => false,
    };
    let limit = |limit: &Option<&Limit>| {
        let words = limit.map(limit_in_words)?;
        let hits = limit.filter(|_| has_other_unit).map(|limit| format!(", {}", counted(limit.requests(), "hit")));
        Some(words + &hits.unwrap_or_default())
    };
    match &effect.subject {
        Subject::Limit(old, new) => {
            limit(old).map(ChangeLine::Gone).into_iter().chain(limit(new).map(ChangeLine::New)).collect()
        }
        Subject::Plan(plan, old, new) => {
            let of_plan = |limit: String| format!("plan {plan}: {limit}");
            let gone = limit(old).map(of_plan).map(ChangeLine::Gone);
            gone.into_iter().chain(limit(new).map(of_plan).map(ChangeLine::New)).collect()
        }
        Subject::Key(key, old, new) => vec![ChangeLine::Note(format!("{key}: {old} -> {new}"))],
        Subject::LostRows(rows) => {
            vec![ChangeLine::Note(format!("{} without effect now: the default plan applies", counted(*rows, "row")))]
        }
        Subject::Values(added, gone) => {
            let mut lines = Vec::new();
            if !gone.is_empty() {
                lines.push(ChangeLine::Gone(format!("values {}", gone.join(", "))));
            }
            if !added.is_empty() {
                lines.push(ChangeLine::New(format!("values {}", added.join(", "))));
            }
            lines
        }
        Subject::Met { example, old, new } => vec![ChangeLine::Note(met(example, *old, *new))],
        Subject::Together { example, limit, is_replaced_now } => {
            let limit = amount(limit);
            let text = match is_replaced_now {
                true => format!("for example {example} in one request: {limit} -> replaced"),
                false => format!("for example {example} in one request: replaced -> {limit}"),
            };
            vec![ChangeLine::Note(text)]
        }
        Subject::MoreExamples(more) => vec![ChangeLine::Note(format!("and {}", counted(*more, "more example")))],
    }
}

/// Whether the states of a limit are kept or forgotten.
fn state(change: &StateChange<'_>) -> String {
    let what = match &change.fate {
        Fate::Kept => "kept: used hits count".to_owned(),
        Fate::Rescaled => "rescaled: used hits count, and drain at the new rate".to_owned(),
        Fate::Moved => "moved: used hits count, but with redis.per_second.url it begins empty".to_owned(),
        Fate::Forgotten(causes) => {
            let causes: Vec<_> = causes.iter().map(|cause| cause.name()).collect();
            format!("forgotten ({})", causes.join(", "))
        }
        Fate::Empty => "begins empty".to_owned(),
    };
    let plan = change.plan.map(|plan| format!("plan {plan}: ")).unwrap_or_default();
    format!("{plan}{}: {what}", amount(change.limit))
}

/// An unknown effect: the domain, the rule, its place, and the reason.
pub(super) struct CouldNotTellWords {
    pub(super) domain: String,
    pub(super) rule: String,
    pub(super) place: Option<Location>,
    pub(super) why: String,
}

impl Report<'_> {
    pub(super) fn could_not_tell_cases(&self) -> Vec<CouldNotTellWords> {
        let words = |CouldNotTell { domain, old, new, why }: &CouldNotTell<'_>| {
            let own = new.map(|rule| (rule, self.new)).or(old.map(|rule| (rule, self.old)));
            CouldNotTellWords {
                domain: (*domain).to_owned(),
                rule: own.map_or_else(|| "no rule".to_owned(), |(rule, _)| rule.path.to_string()),
                place: own.and_then(|(rule, side)| place(side, rule)).cloned(),
                why: why.clone(),
            }
        };
        self.comparison.unknown.iter().map(words).collect()
    }
}

/// A changed domain: the kind of change, and the differences.
pub(super) fn of_domain(change: &DomainChange<'_>) -> (String, Vec<ChangeLine>) {
    let name = match change.was {
        Some(was) => format!("{was} -> {}", change.name),
        None => change.name.to_owned(),
    };
    (name, change.effects.iter().flat_map(lines).collect())
}

pub(super) const KEYS_SHOWN: usize = 10;

/// Changed answers of a rule or descriptor: how many requests now pass, are denied, or get an error.
pub(super) struct AnswerWords {
    pub(super) domain: String,
    pub(super) what: String,
    pub(super) changed: Changed,
}

impl Report<'_> {
    pub(super) fn traffic_summary(&self) -> Option<String> {
        let answers = self.answers?;
        let requests = counted(answers.requests, "request");
        let Changed { now_denied, now_passed, errors } = answers.changed;
        let mut text = format!("traffic {}: {requests}", answers.traffic);
        if answers.refused > 0 {
            text.push_str(&format!(", {} refused by any server", answers.refused));
        }
        if answers.changed.all() == 0 {
            text.push_str("; no answer changes");
            return Some(text);
        }
        text.push_str(&format!("; {now_denied} denied now that passed, {now_passed} pass now that were denied"));
        if errors > 0 {
            text.push_str(&format!(", {errors} with an error on one side"));
        }
        Some(text)
    }

    pub(super) fn changed_answers(&self) -> (Vec<AnswerWords>, Vec<AnswerWords>) {
        let Some(answers) = self.answers else { return (Vec::new(), Vec::new()) };
        let path = |path: &Option<String>| path.clone().unwrap_or_else(|| "no rule".to_owned());
        let of_rule = |(met, changed): &(MetRules, Changed)| {
            let what =
                if met.old == met.new { path(&met.new) } else { format!("{} -> {}", path(&met.old), path(&met.new)) };
            AnswerWords { domain: met.domain.clone(), what, changed: *changed }
        };
        let of_key = |(domain, key, changed): &(String, String, Changed)| AnswerWords {
            domain: domain.clone(),
            what: key.clone(),
            changed: *changed,
        };
        let keys = answers.keys.iter().take(KEYS_SHOWN).map(of_key).collect();
        (answers.rules.iter().map(of_rule).collect(), keys)
    }
}
