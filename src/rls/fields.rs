//! The fields of a message of protobuf, one after the other, as they lie in its bytes.
//!
//! For those who look at a request before, or without, making a generated type of it.

use prost::decode_length_delimiter;

/// What a field has, by its wire type.
pub enum Content<'a> {
    /// A varint.
    Number(u64),
    /// A text, or a message.
    Bytes(&'a [u8]),
    /// Four or eight bytes, which no field of a request has.
    Fixed,
}

/// Takes the next field: its number, and what it has. None where the bytes are no field, or a group.
#[inline]
pub fn field<'a>(bytes: &mut &'a [u8]) -> Option<(u64, Content<'a>)> {
    const TAG_BITS: u32 = 3;
    let tag = varint(bytes)?;
    let number = tag >> TAG_BITS;
    // No field has the number 0 or one of more than 29 bits.
    if number == 0 || tag > u64::from(u32::MAX) {
        return None;
    }
    let content = match tag & 7 {
        0 => Content::Number(varint(bytes)?),
        1 => bytes.split_off(..8).map(|_| Content::Fixed)?,
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            Content::Bytes(bytes.split_off(..length)?)
        }
        5 => bytes.split_off(..4).map(|_| Content::Fixed)?,
        _ => return None,
    };
    Some((number, content))
}

#[inline]
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    // Nearly all are of one byte.
    match bytes.split_first() {
        Some((&byte, rest)) if byte < 0x80 => {
            *bytes = rest;
            Some(byte.into())
        }
        _ => decode_length_delimiter(bytes).ok().map(|number| number as u64),
    }
}
