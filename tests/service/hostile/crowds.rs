//! Many connections and many answers at once: what they cost new callers and probes.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use prost::Message as _;

use super::doors_http::rules;
use crate::support::frames::{Raw, SHOULD_RATE_LIMIT, request};
use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::rls::{self, Client};
use crate::support::served::metric;
use crate::support::wait::{PATIENCE, until};

const WINDOW: u32 = 1 << 20;

fn start(policy: &str, settings: &[&str]) -> (Weir, PolicyDirectory) {
    let policies = PolicyDirectory::with_file("shop.yaml", policy);
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    (Weir::start(&policies.path(), &arguments), policies)
}

/// One process that connected and closed 5,000 times a second closed 8 of 60 new connections of others.
#[test]
fn short_connections_do_not_lock_new_callers_out() {
    const SHORT: usize = 20_000;
    const THREADS: usize = 4;
    const HONEST: usize = 40;
    let (weir, _policies) = start(&rules(1), &["runtime.cores=1"]);
    let opened = AtomicUsize::new(0);
    let mut honest = Vec::new();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while opened.fetch_add(1, Relaxed) < SHORT {
                    drop(TcpStream::connect(weir.grpc).unwrap());
                }
            });
        }
        for number in 0..HONEST {
            until("short connections", PATIENCE, || (opened.load(Relaxed) >= number * SHORT / HONEST).then_some(()));
            honest.push(Raw::connect(weir.grpc, WINDOW));
        }
    });
    let message = rls::request("shop", &[("user", "u0")]).encode_to_vec();
    let sent = request(1, SHOULD_RATE_LIMIT, &message);
    let answered = honest.iter_mut().filter_map(|caller| caller.send(&sent).is_ok().then(|| caller.answered(1)));
    assert_eq!(answered.filter(|is_answered| *is_answered).count(), HONEST);
    assert_eq!(metric(weir.http, "weir_grpc_closed_total{reason=\"unused\"}"), Some(0));
}

/// A thread that matched values of 60 KB all the time had to wait for its processor, and each of its callers with it, for up
/// to 4 ms.
#[test]
fn long_values_are_matched_on_a_thread_of_their_own() {
    const WILDCARDS: usize = 32;
    let wildcards = (0..WILDCARDS).map(|number| format!("  - {{key: word, value: '*a{number}*a*b*'}}\n"));
    let policy = format!("domain: shop\ndescriptors:\n{}", wildcards.collect::<String>());
    let (weir, _policies) = start(&policy, &["runtime.cores=1"]);
    let long = (0..WILDCARDS).map(|number| format!("a{number} ")).collect::<String>().repeat(400);
    let mut message = rls::request("shop", &[("word", &*long)]);
    message.descriptors = vec![message.descriptors[0].clone(); 10];
    let mut client = Client::connect(weir.grpc);
    for _ in 0..4 {
        client.ask(message.clone()).expect("an answer");
    }
    let [long, core] = ["long", "grpc-0"].map(|thread| weir.thread_time(thread));
    assert!(long > core, "{long:?} on the thread for long messages, {core:?} on that of the caller");
}

/// Callers that sent `/metrics` again and again, without waiting for the answers, made a probe wait until each of them had
/// its next piece: 977 ms with 900 of them.
#[test]
fn probes_are_answered_while_many_callers_read_long_answers() {
    const CALLERS: usize = 300;
    const PROBES: usize = 20;
    let (weir, _policies) = start(&rules(5_000), &[]);
    let mut callers: Vec<TcpStream> = (0..CALLERS).map(|_| TcpStream::connect(weir.http).unwrap()).collect();
    for caller in &mut callers {
        caller.write_all(&b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(20)).unwrap();
        caller.set_nonblocking(true).unwrap();
    }
    let read = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let mut waited = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut piece = vec![0; 64 * 1_024];
            while !is_over.load(Relaxed) {
                for caller in &mut callers {
                    match caller.read(&mut piece) {
                        Ok(0) => panic!("weir has closed a connection that reads"),
                        Ok(count) => drop(read.fetch_add(count, Relaxed)),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                    }
                }
            }
        });
        until("long answers", PATIENCE, || (read.load(Relaxed) > CALLERS * 64 * 1_024).then_some(()));
        for path in ["/healthz", "/readyz", "/healthcheck"].into_iter().cycle().take(PROBES) {
            let began = Instant::now();
            assert_eq!(http::get(weir.http, path).expect("an answer").status, 200, "{path}");
            waited.push(began.elapsed());
        }
        is_over.store(true, Relaxed);
    });
    waited.sort();
    assert!(waited[PROBES / 2] < Duration::from_millis(250), "{waited:?}");
}
