//! Statistics as lines of StatsD: the growth of counters since the last lines, gauges, and times.
//!
//! Not here: the connection (statsd.rs), and the numbers (statistics.rs).

use std::collections::HashMap;
use std::fmt::Write as _;

use regex::Regex;

use crate::metrics::{Metrics, RESPONSE_TIME, TimesSeen};
use crate::statistics::Kind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `name:1|c`, with tags in the name as `.__key=value`.
    Statsd,
    /// `name:1|c|#key:value`.
    DogStatsd,
}

/// Replaces the name of a statistic with another name and tags, for DogStatsD.
#[derive(Debug)]
pub struct Mogrifier {
    /// Matches names, and captures parts of them.
    pub pattern: Regex,
    /// The new name. `$1` is a captured part, `$0` the whole.
    pub name: String,
    /// Tags and their values, which can also contain `$1` and `$0`.
    pub tags: Vec<(String, String)>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) text: String,
    pub(super) lines: u64,
}

/// Makes lines. Stores the counters of the last lines.
pub(super) struct Lines {
    format: Format,
    tags: Vec<(String, String)>,
    mogrifiers: Vec<Mogrifier>,
    /// The value of each counter in its last line.
    made: HashMap<Box<str>, u64>,
    times: TimesSeen,
}

impl Lines {
    pub(super) fn new(format: Format, mut tags: Vec<(String, String)>, mogrifiers: Vec<Mogrifier>) -> Self {
        tags.sort_unstable();
        if format == Format::Statsd {
            // These characters would end the name, or look like a part of it.
            for (_, value) in &mut tags {
                *value = value.replace(['.', ':', '|'], "_");
            }
        }
        Self { format, tags, mogrifiers, made: HashMap::new(), times: TimesSeen::default() }
    }

    /// The changed statistics, in packets of at most `packet_bytes` each, unless a line is longer.
    pub(super) fn make(&mut self, metrics: &Metrics, packet_bytes: usize) -> Vec<Packet> {
        let mut packets = Packets { packets: Vec::new(), packet_bytes };
        let made = &mut self.made;
        let (format, tags, mogrifiers) = (self.format, &self.tags[..], &self.mogrifiers[..]);
        metrics.statistics().visit(|name, kind, value| {
            let value = match kind {
                Kind::Gauge => value,
                Kind::Counter => match made.get_mut(name) {
                    Some(before) => value.wrapping_sub(std::mem::replace(before, value)),
                    None if value == 0 => 0,
                    None => {
                        made.insert(name.into(), value);
                        value
                    }
                },
            };
            if kind == Kind::Counter && value == 0 {
                return;
            }
            let sign = if kind == Kind::Counter { 'c' } else { 'g' };
            packets.add(line(format, tags, mogrifiers, name, &format!("{value}|{sign}")));
        });
        let mut times = Vec::new();
        let came = metrics.times_since(&mut self.times, |us| times.push(us));
        let rate = sample_rate(times.len(), came);
        for us in times {
            let value = match us % 1_000 {
                0 => format!("{}|ms{rate}", us / 1_000),
                rest => format!("{}.{rest:03}000|ms{rate}", us / 1_000),
            };
            packets.add(line(format, tags, mogrifiers, RESPONSE_TIME, &value));
        }
        packets.packets
    }
}

/// The sample rate after a time that represents several. Empty if all times are sent.
#[expect(clippy::float_arithmetic, reason = "the rate is a decimal number in the line")]
fn sample_rate(sent: usize, came: u64) -> String {
    if sent as u64 == came { String::new() } else { format!("|@{:.6}", sent as f64 / came as f64) }
}

fn line(format: Format, tags: &[(String, String)], mogrifiers: &[Mogrifier], name: &str, value: &str) -> String {
    let mut line = String::with_capacity(name.len() + value.len() + 16);
    match format {
        Format::Statsd => {
            line.push_str(name);
            for (key, tag) in tags {
                // Writing to a string cannot fail.
                let _ = write!(line, ".__{key}={tag}");
            }
            let _ = write!(line, ":{value}");
        }
        Format::DogStatsd => {
            let found = mogrifiers.iter().find_map(|mogrifier| Some((mogrifier, mogrifier.pattern.captures(name)?)));
            match &found {
                Some((mogrifier, captures)) => line.push_str(&fill(&mogrifier.name, captures)),
                None => line.push_str(name),
            }
            let _ = write!(line, ":{value}");
            let own = found.iter().flat_map(|(mogrifier, captures)| {
                mogrifier.tags.iter().map(|(key, template)| (key.clone(), fill(template, captures)))
            });
            for (i, (key, tag)) in tags.iter().cloned().chain(own).enumerate() {
                let _ = write!(line, "{}{key}:{}", if i == 0 { "|#" } else { "," }, tag.replace(['|', ','], "_"));
            }
        }
    }
    line.push('\n');
    line
}

/// Replaces `$0`, `$1` and so on with the parts of a match. A missing part is empty.
fn fill(template: &str, captures: &regex::Captures<'_>) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
        match after[..digits].parse::<usize>() {
            Ok(number) => text.push_str(captures.get(number).map_or("", |part| part.as_str())),
            Err(_) => text.push('$'),
        }
        rest = &after[digits..];
    }
    text.push_str(rest);
    text
}

struct Packets {
    packets: Vec<Packet>,
    packet_bytes: usize,
}

impl Packets {
    fn add(&mut self, line: String) {
        match self.packets.last_mut().filter(|packet| packet.text.len() + line.len() <= self.packet_bytes) {
            Some(packet) => {
                packet.text.push_str(&line);
                packet.lines += 1;
            }
            None => self.packets.push(Packet { text: line, lines: 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::time::Duration;

    use weir_engine::observer::DecisionResult;

    use super::*;
    use crate::metrics::Options;

    fn metrics() -> Arc<Metrics> {
        Arc::new(Metrics::new(Options { statsd: true, ..Options::default() }))
    }

    fn text(packets: &[Packet]) -> String {
        packets.iter().map(|packet| packet.text.as_str()).collect()
    }

    #[test]
    fn counters_are_sent_as_what_they_grew_by_and_gauges_always() {
        let metrics = metrics();
        let count = Arc::new(AtomicU64::new(3));
        let of = count.clone();
        metrics.statistics().add("a.gauge", Kind::Gauge, || 7);
        metrics.statistics().add("a.counter", Kind::Counter, move || of.load(Relaxed));
        let mut lines = Lines::new(Format::Statsd, Vec::new(), Vec::new());
        assert_eq!(text(&lines.make(&metrics, 1_000)), "a.gauge:7|g\na.counter:3|c\n");
        assert_eq!(text(&lines.make(&metrics, 1_000)), "a.gauge:7|g\n");
        count.store(5, Relaxed);
        assert_eq!(text(&lines.make(&metrics, 1_000)), "a.gauge:7|g\na.counter:2|c\n");
    }

    #[test]
    fn times_are_in_milliseconds() {
        let metrics = metrics();
        let observer = metrics.observer();
        for us in [2_000, 345, 1_000_007] {
            observer.decided(DecisionResult::Ok, &|| Duration::from_micros(us));
        }
        let mut lines = Lines::new(Format::Statsd, Vec::new(), Vec::new());
        let name = "ratelimit_server.ShouldRateLimit";
        let expected = format!(
            "{name}.total_requests:3|c\n{name}.response_time:2|ms\n{name}.response_time:0.345000|ms\n\
             {name}.response_time:1000.007000|ms\n"
        );
        assert_eq!(text(&lines.make(&metrics, 1_000)), expected);
        assert_eq!(sample_rate(1_024, 10_240), "|@0.100000");
    }

    #[test]
    fn tags_stand_in_the_name_or_behind_the_value() {
        let tags = || vec![("zone".to_owned(), "a.b:c".to_owned()), ("build".to_owned(), "7".to_owned())];
        let plain = Lines::new(Format::Statsd, tags(), Vec::new());
        let line_of = |lines: &Lines, name: &str| line(lines.format, &lines.tags, &lines.mogrifiers, name, "1|c");
        assert_eq!(line_of(&plain, "a.b"), "a.b.__build=7.__zone=a_b_c:1|c\n");
        let mogrifier = Mogrifier {
            pattern: Regex::new(r"^ratelimit\.service\.rate_limit\.([^.]+)\.([^.]+)\.(\w+)$").unwrap(),
            name: "ratelimit.$3".to_owned(),
            tags: vec![("domain".to_owned(), "$1".to_owned()), ("key".to_owned(), "k-$2$9".to_owned())],
        };
        let dog = Lines::new(Format::DogStatsd, tags(), vec![mogrifier]);
        assert_eq!(
            line_of(&dog, "ratelimit.service.rate_limit.shop.user_a.over_limit"),
            "ratelimit.over_limit:1|c|#build:7,zone:a.b:c,domain:shop,key:k-user_a\n"
        );
        assert_eq!(line_of(&dog, "a.b"), "a.b:1|c|#build:7,zone:a.b:c\n");
        let bare = Lines::new(Format::DogStatsd, Vec::new(), Vec::new());
        assert_eq!(line_of(&bare, "a.b"), "a.b:1|c\n");
    }

    #[test]
    fn a_packet_holds_whole_lines_and_no_more_than_it_may() {
        let metrics = metrics();
        for name in ["aaaa", "bbbb", "cccc", "dddddddddddddddddddd"] {
            metrics.statistics().add(name, Kind::Gauge, || 1);
        }
        let mut lines = Lines::new(Format::Statsd, Vec::new(), Vec::new());
        let packets = lines.make(&metrics, 20);
        let shown: Vec<(&str, u64)> = packets.iter().map(|packet| (packet.text.as_str(), packet.lines)).collect();
        assert_eq!(
            shown,
            [("aaaa:1|g\nbbbb:1|g\n", 2), ("cccc:1|g\n", 1), ("dddddddddddddddddddd:1|g\n", 1)],
            "a line that is longer goes alone"
        );
    }
}
