//! A private Redis Cluster for one test: real redis-servers on free ports of loopback, joined by hand so that it takes
//! no longer than Redis itself needs, and killed at the end. Not in here: what weir does with it.

use std::net::TcpListener;
use std::time::Duration;

use redis::{Cmd, Connection, Value, cmd};
use weir_store::redis::Endpoint;

use super::proxy::Proxy;
use super::redis::RedisServer;
use super::wait::{PATIENCE, until};

/// The slots of every cluster.
pub const SLOTS: u16 = 16_384;

/// How long a node may be silent before the others call it failed: as short as a busy machine allows.
const NODE_TIMEOUT_MS: &str = "1500";

/// A cluster of masters `0..masters`, which share the slots evenly in their order, and then the replicas of each.
pub struct RedisCluster {
    /// All nodes.
    pub nodes: Vec<RedisServer>,
    /// What stands in front of each node, where that was asked for.
    pub proxies: Vec<Proxy>,
    masters: usize,
    ids: Vec<String>,
    password: Option<String>,
}

/// What a cluster is to be like.
#[derive(Debug)]
pub struct Plan<'a> {
    /// How many nodes have slots.
    pub masters: usize,
    /// How many replicas each of them has.
    pub replicas: usize,
    /// The password of the default user.
    pub password: Option<&'a str>,
    /// Whether a node without which not all slots are covered silences the others too.
    pub full_coverage: bool,
    /// Whether nodes tell clients the address of a proxy in front of them, and not their own.
    pub proxied: bool,
}

impl Plan<'_> {
    /// So many masters without replicas, passwords and proxies.
    pub fn of(masters: usize) -> Self {
        Self { masters, replicas: 0, password: None, full_coverage: true, proxied: false }
    }
}

impl RedisCluster {
    /// Starts one and waits until all nodes say that it works.
    pub fn start(plan: &Plan<'_>) -> Self {
        let count = plan.masters * (1 + plan.replicas);
        let (masters, password) = (plan.masters, plan.password.map(str::to_owned));
        let mut cluster = Self { nodes: Vec::new(), proxies: Vec::new(), masters, ids: Vec::new(), password };
        let mut bus_ports = Vec::new();
        for epoch in 1..=count {
            let bus_port = free_port().to_string();
            let coverage = if plan.full_coverage { "yes" } else { "no" };
            let node = RedisServer::start_with(
                plan.password,
                &[
                    &["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"][..],
                    &["--cluster-port", &bus_port, "--cluster-node-timeout", NODE_TIMEOUT_MS],
                    &["--cluster-require-full-coverage", coverage, "--cluster-allow-replica-migration", "no"],
                    &["--repl-diskless-sync-delay", "0", "--masterauth", plan.password.unwrap_or_default()],
                ]
                .concat(),
            );
            cluster.nodes.push(node);
            bus_ports.push(bus_port);
            let node = cluster.nodes.len() - 1;
            if plan.proxied {
                let proxy = Proxy::start(cluster.nodes[node].port());
                let port = proxy.port().to_string();
                cluster.ok(node, &["CONFIG", "SET", "cluster-announce-port", &port]);
                cluster.proxies.push(proxy);
            }
            // Each its own, so that they need not settle who has which.
            cluster.ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]);
            let id = cluster.text(node, &["CLUSTER", "MYID"]);
            cluster.ids.push(id);
        }
        for master in 0..plan.masters {
            let (first, last) = (cluster.first_slot(master), cluster.first_slot(master + 1) - 1);
            cluster.ok(master, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        for (node, bus_port) in bus_ports.iter().enumerate().skip(1) {
            let port = cluster.nodes[node].port().to_string();
            cluster.ok(0, &["CLUSTER", "MEET", "127.0.0.1", &port, bus_port]);
        }
        for node in 0..count {
            until("all nodes to have met", PATIENCE, || {
                let known = cluster.text(node, &["CLUSTER", "NODES"]);
                (known.lines().count() == count && !known.contains("handshake")).then_some(())
            });
        }
        for replica in plan.masters..count {
            let master = cluster.ids[(replica - plan.masters) % plan.masters].clone();
            cluster.ok(replica, &["CLUSTER", "REPLICATE", &master]);
        }
        for node in 0..count {
            until("the cluster to work", PATIENCE, || cluster.is_in_order(node).then_some(()));
            if node >= plan.masters {
                until("a replica to follow", PATIENCE, || {
                    let info = cluster.text(node, &["INFO", "replication"]);
                    info.contains("master_link_status:up").then_some(())
                });
            }
        }
        if plan.proxied {
            for node in 0..count {
                until("the proxies' ports to be known", PATIENCE, || {
                    let known = cluster.text(node, &["CLUSTER", "NODES"]);
                    let all = cluster.proxies.iter().all(|proxy| known.contains(&format!(":{}@", proxy.port())));
                    all.then_some(())
                });
            }
        }
        cluster
    }

    /// Where a client begins: the first node.
    pub fn seeds(&self) -> Vec<Endpoint> {
        let url = match self.proxies.first() {
            Some(proxy) => proxy.url(),
            None => self.nodes[0].url(),
        };
        vec![Endpoint::parse(&url).expect("its url")]
    }

    /// The master that had a slot at the start.
    pub fn master_of(&self, slot: u16) -> usize {
        (0..self.masters).rfind(|&master| self.first_slot(master) <= slot).expect("slots begin at 0")
    }

    /// The first slot of a master at the start; for the one after the last, the number of slots.
    fn first_slot(&self, master: usize) -> u16 {
        let first = usize::from(SLOTS) * master / self.masters;
        u16::try_from(first).expect("slots are few")
    }

    /// Whether a node says that the cluster works.
    pub fn is_in_order(&self, node: usize) -> bool {
        self.nodes[node].command(&["CLUSTER", "INFO"]).is_some_and(|info| info.contains("cluster_state:ok"))
    }

    /// Whether a node is a master.
    pub fn is_master(&self, node: usize) -> bool {
        self.text(node, &["ROLE"]).starts_with("master")
    }

    /// How often a command was run, on all living nodes together.
    pub fn runs(&self, name: &str) -> u64 {
        self.nodes.iter().map(|node| node.runs(name)).sum()
    }

    /// A connection of the test's own to a node.
    pub fn connect(&self, node: usize) -> Connection {
        let client = redis::Client::open(self.nodes[node].url()).expect("its url");
        client.get_connection_with_timeout(PATIENCE).expect("the node answers")
    }

    /// Begins the move of a slot: from now on keys may be on either side.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.ok(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]]);
        self.ok(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]]);
    }

    /// The keys of a slot on one node, up to ten.
    pub fn keys_in(&self, slot: u16, node: &mut Connection) -> Vec<String> {
        cmd("CLUSTER").arg("GETKEYSINSLOT").arg(slot).arg(10).query(node).expect("the node answers")
    }

    /// Moves one key.
    pub fn move_key(&self, key: &str, from: &mut Connection, to: usize) {
        let mut migrate: Cmd = cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(self.nodes[to].port()).arg(key).arg(0).arg(5_000);
        if let Some(password) = &self.password {
            migrate.arg("AUTH").arg(password);
        }
        match migrate.query::<Value>(from) {
            Ok(Value::Okay | Value::SimpleString(_)) => {}
            other => panic!("MIGRATE: {other:?}"),
        }
    }

    /// Ends the move of a slot: it is the other node's now. Who takes it is told first, as redis-cli does, so that no
    /// moment is without an owner.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let mut told = vec![to, from];
        told.extend((0..self.masters).filter(|node| *node != to && *node != from));
        for node in told {
            self.ok(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to]]);
        }
    }

    /// Moves a slot with all that is in it.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        let mut source = self.connect(from);
        loop {
            let keys = self.keys_in(slot, &mut source);
            if keys.is_empty() {
                break;
            }
            for key in keys {
                self.move_key(&key, &mut source, to);
            }
        }
        self.end_move(slot, from, to);
    }

    /// Has all masters take it that these slots, which hold no keys, are one master's.
    pub fn give_all(&self, slots: &[u16], to: usize) {
        let mut nodes: Vec<usize> = (0..self.masters).filter(|node| *node != to).collect();
        nodes.insert(0, to);
        for node in nodes {
            let mut tell = redis::pipe();
            for slot in slots {
                tell.cmd("CLUSTER").arg("SETSLOT").arg(slot).arg("NODE").arg(&self.ids[to]).ignore();
            }
            tell.query::<()>(&mut self.connect(node)).expect("the node answers");
        }
    }

    /// Runs a command that answers OK.
    pub fn ok(&self, node: usize, arguments: &[&str]) {
        assert_eq!(self.text(node, arguments), "OK", "{arguments:?} on node {node}");
    }

    fn text(&self, node: usize, arguments: &[&str]) -> String {
        let answer = self.nodes[node].command(arguments);
        answer.unwrap_or_else(|| panic!("{arguments:?} on node {node} failed")).trim().to_owned()
    }
}

/// A port that was free a moment ago. Cluster buses take it up at once.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("the port has a number").port()
}

/// How long a cluster may take to give the slots of a dead master to its replica.
pub const FAILOVER: Duration = Duration::from_secs(30);
