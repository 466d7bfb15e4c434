//! What goes to the scripts and comes back: charges as doubles, replies as states, stored values as states.
//!
//! lua/README.md says the same for readers of the scripts. Every number sent is an integer below 2^53, which a double
//! holds exactly [ar-2]. Not here: connections (pool.rs), batching (pipeline.rs) and what a decision is (engine).

use std::sync::LazyLock;

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::merge::Mergeable;
use super::pipeline::{Call, Script};
use crate::engine::algorithm::{
    self, Summary, anchored_window, fixed_window, gcra, sliding_window, sliding_window_counter, sliding_window_log,
    token_bucket,
};
use crate::engine::decision::Found;
use crate::engine::{Algorithm, Anchor, Bounds, Charge, Limit, Micros, Mode, Refill, Role, Seen, State, Take, weight};
use crate::store::Undo;

/// A script of lua/, known to Redis by its hash once it has been sent there.
macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!(concat!("../../../lua/", $file))));
    };
}

script!(FIXED_WINDOW, "fixed_window.lua");
script!(ANCHORED_WINDOW, "anchored_window.lua");
script!(SLIDING_WINDOW_COUNTER, "sliding_window_counter.lua");
script!(SLIDING_WINDOW, "sliding_window.lua");
script!(SLIDING_WINDOW_LOG, "sliding_window_log.lua");
script!(GCRA, "gcra.lua");
script!(TOKEN_BUCKET, "token_bucket.lua");
script!(DECIDE, "decide.lua");
script!(UNDO_LOG, "undo_log.lua");

/// All of them.
pub(super) fn scripts() -> [&'static Script; 9] {
    [
        &FIXED_WINDOW,
        &ANCHORED_WINDOW,
        &SLIDING_WINDOW_COUNTER,
        &SLIDING_WINDOW,
        &SLIDING_WINDOW_LOG,
        &GCRA,
        &TOKEN_BUCKET,
        &DECIDE,
        &UNDO_LOG,
    ]
}

/// Numbers that take more than this, in bytes, need an allocation: those of more than four charges.
const BLOB_BYTES: usize = 256;

/// The kinds of state: what tells the scripts and the stored formats apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    FixedWindow = 1,
    Pacing = 2,
    AnchoredWindow = 3,
    SlidingWindowCounter = 4,
    SlidingWindow = 5,
    SlidingWindowLog = 6,
    TokenBucket = 7,
}

impl Kind {
    const fn of(limit: &Limit) -> Self {
        match limit.algorithm() {
            Algorithm::FixedWindow { anchor: Anchor::Clock } => Self::FixedWindow,
            Algorithm::FixedWindow { .. } => Self::AnchoredWindow,
            Algorithm::SlidingWindowCounter => Self::SlidingWindowCounter,
            Algorithm::SlidingWindow { .. } => Self::SlidingWindow,
            Algorithm::SlidingWindowLog => Self::SlidingWindowLog,
            Algorithm::TokenBucket { refill: Refill::Interval, .. } => Self::TokenBucket,
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } | Algorithm::Gcra { .. } => Self::Pacing,
        }
    }

    /// The kind as lua/decide.lua reads it.
    const fn digit(self) -> u8 {
        b'0' + self as u8
    }

    /// Whether the state is a hash or a sorted set.
    const fn is_list(self) -> bool {
        matches!(self, Self::SlidingWindow | Self::SlidingWindowLog)
    }

    fn script(self) -> &'static Script {
        match self {
            Self::FixedWindow => &FIXED_WINDOW,
            Self::Pacing => &GCRA,
            Self::AnchoredWindow => &ANCHORED_WINDOW,
            Self::SlidingWindowCounter => &SLIDING_WINDOW_COUNTER,
            Self::SlidingWindow => &SLIDING_WINDOW,
            Self::SlidingWindowLog => &SLIDING_WINDOW_LOG,
            Self::TokenBucket => &TOKEN_BUCKET,
        }
    }
}

/// What a script does with a charge: the numbers that lua/fixed_window.lua and lua/decide.lua explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Look = 0,
    Take = 1,
    TakeCounted = 2,
    TakeOrDrain = 3,
    Add = 4,
    Give = 5,
    LookPast = 6,
    Undo = 7,
}

impl Op {
    fn of(charge: &Charge<'_>, mode: Mode) -> Self {
        match (charge.take, mode) {
            (Take::Look, Mode::Atomic) => Self::Look,
            (Take::Look, Mode::Independent) => Self::LookPast,
            (Take::Give(_), _) => Self::Give,
            (Take::Force(_), _) => Self::Add,
            (Take::Take(_), Mode::Independent) if algorithm::counts_denied(charge.limit) => Self::TakeCounted,
            (Take::Take(_), _) if charge.limit.drain => Self::TakeOrDrain,
            (Take::Take(_), _) => Self::Take,
        }
    }

    /// The op of a charge that is the whole decision, where its own verdict is the decision's.
    fn alone(charge: &Charge<'_>, mode: Mode) -> Self {
        match Self::of(charge, mode) {
            Self::LookPast => Self::Look,
            Self::TakeOrDrain if mode == Mode::Atomic && charge.role == Role::Shadow => Self::Take,
            op => op,
        }
    }
}

/// Integers as the little-endian doubles that `struct.unpack` reads.
struct Blob(SmallVec<[u8; BLOB_BYTES]>);

impl Blob {
    fn new() -> Self {
        Self(SmallVec::new())
    }

    fn push(&mut self, numbers: &[u64]) {
        for &number in numbers {
            self.0.extend_from_slice(&(number as f64).to_le_bytes());
        }
    }

    /// The numbers of an algorithm, in the order in which its script and lua/decide.lua read them.
    fn push_limit(&mut self, limit: &Limit, hits: u32, bounds: Option<Bounds>) {
        let (window, requests) = (limit.window().us(), u64::from(limit.requests()));
        let (burst, post_paid) = (u64::from(limit.capacity()), u64::from(limit.post_paid));
        match Kind::of(limit) {
            Kind::FixedWindow | Kind::SlidingWindowCounter | Kind::SlidingWindowLog => self.push(&[window, requests]),
            Kind::AnchoredWindow => {
                self.push(&[window, requests]);
                self.push(&bounds.unwrap_or_default());
            }
            Kind::SlidingWindow => {
                let precision = match limit.algorithm() {
                    Algorithm::SlidingWindow { precision } => precision.get(),
                    _ => unreachable!("only a sliding window has sub-buckets"),
                };
                self.push(&[window, precision, requests]);
            }
            Kind::Pacing => {
                let (cost, full) = (gcra::cost(limit, hits), limit.full());
                self.push(&[cost.0, cost.1, window, requests, burst, full.0, full.1, post_paid]);
            }
            Kind::TokenBucket => {
                let (ceiling, most) = (token_bucket::ceiling(limit), token_bucket::most(limit));
                self.push(&[window, requests, burst, u64::from(ceiling), u64::from(most)]);
            }
        }
    }
}

/// The call that makes a decision. `now` stands for the server's clock where a test sets it.
pub(super) fn decide_call(
    prefix: &str,
    charges: &[Charge<'_>],
    places: &[u16],
    firsts: &[u16],
    mode: Mode,
    now: Option<Micros>,
) -> Call {
    let now = now.unwrap_or(0);
    let mut blob = Blob::new();
    if let [charge] = charges {
        let hits = hits_of(charge.take);
        blob.push(&[Op::alone(charge, mode) as u64, u64::from(hits)]);
        blob.push_limit(charge.limit, hits, charge.bounds);
        blob.push(&[now]);
        let script = Kind::of(charge.limit).script();
        return Call::script_on(script, prefix, std::iter::once(charge.key), &[&blob.0])
            .mergeable(mergeable(charge))
            .weighing(weight::of_charge(charge));
    }

    let mut kinds = SmallVec::<[u8; 16]>::new();
    let has_lists = u64::from(charges.iter().any(|charge| Kind::of(charge.limit).is_list()));
    blob.push(&[now, u64::from(mode == Mode::Atomic), charges.len() as u64, has_lists]);
    for (charge, &place) in charges.iter().zip(places) {
        let role = match charge.role {
            Role::Enforced => 0,
            Role::Shadow => 1,
            Role::Quota => 2,
        };
        let (op, hits) = (Op::of(charge, mode), hits_of(charge.take));
        kinds.push(Kind::of(charge.limit).digit());
        blob.push(&[u64::from(place) + 1, role, op as u64, u64::from(hits), 0]);
        blob.push_limit(charge.limit, hits, charge.bounds);
    }
    let keys = firsts.iter().map(|&first| charges[usize::from(first)].key);
    Call::script_on(&DECIDE, prefix, keys, &[&kinds[..], &blob.0]).weighing(weight::of_charges(charges))
}

/// How the decision of this one charge can be made together with others. Not on a calendar, whose windows may not hold
/// the clock, which would be the answer to all; and not on a state that can be long.
const fn mergeable(charge: &Charge<'_>) -> Option<Mergeable> {
    let kind = Kind::of(charge.limit);
    let replies = match kind {
        Kind::FixedWindow => 1,
        Kind::Pacing | Kind::TokenBucket => 2,
        Kind::AnchoredWindow | Kind::SlidingWindowCounter => 3,
        Kind::SlidingWindow | Kind::SlidingWindowLog => return None,
    };
    if charge.bounds.is_some() { None } else { Some(Mergeable { digit: kind.digit(), replies }) }
}

/// The calls that take charges back: one decision in which each stands for itself, and one call for each log.
pub(super) fn undo_calls(prefix: &str, undos: &[Undo<'_>], now: Option<Micros>) -> Vec<Call> {
    let now = now.unwrap_or(0);
    let mut calls = Vec::new();
    let mut keys: Vec<String> = Vec::new();
    let mut kinds = SmallVec::<[u8; 16]>::new();
    let mut together = Blob::new();
    let mut weight = 0;
    for undo in undos {
        let (key, receipt) = (format!("{prefix}{}", undo.key), undo.receipt);
        let kind = Kind::of(undo.limit);
        let hits = u64::from(receipt.hits);
        if kind == Kind::SlidingWindowLog {
            let mut blob = Blob::new();
            blob.push(&[undo.limit.window().us(), receipt.mark, receipt.at, hits, now]);
            calls.push(Call::script(&UNDO_LOG, &[key], &[&blob.0]).weighing(weight::of_undo(undo.limit)));
            continue;
        }
        let slot = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            keys.push(key);
            keys.len() - 1
        });
        weight += weight::of_undo(undo.limit);
        let proof = if kind == Kind::Pacing { receipt.at } else { receipt.mark };
        kinds.push(kind.digit());
        together.push(&[slot as u64 + 1, 1, Op::Undo as u64, hits, proof]);
        together.push_limit(undo.limit, receipt.hits, undo.bounds);
    }
    if !kinds.is_empty() {
        let mut blob = Blob::new();
        let has_lists = u64::from(undos.iter().any(|undo| Kind::of(undo.limit).is_list()));
        blob.push(&[now, 0, kinds.len() as u64, has_lists]);
        blob.0.extend_from_slice(&together.0);
        calls.push(Call::script(&DECIDE, &keys, &[&kinds[..], &blob.0]).weighing(weight));
    }
    calls
}

/// The clock of a reply to [`undo_calls`] that took nothing back: no window of a calendar holds it.
pub(super) fn undo_rewindow(reply: &Value, undos: &[Undo<'_>]) -> Option<Micros> {
    match reply {
        Value::Array(numbers) if undos.iter().any(|undo| undo.bounds.is_some()) => match &numbers[..] {
            // Every charge answers something, so that the clock alone is no undo.
            [now] => integer(now),
            _ => None,
        },
        _ => None,
    }
}

/// The hits that a script works with: a look asks about one.
fn hits_of(take: Take) -> u32 {
    match take {
        Take::Take(hits) | Take::Give(hits) | Take::Force(hits) => hits,
        Take::Look => 1,
    }
}

/// What a decision's reply says.
#[derive(Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "the usual one is the large one, and is taken apart at once")]
pub(super) enum Reply {
    /// The clock, and what each charge found.
    Found(Micros, SmallVec<[Found; 4]>),
    /// No window of a calendar holds the clock.
    Rewindow(Micros),
}

/// Reads a decision's reply. None where it is none.
pub(super) fn read_decision(reply: &Value, charges: &[Charge<'_>]) -> Option<Reply> {
    let Value::Array(numbers) = reply else {
        return None;
    };
    let clock_alone = numbers.len() == 1;
    let mut numbers = numbers.iter().map(integer);
    let mut next = || numbers.next().flatten();
    let now = next()?;
    // Every charge answers something, so that the clock alone is no decision. [cl-2]
    if clock_alone && charges.iter().any(|charge| charge.bounds.is_some()) {
        return Some(Reply::Rewindow(now));
    }
    let mut found = SmallVec::new();
    for charge in charges {
        let limit = charge.limit;
        let before = match Kind::of(limit) {
            Kind::FixedWindow => Seen::FixedWindow(fixed_window::Counter::unpacked(next()?)),
            Kind::AnchoredWindow => {
                let (start, end, count) = (next()?, next()?, small(next()?)?);
                Seen::AnchoredWindow(anchored_window::SeenWindow { start, end, count })
            }
            Kind::SlidingWindowCounter => {
                let (start, previous, count) = (next()?, small(next()?)?, small(next()?)?);
                Seen::SlidingWindowCounter(sliding_window_counter::Counts { start, previous, count })
            }
            Kind::SlidingWindow | Kind::SlidingWindowLog => {
                let mut summary = || {
                    let (used, fits_at, empty_at, mark) = (small(next()?)?, next()?, next()?, next()?);
                    Some(Seen::Summary(Summary { used, fits_at, empty_at, mark }))
                };
                let (before, after) = (summary()?, summary()?);
                found.push(Found { before, after: Some(after) });
                continue;
            }
            Kind::Pacing => {
                let (us, fraction) = (next()?, small(next()?)?);
                Seen::Pacing(gcra::Debt { tat: now.checked_add(us)?, fraction, requests: limit.requests() })
            }
            Kind::TokenBucket => Seen::TokenBucket(token_bucket::Bucket { anchor: next()?, used: small(next()?)? }),
        };
        found.push(Found { before, after: None });
    }
    next().is_none().then_some(Reply::Found(now, found))
}

/// The command that reads a stored state.
pub(super) fn peek_command(limit: &Limit, key: &str) -> Cmd {
    let mut command = match Kind::of(limit) {
        Kind::SlidingWindow => redis::cmd("HGETALL"),
        Kind::SlidingWindowLog => redis::cmd("ZRANGE"),
        _ => redis::cmd("GET"),
    };
    command.arg(key);
    if Kind::of(limit) == Kind::SlidingWindowLog {
        command.arg(0).arg(-1).arg("WITHSCORES");
    }
    command
}

/// A stored value as a state; nothing where there is none.
///
/// # Errors
/// Where the value is not of the limit's format.
pub(super) fn read_stored(limit: &Limit, value: &Value) -> Result<Option<State>, NotOurs> {
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
    stored.map(Some).ok_or(NotOurs)
}

/// A value that no script of ours has written.
pub(super) struct NotOurs;

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

pub(super) fn integer(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
