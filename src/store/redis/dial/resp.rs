//! Where values of RESP end in a stream of bytes: so that replies can be counted as they arrive, before a client library
//! matches them with requests.
//!
//! Not in here: what the values hold, but for lists of integers. The redis crate reads the others again.

use std::fmt;

use redis::Value;
use smallvec::SmallVec;

/// The largest length of a string or an array: that of Redis' own strings.
const LENGTH_MAX: usize = 512 << 20;

/// Bytes of a line that are kept where it arrives in pieces. A number is shorter, and of texts only the mark counts.
const LINE_KEPT_BYTES: usize = 32;

/// The least bytes of an integer.
const INTEGER_BYTES_MIN: usize = b":0\r\n".len();

/// Bytes of a stream that an error shows.
const SHOWN_BYTES_MAX: usize = 32;

/// The numbers of the list of integers that `bytes` begin with, and how many bytes it takes. None where they begin with
/// anything else, or the list is not whole.
pub(super) fn integers(bytes: &[u8]) -> Option<(Vec<Value>, usize)> {
    let (count, mut at) = number(bytes, b'*')?;
    let count = usize::try_from(count).ok()?;
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

/// A place in a stream of RESP values.
#[derive(Debug, Default)]
pub(super) struct ValueEnds {
    /// Values that have begun or must follow before the outermost one is whole. 0 between two of them.
    open: usize,
    /// Bytes of a bulk string that are still to come, with its end of line.
    skip: usize,
    /// The beginning of a line whose end has not arrived.
    line: SmallVec<[u8; LINE_KEPT_BYTES]>,
    /// The last byte of that line so far.
    last: u8,
}

impl ValueEnds {
    /// The place is between two values.
    pub(super) const fn is_between(&self) -> bool {
        self.open == 0
    }

    /// Goes on to the end of the value that is open, or that begins here, or to the end of `bytes`. Returns how many bytes
    /// that took.
    ///
    /// # Errors
    ///
    /// Where the bytes are no value of RESP 2.
    pub(super) fn advance(&mut self, bytes: &[u8]) -> Result<usize, NotResp> {
        self.open = self.open.max(1);
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
                return Err(NotResp::new("a value begins with", rest));
            }
            let Some(line) = self.line_end(rest) else {
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
            self.last = 0;
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

    fn line_ended(&mut self, line: &[u8]) -> Result<(), NotResp> {
        let (mark, number) = line.split_first().expect("a line has a mark");
        self.open -= 1;
        match mark {
            b'$' => {
                if let Some(length) = length(number, line)? {
                    self.skip = length + b"\r\n".len();
                    self.open += 1;
                }
            }
            b'*' => self.open += length(number, line)?.unwrap_or(0),
            _ => {}
        }
        Ok(())
    }
}

/// A length as RESP writes it; none if the value is nil.
fn length(number: &[u8], line: &[u8]) -> Result<Option<usize>, NotResp> {
    let number = std::str::from_utf8(number).ok().and_then(|number| number.trim().parse::<i64>().ok());
    match number {
        Some(-1) => Ok(None),
        Some(number) => match usize::try_from(number) {
            Ok(length) if length <= LENGTH_MAX => Ok(Some(length)),
            _ => Err(NotResp::new("the length is out of bounds in", line)),
        },
        None => Err(NotResp::new("the length is no number in", line)),
    }
}

/// Why bytes are no RESP, with the first of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotResp(String);

impl NotResp {
    fn new(what: &str, bytes: &[u8]) -> NotResp {
        NotResp(format!("{what} {}", shown(bytes)))
    }
}

impl fmt::Display for NotResp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
    fn ends(bytes: &[u8], piece: usize) -> Result<Vec<usize>, NotResp> {
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

    proptest! {
        /// Whatever a server sends, what is kept of it is bounded, and the place never leaves the bytes.
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(prop::sample::select(b"+-:$*19\r\nx".to_vec()), 0..200), piece in 1usize..20) {
            if let Ok(ends) = ends(&bytes, piece) {
                prop_assert!(ends.iter().all(|&end| end <= bytes.len()));
            }
        }
    }
}
