//! How texts of callers are spelt: bytes that are no UTF-8 have characters of their own. [ky-6]
//!
//! Not here: reading messages (lenient.rs, request.rs, json.rs).

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

use super::proto::RateLimitRequest;

/// The byte 0 as a character: from the end of Unicode's last private area, so that each byte has one of its own. It begins
/// the digest of a long text; bytes below 0x80 are never written so.
const BYTES: u32 = 0x10_ff00;
/// A longer text that is no UTF-8 becomes its digest: written out, it could be beyond the bounds on a value.
const SPELT_BYTES_MAX: usize = 4_096;

/// Bytes as a text: those that are UTF-8 as they are, and each other byte as a character of its own. A character that stands
/// for a byte is written as its four bytes. Different bytes give different texts. [ky-6]
#[must_use]
pub fn text(bytes: &[u8]) -> String {
    if bytes.len() > SPELT_BYTES_MAX && plain(bytes).is_none() {
        let mut text: String = char::from_u32(BYTES).into_iter().collect();
        for byte in Sha256::digest(bytes) {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        return text;
    }
    let spelt = |byte: &u8| char::from_u32(BYTES + u32::from(*byte));
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if stands_for_byte(character) {
                text.extend(character.encode_utf8(&mut [0; 4]).as_bytes().iter().filter_map(spelt));
            } else {
                text.push(character);
            }
        }
        text.extend(chunk.invalid().iter().filter_map(spelt));
    }
    text
}

/// The text of these bytes, if it needs no other spelling.
#[must_use]
pub fn plain(bytes: &[u8]) -> Option<&str> {
    let text = str::from_utf8(bytes).ok()?;
    // Every such character begins with this byte.
    (!bytes.contains(&0xf4) || !text.chars().any(stands_for_byte)).then_some(text)
}

/// Spells each text of a request as [`text`] does.
pub fn respell(message: &mut RateLimitRequest) {
    let entries = message.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries);
    let texts = entries.flat_map(|entry| [&mut entry.key, &mut entry.value]);
    for own in texts.chain([&mut message.domain]) {
        if plain(own.as_bytes()).is_none() {
            *own = text(own.as_bytes());
        }
    }
}

/// Whether [`text`] writes this character for a byte or for a digest.
fn stands_for_byte(character: char) -> bool {
    let number = u32::from(character);
    number == BYTES || number >= BYTES + 0x80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_and_the_character_that_stands_for_it_share_no_text() {
        let character = |number: u32| char::from_u32(number).unwrap().to_string().into_bytes();
        let long = vec![0xff; SPELT_BYTES_MAX + 1];
        let mut inputs: Vec<Vec<u8>> = (0x80..=0xff).map(|byte| vec![byte]).collect();
        inputs.extend((BYTES..=0x10_ffff).map(character));
        // Each byte of a character, spelt as that byte is, and the text of a digest.
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
