//! `weir diff` against a model of its own: pairs of policies made at random, and requests that both are asked.
//!
//! The model follows docs/semantics.md and has no code of the engine: one rule after the other, and the answer for each amount of use that the
//! limits of a request can have. Where `weir diff` finds nothing, no request may get another answer; where it finds nothing looser, none a
//! looser one. What it could not tell is counted. `WEIR_PROPTEST_CASES` sets how many pairs there are.

use std::fmt::Write;
use std::sync::Arc;

use regex::Regex as NaiveRegex;
use weir_engine::automaton::Regex;
use weir_engine::matcher::Matcher;
use weir_engine::network::Network;
use weir_engine::plans::{PlanNumbers, Plans};
use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
use weir_engine::{Limit, PolicySet, Role, Unit};
use weir_lab::comparison::{Comparison, Direction, compare};

use crate::support::arbitrary::config;
use crate::support::wildcards::{bits, stars};

/// How many requests each pair of policies is asked at least.
const REQUESTS: usize = 150;
/// At most one pair in so many may be one that the comparison could not tell.
const UNKNOWN_SHARE: usize = 50;

/// Numbers that follow from a seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap()
    }

    fn one_in(&mut self, most: usize) -> bool {
        self.below(most) == 0
    }

    fn of<'t, T: ?Sized>(&mut self, all: &[&'t T]) -> &'t T {
        all[self.below(all.len())]
    }
}

#[derive(Clone, Debug)]
enum Values {
    Any,
    Text(String),
    List(Vec<String>),
    Networks(Vec<String>),
    Regex(String, NaiveRegex),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NaiveRule {
    /// Hits per hour of each limit, and its name. None of them: unlimited.
    limits: Vec<(u32, Option<String>)>,
    replaces: Vec<String>,
    is_shadow: bool,
    is_quota: bool,
    /// Hits per hour under plans, if each descriptor has a row; none for unlimited.
    plans: Option<Vec<(&'static str, Option<u32>)>>,
}

/// The row of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NaiveRow {
    None,
    Plan(&'static str),
    /// The hits of a limit, by its name or without one.
    Own(u32, Option<&'static str>),
}

#[derive(Clone, Debug)]
struct NaiveNode {
    key: String,
    values: Values,
    rule: Option<NaiveRule>,
    below: Vec<NaiveNode>,
}

const KEYS: [&str; 3] = ["path", "ip", "op"];
/// Patterns of keys, as envoyproxy/ratelimit has them.
const KEY_PATTERNS: [&str; 3] = ["pa*", "*p", "o*"];
const NAMES: [&str; 3] = ["per_user", "burst", "day"];
const ADDRESSES: [&str; 12] = [
    "10.0.0.1",
    "10.0.0.9",
    "10.1.0.1",
    "10.1.2.3",
    "10.9.9.9",
    "11.0.0.1",
    "10.1.0.0/16",
    "10.0.0.0/9",
    "::ffff:10.1.2.3",
    "2001:db8::1",
    "2001:db8:1::1",
    "192.168.0.1",
];

fn text(numbers: &mut Numbers, key: &str) -> String {
    if key == "ip" && !numbers.one_in(4) {
        return numbers.of(&ADDRESSES).to_owned();
    }
    let count = numbers.below(5);
    (0..count).map(|_| numbers.of(&["a", "b", "/"])).collect()
}

fn values(numbers: &mut Numbers, key: &str) -> Values {
    let regexes = ["a|b", "/[ab]", "(ab)*", "/a.*", "[^/]+", ".*b", "a?/?b", "/(a|b)/?", "a{2,3}", "/.*/.*"];
    let regexes_of_addresses = [r"10\.[0-9]\..*", r"10\.0\.0\.[0-9]+", ".*:.*", r"[0-9.]+"];
    let networks = ["10.0.0.0/8", "10.0.0.0/9", "10.1.0.0/16", "10.1.2.0/24", "10.0.0.1", "0.0.0.0/0", "2001:db8::/32"];
    let kind = match key.contains('*') {
        true => numbers.of(&[&0, &2, &11]),
        false => &numbers.below(12),
    };
    match (*kind, key) {
        (0 | 1, _) => Values::Any,
        (2 | 3, _) => Values::Text(text(numbers, key)),
        (4, _) => Values::List((0..1 + numbers.below(4)).map(|_| text(numbers, key)).collect()),
        (5 | 6, "ip") => {
            Values::Networks((0..1 + numbers.below(2)).map(|_| numbers.of(&networks).to_owned()).collect())
        }
        (7, "ip") => Values::Text(numbers.of(&["10.*", "10.1.*", "*.1", "*:*", "*"]).to_owned()),
        (8, "ip") => regex(numbers.of(&regexes_of_addresses)),
        (5 | 6, _) => regex(numbers.of(&regexes)),
        _ => {
            let parts: Vec<String> = (0..2 + numbers.below(2)).map(|_| text(numbers, "path")).collect();
            Values::Text(parts.iter().map(|part| &part[..part.len().min(2)]).collect::<Vec<_>>().join("*"))
        }
    }
}

fn regex(text: &str) -> Values {
    Values::Regex(text.to_owned(), NaiveRegex::new(&format!("^(?:{text})$")).unwrap())
}

fn rule(numbers: &mut Numbers) -> NaiveRule {
    let name = |numbers: &mut Numbers| numbers.one_in(3).then(|| numbers.of(&NAMES).to_owned());
    let limits = match numbers.below(10) {
        0 => Vec::new(),
        _ => vec![(u32::try_from(numbers.below(4)).unwrap(), name(numbers))],
    };
    let replaces = if numbers.one_in(6) { vec![numbers.of(&NAMES).to_owned()] } else { Vec::new() };
    let plans = if numbers.one_in(3) && !limits.is_empty() { Some(plans(numbers)) } else { None };
    NaiveRule { limits, replaces, is_shadow: numbers.one_in(10), is_quota: numbers.one_in(8), plans }
}

/// Numbers under plans other than the default, which is `free`.
fn plans(numbers: &mut Numbers) -> Vec<(&'static str, Option<u32>)> {
    let hits = |numbers: &mut Numbers| (!numbers.one_in(3)).then(|| u32::try_from(numbers.below(4)).unwrap());
    let all = ["gold", "lead"].map(|plan| (plan, hits(numbers)));
    all.into_iter().filter(|_| !numbers.one_in(3)).collect()
}

/// The row of a descriptor. It has numbers of its own only if its rule had rows before.
fn row(numbers: &mut Numbers, old: &[NaiveNode], descriptor: &Descriptor) -> NaiveRow {
    let with_rows = met(old, descriptor).filter(|rule| rule.plans.is_some());
    match (numbers.below(6), with_rows) {
        (0, Some(rule)) => {
            let hits = u32::try_from(numbers.below(4)).unwrap();
            let own = rule.limits[0].1.as_deref().filter(|_| numbers.one_in(2));
            NaiveRow::Own(hits, own.map(|own| NAMES.into_iter().find(|name| *name == own).unwrap()))
        }
        (1 | 2, _) => NaiveRow::Plan(numbers.of(&["free", "gold", "lead"])),
        _ => NaiveRow::None,
    }
}

fn node(numbers: &mut Numbers, depth: usize) -> NaiveNode {
    let key = if numbers.one_in(12) { numbers.of(&KEY_PATTERNS) } else { numbers.of(&KEYS) };
    let below = if depth > 0 && numbers.one_in(3) { nodes(numbers, depth - 1, 3) } else { Vec::new() };
    let rule = (below.is_empty() || !numbers.one_in(3)).then(|| rule(numbers));
    NaiveNode { key: key.to_owned(), values: values(numbers, key), rule, below }
}

fn nodes(numbers: &mut Numbers, depth: usize, most: usize) -> Vec<NaiveNode> {
    (0..1 + numbers.below(most)).map(|_| node(numbers, depth)).collect()
}

/// The nodes of one level somewhere in the tree.
fn level<'n>(numbers: &mut Numbers, nodes: &'n mut Vec<NaiveNode>) -> &'n mut Vec<NaiveNode> {
    let with_more: Vec<usize> = (0..nodes.len()).filter(|at| !nodes[*at].below.is_empty()).collect();
    if with_more.is_empty() || !numbers.one_in(2) {
        return nodes;
    }
    let at = with_more[numbers.below(with_more.len())];
    level(numbers, &mut nodes[at].below)
}

fn change(numbers: &mut Numbers, all: &mut Vec<NaiveNode>) {
    let level = level(numbers, all);
    if level.is_empty() {
        return level.push(node(numbers, 1));
    }
    let at = numbers.below(level.len());
    match numbers.below(9) {
        0 => drop(level.remove(at)),
        1 => level.insert(at, node(numbers, 1)),
        2 => {
            let other = numbers.below(level.len());
            level.swap(at, other);
        }
        3 => {
            let key = level[at].key.clone();
            level[at].values = values(numbers, &key);
        }
        4 => numbers.of(&KEYS).clone_into(&mut level[at].key),
        5 => {
            let key = level[at].key.clone();
            match &mut level[at].values {
                Values::List(values) if values.len() > 1 => drop(values.pop()),
                Values::List(values) => values.push(text(numbers, &key)),
                _ => {}
            }
        }
        _ => {
            let Some(rule) = &mut level[at].rule else {
                level[at].rule = Some(self::rule(numbers));
                return;
            };
            match numbers.below(7) {
                4 if rule.plans.is_some() => rule.plans = None,
                4 | 5 if !rule.limits.is_empty() => rule.plans = Some(plans(numbers)),
                0 => rule.is_shadow = !rule.is_shadow,
                1 => rule.is_quota = !rule.is_quota,
                2 => rule.replaces = if rule.replaces.is_empty() { vec![NAMES[0].to_owned()] } else { Vec::new() },
                3 => rule.limits.iter_mut().for_each(|(_, name)| *name = Some(numbers.of(&NAMES).to_owned())),
                _ => rule.limits.iter_mut().for_each(|(hits, _)| *hits = u32::try_from(numbers.below(4)).unwrap()),
            }
        }
    }
}

fn compiled(nodes: &[NaiveNode]) -> Option<PolicySet> {
    let descriptors = nodes.iter().map(spec).collect();
    PolicySet::compile(vec![DomainSpec { name: "d".into(), mode: None, on_error: None, descriptors }]).ok()
}

fn spec(node: &NaiveNode) -> NodeSpec {
    let value = match &node.values {
        Values::Any => None,
        Values::Text(text) => Some(text.as_str().into()),
        Values::List(values) => Some(Matcher::List(values.iter().map(|value| value.as_str().into()).collect())),
        Values::Networks(networks) => {
            Some(Matcher::Networks(networks.iter().map(|network| Network::parse(network).unwrap()).collect()))
        }
        Values::Regex(text, _) => Some(Matcher::Regex(Regex::new(text).unwrap().into())),
    };
    let rule = node.rule.as_ref().map(|rule| {
        let limit = |(hits, name): &(u32, Option<String>)| {
            let mut limit = Limit::per_unit(*hits, Unit::Hour);
            limit.name = name.as_deref().map(Into::into);
            limit
        };
        let kind = match rule.limits.is_empty() {
            true => RuleKind::Unlimited { name: None },
            false => RuleKind::Limits(rule.limits.iter().map(limit).collect()),
        };
        let role = Role::of(rule.is_shadow, rule.is_quota);
        let rows = rule.plans.as_ref().map(|plans| {
            let limits: Vec<Limit> = rule.limits.iter().map(limit).collect();
            let numbers = |&(plan, hits): &(&str, Option<u32>)| PlanNumbers {
                plan: plan.into(),
                rate: hits.map(|hits: u32| (hits.into(), Unit::Hour.window())),
            };
            Arc::new(Plans::of("free", &limits, &[plans.iter().map(numbers).collect()]).unwrap())
        });
        let replaces = rule.replaces.iter().map(|name| name.as_str().into()).collect();
        RuleSpec { role, is_quota: rule.is_quota, replaces, rows, ..RuleSpec::of(kind) }
    });
    NodeSpec {
        key: node.key.clone(),
        value,
        key_pattern: node.key_pattern().is_some(),
        rule,
        descriptors: node.below.iter().map(spec).collect(),
        ..NodeSpec::default()
    }
}

impl NaiveNode {
    /// What the key and the value of an entry are compared with, joined, if the key is a pattern.
    fn key_pattern(&self) -> Option<String> {
        match &self.values {
            Values::Any if self.key.contains('*') => Some(self.key.clone()),
            Values::Text(text) if self.key.contains('*') && text.is_empty() => Some(self.key.clone()),
            Values::Text(text) if self.key.contains('*') => Some(format!("{}_{text}", self.key)),
            _ => None,
        }
    }
}

/// Which node an entry takes: the exact text, then the longest network, then the first pattern, then the key alone.
fn taken<'n>(nodes: &'n [NaiveNode], key: &str, value: &str) -> Option<&'n NaiveNode> {
    let rank = |node: &NaiveNode| match &node.values {
        Values::Any => Some((3, 0)),
        Values::Text(text) if text.is_empty() => Some((3, 0)),
        Values::Text(text) if text == value => Some((0, 0)),
        Values::List(values) if values.iter().any(|listed| listed == value) => Some((0, 0)),
        Values::Networks(networks) => {
            let value = bits(value)?;
            let around =
                networks.iter().filter_map(|network| bits(network)).filter(|network| value.starts_with(network));
            around.map(|network| network.len()).max().map(|length| (1, 1_000 - length))
        }
        Values::Text(text) if text.contains('*') && stars(text.as_bytes(), value.as_bytes()) => Some((2, 0)),
        Values::Regex(_, regex) if regex.is_match(value) => Some((2, 0)),
        Values::Text(_) | Values::List(_) | Values::Regex(..) => None,
    };
    let joined = format!("{key}_{value}");
    let by_key = |node: &NaiveNode| stars(node.key_pattern()?.as_bytes(), joined.as_bytes()).then_some((2, 0));
    let ranks =
        |node: &NaiveNode| Some(node).filter(|node| node.key == key).and_then(rank).into_iter().chain(by_key(node));
    let ranked = nodes.iter().enumerate().flat_map(|(at, node)| ranks(node).map(move |rank| (rank, at)));
    ranked.min().map(|(_, at)| &nodes[at])
}

type Descriptor = Vec<(String, String)>;

fn met<'n>(nodes: &'n [NaiveNode], descriptor: &Descriptor) -> Option<&'n NaiveRule> {
    let mut level = nodes;
    let mut found = None;
    for (key, value) in descriptor {
        let node = taken(level, key, value)?;
        level = &node.below;
        found = node.rule.as_ref();
    }
    found
}

/// What decides a request: by descriptor the limits that apply to it, each with whether it is a quota, and whether a quota is open.
#[derive(Debug, PartialEq, Eq)]
struct Deciding {
    limits: Vec<(usize, u32, bool)>,
    has_open_quota: bool,
}

fn deciding(nodes: &[NaiveNode], request: &[Descriptor], rows: &[NaiveRow]) -> Deciding {
    let rules: Vec<Option<&NaiveRule>> = request.iter().map(|descriptor| met(nodes, descriptor)).collect();
    let replaced: Vec<&String> = rules.iter().flatten().flat_map(|rule| &rule.replaces).collect();
    let mut deciding = Deciding { limits: Vec::new(), has_open_quota: false };
    for (number, rule) in rules.iter().enumerate() {
        let Some(rule) = rule else { continue };
        let left = rule.limits.iter().filter(|(_, name)| name.as_ref().is_none_or(|name| !replaced.contains(&name)));
        let of_row = match (&rule.plans, rows[number]) {
            (Some(_), NaiveRow::Own(hits, name)) => {
                // A row with a name that no limit has is no row.
                let is_it = |(_, own): &(u32, Option<String>)| name.is_none() || own.as_deref() == name;
                rule.limits.iter().all(is_it).then_some(Some(hits))
            }
            (Some(plans), NaiveRow::Plan(name)) => plans.iter().find(|(plan, _)| *plan == name).map(|(_, hits)| *hits),
            _ => None,
        };
        if of_row == Some(None) {
            // Unlimited under its plan: a quota that is never over.
            deciding.has_open_quota |= rule.is_quota;
            continue;
        }
        for (default, _) in left {
            let hits = &of_row.flatten().unwrap_or(*default);
            match (rule.is_shadow, rule.is_quota) {
                (true, is_quota) => deciding.has_open_quota |= is_quota,
                (false, is_quota) => deciding.limits.push((number, *hits, is_quota)),
            }
        }
    }
    deciding
}

impl Deciding {
    /// Whether the request is denied if each descriptor has used so much.
    fn denies(&self, used: &[u32]) -> bool {
        let is_over = |&&(descriptor, hits, _): &&(usize, u32, bool)| used[descriptor] >= hits;
        let mut quotas = self.limits.iter().filter(|(.., is_quota)| *is_quota).peekable();
        self.limits.iter().filter(|(.., is_quota)| !is_quota).any(|limit| is_over(&limit))
            || !self.has_open_quota && quotas.peek().is_some() && quotas.all(|limit| is_over(&limit))
    }
}

/// Values that can make a difference: those of the policies, those beside them, and short texts.
fn pool(nodes: &[NaiveNode], pool: &mut Vec<String>) {
    for node in nodes {
        match &node.values {
            Values::Any | Values::Regex(..) => {}
            Values::Text(text) => {
                pool.push(text.clone());
                pool.extend(["", "a", "/b", "ab/"].map(|filler| text.replace('*', filler)));
            }
            Values::List(values) | Values::Networks(values) => pool.extend(values.iter().cloned()),
        }
        self::pool(&node.below, pool);
    }
}

fn descriptor(numbers: &mut Numbers, sides: [&[NaiveNode]; 2], values: &[String]) -> Descriptor {
    let mut levels = sides;
    let mut entries = Vec::new();
    loop {
        // Mostly keys that stand there.
        let there: Vec<&str> = levels.iter().flat_map(|level| level.iter().map(|node| node.key.as_str())).collect();
        let key = if there.is_empty() { numbers.of(&KEYS) } else { numbers.of(&there) };
        let key = if key.contains('*') { numbers.of(&["path", "pax", "op", "ip", key]) } else { key };
        let value = if key == "ip" && numbers.one_in(2) {
            numbers.of(&ADDRESSES)
        } else {
            &values[numbers.below(values.len())]
        };
        entries.push((key.to_owned(), value.to_owned()));
        levels = levels.map(|level| taken(level, key, value).map_or(&[][..], |node| &node.below));
        if levels.iter().all(|level| level.is_empty()) || numbers.one_in(3) {
            return entries;
        }
    }
}

/// What requests show: one that is denied now and was not, and the reverse.
#[derive(Debug, Default)]
struct Shown {
    stricter: Option<String>,
    looser: Option<String>,
}

fn shown(numbers: &mut Numbers, old: &[NaiveNode], new: &[NaiveNode]) -> Shown {
    let mut values = vec![String::new(), "x".to_owned(), "日".to_owned()];
    values
        .extend(["a", "b", "/", "/a", "/b", "ab", "aa", "b/", "/ab", "/a/b", "abab", "a/b", "aaa"].map(str::to_owned));
    pool(old, &mut values);
    pool(new, &mut values);
    let mut shown = Shown::default();
    let descriptors: Vec<Descriptor> = (0..REQUESTS).map(|_| descriptor(numbers, [old, new], &values)).collect();
    for number in 0..REQUESTS * 2 {
        let count = if number < REQUESTS { 1 } else { 2 + numbers.below(2) };
        let mut request: Vec<Descriptor> = vec![descriptors[number % REQUESTS].clone()];
        for _ in 1..count {
            let more = &descriptors[numbers.below(REQUESTS)];
            if !request.contains(more) {
                request.push(more.clone());
            }
        }
        let rows: Vec<NaiveRow> = request.iter().map(|descriptor| row(numbers, old, descriptor)).collect();
        let (before, now) = (deciding(old, &request, &rows), deciding(new, &request, &rows));
        if before == now {
            continue;
        }
        for all in 0..4_u32.pow(u32::try_from(request.len()).unwrap()) {
            let used: Vec<u32> = (0..request.len()).map(|at| all >> (2 * at) & 3).collect();
            let told = || format!("{request:?} with {rows:?} after {used:?}");
            match (before.denies(&used), now.denies(&used)) {
                (false, true) => drop(shown.stricter.get_or_insert_with(told)),
                (true, false) => drop(shown.looser.get_or_insert_with(told)),
                _ => {}
            }
        }
    }
    shown
}

fn told(comparison: &Comparison<'_>) -> String {
    let mut told = String::new();
    for change in &comparison.rules {
        let paths = [change.old, change.new].map(|rule| rule.map(|rule| &*rule.path));
        writeln!(told, "{} {paths:?} {:?} {:?}", change.kind.name(), change.example, change.effects).unwrap();
    }
    for unknown in &comparison.unknown {
        writeln!(told, "could not tell: {}", unknown.why).unwrap();
    }
    told
}

#[test]
fn no_request_gets_an_answer_that_the_comparison_does_not_have() {
    let pairs = config(1).cases as usize;
    let (mut compared, mut unknown, mut silent, mut claims, mut shown_claims) = (0, 0, 0, 0, 0);
    let mut seed = 0;
    while compared < pairs {
        seed += 1;
        let mut numbers = Numbers(seed);
        let most = if numbers.one_in(4) { 14 } else { 5 };
        let old = nodes(&mut numbers, 2, most);
        let mut new = old.clone();
        for _ in 0..=numbers.below(3) {
            change(&mut numbers, &mut new);
        }
        let (Some(before), Some(now)) = (compiled(&old), compiled(&new)) else { continue };
        compared += 1;
        let comparison = compare(&before, &now);
        if !comparison.unknown.is_empty() {
            unknown += 1;
            continue;
        }
        silent += usize::from(comparison.is_empty());
        let shown = shown(&mut numbers, &old, &new);
        for (direction, shown) in [(Direction::Stricter, shown.stricter), (Direction::Looser, shown.looser)] {
            let is_said = comparison.with_direction(direction) > 0;
            claims += usize::from(is_said);
            shown_claims += usize::from(is_said && shown.is_some());
            if let Some(request) = shown.filter(|_| !is_said) {
                panic!("seed {seed}: {request} is {}\n{old:#?}\n{new:#?}\n{}", direction.name(), told(&comparison));
            }
        }
    }
    println!(
        "{pairs} pairs: {unknown} could not be told, {silent} without a change; {shown_claims} of {claims} claims shown"
    );
    assert!(unknown * UNKNOWN_SHARE <= pairs.max(UNKNOWN_SHARE), "{unknown} of {pairs} pairs could not be told");
    assert!(silent * 20 > pairs && silent * 2 < pairs, "{silent} of {pairs} pairs are without a change");
    // Not each claim is shown by the requests that are tried, but most are.
    assert!(shown_claims * 10 > claims * 7, "{shown_claims} of {claims} claims were shown");
}
