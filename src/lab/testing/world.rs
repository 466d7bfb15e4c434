//! The environment of a case: a limiter with its store, policies and clock.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Runtime;
use weir_engine::observer::{Charged, Observer, Tally};
use weir_engine::{Micros, PolicySet};
use weir_limiter::rows::RowRefused;
use weir_limiter::{Answer, HeldCharge, Query, Undecided};
use weir_policies::GivenRows;
use weir_policies::test_file::Verdict;
use weir_rls::proto::RateLimitRequest;
use weir_settings::Settings;
use weir_store::StoreError;

use super::compare::verdict;
use super::coverage::Load;
use crate::world::{self, RedisPart};

/// The verdict of limits on trial about the last request, which is not in its answer.
#[derive(Clone, Default)]
struct Trials(Arc<Trial>);

#[derive(Default)]
struct Trial {
    is_met: AtomicBool,
    is_over: AtomicBool,
}

impl Trials {
    /// Takes the verdict about the last request. None if it met no limit on trial.
    fn take(&self) -> Option<Verdict> {
        let is_over = self.0.is_over.swap(false, Ordering::Relaxed);
        self.0.is_met.swap(false, Ordering::Relaxed).then(|| verdict(is_over))
    }
}

impl Observer for Trials {
    fn loaded(&self, _: &PolicySet) -> Arc<dyn Tally> {
        self.0.clone()
    }

    /// Not called for settles, which are never denied. [hd-5]
    fn over(&self, charged: &Charged<'_>) {
        self.0.is_over.fetch_or(charged.charge.limit.shadow, Ordering::Relaxed);
    }
}

impl Tally for Trial {
    fn charged(&self, charged: &Charged<'_>) {
        self.is_met.fetch_or(charged.charge.limit.shadow, Ordering::Relaxed);
    }
}

pub(super) struct World<'r> {
    runtime: &'r Runtime,
    pub(super) load: Rc<Load>,
    trials: Trials,
    world: world::World,
    /// The rows that were set, in order.
    rows: Vec<Arc<GivenRows>>,
}

pub(super) enum RowsNotSet {
    /// One does not fit the policies in force. Has its place and why.
    Misfit(String),
    Store(StoreError),
}

impl<'r> World<'r> {
    /// A limiter with these policies, in Redis if one is given. The store is empty.
    pub(super) fn new(
        runtime: &'r Runtime,
        redis: Option<RedisPart>,
        load: Rc<Load>,
        settings: &Arc<Settings>,
    ) -> Self {
        let trials = Trials::default();
        let world = world::World::in_store(load.policies.clone(), settings, Arc::new(trials.clone()), redis);
        Self { runtime, load, trials, world, rows: Vec::new() }
    }

    /// Moves the clock. Requests that end until then settle at their time.
    pub(super) fn go_on(&self, now: Micros) -> Result<(), StoreError> {
        let settled = self.world.go_on(now, |_| {});
        self.trials.take();
        settled
    }

    /// Notes that an admitted request ends at this time.
    pub(super) fn begin(&self, ends: Micros, message: &RateLimitRequest, used: Option<u32>, holds: Vec<HeldCharge>) {
        self.world.begin(ends, message, used, holds);
    }

    /// Whether a domain has holds.
    pub(super) fn has_holds(&self, domain: &str) -> bool {
        self.world.limiter().has_holds(domain)
    }

    /// Decides one request. Also returns the verdict of limits on trial, if the request meets any.
    pub(super) fn decide(&self, query: &Query<'_>) -> Result<(Answer, Option<Verdict>), Undecided> {
        let answer = self.world.decide(query);
        let trial = self.trials.take();
        answer.map(|answer| (answer, trial))
    }

    /// Sets rows. Other rows stay.
    /// Fails if one does not fit the policies, or Redis does not answer.
    pub(super) fn set_rows(&mut self, given: &Arc<GivenRows>) -> Result<(), RowsNotSet> {
        self.write_rows(given)?;
        self.rows.push(given.clone());
        Ok(())
    }

    fn write_rows(&self, given: &GivenRows) -> Result<(), RowsNotSet> {
        let rows = given.rows.iter().map(|line| line.row.clone()).collect();
        let written = self.runtime.block_on(self.world.rows().write(rows));
        let mut misfit = None;
        for (line, written) in given.rows.iter().zip(written) {
            match written {
                Ok(_) => {}
                Err(RowRefused::Store(error) | RowRefused::Unread(error)) => return Err(RowsNotSet::Store(error)),
                Err(refused) => drop(misfit.get_or_insert_with(|| given.problem(line, refused.field(), &refused))),
            }
        }
        misfit.map_or(Ok(()), |misfit| Err(RowsNotSet::Misfit(misfit)))
    }

    /// Replaces the policies and keeps all states.
    pub(super) fn swap(&mut self, load: Rc<Load>) {
        self.world.swap(load.policies.clone());
        self.load = load;
    }

    /// Removes all states. Rows stay, as those of files do.
    /// Fails if Redis does not answer.
    pub(super) fn forget(&mut self) -> Result<(), StoreError> {
        self.clear()?;
        for rows in &self.rows {
            // Rows that do not fit the policies any more have no effect.
            if let Err(RowsNotSet::Store(error)) = self.write_rows(rows) {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes all that the store has.
    /// Fails if Redis does not answer.
    pub(super) fn clear(&mut self) -> Result<(), StoreError> {
        self.world.clear()
    }
}
