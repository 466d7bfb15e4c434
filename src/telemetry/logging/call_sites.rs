//! A maximum for the lines that one call site logs.
//!
//! A peer that makes a dependency warn for each of its frames must not fill a disk. Each call site may write
//! [`LINES_MAX`] lines in a period. Further lines are counted and not written. A task logs the counts. Lines with the
//! target [`AUDIT`] have no maximum.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

pub const LINES_MAX: u64 = 100;
/// The target of lines about what an operator changed or can see, and about changes that may be lost. `log.level` drops none
/// of them either.
pub const AUDIT: &str = "weir_audit";
/// The length of a period. The first begins with the process.
pub const PERIOD: Duration = Duration::from_secs(10);
/// The most call sites with their own counts. Further ones share one count.
const CALL_SITES_MAX: usize = 1_024;
/// The most slots of the table that are tried for one call site.
const PROBES_MAX: usize = 16;
/// The name of the call sites that share a count.
const OTHERS: &str = "others";

/// The number of lines of each call site in this period. Never locks: an event can come from any thread.
pub(super) struct CallSites {
    started: Instant,
    sites: Box<[Site]>,
    others: Site,
    /// All dropped lines since the start.
    dropped: AtomicU64,
}

#[derive(Default)]
struct Site {
    /// The hash of the call site; 0 if the slot is free.
    key: AtomicU64,
    name: OnceLock<Box<str>>,
    /// The period in the upper half, and its number of lines in the lower half.
    lines: AtomicU64,
    /// Dropped lines since the last call of [`CallSites::take_dropped`].
    dropped: AtomicU64,
}

impl CallSites {
    pub(super) fn new(started: Instant) -> Self {
        let sites = std::iter::repeat_with(Site::default).take(CALL_SITES_MAX).collect();
        Self { started, sites, others: Site::default(), dropped: AtomicU64::new(0) }
    }

    /// All dropped lines since the start.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// The call sites with dropped lines since the last call, and their numbers.
    pub(super) fn take_dropped(&self) -> Vec<(&str, u64)> {
        let mut taken = Vec::new();
        for site in self.sites.iter().chain([&self.others]) {
            let dropped = site.dropped.swap(0, Relaxed);
            if dropped > 0 {
                taken.push((site.name.get().map_or(OTHERS, |name| name), dropped));
            }
        }
        taken
    }

    /// Whether a line of this call site may be written now.
    fn admits(&self, key: u64, now: Instant, name: impl FnOnce() -> Box<str>) -> bool {
        let site = self.site(key, name);
        let period = now.saturating_duration_since(self.started).as_secs() / PERIOD.as_secs();
        let first = (period << 32) + 1;
        let counted = site.lines.fetch_update(Relaxed, Relaxed, |lines| {
            if lines >> 32 != period & u64::from(u32::MAX) {
                Some(first)
            } else if lines & u64::from(u32::MAX) < LINES_MAX {
                Some(lines + 1)
            } else {
                None
            }
        });
        if counted.is_err() {
            site.dropped.fetch_add(1, Relaxed);
            self.dropped.fetch_add(1, Relaxed);
        }
        counted.is_ok()
    }

    fn site(&self, key: u64, name: impl FnOnce() -> Box<str>) -> &Site {
        let key = key.max(1);
        // Any bits of the hash could select the slot; these are its low bits.
        let [low, high, ..] = key.to_le_bytes();
        let start = usize::from(u16::from_le_bytes([low, high])) % CALL_SITES_MAX;
        for at in (start..start + PROBES_MAX).map(|at| at % CALL_SITES_MAX) {
            let site = &self.sites[at];
            match site.key.compare_exchange(0, key, Relaxed, Relaxed) {
                Ok(_) => {
                    site.name.get_or_init(name);
                    return site;
                }
                Err(taken) if taken == key => return site,
                Err(_) => {}
            }
        }
        &self.others
    }
}

/// Drops the lines of a call site above its maximum.
pub(super) struct Limit(pub(super) std::sync::Arc<CallSites>);

impl<S: Subscriber> Layer<S> for Limit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if metadata.target() == AUDIT {
            return true;
        }
        let mut hasher = DefaultHasher::new();
        metadata.callsite().hash(&mut hasher);
        // All lines of the `log` crate come from one call site for each level. Their own place is in their fields.
        let mut place = LogPlace::default();
        if metadata.target() == "log" {
            event.record(&mut place);
            place.hash(&mut hasher);
        }
        let name = || match place {
            LogPlace { target: Some(target), line } => format!("{target}:{}", line.unwrap_or_default()).into(),
            LogPlace { target: None, .. } => {
                format!("{}:{}", metadata.target(), metadata.line().unwrap_or_default()).into()
            }
        };
        self.0.admits(hasher.finish(), Instant::now(), name)
    }
}

/// Where a line of the `log` crate was written.
#[derive(Default, Hash)]
struct LogPlace {
    target: Option<Box<str>>,
    line: Option<u64>,
}

impl Visit for LogPlace {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "log.target" {
            self.target = Some(value.into());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "log.line" {
            self.line = Some(value);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: u64) -> impl FnOnce() -> Box<str> {
        move || format!("site:{key}").into()
    }

    #[test]
    fn each_call_site_has_its_lines_in_each_period() {
        let start = Instant::now();
        let sites = CallSites::new(start);
        for (period, now) in [(0, start), (1, start + PERIOD), (7, start + PERIOD * 7)] {
            for line in 0..LINES_MAX {
                assert!(sites.admits(5, now, name(5)), "line {line} of period {period}");
            }
            assert!(!sites.admits(5, now, name(5)));
            assert!(!sites.admits(5, now, name(5)));
            assert!(sites.admits(6, now, name(6)), "another call site");
            assert_eq!(sites.take_dropped(), [("site:5", 2)]);
            assert_eq!(sites.take_dropped(), []);
        }
        assert_eq!(sites.dropped(), 6);
    }

    #[test]
    fn call_sites_past_the_bound_share_a_count() {
        let start = Instant::now();
        let sites = CallSites::new(start);
        for key in 1..=2 * CALL_SITES_MAX as u64 {
            sites.admits(key, start, name(key));
        }
        for _ in 0..LINES_MAX {
            sites.admits(u64::MAX, start, name(0));
        }
        assert!(!sites.admits(u64::MAX, start, name(0)));
        let dropped = sites.take_dropped();
        assert_eq!(dropped.len(), 1, "{dropped:?}");
        assert_eq!(dropped[0].0, OTHERS);
    }
}
