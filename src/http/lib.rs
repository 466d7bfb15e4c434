//! The HTTP listeners: `/json`, health and metrics for all callers; states and policies for the operator.
//!
//! One thread accepts their connections, reads and writes them, and answers probes. The handlers of all other paths, and
//! what makes the pieces of long answers, run on the control runtime. Not here: requests and responses of `/json` (rls),
//! deciding, and when to start and stop (app).

mod admin;
mod body;
mod debug;
pub mod fuzz;
mod limited;
mod listener;
mod origin;
mod overrides;
mod page;
mod public;
mod rights;
mod rows;
mod source;
mod states;
mod streamed;
mod tap;
mod token;

use std::collections::BTreeSet;
use std::future::Future;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::sync::watch;
use weir_api::ready::{Ready, ReadyInput, ReadyOverrides, ReadyPolicies};
pub use weir_api::top::Instance;
use weir_api::{ErrorAnswer, Kept, top};
use weir_engine::{OnError, PolicySet};
use weir_lifecycle::{Life, Phase, on_runtime};
use weir_limiter::Limiter;
use weir_limiter::callers::Sender;
use weir_limiter::overrides::OverrideTable;
use weir_limiter::rows::RowTable;
use weir_rls::convert::{Bounds, Extras};
use weir_settings::Endpoints;
use weir_store::Store;
use weir_telemetry::limited::ShownDescriptor;
use weir_telemetry::metrics::text::{Format, TextWriter};
use weir_telemetry::metrics::{Cursor, Metrics, Prepared};
use weir_telemetry::traces::Tracer;
use weir_text::nearest;

pub use self::admin::admin_endpoints;
use self::admin::{RuleOrders, authorized, guard};
use self::body::{Bodies, Complete};
use self::limited::Looks;
pub use self::listener::{CONNECTIONS_MAX, ConnectionBounds};
pub use self::overrides::{audit_found, audit_replaced};
use self::rights::Caller;
pub use self::source::KeptFiles;
use self::streamed::{PIECE_BYTES, Rendering, Renderings, TooManyReaders, pieces};
use self::tap::NamedValues;
pub use self::token::{Access, TokenFile, check_tokens};

/// The most problems of one load that `/readyz` prints.
const PROBLEMS_SHOWN_MAX: usize = 100;
/// The most names that an unknown one is compared with. Each comparison takes about a microsecond.
const NAMES_COMPARED_MAX: usize = 1_000;

/// The data that the handlers of all listeners use.
pub struct Site {
    /// Decides requests of `/json`, and returns states.
    pub limiter: Arc<Limiter>,
    /// The metrics of `/metrics`, and what `/top`, `/limited` and `/tap` show.
    pub metrics: Arc<Metrics>,
    pub life: Life,
    /// The state of policies and store, for health and admin pages.
    pub report: Arc<ServiceState>,
    /// Sites whose pages may send requests to `/json` and changes to the admin listener; origins in lower case.
    pub allowed_origins: Vec<String>,
    pub connections: ConnectionBounds,
    /// The runtime of all handlers but those of probes.
    pub handlers: Handle,
    /// For `/json`.
    pub json: JsonOptions,
    pub admin: AdminOptions,
    pub shared: Shared,
}

pub struct JsonOptions {
    pub bounds: Bounds,
    pub extras: Extras,
    /// The key of the entry that returns a receipt.
    pub receipt_key: String,
    /// The largest body in bytes.
    pub request_bytes: usize,
    /// Starts the traces of decisions, if they are traced.
    pub tracer: Option<Arc<Tracer>>,
    /// The caller of `/json`, if callers have rights.
    pub sender: Option<Sender>,
}

pub struct AdminOptions {
    pub endpoints: Endpoints,
    /// Further names that may address it, besides loopback names and IP addresses; in lower case.
    pub hosts: Vec<String>,
    /// The file of tokens. What changes something or shows keys of callers needs one of them.
    pub tokens: Option<Arc<TokenFile>>,
    /// Whether the metrics need one too, at each listener.
    pub metrics_token: bool,
    /// The name of this replica for the page and `/top`.
    pub instance: Instance,
    /// What happens to a request whose store does not answer, if neither rule nor domain sets it.
    pub on_error: OnError,
    pub overrides: Arc<OverrideTable>,
    pub rows: Arc<RowTable>,
    pub tap_max: Duration,
}

/// The most changes of operators that go on after their callers have left. More of them are dropped with their callers.
const LEFT_CHANGES_MAX: usize = 256;

/// Data that callers share, so that many callers cost as much as one.
pub struct Shared {
    bodies: Bodies,
    scrapes: Renderings<Prepared>,
    rule_orders: RuleOrders,
    looks: Looks,
    /// Locked while a page of states is made.
    pages: tokio::sync::Mutex<()>,
    /// Locked while the rows of one body are read and written.
    posted_rows: tokio::sync::Mutex<()>,
    /// Permits of changes whose callers have left.
    left_changes: Arc<Semaphore>,
    named_values: NamedValues,
}

impl Shared {
    /// Data of a process that may use `memory` bytes, for callers of `/json` whose bodies have at most `request_bytes` bytes.
    #[must_use]
    pub fn new(memory: u64, request_bytes: usize) -> Self {
        Self {
            bodies: Bodies::new(memory, request_bytes.max(rows::BODY_BYTES_MAX)),
            scrapes: Renderings::default(),
            rule_orders: RuleOrders::default(),
            left_changes: Arc::new(Semaphore::new(LEFT_CHANGES_MAX)),
            looks: Looks::default(),
            pages: tokio::sync::Mutex::default(),
            posted_rows: tokio::sync::Mutex::default(),
            named_values: NamedValues::default(),
        }
    }
}

/// The conditions of health, besides the phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Whether the store must answer.
    pub store: bool,
    /// Whether the policies must have a domain.
    pub policies: bool,
}

/// The state of weir's parts, for the health and admin endpoints.
#[derive(Default)]
pub struct ServiceState {
    needs: Needs,
    fit: watch::Sender<bool>,
    store_answered: AtomicBool,
    circuit: OnceLock<Box<dyn Fn() -> &'static str + Send + Sync>>,
    queue: OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>,
    source: OnceLock<Box<dyn Fn() -> Value + Send + Sync>>,
    stuck_for: OnceLock<Box<dyn Fn() -> Option<Duration> + Send + Sync>>,
    policies: Mutex<ShownPolicies>,
    /// Why the files of rows beside the policies, or rows in the second Redis, are not in force.
    row_problems: Mutex<Vec<String>>,
    /// Why the newest file of callers is not in force.
    caller_problems: Mutex<PolicyProblems>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    pub domains: usize,
    pub rules: usize,
    /// The number of problems because of which changed policies are not in force.
    pub problems: usize,
    /// Whether the store must answer.
    pub store_answered: bool,
}

#[derive(Debug, Default)]
struct ShownPolicies {
    policies: Arc<PolicySet>,
    /// The place of each rule, by its id.
    places: Arc<[String]>,
    source: Option<KeptFiles>,
    /// The problems of the newest policies, if they were refused.
    problems: PolicyProblems,
    overlays: Overlays,
}

/// The overlays of the policies in force.
#[derive(Debug, Default)]
pub struct Overlays {
    /// The number of overlays that a limit has met.
    pub met: usize,
    /// The places of the others.
    pub unmet: Vec<String>,
}

/// Why changed policies are not in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyProblems {
    /// The texts, each with its place. They may quote a file.
    pub texts: Vec<String>,
    /// The number of problems, including those without a text.
    pub count: usize,
    pub kinds: BTreeSet<&'static str>,
}

impl PolicyProblems {
    pub fn push(&mut self, kind: &'static str, text: String) {
        self.texts.push(text);
        self.count += 1;
        self.kinds.insert(kind);
    }

    /// The texts, and a line for the problems without a text.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.texts.clone();
        match self.count.saturating_sub(lines.len()) {
            0 => {}
            1 => lines.push("and 1 more problem".to_owned()),
            more => lines.push(format!("and {more} more problems")),
        }
        lines
    }
}

impl ServiceState {
    /// The state of a weir with these conditions of health.
    #[must_use]
    pub fn new(needs: Needs) -> Self {
        Self { needs, fit: watch::Sender::new(needs == Needs::default()), ..Self::default() }
    }

    /// Whether the conditions of health hold, and every change of that.
    #[must_use]
    pub fn fit(&self) -> watch::Receiver<bool> {
        self.fit.subscribe()
    }

    fn look(&self) {
        let has_domains = self.policies.lock().policies.domains().len() > 0;
        let fit = (self.store_answered.load(Relaxed) || !self.needs.store) && (has_domains || !self.needs.policies);
        self.fit.send_if_modified(|before| std::mem::replace(before, fit) != fit);
    }

    /// Sets whether the store answered the last question.
    pub fn store_answered(&self, answered: bool) {
        self.store_answered.store(answered, Relaxed);
        self.look();
    }

    /// Sets the function that returns the name of the worst circuit state. Call it once. Without it the circuits count as closed.
    pub fn circuit_is(&self, circuit: impl Fn() -> &'static str + Send + Sync + 'static) {
        // A second call changes nothing.
        let _ = self.circuit.set(Box::new(circuit));
    }

    /// Sets the function that returns the number of calls that wait for the store. Call it once. Without it the number is 0.
    pub fn queue_is(&self, queue: impl Fn() -> u64 + Send + Sync + 'static) {
        // As with the circuit.
        let _ = self.queue.set(Box::new(queue));
    }

    /// Sets the function that returns the state of the control plane, if policies come from one. Call it once.
    pub fn source_is(&self, source: impl Fn() -> Value + Send + Sync + 'static) {
        // As with the circuit.
        let _ = self.source.set(Box::new(source));
    }

    /// Sets the function that returns for how long a core has not run its tasks; None if all run. Call it once. Without it
    /// all run.
    pub fn stuck_for_is(&self, stuck_for: impl Fn() -> Option<Duration> + Send + Sync + 'static) {
        // As with the circuit.
        let _ = self.stuck_for.set(Box::new(stuck_for));
    }

    /// Sets the policies in force. `places` has the place of each rule, by its id. `source` is their source, if it
    /// is kept.
    pub fn loaded(&self, policies: Arc<PolicySet>, places: Vec<String>, source: Option<KeptFiles>, overlays: Overlays) {
        let (places, problems) = (places.into(), PolicyProblems::default());
        let shown = ShownPolicies { policies, places, source, problems, overlays };
        // Freed after the lock is released, because many rules take time.
        let before = std::mem::replace(&mut *self.policies.lock(), shown);
        drop(before);
        self.look();
    }

    #[must_use]
    pub fn summary(&self) -> Summary {
        let shown = self.policies.lock();
        Summary {
            domains: shown.policies.domains().len(),
            rules: shown.policies.rules().len(),
            problems: shown.problems.count,
            store_answered: self.store_answered.load(Relaxed),
        }
    }

    /// The number of overlays that a limit of the policies in force has met, and of the others.
    #[must_use]
    pub fn overlays(&self) -> (usize, usize) {
        let shown = self.policies.lock();
        (shown.overlays.met, shown.overlays.unmet.len())
    }

    /// Whether the policies in force have a rule with this path, in this domain or in any.
    ///
    /// # Errors
    /// The path that was probably meant.
    fn has_rule(&self, domain: Option<&str>, path: &str) -> Result<(), Option<String>> {
        let policies = self.policies.lock().policies.clone();
        let of_domain = policies.rules().iter().filter(|rule| domain.is_none_or(|domain| *rule.domain == *domain));
        let paths = of_domain.map(|rule| &*rule.path);
        if paths.clone().any(|known| known == path) {
            return Ok(());
        }
        Err(nearest(path, paths.take(NAMES_COMPARED_MAX)).map(str::to_owned))
    }

    /// Whether the policies in force have this domain.
    ///
    /// # Errors
    /// The domain of this caller that was probably meant.
    fn has_domain(&self, name: &str, caller: &Caller) -> Result<(), Option<String>> {
        let policies = self.policies.lock().policies.clone();
        if policies.domain(name).is_some() {
            return Ok(());
        }
        let known = policies.domains().map(|domain| &*domain.name).filter(|domain| caller.has(domain));
        Err(nearest(name, known.take(NAMES_COMPARED_MAX)).map(str::to_owned))
    }

    /// Sets the problems of changed policies that were refused. Returns the problems before.
    pub fn refused(&self, mut problems: PolicyProblems) -> PolicyProblems {
        problems.texts.truncate(PROBLEMS_SHOWN_MAX);
        std::mem::replace(&mut self.policies.lock().problems, problems)
    }

    /// Restores the problems from before these, which have been solved. Keeps newer ones.
    pub fn mended(&self, problems: &PolicyProblems, before: PolicyProblems) {
        let mut shown = self.policies.lock();
        if shown.problems == *problems {
            shown.problems = before;
        }
    }

    /// Sets the first problems of the files of rows beside the policies, or of rows in the second Redis; none if all rows are in
    /// force.
    pub fn rows_refused(&self, problems: Vec<String>) {
        *self.row_problems.lock() = problems;
    }

    /// Whether the files of rows are not in force because of problems.
    #[must_use]
    pub fn are_rows_refused(&self) -> bool {
        !self.row_problems.lock().is_empty()
    }

    /// Sets the problems of a changed file of callers that was refused; none if the newest one is in force.
    pub fn callers_refused(&self, mut problems: PolicyProblems) {
        problems.texts.truncate(PROBLEMS_SHOWN_MAX);
        *self.caller_problems.lock() = problems;
    }

    /// Whether changed policies are not in force because of problems.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.policies.lock().problems.count > 0
    }
}

/// Serves `/json`, health and metrics until [`Phase::Ending`], and then finishes the requests in flight. The runtime of
/// the returned future has the connections. The listener must not block.
///
/// # Errors
/// When serving ends by itself.
pub fn serve_public(listener: TcpListener, site: &Arc<Site>) -> impl Future<Output = Result<(), String>> + use<> {
    serve(listener, public::router(site), site)
}

/// Serves the operator's paths in the same way.
///
/// # Errors
/// When serving ends by itself.
pub fn serve_admin(listener: TcpListener, site: &Arc<Site>) -> impl Future<Output = Result<(), String>> + use<> {
    let router = match site.admin.endpoints {
        Endpoints::Weir => admin::router(site),
        Endpoints::Ratelimit => debug::router(site),
    };
    serve(listener, router, site)
}

/// Serves the metrics alone, at this path, in the same way.
///
/// # Errors
/// When serving ends by itself.
pub fn serve_metrics(
    listener: TcpListener,
    path: &str,
    site: &Arc<Site>,
) -> impl Future<Output = Result<(), String>> + use<> {
    let shown = format!("GET {path}");
    let router = Router::new()
        .route(path, authorized(get(metrics), Access::Metrics, site))
        .layer(middleware::from_fn_with_state(site.clone(), on_handlers))
        .fallback(async move |uri: Uri| not_found(&uri, &[&shown]))
        .method_not_allowed_fallback(wrong_method)
        .with_state(site.clone());
    serve(listener, router, site)
}

fn serve(listener: TcpListener, router: Router, site: &Arc<Site>) -> impl Future<Output = Result<(), String>> + use<> {
    let shared = site.clone();
    let reserved = move || shared.shared.bodies.bytes();
    listener::serve(listener, router, site.connections.clone(), reserved, site.handlers.clone(), site.life.clone())
}

/// Runs the handler on the runtime for handlers. Meanwhile the thread of the listeners accepts connections and answers probes.
async fn on_handlers(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    on_runtime(&site.handlers, None, next.run(request)).await
}

impl Site {
    /// Whether weir can receive requests.
    fn is_healthy(&self) -> bool {
        self.life.phase() == Phase::Serving && *self.report.fit.borrow()
    }

    /// The state of the store.
    fn store_shown(&self) -> top::Store {
        top::Store {
            name: self.limiter.store().name().to_owned(),
            answered: self.report.store_answered.load(Relaxed),
            circuit: self.report.circuit.get().map_or("closed", |circuit| circuit()).to_owned(),
            queue: None,
        }
    }

    fn overrides_shown(&self) -> ReadyOverrides {
        let overrides = &self.admin.overrides;
        let (in_force, unused) = overrides.counts();
        let read = overrides.known().read.is_some();
        ReadyOverrides { in_force, unused, read, problem: overrides.problem() }
    }

    /// What is not in force of rows, callers and tokens.
    fn other_inputs(&self) -> [ReadyInput; 3] {
        let input = |problem_count, problems| ReadyInput { problem_count, problems };
        let rows = self.report.row_problems.lock().clone();
        let callers = self.report.caller_problems.lock().clone();
        let tokens = self.admin.tokens.as_ref().and_then(|tokens| tokens.problem());
        let tokens: Vec<String> = tokens.into_iter().collect();
        [input(rows.len(), rows), input(callers.count, callers.lines()), input(tokens.len(), tokens)]
    }

    /// A descriptor as an audit line shows it, by `admin.values`.
    fn audited<T: AsRef<str>>(&self, entries: &[(T, T)]) -> String {
        ShownDescriptor::of_entries(entries, self.metrics.limited().values()).text()
    }

    fn store_queue(&self) -> u64 {
        self.report.queue.get().map_or(0, |queue| queue())
    }
}

/// The metrics, made in pieces while the caller reads them.
async fn metrics(State(site): State<Arc<Site>>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::accepted(&accept.collect::<Vec<_>>().join(","));
    let metrics = site.metrics.clone();
    let (reading, shared) = if metrics.is_copied() {
        let of = metrics.clone();
        match site.shared.scrapes.get(move || of.prepare()).await {
            Ok(shared) => (metrics.read(&shared.made), Some(shared)),
            Err(TooManyReaders) => {
                let text = "too many slow readers of the metrics\n";
                return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
            }
        }
    } else {
        (metrics.read(&Prepared::default()), None)
    };
    let kind = HeaderValue::from_static(format.content_type());
    ([(header::CONTENT_TYPE, kind)], scrape(reading, shared, format)).into_response()
}

/// A scrape as a body. The shared part counts as being read until the end.
fn scrape(mut reading: Cursor, shared: Option<Arc<Rendering<Prepared>>>, format: Format) -> Body {
    let mut writer = TextWriter::new(format);
    let mut has_ended = false;
    pieces(move || {
        let _shared = &shared;
        while !has_ended && writer.len() < PIECE_BYTES {
            has_ended = !reading.advance(&mut writer);
            if has_ended {
                writer.end();
            }
        }
        (!writer.is_empty()).then(|| writer.take().into())
    })
}

/// Readiness for anyone, without texts that quote a file or another program.
async fn public_readyz(State(site): State<Arc<Site>>) -> Response {
    let (status, detail) = readiness(&site);
    (status, Json(without_texts(&detail))).into_response()
}

/// Without texts that quote a file or another program.
fn without_texts(detail: &Ready) -> Value {
    let mut detail = json!(detail);
    let mut remove = |parent: &str, key: &str| {
        if let Some(Value::Object(members)) = detail.pointer_mut(parent) {
            members.remove(key);
        }
    };
    remove("/policies", "problems");
    remove("/policies", "unmet_overlays");
    for input in ["/rows", "/callers", "/tokens"] {
        remove(input, "problems");
    }
    remove("/policies/server", "trouble");
    remove("/policies/server/last_refused", "reason");
    detail
}

/// Readiness; for operators of all domains with all texts.
async fn readyz(State(site): State<Arc<Site>>, request: Parts) -> Response {
    let (status, detail) = readiness(&site);
    let detail = if token::sees_all(&site, &request).await { json!(detail) } else { without_texts(&detail) };
    (status, Json(detail)).into_response()
}

/// A store that is down is reported. It makes weir unready only if the settings say so, because otherwise all replicas
/// would become unready at once.
fn readiness(site: &Site) -> (StatusCode, Ready) {
    let phase = site.life.phase();
    let ready = site.is_healthy();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let shown = site.report.policies.lock();
    let [rows, callers, tokens] = site.other_inputs();
    let detail = Ready {
        ready,
        phase: phase_name(phase).to_owned(),
        store: site.store_shown(),
        policies: ReadyPolicies {
            domains: shown.policies.domains().len(),
            rules: shown.policies.rules().len(),
            problem_count: shown.problems.count,
            problem_kinds: shown.problems.kinds.iter().map(ToString::to_string).collect(),
            problems: shown.problems.lines(),
            unmet_overlay_count: shown.overlays.unmet.len(),
            unmet_overlays: shown.overlays.unmet.iter().take(PROBLEMS_SHOWN_MAX).cloned().collect(),
            server: site.report.source.get().map(|source| source()),
        },
        overrides: site.overrides_shown(),
        rows,
        callers,
        tokens,
    };
    (status, detail)
}

const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Serving => "serving",
        Phase::Leaving => "leaving",
        Phase::Draining => "draining",
        Phase::Ending => "ending",
    }
}

/// The response for an unknown path. It lists the known paths.
fn not_found(uri: &Uri, paths: &[impl AsRef<str>]) -> Response {
    let paths: Vec<&str> = paths.iter().map(AsRef::as_ref).collect();
    let text = format!("no {}, only {}\n", uri.path(), paths.join(", "));
    (StatusCode::NOT_FOUND, text).into_response()
}

/// The response for a method that the path does not have.
async fn wrong_method(method: axum::http::Method, uri: Uri) -> Response {
    let text = format!("no {method} on {}\n", uri.path());
    (StatusCode::METHOD_NOT_ALLOWED, text).into_response()
}

/// A 400 with this reason.
fn bad_request(reason: impl std::fmt::Display) -> Response {
    json_error(StatusCode::BAD_REQUEST, reason)
}

/// A 400 for a query that cannot be read.
fn bad_query(rejection: &QueryRejection) -> Response {
    bad_request(query_problem(&rejection.body_text()))
}

/// The mistake in a query, from the text of the library that reads it.
fn query_problem(text: &str) -> String {
    let text = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(text).replace('`', "");
    let text = match text.split_once(": ") {
        // The name of the parameter is there twice.
        Some((_, unknown)) if unknown.starts_with("unknown field ") => unknown,
        _ => &text,
    };
    if let Some(missing) = text.strip_prefix("missing field ") {
        format!("the query has no {missing}: write ?{missing}=...")
    } else if let Some(twice) = text.strip_prefix("duplicate field ") {
        format!("the query has {twice} twice")
    } else if let Some((unknown, known)) =
        text.strip_prefix("unknown field ").and_then(|text| text.rsplit_once(", expected "))
    {
        format!("the query has no parameter {unknown}, only {}", known.trim_start_matches("one of "))
    } else {
        format!("the query is wrong: {text}")
    }
}

/// An error in the format of the admin paths.
fn json_error(status: StatusCode, error: impl std::fmt::Display) -> Response {
    (status, Json(ErrorAnswer { error: error.to_string() })).into_response()
}

/// Reads the body of a change, of at most `bytes_max` bytes.
///
/// # Errors
/// The answer to a body that cannot be read.
async fn read(site: &Site, body: Body, bytes_max: usize) -> Result<Complete<'_>, Response> {
    site.shared.bodies.read(body, bytes_max).await.map_err(|error| json_error(error.status(), error))
}

/// Where a change is kept.
fn kept(store: &dyn Store) -> Kept {
    Kept { store: store.name().to_owned(), is_shared: !store.is_immediate() }
}

/// An answer, with its fields in alphabetical order.
fn shown(answer: &impl Serialize) -> Json<Value> {
    Json(json!(answer))
}
