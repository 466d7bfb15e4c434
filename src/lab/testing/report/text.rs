//! The report for people, in the form of `cargo test`.

use std::io::{self, Write};

use weir_engine::words::{counted, percent, printable};
use weir_text::yaml::Position;

use super::{Covered, Totals};
use crate::testing::{CaseReport, Decider, Difference, Failure, FileReport, Outcome, Warning};

/// # Errors
/// As the writer.
pub fn file(report: &FileReport, out: &mut dyn Write) -> io::Result<()> {
    let plural = if report.cases.len() == 1 { "" } else { "s" };
    writeln!(out, "running {} test{plural} in {}", report.cases.len(), printable(&report.name))?;
    for case in &report.cases {
        let ended = match &case.outcome {
            Outcome::Passed if case.warnings.is_empty() => "ok".to_owned(),
            Outcome::Passed => format!("ok, with {}", counted(case.warnings.len() + case.more_warnings, "warning")),
            Outcome::Failed { .. } => "FAILED".to_owned(),
            Outcome::Skipped(reason) => format!("skipped: {reason}"),
            Outcome::Broken(_) => "ERROR".to_owned(),
        };
        writeln!(out, "test {} ... {ended}", printable(&case.name))?;
    }
    let is_bad = |outcome: &Outcome| matches!(outcome, Outcome::Failed { .. } | Outcome::Broken(_));
    if report.cases.iter().any(|case| is_bad(&case.outcome)) {
        writeln!(out, "\nfailures:")?;
        for case in report.cases.iter().filter(|case| is_bad(&case.outcome)) {
            writeln!(out, "\n---- {} ----", printable(&case.name))?;
            write!(out, "{}", details(report, &case.outcome))?;
        }
    }
    if report.cases.iter().any(|case| !case.warnings.is_empty()) {
        writeln!(out, "\nwarnings:")?;
        for case in report.cases.iter().filter(|case| !case.warnings.is_empty()) {
            write!(out, "\n---- {} ----\n{}", printable(&case.name), warnings(report, case))?;
        }
    }
    let totals = Totals::of([report]);
    let result = if totals.failed + totals.broken == 0 { "ok" } else { "FAILED" };
    let broken = if totals.broken > 0 { format!("{} in error; ", totals.broken) } else { String::new() };
    let warned = if totals.warnings > 0 { format!("{}; ", counted(totals.warnings, "warning")) } else { String::new() };
    let Totals { passed, failed, skipped, filtered, .. } = totals;
    let took = format!("{}.{:02}s", report.took.as_secs(), report.took.subsec_millis() / 10);
    writeln!(
        out,
        "\ntest result: {result}. {passed} passed; {failed} failed; {broken}{skipped} skipped; {filtered} filtered out; \
         {warned}finished in {took}\n"
    )
}

/// The failures of a case, one line for each.
pub fn details(report: &FileReport, outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed => String::new(),
        Outcome::Skipped(reason) | Outcome::Broken(reason) => {
            reason.trim_end().lines().map(|line| printable(line) + "\n").collect()
        }
        Outcome::Failed { failures, more } => {
            let mut text: String = failures.iter().map(|failure| step(report, failure)).collect();
            if *more > 0 {
                text.push_str(&format!("and {} failed\n", counted(more, "more step")));
            }
            text
        }
    }
}

fn step(report: &FileReport, failure: &Failure) -> String {
    let (file, Position { line, column }) = (printable(&report.name), failure.position);
    let mut text = format!("{file}:{line}:{column}: {}\n", printable(&failure.step));
    if let Some(Decider { limit, place, left, factor, reset, .. }) = &failure.decided_by {
        let weighed = factor.map(|factor| format!(", hits times {factor}")).unwrap_or_default();
        let place = place.as_ref().map(|place| format!("   {}", printable(place))).unwrap_or_default();
        text.push_str(&format!("  decided by {}: {left} left, reset {reset}{weighed}{place}\n", printable(limit)));
    }
    for Difference { position, what, expected, got } in &failure.differences {
        let place = format!("{file}:{}:{}", position.line, position.column);
        let [what, expected, got] = [what, expected, got].map(|text| printable(text));
        text.push_str(&format!("  {what}   {place}\n    - expected {expected}\n    + got      {got}\n"));
    }
    if failure.more > 0 {
        text.push_str(&format!("  and in {} more of the requests of this step\n", failure.more));
    }
    text
}

/// The steps of a case that test nothing, two lines each.
pub fn warnings(report: &FileReport, case: &CaseReport) -> String {
    let mut text = String::new();
    for Warning { position: Position { line, column }, step, reason } in &case.warnings {
        let [file, step, reason] = [&*report.name, &**step, &**reason].map(printable);
        text.push_str(&format!("{file}:{line}:{column}: {step}\n  tests nothing: it meets {reason}\n"));
    }
    if case.more_warnings > 0 {
        text.push_str(&format!("and {} that test nothing\n", counted(case.more_warnings, "more step")));
    }
    text
}

/// # Errors
/// As the writer.
pub fn coverage(covered: Covered<'_>, out: &mut dyn Write) -> io::Result<()> {
    out.write_all(of_coverage(covered).as_bytes())
}

/// The rules that no test met. If they are too many, the first line says so.
pub fn of_coverage(covered: Covered<'_>) -> String {
    let Covered { coverage, least } = covered;
    let (met, all) = (coverage.met(), coverage.rules.len());
    let mut text = match all {
        0 => "coverage: no rules, since no test loads policies from files".to_owned(),
        _ => format!("coverage: {met} of {} met ({})", counted(all, "rule"), percent(met as u64, all as u64)),
    };
    if let (Some(least), Some(false)) = (least, covered.is_reached()) {
        text.push_str(&format!(": --fail-under {least} is not reached"));
    }
    text.push('\n');
    for rule in coverage.unmet() {
        let (path, place) = (printable(&rule.path), printable(&rule.place.to_string()));
        text.push_str(&format!("  not met: {path} in {:?}   {place}\n", rule.domain));
    }
    text
}
