//! The settings of StatsD.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::setting::Preset::{Is, Unset};
use super::setting::{Kind, ms, secs};
use super::value::host_port;

/// The most mogrifiers.
const MOGRIFIERS_MAX: usize = 64;
/// The largest compiled size of one pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

settings! {
    /// Where statistics are sent, and how. DogStatsD always uses UDP.
    pub struct Statsd {
        /// the StatsD server that gets the statistics of envoyproxy/ratelimit; none are sent without it
        address: Option<String> = "statsd.address", Kind::HostPort, Unset, |text| Ok(Some(server(text)));
        /// how the StatsD server is reached; dogstatsd always goes by udp
        is_udp: bool = "statsd.protocol", Kind::Choice(&["tcp", "udp"]), Is("tcp"), |text| Ok(text == "udp");
        /// statsd writes tags into the names, as .__key=value; dogstatsd behind the values, as |#key:value
        is_dogstatsd: bool = "statsd.format",
            Kind::Choice(&["statsd", "dogstatsd"]), Is("statsd"), |text| Ok(text == "dogstatsd");
        /// how often statistics are sent
        interval: Duration = "statsd.interval", Kind::duration(ms(5), secs(3600)), Is("10s");
        /// tags of every statistic that is sent: key:value,key:value
        tags: Vec<(String, String)> = "statsd.tags", Kind::Tags, Is(""), tags;
        /// names and tags that dogstatsd makes of other names: [{"pattern": ..., "name": ..., "tags": {...}}]
        mogrifiers: Vec<Mogrifier> = "statsd.mogrifiers", Kind::Mogrifiers, Is("[]"), mogrifiers;
    }
}

/// A rule that changes the names of statistics into other names and tags.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mogrifier {
    /// A regular expression, already checked.
    pub pattern: String,
    /// The new name; `$1` is a group of the match.
    pub name: String,
    /// Tags and their values.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

/// The address to connect to. Its text was checked before.
fn server(text: &str) -> String {
    match host_port(text) {
        Ok((host, port)) if host.contains(':') => format!("[{host}]:{port}"),
        Ok((host, port)) => format!("{host}:{port}"),
        Err(_) => text.to_owned(),
    }
}

/// Parses `key:value,key:value`. A value may contain more colons.
pub(super) fn tags(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut tags: Vec<(String, String)> = Vec::new();
    for pair in text.split(',').filter(|_| !text.is_empty()) {
        let (key, value) = pair.split_once(':').unwrap_or((pair, ""));
        if key.is_empty() || value.is_empty() {
            return Err(format!("{pair:?} is not key:value"));
        }
        if let Some(bad) = pair.chars().find(|c| c.is_control() || c.is_whitespace() || matches!(c, '|' | '=' | '#')) {
            return Err(format!("{pair:?} must not hold {bad:?}"));
        }
        if tags.iter().any(|(known, _)| known == key) {
            return Err(format!("the tag {key:?} appears twice"));
        }
        tags.push((key.to_owned(), value.to_owned()));
    }
    Ok(tags)
}

/// Reads a list in JSON.
pub(super) fn mogrifiers(text: &str) -> Result<Vec<Mogrifier>, String> {
    let mogrifiers: Vec<Mogrifier> =
        serde_json::from_str(text).map_err(|error| format!("not a list of mogrifiers in JSON: {error}"))?;
    if mogrifiers.len() > MOGRIFIERS_MAX {
        return Err(format!("{} mogrifiers: at most {MOGRIFIERS_MAX}", mogrifiers.len()));
    }
    for Mogrifier { pattern, name, tags } in &mogrifiers {
        if name.is_empty() || tags.iter().any(|(key, value)| key.is_empty() || value.is_empty()) {
            return Err(format!("the mogrifier of {pattern:?} has an empty name or tag"));
        }
        regex::RegexBuilder::new(pattern)
            .size_limit(PATTERN_BYTES_MAX)
            .build()
            .map_err(|_| format!("{pattern:?} is not a regular expression"))?;
    }
    Ok(mogrifiers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_pairs() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(tags(""), Ok(vec![]));
        assert_eq!(tags("a:b,c:d:e"), Ok(vec![pair("a", "b"), pair("c", "d:e")]));
        for (bad, reason) in [
            ("a", "\"a\" is not key:value"),
            ("a:", "\"a:\" is not key:value"),
            (":b", "\":b\" is not key:value"),
            ("a:b,", "\"\" is not key:value"),
            ("a:b c", "\"a:b c\" must not hold ' '"),
            ("a:b|c", "\"a:b|c\" must not hold '|'"),
            ("a:b,a:c", "the tag \"a\" appears twice"),
        ] {
            assert_eq!(tags(bad), Err(reason.to_owned()));
        }
    }

    #[test]
    fn mogrifiers_are_checked() {
        let good = r#"[{"pattern": "^a\\.(.*)$", "name": "b.$1", "tags": {"t": "$1"}}, {"pattern": "x", "name": "y"}]"#;
        assert_eq!(mogrifiers(good).unwrap().len(), 2);
        for (bad, reason) in [
            ("{}", "not a list of mogrifiers in JSON"),
            (r#"[{"pattern": "(", "name": "b"}]"#, "\"(\" is not a regular expression"),
            (r#"[{"pattern": "a", "name": ""}]"#, "the mogrifier of \"a\" has an empty name or tag"),
            (r#"[{"pattern": "a", "name": "b", "tag": {}}]"#, "not a list of mogrifiers in JSON: unknown field `tag`"),
        ] {
            let found = mogrifiers(bad).unwrap_err();
            assert!(found.starts_with(reason), "{found}");
        }
    }
}
