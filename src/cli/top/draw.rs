//! Draws a view on the terminal.

use std::time::{Duration, Instant};

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table as Widget};
use weir_engine::words::counted;
use weir_text::spell;

use super::report::{Leases, Name, Report, ShownKey};
use super::view::{By, Sort, Table, View};

const HEAD_ROWS: u16 = 4;
const TABLE_ROWS_MIN: u16 = 3;
/// What to do if a store does not decide.
const RUNBOOK: &str = "docs/operations.md#redis-does-not-answer";
/// Why a report has no callers.
const NO_CALLERS: &str = ": the server has no callers.file, or the token has not all domains";
const HELP: &str = "q quit  s sort  p pause  / filter  Tab table  up/down scroll";
const HELP_OF_CALLERS: &str = "q quit  s sort  p pause  / filter  up/down scroll";
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);

/// Draws the whole terminal. If it is too small, leaves out the table of keys first, then the upper table.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View, now: Instant) {
    let area = frame.area();
    let help_rows = u16::from(area.height > HEAD_ROWS);
    let has_keys = view.by == By::Limit && area.height >= HEAD_ROWS + help_rows + 2 * TABLE_ROWS_MIN;
    let keys = if has_keys { Constraint::Fill(1) } else { Constraint::Length(0) };
    let parts = [Constraint::Length(HEAD_ROWS), Constraint::Fill(1), keys, Constraint::Length(help_rows)];
    let [head, upper, keys, help] = Layout::vertical(parts).areas(area);
    frame.render_widget(Paragraph::new(head_lines(view, now)), head);
    match view.by {
        By::Limit => draw_limits(frame, view, upper),
        By::Caller => draw_callers(frame, view, upper),
    }
    if has_keys {
        draw_keys(frame, view, keys);
    }
    frame.render_widget(Paragraph::new(help_line(view)), help);
}

fn head_lines(view: &View, now: Instant) -> Vec<Line<'_>> {
    let Report { state, is_ready, store, policies: [domains, rules, problems], requests, .. } = &view.report;
    let status = match &view.trouble {
        Some((reason, since)) => {
            let seconds = now.saturating_duration_since(*since).as_secs();
            let text = format!("no answer for {seconds} s, trying again: {reason}");
            Line::from(vec![Span::styled("weir top  ", BOLD), Span::styled(text, BAD)])
        }
        None => Line::from(vec![
            Span::styled("weir top  ", BOLD),
            Span::raw(format!("{}  ", view.server)),
            judged(state.clone(), *is_ready),
            Span::raw(format!("  {} UTC  every {}", view.report.clock(), view.interval)),
            Span::styled(if view.is_paused { "  paused" } else { "" }, BOLD),
        ]),
    };
    let answers = if store.answered { "answers" } else { "does not answer" };
    let parts = Line::from(vec![
        Span::raw(format!("store {} ", store.name)),
        judged(answers.to_owned(), store.answered),
        Span::raw("  circuit "),
        judged(store.circuit.clone(), store.circuit == "closed"),
        Span::raw(format!(
            "  queue {}  policies {} in {}, ",
            store.queue.unwrap_or_default(),
            counted(rules, "rule"),
            counted(domains, "domain")
        )),
        judged(counted(problems, "problem"), *problems == 0),
    ]);
    let [ok, over, failed] = requests;
    let has_failed = failed.0.is_some_and(|tenths| tenths > 0);
    let requests = Line::from(vec![
        Span::raw(format!("requests/s  ok {ok}  over limit {over}  ")),
        judged(format!("failed {failed}"), !has_failed),
        Span::raw(format!("  overrides {}", view.report.overrides)),
        Span::raw(leases(&view.report.leases)),
    ]);
    vec![status, parts, requests, decides(&view.report)]
}

/// Who decides, how fast, and since when.
fn decides(report: &Report) -> Line<'static> {
    let Report { store, local, nobody, times_us, uptime_s, .. } = report;
    let mut parts: Vec<String> = store.answered.then(|| "store".to_owned()).into_iter().collect();
    for (name, rate) in [("local", local), ("nobody", nobody)] {
        if rate.0 > Some(0) {
            parts.push(format!("{name} {rate}/s"));
        }
    }
    if parts.is_empty() {
        parts.push("nobody".to_owned());
    }
    let is_good = parts == ["store"];
    let mut line = vec![Span::raw("decides  "), judged(parts.join(", "), is_good)];
    for (name, us) in ["p50", "p99"].iter().zip(times_us) {
        let time = us.map_or_else(|| "-".to_owned(), in_ms);
        line.push(Span::raw(format!("  {name} {time}")));
    }
    line.push(Span::raw(format!("  up {}", spell(Duration::from_secs(uptime_s / 60 * 60)))));
    if !is_good {
        line.push(Span::raw(format!("  see {RUNBOOK}")));
    }
    Line::from(line)
}

/// The width of a rate, in characters. Amounts can need more.
const RATE_WIDTH: usize = 9;

fn draw_limits(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let count = view.limits().count();
    let mut rate_width = RATE_WIDTH;
    let rows = view.limits().skip(view.first[0]).take(area.height.into()).map(|limit| {
        let style = if limit.denied.0 > Some(0) { BAD } else { Style::new() };
        let (denied, hits) = (limit.rate(limit.denied), limit.rate(limit.hits));
        rate_width = rate_width.max(denied.len()).max(hits.len());
        Row::new([
            number(&denied, style),
            number(&hits, Style::new()),
            number(&limit.denials, Style::new()),
            Cell::from(name(&limit.name, limit.is_shadow)),
        ])
    });
    let rows: Vec<Row<'_>> = rows.collect();
    let rate_width = u16::try_from(rate_width).unwrap_or(u16::MAX);
    let title = title(view, Table::Upper, count, &format!("limits by {}", view.sort.name()));
    let last_minutes = format!("in {} min", view.report.minutes);
    let head = [right("denied/s"), right("hits/s"), right(&last_minutes), left("limit")];
    let widths = [rate_width, rate_width, 8].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    draw_table(frame, area, title, Widget::new(rows, widths).header(Row::new(head).style(BOLD)));
}

fn draw_callers(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let count = view.callers().count();
    let rows = view.callers().skip(view.first[0]).take(area.height.into()).map(|caller| {
        let style = if caller.refused.0 > Some(0) { BAD } else { Style::new() };
        let numbers = [number(&caller.refused, style), number(&caller.requests, Style::new())];
        Row::new(numbers.into_iter().chain([Cell::from(caller.name.clone())]))
    });
    let order = match view.sort {
        Sort::Denied => "refused",
        Sort::Hits => "requests",
        Sort::Name => "name",
    };
    let mut title = title(view, Table::Upper, count, &format!("callers by {order}"));
    if view.report.callers.is_empty() {
        title.push_span(NO_CALLERS);
    }
    let head = [right("refused/s"), right("requests/s"), left("caller")];
    let widths = [9, 10].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    draw_table(frame, area, title, Widget::new(rows, widths).header(Row::new(head).style(BOLD)));
}

fn draw_keys(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let count = view.keys().count();
    let rows = view.keys().skip(view.first[1]).take(area.height.into()).map(|key| {
        let [at_least, at_most] = key.denials;
        let denials = if at_least == at_most { at_least.to_string() } else { format!("{at_least}-{at_most}") };
        Row::new([
            number(&denials, Style::new()),
            number(&ago(key.last_ms), Style::new()),
            Cell::from(who(key)),
            Cell::from(name(&key.name, key.is_shadow)),
        ])
    });
    let title = title(view, Table::Keys, count, &format!("denied most in {} min", view.report.minutes));
    let head = [right("denials"), right("last"), left("who"), left("by")];
    let widths = [9, 7].map(Constraint::Length).into_iter().chain([1, 1].map(Constraint::Fill));
    draw_table(frame, area, title, Widget::new(rows, widths).header(Row::new(head).style(BOLD)));
}

fn who(key: &ShownKey) -> String {
    let ShownKey { descriptor, row, .. } = key;
    if row.is_empty() { descriptor.clone() } else { format!("{descriptor} ({row})") }
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, title: Line<'_>, table: Widget<'_>) {
    let [top, rest] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(title, top);
    frame.render_widget(table, rest);
}

/// The line above a table: its title, the visible rows, and the filter.
fn title(view: &View, table: Table, count: usize, text: &str) -> Line<'static> {
    let first = view.first[table as usize];
    let from = if count == 0 { 0 } else { first + 1 };
    let mut text = format!("{text}, from {from} of {count}");
    if !view.filter.is_empty() {
        text.push_str(&format!(", with {:?}", view.filter));
    }
    let style = if view.focus == table { BOLD.add_modifier(Modifier::REVERSED) } else { BOLD };
    Line::styled(text, style)
}

fn help_line(view: &View) -> Line<'_> {
    if view.is_typing {
        return Line::from(format!("filter: {}_  Enter keep  Esc clear", view.filter));
    }
    Line::from(match view.by {
        By::Limit => HELP,
        By::Caller => HELP_OF_CALLERS,
    })
}

fn in_ms(us: u64) -> String {
    format!("{}.{:02}ms", us / 1_000, us % 1_000 / 10)
}

/// How many of the hits that were charged ahead are used; nothing without leases.
fn leases(leases: &Leases) -> String {
    if leases.keys == 0 { String::new() } else { format!("  leases {} of {}", leases.used, leases.charged) }
}

/// A time ago, in its largest unit.
fn ago(ms: u64) -> String {
    match ms / 1_000 {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds => format!("{}m{:02}s", seconds / 60, seconds % 60),
    }
}

/// The name of a limit, with a mark for shadow mode.
fn name(name: &Name, is_shadow: bool) -> String {
    format!("{name}{}", if is_shadow { " shadow" } else { "" })
}

fn judged(text: String, is_good: bool) -> Span<'static> {
    Span::styled(text, if is_good { Style::new() } else { BAD })
}

fn number(value: &dyn std::fmt::Display, style: Style) -> Cell<'static> {
    Cell::from(Line::styled(value.to_string(), style).alignment(Alignment::Right))
}

fn right(text: &str) -> Cell<'static> {
    Cell::from(Line::from(text.to_owned()).alignment(Alignment::Right))
}

fn left(text: &'static str) -> Cell<'static> {
    Cell::from(text)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::report::tests::sample;
    use super::*;

    fn view(value: &str) -> View {
        View::new("localhost:6070".to_owned(), "1s".to_owned(), (By::Limit, Sort::Denied), sample(value, 2_000))
    }

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let now = Instant::now();
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view, now)).unwrap();
        if width == 0 || height == 0 {
            return String::new();
        }
        let lines = terminal.backend().to_string();
        lines.lines().map(|line| format!("{}\n", line.trim_matches('"').trim_end())).collect()
    }

    #[test]
    fn limits_and_keys_are_drawn() {
        insta::assert_snapshot!(drawn(&view("ann"), 90, 17), @r"
        weir top  localhost:6070  ready  08:02:03 UTC  every 1s
        store redis answers  circuit closed  queue 3  policies 4 rules in 2 domains, 0 problems
        requests/s  ok 1510.0  over limit 77.5  failed 0.0  overrides 2  leases 580 of 700
        decides  store, local 12.0/s, nobody 1.5/s  p50 0.10ms  p99 1.50ms  up 1d3h5m  see docs/op
        limits by denied, from 1 of 4
         denied/s    hits/s in 5 min limit
             77.5     151.0     1234 shop user (per-user)
              0.5       4.5        0 blog ann (f60s)
              0.0       0.0        7 blog idle (f60s) shadow
              0.0    2000.0        0 shop tenant (f3600s)
        denied most in 5 min, from 1 of 3
          denials    last who                                  by
        1200-1234      0s user=ann                             shop user (per-user)
               34   1m05s user=bob (plan ann)                  shop user (per-user)
                7   3m43s idle=                                blog idle (f60s) shadow

        q quit  s sort  p pause  / filter  Tab table  up/down scroll
        ");
    }

    #[test]
    fn callers_are_drawn_in_place_of_limits_and_keys() {
        let mut view = view("ann");
        view.by = By::Caller;
        insta::assert_snapshot!(drawn(&view, 90, 10), @r"
        weir top  localhost:6070  ready  08:02:03 UTC  every 1s
        store redis answers  circuit closed  queue 3  policies 4 rules in 2 domains, 0 problems
        requests/s  ok 1510.0  over limit 77.5  failed 0.0  overrides 2  leases 580 of 700
        decides  store, local 12.0/s, nobody 1.5/s  p50 0.10ms  p99 1.50ms  up 1d3h5m  see docs/op
        callers by refused, from 1 of 3
        refused/s requests/s caller
              7.5     1507.5 ann
              0.0       10.0 idle-team
              0.0        0.0 (others)
        q quit  s sort  p pause  / filter  up/down scroll
        ");
        view.report.callers.clear();
        assert!(drawn(&view, 120, 10).contains(NO_CALLERS));
    }

    #[test]
    fn trouble_and_a_filter_are_drawn() {
        let mut view = view("ann");
        view.filter = "user".to_owned();
        view.is_typing = true;
        view.report.store.answered = false;
        view.report.store.circuit = "open".to_owned();
        view.trouble = Some(("cannot connect to localhost:6070: refused".to_owned(), Instant::now()));
        insta::assert_snapshot!(drawn(&view, 90, 13), @r#"
        weir top  no answer for 0 s, trying again: cannot connect to localhost:6070: refused
        store redis does not answer  circuit open  queue 3  policies 4 rules in 2 domains, 0 probl
        requests/s  ok 1510.0  over limit 77.5  failed 0.0  overrides 2  leases 580 of 700
        decides  local 12.0/s, nobody 1.5/s  p50 0.10ms  p99 1.50ms  up 1d3h5m  see docs/operation
        limits by denied, from 1 of 1, with "user"
         denied/s    hits/s in 5 min limit
             77.5     151.0     1234 shop user (per-user)

        denied most in 5 min, from 1 of 2, with "user"
          denials    last who                                  by
        1200-1234      0s user=ann                             shop user (per-user)
               34   1m05s user=bob (plan ann)                  shop user (per-user)
        filter: user_  Enter keep  Esc clear
        "#);
    }

    #[test]
    fn small_terminals_show_what_fits() {
        let view = view("ann");
        insta::assert_snapshot!(drawn(&view, 40, 10), @r"
        weir top  localhost:6070  ready  08:02:0
        store redis answers  circuit closed  que
        requests/s  ok 1510.0  over limit 77.5
        decides  store, local 12.0/s, nobody 1.5
        limits by denied, from 1 of 4
         denied/s    hits/s in 5 min limit
             77.5     151.0     1234 shop user (
              0.5       4.5        0 blog ann (f
              0.0       0.0        7 blog idle (
        q quit  s sort  p pause  / filter  Tab t
        ");
        assert!(drawn(&view, 20, 4).starts_with("weir top  localhost:\n"));
        for (width, height) in [(0, 0), (1, 1), (3, 2), (200, 1), (1, 50)] {
            drawn(&view, width, height);
        }
    }

    #[test]
    fn hostile_names_reach_the_terminal_as_text() {
        let drawn = drawn(&view("\u{1b}[2J\u{1b}]52;c;eA==\u{7}\u{202e}\u{200b}"), 160, 17);
        assert!(drawn.contains("\\u{1b}[2J\\u{1b}]52;c;eA==\\u{7}\\u{202e}\\u{200b}"), "{drawn}");
        assert!(drawn.chars().all(|c| c == '\n' || !c.is_control()), "{drawn:?}");
    }

    #[test]
    fn rows_below_the_first_are_scrolled_to() {
        let mut view = view("ann");
        view.first = [2, 1];
        let drawn = drawn(&view, 90, 17);
        assert!(drawn.contains("from 3 of 4") && drawn.contains("tenant") && !drawn.contains("user=ann"), "{drawn}");
    }

    #[test]
    fn times_are_short() {
        let shown = [0, 59_999, 60_000, 299_000].map(ago);
        assert_eq!(shown, ["0s", "59s", "1m00s", "4m59s"]);
    }
}
