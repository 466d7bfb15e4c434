//! The stores of a limiter, and one call to one store: the boundaries of its calendar windows, what the cache of
//! denials stores, and its trace.
//!
//! Not here: which calls a request needs (decide.rs, split.rs).

use std::sync::Arc;
use std::time::Instant;

use weir_engine::observer::{Observer, RowEvent, StoreCall, Trace};
use weir_engine::{Charge, Decision, Hits, Limit, Micros, Mode, Rule};
use weir_store::{Before, Failure, GivenBack, Reply, RowVersion, Store, StoreError};

use super::Options;
use super::ahead::Ahead;
use super::calendar::Calendar;
use super::deny_cache::{DenyCache, ForgetOnDrop};
use super::matched::{Matched, MatchedRow, Origin};
use super::policies::InForce;
use super::reserved::Reserved;
use super::rows::known::RowSource;
use super::rows::row::KnownRow;

/// The data of one request that do not change during store calls.
#[derive(Clone, Copy)]
pub(super) struct Request<'a, 'p> {
    pub(super) in_force: &'a InForce,
    pub(super) matched: &'a Matched<'p>,
    pub(super) mode: Mode,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    /// Whether leases can admit it, and one of its keys is hot. Then its answer can begin a lease. [ls-2]
    pub(super) is_hot: bool,
    /// Whether the request is decided again if a row has changed. [rw-2]
    pub(super) can_ask_again: bool,
    /// Whether it was decided before, and a row had changed.
    pub(super) is_again: bool,
    /// The hits that its settle gives back with the decision, by the positions of its charges. [hd-5]
    pub(super) given_back: &'a [GivenBack],
    /// Why rows are unknown. Then no store is called, and `on_error` applies.
    pub(super) unread: Option<&'a StoreError>,
    /// Receives the events of the decision. Usually None.
    pub(super) trace: Option<&'a dyn Trace>,
}

/// The stores, and what a call to one of them needs.
pub(super) struct Stores {
    pub(super) options: Options,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) calendar: Calendar,
}

/// The values that the cache of denials needs from before the store call.
struct Learning<'a> {
    cache: &'a DenyCache,
    _refunds: ForgetOnDrop<'a>,
    generation: u64,
    sent: Instant,
}

impl Stores {
    pub(super) fn new(options: Options, observer: Arc<dyn Observer>) -> Self {
        Self { options, observer, calendar: Calendar::default() }
    }

    /// The store of a charge's state, and the slot of its key.
    pub(super) fn slot_of(&self, charge: &Charge<'_>, origin: &Origin) -> (&Arc<dyn Store>, u16) {
        let store = self.store_of(charge.limit, origin.is_single);
        (store, store.slot_of(charge.key))
    }

    /// The store of a limit's state. All limits of a list use one store.
    pub(super) fn store_of(&self, limit: &Limit, is_single: bool) -> &Arc<dyn Store> {
        match &self.options.per_second {
            Some(store) if is_single && limit.is_per_second() => store,
            _ => &self.options.store,
        }
    }

    /// The store of a rule's states and rows. [st-3] [rw-5]
    pub(super) fn store_of_rule(&self, rule: &Rule) -> &Arc<dyn Store> {
        self.options.per_second.as_ref().filter(|_| rule.is_single_per_second()).unwrap_or(&self.options.store)
    }

    /// The store of a descriptor's row.
    pub(super) fn store_of_row(&self, matched: &Matched<'_>, row: &MatchedRow) -> &Arc<dyn Store> {
        matched.rule(usize::from(row.group)).map_or(&self.options.store, |rule| self.store_of_rule(rule))
    }

    /// The rows of this limiter's requests.
    pub(super) fn row_source(&self) -> RowSource<'_> {
        let has_second_store = self.options.per_second.is_some();
        RowSource { known: &self.options.rows, has_second_store }
    }

    /// Reads rows, so that they become known. [rw-2]
    /// Fails when a store does not answer.
    pub(super) async fn read_rows(&self, matched: &Matched<'_>, deadline: Instant) -> Result<(), StoreError> {
        let Some(cache) = self.options.rows.cache() else { return Ok(()) };
        let mut of_stores: Vec<(&Arc<dyn Store>, Vec<&str>)> = Vec::new();
        for row in matched.unknown_rows() {
            let store = self.store_of_row(matched, row);
            let key = matched.row_version(row).key;
            match of_stores.iter_mut().find(|(known, _)| Arc::ptr_eq(known, store)) {
                Some((_, keys)) => keys.push(key),
                None => of_stores.push((store, vec![key])),
            }
        }
        for (store, keys) in of_stores {
            let began = Instant::now();
            let read = store.read_rows(&keys, deadline).get().await;
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
        }
        Ok(())
    }

    /// Updates the known rows from the versions that the store found in a decision. Without a row, or after its end,
    /// nothing needs to be read.
    fn learn_rows(&self, row_versions: &[RowVersion<'_>], found: &[u64]) {
        let Some(cache) = self.options.rows.cache() else { return };
        for (row, found) in row_versions.iter().zip(found).filter(|(row, found)| row.version != **found) {
            match found {
                0 => cache.insert(row.key, KnownRow::default()),
                found => cache.found(row.key, *found, self.options.clock.now()),
            }
        }
    }

    /// Calls one store for a decision over charges that it can decide together, with the versions of rows and the hits to give
    /// back `before` it. Counts the hits that were given back.
    ///
    /// The decision is written in place: it is large, and each level that returned it would copy it.
    pub(super) async fn ask(
        &self,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        before: Before<'_>,
        charges: &mut [Charge<'_>],
        decision: &mut Decision,
    ) -> Result<(), StoreError> {
        self.set_bounds(charges, None);
        let mut result = self.call(store, request, before, charges, decision).await;
        if let Err(StoreError::StaleBounds { now }) = result {
            // Nothing was charged: the store's clock and weir's are on different sides of a boundary. One retry is
            // enough, unless the store's clock jumps in between.
            self.set_bounds(charges, Some(now));
            result = self.call(store, request, before, charges, decision).await;
        }
        if let Err(StoreError::StaleRow { found }) = &result {
            self.learn_rows(before.row_versions, found);
            if request.can_ask_again {
                return result;
            }
            let message = "the row of a descriptor changed each time that it was read".to_owned();
            result = Err(StoreError::NotSent(Failure { kind: "stale_row", message }));
        }
        if !before.given_back.is_empty() {
            self.gave_back(request, before.given_back, charges, result.is_ok());
        }
        if request.is_hot && result.is_ok() && !store.is_immediate() {
            self.take_ahead(store, charges, decision);
        }
        if !store.is_immediate() {
            let error = result.as_ref().err();
            let took = error.is_none_or(StoreError::was_asked).then(|| request.started.elapsed());
            self.observer.store_called(error.map(StoreError::kind), took);
        }
        result
    }

    /// Calls the store once. The cache of denials stores the answer of a store outside of this process.
    async fn call(
        &self,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        before: Before<'_>,
        charges: &[Charge<'_>],
        decision: &mut Decision,
    ) -> Result<(), StoreError> {
        let began = request.trace.map(|_| Instant::now());
        let cache = self.options.deny_cache.as_deref().filter(|_| !store.is_immediate());
        // The store may start at once, so this must come first.
        let learning = cache.map(|cache| Learning::new(cache, charges));
        let asked = if store.is_immediate() { None } else { self.options.unanswered.ask(charges) };
        let mut write = |answer: Result<Decision, StoreError>| answer.map(|answer| *decision = answer);
        // In two steps, so that a waiting request does not reserve memory for an answer that is ready.
        let reply = match store.decide_after(before, charges, request.mode, request.deadline) {
            Reply::Ready(answer) => Err(write(answer)),
            Reply::Pending(answer) => Ok(answer),
        };
        let result = match reply {
            Ok(pending) => write(pending.await),
            Err(result) => result,
        };
        if let Some(asked) = asked.filter(|_| !matches!(result, Err(StoreError::Unknown(_)))) {
            asked.answered();
        }
        if let (Some(learning), Ok(())) = (learning, &result) {
            learning.learn(request.matched, charges, decision);
        }
        if let Some((trace, began)) = request.trace.zip(began) {
            trace.store_called(store_call(store, charges, result.as_ref().err(), began));
        }
        result
    }

    /// Charges hits ahead for the hot keys, based on the store's answer. [ls-2]
    #[cold]
    fn take_ahead(&self, store: &Arc<dyn Store>, charges: &[Charge<'_>], decision: &Decision) {
        let now = Instant::now();
        for (charge, outcome) in charges.iter().zip(&decision.outcomes) {
            if let Some(hits) = self.options.leases.answered(charge, outcome, now) {
                self.begin_ahead(store, charge, hits);
            }
        }
    }

    /// Starts to charge hits ahead for the key of a charge.
    pub(super) fn begin_ahead(&self, store: &Arc<dyn Store>, charge: &Charge<'_>, hits: Hits) {
        let bounds = charge.bounds.or_else(|| self.calendar.bounds(charge.limit, self.options.clock.now()));
        Ahead::begin(&self.options, &self.observer, store, charge, bounds, hits);
    }

    /// Takes all charges back, and waits for that as long as the request may. Returns whether all were certainly taken
    /// back.
    pub(super) async fn take_back(&self, request: &Request<'_, '_>, reserved: &mut Reserved) -> bool {
        let Some(undoing) = reserved.undo() else {
            return true;
        };
        match tokio::time::timeout_at(request.deadline.into(), undoing).await {
            Ok(Ok(undone)) => undone,
            // The task continues without this one, or its runtime ends.
            Ok(Err(_)) | Err(_) => false,
        }
    }

    /// Sets the boundaries of calendar charges around `now`. Uses weir's own clock if the store has not sent its clock.
    /// [cl-3]
    fn set_bounds(&self, charges: &mut [Charge<'_>], now: Option<Micros>) {
        for charge in charges {
            if charge.limit.calendar().is_some() {
                charge.bounds = self.calendar.bounds(charge.limit, now.unwrap_or_else(|| self.options.clock.now()));
            }
        }
    }
}

impl<'a> Learning<'a> {
    fn new(cache: &'a DenyCache, charges: &'a [Charge<'a>]) -> Self {
        let refunds = cache.forget_refunds(charges);
        Self { cache, _refunds: refunds, generation: cache.generation(), sent: Instant::now() }
    }

    /// A denial under a row ends with the row. Only the store knows when, so the denial is not stored. [rw-2]
    fn learn(&self, matched: &Matched<'_>, charges: &[Charge<'_>], decision: &Decision) {
        if decision.outcomes.iter().any(|outcome| outcome.verdict.is_over()) {
            let received = Instant::now();
            let pairs = charges.iter().zip(&decision.outcomes);
            for (charge, outcome) in pairs.filter(|(charge, _)| !matched.has_row(charge.group)) {
                self.cache.insert(charge, outcome, self.sent, received, self.generation);
            }
        }
    }
}

#[cold]
fn store_call(store: &Arc<dyn Store>, charges: &[Charge<'_>], error: Option<&StoreError>, began: Instant) -> StoreCall {
    StoreCall {
        store: store.name(),
        place: store.place().map(str::to_owned),
        charges: charges.len(),
        error: error.map(StoreError::kind),
        took: began.elapsed(),
        is_immediate: store.is_immediate(),
    }
}
