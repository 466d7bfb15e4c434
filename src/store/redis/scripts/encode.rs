//! What goes to the scripts: charges as doubles.
//!
//! lua/README.md describes the same for readers of the scripts. Every number sent is an integer below 2^53, which a double
//! holds exactly [ar-2]. Not here: what comes back (decode.rs), and what a decision is (engine).

use redis::Cmd;
use smallvec::SmallVec;

use super::kind::Kind;
use super::{library, merge};
use crate::engine::algorithm::Format;
use crate::engine::{Bounds, Charge, Limit, Micros, Mode, Role, Take, weight};
use crate::store::Undo;
use crate::store::redis::transport::call::Call;

/// Numbers that take more than this, in bytes, need an allocation: those of more than four charges.
const BLOB_BYTES: usize = 256;

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
            (Take::Peek, Mode::Atomic) => Self::Look,
            (Take::Peek, Mode::Independent) => Self::LookPast,
            (Take::Refund(_), _) => Self::Give,
            (Take::Force(_), _) => Self::Add,
            (Take::Consume(_), Mode::Independent) if charge.limit.kind().counts_denied() => Self::TakeCounted,
            (Take::Consume(_), _) if charge.limit.drain => Self::TakeOrDrain,
            (Take::Consume(_), _) => Self::Take,
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
        self.push(&limit.kind().script_numbers(hits, bounds));
    }
}

/// The call that makes a decision. `now` stands for the server's clock where a test sets it.
pub(crate) fn decide_call(
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
            .mergeable(merge::mergeable(charge))
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
    Call::script_on(&library::DECIDE, prefix, keys, &[&kinds[..], &blob.0]).weighing(weight::of_charges(charges))
}

/// The calls that take charges back: one decision in which each stands for itself, and one call for each log.
pub(crate) fn undo_calls(prefix: &str, undos: &[Undo<'_>], now: Option<Micros>) -> Vec<Call> {
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
            calls.push(Call::script(&library::UNDO_LOG, &[key], &[&blob.0]).weighing(weight::of_undo(undo.limit)));
            continue;
        }
        let slot = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            keys.push(key);
            keys.len() - 1
        });
        weight += weight::of_undo(undo.limit);
        let proof = undo.limit.kind().proof(receipt);
        kinds.push(kind.digit());
        together.push(&[slot as u64 + 1, 1, Op::Undo as u64, hits, proof]);
        together.push_limit(undo.limit, receipt.hits, undo.bounds);
    }
    if !kinds.is_empty() {
        let mut blob = Blob::new();
        let has_lists = u64::from(undos.iter().any(|undo| Kind::of(undo.limit).is_list()));
        blob.push(&[now, 0, kinds.len() as u64, has_lists]);
        blob.0.extend_from_slice(&together.0);
        calls.push(Call::script(&library::DECIDE, &keys, &[&kinds[..], &blob.0]).weighing(weight));
    }
    calls
}

/// The hits that a script works with: a look asks about one.
fn hits_of(take: Take) -> u32 {
    match take {
        Take::Consume(hits) | Take::Refund(hits) | Take::Force(hits) => hits,
        Take::Peek => 1,
    }
}

/// The command that reads a stored state.
pub(crate) fn peek_command(limit: &Limit, key: &str) -> Cmd {
    let command = |name| {
        let mut command = redis::cmd(name);
        command.arg(key);
        command
    };
    match limit.kind().format() {
        Format::Integer | Format::Doubles => command("GET"),
        Format::Hash => command("HGETALL"),
        Format::SortedSet => {
            let mut command = command("ZRANGE");
            command.arg(0).arg(-1).arg("WITHSCORES");
            command
        }
    }
}
