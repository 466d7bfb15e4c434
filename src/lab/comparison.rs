//! The effects of a change of policies: on rules, limits, and the states in the store.
//!
//! Both trees are walked together, by classes of values (the package `classes`). Each pair of rules that some descriptor meets before
//! and now is compared. Effects that cannot be found within a budget are reported as unknown. Not here: reading policies
//! (policies), and writing the result (cli).

mod amounts;
pub mod answers;
mod changes;
mod limits;
mod pairs;
mod row_files;
mod states;
mod together;
mod values;
mod walk;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use row_files::LostRows;
pub use states::{Cause, Fate, StateChange};
use weir_engine::{Domain, Limit, Mode, OnError, PolicySet, Row, Rule};

weir_engine::named! {
    /// The direction of a change, for the affected descriptors.
    pub enum Direction {
        Stricter = "stricter",
        Looser = "looser",
        /// At some times fewer requests pass, and at others more.
        Both = "stricter and looser",
        /// The amount does not change, or is unknown.
        Neither = "otherwise",
    }
}

impl Direction {
    const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Neither, one) | (one, Self::Neither) => one,
            (Self::Stricter, Self::Stricter) => Self::Stricter,
            (Self::Looser, Self::Looser) => Self::Looser,
            _ => Self::Both,
        }
    }

    const fn reversed(self) -> Self {
        match self {
            Self::Stricter => Self::Looser,
            Self::Looser => Self::Stricter,
            both_or_neither => both_or_neither,
        }
    }

    /// The direction of a number of admitted hits.
    const fn of(order: Ordering) -> Self {
        match order {
            Ordering::Less => Self::Stricter,
            Ordering::Equal => Self::Neither,
            Ordering::Greater => Self::Looser,
        }
    }
}

#[derive(Debug)]
pub struct Effect<'p> {
    pub direction: Direction,
    pub subject: Subject<'p>,
}

#[derive(Debug)]
pub enum Subject<'p> {
    /// The old and the new limit. `None` on a side without the limit.
    Limit(Option<&'p Limit>, Option<&'p Limit>),
    /// The old and the new limit of descriptors whose row names this plan, if the default plan does not have the same
    /// difference.
    Plan(&'p str, Option<&'p Limit>, Option<&'p Limit>),
    /// A key of a policy, with its old and its new value.
    Key(&'static str, String, String),
    /// So many rows of files have no effect any more, and their descriptors have the default plan.
    LostRows(usize),
    /// The values that the rule matches: new ones, and removed ones.
    Values(Vec<String>, Vec<String>),
    /// A descriptor that the rule matches on one side only, with the rules that it meets before and now.
    Met {
        example: String,
        old: Option<&'p Rule>,
        new: Option<&'p Rule>,
    },
    /// A limit that one descriptor of a request replaces for another one, on one side only.
    Together {
        /// Both descriptors.
        example: String,
        limit: &'p Limit,
        /// True if it is replaced now and was not before; false for the reverse.
        is_replaced_now: bool,
    },
    MoreExamples(usize),
}

weir_engine::named! {
    #[derive(PartialOrd, Ord)]
    pub enum Kind {
        Added = "added",
        Removed = "removed",
        Changed = "changed",
        /// It is the same with another path.
        Renamed = "renamed",
        /// Some of its descriptors meet another old rule.
        Moved = "moved",
    }
}

#[derive(Debug)]
pub struct RuleChange<'p> {
    pub kind: Kind,
    /// The rule that they met before. For a new rule, the rule that it replaces for them.
    pub old: Option<&'p Rule>,
    /// The rule that they meet now. For a removed rule, the rule that replaces it for them.
    pub new: Option<&'p Rule>,
    /// One such descriptor, if one is known.
    pub example: Option<String>,
    /// Whether any descriptor meets the rules, as far as weir knows. If not, the change affects no answer.
    pub is_met: bool,
    pub effects: Vec<Effect<'p>>,
    pub direction: Direction,
    /// Whether states are kept or forgotten.
    pub states: Vec<StateChange<'p>>,
}

impl RuleChange<'_> {
    pub fn forgets(&self) -> bool {
        self.states.iter().any(|state| matches!(state.fate, Fate::Forgotten(_)))
    }

    /// Removes the directions, because no descriptor meets the rule.
    fn quiet(&mut self) {
        self.effects.iter_mut().for_each(|effect| effect.direction = Direction::Neither);
        self.direction = Direction::Neither;
        self.states.clear();
    }
}

/// An unknown effect on some descriptors.
#[derive(Debug)]
pub struct CouldNotTell<'p> {
    pub domain: &'p str,
    /// The first rule that they may have met before.
    pub old: Option<&'p Rule>,
    /// The first rule that they may meet now.
    pub new: Option<&'p Rule>,
    pub why: String,
}

#[derive(Debug)]
pub struct DomainChange<'p> {
    /// Its new name, or the name of a removed domain.
    pub name: &'p str,
    /// Added, removed, changed or renamed.
    pub kind: Kind,
    /// The old name, if it differs.
    pub was: Option<&'p str>,
    pub effects: Vec<Effect<'p>>,
}

#[derive(Debug, Default)]
pub struct Comparison<'p> {
    pub domains: Vec<DomainChange<'p>>,
    /// Rules, by domain and in the order of the new policies. Removed rules come last.
    pub rules: Vec<RuleChange<'p>>,
    pub same: usize,
    /// How many rows of files lose their effect.
    pub lost_rows: usize,
    /// Unknown effects. There may be changes that are not in `rules`.
    pub unknown: Vec<CouldNotTell<'p>>,
}

impl Comparison<'_> {
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty() && self.rules.is_empty()
    }

    /// The number of changes in a direction. `Both` counts as stricter and as looser.
    pub fn with_direction(&self, direction: Direction) -> usize {
        let has_it = |own: Direction| own == direction || own == Direction::Both;
        let of_domain = |change: &DomainChange<'_>| change.effects.iter().any(|effect| has_it(effect.direction));
        self.rules.iter().filter(|change| has_it(change.direction)).count()
            + self.domains.iter().filter(|change| of_domain(change)).count()
    }

    pub fn forgetting(&self) -> usize {
        self.rules.iter().filter(|change| change.forgets()).count()
    }

    pub fn of_kind(&self, kind: Kind) -> usize {
        self.rules.iter().filter(|change| change.kind == kind).count()
    }
}

pub fn compare<'p>(old: &'p PolicySet, new: &'p PolicySet) -> Comparison<'p> {
    compare_with_rows(old, new, &[])
}

/// The same with the rows of files beside the policies.
pub fn compare_with_rows<'p>(old: &'p PolicySet, new: &'p PolicySet, rows: &[Row]) -> Comparison<'p> {
    let lost = LostRows::of(old, new, rows);
    let pairs = pairs::pairs(&Side::new(old), &Side::new(new));
    let mut observed = walk::observe(old, new);
    let changes::Changes { mut changes, same } = changes::changes(&pairs.rules, &mut observed, &lost);
    // This order does not depend on the order of the domains in the policies.
    changes.sort_by(|one, other| place(one).cmp(&place(other)));
    let domains = domains(old, new, &pairs.renamed);
    Comparison { domains, rules: changes, same, lost_rows: lost.all(), unknown: observed.unknown }
}

/// The old or the new policies.
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

/// The sort key of a change: its domain, then the order of the rules.
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
    let keys = [
        // A denied request leaves hits to later ones with one kind of charging, and takes them with the other.
        (Direction::Both, "charging", charging(before), charging(after)),
        (Direction::Neither, "on_error", on_error(before), on_error(after)),
    ];
    let changed = keys.into_iter().filter(|(_, _, before, after)| before != after);
    changed
        .map(|(direction, key, before, after)| Effect { direction, subject: Subject::Key(key, before, after) })
        .collect()
}
