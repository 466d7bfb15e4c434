//! A weir whose standard error is not ours to read: its ports are found by the system's tables.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};

use crate::support::process::{end, serve};
use crate::support::wait::{PATIENCE, until};
use crate::support::{http, listening};

/// A loopback address for each listener tells them apart.
const HOSTS: [(&str, &str); 3] = [("--grpc", "127.0.0.1:0"), ("--http", "127.0.0.2:0"), ("--admin", "127.0.0.3:0")];

/// A running weir, killed when dropped.
pub struct Bare {
    child: Child,
    /// The gRPC listener.
    pub grpc: SocketAddr,
    /// The HTTP listener.
    pub http: SocketAddr,
    /// The admin listener.
    pub admin: SocketAddr,
}

impl Bare {
    /// Starts `weir serve` with this standard error, and waits until it is ready.
    pub fn start(policies: &Path, arguments: &[&str], stderr: impl Into<Stdio>) -> Bare {
        let mut all: Vec<&str> = HOSTS.iter().flat_map(|(flag, host)| [*flag, *host]).collect();
        all.extend(arguments);
        let child = serve(policies, &all).stdout(Stdio::null()).stderr(stderr).spawn().expect("weir starts");
        let mut bare = Bare { child, grpc: any(), http: any(), admin: any() };
        until("three listeners", PATIENCE, || {
            let found = listening::addresses(bare.child.id());
            let of = |host: &str| found.iter().find(|address| address.ip().to_string() == host).copied();
            (bare.grpc, bare.http, bare.admin) = (of("127.0.0.1")?, of("127.0.0.2")?, of("127.0.0.3")?);
            Some(())
        });
        bare.wait_until_ready();
        bare
    }

    fn wait_until_ready(&self) {
        until("weir to be ready", PATIENCE, || {
            http::get(self.http, "/readyz").is_ok_and(|answer| answer.status == 200).then_some(())
        });
    }

    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("the process is ours").is_none()
    }

    /// Waits for the end of the process.
    pub fn wait_for_exit(&mut self) -> ExitStatus {
        until("the process to end", PATIENCE, || self.child.try_wait().expect("the process is ours"))
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn any() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], 0))
}

/// A pipe that is full, and the end that no process reads.
pub fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    let (reader, writer) = std::io::pipe().expect("a pipe");
    // The same pipe by a description of its own, so that only this one does not block.
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let mut filler =
        fs::OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path).expect("the pipe once more");
    let bytes = [b'.'; 4_096];
    while filler.write(&bytes).is_ok() {}
    (reader, writer)
}

/// Sends a signal by the shell's `kill`.
pub fn signal(process: u32, name: &str) {
    let kill = format!("kill -{name} {process}");
    let status = std::process::Command::new("sh").args(["-c", &kill]).status();
    assert!(status.is_ok_and(|status| status.success()), "failed: {kill}");
}
