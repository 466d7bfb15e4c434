//! Time in a bounded number of slots of equal length. For longer traffic, slots are merged into longer ones.

use weir_engine::Micros;

pub const SLOTS_MAX: usize = 600;

const MS: Micros = 1_000;
const S: Micros = 1_000 * MS;
const MIN: Micros = 60 * S;
const H: Micros = 60 * MIN;
const D: Micros = 24 * H;
/// The possible lengths of slots. Each is a multiple of the one before.
const WIDTHS: [Micros; 28] = [
    MS,
    2 * MS,
    10 * MS,
    20 * MS,
    100 * MS,
    200 * MS,
    S,
    2 * S,
    10 * S,
    20 * S,
    MIN,
    2 * MIN,
    10 * MIN,
    20 * MIN,
    H,
    2 * H,
    6 * H,
    12 * H,
    D,
    2 * D,
    10 * D,
    20 * D,
    100 * D,
    200 * D,
    1_000 * D,
    2_000 * D,
    10_000 * D,
    20_000 * D,
];

#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    start: Option<Micros>,
    width: usize,
    slot: usize,
    /// When the current slot ends.
    until: Micros,
}

impl Timeline {
    pub(super) fn start_at(&mut self, start: Option<Micros>) {
        self.start = start;
    }

    pub(super) fn start(&self) -> Micros {
        self.start.unwrap_or(0)
    }

    pub(super) fn width(&self) -> Micros {
        WIDTHS[self.width]
    }

    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// Advances to an instant, which is not before the last one. Calls `join` with the number of slots that are merged
    /// into one.
    pub(super) fn advance(&mut self, now: Micros, mut join: impl FnMut(usize)) {
        if now < self.until {
            return;
        }
        let start = *self.start.get_or_insert(now - now % S);
        let passed = now.saturating_sub(start);
        while passed / self.width() >= SLOTS_MAX as u64 && self.width + 1 < WIDTHS.len() {
            let before = self.width();
            self.width += 1;
            join(usize::try_from(self.width() / before).unwrap_or(1));
        }
        self.slot = usize::try_from(passed / self.width()).unwrap_or(0).min(SLOTS_MAX - 1);
        self.until = start + (self.slot as u64 + 1) * self.width();
    }
}

/// Merges `count` slots into one.
pub(super) fn joined<const N: usize>(slots: &[[u64; N]], count: usize) -> Vec<[u64; N]> {
    let sum = |slots: &[[u64; N]]| std::array::from_fn(|i| slots.iter().map(|slot| slot[i]).sum());
    slots.chunks(count.max(1)).map(sum).collect()
}

/// The slot with this number. Adds it if it is missing.
pub(super) fn slot_of<const N: usize>(slots: &mut Vec<[u64; N]>, number: usize) -> &mut [u64; N] {
    if slots.len() <= number {
        slots.resize(number + 1, [0; N]);
    }
    &mut slots[number]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_width_is_a_multiple_of_the_one_before() {
        assert!(WIDTHS.windows(2).all(|pair| pair[1] % pair[0] == 0 && pair[1] > pair[0]));
    }

    #[test]
    fn slots_stay_few_and_lose_nothing() {
        let mut timeline = Timeline::default();
        let mut slots: Vec<[u64; 1]> = Vec::new();
        let (mut now, mut sent) = (1_800_000_000 * S, 0);
        while now < 1_800_000_000 * S + 400 * D {
            timeline.advance(now, |count| slots = joined(&slots, count));
            slot_of(&mut slots, timeline.slot())[0] += 1;
            sent += 1;
            now += 1 + (now - 1_800_000_000 * S) / 7;
        }
        assert!(slots.len() <= SLOTS_MAX && slots.len() > SLOTS_MAX / 10, "{}", slots.len());
        assert_eq!(slots.iter().map(|slot| slot[0]).sum::<u64>(), sent);
        assert_eq!(timeline.start(), 1_800_000_000 * S);
    }

    #[test]
    fn the_last_instant_has_a_slot() {
        let mut timeline = Timeline::default();
        timeline.advance(1, |_| {});
        timeline.advance(u64::MAX / 2, |_| {});
        assert!(timeline.slot() < SLOTS_MAX);
    }
}
