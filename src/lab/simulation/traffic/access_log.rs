//! Access logs of JSON lines, as Envoy writes them.

use std::fmt;

use jiff::Timestamp;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use weir_engine::Micros;
use weir_engine::words::counted;
use weir_policies::traffic_file::{AccessLog, LoggedHits, TimeFormat};
use weir_rls::proto::RateLimitRequest;

use super::Request;
use super::recorded::LineReader;
use crate::message::message;

/// Envoy's text for a missing value.
const ABSENT: &str = "-";

pub(super) struct Log {
    /// The required members, and their values in the current line.
    members: Vec<String>,
    values: Vec<Option<Value>>,
    time: Field,
    format: TimeFormat,
    domain: Vec<Piece>,
    descriptors: Vec<Descriptor>,
    hits: Hits,
    /// Lines without a request.
    empty: u64,
    /// Requests whose line has no value in the field for hits.
    without_hits: u64,
}

enum Hits {
    Same(Option<u32>),
    Field(Field),
}

/// A descriptor without its entries, and the pieces of its entries.
struct Descriptor {
    form: RateLimitRequest,
    entries: Vec<(Vec<Piece>, Vec<Piece>)>,
}

enum Piece {
    Text(String),
    Field(Field),
}

/// A member, by its name or by a path of names.
struct Field {
    name: String,
    whole: usize,
    /// For a name with dots: the outermost mapping, and the members below it.
    nested: Option<(usize, Vec<String>)>,
}

impl Log {
    pub(super) fn new(log: &AccessLog) -> Self {
        let mut members = Vec::new();
        let time = Field::new(&log.time, &mut members);
        let domain = pieces(&log.domain, &mut members);
        let mut descriptors = Vec::with_capacity(log.descriptors.len());
        for asked in &log.descriptors {
            let mut entry = |(key, value): &(String, String)| (pieces(key, &mut members), pieces(value, &mut members));
            let entries = asked.entries.iter().map(&mut entry).collect();
            let bare = weir_policies::test_file::Descriptor { entries: Vec::new(), ..asked.clone() };
            descriptors.push(Descriptor { form: message("", &[bare], None), entries });
        }
        let hits = match &log.hits {
            LoggedHits::Same(hits) => Hits::Same(*hits),
            LoggedHits::Field(name) => Hits::Field(Field::new(name, &mut members)),
        };
        let values = vec![None; members.len()];
        let format = log.format;
        Self { members, values, time, format, domain, descriptors, hits, empty: 0, without_hits: 0 }
    }
}

impl LineReader for Log {
    fn read(&mut self, line: &[u8]) -> Result<Option<Request>, (usize, String)> {
        self.values.iter_mut().for_each(|value| *value = None);
        let mut deserializer = serde_json::Deserializer::from_slice(line);
        let wanted = Wanted { members: &self.members, values: &mut self.values };
        let read = wanted.deserialize(&mut deserializer).and_then(|()| deserializer.end());
        read.map_err(|error| {
            let text = error.to_string();
            let message = text.rsplit_once(" at line ").map_or(&*text, |(message, _)| message);
            (error.column(), message.to_owned())
        })?;
        self.request().map_err(|message| (1, message))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.empty > 0 {
            let lines = counted(self.empty, "line");
            notes.push(format!("skipped: {lines} of the log without the fields of any descriptor"));
        }
        if let Hits::Field(field) = &self.hits
            && self.without_hits > 0
        {
            let requests = counted(self.without_hits, "request");
            notes.push(format!("{requests} of the log without a value in {}: counted as 1 hit each", field.name));
        }
        notes
    }
}

impl Log {
    fn request(&mut self) -> Result<Option<Request>, String> {
        let name = &self.time.name;
        let Some(time) = self.time.text(&self.values)? else {
            return Err(format!("{name}: no such field, or no value"));
        };
        let time = micros(&time, self.format).map_err(|reason| format!("{name}: {time:?} {reason}"))?;
        let mut descriptors = Vec::with_capacity(self.descriptors.len());
        for descriptor in &self.descriptors {
            let mut form = descriptor.form.descriptors[0].clone();
            let mut is_whole = true;
            for (key, value) in &descriptor.entries {
                match (filled(key, &self.values)?, filled(value, &self.values)?) {
                    (Some(key), Some(value)) => form.entries.push(entry(key, value)),
                    _ => is_whole = false,
                }
            }
            if is_whole {
                descriptors.push(form);
            }
        }
        if descriptors.is_empty() {
            self.empty += 1;
            return Ok(None);
        }
        let Some(domain) = filled(&self.domain, &self.values)? else {
            return Err("the field of the domain has no value".to_owned());
        };
        let hits = match &self.hits {
            Hits::Same(hits) => *hits,
            Hits::Field(field) => {
                let hits = hits_in(field, &self.values)?;
                self.without_hits += u64::from(hits.is_none());
                hits
            }
        };
        if hits == Some(0) {
            // On the wire, 0 hits of a request mean 1. To cost nothing, each descriptor needs 0 hits.
            descriptors.iter_mut().for_each(|form| form.hits_addend = form.hits_addend.or(Some(0.into())));
        }
        let message = RateLimitRequest { domain, descriptors, hits_addend: hits.unwrap_or(0) };
        Ok(Some(Request { time, ..Request::of(message) }))
    }
}

/// The hits of the current line. None if it has no value.
fn hits_in(field: &Field, values: &[Option<Value>]) -> Result<Option<u32>, String> {
    let Some(text) = field.text(values)? else { return Ok(None) };
    let is_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let hits = text.parse().ok().filter(|_| is_digits);
    let wrong = || format!("{}: {text:?} is not a number of hits: a whole number from 0 to {}", field.name, u32::MAX);
    hits.map(Some).ok_or_else(wrong)
}

fn entry(key: String, value: String) -> weir_rls::proto::rate_limit_descriptor::Entry {
    weir_rls::proto::rate_limit_descriptor::Entry { key, value }
}

/// The pieces of a text with `<field>` in it.
fn pieces(text: &str, members: &mut Vec<String>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, name, after)) = placeholder(rest) {
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        pieces.push(Piece::Field(Field::new(name, members)));
        rest = after;
    }
    if !rest.is_empty() || pieces.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    pieces
}

/// The first `<field>` of a text, and the texts before and after it.
fn placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once('<')?;
    let (name, after) = rest.split_once('>')?;
    Some((before, name, after))
}

/// The text of pieces. None if a field has no value.
fn filled(pieces: &[Piece], values: &[Option<Value>]) -> Result<Option<String>, String> {
    let mut text = String::new();
    for piece in pieces {
        match piece {
            Piece::Text(piece) => text.push_str(piece),
            Piece::Field(field) => match field.text(values)? {
                Some(value) => text.push_str(&value),
                None => return Ok(None),
            },
        }
    }
    Ok(Some(text))
}

impl Field {
    fn new(name: &str, members: &mut Vec<String>) -> Self {
        let mut member = |name: &str| match members.iter().position(|member| member == name) {
            Some(at) => at,
            None => {
                members.push(name.to_owned());
                members.len() - 1
            }
        };
        let whole = member(name);
        let nested =
            name.split_once('.').map(|(first, rest)| (member(first), rest.split('.').map(str::to_owned).collect()));
        Self { name: name.to_owned(), whole, nested }
    }

    fn text(&self, values: &[Option<Value>]) -> Result<Option<String>, String> {
        let nested = || {
            let (outermost, way) = self.nested.as_ref()?;
            way.iter().try_fold(values[*outermost].as_ref()?, |value, member| value.get(member))
        };
        match values[self.whole].as_ref().or_else(nested) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text == ABSENT => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Number(number)) => Ok(Some(number.to_string())),
            Some(Value::Bool(truth)) => Ok(Some(truth.to_string())),
            Some(Value::Array(_) | Value::Object(_)) => {
                Err(format!("{}: a list or an object, write the path to a text, such as a.b", self.name))
            }
        }
    }
}

/// An instant, as microseconds since 1970.
fn micros(text: &str, format: TimeFormat) -> Result<Micros, String> {
    let digits = match format {
        TimeFormat::Rfc3339 => {
            let timestamp: Timestamp = text
                .parse()
                .map_err(|_| "is not a time such as 2026-12-01T10:00:00.123Z, see time_format".to_owned())?;
            return u64::try_from(timestamp.as_microsecond()).map_err(|_| "is before 1970".to_owned());
        }
        TimeFormat::Seconds => 6,
        TimeFormat::Millis => 3,
        TimeFormat::Micros => 0,
    };
    decimal(text, digits).ok_or_else(|| "is not a number for time_format".to_owned())
}

/// A decimal number times ten to the power of `digits`, rounded down.
fn decimal(text: &str, digits: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let fraction: String = fraction.chars().chain(std::iter::repeat('0')).take(digits).collect();
    format!("{whole}{fraction}").parse().ok()
}

/// Reads the required members of one object, and skips the others.
struct Wanted<'a> {
    members: &'a [String],
    values: &'a mut [Option<Value>],
}

impl<'de> DeserializeSeed<'de> for Wanted<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Wanted<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object, one for each line")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match self.members.iter().position(|member| *member == *name) {
                Some(at) => self.values[at] = Some(map.next_value()?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_microsecond() {
        for (text, format, expected) in [
            ("2026-12-01T10:00:00.123Z", TimeFormat::Rfc3339, Some(1_796_119_200_123_000)),
            ("1796119200", TimeFormat::Seconds, Some(1_796_119_200_000_000)),
            ("1796119200.1234567", TimeFormat::Seconds, Some(1_796_119_200_123_456)),
            ("1796119200123", TimeFormat::Millis, Some(1_796_119_200_123_000)),
            ("1796119200123.5", TimeFormat::Millis, Some(1_796_119_200_123_500)),
            ("1796119200123456", TimeFormat::Micros, Some(1_796_119_200_123_456)),
            ("1.5.2", TimeFormat::Seconds, None),
            ("-1", TimeFormat::Seconds, None),
            ("", TimeFormat::Millis, None),
            ("1.", TimeFormat::Millis, None),
            ("01/Dec/2026", TimeFormat::Rfc3339, None),
            ("1969-12-01T10:00:00Z", TimeFormat::Rfc3339, None),
            ("99999999999999999999", TimeFormat::Micros, None),
        ] {
            assert_eq!(micros(text, format).ok(), expected, "{text}");
        }
    }
}
