//! Maps the names of envoyproxy/ratelimit's statistics to metrics of Prometheus, as statsd_exporter does.
//!
//! The first matching glob has priority, then the first matching regular expression. A name without a match becomes its
//! own metric, with `_` for invalid characters. Not here: how a mapping file is read (file.rs), and the numbers
//! (statistics.rs).

mod file;

use std::time::Duration;

use regex::{Regex, RegexBuilder};
use weir_text::yaml::Fault;

pub const MAPPINGS_MAX: usize = 10_000;
/// The largest mapping file, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// The most bytes of one compiled regular expression.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// The default upper bounds of a histogram, in the unit of the metric: those of Prometheus' clients.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];
const SUMMARY_AGE: Duration = Duration::from_secs(600);
/// The built-in mappings. Times arrive in milliseconds; metrics of Prometheus are in seconds.
const BUILT_IN: &str = include_str!("mapper/ratelimit.yaml");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricType {
    Counter,
    Gauge,
    /// Times.
    Observer,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum ObserverKind {
    /// The upper bounds, ascending.
    Histogram(Vec<f64>),
    /// The quantiles, and their period.
    Summary(Vec<f64>, Duration),
}

/// All mappings, in the order of the file.
#[derive(Debug)]
pub struct Mapper {
    mappings: Vec<Mapping>,
    /// Whether the most specific glob has priority, instead of the first.
    most_specific_glob: bool,
    unmapped_times: ObserverKind,
}

#[derive(Debug)]
struct Mapping {
    pattern: Pattern,
    metric_type: Option<MetricType>,
    target: Target,
}

#[derive(Debug)]
enum Pattern {
    /// The parts between the dots. None for a `*`, which matches any one part.
    Glob(Vec<Option<Box<str>>>),
    Regex(Regex),
}

#[derive(Debug)]
enum Target {
    Drop,
    Metric {
        name: Box<str>,
        labels: Vec<(Box<str>, Box<str>)>,
        help: Option<Box<str>>,
        scale: f64,
        times: ObserverKind,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Mapped {
    Drop,
    Metric {
        name: String,
        labels: Vec<(String, String)>,
        help: Option<String>,
        /// The factor of its value.
        scale: f64,
        /// The form of the metric for times.
        times: ObserverKind,
    },
}

impl Mapper {
    /// Reads a mapping file of statsd_exporter.
    ///
    /// # Errors
    /// The first mistake in it.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        file::parse(text)
    }

    /// The built-in mappings of envoyproxy/ratelimit. `in_milliseconds` keeps that unit for times.
    ///
    /// # Panics
    /// Never: they are constant.
    pub fn built_in(in_milliseconds: bool) -> Self {
        let scale = if in_milliseconds { "1" } else { "0.001" };
        file::parse(&BUILT_IN.replace("SCALE", scale)).expect("mappings without a mistake")
    }

    pub(super) fn find(&self, statistic: &str, metric_type: MetricType) -> Mapped {
        let parts: Vec<&str> = statistic.split('.').collect();
        let is_for = |mapping: &&Mapping| mapping.metric_type.is_none_or(|wanted| wanted == metric_type);
        let mut found: Option<(&Mapping, &[Option<Box<str>>])> = None;
        for mapping in self.mappings.iter().filter(is_for) {
            let Pattern::Glob(glob) = &mapping.pattern else { continue };
            if !glob_matches(glob, &parts) {
                continue;
            }
            if !self.most_specific_glob {
                found = Some((mapping, glob));
                break;
            }
            // At the first part that differs, a word has priority over a star.
            let stars = |glob: &[Option<Box<str>>]| glob.iter().map(Option::is_none).collect::<Vec<_>>();
            if found.is_none_or(|(_, best)| stars(glob) < stars(best)) {
                found = Some((mapping, glob));
            }
        }
        if let Some((mapping, glob)) = found {
            let captures: Vec<&str> =
                glob.iter().zip(&parts).filter(|(part, _)| part.is_none()).map(|(_, text)| *text).collect();
            let capture = |number: usize| captures.get(number.checked_sub(1)?).copied();
            return mapping
                .target
                .with(&|template| expand(template, |c| c.is_ascii_alphanumeric() || c == '_', capture));
        }
        for mapping in self.mappings.iter().filter(is_for) {
            let Pattern::Regex(regex) = &mapping.pattern else { continue };
            if let Some(captures) = regex.captures(statistic) {
                return mapping.target.with(&|template| {
                    let mut text = String::new();
                    captures.expand(template, &mut text);
                    text
                });
            }
        }
        Mapped::Metric {
            name: escape(statistic),
            labels: Vec::new(),
            help: None,
            scale: 1.0,
            times: self.unmapped_times.clone(),
        }
    }
}

/// A mapping file, with statistics of two kinds through it.
/// Panics when it is refused without a reason, or the name of a metric is none of Prometheus.
pub fn fuzz(data: &[u8]) {
    let mapper = match Mapper::parse(&String::from_utf8_lossy(data)) {
        Ok(mapper) => mapper,
        Err(fault) => return assert!(!fault.message.is_empty()),
    };
    for (statistic, kind) in [
        ("ratelimit.service.rate_limit.shop.user_a.b.total_hits", MetricType::Counter),
        ("ratelimit_server.ShouldRateLimit.response_time", MetricType::Observer),
    ] {
        let Mapped::Metric { name, .. } = mapper.find(statistic, kind) else { continue };
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        assert!(name.chars().all(is_of_name) && !name.starts_with(|c: char| c.is_ascii_digit()), "{name:?}");
    }
}

impl Target {
    fn with(&self, expand: &dyn Fn(&str) -> String) -> Mapped {
        match self {
            Self::Drop => Mapped::Drop,
            Self::Metric { name, labels, help, scale, times } => {
                let name = escape(&expand(name));
                if name.is_empty() {
                    return Mapped::Drop;
                }
                let mut labels: Vec<(String, String)> =
                    labels.iter().map(|(label, value)| (label.to_string(), expand(value))).collect();
                labels.sort_unstable();
                let help = help.as_deref().map(str::to_owned);
                Mapped::Metric { name, labels, help, scale: *scale, times: times.clone() }
            }
        }
    }
}

impl Default for ObserverKind {
    fn default() -> Self {
        Self::Summary(QUANTILES.to_vec(), SUMMARY_AGE)
    }
}

fn glob(text: &str) -> Pattern {
    Pattern::Glob(text.split('.').map(|part| (part != "*").then(|| part.into())).collect())
}

fn glob_matches(glob: &[Option<Box<str>>], parts: &[&str]) -> bool {
    glob.len() == parts.len()
        && glob.iter().zip(parts).all(|(wanted, part)| wanted.as_deref().is_none_or(|wanted| wanted == *part))
}

fn regex(text: &str) -> Result<Pattern, String> {
    let built = RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).build();
    built.map(Pattern::Regex).map_err(|error| {
        // The last line has the reason; the lines before it show the place.
        let text = error.to_string();
        text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
    })
}

/// Replaces `$1` and `${1}` with the part of that number, or with nothing. `is_word` finds the end of a name after a `$`.
pub(crate) fn expand<'p>(
    template: &str,
    is_word: impl Fn(char) -> bool,
    part: impl Fn(usize) -> Option<&'p str>,
) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let (opened, after) = after.strip_prefix('{').map_or((false, after), |after| (true, after));
        let word = after.find(|c: char| !is_word(c)).unwrap_or(after.len());
        text.push_str(after[..word].parse().ok().and_then(&part).unwrap_or_default());
        rest = &after[word..];
        if opened {
            rest = rest.strip_prefix('}').unwrap_or(rest);
        }
        if word == 0 && !opened {
            text.push('$');
        }
    }
    text.push_str(rest);
    text
}

/// A valid metric name, made as in statsd_exporter: `_` for each invalid character, one `_` for several hyphens in a
/// row, and `_` before a leading digit.
fn escape(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len() + 1);
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        escaped.push('_');
    }
    let mut before = None;
    for c in name.chars() {
        if c.is_ascii_alphanumeric() || c == '_' {
            escaped.push(c);
        } else if !(c == '-' && before == Some('-')) {
            escaped.push('_');
        }
        before = Some(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The metric as Prometheus prints it, or `-` if it is dropped.
    fn shown(mapper: &Mapper, statistic: &str, metric_type: MetricType) -> String {
        match mapper.find(statistic, metric_type) {
            Mapped::Drop => "-".to_owned(),
            Mapped::Metric { name, labels, scale, .. } => {
                let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
                let times = if scale == 1.0 { String::new() } else { format!(" * {scale}") };
                format!("{name}{{{}}}{times}", labels.join(","))
            }
        }
    }

    fn counter(mapper: &Mapper, statistic: &str) -> String {
        shown(mapper, statistic, MetricType::Counter)
    }

    #[test]
    fn the_built_in_mappings_are_those_that_were_recorded() {
        let mapper = Mapper::built_in(false);
        for (statistic, expected) in [
            ("rate_limit.shop.user.total_hits", "rate_limit_total_hits{domain=shop,key1=user}"),
            ("rate_limit.shop.a.b.near_limit", "rate_limit_near_limit{domain=shop,key1=a,key2=b}"),
            ("rate_limit.shop.a.b.c.d.over_limit", "rate_limit_over_limit{domain=shop,key1=a,key2=b}"),
            ("rate_limit.eg/x.img_i*.shadow_mode", "rate_limit_shadow_mode{domain=eg/x,key1=img_i*}"),
            ("call.should_rate_limit.redis_error", "should_rate_limit_error{err_type=redis_error}"),
            ("config_load_success", "config_load_success{}"),
            ("config_load_error", "config_load_error{}"),
            ("global_shadow_mode", "global_shadow_mode{}"),
            ("rate_limit.no.domain_not_found", "rate_limit_no_domain_not_found{}"),
            ("rate_limit.a.b.over_limit_with_local_cache", "rate_limit_a_b_over_limit_with_local_cache{}"),
        ] {
            let found = counter(&mapper, &format!("ratelimit.service.{statistic}"));
            assert_eq!(found, format!("ratelimit_service_{expected}"), "{statistic}");
        }
        let requests = counter(&mapper, "ratelimit_server.ShouldRateLimit.total_requests");
        assert_eq!(requests, "ratelimit_service_total_requests{grpc_method=ShouldRateLimit}");
        let times = |mapper: &Mapper| shown(mapper, "ratelimit_server.Check.response_time", MetricType::Observer);
        assert_eq!(times(&mapper), "ratelimit_service_response_time_seconds{grpc_method=Check} * 0.001");
        assert_eq!(times(&Mapper::built_in(true)), "ratelimit_service_response_time_seconds{grpc_method=Check}");
        let gauge = shown(&mapper, "ratelimit.localcache.hitCount", MetricType::Gauge);
        assert_eq!(gauge, "ratelimit_localcache_hitCount{}");
    }

    #[test]
    fn globs_are_tried_in_order_and_before_regular_expressions() {
        let text = |defaults: &str| {
            format!(
                "defaults: {{{defaults}}}\nmappings:\n- {{match: '^a\\..*$', match_type: regex, name: r}}\n\
                 - {{match: 'a.*.c', name: star}}\n- {{match: 'a.b.c', name: word}}\n\
                 - {{match: 'a.b.*', name: late, labels: {{l: '$1', m: 'x${{1}}y$2z'}}}}"
            )
        };
        let in_order = Mapper::parse(&text("")).unwrap();
        assert_eq!(counter(&in_order, "a.b.c"), "star{}");
        assert_eq!(counter(&in_order, "a.b.d"), "late{l=d,m=xdy}");
        assert_eq!(counter(&in_order, "a.b.c.d"), "r{}");
        assert_eq!(counter(&in_order, "x.a.b"), "x_a_b{}");
        let most_specific = Mapper::parse(&text("glob_disable_ordering: true")).unwrap();
        assert_eq!(counter(&most_specific, "a.b.c"), "word{}");
        assert_eq!(counter(&most_specific, "a.x.c"), "star{}");
    }

    #[test]
    fn a_mapping_can_drop_scale_and_choose_a_type() {
        let mapper = Mapper::parse(
            "mappings:\n- {match: 'a.*', match_metric_type: gauge, name: 'g_$1', scale: 0.5}\n\
             - {match: 'a.*', match_metric_type: counter, action: drop, name: dropped}\n\
             - {match: 'b-(\\w+)', match_type: regex, name: '${1}', labels: {whole: '$0', none: '$9'}}",
        )
        .unwrap();
        assert_eq!(shown(&mapper, "a.b--c", MetricType::Gauge), "g_b_c{} * 0.5");
        assert_eq!(counter(&mapper, "a.b"), "-");
        assert_eq!(shown(&mapper, "a.b", MetricType::Observer), "a_b{}");
        assert_eq!(counter(&mapper, "b-9x"), "_9x{none=,whole=b-9x}");
    }

    #[test]
    fn names_are_escaped_as_statsd_exporter_does_it() {
        for (raw, escaped) in [
            ("clean", "clean"),
            ("0starts_with_a_digit", "_0starts_with_a_digit"),
            ("with-dash", "with_dash"),
            ("a--b---c-d", "a_b_c_d"),
            ("a.b/c:d é", "a_b_c_d__"),
            ("", ""),
        ] {
            assert_eq!(escape(raw), escaped, "{raw}");
        }
    }
}
