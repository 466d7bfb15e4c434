//! `/states`: the stored states of one rule, page by page.

use std::sync::Arc;

use axum::Extension;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use weir_api::states::{StatePage, StoredState};
use weir_limiter::states::{NoStates, StatesPosition, StoredState as Found};
use weir_settings::ShownValues;
use weir_store::ScanPosition;
use weir_telemetry::limited::ShownDescriptor;

use super::limited::{NO_RULE, fresh};
use super::rights::Caller;
use super::{Site, bad_query, bad_request, json_error};

/// The most states of one page. The last step can add some more.
const STATES_MAX: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatesQuery {
    domain: String,
    rule: String,
    #[serde(default = "some")]
    max: usize,
    from: Option<String>,
}

const fn some() -> usize {
    100
}

/// The states of one rule, in no particular order.
pub(super) async fn states(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<StatesQuery>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(page) = query.map_err(|rejection| bad_query(&rejection))?;
    caller.check(Some(&page.domain))?;
    if !(1..=STATES_MAX).contains(&page.max) {
        return Err(bad_request(format!("max = {}: must be from 1 to {STATES_MAX}", page.max)));
    }
    let Some(from) = page.from.as_deref().map_or(Some(StatesPosition::default()), position) else {
        return Err(bad_request("from: must be the \"next\" of an answer"));
    };
    // One page at a time, so that many callers do not slow decisions.
    let _turn = site.shared.pages.lock().await;
    let found = site.limiter.states(&page.domain, &page.rule, from, page.max).await.map_err(|error| match error {
        NoStates::NoRule => json_error(StatusCode::NOT_FOUND, NO_RULE),
        NoStates::Store(error) => json_error(StatusCode::SERVICE_UNAVAILABLE, error),
    })?;
    let values = site.metrics.limited().values();
    Ok(fresh(&StatePage {
        store: site.limiter.store().name().to_owned(),
        values: values.name().to_owned(),
        states: found.states.iter().map(|state| shown_state(state, values)).collect(),
        next: found.next.map(position_text),
    }))
}

fn position_text(StatesPosition { is_other, at }: StatesPosition) -> String {
    format!("{}-{}-{}", u8::from(is_other), at.shard, at.at)
}

fn position(text: &str) -> Option<StatesPosition> {
    let mut parts = text.splitn(3, '-');
    let is_other = match parts.next()? {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    let at = ScanPosition { shard: parts.next()?.parse().ok()?, at: parts.next()?.parse().ok()? };
    Some(StatesPosition { is_other, at })
}

fn shown_state(state: &Found, values: ShownValues) -> StoredState {
    let descriptor = ShownDescriptor::of(&state.key, values);
    let limited = |number| (!state.is_unlimited).then_some(number);
    StoredState {
        descriptor: descriptor.text(),
        cut: descriptor.is_cut,
        limit: state.limit.clone(),
        capacity: limited(state.capacity),
        used: state.used,
        remaining: limited(state.remaining),
        reset_after_us: state.reset_after_us,
        unlimited: state.is_unlimited,
    }
}
