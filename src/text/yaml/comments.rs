//! The lines of a YAML text with a comment. The parser does not return comments.

use super::position::Position;

/// A text with a `#` that does not begin a comment.
pub(super) struct Quote {
    pub(super) start: Position,
    /// The number of such characters in it.
    pub(super) marks: usize,
}

#[derive(Debug, Default)]
pub(super) struct Comments(Vec<CommentLine>);

#[derive(Debug)]
struct CommentLine {
    number: u32,
    /// Whether the line has only the comment.
    is_alone: bool,
}

impl Comments {
    /// Finds the comments. The quotes are in the order of the text.
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

    /// Whether one of these lines has a comment, or the line above is a comment.
    pub(super) fn is_beside(&self, first: u32, last: u32) -> bool {
        let from = self.0.partition_point(|line| line.number < first);
        let is_above = |line: &CommentLine| line.number + 1 == first && line.is_alone;
        self.0.get(from).is_some_and(|line| line.number <= last) || self.0[..from].last().is_some_and(is_above)
    }
}

struct Finder<'q> {
    /// The quotes that have not begun yet.
    quotes: &'q [Quote],
    /// How many of the next marks are in quotes that have begun.
    quoted: usize,
}

impl Finder<'_> {
    /// The part of a line before its comment, if it has one. A comment begins at the start of a line or after a blank.
    fn before_comment<'l>(&mut self, line: &'l str, number: u32) -> Option<&'l str> {
        let (mut column, mut from) = (1_usize, 0);
        for (at, _) in line.match_indices('#') {
            // From the mark before: a line of many marks would be counted again for each.
            column += line[from..at].chars().count();
            from = at;
            let column = u32::try_from(column).unwrap_or(u32::MAX);
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
