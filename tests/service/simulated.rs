//! A simulation answers as a live server: the same requests at the same times, over gRPC and simulated, compared to the
//! microsecond.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::{Handle, Runtime};
use weir_engine::observer::Silent;
use weir_grpc::health::Health;
use weir_grpc::{Listener, Messages, NamedListener};
use weir_http2::Bounds;
use weir_lab::simulation::Simulated;
use weir_lab::simulation::traffic::Traffic;
use weir_lifecycle::{Phase, Phases, Supervisor};
use weir_limiter::{Limiter, Options, Policies};
use weir_policies::load_dir;
use weir_rls::configured;
use weir_rls::convert::{self, Extras};
use weir_rls::proto::rate_limit_service_client::RateLimitServiceClient;
use weir_rls::proto::{RateLimitRequest, RateLimitResponse};
use weir_store::memory::Memory;

use crate::support::manual::ManualClock;
use crate::support::rls::channel;

/// Limits of every algorithm, several on one descriptor, and the modes.
const POLICIES: [(&str, &str); 2] = [
    (
        "shop.yaml",
        "domain: shop
descriptors:
  - {key: fixed, rate_limit: 10/s}
  - {key: hit, rate_limit: {rate: 10/s, anchor: first_hit}}
  - {key: day, rate_limit: {rate: 40/day, calendar: true, timezone: Europe/Berlin}}
  - {key: counter, rate_limit: {rate: 10/s, algorithm: sliding_window_counter}}
  - {key: sliding, rate_limit: {rate: 10/s, algorithm: sliding_window, precision: 100ms}}
  - {key: log, rate_limit: {rate: 10/s, algorithm: sliding_window_log}}
  - {key: bucket, rate_limit: {rate: 10/s, algorithm: token_bucket, burst: 5, drain: true}}
  - {key: leaky, rate_limit: {rate: 10/s, algorithm: leaky_bucket, burst: 5}}
  - {key: gcra, rate_limit: {rate: 10/s, algorithm: gcra, burst: 2}}
  - {key: several, rate_limits: [10/s, 25/min, {rate: 5/s, algorithm: gcra, burst: 5}]}
  - {key: watched, shadow_mode: true, rate_limit: 1/min}
  - {key: path, value: /a/*, share_threshold: true, rate_limit: 3/s}
",
    ),
    (
        "blog.yaml",
        "domain: blog\ncharging: independent\ndescriptors: [{key: user, rate_limit: 2/s}, {key: ip, rate_limit: 30/min}]",
    ),
];

const TRAFFIC: &str = "duration: 10s
start: 2040-03-24T22:59:55Z
seed: 3
domain: shop
sources:
  - {ask: fixed=k<n>, rate: 30/s, arrivals: poisson, keys: 2}
  - {ask: hit=k<n>, rate: 30/s, arrivals: poisson, keys: 2}
  - {ask: day=k, rate: 4/s, arrivals: poisson}
  - {ask: counter=k, rate: 15/s, arrivals: poisson}
  - {ask: sliding=k, rate: 15/s, arrivals: poisson}
  - {ask: log=k, rate: 15/s, arrivals: bursts, burst: 7}
  - {ask: bucket=k, rate: 15/s, arrivals: poisson, hits: 2}
  - {ask: leaky=k, rate: 15/s, arrivals: poisson}
  - {ask: gcra=k, rate: 15/s}
  - {ask: gcra=k, rate: 1/s, hits: 3, refund: true}
  - {ask: gcra=k, rate: 1/s, look: true}
  - {ask: several=k, rate: 10/s, arrivals: poisson}
  - {ask: [fixed=k1, {descriptor: watched=k, hits: 2}, path=/a/<n>], rate: 5/s, keys: 9}
  - {ask: fixed=own, limit: 3/minute, rate: 1/s}
  - {ask: [user=u<n>, ip=i], domain: blog, rate: 10/s, keys: 3}
  - {ask: nothing=k, rate: 1/s}
  - {ask: user=ann, domain: unknown, rate: 1/s}
";

/// A gRPC server whose memory store has a clock that the test sets.
struct Live {
    clock: Arc<ManualClock>,
    client: RateLimitServiceClient<tonic::transport::Channel>,
    phases: Phases,
    runtime: Runtime,
}

impl Live {
    fn start(policies: &Path, traffic: &Traffic, extras: Extras) -> Self {
        let clock = Arc::new(ManualClock::default());
        let settings = traffic.settings().clone();
        let loaded = load_dir(policies).unwrap_or_else(|problems| panic!("{problems}"));
        let policies = Arc::new(Policies::new(loaded.policies, Arc::new(Silent)));
        let store = Arc::new(Memory::new(settings.memory.max_keys, clock.clone(), Arc::new(Silent)));
        let limiter = {
            let (clock, settings) = (clock.clone(), settings.clone());
            move |_| {
                let options = Options {
                    mode: settings.charging,
                    on_error: settings.on_error,
                    modes: configured::modes(&settings),
                    clock: clock.clone(),
                    ..Options::new(store.clone())
                };
                Arc::new(Limiter::new(policies.clone(), options, Arc::new(Silent)))
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let options = weir_grpc::Options {
            cores: NonZeroUsize::MIN,
            messages: Messages {
                request_bytes: settings.limits.request_bytes,
                receive_timeout: Duration::from_secs(10),
                bounds: configured::bounds(&settings.limits),
                extras,
                receipt_key: settings.holds.receipt_key.clone(),
                tracer: None,
            },
            bounds: Bounds {
                streams: settings.grpc.max_streams,
                connection_bytes: settings.grpc.connection_held_bytes,
                total_bytes: settings.grpc_held_bytes(u64::MAX),
                tables_bytes: usize::MAX,
            },
            tls: None,
            max_age: None,
            callers: None,
            long: runtime.handle().clone(),
        };
        let phases = Phases::starting();
        let client = runtime.block_on(async {
            let life = phases.watch();
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let address: SocketAddr = listener.local_addr().unwrap();
            let supervisor = Supervisor::new(life.clone());
            let health = Health::starting().await;
            let socket = Listener::Tcp(listener);
            let listener = NamedListener { name: "grpc".to_owned(), transport: weir_http2::Transport::Plain, socket };
            let here = Handle::current();
            weir_grpc::start(&supervisor, &life, &here, vec![listener], &options, &health, limiter).unwrap();
            phases.begin(Phase::Serving);
            RateLimitServiceClient::new(channel(address).await)
        });
        Self { clock, client, phases, runtime }
    }

    fn ask(&mut self, now: u64, message: &RateLimitRequest) -> RateLimitResponse {
        self.clock.set(now);
        let answer = self.runtime.block_on(self.client.should_rate_limit(message.clone()));
        answer.unwrap_or_else(|status| panic!("{message:?}: {status}")).into_inner()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.phases.begin(Phase::Draining);
        self.phases.begin(Phase::Ending);
    }
}

#[test]
fn a_simulation_gives_the_answers_of_a_live_server() {
    let directory = TempDir::new().unwrap();
    for (name, text) in POLICIES {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let path = directory.path().join("shop.traffic.yaml");
    std::fs::write(&path, TRAFFIC).unwrap();
    let mut traffic = Traffic::open(&path).unwrap_or_else(|error| panic!("{error}"));
    let settings = traffic.settings().clone();
    // With the detail of each status, which has times to the microsecond.
    let extras = Extras { dynamic_metadata: true, delay_header: true, ietf_headers: true, ..Extras::default() };
    let simulated = Simulated::load(directory.path(), &settings).unwrap_or_else(|problems| panic!("{problems}"));
    let mut live = Live::start(directory.path(), &traffic, extras.clone());
    let bounds = configured::bounds(&settings.limits);
    let (mut asked, mut denied, mut delayed) = (0, 0, 0);
    while let Some(request) = traffic.next().unwrap() {
        let view = request.view();
        let query = convert::query(&view, &bounds).unwrap();
        let answer = simulated.decide(request, &query).unwrap();
        denied += usize::from(answer.denied);
        delayed += usize::from(answer.wait > 0);
        let simulated = convert::response(&view, answer, &extras);
        let served = live.ask(request.time, &request.message);
        assert_eq!(served, simulated, "request {asked}, at {}: {:?}", request.time, request.message);
        asked += 1;
    }
    assert!(asked > 1_500 && denied > 500 && delayed > 50, "{asked} {denied} {delayed}");
    let report = simulated.report(0);
    assert_eq!((report.requests(), report.denied), (asked, denied as u64));
}
