//! Computes the memory that the resources of a response will need, before they are decoded.
//!
//! An empty descriptor has two bytes in a response, and up to four kilobytes while policies are read. So the messages
//! in each resource are counted without allocating, and a response that would need too much is refused. Not here: the
//! meaning of the messages (resource.rs).

use std::fmt;

use weir_protobuf::{Content, field};

/// The resources of a response may use this many bytes of memory for each of their own bytes, plus [`MEMORY_MIN`].
pub const MEMORY_PER_BYTE: u64 = 128;
/// See [`MEMORY_PER_BYTE`].
pub const MEMORY_MIN: u64 = 128 << 20;
/// They may never use more than this many bytes for each byte of the largest response, or [`MEMORY_MIN`] if that is
/// more.
pub const MEMORY_PER_BYTE_MAX: u64 = 32;
/// The deepest nesting of messages, as in the generated decoders.
const DEPTH_MAX: usize = 100;

/// The messages that a resource can have any number of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Config,
    Descriptor,
    Limit,
    Replaced,
    Struct,
    Member,
    Value,
    List,
}

impl Kind {
    /// The message in a field of this one, by the field numbers of the proto files.
    const fn below(self, number: u64) -> Option<Self> {
        Some(match (self, number) {
            (Self::Config, 3) | (Self::Descriptor, 4) => Self::Descriptor,
            (Self::Descriptor, 3) => Self::Limit,
            (Self::Descriptor, 8) | (Self::Value, 5) => Self::Struct,
            (Self::Limit, 5) => Self::Replaced,
            (Self::Struct, 1) => Self::Member,
            (Self::Member, 2) | (Self::List, 1) => Self::Value,
            (Self::Value, 6) => Self::List,
            _ => return None,
        })
    }

    /// The name and the largest field number of a message that describes limits.
    const fn known(self) -> Option<(&'static str, u64)> {
        match self {
            Self::Descriptor => Some(("RateLimitDescriptor", 8)),
            Self::Limit => Some(("RateLimitPolicy", 5)),
            Self::Replaced => Some(("RateLimitReplace", 1)),
            Self::Config | Self::Struct | Self::Member | Self::Value | Self::List => None,
        }
    }

    /// The most memory of a message, in bytes, in all forms that exist at the same time, without its texts. A test
    /// measures it.
    const fn memory(self) -> u64 {
        match self {
            Self::Config => 0,
            Self::Descriptor => 4_096,
            Self::Limit => 256,
            Self::Struct => 1_536,
            Self::Replaced | Self::Value => 384,
            Self::Member | Self::List => 128,
        }
    }
}

/// The content of resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    bytes: u64,
    descriptors: u64,
    /// Members of mappings and items of lists in metadata.
    values: u64,
    memory: u64,
    /// Counting stops above this.
    memory_max: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, descriptors, values, memory_max, .. } = self;
        let most = memory_max >> 20;
        write!(
            f,
            "descriptors: {bytes} bytes with at least {descriptors} descriptors and {values} values of metadata would take more \
             than {most} MiB",
        )
    }
}

impl Counts {
    /// Counts messages up to the first malformed bytes. Decoding stops there too.
    fn add(&mut self, kind: Kind, mut bytes: &[u8], depth_left: usize) {
        self.memory += kind.memory();
        match kind {
            Kind::Descriptor => self.descriptors += 1,
            Kind::Value => self.values += 1,
            _ => {}
        }
        let Some(depth_left) = depth_left.checked_sub(1) else { return };
        while !bytes.is_empty() && self.memory <= self.memory_max {
            let Some((number, content)) = field(&mut bytes) else { return };
            if let (Content::Bytes(part), Some(kind)) = (content, kind.below(number)) {
                self.add(kind, part, depth_left);
            }
        }
    }
}

/// Counts the content of each `RateLimitConfig` of a response of at most `response_bytes_max` bytes.
/// Fails when all of them together would need too much memory.
pub(super) fn check<'a>(
    configs: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
    response_bytes_max: usize,
) -> Result<(), String> {
    let configs = configs.into_iter();
    let bytes: u64 = configs.clone().map(|config| config.len() as u64).sum();
    let most = MEMORY_MIN.max(MEMORY_PER_BYTE_MAX * response_bytes_max as u64);
    let memory_max = (MEMORY_PER_BYTE * bytes + MEMORY_MIN).min(most);
    let mut counts = Counts { bytes, memory_max, ..Counts::default() };
    for config in configs {
        counts.add(Kind::Config, config, DEPTH_MAX);
        if counts.memory > memory_max {
            return Err(counts.to_string());
        }
    }
    Ok(())
}

/// Fields of limits that weir does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFields {
    /// How many messages have one.
    pub messages: u64,
    /// The name of the first such message.
    pub message: &'static str,
    /// The number of a field in it.
    pub field: u32,
}

/// The unknown fields in the limits of these configurations, which were decoded before. None if there are none.
pub(super) fn unknown_fields<'a>(configs: impl IntoIterator<Item = &'a [u8]>) -> Option<UnknownFields> {
    let mut found = None;
    for config in configs {
        find_unknown(Kind::Config, config, DEPTH_MAX, &mut found);
    }
    found
}

fn find_unknown(kind: Kind, mut bytes: &[u8], depth_left: usize, found: &mut Option<UnknownFields>) {
    let Some(depth_left) = depth_left.checked_sub(1) else { return };
    let mut unknown = None;
    while !bytes.is_empty() {
        let Some((number, content)) = field(&mut bytes) else { return };
        if let Some((message, _)) = kind.known().filter(|(_, most)| number > *most) {
            // A field has a number of 29 bits.
            unknown = u32::try_from(number).ok().map(|field| UnknownFields { messages: 0, message, field });
        }
        if let (Content::Bytes(part), Some(kind)) = (content, kind.below(number)) {
            find_unknown(kind, part, depth_left, found);
        }
    }
    if let Some(unknown) = unknown {
        found.get_or_insert(unknown).messages += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_of_limits_are_counted_by_message() {
        let found =
            |config: &[u8]| unknown_fields([config; 2]).map(|found| (found.messages, found.message, found.field));
        // A descriptor with a limit of 5, and metadata with unknown fields of its own.
        assert_eq!(found(b"\x1a\x08\x1a\x02\x10\x05\x42\x02\x78\x01"), None);
        assert_eq!(found(b"\x78\x01"), None, "of a configuration");
        assert_eq!(found(b"\x1a\x06\x1a\x04\x10\x05\x38\x01"), Some((2, "RateLimitPolicy", 7)));
        assert_eq!(found(b"\x1a\x06\x48\x01\x48\x02\x50\x01"), Some((2, "RateLimitDescriptor", 10)));
        assert_eq!(found(b"\x1a\x06\x22\x04\x78\x01\x78\x01"), Some((2, "RateLimitDescriptor", 15)), "below");
    }

    #[test]
    fn empty_descriptors_are_refused_by_their_number_and_without_an_allocation() {
        let config = [0x1a, 0].repeat(500_000);
        let mut refused = Ok(());
        let counted = allocation_counter::measure(|| refused = check([&config[..]], 32 << 20));
        let text = "descriptors: 1000000 bytes with at least 64019 descriptors and 0 values of metadata would take more than 250 MiB";
        assert_eq!(refused, Err(text.to_owned()));
        assert!(counted.bytes_max < 1_024, "{counted:?}");
        assert!(check([&config[..60_000]], 32 << 20).is_ok());
    }

    #[test]
    fn all_resources_of_a_response_count_together_and_up_to_its_largest_size() {
        let config = [0x1a, 0].repeat(10_000);
        assert!(check([&config[..]], 32 << 20).is_ok());
        assert!(check(std::iter::repeat_n(&config[..], 10), 32 << 20).is_err());
        let mut padding = vec![0x7a];
        prost::encode_length_delimiter(2 << 20, &mut padding).unwrap();
        padding.resize(padding.len() + (2 << 20), 0);
        let padded = [padding, config.repeat(5)].concat();
        assert!(check([&padded[..]], 32 << 20).is_ok());
        let refused = check([&padded[..]], 4 << 20).unwrap_err();
        assert!(refused.ends_with("would take more than 128 MiB"), "{refused}");
    }

    #[test]
    fn messages_that_nest_too_deep_or_end_early_are_counted_as_far_as_they_are_decoded() {
        let mut nested = Vec::new();
        for _ in 0..300 {
            let mut outer = vec![0x22];
            prost::encode_length_delimiter(nested.len(), &mut outer).unwrap();
            outer.append(&mut nested);
            nested = outer;
        }
        nested[0] = 0x1a;
        assert!(check([&nested[..], b"\x1a\x7f", b"\xff"], 32 << 20).is_ok());
    }
}
