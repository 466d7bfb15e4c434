//! Which node has which slot: the answer of a cluster, and the map so far.
//!
//! Generic over the node type, and without waiting, so it can be tested alone. Not here: when the map is updated, and
//! where calls are sent (cluster.rs).

use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use redis::Value;

use super::slot::SLOTS;
use crate::redis::dial::host_port::HostPort;

/// The most nodes of a map: Redis' own recommended maximum for a cluster.
pub(super) const NODES_MAX: usize = 1_000;

/// How long a node without slots is kept after a redirection to it: longer than the pauses in a slot's migration, so
/// its connections still exist when it gets the slot.
const GUEST_FOR: Duration = Duration::from_secs(60);

/// The mark for no node in the table of slots.
const NO_NODE: u16 = u16::MAX;

/// Reads `host:port`. An empty host means the host of the node `asked`. None if the node does not know its own name
/// (`?`), or if the text is not an address.
pub(super) fn address(text: &str, asked: &str) -> Option<HostPort> {
    // Split from the right, because an IPv6 address contains colons.
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match host {
        "?" => None,
        "" => Some(HostPort { host: asked.into(), port }),
        host => Some(HostPort { host: host.into(), port }),
    }
}

/// The cluster as one node sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct View {
    /// First slot, last slot, and the master that holds them.
    ranges: Vec<(u16, u16, HostPort)>,
    /// The addresses of the replicas. They can answer CLUSTER SLOTS too.
    replicas: Vec<HostPort>,
}

impl View {
    /// Reads the answer to CLUSTER SLOTS. None if it has another form, or names a slot twice: so it has no more than
    /// [`SLOTS`] ranges.
    pub(super) fn read(answer: &Value, asked: &str) -> Option<Self> {
        let Value::Array(entries) = answer else {
            return None;
        };
        let (mut ranges, mut replicas, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        let mut unnamed = usize::from(SLOTS);
        for entry in entries {
            let Value::Array(entry) = entry else {
                return None;
            };
            let [Value::Int(first), Value::Int(last), nodes @ ..] = &entry[..] else {
                return None;
            };
            let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
            if first > last || last >= SLOTS {
                return None;
            }
            unnamed = unnamed.checked_sub(usize::from(last - first) + 1)?;
            for (i, node) in nodes.iter().enumerate() {
                // A node without a known name is unreachable; the others are reachable.
                let Some(address) = node_address(node, asked) else { continue };
                if i == 0 {
                    ranges.push((first, last, address));
                } else if replicas.len() < NODES_MAX && seen.insert(address.clone()) {
                    replicas.push(address);
                }
            }
        }
        Some(Self { ranges, replicas })
    }

    /// How many slots have a master.
    pub(super) fn covered(&self) -> usize {
        self.ranges.iter().map(|(first, last, _)| usize::from(last - first) + 1).sum()
    }
}

/// One node of CLUSTER SLOTS: its preferred address, its port, its id and, from Redis 7 on, its other addresses.
fn node_address(node: &Value, asked: &str) -> Option<HostPort> {
    let Value::Array(fields) = node else {
        return None;
    };
    let [host, Value::Int(port), rest @ ..] = &fields[..] else {
        return None;
    };
    let port = u16::try_from(*port).ok()?;
    let host = match text(host) {
        None if *host == Value::Nil => asked,
        Some("") => asked,
        // The node should announce its name and has none.
        Some("?") => other_name(rest)?,
        Some(host) => host,
        None => return None,
    };
    Some(HostPort { host: host.into(), port })
}

/// The IP address among a node's other addresses: a list of names and values after its id.
fn other_name(rest: &[Value]) -> Option<&str> {
    let Some(Value::Array(others)) = rest.get(1) else {
        return None;
    };
    let (pairs, _) = others.as_chunks::<2>();
    let [_, ip] = pairs.iter().find(|[name, _]| text(name) == Some("ip"))?;
    text(ip).filter(|ip| !ip.is_empty())
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// The known slots of the cluster, and the nodes `N` that are in use.
pub(super) struct Map<N> {
    /// For each slot, the index of its node in `nodes`. Empty until the first update.
    slots: Vec<u16>,
    nodes: Vec<Known<N>>,
    replicas: Vec<HostPort>,
}

struct Known<N> {
    address: HostPort,
    node: Arc<N>,
    /// The time of the last redirection to the node.
    redirected: Option<Instant>,
}

impl<N> Map<N> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), nodes: Vec::new(), replicas: Vec::new() }
    }

    /// Whether the map was ever updated.
    pub(super) const fn is_known(&self) -> bool {
        !self.slots.is_empty()
    }

    pub(super) fn node(&self, slot: u16) -> Option<Arc<N>> {
        let place = *self.slots.get(usize::from(slot))?;
        self.nodes.get(usize::from(place)).map(|known| known.node.clone())
    }

    /// The first slot without a node.
    pub(super) fn uncovered(&self) -> Option<u16> {
        if !self.is_known() {
            return Some(0);
        }
        (0..SLOTS).find(|slot| self.slots[usize::from(*slot)] == NO_NODE)
    }

    /// How many nodes are in use.
    pub(super) const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes in use, with their addresses.
    pub(super) fn nodes(&self) -> Vec<(HostPort, Arc<N>)> {
        self.nodes.iter().map(|known| (known.address.clone(), known.node.clone())).collect()
    }

    /// The replicas of the last view.
    pub(super) fn replicas(&self) -> &[HostPort] {
        &self.replicas
    }

    /// The node of a redirection. If it is new, `dial` makes it. If `moved` is given, the node has that slot from now on.
    /// None if there are too many nodes.
    pub(super) fn redirected(
        &mut self,
        address: &HostPort,
        moved: Option<u16>,
        now: Instant,
        dial: impl FnOnce(&HostPort) -> N,
    ) -> Option<Arc<N>> {
        let known = self.nodes.iter().position(|known| known.address == *address);
        let place = known.or_else(|| self.add(address, dial))?;
        if let Some(holder) = moved.and_then(|slot| self.slots.get_mut(usize::from(slot))) {
            *holder = index(place);
        }
        let known = &mut self.nodes[place];
        known.redirected = Some(now);
        Some(known.node.clone())
    }

    /// Replaces the map with a node's view. Returns the removed nodes, which the caller drops without a lock.
    pub(super) fn adopt(&mut self, view: View, now: Instant, mut dial: impl FnMut(&HostPort) -> N) -> Vec<Arc<N>> {
        let mut slots = vec![NO_NODE; usize::from(SLOTS)];
        // A view can name another node for each slot. A search of all nodes for each would hold the calls of this core
        // back for a tenth of a second.
        let mut places: HashMap<HostPort, usize> =
            self.nodes.iter().enumerate().map(|(place, known)| (known.address.clone(), place)).collect();
        for (first, last, address) in &view.ranges {
            let place = match places.get(address) {
                Some(place) => *place,
                None => {
                    let Some(place) = self.add(address, &mut dial) else { continue };
                    places.insert(address.clone(), place);
                    place
                }
            };
            slots[usize::from(*first)..=usize::from(*last)].fill(index(place));
        }
        self.slots = slots;
        self.replicas = view.replicas;
        self.forget(now)
    }

    /// Removes the nodes without slots and without a recent redirection.
    fn forget(&mut self, now: Instant) -> Vec<Arc<N>> {
        let mut holds = vec![false; self.nodes.len()];
        for place in &self.slots {
            if let Some(holds) = holds.get_mut(usize::from(*place)) {
                *holds = true;
            }
        }
        let (mut stay, mut gone) = (Vec::with_capacity(self.nodes.len()), Vec::new());
        let mut places = Vec::with_capacity(self.nodes.len());
        for (known, holds) in self.nodes.drain(..).zip(holds) {
            let guest = known.redirected.is_some_and(|at| now.saturating_duration_since(at) < GUEST_FOR);
            if holds || guest {
                places.push(index(stay.len()));
                stay.push(known);
            } else {
                places.push(NO_NODE);
                gone.push(known.node);
            }
        }
        for place in &mut self.slots {
            *place = places.get(usize::from(*place)).copied().unwrap_or(NO_NODE);
        }
        self.nodes = stay;
        gone
    }

    /// Adds a node that is not in use. None if there are too many.
    fn add(&mut self, address: &HostPort, dial: impl FnOnce(&HostPort) -> N) -> Option<usize> {
        if self.nodes.len() >= NODES_MAX {
            return None;
        }
        self.nodes.push(Known { address: address.clone(), node: Arc::new(dial(address)), redirected: None });
        Some(self.nodes.len() - 1)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "there are at most NODES_MAX nodes")]
const fn index(place: usize) -> u16 {
    place as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> HostPort {
        address(text, "asked").unwrap()
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), bulk("id")])
    }

    fn range(first: i64, last: i64, nodes: &[Value]) -> Value {
        Value::Array([&[Value::Int(first), Value::Int(last)], nodes].concat())
    }

    /// A view of ranges, each with its master.
    fn view(ranges: &[(u16, u16, &str)]) -> View {
        let ranges = ranges.iter().map(|(first, last, to)| (*first, *last, at(to))).collect();
        View { ranges, replicas: Vec::new() }
    }

    /// A map whose nodes are their addresses.
    fn learned(ranges: &[(u16, u16, &str)], now: Instant) -> Map<String> {
        let mut map = Map::new();
        assert!(map.adopt(view(ranges), now, HostPort::to_string).is_empty());
        map
    }

    fn holder(map: &Map<String>, slot: u16) -> Option<String> {
        map.node(slot).map(|node| (*node).clone())
    }

    #[test]
    fn an_address_is_read_from_the_right() {
        assert_eq!(at("10.0.0.1:6379").to_string(), "10.0.0.1:6379");
        assert_eq!(at("fd00::1:6379"), HostPort { host: "fd00::1".into(), port: 6379 });
        assert_eq!(at(":6379").to_string(), "asked:6379", "no host: the node that was asked");
        assert_eq!(address("?:6379", "asked"), None, "a node that does not know its name");
        assert_eq!(address("10.0.0.1", "asked"), None);
        assert_eq!(address("10.0.0.1:70000", "asked"), None);
    }

    #[test]
    fn a_view_is_read_with_masters_replicas_and_missing_hosts() {
        let named = |host: &str, others: Vec<Value>| {
            Value::Array(vec![bulk(host), Value::Int(3), bulk("id"), Value::Array(others)])
        };
        let answer = Value::Array(vec![
            range(0, 99, &[node(bulk("a"), 1), node(bulk("r"), 2)]),
            range(100, 199, &[node(Value::Nil, 2), node(bulk("r"), 2)]),
            range(200, 299, &[node(bulk(""), 4)]),
            range(300, 300, &[named("?", vec![bulk("ip"), bulk("10.0.0.3")])]),
            range(301, 400, &[named("?", vec![]), node(bulk("s"), 5)]),
        ]);
        let view = View::read(&answer, "asked").unwrap();
        assert_eq!(
            view.ranges,
            [(0, 99, at("a:1")), (100, 199, at("asked:2")), (200, 299, at("asked:4")), (300, 300, at("10.0.0.3:3"))]
        );
        assert_eq!(view.replicas, [at("r:2"), at("s:5")]);
        assert_eq!(view.covered(), 301);
    }

    #[test]
    fn what_is_no_view_is_not_read_as_one() {
        let one = node(bulk("a"), 1);
        for answer in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(5, 4, std::slice::from_ref(&one))]),
            Value::Array(vec![range(0, 16_384, std::slice::from_ref(&one))]),
            Value::Array(vec![range(-1, 4, std::slice::from_ref(&one))]),
            Value::Array(vec![range(0, 5, std::slice::from_ref(&one)), range(0, 16_383, &[one])]),
            Value::Array(vec![Value::Array(vec![Value::Int(0)])]),
        ] {
            assert_eq!(View::read(&answer, "asked"), None, "{answer:?}");
        }
    }

    #[test]
    fn a_slot_that_moved_goes_to_the_node_named_and_the_others_stay() {
        let now = Instant::now();
        let mut map = learned(&[(0, 8_000, "a:1"), (8_001, 16_383, "b:1")], now);
        assert_eq!(map.uncovered(), None);
        let kept = map.node(0).unwrap();
        let node = map.redirected(&at("c:1"), Some(7), now, HostPort::to_string).unwrap();
        assert_eq!(*node, "c:1");
        assert_eq!([6, 7, 8, 8_001].map(|slot| holder(&map, slot).unwrap()), ["a:1", "c:1", "a:1", "b:1"]);
        // The whole view has the same ranges, and a node that stays keeps its connections.
        let all = [(0, 6, "a:1"), (7, 7, "c:1"), (8, 8_000, "a:1"), (8_001, 16_383, "b:1")];
        assert!(map.adopt(view(&all), now, |_| panic!("all are known")).is_empty());
        assert!(Arc::ptr_eq(&kept, &map.node(0).unwrap()));
    }

    #[test]
    fn a_node_is_dropped_with_its_last_slot() {
        let now = Instant::now();
        let mut map = learned(&[(0, 8_000, "a:1"), (8_001, 16_383, "b:1")], now);
        let gone = map.adopt(view(&[(0, 16_000, "b:1")]), now, HostPort::to_string);
        assert_eq!(gone.iter().map(|node| node.as_str()).collect::<Vec<_>>(), ["a:1"]);
        assert_eq!(holder(&map, 0).as_deref(), Some("b:1"));
        assert_eq!(map.uncovered(), Some(16_001));
        assert_eq!(holder(&map, 16_001), None);
        assert_eq!(map.nodes().len(), 1);
    }

    #[test]
    fn a_node_that_only_takes_a_slot_over_is_kept_for_a_while() {
        let now = Instant::now();
        let all: &[(u16, u16, &str)] = &[(0, 16_383, "a:1")];
        let mut map = learned(all, now);
        let guest = map.redirected(&at("b:1"), None, now, HostPort::to_string).unwrap();
        assert_eq!(holder(&map, 5).as_deref(), Some("a:1"), "the slot has not moved yet");
        let gone = map.adopt(view(all), now + GUEST_FOR / 2, |_| panic!("all are known"));
        assert!(gone.is_empty());
        let again = map.redirected(&at("b:1"), None, now, |_| panic!("it is known")).unwrap();
        assert!(Arc::ptr_eq(&guest, &again));
        let gone = map.adopt(view(all), now + GUEST_FOR, |_| panic!("all are known"));
        assert_eq!(gone.len(), 1);
    }

    #[test]
    fn nodes_are_bounded() {
        let now = Instant::now();
        let mut map = learned(&[(0, 16_383, "a:1")], now);
        for port in 2..=u16::try_from(NODES_MAX).unwrap() {
            assert!(map.redirected(&HostPort { host: "a".into(), port }, None, now, HostPort::to_string).is_some());
        }
        assert!(map.redirected(&at("z:1"), None, now, HostPort::to_string).is_none());
        assert!(map.redirected(&at("z:1"), Some(3), now, HostPort::to_string).is_none());
        assert_eq!(holder(&map, 3).as_deref(), Some("a:1"));
    }

    /// Each of the 16,384 slots was compared with each of 1,000 nodes, and the calls of a core waited for 70 ms to 161 ms.
    #[test]
    fn a_view_with_another_node_for_each_slot_costs_about_as_much_as_one_of_a_single_node() {
        let taken = |nodes: u16| {
            let port = |slot: u16| i64::from(slot % nodes + 1);
            let named = |slot: u16| {
                [node(bulk("master"), port(slot)), node(bulk("replica"), port(slot)), node(bulk("replica"), port(slot))]
            };
            let ranges = (0..SLOTS).map(|slot| range(i64::from(slot), i64::from(slot), &named(slot)));
            let answer = Value::Array(ranges.collect());
            let once = || {
                let begin = Instant::now();
                let view = View::read(&answer, "asked").unwrap();
                let read = begin.elapsed();
                let (mut map, begin) = (Map::new(), Instant::now());
                drop(map.adopt(view, begin, |_| ()));
                let adopted = begin.elapsed();
                assert_eq!(map.len(), usize::from(nodes).min(NODES_MAX));
                [read, adopted]
            };
            let times: Vec<_> = (0..5).map(|_| once()).collect();
            [0, 1].map(|step| times.iter().map(|taken| taken[step]).min().unwrap())
        };
        let (one, many) = (taken(1), taken(SLOTS));
        for (step, one, many) in [("read", one[0], many[0]), ("adopt", one[1], many[1])] {
            assert!(many < 8 * one, "{step}: {many:?} for another node for each slot, {one:?} for one node");
        }
    }

    #[test]
    fn before_anything_is_learned_no_slot_has_a_node() {
        let map = Map::<String>::new();
        assert!(!map.is_known());
        assert_eq!(holder(&map, 0), None);
        assert_eq!(map.uncovered(), Some(0));
    }
}
