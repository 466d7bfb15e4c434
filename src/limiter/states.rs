//! The stored states of one rule, page by page, for the operator.
//!
//! Stores are read in small steps, with decisions in between. States are added and removed meanwhile: a state that
//! exists the whole time is listed, perhaps twice. Not here: how values are printed (telemetry), and JSON (http).

use std::time::Instant;

use weir_engine::{Entry, Hits, Limit, Matcher, Micros, Rule, key};
use weir_store::ScanPosition;
use weir_store::{Scanned, StoreError};

use super::Limiter;
use super::policies::InForce;

/// The most steps of one page.
const STEPS_MAX: usize = 64;
/// How many states one step reads.
const READ_MAX: usize = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatesPage {
    /// The states, in no particular order.
    pub states: Vec<StoredState>,
    /// Where the next page begins. None after the last.
    pub next: Option<ScanPosition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredState {
    pub key: String,
    /// The name of its limit, or its id.
    pub limit: String,
    /// The most hits that the limit can hold.
    pub capacity: Hits,
    pub used: Hits,
    /// The most hits that would be admitted now.
    pub remaining: Hits,
    /// The time in microseconds until the state is empty.
    pub reset_after_us: Micros,
}

/// Why there is no page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoStates {
    /// No rule in force has this domain and path.
    NoRule,
    Store(StoreError),
}

impl Limiter {
    /// States of the rule with this domain and path, from a position on. At least `most` states, unless there are fewer
    /// or the steps of one page are used up.
    ///
    /// # Errors
    /// When there is no such rule, or when a store does not answer.
    pub async fn states(
        &self,
        domain: &str,
        path: &str,
        from: ScanPosition,
        most: usize,
    ) -> Result<StatesPage, NoStates> {
        let in_force = self.policies.snapshot();
        let (policies, now) = (&in_force.policies, self.stores.options.clock.now());
        let is_it = |rule: &&Rule| *rule.domain == *domain && *rule.path == *path;
        let rule = policies.rules().iter().find(is_it).ok_or(NoStates::NoRule)?;
        let mut page = StatesPage { states: Vec::new(), next: Some(from) };
        let Some(first) = rule.limits.first() else {
            return Ok(StatesPage::default());
        };
        let store = self.stores.store_of(first, rule.limits.len() == 1);
        let prefix = prefix_of(rule);
        for _ in 0..STEPS_MAX {
            let Some(position) = page.next.filter(|_| page.states.len() < most) else { break };
            let deadline = Instant::now() + self.stores.options.budget;
            let Scanned { keys, next } =
                store.scan(&prefix, position, deadline).get().await.map_err(NoStates::Store)?;
            page.next = next;
            let of_rule: Vec<(&str, &Limit)> =
                keys.iter().filter_map(|key| Some((key.as_str(), limit_of(&in_force, rule, key, now)?))).collect();
            for keys in of_rule.chunks(READ_MAX) {
                self.read_states(keys, &mut page.states, store.as_ref()).await.map_err(NoStates::Store)?;
            }
            tokio::task::yield_now().await;
        }
        Ok(page)
    }

    async fn read_states(
        &self,
        keys: &[(&str, &Limit)],
        to: &mut Vec<StoredState>,
        store: &dyn weir_store::Store,
    ) -> Result<(), StoreError> {
        let read = store.read_states(keys, Instant::now() + self.stores.options.budget).get().await?;
        for ((key, limit), state) in keys.iter().zip(read.states) {
            // It may have expired in between.
            let Some(state) = state else { continue };
            let bounds = self.stores.calendar.bounds(limit, read.now);
            let observed = limit.kind().observe(Some(&state), 0, bounds, read.now);
            let remaining = limit.kind().remaining(&observed, read.now);
            to.push(StoredState {
                key: (*key).to_owned(),
                limit: limit.name.as_deref().unwrap_or(limit.id()).to_owned(),
                capacity: limit.capacity(),
                used: limit.capacity().saturating_sub(remaining),
                remaining,
                reset_after_us: limit.kind().reset_after(&observed, read.now),
            });
        }
        Ok(())
    }
}

/// The common prefix of all keys of a rule.
fn prefix_of(rule: &Rule) -> String {
    let mut prefix = String::new();
    let first = rule.levels.first().filter(|level| !level.key.contains('*'));
    let entry = first.map(|level| {
        let value = level.value.as_ref().and_then(Matcher::exact);
        Entry { key: &level.key, value: value.unwrap_or_default() }
    });
    key::write_tag(&mut prefix, &rule.domain, entry.into_iter(), &[]);
    // A key may continue after this tag, or have a different hash than this one.
    let end = prefix.find('~').unwrap_or(prefix.len() - 1);
    prefix.truncate(end);
    prefix
}

/// The limit of the rule for this key. None if the key belongs to another rule. For a shortened key, only the limit and
/// the first entry are known.
fn limit_of<'p>(in_force: &'p InForce, rule: &'p Rule, key: &str, now: Micros) -> Option<&'p Limit> {
    let InForce { policies, overrides, .. } = in_force;
    let read = key::parse(key)?;
    let tag = key.strip_suffix(read.limit_id)?;
    let set = overrides.as_ref().and_then(|overrides| overrides.limits(tag, || now));
    let limit = set.unwrap_or(&rule.limits).iter().find(|limit| limit.id() == read.limit_id)?;
    if read.is_hashed {
        return Some(limit);
    }
    let met = policies.find_parsed(policies.domain(&read.domain)?, &read.entries)?;
    (met.id == rule.id).then_some(limit)
}
