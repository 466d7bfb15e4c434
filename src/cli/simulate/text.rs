//! Results of a simulation, for people at a terminal.

use weir_engine::words::{counted, printable};
use weir_lab::simulation::report::Report;

use super::compared::lines;
use super::words::{amount, columns_of, counts, cut, grouped, length, limit_of, names, slots_of_column, totals_of};

const BARS: [char; 8] =
    ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
/// The most limits that are shown for each set of policies.
const LIMITS_MAX: usize = 20;
const GREEN: &str = "32";
const RED: &str = "31";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    /// None.
    No,
    Ansi,
}

/// The whole report, `width` characters wide if possible.
pub(super) fn report(report: &Report, width: usize, colours: Colours) -> String {
    let mut text = String::new();
    let names = names(report);
    traffic(report, &mut text);
    differences(report, &names, &mut text);
    if report.traffic.sent() > 0 {
        totals(report, &names, &mut text);
        plots(report, &names, width, colours, &mut text);
    }
    limits(report, &names, &mut text);
    keys(report, &names, &mut text);
    text
}

fn traffic(report: &Report, text: &mut String) {
    let traffic = &report.traffic;
    text.push_str(&format!("{}: {}", printable(&traffic.file), requests(traffic.requests)));
    if let (Some(start), Some(end)) = (&traffic.start, &traffic.end) {
        text.push_str(&format!(", from {start} to {end}"));
    }
    if let Some(seed) = traffic.seed {
        text.push_str(&format!(", seed {seed}"));
    }
    text.push('\n');
    if let Some([ok, over, error]) = traffic.recorded {
        let (ok, over, error) = (grouped(ok), grouped(over), grouped(error));
        text.push_str(&format!("recorded: {ok} passed, {over} denied, {error} got an error\n"));
    }
    for note in &traffic.notes {
        text.push_str(&format!("note: {}\n", printable(note)));
    }
}

/// What differs between two policies, by outcome and by limit.
fn differences(report: &Report, names: &[String], text: &mut String) {
    let (Some(lines), [old, new]) = (lines(report), names) else { return };
    if lines.is_empty() {
        text.push_str("no difference in any count\n");
    }
    let mut table = Table::new(["differences", old, "", new, "", "", "limit"]);
    for line in lines.iter().take(LIMITS_MAX) {
        let mut row = named(&cut(&printable(&line.what)), line.cells());
        row.push(line.limits_in_words());
        table.row(row);
    }
    table.write(6, text);
    more_limits(lines.len().saturating_sub(LIMITS_MAX), text);
}

fn more_limits(more: usize, text: &mut String) {
    if more > 0 {
        text.push_str(&format!("and {}: --json has all\n", counted(more, "more limit")));
    }
}

/// One line for each set of policies.
fn totals(report: &Report, names: &[String], text: &mut String) {
    let mut table = Table::new(["", "passed", "", "denied", "", "delayed", "retry after: p50", "p99", "longest"]);
    for (policies, name) in report.policies.iter().zip(names) {
        table.row(named(name, totals_of(policies, "-")));
    }
    table.write(usize::MAX, text);
    for (policies, name) in report.policies.iter().zip(names) {
        for (count, what) in [
            (policies.denied_for_ever, "requests that no wait helps"),
            (policies.failed, "requests with an error"),
            (policies.unknown_domain, "requests for a domain that the policies do not have"),
            (policies.unmatched_descriptors, "descriptors without a rule"),
            (policies.evicted, "states that did not fit in memory (memory.max_keys)"),
        ] {
            if count > 0 {
                text.push_str(&format!("{name}: {what}: {}\n", grouped(count)));
            }
        }
    }
}

fn requests(count: u64) -> String {
    counted(grouped(count), "request")
}

/// Admitted and denied requests over time, in one scale.
fn plots(report: &Report, names: &[String], width: usize, colours: Colours, text: &mut String) {
    let label = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let columns = width.saturating_sub(label + "  passed  ".len()).max(10);
    let Some(first) = report.policies.first() else { return };
    let slot_us = first.over_time.slot_us;
    let joined = slots_of_column(slot_us, first.over_time.passed.len(), columns);
    let all: Vec<[Vec<u64>; 2]> = report
        .policies
        .iter()
        .map(|policies| {
            [columns_of(&policies.over_time.passed, joined), columns_of(&policies.over_time.denied, joined)]
        })
        .collect();
    let most = all.iter().flatten().flatten().copied().max().unwrap_or(0).max(1);
    let long = length(slot_us * joined as u64);
    text.push_str(&format!("\neach column is {long}, the highest is {}\n", requests(most)));
    for (name, [passed, denied]) in names.iter().zip(&all) {
        for (label_text, word, values, colour) in
            [(name.as_str(), "passed", passed, GREEN), ("", "denied", denied, RED)]
        {
            let bars = coloured(&bars(values, most), colour, colours);
            let space = label - label_text.chars().count();
            push_line(text, &format!("{label_text}{}  {word}  {bars}", " ".repeat(space)));
        }
    }
}

/// A bar for each value; none for 0.
fn bars(values: &[u64], most: u64) -> String {
    let bar = |value: &u64| {
        let eighths = (u128::from(*value) * 8).div_ceil(u128::from(most));
        eighths.checked_sub(1).and_then(|at| BARS.get(usize::try_from(at).unwrap_or(7))).copied().unwrap_or(' ')
    };
    values.iter().map(bar).collect::<String>().trim_end().to_owned()
}

fn coloured(text: &str, colour: &str, colours: Colours) -> String {
    match colours {
        Colours::Ansi if !text.is_empty() => format!("\u{1b}[{colour}m{text}\u{1b}[0m"),
        _ => text.to_owned(),
    }
}

fn limits(report: &Report, names: &[String], text: &mut String) {
    let mut table = Table::new(["limits", "requests", "over", "", "limit", "rule", "place"]);
    let mut more = 0;
    for (policies, name) in report.policies.iter().zip(names) {
        for limit in policies.limits.iter().take(LIMITS_MAX) {
            let mut row = named(name, counts(limit.count));
            row.push(amount(limit));
            row.push(cut(&printable(&limit.rule)));
            row.push(cut(&printable(limit.place.as_deref().unwrap_or_default())));
            table.row(row);
        }
        more += policies.limits.len().saturating_sub(LIMITS_MAX);
    }
    table.write(4, text);
    more_limits(more, text);
}

fn keys(report: &Report, names: &[String], text: &mut String) {
    let mut table = Table::new(["keys", "requests", "over", "", "key", "limit"]);
    for (policies, name) in report.policies.iter().zip(names) {
        for key in &policies.keys {
            let mut row = named(name, counts(key.count));
            row.push(cut(&printable(&key.key)));
            row.push(limit_of(key));
            table.row(row);
        }
    }
    table.write(4, text);
    for (policies, name) in report.policies.iter().zip(names) {
        let requests = policies.other_keys.requests;
        if requests > 0 {
            let (requests, first) = (grouped(requests), grouped(policies.keys_counted as u64));
            let requests = counted(requests, "more request");
            text.push_str(&format!("{name}: {requests} for keys that came after the first {first}\n"));
        }
    }
}

/// A row: a name, then cells.
fn named<const N: usize>(name: &str, cells: [String; N]) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).collect()
}

fn push_line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new<const N: usize>(titles: [&str; N]) -> Self {
        Self { rows: vec![titles.map(str::to_owned).to_vec()] }
    }

    fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Writes the table, if it has rows. The first column and those from `left` on are aligned left, the others right.
    fn write(&self, left: usize, text: &mut String) {
        if self.rows.len() == 1 {
            return;
        }
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        text.push('\n');
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let space = " ".repeat(widths[column] - cell.chars().count());
                if column > 0 {
                    line.push_str("  ");
                }
                if column == 0 || column >= left {
                    line.push_str(&format!("{cell}{space}"));
                } else {
                    line.push_str(&format!("{space}{cell}"));
                }
            }
            push_line(text, &line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_between_none_and_all() {
        assert_eq!(bars(&[0, 1, 50, 100, 0, 99, 0], 100), " \u{2581}\u{2584}\u{2588} \u{2588}");
        assert_eq!(bars(&[0, 0], 1), "");
        assert_eq!(bars(&[u64::MAX], u64::MAX), "\u{2588}");
    }
}
