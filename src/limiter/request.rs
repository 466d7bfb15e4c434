//! A request on its way: what does not change until its answer.

use std::iter;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use weir_engine::observer::{HoldHits, HoldResult, Observer, Tally, Trace};
use weir_engine::policy::Match;
use weir_engine::{Domain, Limit, Micros, Mode, Phase};
use weir_store::Clock;

use super::policies::InForce;
use super::recurring::Recurring;
use super::{DescriptorRequest, Query};

#[derive(Clone, Copy)]
pub(super) struct Request<'a, 'q> {
    pub(super) in_force: &'a Arc<InForce>,
    pub(super) domain: &'a Domain,
    pub(super) query: &'a Query<'q>,
    /// Its descriptors as the caller sent them, with hits that are not weighed. [mt-12]
    pub(super) sent: &'a [DescriptorRequest<'a>],
    /// The match of each descriptor, if it is a long request. Otherwise empty.
    pub(super) found: &'a [Match<'a>],
    pub(super) reading: &'a Reading<'a>,
    pub(super) mode: Mode,
    pub(super) started: Instant,
    pub(super) deadline: Instant,
    /// Receives the events of the decision. Usually None.
    pub(super) trace: Option<&'a dyn Trace>,
    /// Whether it was decided before, and a row had changed. [rw-2]
    pub(super) is_repeated: bool,
    /// Whether it is decided again if a row has changed. [rw-2]
    pub(super) can_repeat: bool,
}

impl<'a, 'q> Request<'a, 'q> {
    /// A request in atomic mode, without a trace, which is decided once.
    pub(super) fn new(
        in_force: &'a Arc<InForce>,
        domain: &'a Domain,
        query: &'a Query<'q>,
        reading: &'a Reading<'a>,
        started: Instant,
        budget: Duration,
    ) -> Self {
        Self {
            in_force,
            domain,
            query,
            sent: &query.descriptors,
            found: &[],
            reading,
            mode: Mode::Atomic,
            started,
            deadline: started + budget,
            trace: None,
            is_repeated: false,
            can_repeat: false,
        }
    }

    /// The same request with weighed hits, and the match of each descriptor. [mt-12]
    pub(super) const fn weighed<'w, 'r>(self, query: &'w Query<'r>, found: &'w [Match<'w>]) -> Request<'w, 'r>
    where
        'a: 'w,
        'q: 'r,
    {
        Request { query, found, ..self }
    }

    /// The counters of its policies, and its trace.
    pub(super) fn tallies(&self) -> impl Iterator<Item = &dyn Tally> {
        iter::once(&*self.in_force.tally).chain(self.trace.map(|trace| trace as &dyn Tally))
    }

    /// Reports what became of so many holds.
    pub(super) fn report_holds(&self, result: HoldResult, count: u64) {
        if count > 0 {
            self.tallies().for_each(|tally| tally.holds(self.domain, result, count));
        }
    }

    /// Reports that holds moved so many hits.
    pub(super) fn report_hold_hits(&self, kind: HoldHits, hits: u64) {
        if hits > 0 {
            self.tallies().for_each(|tally| tally.hold_hits(self.domain, kind, hits));
        }
    }
}

/// The observer of a runtime, and the trace of a request.
pub(super) fn observers<'o>(
    of_runtime: &'o dyn Observer,
    trace: Option<&'o dyn Trace>,
) -> impl Iterator<Item = &'o dyn Observer> {
    iter::once(of_runtime).chain(trace.map(|trace| trace as &dyn Observer))
}

/// The one reading of weir's clock that counts for a whole request, made when it is first needed. [tm-1]
pub(super) struct Reading<'a> {
    clock: &'a dyn Clock,
    recurring: &'a Recurring,
    now: OnceLock<Micros>,
}

impl<'a> Reading<'a> {
    pub(super) fn of(clock: &'a dyn Clock, recurring: &'a Recurring) -> Self {
        Self { clock, recurring, now: OnceLock::new() }
    }

    pub(super) fn now(&self) -> Micros {
        *self.now.get_or_init(|| self.clock.now())
    }

    /// Whether a limit applies to the request. [te-1]
    pub(super) fn phase(&self, limit: &Limit) -> Phase {
        let Some(term) = &limit.term else { return Phase::ALWAYS };
        let now = self.now();
        term.phase(now, |during| self.recurring.phase(during, now))
    }
}
