//! Counts the HTTP/2 frames from a peer, to bound frames without requests.
//!
//! h2 reads the frames. This file reads only their headers of nine bytes, and finds header blocks. Not here: the effect of the
//! bound (connection.rs), and the content of header blocks (authority.rs).

use super::authority::Authorities;

/// The bytes of the preface, before the first frame.
const PREFACE_BYTES: usize = 24;
/// The header of a frame: length, type, flags, stream.
pub(super) const HEAD_BYTES: usize = 9;
/// DATA frames below this length that do not end a request count against the bound.
const TINY_DATA_BYTES: usize = 64;

/// Frames that belong to no request (PING, SETTINGS, WINDOW_UPDATE, PRIORITY and others) on one connection in one tick. A
/// client sends a few when it connects, and about two for each answer.
pub(super) const IDLE_FRAMES_MAX: u32 = 256;
/// Frames of requests (HEADERS, RST_STREAM, tiny DATA) on one connection in one tick, while none of its requests has been
/// answered; or [`FRAMES_PER_STREAM`] for each request that may be in flight, if that is more.
pub(super) const REQUEST_FRAMES_MIN: u32 = 1_024;
/// The maximum if enough of its requests have been answered, in this tick or before. 64 callers that cancel after 20 ms
/// send about 10,000 frames in a second.
pub(super) const REQUEST_FRAMES_MAX: u32 = 16_384;
/// A client sends HEADERS, DATA in one or two frames, and RST_STREAM.
const FRAMES_PER_STREAM: u32 = 4;
/// A peer that sends more frames of requests in one tick, beyond those of answered requests, seems to cancel most of
/// its requests. weir then reads from it more slowly. This does not affect a peer that only sends many requests at
/// once.
const UNANSWERED_FRAMES_MAX: u32 = 64;
/// Frames of each kind that every answered request adds to the bounds of its tick. For frames of requests the addition
/// remains, up to [`REQUEST_FRAMES_MAX`].
pub(super) const FRAMES_PER_ANSWER: u32 = 8;

/// Requests that a peer may cancel in each tick, beyond the number of answers in it.
const GIVEN_UP_PER_TICK: u32 = 512;
/// Requests that a peer may cancel beyond those, over any number of ticks: about twenty seconds without answers for 64
/// callers that cancel after 20 ms; or [`GIVEN_UP_PER_STREAM`] for each request that may be in flight, if that is more.
const GIVEN_UP_MAX: u32 = 65_536;
const GIVEN_UP_PER_STREAM: u32 = 8;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The bytes of a HEADERS frame with the flag PRIORITY before its part of the header block.
const PRIORITY_BYTES: u8 = 5;

#[derive(Debug)]
pub(super) struct Meter {
    /// The remaining bytes of the preface or of a payload.
    skip: usize,
    /// Whether these bytes contain a part of a header block.
    has_block: bool,
    /// How many of these bytes are padding after that part.
    padding: u8,
    /// How many of these bytes precede that part. The first is the length of the padding, if there is padding.
    before_block: u8,
    is_padded: bool,
    authorities: Authorities,
    /// A header that arrives in pieces.
    head: [u8; HEAD_BYTES],
    /// How many bytes of `head` have arrived.
    head_bytes: usize,
    has_preface: bool,
    has_settings: bool,
    in_header_block: bool,
    tick: u32,
    /// Answered requests of the connection when the tick began.
    answers_before: u32,
    /// The bound on frames of requests, while none is answered.
    requests_min: u32,
    /// What the answers of earlier ticks have added to that bound.
    earned: u32,
    idle: u32,
    requests: u32,
    /// HEADERS of this turn of the connection, and requests that HTTP/2 may still have from earlier turns.
    begun: u32,
    /// Cancelled requests, minus those that earlier ticks allow.
    given_up: u32,
    given_up_max: u32,
}

/// A peer sent more frames than its requests account for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManyFrames;

impl Meter {
    /// A meter of a connection that may have `streams` requests in flight.
    pub(super) fn new(streams: u32) -> Self {
        Self {
            skip: PREFACE_BYTES,
            has_block: false,
            padding: 0,
            before_block: 0,
            is_padded: false,
            authorities: Authorities::default(),
            head: [0; HEAD_BYTES],
            head_bytes: 0,
            has_preface: false,
            has_settings: false,
            in_header_block: false,
            tick: 0,
            answers_before: 0,
            requests_min: REQUEST_FRAMES_MIN.max(streams.saturating_mul(FRAMES_PER_STREAM)),
            earned: 0,
            idle: 0,
            requests: 0,
            begun: 0,
            given_up: 0,
            given_up_max: GIVEN_UP_MAX.max(streams.saturating_mul(GIVEN_UP_PER_STREAM)),
        }
    }

    /// Whether the whole preface and the whole first frame have arrived.
    pub(super) const fn has_shaken_hands(&self) -> bool {
        self.has_settings
    }

    /// A turn of the connection begins, whose earlier requests have all been accepted. HTTP/2 still has this many of them.
    pub(super) const fn begin_turn(&mut self, unsent: u32) {
        self.begun = unsent;
    }

    /// The most requests that HTTP/2 can have besides those that weir has accepted.
    pub(super) const fn begun(&self) -> u32 {
        self.begun
    }

    /// Whether the headers of a request have begun and not ended.
    pub(super) const fn is_in_header_block(&self) -> bool {
        self.in_header_block
    }

    /// Counts the frames in received bytes, and overwrites the authorities in them. `tick` is the current second.
    /// `answers` is the number of answered requests of this connection since its start; it may wrap.
    /// Fails when the peer sent too many frames in this tick.
    pub(super) fn count(&mut self, bytes: &mut [u8], tick: u32, answers: u32) -> Result<(), TooManyFrames> {
        if tick != self.tick {
            let earned_max = REQUEST_FRAMES_MAX.saturating_sub(self.requests_min);
            self.earned = self.earned.saturating_add(self.extra(answers)).min(earned_max);
            let allowed = tick.wrapping_sub(self.tick).saturating_mul(GIVEN_UP_PER_TICK);
            self.given_up = self.given_up.saturating_sub(self.answered(answers).saturating_add(allowed));
            (self.tick, self.answers_before) = (tick, answers);
            (self.idle, self.requests) = (0, 0);
        }
        let mut read = 0;
        while read < bytes.len() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len() - read);
                if self.has_block {
                    self.header_payload(&mut bytes[read..read + skipped]);
                }
                read += skipped;
                self.skip -= skipped;
                if self.skip == 0 {
                    self.ended();
                }
                continue;
            }
            // Usually the whole header has arrived.
            if self.head_bytes == 0
                && let Some(head) = bytes[read..].first_chunk::<HEAD_BYTES>()
            {
                self.frame(head);
                read += HEAD_BYTES;
                continue;
            }
            read += self.part_of_head(&bytes[read..]);
        }
        let extra = self.extra(answers);
        let is_within = self.given_up <= self.given_up_max.saturating_add(self.answered(answers))
            && self.idle <= IDLE_FRAMES_MAX.saturating_add(extra)
            && self.requests <= self.requests_min.saturating_add(self.earned).saturating_add(extra);
        if is_within { Ok(()) } else { Err(TooManyFrames) }
    }

    /// Whether most requests of this tick are answered in it.
    pub(super) const fn is_mostly_answered(&self, answers: u32) -> bool {
        self.requests <= UNANSWERED_FRAMES_MAX.saturating_add(self.extra(answers))
    }

    /// The frames that this tick's answers add to its bounds.
    const fn extra(&self, answers: u32) -> u32 {
        self.answered(answers).saturating_mul(FRAMES_PER_ANSWER)
    }

    /// The requests answered in this tick.
    const fn answered(&self, answers: u32) -> u32 {
        answers.wrapping_sub(self.answers_before)
    }

    /// Processes a part of the payload of HEADERS or CONTINUATION. `skip` still includes it.
    fn header_payload(&mut self, payload: &mut [u8]) {
        let mut begin = 0;
        while self.before_block > 0
            && let Some(&octet) = payload.get(begin)
        {
            if std::mem::take(&mut self.is_padded) {
                self.padding = octet;
            }
            self.before_block -= 1;
            begin += 1;
        }
        let end = self.skip.saturating_sub(self.padding.into()).min(payload.len());
        if let Some(block) = payload.get_mut(begin..end) {
            self.authorities.overwrite(block);
        }
    }

    /// The preface or a payload is complete.
    fn ended(&mut self) {
        if self.has_block {
            (self.has_block, self.is_padded, self.padding, self.before_block) = (false, false, 0, 0);
        }
        if self.has_preface {
            self.has_settings = true;
        }
        self.has_preface = true;
    }

    /// Takes a part of a header from these bytes, and returns its length.
    #[cold]
    fn part_of_head(&mut self, bytes: &[u8]) -> usize {
        let wanted = (HEAD_BYTES - self.head_bytes).min(bytes.len());
        self.head[self.head_bytes..self.head_bytes + wanted].copy_from_slice(&bytes[..wanted]);
        self.head_bytes += wanted;
        if self.head_bytes == HEAD_BYTES {
            self.head_bytes = 0;
            let head = self.head;
            self.frame(&head);
        }
        wanted
    }

    /// The header of a frame is complete.
    #[inline]
    fn frame(&mut self, &[a, b, c, kind, flags, ..]: &[u8; HEAD_BYTES]) {
        self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
        match kind {
            DATA if self.skip >= TINY_DATA_BYTES || flags & END_STREAM != 0 => {}
            DATA => self.requests = self.requests.saturating_add(1),
            RST_STREAM => {
                self.requests = self.requests.saturating_add(1);
                self.given_up = self.given_up.saturating_add(1);
            }
            HEADERS => {
                self.requests = self.requests.saturating_add(1);
                self.begun = self.begun.saturating_add(1);
                self.in_header_block = flags & END_HEADERS == 0;
                self.has_block = true;
                self.authorities.begin();
                if flags & (PADDED | PRIORITY) != 0 {
                    self.is_padded = flags & PADDED != 0;
                    let priority = if flags & PRIORITY == 0 { 0 } else { PRIORITY_BYTES };
                    self.before_block = u8::from(self.is_padded) + priority;
                }
            }
            CONTINUATION => {
                self.idle = self.idle.saturating_add(1);
                self.has_block = true;
                self.in_header_block &= flags & END_HEADERS == 0;
            }
            _ => self.idle = self.idle.saturating_add(1),
        }
        if self.skip == 0 {
            self.ended();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const PING: u8 = 6;
    const SETTINGS: u8 = 4;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD_BYTES + payload, 0xff);
        frame
    }

    fn open() -> Meter {
        let mut meter = Meter::new(256);
        meter.count(&mut PREFACE.to_vec(), 0, 0).unwrap();
        meter.count(&mut frame(SETTINGS, 0, 12), 0, 0).unwrap();
        meter
    }

    #[test]
    fn frames_are_counted_however_they_are_cut() {
        let frames =
            [PREFACE, &frame(SETTINGS, 0, 6), &frame(HEADERS, 4, 30), &frame(DATA, 1, 9), &frame(PING, 0, 8)].concat();
        for size in 1..frames.len() {
            let mut meter = Meter::new(256);
            for part in frames.chunks(size) {
                meter.count(&mut part.to_vec(), 0, 0).unwrap();
            }
            assert_eq!((meter.idle, meter.requests), (2, 1), "in parts of {size}");
            assert!(meter.has_shaken_hands() && !meter.is_in_header_block());
        }
    }

    #[test]
    fn hands_are_shaken_when_the_first_frame_is_whole() {
        let mut meter = Meter::new(256);
        meter.count(&mut PREFACE.to_vec(), 0, 0).unwrap();
        assert!(!meter.has_shaken_hands());
        let settings = frame(SETTINGS, 0, 12);
        meter.count(&mut settings[..20].to_vec(), 0, 0).unwrap();
        assert!(!meter.has_shaken_hands());
        meter.count(&mut settings[20..].to_vec(), 0, 0).unwrap();
        assert!(meter.has_shaken_hands());
    }

    /// A HEADERS frame with these bytes before and after its part of the block.
    fn headers(flags: u8, before: &[u8], block: &[u8], padding: usize) -> Vec<u8> {
        let payload = [before, block, &vec![0; padding]].concat();
        let mut frame = frame(HEADERS, flags, payload.len());
        frame[HEAD_BYTES..].copy_from_slice(&payload);
        frame
    }

    #[test]
    fn authorities_are_found_in_padded_prioritized_and_continued_header_blocks() {
        const BLOCK: &[u8] = b"\x83\x86\x41\x05a|b|c\x84";
        const EXPECTED: &[u8] = b"\x83\x86\x41\x05XXXXX\x84";
        // The padding looks like an authority too, and so does the priority.
        let priority = b"\x41\x03\x7c\x7c\x7c";
        let continued = |block: &[u8]| {
            let mut continued = frame(CONTINUATION, END_HEADERS, block.len() - 6);
            continued[HEAD_BYTES..].copy_from_slice(&block[6..]);
            [headers(0, b"", &block[..6], 0), continued].concat()
        };
        for sent in [
            |block: &[u8]| headers(END_HEADERS, b"", block, 0),
            |block: &[u8]| headers(END_HEADERS | PADDED, b"\x03", block, 3),
        ] {
            check(&sent(BLOCK), &sent(EXPECTED));
        }
        let sent = |block: &[u8]| headers(END_HEADERS | PRIORITY, priority, block, 0);
        check(&sent(BLOCK), &sent(EXPECTED));
        let sent =
            |block: &[u8]| headers(END_HEADERS | PRIORITY | PADDED, &[b"\x07", &priority[..]].concat(), block, 7);
        check(&sent(BLOCK), &sent(EXPECTED));
        check(&continued(BLOCK), &continued(EXPECTED));
        // More padding than payload: h2 ends such a connection.
        let broken = headers(END_HEADERS | PADDED, b"\xff", BLOCK, 0);
        check(&broken, &broken);
        // Data are not a header block.
        let mut data = frame(DATA, 1, BLOCK.len());
        data[HEAD_BYTES..].copy_from_slice(BLOCK);
        check(&data, &data);
    }

    fn check(sent: &[u8], expected: &[u8]) {
        for size in 1..=sent.len() {
            let (mut meter, mut read) = (open(), sent.to_vec());
            read.chunks_mut(size).for_each(|part| meter.count(part, 0, 0).unwrap());
            assert_eq!(read, expected, "in parts of {size}");
        }
    }

    #[test]
    fn headers_without_an_end_are_detected() {
        let mut meter = open();
        meter.count(&mut frame(HEADERS, 0, 10), 0, 0).unwrap();
        assert!(meter.is_in_header_block());
        meter.count(&mut frame(CONTINUATION, 0, 10), 0, 0).unwrap();
        assert!(meter.is_in_header_block());
        meter.count(&mut frame(CONTINUATION, END_HEADERS, 10), 0, 0).unwrap();
        assert!(!meter.is_in_header_block());
    }

    /// How many of these frames a connection may send in a tick with this many answers.
    fn most(frame: &[u8], answers: u32) -> u32 {
        let mut meter = open();
        meter.count(&mut [], 1, 0).unwrap();
        (0..).find(|_| meter.count(&mut frame.to_vec(), 1, answers).is_err()).unwrap()
    }

    #[test]
    fn each_kind_has_its_bound_and_answers_add_to_it() {
        for kind in [2, SETTINGS, PING, 8, 9, 77] {
            assert_eq!(most(&frame(kind, 0, 4), 0), IDLE_FRAMES_MAX, "type {kind}");
            assert_eq!(most(&frame(kind, 0, 4), 1_000), IDLE_FRAMES_MAX + 1_000 * FRAMES_PER_ANSWER, "type {kind}");
        }
        for (kind, payload) in [(HEADERS, 20), (RST_STREAM, 4), (DATA, 0), (DATA, TINY_DATA_BYTES - 1)] {
            assert_eq!(most(&frame(kind, 0, payload), 0), REQUEST_FRAMES_MIN, "type {kind}");
            assert_eq!(most(&frame(kind, 0, payload), 2), REQUEST_FRAMES_MIN + 2 * FRAMES_PER_ANSWER, "type {kind}");
        }
    }

    #[test]
    fn all_requests_that_may_be_in_flight_may_be_sent_at_once_and_given_up() {
        const STREAMS: u32 = 100_000;
        let mut meter = Meter::new(STREAMS);
        meter.count(&mut PREFACE.to_vec(), 0, 0).unwrap();
        for kind in [HEADERS, DATA, DATA, RST_STREAM] {
            for _ in 0..STREAMS {
                meter.count(&mut frame(kind, 0, 4), 0, 0).unwrap();
            }
        }
        assert!(meter.count(&mut frame(RST_STREAM, 0, 4), 0, 0).is_err());
    }

    #[test]
    fn a_peer_whose_requests_were_answered_may_give_up_more_of_them() {
        let reset = frame(RST_STREAM, 0, 4);
        for (answers, most) in [
            (1, REQUEST_FRAMES_MIN + FRAMES_PER_ANSWER),
            (100, REQUEST_FRAMES_MIN + 100 * FRAMES_PER_ANSWER),
            (1_000_000, REQUEST_FRAMES_MAX),
        ] {
            let mut meter = open();
            // Half of them are answered in their own tick, whose first frames come later.
            meter.count(&mut [], 1, answers / 2).unwrap();
            meter.count(&mut [], 2, answers).unwrap();
            for tick in 3..6 {
                for n in 0..most {
                    assert!(meter.count(&mut reset.clone(), tick, answers).is_ok(), "{n} after {answers}");
                }
            }
            assert!(meter.count(&mut reset.clone(), 5, answers).is_err(), "{answers}");
        }
    }

    #[test]
    fn unanswered_requests_are_told_from_answered_ones() {
        let mut meter = open();
        for n in 1..=UNANSWERED_FRAMES_MAX {
            assert!(meter.is_mostly_answered(0), "{n}");
            meter.count(&mut frame(HEADERS, END_HEADERS, 10), 0, 0).unwrap();
        }
        assert!(meter.is_mostly_answered(0));
        meter.count(&mut frame(RST_STREAM, 0, 4), 0, 0).unwrap();
        assert!(!meter.is_mostly_answered(0));
        assert!(meter.is_mostly_answered(1));
        meter.count(&mut [], 1, 0).unwrap();
        assert!(meter.is_mostly_answered(0), "in the next tick");
    }

    /// A peer gains only the answered requests if it pauses, or lets some be answered.
    #[test]
    fn a_peer_that_gives_up_most_of_its_requests_for_long_is_stopped_although_some_are_answered() {
        let reset = frame(RST_STREAM, 0, 4);
        // In the first of `every` ticks the peer cancels this many requests, and this many are answered.
        let closed_in = |resets: u32, answered: u32, every: u32| {
            let mut meter = open();
            meter.count(&mut [], 1, 10_000).unwrap();
            (1..40_u32).find(|round| {
                let (tick, answers) = (1 + round * every, 10_000 + (round - 1) * answered);
                meter.count(&mut [], tick, answers).unwrap();
                (0..resets).any(|_| meter.count(&mut reset.clone(), tick, answers + answered).is_err())
            })
        };
        for (resets, answered, every) in [(8_000, 0, 1), (8_000, 1_000, 1), (8_000, 0, 3)] {
            let excess_of_round = resets - answered - every * GIVEN_UP_PER_TICK;
            let round = 2 + (GIVEN_UP_MAX + answered - resets) / excess_of_round;
            assert_eq!(closed_in(resets, answered, every), Some(round), "{answered} answered, every {every} ticks");
        }
        assert_eq!(closed_in(GIVEN_UP_PER_TICK, 0, 1), None, "few");
        assert_eq!(closed_in(8_000, 8_000, 1), None, "as many are answered");
    }

    #[test]
    fn data_that_is_part_of_a_request_has_no_bound() {
        let mut meter = open();
        for _ in 0..=2 * REQUEST_FRAMES_MAX {
            meter.count(&mut frame(DATA, 0, TINY_DATA_BYTES), 0, 0).unwrap();
            meter.count(&mut frame(DATA, END_STREAM, 5), 0, 0).unwrap();
        }
    }

    #[test]
    fn each_tick_begins_anew() {
        let mut meter = open();
        let ping = frame(PING, 0, 8);
        for tick in 1..4 {
            for _ in 0..IDLE_FRAMES_MAX {
                meter.count(&mut ping.clone(), tick, 0).unwrap();
            }
        }
        assert_eq!(meter.count(&mut ping.clone(), 3, 0), Err(TooManyFrames));
        // Answers of an earlier tick add nothing to a later one.
        let mut meter = open();
        meter.count(&mut [], 1, 1_000).unwrap();
        for _ in 0..IDLE_FRAMES_MAX {
            meter.count(&mut ping.clone(), 1, 1_000).unwrap();
        }
        assert_eq!(meter.count(&mut ping.clone(), 1, 1_000), Err(TooManyFrames));
    }
}
