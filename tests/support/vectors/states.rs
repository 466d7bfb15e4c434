//! How vectors write states, and what a state shows: worked out apart from the engine. Not in here: everything else that
//! a vector says (vectors.rs).

use weir_engine::algorithm::Summary;
use weir_engine::algorithm::anchored_window::{self, ObservedWindow};
use weir_engine::algorithm::fixed_window::{Counter, WINDOW_NUMBERS};
use weir_engine::algorithm::gcra::Debt;
use weir_engine::algorithm::sliding_window::Buckets;
use weir_engine::algorithm::sliding_window_counter::WindowCounts;
use weir_engine::algorithm::sliding_window_log::{Log, LogEntry};
use weir_engine::algorithm::token_bucket::Bucket;
use weir_engine::descriptor::saturated;
use weir_engine::{Algorithm, Anchor, Count, Limit, Micros, Observed, Refill, State};

use super::super::algorithms::sub_bucket;
use super::{Vector, number};

/// Nothing counts.
const NOTHING: Summary = Summary { used: 0, fits_at: 0, empty_at: 0, mark: 0 };

impl Vector {
    /// What a state shows, to a charge of so many hits.
    pub(super) fn shown(&self, limit: &Limit, state: Option<&State>, hits: u32, now: Micros) -> Observed {
        let window_us = limit.window().us();
        match (limit.algorithm(), state) {
            (_, Some(State::FixedWindow(counter))) => Observed::FixedWindow(*counter),
            (_, Some(State::SlidingWindowCounter(counts))) => Observed::SlidingWindowCounter(*counts),
            (_, Some(State::Pacing(debt))) => Observed::Pacing(*debt),
            (_, Some(State::TokenBucket(bucket))) => Observed::TokenBucket(*bucket),
            (_, Some(State::AnchoredWindow(anchored_window::StoredWindow { start, count }))) => {
                let (start, count) = (*start, *count);
                let end = self.bounds(limit, start).map_or(start + window_us, |bounds| bounds[2]);
                Observed::AnchoredWindow(ObservedWindow { start, end, count })
            }
            (_, Some(State::SlidingWindow(state))) => {
                let precision = length_of(limit);
                let last = state.newest().map_or(0, |number| number * precision);
                let at = now.max(last);
                // A bucket counts as long as its last instant lies in the window that ends with now.
                let live = state.iter().filter(|(number, _)| number * precision + precision - 1 > at - window_us);
                let hits_of = live.map(|(number, count)| (number, number * precision + precision - 1, count));
                Observed::Summary(summary(limit, hits_of, hits))
            }
            (_, Some(State::SlidingWindowLog(log))) => {
                let at = now.max(log.entries.back().map_or(0, |entry| entry.at));
                let mut before = log.base;
                let mut live = Vec::new();
                for entry in &log.entries {
                    if entry.at > at - window_us {
                        live.push((entry.sum, entry.at, u32::try_from(entry.sum - before).expect("hits of one entry")));
                    }
                    before = entry.sum;
                }
                Observed::Summary(summary(limit, live.into_iter(), hits))
            }
            (Algorithm::FixedWindow { anchor: Anchor::Clock }, _) => {
                Observed::FixedWindow(Counter { window: window_number(limit, now, 0), count: 0 })
            }
            (Algorithm::FixedWindow { .. }, _) => {
                let (start, end) = self.bounds(limit, now).map_or((now, now), |bounds| (bounds[1], bounds[2]));
                Observed::AnchoredWindow(ObservedWindow { start, end, count: 0 })
            }
            (Algorithm::SlidingWindowCounter, _) => Observed::SlidingWindowCounter(WindowCounts {
                start: now / window_us * window_us,
                previous: 0,
                count: 0,
            }),
            (Algorithm::SlidingWindow { .. } | Algorithm::SlidingWindowLog | Algorithm::Concurrency, _) => {
                Observed::Summary(NOTHING)
            }
            (Algorithm::TokenBucket { refill: Refill::Interval, .. }, _) => {
                Observed::TokenBucket(Bucket { anchor: now, used: 0 })
            }
            (Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } | Algorithm::Gcra { .. }, _) => {
                Observed::Pacing(Debt { tat: now, fraction: 0, requests: saturated(limit.requests()) })
            }
        }
    }

    /// A window's or a bucket's number, counted from the base.
    fn number(&self, length_us: Micros, number: u64) -> i128 {
        i128::from(number) - i128::from(self.base / length_us)
    }

    pub(super) fn write_mark(&self, limit: &Limit, mark: u64) -> String {
        match limit.algorithm() {
            Algorithm::FixedWindow { anchor: Anchor::Clock } => format!("#{}", self.near(limit, mark)),
            Algorithm::SlidingWindow { .. } | Algorithm::Concurrency => {
                format!("#{}", self.number(length_of(limit), mark))
            }
            Algorithm::SlidingWindowLog => mark.to_string(),
            _ => self.time(mark),
        }
    }

    /// The number from the base of the fixed window that is stored by this one.
    fn near(&self, limit: &Limit, window: u64) -> i128 {
        let base = (self.base / limit.window().us()) % WINDOW_NUMBERS;
        let ahead = (window + WINDOW_NUMBERS - base) % WINDOW_NUMBERS;
        if ahead > WINDOW_NUMBERS / 2 { i128::from(ahead) - i128::from(WINDOW_NUMBERS) } else { i128::from(ahead) }
    }

    pub(super) fn write_state(&self, limit: &Limit, state: &State) -> String {
        match state {
            State::FixedWindow(counter) => self.write_seen(limit, &Observed::FixedWindow(*counter)),
            State::AnchoredWindow(window) => format!("{}@{}", window.count, self.time(window.start)),
            State::SlidingWindowCounter(counts) => self.write_seen(limit, &Observed::SlidingWindowCounter(*counts)),
            State::SlidingWindow(state) => {
                let text = |(number, count)| format!("{count}@#{}", self.number(length_of(limit), number));
                state.iter().map(text).collect::<Vec<_>>().join("/")
            }
            State::SlidingWindowLog(log) => {
                let text = |i| format!("{}@{}", log.hits(i), self.time(log.entries[i].at));
                let entries = (0..log.entries.len()).map(text).collect::<Vec<_>>().join("/");
                if log.base > 0 { format!("{}|{entries}", log.base) } else { entries }
            }
            State::Pacing(debt) => self.write_seen(limit, &Observed::Pacing(*debt)),
            State::TokenBucket(bucket) => self.write_seen(limit, &Observed::TokenBucket(*bucket)),
        }
    }

    pub(super) fn write_seen(&self, limit: &Limit, seen: &Observed) -> String {
        match seen {
            Observed::FixedWindow(counter) => {
                format!("#{}:{}", self.near(limit, u64::from(counter.window)), counter.count)
            }
            Observed::AnchoredWindow(ObservedWindow { start, end, count }) => {
                format!("{count}@{}..{}", self.time(*start), self.time(*end))
            }
            Observed::SlidingWindowCounter(WindowCounts { start, previous, count }) => {
                let window_us = limit.window().us();
                format!("#{}:{previous}+{count}", self.number(window_us, start / window_us))
            }
            Observed::Summary(Summary { used, fits_at, empty_at, mark }) => {
                let time = |at: Micros| if at == 0 { "-".to_owned() } else { self.time(at) };
                let mark = if *used == 0 { "-".to_owned() } else { self.write_mark(limit, *mark) };
                format!("{used}~{}~{}~{mark}", time(*empty_at), time(*fits_at))
            }
            Observed::Pacing(debt) => format!("@{}~{}/{}", self.time(debt.tat), debt.fraction, debt.requests),
            Observed::TokenBucket(bucket) => format!("{}@{}", bucket.used, self.time(bucket.anchor)),
        }
    }
}

/// What a limit shows of hits that count: each with its part of the state, its last instant and its number.
fn summary(limit: &Limit, live: impl Iterator<Item = (u64, Micros, u32)>, asked: u32) -> Summary {
    let live: Vec<_> = live.collect();
    let used: u64 = live.iter().map(|(_, _, hits)| u64::from(*hits)).sum();
    let Some(&(mark, newest, _)) = live.last() else {
        return NOTHING;
    };
    let mut fits_at = 0;
    if asked > 0 && Count::from(asked) <= limit.requests() {
        // Hits leave one part after the other, until there is room.
        let mut left = used;
        for (_, at, hits) in &live {
            if left + u64::from(asked) > limit.requests() {
                left -= u64::from(*hits);
                fits_at = at + limit.window().us();
            }
        }
    }
    Summary { used, fits_at, empty_at: newest + limit.window().us(), mark }
}

/// The length of the sub-buckets of a limit that has some.
fn length_of(limit: &Limit) -> Micros {
    sub_bucket(limit).unwrap_or_else(|| unreachable!("{limit:?}"))
}

/// The newest part of a state as shown, which a receipt is for.
pub(super) fn mark(seen: &Observed) -> u64 {
    match seen {
        Observed::FixedWindow(counter) => u64::from(counter.window),
        Observed::AnchoredWindow(window) => window.start,
        Observed::SlidingWindowCounter(counts) => counts.start,
        Observed::Summary(summary) => summary.mark,
        Observed::Pacing(_) => 0,
        Observed::TokenBucket(bucket) => bucket.anchor,
    }
}

/// The number, as stored, of the window that lies `after` windows after `now`'s.
fn window_number(limit: &Limit, now: Micros, after: i128) -> u32 {
    let number = i128::from(now / limit.window().us()) + after;
    u32::try_from(number.rem_euclid(i128::from(WINDOW_NUMBERS))).expect("2^21 fits")
}

/// A number counted from the base, written `#<number>`.
fn numbered(vector: &Vector, length_us: Micros, text: &str) -> Result<u64, String> {
    let from_base: i128 = number(text.strip_prefix('#').ok_or_else(|| format!("{text:?} is no #number"))?)?;
    let number = i128::from(vector.base / length_us) + from_base;
    u64::try_from(number).map_err(|_| format!("{text:?} lies before the epoch"))
}

pub(super) fn mark_of(vector: &Vector, limit: &Limit, text: &str) -> Result<u64, String> {
    let window_us = limit.window().us();
    match limit.algorithm() {
        Algorithm::FixedWindow { anchor: Anchor::Clock } => Ok(numbered(vector, window_us, text)? % WINDOW_NUMBERS),
        Algorithm::SlidingWindow { .. } | Algorithm::Concurrency => numbered(vector, length_of(limit), text),
        Algorithm::SlidingWindowLog => number(text),
        _ => vector.at(text),
    }
}

/// `<hits>@<where>`
fn placed<N: std::str::FromStr>(text: &str) -> Result<(N, &str), String> {
    let (hits, place) = text.split_once('@').ok_or_else(|| format!("{text:?} has no @"))?;
    Ok((number(hits)?, place))
}

pub(super) fn state(vector: &Vector, limit: &Limit, text: &str) -> Result<State, String> {
    let wrong = |why: String| format!("{text:?} is no state of {}: {why}", limit.algorithm().name());
    let read = || -> Result<State, String> {
        Ok(match limit.algorithm() {
            Algorithm::FixedWindow { anchor: Anchor::FirstHit | Anchor::Calendar(_) } => {
                let (count, start) = placed(text)?;
                State::AnchoredWindow(anchored_window::StoredWindow { start: vector.at(start)?, count })
            }
            Algorithm::SlidingWindow { .. } | Algorithm::Concurrency => {
                let mut buckets = Vec::new();
                for part in text.split('/') {
                    let (count, bucket) = placed(part)?;
                    buckets.push((numbered(vector, length_of(limit), bucket)?, count));
                }
                State::SlidingWindow(Buckets::from_iter(buckets))
            }
            Algorithm::SlidingWindowLog => {
                let (base, entries) = text.split_once('|').unwrap_or(("0", text));
                let mut log = Log { base: number(base)?, ..Log::default() };
                let mut sum = log.base;
                for part in entries.split('/') {
                    let (hits, time) = placed::<u64>(part)?;
                    sum += hits;
                    log.entries.push_back(LogEntry { at: vector.at(time)?, sum });
                }
                State::SlidingWindowLog(Box::new(log))
            }
            _ => match seen(vector, limit, text)? {
                Observed::FixedWindow(counter) => State::FixedWindow(counter),
                Observed::SlidingWindowCounter(counts) => State::SlidingWindowCounter(counts),
                Observed::Pacing(debt) => State::Pacing(debt),
                Observed::TokenBucket(bucket) => State::TokenBucket(bucket),
                other => return Err(format!("{other:?} is not stored")),
            },
        })
    };
    read().map_err(wrong)
}

pub(super) fn seen(vector: &Vector, limit: &Limit, text: &str) -> Result<Observed, String> {
    let window_us = limit.window().us();
    let cut = |mark: char| text.split_once(mark).ok_or_else(|| format!("{text:?} has no {mark}"));
    Ok(match limit.algorithm() {
        Algorithm::FixedWindow { anchor: Anchor::Clock } => {
            let (window, count) = cut(':')?;
            let window = mark_of(vector, limit, window)?;
            let window = u32::try_from(window).map_err(|error| error.to_string())?;
            Observed::FixedWindow(Counter { window, count: number(count)? })
        }
        Algorithm::FixedWindow { .. } => {
            let (count, place) = placed(text)?;
            let (start, end) = place.split_once("..").ok_or_else(|| format!("{text:?} has no end"))?;
            Observed::AnchoredWindow(ObservedWindow { start: vector.at(start)?, end: vector.at(end)?, count })
        }
        Algorithm::SlidingWindowCounter => {
            let (window, counts) = cut(':')?;
            let (previous, count) = counts.split_once('+').ok_or_else(|| format!("{text:?} has no +"))?;
            let start = numbered(vector, window_us, window)? * window_us;
            Observed::SlidingWindowCounter(WindowCounts { start, previous: number(previous)?, count: number(count)? })
        }
        Algorithm::SlidingWindow { .. } | Algorithm::SlidingWindowLog | Algorithm::Concurrency => {
            let parts: Vec<&str> = text.split('~').collect();
            let [used, empty_at, fits_at, mark] = parts[..] else { return Err(format!("{text:?} has not four parts")) };
            let time = |text: &str| if text == "-" { Ok(0) } else { vector.at(text) };
            let mark = if mark == "-" { 0 } else { mark_of(vector, limit, mark)? };
            Observed::Summary(Summary { used: number(used)?, fits_at: time(fits_at)?, empty_at: time(empty_at)?, mark })
        }
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => {
            let (used, anchor) = placed(text)?;
            Observed::TokenBucket(Bucket { anchor: vector.at(anchor)?, used })
        }
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } | Algorithm::Gcra { .. } => {
            let (tat, part) = cut('~')?;
            let (fraction, requests) = part.split_once('/').ok_or_else(|| format!("{text:?} has no /"))?;
            let tat = vector.at(tat.strip_prefix('@').ok_or_else(|| format!("{text:?} has no @"))?)?;
            Observed::Pacing(Debt { tat, fraction: number(fraction)?, requests: number(requests)? })
        }
    })
}
