//! The report for a comment on a pull request: a table in the dialect of GitHub and GitLab.

use std::io::{self, Write};

use super::Report;
use super::rows::{AnswerRow, Line, Row, of_domain};
use crate::cli::printable::printable;

/// How many rules are in the table. GitHub takes comments of 65,536 characters.
const ROWS_MAX: usize = 100;
/// How much of a name, a value or a line is shown, in characters.
const CHARS_MAX: usize = 120;
/// How many lines of a rule are shown.
const LINES_MAX: usize = 16;

pub(super) fn write(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "**weir diff**: {}", escaped(&report.summary()))?;
    let domains = &report.comparison.domains;
    if !domains.is_empty() {
        writeln!(out, "\n| domain | |\n| --- | --- |")?;
        for change in domains.iter().take(ROWS_MAX) {
            let (name, lines) = of_domain(change);
            let lines: Vec<String> =
                std::iter::once(change.kind.name().to_owned()).chain(lines.iter().map(line)).collect();
            writeln!(out, "| {} | {} |", code(&name), lines.join("<br>"))?;
        }
        write_more(domains.len(), "domains", out)?;
    }
    let rows = report.rows();
    if !rows.is_empty() {
        writeln!(out, "\n| domain | rule | | change | states |\n| --- | --- | --- | --- | --- |")?;
    }
    for row in rows.iter().take(ROWS_MAX) {
        write_row(row, out)?;
    }
    write_more(rows.len(), "rules", out)?;
    let (Some(summary), Some(answers)) = (report.traffic_summary(), report.answers) else { return Ok(()) };
    writeln!(out, "\n{}", escaped(&summary))?;
    let (rules, keys) = report.answer_rows();
    write_answers("rule", &rules, out)?;
    write_answers("descriptor", &keys, out)?;
    for note in &answers.notes {
        writeln!(out, "\n{}", escaped(note))?;
    }
    Ok(())
}

fn write_answers(title: &str, rows: &[AnswerRow], out: &mut dyn Write) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n| domain | {title} | denied now | pass now | errors |\n| --- | --- | --- | --- | --- |")?;
    for AnswerRow { domain, what, changed } in rows.iter().take(ROWS_MAX) {
        let (domain, what) = (code(domain), code(what));
        writeln!(out, "| {domain} | {what} | {} | {} | {} |", changed.now_denied, changed.now_passed, changed.errors)?;
    }
    write_more(rows.len(), title, out)
}

fn write_row(row: &Row, out: &mut dyn Write) -> io::Result<()> {
    let mut lines: Vec<String> = row.lines.iter().take(LINES_MAX).map(line).collect();
    let more = row.lines.len().saturating_sub(LINES_MAX);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    let states: Vec<String> = row.states.iter().map(|state| escaped(state)).collect();
    let place = row.place.as_ref().map(|place| format!("<br>{}", escaped(&place.to_string()))).unwrap_or_default();
    let (domain, rule) = (code(&row.domain), code(&row.rule));
    let (lines, states) = (lines.join("<br>"), states.join("<br>"));
    writeln!(out, "| {domain} | {rule}{place} | {}, **{}** | {lines} | {states} |", row.kind, row.tend)
}

fn write_more(all: usize, what: &str, out: &mut dyn Write) -> io::Result<()> {
    let more = all.saturating_sub(ROWS_MAX);
    if more > 0 {
        writeln!(out, "\nand {more} more {what}: `weir diff` prints all of them")?;
    }
    Ok(())
}

fn line(line: &Line) -> String {
    match line {
        Line::Gone(text) => format!("<del>{}</del>", escaped(text)),
        Line::New(text) => format!("<ins>{}</ins>", escaped(text)),
        Line::Note(text) => escaped(text),
    }
}

fn code(text: &str) -> String {
    format!("<code>{}</code>", escaped(text))
}

/// A text that means nothing but itself: all that Markdown, HTML or a forge could take for more becomes a reference to the character.
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
