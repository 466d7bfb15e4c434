//! The limits of an HTTP client in headers: `Retry-After` of RFC 9110, and `RateLimit` and `RateLimit-Policy` of
//! draft-ietf-httpapi-ratelimit-headers-11, which also defines the body `quota-exceeded`. [dt-2] [dt-3]
//!
//! The last two headers are lists of RFC 9651: each limit is a string with parameters. Not here: which limits are listed (limiter).

use std::collections::HashMap;
use std::fmt::Write as _;

use weir_engine::Micros;
use weir_limiter::{Answer, ListedLimit};

use super::proto::HeaderValue;

/// The longest value of `RateLimit` and of `RateLimit-Policy`. Many clients and proxies accept 4 KiB or 8 KiB of
/// headers.
pub const FIELD_BYTES_MAX: usize = 1_024;
/// The longest name of a limit as written, without its quotes. The rest is cut off.
pub const NAME_BYTES_MAX: usize = 128;

/// The quota unit of requests in flight, by the draft's registry.
const IN_FLIGHT: &str = ";qu=\"concurrent-requests\"";

/// `r` and `q` in the limit's own unit. The draft has no parameter of that kind, and wants other ones with a vendor's
/// name before them.
const AMOUNT: &str = "weir-amount";

const MICROS_PER_SECOND: Micros = 1_000_000;

/// The headers for a request's client: `Retry-After` on a denial with a known wait, and the two lists if any limit could deny the
/// request.
pub(super) fn of(answer: &Answer) -> Vec<HeaderValue> {
    let header = |key: &str, value: String| HeaderValue { key: key.to_owned(), value, ..HeaderValue::default() };
    let mut headers = Vec::with_capacity(3);
    if let Some(seconds) = retry_after(answer) {
        headers.push(header("Retry-After", seconds.to_string()));
    }
    let items = fitting(items(answer));
    if !items.is_empty() {
        headers.push(header("RateLimit", list(items.iter().map(|item| &item.limit))));
        headers.push(header("RateLimit-Policy", list(items.iter().map(|item| &item.policy))));
    }
    headers
}

/// The content type of the body for a denied client, if `response.problem_body` is on.
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// A body for the client of a denied request: the problem `quota-exceeded` with the names of the limits that denied, as in both
/// lists. None if no limit is known to have denied.
pub(super) fn problem(answer: &Answer) -> Option<Vec<u8>> {
    let items = fitting(items(answer));
    let violated: Vec<String> = items.into_iter().filter(|item| item.over).map(|item| item.name).collect();
    let problem = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": violated,
    });
    (answer.denied && !violated.is_empty()).then(|| problem.to_string().into_bytes())
}

/// The value of `Retry-After`: whole seconds, rounded up and at least 1. None if the request is not denied, no wait helps, or the
/// wait is unknown.
pub fn retry_after(answer: &Answer) -> Option<u64> {
    answer.retry_after.map(|us| us.div_ceil(MICROS_PER_SECOND).max(1))
}

/// One limit in both lists.
struct Item {
    name: String,
    limit: String,
    policy: String,
    over: bool,
}

/// The limits of an answer. If several have one name as written, the second has `:2` after it, the third `:3`.
fn items(answer: &Answer) -> Vec<Item> {
    let mut counts: HashMap<String, u32> = HashMap::new();
    let named = answer.limits.iter().map(|listed| {
        let name = encoded(&listed.name, "");
        let count = counts.entry(name.clone()).or_default();
        *count += 1;
        Item::of(listed, if *count == 1 { name } else { encoded(&listed.name, &format!(":{count}")) })
    });
    named.collect()
}

impl Item {
    fn of(listed: &ListedLimit, name: String) -> Self {
        let seconds = listed.until_reset.div_ceil(MICROS_PER_SECOND);
        let quoted = quoted(&name);
        let mut limit = format!("{quoted};r={}", listed.remaining);
        let mut policy = format!("{quoted};q={}", listed.requests);
        if listed.in_flight {
            // Permits come back at any time, so there is no window, and no time until which `r` cannot grow.
            policy.push_str(IN_FLIGHT);
        } else {
            let _ = write!(limit, ";t={seconds}");
        }
        if let Some(amount) = &listed.amount {
            let _ = write!(limit, ";{AMOUNT}=\"{}\"", amount.text(listed.remaining));
            let _ = write!(policy, ";{AMOUNT}=\"{}\"", amount.text(listed.requests));
        }
        if let Some(window) = listed.window_s {
            // Writing to a string cannot fail.
            let _ = write!(policy, ";w={window}");
        }
        Self { name, limit, policy, over: listed.over }
    }
}

const SEPARATOR: &str = ", ";

/// Removes items until both lists fit: first the last items that are within their limit, then the last items that are
/// over.
fn fitting(mut items: Vec<Item>) -> Vec<Item> {
    let bytes = |of: fn(&Item) -> &String, items: &[Item]| -> usize {
        items.iter().map(|item| of(item).len() + SEPARATOR.len()).sum::<usize>().saturating_sub(SEPARATOR.len())
    };
    let mut limit_bytes = bytes(|item| &item.limit, &items);
    let mut policy_bytes = bytes(|item| &item.policy, &items);
    while limit_bytes.max(policy_bytes) > FIELD_BYTES_MAX
        && let Some(last) = items.len().checked_sub(1)
    {
        let left_out = items.remove(items.iter().rposition(|item| !item.over).unwrap_or(last));
        limit_bytes = limit_bytes.saturating_sub(left_out.limit.len() + SEPARATOR.len());
        policy_bytes = policy_bytes.saturating_sub(left_out.policy.len() + SEPARATOR.len());
    }
    items
}

fn list<'a>(items: impl Iterator<Item = &'a String>) -> String {
    let mut list = String::new();
    for item in items {
        if !list.is_empty() {
            list.push_str(SEPARATOR);
        }
        list.push_str(item);
    }
    list
}

/// A name in printable ASCII. Every other byte and the percent sign are percent-encoded, so different names stay
/// different. `end` is not cut off.
fn encoded(name: &str, end: &str) -> String {
    let mut encoded = String::with_capacity(name.len() + end.len());
    let mut written_bytes = end.len();
    for character in name.chars() {
        let start = encoded.len();
        if matches!(character, ' '..='~') && character != '%' {
            encoded.push(character);
        } else {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
        written_bytes += encoded.len() - start + usize::from(matches!(character, '"' | '\\'));
        if written_bytes > NAME_BYTES_MAX {
            encoded.truncate(start);
            break;
        }
    }
    encoded + end
}

/// A text of printable ASCII as a string of RFC 9651.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use weir_engine::Count;

    use super::*;

    fn limit(name: &str, requests: Count, remaining: Count) -> ListedLimit {
        let (window_s, until_reset) = (Some(60), 29_000_001);
        let (name, amount, in_flight, over) = (name.into(), None, false, false);
        ListedLimit { name, requests, amount, in_flight, window_s, remaining, until_reset, over }
    }

    fn shown(answer: &Answer) -> Vec<String> {
        of(answer).into_iter().map(|header| format!("{}: {}", header.key, header.value)).collect()
    }

    #[test]
    fn several_limits_stand_in_both_lists_in_one_order() {
        let hour = ListedLimit { window_s: Some(3_600), until_reset: 0, ..limit("hour", 1_000, 998) };
        let odd = ListedLimit { window_s: None, ..limit("odd", 7, 0) };
        let answer = Answer { limits: vec![limit("minute", 100, 50), hour, odd], ..Answer::default() };
        let expected = [
            r#"RateLimit: "minute";r=50;t=30, "hour";r=998;t=0, "odd";r=0;t=30"#,
            r#"RateLimit-Policy: "minute";q=100;w=60, "hour";q=1000;w=3600, "odd";q=7"#,
        ];
        assert_eq!(shown(&answer), expected);
    }

    #[test]
    fn two_limits_of_the_request_have_two_names() {
        let over = ListedLimit { over: true, ..limit("(request)", 7, 0) };
        let long = "n".repeat(NAME_BYTES_MAX + 1);
        let limits =
            vec![limit("(request)", 5, 1), over, limit("(request)", 9, 3), limit(&long, 1, 1), limit(&long, 1, 1)];
        let answer = Answer { denied: true, limits, ..Answer::default() };
        let headers = of(&answer);
        let names = |value: &str| -> Vec<String> {
            value.split(", ").map(|item| item.split(';').next().unwrap().to_owned()).collect()
        };
        let cut = &long[..NAME_BYTES_MAX];
        let expected = [
            r#""(request)""#.to_owned(),
            r#""(request):2""#.to_owned(),
            r#""(request):3""#.to_owned(),
            format!("\"{cut}\""),
            format!("\"{}:2\"", &cut[2..]),
        ];
        assert_eq!(names(&headers[0].value), expected);
        assert_eq!(names(&headers[1].value), expected);
        let problem: serde_json::Value = serde_json::from_slice(&problem(&answer).unwrap()).unwrap();
        assert_eq!(problem["violated-policies"], serde_json::json!(["(request):2"]));
    }

    #[test]
    fn requests_in_flight_have_their_quota_unit_and_no_window() {
        let streams = ListedLimit { in_flight: true, window_s: None, ..limit("streams", 4, 3) };
        let answer = Answer { limits: vec![streams, limit("minute", 100, 50)], ..Answer::default() };
        let expected = [
            r#"RateLimit: "streams";r=3, "minute";r=50;t=30"#,
            r#"RateLimit-Policy: "streams";q=4;qu="concurrent-requests", "minute";q=100;w=60"#,
        ];
        assert_eq!(shown(&answer), expected);
    }

    #[test]
    fn a_limit_with_an_amount_has_it_beside_whole_numbers() {
        let amount = weir_engine::Denomination::new("usd", 1_000_000).ok().map(Into::into);
        let dollars = ListedLimit { amount, window_s: None, ..limit("dollars", 10_000_000_000_000, 12_500_001) };
        let answer = Answer { limits: vec![dollars, limit("minute", 100, 50)], ..Answer::default() };
        let expected = [
            r#"RateLimit: "dollars";r=12500001;t=30;weir-amount="12.500001 usd", "minute";r=50;t=30"#,
            r#"RateLimit-Policy: "dollars";q=10000000000000;weir-amount="10000000.00 usd", "minute";q=100;w=60"#,
        ];
        assert_eq!(shown(&answer), expected);
    }

    #[test]
    fn retry_after_is_whole_seconds_and_never_0() {
        for (wait, expected) in [(0, "1"), (1, "1"), (1_000_000, "1"), (1_000_001, "2"), (3_599_999_999, "3600")] {
            let answer = Answer { denied: true, retry_after: Some(wait), ..Answer::default() };
            assert_eq!(shown(&answer), [format!("Retry-After: {expected}")], "{wait} us");
        }
        for denied in [false, true] {
            assert!(shown(&Answer { denied, ..Answer::default() }).is_empty(), "no wait is known");
        }
    }

    fn string(name: &str, end: &str) -> String {
        quoted(&encoded(name, end))
    }

    #[test]
    fn names_are_strings_of_structured_fields() {
        for (name, expected) in [
            ("per user", r#""per user""#),
            (r#"a"b\c"#, r#""a\"b\\c""#),
            ("", r#""""#),
            ("café", r#""caf%C3%A9""#),
            ("50%\n\u{7f}~", r#""50%25%0A%7F~""#),
            ("日本🦀", r#""%E6%97%A5%E6%9C%AC%F0%9F%A6%80""#),
        ] {
            assert_eq!(string(name, ""), expected);
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let edge = "n".repeat(NAME_BYTES_MAX);
        assert_eq!(string(&edge, ""), format!("\"{edge}\""));
        assert_eq!(string(&format!("{edge}n"), ""), format!("\"{edge}\""));
        assert_eq!(string(&edge, ":12"), format!("\"{}:12\"", &edge[3..]));
        let before = "n".repeat(NAME_BYTES_MAX - 5);
        // Two bytes of UTF-8 take six here, a quote takes two.
        assert_eq!(string(&format!("{before}é"), ""), format!("\"{before}\""));
        assert_eq!(string(&format!("{before}\"\"\""), ""), format!(r#""{before}\"\"""#));
    }

    #[test]
    fn lists_are_bounded_and_keep_the_limits_that_are_over() {
        let mut limits: Vec<ListedLimit> = (0..512).map(|i| limit(&format!("limit {i}"), 10, 5)).collect();
        limits[300].over = true;
        let answer = Answer { limits, ..Answer::default() };
        let headers = of(&answer);
        assert_eq!(headers.len(), 2);
        for header in &headers {
            assert!(header.value.len() <= FIELD_BYTES_MAX, "{} bytes", header.value.len());
            assert!(header.value.len() > FIELD_BYTES_MAX / 2, "{} bytes", header.value.len());
            assert!(header.value.starts_with("\"limit 0\";") && header.value.contains("\"limit 1\";"), "{header:?}");
            let last = header.value.rsplit(", ").next().unwrap();
            assert!(last.starts_with("\"limit 300\";"), "{last}");
        }
        let count = |header: &HeaderValue| header.value.split(", ").count();
        assert_eq!(count(&headers[0]), count(&headers[1]), "both list the same");
    }
}
