//! A walk through several automata at once, byte by byte and breadth first. It finds which patterns texts match first,
//! with a shortest text for each combination.

use std::collections::VecDeque;
use std::fmt;

use hashbrown::hash_map::Entry as Slot;
use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;
use weir_engine::automaton::{Automaton, Progress};

use super::addresses::{Lattice, Spelled, Spelling};
use super::texts::{BEGIN, Beginning, Cut, Texts, Utf8};

/// The most states of one walk.
pub const STATES_MAX: usize = 50_000;
/// The most steps of all walks of one comparison. A step reads one byte in one state.
pub const STEPS_MAX: u64 = 10_000_000;

/// The remaining steps.
#[derive(Debug)]
pub struct Budget(u64);

impl Default for Budget {
    fn default() -> Self {
        Self(STEPS_MAX)
    }
}

impl Budget {
    pub const fn of(steps: u64) -> Self {
        Self(steps)
    }

    pub const fn left(&self) -> u64 {
        self.0
    }

    /// Uses steps.
    ///
    /// # Errors
    /// When fewer remain.
    pub fn take(&mut self, steps: u64) -> Result<(), GivenUp> {
        self.0 = self.0.checked_sub(steps).ok_or(GivenUp::Steps)?;
        Ok(())
    }
}

/// Why the search for classes stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GivenUp {
    /// The patterns together have more states than [`STATES_MAX`].
    States,
    /// The comparison has used all of its steps.
    Steps,
    /// An automaton is too large.
    Automaton,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::States => write!(f, "the patterns together have more than {STATES_MAX} states"),
            Self::Steps => f.write_str("the comparison takes too many steps"),
            Self::Automaton => f.write_str("the wildcards need too large an automaton"),
        }
    }
}

/// For each automaton, the pattern that a text matches first.
pub(super) type Firsts = SmallVec<[Option<usize>; 4]>;

/// Texts that match the same patterns first.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) firsts: Firsts,
    pub(super) spelled: Spelled,
    /// A shortest text.
    pub(super) text: String,
}

/// The values that get classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    #[default]
    All,
    /// Values without ASCII control characters, such as line breaks: `.` of a regular expression does not match a line
    /// break.
    Printable,
}

impl Values {
    fn have(self, byte: u8) -> bool {
        self == Self::All || !byte.is_ascii_control()
    }
}

/// The texts that a walk reads, and how it distinguishes them.
#[derive(Default)]
pub(super) struct Walk<'a> {
    /// The automata, each with the state after the text read so far.
    pub(super) automata: SmallVec<[(&'a Automaton, Progress); 4]>,
    /// Texts to ignore.
    pub(super) without: Texts,
    /// If set: the walk returns only texts that split into a key and a value, and ignores these keys.
    pub(super) keys: Option<Texts>,
    pub(super) networks: Option<&'a Lattice>,
    pub(super) values: Values,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct State {
    readings: SmallVec<[Progress; 4]>,
    utf8: Utf8,
    listed: Beginning,
    cut: Option<Cut>,
    spelling: Option<Spelling>,
}

impl Walk<'_> {
    /// The regions that have texts other than these. [`Walk::regions`]
    pub(super) fn regions_without(
        mut self,
        texts: &HashSet<&str>,
        budget: &mut Budget,
    ) -> Result<Vec<Region>, GivenUp> {
        let regions = self.regions(budget)?;
        if regions.iter().all(|region| !texts.contains(region.text.as_str())) {
            return Ok(regions);
        }
        budget.take(texts.iter().map(|text| text.len() as u64).sum())?;
        self.without = Texts::new(texts.iter().copied());
        self.regions(budget)
    }

    /// The regions, sorted by the length of their text. An empty text represents a region only if the region has no
    /// other text.
    pub(super) fn regions(&self, budget: &mut Budget) -> Result<Vec<Region>, GivenUp> {
        let alphabet = self.alphabet();
        let all_bytes: Vec<u8> = by_preference().into_iter().filter(|byte| self.values.have(*byte)).collect();
        let begin = State {
            readings: self.automata.iter().map(|(_, reading)| *reading).collect(),
            utf8: Utf8::default(),
            listed: BEGIN,
            cut: self.keys.as_ref().map(|_| Cut::begin()),
            spelling: self.networks.map(Lattice::begin),
        };
        let mut known: HashMap<State, u32> = HashMap::from([(begin.clone(), 0)]);
        // How the walk first reached each state: from which state, and by which byte.
        let mut ways: Vec<(u32, u8)> = vec![(0, 0)];
        let mut waiting = VecDeque::from([(begin.clone(), 0_u32)]);
        let mut regions: HashMap<(Firsts, Spelled), u32> = HashMap::new();
        let mut found = Vec::new();
        let mut note = |state: &State, number: u32| {
            if let Some(label) = self.label(state)
                && let Slot::Vacant(slot) = regions.entry(label.clone())
            {
                slot.insert(number);
                found.push((label, number));
            }
        };
        while let Some((state, number)) = waiting.pop_front() {
            if number > 0 {
                note(&state, number);
            }
            // After the beginning of an ignored text, each byte can lead to a different state.
            let bytes = if state.listed.is_some() && !self.without.is_empty() { &all_bytes } else { &alphabet };
            budget.take(bytes.len() as u64)?;
            for &byte in bytes {
                let Some(next) = self.next(&state, byte) else { continue };
                #[expect(clippy::cast_possible_truncation, reason = "there are at most STATES_MAX")]
                let fresh = ways.len() as u32;
                if let Slot::Vacant(slot) = known.entry(next) {
                    if ways.len() == STATES_MAX {
                        return Err(GivenUp::States);
                    }
                    waiting.push_back((slot.key().clone(), fresh));
                    slot.insert(fresh);
                    ways.push((number, byte));
                }
            }
        }
        note(&begin, 0);
        let region = |((firsts, spelled), number)| Region { firsts, spelled, text: text(&ways, number) };
        Ok(found.into_iter().map(region).collect())
    }

    /// The patterns that a text matches if it ends here; None for an ignored text.
    fn label(&self, state: &State) -> Option<(Firsts, Spelled)> {
        let counts = state.utf8 == Utf8::Between
            && !self.without.has(state.listed)
            && state.cut.is_none_or(|cut| cut == Cut::Is);
        if !counts {
            return None;
        }
        let firsts = self.automata.iter().zip(&state.readings);
        let firsts = firsts.map(|((automaton, _), reading)| automaton.end(*reading)).collect();
        let spelled = self.networks.zip(state.spelling);
        Some((firsts, spelled.map_or(Spelled::Neither, |(networks, spelling)| networks.end(spelling))))
    }

    fn next(&self, state: &State, byte: u8) -> Option<State> {
        let utf8 = state.utf8.read(byte)?;
        let readings = self.automata.iter().zip(&state.readings);
        Some(State {
            readings: readings.map(|((automaton, _), reading)| automaton.read(*reading, byte)).collect(),
            utf8,
            listed: self.without.read(state.listed, byte),
            cut: state.cut.zip(self.keys.as_ref()).map(|(cut, keys)| cut.read(keys, byte)),
            spelling: state.spelling.zip(self.networks).map(|(spelling, networks)| networks.read(spelling, byte)),
        })
    }

    /// One byte of each class over all automata. Letters and digits come first.
    fn alphabet(&self) -> Vec<u8> {
        let mut seen: HashMap<SmallVec<[u8; 8]>, u8> = HashMap::new();
        let mut alphabet = Vec::new();
        for byte in by_preference().into_iter().filter(|byte| self.values.have(*byte)) {
            let mut kind: SmallVec<[u8; 8]> = self.automata.iter().map(|(it, _)| it.byte_class(byte)).collect();
            kind.push(Utf8::byte_class(byte));
            kind.extend(self.networks.map(|_| Lattice::byte_class(byte)));
            kind.extend(self.keys.as_ref().map(|keys| if byte == b'_' || keys.have(byte) { byte } else { 0 }));
            if let Slot::Vacant(slot) = seen.entry(kind) {
                slot.insert(byte);
                alphabet.push(byte);
            }
        }
        alphabet
    }
}

/// All bytes, the most common in writing first.
fn by_preference() -> Vec<u8> {
    let first = b"xyz".iter().copied().chain(b'a'..=b'w').chain(b'0'..=b'9').chain(b'A'..=b'Z').chain(*b"-_./,:=@+");
    let printable = b'!'..=b'~';
    let mut bytes: Vec<u8> = Vec::with_capacity(256);
    for byte in first.chain(printable).chain(0..=255) {
        if !bytes.contains(&byte) {
            bytes.push(byte);
        }
    }
    bytes
}

/// The text that leads to a state.
fn text(ways: &[(u32, u8)], number: u32) -> String {
    let mut bytes = Vec::new();
    let mut at = number;
    while at > 0 {
        let (before, byte) = ways[at as usize];
        bytes.push(byte);
        at = before;
    }
    bytes.reverse();
    String::from_utf8(bytes).unwrap_or_else(|error| unreachable!("only UTF-8 is read: {error}"))
}
