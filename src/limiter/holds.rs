//! Holds: the charges that a request opens, and the hits that a settle gives back or charges in addition. [hd-4] [hd-5]
//!
//! weir stores no holds: the caller keeps the receipt. `opened` makes it from a decided plan. `begin_settle` plans a settle
//! before the decision, and `end_settle` counts it afterwards. If a part of the plan gets no answer (execute.rs):
//!
//! - An opening: `on_error` decides. If the request passes, the receipt has the charges of the other parts. If it does not, they
//!   are taken back. If the call may have been made, its charge can stand without a receipt, until the reset.
//! - A settle: each part takes back its own holds. Those of the part without an answer are lost. If `on_error` is `error`, the
//!   failure is unknown, so that no client sends the settle again. [hd-6]
//!
//! The text of a receipt is in rls.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;
use weir_engine::descriptor::saturated;
use weir_engine::observer::{HoldHits, HoldResult};
use weir_engine::{Charge, Count, Decision, Group, Hits, Limit, Operation, Receipt, Window, key, overrides};
use weir_store::{Store, Undo};

use super::Query;
use super::call::Sent;
use super::matched::Matched;
use super::plan::Plan;
use super::request::Request;
use super::stores::Stores;

/// The most charges of one receipt. [hd-4]
pub const HOLDS_MAX: usize = 64;
/// The most limits of overrides in one receipt whose keys a settle tries. Charges of others are lost. [ov-4]
const OVERRIDDEN_MAX: usize = 8;

/// A charge of an admitted request that its caller settles later. [hd-4]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCharge {
    /// The hash of its key: [`key::number`].
    pub key: u64,
    pub store: HeldIn,
    pub receipt: Receipt,
    /// If an override gave the limit another window than its rule has. [ov-4]
    pub overridden: Option<OverriddenLimit>,
}

/// A limit in the window of an override. The window is part of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverriddenLimit {
    /// Its position in its rule.
    pub position: u8,
    pub window: Window,
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
    pub const fn has(&self, group: Group) -> bool {
        self.descriptors & group.bit() != 0
    }

    /// Whether the receipt has a hold of the limit at this position, in this window of an override or of a request. [ov-4]
    pub(super) fn has_overridden(&self, position: u8, window: Window) -> bool {
        self.holds.iter().any(|hold| hold.overridden == Some(OverriddenLimit { position, window }))
    }

    /// The most hits that the receipt can give back for each descriptor that settles: the hits of one key, divided by the
    /// number of these descriptors and rounded up. [cr-4]
    pub(super) fn most_hits_of_descriptor(&self) -> u64 {
        let of_key =
            |key| self.holds.iter().filter(|hold| hold.key == key).map(|hold| u64::from(hold.receipt.hits)).sum();
        let most: u64 = self.holds.iter().map(|hold| of_key(hold.key)).max().unwrap_or_default();
        most.div_ceil(u64::from(self.descriptors.count_ones().max(1)))
    }
}

/// What a settle has, except the charges and the undos in its plan.
#[derive(Default)]
pub(super) struct Settling<'s, 'a> {
    /// The holds to take back by calls before the decision: of limits that are no longer in force or do not apply now, and in
    /// the memory of this process while the store gave no answer.
    before: Vec<UndoBefore<'s, 'a>>,
    /// Holds whose hits were all used.
    used_up: Vec<Undo<'a>>,
    /// Holds whose requests used more than was held. The decision charges the excess, once for each key.
    excesses: Vec<Excess<'a>>,
    /// Holds whose key is not in the request or not certain, or whose state is in another process.
    lost: u64,
}

struct UndoBefore<'s, 'a> {
    store: &'s Arc<dyn Store>,
    /// The descriptor. Its keys share a slot.
    group: Group,
    undo: Undo<'a>,
}

struct Excess<'a> {
    held: Undo<'a>,
    /// The key to which the excess is charged.
    key: &'a str,
}

/// Which calls take holds back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SettledBy {
    /// The call of the decision, as far as possible.
    Decision,
    /// Calls of their own: there is no decision.
    OwnCalls,
}

/// A hold of a receipt, and the limit of its key if that is not in force.
type NamedHold<'h, 'a> = (&'h HeldCharge, Option<&'a FormerLimit>);

/// A limit that a charge had before an override began or ended. [ov-4]
pub(super) struct FormerLimit {
    /// The number of the key in force.
    in_force: u64,
    /// The number of its own key.
    number: u64,
    overridden: Option<OverriddenLimit>,
    key: String,
    limit: Limit,
}

/// The former limits that a receipt can name: the rule's own, and those of the overrides in it.
pub(super) fn former_limits(settle: &Settle, plan: &Plan<'_, '_>) -> Vec<FormerLimit> {
    let mut former: Vec<FormerLimit> = Vec::new();
    let mut of_overrides: SmallVec<[OverriddenLimit; 1]> = SmallVec::new();
    for one in settle.holds.iter().filter_map(|hold| hold.overridden) {
        if of_overrides.len() < OVERRIDDEN_MAX && !of_overrides.contains(&one) {
            of_overrides.push(one);
        }
    }
    for charge in plan.charges.iter().filter(|charge| settle.settles(charge)) {
        let Charge { key, limit: now, .. } = *charge;
        let Some(own) = plan.matched.limit_of_rule(charge.origin) else { continue };
        if of_overrides.is_empty() && own.id() == now.id() {
            continue;
        }
        let tag = key.strip_suffix(now.id()).unwrap_or(key);
        let of_position = of_overrides.iter().filter(|one| one.position == charge.origin.position);
        let in_windows = of_position.filter_map(|one| Some((Some(*one), overrides::in_window(own, one.window)?)));
        for (overridden, limit) in std::iter::once((None, own.clone())).chain(in_windows) {
            if limit.id() != now.id() {
                let (in_force, key) = (key::number(key), format!("{tag}{}", limit.id()));
                former.push(FormerLimit { in_force, number: key::number(&key), overridden, key, limit });
            }
        }
    }
    former
}

impl Settle {
    /// Whether this charge is of a hold that the request settles.
    fn settles(&self, charge: &Charge<'_>) -> bool {
        charge.limit.hold && self.has(charge.origin.group)
    }
}

impl Stores {
    /// Returns the charges that the caller of an admitted request settles later. Charges past the bound, and those of
    /// different keys with one number, stay charged. [hd-4]
    pub(super) fn opened(&self, request: &Request<'_, '_>, plan: &Plan<'_, '_>) -> Vec<HeldCharge> {
        let mut holds: Vec<HeldCharge> = Vec::new();
        let mut keys: SmallVec<[&str; 4]> = SmallVec::new();
        let mut ambiguous = Vec::new();
        let (mut opened, mut held) = (0, 0);
        for (charge, outcome) in plan.decided() {
            let (true, Operation::Consume(_), Some(receipt)) = (charge.limit.hold, charge.operation, outcome.receipt)
            else {
                continue;
            };
            opened += 1;
            held += u64::from(receipt.hits);
            if holds.is_empty() {
                // Most requests open one hold.
                holds.reserve_exact(1);
            }
            if holds.len() < HOLDS_MAX {
                let store = if charge.origin.is_local {
                    HeldIn::Process(self.options.process)
                } else {
                    self.held_in(self.store_of_charge(charge))
                };
                let number = key::number(charge.key);
                let mut others = holds.iter().zip(&keys);
                if others.any(|(hold, key)| hold.key == number && *key != charge.key) {
                    ambiguous.push(number);
                }
                keys.push(charge.key);
                holds.push(HeldCharge { key: number, store, receipt, overridden: overridden(plan.matched, charge) });
            }
        }
        if !ambiguous.is_empty() {
            holds.retain(|hold| !ambiguous.contains(&hold.key));
        }
        if opened > 0 {
            request.report_holds(HoldResult::Opened, opened);
            request.report_holds(HoldResult::Lost, opened - holds.len() as u64);
            request.report_hold_hits(HoldHits::Held, held);
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
            Some(now)
        } else if hold == HeldIn::Process(self.options.process) {
            self.options.local.as_ref()
        } else {
            None
        }
    }

    /// Plans a settle. The plan gets the hits that are still to charge, the excess of a hold, once for each key; and what the
    /// call of its decision takes back. [hd-5]
    fn plan_settle<'s, 'a>(
        &'s self,
        query: &Query<'_>,
        settle: &Settle,
        former: &'a [FormerLimit],
        plan: &mut Plan<'a, '_>,
        by: SettledBy,
    ) -> Settling<'s, 'a> {
        let mut settling = Settling { lost: settle.holds.len() as u64, ..Settling::default() };
        let mut keyed: SmallVec<[(u64, usize); 4]> = SmallVec::new();
        for (at, charge) in plan.charges.iter().enumerate() {
            if settle.settles(charge) {
                keyed.push((key::number(charge.key), at));
            }
        }
        keyed.sort_unstable();
        let mut holds: SmallVec<[NamedHold<'_, 'a>; 1]> = SmallVec::new();
        for hold in &settle.holds {
            let is_it = |one: &&FormerLimit| one.number == hold.key && one.overridden == hold.overridden;
            holds.push((hold, former.iter().find(is_it)));
        }
        for of_key in keyed.chunk_by(|(one, _), (other, _)| one == other) {
            let (number, first) = of_key[0];
            let charge = plan.charges[first].clone();
            if of_key.iter().any(|&(_, at)| plan.charges[at].key != charge.key) {
                // The receipt does not say which of these keys it charged.
                continue;
            }
            let used = of_key.iter().map(|&(_, at)| hits_of(query, &plan.charges[at]));
            let used = used.map(Count::from).sum();
            // Another limit can have the key of a hold now.
            let in_force = |(hold, former): &NamedHold<'_, 'a>| former.map_or(hold.key, |former| former.in_force);
            let holds = holds.iter().copied().filter(|named| in_force(named) == number);
            // weir's own release gives everything back. [hd-9]
            let at_least = if by == SettledBy::Decision { charge.limit.kept_by_settle() } else { 0 };
            let of_one = (used, at_least.into());
            let mut excess = self.plan_settle_of_key(&charge, of_one, holds, by, &mut settling, &mut plan.undos);
            // Almost always the first charge reports all of it: one charge has at most 32 bits.
            for &(_, at) in of_key {
                if excess > 0 {
                    let hits = saturated(excess);
                    plan.charges[at].operation = Operation::Report(hits);
                    excess -= Count::from(hits);
                }
            }
        }
        settling
    }

    /// Plans the settle of the holds on the key of this charge, of which `used` hits were used, and `at_least` hits stay charged
    /// if so many were held. Returns the excess. Without a hold there is none. [hd-10]
    fn plan_settle_of_key<'h, 's, 'a: 'h>(
        &'s self,
        charge: &Charge<'a>,
        (used, at_least): (Count, Count),
        holds: impl Iterator<Item = NamedHold<'h, 'a>>,
        by: SettledBy,
        settling: &mut Settling<'s, 'a>,
        undos: &mut Vec<Undo<'a>>,
    ) -> Count {
        let mut found: SmallVec<[_; 1]> = SmallVec::new();
        for (hold, former) in holds {
            let (key, limit) = former.map_or((charge.key, charge.limit), |former| (&former.key, &former.limit));
            let now = self.store_of(limit, charge.origin.is_single);
            if let Some(store) = self.holding(hold.store, now) {
                found.push((hold, former, key, limit, store, now));
            }
        }
        settling.lost -= found.len() as u64;
        let held = found.iter().map(|(hold, ..)| Count::from(hold.receipt.hits)).sum();
        let mut left = used.max(at_least.min(held));
        let mut last = None;
        for (hold, former, key, limit, store, now) in found {
            let kept = saturated(left).min(hold.receipt.hits);
            left -= Count::from(kept);
            let held = Undo { key, limit, receipt: hold.receipt, bounds: None };
            last = Some(held);
            if hold.receipt.hits == kept {
                settling.used_up.push(held);
                continue;
            }
            let undo = Undo { receipt: Receipt { hits: hold.receipt.hits - kept, ..hold.receipt }, ..held };
            let is_in_force = former.is_none() && !charge.origin.is_outside_term && Arc::ptr_eq(store, now);
            if is_in_force && by == SettledBy::Decision {
                undos.push(undo);
            } else {
                settling.before.push(UndoBefore { store, group: charge.origin.group, undo });
            }
        }
        let Some(held) = last.filter(|_| left > 0) else { return 0 };
        // All of its holds are used up. The charge of the excess settles the last of them.
        settling.used_up.pop();
        settling.excesses.push(Excess { held, key: charge.key });
        left
    }

    /// Plans a settle, and takes back what the call of its decision does not.
    pub(super) async fn begin_settle<'s, 'a>(
        &'s self,
        request: &Request<'_, '_>,
        settle: &Settle,
        former: &'a [FormerLimit],
        plan: &mut Plan<'a, '_>,
    ) -> Settling<'s, 'a> {
        let mut settling = self.plan_settle(request.query, settle, former, plan, SettledBy::Decision);
        plan.charges.retain(|charge| !charge.origin.is_outside_term);
        let before = std::mem::take(&mut settling.before);
        if !request.is_repeated {
            if settle.holds.is_empty() {
                request.report_holds(HoldResult::Reported, 1);
            }
            self.undo_before(request, before).await;
        }
        settling
    }

    /// Counts the holds of a settle that give nothing back: fully used holds, charged excesses, and lost holds. [hd-6]
    pub(super) fn end_settle(&self, request: &Request<'_, '_>, settling: &Settling<'_, '_>, plan: &Plan<'_, '_>) {
        let now = plan.decided().next().map_or_else(|| self.options.clock.now(), |(_, outcome)| outcome.now);
        let result = |held: &Undo<'_>| {
            let bounds = self.calendar.bounds(held.limit, now);
            let has_ended = held.limit.kind().within(bounds).has_ended(held.receipt, now);
            if has_ended { HoldResult::Late } else { HoldResult::Settled }
        };
        for held in &settling.used_up {
            request.report_holds(result(held), 1);
        }
        let mut lost = settling.lost;
        let mut charged: Count = 0;
        for Excess { held, key } in &settling.excesses {
            let excess = plan.decided().map(|(charge, _)| match charge.operation {
                Operation::Report(hits) if charge.limit.hold && charge.key == *key => Count::from(hits),
                _ => 0,
            });
            match excess.sum() {
                0 => lost += 1,
                hits => {
                    request.report_holds(result(held), 1);
                    charged += hits;
                }
            }
        }
        request.report_holds(HoldResult::Lost, lost);
        request.report_hold_hits(HoldHits::Excess, charged);
    }

    /// Settles holds without a decision.
    pub(super) async fn settle_alone(&self, request: &Request<'_, '_>, settle: &Settle, matched: &Matched<'_>) {
        let former = former_limits(settle, &Plan::of(matched, request.query));
        let mut plan = Plan::of(matched, request.query);
        let mut settling = self.plan_settle(request.query, settle, &former, &mut plan, SettledBy::OwnCalls);
        self.undo_before(request, std::mem::take(&mut settling.before)).await;
        self.end_settle(request, &settling, &plan);
    }

    /// Takes holds back by one call for each descriptor and store. The holds of a call that fails are lost. A settle makes at
    /// most [`HOLDS_MAX`] of them, because each has a hold. [hd-6]
    async fn undo_before<'s>(&'s self, request: &Request<'_, '_>, before: Vec<UndoBefore<'s, '_>>) {
        let request = &Request { can_repeat: false, ..*request };
        let mut calls: Vec<(&Arc<dyn Store>, Group, Vec<Undo<'_>>)> = Vec::new();
        for UndoBefore { store, group, undo } in before {
            match calls.iter_mut().find(|(of, of_group, _)| Arc::ptr_eq(of, store) && *of_group == group) {
                Some((.., undos)) => undos.push(undo),
                None => calls.push((store, group, vec![undo])),
            }
        }
        let undo = async |store, undos: &mut Vec<Undo<'_>>| {
            let sent = Sent { rows: &[], undos, charges: &mut [] };
            // The call counts what it takes back.
            drop(self.call(store, request, sent, &mut Decision::default()).await);
        };
        join_all(calls.iter_mut().map(|(store, _, undos)| undo(store, undos))).await;
    }
}

fn overridden(matched: &Matched<'_>, charge: &Charge<'_>) -> Option<OverriddenLimit> {
    let window = charge.limit.window();
    let own = matched.limit_of_rule(charge.origin)?;
    (own.window() != window).then_some(OverriddenLimit { position: charge.origin.position, window })
}

/// The used hits of the descriptor of this charge, according to the caller. Always 0 for a permit [cc-5], and for a limit
/// that counts requests [lm-7].
fn hits_of(query: &Query<'_>, charge: &Charge<'_>) -> Hits {
    match query.descriptor(charge.origin.group).operation {
        Operation::Consume(_) if charge.limit.algorithm().counts_permits() || charge.limit.counts_requests() => 0,
        Operation::Consume(hits) => hits,
        // A settle itself refunds and reports nothing.
        Operation::Peek | Operation::Refund(_) | Operation::Report(_) => 0,
    }
}
