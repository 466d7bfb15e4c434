//! The states of one descriptor, for people: reading and resetting them.

use std::sync::Arc;
use std::time::Instant;

use weir_api::ResetStates;
use weir_engine::{Count, Entry, Micros, State, key};
use weir_store::{Store, StoreError};

use super::Limiter;
use super::limits_in_force::DescriptorLimit;
use super::policies::InForce;

/// The key of a state, and its limit.
type KeyedLimit<'p> = (String, DescriptorLimit<'p>);

/// The state of one limit of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownState {
    pub key: String,
    pub algorithm: &'static str,
    /// Hits per window.
    pub requests: Count,
    /// The window in microseconds.
    pub window_us: u64,
    /// The most hits that would be admitted now.
    pub remaining: Count,
    /// The time in microseconds until the state is empty.
    pub reset_after_us: Micros,
    pub state: Option<State>,
    /// Whether the descriptor's row makes the limit unlimited at present. The numbers are then those of another plan.
    pub is_unlimited: bool,
}

impl Limiter {
    /// The states of a descriptor's limits, unchanged. Empty if no rule matches.
    ///
    /// # Errors
    /// When a store does not answer.
    pub async fn show_states(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Vec<ShownState>, StoreError> {
        let in_force = self.policies.snapshot();
        let Some((store, keyed)) = self.keys_of(&in_force, domain, entries).await? else {
            return Ok(Vec::new());
        };
        let asked: Vec<_> = keyed.iter().map(|(key, of)| (key.as_str(), &*of.limit)).collect();
        let read = store.read_states(&asked, Instant::now() + self.stores.options.budget).get().await?;
        let shown = keyed.iter().zip(read.states).map(|((key, DescriptorLimit { limit, is_unlimited }), state)| {
            let bounds = self.stores.calendar.bounds(limit, read.now);
            let observed = limit.kind().within(bounds).observe(state.as_ref(), 0, read.now);
            ShownState {
                key: key.clone(),
                algorithm: limit.algorithm().name(),
                requests: limit.requests(),
                window_us: limit.window().us(),
                remaining: limit.kind().remaining(&observed, read.now),
                reset_after_us: limit.kind().reset_after(&observed, read.now),
                state,
                is_unlimited: *is_unlimited,
            }
        });
        Ok(shown.collect())
    }

    /// Resets the usage of a descriptor: in its store, in the local store and among known denials. No keys if no rule
    /// matches.
    ///
    /// # Errors
    /// When the store does not answer. Then they may or may not be deleted.
    pub async fn reset(&self, domain: &str, entries: &[Entry<'_>]) -> Result<ResetStates, StoreError> {
        let in_force = self.policies.snapshot();
        // A read of the row resets nothing, even without an answer.
        let found = self.keys_of(&in_force, domain, entries).await.map_err(|error| match error {
            StoreError::Unknown(failure) => StoreError::NotSent(failure),
            error => error,
        })?;
        let Some((store, keyed)) = found else {
            return Ok(ResetStates::default());
        };
        let asked: Vec<&str> = keyed.iter().map(|(key, _)| key.as_str()).collect();
        let deadline = Instant::now() + self.stores.options.budget;
        let answer = store.reset(&asked, deadline).get().await;
        if let Some(local) = &self.stores.options.local {
            local.reset(&asked, deadline).get().await?;
        }
        asked.iter().for_each(|key| self.stores.options.leases.forget(key));
        if let Some(cache) = &self.stores.options.deny_cache {
            asked.iter().for_each(|key| cache.forget(key));
        }
        let stored = answer?;
        let unlimited = keyed.iter().filter(|(_, of)| of.is_unlimited).map(|(key, _)| key.clone()).collect();
        Ok(ResetStates { keys: keyed.into_iter().map(|(key, _)| key).collect(), unlimited, stored })
    }

    /// The keys and limits of one descriptor, and the store of their states. None if there are none.
    async fn keys_of<'p>(
        &self,
        in_force: &'p InForce,
        domain: &str,
        entries: &[Entry<'_>],
    ) -> Result<Option<(&Arc<dyn Store>, Vec<KeyedLimit<'p>>)>, StoreError> {
        let policies = &in_force.policies;
        let Some(domain) = policies.domain(domain) else { return Ok(None) };
        let met = policies.find(domain, entries);
        let Some(rule) = met.rule else { return Ok(None) };
        let mut tag = String::new();
        key::write_tag(&mut tag, &domain.name, entries.iter().copied(), &met.shared);
        let limits = self.stores.limits_of(in_force, rule, &[&tag]).await?.into_iter().flatten();
        let keyed: Vec<KeyedLimit<'p>> = limits.map(|of| (format!("{tag}{}", of.limit.id()), of)).collect();
        let store = keyed.first().map(|(_, first)| self.stores.store_of(&first.limit, rule.is_single()));
        Ok(store.map(|store| (store, keyed)))
    }
}
