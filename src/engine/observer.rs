//! The interface by which engine, store and limiter report events. Telemetry implements it.

use std::sync::Arc;
use std::time::Duration;

use super::algorithm::CountedWindow;
use super::charge::{Charge, Mode, Operation};
use super::decision::Outcome;
use super::descriptor::{Entry, Hits};
use super::policy::{Domain, OnError, PolicySet, Rule};
use super::rows::RowTerms;
use super::time::{Micros, Unit};

/// Receives events. The request path calls every method except `loaded`: a method must neither block nor allocate.
pub trait Observer: Send + Sync {
    /// Called before new policies come into force. Returns the tally for the events of their rules.
    fn loaded(&self, policies: &PolicySet) -> Arc<dyn Tally>;

    /// Receives whole requests. Usually empty; then nothing is copied.
    fn tap(&self) -> Option<&dyn Tap> {
        None
    }

    /// The lane of a tally's counters to which the runtime of this observer adds ([`Tally::decided`]).
    fn lane(&self) -> usize {
        0
    }

    /// A decision was made or failed. `took` is computed only if it is called.
    fn decided(&self, result: DecisionResult, took: &dyn Fn() -> Duration) {
        let _ = (result, took);
    }

    /// A request could not be read, so its content is unknown. [`Observer::decided`] is called too, with
    /// [`DecisionResult::Invalid`].
    fn unreadable(&self) {}

    /// A request named a domain that no policy has, with this many descriptors. [`Observer::decided`] is called too,
    /// with [`DecisionResult::UnknownDomain`].
    fn unknown_domain(&self, domain: &str, descriptors: usize) {
        let _ = (domain, descriptors);
    }

    /// The decision of the last call of [`Observer::decided`] belongs to a sampled trace: an exemplar for the metrics.
    fn sampled(&self, result: DecisionResult, took: Duration, ids: TraceIds) {
        let _ = (result, took, ids);
    }

    /// A store outside of this process answered or failed after this time; without a time it was not asked. `error` is
    /// the failure in one word.
    fn store_called(&self, error: Option<&'static str>, took: Option<Duration>) {
        let _ = (error, took);
    }

    /// The store of a descriptor gave no answer, and `on_error` decides. `kind` is the reason in one word. [st-4]
    fn fell_back(&self, action: OnError, kind: &'static str) {
        let _ = (action, kind);
    }

    /// A request passed only because of the setting `shadow_mode`.
    fn shadowed(&self) {}

    /// A request asked for more hits than a limit had left. [`Tally::charged`] is called too.
    fn over(&self, charged: &Charged<'_>) {
        let _ = charged;
    }

    /// Charges were taken back because another part denied the request, or that could not be confirmed in time. [st-3]
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

    /// This became of so many holds. [hd-8]
    fn holds(&self, result: HoldResult, count: u64) {
        let _ = (result, count);
    }

    /// Holds moved so many hits. [hd-8]
    fn hold_hits(&self, kind: HoldHits, hits: u64) {
        let _ = (kind, hits);
    }

    /// This happened to so many rows. [rw-7]
    fn rows(&self, event: RowEvent, count: u64) {
        let _ = (event, count);
    }

    /// The memory store dropped a state that still counted, with this many hits.
    fn evicted(&self, hits_lost: Hits) {
        let _ = hits_lost;
    }
}

/// Counts the events of the rules of one policy set, so no event is counted for the rules of another load.
pub trait Tally: Send + Sync {
    /// A limit was charged, or the cache of denials denied for it.
    fn charged(&self, charged: &Charged<'_>) {
        let _ = charged;
    }

    /// The use of a limit has crossed one of its shares. [al-1]
    fn crossed(&self, crossed: &Crossed<'_>) {
        let _ = crossed;
    }

    /// A request for a domain of this policy set was decided, or its store failed. `unmatched` of its descriptors met
    /// no rule. [`Observer::decided`] is called too. `lane` is [`Observer::lane`]: cores that add to different lanes
    /// share no cache line.
    fn decided(&self, domain: &Domain, lane: usize, result: DecisionResult, unmatched: u32) {
        let _ = (domain, lane, result, unmatched);
    }
}

/// Receives requests with their answers, while a tap is open.
pub trait Tap: Send + Sync {
    /// A request was answered, or its store failed. It must not block.
    fn answered(&self, request: &dyn AnsweredRequest);
}

/// A request with its answer. Each method computes its part only when it is called.
pub trait AnsweredRequest {
    /// The domain.
    fn domain(&self) -> &str;

    /// How its decision ended.
    fn result(&self) -> DecisionResult;

    /// How many descriptors it has. The other methods take the position of one.
    fn descriptors(&self) -> usize;

    /// The entries of a descriptor.
    fn entries(&self, at: usize) -> &[Entry<'_>];

    /// The rule that a descriptor met.
    fn rule(&self, at: usize) -> Option<&Rule>;

    /// The other facts about a descriptor.
    fn descriptor(&self, at: usize) -> AnsweredDescriptor;

    /// The terms of the row that its limits came from; none for the default plan, and for rules without rows.
    fn row(&self, at: usize) -> Option<&RowTerms> {
        let _ = at;
        None
    }
}

/// The operation on one descriptor, and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnsweredDescriptor {
    /// The operation.
    pub operation: Operation,
    /// The limit of the request.
    pub limit: Option<(Hits, Unit)>,
    /// None if no limit was met, and if the store failed.
    pub verdict: Option<DescriptorVerdict>,
    /// The most hits that would be admitted after the decision.
    pub remaining: Option<Hits>,
    /// It settles holds; its hits are what was used. [hd-5]
    pub settles: bool,
    /// The hits that its holds have charged.
    pub held: Option<Hits>,
    /// The hits that its settle has given back.
    pub given_back: Option<Hits>,
}

/// The result for one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorVerdict {
    /// Within its limits.
    Ok,
    /// Over a limit that denies.
    Over,
    /// Over a limit that denies nothing, because it is in shadow mode.
    Shadow,
}

impl DescriptorVerdict {
    /// Its name.
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

/// Receives the events of one decision that belongs to a sampled trace. Other decisions have no such object and cost
/// nothing more.
pub trait Trace: Send + Sync {
    /// The trace and the span of the decision.
    fn ids(&self) -> TraceIds;

    /// A descriptor matched this rule, or no rule.
    fn matched(&self, entries: &[Entry<'_>], rule: Option<&Rule>);

    /// The limits of a descriptor came from a row with these terms.
    fn row(&self, terms: &RowTerms) {
        let _ = terms;
    }

    /// A limit was charged, or the cache of denials denied for it.
    fn charged(&self, charged: &Charged<'_>);

    /// A call to a store ended.
    fn store_called(&self, call: StoreCall);

    /// The store of a descriptor gave no answer, and `on_error` decides. [st-4]
    fn fell_back(&self, action: OnError, kind: &'static str);

    /// This became of so many holds of the request. [hd-8]
    fn holds(&self, result: HoldResult, count: u64) {
        let _ = (result, count);
    }

    /// Its holds moved so many hits. [hd-8]
    fn hold_hits(&self, kind: HoldHits, hits: u64) {
        let _ = (kind, hits);
    }

    /// The decision was made or failed.
    fn decided(&self, result: DecisionResult);
}

/// One call to a store that just ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCall {
    /// The store's name in settings.
    pub store: &'static str,
    /// The address of the store, `HOST:PORT` or a path, if it is one place outside of this process.
    pub place: Option<String>,
    /// The charges of the call.
    pub charges: usize,
    /// The failure in one word; none if the store answered.
    pub error: Option<&'static str>,
    /// The time of the call, with its wait in the queue.
    pub took: Duration,
    /// Whether the store is in this process, so the call was no round trip.
    pub is_immediate: bool,
}

/// One limit's part of a decision, for counts.
#[derive(Clone, Copy, Debug)]
pub struct Charged<'a> {
    /// The owner of the limit.
    pub limit: LimitOf<'a>,
    /// The descriptor that met it, as the request has it.
    pub entries: &'a [Entry<'a>],
    /// How the request is charged.
    pub mode: Mode,
    /// The operation.
    pub charge: &'a Charge<'a>,
    /// The result.
    pub outcome: &'a Outcome,
    /// Who gave the answer.
    pub by: AnsweredBy,
}

/// A share of a limit that a decision crossed.
#[derive(Clone, Copy, Debug)]
pub struct Crossed<'a> {
    /// The owner of the limit.
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

/// The owner of a limit.
#[derive(Clone, Copy, Debug)]
pub enum LimitOf<'a> {
    /// A rule, with the limit's position in it.
    Rule(&'a Rule, usize),
    /// The request itself.
    Request {
        /// The domain of the request; a policy has it.
        domain: &'a str,
    },
}

/// Who decided about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// A store.
    Store,
    /// The cache of denials, which has a denial of this limit.
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

/// The result of a decision, for counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecisionResult {
    /// The request may pass.
    Ok,
    /// The request is over a limit.
    OverLimit,
    /// The request was invalid.
    Invalid,
    /// No policy has the domain.
    UnknownDomain,
    /// No policies were loaded yet.
    NoPolicies,
    /// The store did not answer, or not in time.
    StoreFailed,
}

impl DecisionResult {
    /// Its name in metrics and traces.
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

/// What became of holds, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldResult {
    /// An admitted request opened a hold.
    Opened,
    /// A settle has charged what was used in its place.
    Settled,
    /// A settle came without a receipt.
    Reported,
    /// A settle could not settle a hold, or found it nowhere.
    Lost,
}

impl HoldResult {
    /// Their words in metrics, in the order of the variants.
    pub const NAMES: [&'static str; 4] = ["opened", "settled", "reported", "lost"];
}

/// The hits of holds, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldHits {
    /// Charged when holds were opened.
    Held,
    /// Given back by settles.
    GivenBack,
    /// Charged by settles beyond what was held.
    Excess,
}

impl HoldHits {
    /// Their words in metrics, in the order of the variants.
    pub const NAMES: [&'static str; 3] = ["held", "given_back", "excess"];
}

/// What happened to rows, for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowEvent {
    /// Read before a decision, because this process did not know it.
    Read,
    /// A decision was made again, because its row had changed.
    AskedAgain,
    /// The default plan counted in a decision, because no policy has the plan or the limits of the row.
    Unfit,
    /// A value at the key of a row was none of weir's.
    Foreign,
    /// Written by this process.
    Written,
    /// Removed by this process.
    Removed,
}

impl RowEvent {
    /// Their words in metrics, in the order of the variants.
    pub const NAMES: [&'static str; 6] = ["read", "asked_again", "unfit", "foreign", "written", "removed"];
}

/// Ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn loaded(&self, _policies: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(Self)
    }
}

impl Tally for Silent {}
