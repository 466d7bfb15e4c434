//! Requests with a duration: each one that was admitted with holds settles them when it ends. [hd-5]
//!
//! A permit is released. Not here: how long a request lasts, and how many hits it uses.

use std::collections::BTreeMap;

use weir_engine::Micros;
use weir_limiter::{HeldCharge, Query, Settle};
use weir_rls::convert::{self, Bounds};
use weir_rls::proto::RateLimitRequest;
use weir_rls::request::Request as View;

use crate::message::set_used;

/// Requests in flight, in the order in which they end.
#[derive(Default)]
pub(super) struct InFlight {
    /// Requests that end at the same instant end in the order in which they began.
    ends: BTreeMap<(Micros, u64), Ending>,
    begun: u64,
}

pub(super) struct Ending {
    message: RateLimitRequest,
    holds: Vec<HeldCharge>,
}

impl InFlight {
    /// Adds an admitted request, and the hits that each of its descriptors uses; by default its own. Without holds there is
    /// nothing to do at its end.
    pub(super) fn begin(
        &mut self,
        ends: Micros,
        message: &RateLimitRequest,
        used: Option<u32>,
        holds: Vec<HeldCharge>,
    ) {
        if holds.is_empty() {
            return;
        }
        let mut message = message.clone();
        if let Some(used) = used {
            set_used(&mut message, used);
        }
        self.ends.insert((ends, self.begun), Ending { message, holds });
        self.begun += 1;
    }

    pub(super) fn next_ended(&mut self, now: Micros) -> Option<(Micros, Ending)> {
        let first = self.ends.first_entry().filter(|first| first.key().0 <= now)?;
        let at = first.key().0;
        Some((at, first.remove()))
    }
}

impl Ending {
    /// Settles with all descriptors of the request.
    pub(super) fn settle<R>(self, bounds: &Bounds, decide: impl FnOnce(&Query<'_>) -> R) -> Option<R> {
        let view = View::of(&self.message);
        // It was within the bounds when it began.
        let query = convert::query(&view, bounds).ok()?;
        let descriptors = u64::MAX >> (u64::BITS - u32::try_from(query.descriptors.len()).ok()?);
        let settle = Some(Box::new(Settle { descriptors, holds: self.holds }));
        Some(decide(&Query { settle, ..query }))
    }
}
