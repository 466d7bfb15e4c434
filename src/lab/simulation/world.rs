//! The environment of simulations and tests: a limiter with its store, its policies and a clock that the caller sets.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_engine::observer::Observer;
use weir_engine::{Micros, PolicySet};
use weir_limiter::rows::RowTable;
use weir_limiter::rows::known::KnownRows;
use weir_limiter::{Answer, Limiter, Options, Policies, Query, Undecided};
use weir_policies::GivenRows;
use weir_rls::configured;
use weir_rls::convert::Bounds;
use weir_settings::Settings;
use weir_store::memory::Memory;
use weir_store::{Clock, Store};

use super::traffic::Request;
use crate::in_flight::InFlight;

/// The time limit of a store outside of this process for a decision.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// A clock that only [`World::set_now`] changes.
#[derive(Debug, Default)]
struct VirtualClock(AtomicU64);

impl Clock for VirtualClock {
    fn now(&self) -> Micros {
        self.0.load(Ordering::Relaxed)
    }
}

pub struct World {
    clock: Arc<VirtualClock>,
    policies: Arc<Policies>,
    settings: Arc<Settings>,
    observer: Arc<dyn Observer>,
    limiter: Limiter,
    known: Arc<KnownRows>,
    rows: RowTable,
    in_flight: RefCell<InFlight>,
    bounds: Bounds,
    started: Instant,
}

impl World {
    /// A limiter with these policies and an empty memory store.
    pub fn new(policies: Arc<PolicySet>, settings: &Arc<Settings>, observer: Arc<dyn Observer>) -> Self {
        Self::made(policies, settings, observer, None)
    }

    /// A limiter with these policies and another store, whose clock [`World::set_now`] does not set.
    pub fn in_store(
        policies: Arc<PolicySet>,
        settings: &Arc<Settings>,
        observer: Arc<dyn Observer>,
        store: Arc<dyn Store>,
    ) -> Self {
        Self::made(policies, settings, observer, Some(store))
    }

    fn made(
        policies: Arc<PolicySet>,
        settings: &Arc<Settings>,
        observer: Arc<dyn Observer>,
        store: Option<Arc<dyn Store>>,
    ) -> Self {
        let clock = Arc::new(VirtualClock::default());
        let policies = Arc::new(Policies::new(policies, observer.clone()));
        let store = store.unwrap_or_else(|| memory(&clock, settings, &observer));
        let known = Arc::new(KnownRows::of(&*store));
        let rows = RowTable::new(store.clone(), policies.clone(), known.clone(), clock.clone(), observer.clone());
        let limiter = limiter(&policies, store, &known, &clock, settings, &observer);
        let bounds = configured::bounds(&settings.limits);
        let (settings, in_flight, started) = (settings.clone(), RefCell::default(), Instant::now());
        Self { clock, policies, settings, observer, limiter, known, rows, in_flight, bounds, started }
    }

    pub fn rows(&self) -> &RowTable {
        &self.rows
    }

    /// Replaces all rows, with the memory store. Rows that do not fit the policies are left out: returns how many, and the first of them
    /// with its place and why.
    pub fn replace_rows(&self, given: &GivenRows) -> Option<(usize, String)> {
        let (mut left_out, mut first) = (0, None);
        let rows = given.rows.iter().map(|line| line.row.clone());
        let fitting = self.rows.fitting(&self.policies.current(), rows, |at, refused| {
            left_out += 1;
            first.get_or_insert_with(|| given.problem(&given.rows[at], refused.field(), &refused));
            true
        });
        self.rows.replace_of_files(fitting);
        first.map(|first| (left_out, first))
    }

    pub fn set_now(&self, now: Micros) {
        self.clock.0.store(now, Ordering::Relaxed);
    }

    /// Moves the clock. Requests that end until then settle at their time. Calls `settling` with true before each
    /// settle and with false after it.
    pub fn go_on(&self, now: Micros, settling: impl Fn(bool)) {
        loop {
            let Some((at, ending)) = self.in_flight.borrow_mut().next_ended(now) else { break };
            self.set_now(at);
            settling(true);
            // Ignores the result: later requests see the state, and the memory store does not fail.
            ending.settle(&self.bounds, |query| self.decide_now(query).is_ok());
            settling(false);
        }
        self.set_now(now);
    }

    /// Decides one request with the memory store. The request settles when it ends.
    ///
    /// # Errors
    /// As [`Limiter::decide`].
    pub fn decide_lasting(&self, request: &Request, query: &Query<'_>) -> Result<Answer, Undecided> {
        let answer = self.decide_now(query);
        if let (Some(lasts), Ok(answer)) = (request.lasts, &answer) {
            let ends = request.time.saturating_add(lasts);
            self.in_flight.borrow_mut().begin(ends, &request.message, answer.holds.clone());
        }
        answer
    }

    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// Decides one request with the memory store.
    ///
    /// # Errors
    /// As [`Limiter::decide`].
    pub fn decide_now(&self, query: &Query<'_>) -> Result<Answer, Undecided> {
        // The memory store has no deadline, so the start of a request does not matter.
        self.limiter.decide_now(query, self.started, None)
    }

    /// Replaces the policies and keeps all states.
    pub fn swap(&self, policies: Arc<PolicySet>) {
        self.policies.replace(policies);
    }

    /// Removes all states from the memory store. Rows stay.
    pub fn forget(&mut self) {
        let store = memory(&self.clock, &self.settings, &self.observer);
        self.limiter = limiter(&self.policies, store, &self.known, &self.clock, &self.settings, &self.observer);
    }
}

fn memory(clock: &Arc<VirtualClock>, settings: &Settings, observer: &Arc<dyn Observer>) -> Arc<dyn Store> {
    Arc::new(Memory::new(settings.memory.max_keys, clock.clone(), observer.clone()))
}

fn limiter(
    policies: &Arc<Policies>,
    store: Arc<dyn Store>,
    known: &Arc<KnownRows>,
    clock: &Arc<VirtualClock>,
    settings: &Settings,
    observer: &Arc<dyn Observer>,
) -> Limiter {
    let options = Options {
        mode: settings.charging,
        modes: configured::modes(settings),
        budget: TIMEOUT,
        clock: clock.clone(),
        rows: known.clone(),
        ..Options::new(store)
    };
    Limiter::new(policies.clone(), options, observer.clone())
}
