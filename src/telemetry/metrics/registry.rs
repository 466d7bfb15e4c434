//! The numbers of the rows of table.rs, except those of limits and domains: a few dozen families with few series each.
//!
//! /metrics and OTLP show the rows of weir. StatsD, `/stats` and the mapped metrics show those of envoyproxy/ratelimit. A wrong
//! name or number of labels is a mistake in weir, so it panics at the start. Not here: names, labels and help (table.rs).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;

use super::families::{FamilyKind, Histogram, Source, Value, Visitor};
use super::table::{Metric, metric};

/// A number that is stored here.
#[derive(Clone, Debug, Default)]
pub struct Number(Arc<AtomicU64>);

impl Number {
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub fn set(&self, number: u64) {
        self.0.store(number, Relaxed);
    }

    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// Subtracts one, unless it is 0.
    pub fn take_one(&self) {
        let _ = self.0.fetch_update(Relaxed, Relaxed, |number| number.checked_sub(1));
    }
}

/// The names of envoyproxy/ratelimit come before it, and those of weir after it.
const FIRST_OF_WEIR: &str = "weir";

/// Reads a value that may be stored elsewhere.
enum Read {
    Number(Box<dyn Fn() -> u64 + Send + Sync>),
    Histogram(Box<dyn Fn() -> Histogram + Send + Sync>),
}

struct Family {
    metric: &'static Metric,
    /// By the values of its labels.
    series: BTreeMap<Vec<String>, Read>,
}

#[derive(Default)]
pub(crate) struct Registry(Mutex<BTreeMap<&'static str, Family>>);

impl Registry {
    /// Adds a series. `labels` are the values of the labels of the row, in its order.
    /// Panics when the table has no row of this name, when the row has another number of labels, or when the series exists.
    fn add(&self, name: &str, labels: &[&str], read: Read) {
        let metric = metric(name).unwrap_or_else(|| panic!("src/telemetry/metrics/table.rs has no {name}"));
        assert_eq!(labels.len(), metric.labels.len(), "{name} has the labels {:?}", metric.labels);
        let values = labels.iter().map(|value| (*value).to_owned()).collect();
        let mut families = self.0.lock();
        let family = families.entry(metric.name).or_insert_with(|| Family { metric, series: BTreeMap::new() });
        assert!(family.series.insert(values, read).is_none(), "{name} {labels:?} is there already");
    }

    /// Adds a series whose number is stored here.
    pub(crate) fn number(&self, name: &str, labels: &[&str]) -> Number {
        let number = Number::default();
        let stored = number.clone();
        self.add(name, labels, Read::Number(Box::new(move || stored.get())));
        number
    }

    /// Adds a series for each value of the only label.
    pub(super) fn each<const N: usize>(&self, name: &str, values: [&str; N]) -> [Number; N] {
        values.map(|value| self.number(name, &[value]))
    }

    /// Adds a series whose number `read` finds in `of`. A counter that is read in several steps can seem to fall, while another
    /// thread counts: it is shown with the most that it has been.
    pub(crate) fn show<T: Clone + Send + Sync + 'static>(
        &self,
        name: &str,
        labels: &[&str],
        of: &T,
        read: impl Fn(&T) -> u64 + Send + Sync + 'static,
    ) {
        let (of, most) = (of.clone(), AtomicU64::new(0));
        let is_counter = metric(name).is_some_and(|metric| metric.kind == FamilyKind::Counter);
        let read = move || match (is_counter, read(&of)) {
            (true, value) => most.fetch_max(value, Relaxed).max(value),
            (false, value) => value,
        };
        self.add(name, labels, Read::Number(Box::new(read)));
    }

    pub(super) fn histogram(&self, name: &str, read: impl Fn() -> Histogram + Send + Sync + 'static) {
        self.add(name, &[], Read::Histogram(Box::new(read)));
    }

    /// The series of one row, with the values of their labels.
    pub(super) fn series(&self, name: &str) -> Vec<(Vec<String>, u64)> {
        let families = self.0.lock();
        let series = families.get(name).into_iter().flat_map(|family| &family.series);
        let number = |(values, read): (&Vec<String>, &Read)| match read {
            Read::Number(read) => Some((values.clone(), read())),
            Read::Histogram(_) => None,
        };
        series.filter_map(number).collect()
    }

    /// Passes the numbers of envoyproxy/ratelimit whose names are wanted to `see`, in the order of their names.
    pub(crate) fn statistics(&self, is_wanted: impl Fn(&str) -> bool, mut see: impl FnMut(&str, FamilyKind, u64)) {
        let families = self.0.lock();
        for (name, Family { metric, series }) in families.range(..FIRST_OF_WEIR).filter(|(name, _)| is_wanted(name)) {
            for read in series.values() {
                if let Read::Number(read) = read {
                    see(name, metric.kind, read());
                }
            }
        }
    }

    fn remove(&self, name: &str, value: &str) {
        if let Some(family) = self.0.lock().get_mut(name) {
            family.series.retain(|values, _| *values != [value]);
        }
    }
}

/// Numbers by one label, whose values become known at runtime.
pub struct Numbers {
    registry: Arc<Registry>,
    name: &'static str,
    known: RwLock<BTreeMap<Box<str>, Number>>,
}

impl Numbers {
    pub(super) fn new(registry: &Arc<Registry>, name: &'static str) -> Self {
        Self { registry: registry.clone(), name, known: RwLock::default() }
    }

    /// The number for this value of the label. It is shown from the first call on, starting at 0.
    pub fn of(&self, value: &str) -> Number {
        if let Some(number) = self.known.read().get(value) {
            return number.clone();
        }
        let new = || self.registry.number(self.name, &[value]);
        self.known.write().entry(value.into()).or_insert_with(new).clone()
    }

    pub fn remove(&self, value: &str) {
        let mut known = self.known.write();
        if known.remove(value).is_some() {
            self.registry.remove(self.name, value);
        }
    }
}

pub(super) struct Registered {
    registry: Arc<Registry>,
    /// The name of the last metric shown.
    last: &'static str,
}

impl Registered {
    pub(super) fn new(registry: &Arc<Registry>) -> Self {
        Self { registry: registry.clone(), last: FIRST_OF_WEIR }
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
            match read {
                Read::Number(read) => to.series(&labels, Value::Number(read() as f64)),
                Read::Histogram(read) => to.series(&labels, Value::Histogram(&read())),
            }
        }
        true
    }
}
