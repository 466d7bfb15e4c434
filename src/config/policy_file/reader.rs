//! What the keys of a policy file and of its descriptors mean: trees in, rules and problems out.
//!
//! Not here: what one limit says (limit.rs), and what keys there are (keys.rs).
//!
//! A problem never stops the reading, so that all are told at once; a value that is wrong is told where it stands and
//! then counts as told, so that one mistake does not bring forth others.

use std::collections::HashMap;
use std::sync::Arc;

use super::fields::{Fields, Read};
use super::keys::{DESCRIPTOR, FILE};
use super::limit::ReadLimit;
use super::yaml::{Document, NodeId, Value};
use super::{
    DESCRIPTORS_MAX, DOMAIN_BYTES_MAX, DomainOutline, FILE_BYTES_MAX, KEY_BYTES_MAX, LEVELS_MAX, Loaded, Outline,
    PROBLEMS_MAX, Place, Position, Problem, Problems, VALUE_BYTES_MAX, shown, too_large,
};
use crate::engine::policy::{DomainSpec, LIMITS_PER_RULE_MAX, NodeSpec, RuleKind, RuleSpec};
use crate::engine::{Mode, OnError, PolicySet, Role};

/// A problem of the value at hand is on the list already.
pub(super) struct Told;

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

/// Reads one file. What all files share is told to the reader of all.
pub(super) struct FileReader<'r> {
    file: &'r Arc<str>,
    pub(super) document: &'r Document<'r>,
    all: &'r mut Reader,
    problems: Vec<(Position, String)>,
}

impl FileReader<'_> {
    /// Notes a problem.
    pub(super) fn tell(&mut self, at: Position, message: impl Into<String>) -> Told {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push((at, message.into()));
        } else {
            self.all.problems.more += 1;
        }
        Told
    }

    /// Whether further problems of this file are only counted.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() >= PROBLEMS_MAX
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
        let mode = match self.choice(&fields, "charging", &Mode::NAMES) {
            Ok(charging) => charging.and_then(Mode::named),
            Err(Told) => None,
        };
        let on_error = self.on_error(&fields).unwrap_or_default();
        let (specs, outlines) = self.descriptors(&fields, 1);
        if let Ok((at, name)) = domain {
            let place = self.place(at);
            self.all.domains.insert(name.clone(), self.all.outlines.len());
            self.all.specs.push(DomainSpec { name: name.clone(), mode, on_error, descriptors: specs });
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
        let on_error = self.on_error(&fields);
        if let (Ok(value), Ok(true)) = (&value, &share_threshold)
            && !value.as_deref().is_some_and(|value| value.contains('*'))
            && (fields.get("value").is_some() || fields.lacks("value"))
        {
            let at = fields.get("share_threshold").map_or(fields.at, |(at, _)| at);
            self.tell(at, "share_threshold needs a value with * in it: values that match share one count");
        }
        let place = self.place(fields.at);
        let rule = self.rule(&fields);
        self.check_on_error(&fields, &rule);
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
        let on_error = on_error.unwrap_or_default();
        let rule = rule.map(|(kind, replaces)| RuleSpec { role, replaces, on_error, ..RuleSpec::of(kind) });
        let spec = NodeSpec { key, value, share_threshold, rule, descriptors: specs, ..NodeSpec::default() };
        Ok((spec, outline))
    }

    /// What becomes of a charge that no store answers; none where that is left to what stands further out.
    fn on_error(&mut self, fields: &Fields) -> Read<OnError> {
        Ok(self.choice(fields, "on_error", &OnError::NAMES)?.and_then(OnError::named))
    }

    /// Tells an `on_error` beside which nothing is charged: whoever wrote it expects it to do something.
    fn check_on_error(&mut self, fields: &Fields, rule: &Read<(RuleKind, Vec<String>)>) {
        let Some(at) = self.given(fields, "on_error") else {
            return;
        };
        match rule {
            Ok(None) if fields.lacks("rate_limit") && fields.lacks("rate_limits") => {
                self.tell(at, "on_error without a rate limit beside it: descriptors further down do not inherit it");
            }
            Ok(Some((RuleKind::Unlimited { .. }, _))) => {
                self.tell(at, "on_error with unlimited: true, which passes without asking a store");
            }
            _ => {}
        }
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
}
