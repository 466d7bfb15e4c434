//! The fuzz target for the answers of cluster nodes. Compiled only for tests and cargo-fuzz.

use std::time::Instant;

use redis::Parser;

use super::map::{Map, NODES_MAX, View, address};
use super::slot::SLOTS;
use crate::redis::dial::host_port::HostPort;

/// Reads an answer to CLUSTER SLOTS and, after an empty line, redirection addresses.
/// Panics when the map has too many nodes, or a slot points to a missing node.
pub fn map(data: &[u8]) {
    let cut = data.windows(4).position(|end| end == b"\r\n\r\n").map_or(data.len(), |at| at + 2);
    let (answer, redirections) = data.split_at(cut);
    let now = Instant::now();
    let mut map: Map<String> = Map::new();
    if let Ok(value) = Parser::new().parse_value(answer)
        && let Some(view) = View::read(&value, "asked")
    {
        let covered = view.covered();
        map.adopt(view, now, HostPort::to_string);
        assert!((0..SLOTS).filter(|slot| map.node(*slot).is_some()).count() <= covered);
    }
    let addresses = String::from_utf8_lossy(redirections);
    for (slot, address) in addresses.lines().filter_map(|line| address(line, "asked")).enumerate() {
        let slot = u16::try_from(slot % usize::from(SLOTS)).expect("a slot");
        let node = map.redirected(&address, Some(slot), now, HostPort::to_string);
        assert!(node.is_none_or(|node| *node == address.to_string()));
    }
    assert!(map.len() <= NODES_MAX && map.replicas().len() <= NODES_MAX);
    let first_without = (0..SLOTS).find(|slot| map.node(*slot).is_none());
    assert_eq!(map.uncovered(), first_without);
}
