//! Which rule a descriptor meets, in a domain with rules that weigh hits by an entry of the descriptor. [mt-13]

use smallvec::SmallVec;

use super::descriptor::{Entry, Hits};
use super::policy::{Domain, Match, PolicySet, Rule};
use super::request_limit::RequestLimit;
use super::time::Window;
use super::weigh::{Unweighable, WEIGHING_ENTRIES_MAX, Weigh};

/// A descriptor as its rule counts it.
#[derive(Debug)]
pub struct Weighed<'p> {
    pub met: Match<'p>,
    /// The key of the entry that only weighs. It is no part of the descriptor that was matched.
    pub entry: Option<&'p str>,
    /// Whether its factor is the default one.
    pub by_default: bool,
}

impl PolicySet {
    /// The rule that a descriptor meets, and its factor. An entry by which the rule weighs is left out first. If the limit of the
    /// request replaces the rule, the whole descriptor is matched, and has no factor. [mt-13]
    ///
    /// # Errors
    /// When the descriptor has two such entries, and the rule is not replaced.
    pub fn weigh<'p>(
        &'p self,
        domain: &'p Domain,
        entries: &[Entry<'_>],
        limit: Option<(Hits, Window)>,
    ) -> Result<Weighed<'p>, Unweighable> {
        let is_replaced = |rule: &Rule| limit.is_some() && rule.request_limit == RequestLimit::Replaces;
        let mut tried = SmallVec::<[&str; WEIGHING_ENTRIES_MAX]>::new();
        for (at, entry) in entries.iter().enumerate() {
            if !domain.weighs_by(entry.key) || tried.contains(&entry.key) {
                continue;
            }
            tried.push(entry.key);
            let others: SmallVec<[Entry<'_>; 8]> =
                entries.iter().copied().filter(|other| other.key != entry.key).collect();
            let met = self.find(domain, &others);
            let Some(weigh) = weigh_of(&met).filter(|weigh| *weigh.entry == *entry.key) else { continue };
            if met.rule.is_some_and(is_replaced) {
                return Ok(Weighed { met: self.find(domain, entries), entry: None, by_default: false });
            }
            if others.len() + 1 < entries.len() {
                return Err(Unweighable::Twice(weigh.entry.clone()));
            }
            let (own, entry) = (weigh.factor_of(entries[at].value), Some(&*weigh.entry));
            let factor = Some(own.unwrap_or(weigh.default_factor()));
            return Ok(Weighed { met: Match { factor, ..met }, entry, by_default: own.is_none() });
        }
        let met = self.find(domain, entries);
        let factor = if met.rule.is_some_and(is_replaced) { None } else { weigh_of(&met).map(Weigh::default_factor) };
        Ok(Weighed { met: Match { factor, ..met }, entry: None, by_default: factor.is_some() })
    }

    /// Why a descriptor that meets no rule may be too deep: the rule that it meets without an entry by which only other rules
    /// weigh, and the key of this entry.
    pub fn unweighed<'p>(&'p self, domain: &'p Domain, entries: &[Entry<'_>]) -> Option<(&'p Rule, &'p str)> {
        domain.weighing().find_map(|key| {
            let others: SmallVec<[Entry<'_>; 8]> = entries.iter().copied().filter(|other| other.key != key).collect();
            let rule = self.find(domain, &others).rule.filter(|_| others.len() < entries.len())?;
            Some((rule, key))
        })
    }
}

fn weigh_of<'p>(met: &Match<'p>) -> Option<&'p Weigh> {
    met.rule.and_then(|rule| rule.weigh.as_deref())
}
