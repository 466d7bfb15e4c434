//! Results of a simulation as one self-contained page without scripts.
//!
//! Texts from files and callers are always escaped.

use weir_engine::Micros;
use weir_engine::words::{counted, printable};
use weir_lab::simulation::report::{LimitReport, Report};

use super::compared::lines;
use super::words::{
    amount, columns_of, counts, grouped, length, limit_of, names, round_lengths, slots_of_column, totals_of,
};

/// The most limits that have a row for each set of policies.
const LIMITS_MAX: usize = 200;
/// The most columns of a large plot, and of a plot in the row of a limit.
const COLUMNS_MAX: usize = 150;
const SMALL_COLUMNS_MAX: usize = 60;
const WIDTH: u64 = 9_000;
const HEIGHT: u64 = 1_400;
/// The most parts of a plot between vertical lines. Each line has its time below.
const TICKS_MAX: u64 = 6;
/// The coordinates of a plot in the row of a limit.
const SMALL_WIDTH: u64 = 1_800;
const SMALL_HEIGHT: u64 = 240;

const STYLE: &str = "
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1f23; --dim: #5c6570; --line: #d6dae0;
  --passed: #2f74b5; --delayed: #8fbbe3; --denied: #d4702a; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181c; --ink: #e6e8eb; --dim: #9aa4af; --line: #363c44;
  --passed: #5aa2e0; --delayed: #2b5c88; --denied: #e8904d; } }
body { margin: 2rem auto; max-width: 64rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin-top: 2.5rem; }
.dim, caption, figcaption span { color: var(--dim); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; white-space: nowrap; } td.n, th.n { text-align: right; white-space: nowrap; }
td.t { overflow-wrap: break-word; max-width: 28rem; }
figure { margin: 1.25rem 0; } figcaption { margin-bottom: .25rem; overflow-wrap: anywhere; }
.plot { display: grid; grid-template-columns: max-content 1fr; gap: .25rem .5rem; }
figure svg { display: block; width: 100%; height: 8.75rem; } td svg { width: 11rem; height: 1.5rem; }
svg .frame { fill: none; stroke: var(--line); stroke-width: 1; vector-effect: non-scaling-stroke; }
.passed { fill: var(--passed); } .delayed { fill: var(--delayed); } .denied { fill: var(--denied); }
.y { display: flex; flex-direction: column; justify-content: space-between; text-align: right; }
.x { grid-column: 2; position: relative; height: 1.3rem; }
.x span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.x span:first-child { transform: none; }
.x, .y { color: var(--dim); font-size: .85rem; line-height: 1; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 1em; vertical-align: -.05em; }
.key:first-child { margin-left: 0; }
i.passed { background: var(--passed); } i.delayed { background: var(--delayed); } i.denied { background: var(--denied); }
";

pub(super) fn page(report: &Report) -> String {
    let title = format!("Simulation of {}", escaped(&report.traffic.file));
    let names: Vec<String> = names(report).iter().map(|name| escaped(name)).collect();
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    traffic(report, &mut page);
    differences(report, &names, &mut page);
    totals(report, &names, &mut page);
    plots(report, &names, &mut page);
    limits(report, &names, &mut page);
    keys(report, &names, &mut page);
    page.push_str("</body>\n</html>\n");
    page
}

fn traffic(report: &Report, page: &mut String) {
    let traffic = &report.traffic;
    page.push_str(&format!("<p>{}", counted(grouped(traffic.requests), "request")));
    if let (Some(start), Some(end)) = (&traffic.start, &traffic.end) {
        page.push_str(&format!(" from {} to {}", escaped(start), escaped(end)));
    }
    if let Some(seed) = traffic.seed {
        page.push_str(&format!(", seed {seed}"));
    }
    page.push_str(".</p>\n");
    if let Some([ok, over, error]) = traffic.recorded {
        let (ok, over, error) = (grouped(ok), grouped(over), grouped(error));
        page.push_str(&format!("<p>Recorded answers: {ok} passed, {over} denied, {error} got an error.</p>\n"));
    }
    for note in &traffic.notes {
        page.push_str(&format!("<p class=\"dim\">Note: {}</p>\n", escaped(note)));
    }
}

/// What differs between two policies, by outcome and by limit, with the plots of both.
fn differences(report: &Report, names: &[String], page: &mut String) {
    let (Some(lines), [old, new]) = (lines(report), names) else { return };
    if lines.is_empty() {
        page.push_str("<p>No difference in any count.</p>\n");
    }
    let (of_old, of_new) = (format!("n {old}"), format!("n {new}"));
    let titles = [&*of_old, "n ", &*of_new, "n ", "n ", "limit", old, new];
    let mut table = Table::new("Differences", "count", &titles);
    for line in lines.iter().take(LIMITS_MAX) {
        let limits = line.limits.unwrap_or_default();
        // Both in one scale.
        let most = limits.into_iter().flatten().map(peak).max().unwrap_or(0);
        let [old, new] = limits.map(|limit| limit.map_or_else(String::new, |limit| small_plot(limit, most)));
        let cells = line.cells().into_iter().chain([line.limits_in_words()]).map(|cell| escaped(&cell));
        table.row(&escaped(&line.what), &cells.chain([old, new]).collect::<Vec<_>>());
    }
    table.write(page);
    more_limits(lines.len().saturating_sub(LIMITS_MAX), page);
}

fn more_limits(more: usize, page: &mut String) {
    if more > 0 {
        page.push_str(&format!("<p class=\"dim\">And {}: --json has all.</p>\n", counted(more, "more limit")));
    }
}

fn totals(report: &Report, names: &[String], page: &mut String) {
    let titles =
        ["n passed", "n ", "n denied", "n ", "n delayed", "n retry after: p50", "n p99", "n longest", "n errors"];
    let mut table = Table::new("Totals", "policies", &titles);
    for (policies, name) in report.policies.iter().zip(names) {
        let [passed, of_passed, denied, of_denied, delayed, p50, p99, longest] = totals_of(policies, "&ndash;");
        let errors = grouped(policies.failed);
        let (of_passed, of_denied) = (escaped(&of_passed), escaped(&of_denied));
        table.row(name, &[passed, of_passed, denied, of_denied, delayed, p50, p99, longest, errors]);
    }
    table.write(page);
}

fn plots(report: &Report, names: &[String], page: &mut String) {
    let Some(first) = report.policies.first() else { return };
    let slot_us = first.over_time.slot_us;
    let joined = slots_of_column(slot_us, first.over_time.passed.len(), COLUMNS_MAX);
    let all: Vec<[Vec<u64>; 3]> = report
        .policies
        .iter()
        .map(|policies| &policies.over_time)
        .map(|time| [&time.passed, &time.delayed, &time.denied].map(|slots| columns_of(slots, joined)))
        .collect();
    let most = all.iter().flat_map(|[passed, _, denied]| sums(passed, denied)).max().unwrap_or(0);
    let scale =
        Scale::new(most, slot_us.saturating_mul((first.over_time.passed.len().div_ceil(joined) * joined) as u64));
    page.push_str(&format!(
        "<h2>Over time</h2>\n<p><i class=\"key passed\"></i>passed at once<i class=\"key delayed\"></i>passed, and waits \
         for its turn<i class=\"key denied\"></i>denied. The vertical axis is requests in {}, the horizontal one the time since \
         {}.</p>\n",
        length(slot_us * joined as u64),
        escaped(&first.over_time.start)
    ));
    for ((policies, name), [passed, delayed, denied]) in report.policies.iter().zip(names).zip(&all) {
        let at_once: Vec<u64> = passed.iter().zip(delayed).map(|(all, delayed)| all - delayed).collect();
        let layers = [("passed", &at_once[..]), ("delayed", delayed), ("denied", denied)];
        let (passed, denied) = (grouped(policies.passed), grouped(policies.denied));
        let about = format!("{name}: {} passed, {denied} denied", counted(&passed, "request"));
        page.push_str(&format!(
            "<figure>\n<figcaption>{name} <span>{passed} passed, {denied} denied</span></figcaption>\n<div \
             class=\"plot\">{}{}{}</div>\n</figure>\n",
            scale.vertical_axis(),
            plot(&about, &layers, scale.top, [WIDTH, HEIGHT], &scale.lines()),
            scale.horizontal_axis()
        ));
    }
}

/// The axes of all large plots.
struct Scale {
    /// The requests at the top, a round number.
    top: u64,
    lasts: Micros,
    /// The time between two vertical lines, a round number.
    step: Micros,
}

impl Scale {
    fn new(most: u64, lasts: Micros) -> Self {
        let unit = 10_u64.saturating_pow(most.max(1).ilog10());
        let top = [1, 2, 4, 6, 8, 10].map(|times| unit.saturating_mul(times));
        let top = top.into_iter().find(|top| *top >= most).unwrap_or(u64::MAX);
        let least = lasts.div_ceil(TICKS_MAX);
        let round = round_lengths().find(|step| *step >= least);
        Self { top, lasts, step: round.unwrap_or(least).max(1) }
    }

    /// The places of the vertical lines in a plot.
    fn lines(&self) -> Vec<u64> {
        self.times().into_iter().map(|time| scale(time, WIDTH, self.lasts)).collect()
    }

    /// The times of the vertical lines, after the start.
    fn times(&self) -> Vec<Micros> {
        (0..).map(|tick| tick * self.step).take_while(|time| *time < self.lasts).collect()
    }

    fn horizontal_axis(&self) -> String {
        let place = |time: &Micros| scale(*time, 10_000, self.lasts);
        let label = |time: &Micros| {
            let (whole, rest) = (place(time) / 100, place(time) % 100);
            format!("<span style=\"left:{whole}.{rest:02}%\">{}</span>", short_time(*time))
        };
        format!("<div class=\"x\">{}</div>", self.times().iter().map(label).collect::<String>())
    }

    fn vertical_axis(&self) -> String {
        let half = if self.top.is_multiple_of(2) { grouped(self.top / 2) } else { String::new() };
        format!("<div class=\"y\"><span>{}</span><span>{half}</span><span>0</span></div>", grouped(self.top))
    }
}

/// A time since the start: `1h05`, `2d06h`, `5m30`, `30s`.
fn short_time(us: Micros) -> String {
    const UNITS: [(u64, &str, u64, &str); 3] = [(86_400, "d", 3_600, "h"), (3_600, "h", 60, ""), (60, "m", 1, "")];
    let s = us / 1_000_000;
    let Some((large, name, small, small_name)) = UNITS.into_iter().find(|(large, ..)| s >= *large) else {
        return if us == 0 { "0".to_owned() } else { length(us) };
    };
    match s % large / small {
        0 => format!("{}{name}", s / large),
        rest => format!("{}{name}{rest:02}{small_name}", s / large),
    }
}

fn limits(report: &Report, names: &[String], page: &mut String) {
    let mut table =
        Table::new("Limits", "policies", &["n requests", "n over", "n ", "limit", "rule", "over time", "place"]);
    let (mut more, mut without_plot) = (0, false);
    for (policies, name) in report.policies.iter().zip(names) {
        for limit in policies.limits.iter().take(LIMITS_MAX) {
            without_plot |= limit.over_time.is_none();
            let [requests, over, percentage] = counts(limit.count);
            let place = escaped(limit.place.as_deref().unwrap_or_default());
            let (amount, rule) = (escaped(&amount(limit)), escaped(&limit.rule));
            table.row(
                name,
                &[requests, over, escaped(&percentage), amount, rule, small_plot(limit, peak(limit)), place],
            );
        }
        more += policies.limits.len().saturating_sub(LIMITS_MAX);
    }
    table.write(page);
    if without_plot {
        page.push_str("<p class=\"dim\">Only the limits that were asked first have a plot.</p>\n");
    }
    more_limits(more, page);
}

/// The requests within a limit and over it, in the columns of a small plot.
fn small_columns(limit: &LimitReport) -> Option<[Vec<u64>; 2]> {
    let time = limit.over_time.as_ref()?;
    let joined = time.within.len().div_ceil(SMALL_COLUMNS_MAX).max(1);
    Some([&time.within, &time.over].map(|slots| columns_of(slots, joined)))
}

/// The most requests in a column of a small plot.
fn peak(limit: &LimitReport) -> u64 {
    small_columns(limit).and_then(|[within, over]| sums(&within, &over).max()).unwrap_or(0)
}

fn small_plot(limit: &LimitReport, most: u64) -> String {
    let Some([within, over]) = small_columns(limit) else { return String::new() };
    let about = format!(
        "{} over the limit, at most {} in a column",
        grouped(limit.count.over),
        counted(grouped(peak(limit)), "request")
    );
    plot(&about, &[("passed", &within), ("denied", &over)], most, [SMALL_WIDTH, SMALL_HEIGHT], &[])
}

fn keys(report: &Report, names: &[String], page: &mut String) {
    let mut table = Table::new(
        "Keys, those denied most first",
        "policies",
        &["n requests", "n over", "n ", "key", "limit", "rule"],
    );
    for (policies, name) in report.policies.iter().zip(names) {
        for key in &policies.keys {
            let [requests, over, percentage] = counts(key.count);
            let (limit, rule) = (escaped(&limit_of(key)), escaped(&key.rule));
            table.row(name, &[requests, over, escaped(&percentage), escaped(&key.key), limit, rule]);
        }
    }
    table.write(page);
    for (policies, name) in report.policies.iter().zip(names) {
        let (others, first) = (policies.other_keys.requests, policies.keys_counted as u64);
        if others > 0 {
            let (others, first) = (counted(grouped(others), "more request"), grouped(first));
            page.push_str(&format!(
                "<p class=\"dim\">{name}: {others} for keys that came after the first {first}.</p>\n"
            ));
        }
    }
}

fn sums<'a>(first: &'a [u64], second: &'a [u64]) -> impl Iterator<Item = u64> + use<'a> {
    first.iter().zip(second).map(|(first, second)| first + second)
}

/// Stacked bars, with vertical lines in parts of a width. `about` is already escaped.
fn plot(about: &str, layers: &[(&str, &[u64])], most: u64, [width, height]: [u64; 2], lines: &[u64]) -> String {
    let slots = layers.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    let scaled = |value: u64| height - scale(value, height, most);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {width} {height}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{about}\">\
         <title>{about}</title><path class=\"frame\" d=\"M0 0H{width}M0 {}H{width}M0 {height}H{width}\"/>",
        height / 2
    );
    if !lines.is_empty() {
        let lines = lines.iter().map(|at| format!("M{at} 0V{height}"));
        svg.push_str(&format!("<path class=\"frame\" d=\"{}\"/>", lines.collect::<String>()));
    }
    let mut below = vec![0_u64; slots];
    for (class, values) in layers {
        let mut path = String::new();
        for (slot, value) in values.iter().enumerate().filter(|(_, value)| **value > 0) {
            let (left, right) = (scale(slot as u64, width, slots as u64), scale(slot as u64 + 1, width, slots as u64));
            let (bottom, top) = (scaled(below[slot]), scaled(below[slot] + value));
            path.push_str(&format!("M{left} {bottom}V{top}H{right}V{bottom}Z"));
            below[slot] += value;
        }
        if !path.is_empty() {
            svg.push_str(&format!("<path class=\"{class}\" d=\"{path}\"/>"));
        }
    }
    svg.push_str("</svg>");
    svg
}

fn scale(part: u64, length: u64, whole: u64) -> u64 {
    let scaled = u128::from(part) * u128::from(length) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(length)
}

/// Escapes markup and invisible characters.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in printable(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A table with a heading, and the title of its first column. Another title that begins with `n ` marks a column of numbers.
struct Table<'a> {
    heading: &'a str,
    first: &'a str,
    titles: &'a [&'a str],
    rows: String,
}

impl<'a> Table<'a> {
    fn new(heading: &'a str, first: &'a str, titles: &'a [&'a str]) -> Self {
        Self { heading, first, titles, rows: String::new() }
    }

    /// Adds a row. Cells are already escaped.
    fn row(&mut self, name: &str, cells: &[String]) {
        self.rows.push_str(&format!("<tr><td class=\"t\">{name}</td>"));
        for (title, cell) in self.titles.iter().zip(cells) {
            let class = if title.starts_with("n ") { "n" } else { "t" };
            self.rows.push_str(&format!("<td class=\"{class}\">{cell}</td>"));
        }
        self.rows.push_str("</tr>\n");
    }

    /// Writes the table, if it has rows.
    fn write(&self, page: &mut String) {
        if self.rows.is_empty() {
            return;
        }
        let Self { heading, first, .. } = self;
        page.push_str(&format!("<h2>{heading}</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>{first}</th>"));
        for title in self.titles {
            match title.strip_prefix("n ") {
                Some(title) => page.push_str(&format!("<th class=\"n\">{title}</th>")),
                None => page.push_str(&format!("<th>{title}</th>")),
            }
        }
        page.push_str(&format!("</tr></thead>\n<tbody>\n{}</tbody>\n</table></div>\n", self.rows));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        let text = "<script>alert('x')</script>\" onload=\"&\u{1b}[0m\u{202e}";
        assert_eq!(
            escaped(text),
            "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot; onload=&quot;&amp;\\u{1b}[0m\\u{202e}"
        );
    }

    #[test]
    fn the_axes_of_a_plot_have_round_numbers_and_short_times() {
        let scale = Scale::new(37, 65 * 60 * 1_000_000);
        assert_eq!(scale.vertical_axis(), "<div class=\"y\"><span>40</span><span>20</span><span>0</span></div>");
        let axis = scale.horizontal_axis();
        let label = |at: &str, time: &str| format!("<span style=\"left:{at}%\">{time}</span>");
        let labels = [("0.00", "0"), ("23.07", "15m"), ("46.15", "30m"), ("69.23", "45m"), ("92.30", "1h")];
        assert_eq!(axis, format!("<div class=\"x\">{}</div>", labels.map(|(at, time)| label(at, time)).concat()));
        let svg = plot("about", &[("passed", &[1])], 1, [WIDTH, HEIGHT], &scale.lines());
        assert!(svg.contains("d=\"M0 0V1400M2076 0V1400M4153 0V1400M6230 0V1400M8307 0V1400\""), "{svg}");
        let tops = [0, 1, 3, 9, 10, 11, 1_001, u64::MAX].map(|most| Scale::new(most, 1).top);
        assert_eq!(tops, [1, 1, 4, 10, 10, 20, 2_000, u64::MAX]);
        let times = [0, 1_500_000, 90_000_000, 3_900_000_000, 90_000_000_000, 86_400_000_000].map(short_time);
        assert_eq!(times, ["0", "1s500ms", "1m30", "1h05", "1d01h", "1d"]);
    }

    #[test]
    fn layers_stand_on_each_other() {
        let svg = plot("about", &[("passed", &[1, 0]), ("denied", &[1, 2])], 2, [200, 100], &[]);
        assert!(svg.contains("<path class=\"passed\" d=\"M0 100V50H100V100Z\"/>"), "{svg}");
        assert!(svg.contains("<path class=\"denied\" d=\"M0 50V0H100V50ZM100 100V0H200V100Z\"/>"), "{svg}");
    }
}
