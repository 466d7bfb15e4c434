//! A progress bar on standard error.

use std::io::{self, IsTerminal as _, Write as _};

/// The width of the bar, in characters.
const BAR: u64 = 30;

/// Draws nothing if standard error is no terminal.
pub(super) struct Bar {
    pub(super) is_shown: bool,
    has_text: bool,
}

impl Bar {
    pub(super) fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal(), has_text: false }
    }

    /// Replaces the bar. `per_mille` is the part that is done, if it is known.
    pub(super) fn draw(&mut self, per_mille: Option<u64>, text: &str) {
        if !self.is_shown {
            return;
        }
        self.has_text = true;
        let text = match per_mille {
            None => format!("\r\u{1b}[K{text}"),
            Some(done) => {
                let full = usize::try_from(done * BAR / 1_000).unwrap_or(0);
                let rest = usize::try_from(BAR).unwrap_or(0).saturating_sub(full);
                let percent = done / 10;
                format!("\r\u{1b}[K[{}{}] {percent} %, {text}", "#".repeat(full), ".".repeat(rest))
            }
        };
        let _ = io::stderr().write_all(text.as_bytes());
    }

    /// Removes the bar, so that the next line begins at the left edge.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.has_text) {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}
