//! What the answers about overrides and about rows have in common, for people.

use weir_api::numbers::{JsonNumbers, numbers_of};
use weir_api::{Answered, Kept};
use weir_engine::overrides::{Numbers, numbers_text};
use weir_engine::words::printable;

/// The numbers for the engine. None if they are not valid.
pub(super) fn numbers(limits: &[Answered<JsonNumbers>]) -> Option<Box<[Numbers]>> {
    numbers_of(limits.to_vec()).ok()
}

/// The numbers for people.
pub(super) fn text(limits: &[Answered<JsonNumbers>]) -> String {
    numbers(limits).map_or_else(|| "?".to_owned(), |numbers| printable(&numbers_text(&numbers)))
}

/// Where a change is kept. `in_force` says when it is in force on the other servers.
pub(super) fn kept_text(kept: &Kept, in_force: &str) -> String {
    let store = printable(&kept.store);
    if kept.is_shared {
        format!("kept in {store}: in force {in_force}")
    } else {
        format!("kept in the {store} of this server: lost when it stops, and not shared with other servers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_servers_share_a_store_is_not_guessed_from_its_name() {
        let kept = |text: &str| kept_text(&serde_json::from_str(text).unwrap(), "soon");
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
