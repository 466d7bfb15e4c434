//! What goes to the scripts and comes back: charges as doubles, replies as states, stored bytes as states.
//!
//! lua/README.md says the same for readers of the scripts. Every number sent is an integer below 2^53, which a double
//! holds exactly [ar-2]. Not here: connections (pool.rs), batching (pipeline.rs) and what a decision is (engine).

use std::sync::LazyLock;

use redis::Value;
use smallvec::SmallVec;

use super::pipeline::{Call, Script};
use crate::engine::algorithm::{self, fixed_window, gcra};
use crate::engine::{Algorithm, Charge, Limit, Micros, Mode, Role, State, Take};
use crate::store::Undo;

static FIXED_WINDOW: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../../lua/fixed_window.lua")));
static GCRA: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../../lua/gcra.lua")));
static DECIDE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../../lua/decide.lua")));

/// Room for the numbers of a decision of a few charges, in bytes.
const BLOB_BYTES: usize = 256;

/// The numbers of the algorithms in lua/decide.lua.
const ALGORITHM_FIXED_WINDOW: u64 = 1;
const ALGORITHM_PACING: u64 = 2;

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
struct Blob(Vec<u8>);

impl Blob {
    fn new() -> Self {
        Self(Vec::with_capacity(BLOB_BYTES))
    }

    fn push(&mut self, numbers: &[u64]) {
        for &number in numbers {
            self.0.extend_from_slice(&(number as f64).to_le_bytes());
        }
    }
}

/// The call that makes a decision. `now` stands for the server's clock where a test sets it.
pub(super) fn decide_call(
    prefix: &str,
    charges: &[Charge<'_>],
    slots: &[u16],
    firsts: &[u16],
    mode: Mode,
    now: Option<Micros>,
) -> Call {
    let now = now.unwrap_or(0);
    let mut blob = Blob::new();
    if let [charge] = charges {
        let (hits, op) = (hits_of(charge.take), Op::alone(charge, mode) as u64);
        blob.push(&[op, hits]);
        let script = match charge.limit.algorithm() {
            Algorithm::FixedWindow => {
                blob.push(&[charge.limit.window().us(), u64::from(charge.limit.requests())]);
                &*FIXED_WINDOW
            }
            Algorithm::Gcra { .. } => {
                blob.push(&pacing(charge.limit, hits));
                &*GCRA
            }
        };
        blob.push(&[now]);
        return with_prefix(prefix, charge.key, |key| Call::script(script, &[key], &[&blob.0]));
    }

    let atomic = u64::from(mode == Mode::Atomic);
    blob.push(&[now, atomic, charges.len() as u64]);
    for (charge, &slot) in charges.iter().zip(slots) {
        let role = match charge.role {
            Role::Enforced => 0,
            Role::Shadow => 1,
            Role::Quota => 2,
        };
        let op = Op::of(charge, mode) as u64;
        push_charge(&mut blob, charge.limit, usize::from(slot), role, op, hits_of(charge.take), 0);
    }
    let keys: SmallVec<[String; 4]> =
        firsts.iter().map(|&first| format!("{prefix}{}", charges[usize::from(first)].key)).collect();
    Call::script(&DECIDE, &keys, &[&blob.0])
}

/// The call that takes charges back: a decision in which each stands for itself.
pub(super) fn undo_call(prefix: &str, undos: &[Undo<'_>], now: Option<Micros>) -> Call {
    let mut blob = Blob::new();
    blob.push(&[now.unwrap_or(0), 0, undos.len() as u64]);
    let mut keys: Vec<String> = Vec::new();
    for undo in undos {
        let key = format!("{prefix}{}", undo.key);
        let slot = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            keys.push(key);
            keys.len() - 1
        });
        let proof = match undo.limit.algorithm() {
            Algorithm::FixedWindow => undo.receipt.mark,
            Algorithm::Gcra { .. } => undo.receipt.at,
        };
        push_charge(&mut blob, undo.limit, slot, 1, Op::Undo as u64, u64::from(undo.receipt.hits), proof);
    }
    Call::script(&DECIDE, &keys, &[&blob.0])
}

/// One charge of lua/decide.lua. `proof` is a receipt's mark or time, where the charge is undone.
fn push_charge(blob: &mut Blob, limit: &Limit, slot: usize, role: u64, op: u64, hits: u64, proof: u64) {
    let key = slot as u64 + 1;
    match limit.algorithm() {
        Algorithm::FixedWindow => {
            blob.push(&[ALGORITHM_FIXED_WINDOW, key, role, op, hits]);
            blob.push(&[limit.window().us(), u64::from(limit.requests()), proof]);
        }
        Algorithm::Gcra { .. } => {
            blob.push(&[ALGORITHM_PACING, key, role, op, hits]);
            blob.push(&pacing(limit, hits));
            blob.push(&[proof]);
        }
    }
}

/// The hits that a script works with: a look asks about one.
fn hits_of(take: Take) -> u64 {
    match take {
        Take::Take(hits) | Take::Give(hits) | Take::Force(hits) => u64::from(hits),
        Take::Look => 1,
    }
}

/// What a script needs of a pacing limit: cost, P, L, B, T, F, and whether it is post-paid.
fn pacing(limit: &Limit, hits: u64) -> [u64; 8] {
    let hits = u32::try_from(hits).unwrap_or(u32::MAX);
    let (cost, full) = (gcra::cost(limit, hits), limit.full());
    [
        cost.0,
        cost.1,
        limit.window().us(),
        u64::from(limit.requests()),
        u64::from(limit.capacity()),
        full.0,
        full.1,
        u64::from(limit.post_paid),
    ]
}

/// Keys of any length with the prefix in front, without an allocation where there is none.
fn with_prefix<T>(prefix: &str, key: &str, then: impl FnOnce(&str) -> T) -> T {
    if prefix.is_empty() { then(key) } else { then(&format!("{prefix}{key}")) }
}

/// The clock and the state that each charge found, out of a decision's reply. None where it is no such reply.
pub(super) fn read_decision(reply: &Value, charges: &[Charge<'_>]) -> Option<(Micros, SmallVec<[State; 2]>)> {
    let Value::Array(numbers) = reply else {
        return None;
    };
    let mut numbers = numbers.iter().map(integer);
    let now = numbers.next()??;
    let mut seen = SmallVec::new();
    for charge in charges {
        let state = match charge.limit.algorithm() {
            Algorithm::FixedWindow => State::FixedWindow(fixed_window::Counter::unpacked(numbers.next()??)),
            Algorithm::Gcra { .. } => {
                let (us, fraction) = (numbers.next()??, numbers.next()??);
                State::Pacing(gcra::Debt {
                    tat: now.checked_add(us)?,
                    fraction: u32::try_from(fraction).ok()?,
                    requests: charge.limit.requests(),
                })
            }
        };
        seen.push(state);
    }
    numbers.next().is_none().then_some((now, seen))
}

/// The stored bytes of a key as a state. None where they are not of the limit's format.
pub(super) fn read_stored(limit: &Limit, stored: &[u8]) -> Option<State> {
    match limit.algorithm() {
        Algorithm::FixedWindow => {
            let packed: u64 = std::str::from_utf8(stored).ok()?.parse().ok()?;
            Some(State::FixedWindow(fixed_window::Counter::unpacked(packed)))
        }
        Algorithm::Gcra { .. } => {
            let [tat, fraction, requests] = doubles(stored)?;
            Some(State::Pacing(gcra::Debt {
                tat,
                fraction: u32::try_from(fraction).ok()?,
                requests: u32::try_from(requests).ok()?,
            }))
        }
    }
}

/// Whole numbers out of little-endian doubles. None where one is no whole number that a script can have written.
fn doubles<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (chunks, []) = bytes.as_chunks::<8>() else {
        return None;
    };
    let mut numbers = [0; N];
    if chunks.len() != N {
        return None;
    }
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

pub(super) fn integer(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
