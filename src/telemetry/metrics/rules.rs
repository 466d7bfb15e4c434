//! The counters of all limits in force, by domain, rule and limit.
//!
//! The counters of a charge are looked up when policies load. Not here: what a charge adds (counts.rs), and the names
//! of envoyproxy/ratelimit (statistics.rs), which share these counters if the name is fixed.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_engine::arith::Fraction;
use weir_engine::observer::{Charged, Crossed, DecisionResult, HoldHits, HoldResult, LimitOf, Tally};
use weir_engine::policy::Domain;
use weir_engine::{Denomination, Limit, PolicySet, Rule, Shares};

use super::alerts::{self, AlertCounts, AlertLoad, LimitAlerts};
use super::domains::DomainCounts;
use super::families::{Source, Value, Visitor};
use super::labels::Labels;
use super::listed::{Listed, ListedFamily};
use crate::alerts::Alerts;
use crate::counts::{Counts, Number, Values, split};
use crate::statistics::{LimitName, RequestName, Statistics};

/// The labels `rule` and `limit` of limits of the request.
const OVERRIDE: &str = "(request)";

const RULE_METRICS: [(&str, Number); 5] = [
    ("weir_hits_total", |values| values.hits),
    ("weir_within_limit_hits_total", |values| values.within),
    ("weir_over_limit_hits_total", |values| values.over),
    ("weir_near_limit_hits_total", |values| values.near),
    ("weir_shadow_hits_total", |values| values.shadow),
];

/// The counters of one limit, and their fixed name among the statistics. A limit whose name changes gets new counters:
/// the old counts stay with the old name.
#[derive(Clone)]
pub(super) struct Labelled {
    counts: Arc<Counts>,
    statistic: Option<Box<str>>,
    /// The unit in which people read the hits.
    pub(super) amount: Option<Arc<Denomination>>,
}

impl Labelled {
    pub(super) fn values(&self) -> Values {
        self.counts.values()
    }
}

pub(super) struct Rules {
    counts: Arc<Listed<Arc<Labels>, Labelled>>,
    alert_counts: Arc<AlertCounts>,
    statistics: Arc<Statistics>,
    alerts: Arc<Alerts>,
}

impl Rules {
    pub(super) fn new(statistics: Arc<Statistics>, alerts: Arc<Alerts>) -> Self {
        Self { counts: Arc::default(), alert_counts: Arc::default(), statistics, alerts }
    }

    pub(super) fn alert_counts(&self) -> Arc<AlertCounts> {
        self.alert_counts.clone()
    }

    /// The current limits, in the order of their labels.
    pub(super) fn entries(&self) -> Arc<[(Arc<Labels>, Labelled)]> {
        self.counts.entries()
    }

    /// Returns the counters of all these rules, and removes those of other rules. One load at a time.
    pub(super) fn load(
        &self,
        policies: &PolicySet,
        near_limit: Fraction,
        domains: Box<[Arc<DomainCounts>]>,
    ) -> RuleTally {
        let before = self.counts.entries();
        let mut counts: BTreeMap<Arc<Labels>, Labelled> = BTreeMap::new();
        let mut live = Vec::new();
        let none = Shares::default();
        let mut alerts = AlertLoad::begin(&self.alert_counts);
        let mut keep = |labels: Labels, statistic: Option<&str>, limit: Option<&Limit>| -> (Arc<Counts>, LimitAlerts) {
            let (shares, amount) = limit.map_or((&none, None), |limit| (&limit.alert_at, limit.amount.clone()));
            if let Some((labels, twin)) = counts.get_key_value(&labels) {
                return (twin.counts.clone(), alerts.of(labels, shares));
            }
            let known = before.binary_search_by(|(known, _)| (**known).cmp(&labels)).ok().map(|at| &before[at]);
            let known = known.filter(|(_, known)| known.statistic.as_deref() == statistic).cloned();
            let new = || Labelled { counts: Arc::default(), statistic: statistic.map(Into::into), amount: None };
            let (labels, known) = known.unwrap_or_else(|| (Arc::new(labels), new()));
            let known = Labelled { amount, ..known };
            let alerts = alerts.of(&labels, shares);
            (counts.entry(labels).or_insert(known).counts.clone(), alerts)
        };
        // Rules of one domain share its name.
        let names: BTreeMap<&str, Arc<str>> =
            policies.domains().map(|domain| (&*domain.name, Arc::from(&*domain.name))).collect();
        let mut rules = Vec::new();
        for rule in policies.rules() {
            let domain = names.get(&*rule.domain).map_or_else(|| Arc::from(&*rule.domain), Arc::clone);
            let of_rule = rule.limits.iter().enumerate().map(|(i, limit)| {
                let label = limit.name.as_deref().unwrap_or(limit.id());
                let labels = Labels { domain: domain.clone(), rule: rule.path.clone(), limit: label.into() };
                match self.statistics.name_of(rule, i) {
                    LimitName::Fixed(name) => {
                        let (counts, alerts) = keep(labels, Some(&name), Some(limit));
                        live.push((name, counts.clone()));
                        LimitTally { counts, alerts, by_request: None }
                    }
                    LimitName::ByRequest(name) => {
                        live.push((name.rest_name.clone(), name.rest.clone()));
                        let (counts, alerts) = keep(labels, None, Some(limit));
                        LimitTally { counts, alerts, by_request: Some(name) }
                    }
                }
            });
            rules.push(of_rule.collect());
        }
        let mut overrides = BTreeMap::new();
        for domain in policies.domains() {
            let labels = Labels {
                domain: names.get(&*domain.name).map_or_else(|| Arc::from(&*domain.name), Arc::clone),
                rule: OVERRIDE.into(),
                limit: OVERRIDE.into(),
            };
            let rest = Arc::<Counts>::default();
            live.push((Statistics::rest_of_request_limits(&domain.name), rest.clone()));
            overrides.insert(domain.name.clone(), Override { counts: keep(labels, None, None).0, rest });
        }
        self.counts.replace(counts.into_iter().collect());
        alerts.end(&self.alert_counts);
        self.statistics.replace(live);
        let (statistics, alerts) = (self.statistics.clone(), self.alerts.clone());
        RuleTally { rules, overrides, domains, statistics, alerts, near_limit }
    }
}

struct LimitTally {
    counts: Arc<Counts>,
    alerts: LimitAlerts,
    /// Set if requests determine the name of the statistics, which then has its own counters.
    by_request: Option<RequestName>,
}

struct Override {
    counts: Arc<Counts>,
    /// The counters for requests whose name did not fit.
    rest: Arc<Counts>,
}

/// The counters of one load, by the position of rule and limit.
pub(super) struct RuleTally {
    rules: Vec<Box<[LimitTally]>>,
    overrides: BTreeMap<Box<str>, Override>,
    /// By the id of the domain.
    domains: Box<[Arc<DomainCounts>]>,
    statistics: Arc<Statistics>,
    alerts: Arc<Alerts>,
    near_limit: Fraction,
}

impl RuleTally {
    fn of_limit(&self, rule: &Rule, limit: usize) -> Option<&LimitTally> {
        self.rules.get(rule.id as usize)?.get(limit)
    }
}

impl Tally for RuleTally {
    fn decided(&self, domain: &Domain, lane: usize, result: DecisionResult, unmatched: u32) {
        if let Some(counts) = self.domains.get(domain.id as usize) {
            counts.add(lane, result, unmatched);
        }
    }

    fn weighed_by_default(&self, domain: &Domain, descriptors: u64) {
        if let Some(counts) = self.domains.get(domain.id as usize) {
            counts.add_weighed_by_default(descriptors);
        }
    }

    fn holds(&self, domain: &Domain, result: HoldResult, count: u64) {
        if let Some(counts) = self.domains.get(domain.id as usize) {
            counts.add_holds(result, count);
        }
    }

    fn hold_hits(&self, domain: &Domain, kind: HoldHits, hits: u64) {
        if let Some(counts) = self.domains.get(domain.id as usize) {
            counts.add_hold_hits(kind, hits);
        }
    }

    fn crossed(&self, crossed: &Crossed<'_>) {
        let LimitOf::Rule(rule, limit) = crossed.limit else { return };
        if self.alerts.report(crossed)
            && let Some(tally) = self.of_limit(rule, limit)
        {
            alerts::count(&tally.alerts, crossed.share);
        }
    }

    fn charged(&self, charged: &Charged<'_>) {
        let split = split(charged, self.near_limit);
        if split.hits == 0 {
            return;
        }
        match charged.limit {
            LimitOf::Rule(rule, limit) => {
                let Some(tally) = self.of_limit(rule, limit) else { return };
                tally.counts.add(&split);
                if let Some(name) = &tally.by_request {
                    self.statistics.count_by_request(name, charged.entries, &split);
                }
            }
            LimitOf::Request { domain } => {
                let Some(tally) = self.overrides.get(domain) else {
                    return;
                };
                tally.counts.add(&split);
                self.statistics.count_request_limit(domain, charged.entries, &tally.rest, &split);
            }
        }
    }
}

pub(super) fn hits_of_limits(rules: &Rules) -> impl Iterator<Item = Box<dyn Source>> + use<> {
    let list = rules.counts.clone();
    RULE_METRICS.into_iter().map(move |(name, number)| {
        let show = move |labels: &Arc<Labels>, labelled: &Labelled, to: &mut dyn Visitor| {
            let values = labelled.counts.values();
            let Labels { domain, rule, limit } = &**labels;
            // Most domains never get a limit of the request.
            if **rule != *OVERRIDE || values.hits > 0 {
                to.series(&[("domain", domain), ("limit", limit), ("rule", rule)], Value::Count(number(&values)));
            }
        };
        Box::new(ListedFamily::new(name, list.clone(), show)) as Box<dyn Source>
    })
}
