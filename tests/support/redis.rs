//! A private redis-server for one test binary: on a free port of loopback and on a Unix socket in its
//! own directory, keeping nothing on disk, killed at the end.

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::wait::{PATIENCE, within};

/// A port that was free may be taken by the time it is used: then another one is tried.
const STARTS_MAX: u32 = 5;

/// A running redis-server.
#[derive(Debug)]
pub struct RedisServer {
    child: Child,
    port: u16,
    password: Option<String>,
    arguments: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    directory: TempDir,
}

impl RedisServer {
    /// Starts one without a password.
    pub fn start() -> RedisServer {
        RedisServer::start_with(None, &[])
    }

    /// Starts one with a password, and with further arguments as on redis-server's command line.
    pub fn start_with(password: Option<&str>, arguments: &[&str]) -> RedisServer {
        RedisServer::launch(password, arguments, &[])
    }

    /// Starts one without a password, with these paths in variables of its environment.
    pub fn start_in(environment: &[(&'static str, &Path)]) -> RedisServer {
        RedisServer::launch(None, &[], environment)
    }

    fn launch(password: Option<&str>, arguments: &[&str], environment: &[(&'static str, &Path)]) -> RedisServer {
        for _ in 0..STARTS_MAX {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = listener.local_addr().expect("the port has a number").port();
            drop(listener);
            let directory = TempDir::new().expect("a temporary directory");
            let password = password.map(str::to_owned);
            let arguments: Vec<String> = arguments.iter().map(|&one| one.to_owned()).collect();
            let environment: Vec<_> = environment.iter().map(|&(name, path)| (name, path.to_owned())).collect();
            let mut server = RedisServer {
                child: spawn(port, &directory, password.as_deref(), &arguments, &environment),
                port,
                password,
                arguments,
                environment,
                directory,
            };
            if server.is_up() {
                return server;
            }
        }
        panic!("redis-server does not start; scripts/test installs it");
    }

    /// The URL of the TCP port, with the password where there is one.
    pub fn url(&self) -> String {
        match &self.password {
            Some(password) => format!("redis://:{password}@127.0.0.1:{}", self.port),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// The TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The path of the Unix socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("redis.sock")
    }

    /// What `redis-cli` prints for a command; `None` when it fails.
    pub fn command(&self, arguments: &[&str]) -> Option<String> {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if let Some(password) = &self.password {
            cli.args(["--no-auth-warning", "-a", password]);
        }
        let output = cli.args(arguments).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(text)
    }

    /// How often a command was run since the start, by `INFO commandstats`: `name` as Redis writes it
    /// there, such as `evalsha` or `script|load`.
    pub fn runs(&self, name: &str) -> u64 {
        let stats = self.command(&["INFO", "commandstats"]).expect("redis answers INFO");
        let prefix = format!("cmdstat_{name}:calls=");
        for line in stats.lines() {
            if let Some(rest) = line.strip_prefix(&prefix) {
                let digits = rest.split(',').next().expect("split gives one part");
                return digits.parse().expect("a number of calls");
            }
        }
        0
    }

    /// Stops the process where it stands; it keeps its sockets and answers nothing.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets a frozen process go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// Kills the process. Its port stays ours in name only: see [`RedisServer::restart`].
    pub fn kill(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again, empty, at the same addresses.
    pub fn restart(&mut self) {
        self.kill();
        let Self { port, directory, arguments, environment, .. } = self;
        self.child = spawn(*port, directory, self.password.as_deref(), arguments, environment);
        assert!(self.is_up(), "redis-server does not start again");
    }

    fn signal(&self, signal: &str) {
        let status =
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().expect("kill can be run");
        assert!(status.success(), "kill {signal}: {status}");
    }

    fn is_up(&mut self) -> bool {
        // Its own process id in the answer: not another server that took the port first.
        let own = format!("process_id:{}", self.child.id());
        let up = within(PATIENCE, || {
            if self.child.try_wait().is_ok_and(|status| status.is_some()) {
                return Some(false);
            }
            let info = self.command(&["INFO", "server"])?;
            info.lines().any(|line| line.trim() == own).then_some(true)
        });
        up == Some(true)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // SIGKILL also ends a frozen process.
        self.kill();
    }
}

/// The redis-server to start: `WEIR_TEST_REDIS_SERVER`, or the one of the system.
pub fn program() -> OsString {
    std::env::var_os("WEIR_TEST_REDIS_SERVER").unwrap_or_else(|| "redis-server".into())
}

fn spawn(
    port: u16,
    directory: &TempDir,
    password: Option<&str>,
    arguments: &[String],
    environment: &[(&'static str, PathBuf)],
) -> Child {
    let mut server = Command::new(program());
    server
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(directory.path())
        .arg("--unixsocket")
        .arg(directory.path().join("redis.sock"));
    if let Some(password) = password {
        server.args(["--requirepass", password]);
    }
    server
        .args(arguments)
        .envs(environment.iter().map(|(name, path)| (name, path)))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("redis-server: {error}; scripts/test installs it"))
}
