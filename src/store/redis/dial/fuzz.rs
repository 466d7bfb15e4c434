//! The fuzz target for a server's bytes on a connection. Compiled only for tests and cargo-fuzz.

use redis::Value;

use super::replies::Replies;

/// Reads replies as a whole and in pieces. The first byte is the length of a piece.
/// Panics when the pieces give other replies than the whole.
pub fn replies(data: &[u8]) {
    let Some((&size, bytes)) = data.split_first() else { return };
    assert_eq!(read(bytes, usize::from(size).max(1)), read(bytes, bytes.len().max(1)));
}

/// The replies before the first error, whether there is one, and whether bytes follow the last reply.
fn read(bytes: &[u8], size: usize) -> (Vec<Value>, bool, bool) {
    let (mut replies, mut found) = (Replies::default(), Vec::new());
    for piece in bytes.chunks(size) {
        replies.room().extend_from_slice(piece);
        loop {
            match replies.next() {
                Ok(Some(value)) => found.push(value),
                Ok(None) => break,
                Err(_) => return (found, true, false),
            }
        }
    }
    (found, false, replies.finish().is_some())
}
