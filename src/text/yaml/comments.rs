//! The lines of a YAML text that have a comment, which the parser leaves out.

use super::position::Position;

/// A text with a `#` in it that begins no comment.
pub(super) struct Quote {
    pub(super) start: Position,
    /// How many there are in it.
    pub(super) marks: usize,
}

/// The lines with comments, in order.
#[derive(Debug, Default)]
pub(super) struct Comments(Vec<CommentLine>);

#[derive(Debug)]
struct CommentLine {
    number: u32,
    /// Nothing but the comment stands there.
    is_alone: bool,
}

impl Comments {
    /// Finds them; the quotes are in the order of the text.
    pub(super) fn of(text: &str, quotes: &[Quote]) -> Self {
        let mut finder = Finder { quotes, quoted: 0 };
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.split('\n')) {
            if let Some(before) = finder.before_comment(line, number) {
                lines.push(CommentLine { number, is_alone: before.trim().is_empty() });
            }
        }
        Self(lines)
    }

    /// Whether one of these lines has a comment, or the line above is one.
    pub(super) fn is_beside(&self, first: u32, last: u32) -> bool {
        let from = self.0.partition_point(|line| line.number < first);
        let is_above = |line: &CommentLine| line.number + 1 == first && line.is_alone;
        self.0.get(from).is_some_and(|line| line.number <= last) || self.0[..from].last().is_some_and(is_above)
    }
}

/// Goes through a text from its start to its end.
struct Finder<'q> {
    /// Those that are still to come.
    quotes: &'q [Quote],
    /// How many of the next marks are of quotes that have begun.
    quoted: usize,
}

impl Finder<'_> {
    /// What stands in the line before its comment, if it has one. A comment begins at the start of a line or behind a blank.
    fn before_comment<'l>(&mut self, line: &'l str, number: u32) -> Option<&'l str> {
        for (at, _) in line.match_indices('#') {
            let column = u32::try_from(line[..at].chars().count() + 1).unwrap_or(u32::MAX);
            let begun = self.quotes.iter().take_while(|quote| quote.start <= Position { line: number, column }).count();
            self.quoted += self.quotes[..begun].iter().map(|quote| quote.marks).sum::<usize>();
            self.quotes = &self.quotes[begun..];
            if self.quoted > 0 {
                self.quoted -= 1;
            } else if line[..at].is_empty() || line[..at].ends_with([' ', '\t']) {
                return Some(&line[..at]);
            }
        }
        None
    }
}
