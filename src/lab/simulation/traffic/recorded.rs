//! Recorded requests, sorted by time.
//!
//! Lines may be slightly out of order: a bounded number of requests waits for earlier ones. A line that comes too late
//! is an error, because later requests have already changed the states.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::path::Path;
use std::time::Duration;

use weir_engine::Micros;
use weir_rls::proto::rate_limit_descriptor::Entry;
use weir_rls::proto::{RateLimitDescriptor, RateLimitRequest};
use weir_text::spell;

use super::lines::Lines;
use super::{Request, TrafficError};

/// The most requests that wait for earlier ones.
pub const WAITING_MAX: usize = 16_384;
/// The most bytes of memory for the requests that wait.
pub const WAITING_BYTES_MAX: usize = 64 << 20;

pub(super) trait LineReader: Send {
    /// Reads a line. None if it has no request. The error is the column and the message.
    fn read(&mut self, line: &[u8]) -> Result<Option<Request>, (usize, String)>;

    /// Why an empty file is invalid. None if it is valid.
    fn empty(&self) -> Option<&'static str> {
        None
    }

    fn notes(&self) -> Vec<String>;
}

pub(super) struct Recorded {
    lines: Lines,
    format: Box<dyn LineReader>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    waiting_bytes: usize,
    at_end: bool,
    /// The time of the last returned request.
    last: Micros,
    current: Request,
}

struct Waiting {
    line: u64,
    bytes: usize,
    request: Request,
}

impl Recorded {
    /// Opens a file, and reads until the first request is determined.
    pub(super) fn open(path: &Path, format: Box<dyn LineReader>) -> Result<Self, TrafficError> {
        let lines = Lines::open(path)?;
        let mut recorded = Self {
            lines,
            format,
            waiting: BinaryHeap::new(),
            waiting_bytes: 0,
            at_end: false,
            last: 0,
            current: Request::default(),
        };
        recorded.fill()?;
        match recorded.format.empty() {
            Some(message) if recorded.lines.number() == 0 => Err(recorded.lines.error_at(1, 1, message.to_owned())),
            _ => Ok(recorded),
        }
    }

    pub(super) fn next(&mut self) -> Result<Option<&Request>, TrafficError> {
        self.fill()?;
        let Some(Reverse(first)) = self.waiting.pop() else { return Ok(None) };
        self.waiting_bytes -= first.bytes;
        if first.request.time < self.last {
            let message = format!(
                "its time is {} before that of a request that is decided already: sort the file by time, weir sorts \
                 {WAITING_MAX} lines at most",
                spell(Duration::from_micros(self.last - first.request.time))
            );
            return Err(self.lines.error_at(first.line, 1, message));
        }
        self.last = first.request.time;
        self.current = first.request;
        Ok(Some(&self.current))
    }

    /// Reads until the maximum of waiting requests.
    fn fill(&mut self) -> Result<(), TrafficError> {
        while !self.at_end && self.waiting.len() < WAITING_MAX && self.waiting_bytes < WAITING_BYTES_MAX {
            if !self.lines.advance()? {
                self.at_end = true;
                break;
            }
            let read = self.format.read(self.lines.line());
            let request = read.map_err(|(column, message)| self.lines.error(column, message))?;
            if let Some(request) = request {
                let (line, bytes) = (self.lines.number(), memory(&request.message));
                self.waiting_bytes += bytes;
                self.waiting.push(Reverse(Waiting { line, bytes, request }));
            }
        }
        Ok(())
    }

    pub(super) fn bytes(&self) -> Option<(u64, u64)> {
        self.lines.bytes()
    }

    pub(super) fn notes(&self) -> Vec<String> {
        self.format.notes()
    }
}

/// The size of a message in memory, in bytes.
fn memory(message: &RateLimitRequest) -> usize {
    let entry = |entry: &Entry| size_of::<Entry>() + entry.key.len() + entry.value.len();
    let of_entries = |descriptor: &RateLimitDescriptor| descriptor.entries.iter().map(entry).sum::<usize>();
    let descriptors = message.descriptors.iter().map(|descriptor| size_of_val(descriptor) + of_entries(descriptor));
    size_of::<Waiting>() + message.domain.len() + descriptors.sum::<usize>()
}

impl Waiting {
    /// Requests of one time keep the order of their lines.
    fn place(&self) -> (Micros, u64) {
        (self.request.time, self.line)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}
