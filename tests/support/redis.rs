//! A private redis-server for one test binary, on a free port of loopback, killed at the end.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::process::end;
use super::wait::{PATIENCE, within};

/// A port that was free may be taken by the time it is used: then another one is tried.
const STARTS_MAX: u32 = 5;

/// A running redis-server.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    port: u16,
    _directory: TempDir,
}

impl RedisServer {
    /// Starts one that keeps nothing on disk.
    pub fn start() -> RedisServer {
        for _ in 0..STARTS_MAX {
            if let Some(server) = RedisServer::try_start() {
                return server;
            }
        }
        panic!("redis-server does not start; scripts/test installs it");
    }

    fn try_start() -> Option<RedisServer> {
        let directory = TempDir::new().expect("a temporary directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("the port has a number").port();
        drop(listener);
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("redis-server: {error}; scripts/test installs it"));
        let mut server = RedisServer {
            child,
            port,
            _directory: directory,
        };
        // Its own process id in the answer: not another server that took the port first.
        let own = format!("process_id:{}", server.child.id());
        let up = within(PATIENCE, || {
            if server.child.try_wait().is_ok_and(|status| status.is_some()) {
                return Some(false);
            }
            let info = server.command(&["INFO", "server"])?;
            Some(info.lines().any(|line| line.trim() == own))
        });
        (up == Some(true)).then_some(server)
    }

    /// The URL for `--redis-url`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What `redis-cli` prints for a command; `None` when it fails.
    pub fn command(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new("redis-cli")
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(arguments)
            .output()
            .ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
