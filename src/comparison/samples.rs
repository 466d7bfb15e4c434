//! Descriptors that meet a rule, by which the engine is asked what they meet in other policies.

use std::fmt;

use regex_syntax::hir::{Class, Hir, HirKind};

use crate::engine::descriptor::spell_pairs;
use crate::engine::policy::Level;
use crate::engine::{Entry, Matcher, PolicySet, Rule};

/// Texts for what may be any text. None of them is likely to be a value of a policy.
const FILLERS: [&str; 3] = ["x", "", "any-other"];
/// How often what may repeat is repeated where a regular expression says at least how often.
const REPEATED_MAX: u32 = 1_024;

/// A descriptor.
pub(super) struct Sample(Vec<(String, String)>);

impl Sample {
    /// The rule that it meets.
    pub(super) fn met<'p>(&self, set: &'p PolicySet, domain: &str) -> Option<&'p Rule> {
        let entries: Vec<Entry<'_>> = self.0.iter().map(|(key, value)| Entry { key, value }).collect();
        set.find(set.domain(domain)?, &entries).rule
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&spell_pairs(&self.0))
    }
}

/// A descriptor that meets the rule of this set; none if none was found.
pub(super) fn sample(set: &PolicySet, rule: &Rule) -> Option<Sample> {
    let of = |filler| Some(Sample(rule.levels.iter().map(|level| entry(level, filler)).collect::<Option<_>>()?));
    let mut samples = FILLERS.into_iter().filter_map(of);
    samples.find(|sample| sample.met(set, &rule.domain).is_some_and(|met| met.id == rule.id))
}

/// A descriptor of the rule with this value at one level.
pub(super) fn with_value(rule: &Rule, number: usize, value: &str) -> Option<Sample> {
    let mut entries: Vec<(String, String)> =
        rule.levels.iter().map(|level| entry(level, FILLERS[0])).collect::<Option<_>>()?;
    value.clone_into(&mut entries.get_mut(number)?.1);
    Some(Sample(entries))
}

/// An entry that a level is for.
fn entry(level: &Level, filler: &str) -> Option<(String, String)> {
    let value = match &level.value {
        None => filler.to_owned(),
        Some(Matcher::Text(text)) => text.replace('*', filler),
        Some(Matcher::List(values)) => values.first()?.to_string(),
        Some(Matcher::Networks(networks)) => networks.first()?.to_string(),
        Some(Matcher::Regex(regex)) => {
            let mut text = String::new();
            write_match(&regex_syntax::parse(regex.as_str()).ok()?, &mut text)?;
            text
        }
    };
    Some((level.key.replace('*', filler), value))
}

/// Adds a text that the expression matches; none where it matches none.
fn write_match(hir: &Hir, text: &mut String) -> Option<()> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Some(()),
        HirKind::Literal(literal) => {
            text.push_str(std::str::from_utf8(&literal.0).ok()?);
            Some(())
        }
        HirKind::Class(class) => {
            text.push(of_class(class)?);
            Some(())
        }
        HirKind::Repetition(repetition) => {
            let times = repetition.min.min(REPEATED_MAX);
            (0..times).try_for_each(|_| write_match(&repetition.sub, text))
        }
        HirKind::Capture(capture) => write_match(&capture.sub, text),
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| write_match(part, text)),
        HirKind::Alternation(parts) => write_match(parts.first()?, text),
    }
}

/// A character of the class, a letter or a digit if it has one.
fn of_class(class: &Class) -> Option<char> {
    let Class::Unicode(class) = class else { return None };
    let has = |c: &char| class.ranges().iter().any(|range| (range.start()..=range.end()).contains(c));
    let plain = ('a'..='z').chain('0'..='9').chain('A'..='Z').find(has);
    plain.or_else(|| Some(class.ranges().first()?.start()))
}
