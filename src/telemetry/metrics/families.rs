//! Helpers that make metric families of numbers which others keep.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, LabelPair, Metric, MetricFamily, MetricType};

/// Something shared that makes metric families when asked.
pub(super) trait Source: Send + Sync {
    /// What families it makes.
    fn descs(&self) -> Vec<&Desc>;
    /// Makes them.
    fn families(&self) -> Vec<MetricFamily>;
}

/// A shared source, as the registry takes it.
pub(super) struct Collected<S>(pub(super) Arc<S>);

impl<S: Source> Collector for Collected<S> {
    fn desc(&self) -> Vec<&Desc> {
        self.0.descs()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.0.families()
    }
}

pub(super) fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

/// Labels in alphabetical order, as the text format's readers expect them.
pub(super) fn labelled<'a>(labels: impl IntoIterator<Item = (&'a str, &'a str)>) -> Metric {
    let pairs = labels.into_iter().map(|(name, value)| {
        let mut pair = LabelPair::default();
        pair.set_name(name.to_owned());
        pair.set_value(value.to_owned());
        pair
    });
    Metric::from_label(pairs.collect())
}

pub(super) fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    let mut metric = labelled(labels.iter().copied());
    metric.set_counter(counter);
    metric
}
