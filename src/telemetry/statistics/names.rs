//! The names of limits in the statistics of envoyproxy/ratelimit: `DOMAIN.KEY_VALUE`, one part for each level of descriptors.
//!
//! Not here: the numbers, and the prefix and suffix of a name (statistics.rs).

use smallvec::SmallVec;
use weir_engine::policy::Level as RuleLevel;
use weir_engine::{Entry, Rule};

/// The longest name from a request, in bytes. A longer one counts as a name that does not fit.
pub(super) const NAME_BYTES_MAX: usize = 1024;

/// A name on the request path. Its capacity is enough for most names, so it rarely allocates.
pub(super) type Buffer = SmallVec<[u8; 256]>;

/// How names have the dots of keys and values. A dot looks like the start of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dots {
    Kept,
    /// Each is an underscore.
    Replaced,
}

impl Dots {
    /// Adds a key or a value.
    fn add(self, part: &str, name: &mut Buffer) {
        let start = name.len();
        name.extend_from_slice(part.as_bytes());
        if self == Self::Replaced {
            name[start..].iter_mut().filter(|byte| **byte == b'.').for_each(|dot| *dot = b'_');
        }
    }

    /// Adds a level of a policy.
    fn add_level(self, level: &RuleLevel, name: &mut Buffer) {
        self.add(&level.key, name);
        if let Some(value) = &level.value {
            name.push(b'_');
            self.add(&value.name(), name);
        }
    }

    fn add_entry(self, entry: &Entry<'_>, name: &mut Buffer) {
        self.add(entry.key, name);
        if !entry.value.is_empty() {
            name.push(b'_');
            self.add(entry.value, name);
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Naming {
    dots: Dots,
    domain: Box<str>,
    levels: Box<[Level]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Level {
    Policy(Box<[u8]>),
    /// By `value_to_metric`: an empty value leaves only the key.
    Request,
    /// By `detailed_metric`: an empty value leaves the key and `_`, as in envoyproxy/ratelimit.
    Detailed,
}

impl Naming {
    pub(super) fn of(rule: &Rule, dots: Dots) -> Self {
        let detailed = rule.levels.last().is_some_and(|level| level.detailed_metric);
        let levels = rule.levels.iter().map(|level| {
            // Values that share a state share their counters too.
            if (detailed || level.value_to_metric) && !level.share_threshold {
                return if detailed { Level::Detailed } else { Level::Request };
            }
            let mut part = Buffer::new();
            dots.add_level(level, &mut part);
            Level::Policy(part.into_boxed_slice())
        });
        Self { dots, domain: rule.domain.clone(), levels: levels.collect() }
    }

    pub(super) fn is_by_request(&self) -> bool {
        self.levels.iter().any(|level| matches!(level, Level::Request | Level::Detailed))
    }

    pub(super) fn write(&self, entries: &[Entry<'_>], name: &mut Buffer) {
        name.extend_from_slice(self.domain.as_bytes());
        for (i, level) in self.levels.iter().enumerate() {
            name.push(b'.');
            match (level, entries.get(i)) {
                (Level::Policy(part), _) => name.extend_from_slice(part),
                (Level::Request, Some(entry)) => self.dots.add_entry(entry, name),
                (Level::Detailed, Some(Entry { key, value })) => {
                    self.dots.add(key, name);
                    name.push(b'_');
                    self.dots.add(value, name);
                }
                (Level::Request | Level::Detailed, None) => {}
            }
        }
        clean(name);
    }
}

/// The name of a rule's own counters, with keys and values of the policy.
pub(super) fn of_rule(rule: &Rule, dots: Dots) -> String {
    let mut name = Buffer::from_slice(rule.domain.as_bytes());
    for level in &rule.levels {
        name.push(b'.');
        dots.add_level(level, &mut name);
    }
    clean(&mut name);
    // All parts are texts, and only ASCII was replaced, by ASCII.
    String::from_utf8(name.into_vec()).unwrap_or_default()
}

pub(super) fn write_request_limit(domain: &str, entries: &[Entry<'_>], dots: Dots, name: &mut Buffer) {
    name.extend_from_slice(domain.as_bytes());
    for entry in entries {
        name.push(b'.');
        dots.add_entry(entry, name);
    }
    clean(name);
}

/// The name with invalid characters replaced.
pub(super) fn cleaned(name: String) -> String {
    let mut bytes = name.into_bytes();
    clean(&mut bytes);
    // Only ASCII was replaced, by ASCII.
    String::from_utf8(bytes).unwrap_or_default()
}

/// Replaces the separators of StatsD lines; the dots of IPv4 addresses, which would look like levels; and control
/// characters, which would end the line.
fn clean(name: &mut [u8]) {
    for byte in name.iter_mut() {
        if matches!(byte, b':' | b'|') || byte.is_ascii_control() {
            *byte = b'_';
        }
    }
    let mut at = 0;
    while at < name.len() {
        match address_at(&name[at..]) {
            Some(length) => {
                name[at..at + length].iter_mut().filter(|byte| **byte == b'.').for_each(|dot| *dot = b'_');
                at += length;
            }
            None => at += 1,
        }
    }
}

/// The length of the IPv4 address at the beginning of the text: four numbers of one to three digits.
fn address_at(text: &[u8]) -> Option<usize> {
    let mut length = 0;
    for number in 0..4 {
        if number > 0 {
            if text.get(length) != Some(&b'.') {
                return None;
            }
            length += 1;
        }
        let digits = text[length..].iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        length += digits;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use weir_engine::{Limit, PolicySet, Unit};

    use super::*;

    #[test]
    fn separators_addresses_and_control_characters_are_replaced() {
        for (raw, clean) in [
            ("shop:eu|1.user", "shop_eu_1.user"),
            ("shop.ip_10.0.0.1", "shop.ip_10_0_0_1"),
            ("shop.ip_10.0.0.1.path_/a", "shop.ip_10_0_0_1.path_/a"),
            ("shop.v_1.2.3", "shop.v_1.2.3"),
            ("shop.v_1.2.3.4.5.6.7.8", "shop.v_1_2_3_4.5_6_7_8"),
            ("shop.v_1234.1.2.3", "shop.v_1234_1_2_3"),
            ("shop.v_1.2.3.4567", "shop.v_1_2_3_4567"),
            ("shop.v_a\nb:1|c", "shop.v_a_b_1_c"),
            ("shop.é_1.1.1.1", "shop.é_1_1_1_1"),
        ] {
            assert_eq!(cleaned(raw.to_owned()), clean);
        }
    }

    /// The names of the last level: for a request with these values, and for the policy.
    fn named(levels: Vec<NodeSpec>, values: &[&str], dots: Dots) -> (String, String) {
        let keys: Vec<String> = levels.iter().map(|level| level.key.clone()).collect();
        let mut below = Vec::new();
        for mut level in levels.into_iter().rev() {
            level.rule = Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(1, Unit::Hour)])));
            level.descriptors = std::mem::take(&mut below);
            below.push(level);
        }
        let domain = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors: below };
        let policies = PolicySet::compile(vec![domain]).unwrap();
        let entries: Vec<Entry<'_>> = keys.iter().zip(values).map(|(key, value)| Entry { key, value }).collect();
        let rule = policies.find(policies.domain("shop").unwrap(), &entries).rule.unwrap();
        let mut name = Buffer::new();
        Naming::of(rule, dots).write(&entries, &mut name);
        (String::from_utf8(name.to_vec()).unwrap(), of_rule(rule, dots))
    }

    fn level(key: &str, value: &str) -> NodeSpec {
        NodeSpec { key: key.into(), value: Some(value.into()), ..NodeSpec::default() }
    }

    /// As recorded from envoyproxy/ratelimit.
    #[test]
    fn detailed_metric_and_value_to_metric_put_values_of_the_request_into_the_name() {
        let detailed = |level: NodeSpec| NodeSpec { detailed_metric: true, ..level };
        let valued = |level: NodeSpec| NodeSpec { value_to_metric: true, ..level };
        let shared = |level: NodeSpec| NodeSpec { share_threshold: true, ..level };
        for (levels, values, by_request, by_policy) in [
            (vec![level("user", "")], &["ann"][..], "user", "user"),
            (vec![detailed(level("user", ""))], &["ann"], "user_ann", "user"),
            (vec![level("tenant", ""), detailed(level("path", ""))], &["t1", "/a"], "tenant_t1.path_/a", "tenant.path"),
            (vec![detailed(shared(level("img", "i*")))], &["i1"], "img_i*", "img_i*"),
            (vec![valued(level("user", ""))], &["ann"], "user_ann", "user"),
            (vec![valued(level("tenant", "")), level("path", "")], &["t1", "/a"], "tenant_t1.path", "tenant.path"),
            (vec![valued(level("img", "i*"))], &["i1"], "img_i1", "img_i*"),
            (vec![valued(shared(level("doc", "d*")))], &["d1"], "doc_d*", "doc_d*"),
            (vec![level("raw", "r*")], &["r1"], "raw_r*", "raw_r*"),
            (vec![detailed(level("ip", ""))], &["10.0.0.1:80"], "ip_10_0_0_1_80", "ip"),
            (vec![detailed(level("ip", ""))], &[""], "ip_", "ip"),
            (vec![level("ip", ""), detailed(level("path", ""))], &["", "/a"], "ip_.path_/a", "ip.path"),
            (vec![valued(level("ip", ""))], &[""], "ip", "ip"),
        ] {
            let expected = (format!("shop.{by_request}"), format!("shop.{by_policy}"));
            assert_eq!(named(levels, values, Dots::Kept), expected);
        }
    }

    /// `SANITIZE_DESCRIPTOR_METRIC_DOTS`: a path of gRPC looked like two levels, and fitted a mapping of another limit.
    #[test]
    fn envoyproxy_ratelimit_1210_dots_of_keys_and_values_are_underscores() {
        let levels = || vec![level("a.b", "/v1.Shop/Buy"), NodeSpec { detailed_metric: true, ..level("c.d", "") }];
        let values = ["/v1.Shop/Buy", "e.f"];
        let of = |dots| named(levels(), &values, dots);
        let kept = ("shop.a.b_/v1.Shop/Buy.c.d_e.f".to_owned(), "shop.a.b_/v1.Shop/Buy.c.d".to_owned());
        assert_eq!(of(Dots::Kept), kept);
        let replaced = ("shop.a_b_/v1_Shop/Buy.c_d_e_f".to_owned(), "shop.a_b_/v1_Shop/Buy.c_d".to_owned());
        assert_eq!(of(Dots::Replaced), replaced);
        let mut name = Buffer::new();
        write_request_limit("a.shop", &[Entry { key: "a.b", value: "c.d" }], Dots::Replaced, &mut name);
        assert_eq!(&*name, b"a.shop.a_b_c_d", "the domain keeps its dots");
    }

    #[test]
    fn an_override_is_named_by_the_entries_of_its_request() {
        let entries = [Entry { key: "x", value: "1" }, Entry { key: "y", value: "" }];
        let mut name = Buffer::new();
        write_request_limit("shop", &entries, Dots::Kept, &mut name);
        assert_eq!(&*name, b"shop.x_1.y");
    }
}
