//! The paths of envoyproxy/ratelimit's debug port, which the admin listener can serve: limits in force, statistics, metrics.
//!
//! None of them changes anything, because that port listens on every interface by default.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use weir_engine::PolicySet;
use weir_rls::rlconfig;
use weir_telemetry::statistics::StatisticsCursor;

use super::rights::Caller;
use super::streamed::{PIECE_BYTES, pieces, pieces_or_error};
use super::{Access, Site, authorized, guard, metrics, not_found, on_handlers, wrong_method};

/// Every path except the first, with its content.
const PATHS: [(&str, &str); 3] = [
    ("/metrics", "the metrics, for Prometheus"),
    ("/rlconfig", "the limits in force, a line each"),
    ("/stats", "the statistics, a line each"),
];

pub(super) fn router(site: &Arc<Site>) -> Router {
    let router = Router::new()
        .route("/", get(index))
        .route("/metrics", authorized(get(metrics), Access::Metrics, site))
        .route("/rlconfig", authorized(get(limits), Access::Look, site))
        .route("/stats", authorized(get(stats), Access::Look, site))
        .layer(middleware::from_fn_with_state(site.clone(), on_handlers))
        .fallback(async |uri: Uri| not_found(&uri, &PATHS.map(|(path, _)| path)))
        .method_not_allowed_fallback(wrong_method);
    // Clients of envoyproxy/ratelimit use any name of a Service. So names are checked only where some are set.
    let router = match &site.admin.hosts[..] {
        [] => router,
        _ => router.layer(middleware::from_fn_with_state(site.clone(), guard)),
    };
    router.with_state(site.clone())
}

async fn limits(State(site): State<Arc<Site>>, Extension(caller): Extension<Arc<Caller>>) -> Response {
    text(limits_of(&site.report.policies.lock().policies, caller))
}

/// The limits of a caller's domains, written in pieces. A slow reader does not keep policies in memory that were replaced: the answer
/// breaks off.
fn limits_of(policies: &Arc<PolicySet>, caller: Arc<Caller>) -> Body {
    let policies = Arc::downgrade(policies);
    let mut next = 0;
    pieces_or_error(move || {
        let Some(policies) = policies.upgrade() else {
            return Some(Err(io::Error::other("the policies were replaced")));
        };
        let mut piece = String::new();
        while piece.len() < PIECE_BYTES
            && let Some(rule) = policies.rules().get(next)
        {
            if caller.has(&rule.domain) {
                rlconfig::add_rule(&mut piece, rule);
            }
            next += 1;
        }
        (!piece.is_empty()).then(|| Ok(piece.into()))
    })
}

/// The statistics of all domains, written in pieces. They have values of rules with `detailed_metric`.
async fn stats(State(site): State<Arc<Site>>, Extension(caller): Extension<Arc<Caller>>) -> Result<Response, Response> {
    caller.check_metrics()?;
    let mut cursor = StatisticsCursor::default();
    let metrics = site.metrics.clone();
    Ok(text(pieces(move || {
        let mut piece = String::new();
        let statistics = metrics.statistics();
        while piece.len() < PIECE_BYTES
            && statistics.advance(&mut cursor, |name, _, value| {
                // Writing to a string cannot fail.
                let _ = writeln!(piece, "{name}: {value}");
            })
        {}
        (!piece.is_empty()).then(|| piece.into())
    })))
}

fn text(body: Body) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"))], body).into_response()
}

/// The paths, one in each line.
async fn index(State(_): State<Arc<Site>>) -> String {
    PATHS.map(|(path, shows)| format!("{path}: {shows}\n")).concat()
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;
    use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use weir_engine::{Limit, Unit};

    use super::*;

    fn caller() -> Arc<Caller> {
        Arc::new(Caller::anyone())
    }

    fn policies(rules: usize) -> Arc<PolicySet> {
        let limits = vec![Limit::per_unit(3, Unit::Hour)];
        let descriptors = (0..rules).map(|number| NodeSpec {
            key: "user".to_owned(),
            value: Some(format!("u{number}").into()),
            rule: Some(RuleSpec::of(RuleKind::Limits(limits.clone()))),
            ..NodeSpec::default()
        });
        let domain = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors: descriptors.collect() };
        Arc::new(PolicySet::compile(vec![domain]).expect("policies"))
    }

    #[tokio::test]
    async fn limits_are_written_in_pieces_and_a_reader_keeps_no_policies() {
        let policies = policies(2_000);
        let mut body = limits_of(&policies, caller()).into_data_stream();
        let mut lines = 0;
        while let Some(piece) = body.next().await {
            let piece = piece.expect("a piece");
            assert!(piece.len() < PIECE_BYTES + 200, "{} bytes", piece.len());
            lines += piece.iter().filter(|byte| **byte == b'\n').count();
        }
        assert_eq!(lines, 2_000);
        let mut slow = limits_of(&policies, caller()).into_data_stream();
        assert!(slow.next().await.is_some_and(|piece| piece.is_ok()));
        assert_eq!(Arc::strong_count(&policies), 1, "the reader does not keep them");
        drop(policies);
        assert!(slow.next().await.is_some_and(|piece| piece.is_err()), "a caller sees that lines are missing");
    }
}
