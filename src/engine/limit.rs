//! A limit: how many hits, per how long, by which algorithm; checked once, when it is made.
//!
//! Not here: where a limit hangs (policy.rs) and what has been used of it (algorithm.rs).

use super::algorithm::parameters::Anchor;
use super::algorithm::{Algorithm, LimitError, StateKind};
use super::escape::escape;
use super::lease::Lease;
use super::share::Shares;
use super::time::{CalendarUnit, Micros, Term, Unit, Window};

/// A limit whose numbers have been checked. Two limits of equal shape share states, also if their numbers differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    requests: u32,
    window: Window,
    algorithm: Algorithm,
    /// A name for people and for `replaces`; part of the key only where [`Limit::keyed_by_name`] says so.
    pub name: Option<Box<str>>,
    /// A denied charge takes what this limit has left. [dc-4]
    pub drain: bool,
    /// It is on trial beside the limits of its rule: charged and counted; it denies nothing, and callers do not see it. [tr-1]
    pub shadow: bool,
    /// The shares whose crossing is reported; only a `fixed_window` has any. [al-1]
    pub alert_at: Shares,
    /// For how long a process may admit by hits that it took ahead, if it may. [ls-1]
    pub lease: Option<Lease>,
    post_paid: bool,
    /// When it applies, if not always. In a box, since few limits have one. [te-1]
    pub term: Option<Box<Term>>,
    /// The kind of its states, with the numbers of this limit.
    kind: StateKind,
    /// The IANA name of a calendar's time zone; empty for UTC, and for every other limit.
    zone: Box<str>,
    is_keyed_by_name: bool,
    id: Box<str>,
}

impl Limit {
    /// A limit of `requests` hits per `window`.
    ///
    /// # Errors
    /// When a bound of the algorithm is broken; 0 requests skip those bounds, since nothing is ever admitted. [lm-2]
    pub fn new(requests: u32, window: Window, algorithm: Algorithm) -> Result<Self, LimitError> {
        let kind = algorithm.kind(requests, window)?;
        let limit = Self {
            requests,
            window,
            algorithm,
            name: None,
            drain: false,
            shadow: false,
            alert_at: Shares::default(),
            lease: None,
            post_paid: false,
            term: None,
            kind,
            zone: "".into(),
            is_keyed_by_name: false,
            id: "".into(),
        };
        Ok(limit.with_id())
    }

    /// The same limit with other numbers. The state is the same where the window and the parameters of the algorithm are.
    ///
    /// # Errors
    /// As [`Limit::new`].
    pub(super) fn with_numbers(&self, requests: u32, window: Window, algorithm: Algorithm) -> Result<Self, LimitError> {
        let kind = algorithm.kind(requests, window)?;
        let mut limit = Self { requests, window, algorithm, kind, ..self.clone() }.with_id();
        limit.set_post_paid(self.post_paid);
        Ok(limit)
    }

    /// A fixed window of one unit: what a limit in the request is, and what a policy gives by default.
    #[must_use]
    pub fn per_unit(requests: u32, unit: Unit) -> Self {
        match Self::new(requests, unit.window(), Algorithm::FIXED_WINDOW) {
            Ok(limit) => limit,
            Err(error) => unreachable!("every unit is a window: {error}"),
        }
    }

    /// Gives a calendar's windows a time zone, by its IANA name. Without one they are UTC's.
    #[must_use]
    pub fn in_zone(mut self, zone: &str) -> Self {
        self.zone = zone.into();
        self.with_id()
    }

    /// The IANA name of a calendar's time zone; empty for UTC, and for every limit without a calendar.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// Makes the name part of the key: one list holds limits of equal shape, told apart by their names.
    #[must_use]
    pub fn keyed_by_name(mut self) -> Self {
        self.is_keyed_by_name = true;
        self.with_id()
    }

    fn with_id(mut self) -> Self {
        let mut id = self.kind.id(&self.zone);
        if let Some(name) = self.name.as_deref().filter(|_| self.is_keyed_by_name) {
            id.push(':');
            escape(&mut id, name);
        }
        self.id = id.into();
        self
    }

    /// Hits per window. 0 denies everything; it never means unlimited. [lm-5]
    #[must_use]
    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// The window, or the period of the rate.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// How it counts.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The kind of its states, with the numbers of this limit: what a charge finds and leaves.
    #[must_use]
    pub const fn kind(&self) -> &StateKind {
        &self.kind
    }

    /// Whether it applies at this instant. Otherwise a decision is made as if it were not there. [te-1]
    #[inline]
    #[must_use]
    pub fn applies_at(&self, now: Micros) -> bool {
        match &self.term {
            None => true,
            Some(term) => term.holds(now),
        }
    }

    /// How long it still applies, if it ends.
    #[must_use]
    pub fn ends_after(&self, now: Micros) -> Option<Micros> {
        let until = self.term.as_ref()?.until();
        (until < Term::NO_END).then(|| until.saturating_sub(now))
    }

    /// The calendar that its windows follow, if they do.
    #[must_use]
    pub const fn calendar(&self) -> Option<CalendarUnit> {
        match self.algorithm.anchor() {
            Anchor::Calendar(unit) => Some(unit),
            Anchor::Clock | Anchor::FirstHit => None,
        }
    }

    /// Usage is reported after the fact: every charge is a report. [dc-5]
    #[must_use]
    pub const fn post_paid(&self) -> bool {
        self.post_paid
    }

    /// Says whether usage is reported after the fact.
    pub fn set_post_paid(&mut self, post_paid: bool) {
        self.post_paid = post_paid;
        self.kind = self.kind.with_post_paid(post_paid);
    }

    /// The most hits that this limit can hold at one instant: more than that is never admitted. [lm-4]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.kind.capacity()
    }

    /// The part of the key that says which shape of state is kept. Limits with one id share states.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }
}
