//! Metric families as the writers of the text formats and of OTLP receive them: one series after the other.
//!
//! A `Source` makes its families in small steps, so that a scrape of many series never needs a copy of all of them. Not
//! here: what is counted (the other files), and how families are written (text.rs).

use std::time::SystemTime;

use weir_engine::observer::TraceIds;

pub use super::table::FamilyKind;
use super::table::Metric;

/// The head of a family, before its series.
#[derive(Clone, Copy, Debug)]
pub struct Family<'a> {
    /// The name. A counter's ends with `_total`.
    pub name: &'a str,
    pub help: &'a str,
    pub kind: FamilyKind,
}

impl From<&'static Metric> for Family<'static> {
    fn from(metric: &'static Metric) -> Self {
        Self { name: metric.name, help: metric.help, kind: metric.kind }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Count(u64),
    Number(f64),
    Histogram(&'a Histogram),
    Summary(&'a Summary),
}

#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// In the order of their bounds; the last one has none.
    pub buckets: Vec<Bucket>,
    pub count: u64,
    pub sum: f64,
}

/// The observations up to one bound.
#[derive(Clone, Debug)]
pub struct Bucket {
    /// The largest observation that is counted here: infinite for the last bucket.
    pub bound: f64,
    /// How many observations were at most `bound`.
    pub cumulative: u64,
    /// The latest observation of this bucket that is part of a recorded trace.
    pub exemplar: Option<Exemplar>,
}

/// One observation that is part of a recorded trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exemplar {
    pub ids: TraceIds,
    pub value: f64,
    pub at: SystemTime,
}

#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Each quantile, from 0 to 1, and its value.
    pub quantiles: Vec<(f64, f64)>,
    pub count: u64,
    pub sum: f64,
}

/// Receives all families, each followed by its series.
pub trait Visitor {
    fn family(&mut self, family: Family<'_>);
    /// Adds a series to the current family. Labels are in alphabetical order.
    fn series(&mut self, labels: &[(&str, &str)], value: Value<'_>);
}

/// Makes families in small steps.
pub(super) trait Source: Send {
    /// Shows a bounded number of further series. Returns false if none is left.
    fn advance(&mut self, to: &mut dyn Visitor) -> bool;
}

/// Series that are shown at once.
pub(super) struct Single<F>(pub(super) Option<F>);

impl<F: FnOnce(&mut dyn Visitor) + Send> Source for Single<F> {
    fn advance(&mut self, to: &mut dyn Visitor) -> bool {
        self.0.take().map(|show| show(to)).is_some()
    }
}
