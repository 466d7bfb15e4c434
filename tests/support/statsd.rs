//! A StatsD server that keeps what it gets: lines by TCP or by UDP, on a port of its own.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

/// The most lines that are kept; a test that sends more is wrong.
const LINES_MAX: usize = 200_000;

/// The lines of all connections.
#[derive(Clone, Debug, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn add(&self, line: &str) {
        let mut lines = self.0.lock().expect("nobody panics with it");
        assert!(lines.len() < LINES_MAX, "too many lines");
        lines.push(line.to_owned());
    }

    /// All so far, in the order in which they came.
    pub fn all(&self) -> Vec<String> {
        self.0.lock().expect("nobody panics with it").clone()
    }

    /// The counters, each the sum of what came.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for line in self.all() {
            let (name, value) = line.split_once(':').expect("a name and a value");
            if let Some(value) = value.strip_suffix("|c") {
                *sums.entry(name.to_owned()).or_default() += value.parse::<u64>().expect("a number");
            }
        }
        sums
    }

    /// Whether some line is of this form.
    pub fn any(&self, wanted: impl Fn(&str) -> bool) -> bool {
        self.0.lock().expect("nobody panics with it").iter().any(|line| wanted(line))
    }
}

/// Listens by TCP until the test ends.
pub fn tcp() -> (SocketAddr, Lines) {
    tcp_at("127.0.0.1:0".parse().expect("an address"))
}

/// The same at this address.
pub fn tcp_at(address: SocketAddr) -> (SocketAddr, Lines) {
    let listener = TcpListener::bind(address).expect("a port");
    let address = listener.local_addr().expect("an address");
    let lines = Lines::default();
    let of = lines.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let lines = of.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    lines.add(&line);
                }
            });
        }
    });
    (address, lines)
}

/// Listens by UDP until the test ends. Every line of a datagram is a line.
pub fn udp() -> (SocketAddr, Lines) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = socket.local_addr().expect("an address");
    let lines = Lines::default();
    let of = lines.clone();
    thread::spawn(move || {
        let mut datagram = vec![0; 65_536];
        while let Ok(length) = socket.recv(&mut datagram) {
            assert!(length <= 1_432, "a datagram of {length} bytes");
            let text = std::str::from_utf8(&datagram[..length]).expect("a text");
            text.split('\n').for_each(|line| of.add(line));
        }
    });
    (address, lines)
}
