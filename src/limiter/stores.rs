//! The stores of a limiter: which of them has a state, and which rows they have.
//!
//! Not here: calls that decide (call.rs), and which calls a request needs (execute.rs).

use std::sync::Arc;
use std::time::Instant;

use weir_engine::observer::{Observer, RowEvent};
use weir_engine::{Bounds, Charge, Limit, OnError, Rule};
use weir_store::{RowVersion, Store, StoreError};

use super::Options;
use super::calendar::{Calendar, Windows};
use super::matched::Matched;
use super::recurring::Recurring;
use super::request::{Request, observers};
use super::rows::row::KnownRow;

/// The stores, and what a call to one of them needs.
pub(super) struct Stores {
    pub(super) options: Options,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) calendar: Calendar,
    pub(super) recurring: Recurring,
}

impl Stores {
    pub(super) fn new(options: Options, observer: Arc<dyn Observer>) -> Self {
        Self { options, observer, calendar: Calendar::default(), recurring: Recurring::default() }
    }

    /// The store of a charge's state, and the slot of its key.
    pub(super) fn slot_of(&self, charge: &Charge<'_>) -> (&Arc<dyn Store>, u16) {
        let store = self.store_of_charge(charge);
        (store, store.slot_of(charge.key))
    }

    pub(super) fn store_of_charge(&self, charge: &Charge<'_>) -> &Arc<dyn Store> {
        self.store_of(charge.limit, charge.origin.is_single)
    }

    /// The store of a limit's state. All limits of a list use one store.
    pub(super) fn store_of(&self, limit: &Limit, is_single: bool) -> &Arc<dyn Store> {
        match &self.options.per_second {
            Some(store) if is_single && limit.is_per_second() => store,
            _ => &self.options.store,
        }
    }

    /// The store of a rule's states. [st-3]
    pub(super) fn store_of_rule(&self, rule: &Rule) -> &Arc<dyn Store> {
        match &self.options.per_second {
            Some(store) if rule.is_single_per_second() => store,
            _ => &self.options.store,
        }
    }

    /// The store to which an override can move the states of a rule: its only limit becomes one per second, or is none any
    /// longer. None if the rule has no such limit, or there is one store.
    pub(super) fn other_store(&self, rule: &Rule) -> Option<&Arc<dyn Store>> {
        let per_second = self.options.per_second.as_ref()?;
        match rule.is_single() {
            true if rule.is_single_per_second() => Some(&self.options.store),
            true => Some(per_second),
            false => None,
        }
    }

    /// The boundaries of a calendar limit for a call. None for every other limit.
    pub(super) fn bounds(&self, limit: &Limit, windows: Windows) -> Option<Bounds> {
        limit.calendar()?;
        self.calendar.bounds(limit, windows.now(&*self.options.clock))
    }

    /// Reads rows, so that they become known. [rw-2]
    /// Fails when the store does not answer.
    pub(super) async fn read_rows(&self, matched: &Matched<'_>, deadline: Instant) -> Result<(), StoreError> {
        let (Some(cache), Some(texts)) = (self.options.rows.cache(), self.options.store.texts()) else { return Ok(()) };
        let keys: Vec<&str> = matched.unknown_rows().map(|row| matched.row_version(row).key).collect();
        let began = Instant::now();
        let read = texts.read_rows(&keys, deadline).get().await;
        if let Err(error) = &read {
            let took = error.was_asked().then(|| began.elapsed());
            self.observer.store_called(Some(error.kind()), took);
        }
        for (key, read) in keys.into_iter().zip(read?) {
            let (row, is_foreign) = KnownRow::of(key, &read);
            self.observer.rows(RowEvent::Read, 1);
            if is_foreign {
                self.observer.rows(RowEvent::Foreign, 1);
                self.observer.foreign_row(key);
            }
            cache.insert(key, row);
        }
        Ok(())
    }

    /// Updates the known rows from the versions that the store found in a decision. Without a row, or after its end,
    /// nothing needs to be read.
    pub(super) fn learn_rows(&self, row_versions: &[RowVersion<'_>], found: &[u64]) {
        let Some(cache) = self.options.rows.cache() else { return };
        for (row, found) in row_versions.iter().zip(found) {
            if row.version != *found {
                match found {
                    0 => cache.insert(row.key, KnownRow::default()),
                    found => cache.found(row.key, *found, self.options.clock.now()),
                }
            }
        }
    }

    /// Reports that `on_error` decides about a descriptor.
    pub(super) fn report_fallback(&self, request: &Request<'_, '_>, action: OnError, kind: &'static str) {
        observers(&*self.observer, request.trace).for_each(|observer| observer.fell_back(action, kind));
    }
}
