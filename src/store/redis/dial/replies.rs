//! The bytes received for one batch, and the replies in them.
//!
//! Replies are read element by element as they arrive. So their number and depth are bounded before they use memory,
//! and every byte belongs to a known reply. Not here: what an element is (resp.rs).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use redis::Value;
use smallvec::SmallVec;

use super::resp::{BadReply, Element, element, shown};

/// The most values in the answers to one batch, including nested values. A value uses 56 bytes of memory, but a hostile
/// server can send one in three bytes. The largest valid answers are smaller: CLUSTER SLOTS with a range for each slot,
/// and a read of ten full logs.
pub(super) const REPLIES_VALUES_MAX: usize = 1 << 18;

/// The deepest nesting of arrays. CLUSTER SLOTS has four levels.
const DEPTH_MAX: usize = 8;

/// The fewest bytes of an integer. It bounds the number of values in a list of integers.
const INTEGER_BYTES_MIN: usize = b":0\r\n".len();

/// The minimum space for one read from the socket, in bytes.
const READ_BYTES_MIN: usize = 1 << 10;

/// The space that a buffer gets when less than [`READ_BYTES_MIN`] is left.
const READ_BYTES: usize = 4 << 10;

/// A larger buffer is freed after its batch.
const KEPT_BYTES: usize = 64 << 10;

/// The most memory of all answers of this process together that are larger than [`KEPT_BYTES`]. One batch of the largest
/// valid answers fits. Without it, each connection to a hostile server could hold that much.
const LARGE_BYTES_MAX: usize = 64 << 20;

/// The memory that is reserved for large answers.
static LARGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The bytes received for the current batch.
#[derive(Default)]
pub(super) struct Replies {
    buffer: Vec<u8>,
    /// The position of the first reply that was not returned yet.
    begin: usize,
    /// The position of the first element that was not read yet.
    at: usize,
    /// The incomplete arrays of that reply, each nested in the one before.
    open: SmallVec<[OpenArray; 2]>,
    /// How many values there are, including values that an array has announced.
    values: usize,
    reserved: Reserved,
}

/// A part of [`LARGE_BYTES_MAX`], until it is dropped. Without a sum, nothing is shared.
#[derive(Default)]
struct Reserved {
    bytes: usize,
    sum: Option<&'static AtomicUsize>,
}

impl Reserved {
    /// Reserves memory for answers of so many bytes. Rounds up to [`KEPT_BYTES`].
    fn grow_to(&mut self, bytes: usize) -> Result<(), BadReply> {
        let more = bytes.next_multiple_of(KEPT_BYTES).saturating_sub(self.bytes);
        let add = |reserved: usize| reserved.checked_add(more).filter(|sum| *sum <= LARGE_BYTES_MAX);
        if self.sum.is_some_and(|sum| sum.fetch_update(Relaxed, Relaxed, add).is_err()) {
            let text = format!("with those on other connections more than {LARGE_BYTES_MAX} bytes of memory");
            return Err(BadReply::TooLarge(text));
        }
        self.bytes += more;
        Ok(())
    }

    fn give_back(&mut self) {
        if let Some(sum) = self.sum {
            sum.fetch_sub(self.bytes, Relaxed);
        }
        self.bytes = 0;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.give_back();
    }
}

struct OpenArray {
    values: Vec<Value>,
    left: usize,
}

impl Replies {
    /// The replies on one connection of this process.
    pub(super) fn of_process() -> Self {
        Self::sharing(&LARGE_BYTES)
    }

    fn sharing(sum: &'static AtomicUsize) -> Self {
        Self { reserved: Reserved { bytes: 0, sum: Some(sum) }, ..Self::default() }
    }

    /// The buffer to which the next read appends.
    pub(super) fn room(&mut self) -> &mut Vec<u8> {
        if self.buffer.capacity() - self.buffer.len() < READ_BYTES_MIN {
            self.buffer.reserve(READ_BYTES);
        }
        &mut self.buffer
    }

    /// All bytes of this batch so far.
    pub(super) fn received(&self) -> &[u8] {
        &self.buffer
    }

    /// The next reply. None if more bytes are needed.
    /// Fails when the bytes are not RESP 2, or exceed the bounds of a valid reply.
    pub(super) fn next(&mut self) -> Result<Option<Value>, BadReply> {
        // The texts of values are copies of received bytes.
        let bytes = 2 * self.buffer.len() + self.values * size_of::<Value>();
        if bytes > KEPT_BYTES && bytes > self.reserved.bytes {
            self.reserved.grow_to(bytes)?;
        }
        while let Some((element, taken)) = element(&self.buffer[self.at..])? {
            if self.at == self.begin {
                self.count(1)?;
            }
            self.at += taken;
            let value = match element {
                Element::Whole(value) => value,
                Element::Array(0) => Value::Array(Vec::new()),
                Element::Array(left) => {
                    self.open_array(left)?;
                    continue;
                }
            };
            if let Some(reply) = self.close_arrays(value) {
                self.begin = self.at;
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    fn count(&mut self, values: usize) -> Result<(), BadReply> {
        self.values = self.values.saturating_add(values);
        if self.values > REPLIES_VALUES_MAX {
            return Err(BadReply::TooLarge(format!(
                "more than {REPLIES_VALUES_MAX} values in the answers to one batch"
            )));
        }
        Ok(())
    }

    fn open_array(&mut self, left: usize) -> Result<(), BadReply> {
        self.count(left)?;
        if self.open.len() == DEPTH_MAX {
            return Err(BadReply::TooLarge(format!("arrays nested more than {DEPTH_MAX} deep")));
        }
        // Allocates no more than the received bytes justify, for any announced length. A complete list of integers gets
        // exactly its own length.
        let room = left.min((self.buffer.len() - self.at) / INTEGER_BYTES_MIN);
        self.open.push(OpenArray { values: Vec::with_capacity(room), left });
        Ok(())
    }

    /// Adds a value to the innermost array. Returns the reply that it completes.
    fn close_arrays(&mut self, mut value: Value) -> Option<Value> {
        while let Some(array) = self.open.last_mut() {
            if array.values.len() == array.values.capacity() {
                // Doubles the capacity, up to the announced length.
                array.values.reserve_exact(array.values.len().clamp(1, array.left));
            }
            array.values.push(value);
            array.left -= 1;
            if array.left > 0 {
                return None;
            }
            value = Value::Array(self.open.pop()?.values);
        }
        Some(value)
    }

    /// The error about bytes after the last reply.
    pub(super) fn surplus(&self) -> String {
        format!("a reply without a request: {}", shown(&self.buffer[self.begin..]))
    }

    /// Clears the buffer, if all replies in it were returned.
    pub(super) fn forget_returned(&mut self) {
        if self.begin == self.buffer.len() {
            self.finish();
        }
    }

    /// Clears the buffer for the next batch. Returns an error about surplus bytes, if there are any.
    pub(super) fn finish(&mut self) -> Option<String> {
        let surplus = (self.begin < self.buffer.len()).then(|| self.surplus());
        if self.buffer.capacity() > KEPT_BYTES {
            self.buffer = Vec::new();
        } else {
            self.buffer.clear();
        }
        (self.begin, self.at, self.values) = (0, 0, 0);
        self.open.clear();
        self.reserved.give_back();
        surplus
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(replies: &mut Replies) -> Vec<Value> {
        std::iter::from_fn(|| replies.next().unwrap()).collect()
    }

    #[test]
    fn replies_are_read_from_pieces_of_any_size() {
        let bytes = b"*3\r\n:1\r\n$2\r\nab\r\n*-1\r\n+OK\r\n-ERR no\r\n$-1\r\n";
        for size in 1..=bytes.len() {
            let (mut replies, mut found) = (Replies::default(), Vec::new());
            for piece in bytes.chunks(size) {
                replies.room().extend_from_slice(piece);
                found.extend(all(&mut replies));
            }
            assert_eq!(found.len(), 4, "pieces of {size}");
            assert_eq!(found[0], Value::Array(vec![Value::Int(1), Value::BulkString(b"ab".to_vec()), Value::Nil]));
            assert_eq!((&found[1], &found[3]), (&Value::Okay, &Value::Nil));
            assert!(matches!(&found[2], Value::ServerError(error) if error.details() == Some("no")));
            assert_eq!(replies.finish(), None);
        }
    }

    /// Reads the replies in `bytes`, which arrive in pieces of `piece` bytes.
    fn read(bytes: &[u8], piece: usize) -> Result<Vec<Value>, BadReply> {
        let (mut replies, mut found) = (Replies::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            replies.room().extend_from_slice(piece);
            while let Some(value) = replies.next()? {
                found.push(value);
            }
        }
        Ok(found)
    }

    #[test]
    fn a_reply_beyond_its_bounds_is_refused_before_it_is_whole() {
        let check = |bytes: &[u8], expected: &str| {
            for piece in [7, bytes.len()] {
                let error = read(bytes, piece).unwrap_err();
                assert_eq!(error.to_string(), format!("a reply beyond its bounds: {expected}"));
            }
        };
        check(&[b"-".as_slice(), &b"x".repeat(16 << 10)].concat(), "a line of more than 16384 bytes");
        let values = format!("*{REPLIES_VALUES_MAX}\r\n");
        check(values.as_bytes(), "more than 262144 values in the answers to one batch");
        let nested = format!("*2\r\n*{}\r\n", REPLIES_VALUES_MAX - 2);
        check(nested.as_bytes(), "more than 262144 values in the answers to one batch");
        let flat = ":1\r\n".repeat(REPLIES_VALUES_MAX + 1);
        check(flat.as_bytes(), "more than 262144 values in the answers to one batch");
        let within = format!("*1\r\n*{}\r\n", REPLIES_VALUES_MAX - 2);
        assert_eq!(read(within.as_bytes(), 7), Ok(vec![]));
    }

    #[test]
    fn arrays_are_nested_so_deeply_at_most() {
        let nested = |depth: usize| [&b"*1\r\n".repeat(depth)[..], b":1\r\n"].concat();
        let bytes = nested(DEPTH_MAX);
        assert_eq!(read(&bytes, 3), Ok(vec![redis::parse_redis_value(&bytes).unwrap()]));
        assert!(matches!(read(&nested(DEPTH_MAX + 1), 3), Err(BadReply::TooLarge(_))));
    }

    #[test]
    fn a_list_of_integers_is_one_allocation() {
        let bytes = format!("*9\r\n{}", ":123456\r\n".repeat(9)).into_bytes();
        let mut replies = Replies::default();
        replies.room().extend_from_slice(&bytes);
        let taken = allocation_counter::measure(|| drop(replies.next()));
        assert_eq!(taken.count_total, 1);
    }

    proptest! {
        /// The reader and the redis crate give the same replies, with pieces of any size.
        #[test]
        fn replies_are_read_as_the_redis_crate_reads_them(pieces in prop::collection::vec(prop::sample::select(vec!["*1\r\n", "*2\r\n", "*0\r\n", "*-1\r\n", "$-1\r\n", "$2\r\nab\r\n", "$0\r\n\r\n", "$7\r\n:1\r\n+\r\n\r\n", ":-3\r\n", ":+3\r\n", ":01\r\n", ":9223372036854775807\r\n", "+OK\r\n", "+a\r\n", "+a\nb\rc\r\n", "-ERR no\r\n"]), 1..20), piece in 1usize..40) {
            let bytes = pieces.concat().into_bytes();
            let mut replies = Replies::default();
            replies.room().extend_from_slice(&bytes);
            if let Ok(Some(first)) = replies.next() {
                prop_assert_eq!(first, redis::parse_redis_value(&bytes[..replies.begin]).unwrap());
            }
            if let Ok(values) = read(&bytes, bytes.len()) {
                prop_assert_eq!(read(&bytes, piece).unwrap(), values);
            }
        }

        /// Any bytes give the same result in pieces and as a whole.
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(prop::sample::select(b"+-:$*19\r\nx".to_vec()), 0..200), piece in 1usize..20) {
            prop_assert_eq!(read(&bytes, piece).is_ok(), read(&bytes, bytes.len().max(1)).is_ok());
        }
    }

    #[test]
    fn bytes_after_the_last_reply_are_shown_and_dropped() {
        let mut replies = Replies::default();
        replies.room().extend_from_slice(b":1\r\n:666\r\n");
        assert_eq!(replies.next().unwrap(), Some(Value::Int(1)));
        assert_eq!(replies.finish().unwrap(), r#"a reply without a request: ":666\r\n""#);
        assert_eq!(replies.next(), Ok(None));
    }

    /// Without bounds, 12 MB of empty arrays used 874 MB, a million nils 494 MB, and an endless line any amount.
    #[test]
    fn what_replies_take_while_they_are_read_is_bounded_whatever_they_are() {
        const SENT_MAX: usize = 12 << 20;
        const PIECE: usize = 4 << 10;
        let array = |count: usize, element: &str| format!("*{count}\r\n{}", element.repeat(count)).into_bytes();
        let check = |what: &str, bytes: &[u8], fits: bool| {
            assert!(bytes.len() <= SENT_MAX, "{what}");
            let (mut read, mut is_refused) = (0, false);
            let taken = allocation_counter::measure(|| {
                let (mut replies, mut found) = (Replies::default(), Vec::new());
                for piece in bytes.chunks(PIECE) {
                    read += piece.len();
                    replies.room().extend_from_slice(piece);
                    while !is_refused {
                        match replies.next() {
                            Ok(Some(value)) => found.push(value),
                            Ok(None) => break,
                            Err(_) => is_refused = true,
                        }
                    }
                    if is_refused {
                        break;
                    }
                }
            });
            assert_eq!(is_refused, !fits, "{what}");
            let most = 4 * read + 2 * REPLIES_VALUES_MAX * size_of::<Value>();
            assert!(taken.bytes_max <= most as u64, "{what}: {} bytes for {read}, at most {most}", taken.bytes_max);
        };
        for element in
            ["*0\r\n", "*-1\r\n", "$-1\r\n", "$0\r\n\r\n", "$1\r\na\r\n", ":1\r\n", "+\r\n", "+OK\r\n", "-\r\n"]
        {
            check(element, &array(REPLIES_VALUES_MAX - 1, element), true);
            check(element, &array(SENT_MAX / element.len() - 4, element), false);
            check(element, element.repeat(REPLIES_VALUES_MAX + 1).as_bytes(), false);
        }
        check("nested", "*1\r\n".repeat(SENT_MAX / 4).as_bytes(), false);
        check("a line", &[b"+".as_slice(), &b"x".repeat(SENT_MAX - 1)].concat(), false);
        check("a text", format!("${}\r\n{}\r\n", 8 << 20, "x".repeat(8 << 20)).as_bytes(), true);
    }

    /// Each connection to a hostile server held 16 MiB of bytes and as much of values: 134 MB for one server.
    #[test]
    fn the_answers_on_all_connections_share_one_bound() {
        let sum: &'static AtomicUsize = Box::leak(Box::default());
        let mut connections: Vec<Replies> = (0..20).map(|_| Replies::sharing(sum)).collect();
        let piece = vec![b'x'; 1 << 20];
        let mut refused = 0;
        for replies in &mut connections {
            replies.room().extend_from_slice(b"$8388608\r\n");
            for _ in 0..7 {
                replies.room().extend_from_slice(&piece);
                if let Err(error) = replies.next() {
                    assert!(error.to_string().contains("with those on other connections"), "{error}");
                    refused += 1;
                    break;
                }
            }
        }
        let held: usize = connections.iter().map(|replies| replies.reserved.bytes).sum();
        assert!(refused >= 15 && held <= LARGE_BYTES_MAX, "{refused} refused, {held} bytes");
        assert_eq!(held, sum.load(Relaxed));
        // Small answers need no part of it.
        let mut small = Replies::sharing(sum);
        small.room().extend_from_slice(b":1\r\n");
        assert_eq!((small.next().unwrap(), small.reserved.bytes), (Some(Value::Int(1)), 0));
        drop(connections);
        assert_eq!(sum.load(Relaxed), 0, "what is dropped is free again");
    }

    #[test]
    fn a_large_buffer_is_given_back() {
        let mut replies = Replies::default();
        let text = "x".repeat(2 * KEPT_BYTES);
        replies.room().extend_from_slice(format!("${}\r\n{text}\r\n", text.len()).as_bytes());
        assert_eq!(replies.next().unwrap(), Some(Value::BulkString(text.into_bytes())));
        assert_eq!(replies.finish(), None);
        assert_eq!(replies.buffer.capacity(), 0);
    }
}
