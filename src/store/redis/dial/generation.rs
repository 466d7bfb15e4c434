//! A number for the server that has a role at one time. By this number, connections to an earlier server are found and
//! closed.
//!
//! Not here: what detects that another server has the role (sentinel.rs).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the servers that had the role. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Generations(Arc<AtomicU64>);

impl Generations {
    /// Another server has the role: all earlier generations have ended.
    pub(crate) fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The generation of a connection that opens now.
    pub(crate) fn current(&self) -> Generation {
        Generation { own: self.0.load(Ordering::Relaxed), newest: self.clone() }
    }
}

/// The generation of a connection.
#[derive(Debug)]
pub(crate) struct Generation {
    own: u64,
    newest: Generations,
}

impl Generation {
    /// Whether another server has had the role since.
    pub(crate) fn is_over(&self) -> bool {
        self.own != self.newest.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generation_is_over_when_the_next_begins() {
        let generations = Generations::default();
        let (first, same) = (generations.current(), generations.clone().current());
        assert!(!first.is_over() && !same.is_over());
        generations.advance();
        assert!(first.is_over() && same.is_over());
        assert!(!generations.current().is_over());
    }
}
