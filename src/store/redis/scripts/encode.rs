//! The arguments of scripts: encodes charges as letters and numbers.
//!
//! lua/README.md describes the format for readers of the scripts. Not here: how arguments are written
//! (transport/charge_list.rs), how replies are read (decode.rs), and what a decision is (engine).

use redis::Cmd;
use smallvec::SmallVec;
use weir_engine::algorithm::{StoredFormat, UndoScript};
use weir_engine::{Bounds, Charge, Limit, Micros, Mode, Operation, Receipt, Role, StateKind, Term, weight};

use super::library;
use crate::redis::transport::call::Call;
use crate::redis::transport::charge_list::{ChargeList, ListedCharge};
use crate::{Before, Undo};

/// The role of a charge that is a whole decision.
const ALONE: u8 = b'-';
/// The letter, in the position of the algorithm's letter, of a term for the next charge's limit.
const TERM: u8 = b'0';
/// One number is compared.
const ROW_VERSION_WEIGHT: u32 = 1;

/// The script's operation on a charge: the numbers are explained in lua/README.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Peek = 0,
    Consume = 1,
    ConsumeCounted = 2,
    ConsumeOrDrain = 3,
    Report = 4,
    Refund = 5,
    PeekPast = 6,
    Undo = 7,
    DrainIfDenied = 8,
}

impl Op {
    fn of(charge: &Charge<'_>, mode: Mode) -> Self {
        match (charge.operation, mode) {
            (Operation::Peek, Mode::Atomic) => Self::Peek,
            (Operation::Peek, Mode::Independent) => Self::PeekPast,
            (Operation::Refund(_), _) => Self::Refund,
            (Operation::Report(_), _) => Self::Report,
            (Operation::Consume(_), Mode::Independent) if charge.limit.kind().counts_denied() => Self::ConsumeCounted,
            (Operation::Consume(_), Mode::Independent) if charge.limit.drain => Self::ConsumeOrDrain,
            (Operation::Consume(_), Mode::Atomic) if charge.limit.drain => Self::DrainIfDenied,
            (Operation::Consume(_), _) => Self::Consume,
        }
    }

    /// The operation of a charge that is the whole decision: its own verdict is the decision's.
    fn alone(charge: &Charge<'_>, mode: Mode) -> Self {
        match Self::of(charge, mode) {
            Self::PeekPast => Self::Peek,
            Self::DrainIfDenied if charge.role == Role::Shadow => Self::Consume,
            Self::DrainIfDenied => Self::ConsumeOrDrain,
            op => op,
        }
    }
}

/// The call of a decision, and of what comes `before` it. `now` replaces the server's clock in tests.
pub(crate) fn decide_call(
    prefix: &str,
    before: Before<'_>,
    charges: &[Charge<'_>],
    places: &[u16],
    firsts: &[u16],
    mode: Mode,
    now: Option<Micros>,
) -> Call {
    let Before { row_versions, given_back } = before;
    let keys =
        firsts.iter().map(|&first| charges[usize::from(first)].key).chain(row_versions.iter().map(|row| row.key));
    let versions = row_versions.iter().map(|row| row.version);
    let mut list = list_on(prefix, keys, charges.iter().map(|charge| charge.limit), now)
        .if_versions_are(versions, ROW_VERSION_WEIGHT);
    // Merging saves nothing for decisions on long states: most of their cost is the state.
    if charges.iter().any(|charge| has_long_state(charge.limit)) {
        list = list.unmergeable();
    }
    if let ([charge], [] | [_], []) = (charges, row_versions, given_back)
        && charge.limit.term.is_none()
    {
        push_charge(&mut list, charge, Op::alone(charge, mode), ALONE, 0);
        return Call::charges(list.alone_by(library::alone(charge.limit.kind())));
    }
    // A decision is undone as a whole only if it can be denied, or its calendar windows can be outdated. The hits to give back
    // are a part of the whole, and stay given back if it is denied.
    let whole = mode == Mode::Atomic || !given_back.is_empty() || charges.iter().any(|charge| charge.bounds.is_some());
    for back in given_back {
        let at = usize::from(back.charge);
        push_undo(&mut list, charges[at].limit, back.receipt, charges[at].bounds, b's', places[at]);
    }
    for (i, (charge, &place)) in charges.iter().zip(places).enumerate() {
        let role = match charge.role {
            _ if !whole => ALONE,
            _ if mode == Mode::Independent => b's',
            Role::Enforced => b'e',
            Role::Shadow => b's',
            Role::Quota => b'q',
        };
        if let Some(term) = &charge.limit.term {
            push_term(&mut list, charge.limit, **term, if whole { b's' } else { ALONE });
        }
        let is_last = i + 1 == charges.len();
        push_charge(
            &mut list,
            charge,
            Op::of(charge, mode),
            if is_last { role.to_ascii_uppercase() } else { role },
            place,
        );
    }
    Call::charges(list)
}

/// Whether its charges need separate undo calls: an undo rewrites all later charges of the log.
pub(crate) fn is_undone_alone(limit: &Limit) -> bool {
    limit.kind().undo_script() == UndoScript::Log
}

/// The call that takes charges back, each as a separate decision; or the one charge of a log.
pub(crate) fn undo_call(prefix: &str, undos: &[Undo<'_>], now: Option<Micros>) -> Call {
    if let [undo] = undos
        && is_undone_alone(undo.limit)
    {
        let receipt = undo.receipt;
        let numbers = [undo.limit.window().us(), receipt.mark, receipt.at, u64::from(receipt.hits), now.unwrap_or(0)];
        let bytes = numbers.map(|number| (number as f64).to_le_bytes());
        let call = Call::script(&library::UNDO_LOG, &[format!("{prefix}{}", undo.key)], &[bytes.as_flattened()]);
        return call.weighing(weight::of_undo(undo.limit));
    }
    let mut keys = SmallVec::<[&str; 4]>::new();
    let places = undos.iter().map(|undo| {
        keys.iter().position(|key| *key == undo.key).unwrap_or_else(|| {
            keys.push(undo.key);
            keys.len() - 1
        })
    });
    let places: SmallVec<[usize; 4]> = places.collect();
    let mut list = list_on(prefix, keys.iter().copied(), undos.iter().map(|undo| undo.limit), now);
    for (undo, place) in undos.iter().zip(places) {
        let key = u16::try_from(place).expect("a request has a few hundred charges");
        push_undo(&mut list, undo.limit, undo.receipt, undo.bounds, ALONE, key);
    }
    Call::charges(list)
}

/// A list on these distinct keys, for charges on these limits.
fn list_on<'a>(
    prefix: &str,
    keys: impl Iterator<Item = &'a str> + Clone,
    mut limits: impl Iterator<Item = &'a Limit>,
    now: Option<Micros>,
) -> ChargeList {
    let has_long = limits.any(has_long_state);
    ChargeList::new(library::of_lists, has_long, prefix, keys, now.unwrap_or(0))
}

fn has_long_state(limit: &Limit) -> bool {
    limit.kind().format().is_list()
}

fn push_charge(list: &mut ChargeList, charge: &Charge<'_>, op: Op, role: u8, key: u16) {
    let hits = hits_of(charge.operation);
    let one = listed(charge.limit, op, role, key, weight::of_charge(charge));
    list.push(one, numbers(charge.limit, hits, charge.bounds));
}

/// Appends the undo of a charge on the key. [un-1]
fn push_undo(list: &mut ChargeList, limit: &Limit, receipt: Receipt, bounds: Option<Bounds>, role: u8, key: u16) {
    let undo = listed(limit, Op::Undo, role, key, weight::of_undo(limit));
    list.push(undo, numbers(limit, receipt.hits, bounds).chain([limit.kind().proof(receipt)]));
}

/// Appends the term of the next charge's limit. [te-1]
fn push_term(list: &mut ChargeList, limit: &Limit, term: Term, role: u8) {
    let kind = limit.kind();
    // The next charge has its key and its hits in addition to the numbers of its algorithm.
    let numbers = 2 + StateKind::numbers_of(kind.number()).unwrap_or_default();
    let (length, replies) = (numbers * size_of::<f64>(), kind.reply_count());
    list.push_before([TERM, b'0', role], [term.from(), term.until(), length as u64, replies as u64]);
}

fn listed(limit: &Limit, op: Op, role: u8, key: u16, weight: u32) -> ListedCharge {
    let kind = limit.kind();
    ListedCharge { letters: [b'0' + kind.number(), b'0' + op as u8, role], key, replies: kind.reply_count(), weight }
}

/// The numbers of a charge: its hits, and the numbers that its algorithm reads.
fn numbers(limit: &Limit, hits: u32, bounds: Option<Bounds>) -> impl Iterator<Item = u64> {
    std::iter::once(u64::from(hits)).chain(limit.kind().script_numbers(hits, bounds))
}

/// The hits that a script uses: 1 for a peek.
fn hits_of(operation: Operation) -> u32 {
    match operation {
        Operation::Consume(hits) | Operation::Refund(hits) | Operation::Report(hits) => hits,
        Operation::Peek => 1,
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
        StoredFormat::Integer | StoredFormat::Doubles | StoredFormat::Counts => command("GET"),
        StoredFormat::SortedSet => {
            let mut command = command("ZRANGE");
            command.arg(0).arg(-1).arg("WITHSCORES");
            command
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_engine::Unit;

    use super::*;
    use crate::redis::transport::charge_list::{KEY_COST, RUN_COST_MAX, Run};
    use crate::redis::transport::options::MERGE_MAX;

    #[test]
    fn a_run_that_costs_no_more_than_it_may_has_the_keys_of_its_calls_alone() {
        let limit = Limit::per_unit(10, Unit::Hour);
        let names: Vec<String> = (0..3 * MERGE_MAX).map(|i| format!("k{i}")).collect();
        let calls: Vec<Call> = names
            .chunks(3)
            .map(|names| {
                let charges = [0, 1, 2].map(|at| Charge::alone(&names[at], &limit, Operation::Consume(1)));
                decide_call("", Before::default(), &charges, &[0, 1, 2], &[0, 1, 2], Mode::Atomic, None)
            })
            .collect();
        let lists = calls.iter().map(|call| call.mergeable().expect("it can share a run"));
        let run = Run::of(lists, MERGE_MAX).expect("a run");
        let count = run.len();
        assert!((2..calls.len()).contains(&count), "{count} calls: the bound is not met");
        assert_eq!(run.keys(), &names[..3 * count]);
        let cost = |calls: &[Call]| calls.iter().map(|call| call.weight + 3 * KEY_COST).sum::<u32>();
        assert!(cost(&calls[..count]) <= RUN_COST_MAX && cost(&calls[..=count]) > RUN_COST_MAX, "{count} calls");
    }
}
