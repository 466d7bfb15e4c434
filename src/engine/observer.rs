//! The interface by which engine, store and limiter report events. Telemetry implements it.

use std::sync::Arc;
use std::time::Duration;

use super::algorithm::CountedWindow;
use super::callers::Refusal;
use super::charge::{Charge, Group, Mode, Operation};
use super::decision::Outcome;
use super::descriptor::{Count, Entry, Hits};
use super::policy::{Domain, OnError, PolicySet, Rule};
use super::request_limit::UnusedLimit;
use super::rows::RowContent;
use super::time::{Micros, Window};

/// Receives events. The request path calls every method except `loaded`: a method must neither block nor allocate.
pub trait Observer: Send + Sync {
    /// Called before new policies come into force. Returns the tally for the events of their rules.
    fn loaded(&self, policies: &PolicySet) -> Arc<dyn Tally>;

    /// Receives whole requests. Usually empty; then nothing is copied.
    fn tap(&self) -> Option<&dyn Tap> {
        None
    }

    /// The lane of a tally's counters that this observer's runtime adds to ([`Tally::decided`]).
    fn lane(&self) -> usize {
        0
    }

    /// A decision was made or failed. The observer calls `took` only if it needs the duration. If the decision belongs to a
    /// sampled trace, `trace` is an exemplar for the metrics.
    fn decided(&self, _result: DecisionResult, _took: &dyn Fn() -> Duration, _trace: Option<TraceIds>) {}

    /// A request could not be read, so its content is unknown. [`Observer::decided`] is called too, with
    /// [`DecisionResult::Invalid`].
    fn unreadable(&self) {}

    /// A caller may not send a request. [`Observer::decided`] is called too, with [`DecisionResult::NotAllowed`]. [cr-5]
    fn not_allowed(&self, _refused: &RefusedCaller<'_>) {}

    /// A request named a domain that no policy has, with this many descriptors. [`Observer::decided`] is called too,
    /// with [`DecisionResult::UnknownDomain`].
    fn unknown_domain(&self, _domain: &str, _descriptors: usize) {}

    /// A store outside of this process answered or failed after this time. No time: the store was not called. `error`
    /// is the failure in one word.
    fn store_called(&self, _error: Option<&'static str>, _took: Option<Duration>) {}

    /// The store of a descriptor gave no answer, and `on_error` decides. `kind` is the reason in one word. [st-4]
    fn fell_back(&self, _action: OnError, _kind: &'static str) {}

    /// A request passed only because of the setting `shadow_mode`.
    fn shadowed(&self) {}

    /// A request asked for more hits than a limit had left. [`Tally::charged`] is called too.
    fn over(&self, _charged: &Charged<'_>) {}

    /// Charges were taken back because another part denied the request, or that could not be confirmed in time. [st-3]
    fn undone(&self, _confirmed: bool) {}

    /// The answers of this many charges that can have crossed a share were lost: their crossings are not reported. [al-4]
    fn alerts_lost(&self, _charges: u64) {}

    /// A call that takes hits ahead for a lease has ended. [ls-1]
    fn lease_asked(&self, _result: LeaseResult) {}

    /// This many hits of a lease were charged, or ended in this way. [ls-6]
    fn lease_hits(&self, _kind: LeaseHits, _hits: Hits) {}

    /// This event happened to this many rows. [rw-7]
    fn rows(&self, _event: RowEvent, _count: u64) {}

    /// weir did not write the value at this key of a row. [rw-3]
    fn foreign_row(&self, _key: &str) {}

    /// A limit of a request has a field with this number, which weir does not know and ignores.
    fn unknown_limit_field(&self, _number: u32) {}

    /// A limit of a request had no effect on the limits of a rule. [mt-11]
    fn unused_limit(&self, _why: UnusedLimit) {}

    /// The memory store dropped a state that still counted, with this many hits.
    fn evicted(&self, _hits_lost: Count) {}
}

/// Counts the events of the rules of one policy set, so no event is counted for the rules of another load.
pub trait Tally: Send + Sync {
    /// A limit was charged, or the cache of denials denied for it.
    fn charged(&self, _charged: &Charged<'_>) {}

    /// The use of a limit has crossed one of its shares. [al-1]
    fn crossed(&self, _crossed: &Crossed<'_>) {}

    /// A request for a domain of this policy set was decided, or its store failed. `unmatched` of its descriptors met
    /// no rule. [`Observer::decided`] is called too. `lane` is [`Observer::lane`]: cores that add to different lanes
    /// share no cache line.
    fn decided(&self, _domain: &Domain, _lane: usize, _result: DecisionResult, _unmatched: u32) {}

    /// The hits of this many descriptors of a request were weighed by the default factor. [mt-12]
    fn weighed_by_default(&self, _domain: &Domain, _descriptors: u64) {}

    /// This many holds of a domain of this policy set had this result. [hd-8]
    fn holds(&self, _domain: &Domain, _result: HoldResult, _count: u64) {}

    /// Holds of the domain charged or gave back this many hits. [hd-8]
    fn hold_hits(&self, _domain: &Domain, _kind: HoldHits, _hits: u64) {}
}

/// Receives requests with their answers, while a tap is open.
pub trait Tap: Send + Sync {
    /// A request was answered, or its store failed. It must not block.
    fn answered(&self, request: &dyn AnsweredRequest);
}

/// A request with its answer. Each method computes its part only when it is called.
pub trait AnsweredRequest {
    fn domain(&self) -> &str;

    fn result(&self) -> DecisionResult;

    /// The name of its caller, if callers have rights.
    fn caller(&self) -> Option<&str> {
        None
    }

    /// How many descriptors it has.
    fn descriptors(&self) -> usize;

    /// The entries of a descriptor.
    fn entries(&self, group: Group) -> &[Entry<'_>];

    fn rule(&self, group: Group) -> Option<&Rule>;

    fn descriptor(&self, group: Group) -> AnsweredDescriptor;

    /// The content of the row that set the limits. None for the default plan, and for rules without rows.
    fn row(&self, _group: Group) -> Option<&RowContent> {
        None
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnsweredDescriptor {
    pub operation: Operation,
    /// The limit that the request sent with the descriptor.
    pub limit: Option<(Hits, Window)>,
    /// None if no limit applied, or if the store failed.
    pub verdict: Option<DescriptorVerdict>,
    /// The most hits that would be admitted after the decision.
    pub remaining: Option<Count>,
    /// It settles holds; its hits are what was used. [hd-5]
    pub settles: bool,
    /// The hits that its holds have charged.
    pub held: Option<Count>,
    /// The hits that its settle has given back.
    pub given_back: Option<Count>,
    /// The factor of its hits, if its rule weighs them. [mt-12]
    pub factor: Option<Hits>,
}

crate::named! {
    pub enum DescriptorVerdict {
        Ok = "ok",
        /// Over a limit that denies.
        Over = "over",
        /// Over a limit in shadow mode, which does not deny.
        Shadow = "shadow",
    }
}

/// The ids of a span, as W3C Trace Context has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceIds {
    /// The trace, shared by all of its spans.
    pub trace: u128,
    pub span: u64,
}

/// One more observer, tally and tap, of one decision that belongs to a sampled trace. Other decisions have no trace object
/// and no extra cost.
pub trait Trace: Observer + Tally + Tap {
    fn ids(&self) -> TraceIds;

    /// One call of the decision has ended. Unlike [`Observer::store_called`], also a call that is sent again, and one to a
    /// store in this process.
    fn call_ended(&self, call: StoreCall);
}

/// One call to a store that just ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreCall {
    /// The store's name in settings.
    pub store: &'static str,
    /// The address of the store, `HOST:PORT` or a path, if it is one place outside of this process.
    pub place: Option<String>,
    pub charges: usize,
    /// The failure in one word; none if the store answered.
    pub error: Option<&'static str>,
    /// The duration of the call, including its wait in the queue.
    pub took: Duration,
    /// Whether the store is in this process. Then the call was no round trip.
    pub is_immediate: bool,
}

/// A request that its caller may not send.
#[derive(Clone, Copy, Debug)]
pub struct RefusedCaller<'a> {
    /// None if no caller is known by the certificate or the listener.
    pub caller: Option<&'a str>,
    pub refusal: Refusal,
    /// The domain of the request.
    pub domain: &'a str,
    pub listener: &'a str,
    /// The names of the client's certificate.
    pub names: &'a [Box<str>],
}

/// One limit's part of a decision, for counting.
#[derive(Clone, Copy, Debug)]
pub struct Charged<'a> {
    pub limit: LimitOf<'a>,
    /// The descriptor that met the limit, as in the request.
    pub entries: &'a [Entry<'a>],
    /// The row that the limit's numbers are from; none for the default plan and rules without rows.
    pub row: Option<&'a Arc<RowContent>>,
    pub mode: Mode,
    pub charge: &'a Charge<'a>,
    pub outcome: &'a Outcome,
    pub by: AnsweredBy,
}

/// A share of a limit that a decision crossed.
#[derive(Clone, Copy, Debug)]
pub struct Crossed<'a> {
    pub limit: LimitOf<'a>,
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
    Request {
        /// The domain of the request; a policy defines it.
        domain: &'a str,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    Store,
    /// The cache of denials. It has a known denial of this limit.
    Cache,
    /// A lease, whose hits the store charged before. [ls-5]
    Lease,
}

crate::named! {
    /// The result of a call that charges hits ahead for a lease.
    pub enum LeaseResult {
        /// The hits were charged.
        Taken = "taken",
        Denied = "denied",
        /// The store gave no answer, and may have charged them.
        Failed = "failed",
    }
}

crate::named! {
    /// What happened to the hits of leases.
    pub enum LeaseHits {
        /// They were charged ahead.
        Leased = "leased",
        /// Requests were admitted from them.
        Used = "used",
        /// They were unused when the lease ended, and the store took them back.
        GivenBack = "given_back",
        /// They were unused when their window ended, and expired with it.
        Ended = "ended",
        /// They were unused, and the store did not confirm that it took them back. They may count until the reset.
        Lost = "lost",
    }
}

crate::named! {
    /// The result of a decision, for counting.
    pub enum DecisionResult {
        Ok = "ok",
        OverLimit = "over_limit",
        Invalid = "invalid",
        UnknownDomain = "unknown_domain",
        /// No policies were loaded yet.
        NoPolicies = "no_policies",
        /// Its caller may not send it.
        NotAllowed = "not_allowed",
        /// The store did not answer, or not in time.
        StoreFailed = "store_failed",
    }
}

crate::named! {
    /// What happened to holds, for counting.
    pub enum HoldResult {
        /// An admitted request opened a hold.
        Opened = "opened",
        /// A settle replaced the estimate with the actual usage.
        Settled = "settled",
        /// A settle came after the window of the hold had ended: nothing was given back.
        Late = "late",
        /// A settle found fewer hits than it had to give back: the hold was settled before, or its state was lost.
        Again = "again",
        /// A settle had no receipt.
        Reported = "reported",
        /// A settle could not settle a hold, or did not find it.
        Lost = "lost",
    }
}

crate::named! {
    /// The hits of holds, for counting.
    pub enum HoldHits {
        /// Charged when holds were opened.
        Held = "held",
        /// Taken out of states by settles.
        GivenBack = "given_back",
        /// Charged by settles in excess of the estimate.
        Excess = "excess",
    }
}

crate::named! {
    /// What happened to rows, for counting.
    pub enum RowEvent {
        /// Read before a decision, because this process had not read it yet.
        Read = "read",
        /// A decision was repeated, because its row had changed.
        AskedAgain = "asked_again",
        /// A decision used the default plan, because no policy has the plan or the limits of the row.
        Unfit = "unfit",
        /// A value at the key of a row was not written by weir.
        Foreign = "foreign",
        /// Written by this process.
        Written = "written",
        /// Removed by this process.
        Removed = "removed",
    }
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
