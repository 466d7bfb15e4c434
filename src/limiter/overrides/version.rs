//! Versions of the text of all overrides: which of two is newer, and whether it lists the other.
//!
//! A version is the number of its last change and the numbers of up to three changes before it. A number is a time and a
//! writer, so that two processes never use the same number. The first number decides which version is newer. The others show
//! whether it includes the older one. Without them an earlier weir would join two texts at each change.

use std::hash::{BuildHasher as _, RandomState};

use weir_engine::Micros;
use weir_engine::time::MICROS_MAX;

/// The most numbers of a version: its own, and those of earlier changes.
const NUMBERS_MAX: usize = 4;
/// The characters of a number. A number of only digits is from an earlier weir, without writers: microseconds since 1970.
const DIGITS: usize = 16;
/// The base of the two digit groups of a number with a writer, and the separator between time and writer.
const BASE: u32 = 36;
const WRITER_MARK: u8 = b'p';
/// The digits of the time.
const TIME_DIGITS: usize = 11;
/// How many writers there are.
const WRITERS: u64 = (BASE as u64).pow(4);

/// A number of a process. It distinguishes the changes of the process from simultaneous changes of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Writer(u64);

impl Writer {
    /// The writer of changes by an earlier weir.
    pub(super) const NONE: Self = Self(0);

    /// A random number, which other processes very probably do not have.
    pub(super) fn random() -> Self {
        Self(1 + RandomState::new().hash_one(()) % (WRITERS - 1))
    }
}

/// How the version of a store relates to the known version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// It includes the known one, or there is none.
    Follows,
    /// It is newer, but may not include the known one. The same holds for a version that weir did not write.
    Newer,
    /// It is older: the store has lost the known one.
    Older,
}

/// The relation of a store's version to the known one.
pub(super) fn relation(stored: &str, known: &str) -> Relation {
    let Some(last_known) = last_change(known) else { return Relation::Follows };
    let Some(last_stored) = last_change(stored) else {
        return if stored.is_empty() { Relation::Older } else { Relation::Newer };
    };
    if last_stored < last_known {
        Relation::Older
    } else if stored.as_bytes().chunks(DIGITS).any(|number| number == &known.as_bytes()[..DIGITS]) {
        Relation::Follows
    } else {
        Relation::Newer
    }
}

/// The time of the last change of a version. None for a version that weir did not write.
pub fn version_time(version: &str) -> Option<Micros> {
    last_change(version).map(|(time, _)| time)
}

/// The time of the next change after a version. If the clock is behind, a time after that of the version.
pub(super) fn time_after(known: &str, now: Micros) -> Micros {
    version_time(known).map_or(now, |time| now.max(time + 1))
}

/// The version of a change at this time by this writer.
pub(super) fn next(time: Micros, writer: Writer, known: &str) -> String {
    let mut version = String::with_capacity(NUMBERS_MAX * DIGITS);
    push_digits(&mut version, time, TIME_DIGITS);
    version.push(char::from(WRITER_MARK));
    push_digits(&mut version, writer.0, DIGITS - TIME_DIGITS - 1);
    if last_change(known).is_some() {
        version.push_str(&known[..known.len().min((NUMBERS_MAX - 1) * DIGITS)]);
    }
    version
}

/// Appends the last `count` digits of a number.
fn push_digits(text: &mut String, mut number: u64, count: usize) {
    let first = text.len();
    for _ in 0..count {
        let digit = u32::try_from(number % u64::from(BASE)).ok().and_then(|digit| char::from_digit(digit, BASE));
        text.insert(first, digit.unwrap_or('0'));
        number /= u64::from(BASE);
    }
}

/// The first number of a version. None for any text that weir does not write.
pub(super) fn last_change(version: &str) -> Option<(Micros, Writer)> {
    let is_own = !version.is_empty()
        && version.len().is_multiple_of(DIGITS)
        && version.len() <= NUMBERS_MAX * DIGITS
        && version.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
    if !is_own {
        return None;
    }
    // ASCII text can be split anywhere.
    let number = &version[..DIGITS];
    let (time, writer) = if number.as_bytes()[TIME_DIGITS] == WRITER_MARK {
        let writer = u64::from_str_radix(&number[TIME_DIGITS + 1..], BASE).ok()?;
        (u64::from_str_radix(&number[..TIME_DIGITS], BASE).ok()?, Writer(writer))
    } else {
        (number.parse().ok()?, Writer::NONE)
    };
    // The next change must have a time that can be read.
    (time < MICROS_MAX).then_some((time, writer))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A version of an earlier weir, without writers.
    fn old(times: &[Micros]) -> String {
        times.iter().map(|time| format!("{time:0DIGITS$}")).collect()
    }

    #[test]
    fn the_last_change_decides_which_version_is_newer() {
        let of = |stored: &[Micros], known: &[Micros]| relation(&old(stored), &old(known));
        assert_eq!(of(&[3, 2, 1], &[2, 1]), Relation::Follows);
        assert_eq!(of(&[5, 4, 3, 2], &[2, 1]), Relation::Follows);
        assert_eq!(of(&[7, 6], &[]), Relation::Follows);
        assert_eq!(of(&[1], &[2, 1]), Relation::Older);
        assert_eq!(of(&[], &[2, 1]), Relation::Older);
        // Two changes of the same version.
        assert_eq!(of(&[4, 2, 1], &[3, 2, 1]), Relation::Newer);
        assert_eq!(of(&[3, 2, 1], &[4, 2, 1]), Relation::Older);
        // A change of an empty store.
        assert_eq!(of(&[9], &[8, 7, 6, 5]), Relation::Newer);
        assert_eq!(of(&[1], &[3, 2]), Relation::Older);
        // More changes than a version lists.
        assert_eq!(of(&[9, 8, 7, 6], &[5, 4, 3, 2]), Relation::Newer);
        assert_eq!(of(&[5, 4, 3, 2], &[9, 8, 7, 6]), Relation::Older);
        // Texts that weir does not write. The last one has a time that no later change could pass.
        let too_late = old(&[MICROS_MAX]);
        for strange in ["7", "strange", "x000000000000001", "00000000000000012", &too_late] {
            assert_eq!(relation(strange, &old(&[2, 1])), Relation::Newer, "{strange}");
            assert_eq!(relation(&old(&[2, 1]), strange), Relation::Follows, "{strange}");
            assert_eq!((version_time(strange), time_after(strange, 3)), (None, 3), "{strange}");
            assert_eq!(next(9, Writer(1), strange).len(), DIGITS, "{strange}");
        }
    }

    #[test]
    fn a_change_is_later_than_the_version_that_it_replaces() {
        let four = old(&[4, 3, 2, 1]);
        assert_eq!((time_after(&four, 9), time_after("", 3)), (9, 3));
        assert_eq!((time_after(&four, 3), time_after(&four, 4)), (5, 5), "clocks that are behind");
        assert_eq!(time_after(&old(&[MICROS_MAX - 1]), 3), MICROS_MAX, "as an override may have it");
    }

    /// Replicas of other versions read it, and the scripts take no other characters.
    #[test]
    fn a_version_lists_the_changes_before_and_the_writer_decides_between_equal_times() {
        let before = old(&[4, 3, 2, 1]);
        assert_eq!(next(9, Writer(1), &before), format!("00000000009p0001{}", old(&[4, 3, 2])));
        assert_eq!(next(9, Writer(WRITERS - 1), ""), "00000000009pzzzz");
        let now = 1_700_000_000_000_000;
        let [one, other] = [1, WRITERS - 1].map(|writer| next(now, Writer(writer), &before));
        assert_eq!((version_time(&one), version_time(&before)), (Some(now), Some(4)));
        assert_eq!((relation(&one, &before), relation(&before, &one)), (Relation::Follows, Relation::Older));
        assert_eq!((relation(&one, &other), relation(&other, &one)), (Relation::Older, Relation::Newer));
        assert_eq!((relation(&one, &old(&[now])), relation(&old(&[now]), &one)), (Relation::Newer, Relation::Older));
        assert!(one.len() <= 64 && one.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_ne!(Writer::random(), Writer::NONE);
    }
}
