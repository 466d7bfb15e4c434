//! The TLS handshakes of one runtime: which one begins next, and which one is aborted when there are too many.
//!
//! The answer to a ClientHello costs weir a signature and tens of kilobytes, and costs its peer nothing. So a peer that
//! has sent one waits for a turn. One handshake begins each time the runtime has polled for new bytes of callers, so
//! requests and begun handshakes have priority. The next handshake belongs to the peer with the fewest unfinished
//! handshakes, and is its newest: in a flood the older ones are aborted before their peers can answer. Above a bound
//! the oldest unfinished one is aborted. Not here: the bound on connections that wait for a turn, and the timeout of
//! the whole handshake (peers.rs).

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use weir_lifecycle::give_way;
use weir_tls::server::HandshakeFailure;

/// The most unfinished handshakes over all runtimes.
const HANDSHAKES_MAX: usize = 1_024;
const HANDSHAKES_OF_PEER_MAX: usize = 512;
/// Each runtime has at least this part of both bounds: with less, handshakes of honest peers would be aborted.
const RUNTIMES_MAX: usize = 4;
/// Entries of ended connections are removed when there are this many, or twice as many as after the last removal.
const WAITING_MIN: usize = 64;

/// The peer whose handshakes are counted: an IPv4 address, a /64 of IPv6, or all callers of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PeerNetwork(Option<IpAddr>);

impl PeerNetwork {
    /// The network of this address. None for a Unix socket.
    pub(super) fn of(address: Option<IpAddr>) -> Self {
        Self(address.map(|address| match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
            address @ IpAddr::V4(_) => address,
        }))
    }
}

pub(super) struct Handshakes {
    lists: Mutex<Lists>,
    /// Notified when a handshake is waiting.
    waits: Notify,
    most: usize,
    of_peer_most: usize,
}

#[derive(Default)]
struct Lists {
    /// Oldest first.
    waiting: Vec<(PeerNetwork, oneshot::Sender<Turn>)>,
    /// The number of entries at which those of ended connections are removed.
    clean_at: usize,
    begun: VecDeque<Begun>,
    of_peers: HashMap<PeerNetwork, usize>,
    next_id: u64,
}

struct Begun {
    id: u64,
    peer: PeerNetwork,
    give_up: oneshot::Sender<HandshakeFailure>,
}

/// A handshake that has begun. Dropping this ends it.
struct Turn {
    given_up: oneshot::Receiver<HandshakeFailure>,
    id: u64,
    handshakes: Arc<Handshakes>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.handshakes.lists.lock().remove(|begun| begun.id == self.id);
    }
}

impl Lists {
    /// Removes the oldest one that `is_meant` accepts.
    fn remove(&mut self, is_meant: impl Fn(&Begun) -> bool) -> Option<Begun> {
        let at = self.begun.iter().position(is_meant)?;
        let begun = self.begun.remove(at)?;
        if let Some(count) = self.of_peers.get_mut(&begun.peer) {
            *count -= 1;
            if *count == 0 {
                self.of_peers.remove(&begun.peer);
            }
        }
        Some(begun)
    }

    fn of_peer(&self, peer: PeerNetwork) -> usize {
        self.of_peers.get(&peer).copied().unwrap_or_default()
    }

    /// Removes the next one: the newest of the peer with the fewest unfinished handshakes.
    fn choose(&mut self) -> Option<(PeerNetwork, oneshot::Sender<Turn>)> {
        if self.waiting.len() >= self.clean_at {
            self.waiting.retain(|(_, sender)| !sender.is_closed());
            self.clean_at = (2 * self.waiting.len()).max(WAITING_MIN);
        }
        let mut fewest: Option<(usize, usize, PeerNetwork)> = None;
        for (at, (peer, sender)) in self.waiting.iter().enumerate().rev() {
            let is_same = fewest.is_some_and(|(_, _, before)| before == *peer);
            if is_same || sender.is_closed() {
                continue;
            }
            let count = self.of_peer(*peer);
            if fewest.is_none_or(|(least, ..)| count < least) {
                fewest = Some((count, at, *peer));
            }
            if count == 0 {
                break;
            }
        }
        match fewest {
            Some((_, at, _)) => Some(self.waiting.remove(at)),
            None => {
                self.waiting.clear();
                None
            }
        }
    }
}

impl Handshakes {
    pub(super) fn new(runtimes: usize) -> Arc<Self> {
        let parts = runtimes.clamp(1, RUNTIMES_MAX);
        Arc::new(Self {
            lists: Mutex::default(),
            waits: Notify::new(),
            most: HANDSHAKES_MAX / parts,
            of_peer_most: HANDSHAKES_OF_PEER_MAX / parts,
        })
    }

    /// Runs a handshake when its turn comes.
    /// Fails when the handshake was aborted, because there were too many.
    pub(super) async fn run<H: Future>(&self, peer: PeerNetwork, handshake: H) -> Result<H::Output, HandshakeFailure> {
        let (sender, turn) = oneshot::channel();
        self.lists.lock().waiting.push((peer, sender));
        self.waits.notify_one();
        let Ok(mut turn) = turn.await else {
            unreachable!("what waits is removed when it begins, or has ended");
        };
        tokio::select! {
            biased;
            Ok(reason) = &mut turn.given_up => Err(reason),
            output = handshake => Ok(output),
        }
    }

    pub(super) async fn begin(self: Arc<Self>) {
        loop {
            self.waits.notified().await;
            while self.begin_next() {
                give_way();
                // The runtime polls for new bytes, and runs the tasks that they wake.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Begins one handshake. False if none is waiting.
    fn begin_next(self: &Arc<Self>) -> bool {
        let mut lists = self.lists.lock();
        let Some((peer, sender)) = lists.choose() else { return false };
        let given_up = if lists.of_peer(peer) >= self.of_peer_most {
            Some((lists.remove(|begun| begun.peer == peer), HandshakeFailure::TooManyOfPeer))
        } else if lists.begun.len() >= self.most {
            Some((lists.remove(|_| true), HandshakeFailure::TooMany))
        } else {
            None
        };
        let id = lists.next_id;
        lists.next_id += 1;
        let (give_up, receiver) = oneshot::channel();
        lists.begun.push_back(Begun { id, peer, give_up });
        *lists.of_peers.entry(peer).or_default() += 1;
        drop(lists);
        if let Some((Some(begun), reason)) = given_up {
            // Fails if that handshake has just ended.
            let _ = begun.give_up.send(reason);
        }
        // Fails if the connection has ended.
        drop(sender.send(Turn { given_up: receiver, id, handshakes: self.clone() }));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::JoinHandle;

    use super::*;

    type Ended = JoinHandle<Result<(), HandshakeFailure>>;

    fn peer(last: u8) -> PeerNetwork {
        PeerNetwork::of(Some([10, 0, 0, last].into()))
    }

    /// Starts a handshake whose peer does not answer.
    fn half_open(handshakes: &Arc<Handshakes>, peer: PeerNetwork) -> Ended {
        let handshakes = handshakes.clone();
        tokio::spawn(async move { handshakes.run(peer, pending()).await })
    }

    async fn begin_all(handshakes: &Arc<Handshakes>) {
        tokio::task::yield_now().await;
        while handshakes.begin_next() {}
        tokio::task::yield_now().await;
    }

    #[tokio::test]
    async fn the_oldest_of_a_peer_is_given_up_past_its_bound() {
        let handshakes = Handshakes::new(2);
        let other = half_open(&handshakes, peer(2));
        begin_all(&handshakes).await;
        let mut open = Vec::new();
        for _ in 0..=HANDSHAKES_OF_PEER_MAX / 2 {
            open.push(half_open(&handshakes, peer(1)));
            begin_all(&handshakes).await;
        }
        assert!(!other.is_finished() && !open[1].is_finished());
        assert_eq!(open.remove(0).await.unwrap(), Err(HandshakeFailure::TooManyOfPeer));
        assert_eq!(handshakes.lists.lock().begun.len(), HANDSHAKES_OF_PEER_MAX / 2 + 1);
        for task in open {
            task.abort();
            let _ = task.await;
        }
        let lists = handshakes.lists.lock();
        assert_eq!((lists.begun.len(), lists.of_peers.len()), (1, 1), "ended handshakes are removed");
    }

    #[tokio::test]
    async fn the_oldest_of_all_is_given_up_past_the_bound_on_all() {
        let handshakes = Handshakes::new(100);
        let most = HANDSHAKES_MAX / RUNTIMES_MAX;
        let mut open = Vec::new();
        for number in 0..=most {
            open.push(half_open(&handshakes, peer(u8::try_from(number % 200).unwrap())));
            begin_all(&handshakes).await;
        }
        assert!(!open[1].is_finished());
        assert_eq!(open.remove(0).await.unwrap(), Err(HandshakeFailure::TooMany));
        assert_eq!(handshakes.lists.lock().begun.len(), most);
    }

    #[tokio::test]
    async fn a_peer_with_few_comes_before_a_flood_and_the_newest_before_older_ones() {
        let handshakes = Handshakes::new(1);
        let _begun = half_open(&handshakes, peer(1));
        begin_all(&handshakes).await;
        let first = Arc::new(Mutex::new(Vec::new()));
        let named = |name: &'static str, peer: PeerNetwork| {
            let (handshakes, first) = (handshakes.clone(), first.clone());
            tokio::spawn(async move { handshakes.run(peer, async { first.lock().push(name) }).await })
        };
        let tasks = [named("old", peer(1)), named("honest", peer(2)), named("new", peer(1))];
        tokio::task::yield_now().await;
        while handshakes.begin_next() {
            tokio::task::yield_now().await;
        }
        for task in tasks {
            assert_eq!(task.await.unwrap(), Ok(()));
        }
        assert_eq!(*first.lock(), ["honest", "new", "old"]);
    }

    /// Without yielding, 4,000 half-open handshakes a second made the 99th percentile of new connections 4 times as
    /// long.
    #[tokio::test]
    async fn handshakes_that_begin_let_other_threads_run() {
        use weir_lifecycle::give_way::{GAVE_WAY, GIVE_WAY_AFTER};

        let handshakes = Handshakes::new(1);
        let begins = tokio::spawn(handshakes.clone().begin());
        let is_due = Some(tokio::time::Instant::now() - GIVE_WAY_AFTER);
        GAVE_WAY.set(is_due);
        let open = half_open(&handshakes, peer(1));
        while handshakes.lists.lock().begun.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_ne!(GAVE_WAY.get(), is_due);
        open.abort();
        begins.abort();
    }

    #[tokio::test]
    async fn connections_that_end_while_they_wait_are_forgotten() {
        let handshakes = Handshakes::new(1);
        for _ in 0..100 * WAITING_MIN {
            let task = half_open(&handshakes, peer(1));
            tokio::task::yield_now().await;
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
            // A flood leaves no time for the first ones.
            let _ended = handshakes.lists.lock().choose();
        }
        assert!(handshakes.lists.lock().waiting.len() <= WAITING_MIN);
        let open = half_open(&handshakes, peer(1));
        begin_all(&handshakes).await;
        open.abort();
    }

    #[test]
    fn a_peer_is_an_address_or_a_network_of_ipv6() {
        let of = |text: &str| PeerNetwork::of(Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        for (one, other) in [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8:0:1::1")] {
            assert_ne!(of(one), of(other));
        }
        assert_ne!(PeerNetwork::of(None), of("::"));
    }
}
