//! Holds: what a request opens, and what a settle gives back or charges on top. [hd-4] [hd-5]
//!
//! weir keeps nothing of a hold: the caller keeps the receipt. Not here: the receipt as a text (rls).

use std::sync::Arc;

use weir_engine::observer::{HoldHits, HoldResult};
use weir_engine::{Charge, Hits, Operation, Receipt, key};
use weir_store::{Store, Undo};

use super::Query;
use super::plan::Decided;
use super::reserved::undo_all;
use super::stores::{Request, Stores};

/// The most charges of one receipt. [hd-4]
pub const HOLDS_MAX: usize = 64;

/// A charge of an admitted request that its caller settles later. [hd-4]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCharge {
    /// What stands for its key: [`key::number`].
    pub key: u64,
    /// Where its state is.
    pub store: HeldIn,
    /// What was charged.
    pub receipt: Receipt,
}

/// The store of a held charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldIn {
    /// The store of all states, if it is outside of this process.
    Shared,
    /// The store of single limits per second. [st-3]
    PerSecond,
    /// The memory store of the process with this number.
    Process(u64),
}

/// The descriptors of a request that settle holds. [hd-5]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settle {
    /// Which descriptors these are: a bit for each.
    pub descriptors: u64,
    /// The charges of the receipt, at most [`HOLDS_MAX`]; none where the caller had no receipt.
    pub holds: Vec<HeldCharge>,
}

impl Settle {
    /// Whether this descriptor settles.
    #[must_use]
    pub const fn has(&self, descriptor: usize) -> bool {
        self.descriptors >> descriptor & 1 == 1
    }
}

/// What a settle has found out, and what the decision after it has to charge.
#[derive(Clone, Copy, Default)]
pub(super) struct Settling {
    /// Holds of which more was used than held: the decision charges the excess, one for each key.
    excesses: u64,
}

impl Stores {
    /// The charges that the caller of an admitted request settles later. Those past the bound stay as they are. [hd-4]
    pub(super) fn opened(&self, decided: &Decided<'_>) -> Vec<HeldCharge> {
        let mut holds = Vec::new();
        let (mut opened, mut held) = (0, 0);
        for (charge, planned, outcome) in decided.iter() {
            let (true, Operation::Consume(_), Some(receipt)) = (charge.limit.hold, charge.operation, outcome.receipt)
            else {
                continue;
            };
            (opened, held) = (opened + 1, held + u64::from(receipt.hits));
            if holds.len() < HOLDS_MAX {
                let store = if planned.is_local {
                    HeldIn::Process(self.options.process)
                } else {
                    self.held_in(self.store_of(charge.limit, planned.is_single))
                };
                holds.push(HeldCharge { key: key::number(charge.key), store, receipt });
            }
        }
        if opened > 0 {
            self.count_holds(HoldResult::Opened, opened);
            self.count_holds(HoldResult::Lost, opened - holds.len() as u64);
            self.observer.hold_hits(HoldHits::Held, held);
        }
        holds
    }

    fn held_in(&self, store: &Arc<dyn Store>) -> HeldIn {
        match &self.options.per_second {
            _ if store.is_immediate() => HeldIn::Process(self.options.process),
            Some(per_second) if Arc::ptr_eq(store, per_second) => HeldIn::PerSecond,
            _ => HeldIn::Shared,
        }
    }

    /// The store that has a held charge, if it is one of this process's: `now` is the one that has the key.
    fn holding<'s>(&'s self, hold: HeldIn, now: &'s Arc<dyn Store>) -> Option<&'s Arc<dyn Store>> {
        if self.held_in(now) == hold {
            return Some(now);
        }
        let is_ours = hold == HeldIn::Process(self.options.process);
        self.options.local.as_ref().filter(|_| is_ours)
    }

    /// Gives back what a settle's descriptors have not used, and makes their charges what is still to be charged: the excess
    /// of a hold, once for each key. Nothing that fails is tried again. [hd-5] [hd-6]
    pub(super) async fn settle(
        &self,
        request: &Request<'_, '_>,
        query: &Query<'_>,
        settle: &Settle,
        charges: &mut [Charge<'_>],
    ) -> Settling {
        let mut settling = Settling::default();
        if settle.holds.is_empty() {
            self.count_holds(HoldResult::Reported, 1);
            return settling;
        }
        let mut keyed: Vec<(u64, usize)> = charges
            .iter()
            .enumerate()
            .filter(|(_, charge)| charge.limit.hold && settle.has(usize::from(charge.group)))
            .map(|(at, charge)| (key::number(charge.key), at))
            .collect();
        keyed.sort_unstable();
        let mut undos: Vec<(&Arc<dyn Store>, Undo<'_>)> = Vec::new();
        let (mut named, mut settled, mut lost) = (0, 0, 0);
        for of_key in keyed.chunk_by(|(one, _), (other, _)| one == other) {
            let (number, first) = of_key[0];
            let used = of_key.iter().map(|&(_, at)| hits_of(query, &charges[at]));
            let mut left = used.fold(0, Hits::saturating_add);
            let charge = &charges[first];
            let now = self.store_of(charge.limit, request.plan.planned[first].is_single);
            let mut is_held = false;
            for hold in settle.holds.iter().filter(|hold| hold.key == number) {
                named += 1;
                let Some(store) = self.holding(hold.store, now) else {
                    lost += 1;
                    continue;
                };
                let kept = left.min(hold.receipt.hits);
                left -= kept;
                is_held = true;
                match hold.receipt.hits - kept {
                    0 => settled += 1,
                    back => {
                        let receipt = Receipt { hits: back, ..hold.receipt };
                        let bounds = self.calendar.bounds(charge.limit, self.options.clock.now());
                        undos.push((store, Undo { key: charge.key, limit: charge.limit, receipt, bounds }));
                    }
                }
            }
            if is_held && left > 0 {
                // One of those that were used up is settled when this is charged.
                (settled, settling.excesses) = (settled - 1, settling.excesses + 1);
                charges[first].operation = Operation::Report(left);
            }
        }
        let confirmed = undo_all(&undos, request.deadline).await;
        let mut given_back = 0;
        for ((_, undo), is_confirmed) in undos.iter().zip(confirmed) {
            if is_confirmed {
                (settled, given_back) = (settled + 1, given_back + u64::from(undo.receipt.hits));
            } else {
                lost += 1;
            }
            // What was denied meanwhile may have been denied because of these hits.
            if let Some(cache) = &self.options.deny_cache {
                cache.forget(undo.key);
            }
        }
        lost += settle.holds.len() as u64 - named;
        self.count_holds(HoldResult::Settled, settled);
        self.count_holds(HoldResult::Lost, lost);
        self.observer.hold_hits(HoldHits::GivenBack, given_back);
        settling
    }

    /// Counts the excesses that the decision of a settle has charged, and those that it could not. [hd-6]
    pub(super) fn settled(&self, settling: &Settling, decided: Option<&Decided<'_>>) {
        if settling.excesses == 0 {
            return;
        }
        let (mut charged, mut hits) = (0, 0);
        for (charge, ..) in decided.into_iter().flat_map(Decided::iter) {
            if let (true, Operation::Report(excess)) = (charge.limit.hold, charge.operation) {
                (charged, hits) = (charged + 1, hits + u64::from(excess));
            }
        }
        self.count_holds(HoldResult::Settled, charged);
        self.count_holds(HoldResult::Lost, settling.excesses.saturating_sub(charged));
        self.observer.hold_hits(HoldHits::Excess, hits);
    }

    fn count_holds(&self, result: HoldResult, count: u64) {
        if count > 0 {
            self.observer.holds(result, count);
        }
    }
}

/// What the caller says was used, of the descriptor of this charge. Of a permit it is always nothing. [cc-5]
fn hits_of(query: &Query<'_>, charge: &Charge<'_>) -> Hits {
    match query.descriptors[usize::from(charge.group)].operation {
        Operation::Consume(_) if charge.limit.algorithm().counts_permits() => 0,
        Operation::Consume(hits) => hits,
        // A settle refunds and reports nothing by itself.
        Operation::Peek | Operation::Refund(_) | Operation::Report(_) => 0,
    }
}
