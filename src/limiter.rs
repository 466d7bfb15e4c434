//! The use case: policies and a store make a decision about one request.
//!
//! In limiter/: what is charged and told (plan.rs), requests that several calls decide, or none (apart.rs), denials that
//! need no store (deny_cache.rs), and where a calendar's windows begin (calendar.rs).
//! Not here: the wire (rls) and what a decision is (engine).

mod apart;
mod calendar;
pub mod deny_cache;
mod plan;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smallvec::SmallVec;

pub use crate::engine::metadata;
use crate::engine::observer::AnsweredBy;
pub use crate::engine::observer::{Charged, DecisionResult, Observer, Tally};
pub use crate::engine::policy::Domain;
use crate::engine::weight::{TOO_HEAVY, WEIGHT_MAX};
use crate::engine::{Charge, Decision, Hits, Micros, State, Take, Unit, algorithm, key, weight};
// What the listeners need of the modules below, so that they need not know those.
pub use crate::engine::descriptor::parse_entries;
pub use crate::engine::{Algorithm, Anchor, Entry, Limit, Mode, OnError, PolicySet, Refill, Rule};
use crate::store::{Clock, Reply, Store, SystemClock};
pub use crate::store::{Failure, StoreError};

use self::apart::Resolved;
use self::calendar::Calendar;
use self::deny_cache::{DenyCache, Known};
use self::plan::{Decided, Plan, Planned};

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
    pub descriptors: SmallVec<[Asked<'a>; 2]>,
}

/// One descriptor of a request.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
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
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status; 2]>,
    /// What the rules give along whose limits were charged and passed, in the order of the descriptors. Empty unless
    /// [`Modes::metadata`] asks for it.
    pub metadata: Vec<Arc<metadata::Fields>>,
}

/// What one descriptor is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether this descriptor is over a limit that denies.
    pub over: bool,
    /// The limit that the rest speaks of; none where nothing matched.
    pub limit: Option<Told>,
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
pub struct Told {
    /// Hits per window.
    pub requests: u32,
    /// The window's unit, where it is exactly one.
    pub unit: Option<Unit>,
    /// The limit's name; the window's length where it has neither name nor unit.
    pub name: Option<Box<str>>,
}

impl Told {
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

/// The policies in force, replaced whole and shared by all runtimes.
pub struct Policies {
    current: ArcSwap<InForce>,
    observer: Arc<dyn Observer>,
    /// Sets that were replaced and that requests on their way may still use.
    retired: Mutex<Vec<Arc<InForce>>>,
}

/// The most replaced sets that wait to be freed by [`Policies::free_unused`]. Past it the last request that uses the oldest
/// one frees it.
const RETIRED_MAX: usize = 16;

struct InForce {
    policies: Arc<PolicySet>,
    tally: Arc<dyn Tally>,
    /// Whether these were loaded, or stand in until some are.
    is_loaded: bool,
}

impl Policies {
    /// Puts the first policies in force.
    #[must_use]
    pub fn new(policies: PolicySet, observer: Arc<dyn Observer>) -> Self {
        let current = ArcSwap::from_pointee(InForce::of(policies, &*observer));
        Self { current, observer, retired: Mutex::default() }
    }

    /// Has no policies yet: until some are put in force, decisions fail with [`Undecided::NoPolicies`].
    #[must_use]
    pub fn none_yet(observer: Arc<dyn Observer>) -> Self {
        let none = InForce { is_loaded: false, ..InForce::of(PolicySet::default(), &*observer) };
        Self { current: ArcSwap::from_pointee(none), observer, retired: Mutex::default() }
    }

    /// Puts other policies in force. Requests on their way finish under those they began with. The time it takes grows with
    /// the number of rules.
    pub fn replace(&self, policies: PolicySet) {
        let old = self.current.swap(Arc::new(InForce::of(policies, &*self.observer)));
        let mut retired = self.retired.lock();
        let oldest = if retired.len() == RETIRED_MAX { Some(retired.remove(0)) } else { None };
        retired.push(old);
        drop(retired);
        drop(oldest);
    }

    /// Frees the replaced sets that no request uses any more. A set of many rules takes milliseconds to free, so call it
    /// now and then on a thread that decides nothing; without it they are kept.
    pub fn free_unused(&self) {
        // Nothing can take another share of a set that is not in force, so one that has no other user gets none.
        let mut unused = Vec::new();
        self.retired.lock().retain(|set| {
            let is_used = Arc::strong_count(set) > 1;
            if !is_used {
                unused.push(set.clone());
            }
            is_used
        });
        drop(unused);
    }

    /// The policies in force now.
    #[must_use]
    pub fn current(&self) -> Arc<PolicySet> {
        self.current.load().policies.clone()
    }
}

impl InForce {
    fn of(policies: PolicySet, observer: &dyn Observer) -> Self {
        let tally = observer.loaded(&policies);
        Self { policies: Arc::new(policies), tally, is_loaded: true }
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
}

impl Limiter {
    /// A limiter of these policies.
    #[must_use]
    pub fn new(policies: Arc<Policies>, options: Options, observer: Arc<dyn Observer>) -> Self {
        Self { policies, options, calendar: Calendar::default(), observer }
    }

    /// Decides one request, which began at `started` and has until `deadline` if its caller set one.
    ///
    /// # Errors
    /// When no policies were loaded yet, or when a store gave no decision in time and the policies say that this is an
    /// error.
    pub async fn decide(
        &self,
        query: &Query<'_>,
        started: Instant,
        deadline: Option<Instant>,
    ) -> Result<Answer, Undecided> {
        let in_force = self.policies.current.load_full();
        let Some(domain) = in_force.policies.domain(query.domain) else {
            return self.unknown_domain(query, &in_force, started);
        };
        let plan = Plan::of(&in_force.policies, domain, self.options.modes, query);
        let mut charges = plan.charges(query);
        if charges.is_empty() {
            return Ok(self.finish(query, &in_force, &plan, None, started));
        }
        let deadline = self.deadline(started, deadline);
        let request = Request { plan: &plan, mode: self.mode(domain), started, deadline };
        let finish = |decided: Decided<'_>, known: &[&str]| {
            let decided = Decided { known, ..decided };
            Ok(self.finish(query, &in_force, &plan, Some(&decided), started))
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
        match Box::pin(self.decide_apart(&request, &charges, failed)).await {
            Ok(resolved) => finish(resolved.decided(), keys),
            // What is known denies the request though its other limits cannot be looked up.
            Err(error) => match known.as_deref().filter(|_| request.mode == Mode::Atomic) {
                Some(known) => finish(known.resolved.decided(), keys),
                None => Err(self.failed(error, started).into()),
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
        // A guard and not a count that all cores would share: it does not outlive this call.
        let in_force = self.policies.current.load();
        let Some(domain) = in_force.policies.domain(query.domain) else {
            return self.unknown_domain(query, &in_force, started);
        };
        let plan = Plan::of(&in_force.policies, domain, self.options.modes, query);
        let mut charges = plan.charges(query);
        if charges.is_empty() {
            return Ok(self.finish(query, &in_force, &plan, None, started));
        }
        let deadline = self.deadline(started, None);
        let request = Request { plan: &plan, mode: self.mode(domain), started, deadline };
        if let Some(error) = self.too_heavy(&charges) {
            return match self.decide_unanswered(&request, &charges, error) {
                Ok(resolved) => Ok(self.finish(query, &in_force, &plan, Some(&resolved.decided()), started)),
                Err(error) => Err(self.failed(error, started).into()),
            };
        }
        match self.ask_now(&self.options.store, &request, &mut charges) {
            Ok(decision) => {
                let decided = Decided::whole(&charges, &plan, &decision);
                Ok(self.finish(query, &in_force, &plan, Some(&decided), started))
            }
            Err(error) => Err(self.failed(error, started).into()),
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
    fn unknown_domain(&self, query: &Query<'_>, in_force: &InForce, started: Instant) -> Result<Answer, Undecided> {
        if !in_force.is_loaded {
            self.observer.decided(DecisionResult::NoPolicies, started.elapsed());
            return Err(Undecided::NoPolicies);
        }
        self.observer.unknown_domain(query.domain, query.descriptors.len());
        self.observer.decided(DecisionResult::UnknownDomain, started.elapsed());
        Ok(unmatched(query))
    }

    fn failed(&self, error: StoreError, started: Instant) -> StoreError {
        self.observer.decided(DecisionResult::StoreFailed, started.elapsed());
        error
    }

    /// Counts what was decided, if anything had to be, and makes the answer of it.
    fn finish(
        &self,
        query: &Query<'_>,
        in_force: &InForce,
        plan: &Plan<'_>,
        decided: Option<&Decided<'_>>,
        started: Instant,
    ) -> Answer {
        if decided.is_some_and(|decided| plan.is_shadowed(decided)) {
            self.observer.shadowed();
        }
        if let Some(Decided { charges, planned, decision, known, .. }) = decided {
            let mode = self.mode(plan.domain);
            for ((charge, outcome), planned) in charges.iter().zip(&decision.outcomes).zip(*planned) {
                let entries = &query.descriptors[usize::from(charge.group)].entries;
                let by = if known.contains(&charge.key) { AnsweredBy::Cache } else { AnsweredBy::Store };
                let limit = plan.charged(planned);
                in_force.tally.charged(&Charged { limit, entries, mode, charge, outcome, by });
            }
        }
        let answer = plan.answer(query, decided);
        let result = if answer.denied { DecisionResult::OverLimit } else { DecisionResult::Ok };
        self.observer.decided(result, started.elapsed());
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
            Err(StoreError::Rewindow { now }) => now,
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
        let Some(cache) = &self.options.deny_cache else {
            return store.decide(charges, request.mode, request.deadline).get().await;
        };
        let _refunds = cache.forget_refunds(charges);
        let (generation, sent) = (cache.generation(), Instant::now());
        let decision = store.decide(charges, request.mode, request.deadline).get().await?;
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
        self.set_bounds(charges, None);
        match ask(charges) {
            Err(StoreError::Rewindow { now }) => {
                self.set_bounds(charges, Some(now));
                ask(charges)
            }
            decision => decision,
        }
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

/// The answer where nothing can match. [mt-7]
fn unmatched(query: &Query<'_>) -> Answer {
    let statuses = query.descriptors.iter().map(|_| Status::default()).collect();
    Answer { statuses, ..Answer::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::observer::Tally;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    /// Counts the sets that were freed.
    #[derive(Default)]
    struct Freed(Arc<AtomicUsize>);

    struct OfSet(Arc<AtomicUsize>);

    impl Observer for Freed {
        fn loaded(&self, _: &PolicySet) -> Arc<dyn Tally> {
            Arc::new(OfSet(self.0.clone()))
        }
    }

    impl Tally for OfSet {}

    impl Drop for OfSet {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[test]
    fn the_last_request_that_uses_a_replaced_set_does_not_free_it() {
        let freed = Arc::new(AtomicUsize::new(0));
        let policies = Policies::new(PolicySet::default(), Arc::new(Freed(freed.clone())));
        let request = policies.current.load_full();
        policies.replace(PolicySet::default());
        policies.free_unused();
        assert_eq!(freed.load(SeqCst), 0, "a request uses it");
        drop(request);
        assert_eq!(freed.load(SeqCst), 0, "the request freed it");
        policies.free_unused();
        assert_eq!(freed.load(SeqCst), 1);
    }

    #[test]
    fn the_sets_that_wait_to_be_freed_are_bounded() {
        let freed = Arc::new(AtomicUsize::new(0));
        let policies = Policies::new(PolicySet::default(), Arc::new(Freed(freed.clone())));
        for _ in 0..RETIRED_MAX + 3 {
            policies.replace(PolicySet::default());
        }
        assert_eq!((policies.retired.lock().len(), freed.load(SeqCst)), (RETIRED_MAX, 3));
    }
}
