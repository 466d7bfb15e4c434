//! The distribution of numbers in bounded memory. The range of each count is less than a hundredth of its numbers.

use serde::Serialize;

/// The number of ranges for each power of two.
const PARTS: usize = 128;
const PARTS_LOG2: u32 = 7;
/// Ranges for all numbers of 64 bits.
const RANGES: usize = (64 - PARTS_LOG2 as usize + 1) * PARTS;

#[derive(Clone, Debug)]
pub(super) struct Spread {
    count: u64,
    sum: u128,
    max: u64,
    /// For each range, the count of its numbers, and the largest one.
    ranges: Vec<(u64, u64)>,
}

/// The distribution of times, in microseconds. Percentiles are less than a hundredth too large, and never above the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Times {
    pub count: u64,
    pub mean_us: u64,
    pub p50_us: u64,
    pub p90_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

impl Default for Spread {
    fn default() -> Self {
        Self { count: 0, sum: 0, max: 0, ranges: vec![(0, 0); RANGES] }
    }
}

impl Spread {
    pub(super) fn add(&mut self, number: u64) {
        self.count += 1;
        self.sum += u128::from(number);
        self.max = self.max.max(number);
        let (count, max) = &mut self.ranges[range_of(number)];
        *count += 1;
        *max = number.max(*max);
    }

    pub(super) fn times(&self) -> Times {
        Times {
            count: self.count,
            mean_us: self.sum.checked_div(self.count.into()).and_then(|mean| u64::try_from(mean).ok()).unwrap_or(0),
            p50_us: self.percentile(50),
            p90_us: self.percentile(90),
            p99_us: self.percentile(99),
            max_us: self.max,
        }
    }

    /// The largest number of the range that contains a percentile.
    fn percentile(&self, percent: u64) -> u64 {
        let wanted = (u128::from(self.count) * u128::from(percent)).div_ceil(100);
        let mut counted = 0_u128;
        for (count, max) in &self.ranges {
            counted += u128::from(*count);
            if counted >= wanted && *count > 0 {
                return *max;
            }
        }
        self.max
    }
}

fn range_of(number: u64) -> usize {
    if number < PARTS as u64 {
        return usize::try_from(number).unwrap_or(0);
    }
    let shift = 63 - number.leading_zeros() - PARTS_LOG2;
    let part = usize::try_from(number >> shift).unwrap_or(0) - PARTS;
    (shift as usize + 1) * PARTS + part
}

/// The largest number that a range can have.
#[cfg(test)]
fn last_of(range: usize) -> u64 {
    if range < PARTS {
        return range as u64;
    }
    let (shift, part) = (range / PARTS - 1, range % PARTS);
    let next = ((PARTS + part + 1) as u128) << shift;
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_its_numbers_and_is_less_than_a_hundredth_of_them() {
        let mut numbers: Vec<u64> = (0..64).flat_map(|bit| [1 << bit, (1 << bit) + 1, (1_u64 << bit) - 1]).collect();
        numbers.extend([u64::MAX, u64::MAX - 1, 1_000_000, 999_999]);
        for number in numbers {
            let last = last_of(range_of(number));
            assert!(last >= number && last - number <= number / 100, "{number}: {last}");
            assert!(range_of(number) < RANGES);
        }
    }

    #[test]
    fn percentiles_of_a_hundred_numbers() {
        let mut spread = Spread::default();
        assert_eq!(spread.times(), Times::default());
        (1..=100).for_each(|number| spread.add(number));
        let times = spread.times();
        assert_eq!((times.count, times.mean_us, times.max_us), (100, 50, 100));
        assert!((50..=50).contains(&times.p50_us) && (90..=90).contains(&times.p90_us), "{times:?}");
        assert!((99..=99).contains(&times.p99_us), "{times:?}");
    }
}
