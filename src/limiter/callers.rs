//! Which caller sends on a connection, by the callers in force, and what it lacks for a request. [cr-1]
//!
//! A connection keeps its caller until the callers are replaced: a request compares one number. Not here: the file
//! (policies), and what a caller may do (engine/callers.rs).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use weir_engine::callers::{Caller, Callers, Refusal};
use weir_engine::observer::{RefusedCaller, Trace};
use weir_engine::{Group, Hits};

use super::{Limiter, Query, weighed};

/// The most callers with counts of their own. All further callers share theirs.
pub const CALLERS_SHOWN_MAX: usize = 100;
/// The name of the counts that further callers share.
const OTHERS: &str = "(others)";
/// The name of the counts of requests without a caller.
pub const UNLISTED: &str = "(unlisted)";
/// If there are more runtimes, some share lanes. A caller uses 64 bytes for each lane.
const LANES_MAX: usize = 16;

/// How many requests of a caller were allowed, and how many were refused for each reason.
#[derive(Debug)]
pub struct CallerCounts {
    /// By runtime, so that cores that serve the same caller do not slow each other down.
    allowed: Box<[Lane]>,
    refused: [AtomicU64; Refusal::ALL.len()],
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Lane(AtomicU64);

impl CallerCounts {
    fn new(lanes: usize) -> Arc<Self> {
        Arc::new(Self { allowed: (0..lanes).map(|_| Lane::default()).collect(), refused: Default::default() })
    }

    pub fn allowed(&self) -> u64 {
        self.allowed.iter().map(|lane| lane.0.load(Relaxed)).sum()
    }

    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused[refusal.index()].load(Relaxed)
    }
}

/// Shows the counts of a name, in metrics. Called once for each name.
type Show = Box<dyn Fn(&str, &Arc<CallerCounts>) + Send + Sync>;

/// The callers in force, replaced as a whole.
pub struct CallersInForce {
    current: ArcSwap<Callers>,
    /// Grows with each replacement. At least 1.
    version: AtomicU64,
    counts: Mutex<BTreeMap<Box<str>, Arc<CallerCounts>>>,
    others: Arc<CallerCounts>,
    unlisted: Arc<CallerCounts>,
    lanes: usize,
    show: Show,
}

impl CallersInForce {
    /// Starts with the first callers. `runtimes` count their requests.
    pub fn new(callers: Callers, runtimes: usize, show: Show) -> Self {
        let lanes = runtimes.clamp(1, LANES_MAX);
        let (others, unlisted) = (CallerCounts::new(lanes), CallerCounts::new(lanes));
        show(OTHERS, &others);
        show(UNLISTED, &unlisted);
        let in_force = Self {
            current: ArcSwap::default(),
            version: AtomicU64::new(0),
            counts: Mutex::default(),
            others,
            unlisted,
            lanes,
            show,
        };
        in_force.replace(callers);
        in_force
    }

    /// Replaces the callers, also for requests on open connections. One call at a time.
    pub fn replace(&self, callers: Callers) {
        let mut counts = self.counts.lock();
        for caller in callers.list() {
            if counts.len() < CALLERS_SHOWN_MAX && !counts.contains_key(&caller.name) {
                let of_caller = CallerCounts::new(self.lanes);
                (self.show)(&caller.name, &of_caller);
                counts.insert(caller.name.clone(), of_caller);
            }
        }
        drop(counts);
        self.current.store(Arc::new(callers));
        self.version.fetch_add(1, Release);
    }

    /// The number of callers in force.
    pub fn count(&self) -> usize {
        self.current.load().list().len()
    }

    fn known(&self, listener: &str, names: Option<&[Box<str>]>) -> KnownCaller {
        let callers = self.current.load();
        let found = names.ok_or(Refusal::TooManyNames).and_then(|names| callers.find(names, listener)).cloned();
        let counts = match &found {
            Ok(caller) => self.counts.lock().get(&caller.name).unwrap_or(&self.others).clone(),
            Err(_) => self.unlisted.clone(),
        };
        KnownCaller { found, counts }
    }
}

impl fmt::Debug for CallersInForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallersInForce").field("callers", &self.count()).finish_non_exhaustive()
    }
}

/// The sender of the requests on one connection, or on all connections of a listener without certificates.
#[derive(Debug)]
pub struct Sender {
    in_force: Arc<CallersInForce>,
    listener: Arc<str>,
    /// The names of its certificate. None if there are too many, or if their list is malformed. [cr-2]
    names: Option<Box<[Box<str>]>>,
    /// Its caller, and the version of the callers that it was found in.
    known: Mutex<(u64, Arc<KnownCaller>)>,
}

/// The caller of a connection, or why there is none.
#[derive(Debug)]
pub struct KnownCaller {
    found: Result<Arc<Caller>, Refusal>,
    counts: Arc<CallerCounts>,
}

impl KnownCaller {
    pub fn name(&self) -> Option<&str> {
        self.found.as_ref().ok().map(|caller| &*caller.name)
    }
}

impl Sender {
    pub fn new(in_force: Arc<CallersInForce>, listener: Arc<str>, names: Option<Box<[Box<str>]>>) -> Self {
        let version = in_force.version.load(Acquire);
        let known = Mutex::new((version, Arc::new(in_force.known(&listener, names.as_deref()))));
        Self { in_force, listener, names, known }
    }

    /// The caller by the callers in force. Each connection has its own reference count, so that cores share none.
    pub fn known(&self) -> Arc<KnownCaller> {
        let version = self.in_force.version.load(Acquire);
        let mut known = self.known.lock();
        if known.0 != version {
            *known = (version, Arc::new(self.in_force.known(&self.listener, self.names.as_deref())));
        }
        known.1.clone()
    }
}

/// A sender whose caller has the domain of its request. [`Limiter::check_domain`] makes it.
#[derive(Clone, Copy, Debug)]
pub struct OfDomain<'k> {
    sender: &'k Sender,
    known: &'k KnownCaller,
    caller: &'k Caller,
}

/// A request that its caller may not send. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAllowed {
    /// The name of the caller, and the most hits that it may ask for.
    caller: Option<(Box<str>, Hits)>,
    refusal: Refusal,
    /// Whether its connection has a certificate with a name that a caller can have.
    has_names: bool,
}

impl fmt::Display for NotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, hits_max) = self.caller.as_ref().map_or(("", 0), |(name, hits_max)| (&**name, *hits_max));
        match self.refusal {
            Refusal::Unlisted if !self.has_names => f.write_str(
                "no caller of callers.file has this listener, and no certificate with a DNS name or a URI was shown",
            ),
            Refusal::Unlisted => {
                f.write_str("no caller of callers.file has a name of this certificate or this listener")
            }
            Refusal::SeveralCallers => f.write_str("the names of this certificate are those of different callers"),
            Refusal::TooManyNames => {
                f.write_str("this certificate has more names than a caller may have, or a malformed list of names")
            }
            Refusal::Domain => write!(f, "the caller {name} has no rights in this domain"),
            Refusal::Right(right) => write!(f, "the caller {name} lacks the right {:?}", right.name()),
            Refusal::Hits => {
                write!(f, "the caller {name} may charge or give back at most {hits_max} hits of a descriptor")
            }
        }?;
        f.write_str(" (nothing was charged)")
    }
}

impl Limiter {
    /// Whether this sender may send requests of the domain. Counts only a refused request, which began at `started`. Before
    /// this nothing of an answer may depend on the domain. [cr-1]
    ///
    /// # Errors
    /// What the caller lacks.
    pub fn check_domain<'k>(
        &self,
        sender: &'k Sender,
        known: &'k KnownCaller,
        domain: &str,
        started: Instant,
        trace: Option<&dyn Trace>,
    ) -> Result<OfDomain<'k>, NotAllowed> {
        let refusal = match &known.found {
            Ok(caller) if caller.domains.has(domain) => return Ok(OfDomain { sender, known, caller }),
            Ok(_) => Refusal::Domain,
            Err(refusal) => *refusal,
        };
        Err(self.refuse(sender, known, domain, refusal, started, trace))
    }

    /// Whether this sender may send the request, which is of the checked domain and began at `started`. Counts the request for its
    /// caller. [cr-4]
    ///
    /// # Errors
    /// What the caller lacks.
    pub fn check(
        &self,
        OfDomain { sender, known, caller }: OfDomain<'_>,
        query: &Query<'_>,
        started: Instant,
        trace: Option<&dyn Trace>,
    ) -> Result<(), NotAllowed> {
        let checked = self.check_rights(caller, query);
        checked.map_err(|refusal| self.refuse(sender, known, query.domain, refusal, started, trace))?;
        let lanes = &known.counts.allowed;
        lanes[self.counts.lane() % lanes.len()].0.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Counts a refused request.
    #[cold]
    fn refuse(
        &self,
        sender: &Sender,
        known: &KnownCaller,
        domain: &str,
        refusal: Refusal,
        started: Instant,
        trace: Option<&dyn Trace>,
    ) -> NotAllowed {
        known.counts.refused[refusal.index()].fetch_add(1, Relaxed);
        self.counts.not_allowed(
            &RefusedCaller {
                caller: known.name(),
                refusal,
                domain,
                listener: &sender.listener,
                names: sender.names.as_deref().unwrap_or_default(),
            },
            started,
            trace,
        );
        let caller = known.found.as_ref().ok().map(|caller| (caller.name.clone(), caller.hits_max));
        let has_names = sender.names.as_ref().is_none_or(|names| !names.is_empty());
        NotAllowed { caller, refusal, has_names }
    }

    /// Whether a caller of its domain may send this request. Its most hits are weighed hits, and those that its receipt can give back.
    fn check_rights(&self, caller: &Caller, query: &Query<'_>) -> Result<(), Refusal> {
        // Without a bound on hits, their weight does not matter.
        let in_force = (caller.hits_max < Hits::MAX).then(|| self.policies.current.load());
        let policies = in_force.as_ref().map(|in_force| &in_force.policies);
        let weighing = policies.and_then(|policies| Some((policies, policies.domain(query.domain)?)));
        let weighing = weighing.filter(|(_, domain)| domain.weighs());
        query.groups().try_for_each(|(group, asked): (Group, _)| {
            let operation =
                weighing.map_or(asked.operation, |(policies, domain)| weighed::operation(policies, domain, asked));
            caller.check(operation, query.settles(group), asked.limit.is_some())
        })?;
        // A receipt can be made by hand, with any hits.
        match query.settle.as_deref().filter(|_| caller.hits_max < Hits::MAX) {
            Some(settle) if settle.most_hits_of_descriptor() > caller.hits_max.into() => Err(Refusal::Hits),
            _ => Ok(()),
        }
    }
}
