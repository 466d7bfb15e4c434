//! What the keys of a policy file mean: trees in, rules and problems out.
//!
//! A problem never stops the reading, so that all are told at once; a value that is wrong is told where it stands and
//! then counts as told, so that one mistake does not bring forth others.

use std::collections::HashMap;
use std::sync::Arc;

use super::yaml::{Document, NodeId, Value};
use super::{
    DESCRIPTORS_MAX, DOMAIN_BYTES_MAX, DomainOutline, FILE_BYTES_MAX, KEY_BYTES_MAX, LEVELS_MAX, Loaded,
    NAME_BYTES_MAX, Outline, PROBLEMS_MAX, Place, Position, Problem, Problems, REPLACES_MAX, VALUE_BYTES_MAX, nearest,
    shown, too_large,
};
use crate::config::settings::duration;
use crate::engine::policy::{DomainSpec, LIMITS_PER_RULE_MAX, NodeSpec, RuleKind, RuleSpec};
use crate::engine::{Algorithm, Limit, LimitError, PolicySet, Role, Unit, Window};

/// A mapping that a policy is made of: the keys that it can have.
struct Kind {
    /// What it is called in messages.
    name: &'static str,
    keys: &'static [&'static str],
    /// Keys that envoyproxy/ratelimit knows there and weir does not yet.
    not_yet: &'static [&'static str],
}

const FILE: Kind = Kind { name: "a policy file", keys: &["domain", "descriptors"], not_yet: &[] };
const DESCRIPTOR: Kind = Kind {
    name: "a descriptor",
    keys: &["key", "value", "rate_limit", "rate_limits", "shadow_mode", "share_threshold", "descriptors"],
    not_yet: &["quota_mode", "detailed_metric", "value_to_metric", "metadata"],
};
const LIMIT: Kind = Kind {
    name: "a rate limit",
    keys: &[
        "unit",
        "requests_per_unit",
        "window",
        "algorithm",
        "burst",
        "unlimited",
        "name",
        "replaces",
        "drain",
        "post_paid",
    ],
    not_yet: &[],
};
const REPLACED: Kind = Kind { name: "an entry of replaces", keys: &["name"], not_yet: &[] };
const KINDS: [&Kind; 4] = [&FILE, &DESCRIPTOR, &LIMIT, &REPLACED];
/// What a rate limit without limits cannot have.
const NOT_WITH_UNLIMITED: [&str; 7] =
    ["unit", "requests_per_unit", "window", "algorithm", "burst", "drain", "post_paid"];

/// A problem of the value at hand is on the list already.
struct Told;

/// A value that may be absent, or wrong.
type Read<T> = Result<Option<T>, Told>;

/// The values of a mapping by the keys of its kind.
struct Fields {
    at: Position,
    kind: &'static Kind,
    /// Where the key stands and its value, in the order of the kind's keys.
    found: Vec<Option<(Position, NodeId)>>,
    /// Keys that a misspelled one was probably meant to be.
    meant: Vec<&'static str>,
}

impl Fields {
    fn get(&self, key: &str) -> Option<(Position, NodeId)> {
        let index = self.kind.keys.iter().position(|&known| known == key)?;
        self.found[index]
    }

    /// Whether the key is neither there nor there under a misspelled name.
    fn lacks(&self, key: &str) -> bool {
        self.get(key).is_none() && !self.meant.contains(&key)
    }
}

/// One limit as read, with what it says about its rule.
struct ReadLimit {
    at: Position,
    /// None where the rule is unlimited.
    limit: Option<Limit>,
    name: Option<Box<str>>,
    replaces: Vec<(Position, String)>,
}

/// Reads files one after the other into one policy set.
#[derive(Default)]
pub(super) struct Reader {
    problems: Problems,
    specs: Vec<DomainSpec>,
    outlines: Vec<DomainOutline>,
    places: Vec<Place>,
    /// The index in `outlines` of each domain.
    domains: HashMap<String, usize>,
    descriptors: usize,
    files: usize,
}

impl Reader {
    /// Takes note of a file that cannot be read.
    pub(super) fn refused(&mut self, problem: Problem) {
        self.files += 1;
        self.problems.push(problem);
    }

    /// Reads one file.
    pub(super) fn file(&mut self, file: Arc<str>, text: &str) {
        if text.len() > FILE_BYTES_MAX {
            self.refused(Problem { file, position: None, message: too_large() });
            return;
        }
        self.files += 1;
        let document = match Document::parse(text) {
            Ok(document) => document,
            Err(fault) => {
                self.problems.push(Problem { file, position: Some(fault.position), message: fault.message });
                return;
            }
        };
        let mut of_file = FileReader { file: &file, document: &document, all: self, problems: Vec::new() };
        of_file.root();
        let mut problems = of_file.problems;
        problems.sort_by_key(|(at, _)| *at);
        for (at, message) in problems {
            self.problems.push(Problem { file: file.clone(), position: Some(at), message });
        }
    }

    /// The policies, where nothing was wrong.
    pub(super) fn finish(mut self) -> Result<Loaded, Problems> {
        if self.problems.count() > 0 {
            return Err(self.problems);
        }
        match PolicySet::compile(self.specs) {
            Ok(policies) => Ok(Loaded { policies, places: self.places, domains: self.outlines, files: self.files }),
            // Everything that the engine refuses was looked for above; should something slip through, it is told
            // without a line rather than not at all.
            Err(error) => {
                self.problems.push(Problem { file: "policies".into(), position: None, message: error.to_string() });
                Err(self.problems)
            }
        }
    }
}

struct FileReader<'r> {
    file: &'r Arc<str>,
    document: &'r Document<'r>,
    all: &'r mut Reader,
    problems: Vec<(Position, String)>,
}

impl FileReader<'_> {
    fn tell(&mut self, at: Position, message: impl Into<String>) -> Told {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push((at, message.into()));
        } else {
            self.all.problems.more += 1;
        }
        Told
    }

    fn place(&self, position: Position) -> Place {
        Place { file: self.file.clone(), position }
    }

    fn root(&mut self) {
        let start = Position { line: 1, column: 1 };
        let Some(root) = self.document.root.filter(|&root| !self.document.node(root).is_null()) else {
            self.tell(start, "empty: a policy file has a domain and descriptors");
            return;
        };
        let Ok(fields) = self.fields(root, &FILE) else {
            return;
        };
        let domain = self.domain(&fields);
        let (specs, outlines) = self.descriptors(&fields, 1);
        if let Ok((at, name)) = domain {
            let place = self.place(at);
            self.all.domains.insert(name.clone(), self.all.outlines.len());
            self.all.specs.push(DomainSpec { name: name.clone(), descriptors: specs });
            self.all.outlines.push(DomainOutline { name, place, descriptors: outlines });
        }
    }

    fn domain(&mut self, fields: &Fields) -> Result<(Position, String), Told> {
        let Some(name) = self.text(fields, "domain", DOMAIN_BYTES_MAX)? else {
            let missing = fields.lacks("domain");
            return Err(match fields.get("domain") {
                Some((at, _)) => self.tell(at, "domain is empty: give it the name that requests use"),
                None if missing => self.tell(fields.at, "no domain: give the name that requests use"),
                None => Told,
            });
        };
        let at = fields.get("domain").map_or(fields.at, |(key, node)| self.value_position(key, node));
        if let Some(&first) = self.all.domains.get(&name) {
            let first = &self.all.outlines[first].place;
            let message = format!("domain {} is defined already, at {first}", shown(&name));
            return Err(self.tell(at, message));
        }
        Ok((at, name))
    }

    /// The list under `descriptors`, which may be absent or nothing; without what is told to be wrong.
    fn descriptors(&mut self, fields: &Fields, level: usize) -> (Vec<NodeSpec>, Vec<Outline>) {
        let mut specs = Vec::new();
        let mut outlines = Vec::new();
        let Ok(Some(items)) = self.list(fields, "descriptors") else {
            return (specs, outlines);
        };
        if level > LEVELS_MAX {
            let message = format!("more than {LEVELS_MAX} levels of descriptors: no request has so many entries");
            self.tell_value(fields, "descriptors", message);
            return (specs, outlines);
        }
        let mut first_places = HashMap::new();
        for item in items {
            self.all.descriptors += 1;
            if self.all.descriptors > DESCRIPTORS_MAX {
                if self.all.descriptors == DESCRIPTORS_MAX + 1 {
                    let at = self.document.node(item).position;
                    self.tell(at, format!("more than {DESCRIPTORS_MAX} descriptors in all files"));
                }
                break;
            }
            let Ok((spec, outline)) = self.descriptor(item, level) else {
                continue;
            };
            let twin = first_places.insert((spec.key.clone(), spec.value.clone()), outline.position);
            if let Some(first) = twin {
                let what = match &spec.value {
                    Some(value) => format!("key {} with value {}", shown(&spec.key), shown(value)),
                    None => format!("key {} without a value", shown(&spec.key)),
                };
                let message = format!("{what} is here twice, first at line {}", first.line);
                self.tell(outline.position, message);
            }
            specs.push(spec);
            outlines.push(outline);
        }
        (specs, outlines)
    }

    fn descriptor(&mut self, id: NodeId, level: usize) -> Result<(NodeSpec, Outline), Told> {
        let fields = self.fields(id, &DESCRIPTOR)?;
        let key = match self.text(&fields, "key", KEY_BYTES_MAX) {
            Ok(Some(key)) => Ok(key),
            Ok(None) => Err(match fields.get("key") {
                Some((at, _)) => self.tell(at, "key is empty"),
                None if fields.lacks("key") => self.tell(fields.at, "a descriptor without a key"),
                None => Told,
            }),
            Err(told) => Err(told),
        };
        let value = self.text(&fields, "value", VALUE_BYTES_MAX);
        let share_threshold = self.flag(&fields, "share_threshold");
        let shadow_mode = self.flag(&fields, "shadow_mode");
        if let (Ok(value), Ok(true)) = (&value, &share_threshold)
            && !value.as_deref().is_some_and(|value| value.contains('*'))
            && !fields.meant.contains(&"value")
        {
            let at = fields.get("share_threshold").map_or(fields.at, |(at, _)| at);
            self.tell(at, "share_threshold needs a value with * in it: values that match share one count");
        }
        let place = self.place(fields.at);
        let rule = self.rule(&fields);
        let rule_id = match &rule {
            Ok(Some(_)) => {
                // At most as many as descriptors, so the number fits.
                let id = u32::try_from(self.all.places.len()).unwrap_or(u32::MAX);
                self.all.places.push(place);
                Some(id)
            }
            _ => None,
        };
        let (specs, outlines) = self.descriptors(&fields, level + 1);

        let (key, value, share_threshold) = (key?, value?, share_threshold?);
        let role = if matches!(shadow_mode, Ok(true)) { Role::Shadow } else { Role::Enforced };
        // A wrong rule is told and left out; the descriptor stays, so that a twin of it is told in the same run.
        let rule = rule.unwrap_or_default();
        let outline = Outline {
            key: key.as_str().into(),
            value: value.as_deref().map(Into::into),
            share_threshold,
            position: fields.at,
            rule: rule_id,
            descriptors: outlines,
        };
        let rule = rule.map(|(kind, replaces)| RuleSpec { kind, role, replaces });
        Ok((NodeSpec { key, value, share_threshold, rule, descriptors: specs }, outline))
    }

    /// What `rate_limit` or `rate_limits` says.
    fn rule(&mut self, fields: &Fields) -> Read<(RuleKind, Vec<String>)> {
        match (fields.get("rate_limit"), fields.get("rate_limits")) {
            (None, None) => Ok(None),
            (Some((one, _)), Some((many, _))) => {
                let at = one.max(many);
                Err(self.tell(at, "rate_limit and rate_limits together: write all of them under rate_limits"))
            }
            (Some((at, id)), None) => {
                let limit = self.limit(at, id)?;
                self.check_replaces(&limit.replaces, &[limit.name.as_deref()])?;
                let kind = match limit.limit {
                    Some(limit) => RuleKind::Limits(vec![limit]),
                    None => RuleKind::Unlimited { name: limit.name },
                };
                Ok(Some((kind, limit.replaces.into_iter().map(|(_, name)| name).collect())))
            }
            (None, Some((at, id))) => self.limits(at, id).map(Some),
        }
    }

    /// The list under `rate_limits`.
    fn limits(&mut self, at: Position, id: NodeId) -> Result<(RuleKind, Vec<String>), Told> {
        let document = self.document;
        let node = document.node(id);
        let Value::List(items) = &node.value else {
            let message = format!("rate_limits must be a list of rate limits, not {}", node.describe());
            return Err(self.tell(at, message));
        };
        if !(1..=LIMITS_PER_RULE_MAX).contains(&items.len()) {
            let message = format!("rate_limits has {} rate limits: 1 to {LIMITS_PER_RULE_MAX}", items.len());
            return Err(self.tell(at, message));
        }
        let mut all = Vec::new();
        let mut is_wrong = false;
        for &item in items {
            match self.limit(document.node(item).position, item) {
                Ok(ReadLimit { limit: None, at, .. }) => {
                    self.tell(at, "unlimited in a list: the other limits would still apply, write rate_limit instead");
                    is_wrong = true;
                }
                Ok(limit) => all.push(limit),
                Err(Told) => is_wrong = true,
            }
        }
        let names: Vec<_> = all.iter().map(|limit| limit.name.as_deref()).collect();
        for limit in &all {
            is_wrong |= self.check_replaces(&limit.replaces, &names).is_err();
        }
        let twins = self.twins(&all)?;
        if is_wrong {
            return Err(Told);
        }
        let mut limits = Vec::new();
        let mut replaces = Vec::new();
        for (read, has_twin) in all.into_iter().zip(twins) {
            limits.extend(read.limit.map(|limit| if has_twin { limit.keyed_by_name() } else { limit }));
            replaces.extend(read.replaces.into_iter().map(|(_, name)| name));
        }
        Ok((RuleKind::Limits(limits), replaces))
    }

    /// Which limits of a list have the shape of another one, and are told from it by their names.
    fn twins(&mut self, all: &[ReadLimit]) -> Result<Vec<bool>, Told> {
        let mut twins = vec![false; all.len()];
        let mut told = Ok(());
        for (i, limit) in all.iter().enumerate() {
            let shape = |read: &ReadLimit| read.limit.as_ref().map(|limit| limit.id().to_owned());
            for (j, other) in all[..i].iter().enumerate() {
                if shape(limit) != shape(other) {
                    continue;
                }
                twins[i] = true;
                twins[j] = true;
                if limit.name.is_some() && other.name.is_some() && limit.name != other.name {
                    continue;
                }
                let message = format!(
                    "the same algorithm and window as the rate limit at line {}: \
                     give each a name of its own, by which their counts are told apart",
                    other.at.line
                );
                told = Err(self.tell(limit.at, message));
                break;
            }
        }
        told.map(|()| twins)
    }

    /// A rule that replaced itself would never apply.
    fn check_replaces(&mut self, replaces: &[(Position, String)], own: &[Option<&str>]) -> Result<(), Told> {
        let mut result = Ok(());
        for (at, name) in replaces {
            if own.contains(&Some(name)) {
                result = Err(self.tell(*at, format!("replaces {}, which is a name of its own", shown(name))));
            }
        }
        result
    }

    /// One limit, under `rate_limit` or in the list of `rate_limits`.
    fn limit(&mut self, at: Position, id: NodeId) -> Result<ReadLimit, Told> {
        if self.document.node(id).is_null() {
            return Err(self.tell(at, "an empty rate limit: give it unit and requests_per_unit, or leave it out"));
        }
        let fields = self.fields(id, &LIMIT)?;
        let name = self.text(&fields, "name", NAME_BYTES_MAX);
        let replaces = self.replaces(&fields);
        let unlimited = self.flag(&fields, "unlimited");
        let limit = match unlimited {
            Ok(true) => self.nothing_but_unlimited(&fields).map(|()| None),
            Ok(false) => self.counted(&fields).map(Some),
            Err(told) => Err(told),
        };
        let (mut limit, name, replaces) = (limit?, name?.map(String::into_boxed_str), replaces?);
        if let Some(limit) = &mut limit {
            limit.name.clone_from(&name);
        }
        Ok(ReadLimit { at, limit, name, replaces })
    }

    fn nothing_but_unlimited(&mut self, fields: &Fields) -> Result<(), Told> {
        let mut result = Ok(());
        for key in NOT_WITH_UNLIMITED {
            if let Some((at, _)) = fields.get(key) {
                result = Err(self.tell(at, format!("{key} with unlimited: true, which has no limit to speak of")));
            }
        }
        result
    }

    /// A limit that counts.
    fn counted(&mut self, fields: &Fields) -> Result<Limit, Told> {
        let requests = match self.number(fields, "requests_per_unit") {
            Ok(None) if fields.lacks("requests_per_unit") => {
                Err(self.tell(fields.at, "a rate limit without requests_per_unit"))
            }
            Ok(None) => Err(Told),
            Ok(Some(requests)) => Ok(requests),
            Err(told) => Err(told),
        };
        let window = self.window(fields);
        let drain = self.flag(fields, "drain");
        let post_paid = self.flag(fields, "post_paid");
        let burst = self.number(fields, "burst");
        let algorithm = self.algorithm(fields);
        if let (Ok(Algorithm::FixedWindow), Some((at, _))) = (&algorithm, fields.get("burst")) {
            self.tell(at, "burst without algorithm: gcra: a fixed_window admits all of requests_per_unit at once");
            return Err(Told);
        }
        let (requests, window, algorithm, burst) = (requests?, window?, algorithm?, burst?);
        let algorithm = match algorithm {
            Algorithm::FixedWindow => Algorithm::FixedWindow,
            // A limit of 0 admits nothing, whatever its burst.
            Algorithm::Gcra { .. } => Algorithm::Gcra { burst: burst.unwrap_or(requests.max(1)) },
        };
        let mut limit = match Limit::new(requests, window, algorithm) {
            Ok(limit) => limit,
            Err(error) => {
                let key = match error {
                    LimitError::BurstZero | LimitError::BurstTooLong { .. } => "burst",
                    LimitError::WindowTooShort { .. } | LimitError::WindowTooLong { .. } => "window",
                };
                return Err(self.tell_value(fields, key, error.to_string()));
            }
        };
        limit.drain = drain?;
        limit.post_paid = post_paid?;
        Ok(limit)
    }

    /// The window, of a unit or as a length.
    fn window(&mut self, fields: &Fields) -> Result<Window, Told> {
        match (fields.get("unit"), fields.get("window")) {
            (Some((unit, _)), Some((window, _))) => {
                Err(self.tell(unit.max(window), "unit and window together: window takes the place of unit"))
            }
            (None, None) if fields.lacks("unit") && fields.lacks("window") => {
                Err(self.tell(fields.at, "a rate limit without unit: give one, or a window such as 90s"))
            }
            (None, None) => Err(Told),
            (Some((at, _)), None) => {
                let names = Unit::ALL.map(Unit::name);
                let Some(name) = self.text(fields, "unit", NAME_BYTES_MAX)? else {
                    return Err(self.tell(at, format!("unit is empty: {}", names.join(", "))));
                };
                match Unit::from_name(&name) {
                    Some(unit) => Ok(unit.window()),
                    None => {
                        let message = format!("no unit {}{}", shown(&name), instead(&name, &names));
                        Err(self.tell_value(fields, "unit", message))
                    }
                }
            }
            (None, Some((at, _))) => {
                let Some(text) = self.text(fields, "window", NAME_BYTES_MAX)? else {
                    return Err(self.tell(at, "window is empty: write a length such as 90s"));
                };
                let length = match duration(&text) {
                    Ok(length) => u64::try_from(length.as_micros()).unwrap_or(u64::MAX),
                    Err(reason) => {
                        let message = format!("window {}: {reason}", shown(&text));
                        return Err(self.tell_value(fields, "window", message));
                    }
                };
                Window::from_micros(length)
                    .map_err(|error| self.tell_value(fields, "window", format!("window {}: {error}", shown(&text))))
            }
        }
    }

    /// The algorithm, its burst not yet filled in.
    fn algorithm(&mut self, fields: &Fields) -> Result<Algorithm, Told> {
        let Some(name) = self.text(fields, "algorithm", NAME_BYTES_MAX)? else {
            return Ok(Algorithm::FixedWindow);
        };
        let known = [Algorithm::FixedWindow, Algorithm::Gcra { burst: 1 }];
        if let Some(algorithm) = known.into_iter().find(|algorithm| algorithm.name() == name) {
            return Ok(algorithm);
        }
        let message = format!("no algorithm {}{}", shown(&name), instead(&name, &Algorithm::NAMES));
        Err(self.tell_value(fields, "algorithm", message))
    }

    fn replaces(&mut self, fields: &Fields) -> Result<Vec<(Position, String)>, Told> {
        let Some(items) = self.list(fields, "replaces")? else {
            return Ok(Vec::new());
        };
        if items.len() > REPLACES_MAX {
            let message = format!("replaces has {} names: at most {REPLACES_MAX}", items.len());
            return Err(self.tell_value(fields, "replaces", message));
        }
        let mut names = Vec::new();
        let mut result = Ok(());
        for item in items {
            let Ok(entry) = self.fields(item, &REPLACED) else {
                result = Err(Told);
                continue;
            };
            match self.text(&entry, "name", NAME_BYTES_MAX) {
                Ok(Some(name)) => names.push((entry.at, name)),
                Ok(None) if entry.lacks("name") || entry.get("name").is_some() => {
                    result = Err(self.tell(entry.at, "replaces without a name: write the name of another rate limit"));
                }
                Ok(None) | Err(Told) => result = Err(Told),
            }
        }
        result.map(|()| names)
    }

    /// The keys and values of a mapping; what it cannot have is told.
    fn fields(&mut self, id: NodeId, kind: &'static Kind) -> Result<Fields, Told> {
        let document = self.document;
        let node = document.node(id);
        let Value::Mapping(entries) = &node.value else {
            let message = format!("{} must be a mapping of keys and values, not {}", kind.name, node.describe());
            return Err(self.tell(node.position, message));
        };
        let found = vec![None; kind.keys.len()];
        let mut fields = Fields { at: node.position, kind, found, meant: Vec::new() };
        for &(key, value) in entries {
            let at = document.node(key).position;
            let Value::Scalar { text: key, .. } = &document.node(key).value else {
                continue;
            };
            let Some(index) = kind.keys.iter().position(|known| known == key) else {
                let message = unknown_key(key, kind, &mut fields.meant);
                self.tell(at, message);
                continue;
            };
            match fields.found[index] {
                None => fields.found[index] = Some((at, value)),
                Some((first, _)) => {
                    self.tell(at, format!("{key} is here twice, first at line {}", first.line));
                }
            }
        }
        Ok(fields)
    }

    /// A text; nothing and an empty text are none. Numbers and booleans are texts as written.
    fn text(&mut self, fields: &Fields, key: &str, bytes_max: usize) -> Read<String> {
        let Some((at, id)) = fields.get(key) else {
            return Ok(None);
        };
        let document = self.document;
        let node = document.node(id);
        if node.is_null() {
            return Ok(None);
        }
        let Value::Scalar { text, .. } = &node.value else {
            return Err(self.tell(self.value_position(at, id), format!("{key} must be text, not {}", node.describe())));
        };
        if text.len() > bytes_max {
            let message = format!("{key} has {} bytes: at most {bytes_max}", text.len());
            return Err(self.tell(self.value_position(at, id), message));
        }
        Ok(Some(text.to_string()).filter(|text| !text.is_empty()))
    }

    /// True or false, in any of the words that YAML 1.1 has for it; absent and nothing are false.
    fn flag(&mut self, fields: &Fields, key: &str) -> Result<bool, Told> {
        let Some((at, id)) = fields.get(key) else {
            return Ok(false);
        };
        let document = self.document;
        let node = document.node(id);
        if let Value::Scalar { text, plain: true } = &node.value {
            match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "y" => return Ok(true),
                "false" | "no" | "off" | "n" => return Ok(false),
                _ if node.is_null() => return Ok(false),
                _ => {}
            }
        }
        let message = format!("{key} must be true or false, not {}", node.describe());
        Err(self.tell(self.value_position(at, id), message))
    }

    /// A whole number of 32 bits in decimal digits, perhaps with `_` between them.
    fn number(&mut self, fields: &Fields, key: &str) -> Read<u32> {
        let Some((at, id)) = fields.get(key) else {
            return Ok(None);
        };
        let document = self.document;
        let node = document.node(id);
        if let Value::Scalar { text, plain: true } = &node.value {
            let digits: String = text.split('_').collect();
            let is_decimal = digits.bytes().all(|byte| byte.is_ascii_digit());
            // YAML 1.1 reads 010 as 8, YAML 1.2 as 10: nobody should have to know.
            let is_clear = !digits.starts_with('0') || digits == "0";
            let starts_and_ends = !text.starts_with('_') && !text.ends_with('_');
            if let (true, true, true, Ok(number)) = (is_decimal, is_clear, starts_and_ends, digits.parse()) {
                return Ok(Some(number));
            }
        }
        let mut message = format!("{key} must be a whole number from 0 to {}, not {}", u32::MAX, node.describe());
        if let Value::Scalar { text, plain: true } = &node.value
            && text.starts_with('0')
            && text.parse::<u32>().is_ok()
        {
            message.push_str(": a leading 0 would mean octal to others");
        }
        Err(self.tell(self.value_position(at, id), message))
    }

    /// The items of a list; nothing is none.
    fn list(&mut self, fields: &Fields, key: &str) -> Read<Vec<NodeId>> {
        let Some((at, id)) = fields.get(key) else {
            return Ok(None);
        };
        let document = self.document;
        let node = document.node(id);
        if node.is_null() {
            return Ok(None);
        }
        match &node.value {
            Value::List(items) => Ok(Some(items.clone())),
            _ => {
                let message = format!("{key} must be a list, not {}", node.describe());
                Err(self.tell(self.value_position(at, id), message))
            }
        }
    }

    /// Tells a problem of a key's value where the value stands.
    fn tell_value(&mut self, fields: &Fields, key: &str, message: String) -> Told {
        let at = fields.get(key).map_or(fields.at, |(key, node)| self.value_position(key, node));
        self.tell(at, message)
    }

    /// Where a value stands; the place of an alias is that of its key.
    fn value_position(&self, key: Position, id: NodeId) -> Position {
        let value = self.document.node(id).position;
        if value > key { value } else { key }
    }
}

/// Says what is wrong with a key that a kind of mapping does not have, and notes what it was meant to be.
fn unknown_key(key: &str, kind: &Kind, meant: &mut Vec<&'static str>) -> String {
    if kind.not_yet.contains(&key) {
        return format!("{key} is not supported yet");
    }
    let text = shown(key);
    if let Some(home) = KINDS.iter().find(|other| other.keys.contains(&key) || other.not_yet.contains(&key)) {
        return format!("{key} belongs in {}, not in {}", home.name, kind.name);
    }
    if let Some(near) = nearest(key, kind.keys.iter().copied()) {
        meant.push(near);
        return format!("unknown key {text} in {}, did you mean {near:?}?", kind.name);
    }
    format!("unknown key {text} in {}: it has {}", kind.name, kind.keys.join(", "))
}

/// The end of a message about a word that is none of the known ones.
fn instead(word: &str, known: &[&'static str]) -> String {
    match nearest(word, known.iter().copied()) {
        Some(near) => format!(", did you mean {near:?}?"),
        None => format!(": it is one of {}", known.join(", ")),
    }
}
