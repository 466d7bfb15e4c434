//! The overrides of a running server, from its admin listener.

use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use weir_engine::Override;
use weir_engine::descriptor::entries_of;
use weir_engine::words::printable;

use super::admin::{AdminServer, Bounds, Method, NoAnswer, Unanswered};
use super::shown::{self, ShownNumbers};

pub(super) const PATH: &str = "/overrides";
/// Enough for 10,000 overrides in JSON.
pub(super) const BOUNDS: Bounds = Bounds { bytes_max: 32 << 20, timeout: Duration::from_secs(10) };

#[derive(Clone, Debug, Deserialize)]
pub(super) struct ShownOverride {
    pub(super) domain: String,
    pub(super) descriptor: String,
    /// Why the override has no effect.
    pub(super) unused: Option<String>,
    limits: Vec<ShownNumbers>,
    pub(super) until: String,
    until_us: u64,
    pub(super) by: String,
    pub(super) reason: String,
}

impl ShownOverride {
    /// The override for the engine. None if the server's answer is not valid.
    pub(super) fn set(&self) -> Option<Override> {
        Some(Override {
            domain: self.domain.as_str().into(),
            entries: entries_of(&self.descriptor).ok()?,
            numbers: shown::numbers(&self.limits)?,
            until: self.until_us,
        })
    }

    /// One line about the override, without its reason.
    pub(super) fn line(&self) -> String {
        format!(
            "{} {}   {}   until {}   by {}",
            printable(&self.domain),
            printable(&self.descriptor),
            shown::text(&self.limits),
            printable(&self.until),
            printable(&self.by)
        )
    }
}

/// The overrides of a server. Empty for a server without support for overrides.
/// Fails if the server gives no usable answer.
pub(super) fn of_server(server: &AdminServer) -> Result<Vec<ShownOverride>, Unanswered> {
    match server.request(None, (Method::GET, PATH, String::new()), BOUNDS) {
        Ok(List { overrides, .. }) => Ok(overrides),
        Err(Unanswered::NoAnswer(NoAnswer::Refused(_, _, StatusCode::NOT_FOUND, _))) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[derive(Deserialize)]
pub(super) struct List {
    /// The time since the server last read its store.
    pub(super) read_ms_ago: Option<u64>,
    /// In the order of domain and descriptor.
    pub(super) overrides: Vec<ShownOverride>,
}
