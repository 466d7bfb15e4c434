//! What the operator uses: the policies as loaded, and the state of one descriptor.
//!
//! Whoever reaches this listener can reset limits: it is bound to the loopback interface unless told otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Site, json_error, metrics, not_found, readyz, wrong_method};
use crate::limiter::{Algorithm, Anchor, Domain, Entry, Limit, Mode, OnError, Refill, Rule, parse_entries};

/// Every path, for whoever asks for another.
const PATHS: [&str; 5] = [
    "GET /policies",
    "GET /state?domain=D&descriptor=K=V,K=V",
    "DELETE /state?domain=D&descriptor=K=V,K=V",
    "GET /metrics",
    "GET /readyz",
];

pub(super) fn router(site: &Arc<Site>) -> Router {
    Router::new()
        .route("/policies", get(policies))
        .route("/state", get(peek).delete(reset))
        .route("/metrics", get(metrics))
        .route("/readyz", get(readyz))
        .fallback(async |uri: Uri| not_found(&uri, &PATHS))
        .method_not_allowed_fallback(wrong_method)
        .with_state(site.clone())
}

/// The policies in force, rules in the order of their files.
async fn policies(State(site): State<Arc<Site>>) -> Json<Value> {
    let shown = site.report.policies.lock();
    let policies = &shown.policies;
    let mut rules: BTreeMap<&str, Vec<(&Rule, &String)>> = BTreeMap::new();
    for (rule, place) in policies.rules().iter().zip(&shown.places) {
        rules.entry(&rule.domain).or_default().push((rule, place));
    }
    let mut domains: Vec<&Domain> = policies.domains().collect();
    domains.sort_by(|a, b| a.name.cmp(&b.name));
    let domains: Vec<Value> = domains
        .into_iter()
        .map(|domain| {
            let charging = domain.mode.map(Mode::name);
            let rules = rules.remove(&*domain.name).unwrap_or_default().into_iter();
            let rules: Vec<_> = rules.map(|(rule, place)| rule_as_json(rule, domain, site.on_error, place)).collect();
            let on_error = on_error_as_json(domain, None, site.on_error);
            // Without a charging of its own, a domain has the server's.
            json!({ "domain": domain.name, "charging": charging, "on_error": on_error, "rules": rules })
        })
        .collect();
    Json(json!({ "domains": domains }))
}

fn rule_as_json(rule: &Rule, domain: &Domain, servers: OnError, place: &str) -> Value {
    let limits: Vec<Value> = rule.limits.iter().map(limit_as_json).collect();
    // No store is asked about a rule without limits.
    let on_error = (!limits.is_empty()).then(|| on_error_as_json(domain, Some(rule), servers));
    json!({
        "descriptor": rule.path,
        "place": place,
        "unlimited": rule.unlimited,
        "role": rule.role.name(),
        "replaces": rule.replaces,
        "on_error": on_error,
        "limits": limits,
    })
}

/// What becomes of a request whose store does not answer, and who says so: the rule, the domain or the server.
fn on_error_as_json(domain: &Domain, rule: Option<&Rule>, servers: OnError) -> Value {
    match domain.on_error_of(rule) {
        Some((on_error, said_by)) => json!({ "action": on_error.name(), "from": said_by.name() }),
        None => json!({ "action": servers.name(), "from": "server" }),
    }
}

/// A limit with what a policy can say of it; parameters that its algorithm lacks are left out.
fn limit_as_json(limit: &Limit) -> Value {
    let mut shown = json!({
        "name": limit.name,
        "algorithm": limit.algorithm().name(),
        "requests": limit.requests(),
        "window_us": limit.window().us(),
        "capacity": limit.capacity(),
        "id": limit.id(),
        "drain": limit.drain,
        "post_paid": limit.post_paid,
    });
    match limit.algorithm() {
        Algorithm::FixedWindow { anchor: Anchor::Clock } => shown["anchor"] = json!("clock"),
        Algorithm::FixedWindow { anchor: Anchor::FirstHit } => shown["anchor"] = json!("first_hit"),
        Algorithm::FixedWindow { anchor: Anchor::Calendar(unit) } => {
            let zone = if limit.zone().is_empty() { "UTC" } else { limit.zone() };
            shown["calendar"] = json!({ "unit": unit.unit().name(), "timezone": zone });
        }
        Algorithm::SlidingWindow { precision } => shown["precision_us"] = json!(precision.get()),
        Algorithm::TokenBucket { refill: Refill::Continuous, .. } => shown["refill"] = json!("continuous"),
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => shown["refill"] = json!("interval"),
        Algorithm::SlidingWindowCounter
        | Algorithm::SlidingWindowLog
        | Algorithm::LeakyBucket { .. }
        | Algorithm::Gcra { .. } => {}
    }
    shown
}

/// Which state is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    domain: String,
    /// Entries as `k=v,k=v`; a comma in a value is `\,` and a backslash `\\`.
    descriptor: String,
}

/// Whose state is asked for.
struct Whose {
    domain: String,
    entries: Vec<(String, String)>,
}

impl Whose {
    /// # Errors
    /// With the text of a 400.
    fn read(query: Result<Query<Which>, QueryRejection>) -> Result<Self, String> {
        let Query(which) = query.map_err(|rejection| rejection.body_text())?;
        let entries = parse_entries(&which.descriptor).map_err(|reason| format!("descriptor: {reason}"))?;
        Ok(Self { domain: which.domain, entries })
    }

    fn entries(&self) -> Vec<Entry<'_>> {
        self.entries.iter().map(|(key, value)| Entry { key, value }).collect()
    }
}

async fn peek(State(site): State<Arc<Site>>, query: Result<Query<Which>, QueryRejection>) -> Response {
    let whose = match Whose::read(query) {
        Ok(whose) => whose,
        Err(reason) => return json_error(StatusCode::BAD_REQUEST, reason),
    };
    let peeks = match site.limiter.peek(&whose.domain, &whose.entries()).await {
        Ok(peeks) => peeks,
        Err(error) => return json_error(StatusCode::SERVICE_UNAVAILABLE, error),
    };
    if peeks.is_empty() {
        return no_limit();
    }
    let limits = peeks.iter().map(|peek| {
        json!({
            "key": peek.key,
            "algorithm": peek.algorithm,
            "requests": peek.requests,
            "window_us": peek.window_us,
            "stored": peek.state.is_some(),
            "remaining": peek.remaining,
            "reset_after_us": peek.reset_after_us,
        })
    });
    Json(json!({ "limits": limits.collect::<Vec<_>>() })).into_response()
}

async fn reset(State(site): State<Arc<Site>>, query: Result<Query<Which>, QueryRejection>) -> Response {
    let whose = match Whose::read(query) {
        Ok(whose) => whose,
        Err(reason) => return json_error(StatusCode::BAD_REQUEST, reason),
    };
    match site.limiter.reset(&whose.domain, &whose.entries()).await {
        Ok((keys, _)) if keys.is_empty() => no_limit(),
        Ok((keys, stored)) => {
            tracing::info!(stored, "state reset by the admin listener");
            Json(json!({ "keys": keys, "stored": stored })).into_response()
        }
        Err(error) => json_error(StatusCode::SERVICE_UNAVAILABLE, error),
    }
}

fn no_limit() -> Response {
    json_error(StatusCode::NOT_FOUND, "no limit of the policies in force belongs to this domain and descriptor")
}
