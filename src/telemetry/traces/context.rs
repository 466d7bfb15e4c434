//! The trace context of a caller: W3C Trace Context, and B3 in one header and in several.
//!
//! Reads without allocating: this runs for each request while traces are on. A malformed header counts as absent.

use opentelemetry::trace::TraceState;
use tonic::codegen::http::HeaderMap;
use weir_engine::observer::TraceIds;
use weir_settings::PropagatorFormats;

/// The longest `tracestate` that is kept. A longer one is dropped, as the specification allows.
const TRACESTATE_BYTES_MAX: usize = 512;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Caller {
    /// The caller's span, the parent of weir's.
    pub(super) ids: Option<TraceIds>,
    /// The caller's sampling decision. None if it made none.
    pub(super) sampled: Option<bool>,
    /// Whether the ids are from `traceparent`.
    pub(super) is_w3c: bool,
}

impl Caller {
    pub(super) fn of(headers: &HeaderMap, propagators: PropagatorFormats) -> Self {
        let found = Found::among(headers);
        // W3C has priority.
        if propagators.w3c
            && let Some(caller) = found.traceparent.and_then(w3c)
        {
            return caller;
        }
        if propagators.b3 {
            return found.b3.and_then(b3).unwrap_or_else(|| b3_multi(&found));
        }
        Self::default()
    }
}

/// The first value of each trace context header.
#[derive(Default)]
struct Found<'a> {
    traceparent: Option<&'a [u8]>,
    b3: Option<&'a [u8]>,
    b3_trace: Option<&'a [u8]>,
    b3_span: Option<&'a [u8]>,
    b3_sampled: Option<&'a [u8]>,
    b3_flags: Option<&'a [u8]>,
}

impl<'a> Found<'a> {
    /// Reads all headers once: a lookup hashes the name, and most requests have none of the six.
    fn among(headers: &'a HeaderMap) -> Self {
        let mut found = Self::default();
        for (name, value) in headers {
            let place = match name.as_str() {
                "traceparent" => &mut found.traceparent,
                "b3" => &mut found.b3,
                "x-b3-traceid" => &mut found.b3_trace,
                "x-b3-spanid" => &mut found.b3_span,
                "x-b3-sampled" => &mut found.b3_sampled,
                "x-b3-flags" => &mut found.b3_flags,
                _ => continue,
            };
            place.get_or_insert_with(|| value.as_bytes());
        }
        found
    }
}

/// `traceparent`: version, trace, parent and flags, in lower-case hex.
fn w3c(text: &[u8]) -> Option<Caller> {
    let (&version, rest) =
        text.split_first_chunk::<3>().and_then(|(version, rest)| Some((version.first_chunk::<2>()?, rest)))?;
    if text[2] != b'-' || &version == b"ff" || !version.iter().all(|digit| is_lower_hex(*digit)) {
        return None;
    }
    let (fields, more) = rest.split_at_checked(52)?;
    // Later versions may have more fields.
    if !(more.is_empty() || (&version != b"00" && more[0] == b'-')) || fields[32] != b'-' || fields[49] != b'-' {
        return None;
    }
    let hex = |text: &[u8]| text.iter().all(|digit| is_lower_hex(*digit)).then(|| number(text)).flatten();
    let (trace, span, flags) = (hex(&fields[..32])?, hex(&fields[33..49])?, hex(&fields[50..])?);
    Some(Caller { ids: Some(ids(trace, span)?), sampled: Some(flags & 1 == 1), is_w3c: true })
}

/// `b3`: trace, span, decision and parent, of which the last two are optional; or the decision alone.
fn b3(text: &[u8]) -> Option<Caller> {
    let mut parts = text.split(|byte| *byte == b'-');
    let first = parts.next()?;
    let Some(span) = parts.next() else {
        return Some(Caller { sampled: Some(decision(first)?), ..Caller::default() });
    };
    let sampled = match parts.next() {
        Some(text) => Some(decision(text)?),
        None => None,
    };
    Some(Caller { ids: Some(b3_ids(first, span)?), sampled, is_w3c: false })
}

/// `x-b3-traceid`, `x-b3-spanid`, `x-b3-sampled` and `x-b3-flags`.
fn b3_multi(found: &Found<'_>) -> Caller {
    let sampled = found.b3_sampled.and_then(decision);
    let Some(trace) = found.b3_trace else {
        // A caller can send its decision alone.
        return Caller { sampled, ..Caller::default() };
    };
    let sampled = if found.b3_flags == Some(b"1") { Some(true) } else { sampled };
    let ids = found.b3_span.and_then(|span| b3_ids(trace, span));
    Caller { ids, sampled, is_w3c: false }
}

/// A sampling decision of B3. `d` is debug, which is sampled.
fn decision(text: &[u8]) -> Option<bool> {
    match text {
        b"1" | b"d" | b"true" => Some(true),
        b"0" | b"false" => Some(false),
        _ => None,
    }
}

/// A trace of 16 or 32 digits, and a span of 16 digits.
fn b3_ids(trace: &[u8], span: &[u8]) -> Option<TraceIds> {
    if !matches!(trace.len(), 16 | 32) || span.len() != 16 {
        return None;
    }
    ids(number(trace)?, number(span)?)
}

/// Valid ids: neither is zero.
fn ids(trace: u128, span: u128) -> Option<TraceIds> {
    let span = u64::try_from(span).ok()?;
    (trace != 0 && span != 0).then_some(TraceIds { trace, span })
}

fn number(hex: &[u8]) -> Option<u128> {
    let mut number = 0;
    for digit in hex {
        number = number << 4 | u128::from(char::from(*digit).to_digit(16)?);
    }
    Some(number)
}

const fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// `tracestate`, the part of the context for other vendors. Empty if it is malformed.
pub(super) fn tracestate(headers: &HeaderMap) -> TraceState {
    let mut members = Vec::new();
    let mut bytes = 0;
    for header in headers.get_all("tracestate") {
        let Ok(text) = header.to_str() else { return TraceState::NONE };
        bytes += text.len();
        if bytes > TRACESTATE_BYTES_MAX {
            return TraceState::NONE;
        }
        for member in text.split(',').map(str::trim).filter(|member| !member.is_empty()) {
            let Some(pair) = member.split_once('=') else { return TraceState::NONE };
            members.push(pair);
        }
    }
    TraceState::from_key_value(members).unwrap_or(TraceState::NONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: PropagatorFormats = PropagatorFormats { w3c: true, b3: true };
    const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
    const SPAN: u64 = 0x00f0_67aa_0ba9_02b7;
    const IDS: Option<TraceIds> = Some(TraceIds { trace: TRACE, span: SPAN });

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn of(pairs: &[(&'static str, &str)]) -> (Option<TraceIds>, Option<bool>) {
        let caller = Caller::of(&headers(pairs), BOTH);
        (caller.ids, caller.sampled)
    }

    #[test]
    fn w3c_is_read_as_the_specification_has_it() {
        let text = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        assert_eq!(of(&[("traceparent", &format!("00-{text}-01"))]), (IDS, Some(true)));
        assert_eq!(of(&[("traceparent", &format!("00-{text}-00"))]), (IDS, Some(false)));
        assert_eq!(of(&[("traceparent", &format!("00-{text}-ff"))]), (IDS, Some(true)));
        assert_eq!(of(&[("traceparent", &format!("cc-{text}-01-more"))]), (IDS, Some(true)), "a later version");
        for bad in [
            "",
            "00",
            "00-",
            &format!("00-{text}"),
            &format!("00-{text}-"),
            &format!("00-{text}-0"),
            &format!("00-{text}-011"),
            &format!("00-{text}-01-more"),
            &format!("cc-{text}-01more"),
            &format!("ff-{text}-01"),
            &format!("0x-{text}-01"),
            &format!("00_{text}-01"),
            &format!("00-{}-01", text.to_uppercase()),
            &format!("00-{}-01", text.replace('4', "g")),
            &format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            &format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16)),
        ] {
            assert_eq!(of(&[("traceparent", bad)]), (None, None), "{bad:?}");
        }
    }

    #[test]
    fn b3_is_read_from_one_header_and_from_several() {
        let both = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";
        let (trace, span) = both.split_once('-').unwrap();
        assert_eq!(of(&[("b3", &format!("{both}-1"))]), (IDS, Some(true)));
        assert_eq!(of(&[("b3", &format!("{both}-d-00f067aa0ba902b8"))]), (IDS, Some(true)));
        assert_eq!(of(&[("b3", &format!("{both}-0"))]), (IDS, Some(false)));
        assert_eq!(of(&[("b3", both)]), (IDS, None), "the decision is left to us");
        assert_eq!(of(&[("b3", "0")]), (None, Some(false)));
        let short = Some(TraceIds { trace: 0xa3ce_929d_0e0e_4736, span: SPAN });
        assert_eq!(of(&[("b3", "a3ce929d0e0e4736-00f067aa0ba902b7-1")]), (short, Some(true)));
        for bad in
            ["", "x", "2", &format!("{both}-2"), &format!("{trace}-{trace}-1"), &format!("{span}{span}{span}-{span}")]
        {
            assert_eq!(of(&[("b3", bad)]), (None, None), "{bad:?}");
        }
        let ids = [("x-b3-traceid", trace), ("x-b3-spanid", span)];
        assert_eq!(of(&ids), (IDS, None));
        assert_eq!(of(&[ids[0], ids[1], ("x-b3-sampled", "1")]), (IDS, Some(true)));
        assert_eq!(of(&[ids[0], ids[1], ("x-b3-sampled", "0")]), (IDS, Some(false)));
        assert_eq!(of(&[ids[0], ids[1], ("x-b3-sampled", "0"), ("x-b3-flags", "1")]), (IDS, Some(true)));
        assert_eq!(of(&[("x-b3-sampled", "0")]), (None, Some(false)));
        assert_eq!(of(&[ids[0]]), (None, None));
        let mut twice = headers(&[("x-b3-sampled", "1")]);
        twice.append("x-b3-sampled", "0".parse().unwrap());
        assert_eq!(Caller::of(&twice, BOTH).sampled, Some(true), "the first value counts");
    }

    #[test]
    fn w3c_wins_and_what_is_off_is_not_read() {
        let pairs = headers(&[
            ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
            ("b3", "a3ce929d0e0e4736-00f067aa0ba902b7-0"),
        ]);
        assert_eq!(Caller::of(&pairs, BOTH).ids, IDS);
        let short = Caller::of(&pairs, PropagatorFormats { w3c: false, b3: true });
        assert_eq!((short.ids.unwrap().trace, short.sampled), (0xa3ce_929d_0e0e_4736, Some(false)));
        assert_eq!(Caller::of(&pairs, PropagatorFormats { w3c: false, b3: false }), Caller::default());
    }

    #[test]
    fn tracestate_is_kept_where_it_is_well_formed_and_short() {
        let state = |values: &[&str]| {
            let pairs: Vec<(&'static str, &str)> = values.iter().map(|value| ("tracestate", *value)).collect();
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.append(name, value.parse().unwrap());
            }
            tracestate(&map).header()
        };
        assert_eq!(state(&["a=1,b@v=2"]), "a=1,b@v=2");
        assert_eq!(state(&["a=1", " b=2 ,"]), "a=1,b=2", "two headers are one list");
        assert_eq!(state(&["a"]), "");
        assert_eq!(state(&["A=1"]), "");
        assert_eq!(state(&[&format!("a={}", "x".repeat(200)), &format!("b={}", "x".repeat(400))]), "");
        assert_eq!(state(&[]), "");
    }
}
