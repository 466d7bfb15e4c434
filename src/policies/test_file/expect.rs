//! The expectations of a step.

use std::sync::Arc;

use weir_engine::Algorithm;
use weir_engine::words::{IN_FLIGHT, counted};
use weir_text::quoted;
use weir_text::yaml::{NodeId, Value};

use super::keys::{EXPECT, OF_STATUS, STATUS};
use super::values::Range;
use super::{Expect, ExpectedHeader, ExpectedLimit, ExpectedStatus, Position, Positioned, Verdict};
use crate::fields::{Fields, Read};
use crate::state::{FileReader, Reported};
use crate::{FILE_BYTES_MAX, NAME_BYTES_MAX, instead, rate};

/// The word for an absent header, rule or wait.
const NONE: &str = "none";

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
        let fields = self.fields(id, &EXPECT)?;
        let expect = Expect {
            answer: self.verdict(&fields)?,
            error: self.written(&fields, "error", FILE_BYTES_MAX, |text| Ok(text.to_owned()))?,
            passed: self.written(&fields, "passed", NAME_BYTES_MAX, Range::of_numbers)?,
            denied: self.written(&fields, "denied", NAME_BYTES_MAX, Range::of_numbers)?,
            retry_after: self.written(&fields, "retry_after", NAME_BYTES_MAX, or_none(Range::of_lengths))?,
            delay: self.written(&fields, "delay", NAME_BYTES_MAX, Range::of_lengths)?,
            headers: self.headers_of(&fields, "headers")?,
            request_headers: self.headers_of(&fields, "request_headers")?,
            trial: self.trial(&fields)?,
            metadata: self.expected_metadata(&fields)?,
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
        let of_status = OF_STATUS.into_iter().find_map(|key| fields.key_at(key).map(|at| (key, at)));
        let Some((at, _)) = fields.get("statuses") else {
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
        let items = self.list(fields, "statuses")?.unwrap_or_default();
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
            let fields = self.fields(item, &STATUS)?;
            let answer = self.verdict(&fields)?;
            statuses.push(ExpectedStatus { answer, ..self.status(&fields)? });
        }
        Ok(statuses)
    }

    /// Everything except the answer.
    fn status(&mut self, fields: &Fields) -> Result<ExpectedStatus, Reported> {
        let text = |text: &str| Ok(text.to_owned());
        Ok(ExpectedStatus {
            answer: None,
            rule: self.written(fields, "rule", FILE_BYTES_MAX, or_none(text))?,
            limit: self.written(fields, "limit", NAME_BYTES_MAX, or_none(amount))?,
            name: self.written(fields, "name", NAME_BYTES_MAX, or_none(text))?,
            algorithm: self.written(fields, "algorithm", NAME_BYTES_MAX, |text| {
                match Algorithm::NAMES.contains(&text) {
                    true => Ok(text.to_owned()),
                    false => Err(format!("no algorithm{}", instead(text, &Algorithm::NAMES))),
                }
            })?,
            remaining: self.written(fields, "remaining", NAME_BYTES_MAX, Range::of_numbers)?,
            reset: self.written(fields, "reset", NAME_BYTES_MAX, or_none(Range::of_lengths))?,
        })
    }

    /// The verdict of limits on trial, or `none`.
    fn trial(&mut self, fields: &Fields) -> Read<Positioned<Option<Verdict>>> {
        let [ok, over] = Verdict::NAMES;
        let Some(word) = self.choice(fields, "trial", &[ok, over, NONE])? else { return Ok(None) };
        Ok(self.at_key(fields, "trial", (word != NONE).then(|| Verdict::named(word))))
    }

    fn verdict(&mut self, fields: &Fields) -> Read<Positioned<Verdict>> {
        let Some(word) = self.choice(fields, "answer", &Verdict::NAMES)? else { return Ok(None) };
        Ok(self.at_key(fields, "answer", Verdict::named(word)))
    }

    fn headers_of(&mut self, fields: &Fields, key: &str) -> Result<Vec<ExpectedHeader>, Reported> {
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

    fn expected_metadata(&mut self, fields: &Fields) -> Read<Positioned<Arc<weir_engine::metadata::Fields>>> {
        let metadata = self.metadata(fields)?;
        Ok(metadata.and_then(|metadata| self.at_key(fields, "metadata", metadata)))
    }

    /// A text that `parse` reads, with its position.
    fn written<T>(
        &mut self,
        fields: &Fields,
        key: &str,
        bytes_max: usize,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Read<Positioned<T>> {
        let value = self.parsed(fields, key, bytes_max, parse)?;
        Ok(value.and_then(|value| self.at_key(fields, key, value)))
    }

    fn at_key<T>(&self, fields: &Fields, key: &str, value: T) -> Option<Positioned<T>> {
        fields.key_at(key).map(|position| Positioned { position, value })
    }
}

/// Reads the hits and the window of a limit, `3/minute`, or `3 in flight`.
fn amount(text: &str) -> Result<ExpectedLimit, String> {
    match text.strip_suffix(IN_FLIGHT).map(|number| number.trim_end().parse()) {
        Some(Ok(requests)) => Ok((requests, None)),
        _ => rate::read(text).map(|(requests, period)| (requests, Some(period.window))),
    }
}

/// Accepts `none`, and otherwise the texts of `parse`.
fn or_none<T>(parse: impl Fn(&str) -> Result<T, String>) -> impl Fn(&str) -> Result<Option<T>, String> {
    move |text| if text == NONE { Ok(None) } else { parse(text).map(Some) }
}
