//! Plans: named numbers for the limits of a rule. A row selects a plan by its name. [rw-1]
//!
//! Not here: rows (rows.rs).

use super::algorithm::LimitError;
use super::descriptor::Count;
use super::limit::{Limit, share_states};
use super::numbers::{Misfit, Numbers};
use super::time::Window;

/// The most plans of one rule.
pub const PLANS_MAX: usize = 64;

/// The limits of a rule under one plan, in the rule's order. None at the position of a limit that the plan does not
/// have.
pub type PlanLimits = [Option<Limit>];

/// The plans of a rule with rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plans {
    /// The plan of descriptors without a row. It has the limits as written.
    default: Box<str>,
    /// The default plan first.
    plans: Vec<(Box<str>, Box<PlanLimits>)>,
}

/// The numbers of one limit under one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanNumbers {
    pub plan: Box<str>,
    /// Hits and window. None if the plan does not have this limit.
    pub rate: Option<(Count, Window)>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlansError {
    #[error("{0:?} is the default plan: its numbers are the limit's own")]
    Default(Box<str>),
    #[error("more than {PLANS_MAX} plans")]
    TooMany,
    /// The numbers of the limit at this position are invalid under this plan.
    #[error("under the plan {1:?}: {2}")]
    Numbers(usize, Box<str>, LimitError),
    /// The limit at this position has calendar windows.
    #[error("under the plan {1:?}: the limit counts by the calendar, give a number per {2}")]
    Calendar(usize, Box<str>, &'static str),
    #[error("under the plan {0:?} two limits would have the same algorithm and window")]
    SameShape(Box<str>),
}

impl Plans {
    /// Makes the plans of these limits. `given` has, for each limit, its numbers under all plans except the default.
    ///
    /// # Errors
    /// When some numbers are out of bounds.
    pub fn of(default: &str, limits: &[Limit], given: &[Vec<PlanNumbers>]) -> Result<Self, PlansError> {
        let mut plans: Vec<(Box<str>, Box<PlanLimits>)> = Vec::new();
        let as_written = || limits.iter().cloned().map(Some).collect::<Box<PlanLimits>>();
        plans.push((default.into(), as_written()));
        for (at, (limit, numbers)) in limits.iter().zip(given).enumerate() {
            for PlanNumbers { plan, rate } in numbers {
                if **plan == *default {
                    return Err(PlansError::Default(plan.clone()));
                }
                let resolved = rate.map(|(requests, window)| of_plan(limit, at, plan, requests, window)).transpose()?;
                let place = plans.iter().position(|(name, _)| name == plan);
                if place.is_none() && plans.len() > PLANS_MAX {
                    return Err(PlansError::TooMany);
                }
                let place = place.unwrap_or_else(|| {
                    plans.push((plan.clone(), as_written()));
                    plans.len() - 1
                });
                plans[place].1[at] = resolved;
            }
        }
        for (plan, limits) in &plans {
            if share_states(limits.iter().flatten()) {
                return Err(PlansError::SameShape(plan.clone()));
            }
        }
        Ok(Self { default: default.into(), plans })
    }

    pub fn default_plan(&self) -> &str {
        &self.default
    }

    /// Each plan with its limits, the default plan first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &PlanLimits)> {
        self.plans.iter().map(|(name, limits)| (&**name, &**limits))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(name, _)| name)
    }

    pub fn default_limits(&self) -> &PlanLimits {
        &self.plans[0].1
    }

    /// The limits under a plan. None if the rule has no such plan.
    pub fn limits(&self, plan: &str) -> Option<&PlanLimits> {
        self.iter().find(|(name, _)| *name == plan).map(|(_, limits)| limits)
    }
}

fn of_plan(limit: &Limit, at: usize, plan: &str, requests: Count, window: Window) -> Result<Limit, PlansError> {
    let numbers = Numbers { name: None, requests, window, burst: None };
    numbers.applied_to(limit).map_err(|misfit| match misfit {
        Misfit::Limit(error) => PlansError::Numbers(at, plan.into(), error),
        Misfit::Calendar(unit) => PlansError::Calendar(at, plan.into(), unit),
        other => unreachable!("numbers without a burst: {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::time::Unit;

    fn per_minute(requests: u32) -> Limit {
        Limit::per_unit(requests, Unit::Minute)
    }

    fn numbers(plan: &str, rate: Option<(Count, Unit)>) -> PlanNumbers {
        PlanNumbers { plan: plan.into(), rate: rate.map(|(requests, unit)| (requests, unit.window())) }
    }

    #[test]
    fn a_plan_has_the_limits_as_written_where_it_says_nothing() {
        let limits = [per_minute(10), Limit::per_unit(1_000, Unit::Day)];
        let given = [vec![numbers("gold", Some((500, Unit::Minute)))], vec![numbers("max", None)]];
        let plans = Plans::of("free", &limits, &given).expect("plans");
        let requests = |plan: &str| -> Vec<Option<Count>> {
            plans.limits(plan).expect(plan).iter().map(|limit| limit.as_ref().map(Limit::requests)).collect()
        };
        assert_eq!(requests("free"), [Some(10), Some(1_000)]);
        assert_eq!(requests("gold"), [Some(500), Some(1_000)]);
        assert_eq!(requests("max"), [Some(10), None]);
        assert_eq!(plans.limits("lead"), None);
    }

    #[test]
    fn plans_that_cannot_be_are_refused() {
        let limits = [per_minute(10), Limit::per_unit(1_000, Unit::Day)];
        let of = |plan: PlanNumbers| Plans::of("free", &limits, &[vec![plan], vec![]]).map(|_| ());
        assert_eq!(of(numbers("free", None)), Err(PlansError::Default("free".into())));
        assert_eq!(of(numbers("gold", Some((5, Unit::Day)))), Err(PlansError::SameShape("gold".into())));
        let log = [Limit::new(10, Unit::Minute.window(), Algorithm::SlidingWindowLog).expect("a limit")];
        let too_long = Plans::of("free", &log, &[vec![numbers("gold", Some((1_000_000, Unit::Minute)))]]);
        assert!(matches!(too_long, Err(PlansError::Numbers(0, _, LimitError::LogTooLong { .. }))), "{too_long:?}");
        let many = (0..=PLANS_MAX).map(|n| numbers(&format!("p{n}"), None)).collect();
        assert_eq!(Plans::of("free", &limits, &[many, vec![]]).map(|_| ()), Err(PlansError::TooMany));
    }
}
