//! Many texts, found by one pass over a value: [`Trie`] finds those that it begins with, [`Finder`] those anywhere in it.
//!
//! The finder is the automaton of Aho and Corasick ("Efficient string matching", 1975), with a table of transitions for
//! its first states only, so that its memory is a small multiple of the texts. The crate aho-corasick copies the texts
//! that end with one another to each state where they end, which is quadratic in the texts. Not here: which wildcard the
//! found texts belong to (wildcards.rs).

use std::collections::VecDeque;

/// No text, or no state.
pub(super) const NONE: u32 = u32::MAX;
/// The state before the first byte.
pub(super) const ROOT: u32 = 0;

/// Sorted texts as a tree of their bytes. A text is its position among them.
#[derive(Clone, Debug)]
pub(super) struct Trie {
    /// For each state its first child. States are in the order of their depth, so the children of a state follow each
    /// other, and those of the next state follow them.
    children: Vec<u32>,
    /// The byte that leads to each state.
    bytes: Vec<u8>,
    /// The text that ends at each state, or `NONE`.
    texts: Vec<u32>,
}

#[expect(clippy::cast_possible_truncation, reason = "all policies together have fewer than 2^32 bytes")]
const fn number(at: usize) -> u32 {
    at as u32
}

fn some(text: u32) -> Option<u32> {
    (text != NONE).then_some(text)
}

impl Trie {
    /// From texts that are sorted and different.
    pub(super) fn new(sorted: &[impl AsRef<[u8]>]) -> Self {
        let mut trie = Self { children: Vec::new(), bytes: vec![0], texts: Vec::new() };
        // The texts that go through each state without children yet, and its depth.
        let mut open = VecDeque::from([(0..sorted.len(), 0)]);
        while let Some((mut range, depth)) = open.pop_front() {
            let ends_here = range.start < range.end && sorted[range.start].as_ref().len() == depth;
            trie.texts.push(if ends_here { number(range.start) } else { NONE });
            range.start += usize::from(ends_here);
            trie.children.push(number(trie.bytes.len()));
            while range.start < range.end {
                let byte = sorted[range.start].as_ref()[depth];
                let count = sorted[range.clone()].partition_point(|text| text.as_ref()[depth] == byte);
                trie.bytes.push(byte);
                open.push_back((range.start..range.start + count, depth + 1));
                range.start += count;
            }
        }
        trie.children.push(number(trie.bytes.len()));
        trie
    }

    pub(super) fn child(&self, state: u32, byte: u8) -> Option<u32> {
        let first = self.children[state as usize];
        let bytes = &self.bytes[first as usize..self.children[state as usize + 1] as usize];
        let at = if bytes.len() <= 8 {
            bytes.iter().position(|of| *of == byte)?
        } else {
            bytes.binary_search(&byte).ok()?
        };
        Some(first + number(at))
    }

    /// The text that ends at this state.
    pub(super) fn text(&self, state: u32) -> Option<u32> {
        some(self.texts[state as usize])
    }

    const fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Finds the places where texts end in a value.
#[derive(Clone, Debug)]
pub(super) struct Finder {
    /// Its `texts` has the longest text that ends at each state.
    trie: Trie,
    /// The state of the longest other text that the text of a state ends with, and that begins a text.
    shorter: Vec<u32>,
    /// For each text the longest other text that it ends with, or `NONE`.
    inner: Vec<u32>,
    /// For each byte its column in the table. Bytes in no text share one.
    columns: Box<[u16; 256]>,
    /// The binary logarithm of the columns of a row.
    row_bits: u32,
    /// The next state, for the first states and all columns.
    table: Vec<u32>,
    rows: u32,
}

impl Finder {
    /// From texts that are sorted, different and not empty. Its table has at most `table_bytes_max` bytes.
    pub(super) fn new(sorted: &[impl AsRef<[u8]>], table_bytes_max: usize) -> Self {
        let trie = Trie::new(sorted);
        let states = trie.len();
        let mut columns = Box::new([0; 256]);
        let mut count: u16 = 1;
        for byte in &trie.bytes[1..] {
            let column = &mut columns[usize::from(*byte)];
            if *column == 0 {
                *column = count;
                count += 1;
            }
        }
        let row_bits = count.next_power_of_two().ilog2();
        let mut finder = Self {
            trie,
            shorter: vec![ROOT; states],
            inner: vec![NONE; sorted.len()],
            columns,
            row_bits,
            table: Vec::new(),
            rows: 0,
        };
        finder.link();
        finder.fill(((table_bytes_max / size_of::<u32>()) >> row_bits).min(states));
        finder
    }

    /// Each state has a shorter one of less depth, so it comes later in the order of states.
    fn link(&mut self) {
        for state in 0..number(self.trie.len()) {
            for child in self.trie.children[state as usize]..self.trie.children[state as usize + 1] {
                let byte = self.trie.bytes[child as usize];
                let shorter = if state == ROOT { ROOT } else { self.next(self.shorter[state as usize], byte) };
                self.shorter[child as usize] = shorter;
                let found = self.trie.texts[shorter as usize];
                match &mut self.trie.texts[child as usize] {
                    none if *none == NONE => *none = found,
                    own => self.inner[*own as usize] = found,
                }
            }
        }
    }

    fn fill(&mut self, rows: usize) {
        let width = 1 << self.row_bits;
        let mut table = Vec::with_capacity(rows * width);
        for state in 0..rows {
            let from = table.len();
            if state == 0 {
                table.resize(width, ROOT);
            } else {
                let shorter = self.shorter[state] as usize * width;
                table.extend_from_within(shorter..shorter + width);
            }
            for child in self.trie.children[state]..self.trie.children[state + 1] {
                let byte = self.trie.bytes[child as usize];
                table[from + usize::from(self.columns[usize::from(byte)])] = child;
            }
        }
        self.table = table;
        self.rows = number(rows);
    }

    pub(super) fn next(&self, from: u32, byte: u8) -> u32 {
        let mut state = from;
        loop {
            if state < self.rows {
                let column = self.columns[usize::from(byte)];
                return self.table[((state as usize) << self.row_bits) + usize::from(column)];
            }
            if let Some(child) = self.trie.child(state, byte) {
                return child;
            }
            if state == ROOT {
                return ROOT;
            }
            // The depth becomes less, and each byte adds at most one to it: at most two steps a byte on average.
            state = self.shorter[state as usize];
        }
    }

    /// The longest text that ends at this state.
    pub(super) fn text(&self, state: u32) -> Option<u32> {
        self.trie.text(state)
    }

    /// The longest other text that this text ends with.
    pub(super) fn inner(&self, text: u32) -> Option<u32> {
        some(self.inner[text as usize])
    }

    pub(super) fn table_bytes(&self) -> usize {
        self.table.len() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All texts and where they end, by the finder.
    fn found(finder: &Finder, value: &str) -> Vec<(usize, u32)> {
        let mut all = Vec::new();
        let mut state = ROOT;
        for (at, byte) in value.bytes().enumerate() {
            state = finder.next(state, byte);
            let texts = std::iter::successors(finder.text(state), |text| finder.inner(*text));
            all.extend(texts.map(|text| (at + 1, text)));
        }
        all
    }

    #[test]
    fn a_finder_finds_each_text_at_each_place_with_a_table_of_any_size() {
        let texts = ["a", "aa", "aab", "ab", "abab", "b", "bab", "日", "本日"];
        let values = ["", "aabab", "aaaa", "babab", "c", "日本日a", "abababbaab"];
        for table_bytes_max in [0, 4 * 16 * 3, 1 << 20] {
            let finder = Finder::new(&texts, table_bytes_max);
            assert!(finder.table_bytes() <= table_bytes_max);
            for value in values {
                let mut expected = Vec::new();
                for end in 1..=value.len() {
                    // The longest first.
                    let mut here: Vec<_> = (0..)
                        .zip(texts)
                        .filter(|(_, text)| value.as_bytes()[..end].ends_with(text.as_bytes()))
                        .collect();
                    here.sort_by_key(|(_, text)| std::cmp::Reverse(text.len()));
                    expected.extend(here.into_iter().map(|(text, _)| (end, text)));
                }
                assert_eq!(found(&finder, value), expected, "{value} with {table_bytes_max}");
            }
        }
    }

    #[test]
    fn texts_that_end_with_one_another_take_no_more_memory_than_others() {
        let mut texts: Vec<String> = (1..=1_000).map(|count| "a".repeat(count)).collect();
        texts.extend(["b", "c", "d"].map(|first| format!("{first}{}", "a".repeat(4_000))));
        let finder = Finder::new(&texts, 0);
        assert_eq!(finder.trie.len(), 1 + 1_000 + 3 * 4_001);
        assert_eq!(finder.inner.len(), texts.len());
        assert_eq!(found(&finder, &"a".repeat(1_000)).len(), 500_500);
    }
}
