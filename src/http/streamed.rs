//! Long answers, sent in pieces: a caller that reads slowly holds a piece and not a copy of the whole.
//!
//! Not here: what the answers say (telemetry, admin.rs).

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use http_body::Frame;
use parking_lot::Mutex;

/// About how many bytes one piece has.
pub(super) const PIECE_BYTES: usize = 32 * 1_024;
/// The most renderings of the metrics that are kept at a time because callers read them.
const RENDERINGS_MAX: usize = 2;
/// While so many are being read, a rendering of this age is given to one more caller.
const RENDERING_AGE_MAX: Duration = Duration::from_secs(15);

/// A body that is made piece by piece. Between two pieces the runtime does what else there is to do.
struct Pieces<F> {
    next: F,
    is_turn: bool,
}

/// A body of the pieces that `next` makes, until it makes none.
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

/// One text, as it was at one time.
struct Rendering {
    text: Bytes,
    at: Instant,
}

/// Renders a text for callers: one at a time, on a thread of its own, and never one for each caller that reads slowly.
#[derive(Default)]
pub(super) struct Renderings {
    turn: tokio::sync::Mutex<()>,
    read: Mutex<Vec<Weak<Rendering>>>,
}

/// No rendering can be had: all are old and still being read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyReaders;

impl Renderings {
    /// The text that `render` gives, or one that it gave of late, as a body.
    ///
    /// # Errors
    /// That of `render`, or [`TooManyReaders`].
    pub(super) async fn body<E: Send + 'static>(
        &self,
        render: impl FnOnce() -> Result<String, E> + Send + 'static,
    ) -> Result<Result<Body, E>, TooManyReaders> {
        let _turn = self.turn.lock().await;
        let read = {
            let mut read = self.read.lock();
            read.retain(|rendering| rendering.strong_count() > 0);
            read.iter().filter_map(Weak::upgrade).collect::<Vec<_>>()
        };
        if read.len() >= RENDERINGS_MAX {
            let newest = read.into_iter().max_by_key(|rendering| rendering.at);
            return match newest.filter(|newest| newest.at.elapsed() <= RENDERING_AGE_MAX) {
                Some(newest) => Ok(Ok(body_of(newest))),
                None => Err(TooManyReaders),
            };
        }
        drop(read);
        let text = match tokio::task::spawn_blocking(render).await {
            Ok(Ok(text)) => text,
            Ok(Err(error)) => return Ok(Err(error)),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        };
        let rendering = Arc::new(Rendering { text: text.into(), at: Instant::now() });
        self.read.lock().push(Arc::downgrade(&rendering));
        Ok(Ok(body_of(rendering)))
    }
}

/// A body that keeps the rendering for as long as it is read.
fn body_of(rendering: Arc<Rendering>) -> Body {
    let mut sent = 0;
    pieces(move || {
        let end = rendering.text.len().min(sent + PIECE_BYTES);
        let piece = rendering.text.slice(sent..end);
        sent = end;
        (!piece.is_empty()).then_some(piece)
    })
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

    async fn render(renderings: &Renderings, text: &str) -> Result<Body, TooManyReaders> {
        let text = text.to_owned();
        renderings.body(move || Ok::<_, ()>(text)).await.map(|body| body.unwrap())
    }

    #[tokio::test]
    async fn a_text_is_sent_in_pieces() {
        let renderings = Renderings::default();
        let long = "0123456789".repeat(10_000);
        let body = render(&renderings, &long).await.unwrap();
        assert_eq!(read(body).await, (long.len().div_ceil(PIECE_BYTES), long));
        assert_eq!(read(render(&renderings, "").await.unwrap()).await, (0, String::new()));
    }

    #[tokio::test]
    async fn slow_readers_share_two_renderings() {
        let renderings = Renderings::default();
        let mut slow = Vec::new();
        for (number, expected) in [(1, "1"), (2, "2"), (3, "2"), (4, "2")] {
            slow.push((render(&renderings, &number.to_string()).await.unwrap(), expected));
        }
        drop(slow.remove(0));
        let fresh = render(&renderings, "5").await.unwrap();
        assert_eq!(read(fresh).await.1, "5", "the first is no longer read");
        for (body, expected) in slow {
            assert_eq!(read(body).await.1, expected);
        }
    }

    #[tokio::test]
    async fn one_that_nobody_reads_is_let_go() {
        let renderings = Renderings::default();
        for number in 0..10 {
            let body = render(&renderings, &number.to_string()).await.unwrap();
            assert_eq!(read(body).await.1, number.to_string());
        }
        assert!(renderings.read.lock().iter().all(|rendering| rendering.strong_count() == 0));
    }
}
