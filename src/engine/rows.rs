//! Rows: the numbers of one descriptor, which are a plan's or its own. The store keeps a row beside the descriptor's
//! states. [rw-1]
//!
//! Not here: where rows are stored and how they are written (package limiter), and the decision that compares versions
//! (store).

use std::borrow::Cow;
use std::fmt;

use sha2::{Digest as _, Sha256};

use super::descriptor::{Entries, Entry, as_entries};
use super::key;
use super::overrides::{Misfit, Numbers, numbers_text, replaced};
use super::plans::PlanLimits;
use super::policy::{Match, PolicySet, Rule};
use super::time::Micros;

/// The part after the tag in the key of a row. No limit has this id. [rw-2]
pub const ROW_ID: &str = "row";
/// The most bytes of a note.
pub const NOTE_BYTES_MAX: usize = 256;

/// How long a row stays after its end, so that a clock that is a little fast removes none too early. [rw-4]
pub const ENDED_ROW_KEPT_US: Micros = 60_000_000;

/// A row: the numbers of one descriptor in place of the default plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub domain: Box<str>,
    /// The descriptor. The row stores it, because the key has only a hash of a long one. [ky-3]
    pub entries: Entries,
    pub content: RowContent,
    /// From this instant of the store's clock on, the default plan applies again. [rw-4]
    pub until: Option<Micros>,
    /// A note for people. It may be empty.
    pub note: Box<str>,
}

/// The numbers of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowContent {
    /// The numbers of the plan with this name.
    Plan(Box<str>),
    /// Numbers for some limits of the rule. The other limits use the default plan.
    Own(Box<[Numbers]>),
}

impl fmt::Display for RowContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(name) => write!(f, "plan {name}"),
            Self::Own(numbers) => f.write_str(&numbers_text(numbers)),
        }
    }
}

/// The field of a row that does not fit a policy set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowField {
    Domain,
    Descriptor,
    /// The entry at this position, from 0, is the first that no rule has.
    Entry(usize),
    Content,
}

/// Why a row has no effect under a policy set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowMisfit {
    /// The descriptor matches no rule, or the numbers do not fit the rule's limits.
    Misfit(Misfit),
    /// The matched rule has no rows. Contains the rule's path.
    NoRows(Box<str>),
    /// The rule has no such plan. Contains the name, and the names of the rule's plans.
    NoPlan(Box<str>, Vec<Box<str>>),
    /// The numbers would move the limit to another store. [rw-5]
    OtherStore,
    /// The row is in one store, and its rule's states are in the other since a change of policies. [rw-5]
    Misplaced,
}

impl fmt::Display for RowMisfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misfit(misfit) => misfit.fmt(f),
            Self::NoRows(path) => write!(f, "the descriptor meets the rule {path}, which has no rows"),
            Self::NoPlan(plan, plans) => {
                write!(f, "the rule has no plan {plan:?}: there is {}", plans.join(", "))
            }
            Self::Misplaced => f.write_str("its rule is in the other Redis now: set or import the row again"),
            Self::OtherStore => f.write_str(
                "a rule with one limit per second uses the second Redis, and one with another window uses the first",
            ),
        }
    }
}

impl RowMisfit {
    #[must_use]
    pub fn field(&self) -> RowField {
        match self {
            Self::Misfit(Misfit::NoDomain) => RowField::Domain,
            Self::Misfit(Misfit::NoRule { met }) => RowField::Entry(*met),
            Self::NoRows(_) => RowField::Descriptor,
            Self::Misfit(_) | Self::NoPlan(..) | Self::OtherStore | Self::Misplaced => RowField::Content,
        }
    }
}

impl RowContent {
    /// The limits of a rule with this content.
    ///
    /// # Errors
    /// When the rule has no such plan or limit, or the numbers are out of bounds.
    pub fn limits<'p>(&self, rule: &'p Rule) -> Result<Cow<'p, PlanLimits>, RowMisfit> {
        let Some(plans) = &rule.rows else { return Err(RowMisfit::NoRows(rule.path.clone())) };
        match self {
            Self::Plan(plan) => plans
                .limits(plan)
                .map(Cow::Borrowed)
                .ok_or_else(|| RowMisfit::NoPlan(plan.clone(), plans.iter().map(|(name, _)| name.into()).collect())),
            Self::Own(numbers) => {
                let limits = replaced(rule, numbers).map_err(RowMisfit::Misfit)?;
                Ok(Cow::Owned(limits.into_iter().map(Some).collect()))
            }
        }
    }
}

impl Row {
    #[must_use]
    pub fn descriptor(&self) -> Vec<Entry<'_>> {
        as_entries(&self.entries)
    }
}

/// The rule with rows that a descriptor matches, and the key of the descriptor's row.
///
/// # Errors
/// When the descriptor matches no rule with rows.
pub fn row_key<'p>(
    policies: &'p PolicySet,
    domain: &str,
    entries: &[Entry<'_>],
) -> Result<(&'p Rule, String), RowMisfit> {
    let domain = policies.domain(domain).ok_or(RowMisfit::Misfit(Misfit::NoDomain))?;
    let Match { rule, shared } = policies.find(domain, entries);
    let no_rule = || RowMisfit::Misfit(Misfit::NoRule { met: policies.trace(domain, entries).len() });
    let rule = rule.ok_or_else(no_rule)?;
    if rule.rows.is_none() {
        return Err(RowMisfit::NoRows(rule.path.clone()));
    }
    let mut key = String::new();
    key::write_tag(&mut key, &domain.name, entries.iter().copied(), &shared);
    key.push_str(ROW_ID);
    Ok((rule, key))
}

/// The key of a descriptor's row, without policies: rules with rows share no states.
#[must_use]
pub fn key_of(domain: &str, entries: &[Entry<'_>]) -> String {
    let mut key = String::new();
    key::write_tag(&mut key, domain, entries.iter().copied(), &[]);
    key.push_str(ROW_ID);
    key
}

/// Whether the rule's only limit has a window of one second under one plan and another window under another plan. Its
/// states would then be in two stores. [rw-5]
#[must_use]
pub fn is_in_two_stores(limits: &PlanLimits, rule: &Rule) -> bool {
    let [first] = &*rule.limits else { return false };
    limits.iter().flatten().any(|limit| limit.is_per_second() != first.is_per_second())
}

/// The version of a row: 52 bits of the SHA-256 of its text, so equal texts have equal versions. Never 0, which means
/// no row. [rw-2]
#[must_use]
pub fn version(text: &str) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&Sha256::digest(text.as_bytes())[..8]);
    (u64::from_be_bytes(first) >> 12).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_depends_on_the_text_alone_and_is_a_whole_number_that_lua_holds() {
        assert_eq!(version("a"), version("a"));
        assert_ne!(version("a"), version("b"));
        for text in ["", "a", "{}"] {
            assert!((1..1 << 52).contains(&version(text)));
        }
    }
}
