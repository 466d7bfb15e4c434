//! The expectations of a step.

use weir_engine::words::counted;
use weir_text::quoted;
use weir_text::yaml::{NodeId, Value};

use super::keys::{expectation, status};
use super::values::NONE;
use super::{Expect, ExpectedHeader, ExpectedStatus, Position, Positioned, Verdict};
use crate::fields::{Fields, Read};
use crate::instead;
use crate::state::{FileReader, Reported};

impl FileReader<'_> {
    /// The expectation of a request with this many descriptors: `ok`, `over`, or a mapping.
    pub(super) fn expectation(&mut self, at: Position, id: NodeId, descriptors: usize) -> Result<Expect, Reported> {
        if let Value::Scalar { text, .. } = &self.document.node(id).value {
            if !Verdict::NAMES.contains(&&**text) {
                let message = format!("no answer {}{}; or a mapping", quoted(text), instead(text, &Verdict::NAMES));
                return Err(self.report(at, message));
            }
            let answer = Some(Positioned { position: at, value: Verdict::named(text) });
            return Ok(Expect { answer, ..Expect::default() });
        }
        let fields = self.fields(id, &expectation::KIND)?;
        let expect = Expect {
            answer: self.read(&fields, expectation::ANSWER)?,
            error: self.read(&fields, expectation::ERROR)?,
            passed: self.read(&fields, expectation::PASSED)?,
            denied: self.read(&fields, expectation::DENIED)?,
            retry_after: self.read(&fields, expectation::RETRY_AFTER)?,
            delay: self.read(&fields, expectation::DELAY)?,
            headers: self.read(&fields, expectation::HEADERS)?,
            request_headers: self.read(&fields, expectation::REQUEST_HEADERS)?,
            trial: self.read(&fields, expectation::TRIAL)?,
            metadata: self.read(&fields, expectation::METADATA)?,
            statuses: self.statuses(&fields, descriptors)?,
        };
        if let Some(error) = &expect.error
            && (expect.answer.is_some() || expect.retry_after.is_some() || !expect.statuses.is_empty())
        {
            return Err(self.report(error.position, "a request that gets an error gets no answer"));
        }
        Ok(expect)
    }

    fn statuses(&mut self, fields: &Fields, descriptors: usize) -> Result<Vec<ExpectedStatus>, Reported> {
        let of_status = status::KIND
            .names()
            .filter(|key| *key != status::ANSWER.name)
            .find_map(|key| fields.key_at(key).map(|at| (key, at)));
        let Some((at, _)) = fields.get(expectation::STATUSES) else {
            return match of_status {
                None => Ok(Vec::new()),
                Some(_) if descriptors == 1 => Ok(vec![self.status(fields)?]),
                Some((key, at)) => {
                    let message = format!(
                        "with {descriptors} descriptors, write {key} for each one: statuses: [{{{key}: ...}}, ...]"
                    );
                    Err(self.report(at, message))
                }
            };
        };
        if let Some((key, at)) = of_status {
            return Err(self.report(at, format!("{key} belongs in the items of statuses")));
        }
        let items = self.read(fields, expectation::STATUSES)?.unwrap_or_default();
        if items.len() != descriptors {
            let message = format!(
                "{}, but the request has {}",
                counted(items.len(), "status"),
                counted(descriptors, "descriptor")
            );
            return Err(self.report(at, message));
        }
        let mut statuses = Vec::with_capacity(items.len());
        for item in items {
            let node = self.document.node(item);
            let at = node.position;
            if let Value::Scalar { text, .. } = &node.value
                && Verdict::NAMES.contains(&&**text)
            {
                let answer = Some(Positioned { position: at, value: Verdict::named(text) });
                statuses.push(ExpectedStatus { answer, ..ExpectedStatus::default() });
                continue;
            }
            let fields = self.fields(item, &status::KIND)?;
            let answer = self.read(&fields, status::ANSWER)?;
            statuses.push(ExpectedStatus { answer, ..self.status(&fields)? });
        }
        Ok(statuses)
    }

    /// Everything except the answer.
    fn status(&mut self, fields: &Fields) -> Result<ExpectedStatus, Reported> {
        Ok(ExpectedStatus {
            answer: None,
            rule: self.read(fields, status::RULE)?,
            limit: self.read(fields, status::LIMIT)?,
            name: self.read(fields, status::NAME)?,
            algorithm: self.read(fields, status::ALGORITHM)?,
            remaining: self.read(fields, status::REMAINING)?,
            reset: self.read(fields, status::RESET)?,
        })
    }

    pub(super) fn headers_of(&mut self, fields: &Fields, key: &'static str) -> Result<Vec<ExpectedHeader>, Reported> {
        let Some((at, id)) = fields.get(key) else { return Ok(Vec::new()) };
        let document = self.document;
        let node = document.node(id);
        let Value::Mapping(entries) = &node.value else {
            let message = format!("{key} must be names and values, not {}", node.describe());
            return Err(self.report(self.value_position(at, id), message));
        };
        let mut headers: Vec<ExpectedHeader> = Vec::with_capacity(entries.len());
        for &(name, value) in entries {
            let position = document.node(name).position;
            let (Value::Scalar { text: name, .. }, Value::Scalar { text: value, plain }) =
                (&document.node(name).value, &document.node(value).value)
            else {
                return Err(self.report(position, format!("{key} must be texts by names")));
            };
            if headers.iter().any(|(other, _)| other.eq_ignore_ascii_case(name)) {
                return Err(self.report(position, format!("{} appears twice", quoted(name))));
            }
            let value = if *plain && **value == *NONE { None } else { Some(value.to_string()) };
            headers.push((name.to_string(), Positioned { position, value }));
        }
        Ok(headers)
    }

    /// A text that `parse` reads, with its position.
    pub(super) fn written<T>(
        &mut self,
        fields: &Fields,
        key: &'static str,
        bytes_max: usize,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Read<Positioned<T>> {
        let value = self.parsed(fields, key, bytes_max, parse)?;
        Ok(value.and_then(|value| self.at_key(fields, key, value)))
    }

    pub(super) fn at_key<T>(&self, fields: &Fields, key: &'static str, value: T) -> Option<Positioned<T>> {
        fields.key_at(key).map(|position| Positioned { position, value })
    }
}
