//! The phases of limits that apply during spans of the week. [te-5]
//!
//! A phase is computed once and kept until its end, so that a request only compares two instants. Not here: how a phase is
//! computed (weir-text).

use std::sync::Arc;

use parking_lot::Mutex;
use weir_engine::{During, Micros, Phase, Unit};

/// The most kept phases: one for each different `during`. Further ones are computed each time.
const KEPT_MAX: usize = 256;
/// A phase without an end is computed again after this time, because the search for its end has a bound.
const KEPT_US_MAX: Micros = Unit::Day.window().us();

#[derive(Default)]
pub(super) struct Recurring {
    kept: Mutex<Vec<Kept>>,
}

struct Kept {
    during: Arc<During>,
    /// The instant for which it was computed.
    from: Micros,
    until: Micros,
    phase: Phase,
}

impl Recurring {
    pub(super) fn phase(&self, during: &Arc<During>, now: Micros) -> Phase {
        // Nothing is awaited while the lock is held, and the work under it is short.
        let mut kept = self.kept.lock();
        // Equal pointers are compared first.
        let known = kept.iter().position(|one| one.during == *during);
        if let Some(at) = known {
            let one = &kept[at];
            if one.from <= now && now < one.until {
                return one.phase;
            }
            kept.swap_remove(at);
        }
        if kept.len() == KEPT_MAX {
            kept.swap_remove(0);
        }
        let phase = weir_text::phase(during, now);
        let until = phase.until.min(now + KEPT_US_MAX);
        kept.push(Kept { during: during.clone(), from: now, until, phase });
        phase
    }
}

#[cfg(test)]
mod tests {
    use weir_text::parse_span;

    use super::*;

    fn during(text: &str) -> Arc<During> {
        Arc::new(During::new(vec![parse_span(text).expect("a span")]).expect("one span"))
    }

    #[test]
    fn a_phase_is_that_of_its_spans_in_any_order_of_instants() {
        const HOUR_US: Micros = Unit::Hour.window().us();
        let recurring = Recurring::default();
        let all = ["22:00-06:00", "Mon-Fri 09:00-17:00 Europe/Berlin", "00:00-24:00"].map(during);
        for hour in [0, 1, 9, 8, 400, 399, 22, 23, 24, 6, 5, 9_000, 0] {
            for at in [hour * HOUR_US, hour * HOUR_US + 1] {
                for during in &all {
                    assert_eq!(recurring.phase(during, at), weir_text::phase(during, at), "{during} at {at}");
                    // An equal list of another limit has the same entry.
                    assert_eq!(recurring.phase(&Arc::new((**during).clone()), at), weir_text::phase(during, at));
                }
            }
        }
        assert_eq!(recurring.kept.lock().len(), all.len());
    }

    #[test]
    fn the_kept_phases_have_a_bound() {
        let recurring = Recurring::default();
        for number in 0..=KEPT_MAX {
            recurring.phase(&during(&format!("{:02}:{:02}-23:59", number / 60, number % 60)), 0);
        }
        assert_eq!(recurring.kept.lock().len(), KEPT_MAX);
    }
}
