//! Long answers, sent in pieces: a slow reader costs one piece and not a copy of the whole.

use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody};
use futures_util::stream::{self, Stream, StreamExt as _};
use http_body::Frame;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use weir_lifecycle::on_own_thread;

type BoxError = Box<dyn Error + Send + Sync>;

/// The bytes of a piece, about. The connection holds two pieces that are not written, and a third is made.
pub(super) const PIECE_BYTES: usize = 16 * 1_024;
/// The most renderings that callers read at the same time.
const RENDERINGS_MAX: usize = 2;
/// While this many are being read, a new caller gets a rendering of at most this age.
const RENDERING_AGE_MAX: Duration = Duration::from_secs(15);

/// One piece is made at a time for all callers, so that other requests wait for one piece at most.
static TURN: Semaphore = Semaphore::const_new(1);

/// The JSON of an answer up to its last list, which is empty, and whose items are written after it.
pub(super) fn opened(answer: &impl Serialize) -> Vec<u8> {
    let text = serde_json::to_string(answer).unwrap_or_default();
    text.strip_suffix("]}").unwrap_or_default().to_owned().into_bytes()
}

/// A body of the pieces from `next`, until it returns None. The current runtime makes them, and runs other tasks between
/// two pieces.
pub(super) fn pieces(mut next: impl FnMut() -> Option<Bytes> + Send + 'static) -> Body {
    pieces_or_error(move || next().map(Ok::<_, BoxError>))
}

/// The same. An error breaks the answer off.
pub(super) fn pieces_or_error<E>(next: impl FnMut() -> Option<Result<Bytes, E>> + Send + 'static) -> Body
where
    E: Into<BoxError>,
{
    made(stream::unfold(next, async |mut next| {
        let _turn = TURN.acquire().await;
        Some((next()?.map_err(Into::into), next))
    }))
}

/// A body of these pieces. A task of the current runtime makes one piece ahead of the connection, which can belong to
/// another runtime. An error breaks the answer off.
pub(super) fn made(pieces: impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static) -> Body {
    let (sender, made) = mpsc::channel(1);
    let task = tokio::spawn(async move {
        let mut pieces = pin!(pieces);
        while let Ok(place) = sender.reserve().await {
            let piece = tokio::select! {
                piece = pieces.next() => piece,
                () = sender.closed() => return Ok(()),
            };
            let Some(piece) = piece else { return Ok(()) };
            place.send(piece?);
            tokio::task::yield_now().await;
        }
        Ok(())
    });
    Body::new(Made { pieces: made, task: Some(task) })
}

struct Made {
    pieces: mpsc::Receiver<Bytes>,
    /// Fails if the body is not whole. None after the end.
    task: Option<JoinHandle<Result<(), BoxError>>>,
}

impl HttpBody for Made {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(piece) = ready!(self.pieces.poll_recv(context)) {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let Some(task) = &mut self.task else { return Poll::Ready(None) };
        let ended = ready!(Pin::new(task).poll(context));
        self.task = None;
        Poll::Ready(ended.map_err(Into::into).flatten().err().map(Err))
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
    async fn a_body_whose_pieces_cannot_be_made_breaks_off() {
        let mut left = 3;
        let mut stream = pieces(move || {
            left -= 1;
            assert!(left > 0, "a defect");
            Some(Bytes::from_static(b"piece "))
        })
        .into_data_stream();
        let mut read = Vec::new();
        while let Some(piece) = stream.next().await {
            read.push(piece.is_ok());
        }
        assert_eq!(read, [true, true, false]);
    }

    #[tokio::test]
    async fn what_makes_a_body_ends_with_its_reader() {
        let (held, holds) = tokio::sync::oneshot::channel::<()>();
        let body = made(stream::once(async move {
            let _held = held;
            std::future::pending::<Result<Bytes, BoxError>>().await
        }));
        tokio::task::yield_now().await;
        drop(body);
        assert!(holds.await.is_err());
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
