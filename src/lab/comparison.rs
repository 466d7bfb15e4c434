//! What a change of policies changes, and for whom: rules, limits, and the states in the store.
//!
//! Both trees are walked together, class by class of values (engine/classes.rs), and each pair of rules that some descriptor meets before
//! and now is compared. What cannot be told within a budget is reported as such. Not here: reading policies (policies), and how the result
//! is written (cli).

pub mod answers;
mod hidden;
mod limits;
mod pairs;
mod rows;
mod states;
mod together;
mod values;
mod walk;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub use states::{Cause, Fate, StateChange};
use weir_engine::{Domain, Limit, Mode, OnError, PolicySet, Rule};

/// Where a change goes, for those whom it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tend {
    /// Less passes.
    Stricter,
    /// More passes.
    Looser,
    /// Less passes at some times, and more at others.
    Both,
    /// Something else changes than how much passes, or the amount cannot be told.
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
    /// A descriptor that the rule is for on one side only, and what it meets before and now.
    Met {
        /// The descriptor.
        example: String,
        /// The rule before.
        old: Option<&'p Rule>,
        /// The rule now.
        new: Option<&'p Rule>,
    },
    /// A limit that one descriptor of a request replaces for another one before or now.
    Together {
        /// Both descriptors.
        example: String,
        /// The limit.
        limit: &'p Limit,
        /// It is left out now, and was not before; otherwise the reverse.
        is_replaced_now: bool,
    },
    /// So many more examples.
    MoreExamples(usize),
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
    /// One such descriptor; none where there is none, or none is known.
    pub example: Option<String>,
    /// Whether a descriptor meets the rules, as far as weir knows. A change of a rule that no descriptor meets changes no answer.
    pub is_met: bool,
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

    /// Takes back where it goes: nothing meets the rule.
    fn quiet(&mut self) {
        self.effects.iter_mut().for_each(|effect| effect.tend = Tend::Neither);
        self.tend = Tend::Neither;
        self.states.clear();
    }
}

/// What cannot be told of some descriptors.
#[derive(Debug)]
pub struct CouldNotTell<'p> {
    /// Their domain.
    pub domain: &'p str,
    /// The first rule that they may have met before.
    pub old: Option<&'p Rule>,
    /// The first rule that they may meet now.
    pub new: Option<&'p Rule>,
    /// Why.
    pub why: String,
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
    /// What cannot be told. Rules can be otherwise without being among the changes.
    pub unknown: Vec<CouldNotTell<'p>>,
}

impl Comparison<'_> {
    /// Whether no change is known.
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
    let pairs = pairs::pairs(&Side::new(old), &Side::new(new));
    let mut observed = walk::observe(old, new);
    let rows::Rows { mut changes, same } = rows::rows(&pairs.rules, &mut observed);
    // An order that does not depend on the order of the domains in the policies.
    changes.sort_by(|one, other| place(one).cmp(&place(other)));
    let domains = domains(old, new, &pairs.renamed);
    Comparison { domains, rules: changes, same, unknown: observed.unknown }
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
}

/// Where a change stands in the report: its domain, then the order of the rules.
fn place<'c>(change: &RuleChange<'c>) -> (&'c str, bool, u32) {
    let is_gone = change.kind == Kind::Removed;
    let rule = if is_gone { change.old } else { change.new.or(change.old) };
    rule.map_or(("", is_gone, 0), |rule| (&rule.domain, is_gone, rule.id))
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
