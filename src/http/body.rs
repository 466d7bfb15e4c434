//! What the bodies and queries of requests about descriptors have in common: `/overrides`, `/rows` and `/state`.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_engine::descriptor::parse_entries;
use weir_engine::overrides::{Entries, Numbers};
use weir_engine::{Entry, Window};

use super::json_error;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BodyNumbers {
    name: Option<Box<str>>,
    requests: u32,
    window_us: u64,
    burst: Option<u32>,
}

/// Reads a body of at most `bytes_max` bytes.
///
/// # Errors
/// The answer to a body that is longer, or does not arrive in time.
pub(super) async fn read(body: Body, bytes_max: usize) -> Result<Vec<u8>, Response> {
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, bytes_max)).await {
        Ok(Ok(body)) => Ok(body.into()),
        Ok(Err(_)) => Err(json_error(StatusCode::PAYLOAD_TOO_LARGE, format!("body: not at most {bytes_max} bytes"))),
        Err(_) => Err(json_error(StatusCode::REQUEST_TIMEOUT, format!("body: not complete within {BODY_TIMEOUT:?}"))),
    }
}

/// The numbers of limits.
///
/// # Errors
/// The window that is none.
pub(super) fn numbers_of(limits: Vec<BodyNumbers>) -> Result<Box<[Numbers]>, String> {
    let numbers = limits.into_iter().map(|BodyNumbers { name, requests, window_us, burst }| {
        let window = Window::from_micros(window_us).map_err(|error| format!("window_us: {error}"))?;
        Ok(Numbers { name, requests, window, burst })
    });
    numbers.collect()
}

pub(super) fn numbers_as_json(numbers: &[Numbers]) -> Value {
    let one = |Numbers { name, requests, window, burst }: &Numbers| json!({ "name": name, "requests": requests, "window_us": window.us(), "burst": burst });
    numbers.iter().map(one).collect()
}

/// A descriptor, written as `k=v,k=v`.
///
/// # Errors
/// Why it is none.
pub(super) fn entries_of(descriptor: &str) -> Result<Entries, String> {
    let entries = parse_entries(descriptor).map_err(|reason| format!("descriptor: {reason}"))?;
    Ok(entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
}

/// The same entries, borrowed.
pub(super) fn as_entries(entries: &Entries) -> Vec<Entry<'_>> {
    entries.iter().map(|(key, value)| Entry { key, value }).collect()
}

#[cfg(test)]
mod tests {
    use weir_engine::descriptor::spell_entries;

    use super::*;

    #[test]
    fn a_descriptor_is_written_as_it_is_read() {
        for text in ["user=ann", "path=/a\\,b\\\\,client=", "x=a=b"] {
            let entries = parse_entries(text).unwrap();
            let entries = entries.iter().map(|(key, value)| Entry { key, value });
            assert_eq!(spell_entries(entries), text);
        }
    }
}
