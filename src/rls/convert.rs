//! Converts between the wire and the limiter: a request to a query, an answer to a response.
//!
//! The query borrows every text from the request. Everything that a caller can send is bounded here, so a result of
//! [`query`] need not be checked again. Parts beyond the largest bounds were only counted (request.rs, json.rs). Not
//! here: deciding, and the error codes of gRPC and HTTP.

use std::fmt;

use pbjson_types::Duration;
use smallvec::SmallVec;
use weir_engine::descriptor::saturated;
use weir_engine::words::IN_FLIGHT;
use weir_engine::{Entry, Micros, Operation, Unit, Window};
use weir_limiter::{Answer, DescriptorRequest, LimitInfo, Query, Status};

use super::proto::rate_limit_response::rate_limit::Unit as WireUnit;
use super::proto::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use super::proto::{HeaderValue, RateLimitResponse, RateLimitUnit};
use super::request::{Descriptor, Request};
use super::{client_headers, detail, limit_metadata};

/// The bounds on one request. Each is the largest accepted value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Descriptors of a request, at most 64.
    pub descriptors: usize,
    pub entries: usize,
    pub domain_bytes: usize,
    pub key_bytes: usize,
    pub value_bytes: usize,
    pub hits: u32,
}

/// The error of a request. Its text has the field, the sent number and the bound, but never a caller's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The field, such as `descriptors[2].entries[0].value`.
    pub field: String,
    pub problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    NoDomain,
    NoDescriptors,
    /// There are more parts than the bound.
    TooMany {
        sent: u64,
        /// Whether there may be more parts, because the rest was not counted.
        or_more: bool,
        most: u64,
        what: &'static str,
    },
    /// An entry with a receipt that settles nothing, with the reason.
    Receipt(&'static str),
    /// A limit whose unit is not set, or not one of Envoy's units.
    Unit(i32),
    /// A limit whose window has this many units: none, or more than the longest window has.
    Units(u32, RateLimitUnit),
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problem {
            // These two texts are those of envoyproxy/ratelimit, because clients may search for them.
            Problem::NoDomain => f.write_str("rate limit domain must not be empty"),
            Problem::NoDescriptors => f.write_str("rate limit descriptor list must not be empty"),
            Problem::TooMany { sent, or_more, most, what } => {
                let or_more = if or_more { " or more" } else { "" };
                write!(f, "{}: {sent}{or_more} {what}, at most {most}", self.field)
            }
            Problem::Receipt(reason) => write!(f, "{}: {reason}", self.field),
            Problem::Unit(unit) => {
                write!(f, "{}: unknown unit {unit}, expected 1 (SECOND) to 6 (YEAR)", self.field)
            }
            Problem::Units(0, _) => write!(f, "{}: 0 units, at least 1", self.field),
            Problem::Units(count, unit) => {
                let unit = unit.as_str_name();
                write!(f, "{}: a window of {count} times 1 {unit} is too long, at most 366 days", self.field)
            }
        }
    }
}

impl std::error::Error for Invalid {}

/// Converts a request to a query.
///
/// # Errors
/// When something is missing, beyond its bound, or has no meaning.
pub fn query<'q>(request: &'q Request<'_>, bounds: &Bounds) -> Result<Query<'q>, Invalid> {
    if request.domain.is_empty() {
        return Err(Invalid { field: "domain".to_owned(), problem: Problem::NoDomain });
    }
    within(request.domain.len(), bounds.domain_bytes, "bytes", || "domain".to_owned())?;
    let count = request.descriptors.len();
    if count == 0 {
        return Err(Invalid { field: "descriptors".to_owned(), problem: Problem::NoDescriptors });
    }
    let left_out = request.descriptors_left_out;
    parts_within(count, left_out, bounds.descriptors, "descriptors", || "descriptors".to_owned())?;
    let mut descriptors = SmallVec::new();
    descriptors.reserve_exact(count);
    for (i, descriptor) in request.descriptors.iter().enumerate() {
        descriptors.push(DescriptorRequest {
            entries: entries(descriptor, i, bounds)?,
            operation: take(request, descriptor, i, bounds)?,
            limit: limit(descriptor, i)?,
        });
    }
    Ok(Query { domain: request.domain, caller: None, descriptors, settle: None })
}

fn entries<'q>(descriptor: &'q Descriptor<'_>, i: usize, bounds: &Bounds) -> Result<&'q [Entry<'q>], Invalid> {
    let (kept, left_out) = (descriptor.entries.len(), descriptor.entries_left_out);
    parts_within(kept, left_out, bounds.entries, "entries", || format!("descriptors[{i}].entries"))?;
    let place = |j: usize, field: &str| {
        let before = usize::from(descriptor.receipt_at.is_some_and(|receipt| usize::from(receipt) <= j));
        format!("descriptors[{i}].entries[{}].{field}", j + before)
    };
    for (j, entry) in descriptor.entries.iter().enumerate() {
        within(entry.key.len(), bounds.key_bytes, "bytes", || place(j, "key"))?;
        within(entry.value.len(), bounds.value_bytes, "bytes", || place(j, "value"))?;
    }
    Ok(&descriptor.entries)
}

/// The hits of a descriptor: its own, of which 0 is a peek or a refund of nothing; otherwise the request's, of which 0 or
/// none means 1.
fn take(request: &Request<'_>, descriptor: &Descriptor<'_>, i: usize, bounds: &Bounds) -> Result<Operation, Invalid> {
    let sent = descriptor.hits_addend.unwrap_or_else(|| request.hits_addend.max(1).into());
    let hits = match u32::try_from(sent) {
        Ok(hits) if hits <= bounds.hits => hits,
        _ => {
            let field = match descriptor.hits_addend {
                Some(_) => format!("descriptors[{i}].hits_addend"),
                None => "hits_addend".to_owned(),
            };
            let most = u64::from(bounds.hits);
            let what = "hits";
            return Err(Invalid { field, problem: Problem::TooMany { sent, or_more: false, most, what } });
        }
    };
    Ok(match (hits, descriptor.is_negative_hits) {
        (0, false) => Operation::Peek,
        (hits, false) => Operation::Consume(hits),
        (hits, true) => Operation::Refund(hits),
    })
}

/// The hits and the window of the limit of a descriptor. [mt-6]
fn limit(descriptor: &Descriptor<'_>, i: usize) -> Result<Option<(u32, Window)>, Invalid> {
    let Some(limit) = &descriptor.limit else {
        return Ok(None);
    };
    let sent = RateLimitUnit::try_from(limit.unit).unwrap_or_default();
    let unit = match sent {
        RateLimitUnit::Second => Unit::Second,
        RateLimitUnit::Minute => Unit::Minute,
        RateLimitUnit::Hour => Unit::Hour,
        RateLimitUnit::Day => Unit::Day,
        RateLimitUnit::Month => Unit::Month,
        RateLimitUnit::Year => Unit::Year,
        RateLimitUnit::Unknown => {
            return Err(Invalid { field: format!("descriptors[{i}].limit.unit"), problem: Problem::Unit(limit.unit) });
        }
    };
    let count = limit.unit_multiplier.map_or(1, |multiplier| multiplier.value);
    match Window::of_units(count, unit) {
        Some(window) => Ok(Some((limit.requests_per_unit, window))),
        None => {
            let field = format!("descriptors[{i}].limit.unit_multiplier");
            Err(Invalid { field, problem: Problem::Units(count, sent) })
        }
    }
}

fn within(sent: usize, most: usize, what: &'static str, field: impl FnOnce() -> String) -> Result<(), Invalid> {
    parts_within(sent, 0, most, what, field)
}

/// `left_out` is a lower bound of the number of parts beyond the kept ones.
fn parts_within(
    kept: usize,
    left_out: u32,
    most: usize,
    what: &'static str,
    field: impl FnOnce() -> String,
) -> Result<(), Invalid> {
    let sent = kept + left_out as usize;
    if sent <= most {
        return Ok(());
    }
    let (sent, most) = (sent as u64, most as u64);
    Err(Invalid { field: field(), problem: Problem::TooMany { sent, or_more: left_out > 0, most, what } })
}

/// The parts of a response that envoyproxy/ratelimit does not send. Each is off by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// The detail of each status, as dynamic metadata under the key `weir`.
    pub dynamic_metadata: bool,
    /// The wait until an admitted request's turn, as a header, so that Envoy's fault filter delays the request.
    pub delay_header: bool,
    /// The request and the metadata of the limits that it passed, as dynamic metadata.
    pub limit_metadata: bool,
    /// `Retry-After`, `RateLimit` and `RateLimit-Policy` as headers of the response to the caller's client.
    pub ietf_headers: bool,
    /// A problem of RFC 9457 with the names of the limits that denied, as the body of the response to the caller's
    /// client.
    pub problem_body: bool,
    /// The limit that is nearest to being used up, as headers of the response to the caller's client. None: off.
    pub limit_headers: Option<LimitHeaders>,
    /// A window of several units has its unit and their number. Callers that do not know the number would read one unit.
    pub unit_multiplier: bool,
}

/// The names of the headers that show a limit to the caller's client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitHeaders {
    /// Hits per window.
    pub limit: String,
    pub remaining: String,
    /// Seconds until the limit is reset, as in `duration_until_reset` of its status.
    pub reset: String,
}

const MICROS_PER_SECOND: Micros = 1_000_000;

/// The header that sets the delay of Envoy's fault filter with `header_delay`, in milliseconds. [lb-3]
pub const DELAY_HEADER: &str = "x-envoy-fault-delay-request";

pub fn response(request: &Request<'_>, answer: Answer, extras: &Extras) -> RateLimitResponse {
    let mut response = RateLimitResponse { overall_code: code(answer.denied).into(), ..RateLimitResponse::default() };
    if extras.dynamic_metadata {
        response.dynamic_metadata = Some(detail::metadata(&answer));
    }
    if extras.limit_metadata {
        let fields = response.dynamic_metadata.get_or_insert_default();
        fields.fields.extend(limit_metadata::fields(request, &answer.metadata));
    }
    if let Some(names) = &extras.limit_headers {
        response.response_headers_to_add = limit_headers(names, &answer.statuses);
    }
    if extras.ietf_headers {
        response.response_headers_to_add.extend(client_headers::of(&answer));
    }
    if extras.problem_body
        && let Some(body) = client_headers::problem(&answer)
    {
        response.raw_body = body;
        response.response_headers_to_add.push(HeaderValue {
            key: "Content-Type".to_owned(),
            value: client_headers::PROBLEM_TYPE.to_owned(),
            ..HeaderValue::default()
        });
    }
    if extras.delay_header && answer.wait > 0 {
        response.request_headers_to_add.push(HeaderValue {
            key: DELAY_HEADER.to_owned(),
            value: answer.wait.div_ceil(1_000).to_string(),
            ..HeaderValue::default()
        });
    }
    response.statuses = answer.statuses.into_iter().map(|one| status(one, extras)).collect();
    response
}

/// The headers of one limit: the last one that denies by itself, which no quota does; otherwise the one with the fewest
/// remaining hits, and the first among equals.
fn limit_headers(names: &LimitHeaders, statuses: &[Status]) -> Vec<HeaderValue> {
    let limited = || statuses.iter().filter_map(|status| Some((status, status.limit.as_ref()?)));
    let denying = limited().rfind(|(status, _)| status.over && !status.is_quota);
    let Some((status, limit)) = denying.or_else(|| limited().min_by_key(|(status, _)| status.remaining)) else {
        return Vec::new();
    };
    let reset = status.until_reset.unwrap_or(0).div_ceil(MICROS_PER_SECOND);
    let header = |name: &String, value: String| HeaderValue { key: name.clone(), value, ..HeaderValue::default() };
    vec![
        header(&names.limit, limit.requests.to_string()),
        header(&names.remaining, status.remaining.to_string()),
        header(&names.reset, reset.to_string()),
    ]
}

const fn code(over: bool) -> Code {
    if over { Code::OverLimit } else { Code::Ok }
}

fn status(status: Status, extras: &Extras) -> DescriptorStatus {
    DescriptorStatus {
        code: code(status.over).into(),
        current_limit: status.limit.map(|limit| current_limit(limit, extras)),
        limit_remaining: saturated(status.remaining),
        duration_until_reset: status.until_reset.map(whole_seconds),
        quota: None,
    }
}

/// A limit on the wire. If it has neither a name nor a unit, its name is the length of the window, or [`IN_FLIGHT`].
fn current_limit(limit: LimitInfo, extras: &Extras) -> RateLimit {
    let units = limit.window.and_then(|window| match window.unit() {
        None if extras.unit_multiplier => window.in_units(&Unit::ALL),
        unit => unit.map(|unit| (1, unit)),
    });
    let unit = match units.map(|(_, unit)| unit) {
        None => WireUnit::Unknown,
        Some(Unit::Second) => WireUnit::Second,
        Some(Unit::Minute) => WireUnit::Minute,
        Some(Unit::Hour) => WireUnit::Hour,
        Some(Unit::Day) => WireUnit::Day,
        Some(Unit::Week) => WireUnit::Week,
        Some(Unit::Month) => WireUnit::Month,
        Some(Unit::Year) => WireUnit::Year,
    };
    let name = match (limit.name, limit.window) {
        (Some(name), _) => name.into(),
        (None, None) => IN_FLIGHT.to_owned(),
        (None, Some(window)) if units.is_none() => window.to_string(),
        (None, Some(_)) => String::new(),
    };
    RateLimit {
        requests_per_unit: saturated(limit.requests),
        unit: unit.into(),
        name,
        unit_multiplier: units.filter(|(count, _)| *count > 1).map(|(count, _)| count.into()),
    }
}

/// Rounded up: Envoy drops fractions, and a wait of 0.4 s must not become 0.
fn whole_seconds(us: Micros) -> Duration {
    let seconds = us.div_ceil(MICROS_PER_SECOND);
    Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}

#[cfg(test)]
mod tests {
    use weir_engine::Hits;

    use super::*;
    use crate::proto::rate_limit_descriptor::RateLimitOverride;
    use crate::proto::{RateLimitDescriptor, RateLimitRequest};

    const BOUNDS: Bounds =
        Bounds { descriptors: 2, entries: 1, domain_bytes: 4, key_bytes: 4, value_bytes: 3, hits: u32::MAX };

    fn request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
        RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 }
    }

    #[test]
    fn units_of_limits_in_requests_are_envoys() {
        let unknown =
            |unit: i32| format!("descriptors[0].limit.unit: unknown unit {unit}, expected 1 (SECOND) to 6 (YEAR)");
        for (unit, expected) in [
            (1, Ok(Unit::Second)),
            (2, Ok(Unit::Minute)),
            (3, Ok(Unit::Hour)),
            (4, Ok(Unit::Day)),
            (5, Ok(Unit::Month)),
            (6, Ok(Unit::Year)),
            (0, Err(unknown(0))),
            (7, Err(unknown(7))),
            (-1, Err(unknown(-1))),
        ] {
            assert_eq!(limit_of(unit, None), expected.map(Unit::window));
        }
    }

    /// The window of a limit in a request.
    fn limit_of(unit: i32, unit_multiplier: Option<u32>) -> Result<Window, String> {
        let unit_multiplier = unit_multiplier.map(Into::into);
        let limit = Some(RateLimitOverride { requests_per_unit: 5, unit, unit_multiplier });
        let user = RateLimitDescriptor { limit, ..RateLimitDescriptor::default() };
        let request = request(vec![user]);
        let view = Request::of(&request);
        let query = query(&view, &BOUNDS).map_err(|invalid| invalid.to_string())?;
        let (requests, window) = query.descriptors[0].limit.expect("a limit");
        assert_eq!(requests, 5);
        Ok(window)
    }

    #[test]
    fn a_limit_in_a_request_has_a_window_of_several_units() {
        let days = |count| Window::of_units(count, Unit::Day).unwrap();
        assert_eq!(limit_of(1, Some(30)), Ok(Window::from_micros(30_000_000).unwrap()));
        assert_eq!(limit_of(2, Some(1)), limit_of(2, None));
        assert_eq!(limit_of(4, Some(366)), Ok(days(366)), "the longest window");
        let field = "descriptors[0].limit.unit_multiplier";
        assert_eq!(limit_of(4, Some(0)), Err(format!("{field}: 0 units, at least 1")));
        for (unit, name, count) in [(4, "DAY", 367), (6, "YEAR", 2), (6, "YEAR", u32::MAX), (1, "SECOND", 31_622_401)] {
            let text = format!("{field}: a window of {count} times 1 {name} is too long, at most 366 days");
            assert_eq!(limit_of(unit, Some(count)), Err(text));
        }
        let unknown = "descriptors[0].limit.unit: unknown unit 9, expected 1 (SECOND) to 6 (YEAR)";
        assert_eq!(limit_of(9, Some(2)), Err(unknown.to_owned()));
    }

    #[test]
    fn a_window_of_several_units_has_a_multiplier_only_if_the_setting_is_on() {
        let shown = |seconds: u64, name: Option<&str>, unit_multiplier| {
            let window = Window::from_micros(seconds * 1_000_000).ok();
            let limit = LimitInfo { requests: 3, window, name: name.map(Into::into), amount: None };
            let limit = current_limit(limit, &Extras { unit_multiplier, ..Extras::default() });
            let count = limit.unit_multiplier.map(|count| count.value);
            (limit.unit().as_str_name(), count, limit.name)
        };
        for (seconds, unit, count) in
            [(90, "SECOND", 90), (120, "MINUTE", 2), (172_800, "DAY", 2), (1_209_600, "WEEK", 2)]
        {
            assert_eq!(shown(seconds, None, true), (unit, Some(count), String::new()));
            assert_eq!(shown(seconds, Some("some"), true), (unit, Some(count), "some".to_owned()));
            assert_eq!(shown(seconds, None, false), ("UNKNOWN", None, format!("{seconds}s")));
            assert_eq!(shown(seconds, Some("some"), false), ("UNKNOWN", None, "some".to_owned()));
        }
        for has_multiplier in [false, true] {
            assert_eq!(shown(60, None, has_multiplier), ("MINUTE", None, String::new()), "never 1");
            let odd = LimitInfo { requests: 3, window: Window::from_micros(1_500_000).ok(), name: None, amount: None };
            let odd = current_limit(odd, &Extras { unit_multiplier: has_multiplier, ..Extras::default() });
            assert_eq!((odd.unit(), odd.unit_multiplier, &*odd.name), (WireUnit::Unknown, None, "1500ms"));
        }
    }

    #[test]
    fn requests_in_flight_have_no_unit() {
        for unit_multiplier in [false, true] {
            for (name, expected) in [(None, IN_FLIGHT), (Some("calls"), "calls")] {
                let limit = LimitInfo { requests: 4, window: None, name: name.map(Into::into), amount: None };
                let limit = current_limit(limit, &Extras { unit_multiplier, ..Extras::default() });
                assert_eq!((limit.unit(), limit.unit_multiplier, &*limit.name), (WireUnit::Unknown, None, expected));
            }
        }
    }

    #[test]
    fn hits_come_from_the_descriptor_first() {
        for (of_request, of_descriptor, negative, expected) in [
            (0, None, false, Operation::Consume(1)),
            (7, None, false, Operation::Consume(7)),
            (7, Some(3), false, Operation::Consume(3)),
            (7, Some(0), false, Operation::Peek),
            (0, Some(u64::from(Hits::MAX)), false, Operation::Consume(Hits::MAX)),
            (0, None, true, Operation::Refund(1)),
            (7, None, true, Operation::Refund(7)),
            (7, Some(3), true, Operation::Refund(3)),
            (7, Some(0), true, Operation::Refund(0)),
        ] {
            let user = RateLimitDescriptor {
                hits_addend: of_descriptor.map(Into::into),
                is_negative_hits: negative,
                ..RateLimitDescriptor::default()
            };
            let mut request = request(vec![user]);
            request.hits_addend = of_request;
            let view = Request::of(&request);
            let query = query(&view, &BOUNDS).unwrap();
            assert_eq!(query.descriptors[0].operation, expected, "{request:?}");
        }
    }

    #[test]
    fn waits_round_up_to_whole_seconds() {
        for (us, seconds) in [(0, 0), (1, 1), (400_000, 1), (1_000_000, 1), (1_000_001, 2)] {
            assert_eq!(whole_seconds(us), Duration { seconds, nanos: 0 }, "{us} us");
        }
    }

    #[test]
    fn delays_round_up_to_whole_milliseconds() {
        let extras = Extras { delay_header: true, ..Extras::default() };
        for (wait, expected) in [(0, None), (1, Some("1")), (1_000, Some("1")), (749_001, Some("750"))] {
            let answer = Answer { wait, ..Answer::default() };
            let asked = RateLimitRequest::default();
            let header = response(&Request::of(&asked), answer.clone(), &extras).request_headers_to_add.pop();
            assert_eq!(
                header.map(|header| (header.key, header.value)),
                expected.map(|ms| (DELAY_HEADER.into(), ms.into()))
            );
            assert!(
                response(&Request::of(&asked), answer, &Extras::default()).request_headers_to_add.is_empty(),
                "{wait} us"
            );
        }
    }

    #[test]
    fn a_status_without_a_limit_is_only_a_code() {
        let answer = Answer {
            denied: true,
            statuses: smallvec::smallvec![
                Status::default(),
                Status { remaining: Hits::MAX.into(), ..Status::default() },
                Status {
                    over: true,
                    limit: Some(LimitInfo {
                        amount: None,
                        requests: 3,
                        window: Some(Unit::Week.window()),
                        name: Some("weekly".into())
                    }),
                    until_reset: Some(1),
                    ..Status::default()
                },
            ],
            ..Answer::default()
        };
        let response = response(&Request::default(), answer, &Extras::default());
        assert_eq!(response.overall_code(), Code::OverLimit);
        let bare = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
        let unlimited = DescriptorStatus { limit_remaining: u32::MAX, ..bare.clone() };
        let over = DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 3,
                unit: 7,
                name: "weekly".into(),
                ..RateLimit::default()
            }),
            limit_remaining: 0,
            duration_until_reset: Some(Duration { seconds: 1, nanos: 0 }),
            quota: None,
        };
        assert_eq!(response.statuses, [bare, unlimited, over]);
    }

    /// [lm-8]
    #[test]
    fn a_large_limit_has_the_largest_number_of_the_protocol_and_all_digits_in_headers() {
        let window = Some(Unit::Month.window());
        let limit = Some(LimitInfo { requests: 10_000_000_000_000, window, name: None, amount: None });
        let large = Status { limit, remaining: 9_999_999_999_999, ..Status::default() };
        let names = LimitHeaders { limit: "l".into(), remaining: "r".into(), reset: "t".into() };
        let headers = limit_headers(&names, std::slice::from_ref(&large));
        let values: Vec<_> = headers.iter().map(|header| header.value.as_str()).collect();
        assert_eq!(values, ["10000000000000", "9999999999999", "0"]);
        let sent = status(large, &Extras::default());
        assert_eq!((sent.limit_remaining, sent.current_limit.unwrap().requests_per_unit), (u32::MAX, u32::MAX));
    }

    #[test]
    fn headers_show_the_limit_that_denies_last_or_is_nearest_to_its_end() {
        let names = LimitHeaders { limit: "l".into(), remaining: "r".into(), reset: "t".into() };
        let status = |over, requests, remaining, until_reset| Status {
            over,
            limit: Some(LimitInfo { requests, window: Some(Unit::Hour.window()), name: None, amount: None }),
            remaining,
            until_reset: Some(until_reset),
            ..Status::default()
        };
        let shown = |statuses: &[Status]| {
            let headers = limit_headers(&names, statuses);
            headers.into_iter().map(|header| format!("{}={}", header.key, header.value)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            shown(&[status(false, 9, 5, 1), status(false, 2, 1, 1_000_001), status(false, 3, 1, 1)]),
            "l=2 r=1 t=2"
        );
        assert_eq!(shown(&[status(true, 9, 0, 1), status(true, 2, 0, 1), status(false, 3, 0, 1)]), "l=2 r=0 t=1");
        let quota = |requests, remaining| Status { is_quota: true, ..status(true, requests, remaining, 1) };
        assert_eq!(shown(&[status(false, 9, 0, 1), quota(2, 0)]), "l=9 r=0 t=1", "no quota denies by itself");
        assert_eq!(shown(&[status(true, 9, 0, 1), quota(2, 0)]), "l=9 r=0 t=1");
        assert_eq!(shown(&[quota(8, 1), quota(2, 0)]), "l=2 r=0 t=1");
        let bare = Status { over: true, ..Status::default() };
        let unlimited = Status { remaining: Hits::MAX.into(), ..Status::default() };
        assert_eq!(shown(&[bare.clone(), unlimited.clone(), status(false, 9, 5, 0)]), "l=9 r=5 t=0");
        assert_eq!(shown(&[bare, unlimited]), "");
    }
}
