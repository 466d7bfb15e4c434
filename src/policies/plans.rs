//! Plans and rows: the named numbers of limits, and whether the descriptors of a rule have rows. [rw-1]

use weir_engine::plans::{PLANS_MAX, PlanNumbers, Plans, PlansError};
use weir_engine::policy::RuleKind;
use weir_engine::{Property, exclusion};
use weir_text::quoted;
use weir_text::yaml::Value;

use super::fields::{Fields, Read};
use super::state::{FileReader, PlanAt, Reported};
use super::tables::{descriptor, rows};
use super::{NAME_BYTES_MAX, Position, rate};

/// The word for no limit under a plan.
const UNLIMITED: &str = "unlimited";

impl FileReader<'_> {
    /// The numbers of one limit under its plans: a mapping from plan names to rates.
    pub(super) fn plans(&mut self, fields: &Fields, key: &'static str) -> Result<Vec<PlanAt>, Reported> {
        const EXAMPLE: &str = "such as plans: {gold: 1000/min, partner: unlimited}";
        let Some((at, node)) = self.value(fields, key) else { return Ok(Vec::new()) };
        let document = self.document;
        let Value::Mapping(entries) = &node.value else {
            let message = format!("plans must be a mapping of names and rates, not {}, {EXAMPLE}", node.describe());
            return Err(self.report(at, message));
        };
        if entries.len() > PLANS_MAX {
            return Err(self.report(at, format!("plans has {} plans: at most {PLANS_MAX}", entries.len())));
        }
        let mut plans: Vec<PlanAt> = Vec::new();
        let mut result = Ok(());
        for &(key, value) in entries {
            let at = document.node(key).position;
            let Value::Scalar { text: name, .. } = &document.node(key).value else { continue };
            if name.is_empty() || name.len() > NAME_BYTES_MAX {
                result = Err(self.report(at, format!("the name of a plan has 1 to {NAME_BYTES_MAX} bytes")));
                continue;
            }
            if plans.iter().any(|(_, known)| *known.plan == **name) {
                result = Err(self.report(at, format!("the plan {} appears twice", quoted(name))));
                continue;
            }
            let value_at = self.value_position(at, value);
            let rate = match &document.node(value).value {
                Value::Scalar { text, .. } if &**text == UNLIMITED => Ok(None),
                Value::Scalar { text, .. } => rate::parse_rate(text).map(Some),
                _ => Err(format!("a plan has a rate or {UNLIMITED}, {EXAMPLE}")),
            };
            if let (Ok(_), Value::Scalar { text, .. }) = (&rate, &document.node(value).value) {
                self.warn_of_rate(value_at, text);
            }
            match rate {
                Ok(rate) => plans.push((at, PlanNumbers { plan: (&**name).into(), rate })),
                Err(message) => result = Err(self.report(value_at, format!("plan {}: {message}", quoted(name)))),
            }
        }
        result.map(|()| plans)
    }

    /// The plans of a rule with rows. `plans` has the plans of each limit; `hold` has the place and the key of a limit
    /// with holds.
    pub(super) fn rows(
        &mut self,
        fields: &Fields,
        rule: Option<&Option<(RuleKind, Vec<String>)>>,
        plans: Vec<Vec<PlanAt>>,
        hold: Option<(Position, &'static str)>,
    ) -> Read<Plans> {
        let first_plan = plans.iter().flatten().map(|(at, _)| *at).next();
        let Some(at) = self.given(fields, descriptor::ROWS) else {
            return match first_plan.filter(|_| fields.lacks(descriptor::ROWS)) {
                Some(at) => {
                    let message = "plans without rows: write rows: {default: NAME} next to the rate limit";
                    Err(self.report(at, message))
                }
                None => Ok(None),
            };
        };
        let Some((_, id)) = fields.get(descriptor::ROWS) else { return Ok(None) };
        let rows = self.fields(id, &rows::KIND)?;
        let Some(default) = self.read(&rows, rows::DEFAULT)? else {
            let message = "rows without default: give the name of the plan of descriptors without a row";
            return Err(if rows.get(rows::DEFAULT).is_some() || rows.lacks(rows::DEFAULT) {
                self.report(at, message)
            } else {
                Reported
            });
        };
        let Some(rule) = rule else { return Err(Reported) };
        let limits = match rule {
            Some((RuleKind::Limits(limits), _)) if limits.len() == plans.len() => limits,
            Some((RuleKind::Limits(_), _)) => return Err(Reported),
            Some((RuleKind::Unlimited { .. }, _)) => {
                return Err(self.report(at, "rows with unlimited: true: there are no numbers that rows could replace"));
            }
            None => return Err(self.report(at, "rows without a rate limit: there are no numbers to replace")),
        };
        if let (Some((at, word)), Some(excluded)) = (hold, exclusion(Property::Hold, Property::Rows)) {
            return Err(self.report(at, format!("{word} with rows: {}", excluded.reason)));
        }
        if self.shares {
            let message = "rows with share_threshold, here or above: descriptors that share a state would share a row";
            return Err(self.report(at, message));
        }
        if let Some(excluded) = exclusion(Property::Lease, Property::Rows)
            && limits.iter().any(|limit| limit.lease.is_some())
        {
            return Err(self.report(at, format!("rows with a lease: {}", excluded.reason)));
        }
        let places: Vec<PlanAt> = plans.iter().flatten().cloned().collect();
        let numbers: Vec<Vec<PlanNumbers>> =
            plans.into_iter().map(|of_limit| of_limit.into_iter().map(|(_, numbers)| numbers).collect()).collect();
        Plans::of(&default, limits, &numbers).map(Some).map_err(|error| {
            let plan = match &error {
                PlansError::Default(plan)
                | PlansError::Numbers(_, plan, _)
                | PlansError::Calendar(_, plan, _)
                | PlansError::SameShape(plan) => Some(plan),
                PlansError::TooMany => None,
            };
            let place = places.iter().find(|(_, numbers)| Some(&numbers.plan) == plan).map_or(at, |(at, _)| *at);
            self.report(place, error.to_string())
        })
    }
}
