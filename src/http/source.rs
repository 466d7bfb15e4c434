//! `/policies/source`: the files of the policies in force, for other programs.
//!
//! The texts are stored in gzip, and decompressed in pieces as the caller reads. Not here: what is stored (policies).

use std::io::{self, Cursor, Read as _};
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use flate2::read::GzDecoder;
use weir_api::PolicySource;

use super::streamed::{PIECE_BYTES, pieces};
use super::{Site, json_error};

/// The server's `on_error`, the problems of refused policies, and the files.
pub(super) async fn source(State(site): State<Arc<Site>>) -> Response {
    let (packed, problems) = {
        let shown = site.report.policies.lock();
        (shown.source.clone(), shown.problems.clone())
    };
    let Some(packed) = packed else {
        let reason = "the source of the policies in force is not kept: there are none yet, or they are too large";
        return json_error(StatusCode::SERVICE_UNAVAILABLE, reason);
    };
    let head =
        PolicySource { on_error: site.admin.on_error.name().to_owned(), problems: problems.lines(), policies: () };
    // The files are written after the rest.
    let head = serde_json::to_string(&head).unwrap_or_default().trim_end_matches("null}").to_owned();
    let mut parts = Cursor::new(head).chain(GzDecoder::new(Cursor::new(packed))).chain(&b"}"[..]);
    let body = pieces(move || match next(&mut parts) {
        Ok(piece) => (!piece.is_empty()).then(|| piece.into()),
        Err(error) => unreachable!("what weir has packed can be unpacked: {error}"),
    });
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// The next piece. Empty at the end.
fn next(from: &mut impl io::Read) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    from.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
    Ok(piece)
}
