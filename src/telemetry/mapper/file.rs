//! Reads a mapping file in statsd_exporter's format.
//!
//! Unknown keys are ignored, as in statsd_exporter. `ttl` has no effect: the series of weir are bounded without it. Not
//! here: the effect of a mapping (mapper.rs).

use std::collections::HashSet;
use std::time::Duration;

use weir_text::yaml::{self, Document, Fault, NodeId, Options, Position, Value};
use weir_text::{go_duration, quoted};

use super::{
    BUCKETS, FILE_BYTES_MAX, MAPPINGS_MAX, Mapper, Mapping, MetricType, ObserverKind, QUANTILES, SUMMARY_AGE, Target,
    glob, regex,
};

/// The most values in one file, including expanded aliases.
const VALUES_MAX: u32 = 200_000;
const YAML: Options = Options {
    is_compatible: false,
    joined_key: "",
    written_max: VALUES_MAX as usize,
    flow_marks_max: VALUES_MAX as usize,
    values_max: VALUES_MAX,
    aliased_bytes_max: 16 << 20,
    depth_max: 16,
};
/// The most bounds of a histogram, and quantiles of a summary.
const NUMBERS_MAX: usize = 200;

#[derive(Clone, Copy)]
struct Node<'d> {
    document: &'d Document<'d>,
    id: NodeId,
}

struct Defaults {
    is_regex: bool,
    is_histogram: bool,
    buckets: Vec<f64>,
    quantiles: Vec<f64>,
    max_age: Duration,
}

pub(super) fn parse(text: &str) -> Result<Mapper, Fault> {
    if text.len() > FILE_BYTES_MAX {
        return Err(Fault { position: Position::START, message: format!("more than {FILE_BYTES_MAX} bytes") });
    }
    let document = Document::parse(text, YAML)?;
    let mut defaults = Defaults {
        is_regex: false,
        is_histogram: false,
        buckets: BUCKETS.to_vec(),
        quantiles: QUANTILES.to_vec(),
        max_age: SUMMARY_AGE,
    };
    let mut most_specific_glob = false;
    let root = document.root.map(|id| Node { document: &document, id });
    let get = |key| root.map_or(Ok(None), |root| root.get(key));
    if let Some(node) = get("defaults")? {
        most_specific_glob = node.switch("glob_disable_ordering")?;
        defaults.is_regex = is_regex(node)?.unwrap_or(false);
        defaults.is_histogram = is_histogram(node)?.unwrap_or(false);
        defaults.buckets = buckets(node)?.unwrap_or(defaults.buckets);
        defaults.quantiles = quantiles(node)?.unwrap_or(defaults.quantiles);
        defaults.max_age = max_age(node)?.unwrap_or(defaults.max_age);
    }
    let mut mappings = Vec::new();
    if let Some(node) = get("mappings")? {
        let nodes = node.list()?;
        if nodes.len() > MAPPINGS_MAX {
            return Err(node.error(format!("{} mappings: at most {MAPPINGS_MAX}", nodes.len())));
        }
        mappings = nodes.map(|node| mapping(node, &defaults)).collect::<Result<_, _>>()?;
    }
    let unmapped_times = if defaults.is_histogram {
        ObserverKind::Histogram(defaults.buckets)
    } else {
        ObserverKind::Summary(defaults.quantiles, defaults.max_age)
    };
    Ok(Mapper { mappings, most_specific_glob, unmapped_times })
}

fn mapping(node: Node<'_>, defaults: &Defaults) -> Result<Mapping, Fault> {
    let Some(pattern) = node.get("match")? else {
        return Err(node.error("a mapping without match".to_owned()));
    };
    let text = pattern.text()?;
    let pattern = if is_regex(node)?.unwrap_or(defaults.is_regex) {
        regex(text).map_err(|reason| pattern.error(format!("match: {text:?} is not a regular expression: {reason}")))?
    } else {
        if text.split('.').any(|part| part.is_empty() || (part.contains('*') && part != "*")) {
            return Err(pattern.error(format!(
                "match: {text:?} is not a glob: parts between dots, each a text or a *; for other patterns use match_type: regex"
            )));
        }
        glob(text)
    };
    Ok(Mapping { pattern, metric_type: metric_type(node)?, target: target(node, defaults)? })
}

fn target(node: Node<'_>, defaults: &Defaults) -> Result<Target, Fault> {
    if node.word("action", &["", "map", "drop"])? == Some("drop") {
        return Ok(Target::Drop);
    }
    let Some(name) = node.get("name")? else {
        return Err(node.error("a mapping without name".to_owned()));
    };
    let text = name.text()?;
    if !is_name(text, true) {
        return Err(name.error(format!("name: {text:?} cannot be the name of a metric")));
    }
    let mut labels = Vec::new();
    if let Some(node) = node.get("labels")? {
        for (label, value) in node.map()? {
            if !is_name(label, false) {
                return Err(value.error(format!("labels: {label:?} cannot be the name of a label")));
            }
            labels.push((label.into(), value.text()?.into()));
        }
    }
    let scale = node.get("scale")?.map_or(Ok(1.0), Node::number)?;
    let help = node.get("help")?.map(Node::text).transpose()?.map(Into::into);
    Ok(Target::Metric { name: text.into(), labels, help, scale, times: times(node, defaults)? })
}

/// How times are counted. A mapping of other statistics has this too and does not use it.
fn times(node: Node<'_>, defaults: &Defaults) -> Result<ObserverKind, Fault> {
    let is_histogram = is_histogram(node)?.unwrap_or(defaults.is_histogram);
    let (unused, used) = if is_histogram { ("summary", "histogram") } else { ("histogram", "summary") };
    let own_type = node.get("observer_type")?.or(node.get("timer_type")?).is_some();
    if let Some(options) = node.get(&format!("{unused}_options"))?.filter(|_| own_type) {
        return Err(options.error(format!("{unused}_options in a mapping whose observer_type is {used}")));
    }
    // Read even if unused, so that mistakes in them are found.
    let (buckets, quantiles) = (buckets(node)?, quantiles(node)?);
    if is_histogram {
        return Ok(ObserverKind::Histogram(buckets.unwrap_or_else(|| defaults.buckets.clone())));
    }
    let quantiles = quantiles.unwrap_or_else(|| defaults.quantiles.clone());
    Ok(ObserverKind::Summary(quantiles, max_age(node)?.unwrap_or(defaults.max_age)))
}

fn metric_type(node: Node<'_>) -> Result<Option<MetricType>, Fault> {
    let word = node.word("match_metric_type", &["", "counter", "gauge", "observer", "timer"])?;
    Ok(match word {
        Some("counter") => Some(MetricType::Counter),
        Some("gauge") => Some(MetricType::Gauge),
        Some("observer" | "timer") => Some(MetricType::Observer),
        _ => None,
    })
}

fn is_regex(node: Node<'_>) -> Result<Option<bool>, Fault> {
    Ok(node.word("match_type", &["", "glob", "regex"])?.filter(|word| !word.is_empty()).map(|word| word == "regex"))
}

fn is_histogram(node: Node<'_>) -> Result<Option<bool>, Fault> {
    const TYPES: &[&str] = &["", "histogram", "summary"];
    let word = node.word("observer_type", TYPES)?.filter(|word| !word.is_empty());
    let word = word.or(node.word("timer_type", TYPES)?.filter(|word| !word.is_empty()));
    Ok(word.map(|word| word == "histogram"))
}

fn buckets(node: Node<'_>) -> Result<Option<Vec<f64>>, Fault> {
    let options = node.get("histogram_options")?;
    let Some(list) = options.map_or(Ok(None), |options| options.get("buckets"))?.or(node.get("buckets")?) else {
        return Ok(None);
    };
    let bounds = list.list()?.map(Node::number).collect::<Result<Vec<f64>, _>>()?;
    if bounds.len() > NUMBERS_MAX {
        return Err(list.error(format!("{} buckets: at most {NUMBERS_MAX}", bounds.len())));
    }
    if bounds.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(list.error("buckets that do not ascend".to_owned()));
    }
    Ok(Some(bounds).filter(|bounds| !bounds.is_empty()))
}

fn quantiles(node: Node<'_>) -> Result<Option<Vec<f64>>, Fault> {
    let options = node.get("summary_options")?;
    let Some(list) = options.map_or(Ok(None), |options| options.get("quantiles"))?.or(node.get("quantiles")?) else {
        return Ok(None);
    };
    let mut quantiles = Vec::new();
    for one in list.list()? {
        let Some(quantile) = one.get("quantile")? else {
            return Err(one.error("a quantile without quantile".to_owned()));
        };
        let number = quantile.number()?;
        if !(0.0..=1.0).contains(&number) {
            return Err(quantile.error("a quantile must be from 0 to 1".to_owned()));
        }
        quantiles.push(number);
    }
    if quantiles.len() > NUMBERS_MAX {
        return Err(list.error(format!("{} quantiles: at most {NUMBERS_MAX}", quantiles.len())));
    }
    Ok(Some(quantiles).filter(|quantiles| !quantiles.is_empty()))
}

fn max_age(node: Node<'_>) -> Result<Option<Duration>, Fault> {
    let Some(options) = node.get("summary_options")? else { return Ok(None) };
    let Some(age) = options.get("max_age")? else { return Ok(None) };
    let text = age.text()?;
    let age = duration(text).ok_or_else(|| age.error(format!("max_age: {text:?} is not a duration such as 10m")))?;
    Ok(Some(age).filter(|age| !age.is_zero()))
}

/// A duration in Go's syntax, such as `10m` or `1h30m`.
fn duration(text: &str) -> Option<Duration> {
    go_duration(text).and_then(|nanos| u64::try_from(nanos).ok()).map(Duration::from_nanos)
}

/// Whether a metric or a label can have this name. A metric's may have references such as `$1`.
fn is_name(text: &str, with_references: bool) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_' || (with_references && c == '$');
    let is_later = |c: char| is_first(c) || c.is_ascii_digit() || (with_references && matches!(c, '{' | '}' | ':'));
    text.starts_with(is_first) && text.chars().all(is_later)
}

impl<'d> Node<'d> {
    fn value(self) -> &'d yaml::Node<'d> {
        self.document.node(self.id)
    }

    fn error(self, message: String) -> Fault {
        Fault { position: self.value().position, message }
    }

    fn expected(self, what: &str) -> Fault {
        self.error(format!("{what} is expected, not {}", self.value().describe()))
    }

    /// The value of a key. None if the key is absent or null.
    fn get(self, key: &str) -> Result<Option<Self>, Fault> {
        let found = self.map()?.into_iter().find(|(name, _)| *name == key).map(|(_, node)| node);
        Ok(found.filter(|node| !node.value().is_null()))
    }

    fn map(self) -> Result<Vec<(&'d str, Self)>, Fault> {
        let entries = match &self.value().value {
            Value::Mapping(entries) => entries,
            _ if self.value().is_null() => return Ok(Vec::new()),
            _ => return Err(self.expected("a mapping of keys to values")),
        };
        let mut known = HashSet::new();
        let mut map = Vec::with_capacity(entries.len());
        for &(key, id) in entries {
            let key = Self { id: key, ..self };
            let name = key.text()?;
            if !known.insert(name) {
                return Err(key.error(format!("the key {} appears twice", quoted(name))));
            }
            map.push((name, Self { id, ..self }));
        }
        Ok(map)
    }

    fn list(self) -> Result<impl ExactSizeIterator<Item = Self>, Fault> {
        match &self.value().value {
            Value::List(ids) => Ok(ids.iter().map(move |&id| Self { id, ..self })),
            _ => Err(self.expected("a list")),
        }
    }

    fn text(self) -> Result<&'d str, Fault> {
        match &self.value().value {
            _ if self.value().is_null() => Ok(""),
            Value::Scalar { text, .. } => Ok(text),
            _ => Err(self.expected("a text")),
        }
    }

    fn number(self) -> Result<f64, Fault> {
        let text = self.text()?;
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| self.error(format!("{} is not a number", quoted(text))))
    }

    fn word(self, key: &str, words: &[&str]) -> Result<Option<&'d str>, Fault> {
        let Some(node) = self.get(key)? else { return Ok(None) };
        let text = node.text()?;
        if words.contains(&text) {
            return Ok(Some(text));
        }
        let words: Vec<&str> = words.iter().copied().filter(|word| !word.is_empty()).collect();
        Err(node.error(format!("{key}: {} is not one of {}", quoted(text), words.join(", "))))
    }

    fn switch(self, key: &str) -> Result<bool, Fault> {
        let word = self.word(key, &["true", "false", "True", "False", "TRUE", "FALSE"])?;
        Ok(word.is_some_and(|word| word.eq_ignore_ascii_case("true")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let Fault { position, message } = parse(text).expect_err(text);
        format!("{}: {message}", position.line)
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, expected) in [
            ("mappings: 7", "1: a list is expected, not \"7\""),
            ("mappings:\n- name: a", "2: a mapping without match"),
            ("mappings:\n- match: a.b", "2: a mapping without name"),
            ("mappings:\n- {match: 'a*.b', name: a}", "2: match: \"a*.b\" is not a glob"),
            ("mappings:\n- {match: 'a..b', name: a}", "2: match: \"a..b\" is not a glob"),
            (
                "mappings:\n-\n  match: '('\n  match_type: regex\n  name: a",
                "3: match: \"(\" is not a regular expression",
            ),
            ("mappings:\n- {match: a.b, name: 9a}", "2: name: \"9a\" cannot be the name of a metric"),
            ("mappings:\n- match: a.b\n  name: a\n  labels:\n    a-b: c", "5: labels: \"a-b\" cannot be"),
            (
                "mappings:\n- {match: a.b, name: a, match_type: exact}",
                "2: match_type: \"exact\" is not one of glob, regex",
            ),
            ("mappings:\n- {match: a.b, name: a, action: keep}", "2: action: \"keep\" is not one of map, drop"),
            ("mappings:\n- {match: a.b, name: a, scale: x}", "2: \"x\" is not a number"),
            ("mappings:\n- {match: a.b, name: a, buckets: [2, 1]}", "2: buckets that do not ascend"),
            ("defaults:\n  observer_type: gauge", "2: observer_type: \"gauge\" is not one of histogram, summary"),
            (
                "mappings:\n- match: a.b\n  name: a\n  observer_type: histogram\n  summary_options: {max_age: 1m}",
                "5: summary_options in a mapping whose observer_type is histogram",
            ),
            ("mappings:\n- {match: a, match: b, name: c}", "2: the key \"match\" appears twice"),
            ("mappings: [\n", "2: not valid YAML: "),
            ("{}\n---\n{}", "2: a second document"),
        ] {
            let found = problem(text);
            assert!(found.starts_with(expected), "{text:?}\n{found}");
        }
        let bomb = format!("a: &a [{}]\nb: &b [{}]\nc: [{}]", "x,".repeat(500), "*a,".repeat(100), "*b,".repeat(100));
        assert!(problem(&bomb).contains(": more than 200000 values"));
        let long = format!("a: &a {}\nb: [{}]", "x".repeat(500_000), "*a,".repeat(100));
        assert!(
            problem(&long).contains(": aliases expand to more than 16777216 bytes"),
            "aliases count with their texts"
        );
        assert!(problem(&"[".repeat(YAML.depth_max + 1)).contains(": nested deeper than 16 "));
    }

    #[test]
    fn times_become_what_mapping_or_defaults_say() {
        let text = "defaults:\n  timer_type: histogram\n  buckets: [1, 2.5]\nmappings:\n\
                    - {match: a.a, name: a}\n\
                    - {match: a.b, name: b, histogram_options: {buckets: [5]}}\n\
                    - {match: a.c, name: c, observer_type: summary, timer_type: histogram}\n\
                    - match: a.d\n  name: d\n  timer_type: summary\n  ttl: 1m\n  unknown: [1]\n\
                    \x20 summary_options: {max_age: 1h30m, quantiles: [{quantile: 0.75, error: 0.1}]}\n";
        let mapper = parse(text).unwrap();
        let times = |statistic: &str| match mapper.find(statistic, MetricType::Observer) {
            super::super::Mapped::Metric { times, .. } => times,
            super::super::Mapped::Drop => panic!("dropped"),
        };
        assert_eq!(times("a.a"), ObserverKind::Histogram(vec![1.0, 2.5]));
        assert_eq!(times("a.b"), ObserverKind::Histogram(vec![5.0]));
        assert_eq!(times("a.c"), ObserverKind::default());
        assert_eq!(times("a.d"), ObserverKind::Summary(vec![0.75], Duration::from_secs(5_400)));
        assert_eq!(times("z"), ObserverKind::Histogram(vec![1.0, 2.5]), "the defaults hold for what is not mapped");
    }

    #[test]
    fn aliases_and_an_empty_file_are_read() {
        let text = "mappings:\n- &one {match: a.b, name: a, labels: &l {x: y}}\n- {match: a.c, name: c, labels: *l}";
        let mapper = parse(text).unwrap();
        assert!(format!("{:?}", mapper.find("a.c", MetricType::Counter)).contains("\"x\", \"y\""));
        assert!(parse("").unwrap().mappings.is_empty());
        assert!(parse("mappings:\n").unwrap().mappings.is_empty());
    }
}
