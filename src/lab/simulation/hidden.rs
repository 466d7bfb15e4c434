//! Recorded requests whose rules depend on hidden values.
//!
//! A hidden value can be any text. The policies of a simulation need not be those of the record, so the recorded rules do not
//! tell which texts it can be. A request is decided only if each of its descriptors meets one and the same rule with every
//! text.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use weir_engine::descriptor::spell_entries;
use weir_engine::policy::{Lead, Place};
use weir_engine::{Entry, Matcher, PolicySet};
use weir_limiter::Query;

/// The most places to visit for one kind of descriptor. If there are more, its rule is unknown.
const STEPS_MAX: usize = 10_000;
/// The most kinds of descriptors in the cache. Descriptors of one kind have the same keys and shown values.
const KINDS_MAX: usize = 100_000;
/// The most keys whose leads are in the cache, of all places. A record can have any keys.
const LEADS_MAX: usize = 100_000;
/// Stands for each hidden value in the name of a kind. A tap would hide a real value of this form.
const ANY_HIDDEN: &str = "~";

/// The first two rules that a descriptor may meet, by path. None for no rule. Empty if the search took too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MayMeet(Vec<Option<String>>);

impl MayMeet {
    pub(super) fn in_words(&self) -> String {
        let named: Vec<&str> = self.0.iter().map(|rule| rule.as_deref().unwrap_or("no rule")).collect();
        if named.is_empty() { "too many rules to tell".to_owned() } else { named.join(" or ") }
    }
}

type Leads<'p> = Rc<[(Lead<'p>, Place<'p>)]>;

/// The leads of places that were visited, by key.
#[derive(Default)]
struct LeadCache<'p>(HashMap<(usize, String), Option<Leads<'p>>>);

/// The search visited too many places, or found keys with wildcards.
struct GivenUp;

/// Finds the rules that hidden values leave open, in one set of policies.
pub(super) struct Hidden<'p> {
    policies: &'p PolicySet,
    leads: LeadCache<'p>,
    known: HashMap<String, Option<MayMeet>>,
    steps: usize,
}

impl<'p> Hidden<'p> {
    pub(super) fn new(policies: &'p PolicySet) -> Self {
        Self { policies, leads: LeadCache::default(), known: HashMap::new(), steps: 0 }
    }

    /// The rules that the first ambiguous descriptor of a request may meet. None if there is no such descriptor.
    pub(super) fn may_meet(&mut self, query: &Query<'_>) -> Option<MayMeet> {
        // The limit of a request replaces the limits of rules that do not keep theirs. [mt-6] [mt-10]
        let keeps_rules = self.policies.domain(query.domain)?.keeps_rules;
        let by_rules = query.descriptors.iter().filter(|descriptor| keeps_rules || descriptor.limit.is_none());
        by_rules.into_iter().find_map(|descriptor| self.of_descriptor(query.domain, descriptor.entries))
    }

    fn of_descriptor(&mut self, domain: &str, entries: &[Entry<'_>]) -> Option<MayMeet> {
        if !entries.iter().any(|entry| is_hidden(entry.value)) {
            return None;
        }
        let found = self.policies.domain(domain)?;
        let top = found.top();
        // A hidden value of an entry that only weighs has the default factor: taps show those with others. [mt-13]
        let weighing = self.policies.weigh(found, entries, None).ok().and_then(|weighed| weighed.entry);
        let entries: Vec<Entry<'_>> = entries.iter().copied().filter(|entry| Some(entry.key) != weighing).collect();
        let entries = &*entries;
        let of_kind = |entry: &Entry<'_>| if is_hidden(entry.value) { ANY_HIDDEN } else { entry.value }.to_owned();
        let values: Vec<String> = entries.iter().map(of_kind).collect();
        let of_kind = entries.iter().zip(&values).map(|(entry, value)| Entry { key: entry.key, value });
        let kind = format!("{domain:?} {}", spell_entries(of_kind));
        if let Some(known) = self.known.get(&kind) {
            return known.clone();
        }
        self.steps = 0;
        let mut rules = BTreeSet::new();
        let path = |rule: &Option<u32>| rule.map(|rule| self.policies.rules()[rule as usize].path.to_string());
        let may_meet = match self.walk(top, entries, &mut rules) {
            Ok(()) if rules.len() <= 1 => None,
            Ok(()) => Some(MayMeet(rules.iter().map(path).collect())),
            Err(GivenUp) => Some(MayMeet(Vec::new())),
        };
        if self.known.len() < KINDS_MAX {
            self.known.insert(kind, may_meet.clone());
        }
        may_meet
    }

    /// Adds the rules that a descriptor may meet, until there are two.
    fn walk(
        &mut self,
        place: Place<'p>,
        entries: &[Entry<'_>],
        rules: &mut BTreeSet<Option<u32>>,
    ) -> Result<(), GivenUp> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err(GivenUp);
        }
        let Some((entry, below)) = entries.split_first() else {
            rules.insert(place.rule());
            return Ok(());
        };
        if !is_hidden(entry.value) {
            return match place.child(*entry) {
                Some(child) => self.walk(child, below, rules),
                None => {
                    rules.insert(None);
                    Ok(())
                }
            };
        }
        for (lead, child) in self.leads(place, entry.key)?.iter() {
            self.walk(*child, below, rules)?;
            if rules.len() > 1 || is_of_all(*lead) {
                return Ok(());
            }
        }
        rules.insert(None);
        Ok(())
    }

    fn leads(&mut self, place: Place<'p>, key: &str) -> Result<Leads<'p>, GivenUp> {
        self.leads.get(place, key, || Some(place.leads(key)?.into())).ok_or(GivenUp)
    }
}

impl<'p> LeadCache<'p> {
    /// The leads of a place for a key, from the cache or by `read`.
    fn get(&mut self, place: Place<'p>, key: &str, read: impl FnOnce() -> Option<Leads<'p>>) -> Option<Leads<'p>> {
        let at = (place.address(), key.to_owned());
        if let Some(leads) = self.0.get(&at) {
            return leads.clone();
        }
        let leads = read();
        if self.0.len() < LEADS_MAX {
            self.0.insert(at, leads.clone());
        }
        leads
    }
}

/// Whether the lead matches every value.
fn is_of_all(lead: Lead<'_>) -> bool {
    match lead {
        Lead::KeyAlone => true,
        Lead::Pattern(Matcher::Text(text)) => text.bytes().all(|byte| byte == b'*'),
        _ => false,
    }
}

/// Whether a value of a record with hidden values is hidden: `~` and 12 hexadecimal digits.
fn is_hidden(value: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    value.strip_prefix('~').is_some_and(|hash| hash.len() == 12 && hash.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use weir_policies::parse;

    use super::*;

    /// A record with a new key in each request filled the memory.
    #[test]
    fn the_caches_have_bounds() {
        let policies = parse(&[("a.yaml", "domain: shop\ndescriptors: [{key: user, value: ann, rate_limit: 1/s}]")])
            .unwrap()
            .policies;
        let mut hidden = Hidden::new(&policies);
        let may_meet =
            |hidden: &mut Hidden<'_>, key: &str| hidden.of_descriptor("shop", &[Entry { key, value: "~0123456789ab" }]);
        for number in 0..LEADS_MAX.max(KINDS_MAX) + 10 {
            assert_eq!(may_meet(&mut hidden, &number.to_string()), None);
        }
        assert_eq!((hidden.leads.0.len(), hidden.known.len()), (LEADS_MAX, KINDS_MAX));
        assert_eq!(may_meet(&mut hidden, "user"), Some(MayMeet(vec![None, Some("user=ann".to_owned())])));
    }
}
