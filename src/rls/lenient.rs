//! Reads requests with texts that are not UTF-8.
//!
//! Envoy copies bytes of headers and paths into fields that must be UTF-8. A client chooses those bytes. If weir
//! refused the request, Envoy would let it pass by default, so one byte would evade every limit. Therefore each such
//! byte is read as its own character. A text that contains such a character is encoded again, byte by byte. [ky-6] Not
//! here: other mistakes of a request (convert.rs).

use weir_protobuf::FIELDS_MAX;

use super::request::Request;
use super::spelling::{plain, spell};

/// The most bytes by which the texts of a request may grow in total, when bytes that are not UTF-8 become characters.
pub const GROWTH_BYTES_MAX: usize = 1 << 20;
/// Ends each text in the list of encoded texts. It is in no text of UTF-8.
const END: u8 = 0xff;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// They are not a message of the protocol.
    #[error("not a RateLimitRequest in protobuf, or more than {FIELDS_MAX} fields in a message of it")]
    Malformed,
    /// Their texts would grow too much.
    #[error("request: replacing bytes that are not UTF-8 adds {0} bytes, at most {GROWTH_BYTES_MAX}")]
    Growth(usize),
}

/// Decodes a request. `texts` receives the texts that are not UTF-8, encoded, because the request borrows them.
///
/// # Errors
/// When the bytes are not a request, or have too many bytes that are not UTF-8 in domain, keys and values.
pub fn decode<'a>(bytes: &'a [u8], texts: &'a mut Vec<u8>) -> Result<Request<'a>, Unreadable> {
    if let Some(request) = Request::read(bytes) {
        return Ok(request);
    }
    let mut growth = 0;
    let mut encode = |text: &'a [u8]| {
        if plain(text).is_none() {
            let start = texts.len();
            spell(text, texts);
            growth += (texts.len() - start).saturating_sub(text.len());
            texts.push(END);
        }
        if growth > GROWTH_BYTES_MAX {
            // The rest is only counted.
            texts.clear();
        }
        Some("")
    };
    Request::with_texts(bytes, &mut encode).ok_or(Unreadable::Malformed)?;
    if growth > GROWTH_BYTES_MAX {
        return Err(Unreadable::Growth(growth));
    }
    let mut encoded = texts.split(|byte| *byte == END);
    let mut text = |text: &'a [u8]| plain(text).or_else(|| str::from_utf8(encoded.next()?).ok());
    Request::with_texts(bytes, &mut text).ok_or(Unreadable::Malformed)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::super::proto::rate_limit_descriptor::Entry;
    use super::super::proto::{RateLimitDescriptor, RateLimitRequest};
    use super::super::request::DESCRIPTORS_KEPT_MAX;
    use super::super::spelling::{SPELT_BYTES_MAX, respelt};
    use super::*;

    /// The request that was read, as an owned message.
    fn decoded(bytes: &[u8]) -> Result<RateLimitRequest, Unreadable> {
        decode(bytes, &mut Vec::new()).map(|request| request.message())
    }

    fn request(value: &str) -> RateLimitRequest {
        let entry = |value: &str| Entry { key: "user".to_owned(), value: value.to_owned() };
        let descriptor =
            || RateLimitDescriptor { entries: vec![entry("x"), entry(value)], ..RateLimitDescriptor::default() };
        RateLimitRequest { domain: "shop".to_owned(), descriptors: vec![descriptor(), descriptor()], hits_addend: 300 }
    }

    /// The encoded request, with `byte` in place of each `?`.
    fn with(byte: u8) -> Vec<u8> {
        let bytes = request("a?b?").encode_to_vec();
        bytes.into_iter().map(|b| if b == b'?' { byte } else { b }).collect()
    }

    #[test]
    fn each_byte_that_is_no_utf8_is_a_character_of_its_own() {
        let mut seen = std::collections::BTreeSet::new();
        for byte in 0x80..=0xff {
            let message = decoded(&with(byte)).expect("a request");
            let value = message.descriptors[1].entries[1].value.clone();
            let character = char::from_u32(0x10_ff00 + u32::from(byte)).unwrap();
            assert_eq!(value, format!("a{character}b{character}"));
            assert_eq!(message, request(&value), "all else is as it was");
            assert!(seen.insert(value));
        }
        assert_eq!(decoded(&with(b'!')).unwrap(), request("a!b!"));
    }

    #[test]
    fn a_character_that_stands_for_a_byte_is_respelt_in_every_message() {
        let value = "a\u{10ffff}";
        let respelt = respelt(value.to_owned());
        assert_ne!(respelt, value);
        assert_eq!(decoded(&request(value).encode_to_vec()), Ok(request(&respelt)));
    }

    #[test]
    fn what_is_no_message_stays_refused() {
        let whole = with(0xff);
        for cut in 1..whole.len() {
            let begun = &whole[..cut];
            if let Ok(message) = decoded(begun) {
                assert!(message.encoded_len() >= cut, "cut at {cut}: every byte was read");
            }
        }
        for bytes in [&b"\x0b"[..], b"\xff", b"\x0a\x7fshop", b"\x12\x03\x0a\x7f\xff", b"\x0f\0\0\0\0"] {
            assert_eq!(decoded(bytes), Err(Unreadable::Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_utf8_makes_a_request_longer_by_a_bound() {
        let of = |values: usize| {
            let entry = Entry { key: String::new(), value: "?".repeat(SPELT_BYTES_MAX) };
            let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
            let mut descriptors = vec![descriptor; values.min(32)];
            let more = values - descriptors.len();
            descriptors[0].entries = vec![descriptors[0].entries[0].clone(); more + 1];
            let request = RateLimitRequest { descriptors, ..RateLimitRequest::default() };
            let bytes = request.encode_to_vec();
            bytes.into_iter().map(|byte| if byte == b'?' { 0xff } else { byte }).collect::<Vec<u8>>()
        };
        // Each byte becomes four.
        let most = GROWTH_BYTES_MAX / (3 * SPELT_BYTES_MAX);
        assert!(decoded(&of(most - 1)).is_ok());
        let refused = decode(&of(most + 1), &mut Vec::new())
            .is_err_and(|error| matches!(error, Unreadable::Growth(growth) if growth > GROWTH_BYTES_MAX));
        assert!(refused);
    }

    #[test]
    fn parts_that_are_not_kept_are_left_out_but_the_first() {
        let descriptor = RateLimitDescriptor { entries: vec![Entry::default()], ..RateLimitDescriptor::default() };
        let descriptors = vec![descriptor; DESCRIPTORS_KEPT_MAX + 9];
        let request = RateLimitRequest { domain: "?".to_owned(), descriptors, hits_addend: 2 };
        let mut bytes = request.encode_to_vec();
        bytes[2] = 0xff;
        let mut texts = Vec::new();
        let read = decode(&bytes, &mut texts).unwrap();
        assert_eq!((read.descriptors.len(), read.descriptors_left_out), (DESCRIPTORS_KEPT_MAX, 1));
        assert_eq!(read.domain, "\u{10ffff}");
    }
}
