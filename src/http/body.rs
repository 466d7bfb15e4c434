//! What the bodies and answers of `/overrides` and `/rows` have in common.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use weir_store::Store;

use super::json_error;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

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

/// Adds where a change is kept.
pub(super) fn add_store(shown: &mut Value, store: &dyn Store) {
    shown["store"] = json!(store.name());
    shown["is_shared"] = json!(!store.is_immediate());
}
