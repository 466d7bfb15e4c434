//! A request as a view of its bytes: reading one copies no text.
//!
//! [`read`](Request::read) knows the form in which every generated encoder writes a request. Other forms of the same message are
//! lenient.rs' business, as are texts that are spelt in another way (spelling.rs). Not here: whether a request is
//! within its bounds (convert.rs).

use prost::Message as _;
use smallvec::SmallVec;

use super::fields::{Content, field};
use super::proto::rate_limit_descriptor::RateLimitOverride;
use super::proto::{RateLimitDescriptor, RateLimitRequest};
use super::spelling::plain;
use crate::engine::Entry;

/// A request of several descriptors gets room for so many at first.
const DESCRIPTORS_USUAL: usize = 4;

/// A `RateLimitRequest` whose texts are elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request<'a> {
    /// Whose policies apply.
    pub domain: &'a str,
    /// What the request is about.
    pub descriptors: SmallVec<[Descriptor<'a>; 1]>,
    /// What the request costs each limit; 0 is the same as 1.
    pub hits_addend: u32,
}

/// A `RateLimitDescriptor` whose texts are elsewhere.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Descriptor<'a> {
    /// Keys and values.
    pub entries: SmallVec<[Entry<'a>; 2]>,
    /// A limit in place of what the policies say.
    pub limit: Option<RateLimitOverride>,
    /// What this descriptor costs, in place of what the request costs.
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back.
    pub is_negative_hits: bool,
}

impl<'a> Request<'a> {
    /// The request in the bytes of a message; none if they are no message, or one in an unusual form.
    #[must_use]
    pub fn read(mut bytes: &'a [u8]) -> Option<Self> {
        let mut request = Self::default();
        while !bytes.is_empty() {
            match field(&mut bytes)? {
                (1, Content::Bytes(text)) => request.domain = plain(text)?,
                (2, Content::Bytes(part)) => {
                    if request.descriptors.len() == 1 {
                        // The second is seldom the last.
                        request.descriptors.reserve(DESCRIPTORS_USUAL - 1);
                    }
                    request.descriptors.push(Descriptor::read(part)?);
                }
                (3, Content::Number(hits)) => request.hits_addend = u32::try_from(hits).ok()?,
                (1..=3, _) => return None,
                _ => {}
            }
        }
        Some(request)
    }

    /// A view of a message.
    #[must_use]
    pub fn of(message: &'a RateLimitRequest) -> Self {
        let descriptors = message.descriptors.iter().map(Descriptor::of).collect();
        Self { domain: &message.domain, descriptors, hits_addend: message.hits_addend }
    }
}

impl<'a> Descriptor<'a> {
    fn read(mut bytes: &'a [u8]) -> Option<Self> {
        let mut descriptor = Self::default();
        while !bytes.is_empty() {
            match field(&mut bytes)? {
                (1, Content::Bytes(part)) => descriptor.entries.push(entry(part)?),
                // Parts of the same message would have to be merged.
                (2, Content::Bytes(part)) if descriptor.limit.is_none() => {
                    descriptor.limit = Some(RateLimitOverride::decode(part).ok()?);
                }
                (3, Content::Bytes(part)) if descriptor.hits_addend.is_none() => {
                    descriptor.hits_addend = Some(u64::decode(part).ok()?);
                }
                (4, Content::Number(is_negative)) => descriptor.is_negative_hits = is_negative != 0,
                (1..=4, _) => return None,
                _ => {}
            }
        }
        Some(descriptor)
    }

    fn of(message: &'a RateLimitDescriptor) -> Self {
        Self {
            entries: message.entries.iter().map(|entry| Entry { key: &entry.key, value: &entry.value }).collect(),
            limit: message.limit,
            hits_addend: message.hits_addend.as_ref().map(|hits| hits.value),
            is_negative_hits: message.is_negative_hits,
        }
    }
}

fn entry(mut bytes: &[u8]) -> Option<Entry<'_>> {
    let mut entry = Entry { key: "", value: "" };
    while !bytes.is_empty() {
        match field(&mut bytes)? {
            (1, Content::Bytes(text)) => entry.key = plain(text)?,
            (2, Content::Bytes(text)) => entry.value = plain(text)?,
            (1 | 2, _) => return None,
            _ => {}
        }
    }
    Some(entry)
}

#[cfg(test)]
mod tests {
    use super::super::proto::rate_limit_descriptor::Entry as WireEntry;
    use super::*;

    fn full() -> RateLimitRequest {
        let entry = |key: &str, value: &str| WireEntry { key: key.to_owned(), value: value.to_owned() };
        let limit = RateLimitOverride { requests_per_unit: 1 << 20, unit: 3 };
        let descriptor = RateLimitDescriptor {
            entries: vec![entry("user", "ann"), entry("path", "/\u{e4}"), entry("", "")],
            limit: Some(limit),
            hits_addend: Some(300.into()),
            is_negative_hits: true,
        };
        let bare = RateLimitDescriptor::default();
        RateLimitRequest { domain: "shop".to_owned(), descriptors: vec![descriptor, bare], hits_addend: 70_000 }
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        for message in [full(), RateLimitRequest::default()] {
            assert_eq!(Request::read(&message.encode_to_vec()), Some(Request::of(&message)));
        }
    }

    /// Whatever is read is what the generated decoder reads.
    fn compare(bytes: &[u8]) {
        let message = RateLimitRequest::decode(bytes);
        if let Some(read) = Request::read(bytes) {
            let message = message.as_ref().unwrap_or_else(|error| panic!("{error}: {bytes:02x?}"));
            assert_eq!(read, Request::of(message), "{bytes:02x?}");
        }
    }

    #[test]
    fn nothing_is_read_otherwise_than_by_the_generated_decoder() {
        let whole = full().encode_to_vec();
        let mut read = 0;
        for at in 0..whole.len() {
            compare(&whole[..at]);
            for byte in 0..=u8::MAX {
                let mut changed = whole.clone();
                changed[at] = byte;
                compare(&changed);
                read += usize::from(Request::read(&changed).is_some());
                changed.insert(at, byte ^ 0x55);
                compare(&changed);
            }
        }
        assert!(read > 1_000, "{read}: most changes of a text leave a message");
    }

    #[test]
    fn unusual_forms_are_left_to_others() {
        // A limit in two parts, a group, a field of the wrong type, a number that does not fit.
        let parts = b"\x12\x08\x12\x02\x08\x05\x12\x02\x10\x03";
        for bytes in [&parts[..], b"\x23\x24", b"\x08\x01", b"\x18\xff\xff\xff\xff\x1f", b"\x0a\x01\xff"] {
            assert_eq!(Request::read(bytes), None, "{bytes:02x?}");
        }
        // Fields that weir does not know.
        assert_eq!(Request::read(b"\x7a\x01x\x78\x05\x7d1234\x7912345678"), Some(Request::default()));
    }
}
