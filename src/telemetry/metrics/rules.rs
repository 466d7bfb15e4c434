//! The counters of all limits of the policies in force, by domain, rule and limit.
//!
//! What a charge adds to was looked up when the policies were loaded. Not here: what a charge adds (counts.rs), and the
//! names of envoyproxy/ratelimit (statistics.rs), whose counters these are too where a name is fixed.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::Desc;
use prometheus::proto::{Metric, MetricFamily, MetricType};

use super::families::{Source, counter, family};
use crate::engine::PolicySet;
use crate::engine::arith::Fraction;
use crate::engine::observer::{Charged, LimitOf, Tally};
use crate::telemetry::counts::{Counts, Number, split};
use crate::telemetry::statistics::{LimitName, RequestName, Statistics};

/// What stands in the labels `rule` and `limit` for limits that came with a request.
const OVERRIDE: &str = "(request)";

/// The metrics of a limit: name, what it counts, and which number it is.
const RULE_METRICS: [(&str, &str, Number); 5] = [
    ("weir_hits_total", "Hits asked of a limit.", |values| values.hits),
    ("weir_over_limit_hits_total", "Hits above a limit.", |values| values.over),
    (
        "weir_near_limit_hits_total",
        "Hits within a limit that used it nearly up (setting near_limit_ratio), or those below it of a charge that crossed it.",
        |values| values.near,
    ),
    ("weir_within_limit_hits_total", "Hits that a limit let pass.", |values| values.within),
    ("weir_shadow_hits_total", "Hits that a limit in shadow mode would have denied.", |values| values.shadow),
];

/// Domain, rule and limit.
type Labels = (Box<str>, Box<str>, Box<str>);

/// The counters of one limit, and the fixed name that they have among the statistics. A limit whose name changes gets
/// new counters: what the old ones hold stays with the old name.
#[derive(Clone)]
struct Labelled {
    counts: Arc<Counts>,
    statistic: Option<Box<str>>,
}

/// The counters of all limits of the policies in force.
pub(super) struct Rules {
    counts: Mutex<BTreeMap<Labels, Labelled>>,
    statistics: Arc<Statistics>,
    descs: Vec<Desc>,
}

impl Rules {
    pub(super) fn new(statistics: Arc<Statistics>) -> Result<Self, prometheus::Error> {
        let labels = || ["domain", "rule", "limit"].map(str::to_owned).to_vec();
        let mut descs = Vec::new();
        for (name, help, _) in RULE_METRICS {
            descs.push(Desc::new(name.to_owned(), help.to_owned(), labels(), Default::default())?);
        }
        Ok(Self { counts: Mutex::default(), statistics, descs })
    }

    /// Looks up the counters of all these rules, and forgets those of rules that are gone.
    pub(super) fn load(&self, policies: &PolicySet, near_limit: Fraction) -> RuleTally {
        let mut before = self.counts.lock();
        let mut counts = BTreeMap::new();
        let mut live = Vec::new();
        let mut keep = |labels: Labels, statistic: Option<&str>| -> Arc<Counts> {
            let known = before.get(&labels).filter(|known| known.statistic.as_deref() == statistic);
            let new = || Labelled { counts: Arc::default(), statistic: statistic.map(Into::into) };
            let known = known.cloned().unwrap_or_else(new);
            counts.entry(labels).or_insert(known).counts.clone()
        };
        let mut rules = Vec::new();
        for rule in policies.rules() {
            let of_rule = rule.limits.iter().enumerate().map(|(i, limit)| {
                let label = limit.name.as_deref().unwrap_or(limit.id());
                let labels = (rule.domain.clone(), rule.path.clone(), label.into());
                match self.statistics.name_of(rule, i) {
                    LimitName::Fixed(name) => {
                        let counts = keep(labels, Some(&name));
                        live.push((name, counts.clone()));
                        LimitTally { counts, by_request: None }
                    }
                    LimitName::ByRequest(name) => {
                        live.push((name.rest_name.clone(), name.rest.clone()));
                        LimitTally { counts: keep(labels, None), by_request: Some(name) }
                    }
                }
            });
            rules.push(of_rule.collect());
        }
        let mut overrides = BTreeMap::new();
        for domain in policies.domains() {
            let labels = (domain.name.clone(), OVERRIDE.into(), OVERRIDE.into());
            let rest = Arc::<Counts>::default();
            live.push((Statistics::rest_of_overrides(&domain.name), rest.clone()));
            overrides.insert(domain.name.clone(), Override { counts: keep(labels, None), rest });
        }
        *before = counts;
        self.statistics.replace(live);
        RuleTally { rules, overrides, statistics: self.statistics.clone(), near_limit }
    }
}

/// The counters of one limit.
struct LimitTally {
    counts: Arc<Counts>,
    /// Set where requests give the name of the statistics, which then has counters of its own.
    by_request: Option<RequestName>,
}

/// The counters of the limits that come with requests for one domain.
struct Override {
    counts: Arc<Counts>,
    /// Those for which there was no room for a name.
    rest: Arc<Counts>,
}

/// The counters of one load, by the position of rule and limit.
pub(super) struct RuleTally {
    rules: Vec<Box<[LimitTally]>>,
    overrides: BTreeMap<Box<str>, Override>,
    statistics: Arc<Statistics>,
    near_limit: Fraction,
}

impl Tally for RuleTally {
    fn charged(&self, charged: &Charged<'_>) {
        let part = split(charged, self.near_limit);
        if part.hits == 0 {
            return;
        }
        match charged.limit {
            LimitOf::Rule(rule, limit) => {
                let Some(tally) = self.rules.get(rule.id as usize).and_then(|limits| limits.get(limit)) else {
                    return;
                };
                tally.counts.add(&part);
                if let Some(name) = &tally.by_request {
                    self.statistics.count_by_request(name, charged.entries, &part);
                }
            }
            LimitOf::Override { domain } => {
                let Some(tally) = self.overrides.get(domain) else {
                    return;
                };
                tally.counts.add(&part);
                self.statistics.count_override(domain, charged.entries, &tally.rest, &part);
            }
        }
    }
}

impl Source for Rules {
    fn descs(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn families(&self) -> Vec<MetricFamily> {
        let counts = self.counts.lock();
        let mut metrics: [Vec<Metric>; RULE_METRICS.len()] = Default::default();
        for ((domain, rule, limit), labelled) in counts.iter() {
            let values = labelled.counts.values();
            if **rule == *OVERRIDE && values.hits == 0 {
                // Most domains never see a limit in a request.
                continue;
            }
            let labels = [("domain", &**domain), ("limit", &**limit), ("rule", &**rule)];
            for (metrics, (_, _, value)) in metrics.iter_mut().zip(RULE_METRICS) {
                metrics.push(counter(&labels, value(&values)));
            }
        }
        let named = RULE_METRICS.iter().zip(metrics);
        named.map(|((name, help, _), metrics)| family(name, help, MetricType::COUNTER, metrics)).collect()
    }
}
