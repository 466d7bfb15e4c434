//! The bytes that a connection received for one batch, and the replies in them.
//!
//! Where a reply ends is found here, so that every byte belongs to a known reply. A list of integers, which is what every
//! decision is answered with, is read at once where it arrived whole; other replies are read when their end has come.

use redis::Value;

use super::resp::{BadReply, ValueEnds, integers, shown, value};

/// The room for one read from the socket at least, in bytes.
const READ_BYTES_MIN: usize = 1 << 10;

/// The room that a buffer gets when it has less than [`READ_BYTES_MIN`] left.
const READ_BYTES: usize = 4 << 10;

/// A buffer larger than this is given back after its batch.
const KEPT_BYTES: usize = 64 << 10;

/// What was received for the batch in flight.
#[derive(Default)]
pub(super) struct Replies {
    buffer: Vec<u8>,
    /// The position that `ends` has reached.
    scanned: usize,
    /// Where the first reply begins that was not returned yet.
    begin: usize,
    ends: ValueEnds,
}

impl Replies {
    /// Where the next read appends.
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

    /// The next reply. None until more bytes arrive.
    ///
    /// # Errors
    /// Where the bytes are no RESP 2, or take more than an honest reply.
    pub(super) fn next(&mut self) -> Result<Option<Value>, BadReply> {
        if self.scanned == self.begin
            && let Some((numbers, taken)) =
                integers(&self.buffer[self.begin..], self.ends.values_left().saturating_sub(1))
        {
            self.ends.count(1 + numbers.len())?;
            self.begin += taken;
            self.scanned = self.begin;
            return Ok(Some(Value::Array(numbers)));
        }
        while self.scanned < self.buffer.len() {
            let taken = self.ends.advance(&self.buffer[self.scanned..])?;
            self.scanned += taken;
            if self.ends.is_between() {
                let reply = &self.buffer[self.begin..self.scanned];
                self.begin = self.scanned;
                return value(reply).map(|(value, _)| Some(value));
            }
        }
        Ok(None)
    }

    /// The sentence about bytes that follow the last reply.
    pub(super) fn surplus(&self) -> String {
        format!("a reply that no request waits for: {}", shown(&self.buffer[self.begin..]))
    }

    /// Makes room for the next batch. Returns an error text about surplus bytes, if there are any.
    pub(super) fn finish(&mut self) -> Option<String> {
        let surplus = (self.begin < self.buffer.len()).then(|| self.surplus());
        if self.buffer.capacity() > KEPT_BYTES {
            self.buffer = Vec::new();
        } else {
            self.buffer.clear();
        }
        (self.scanned, self.begin) = (0, 0);
        self.ends = ValueEnds::default();
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::dial::resp::REPLIES_VALUES_MAX;

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

    #[test]
    fn lists_of_integers_are_read_as_the_redis_crate_reads_them() {
        let lists = [
            "*0",
            "*1\r\n:-7",
            "*2\r\n:0\r\n:9223372036854775807",
            "*1\r\n:+3",
            "*2\r\n:01\r\n$1\r\na",
            "*1\r\n*1\r\n:1",
        ];
        for list in lists {
            let bytes = format!("{list}\r\n").into_bytes();
            let mut replies = Replies::default();
            replies.room().extend_from_slice(&bytes);
            assert_eq!(replies.next().unwrap(), Some(redis::parse_redis_value(&bytes).unwrap()), "{list}");
            assert_eq!(replies.finish(), None);
        }
    }

    #[test]
    fn bytes_after_the_last_reply_are_shown_and_dropped() {
        let mut replies = Replies::default();
        replies.room().extend_from_slice(b":1\r\n:666\r\n");
        assert_eq!(replies.next().unwrap(), Some(Value::Int(1)));
        assert_eq!(replies.finish().unwrap(), r#"a reply that no request waits for: ":666\r\n""#);
        assert_eq!(replies.next(), Ok(None));
    }

    /// 12 MB of empty arrays took 874 MB, a million nils 494 MB, and an endless line any amount.
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
