//! What weir ends by itself: connections, and requests that HTTP/2 resets before they are decided. Each is counted by its reason,
//! and logged now and then.
//!
//! h2 reports a request that it resets to nobody, so the frames that it writes are read here. They also show which requests were
//! answered. Not here: when a connection is closed (peers.rs, frames.rs).

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How often one reason is logged.
const LOG_EVERY: Duration = Duration::from_secs(10);
const HEAD_BYTES: usize = 9;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 0x1;

/// Why weir closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Too many frames without requests, or of requests that were given up.
    Frames,
    /// No handshake in time, or too many others.
    Handshake,
    /// The headers of a request did not end in time.
    Headers,
    /// A response was not taken in time.
    Unread,
    /// It held too much and made no progress.
    Held,
    /// It was idle, and the listener was full.
    Idle,
    /// It had completed no request, and too many others had not either.
    Unused,
    /// Its peer broke the rules of HTTP/2.
    Protocol,
}

impl CloseReason {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Frames,
        Self::Handshake,
        Self::Headers,
        Self::Unread,
        Self::Held,
        Self::Idle,
        Self::Unused,
        Self::Protocol,
    ];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Handshake => "handshake",
            Self::Headers => "headers",
            Self::Unread => "unread",
            Self::Held => "held",
            Self::Idle => "idle",
            Self::Unused => "unused",
            Self::Protocol => "protocol",
        }
    }
}

/// The error codes of HTTP/2 (RFC 9113, section 7), and one for all others.
pub const CODES: [&str; 15] = [
    "no_error",
    "protocol_error",
    "internal_error",
    "flow_control_error",
    "settings_timeout",
    "stream_closed",
    "frame_size_error",
    "refused_stream",
    "cancel",
    "compression_error",
    "connect_error",
    "enhance_your_calm",
    "inadequate_security",
    "http_1_1_required",
    "other",
];
/// The codes that say nothing about a fault: the rest of a request is not needed, or nobody waits for its response.
const HARMLESS: [usize; 2] = [0, 8];

/// The counts of all runtimes.
#[derive(Debug, Default)]
pub(super) struct Ended {
    closed: [AtomicU64; CloseReason::ALL.len()],
    reset: [AtomicU64; CODES.len()],
    /// When each reason, and at last a reset, was logged.
    logged: Mutex<[Option<Instant>; CloseReason::ALL.len() + 1]>,
}

impl Ended {
    /// Connections that were closed for this reason.
    pub(super) fn closed(&self, reason: CloseReason) -> u64 {
        self.closed[reason as usize].load(Relaxed)
    }

    /// Requests that were reset with this code.
    pub(super) fn reset(&self, code: usize) -> u64 {
        self.reset[code].load(Relaxed)
    }

    /// Counts a connection that is closed.
    pub(super) fn count_closed(&self, reason: CloseReason, peer: Option<IpAddr>) {
        let closed = self.closed[reason as usize].fetch_add(1, Relaxed) + 1;
        if self.is_due(reason as usize) {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(listener = "grpc", reason = reason.name(), peer, closed, "closed a connection");
        }
    }

    /// Counts a request that is reset with this code of HTTP/2.
    fn count_reset(&self, code: u32, peer: Option<IpAddr>) {
        let code = usize::try_from(code).unwrap_or(usize::MAX).min(CODES.len() - 1);
        let reset = self.reset[code].fetch_add(1, Relaxed) + 1;
        if !HARMLESS.contains(&code) && self.is_due(CloseReason::ALL.len()) {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(
                listener = "grpc",
                code = CODES[code],
                peer,
                reset,
                "HTTP/2 reset a request before it was decided"
            );
        }
    }

    fn is_due(&self, what: usize) -> bool {
        let (mut logged, now) = (self.logged.lock(), Instant::now());
        let is_due = logged[what].is_none_or(|last| now.duration_since(last) >= LOG_EVERY);
        if is_due {
            logged[what] = Some(now);
        }
        is_due
    }
}

/// Reads the frames that HTTP/2 writes on one connection, as far as they end a request or the connection.
#[derive(Debug, Default)]
pub(super) struct Written {
    /// Bytes of a payload that are still to come.
    skip: usize,
    head: [u8; HEAD_BYTES],
    head_bytes: usize,
    /// The type of the frame whose error code is to come.
    ending: Option<u8>,
    /// Bytes of the payload up to the end of the code.
    before_code_end: usize,
    code: u32,
}

impl Written {
    /// Takes bytes as they were written. Returns how many responses end in them: a response that is made after its caller
    /// has given up is not written, and is no answer.
    pub(super) fn observe(&mut self, mut bytes: &[u8], ended: &Ended, peer: Option<IpAddr>) -> u32 {
        let mut answers = 0;
        // Nearly always whole frames are written that end nothing.
        if self.skip == 0 && self.head_bytes == 0 && self.ending.is_none() {
            while let Some((&[a, b, c, kind, flags, ..], payload)) = bytes.split_first_chunk::<HEAD_BYTES>()
                && kind != RST_STREAM
                && kind != GOAWAY
                && let Some(next) = payload.get(u32::from_be_bytes([0, a, b, c]) as usize..)
            {
                bytes = next;
                answers += ends_response(kind, flags);
            }
        }
        if !bytes.is_empty() {
            answers += self.observe_parts(bytes, ended, peer);
        }
        answers
    }

    /// The same for frames that are written in parts, and for those that end something.
    fn observe_parts(&mut self, mut bytes: &[u8], ended: &Ended, peer: Option<IpAddr>) -> u32 {
        let mut answers = 0;
        while let Some((&first, rest)) = bytes.split_first() {
            if let Some(kind) = self.ending {
                // The code has the last four of these bytes.
                self.code = self.code << 8 | u32::from(first);
                self.before_code_end -= 1;
                bytes = rest;
                if self.before_code_end == 0 {
                    self.ending = None;
                    match kind {
                        RST_STREAM => ended.count_reset(self.code, peer),
                        _ if self.code != 0 => ended.count_closed(CloseReason::Protocol, peer),
                        _ => {}
                    }
                }
            } else if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
            } else if self.head_bytes == 0
                && let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>()
            {
                answers += self.frame(head);
                bytes = rest;
            } else {
                self.head[self.head_bytes] = first;
                self.head_bytes = (self.head_bytes + 1) % HEAD_BYTES;
                bytes = rest;
                if self.head_bytes == 0 {
                    let head = self.head;
                    answers += self.frame(&head);
                }
            }
        }
        answers
    }

    /// The header of a frame is complete.
    fn frame(&mut self, &[a, b, c, kind, flags, ..]: &[u8; HEAD_BYTES]) -> u32 {
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let before_code_end = match kind {
            RST_STREAM => 4,
            GOAWAY => 8,
            _ => {
                self.skip = length;
                return ends_response(kind, flags);
            }
        };
        self.ending = Some(kind);
        self.before_code_end = before_code_end;
        self.skip = length.saturating_sub(before_code_end);
        0
    }
}

/// One if a frame ends a response, which the last headers of gRPC do.
fn ends_response(kind: u8, flags: u8) -> u32 {
    u32::from(kind == HEADERS && flags & END_STREAM != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn what_ends_requests_and_connections_is_counted_however_it_is_cut() {
        let mut last_headers = frame(HEADERS, &[0xbe]);
        last_headers[4] = END_STREAM;
        let written = [
            frame(4, &[0; 18]),
            frame(RST_STREAM, &1_u32.to_be_bytes()),
            frame(0, &[RST_STREAM; 300]),
            frame(RST_STREAM, &8_u32.to_be_bytes()),
            frame(RST_STREAM, &4_000_000_000_u32.to_be_bytes()),
            frame(GOAWAY, b"\0\0\0\x05\0\0\0\0"),
            frame(GOAWAY, b"\0\0\0\x05\0\0\0\x0btoo_many"),
            frame(RST_STREAM, &1_u32.to_be_bytes()),
            // A response: headers, data, and the headers that end it; and data that look like these.
            frame(HEADERS, &[0x88]),
            frame(0, &[0, 0, 0, HEADERS, END_STREAM, 0, 0, 0, 1]),
            last_headers,
        ]
        .concat();
        for size in 1..=written.len() {
            let (ended, mut frames) = (Ended::default(), Written::default());
            let answers: u32 = written.chunks(size).map(|part| frames.observe(part, &ended, None)).sum();
            assert_eq!(answers, 1, "in parts of {size}");
            let reset: Vec<u64> = (0..CODES.len()).map(|code| ended.reset(code)).collect();
            assert_eq!(reset, [0, 2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1], "in parts of {size}");
            assert_eq!(CloseReason::ALL.map(|reason| ended.closed(reason)), [0, 0, 0, 0, 0, 0, 0, 1]);
        }
    }

    #[test]
    fn reasons_are_in_the_order_of_their_numbers() {
        for (i, reason) in CloseReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i, "{reason:?}");
        }
    }
}
