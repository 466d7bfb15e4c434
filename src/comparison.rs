//! What a change of policies changes, and for whom: rules, limits, and what becomes of the states in the store.
//!
//! Rules of the same path are compared with each other. A rule that is there on one side only is compared with what its
//! descriptors meet on the other, which the engine says. Not here: reading policies (config), and how the result is written (cli).

pub mod answers;
mod hidden;
mod limits;
mod pairs;
mod samples;
mod states;
mod values;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::engine::{Domain, Limit, Mode, OnError, PolicySet, Rule};

pub use states::{Cause, Fate, StateChange};

/// Where a change goes, for those whom it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tend {
    /// Less passes.
    Stricter,
    /// More passes.
    Looser,
    /// Less passes at some times, and more at others.
    Both,
    /// Something else changes than how much passes, or nobody can say how much.
    Neither,
}

impl Tend {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stricter => "stricter",
            Self::Looser => "looser",
            Self::Both => "stricter and looser",
            Self::Neither => "otherwise",
        }
    }

    /// Of two changes together.
    const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Neither, one) | (one, Self::Neither) => one,
            (Self::Stricter, Self::Stricter) => Self::Stricter,
            (Self::Looser, Self::Looser) => Self::Looser,
            _ => Self::Both,
        }
    }

    /// That of a number of hits that may pass.
    const fn of(order: Ordering) -> Self {
        match order {
            Ordering::Less => Self::Stricter,
            Ordering::Equal => Self::Neither,
            Ordering::Greater => Self::Looser,
        }
    }
}

/// One thing that is otherwise than before.
#[derive(Debug)]
pub struct Effect<'p> {
    /// Where it goes.
    pub tend: Tend,
    /// What it is.
    pub what: What<'p>,
}

/// What is otherwise than before.
#[derive(Debug)]
pub enum What<'p> {
    /// A limit in place of another; none where there was or is no such limit.
    Limit(Option<&'p Limit>, Option<&'p Limit>),
    /// A key of a policy, and its values before and now.
    Key(&'static str, String, String),
    /// The values that the rule is for: those that are new, and those that are gone.
    Values(Vec<String>, Vec<String>),
}

/// What happened to a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It says something else.
    Changed,
    /// It says the same for other words.
    Renamed,
    /// Some of its descriptors meet another rule that was there before too.
    Moved,
}

impl Kind {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
            Self::Renamed => "renamed",
            Self::Moved => "moved",
        }
    }
}

/// A change of what some descriptors meet.
#[derive(Debug)]
pub struct RuleChange<'p> {
    /// What happened.
    pub kind: Kind,
    /// The rule that they met before. For a rule that is new, the one that was for them.
    pub old: Option<&'p Rule>,
    /// The rule that they meet now. For a rule that is gone, the one that is for them.
    pub new: Option<&'p Rule>,
    /// One such descriptor, where it says more than the path of the rule.
    pub example: Option<String>,
    /// What is otherwise.
    pub effects: Vec<Effect<'p>>,
    /// All effects together.
    pub tend: Tend,
    /// What becomes of the states of the old limits, and where the new ones begin.
    pub states: Vec<StateChange<'p>>,
}

impl RuleChange<'_> {
    /// Whether states are forgotten.
    #[must_use]
    pub fn forgets(&self) -> bool {
        self.states.iter().any(|state| matches!(state.fate, Fate::Forgotten(_)))
    }
}

/// A change of what is said about a whole domain.
#[derive(Debug)]
pub struct DomainChange<'p> {
    /// Its name now, or that of a domain that is gone.
    pub name: &'p str,
    /// Added, removed, changed or renamed.
    pub kind: Kind,
    /// The name before, where it has another one now.
    pub was: Option<&'p str>,
    /// What is otherwise.
    pub effects: Vec<Effect<'p>>,
}

/// All that a change of policies changes.
#[derive(Debug, Default)]
pub struct Comparison<'p> {
    /// Domains, by name.
    pub domains: Vec<DomainChange<'p>>,
    /// Rules, by domain and in the order of the new policies; those that are gone come after the others.
    pub rules: Vec<RuleChange<'p>>,
    /// How many rules are as they were.
    pub same: usize,
}

impl Comparison<'_> {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty() && self.rules.is_empty()
    }

    /// How many changes of rules go there; those that go both ways count for both.
    #[must_use]
    pub fn tending(&self, tend: Tend) -> usize {
        self.rules.iter().filter(|change| change.tend == tend || change.tend == Tend::Both).count()
    }

    /// How many changes of rules forget states.
    #[must_use]
    pub fn forgetting(&self) -> usize {
        self.rules.iter().filter(|change| change.forgets()).count()
    }

    /// How many changes are of a kind.
    #[must_use]
    pub fn of_kind(&self, kind: Kind) -> usize {
        self.rules.iter().filter(|change| change.kind == kind).count()
    }
}

/// Compares two policy sets.
#[must_use]
pub fn compare<'p>(old: &'p PolicySet, new: &'p PolicySet) -> Comparison<'p> {
    let (old, new) = (Side::new(old), Side::new(new));
    let pairs = pairs::pairs(&old, &new);
    let mut comparison = Comparison { domains: domains(old.set, new.set, &pairs.renamed), ..Comparison::default() };
    for &(one, other) in &pairs.rules {
        let mut changes = of_pair(&old, &new, one, other);
        if changes.is_empty() {
            comparison.same += 1;
        }
        comparison.rules.append(&mut changes);
    }
    // An order of its own, whatever the order of the domains in the policies.
    comparison.rules.sort_by(|one, other| place(one).cmp(&place(other)));
    comparison
}

/// The policies before, or those now.
struct Side<'p> {
    set: &'p PolicySet,
    by_path: HashMap<(&'p str, &'p str), &'p Rule>,
}

impl<'p> Side<'p> {
    fn new(set: &'p PolicySet) -> Self {
        let by_path = set.rules().iter().map(|rule| ((&*rule.domain, &*rule.path), rule)).collect();
        Self { set, by_path }
    }

    /// The rule of the same path.
    fn same(&self, rule: &Rule) -> Option<&'p Rule> {
        self.by_path.get(&(&*rule.domain, &*rule.path)).copied()
    }
}

/// Where a change stands in the report: its domain, then the order of the rules.
fn place<'c>(change: &RuleChange<'c>) -> (&'c str, bool, u32) {
    let is_gone = change.kind == Kind::Removed;
    let rule = if is_gone { change.old } else { change.new.or(change.old) };
    rule.map_or(("", is_gone, 0), |rule| (&rule.domain, is_gone, rule.id))
}

/// What changes for the descriptors of a rule that is on one side, or on both.
fn of_pair<'p>(old: &Side<'p>, new: &Side<'p>, one: Option<&'p Rule>, other: Option<&'p Rule>) -> Vec<RuleChange<'p>> {
    let (before, after) = match (one, other) {
        (Some(before), Some(after)) => (before, after),
        (Some(gone), None) => return vec![change(old, new, Kind::Removed, one, met_by(gone, old, new))],
        (None, Some(added)) => return vec![change(old, new, Kind::Added, met_by(added, new, old), other)],
        (None, None) => return Vec::new(),
    };
    if before.domain != after.domain || before.path != after.path {
        return vec![change(old, new, Kind::Renamed, one, other)];
    }
    let mut changes = Vec::new();
    let of_rule = change(old, new, Kind::Changed, one, other);
    if !of_rule.effects.is_empty() {
        changes.push(of_rule);
    }
    if let Some((met, example)) = met_elsewhere(before, old, new) {
        changes.push(RuleChange { example: Some(example), ..change(old, new, Kind::Moved, one, met) });
    }
    if let Some((met, example)) = met_elsewhere(after, new, old) {
        changes.push(RuleChange { example: Some(example), ..change(old, new, Kind::Moved, met, other) });
    }
    changes
}

/// What the descriptors of a rule of one side meet on the other.
fn met_by<'p>(rule: &Rule, here: &Side<'p>, there: &Side<'p>) -> Option<&'p Rule> {
    samples::sample(here.set, rule)?.met(there.set, &rule.domain)
}

/// What a descriptor of a rule that is on both sides meets on the other, where that is not the rule itself, and the descriptor.
fn met_elsewhere<'p>(rule: &Rule, here: &Side<'p>, there: &Side<'p>) -> Option<(Option<&'p Rule>, String)> {
    let sample = samples::sample(here.set, rule)?;
    let met = sample.met(there.set, &rule.domain);
    // A rule that is new or gone tells of its descriptors itself.
    let is_elsewhere = met.is_none_or(|met| met.path != rule.path && here.same(met).is_some());
    is_elsewhere.then(|| (met, sample.to_string()))
}

fn change<'p>(
    before: &Side<'p>,
    now: &Side<'p>,
    kind: Kind,
    old: Option<&'p Rule>,
    new: Option<&'p Rule>,
) -> RuleChange<'p> {
    let mut effects = limits::effects(old, new);
    if kind == Kind::Removed {
        // A rule that is gone says so: what it said about itself does not change.
        effects.retain(|effect| !matches!(effect.what, What::Key("unlimited", ..)));
    }
    if let (Kind::Changed | Kind::Renamed, Some(old), Some(new)) = (kind, old, new) {
        limits::add_marks(old, new, &mut effects);
        values::add_values((old, before), (new, now), &mut effects);
    }
    let tend = effects.iter().fold(Tend::Neither, |tend, effect| tend.and(effect.tend));
    RuleChange { kind, old, new, example: None, effects, tend, states: states::changes(old, new) }
}

fn domains<'p>(old: &'p PolicySet, new: &'p PolicySet, renamed: &BTreeMap<&'p str, &'p str>) -> Vec<DomainChange<'p>> {
    let names: BTreeSet<&str> = old.domains().chain(new.domains()).map(|domain| &*domain.name).collect();
    let mut changes = Vec::new();
    for name in names {
        let (before, after) = (old.domain(name), new.domain(name));
        let was = renamed.get(name).copied();
        let kind = match (before, after, was) {
            (_, _, Some(_)) => Kind::Renamed,
            (Some(_), Some(_), None) => Kind::Changed,
            (None, _, None) => Kind::Added,
            (Some(_), None, None) if renamed.values().any(|was| *was == name) => continue,
            (Some(_), None, None) => Kind::Removed,
        };
        let before = was.map_or(before, |was| old.domain(was));
        let effects = match (before, after) {
            (Some(before), Some(after)) => of_domain(before, after),
            _ => Vec::new(),
        };
        if kind != Kind::Changed || !effects.is_empty() {
            changes.push(DomainChange { name, kind, was, effects });
        }
    }
    changes
}

fn of_domain<'p>(before: &Domain, after: &Domain) -> Vec<Effect<'p>> {
    let said = |word: Option<&str>| word.unwrap_or("the server's").to_owned();
    let charging = |domain: &Domain| said(domain.mode.map(Mode::name));
    let on_error = |domain: &Domain| said(domain.on_error.map(OnError::name));
    let keys = [("charging", charging(before), charging(after)), ("on_error", on_error(before), on_error(after))];
    let changed = keys.into_iter().filter(|(_, before, after)| before != after);
    changed.map(|(key, before, after)| Effect { tend: Tend::Neither, what: What::Key(key, before, after) }).collect()
}
