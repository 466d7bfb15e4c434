//! The text formats of /metrics: Prometheus', and OpenMetrics for readers that request it.
//!
//! They differ in the names in the heads of counters, in exemplars, which only OpenMetrics has, and in its end mark.
//! They are written by hand because prometheus-client writes a whole registry at once, supports only OpenMetrics, and
//! has no summaries. Not here: the families (the other files), and the readers (http).

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use weir_engine::observer::TraceIds;

use super::families::{Exemplar, Family, FamilyKind, Value, Visitor};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The format that an `Accept` header prefers. Prometheus' own if it prefers none.
    pub fn accepted(accept: &str) -> Self {
        let (mut text, mut open) = (None, None);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut weight, mut version) = (1000, None);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                let (name, value) = (name.trim(), value.trim().trim_matches('"'));
                if name.eq_ignore_ascii_case("q") {
                    weight = thousandths(value);
                } else if name.eq_ignore_ascii_case("version") {
                    version = Some(value);
                }
            }
            let best = match (kind.as_str(), version) {
                ("application/openmetrics-text", None | Some("1.0.0" | "0.0.1")) => &mut open,
                ("text/plain", None | Some("0.0.4")) => &mut text,
                _ => continue,
            };
            *best = (*best).max(Some(weight));
        }
        if open > Some(0) && open > text { Self::OpenMetrics } else { Self::Text }
    }

    /// The value of `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A weight between 0 and 1 with at most three decimals, in thousandths; 0 for other texts.
fn thousandths(weight: &str) -> u32 {
    let (whole, decimals) = weight.split_once('.').unwrap_or((weight, ""));
    let decimals = format!("{decimals:0<3}");
    let is_valid = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if whole.len() > 1 || decimals.len() > 3 || !is_valid(whole) || !is_valid(&decimals) {
        return 0;
    }
    let parse = |digits: &str| digits.parse().unwrap_or(0);
    (parse(whole) * 1000 + parse(&decimals)).min(1000)
}

/// Writes families into a text, which the reader takes in pieces.
#[derive(Debug)]
pub struct TextWriter {
    format: Format,
    /// The series name of the current family.
    name: String,
    kind: FamilyKind,
    text: String,
}

impl TextWriter {
    pub fn new(format: Format) -> Self {
        Self { format, name: String::new(), kind: FamilyKind::Gauge, text: String::new() }
    }

    /// How many bytes are ready to be taken.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether nothing is ready to be taken.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The text since the last call.
    #[must_use]
    pub fn take(&mut self) -> String {
        let room = self.text.capacity();
        std::mem::replace(&mut self.text, String::with_capacity(room))
    }

    pub fn end(&mut self) {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], extra: Option<(&str, f64)>, value: Value<'_>) {
        self.text.push_str(&self.name);
        self.text.push_str(suffix);
        let mut separator = '{';
        for (label, value) in labels {
            self.text.push(separator);
            self.text.push_str(label);
            self.text.push_str("=\"");
            push_escaped(&mut self.text, value, true);
            self.text.push('"');
            separator = ',';
        }
        if let Some((label, number)) = extra {
            self.text.push(separator);
            self.text.push_str(label);
            self.text.push_str("=\"");
            let start = self.text.len();
            push_number(&mut self.text, number);
            // OpenMetrics writes bounds as floats.
            if self.format == Format::OpenMetrics && self.text[start..].bytes().all(|byte| byte.is_ascii_digit()) {
                self.text.push_str(".0");
            }
            self.text.push('"');
            separator = ',';
        }
        self.text.push_str(if separator == ',' { "} " } else { " " });
        match value {
            Value::Count(count) => push(&mut self.text, format_args!("{count}")),
            Value::Number(number) => push_number(&mut self.text, number),
            Value::Histogram(_) | Value::Summary(_) => unreachable!("written as several samples"),
        }
    }

    fn end_line(&mut self, exemplar: Option<&Exemplar>) {
        if let (Some(exemplar), Format::OpenMetrics) = (exemplar, self.format) {
            let TraceIds { trace, span } = exemplar.ids;
            push(&mut self.text, format_args!(" # {{trace_id=\"{trace:032x}\",span_id=\"{span:016x}\"}} "));
            push_number(&mut self.text, exemplar.value);
            let at = exemplar.at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            push(&mut self.text, format_args!(" {}.{:03}", at.as_secs(), at.subsec_millis()));
        }
        self.text.push('\n');
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], extra: Option<(&str, f64)>, value: Value<'_>) {
        self.sample(suffix, labels, extra, value);
        self.end_line(None);
    }
}

impl Visitor for TextWriter {
    fn family(&mut self, family: Family<'_>) {
        self.name.clear();
        self.name.push_str(family.name);
        self.kind = family.kind;
        // OpenMetrics names a counter without its suffix. A counter without the suffix would get another name.
        let (name, kind) = match (self.format, family.kind, family.name.strip_suffix("_total")) {
            (Format::OpenMetrics, FamilyKind::Counter, Some(name)) => (name, "counter"),
            (Format::OpenMetrics, FamilyKind::Counter, None) => (family.name, "unknown"),
            _ => (family.name, family.kind.name()),
        };
        push(&mut self.text, format_args!("# HELP {name} "));
        push_escaped(&mut self.text, family.help, self.format == Format::OpenMetrics);
        push(&mut self.text, format_args!("\n# TYPE {name} {kind}\n"));
    }

    fn series(&mut self, labels: &[(&str, &str)], value: Value<'_>) {
        match value {
            Value::Count(_) | Value::Number(_) => self.line("", labels, None, value),
            Value::Histogram(histogram) => {
                for bucket in &histogram.buckets {
                    let bound = Some(("le", bucket.bound));
                    self.sample("_bucket", labels, bound, Value::Count(bucket.cumulative));
                    self.end_line(bucket.exemplar.as_ref());
                }
                self.line("_sum", labels, None, Value::Number(histogram.sum));
                self.line("_count", labels, None, Value::Count(histogram.count));
            }
            Value::Summary(summary) => {
                for (quantile, value) in &summary.quantiles {
                    self.line("", labels, Some(("quantile", *quantile)), Value::Number(*value));
                }
                self.line("_sum", labels, None, Value::Number(summary.sum));
                self.line("_count", labels, None, Value::Count(summary.count));
            }
        }
    }
}

fn push(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(arguments);
}

fn push_number(text: &mut String, number: f64) {
    if number.is_finite() {
        push(text, format_args!("{number}"));
    } else if number.is_nan() {
        text.push_str("NaN");
    } else {
        text.push_str(if number > 0.0 { "+Inf" } else { "-Inf" });
    }
}

fn push_escaped(text: &mut String, raw: &str, quotes: bool) {
    for c in raw.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quotes => text.push_str("\\\""),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::families::{Bucket, Histogram, Summary};

    fn written(format: Format) -> String {
        let exemplar = Exemplar {
            ids: TraceIds { trace: 0xab, span: 0xc },
            value: 0.07,
            at: UNIX_EPOCH + Duration::from_millis(1_500),
        };
        let bucket = |bound, cumulative, exemplar| Bucket { bound, cumulative, exemplar };
        let buckets = vec![bucket(0.05, 1, None), bucket(1.0, 2, Some(exemplar)), bucket(f64::INFINITY, 2, None)];
        let mut writer = TextWriter::new(format);
        writer.family(Family { name: "a_total", help: "Of \"a\"\\b.\n", kind: FamilyKind::Counter });
        writer.series(&[("x", "1\"\\\n")], Value::Count(7));
        writer.family(Family { name: "hits", help: "Hits.", kind: FamilyKind::Counter });
        writer.series(&[], Value::Number(0.5));
        writer.family(Family { name: "time_seconds", help: "Time.", kind: FamilyKind::Histogram });
        writer.series(&[("x", "1")], Value::Histogram(&Histogram { buckets, count: 2, sum: 0.11 }));
        writer.family(Family { name: "age_seconds", help: "Age.", kind: FamilyKind::Summary });
        writer.series(&[], Value::Summary(&Summary { quantiles: vec![(0.5, f64::NAN)], count: 1, sum: 3.0 }));
        writer.end();
        writer.take()
    }

    #[test]
    fn the_text_format_has_neither_exemplars_nor_an_end_mark() {
        assert_eq!(
            written(Format::Text),
            "# HELP a_total Of \"a\"\\\\b.\\n\n# TYPE a_total counter\na_total{x=\"1\\\"\\\\\\n\"} 7\n\
             # HELP hits Hits.\n# TYPE hits counter\nhits 0.5\n\
             # HELP time_seconds Time.\n# TYPE time_seconds histogram\n\
             time_seconds_bucket{x=\"1\",le=\"0.05\"} 1\ntime_seconds_bucket{x=\"1\",le=\"1\"} 2\n\
             time_seconds_bucket{x=\"1\",le=\"+Inf\"} 2\ntime_seconds_sum{x=\"1\"} 0.11\n\
             time_seconds_count{x=\"1\"} 2\n\
             # HELP age_seconds Age.\n# TYPE age_seconds summary\nage_seconds{quantile=\"0.5\"} NaN\n\
             age_seconds_sum 3\nage_seconds_count 1\n"
        );
    }

    #[test]
    fn openmetrics_names_counters_without_their_suffix_and_has_exemplars() {
        assert_eq!(
            written(Format::OpenMetrics),
            "# HELP a Of \\\"a\\\"\\\\b.\\n\n# TYPE a counter\na_total{x=\"1\\\"\\\\\\n\"} 7\n\
             # HELP hits Hits.\n# TYPE hits unknown\nhits 0.5\n\
             # HELP time_seconds Time.\n# TYPE time_seconds histogram\n\
             time_seconds_bucket{x=\"1\",le=\"0.05\"} 1\n\
             time_seconds_bucket{x=\"1\",le=\"1.0\"} 2 # {trace_id=\"000000000000000000000000000000ab\",span_id=\"000000000000000c\"} 0.07 1.500\n\
             time_seconds_bucket{x=\"1\",le=\"+Inf\"} 2\ntime_seconds_sum{x=\"1\"} 0.11\n\
             time_seconds_count{x=\"1\"} 2\n\
             # HELP age_seconds Age.\n# TYPE age_seconds summary\nage_seconds{quantile=\"0.5\"} NaN\n\
             age_seconds_sum 3\nage_seconds_count 1\n# EOF\n"
        );
    }

    #[test]
    fn openmetrics_is_for_readers_that_prefer_it() {
        for (accept, expected) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/plain", Format::Text),
            ("application/openmetrics-text", Format::OpenMetrics),
            ("application/openmetrics-text; version=\"1.0.0\"", Format::OpenMetrics),
            ("application/openmetrics-text;version=2.0.0", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("application/openmetrics-text;q=0.2, text/plain;q=0.3", Format::Text),
            ("application/openmetrics-text;q=nonsense,text/plain;q=0.001", Format::Text),
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            (
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
                 application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.3",
                Format::OpenMetrics,
            ),
        ] {
            assert_eq!(Format::accepted(accept), expected, "{accept}");
        }
    }

    #[test]
    fn what_was_taken_is_not_written_again() {
        let mut writer = TextWriter::new(Format::Text);
        writer.family(Family { name: "a", help: "A.", kind: FamilyKind::Gauge });
        assert_eq!((writer.take().lines().count(), writer.len(), writer.is_empty()), (2, 0, true));
        writer.series(&[], Value::Count(1));
        assert_eq!(writer.take(), "a 1\n");
    }
}
