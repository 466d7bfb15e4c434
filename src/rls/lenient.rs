//! Requests whose texts are no UTF-8.
//!
//! Envoy copies the bytes of headers and paths into fields that protobuf wants to be UTF-8. A client chooses those bytes, and
//! Envoy's default lets a request pass whose descriptor is refused: one byte would be a way round every limit. So such a
//! byte is read as a character of its own, and a text that has such a character is read byte by byte there. [ky-6]
//! Not here: what else can be wrong with a request (convert.rs).

use prost::{DecodeError, Message as _, encode_length_delimiter};

use super::fields::{Content, field};
use super::proto::RateLimitRequest;
use super::request::Request;
use super::spelling::{respell, text};

/// Decodes a request. `message` is where one is kept whose bytes cannot be read as they are.
///
/// # Errors
/// When it is none, for another reason than bytes that are no UTF-8 in a domain, a key or a value.
pub fn decode<'a>(bytes: &'a [u8], message: &'a mut RateLimitRequest) -> Result<Request<'a>, DecodeError> {
    if let Some(request) = Request::read(bytes) {
        return Ok(request);
    }
    *message = match RateLimitRequest::decode(bytes) {
        Ok(mut decoded) => {
            respell(&mut decoded);
            decoded
        }
        Err(error) => match with_texts(bytes, Part::Request) {
            Some(texts) if texts != bytes => RateLimitRequest::decode(&*texts)?,
            _ => return Err(error),
        },
    };
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
        let mut respelt = request(value);
        // As one that was read as JSON.
        respell(&mut respelt);
        assert_eq!(respelt.descriptors[1].entries[1].value, text(value.as_bytes()));
        assert_ne!(text(value.as_bytes()), value);
        assert_eq!(decoded(&request(value).encode_to_vec()), Ok(respelt));
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
