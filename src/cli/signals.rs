//! Signals that end a command in its own way.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Some kinds of signals, which then do not end the process.
pub(super) struct Signals(Vec<Signal>);

impl Signals {
    /// Must be called within a runtime, which receives the signals. Fails when the system refuses to deliver them.
    pub(super) fn of(kinds: &[SignalKind]) -> io::Result<Self> {
        kinds.iter().map(|kind| signal(*kind)).collect::<io::Result<_>>().map(Self)
    }

    /// Waits for the first of them.
    pub(super) async fn any(&mut self) {
        poll_fn(|context| {
            let is_any = self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if is_any { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
