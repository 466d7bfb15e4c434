//! The difference between a server's clock and this machine's.
//!
//! Redis' clock decides about used hits; this machine's decides about terms, overrides and `on_error: local`. Not here: when the check
//! runs (app), and the consequences (docs/stores.md).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::{FromRedisValue as _, Value};

use crate::redis::transport::call::Call;

/// The shortest difference that is a warning.
const WARNED: Duration = Duration::from_secs(1);

/// The command that reads the clock.
pub(crate) fn question() -> Call {
    Call::command(redis::cmd("TIME"))
}

/// The time in an answer. None if it has no time.
pub(crate) fn read(answer: &Value) -> Option<SystemTime> {
    let (seconds, microseconds) = <(u64, u32)>::from_redis_value_ref(answer).ok()?;
    let since = Duration::from_secs(seconds).checked_add(Duration::from_micros(microseconds.into()))?;
    UNIX_EPOCH.checked_add(since)
}

/// The least difference that explains the answer: the server read `theirs` between `asked` and `answered`.
pub(crate) fn difference(theirs: SystemTime, asked: SystemTime, answered: SystemTime) -> Duration {
    let behind = asked.duration_since(theirs).unwrap_or_default();
    let ahead = theirs.duration_since(answered).unwrap_or_default();
    behind.max(ahead)
}

/// The warning about the Redis at `address`. Its text is the same as long as the warning holds. None if the difference is small.
pub(crate) fn warning(address: &str, theirs: SystemTime, answered: SystemTime, difference: Duration) -> Option<String> {
    let direction = if theirs > answered { "ahead of" } else { "behind" };
    (difference >= WARNED).then(|| {
        format!(
            "the clock of redis at {address} is a second or more {direction} this machine's: terms, overrides and decisions of \
             on_error: local use this machine's, and other decisions use that of Redis"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_round_trip_cannot_explain_is_a_difference() {
        let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(ms);
        for (theirs, expected) in [(0, 5_000), (4_000, 1_000), (5_000, 0), (7_000, 0), (8_000, 0), (8_500, 500)] {
            assert_eq!(difference(at(theirs), at(5_000), at(8_000)), Duration::from_millis(expected), "{theirs}");
        }
        // This machine's clock stepped back between question and answer.
        assert_eq!(difference(at(6_000), at(8_000), at(5_000)), Duration::from_secs(2));
        let warned = |theirs| {
            let text = warning("cache:6379", at(theirs), at(8_000), difference(at(theirs), at(5_000), at(8_000)))?;
            Some(text.contains("more ahead of this")).filter(|_| text.contains("cache:6379"))
        };
        assert_eq!([4_000, 4_001, 8_999, 9_000].map(warned), [Some(false), None, None, Some(true)]);
    }

    #[test]
    fn an_answer_without_a_time_is_no_clock() {
        let text = |text: &str| Value::BulkString(text.into());
        let time = |seconds, rest| read(&Value::Array(vec![text(seconds), text(rest)]));
        assert_eq!(time("5", "250000"), Some(UNIX_EPOCH + Duration::from_millis(5_250)));
        for (seconds, rest) in [("", "1"), ("-1", "1"), ("18446744073709551615", "1"), ("1", "x")] {
            assert_eq!(time(seconds, rest), None, "{seconds} {rest}");
        }
        for answer in [Value::Nil, Value::Int(5), Value::Array(vec![]), text("5")] {
            assert_eq!(read(&answer), None);
        }
    }
}
