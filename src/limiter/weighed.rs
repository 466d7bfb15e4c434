//! A request of a domain with rules that weigh hits: its descriptors without the entries that weigh, and its hits times their
//! factors. All else of a decision sees only these, so holds, settles, refunds and bounds count weighed hits. [mt-12]
//!
//! Not here: which rule a descriptor meets, and its factor (engine).

use std::ops::Range;

use smallvec::SmallVec;
use weir_engine::policy::Match;
use weir_engine::weighed::Weighed;
use weir_engine::{Domain, Entry, Operation, PolicySet};
use weir_lifecycle::Turns;

use super::messages::Unweighed;
use super::request::Request;
use super::{DescriptorRequest, Query};

/// What makes a weighed request, with the match of each descriptor.
#[derive(Default)]
pub(super) struct Weighing<'p, 'q> {
    pub(super) found: SmallVec<[Match<'p>; 2]>,
    /// The other entries of all descriptors that have an entry which only weighs.
    entries: SmallVec<[Entry<'q>; 8]>,
    /// Those of each such descriptor.
    others: SmallVec<[Option<Range<usize>>; 2]>,
    /// How many descriptors have the default factor.
    pub(super) by_default: u64,
}

impl<'p, 'q> Weighing<'p, 'q> {
    /// Matches each descriptor of a request, in place, because it is large. With `turns`, a long request takes turns with others.
    ///
    /// # Errors
    /// When a descriptor cannot be weighed.
    pub(super) async fn fill(&mut self, request: &Request<'p, 'q>, turns: Option<&Turns>) -> Result<(), Unweighed> {
        let Request { in_force, domain, query, .. } = *request;
        let turns = turns.filter(|_| query.is_long());
        for (descriptor, asked) in query.descriptors.iter().enumerate() {
            let _turn = match turns {
                Some(turns) => Some(turns.next().await),
                None => None,
            };
            let unweighed = |why| Unweighed { descriptor, why };
            // A limit of the request is charged on the entries as they stand. [mt-6]
            let weighed = in_force.policies.weigh(domain, asked.entries, asked.limit);
            let Weighed { met, entry, by_default } = weighed.map_err(unweighed)?;
            self.by_default += u64::from(by_default);
            let others = entry.map(|entry| self.keep_others(asked.entries, entry));
            if let Some(factor) = met.factor {
                asked.operation.weighed(factor).map_err(unweighed)?;
            }
            self.found.push(met);
            self.others.push(others);
        }
        Ok(())
    }

    fn keep_others(&mut self, entries: &[Entry<'q>], key: &str) -> Range<usize> {
        let start = self.entries.len();
        self.entries.extend(entries.iter().copied().filter(|entry| entry.key != key));
        start..self.entries.len()
    }

    /// The request with weighed hits.
    pub(super) fn query<'w>(&'w self, sent: &'w Query<'q>) -> Query<'w> {
        let mut descriptors = SmallVec::with_capacity(sent.descriptors.len());
        for (asked, (met, others)) in sent.descriptors.iter().zip(self.found.iter().zip(&self.others)) {
            let weighed = met.factor.and_then(|factor| asked.operation.weighed(factor).ok());
            descriptors.push(DescriptorRequest {
                entries: others.clone().map_or(asked.entries, |others| &self.entries[others]),
                operation: weighed.unwrap_or(asked.operation),
                limit: asked.limit,
            });
        }
        Query { descriptors, settle: sent.settle.clone(), ..*sent }
    }
}

/// What a descriptor asks for, with weighed hits. If they cannot be weighed, as it was sent: the decision refuses it.
pub(super) fn operation(policies: &PolicySet, domain: &Domain, asked: &DescriptorRequest<'_>) -> Operation {
    let weighed = policies.weigh(domain, asked.entries, asked.limit);
    let factor = weighed.ok().and_then(|weighed| weighed.met.factor);
    factor.and_then(|factor| asked.operation.weighed(factor).ok()).unwrap_or(asked.operation)
}
