//! Chooses the runtime for the next connection: the one with the least recent work.
//!
//! Envoy opens few busy connections and probes open many idle ones, so the number of connections does not show the
//! load. The requests of the last seconds do. Not here: accepting (lib.rs) and counting (load.rs).

use std::time::Duration;

use super::load::Load;

/// How often the requests of all runtimes are counted. Each count halves the weight of earlier requests.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Loads that differ by less count as equal. This is a few hundred requests a second, a thousandth of the capacity of a
/// core. Below it, the number of connections predicts the load better than recent requests.
const ALIKE: u64 = 256;
/// The weight of a new connection; it halves each second.
const YOUNG: u64 = 256;

/// Chooses runtimes for connections.
///
/// The load of a runtime is its recent requests, plus an estimate for young connections, whose requests are still to
/// come. Without the estimate, simultaneous connections would all go to the same runtime. A young connection counts as
/// much as the mean load of the runtimes, and half of that after each count. Among equal runtimes the one with the
/// fewest connections is chosen, and among equal numbers they take turns.
pub(super) struct Balance {
    runtimes: Vec<RuntimeLoad>,
    /// The runtime that is chosen first among equal ones.
    turn: usize,
}

struct RuntimeLoad {
    load: Load,
    /// The requests at the last count.
    counted: u64,
    /// Recent requests: twice the requests of a second, if they are steady.
    recent: u64,
    /// Recent connections, in parts of [`YOUNG`].
    young: u64,
}

impl Balance {
    /// A balance of these runtimes, at least one.
    pub(super) fn new(loads: impl IntoIterator<Item = Load>) -> Self {
        let unused = |load| RuntimeLoad { load, counted: 0, recent: 0, young: 0 };
        Self { runtimes: loads.into_iter().map(unused).collect(), turn: 0 }
    }

    /// Counts the requests since the last call. Call it every [`LOOK_EVERY`].
    pub(super) fn look(&mut self) {
        for runtime in &mut self.runtimes {
            let counted = runtime.load.requests();
            runtime.recent = runtime.recent / 2 + counted.saturating_sub(runtime.counted);
            runtime.counted = counted;
            runtime.young /= 2;
        }
    }

    /// The runtime for a new connection.
    pub(super) fn choose(&mut self) -> usize {
        let count = self.runtimes.len();
        let mean = self.runtimes.iter().map(|runtime| runtime.recent).sum::<u64>() / count as u64;
        let expected = |i: usize| {
            let RuntimeLoad { load, recent, young, .. } = &self.runtimes[i];
            ((recent + young * mean / YOUNG) / ALIKE, load.connections())
        };
        let first = self.turn;
        self.turn = (first + 1) % count;
        let Some(chosen) = (0..count).map(|i| (first + i) % count).min_by_key(|&i| expected(i)) else {
            unreachable!("there is at least one runtime");
        };
        self.runtimes[chosen].young += YOUNG;
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Counted;

    /// Runtimes with connections, and the requests of these per second.
    struct Bench {
        loads: Vec<Load>,
        balance: Balance,
        open: Vec<Counted>,
        /// Of each runtime.
        a_second: Vec<u64>,
    }

    impl Bench {
        fn new(count: usize) -> Self {
            let loads: Vec<Load> = (0..count).map(|_| Load::default()).collect();
            let balance = Balance::new(loads.clone());
            Self { loads, balance, open: Vec::new(), a_second: vec![0; count] }
        }

        /// Opens a connection that will make this many requests a second. Returns its runtime.
        fn open(&mut self, a_second: u64) -> usize {
            let at = self.balance.choose();
            self.open.push(Counted::new(&self.loads[at]));
            self.a_second[at] += a_second;
            at
        }

        fn seconds(&mut self, seconds: u32) {
            for _ in 0..seconds {
                for (load, requests) in self.loads.iter().zip(&self.a_second) {
                    for _ in 0..*requests {
                        load.count_request();
                    }
                }
                self.balance.look();
            }
        }

        fn connections(&self) -> Vec<usize> {
            self.loads.iter().map(Load::connections).collect()
        }
    }

    #[test]
    fn without_requests_connections_are_spread_evenly() {
        let mut bench = Bench::new(3);
        for _ in 0..9 {
            bench.open(0);
        }
        assert_eq!(bench.connections(), [3, 3, 3]);
    }

    #[test]
    fn a_busy_connection_goes_where_none_is_though_idle_ones_abound() {
        let mut bench = Bench::new(2);
        let busy = bench.open(5_000);
        bench.seconds(3);
        // Probes, which all go to the other runtime for a while, and more of them.
        for _ in 0..20 {
            bench.open(0);
            bench.seconds(1);
        }
        let idle = 1 - busy;
        assert!(bench.connections()[idle] > bench.connections()[busy], "{:?}", bench.connections());
        assert_eq!(bench.open(5_000), idle);
        assert_eq!(bench.a_second, [5_000, 5_000]);
    }

    #[test]
    fn connections_that_come_at_once_do_not_all_go_to_one() {
        let mut bench = Bench::new(4);
        for a_second in [9_000, 8_000, 7_000, 6_000] {
            bench.open(a_second);
        }
        bench.seconds(5);
        for _ in 0..8 {
            bench.open(1_000);
        }
        assert_eq!(bench.connections(), [3, 3, 3, 3]);
    }

    #[test]
    fn what_comes_at_once_makes_up_for_a_difference() {
        let mut bench = Bench::new(2);
        let busy = bench.open(10_000);
        bench.seconds(5);
        for _ in 0..4 {
            bench.open(10_000);
        }
        let idle = 1 - busy;
        assert_eq!((bench.a_second[busy], bench.a_second[idle]), (20_000, 30_000));
    }

    #[test]
    fn what_was_long_ago_does_not_count() {
        let mut bench = Bench::new(2);
        let once = bench.open(50_000);
        bench.seconds(5);
        let other = 1 - once;
        bench.a_second = vec![0, 0];
        bench.a_second[other] = 1_000;
        bench.seconds(10);
        assert_eq!(bench.open(0), once);
    }

    #[test]
    fn a_trickle_of_requests_does_not_outweigh_connections() {
        let mut bench = Bench::new(2);
        let first = bench.open(50);
        bench.open(0);
        bench.open(0);
        bench.seconds(5);
        let fewest = if bench.connections()[0] == 1 { 0 } else { 1 };
        assert_eq!(bench.open(0), fewest, "the first went to {first}");
    }
}
