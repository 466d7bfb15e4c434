//! Numbers of a connection and of its runtime. Only that runtime writes them, so that an addition needs no lock. Others may
//! read them.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

#[derive(Debug, Default)]
pub(super) struct Count(AtomicU32);

impl Count {
    pub(super) const fn of(number: u32) -> Self {
        Self(AtomicU32::new(number))
    }

    pub(super) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    pub(super) fn set(&self, number: u32) {
        self.0.store(number, Relaxed);
    }

    /// Wraps.
    pub(super) fn add(&self, more: u32) {
        self.set(self.get().wrapping_add(more));
    }

    pub(super) fn subtract(&self, less: u32) {
        self.set(self.get().saturating_sub(less));
    }
}

/// A number of bytes or of connections.
#[derive(Debug, Default)]
pub(super) struct Size(AtomicUsize);

impl Size {
    pub(super) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    pub(super) fn set(&self, size: usize) {
        self.0.store(size, Relaxed);
    }

    pub(super) fn add(&self, more: usize) {
        self.set(self.get().saturating_add(more));
    }

    pub(super) fn subtract(&self, less: usize) {
        self.set(self.get().saturating_sub(less));
    }
}

/// The tick in which something began, plus one; 0 if it has not begun.
#[derive(Debug, Default)]
pub(super) struct Since(Count);

impl Since {
    pub(super) fn begin(&self, tick: u32) {
        self.0.set(tick.saturating_add(1));
    }

    pub(super) fn end(&self) {
        self.0.set(0);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.0.get() != 0
    }

    /// For how many ticks it has lasted. None if it has not begun.
    pub(super) fn ticks(&self, now: u32) -> Option<u32> {
        Some(now.saturating_sub(self.0.get().checked_sub(1)?))
    }
}
