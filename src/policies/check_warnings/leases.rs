//! Leases that admit no request, or end before their time. [ls-1] [ls-3]

use std::collections::HashSet;
use std::time::Duration;

use weir_engine::{Algorithm, Limit, Micros, Rule};
use weir_text::spell;

use super::super::{Code, Outline};
use super::Findings;

impl Findings<'_> {
    /// Warns about a lease beside a limit that has none and that each request of the rule meets, and about leases that are longer than
    /// the step which ends them.
    pub(super) fn leases(&mut self, outline: &Outline, rule: &Rule, replaced: &HashSet<&str>) {
        let leased = || (1..).zip(&rule.limits).filter_map(|(number, limit)| Some((number, limit, limit.lease?)));
        let Some((number, ..)) = leased().next() else { return };
        // A limit that others can replace, or that has a term, does not apply to every request.
        let is_always =
            |limit: &Limit| limit.term.is_none() && limit.name.as_deref().is_none_or(|name| !replaced.contains(name));
        let other = (1..).zip(&rule.limits).find(|(_, limit)| limit.lease.is_none() && is_always(limit));
        if let Some((other, _)) = other {
            return self.add(&outline.note.place(), Code::NeverLeased, || {
                format!("the lease of limit {number} admits no request, because limit {other} has no lease")
            });
        }
        for (number, limit, lease) in leased() {
            let (what, step) = step(limit);
            if lease.us() > step {
                let [lease, step] = [lease.us(), step].map(|us| spell(Duration::from_micros(us)));
                self.add(&outline.note.place(), Code::LeaseTooLong, || {
                    format!("limit {number} has a lease of {lease}, and each lease ends with its {what} of {step}")
                });
            }
        }
    }
}

/// What ends a lease of this limit, and its length in microseconds.
fn step(limit: &Limit) -> (&'static str, Micros) {
    match limit.algorithm() {
        Algorithm::SlidingWindow { precision } => ("precision", precision.get()),
        _ => ("window", limit.window().us()),
    }
}
