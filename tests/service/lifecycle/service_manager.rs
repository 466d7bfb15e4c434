//! What a service manager such as systemd reads from weir: that it is ready, reloads, stops, runs, and why it failed. Each
//! test has a socket of its own in the place of systemd's.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::http;
use crate::support::process::{PolicyDirectory, Process, Weir};
use crate::support::wait::{PATIENCE, until, within};

const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000}
";

const MORE_POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000}
  - key: client
    rate_limit: {unit: year, requests_per_unit: 1000}
";

const NO_ARGUMENTS: [&str; 0] = [];

#[test]
fn weir_is_ready_for_its_service_manager_when_readyz_has_it_ready() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let manager = Manager::start();
    let weir = listening(&policies, &NO_ARGUMENTS, &manager.environment());

    assert_eq!(manager.next(), ["STATUS=starts"]);
    assert_eq!(manager.next(), ["READY=1", "STATUS=serves 1 domain, 1 rule"]);
    let ready = http::get(weir.http, "/readyz").expect("an answer");
    assert_eq!(ready.status, 200, "{ready:?}");
}

/// Open listeners alone are no reason to be ready.
#[test]
fn weir_that_waits_for_its_store_is_not_ready() {
    // A Redis that accepts connections and is silent.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", silent.local_addr().expect("its address"));
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let manager = Manager::start();
    let arguments = ["--store", "redis", "--redis-url", &url, "--set", "redis.ready_after=1m"];
    let mut weir = listening(&policies, &arguments, &manager.environment());
    assert_eq!(manager.next(), ["STATUS=starts"]);
    let ready = http::get(weir.http, "/readyz").expect("an answer");
    assert_eq!(ready.status, 503, "{ready:?}");

    weir.terminate();
    assert_eq!(weir.wait_for_exit().code(), Some(0));
    assert_eq!(manager.next(), ["STOPPING=1", "STATUS=stopping: still serves, health is NOT_SERVING"]);
}

#[test]
fn a_reload_is_complete_when_the_policies_are_in_force() {
    let policies = TempDir::new().expect("a temporary directory");
    let file = policies.path().join("shop.yaml");
    std::fs::write(&file, POLICY).expect("a policy file");
    let manager = Manager::start();
    let process = Process::start(policies.path(), &NO_ARGUMENTS, &manager.environment());
    let weir = Weir::listening(process).unwrap_or_else(|problem| panic!("{problem}"));
    manager.wait_for("READY=1");

    let before = monotonic();
    std::fs::write(&file, MORE_POLICY).expect("a policy file");
    weir.signal("HUP");
    let begun = manager.next_reload();
    let time = begun[1].strip_prefix("MONOTONIC_USEC=").and_then(|time| time.parse::<u64>().ok());
    // systemd compares it with the clock of its own, which is the same for all processes.
    assert!(time.is_some_and(|time| time >= before && time <= monotonic()), "{begun:?} after {before}");
    assert_eq!(begun[2], "STATUS=reloads");
    assert_eq!(manager.next(), ["READY=1", "STATUS=serves 1 domain, 2 rules"]);

    std::fs::write(&file, "domain: [").expect("a policy file");
    weir.signal("HUP");
    manager.next_reload();
    let refused = "STATUS=serves 1 domain, 2 rules; changed policies are refused, 1 problem (see /readyz)";
    assert_eq!(manager.next(), ["READY=1", refused]);

    // A change without a signal is no reload of the service manager's, and shows in the status.
    std::fs::write(&file, POLICY).expect("a policy file");
    assert_eq!(manager.next(), ["STATUS=serves 1 domain, 1 rule"]);
}

#[test]
fn a_stop_is_announced_before_weir_leaves() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let manager = Manager::start();
    let mut weir = listening(&policies, &["--set", "shutdown.pause=5m"], &manager.environment());
    manager.wait_for("READY=1");

    weir.terminate();
    assert_eq!(manager.next(), ["STOPPING=1", "STATUS=stopping: still serves, health is NOT_SERVING"]);
    assert!(weir.is_running(), "it serves on for 5 minutes");
    // A second signal ends the pause.
    weir.terminate();
    assert_eq!(manager.next(), ["STATUS=draining: finishes requests in flight"]);
    assert_eq!(weir.wait_for_exit().code(), Some(0));
}

#[test]
fn the_watchdog_is_reset_again_and_again_until_the_end() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let manager = Manager::start();
    let mut environment = manager.environment();
    environment.push(("WATCHDOG_USEC".to_owned(), "400000".to_owned()));
    let mut weir = listening(&policies, &["--set", "shutdown.pause=5m"], &environment);
    manager.wait_for("READY=1");
    // The first one needs no answer of the runtimes that decide; each of the others does.
    for _ in 0..5 {
        manager.wait_for("WATCHDOG=1");
    }
    weir.terminate();
    manager.wait_for("STOPPING=1");
    manager.wait_for("WATCHDOG=1");
    // A second signal ends the pause.
    weir.terminate();
    assert_eq!(weir.wait_for_exit().code(), Some(0));
}

#[test]
fn a_socket_may_have_an_abstract_name() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let manager = Manager::start_abstract();
    let _weir = listening(&policies, &NO_ARGUMENTS, &manager.environment());
    manager.wait_for("READY=1");
}

#[test]
fn a_start_that_fails_has_its_reason_in_the_status() {
    let policies = PolicyDirectory::with_file("shop.yaml", "domain: shop\nrules: []\n");
    let manager = Manager::start();
    let process = Process::start(&policies.path(), &NO_ARGUMENTS, &manager.environment());
    let (status, written) = process.finish();
    assert_eq!(status.code(), Some(1), "{written}");
    let sent = manager.next();
    assert_eq!(sent[0], "STOPPING=1");
    assert!(sent[1].starts_with("STATUS=failed: ") && sent[1].contains("shop.yaml:2"), "{sent:?}");
}

#[test]
fn weir_that_waits_for_a_control_plane_has_it_in_the_status() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let manager = Manager::start();
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let server = format!("policies.xds.server={}", nobody.local_addr().expect("its address"));
    let arguments = ["--set", "policies.source=xds", "--set", &server];
    let process = Process::start(&policies.path(), &arguments, &manager.environment());
    assert_eq!(manager.next(), ["STATUS=waiting for the first policies"]);
    process.terminate();
    let (status, written) = process.finish();
    assert_eq!(status.code(), Some(0), "{written}");
}

/// weir serves without a service manager that cannot be reached, and logs it once.
#[test]
fn a_service_manager_that_cannot_be_reached_is_logged() {
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    for (address, message) in [
        ("run/notify", "the service manager is not notified"),
        ("/nonexistent/notify", "cannot notify the service manager"),
    ] {
        let environment = [("NOTIFY_SOCKET".to_owned(), address.to_owned())];
        let weir = Weir::try_start(&policies.path(), &NO_ARGUMENTS, &environment);
        let weir = weir.unwrap_or_else(|problem| panic!("{problem}"));
        assert!(weir.wait_for_log(0, PATIENCE, |line| line.message() == Some(message)), "{}", weir.written());
        assert_eq!(weir.count_in_log(|line| line.message() == Some(message)), 1, "{}", weir.written());
    }
}

/// A weir that listens and need not be ready.
fn listening(policies: &PolicyDirectory, arguments: &[&str], environment: &[(String, String)]) -> Weir {
    let process = Process::start(&policies.path(), arguments, environment);
    Weir::listening(process).unwrap_or_else(|problem| panic!("{problem}"))
}

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    address: String,
    _directory: TempDir,
}

impl Manager {
    /// One whose socket is a file.
    fn start() -> Manager {
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        Manager::new(socket, path.to_str().expect("a path in UTF-8").to_owned(), directory)
    }

    /// One whose socket has an abstract name. That of a directory of its own is taken by no other.
    fn start_abstract() -> Manager {
        let directory = TempDir::new().expect("a temporary directory");
        let name = name_of(directory.path());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("a socket");
        Manager::new(socket, format!("@{name}"), directory)
    }

    fn new(socket: UnixDatagram, address: String, directory: TempDir) -> Manager {
        socket.set_nonblocking(true).expect("a socket that can be polled");
        Manager { socket, address, _directory: directory }
    }

    /// What a service manager sets for its services.
    fn environment(&self) -> Vec<(String, String)> {
        vec![("NOTIFY_SOCKET".to_owned(), self.address.clone())]
    }

    /// The lines of the next datagram, if one is there.
    fn received(&self) -> Option<Vec<String>> {
        let mut bytes = [0; 4_096];
        match self.socket.recv(&mut bytes) {
            Ok(length) => {
                let text = std::str::from_utf8(&bytes[..length]).expect("UTF-8");
                Some(text.lines().map(str::to_owned).collect())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The lines of the next datagram.
    fn next(&self) -> Vec<String> {
        until("a datagram", PATIENCE, || self.received())
    }

    /// The lines of the datagram that a reload begins with. On a slow machine weir may see the change before the signal, and
    /// send another status.
    fn next_reload(&self) -> Vec<String> {
        loop {
            let lines = self.next();
            if !lines[0].starts_with("STATUS=") {
                assert_eq!(lines[0], "RELOADING=1", "{lines:?}");
                return lines;
            }
        }
    }

    /// Waits for a datagram with this line.
    fn wait_for(&self, line: &str) {
        let mut others = Vec::new();
        let found = within(PATIENCE, || {
            let lines = self.received()?;
            let found = lines.iter().any(|given| given == line);
            others.push(lines);
            found.then_some(())
        });
        assert!(found.is_some(), "{line} did not come, only {others:?}");
    }
}

/// The last part of a path.
fn name_of(path: &Path) -> String {
    path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8").to_owned()
}

/// Microseconds of the monotonic clock, from a process that is not weir.
fn monotonic() -> u64 {
    let script = "import time; print(time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000)";
    let output = std::process::Command::new("python3").args(["-c", script]).output().expect("python3 runs");
    let micros = String::from_utf8_lossy(&output.stdout).trim().parse();
    Duration::from_micros(micros.expect("a number")).as_micros().try_into().expect("64 bits are enough")
}
