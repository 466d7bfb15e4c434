//! The stored states of one rule, page by page, for the operator.
//!
//! Stores are read in small steps, with decisions in between. States are added and removed meanwhile: a state that
//! exists the whole time is listed, perhaps twice. Not here: how values are printed (telemetry), and JSON (http).

use std::sync::Arc;
use std::time::Instant;

use weir_engine::rows::ROW_ID;
use weir_engine::{Count, Entry, Matcher, Micros, Rule, key};
use weir_store::ScanPosition;
use weir_store::{Scanned, Store, StoreError};

use super::Limiter;
use super::limits_in_force::DescriptorLimit;
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
    pub next: Option<StatesPosition>,
}

/// The position of a page. The default is the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatesPosition {
    /// Whether it is not in the store of the rule, but in that to which overrides can move states. [st-3]
    pub is_other: bool,
    pub at: ScanPosition,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredState {
    pub key: String,
    /// The name of its limit, or its id.
    pub limit: String,
    /// The most hits that the limit can hold.
    pub capacity: Count,
    pub used: Count,
    /// The most hits that would be admitted now.
    pub remaining: Count,
    /// The time in microseconds until the state is empty.
    pub reset_after_us: Micros,
    /// Whether the descriptor's row makes the limit unlimited at present. The numbers are then those of another plan.
    pub is_unlimited: bool,
}

/// A stored key of a rule, and its parts.
struct StateKey<'k> {
    key: &'k str,
    tag: &'k str,
    limit_id: &'k str,
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
        from: StatesPosition,
        most: usize,
    ) -> Result<StatesPage, NoStates> {
        let in_force = self.policies.snapshot();
        let is_it = |rule: &&Rule| *rule.domain == *domain && *rule.path == *path;
        let rule = in_force.policies.rules().iter().find(is_it).ok_or(NoStates::NoRule)?;
        let mut page = StatesPage { states: Vec::new(), next: Some(from) };
        if rule.limits.is_empty() {
            return Ok(StatesPage::default());
        }
        let has_overrides = in_force.overrides.as_ref().is_some_and(|overrides| overrides.concern(rule));
        let prefix = prefix_of(rule);
        for _ in 0..STEPS_MAX {
            let Some(StatesPosition { is_other, at }) = page.next.filter(|_| page.states.len() < most) else { break };
            let other = if has_overrides { self.stores.other_store(rule) } else { None };
            let Some(store) = (if is_other { other } else { Some(self.stores.store_of_rule(rule)) }) else {
                page.next = None;
                break;
            };
            let deadline = Instant::now() + self.stores.options.budget;
            let Scanned { keys, next } = store.scan(&prefix, at, deadline).get().await.map_err(NoStates::Store)?;
            let begins_other = next.is_none() && !is_other && other.is_some();
            page.next = match next {
                Some(at) => Some(StatesPosition { is_other, at }),
                None => begins_other.then(|| StatesPosition { is_other: true, at: ScanPosition::default() }),
            };
            let of_rule: Vec<StateKey<'_>> = keys.iter().filter_map(|key| state_key(&in_force, rule, key)).collect();
            for keys in of_rule.chunks(READ_MAX) {
                let read = self.read_states(&in_force, rule, keys, &mut page.states, store).await;
                read.map_err(NoStates::Store)?;
            }
            tokio::task::yield_now().await;
        }
        Ok(page)
    }

    async fn read_states(
        &self,
        in_force: &InForce,
        rule: &Rule,
        keys: &[StateKey<'_>],
        to: &mut Vec<StoredState>,
        store: &Arc<dyn Store>,
    ) -> Result<(), StoreError> {
        let mut tags: Vec<&str> = keys.iter().map(|key| key.tag).collect();
        tags.sort_unstable();
        tags.dedup();
        let limits = self.stores.limits_of(in_force, rule, &tags).await?;
        let found = keys.iter().filter_map(|StateKey { key, tag, limit_id }| {
            let of_tag = &limits[tags.binary_search(tag).ok()?];
            let of = of_tag.iter().find(|of| of.limit.id() == *limit_id)?;
            // The other store can have a state of a limit that is not in force.
            let is_here = Arc::ptr_eq(self.stores.store_of(&of.limit, rule.is_single()), store);
            is_here.then_some((*key, of))
        });
        let found: Vec<(&str, &DescriptorLimit<'_>)> = found.collect();
        let asked: Vec<_> = found.iter().map(|(key, of)| (*key, &*of.limit)).collect();
        let read = store.read_states(&asked, Instant::now() + self.stores.options.budget).get().await?;
        for ((key, DescriptorLimit { limit, is_unlimited }), state) in found.into_iter().zip(read.states) {
            // It may have expired in between.
            let Some(state) = state else { continue };
            let bounds = self.stores.calendar.bounds(limit, read.now);
            let observed = limit.kind().within(bounds).observe(Some(&state), 0, read.now);
            let remaining = limit.kind().remaining(&observed, read.now);
            to.push(StoredState {
                key: key.to_owned(),
                limit: limit.name.as_deref().unwrap_or(limit.id()).to_owned(),
                capacity: limit.capacity(),
                used: limit.capacity().saturating_sub(remaining),
                remaining,
                reset_after_us: limit.kind().reset_after(&observed, read.now),
                is_unlimited: *is_unlimited,
            });
        }
        Ok(())
    }
}

/// The common prefix of all keys of a rule. It always has the whole domain, so that no key of another domain begins with it:
/// a shortened key without its whole domain is not listed.
fn prefix_of(rule: &Rule) -> String {
    let of_domain = key::domain_prefix(Some(&rule.domain));
    let Some(first) = rule.levels.first().filter(|level| !level.key.contains('*')) else { return of_domain };
    let value = first.value.as_ref().and_then(Matcher::exact);
    let entry = Entry { key: &first.key, value: value.unwrap_or_default() };
    let mut prefix = String::new();
    key::write_tag(&mut prefix, &rule.domain, std::iter::once(entry), &[]);
    // A key may continue after this tag, or have a different hash than this one.
    let end = prefix.find('~').unwrap_or(prefix.len() - 1);
    prefix.truncate(end);
    if prefix.starts_with(&of_domain) { prefix } else { of_domain }
}

/// The parts of a key of the rule. None if the key belongs to another rule, or is not of a state. For a shortened key, only
/// the limit and the first entry are known, so it may belong to another rule.
fn state_key<'k>(in_force: &InForce, rule: &Rule, key: &'k str) -> Option<StateKey<'k>> {
    let policies = &in_force.policies;
    let read = key::parse(key).filter(|read| read.limit_id != ROW_ID && *read.domain == *rule.domain)?;
    let (tag, limit_id) = key.split_at(key.len() - read.limit_id.len());
    if !read.is_hashed {
        let met = policies.find_parsed(policies.domain(&rule.domain)?, &read.entries)?;
        if met.id != rule.id {
            return None;
        }
    }
    Some(StateKey { key, tag, limit_id })
}
