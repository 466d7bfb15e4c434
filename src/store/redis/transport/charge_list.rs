//! The charges of a call, kept as keys, letters and numbers until they are sent; and runs of calls whose charges share
//! one command. In a run, Redis starts a script, reads the clock and reads the states only once. lua/README.md
//! describes the commands. See docs/adr/0012-waiting-decisions-share-a-script-call.md.
//!
//! Each call keeps its own answer: the script makes the decisions in the order of the lists, and each decision sees the
//! states after the ones before it. A list in a run can cost the others only time, which [`MERGE_MAX`] and
//! [`RUN_COST_MAX`] bound, or an error of the run, or the versions of rows that have changed. If the error proves that
//! nothing ran, or if a row has changed, each list is sent again separately. Not here: what letters and numbers mean
//! (scripts), when calls are sent (worker.rs), and which errors prove what (base/error_class.rs).

use hashbrown::HashMap;
use redis::Value;
use smallvec::SmallVec;

use super::options::MERGE_MAX;
use super::script::Script;
use crate::redis::dial::command_buffer::CommandBuffer;

/// Lists with fewer charges in total are sent separately: one command would not cost Redis less.
const CHARGES_MIN: usize = 4;

/// The maximum total cost of the lists in one command, in about a microsecond of Redis each: the weights of their
/// charges (src/engine/weight.rs), and [`KEY_COST`] for each distinct key.
pub(crate) const RUN_COST_MAX: u32 = 100;

/// The cost of a distinct key: it is read, and usually written.
pub(crate) const KEY_COST: u32 = 2;

/// Bytes of a double, the format of all numbers. Each is an integer below 2^53, which a double holds exactly. [ar-2]
const NUMBER_BYTES: usize = size_of::<f64>();

/// The most numbers of one charge. A list of one charge allocates only the text of its key.
const NUMBERS_OF_ONE: usize = 10;

/// The script that decides lists of charges. `has_long`: whether some of their states can be long.
type ListScripts = fn(has_long: bool) -> &'static Script;

/// The charges of one call.
pub(crate) struct ChargeList {
    /// The scripts that decide lists: for states of a few numbers, and for states that can be long.
    scripts: ListScripts,
    /// Whether some of its states can be long.
    has_long: bool,
    /// The script that decides the list separately, if it has a single charge.
    script_of_one: Option<&'static Script>,
    /// Whether it may share a command with others.
    is_mergeable: bool,
    /// The most work that Redis can need for it; see src/engine/weight.rs.
    weight: u32,
    /// How many numbers the reply has for its charges.
    replies: usize,
    /// Replaces the server's clock in tests; 0: the server's clock.
    now: u64,
    /// The distinct keys, one after the other, and the end of each. The last ones are those of rows.
    keys: String,
    key_ends: SmallVec<[usize; 4]>,
    /// The version that each row must have: otherwise the script decides nothing. [rw-2]
    row_versions: SmallVec<[u64; 1]>,
    entries: SmallVec<[ListEntry; 4]>,
    numbers: SmallVec<[u64; NUMBERS_OF_ONE]>,
}

/// The properties of a charge that a list needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedCharge {
    /// Its letters in the plan argument.
    pub(crate) letters: [u8; 3],
    /// The index of its key, from 0.
    pub(crate) key: u16,
    /// How many numbers the reply has for it.
    pub(crate) replies: usize,
    pub(crate) weight: u32,
}

/// A charge of a list.
#[derive(Clone, Copy, Debug)]
struct ListEntry {
    /// Its letters in the plan argument.
    letters: [u8; 3],
    /// The index of the charge's key.
    key: u16,
    /// How many of the numbers belong to it.
    numbers: u8,
}

impl ChargeList {
    /// An empty list on these keys with `prefix`.
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
            row_versions: SmallVec::new(),
            entries: SmallVec::new(),
            numbers: SmallVec::new(),
        }
    }

    /// The same list, for rows of these versions at the last keys.
    pub(crate) fn if_versions_are(mut self, versions: impl Iterator<Item = u64>, weight: u32) -> Self {
        for version in versions {
            self.row_versions.push(version);
            self.weight = self.weight.saturating_add(weight);
        }
        self
    }

    /// The same list, with the `script` that decides its one charge separately.
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
        let before = self.numbers.len();
        self.numbers.extend(numbers);
        let numbers = u8::try_from(self.numbers.len() - before).expect("a charge has a few numbers");
        self.entries.push(ListEntry { letters: charge.letters, key: charge.key, numbers });
        self.replies += charge.replies;
        self.weight = self.weight.saturating_add(charge.weight);
    }

    pub(super) const fn weight(&self) -> u32 {
        self.weight
    }

    pub(super) const fn is_mergeable(&self) -> bool {
        self.is_mergeable
    }

    /// The script that decides the list separately.
    pub(super) fn script_alone(&self) -> &'static Script {
        self.script_of_one.unwrap_or_else(|| (self.scripts)(self.has_long))
    }

    /// How many charges it has. A list that only compares rows counts as one.
    fn charges(&self) -> usize {
        self.entries.len().max(1)
    }

    fn keys_at(&self, places: std::ops::Range<usize>) -> impl Iterator<Item = &str> {
        let mut begin = places.start.checked_sub(1).map_or(0, |before| self.key_ends[before]);
        self.key_ends[places].iter().map(move |&end| &self.keys[std::mem::replace(&mut begin, end)..end])
    }

    fn state_keys(&self) -> impl Iterator<Item = &str> {
        self.keys_at(0..self.state_count())
    }

    /// The key of each row, and the version that it must have.
    fn rows(&self) -> impl Iterator<Item = (&str, u64)> {
        self.keys_at(self.state_count()..self.key_ends.len()).zip(self.row_versions.iter().copied())
    }

    fn state_count(&self) -> usize {
        self.key_ends.len() - self.row_versions.len()
    }

    /// Appends the command that decides the list separately.
    pub(super) fn add_to(&self, request: &mut CommandBuffer) {
        match (self.script_of_one, &self.entries[..]) {
            (Some(script), [charge]) => {
                let numbers = self.numbers.iter().chain([&self.now]).chain(&self.row_versions);
                request.begin(4 + self.key_ends.len());
                evalsha(request, script, self.key_ends.len());
                for key in self.keys_at(0..self.key_ends.len()) {
                    request.argument(key.as_bytes());
                }
                request.argument_by((1 + numbers.clone().count()) * NUMBER_BYTES, |bytes| {
                    push_number(bytes, u64::from(charge.letters[1] - b'0'));
                    numbers.for_each(|&number| push_number(bytes, number));
                });
            }
            _ => Run::alone(self).add_to(request),
        }
    }

    /// Appends the numbers of its charges, each after the index of its key, from 1. `places` has the index of each key.
    fn push_numbers(&self, places: &[u16], bytes: &mut Vec<u8>) {
        let mut numbers = self.numbers.iter();
        for entry in &self.entries {
            push_number(bytes, u64::from(places[usize::from(entry.key)]) + 1);
            for &number in numbers.by_ref().take(entry.numbers.into()) {
                push_number(bytes, number);
            }
        }
    }

    /// Builds its answer from the clock and the remaining numbers of a run: the same answer as without a run. None if
    /// there are too few numbers.
    pub(super) fn answer_of(&self, clock: &Value, numbers: &mut impl Iterator<Item = Value>) -> Option<Value> {
        let mut own = Vec::with_capacity(1 + self.replies);
        own.push(clock.clone());
        own.extend(numbers.take(self.replies));
        (own.len() == 1 + self.replies).then_some(Value::Array(own))
    }
}

/// A run: lists that one command decides.
pub(crate) struct Run<'a> {
    lists: SmallVec<[&'a ChargeList; MERGE_MAX]>,
    /// The distinct keys of the states of all lists.
    keys: SmallVec<[&'a str; 32]>,
    /// For each such key of each list, its index in `keys`.
    places: SmallVec<[u16; 64]>,
    /// The distinct keys of rows, and the version that each row must have.
    rows: SmallVec<[(&'a str, u64); 16]>,
}

impl<'a> Run<'a> {
    fn alone(list: &'a ChargeList) -> Self {
        Self {
            lists: SmallVec::from_iter([list]),
            keys: list.state_keys().collect(),
            places: (0..).take(list.state_count()).collect(),
            rows: list.rows().collect(),
        }
    }

    /// The first of these lists that one command can decide, at most `max`. None: the first list is sent separately.
    pub(crate) fn of(lists: impl Iterator<Item = &'a ChargeList>, max: usize) -> Option<Self> {
        let mut run =
            Self { lists: SmallVec::new(), keys: SmallVec::new(), places: SmallVec::new(), rows: SmallVec::new() };
        let (mut known, mut versions) = (HashMap::with_capacity(run.keys.inline_size()), HashMap::new());
        let (mut charges, mut weight) = (0, 0_u32);
        for list in lists.take(max) {
            // Tests set a clock, and a run has only one clock.
            if run.lists.first().is_some_and(|first| first.now != list.now) {
                break;
            }
            let (keys_before, places_before, rows_before) = (run.keys.len(), run.places.len(), run.rows.len());
            for key in list.state_keys() {
                let place = *known.entry(key).or_insert_with(|| {
                    run.keys.push(key);
                    run.keys.len() - 1
                });
                run.places.push(u16::try_from(place).expect("a run has a few keys"));
            }
            let mut has_other_version = false;
            for (key, version) in list.rows() {
                let first = *versions.entry(key).or_insert_with(|| {
                    run.rows.push((key, version));
                    version
                });
                has_other_version |= version != first;
            }
            weight = weight.saturating_add(list.weight);
            let keys = u32::try_from(run.keys.len() + run.rows.len()).unwrap_or(u32::MAX);
            if has_other_version || weight.saturating_add(keys.saturating_mul(KEY_COST)) > RUN_COST_MAX {
                // The run is complete without this list.
                run.keys.truncate(keys_before);
                run.places.truncate(places_before);
                run.rows.truncate(rows_before);
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

    pub(super) fn add_to(&self, request: &mut CommandBuffer) {
        let (Some(first), Some(script)) = (self.lists.first(), script_of_run(self.lists.iter().copied())) else {
            return;
        };
        let entries = || self.lists.iter().flat_map(|list| &list.entries);
        let keys = self.keys.len() + self.rows.len();
        request.begin(5 + keys + usize::from(!self.rows.is_empty()));
        evalsha(request, script, keys);
        for key in self.keys.iter().chain(self.rows.iter().map(|(key, _)| key)) {
            request.argument(key.as_bytes());
        }
        request.argument_by(entries().map(|entry| entry.letters.len()).sum(), |bytes| {
            entries().for_each(|entry| bytes.extend(entry.letters));
        });
        let numbers: usize = entries().map(|entry| 1 + usize::from(entry.numbers)).sum();
        request.argument_by((1 + numbers) * NUMBER_BYTES, |bytes| {
            push_number(bytes, first.now);
            let mut places = &self.places[..];
            for list in &self.lists {
                let (own, others) = places.split_at(list.state_count());
                places = others;
                list.push_numbers(own, bytes);
            }
        });
        if !self.rows.is_empty() {
            request.argument_by(self.rows.len() * NUMBER_BYTES, |bytes| {
                self.rows.iter().for_each(|&(_, version)| push_number(bytes, version));
            });
        }
    }
}

/// The script that decides these lists together. None without lists.
pub(super) fn script_of_run<'a>(mut lists: impl Iterator<Item = &'a ChargeList>) -> Option<&'static Script> {
    let first = lists.next()?;
    Some((first.scripts)(first.has_long || lists.any(|list| list.has_long)))
}

/// The arguments of EVALSHA before the keys.
fn evalsha(request: &mut CommandBuffer, script: &Script, keys: usize) {
    request.argument(b"EVALSHA");
    request.argument(script.sha1.as_bytes());
    request.number(keys);
}

fn push_number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&(number as f64).to_le_bytes());
}
