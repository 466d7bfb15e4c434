//! Overrides: the numbers that an operator sets for one descriptor, which replace those of its rule until an instant.
//! [ov-1]
//!
//! Overrides are fitted to a policy set when either changes. A decision then finds the override of a key by its tag.
//! Not here: where overrides are stored and how they are written (limiter/overrides.rs).

use hashbrown::HashMap;

use super::descriptor::{Entries, Entry, as_entries, spell_entries, spell_pairs};
use super::key;
use super::limit::{Limit, share_states};
use super::matcher::Matcher;
pub use super::numbers::{Misfit, Numbers, numbers_text};
use super::plans::PlanLimits;
use super::policy::{Domain, Match, Place, PolicySet, Rule};
use super::time::{Micros, Window};

/// The most overrides at one time.
pub const OVERRIDES_MAX: usize = 10_000;

/// The numbers that an operator has set for one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    pub domain: Box<str>,
    pub entries: Entries,
    /// The numbers of one or several limits of its rule. The other limits stay as they are.
    pub numbers: Box<[Numbers]>,
    /// From this instant on, the numbers of the policy apply again. [ov-2]
    pub until: Micros,
}

impl Override {
    pub fn descriptor(&self) -> Vec<Entry<'_>> {
        as_entries(&self.entries)
    }
}

/// The overrides that fit a policy set, ready for decisions.
#[derive(Debug, Default)]
pub struct Overrides {
    /// For each rule id, whether the rule has an override.
    of_rule: Box<[bool]>,
    /// The limits of each override, by the tag of its keys.
    by_tag: HashMap<Box<str>, FittedOverride>,
    /// For each given override, the id of its rule, or why it has no effect.
    places: Vec<Result<u32, Misfit>>,
}

/// The limits of one descriptor under its override.
#[derive(Debug)]
pub struct FittedOverride {
    /// All limits of the rule, in its order.
    limits: Box<[Limit]>,
    /// For each limit, whether the override names it.
    is_named: Box<[bool]>,
    until: Micros,
    /// The position of the override among the given ones.
    number: usize,
}

impl FittedOverride {
    /// The limits, in the rule's order. Those that the override does not name are the rule's.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Whether the override names the limit at this position.
    pub fn names(&self, position: usize) -> bool {
        self.is_named[position]
    }

    /// Whether the override names all limits, so that a row has no effect beside it. [rw-3]
    pub fn names_all(&self) -> bool {
        self.is_named.iter().all(|is_named| *is_named)
    }

    pub fn until(&self) -> Micros {
        self.until
    }

    /// The limits of a row, with those that the override names in place of the row's. None if two of them would have the
    /// same state: then the row has no effect. [rw-3]
    pub fn over(&self, row: &PlanLimits) -> Option<Vec<Option<Limit>>> {
        let of = |(at, limit): (usize, &Limit)| if self.names(at) { Some(limit.clone()) } else { row[at].clone() };
        let limits: Vec<Option<Limit>> = self.limits.iter().enumerate().map(of).collect();
        (!share_states(limits.iter().flatten())).then_some(limits)
    }
}

impl Overrides {
    /// Fits overrides to a policy set. Ignores those past [`OVERRIDES_MAX`].
    pub fn of(policies: &PolicySet, given: &[Override]) -> Self {
        let mut of_rule = vec![false; policies.rules().len()];
        let mut by_tag: HashMap<Box<str>, FittedOverride> = HashMap::new();
        let mut places = Vec::new();
        for (number, one) in given.iter().take(OVERRIDES_MAX).enumerate() {
            places.push(fit(policies, one).and_then(|(rule, tag, limits)| {
                if let Some(FittedOverride { number, .. }) = by_tag.get(&*tag) {
                    return Err(Misfit::Taken(spell_pairs(&given[*number].entries)));
                }
                let mut is_named = vec![false; limits.len()];
                for numbers in &one.numbers {
                    is_named[position(rule, numbers.name.as_deref())?] = true;
                }
                let fitted = FittedOverride { limits, is_named: is_named.into(), until: one.until, number };
                by_tag.insert(tag.into_boxed_str(), fitted);
                of_rule[rule.id as usize] = true;
                Ok(rule.id)
            }));
        }
        Self { of_rule: of_rule.into(), by_tag, places }
    }

    /// Whether no override has an effect.
    pub fn is_empty(&self) -> bool {
        self.by_tag.is_empty()
    }

    /// How many overrides have an effect.
    pub fn len(&self) -> usize {
        self.by_tag.len()
    }

    /// Whether a rule of the policy set has an override.
    pub fn concern(&self, rule: &Rule) -> bool {
        self.of_rule.get(rule.id as usize).copied().unwrap_or(false)
    }

    /// The limits of the keys with this tag, which replace those of their rule. None if there is no override, or if it
    /// has ended. Calls `now` only if there is an override. [ov-2]
    pub fn limits(&self, tag: &str, now: impl FnOnce() -> Micros) -> Option<&FittedOverride> {
        self.by_tag.get(tag).filter(|fitted| now() < fitted.until)
    }

    /// The position, among the given overrides, of the override of these keys, and its limits. Also returns an override
    /// that has ended.
    pub fn at(&self, tag: &str) -> Option<(usize, &FittedOverride)> {
        self.by_tag.get(tag).map(|fitted| (fitted.number, fitted))
    }

    /// For each given override, the id of its rule, or why it has no effect.
    pub fn places(&self) -> &[Result<u32, Misfit>] {
        &self.places
    }
}

/// The rule of an override, the tag of its keys, and the limits that replace the rule's.
///
/// # Errors
/// When the override fits no rule.
pub fn fit<'p>(policies: &'p PolicySet, one: &Override) -> Result<(&'p Rule, String, Box<[Limit]>), Misfit> {
    let domain = policies.domain(&one.domain).ok_or(Misfit::NoDomain)?;
    let entries = one.descriptor();
    let Match { rule, shared, .. } = policies.find(domain, &entries);
    let rule = rule.ok_or_else(|| Misfit::NoRule { met: policies.trace(domain, &entries).len() })?;
    let is_shared = |at: &usize| shared.iter().any(|(position, _)| position == at);
    if let Some(at) = wildcard_texts(domain, rule, &entries).find(|at| !is_shared(at)) {
        return Err(Misfit::of_wildcard(&entries, at));
    }
    let limits = replaced(rule, &one.numbers)?;
    let mut tag = String::new();
    key::write_tag(&mut tag, &domain.name, entries.into_iter(), &shared);
    Ok((rule, tag, limits))
}

/// The descriptors that share the state of this one by `share_threshold`, and therefore its override. `*` stands for
/// any text, and the name of a matcher for any of its values. None if the descriptor has its own state.
pub fn shared_with(policies: &PolicySet, one: &Override) -> Option<String> {
    let domain = policies.domain(&one.domain)?;
    let Match { shared, .. } = policies.find(domain, &one.descriptor());
    let values: Vec<(usize, String)> = shared.iter().map(|(position, by)| (*position, by.text())).collect();
    let entries = one.entries.iter().enumerate().map(|(position, (key, value))| {
        let of_all = values.iter().find(|(at, _)| *at == position).map_or(&**value, |(_, value)| value);
        Entry { key, value: of_all }
    });
    (!values.is_empty()).then(|| spell_entries(entries))
}

/// The positions of entries that are the text of a wildcard of this rule, as key or as value. Requests have other texts, so
/// numbers for such a descriptor change no decision, unless the values share a state. [rw-1] [ov-1]
pub(super) fn wildcard_texts<'e>(
    domain: &'e Domain,
    rule: &'e Rule,
    entries: &'e [Entry<'_>],
) -> impl Iterator<Item = usize> {
    let mut place = Some(domain.top());
    entries.iter().zip(&rule.levels).enumerate().filter_map(move |(at, (&entry, level))| {
        let here = place;
        place = here.and_then(|here| here.child(entry));
        let is_level = *level.key == *entry.key;
        let is_value = || level.value.as_ref().is_some_and(|value| *value == Matcher::from(entry.value));
        let patterns = || here.map(Place::key_patterns).unwrap_or_default();
        let is_key = || patterns().iter().any(|pattern| pattern.as_str().starts_with(entry.key));
        let is_text = entry.value.contains('*') && is_value() || entry.key.contains('*') && is_key();
        (is_level && is_text).then_some(at)
    })
}

/// The limits of a rule after replacing some numbers. The numbers of a row have the same form. [rw-1]
pub(super) fn replaced(rule: &Rule, numbers: &[Numbers]) -> Result<Box<[Limit]>, Misfit> {
    let mut limits = rule.limits.clone();
    let mut is_replaced = vec![false; limits.len()];
    for numbers in numbers {
        let at = position(rule, numbers.name.as_deref())?;
        if std::mem::replace(&mut is_replaced[at], true) {
            return Err(Misfit::Twice);
        }
        limits[at] = numbers.applied_to(&rule.limits[at])?;
    }
    if share_states(&limits) { Err(Misfit::SameShape) } else { Ok(limits) }
}

/// The limit of a rule in the window of an override. Its key is that of the limit that the override gives. None if the limit
/// cannot have this window.
pub fn in_window(limit: &Limit, window: Window) -> Option<Limit> {
    Numbers { name: None, requests: limit.requests(), window, burst: None }.applied_to(limit).ok()
}

/// The position of the limit that the numbers apply to.
fn position(rule: &Rule, name: Option<&str>) -> Result<usize, Misfit> {
    let names = || rule.limits.iter().map(|limit| limit.name.as_deref().unwrap_or(limit.id()).to_owned()).collect();
    match (name, &*rule.limits) {
        (_, []) => Err(Misfit::Unlimited),
        (None, [_]) => Ok(0),
        (None, _) => Err(Misfit::Unnamed(names())),
        (Some(name), limits) => {
            // A limit without a name has its id as name.
            let is_it = |limit: &Limit| limit.name.as_deref().unwrap_or(limit.id()) == name;
            limits.iter().position(is_it).ok_or_else(|| Misfit::NoLimit(name.to_owned(), names()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, LimitError};
    use crate::descriptor::Count;
    use crate::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use crate::time::Unit;

    fn rule(key: &str, limits: Vec<Limit>) -> NodeSpec {
        let rule = Some(RuleSpec::of(RuleKind::Limits(limits)));
        NodeSpec { key: key.into(), rule, ..NodeSpec::default() }
    }

    fn named(name: &str, mut limit: Limit) -> Limit {
        limit.name = Some(name.into());
        limit
    }

    fn gcra(requests: u32, burst: u32) -> Limit {
        Limit::new(requests.into(), Unit::Second.window(), Algorithm::Gcra { burst }).unwrap()
    }

    fn policies() -> PolicySet {
        let descriptors = vec![
            rule("user", vec![Limit::per_unit(10, Unit::Hour)]),
            rule("paced", vec![gcra(10, 20)]),
            rule("two", vec![named("short", gcra(1, 1)), Limit::per_unit(100, Unit::Hour)]),
            NodeSpec { share_threshold: true, value: Some("a*".into()), ..rule("shared", vec![gcra(1, 1)]) },
            NodeSpec {
                key: "vip".into(),
                rule: Some(RuleSpec::of(RuleKind::Unlimited { name: None })),
                ..NodeSpec::default()
            },
        ];
        PolicySet::compile(vec![DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors }]).unwrap()
    }

    fn numbers(name: Option<&str>, requests: Count, unit: Unit) -> Numbers {
        Numbers { name: name.map(Into::into), requests, window: unit.window(), burst: None }
    }

    fn set(key: &str, value: &str, numbers: Vec<Numbers>) -> Override {
        let entries = [(key.into(), value.into())].into();
        Override { domain: "shop".into(), entries, numbers: numbers.into(), until: 1_000 }
    }

    /// The override would be in force for a request with the value `/x/*` only.
    #[test]
    fn an_override_at_the_text_of_a_wildcard_is_refused_unless_all_its_values_share_a_state() {
        let value = |value: &str, node: NodeSpec| NodeSpec { value: Some(value.into()), ..node };
        let pattern = |key: &str, below: Vec<NodeSpec>| NodeSpec {
            key_pattern: true,
            descriptors: below,
            ..rule(key, vec![Limit::per_unit(10, Unit::Hour)])
        };
        let descriptors = vec![
            value("/x/*", rule("path", vec![gcra(1, 1)])),
            NodeSpec { share_threshold: true, ..value("/y/*", rule("path", vec![gcra(1, 1)])) },
            pattern("team_*", vec![value("a*", rule("user", vec![gcra(1, 1)]))]),
        ];
        let spec = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors };
        let policies = PolicySet::compile(vec![spec]).unwrap();
        let refused = |entries: &[(&str, &str)]| {
            let entries = entries.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            let one = Override { entries, ..set("", "", vec![numbers(None, 5, Unit::Second)]) };
            fit(&policies, &one).err().map(|misfit| misfit.to_string())
        };
        let reason = |text: &str| Some(format!("{text} is the text of a wildcard: write a value that requests have"));
        assert_eq!(refused(&[("path", "/x/*")]), reason("path=/x/*"));
        assert_eq!(refused(&[("team_*", "red")]), reason("team_*=red"));
        assert_eq!(refused(&[("team_a", "red"), ("user", "a*")]), reason("user=a*"));
        for entries in
            [&[("path", "/x/1")][..], &[("path", "/x/*1")], &[("path", "/y/*")], &[("team_a", "*"), ("user", "ab")]]
        {
            assert_eq!(refused(entries), None, "{entries:?}");
        }
    }

    #[test]
    fn limits_have_the_numbers_until_the_end() {
        let policies = policies();
        let overrides = Overrides::of(&policies, &[set("user", "ann", vec![numbers(None, 50, Unit::Hour)])]);
        assert_eq!(overrides.places(), [Ok(0)]);
        assert!(overrides.concern(&policies.rules()[0]) && !overrides.concern(&policies.rules()[1]));
        let requests = |tag, now| overrides.limits(tag, || now).map(|fitted| fitted.limits()[0].requests());
        assert_eq!(requests("w1:{shop|user=ann}", 999), Some(50));
        assert_eq!(requests("w1:{shop|user=ann}", 1_000), None, "the end is exact");
        assert_eq!(requests("w1:{shop|user=bob}", 0), None);
        // The shape equals the rule's, so the state is the same.
        assert_eq!(overrides.at("w1:{shop|user=ann}").unwrap().1.limits()[0].id(), policies.rules()[0].limits[0].id());
    }

    #[test]
    fn a_burst_follows_the_hits_unless_it_is_given() {
        let policies = policies();
        let burst = |requests, burst| {
            let numbers = Numbers { burst, ..numbers(None, requests, Unit::Second) };
            fit(&policies, &set("paced", "x", vec![numbers])).map(|(_, _, limits)| limits[0].capacity())
        };
        assert_eq!(burst(100, None), Ok(200));
        assert_eq!(burst(1, None), Ok(2));
        assert_eq!(burst(100, Some(7)), Ok(7));
        assert_eq!(burst(100, Some(0)), Err(Misfit::Limit(LimitError::BurstZero)));
        let fixed = Numbers { burst: Some(1), ..numbers(None, 1, Unit::Hour) };
        let refused = fit(&policies, &set("user", "x", vec![fixed])).map(|_| ());
        assert_eq!(refused, Err(Misfit::NoBurst("fixed_window")));
    }

    #[test]
    fn of_several_limits_the_named_one_is_replaced() {
        let policies = policies();
        let fitted = |numbers| fit(&policies, &set("two", "x", numbers)).map(|(_, _, limits)| limits);
        let names = || vec!["short".to_owned(), "f3600s".to_owned()];
        assert_eq!(fitted(vec![numbers(None, 5, Unit::Hour)]), Err(Misfit::Unnamed(names())));
        let unknown = fitted(vec![numbers(Some("long"), 5, Unit::Hour)]);
        assert_eq!(unknown, Err(Misfit::NoLimit("long".into(), names())));
        let twice = fitted(vec![numbers(Some("short"), 5, Unit::Second), numbers(Some("short"), 6, Unit::Second)]);
        assert_eq!(twice, Err(Misfit::Twice));
        let both =
            fitted(vec![numbers(Some("f3600s"), 7, Unit::Hour), numbers(Some("short"), 5, Unit::Second)]).unwrap();
        assert_eq!((both[0].requests(), both[1].requests()), (5, 7));
        assert_eq!(both[0].name.as_deref(), Some("short"));
    }

    #[test]
    fn a_row_keeps_the_limits_that_an_override_does_not_name() {
        let overrides = Overrides::of(
            &policies(),
            &[
                set("two", "some", vec![numbers(Some("short"), 5, Unit::Minute)]),
                set(
                    "two",
                    "all",
                    vec![numbers(Some("f3600s"), 7, Unit::Hour), numbers(Some("short"), 5, Unit::Second)],
                ),
            ],
        );
        let fitted = |value: &str| overrides.at(&format!("w1:{{shop|two={value}}}")).unwrap().1;
        let some = fitted("some");
        assert_eq!(
            (some.names(0), some.names(1), some.names_all(), fitted("all").names_all()),
            (true, false, false, true)
        );
        let requests = |row: &PlanLimits| -> Option<Vec<Option<Count>>> {
            Some(some.over(row)?.iter().map(|limit| limit.as_ref().map(Limit::requests)).collect())
        };
        let own = |requests, unit| Some(Limit::per_unit(requests, unit));
        assert_eq!(requests(&[Some(gcra(9, 9)), own(900, Unit::Hour)]), Some(vec![Some(5), Some(900)]));
        assert_eq!(requests(&[None, None]), Some(vec![Some(5), None]), "the limit is unlimited by the row alone");
        let paced = Limit::new(1, Unit::Minute.window(), Algorithm::Gcra { burst: 1 }).unwrap();
        assert_eq!(requests(&[None, Some(paced)]), None, "two limits would have one state");
    }

    #[test]
    fn what_fits_no_rule_is_told_apart() {
        let policies = policies();
        let one = vec![numbers(None, 5, Unit::Hour)];
        let given = [
            set("nobody", "x", one.clone()),
            set("vip", "x", one.clone()),
            Override { domain: "shp".into(), ..set("user", "ann", one.clone()) },
            set("shared", "ab", one.clone()),
            set("shared", "ac", one.clone()),
        ];
        let overrides = Overrides::of(&policies, &given);
        let expected = [
            Err(Misfit::NoRule { met: 0 }),
            Err(Misfit::Unlimited),
            Err(Misfit::NoDomain),
            Ok(3),
            Err(Misfit::Taken("shared=ab".into())),
        ];
        assert_eq!(overrides.places(), expected);
        let tag = "w1:{shop|shared=a*}";
        assert_eq!(overrides.at(tag).map(|(number, _)| number), Some(3), "those who share a state share its override");
    }

    #[test]
    fn no_more_than_the_bound_are_taken() {
        let given: Vec<Override> = (0..OVERRIDES_MAX + 5)
            .map(|number| set("user", &number.to_string(), vec![numbers(None, 5, Unit::Hour)]))
            .collect();
        let overrides = Overrides::of(&policies(), &given);
        assert_eq!((overrides.places().len(), overrides.by_tag.len()), (OVERRIDES_MAX, OVERRIDES_MAX));
    }
}
