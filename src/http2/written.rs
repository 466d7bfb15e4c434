//! Reads the frames that HTTP/2 writes, to detect which requests are answered, and which ones it resets.
//!
//! h2 does not report these resets. Not here: the counts (ended.rs, memory.rs).

use super::ended::CloseReason;
use super::memory::Peer;

const HEAD_BYTES: usize = 9;
/// Of GOAWAY: the header, the last stream and the error code.
const BEGUN_MAX: usize = HEAD_BYTES + 8;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 0x1;

#[derive(Debug, Default)]
pub(super) struct Written {
    /// The remaining bytes of a payload.
    skip: usize,
    /// The beginning of a frame: its header, and its payload up to the end of an error code.
    begun: [u8; BEGUN_MAX],
    /// How many bytes of it have been written.
    begun_bytes: usize,
}

impl Written {
    /// Processes written bytes. Returns how many responses end in them. A response whose caller has cancelled is not
    /// written, and does not count.
    pub(super) fn observe(&mut self, mut bytes: &[u8], peer: &Peer) -> u32 {
        let mut answers = 0;
        // Usually whole frames are written, and none is RST_STREAM or GOAWAY.
        if self.skip == 0 && self.begun_bytes == 0 {
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
            answers += self.observe_parts(bytes, peer);
        }
        answers
    }

    /// As `observe`, for frames that are written in parts, and for RST_STREAM and GOAWAY.
    #[cold]
    fn observe_parts(&mut self, mut bytes: &[u8], peer: &Peer) -> u32 {
        let mut answers = 0;
        while let Some((&first, rest)) = bytes.split_first() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.begun[self.begun_bytes] = first;
            self.begun_bytes += 1;
            bytes = rest;
            let [a, b, c, kind, flags, ..] = self.begun;
            let before_code_end = match kind {
                RST_STREAM => 4,
                GOAWAY => 8,
                _ => 0,
            };
            if self.begun_bytes < HEAD_BYTES || self.begun_bytes < HEAD_BYTES + before_code_end {
                continue;
            }
            let code = self.begun[..self.begun_bytes].last_chunk().map_or(0, |code| u32::from_be_bytes(*code));
            match kind {
                RST_STREAM => peer.count_reset(code),
                GOAWAY if code != 0 => peer.count_closed(CloseReason::Protocol),
                _ => answers += ends_response(kind, flags),
            }
            self.skip = (u32::from_be_bytes([0, a, b, c]) as usize).saturating_sub(before_code_end);
            self.begun_bytes = 0;
        }
        answers
    }
}

/// One if a frame ends a response: gRPC's trailers do.
fn ends_response(kind: u8, flags: u8) -> u32 {
    u32::from(kind == HEADERS && flags & END_STREAM != 0)
}

#[cfg(test)]
mod tests {
    use super::super::ended::CODES;
    use strum::VariantArray as _;

    use super::super::memory::tests::peer;
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn frames_that_end_requests_and_connections_are_counted_however_they_are_cut() {
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
            // A response: headers, data, and trailers; and data that look like these.
            frame(HEADERS, &[0x88]),
            frame(0, &[0, 0, 0, HEADERS, END_STREAM, 0, 0, 0, 1]),
            last_headers,
        ]
        .concat();
        for size in 1..=written.len() {
            let (peer, mut frames) = (peer(), Written::default());
            let answers: u32 = written.chunks(size).map(|part| frames.observe(part, &peer)).sum();
            let ended = peer.core().ended();
            assert_eq!(answers, 1, "in parts of {size}");
            let reset: Vec<u64> = (0..CODES.len()).map(|code| ended.reset(code)).collect();
            assert_eq!(reset, [0, 2, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1], "in parts of {size}");
            let closed = CloseReason::VARIANTS.iter().map(|reason| ended.closed(*reason)).sum::<u64>();
            assert_eq!((closed, ended.closed(CloseReason::Protocol)), (1, 1));
        }
    }
}
