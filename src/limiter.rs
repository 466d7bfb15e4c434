//! The use case: policies and a store make a decision about one request.
//!
//! In limiter/: the policies in force (policies.rs), what is charged and reported (plan.rs), requests that several calls
//! decide, or none (split.rs), denials that need no store (deny_cache.rs), and calendar windows (calendar.rs).
//! Not here: the wire (rls) and what a decision is (engine).

mod calendar;
pub mod deny_cache;
mod plan;
mod policies;
mod split;

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

pub use crate::engine::metadata;
use crate::engine::observer::{AnsweredBy, StoreCall};
pub use crate::engine::observer::{Charged, DecisionResult, Observer, Tally, Trace};
pub use crate::engine::policy::Domain;
use crate::engine::weight::{TOO_HEAVY, WEIGHT_MAX};
use crate::engine::{Charge, Decision, Hits, Micros, State, Take, Unit, algorithm, key, weight};
// What the listeners need of the modules below, so that they need not know those.
pub use crate::engine::descriptor::parse_entries;
pub use crate::engine::{Algorithm, Anchor, Entry, Limit, Mode, OnError, PolicySet, Refill, Rule};
use crate::store::{Clock, Reply, Store, SystemClock};
pub use crate::store::{Failure, StoreError};

use self::calendar::Calendar;
use self::deny_cache::{DenyCache, Known};
use self::plan::{Decided, Plan, Planned};
use self::policies::InForce;
pub use self::policies::Policies;
use self::split::Resolved;

/// The most time that a store gets for one decision, where nobody says.
const BUDGET: Duration = Duration::from_millis(10);
/// The portion of a bounded store that limits from requests share: no rule has this id.
const OVERRIDE_SHARE: u32 = u32::MAX;

/// One request, borrowed from whatever carried it; already within the bounds on input.
#[derive(Clone, Debug)]
pub struct Query<'a> {
    /// The domain, not empty.
    pub domain: &'a str,
    /// What is asked, at least one.
    pub descriptors: SmallVec<[DescriptorRequest<'a>; 2]>,
}

/// One descriptor of a request.
#[derive(Clone, Debug)]
pub struct DescriptorRequest<'a> {
    /// Keys and values, in the request's order. May be empty, which matches nothing.
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// What to charge.
    pub take: Take,
    /// A limit in the request, in place of what the rules say. [mt-6]
    pub limit: Option<(u32, Unit)>,
}

/// What the request is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request may not pass.
    pub denied: bool,
    /// How long the request has to be held until its turn, in microseconds: the longest wait of all limits in which it
    /// took a place. 0 where it may not pass, and where no limit is a `leaky_bucket`.
    pub wait: Micros,
    /// When a denied request would be admitted if no other came, in microseconds. None where it is not denied, where no
    /// wait helps, and where no store gave a wait. [dt-2]
    pub retry_after: Option<Micros>,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status; 2]>,
    /// What the rules give along whose limits were charged and passed, in the order of the descriptors. Empty unless
    /// [`Modes::metadata`] asks for it.
    pub metadata: Vec<Arc<metadata::Fields>>,
    /// Every limit that could deny the request, in the order of the descriptors and of their rules. Empty unless
    /// [`Modes::limits`] asks for it.
    pub limits: Vec<ListedLimit>,
}

/// One limit of a request, for its client. [dt-3]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLimit {
    /// The limit's name. Without one the path of its rule, and behind a colon the limit's id where the rule has several;
    /// `(request)` for a limit in the request.
    pub name: Box<str>,
    /// Hits per window.
    pub requests: u32,
    /// The window in seconds. None where that is no whole number, and for calendar windows, whose lengths differ.
    pub window_s: Option<u64>,
    /// The most hits that would be admitted now.
    pub remaining: Hits,
    /// As in a [`Status`], in microseconds.
    pub until_reset: Micros,
    /// Whether the request does not fit.
    pub over: bool,
}

/// What one descriptor is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether this descriptor is over a limit that denies.
    pub over: bool,
    /// The limit that the rest speaks of; none where nothing matched.
    pub limit: Option<LimitInfo>,
    /// The most hits that would be admitted now.
    pub remaining: Hits,
    /// Over: the wait until this request would fit. Within: the time until the state is empty. In microseconds.
    pub until_reset: Option<Micros>,
    /// What the wire has no field for; none where nothing matched.
    pub detail: Option<Detail>,
}

/// What is known beyond a status, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The name of the algorithm of the limit that the status speaks of.
    pub algorithm: &'static str,
    /// When the same hits would fit all limits of the descriptor again, all else equal: 0 where they would at once,
    /// nothing where they never will.
    pub fits_after: Option<Micros>,
    /// The time until the state of the limit that the status speaks of equals an empty one.
    pub reset_after: Micros,
    /// The longest wait until an admitted request's turn, of all limits of the descriptor; 0 for all but `leaky_bucket`.
    pub wait: Micros,
    /// Whether the descriptor's hits were charged to one of its limits: true for every report to a post-paid limit.
    pub charged: bool,
}

/// A limit as callers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitInfo {
    /// Hits per window.
    pub requests: u32,
    /// The window's unit, where it is exactly one.
    pub unit: Option<Unit>,
    /// The limit's name; the window's length where it has neither name nor unit.
    pub name: Option<Box<str>>,
}

impl LimitInfo {
    fn of(limit: &Limit) -> Self {
        let unit = limit.window().unit();
        let name = match &limit.name {
            Some(name) => Some(name.clone()),
            None if unit.is_none() => Some(limit.window().to_string().into()),
            None => None,
        };
        Self { requests: limit.requests(), unit, name }
    }
}

/// Why a request got no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// No policies were loaded yet. The text is that of envoyproxy/ratelimit.
    #[error("no rate limit configuration loaded")]
    NoPolicies,
    /// A store gave no decision in time.
    #[error("{0}")]
    Store(#[from] StoreError),
}

/// What the settings change about every rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// No limit denies. Statuses have their own codes, and everything is counted.
    pub shadow: bool,
    /// Every limit that denies is a quota, and a descriptor without a limit is a quota that passes. [dc-3]
    pub quota: bool,
    /// Answers carry the metadata of the rules whose limits passed.
    pub metadata: bool,
    /// Answers list every limit that could deny the request.
    pub limits: bool,
}

/// Where a limiter keeps states, and what else its decisions go by, besides the policies.
#[derive(Clone)]
pub struct Options {
    /// Where states are.
    pub store: Arc<dyn Store>,
    /// Where those of single limits per second are, if elsewhere. [st-3]
    pub per_second: Option<Arc<dyn Store>>,
    /// What carries on where a store does not answer and the policies say so: a store that is immediate. Without one it is
    /// an error. [st-4]
    pub local: Option<Arc<dyn Store>>,
    /// Denials that need no store, shared by all limiters of the process.
    pub deny_cache: Option<Arc<DenyCache>>,
    /// How requests are charged whose domain does not say.
    pub mode: Mode,
    /// What becomes of a request whose store does not answer, where neither rule nor domain says.
    pub on_error: OnError,
    /// What the settings change about every rule.
    pub modes: Modes,
    /// The most time that a store gets for one decision.
    pub budget: Duration,
}

impl Options {
    /// One store, and the defaults.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            per_second: None,
            local: None,
            deny_cache: None,
            mode: Mode::Atomic,
            on_error: OnError::Error,
            modes: Modes::default(),
            budget: BUDGET,
        }
    }
}

/// Makes decisions for the requests of one runtime.
pub struct Limiter {
    policies: Arc<Policies>,
    options: Options,
    calendar: Calendar,
    observer: Arc<dyn Observer>,
    /// That of the observer.
    lane: usize,
}

/// What the cache of denials knows of a request.
struct KnownDenials<'a> {
    /// The charges that are known to be denied, at least one.
    resolved: Resolved<'a>,
    /// Their keys.
    keys: SmallVec<[&'a str; 2]>,
    /// No store has to be asked.
    is_enough: bool,
}

/// One request, as far as it does not change while stores are asked.
struct Request<'a, 'p> {
    plan: &'a Plan<'p>,
    mode: Mode,
    started: Instant,
    deadline: Instant,
    /// Hears how the decision is made; seldom there.
    trace: Option<&'a dyn Trace>,
}

impl Limiter {
    /// A limiter of these policies.
    #[must_use]
    pub fn new(policies: Arc<Policies>, options: Options, observer: Arc<dyn Observer>) -> Self {
        let lane = observer.lane();
        Self { policies, options, calendar: Calendar::default(), observer, lane }
    }

    /// Decides one request, which began at `started` and has until `deadline` if its caller set one.
    ///
    /// # Errors
    /// When no policies were loaded yet, or when a store gave no decision in time and the policies say that this is an
    /// error.
    pub fn decide(
        &self,
        query: &Query<'_>,
        started: Instant,
        deadline: Option<Instant>,
    ) -> impl Future<Output = Result<Answer, Undecided>> + Send {
        self.decide_traced(query, started, deadline, None)
    }

    /// The same. `trace` hears how the decision is made.
    ///
    /// # Errors
    /// As [`Limiter::decide`].
    pub async fn decide_traced(
        &self,
        query: &Query<'_>,
        started: Instant,
        deadline: Option<Instant>,
        trace: Option<&dyn Trace>,
    ) -> Result<Answer, Undecided> {
        let in_force = self.policies.current.load_full();
        let Some(domain) = in_force.policies.domain(query.domain) else {
            return self.unknown_domain(query, &in_force, started, trace);
        };
        let plan = Plan::of(&in_force.policies, domain, self.options.modes, query);
        let mut charges = plan.charges(query);
        if charges.is_empty() {
            return Ok(self.finish(query, &in_force, &plan, None, started, trace));
        }
        let deadline = self.deadline(started, deadline);
        let request = Request { plan: &plan, mode: self.mode(domain), started, deadline, trace };
        let finish = |decided: Decided<'_>, known: &[&str]| {
            let decided = Decided { known, ..decided };
            Ok(self.finish(query, &in_force, &plan, Some(&decided), started, trace))
        };
        let known = self.known_denials(&request, &charges);
        if let Some(known) = known.as_ref().filter(|known| known.is_enough) {
            return finish(known.resolved.decided(), &known.keys);
        }
        // A box too: seldom is a part known, and not all.
        let known = known.map(Box::new);
        let keys = known.as_deref().map_or(&[][..], |known| &known.keys);
        let failed = if let Some(error) = self.too_heavy(&charges) {
            Some(error)
        } else if let Some(store) = self.only_store(&plan, &charges) {
            match self.ask(store, &request, &mut charges).await {
                Ok(decision) => return finish(Decided::whole(&charges, &plan, &decision), keys),
                Err(error) => Some(error),
            }
        } else {
            None
        };
        // A box, so that a request for which one call was enough does not carry the room for this.
        match Box::pin(self.decide_split(&request, &charges, failed)).await {
            Ok(resolved) => finish(resolved.decided(), keys),
            // What is known denies the request though its other limits cannot be looked up.
            Err(error) => match known.as_deref().filter(|_| request.mode == Mode::Atomic) {
                Some(known) => finish(known.resolved.decided(), keys),
                None => Err(self.failed(&in_force, &plan, error, started, trace).into()),
            },
        }
    }

    /// Whether [`Limiter::decide_now`] may be called.
    #[must_use]
    pub fn is_immediate(&self) -> bool {
        self.options.store.is_immediate() && self.options.per_second.is_none()
    }

    /// The same without waiting, and without a future to hold all of it.
    ///
    /// # Errors
    /// When no policies were loaded yet, or when the store gave no decision.
    ///
    /// # Panics
    /// When the limiter is not immediate.
    pub fn decide_now(&self, query: &Query<'_>, started: Instant) -> Result<Answer, Undecided> {
        self.decide_now_traced(query, started, None)
    }

    /// The same. `trace` hears how the decision is made.
    ///
    /// # Errors
    /// As [`Limiter::decide_now`].
    ///
    /// # Panics
    /// As [`Limiter::decide_now`].
    pub fn decide_now_traced(
        &self,
        query: &Query<'_>,
        started: Instant,
        trace: Option<&dyn Trace>,
    ) -> Result<Answer, Undecided> {
        // A guard and not a count that all cores would share: it does not outlive this call.
        let in_force = self.policies.current.load();
        let Some(domain) = in_force.policies.domain(query.domain) else {
            return self.unknown_domain(query, &in_force, started, trace);
        };
        let plan = Plan::of(&in_force.policies, domain, self.options.modes, query);
        let mut charges = plan.charges(query);
        if charges.is_empty() {
            return Ok(self.finish(query, &in_force, &plan, None, started, trace));
        }
        let deadline = self.deadline(started, None);
        let request = Request { plan: &plan, mode: self.mode(domain), started, deadline, trace };
        if let Some(error) = self.too_heavy(&charges) {
            return match self.decide_unanswered(&request, &charges, error) {
                Ok(resolved) => Ok(self.finish(query, &in_force, &plan, Some(&resolved.decided()), started, trace)),
                Err(error) => Err(self.failed(&in_force, &plan, error, started, trace).into()),
            };
        }
        match self.ask_now(&self.options.store, &request, &mut charges) {
            Ok(decision) => {
                let decided = Decided::whole(&charges, &plan, &decision);
                Ok(self.finish(query, &in_force, &plan, Some(&decided), started, trace))
            }
            Err(error) => Err(self.failed(&in_force, &plan, error, started, trace).into()),
        }
    }

    /// The failure of a decision that would take Redis too long, whichever store makes it. [dc-11]
    fn too_heavy(&self, charges: &[Charge<'_>]) -> Option<StoreError> {
        // One charge never is.
        if charges.len() == 1 {
            return None;
        }
        let weight = weight::of_charges(charges);
        if weight <= WEIGHT_MAX {
            return None;
        }
        self.observer.store_called(Some(TOO_HEAVY), None);
        let message = format!("the {} charges of one request weigh {weight}, more than {WEIGHT_MAX}", charges.len());
        Some(StoreError::NotSent(Failure { kind: TOO_HEAVY, message }))
    }

    /// How a domain charges: as its policy says, else as the server does.
    fn mode(&self, domain: &Domain) -> Mode {
        domain.mode.unwrap_or(self.options.mode)
    }

    /// Looked at here only, so that a request of a known domain does not pay for it.
    fn unknown_domain(
        &self,
        query: &Query<'_>,
        in_force: &InForce,
        started: Instant,
        trace: Option<&dyn Trace>,
    ) -> Result<Answer, Undecided> {
        if !in_force.is_loaded {
            self.decided(DecisionResult::NoPolicies, started, trace);
            return Err(Undecided::NoPolicies);
        }
        self.observer.unknown_domain(query.domain, query.descriptors.len());
        self.decided(DecisionResult::UnknownDomain, started, trace);
        Ok(unmatched(query))
    }

    fn failed(
        &self,
        in_force: &InForce,
        plan: &Plan<'_>,
        error: StoreError,
        started: Instant,
        trace: Option<&dyn Trace>,
    ) -> StoreError {
        in_force.tally.decided(plan.domain, self.lane, DecisionResult::StoreFailed, plan.unmatched);
        self.decided(DecisionResult::StoreFailed, started, trace);
        error
    }

    fn decided(&self, result: DecisionResult, started: Instant, trace: Option<&dyn Trace>) {
        let took = started.elapsed();
        self.observer.decided(result, took);
        if let Some(trace) = trace {
            trace.decided(result);
            self.observer.sampled(result, took, trace.ids());
        }
    }

    /// Counts what was decided, if anything had to be, and makes the answer of it.
    fn finish(
        &self,
        query: &Query<'_>,
        in_force: &InForce,
        plan: &Plan<'_>,
        decided: Option<&Decided<'_>>,
        started: Instant,
        trace: Option<&dyn Trace>,
    ) -> Answer {
        if let Some(trace) = trace {
            plan.tell(trace, query);
        }
        if decided.is_some_and(|decided| plan.is_shadowed(decided)) {
            self.observer.shadowed();
        }
        if let Some(Decided { charges, planned, decision, known, .. }) = decided {
            let mode = self.mode(plan.domain);
            for ((charge, outcome), planned) in charges.iter().zip(&decision.outcomes).zip(*planned) {
                let entries = &query.descriptors[usize::from(charge.group)].entries;
                let by = if known.contains(&charge.key) { AnsweredBy::Cache } else { AnsweredBy::Store };
                let limit = plan.charged(planned);
                let charged = Charged { limit, entries, mode, charge, outcome, by };
                in_force.tally.charged(&charged);
                if let Some(trace) = trace {
                    trace.charged(&charged);
                }
            }
        }
        let answer = plan.answer(query, decided);
        let result = if answer.denied { DecisionResult::OverLimit } else { DecisionResult::Ok };
        in_force.tally.decided(plan.domain, self.lane, result, plan.unmatched);
        self.decided(result, started, trace);
        answer
    }

    /// Counts a request, which began at `started`, that cannot be decided.
    pub fn refused(&self, started: Instant) {
        self.observer.decided(DecisionResult::Invalid, started.elapsed());
    }

    /// Counts a request, which began at `started`, that cannot even be read.
    pub fn unreadable(&self, started: Instant) {
        self.observer.unreadable();
        self.refused(started);
    }

    /// Where the state of a limit is. A list of limits stays together.
    fn store_of(&self, limit: &Limit, is_single: bool) -> &Arc<dyn Store> {
        match &self.options.per_second {
            Some(store) if is_single && limit.window().unit() == Some(Unit::Second) => store,
            _ => &self.options.store,
        }
    }

    /// The store that can decide all of these charges in one call, if one can.
    fn only_store(&self, plan: &Plan<'_>, charges: &[Charge<'_>]) -> Option<&Arc<dyn Store>> {
        let place = |(charge, planned): (&Charge<'_>, &Planned)| {
            let store = self.store_of(charge.limit, planned.is_single);
            (store, if charges.len() == 1 { 0 } else { store.part_of(charge.key) })
        };
        let mut places = charges.iter().zip(&plan.planned).map(place);
        let (first, part) = places.next()?;
        places.all(|(store, other)| Arc::ptr_eq(store, first) && other == part).then_some(first)
    }

    /// Asks one store for a decision over charges that it can decide together.
    async fn ask(
        &self,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        charges: &mut [Charge<'_>],
    ) -> Result<Decision, StoreError> {
        if store.is_immediate() {
            return self.ask_now(store, request, charges);
        }
        self.set_bounds(charges, None);
        let called = |decision: Result<Decision, StoreError>| {
            let error = decision.as_ref().err();
            let took = error.is_none_or(StoreError::was_asked).then(|| request.started.elapsed());
            self.observer.store_called(error.map(StoreError::kind), took);
            decision
        };
        // Nothing was charged where the store's clock and ours are on two sides of a boundary. Once more is enough, unless
        // its clock jumps meanwhile.
        let now = match self.ask_once(store, request, charges).await {
            Err(StoreError::StaleBounds { now }) => now,
            decision => return called(decision),
        };
        self.set_bounds(charges, Some(now));
        called(self.ask_once(store, request, charges).await)
    }

    async fn ask_once(
        &self,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        charges: &[Charge<'_>],
    ) -> Result<Decision, StoreError> {
        // The store may begin at once, so what the cache has to know comes before.
        let ask = || match request.trace {
            None => store.decide(charges, request.mode, request.deadline).get(),
            // A box of its own: requests without a trace have no room for it.
            Some(trace) => Box::pin(ask_traced(trace, store, request, charges)),
        };
        let Some(cache) = &self.options.deny_cache else {
            return ask().await;
        };
        let _refunds = cache.forget_refunds(charges);
        let (generation, sent) = (cache.generation(), Instant::now());
        let decision = ask().await?;
        if decision.outcomes.iter().any(|outcome| outcome.verdict.is_over()) {
            let received = Instant::now();
            for (charge, outcome) in charges.iter().zip(&decision.outcomes) {
                cache.insert(charge, outcome, sent, received, generation);
            }
        }
        Ok(decision)
    }

    /// The same of a store that need not be waited for.
    fn ask_now(
        &self,
        store: &Arc<dyn Store>,
        request: &Request<'_, '_>,
        charges: &mut [Charge<'_>],
    ) -> Result<Decision, StoreError> {
        let ask = |charges: &[Charge<'_>]| match store.decide(charges, request.mode, request.deadline) {
            Reply::Ready(decision) => decision,
            Reply::Pending(_) => unreachable!("the store {} is not immediate", store.name()),
        };
        let began = request.trace.map(|_| Instant::now());
        self.set_bounds(charges, None);
        let decision = match ask(charges) {
            Err(StoreError::StaleBounds { now }) => {
                self.set_bounds(charges, Some(now));
                ask(charges)
            }
            decision => decision,
        };
        if let Some((trace, began)) = request.trace.zip(began) {
            trace.store_called(store_call(store, charges, &decision, began));
        }
        decision
    }

    /// Gives calendar charges the boundaries around `now`, by our own clock where the store has not told its. [cl-3]
    fn set_bounds(&self, charges: &mut [Charge<'_>], now: Option<Micros>) {
        for charge in charges {
            if let Anchor::Calendar(_) = charge.limit.algorithm().anchor() {
                charge.bounds = self.calendar.bounds(charge.limit, now.unwrap_or_else(|| SystemClock.now()));
            }
        }
    }

    /// What the cache knows of these charges. [dn-1]
    fn known_denials<'a>(&self, request: &Request<'_, '_>, charges: &[Charge<'a>]) -> Option<KnownDenials<'a>> {
        let cache = self.options.deny_cache.as_ref()?;
        let (denials, is_enough) = match cache.answers(charges, request.mode, request.started) {
            Known::Nothing => return None,
            Known::Part(denials) => (denials, false),
            Known::Enough(denials) => (denials, true),
        };
        let mut resolved = Resolved::default();
        resolved.decision.denied = true;
        for ((charge, planned), denial) in charges.iter().zip(&request.plan.planned).zip(denials) {
            if let Some(outcome) = denial {
                resolved.push(charge.clone(), *planned, outcome);
            }
        }
        let keys = resolved.charges.iter().map(|charge| charge.key).collect();
        Some(KnownDenials { resolved, keys, is_enough })
    }

    /// The states of a descriptor's limits, without touching them; empty where no rule matches.
    ///
    /// # Errors
    /// When a store did not answer.
    pub async fn peek(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Vec<Peek>, StoreError> {
        let policies = self.policies.current();
        let keyed = keys_of(&policies, domain, entries);
        let Some((_, first)) = keyed.first() else {
            return Ok(Vec::new());
        };
        let asked: Vec<(&str, &Limit)> = keyed.iter().map(|(key, limit)| (key.as_str(), *limit)).collect();
        let store = self.store_of(first, keyed.len() == 1);
        let peeked = store.peek(&asked, self.deadline(Instant::now(), None)).get().await?;
        let peeks = keyed.iter().zip(peeked.states).map(|((key, limit), state)| {
            let bounds = self.calendar.bounds(limit, peeked.now);
            let seen = algorithm::seen(limit, state.as_ref(), 0, bounds, peeked.now);
            Peek {
                key: key.clone(),
                algorithm: limit.algorithm().name(),
                requests: limit.requests(),
                window_us: limit.window().us(),
                remaining: seen.remaining(limit, peeked.now),
                reset_after_us: seen.reset_after(limit, peeked.now),
                state,
            }
        });
        Ok(peeks.collect())
    }

    /// Forgets what a descriptor has used of its limits, in its store, in the local one and among known denials.
    /// Answers the keys that belong to it, and how many its store had.
    ///
    /// # Errors
    /// When the store did not answer; then they may or may not be forgotten.
    pub async fn reset(&self, domain: &str, entries: &[Entry<'_>]) -> Result<(Vec<String>, u64), StoreError> {
        let policies = self.policies.current();
        let keyed = keys_of(&policies, domain, entries);
        let Some((_, first)) = keyed.first() else {
            return Ok((Vec::new(), 0));
        };
        let asked: Vec<&str> = keyed.iter().map(|(key, _)| key.as_str()).collect();
        let deadline = self.deadline(Instant::now(), None);
        let answer = self.store_of(first, keyed.len() == 1).reset(&asked, deadline).get().await;
        if let Some(local) = &self.options.local {
            local.reset(&asked, deadline).get().await?;
        }
        if let Some(cache) = &self.options.deny_cache {
            asked.iter().for_each(|key| cache.forget(key));
        }
        let stored = answer?;
        Ok((keyed.into_iter().map(|(key, _)| key).collect(), stored))
    }

    /// The store, for its health; decisions go through [`Limiter::decide`].
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.options.store
    }

    /// Ends, with the reason, when a store can give no more answers.
    pub async fn died(&self) -> String {
        match &self.options.per_second {
            None => self.options.store.died().await,
            Some(per_second) => tokio::select! {
                reason = self.options.store.died() => reason,
                reason = per_second.died() => reason,
            },
        }
    }

    fn deadline(&self, started: Instant, deadline: Option<Instant>) -> Instant {
        let ours = started + self.options.budget;
        deadline.map_or(ours, |theirs| ours.min(theirs))
    }
}

/// What is stored for one limit of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peek {
    /// The key.
    pub key: String,
    /// The algorithm's name.
    pub algorithm: &'static str,
    /// Hits per window.
    pub requests: u32,
    /// The window in microseconds.
    pub window_us: u64,
    /// The most hits that would be admitted now.
    pub remaining: Hits,
    /// The time in microseconds until the state is empty.
    pub reset_after_us: Micros,
    /// The state as stored.
    pub state: Option<State>,
}

/// The keys and limits of one descriptor.
fn keys_of<'p>(policies: &'p PolicySet, domain: &str, entries: &[Entry<'_>]) -> Vec<(String, &'p Limit)> {
    let Some(domain) = policies.domain(domain) else {
        return Vec::new();
    };
    let met = policies.find(domain, entries);
    let limits = met.rule.map_or(&[][..], |rule| &rule.limits);
    let keyed = limits.iter().map(|limit| {
        let mut key = String::new();
        key::write_key(&mut key, &domain.name, entries.iter().copied(), &met.shared, limit);
        (key, limit)
    });
    keyed.collect()
}

/// Asks a store, and names the call to the trace of the request when it ends.
async fn ask_traced(
    trace: &dyn Trace,
    store: &Arc<dyn Store>,
    request: &Request<'_, '_>,
    charges: &[Charge<'_>],
) -> Result<Decision, StoreError> {
    let began = Instant::now();
    let decision = store.decide(charges, request.mode, request.deadline).get().await;
    trace.store_called(store_call(store, charges, &decision, began));
    decision
}

#[cold]
fn store_call(
    store: &Arc<dyn Store>,
    charges: &[Charge<'_>],
    decision: &Result<Decision, StoreError>,
    began: Instant,
) -> StoreCall {
    StoreCall {
        store: store.name(),
        place: store.place().map(str::to_owned),
        charges: charges.len(),
        error: decision.as_ref().err().map(StoreError::kind),
        took: began.elapsed(),
        is_immediate: store.is_immediate(),
    }
}

/// The answer where nothing can match. [mt-7]
fn unmatched(query: &Query<'_>) -> Answer {
    let statuses = query.descriptors.iter().map(|_| Status::default()).collect();
    Answer { statuses, ..Answer::default() }
}
