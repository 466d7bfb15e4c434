//! A real Prometheus on a free port of loopback that scrapes one weir; Debian's package `prometheus` has it.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::process::end;
use crate::support::wait::{PATIENCE, until};
use crate::support::{http, listening};

/// How long a Prometheus may take to start on a machine that has other work.
const START: Duration = Duration::from_secs(60);

/// A running Prometheus, killed when dropped.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    _directory: TempDir,
}

impl Prometheus {
    /// Starts one that scrapes the weir at this address twice a second, with the alerts of deploy/prometheus. None where there is no
    /// Prometheus here.
    pub fn start(weir: SocketAddr) -> Option<Prometheus> {
        let directory = TempDir::new().expect("a temporary directory");
        let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus/weir.rules.yaml");
        let config = format!(
            "global: {{scrape_interval: 500ms, evaluation_interval: 1s}}\nrule_files: [{}]\n\
             scrape_configs:\n- job_name: weir\n  static_configs: [{{targets: ['{weir}']}}]\n",
            rules.display()
        );
        let file = directory.path().join("prometheus.yaml");
        fs::write(&file, config).expect("the configuration");
        let log = File::create(directory.path().join("log")).expect("a file for the log");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
            .args(["--web.listen-address=127.0.0.1:0", "--enable-feature=exemplar-storage"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                eprintln!(
                    "NOT CHECKED: what a real Prometheus makes of weir's metrics, since it does not start: {error}"
                );
                return None;
            }
        };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut prometheus = Prometheus { child, address, _directory: directory };
        prometheus.address =
            until("Prometheus to listen", START, || listening::addresses(prometheus.child.id()).first().copied());
        until("Prometheus to be ready", START, || {
            http::get(prometheus.address, "/-/ready").is_ok_and(|answer| answer.status == 200).then_some(())
        });
        Some(prometheus)
    }

    /// The series that a query gives now.
    pub fn query(&self, query: &str) -> Vec<Value> {
        self.ask(&format!("/api/v1/query?query={}", escaped(query)))
    }

    /// Whether a query gives a series whose value is above this one.
    pub fn is_above(&self, query: &str, value: f64) -> bool {
        self.query(query).iter().any(|series| number(&series["value"][1]) > value)
    }

    /// Waits until a query gives a value above 0, and drives weir meanwhile.
    pub fn wait_for(&self, query: &str, mut drive: impl FnMut()) {
        until(&format!("data of {query}"), 3 * PATIENCE, || {
            drive();
            self.is_above(query, 0.0).then_some(())
        });
    }

    /// The series that a query gives over the last so many seconds, with a value each second.
    pub fn range(&self, query: &str, seconds: u64) -> Vec<Value> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs();
        let (query, start) = (escaped(query), now - seconds);
        self.ask(&format!("/api/v1/query_range?query={query}&start={start}&end={now}&step=1"))
    }

    fn ask(&self, path: &str) -> Vec<Value> {
        let answer = http::get(self.address, path).expect("an answer of Prometheus");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let mut answer: Value = serde_json::from_str(&answer.body).expect("JSON");
        match answer["data"]["result"].take() {
            Value::Array(series) => series,
            other => panic!("{path}: {other}"),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// A value as Prometheus writes it.
pub fn number(value: &Value) -> f64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

/// A query as part of a path.
fn escaped(query: &str) -> String {
    let mut text = String::new();
    for byte in query.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' | b'.' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
