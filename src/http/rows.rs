//! `/rows`: the numbers of single descriptors of rules with rows. [rw-6]
//!
//! Not here: the effect of a row, and how it is stored (limiter/rows.rs), and files of rows (policies, cli).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use weir_engine::descriptor::{as_entries, entries_of, spell_pairs};
use weir_engine::overrides::Misfit;
use weir_engine::rows::{Row, RowField, RowMisfit};
use weir_limiter::rows::{Removed, RowRefused, RowTable, WriteResult, Written};
use weir_telemetry::logging::AUDIT;
use weir_text::instant_text;
use weir_text::json::JsonRow;

use super::body;
use super::token::By;
use super::{Site, bad_query, bad_request, json_error};

/// The largest body, in bytes.
const BODY_BYTES_MAX: usize = 4 * 1_024 * 1_024;
/// The most rows of one body.
const ROWS_MAX: usize = 5_000;

/// The query of a GET: one row, or a page of all.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    domain: Option<String>,
    descriptor: Option<String>,
    after: Option<String>,
}

/// The query of a DELETE: one row, or the ended rows of a page.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Unwanted {
    domain: Option<String>,
    descriptor: Option<String>,
    #[serde(default)]
    ended: bool,
    after: Option<String>,
}

/// The query of a POST.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Posted {
    /// Checks the rows without writing them.
    #[serde(default)]
    check: bool,
}

/// One row, or a page of rows.
pub(super) async fn show(
    State(site): State<Arc<Site>>,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(Asked { domain, descriptor, after }) = query.map_err(|rejection| bad_query(&rejection))?;
    let table = &site.admin.rows;
    let domain = match (domain, descriptor) {
        (Some(domain), Some(descriptor)) => {
            let entries = entries_of(&descriptor).map_err(bad_request)?;
            let (row, misfit) = table.get(&domain, &as_entries(&entries)).await.map_err(refusal)?;
            return Ok(Json(with_effect(table, &row, misfit.map(|misfit| misfit.to_string()))).into_response());
        }
        (None, Some(_)) => return Err(bad_request("descriptor without domain")),
        (domain, None) => domain,
    };
    let page = table.page(domain.as_deref(), after.as_deref()).await.map_err(refusal)?;
    let rows: Vec<Value> = page
        .rows
        .iter()
        .map(|(row, misfit)| with_effect(table, row, misfit.as_ref().map(RowMisfit::to_string)))
        .collect();
    let store = table.store().name();
    Ok(Json(json!({ "store": store, "rows": rows, "foreign": page.foreign, "next": page.next })).into_response())
}

/// Sets one row.
pub(super) async fn set(
    State(site): State<Arc<Site>>,
    Extension(By(by)): Extension<By>,
    body: Body,
) -> Result<Response, Response> {
    let row =
        row_of(&body::read(body, BODY_BYTES_MAX).await?).map_err(|reason| bad_request(format!("body: {reason}")))?;
    let table = &site.admin.rows;
    let mut results = table.write(vec![row.clone()]).await;
    let Some(written) = results.pop() else {
        return Err(json_error(StatusCode::INTERNAL_SERVER_ERROR, "no result"));
    };
    let written = written.map_err(refusal)?;
    audit(&by, &row, &written);
    let mut shown = checked(table, &row);
    body::add_store(&mut shown, table.store());
    shown["result"] = json!(word(&written));
    shown["before"] = json!(written.before.as_ref().map(as_json));
    Ok(Json(shown).into_response())
}

/// Sets many rows: one JSON line each, with a result for each.
pub(super) async fn set_many(
    State(site): State<Arc<Site>>,
    Extension(By(by)): Extension<By>,
    query: Result<Query<Posted>, QueryRejection>,
    body: Body,
) -> Result<Response, Response> {
    let Query(Posted { check: is_check }) = query.map_err(|rejection| bad_query(&rejection))?;
    let body = body::read(body, BODY_BYTES_MAX).await?;
    let lines: Vec<&[u8]> = body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).collect();
    if lines.len() > ROWS_MAX {
        return Err(json_error(StatusCode::PAYLOAD_TOO_LARGE, format!("body: more than {ROWS_MAX} rows")));
    }
    let table = &site.admin.rows;
    let mut results: Vec<Value> = Vec::with_capacity(lines.len());
    let (mut places, mut rows) = (Vec::new(), Vec::new());
    for line in lines {
        results.push(match row_of(line) {
            Ok(row) if is_check => table.check(&row).map_or_else(|refused| refused_json(&refused), |()| json!("ok")),
            Ok(row) => {
                places.push(results.len());
                rows.push(row);
                Value::Null
            }
            Err(reason) => json!({ "refused": reason, "field": null, "is_store": false }),
        });
    }
    let written = table.write(rows.clone()).await;
    for ((place, row), written) in places.into_iter().zip(&rows).zip(written) {
        results[place] = match written {
            Ok(written) => {
                audit(&by, row, &written);
                json!(word(&written))
            }
            Err(refused) => refused_json(&refused),
        };
    }
    Ok(Json(json!({ "store": table.store().name(), "results": results })).into_response())
}

/// Removes one row, or the ended rows of a page.
pub(super) async fn remove(
    State(site): State<Arc<Site>>,
    Extension(By(by)): Extension<By>,
    query: Result<Query<Unwanted>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(Unwanted { domain, descriptor, ended, after }) = query.map_err(|rejection| bad_query(&rejection))?;
    let table = &site.admin.rows;
    match (domain, descriptor, ended) {
        (Some(domain), Some(descriptor), false) => {
            let entries = entries_of(&descriptor).map_err(bad_request)?;
            let Removed { row, left } = table.remove(&domain, &as_entries(&entries)).await.map_err(refusal)?;
            audit_removed(&by, &row, left.as_ref());
            let mut shown = as_json(&row);
            if let Some(left) = &left {
                shown["left"] = checked(table, left);
            }
            Ok(Json(shown).into_response())
        }
        (domain, None, true) => {
            let (removed, next) = table.prune(domain.as_deref(), after.as_deref()).await.map_err(refusal)?;
            removed.iter().for_each(|row| audit_removed(&by, row, None));
            Ok(Json(json!({ "removed": removed.len(), "next": next })).into_response())
        }
        _ => Err(bad_request("give domain and descriptor, or ended=true")),
    }
}

/// Logs the author of a change.
fn audit(by: &str, row: &Row, written: &Written) {
    if written.result != WriteResult::Written {
        return;
    }
    tracing::info!(
        target: AUDIT,
        by,
        domain = &*row.domain,
        descriptor = spell_pairs(&row.entries),
        content = row.content.to_string(),
        until = row.until.map(instant_text),
        note = &*row.note,
        before = written.before.as_ref().map(|before| before.content.to_string()),
        before_until = written.before.as_ref().and_then(|before| before.until).map(instant_text),
        before_note = written.before.as_ref().map(|before| &*before.note),
        "row set"
    );
}

/// Logs who removed a row, and the row of a file that counts in its place.
fn audit_removed(by: &str, row: &Row, left: Option<&Row>) {
    tracing::info!(
        target: AUDIT,
        by,
        domain = &*row.domain,
        descriptor = spell_pairs(&row.entries),
        content = left.map(|left| left.content.to_string()),
        before = row.content.to_string(),
        before_until = row.until.map(instant_text),
        before_note = &*row.note,
        "row removed"
    );
}

const fn word(written: &Written) -> &'static str {
    match written.result {
        WriteResult::Written => "written",
        WriteResult::Same => "same",
        WriteResult::Replaced => "replaced",
    }
}

fn refused_json(refused: &RowRefused) -> Value {
    let field = refused.field().map(|field| match field {
        RowField::Domain => json!("domain"),
        RowField::Descriptor => json!("descriptor"),
        RowField::Entry(position) => json!({ "entry": position }),
        RowField::Content => json!("content"),
    });
    let is_store = matches!(refused, RowRefused::Store(_) | RowRefused::Unread(_));
    json!({ "refused": refused.to_string(), "field": field, "is_store": is_store })
}

pub(super) fn as_json(row: &Row) -> Value {
    json!(JsonRow::from(row))
}

/// A row of the table, and why it has no effect.
fn checked(table: &RowTable, row: &Row) -> Value {
    with_effect(table, row, table.check(row).err().map(|refused| refused.to_string()))
}

/// A row that has ended by the clock of this process has no effect. [rw-4]
fn with_effect(table: &RowTable, row: &Row, misfit: Option<String>) -> Value {
    let has_ended = row.until.is_some_and(|until| until <= table.now());
    let mut shown = as_json(row);
    shown["unused"] = json!(if has_ended { Some("it has ended".to_owned()) } else { misfit });
    shown
}

pub(super) fn row_of(body: &[u8]) -> Result<Row, String> {
    serde_json::from_slice::<JsonRow>(body).map_err(|error| error.to_string())?.row()
}

fn refusal(refused: RowRefused) -> Response {
    let status = match &refused {
        RowRefused::Misfit(RowMisfit::Misfit(Misfit::NoDomain | Misfit::NoRule { .. })) | RowRefused::Absent => {
            StatusCode::NOT_FOUND
        }
        RowRefused::Full | RowRefused::OfFile | RowRefused::Foreign(_) | RowRefused::Contended => StatusCode::CONFLICT,
        RowRefused::Misfit(_) | RowRefused::Invalid(_) => StatusCode::BAD_REQUEST,
        RowRefused::Store(_) | RowRefused::Unread(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    json_error(status, refused)
}
