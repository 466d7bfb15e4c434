//! Converts resources to policies: each `RateLimitConfig` becomes the tree of a policy file, and is read by the same
//! rules.
//!
//! A control plane sends every field, including defaults. A default is the same as no key, except for
//! `requests_per_unit: 0`, which denies everything. Keys without a field in the messages are in the metadata of a
//! descriptor under [`OWN_METADATA`], as in the rate limit of a policy file.

use prost::Message as _;
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use weir_engine::words::printable;
use weir_policies::{Loaded, Problems, Reading, Tree, read_trees};

use super::proto::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit};
use super::scan::{self, UnknownFields};
use super::status::shown;
use super::{Resource, TYPE_URL};

/// The key of a descriptor's metadata with further keys of its rate limit.
pub const OWN_METADATA: &str = "weir";

/// The policies of all resources of a response of at most `response_bytes_max` bytes.
///
/// # Errors
/// All problems of all resources, each with the resource's name and the path in it.
pub fn policies(
    resources: &[Resource],
    response_bytes_max: usize,
    reading: impl Into<Reading>,
) -> Result<Loaded, Problems> {
    if let Err(problem) = scan::check(resources.iter().map(|resource| &*resource.value), response_bytes_max) {
        return read_trees([("resources".to_owned(), Err(vec![problem]))], reading);
    }
    // One at a time, so the messages of all resources are never in memory together.
    read_trees(resources.iter().enumerate().map(|(index, resource)| tree(index, resource)), reading)
}

/// The fields in the limits of resources that weir does not know. None if there are none.
pub fn unknown_fields(resources: &[Resource]) -> Option<UnknownFields> {
    scan::unknown_fields(resources.iter().map(|resource| &*resource.value))
}

/// The name of a resource for messages, and its policies.
fn tree(index: usize, resource: &Resource) -> (String, Result<Tree<'static>, Vec<String>>) {
    let unnamed = || format!("resource {index}");
    if resource.type_url != TYPE_URL {
        let type_url = shown(&resource.type_url);
        return (unnamed(), Err(vec![format!("the type is {type_url:?}, not {TYPE_URL}")]));
    }
    let config = match RateLimitConfig::decode(&*resource.value) {
        Ok(config) => config,
        Err(error) => return (unnamed(), Err(vec![format!("not a RateLimitConfig: {error}")])),
    };
    let name = match (config.name.is_empty(), config.domain.is_empty()) {
        (false, _) => config.name,
        (true, false) => config.domain.clone(),
        (true, true) => unnamed(),
    };
    let mut conversion = Conversion::default();
    let descriptors = conversion.descriptors(config.descriptors);
    let tree = mapping([("domain", Some(text(config.domain))), ("descriptors", Some(descriptors))]);
    // The log shows the name.
    let name = printable(&name);
    (name, if conversion.problems.is_empty() { Ok(tree) } else { Err(conversion.problems) })
}

/// Converts a resource, and collects problems.
#[derive(Default)]
struct Conversion {
    /// The index of each descriptor on the way to the current one.
    path: Vec<usize>,
    problems: Vec<String>,
}

impl Conversion {
    fn descriptors(&mut self, descriptors: Vec<RateLimitDescriptor>) -> Tree<'static> {
        let mut trees = Vec::with_capacity(descriptors.len());
        for (index, descriptor) in descriptors.into_iter().enumerate() {
            self.path.push(index);
            trees.push(self.descriptor(descriptor));
            self.path.pop();
        }
        Tree::List(trees)
    }

    fn descriptor(&mut self, descriptor: RateLimitDescriptor) -> Tree<'static> {
        let RateLimitDescriptor { key, value, rate_limit, descriptors, .. } = descriptor;
        let mut metadata = descriptor.metadata.map(|metadata| metadata.fields).unwrap_or_default();
        let own = metadata.remove(OWN_METADATA);
        let rate_limit = self.rate_limit(rate_limit, own);
        let descriptors = (!descriptors.is_empty()).then(|| self.descriptors(descriptors));
        // Control planes set the modes on every descriptor above a limit. In a file this causes a warning, because its
        // author may have meant the limit.
        let is_limited = rate_limit.is_some();
        mapping([
            ("key", Some(text(key))),
            ("value", (!value.is_empty()).then(|| text(value))),
            ("rate_limit", rate_limit),
            ("shadow_mode", flag(descriptor.shadow_mode && is_limited)),
            ("detailed_metric", flag(descriptor.detailed_metric && is_limited)),
            ("quota_mode", flag(descriptor.quota_mode && is_limited)),
            ("metadata", (!metadata.is_empty()).then(|| of_struct(Struct { fields: metadata }))),
            ("descriptors", descriptors),
        ])
    }

    /// The limit of a descriptor, with weir's own keys. None if it has no limit.
    fn rate_limit(&mut self, policy: Option<RateLimitPolicy>, own: Option<Value>) -> Option<Tree<'static>> {
        let own = match own.map(|own| own.kind) {
            None => None,
            Some(Some(Kind::StructValue(own))) => Some(own.fields),
            Some(_) => {
                self.tell(&format!("metadata.{OWN_METADATA} must be a struct with keys of a rate limit"));
                return None;
            }
        };
        if policy.is_none() && own.is_none() {
            return None;
        }
        let own = own.unwrap_or_default();
        let policy = policy.unwrap_or_default();
        // A rate includes the unit and the requests.
        let is_counted = !policy.unlimited && !own.contains_key("rate");
        let requests = policy.requests_per_unit;
        let given = [
            ("unit", unit(policy.unit)),
            (
                "requests_per_unit",
                (requests > 0 || (is_counted && !own.contains_key("requests_per_unit")))
                    .then(|| Tree::Plain(requests.to_string().into())),
            ),
            ("unlimited", flag(policy.unlimited)),
            ("name", (!policy.name.is_empty()).then(|| text(policy.name))),
            ("replaces", (!policy.replaces.is_empty()).then(|| replaces(policy.replaces))),
        ];
        for (key, value) in &given {
            if value.is_some() && own.contains_key(*key) {
                self.tell(&format!("metadata.{OWN_METADATA}.{key}: the rate limit itself has {key} too"));
            }
        }
        let Tree::Mapping(mut entries) = mapping(given) else {
            return None;
        };
        entries.extend(own.into_iter().map(|(key, value)| (key.into(), of_value(value))));
        Some(Tree::Mapping(entries))
    }

    /// Adds a problem of the current descriptor.
    fn tell(&mut self, message: &str) {
        let path: Vec<String> = self.path.iter().map(|index| format!("descriptors[{index}]")).collect();
        self.problems.push(format!("{}: {message}", path.join(".")));
    }
}

fn mapping<const N: usize>(entries: [(&'static str, Option<Tree<'static>>); N]) -> Tree<'static> {
    let given = entries.into_iter().filter_map(|(key, value)| Some((key.into(), value?)));
    Tree::Mapping(given.collect())
}

fn text(text: String) -> Tree<'static> {
    Tree::Text(text.into())
}

/// A flag that is off is left out.
fn flag(on: bool) -> Option<Tree<'static>> {
    on.then(|| Tree::Plain("true".into()))
}

/// The name of a unit. An unknown number is kept, so the error shows it.
fn unit(number: i32) -> Option<Tree<'static>> {
    match RateLimitUnit::try_from(number) {
        Ok(RateLimitUnit::Unknown) => None,
        Ok(unit) => Some(text(unit.as_str_name().to_ascii_lowercase())),
        Err(_) => Some(text(number.to_string())),
    }
}

fn replaces(replaces: Vec<RateLimitReplace>) -> Tree<'static> {
    Tree::List(replaces.into_iter().map(|replaced| mapping([("name", Some(text(replaced.name)))])).collect())
}

fn of_struct(fields: Struct) -> Tree<'static> {
    Tree::Mapping(fields.fields.into_iter().map(|(key, value)| (key.into(), of_value(value))).collect())
}

/// A value as in a policy file. Numbers of a struct are doubles; whole numbers are written without a point.
fn of_value(value: Value) -> Tree<'static> {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Tree::Plain("null".into()),
        Some(Kind::NumberValue(number)) => Tree::Plain(number.to_string().into()),
        Some(Kind::StringValue(string)) => text(string),
        Some(Kind::BoolValue(on)) => Tree::Plain(on.to_string().into()),
        Some(Kind::StructValue(fields)) => of_struct(fields),
        Some(Kind::ListValue(list)) => Tree::List(list.values.into_iter().map(of_value).collect()),
    }
}

#[cfg(test)]
mod tests {
    use prost::bytes::Bytes;
    use weir_engine::{Algorithm, Role, Unit};
    use weir_policies::Dialect;

    use super::*;

    fn limited(key: &str, requests_per_unit: u32) -> RateLimitDescriptor {
        let unit = RateLimitUnit::Hour.into();
        let policy = RateLimitPolicy { unit, requests_per_unit, ..RateLimitPolicy::default() };
        RateLimitDescriptor { key: key.into(), rate_limit: Some(policy), ..RateLimitDescriptor::default() }
    }

    fn own(fields: &[(&str, Kind)]) -> Struct {
        let value = |kind: &Kind| Value { kind: Some(kind.clone()) };
        let fields = fields.iter().map(|(key, kind)| ((*key).to_owned(), value(kind))).collect();
        let own = Value { kind: Some(Kind::StructValue(Struct { fields })) };
        Struct { fields: [(OWN_METADATA.to_owned(), own)].into() }
    }

    fn resource(name: &str, descriptors: Vec<RateLimitDescriptor>) -> Resource {
        let config = RateLimitConfig { name: name.into(), domain: format!("{name}.io"), descriptors };
        Resource { type_url: TYPE_URL.into(), value: config.encode_to_vec().into() }
    }

    fn problem(descriptor: RateLimitDescriptor) -> String {
        policies(&[resource("shop", vec![descriptor])], 32 << 20, Dialect::default()).unwrap_err().to_string()
    }

    #[test]
    fn keys_of_weir_travel_in_metadata() {
        let string = |text: &str| Kind::StringValue(text.into());
        let mut pace = limited("pace", 7);
        pace.metadata = Some(own(&[("algorithm", string("gcra")), ("burst", Kind::NumberValue(20.0))]));
        let mut rate = limited("rate", 0);
        rate.rate_limit = Some(RateLimitPolicy::default());
        rate.metadata = Some(own(&[("rate", string("5/90s"))]));
        let mut alone = limited("alone", 0);
        alone.rate_limit = None;
        alone.metadata = Some(own(&[("rate", string("3/s")), ("drain", Kind::BoolValue(true))]));
        let mut alerts = limited("alerts", 7);
        let shares = [80.0, 100.0].map(|share| Value { kind: Some(Kind::NumberValue(share)) });
        let shares = prost_types::ListValue { values: shares.to_vec() };
        alerts.metadata = Some(own(&[("alert_at", Kind::ListValue(shares))]));
        let descriptors = vec![pace, rate, alone, limited("none", 0), alerts];
        let loaded = policies(&[resource("shop", descriptors)], 32 << 20, Dialect::default()).unwrap();
        let limits: Vec<_> = loaded.policies.rules().iter().map(|rule| &rule.limits[0]).collect();
        assert_eq!(limits[0].algorithm(), Algorithm::Gcra { burst: 20 });
        assert_eq!((limits[0].requests(), limits[0].window().us()), (7, 3_600_000_000));
        assert_eq!((limits[1].requests(), limits[1].window().us()), (5, 90_000_000));
        assert_eq!((limits[2].requests(), limits[2].drain), (3, true));
        assert_eq!(limits[3].requests(), 0, "a limit of nothing denies everything");
        assert_eq!(limits[4].alert_at.iter().collect::<Vec<_>>(), [80, 100]);
    }

    #[test]
    fn what_is_wrong_with_keys_of_weir_is_named() {
        let with = |fields: &[(&str, Kind)]| {
            let mut descriptor = limited("user", 5);
            descriptor.metadata = Some(own(fields));
            problem(descriptor)
        };
        let place = "shop: descriptors[0].rate_limit (user): ";
        let said = with(&[("algoritm", Kind::StringValue("gcra".into()))]);
        assert_eq!(said, format!("{place}unknown key \"algoritm\" in a rate limit, did you mean \"algorithm\"?"));
        let algorithm = ("algorithm", Kind::StringValue("gcra".into()));
        let said = with(&[algorithm.clone(), ("burst", Kind::StringValue("20".into()))]);
        assert_eq!(
            said,
            format!("{place}burst must be a whole number from 1 to 4294967295, not the text \"20\": remove the quotes")
        );
        let said = with(&[algorithm, ("burst", Kind::NumberValue(1.5))]);
        assert_eq!(said, format!("{place}burst must be a whole number from 1 to 4294967295, not \"1.5\""));
        let said = with(&[("unit", Kind::StringValue("day".into()))]);
        assert_eq!(said, "shop: descriptors[0]: metadata.weir.unit: the rate limit itself has unit too");
        let mut descriptor = limited("user", 5);
        let number = Value { kind: Some(Kind::NumberValue(1.0)) };
        descriptor.metadata = Some(Struct { fields: [(OWN_METADATA.to_owned(), number)].into() });
        assert_eq!(
            problem(descriptor),
            "shop: descriptors[0]: metadata.weir must be a struct with keys of a rate limit"
        );
    }

    #[test]
    fn every_field_arrives() {
        let mut shadow = limited("a*|/b", 4);
        shadow.value = "x*".into();
        shadow.shadow_mode = true;
        if let Some(policy) = &mut shadow.rate_limit {
            policy.name = "few".into();
            policy.replaces = vec![RateLimitReplace { name: "many".into() }];
        }
        let mut free = limited("free", 0);
        free.rate_limit = Some(RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() });
        let mut bare = limited("bare", 0);
        bare.rate_limit = None;
        bare.descriptors = vec![limited("below", 9)];
        let loaded = policies(
            &[resource("shop", vec![shadow, free, bare]), resource("bank", vec![])],
            32 << 20,
            Dialect::default(),
        )
        .unwrap();
        let rules = loaded.policies.rules();
        let paths: Vec<&str> = rules.iter().map(|rule| &*rule.path).collect();
        assert_eq!(paths, [r"a*\|/b=x*", "free", "bare|below"], "a separator of a key is escaped");
        assert_eq!(rules[0].role, Role::Shadow);
        assert_eq!((rules[0].limits[0].name.as_deref(), &*rules[0].replaces[0]), (Some("few"), "many"));
        assert!(rules[1].unlimited);
        assert_eq!(loaded.policies.domains().len(), 2);
    }

    #[test]
    fn every_unit_has_its_name() {
        for number in 1..=7 {
            let mut descriptor = limited("user", 1);
            if let Some(policy) = &mut descriptor.rate_limit {
                policy.unit = number;
            }
            let loaded = policies(&[resource("shop", vec![descriptor])], 32 << 20, Dialect::default()).unwrap();
            let unit = loaded.policies.rules()[0].limits[0].window().unit().map(Unit::name);
            let expected = ["second", "minute", "hour", "day", "month", "year", "week"];
            assert_eq!(unit, usize::try_from(number).ok().map(|number| expected[number - 1]));
        }
        let with_unit = |unit: i32| {
            let mut descriptor = limited("user", 1);
            if let Some(policy) = &mut descriptor.rate_limit {
                policy.unit = unit;
            }
            problem(descriptor)
        };
        assert!(with_unit(0).contains("without unit"), "{}", with_unit(0));
        assert!(with_unit(99).contains("no unit \"99\""), "{}", with_unit(99));
    }

    #[test]
    fn what_is_no_resource_is_named_by_its_place() {
        let good = resource("shop", vec![limited("user", 1)]);
        let strange = Resource { type_url: "type.googleapis.com/envoy.Cluster".into(), value: Bytes::new() };
        let broken = Resource { type_url: TYPE_URL.into(), value: vec![0xff].into() };
        let problems = policies(&[good.clone(), strange, broken, good], 32 << 20, Dialect::default()).unwrap_err();
        let texts: Vec<String> = problems.list().iter().map(ToString::to_string).collect();
        assert_eq!(texts[0], format!("resource 1: the type is \"type.googleapis.com/envoy.Cluster\", not {TYPE_URL}"));
        assert!(texts[1].starts_with("resource 2: not a RateLimitConfig: "), "{texts:?}");
        assert_eq!(texts[2], "shop: domain \"shop.io\" is defined already, at shop");
    }
}
