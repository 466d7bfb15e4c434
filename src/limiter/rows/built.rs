//! The limits of rows with their own numbers, built once for each version of a row and each load of the policies.
//!
//! Not here: how limits are built (known.rs). The limits of plans are built when policies load.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use weir_engine::plans::{PlanLimits, Plans};
use weir_engine::{RowContent, Rule};
use weir_lifecycle::MemoryPart;

use super::generations::Generations;

/// The most rows whose limits are kept; fewer if the memory of the process is small. Beyond it, limits are built again at
/// the next request.
const BUILT_MAX: usize = 16_384;
/// The least number of them.
const BUILT_MIN: usize = 256;
/// What the limits of a usual row take: four limits. A row can have eight.
const BUILT_BYTES: usize = 1_024;
/// The number of parts with their own locks, which makes it rare for cores to wait for each other.
const SHARDS: usize = 16;

/// By the version of their row.
pub(super) struct BuiltLimits([Mutex<Generations<u64, Built>>; SHARDS]);

#[derive(Clone)]
struct Built {
    /// Those of the rule. Weak, so that replaced policies are freed; their address is not used again until this is gone.
    plans: Weak<Plans>,
    /// Two rows can have one version: it is a hash.
    content: Arc<RowContent>,
    /// None if the content does not fit the rule.
    limits: Option<Arc<PlanLimits>>,
}

impl Default for BuiltLimits {
    fn default() -> Self {
        Self::with_room(MemoryPart::ROWS.bytes() / 4)
    }
}

impl BuiltLimits {
    /// Limits that take at most about this many bytes.
    fn with_room(bytes: usize) -> Self {
        let generation_max = (bytes / BUILT_BYTES).clamp(BUILT_MIN, BUILT_MAX) / SHARDS / 2;
        Self(std::array::from_fn(|_| Mutex::new(Generations::new(generation_max))))
    }

    /// The limits of a rule with the own numbers of a row. None if they do not fit. Calls `build` if they are not known yet.
    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits")]
    pub(super) fn find(
        &self,
        rule: &Rule,
        version: u64,
        content: &Arc<RowContent>,
        build: impl FnOnce() -> Option<Arc<PlanLimits>>,
    ) -> Option<Arc<PlanLimits>> {
        let plans = rule.rows.as_ref().map_or_else(Weak::new, Arc::downgrade);
        let shard = &self.0[version as usize % SHARDS];
        let known = shard.lock().find(&version);
        match known.filter(|known| known.plans.ptr_eq(&plans) && known.content == *content) {
            Some(known) => known.limits,
            None => {
                let limits = build();
                shard.lock().insert(version, Built { plans, content: content.clone(), limits: limits.clone() });
                limits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use weir_engine::overrides::Numbers;
    use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use weir_engine::{Count, Limit, PolicySet, Unit};

    use super::*;

    fn policies() -> PolicySet {
        let limits = vec![Limit::per_unit(3, Unit::Minute)];
        let rows = Plans::of("free", &limits, &[vec![]]).ok().map(Arc::new);
        let rule = Some(RuleSpec { rows, ..RuleSpec::of(RuleKind::Limits(limits)) });
        let descriptors = vec![NodeSpec { key: "tenant".into(), rule, ..NodeSpec::default() }];
        PolicySet::compile(vec![DomainSpec { name: "api".into(), mode: None, on_error: None, descriptors }]).unwrap()
    }

    fn own(requests: Count) -> Arc<RowContent> {
        let numbers = Numbers { name: None, requests, window: Unit::Minute.window(), burst: None };
        Arc::new(RowContent::Own([numbers].into()))
    }

    fn limits(requests: u32) -> Arc<PlanLimits> {
        [Some(Limit::per_unit(requests, Unit::Minute))].into()
    }

    #[test]
    fn limits_are_built_again_only_for_another_row_or_another_rule() {
        let (built, builds) = (BuiltLimits::with_room(0), Cell::new(0));
        let find = |policies: &PolicySet, version, content: &Arc<RowContent>, limits: Option<Arc<PlanLimits>>| {
            let build = || {
                builds.set(builds.get() + 1);
                limits
            };
            (built.find(&policies.rules()[0], version, content, build), builds.get())
        };
        let (old, seven) = (policies(), own(7));
        assert_eq!(find(&old, 1, &seven, Some(limits(7))), (Some(limits(7)), 1));
        assert_eq!(find(&old, 1, &seven, None), (Some(limits(7)), 1));
        // The row is read again, and equal.
        assert_eq!(find(&old, 1, &own(7), None), (Some(limits(7)), 1));
        assert_eq!(find(&old, 2, &own(8), Some(limits(8))), (Some(limits(8)), 2), "another row");
        assert_eq!(find(&old, 1, &own(9), Some(limits(9))), (Some(limits(9)), 3), "another row with an equal version");
        assert_eq!(find(&old, 3, &own(0), None), (None, 4));
        assert_eq!(find(&old, 3, &own(0), Some(limits(7))), (None, 4), "what does not fit is known too");
        // Replaced policies are freed, and limits of new ones at their place are other limits.
        drop(old);
        for number in 0..10 {
            assert_eq!(
                find(&policies(), 2, &own(8), Some(limits(number))),
                (Some(limits(number)), 5 + number),
                "a load"
            );
        }
    }

    #[test]
    fn limits_that_are_kept_are_bounded() {
        assert!(size_of::<Option<Limit>>() <= BUILT_BYTES / 4, "{}", size_of::<Option<Limit>>());
        let (policies, built, row) = (policies(), BuiltLimits::with_room(usize::MAX), own(7));
        for version in 0..3 * BUILT_MAX as u64 {
            built.find(&policies.rules()[0], version, &row, || Some(limits(7)));
        }
        let kept: usize = built.0.iter().map(|shard| shard.lock().len()).sum();
        assert!((BUILT_MAX / 2..=BUILT_MAX).contains(&kept), "{kept}");
    }
}
