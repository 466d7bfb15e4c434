//! The fields of a protobuf message, read one after the other from its bytes.
//!
//! For code that reads a message before, or without, decoding it to a generated type. Nothing here allocates.

use prost::decode_length_delimiter;

/// The deepest nesting of groups, as in the generated decoders.
const GROUPS_MAX: u32 = 100;
/// The most fields of one message of a request, and of all groups in one of its fields in total. Each field costs time,
/// however short it is.
pub const FIELDS_MAX: usize = 1_024;

/// The content of a field, by its wire type.
pub enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Four bytes, eight bytes or a group. No field that weir reads has such content.
    Other,
}

/// Removes the next field from the bytes, and returns its number and content. None if the bytes are not a field.
#[inline]
pub fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Content<'a>)> {
    let (number, wire_type) = key(bytes)?;
    let content = match wire_type {
        0 => Content::Number(varint(bytes)?),
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            Content::Bytes(bytes.split_off(..length)?)
        }
        other => {
            let mut fields_left = FIELDS_MAX;
            skip(bytes, number, other, GROUPS_MAX, &mut fields_left)?;
            Content::Other
        }
    };
    Some((number, content))
}

/// Removes the key of a field, and returns its number and its wire type.
#[inline]
fn key(bytes: &mut &[u8]) -> Option<(u64, u64)> {
    const TAG_BITS: u32 = 3;
    let tag = varint(bytes)?;
    let number = tag >> TAG_BITS;
    // No field has the number 0, or a number of more than 29 bits.
    (number > 0 && tag <= u64::from(u32::MAX)).then_some((number, tag & 7))
}

/// Skips the content of a field that weir does not read.
#[cold]
fn skip(bytes: &mut &[u8], number: u64, wire_type: u64, groups_left: u32, fields_left: &mut usize) -> Option<()> {
    let length = match wire_type {
        0 => varint(bytes).map(|_| 0)?,
        1 => 8,
        2 => usize::try_from(varint(bytes)?).ok()?,
        3 => loop {
            let (inner, wire_type) = key(bytes)?;
            if wire_type == 4 {
                return (inner == number).then_some(());
            }
            *fields_left = fields_left.checked_sub(1)?;
            skip(bytes, inner, wire_type, groups_left.checked_sub(1)?, fields_left)?;
        },
        5 => 4,
        _ => return None,
    };
    bytes.split_off(..length).map(|_| ())
}

#[inline]
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    // Almost all keys have one byte.
    match bytes.split_first() {
        Some((&byte, rest)) if byte < 0x80 => {
            *bytes = rest;
            Some(byte.into())
        }
        _ => decode_length_delimiter(bytes).ok().map(|number| number as u64),
    }
}
