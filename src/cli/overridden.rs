//! The overrides of a running server, from its admin listener.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use weir_engine::descriptor::parse_entries;
use weir_engine::overrides::Numbers;
use weir_engine::words::printable;
use weir_engine::{Override, Window};
use weir_text::spell;

use super::admin::{AdminServer, Bounds, Expected, Method, NoAnswer, Sent};
use super::runtime::block_on;
use super::token::Token;

pub(super) const PATH: &str = "/overrides";
/// Enough for 10,000 overrides in JSON.
const BOUNDS: Bounds = Bounds { bytes_max: 32 << 20, timeout: Duration::from_secs(10) };

#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// The server gave no usable answer, or refused.
    #[error("{0}")]
    NoAnswer(#[from] NoAnswer),
    #[error("cannot start: {0}")]
    Start(io::Error),
}

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

#[derive(Clone, Debug, Deserialize)]
struct ShownNumbers {
    name: Option<String>,
    requests: u32,
    window_us: u64,
    burst: Option<u32>,
}

impl ShownOverride {
    /// The override for the engine. None if the server's answer is not valid.
    pub(super) fn set(&self) -> Option<Override> {
        let entries = parse_entries(&self.descriptor).ok()?;
        let numbers = self.limits.iter().map(|limit| {
            let window = Window::from_micros(limit.window_us).ok()?;
            let name = limit.name.as_deref().map(Into::into);
            Some(Numbers { name, requests: limit.requests, window, burst: limit.burst })
        });
        Some(Override {
            domain: self.domain.as_str().into(),
            entries: entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
            numbers: numbers.collect::<Option<_>>()?,
            until: self.until_us,
        })
    }

    /// One line about the override, without its reason.
    pub(super) fn line(&self) -> String {
        let limits: Vec<String> = self.limits.iter().map(ShownNumbers::text).collect();
        format!(
            "{} {}   {}   until {}   by {}",
            printable(&self.domain),
            printable(&self.descriptor),
            limits.join(", "),
            printable(&self.until),
            printable(&self.by)
        )
    }
}

impl ShownNumbers {
    fn text(&self) -> String {
        let window = Window::from_micros(self.window_us).ok().and_then(Window::unit);
        let window = window.map_or_else(|| spell(Duration::from_micros(self.window_us)), |unit| unit.name().to_owned());
        let mut text = self.name.as_deref().map(|name| format!("{}: ", printable(name))).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = write!(text, "{} per {window}", self.requests);
        if let Some(burst) = self.burst {
            let _ = write!(text, " burst {burst}");
        }
        text
    }
}

/// The overrides of a server. Empty for a server without support for overrides.
///
/// # Errors
/// If the server gives no usable answer.
pub(super) fn of_server(server: &AdminServer) -> Result<Vec<ShownOverride>, Unanswered> {
    match send::<List>(server, Method::GET, PATH, String::new(), None) {
        Ok(list) => Ok(list.overrides),
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

/// The answer to one request.
///
/// # Errors
/// If there is no usable answer.
pub(super) fn send<T: DeserializeOwned>(
    server: &AdminServer,
    method: Method,
    path: &str,
    body: String,
    token: Option<&Token>,
) -> Result<T, Unanswered> {
    let sent = Sent { method, path, body, token };
    Ok(block_on(server.ask(&sent, Expected::Ok, BOUNDS)).map_err(Unanswered::Start)??)
}
