//! The state after the beginning of a text, besides the patterns: whether the text is UTF-8, whether it equals one of
//! some texts, and where it splits into a key and a value.

use hashbrown::HashMap;

/// The position within the bytes of a character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum Utf8 {
    /// Between two characters.
    #[default]
    Between,
    /// This many bytes of 80 to bf follow.
    More(u8),
    /// One byte in this range follows, and then this many of 80 to bf.
    Next(u8, u8, u8),
}

impl Utf8 {
    /// The position after one more byte; none if this is not UTF-8.
    pub(super) fn read(self, byte: u8) -> Option<Self> {
        let left = |more: u8| if more == 0 { Self::Between } else { Self::More(more) };
        Some(match (self, byte) {
            (Self::Between, 0..=0x7f) => Self::Between,
            (Self::Between, 0xc2..=0xdf) => Self::More(1),
            (Self::Between, 0xe0) => Self::Next(0xa0, 0xbf, 1),
            (Self::Between, 0xed) => Self::Next(0x80, 0x9f, 1),
            (Self::Between, 0xe1..=0xef) => Self::More(2),
            (Self::Between, 0xf0) => Self::Next(0x90, 0xbf, 2),
            (Self::Between, 0xf1..=0xf3) => Self::More(3),
            (Self::Between, 0xf4) => Self::Next(0x80, 0x8f, 2),
            (Self::More(more), 0x80..=0xbf) => left(more - 1),
            (Self::Next(low, high, more), byte) if (low..=high).contains(&byte) => left(more),
            _ => return None,
        })
    }

    /// The class of a byte. Bytes of one class have the same effect.
    pub(super) fn byte_class(byte: u8) -> u8 {
        let firsts = [0x80, 0x90, 0xa0, 0xc0, 0xc2, 0xe0, 0xe1, 0xed, 0xee, 0xf0, 0xf1, 0xf4, 0xf5];
        let class = firsts.iter().take_while(|first| byte >= **first).count();
        u8::try_from(class).unwrap_or(u8::MAX)
    }
}

/// A set of texts, searched by their beginnings.
#[derive(Debug)]
pub(super) struct Texts {
    next: HashMap<(u32, u8), u32>,
    whole: Vec<bool>,
    bytes: [bool; 256],
}

impl Default for Texts {
    fn default() -> Self {
        Self { next: HashMap::new(), whole: vec![false], bytes: [false; 256] }
    }
}

/// The beginning of a text: a position among the texts; none if no text begins like this.
pub(super) type Beginning = Option<u32>;

pub(super) const BEGIN: Beginning = Some(0);

impl Texts {
    pub(super) fn new<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let mut all = Self::default();
        for text in texts {
            let mut at = 0;
            for byte in text.bytes() {
                #[expect(clippy::cast_possible_truncation, reason = "a place takes more than a byte of memory")]
                let fresh = all.whole.len() as u32;
                all.bytes[usize::from(byte)] = true;
                at = *all.next.entry((at, byte)).or_insert(fresh);
                if at == fresh {
                    all.whole.push(false);
                }
            }
            all.whole[at as usize] = true;
        }
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next.is_empty()
    }

    /// Whether one of the texts contains the byte.
    pub(super) fn have(&self, byte: u8) -> bool {
        self.bytes[usize::from(byte)]
    }

    pub(super) fn read(&self, at: Beginning, byte: u8) -> Beginning {
        self.next.get(&(at?, byte)).copied()
    }

    /// Whether the position is the end of one of the texts.
    pub(super) fn has(&self, at: Beginning) -> bool {
        at.is_some_and(|at| self.whole[at as usize])
    }
}

/// Whether a text can be split at a `_` into a value and a key that is not one of some texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Cut {
    /// Not yet.
    Not(Beginning),
    /// Yes, for every continuation.
    Is,
}

impl Cut {
    pub(super) const fn begin() -> Self {
        Self::Not(BEGIN)
    }

    pub(super) fn read(self, keys: &Texts, byte: u8) -> Self {
        match self {
            Self::Is => Self::Is,
            Self::Not(at) if byte == b'_' && at != BEGIN && !keys.has(at) => Self::Is,
            Self::Not(at) => Self::Not(keys.read(at, byte)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_utf8_as_the_language_has_it() {
        let read = |bytes: &[u8]| bytes.iter().try_fold(Utf8::default(), |at, byte| at.read(*byte));
        for character in
            ['a', '\u{7f}', '\u{80}', 'ß', '\u{7ff}', '\u{800}', '\u{d7ff}', '\u{e000}', '日', '\u{10ffff}']
        {
            let mut bytes = [0; 4];
            let text = character.encode_utf8(&mut bytes);
            assert_eq!(read(text.as_bytes()), Some(Utf8::Between), "{character}");
        }
        for high in 0x80..=0xff {
            for low in 0..=0xff {
                for bytes in [&[high, low][..], &[high, low, 0x80], &[high, low, 0x80, 0x80]] {
                    let is_text = std::str::from_utf8(bytes).is_ok();
                    assert_eq!(read(bytes) == Some(Utf8::Between), is_text, "{bytes:x?}");
                }
            }
        }
    }

    #[test]
    fn a_text_is_cut_where_the_key_has_no_other_rules() {
        let keys = Texts::new(["user", "a_b"]);
        let is_cut = |text: &str| text.bytes().fold(Cut::begin(), |cut, byte| cut.read(&keys, byte)) == Cut::Is;
        for (text, expected) in
            [("user_x", false), ("user_x_", true), ("use_x", true), ("_x", false), ("_x_", true), ("a_b_c", true)]
        {
            assert_eq!(is_cut(text), expected, "{text}");
        }
        assert!(!is_cut("user"));
    }
}
