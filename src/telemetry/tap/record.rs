//! A recorded request and its line, in the format that `weir tap --record` writes.
//!
//! docs/testing.md describes the format.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use weir_engine::observer::{AnsweredDescriptor, AnsweredRequest, DescriptorVerdict};
use weir_engine::{Hits, Micros, Operation, Unit, Window};

use super::filter::word;
use super::values::{Named, TapValues};

const VERSION: u32 = 1;
/// The approximate bytes of a record without its texts.
const RECORD_BYTES: usize = 128;
/// The approximate bytes of an entry without its texts.
const ENTRY_BYTES: usize = 32;

pub struct Record {
    time: Micros,
    domain: Box<str>,
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
    let of_descriptor = |at: usize| {
        let entries = request.entries(at).iter().map(|entry| ENTRY_BYTES + entry.key.len() + entry.value.len());
        RECORD_BYTES + request.rule(at).map_or(0, |rule| rule.path.len()) + entries.sum::<usize>()
    };
    RECORD_BYTES + request.domain().len() + (0..request.descriptors()).map(of_descriptor).sum::<usize>()
}

impl Record {
    pub(super) fn new(request: &dyn AnsweredRequest, bytes: usize) -> Self {
        let descriptor = |at: usize| Descriptor {
            entries: request.entries(at).iter().map(|entry| (entry.key.into(), entry.value.into())).collect(),
            rule: request.rule(at).map(|rule| rule.path.clone()),
            row: request.row(at).map(|content| content.to_string().into()),
            is: request.descriptor(at),
        };
        Self {
            time: now(),
            domain: request.domain().into(),
            verdict: word(request.result()),
            descriptors: (0..request.descriptors()).map(descriptor).collect(),
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
            domain: &self.domain,
            hits,
            descriptors: self
                .descriptors
                .iter()
                .map(|descriptor| self.line_of(descriptor, hits, values, named))
                .collect(),
            verdict: self.verdict,
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
        let entries = entries.iter().map(|(key, value)| (&**key, values.show(named, &self.domain, key, value)));
        DescriptorLine {
            entries: entries.collect(),
            hits: hits_of(is).filter(|own| *own != hits),
            limit: is.limit.and_then(|(requests, window)| Limit::of(requests, window)),
            refund: matches!(is.operation, Operation::Refund(_)),
            look: is.operation == Operation::Peek && !is.settles,
            settle: is.settles,
            held: is.held,
            given_back: is.given_back,
            rule: rule.as_deref(),
            row: row.as_deref(),
            verdict: is.verdict.map(DescriptorVerdict::name),
            remaining: is.remaining,
        }
    }
}

#[must_use]
pub fn header(sample: u32, values: &TapValues) -> Vec<u8> {
    let mut line = Vec::new();
    let header = Header { weir_record: VERSION, started: shown_time(now()), sample, values: values.name() };
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

#[derive(Serialize)]
struct Header {
    weir_record: u32,
    started: String,
    sample: u32,
    values: &'static str,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    domain: &'a str,
    hits: Hits,
    descriptors: Vec<DescriptorLine<'a>>,
    verdict: &'static str,
    #[serde(skip_serializing_if = "is_zero")]
    lost: u64,
}

#[derive(Serialize)]
struct DescriptorLine<'a> {
    entries: Vec<(&'a str, Cow<'a, str>)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hits: Option<Hits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Limit>,
    #[serde(skip_serializing_if = "is_false")]
    refund: bool,
    #[serde(skip_serializing_if = "is_false")]
    look: bool,
    #[serde(skip_serializing_if = "is_false")]
    settle: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Hits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    given_back: Option<Hits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    row: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<Hits>,
}

#[derive(Serialize)]
struct Limit {
    requests: u32,
    unit: &'static str,
    /// How many units the window has. Absent: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    unit_multiplier: Option<u32>,
}

impl Limit {
    /// Every window of a request is of whole units.
    fn of(requests: u32, window: Window) -> Option<Self> {
        let (count, unit) = window.in_units(&Unit::OF_REQUESTS)?;
        Some(Self { requests, unit: unit.name(), unit_multiplier: (count > 1).then_some(count) })
    }
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

const fn is_false(flag: &bool) -> bool {
    !*flag
}
