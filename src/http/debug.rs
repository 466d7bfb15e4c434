//! The paths of envoyproxy/ratelimit's debug port, which the admin listener can serve: limits in force, statistics, metrics.
//!
//! None of them changes anything, because that port listens on every interface by default.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::Uri;
use axum::routing::get;
use weir_rls::rlconfig;

use super::{Site, metrics, not_found, wrong_method};

/// Every path except the first, with its content.
const PATHS: [(&str, &str); 3] = [
    ("/metrics", "the metrics, for Prometheus"),
    ("/rlconfig", "the limits in force, a line each"),
    ("/stats", "the statistics, a line each"),
];

pub(super) fn router(site: &Arc<Site>) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/rlconfig", get(limits))
        .route("/stats", get(async |State(site): State<Arc<Site>>| site.metrics.statistics().text()))
        .fallback(async |uri: Uri| not_found(&uri, &PATHS.map(|(path, _)| path)))
        .method_not_allowed_fallback(wrong_method)
        .with_state(site.clone())
}

async fn limits(State(site): State<Arc<Site>>) -> String {
    let policies = site.report.policies.lock().policies.clone();
    rlconfig::render(&policies)
}

/// The paths, one in each line.
async fn index(State(_): State<Arc<Site>>) -> String {
    PATHS.map(|(path, shows)| format!("{path}: {shows}\n")).concat()
}
