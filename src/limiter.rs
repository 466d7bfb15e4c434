//! The use case: policies and a store make a decision about one request.
//!
//! Not here: the wire (rls), what a decision is (engine) and where a calendar's windows begin (limiter/calendar.rs).

mod calendar;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use smallvec::SmallVec;

pub use crate::engine::observer::{Charged, DecisionResult, Observer, Tally};
pub use crate::engine::policy::Domain;
use crate::engine::policy::Match;
use crate::engine::{Charge, Decision, Hits, Micros, Outcome, Role, State, Take, Unit, Verdict, algorithm, key};
// What the listeners need of the modules below, so that they need not know those.
pub use crate::engine::descriptor::parse_entries;
pub use crate::engine::{Algorithm, Anchor, Entry, Limit, Mode, OnError, PolicySet, Refill, Rule};
use crate::store::{Clock, Reply, Store, SystemClock};
pub use crate::store::{Failure, StoreError};

use self::calendar::Calendar;

/// Keys are written into one text; room for a decision of a few charges, so that it seldom grows.
const KEYS_BYTES: usize = 256;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether the request may not pass.
    pub denied: bool,
    /// How long the request has to be held until its turn, in microseconds: the longest wait of all limits in which it
    /// took a place. 0 where it may not pass, and where no limit is a `leaky_bucket`.
    pub wait: Micros,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status; 2]>,
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
}

struct InForce {
    policies: Arc<PolicySet>,
    tally: Arc<dyn Tally>,
}

impl Policies {
    /// Puts the first policies in force.
    #[must_use]
    pub fn new(policies: PolicySet, observer: Arc<dyn Observer>) -> Self {
        let current = ArcSwap::from_pointee(InForce::of(policies, &*observer));
        Self { current, observer }
    }

    /// Puts other policies in force. Requests on their way finish under those they began with.
    pub fn replace(&self, policies: PolicySet) {
        self.current.store(Arc::new(InForce::of(policies, &*self.observer)));
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
        Self { policies: Arc::new(policies), tally }
    }
}

/// Makes decisions for the requests of one runtime.
pub struct Limiter {
    policies: Arc<Policies>,
    store: Arc<dyn Store>,
    mode: Mode,
    /// The most time that a store gets for one decision.
    budget: Duration,
    calendar: Calendar,
    observer: Arc<dyn Observer>,
}

impl Limiter {
    /// A limiter that gives its store at most `budget` for one call.
    #[must_use]
    pub fn new(
        policies: Arc<Policies>,
        store: Arc<dyn Store>,
        mode: Mode,
        budget: Duration,
        observer: Arc<dyn Observer>,
    ) -> Self {
        Self { policies, store, mode, budget, calendar: Calendar::default(), observer }
    }

    /// Decides one request, which began at `started` and has until `deadline` if its caller set one.
    ///
    /// # Errors
    /// When the store gave no decision in time.
    pub async fn decide(
        &self,
        query: &Query<'_>,
        started: Instant,
        deadline: Option<Instant>,
    ) -> Result<Answer, StoreError> {
        let in_force = self.policies.current.load_full();
        let Some(domain) = in_force.policies.domain(query.domain) else {
            return Ok(self.unknown_domain(query, started));
        };
        let plan = Plan::of(&in_force.policies, domain, query);
        let mode = self.mode(domain);
        let mut charges = plan.charges(query);
        let mut decision = None;
        if !charges.is_empty() {
            let deadline = self.deadline(started, deadline);
            self.set_bounds(&mut charges, None);
            let mut answer = self.ask(&charges, mode, started, deadline).await;
            if let Err(StoreError::Rewindow { now }) = answer {
                // Nothing was charged: the store's clock and ours are on two sides of a boundary. Once is enough,
                // unless its clock jumps meanwhile.
                self.set_bounds(&mut charges, Some(now));
                answer = self.ask(&charges, mode, started, deadline).await;
            }
            decision = Some(answer);
        }
        self.finish(query, &in_force, &plan, &charges, decision, started)
    }

    /// Whether [`Limiter::decide_now`] may be called.
    #[must_use]
    pub fn is_immediate(&self) -> bool {
        self.store.is_immediate()
    }

    /// The same without waiting, and without a future to hold all of it.
    ///
    /// # Errors
    /// When the store gave no decision.
    ///
    /// # Panics
    /// When the store is not immediate.
    pub fn decide_now(&self, query: &Query<'_>, started: Instant) -> Result<Answer, StoreError> {
        // A guard and not a count that all cores would share: it does not outlive this call.
        let in_force = self.policies.current.load();
        let Some(domain) = in_force.policies.domain(query.domain) else {
            return Ok(self.unknown_domain(query, started));
        };
        let plan = Plan::of(&in_force.policies, domain, query);
        let mode = self.mode(domain);
        let mut charges = plan.charges(query);
        let mut decision = None;
        if !charges.is_empty() {
            self.set_bounds(&mut charges, None);
            let mut answer = self.ask_now(&charges, mode, started);
            if let Err(StoreError::Rewindow { now }) = answer {
                self.set_bounds(&mut charges, Some(now));
                answer = self.ask_now(&charges, mode, started);
            }
            decision = Some(answer);
        }
        self.finish(query, &in_force, &plan, &charges, decision, started)
    }

    fn ask_now(&self, charges: &[Charge<'_>], mode: Mode, started: Instant) -> Result<Decision, StoreError> {
        match self.store.decide(charges, mode, self.deadline(started, None)) {
            Reply::Ready(decision) => decision,
            Reply::Pending(_) => unreachable!("the store {} is not immediate", self.store.name()),
        }
    }

    /// How a domain charges: as its policy says, else as the server does.
    fn mode(&self, domain: &Domain) -> Mode {
        domain.mode.unwrap_or(self.mode)
    }

    fn unknown_domain(&self, query: &Query<'_>, started: Instant) -> Answer {
        self.observer.decided(DecisionResult::UnknownDomain, started.elapsed());
        unmatched(query)
    }

    /// Counts what was decided, if anything had to be, and makes the answer of it.
    fn finish(
        &self,
        query: &Query<'_>,
        in_force: &InForce,
        plan: &Plan<'_>,
        charges: &[Charge<'_>],
        decision: Option<Result<Decision, StoreError>>,
        started: Instant,
    ) -> Result<Answer, StoreError> {
        let decision = match decision {
            None => None,
            Some(Ok(decision)) => Some(decision),
            Some(Err(error)) => {
                self.observer.decided(DecisionResult::StoreFailed, started.elapsed());
                return Err(error);
            }
        };
        if let Some(decision) = &decision {
            for ((charge, outcome), planned) in charges.iter().zip(&decision.outcomes).zip(&plan.charges) {
                in_force.tally.charged(plan.charged(planned), self.mode(plan.domain), charge, outcome);
            }
        }
        let answer = plan.answer(query, decision.as_ref().map(|decision| (charges, decision)));
        let result = if answer.denied { DecisionResult::OverLimit } else { DecisionResult::Ok };
        self.observer.decided(result, started.elapsed());
        Ok(answer)
    }

    /// Counts a request, which began at `started`, that cannot be decided.
    pub fn refused(&self, started: Instant) {
        self.observer.decided(DecisionResult::Invalid, started.elapsed());
    }

    async fn ask(
        &self,
        charges: &[Charge<'_>],
        mode: Mode,
        started: Instant,
        deadline: Instant,
    ) -> Result<Decision, StoreError> {
        match self.store.decide(charges, mode, deadline) {
            Reply::Ready(decision) => decision,
            Reply::Pending(decision) => {
                let decision = decision.await;
                // A store that asks for other boundaries has answered.
                let failed = |error: &&StoreError| !matches!(error, StoreError::Rewindow { .. });
                let error = decision.as_ref().err().filter(failed).map(StoreError::kind);
                self.observer.store_called(error, started.elapsed());
                decision
            }
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

    /// The states of a descriptor's limits, without touching them; empty where no rule matches.
    ///
    /// # Errors
    /// When the store did not answer.
    pub async fn peek(&self, domain: &str, entries: &[Entry<'_>]) -> Result<Vec<Peek>, StoreError> {
        let policies = self.policies.current();
        let keyed = keys_of(&policies, domain, entries);
        let asked: Vec<(&str, &Limit)> = keyed.iter().map(|(key, limit)| (key.as_str(), *limit)).collect();
        let peeked = self.store.peek(&asked, self.deadline(Instant::now(), None)).get().await?;
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

    /// Forgets what a descriptor has used of its limits. Answers the keys that belong to it, and how many were stored.
    ///
    /// # Errors
    /// When the store did not answer; then they may or may not be forgotten.
    pub async fn reset(&self, domain: &str, entries: &[Entry<'_>]) -> Result<(Vec<String>, u64), StoreError> {
        let policies = self.policies.current();
        let keys: Vec<String> = keys_of(&policies, domain, entries).into_iter().map(|(key, _)| key).collect();
        let asked: Vec<&str> = keys.iter().map(String::as_str).collect();
        let stored = self.store.reset(&asked, self.deadline(Instant::now(), None)).get().await?;
        Ok((keys, stored))
    }

    /// The store, for its health; decisions go through [`Limiter::decide`].
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    fn deadline(&self, started: Instant, deadline: Option<Instant>) -> Instant {
        let ours = started + self.budget;
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
    Answer { denied: false, wait: 0, statuses }
}

/// What is to be charged for a request, before the store is asked.
struct Plan<'p> {
    domain: &'p Domain,
    /// What each descriptor met. No rule where the descriptor brings its own limit, or where nothing matches.
    met: SmallVec<[Match<'p>; 2]>,
    /// The limits that came with the request, by descriptor.
    overrides: SmallVec<[Option<Limit>; 2]>,
    charges: SmallVec<[Planned; 4]>,
    /// The text of all keys, one after the other.
    keys: String,
}

/// One charge, by what it refers to.
struct Planned {
    group: u16,
    /// The limit's position in its rule.
    limit: usize,
    key: (usize, usize),
}

impl<'p> Plan<'p> {
    fn of(policies: &'p PolicySet, domain: &'p Domain, query: &Query<'_>) -> Self {
        let mut plan = Self {
            domain,
            met: SmallVec::new(),
            overrides: SmallVec::new(),
            charges: SmallVec::new(),
            keys: String::with_capacity(KEYS_BYTES),
        };
        for asked in &query.descriptors {
            let (met, limit) = match asked.limit {
                Some((requests, unit)) => {
                    let nothing = Match { rule: None, shared: SmallVec::new() };
                    (nothing, Some(Limit::per_unit(requests, unit)))
                }
                None => (policies.find(domain, &asked.entries), None),
            };
            plan.met.push(met);
            plan.overrides.push(limit);
        }
        let replaced = replaced_names(&plan.met);
        for group in 0..query.descriptors.len() {
            plan.add_group(group, query, &replaced);
        }
        plan
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most 64 descriptors")]
    fn add_group(&mut self, group: usize, query: &Query<'_>, replaced: &[&str]) {
        let met = &self.met[group];
        let limits = match (&self.overrides[group], met.rule) {
            (Some(limit), _) => std::slice::from_ref(limit),
            (None, Some(rule)) => &rule.limits,
            (None, None) => return,
        };
        let mut tag = None;
        for (i, limit) in limits.iter().enumerate() {
            if is_replaced(limit.name.as_deref(), replaced) {
                continue;
            }
            let start = self.keys.len();
            match tag.clone() {
                None => {
                    let entries = query.descriptors[group].entries.iter().copied();
                    key::write_tag(&mut self.keys, &self.domain.name, entries, &met.shared);
                    tag = Some(start..self.keys.len());
                }
                Some(tag) => self.keys.extend_from_within(tag),
            }
            self.keys.push_str(limit.id());
            self.charges.push(Planned { group: group as u16, limit: i, key: (start, self.keys.len()) });
        }
    }

    fn limit(&self, planned: &Planned) -> &Limit {
        let group = usize::from(planned.group);
        match (&self.overrides[group], self.met[group].rule) {
            (Some(limit), _) => limit,
            (None, Some(rule)) => &rule.limits[planned.limit],
            (None, None) => unreachable!("a descriptor without limits is not charged"),
        }
    }

    fn charges<'a>(&'a self, query: &Query<'_>) -> SmallVec<[Charge<'a>; 2]> {
        let charge = |planned: &Planned| {
            let group = usize::from(planned.group);
            let limit = self.limit(planned);
            let rule = self.met[group].rule;
            Charge {
                key: &self.keys[planned.key.0..planned.key.1],
                limit,
                take: match query.descriptors[group].take {
                    // [dc-5]
                    Take::Take(hits) if limit.post_paid => Take::Force(hits),
                    take => take,
                },
                group: planned.group,
                role: rule.map_or(Role::Enforced, |rule| rule.role),
                share: rule.map_or(OVERRIDE_SHARE, |rule| rule.id),
                bounds: None,
            }
        };
        self.charges.iter().map(charge).collect()
    }

    fn charged(&self, planned: &Planned) -> Charged<'_> {
        match self.met[usize::from(planned.group)].rule {
            Some(rule) => Charged::Rule(rule, planned.limit),
            None => Charged::Override { domain: &self.domain.name },
        }
    }

    fn answer(&self, query: &Query<'_>, decided: Option<(&[Charge<'_>], &Decision)>) -> Answer {
        let (denied, now) = decided.map_or((false, 0), |(_, decision)| (decision.denied, decision.now));
        let wait = decided.map_or(0, |(charges, decision)| turn(charges, decision));
        let mut statuses = SmallVec::new();
        let mut rest = decided.map_or(&[][..], |(charges, _)| charges);
        let mut outcomes = decided.map_or(&[][..], |(_, decision)| &decision.outcomes);
        for group in 0..query.descriptors.len() {
            let count = rest.iter().take_while(|charge| usize::from(charge.group) == group).count();
            let status = match (self.met[group].rule, count) {
                (Some(rule), 0) if rule.unlimited => Status { remaining: Hits::MAX, ..Status::default() },
                (_, 0) => Status::default(),
                _ => status_of(&rest[..count], &outcomes[..count], denied, now),
            };
            statuses.push(status);
            (rest, outcomes) = (&rest[count..], &outcomes[count..]);
        }
        Answer { denied, wait, statuses }
    }
}

/// The names that the rules of one request replace. [mt-5]
fn replaced_names<'p>(met: &[Match<'p>]) -> SmallVec<[&'p str; 4]> {
    let rules = met.iter().filter_map(|met| met.rule);
    rules.flat_map(|rule| rule.replaces.iter().map(|name| &**name)).collect()
}

fn is_replaced(name: Option<&str>, replaced: &[&str]) -> bool {
    name.is_some_and(|name| replaced.contains(&name))
}

/// What a descriptor is told about its limits: over, the longest wait among those that deny; within, the least that is
/// left, and of equals the one that resets last. [dc-8]
fn status_of(charges: &[Charge<'_>], outcomes: &[Outcome], denied: bool, now: Micros) -> Status {
    let denies = |charge: &Charge<'_>, outcome: &Outcome| charge.role != Role::Shadow && outcome.verdict.is_over();
    let wait = |outcome: &Outcome| match outcome.verdict {
        Verdict::Never => Micros::MAX,
        Verdict::Over { retry_after } => retry_after,
        Verdict::Within => 0,
    };
    let mut told: Option<(&Charge<'_>, &Outcome)> = None;
    for (charge, outcome) in charges.iter().zip(outcomes) {
        let better =
            told.is_none_or(|(best_charge, best)| match (denies(charge, outcome), denies(best_charge, best)) {
                (true, false) => true,
                (false, true) => false,
                (true, true) => wait(outcome) > wait(best),
                (false, false) => {
                    (outcome.remaining, std::cmp::Reverse(outcome.reset_after))
                        < (best.remaining, std::cmp::Reverse(best.reset_after))
                }
            });
        if better {
            told = Some((charge, outcome));
        }
    }
    let Some((charge, outcome)) = told else {
        return Status::default();
    };
    let over = denies(charge, outcome);
    let until_reset = match outcome.verdict {
        Verdict::Over { retry_after } if over => retry_after,
        _ => outcome.reset_after,
    };
    let detail = Detail {
        algorithm: charge.limit.algorithm().name(),
        fits_after: fits_after(charges, outcomes, now),
        reset_after: outcome.reset_after,
        wait: if denied { 0 } else { outcomes.iter().map(|outcome| outcome.wait).max().unwrap_or(0) },
    };
    Status {
        over,
        limit: Some(Told::of(charge.limit)),
        remaining: outcome.remaining,
        until_reset: Some(until_reset),
        detail: Some(detail),
    }
}

/// When the same hits would fit all of these limits again; nothing where one of them never holds so many.
fn fits_after(charges: &[Charge<'_>], outcomes: &[Outcome], now: Micros) -> Option<Micros> {
    let mut longest = 0;
    for (charge, outcome) in charges.iter().zip(outcomes) {
        let wait = match outcome.verdict {
            Verdict::Over { retry_after } => retry_after,
            Verdict::Never => return None,
            Verdict::Within => algorithm::fits_after(charge.limit, &outcome.state, charge.take.asked(), now)?,
        };
        longest = longest.max(wait);
    }
    Some(longest)
}

/// How long an admitted request has to be held until its turn. [lb-2] A look takes no place in a bucket, nor does what is
/// given back, and a rule that only watches holds nobody.
fn turn(charges: &[Charge<'_>], decision: &Decision) -> Micros {
    let mut longest = 0;
    if decision.denied {
        return longest;
    }
    for (charge, outcome) in charges.iter().zip(&decision.outcomes) {
        let takes_a_place = matches!(charge.take, Take::Take(_) | Take::Force(_));
        if takes_a_place && charge.role != Role::Shadow {
            longest = longest.max(outcome.wait);
        }
    }
    longest
}
