//! Finds a descriptor that matches values before a wider one, but lacks a limit that is nested in the wider one. Finds a rule that
//! does not weigh, beside one that does.
//!
//! weir never goes back to another branch [mt-1]: a new `plan=gold` also matches (plan=gold, op=x), so the limit of
//! `op` below `plan` no longer applies to it. If only `plan` weighs by `model`, (plan=gold, model=x) is one level deeper than
//! the rule of `plan=gold` [mt-13]. The example in each warning was matched against the policies.

use std::collections::{BTreeMap, BTreeSet};

use weir_engine::Matcher;
use weir_engine::descriptor::Entry;
use weir_engine::policy::Place;
use weir_text::escaped;

use super::super::{Code, Outline};
use super::{Findings, has_limit, kind};

/// A limit of the wider descriptor or below it, with the entries that lead to it.
struct Missing<'o> {
    limit: &'o Outline,
    entries: Vec<(&'o str, String)>,
    /// The key of the last entry, if the limit applies only because its rule weighs by the entry.
    weighed: Option<&'o str>,
}

impl<'l> Findings<'l> {
    pub(super) fn hides_below(&mut self, level: &[&Outline], place: Place<'l>) {
        let mut by_key: BTreeMap<&str, Vec<&Outline>> = BTreeMap::new();
        for outline in level {
            by_key.entry(&outline.key).or_default().push(outline);
        }
        for of_key in by_key.values().filter(|of_key| of_key.len() > 1) {
            let mut is_told = vec![false; of_key.len()];
            self.weighed_beside(of_key, &mut is_told, place);
            for wide in of_key.iter().filter(|outline| outline.descriptors.iter().any(has_limit)) {
                for (narrow, value) in self.takers(wide, of_key, place) {
                    if !is_told[narrow] {
                        is_told[narrow] = self.hides_of(wide, of_key[narrow], &value, place);
                    }
                }
            }
        }
    }

    /// The indices of the descriptors that match values of another one first, each with such a value.
    fn takers(&mut self, wide: &Outline, of_key: &[&Outline], place: Place<'l>) -> Vec<(usize, String)> {
        let mut takers = Vec::new();
        if !self.compare(of_key.len()) {
            return takers;
        }
        let has = |value: &str| wide.value.as_ref().is_none_or(|matcher| matcher.matches(value));
        for (number, narrow) in of_key.iter().enumerate().filter(|(_, narrow)| !std::ptr::eq(**narrow, wide)) {
            if narrow.value.is_some() && has_limit(narrow) {
                takers.extend(self.value_of(narrow, place).filter(|value| has(value)).map(|value| (number, value)));
            }
        }
        if matches!(&wide.value, Some(Matcher::Regex(_)))
            || matches!(&wide.value, Some(Matcher::Text(text)) if text.contains('*'))
        {
            let valued: Vec<(usize, &Matcher)> =
                of_key.iter().enumerate().filter_map(|(number, it)| Some((number, it.value.as_ref()?))).collect();
            let matchers: Vec<&Matcher> = valued.iter().map(|(_, matcher)| *matcher).collect();
            let which = valued.iter().position(|(number, _)| std::ptr::eq(of_key[*number], wide));
            let taken = which.and_then(|which| self.taken(&matchers, which));
            let by = taken.into_iter().flat_map(|taken| taken.by);
            // Requests do not send the text of a wildcard as a value.
            takers.extend(by.filter(|(_, value)| !value.contains('*')).map(|(at, value)| (valued[at].0, value)));
        }
        takers
    }

    /// Warns if a value that both match has a limit below `wide` and none below `narrow`.
    fn hides_of(&mut self, wide: &Outline, narrow: &Outline, value: &str, place: Place<'l>) -> bool {
        let entry = Entry { key: &narrow.key, value };
        let (Some(of_wide), Some(met)) = (place.descriptor(&wide.key, wide.value.as_ref()), place.child(entry)) else {
            return false;
        };
        let is_narrow = place.descriptor(&narrow.key, narrow.value.as_ref()).map(Place::address) == Some(met.address());
        if !is_narrow || !has_limit(narrow) || self.rule(narrow).is_some_and(|rule| rule.unlimited) {
            return false;
        }
        let Some(missing) = self.missing(&wide.descriptors, of_wide, Some(met)) else { return false };
        self.warn_of_missing(narrow, value, wide, &missing);
        true
    }

    /// Warns about rules beside one that weighs, if they do not weigh by its entry.
    fn weighed_beside(&mut self, of_key: &[&Outline], is_told: &mut [bool], place: Place<'l>) {
        let mut known = BTreeSet::new();
        for wide in of_key {
            let Some(weigh) = self.rule(wide).and_then(|rule| rule.weigh.as_deref()) else { continue };
            if !known.insert(&*weigh.entry) || !self.compare(of_key.len()) {
                continue;
            }
            for (narrow, is_told) in of_key.iter().zip(&mut *is_told).filter(|(_, is_told)| !**is_told) {
                let Some(value) = self.value_of(narrow, place) else { continue };
                let met = place.child(Entry { key: &narrow.key, value: &value });
                if let Some(missing) = self.unweighed(wide, met) {
                    self.warn_of_missing(narrow, &value, wide, &missing);
                    *is_told = true;
                }
            }
        }
    }

    fn warn_of_missing(&mut self, narrow: &Outline, value: &str, wide: &Outline, missing: &Missing<'_>) {
        let Missing { limit, entries, weighed } = missing;
        let below: String =
            entries.iter().map(|(key, value)| format!(", {}={}", escaped(key), escaped(value))).collect();
        self.add(&narrow.note.place(), Code::HidesBelow, || {
            let (key, value, place) = (escaped(&narrow.key), escaped(value), limit.note.place());
            let why = match weighed {
                Some(entry) => format!("only the rule at {place} weighs by {}", escaped(entry)),
                None => format!("the limit at {place} is below the {} at {}", kind(wide), wide.note.place()),
            };
            format!("({key}={value}{below}) has no limit here, because {why}")
        });
    }

    /// The first limit below one place that is missing below another.
    fn missing<'o>(&mut self, below: &'o [Outline], wide: Place<'l>, narrow: Option<Place<'l>>) -> Option<Missing<'o>>
    where
        'l: 'o,
    {
        for outline in below.iter().filter(|outline| has_limit(outline)) {
            if !self.compare(1) {
                return None;
            }
            let Some(value) = self.value_of(outline, wide) else { continue };
            let entry = Entry { key: &outline.key, value: &value };
            let (Some(wide), narrow) = (wide.child(entry), narrow.and_then(|narrow| narrow.child(entry))) else {
                continue;
            };
            let limits = self.rule(outline).is_some_and(|rule| !rule.unlimited);
            if limits && narrow.and_then(Place::rule).is_none() {
                return Some(Missing { limit: outline, entries: vec![(&outline.key, value)], weighed: None });
            }
            let missing = match self.unweighed(outline, narrow) {
                None => self.missing(&outline.descriptors, wide, narrow),
                found => found,
            };
            if let Some(mut missing) = missing {
                missing.entries.insert(0, (&outline.key, value));
                return Some(missing);
            }
        }
        None
    }

    /// The entry by which the rule of the wider descriptor weighs, if the rule of the narrower one does not, and has no limit for it.
    fn unweighed<'o>(&self, wide: &'o Outline, narrow: Option<Place<'l>>) -> Option<Missing<'o>>
    where
        'l: 'o,
    {
        let weigh = self.rule(wide)?.weigh.as_deref()?;
        let narrow = narrow?;
        let rule = &self.policies.rules()[narrow.rule()? as usize];
        let weighs_too = rule.weigh.as_deref().is_some_and(|other| other.entry == weigh.entry);
        if rule.unlimited || weighs_too {
            return None;
        }
        let is_free = |value: &&str| {
            let met = narrow.child(Entry { key: &weigh.entry, value });
            met.is_none_or(|met| met.rule().is_none())
        };
        let value = weigh.values().filter(is_free).min().or_else(|| Some("x").filter(is_free))?;
        let entries = vec![(&*weigh.entry, value.to_owned())];
        Some(Missing { limit: wide, entries, weighed: Some(&weigh.entry) })
    }

    /// The descriptor that a value of another one meets once that one is removed, and such a value. None if nothing limits it then.
    pub(super) fn wider<'o>(
        &mut self,
        outline: &Outline,
        wide: &[&'o Outline],
        place: Place<'l>,
    ) -> Option<(&'o Outline, String)> {
        if wide.is_empty() || !self.compare(wide.len()) {
            return None;
        }
        let value = self.value_of(outline, place)?;
        let is_met = |other: &&Outline| {
            other.key == outline.key
                && !std::ptr::eq(*other, outline)
                && other.value.as_ref().is_none_or(|matcher| matcher.matches(&value))
        };
        let wider = *wide.iter().find(|other| is_met(other))?;
        let is_unlimited = self.rule(wider).is_some_and(|rule| rule.unlimited);
        (has_limit(wider) && !is_unlimited).then_some((wider, value))
    }

    /// A value that matches a descriptor, if one was found.
    fn value_of(&mut self, outline: &Outline, place: Place<'l>) -> Option<String> {
        let own = place.descriptor(&outline.key, outline.value.as_ref())?.address();
        let tried = match &outline.value {
            None => vec!["x".to_owned(), "other".to_owned(), "1".to_owned()],
            Some(Matcher::Text(text)) => vec![text.replace('*', "x"), text.replace('*', "")],
            Some(Matcher::List(values)) => values.iter().take(1).map(ToString::to_string).collect(),
            Some(Matcher::Networks(networks)) => networks.iter().take(1).map(ToString::to_string).collect(),
            Some(regex @ Matcher::Regex(_)) => self.taken(&[regex], 0)?.own.into_iter().collect(),
        };
        let is_met =
            |value: &String| place.child(Entry { key: &outline.key, value }).is_some_and(|met| met.address() == own);
        tried.into_iter().find(is_met)
    }
}

/// The descriptors of a level that can match values of others, in the order in which weir tries them. [mt-2]
pub(super) fn wide_of<'o>(level: &[&'o Outline]) -> Vec<&'o Outline> {
    let rank = |outline: &Outline| match &outline.value {
        Some(Matcher::Networks(_)) => Some(0),
        Some(Matcher::Regex(_)) => Some(1),
        Some(Matcher::Text(text)) if text.contains('*') => Some(1),
        None => Some(2),
        Some(Matcher::Text(_) | Matcher::List(_)) => None,
    };
    let mut wide: Vec<(i32, &Outline)> = level.iter().filter_map(|outline| Some((rank(outline)?, *outline))).collect();
    wide.sort_by_key(|(rank, _)| *rank);
    wide.into_iter().map(|(_, outline)| outline).collect()
}
