//! Results of a simulation, for people at a terminal.

use std::time::Duration;

use weir_engine::words::{counted, percent, printable};
use weir_lab::simulation::report::{Count, KeyReport, LimitReport, PolicyReport, Report};
use weir_text::spell;

use super::compared::lines;

const BARS: [char; 8] =
    ['\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}'];
/// The longest name in a table, in characters; longer names are cut.
const NAME_CHARS_MAX: usize = 40;
/// The most limits that are shown for each set of policies.
const LIMITS_MAX: usize = 20;
/// Round lengths of time: those below a second, and those in seconds.
const ROUND_MS: [u64; 9] = [1, 2, 5, 10, 20, 50, 100, 200, 500];
const ROUND_S: [u64; 25] = [
    1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400,
    172_800, 432_000, 864_000, 1_728_000, 8_640_000,
];
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

/// Columns of so many slots.
pub(super) fn columns_of(slots: &[u64], joined: usize) -> Vec<u64> {
    slots.chunks(joined).map(|slots| slots.iter().sum()).collect()
}

/// The number of slots in a column: all columns fit, and a column has a round length if possible.
pub(super) fn slots_of_column(slot_us: u64, slots: usize, columns: usize) -> usize {
    let least = slots.div_ceil(columns).max(1);
    let joined = round_lengths().filter(|us| us.is_multiple_of(slot_us)).map(|us| us / slot_us);
    joined.filter_map(|joined| usize::try_from(joined).ok()).find(|joined| *joined >= least).unwrap_or(least)
}

/// In microseconds, the shortest first.
pub(super) fn round_lengths() -> impl Iterator<Item = u64> {
    ROUND_MS.iter().map(|ms| ms * 1_000).chain(ROUND_S.iter().map(|s| s * 1_000_000))
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

/// The totals of all requests, and the waits of denied ones; `none` in place of missing waits.
pub(super) fn totals_of(policies: &PolicyReport, none: &str) -> [String; 8] {
    let times = &policies.retry_after;
    let time = |us: u64| if times.count == 0 { none.to_owned() } else { length(us) };
    [
        grouped(policies.passed),
        percent(policies.passed, policies.requests()),
        grouped(policies.denied),
        percent(policies.denied, policies.requests()),
        grouped(policies.delayed),
        time(times.p50_us),
        time(times.p99_us),
        time(times.max_us),
    ]
}

/// Requests, requests over the limit, and their percentage.
pub(super) fn counts(Count { requests, over, .. }: Count) -> [String; 3] {
    [grouped(requests), grouped(over), percent(over, requests)]
}

/// The name, the amount and the algorithm of a limit, and its role if it does not deny alone.
pub(super) fn amount(limit: &LimitReport) -> String {
    let mut text = with_name(limit.name.as_deref(), limit.limit.as_deref());
    for part in limit.algorithm.into_iter().chain(limit.parameters.as_deref()) {
        text.push_str(&format!(" {part}"));
    }
    if limit.role != "enforced" {
        text.push_str(&format!(" ({})", limit.role));
    }
    text
}

/// The name and the amount of the limit of a key.
pub(super) fn limit_of(key: &KeyReport) -> String {
    with_name(key.name.as_deref(), key.limit.as_deref())
}

fn with_name(name: Option<&str>, amount: Option<&str>) -> String {
    let amount = amount.unwrap_or("-");
    name.map_or_else(|| amount.to_owned(), |name| format!("{}: {amount}", printable(name)))
}

/// The names of policies, without their common directories.
pub(super) fn names(report: &Report) -> Vec<String> {
    let mut directory = "";
    if let [first, others @ ..] = &*report.policies {
        let mut ends = first.name.match_indices('/').map(|(at, _)| at + 1).filter(|_| !others.is_empty());
        let is_common = |end: &usize| others.iter().all(|other| other.name.starts_with(&first.name[..*end]));
        directory = ends.rfind(is_common).map_or("", |end| &first.name[..end]);
    }
    let short = |policies: &PolicyReport| policies.name[directory.len()..].to_owned();
    let shorts: Vec<String> = report.policies.iter().map(short).collect();
    let all = if shorts.iter().any(String::is_empty) {
        report.policies.iter().map(|one| one.name.clone()).collect()
    } else {
        shorts
    };
    all.iter().map(|name| cut(&printable(name))).collect()
}

fn cut(text: &str) -> String {
    if text.chars().count() <= NAME_CHARS_MAX {
        return text.to_owned();
    }
    // The end of a path is more specific than its beginning.
    let skipped = text.chars().count() - NAME_CHARS_MAX + 1;
    format!("\u{2026}{}", text.chars().skip(skipped).collect::<String>())
}

/// A length of time in at most two units.
pub(super) fn length(us: u64) -> String {
    let digits = us.checked_ilog10().unwrap_or(0);
    let unit = match digits {
        0..3 => 1,
        3..6 => 100,
        6 => 10_000,
        7 => 100_000,
        _ => 1_000_000,
    };
    spell(Duration::from_micros(us.div_ceil(unit) * unit))
}

/// A number with commas: `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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

    #[test]
    fn numbers_and_lengths_are_short_to_read() {
        let all: Vec<String> = [0, 7, 999, 1_000, 12_345, 1_234_567].map(grouped).to_vec();
        assert_eq!(all, ["0", "7", "999", "1,000", "12,345", "1,234,567"]);
        let all: Vec<String> = [0, 999, 1_234, 999_999, 1_234_567, 59_999_999, 90_000_000].map(length).to_vec();
        assert_eq!(all, ["0s", "999us", "1ms300us", "1s", "1s240ms", "1m", "1m30s"]);
    }
}
