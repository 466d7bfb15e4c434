//! The one way in which engine, store and limiter tell what happened; telemetry implements it.

use std::time::Duration;

use super::decision::Outcome;
use super::policy::{PolicySet, Rule};
use super::{Charge, Hits};

/// Hears what happens. Every method is called on the request path: it must neither block nor allocate much.
pub trait Observer: Send + Sync {
    /// A rule was charged, on behalf of one descriptor.
    fn charged(&self, rule: &Rule, charge: &Charge<'_>, outcome: &Outcome) {
        let _ = (rule, charge, outcome);
    }

    /// A decision was made, or failed, after so long.
    fn decided(&self, result: DecisionResult, took: Duration) {
        let _ = (result, took);
    }

    /// A store answered, or failed to, after so long. `kind` names the failure in one lower-case word.
    fn store_called(&self, error: Option<&'static str>, took: Duration) {
        let _ = (error, took);
    }

    /// The memory store dropped a state that still mattered, with so many hits in it.
    fn evicted(&self, hits_lost: Hits) {
        let _ = hits_lost;
    }

    /// New policies are in force.
    fn loaded(&self, policies: &PolicySet) {
        let _ = policies;
    }
}

/// How a decision ended, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionResult {
    /// The request may pass.
    Ok,
    /// The request is over a limit.
    OverLimit,
    /// The request was not one that can be decided.
    Invalid,
    /// The domain is not one of the policies'.
    UnknownDomain,
    /// The store did not answer in time or at all.
    StoreFailed,
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {}
