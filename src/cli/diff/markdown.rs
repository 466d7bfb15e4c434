//! The report for a comment on a pull request: a table in the dialect of GitHub and GitLab.

use std::io::{self, Write};

use weir_engine::words::{counted, printable};
use weir_lab::comparison::DomainChange;

use super::Report;
use super::words::{AnswerWords, ChangeLine, CouldNotTellWords, RuleWords, of_domain};

/// The most rules in the table.
const ROWS_MAX: usize = 100;
/// The most bytes of all tables. GitHub accepts comments of 65,536 characters; the rest is for text around the tables.
const TABLES_BYTES_MAX: usize = 56_000;
/// The longest name, value or line, in characters.
const CHARS_MAX: usize = 120;
const LINES_MAX: usize = 16;

pub(super) fn write(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "**weir diff**: {}", escaped(&report.summary()))?;
    let mut room = TABLES_BYTES_MAX;
    let domains = &report.comparison.domains;
    if !domains.is_empty() {
        writeln!(out, "\n| domain | |\n| --- | --- |")?;
        let row = |change: &DomainChange<'_>| {
            let (name, lines) = of_domain(change);
            let lines: Vec<String> =
                std::iter::once(change.kind.name().to_owned()).chain(lines.iter().map(line)).collect();
            format!("| {} | {} |", code(&name), lines.join("<br>"))
        };
        write_rows(domains.iter().map(row), "domain", &mut room, out)?;
    }
    let rows = report.rules();
    if !rows.is_empty() {
        writeln!(out, "\n| domain | rule | | change | states |\n| --- | --- | --- | --- | --- |")?;
    }
    write_rows(rows.iter().map(of_rule), "rule", &mut room, out)?;
    let unknown = report.could_not_tell_cases();
    if !unknown.is_empty() {
        writeln!(out, "\n| domain | rule | could not tell, since |\n| --- | --- | --- |")?;
    }
    let row = |CouldNotTellWords { domain, rule, place, why }: &CouldNotTellWords| {
        let place = place.as_ref().map(|place| format!("<br>{}", escaped(&place.to_string()))).unwrap_or_default();
        format!("| {} | {}{place} | {} |", code(domain), code(rule), escaped(why))
    };
    write_rows(unknown.iter().map(row), "case", &mut room, out)?;
    let (Some(summary), Some(answers)) = (report.traffic_summary(), report.answers) else { return Ok(()) };
    writeln!(out, "\n{}", escaped(&summary))?;
    let (rules, keys) = report.changed_answers();
    write_answers("rule", &rules, &mut room, out)?;
    write_answers("descriptor", &keys, &mut room, out)?;
    for note in &answers.notes {
        writeln!(out, "\n{}", escaped(note))?;
    }
    Ok(())
}

fn write_answers(title: &str, rows: &[AnswerWords], room: &mut usize, out: &mut dyn Write) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n| domain | {title} | denied now | pass now | errors |\n| --- | --- | --- | --- | --- |")?;
    let row = |AnswerWords { domain, what, changed }: &AnswerWords| {
        let (domain, what) = (code(domain), code(what));
        format!("| {domain} | {what} | {} | {} | {} |", changed.now_denied, changed.now_passed, changed.errors)
    };
    write_rows(rows.iter().map(row), title, room, out)
}

fn of_rule(row: &RuleWords) -> String {
    let mut lines: Vec<String> = row.lines.iter().take(LINES_MAX).map(line).collect();
    let more = row.lines.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    let states: Vec<String> = row.states.iter().map(|state| escaped(state)).collect();
    let place = row.place.as_ref().map(|place| format!("<br>{}", escaped(&place.to_string()))).unwrap_or_default();
    let (domain, rule) = (code(&row.domain), code(&row.rule));
    let (lines, states) = (lines.join("<br>"), states.join("<br>"));
    format!("| {domain} | {rule}{place} | {}, **{}** | {lines} | {states} |", row.kind, row.direction)
}

/// Writes the rows that fit, and the number of the rest.
fn write_rows(
    rows: impl ExactSizeIterator<Item = String>,
    noun: &str,
    room: &mut usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut left = rows.len();
    for row in rows.take(ROWS_MAX) {
        let Some(rest) = room.checked_sub(row.len() + 1) else { break };
        *room = rest;
        left -= 1;
        writeln!(out, "{row}")?;
    }
    if left > 0 {
        writeln!(out, "\nand {}: `weir diff` prints all of them", counted(left, &format!("more {noun}")))?;
    }
    Ok(())
}

fn line(line: &ChangeLine) -> String {
    match line {
        ChangeLine::Gone(text) => format!("<del>{}</del>", escaped(text)),
        ChangeLine::New(text) => format!("<ins>{}</ins>", escaped(text)),
        ChangeLine::Note(text) => escaped(text),
    }
}

fn code(text: &str) -> String {
    format!("<code>{}</code>", escaped(text))
}

/// Replaces each character that Markdown, HTML or a forge could interpret with a character reference.
fn escaped(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, ' ' | ',' | ';' | '.' | '/' | '=' | '-');
    let printable = printable(text);
    let mut shown = String::new();
    for (number, c) in printable.chars().enumerate() {
        match c {
            _ if number == CHARS_MAX => {
                shown.push_str("...");
                break;
            }
            _ if is_plain(c) => shown.push(c),
            _ => shown.push_str(&format!("&#{};", u32::from(c))),
        }
    }
    shown
}
