//! Buckets whose burst returns too slowly, and waits that no caller learns.

use std::time::Duration;

use weir_engine::{Algorithm, Count, Limit, Rule, Unit};
use weir_text::spell;

use super::super::{Code, Outline};
use super::Findings;

impl Findings<'_> {
    pub(super) fn buckets(&mut self, outline: &Outline, rule: &Rule) {
        for (number, limit) in (1..).zip(&rule.limits) {
            if let Some((burst, time)) = slow_burst(limit) {
                self.add(&outline.note.place(), Code::SlowBurst, || {
                    format!("limit {number} takes {time} to refill its burst of {burst}")
                });
            }
            if self.delay_header == Some(false) && matches!(limit.algorithm(), Algorithm::LeakyBucket { .. }) {
                self.add(&outline.note.place(), Code::NoDelayHeader, || {
                    format!(
                        "limit {number} is a leaky_bucket, and without response.delay_header Envoy delays no request"
                    )
                });
            }
        }
    }
}

/// A burst that is larger than the hits of a window and takes more than a day to refill, and that time in whole minutes.
fn slow_burst(limit: &Limit) -> Option<(u32, String)> {
    let (Algorithm::TokenBucket { burst, .. } | Algorithm::LeakyBucket { burst } | Algorithm::Gcra { burst }) =
        limit.algorithm()
    else {
        return None;
    };
    if Count::from(burst) <= limit.requests() || limit.requests() == 0 {
        return None;
    }
    let us = u128::from(burst) * u128::from(limit.window().us()) / u128::from(limit.requests());
    let minutes = u64::try_from(us / 60_000_000).unwrap_or(u64::MAX / 60);
    (us > u128::from(Unit::Day.window().us())).then(|| (burst, spell(Duration::from_secs(minutes.saturating_mul(60)))))
}
