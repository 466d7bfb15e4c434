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
use super::overrides::{Misfit, Numbers, numbers_text, replaced, wildcard_texts};
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
    /// The entry at this position, from 0: the first that no rule has, or the text of a wildcard.
    Entry(usize),
    Content,
}

/// Why a row has no effect under a policy set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowMisfit {
    /// The descriptor matches no rule, or the numbers do not fit the rule's limits.
    #[error(transparent)]
    Misfit(Misfit),
    /// Contains the path of the rule.
    #[error("the descriptor meets the rule {0}, which has no rows")]
    NoRows(Box<str>),
    /// Contains the name, and the names of the rule's plans.
    #[error("the rule has no plan {:?}: there is {}", .0, .1.join(", "))]
    NoPlan(Box<str>, Vec<Box<str>>),
}

impl RowMisfit {
    #[must_use]
    pub fn field(&self) -> RowField {
        match self {
            Self::Misfit(Misfit::NoDomain) => RowField::Domain,
            Self::Misfit(Misfit::NoRule { met }) => RowField::Entry(*met),
            Self::Misfit(Misfit::OfWildcard { at, .. }) => RowField::Entry(*at),
            Self::NoRows(_) => RowField::Descriptor,
            Self::Misfit(_) | Self::NoPlan(..) => RowField::Content,
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
/// When the descriptor matches no rule with rows, or has the text of a wildcard.
pub fn row_key<'p>(
    policies: &'p PolicySet,
    domain: &str,
    entries: &[Entry<'_>],
) -> Result<(&'p Rule, String), RowMisfit> {
    let domain = policies.domain(domain).ok_or(RowMisfit::Misfit(Misfit::NoDomain))?;
    let Match { rule, shared, .. } = policies.find(domain, entries);
    let no_rule = || RowMisfit::Misfit(Misfit::NoRule { met: policies.trace(domain, entries).len() });
    let rule = rule.ok_or_else(no_rule)?;
    if rule.rows.is_none() {
        return Err(RowMisfit::NoRows(rule.path.clone()));
    }
    if let Some(at) = wildcard_texts(domain, rule, entries).next() {
        return Err(RowMisfit::Misfit(Misfit::of_wildcard(entries, at)));
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
