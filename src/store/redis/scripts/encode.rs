//! The arguments of scripts: encodes charges as letters and numbers.
//!
//! lua/README.md describes the format for readers of the scripts. Not here: how arguments are written
//! (transport/charge_list.rs), how replies are read (decode.rs), and what a decision is (engine).

use redis::Cmd;
use weir_engine::algorithm::{StoredFormat, UndoScript};
use weir_engine::decision::indices_of;
use weir_engine::{Bounds, Charge, Limit, Micros, Mode, Operation, Role, weight};

use super::decode::COUNTS_MAX;
use super::library;
use crate::redis::transport::call::Call;
use crate::redis::transport::charge_list::{ChargeList, ListedCharge};
use crate::{Before, Undo, key_at};

/// The role of a charge that is a whole decision.
const ALONE: u8 = b'-';
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
    let Before { row_versions, undos } = before;
    let keys_of_states = firsts.iter().map(|&first| key_at(charges, undos, first.into()));
    let keys = keys_of_states.chain(row_versions.iter().map(|row| row.key));
    let versions = row_versions.iter().map(|row| row.version);
    let mut list = list_on(
        prefix,
        keys,
        charges.iter().map(|charge| charge.limit).chain(undos.iter().map(|undo| undo.limit)),
        now,
    )
    .if_versions_are(versions, ROW_VERSION_WEIGHT);
    // Merging saves nothing for decisions on long states: most of their cost is the state.
    if charges.iter().any(|charge| has_long_state(charge.limit)) {
        list = list.unmergeable();
    }
    if let ([charge], [] | [_], []) = (charges, row_versions, undos) {
        push_charge(&mut list, charge, Op::alone(charge, mode), ALONE, 0);
        return Call::charges(list.alone_by(library::alone(charge.limit.kind())));
    }
    // A decision is undone as a whole only if it can be denied, or its calendar windows can be outdated. The charges to take
    // back are a part of the whole, and stay taken back if it is denied.
    let whole = mode == Mode::Atomic || !undos.is_empty() || charges.iter().any(|charge| charge.bounds.is_some());
    for (i, (undo, &place)) in undos.iter().zip(&places[charges.len()..]).enumerate() {
        let is_last = charges.is_empty() && i + 1 == undos.len();
        push_undo(&mut list, undo, if is_last { b'S' } else { b's' }, place);
    }
    for (i, (charge, &place)) in charges.iter().zip(places).enumerate() {
        let role = match charge.role {
            _ if !whole => ALONE,
            _ if mode == Mode::Independent => b's',
            Role::Enforced => b'e',
            Role::Shadow => b's',
            Role::Quota => b'q',
        };
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
    let (places, firsts) = indices_of(undos.len(), |i| undos[i].key);
    let keys = firsts.iter().map(|&first| undos[usize::from(first)].key);
    let mut list = list_on(prefix, keys, undos.iter().map(|undo| undo.limit), now);
    for (undo, place) in undos.iter().zip(places) {
        push_undo(&mut list, undo, ALONE, place);
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
fn push_undo(list: &mut ChargeList, undo: &Undo<'_>, role: u8, key: u16) {
    let Undo { limit, receipt, bounds, .. } = *undo;
    let one = listed(limit, Op::Undo, role, key, weight::of_undo(limit));
    list.push(one, numbers(limit, receipt.hits, bounds).chain([limit.kind().proof(receipt)]));
}

/// The longest text of a state, in bytes: the counts of `sliding_window`.
const STATE_BYTES_MAX: u64 = 1 + 8 + 4 * COUNTS_MAX;

/// How many charges of a log are read, from the newest on: all that can count.
const LOG_CHARGES_READ: i64 = 10_000;

fn listed(limit: &Limit, op: Op, role: u8, key: u16, weight: u32) -> ListedCharge {
    let kind = limit.kind();
    ListedCharge { letters: [b'0' + kind.number(), b'0' + op as u8, role], key, replies: kind.reply_count(), weight }
}

/// The numbers of a charge: its hits, and the numbers that its algorithm reads.
fn numbers(limit: &Limit, hits: u32, bounds: Option<Bounds>) -> impl Iterator<Item = u64> {
    std::iter::once(u64::from(hits)).chain(limit.kind().within(bounds).script_numbers(hits))
}

/// The hits that a script uses: 1 for a peek.
fn hits_of(operation: Operation) -> u32 {
    match operation {
        Operation::Consume(hits) | Operation::Refund(hits) | Operation::Report(hits) => hits,
        Operation::Peek => 1,
    }
}

/// The command that reads a stored state. It reads no more bytes of a text, and no more charges of a log, than a state can
/// have and one more: an answer of any length would break the connection for all callers.
pub(crate) fn peek_command(limit: &Limit, key: &str) -> Cmd {
    let command = |name| {
        let mut command = redis::cmd(name);
        command.arg(key);
        command
    };
    match limit.kind().format() {
        StoredFormat::Integer | StoredFormat::Doubles | StoredFormat::Counts => {
            let mut command = command("GETRANGE");
            command.arg(0).arg(STATE_BYTES_MAX);
            command
        }
        StoredFormat::SortedSet => {
            let mut command = command("ZRANGE");
            command.arg(-LOG_CHARGES_READ).arg(-1).arg("WITHSCORES");
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
