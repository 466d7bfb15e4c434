//! What the answers about overrides and about rows have in common. A newer server may send fields that this version does
//! not know.

use serde::Deserialize;
use weir_engine::overrides::{Numbers, numbers_text};
use weir_engine::words::printable;
use weir_text::json::{JsonNumbers, numbers_of};

/// The numbers of one limit.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct ShownNumbers {
    name: Option<Box<str>>,
    requests: u32,
    window_us: u64,
    burst: Option<u32>,
}

impl From<&ShownNumbers> for JsonNumbers {
    fn from(ShownNumbers { name, requests, window_us, burst }: &ShownNumbers) -> Self {
        Self { name: name.clone(), requests: *requests, window_us: *window_us, burst: *burst }
    }
}

/// The numbers for the engine. None if they are not valid.
pub(super) fn numbers(limits: &[ShownNumbers]) -> Option<Box<[Numbers]>> {
    numbers_of(limits.iter().map(JsonNumbers::from).collect()).ok()
}

/// The numbers for people.
pub(super) fn text(limits: &[ShownNumbers]) -> String {
    numbers(limits).map_or_else(|| "?".to_owned(), |numbers| printable(&numbers_text(&numbers)))
}

/// Where a change is kept.
#[derive(Deserialize)]
pub(super) struct Kept {
    store: String,
    /// Whether other servers can have the same store.
    is_shared: bool,
}

impl Kept {
    /// `in_force` says when a change is in force on the other servers.
    pub(super) fn text(&self, in_force: &str) -> String {
        let store = printable(&self.store);
        if self.is_shared {
            format!("kept in {store}: in force {in_force}")
        } else {
            format!("kept in the {store} of this server: lost when it stops, and not shared with other servers")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_servers_share_a_store_is_not_guessed_from_its_name() {
        let kept = |text: &str| serde_json::from_str::<Kept>(text).unwrap().text("soon");
        assert_eq!(kept(r#"{"store": "memory", "is_shared": true}"#), "kept in memory: in force soon");
        let own = kept(r#"{"store": "disk", "is_shared": false}"#);
        assert_eq!(own, "kept in the disk of this server: lost when it stops, and not shared with other servers");
    }

    #[test]
    fn numbers_of_a_newer_server_are_shown_if_they_are_valid() {
        let shown = |window_us| {
            let limit = format!(r#"{{"name": "a\u001b", "requests": 5, "window_us": {window_us}, "more": [1]}}"#);
            text(&[serde_json::from_str(&limit).unwrap()])
        };
        assert_eq!(shown(90_000_000), "a\\u{1b}=5/90s");
        assert_eq!(shown(0), "?");
    }
}
