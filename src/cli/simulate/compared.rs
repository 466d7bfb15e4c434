//! What differs between two policies, line by line. Both reports for people have it first.

use std::cmp::Ordering;

use weir_engine::words::percent;
use weir_lab::simulation::report::{LimitPair, LimitReport, PolicyReport, Report};

use super::words::{amount, grouped};

/// Requests of one outcome, or requests over a limit and its counterpart.
pub(super) struct Line<'r> {
    pub(super) what: String,
    /// How many, and of how many. None on a side without the limit.
    counts: [Option<(u64, u64)>; 2],
    /// None for an outcome.
    pub(super) limits: Option<[Option<&'r LimitReport>; 2]>,
}

/// None unless there are two policies.
pub(super) fn lines(report: &Report) -> Option<Vec<Line<'_>>> {
    let (Some(pairs), [old, new]) = (&report.differences, &*report.policies) else { return None };
    let mut lines = outcomes([old, new]);
    lines.extend(pairs.iter().map(|pair| of_limits([old, new], *pair)));
    Some(lines)
}

fn outcomes<'r>(policies: [&PolicyReport; 2]) -> Vec<Line<'r>> {
    let [old, new] = policies.map(|one| [one.passed, one.delayed, one.denied, one.failed]);
    let all = ["passed", "delayed", "denied", "errors"].into_iter().zip(old.into_iter().zip(new));
    let line = |(what, (old, new)): (&str, (u64, u64))| Line {
        what: what.to_owned(),
        counts: [Some((old, policies[0].requests())), Some((new, policies[1].requests()))],
        limits: None,
    };
    all.filter(|(_, (old, new))| old != new).map(line).collect()
}

fn of_limits<'r>(policies: [&'r PolicyReport; 2], [old, new]: LimitPair) -> Line<'r> {
    let limits = [old.map(|at| &policies[0].limits[at]), new.map(|at| &policies[1].limits[at])];
    let rule = limits.into_iter().flatten().next().map_or("", |limit| &limit.rule);
    let counts = limits.map(|limit| limit.map(|limit| (limit.count.over, limit.count.requests)));
    Line { what: format!("over {rule}"), counts, limits: Some(limits) }
}

impl Line<'_> {
    /// The count and the share of each side, and the difference.
    pub(super) fn cells(&self) -> [String; 5] {
        let side = |side: Option<(u64, u64)>| match side {
            Some((count, of)) => [grouped(count), percent(count, of)],
            None => ["-".to_owned(), String::new()],
        };
        let [old, new] = self.counts.map(|side| side.map_or(0, |(count, _)| count));
        let sign = match old.cmp(&new) {
            Ordering::Less => "+",
            Ordering::Equal => "",
            Ordering::Greater => "-",
        };
        let [[old_count, old_share], [new_count, new_share]] = self.counts.map(side);
        [old_count, old_share, new_count, new_share, format!("{sign}{}", grouped(old.abs_diff(new)))]
    }

    /// The limits, both if they differ. Empty for an outcome.
    pub(super) fn limits_in_words(&self) -> String {
        let Some(limits) = self.limits else { return String::new() };
        let [old, new] = limits.map(|limit| limit.map_or_else(|| "none".to_owned(), amount));
        if old == new { old } else { format!("{old} -> {new}") }
    }
}
