//! Rows of files that have an effect under the old policies and none under the new ones. [rw-3]
//!
//! Without a file, limits.rs finds that rows can lose their effect, and not how many.

use std::collections::HashMap;

use weir_engine::rows::{Row, row_key};
use weir_engine::{PolicySet, Rule};

/// How many rows lose their effect, by the rules that their descriptors meet before and now.
#[derive(Debug, Default)]
pub(super) struct LostRows(HashMap<(u32, Option<u32>), usize>);

impl LostRows {
    pub(super) fn of(old: &PolicySet, new: &PolicySet, rows: &[Row]) -> Self {
        let mut lost = HashMap::new();
        for row in rows {
            let Some(before) = rule_of(old, row) else { continue };
            if rule_of(new, row).is_none() {
                let now = new.domain(&row.domain).and_then(|domain| new.find(domain, &row.descriptor()).rule);
                *lost.entry((before.id, now.map(|rule| rule.id))).or_default() += 1;
            }
        }
        Self(lost)
    }

    pub(super) fn between(&self, old: Option<&Rule>, new: Option<&Rule>) -> usize {
        old.and_then(|old| self.0.get(&(old.id, new.map(|rule| rule.id)))).copied().unwrap_or(0)
    }

    pub(super) fn all(&self) -> usize {
        self.0.values().sum()
    }
}

/// The rule in which a row has an effect.
fn rule_of<'p>(policies: &'p PolicySet, row: &Row) -> Option<&'p Rule> {
    let (rule, _) = row_key(policies, &row.domain, &row.descriptor()).ok()?;
    row.content.limits(rule).is_ok().then_some(rule)
}
