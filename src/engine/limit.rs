//! A limit: the number of hits, the window and the algorithm. [`Limit::new`] checks them once.
//!
//! Not here: the place of a limit in a policy (policy.rs), and its used hits (algorithm.rs).

use std::sync::Arc;

use smallvec::SmallVec;

use super::algorithm::parameters::Anchor;
use super::algorithm::{Algorithm, LimitError, StateKind};
use super::denomination::Denomination;
use super::descriptor::{Count, Hits, saturated};
use super::during::During;
use super::escape::escape;
use super::lease::Lease;
use super::metadata::Fields;
use super::share::Shares;
use super::time::{CalendarUnit, Micros, Term, Unit, Window};

/// The most limits of one rule.
pub const LIMITS_PER_RULE_MAX: usize = 8;

/// A limit with checked numbers. Two limits of equal shape share states, even if their numbers differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    requests: Count,
    window: Window,
    algorithm: Algorithm,
    /// A name for people and for `replaces`. [`Limit::keyed_by_name`] makes it part of the key.
    pub name: Option<Box<str>>,
    /// A denied charge consumes the remaining hits of this limit. [dc-4]
    pub drain: bool,
    /// The limit is on trial: it is charged and counted, but denies nothing, and callers do not see it. [tr-1]
    pub shadow: bool,
    /// The limit's charges are estimates, which callers settle by their receipts; only some algorithms support holds
    /// [hd-1]. Permits are always held [cc-5].
    pub hold: bool,
    /// Of a hold: a settle leaves this many of the held hits charged. 0: all unused hits go back. [hd-10]
    pub at_least: Hits,
    /// The shares whose crossing is reported; always empty except for a `fixed_window`. [al-1]
    pub alert_at: Shares,
    /// The unit in which people read its hits. [lm-9]
    pub amount: Option<Arc<Denomination>>,
    /// For how long a process may admit requests from hits that it charged ahead. None: no leases. [ls-1]
    pub lease: Option<Lease>,
    post_paid: bool,
    counts_requests: bool,
    /// The time in which the limit applies. None: always. In a box, because few limits have a term. [te-1]
    pub term: Option<Box<Term>>,
    kind: StateKind,
    /// The IANA name of a calendar's time zone; empty for UTC, and for every other limit.
    zone: Box<str>,
    is_keyed_by_name: bool,
    id: Box<str>,
}

/// The value of a key of a policy. Lengths and instants are in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyValue<'l> {
    Flag(bool),
    Length(Option<u64>),
    Instant(Option<Micros>),
    Number(Option<u32>),
    Percents(&'l Shares),
    Text(Option<&'l str>),
    Names(&'l [Box<str>]),
    Metadata(Option<&'l Fields>),
    Word(&'static str),
    Spans(Option<&'l During>),
    Amount(Option<&'l Denomination>),
}

/// The words of `counts`.
pub const COUNTS: [&str; 2] = ["hits", "requests"];
/// Before the id of a limit that counts requests. No algorithm has this letter. [ky-4]
const REQUESTS_LETTER: char = 'r';

impl Limit {
    /// The keys of a policy that neither numbers nor parameters of the algorithm show, with their values.
    pub fn keys(&self) -> [(&'static str, KeyValue<'_>); 12] {
        use KeyValue::{Amount, Flag, Instant, Length, Number, Percents, Spans, Word};
        // Each field is named, so that the compiler reports a new one.
        let Self {
            requests: _,
            window: _,
            algorithm: _,
            name: _,
            drain,
            shadow,
            hold,
            at_least,
            alert_at,
            amount,
            lease,
            post_paid,
            counts_requests,
            term,
            kind: _,
            zone: _,
            is_keyed_by_name: _,
            id: _,
        } = self;
        let until = term.as_ref().map(|term| term.until()).filter(|until| *until < Term::NO_END);
        [
            ("shadow", Flag(*shadow)),
            ("from", Instant(term.as_ref().map(|term| term.from()))),
            ("until", Instant(until)),
            ("during", Spans(term.as_ref().and_then(|term| term.during()).map(|during| &**during))),
            ("counts", Word(COUNTS[usize::from(*counts_requests)])),
            ("drain", Flag(*drain)),
            ("post_paid", Flag(*post_paid)),
            ("hold", Flag(*hold)),
            ("at_least", Number(Some(*at_least).filter(|hits| *hits > 0))),
            ("alert_at", Percents(alert_at)),
            ("lease", Length(lease.map(Lease::us))),
            ("amount", Amount(amount.as_deref())),
        ]
    }

    /// A limit of `requests` hits per `window`.
    ///
    /// # Errors
    /// When a bound of the algorithm is broken. A limit of 0 has no bounds, because it never admits. [lm-2]
    pub fn new(requests: Count, window: Window, algorithm: Algorithm) -> Result<Self, LimitError> {
        let kind = algorithm.kind(requests, window)?;
        let limit = Self {
            requests,
            window,
            algorithm,
            name: None,
            drain: false,
            shadow: false,
            hold: algorithm.counts_permits(),
            at_least: 0,
            alert_at: Shares::default(),
            amount: None,
            lease: None,
            post_paid: false,
            counts_requests: false,
            term: None,
            kind,
            zone: "".into(),
            is_keyed_by_name: false,
            id: "".into(),
        };
        Ok(limit.with_id())
    }

    /// The same limit with other numbers. It keeps its state if the window and the parameters of the algorithm are the
    /// same.
    /// Fails as [`Limit::new`].
    pub(super) fn with_numbers(
        &self,
        requests: Count,
        window: Window,
        algorithm: Algorithm,
    ) -> Result<Self, LimitError> {
        let kind = algorithm.kind(requests, window)?;
        let mut limit = Self { requests, window, algorithm, kind, ..self.clone() }.with_id();
        limit.set_post_paid(self.post_paid);
        Ok(limit)
    }

    /// A fixed window of one unit: the default of policies.
    pub fn per_unit(requests: u32, unit: Unit) -> Self {
        Self::per_window(requests, unit.window())
    }

    /// A fixed window: the form of a limit of the request. [mt-6]
    pub fn per_window(requests: u32, window: Window) -> Self {
        match Self::new(requests.into(), window, Algorithm::FIXED_WINDOW) {
            Ok(limit) => limit,
            Err(error) => unreachable!("a fixed window has no other bound than 32 bits: {error}"),
        }
    }

    /// Sets the time zone of a calendar's windows, by its IANA name. The default is UTC.
    #[must_use]
    pub fn in_zone(mut self, zone: &str) -> Self {
        self.zone = zone.into();
        self.with_id()
    }

    /// The IANA name of a calendar's time zone; empty for UTC, and for every limit without a calendar.
    pub fn zone(&self) -> &str {
        &self.zone
    }

    /// Makes the name part of the key. Limits of equal shape in one list need it, because only their names distinguish
    /// them.
    #[must_use]
    pub fn keyed_by_name(mut self) -> Self {
        self.is_keyed_by_name = true;
        self.with_id()
    }

    fn with_id(mut self) -> Self {
        let mut id: String = self.counts_requests.then_some(REQUESTS_LETTER).into_iter().collect();
        id.push_str(&self.kind.id(&self.zone));
        if let Some(name) = self.name.as_deref().filter(|_| self.is_keyed_by_name) {
            id.push(':');
            escape(&mut id, name);
        }
        self.id = id.into();
        self
    }

    /// Hits per window. 0 denies everything; it never means unlimited. [lm-5]
    pub const fn requests(&self) -> Count {
        self.requests
    }

    /// The window, or the period of the rate.
    pub const fn window(&self) -> Window {
        self.window
    }

    pub fn is_per_second(&self) -> bool {
        self.window.unit() == Some(Unit::Second)
    }

    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub const fn kind(&self) -> &StateKind {
        &self.kind
    }

    /// The calendar of the limit's windows, if they follow one.
    pub const fn calendar(&self) -> Option<CalendarUnit> {
        match self.algorithm.anchor() {
            Anchor::Calendar(unit) => Some(unit),
            Anchor::Clock | Anchor::FirstHit => None,
        }
    }

    /// Whether usage is reported after the fact: every charge is a report. [dc-5]
    pub const fn post_paid(&self) -> bool {
        self.post_paid
    }

    pub fn set_post_paid(&mut self, post_paid: bool) {
        self.post_paid = post_paid;
        self.kind = self.kind.with_post_paid(post_paid);
    }

    /// Whether each charge is one request, of any number of hits. [lm-7]
    pub const fn counts_requests(&self) -> bool {
        self.counts_requests
    }

    /// Counts requests in place of hits. The state is then another one.
    #[must_use]
    pub fn counting_requests(mut self) -> Self {
        self.counts_requests = true;
        self.with_id()
    }

    /// The most hits that this limit can hold at one instant. It never admits more at once. [lm-4]
    pub fn capacity(&self) -> Count {
        self.kind.capacity()
    }

    /// The hits that a charge of `hits` consumes. For `concurrency`: one permit [cc-3]. For a hold: at most the
    /// capacity, so that every estimate can be admitted, except by a limit of 0. [hd-2]
    pub fn consumed(&self, hits: Hits) -> Hits {
        match self.capacity() {
            _ if self.algorithm.counts_permits() => 1,
            capacity @ 1.. if self.hold => saturated(capacity).min(self.counted(hits)),
            _ => self.counted(hits),
        }
    }

    /// What the limit counts of so many hits: all of them, or one request. No hits are no request. [lm-7]
    pub fn counted(&self, hits: Hits) -> Hits {
        if self.counts_requests { hits.min(1) } else { hits }
    }

    /// The hits that a settle leaves charged, if so many were held. [hd-10] [lm-7]
    pub const fn kept_by_settle(&self) -> Hits {
        if self.counts_requests { Hits::MAX } else { self.at_least }
    }

    /// The part of the key that identifies the shape of the state. Limits with equal ids share states.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// Whether two limits of one rule would have the same state.
pub(super) fn share_states<'l>(limits: impl IntoIterator<Item = &'l Limit>) -> bool {
    let mut ids = SmallVec::<[&str; LIMITS_PER_RULE_MAX]>::new();
    limits.into_iter().any(|limit| {
        let is_twin = ids.contains(&limit.id());
        ids.push(limit.id());
        is_twin
    })
}
