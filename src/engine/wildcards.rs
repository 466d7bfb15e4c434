//! The first of many wildcards that a value matches, found in one pass over the value. [mt-3]
//!
//! A wildcard is a head, texts between stars, and a tail: `head*text*text*tail`. The leftmost place of each text leaves
//! the most room for the next, so each wildcard waits for one text at a time, and one `Finder` looks for all of them.
//! A text that is found moves only the wildcards that wait for it, and each of those at most once for each of its texts.
//! So a value costs its length, plus a number of steps that depends only on the wildcards. [`STEPS_MAX`] bounds that
//! number, and [`INNER_MAX`] the cost of a byte. Not here: regular expressions (automaton.rs).

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::pattern::Pattern;
use super::trie::{Finder, NONE, ROOT, Trie};

/// The most steps that one value can take through the wildcards of a key at one level: 0.6 ms of a core.
pub const STEPS_MAX: usize = 32_768;
/// The most texts between stars where each ends with the next shorter one, such as cba, ba and a: all of them can end at
/// the same byte of a value.
pub const INNER_MAX: usize = 16;
/// Up to this many wildcards are compared one after the other, which takes no longer than an automaton, ...
pub(super) const COMPARED_MAX: usize = 8;
/// ... unless a value is longer, in bytes, and more than one of them looks for a text in it.
const COMPARED_BYTES_MAX: usize = 256;
/// The largest table of transitions for the wildcards of one key at one level, in bytes: it fits the cache of a core.
const TABLE_BYTES_MAX: usize = 1 << 20;

/// Why wildcards are refused, with the position of one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooCostly {
    /// A value can take more than [`STEPS_MAX`] steps. The wildcard has the most texts.
    Steps(usize),
    /// The wildcard has a text between stars that ends with [`INNER_MAX`] others or more.
    Inner(usize),
}

impl TooCostly {
    pub(super) const fn position(self) -> usize {
        match self {
            Self::Steps(position) | Self::Inner(position) => position,
        }
    }
}

/// Finds the first wildcard that a value matches, of a few or of many.
#[derive(Clone, Debug, Default)]
pub(super) struct FirstWildcard {
    /// None if all values are compared with one wildcard after the other.
    wildcards: Option<Box<Wildcards>>,
    /// Shorter values are compared with one wildcard after the other.
    bytes_min: usize,
}

impl FirstWildcard {
    /// Subtracts the bytes of a table from the remaining bytes.
    pub(super) fn new<'p>(
        patterns: impl ExactSizeIterator<Item = &'p Pattern> + Clone,
        bytes_left: &mut usize,
    ) -> Result<Self, TooCostly> {
        let is_few = patterns.len() <= COMPARED_MAX;
        // A comparison with one of the others reads no more than its own length.
        let searching = patterns.clone().filter(|pattern| !Parts::of(pattern).texts.is_empty());
        if is_few && searching.count() < 2 {
            return Ok(Self::default());
        }
        let wildcards = Some(Wildcards::new(patterns, bytes_left)?.into());
        Ok(Self { wildcards, bytes_min: if is_few { COMPARED_BYTES_MAX + 1 } else { 0 } })
    }

    /// The position of the first pattern that the whole value matches. The patterns are those of [`FirstWildcard::new`].
    pub(super) fn first<'p>(&self, value: &str, mut patterns: impl Iterator<Item = &'p Pattern>) -> Option<usize> {
        match &self.wildcards {
            Some(wildcards) if value.len() >= self.bytes_min => wildcards.first(value),
            _ => patterns.position(|pattern| pattern.matches(value)),
        }
    }
}

/// Wildcards in their order. Each is named by its position in it.
#[derive(Clone, Debug)]
struct Wildcards {
    /// The texts before the first star.
    heads: Trie,
    of_heads: Vec<OfHead>,
    /// The texts after the last star, backwards.
    tails: Trie,
    of_tails: Vec<OfTail>,
    /// The texts between stars.
    texts: Finder,
    of_texts: Vec<OfText>,
    /// The first of all `*text*`, or `NONE`.
    first_text_alone: u32,
    /// The wildcards of several texts: by head and position, and those without a head by first text and position.
    joined: Vec<Joined>,
    /// The texts between the stars of `joined`.
    parts: Vec<u32>,
}

#[derive(Clone, Debug)]
struct OfHead {
    /// The first `head*`, or `NONE`.
    alone: u32,
    /// The wildcards in `joined`. Those without a head are at their first text.
    joined: Range,
}

#[derive(Clone, Debug)]
struct OfTail {
    /// The first `*tail`, or `NONE`.
    alone: u32,
    /// The first wildcard of several texts without a head, or `NONE`.
    first_headless: u32,
    length: usize,
    /// One more than the last tail that ends with this one.
    end: u32,
}

#[derive(Clone, Debug)]
struct OfText {
    /// The first `*text*` of this text and those that it ends with, or `NONE`.
    alone: u32,
    /// The longest text with waiting wildcards that this text ends with: it itself, another one, or `NONE`.
    awaited: u32,
    /// The same without it itself.
    awaited_inner: u32,
    /// The wildcards in `joined` without a head of which this is the first text.
    headless: Range,
    length: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Range {
    from: u32,
    to: u32,
}

/// A wildcard of several texts.
#[derive(Clone, Debug)]
struct Joined {
    position: u32,
    tail: u32,
    /// The texts in `parts`.
    parts: Range,
}

/// A wildcard that waits for a text.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    joined: u32,
    /// The text in `parts`.
    part: u32,
    /// The text counts only if it ends here or later.
    ready: usize,
    /// The next waiter for the same text, or `NONE`.
    next: u32,
}

/// The waiters for one text, in the order of `ready`.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    /// Whether the text was found before, which moves the wildcards without a head that begin with it.
    was_found: bool,
}

impl Queue {
    const EMPTY: Self = Self { first: NONE, last: NONE, was_found: false };
}

/// The queues of the texts that wildcards wait or waited for, by text. Such a text can end at each byte of a value, so no hash is
/// computed to find its queue. A page is made with its first queue.
#[derive(Default)]
struct Queues(Vec<Option<Box<[Queue; QUEUES_OF_PAGE]>>>);

const QUEUES_OF_PAGE: usize = 32;

impl Queues {
    fn get_mut(&mut self, text: u32) -> Option<&mut Queue> {
        let page = self.0.get_mut(text as usize / QUEUES_OF_PAGE)?.as_mut()?;
        Some(&mut page[text as usize % QUEUES_OF_PAGE])
    }

    /// The queue of one of so many texts.
    fn get_or_insert(&mut self, text: u32, texts: usize) -> &mut Queue {
        if self.0.is_empty() {
            self.0.resize_with(texts.div_ceil(QUEUES_OF_PAGE), || None);
        }
        let page = &mut self.0[text as usize / QUEUES_OF_PAGE];
        &mut page.get_or_insert_with(|| Box::new([Queue::EMPTY; QUEUES_OF_PAGE]))[text as usize % QUEUES_OF_PAGE]
    }
}

/// The parts of a wildcard.
struct Parts<'p> {
    head: &'p str,
    texts: Vec<&'p str>,
    tail: &'p str,
}

impl<'p> Parts<'p> {
    fn of(pattern: &'p Pattern) -> Self {
        let mut literals: Vec<&str> = pattern.literals().collect();
        let tail = literals.pop().unwrap_or("");
        let mut literals = literals.into_iter();
        let head = literals.next().unwrap_or("");
        Self { head, texts: literals.filter(|text| !text.is_empty()).collect(), tail }
    }

    /// How often the wildcard can begin to wait or move for one value. A wildcard of one text never waits.
    fn steps(&self) -> usize {
        match (self.head, &*self.texts, self.tail) {
            (_, [], "") | ("", [], _) | ("", [_], "") => 0,
            ("", texts, _) => texts.len(),
            (_, texts, _) => 1 + texts.len(),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "all policies together have fewer than 2^32 bytes")]
const fn number(at: usize) -> u32 {
    at as u32
}

/// The different texts in order, each with its position.
fn numbered<T: Ord>(texts: impl Iterator<Item = T>) -> BTreeMap<T, u32> {
    let mut all: BTreeMap<T, u32> = texts.map(|text| (text, 0)).collect();
    for (at, position) in all.values_mut().enumerate() {
        *position = number(at);
    }
    all
}

fn backwards(text: &str) -> Vec<u8> {
    text.bytes().rev().collect()
}

impl Wildcards {
    /// Subtracts the bytes of the table from the remaining bytes. The table is only as large as these.
    fn new<'p>(patterns: impl Iterator<Item = &'p Pattern>, bytes_left: &mut usize) -> Result<Self, TooCostly> {
        let all: Vec<Parts<'p>> = patterns.map(Parts::of).collect();
        let heads = numbered(all.iter().map(|parts| parts.head));
        let tails = numbered(all.iter().map(|parts| backwards(parts.tail)));
        let texts = numbered(all.iter().flat_map(|parts| parts.texts.iter().copied()));
        let by_position = |map: &BTreeMap<&'p str, u32>| map.keys().copied().collect::<Vec<&str>>();
        let (sorted_heads, sorted_texts) = (by_position(&heads), by_position(&texts));
        let sorted_tails: Vec<&[u8]> = tails.keys().map(Vec::as_slice).collect();
        let finder = Finder::new(&sorted_texts, TABLE_BYTES_MAX.min(*bytes_left));
        *bytes_left -= finder.table_bytes();
        let mut wildcards = Self {
            heads: Trie::new(&sorted_heads),
            of_heads: vec![OfHead { alone: NONE, joined: Range::default() }; heads.len()],
            tails: Trie::new(&sorted_tails),
            of_tails: of_tails(&sorted_tails),
            texts: finder,
            of_texts: sorted_texts.iter().map(|text| OfText::new(text.len())).collect(),
            first_text_alone: NONE,
            joined: Vec::new(),
            parts: Vec::new(),
        };
        // By head, first text and position.
        let mut joined: Vec<(u32, Option<u32>, u32)> = Vec::new();
        for (position, parts) in (0..).zip(&all) {
            let (head, tail) = (heads[parts.head], tails[&backwards(parts.tail)]);
            let alone = match (parts.head, &*parts.texts, parts.tail) {
                (_, [], "") => &mut wildcards.of_heads[head as usize].alone,
                ("", [], _) => &mut wildcards.of_tails[tail as usize].alone,
                ("", [text], "") => {
                    wildcards.first_text_alone = wildcards.first_text_alone.min(position);
                    &mut wildcards.of_texts[texts[text] as usize].alone
                }
                ("", [first, ..], _) => {
                    joined.push((head, Some(texts[first]), position));
                    &mut wildcards.of_tails[tail as usize].first_headless
                }
                _ => {
                    joined.push((head, None, position));
                    continue;
                }
            };
            *alone = position.min(*alone);
        }
        joined.sort_unstable();
        for (head, first, position) in joined {
            let at = number(wildcards.joined.len());
            let range = match first {
                None => &mut wildcards.of_heads[head as usize].joined,
                Some(first) => &mut wildcards.of_texts[first as usize].headless,
            };
            *range = Range { from: if range.to == 0 { at } else { range.from }, to: at + 1 };
            let Parts { tail, texts: of_wildcard, .. } = &all[position as usize];
            let from = number(wildcards.parts.len());
            for text in of_wildcard {
                let text = texts[text];
                wildcards.parts.push(text);
                wildcards.of_texts[text as usize].awaited = text;
            }
            let parts = Range { from, to: number(wildcards.parts.len()) };
            wildcards.joined.push(Joined { position, tail: tails[&backwards(tail)], parts });
        }
        wildcards.link_texts();
        wildcards.check(&all, &heads, &texts)?;
        Ok(wildcards)
    }

    /// Gives each text what it shares with the texts that it ends with.
    fn link_texts(&mut self) {
        let mut by_length: Vec<u32> = (0..number(self.of_texts.len())).collect();
        by_length.sort_unstable_by_key(|text| self.of_texts[*text as usize].length);
        for text in by_length {
            let Some(inner) = self.texts.inner(text) else { continue };
            let OfText { alone, awaited, .. } = self.of_texts[inner as usize];
            let of_text = &mut self.of_texts[text as usize];
            of_text.alone = of_text.alone.min(alone);
            of_text.awaited_inner = awaited;
            if of_text.awaited == NONE {
                of_text.awaited = awaited;
            }
        }
    }

    fn check(
        &self,
        all: &[Parts<'_>],
        heads: &BTreeMap<&str, u32>,
        texts: &BTreeMap<&str, u32>,
    ) -> Result<(), TooCostly> {
        let mut steps: Vec<usize> = vec![0; heads.len()];
        for parts in all {
            steps[heads[parts.head] as usize] += parts.steps();
        }
        // A value begins with several heads only if each begins with the one before.
        let mut outer: Vec<(&str, usize)> = Vec::new();
        for (head, own) in heads.keys().zip(steps) {
            while outer.pop_if(|(outer, _)| !head.starts_with(*outer)).is_some() {}
            let steps = own + outer.last().map_or(0, |(_, steps)| *steps);
            if steps > STEPS_MAX {
                let longest = (0..all.len()).rev().max_by_key(|at| all[*at].steps());
                return Err(TooCostly::Steps(longest.unwrap_or(0)));
            }
            outer.push((head, steps));
        }
        let has_too_many_inner = |text: &&str| {
            let chain = |text: &u32| Some(self.of_texts[*text as usize].awaited_inner).filter(|inner| *inner != NONE);
            std::iter::successors(Some(texts[*text]), chain).take(INNER_MAX + 1).count() > INNER_MAX
        };
        match all.iter().position(|parts| parts.steps() > 0 && parts.texts.iter().any(has_too_many_inner)) {
            Some(at) => Err(TooCostly::Inner(at)),
            None => Ok(()),
        }
    }

    /// The first wildcard that the whole value matches.
    fn first(&self, value: &str) -> Option<usize> {
        self.searched(value).0
    }

    /// With the steps that it took: bytes read, and wildcards that began to wait or moved.
    fn searched(&self, value: &str) -> (Option<usize>, usize) {
        let bytes = value.as_bytes();
        let mut search = Search::new(self, bytes);
        let (mut at, mut state) = (0, ROOT);
        search.begin(self.heads.text(ROOT), 0);
        let mut head = Some(ROOT);
        while let (Some(before), Some(&byte)) = (head, bytes.get(at)) {
            at += 1;
            head = self.heads.child(before, byte);
            search.begin(head.and_then(|head| self.heads.text(head)), at);
            state = self.texts.next(state, byte);
            if let Some(text) = self.texts.text(state) {
                search.found(text, at);
            }
        }
        if search.is_open() {
            for &byte in &bytes[at..] {
                at += 1;
                state = self.texts.next(state, byte);
                if let Some(text) = self.texts.text(state) {
                    search.found(text, at);
                    if !search.is_open() {
                        break;
                    }
                }
            }
        }
        ((search.best != NONE).then_some(search.best as usize), at + search.steps)
    }
}

impl OfText {
    const fn new(length: usize) -> Self {
        Self { alone: NONE, awaited: NONE, awaited_inner: NONE, headless: Range { from: 0, to: 0 }, length }
    }
}

fn of_tails(sorted: &[&[u8]]) -> Vec<OfTail> {
    let tails = sorted.iter().enumerate().map(|(at, tail)| {
        let count = sorted[at..].partition_point(|longer| longer.starts_with(tail));
        OfTail { alone: NONE, first_headless: NONE, length: tail.len(), end: number(at + count) }
    });
    tails.collect()
}

/// One pass over a value.
struct Search<'w> {
    wildcards: &'w Wildcards,
    length: usize,
    /// The longest tail that the value ends with, or `NONE`.
    tail: u32,
    /// The first wildcard of several texts without a head whose tail the value has, or `NONE`.
    first_headless: u32,
    /// The first wildcard that is known to match, or `NONE`.
    best: u32,
    waiters: SmallVec<[Waiter; 8]>,
    queues: Queues,
    waiting: usize,
    steps: usize,
}

impl<'w> Search<'w> {
    fn new(wildcards: &'w Wildcards, value: &[u8]) -> Self {
        let mut search = Self {
            wildcards,
            length: value.len(),
            tail: NONE,
            first_headless: NONE,
            best: NONE,
            waiters: SmallVec::new(),
            queues: Queues::default(),
            waiting: 0,
            steps: 0,
        };
        let mut state = Some(ROOT);
        let mut backwards = value.iter().rev();
        while let Some(at) = state {
            if let Some(tail) = wildcards.tails.text(at) {
                let of_tail = &wildcards.of_tails[tail as usize];
                search.tail = tail;
                search.best = search.best.min(of_tail.alone);
                search.first_headless = search.first_headless.min(of_tail.first_headless);
            }
            state = backwards.next().and_then(|byte| wildcards.tails.child(at, *byte));
        }
        search
    }

    /// Whether the rest of the value can change the result.
    const fn is_open(&self) -> bool {
        self.waiting > 0 || self.first_headless < self.best || self.wildcards.first_text_alone < self.best
    }

    /// Whether the value ends with the tail of a wildcard, behind `at`.
    fn ends_with(&self, tail: u32, at: usize) -> bool {
        let of_tail = &self.wildcards.of_tails[tail as usize];
        // Tails are sorted backwards: those that end with this one follow it.
        (tail..of_tail.end).contains(&self.tail) && self.length - at >= of_tail.length
    }

    /// The value begins with this head, which ends at `at`.
    fn begin(&mut self, head: Option<u32>, at: usize) {
        if let Some(head) = head {
            let of_head = &self.wildcards.of_heads[head as usize];
            self.best = self.best.min(of_head.alone);
            self.begin_all(of_head.joined, 0, at);
        }
    }

    /// Some wildcards begin to wait, behind as many of their texts.
    fn begin_all(&mut self, all: Range, texts: u32, at: usize) {
        for number in all.from..all.to {
            let joined = &self.wildcards.joined[number as usize];
            if joined.position >= self.best {
                return;
            }
            self.steps += 1;
            if !self.ends_with(joined.tail, at) {
                continue;
            }
            let part = joined.parts.from + texts;
            if part == joined.parts.to {
                self.best = joined.position;
                return;
            }
            let waiter = self.waiters.len();
            self.waiters.push(Waiter { joined: number, part, ready: 0, next: NONE });
            self.wait(waiter, at);
        }
    }

    /// This text, and those that it ends with, end at `at`.
    fn found(&mut self, text: u32, at: usize) {
        let of_texts = &self.wildcards.of_texts;
        self.best = self.best.min(of_texts[text as usize].alone);
        if self.waiting == 0 && self.first_headless >= self.best {
            return;
        }
        let mut text = of_texts[text as usize].awaited;
        while text != NONE {
            let of_text = &of_texts[text as usize];
            let (has_waiters, was_found) = match self.queues.get_mut(text) {
                Some(queue) => (queue.first != NONE, std::mem::replace(&mut queue.was_found, true)),
                None => (false, false),
            };
            if !was_found && of_text.headless.to > 0 {
                self.queues.get_or_insert(text, of_texts.len()).was_found = true;
                self.begin_all(of_text.headless, 1, at);
            }
            if has_waiters {
                self.move_waiters(text, at);
            }
            text = of_text.awaited_inner;
        }
    }

    fn move_waiters(&mut self, text: u32, at: usize) {
        while let Some(queue) = self.queues.get_mut(text) {
            let first = queue.first;
            let Some(waiter) = self.waiters.get_mut(first as usize) else { return };
            // Those behind it are ready no earlier.
            if waiter.ready > at {
                return;
            }
            queue.first = waiter.next;
            waiter.part += 1;
            let Waiter { joined, part, .. } = *waiter;
            self.waiting -= 1;
            self.steps += 1;
            let joined = &self.wildcards.joined[joined as usize];
            if joined.position >= self.best {
                continue;
            }
            if part < joined.parts.to {
                self.wait(first as usize, at);
            } else if self.ends_with(joined.tail, at) {
                self.best = joined.position;
            }
        }
    }

    /// Puts a waiter behind the others for its text.
    fn wait(&mut self, number: usize, at: usize) {
        let text = self.wildcards.parts[self.waiters[number].part as usize];
        // All waiters for a text wait for its whole length from where they began, so they are ready in this order.
        self.waiters[number].ready = at + self.wildcards.of_texts[text as usize].length;
        self.waiters[number].next = NONE;
        #[expect(clippy::cast_possible_truncation, reason = "there are fewer waiters than wildcards")]
        let number = number as u32;
        let queue = self.queues.get_or_insert(text, self.wildcards.of_texts.len());
        let last = std::mem::replace(&mut queue.last, number);
        if queue.first == NONE {
            queue.first = number;
        } else {
            self.waiters[last as usize].next = number;
        }
        self.waiting += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn patterns<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Vec<Pattern> {
        texts.into_iter().map(|text| Pattern::new(text.as_ref()).expect("has a star")).collect()
    }

    fn wildcards(patterns: &[Pattern]) -> Result<Wildcards, TooCostly> {
        Wildcards::new(patterns.iter(), &mut usize::MAX.clone())
    }

    fn in_turn(patterns: &[Pattern], value: &str) -> Option<usize> {
        patterns.iter().position(|pattern| pattern.matches(value))
    }

    proptest! {
        #[test]
        fn one_pass_finds_what_one_comparison_after_the_other_finds(
            texts in vec("[ab]{0,3}\\*([ab]{0,3}\\*){0,4}[ab]{0,2}", 1..24),
            values in vec("[ab]{0,16}", 1..32),
            table_bytes in 0..200_usize,
        ) {
            let patterns = patterns(texts);
            let mut bytes_left = table_bytes;
            let made = Wildcards::new(patterns.iter(), &mut bytes_left).expect("is small");
            prop_assert!(bytes_left <= table_bytes);
            for value in &values {
                prop_assert_eq!(made.first(value), in_turn(&patterns, value), "{}", value);
            }
        }
    }

    #[test]
    fn the_texts_of_a_wildcard_do_not_overlap() {
        for (texts, value, expected) in [
            (&["*aa*aa*"][..], "aaa", None),
            (&["*aa*aa*"], "aaaa", Some(0)),
            (&["ab*ba"], "aba", None),
            (&["ab*b*a"], "aba", None),
            (&["ab*b*a"], "abba", Some(0)),
            (&["*ab*b"], "ab", None),
            (&["*a*b*a", "a*a"], "aba", Some(0)),
            (&["*a*b*a", "a*a"], "aa", Some(1)),
            (&["a*", "*"], "", Some(1)),
            (&["**", "*"], "", Some(0)),
            // The long head begins to wait after the short one, for the same text.
            (&["aaaaaa*b*c", "*a*b*c"], "aaaaaabc", Some(0)),
            (&["aaaaaa*b*c", "*a*b*c"], "abaaaac", Some(1)),
        ] {
            assert_eq!(wildcards(&patterns(texts)).expect("is small").first(value), expected, "{texts:?} on {value:?}");
        }
    }

    /// The steps for a value, and what it meets, which is compared with [`Pattern::matches`].
    fn steps(patterns: &[Pattern], value: &str) -> usize {
        let (found, steps) = wildcards(patterns).expect("is allowed").searched(value);
        assert_eq!(found, in_turn(patterns, value));
        steps
    }

    // A value of 59 KB took 50 ms: each of 1,024 wildcards searched all of it.
    #[test]
    fn a_value_costs_its_length_and_not_the_number_of_wildcards() {
        let many = patterns((0..1_024).map(|n| format!("*a{n}*a*b*")));
        for value in
            ["a".repeat(60_000), "ab".repeat(30_000), (0..12_000).map(|n| format!("a{} ", n % 1_100)).collect()]
        {
            let bound = value.len() + 3 * many.len();
            assert!(steps(&many, &value) <= bound, "{}", &value[..8]);
        }
        // All wildcards wait for one text, which is at each byte.
        let many = patterns((0..1_024).map(|n| format!("*a*a*a*a*{n}*")));
        assert!(steps(&many, &"a".repeat(60_000)) <= 60_000 + 6 * many.len());
    }

    #[test]
    fn a_value_is_read_only_as_far_as_wildcards_can_distinguish() {
        let value = format!("/v1/{}", "x".repeat(60_000));
        let many = patterns((0..1_024).map(|n| format!("/v{n}/*")));
        assert!(steps(&many, &value) <= 5);
        let many = patterns((0..1_024).map(|n| format!("/v{n}/*/items{n}")));
        assert!(steps(&many, &value) <= 6);
        let many = patterns((0..1_024).map(|n| format!("/v{n}/*x*/*")));
        assert!(steps(&many, &format!("/v1/x/{value}")) <= 12, "the first that matches ends the search");
    }

    #[test]
    fn wildcards_that_a_value_can_take_too_many_steps_through_are_refused() {
        let many = |count: usize| patterns((0..count).map(|n| format!("*a{n}*b*")));
        assert!(wildcards(&many(STEPS_MAX / 2)).is_ok());
        assert_eq!(wildcards(&many(STEPS_MAX / 2 + 1)).err(), Some(TooCostly::Steps(0)));
        let mut with_longest = many(STEPS_MAX / 2 - 1);
        with_longest.extend(patterns(["*x*y*z*"]));
        assert_eq!(wildcards(&with_longest).err(), Some(TooCostly::Steps(STEPS_MAX / 2 - 1)));
        // A value has the beginning of one of these only.
        assert!(wildcards(&patterns((0..100_000).map(|n| format!("user-{n}-*b*c*")))).is_ok());
        // It has those of all of these.
        let nested = (0..400).map(|n| format!("{}*{}", "a".repeat(n), "*b".repeat(100)));
        assert_eq!(wildcards(&patterns(nested)).err(), Some(TooCostly::Steps(1)));
        // Wildcards of one text take no steps.
        let one = (0..30_000).flat_map(|n| [format!("a{n}*"), format!("*{n}"), format!("*a{n}*")]);
        let one = patterns(one);
        assert_eq!(steps(&one, "a29999"), "a29999".len());
    }

    // Each byte of a value could end a thousand texts, none of which any wildcard waits for.
    #[test]
    fn wildcards_whose_texts_end_with_one_another_are_refused() {
        let nested = |count: usize| patterns((1..=count).map(|n| format!("*b*{}*", "a".repeat(n))));
        assert!(steps(&nested(INNER_MAX), &"a".repeat(60_000)) <= 60_000 + 2 * INNER_MAX);
        assert_eq!(wildcards(&nested(INNER_MAX + 1)).err(), Some(TooCostly::Inner(INNER_MAX)));
        let alone = patterns((1..=1_000).map(|n| format!("*{}*", "a".repeat(n))));
        assert_eq!(steps(&alone, &"a".repeat(60_000)), 1, "those of one text need no search for shorter ones");
    }

    #[test]
    fn a_few_wildcards_are_compared_in_turn_only_with_short_values() {
        let made = |texts: &[&str]| {
            let patterns = patterns(texts);
            FirstWildcard::new(patterns.iter(), &mut usize::MAX.clone()).expect("is small")
        };
        assert!(made(&["a*", "*b", "a*b", "*c*"]).wildcards.is_none(), "one search at most");
        let first = made(&["*c*", "*d*"]);
        assert!(first.wildcards.is_some());
        let patterns = patterns(["*c*", "*d*"]);
        for count in [0, COMPARED_BYTES_MAX - 1, COMPARED_BYTES_MAX, 60_000] {
            let value = format!("{}d", "x".repeat(count));
            assert_eq!(first.first(&value, patterns.iter()), Some(1));
        }
    }
}
