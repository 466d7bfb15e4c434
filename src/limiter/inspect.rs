//! The states of one descriptor, for people: reading and resetting them.

use std::borrow::Cow;
use std::time::Instant;

use weir_engine::rows::{ROW_ID, row_key};
use weir_engine::{Entry, Hits, Limit, Micros, State, key};
use weir_store::StoreError;

use super::Limiter;
use super::policies::InForce;
use super::rows::known::RowSource;
use super::rows::row::KnownRow;

/// The state of one limit of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownState {
    pub key: String,
    pub algorithm: &'static str,
    /// Hits per window.
    pub requests: u32,
    /// The window in microseconds.
    pub window_us: u64,
    /// The most hits that would be admitted now.
    pub remaining: Hits,
    /// The time in microseconds until the state is empty.
    pub reset_after_us: Micros,
    pub state: Option<State>,
}

impl Limiter {
    /// The states of a descriptor's limits, unchanged. Empty if no rule matches.
    ///
    /// # Errors
    /// When a store does not answer.
    pub async fn show_states(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Vec<ShownState>, StoreError> {
        let in_force = self.policies.snapshot();
        self.know_row(&in_force, domain, entries).await?;
        let keyed = keys_of(&in_force, domain, entries, self.stores.options.clock.now(), &self.stores.row_source());
        let Some((_, first)) = keyed.first() else {
            return Ok(Vec::new());
        };
        let asked: Vec<(&str, &Limit)> = keyed.iter().map(|(key, limit)| (key.as_str(), &**limit)).collect();
        let store = self.stores.store_of(first, is_single(&in_force, domain, entries));
        let read = store.read_states(&asked, Instant::now() + self.stores.options.budget).get().await?;
        let shown = keyed.iter().zip(read.states).map(|((key, limit), state)| {
            let bounds = self.stores.calendar.bounds(limit, read.now);
            let observed = limit.kind().observe(state.as_ref(), 0, bounds, read.now);
            ShownState {
                key: key.clone(),
                algorithm: limit.algorithm().name(),
                requests: limit.requests(),
                window_us: limit.window().us(),
                remaining: limit.kind().remaining(&observed, read.now),
                reset_after_us: limit.kind().reset_after(&observed, read.now),
                state,
            }
        });
        Ok(shown.collect())
    }

    /// Reads the row of a descriptor, if its rule has rows, because another process may have changed it.
    async fn know_row(&self, in_force: &InForce, domain: &str, entries: &[Entry<'_>]) -> Result<(), StoreError> {
        let Some(cache) = self.stores.options.rows.cache() else { return Ok(()) };
        let Ok((rule, key)) = row_key(&in_force.policies, domain, entries) else { return Ok(()) };
        let store = self.stores.store_of_rule(rule);
        let deadline = Instant::now() + self.stores.options.budget;
        for read in store.read_rows(&[&key], deadline).get().await? {
            cache.insert(&key, KnownRow::of(&read).0);
        }
        Ok(())
    }

    /// Resets the usage of a descriptor: in its store, in the local store and among known denials. Returns its keys,
    /// and how many of them its store had.
    ///
    /// # Errors
    /// When the store does not answer. Then they may or may not be deleted.
    pub async fn reset(&self, domain: &str, entries: &[Entry<'_>]) -> Result<(Vec<String>, u64), StoreError> {
        let in_force = self.policies.snapshot();
        self.know_row(&in_force, domain, entries).await?;
        let keyed = keys_of(&in_force, domain, entries, self.stores.options.clock.now(), &self.stores.row_source());
        let Some((_, first)) = keyed.first() else {
            return Ok((Vec::new(), 0));
        };
        let asked: Vec<&str> = keyed.iter().map(|(key, _)| key.as_str()).collect();
        let deadline = Instant::now() + self.stores.options.budget;
        let answer =
            self.stores.store_of(first, is_single(&in_force, domain, entries)).reset(&asked, deadline).get().await;
        if let Some(local) = &self.stores.options.local {
            local.reset(&asked, deadline).get().await?;
        }
        asked.iter().for_each(|key| self.stores.options.leases.forget(key));
        if let Some(cache) = &self.stores.options.deny_cache {
            asked.iter().for_each(|key| cache.forget(key));
        }
        let stored = answer?;
        Ok((keyed.into_iter().map(|(key, _)| key).collect(), stored))
    }
}

/// Whether the rule of a descriptor has one limit, even if the descriptor's plan has a different number of limits.
fn is_single(in_force: &InForce, domain: &str, entries: &[Entry<'_>]) -> bool {
    let policies = &in_force.policies;
    let rule = policies.domain(domain).and_then(|domain| policies.find(domain, entries).rule);
    rule.is_some_and(|rule| rule.limits.len() == 1)
}

/// The keys and limits of one descriptor. The limits are those of its override or known row, if it has one.
fn keys_of<'p>(
    in_force: &'p InForce,
    domain: &str,
    entries: &[Entry<'_>],
    now: Micros,
    rows: &RowSource<'_>,
) -> Vec<(String, Cow<'p, Limit>)> {
    let InForce { policies, overrides, .. } = in_force;
    let Some(domain) = policies.domain(domain) else {
        return Vec::new();
    };
    let met = policies.find(domain, entries);
    let mut tag = String::new();
    key::write_tag(&mut tag, &domain.name, entries.iter().copied(), &met.shared);
    let set = overrides.as_ref().and_then(|overrides| overrides.limits(&tag, || now));
    let keyed = |limit: Cow<'p, Limit>| (format!("{tag}{}", limit.id()), limit);
    match (set, met.rule) {
        (Some(limits), _) => limits.iter().map(|limit| keyed(Cow::Borrowed(limit))).collect(),
        (None, Some(rule)) if rule.rows.is_some() => {
            let key = format!("{tag}{ROW_ID}");
            let known = rows.find(&key, || now).unwrap_or_default();
            match rows.limits(rule, &known).0 {
                Cow::Borrowed(limits) => limits.iter().flatten().map(|limit| keyed(Cow::Borrowed(limit))).collect(),
                Cow::Owned(limits) => limits.into_iter().flatten().map(|limit| keyed(Cow::Owned(limit))).collect(),
            }
        }
        (None, rule) => {
            rule.map_or(&[][..], |rule| &rule.limits).iter().map(|limit| keyed(Cow::Borrowed(limit))).collect()
        }
    }
}
