//! The paths of the admin listener. In this file: the policies in force, and the state of one descriptor.
//!
//! Without `admin.token_file`, anyone with access to this listener can reset limits. So by default it is bound to the
//! loopback interface, and it refuses requests whose `Host` is another name (DNS rebinding).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter, get};
use axum::{Extension, Router};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_api::numbers::JsonAmount;
use weir_api::overrides::ShownOverride;
use weir_api::policies::{
    DomainInForce, LimitInForce, OnErrorInForce, PlanInForce, PlansInForce, RuleInForce, RulesInForce,
};
use weir_api::states::{DescriptorState, DescriptorStates};
use weir_engine::descriptor::{as_entries, entries_of};
use weir_engine::plans::PlanLimits;
use weir_engine::policy::{Domain, Level};
use weir_engine::{KeyValue, Limit, OnError, Parameter, ParameterValue, PolicySet, Rule, Span};
use weir_lifecycle::{on_own_thread, on_runtime};
use weir_store::StoreError;
use weir_telemetry::logging::AUDIT;

use super::rights::Caller;
use super::streamed::{PIECE_BYTES, opened, pieces};
use super::token::Access::{self, Change, Look, Metrics, Open};
use super::{
    ServiceState, Site, bad_query, bad_request, json_error, limited, metrics, not_found, origin, overrides, page,
    readyz, rows, shown, source, states, tap, token, wrong_method,
};

/// One method of one path. Each has its handler and what it needs, so no path is open by mistake.
struct Endpoint {
    method: &'static str,
    path: &'static str,
    /// An example of its query.
    query: &'static str,
    needs: Access,
    handler: fn() -> MethodRouter<Arc<Site>>,
}

const fn endpoint(
    method: &'static str,
    path: &'static str,
    query: &'static str,
    needs: Access,
    handler: fn() -> MethodRouter<Arc<Site>>,
) -> Endpoint {
    Endpoint { method, path, query, needs, handler }
}

const ENDPOINTS: [Endpoint; 20] = [
    endpoint("GET", "/", " (a page)", Open, || get(page::index)),
    endpoint("GET", "/page.css", "", Open, || get(page::style)),
    endpoint("GET", "/page.js", "", Open, || get(page::script)),
    endpoint("GET", "/top", "?minutes=5&limits=20&keys=5", Look, || get(limited::top)),
    endpoint("GET", "/limited", "?domain=D&rule=R&minutes=5", Look, || get(limited::limited)),
    endpoint("GET", "/states", "?domain=D&rule=R&max=100&from=POSITION", Look, || get(states::states)),
    endpoint("GET", "/tap", "?domain=D&rule=R&descriptor=K=V,K=V&verdict=over&sample=10&seconds=60", Look, || {
        get(tap::tap)
    }),
    endpoint("GET", "/policies", "", Look, || get(policies)),
    endpoint("GET", "/policies/source", "", Look, || get(source::source)),
    endpoint("GET", "/overrides", "", Look, || get(overrides::list)),
    endpoint("PUT", "/overrides", "", Change, || routing::put(overrides::set)),
    endpoint("DELETE", "/overrides", "?domain=D&descriptor=K=V,K=V", Change, || routing::delete(overrides::delete)),
    endpoint("GET", "/rows", "?domain=D&descriptor=K=V,K=V", Look, || get(rows::show)),
    endpoint("PUT", "/rows", "", Change, || routing::put(rows::set)),
    endpoint("POST", "/rows", "?check=true", Change, || routing::post(rows::set_many)),
    endpoint("DELETE", "/rows", "?domain=D&descriptor=K=V,K=V", Change, || routing::delete(rows::remove)),
    endpoint("GET", "/state", "?domain=D&descriptor=K=V,K=V", Look, || get(show_state)),
    endpoint("DELETE", "/state", "?domain=D&descriptor=K=V,K=V", Change, || routing::delete(reset)),
    endpoint("GET", "/metrics", "", Metrics, || get(metrics)),
    endpoint("GET", "/readyz", "", Open, || get(readyz)),
];

/// Each method of each path, with what it needs.
pub fn admin_endpoints() -> impl Iterator<Item = (&'static str, &'static str, Access)> {
    ENDPOINTS.iter().map(|endpoint| (endpoint.method, endpoint.path, endpoint.needs))
}

pub(super) fn router(site: &Arc<Site>) -> Router {
    let (mut guarded, mut open) = (Router::new(), Router::new());
    for Endpoint { path, needs, handler, .. } in &ENDPOINTS {
        match needs {
            // Answered by the thread of the listeners: probes and files of the page.
            Open => open = open.route(path, handler()),
            Look | Change | Metrics => guarded = guarded.route(path, authorized(handler(), *needs, site)),
        }
    }
    guarded
        .layer(middleware::from_fn_with_state(site.clone(), on_handlers))
        .merge(open)
        .fallback(async |uri: Uri| {
            let listed = ENDPOINTS.iter().filter(|endpoint| !endpoint.path.starts_with("/page."));
            let listed: Vec<_> =
                listed.map(|Endpoint { method, path, query, .. }| format!("{method} {path}{query}")).collect();
            not_found(&uri, &listed)
        })
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(site.clone(), guard))
        .with_state(site.clone())
}

/// A handler for callers with what it needs.
pub(super) fn authorized(handler: MethodRouter<Arc<Site>>, needs: Access, site: &Arc<Site>) -> MethodRouter<Arc<Site>> {
    handler.route_layer(middleware::from_fn_with_state((site.clone(), needs), token::authorize))
}

/// Refuses requests whose `Host` is not this listener, and changes from pages of other sites. A change is each request
/// whose method is not safe. A page in the operator's browser could resolve its own name to 127.0.0.1,
/// send requests there and read the answers. Their `Host` has that name.
pub(super) async fn guard(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let named = request.headers().get_all(header::HOST).iter().map(HeaderValue::as_bytes);
    let named = named.chain(request.uri().authority().map(|authority| authority.as_str().as_bytes()));
    for host in named {
        if !is_own_host(host, &site.admin.hosts) {
            let text = format!(
                "the host {:?} is not allowed here: use an IP address or localhost, or name it in http.admin_hosts",
                String::from_utf8_lossy(host)
            );
            return json_error(StatusCode::FORBIDDEN, text);
        }
    }
    if !request.method().is_safe() {
        // New browsers ask for permission before they send changes from other sites. This check is for old ones.
        if let Err(reason) = origin::check(&request, &site.allowed_origins) {
            return json_error(StatusCode::FORBIDDEN, reason);
        }
    }
    next.run(request).await
}

/// As [`super::on_handlers`]. A change goes on when its caller leaves, so that each that was made has its line in the log.
async fn on_handlers(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    if request.method().is_safe() {
        return super::on_handlers(State(site), request, next).await;
    }
    on_runtime(&site.handlers, Some(&site.shared.left_changes), next.run(request)).await
}

/// Whether a `Host` is an IP address, a loopback name, or one of `names`.
fn is_own_host(host: &[u8], names: &[String]) -> bool {
    let Some((host, _)) = std::str::from_utf8(host).ok().and_then(origin::host_and_port) else {
        return false;
    };
    if host.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = host.trim_end_matches('.').to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || names.contains(&name)
}

/// The policies in force, with rules in the order of their files, written piece by piece.
async fn policies(State(site): State<Arc<Site>>, Extension(caller): Extension<Arc<Caller>>) -> Response {
    let order = site.shared.rule_orders.current(&site.report).await;
    let overrides = overrides::OfRules::of(&site.admin.overrides, &order.policies).await;
    let on_error = site.admin.on_error;
    let body = Listing { order, caller, overrides, on_error, domain: 0, rule: 0, step: ListingStep::Begin }.body();
    ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
}

/// The order in which `/policies` lists rules. Callers who read the same policies share one.
#[derive(Debug, Default)]
pub(super) struct RuleOrders {
    last: tokio::sync::Mutex<Weak<RuleOrder>>,
}

impl RuleOrders {
    /// The order of the policies in force. One is made at a time, off the runtime.
    async fn current(&self, report: &ServiceState) -> Arc<RuleOrder> {
        let mut last = self.last.lock().await;
        let (policies, places) = {
            let shown = report.policies.lock();
            (shown.policies.clone(), shown.places.clone())
        };
        let shared = last.upgrade().filter(|order| Arc::ptr_eq(&order.policies, &policies));
        if let Some(order) = shared.filter(|order| Arc::ptr_eq(&order.places, &places)) {
            return order;
        }
        let order = Arc::new(on_own_thread(move || RuleOrder::new(policies, places)).await);
        *last = Arc::downgrade(&order);
        order
    }
}

#[derive(Debug)]
struct RuleOrder {
    policies: Arc<PolicySet>,
    places: Arc<[String]>,
    /// Names of the domains in order, each with the indexes of its rules.
    domains: Vec<(Box<str>, Vec<usize>)>,
}

impl RuleOrder {
    fn new(policies: Arc<PolicySet>, places: Arc<[String]>) -> Self {
        let mut domains: BTreeMap<Box<str>, Vec<usize>> =
            policies.domains().map(|domain| (domain.name.clone(), Vec::new())).collect();
        for (index, rule) in policies.rules().iter().enumerate().take(places.len()) {
            if let Some(rules) = domains.get_mut(&*rule.domain) {
                rules.push(index);
            }
        }
        let domains = domains.into_iter().collect();
        Self { policies, places, domains }
    }
}

/// Writes the policies to one caller.
struct Listing {
    order: Arc<RuleOrder>,
    /// Sees its own domains.
    caller: Arc<Caller>,
    overrides: overrides::OfRules,
    on_error: OnError,
    /// The index of the next domain, and of its next rule.
    domain: usize,
    rule: usize,
    step: ListingStep,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListingStep {
    Begin,
    /// No domain is written yet.
    First,
    Next,
    Ended,
}

impl Listing {
    fn body(mut self) -> Body {
        pieces(move || {
            let mut piece = Vec::new();
            while piece.len() < PIECE_BYTES && self.write(&mut piece) {}
            (!piece.is_empty()).then(|| piece.into())
        })
    }

    /// Writes the next part. Returns false at the end.
    fn write(&mut self, to: &mut Vec<u8>) -> bool {
        match self.step {
            ListingStep::Ended => return false,
            ListingStep::Begin => {
                to.extend(opened(&RulesInForce::default()));
                self.step = ListingStep::First;
            }
            ListingStep::First | ListingStep::Next => {}
        }
        let RuleOrder { policies, places, domains } = &*self.order;
        while domains.get(self.domain).is_some_and(|(name, _)| !self.caller.has(name)) {
            self.domain += 1;
        }
        let Some((name, rules)) = domains.get(self.domain) else {
            to.extend(b"]}");
            self.step = ListingStep::Ended;
            return true;
        };
        let Some(domain) = policies.domain(name) else {
            unreachable!("the policies do not change");
        };
        if self.rule == 0 {
            if self.step == ListingStep::Next {
                to.push(b',');
            }
            self.step = ListingStep::Next;
            to.extend(opened(&DomainInForce {
                domain: name.to_string(),
                charging: domain.mode.map(|mode| mode.name().to_owned()),
                on_error: on_error_in_force(domain, None, self.on_error),
                rules: Vec::new(),
            }));
        } else {
            to.push(b',');
        }
        if let Some(&index) = rules.get(self.rule) {
            let rule = &policies.rules()[index];
            let overrides = self.overrides.of_rule(rule.id, policies);
            let shown = rule_in_force(rule, domain, self.on_error, &places[index], overrides);
            to.extend(serde_json::to_vec(&shown).unwrap_or_default());
            self.rule += 1;
        }
        if self.rule >= rules.len() {
            to.extend(b"]}");
            (self.domain, self.rule) = (self.domain + 1, 0);
        }
        true
    }
}

fn rule_in_force(
    rule: &Rule,
    domain: &Domain,
    servers: OnError,
    place: &str,
    overrides: Vec<ShownOverride>,
) -> RuleInForce {
    let mut keys = Map::new();
    for (name, value) in rule.keys() {
        // The rule has these two in another form.
        if !["on_error", "rows"].contains(&name) {
            put(&mut keys, name, value);
        }
    }
    let plan = |(name, limits): (&str, &PlanLimits)| PlanInForce {
        name: name.to_owned(),
        limits: limits.iter().map(|limit| limit.as_ref().map(limit_in_force)).collect(),
    };
    let rows = rule.rows.as_ref().map(|plans| PlansInForce {
        default: plans.default_plan().to_owned(),
        plans: plans.iter().map(plan).collect(),
    });
    RuleInForce {
        descriptor: rule.path.to_string(),
        place: place.to_owned(),
        role: rule.role.name().to_owned(),
        on_error: (!rule.limits.is_empty()).then(|| on_error_in_force(domain, Some(rule), servers)),
        limits: rule.limits.iter().map(limit_in_force).collect(),
        rows,
        overrides,
        entries: rule.levels.iter().map(|level| entry_in_force(level)).collect(),
        keys,
    }
}

fn entry_in_force(level: &Level) -> Map<String, Value> {
    let mut shown = Map::new();
    put(&mut shown, "key", KeyValue::Text(Some(&level.key)));
    for (name, value) in level.keys().into_iter().filter(|(_, value)| *value != KeyValue::Flag(false)) {
        put(&mut shown, name, value);
    }
    shown
}

/// The action if the store does not answer, and where it is set: in the rule, the domain or the server.
fn on_error_in_force(domain: &Domain, rule: Option<&Rule>, servers: OnError) -> OnErrorInForce {
    let (action, from) = match domain.on_error_of(rule) {
        Some((on_error, said_by)) => (on_error.name(), said_by.name()),
        None => (servers.name(), "server"),
    };
    OnErrorInForce { action: action.to_owned(), from: from.to_owned() }
}

/// A limit with everything that a policy can set. Omits parameters that its algorithm lacks.
fn limit_in_force(limit: &Limit) -> LimitInForce {
    let mut keys = Map::new();
    for (name, value) in limit.keys() {
        put(&mut keys, name, value);
    }
    for Parameter { name, value, .. } in limit.algorithm().parameters() {
        match value {
            // Shown as the capacity.
            ParameterValue::Hits(_) => {}
            ParameterValue::Length(us) => put(&mut keys, name, KeyValue::Length(Some(us))),
            ParameterValue::Word(word) => put(&mut keys, name, KeyValue::Text(Some(word))),
            ParameterValue::Calendar(unit) => {
                let zone = if limit.zone().is_empty() { "UTC" } else { limit.zone() };
                keys.insert(name.to_owned(), json!({ "unit": unit.unit().name(), "timezone": zone }));
            }
        }
    }
    LimitInForce {
        name: limit.name.as_deref().map(str::to_owned),
        algorithm: limit.algorithm().name().to_owned(),
        requests: limit.requests(),
        window_us: limit.window().us(),
        capacity: limit.capacity(),
        id: limit.id().to_owned(),
        keys,
    }
}

/// Adds a key of a policy. Of metadata it adds whether there is any.
fn put(shown: &mut Map<String, Value>, name: &str, value: KeyValue<'_>) {
    let (name, value) = match value {
        KeyValue::Flag(is_on) => (name.to_owned(), json!(is_on)),
        KeyValue::Length(us) | KeyValue::Instant(us) => (format!("{name}_us"), json!(us)),
        KeyValue::Number(number) => (name.to_owned(), json!(number)),
        KeyValue::Percents(shares) => (name.to_owned(), json!(shares.iter().collect::<Vec<_>>())),
        KeyValue::Text(text) => (name.to_owned(), json!(text)),
        KeyValue::Word(word) => (name.to_owned(), json!(word)),
        KeyValue::Spans(during) => {
            let spans = during.map(|during| during.spans().iter().map(Span::to_string).collect::<Vec<_>>());
            (name.to_owned(), json!(spans))
        }
        KeyValue::Names(names) => (name.to_owned(), json!(names)),
        KeyValue::Amount(amount) => (name.to_owned(), json!(amount.map(JsonAmount::from))),
        KeyValue::Metadata(metadata) => (name.to_owned(), json!(metadata.is_some())),
    };
    shown.insert(name, value);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StateQuery {
    domain: String,
    /// Entries as `k=v,k=v`. A comma in a value is `\,` and a backslash `\\`.
    descriptor: String,
}

async fn show_state(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<StateQuery>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(StateQuery { domain, descriptor }) = query.map_err(|rejection| bad_query(&rejection))?;
    caller.check(Some(&domain))?;
    let entries = entries_of(&descriptor).map_err(bad_request)?;
    let states = site.limiter.show_states(&domain, &as_entries(&entries)).await.map_err(unavailable)?;
    if states.is_empty() {
        return Err(no_limit());
    }
    let limits = states.into_iter().map(|state| {
        let limited = |number| (!state.is_unlimited).then_some(number);
        DescriptorState {
            algorithm: state.algorithm.to_owned(),
            requests: limited(state.requests),
            window_us: state.window_us,
            stored: state.state.is_some(),
            remaining: limited(state.remaining),
            reset_after_us: state.reset_after_us,
            unlimited: state.is_unlimited,
            key: state.key,
        }
    });
    Ok(shown(&DescriptorStates { limits: limits.collect() }).into_response())
}

async fn reset(
    State(site): State<Arc<Site>>,
    Extension(caller): Extension<Arc<Caller>>,
    query: Result<Query<StateQuery>, QueryRejection>,
) -> Result<Response, Response> {
    let Query(StateQuery { domain, descriptor }) = query.map_err(|rejection| bad_query(&rejection))?;
    caller.check(Some(&domain))?;
    let by = &*caller.name;
    let entries = entries_of(&descriptor).map_err(bad_request)?;
    let reset = site.limiter.reset(&domain, &as_entries(&entries)).await;
    let descriptor = site.audited(&entries);
    if let Err(StoreError::Unknown(_)) = &reset {
        tracing::info!(target: AUDIT, by, domain, descriptor, "state may have been reset by the admin listener");
    }
    let reset = reset.map_err(unavailable)?;
    if reset.keys.is_empty() {
        return Err(no_limit());
    }
    tracing::info!(target: AUDIT, by, domain, descriptor, stored = reset.stored, "state reset by the admin listener");
    Ok(shown(&reset).into_response())
}

fn unavailable(error: impl std::fmt::Display) -> Response {
    json_error(StatusCode::SERVICE_UNAVAILABLE, error)
}

fn no_limit() -> Response {
    json_error(StatusCode::NOT_FOUND, "no limit of the policies in force belongs to this domain and descriptor")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callers_share_the_order_of_the_same_policies() {
        let report = ServiceState::default();
        let orders = RuleOrders::default();
        let slow = orders.current(&report).await;
        assert!(Arc::ptr_eq(&slow, &orders.current(&report).await), "one for both callers");
        // After a reload, the slow caller keeps its order, and the next caller gets a new one.
        report.policies.lock().policies = Arc::default();
        let next = orders.current(&report).await;
        assert!(!Arc::ptr_eq(&slow.policies, &next.policies) && Arc::ptr_eq(&next, &orders.current(&report).await));
        // An order without readers is freed, and its policies too.
        let policies = next.policies.clone();
        drop((slow, next));
        assert_eq!(Arc::strong_count(&policies), 2, "the report's and this");
    }

    #[test]
    fn only_own_hosts_are_allowed() {
        let names = ["weir.internal".to_owned()];
        for host in [
            "localhost",
            "LOCALHOST:6070",
            "weir.localhost",
            "127.0.0.1",
            "10.1.2.3:6070",
            "[::1]",
            "[2001:db8::1]:80",
            "weir.internal",
            "Weir.Internal:6070",
            "weir.internal.",
        ] {
            assert!(is_own_host(host.as_bytes(), &names), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            // The brackets were read, and the rest was not.
            "[::1].evil.example",
            "[::1]evil.example:6070",
            "[evil.example]",
            "localhost:6070:80",
            "notlocalhost",
            "x.weir.internal",
            "evil.example@",
            "\u{7f}",
            "a b",
        ] {
            assert!(!is_own_host(host.as_bytes(), &names), "{host}");
        }
    }
}
