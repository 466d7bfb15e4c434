//! Overrides as the text in the store: one line of JSON each.
//!
//! Any program with access to the store can write the text. So a line that is not exactly as weir writes it is skipped.

use serde::{Deserialize, Serialize};
use weir_api::numbers::{JsonNumbers, json_numbers, numbers_of};
use weir_engine::Micros;
use weir_engine::descriptor::ENTRIES_MAX;
use weir_engine::overrides::{OVERRIDES_MAX, Override};
use weir_engine::policy::LIMITS_PER_RULE_MAX;
use weir_engine::time::MICROS_MAX;

use super::{BY_BYTES_MAX, REASON_BYTES_MAX, SetOverride};

/// The most bytes of one line.
const LINE_BYTES_MAX: usize = 8 * 1_024;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    domain: Box<str>,
    descriptor: Vec<(Box<str>, Box<str>)>,
    limits: Vec<JsonNumbers>,
    until_us: Micros,
    set_us: Micros,
    by: Box<str>,
    reason: Box<str>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) overrides: Vec<SetOverride>,
    /// Invalid lines, and lines above the maximum.
    pub(super) skipped: usize,
    /// The reason for the first of them.
    pub(super) reason: Option<String>,
}

pub(super) fn read(text: &str) -> Read {
    let mut read = Read::default();
    for (number, line) in text.lines().enumerate() {
        let one = if read.overrides.len() == OVERRIDES_MAX {
            Err(format!("more than {OVERRIDES_MAX}"))
        } else {
            read_line(line)
        };
        match one {
            Ok(one) if read.overrides.last().is_none_or(|last| last.place() < one.place()) => read.overrides.push(one),
            Ok(_) => read.skip(number, "out of order, or a second one for its descriptor"),
            Err(reason) => read.skip(number, &reason),
        }
    }
    read
}

impl Read {
    fn skip(&mut self, number: usize, reason: &str) {
        self.skipped += 1;
        self.reason.get_or_insert_with(|| format!("line {}: {reason}", number + 1));
    }
}

fn read_line(line: &str) -> Result<SetOverride, String> {
    if line.len() > LINE_BYTES_MAX {
        return Err(format!("more than {LINE_BYTES_MAX} bytes"));
    }
    // Without the error's own text, because serde quotes its input.
    let line: Line =
        serde_json::from_str(line).map_err(|error| format!("not an override, column {}", error.column()))?;
    let numbers = numbers_of(line.limits)?;
    let bounds = [
        ("limits", numbers.len(), 1..=LIMITS_PER_RULE_MAX, ""),
        ("descriptor", line.descriptor.len(), 1..=ENTRIES_MAX, " entries"),
        ("by", line.by.len(), 0..=BY_BYTES_MAX, " bytes"),
        ("reason", line.reason.len(), 0..=REASON_BYTES_MAX, " bytes"),
    ];
    for (what, size, bounds, unit) in bounds {
        if !bounds.contains(&size) {
            let (least, most) = bounds.into_inner();
            return Err(format!("{what}: {size}{unit}, must be from {least} to {most}"));
        }
    }
    if line.until_us > MICROS_MAX || line.set_us > MICROS_MAX {
        return Err("an instant is out of bounds".to_owned());
    }
    let set = Override { domain: line.domain, entries: line.descriptor.into(), numbers, until: line.until_us };
    Ok(SetOverride { set, set_at: line.set_us, by: line.by, reason: line.reason })
}

/// Writes a text; each line ends with a line feed.
pub(super) fn write<'o>(overrides: impl IntoIterator<Item = &'o SetOverride>) -> String {
    let mut text = String::new();
    for one in overrides {
        text.push_str(&line(one));
        text.push('\n');
    }
    text
}

/// Whether an override can be written as a line and read again.
/// Fails when it does not.
pub(super) fn check(one: &SetOverride) -> Result<(), String> {
    read_line(&line(one)).map(|_| ())
}

fn line(one: &SetOverride) -> String {
    let SetOverride { set, set_at, by, reason } = one;
    let line = Line {
        domain: set.domain.clone(),
        descriptor: set.entries.to_vec(),
        limits: json_numbers(&set.numbers),
        until_us: set.until,
        set_us: *set_at,
        by: by.clone(),
        reason: reason.clone(),
    };
    // Texts and numbers can always be serialised.
    serde_json::to_string(&line).unwrap_or_default()
}

/// Reads a text that a store may have.
/// Panics when a line is neither read nor skipped, or when writing and reading it again changes it.
pub fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let first = read(&text);
    assert_eq!(first.overrides.len() + first.skipped, text.lines().count());
    assert_eq!(first.reason.is_some(), first.skipped > 0);
    assert_eq!(read(&write(&first.overrides)), Read { overrides: first.overrides, ..Read::default() });
}

#[cfg(test)]
mod tests {
    use weir_engine::Unit;
    use weir_engine::overrides::Numbers;

    use super::*;

    fn one(value: &str) -> SetOverride {
        let numbers = Numbers { name: Some("n".into()), requests: 5, window: Unit::Hour.window(), burst: Some(7) };
        let set = Override {
            domain: "shop".into(),
            entries: [("user".into(), value.into())].into(),
            numbers: [numbers].into(),
            until: 2_000_000,
        };
        SetOverride { set, set_at: 1_000_000, by: "ann".into(), reason: "a \"quoted\"\nreason".into() }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let all = [one("a"), one("b\n,\u{1b}"), one("c")];
        let text = write(&all);
        assert_eq!(text.lines().count(), 3);
        assert_eq!(read(&text), Read { overrides: all.to_vec(), ..Read::default() });
        assert_eq!(read(""), Read::default());
    }

    /// Replicas of other versions compare and read the text.
    #[test]
    fn the_text_of_an_override_does_not_change() {
        let mut all = [one("a"), one("b")];
        all[1].set.numbers[0] = Numbers { name: None, burst: None, ..all[1].set.numbers[0].clone() };
        let line = |value: &str, name: &str, burst: &str| {
            format!(
                "{{\"domain\":\"shop\",\"descriptor\":[[\"user\",\"{value}\"]],\"limits\":[{{\"name\":{name},\"requests\":5,\
                \"window_us\":3600000000,\"burst\":{burst}}}],\"until_us\":2000000,\"set_us\":1000000,\"by\":\"ann\",\
                \"reason\":\"a \\\"quoted\\\"\\nreason\"}}\n"
            )
        };
        assert_eq!(write(&all), line("a", "\"n\"", "7") + &line("b", "null", "null"));
    }

    #[test]
    fn a_line_that_weir_does_not_write_is_skipped_alone() {
        let good = write([&one("a"), &one("c")]);
        let (first, last) = good.split_once('\n').unwrap();
        let with = |from: &str, to: &str| {
            let changed = first.replace(from, to);
            assert_ne!(changed, first, "{from}");
            changed.replace("\"a\"", "\"b\"")
        };
        for strange in [
            String::new(),
            "{}".to_owned(),
            "x".repeat(LINE_BYTES_MAX + 1),
            "[".repeat(LINE_BYTES_MAX),
            first.to_owned(),
            with("\"by\"", "\"more\":1,\"by\""),
            with("\"by\":\"ann\",", ""),
            with("\"requests\":5", "\"requests\":-5"),
            with("\"requests\":5", "\"requests\":1000000000000000"),
            with("\"requests\":5", "\"requests\":1e3"),
            with("\"window_us\":3600000000", "\"window_us\":1"),
            with("\"window_us\":3600000000", "\"window_us\":99999999999999"),
            with("\"until_us\":2000000", "\"until_us\":18446744073709551615"),
            with("\"ann\"", &format!("\"{}\"", "x".repeat(BY_BYTES_MAX + 1))),
            with("\"descriptor\":[[\"user\",\"a\"]]", "\"descriptor\":[]"),
        ] {
            let text = format!("{first}\n{strange}\n{last}");
            let read = read(&text);
            assert_eq!((read.overrides.len(), read.skipped), (2, 1), "{strange}");
            assert!(read.reason.unwrap().starts_with("line 2: "), "{strange}");
        }
    }

    #[test]
    fn what_is_out_of_its_bounds_is_named() {
        let wordy = SetOverride { reason: "x".repeat(REASON_BYTES_MAX + 1).into(), ..one("a") };
        assert_eq!(check(&wordy), Err("reason: 257 bytes, must be from 0 to 256".to_owned()));
        let mut deep = one("a");
        deep.set.entries = vec![("user".into(), "a".into()); ENTRIES_MAX + 1].into();
        assert_eq!(check(&deep), Err("descriptor: 65 entries, must be from 1 to 64".to_owned()));
        assert_eq!(check(&one("a")), Ok(()));
    }

    #[test]
    fn no_more_are_read_than_the_bound() {
        let all: Vec<SetOverride> = (0..OVERRIDES_MAX + 3).map(|number| one(&format!("{number:06}"))).collect();
        let read = read(&write(&all));
        assert_eq!((read.overrides.len(), read.skipped), (OVERRIDES_MAX, 3));
    }
}
