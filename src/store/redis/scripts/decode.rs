//! Decodes the replies of scripts and stored values to states.
//!
//! lua/README.md describes the format for readers of the scripts. Not here: the arguments of scripts (encode.rs), and
//! what a decision is (engine).

use redis::Value;
use smallvec::SmallVec;
use weir_engine::algorithm::sliding_window::BUCKETS_MAX;
use weir_engine::algorithm::{Effect, StateNumbers, StoredFormat};
use weir_engine::decision::FoundState;
use weir_engine::{Bounds, Charge, Hits, Limit, Micros, State};

use crate::Before;

/// The most counts of a state: the window can start and end within a bucket.
pub(super) const COUNTS_MAX: u64 = BUCKETS_MAX + 1;

/// The end of the numbers that scripts can write: they are doubles.
pub(crate) const NUMBERS_END: u64 = 1 << 53;

/// The states that the charges of a decision found.
pub(crate) type FoundStates = SmallVec<[FoundState; 4]>;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DecisionReply {
    /// The clock at which each charge found its state.
    Found(Micros),
    /// The windows of a calendar charge do not contain the clock.
    StaleBounds(Micros),
    /// A row does not have the given version. Contains the found version of each row.
    StaleRow(Vec<u64>),
}

/// Reads a decision's reply. None if the form is wrong. The states, and the hits that were given
/// back, are written in place, because they are large.
pub(crate) fn read_decision(
    reply: &Value,
    before: Before<'_>,
    charges: &[Charge<'_>],
    found: &mut FoundStates,
    taken: &mut Vec<Hits>,
) -> Option<DecisionReply> {
    let Before { row_versions, undos } = before;
    let Value::Array(numbers) = reply else {
        return None;
    };
    if let [_, Value::Array(found)] = &numbers[..] {
        let found = found.iter().map(integer).collect::<Option<Vec<u64>>>()?;
        let is_stale = found.len() == row_versions.len()
            && row_versions.iter().zip(&found).any(|(row, found)| row.version != *found);
        return is_stale.then_some(DecisionReply::StaleRow(found));
    }
    let mut numbers = numbers.iter().map(integer);
    let mut next = || numbers.next().flatten();
    let now = next()?;
    let mut is_stale = false;
    let mut own_numbers =
        |limit: &Limit| -> Option<StateNumbers> { (0..limit.kind().reply_count()).map(|_| next()).collect() };
    // No calendar window ends at 0: it means that none contains the clock. [cl-3]
    let has_no_window = |bounds: Option<Bounds>, own: &[u64]| bounds.is_some() && own.get(1) == Some(&0);
    for undo in undos {
        let own = own_numbers(undo.limit)?;
        if has_no_window(undo.bounds, &own) {
            is_stale = true;
            continue;
        }
        let kind = undo.limit.kind();
        let (before, after) = kind.read_reply(&own, now)?;
        let after = after.unwrap_or_else(|| kind.step(&before, Effect::Undo(undo.receipt), now));
        let counted = |view| kind.level(view, now).counted;
        let hits = counted(&before).saturating_sub(counted(&after));
        taken.push(Hits::try_from(hits).unwrap_or(Hits::MAX));
    }
    for charge in charges {
        let kind = charge.limit.kind();
        let own = own_numbers(charge.limit)?;
        is_stale |= has_no_window(charge.bounds, &own);
        let (before, after) = kind.read_reply(&own, now)?;
        found.push(FoundState { before, after });
    }
    let reply = if is_stale { DecisionReply::StaleBounds(now) } else { DecisionReply::Found(now) };
    next().is_none().then_some(reply)
}

/// Decodes a stored value to a state. None if there is no value.
/// Fails when the value does not have the limit's format.
pub(crate) fn read_stored(limit: &Limit, value: &Value) -> Result<Option<State>, ForeignValue> {
    let is_none = match value {
        Value::Nil => true,
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    if is_none {
        return Ok(None);
    }
    let kind = limit.kind();
    let state = stored_numbers(kind.format(), value).and_then(|numbers| kind.read_stored(&numbers));
    state.map(Some).ok_or(ForeignValue)
}

/// A value that no script of weir wrote.
pub(crate) struct ForeignValue;

/// The numbers of a stored value. None if it does not have the format.
fn stored_numbers(format: StoredFormat, value: &Value) -> Option<StateNumbers> {
    match (format, value) {
        (StoredFormat::Integer, value) => Some(StateNumbers::from_slice(&[integer(value)?])),
        (StoredFormat::Doubles, Value::BulkString(bytes)) => doubles(bytes),
        (StoredFormat::Counts, Value::BulkString(bytes)) => counts(bytes),
        (StoredFormat::SortedSet, Value::Array(members)) => scored(members),
        (StoredFormat::Doubles | StoredFormat::Counts | StoredFormat::SortedSet, _) => None,
    }
}

/// The numbers of each member, and its score.
fn scored(members: &[Value]) -> Option<StateNumbers> {
    let (pairs, []) = members.as_chunks::<2>() else {
        return None;
    };
    let mut numbers = StateNumbers::new();
    for [member, score] in pairs {
        let Value::BulkString(member) = member else {
            return None;
        };
        let (a, b) = std::str::from_utf8(member).ok()?.split_once(':')?;
        let [a, b]: [u64; 2] = [a.parse().ok()?, b.parse().ok()?];
        if a.max(b) >= NUMBERS_END {
            return None;
        }
        numbers.extend([a, b, integer(score)?]);
    }
    Some(numbers)
}

/// Decodes whole numbers from little-endian doubles. None if one is not a whole number that a script can write.
pub(super) fn doubles(bytes: &[u8]) -> Option<StateNumbers> {
    let (chunks, []) = bytes.as_chunks::<8>() else {
        return None;
    };
    chunks.iter().map(|chunk| whole(f64::from_le_bytes(*chunk))).collect()
}

/// A whole number, then counts. The first byte is the width of a count in bytes.
fn counts(bytes: &[u8]) -> Option<StateNumbers> {
    let (&width, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first_chunk::<8>()?;
    let width = usize::from(width);
    if !matches!(width, 1 | 2 | 4) || rest.len() % width > 0 || (rest.len() / width) as u64 > COUNTS_MAX {
        return None;
    }
    let count = |bytes: &[u8]| bytes.iter().rfold(0, |number, &byte| number << 8 | u64::from(byte));
    let first = whole(f64::from_le_bytes(*first))?;
    Some(std::iter::once(first).chain(rest.chunks_exact(width).map(count)).collect())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked by the conversion back")]
fn whole(double: f64) -> Option<u64> {
    let number = double as u64;
    (number as f64 == double && number < NUMBERS_END).then_some(number)
}

/// A number as scripts and Redis write it. None if a double cannot hold it, so the sum of a few cannot overflow.
pub(crate) fn integer(value: &Value) -> Option<u64> {
    let number: u64 = match value {
        Value::Int(number) => u64::try_from(*number).ok()?,
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok()?,
        _ => return None,
    };
    (number < NUMBERS_END).then_some(number)
}
