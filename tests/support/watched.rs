//! The states of a decision, watched: which charges change what they show.

use weir_engine::algorithm::Change;
use weir_engine::decision::States;
use weir_engine::{Charge, Micros, State};

/// The states at the indices of their keys, and the charges that changed what they show at `now`. What is far ahead of the
/// clock is stored as it was seen, and shows the same.
pub struct Watched<'a> {
    states: &'a mut [Option<State>],
    now: Micros,
    changed: Vec<*const ()>,
}

impl<'a> Watched<'a> {
    pub const fn new(states: &'a mut [Option<State>], now: Micros) -> Self {
        Self { states, now, changed: Vec::new() }
    }

    pub fn has_changed(&self, charge: &Charge<'_>) -> bool {
        self.changed.contains(&address(charge))
    }
}

fn address(charge: &Charge<'_>) -> *const () {
    std::ptr::from_ref(charge).cast()
}

impl States for Watched<'_> {
    fn read(&self, place: u16) -> Option<&State> {
        self.states.read(place)
    }

    fn change(&mut self, place: u16, charge: &Charge<'_>, change: impl FnOnce(&mut Option<State>) -> Change) {
        let now = self.now;
        let shown = |state: Option<&State>| charge.kind().observe(state, 0, now);
        let before = shown(self.read(place));
        self.states.change(place, charge, change);
        if shown(self.read(place)) != before {
            self.changed.push(address(charge));
        }
    }
}
