//! The warnings of `weir check`: probable mistakes in valid policies, which no load looks for.
//!
//! The time of a comparison grows with the square of the compared items, so all comparisons together have a bound. Not here:
//! warnings about the form of a file, which a load finds (reader.rs), and about weights (heavy.rs).

mod alike;
mod below;
mod buckets;
mod denies;
mod hidden;
mod leases;
mod terms;
mod texts;

use std::collections::{BTreeMap, HashMap, HashSet};

use alike::{Words, alike};
use below::wide_of;
use weir_classes::{Budget, GivenUp, Taken, taken};
use weir_engine::policy::Place;
use weir_engine::weigh::Weigh;
use weir_engine::{Matcher, Mode, PolicySet, Role, Rule};
use weir_text::{escaped, nearest};

use super::allowed::Allowed;
use super::{Code, Loaded, Location, Outline, WARNINGS_MAX, Warning};

/// The most comparisons of descriptors, and of keys and domains, in all policies together.
const COMPARISONS_MAX: usize = 4_000_000;
/// The most steps of walks through patterns, in all policies together and for one question. See [`weir_classes`].
const STEPS_MAX: u64 = 10_000_000;
const STEPS_OF_ONE_MAX: u64 = 2_000_000;
/// The most limit names that one missing name is compared with, and the most missing names.
const NAMES_MAX: usize = 1_000;

/// Adds the warnings of `weir check`, without those that need the settings.
pub fn check_warnings(loaded: &mut Loaded) {
    check_warnings_with(loaded, None);
}

/// Adds the warnings of `weir check`, for a server with this `response.delay_header`.
pub fn check_warnings_with(loaded: &mut Loaded, delay_header: Option<bool>) {
    let mut found = Findings {
        delay_header,
        policies: &loaded.policies,
        is_compatible: loaded.dialect.compatible,
        allowed: &mut loaded.allowed,
        warnings: Vec::new(),
        more: 0,
        comparisons_left: COMPARISONS_MAX,
        steps_left: STEPS_MAX,
        is_whole: true,
    };
    let mut names: BTreeMap<&str, &Location> = BTreeMap::new();
    // A domain can be spread over several files.
    let mut by_name: BTreeMap<&str, Vec<&Outline>> = BTreeMap::new();
    for domain in &loaded.domains {
        found.odd_text(&domain.place, "domain", &domain.name);
        names.entry(&domain.name).or_insert(&domain.place);
        by_name.entry(&domain.name).or_default().extend(&domain.descriptors);
    }
    for (name, descriptors) in by_name {
        found.domain(name, &descriptors);
    }
    found.alike_domains(&names);
    for unmet in loaded.overlays.iter().flat_map(|used| &used.unmet) {
        found.add(&unmet.place, Code::UnmetOverlay, || unmet.message());
    }
    found.allows_nothing();
    let Findings { mut warnings, more, .. } = found;
    warnings.sort_by(|one, other| (&one.file, one.position).cmp(&(&other.file, other.position)));
    for warning in warnings {
        loaded.warnings.push(warning);
    }
    loaded.warnings.count_more(more);
}

struct Findings<'l> {
    /// The server's `response.delay_header`, if it is known.
    delay_header: Option<bool>,
    policies: &'l PolicySet,
    is_compatible: bool,
    allowed: &'l mut Allowed,
    warnings: Vec<Warning>,
    /// The number of warnings that were not kept.
    more: usize,
    comparisons_left: usize,
    steps_left: u64,
    /// Whether all searches finished within their bounds.
    is_whole: bool,
}

impl<'l> Findings<'l> {
    /// Adds a warning unless the policies allow it: the finding, then the advice.
    fn add(&mut self, place: &Location, code: Code, what: impl FnOnce() -> String) {
        if self.allowed.has(place, code) {
            return;
        }
        if self.warnings.len() < WARNINGS_MAX {
            let message = format!("{}: {}", what(), code.advice());
            self.warnings.push(Warning::at(place, code, message));
        } else {
            self.more += 1;
        }
    }

    fn rule(&self, outline: &Outline) -> Option<&'l Rule> {
        outline.note.rule.and_then(|id| self.policies.rules().get(id as usize))
    }

    /// Searches patterns with a budget. None if the search takes too many steps.
    fn within<T>(&mut self, ask: impl FnOnce(&mut Budget) -> Result<T, GivenUp>) -> Option<T> {
        let most = STEPS_OF_ONE_MAX.min(self.steps_left);
        let mut budget = Budget::of(most);
        let answer = ask(&mut budget).ok();
        self.steps_left -= most - budget.left();
        self.is_whole &= answer.is_some();
        answer
    }

    /// Which matchers match values of another matcher first. None if the budget is used up.
    fn taken(&mut self, matchers: &[&Matcher], which: usize) -> Option<Taken> {
        self.within(|budget| taken(matchers, which, budget))
    }

    /// Subtracts from the remaining comparisons. False if there are too few.
    fn compare(&mut self, count: usize) -> bool {
        let left = self.comparisons_left.checked_sub(count);
        self.comparisons_left = left.unwrap_or(0);
        self.is_whole &= left.is_some();
        left.is_some()
    }

    fn allows_nothing(&mut self) {
        // After an incomplete search, a warning that was not found may still apply.
        let was_sought = |code: Code| {
            let of_searches =
                [Code::NeverMet, Code::MatchesNothing, Code::HidesBelow, Code::AlikeKey, Code::AlikeDomain];
            let is_known = self.delay_header.is_some() || code != Code::NoDelayHeader;
            is_known && (self.is_whole || !of_searches.contains(&code))
        };
        let unmet: Vec<_> = self.allowed.unmet().into_iter().filter(|(code, _)| was_sought(*code)).collect();
        for (code, place) in unmet {
            self.add(&place, Code::AllowsNothing, || format!("there is no warning {} here", code.name()));
        }
    }

    fn domain(&mut self, name: &str, descriptors: &[&Outline]) {
        let mut all = Vec::new();
        descriptors.iter().for_each(|outline| collect(outline, &mut all));
        let replaced = self.names_replaced(&all);
        self.alike_keys(&all);
        let domain = self.policies.domain(name);
        let mode = domain.and_then(|domain| domain.mode);
        for outline in &all {
            self.key_as_text(outline);
            self.values_as_text(outline);
            if let Some(rule) = self.rule(outline) {
                self.factors_as_text(outline, rule);
                self.small_amounts(outline, rule);
                self.reason(outline, rule);
                self.term_gap(outline, rule);
                self.same_plans(outline, rule);
                self.leases(outline, rule, &replaced);
                if !self.is_compatible {
                    self.buckets(outline, rule);
                }
                // The other limits do not count a request that one limit denies. A row can have any numbers.
                if rule.rows.is_none() && mode != Some(Mode::Independent) && rule.role == Role::Enforced {
                    self.never_denies(outline, rule, &replaced);
                }
            }
        }
        if let Some(domain) = domain {
            self.level(descriptors, domain.top());
        }
    }

    fn level(&mut self, descriptors: &[&Outline], place: Place<'l>) {
        self.never_met(descriptors, place);
        self.hides_below(descriptors, place);
        let mut wide: Option<Vec<&Outline>> = None;
        for outline in descriptors {
            if has_limit(outline) {
                if let Some(place) = place.descriptor(&outline.key, outline.value.as_ref()) {
                    self.level(&outline.descriptors.iter().collect::<Vec<_>>(), place);
                }
            } else if !outline.note.has_empty_limit {
                let wide = wide.get_or_insert_with(|| wide_of(descriptors));
                let wider = self.wider(outline, wide, place);
                self.add(&outline.note.place(), Code::NoLimit, || {
                    let wider = wider.map_or_else(String::new, |(wider, value)| {
                        let (key, value) = (escaped(&outline.key), escaped(&value));
                        format!("; without it the {} at {} limits {key}={value}", kind(wider), wider.note.place())
                    });
                    format!("no limit here and below, so this limits nothing{wider}")
                });
            }
        }
    }

    /// Finds names in `replaces` that no limit has. Returns all names in `replaces`.
    fn names_replaced(&mut self, all: &[&Outline]) -> HashSet<&'l str> {
        let mut names = HashSet::new();
        let mut replaced = HashSet::new();
        for rule in all.iter().filter_map(|outline| self.rule(outline)) {
            names.extend(rule.limits.iter().filter_map(|limit| limit.name.as_deref()));
            replaced.extend(rule.replaces.iter().map(|name| &**name));
        }
        if replaced.is_subset(&names) {
            return replaced;
        }
        let mut known: Vec<&str> = names.iter().copied().collect();
        known.sort_unstable();
        known.truncate(NAMES_MAX);
        let mut hints_left = NAMES_MAX;
        for outline in all {
            let replaces = self.rule(outline).map_or(&[][..], |rule| &rule.replaces);
            for name in replaces.iter().filter(|name| !names.contains(&***name)) {
                hints_left = hints_left.saturating_sub(1);
                let near = if hints_left > 0 { nearest(name, known.iter().copied()) } else { None };
                let hint = near.map_or_else(String::new, |near| format!(", did you mean {near:?}?"));
                self.add(&outline.note.place(), Code::ReplacesNothing, || {
                    format!("replaces {name:?}, and no limit of the domain has that name{hint}")
                });
            }
        }
        replaced
    }

    /// Warns about characters that look as others do.
    fn odd_text(&mut self, place: &Location, what: &str, text: &str) {
        if let Some(odd) = texts::odd_character(text) {
            self.add(place, Code::OddCharacter, || format!("the {what} {text:?} has {odd}"));
        } else if texts::has_outer_blank(text) {
            self.add(place, Code::OuterBlank, || format!("the {what} {text:?} begins or ends with a blank"));
        }
    }

    fn key_as_text(&mut self, outline: &Outline) {
        let key = &*outline.key;
        self.odd_text(&outline.note.place(), "key", key);
        if let Some((name, value)) = key.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty()) {
            self.add(&outline.note.place(), Code::KeyWithValue, || {
                format!("the whole text {key:?} is the key, and not {name:?} with the value {value:?}")
            });
        }
        if key.contains('*') && !self.is_compatible {
            self.add(&outline.note.place(), Code::StarInKey, || {
                format!("the * in the key {key:?} is compared as it is, and is a pattern only in envoyproxy/ratelimit")
            });
        }
    }

    fn values_as_text(&mut self, outline: &Outline) {
        if let Some(Matcher::Regex(regex)) = &outline.value {
            self.odd_text(&outline.note.place(), "regular expression", regex.as_str());
            let own = outline.value.as_ref().filter(|_| texts::looks_like_prefix(regex.as_str()));
            let example = own.and_then(|matcher| self.taken(&[matcher], 0)?.own);
            let longer = example.as_ref().map(|example| texts::longer(example));
            if let (Some(example), Some(longer)) = (example, longer.filter(|longer| !regex.matches(longer))) {
                self.add(&outline.note.place(), Code::LooksLikePrefix, || {
                    format!("the whole value must match, so {example:?} matches and {longer:?} does not")
                });
            }
        }
        let texts = match &outline.value {
            Some(Matcher::Text(text)) => std::slice::from_ref(text),
            Some(Matcher::List(values)) => values,
            _ => return,
        };
        let is_odd = |text: &str| texts::odd_character(text).is_some() || texts::has_outer_blank(text);
        if let Some(text) = texts.iter().find(|text| is_odd(text)) {
            self.odd_text(&outline.note.place(), "value", text);
        }
        let network = texts.iter().find(|text| texts::looks_like_network(text));
        if let Some(text) = network.filter(|_| *outline.key != *texts::MASKED_ADDRESS) {
            self.add(&outline.note.place(), Code::LooksLikeNetwork, || {
                format!("{text:?} is compared as text, and no address equals it")
            });
        }
        if let Some(text) = texts.iter().find(|text| texts::looks_like_regex(text)) {
            self.add(&outline.note.place(), Code::LooksLikeRegex, || {
                format!("{text:?} is compared as text, in which only a * matches any text")
            });
        }
    }

    fn factors_as_text(&mut self, outline: &Outline, rule: &Rule) {
        let Some(weigh) = rule.weigh.as_deref() else { return };
        self.odd_text(&outline.note.place(), "entry of weigh", &weigh.entry);
        let is_odd = |text: &&str| texts::odd_character(text).is_some() || texts::has_outer_blank(text);
        if let Some(text) = weigh.values().filter(is_odd).min() {
            self.odd_text(&outline.note.place(), "value of weigh", text);
        }
    }

    /// A budget in dollars that was written as its hits admits almost nothing.
    fn small_amounts(&mut self, outline: &Outline, rule: &Rule) {
        for (number, limit) in (1..).zip(&rule.limits) {
            let Some(amount) = limit.amount.as_deref() else { continue };
            if (1..amount.scale()).contains(&limit.requests()) {
                self.add(&outline.note.place(), Code::SmallAmount, || {
                    format!("limit {number} is less than one unit: {}", amount.text(limit.requests()))
                });
            }
        }
    }

    fn reason(&mut self, outline: &Outline, rule: &Rule) {
        if outline.note.has_comment {
            return;
        }
        let mut warn = |what: String| {
            self.add(&outline.note.place(), Code::NoReason, || format!("{what}, and no comment says why"));
        };
        if rule.unlimited {
            warn("unlimited".to_owned());
        } else if rule.role == Role::Shadow {
            warn("in shadow mode".to_owned());
        } else {
            for (number, limit) in (1..).zip(&rule.limits).filter(|(_, limit)| limit.shadow) {
                let number = limit.name.as_ref().map_or_else(|| number.to_string(), |name| format!("{name:?}"));
                warn(format!("limit {number} is on trial"));
            }
        }
    }

    fn same_plans(&mut self, outline: &Outline, rule: &Rule) {
        let Some(plans) = rule.rows.as_deref() else { return };
        for (plan, _) in plans.iter().skip(1).filter(|(_, limits)| *limits == plans.default_limits()) {
            self.add(&outline.note.place(), Code::SamePlan, || {
                format!("the plan {plan:?} has the numbers of the default plan {:?}", plans.default_plan())
            });
        }
    }

    fn never_denies(&mut self, outline: &Outline, rule: &Rule, replaced: &HashSet<&str>) {
        for (number, limit) in (1..).zip(&rule.limits) {
            let mut others = (1..).zip(&rule.limits).filter(|(other, _)| *other != number);
            // A limit that others can replace does not apply to every request.
            let is_always = |name: Option<&str>| name.is_none_or(|name| !replaced.contains(name));
            let by = others.find(|(_, other)| is_always(other.name.as_deref()) && denies::denies_before(other, limit));
            if let Some((by, _)) = by {
                self.add(&outline.note.place(), Code::NeverDenies, || {
                    format!(
                        "limit {number} never denies, because limit {by} of the rule admits no more in the same time"
                    )
                });
            }
        }
    }

    fn alike_keys(&mut self, all: &[&Outline]) {
        let keys = all.iter().filter(|outline| !outline.key.contains('*')).map(|outline| (&*outline.key, *outline));
        let weighed: Vec<(&Weigh, &Outline)> =
            all.iter().filter_map(|outline| Some((self.rule(outline)?.weigh.as_deref()?, *outline))).collect();
        let entries = weighed.iter().map(|(weigh, outline)| (&*weigh.entry, *outline));
        let keys: Vec<(&str, &Outline)> = keys.chain(entries).collect();
        self.alike("key", &keys);
        // The entries of a domain are few.
        let mut by_entry: BTreeMap<&str, Vec<(&str, &Outline)>> = BTreeMap::new();
        for (weigh, outline) in weighed {
            let mut values: Vec<&str> = weigh.values().collect();
            values.sort_unstable();
            by_entry.entry(&weigh.entry).or_default().extend(values.into_iter().map(|value| (value, outline)));
        }
        by_entry.values().for_each(|values| self.alike("value of weigh", values));
    }

    /// Warns about a word that is spelled almost as another one. The words are in the order of their uses.
    fn alike(&mut self, what: &str, all: &[(&str, &Outline)]) {
        let mut numbers: HashMap<&str, usize> = HashMap::new();
        let mut uses: Vec<(&str, &Outline, usize)> = Vec::new();
        for &(word, outline) in all {
            let number = *numbers.entry(word).or_insert(uses.len());
            if number == uses.len() {
                uses.push((word, outline, 0));
            }
            uses[number].2 += 1;
        }
        let words = Words::new(uses.iter().map(|(word, ..)| *word));
        for (earlier, later) in alike(&words, &mut self.comparisons_left) {
            // The less frequent one is probably the mistake.
            let (odd, other) = if uses[earlier].2 < uses[later].2 { (earlier, later) } else { (later, earlier) };
            let ((odd, at, _), (other, place, _)) = (uses[odd], uses[other]);
            self.add(&at.note.place(), Code::AlikeKey, || {
                format!("the {what} {odd:?} is spelled almost as {other:?}, at {}", place.note.place())
            });
        }
    }

    fn alike_domains(&mut self, names: &BTreeMap<&str, &Location>) {
        let all: Vec<(&str, &Location)> = names.iter().map(|(name, place)| (*name, *place)).collect();
        let words = Words::new(all.iter().map(|(name, _)| *name));
        for (earlier, later) in alike(&words, &mut self.comparisons_left) {
            let ((other, place), (odd, at)) = (all[earlier], all[later]);
            self.add(at, Code::AlikeDomain, || {
                format!("the domain {odd:?} is spelled almost as {other:?}, at {place}")
            });
        }
    }
}

fn collect<'o>(outline: &'o Outline, all: &mut Vec<&'o Outline>) {
    all.push(outline);
    outline.descriptors.iter().for_each(|below| collect(below, all));
}

fn has_limit(outline: &Outline) -> bool {
    outline.note.rule.is_some() || outline.descriptors.iter().any(has_limit)
}

/// The kind of values that a descriptor matches, in a word.
fn kind(outline: &Outline) -> &'static str {
    match &outline.value {
        _ if outline.key.contains('*') => "key with a *",
        None => "key alone",
        Some(Matcher::Text(text)) if text.contains('*') => "wildcard",
        Some(Matcher::Text(_)) => "value",
        Some(Matcher::List(_)) => "list",
        Some(Matcher::Networks(_)) => "networks",
        Some(Matcher::Regex(_)) => "regular expression",
    }
}
