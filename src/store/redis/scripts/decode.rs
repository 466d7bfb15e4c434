//! What comes back from the scripts: replies as states, and stored values as states.
//!
//! lua/README.md describes the same for readers of the scripts. Not here: what goes there (encode.rs), and what a decision
//! is (engine).

use redis::Value;
use smallvec::SmallVec;

use super::kind::Kind;
use crate::engine::algorithm::{
    Summary, anchored_window, fixed_window, gcra, sliding_window, sliding_window_counter, sliding_window_log,
    token_bucket,
};
use crate::engine::decision::Found;
use crate::engine::{Charge, Limit, Micros, Observed, State};
use crate::store::Undo;

/// The clock of a reply to the undo of one charge on a calendar that took nothing back: no window holds the clock. [cl-3]
pub(crate) fn undo_stale_bounds(reply: &Value, undos: &[Undo<'_>]) -> Option<Micros> {
    match (reply, undos) {
        (Value::Array(numbers), [undo]) if undo.bounds.is_some() => match &numbers[..] {
            [now, _, end, _] if integer(end) == Some(0) => integer(now),
            _ => None,
        },
        _ => None,
    }
}

/// A decision's reply.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the usual one is the large one, and is taken apart at once")]
pub(crate) enum DecisionReply {
    /// The clock, and what each charge found.
    Found(Micros, SmallVec<[Found; 4]>),
    /// No window of a calendar holds the clock.
    StaleBounds(Micros),
}

/// Reads a decision's reply. None where it is none.
pub(crate) fn read_decision(reply: &Value, charges: &[Charge<'_>]) -> Option<DecisionReply> {
    let Value::Array(numbers) = reply else {
        return None;
    };
    let mut numbers = numbers.iter().map(integer);
    let mut next = || numbers.next().flatten();
    let now = next()?;
    let mut found = SmallVec::new();
    let mut is_stale = false;
    for charge in charges {
        let limit = charge.limit;
        let before = match Kind::of(limit) {
            Kind::FixedWindow => Observed::FixedWindow(fixed_window::Counter::unpacked(next()?)),
            Kind::AnchoredWindow => {
                let (start, end, count) = (next()?, next()?, small(next()?)?);
                // No window of the calendar ends at 0: none holds the clock. [cl-3]
                is_stale |= end == 0 && charge.bounds.is_some();
                Observed::AnchoredWindow(anchored_window::ObservedWindow { start, end, count })
            }
            Kind::SlidingWindowCounter => {
                let (start, previous, count) = (next()?, small(next()?)?, small(next()?)?);
                Observed::SlidingWindowCounter(sliding_window_counter::Counts { start, previous, count })
            }
            Kind::SlidingWindow | Kind::SlidingWindowLog => {
                let mut summary = || {
                    let (used, fits_at, empty_at, mark) = (small(next()?)?, next()?, next()?, next()?);
                    Some(Observed::Summary(Summary { used, fits_at, empty_at, mark }))
                };
                let (before, after) = (summary()?, summary()?);
                found.push(Found { before, after: Some(after) });
                continue;
            }
            Kind::Pacing => {
                let (us, fraction) = (next()?, small(next()?)?);
                Observed::Pacing(gcra::Debt { tat: now.checked_add(us)?, fraction, requests: limit.requests() })
            }
            Kind::TokenBucket => Observed::TokenBucket(token_bucket::Bucket { anchor: next()?, used: small(next()?)? }),
        };
        found.push(Found { before, after: None });
    }
    let reply = if is_stale { DecisionReply::StaleBounds(now) } else { DecisionReply::Found(now, found) };
    next().is_none().then_some(reply)
}

/// A stored value as a state; nothing where there is none.
///
/// # Errors
/// Where the value is not of the limit's format.
pub(crate) fn read_stored(limit: &Limit, value: &Value) -> Result<Option<State>, ForeignValue> {
    let stored = match (Kind::of(limit), value) {
        (_, Value::Nil) => return Ok(None),
        (_, Value::Array(list)) if list.is_empty() => return Ok(None),
        (Kind::FixedWindow, _) => {
            integer(value).map(|packed| State::FixedWindow(fixed_window::Counter::unpacked(packed)))
        }
        (Kind::AnchoredWindow, Value::BulkString(bytes)) => doubles(bytes).and_then(|[start, count]| {
            Some(State::AnchoredWindow(anchored_window::Window { start, count: small(count)? }))
        }),
        (Kind::SlidingWindowCounter, Value::BulkString(bytes)) => {
            doubles(bytes).and_then(|[start, previous, count]| {
                let (previous, count) = (small(previous)?, small(count)?);
                Some(State::SlidingWindowCounter(sliding_window_counter::Counts { start, previous, count }))
            })
        }
        (Kind::Pacing, Value::BulkString(bytes)) => doubles(bytes).and_then(|[tat, fraction, requests]| {
            let (fraction, requests) = (small(fraction)?, small(requests)?);
            Some(State::Pacing(gcra::Debt { tat, fraction, requests }))
        }),
        (Kind::TokenBucket, Value::BulkString(bytes)) => doubles(bytes)
            .and_then(|[anchor, used]| Some(State::TokenBucket(token_bucket::Bucket { anchor, used: small(used)? }))),
        (Kind::SlidingWindow, Value::Array(fields)) => read_buckets(fields).map(State::SlidingWindow),
        (Kind::SlidingWindowLog, Value::Array(members)) => read_log(members).map(State::SlidingWindowLog),
        _ => None,
    };
    stored.map(Some).ok_or(ForeignValue)
}

/// A value that no script of weir has written.
pub(crate) struct ForeignValue;

fn read_buckets(fields: &[Value]) -> Option<Box<sliding_window::Buckets>> {
    let (pairs, []) = fields.as_chunks::<2>() else {
        return None;
    };
    let mut buckets = Vec::with_capacity(pairs.len());
    for [number, count] in pairs {
        buckets.push((integer(number)?, small(integer(count)?)?));
    }
    buckets.sort_unstable();
    Some(Box::new(sliding_window::Buckets { buckets }))
}

fn read_log(members: &[Value]) -> Option<Box<sliding_window_log::Log>> {
    let (pairs, []) = members.as_chunks::<2>() else {
        return None;
    };
    let mut log = sliding_window_log::Log::default();
    for [member, score] in pairs {
        let Value::BulkString(member) = member else {
            return None;
        };
        let (sum, hits) = std::str::from_utf8(member).ok()?.split_once(':')?;
        let (sum, hits): (u64, u64) = (sum.parse().ok()?, hits.parse().ok()?);
        if log.entries.is_empty() {
            log.base = sum.checked_sub(hits)?;
        }
        log.entries.push_back(sliding_window_log::Entry { at: integer(score)?, sum });
    }
    Some(Box::new(log))
}

/// Whole numbers out of little-endian doubles. None where one is no whole number that a script can have written.
fn doubles<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, []) = bytes.as_chunks::<8>() else {
        return None;
    };
    if chunks.len() != N {
        return None;
    }
    let mut numbers = [0; N];
    for (number, chunk) in numbers.iter_mut().zip(chunks) {
        *number = whole(f64::from_le_bytes(*chunk))?;
    }
    Some(numbers)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked by the way back")]
fn whole(double: f64) -> Option<u64> {
    let number = double as u64;
    (number as f64 == double && number < 1 << 53).then_some(number)
}

fn small(number: u64) -> Option<u32> {
    u32::try_from(number).ok()
}

pub(crate) fn integer(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
