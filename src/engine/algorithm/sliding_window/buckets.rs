//! The sub-buckets of one key: a ring with their sum, in one allocation.
//!
//! Most decisions read only the sum and the oldest buckets, at the beginning of the allocation. This matters for a
//! simulation of thousands of keys, which mostly waits for memory. Not here: which buckets count.

use std::fmt;

use super::BUCKETS_MAX;

/// Hits by bucket number (`floor(t / precision)`), oldest first, none of them 0. [sw-5]
///
/// A bucket that is too old for any window that contains the newest bucket is dropped: a state has at most 257.
pub struct Buckets(Box<Ring<[Slot]>>);

/// The most buckets of a state: one window, and one bucket that is leaving it. [sw-5]
const SLOTS_MAX: usize = 257;
const _: () = assert!(SLOTS_MAX as u64 == BUCKETS_MAX + 1, "a state has one bucket more than a window");

/// The buckets begin at the slot `first`; slot 0 follows the last slot.
struct Ring<S: ?Sized> {
    /// The number of the newest bucket; without buckets it has no meaning.
    newest: u64,
    /// The hits of all buckets.
    sum: u64,
    first: u16,
    len: u16,
    slots: S,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The low bits of the number. The high bits follow from the newest bucket's number.
    low: u16,
    hits: u32,
}

// The default of 60 buckets needs 61 slots. [sw-5]
const _: () = assert!(size_of::<Ring<[Slot; 1]>>() == 32, "docs/performance.md has the size of one bucket");
const _: () = assert!(size_of::<Ring<[Slot; 61]>>() == 512, "docs/performance.md has the size of a full state");

/// Allocates space for at least this many buckets. The sizes are those of an allocator: 32, 64, 128, ... bytes.
fn with_room(slots: usize) -> Box<Ring<[Slot]>> {
    match slots {
        0..=1 => ring::<1>(),
        2..=5 => ring::<5>(),
        6..=13 => ring::<13>(),
        14..=29 => ring::<29>(),
        30..=61 => ring::<61>(),
        62..=125 => ring::<125>(),
        _ => ring::<SLOTS_MAX>(),
    }
}

fn ring<const N: usize>() -> Box<Ring<[Slot]>> {
    Box::new(Ring { newest: 0, sum: 0, first: 0, len: 0, slots: [Slot::default(); N] })
}

#[expect(clippy::cast_possible_truncation, reason = "the low bits are wanted")]
const fn low(number: u64) -> u16 {
    number as u16
}

impl Buckets {
    pub fn len(&self) -> usize {
        usize::from(self.0.len)
    }

    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The bytes of the allocation.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// The hits of all buckets.
    pub fn sum(&self) -> u64 {
        self.0.sum
    }

    /// The number of the newest bucket.
    pub fn newest(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.0.newest)
    }

    /// Number and hits of each bucket, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u32)> + '_ {
        self.iter_from(0)
    }

    /// Number and hits of each bucket after the oldest `skip` buckets.
    pub(super) fn iter_from(&self, skip: usize) -> impl DoubleEndedIterator<Item = (u64, u32)> + '_ {
        (skip..self.len()).map(|i| self.get(i))
    }

    /// Number and hits of bucket `i`, counted from the oldest.
    fn get(&self, i: usize) -> (u64, u32) {
        let slot = self.0.slots[self.0.place(i)];
        let behind = low(self.0.newest).wrapping_sub(slot.low);
        (self.0.newest - u64::from(behind), slot.hits)
    }

    /// Adds hits to the bucket with this number, which is not below the newest bucket's number.
    pub(super) fn add(&mut self, number: u64, hits: u32) {
        match self.newest() {
            Some(newest) if newest == number => {
                let place = self.0.place(self.len() - 1);
                let count = &mut self.0.slots[place].hits;
                let before = *count;
                *count = before.saturating_add(hits);
                self.0.sum += u64::from(*count - before);
            }
            _ => self.push(number, hits),
        }
    }

    fn push(&mut self, number: u64, hits: u32) {
        while !self.is_empty() && self.get(0).0 + BUCKETS_MAX < number {
            self.drop_oldest(1);
        }
        if self.len() == self.0.slots.len() {
            self.grow();
        }
        let place = self.0.place(self.len());
        self.0.slots[place] = Slot { low: low(number), hits };
        self.0.newest = number;
        self.0.sum += u64::from(hits);
        self.0.len += 1;
    }

    pub(super) fn drop_oldest(&mut self, count: usize) {
        for _ in 0..count.min(self.len()) {
            self.0.sum -= u64::from(self.get(0).1);
            self.0.first = u16::try_from(self.0.place(1)).unwrap_or(0);
            self.0.len -= 1;
        }
    }

    /// Removes hits, from the newest buckets first.
    pub(super) fn refund(&mut self, mut hits: u32) {
        while let Some(last) = self.len().checked_sub(1) {
            let place = self.0.place(last);
            let count = &mut self.0.slots[place].hits;
            let gone = hits.min(*count);
            *count -= gone;
            hits -= gone;
            self.0.sum -= u64::from(gone);
            if *count > 0 {
                break;
            }
            self.0.len -= 1;
            if last > 0 {
                self.0.newest = self.get(last - 1).0;
            }
        }
    }

    fn grow(&mut self) {
        let mut larger = with_room(self.len() + 1);
        self.copy_into(&mut larger);
        self.0 = larger;
    }

    /// Copies all buckets into a ring with space for them.
    fn copy_into(&self, to: &mut Ring<[Slot]>) {
        (to.newest, to.sum, to.first, to.len) = (self.0.newest, self.0.sum, 0, self.0.len);
        for (i, slot) in to.slots.iter_mut().take(self.len()).enumerate() {
            *slot = self.0.slots[self.0.place(i)];
        }
    }
}

impl Ring<[Slot]> {
    /// The slot of bucket `i`, counted from the oldest.
    fn place(&self, i: usize) -> usize {
        let place = usize::from(self.first) + i;
        place.checked_sub(self.slots.len()).unwrap_or(place)
    }
}

impl Default for Buckets {
    /// Without buckets, but with space for one: many keys never have more.
    fn default() -> Self {
        Self(with_room(1))
    }
}

impl Clone for Buckets {
    fn clone(&self) -> Self {
        let mut copy = with_room(self.len());
        self.copy_into(&mut copy);
        Self(copy)
    }
}

impl PartialEq for Buckets {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Buckets {}

impl fmt::Debug for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl FromIterator<(u64, u32)> for Buckets {
    /// The numbers must ascend.
    fn from_iter<I: IntoIterator<Item = (u64, u32)>>(buckets: I) -> Self {
        let mut all = Self::default();
        for (number, hits) in buckets {
            all.add(number, hits);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference: buckets in a plain list.
    #[derive(Default)]
    struct Plain(Vec<(u64, u32)>);

    impl Plain {
        fn add(&mut self, number: u64, hits: u32) {
            self.0.retain(|&(other, _)| other + BUCKETS_MAX >= number);
            match self.0.last_mut() {
                Some((newest, count)) if *newest == number => *count = count.saturating_add(hits),
                _ => self.0.push((number, hits)),
            }
        }

        fn refund(&mut self, mut hits: u32) {
            for (_, count) in self.0.iter_mut().rev() {
                let gone = hits.min(*count);
                *count -= gone;
                hits -= gone;
            }
            self.0.retain(|&(_, count)| count > 0);
        }

        fn drop_oldest(&mut self, count: usize) {
            self.0.drain(..count.min(self.0.len()));
        }
    }

    #[test]
    fn a_ring_holds_what_a_list_would() {
        let (mut ring, mut plain, mut longest) = (Buckets::default(), Plain::default(), 0);
        let mut random = 7_u64;
        let mut below = |end: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % end
        };
        // Makes the low bits of numbers overflow.
        let mut number = (1 << 40) - 5_000;
        for step in 0..40_000 {
            // Long stretches that mostly add, and stretches that mostly remove.
            let is_growing = step / 700 % 2 == 0;
            match below(if is_growing { 40 } else { 4 }) {
                0 => {
                    let count = usize::try_from(below(4)).unwrap();
                    ring.drop_oldest(count);
                    plain.drop_oldest(count);
                }
                1 => {
                    let hits = u32::try_from(below(12)).unwrap();
                    ring.refund(hits);
                    plain.refund(hits);
                }
                _ => {
                    let step_end = if below(500) == 0 { 400 } else { 3 };
                    number += below(step_end);
                    number = number.max(ring.newest().unwrap_or(0));
                    let hits = if below(50) == 0 { u32::MAX } else { 1 + u32::try_from(below(5)).unwrap() };
                    ring.add(number, hits);
                    plain.add(number, hits);
                }
            }
            longest = longest.max(ring.len());
            assert_eq!(ring.iter().collect::<Vec<_>>(), plain.0, "after step {step}");
            assert_eq!(ring.sum(), plain.0.iter().map(|&(_, hits)| u64::from(hits)).sum::<u64>());
            assert_eq!(ring.newest(), plain.0.last().map(|&(number, _)| number));
            assert_eq!(ring.iter_from(2).collect::<Vec<_>>(), plain.0.get(2..).unwrap_or_default());
            if step % 100 == 0 {
                assert_eq!(ring.clone(), ring);
                assert_eq!(plain.0.iter().copied().collect::<Buckets>(), ring);
            }
        }
        assert!(longest > 125, "all sizes of a ring were in use, up to {longest} buckets");
    }

    #[test]
    fn states_with_other_buckets_differ() {
        let buckets = |all: &[(u64, u32)]| all.iter().copied().collect::<Buckets>();
        let one = buckets(&[(7, 1), (9, 2)]);
        for other in [&[(7, 1), (9, 3)][..], &[(7, 1), (10, 2)], &[(8, 1), (9, 2)], &[(9, 2)], &[(7, 1)]] {
            assert_ne!(buckets(other), one);
        }
    }
}
