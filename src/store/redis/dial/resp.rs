//! Reads one element of RESP 2 from the beginning of some bytes: a value that is not an array, or the beginning of an
//! array.
//!
//! Not here: how elements become replies, and the bounds on their number (replies.rs). The redis crate reads texts and
//! errors.

use redis::Value;

/// The largest length of a string or an array: the limit of Redis' own strings.
const LENGTH_MAX: usize = 512 << 20;

/// The most bytes of a line. Redis' longest errors have a few hundred.
const REPLY_LINE_BYTES_MAX: usize = 16 << 10;

/// Bytes of a stream that an error shows.
const SHOWN_BYTES_MAX: usize = 32;

/// The element at the beginning of the bytes.
#[derive(Debug, PartialEq)]
pub(super) enum Element {
    /// A value that is not an array.
    Whole(Value),
    /// An array of this many values, which follow.
    Array(usize),
}

/// The element at the beginning of `bytes`, and its length in bytes. None if it is incomplete.
///
/// # Errors
///
/// When the bytes are not RESP 2, or a line is too long.
pub(super) fn element(bytes: &[u8]) -> Result<Option<(Element, usize)>, BadReply> {
    let Some(mark) = bytes.first() else { return Ok(None) };
    if !matches!(mark, b'+' | b'-' | b':' | b'$' | b'*') {
        return Err(BadReply::not_resp("a value begins with", bytes));
    }
    // Most answers to decisions are integers.
    if let Some((number, taken)) = integer(bytes) {
        return Ok(Some((Element::Whole(Value::Int(number)), taken)));
    }
    let end = bytes.array_windows().position(|two| two == b"\r\n").map(|at| at + 2);
    if end.unwrap_or(bytes.len()) > REPLY_LINE_BYTES_MAX {
        return Err(BadReply::TooLarge(format!("a line of more than {REPLY_LINE_BYTES_MAX} bytes")));
    }
    let Some(mut taken) = end else { return Ok(None) };
    let line = &bytes[..taken];
    let element = match mark {
        b'$' => match length(line)? {
            None => Element::Whole(Value::Nil),
            Some(length) => {
                let Some((text, rest)) = bytes[taken..].split_at_checked(length) else { return Ok(None) };
                let Some(end) = rest.first_chunk() else { return Ok(None) };
                if end != b"\r\n" {
                    return Err(BadReply::not_resp("no end of line follows", text));
                }
                taken += length + end.len();
                Element::Whole(Value::BulkString(text.to_vec()))
            }
        },
        b'*' => length(line)?.map_or(Element::Whole(Value::Nil), Element::Array),
        _ => Element::Whole(
            redis::parse_redis_value(line)
                .map_err(|error| BadReply::NotResp(format!("{error} in {}", shown(&line[..line.len() - 2]))))?,
        ),
    };
    Ok(Some((element, taken)))
}

/// The integer at the beginning of `bytes`, and its length in bytes. None for anything else, including integers in a
/// form that Redis does not write.
fn integer(bytes: &[u8]) -> Option<(i64, usize)> {
    let digits = bytes.strip_prefix(b":")?;
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

/// The length in a line that begins with a mark. None if the value is nil.
fn length(line: &[u8]) -> Result<Option<usize>, BadReply> {
    let number = std::str::from_utf8(&line[1..]).ok().and_then(|number| number.trim().parse::<i64>().ok());
    match number {
        Some(-1) => Ok(None),
        Some(number) => match usize::try_from(number) {
            Ok(length) if length <= LENGTH_MAX => Ok(Some(length)),
            _ => Err(BadReply::not_resp("the length is out of bounds in", line)),
        },
        None => Err(BadReply::not_resp("the length is not a number in", line)),
    }
}

/// Why a reply is refused, for people.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadReply {
    /// Contains the first bytes that are not RESP.
    #[error("a reply that is not RESP: {0}")]
    NotResp(String),
    /// The reply exceeds a bound of valid replies.
    #[error("a reply beyond its bounds: {0}")]
    TooLarge(String),
}

impl BadReply {
    fn not_resp(what: &str, bytes: &[u8]) -> BadReply {
        BadReply::NotResp(format!("{what} {}", shown(bytes)))
    }
}

/// The first bytes of a stream, printed for a log line.
pub(super) fn shown(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_resp_are_shown() {
        let check = |bytes: &str, expected: &str| {
            let error = element(bytes.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), format!("a reply that is not RESP: {expected}"));
        };
        check("hello", r#"a value begins with "hello""#);
        check(
            "HTTP/1.1 400 Bad Request\r\nServer: envoy\r\n",
            r#"a value begins with "HTTP/1.1 400 Bad Request\r\nServer""#,
        );
        check("$-7x\r\n", r#"the length is not a number in "$-7x\r\n""#);
        check("$-7\r\n", r#"the length is out of bounds in "$-7\r\n""#);
        check("*99999999999\r\n", r#"the length is out of bounds in "*99999999999\r\n""#);
        check("$\r\n", r#"the length is not a number in "$\r\n""#);
        check("$1\r\nab\r\n", r#"no end of line follows "a""#);
    }

    #[test]
    fn an_element_is_none_before_it_is_whole() {
        for whole in
            ["+OK\r\n", "+a\nb\rc\r\n", "-ERR no\r\n", ":-7\r\n", "$-1\r\n", "$0\r\n\r\n", "$4\r\n\r\nab\r\n", "*3\r\n"]
        {
            let bytes = [whole.as_bytes(), b"+more\r\n"].concat();
            assert_eq!(element(&bytes).unwrap().unwrap().1, whole.len(), "{whole:?}");
            for end in 0..whole.len() {
                assert_eq!(element(&bytes[..end]), Ok(None), "{end} bytes of {whole:?}");
            }
        }
    }
}
