//! When a limit applies: `from`, `until` and `during`.

use std::sync::Arc;

use jiff::Timestamp;
use weir_engine::{During, Micros, SPANS_MAX, Term};
use weir_text::yaml::{Node, Value};
use weir_text::{instant_text, next_begin, parse_instant, parse_span, quoted};

use super::NAME_BYTES_MAX;
use super::fields::{Fields, Read};
use super::state::FileReader;
use super::tables::limit;
use super::warning::Code;

impl FileReader<'_> {
    /// The term of a limit. None if it always applies.
    pub(super) fn term(&mut self, fields: &Fields) -> Read<Term> {
        let (from, until) = (self.read(fields, limit::FROM), self.read(fields, limit::UNTIL));
        let during = self.read(fields, limit::DURING);
        let (from, until, during) = (from?, until?, during?);
        if from.is_none() && until.is_none() && during.is_none() {
            return Ok(None);
        }
        let has_ended = until.is_some_and(|until| until <= now());
        if let Some(until) = until.filter(|_| has_ended) {
            let message = format!("the limit has ended at {}: it applies to no request", instant_text(until));
            let at = fields.key_at(limit::UNTIL).unwrap_or(fields.at);
            self.warn(at, Code::Ended, message);
        }
        let Some(term) = Term::new(from.unwrap_or(0), until.unwrap_or(Term::NO_END)) else {
            let from = instant_text(from.unwrap_or(0));
            return Err(self.report_value(
                fields,
                limit::UNTIL,
                format!("until must be later than from, which is {from}"),
            ));
        };
        let term = term.in_spans(during);
        if let Some(until) = until.filter(|_| !has_ended && next_begin(&term, now()).is_none()) {
            let message = format!("no span of during is left before {}: it applies to no request", instant_text(until));
            let at = fields.key_at(limit::DURING).unwrap_or(fields.at);
            self.warn(at, Code::Ended, message);
        }
        Ok(Some(term))
    }

    /// The spans of the week in which a limit applies: one text, or a list.
    pub(super) fn during(&mut self, fields: &Fields, key: &'static str) -> Read<Arc<During>> {
        let Some((at, node)) = self.value(fields, key) else { return Ok(None) };
        let document = self.document;
        let items: Vec<&Node<'_>> = match &node.value {
            Value::List(items) => items.iter().map(|item| document.node(*item)).collect(),
            _ => vec![node],
        };
        let (mut spans, mut result) = (Vec::new(), Ok(()));
        for Node { position, value } in items.iter().take(SPANS_MAX) {
            let read = match value {
                Value::Scalar { text, .. } if text.len() <= NAME_BYTES_MAX => {
                    parse_span(text).map_err(|reason| format!("{}: {reason}", quoted(text)))
                }
                Value::Scalar { text, .. } => Err(format!("has {} bytes: at most {NAME_BYTES_MAX}", text.len())),
                _ => Err("must be a text such as Sun 02:00-06:00 Europe/Berlin, or a list of texts".to_owned()),
            };
            match read {
                Ok(span) => spans.push(span),
                Err(reason) => result = Err(self.report(at.max(*position), format!("{key} {reason}"))),
            }
        }
        result?;
        let count = items.len();
        match During::new(spans).filter(|_| count <= SPANS_MAX) {
            Some(during) => Ok(Some(Arc::new(during))),
            None => Err(self.report(at, format!("{key} has {count} spans: 1 to {SPANS_MAX}"))),
        }
    }

    pub(super) fn instant(&mut self, fields: &Fields, key: &'static str) -> Read<Micros> {
        self.parsed(fields, key, NAME_BYTES_MAX, parse_instant)
    }
}

/// The time of this machine's clock.
pub(super) fn now() -> Micros {
    u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default()
}
