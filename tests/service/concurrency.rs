//! Exactness across replicas: many clients over several weir processes on one Redis are admitted
//! exactly as often as the limit says, every time.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::rls;

const CLIENTS: usize = 32;
const REPLICAS: usize = 3;
const REPETITIONS: usize = 25;

/// Calls that each client makes for one key: together more than three times the limit.
const CALLS_EACH: usize = 2;

/// Windows of the clock do not turn while the test runs: `steady_unit` sees to it. What is paced or refilled gives no hit
/// back for 72 minutes.
const LIMIT: usize = 20;
const POLICY: &str = "\
domain: shop
descriptors:
  - key: fixed_window
    rate_limit: {unit: steady, requests_per_unit: 20}
  - key: sliding_window
    rate_limit: {unit: day, requests_per_unit: 20, algorithm: sliding_window}
  - key: token_bucket
    rate_limit: {unit: day, requests_per_unit: 20, algorithm: token_bucket}
  - key: list
    rate_limits:
      - {unit: day, requests_per_unit: 20, algorithm: gcra}
      - {unit: steady, requests_per_unit: 25}
      - {unit: day, requests_per_unit: 30, algorithm: sliding_window_log}
";

/// One for each form in which Redis keeps a state, with a list.
const KEYS: [&str; 4] = ["fixed_window", "sliding_window", "token_bucket", "list"];

/// Long units with their seconds; they are counted from 1970.
const LONG_UNITS: [(&str, u64); 2] = [("year", 31_536_000), ("month", 2_592_000)];

/// Longer than the test may run.
const RUN_SECONDS_MAX: u64 = 600;

#[test]
fn replicas_admit_exactly_the_limit() {
    let redis = RedisServer::start();
    let policies = PolicyDirectory::with_file("shop.yaml", &POLICY.replace("steady", steady_unit()));
    let url = redis.url();
    let arguments = ["--store", "redis", "--redis-url", &url, "--set", "redis.timeout=5s"];
    let replicas = [(); REPLICAS].map(|()| Weir::start(&policies.path(), &arguments));
    let addresses: Vec<_> = replicas.iter().map(|weir| weir.grpc).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for key in KEYS {
        let admitted = runtime.block_on(count_admitted(key, &addresses));
        assert_eq!(admitted, [LIMIT; REPETITIONS], "admitted of {key}");
    }
}

/// How many calls were admitted, for each repetition. All clients ask for one key at once.
async fn count_admitted(key: &str, replicas: &[SocketAddr]) -> Vec<usize> {
    let mut channels = Vec::new();
    for client in 0..CLIENTS {
        channels.push(rls::channel(replicas[client % replicas.len()]).await);
    }
    let mut admitted = Vec::new();
    for repetition in 0..REPETITIONS {
        let value = format!("key-{repetition}");
        let mut clients = Vec::new();
        for channel in &channels {
            let request = rls::request("shop", &[(key, &value)]);
            let channel = channel.clone();
            clients.push(tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..CALLS_EACH {
                    let answer = rls::ask(channel.clone(), request.clone()).await;
                    match answer {
                        Ok(answer) if rls::admits(&answer) => admitted += 1,
                        Ok(_) => {}
                        Err(status) => panic!("{request:?}: {status}"),
                    }
                }
                admitted
            }));
        }
        let mut sum = 0;
        for client in clients {
            sum += client.await.expect("a client that does not panic");
        }
        admitted.push(sum);
    }
    admitted
}

/// A unit whose window does not end for longer than the test runs.
fn steady_unit() -> &'static str {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a clock after 1970").as_secs();
    for (unit, seconds) in LONG_UNITS {
        if seconds - now % seconds > RUN_SECONDS_MAX {
            return unit;
        }
    }
    panic!("a year and a month end together, for once: run this again in ten minutes");
}
