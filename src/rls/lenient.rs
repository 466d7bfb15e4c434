//! Requests whose texts are no UTF-8.
//!
//! Envoy copies the bytes of headers and paths into fields that protobuf wants to be UTF-8. A client chooses those bytes, and
//! Envoy's default lets a request pass whose descriptor is refused: one byte would be a way round every limit. So such a
//! byte is read as a character that no text has. Not here: what else can be wrong with a request (convert.rs).

use std::fmt::Write as _;

use prost::{DecodeError, Message as _, encode_length_delimiter};

use sha2::{Digest as _, Sha256};

use super::fields::{Content, field};
use super::proto::RateLimitRequest;
use super::request::Request;

/// The byte 0 as a character: from the end of Unicode's last private area, so that each byte has one of its own.
const BYTES: u32 = 0x10_ff00;
/// A longer text that is no UTF-8 becomes its digest: written out, it could be beyond the bounds on a value.
const SPELT_BYTES_MAX: usize = 4_096;

/// Decodes a request. `message` is where one is kept whose bytes cannot be read as they are.
///
/// # Errors
/// When it is none, for another reason than bytes that are no UTF-8 in a domain, a key or a value.
pub fn decode<'a>(bytes: &'a [u8], message: &'a mut RateLimitRequest) -> Result<Request<'a>, DecodeError> {
    if let Some(request) = Request::read(bytes) {
        return Ok(request);
    }
    *message = RateLimitRequest::decode(bytes).or_else(|error| match with_texts(bytes, Part::Request) {
        Some(texts) if texts != bytes => RateLimitRequest::decode(&*texts),
        _ => Err(error),
    })?;
    Ok(Request::of(message))
}

/// A message on the way to the texts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Request,
    Descriptor,
    Entry,
}

/// What one field of a part is.
enum Field {
    Part(Part),
    Text,
    Other,
}

impl Part {
    /// By the numbers of the proto files.
    const fn field(self, number: u64) -> Field {
        match (self, number) {
            (Self::Request, 2) => Field::Part(Self::Descriptor),
            (Self::Descriptor, 1) => Field::Part(Self::Entry),
            (Self::Request, 1) | (Self::Entry, 1 | 2) => Field::Text,
            _ => Field::Other,
        }
    }
}

/// The message with its texts made UTF-8 and all other fields unchanged; none if the bytes are no message.
fn with_texts(mut bytes: &[u8], part: Part) -> Option<Vec<u8>> {
    let mut to = Vec::with_capacity(bytes.len());
    while !bytes.is_empty() {
        let before = bytes;
        let (number, content) = field(&mut bytes)?;
        let own = &before[..before.len() - bytes.len()];
        let content = match (content, part.field(number)) {
            (Content::Bytes(content), Field::Part(part)) => with_texts(content, part)?,
            (Content::Bytes(content), Field::Text) => text(content).into_bytes(),
            _ => {
                to.extend_from_slice(own);
                continue;
            }
        };
        // The tag ends at the first byte that no other follows.
        let tag = own.iter().position(|byte| byte & 0x80 == 0)? + 1;
        to.extend_from_slice(&own[..tag]);
        encode_length_delimiter(content.len(), &mut to).ok()?;
        to.extend(content);
    }
    Some(to)
}

/// Bytes as a text: those that are UTF-8 as they are, and each other byte as a character of its own. Different bytes give
/// different texts.
fn text(bytes: &[u8]) -> String {
    if bytes.len() > SPELT_BYTES_MAX && std::str::from_utf8(bytes).is_err() {
        let mut text: String = char::from_u32(BYTES).into_iter().collect();
        for byte in Sha256::digest(bytes) {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        return text;
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().filter_map(|&byte| char::from_u32(BYTES + u32::from(byte))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::proto::RateLimitDescriptor;
    use super::super::proto::rate_limit_descriptor::Entry;
    use super::*;

    /// The request that is read, in a message of its own.
    fn decoded(bytes: &[u8]) -> Result<RateLimitRequest, DecodeError> {
        let mut message = RateLimitRequest::default();
        if Request::read(bytes).is_some() {
            return RateLimitRequest::decode(bytes);
        }
        decode(bytes, &mut message)?;
        Ok(message)
    }

    fn request(value: &str) -> RateLimitRequest {
        let entry = |value: &str| Entry { key: "user".to_owned(), value: value.to_owned() };
        let descriptor =
            || RateLimitDescriptor { entries: vec![entry("x"), entry(value)], ..RateLimitDescriptor::default() };
        RateLimitRequest { domain: "shop".to_owned(), descriptors: vec![descriptor(), descriptor()], hits_addend: 300 }
    }

    /// The encoded request with another byte in place of each `?`.
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
            let character = char::from_u32(BYTES + u32::from(byte)).unwrap();
            assert_eq!(value, format!("a{character}b{character}"));
            assert_eq!(message, request(&value), "all else is as it was");
            assert!(seen.insert(value));
        }
        assert_eq!(decoded(&with(b'!')).unwrap(), request("a!b!"));
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
            assert!(decoded(bytes).is_err(), "{bytes:?}");
        }
    }
}
