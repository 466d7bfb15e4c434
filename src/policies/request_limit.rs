//! What a rule does with a limit of the request. [mt-10]

use weir_engine::policy::RuleKind;
use weir_engine::request_limit::RequestLimit;
use weir_text::yaml::Value;
use weir_text::{nearest, quoted};

use super::fields::{Fields, Read};
use super::state::{FileReader, Reported};
use super::tables::{descriptor, numbers};
use super::warning::Code;

const KEY: &str = descriptor::REQUEST_LIMIT.name;

impl FileReader<'_> {
    /// A word of [`RequestLimit::NAMES`], and the name of a limit for the numbers.
    pub(super) fn request_limit(&mut self, fields: &Fields, key: &'static str) -> Read<(&'static str, Option<String>)> {
        let Some((at, id)) = fields.get(key) else { return Ok(None) };
        if !matches!(self.document.node(id).value, Value::Mapping(_)) {
            let word = self.choice(fields, key, &RequestLimit::NAMES)?;
            return Ok(word.map(|word| (word, None)));
        }
        let of_numbers = self.fields(id, &numbers::KIND)?;
        match self.read(&of_numbers, numbers::NUMBERS)? {
            Some(name) => Ok(Some((numbers::NUMBERS.name, Some(name)))),
            None if of_numbers.lacks(numbers::NUMBERS) || of_numbers.get(numbers::NUMBERS).is_some() => {
                Err(self.report(at, format!("{key} has no name of a limit, such as {{numbers: rpm}}")))
            }
            None => Err(Reported),
        }
    }

    /// What the rule of a descriptor does with a limit of the request.
    pub(super) fn request_limit_of(
        &mut self,
        fields: &Fields,
        rule: Option<&Option<(RuleKind, Vec<String>)>>,
    ) -> Result<RequestLimit, Reported> {
        let Some((word, name)) = self.read(fields, descriptor::REQUEST_LIMIT)? else {
            return Ok(RequestLimit::Replaces);
        };
        let at = fields.key_at(descriptor::REQUEST_LIMIT).unwrap_or(fields.at);
        let Some(rule) = rule else { return Err(Reported) };
        let Some((kind, _)) = rule else {
            return Err(self.report(at, format!("{KEY} without a rate limit: nested descriptors do not inherit it")));
        };
        if word == RequestLimit::NAMES[0] {
            return Ok(RequestLimit::Replaces);
        }
        if self.is_compatible() {
            let message =
                format!("{KEY}: {word} in a file for envoyproxy/ratelimit, whose limits of requests always replace");
            return Err(self.report(at, message));
        }
        if word == RequestLimit::NAMES[1] {
            return Ok(RequestLimit::Ignored);
        }
        let limits = match kind {
            RuleKind::Limits(limits) => &limits[..],
            RuleKind::Unlimited { .. } => &[],
        };
        let place = match &name {
            None => 0,
            Some(name) => match limits.iter().position(|limit| limit.name.as_deref() == Some(name)) {
                Some(place) => place,
                None => {
                    let names: Vec<&str> = limits.iter().filter_map(|limit| limit.name.as_deref()).collect();
                    let hint = match nearest(name, names.iter().copied()) {
                        Some(near) => format!(", did you mean {}?", quoted(near)),
                        None if names.is_empty() => ": none has a name".to_owned(),
                        None => format!(", there is {}", names.into_iter().map(quoted).collect::<Vec<_>>().join(", ")),
                    };
                    let message = format!("{KEY}: no limit of the rule is called {}{hint}", quoted(name));
                    return Err(self.report_value(fields, descriptor::REQUEST_LIMIT, message));
                }
            },
        };
        if limits.get(place).is_none_or(|limit| limit.algorithm().counts_permits()) {
            let what = if limits.is_empty() { "an unlimited rule" } else { "requests in flight" };
            self.warn(
                at,
                Code::NoEffect,
                format!("{KEY}: {word} has no effect on {what}: the policy keeps its numbers"),
            );
        }
        // A rule has at most eight limits.
        Ok(RequestLimit::numbers(u8::try_from(place).unwrap_or(0), name.as_deref()))
    }
}
