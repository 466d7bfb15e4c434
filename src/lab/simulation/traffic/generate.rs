//! Requests of sources, in the order of their times.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use weir_engine::Micros;
use weir_policies::test_file::CALLER;
use weir_policies::traffic_file::{Source, Sources};

use super::Request;
use super::arrivals::Times;
use super::random::Random;
use crate::message::message;

const NANOS: u64 = 1_000;

pub(super) struct Generator {
    start: Micros,
    sources: Vec<Sending>,
    /// The next time of each source, in nanoseconds since the start, and its index.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    expected: u64,
}

struct Sending {
    times: Times,
    random: Random,
    lengths: Random,
    lasts: Option<(Micros, Micros)>,
    hits: Random,
    used: Option<(u32, u32)>,
    keys: u32,
    request: Request,
    places: Vec<NumberedText>,
}

/// A key or a value that contains the number of the key.
struct NumberedText {
    descriptor: usize,
    entry: usize,
    part: KeyOrValue,
    pieces: Vec<String>,
}

#[derive(Clone, Copy)]
enum KeyOrValue {
    Key,
    Value,
}

impl Generator {
    pub(super) fn new(traffic: &Sources) -> Self {
        let mut sources = Vec::with_capacity(traffic.sources.len());
        let mut next = BinaryHeap::with_capacity(traffic.sources.len());
        for (source, number) in traffic.sources.iter().zip(0_u64..) {
            // Four streams, so that times, keys, lengths and hits of a source do not depend on each other.
            let mut times = Times::new(source, Random::new(traffic.seed, 2 * number));
            if let Some(first) = times.next() {
                next.push(Reverse((first, sources.len())));
            }
            let keys = Random::new(traffic.seed, 2 * number + 1);
            let lengths = Random::new(traffic.seed, u64::MAX - number);
            let hits = Random::new(traffic.seed, u64::MAX / 2 - number);
            sources.push(Sending::new(source, times, [keys, lengths, hits]));
        }
        let expected = traffic.sources.iter().map(expected).fold(0, u64::saturating_add);
        Self { start: traffic.start, sources, next, expected }
    }

    pub(super) fn start(&self) -> Micros {
        self.start
    }

    /// The approximate number of requests.
    pub(super) fn expected(&self) -> u64 {
        self.expected
    }

    pub(super) fn next(&mut self) -> Option<&Request> {
        let mut head = self.next.peek_mut()?;
        let Reverse((time, number)) = *head;
        let source = &mut self.sources[number];
        match source.times.next() {
            Some(next) => *head = Reverse((next, number)),
            None => drop(PeekMut::pop(head)),
        }
        source.fill();
        source.request.time = self.start + time / NANOS;
        let lengths = &mut source.lengths;
        source.request.lasts = source.lasts.map(|(least, most)| least + lengths.up_to(most - least));
        let hits = &mut source.hits;
        let used = source.used.map(|(least, most)| u64::from(least) + hits.up_to(u64::from(most - least)));
        source.request.used = used.and_then(|used| u32::try_from(used).ok());
        Some(&source.request)
    }
}

/// The approximate number of requests of a source.
fn expected(source: &Source) -> u64 {
    let all = u128::from(source.until - source.from) * u128::from(source.requests) / u128::from(source.period);
    u64::try_from(all).unwrap_or(u64::MAX)
}

impl Sending {
    fn new(source: &Source, times: Times, [random, lengths, hits]: [Random; 3]) -> Self {
        let mut places = Vec::new();
        for (descriptor, asked) in source.descriptors.iter().enumerate() {
            for (entry, (key, value)) in asked.entries.iter().enumerate() {
                for (part, text) in [(KeyOrValue::Key, key), (KeyOrValue::Value, value)] {
                    if text.contains(CALLER) {
                        let pieces = text.split(CALLER).map(str::to_owned).collect();
                        places.push(NumberedText { descriptor, entry, part, pieces });
                    }
                }
            }
        }
        let message = message(&source.domain, &source.descriptors, source.hits);
        let Source { keys, lasts, used, .. } = *source;
        Self { times, random, lengths, lasts, hits, used, keys, request: Request::of(message), places }
    }

    /// Writes the number of a key into the request.
    fn fill(&mut self) {
        if self.places.is_empty() {
            return;
        }
        let number = 1 + self.random.below(self.keys);
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number);
        for place in &self.places {
            let entry = &mut self.request.message.descriptors[place.descriptor].entries[place.entry];
            let text = match place.part {
                KeyOrValue::Key => &mut entry.key,
                KeyOrValue::Value => &mut entry.value,
            };
            text.clear();
            for (i, piece) in place.pieces.iter().enumerate() {
                if i > 0 {
                    text.push_str(digits);
                }
                text.push_str(piece);
            }
        }
    }
}
