//! Holds: the charges that a request opens, and the hits that a settle gives back or charges in addition. [hd-4] [hd-5]
//!
//! weir stores no holds: the caller keeps the receipt. The text of a receipt is in rls.

use std::sync::Arc;

use smallvec::SmallVec;
use weir_engine::observer::{HoldHits, HoldResult, Trace};
use weir_engine::{Charge, Hits, Operation, Receipt, key};
use weir_store::{GivenBack, Store, Undo};

use super::Query;
use super::matched::Decided;
use super::reserved::undo_all;
use super::stores::{Request, Stores};

/// The most charges of one receipt. [hd-4]
pub const HOLDS_MAX: usize = 64;

/// A charge of an admitted request that its caller settles later. [hd-4]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCharge {
    /// The hash of its key: [`key::number`].
    pub key: u64,
    pub store: HeldIn,
    pub receipt: Receipt,
}

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
    /// The charges of the receipt, at most [`HOLDS_MAX`]. Empty if the caller had no receipt.
    pub holds: Vec<HeldCharge>,
}

impl Settle {
    /// Whether this descriptor settles.
    #[must_use]
    pub const fn has(&self, descriptor: usize) -> bool {
        self.descriptors >> descriptor & 1 == 1
    }
}

/// The parts of a settle, once its charges are known.
#[derive(Default)]
pub(super) struct Settling {
    /// The hits to give back in the call of the decision.
    pub(super) given_back: SmallVec<[GivenBack; 1]>,
    /// The hits to give back in the memory of this process. They were charged there while the store gave no answer.
    from_local: SmallVec<[GivenBack; 1]>,
    /// Holds whose hits were all used.
    settled: u64,
    /// Holds whose requests used more than was held. The decision charges the excess, once for each key.
    excesses: u64,
    /// Holds whose key is not in the request or not certain, or whose state is in another process.
    lost: u64,
}

impl Stores {
    /// Returns the charges that the caller of an admitted request settles later. Charges past the bound, and those of
    /// different keys with one number, stay charged. [hd-4]
    pub(super) fn opened(&self, decided: &Decided<'_>, trace: Option<&dyn Trace>) -> Vec<HeldCharge> {
        let mut holds: Vec<HeldCharge> = Vec::new();
        let mut keys: SmallVec<[&str; 4]> = SmallVec::new();
        let mut ambiguous = Vec::new();
        let (mut opened, mut held) = (0, 0);
        for (charge, origin, outcome) in decided.iter() {
            let (true, Operation::Consume(_), Some(receipt)) = (charge.limit.hold, charge.operation, outcome.receipt)
            else {
                continue;
            };
            (opened, held) = (opened + 1, held + u64::from(receipt.hits));
            if holds.is_empty() {
                // Most requests open one hold.
                holds.reserve_exact(1);
            }
            if holds.len() < HOLDS_MAX {
                let store = if origin.is_local {
                    HeldIn::Process(self.options.process)
                } else {
                    self.held_in(self.store_of(charge.limit, origin.is_single))
                };
                let number = key::number(charge.key);
                let mut others = holds.iter().zip(&keys);
                if others.any(|(hold, key)| hold.key == number && *key != charge.key) {
                    ambiguous.push(number);
                }
                keys.push(charge.key);
                holds.push(HeldCharge { key: number, store, receipt });
            }
        }
        if !ambiguous.is_empty() {
            holds.retain(|hold| !ambiguous.contains(&hold.key));
        }
        if opened > 0 {
            self.count_holds(trace, HoldResult::Opened, opened);
            self.count_holds(trace, HoldResult::Lost, opened - holds.len() as u64);
            self.count_hold_hits(trace, HoldHits::Held, held);
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

    /// Returns the store of a held charge: `now`, the current store of the key, or the memory of this process. `None` for
    /// any other store.
    fn holding<'s>(&'s self, hold: HeldIn, now: &'s Arc<dyn Store>) -> Option<&'s Arc<dyn Store>> {
        if self.held_in(now) == hold {
            return Some(now);
        }
        let is_ours = hold == HeldIn::Process(self.options.process);
        self.options.local.as_ref().filter(|_| is_ours)
    }

    /// Replaces the charges of a settle by the hits that it still has to charge: the excess of a hold, once for each
    /// key. Returns the hits to give back. [hd-5]
    fn settling(
        &self,
        request: &Request<'_, '_>,
        query: &Query<'_>,
        settle: &Settle,
        charges: &mut [Charge<'_>],
    ) -> Settling {
        let mut settling = Settling::default();
        let mut keyed: SmallVec<[(u64, usize); 4]> = charges
            .iter()
            .enumerate()
            .filter(|(_, charge)| charge.limit.hold && settle.has(usize::from(charge.group)))
            .map(|(at, charge)| (key::number(charge.key), at))
            .collect();
        keyed.sort_unstable();
        let mut named = 0;
        for of_key in keyed.chunk_by(|(one, _), (other, _)| one == other) {
            let (number, first) = of_key[0];
            if of_key.iter().any(|&(_, at)| charges[at].key != charges[first].key) {
                // The receipt does not say which of these keys it charged.
                continue;
            }
            let used = of_key.iter().map(|&(_, at)| hits_of(query, &charges[at]));
            let mut left = used.fold(0, Hits::saturating_add);
            let now = self.store_of(charges[first].limit, request.matched.origins[first].is_single);
            let mut is_held = false;
            for hold in settle.holds.iter().filter(|hold| hold.key == number) {
                named += 1;
                let from = match self.holding(hold.store, now) {
                    None => {
                        settling.lost += 1;
                        continue;
                    }
                    Some(store) if Arc::ptr_eq(store, now) => &mut settling.given_back,
                    Some(_) => &mut settling.from_local,
                };
                let kept = left.min(hold.receipt.hits);
                left -= kept;
                is_held = true;
                match hold.receipt.hits - kept {
                    0 => settling.settled += 1,
                    hits => from.push(GivenBack {
                        charge: u16::try_from(first).expect("a request has a few hundred charges"),
                        receipt: Receipt { hits, ..hold.receipt },
                    }),
                }
            }
            if is_held && left > 0 {
                // One of the fully used holds is settled by this charge.
                (settling.settled, settling.excesses) = (settling.settled - 1, settling.excesses + 1);
                charges[first].operation = Operation::Report(left);
            }
        }
        settling.lost += settle.holds.len() as u64 - named;
        settling
    }

    /// Same as `settling`. Also gives back the hits that are not in the store of the decision.
    pub(super) async fn begin_settle(
        &self,
        request: &Request<'_, '_>,
        query: &Query<'_>,
        settle: &Settle,
        charges: &mut [Charge<'_>],
    ) -> Box<Settling> {
        let settling = Box::new(self.settling(request, query, settle, charges));
        if !request.is_again {
            if settle.holds.is_empty() {
                self.count_holds(request.trace, HoldResult::Reported, 1);
            }
            if !settling.from_local.is_empty() {
                // A box, because few settles wait for this.
                Box::pin(self.give_back_local(request, &settling, charges)).await;
            }
        }
        settling
    }

    /// Counts the holds of a settle that give nothing back: settled holds, charged excesses, and lost holds. [hd-6]
    pub(super) fn end_settle(&self, settling: &Settling, decided: Option<&Decided<'_>>, trace: Option<&dyn Trace>) {
        let (mut charged, mut hits) = (0, 0);
        for (charge, ..) in decided.into_iter().flat_map(Decided::iter).take_while(|_| settling.excesses > 0) {
            if let (true, Operation::Report(excess)) = (charge.limit.hold, charge.operation) {
                (charged, hits) = (charged + 1, hits + u64::from(excess));
            }
        }
        self.count_holds(trace, HoldResult::Settled, settling.settled + charged);
        self.count_holds(trace, HoldResult::Lost, settling.lost + settling.excesses.saturating_sub(charged));
        self.count_hold_hits(trace, HoldHits::Excess, hits);
    }

    /// Settles holds without a decision.
    pub(super) async fn settle_alone(
        &self,
        request: &Request<'_, '_>,
        query: &Query<'_>,
        settle: &Settle,
        charges: &mut [Charge<'_>],
    ) {
        let settling = self.settling(request, query, settle, charges);
        let origins = &request.matched.origins;
        let store_of = |at: usize| Some(self.store_of(charges[at].limit, origins[at].is_single));
        self.give_back_alone(request, &settling.given_back, charges, store_of).await;
        self.give_back_local(request, &settling, charges).await;
        self.end_settle(&settling, None, None);
    }

    async fn give_back_local(&self, request: &Request<'_, '_>, settling: &Settling, charges: &[Charge<'_>]) {
        let local = |_| self.options.local.as_ref();
        self.give_back_alone(request, &settling.from_local, charges, local).await;
    }

    /// Gives hits back without a decision. weir does not retry a failed call. [hd-6]
    async fn give_back_alone<'s>(
        &'s self,
        request: &Request<'_, '_>,
        given_back: &[GivenBack],
        charges: &[Charge<'_>],
        store_of: impl Fn(usize) -> Option<&'s Arc<dyn Store>>,
    ) {
        let undo = |back: &GivenBack| {
            let &Charge { key, limit, .. } = &charges[usize::from(back.charge)];
            let bounds = self.calendar.bounds(limit, self.options.clock.now());
            Some((store_of(usize::from(back.charge))?, Undo { key, limit, receipt: back.receipt, bounds }))
        };
        let undos: Vec<_> = given_back.iter().filter_map(undo).collect();
        let confirmed = undo_all(&undos, request.deadline).await;
        for (back, is_confirmed) in given_back.iter().zip(confirmed) {
            self.gave_back(request, std::slice::from_ref(back), charges, is_confirmed);
        }
    }

    /// Counts the holds of a call that gave hits back.
    pub(super) fn gave_back(
        &self,
        request: &Request<'_, '_>,
        given_back: &[GivenBack],
        charges: &[Charge<'_>],
        is_confirmed: bool,
    ) {
        let result = if is_confirmed { HoldResult::Settled } else { HoldResult::Lost };
        self.count_holds(request.trace, result, given_back.len() as u64);
        for back in given_back {
            if is_confirmed {
                self.count_hold_hits(request.trace, HoldHits::GivenBack, u64::from(back.receipt.hits));
            }
            // These hits may have caused the denials in the cache.
            if let Some(cache) = &self.options.deny_cache {
                cache.forget(charges[usize::from(back.charge)].key);
            }
        }
    }

    fn count_holds(&self, trace: Option<&dyn Trace>, result: HoldResult, count: u64) {
        if count > 0 {
            self.observer.holds(result, count);
            if let Some(trace) = trace {
                trace.holds(result, count);
            }
        }
    }

    fn count_hold_hits(&self, trace: Option<&dyn Trace>, kind: HoldHits, hits: u64) {
        if hits > 0 {
            self.observer.hold_hits(kind, hits);
            if let Some(trace) = trace {
                trace.hold_hits(kind, hits);
            }
        }
    }
}

/// The used hits of the descriptor of this charge, according to the caller. Always 0 for a permit. [cc-5]
fn hits_of(query: &Query<'_>, charge: &Charge<'_>) -> Hits {
    match query.descriptors[usize::from(charge.group)].operation {
        Operation::Consume(_) if charge.limit.algorithm().counts_permits() => 0,
        Operation::Consume(hits) => hits,
        // A settle itself refunds and reports nothing.
        Operation::Peek | Operation::Refund(_) | Operation::Report(_) => 0,
    }
}
