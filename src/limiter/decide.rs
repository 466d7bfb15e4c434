//! The path of a request: match, use known denials, call the store, handle failures, count, answer.
//!
//! All stores use this path. Only the call itself distinguishes stores that answer at once from others (stores.rs).

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::watch;
use weir_engine::observer::{RowEvent, Trace};
use weir_engine::policy::Domain;
use weir_engine::weight::{self, TOO_HEAVY, WEIGHT_MAX};
use weir_engine::words::counted;
use weir_engine::{Charge, Mode};
use weir_store::{Before, Failure, RowVersion, Store, StoreError};

use super::deny_cache::Known;
use super::leases::{CountedKeys, Found, ToTake};
use super::matched::{Decided, Matched, Selected};
use super::policies::InForce;
use super::rows::known::RowSource;
use super::split::{as_unknown, decide_split};
use super::stores::Request;
use super::{Answer, Limiter, Query, Status, Undecided};

/// The most times that the stores decide one request. They decide again if they find that one of its rows has changed.
/// [rw-2]
const DECISIONS_MAX: u32 = 16;

/// A request waits for hits that a call charges ahead for one third of its time at most. [ls-4]
const WAIT_SHARE: u32 = 3;

impl Limiter {
    pub(super) async fn decide_under(
        &self,
        in_force: &InForce,
        query: &Query<'_>,
        started: Instant,
        deadline: Option<Instant>,
        trace: Option<&dyn Trace>,
    ) -> Result<Answer, Undecided> {
        let Some(domain) = in_force.policies.domain(query.domain) else {
            self.counts.unmatched(in_force, query, started, trace)?;
            return Ok(unmatched(query));
        };
        let mode = domain.mode.unwrap_or(self.stores.options.mode);
        let ours = started + self.stores.options.budget;
        let deadline = deadline.map_or(ours, |theirs| ours.min(theirs));
        let request = Asked { in_force, domain, query, mode, started, deadline, trace };
        if domain.has_rows {
            // A box, so that other requests do not reserve the memory for this.
            return Box::pin(self.decide_under_rows(&request)).await;
        }
        let matched = self.matched(&request, None);
        self.decide_matched(&request.with(&matched), query).await
    }

    fn matched<'a>(&self, asked: &Asked<'a, '_>, rows: Option<&RowSource<'_>>) -> Matched<'a> {
        let options = &self.stores.options;
        Matched::of(asked.in_force, asked.domain, options.modes, asked.query, &*options.clock, rows)
    }

    /// Decides a request that can meet rules with rows. Reads the rows that are unknown, and decides again if the store
    /// has a different row. [rw-2]
    async fn decide_under_rows(&self, asked: &Asked<'_, '_>) -> Result<Answer, Undecided> {
        let rows = self.stores.row_source();
        for decision in 1.. {
            let mut matched = self.matched(asked, Some(&rows));
            let mut unread = None;
            if matched.unknown_rows().next().is_some() {
                unread = self.stores.read_rows(&matched, asked.deadline).await.err();
                // A row that others have changed meanwhile is unknown again. Its descriptor then has the default plan,
                // which the store compares too.
                matched = self.matched(asked, Some(&rows));
            }
            let request = Request {
                can_ask_again: decision < DECISIONS_MAX && Instant::now() < asked.deadline,
                is_again: decision > 1,
                unread: unread.as_ref(),
                ..asked.with(&matched)
            };
            match self.decide_matched(&request, asked.query).await {
                Err(Undecided::Store(StoreError::StaleRow { .. })) => {
                    self.stores.observer.rows(RowEvent::AskedAgain, 1);
                }
                decided => {
                    let unfit = matched.rows.iter().filter(|row| row.is_unfit).count();
                    if unfit > 0 {
                        self.stores.observer.rows(RowEvent::Unfit, unfit as u64);
                    }
                    return decided;
                }
            }
        }
        unreachable!("the last decision has an answer")
    }

    /// Decides a request whose limits are known.
    async fn decide_matched(&self, request: &Request<'_, '_>, query: &Query<'_>) -> Result<Answer, Undecided> {
        let matched = request.matched;
        let mut charges = matched.charges(query);
        let settling = match &query.settle {
            None => None,
            Some(settle) => Some(self.stores.begin_settle(request, query, settle, &mut charges).await),
        };
        let given_back = settling.as_ref().map_or(&[][..], |settling| &settling.given_back);
        // The limits of a settle need the store anyway, for the settle itself.
        let can_lease = matched.has_leases && matched.rows.is_empty() && query.settle.is_none();
        let keys = if can_lease { self.count_for_leases(request, &charges) } else { CountedKeys::new() };
        let is_hot = keys.iter().any(|key| key.is_hot());
        let request = &Request { is_hot, given_back, ..*request };
        let mut decided = Decided::default();
        let has_none = charges.is_empty() && matched.rows.is_empty();
        let result = if has_none
            || (is_hot && self.is_leased(request, &charges, &keys, &mut decided).await)
            || self.is_known(request, &charges, &mut decided)
        {
            Ok(())
        } else {
            self.decide_by_stores(request, &mut charges, &mut decided).await
        };
        if let Err(stale @ StoreError::StaleRow { .. }) = result {
            // Counts nothing before the last answer.
            return Err(Undecided::Store(stale));
        }
        matched.leave_out_absent(&mut decided);
        let mut holds = Vec::new();
        if matched.domain.has_holds && result.is_ok() && !decided.decision.denied {
            holds = self.stores.opened(&decided, request.trace);
        }
        if let Some(settling) = &settling {
            self.stores.end_settle(settling, result.is_ok().then_some(&decided), request.trace);
        }
        self.counts.request(request, query, result.is_ok().then_some(&decided));
        match &query.settle {
            // The settle may have given hits back, so the request must not be sent again. [hd-6]
            Some(settle) if !settle.holds.is_empty() => result.map_err(as_unknown)?,
            _ => result?,
        }
        let mut answer = matched.answer(query, &decided);
        answer.holds = holds;
        Ok(answer)
    }

    /// Settles holds. Charges and counts nothing else.
    pub(super) async fn settle_alone(&self, in_force: &InForce, query: &Query<'_>) {
        let (Some(domain), Some(settle)) = (in_force.policies.domain(query.domain), &query.settle) else { return };
        let options = &self.stores.options;
        let started = Instant::now();
        let deadline = started + options.budget;
        let asked = Asked { in_force, domain, query, mode: Mode::Atomic, started, deadline, trace: None };
        let matched = self.matched(&asked, None);
        self.stores.settle_alone(&asked.with(&matched), query, settle, &mut matched.charges(query)).await;
    }

    /// Counts a request for its keys if leases can admit it: each of its limits has a lease, and its store is not in this
    /// process. [ls-1]
    #[cold]
    fn count_for_leases(&self, request: &Request<'_, '_>, charges: &[Charge<'_>]) -> CountedKeys {
        let options = &self.stores.options;
        if request.mode != Mode::Atomic || options.store.is_immediate() {
            return CountedKeys::new();
        }
        options.leases.count(charges, request.started)
    }

    /// Whether leases admit the request. If so, `decided` gets its outcomes. [ls-4]
    async fn is_leased<'a>(
        &self,
        request: &Request<'_, '_>,
        charges: &[Charge<'a>],
        keys: &CountedKeys,
        decided: &mut Decided<'a>,
    ) -> bool {
        if !keys.iter().all(|key| key.is_hot()) {
            return false;
        }
        match self.admit_by_leases(request, charges, keys, decided) {
            Found::Enough(()) => true,
            Found::TooFew => false,
            // A box, because few requests wait.
            Found::Coming(end) => Box::pin(self.wait_for_hits(request, charges, keys, end, decided)).await,
        }
    }

    /// Waits until a call has charged hits ahead, once for each limit, and admits the request from them. So a burst of requests
    /// that finds a lease used up makes one call to the store. Waits for a part of the time only: after a call that is late, a
    /// request must have the time for a call of its own.
    async fn wait_for_hits<'a>(
        &self,
        request: &Request<'_, '_>,
        charges: &[Charge<'a>],
        keys: &CountedKeys,
        mut end: watch::Receiver<()>,
        decided: &mut Decided<'a>,
    ) -> bool {
        let until = request.started + request.deadline.saturating_duration_since(request.started) / WAIT_SHARE;
        for _ in charges {
            // Nothing is sent on the channel: it closes.
            if tokio::time::timeout_at(until.into(), end.changed()).await.is_err() {
                return false;
            }
            match self.admit_by_leases(request, charges, keys, decided) {
                Found::Enough(()) => return true,
                Found::TooFew => return false,
                Found::Coming(next) => end = next,
            }
        }
        false
    }

    /// Asks the leases once, and begins to charge the hits ahead that hot keys lack.
    #[cold]
    fn admit_by_leases<'a>(
        &self,
        request: &Request<'_, '_>,
        charges: &[Charge<'a>],
        keys: &CountedKeys,
        decided: &mut Decided<'a>,
    ) -> Found<()> {
        let origins = &request.matched.origins;
        let mut to_take = ToTake::new();
        let found = self.stores.options.leases.admit(charges, keys, &mut to_take);
        for (place, hits) in to_take {
            let charge = &charges[place];
            self.stores.begin_ahead(self.stores.store_of(charge.limit, origins[place].is_single), charge, hits);
        }
        found.map(|decision| {
            let outcomes = decision.outcomes.into_iter().map(Some);
            *decided = Decided { is_leased: true, ..Decided::of_some(charges, origins, outcomes) };
        })
    }

    /// Whether known denials are enough for an answer. `decided` gets all that are known. [dn-1]
    fn is_known<'a>(&self, request: &Request<'_, '_>, charges: &[Charge<'a>], decided: &mut Decided<'a>) -> bool {
        // Only the store decides about limits that depend on a row, or of a settle that gives hits back. [rw-2] [hd-5]
        let can_be_known = request.matched.rows.is_empty() && request.given_back.is_empty();
        let Some(cache) = self.stores.options.deny_cache.as_ref().filter(|_| can_be_known) else { return false };
        let (denials, is_enough) = match cache.answers(charges, request.mode, request.started) {
            Known::Nothing => return false,
            Known::Part(denials) => (denials, false),
            Known::Enough(denials) => (denials, true),
        };
        *decided = Decided::of_some(charges, &request.matched.origins, denials);
        decided.decision.denied = true;
        decided.known = decided.charges.iter().map(|charge| charge.key).collect();
        is_enough
    }

    /// Calls the store if one call can decide all charges. Otherwise, or if the call fails, splits the request.
    async fn decide_by_stores<'c>(
        &self,
        request: &Request<'c, '_>,
        charges: &'c mut [Charge<'_>],
        decided: &mut Decided<'c>,
    ) -> Result<(), StoreError> {
        // A box, because partial knowledge is rare.
        let known = (!decided.known.is_empty()).then(|| Box::new(std::mem::take(decided)));
        let one_call = match request.unread {
            None => self.one_call(request.matched, charges),
            Some(error) => Err(error.clone()),
        };
        let failed = match one_call {
            Ok(Some(store)) => {
                let matched = request.matched;
                let row_versions: SmallVec<[RowVersion<'_>; 1]> =
                    matched.rows.iter().map(|row| matched.row_version(row)).collect();
                let before = Before { row_versions: &row_versions, given_back: request.given_back };
                match self.stores.ask(store, request, before, charges, &mut decided.decision).await {
                    Ok(()) => {
                        decided.charges = Selected::All(charges);
                        decided.origins = Selected::All(&request.matched.origins);
                        decided.known = known.map_or_else(SmallVec::new, |known| known.known);
                        return Ok(());
                    }
                    Err(error @ StoreError::StaleRow { .. }) => return Err(error),
                    Err(error) => Some(error),
                }
            }
            Ok(None) => None,
            Err(not_asked) => {
                self.stores.gave_back(request, request.given_back, charges, false);
                Some(not_asked)
            }
        };
        // A box, so that a request with a single call does not reserve the memory for this.
        *decided = match (Box::pin(decide_split(&self.stores, request, charges, failed)).await, known) {
            // A known denial denies the request, although its other limits could not be checked.
            (Err(_), Some(known)) if request.mode == Mode::Atomic => *known,
            (Ok(decided), Some(known)) => Decided { known: known.known, ..decided },
            (decided, _) => decided?,
        };
        Ok(())
    }

    /// The store that can decide all of these charges in one call. None if no store can.
    /// Fails when the decision would take Redis too long. No other store decides it then. [dc-11]
    fn one_call(&self, matched: &Matched<'_>, charges: &[Charge<'_>]) -> Result<Option<&Arc<dyn Store>>, StoreError> {
        if let ([charge], []) = (charges, &*matched.rows) {
            return Ok(Some(self.stores.store_of(charge.limit, matched.origins[0].is_single)));
        }
        let weight = weight::of_charges(charges);
        if weight > WEIGHT_MAX {
            self.stores.observer.store_called(Some(TOO_HEAVY), None);
            let message = format!(
                "{} of one request: a weight of {weight}, more than {WEIGHT_MAX}",
                counted(charges.len(), "charge")
            );
            return Err(StoreError::NotSent(Failure { kind: TOO_HEAVY, message }));
        }
        let of_charges =
            charges.iter().zip(&matched.origins).map(|(charge, origin)| self.stores.slot_of(charge, origin));
        let of_rows = matched.rows.iter().map(|row| {
            let store = self.stores.store_of_row(matched, row);
            (store, store.slot_of(matched.row_version(row).key))
        });
        let mut parts = of_charges.chain(of_rows);
        let Some((first, slot)) = parts.next() else { return Ok(None) };
        Ok(parts.all(|(store, other)| Arc::ptr_eq(store, first) && other == slot).then_some(first))
    }
}

/// A request before its limits are known.
struct Asked<'a, 'q> {
    in_force: &'a InForce,
    domain: &'a Domain,
    query: &'a Query<'q>,
    mode: Mode,
    started: Instant,
    deadline: Instant,
    trace: Option<&'a dyn Trace>,
}

impl<'a> Asked<'a, '_> {
    fn with<'p>(&self, matched: &'a Matched<'p>) -> Request<'a, 'p> {
        let Self { in_force, mode, started, deadline, trace, .. } = *self;
        Request {
            in_force,
            matched,
            mode,
            started,
            deadline,
            is_hot: false,
            can_ask_again: false,
            is_again: false,
            given_back: &[],
            unread: None,
            trace,
        }
    }
}

/// The answer if nothing can match. [mt-7]
fn unmatched(query: &Query<'_>) -> Answer {
    let statuses = query.descriptors.iter().map(|_| Status::default()).collect();
    Answer { statuses, ..Answer::default() }
}
