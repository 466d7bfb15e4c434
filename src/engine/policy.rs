//! Policies: which rule a descriptor meets. [mt-1]
//!
//! The cost of matching depends on the depth of the descriptor and on the patterns of its keys, not on the number of
//! rules. Not here: reading YAML (package policies), and deciding.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use smallvec::SmallVec;

use super::automaton::{AUTOMATA_BYTES_MAX, Automaton};
use super::branch::{Branch, FoundPattern, Unfit};
pub use super::branch::{Lead, Step, TooLarge};
use super::charge::{Mode, Role};
use super::descriptor::{Entry, Hits};
use super::key::ParsedValue;
pub use super::limit::LIMITS_PER_RULE_MAX;
use super::limit::{Limit, share_states};
use super::matcher::Matcher;
use super::metadata::Fields;
use super::network::Network;
use super::pairs::{Property, first_pair};
use super::pattern::{Pattern, SharedBy};
use super::plans::Plans;
pub use super::policy_error::PolicyError;
use super::request_limit::RequestLimit;
use super::weigh::{WEIGHING_ENTRIES_MAX, Weigh};
use super::wildcards::FirstWildcard;

crate::named! {
    /// What happens to a charge if its store does not answer: the store is down, too slow or full. [st-4]
    ///
    /// The rules of one request can have different actions. If any is `Error`, the request fails, and nothing else is
    /// evaluated. Otherwise, if any is `Deny`, the request is denied. Otherwise the limits with `Local` are decided
    /// together, and limits with `Allow` pass.
    #[derive(Hash)]
    pub enum OnError {
        /// The request fails, and its caller decides what to do.
        Error = "error",
        /// The request passes, and nothing is counted.
        Allow = "allow",
        /// The request is over the limit.
        Deny = "deny",
        /// The memory store of this process decides by the same rules, with its own states.
        Local = "local",
    }
}

crate::named! {
    /// The part of a policy that sets `on_error` for a charge.
    pub enum SaidBy {
        Rule = "rule",
        /// The domain, for all of its rules without `on_error`.
        Domain = "domain",
    }
}

/// A whole domain as written: the input of [`PolicySet::compile`].
#[derive(Clone, Debug)]
pub struct DomainSpec<N = ()> {
    /// The domain's name, not empty.
    pub name: String,
    /// How the requests of the domain are charged. None: by the setting `charging`.
    pub mode: Option<Mode>,
    /// What happens to requests of the domain if the store does not answer. None: by the setting `on_error`.
    pub on_error: Option<OnError>,
    /// The rules at the first level.
    pub descriptors: Vec<NodeSpec<N>>,
}

/// One descriptor of a policy as written: a key, an optional value, an optional rule, and nested descriptors.
#[derive(Clone, Debug, Default)]
pub struct NodeSpec<N = ()> {
    /// The key, not empty.
    pub key: String,
    /// The values that it matches. None or an empty text: the key alone.
    pub value: Option<Matcher>,
    /// A `*` in the key matches any text too, as in envoyproxy/ratelimit. The pattern is `key_value`, or the key alone.
    /// weir compares it with the key and the value of an entry, joined in the same way. [mt-3]
    pub key_pattern: bool,
    /// All values of the descriptor share one state.
    pub share_threshold: bool,
    /// The statistics of this rule have a name for each value of requests.
    pub detailed_metric: bool,
    /// The statistics of this rule and of nested rules have the value of the request at this place of their name.
    pub value_to_metric: bool,
    /// The rule for descriptors of this depth.
    pub rule: Option<RuleSpec>,
    /// What its reader knows of it besides.
    pub note: N,
    /// The next level.
    pub descriptors: Vec<NodeSpec<N>>,
}

/// The content of a rule: all but its place in a policy set.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSpec {
    /// The limits, at most eight. All of them apply. Empty if the rule is unlimited.
    pub limits: Box<[Limit]>,
    pub unlimited: bool,
    /// The name of an unlimited rule, for people. `replaces` does not apply to it. [mt-5]
    pub unlimited_name: Option<Box<str>>,
    /// What its limits do when they are over; see [`Role::of`].
    pub role: Role,
    /// Whether the limits are quotas of a request. With [`Role::Shadow`] they are quotas that are never over.
    pub is_quota: bool,
    /// The names of limits that it replaces, in one request.
    pub replaces: Box<[Box<str>]>,
    /// What a limit of the request does.
    pub request_limit: RequestLimit,
    /// What happens to its charges if the store does not answer. None: by the domain.
    pub on_error: Option<OnError>,
    /// Metadata for the answer to a request that passes its limits.
    pub metadata: Option<Arc<Fields>>,
    /// The plans that a row can name. None: the rule has no rows. No other rule shares this `Arc`. [rw-1]
    pub rows: Option<Arc<Plans>>,
    /// The factors of its hits. None: 1. [mt-12]
    pub weigh: Option<Arc<Weigh>>,
}

impl RuleSpec {
    /// A rule that denies, with default values for everything else.
    pub fn of(kind: RuleKind) -> Self {
        let (limits, unlimited, unlimited_name) = match kind {
            RuleKind::Unlimited { name } => (Vec::new(), true, name),
            RuleKind::Limits(limits) => (limits, false, None),
        };
        Self {
            limits: limits.into(),
            unlimited,
            unlimited_name,
            role: Role::Enforced,
            is_quota: false,
            replaces: Box::default(),
            request_limit: RequestLimit::Replaces,
            on_error: None,
            metadata: None,
            rows: None,
            weigh: None,
        }
    }
}

/// The limits of a rule, or that it is unlimited.
#[derive(Clone, Debug)]
pub enum RuleKind {
    /// One to eight limits. All of them apply.
    Limits(Vec<Limit>),
    /// Passes everything and is never stored. [mt-4]
    Unlimited {
        /// A name for people. `replaces` does not apply to it. [mt-5]
        name: Option<Box<str>>,
    },
}

/// The rule for the descriptors that match one node of a policy.
#[derive(Debug)]
pub struct Rule {
    /// The rule's position among all rules of its policy set: stable until the next load.
    pub id: u32,
    pub domain: Box<str>,
    /// The rule's path: `key=value|key`. It has only words of the policy, never of a caller. A backslash precedes each
    /// separator in a word, so the paths of a domain are unique.
    pub path: Box<str>,
    /// The descriptors on the path to the rule, the rule's own last: one for each entry of a matching descriptor.
    pub levels: Box<[Arc<Level>]>,
    pub spec: RuleSpec,
}

impl Deref for Rule {
    type Target = RuleSpec;

    fn deref(&self) -> &RuleSpec {
        &self.spec
    }
}

impl Rule {
    /// Whether the rule has exactly one limit that is not on trial. Callers see that limit under the rule's name.
    /// [tr-3]
    pub fn has_one_limit(&self) -> bool {
        self.limits.iter().filter(|limit| !limit.shadow).count() == 1
    }

    /// Whether the rule has exactly one limit, also counting those on trial, and no rows. A second store keeps the state of
    /// such a limit if it is per second. [st-3] [rw-5]
    pub fn is_single(&self) -> bool {
        self.limits.len() == 1 && self.rows.is_none()
    }

    /// Whether a second store keeps the states of the rule. [st-3]
    pub fn is_single_per_second(&self) -> bool {
        self.is_single() && self.limits[0].is_per_second()
    }

    /// Fails if one of its limits has two properties that exclude each other, in a domain with this `charging`.
    fn check_pairs(&self, mode: Option<Mode>) -> Result<(), PolicyError> {
        let around = [
            (self.rows.is_some(), Property::Rows),
            (self.role == Role::Shadow, Property::ShadowMode),
            (self.is_quota, Property::QuotaMode),
            (mode == Some(Mode::Independent), Property::Independent),
        ];
        let around: SmallVec<[Property; 4]> =
            around.into_iter().filter_map(|(has_it, property)| has_it.then_some(property)).collect();
        match self.limits.iter().find_map(|limit| first_pair(limit, &around)) {
            Some((one, other)) => Err(PolicyError::Excluded(format!("{}|{}", self.domain, self.path), one, other)),
            None => Ok(()),
        }
    }
}

/// One descriptor on the path to a rule. It has what statistics need for the rule's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    pub key: Box<str>,
    /// The values that it matches. None: the key alone.
    pub value: Option<Matcher>,
    /// All values of the descriptor share one state.
    pub share_threshold: bool,
    /// Of the last level only: the rule's statistics have a name for each value of requests.
    pub detailed_metric: bool,
    /// The name of the statistics has the value of the request at this place.
    pub value_to_metric: bool,
}

#[derive(Clone, Debug)]
pub struct Match<'p> {
    /// The rule at exactly the depth of the descriptor.
    pub rule: Option<&'p Rule>,
    /// The entries, by position, whose values share one state, with the texts that replace these values. Usually empty.
    pub shared: Vec<(usize, SharedBy<'p>)>,
    /// The factor of its hits, if the rule weighs them. Only [`PolicySet::weigh`] finds it. [mt-12]
    pub factor: Option<Hits>,
}

#[derive(Debug, Default)]
struct Node {
    by_key: HashMap<Box<str>, Branch<Self>>,
    /// The descriptors with a pattern as key. Usually none.
    key_patterns: Option<Box<KeyPatterns>>,
    /// The number of nested descriptors.
    children: u32,
    rule: Option<u32>,
    share_threshold: bool,
}

/// The descriptors of a level with a pattern as key, in file order.
#[derive(Debug, Default)]
struct KeyPatterns {
    all: Vec<KeyPattern>,
    first: FirstWildcard,
}

/// A descriptor with a pattern as key. Its node is stored under the key as written.
#[derive(Debug)]
struct KeyPattern {
    order: u32,
    pattern: Pattern,
    key: Box<str>,
    value: Option<Box<str>>,
}

impl Node {
    /// The most exact branch for an entry. [mt-2]
    fn child(&self, entry: Entry<'_>) -> Option<(Step<'_>, &Self)> {
        let branch = self.by_key.get(entry.key);
        if branch.is_none() && self.key_patterns.is_none() {
            return None;
        }
        let exact = branch.and_then(|branch| branch.exact(entry.value).or_else(|| branch.network(entry.value)));
        if exact.is_some() {
            return exact;
        }
        let found = branch.and_then(|branch| branch.pattern(entry.value));
        let by_key = self.by_key_pattern(entry);
        if let Some(first) = found.into_iter().chain(by_key).min_by_key(|found| found.order) {
            return Some((first.step, first.node));
        }
        branch?.alone().map(|node| (Step::KeyAlone, node))
    }

    /// The first descriptor with a key pattern that matches.
    fn by_key_pattern(&self, entry: Entry<'_>) -> Option<FoundPattern<'_, Self>> {
        let KeyPatterns { all, first } = &**self.key_patterns.as_ref()?;
        let joined = format!("{}_{}", entry.key, entry.value);
        self.key_pattern(first.first(&joined, all.iter().map(|found| &found.pattern))?)
    }

    /// The descriptor of the key pattern at this position.
    fn key_pattern(&self, place: usize) -> Option<FoundPattern<'_, Self>> {
        let found = self.key_patterns.as_ref()?.all.get(place)?;
        let branch = self.by_key.get(&found.key)?;
        let node = match found.value.as_deref() {
            None => branch.alone()?,
            Some(value) => branch.exact(value)?.1,
        };
        Some(FoundPattern { order: found.order, step: Step::Pattern(&found.pattern), node })
    }
}

/// A place in the tree of a domain, for code that walks the whole tree.
#[derive(Clone, Copy, Debug)]
pub struct Place<'p>(&'p Node);

impl<'p> Place<'p> {
    /// The id of the rule for a descriptor of this depth.
    pub const fn rule(self) -> Option<u32> {
        self.0.rule
    }

    #[must_use]
    pub fn child(self, entry: Entry<'_>) -> Option<Self> {
        self.0.child(entry).map(|(_, node)| Self(node))
    }

    /// The matchers of a key and where each leads, in the order of the search. None if keys are patterns.
    #[must_use]
    pub fn leads(self, key: &str) -> Option<Vec<(Lead<'p>, Self)>> {
        self.0.key_patterns.is_none().then(|| self.written(key))
    }

    /// The matchers as written for a key, in the order of the search, except keys that are patterns.
    #[must_use]
    pub fn written(self, key: &str) -> Vec<(Lead<'p>, Self)> {
        let leads = self.0.by_key.get(key).map(Branch::leads).unwrap_or_default();
        leads.into_iter().map(|(lead, node)| (lead, Self(node))).collect()
    }

    /// The nested descriptor with this key and these values; without values, the descriptor with the key alone.
    #[must_use]
    pub fn descriptor(self, key: &str, values: Option<&Matcher>) -> Option<Self> {
        let branch = self.0.by_key.get(key)?;
        let node = match values {
            None => branch.alone()?,
            Some(matcher) => match matcher.exact() {
                Some(text) => branch.exact(text)?.1,
                None => branch.named(&matcher.name())?.1,
            },
        };
        Some(Self(node))
    }

    /// The keys at this level, in no particular order.
    pub fn keys(self) -> impl Iterator<Item = &'p str> {
        self.0.by_key.keys().map(|key| &**key)
    }

    /// The texts that values of a key are compared with first, in no particular order.
    pub fn texts(self, key: &str) -> impl Iterator<Item = &'p str> {
        self.0.by_key.get(key).into_iter().flat_map(Branch::texts)
    }

    /// The networks of a key, in no particular order.
    pub fn networks(self, key: &str) -> impl Iterator<Item = Network> {
        self.0.by_key.get(key).into_iter().flat_map(Branch::networks)
    }

    /// The automaton of the wildcards and regular expressions of a key. None if the key has none.
    ///
    /// # Errors
    /// When the automaton would be too large.
    pub fn automaton(self, key: &str) -> Result<Option<Cow<'p, Automaton>>, TooLarge> {
        self.0.by_key.get(key).map_or(Ok(None), Branch::automaton)
    }

    /// The keys that are patterns, in file order.
    pub fn key_patterns(self) -> Vec<&'p Pattern> {
        self.0.key_patterns.iter().flat_map(|patterns| &patterns.all).map(|found| &found.pattern).collect()
    }

    /// Where a value of a key leads if it matches no list and no network. The earlier of two patterns, by position,
    /// counts: one of the key and one of the key patterns. Without them: the key alone.
    pub fn by_patterns(self, key: &str, of_key: Option<usize>, of_keys: Option<usize>) -> Option<Self> {
        let branch = self.0.by_key.get(key);
        let of_key = of_key.and_then(|place| branch?.source(place));
        let of_keys = of_keys.and_then(|place| self.0.key_pattern(place));
        let first = of_key.into_iter().chain(of_keys).min_by_key(|found| found.order);
        first.map(|found| found.node).or_else(|| branch?.alone()).map(Self)
    }

    /// Where the longest network that contains this one leads.
    pub fn by_network(self, key: &str, network: &Network) -> Option<Self> {
        let (_, node) = self.0.by_key.get(key)?.network(&network.to_string())?;
        Some(Self(node))
    }

    /// A number that is unique among the places of these policies.
    pub fn address(self) -> usize {
        std::ptr::from_ref(self.0).addr()
    }
}

/// The text of a key pattern: the key, or key and value joined by `_`.
fn joined(key: &str, value: Option<&str>) -> String {
    value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"))
}

/// The rules of one domain.
#[derive(Debug)]
pub struct Domain {
    /// Its position among the domains of its set, from 0.
    pub id: u32,
    pub name: Box<str>,
    /// How requests are charged. None: by the setting `charging`. A domain with holds is always atomic. [dc-4] [hd-1]
    pub mode: Option<Mode>,
    /// Whether any limit of the domain is a hold.
    pub has_holds: bool,
    /// Whether any rule of the domain has rows.
    pub has_rows: bool,
    /// Whether any rule of the domain applies to descriptors with a limit of the request. [mt-10]
    pub keeps_rules: bool,
    /// The entries by which its rules weigh hits. Usually empty. [mt-13]
    weighing: Box<[Box<str>]>,
    /// What happens to requests of the domain if the store does not answer. None: by the setting `on_error`.
    pub on_error: Option<OnError>,
    root: Node,
}

impl Domain {
    /// The first level of descriptors.
    pub const fn top(&self) -> Place<'_> {
        Place(&self.root)
    }

    /// Whether a rule of the domain weighs hits.
    pub const fn weighs(&self) -> bool {
        !self.weighing.is_empty()
    }

    /// The entries by which rules of the domain weigh hits.
    pub fn weighing(&self) -> impl Iterator<Item = &str> {
        self.weighing.iter().map(|entry| &**entry)
    }

    /// Whether a rule of the domain weighs hits by this entry.
    pub fn weighs_by(&self, key: &str) -> bool {
        self.weighing.iter().any(|entry| **entry == *key)
    }

    /// The `on_error` of a charge, and the part of the policies that sets it. None: by the setting. Without a rule, the
    /// charge is for a limit of the request. [st-4]
    pub fn on_error_of(&self, rule: Option<&Rule>) -> Option<(OnError, SaidBy)> {
        let of_rule = rule.and_then(|rule| rule.on_error).map(|on_error| (on_error, SaidBy::Rule));
        of_rule.or(self.on_error.map(|on_error| (on_error, SaidBy::Domain)))
    }
}

/// All policies as loaded. The set is immutable and replaced as a whole.
#[derive(Debug, Default)]
pub struct PolicySet {
    domains: HashMap<Box<str>, Domain>,
    rules: Vec<Rule>,
}

impl PolicySet {
    /// Makes a policy set from domains as written.
    ///
    /// # Errors
    /// When two names or descriptors that must differ are equal, a list of limits is empty or too long, a limit has two
    /// properties that exclude each other, or patterns cost too much.
    pub fn compile(mut specs: Vec<DomainSpec>) -> Result<Self, PolicyError> {
        let mut known: HashSet<&str> = HashSet::new();
        if let Some(twin) = specs.iter().find(|spec| !known.insert(&spec.name)) {
            return Err(PolicyError::DuplicateDomain(twin.name.clone()));
        }
        drop(known);
        Self::compile_joined(&mut specs, AUTOMATA_BYTES_MAX)
    }

    /// As [`PolicySet::compile`], but several specs may have the same domain: their descriptors are concatenated in the
    /// given order. The rules are taken out of the specs. `charging` and `on_error` come from the first spec that sets them. All automata together have at most
    /// `automata_bytes`.
    ///
    /// # Errors
    /// As [`PolicySet::compile`], except for a domain that occurs twice.
    pub fn compile_joined<N>(specs: &mut [DomainSpec<N>], automata_bytes: usize) -> Result<Self, PolicyError> {
        let mut set = Self::default();
        let mut bytes_left = automata_bytes;
        for spec in specs {
            set.add(spec, &mut bytes_left)?;
        }
        for rule in &set.rules {
            let Some(domain) = set.domains.get_mut(&rule.domain) else { continue };
            domain.has_rows |= rule.rows.is_some();
            domain.keeps_rules |= rule.request_limit != RequestLimit::Replaces;
            domain.has_holds |= rule.limits.iter().any(|limit| limit.hold);
            if rule.limits.iter().any(|limit| limit.overrules(Property::Independent)) {
                // [hd-1] [cc-7]
                domain.mode.get_or_insert(Mode::Atomic);
            }
        }
        for rule in &set.rules {
            rule.check_pairs(set.domains.get(&rule.domain).and_then(|domain| domain.mode))?;
        }
        for (domain, entries) in weighing_entries(&set.rules)? {
            if let Some(domain) = set.domains.get_mut(domain) {
                domain.weighing = entries.into();
            }
        }
        // Several files can add to the first level of a domain, so the level is sealed after all files.
        let mut domains: Vec<&mut Domain> = set.domains.values_mut().collect();
        domains.sort_unstable_by_key(|domain| domain.id);
        for domain in domains {
            let above = Above { domain: &domain.name, path: "", levels: &[] };
            seal(&mut domain.root, &above, &mut bytes_left)?;
        }
        Ok(set)
    }

    fn add<N>(&mut self, spec: &mut DomainSpec<N>, bytes_left: &mut usize) -> Result<(), PolicyError> {
        let DomainSpec { name, mode, on_error, descriptors } = spec;
        let name: Box<str> = name.as_str().into();
        #[expect(clippy::cast_possible_truncation, reason = "a domain takes more than a byte of memory")]
        let id = self.domains.len() as u32;
        let mut domain = self.domains.remove(&name).unwrap_or_else(|| Domain {
            id,
            name: name.clone(),
            mode: None,
            has_holds: false,
            has_rows: false,
            keeps_rules: false,
            weighing: Box::default(),
            on_error: None,
            root: Node::default(),
        });
        domain.mode = domain.mode.or(*mode);
        domain.on_error = domain.on_error.or(*on_error);
        let above = Above { domain: &name, path: "", levels: &[] };
        let mut tree = Tree { rules: &mut self.rules, bytes_left };
        tree.insert_all(&mut domain.root, &above, descriptors)?;
        self.domains.insert(name, domain);
        Ok(())
    }

    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// All domains, in no particular order.
    pub fn domains(&self) -> impl ExactSizeIterator<Item = &Domain> {
        self.domains.values()
    }

    /// All rules. A rule's position is its [`Rule::id`].
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule that a descriptor meets in a domain of this set. [mt-1]
    ///
    /// At each level the search takes the first of these: key and value as written, alone or in a list (also the text
    /// of a wildcard); the longest network; the first wildcard or regular expression in file order; the key alone. It
    /// never goes back to another branch. A rule counts only if its depth equals the descriptor's.
    pub fn find<'p>(&'p self, domain: &'p Domain, entries: &[Entry<'_>]) -> Match<'p> {
        let mut node = &domain.root;
        let mut shared = Vec::new();
        for (position, &entry) in entries.iter().enumerate() {
            let Some((step, child)) = node.child(entry) else {
                return Match { rule: None, shared: Vec::new(), factor: None };
            };
            if child.share_threshold
                && let Some(by) = step.shared_by()
            {
                shared.push((position, by));
            }
            node = child;
        }
        let rule = node.rule.map(|id| &self.rules[id as usize]);
        Match { rule, shared, factor: None }
    }

    /// The rule for a descriptor of a stored key. Such a descriptor can have names in place of values.
    pub fn find_parsed<'p>(&'p self, domain: &'p Domain, entries: &[(String, ParsedValue)]) -> Option<&'p Rule> {
        let mut node = &domain.root;
        for (key, value) in entries {
            let (_, child) = match value {
                ParsedValue::Text(value) => node.child(Entry { key, value })?,
                ParsedValue::Name(name) => node.by_key.get(key.as_str())?.named(name)?,
            };
            node = child;
        }
        node.rule.map(|id| &self.rules[id as usize])
    }

    /// How each entry of a descriptor matches, up to the first that does not. For `explain`, not for decisions.
    pub fn trace<'p>(&'p self, domain: &'p Domain, entries: &[Entry<'_>]) -> Vec<Step<'p>> {
        let mut node = &domain.root;
        let mut steps = Vec::new();
        for &entry in entries {
            let Some((step, child)) = node.child(entry) else {
                break;
            };
            steps.push(step);
            node = child;
        }
        steps
    }
}

/// The path above a level of descriptors.
struct Above<'a> {
    domain: &'a str,
    path: &'a str,
    levels: &'a [Arc<Level>],
}

/// Builds the lookups of the branches below a node.
fn seal(node: &mut Node, above: &Above<'_>, bytes_left: &mut usize) -> Result<(), PolicyError> {
    // In a fixed order, so the same policies always give the same result.
    let mut branches: Vec<_> = node.by_key.iter_mut().collect();
    branches.sort_unstable_by_key(|(key, _)| *key);
    for (key, branch) in branches {
        branch.seal(bytes_left).map_err(|unfit| {
            let path = format!("{}|{}", above.domain, path_below(above.path, key, branch.named_by(unfit)));
            match unfit {
                Unfit::TooLarge { bytes_max } => PolicyError::TooLarge { path, bytes_max },
                Unfit::TooMany => PolicyError::TooManyPatterns(path),
                Unfit::Wildcards(costly) => PolicyError::of_wildcard(costly, path),
            }
        })?;
    }
    if let Some(KeyPatterns { all, first }) = node.key_patterns.as_deref_mut() {
        *first = FirstWildcard::new(all.iter().map(|found| &found.pattern), bytes_left).map_err(|costly| {
            let KeyPattern { key, value, .. } = &all[costly.position()];
            let value = value.as_deref().map(Matcher::from);
            PolicyError::of_wildcard(
                costly,
                format!("{}|{}", above.domain, path_below(above.path, key, value.as_ref())),
            )
        })?;
    }
    Ok(())
}

/// The path of a nested descriptor. [`Rule::path`]
pub fn path_below(above: &str, key: &str, value: Option<&Matcher>) -> String {
    let mut path = String::from(above);
    if !path.is_empty() {
        path.push('|');
    }
    push_word(&mut path, key, &['\\', '|', '=']);
    if let Some(value) = value {
        path.push('=');
        push_word(&mut path, &value.name(), &['\\', '|']);
    }
    path
}

/// Collects results while nested descriptors are added.
struct Tree<'t> {
    rules: &'t mut Vec<Rule>,
    /// The remaining bytes for automata.
    bytes_left: &'t mut usize,
}

impl Tree<'_> {
    /// Adds a level of descriptors to its parent.
    fn insert_all<N>(
        &mut self,
        parent: &mut Node,
        above: &Above<'_>,
        specs: &mut [NodeSpec<N>],
    ) -> Result<(), PolicyError> {
        for spec in specs {
            self.insert(parent, above, spec)?;
        }
        Ok(())
    }

    fn insert<N>(&mut self, parent: &mut Node, above: &Above<'_>, spec: &mut NodeSpec<N>) -> Result<(), PolicyError> {
        let value = spec.value.clone().filter(|value| value.exact() != Some(""));
        let path = path_below(above.path, &spec.key, value.as_ref());
        let mut levels = above.levels.to_vec();
        levels.push(Arc::new(Level {
            key: spec.key.as_str().into(),
            value: value.clone(),
            share_threshold: spec.share_threshold,
            detailed_metric: spec.detailed_metric,
            value_to_metric: spec.value_to_metric,
        }));
        let here = Above { domain: above.domain, path: &path, levels: &levels };
        let rule = match spec.rule.take() {
            Some(rule) => Some(add_rule(self.rules, &here, rule)?),
            None => None,
        };
        let mut node = Node { rule, share_threshold: spec.share_threshold, ..Node::default() };
        self.insert_all(&mut node, &here, &mut spec.descriptors)?;
        seal(&mut node, &here, self.bytes_left)?;

        let order = parent.children;
        parent.children += 1;
        if spec.key_pattern {
            let name = value.as_ref().map(|value| value.name());
            if let Some(pattern) = Pattern::new(&joined(&spec.key, name.as_deref())) {
                let (key, value) = (spec.key.as_str().into(), name.as_deref().map(Into::into));
                parent.key_patterns.get_or_insert_default().all.push(KeyPattern { order, pattern, key, value });
            }
        }
        let branch = parent.by_key.entry(spec.key.as_str().into()).or_default();
        if branch.insert(value, order, node) {
            Ok(())
        } else {
            Err(PolicyError::DuplicateDescriptor(format!("{}|{path}", above.domain)))
        }
    }
}

/// Appends a word to a path, with a backslash before each separator.
fn push_word(path: &mut String, word: &str, separators: &[char]) {
    for c in word.chars() {
        if separators.contains(&c) {
            path.push('\\');
        }
        path.push(c);
    }
}

fn add_rule(rules: &mut Vec<Rule>, here: &Above<'_>, spec: RuleSpec) -> Result<u32, PolicyError> {
    let Above { domain, path, levels } = *here;
    let place = || format!("{domain}|{path}");
    let id = u32::try_from(rules.len()).map_err(|_| PolicyError::LimitCount(place()))?;
    let limits = &spec.limits;
    if !spec.unlimited && !(1..=LIMITS_PER_RULE_MAX).contains(&limits.len()) {
        return Err(PolicyError::LimitCount(place()));
    }
    if share_states(limits) {
        return Err(PolicyError::SameShape(place()));
    }
    rules.push(Rule { id, domain: domain.into(), path: path.into(), levels: levels.into(), spec });
    Ok(id)
}

/// The entries by which rules weigh, by domain.
///
/// # Errors
/// When a domain has too many, or when a rule can never be met. [mt-14]
fn weighing_entries(rules: &[Rule]) -> Result<HashMap<&str, Vec<Box<str>>>, PolicyError> {
    let problem = |rule: &Rule, by: u32, problem: String| PolicyError::Weigh {
        path: format!("{}|{}", rule.domain, rule.path),
        problem,
        by,
    };
    let mut entries: HashMap<&str, Vec<Box<str>>> = HashMap::new();
    let mut by_path: HashMap<(&str, &str), (&Weigh, u32)> = HashMap::new();
    for rule in rules {
        let Some(weigh) = rule.weigh.as_deref() else { continue };
        by_path.insert((&rule.domain, &rule.path), (weigh, rule.id));
        let of_domain = entries.entry(&rule.domain).or_default();
        if !of_domain.contains(&weigh.entry) {
            of_domain.push(weigh.entry.clone());
        }
        if of_domain.len() > WEIGHING_ENTRIES_MAX {
            let text = format!("the rules of a domain weigh by more than {WEIGHING_ENTRIES_MAX} different entries");
            return Err(problem(rule, rule.id, text));
        }
        if rule.levels.iter().any(|level| level.key == weigh.entry) {
            let text = format!("weigh by {:?}, a key of the rule: the entry is no part of the descriptor", weigh.entry);
            return Err(problem(rule, rule.id, text));
        }
    }
    for rule in rules {
        let Some(of_domain) = entries.get(&*rule.domain) else { continue };
        for (at, level) in rule.levels.iter().enumerate().filter(|(_, level)| of_domain.contains(&level.key)) {
            let others = rule.levels.iter().enumerate().filter(|(other, _)| *other != at);
            let path =
                others.fold(String::new(), |above, (_, level)| path_below(&above, &level.key, level.value.as_ref()));
            let weighing = by_path.get(&(&*rule.domain, &*path)).filter(|(weigh, _)| weigh.entry == level.key);
            if let Some((_, by)) = weighing {
                let text = format!("no descriptor meets it, because the rule at {path:?} weighs by {:?}", level.key);
                return Err(problem(rule, *by, text));
            }
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Unit;

    fn node(key: &str, value: &str, descriptors: Vec<NodeSpec>) -> NodeSpec {
        let limit = Limit::per_unit(1, Unit::Hour);
        NodeSpec {
            key: key.into(),
            value: Some(value.into()),
            rule: Some(RuleSpec::of(RuleKind::Limits(vec![limit]))),
            descriptors,
            ..NodeSpec::default()
        }
    }

    fn compile(descriptors: Vec<NodeSpec>) -> Result<PolicySet, PolicyError> {
        PolicySet::compile(vec![DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors }])
    }

    fn met(set: &PolicySet, entries: &[(&str, &str)]) -> Option<String> {
        let entries: Vec<_> = entries.iter().map(|&(key, value)| Entry { key, value }).collect();
        let domain = set.domain("shop").expect("the domain is there");
        set.find(domain, &entries).rule.map(|rule| rule.path.to_string())
    }

    #[test]
    fn no_two_rules_have_one_path() {
        let set = compile(vec![
            node("a|b", "", vec![]),
            node("a", "", vec![node("b", "", vec![]), node("c", "d|e", vec![])]),
            node("a=b", "", vec![]),
            node("a", "b", vec![]),
            node("a\\", "", vec![node("b", "", vec![])]),
            node("a", "c|e", vec![]),
        ])
        .unwrap();
        let paths: Vec<_> = set.rules().iter().map(|rule| &*rule.path).collect();
        let expected = [r"a\|b", "a", "a|b", r"a|c=d\|e", r"a\=b", "a=b", r"a\\", r"a\\|b", r"a=c\|e"];
        assert_eq!(paths, expected);
    }

    #[test]
    fn the_more_exact_branch_is_taken_and_kept() {
        let set = compile(vec![
            node("a", "", vec![node("b", "", vec![])]),
            node("a", "1*", vec![node("b", "x", vec![])]),
            node("a", "12*", vec![]),
            node("a", "123", vec![]),
        ])
        .expect("compiles");
        assert_eq!(met(&set, &[("a", "123")]).as_deref(), Some("a=123"));
        assert_eq!(met(&set, &[("a", "124")]).as_deref(), Some("a=1*"));
        assert_eq!(met(&set, &[("a", "12*")]).as_deref(), Some("a=12*"), "as written");
        assert_eq!(met(&set, &[("a", "12**")]).as_deref(), Some("a=1*"));
        assert_eq!(met(&set, &[("a", "9")]).as_deref(), Some("a"));
        assert_eq!(met(&set, &[("a", "")]).as_deref(), Some("a"));
        assert_eq!(met(&set, &[("a", "9"), ("b", "x")]).as_deref(), Some("a|b"));
        assert_eq!(met(&set, &[("a", "1"), ("b", "y")]), None);
        assert_eq!(met(&set, &[]), None);
        assert_eq!(met(&set, &[("b", "x")]), None);
    }

    #[test]
    fn what_becomes_of_a_failed_charge_is_kept_where_it_is_written() {
        let mut of_rule = node("a", "1", vec![]);
        if let Some(rule) = &mut of_rule.rule {
            rule.on_error = Some(OnError::Local);
        }
        let descriptors = vec![of_rule, node("b", "1", vec![])];
        let spec = DomainSpec { name: "shop".into(), mode: None, on_error: Some(OnError::Deny), descriptors };
        let set = PolicySet::compile(vec![spec]).expect("compiles");
        assert_eq!(set.domain("shop").and_then(|domain| domain.on_error), Some(OnError::Deny));
        assert_eq!(set.rules()[0].on_error, Some(OnError::Local));
        assert_eq!(set.rules()[1].on_error, None);
        let domain = set.domain("shop").expect("the domain is there");
        let said = |rule: usize| domain.on_error_of(Some(&set.rules()[rule]));
        assert_eq!(said(0), Some((OnError::Local, SaidBy::Rule)));
        assert_eq!(said(1), Some((OnError::Deny, SaidBy::Domain)));
        assert_eq!(domain.on_error_of(None), Some((OnError::Deny, SaidBy::Domain)));
        let silent = compile(vec![node("a", "1", vec![])]).expect("compiles");
        assert_eq!(silent.domain("shop").and_then(|domain| domain.on_error_of(Some(&silent.rules()[0]))), None);
    }

    #[test]
    fn a_star_in_a_key_is_a_pattern_where_that_is_asked_for() {
        let star = |key: &str, value: &str, descriptors| NodeSpec {
            key_pattern: true,
            share_threshold: true,
            ..node(key, value, descriptors)
        };
        let set = compile(vec![
            node("user", "", vec![]),
            star("us*", "", vec![node("b", "", vec![])]),
            node("user", "x*", vec![]),
            star("h*", "v*1", vec![]),
            node("plain*", "", vec![]),
        ])
        .expect("compiles");
        // Both match before the key alone. The first in file order counts.
        assert_eq!(met(&set, &[("user", "xy")]).as_deref(), Some("us*"));
        assert_eq!(met(&set, &[("usage", "")]).as_deref(), Some("us*"));
        assert_eq!(met(&set, &[("usage", "1"), ("b", "2")]).as_deref(), Some("us*|b"));
        assert_eq!(met(&set, &[("us*", "1")]).as_deref(), Some("us*"));
        assert_eq!(met(&set, &[("host", "v11")]).as_deref(), Some("h*=v*1"));
        assert_eq!(met(&set, &[("h*", "v*1")]).as_deref(), Some("h*=v*1"), "as written");
        assert_eq!(met(&set, &[("host", "v2")]), None);
        assert_eq!(met(&set, &[("plainly", "1")]), None, "a star in a key is a star");
        assert_eq!(met(&set, &[("plain*", "1")]).as_deref(), Some("plain*"));
        let domain = set.domain("shop").expect("the domain is there");
        let found = set.find(domain, &[Entry { key: "usage", value: "1" }]);
        let pattern = Pattern::new("us*").expect("has a star");
        assert_eq!(found.shared[..], [(0, SharedBy::Pattern(&pattern))]);
    }

    #[test]
    fn a_rule_has_the_descriptors_on_the_way_to_it() {
        let mut inner = node("b", "x*", vec![]);
        inner.share_threshold = true;
        inner.detailed_metric = true;
        let mut outer = node("a", "", vec![inner]);
        outer.value_to_metric = true;
        let set = compile(vec![outer]).expect("compiles");
        let a = Level {
            key: "a".into(),
            value: None,
            share_threshold: false,
            detailed_metric: false,
            value_to_metric: true,
        };
        let b = Level {
            key: "b".into(),
            value: Some("x*".into()),
            share_threshold: true,
            detailed_metric: true,
            value_to_metric: false,
        };
        let levels = |rule: usize| set.rules()[rule].levels.iter().map(|level| (**level).clone()).collect::<Vec<_>>();
        let both = [a, b];
        assert_eq!(levels(0), both[..1]);
        assert_eq!(levels(1), both);
    }

    #[test]
    fn twins_are_refused() {
        let twice = compile(vec![node("a", "1", vec![]), node("a", "1", vec![])]);
        assert_eq!(twice.unwrap_err(), PolicyError::DuplicateDescriptor("shop|a=1".into()));
        let alone = compile(vec![node("a", "", vec![]), node("a", "", vec![])]);
        assert_eq!(alone.unwrap_err(), PolicyError::DuplicateDescriptor("shop|a".into()));
        let patterns = compile(vec![node("a", "1*", vec![]), node("b", "1*", vec![]), node("a", "1*", vec![])]);
        assert_eq!(patterns.unwrap_err(), PolicyError::DuplicateDescriptor("shop|a=1*".into()));
    }
}
