//! The one way in which engine, store and limiter tell what happened; telemetry implements it.

use std::sync::Arc;
use std::time::Duration;

use super::algorithm::CountedWindow;
use super::charge::{Charge, Mode, Operation};
use super::decision::Outcome;
use super::descriptor::{Entry, Hits};
use super::policy::{Domain, OnError, PolicySet, Rule};
use super::time::{Micros, Unit};

/// Receives events. The request path calls every method except `loaded`: a method must neither block nor allocate.
pub trait Observer: Send + Sync {
    /// Called before new policies are in force. The tally that this returns receives the events of their rules.
    fn loaded(&self, policies: &PolicySet) -> Arc<dyn Tally>;

    /// Receives whole requests. Usually empty; then nothing is copied.
    fn tap(&self) -> Option<&dyn Tap> {
        None
    }

    /// Which lane of a tally's counters the runtime of this observer adds to ([`Tally::decided`]).
    fn lane(&self) -> usize {
        0
    }

    /// A decision was made, or could not be. How long that took is found out only if it is asked for.
    fn decided(&self, result: DecisionResult, took: &dyn Fn() -> Duration) {
        let _ = (result, took);
    }

    /// A request could not be read, so that nothing is known of what it asks. It is also told as a decision that is
    /// [`DecisionResult::Invalid`].
    fn unreadable(&self) {}

    /// A request named a domain that no policy has, with so many descriptors. It is also told as a decision that is
    /// [`DecisionResult::UnknownDomain`].
    fn unknown_domain(&self, domain: &str, descriptors: usize) {
        let _ = (domain, descriptors);
    }

    /// The decision that [`Observer::decided`] was just called for belongs to a sampled trace: an exemplar for the metrics.
    fn sampled(&self, result: DecisionResult, took: Duration, ids: TraceIds) {
        let _ = (result, took, ids);
    }

    /// A store answered from elsewhere, or failed to, after so long; no time where it was not even asked. `error` names the
    /// failure in one word.
    fn store_called(&self, error: Option<&'static str>, took: Option<Duration>) {
        let _ = (error, took);
    }

    /// The store of a descriptor gave no answer, for the reason that `kind` names in one word, and the policies say what
    /// becomes of it. [st-4]
    fn fell_back(&self, action: OnError, kind: &'static str) {
        let _ = (action, kind);
    }

    /// A request passed only because the setting `shadow_mode` lets all of them pass.
    fn shadowed(&self) {}

    /// A request asked more of a limit than it had. [`Tally::charged`] receives it too.
    fn over(&self, charged: &Charged<'_>) {
        let _ = charged;
    }

    /// Charges of a request that was denied elsewhere were taken back, or that could not be confirmed in time. [st-3]
    fn undone(&self, confirmed: bool) {
        let _ = confirmed;
    }

    /// A call that takes hits ahead for a lease has ended. [ls-1]
    fn lease_asked(&self, result: LeaseResult) {
        let _ = result;
    }

    /// So many hits of a lease were charged, or came to this end. [ls-6]
    fn lease_hits(&self, kind: LeaseHits, hits: Hits) {
        let _ = (kind, hits);
    }

    /// The memory store dropped a state that still mattered, with so many hits in it.
    fn evicted(&self, hits_lost: Hits) {
        let _ = hits_lost;
    }
}

/// Counts what happens to the rules of one policy set, so that an answer is never counted to another load's rules.
pub trait Tally: Send + Sync {
    /// A limit was charged, or denied without being asked.
    fn charged(&self, charged: &Charged<'_>) {
        let _ = charged;
    }

    /// The use of a limit has crossed one of its shares. [al-1]
    fn crossed(&self, crossed: &Crossed<'_>) {
        let _ = crossed;
    }

    /// A request for a domain of this policy set was decided, or its store failed. `unmatched` of its descriptors met no
    /// rule. [`Observer::decided`] is called too. `lane` is [`Observer::lane`]: cores that add to different
    /// lanes share no cache line.
    fn decided(&self, domain: &Domain, lane: usize, result: DecisionResult, unmatched: u32) {
        let _ = (domain, lane, result, unmatched);
    }
}

/// Receives requests with their answers, while a tap is open.
pub trait Tap: Send + Sync {
    /// A request was answered, or its store failed. It must not block.
    fn answered(&self, request: &dyn AnsweredRequest);
}

/// A request with its answer. Each part is gathered only when it is asked for.
pub trait AnsweredRequest {
    /// The domain.
    fn domain(&self) -> &str;

    /// How its decision ended.
    fn result(&self) -> DecisionResult;

    /// How many descriptors it has. The other methods take the position of one.
    fn descriptors(&self) -> usize;

    /// The entries of a descriptor.
    fn entries(&self, at: usize) -> &[Entry<'_>];

    /// The rule that it met.
    fn rule(&self, at: usize) -> Option<&Rule>;

    /// The rest that is known of it.
    fn descriptor(&self, at: usize) -> AnsweredDescriptor;
}

/// What was asked of one descriptor, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnsweredDescriptor {
    /// What was asked.
    pub operation: Operation,
    /// The limit that came with the request.
    pub limit: Option<(Hits, Unit)>,
    /// None where no limit was met, and where the store failed.
    pub verdict: Option<DescriptorVerdict>,
    /// The most hits that would be admitted after the decision.
    pub remaining: Option<Hits>,
}

/// What came of one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorVerdict {
    /// Within its limits.
    Ok,
    /// Over a limit that denies.
    Over,
    /// Over a limit, which denies nothing in shadow mode.
    Shadow,
}

impl DescriptorVerdict {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Over => "over",
            Self::Shadow => "shadow",
        }
    }
}

/// The ids of a span, as W3C Trace Context has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceIds {
    /// The trace, shared by all of its spans.
    pub trace: u128,
    /// The span.
    pub span: u64,
}

/// Hears how one decision is made that belongs to a sampled trace. Decisions without one have none and pay nothing.
pub trait Trace: Send + Sync {
    /// The trace and the span of the decision.
    fn ids(&self) -> TraceIds;

    /// A descriptor matched this rule, or no rule.
    fn matched(&self, entries: &[Entry<'_>], rule: Option<&Rule>);

    /// A limit was charged, or denied without being asked.
    fn charged(&self, charged: &Charged<'_>);

    /// A store ended one call.
    fn store_called(&self, call: StoreCall);

    /// The store of a descriptor gave no answer, and the policies decide what follows. [st-4]
    fn fell_back(&self, action: OnError, kind: &'static str);

    /// The decision was made, or could not be.
    fn decided(&self, result: DecisionResult);
}

/// One call to a store that just ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCall {
    /// The store's name in settings.
    pub store: &'static str,
    /// Where the store is, `HOST:PORT` or a path, where that is one place outside of this process.
    pub place: Option<String>,
    /// The charges of the call.
    pub charges: usize,
    /// The failure in one word; none where the store answered.
    pub error: Option<&'static str>,
    /// How long the call took, the wait for its turn included.
    pub took: Duration,
    /// Whether the store is in this process, so that the call was no round trip.
    pub is_immediate: bool,
}

/// One limit's part of a decision, for counting.
#[derive(Clone, Copy, Debug)]
pub struct Charged<'a> {
    /// Whose limit it is.
    pub limit: LimitOf<'a>,
    /// The descriptor that met it, as the request has it.
    pub entries: &'a [Entry<'a>],
    /// How the request is charged.
    pub mode: Mode,
    /// What was asked.
    pub charge: &'a Charge<'a>,
    /// What came of it.
    pub outcome: &'a Outcome,
    /// Who gave the answer.
    pub by: AnsweredBy,
}

/// A share of a limit that its use has crossed.
#[derive(Clone, Copy, Debug)]
pub struct Crossed<'a> {
    /// Whose limit it is.
    pub limit: LimitOf<'a>,
    /// The charge that crossed it.
    pub charge: &'a Charge<'a>,
    /// In percent of the limit.
    pub share: u8,
    /// The window, with the hits after the decision.
    pub window: CountedWindow,
    /// The clock of the store that made the decision.
    pub at: Micros,
}

/// Whose limit was charged.
#[derive(Clone, Copy, Debug)]
pub enum LimitOf<'a> {
    /// A rule's, by its position in the rule.
    Rule(&'a Rule, usize),
    /// One that came with the request.
    Request {
        /// The domain of the request, which is one of the policies'.
        domain: &'a str,
    },
}

/// Who decided about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// A store.
    Store,
    /// The cache of denials, which had a denial of this limit.
    Cache,
    /// A lease, whose hits the store has charged before. [ls-5]
    Lease,
}

/// How a call ended that takes hits ahead for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseResult {
    /// The hits were charged.
    Taken,
    /// They did not fit.
    Denied,
    /// The store gave no answer, and may have charged them.
    Failed,
}

impl LeaseResult {
    /// Their names in metrics, in their order.
    pub const NAMES: [&'static str; 3] = ["taken", "denied", "failed"];
}

/// What came of the hits of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseHits {
    /// They were charged ahead.
    Leased,
    /// Requests were admitted by them.
    Used,
    /// They were left at the end, and the store took them back.
    GivenBack,
    /// They were left when their window ended, with which they ended.
    Ended,
    /// They were left, and the store did not confirm that it took them back: they may count until the reset.
    Lost,
}

impl LeaseHits {
    /// Their names in metrics, in their order.
    pub const NAMES: [&'static str; 5] = ["leased", "used", "given_back", "ended", "lost"];
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
    /// No policies were loaded yet.
    NoPolicies,
    /// The store did not answer in time or at all.
    StoreFailed,
}

impl DecisionResult {
    /// The word for it in metrics and traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::OverLimit => "over_limit",
            Self::Invalid => "invalid",
            Self::UnknownDomain => "unknown_domain",
            Self::NoPolicies => "no_policies",
            Self::StoreFailed => "store_failed",
        }
    }
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn loaded(&self, _policies: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(Self)
    }
}

impl Tally for Silent {}
