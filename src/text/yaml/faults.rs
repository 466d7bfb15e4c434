//! The cause of a fault of the parser, where its message names another thing or another place.

use super::{Fault, fault};
use crate::quoted;

use super::position::Position;

/// Spaces that look as a space and are none in YAML.
pub const NO_BREAK_SPACES: [char; 4] = ['\u{a0}', '\u{2007}', '\u{202f}', '\u{feff}'];

/// Parts of the messages that the parser has after a colon without a space.
const OF_A_COLON: [&str; 3] = ["mapping values are not allowed", "simple key expect", "did not find expected"];

/// The fault that the parser describes by `info`, with the cause where it can be found.
pub(super) fn explained(text: &str, at: Position, info: &str) -> Fault {
    let cause = if info.contains("anchor") {
        unquoted(text, at)
    } else if OF_A_COLON.iter().any(|part| info.contains(part)) {
        colon_without_space(text, at)
    } else {
        None
    };
    let (at, message) = cause.unwrap_or_else(|| (at, info.to_owned()));
    fault(at, format!("not valid YAML: {message}"))
}

/// A text that is meant as it is and begins as an alias: `*abc`.
fn unquoted(text: &str, at: Position) -> Option<(Position, String)> {
    let line = line(text, at.line)?;
    let rest: String = line.chars().skip(at.column as usize - 1).collect();
    let word = rest.split([' ', '\t', ',', ']', '}', '\r']).next().filter(|word| word.starts_with('*'))?;
    Some((
        at,
        format!(
            "{word} is an alias, and no anchor has this name: a text that begins with * needs quotes, {}",
            quoted(word)
        ),
    ))
}

/// A key whose colon has no space after it, in the line of the fault or in the last line before it that is not empty.
fn colon_without_space(text: &str, at: Position) -> Option<(Position, String)> {
    let before = (1..=at.line).rev().filter_map(|number| Some((number, line(text, number)?)));
    let mut before = before.filter(|(_, line)| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with('#')
    });
    let (number, line) = [before.next()?, before.next()?].into_iter().find(|(_, line)| colon(line).is_some())?;
    let (start, colon) = colon(line)?;
    let (key, value) = (&line[start..colon], line[colon + 1..].trim_end());
    let column = u32::try_from(line[..=colon].chars().count() + 1).ok()?;
    let place = Position { line: number, column };
    let ordinary = format!("{key}: {}", value.trim_start_matches(NO_BREAK_SPACES));
    let what = if value.starts_with(NO_BREAK_SPACES) { "a no-break space" } else { "no space" };
    Some((place, format!("{what} after the colon of {key}: write {}", quoted(&ordinary))))
}

/// Where the key of a line begins and its colon is, if the colon has no space after it.
fn colon(line: &str) -> Option<(usize, usize)> {
    let start = line.len() - line.trim_start_matches([' ', '-']).len();
    let end = line[start..].find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')))? + start;
    let after = line[end..].strip_prefix(':')?.chars().next()?;
    (end > start && !matches!(after, ' ' | '\t' | '\r' | '/' | ':')).then_some((start, end))
}

fn line(text: &str, number: u32) -> Option<&str> {
    text.split('\n').nth(number.checked_sub(1)? as usize)
}

#[cfg(test)]
mod tests {
    use super::super::Document;
    use super::super::tests::OPTIONS;

    #[test]
    fn a_fault_is_at_its_cause() {
        let star = "is an alias, and no anchor has this name: a text that begins with * needs quotes";
        for (text, expected) in [
            ("a: *abc\n", format!("1:4: not valid YAML: *abc {star}, \"*abc\"")),
            ("- {a: ä, b: */pay, c: d}\n", format!("1:13: not valid YAML: */pay {star}, \"*/pay\"")),
            ("a:\n  b: *\n", format!("2:6: not valid YAML: * {star}, \"*\"")),
            (
                "- key:user\n  b: c\n",
                "1:7: not valid YAML: no space after the colon of key: write \"key: user\"".to_owned(),
            ),
            (
                "- key:\u{a0}user\n\n  # why\n  b: c\n",
                "1:7: not valid YAML: a no-break space after the colon of key: write \"key: user\"".to_owned(),
            ),
            (
                "a:\n  b: c\n  rate:5/s\n",
                "3:8: not valid YAML: no space after the colon of rate: write \"rate: 5/s\"".to_owned(),
            ),
            (
                "a:\n  b: c\n  d:e\n  f: g\n",
                "3:5: not valid YAML: no space after the colon of d: write \"d: e\"".to_owned(),
            ),
            ("a: b: c\n", "1:5: not valid YAML: mapping values are not allowed in this context".to_owned()),
            ("- http://x\n  b: c\n", "2:4: not valid YAML: mapping values are not allowed in this context".to_owned()),
        ] {
            assert_eq!(Document::parse(text, OPTIONS).unwrap_err().to_string(), expected, "{text:?}");
        }
    }
}
