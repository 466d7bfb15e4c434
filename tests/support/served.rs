//! The real server inside of the test's own process, on free ports: for what need not start a binary.

use std::fs;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tempfile::TempDir;
use weir_app::{AppError, Listeners};
use weir_lifecycle::Stop;
use weir_settings::{Layer, Settings};

use super::http;
use super::wait::{PATIENCE, until};

/// Where a server listens.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// gRPC.
    pub grpc: SocketAddr,
    /// HTTP.
    pub http: SocketAddr,
    /// The admin listener.
    pub admin: SocketAddr,
}

/// A running server, told to stop when dropped.
pub struct Served {
    /// Where it listens.
    pub at: At,
    /// Tells it to stop.
    pub stop: Option<Stop>,
    thread: Option<JoinHandle<Result<(), AppError>>>,
    _policies: TempDir,
}

impl Served {
    /// Serves one policy file with these settings (`NAME=VALUE`), and waits until it is ready.
    pub fn start(policy: &str, settings: &[&str]) -> Served {
        let served = Served::starting(policy, settings);
        until("the server to be ready", PATIENCE, || {
            http::get(served.at.http, "/readyz").is_ok_and(|answer| answer.status == 200).then_some(())
        });
        served
    }

    /// The same without the wait.
    pub fn starting(policy: &str, settings: &[&str]) -> Served {
        let policies = TempDir::new().expect("a temporary directory");
        fs::write(policies.path().join("policy.yaml"), policy).expect("the policy is written");
        let mut layer = Layer::default();
        for listener in ["grpc", "http", "admin"] {
            layer.set(&format!("listen.{listener}=127.0.0.1:0"));
        }
        layer.set(&format!("policies.directory={}", policies.path().display()));
        layer.set("shutdown.pause=0s");
        // The banner of the text format is for people.
        layer.set("log.format=json");
        let mut asked = Layer::default();
        for assignment in settings {
            asked.set(assignment);
        }
        let settings = Settings::load(&[layer, asked]).unwrap_or_else(|problems| panic!("{problems}"));

        let (stop, shutdown) = weir_lifecycle::shutdown();
        let (sender, bound) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listeners = Listeners::bind(&settings.listen).await?;
                let at = listeners.addresses();
                let grpc = at.grpc[0].endpoint.tcp().expect("an address");
                sender.send(At { grpc, http: at.http, admin: at.admin }).expect("the test waits");
                weir_app::serve(listeners, settings, shutdown).await
            })
        });
        let at = bound.recv_timeout(PATIENCE).expect("the listeners are bound");
        Served { at, stop: Some(stop), thread: Some(thread), _policies: policies }
    }

    /// Tells it to stop and waits for the end.
    pub fn stop(mut self) -> Result<(), AppError> {
        drop(self.stop.take());
        let thread = self.thread.take().expect("it is stopped once");
        thread.join().expect("the server does not panic")
    }

    /// The value of one line of `/metrics`, named with its labels.
    pub fn metric(&self, series: &str) -> Option<u64> {
        metric(self.at.http, series)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(std::thread::panicking() || matches!(ended, Ok(Ok(()))), "the server failed: {ended:?}");
        }
    }
}

/// The sum of the series at `/metrics` that have this name and these labels (`name{label="value",...}`); they may have
/// more labels. None where there is no such series.
pub fn metric(address: SocketAddr, series: &str) -> Option<u64> {
    let answer = http::get(address, "/metrics").expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    sum_of(&answer.body, series)
}

/// The same in a text that was read before.
pub fn sum_of(text: &str, series: &str) -> Option<u64> {
    let parts = |series: &str| -> (String, Vec<String>) {
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split("\",").map(|label| label.trim_end_matches('"').to_owned());
        (name.to_owned(), labels.filter(|label| !label.is_empty()).collect())
    };
    let (name, labels) = parts(series);
    let mut sum = None;
    for line in text.lines().filter(|line| line.starts_with(&name)) {
        let (found, value) = line.rsplit_once(' ').expect("a value");
        let (found, all) = parts(found);
        if found == name && labels.iter().all(|label| all.contains(label)) {
            *sum.get_or_insert(0) += value.parse::<u64>().expect("a whole number");
        }
    }
    sum
}
