//! Decisions of one charge that wait together, made by one run of lua/decide.lua: Redis pays once for starting a script,
//! reading the clock and reading the states. See docs/adr/0012-waiting-decisions-share-a-script-call.md.
//!
//! Each decision remains its own: with `atomic` 0 the script decides over each charge alone, in the order of the calls, and
//! a charge finds what those before it left. A merged decision can cost the others time, which
//! [`MERGE_MAX`] bounds, and an error of the run. If that error proves that nothing ran, each
//! is sent again alone.
//! Not here: when calls are sent, and which errors prove what (transport/worker.rs, base/error_class.rs).

use redis::{Arg, Cmd, Value};
use smallvec::SmallVec;

use super::kind::Kind;
use super::library;
use crate::engine::Charge;
use crate::store::redis::transport::call::{Call, Mergeable, Merger, Script};
use crate::store::redis::transport::options::MERGE_MAX;

/// Fewer calls than that are sent as they are: two in one run cost Redis no less than two runs.
const MERGE_MIN: usize = 4;

/// Bytes of a double, in which all numbers travel.
const NUMBER: usize = size_of::<f64>();

/// What a call's blob begins with, in numbers: op and hits.
const HEAD: usize = 2;

/// How the decision of this one charge can be merged with others. Not on a calendar, whose windows may not hold the
/// clock, which would be the answer to all; and not on a state that can be long.
pub(super) const fn mergeable(charge: &Charge<'_>) -> Option<Mergeable> {
    let kind = Kind::of(charge.limit);
    let replies = charge.limit.kind().reply_count();
    if charge.bounds.is_some() || charge.limit.kind().format().is_list() {
        None
    } else {
        Some(Mergeable { merger: &Decisions, kind: kind.digit(), replies })
    }
}

/// Merges decisions of one charge. The command of each is EVALSHA, the script, 1, the key and a blob: op, hits, the numbers
/// of its algorithm, now.
#[derive(Debug)]
struct Decisions;

struct Parts<'a> {
    how: Mergeable,
    key: &'a [u8],
    /// op and hits.
    head: &'a [u8],
    limit: &'a [u8],
    now: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(call: &'a Call) -> Option<Self> {
        let how = call.mergeable?;
        let mut arguments = call.command.args_iter().skip(3);
        let (Some(Arg::Simple(key)), Some(Arg::Simple(blob)), None) =
            (arguments.next(), arguments.next(), arguments.next())
        else {
            return None;
        };
        let (head, rest) = blob.split_at_checked(HEAD * NUMBER)?;
        let (limit, now) = rest.split_at_checked(rest.len().checked_sub(NUMBER)?)?;
        Some(Self { how, key, head, limit, now })
    }
}

impl Merger for Decisions {
    fn count(&self, calls: &mut dyn Iterator<Item = &Call>, max: usize) -> usize {
        let mut count = 0;
        let mut clock = None;
        for call in calls.take(max) {
            let Some(parts) = Parts::of(call) else { break };
            // Tests set a clock, and one run has one.
            if *clock.get_or_insert(parts.now) != parts.now {
                break;
            }
            count += 1;
        }
        if count < MERGE_MIN { 1 } else { count }
    }

    fn command(&self, calls: &mut dyn Iterator<Item = &Call>) -> Cmd {
        let mut keys = SmallVec::<[&[u8]; MERGE_MAX]>::new();
        let mut key_bytes = 0;
        let mut digits = SmallVec::<[u8; MERGE_MAX]>::new();
        let mut charges = Vec::with_capacity(MERGE_MAX * 10 * NUMBER);
        let mut now = [0; NUMBER];
        for parts in calls.filter_map(Parts::of) {
            let known = keys.iter().position(|key| *key == parts.key);
            let slot = known.unwrap_or_else(|| {
                keys.push(parts.key);
                key_bytes += parts.key.len();
                keys.len() - 1
            });
            digits.push(parts.how.kind);
            now.copy_from_slice(parts.now);
            // The number of its key; shadow, since the script decides over each alone; op and hits; no proof.
            push(&mut charges, &[slot + 1, 1]);
            charges.extend_from_slice(parts.head);
            push(&mut charges, &[0]);
            charges.extend_from_slice(parts.limit);
        }
        let mut blob = Vec::with_capacity(4 * NUMBER + charges.len());
        blob.extend_from_slice(&now);
        // Not atomic; how many; no hash and no sorted set among the states.
        push(&mut blob, &[0, digits.len(), 0]);
        blob.extend_from_slice(&charges);
        let sha1 = self.script().sha1();
        let mut command =
            Cmd::with_capacity(5 + keys.len(), sha1.len() + key_bytes + digits.len() + blob.len() + NUMBER);
        command.arg("EVALSHA").arg(sha1).arg(keys.len());
        for key in keys {
            command.arg(key);
        }
        command.arg(&digits[..]).arg(&blob[..]);
        command
    }

    fn script(&self) -> &'static Script {
        &library::DECIDE
    }

    /// The answer to a run is the clock, and then the numbers of each charge. That to a call is the clock and its numbers.
    fn split(&self, calls: &mut dyn Iterator<Item = &Call>, answer: Vec<Value>) -> SmallVec<[Value; MERGE_MAX]> {
        let mut numbers = answer.into_iter();
        let clock = numbers.next().unwrap_or(Value::Nil);
        calls.map(|call| answer_of(call, &clock, &mut numbers).unwrap_or(Value::Nil)).collect()
    }
}

/// The answer to one call out of the numbers that are left. None where there are too few.
fn answer_of(call: &Call, clock: &Value, numbers: &mut impl Iterator<Item = Value>) -> Option<Value> {
    let replies = call.mergeable?.replies;
    let mut own = Vec::with_capacity(1 + replies);
    own.push(clock.clone());
    own.extend(numbers.take(replies));
    (own.len() == 1 + replies).then_some(Value::Array(own))
}

fn push(blob: &mut Vec<u8>, numbers: &[usize]) {
    for &number in numbers {
        blob.extend_from_slice(&(number as f64).to_le_bytes());
    }
}
