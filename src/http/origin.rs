//! Refuses requests that a page of another site makes a browser send. They would spend hits, or change data.
//!
//! A browser sends a POST of any page to any address, and only hides the answer from the page. It names the page in
//! `Sec-Fetch-Site`, over TLS and to loopback addresses, and in `Origin`. A page can change neither header. Callers
//! that are not browsers send neither. Not here: `Host` (admin.rs).

use std::net::Ipv6Addr;

use axum::extract::Request;
use axum::http::{HeaderValue, header};

/// The most characters of an origin in an error.
const SHOWN_CHARS_MAX: usize = 100;

/// Checks that no page of another site caused the request. `allowed` has origins in lower case.
///
/// # Errors
/// With the reason.
pub(super) fn check<B>(request: &Request<B>, allowed: &[String]) -> Result<(), String> {
    let headers = request.headers();
    let from = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    // `none`: the user typed the address.
    if let Some(b"same-origin" | b"none") = from {
        return Ok(());
    }
    let host = headers.get(header::HOST).map(text);
    let host = host.or_else(|| Some(request.uri().authority()?.as_str().to_ascii_lowercase())).unwrap_or_default();
    let mut origins = headers.get_all(header::ORIGIN).iter().map(text).peekable();
    let foreign = match origins.peek() {
        Some(_) => origins.find(|origin| !allowed.contains(origin) && !is_own(origin, &host)),
        None => from.map(|_| "unknown".to_owned()),
    };
    let Some(origin) = foreign else { return Ok(()) };
    let shown: String = origin.chars().take(SHOWN_CHARS_MAX).collect();
    Err(format!(
        "a web page of another site sent this, with origin {shown:?}: allow its origin in http.allowed_origins"
    ))
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase()
}

/// Whether an origin is the host of the request. The scheme is ignored, because a proxy can terminate TLS.
fn is_own(origin: &str, host: &str) -> bool {
    let (scheme, own) = origin.split_once("://").unwrap_or_default();
    let default_port = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let place = |text| host_and_port(text).map(|(host, port)| (host, port.unwrap_or(default_port)));
    place(own).is_some_and(|own| Some(own) == place(host))
}

/// The host, without the brackets of an IPv6 address, and the port of `HOST` or `HOST:PORT`. None if the text has another
/// form: a part that is not read could make the host of another site look like an own one.
pub(super) fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (address, rest) = bracketed.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            (address, rest)
        }
        None => {
            let (name, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
            let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            (!name.is_empty() && name.chars().all(is_name)).then_some((name, rest))?
        }
    };
    match rest.strip_prefix(':') {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some((host, Some(port.parse().ok()?))),
        None if rest.is_empty() => Some((host, None)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(headers: &[(&str, &str)]) -> bool {
        let mut request = Request::post("/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(()).unwrap(), &["https://console.example".to_owned()]).is_ok()
    }

    #[test]
    fn only_pages_of_other_sites_are_refused() {
        for headers in [
            &[][..],
            &[("host", "weir:8080")],
            &[("host", "weir:8080"), ("origin", "http://weir:8080")],
            &[("host", "Weir.Example"), ("origin", "https://weir.example")],
            &[("host", "weir.example:443"), ("origin", "https://weir.example")],
            &[("host", "[::1]:8080"), ("origin", "http://[::1]:8080")],
            &[("host", "[::1]"), ("origin", "http://[::1]:80")],
            &[("host", "weir"), ("origin", "https://console.example")],
            &[("host", "weir"), ("origin", "https://console.example"), ("sec-fetch-site", "cross-site")],
            // A proxy has changed the host.
            &[("host", "weir"), ("origin", "https://limits.example"), ("sec-fetch-site", "same-origin")],
            &[("host", "weir"), ("sec-fetch-site", "none")],
        ] {
            assert!(is_allowed(headers), "{headers:?}");
        }
        for headers in [
            &[("host", "weir:8080"), ("origin", "https://evil.example")][..],
            &[("host", "weir:8080"), ("origin", "null")],
            &[("host", "weir:8080"), ("origin", "")],
            &[("host", "weir:8080"), ("origin", "http://weir")],
            &[("host", "weir"), ("origin", "http://weir:8080")],
            &[("host", "weir"), ("origin", "http://weir.evil.example")],
            &[("host", "weir"), ("origin", "evil://weir")],
            &[("host", "weir"), ("origin", "http://weir"), ("origin", "http://evil.example")],
            &[("host", "weir"), ("origin", "http://console.example")],
            &[("origin", "http://")],
            // Port 80 was taken off, and the rest was the host.
            &[("host", "weir:8080"), ("origin", "http://weir:8080:80")],
            &[("host", "weir"), ("origin", "http://weir:")],
            &[("host", "[::1]"), ("origin", "http://[::1].evil.example")],
            &[("host", "::1"), ("origin", "http://::1")],
            &[("host", "weir"), ("origin", "http://evil@weir")],
            &[("host", "weir"), ("sec-fetch-site", "cross-site")],
            &[("host", "weir"), ("sec-fetch-site", "same-site")],
        ] {
            assert!(!is_allowed(headers), "{headers:?}");
        }
    }
}
