//! `/overrides`: numbers that operators set for single descriptors.
//!
//! Not here: the effect of an override, and how it is stored (limiter/overrides.rs).

use std::collections::HashMap;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use weir_api::numbers::{json_numbers, numbers_of};
use weir_api::overrides::{NewOverride, OverrideChange, OverrideList, ShownOverride};
use weir_engine::descriptor::{entries_of, spell_pairs};
use weir_engine::overrides::{Misfit, Override, fit, numbers_text, shared_with};
use weir_engine::{Micros, PolicySet};
use weir_lifecycle::on_own_thread;
use weir_limiter::overrides::{FoundChange, OverrideTable, Refused, Replacement, SetOverride, version_time};
use weir_settings::ShownValues;
use weir_telemetry::limited::ShownDescriptor;
use weir_telemetry::logging::AUDIT;
use weir_text::{instant_text, parse_instant};

use super::rights::Caller;
use super::streamed::{PIECE_BYTES, opened, pieces};
use super::token::check_again;
use super::{Site, bad_query, bad_request, json_error, kept, read, shown};

/// The largest body that sets an override, in bytes.
const BODY_BYTES_MAX: usize = 16 * 1_024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteQuery {
    domain: String,
    descriptor: String,
}

/// The overrides that have not ended, sorted by domain and descriptor, written in pieces.
pub(super) async fn list(State(site): State<Arc<Site>>, Extension(caller): Extension<Arc<Caller>>) -> Response {
    let (known, policies, now) =
        (site.admin.overrides.known(), site.admin.overrides.policies(), site.admin.overrides.now());
    let read_ms = known.read.map(|read| u64::try_from(read.elapsed().as_millis()).unwrap_or(u64::MAX));
    let head = OverrideList {
        now: instant_text(now),
        read_ms_ago: read_ms,
        store: site.admin.overrides.store().name().to_owned(),
        overrides: Vec::new(),
    };
    let head = opened(&head);
    let (mut next, mut separator, mut has_ended) = (0, &[][..], false);
    let body = pieces(move || {
        let mut piece = if next == 0 && !has_ended { head.clone() } else { Vec::new() };
        while piece.len() < PIECE_BYTES && !has_ended {
            match known.overrides.get(next) {
                Some(one) => {
                    next += 1;
                    // An ended override is known until the store is read again.
                    if now < one.set.until && caller.has(&one.set.domain) {
                        piece.extend(separator);
                        piece.extend(serde_json::to_vec(&with_effect(one, &policies)).unwrap_or_default());
                        separator = &b","[..];
                    }
                }
                None => {
                    piece.extend(b"]}");
                    has_ended = true;
                }
            }
        }
        (!piece.is_empty()).then(|| piece.into())
    });
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")]
        .map(|(name, value)| (name, HeaderValue::from_static(value)));
    (headers, body).into_response()
}

pub(super) async fn set(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    body: Body,
) -> Result<Response, Response> {
    let body = read(&site, body, BODY_BYTES_MAX).await?;
    check_again(&site, &caller).await?;
    let by = &*caller.name;
    let new = wanted(&body, by, site.admin.overrides.now()).map_err(bad_request)?;
    caller.check(Some(&new.set.domain))?;
    let values = site.metrics.limited().values();
    let set = site.admin.overrides.set(&new).await;
    audit_replaced(&site.admin.overrides);
    if set.as_ref().is_err_and(Refused::is_unknown) {
        audit(values, by, &new, "override may have been set");
    }
    let set = set.map_err(refusal)?;
    audit(values, by, &set, "override set");
    Ok(changed(&set, &site.admin.overrides))
}

pub(super) async fn delete(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<DeleteQuery>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(which) = query.map_err(|rejection| bad_query(&rejection))?;
    caller.check(Some(&which.domain))?;
    let by = &*caller.name;
    let entries = entries_of(&which.descriptor).map_err(bad_request)?;
    let values = site.metrics.limited().values();
    let deleted = site.admin.overrides.delete(&which.domain, &entries, by).await;
    audit_replaced(&site.admin.overrides);
    if deleted.as_ref().is_err_and(Refused::is_unknown) {
        let (domain, descriptor) = (&*which.domain, site.audited(&entries));
        tracing::info!(target: AUDIT, by, domain, descriptor, "override may have been deleted");
    }
    let deleted = deleted.map_err(refusal)?;
    audit(values, by, &deleted, "override deleted");
    Ok(changed(&deleted, &site.admin.overrides))
}

/// Logs the author of a change that the store did not confirm, and has made.
pub fn audit_found(values: ShownValues, FoundChange { changed, is_deletion }: &FoundChange) {
    audit(
        values,
        &changed.by,
        changed,
        if *is_deletion { "override found deleted" } else { "override found in force" },
    );
}

/// Logs versions of all overrides that another one has replaced, and that it may not include: their last change may be lost.
pub fn audit_replaced(overrides: &OverrideTable) {
    for one in overrides.take_replaced() {
        let what = match one.how {
            Replacement::Adopted => "overrides replaced by a newer version",
            Replacement::WrittenBack => "overrides written back over an older version",
            Replacement::Unconfirmed => "overrides may have been written back over an older version",
        };
        let [kept_at, lost_at] = [&one.kept, &one.lost].map(|version| version_time(version).map(instant_text));
        let (store, kept, lost) = (overrides.store().name(), one.kept, one.lost);
        tracing::warn!(target: AUDIT, store, kept_at, lost_at, kept, lost, "{what}");
    }
}

/// Logs the author of a change.
fn audit(values: ShownValues, by: &str, one: &SetOverride, what: &'static str) {
    let SetOverride { set, reason, .. } = one;
    tracing::info!(
        target: AUDIT,
        by,
        domain = &*set.domain,
        descriptor = ShownDescriptor::of_entries(&set.entries, values).text(),
        limits = numbers_text(&set.numbers),
        until = instant_text(set.until),
        reason = &**reason,
        "{what}"
    );
}

#[derive(Default)]
pub(super) struct OfRules {
    known: Arc<[SetOverride]>,
    /// By the id of a rule, the positions of its overrides.
    places: HashMap<u32, Vec<usize>>,
}

impl OfRules {
    /// Sorts the known overrides by rule, off the runtime.
    pub(super) async fn of(overrides: &OverrideTable, policies: &Arc<PolicySet>) -> Self {
        let (known, policies, now) = (overrides.known().overrides, policies.clone(), overrides.now());
        if known.is_empty() {
            return Self::default();
        }
        on_own_thread(move || {
            let mut places: HashMap<u32, Vec<usize>> = HashMap::new();
            for (at, one) in known.iter().enumerate().filter(|(_, one)| now < one.set.until) {
                if let Ok((rule, ..)) = fit(&policies, &one.set) {
                    places.entry(rule.id).or_default().push(at);
                }
            }
            Self { known, places }
        })
        .await
    }

    pub(super) fn of_rule(&self, rule: u32, policies: &PolicySet) -> Vec<ShownOverride> {
        let places = self.places.get(&rule).into_iter().flatten();
        places.map(|at| with_effect(&self.known[*at], policies)).collect()
    }
}

/// An override with its effect under these policies.
fn with_effect(one: &SetOverride, policies: &PolicySet) -> ShownOverride {
    let SetOverride { set, set_at, by, reason } = one;
    let fitted = fit(policies, set);
    ShownOverride {
        domain: set.domain.to_string(),
        descriptor: spell_pairs(&set.entries),
        rule: fitted.as_ref().ok().map(|(rule, ..)| rule.path.to_string()),
        unused: fitted.as_ref().err().map(Misfit::to_string),
        limits: json_numbers(&set.numbers),
        until: instant_text(set.until),
        until_us: set.until,
        set: instant_text(*set_at),
        by: by.to_string(),
        reason: reason.to_string(),
    }
}

/// The answer to a change that the store has confirmed.
fn changed(one: &SetOverride, overrides: &OverrideTable) -> Response {
    let policies = overrides.policies();
    shown(&OverrideChange {
        kept: kept(overrides.store()),
        shared_with: shared_with(&policies, &one.set),
        changed: with_effect(one, &policies),
    })
    .into_response()
}

pub(super) fn wanted(body: &[u8], by: &str, now: Micros) -> Result<SetOverride, String> {
    let NewOverride { domain, descriptor, limits, until, for_us, reason } =
        serde_json::from_slice(body).map_err(|error| format!("body: {error}"))?;
    if limits.is_empty() {
        return Err("limits: at least one".to_owned());
    }
    if reason.trim().is_empty() {
        return Err("reason: write why".to_owned());
    }
    let until = match (until, for_us) {
        (Some(text), None) => parse_instant(&text).map_err(|reason| format!("until = {text:?}: {reason}"))?,
        (None, Some(us)) => now.saturating_add(us),
        _ => return Err("give either until or for_us".to_owned()),
    };
    let set =
        Override { domain: domain.into(), entries: entries_of(&descriptor)?, numbers: numbers_of(limits)?, until };
    Ok(SetOverride { set, set_at: now, by: by.into(), reason: reason.trim().into() })
}

fn refusal(refused: Refused) -> Response {
    let status = match &refused {
        Refused::Misfit(Misfit::NoDomain | Misfit::NoRule { .. }) | Refused::Absent => StatusCode::NOT_FOUND,
        Refused::Misfit(Misfit::Taken(_)) | Refused::Full(_) | Refused::Contended => StatusCode::CONFLICT,
        Refused::Misfit(_) | Refused::Invalid(_) => StatusCode::BAD_REQUEST,
        Refused::Unread(_) | Refused::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    json_error(status, refused)
}
