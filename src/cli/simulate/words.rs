//! What both reports for people have in common: numbers, lengths of time, limits, and slots of plots.

use std::time::Duration;

use weir_engine::words::{counted, percent, printable};
use weir_lab::simulation::report::{Count, KeyReport, LimitReport, PolicyReport, Report};
use weir_text::spell;

/// The longest name in a table, in characters; longer names are cut.
const NAME_CHARS_MAX: usize = 40;
/// Round lengths of time: those below a second, and those in seconds.
const ROUND_MS: [u64; 9] = [1, 2, 5, 10, 20, 50, 100, 200, 500];
const ROUND_S: [u64; 25] = [
    1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1_200, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400,
    172_800, 432_000, 864_000, 1_728_000, 8_640_000,
];

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

/// The name, the amount and the algorithm of a limit, its role if it does not deny alone, and whether requests had other numbers.
pub(super) fn amount(limit: &LimitReport) -> String {
    let mut text = with_name(limit.name.as_deref(), limit.limit.as_deref());
    for part in limit.algorithm.into_iter().chain(limit.parameters.as_deref()) {
        text.push_str(&format!(" {part}"));
    }
    if limit.role != "enforced" {
        text.push_str(&format!(" ({})", limit.role));
    }
    if limit.other_numbers > 0 {
        text.push_str(&format!(", other numbers in {}", counted(grouped(limit.other_numbers), "request")));
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

pub(super) fn cut(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lengths_are_short_to_read() {
        let all: Vec<String> = [0, 7, 999, 1_000, 12_345, 1_234_567].map(grouped).to_vec();
        assert_eq!(all, ["0", "7", "999", "1,000", "12,345", "1,234,567"]);
        let all: Vec<String> = [0, 999, 1_234, 999_999, 1_234_567, 59_999_999, 90_000_000].map(length).to_vec();
        assert_eq!(all, ["0s", "999us", "1ms300us", "1s", "1s240ms", "1m", "1m30s"]);
    }
}
