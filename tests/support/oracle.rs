//! A second opinion on every limit, written from the semantics and not from the engine, by other arithmetic: windows as
//! lists of the hits in them, with absolute window numbers; debts as one whole number of hit-microseconds, in which a
//! debt of `us + f / L` microseconds and one of `hits` hits are both plain products. One key, one charge a decision.

use weir::engine::{Algorithm, Limit, Micros, Mode, Receipt, Take, Verdict};

/// How far ahead of the clock a state may lie, beyond what its limit explains.
const AHEAD_US: i128 = 60_000_000;
/// The longest debt.
const DEBT_US: i128 = 1 << 48;
/// Post-paid debts of this many hits and more are the longest, when the limit changes.
const HITS_CONVERTED: i128 = 1 << 49;
/// The largest count.
const COUNT: i128 = (1 << 32) - 1;

/// What it says of one charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether the charge fits.
    pub verdict: Verdict,
    /// The hits that would have fitted.
    pub remaining_before: u32,
    /// The hits that fit in the state shown.
    pub remaining: u32,
    /// When the state shown is worth nothing.
    pub reset_after: Micros,
    /// The hits taken.
    pub took: u32,
}

/// Everything that one key has seen and still holds.
#[derive(Clone, Debug)]
pub enum Oracle {
    /// The hits of one window: its number since the epoch, and each hit's size.
    Window(Option<(i128, Vec<i128>)>),
    /// `owed` hit-microseconds at `at`, paid back by `rate` of them in each microsecond.
    Debt(Option<Debt>),
}

/// A debt as it was last written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt {
    owed: i128,
    at: i128,
    rate: i128,
}

/// A copy of the state, as of now.
#[derive(Clone, Debug)]
enum Now {
    Window(i128, Vec<i128>),
    Debt(i128),
}

impl Oracle {
    /// Nothing taken yet.
    pub fn new(limit: &Limit) -> Self {
        match limit.algorithm() {
            Algorithm::FixedWindow => Self::Window(None),
            Algorithm::Gcra { .. } => Self::Debt(None),
        }
    }

    /// One decision of one enforced charge.
    pub fn decide(&mut self, limit: &Limit, take: Take, mode: Mode, now: Micros) -> Told {
        let (before, stale) = self.now(limit, now);
        let fits = remaining(limit, &before);
        let asked = match take {
            Take::Take(hits) | Take::Force(hits) => Some(i128::from(hits)),
            Take::Look if mode == Mode::Atomic => Some(1),
            Take::Look => (is_past(limit, &before)).then_some(1),
            Take::Give(_) => None,
        };
        let verdict = match asked {
            // An independent look past the limit is over although nothing is asked of it.
            Some(hits) if hits <= fits && !(take == Take::Look && mode == Mode::Independent) => Verdict::Within,
            Some(hits) if hits > capacity(limit) => Verdict::Never,
            Some(hits) => Verdict::Over { retry_after: unsigned(wait(limit, &before, hits, now)) },
            None => Verdict::Within,
        };

        let windowed = matches!(before, Now::Window(..));
        let stateless = limit.requests() == 0 && !windowed;
        let taken = match take {
            _ if stateless => 0,
            Take::Force(hits) => i128::from(hits),
            Take::Take(hits) if verdict == Verdict::Within => i128::from(hits),
            Take::Take(hits) if mode == Mode::Independent && windowed => i128::from(hits),
            Take::Take(_) if limit.drain => fits,
            Take::Take(_) | Take::Look | Take::Give(_) => 0,
        };
        let mut after = before.clone();
        if taken > 0 {
            add(limit, &mut after, taken);
        }
        if let Take::Give(hits) = take
            && !stateless
        {
            give(limit, &mut after, i128::from(hits));
        }
        let wrote = taken > 0 || (matches!(take, Take::Give(_)) && !is_empty(&before));
        if wrote || stale {
            self.keep(limit, after.clone(), now);
        }

        let denied = verdict != Verdict::Within;
        let shown = if denied && mode == Mode::Atomic { before } else { after };
        let drained = denied && mode == Mode::Atomic && matches!(take, Take::Take(_));
        Told {
            verdict,
            remaining_before: u32::try_from(fits).expect("at most the capacity"),
            remaining: u32::try_from(remaining(limit, &shown)).expect("at most the capacity"),
            reset_after: unsigned(ends(limit, &shown, now)),
            took: if drained { 0 } else { u32::try_from(taken).expect("at most what was asked") },
        }
    }

    /// Takes one charge back.
    pub fn undo(&mut self, limit: &Limit, receipt: Receipt, now: Micros) {
        let (before, stale) = self.now(limit, now);
        let mut after = before.clone();
        match &mut after {
            Now::Window(window, _) if i128::from(receipt.mark) != *window % (1 << 21) => {}
            Now::Window(..) => give(limit, &mut after, i128::from(receipt.hits)),
            Now::Debt(owed) => {
                let passed = (i128::from(now) - i128::from(receipt.at)).max(0);
                let left = (cost(limit, i128::from(receipt.hits)) - passed * rate(limit)).max(0);
                *owed = (*owed - left).max(0);
            }
        }
        let changed = match (&before, &after) {
            (Now::Window(_, before), Now::Window(_, after)) => before != after,
            (Now::Debt(before), Now::Debt(after)) => before != after,
            _ => unreachable!("a state keeps its kind"),
        };
        if changed || stale {
            self.keep(limit, after, now);
        }
    }

    /// The state as it is now, and whether it has to be kept as it is now, whatever happens.
    fn now(&self, limit: &Limit, now: Micros) -> (Now, bool) {
        let now = i128::from(now);
        let period = i128::from(limit.window().us());
        match self {
            Self::Window(kept) => {
                let here = now / period;
                match kept {
                    Some((window, hits)) if *window > here => {
                        let believed = window * period - now <= period.max(AHEAD_US);
                        (Now::Window(if believed { *window } else { here }, hits.clone()), !believed)
                    }
                    Some((window, hits)) if *window == here => (Now::Window(here, hits.clone()), false),
                    _ => (Now::Window(here, Vec::new()), false),
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
                    let many = limit.post_paid && owed > (HITS_CONVERTED - 1) * period;
                    return (Now::Debt(if many { most } else { owed.min(most) }), false);
                }
                let far = owed.div_euclid(debt.rate) > most.div_euclid(debt.rate) + AHEAD_US;
                (Now::Debt(owed.min(most)), far)
            }
        }
    }

    fn keep(&mut self, limit: &Limit, state: Now, now: Micros) {
        *self = match state {
            Now::Window(window, hits) => Self::Window((!hits.is_empty()).then_some((window, hits))),
            Now::Debt(owed) => Self::Debt((owed > 0).then_some(Debt { owed, at: i128::from(now), rate: rate(limit) })),
        };
    }
}

fn rate(limit: &Limit) -> i128 {
    i128::from(limit.requests())
}

fn capacity(limit: &Limit) -> i128 {
    match limit.algorithm() {
        Algorithm::Gcra { burst } if limit.requests() > 0 => i128::from(burst),
        _ => i128::from(limit.requests()),
    }
}

/// A full burst, or for a post-paid limit the longest debt, in hit-microseconds.
fn ceiling(limit: &Limit) -> i128 {
    if limit.post_paid { DEBT_US * rate(limit) } else { capacity(limit) * i128::from(limit.window().us()) }
}

fn cost(limit: &Limit, hits: i128) -> i128 {
    (hits * i128::from(limit.window().us())).min(DEBT_US * rate(limit))
}

fn used(hits: &[i128]) -> i128 {
    hits.iter().sum()
}

fn remaining(limit: &Limit, state: &Now) -> i128 {
    match state {
        Now::Window(_, hits) => (capacity(limit) - used(hits)).max(0),
        Now::Debt(_) if limit.requests() == 0 => 0,
        Now::Debt(owed) => {
            let period = i128::from(limit.window().us());
            (capacity(limit) * period - owed).max(0) / period
        }
    }
}

fn is_past(limit: &Limit, state: &Now) -> bool {
    match state {
        Now::Window(_, hits) => used(hits) > capacity(limit),
        Now::Debt(owed) => *owed > capacity(limit) * i128::from(limit.window().us()),
    }
}

fn is_empty(state: &Now) -> bool {
    match state {
        Now::Window(_, hits) => hits.is_empty(),
        Now::Debt(owed) => *owed == 0,
    }
}

fn add(limit: &Limit, state: &mut Now, taken: i128) {
    match state {
        Now::Window(_, hits) => {
            let room = COUNT - used(hits);
            if room > 0 {
                hits.push(taken.min(room));
            }
        }
        Now::Debt(owed) => *owed = (*owed + cost(limit, taken)).min(DEBT_US * rate(limit)),
    }
}

fn give(limit: &Limit, state: &mut Now, mut given: i128) {
    match state {
        Now::Window(_, hits) => {
            while let Some(last) = hits.pop() {
                if last > given {
                    hits.push(last - given);
                    return;
                }
                given -= last;
            }
        }
        Now::Debt(owed) => *owed = (*owed - cost(limit, given)).max(0),
    }
}

/// The wait until so many hits fit: found by asking, for windows, and rounded up, for debts.
fn wait(limit: &Limit, state: &Now, hits: i128, now: Micros) -> i128 {
    match state {
        Now::Window(..) => ends(limit, state, now),
        Now::Debt(owed) => {
            let missing = owed + cost(limit, hits) - capacity(limit) * i128::from(limit.window().us());
            up(missing, rate(limit))
        }
    }
}

fn ends(limit: &Limit, state: &Now, now: Micros) -> i128 {
    match state {
        Now::Window(window, _) => (window + 1) * i128::from(limit.window().us()) - i128::from(now),
        Now::Debt(_) if limit.requests() == 0 => 0,
        Now::Debt(owed) => up(*owed, rate(limit)),
    }
}

fn up(a: i128, b: i128) -> i128 {
    (a + b - 1).div_euclid(b)
}

fn unsigned(us: i128) -> Micros {
    Micros::try_from(us).expect("a wait is not negative")
}
