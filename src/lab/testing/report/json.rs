//! The report as one JSON document.

use serde_json::{Value, json};

use super::{Covered, Problem, Totals};
use crate::testing::{CaseReport, Decider, Difference, Failure, FileReport, Outcome, Warning};

pub fn document(files: &[FileReport], covered: Option<Covered<'_>>) -> Value {
    let totals = Totals::of(files);
    let mut document = json!({
        "passed": totals.passed,
        "failed": totals.failed,
        "errors": totals.broken,
        "skipped": totals.skipped,
        "filtered": totals.filtered,
        "warnings": totals.warnings,
        "files": files.iter().map(file).collect::<Vec<_>>(),
    });
    if let Some(covered) = covered {
        document["coverage"] = coverage(covered);
    }
    document
}

/// The report if no case was run.
pub fn of_problems(problems: &[Problem]) -> Value {
    let problem = |problem: &Problem| json!({ "subject": problem.subject, "text": problem.text });
    let mut document = document(&[], None);
    document["errors"] = problems.len().into();
    document["problems"] = problems.iter().map(problem).collect();
    document
}

fn file(report: &FileReport) -> Value {
    json!({ "file": &*report.name, "cases": report.cases.iter().map(case).collect::<Vec<_>>() })
}

fn case(case: &CaseReport) -> Value {
    let mut value = json!({
        "name": case.name,
        "line": case.position.line,
        "column": case.position.column,
        "requests": case.asks,
        "seconds": case.took.as_secs_f64(),
        "warnings": case.warnings.iter().map(warning).collect::<Vec<_>>(),
        "further_warnings": case.more_warnings,
    });
    match &case.outcome {
        Outcome::Passed => value["outcome"] = "passed".into(),
        Outcome::Failed { failures, more } => {
            value["outcome"] = "failed".into();
            value["failures"] = failures.iter().map(failure).collect();
            value["further_failures"] = (*more).into();
        }
        Outcome::Skipped(reason) => {
            value["outcome"] = "skipped".into();
            value["reason"] = reason.as_str().into();
        }
        Outcome::Broken(reason) => {
            value["outcome"] = "error".into();
            value["reason"] = reason.as_str().into();
        }
    }
    value
}

fn warning(Warning { position, step, reason }: &Warning) -> Value {
    json!({ "line": position.line, "column": position.column, "step": step, "reason": reason })
}

fn failure(failure: &Failure) -> Value {
    let difference = |difference: &Difference| {
        let Difference { position, what, expected, got } = difference;
        json!({ "what": what, "line": position.line, "column": position.column, "expected": expected, "got": got })
    };
    json!({
        "line": failure.position.line,
        "column": failure.position.column,
        "step": failure.step,
        "decided_by": failure.decided_by.as_ref().map(|Decider { limit, place, remaining, factor, reset, .. }| {
            json!({ "limit": limit, "place": place, "remaining": remaining, "factor": factor, "reset": reset })
        }),
        "differences": failure.differences.iter().map(difference).collect::<Vec<_>>(),
        "further_requests": failure.more,
    })
}

fn coverage(covered: Covered<'_>) -> Value {
    let Covered { coverage, least } = covered;
    let unmet = coverage.unmet().map(|rule| {
        let (place, position) = (&*rule.place.file, rule.place.position);
        json!({ "domain": rule.domain, "rule": rule.path, "file": place, "line": position.line, "column": position.column })
    });
    let number = |tenths: u64| format!("{}.{}", tenths / 10, tenths % 10).parse::<f64>().ok();
    let percent = coverage.tenths_of_percent().and_then(number);
    json!({
        "rules": coverage.rules.len(),
        "met": coverage.met(),
        "percent": percent,
        "fail_under": least.map(|least| least.to_string()),
        "reached": covered.is_reached(),
        "not_met": unmet.collect::<Vec<_>>(),
    })
}
