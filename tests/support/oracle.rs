//! A second opinion on every limit, written from the semantics and not from the engine, by other arithmetic: windows as
//! lists of the hits in them, with absolute places; debts as one whole number of hit-microseconds, in which a debt of
//! `us + f / L` microseconds and one of `hits` hits are both plain products; waits and resets not by formula but by
//! bisection, asking when it would be so. One key, one charge a decision.

use weir_engine::{
    Algorithm, Anchor, Bounds, COUNT_MAX, Count, Limit, Micros, Mode, Operation, Receipt, Refill, Verdict,
};

use super::algorithms::sub_bucket;

/// How far ahead of the clock a state may lie, beyond what its limit explains.
const AHEAD_US: i128 = 60_000_000;
/// The longest debt.
const DEBT_US: i128 = 1 << 48;
/// Post-paid debts of this many hits and more are the longest, when the limit changes.
const HITS_CONVERTED: i128 = 1 << 49;
/// The largest count of a limit that is not larger.
const COUNT: i128 = (1 << 32) - 1;

/// What it says of one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Whether the charge fits.
    pub verdict: Verdict,
    /// The hits that would have fitted.
    pub remaining_before: Count,
    /// The hits that fit in the state shown.
    pub remaining: Count,
    /// How long an admitted request waits for its turn.
    pub wait: Micros,
    /// When the state shown is worth nothing.
    pub reset_after: Micros,
    /// When the same hits would fit into the state shown, if ever.
    pub fits_after: Option<Micros>,
    /// The hits taken.
    pub took: u32,
}

/// Everything that one key has seen and still holds.
#[derive(Clone, Debug)]
pub enum Oracle {
    /// The hits of one fixed window: when it began, and each hit's size.
    Window(Option<(i128, Vec<i128>)>),
    /// Hits by their place: a window's start, a bucket's number, a time; and where new hits went when it was written.
    Hits(i128, Vec<Hit>),
    /// `owed` hit-microseconds at `at`, paid back by `rate` of them in each microsecond.
    Debt(Option<Debt>),
    /// The start of a period, and the tokens that were used then.
    Bucket(Option<(i128, i128)>),
}

/// Hits at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    place: i128,
    hits: i128,
    /// The sum of all hits of a log up to and with these; what a receipt of a log names.
    sum: i128,
}

/// A debt as it was last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt {
    owed: i128,
    at: i128,
    rate: i128,
}

/// A copy of the state, as of now.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Now {
    /// Start, end and hits.
    Window(i128, i128, Vec<i128>),
    /// The place of new hits, and the hits that count.
    Hits(i128, Vec<Hit>),
    Debt(i128),
    Bucket(i128, i128),
}

impl Oracle {
    /// Nothing taken yet.
    pub fn new(limit: &Limit) -> Self {
        match limit.algorithm() {
            Algorithm::FixedWindow { .. } => Self::Window(None),
            Algorithm::SlidingWindowCounter
            | Algorithm::SlidingWindow { .. }
            | Algorithm::SlidingWindowLog
            | Algorithm::Concurrency => Self::Hits(0, Vec::new()),
            Algorithm::TokenBucket { refill: Refill::Interval, .. } => Self::Bucket(None),
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } | Algorithm::Gcra { .. } => Self::Debt(None),
        }
    }

    /// One decision of one enforced charge.
    pub fn decide(
        &mut self,
        limit: &Limit,
        operation: Operation,
        mode: Mode,
        bounds: Option<Bounds>,
        now: Micros,
    ) -> Expected {
        let when = When { now: i128::from(now), bounds };
        let (before, stale) = self.now(limit, when);
        let fits = remaining(limit, &before, when);
        let asked = match operation {
            Operation::Consume(hits) => Some(i128::from(hits)),
            // The usage that is reported has happened: the question is whether anything was left before it.
            Operation::Report(_) => Some(1),
            Operation::Peek if mode == Mode::Atomic => Some(1),
            Operation::Peek => (is_past(limit, &before, when)).then_some(1),
            Operation::Refund(_) => None,
        };
        let verdict = match asked {
            // An independent look past the limit is over although nothing is asked of it.
            Some(hits) if hits <= fits && !(operation == Operation::Peek && mode == Mode::Independent) => {
                Verdict::Within
            }
            Some(hits) if hits <= capacity(limit) => Verdict::Over { retry_after: wait(limit, &before, hits, when) },
            Some(_) => Verdict::Never,
            None => Verdict::Within,
        };

        let windowed = matches!(before, Now::Window(..));
        let stateless = limit.requests() == 0 && !windowed;
        let taken = match operation {
            _ if stateless => 0,
            Operation::Report(hits) => i128::from(hits),
            Operation::Consume(hits) if verdict == Verdict::Within => i128::from(hits),
            Operation::Consume(hits) if mode == Mode::Independent && windowed => i128::from(hits),
            Operation::Consume(_) if limit.drain => fits,
            Operation::Consume(_) | Operation::Peek | Operation::Refund(_) => 0,
        };
        let mut after = before.clone();
        if taken > 0 {
            add(limit, &mut after, taken, when);
        }
        if let Operation::Refund(hits) = operation
            && !stateless
        {
            give(limit, &mut after, i128::from(hits));
            // A window that begins with its first hit has none of its own without one.
            if is_empty(&after) && limit.algorithm().anchor() == Anchor::FirstHit && windowed {
                after = Now::Window(when.now, when.now, Vec::new());
            }
        }
        // A state at its bound already stays as it was stored, which may be more than is believed.
        let wrote = before != after;
        if (wrote || stale) && !stateless {
            self.keep(limit, after.clone(), when);
        }

        let denied = verdict != Verdict::Within;
        let shown = if denied && mode == Mode::Atomic { &before } else { &after };
        let drained = denied && mode == Mode::Atomic && matches!(operation, Operation::Consume(_));
        let again = match operation {
            Operation::Consume(hits) => i128::from(hits),
            Operation::Peek | Operation::Report(_) => 1,
            Operation::Refund(_) => 0,
        };
        let leaks = matches!(limit.algorithm(), Algorithm::LeakyBucket { .. });
        Expected {
            verdict,
            remaining_before: Count::try_from(fits).expect("at most the capacity"),
            remaining: Count::try_from(remaining(limit, shown, when)).expect("at most the capacity"),
            wait: if leaks && !denied { ends(limit, &before, when) } else { 0 },
            reset_after: ends(limit, shown, when),
            fits_after: if again > capacity(limit) {
                None
            } else if again <= remaining(limit, shown, when) {
                Some(0)
            } else {
                Some(wait(limit, shown, again, when))
            },
            took: if drained { 0 } else { u32::try_from(taken).expect("at most what was asked") },
        }
    }

    /// Takes one charge back.
    pub fn undo(&mut self, limit: &Limit, receipt: Receipt, bounds: Option<Bounds>, now: Micros) {
        let when = When { now: i128::from(now), bounds };
        if limit.requests() == 0 && !matches!(self, Self::Window(_)) {
            return;
        }
        let (before, stale) = self.now(limit, when);
        let mut after = before.clone();
        let (hits, mark, period) = (i128::from(receipt.hits), i128::from(receipt.mark), period(limit));
        // What has moved to another time is not the receipt's any more, and stays as it was. The two windows of a counter
        // are stored where they have moved to.
        if stale && matches!(before, Now::Hits(..)) && limit.algorithm() != Algorithm::SlidingWindowCounter {
            return;
        }
        match &mut after {
            Now::Window(start, ..) => {
                let its = match limit.algorithm().anchor() {
                    Anchor::Clock => *start / period % (1 << 21),
                    _ => *start,
                };
                if its == mark {
                    give(limit, &mut after, hits);
                }
            }
            Now::Hits(_, list) if limit.algorithm() == Algorithm::SlidingWindowLog => {
                let at = i128::from(receipt.at);
                // Undoing or refunding earlier ones has lowered its sum. [un-4]
                let its = list.iter().rposition(|hit| hit.sum <= mark && hit.place == at && hit.hits == hits);
                if let Some(its) = its {
                    list.remove(its);
                    for later in &mut list[its..] {
                        later.sum -= hits;
                    }
                }
            }
            Now::Hits(_, list) => {
                let mut rest = hits;
                for hit in list.iter_mut().filter(|hit| hit.place == mark) {
                    let gone = rest.min(hit.hits);
                    (hit.hits, rest) = (hit.hits - gone, rest - gone);
                }
                list.retain(|hit| hit.hits > 0);
            }
            Now::Debt(owed) => {
                let passed = (i128::from(now) - i128::from(receipt.at)).max(0);
                let left = (cost(limit, hits) - passed * rate(limit)).max(0);
                *owed = (*owed - left).max(0);
            }
            Now::Bucket(start, used) => {
                let returned = ((*start - mark).max(0) / period) * rate(limit);
                *used = (*used - (hits - returned).max(0)).max(0);
            }
        }
        if before != after || stale {
            self.keep(limit, after, when);
        }
    }

    /// The state as it is now, and whether it has to be kept as it is now, whatever happens.
    fn now(&self, limit: &Limit, when: When) -> (Now, bool) {
        let (now, period) = (when.now, period(limit));
        match self {
            Self::Window(kept) => {
                let (start, end) = when.window(limit);
                let Some((theirs, hits)) = kept.as_ref().filter(|(_, hits)| !hits.is_empty()) else {
                    return (Now::Window(start, end, Vec::new()), false);
                };
                let their_end = when.end_of(limit, *theirs);
                if *theirs > now && theirs - now > (end - start).max(period_of_first_hit(limit)).max(AHEAD_US) {
                    let end = if end == start { now + period } else { end };
                    (Now::Window(start, end, hits.clone()), true)
                } else if their_end > now {
                    (Now::Window(*theirs, their_end, hits.clone()), false)
                } else {
                    (Now::Window(start, end, Vec::new()), false)
                }
            }
            Self::Hits(written, list) => {
                let length = place_length(limit);
                let here = now.div_euclid(length) * length;
                // KeyIndices in time: where they begin.
                let of = |hit: &Hit| hit.place * place_unit(limit);
                let newest = match limit.algorithm() {
                    // Its two windows are those of the clock that it was written by.
                    Algorithm::SlidingWindowCounter if !list.is_empty() => *written,
                    _ => list.iter().map(of).max().unwrap_or(0),
                };
                let at = if newest > here { newest.max(now) } else { now };
                let live = list.iter().filter(|hit| counts(limit, of(hit), at));
                let live: Vec<Hit> = live.copied().collect();
                let ahead = if newest > now { newest - now } else { 0 };
                if ahead <= period.max(AHEAD_US) {
                    (Now::Hits(here.max(newest) / place_unit(limit), live), false)
                } else {
                    let moved = moved(limit, &live, here);
                    (Now::Hits(here / place_unit(limit), moved.clone()), !moved.is_empty())
                }
            }
            Self::Debt(None) => (Now::Debt(0), false),
            Self::Debt(Some(_)) if limit.requests() == 0 => (Now::Debt(0), false),
            Self::Debt(Some(debt)) => {
                let owed = debt.owed - debt.rate * (now - debt.at);
                if owed <= 0 {
                    return (Now::Debt(0), false);
                }
                let most = ceiling(limit);
                if debt.rate != rate(limit) {
                    // Hit-microseconds are hits times the period, which is part of the key: another limit owes the same.
                    let owed = owed.min(DEBT_US * debt.rate);
                    let many = limit.post_paid() && owed > (HITS_CONVERTED - 1) * period;
                    return (Now::Debt(if many { most } else { owed.min(most) }), true);
                }
                let far = owed.div_euclid(debt.rate) > most.div_euclid(debt.rate) + AHEAD_US;
                (Now::Debt(if far { most } else { owed }), far)
            }
            Self::Bucket(None) => (Now::Bucket(now, 0), false),
            Self::Bucket(Some(_)) if limit.requests() == 0 => (Now::Bucket(now, 0), false),
            Self::Bucket(Some((start, used))) => {
                let used = (*used).min(if limit.post_paid() { most(limit) } else { capacity(limit) });
                if *start > now {
                    let far = start - now > period.max(AHEAD_US);
                    return (Now::Bucket(if far { now } else { *start }, used), far);
                }
                let periods = (now - start) / period;
                let left = used - periods * rate(limit);
                (if left > 0 { Now::Bucket(start + periods * period, left) } else { Now::Bucket(now, 0) }, false)
            }
        }
    }

    fn keep(&mut self, limit: &Limit, state: Now, when: When) {
        *self = match state {
            Now::Window(start, _, hits) => Self::Window((!hits.is_empty()).then_some((start, hits))),
            Now::Hits(here, list) => Self::Hits(here, list),
            Now::Debt(owed) => Self::Debt((owed > 0).then_some(Debt { owed, at: when.now, rate: rate(limit) })),
            Now::Bucket(start, used) => Self::Bucket((used > 0).then_some((start, used))),
        };
    }
}

/// A clock, and the calendar around it.
#[derive(Clone, Copy, Debug)]
struct When {
    now: i128,
    bounds: Option<Bounds>,
}

impl When {
    /// The fixed window that a first hit would go to; one that has not begun is as short as nothing.
    fn window(self, limit: &Limit) -> (i128, i128) {
        match (limit.algorithm().anchor(), self.bounds) {
            (Anchor::Clock, _) => {
                let start = self.now / period(limit) * period(limit);
                (start, start + period(limit))
            }
            (Anchor::FirstHit, _) => (self.now, self.now),
            (Anchor::Calendar(_), bounds) => {
                // Days of 24 hours, for as long as anybody asks.
                let [_, start, end, _] = bounds.expect("a calendar's charge has bounds");
                let (start, day) = (i128::from(start), i128::from(end - start));
                let start = start + (self.now - start).div_euclid(day) * day;
                (start, start + day)
            }
        }
    }

    fn end_of(self, limit: &Limit, start: i128) -> i128 {
        match limit.algorithm().anchor() {
            Anchor::Clock | Anchor::FirstHit => start + period(limit),
            Anchor::Calendar(_) => Self { now: start, ..self }.window(limit).1,
        }
    }

    fn at(self, now: i128) -> Self {
        Self { now, ..self }
    }
}

fn rate(limit: &Limit) -> i128 {
    i128::from(limit.requests())
}

fn period(limit: &Limit) -> i128 {
    i128::from(limit.window().us())
}

/// What a window of the first hit is believed by: it has no length before it begins.
fn period_of_first_hit(limit: &Limit) -> i128 {
    if limit.algorithm().anchor() == Anchor::FirstHit { period(limit) } else { 0 }
}

fn capacity(limit: &Limit) -> i128 {
    match super::algorithms::burst(limit.algorithm()) {
        Some(burst) if limit.requests() > 0 => i128::from(burst),
        _ => i128::from(limit.requests()),
    }
}

/// A full burst, or for a post-paid limit the longest debt, in hit-microseconds.
fn ceiling(limit: &Limit) -> i128 {
    if limit.post_paid() { DEBT_US * rate(limit) } else { capacity(limit) * period(limit) }
}

/// The most tokens that can be used: what comes back within the longest debt, or a burst.
fn most(limit: &Limit) -> i128 {
    (DEBT_US / period(limit) * rate(limit)).min(COUNT).max(capacity(limit))
}

fn cost(limit: &Limit, hits: i128) -> i128 {
    (hits * period(limit)).min(DEBT_US * rate(limit))
}

/// How long a place is: hits within it are not told apart.
fn place_length(limit: &Limit) -> i128 {
    match limit.algorithm() {
        Algorithm::SlidingWindowCounter => period(limit),
        _ => sub_bucket(limit).map_or(1, i128::from),
    }
}

/// What a place is counted in: buckets have numbers, all else has times.
fn place_unit(limit: &Limit) -> i128 {
    sub_bucket(limit).map_or(1, i128::from)
}

/// Whether hits at a place still count, in part or whole.
fn counts(limit: &Limit, place: i128, at: i128) -> bool {
    match limit.algorithm() {
        // In this window of the clock, or in the one before.
        Algorithm::SlidingWindowCounter => at < place + 2 * period(limit),
        // As long as the place's last instant lies in the window that ends now.
        _ => place + place_length(limit) - 1 > at - period(limit),
    }
}

/// The hits that count, moved to now since they lie too far ahead of it.
fn moved(limit: &Limit, live: &[Hit], here: i128) -> Vec<Hit> {
    let log = limit.algorithm() == Algorithm::SlidingWindowLog;
    let hits: i128 = live.iter().map(|hit| hit.hits).sum();
    let hits = if log { hits } else { hits.min(COUNT) };
    let sum = live.last().map_or(0, |hit| hit.sum);
    let one = Hit { place: here / place_unit(limit), hits, sum };
    if hits > 0 { vec![one] } else { Vec::new() }
}

/// The hits that are used up now.
fn used(limit: &Limit, state: &Now, when: When) -> i128 {
    match state {
        Now::Window(_, _, hits) => hits.iter().sum(),
        Now::Hits(here, list) if limit.algorithm() == Algorithm::SlidingWindowCounter => {
            let of = |start: i128| -> i128 {
                let sum = list.iter().filter(|hit| hit.place == start).map(|hit| hit.hits).sum::<i128>();
                sum.min(COUNT)
            };
            let passed = (when.now - here).max(0);
            of(*here) + of(here - period(limit)) * (period(limit) - passed) / period(limit)
        }
        Now::Hits(_, list) => list.iter().map(|hit| hit.hits).sum(),
        Now::Debt(_) => unreachable!("debts are not counted in hits"),
        Now::Bucket(_, used) => *used,
    }
}

fn remaining(limit: &Limit, state: &Now, when: When) -> i128 {
    match state {
        _ if limit.requests() == 0 => 0,
        Now::Debt(owed) => (capacity(limit) * period(limit) - owed).max(0) / period(limit),
        state => (capacity(limit) - used(limit, state, when)).max(0),
    }
}

fn is_past(limit: &Limit, state: &Now, when: When) -> bool {
    match state {
        Now::Debt(owed) => *owed > capacity(limit) * period(limit),
        state => used(limit, state, when) > capacity(limit),
    }
}

fn is_empty(state: &Now) -> bool {
    match state {
        Now::Window(_, _, hits) => hits.is_empty(),
        Now::Hits(_, list) => list.is_empty(),
        Now::Debt(owed) => *owed == 0,
        Now::Bucket(_, used) => *used == 0,
    }
}

fn add(limit: &Limit, state: &mut Now, taken: i128, when: When) {
    match state {
        Now::Window(start, end, hits) => {
            if end == start {
                *end = when.now + period(limit);
            }
            // Only a limit that needs more counts more.
            let most = if capacity(limit) > COUNT { i128::from(COUNT_MAX) } else { COUNT };
            let room = most - hits.iter().sum::<i128>();
            if room > 0 {
                hits.push(taken.min(room));
            }
        }
        Now::Hits(here, list) if limit.algorithm() == Algorithm::SlidingWindowLog => {
            let sum = list.last().map_or(0, |hit| hit.sum) + taken;
            list.push(Hit { place: *here, hits: taken, sum });
        }
        Now::Hits(here, list) => {
            let room = COUNT - list.iter().filter(|hit| hit.place == *here).map(|hit| hit.hits).sum::<i128>();
            if room > 0 {
                list.push(Hit { place: *here, hits: taken.min(room), sum: 0 });
            }
        }
        Now::Debt(owed) => *owed = (*owed + cost(limit, taken)).min(DEBT_US * rate(limit)),
        Now::Bucket(_, used) => *used = (*used + taken).min(most(limit)),
    }
}

fn give(limit: &Limit, state: &mut Now, mut given: i128) {
    match state {
        Now::Window(_, _, hits) => {
            while let Some(last) = hits.pop() {
                if last > given {
                    hits.push(last - given);
                    return;
                }
                given -= last;
            }
        }
        Now::Hits(_, list) => {
            while let Some(last) = list.pop() {
                if last.hits > given {
                    list.push(Hit { hits: last.hits - given, sum: last.sum - given, ..last });
                    return;
                }
                given -= last.hits;
            }
        }
        Now::Debt(owed) => *owed = (*owed - cost(limit, given)).max(0),
        Now::Bucket(_, used) => *used = (*used - given).max(0),
    }
}

/// The state some time later, if nobody comes.
fn later(limit: &Limit, state: &Now, when: When, then: i128) -> Now {
    // More than is believed may have been reported, and is what is told of.
    let mut limit = limit.clone();
    limit.set_post_paid(true);
    let mut kept = Oracle::new(&limit);
    kept.keep(&limit, state.clone(), when);
    kept.now(&limit, when.at(then)).0
}

/// The wait until so many hits fit: found by asking.
fn wait(limit: &Limit, state: &Now, hits: i128, when: When) -> Micros {
    // Where nothing ever fits, what is told is when the window is over.
    if limit.requests() == 0 || (hits == 0 && !is_past(limit, state, when)) {
        return ends(limit, state, when);
    }
    first(when.now, |then| {
        let state = match state {
            Now::Debt(owed) => Now::Debt((owed - (then - when.now) * rate(limit)).max(0)),
            state => later(limit, state, when, then),
        };
        hits <= remaining(limit, &state, when.at(then))
    })
}

/// The wait until a state is worth nothing: found by asking. An empty window of the clock ends all the same.
fn ends(limit: &Limit, state: &Now, when: When) -> Micros {
    match state {
        Now::Window(_, end, _) if is_empty(state) => unsigned(end - when.now),
        Now::Hits(here, list) if list.is_empty() && limit.algorithm() == Algorithm::SlidingWindowCounter => {
            unsigned(here + period(limit) - when.now)
        }
        Now::Debt(owed) => first(when.now, |then| limit.requests() == 0 || *owed <= (then - when.now) * rate(limit)),
        state => first(when.now, |then| is_empty(&later(limit, state, when, then))),
    }
}

/// How long after `now` something is true for the first time, which then stays so.
fn first(now: i128, is_so: impl Fn(i128) -> bool) -> Micros {
    let mut high = 0;
    while !is_so(now + high) {
        high = high * 2 + 1;
        assert!(high < 1 << 90, "it is never so");
    }
    let mut low = 0;
    while low < high {
        let middle = low + (high - low) / 2;
        if is_so(now + middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    unsigned(high)
}

fn unsigned(us: i128) -> Micros {
    Micros::try_from(us).expect("a wait is not negative")
}
