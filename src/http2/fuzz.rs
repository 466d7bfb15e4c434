//! The fuzz target for the bytes of a connection. Compiled only for tests and cargo-fuzz.

use super::frames::Meter;

/// Counts HTTP/2 frames as a whole and in pieces. The first byte is the length of a piece.
/// Panics when the counts differ, or the bytes that h2 reads.
pub fn frames(data: &[u8]) {
    let Some((&size, bytes)) = data.split_first() else { return };
    let count = |size: usize| {
        let (mut meter, mut bytes) = (Meter::new(1), bytes.to_vec());
        let counted = bytes.chunks_mut(size).try_for_each(|piece| meter.count(piece, 0, 0));
        counted.map(|()| (meter.has_shaken_hands(), meter.is_in_header_block(), bytes))
    };
    assert_eq!(count(usize::from(size).max(1)), count(bytes.len().max(1)));
}
