//! What a resource would take in memory, before a message is made of it.
//!
//! An empty descriptor is two bytes of a response, and up to four kilobytes while policies are read. So each message inside of a resource is
//! counted in its bytes, without allocating, and a resource that would take too much is refused. Not here: what the messages
//! mean (resource.rs).

use std::fmt;

use crate::protobuf::{Content, field};

/// So many bytes of memory a resource may take for each of its own.
pub const MEMORY_PER_BYTE: u64 = 128;
/// And so many more.
pub const MEMORY_MIN: u64 = 128 << 20;
/// How deep messages may nest, as in the generated decoders.
const DEPTH_MAX: usize = 100;

/// The messages of a resource that can be there any number of times.
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
    /// The message in a field of this one, by the numbers of the proto files.
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

    /// The most bytes of memory that one takes in all forms that are there at once, without its texts. A test measures them.
    const fn memory(self) -> u64 {
        match self {
            Self::Config => 0,
            Self::Descriptor => 4_096,
            Self::Limit => 256,
            Self::Replaced => 384,
            Self::Struct => 1_536,
            Self::Member => 128,
            Self::Value => 384,
            Self::List => 128,
        }
    }
}

/// What is in a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    bytes: u64,
    descriptors: u64,
    /// Members of mappings and items of lists in metadata.
    values: u64,
    memory: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, descriptors, values, memory } = self;
        write!(
            f,
            "descriptors: {descriptors} descriptors and {values} values of metadata in {bytes} bytes would take {} MiB, at \
             most {} MiB ({MEMORY_PER_BYTE} bytes for each byte, and {} MiB)",
            memory >> 20,
            self.memory_max() >> 20,
            MEMORY_MIN >> 20,
        )
    }
}

impl Counts {
    const fn memory_max(&self) -> u64 {
        MEMORY_PER_BYTE * self.bytes + MEMORY_MIN
    }

    /// Counts the messages up to the first bytes that are none: decoding ends there too.
    fn add(&mut self, kind: Kind, mut bytes: &[u8], depth_left: usize) {
        self.memory += kind.memory();
        match kind {
            Kind::Descriptor => self.descriptors += 1,
            Kind::Value => self.values += 1,
            _ => {}
        }
        let Some(depth_left) = depth_left.checked_sub(1) else { return };
        while !bytes.is_empty() {
            let Some((number, content)) = field(&mut bytes) else { return };
            if let (Content::Bytes(part), Some(kind)) = (content, kind.below(number)) {
                self.add(kind, part, depth_left);
            }
        }
    }
}

/// Counts what is in a `RateLimitConfig`.
///
/// # Errors
/// When it would take too much memory.
pub(super) fn check(config: &[u8]) -> Result<(), String> {
    let mut counts = Counts { bytes: config.len() as u64, ..Counts::default() };
    counts.add(Kind::Config, config, DEPTH_MAX);
    if counts.memory > counts.memory_max() { Err(counts.to_string()) } else { Ok(()) }
}
