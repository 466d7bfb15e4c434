//! A place in a text.

use std::fmt;

use saphyr_parser::Marker;

/// A line and a column, both counted from 1; columns in characters. Displayed as `line:column`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

/// Added to the line of a value that came from another document. No text has so many lines.
const GRAFTED: u32 = 1 << 31;

impl Position {
    pub const START: Self = Self { line: 1, column: 1 };

    /// This place, of a value that is moved to another document.
    #[must_use]
    pub const fn grafted(self) -> Self {
        Self { line: self.line | GRAFTED, ..self }
    }

    /// The place in the document that the value came from. None for a value of the document itself.
    pub const fn of_graft(self) -> Option<Self> {
        if self.line & GRAFTED == 0 { None } else { Some(Self { line: self.line & !GRAFTED, ..self }) }
    }

    /// The parser counts lines from 1 and columns from 0.
    pub(super) fn of(marker: &Marker) -> Self {
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self { line: small(marker.line()), column: small(marker.col().saturating_add(1)) }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}
