//! Bodies of requests, of all listeners: one reader, and one budget of memory for all bodies of the process.
//!
//! A body takes memory as it arrives. Small bodies have a share of their own, which large ones cannot take. If a share is used up,
//! the body that has arrived slowest is ended, so a new one finds room. Not here: what a body means (public.rs, rows.rs,
//! overrides.rs).

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::StatusCode;
use http_body::Frame;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use weir_lifecycle::Turns;

/// How long a body may take to arrive.
const ARRIVAL_MAX: Duration = Duration::from_secs(10);
/// How many bytes of a refused body weir reads and drops.
const DISCARDED_BYTES_MAX: usize = 8 << 20;
/// The longest small body. Requests of proxies have about 1 KiB.
const SMALL_BYTES_MAX: usize = 16 << 10;
/// How much memory a body takes ahead of its bytes.
const BLOCK_BYTES: usize = 16 << 10;
/// The most bytes of memory for small bodies: 4 KiB for each connection of a full listener.
const SMALL_SHARE: usize = 4 << 20;
/// The most bytes of memory for large bodies.
const LARGE_SHARE: usize = 12 << 20;
/// The parts of the memory of the process that the shares may take at most: 1/96 and 5/96, together 1/16.
const MEMORY_PARTS: u64 = 96;

/// Memory for the bodies of all callers.
#[derive(Debug)]
pub(super) struct Bodies {
    /// The most bytes of small bodies, and of large ones.
    shares: [usize; 2],
    held: Mutex<Held>,
    /// Of large bodies, one adds a part between two polls of the runtime for new bytes. A hundred that arrive at once delay others
    /// no longer than one.
    turns: Turns,
}

#[derive(Debug, Default)]
struct Held {
    /// The bytes that small bodies hold, and large ones.
    bytes: [usize; 2],
    arriving: HashMap<u64, Arriving>,
    next_id: u64,
}

/// A body that is not complete.
#[derive(Debug)]
struct Arriving {
    began: Instant,
    size: Size,
    /// Its bytes, in blocks: one buffer that grew would be copied, and the allocator would keep each of its lengths for a while.
    blocks: Vec<Vec<u8>>,
    length: usize,
    /// The capacity of all blocks, which counts in the share of `size`.
    reserved: usize,
    /// Notified if the body is ended to make room.
    ended: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Small = 0,
    Large = 1,
}

/// The length of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    /// From its `content-length`.
    Known(usize),
    AtMost(usize),
}

impl Size {
    const fn of(bytes: usize) -> Self {
        if bytes > SMALL_BYTES_MAX { Self::Large } else { Self::Small }
    }
}

/// A complete body. Its memory stays reserved until it is dropped.
#[derive(Debug)]
pub(super) struct Complete<'a> {
    bodies: &'a Bodies,
    size: Size,
    bytes: Vec<u8>,
    reserved: usize,
}

/// Removes a body that is not complete from the budget.
struct Place<'a> {
    bodies: &'a Bodies,
    id: u64,
    ended: Arc<Notify>,
}

/// Why a body was not read.
#[derive(Debug)]
pub(super) enum BodyError {
    TooLarge {
        bytes_max: usize,
    },
    Late,
    /// The memory for bodies of this size is used up, and this body was the slowest.
    NoMemory {
        bytes_max: usize,
    },
    Broken(axum::Error),
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes_max } => write!(f, "body: more than {bytes_max} bytes"),
            Self::Late => write!(f, "body: not complete within {ARRIVAL_MAX:?}"),
            Self::NoMemory { bytes_max } => write!(
                f,
                "body: the memory for the bodies of all callers is used up, at most {bytes_max} bytes, and this body arrived slowest"
            ),
            Self::Broken(error) => write!(f, "body: {error}"),
        }
    }
}

impl BodyError {
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Late => StatusCode::REQUEST_TIMEOUT,
            Self::NoMemory { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Broken(_) => StatusCode::BAD_REQUEST,
        }
    }
}

impl Bodies {
    /// A budget for a process that may use this much memory. One body of `largest` bytes always has room.
    pub(super) fn new(memory: u64, largest: usize) -> Self {
        let part = usize::try_from(memory / MEMORY_PARTS).unwrap_or(usize::MAX);
        let large = LARGE_SHARE.min(part.saturating_mul(5)).max(largest);
        let small = SMALL_SHARE.min(part).max(SMALL_BYTES_MAX);
        Self { shares: [small, large], held: Mutex::default(), turns: Turns::default() }
    }

    /// The bytes that bodies hold.
    pub(super) fn bytes(&self) -> usize {
        self.held.lock().bytes.iter().sum()
    }

    /// Reads a body of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If the body is too large, breaks off, is not complete in time, or does not fit into memory.
    pub(super) async fn read(&self, mut body: Body, bytes_max: usize) -> Result<Complete<'_>, BodyError> {
        let reading = self.read_parts(&mut body, bytes_max);
        tokio::time::timeout(ARRIVAL_MAX, reading).await.unwrap_or(Err(BodyError::Late))
    }

    async fn read_parts(&self, body: &mut Body, bytes_max: usize) -> Result<Complete<'_>, BodyError> {
        let hint = body.size_hint();
        if hint.lower() > bytes_max as u64 {
            discard(body).await;
            return Err(BodyError::TooLarge { bytes_max });
        }
        let exact = hint.exact().and_then(|bytes| usize::try_from(bytes).ok());
        let length = exact.map_or(Length::AtMost(bytes_max), Length::Known);
        let place = self.place(Instant::now());
        let mut read = 0;
        loop {
            let part = tokio::select! {
                biased;
                () = place.ended.notified() => return Err(self.no_memory(read.max(exact.unwrap_or(0)))),
                part = next_part(body) => part,
            };
            let Some(part) = part else { return place.complete().ok_or_else(|| self.no_memory(read)) };
            let part = part.map_err(BodyError::Broken)?;
            read += part.len();
            if read > bytes_max {
                drop(place);
                discard(body).await;
                return Err(BodyError::TooLarge { bytes_max });
            }
            let _turn = if read > SMALL_BYTES_MAX { Some(self.turns.next().await) } else { None };
            if !self.push(place.id, &part, length, Instant::now()) {
                return Err(self.no_memory(read.max(exact.unwrap_or(0))));
            }
        }
    }

    fn no_memory(&self, bytes: usize) -> BodyError {
        BodyError::NoMemory { bytes_max: self.shares[Size::of(bytes) as usize] }
    }

    fn place(&self, now: Instant) -> Place<'_> {
        let ended = Arc::<Notify>::default();
        let mut held = self.held.lock();
        let id = held.next_id;
        held.next_id += 1;
        let (size, blocks, ended_by) = (Size::Small, Vec::new(), ended.clone());
        held.arriving.insert(id, Arriving { began: now, size, blocks, length: 0, reserved: 0, ended: ended_by });
        Place { bodies: self, id, ended }
    }

    /// Appends a part of a body. Returns false if the body was ended, now or before.
    fn push(&self, id: u64, part: &[u8], length: Length, now: Instant) -> bool {
        let mut held = self.held.lock();
        let Some(mut body) = held.arriving.remove(&id) else { return false };
        let wanted = body.length + part.len();
        let mut reserved = body.reserved;
        if wanted > body.reserved {
            let most = match length {
                Length::AtMost(_) if wanted <= SMALL_BYTES_MAX => SMALL_BYTES_MAX,
                Length::AtMost(most) | Length::Known(most) => most,
            };
            let block = if reserved == 0 { part.len() } else { BLOCK_BYTES };
            reserved = (reserved + block).min(most).max(wanted);
            held.bytes[body.size as usize] -= body.reserved;
            body.size = match length {
                Length::Known(bytes) => Size::of(bytes),
                Length::AtMost(_) => Size::of(reserved),
            };
            // A body that this part completes is never the slowest.
            let is_complete = matches!(length, Length::Known(bytes) if bytes == wanted);
            let speed = if is_complete { u64::MAX } else { body.speed(wanted, now) };
            if !held.make_room(body.size, reserved, self.shares[body.size as usize], speed, now) {
                return false;
            }
            held.bytes[body.size as usize] += reserved;
        }
        body.append(part, reserved);
        held.arriving.insert(id, body);
        true
    }
}

impl Held {
    /// Ends the slowest bodies of this size until the share has room for `more` bytes. Returns false if that needs more than the
    /// bodies that are slower than `speed`.
    fn make_room(&mut self, size: Size, more: usize, share: usize, speed: u64, now: Instant) -> bool {
        while self.bytes[size as usize] + more > share {
            let of_size = self.arriving.iter().filter(|(_, body)| body.size == size && body.reserved > 0);
            let slowest = of_size.map(|(id, body)| (body.speed(body.length, now), *id)).min();
            let Some((_, id)) = slowest.filter(|(slowest, _)| *slowest < speed) else { return false };
            if let Some(body) = self.end(id) {
                body.ended.notify_one();
            }
        }
        true
    }

    /// Frees a body that is not complete.
    fn end(&mut self, id: u64) -> Option<Arriving> {
        let body = self.arriving.remove(&id)?;
        self.bytes[body.size as usize] -= body.reserved;
        Some(body)
    }
}

impl Arriving {
    /// Appends a part. Its new block, if it needs one, raises the capacity to `reserved`.
    fn append(&mut self, part: &[u8], reserved: usize) {
        let room = self.blocks.last().map_or(0, |last| last.capacity() - last.len());
        let (fits, rest) = part.split_at(room.min(part.len()));
        if let Some(last) = self.blocks.last_mut() {
            last.extend_from_slice(fits);
        }
        if !rest.is_empty() {
            let mut block = Vec::with_capacity(reserved - self.reserved);
            block.extend_from_slice(rest);
            self.blocks.push(block);
        }
        self.length += part.len();
        self.reserved = reserved;
    }

    fn into_bytes(mut self) -> Vec<u8> {
        if self.blocks.len() < 2 {
            return self.blocks.pop().unwrap_or_default();
        }
        let mut bytes = Vec::with_capacity(self.length);
        // Each block is freed when it is copied.
        self.blocks.into_iter().for_each(|block| bytes.extend_from_slice(&block));
        bytes
    }

    /// The bytes a second of a body that has `length` bytes now.
    fn speed(&self, length: usize, now: Instant) -> u64 {
        let us = now.saturating_duration_since(self.began).as_micros().max(1);
        u64::try_from(length as u128 * 1_000_000 / us).unwrap_or(u64::MAX)
    }
}

impl<'a> Place<'a> {
    /// The complete body. None if it was ended before.
    fn complete(&self) -> Option<Complete<'a>> {
        let body = self.bodies.held.lock().arriving.remove(&self.id)?;
        let (size, reserved) = (body.size, body.reserved);
        Some(Complete { bodies: self.bodies, size, reserved, bytes: body.into_bytes() })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.bodies.held.lock().end(self.id);
    }
}

impl Deref for Complete<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Complete<'_> {
    fn drop(&mut self) {
        self.bodies.held.lock().bytes[self.size as usize] -= self.reserved;
    }
}

async fn next_part(body: &mut Body) -> Option<Result<Bytes, axum::Error>> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
        match frame.map(Frame::into_data) {
            Ok(Ok(part)) => return Some(Ok(part)),
            // Trailers.
            Ok(Err(_)) => {}
            Err(error) => return Some(Err(error)),
        }
    }
}

/// Reads and drops the rest of a refused body, up to a bound. Most clients read no answer before they have written their body.
async fn discard(body: &mut Body) {
    let mut left = DISCARDED_BYTES_MAX;
    while left > 0
        && let Some(Ok(part)) = next_part(body).await
    {
        left = left.saturating_sub(part.len());
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio_stream::StreamExt as _;

    use super::*;

    const MIB: usize = 1 << 20;
    const KIB: usize = 1 << 10;

    /// The budget of a process with much memory.
    fn bodies() -> Bodies {
        Bodies::new(u64::MAX, 4 * MIB)
    }

    /// A body of 4 MiB whose length is known, and its parts.
    struct Sender<'a> {
        place: Place<'a>,
        start: Instant,
    }

    impl<'a> Sender<'a> {
        fn new(bodies: &'a Bodies, start: Instant) -> Self {
            Self { place: bodies.place(start), start }
        }

        /// Sends a part `ms` after the start. Returns false if the body was ended.
        fn send(&self, part: usize, ms: u64) -> bool {
            let now = self.start + Duration::from_millis(ms);
            self.place.bodies.push(self.place.id, &vec![b' '; part], Length::Known(4 * MIB), now)
        }
    }

    fn held(bodies: &Bodies) -> [usize; 2] {
        let held = bodies.held.lock();
        let mut blocks = [0, 0];
        for body in held.arriving.values() {
            blocks[body.size as usize] += body.blocks.iter().map(Vec::capacity).sum::<usize>();
        }
        assert_eq!(held.bytes, blocks, "what is reserved is what the blocks take");
        held.bytes
    }

    /// Beside 300 large bodies the p99 of `POST /json` was 4 times as long.
    #[tokio::test]
    async fn of_large_bodies_one_adds_a_part_between_two_turns_of_others() {
        const PARTS: usize = 32;
        let (bodies, turns) = (bodies(), std::cell::Cell::new(0));
        let read = async || {
            let parts = (0..PARTS).map(|_| Ok::<_, Infallible>(vec![b' '; SMALL_BYTES_MAX]));
            bodies.read(Body::from_stream(tokio_stream::iter(parts)), MIB).await.map(|body| body.len())
        };
        let others = async {
            loop {
                turns.set(turns.get() + 1);
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = others => {}
            read = async { tokio::join!(read(), read()) } => {
                assert!(matches!(read, (Ok(first), Ok(second)) if first + second == 2 * PARTS * SMALL_BYTES_MAX), "{read:?}");
            }
        }
        assert!(turns.get() >= 2 * (PARTS - 1), "{turns:?} turns");
    }

    #[test]
    fn a_body_reserves_memory_as_it_arrives() {
        let (bodies, now) = (bodies(), Instant::now());
        let (place, mut sent) = (bodies.place(now), Vec::new());
        assert_eq!(held(&bodies), [0, 0]);
        for (part, expected) in [
            (100, [100, 0]),
            (1, [SMALL_BYTES_MAX, 0]),
            (15 * KIB, [SMALL_BYTES_MAX, 0]),
            (KIB, [0, SMALL_BYTES_MAX + BLOCK_BYTES]),
            (4 * MIB - 16 * KIB - 102, [0, 4 * MIB - 1]),
            (1, [0, 4 * MIB]),
        ] {
            let part: Vec<u8> = (0..=250).cycle().take(part).collect();
            assert!(bodies.push(place.id, &part, Length::AtMost(4 * MIB), now));
            assert_eq!(held(&bodies), expected, "after {} bytes more", part.len());
            sent.extend(part);
        }
        let body = place.complete().expect("complete");
        assert_eq!((body.len(), bodies.bytes()), (4 * MIB, 4 * MIB));
        assert_eq!(&body[..], &sent[..], "the bytes are those that arrived");
        drop(body);
        assert_eq!(bodies.bytes(), 0);
        // A length that is known decides the share at once, and nothing is reserved ahead of it.
        let large = Sender::new(&bodies, now);
        assert!(large.send(10, 0));
        assert_eq!(held(&bodies), [0, 10]);
        drop(large);
        assert_eq!(bodies.bytes(), 0);
    }

    #[test]
    fn the_shares_follow_the_memory_of_the_process() {
        let shares = |memory: u64, largest| Bodies::new(memory << 20, largest).shares;
        assert_eq!(shares(64, 4 * MIB), [64 * MIB / 96, 4 * MIB], "one large body always has room");
        assert_eq!(shares(128, 4 * MIB), [128 * MIB / 96, 128 * MIB / 96 * 5]);
        assert_eq!(shares(512, 4 * MIB), [SMALL_SHARE, LARGE_SHARE]);
        assert_eq!(shares(512, 24 * MIB), [SMALL_SHARE, 24 * MIB]);
        assert_eq!(bodies().shares, [SMALL_SHARE, LARGE_SHARE]);
    }

    /// Seven callers with unfinished bodies of 4 MiB took the memory of all: 727 of 730 honest requests got 503.
    #[tokio::test]
    async fn unfinished_large_bodies_leave_room_for_others() {
        let bodies = bodies();
        let start = Instant::now();
        let unfinished: Vec<Sender<'_>> = (0..7).map(|_| Sender::new(&bodies, start)).collect();
        for sender in &unfinished {
            sender.send(4 * MIB - 1, 0);
        }
        assert_eq!(held(&bodies), [0, 3 * (4 * MIB - 1)]);
        for _ in 0..100 {
            let honest = bodies.read(Body::from(vec![b' '; KIB]), 4 * MIB).await.expect("a small body has room");
            assert_eq!(honest.len(), KIB);
        }
        let honest = bodies.read(Body::from(vec![b' '; 4 * MIB]), 4 * MIB).await.expect("a large body has room");
        assert_eq!((honest.len(), bodies.held.lock().arriving.len()), (4 * MIB, 2));
    }

    /// 300 unfinished bodies of `PUT /rows` took 1.2 GB.
    #[test]
    fn unfinished_bodies_never_hold_more_than_their_shares() {
        for memory in [64 << 20, 128 << 20, u64::MAX] {
            let bodies = Bodies::new(memory, 4 * MIB);
            let start = Instant::now();
            let unfinished: Vec<Place<'_>> = (0..300).map(|_| bodies.place(start)).collect();
            let mut ms = 0;
            for part in [10, 15 * KIB, 300 * KIB, 2 * MIB] {
                for place in &unfinished {
                    ms += 1;
                    let now = start + Duration::from_millis(ms);
                    bodies.push(place.id, &vec![b' '; part], Length::AtMost(4 * MIB), now);
                    let [small, large] = held(&bodies);
                    assert!(small <= bodies.shares[0] && large <= bodies.shares[1], "{small}, {large}");
                }
            }
            assert!(!bodies.held.lock().arriving.is_empty(), "the fastest are kept");
            drop(unfinished);
            assert_eq!(bodies.bytes(), 0);
        }
    }

    #[test]
    fn the_body_with_the_least_progress_for_its_age_is_ended() {
        let bodies = Bodies::new(64 << 20, 4 * MIB);
        let start = Instant::now();
        let [stalled, slow, fast] = [0; 3].map(|_| Sender::new(&bodies, start));
        for sender in [&stalled, &slow, &fast] {
            assert!(sender.send(MIB, 0));
        }
        assert!(slow.send(MIB / 8, 1_000) && fast.send(MIB / 2, 1_000));
        let newest = Sender::new(&bodies, start + Duration::from_secs(1));
        assert!(newest.send(5 * MIB / 4, 1));
        assert!(!stalled.send(1, 1_001), "it was ended");
        assert!(!slow.send(MIB / 8 + 1, 1_002), "the slowest is the one that needs room");
        assert!(fast.send(1, 1_003) && newest.send(1, 3));
        // The last part of a body always finds room while others arrive.
        let last = Sender::new(&bodies, start);
        assert!(last.send(1, 9_000) && last.send(4 * MIB - 1, 9_999));
        assert!(!fast.send(1, 9_999) && !newest.send(1, 9_999));
    }

    #[tokio::test]
    async fn a_caller_whose_body_is_ended_is_answered_at_once() {
        let bodies = Bodies::new(64 << 20, 4 * MIB);
        let begun = tokio_stream::once(Ok::<_, Infallible>(vec![b' '; 4 * MIB - 1]));
        let unfinished = Body::from_stream(begun.chain(tokio_stream::pending()));
        let complete = Body::from(vec![b' '; MIB]);
        let (ended, read) = tokio::join!(bodies.read(unfinished, 4 * MIB), bodies.read(complete, 4 * MIB));
        assert!(matches!(ended, Err(BodyError::NoMemory { bytes_max }) if bytes_max == 4 * MIB), "{ended:?}");
        // A complete body is never ended: another one finds no room while its request is decided.
        let read = read.expect("the new one is read");
        let larger = || Body::from(vec![b' '; 3 * MIB + 1]);
        let refused = bodies.read(larger(), 4 * MIB).await.expect_err("no room");
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(read);
        drop(bodies.read(larger(), 4 * MIB).await.expect("room again"));
        assert_eq!(bodies.bytes(), 0);
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_is_refused_and_holds_nothing() {
        let bodies = bodies();
        let text = "0123456789a";
        for body in [Body::from(text), Body::from_stream(tokio_stream::once(Ok::<_, Infallible>(text)))] {
            let refused = bodies.read(body, 10).await.expect_err("too large");
            assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
            assert_eq!(refused.to_string(), "body: more than 10 bytes");
        }
        assert_eq!(bodies.read(Body::from("0123456789"), 10).await.expect("it fits").len(), 10);
        assert_eq!(bodies.bytes(), 0);
    }
}
