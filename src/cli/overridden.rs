//! The overrides of a running server, from its admin listener.

use std::time::Duration;

use hyper::StatusCode;
use weir_api::overrides::{OverrideList, ShownOverride};
use weir_engine::Override;
use weir_engine::descriptor::entries_of;
use weir_engine::words::printable;

use super::admin::{Bounds, Method, NoAnswer, ServerArguments, Unanswered};
use super::shown;

pub(super) const PATH: &str = "/overrides";
/// Enough for 10,000 overrides in JSON.
pub(super) const BOUNDS: Bounds = Bounds { bytes_max: 32 << 20, timeout: Duration::from_secs(10) };

/// The override for the engine. None if the server's answer is not valid.
pub(super) fn as_set(shown: &ShownOverride) -> Option<Override> {
    Some(Override {
        domain: shown.domain.as_str().into(),
        entries: entries_of(&shown.descriptor).ok()?,
        numbers: shown::numbers(&shown.limits)?,
        until: shown.until_us,
    })
}

/// One line about the override, without its reason.
pub(super) fn line(shown: &ShownOverride) -> String {
    format!(
        "{} {}   {}   until {}   by {}",
        printable(&shown.domain),
        printable(&shown.descriptor),
        shown::text(&shown.limits),
        printable(&shown.until),
        printable(&shown.by)
    )
}

/// The overrides of a server. Empty for a server without support for overrides.
/// Fails if the server gives no usable answer.
pub(super) fn of_server(server: &ServerArguments) -> Result<Vec<ShownOverride>, Unanswered> {
    match server.request((Method::GET, PATH, String::new()), BOUNDS) {
        Ok(OverrideList { overrides, .. }) => Ok(overrides),
        Err(Unanswered::NoAnswer(NoAnswer::Refused(_, _, StatusCode::NOT_FOUND, _))) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
