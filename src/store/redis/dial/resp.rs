//! Where values of RESP end in a stream of bytes, and what they hold: replies are counted and bounded as they arrive, and
//! take memory only when they are whole.
//!
//! Not in here: which errors of Redis there are. The redis crate reads the lines.

use redis::Value;
use smallvec::SmallVec;

/// The largest length of a string or an array: that of Redis' own strings.
const LENGTH_MAX: usize = 512 << 20;

/// Bytes of a line that are kept where it arrives in pieces. A number is shorter, and of texts only the mark counts.
const LINE_KEPT_BYTES: usize = 32;

/// The most values in the answers to one batch, the nested ones included. A value takes 56 bytes of memory, and a hostile
/// one three of the stream. The largest honest answers, CLUSTER SLOTS with a range for each slot and a look at ten full
/// logs, stay below it.
pub(super) const REPLIES_VALUES_MAX: usize = 1 << 18;

/// The most bytes of a line. Redis' longest errors have some hundred.
const REPLY_LINE_BYTES_MAX: usize = 16 << 10;

/// The deepest nesting of arrays. CLUSTER SLOTS has four levels.
const DEPTH_MAX: usize = 8;

/// The least bytes of an integer.
const INTEGER_BYTES_MIN: usize = b":0\r\n".len();

/// Bytes of a stream that an error shows.
const SHOWN_BYTES_MAX: usize = 32;

/// The numbers of the list of integers that `bytes` begin with, and how many bytes it takes. None where they begin with
/// anything else, the list is not whole, or has more than `max` numbers.
pub(super) fn integers(bytes: &[u8], max: usize) -> Option<(Vec<Value>, usize)> {
    let (count, mut at) = number(bytes, b'*')?;
    let count = usize::try_from(count).ok().filter(|&count| count <= max)?;
    // Each takes four bytes at least, so that no length makes more room than the bytes justify.
    if count > (bytes.len() - at) / INTEGER_BYTES_MIN {
        return None;
    }
    let mut numbers = Vec::with_capacity(count);
    for _ in 0..count {
        let (integer, taken) = number(&bytes[at..], b':')?;
        numbers.push(Value::Int(integer));
        at += taken;
    }
    Some((numbers, at))
}

/// The number of the line that `bytes` begin with after its mark, and how many bytes the line takes. None for a form that
/// Redis does not write.
fn number(bytes: &[u8], mark: u8) -> Option<(i64, usize)> {
    let digits = bytes.strip_prefix(&[mark])?;
    let is_negative = digits.first() == Some(&b'-');
    let mut at = usize::from(is_negative);
    let mut number = 0i64;
    while let Some(digit @ b'0'..=b'9') = digits.get(at) {
        number = number.checked_mul(10)?.checked_add(i64::from(digit - b'0'))?;
        at += 1;
    }
    let is_whole = at > usize::from(is_negative) && digits[at..].starts_with(b"\r\n");
    is_whole.then_some((if is_negative { -number } else { number }, 1 + at + 2))
}

/// The value that `bytes` begin with, which is whole, and how many bytes it takes. An array gets exactly the room of its
/// values, so the caller has counted them.
///
/// # Errors
///
/// Where the bytes are no value of RESP 2, or arrays are nested too deeply.
pub(super) fn value(bytes: &[u8]) -> Result<(Value, usize), BadReply> {
    nested(bytes, 0)
}

fn nested(bytes: &[u8], depth: usize) -> Result<(Value, usize), BadReply> {
    let cut = || BadReply::not_resp("a value is cut in", bytes);
    let end = bytes.array_windows().position(|two| two == b"\r\n").ok_or_else(cut)?;
    let (line, mut at) = (&bytes[..end], end + 2);
    let value = match line.split_first() {
        Some((b'$', number)) => match length(number, line)? {
            None => Value::Nil,
            Some(length) => {
                let text = bytes.get(at..at + length).ok_or_else(cut)?;
                at += length;
                if !bytes[at..].starts_with(b"\r\n") {
                    return Err(BadReply::not_resp("no end of line follows", text));
                }
                at += 2;
                Value::BulkString(text.to_vec())
            }
        },
        Some((b'*', number)) => match length(number, line)? {
            None => Value::Nil,
            Some(_) if depth == DEPTH_MAX => {
                return Err(BadReply::TooLarge(format!("arrays in more than {DEPTH_MAX} others")));
            }
            Some(length) => {
                let mut values = Vec::with_capacity(length);
                for _ in 0..length {
                    let (value, taken) = nested(&bytes[at..], depth + 1)?;
                    values.push(value);
                    at += taken;
                }
                Value::Array(values)
            }
        },
        _ => redis::parse_redis_value(&bytes[..at])
            .map_err(|error| BadReply::NotResp(format!("{error} in {}", shown(line))))?,
    };
    Ok((value, at))
}

/// A place in a stream of RESP values.
#[derive(Debug, Default)]
pub(super) struct ValueEnds {
    /// Values that have begun or must follow before the outermost one is whole. 0 between two of them.
    open: usize,
    /// Bytes of a bulk string that are still to come, with its end of line.
    skip: usize,
    /// The beginning of a line whose end has not arrived.
    line: SmallVec<[u8; LINE_KEPT_BYTES]>,
    /// How long that line is so far.
    line_bytes: usize,
    /// The last byte of that line so far.
    last: u8,
    /// Values in all so far, those that an array has announced included.
    values: usize,
}

impl ValueEnds {
    /// The place is between two values.
    pub(super) const fn is_between(&self) -> bool {
        self.open == 0
    }

    /// How many values may still come.
    pub(super) const fn values_left(&self) -> usize {
        REPLIES_VALUES_MAX.saturating_sub(self.values)
    }

    /// Counts values that were read by other means.
    ///
    /// # Errors
    ///
    /// Where there are too many.
    pub(super) fn count(&mut self, values: usize) -> Result<(), BadReply> {
        if values > self.values_left() {
            return Err(BadReply::TooLarge(format!(
                "more than {REPLIES_VALUES_MAX} values in the answers to one batch"
            )));
        }
        self.values += values;
        Ok(())
    }

    /// Goes on to the end of the value that is open, or that begins here, or to the end of `bytes`. Returns how many bytes
    /// that took.
    ///
    /// # Errors
    ///
    /// Where the bytes are no value of RESP 2, or more than one batch can be answered with.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<usize, BadReply> {
        if self.open == 0 {
            self.count(1)?;
            self.open = 1;
        }
        let mut at = 0;
        while self.open > 0 && at < bytes.len() {
            let rest = &bytes[at..];
            if self.skip > 0 {
                let skipped = self.skip.min(rest.len());
                self.skip -= skipped;
                self.open -= usize::from(self.skip == 0);
                at += skipped;
                continue;
            }
            if self.line.is_empty() && !matches!(rest[0], b'+' | b'-' | b':' | b'$' | b'*') {
                return Err(BadReply::not_resp("a value begins with", rest));
            }
            let end = self.line_end(rest);
            self.line_bytes = self.line_bytes.saturating_add(end.unwrap_or(rest.len()));
            if self.line_bytes > REPLY_LINE_BYTES_MAX {
                return Err(BadReply::TooLarge(format!("a line of more than {REPLY_LINE_BYTES_MAX} bytes")));
            }
            let Some(line) = end else {
                self.keep(rest);
                return Ok(bytes.len());
            };
            at += line;
            if self.line.is_empty() {
                self.line_ended(&rest[..line])?;
            } else {
                self.keep(&rest[..line]);
                let kept = std::mem::take(&mut self.line);
                self.line_ended(&kept)?;
            }
            (self.last, self.line_bytes) = (0, 0);
        }
        Ok(at)
    }

    /// How many bytes the line in `rest` takes with its end, if that is there.
    fn line_end(&self, rest: &[u8]) -> Option<usize> {
        let mut end = 0;
        while let Some(more) = rest[end..].iter().position(|&byte| byte == b'\n') {
            end += more + 1;
            let before = if end >= 2 { rest[end - 2] } else { self.last };
            if before == b'\r' {
                return Some(end);
            }
        }
        None
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = LINE_KEPT_BYTES - self.line.len();
        self.line.extend_from_slice(&piece[..piece.len().min(room)]);
        self.last = piece.last().copied().unwrap_or(self.last);
    }

    fn line_ended(&mut self, line: &[u8]) -> Result<(), BadReply> {
        let (mark, number) = line.split_first().expect("a line has a mark");
        self.open -= 1;
        match mark {
            b'$' => {
                if let Some(length) = length(number, line)? {
                    self.skip = length + b"\r\n".len();
                    self.open += 1;
                }
            }
            b'*' => {
                let values = length(number, line)?.unwrap_or(0);
                self.count(values)?;
                self.open += values;
            }
            _ => {}
        }
        Ok(())
    }
}

/// A length as RESP writes it; none if the value is nil.
fn length(number: &[u8], line: &[u8]) -> Result<Option<usize>, BadReply> {
    let number = std::str::from_utf8(number).ok().and_then(|number| number.trim().parse::<i64>().ok());
    match number {
        Some(-1) => Ok(None),
        Some(number) => match usize::try_from(number) {
            Ok(length) if length <= LENGTH_MAX => Ok(Some(length)),
            _ => Err(BadReply::not_resp("the length is out of bounds in", line)),
        },
        None => Err(BadReply::not_resp("the length is no number in", line)),
    }
}

/// Why a reply is not taken, for people.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadReply {
    /// With the first bytes that are none.
    #[error("a reply that is no RESP: {0}")]
    NotResp(String),
    /// It takes more than an honest one can.
    #[error("a reply beyond its bounds: {0}")]
    TooLarge(String),
}

impl BadReply {
    fn not_resp(what: &str, bytes: &[u8]) -> BadReply {
        BadReply::NotResp(format!("{what} {}", shown(bytes)))
    }
}

/// The first bytes of a stream, as a log line shows them.
pub(super) fn shown(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The ends of the values in `bytes`, which arrive in pieces of so many bytes.
    fn ends(bytes: &[u8], piece: usize) -> Result<Vec<usize>, BadReply> {
        let mut place = ValueEnds::default();
        let (mut ends, mut read) = (Vec::new(), 0);
        for mut piece in bytes.chunks(piece) {
            while !piece.is_empty() {
                let taken = place.advance(piece)?;
                piece = &piece[taken..];
                read += taken;
                if place.is_between() {
                    ends.push(read);
                }
            }
        }
        Ok(ends)
    }

    #[test]
    fn values_end_where_they_end_in_pieces_of_any_size() {
        let values = [
            "+OK\r\n",
            "+a\nb\rc\r\n",
            "-ERR a text that is longer than what is kept of a line\r\n",
            ":-7\r\n",
            "$-1\r\n",
            "$0\r\n\r\n",
            "$7\r\n:1\r\n+\r\n\r\n",
            "*-1\r\n",
            "*0\r\n",
            "*3\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n+b\r\n",
            "*1\r\n*1\r\n*1\r\n:1\r\n",
        ];
        let bytes = values.concat();
        let mut at = 0;
        let expected: Vec<_> = values
            .iter()
            .map(|value| {
                at += value.len();
                at
            })
            .collect();
        for piece in 1..=bytes.len() {
            assert_eq!(ends(bytes.as_bytes(), piece).unwrap(), expected, "pieces of {piece}");
        }
    }

    #[test]
    fn bytes_that_are_no_resp_are_shown() {
        let check = |bytes: &str, piece: usize, expected: &str| {
            let expected = format!("a reply that is no RESP: {expected}");
            assert_eq!(ends(bytes.as_bytes(), piece).unwrap_err().to_string(), expected);
        };
        check("hello", 9, r#"a value begins with "hello""#);
        check("h", 1, r#"a value begins with "h""#);
        check(
            "*1\r\nHTTP/1.1 400 Bad Request\r\nServer: envoy\r\n",
            99,
            r#"a value begins with "HTTP/1.1 400 Bad Request\r\nServer""#,
        );
        check("$-7x\r\n", 9, r#"the length is no number in "$-7x\r\n""#);
        check("$-7x\r\n", 1, r#"the length is no number in "$-7x\r\n""#);
        check("$-7\r\n", 9, r#"the length is out of bounds in "$-7\r\n""#);
        check("*99999999999\r\n", 9, r#"the length is out of bounds in "*99999999999\r\n""#);
        check("$\r\n", 9, r#"the length is no number in "$\r\n""#);
    }

    #[test]
    fn a_reply_beyond_its_bounds_is_refused_before_it_is_whole() {
        let check = |bytes: &[u8], expected: &str| {
            for piece in [7, bytes.len()] {
                let error = ends(bytes, piece).unwrap_err();
                assert_eq!(error.to_string(), format!("a reply beyond its bounds: {expected}"));
            }
        };
        let line = [b"-".as_slice(), &b"x".repeat(REPLY_LINE_BYTES_MAX)].concat();
        check(&line, "a line of more than 16384 bytes");
        let values = format!("*{REPLIES_VALUES_MAX}\r\n");
        check(values.as_bytes(), "more than 262144 values in the answers to one batch");
        let nested = format!("*2\r\n*{}\r\n", REPLIES_VALUES_MAX - 2);
        check(nested.as_bytes(), "more than 262144 values in the answers to one batch");
        let flat = ":1\r\n".repeat(REPLIES_VALUES_MAX + 1);
        check(flat.as_bytes(), "more than 262144 values in the answers to one batch");
        let within = format!("*1\r\n*{}\r\n", REPLIES_VALUES_MAX - 2);
        assert_eq!(ends(within.as_bytes(), 7), Ok(vec![]));
    }

    #[test]
    fn arrays_are_nested_so_deeply_at_most() {
        let nested = |depth: usize| [&b"*1\r\n".repeat(depth)[..], b":1\r\n"].concat();
        let bytes = nested(DEPTH_MAX);
        assert_eq!(value(&bytes), Ok((redis::parse_redis_value(&bytes).unwrap(), bytes.len())));
        assert!(matches!(value(&nested(DEPTH_MAX + 1)), Err(BadReply::TooLarge(_))));
    }

    proptest! {
        /// What is read here is what the redis crate reads.
        #[test]
        fn a_value_is_read_as_the_redis_crate_reads_it(pieces in prop::collection::vec(prop::sample::select(vec!["*1\r\n", "*2\r\n", "*0\r\n", "*-1\r\n", "$-1\r\n", "$2\r\nab\r\n", "$0\r\n\r\n", ":-3\r\n", "+OK\r\n", "+a\r\n", "-ERR no\r\n"]), 1..20)) {
            let bytes = pieces.concat().into_bytes();
            if let Some(&end) = ends(&bytes, bytes.len()).unwrap().first()
                && let Ok((read, taken)) = value(&bytes[..end])
            {
                prop_assert_eq!(taken, end);
                prop_assert_eq!(read, redis::parse_redis_value(&bytes[..end]).unwrap());
            }
        }

        /// Whatever a server sends, what is kept of it is bounded, and the place never leaves the bytes.
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(prop::sample::select(b"+-:$*19\r\nx".to_vec()), 0..200), piece in 1usize..20) {
            if let Ok(ends) = ends(&bytes, piece) {
                prop_assert!(ends.iter().all(|&end| end <= bytes.len()));
            }
        }
    }
}
