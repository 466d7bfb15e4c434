//! The socket on which gRPC listens: TCP, or a Unix socket with its file.
//!
//! Not here: serving connections (lib.rs).

use std::fs::{self, Permissions};
use std::future::poll_fn;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixSocket};
use tokio_stream::Stream as _;
use tonic::transport::server::TcpIncoming;
use weir_http2::Transport;

use super::load::{Origin, Socket};

/// How long a connection may be silent before the kernel probes it. This detects peers that disappeared. HTTP/2 pings
/// would detect them too, but would read the clock for every frame.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
/// The time between two probes.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// How many probes may fail before the connection is closed.
const KEEPALIVE_TIMES: u32 = 3;

/// How many new connections of one listener may wait in the system's queue: as many as the system allows, which is
/// `net.core.somaxconn`. In a burst, the system drops what does not fit, and a caller tries again only after a second.
pub const BACKLOG: u32 = i32::MAX.unsigned_abs();

/// A listener with its name, by which callers are known.
#[derive(Debug)]
pub struct NamedListener {
    pub name: String,
    pub transport: Transport,
    pub socket: Listener,
}

/// A bound socket, which belongs to no runtime yet. It does not block.
#[derive(Debug)]
pub enum Listener {
    Tcp(std::net::TcpListener),
    /// A Unix socket. Its file is removed when the listener is dropped.
    Unix(std::os::unix::net::UnixListener, SocketFile),
}

impl Listener {
    /// Binds a Unix socket with these permissions. Replaces the file of a socket that no process listens on.
    ///
    /// # Errors
    /// When a process listens on it, when the file is not a socket, or when the system refuses.
    pub async fn bind_unix(path: &Path, mode: u32) -> io::Result<Self> {
        remove_stale(path).await?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(path)?;
        let file = SocketFile::new(path)?;
        // The system refuses every caller until the socket listens, so none connects with the permissions of the umask.
        fs::set_permissions(path, Permissions::from_mode(mode))?;
        let listener = socket.listen(BACKLOG)?.into_std()?;
        if !file.is_there() {
            let reason = "another process has replaced the socket while this one began to listen";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, reason));
        }
        Ok(Self::Unix(listener, file))
    }

    /// The connections of this socket, which now belongs to the current runtime.
    ///
    /// # Errors
    /// When the system refuses to watch the socket.
    fn incoming(self) -> io::Result<Incoming> {
        Ok(match self {
            Self::Tcp(listener) => Incoming::Tcp(
                TcpIncoming::from(TcpListener::from_std(listener)?)
                    .with_nodelay(Some(true))
                    .with_keepalive(Some(KEEPALIVE_AFTER))
                    .with_keepalive_interval(Some(KEEPALIVE_EVERY))
                    .with_keepalive_retries(Some(KEEPALIVE_TIMES)),
            ),
            Self::Unix(listener, file) => Incoming::Unix(UnixListener::from_std(listener)?, file),
        })
    }
}

/// Removes the file of a socket that no process listens on: a killed process leaves it.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is not a socket is there"));
    }
    match tokio::net::UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "a process listens on this socket")),
    }
}

#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode, to detect that another process has replaced the file.
    identity: (u64, u64),
}

impl SocketFile {
    fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }

    fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|found| found == self.identity)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

pub(super) enum Incoming {
    Tcp(TcpIncoming),
    Unix(UnixListener, #[expect(dead_code, reason = "dropping it removes the file")] SocketFile),
}

impl Incoming {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Socket>> {
        match self {
            Self::Tcp(incoming) => Pin::new(incoming).poll_next(context).map(|next| match next {
                Some(stream) => Ok(Socket::Tcp(stream?.into_std()?)),
                None => Err(io::Error::other("there are no more connections")),
            }),
            Self::Unix(listener, _) => {
                listener.poll_accept(context).map(|accepted| Ok(Socket::Unix(accepted?.0.into_std()?)))
            }
        }
    }
}

/// The connections of several listeners.
pub(super) struct AllIncoming {
    listeners: Vec<(Arc<Origin>, Incoming)>,
    /// The listener that is asked first, so that none waits for another.
    first: usize,
}

impl AllIncoming {
    /// The connections of these listeners, whose sockets now belong to the current runtime. Fails as [`Listener::incoming`].
    pub(super) fn new(listeners: Vec<(Arc<Origin>, Listener)>) -> io::Result<Self> {
        let incoming = |(origin, socket): (_, Listener)| Ok((origin, socket.incoming()?));
        Ok(Self { listeners: listeners.into_iter().map(incoming).collect::<io::Result<_>>()?, first: 0 })
    }

    /// The next connection, and its listener. Dropping the future before it is ready loses nothing.
    pub(super) async fn next(&mut self) -> (io::Result<Socket>, Arc<Origin>) {
        poll_fn(|context| {
            let count = self.listeners.len();
            for at in (0..count).map(|i| (self.first + i) % count) {
                let (origin, incoming) = &mut self.listeners[at];
                if let Poll::Ready(next) = incoming.poll_next(context) {
                    self.first = at + 1;
                    return Poll::Ready((next, origin.clone()));
                }
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    #[tokio::test]
    async fn the_file_of_a_socket_goes_with_its_listener() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("grpc.sock");
        let listener = Listener::bind_unix(&path, 0o600).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let taken = Listener::bind_unix(&path, 0o600).await.unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn no_caller_connects_before_the_permissions_are_set() {
        const ROUNDS: usize = 500;
        // A mode that usual umasks do not give.
        const MODE: u32 = 0o710;
        let directory = tempfile::tempdir().unwrap();
        let path = |round: usize| directory.path().join(format!("{round}.sock"));
        let round = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let caller = scope.spawn(|| {
                let (mut connected, mut others) = (0, Vec::new());
                loop {
                    let round = round.load(Relaxed);
                    if round == ROUNDS {
                        return (connected, others);
                    }
                    if std::os::unix::net::UnixStream::connect(path(round)).is_ok() {
                        connected += 1;
                        // The file may already be removed.
                        let mode = fs::metadata(path(round)).map(|found| found.permissions().mode() & 0o777);
                        others.extend(mode.ok().filter(|mode| *mode != MODE));
                    }
                }
            });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _entered = runtime.enter();
            for number in 0..ROUNDS {
                let listener = runtime.block_on(Listener::bind_unix(&path(number), MODE)).unwrap();
                std::thread::yield_now();
                drop(listener);
                round.store(number + 1, Relaxed);
            }
            let (connected, others) = caller.join().unwrap();
            assert!(connected > 0, "a test of nothing");
            assert_eq!(others, [0; 0], "permissions that a caller connected by");
        });
    }

    #[tokio::test]
    async fn only_a_socket_that_is_left_over_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("grpc.sock");
        // The standard library does not remove the file.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::bind_unix(&path, 0o660).await.unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "a file of somebody else").unwrap();
        drop(listener);
        assert!(path.exists(), "the file is another one");
        let refused = Listener::bind_unix(&path, 0o660).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file of somebody else");
    }
}
