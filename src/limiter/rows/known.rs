//! The rows that a process knows: some of a store that processes share, or all of its own, with the memory store. Decisions
//! find the limits of a descriptor here.
//!
//! Not here: reading rows from a store (stores.rs), and operators (rows.rs).

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use weir_engine::overrides::FittedOverride;
use weir_engine::plans::PlanLimits;
use weir_engine::{Micros, RowContent, Rule};
use weir_store::Store;

use super::built::BuiltLimits;
use super::cache::RowCache;
use super::process::ProcessRows;
use super::row::KnownRow;

/// The rows that a process knows, and the limits that it has built of them.
pub struct KnownRows {
    pub(crate) kept: KeptRows,
    built: BuiltLimits,
}

#[expect(clippy::large_enum_variant, reason = "a process has one")]
pub(crate) enum KeptRows {
    /// Recently used rows of a store that processes share.
    Cached(RowCache),
    /// All rows, because the store in this process keeps none.
    OfProcess(ProcessRows),
}

/// The limits of a descriptor of a rule with rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowLimits<'p> {
    OfPlan(&'p PlanLimits),
    /// The row's own numbers, or those of an override of some limits.
    Own(Arc<PlanLimits>),
}

impl Deref for RowLimits<'_> {
    type Target = PlanLimits;

    fn deref(&self) -> &PlanLimits {
        match self {
            Self::OfPlan(limits) => limits,
            Self::Own(limits) => limits,
        }
    }
}

impl<'p> From<Cow<'p, PlanLimits>> for RowLimits<'p> {
    fn from(limits: Cow<'p, PlanLimits>) -> Self {
        match limits {
            Cow::Borrowed(limits) => Self::OfPlan(limits),
            Cow::Owned(limits) => Self::Own(limits.into()),
        }
    }
}

impl KnownRows {
    /// No rows yet, of this store.
    #[must_use]
    pub fn of(store: &dyn Store) -> Self {
        let kept = match store.texts() {
            None => KeptRows::OfProcess(ProcessRows::default()),
            Some(_) => KeptRows::Cached(RowCache::default()),
        };
        Self { kept, built: BuiltLimits::default() }
    }

    /// The number of rows in this process.
    #[must_use]
    pub fn count(&self) -> usize {
        match &self.kept {
            KeptRows::Cached(rows) => rows.len(),
            KeptRows::OfProcess(rows) => rows.len(),
        }
    }

    /// The cache, if a store that processes share keeps the rows.
    pub(crate) fn cache(&self) -> Option<&RowCache> {
        match &self.kept {
            KeptRows::Cached(cache) => Some(cache),
            KeptRows::OfProcess(_) => None,
        }
    }

    /// Returns the row at a key, or the default if there is none. `None` if the row must be read first. A cached row ends
    /// by the clock of this process. If the row is in force by the store's clock, the store returns its version, and weir decides
    /// again under the row. Only a decision without the store depends on the clock of this process. [rw-4]
    pub(crate) fn find(&self, key: &str, now: impl FnOnce() -> Micros) -> Option<KnownRow> {
        match &self.kept {
            KeptRows::OfProcess(rows) => Some(rows.find(key, now)),
            KeptRows::Cached(cache) => cache.find(key).map(|row| row.at(now)),
        }
    }

    /// Returns the limits of a rule with this row, and with the limits that an override names. The second value is false if
    /// the row's content does not fit the rule or the override: the default plan then applies. [rw-3]
    pub(crate) fn limits<'p>(
        &self,
        rule: &'p Rule,
        row: &KnownRow,
        overridden: Option<&FittedOverride>,
    ) -> (RowLimits<'p>, bool) {
        let (limits, is_fit) = self.limits_of_row(rule, row);
        match overridden.map(|overridden| (overridden, overridden.over(&limits))) {
            None => (limits, is_fit),
            Some((_, Some(limits))) => (RowLimits::Own(limits.into()), is_fit),
            Some((overridden, None)) => {
                (RowLimits::Own(overridden.limits().iter().cloned().map(Some).collect()), false)
            }
        }
    }

    fn limits_of_row<'p>(&self, rule: &'p Rule, row: &KnownRow) -> (RowLimits<'p>, bool) {
        let default = || rule.rows.as_deref().map_or(&[][..], |plans| plans.default_limits());
        let Some(content) = &row.content else { return (RowLimits::OfPlan(default()), true) };
        let limits = || content.limits(rule).ok();
        let limits = match **content {
            RowContent::Plan(_) => limits().map(RowLimits::from),
            RowContent::Own(_) => {
                let build = || limits().map(|limits| limits.into_owned().into());
                self.built.find(rule, row.version, content, build).map(RowLimits::Own)
            }
        };
        match limits {
            Some(limits) => (limits, true),
            None => (RowLimits::OfPlan(default()), false),
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::overrides::Numbers;
    use weir_engine::plans::{PlanNumbers, Plans};
    use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use weir_engine::{Limit, PolicySet, Unit};

    use super::*;

    /// A customer's own limits were built for each decision.
    #[test]
    fn decisions_under_one_row_share_its_limits() {
        let limits = vec![Limit::per_unit(3, Unit::Minute)];
        let gold = PlanNumbers { plan: "gold".into(), rate: Some((7, Unit::Minute.window())) };
        let rows = Plans::of("free", &limits, &[vec![gold]]).ok().map(Arc::new);
        let rule = Some(RuleSpec { rows, ..RuleSpec::of(RuleKind::Limits(limits)) });
        let descriptors = vec![NodeSpec { key: "tenant".into(), rule, ..NodeSpec::default() }];
        let domain = DomainSpec { name: "api".into(), mode: None, on_error: None, descriptors };
        let policies = PolicySet::compile(vec![domain]).unwrap();
        let rule = &policies.rules()[0];
        let known = KnownRows { kept: KeptRows::OfProcess(ProcessRows::default()), built: BuiltLimits::default() };
        let row = |version, content| KnownRow { version, content: Some(Arc::new(content)), until: None };
        let own = |requests, unit: Unit| {
            RowContent::Own([Numbers { name: None, requests, window: unit.window(), burst: None }].into())
        };
        let shared = |row: &KnownRow| match known.limits(rule, row, None) {
            (RowLimits::Own(limits), true) => limits,
            other => panic!("{other:?}"),
        };
        let (first, second) = (row(1, own(50, Unit::Minute)), row(2, own(60, Unit::Hour)));
        let (limits, others) = (shared(&first), shared(&second));
        assert!(Arc::ptr_eq(&limits, &shared(&first)) && Arc::ptr_eq(&others, &shared(&second)));
        assert_eq!(limits[0].as_ref().map(Limit::requests), Some(50));
        assert_eq!(others[0].as_ref().map(Limit::requests), Some(60));
        let plans = rule.rows.as_deref().unwrap();
        let of_plan = |plan| RowLimits::OfPlan(plans.limits(plan).unwrap());
        assert_eq!(known.limits(rule, &row(3, RowContent::Plan("gold".into())), None), (of_plan("gold"), true));
        let unfit = row(4, RowContent::Plan("lead".into()));
        assert_eq!(known.limits(rule, &unfit, None), (of_plan("free"), false));
    }
}
