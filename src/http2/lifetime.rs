//! The lifetime of a connection: it ends when weir drains, when the connection is too old or is retired (tables.rs), or when
//! the certificate of its client has expired.
//!
//! In each case the client receives GOAWAY, opens another connection for its next requests, and gets the answers to
//! requests in flight. Not here: connections that are closed because of their peers (peers.rs).

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use hyper_util::server::graceful::GracefulConnection;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use weir_tls::validity::Expiry;

/// How often weir compares the expiry of a client's certificate with the clock, which can be set while a connection is open.
const EXPIRY_CHECKED_EVERY: Duration = Duration::from_secs(30);
/// How long requests may take after their client's certificate has expired. With [`EXPIRY_CHECKED_EVERY`], less than a
/// minute.
const EXPIRED_GRACE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug)]
pub struct MaxAge {
    /// The age at which the client is asked for a new connection. It varies by a tenth, so that connections that began
    /// together do not end together.
    pub age: Duration,
    /// How long requests may take after that before the connection is closed.
    pub grace: Duration,
}

/// The number of steps over which ages are spread.
const STEPS: u32 = 1_000;
/// The steps between two successive connections: near the golden ratio of [`STEPS`], and without a common divisor, so that the
/// ages of any number of connections are spread evenly.
const STRIDE: u32 = 617;

pub(super) struct Lifetimes {
    drain: watch::Sender<bool>,
    max_age: Option<MaxAge>,
    step: Cell<u32>,
}

impl Lifetimes {
    pub(super) fn new(max_age: Option<MaxAge>) -> Self {
        Self { drain: watch::Sender::new(false), max_age, step: Cell::new(0) }
    }

    pub(super) fn begin(&self) -> Lifetime {
        let max_age = self.max_age.map(|max| {
            let step = self.step.get();
            self.step.set((step + STRIDE) % STEPS);
            MaxAge { age: max.age * (9 * STEPS + 2 * step) / (10 * STEPS), ..max }
        });
        Lifetime { drain: self.drain.subscribe(), max_age }
    }

    /// Sends GOAWAY to all clients, and waits until their connections have ended.
    pub(super) async fn drain(&self) {
        self.drain.send_replace(true);
        self.drain.closed().await;
    }
}

pub(super) struct Lifetime {
    drain: watch::Receiver<bool>,
    max_age: Option<MaxAge>,
}

enum Over {
    Drained,
    /// If it does not end in time, it is closed (peers.rs).
    Retired,
    /// The connection is closed after this grace.
    Outlived(Duration),
}

impl Lifetime {
    /// Serves a connection until it ends, or is over and all its requests are answered. `expiry` is that of the certificate that
    /// its client showed. Its task runs when `is_retired` changes. `listener` is its listener's name.
    ///
    /// # Errors
    /// Those of the connection.
    pub(super) async fn serve<C: GracefulConnection>(
        self,
        connection: C,
        expiry: Option<Expiry>,
        is_retired: impl Fn() -> bool,
        listener: &str,
    ) -> Result<(), C::Error> {
        let Self { mut drain, max_age } = self;
        let mut connection = pin!(connection);
        let over = {
            let mut over = pin!(over(&mut drain, max_age, expiry, listener));
            let lived = poll_fn(|context| {
                if let Poll::Ready(over) = over.as_mut().poll(context) {
                    return Poll::Ready(Err(over));
                }
                if is_retired() {
                    return Poll::Ready(Err(Over::Retired));
                }
                connection.as_mut().poll(context).map(Ok)
            });
            match lived.await {
                Ok(ended) => return ended,
                Err(over) => over,
            }
        };
        connection.as_mut().graceful_shutdown();
        match over {
            Over::Drained | Over::Retired => connection.await,
            // Dropping the connection drops the rest.
            Over::Outlived(grace) => timeout(grace, connection).await.unwrap_or(Ok(())),
        }
    }
}

async fn over(
    drain: &mut watch::Receiver<bool>,
    max_age: Option<MaxAge>,
    expiry: Option<Expiry>,
    listener: &str,
) -> Over {
    let aged = async {
        match max_age {
            Some(MaxAge { age, grace }) => {
                sleep(age).await;
                grace
            }
            None => std::future::pending().await,
        }
    };
    let expired = async {
        let Some(expiry) = expiry else { return std::future::pending().await };
        while let Some(left) = expiry.left() {
            sleep(left.min(EXPIRY_CHECKED_EVERY)).await;
        }
        tracing::debug!(listener, "the certificate of a connection's client has expired");
    };
    tokio::select! {
        // Fails only when the runtime ends.
        _ = drain.wait_for(|drained| *drained) => Over::Drained,
        grace = aged => Over::Outlived(grace),
        () = expired => Over::Outlived(EXPIRED_GRACE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_spread_over_a_tenth_to_both_sides() {
        let max = MaxAge { age: Duration::from_secs(1_000), grace: Duration::from_secs(1) };
        let lifetimes = Lifetimes::new(Some(max));
        let ages: Vec<u64> =
            (0..STEPS).filter_map(|_| lifetimes.begin().max_age).map(|max| max.age.as_secs()).collect();
        let tenth = |from: u64| ages.iter().filter(|&&age| (from..from + 20).contains(&age)).count();
        for from in (900..1_100).step_by(20) {
            assert_eq!(tenth(from), 100, "from {from}");
        }
        // A few connections differ too.
        let mut few = ages[..4].to_vec();
        few.sort_unstable();
        assert!(few.windows(2).all(|pair| pair[1] - pair[0] >= 20), "{few:?}");
        assert!(Lifetimes::new(None).begin().max_age.is_none());
    }
}
