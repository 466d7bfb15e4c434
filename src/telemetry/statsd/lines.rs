//! Statistics as lines of StatsD: the growth of counters since the last lines, gauges, and times.
//!
//! Not here: the connection (statsd.rs), and the numbers (statistics.rs).

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;

use regex::{Captures, Regex};
use weir_settings::Mogrifier;

use crate::mapper::expand;
use crate::metrics::families::FamilyKind;
use crate::metrics::{Metrics, RESPONSE_TIME, TimesSeen};
use crate::statistics::StatisticsCursor;

/// How many bytes of packets are made in one go.
const STEP_BYTES: usize = 256 * 1_024;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) text: String,
    pub(super) lines: u64,
}

/// Makes lines. Stores the counters of the last lines.
pub(super) struct Lines {
    /// Whether lines are `name:1|c|#key:value`. Else `name:1|c`, with tags in the name as `.__key=value`.
    is_dogstatsd: bool,
    tags: Vec<(String, String)>,
    /// Replace names, for DogStatsD; the first match counts.
    mogrifiers: Vec<(Regex, Mogrifier)>,
    packet_bytes: usize,
    /// The counters of which lines were made.
    made: HashMap<Box<str>, Made>,
    times: TimesSeen,
    /// How many flushes have begun.
    flushes: u64,
}

/// The value of a counter in its last line, and the last flush that had the counter.
struct Made {
    value: u64,
    flush: u64,
}

/// One flush: the changed statistics in packets, made in steps.
pub(super) struct Flush {
    lines: Lines,
    metrics: Arc<Metrics>,
    cursor: StatisticsCursor,
    packets: VecDeque<Packet>,
    has_ended: bool,
}

impl Lines {
    /// Makes packets of at most `packet_bytes` each, unless a line is longer.
    pub(super) fn new(
        is_dogstatsd: bool,
        mut tags: Vec<(String, String)>,
        mogrifiers: &[Mogrifier],
        packet_bytes: usize,
    ) -> Self {
        tags.sort_unstable();
        // The settings have checked the patterns.
        let compiled = mogrifiers.iter().filter_map(|rule| Some((Regex::new(&rule.pattern).ok()?, rule.clone())));
        let mogrifiers = compiled.collect();
        if !is_dogstatsd {
            // These characters would end the name, or look like a part of it.
            for (_, value) in &mut tags {
                *value = value.replace(['.', ':', '|'], "_");
            }
        }
        let (made, times) = (HashMap::new(), TimesSeen::default());
        Self { is_dogstatsd, tags, mogrifiers, packet_bytes, made, times, flushes: 0 }
    }

    /// Begins a flush.
    pub(super) fn flush(mut self, metrics: Arc<Metrics>) -> Flush {
        self.flushes += 1;
        let (cursor, packets) = (StatisticsCursor::default(), VecDeque::new());
        Flush { lines: self, metrics, cursor, packets, has_ended: false }
    }

    /// By how much a counter has grown since its last line. One that has fallen began again at 0: weir forgot it, and its name
    /// came back.
    fn growth(&mut self, name: &str, value: u64) -> u64 {
        let flush = self.flushes;
        match self.made.get_mut(name) {
            Some(made) => {
                let before = std::mem::replace(made, Made { value, flush }).value;
                value.checked_sub(before).unwrap_or(value)
            }
            None if value == 0 => 0,
            None => {
                self.made.insert(name.into(), Made { value, flush });
                value
            }
        }
    }

    fn line(&self, name: &str, value: &str) -> String {
        let mut line = String::with_capacity(name.len() + value.len() + 16);
        if !self.is_dogstatsd {
            line.push_str(name);
            for (key, tag) in &self.tags {
                // Writing to a string cannot fail.
                let _ = write!(line, ".__{key}={tag}");
            }
            let _ = writeln!(line, ":{value}");
            return line;
        }
        let found = self.mogrifiers.iter().find_map(|(pattern, rule)| Some((rule, pattern.captures(name)?)));
        let filled = |template: &str, captures: &Captures<'_>| {
            expand(template, |c| c.is_ascii_digit(), |number| captures.get(number).map(|part| part.as_str()))
        };
        match &found {
            Some((rule, captures)) => line.push_str(&filled(&rule.name, captures)),
            None => line.push_str(name),
        }
        let _ = write!(line, ":{value}");
        let own = found.iter().flat_map(|(rule, captures)| {
            rule.tags.iter().map(|(key, template)| (key.clone(), filled(template, captures)))
        });
        for (i, (key, tag)) in self.tags.iter().cloned().chain(own).enumerate() {
            let _ = write!(line, "{}{key}:{}", if i == 0 { "|#" } else { "," }, tag.replace(['|', ','], "_"));
        }
        line.push('\n');
        line
    }

    fn add(&self, packets: &mut VecDeque<Packet>, name: &str, value: &str) {
        let line = self.line(name, value);
        match packets.back_mut().filter(|packet| packet.text.len() + line.len() <= self.packet_bytes) {
            Some(packet) => {
                packet.text.push_str(&line);
                packet.lines += 1;
            }
            None => packets.push_back(Packet { text: line, lines: 1 }),
        }
    }
}

impl Flush {
    /// The next packets, about [`STEP_BYTES`] of them. Empty at the end.
    pub(super) fn next(&mut self) -> Vec<Packet> {
        // The last packet is not full, unless it is the last of the flush.
        while !self.has_ended
            && self.packets.iter().rev().skip(1).map(|packet| packet.text.len()).sum::<usize>() < STEP_BYTES
        {
            self.step();
        }
        let complete = if self.has_ended { self.packets.len() } else { self.packets.len() - 1 };
        self.packets.drain(..complete).collect()
    }

    fn step(&mut self) {
        let Self { lines, metrics, cursor, packets, .. } = self;
        let is_more = metrics.statistics().advance(cursor, |name, kind, value| match kind {
            FamilyKind::Counter => match lines.growth(name, value) {
                0 => {}
                growth => lines.add(packets, name, &format!("{growth}|c")),
            },
            _ => lines.add(packets, name, &format!("{value}|g")),
        });
        if is_more {
            return;
        }
        self.has_ended = true;
        let mut times = Vec::new();
        let came = metrics.times_since(&mut lines.times, |us| times.push(us));
        let rate = sample_rate(times.len(), came);
        for us in times {
            let value = match us % 1_000 {
                0 => format!("{}|ms{rate}", us / 1_000),
                rest => format!("{}.{rest:03}000|ms{rate}", us / 1_000),
            };
            lines.add(packets, RESPONSE_TIME, &value);
        }
        // Counters that are gone.
        let flush = lines.flushes;
        lines.made.retain(|_, made| made.flush == flush);
    }

    /// Ends the flush. Returns how many lines were made and not taken. Counters without a line keep their growth for the next
    /// flush.
    pub(super) fn end(self) -> (Lines, u64) {
        (self.lines, self.packets.iter().map(|packet| packet.lines).sum())
    }
}

/// The sample rate after a time that represents several. Empty if all times are sent.
#[expect(clippy::float_arithmetic, reason = "the rate is a decimal number in the line")]
fn sample_rate(sent: usize, came: u64) -> String {
    if sent as u64 == came { String::new() } else { format!("|@{:.6}", sent as f64 / came as f64) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    use weir_engine::observer::DecisionResult;

    use super::*;
    use crate::counts::{Counts, SplitHits};
    use crate::metrics::Options;

    fn metrics() -> Arc<Metrics> {
        Arc::new(Metrics::new(Options { statsd: true, ..Options::default() }))
    }

    /// All packets of one flush.
    fn flush(lines: Lines, metrics: &Arc<Metrics>) -> (Lines, Vec<Packet>) {
        let mut flush = lines.flush(metrics.clone());
        let mut packets = Vec::new();
        loop {
            let next = flush.next();
            if next.is_empty() {
                break;
            }
            packets.extend(next);
        }
        let (lines, left) = flush.end();
        assert_eq!(left, 0);
        (lines, packets)
    }

    fn text(packets: &[Packet]) -> String {
        packets.iter().map(|packet| packet.text.as_str()).collect()
    }

    fn plain() -> Lines {
        Lines::new(false, Vec::new(), &[], 1_000)
    }

    #[test]
    fn counters_are_sent_as_what_they_grew_by_and_gauges_always() {
        let metrics = metrics();
        let count = Arc::new(AtomicU64::new(3));
        let (gauge, counter) = ("ratelimit.redis_pool.cx_active", "ratelimit.redis_pool.cx_total");
        metrics.show(gauge, &[], &(), |()| 7);
        metrics.show(counter, &[], &count, |count| count.load(Relaxed));
        let mut lines = plain();
        let mut sent = || {
            let (next, packets) = flush(std::mem::replace(&mut lines, plain()), &metrics);
            lines = next;
            text(&packets)
        };
        assert_eq!(sent(), format!("{gauge}:7|g\n{counter}:3|c\n"));
        assert_eq!(sent(), format!("{gauge}:7|g\n"));
        count.store(5, Relaxed);
        assert_eq!(sent(), format!("{gauge}:7|g\n{counter}:2|c\n"));
    }

    /// Puts one name of a policy in force.
    fn load(metrics: &Metrics, name: &str, hits: u64) {
        let counts = Arc::<Counts>::default();
        counts.add(&SplitHits { hits, ..SplitHits::default() });
        metrics.statistics().replace(vec![(name.to_owned(), counts)]);
    }

    /// A name that weir had forgotten and that came back was sent as `name:18446744073709551615|c`.
    #[test]
    fn a_counter_that_begins_again_is_never_sent_as_less_than_0() {
        let metrics = Arc::new(Metrics::new(Options { statsd: true, dynamic_series: 0, ..Options::default() }));
        let line = |hits: u64| format!("ratelimit.service.rate_limit.shop.user.total_hits:{hits}|c\n");
        load(&metrics, "shop.user", 3);
        let (lines, packets) = flush(plain(), &metrics);
        assert_eq!(text(&packets), line(3));
        // Gone and back between two flushes.
        load(&metrics, "shop.other", 0);
        load(&metrics, "shop.user", 1);
        let (lines, packets) = flush(lines, &metrics);
        assert_eq!(text(&packets), line(1));
        // Gone in one flush, and back in the next.
        load(&metrics, "shop.other", 0);
        let (lines, packets) = flush(lines, &metrics);
        assert_eq!(text(&packets), "");
        assert!(lines.made.is_empty(), "what is gone is forgotten");
        load(&metrics, "shop.user", 5);
        assert_eq!(text(&flush(lines, &metrics).1), line(5));
    }

    /// A connection broke in the middle of many lines.
    #[test]
    fn counters_of_which_no_line_was_made_keep_their_growth() {
        let metrics = metrics();
        let count = |number| {
            let counts = Arc::<Counts>::default();
            counts.add(&SplitHits { hits: 1, ..SplitHits::default() });
            (format!("shop.user_{number}"), counts)
        };
        metrics.statistics().replace((0..20_000).map(count).collect());
        let lines_of = |packets: &[Packet]| packets.iter().map(|packet| packet.lines).sum::<u64>();
        let mut begun = plain().flush(metrics.clone());
        let first = begun.next();
        let bytes: usize = first.iter().map(|packet| packet.text.len()).sum();
        assert!((STEP_BYTES..2 * STEP_BYTES).contains(&bytes), "{bytes} bytes in one step");
        let (lines, left) = begun.end();
        let (lines, rest) = flush(lines, &metrics);
        assert_eq!(lines_of(&first) + left + lines_of(&rest), 20_000);
        assert_eq!(text(&flush(lines, &metrics).1), "");
    }

    #[test]
    fn times_are_in_milliseconds() {
        let metrics = metrics();
        let observer = metrics.observer();
        for us in [2_000, 345, 1_000_007] {
            observer.decided(DecisionResult::Ok, &|| Duration::from_micros(us), None);
        }
        let name = "ratelimit_server.ShouldRateLimit";
        let expected = format!(
            "{name}.total_requests:3|c\n{name}.response_time:2|ms\n{name}.response_time:0.345000|ms\n\
             {name}.response_time:1000.007000|ms\n"
        );
        assert_eq!(text(&flush(plain(), &metrics).1), expected);
        assert_eq!(sample_rate(1_024, 10_240), "|@0.100000");
    }

    #[test]
    fn tags_stand_in_the_name_or_behind_the_value() {
        let tags = || vec![("zone".to_owned(), "a.b:c".to_owned()), ("build".to_owned(), "7".to_owned())];
        let plain = Lines::new(false, tags(), &[], 1_000);
        let line_of = |lines: &Lines, name: &str| lines.line(name, "1|c");
        assert_eq!(line_of(&plain, "a.b"), "a.b.__build=7.__zone=a_b_c:1|c\n");
        let mogrifier = Mogrifier {
            pattern: r"^ratelimit\.service\.rate_limit\.([^.]+)\.([^.]+)\.(\w+)$".to_owned(),
            name: "ratelimit.$3".to_owned(),
            tags: [("domain".to_owned(), "$1".to_owned()), ("key".to_owned(), "k-$2$9".to_owned())].into(),
        };
        let dog = Lines::new(true, tags(), &[mogrifier], 1_000);
        assert_eq!(
            line_of(&dog, "ratelimit.service.rate_limit.shop.user_a.over_limit"),
            "ratelimit.over_limit:1|c|#build:7,zone:a.b:c,domain:shop,key:k-user_a\n"
        );
        assert_eq!(line_of(&dog, "a.b"), "a.b:1|c|#build:7,zone:a.b:c\n");
        let bare = Lines::new(true, Vec::new(), &[], 1_000);
        assert_eq!(line_of(&bare, "a.b"), "a.b:1|c\n");
    }

    #[test]
    fn a_packet_holds_whole_lines_and_no_more_than_it_may() {
        let (lines, mut packets) = (Lines::new(false, Vec::new(), &[], 20), VecDeque::new());
        for name in ["aaaa", "bbbb", "cccc", "dddddddddddddddddddd"] {
            lines.add(&mut packets, name, "1|g");
        }
        let shown: Vec<(&str, u64)> = packets.iter().map(|packet| (packet.text.as_str(), packet.lines)).collect();
        assert_eq!(
            shown,
            [("aaaa:1|g\nbbbb:1|g\n", 2), ("cccc:1|g\n", 1), ("dddddddddddddddddddd:1|g\n", 1)],
            "a line that is longer goes alone"
        );
    }
}
