//! A request as a view of its bytes: reading copies no text.
//!
//! [`read`](Request::read) keeps no more descriptors and entries than any setting allows, so the memory of a request is bounded.
//! Not here: texts that are not UTF-8 (lenient.rs), and the bounds of the settings (convert.rs).

use prost::Message as _;
use smallvec::SmallVec;
use weir_engine::Entry;
use weir_protobuf::{Content, FIELDS_MAX, field};

use super::proto::rate_limit_descriptor::RateLimitOverride;
use super::proto::{RateLimitDescriptor, RateLimitRequest, rate_limit_descriptor};
use super::spelling::{may_need_spelling, plain};

/// The most descriptors of a request that are kept: the largest `limits.descriptors`.
pub const DESCRIPTORS_KEPT_MAX: usize = 64;
/// The most entries of a descriptor that are kept: the largest `limits.entries`.
pub const ENTRIES_KEPT_MAX: usize = 64;
/// In a longer message each text is checked separately, because most texts may never be read.
const BYTES_LOOKED_AT_MAX: usize = 16 * 1_024;
/// The first capacity for several descriptors.
const DESCRIPTORS_USUAL: usize = 4;

/// A `RateLimitRequest` with borrowed texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request<'a> {
    pub domain: &'a str,
    /// The first [`DESCRIPTORS_KEPT_MAX`] descriptors.
    pub descriptors: SmallVec<[Descriptor<'a>; 1]>,
    /// A lower bound of the number of further descriptors; 0 if there are none.
    pub descriptors_left_out: u32,
    /// The hits of the request; 0 means 1.
    pub hits_addend: u32,
    /// The number of a field in a limit that weir does not know; 0 if there is none. Such a field may change what the
    /// limit means.
    pub unknown_limit_field: u32,
}

/// A `RateLimitDescriptor` with borrowed texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Descriptor<'a> {
    /// The first [`ENTRIES_KEPT_MAX`] entries.
    pub entries: SmallVec<[Entry<'a>; 2]>,
    /// A lower bound of the number of further entries; 0 if there are none.
    pub entries_left_out: u32,
    pub limit: Option<RateLimitOverride>,
    /// The hits of this descriptor, which replace those of the request.
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back.
    pub is_negative_hits: bool,
    /// Where the entry with a receipt was that is no longer in `entries`. Errors count it.
    pub receipt_at: Option<u8>,
}

impl<'a> Request<'a> {
    /// Reads a request from the bytes of a message. None if they are not a message, have more than [`FIELDS_MAX`]
    /// fields, or have a text that is not UTF-8. Reading stops at the first part beyond a bound, because the request
    /// will be refused.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        // For a usual request, checking all bytes at once is cheaper than checking each text.
        if bytes.len() > BYTES_LOOKED_AT_MAX || may_need_spelling(bytes) {
            Self::read_plain(bytes)
        } else {
            Self::with_texts(bytes, &mut |text| str::from_utf8(text).ok())
        }
    }

    #[cold]
    fn read_plain(bytes: &'a [u8]) -> Option<Self> {
        Self::with_texts(bytes, &mut |text| plain(text))
    }

    /// Reads a request, with what `text` returns for the bytes of each text. None if the bytes are not a message.
    pub(super) fn with_texts(mut bytes: &'a [u8], text: &mut impl FnMut(&'a [u8]) -> Option<&'a str>) -> Option<Self> {
        let mut request = Self::default();
        let mut fields_left = FIELDS_MAX;
        while !bytes.is_empty() {
            fields_left = fields_left.checked_sub(1)?;
            match field(&mut bytes)? {
                (1, Content::Bytes(part)) => request.domain = text(part)?,
                (2, Content::Bytes(part)) => {
                    match request.descriptors.len() {
                        // After a second descriptor there are usually more.
                        1 => request.descriptors.reserve(DESCRIPTORS_USUAL - 1),
                        DESCRIPTORS_KEPT_MAX.. => {
                            request.descriptors_left_out = 1;
                            break;
                        }
                        _ => {}
                    }
                    request.descriptors.push(Descriptor::read(part, text, &mut request.unknown_limit_field)?);
                }
                // protobuf uses the lower bits of a longer number.
                (3, Content::Number(hits)) => request.hits_addend = (hits & 0xffff_ffff) as u32,
                (1..=3, _) => return None,
                _ => {}
            }
        }
        Some(request)
    }

    /// The message of this view, without omitted parts.
    pub fn message(&self) -> RateLimitRequest {
        let entry =
            |entry: &Entry<'_>| rate_limit_descriptor::Entry { key: entry.key.into(), value: entry.value.into() };
        let descriptor = |descriptor: &Descriptor<'_>| RateLimitDescriptor {
            entries: descriptor.entries.iter().map(entry).collect(),
            limit: descriptor.limit,
            hits_addend: descriptor.hits_addend.map(Into::into),
            is_negative_hits: descriptor.is_negative_hits,
        };
        let descriptors = self.descriptors.iter().map(descriptor).collect();
        RateLimitRequest { domain: self.domain.into(), descriptors, hits_addend: self.hits_addend }
    }

    pub fn of(message: &'a RateLimitRequest) -> Self {
        let descriptors = message.descriptors.iter().map(Descriptor::of).collect();
        Self { domain: &message.domain, descriptors, hits_addend: message.hits_addend, ..Self::default() }
    }
}

impl<'a> Descriptor<'a> {
    fn read(
        mut bytes: &'a [u8],
        text: &mut impl FnMut(&'a [u8]) -> Option<&'a str>,
        unknown_limit_field: &mut u32,
    ) -> Option<Self> {
        let mut descriptor = Self::default();
        let mut fields_left = FIELDS_MAX;
        while !bytes.is_empty() {
            fields_left = fields_left.checked_sub(1)?;
            match field(&mut bytes)? {
                (1, Content::Bytes(_)) if descriptor.entries.len() >= ENTRIES_KEPT_MAX => {
                    descriptor.entries_left_out = 1;
                    break;
                }
                (1, Content::Bytes(part)) => descriptor.entries.push(entry(part, text)?),
                // A message may come in several parts.
                (2, Content::Bytes(part)) => {
                    descriptor.limit.get_or_insert_default().merge(part).ok()?;
                    if let Some(number) = unknown_field(part) {
                        *unknown_limit_field = number;
                    }
                }
                (3, Content::Bytes(part)) => descriptor.hits_addend.get_or_insert_default().merge(part).ok()?,
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
            entries_left_out: 0,
            limit: message.limit,
            hits_addend: message.hits_addend.as_ref().map(|hits| hits.value),
            is_negative_hits: message.is_negative_hits,
            receipt_at: None,
        }
    }
}

/// The number of the first field of a limit that [`RateLimitOverride`] does not have.
fn unknown_field(mut limit: &[u8]) -> Option<u32> {
    const KNOWN_MAX: u64 = 3;
    while !limit.is_empty() {
        let (number, _) = field(&mut limit)?;
        if number > KNOWN_MAX {
            return u32::try_from(number).ok();
        }
    }
    None
}

fn entry<'a>(mut bytes: &'a [u8], text: &mut impl FnMut(&'a [u8]) -> Option<&'a str>) -> Option<Entry<'a>> {
    let mut entry = Entry { key: "", value: "" };
    let mut fields_left = FIELDS_MAX;
    while !bytes.is_empty() {
        fields_left = fields_left.checked_sub(1)?;
        match field(&mut bytes)? {
            (1, Content::Bytes(part)) => entry.key = text(part)?,
            (2, Content::Bytes(part)) => entry.value = text(part)?,
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
        let limit = RateLimitOverride { requests_per_unit: 1 << 20, unit: 3, unit_multiplier: Some(90.into()) };
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

    fn compare(bytes: &[u8]) {
        let message = RateLimitRequest::decode(bytes);
        let message = message.as_ref().ok().map(Request::of);
        // The generated decoder drops unknown fields.
        let read = Request::read(bytes).map(|read| Request { unknown_limit_field: 0, ..read });
        assert_eq!(read, message, "{bytes:02x?}");
    }

    #[test]
    fn a_field_that_is_not_known_is_found_in_limits_only() {
        let unknown = |bytes: &[u8]| Request::read(bytes).expect("a request").unknown_limit_field;
        assert_eq!(unknown(&full().encode_to_vec()), 0);
        // A limit of 5 in one SECOND, and then the field 4, or 900 in a second part of the limit.
        assert_eq!(unknown(b"\x12\x08\x12\x06\x08\x05\x10\x01\x20\x07"), 4);
        assert_eq!(unknown(b"\x12\x0b\x12\x04\x08\x05\x10\x01\x12\x03\xa0\x38\x07"), 900);
        assert_eq!(unknown(b"\x12\x02\x28\x01\x28\x01"), 0, "of a descriptor and of a request");
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
    fn unusual_forms_are_read_as_by_the_generated_decoder() {
        // A limit and hits in two parts, a number that does not fit, groups, unknown fields.
        let parts = b"\x12\x10\x12\x02\x08\x05\x12\x02\x10\x03\x1a\x02\x08\x07\x1a\x00\x20\x02";
        let groups = |count: usize| [[0x23, 0x2b].repeat(count), [0x2c, 0x24].repeat(count)].concat();
        let unknown = b"\x7a\x01x\x78\x05\x7d1234\x7912345678";
        for bytes in [&parts[..], b"\x18\xff\xff\xff\xff\x1f", &groups(40), unknown] {
            compare(bytes);
            assert!(Request::read(bytes).is_some(), "{bytes:02x?}");
        }
        // Groups that nest too deep, end in another order or never end; a field of the wrong type; a text that is not
        // UTF-8.
        for bytes in [&groups(60)[..], b"\x23", b"\x23\x1c", b"\x24", b"\x08\x01", b"\x0a\x01\xff"] {
            compare(bytes);
            assert_eq!(Request::read(bytes), None, "{bytes:02x?}");
        }
    }

    #[test]
    fn what_is_past_the_largest_bounds_is_not_read() {
        let mut message = full();
        let entry = message.descriptors[0].entries[0].clone();
        message.descriptors[0].entries = vec![entry; ENTRIES_KEPT_MAX + 3];
        message.descriptors.resize(DESCRIPTORS_KEPT_MAX + 7, RateLimitDescriptor::default());
        let bytes = message.encode_to_vec();
        let read = Request::read(&bytes).expect("a request");
        assert_eq!((read.descriptors.len(), read.descriptors_left_out), (DESCRIPTORS_KEPT_MAX, 1));
        let descriptor = &read.descriptors[0];
        assert_eq!((descriptor.entries.len(), descriptor.entries_left_out), (ENTRIES_KEPT_MAX, 1));
    }

    #[test]
    fn a_message_has_a_bounded_number_of_fields() {
        for (field, name) in [(&b"\x78\x01"[..], "an unknown one"), (b"\x0a\x00", "a known one")] {
            assert!(Request::read(&field.repeat(FIELDS_MAX)).is_some(), "{name}");
            assert!(Request::read(&field.repeat(FIELDS_MAX + 1)).is_none(), "{name}");
        }
        let group = |fields: usize| [b"\x7b".to_vec(), b"\x78\x01".repeat(fields), b"\x7c".to_vec()].concat();
        assert!(Request::read(&group(FIELDS_MAX)).is_some());
        assert!(Request::read(&group(FIELDS_MAX + 1)).is_none());
    }
}
