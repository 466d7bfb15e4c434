//! A recorded request and its line, in the format that `weir tap --record` writes.
//!
//! docs/testing.md describes the format.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use weir_api::tap::{Descriptor as DescriptorLine, Header, Limit, Record as Line, VERSION};
use weir_engine::observer::{AnsweredDescriptor, AnsweredRequest};
use weir_engine::{Group, Hits, Micros, Operation, Unit, Window};

use super::filter::word;
use super::values::{Named, TapValues};

/// The approximate bytes of a record without its texts.
const RECORD_BYTES: usize = 128;
/// The approximate bytes of an entry without its texts.
const ENTRY_BYTES: usize = 32;

pub struct Record {
    time: Micros,
    domain: Box<str>,
    caller: Option<Box<str>>,
    verdict: &'static str,
    descriptors: Vec<Descriptor>,
    bytes: usize,
    /// How many requests were lost before it.
    pub(super) lost: u64,
}

struct Descriptor {
    entries: Vec<(Box<str>, Box<str>)>,
    rule: Option<Box<str>>,
    row: Option<Box<str>>,
    is: AnsweredDescriptor,
}

pub(super) fn bytes_of(request: &dyn AnsweredRequest) -> usize {
    let of_descriptor = |group: Group| {
        let entries = request.entries(group).iter().map(|entry| ENTRY_BYTES + entry.key.len() + entry.value.len());
        RECORD_BYTES + request.rule(group).map_or(0, |rule| rule.path.len()) + entries.sum::<usize>()
    };
    let texts = request.domain().len() + request.caller().map_or(0, str::len);
    RECORD_BYTES + texts + Group::all(request.descriptors()).map(of_descriptor).sum::<usize>()
}

impl Record {
    pub(super) fn new(request: &dyn AnsweredRequest, bytes: usize) -> Self {
        let descriptor = |group: Group| Descriptor {
            entries: request.entries(group).iter().map(|entry| (entry.key.into(), entry.value.into())).collect(),
            rule: request.rule(group).map(|rule| rule.path.clone()),
            row: request.row(group).map(|content| content.to_string().into()),
            is: request.descriptor(group),
        };
        Self {
            time: now(),
            domain: request.domain().into(),
            caller: request.caller().map(Into::into),
            verdict: word(request.result()),
            descriptors: Group::all(request.descriptors()).map(descriptor).collect(),
            bytes,
            lost: 0,
        }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes its line. Values of policies are printed in plain text, others as `values` determines.
    pub(super) fn write(&self, to: &mut Vec<u8>, values: &TapValues, named: Option<&Named>) {
        let hits = self.descriptors.iter().find_map(|descriptor| hits_of(&descriptor.is)).unwrap_or(1);
        let line = Line {
            time: shown_time(self.time),
            domain: (&*self.domain).into(),
            caller: self.caller.as_deref().map(Cow::from),
            hits,
            descriptors: self
                .descriptors
                .iter()
                .map(|descriptor| self.line_of(descriptor, hits, values, named))
                .collect(),
            verdict: self.verdict.into(),
            lost: self.lost,
        };
        write_line(to, &line);
    }

    fn line_of<'a>(
        &'a self,
        descriptor: &'a Descriptor,
        hits: Hits,
        values: &TapValues,
        named: Option<&Named>,
    ) -> DescriptorLine<'a> {
        let Descriptor { entries, rule, row, is } = descriptor;
        let entries =
            entries.iter().map(|(key, value)| ((&**key).into(), values.show(named, &self.domain, key, value)));
        DescriptorLine {
            entries: entries.collect(),
            hits: hits_of(is).filter(|own| *own != hits),
            limit: is.limit.and_then(limit),
            refund: is.operation.is_refund(),
            look: is.operation == Operation::Peek && !is.settles,
            settle: is.settles,
            held: is.held,
            given_back: is.given_back,
            factor: is.factor,
            rule: rule.as_deref().map(Cow::from),
            row: row.as_deref().map(Cow::from),
            verdict: is.verdict.map(|verdict| verdict.name().into()),
            remaining: is.remaining,
        }
    }
}

#[must_use]
pub fn header(sample: u32, values: &TapValues) -> Vec<u8> {
    let mut line = Vec::new();
    let (started, values) = (Some(shown_time(now())), Some(values.name().into()));
    let header = Header { version: VERSION, started, sample: Some(sample), values };
    write_line(&mut line, &header);
    line
}

fn write_line(to: &mut Vec<u8>, line: &impl Serialize) {
    if let Err(error) = serde_json::to_writer(&mut *to, line) {
        unreachable!("texts and numbers can be written to memory: {error}");
    }
    to.push(b'\n');
}

const fn hits_of(descriptor: &AnsweredDescriptor) -> Option<Hits> {
    match descriptor.operation {
        Operation::Consume(hits) | Operation::Refund(hits) | Operation::Report(hits) => Some(hits),
        Operation::Peek if descriptor.settles => Some(0),
        Operation::Peek => None,
    }
}

fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX)
}

/// An instant in RFC 3339, UTC, with microseconds.
fn shown_time(at: Micros) -> String {
    let at = i64::try_from(at).ok().and_then(|at| jiff::Timestamp::from_microsecond(at).ok());
    format!("{:.6}", at.unwrap_or_default())
}

/// The limit of a request. Its window is of whole units.
fn limit((requests, window): (u32, Window)) -> Option<Limit<'static>> {
    let (count, unit) = window.in_units(&Unit::OF_REQUESTS)?;
    Some(Limit { requests, unit: unit.name().into(), unit_multiplier: (count > 1).then_some(count) })
}
