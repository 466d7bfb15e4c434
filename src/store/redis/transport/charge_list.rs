//! The charges of a call, kept as keys, letters and numbers until they are sent; and calls whose charges share one command:
//! Redis pays once for starting a script, reading the clock and reading the states. lua/README.md describes the commands. See
//! docs/adr/0012-waiting-decisions-share-a-script-call.md.
//!
//! Each call keeps its own answer: the script makes the decisions in the order of the lists, and each finds what those before
//! it left. A list in a run can cost the others time, which [`MERGE_MAX`] and [`RUN_COST_MAX`] bound, and an error of the run.
//! If that error proves that nothing ran, each list is sent again alone.
//! Not here: what letters and numbers mean (scripts), when calls are sent (worker.rs), and which errors prove what
//! (base/error_class.rs).

use hashbrown::HashMap;
use redis::Value;
use smallvec::SmallVec;

use super::options::MERGE_MAX;
use super::script::Script;
use crate::redis::dial::command_buffer::CommandBuffer;

/// Lists with fewer charges than that together are sent as they are: they cost Redis no less in one command.
const CHARGES_MIN: usize = 4;

/// The most that lists in one command cost together, in about a microsecond of Redis each: what their charges weigh
/// (src/engine/weight.rs), and [`KEY_COST`] for each distinct key.
pub(crate) const RUN_COST_MAX: u32 = 100;

/// What a distinct key costs: it is read, and usually written.
pub(crate) const KEY_COST: u32 = 2;

/// Bytes of a double, in which all numbers travel. Each is an integer below 2^53, which a double holds exactly. [ar-2]
const NUMBER_BYTES: usize = size_of::<f64>();

/// The most numbers of one charge, so that a list of one allocates nothing but the text of its key.
const NUMBERS_OF_ONE: usize = 10;

/// The script that decides lists of charges, given whether some of their states can be long.
type ListScripts = fn(has_long: bool) -> &'static Script;

/// The charges of one call.
#[derive(Debug)]
pub(crate) struct ChargeList {
    /// The scripts that decide lists: for states of a few numbers, and if some can be long.
    scripts: ListScripts,
    /// Whether some of its states can be long.
    has_long: bool,
    /// The script that decides it alone, if that is the one for a single charge.
    script_of_one: Option<&'static Script>,
    /// Whether it may share a command with others.
    is_mergeable: bool,
    /// The most work that it can be for Redis; see src/engine/weight.rs.
    weight: u32,
    /// How many numbers its charges have in the reply.
    replies: usize,
    /// Replaces the server's clock where a test sets it; else 0.
    now: u64,
    /// The distinct keys, one after the other, and where each ends.
    keys: String,
    key_ends: SmallVec<[usize; 4]>,
    entries: SmallVec<[ListEntry; 4]>,
    numbers: SmallVec<[u64; NUMBERS_OF_ONE]>,
}

/// What a list has to know of a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedCharge {
    /// Its part of the plan.
    pub(crate) letters: [u8; 3],
    /// Which of the keys it is on, from 0.
    pub(crate) key: u16,
    /// How many numbers it has in the reply.
    pub(crate) replies: usize,
    /// What it weighs.
    pub(crate) weight: u32,
}

/// A charge, or what the script has to know before one.
#[derive(Clone, Copy, Debug)]
struct ListEntry {
    /// Its part of the plan.
    letters: [u8; 3],
    /// Which of the keys the charge is on.
    key: Option<u16>,
    /// How many of the numbers are its own.
    numbers: u8,
}

impl ChargeList {
    /// A list on these keys, which get `prefix`, without charges.
    pub(crate) fn new<'k>(
        scripts: ListScripts,
        has_long: bool,
        prefix: &str,
        keys: impl Iterator<Item = &'k str> + Clone,
        now: u64,
    ) -> Self {
        let bytes = keys.clone().map(|key| prefix.len() + key.len()).sum();
        let (mut text, mut key_ends) = (String::with_capacity(bytes), SmallVec::new());
        for key in keys {
            text.push_str(prefix);
            text.push_str(key);
            key_ends.push(text.len());
        }
        Self {
            scripts,
            has_long,
            script_of_one: None,
            is_mergeable: true,
            weight: 0,
            replies: 0,
            now,
            keys: text,
            key_ends,
            entries: SmallVec::new(),
            numbers: SmallVec::new(),
        }
    }

    /// The same list of one charge, or of the check of a row and the charge, which `script` decides when it does not share its command.
    pub(crate) fn alone_by(mut self, script: &'static Script) -> Self {
        self.script_of_one = Some(script);
        self
    }

    /// The same list, which never shares its command.
    pub(crate) fn unmergeable(mut self) -> Self {
        self.is_mergeable = false;
        self
    }

    /// Appends a charge with its numbers.
    pub(crate) fn push(&mut self, charge: ListedCharge, numbers: impl IntoIterator<Item = u64>) {
        self.push_entry(charge.letters, Some(charge.key), numbers);
        self.replies += charge.replies;
        self.weight = self.weight.saturating_add(charge.weight);
    }

    /// Appends what the script has to know of the next charge.
    pub(crate) fn push_before(&mut self, letters: [u8; 3], numbers: impl IntoIterator<Item = u64>) {
        self.push_entry(letters, None, numbers);
    }

    fn push_entry(&mut self, letters: [u8; 3], key: Option<u16>, numbers: impl IntoIterator<Item = u64>) {
        let before = self.numbers.len();
        self.numbers.extend(numbers);
        let numbers = u8::try_from(self.numbers.len() - before).expect("a charge has a few numbers");
        self.entries.push(ListEntry { letters, key, numbers });
    }

    pub(super) const fn weight(&self) -> u32 {
        self.weight
    }

    pub(super) const fn is_mergeable(&self) -> bool {
        self.is_mergeable
    }

    /// The script that decides it alone.
    pub(super) fn script_alone(&self) -> &'static Script {
        self.script_of_one.unwrap_or_else(|| (self.scripts)(self.has_long))
    }

    /// How many charges it has: the check of a row costs little beside the charge that depends on it.
    fn charges(&self) -> usize {
        match self.script_of_one {
            Some(_) => 1,
            None => self.entries.iter().filter(|entry| entry.key.is_some()).count(),
        }
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        let mut begin = 0;
        self.key_ends.iter().map(move |&end| &self.keys[std::mem::replace(&mut begin, end)..end])
    }

    /// Appends the command that decides it alone.
    pub(super) fn add_to(&self, request: &mut CommandBuffer) {
        match (self.script_of_one, &self.entries[..]) {
            (Some(script), [.., charge]) => {
                let (of_check, of_charge) = self.numbers.split_at(self.numbers.len() - usize::from(charge.numbers));
                request.begin(4 + self.key_ends.len());
                evalsha(request, script, self.key_ends.len());
                for key in self.keys() {
                    request.argument(key.as_bytes());
                }
                request.argument_by((1 + self.numbers.len() + 1) * NUMBER_BYTES, |bytes| {
                    push_number(bytes, u64::from(charge.letters[1] - b'0'));
                    for &number in of_charge.iter().chain([&self.now]).chain(of_check) {
                        push_number(bytes, number);
                    }
                });
            }
            _ => Run::alone(self).add_to(request),
        }
    }

    /// Appends the numbers of its charges, each behind the number of its key, from 1. `places` says which each key is.
    fn push_numbers(&self, places: &[u16], bytes: &mut Vec<u8>) {
        let mut numbers = self.numbers.iter();
        for entry in &self.entries {
            if let Some(key) = entry.key {
                push_number(bytes, u64::from(places[usize::from(key)]) + 1);
            }
            for &number in numbers.by_ref().take(entry.numbers.into()) {
                push_number(bytes, number);
            }
        }
    }

    /// Its answer out of the clock and the numbers of a run that are left: what it would get alone. None where there are too
    /// few.
    pub(super) fn answer_of(&self, clock: &Value, numbers: &mut impl Iterator<Item = Value>) -> Option<Value> {
        let mut own = Vec::with_capacity(1 + self.replies);
        own.push(clock.clone());
        own.extend(numbers.take(self.replies));
        (own.len() == 1 + self.replies).then_some(Value::Array(own))
    }
}

/// Lists that one command decides.
pub(crate) struct Run<'a> {
    lists: SmallVec<[&'a ChargeList; MERGE_MAX]>,
    /// The distinct keys of all.
    keys: SmallVec<[&'a str; 32]>,
    /// Which of them each key of each list is, from 0.
    places: SmallVec<[u16; 64]>,
}

impl<'a> Run<'a> {
    fn alone(list: &'a ChargeList) -> Self {
        let places = (0..).take(list.key_ends.len()).collect();
        Self { lists: SmallVec::from_iter([list]), keys: list.keys().collect(), places }
    }

    /// The first of these lists that one command can decide, at most `max`. None: the first goes alone.
    pub(crate) fn of(lists: impl Iterator<Item = &'a ChargeList>, max: usize) -> Option<Self> {
        let mut run = Self { lists: SmallVec::new(), keys: SmallVec::new(), places: SmallVec::new() };
        let mut known = HashMap::with_capacity(run.keys.inline_size());
        let (mut charges, mut weight) = (0, 0_u32);
        for list in lists.take(max) {
            // Tests set a clock, and one run has one.
            if run.lists.first().is_some_and(|first| first.now != list.now) {
                break;
            }
            let (keys_before, places_before) = (run.keys.len(), run.places.len());
            for key in list.keys() {
                let place = *known.entry(key).or_insert_with(|| {
                    run.keys.push(key);
                    run.keys.len() - 1
                });
                run.places.push(u16::try_from(place).expect("a run has a few keys"));
            }
            weight = weight.saturating_add(list.weight);
            let keys = u32::try_from(run.keys.len()).unwrap_or(u32::MAX);
            if weight.saturating_add(keys.saturating_mul(KEY_COST)) > RUN_COST_MAX {
                // The run is complete without this list.
                run.keys.truncate(keys_before);
                run.places.truncate(places_before);
                break;
            }
            charges += list.charges();
            run.lists.push(list);
        }
        (run.lists.len() > 1 && charges >= CHARGES_MIN).then_some(run)
    }

    /// How many lists it has.
    pub(crate) fn len(&self) -> usize {
        self.lists.len()
    }

    /// The distinct keys of all its lists.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> &[&'a str] {
        &self.keys
    }

    /// Appends its command.
    pub(super) fn add_to(&self, request: &mut CommandBuffer) {
        let (Some(first), Some(script)) = (self.lists.first(), script_of_run(self.lists.iter().copied())) else {
            return;
        };
        let entries = || self.lists.iter().flat_map(|list| &list.entries);
        request.begin(5 + self.keys.len());
        evalsha(request, script, self.keys.len());
        for key in &self.keys {
            request.argument(key.as_bytes());
        }
        request.argument_by(entries().map(|entry| entry.letters.len()).sum(), |bytes| {
            entries().for_each(|entry| bytes.extend(entry.letters));
        });
        let numbers: usize = entries().map(|entry| usize::from(entry.key.is_some()) + usize::from(entry.numbers)).sum();
        request.argument_by((1 + numbers) * NUMBER_BYTES, |bytes| {
            push_number(bytes, first.now);
            let mut places = &self.places[..];
            for list in &self.lists {
                let (own, others) = places.split_at(list.key_ends.len());
                places = others;
                list.push_numbers(own, bytes);
            }
        });
    }
}

/// The script that decides these lists together. None for no list.
pub(super) fn script_of_run<'a>(mut lists: impl Iterator<Item = &'a ChargeList>) -> Option<&'static Script> {
    let first = lists.next()?;
    Some((first.scripts)(first.has_long || lists.any(|list| list.has_long)))
}

/// The arguments of EVALSHA before the keys.
fn evalsha(request: &mut CommandBuffer, script: &Script, keys: usize) {
    request.argument(b"EVALSHA");
    request.argument(script.sha1.as_bytes());
    let digits = keys.to_string();
    request.argument(digits.as_bytes());
}

fn push_number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&(number as f64).to_le_bytes());
}
