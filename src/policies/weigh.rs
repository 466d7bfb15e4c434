//! The factors of a rule's hits. [mt-12]

use std::collections::HashSet;
use std::sync::Arc;

use weir_engine::Hits;
use weir_engine::policy::RuleKind;
use weir_engine::weigh::{FACTORS_MAX, Weigh};
use weir_text::quoted;
use weir_text::yaml::Value;

use super::fields::{Fields, Read};
use super::scalar::whole_number;
use super::state::{FileReader, Reported};
use super::tables::{descriptor, weigh};

/// The remedy for a factor of 0.
const FREE: &str = ": a factor is 1 or more, leave this descriptor out of requests that are free";

impl FileReader<'_> {
    /// The mapping under `weigh`.
    pub(super) fn weigh(&mut self, fields: &Fields, key: &'static str) -> Read<Arc<Weigh>> {
        let Some((at, id)) = fields.get(key).filter(|_| self.given(fields, key).is_some()) else { return Ok(None) };
        let of_weigh = self.fields(id, &weigh::KIND)?;
        let entry = self.read(&of_weigh, weigh::ENTRY)?;
        let by = self.read(&of_weigh, weigh::BY)?;
        let default = self.read(&of_weigh, weigh::DEFAULT)?;
        for (of_weigh_key, is_absent, what) in [
            (weigh::ENTRY.name, entry.is_none(), "the key of the entry whose value selects the factor"),
            (weigh::BY.name, by.is_none(), "the factors of values, such as {large: 30, small: 1}"),
            (weigh::DEFAULT.name, default.is_none(), "the factor of all other values, and without the entry"),
        ] {
            if is_absent {
                let at = of_weigh.key_at(of_weigh_key).unwrap_or(at);
                let is_told = of_weigh.get(of_weigh_key).is_none() && !of_weigh.lacks(of_weigh_key);
                return Err(if is_told {
                    Reported
                } else {
                    self.report(at, format!("weigh without {of_weigh_key}: give {what}"))
                });
            }
        }
        let (Some(entry), Some(by), Some(default)) = (entry, by, default) else { return Err(Reported) };
        if default == 0 {
            let message = format!("default is 0{FREE}");
            return Err(self.report_value(&of_weigh, weigh::DEFAULT, message));
        }
        Ok(Some(Arc::new(Weigh::new(&entry, by, default))))
    }

    /// The factors of values: a mapping of values and whole numbers from 1.
    pub(super) fn factors(&mut self, fields: &Fields, key: &'static str) -> Read<Vec<(Box<str>, u32)>> {
        let Some((at, node)) = self.value(fields, key) else { return Ok(None) };
        let document = self.document;
        let Value::Mapping(entries) = &node.value else {
            let what = node.describe();
            let message =
                format!("{key} must be a mapping of values and factors, not {what}, such as {key}: {{large: 30}}");
            return Err(self.report(at, message));
        };
        if !(1..=FACTORS_MAX).contains(&entries.len()) {
            return Err(self.report(at, format!("{key} has {} values: 1 to {FACTORS_MAX}", entries.len())));
        }
        let mut factors: Vec<(Box<str>, u32)> = Vec::new();
        let mut known: HashSet<&str> = HashSet::new();
        let mut result = Ok(());
        for &(value_id, factor) in entries {
            let Value::Scalar { text: value_text, .. } = &document.node(value_id).value else { continue };
            let at = self.value_position(document.node(value_id).position, factor);
            let value_max = self.bounds().value_bytes;
            let number = match &document.node(factor).value {
                Value::Scalar { text, plain: true } => {
                    whole_number(text, Hits::MAX.into()).ok().filter(|number| *number > 0)
                }
                _ => None,
            };
            match number {
                _ if value_text.len() > value_max => {
                    let message = format!("a value has {} bytes: at most {value_max}", value_text.len());
                    result = Err(self.report(document.node(value_id).position, message));
                }
                _ if !known.insert(&**value_text) => {
                    let message = format!("the value {} appears twice", quoted(value_text));
                    result = Err(self.report(document.node(value_id).position, message));
                }
                _ if value_text.contains('*') => {
                    let value = quoted(value_text);
                    let message = format!(
                        "the value {value} has a *: factors have no wildcards, name each value or write default"
                    );
                    result = Err(self.report(document.node(value_id).position, message));
                }
                Some(number) => factors.push(((&**value_text).into(), number)),
                None => {
                    let node = document.node(factor);
                    let (value, what, remedy) = (quoted(value_text), node.describe(), remedy(&node.value));
                    let message = format!(
                        "the factor of {value} must be a whole number from 1 to {}, not {what}{remedy}",
                        u32::MAX
                    );
                    result = Err(self.report(at, message));
                }
            }
        }
        result.map(|()| Some(factors))
    }

    /// The factors of the rule of a descriptor.
    pub(super) fn weigh_of(
        &mut self,
        fields: &Fields,
        rule: Option<&Option<(RuleKind, Vec<String>)>>,
    ) -> Read<Arc<Weigh>> {
        let weigh = self.read(fields, descriptor::WEIGH)?;
        match rule {
            Some(None) if weigh.is_some() => {
                let message = "weigh without a rate limit: nested descriptors do not inherit it".to_owned();
                Err(self.report_key(fields, descriptor::WEIGH, message))
            }
            Some(Some((RuleKind::Unlimited { .. }, _))) if weigh.is_some() => {
                let message = "weigh with unlimited: true, which counts no hits".to_owned();
                Err(self.report_key(fields, descriptor::WEIGH, message))
            }
            _ => Ok(weigh),
        }
    }
}

/// The end of a message about a value that is no factor.
fn remedy(value: &Value<'_>) -> &'static str {
    match value {
        Value::Scalar { text, plain: true } => match text.parse::<f64>() {
            Ok(0.0) => FREE,
            Ok(number) if number > 0.0 && number.fract() > 0.0 => {
                ": multiply all factors, the limits, and the scale of their amount by the same power of ten"
            }
            _ => "",
        },
        _ => "",
    }
}
