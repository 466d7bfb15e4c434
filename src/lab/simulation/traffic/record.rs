//! Records of `weir tap`: a header and requests as JSON lines. docs/simulation.md has the format.

use std::borrow::Cow;
use std::fmt;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use weir_engine::words::counted;
use weir_engine::{Micros, Unit};
use weir_rls::bounded::List;
use weir_rls::proto::{RateLimitDescriptor, RateLimitRequest, rate_limit_descriptor};
use weir_rls::request::{DESCRIPTORS_KEPT_MAX, ENTRIES_KEPT_MAX};

use super::recorded::LineReader;
use super::{Request, Verdict};
use crate::message::limit;

const VERSION: u64 = 1;
const NO_HEADER: &str = "no header: the first line of a record is {\"weir_record\":1,...}; for another log write a file of \
                         traffic (*.traffic.yaml) with access_log";
const HIDDEN: &str = "values: the record hides values, so the rules that they meet are unknown: record with \
                      weir tap --values shown";
/// The path of the whole line. Problems of a member have its path before the message.
const WHOLE: &str = ".";

#[derive(Default)]
pub(super) struct Tap {
    /// The number of the current line; the header is the first.
    lines: u64,
    sample: u64,
    /// Whether hidden values are an error.
    shown_only: bool,
    /// Whether any of the records hides values, and whether the current one does.
    is_hidden: bool,
    hides_now: bool,
    /// The number of headers: records may be concatenated.
    headers: u64,
    lost: u64,
}

#[derive(Deserialize)]
struct RecordLine<'a> {
    weir_record: Option<u64>,
    sample: Option<u64>,
    #[serde(borrow)]
    values: Option<Text<'a>>,
    #[serde(default, deserialize_with = "instant")]
    time: Option<Micros>,
    #[serde(borrow)]
    domain: Option<Text<'a>>,
    hits: Option<u32>,
    #[serde(borrow)]
    descriptors: Option<List<Descriptor<'a>, DESCRIPTORS_KEPT_MAX>>,
    verdict: Option<RecordedVerdict>,
    lost: Option<u64>,
}

#[derive(Deserialize)]
struct Descriptor<'a> {
    #[serde(borrow)]
    entries: List<(Text<'a>, Text<'a>), ENTRIES_KEPT_MAX>,
    hits: Option<u32>,
    limit: Option<Limit>,
    #[serde(default)]
    refund: bool,
    #[serde(default)]
    look: bool,
    #[serde(default)]
    settle: bool,
}

#[derive(Deserialize)]
struct Limit {
    requests: u32,
    unit: RecordedUnit,
    /// How many units the window has. Absent: one.
    unit_multiplier: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RecordedUnit {
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Year,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RecordedVerdict {
    Ok,
    Over,
    Error,
}

/// A text, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl LineReader for Tap {
    fn read(&mut self, line: &[u8]) -> Result<Option<Request>, (usize, String)> {
        self.lines += 1;
        let read: RecordLine<'_> = serde_json::from_slice(line).map_err(|error| {
            let (column, message) = explained(line, &error);
            // If the first line is not a header, the file is not a record.
            (column, if self.lines == 1 { format!("{NO_HEADER} ({message})") } else { message })
        })?;
        if let Some(version) = read.weir_record {
            return self.header(version, &read).map(|()| None).map_err(|message| (1, message));
        }
        if self.lines == 1 {
            return Err((1, NO_HEADER.to_owned()));
        }
        let missing = |name: &str| (1, format!("{name}: a request has it"));
        self.lost = self.lost.saturating_add(read.lost.unwrap_or(0));
        let descriptors = read.descriptors.ok_or_else(|| missing("descriptors"))?;
        let descriptors = descriptors.whole("descriptors").map_err(|message| (1, message))?;
        let descriptors = descriptors.into_iter().map(Descriptor::message).collect::<Result<_, _>>();
        Ok(Some(Request {
            lasts: None,
            used: None,
            hides_values: self.hides_now,
            time: read.time.ok_or_else(|| missing("time"))?,
            message: RateLimitRequest {
                domain: read.domain.ok_or_else(|| missing("domain"))?.0.into_owned(),
                descriptors: descriptors.map_err(|message| (1, message))?,
                hits_addend: read.hits.unwrap_or(0),
            },
            verdict: read.verdict.map(Verdict::from),
            lost: read.lost.unwrap_or(0),
        }))
    }

    fn empty(&self) -> Option<&'static str> {
        Some("empty: a record begins with a header, as weir tap --record writes it")
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.sample > 1 {
            notes.push(format!("the record has one of {} requests: limits are used less than they were", self.sample));
        }
        if self.headers > 1 && self.is_hidden {
            let records = counted(self.headers, "record");
            notes.push(format!(
                "{records} with hidden values: one value has another hash in the record of each process"
            ));
        }
        if self.lost > 0 {
            notes.push(format!("the record lacks {}, lost as it was made", counted(self.lost, "request")));
        }
        notes
    }
}

impl Tap {
    /// Reads only records whose values are shown.
    pub(super) fn of_shown() -> Self {
        Self { shown_only: true, ..Self::default() }
    }

    fn header(&mut self, version: u64, line: &RecordLine<'_>) -> Result<(), String> {
        if version != VERSION {
            return Err(format!("weir_record: a record of version {version}, this weir reads version {VERSION}"));
        }
        self.headers += 1;
        self.sample = self.sample.max(line.sample.unwrap_or(1));
        self.hides_now = match line.values.as_ref().map(|values| &*values.0) {
            Some("hidden") if self.shown_only => return Err(HIDDEN.to_owned()),
            Some("hidden") => true,
            Some("shown") | None => false,
            Some(other) => return Err(format!("values: {other:?} is neither hidden nor shown")),
        };
        self.is_hidden |= self.hides_now;
        Ok(())
    }
}

impl Descriptor<'_> {
    /// # Errors
    /// When a request cannot have that many entries.
    fn message(self) -> Result<RateLimitDescriptor, String> {
        let entry = |(key, value): (Text<'_>, Text<'_>)| rate_limit_descriptor::Entry {
            key: key.0.into_owned(),
            value: value.0.into_owned(),
        };
        Ok(RateLimitDescriptor {
            entries: self.entries.whole("entries")?.into_iter().map(entry).collect(),
            hits_addend: if self.look || self.settle {
                Some(0.into())
            } else {
                self.hits.map(|hits| u64::from(hits).into())
            },
            is_negative_hits: self.refund,
            limit: self.limit.map(|of| limit(of.requests, of.unit.unit(), of.unit_multiplier)),
        })
    }
}

impl RecordedUnit {
    const fn unit(self) -> Unit {
        match self {
            Self::Second => Unit::Second,
            Self::Minute => Unit::Minute,
            Self::Hour => Unit::Hour,
            Self::Day => Unit::Day,
            Self::Month => Unit::Month,
            Self::Year => Unit::Year,
        }
    }
}

impl From<RecordedVerdict> for Verdict {
    fn from(verdict: RecordedVerdict) -> Self {
        match verdict {
            RecordedVerdict::Ok => Self::Ok,
            RecordedVerdict::Over => Self::Over,
            RecordedVerdict::Error => Self::Error,
        }
    }
}

/// An instant of RFC 3339. It is parsed here, so an error has its column.
fn instant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Micros>, D::Error> {
    struct Instant;
    impl Visitor<'_> for Instant {
        type Value = Option<Micros>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a time such as \"2026-12-01T10:00:00.123456Z\"")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
            let timestamp: Timestamp = text.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))?;
            let micros = u64::try_from(timestamp.as_microsecond());
            micros.map(Some).map_err(|_| E::custom("a time before 1970"))
        }
    }
    deserializer.deserialize_str(Instant)
}

/// The column and member of an error, found by reading the line once more.
fn explained(line: &[u8], error: &serde_json::Error) -> (usize, String) {
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let member = match serde_path_to_error::deserialize::<_, RecordLine<'_>>(&mut deserializer) {
        Err(again) if again.path().to_string() != WHOLE => format!("{}: ", again.path()),
        _ => String::new(),
    };
    let text = error.to_string();
    // For serde_json, each text is line 1.
    let message = text.rsplit_once(" at line ").map_or(&*text, |(message, _)| message);
    (error.column(), format!("{member}{message}"))
}
