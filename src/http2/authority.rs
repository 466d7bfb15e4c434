//! Overwrites the `:authority` of requests, so that HTTP/2 accepts a request with any authority.
//!
//! h2 resets a request whose `:authority` is not a host name. Envoy sends the name of its cluster there, such as
//! `outbound|8081||weir.default.svc.cluster.local`. weir does not use the authority.
//!
//! Each `:authority` value is overwritten in place, in the bytes that the peer sent, before h2 reads them.
//! The bytes that replace it have the same number of octets: `X` in a plain text, and the code of `X`, which has eight bits, in
//! a text in Huffman's code. So no length changes, of a value or of a frame. The value in h2's dynamic table is
//! no longer than that in the peer's, because encoders use Huffman's code only where it is shorter. So h2 keeps every entry
//! that the peer keeps, and the indices of both agree (RFC 7541, section 4). A later request that names an entry gets the
//! replaced value. Nothing is buffered: the values are overwritten as they come, however they are cut into frames and reads.
//!
//! Not here: which bytes are a header block (frames.rs), and the decoder (h2). Two forms stay as they are, and h2 resets
//! the stream: an empty value, and a name that is an index into the dynamic table. No encoder known to us sends either.

/// Replaces an octet of a plain text.
const PLAIN: u8 = b'X';
/// Replaces an octet of a Huffman-coded text: the code of `X` (RFC 7541, appendix B).
const HUFFMAN: u8 = 0xfc;
/// The index of `:authority` in the static table.
const INDEX: u8 = 1;
/// The name as a literal, plain and Huffman-coded.
const NAMES: [&[u8]; 2] = [b":authority", b"\xb8\x3b\x53\x39\xec\x32\x7d\x7f"];

/// The position of the reader in a header block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    /// Before a field.
    #[default]
    Field,
    /// In the further octets of a number whose value is not used: of an indexed field, or of a table size.
    Number,
    /// In the further octets of the index of a name that is not `:authority`.
    NameIndex,
    /// Before the length of a name.
    NameLength,
    /// In the further octets of the length of a name.
    MoreNameLength { shift: u8 },
    /// In a name.
    Name,
    /// Before the length of a value.
    ValueLength,
    /// In the further octets of the length of a value.
    MoreValueLength { shift: u8 },
    /// In a value.
    Value,
}

/// Reads the header blocks of one connection, and overwrites values of `:authority`.
#[derive(Debug, Default)]
pub(super) struct Authorities {
    at: At,
    /// The remaining octets of the text.
    left: usize,
    /// The octets of the name so far.
    name_octets: usize,
    /// Whether the text is in Huffman's code.
    is_huffman: bool,
    /// Whether the name so far is a beginning of `:authority`.
    is_authority: bool,
}

impl Authorities {
    pub(super) fn begin(&mut self) {
        self.at = At::Field;
    }

    /// Processes the next octets of the header block.
    pub(super) fn overwrite(&mut self, block: &mut [u8]) {
        let mut read = 0;
        loop {
            if self.at == At::Field {
                // Most fields of most requests are a single octet.
                let fields = block[read..].iter().take_while(|octet| (0x80..0xff).contains(*octet));
                read += fields.count();
            }
            let Some(&octet) = block.get(read) else { return };
            match self.at {
                At::Field => self.field(octet),
                At::Number => self.end_of_number(octet, At::Field),
                At::NameIndex => self.end_of_number(octet, At::ValueLength),
                At::NameLength => {
                    (self.name_octets, self.is_authority) = (0, true);
                    self.length(octet, At::MoreNameLength { shift: 0 }, At::Name);
                }
                At::MoreNameLength { shift } => self.more_length(octet, shift, At::Name),
                At::ValueLength => self.length(octet, At::MoreValueLength { shift: 0 }, At::Value),
                At::MoreValueLength { shift } => self.more_length(octet, shift, At::Value),
                At::Name | At::Value => {
                    let end = read.saturating_add(self.left).min(block.len());
                    self.text(&mut block[read..end]);
                    read = end;
                    continue;
                }
            }
            read += 1;
        }
    }

    /// The first octet of a field (RFC 7541, section 6).
    fn field(&mut self, octet: u8) {
        let (mask, is_literal) = match octet {
            0x80.. => (0x7f, false),
            0x40..0x80 => (0x3f, true),
            0x20..0x40 => (0x1f, false),
            _ => (0x0f, true),
        };
        let number = octet & mask;
        self.at = match (is_literal, number) {
            (false, _) if number == mask => At::Number,
            (false, _) => At::Field,
            (true, 0) => At::NameLength,
            (true, _) if number == mask => At::NameIndex,
            (true, _) => At::ValueLength,
        };
        self.is_authority = is_literal && number == INDEX;
    }

    /// A further octet of a number whose value is not used.
    const fn end_of_number(&mut self, octet: u8, next: At) {
        if octet & 0x80 == 0 {
            self.at = next;
        }
    }

    /// The first octet of the length of a text (RFC 7541, section 5.2).
    fn length(&mut self, octet: u8, more: At, text: At) {
        self.is_huffman = octet & 0x80 != 0;
        self.left = usize::from(octet & 0x7f);
        match self.left {
            0x7f => self.at = more,
            _ => self.begin_text(text),
        }
    }

    /// A further octet of the length of a text. h2 refuses the block if the length exceeds that of a block.
    fn more_length(&mut self, octet: u8, shift: u8, text: At) {
        let more = usize::from(octet & 0x7f).checked_shl(shift.into()).unwrap_or(usize::MAX);
        self.left = self.left.saturating_add(more);
        if octet & 0x80 == 0 {
            self.begin_text(text);
            return;
        }
        let shift = shift.saturating_add(7);
        self.at = if text == At::Name { At::MoreNameLength { shift } } else { At::MoreValueLength { shift } };
    }

    fn begin_text(&mut self, text: At) {
        self.at = text;
        if self.left == 0 {
            self.end_text();
        }
    }

    fn end_text(&mut self) {
        if self.at == At::Name {
            self.is_authority &= NAMES[usize::from(self.is_huffman)].len() == self.name_octets;
            self.at = At::ValueLength;
        } else {
            self.at = At::Field;
        }
    }

    /// A part of a name or a value, at most its remaining octets.
    fn text(&mut self, part: &mut [u8]) {
        if self.at == At::Name {
            let name = NAMES[usize::from(self.is_huffman)];
            let end = self.name_octets.saturating_add(part.len());
            self.is_authority &= name.get(self.name_octets..end) == Some(&*part);
            self.name_octets = end;
        } else if self.is_authority {
            part.fill(if self.is_huffman { HUFFMAN } else { PLAIN });
        }
        self.left -= part.len();
        if self.left == 0 {
            self.end_text();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The block as h2 receives it. The result does not depend on how it is cut.
    fn overwritten(block: &[u8]) -> Vec<u8> {
        let sizes = (1..=block.len().min(400)).chain([block.len()]);
        let mut results: Vec<Vec<u8>> = sizes
            .map(|size| {
                let mut authorities = Authorities::default();
                let mut block = block.to_vec();
                block.chunks_mut(size).for_each(|part| authorities.overwrite(part));
                assert_eq!(authorities.at, At::Field, "the block is read to its end");
                block
            })
            .collect();
        results.dedup();
        assert_eq!(results.len(), 1, "{results:?}");
        results.remove(0)
    }

    fn length(flag: u8, length: usize) -> Vec<u8> {
        let Some(mut more) = length.checked_sub(0x7f) else { return vec![flag | u8::try_from(length).unwrap()] };
        let mut octets = vec![flag | 0x7f];
        while more >= 0x80 {
            octets.push(0x80 | u8::try_from(more & 0x7f).unwrap());
            more >>= 7;
        }
        octets.push(u8::try_from(more).unwrap());
        octets
    }

    fn text(flag: u8, octets: &[u8]) -> Vec<u8> {
        [length(flag, octets.len()), octets.to_vec()].concat()
    }

    #[test]
    fn an_authority_is_overwritten_in_every_form_of_a_field() {
        for octets in [1, 3, 126, 127, 128, 300, 16_511] {
            for (flag, replaced) in [(0, PLAIN), (0x80, HUFFMAN)] {
                let (value, expected) = (text(flag, &vec![0x7c; octets]), text(flag, &vec![replaced; octets]));
                let names: [&[u8]; 8] = [
                    b"\x41",
                    b"\x01",
                    b"\x11",
                    &[b"\x40", &text(0, NAMES[0])[..]].concat(),
                    &[b"\x00", &text(0, NAMES[0])[..]].concat(),
                    &[b"\x10", &text(0, NAMES[0])[..]].concat(),
                    &[b"\x40", &text(0x80, NAMES[1])[..]].concat(),
                    &[b"\x10", &text(0x80, NAMES[1])[..]].concat(),
                ];
                for name in names {
                    let block = [b"\x83\x86", name, &value, b"\x84"].concat();
                    assert_eq!(overwritten(&block), [b"\x83\x86", name, &expected, b"\x84"].concat(), "{octets}");
                }
            }
        }
    }

    #[test]
    fn other_fields_stay_as_they_are() {
        for block in [
            // Indexed fields, one with a large index.
            &b"\x83\x86\x81\xff\x80\x01\xbe"[..],
            // Table sizes.
            b"\x20\x3f\xe1\x1f\x83",
            // Literals of a name in the static table, in the dynamic table, and written out.
            b"\x44\x01/\x7f\x80\x01\x01|\x1f\x01\x01|\x0f\x10\x01|\x04\x81\x7c",
            b"\x40\x0a:authoritx\x01|\x40\x09:authorit\x01|\x00\x0b:authority2\x01|",
            b"\x40\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7e\x01|\x40\x81\xb8\x01|\x40\x00\x01|\x40\x80\x01|",
            // An authority without a value, and the field after it.
            b"\x41\x00\x44\x01|\x41\x80\x44\x01|",
        ] {
            assert_eq!(overwritten(block), block);
        }
    }

    #[test]
    fn a_length_beyond_all_bounds_overwrites_no_more_than_there_is() {
        let mut authorities = Authorities::default();
        let mut block = [&b"\x41\x7f"[..], &[0xff; 12], b"\x01abc"].concat();
        authorities.overwrite(&mut block);
        assert_eq!(authorities.at, At::Value);
        assert!(block.ends_with(b"XXX"));
        authorities.begin();
        authorities.overwrite(&mut block);
    }
}
