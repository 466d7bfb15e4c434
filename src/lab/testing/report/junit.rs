//! The report as JUnit's XML, which CI systems show.

use std::fmt::Write as _;
use std::time::Duration;

use super::{Covered, Problem, Totals, text};
use crate::testing::{CaseReport, FileReport, Outcome};

/// The whole report. Required coverage is a separate test case.
pub fn document(files: &[FileReport], covered: Covered<'_>) -> String {
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    for file in files {
        suite(file, &mut xml);
    }
    fail_under(covered, &mut xml);
    xml.push_str("</testsuites>\n");
    xml
}

/// The report if no case was run: a test case with an error for each problem. CI systems show nothing for an empty report.
pub fn of_problems(problems: &[Problem]) -> String {
    let count = problems.len();
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"weir test\" tests=\"{count}\" \
         failures=\"0\" errors=\"{count}\" skipped=\"0\" time=\"0.000000\">\n"
    );
    for Problem { subject, text } in problems {
        let subject = escaped(subject);
        let _ = writeln!(xml, "    <testcase name=\"{subject}\" classname=\"weir test\" time=\"0.000000\">");
        write_end("error", text.lines().next().unwrap_or_default(), text, &mut xml);
    }
    xml.push_str("  </testsuite>\n</testsuites>\n");
    xml
}

fn fail_under(covered: Covered<'_>, xml: &mut String) {
    let (Some(least), Some(is_reached)) = (covered.least, covered.is_reached()) else { return };
    let failures = u8::from(!is_reached);
    let _ = write!(
        xml,
        "  <testsuite name=\"coverage\" tests=\"1\" failures=\"{failures}\" errors=\"0\" skipped=\"0\" time=\"0.000000\">\n    \
         <testcase name=\"--fail-under {least}\" classname=\"coverage\" time=\"0.000000\""
    );
    if is_reached {
        xml.push_str("/>\n");
    } else {
        let details = text::of_coverage(covered);
        xml.push_str(">\n");
        write_end("failure", details.lines().next().unwrap_or_default(), &details, xml);
    }
    xml.push_str("  </testsuite>\n");
}

// Writing to a string cannot fail.
fn suite(file: &FileReport, xml: &mut String) {
    let totals = Totals::of([file]);
    let _ = writeln!(
        xml,
        "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{}\">",
        escaped(&file.name),
        file.cases.len(),
        totals.failed,
        totals.broken,
        totals.skipped,
        seconds(file.took),
    );
    for case in &file.cases {
        test(file, case, xml);
    }
    xml.push_str("  </testsuite>\n");
}

fn test(file: &FileReport, case: &CaseReport, xml: &mut String) {
    let _ = write!(
        xml,
        "    <testcase name=\"{}\" classname=\"{}\" file=\"{}\" line=\"{}\" time=\"{}\"",
        escaped(&case.name),
        escaped(&file.name),
        escaped(&file.name),
        case.position.line,
        seconds(case.took),
    );
    let details = text::details(file, &case.outcome);
    let (element, body) = match &case.outcome {
        Outcome::Passed if case.warnings.is_empty() => {
            xml.push_str("/>\n");
            return;
        }
        Outcome::Passed => {
            let warnings = escaped(&text::warnings(file, case));
            let _ = write!(xml, ">\n      <system-out>{warnings}</system-out>\n    </testcase>\n");
            return;
        }
        Outcome::Skipped(_) => ("skipped", ""),
        Outcome::Failed { .. } => ("failure", &*details),
        Outcome::Broken(_) => ("error", &*details),
    };
    xml.push_str(">\n");
    let first = details.lines().next().unwrap_or_default();
    write_end(element, first, body, xml);
}

/// Writes the outcome of a test that did not pass, and the end of its element.
fn write_end(element: &str, message: &str, body: &str, xml: &mut String) {
    let (message, body) = (escaped(message), escaped(body));
    let _ = write!(xml, "      <{element} message=\"{message}\">{body}</{element}>\n    </testcase>\n");
}

fn seconds(took: Duration) -> String {
    format!("{}.{:06}", took.as_secs(), took.subsec_micros())
}

/// Escapes a text for XML 1.0, which cannot represent most control characters.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(character),
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            _ if character.is_control() => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}
