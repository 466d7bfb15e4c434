//! Notices to the service manager that started weir: systemd, or another one that sets `NOTIFY_SOCKET`.
//!
//! The protocol is that of sd_notify(3). The crate sd-notify would block the runtime while a manager does not read, and
//! does not support abstract addresses. Not here: when weir sends notices (app).

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{self, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::net::UnixDatagram;

const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";
/// The variable with the time of the watchdog, in microseconds.
const WATCHDOG_VARIABLE: &str = "WATCHDOG_USEC";
const WATCHDOG_PROCESS_VARIABLE: &str = "WATCHDOG_PID";
/// How long one datagram may wait for space in the socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
const STATUS_BYTES_MAX: usize = 512;

/// A variable of the service manager has an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?}: {problem}")]
pub struct AddressError {
    variable: &'static str,
    value: OsString,
    problem: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// The start, or a reload, is complete.
    Ready,
    Reloading,
    Stopping,
    /// Restarts the watchdog's timer.
    Watchdog,
    /// The state of the process in words. Control characters become spaces; at most 512 bytes are sent.
    Status(&'a str),
}

#[derive(Debug)]
pub struct ServiceManager {
    socket: SocketAddr,
    watchdog: Option<Duration>,
    /// Whether the last datagram could not be sent.
    failing: AtomicBool,
}

impl ServiceManager {
    /// The service manager of these variables. None if they name no socket.
    ///
    /// # Errors
    /// When the address is neither an absolute path nor an abstract name (`@...`), or is too long; when the time of the
    /// watchdog is not a number above zero.
    pub fn from_environment(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<Self>, AddressError> {
        let Some(value) = variable(SOCKET_VARIABLE).filter(|value| !value.is_empty()) else { return Ok(None) };
        let socket = address(&value).map_err(|problem| AddressError {
            variable: SOCKET_VARIABLE,
            value: value.clone(),
            problem,
        })?;
        let watchdog = watchdog(&variable)?;
        Ok(Some(Self { socket, watchdog, failing: AtomicBool::new(false) }))
    }

    /// The longest time between two [`Notice::Watchdog`]. None without a watchdog.
    pub const fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// Sends notices as one datagram. Returns whether that succeeded. Waits at most one second. Logs only the first of
    /// consecutive failures.
    pub async fn send(&self, notices: &[Notice<'_>]) -> bool {
        let text = text(notices, monotonic);
        let error = match tokio::time::timeout(SEND_TIMEOUT, self.send_text(&text)).await {
            Ok(Ok(())) => {
                self.failing.store(false, Relaxed);
                return true;
            }
            Ok(Err(error)) => error,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        if !self.failing.swap(true, Relaxed) {
            tracing::warn!(%error, "cannot notify the service manager");
        }
        false
    }

    /// Opens a socket for each datagram, because the service manager may have bound its socket again.
    async fn send_text(&self, text: &str) -> io::Result<()> {
        let socket = net::UnixDatagram::unbound()?;
        socket.connect_addr(&self.socket)?;
        socket.set_nonblocking(true)?;
        let sent = UnixDatagram::from_std(socket)?.send(text.as_bytes()).await?;
        if sent == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

fn address(value: &OsStr) -> Result<SocketAddr, String> {
    match value.as_bytes() {
        [b'/', ..] => SocketAddr::from_pathname(value).map_err(|error| error.to_string()),
        [b'@', name @ ..] if !name.is_empty() => abstract_address(name),
        _ => Err("must be an absolute path, or @ and a name".to_owned()),
    }
}

#[cfg(target_os = "linux")]
fn abstract_address(name: &[u8]) -> Result<SocketAddr, String> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(name).map_err(|error| error.to_string())
}

#[cfg(not(target_os = "linux"))]
fn abstract_address(_name: &[u8]) -> Result<SocketAddr, String> {
    Err("this system has no abstract names".to_owned())
}

fn watchdog(variable: &impl Fn(&str) -> Option<OsString>) -> Result<Option<Duration>, AddressError> {
    let Some(value) = variable(WATCHDOG_VARIABLE) else { return Ok(None) };
    let process = variable(WATCHDOG_PROCESS_VARIABLE);
    if process.is_some_and(|process| process != OsStr::new(&std::process::id().to_string())) {
        // The variables are for the process that started this one.
        return Ok(None);
    }
    match value.to_str().and_then(|text| text.parse().ok()) {
        Some(micros) if micros > 0 => Ok(Some(Duration::from_micros(micros))),
        _ => {
            let problem = "must be a number of microseconds above 0".to_owned();
            Err(AddressError { variable: WATCHDOG_VARIABLE, value, problem })
        }
    }
}

fn text(notices: &[Notice<'_>], monotonic: impl Fn() -> u128) -> String {
    let mut text = String::new();
    for notice in notices {
        // Writing to a string cannot fail.
        let _ = match notice {
            Notice::Ready => writeln!(text, "READY=1"),
            // systemd accepts the reload only if this time is not before its signal.
            Notice::Reloading => writeln!(text, "RELOADING=1\nMONOTONIC_USEC={}", monotonic()),
            Notice::Stopping => writeln!(text, "STOPPING=1"),
            Notice::Watchdog => writeln!(text, "WATCHDOG=1"),
            Notice::Status(status) => {
                let end = status.floor_char_boundary(STATUS_BYTES_MAX);
                let line: String = status[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
                writeln!(text, "STATUS={line}")
            }
        };
    }
    text
}

/// The microseconds of the system's monotonic clock.
fn monotonic() -> u128 {
    let now = clock_gettime(ClockId::Monotonic);
    // That clock is never negative.
    let seconds = Duration::from_secs(now.tv_sec.unsigned_abs());
    (seconds + Duration::from_nanos(now.tv_nsec.unsigned_abs())).as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<Option<ServiceManager>, AddressError> {
        ServiceManager::from_environment(|name| {
            variables.iter().find(|(given, _)| *given == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn without_a_socket_there_is_no_service_manager() {
        assert!(from(&[]).unwrap().is_none());
        assert!(from(&[("NOTIFY_SOCKET", ""), ("WATCHDOG_USEC", "1000")]).unwrap().is_none());
    }

    #[test]
    fn an_address_that_cannot_be_one_is_an_error_with_its_value() {
        let long = format!("/{}", "x".repeat(200));
        for (value, problem) in [
            ("run/notify", "must be an absolute path, or @ and a name"),
            ("@", "must be an absolute path, or @ and a name"),
            ("vsock:2:1", "must be an absolute path, or @ and a name"),
            (&long, "path must be shorter than SUN_LEN"),
        ] {
            let error = from(&[("NOTIFY_SOCKET", value)]).unwrap_err().to_string();
            assert_eq!(error, format!("NOTIFY_SOCKET={value:?}: {problem}"));
        }
    }

    #[test]
    fn the_watchdog_is_only_for_the_process_that_it_names() {
        let own = std::process::id().to_string();
        let socket = ("NOTIFY_SOCKET", "/run/notify");
        let watchdog = |more: &[(&str, &str)]| from(&[&[socket], more].concat()).map(|found| found.unwrap().watchdog());
        assert_eq!(watchdog(&[]), Ok(None));
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "1500")]), Ok(Some(Duration::from_micros(1500))));
        assert_eq!(
            watchdog(&[("WATCHDOG_USEC", "1500"), ("WATCHDOG_PID", &own)]),
            Ok(Some(Duration::from_micros(1500)))
        );
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "1500"), ("WATCHDOG_PID", "1")]), Ok(None));
        for value in ["0", "-1", "soon", ""] {
            let error = watchdog(&[("WATCHDOG_USEC", value)]).unwrap_err().to_string();
            assert_eq!(error, format!("WATCHDOG_USEC={value:?}: must be a number of microseconds above 0"));
        }
    }

    #[test]
    fn each_notice_is_a_line() {
        let sent = |notices: &[Notice<'_>]| text(notices, || 42);
        assert_eq!(sent(&[Notice::Ready, Notice::Status("serves")]), "READY=1\nSTATUS=serves\n");
        assert_eq!(sent(&[Notice::Reloading]), "RELOADING=1\nMONOTONIC_USEC=42\n");
        assert_eq!(sent(&[Notice::Stopping, Notice::Watchdog]), "STOPPING=1\nWATCHDOG=1\n");
        assert_eq!(sent(&[Notice::Status("a\nREADY=1\tb")]), "STATUS=a READY=1 b\n", "a status adds no line");
        let long = sent(&[Notice::Status(&"é".repeat(400))]);
        assert_eq!(long, format!("STATUS={}\n", "é".repeat(256)));
    }
}
