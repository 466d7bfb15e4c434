//! The encoding of callers' texts: each byte that is not UTF-8 is represented by its own character. [ky-6]
//!
//! Not here: reading messages (lenient.rs, request.rs, json.rs).

use sha2::{Digest as _, Sha256};

/// The character for the byte 0, near the end of Unicode's last private area; those for other bytes follow. Bytes below
/// 0x80 need no such character, so this one marks the digest of a long text.
const BYTES: u32 = 0x10_ff00;
/// A longer text that is not UTF-8 is replaced by its digest, because the encoded text could exceed the bound of a
/// value.
pub(super) const SPELT_BYTES_MAX: usize = 4_096;

/// Writes bytes that are not [`plain`] as a text: UTF-8 unchanged, and each other byte as its character. A character in the input
/// that represents a byte is written as four encoded bytes. So different bytes give different texts. [ky-6]
pub(super) fn spell(bytes: &[u8], to: &mut Vec<u8>) {
    if bytes.len() > SPELT_BYTES_MAX {
        put_byte(0, to);
        for byte in Sha256::digest(bytes) {
            to.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        return;
    }
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            let mut octets = [0; 4];
            let octets = character.encode_utf8(&mut octets).as_bytes();
            if stands_for_byte(character) {
                octets.iter().for_each(|&octet| put_byte(octet, to));
            } else {
                to.extend_from_slice(octets);
            }
        }
        chunk.invalid().iter().for_each(|&byte| put_byte(byte, to));
    }
}

fn put_byte(byte: u8, to: &mut Vec<u8>) {
    if let Some(character) = char::from_u32(BYTES + u32::from(byte)) {
        to.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

/// The text of these bytes, if it needs no encoding.
pub fn plain(bytes: &[u8]) -> Option<&str> {
    // Looks for such a character first: a long text that has one is not checked as a whole.
    if may_need_spelling(bytes) && bytes.windows(4).any(is_encoded_byte) {
        return None;
    }
    str::from_utf8(bytes).ok()
}

/// Whether these bytes are a character that represents a byte.
fn is_encoded_byte(bytes: &[u8]) -> bool {
    bytes[0] == 0xf4 && str::from_utf8(bytes).is_ok_and(|text| text.chars().any(stands_for_byte))
}

/// Whether these bytes may contain a character that represents a byte. Every such character begins with 0xf4.
pub(super) fn may_need_spelling(bytes: &[u8]) -> bool {
    // Almost all requests are ASCII, and that check is faster.
    !bytes.is_ascii() && bytes.contains(&0xf4)
}

/// Encodes each character that represents a byte as its four bytes. [ky-6]
pub fn respelt(text: String) -> String {
    if plain(text.as_bytes()).is_some() {
        return text;
    }
    let mut to = Vec::new();
    spell(text.as_bytes(), &mut to);
    // Only whole characters are written.
    String::from_utf8(to).unwrap_or_default()
}

/// Whether [`spell`] uses this character for a byte or for a digest.
fn stands_for_byte(character: char) -> bool {
    let number = u32::from(character);
    number == BYTES || number >= BYTES + 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        if let Some(text) = plain(bytes) {
            return text.to_owned();
        }
        let mut text = Vec::new();
        spell(bytes, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_byte_and_the_character_that_stands_for_it_share_no_text() {
        let character = |number: u32| char::from_u32(number).unwrap().to_string().into_bytes();
        let long = vec![0xff; SPELT_BYTES_MAX + 1];
        let mut inputs: Vec<Vec<u8>> = (0x80..=0xff).map(|byte| vec![byte]).collect();
        inputs.extend((BYTES..=0x10_ffff).map(character));
        // Each byte of a character, spelt as a byte, and the text of a digest.
        inputs.push(text(&character(0x10_ffff)).into_bytes());
        inputs.push(text(&long).into_bytes());
        inputs.push(long);
        let texts: std::collections::BTreeSet<String> = inputs.iter().map(|bytes| text(bytes)).collect();
        assert_eq!(texts.len(), inputs.len(), "different bytes, different texts");
        assert_eq!(text(b"\xff"), "\u{10ffff}", "the states of such bytes keep their keys");
        assert_eq!(text(&character(0x10_ffff)), "\u{10fff4}\u{10ff8f}\u{10ffbf}\u{10ffbf}");
        for kept in [BYTES + 1, BYTES + 0x7f, BYTES - 1, 0x10_0000] {
            assert_eq!(text(&character(kept)).into_bytes(), character(kept), "{kept:x}");
        }
    }

    #[test]
    fn long_texts_become_short_ones_that_differ() {
        let long = vec![0xff; 60_000];
        let mut other = long.clone();
        other[59_999] = 0xfe;
        let (long, other) = (text(&long), text(&other));
        assert!(long.len() < 100 && other.len() < 100 && long != other, "{long} {other}");
        let valid = "v".repeat(60_000);
        assert_eq!(text(valid.as_bytes()), valid);
        assert_eq!(text(&[0xff; SPELT_BYTES_MAX]).chars().count(), SPELT_BYTES_MAX);
    }
}
