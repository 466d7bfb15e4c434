//! Versions of the text of all overrides: which one follows from which, and how two texts are joined if neither follows from the
//! other.
//!
//! A version has the number of its change, and the numbers of the last changes before it. This detects a store that has
//! lost changes: its version is an ancestor of known ones, or follows from an ancestor and was made by a process that
//! did not have the lost changes. A number contains its writer, so that two processes never use the same
//! number.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{BuildHasher as _, RandomState};

use weir_engine::Micros;

use super::SetOverride;

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

/// The number of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Number {
    time: Micros,
    writer: Writer,
}

/// A number of a process. It distinguishes the changes of the process from simultaneous changes of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Writer(u64);

impl Writer {
    /// The writer of changes by an earlier weir.
    const NONE: Self = Self(0);

    /// A random number, which other processes very probably do not have.
    pub(super) fn random() -> Self {
        Self(1 + RandomState::new().hash_one(()) % (WRITERS - 1))
    }
}

/// How the version of a store relates to the known version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// It follows from the known one, as far as its numbers show.
    Later,
    /// The known one follows from it: the store has lost changes.
    Earlier,
    /// Each has changes that the other does not have.
    Forked,
}

/// The relation of a store's version to the known one.
pub(super) fn relation(stored: &str, known: &str) -> Relation {
    let Some(known) = numbers(known) else { return Relation::Later };
    if stored.is_empty() {
        return Relation::Earlier;
    }
    // weir did not write it.
    let Some(stored) = numbers(stored) else { return Relation::Later };
    if stored.contains(&known[0]) {
        return Relation::Later;
    }
    if known.contains(&stored[0]) {
        return Relation::Earlier;
    }
    if common(&stored, &known) > 0 {
        Relation::Forked
    } else if known.len() == NUMBERS_MAX && known.iter().all(|number| number.time > stored[0].time) {
        // The known version may follow from one that old.
        Relation::Earlier
    } else if stored.len() < NUMBERS_MAX {
        // All of its ancestors are in the list, so it started with an empty store.
        Relation::Forked
    } else if stored[0] > known[0] {
        Relation::Later
    } else {
        Relation::Earlier
    }
}

/// The time of the last number that both have; 0 if there is none.
fn common(one: &[Number], other: &[Number]) -> Micros {
    one.iter().filter(|number| other.contains(number)).map(|number| number.time).max().unwrap_or(0)
}

/// The time in the number of the next change after a version. If the clock is behind, a time after that of the version.
pub(super) fn time_after(known: &str, now: Micros) -> Micros {
    match numbers(known) {
        Some(known) if now <= known[0].time => known[0].time + 1 + now % 1_000,
        _ => now,
    }
}

/// The version of a change at this time by this writer.
pub(super) fn next(time: Micros, writer: Writer, known: &str) -> String {
    write([Number { time, writer }].into_iter().chain(numbers(known).unwrap_or_default()))
}

/// The version of a change that joins two versions.
pub(super) fn joining(time: Micros, writer: Writer, one: &str, other: &str) -> String {
    let (one, other) = (numbers(one).unwrap_or_default(), numbers(other).unwrap_or_default());
    let heads = one.first().into_iter().chain(other.first());
    let mut tail: Vec<Number> = one.iter().skip(1).chain(other.iter().skip(1)).copied().collect();
    tail.sort_unstable_by(|one, other| other.cmp(one));
    tail.dedup();
    write([Number { time, writer }].into_iter().chain(heads.copied()).chain(tail))
}

fn write(numbers: impl Iterator<Item = Number>) -> String {
    let mut version = String::new();
    for Number { time, writer } in numbers.take(NUMBERS_MAX) {
        if writer == Writer::NONE {
            version.push_str(&format!("{time:0DIGITS$}"));
        } else {
            push_digits(&mut version, time, TIME_DIGITS);
            version.push(char::from(WRITER_MARK));
            push_digits(&mut version, writer.0, DIGITS - TIME_DIGITS - 1);
        }
    }
    version
}

/// Appends the last `count` digits of a number.
fn push_digits(text: &mut String, number: u64, count: usize) {
    const ALL: &[u8; BASE as usize] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let (mut digits, mut left) = (vec![b'0'; count], number);
    for digit in digits.iter_mut().rev() {
        *digit = ALL[usize::from((left % u64::from(BASE)).to_le_bytes()[0])];
        left /= u64::from(BASE);
    }
    text.extend(digits.into_iter().map(char::from));
}

/// The numbers of a version that weir made, its own first. None for any other text.
fn numbers(version: &str) -> Option<Vec<Number>> {
    let is_own = !version.is_empty()
        && version.len().is_multiple_of(DIGITS)
        && version.len() <= NUMBERS_MAX * DIGITS
        && version.bytes().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase());
    if !is_own {
        return None;
    }
    // ASCII text can be split anywhere.
    (0..version.len() / DIGITS).map(|at| number(&version[at * DIGITS..(at + 1) * DIGITS])).collect()
}

fn number(text: &str) -> Option<Number> {
    if text.as_bytes()[TIME_DIGITS] != WRITER_MARK {
        return Some(Number { time: text.parse().ok()?, writer: Writer::NONE });
    }
    let time = u64::from_str_radix(&text[..TIME_DIGITS], BASE).ok()?;
    let writer = u64::from_str_radix(&text[TIME_DIGITS + 1..], BASE).ok()?;
    Some(Number { time, writer: Writer(writer) })
}

/// A text and its version: one of two that are joined.
pub(super) struct Side<'s> {
    pub(super) version: &'s str,
    pub(super) overrides: &'s [SetOverride],
}

/// The combination of two sides, sorted: overrides that one side has set and the other has not seen, and otherwise only
/// overrides that both have, because either side may have deleted the rest.
pub(super) fn joined(one: &Side<'_>, other: &Side<'_>, now: Micros) -> Vec<SetOverride> {
    let numbers = [one.version, other.version].map(|version| numbers(version).unwrap_or_default());
    let common = common(&numbers[0], &numbers[1]);
    // An override has the number of the change that set it. Changes that a version does not list are older than those it lists.
    let is_unseen = |set: &SetOverride, by: usize| {
        let is_named = numbers[1 - by].iter().any(|number| number.time == set.set_at && !numbers[by].contains(number));
        let names_all = numbers[by].len() < NUMBERS_MAX || numbers[by].iter().any(|number| number.time < set.set_at);
        set.set_at > common || (is_named && names_all)
    };
    let mut all: BTreeMap<_, (&SetOverride, bool)> = BTreeMap::new();
    for (side, by) in [(one, 1), (other, 0)] {
        for set in side.overrides {
            match all.entry(set.place()) {
                Entry::Vacant(entry) => drop(entry.insert((set, is_unseen(set, by)))),
                Entry::Occupied(mut entry) => {
                    let last = if entry.get().0.set_at < set.set_at { set } else { entry.get().0 };
                    entry.insert((last, true));
                }
            }
        }
    }
    let is_kept = |(set, is_kept): &(&SetOverride, bool)| *is_kept && now < set.set.until;
    all.into_values().filter(is_kept).map(|(set, _)| set.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(numbers: &[Micros]) -> String {
        write(numbers.iter().map(|time| Number { time: *time, writer: Writer::NONE }))
    }

    #[test]
    fn versions_tell_what_they_follow_from() {
        let of = |stored: &[Micros], known: &[Micros]| relation(&version(stored), &version(known));
        assert_eq!(of(&[3, 2, 1], &[2, 1]), Relation::Later);
        assert_eq!(of(&[5, 4, 3, 2], &[2, 1]), Relation::Later);
        assert_eq!(of(&[1], &[2, 1]), Relation::Earlier);
        assert_eq!(of(&[], &[2, 1]), Relation::Earlier);
        assert_eq!(of(&[7, 6], &[]), Relation::Later);
        // Two changes of the same version, in any order of their clocks.
        assert_eq!(of(&[4, 2, 1], &[3, 2, 1]), Relation::Forked);
        assert_eq!(of(&[3, 2, 1], &[4, 2, 1]), Relation::Forked);
        // A change of an empty store.
        assert_eq!(of(&[9], &[8, 7, 6, 5]), Relation::Forked);
        assert_eq!(of(&[9], &[2, 1]), Relation::Forked);
        assert_eq!(of(&[1], &[3, 2]), Relation::Forked);
        // A store that went back to an old version.
        assert_eq!(of(&[2, 1], &[8, 7, 6, 5]), Relation::Earlier);
        // Too far apart to be compared.
        assert_eq!(of(&[9, 8, 7, 6], &[4, 3, 2, 1]), Relation::Later);
        assert_eq!(of(&[4, 3, 2, 1], &[9, 8, 7, 6]), Relation::Earlier);
        // Texts that weir does not write.
        for strange in ["7", "strange", "x000000000000001", "00000000000000012"] {
            assert_eq!(relation(strange, &version(&[2, 1])), Relation::Later, "{strange}");
            assert_eq!(relation(&version(&[2, 1]), strange), Relation::Later, "{strange}");
        }
    }

    #[test]
    fn versions_follow_and_join() {
        let four = version(&[4, 3, 2, 1]);
        assert_eq!((time_after(&four, 9), time_after("", 3)), (9, 3));
        assert_eq!((time_after(&four, 3), time_after(&four, 4)), (8, 9), "clocks that are behind");
        assert_eq!(next(9, Writer::NONE, &four), version(&[9, 4, 3, 2]));
        assert_eq!(next(9, Writer::NONE, ""), version(&[9]));
        let (one, other) = (version(&[5, 2, 1]), version(&[6, 2, 1]));
        let joint = joining(7, Writer::NONE, &one, &other);
        assert_eq!(joint, version(&[7, 5, 6, 2]));
        assert_eq!(relation(&joint, &one), Relation::Later);
        assert_eq!(relation(&joint, &other), Relation::Later);
        assert_eq!(relation(&joint, &version(&[8, 2, 1])), Relation::Forked);
        assert!(four.len() <= 64 && four.bytes().all(|byte| byte.is_ascii_alphanumeric()), "as the scripts take it");
    }
    #[test]
    fn a_number_has_its_writer_and_one_without_is_read() {
        let (old, now) = (version(&[4, 3, 2, 1]), 1_700_000_000_000_000);
        let [one, other] = [1, WRITERS - 1].map(|writer| next(now, Writer(writer), &old));
        assert!(one.ends_with(&old[..3 * DIGITS]), "{one}");
        assert_eq!(relation(&one, &old), Relation::Later);
        assert_eq!(relation(&old, &one), Relation::Earlier);
        assert_eq!(relation(&one, &other), Relation::Forked);
        let joint = joining(now + 1, Writer(2), &one, &other);
        assert_eq!(
            numbers(&joint).map(|all| all[..3].to_vec()),
            Some(
                [(1, 2), (0, 1), (0, WRITERS - 1)]
                    .map(|(more, writer)| Number { time: now + more, writer: Writer(writer) })
                    .to_vec()
            )
        );
        assert_eq!([&one, &other].map(|version| relation(&joint, version)), [Relation::Later; 2]);
        assert!(joint.len() <= 64 && joint.bytes().all(|byte| byte.is_ascii_alphanumeric()), "as the scripts take it");
        assert_ne!(Writer::random(), Writer::NONE);
    }
}
