//! The state of the view: the report, its order, the scroll positions, and the effects of keys.

use std::cmp::Reverse;
use std::time::Instant;

use clap::ValueEnum;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::report::{Name, Report, ShownCaller, ShownKey, ShownLimit};

/// The longest filter, in characters.
const FILTER_CHARS_MAX: usize = 64;
const PAGE_ROWS: usize = 10;

/// What the rows are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// Limits, and the keys that they deny.
    #[default]
    Limit,
    /// The callers of callers.file, and what they may not send.
    Caller,
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Most denied hits a second first, then most denials, then most hits a second. Of callers: most refused requests first.
    #[default]
    Denied,
    /// Most hits a second first. Of callers: most requests first.
    Hits,
    /// By domain, rule and limit, or by caller.
    Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Table {
    /// Limits or callers.
    Upper,
    Keys,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Draw,
    Quit,
    /// Stop the process, as Ctrl-Z does.
    Suspend,
}

#[derive(Debug)]
pub(super) struct View {
    pub(super) server: String,
    pub(super) interval: String,
    pub(super) report: Report,
    /// The reason for a missing report, and its time.
    pub(super) trouble: Option<(String, Instant)>,
    pub(super) by: By,
    pub(super) sort: Sort,
    pub(super) is_paused: bool,
    pub(super) filter: String,
    pub(super) is_typing: bool,
    pub(super) focus: Table,
    /// The first visible row of the upper table (limits or callers), and of keys.
    pub(super) first: [usize; 2],
}

impl Sort {
    const fn next(self) -> Self {
        match self {
            Self::Denied => Self::Hits,
            Self::Hits => Self::Name,
            Self::Name => Self::Denied,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Hits => "hits",
            Self::Name => "name",
        }
    }

    pub(super) fn sort(self, report: &mut Report) {
        let Report { limits, callers, .. } = report;
        match self {
            Self::Denied => {
                limits.sort_by_key(|limit| Reverse((limit.denied, limit.denials, limit.hits)));
                callers.sort_by_key(|caller| Reverse((caller.refused, caller.requests)));
            }
            Self::Hits => {
                limits.sort_by_key(|limit| Reverse((limit.hits, limit.denied, limit.denials)));
                callers.sort_by_key(|caller| Reverse((caller.requests, caller.refused)));
            }
            Self::Name => {
                limits.sort_by(|one, other| one.name.cmp(&other.name));
                callers.sort_by(|one, other| one.name.cmp(&other.name));
            }
        }
    }
}

impl View {
    pub(super) fn new(server: String, interval: String, (by, sort): (By, Sort), report: Report) -> Self {
        let mut view = Self {
            server,
            interval,
            report: Report::default(),
            trouble: None,
            by,
            sort,
            is_paused: false,
            filter: String::new(),
            is_typing: false,
            focus: Table::Upper,
            first: [0, 0],
        };
        view.show(report);
        view
    }

    pub(super) fn show(&mut self, report: Report) {
        self.trouble = None;
        self.report = report;
        self.sort.sort(&mut self.report);
        self.stay_inside();
    }

    pub(super) fn failed(&mut self, reason: String, now: Instant) {
        let since = self.trouble.take().map_or(now, |(_, since)| since);
        self.trouble = Some((reason, since));
    }

    /// The limits that match the filter, in order.
    pub(super) fn limits(&self) -> impl Iterator<Item = &ShownLimit> {
        self.report.limits.iter().filter(|limit| self.is_wanted(&limit.name, ""))
    }

    /// The keys that match the filter, most denials first.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ShownKey> {
        self.report.keys.iter().filter(|key| self.is_wanted(&key.name, &key.descriptor))
    }

    /// The callers that match the filter, in order.
    pub(super) fn callers(&self) -> impl Iterator<Item = &ShownCaller> {
        self.report.callers.iter().filter(|caller| caller.name.contains(&self.filter))
    }

    fn is_wanted(&self, name: &Name, descriptor: &str) -> bool {
        let Name { domain, rule, limit } = name;
        [domain, rule, limit, descriptor].iter().any(|text| text.contains(&self.filter))
    }

    pub(super) fn event(&mut self, event: &Event) -> Action {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.key(*key),
            _ => Action::Draw,
        }
    }

    fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Action::Quit,
                KeyCode::Char('z') => Action::Suspend,
                _ => Action::Draw,
            };
        }
        if self.is_typing {
            self.typed(key.code);
        } else {
            match key.code {
                KeyCode::Char('q') => return Action::Quit,
                KeyCode::Char('s') => self.sort_by(self.sort.next()),
                KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
                KeyCode::Char('/') => self.is_typing = true,
                KeyCode::Esc => self.filter.clear(),
                KeyCode::Tab | KeyCode::BackTab if self.by == By::Limit => self.focus = self.focus.other(),
                KeyCode::Up | KeyCode::Char('k') => self.scroll(|first| first.saturating_sub(1)),
                KeyCode::Down | KeyCode::Char('j') => self.scroll(|first| first + 1),
                KeyCode::PageUp => self.scroll(|first| first.saturating_sub(PAGE_ROWS)),
                KeyCode::PageDown => self.scroll(|first| first + PAGE_ROWS),
                KeyCode::Home => self.scroll(|_| 0),
                KeyCode::End => self.scroll(|_| usize::MAX),
                _ => {}
            }
        }
        self.stay_inside();
        Action::Draw
    }

    /// Handles a key while the filter is typed.
    fn typed(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_typing = false;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER_CHARS_MAX => {
                self.filter.push(c);
            }
            _ => {}
        }
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        sort.sort(&mut self.report);
    }

    fn scroll(&mut self, to: impl Fn(usize) -> usize) {
        let first = &mut self.first[self.focus as usize];
        *first = to(*first);
    }

    /// Limits the scroll positions, so the last row stays visible.
    fn stay_inside(&mut self) {
        let upper = match self.by {
            By::Limit => self.limits().count(),
            By::Caller => self.callers().count(),
        };
        let last = [upper, self.keys().count()].map(|rows| rows.saturating_sub(1));
        for (first, last) in self.first.iter_mut().zip(last) {
            *first = (*first).min(last);
        }
    }
}

impl Table {
    const fn other(self) -> Self {
        match self {
            Self::Upper => Self::Keys,
            Self::Keys => Self::Upper,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::sample;
    use super::*;

    fn view() -> View {
        View::new("localhost:6070".to_owned(), "1s".to_owned(), (By::Limit, Sort::Denied), sample("ann", 2_000))
    }

    fn press(view: &mut View, code: KeyCode) -> Action {
        view.event(&Event::Key(code.into()))
    }

    fn rules(view: &View) -> Vec<&str> {
        view.limits().map(|limit| limit.name.rule.as_str()).collect()
    }

    #[test]
    fn limits_are_sorted_and_the_order_can_be_changed() {
        let mut view = view();
        for expected in [
            ["user", "ann", "idle", "tenant"],
            ["tenant", "user", "ann", "idle"],
            ["ann", "idle", "tenant", "user"],
            ["user", "ann", "idle", "tenant"],
        ] {
            assert_eq!(rules(&view), expected);
            assert_eq!(press(&mut view, KeyCode::Char('s')), Action::Draw);
        }
    }

    #[test]
    fn a_filter_is_typed_and_taken_back() {
        let mut view = view();
        press(&mut view, KeyCode::Char('/'));
        for c in "bobx".chars() {
            press(&mut view, KeyCode::Char(c));
        }
        press(&mut view, KeyCode::Backspace);
        // Letters are part of the filter, not commands.
        assert_eq!(press(&mut view, KeyCode::Enter), Action::Draw);
        assert_eq!((view.keys().count(), view.limits().count()), (1, 0));
        press(&mut view, KeyCode::Esc);
        assert_eq!((view.keys().count(), view.limits().count()), (3, 4));
        press(&mut view, KeyCode::Char('/'));
        for _ in 0..200 {
            press(&mut view, KeyCode::Char('q'));
        }
        assert_eq!(view.filter.len(), FILTER_CHARS_MAX);
        assert_eq!(press(&mut view, KeyCode::Esc), Action::Draw);
        assert!(view.filter.is_empty() && !view.is_typing);
    }

    #[test]
    fn scrolling_ends_at_the_last_row_of_the_table_that_has_the_focus() {
        let mut view = view();
        press(&mut view, KeyCode::End);
        press(&mut view, KeyCode::Tab);
        press(&mut view, KeyCode::Down);
        assert_eq!(view.first, [3, 1]);
        press(&mut view, KeyCode::PageDown);
        press(&mut view, KeyCode::Up);
        press(&mut view, KeyCode::Tab);
        press(&mut view, KeyCode::Home);
        assert_eq!(view.first, [0, 1]);
        // The scroll position follows if rows disappear.
        press(&mut view, KeyCode::End);
        view.show(Report::default());
        assert_eq!(view.first, [0, 0]);
    }

    #[test]
    fn the_keyboard_ends_suspends_and_pauses() {
        let mut view = view();
        let with_control = |c| Event::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL));
        assert_eq!(press(&mut view, KeyCode::Char('p')), Action::Draw);
        assert!(view.is_paused);
        assert_eq!(press(&mut view, KeyCode::Char('x')), Action::Draw);
        assert_eq!(view.event(&with_control('z')), Action::Suspend);
        press(&mut view, KeyCode::Char('/'));
        assert_eq!(view.event(&with_control('c')), Action::Quit, "also while a filter is typed");
        press(&mut view, KeyCode::Esc);
        assert_eq!(press(&mut view, KeyCode::Char('q')), Action::Quit);
        assert_eq!(view.event(&Event::Resize(1, 1)), Action::Draw);
    }

    #[test]
    fn trouble_lasts_since_its_first_time_until_a_report() {
        let (mut view, start) = (view(), Instant::now());
        view.failed("gone".to_owned(), start);
        view.failed("still gone".to_owned(), start + std::time::Duration::from_secs(3));
        assert_eq!(view.trouble, Some(("still gone".to_owned(), start)));
        view.show(sample("ann", 1_000));
        assert_eq!(view.trouble, None);
    }
}
