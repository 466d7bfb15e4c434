//! Reads a mapping file in statsd_exporter's format.
//!
//! Keys that are not known are ignored, as statsd_exporter ignores them. `ttl` has no effect: the series of weir are
//! bounded without it. Not here: what a mapping does (mapper.rs).

use std::collections::HashMap;
use std::time::Duration;

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::{
    BUCKETS, FILE_BYTES_MAX, MAPPINGS_MAX, Mapper, MapperError, Mapping, MetricType, ObserverKind, QUANTILES,
    SUMMARY_AGE, Target, glob, regex,
};

/// The most values in one file, what aliases expand to included.
const NODES_MAX: usize = 200_000;
/// The most bytes of texts in one file, what aliases expand to included; a text counts for each list and mapping around it.
const TEXT_BYTES_MAX: usize = 16 << 20;
/// How deep lists and mappings may nest.
const DEPTH_MAX: usize = 16;
/// The most bounds of a histogram, and quantiles of a summary.
const NUMBERS_MAX: usize = 200;

/// A value and the line where it stands.
#[derive(Clone, Debug)]
struct Node {
    line: usize,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Nothing,
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// The defaults of all mappings.
struct Defaults {
    is_regex: bool,
    is_histogram: bool,
    buckets: Vec<f64>,
    quantiles: Vec<f64>,
    max_age: Duration,
}

pub(super) fn parse(text: &str) -> Result<Mapper, MapperError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(MapperError { line: 1, message: format!("more than {FILE_BYTES_MAX} bytes") });
    }
    let root = tree(text)?;
    let mut defaults = Defaults {
        is_regex: false,
        is_histogram: false,
        buckets: BUCKETS.to_vec(),
        quantiles: QUANTILES.to_vec(),
        max_age: SUMMARY_AGE,
    };
    let mut most_specific_glob = false;
    if let Some(node) = root.get("defaults")? {
        most_specific_glob = node.switch("glob_disable_ordering")?;
        defaults.is_regex = is_regex(node)?.unwrap_or(false);
        defaults.is_histogram = is_histogram(node)?.unwrap_or(false);
        defaults.buckets = buckets(node)?.unwrap_or(defaults.buckets);
        defaults.quantiles = quantiles(node)?.unwrap_or(defaults.quantiles);
        defaults.max_age = max_age(node)?.unwrap_or(defaults.max_age);
    }
    let mappings = root.get("mappings")?.map_or(Ok(&[][..]), Node::list)?;
    if mappings.len() > MAPPINGS_MAX {
        return Err(root.error(format!("{} mappings: at most {MAPPINGS_MAX}", mappings.len())));
    }
    let mappings = mappings.iter().map(|node| mapping(node, &defaults)).collect::<Result<_, _>>()?;
    let unmapped_times = times(&Node { line: 1, value: Value::Nothing }, &defaults)?;
    Ok(Mapper { mappings, most_specific_glob, unmapped_times })
}

fn mapping(node: &Node, defaults: &Defaults) -> Result<Mapping, MapperError> {
    let Some(pattern) = node.get("match")? else {
        return Err(node.error("a mapping without match".to_owned()));
    };
    let text = pattern.text()?;
    let pattern = if is_regex(node)?.unwrap_or(defaults.is_regex) {
        regex(text).map_err(|reason| pattern.error(format!("match: {text:?} is no regular expression: {reason}")))?
    } else {
        if text.split('.').any(|part| part.is_empty() || (part.contains('*') && part != "*")) {
            return Err(pattern.error(format!(
                "match: {text:?} is no glob: parts between dots, each a text or a *; for all else match_type: regex"
            )));
        }
        glob(text)
    };
    Ok(Mapping { pattern, metric_type: metric_type(node)?, target: target(node, defaults)? })
}

fn target(node: &Node, defaults: &Defaults) -> Result<Target, MapperError> {
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
            labels.push((label.as_str().into(), value.text()?.into()));
        }
    }
    let scale = node.get("scale")?.map_or(Ok(1.0), Node::number)?;
    let help = node.get("help")?.map(Node::text).transpose()?.map(Into::into);
    Ok(Target::Metric { name: text.into(), labels, help, scale, times: times(node, defaults)? })
}

/// How times are counted; a mapping of other statistics has this too and does not use it.
fn times(node: &Node, defaults: &Defaults) -> Result<ObserverKind, MapperError> {
    let is_histogram = is_histogram(node)?.unwrap_or(defaults.is_histogram);
    let (unused, used) = if is_histogram { ("summary", "histogram") } else { ("histogram", "summary") };
    let own_type = node.get("observer_type")?.or(node.get("timer_type")?).is_some();
    if let Some(options) = node.get(&format!("{unused}_options"))?.filter(|_| own_type) {
        return Err(options.error(format!("{unused}_options in a mapping whose observer_type is {used}")));
    }
    // Read also where they have no use, so that a mistake in them is found.
    let (buckets, quantiles) = (buckets(node)?, quantiles(node)?);
    if is_histogram {
        return Ok(ObserverKind::Histogram(buckets.unwrap_or_else(|| defaults.buckets.clone())));
    }
    let quantiles = quantiles.unwrap_or_else(|| defaults.quantiles.clone());
    Ok(ObserverKind::Summary(quantiles, max_age(node)?.unwrap_or(defaults.max_age)))
}

fn metric_type(node: &Node) -> Result<Option<MetricType>, MapperError> {
    let word = node.word("match_metric_type", &["", "counter", "gauge", "observer", "timer"])?;
    Ok(match word {
        Some("counter") => Some(MetricType::Counter),
        Some("gauge") => Some(MetricType::Gauge),
        Some("observer" | "timer") => Some(MetricType::Observer),
        _ => None,
    })
}

fn is_regex(node: &Node) -> Result<Option<bool>, MapperError> {
    Ok(node.word("match_type", &["", "glob", "regex"])?.filter(|word| !word.is_empty()).map(|word| word == "regex"))
}

fn is_histogram(node: &Node) -> Result<Option<bool>, MapperError> {
    const TYPES: &[&str] = &["", "histogram", "summary"];
    let word = node.word("observer_type", TYPES)?.filter(|word| !word.is_empty());
    let word = word.or(node.word("timer_type", TYPES)?.filter(|word| !word.is_empty()));
    Ok(word.map(|word| word == "histogram"))
}

fn buckets(node: &Node) -> Result<Option<Vec<f64>>, MapperError> {
    let options = node.get("histogram_options")?;
    let Some(list) = options.map_or(Ok(None), |options| options.get("buckets"))?.or(node.get("buckets")?) else {
        return Ok(None);
    };
    let bounds = list.list()?.iter().map(Node::number).collect::<Result<Vec<f64>, _>>()?;
    if bounds.len() > NUMBERS_MAX {
        return Err(list.error(format!("{} buckets: at most {NUMBERS_MAX}", bounds.len())));
    }
    if bounds.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(list.error("buckets that do not ascend".to_owned()));
    }
    Ok(Some(bounds).filter(|bounds| !bounds.is_empty()))
}

fn quantiles(node: &Node) -> Result<Option<Vec<f64>>, MapperError> {
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

fn max_age(node: &Node) -> Result<Option<Duration>, MapperError> {
    let Some(options) = node.get("summary_options")? else { return Ok(None) };
    let Some(age) = options.get("max_age")? else { return Ok(None) };
    let text = age.text()?;
    let age = duration(text).ok_or_else(|| age.error(format!("max_age: {text:?} is no duration, such as 10m")))?;
    Ok(Some(age).filter(|age| !age.is_zero()))
}

/// A duration as Go writes it, in whole numbers: `10m`, `1h30m`.
fn duration(text: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, next) = tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
        let number: u32 = number.parse().ok()?;
        let unit = match unit {
            "h" => Duration::from_secs(3_600),
            "m" => Duration::from_secs(60),
            "s" => Duration::from_secs(1),
            "ms" => Duration::from_millis(1),
            "us" => Duration::from_micros(1),
            "ns" => Duration::from_nanos(1),
            _ => return None,
        };
        sum = sum.checked_add(unit.checked_mul(number)?)?;
        rest = next;
    }
    (!text.is_empty()).then_some(sum)
}

/// Whether a metric, or a label, can have this name; that of a metric may have references such as `$1`.
fn is_name(text: &str, with_references: bool) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_' || (with_references && c == '$');
    let is_later = |c: char| is_first(c) || c.is_ascii_digit() || (with_references && matches!(c, '{' | '}' | ':'));
    text.starts_with(is_first) && text.chars().all(is_later)
}

impl Node {
    fn error(&self, message: String) -> MapperError {
        MapperError { line: self.line, message }
    }

    /// What stands under a key of a mapping; nothing if the key has no value.
    fn get(&self, key: &str) -> Result<Option<&Self>, MapperError> {
        let found = self.map()?.iter().find(|(name, _)| name == key).map(|(_, node)| node);
        Ok(found.filter(|node| !matches!(node.value, Value::Nothing)))
    }

    fn map(&self) -> Result<&[(String, Self)], MapperError> {
        match &self.value {
            Value::Map(entries) => Ok(entries),
            Value::Nothing => Ok(&[]),
            _ => Err(self.error("a mapping of keys to values is expected".to_owned())),
        }
    }

    fn list(&self) -> Result<&[Self], MapperError> {
        match &self.value {
            Value::List(nodes) => Ok(nodes),
            _ => Err(self.error("a list is expected".to_owned())),
        }
    }

    fn text(&self) -> Result<&str, MapperError> {
        match &self.value {
            Value::Text(text) => Ok(text),
            Value::Nothing => Ok(""),
            _ => Err(self.error("a text is expected".to_owned())),
        }
    }

    fn number(&self) -> Result<f64, MapperError> {
        let text = self.text()?;
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
        number.ok_or_else(|| self.error(format!("{text:?} is no number")))
    }

    /// One of these words.
    fn word(&self, key: &str, words: &[&str]) -> Result<Option<&str>, MapperError> {
        let Some(node) = self.get(key)? else { return Ok(None) };
        let text = node.text()?;
        if words.contains(&text) {
            return Ok(Some(text));
        }
        let words: Vec<&str> = words.iter().copied().filter(|word| !word.is_empty()).collect();
        Err(node.error(format!("{key}: {text:?} is none of {}", words.join(", "))))
    }

    fn switch(&self, key: &str) -> Result<bool, MapperError> {
        Ok(self
            .word(key, &["true", "false", "True", "False", "TRUE", "FALSE"])?
            .is_some_and(|word| word.eq_ignore_ascii_case("true")))
    }
}

/// A list or a mapping that is being read.
struct Open {
    line: usize,
    anchor: usize,
    value: Value,
    /// The key whose value comes next.
    key: Option<String>,
}

/// Reads the one document of a text. Aliases are followed.
fn tree(text: &str) -> Result<Node, MapperError> {
    // The parser keeps all of a list or a mapping in brackets before it gives the first value.
    if text.matches([',', '[', ']', '{', '}']).count() > NODES_MAX {
        return Err(MapperError { line: 1, message: "too many values".to_owned() });
    }
    let mut anchors: HashMap<usize, Node> = HashMap::new();
    let mut open: Vec<Open> = Vec::new();
    let mut root = None;
    let mut all = Size::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| MapperError {
            line: error.marker().line(),
            message: format!("not YAML: {}", error.info()),
        })?;
        let line = span.start.line();
        let fail = |message: &str| MapperError { line, message: message.to_owned() };
        let (node, anchor) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let is_nothing = style == ScalarStyle::Plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let value = if is_nothing { Value::Nothing } else { Value::Text(text.into_owned()) };
                (Node { line, value }, anchor)
            }
            Event::Alias(anchor) => {
                let node = anchors.get(&anchor).cloned();
                (node.ok_or_else(|| fail("an alias of nothing"))?, 0)
            }
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) if open.len() == DEPTH_MAX => {
                let _ = anchor;
                return Err(fail("lists and mappings nest too deep"));
            }
            Event::SequenceStart(anchor, _) => {
                open.push(Open { line, anchor, value: Value::List(Vec::new()), key: None });
                continue;
            }
            Event::MappingStart(anchor, _) => {
                open.push(Open { line, anchor, value: Value::Map(Vec::new()), key: None });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(closed) = open.pop() else { continue };
                (Node { line: closed.line, value: closed.value }, closed.anchor)
            }
            Event::DocumentStart(_) if root.is_some() => return Err(fail("a second document")),
            _ => continue,
        };
        all.add(&node);
        if all.nodes > NODES_MAX || all.bytes > TEXT_BYTES_MAX {
            return Err(fail("too many values"));
        }
        if anchor > 0 {
            anchors.insert(anchor, node.clone());
        }
        match open.last_mut() {
            None => root = Some(node),
            Some(Open { value: Value::List(list), .. }) => list.push(node),
            Some(Open { value: Value::Map(entries), key, .. }) => match key.take() {
                None => *key = Some(node.text()?.to_owned()),
                Some(key) if entries.iter().any(|(name, _)| *name == key) => {
                    return Err(node.error(format!("the key {key:?} is there twice")));
                }
                Some(key) => entries.push((key, node)),
            },
            Some(_) => {}
        }
    }
    Ok(root.unwrap_or(Node { line: 1, value: Value::Nothing }))
}

/// How many values there are, and how many bytes their texts have.
#[derive(Default)]
struct Size {
    nodes: usize,
    bytes: usize,
}

impl Size {
    /// Adds a node and what is in it.
    fn add(&mut self, node: &Node) {
        self.nodes += 1;
        match &node.value {
            Value::Nothing => {}
            Value::Text(text) => self.bytes += text.len(),
            Value::List(nodes) => nodes.iter().for_each(|node| self.add(node)),
            Value::Map(entries) => {
                for (key, node) in entries {
                    self.bytes += key.len();
                    self.add(node);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        parse(text).expect_err(text).to_string()
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, expected) in [
            ("mappings: 7", "1: a list is expected"),
            ("mappings:\n- name: a", "2: a mapping without match"),
            ("mappings:\n- match: a.b", "2: a mapping without name"),
            ("mappings:\n- {match: 'a*.b', name: a}", "2: match: \"a*.b\" is no glob"),
            ("mappings:\n- {match: 'a..b', name: a}", "2: match: \"a..b\" is no glob"),
            ("mappings:\n-\n  match: '('\n  match_type: regex\n  name: a", "3: match: \"(\" is no regular expression"),
            ("mappings:\n- {match: a.b, name: 9a}", "2: name: \"9a\" cannot be the name of a metric"),
            ("mappings:\n- match: a.b\n  name: a\n  labels:\n    a-b: c", "5: labels: \"a-b\" cannot be"),
            (
                "mappings:\n- {match: a.b, name: a, match_type: exact}",
                "2: match_type: \"exact\" is none of glob, regex",
            ),
            ("mappings:\n- {match: a.b, name: a, action: keep}", "2: action: \"keep\" is none of map, drop"),
            ("mappings:\n- {match: a.b, name: a, scale: x}", "2: \"x\" is no number"),
            ("mappings:\n- {match: a.b, name: a, buckets: [2, 1]}", "2: buckets that do not ascend"),
            ("defaults:\n  observer_type: gauge", "2: observer_type: \"gauge\" is none of histogram, summary"),
            (
                "mappings:\n- match: a.b\n  name: a\n  observer_type: histogram\n  summary_options: {max_age: 1m}",
                "5: summary_options in a mapping whose observer_type is histogram",
            ),
            ("mappings:\n- {match: a, match: b, name: c}", "2: the key \"match\" is there twice"),
            ("mappings: [\n", "2: not YAML: "),
            ("{}\n---\n{}", "2: a second document"),
        ] {
            let found = problem(text);
            assert!(found.starts_with(expected), "{text:?}\n{found}");
        }
        let bomb = format!("a: &a [{}]\nb: &b [{}]\nc: [{}]", "x,".repeat(500), "*a,".repeat(100), "*b,".repeat(100));
        assert!(problem(&bomb).ends_with("too many values"));
        let long = format!("a: &a {}\nb: [{}]", "x".repeat(500_000), "*a,".repeat(100));
        assert!(problem(&long).ends_with("too many values"), "aliases count with their texts");
        assert!(problem(&"[".repeat(DEPTH_MAX + 1)).ends_with("nest too deep"));
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
