//! Replays records with hidden values: finds the rule that each descriptor met before, and the rule that it meets now.
//!
//! A record names the rule that each descriptor met. weir assumes that these were the old policies, which restricts the
//! hidden values. A value that met a wildcard meets the same wildcard now, unless an earlier wildcard can match it.
//! Ambiguous requests are counted and not decided. Reading records is in the simulation; counting answers is in
//! answers.rs.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use weir_engine::descriptor::spell_entries;
use weir_engine::pattern::Pattern;
use weir_engine::policy::{DomainSpec, Lead, NodeSpec, Place, RuleKind, RuleSpec};
use weir_engine::{Domain, Entry, Matcher, PolicySet, Rule};

use crate::simulation::hidden::{LeadCache, Leads, is_hidden, is_of_all};

/// The most places of both trees to visit for one kind of descriptor. If the search needs more, the rule is unknown.
const STEPS_MAX: usize = 10_000;
/// The most kinds of descriptors in the cache. Descriptors of one kind have the same keys, shown values and rule.
const KINDS_MAX: usize = 100_000;
/// The most possible rules to name for one descriptor.
pub const NAMED_MAX: usize = 8;
/// Stands for each hidden value in the name of a kind. A tap would hide a real value of this form.
const ANY_HIDDEN: &str = "~";

/// The rules that a descriptor with hidden values may meet. Empty if the record does not fit the old policies, or if
/// the search took too long.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MayMeet {
    pub domain: String,
    pub recorded: Option<String>,
    /// New rules in file order, at most [`NAMED_MAX`]. `None` stands for no rule.
    pub now: Vec<Option<String>>,
}

/// The rules of one descriptor before and now, by their ids.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rules {
    pub(super) old: Option<u32>,
    pub(super) new: Option<u32>,
}

/// The rules of one descriptor, if they can be determined.
#[derive(Clone, Debug)]
pub(super) enum Resolved {
    Known(Rules),
    Unknown(MayMeet),
}

/// The class of a hidden value in the old policies.
struct Class<'p> {
    place: Place<'p>,
    leads: Leads<'p>,
    /// The index of the lead that the value meets.
    met: Option<usize>,
}

/// A path through the old policies: the classes of hidden values, by the index of their entry.
struct OldPath<'p> {
    classes: HashMap<usize, Rc<Class<'p>>>,
    rule: Option<u32>,
}

enum Meets {
    Yes,
    No,
    Maybe,
}

/// The search took too long, or found keys with wildcards.
struct GivenUp;

/// Finds the rules of descriptors with hidden values.
pub(super) struct Hidden<'p> {
    old: &'p PolicySet,
    new: &'p PolicySet,
    /// Domain, key and value of all texts in the old policies: a tap shows these values.
    named: HashSet<(&'p str, &'p str, &'p str)>,
    leads: LeadCache<'p>,
    known: HashMap<String, Resolved>,
    steps: usize,
}

impl<'p> Hidden<'p> {
    pub(super) fn new(old: &'p PolicySet, new: &'p PolicySet) -> Self {
        let mut named = HashSet::new();
        for rule in old.rules() {
            for level in &rule.levels {
                match &level.value {
                    Some(Matcher::List(values)) => {
                        named.extend(values.iter().map(|value| (&*rule.domain, &*level.key, &**value)));
                    }
                    Some(matcher) => named.extend(matcher.exact().map(|value| (&*rule.domain, &*level.key, value))),
                    None => {}
                }
            }
        }
        Self { old, new, named, leads: LeadCache::default(), known: HashMap::new(), steps: 0 }
    }

    /// Finds the rules of a descriptor in a record that met the rule `recorded`.
    pub(super) fn resolve(&mut self, domain: &str, entries: &[Entry<'_>], recorded: Option<&str>) -> Resolved {
        if !entries.iter().any(|entry| is_hidden(entry.value)) {
            let met = |set: &PolicySet| Some(set.find(set.domain(domain)?, entries).rule?.id);
            return Resolved::Known(Rules { old: met(self.old), new: met(self.new) });
        }
        let of_kind = |entry: &Entry<'_>| if is_hidden(entry.value) { ANY_HIDDEN } else { entry.value }.to_owned();
        let values: Vec<String> = entries.iter().map(of_kind).collect();
        let of_kind = entries.iter().zip(&values).map(|(entry, value)| Entry { key: entry.key, value });
        let kind = format!("{domain:?} {recorded:?} {}", spell_entries(of_kind));
        if let Some(resolved) = self.known.get(&kind) {
            return resolved.clone();
        }
        let resolved = self.resolve_kind(domain, entries, recorded);
        if self.known.len() < KINDS_MAX {
            self.known.insert(kind, resolved.clone());
        }
        resolved
    }

    fn resolve_kind(&mut self, domain: &str, entries: &[Entry<'_>], recorded: Option<&str>) -> Resolved {
        self.steps = 0;
        let mut now = BTreeSet::new();
        let found = self.rules_now(domain, entries, recorded, &mut now);
        if let (Ok(Some(old)), Some(&new), 1) = (&found, now.first(), now.len()) {
            return Resolved::Known(Rules { old: *old, new });
        }
        if found.is_err() {
            now.clear();
        }
        let path = |rule: &Option<u32>| rule.map(|rule| self.new.rules()[rule as usize].path.to_string());
        Resolved::Unknown(MayMeet {
            domain: domain.to_owned(),
            recorded: recorded.map(str::to_owned),
            now: now.iter().take(NAMED_MAX).map(path).collect(),
        })
    }

    /// Adds the rules that a descriptor may meet now. Returns the rule that it met before, or `None` if the record fits
    /// no rule.
    fn rules_now(
        &mut self,
        domain: &str,
        entries: &[Entry<'_>],
        recorded: Option<&str>,
        now: &mut BTreeSet<Option<u32>>,
    ) -> Result<Option<Option<u32>>, GivenUp> {
        let mut walks = Vec::new();
        match self.old.domain(domain) {
            Some(domain) => self.walk(domain.top(), domain.name.as_ref(), entries, 0, &mut Vec::new(), &mut walks)?,
            None => walks.push(OldPath { classes: HashMap::new(), rule: None }),
        }
        let path = |rule: Option<u32>| rule.map(|rule| &*self.old.rules()[rule as usize].path);
        walks.retain(|walk| path(walk.rule) == recorded);
        for walk in &walks {
            match self.new.domain(domain) {
                Some(domain) => self.meet(domain.top(), domain.name.as_ref(), entries, 0, walk, now)?,
                None => drop(now.insert(None)),
            }
        }
        Ok(walks.first().map(|walk| walk.rule))
    }

    /// Finds all paths that a descriptor can take through the old policies.
    fn walk(
        &mut self,
        place: Place<'p>,
        domain: &str,
        entries: &[Entry<'_>],
        at: usize,
        classes: &mut Vec<(usize, Rc<Class<'p>>)>,
        walks: &mut Vec<OldPath<'p>>,
    ) -> Result<(), GivenUp> {
        self.step()?;
        let end =
            |classes: &[(usize, Rc<Class<'p>>)], rule| OldPath { classes: classes.iter().cloned().collect(), rule };
        let Some(entry) = entries.get(at) else {
            walks.push(end(classes, place.rule()));
            return Ok(());
        };
        if !is_hidden(entry.value) {
            return match place.child(*entry) {
                Some(child) => self.walk(child, domain, entries, at + 1, classes, walks),
                None => {
                    walks.push(end(classes, None));
                    Ok(())
                }
            };
        }
        let leads = self.leads(place, domain, entry.key)?;
        for (number, (lead, child)) in leads.iter().enumerate() {
            classes.push((at, Rc::new(Class { place, leads: leads.clone(), met: Some(number) })));
            self.walk(*child, domain, entries, at + 1, classes, walks)?;
            classes.pop();
            if is_of_all(*lead) {
                return Ok(());
            }
        }
        classes.push((at, Rc::new(Class { place, leads, met: None })));
        walks.push(end(classes, None));
        classes.pop();
        Ok(())
    }

    /// Adds the rules that a descriptor of this path may meet now.
    fn meet(
        &mut self,
        place: Place<'p>,
        domain: &str,
        entries: &[Entry<'_>],
        at: usize,
        walk: &OldPath<'p>,
        now: &mut BTreeSet<Option<u32>>,
    ) -> Result<(), GivenUp> {
        self.step()?;
        let Some(entry) = entries.get(at) else {
            now.insert(place.rule());
            return Ok(());
        };
        let class = walk.classes.get(&at).map(|class| &**class);
        let shown = match class.and_then(|class| Some(class.leads[class.met?].0)) {
            // A tap hides a text of a descriptor without a rule. On this path, the hidden value is that text.
            Some(Lead::Text(value)) => Entry { key: entry.key, value },
            _ => *entry,
        };
        if !is_hidden(shown.value) {
            return match place.child(shown) {
                Some(child) => self.meet(child, domain, entries, at + 1, walk, now),
                None => {
                    now.insert(None);
                    Ok(())
                }
            };
        }
        for (lead, child) in self.leads(place, domain, entry.key)?.iter() {
            match meets(*lead, entry.key, class) {
                Meets::No => {}
                Meets::Maybe => self.meet(*child, domain, entries, at + 1, walk, now)?,
                Meets::Yes => return self.meet(*child, domain, entries, at + 1, walk, now),
            }
        }
        now.insert(None);
        Ok(())
    }

    fn step(&mut self) -> Result<(), GivenUp> {
        self.steps += 1;
        if self.steps > STEPS_MAX { Err(GivenUp) } else { Ok(()) }
    }

    fn leads(&mut self, place: Place<'p>, domain: &str, key: &str) -> Result<Leads<'p>, GivenUp> {
        let named = &self.named;
        let is_possible = |lead: &Lead<'p>| match lead {
            Lead::Text(text) => !named.contains(&(domain, key, *text)),
            _ => true,
        };
        let read = || Some(place.leads(key)?.into_iter().filter(|(lead, _)| is_possible(lead)).collect());
        self.leads.get(place, key, read).ok_or(GivenUp)
    }
}

/// Reports whether a value of this class meets a lead that no earlier lead hides.
fn meets(lead: Lead<'_>, key: &str, class: Option<&Class<'_>>) -> Meets {
    if is_of_all(lead) {
        return Meets::Yes;
    }
    let Some(Class { place, leads, met }) = class else { return Meets::Maybe };
    let met_lead = met.map(|met| leads[met].0);
    if let Lead::Text(value) = lead {
        let led = place.child(Entry { key, value });
        let is_same = match (led, met.map(|met| leads[met].1)) {
            (Some(led), Some(met)) => led.address() == met.address(),
            (led, met) => led.is_none() && met.is_none(),
        };
        return if is_same { Meets::Maybe } else { Meets::No };
    }
    // A value meets the first lead that matches it.
    let before = leads.iter().position(|(known, _)| *known == lead);
    match (before, met) {
        (Some(number), Some(met)) if number == *met => return Meets::Yes,
        (Some(number), Some(met)) if number < *met => return Meets::No,
        (Some(_), None) => return Meets::No,
        _ => {}
    }
    match (met_lead, lead) {
        (Some(Lead::Network(met)), Lead::Network(network)) if network.covers(met) => Meets::Yes,
        (Some(Lead::Network(met)), Lead::Network(network)) if !met.covers(network) => Meets::No,
        (Some(Lead::Pattern(met)), Lead::Pattern(pattern)) => match (wildcard(met), wildcard(pattern)) {
            (Some(met), Some(pattern)) => of_wildcards(&met, &pattern),
            _ => Meets::Maybe,
        },
        _ => Meets::Maybe,
    }
}

/// Reports whether values of one wildcard match another wildcard.
fn of_wildcards(met: &Pattern, other: &Pattern) -> Meets {
    // If the other wildcard matches the text of the first one, it matches each of its values.
    if other.matches(met.as_str()) {
        return Meets::Yes;
    }
    let ends = |pattern: &Pattern| {
        let literals: Vec<String> = pattern.literals().map(str::to_owned).collect();
        (literals.first().cloned().unwrap_or_default(), literals.last().cloned().unwrap_or_default())
    };
    let ((one_start, one_end), (start, end)) = (ends(met), ends(other));
    let can_start = one_start.starts_with(&start) || start.starts_with(&one_start);
    let can_end = one_end.ends_with(&end) || end.ends_with(&one_end);
    if can_start && can_end { Meets::Maybe } else { Meets::No }
}

fn wildcard(matcher: &Matcher) -> Option<Pattern> {
    match matcher {
        Matcher::Text(text) => Pattern::new(text),
        _ => None,
    }
}

/// Builds the same rules with one entry each, whose key is the rule's id. Hidden values need not match.
pub(super) fn by_rule(set: &PolicySet) -> PolicySet {
    let mut nodes: HashMap<&str, Vec<NodeSpec>> = HashMap::new();
    for rule in set.rules() {
        nodes.entry(&rule.domain).or_default().push(node(rule));
    }
    let of_domain = |domain: &Domain| {
        let descriptors = nodes.remove(&*domain.name).unwrap_or_default();
        DomainSpec { name: domain.name.to_string(), mode: domain.mode, on_error: domain.on_error, descriptors }
    };
    let specs: Vec<DomainSpec> = set.domains().map(of_domain).collect();
    PolicySet::compile(specs).unwrap_or_else(|error| unreachable!("the rules can be loaded together: {error}"))
}

fn node(rule: &Rule) -> NodeSpec {
    let kind = match rule.unlimited {
        true => RuleKind::Unlimited { name: rule.unlimited_name.clone() },
        false => RuleKind::Limits(rule.limits.to_vec()),
    };
    let replaces = rule.replaces.iter().map(ToString::to_string).collect();
    let (role, is_quota, on_error, metadata) = (rule.role, rule.is_quota, rule.on_error, rule.metadata.clone());
    let spec = RuleSpec { kind, role, is_quota, replaces, on_error, metadata, rows: rule.rows.as_deref().cloned() };
    NodeSpec { key: key_of(Some(rule.id)), rule: Some(spec), ..NodeSpec::default() }
}

fn key_of(rule: Option<u32>) -> String {
    rule.map_or_else(|| "none".to_owned(), |rule| rule.to_string())
}

/// Returns the entry that meets a rule in [`by_rule`]. Its value identifies the state: the values of the descriptor
/// without the shared ones.
pub(super) fn entry_by_rule(set: &PolicySet, rule: Option<u32>, entries: &[Entry<'_>]) -> (String, String) {
    let levels = rule.map_or(&[][..], |rule| &set.rules()[rule as usize].levels);
    let is_shared = |number: usize| {
        let level = levels.get(number);
        level.is_some_and(|level| level.share_threshold && level.value.as_ref().is_some_and(Matcher::is_of_many))
    };
    let own = entries.iter().enumerate().filter(|(number, _)| !is_shared(*number));
    (key_of(rule), spell_entries(own.map(|(_, entry)| *entry)))
}

#[cfg(test)]
mod tests {
    use weir_engine::network::Network;
    use weir_engine::{Limit, Unit};

    use super::*;

    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, most: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 >> 33).expect("31 bits") % most
        }
    }

    const KEYS: [&str; 2] = ["a", "b"];
    const TEXTS: [&str; 12] =
        ["x", "xy", "xyz", "y", "10.0.0.1", "10.0.9.1", "10.9.9.9", "x*", "/a/b", "/a/c", "/b/c", ""];

    fn matcher(numbers: &mut Numbers) -> Option<Matcher> {
        let networks = ["10.0.0.0/8", "10.0.0.0/16", "10.0.9.0/24", "10.0.0.1/32"];
        let network = |numbers: &mut Numbers| Network::parse(networks[numbers.below(4)]).expect("a network");
        match numbers.below(10) {
            0 | 1 => None,
            2 => Some(TEXTS[numbers.below(7)].into()),
            3 => Some(Matcher::List([TEXTS[numbers.below(3)], TEXTS[4 + numbers.below(3)]].map(Into::into).into())),
            4 => Some(Matcher::Networks([network(numbers)].into())),
            5 => {
                let pair = [network(numbers), network(numbers)];
                Some(Matcher::Networks(if pair[0] == pair[1] { [pair[0]].into() } else { pair.into() }))
            }
            _ => Some(["*", "x*", "*y*", "/a/*", "*/c", "1*", "xy*"][numbers.below(7)].into()),
        }
    }

    fn nodes(numbers: &mut Numbers, depth: usize) -> Vec<NodeSpec> {
        let node = |numbers: &mut Numbers| NodeSpec {
            key: KEYS[numbers.below(2)].to_owned(),
            value: matcher(numbers),
            rule: (numbers.below(4) > 0).then(|| RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(1, Unit::Hour)]))),
            descriptors: if depth > 0 && numbers.below(2) == 0 { nodes(numbers, depth - 1) } else { Vec::new() },
            ..NodeSpec::default()
        };
        (0..1 + numbers.below(5)).map(|_| node(numbers)).collect()
    }

    fn compiled(descriptors: Vec<NodeSpec>) -> Option<PolicySet> {
        let shop = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors };
        PolicySet::compile(vec![shop]).ok()
    }

    fn met(set: &PolicySet, entries: &[Entry<'_>]) -> Option<u32> {
        set.find(set.domain("shop")?, entries).rule.map(|rule| rule.id)
    }

    /// Builds new policies: the old ones in another order, with one descriptor added or removed.
    fn changed(numbers: &mut Numbers, mut specs: Vec<NodeSpec>) -> Vec<NodeSpec> {
        for _ in 0..=numbers.below(2) {
            match numbers.below(3) {
                0 if specs.len() > 1 => drop(specs.remove(numbers.below(specs.len()))),
                1 => specs.insert(numbers.below(specs.len() + 1), nodes(numbers, 1).remove(0)),
                _ => {
                    let (one, other) = (numbers.below(specs.len()), numbers.below(specs.len()));
                    specs.swap(one, other);
                }
            }
        }
        specs
    }

    #[test]
    fn what_is_known_of_a_hidden_value_is_what_the_value_meets() {
        let mut numbers = Numbers(0x5eed_1234_5678_9abc);
        let (mut known, mut unknown) = (0, 0);
        for _ in 0..3_000 {
            let specs = nodes(&mut numbers, 1);
            let Some(old) = compiled(specs.clone()) else { continue };
            let is_same = numbers.below(4) == 0;
            let now = if is_same { specs } else { changed(&mut numbers, specs) };
            let Some(new) = compiled(now) else { continue };
            let mut hidden = Hidden::new(&old, &new);
            for _ in 0..20 {
                let values: Vec<(&str, &str)> = (0..1 + numbers.below(2))
                    .map(|_| (KEYS[numbers.below(2)], TEXTS[numbers.below(TEXTS.len())]))
                    .collect();
                let entries: Vec<Entry<'_>> = values.iter().map(|&(key, value)| Entry { key, value }).collect();
                let mut shown = entries.clone();
                for entry in &mut shown {
                    if !hidden.named.contains(&("shop", entry.key, entry.value)) {
                        entry.value = "~0123456789ab";
                    }
                }
                let real = (met(&old, &entries), met(&new, &entries));
                let recorded = real.0.map(|rule| old.rules()[rule as usize].path.to_string());
                match hidden.resolve("shop", &shown, recorded.as_deref()) {
                    Resolved::Known(rules) => {
                        assert_eq!((rules.old, rules.new), real, "{entries:?}\n{old:#?}\n{new:#?}");
                        known += 1;
                    }
                    Resolved::Unknown(may_meet) => {
                        let real = real.1.map(|rule| new.rules()[rule as usize].path.to_string());
                        let may_meet = may_meet.now;
                        assert!(
                            may_meet.is_empty() || may_meet.len() == NAMED_MAX || may_meet.contains(&real),
                            "{may_meet:?}"
                        );
                        assert!(!is_same, "the same policies: {recorded:?}, {may_meet:?}");
                        unknown += 1;
                    }
                }
            }
        }
        assert!(known > 10_000 && unknown > 100 && known > 2 * unknown, "{known} known, {unknown} unknown");
    }
}
