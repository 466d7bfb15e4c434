//! Reads the keys of a policy file and of its descriptors: trees in, rules and problems out.
//!
//! Reading continues after a problem, so all problems are reported at once. An invalid value is reported and then
//! ignored, so one mistake does not cause others. Not here: one limit (limit.rs), and the list of keys (tables.rs).

use std::collections::HashMap;
use std::sync::Arc;

use weir_engine::automaton::AUTOMATON_BYTES_MAX;
use weir_engine::policy::{DomainSpec, LIMITS_PER_RULE_MAX, PolicyError, RuleKind, RuleSpec, path_below};
use weir_engine::{Matcher, Mode, PolicySet, Property, Role, exclusion};
use weir_text::quoted;
use weir_text::yaml::{Document, Fault, NodeId, Oddity, Value};

use super::fields::{Fields, Read};
use super::heavy;
use super::limit::ReadLimit;
use super::many_wildcards;
use super::matches::{Claim, taken};
use super::overlay::edits::{Overlaid, Overlays};
use super::state::{FileReader, Reader, Reported, place};
use super::tables::{FORMS, KINDS, descriptor, file};
use super::tree::{Paths, Planted};
use super::warning::{Code, Warning};
use super::{
    DomainOutline, Limits, Loaded, Location, Note, Outline, Position, Problem, ProblemKind, Problems, instead, limits,
};

impl Reader {
    /// Adds a problem for a file that cannot be read.
    pub(super) fn refused(&mut self, problem: Problem) {
        self.files += 1;
        self.problems.push(problem);
    }

    pub(super) fn file(&mut self, file: Arc<str>, text: &str) {
        let unreadable = |file, message| Problem { kind: ProblemKind::Unreadable, file, position: None, message };
        let Limits { file_bytes, total_bytes, .. } = self.limits;
        if text.len() > file_bytes {
            self.refused(unreadable(file, limits::too_large(text.len() as u64, file_bytes)));
            return;
        }
        if text.len() > self.bytes_left {
            self.problems.are_of_all = true;
            self.refused(unreadable(file, limits::too_large_together(total_bytes)));
            return;
        }
        self.bytes_left -= text.len();
        self.files += 1;
        let mut document = match Document::parse(text, self.dialect.yaml(self.limits, text.len())) {
            Ok(document) if document.aliased_bytes > self.bytes_left => {
                self.problems.are_of_all = true;
                self.problems.push(unreadable(file, limits::too_large_together(total_bytes)));
                return;
            }
            Ok(document) => document,
            Err(fault) => {
                let Fault { position, message } = fault;
                self.problems.push(Problem { kind: ProblemKind::Yaml, file, position: Some(position), message });
                return;
            }
        };
        self.bytes_left -= document.aliased_bytes;
        self.document(&file, &mut document, None);
    }

    /// Reads policies that were not read from text.
    pub(super) fn tree(&mut self, name: &Arc<str>, planted: &mut Planted<'_>) {
        self.files += 1;
        self.document(name, &mut planted.document, Some(&planted.paths));
    }

    /// Reads a whole document, with its overlays. Keeps its warnings and problems in the order of their places.
    fn document(&mut self, file: &Arc<str>, document: &mut Document<'_>, paths: Option<&Paths>) {
        let place_of = |position| place(file, paths, position).to_string();
        let overlays = self.overlays.as_mut();
        let mut edits = overlays.map(|overlays| overlays.apply(document, &place_of)).unwrap_or_default();
        let problems = std::mem::take(&mut edits.problems);
        let mut of_file = FileReader { paths, problems, edits, ..FileReader::new(file, document, &KINDS, self) };
        for (at, oddity) in &document.oddities {
            match oddity {
                Oddity::KeyTwice(key) => {
                    of_file.warn(*at, Code::KeyTwice, format!("{} appears twice: later values win", quoted(key)));
                }
                Oddity::SecondDocument => {
                    let message = "only the first document is read: a file has one domain";
                    of_file.warn(*at, Code::SecondDocument, message);
                }
            }
        }
        of_file.root();
        of_file.all.problems.is_cut |= of_file.is_full();
        let FileReader { mut problems, mut warnings, .. } = of_file;
        problems.sort_by_key(|(at, _)| *at);
        warnings.sort_by_key(|(at, ..)| *at);
        for (position, code, message) in warnings {
            let place = self.place(file, paths, position);
            self.warnings.push(Warning::at(&place, code, message));
        }
        for (position, message) in problems {
            let Location { file: of, position: at } = self.place(file, None, position);
            let problem = match paths.filter(|_| position.of_graft().is_none()).map(|paths| paths.path(position)) {
                None => Problem::in_policies(of, Some(at), message),
                Some(path) if path.is_empty() => Problem::in_policies(of, None, message),
                Some(path) => Problem::in_policies(of, None, format!("{path}: {message}")),
            };
            self.problems.push_of(file, problem);
        }
    }

    /// The policies, if there were no problems.
    pub(super) fn finish(mut self) -> Result<Loaded, Problems> {
        if self.problems.count() > 0 {
            return Err(self.problems);
        }
        // A second file of a domain was reported, if files are not joined.
        let compiled = PolicySet::compile_joined(&mut self.specs, self.limits.automata_bytes());
        for spec in self.specs {
            self.outlines[self.domains[&spec.name]].descriptors.extend(spec.descriptors);
        }
        match compiled {
            Ok(policies) => {
                if self.dialect.compatible {
                    many_wildcards::warn(&self.outlines, &mut self.allowed, &mut self.warnings);
                }
                heavy::warn(&policies, &self.outlines, &mut self.allowed, &mut self.warnings);
                Ok(Loaded {
                    kept: None,
                    overlays: self.overlays.as_ref().map(Overlays::used),
                    policies,
                    places: self.places,
                    domains: self.outlines,
                    files: self.files,
                    paths: Vec::new(),
                    warnings: self.warnings,
                    allowed: self.allowed,
                    dialect: self.dialect,
                    file_domains: self.problems.domains,
                })
            }
            Err(error) => {
                // Most mistakes that the engine refuses were reported before.
                let place = error.rule_path().and_then(|path| place_of(&self.outlines, path));
                let is_of_one = matches!(
                    error,
                    PolicyError::TooLarge { bytes_max: AUTOMATON_BYTES_MAX, .. }
                        | PolicyError::Weigh { .. }
                        | PolicyError::TooManySteps(_)
                        | PolicyError::TooManyInner(_)
                );
                self.problems.are_of_all = place.is_none() || !is_of_one;
                let (file, position) = match place {
                    Some(place) => (place.file, Some(place.position)),
                    None => ("policies".into(), None),
                };
                let mut message = error.to_string();
                if let PolicyError::Weigh { by, .. } = &error
                    && let Some(overlay) = self.weigh_of_overlays.get(by)
                {
                    message = format!("{message} (with the overlay at {overlay})");
                }
                self.problems.push(Problem::in_policies(file, position, message));
                Err(self.problems)
            }
        }
    }
}

impl FileReader<'_> {
    fn root(&mut self) {
        let Some(root) = self.document.root.filter(|&root| !self.document.node(root).is_null()) else {
            self.report(Position::START, "empty: a policy file has a domain and descriptors");
            return;
        };
        let Ok(fields) = self.fields_of_file(root, &file::KIND) else {
            return;
        };
        let domain = self.domain(&fields);
        self.mode = self.read(&fields, file::CHARGING).unwrap_or_default();
        if let Ok((_, name)) = &domain
            && let Some(first) = self.all.specs.iter().find(|spec| spec.name == *name)
        {
            // The first file of a domain sets `charging` for all of them.
            self.mode = first.mode;
        }
        let on_error = self.read(&fields, file::ON_ERROR).unwrap_or_default();
        if let Ok((at, _)) = &domain {
            let place = self.place(*at);
            self.warn_of_no_descriptors(&fields, *at);
            self.allow_warnings(&fields, &place, 0);
        }
        let descriptors = self.descriptors(&fields, 1);
        let Ok((at, name)) = domain else {
            return;
        };
        if let (Some(Mode::Independent), Some(&hold)) = (self.mode, self.holds.first()) {
            self.refuse_beside_hold(hold, Property::Independent, Property::Independent.name());
        }
        if let Some(&first) = self.all.domains.get(&name) {
            self.join(first, &name, &fields, &descriptors);
        } else {
            let place = self.place(at);
            self.all.domains.insert(name.clone(), self.all.outlines.len());
            self.all.outlines.push(DomainOutline { name: name.clone(), place, descriptors: Vec::new() });
        }
        self.all.specs.push(DomainSpec { name, mode: self.mode, on_error, descriptors });
    }

    /// Warns about a file that probably lost its descriptors, as from a template that rendered nothing. A control plane does not
    /// distinguish an absent list from an empty one.
    fn warn_of_no_descriptors(&mut self, fields: &Fields, domain: Position) {
        let key = fields.key_at(descriptor::DESCRIPTORS);
        let is_absent = key.is_some() || fields.lacks(descriptor::DESCRIPTORS);
        if self.paths.is_some() || !is_absent || self.given(fields, descriptor::DESCRIPTORS).is_some() {
            return;
        }
        let what = if key.is_some() { "descriptors is empty" } else { "no descriptors" };
        self.warn(
            key.unwrap_or(domain),
            Code::NoDescriptors,
            format!("{what}: this file limits nothing, write descriptors: [] if that is meant"),
        );
    }

    /// Reports a hold, by its place and key, beside a property that excludes it.
    pub(super) fn refuse_beside_hold(&mut self, (at, word): (Position, &str), other: Property, beside: &str) {
        if let Some(excluded) = exclusion(Property::Hold, other) {
            self.report(at, format!("{word} with {beside}: {}", excluded.reason));
        }
    }

    /// Reports contradictions between files of one domain.
    fn join(&mut self, first: usize, name: &str, fields: &Fields, outlines: &[Outline]) {
        for key in [file::CHARGING.name, file::ON_ERROR.name] {
            if let Some(at) = self.given(fields, key) {
                let place = self.all.outlines[first].place.clone();
                self.report(at, format!("{key} belongs in the first file of the domain, which is at {place}"));
            }
        }
        let mut known: HashMap<(&str, Claim), Location> = HashMap::new();
        let specs = std::mem::take(&mut self.all.specs);
        let before = || specs.iter().filter(|spec| spec.name == name).flat_map(|spec| &spec.descriptors);
        for outline in before() {
            for taken in taken(outline.value.as_ref()) {
                known.insert((&outline.key, taken), outline.note.place());
            }
        }
        for outline in outlines {
            let twin = taken(outline.value.as_ref()).into_iter().map(|taken| (&*outline.key, taken));
            let found = twin.into_iter().find_map(|twin| Some((known.get(&twin)?, twin)));
            if let Some((place, (key, taken))) = found {
                let message = format!("key {} {taken} appears twice, first at {place}", quoted(key));
                self.report(outline.note.position, message);
            }
        }
        self.check_patterns(before().chain(outlines));
        drop(known);
        self.all.specs = specs;
    }

    fn domain(&mut self, fields: &Fields) -> Result<(Position, String), Reported> {
        let Some(name) = self.read(fields, file::DOMAIN)? else {
            let missing = fields.lacks(file::DOMAIN);
            return Err(match fields.get(file::DOMAIN) {
                Some((at, _)) => self.report(at, "domain is empty: give it the name that requests use"),
                None if missing => self.report(fields.at, "no domain: give the name that requests use"),
                None => Reported,
            });
        };
        let at = fields.get(file::DOMAIN).map_or(fields.at, |(key, node)| self.value_position(key, node));
        self.all.problems.domains.insert(self.file.clone(), name.as_str().into());
        if let Some(&first) = self.all.domains.get(&name).filter(|_| !self.all.dialect.merge_domains) {
            let first = &self.all.outlines[first].place;
            let message = format!("domain {} is defined already, at {first}", quoted(&name));
            return Err(self.report(at, message));
        }
        Ok((at, name))
    }

    /// The list under `descriptors`, without invalid entries. It may be absent or empty.
    fn descriptors(&mut self, fields: &Fields, level: usize) -> Vec<Outline> {
        let mut outlines = Vec::new();
        let Ok(Some(items)) = self.read(fields, descriptor::DESCRIPTORS) else {
            return outlines;
        };
        let levels_max = self.bounds().levels;
        if level > levels_max {
            let message = format!("more than {levels_max} levels of descriptors: no request has so many entries");
            self.report_value(fields, descriptor::DESCRIPTORS, message);
            return outlines;
        }
        let above = self.overlaid.take();
        for item in items {
            if self.is_full() {
                break;
            }
            self.all.descriptors += 1;
            let most = self.all.limits.descriptors();
            if self.all.descriptors > most {
                if self.all.descriptors == most + 1 {
                    let at = self.document.node(item).position;
                    self.report_of_all(at, limits::too_many_descriptors(most));
                }
                break;
            }
            let by = self.edits.of.remove(&item);
            let descriptor = self.document.node(item).position;
            self.overlaid = by.map(|by| Overlaid { descriptor, by });
            outlines.extend(self.descriptor(item, level).ok());
            self.overlaid = None;
        }
        self.check_twins(&outlines);
        self.check_patterns(outlines.iter());
        self.overlaid = above;
        outlines
    }

    fn descriptor(&mut self, id: NodeId, level: usize) -> Result<Outline, Reported> {
        let first_warning = self.warnings.len();
        let fields = self.fields(id, &descriptor::KIND)?;
        self.warn_of_no_values(&fields);
        let key = match self.read(&fields, descriptor::KEY) {
            Ok(Some(key)) => Ok(key),
            Ok(None) => Err(match fields.get(descriptor::KEY) {
                Some((at, _)) => self.report(at, "key is empty"),
                None if fields.lacks(descriptor::KEY) => self.report(fields.at, "a descriptor without a key"),
                None => Reported,
            }),
            Err(told) => Err(told),
        };
        let value = self.matcher(&fields);
        let share_threshold = self.read(&fields, descriptor::SHARE_THRESHOLD);
        let shadow_mode = self.read(&fields, descriptor::SHADOW_MODE);
        let quota_mode = self.read(&fields, descriptor::QUOTA_MODE);
        let detailed_metric = self.read(&fields, descriptor::DETAILED_METRIC);
        let value_to_metric = self.read(&fields, descriptor::VALUE_TO_METRIC);
        let metadata = self.read(&fields, descriptor::METADATA);
        let on_error = self.read(&fields, descriptor::ON_ERROR);
        if let (Ok(value), Ok(true)) = (&value, &share_threshold)
            && !value.as_ref().is_some_and(Matcher::is_of_many)
            && !(self.is_compatible() && matches!(&key, Ok(key) if key.contains('*')))
            && (fields.get(descriptor::VALUE).is_some() || FORMS.iter().all(|form| fields.lacks(*form)))
        {
            let at = fields.get(descriptor::SHARE_THRESHOLD).map_or(fields.at, |(at, _)| at);
            self.report(
                at,
                "share_threshold needs a value with * in it, or values, cidr or regex: values that match share one count",
            );
        }
        let is_key_pattern = self.is_compatible() && matches!(&key, Ok(key) if key.contains('*'));
        if is_key_pattern && matches!(&value, Ok(Some(matcher)) if !matches!(matcher, Matcher::Text(_))) {
            self.report(fields.at, "a key with a * can have a value only, and no values, cidr or regex");
        }
        let place = self.place(fields.at);
        let file = place.file.clone();
        let (holds_above, plans_above) = (self.holds.len(), self.plans.len());
        let shares_above = self.shares;
        self.shares |= matches!(share_threshold, Ok(true));
        let rule = self.rule(&fields);
        let plans = self.plans.split_off(plans_above);
        let hold = self.holds.get(holds_above).copied();
        let rows = self.rows(&fields, rule.as_ref().ok(), plans, hold);
        let request_limit = self.request_limit_of(&fields, rule.as_ref().ok());
        let weigh = self.weigh_of(&fields, rule.as_ref().ok());
        if let (Ok(true), Some(&(at, word))) = (&quota_mode, self.holds.get(holds_above)) {
            self.refuse_beside_hold((at, word), Property::QuotaMode, "quota_mode: true");
        }
        self.check_on_error(&fields, &rule);
        if matches!(value, Ok(None)) {
            let is_shadow = matches!(shadow_mode, Ok(true));
            self.warn_of_empty_value(&fields, rule.as_ref().ok().and_then(Option::as_ref).filter(|_| !is_shadow));
        }
        self.check_effect(&fields, &rule);
        self.allow_warnings(&fields, &place, first_warning);
        let rule_id = match &rule {
            Ok(Some(_)) => {
                // There are fewer rules than descriptors, so the number fits.
                let id = u32::try_from(self.all.places.len()).unwrap_or(u32::MAX);
                self.all.places.push(place);
                if let Some(at) = fields.key_at(descriptor::WEIGH).filter(|at| at.of_graft().is_some()) {
                    let place = self.place(at);
                    self.all.weigh_of_overlays.insert(id, place);
                }
                Some(id)
            }
            _ => None,
        };
        let descriptors = self.descriptors(&fields, level + 1);
        self.shares = shares_above;

        let (key, value, share_threshold) = (key?, value?, share_threshold?);
        let is_quota = quota_mode.unwrap_or(false);
        let role = Role::of(shadow_mode.unwrap_or(false), is_quota);
        let (detailed_metric, value_to_metric) = (detailed_metric.unwrap_or(false), value_to_metric.unwrap_or(false));
        if let Ok(Some((RuleKind::Limits(limits), _))) = &rule {
            self.check_leases(&fields, limits, role);
        }
        // An invalid rule is left out. The descriptor stays, so a second one with its values is reported in the same
        // run.
        let rule = rule.unwrap_or_default();
        let note = Note {
            position: fields.at,
            file,
            rule: rule_id,
            has_empty_limit: fields.get(descriptor::RATE_LIMIT).is_some()
                && self.given(&fields, descriptor::RATE_LIMIT).is_none(),
            has_comment: self.has_comment(&fields),
        };
        let on_error = on_error.unwrap_or_default();
        let metadata = metadata.unwrap_or_default();
        let rows = rows.unwrap_or_default();
        let (request_limit, weigh) = (request_limit.unwrap_or_default(), weigh.unwrap_or_default());
        let rule = rule.map(|(kind, replaces)| {
            let (replaces, rows) = (replaces.into_iter().map(Into::into).collect(), rows.map(Arc::new));
            RuleSpec { role, is_quota, replaces, request_limit, on_error, metadata, rows, weigh, ..RuleSpec::of(kind) }
        });
        Ok(Outline {
            key,
            value,
            key_pattern: is_key_pattern,
            share_threshold,
            detailed_metric,
            value_to_metric,
            rule,
            note,
            descriptors,
        })
    }

    /// Reads `allow_warnings` of a mapping, and removes allowed warnings from `self.warnings` from the index `first` on.
    pub(super) fn allow_warnings(&mut self, fields: &Fields, place: &Location, first: usize) {
        let allowed = self.allowed_in(fields, descriptor::ALLOW_WARNINGS.name);
        self.all.allowed.add(place, allowed);
        let (found, all) = (self.warnings.split_off(first), &mut self.all.allowed);
        self.warnings.extend(found.into_iter().filter(|(_, code, _)| !all.has(place, *code)));
    }

    pub(super) fn allowed_in(&mut self, fields: &Fields, key: &'static str) -> Vec<(Code, Location)> {
        let mut allowed: Vec<(Code, Location)> = Vec::new();
        let Some((at, id)) = fields.get(key) else { return allowed };
        let document = self.document;
        let node = document.node(id);
        if node.is_null() {
            return allowed;
        }
        let Value::Mapping(entries) = &node.value else {
            let message = format!("allow_warnings must be a mapping of warnings and reasons, not {}", node.describe());
            self.report(self.value_position(at, id), message);
            return allowed;
        };
        for &(key, value) in entries {
            let at = document.node(key).position;
            let Value::Scalar { text: name, .. } = &document.node(key).value else { continue };
            let Some(code) = Code::allowable().find(|code| code.name() == &**name) else {
                let names: Vec<_> = Code::allowable().map(Code::name).collect();
                self.report(at, format!("no warning {} in allow_warnings{}", quoted(name), instead(name, &names)));
                continue;
            };
            let has_reason =
                matches!(&document.node(value).value, Value::Scalar { text, .. } if !text.trim().is_empty());
            if !has_reason || document.node(value).is_null() {
                let message = format!("{} in allow_warnings has no reason: write why it is not a mistake", code.name());
                self.report(at, message);
            } else if allowed.iter().any(|(known, _)| *known == code) {
                self.report(at, format!("{} in allow_warnings appears twice", code.name()));
            } else {
                allowed.push((code, self.place(at)));
            }
        }
        allowed
    }

    /// Whether a comment is beside or above the descriptor's own keys, without nested descriptors, or those of an overlay.
    fn has_comment(&self, fields: &Fields) -> bool {
        if self.overlaid.as_ref().is_some_and(|overlaid| overlaid.by.has_comment) {
            return true;
        }
        let first = fields.at.line;
        let last = fields.values_but(descriptor::DESCRIPTORS).map(|value| self.document.last_line(value)).max();
        self.paths.is_some() || self.document.has_comment(first, last.unwrap_or(first))
    }

    /// Reports an `on_error` without a rate limit, because it has no effect.
    fn check_on_error(&mut self, fields: &Fields, rule: &Read<(RuleKind, Vec<String>)>) {
        let Some(at) = self.given(fields, descriptor::ON_ERROR) else {
            return;
        };
        match rule {
            Ok(None) if fields.lacks(descriptor::RATE_LIMIT) && fields.lacks(descriptor::RATE_LIMITS) => {
                self.report(at, "on_error without a rate limit: nested descriptors do not inherit it");
            }
            Ok(Some((RuleKind::Unlimited { .. }, _))) => {
                self.report(at, "on_error with unlimited: true, which uses no store");
            }
            _ => {}
        }
    }

    /// Warns about an empty `value`, which does not match the empty value only.
    fn warn_of_empty_value(&mut self, fields: &Fields, rule: Option<&(RuleKind, Vec<String>)>) {
        let Some((at, id)) = fields.get(descriptor::VALUE).filter(|_| self.is_of_weir()) else {
            return;
        };
        let denies = match rule {
            Some((RuleKind::Limits(limits), _)) => limits.iter().any(|limit| limit.requests() == 0 && !limit.shadow),
            _ => false,
        };
        let at = self.value_position(at, id);
        let effect = if denies { "matches every value and denies all of them" } else { "matches every value" };
        let message = format!("an empty value {effect}: remove value, or write regex: ^$ to match the empty value");
        self.warn(at, Code::EmptyValue, message);
    }

    /// Warns about keys that have no effect without a rate limit.
    fn check_effect(&mut self, fields: &Fields, rule: &Read<(RuleKind, Vec<String>)>) {
        let Ok(None) = rule else {
            return;
        };
        if !fields.lacks(descriptor::RATE_LIMITS)
            || !(fields.key_at(descriptor::RATE_LIMIT).is_some() || fields.lacks(descriptor::RATE_LIMIT))
        {
            return;
        }
        let of_rule = [
            descriptor::SHADOW_MODE.name,
            descriptor::QUOTA_MODE.name,
            descriptor::DETAILED_METRIC.name,
            descriptor::METADATA.name,
        ];
        for key in of_rule {
            if let Some(at) = self.given(fields, key)
                && !matches!(self.flag_given(fields, key), Some(false))
            {
                self.warn(at, Code::NoEffect, format!("{key} has no effect without a rate limit"));
            }
        }
    }

    /// Reads `rate_limit` or `rate_limits`.
    fn rule(&mut self, fields: &Fields) -> Read<(RuleKind, Vec<String>)> {
        let mut one = fields.get(descriptor::RATE_LIMIT);
        if let Some((at, _)) = one.filter(|(_, id)| self.document.node(*id).is_null()) {
            self.warn(at, Code::EmptyRateLimit, "rate_limit is empty: nothing is limited here");
            one = None;
        }
        match (one, fields.get(descriptor::RATE_LIMITS)) {
            (None, None) => Ok(None),
            (Some((one, _)), Some((many, _))) => {
                let at = one.max(many);
                Err(self.report(at, "rate_limit and rate_limits together: write all of them under rate_limits"))
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
    fn limits(&mut self, at: Position, id: NodeId) -> Result<(RuleKind, Vec<String>), Reported> {
        let document = self.document;
        let node = document.node(id);
        let Value::List(items) = &node.value else {
            let what = node.describe();
            let message =
                format!("rate_limits must be a list of rate limits, not {what}: the key for one is called rate_limit");
            return Err(self.report(at, message));
        };
        if !(1..=LIMITS_PER_RULE_MAX).contains(&items.len()) {
            let message = format!("rate_limits has {} rate limits: 1 to {LIMITS_PER_RULE_MAX}", items.len());
            return Err(self.report(at, message));
        }
        let mut all = Vec::new();
        let mut is_wrong = false;
        for &item in items {
            let of_item = document.node(item);
            if matches!(of_item.value, Value::List(_)) {
                self.report(of_item.position, "a list within rate_limits: its items are limits");
                is_wrong = true;
                continue;
            }
            match self.limit(of_item.position, item) {
                Ok(ReadLimit { limit: None, at, .. }) => {
                    self.report(at, "unlimited in a list: the other limits would still apply, use rate_limit");
                    is_wrong = true;
                }
                Ok(limit) => all.push(limit),
                Err(Reported) => is_wrong = true,
            }
        }
        let names: Vec<_> = all.iter().map(|limit| limit.name.as_deref()).collect();
        for limit in &all {
            is_wrong |= self.check_replaces(&limit.replaces, &names).is_err();
        }
        let twins = self.twins(&all)?;
        if is_wrong {
            return Err(Reported);
        }
        let mut limits = Vec::new();
        let mut replaces = Vec::new();
        for (read, has_twin) in all.into_iter().zip(twins) {
            limits.extend(read.limit.map(|limit| if has_twin { limit.keyed_by_name() } else { limit }));
            replaces.extend(read.replaces.into_iter().map(|(_, name)| name));
        }
        Ok((RuleKind::Limits(limits), replaces))
    }

    /// The limits of a list with the algorithm and window of another limit: their keys need their names. A limit on
    /// trial does not change the keys of enforced limits. [tr-2]
    fn twins(&mut self, all: &[ReadLimit]) -> Result<Vec<bool>, Reported> {
        let mut twins = vec![false; all.len()];
        let mut told = Ok(());
        for (i, limit) in all.iter().enumerate() {
            let shape = |read: &ReadLimit| read.limit.as_ref().map(|limit| limit.id().to_owned());
            for (j, other) in all[..i].iter().enumerate() {
                if shape(limit) != shape(other) {
                    continue;
                }
                let is_on_trial = |read: &ReadLimit| read.limit.as_ref().is_some_and(|limit| limit.shadow);
                let (here, there) = (is_on_trial(limit), is_on_trial(other));
                twins[i] |= here || !there;
                twins[j] |= there || !here;
                let has_name = |read: &ReadLimit, is_keyed: bool| !is_keyed || read.name.is_some();
                if has_name(limit, twins[i]) && has_name(other, twins[j]) && limit.name != other.name {
                    continue;
                }
                let line = other.at.line;
                let what_to_do = match (&limit.name, &other.name) {
                    _ if here != there => "give the one with shadow: true its own name".to_owned(),
                    // A trial may end: the state of the limit without a name has counted all admitted hits. [tr-2]
                    (Some(name), None) | (None, Some(name)) if !here => format!(
                        "to enforce {} after its trial, replace the other; to keep both, give each its own name",
                        quoted(name)
                    ),
                    _ => "give each its own name".to_owned(),
                };
                let message = format!(
                    "the same algorithm and window as the rate limit at line {line}: {what_to_do}, so that they count separately"
                );
                told = Err(self.report(limit.at, message));
                break;
            }
        }
        told.map(|()| twins)
    }

    /// Reports limits that replace a limit of their own rule, because the rule would never apply.
    fn check_replaces(&mut self, replaces: &[(Position, String)], own: &[Option<&str>]) -> Result<(), Reported> {
        let mut result = Ok(());
        for (at, name) in replaces {
            if own.contains(&Some(name)) {
                result = Err(self.report(*at, format!("replaces {}, which is one of its own names", quoted(name))));
            }
        }
        result
    }
}

/// The place of a descriptor, by its path including the domain.
fn place_of(domains: &[DomainOutline], path: &str) -> Option<Location> {
    fn below(outlines: &[Outline], above: &str, path: &str) -> Option<Location> {
        outlines.iter().find_map(|outline| {
            let here = path_below(above, &outline.key, outline.value.as_ref());
            if here == path { Some(outline.note.place()) } else { below(&outline.descriptors, &here, path) }
        })
    }
    domains.iter().find_map(|domain| {
        let path = path.strip_prefix(&domain.name)?.strip_prefix('|')?;
        below(&domain.descriptors, "", path)
    })
}
