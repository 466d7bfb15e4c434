//! The limits in force of stored keys, for people: those of an override, a row, or the rule.
//!
//! Not here: the limits of a request (matched.rs).

use std::borrow::Cow;
use std::time::Instant;

use weir_engine::overrides::FittedOverride;
use weir_engine::plans::Plans;
use weir_engine::rows::ROW_ID;
use weir_engine::{Limit, Micros, Rule};
use weir_store::StoreError;

use super::policies::InForce;
use super::rows::known::RowLimits;
use super::rows::row::KnownRow;
use super::stores::Stores;

/// A limit of one descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DescriptorLimit<'p> {
    pub(super) limit: Cow<'p, Limit>,
    /// Whether the descriptor's row makes the limit unlimited at present. The limit is then that of another plan: its state is
    /// kept, and counts again under that plan. [rw-1]
    pub(super) is_unlimited: bool,
}

impl Stores {
    /// The limits of descriptors of one rule, in the order of the tags of their keys. Reads all rows in one batch, from the
    /// store, because another process may have changed them.
    /// Fails when a store does not answer.
    pub(super) async fn limits_of<'p>(
        &self,
        in_force: &'p InForce,
        rule: &'p Rule,
        tags: &[&str],
    ) -> Result<Vec<Vec<DescriptorLimit<'p>>>, StoreError> {
        let now = self.options.clock.now();
        let overrides = in_force.overrides.as_ref();
        let set: Vec<Option<&FittedOverride>> =
            tags.iter().map(|tag| overrides.and_then(|overrides| overrides.limits(tag, || now))).collect();
        let Some(plans) = rule.rows.as_deref() else {
            return Ok(set.into_iter().map(|set| as_they_are(set.map_or(&rule.limits, |set| set.limits()))).collect());
        };
        // An override of all limits leaves nothing to the row. [rw-3]
        let names_all = |set: &Option<&FittedOverride>| set.is_some_and(FittedOverride::names_all);
        let with_row = tags.iter().zip(&set).filter(|(_, set)| !names_all(set));
        let row_keys: Vec<String> = with_row.map(|(tag, _)| format!("{tag}{ROW_ID}")).collect();
        let mut rows = self.rows_in_force(&row_keys, now).await?.into_iter();
        let limits = set.into_iter().map(|set| match set {
            Some(set) if set.names_all() => as_they_are(set.limits()),
            set => under_row(plans, self.options.rows.limits(rule, &rows.next().unwrap_or_default(), set).0),
        });
        Ok(limits.collect())
    }

    /// The rows at these keys. An ended row is absent. Leaves the cache as it is, because these rows are not
    /// those of requests.
    async fn rows_in_force(&self, keys: &[String], now: Micros) -> Result<Vec<KnownRow>, StoreError> {
        let Some(texts) = self.options.store.texts() else {
            return Ok(keys.iter().map(|key| self.options.rows.find(key, || now).unwrap_or_default()).collect());
        };
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let deadline = Instant::now() + self.options.budget;
        let read = texts.read_rows(&keys, deadline).get().await?;
        Ok(keys.iter().zip(&read).map(|(key, read)| KnownRow::of(key, read).0.at(|| now)).collect())
    }
}

fn as_they_are(limits: &[Limit]) -> Vec<DescriptorLimit<'_>> {
    limits.iter().map(|limit| DescriptorLimit { limit: Cow::Borrowed(limit), is_unlimited: false }).collect()
}

/// The limits of a row, then those that it makes unlimited, once for each shape that a plan gives them.
fn under_row<'p>(plans: &'p Plans, of_row: RowLimits<'p>) -> Vec<DescriptorLimit<'p>> {
    let unlimited: Vec<usize> = (0..of_row.len()).filter(|at| of_row[*at].is_none()).collect();
    let mut limits: Vec<DescriptorLimit<'p>> = match of_row {
        RowLimits::OfPlan(limits) => limits.iter().flatten().map(Cow::Borrowed).map(in_force).collect(),
        RowLimits::Own(limits) => limits.iter().flatten().cloned().map(Cow::Owned).map(in_force).collect(),
    };
    for at in unlimited {
        for limit in plans.iter().filter_map(|(_, of_plan)| of_plan[at].as_ref()) {
            // Another limit may have that state now.
            if limits.iter().all(|other| other.limit.id() != limit.id()) {
                limits.push(DescriptorLimit { limit: Cow::Borrowed(limit), is_unlimited: true });
            }
        }
    }
    limits
}

fn in_force(limit: Cow<'_, Limit>) -> DescriptorLimit<'_> {
    DescriptorLimit { limit, is_unlimited: false }
}
