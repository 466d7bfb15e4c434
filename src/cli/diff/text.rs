//! The report for a terminal.

use std::io::{self, Write};

use weir_engine::words::printable;

use super::Report;
use super::words::{AnswerWords, ChangeLine, CouldNotTellWords, of_domain};

pub(super) fn write(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    for change in &report.comparison.domains {
        let (name, lines) = of_domain(change);
        writeln!(out, "domain {} {}", printable(&name), change.kind.name())?;
        write_lines(&lines, out)?;
        writeln!(out)?;
    }
    let rows = report.rules();
    let mut domain: Option<&str> = None;
    for row in &rows {
        if domain != Some(&row.domain) {
            let gap = if domain.is_some() { "\n" } else { "" };
            writeln!(out, "{gap}domain {}", printable(&row.domain))?;
            domain = Some(&row.domain);
        }
        let place = row.place.as_ref().map(|place| format!("   {}", printable(&place.to_string()))).unwrap_or_default();
        writeln!(out, "  {:7}   {}   {}{place}", row.kind, printable(&row.rule), row.direction)?;
        write_lines(&row.lines, out)?;
        for state in &row.states {
            writeln!(out, "      state of {}", printable(state))?;
        }
    }
    if !rows.is_empty() {
        writeln!(out)?;
    }
    for CouldNotTellWords { domain, rule, place, why } in report.could_not_tell_cases() {
        let place = place.map(|place| format!("   {}", printable(&place.to_string()))).unwrap_or_default();
        writeln!(
            out,
            "could not tell   {}   {}{place}\n      {}",
            printable(&domain),
            printable(&rule),
            printable(&why)
        )?;
    }
    if !report.comparison.unknown.is_empty() {
        writeln!(out)?;
    }
    for warning in
        report.new.warnings.iter().chain(report.old.warnings.iter().filter(|it| !report.new.warnings.contains(it)))
    {
        writeln!(out, "{}", printable(warning))?;
    }
    writeln!(out, "{}", report.summary())?;
    write_answers(report, out)
}

fn write_answers(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (Some(summary), Some(answers)) = (report.traffic_summary(), report.answers) else { return Ok(()) };
    writeln!(out, "{}", printable(&summary))?;
    let (rules, keys) = report.changed_answers();
    write_table("by rule", &rules, out)?;
    write_table("by descriptor, those with most changes", &keys, out)?;
    for note in &answers.notes {
        writeln!(out, "note: {}", printable(note))?;
    }
    Ok(())
}

fn write_table(title: &str, rows: &[AnswerWords], out: &mut dyn Write) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}\n  denied now   pass now   errors")?;
    for AnswerWords { domain, what, changed } in rows {
        let (domain, what) = (printable(domain), printable(what));
        writeln!(
            out,
            "  {:10}   {:8}   {:6}   {domain}   {what}",
            changed.now_denied, changed.now_passed, changed.errors
        )?;
    }
    Ok(())
}

fn write_lines(lines: &[ChangeLine], out: &mut dyn Write) -> io::Result<()> {
    for line in lines {
        let (mark, text) = match line {
            ChangeLine::Gone(text) => ('-', text),
            ChangeLine::New(text) => ('+', text),
            ChangeLine::Note(text) => (' ', text),
        };
        writeln!(out, "    {mark} {}", printable(text))?;
    }
    Ok(())
}
