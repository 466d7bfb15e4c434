//! What goes to the scripts: charges as doubles.
//!
//! lua/README.md describes the same for readers of the scripts. Every number sent is an integer below 2^53, which a double
//! holds exactly [ar-2]. Not here: what comes back (decode.rs), and what a decision is (engine).

use redis::Cmd;
use smallvec::SmallVec;
use weir_engine::algorithm::{Format, UndoScript};
use weir_engine::{Bounds, Charge, Limit, Micros, Mode, Role, StateKind, Take, Term, weight};

use super::{ALONE, TERM, TERM_NUMBERS, library, merge};
use crate::Undo;
use crate::redis::transport::call::{Call, Script};

/// More numbers than that need an allocation: those of more than four charges.
const BLOB_NUMBERS: usize = 32;

/// What a script does with a charge: the numbers that lua/README.md explains.
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
    DrainIfDenied = 8,
}

impl Op {
    fn of(charge: &Charge<'_>, mode: Mode) -> Self {
        match (charge.take, mode) {
            (Take::Peek, Mode::Atomic) => Self::Look,
            (Take::Peek, Mode::Independent) => Self::LookPast,
            (Take::Refund(_), _) => Self::Give,
            (Take::Force(_), _) => Self::Add,
            (Take::Consume(_), Mode::Independent) if charge.limit.kind().counts_denied() => Self::TakeCounted,
            (Take::Consume(_), Mode::Independent) if charge.limit.drain => Self::TakeOrDrain,
            (Take::Consume(_), Mode::Atomic) if charge.limit.drain => Self::DrainIfDenied,
            (Take::Consume(_), _) => Self::Take,
        }
    }

    /// The op of a charge that is the whole decision, where its own verdict is the decision's.
    fn alone(charge: &Charge<'_>, mode: Mode) -> Self {
        match Self::of(charge, mode) {
            Self::LookPast => Self::Look,
            Self::DrainIfDenied if charge.role == Role::Shadow => Self::Take,
            Self::DrainIfDenied => Self::TakeOrDrain,
            op => op,
        }
    }
}

/// Integers as the little-endian doubles that `struct.unpack` reads.
struct Blob(SmallVec<[[u8; size_of::<f64>()]; BLOB_NUMBERS]>);

impl Blob {
    fn new() -> Self {
        Self(SmallVec::new())
    }

    fn push(&mut self, numbers: &[u64]) {
        for &number in numbers {
            self.0.push((number as f64).to_le_bytes());
        }
    }

    fn as_bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    /// The numbers of an algorithm, in the order in which the scripts read them.
    fn push_limit(&mut self, limit: &Limit, hits: u32, bounds: Option<Bounds>) {
        self.push(&limit.kind().script_numbers(hits, bounds));
    }

    /// The term of the limit of the next charge. [te-1]
    fn push_term(&mut self, limit: &Limit, term: Term) {
        // The next charge has its key and its hits beside the numbers of its algorithm.
        let numbers = 2 + StateKind::numbers_of(limit.kind().number()).unwrap_or_default();
        let (length, replies) = (numbers * size_of::<f64>(), limit.kind().reply_count());
        let term: [u64; TERM_NUMBERS] = [term.from(), term.until(), length as u64, replies as u64];
        self.push(&term);
    }
}

/// What a list does with its charges: three letters for each.
struct Plan {
    letters: SmallVec<[u8; 48]>,
    has_long: bool,
}

impl Plan {
    fn new() -> Self {
        Self { letters: SmallVec::new(), has_long: false }
    }

    fn push(&mut self, limit: &Limit, op: Op, role: u8) {
        self.letters.extend_from_slice(&[b'0' + limit.kind().number(), b'0' + op as u8, role]);
        self.has_long |= limit.kind().format().is_list();
    }

    /// Says that the next charge is on a limit with a term. `role` is that of the charge.
    fn push_term(&mut self, role: u8) {
        self.letters.extend_from_slice(&[TERM, b'0', if role == ALONE { ALONE } else { b's' }]);
    }

    /// The script that decides it.
    fn script(&self) -> &'static Script {
        if self.has_long { &library::DECIDE_LONG } else { &library::DECIDE }
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
    if let [charge] = charges
        && charge.limit.term.is_none()
    {
        let hits = hits_of(charge.take);
        blob.push(&[Op::alone(charge, mode) as u64, u64::from(hits)]);
        blob.push_limit(charge.limit, hits, charge.bounds);
        blob.push(&[now]);
        let script = library::alone(charge.limit.kind());
        return Call::script_on(script, prefix, std::iter::once(charge.key), &[blob.as_bytes()])
            .mergeable(merge::mergeable(charge))
            .weighing(weight::of_charge(charge));
    }

    let mut plan = Plan::new();
    blob.push(&[now]);
    // Only a decision that can be denied, or may find no window of a calendar, has to be undone as a whole.
    let whole = mode == Mode::Atomic || charges.iter().any(|charge| charge.bounds.is_some());
    for (i, (charge, &place)) in charges.iter().zip(places).enumerate() {
        let role = match charge.role {
            _ if !whole => ALONE,
            _ if mode == Mode::Independent => b's',
            Role::Enforced => b'e',
            Role::Shadow => b's',
            Role::Quota => b'q',
        };
        let is_last = i + 1 == charges.len();
        let (op, hits) = (Op::of(charge, mode), hits_of(charge.take));
        if let Some(term) = &charge.limit.term {
            plan.push_term(role);
            blob.push_term(charge.limit, **term);
        }
        plan.push(charge.limit, op, if is_last { role.to_ascii_uppercase() } else { role });
        blob.push(&[u64::from(place) + 1, u64::from(hits)]);
        blob.push_limit(charge.limit, hits, charge.bounds);
    }
    let keys = firsts.iter().map(|&first| charges[usize::from(first)].key);
    let weight = weight::of_charges(charges);
    Call::script_on(plan.script(), prefix, keys, &[&plan.letters[..], blob.as_bytes()])
        .mergeable(merge::mergeable_together(charges))
        .weighing(weight)
}

/// The calls that take charges back: one decision in which each stands for itself, and one call for each log.
pub(crate) fn undo_calls(prefix: &str, undos: &[Undo<'_>], now: Option<Micros>) -> Vec<Call> {
    let now = now.unwrap_or(0);
    let mut calls = Vec::new();
    let mut keys: Vec<String> = Vec::new();
    let mut plan = Plan::new();
    let mut together = Blob::new();
    together.push(&[now]);
    let mut weight = 0;
    for undo in undos {
        let (key, receipt) = (format!("{prefix}{}", undo.key), undo.receipt);
        let hits = u64::from(receipt.hits);
        if undo.limit.kind().undo_script() == UndoScript::Log {
            let mut blob = Blob::new();
            blob.push(&[undo.limit.window().us(), receipt.mark, receipt.at, hits, now]);
            calls.push(
                Call::script(&library::UNDO_LOG, &[key], &[blob.as_bytes()]).weighing(weight::of_undo(undo.limit)),
            );
            continue;
        }
        let slot = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
            keys.push(key);
            keys.len() - 1
        });
        weight += weight::of_undo(undo.limit);
        let proof = undo.limit.kind().proof(receipt);
        plan.push(undo.limit, Op::Undo, ALONE);
        together.push(&[slot as u64 + 1, hits]);
        together.push_limit(undo.limit, receipt.hits, undo.bounds);
        together.push(&[proof]);
    }
    if !plan.letters.is_empty() {
        calls.push(Call::script(plan.script(), &keys, &[&plan.letters[..], together.as_bytes()]).weighing(weight));
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
        Format::Integer | Format::Doubles | Format::Counts => command("GET"),
        Format::SortedSet => {
            let mut command = command("ZRANGE");
            command.arg(0).arg(-1).arg("WITHSCORES");
            command
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::Arg;
    use weir_engine::Unit;

    use super::*;
    use crate::redis::transport::options::MERGE_MAX;

    #[test]
    fn a_run_that_costs_no_more_than_it_may_has_the_keys_of_its_calls_alone() {
        let limit = Limit::per_unit(10, Unit::Hour);
        let names: Vec<String> = (0..3 * MERGE_MAX).map(|i| format!("k{i}")).collect();
        let calls: Vec<Call> = names
            .chunks(3)
            .map(|names| {
                let charges = [0, 1, 2].map(|at| Charge::alone(&names[at], &limit, Take::Consume(1)));
                decide_call("", &charges, &[0, 1, 2], &[0, 1, 2], Mode::Atomic, None)
            })
            .collect();
        let merger = calls[0].mergeable.expect("it can share a run").merger;
        let (count, command) = merger.merge(&mut calls.iter(), MERGE_MAX).expect("a run");
        assert!((2..calls.len()).contains(&count), "{count} calls: the bound is not met");
        let arguments: Vec<&[u8]> = command
            .args_iter()
            .filter_map(|argument| if let Arg::Simple(bytes) = argument { Some(bytes) } else { None })
            .collect();
        // EVALSHA, the script, how many keys, the keys, the plan, the numbers.
        assert_eq!(arguments[2], (3 * count).to_string().as_bytes());
        let keys: Vec<&[u8]> = names[..3 * count].iter().map(String::as_bytes).collect();
        assert_eq!(arguments[3..arguments.len() - 2], keys);
        let cost = |calls: &[Call]| calls.iter().map(|call| call.weight + 3 * merge::KEY_COST).sum::<u32>();
        assert!(
            cost(&calls[..count]) <= merge::RUN_COST_MAX && cost(&calls[..=count]) > merge::RUN_COST_MAX,
            "{count} calls"
        );
    }
}
