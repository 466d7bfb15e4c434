//! Decisions that wait together, made by one run of the script `decide`: Redis pays once for starting a script,
//! reading the clock and reading the states. See docs/adr/0012-waiting-decisions-share-a-script-call.md.
//!
//! Each decision remains its own: the script makes them in the order of the calls, and a decision finds what those before
//! it left. A merged decision can cost the others time, which [`MERGE_MAX`] and [`RUN_COST_MAX`] bound, and an error of
//! the run. If that error proves that nothing ran, each is sent again alone.
//! Not here: when calls are sent, and which errors prove what (transport/worker.rs, base/error_class.rs).

use hashbrown::HashMap;
use redis::{Arg, Cmd, Value};
use smallvec::SmallVec;
use weir_engine::{Charge, StateKind};

use super::{ALONE, TERM, TERM_NUMBERS, library};
use crate::redis::transport::call::{Call, Mergeable, Merger, Script};
use crate::redis::transport::options::MERGE_MAX;

/// Calls with fewer charges than that together are sent as they are: they cost Redis no less in one run.
const CHARGES_MIN: u16 = 4;

/// The most that calls in one run cost together, in about a microsecond of Redis each: what their charges weigh
/// (src/engine/weight.rs), and [`KEY_COST`] for each distinct key.
pub(super) const RUN_COST_MAX: u32 = 100;

/// What a distinct key costs a run: it is read, and usually written.
pub(super) const KEY_COST: u32 = 2;

/// The kind of a call of several charges.
const SEVERAL: u8 = 0;

/// The letters of a charge in a plan.
const LETTERS: usize = 3;

/// The room that a list begins with: for so many charges of so many numbers each, and so many distinct keys.
const CHARGES_USUAL: usize = 64;
const NUMBERS_USUAL: usize = 6;
const KEYS_USUAL: usize = 32;

/// Bytes of a double, in which all numbers travel.
const NUMBER: usize = size_of::<f64>();

/// How the decision of this one charge, whose limit has no term, can be merged with others. Not on a state that can be long.
pub(super) fn mergeable(charge: &Charge<'_>) -> Option<Mergeable> {
    let kind = charge.limit.kind();
    let how = Mergeable { merger: &Decisions, kind: b'0' + kind.number(), charges: 1, replies: kind.reply_count() };
    (!kind.format().is_list()).then_some(how)
}

/// The same for a decision of several charges.
pub(super) fn mergeable_together(charges: &[Charge<'_>]) -> Option<Mergeable> {
    let mut how = Mergeable { merger: &Decisions, kind: SEVERAL, charges: 0, replies: 0 };
    for charge in charges {
        let one = mergeable(charge)?;
        how.charges += 1;
        how.replies += one.replies;
    }
    Some(how)
}

/// Merges decisions. The command of one of a single charge is EVALSHA, the script, 1, the key and a blob: op, hits, the
/// numbers of its algorithm, now. That of several charges is a list already: EVALSHA, the script, how many keys, the keys,
/// the plan, and a blob: now, and for each charge the number of its key, hits and the numbers of its algorithm.
#[derive(Debug)]
struct Decisions;

/// A call taken apart.
struct Parts<'a> {
    how: Mergeable,
    /// The command of the call from its keys on.
    keys: SmallVec<[&'a [u8]; 8]>,
    /// Empty for one of a single charge.
    plan: &'a [u8],
    now: &'a [u8],
    /// The charges without now.
    charges: &'a [u8],
}

impl<'a> Parts<'a> {
    fn of(call: &'a Call) -> Option<Self> {
        let how = call.mergeable?;
        let mut arguments = SmallVec::<[&[u8]; 8]>::new();
        for argument in call.command.args_iter().skip(3) {
            let Arg::Simple(argument) = argument else { return None };
            arguments.push(argument);
        }
        let blob = arguments.pop()?;
        if how.kind == SEVERAL {
            let plan = arguments.pop()?;
            let (now, charges) = blob.split_at_checked(NUMBER)?;
            return Some(Self { how, keys: arguments, plan, now, charges });
        }
        let (charges, now) = blob.split_at_checked(blob.len().checked_sub(NUMBER)?)?;
        Some(Self { how, keys: arguments, plan: &[], now, charges })
    }
}

/// A list of charges that grows.
struct List<'a> {
    keys: SmallVec<[&'a [u8]; KEYS_USUAL]>,
    places: HashMap<&'a [u8], usize>,
    plan: SmallVec<[u8; LETTERS * CHARGES_USUAL]>,
    blob: Vec<u8>,
}

impl<'a> List<'a> {
    /// An empty one, at a time that is set at the end.
    fn new() -> Self {
        let mut blob = Vec::with_capacity(CHARGES_USUAL * NUMBERS_USUAL * NUMBER);
        blob.extend_from_slice(&[0; NUMBER]);
        Self { keys: SmallVec::new(), places: HashMap::with_capacity(KEYS_USUAL), plan: SmallVec::new(), blob }
    }

    /// The number of the key, from 1.
    fn place(&mut self, key: &'a [u8]) -> usize {
        *self.places.entry(key).or_insert_with(|| {
            self.keys.push(key);
            self.keys.len()
        })
    }

    fn push_number(&mut self, number: usize) {
        self.blob.extend_from_slice(&(number as f64).to_le_bytes());
    }

    /// The command that decides it.
    fn command(self, script: &Script) -> Cmd {
        let sha1 = script.sha1();
        let key_bytes: usize = self.keys.iter().map(|key| key.len()).sum();
        let mut command = Cmd::with_capacity(
            5 + self.keys.len(),
            sha1.len() + key_bytes + self.plan.len() + self.blob.len() + NUMBER,
        );
        command.arg("EVALSHA").arg(sha1).arg(self.keys.len());
        for key in self.keys {
            command.arg(key);
        }
        command.arg(&self.plan[..]).arg(&self.blob[..]);
        command
    }

    /// Adds the charges of a call whose keys have these places. None where the call has not the numbers that its plan names:
    /// nothing of it can be merged.
    fn add(&mut self, parts: &Parts<'a>, places: &[usize]) -> Option<()> {
        if parts.how.kind != SEVERAL {
            let (op, rest) = parts.charges.split_first_chunk::<NUMBER>()?;
            let op = b'0' + u8::try_from(small(*op)).ok()?;
            self.plan.extend_from_slice(&[parts.how.kind, op, ALONE]);
            self.push_number(*places.first()?);
            self.blob.extend_from_slice(rest);
            return Some(());
        }
        self.plan.extend_from_slice(parts.plan);
        let mut charges = parts.charges;
        for letters in parts.plan.as_chunks::<LETTERS>().0 {
            if letters[0] == TERM {
                let (term, others) = charges.split_at_checked(TERM_NUMBERS * NUMBER)?;
                self.blob.extend_from_slice(term);
                charges = others;
                continue;
            }
            let (key, rest) = charges.split_first_chunk::<NUMBER>()?;
            let count = StateKind::numbers_of(letters[0].checked_sub(b'0')?)?;
            let (numbers, others) = rest.split_at_checked((1 + count) * NUMBER)?;
            self.push_number(*places.get(usize::from(small(*key)).checked_sub(1)?)?);
            self.blob.extend_from_slice(numbers);
            charges = others;
        }
        Some(())
    }
}

impl Merger for Decisions {
    fn merge(&self, calls: &mut dyn Iterator<Item = &Call>, max: usize) -> Option<(usize, Cmd)> {
        let mut list = List::new();
        let mut clock = None;
        let (mut count, mut charges, mut weight) = (0, 0, 0);
        for call in calls.take(max) {
            let Some(parts) = Parts::of(call) else { break };
            // Tests set a clock, and one run has one.
            if *clock.get_or_insert(parts.now) != parts.now {
                break;
            }
            weight += call.weight;
            let known = list.keys.len();
            let places: SmallVec<[usize; 8]> = parts.keys.iter().map(|key| list.place(key)).collect();
            let keys = u32::try_from(list.keys.len()).unwrap_or(u32::MAX);
            if weight.saturating_add(keys.saturating_mul(KEY_COST)) > RUN_COST_MAX {
                // The list is complete without this call.
                list.keys.truncate(known);
                break;
            }
            list.add(&parts, &places)?;
            charges += parts.how.charges;
            count += 1;
        }
        if count < 2 || charges < CHARGES_MIN {
            return None;
        }
        list.blob[..NUMBER].copy_from_slice(clock?);
        Some((count, list.command(self.script())))
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

/// A number of at most 65,535 out of a double that weir wrote.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is a small whole number")]
fn small(double: [u8; NUMBER]) -> u16 {
    f64::from_le_bytes(double) as u16
}
