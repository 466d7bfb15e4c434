//! Builds the changes of rules for a report. Each transition of descriptors belongs to the change of one rule.
//!
//! The change of a new rule includes the rules that its descriptors met before. The change of a removed rule includes
//! the rules that its descriptors meet now. If the values of a rule differ, its change includes the transitions of
//! those values. Every other transition is a moved rule.

use std::collections::{BTreeMap, HashMap, HashSet};

use weir_engine::{Role, Rule};

use super::limits::{self, OtherQuotas};
use super::pairs::Pair;
use super::row_files::LostRows;
use super::walk::{Observed, Transition};
use super::{CouldNotTell, Direction, Effect, Kind, RuleChange, Subject, states, together, values};

/// The most examples of one change. The direction of a change counts the others too.
const EXAMPLES_MAX: usize = 8;

pub(super) struct Changes<'p> {
    pub(super) changes: Vec<RuleChange<'p>>,
    pub(super) same: usize,
}

pub(super) fn changes<'p>(pairs: &[Pair<'p>], observed: &mut Observed<'p>, lost: &LostRows) -> Changes<'p> {
    let mut placed = Placed::new(pairs, observed, lost);
    let mut all = Changes { changes: Vec::new(), same: 0 };
    for (number, pair) in pairs.iter().enumerate() {
        let changes = placed.of_pair(number, *pair);
        let is_moved = placed.has_moved(*pair);
        all.same += usize::from(changes.is_empty() && !is_moved);
        all.changes.extend(changes);
    }
    let moved = std::mem::take(&mut placed.moved);
    all.changes.extend(moved.into_iter().map(|number| placed.of_transition(number, Kind::Moved)));
    all
}

struct Placed<'o, 'p> {
    transitions: &'o [Transition<'p>],
    lost: &'o LostRows,
    /// Effects of descriptors on each other, by transition.
    together: BTreeMap<usize, Vec<Effect<'p>>>,
    quotas: HashMap<&'p str, OtherQuotas>,
    unknown: HashSet<&'p str>,
    /// By pair: the transition between its two rules, and the other transitions of the same change.
    kept: HashMap<usize, usize>,
    with: HashMap<usize, Vec<usize>>,
    /// The first transition from each removed rule.
    of_gone: HashMap<u32, usize>,
    /// Transitions that form their own change, and their rules.
    moved: Vec<usize>,
    has_moved: [HashSet<u32>; 2],
}

impl<'o, 'p> Placed<'o, 'p> {
    fn new(pairs: &[Pair<'p>], observed: &'o mut Observed<'p>, lost: &'o LostRows) -> Self {
        let Observed { transitions, unknown } = observed;
        let together = together::effects(transitions).unwrap_or_else(|together::TooMany| {
            let first = transitions
                .iter()
                .find(|it| [it.old, it.new].into_iter().flatten().any(|rule| !rule.replaces.is_empty()));
            unknown.extend(first.map(|first| CouldNotTell {
                domain: first.new.or(first.old).map_or("", |rule| &rule.domain),
                old: first.old,
                new: first.new,
                why: format!("`replaces` affects more than {} pairs of descriptors", together::PAIRS_MAX),
            }));
            BTreeMap::new()
        });
        let mut placed = Self {
            transitions,
            lost,
            together,
            quotas: quotas(transitions),
            unknown: unknown.iter().map(|unknown| unknown.domain).collect(),
            kept: HashMap::new(),
            with: HashMap::new(),
            of_gone: HashMap::new(),
            moved: Vec::new(),
            has_moved: [HashSet::new(), HashSet::new()],
        };
        placed.place(pairs);
        placed
    }

    /// Finds the change of each transition.
    fn place(&mut self, pairs: &[Pair<'p>]) {
        let number_of = |rule: fn(&Pair<'p>) -> Option<&'p Rule>| -> HashMap<u32, usize> {
            pairs.iter().enumerate().filter_map(|(number, pair)| Some((rule(pair)?.id, number))).collect()
        };
        let (by_old, by_new) = (number_of(|pair| pair.0), number_of(|pair| pair.1));
        for (number, Transition { old, new, .. }) in self.transitions.iter().enumerate() {
            let of_old = old.and_then(|old| by_old.get(&old.id)).copied();
            let of_new = new.and_then(|new| by_new.get(&new.id)).copied();
            if of_old.is_some() && of_old == of_new {
                self.kept.extend(of_old.map(|pair| (pair, number)));
                continue;
            }
            let is_added = |pair: &usize| pairs[*pair].0.is_none();
            let is_removed = |pair: &usize| pairs[*pair].1.is_none();
            let is_for_others = |pair: &usize| match pairs[*pair] {
                (Some(one), Some(other)) => is_renamed(one, other) || !values::are_same(one, other),
                _ => false,
            };
            if let Some(old) = old.filter(|_| of_old.as_ref().is_some_and(is_removed)) {
                self.of_gone.entry(old.id).or_insert(number);
            }
            let place = of_new.filter(is_added).or(of_old.filter(is_removed));
            let place = place.or(of_old.filter(is_for_others)).or(of_new.filter(is_for_others));
            match place {
                Some(pair) => self.with.entry(pair).or_default().push(number),
                None => {
                    self.moved.push(number);
                    self.has_moved[0].extend(old.map(|rule| rule.id));
                    self.has_moved[1].extend(new.map(|rule| rule.id));
                }
            }
        }
    }

    fn has_moved(&self, (old, new): Pair<'p>) -> bool {
        old.is_some_and(|rule| self.has_moved[0].contains(&rule.id))
            || new.is_some_and(|rule| self.has_moved[1].contains(&rule.id))
    }

    fn of_pair(&mut self, number: usize, pair: Pair<'p>) -> Vec<RuleChange<'p>> {
        let with = self.with.remove(&number).unwrap_or_default();
        let (kind, rule) = match pair {
            (Some(one), Some(other)) => return self.of_both(number, one, other, &with).into_iter().collect(),
            (Some(gone), None) => (Kind::Removed, gone),
            (None, Some(added)) => (Kind::Added, added),
            (None, None) => return Vec::new(),
        };
        let Some((first, others)) = with.split_first() else {
            if let Some(number) = self.of_gone.get(&rule.id).copied().filter(|_| kind == Kind::Removed) {
                // The change of the new rule includes this transition.
                return vec![self.of_transition(number, kind)];
            }
            // No known descriptor meets the rule.
            let mut change = change(kind, pair.0, pair.1, limits::effects(pair.0, pair.1));
            change.is_met = self.unknown.contains(&*rule.domain);
            if !change.is_met {
                change.quiet();
            }
            return vec![change];
        };
        let mut changes = vec![self.of_transition(*first, kind)];
        changes.extend(others.iter().map(|number| self.of_transition(*number, Kind::Moved)));
        changes
    }

    fn of_both(&mut self, number: usize, one: &'p Rule, other: &'p Rule, with: &[usize]) -> Option<RuleChange<'p>> {
        let kind = if is_renamed(one, other) { Kind::Renamed } else { Kind::Changed };
        let kept = self.kept.get(&number).copied();
        let is_kept = kept.is_some() || self.unknown.contains(&*one.domain);
        let is_met = is_kept || !with.is_empty() || self.has_moved((Some(one), Some(other)));
        let mut of_limits = self.effects(Some(one), Some(other));
        if !is_kept {
            of_limits.iter_mut().for_each(|effect| effect.direction = Direction::Neither);
        }
        let mut change = change(kind, Some(one), Some(other), of_limits);
        limits::add_marks(one, other, &mut change.effects);
        values::add_values(one, other, &mut change.effects);
        change.is_met = is_met;
        if !is_met {
            change.states.clear();
        }
        let of_others =
            with.iter().map(|number| &self.transitions[*number]).map(|it| self.lost.between(it.old, it.new));
        let lost_rows = self.lost.between(Some(one), Some(other)) + of_others.sum::<usize>();
        add_lost(lost_rows, limits::of_lost_rows(Some(one), Some(other)), &mut change.effects);
        change.example = kept.map(|kept| self.transitions[kept].example.clone());
        change.effects.extend(kept.and_then(|kept| self.together.remove(&kept)).unwrap_or_default());
        for number in with {
            let Transition { old, new, example, .. } = &self.transitions[*number];
            let direction = tend_of(&self.effects(*old, *new));
            let mut example = example.clone();
            if one.domain != other.domain {
                let domain = new.or(*old).map_or("", |rule| &*rule.domain);
                example = format!("{example} in domain {domain}");
            }
            let subject = Subject::Met { example, old: *old, new: *new };
            change.effects.push(Effect { direction, subject });
            change.effects.extend(self.together.remove(number).unwrap_or_default());
        }
        change.direction = tend_of(&change.effects);
        shorten(&mut change.effects);
        (kind == Kind::Renamed || !change.effects.is_empty()).then_some(change)
    }

    fn of_transition(&mut self, number: usize, kind: Kind) -> RuleChange<'p> {
        let Transition { old, new, example, is_weighed } = &self.transitions[number];
        let mut effects = self.effects(*old, *new);
        if kind == Kind::Removed {
            // The kind of the change already shows this.
            effects.retain(|effect| !matches!(effect.subject, Subject::Key("unlimited", ..)));
        }
        effects.extend(self.together.remove(&number).unwrap_or_default());
        add_lost(self.lost.between(*old, *new), limits::of_lost_rows(*old, *new), &mut effects);
        let mut change = change(kind, *old, *new, effects);
        if *is_weighed && (old.is_none() || new.is_none()) {
            // The change of the descriptor without the entry shows them.
            change.states.clear();
        }
        shorten(&mut change.effects);
        change.example = Some(example.clone());
        change
    }

    fn effects(&self, old: Option<&'p Rule>, new: Option<&'p Rule>) -> Vec<Effect<'p>> {
        let domain = new.or(old).map_or("", |rule| &*rule.domain);
        limits::effects_beside(old, new, self.quotas.get(domain).copied().unwrap_or_default())
    }
}

fn change<'p>(kind: Kind, old: Option<&'p Rule>, new: Option<&'p Rule>, effects: Vec<Effect<'p>>) -> RuleChange<'p> {
    let direction = tend_of(&effects);
    RuleChange { kind, old, new, example: None, is_met: true, effects, direction, states: states::changes(old, new) }
}

fn tend_of(effects: &[Effect<'_>]) -> Direction {
    effects.iter().fold(Direction::Neither, |direction, effect| direction.and(effect.direction))
}

fn add_lost(rows: usize, direction: Direction, effects: &mut Vec<Effect<'_>>) {
    if rows > 0 {
        effects.push(Effect { direction, subject: Subject::LostRows(rows) });
    }
}

/// Keeps the first examples.
fn shorten(effects: &mut Vec<Effect<'_>>) {
    let mut examples = 0;
    effects.retain(|effect| {
        let is_example = matches!(effect.subject, Subject::Met { .. } | Subject::Together { .. });
        examples += usize::from(is_example);
        !is_example || examples <= EXAMPLES_MAX
    });
    if examples > EXAMPLES_MAX {
        effects.push(Effect { direction: Direction::Neither, subject: Subject::MoreExamples(examples - EXAMPLES_MAX) });
    }
}

fn is_renamed(one: &Rule, other: &Rule) -> bool {
    one.domain != other.domain || one.path != other.path
}

/// The domains in which descriptors meet quotas that can deny.
fn quotas<'p>(transitions: &[Transition<'p>]) -> HashMap<&'p str, OtherQuotas> {
    let mut quotas: HashMap<&'p str, OtherQuotas> = HashMap::new();
    for Transition { old, new, .. } in transitions {
        let is_quota = |rule: &&Rule| rule.role == Role::Quota && !rule.unlimited;
        if let Some(rule) = old.filter(is_quota) {
            quotas.entry(&rule.domain).or_default().before = true;
        }
        if let Some(rule) = new.filter(is_quota) {
            quotas.entry(&rule.domain).or_default().now = true;
        }
    }
    quotas
}
