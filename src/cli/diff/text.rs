//! The report for a terminal.

use std::io::{self, Write};

use super::Report;
use super::rows::{Line, of_domain};
use crate::cli::printable::printable;

pub(super) fn write(report: &Report<'_>, out: &mut dyn Write) -> io::Result<()> {
    for change in &report.comparison.domains {
        let (name, lines) = of_domain(change);
        writeln!(out, "domain {} {}", printable(&name), change.kind.name())?;
        write_lines(&lines, out)?;
        writeln!(out)?;
    }
    let rows = report.rows();
    let mut domain: Option<&str> = None;
    for row in &rows {
        if domain != Some(&row.domain) {
            let gap = if domain.is_some() { "\n" } else { "" };
            writeln!(out, "{gap}domain {}", printable(&row.domain))?;
            domain = Some(&row.domain);
        }
        let place = row.place.as_ref().map(|place| format!("   {}", printable(&place.to_string()))).unwrap_or_default();
        writeln!(out, "  {:7}   {}   {}{place}", row.kind, printable(&row.rule), row.tend)?;
        write_lines(&row.lines, out)?;
        for state in &row.states {
            writeln!(out, "      state of {}", printable(state))?;
        }
    }
    if !rows.is_empty() {
        writeln!(out)?;
    }
    writeln!(out, "{}", report.summary())
}

fn write_lines(lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    for line in lines {
        let (mark, text) = match line {
            Line::Gone(text) => ('-', text),
            Line::New(text) => ('+', text),
            Line::Note(text) => (' ', text),
        };
        writeln!(out, "    {mark} {}", printable(text))?;
    }
    Ok(())
}
