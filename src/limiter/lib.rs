//! The use case: policies and a store make a decision about one request.
//!
//! decide.rs is the path of a request: match, plan, filters, execute, answer. Each file uses only those after it:
//!
//! - what reads a decided plan: counting (count.rs), taps (tapped.rs), and the answer (answer.rs);
//! - execute.rs: decides a plan by its stores, in parts if it has several, and by `on_error` if a store gives no answer;
//! - holds.rs: opening and settling holds; ahead.rs: charging hits ahead for leases;
//! - call.rs: one call to one store; undo.rs: taking charges back; stores.rs: the stores;
//! - the filters, which answer a plan without a store: leases (leases.rs), known denials (deny_cache.rs);
//! - plan.rs: the charges of a request on their way; matched.rs: the rules and rows that it matches; weighed.rs: weighed hits; request.rs.
//!
//! Before the path: what the caller may send (callers.rs). Beside it: the policies in force (policies.rs), overrides (overrides.rs), rows (rows.rs), calendar windows
//! (calendar.rs), terms that recur (recurring.rs), callers that have gone (finishing.rs), reading and resetting states (inspect.rs, states.rs). Not here: the
//! wire (rls), and what a decision is (engine).

mod ahead;
mod answer;
mod calendar;
mod call;
pub mod callers;
mod count;
mod decide;
pub mod deny_cache;
mod execute;
pub mod finishing;
mod holds;
mod inspect;
pub mod leases;
mod limits_in_force;
mod long;
mod matched;
mod messages;
pub mod overrides;
mod plan;
mod policies;
mod recurring;
mod request;
pub mod rows;
pub mod states;
mod stores;
mod tapped;
mod undo;
mod weighed;

use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use weir_engine::observer::{Observer, Trace};
use weir_engine::{Mode, OnError, Operation};
use weir_lifecycle::Turns;
use weir_store::{Clock, Store, StoreError, SystemClock};

use self::count::Counts;
use self::deny_cache::DenyCache;
pub use self::holds::{HOLDS_MAX, HeldCharge, HeldIn, OverriddenLimit, Settle};
pub use self::inspect::ShownState;
use self::leases::{LeaseTotals, Leases};
pub use self::long::LONG_VALUES_BYTES_MAX;
pub use self::messages::{
    Answer, DescriptorRequest, Detail, FitsAfter, LimitInfo, ListedLimit, Query, Status, Unweighed,
};
pub use self::policies::Policies;
use self::rows::known::KnownRows;
use self::stores::Stores;

/// The default time limit of a store for one decision.
const BUDGET: Duration = Duration::from_millis(10);

/// Why a request got no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undecided {
    /// No policies were loaded yet. The text is that of envoyproxy/ratelimit.
    #[error("no rate limit configuration loaded")]
    NoPolicies,
    /// A store gave no decision in time.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The request is invalid. Nothing was charged. [mt-15]
    #[error("{0}")]
    Unweighed(#[from] Unweighed),
}

/// What the settings change about every rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// No limit denies. Statuses have their own codes, and everything is counted.
    pub shadow: bool,
    /// Every limit that denies is a quota, and a descriptor without a limit is a quota that is never over. [dc-3]
    pub quota: bool,
    /// Answers include the metadata of the rules whose limits passed.
    pub metadata: bool,
    /// Answers list every limit that could deny the request.
    pub limits: bool,
}

/// The stores of a limiter, and the settings that affect its decisions.
#[derive(Clone)]
pub struct Options {
    /// The store of all states.
    pub store: Arc<dyn Store>,
    /// The store of single limits per second, if it is a separate one. [st-3]
    pub per_second: Option<Arc<dyn Store>>,
    /// The store for `on_error: local`, used if a store does not answer. It must be immediate. Without it, such
    /// requests fail. [st-4]
    pub local: Option<Arc<dyn Store>>,
    /// Denials that need no store, shared by all limiters of the process.
    pub deny_cache: Option<Arc<DenyCache>>,
    /// Hits of hot keys that were charged ahead, shared by all limiters of the process. [ls-1]
    pub leases: Arc<Leases>,
    /// The known rows of the store, shared by all limiters of the process. [rw-2]
    pub rows: Arc<KnownRows>,
    /// How requests are charged if their domain does not set it.
    pub mode: Mode,
    /// What happens to a request if its store does not answer and neither rule nor domain sets `on_error`.
    pub on_error: OnError,
    pub modes: Modes,
    /// The time limit of a store for one decision.
    pub budget: Duration,
    /// The number of this process in receipts of holds in its memory. Random, so that no other process has it. [hd-4]
    pub process: u64,
    /// weir's clock. The ends of terms and overrides count by it. [tm-1] Calendar windows are computed by it at first; a store
    /// whose clock lies in another window has the last word. [cl-3]
    pub clock: Arc<dyn Clock>,
}

impl Options {
    /// One store, and the defaults.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            per_second: None,
            local: None,
            deny_cache: None,
            leases: Arc::default(),
            rows: Arc::new(KnownRows::of(&*store)),
            mode: Mode::Atomic,
            on_error: OnError::Error,
            modes: Modes::default(),
            budget: BUDGET,
            process: RandomState::new().hash_one(BUDGET),
            clock: Arc::new(SystemClock),
            store,
        }
    }
}

/// Makes decisions for the requests of one runtime.
pub struct Limiter {
    policies: Arc<Policies>,
    stores: Arc<Stores>,
    counts: Counts,
    /// Of long requests.
    turns: Turns,
}

impl Limiter {
    #[must_use]
    pub fn new(policies: Arc<Policies>, options: Options, observer: Arc<dyn Observer>) -> Self {
        let counts = Counts::new(observer.clone());
        Self { policies, stores: Arc::new(Stores::new(options, observer)), counts, turns: Turns::default() }
    }

    /// Decides one request that began at `started`. `deadline` is the caller's, if it set one. `trace` receives the
    /// events of the decision. A long request takes turns with others.
    ///
    /// # Errors
    /// When no policies were loaded yet, or when a store gave no decision in time and the policies set
    /// `on_error: error`.
    pub async fn decide(
        &self,
        query: &Query<'_>,
        started: Instant,
        deadline: Option<Instant>,
        trace: Option<&dyn Trace>,
    ) -> Result<Answer, Undecided> {
        let in_force = self.policies.current.load_full();
        self.decide_under(&in_force, query, started, deadline, trace, Some(&self.turns)).await
    }

    /// Whether [`Limiter::decide_now`] may be called: no decision waits for a store.
    #[must_use]
    pub fn is_immediate(&self) -> bool {
        self.stores.options.store.is_immediate()
            && self.stores.options.per_second.is_none()
            && self.stores.options.local.is_none()
    }

    /// As [`Limiter::decide`] without a future, so that the caller's own future stays small.
    ///
    /// # Errors
    /// As [`Limiter::decide`].
    /// Panics when the limiter is not immediate.
    pub fn decide_now(
        &self,
        query: &Query<'_>,
        started: Instant,
        trace: Option<&dyn Trace>,
    ) -> Result<Answer, Undecided> {
        // A guard, not a counted reference that all cores would share: it does not outlive this call.
        let in_force = self.policies.current.load();
        let decision = pin!(self.decide_under(&in_force, query, started, None, trace, None));
        match decision.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decided) => decided,
            Poll::Pending => unreachable!("the store {} is not immediate", self.stores.options.store.name()),
        }
    }

    /// Counts a request that cannot be decided. It began at `started`.
    pub fn refused(&self, started: Instant) {
        self.counts.refused(started);
    }

    /// Counts a request that cannot be read. It began at `started`.
    pub fn unreadable(&self, started: Instant) {
        self.counts.unreadable(started);
    }

    /// Reports a field of a request's limit that weir does not know, by its number.
    pub fn unknown_limit_field(&self, number: u32) {
        self.counts.unknown_limit_field(number);
    }

    /// Settles, with no hits used, the holds of a request whose caller is gone. [hd-9]
    pub async fn release(&self, mut query: Query<'_>, holds: Vec<HeldCharge>) {
        query.descriptors.iter_mut().for_each(|descriptor| descriptor.operation = Operation::Peek);
        query.settle = Some(Box::new(Settle { descriptors: u64::MAX, holds }));
        self.settle_alone(&self.policies.snapshot(), &query).await;
    }

    /// Whether a request of any domain can open a hold.
    #[must_use]
    pub fn can_hold(&self) -> bool {
        self.policies.have_holds()
    }

    /// Whether a request of this domain can open or settle a hold. Reads one flag if no policy has holds.
    #[must_use]
    pub fn has_holds(&self, domain: &str) -> bool {
        self.can_hold() && self.policies.current.load().policies.domain(domain).is_some_and(|domain| domain.has_holds)
    }

    /// The store, for health checks. Decisions use [`Limiter::decide`].
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.stores.options.store
    }

    #[must_use]
    pub fn lease_totals(&self) -> LeaseTotals {
        self.stores.options.leases.totals()
    }

    /// Takes back the unused hits of the process's leases, before the process ends. The caller bounds the time: hits that
    /// are not taken back by then count until the reset. [ls-6]
    pub async fn leave(&self) {
        self.stores.options.leases.end_all().await;
    }

    /// Returns the reason when a store can give no more answers.
    pub async fn died(&self) -> String {
        match &self.stores.options.per_second {
            None => self.stores.options.store.died().await,
            Some(per_second) => tokio::select! {
                reason = self.stores.options.store.died() => reason,
                reason = per_second.died() => reason,
            },
        }
    }
}
