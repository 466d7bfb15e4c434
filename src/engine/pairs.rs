//! Which properties of a limit exclude each other, and which of them has no effect if a setting brings both together.
//! [hd-1] [cc-7] [ls-1] [rw-1]
//!
//! The loader refuses a policy with such a pair, with file and line, and [`PolicySet::compile`] refuses it too. Settings
//! apply to all policies, so they ask [`Limit::overrules`]. The numbers of overrides, plans and rows change no property.
//!
//! [`PolicySet::compile`]: super::policy::PolicySet::compile

use super::charge::Role;
use super::limit::Limit;

crate::named! {
    /// A property of a limit, of its rule or of its domain, by its key in policies.
    pub enum Property {
        /// Includes the permits of `concurrency`.
        Hold = "hold",
        Lease = "lease",
        Drain = "drain",
        PostPaid = "post_paid",
        /// The limit is on trial.
        Trial = "shadow",
        Term = "from, until or during",
        Requests = "counts: requests",
        Rows = "rows",
        ShadowMode = "shadow_mode",
        QuotaMode = "quota_mode",
        Independent = "charging: independent",
    }
}

/// Two properties that no limit has together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exclusion {
    /// Why, for people.
    pub reason: &'static str,
    /// The property without effect, if it or the other is a setting.
    yields: Property,
}

/// Whether two properties exclude each other, in any order.
pub const fn exclusion(one: Property, other: Property) -> Option<Exclusion> {
    match in_order(one, other) {
        None => in_order(other, one),
        found => found,
    }
}

const fn in_order(one: Property, other: Property) -> Option<Exclusion> {
    use Property::{Drain, Hold, Independent, Lease, PostPaid, QuotaMode, Rows, ShadowMode, Term, Trial};
    let (reason, yields) = match (one, other) {
        (Hold, Drain) => ("a denied request has no receipt, so its drained hits could not be given back", Drain),
        (Hold, PostPaid) => {
            ("a hold is charged before the request, and post_paid after it: write two limits", PostPaid)
        }
        (Hold, Rows) => ("a settle would need the row again, write a separate rule", Rows),
        (Hold, QuotaMode) => ("a request can pass although its quota is over, and then it has no hold", QuotaMode),
        (Hold, Independent) => ("a denied request is charged and has no receipt, use charging: atomic", Independent),
        (Lease, Hold) => ("its receipt must name the charge of its own request", Lease),
        (Lease, Drain) => ("a denied request drains the store, but not the hits that replicas hold", Lease),
        (Lease, PostPaid) => ("usage is charged when it is reported, not ahead", Lease),
        (Lease, Trial) => ("a limit on trial denies nothing, and the store counts it with the other limits", Lease),
        (Lease, Term) => ("replicas cannot end a limit at an exact microsecond", Lease),
        (Lease, Rows) => ("only the store has the current row", Lease),
        (Lease, ShadowMode) => ("the limits deny nothing, so a lease saves no call", Lease),
        (Lease, QuotaMode) => ("the store decides all quotas together", Lease),
        (Lease, Independent) => ("the store counts denied hits there", Lease),
        _ => return None,
    };
    Some(Exclusion { reason, yields })
}

impl Limit {
    /// Its own properties.
    pub fn properties(&self) -> impl Iterator<Item = Property> {
        let all = [
            (self.hold, Property::Hold),
            (self.lease.is_some(), Property::Lease),
            (self.drain, Property::Drain),
            (self.post_paid(), Property::PostPaid),
            (self.shadow, Property::Trial),
            (self.term.is_some(), Property::Term),
            (self.counts_requests(), Property::Requests),
        ];
        all.into_iter().filter_map(|(has_it, property)| has_it.then_some(property))
    }

    /// Whether a property that a setting gives to all policies has no effect on this limit.
    pub fn overrules(&self, setting: Property) -> bool {
        self.properties().any(|own| exclusion(own, setting).is_some_and(|excluded| excluded.yields == setting))
    }

    /// The role of this limit with the setting `quota_mode`, in a rule of this role. [dc-3]
    pub fn role_as_quota(&self, role: Role) -> Role {
        match role {
            Role::Enforced if !self.overrules(Property::QuotaMode) => Role::Quota,
            role => role,
        }
    }
}

/// The first two properties that exclude each other, of a limit and of what is around it.
pub(super) fn first_pair(limit: &Limit, around: &[Property]) -> Option<(Property, Property)> {
    let all: Vec<Property> = limit.properties().chain(around.iter().copied()).collect();
    let mut pairs = all.iter().enumerate().flat_map(|(at, other)| all[..at].iter().map(move |one| (*one, *other)));
    pairs.find(|(one, other)| exclusion(*one, *other).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::time::Unit;

    #[test]
    fn the_order_of_two_properties_does_not_matter() {
        for one in Property::ALL {
            assert_eq!(exclusion(one, one), None);
            for other in Property::ALL {
                assert_eq!(exclusion(one, other), exclusion(other, one), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn settings_change_no_hold_and_no_permit() {
        let rate = Limit::per_unit(10, Unit::Minute);
        let mut hold = rate.clone();
        hold.hold = true;
        let permits = Limit::new(3, Unit::Minute.window(), Algorithm::Concurrency).unwrap();
        for limit in [&hold, &permits] {
            assert_eq!(limit.role_as_quota(Role::Enforced), Role::Enforced);
            assert_eq!(limit.role_as_quota(Role::Shadow), Role::Shadow);
            assert!(limit.overrules(Property::Independent));
        }
        let mut leased = rate.clone();
        leased.lease = crate::lease::Lease::from_micros(100_000);
        for limit in [&rate, &leased] {
            assert_eq!(limit.role_as_quota(Role::Enforced), Role::Quota);
            assert!(!limit.overrules(Property::Independent));
        }
    }
}
