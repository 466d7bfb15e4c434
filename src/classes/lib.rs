//! Classes divide the values of a key at one level into finitely many parts. All values of a class meet the same rules,
//! so one value can represent the class.
//!
//! The levels can be of several policies (`N`: two for a comparison, one for finding descriptors that no value meets).
//! Classes are: each text that a level names, each network without its inner networks, each combination of the patterns
//! that values match first (found by a walk through all automata at once), and the rest. The witness of a class is a
//! shortest value, in printable characters if possible. [`PolicySet::find`](weir_engine::PolicySet::find) confirms
//! it: `met` is what the engine finds for the witness.
//!
//! An IPv6 address and a network can each be written as many texts. If a key has patterns and networks, a class of such
//! texts may have no value: then it has no witness. Beyond a budget there are no classes ([`GivenUp`]). Not here: how
//! two rules differ (comparison).

mod addresses;
mod spellings;
mod texts;
mod walk;

use std::borrow::Cow;
use std::collections::BTreeSet;

use hashbrown::HashSet;
use smallvec::SmallVec;
use weir_engine::Entry;
use weir_engine::automaton::{AUTOMATON_BYTES_MAX, Automaton, Progress, Source};
use weir_engine::matcher::Matcher;
use weir_engine::network::Network;
use weir_engine::pattern::Pattern;
use weir_engine::policy::Place;

use self::addresses::{Lattice, Spelled};
use self::spellings::{address_beside, spellings};
use self::texts::Texts;
pub use self::walk::{Budget, GivenUp, STATES_MAX, STEPS_MAX, Values};
use self::walk::{Firsts, Region, Walk};

/// Entries that meet the same rule in each of several policies.
#[derive(Clone, Debug)]
pub struct Class<'p, const N: usize> {
    pub key: String,
    /// A value of the class. None if it is unknown whether the class has a value.
    pub witness: Option<String>,
    pub kind: ClassKind,
    /// Where the entries of the class lead in each policy.
    pub met: [Option<Place<'p>>; N],
}

/// What distinguishes a class from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClassKind {
    /// One value, which a policy names as a text or as the text of a wildcard.
    Text,
    /// Addresses in a network.
    Network,
    /// All other values: values that patterns match, and values for the key alone.
    Other,
}

/// The keys that one of the policies has at a level, in order.
pub fn keys<'p, const N: usize>(places: &[Option<Place<'p>>; N]) -> BTreeSet<&'p str> {
    places.iter().flatten().flat_map(|place| place.keys()).collect()
}

/// The classes of these values of a key that one of the policies has at the level. Leaves out classes that meet no rule.
///
/// # Errors
/// When the budget is used up.
pub fn classes<'p, const N: usize>(
    values: Values,
    places: &[Option<Place<'p>>; N],
    key: &str,
    budget: &mut Budget,
) -> Result<Vec<Class<'p, N>>, GivenUp> {
    Level::new(places, key)?.classes(values, budget)
}

/// The classes of all keys that no policy has at the level: a key with a `*` can match them, in policies that are read
/// as policies of envoyproxy/ratelimit. Leaves out classes that meet no rule.
///
/// # Errors
/// When the budget is used up.
pub fn classes_of_other_keys<'p, const N: usize>(
    places: &[Option<Place<'p>>; N],
    budget: &mut Budget,
) -> Result<Vec<Class<'p, N>>, GivenUp> {
    let of_keys = key_automata(places)?;
    if of_keys.iter().all(Option::is_none) {
        return Ok(Vec::new());
    }
    let known = keys(places);
    let automata = of_keys.iter().flatten().filter_map(|automaton| Some((automaton, automaton.begin()?))).collect();
    let walk = Walk { automata, keys: Some(Texts::new(known.iter().copied())), ..Walk::default() };
    let class = |region: Region| {
        let cuts = region.text.match_indices('_').map(|(at, _)| at);
        let at = cuts.into_iter().find(|at| *at > 0 && !known.contains(&region.text[..*at]))?;
        Some(Class::of(places, region.text[..at].to_owned(), region.text[at + 1..].to_owned(), ClassKind::Other))
    };
    let classes = walk.regions(budget)?.into_iter().filter_map(class);
    Ok(classes.filter(Class::is_met).collect())
}

impl<'p, const N: usize> Class<'p, N> {
    fn of(places: &[Option<Place<'p>>; N], key: String, value: String, kind: ClassKind) -> Self {
        let met = places.map(|place| place?.child(Entry { key: &key, value: &value }));
        Self { key, witness: Some(value), kind, met }
    }

    fn is_met(&self) -> bool {
        self.met.iter().any(Option::is_some)
    }

    /// Where the class leads, by addresses.
    fn outcome(&self) -> [Option<usize>; N] {
        self.met.map(|place| place.map(Place::address))
    }
}

fn key_automata<'p, const N: usize>(places: &[Option<Place<'p>>; N]) -> Result<[Option<Automaton>; N], GivenUp> {
    let mut automata = [const { None }; N];
    for (automaton, place) in automata.iter_mut().zip(places) {
        let patterns = place.map(Place::key_patterns).unwrap_or_default();
        *automaton = made(&patterns.into_iter().map(Source::Wildcard).collect::<Vec<_>>())?;
    }
    Ok(automata)
}

fn made(sources: &[Source<'_>]) -> Result<Option<Automaton>, GivenUp> {
    if sources.is_empty() {
        return Ok(None);
    }
    Automaton::new(sources, AUTOMATON_BYTES_MAX).map(Some).ok_or(GivenUp::Automaton)
}

/// One key at one level of several policies.
struct Level<'l, 'p, const N: usize> {
    places: &'l [Option<Place<'p>>; N],
    key: &'l str,
    texts: HashSet<&'p str>,
    networks: Lattice,
    /// For each policy, the patterns of the key and the key patterns.
    automata: [(Option<Cow<'p, Automaton>>, Option<Automaton>); N],
}

impl<'l, 'p, const N: usize> Level<'l, 'p, N> {
    fn new(places: &'l [Option<Place<'p>>; N], key: &'l str) -> Result<Self, GivenUp> {
        let mut automata = [const { (None, None) }; N];
        for ((place, of_keys), both) in places.iter().zip(key_automata(places)?).zip(&mut automata) {
            let of_key = place.map(|place| place.automaton(key)).transpose().map_err(|_| GivenUp::Automaton)?;
            *both = (of_key.flatten(), of_keys);
        }
        let texts = places.iter().flatten().flat_map(|place| place.texts(key)).collect();
        let networks = Lattice::new(places.iter().flatten().flat_map(|place| place.networks(key)));
        Ok(Self { places, key, texts, networks, automata })
    }

    fn class(&self, value: String, kind: ClassKind) -> Class<'p, N> {
        Class::of(self.places, self.key.to_owned(), value, kind)
    }

    fn classes(&self, values: Values, budget: &mut Budget) -> Result<Vec<Class<'p, N>>, GivenUp> {
        let mut texts: Vec<&str> = self.texts.iter().copied().collect();
        texts.sort_unstable();
        let of_networks = self.networks.with_inner();
        budget.take((1 + texts.len() + of_networks.len()) as u64)?;
        // The text of a wildcard is the least readable of its values.
        let (of_wildcards, texts): (Vec<&str>, Vec<&str>) = texts.into_iter().partition(|text| text.contains('*'));
        let of_text = |text: &str| self.class(text.to_owned(), ClassKind::Text);
        let mut classes: Vec<_> = texts.into_iter().map(of_text).collect();
        let mut others = Vec::new();
        for (network, inner) in &of_networks {
            let values = self.values_in(network, inner);
            others.extend(values.into_iter().map(|value| self.class(value, ClassKind::Network)));
        }
        let mut unknown = Vec::new();
        if self.automata.iter().any(|(of_key, of_keys)| of_key.is_some() || of_keys.is_some()) {
            self.add_regions(values, &mut others, &mut unknown, budget)?;
        } else {
            others.push(self.class(self.any_other_value(), ClassKind::Other));
        }
        // Several values can find one class; the first is kept.
        let mut outcomes = HashSet::new();
        let found = others.into_iter().chain(unknown);
        classes.extend(found.filter(|class| outcomes.insert(class.outcome())));
        classes.extend(of_wildcards.into_iter().map(of_text));
        classes.retain(Class::is_met);
        Ok(classes)
    }

    /// Adds a class for each region of the patterns, and classes that may have no value.
    fn add_regions(
        &self,
        values: Values,
        others: &mut Vec<Class<'p, N>>,
        unknown: &mut Vec<Class<'p, N>>,
        budget: &mut Budget,
    ) -> Result<(), GivenUp> {
        let mut automata: SmallVec<[(&Automaton, Progress); 4]> = SmallVec::new();
        for (of_key, of_keys) in &self.automata {
            automata.extend(of_key.as_deref().and_then(|automaton| Some((automaton, automaton.begin()?))));
            automata.extend(of_keys.as_ref().and_then(|automaton| {
                let behind = self.key.bytes().chain([b'_']);
                Some((automaton, behind.fold(automaton.begin()?, |reading, byte| automaton.read(reading, byte))))
            }));
        }
        let networks = (!self.networks.is_empty()).then_some(&self.networks);
        let walk = Walk { automata, networks, values, ..Walk::default() };
        for region in walk.regions_without(&self.texts, budget)? {
            let possible = self.networks.possible(region.spelled);
            let is_address = matches!(region.spelled, Spelled::Address(Some(_)));
            let kind = if is_address { ClassKind::Network } else { ClassKind::Other };
            others.push(self.class(region.text, kind));
            if matches!(region.spelled, Spelled::Cut(_) | Spelled::V6) {
                budget.take(possible.len() as u64)?;
                unknown.extend(possible.into_iter().map(|network| self.perhaps(&region.firsts, network)));
            }
        }
        Ok(())
    }

    /// The class of values that match these patterns first and are in this network. It may have no value.
    fn perhaps(&self, firsts: &Firsts, network: Option<&Network>) -> Class<'p, N> {
        let mut firsts = firsts.iter().copied();
        let mut met = [None; N];
        for ((met, place), (of_key, of_keys)) in met.iter_mut().zip(self.places).zip(&self.automata) {
            let of_key = of_key.as_ref().and_then(|_| firsts.next().flatten());
            let of_keys = of_keys.as_ref().and_then(|_| firsts.next().flatten());
            let by_network = network.and_then(|network| place.as_ref()?.by_network(self.key, network));
            *met = by_network.or_else(|| place.as_ref()?.by_patterns(self.key, of_key, of_keys));
        }
        let kind = if network.is_some() { ClassKind::Network } else { ClassKind::Other };
        Class { key: self.key.to_owned(), witness: None, kind, met }
    }

    /// Values that are in a network and in none of its inner networks, if patterns can distinguish them.
    fn values_in(&self, network: &Network, inner: &[Network]) -> Vec<String> {
        let address = address_beside(network, inner);
        let values = address.iter().chain([network]).flat_map(spellings);
        values.filter(|value| !self.texts.contains(value.as_str())).collect()
    }

    /// A value that no policy names.
    fn any_other_value(&self) -> String {
        let numbered = (0_usize..).map(|number| format!("x{number}"));
        let mut values = std::iter::once("x".to_owned()).chain(numbered);
        values.find(|value| !self.texts.contains(value.as_str())).unwrap_or_default()
    }
}

/// What the values of a wildcard or a regular expression match beside other matchers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// A value that matches the matcher itself, other than the text of a wildcard. None if there is no such value.
    pub own: Option<String>,
    /// The matchers that match some of its values first, in order, each with such a value.
    pub by: Vec<(usize, String)>,
}

/// What the values of one of several matchers of a key match; the matchers are in file order. Empty if the matcher is
/// neither a wildcard nor a regular expression.
///
/// # Errors
/// When the budget is used up.
pub fn taken(matchers: &[&Matcher], which: usize, budget: &mut Budget) -> Result<Taken, GivenUp> {
    let wildcards: Vec<Option<Pattern>> = matchers.iter().map(|matcher| wildcard(matcher)).collect();
    let mut sources = Vec::new();
    let mut numbers = Vec::new();
    let mut texts: HashSet<&str> = HashSet::new();
    let mut taken = Taken::default();
    for (number, (matcher, wildcard)) in matchers.iter().zip(&wildcards).enumerate() {
        let source = match (matcher, wildcard) {
            (_, Some(wildcard)) => Source::Wildcard(wildcard),
            (Matcher::Regex(regex), _) => Source::Regex(regex),
            _ => continue,
        };
        sources.push(source);
        numbers.push(number);
    }
    let own = numbers.iter().position(|number| *number == which).map(|at| &sources[at..=at]);
    let (Some(all), Some(own)) = (made(&sources)?, own.map(made).transpose()?.flatten()) else { return Ok(taken) };
    let mut note = |by: usize, value: &str| {
        if !taken.by.iter().any(|(known, _)| *known == by) {
            taken.by.push((by, value.to_owned()));
        }
    };
    for (number, matcher) in matchers.iter().enumerate() {
        let listed: Vec<&str> = match matcher {
            Matcher::Text(text) => vec![text],
            Matcher::List(values) => values.iter().map(|value| &**value).collect(),
            Matcher::Networks(_) | Matcher::Regex(_) => Vec::new(),
        };
        budget.take(listed.len() as u64)?;
        if let Some(value) = listed.iter().find(|text| number != which && own.first(text).is_some()) {
            note(number, value);
        }
        texts.extend(listed);
    }
    let networks =
        matchers.iter().filter_map(|matcher| if let Matcher::Networks(all) = matcher { Some(all) } else { None });
    let networks = Lattice::new(networks.flat_map(|all| all.iter().copied()));
    let automata = [&all, &own].into_iter().filter_map(|automaton| Some((automaton, automaton.begin()?))).collect();
    let walk = Walk { automata, networks: (!networks.is_empty()).then_some(&networks), ..Walk::default() };
    for Region { firsts, text, .. } in walk.regions_without(&texts, budget)? {
        let [Some(first), Some(_)] = firsts[..] else { continue };
        let by_network = matchers.iter().position(|it| matches!(it, Matcher::Networks(_)) && it.matches(&text));
        let meets = by_network.unwrap_or(numbers[first]);
        if meets == which {
            taken.own.get_or_insert(text);
        } else {
            note(meets, &text);
        }
    }
    taken.by.sort_unstable();
    Ok(taken)
}

fn wildcard(matcher: &Matcher) -> Option<Pattern> {
    if let Matcher::Text(text) = matcher { Pattern::new(text) } else { None }
}

#[cfg(test)]
mod tests {
    use weir_engine::automaton::Regex;
    use weir_engine::policy::{Domain, DomainSpec, NodeSpec, PolicySet, RuleKind, RuleSpec};
    use weir_engine::{Limit, Unit};

    use super::*;

    fn regex(text: &str) -> Matcher {
        Matcher::Regex(Regex::new(text).expect(text).into())
    }

    fn list(values: &[&str]) -> Matcher {
        Matcher::List(values.iter().map(|value| Box::from(*value)).collect())
    }

    fn networks(texts: &[&str]) -> Matcher {
        Matcher::Networks(texts.iter().map(|text| Network::parse(text).expect(text)).collect())
    }

    fn node(key: &str, value: Option<Matcher>) -> NodeSpec {
        let rule = Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(1, Unit::Hour)])));
        NodeSpec { key: key.into(), value, rule, key_pattern: key.contains('*'), ..NodeSpec::default() }
    }

    fn compiled(descriptors: Vec<NodeSpec>) -> PolicySet {
        let shop = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors };
        PolicySet::compile(vec![shop]).expect("compiles")
    }

    fn of_key(values: impl IntoIterator<Item = Option<Matcher>>) -> PolicySet {
        compiled(values.into_iter().map(|value| node("a", value)).collect())
    }

    /// The classes as text: `witness: rule before > rule now`.
    fn told(old: &PolicySet, new: &PolicySet, key: Option<&str>) -> Vec<String> {
        let places = [old, new].map(|set| set.domain("shop").map(Domain::top));
        let mut budget = Budget::default();
        let found = match key {
            Some(key) => classes(Values::All, &places, key, &mut budget),
            None => classes_of_other_keys(&places, &mut budget),
        };
        let path = |set: &PolicySet, place: Option<Place<'_>>| {
            let rule = place.and_then(Place::rule).map(|rule| &set.rules()[rule as usize]);
            rule.map_or_else(|| "-".to_owned(), |rule| rule.path.to_string())
        };
        let word = |class: Class<'_, 2>| {
            let entry =
                class.witness.map(|witness| if key.is_some() { witness } else { format!("{}={witness}", class.key) });
            let (before, now) = (path(old, class.met[0]), path(new, class.met[1]));
            format!("{}: {before} > {now}", entry.as_deref().unwrap_or("?"))
        };
        found.expect("the budget lasts").into_iter().map(word).collect()
    }

    #[test]
    fn each_text_and_each_crossing_of_patterns_is_a_class() {
        let old = of_key([Some("/api/*".into()), Some("*/export".into()), None]);
        let new = of_key([Some("*/export".into()), Some("/api/*".into()), Some(list(&["/b", "/api/x"]))]);
        assert_eq!(
            told(&old, &new, Some("a")),
            [
                "/api/x: a=/api/* > a=/b,...",
                "/b: a > a=/b,...",
                "x: a > -",
                "/api/: a=/api/* > a=/api/*",
                "/export: a=*/export > a=*/export",
                "/api/export: a=/api/* > a=*/export",
                "*/export: a=*/export > a=*/export",
                "/api/*: a=/api/* > a=/api/*",
            ]
        );
    }

    #[test]
    fn a_pattern_whose_values_are_all_named_has_no_class() {
        let old = of_key([Some(list(&["/a", "/b", "/c"]))]);
        let new = of_key([Some(regex("/[ab]"))]);
        assert_eq!(
            told(&old, &new, Some("a")),
            ["/a: a=/a,... > a=~/[ab]", "/b: a=/a,... > a=~/[ab]", "/c: a=/a,... > -"]
        );
    }

    #[test]
    fn networks_are_told_apart_by_those_within_them_and_by_patterns() {
        let old = of_key([Some(networks(&["10.0.0.0/8"])), None]);
        let new = of_key([Some(networks(&["10.0.0.0/9"])), Some(networks(&["10.128.0.0/9"])), Some("10.0.0.1".into())]);
        assert_eq!(
            told(&old, &new, Some("a")),
            [
                "10.0.0.1: a=10.0.0.0/8 > a=10.0.0.1",
                "10.0.0.0/8: a=10.0.0.0/8 > -",
                "::ffff:10.0.0.1: a=10.0.0.0/8 > a=10.0.0.0/9",
                "10.128.0.1: a=10.0.0.0/8 > a=10.128.0.0/9",
                "x: a > -",
            ]
        );
        let old = of_key([Some("10.*".into()), Some(regex(r"192\.168\.0\.[0-9]+"))]);
        let new = of_key([Some(networks(&["10.0.0.0/8", "192.168.0.0/30"]))]);
        assert_eq!(
            told(&old, &new, Some("a")),
            [
                "10.0.0.1: a=10.* > a=10.0.0.0/8,...",
                "::ffff:10.0.0.1: - > a=10.0.0.0/8,...",
                r"192.168.0.1: a=~192\\.168\\.0\\.[0-9]+ > a=10.0.0.0/8,...",
                "10.: a=10.* > -",
                r"192.168.0.4: a=~192\\.168\\.0\\.[0-9]+ > -",
                "10.*: a=10.* > -",
            ]
        );
    }

    #[test]
    fn a_class_of_addresses_that_may_have_no_value_has_no_witness() {
        let old = of_key([Some("2001:*".into()), None]);
        let new = of_key([Some(networks(&["2001:db8::/32"]))]);
        let told = told(&old, &new, Some("a"));
        assert!(told.contains(&"2001:db8::1: a=2001:* > a=2001:db8::/32".to_owned()), "{told:?}");
        assert!(told.contains(&"?: a > a=2001:db8::/32".to_owned()), "{told:?}");
    }

    #[test]
    fn keys_with_a_star_are_patterns_of_key_and_value() {
        let old = compiled(vec![node("us*", None), node("user", None), node("*_x", None)]);
        let new = compiled(vec![node("user", None), node("use*", Some("*1".into())), node("user", Some("a1".into()))]);
        assert_eq!(told(&old, &new, Some("user")), ["a1: us* > user=a1", "x: us* > user", "1: us* > use*=*1"]);
        assert_eq!(told(&old, &new, None), ["x=x: *_x > -", "us=: us* > -", "use=1: us* > use*=*1"]);
    }

    #[test]
    fn a_walk_ends_at_its_budget() {
        let set = of_key([Some("*a*b*".into()), Some("*c*d*".into())]);
        let places = [set.domain("shop").map(Domain::top)];
        let found = classes(Values::All, &places, "a", &mut Budget::of(10));
        assert_eq!(found.err(), Some(GivenUp::Steps));
        // An automaton that searches for texts anywhere and in any order has a state for each subset of the texts.
        let many = |first: char| (0..8).map(move |n| Some(format!("*{n}{first}*{n}{first}{first}*").into()));
        let (old, new) = (of_key(many('a')), of_key(many('b')));
        let places = [&old, &new].map(|set| set.domain("shop").map(Domain::top));
        let found = classes(Values::All, &places, "a", &mut Budget::default());
        assert_eq!(found.err(), Some(GivenUp::States));
    }

    #[test]
    fn what_takes_the_values_of_a_pattern_is_found() {
        let taken = |matchers: &[Matcher], which: usize| {
            let matchers: Vec<&Matcher> = matchers.iter().collect();
            super::taken(&matchers, which, &mut Budget::default()).expect("the budget lasts")
        };
        let of = |own: Option<&str>, by: &[(usize, &str)]| Taken {
            own: own.map(str::to_owned),
            by: by.iter().map(|(number, value)| (*number, (*value).to_owned())).collect(),
        };
        let paths = ["/a*".into(), regex("/[ab]"), "/ab*".into()];
        assert_eq!(taken(&paths, 0), of(Some("/a"), &[(2, "/ab*")]));
        assert_eq!(taken(&paths, 1), of(Some("/b"), &[(0, "/a")]));
        assert_eq!(taken(&paths, 2), of(None, &[(0, "/ab")]));
        assert_eq!(taken(&[regex("a|b"), list(&["a", "b"])], 0), of(None, &[(1, "a")]));
        assert_eq!(taken(&[regex("[^\\s\\S]"), "a*".into()], 0), of(None, &[]));
        assert_eq!(taken(&[networks(&["10.0.0.0/8"]), regex("10\\.0\\.0\\.1")], 1), of(None, &[(0, "10.0.0.1")]));
        assert_eq!(taken(&[networks(&["10.0.0.0/8"]), "10.*".into()], 1).own.as_deref(), Some("10."));
        assert_eq!(taken(&paths, 3), Taken::default());
    }
}
