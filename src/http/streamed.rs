//! Long answers, sent in pieces: a slow reader costs one piece and not a copy of the whole.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use http_body::Frame;
use parking_lot::Mutex;
use weir_lifecycle::on_own_thread;

pub(super) const PIECE_BYTES: usize = 32 * 1_024;
/// The most renderings that callers read at the same time.
const RENDERINGS_MAX: usize = 2;
/// While this many are being read, a new caller gets a rendering of at most this age.
const RENDERING_AGE_MAX: Duration = Duration::from_secs(15);

/// A body that is made in pieces. Between two pieces the runtime runs other tasks.
struct Pieces<F> {
    next: F,
    is_turn: bool,
}

/// A body of the pieces from `next`, until it returns None.
pub(super) fn pieces(next: impl FnMut() -> Option<Bytes> + Send + Unpin + 'static) -> Body {
    Body::new(Pieces { next, is_turn: true })
}

impl<F: FnMut() -> Option<Bytes> + Unpin> HttpBody for Pieces<F> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.is_turn = !self.is_turn;
        if self.is_turn {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready((self.next)().map(|piece| Ok(Frame::data(piece))))
    }
}

/// A copy that readers share.
#[derive(Debug)]
pub(super) struct Rendering<T> {
    pub(super) made: T,
    at: Instant,
}

/// Makes shared copies: one at a time, off the runtime.
pub(super) struct Renderings<T> {
    turn: tokio::sync::Mutex<()>,
    read: Mutex<Vec<Weak<Rendering<T>>>>,
}

impl<T> Default for Renderings<T> {
    fn default() -> Self {
        Self { turn: tokio::sync::Mutex::default(), read: Mutex::default() }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyReaders;

impl<T: Send + 'static> Renderings<T> {
    /// A new rendering from `make`, or a recent one if too many are being read. It counts as being read until it is dropped.
    ///
    /// # Errors
    /// [`TooManyReaders`].
    pub(super) async fn get(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Arc<Rendering<T>>, TooManyReaders> {
        let _turn = self.turn.lock().await;
        let read = {
            let mut read = self.read.lock();
            read.retain(|rendering| rendering.strong_count() > 0);
            read.iter().filter_map(Weak::upgrade).collect::<Vec<_>>()
        };
        if read.len() >= RENDERINGS_MAX {
            let newest = read.into_iter().max_by_key(|rendering| rendering.at);
            return newest.filter(|newest| newest.at.elapsed() <= RENDERING_AGE_MAX).ok_or(TooManyReaders);
        }
        drop(read);
        let rendering = Arc::new(Rendering { made: on_own_thread(make).await, at: Instant::now() });
        self.read.lock().push(Arc::downgrade(&rendering));
        Ok(rendering)
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;

    async fn read(body: Body) -> (usize, String) {
        let mut stream = body.into_data_stream();
        let (mut pieces, mut text) = (0, String::new());
        while let Some(piece) = stream.next().await {
            pieces += 1;
            text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        }
        (pieces, text)
    }

    #[tokio::test]
    async fn a_body_is_sent_piece_by_piece() {
        let mut left = 3;
        let body = pieces(move || {
            left -= 1;
            (left >= 0).then(|| Bytes::from_static(b"piece "))
        });
        assert_eq!(read(body).await, (3, "piece piece piece ".to_owned()));
        assert_eq!(read(pieces(|| None)).await, (0, String::new()));
    }

    #[tokio::test]
    async fn slow_readers_share_two_renderings() {
        let renderings = Renderings::default();
        let mut slow = Vec::new();
        for (number, expected) in [(1, 1), (2, 2), (3, 2), (4, 2)] {
            slow.push((renderings.get(move || number).await.unwrap(), expected));
        }
        drop(slow.remove(0));
        assert_eq!(renderings.get(|| 5).await.unwrap().made, 5, "the first is no longer read");
        for (rendering, expected) in slow {
            assert_eq!(rendering.made, expected);
        }
    }

    #[tokio::test]
    async fn one_that_nobody_reads_is_let_go() {
        let renderings = Renderings::default();
        for number in 0..10 {
            assert_eq!(renderings.get(move || number).await.unwrap().made, number);
        }
        assert!(renderings.read.lock().iter().all(|rendering| rendering.strong_count() == 0));
    }
}
