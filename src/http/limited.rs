//! `/top` and `/limited`: the denied keys and their rules, over the last minutes.
//!
//! The numbers are read off the runtime, at most once in [`LOOK_AGE`], and callers share the result. So many callers do not delay
//! decisions. Not here: the numbers (telemetry).

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use weir_api::top::{KeyDenials, LimitDenials, Limited, Store, Top};
use weir_lifecycle::on_own_thread;
use weir_settings::ShownValues;
use weir_telemetry::limited::{KeyReport, LimitReport, MINUTES_MAX, Report, STEP_MS, ShownDescriptor};
use weir_telemetry::metrics::{BUSIEST_MAX, LOOK_AGE, Metrics, busiest_of};

use super::rights::Caller;
use super::{Site, bad_query, bad_request, json_error, shown};

const LIMITS_MAX: usize = 64;
/// The most keys of each limit in an answer of `/top`. `/limited` has all keys.
const KEYS_MAX: usize = 16;
pub(super) const NO_RULE: &str =
    "no rule of the policies in force has this domain and descriptor: see \"descriptor\" in /policies";
/// The longest filter in bytes.
const FILTER_BYTES_MAX: usize = 256;

#[derive(Default)]
pub(super) struct Looks(tokio::sync::Mutex<[Option<Look>; MINUTES_MAX]>);

type Look = (Instant, Arc<Report>);

impl Looks {
    /// The denied keys of the last `minutes`, from 1 to [`MINUTES_MAX`].
    async fn report(&self, metrics: &Arc<Metrics>, minutes: usize) -> Arc<Report> {
        let mut reports = self.0.lock().await;
        let last = &mut reports[minutes - 1];
        if let Some((_, report)) = last.as_ref().filter(|(at, _)| at.elapsed() < LOOK_AGE) {
            return report.clone();
        }
        let metrics = metrics.clone();
        let report = Arc::new(on_own_thread(move || metrics.limited().report(minutes)).await);
        *last = Some((Instant::now(), report.clone()));
        report
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopQuery {
    #[serde(default = "minutes_max")]
    minutes: usize,
    #[serde(default = "most_limits")]
    limits: usize,
    #[serde(default = "most_keys")]
    keys: usize,
    /// Selects limits with this text in their names, with all their keys, and the keys with this text of other limits.
    #[serde(default)]
    filter: String,
}

const fn minutes_max() -> usize {
    MINUTES_MAX
}

const fn most_limits() -> usize {
    20
}

const fn most_keys() -> usize {
    5
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitedQuery {
    domain: String,
    rule: String,
    #[serde(default = "minutes_max")]
    minutes: usize,
}

/// The limits with most denials and their keys, the limits with most hits, and the store.
pub(super) async fn top(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(most) = query.map_err(|rejection| bad_query(&rejection))?;
    for (name, value, max) in
        [("minutes", most.minutes, MINUTES_MAX), ("limits", most.limits, LIMITS_MAX), ("keys", most.keys, KEYS_MAX)]
    {
        in_bounds(name, value, max).map_err(bad_request)?;
    }
    if most.filter.len() > FILTER_BYTES_MAX {
        return Err(bad_request(format!("filter: more than {FILTER_BYTES_MAX} bytes")));
    }
    let report = site.shared.looks.report(&site.metrics, most.minutes).await;
    let metrics = site.metrics.clone();
    let busiest = on_own_thread(move || metrics.busiest()).await;
    let values = site.metrics.limited().values();
    let own = report.limits.iter().filter(|limit| caller.has(&limit.domain));
    let (limits, limits_left_out) = most.of(own, values);
    Ok(fresh(&Top {
        limited: of_report(&report, limits, values),
        limits_left_out,
        instance: site.admin.instance.clone(),
        busiest: busiest_of(
            &busiest,
            most.limits.min(BUSIEST_MAX),
            |domain| caller.has(domain),
            caller.has_all_domains(),
        ),
        leases: site.limiter.lease_totals(),
        store: Store { queue: Some(site.store_queue()), ..site.store_shown() },
        uptime_s: site.metrics.uptime().as_secs(),
    }))
}

impl TopQuery {
    /// The selected limits and keys within the bounds, and the number of omitted limits.
    fn of<'r>(&self, limits: impl Iterator<Item = &'r LimitReport>, values: ShownValues) -> (Vec<LimitDenials>, usize) {
        let (mut shown, mut left_out) = (Vec::new(), 0);
        for limit in limits {
            let names = [&*limit.domain, &*limit.rule, &*limit.limit];
            let has_all = names.iter().any(|name| name.contains(&self.filter));
            let is_wanted =
                |key: &&KeyReport| has_all || ShownDescriptor::of(&key.key, values).text().contains(&self.filter);
            let keys: Vec<&KeyReport> = limit.keys.iter().filter(is_wanted).take(self.keys).collect();
            if !has_all && keys.is_empty() {
                continue;
            }
            if shown.len() < self.limits {
                shown.push(shown_limit(limit, keys.into_iter(), values));
            } else {
                left_out += 1;
            }
        }
        (shown, left_out)
    }
}

/// All keys that were over the limits of one rule.
pub(super) async fn limited(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<LimitedQuery>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(of) = query.map_err(|rejection| bad_query(&rejection))?;
    caller.check(Some(&of.domain))?;
    in_bounds("minutes", of.minutes, MINUTES_MAX).map_err(bad_request)?;
    let report = site.shared.looks.report(&site.metrics, of.minutes).await;
    let values = site.metrics.limited().values();
    let is_asked = |limit: &&LimitReport| limit.domain == of.domain && limit.rule == of.rule;
    let shown: Vec<_> =
        report.limits.iter().filter(is_asked).map(|limit| shown_limit(limit, limit.keys.iter(), values)).collect();
    if shown.is_empty() && site.report.has_rule(Some(&of.domain), &of.rule).is_err() {
        return Err(json_error(StatusCode::NOT_FOUND, NO_RULE));
    }
    Ok(fresh(&of_report(&report, shown, values)))
}

/// # Errors
/// The text of a 400.
fn in_bounds(name: &str, value: usize, max: usize) -> Result<(), String> {
    if (1..=max).contains(&value) { Ok(()) } else { Err(format!("{name} = {value}: must be from 1 to {max}")) }
}

/// An answer that caches must not store.
pub(super) fn fresh(answer: &impl Serialize) -> Response {
    ([(header::CACHE_CONTROL, "no-store")], shown(answer)).into_response()
}

fn of_report(report: &Report, limits: Vec<LimitDenials>, values: ShownValues) -> Limited {
    Limited {
        now_ms: report.now_ms,
        minutes: report.minutes as u64,
        step_ms: STEP_MS,
        values: values.name().to_owned(),
        denials_left_out: report.left_out,
        limits,
    }
}

fn shown_limit<'r>(
    limit: &LimitReport,
    keys: impl Iterator<Item = &'r KeyReport>,
    values: ShownValues,
) -> LimitDenials {
    LimitDenials {
        domain: limit.domain.clone(),
        rule: limit.rule.clone(),
        limit: limit.limit.clone(),
        role: limit.role.name().to_owned(),
        denials: limit.denials,
        history: limit.history.clone(),
        keys: keys.map(|key| shown_key(key, values)).collect(),
    }
}

fn shown_key(key: &KeyReport, values: ShownValues) -> KeyDenials {
    let descriptor = ShownDescriptor::of(&key.key, values);
    KeyDenials {
        descriptor: descriptor.text(),
        cut: descriptor.is_cut,
        denials_min: key.at_least,
        denials_max: key.at_most,
        first_ms: key.first_ms,
        last_ms: key.last_ms,
        row: key.row.as_ref().map(ToString::to_string),
    }
}
