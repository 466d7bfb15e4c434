//! Decisions of one charge that wait together, made by one run of lua/decide.lua: Redis pays once for starting a script,
//! reading the clock and reading the states. See docs/adr/0012-waiting-decisions-share-a-script-call.md.
//!
//! Each decision remains its own: with `atomic` 0 the script lets each charge stand for itself, in the order of the
//! calls, and a charge finds what those before it left. What one decision may cost the others is time, which
//! [`MERGE_MAX`] bounds, and an error of the run. Where that proves that nothing ran, they are sent again alone.
//! Not here: when calls are sent, and which errors prove what (pipeline.rs, refusal.rs).

use redis::{Arg, Cmd, Value};
use smallvec::SmallVec;

use super::call::Call;
use super::pipeline::Script;
use super::wire;

/// Decisions in one run by default. Redis serves nobody else meanwhile: some 40 us, less than one request of 64 limits
/// takes. Beyond 16 there is hardly anything to be saved.
pub const MERGE_MAX: usize = 16;

/// The most that a run may be set to make: some 150 us.
pub const MERGE_MAX_MAX: usize = 64;

/// Fewer than that are sent as they are: two in one run cost Redis no less than two runs.
pub(super) const MERGE_MIN: usize = 4;

/// Bytes of a double, which all numbers travel as.
const NUMBER: usize = size_of::<f64>();

/// What a call's blob begins with, in numbers: op and hits.
const HEAD: usize = 2;

/// What has to be known of a call to make it together with others. Its command is EVALSHA, the script, 1, the key and a
/// blob: op, hits, the numbers of its algorithm, now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mergeable {
    /// Its algorithm, as lua/decide.lua reads it.
    pub(super) digit: u8,
    /// How many numbers it is answered, after the clock.
    pub(super) replies: usize,
}

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

/// How many of the calls, from the first on, are made by one run; 1 means that the first goes alone.
pub(super) fn count<'a>(calls: impl Iterator<Item = &'a Call>, most: usize) -> usize {
    let mut count = 0;
    let mut clock = None;
    for call in calls.take(most) {
        let Some(parts) = Parts::of(call) else { break };
        // Tests set a clock, and one run has one.
        if *clock.get_or_insert(parts.now) != parts.now {
            break;
        }
        count += 1;
    }
    if count < MERGE_MIN { 1 } else { count }
}

/// The script that makes them.
pub(super) fn script() -> &'static Script {
    &wire::DECIDE
}

/// The command that makes these calls, as many as [`count`] said.
pub(super) fn command<'a>(calls: impl Iterator<Item = &'a Call>) -> Cmd {
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
        digits.push(parts.how.digit);
        now.copy_from_slice(parts.now);
        // Its place among the keys; shadow, for each stands for itself; op and hits; no proof.
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
    let sha1 = script().sha1();
    let mut command = Cmd::with_capacity(5 + keys.len(), sha1.len() + key_bytes + digits.len() + blob.len() + NUMBER);
    command.arg("EVALSHA").arg(sha1).arg(keys.len());
    for key in keys {
        command.arg(key);
    }
    command.arg(&digits[..]).arg(&blob[..]);
    command
}

fn push(blob: &mut Vec<u8>, numbers: &[usize]) {
    for &number in numbers {
        blob.extend_from_slice(&(number as f64).to_le_bytes());
    }
}

/// Takes the answer of one call off what the whole run was answered: the clock, and then `numbers`. None where too few
/// are left.
pub(super) fn take_answer(call: &Call, clock: &Value, numbers: &mut impl Iterator<Item = Value>) -> Option<Value> {
    let replies = call.mergeable?.replies;
    let mut own = Vec::with_capacity(1 + replies);
    own.push(clock.clone());
    own.extend(numbers.take(replies));
    (own.len() == 1 + replies).then_some(Value::Array(own))
}
