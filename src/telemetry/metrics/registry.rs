//! The numbers of weir's own metrics, except those of limits and domains: a few dozen families with few series each.
//!
//! A wrong name or label is a mistake in weir, so it panics at the start. Not here: names, labels and help (table.rs).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use super::families::{FamilyKind, Source, Value, Visitor};
use super::table::{Metric, metric};

/// A number that is stored here.
#[derive(Clone, Debug, Default)]
pub(super) struct Number(Arc<AtomicU64>);

impl Number {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(super) fn set(&self, number: u64) {
        self.0.store(number, Relaxed);
    }

    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// Subtracts one, unless it is 0.
    pub(super) fn take_one(&self) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |number| number.checked_sub(1));
    }
}

/// Reads a number that may be stored elsewhere.
type Read = Box<dyn Fn() -> u64 + Send + Sync>;

struct Family {
    metric: &'static Metric,
    series: BTreeMap<Vec<String>, Read>,
}

#[derive(Default)]
pub(super) struct Registry(Mutex<BTreeMap<&'static str, Family>>);

impl Registry {
    /// Adds a series with the number of `read`.
    /// Panics when the table has no metric of this name and kind, when it has other labels, or when the series
    /// exists.
    pub(super) fn add(&self, kind: FamilyKind, name: &str, labels: &[(&str, &str)], read: Read) {
        let metric = metric(name).filter(|metric| metric.kind == kind);
        let metric = metric.unwrap_or_else(|| panic!("src/telemetry/metrics/table.rs has no {} {name}", kind.name()));
        assert!(labels.iter().map(|(label, _)| label).eq(metric.labels), "{name} has the labels {:?}", metric.labels);
        let values = labels.iter().map(|(_, value)| (*value).to_owned()).collect();
        let mut families = self.0.lock();
        let family = families.entry(metric.name).or_insert_with(|| Family { metric, series: BTreeMap::new() });
        assert!(family.series.insert(values, read).is_none(), "{name} {labels:?} is there already");
    }

    /// Adds a series whose number is stored here.
    pub(super) fn number(&self, kind: FamilyKind, name: &str, labels: &[(&str, &str)]) -> Number {
        let number = Number::default();
        let read = number.clone();
        self.add(kind, name, labels, Box::new(move || read.get()));
        number
    }

    fn remove(&self, name: &str, value: &str) {
        if let Some(family) = self.0.lock().get_mut(name) {
            family.series.retain(|values, _| *values != [value]);
        }
    }
}

/// Numbers by one label, whose values become known at runtime.
pub(super) struct Numbers {
    registry: Arc<Registry>,
    kind: FamilyKind,
    name: &'static str,
    label: &'static str,
    known: RwLock<BTreeMap<Box<str>, Number>>,
}

impl Numbers {
    pub(super) fn new(registry: &Arc<Registry>, kind: FamilyKind, name: &'static str, label: &'static str) -> Self {
        Self { registry: registry.clone(), kind, name, label, known: RwLock::default() }
    }

    /// The number for this value of the label. It is shown from the first call on, starting at 0.
    pub(super) fn of(&self, value: &str) -> Number {
        if let Some(number) = self.known.read().get(value) {
            return number.clone();
        }
        let new = || self.registry.number(self.kind, self.name, &[(self.label, value)]);
        self.known.write().entry(value.into()).or_insert_with(new).clone()
    }

    pub(super) fn remove(&self, value: &str) {
        let mut known = self.known.write();
        if known.remove(value).is_some() {
            self.registry.remove(self.name, value);
        }
    }
}

pub(super) struct Registered {
    registry: Arc<Registry>,
    /// The name of the last metric shown. Empty before the first.
    last: &'static str,
}

impl Registered {
    pub(super) fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: registry.clone(), last: "" }
    }
}

impl Source for Registered {
    fn advance(&mut self, to: &mut dyn Visitor) -> bool {
        let families = self.registry.0.lock();
        let rest = families.range::<str, _>((Bound::Excluded(self.last), Bound::Unbounded));
        let Some((name, Family { metric, series })) = rest.into_iter().find(|(_, family)| !family.series.is_empty())
        else {
            return false;
        };
        self.last = name;
        to.family((*metric).into());
        for (values, read) in series {
            let labels: SmallVec<[(&str, &str); 4]> =
                metric.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
            to.series(&labels, Value::Number(read() as f64));
        }
        true
    }
}
