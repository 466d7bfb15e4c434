//! `/rows`: the numbers of single descriptors of rules with rows. [rw-6]
//!
//! Not here: the effect of a row, and how it is stored (limiter/rows.rs), and files of rows (policies, cli).

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::{ETAG, IF_MATCH};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use weir_api::rows::{
    AnsweredRow, EndedRows, JsonRow, RowChange, RowOverride, RowPage, RowRemoval, RowResult, RowResults, ShownRow,
    WrongField,
};
use weir_engine::descriptor::{as_entries, entries_of};
use weir_engine::overrides::Misfit;
use weir_engine::rows::{Row, RowField, RowMisfit};
use weir_engine::words::counted;
use weir_limiter::rows::{
    Pruned, RemovalLog, Removed, RowMatch, RowRefused, RowTable, WriteResult, Written, row_version,
};
use weir_telemetry::logging::{self, AUDIT};
use weir_text::instant_text;

use super::rights::Caller;
use super::token::{LOG_ROOM_WAIT, LOG_ROOM_WAIT_IN_ALL, NO_LOG_ROOM, check_again};
use super::{Site, bad_query, bad_request, json_error, kept, read, shown};

/// The largest body, in bytes.
pub(super) const BODY_BYTES_MAX: usize = 4 * 1_024 * 1_024;
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
    /// Removes the rows. Each must have the version of its line.
    #[serde(default)]
    remove: bool,
}

/// One row, or a page of rows.
pub(super) async fn show(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(Asked { domain, descriptor, after }) = query.map_err(|rejection| bad_query(&rejection))?;
    caller.check(domain.as_deref())?;
    let table = &site.admin.rows;
    let domain = match (domain, descriptor) {
        (Some(domain), Some(descriptor)) => {
            let entries = entries_of(&descriptor).map_err(bad_request)?;
            let (row, misfit) = table.get(&domain, &as_entries(&entries)).await.map_err(refusal)?;
            return Ok(tagged(&row, &with_effect(table, &row, misfit.map(|misfit| misfit.to_string()))));
        }
        (None, Some(_)) => return Err(bad_request("descriptor without domain")),
        (domain, None) => domain,
    };
    let page = table.page(domain.as_deref(), after.as_deref()).await.map_err(refusal)?;
    let row =
        |(row, misfit): &(Row, Option<RowMisfit>)| with_effect(table, row, misfit.as_ref().map(RowMisfit::to_string));
    let (store, rows) = (table.store().name().to_owned(), page.rows.iter().map(row).collect());
    Ok(shown(&RowPage { store, rows, foreign: page.foreign, next: page.next }).into_response())
}

/// Sets one row.
pub(super) async fn set(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    let of_header = if_match(&headers).map_err(bad_request)?;
    let body = read(&site, body, BODY_BYTES_MAX).await?;
    check_again(&site, &caller).await?;
    let (row, only) = row_of(&body).map_err(|reason| bad_request(format!("body: {reason}")))?;
    caller.check(Some(&row.domain))?;
    let by = &*caller.name;
    let table = &site.admin.rows;
    let mut results = table.write_matching(by, vec![(row.clone(), only.or(of_header))]).await;
    let Some(written) = results.pop() else {
        return Err(json_error(StatusCode::INTERNAL_SERVER_ERROR, "no result"));
    };
    audit(&site, by, &row, &written);
    let written = written.map_err(refusal)?;
    let change = RowChange {
        kept: kept(table.store()),
        result: word(&written).to_owned(),
        before: written.before.as_ref().map(versioned),
        changed: checked(table, &row),
    };
    Ok(tagged(&row, &change))
}

/// Sets or removes many rows: one JSON line each, with a result for each. If `If-Match` forbids some of them, the status is 412.
pub(super) async fn set_many(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<Posted>, QueryRejection>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Response> {
    let Query(Posted { check: is_check, remove: is_removal }) = query.map_err(|rejection| bad_query(&rejection))?;
    let of_header = if_match(&headers).map_err(bad_request)?;
    let body = read(&site, body, BODY_BYTES_MAX).await?;
    // One body at a time, because its rows take many times its bytes.
    let _turn = site.shared.posted_rows.lock().await;
    check_again(&site, &caller).await?;
    let lines: Vec<&[u8]> = body.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).collect();
    if lines.len() > ROWS_MAX {
        return Err(json_error(StatusCode::PAYLOAD_TOO_LARGE, format!("body: more than {ROWS_MAX} rows")));
    }
    let (table, by) = (&site.admin.rows, &*caller.name);
    let mut results: Vec<RowResult> = Vec::with_capacity(lines.len());
    let (mut places, mut rows, mut of_others) = (Vec::new(), Vec::new(), None);
    for line in lines {
        results.push(match row_of(line) {
            Ok((row, only)) => match caller.check(Some(&row.domain)) {
                Err(lacking) => {
                    let refused = lacking.0.clone();
                    of_others.get_or_insert(lacking);
                    RowResult::Refused { refused, field: Some(WrongField::Domain), is_store: false }
                }
                Ok(()) => {
                    places.push(results.len());
                    rows.push((row, only.or_else(|| of_header.clone())));
                    RowResult::Word(String::new())
                }
            },
            Err(refused) => RowResult::Refused { refused, field: None, is_store: false },
        });
    }
    let mut log = LogRoom::default();
    let mut is_unmatched = false;
    let mut refused = |refused: RowRefused| {
        is_unmatched |= matches!(refused, RowRefused::Unmatched(_));
        refused_result(&refused)
    };
    if is_removal {
        for (place, (row, only)) in places.into_iter().zip(&rows) {
            if !is_check && !log.wait().await {
                let refused = NO_LOG_ROOM.to_owned();
                results[place] = RowResult::Refused { refused, field: None, is_store: false };
                continue;
            }
            let (domain, entries, only) = (&row.domain, row.descriptor(), only.as_ref());
            let end = match is_check {
                true => table.check_removal(domain, &entries, only).await.map(|()| "ok"),
                false => remove_one(&site, by, domain, &row.entries, only).await.map(|_| "removed"),
            };
            results[place] = match end {
                Ok(word) => RowResult::Word(word.to_owned()),
                Err(RowRefused::FoundRemoved(_)) => RowResult::Word("removed".to_owned()),
                Err(RowRefused::Absent | RowRefused::Unmatched(None) | RowRefused::Misfit(_)) => {
                    RowResult::Word("absent".to_owned())
                }
                Err(reason) => refused(reason),
            };
        }
    } else if is_check {
        for (place, checked) in places.into_iter().zip(table.check_matching(rows).await) {
            results[place] = checked.map_or_else(&mut refused, |()| RowResult::Word("ok".to_owned()));
        }
    } else {
        let written = table.write_matching(by, rows.clone()).await;
        for ((place, (row, _)), written) in places.into_iter().zip(&rows).zip(written) {
            log.wait().await;
            audit(&site, by, row, &written);
            results[place] = written.map_or_else(&mut refused, |written| RowResult::Word(word(&written).to_owned()));
        }
    }
    let status = if is_unmatched && of_header.is_some() { StatusCode::PRECONDITION_FAILED } else { StatusCode::OK };
    let mut answer = (status, shown(&RowResults { store: table.store().name().to_owned(), results })).into_response();
    if let Some(lacking) = of_others {
        // The request counts as refused, once for all its lines.
        answer.extensions_mut().insert(lacking);
    }
    Ok(answer)
}

/// Removes one row, or the ended rows of a page.
pub(super) async fn remove(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<Unwanted>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Response> {
    let Query(Unwanted { domain, descriptor, ended, after }) = query.map_err(|rejection| bad_query(&rejection))?;
    caller.check(domain.as_deref())?;
    let (table, by, only) = (&site.admin.rows, &*caller.name, if_match(&headers).map_err(bad_request)?);
    match (domain, descriptor, ended) {
        (Some(domain), Some(descriptor), false) => {
            let entries = entries_of(&descriptor).map_err(bad_request)?;
            let removed = remove_one(&site, by, &domain, &entries, only.as_ref()).await;
            let Removed { row, left } = removed.map_err(refusal)?;
            let left = left.map(|left| checked(table, &left));
            Ok(shown(&RowRemoval { removed: versioned(&row), left }).into_response())
        }
        (_, None, true) if only.is_some() => Err(bad_request("If-Match is for one row")),
        (domain, None, true) => {
            let mut log = LogOfPrune { site: &site, by, room: LogRoom::default() };
            let pruned = table.prune(by, domain.as_deref(), after.as_deref(), &mut log).await;
            let Pruned { removed, failed, is_log_full, next } = pruned.map_err(refusal)?;
            if is_log_full {
                let removed = counted(removed.len(), "ended row");
                let error = format!("removed and logged {removed}, all others stay: {NO_LOG_ROOM}");
                return Err(json_error(StatusCode::SERVICE_UNAVAILABLE, error));
            }
            if let Some((row, _)) = failed.as_ref().filter(|(_, refused)| refused.is_unknown()) {
                audit_unconfirmed_removal(&site, by, &row.domain, &row.entries, "row may have been removed");
            }
            match failed {
                // The answer has what was removed. The caller asks for this page again.
                Some((_, refused)) if removed.is_empty() => Err(refusal(refused)),
                _ => Ok(shown(&EndedRows { removed: removed.len(), next }).into_response()),
            }
        }
        _ => Err(bad_request("give domain and descriptor, or ended=true")),
    }
}

/// Waits for room in the log before each of many lines, for at most [`LOG_ROOM_WAIT_IN_ALL`]. A log that stands still is waited for
/// once.
#[derive(Default)]
struct LogRoom {
    end: Option<Instant>,
    stands_still: bool,
}

impl LogRoom {
    /// Returns whether the log has room.
    async fn wait(&mut self) -> bool {
        let now = Instant::now();
        let end = *self.end.get_or_insert(now + LOG_ROOM_WAIT_IN_ALL);
        self.stands_still = self.stands_still || !logging::has_room(end.min(now + LOG_ROOM_WAIT)).await;
        !self.stands_still
    }
}

struct LogOfPrune<'s> {
    site: &'s Site,
    by: &'s str,
    room: LogRoom,
}

impl RemovalLog for LogOfPrune<'_> {
    async fn has_room(&mut self) -> bool {
        self.room.wait().await
    }

    fn removed(&mut self, row: &Row) {
        audit_removed(self.site, self.by, row, None);
    }
}

/// Removes one row, and logs its author.
async fn remove_one(
    site: &Site,
    by: &str,
    domain: &str,
    entries: &[(Box<str>, Box<str>)],
    only: Option<&RowMatch>,
) -> Result<Removed, RowRefused> {
    let removed = site.admin.rows.remove_matching(by, domain, &as_entries(entries), only).await;
    let found_or_unknown = match &removed {
        Ok(Removed { row, left }) => {
            audit_removed(site, by, row, left.as_ref());
            None
        }
        Err(RowRefused::FoundRemoved(by)) => Some((&**by, "row found removed")),
        Err(refused) if refused.is_unknown() => Some((by, "row may have been removed")),
        Err(_) => None,
    };
    if let Some((by, message)) = found_or_unknown {
        audit_unconfirmed_removal(site, by, domain, entries, message);
    }
    removed
}

/// Logs the author of a change, also if the store may have made it, and if it is found later that the store has made it.
fn audit(site: &Site, by: &str, row: &Row, written: &Result<Written, RowRefused>) {
    let (message, by, before) = match written {
        Ok(Written { result: WriteResult::Written, before }) => ("row set", by, before.as_ref()),
        Ok(Written { result: WriteResult::FoundWritten(by), .. }) => ("row found written", &**by, None),
        Err(refused) if refused.is_unknown() => ("row may have been written", by, None),
        Ok(Written { result: WriteResult::Same | WriteResult::Replaced, .. }) | Err(_) => return,
    };
    tracing::info!(
        target: AUDIT,
        by,
        domain = &*row.domain,
        descriptor = site.audited(&row.entries),
        content = row.content.to_string(),
        until = row.until.map(instant_text),
        note = &*row.note,
        before = before.map(|before| before.content.to_string()),
        before_until = before.and_then(|before| before.until).map(instant_text),
        before_note = before.map(|before| &*before.note),
        "{message}"
    );
}

/// Logs who removed a row, and the row of a file that counts in its place.
fn audit_removed(site: &Site, by: &str, row: &Row, left: Option<&Row>) {
    tracing::info!(
        target: AUDIT,
        by,
        domain = &*row.domain,
        descriptor = site.audited(&row.entries),
        content = left.map(|left| left.content.to_string()),
        before = row.content.to_string(),
        before_until = row.until.map(instant_text),
        before_note = &*row.note,
        "row removed"
    );
}

/// Logs who removed a row, if the store may have removed it, and if it is found later that the store has removed it.
fn audit_unconfirmed_removal(site: &Site, by: &str, domain: &str, entries: &[(Box<str>, Box<str>)], message: &str) {
    let descriptor = site.audited(entries);
    tracing::info!(target: AUDIT, by, domain, descriptor, "{message}");
}

const fn word(written: &Written) -> &'static str {
    match written.result {
        WriteResult::Written => "written",
        WriteResult::Same | WriteResult::FoundWritten(_) => "same",
        WriteResult::Replaced => "replaced",
    }
}

fn refused_result(refused: &RowRefused) -> RowResult {
    let of_row = refused.field().map(|field| match field {
        RowField::Domain => WrongField::Domain,
        RowField::Descriptor => WrongField::Descriptor,
        RowField::Entry(position) => WrongField::Entry(position),
        RowField::Content => WrongField::Content,
    });
    let field = if matches!(refused, RowRefused::Unmatched(_)) { Some(WrongField::Version) } else { of_row };
    let is_store = matches!(refused, RowRefused::Store(_) | RowRefused::Unread(_));
    RowResult::Refused { refused: refused.to_string(), field, is_store }
}

/// A row with its version.
pub(super) fn versioned(row: &Row) -> AnsweredRow {
    AnsweredRow { version: row_version(row), ..AnsweredRow::from(row) }
}

/// A row of the table, and why it has no effect.
fn checked(table: &RowTable, row: &Row) -> ShownRow {
    with_effect(table, row, table.check(row).err().map(|refused| refused.to_string()))
}

/// A row, why it has no effect, and the override that comes before it. A row that has ended by the clock of this process
/// has no effect. [rw-3] [rw-4]
fn with_effect(table: &RowTable, row: &Row, misfit: Option<String>) -> ShownRow {
    let has_ended = row.until.is_some_and(|until| until <= table.now());
    let overridden = table.overridden(row);
    let hidden = || overridden.as_ref().and_then(|set| set.hides_row).map(str::to_owned);
    let unused = if has_ended { Some("it has ended".to_owned()) } else { misfit.or_else(hidden) };
    let overridden = overridden.map(|set| RowOverride { limits: set.limits, until: instant_text(set.until) });
    ShownRow { row: versioned(row), unused, overridden }
}

/// A row, and the version of the row that it may replace.
pub(super) fn row_of(body: &[u8]) -> Result<(Row, Option<RowMatch>), String> {
    let row = serde_json::from_slice::<JsonRow>(body).map_err(|error| error.to_string())?;
    let only = row.version.map(|version| RowMatch::Versions([version].into()));
    Ok((row.row()?, only))
}

/// The rows that `If-Match` names. `None` without this header.
fn if_match(headers: &HeaderMap) -> Result<Option<RowMatch>, &'static str> {
    let mut versions = None;
    for value in headers.get_all(IF_MATCH) {
        let wrong = "If-Match: give * or versions in quotes, such as \"123\"";
        let text = value.to_str().map_err(|_| wrong)?.trim();
        if text == "*" {
            return Ok(Some(RowMatch::Any));
        }
        for tag in text.split(',').map(str::trim).filter(|tag| !tag.is_empty()) {
            let is_weak = tag.starts_with("W/");
            let tag = tag.trim_start_matches("W/").strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
            let version = tag.ok_or(wrong)?.parse::<u64>().ok().filter(|_| !is_weak);
            // A tag that is no version matches no row, and so does a weak one.
            versions.get_or_insert_with(Vec::new).extend(version);
        }
        versions.get_or_insert_default();
    }
    Ok(versions.map(|versions: Vec<u64>| RowMatch::Versions(versions.into())))
}

/// An answer about one row, with its version as `ETag`.
fn tagged(row: &Row, answer: &impl Serialize) -> Response {
    // Each row of a store has a version.
    let tag = row_version(row).map(|version| [(ETAG, format!("\"{version}\""))]);
    (tag, shown(answer)).into_response()
}

fn refusal(refused: RowRefused) -> Response {
    let status = match &refused {
        RowRefused::Misfit(RowMisfit::Misfit(Misfit::NoDomain | Misfit::NoRule { .. }))
        | RowRefused::Absent
        | RowRefused::FoundRemoved(_) => StatusCode::NOT_FOUND,
        RowRefused::Full | RowRefused::OfFile | RowRefused::Foreign(_) | RowRefused::Contended => StatusCode::CONFLICT,
        RowRefused::Unmatched(_) => StatusCode::PRECONDITION_FAILED,
        RowRefused::Misfit(_) | RowRefused::Invalid(_) => StatusCode::BAD_REQUEST,
        RowRefused::Store(_) | RowRefused::Unread(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    json_error(status, refused)
}
