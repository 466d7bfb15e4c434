//! The spans of one decision: its own, and one for each call to a store outside of this process.
//!
//! Attributes have the names of OpenTelemetry's semantic conventions. Names without a convention begin with `weir.`. Every text and
//! list is bounded: domains, keys and values come from callers.

use std::time::SystemTime;

use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags};
use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{IdGenerator as _, SpanData, SpanEvents, SpanLinks};
use weir_engine::observer::{
    AnsweredBy, AnsweredRequest, Charged, DecisionResult, HoldHits, HoldResult, LimitOf, StoreCall,
};
use weir_engine::{Entry, Group, OnError, Rule};

use super::{Ended, Trace};
use crate::metrics::Protocol;

/// The longest attribute text from a caller or a policy, in bytes.
const TEXT_BYTES_MAX: usize = 256;
const LIST_MAX: usize = 64;
/// The most store calls of one decision that have a span.
const CALLS_MAX: usize = 32;

/// The service and the method of gRPC.
const GRPC_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The attributes of the results of holds, and of the hits that they moved. [hd-8]
const HOLDS: [&str; HoldResult::NAMES.len()] = [
    "weir.holds_opened",
    "weir.holds_settled",
    "weir.holds_late",
    "weir.holds_again",
    "weir.holds_reported",
    "weir.holds_lost",
];
const HOLD_HITS: [&str; HoldHits::NAMES.len()] = ["weir.hits_held", "weir.hits_given_back", "weir.hits_excess"];

/// The limiter's reports about a decision so far.
#[derive(Debug, Default)]
pub(super) struct DecisionRecord {
    domain: Option<StringValue>,
    caller: Option<StringValue>,
    descriptors: Vec<StringValue>,
    rules: Vec<StringValue>,
    rows: Vec<StringValue>,
    unmatched: i64,
    over: Vec<StringValue>,
    store: Option<&'static str>,
    known: bool,
    leased: bool,
    fallback: Option<(OnError, &'static str)>,
    result: Option<DecisionResult>,
    calls: i64,
    spans: Vec<Called>,
    holds: [i64; HOLDS.len()],
    hold_hits: [i64; HOLD_HITS.len()],
}

/// A call to a store outside of this process.
#[derive(Debug)]
struct Called {
    call: StoreCall,
    at: SystemTime,
}

impl DecisionRecord {
    pub(super) fn domain(&mut self, domain: &str) {
        self.domain = Some(bounded(domain));
    }

    pub(super) fn caller(&mut self, caller: Option<&str>) {
        self.caller = caller.map(bounded);
    }

    pub(super) fn answered(&mut self, request: &dyn AnsweredRequest, has_values: bool) {
        for group in Group::all(request.descriptors()) {
            self.matched(request.entries(group), request.rule(group), has_values);
            if let Some(content) = request.row(group) {
                push(&mut self.rows, || bounded(&content.to_string()));
            }
        }
    }

    fn matched(&mut self, entries: &[Entry<'_>], rule: Option<&Rule>, has_values: bool) {
        if self.descriptors.len() < LIST_MAX {
            let mut text = String::new();
            for (i, entry) in entries.iter().enumerate() {
                if text.len() > TEXT_BYTES_MAX {
                    break;
                }
                text.push_str(if i == 0 { "" } else { "|" });
                text.push_str(entry.key);
                if has_values {
                    text.push('=');
                    text.push_str(entry.value);
                }
            }
            self.descriptors.push(bounded(&text));
        }
        match rule {
            Some(rule) => push(&mut self.rules, || bounded(&rule.path)),
            None => self.unmatched += 1,
        }
    }

    pub(super) fn charged(&mut self, charged: &Charged<'_>) {
        self.known |= charged.by == AnsweredBy::Cache;
        self.leased |= charged.by == AnsweredBy::Lease;
        if charged.outcome.verdict.is_over() {
            let path = match charged.limit {
                LimitOf::Rule(rule, _) => &*rule.path,
                LimitOf::Request { .. } => "(request)",
            };
            push(&mut self.over, || bounded(&format!("{path} {}", charged.charge.limit.id())));
        }
    }

    pub(super) fn call_ended(&mut self, call: StoreCall, at: SystemTime) {
        self.store.get_or_insert(call.store);
        if call.is_immediate {
            return;
        }
        self.calls += 1;
        if self.spans.len() < CALLS_MAX {
            self.spans.push(Called { call, at });
        }
    }

    pub(super) fn fell_back(&mut self, action: OnError, kind: &'static str) {
        self.fallback = Some((action, kind));
    }

    pub(super) fn holds(&mut self, result: HoldResult, count: u64) {
        self.holds[result as usize] += count.cast_signed();
    }

    pub(super) fn hold_hits(&mut self, kind: HoldHits, hits: u64) {
        self.hold_hits[kind as usize] += hits.cast_signed();
    }

    pub(super) fn decided(&mut self, result: DecisionResult) {
        self.result = Some(result);
    }
}

/// The spans of a trace that ended, with the decision's own last.
pub(super) fn spans(trace: &Trace, record: DecisionRecord, ended: Ended, end: SystemTime) -> Vec<SpanData> {
    let mut spans: Vec<SpanData> = record.spans.iter().map(|called| store_span(trace, called)).collect();
    spans.push(decision_span(trace, record, ended, end));
    spans
}

/// A span with the common fields. An error sets its status and its attribute `error.type`.
fn span(
    trace: &Trace,
    span_context: SpanContext,
    name: &'static str,
    times: (SystemTime, SystemTime),
    mut attributes: Vec<KeyValue>,
    error: Option<&'static str>,
) -> SpanData {
    attributes.extend(error.map(|kind| KeyValue::new("error.type", kind)));
    SpanData {
        span_context,
        parent_span_id: SpanId::INVALID,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: times.0,
        end_time: times.1,
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: error.map_or(Status::Unset, Status::error),
        instrumentation_scope: trace.tracer.scope.clone(),
    }
}

fn decision_span(trace: &Trace, record: DecisionRecord, ended: Ended, end: SystemTime) -> SpanData {
    let mut attributes = Vec::with_capacity(16);
    let mut add = |key: &'static str, value: Value| attributes.push(KeyValue::new(key, value));
    let name = match trace.protocol {
        Protocol::Grpc => {
            add("rpc.system", "grpc".into());
            add("rpc.service", "envoy.service.ratelimit.v3.RateLimitService".into());
            add("rpc.method", "ShouldRateLimit".into());
            GRPC_NAME
        }
        Protocol::Http => {
            add("http.request.method", "POST".into());
            add("http.route", "/json".into());
            add("url.path", "/json".into());
            add("url.scheme", "http".into());
            "POST /json"
        }
    };
    let error = match ended {
        Ended::Grpc(code) => {
            add("rpc.grpc.status_code", i64::from(code).into());
            grpc_error(code)
        }
        Ended::Http(status) => {
            add("http.response.status_code", i64::from(status).into());
            (status >= 500).then_some("server error")
        }
        Ended::Cancelled => None,
    };
    if let Some(domain) = record.domain {
        add("weir.domain", Value::String(domain));
    }
    if let Some(caller) = record.caller {
        add("weir.caller", Value::String(caller));
    }
    let outcome = match (record.result, ended) {
        (Some(result), _) => result.name(),
        (None, Ended::Cancelled) => "cancelled",
        (None, Ended::Grpc(_) | Ended::Http(_)) => DecisionResult::Invalid.name(),
    };
    add("weir.outcome", outcome.into());
    for (key, list) in [
        ("weir.descriptors", record.descriptors),
        ("weir.rules", record.rules),
        ("weir.rows", record.rows),
        ("weir.limits_over", record.over),
    ] {
        if !list.is_empty() {
            add(key, Value::Array(Array::String(list)));
        }
    }
    if record.unmatched > 0 {
        add("weir.unmatched_descriptors", record.unmatched.into());
    }
    if let Some(store) = record.store.or(record.known.then_some("deny_cache")).or(record.leased.then_some("lease")) {
        add("weir.store", store.into());
    }
    if record.calls > 0 {
        add("weir.store_calls", record.calls.into());
    }
    let of_holds = HOLDS.into_iter().zip(record.holds).chain(HOLD_HITS.into_iter().zip(record.hold_hits));
    for (key, count) in of_holds.filter(|(_, count)| *count > 0) {
        add(key, count.into());
    }
    if let Some((action, kind)) = record.fallback {
        add("weir.on_error", action.name().into());
        add("weir.store_error", kind.into());
    }
    let error = error.map(|reason| record.fallback.map_or(reason, |(_, kind)| kind));
    SpanData {
        parent_span_id: trace.parent,
        parent_span_is_remote: trace.parent != SpanId::INVALID,
        span_kind: SpanKind::Server,
        ..span(trace, trace.context.clone(), name, (trace.began_at, end), attributes, error)
    }
}

/// The round trip of a call. Its command runs a script.
fn store_span(trace: &Trace, called: &Called) -> SpanData {
    let Called { call, at } = called;
    let mut attributes = Vec::with_capacity(8);
    let mut add = |key: &'static str, value: Value| attributes.push(KeyValue::new(key, value));
    add("db.system.name", call.store.into());
    // The older name, which many tools still read.
    add("db.system", call.store.into());
    add("db.operation.name", "EVALSHA".into());
    if let Some(place) = &call.place {
        match place.rsplit_once(':').map(|(host, port)| (host, port.parse::<u16>())) {
            Some((host, Ok(port))) => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                add("server.address", Value::String(bounded(host)));
                add("server.port", i64::from(port).into());
            }
            _ => add("server.address", Value::String(bounded(place))),
        }
    }
    add("weir.charges", i64::try_from(call.charges).unwrap_or(i64::MAX).into());
    let own = &trace.context;
    let (id, state) = (trace.tracer.ids.new_span_id(), own.trace_state().clone());
    let context = SpanContext::new(own.trace_id(), id, TraceFlags::SAMPLED, false, state);
    let began = at.checked_sub(call.took).unwrap_or(*at);
    SpanData {
        parent_span_id: own.span_id(),
        span_kind: SpanKind::Client,
        ..span(trace, context, "EVALSHA", (began, *at), attributes, call.error)
    }
}

/// The name of a gRPC code that the conventions count as a server error.
const fn grpc_error(code: i32) -> Option<&'static str> {
    match code {
        2 => Some("UNKNOWN"),
        4 => Some("DEADLINE_EXCEEDED"),
        12 => Some("UNIMPLEMENTED"),
        13 => Some("INTERNAL"),
        14 => Some("UNAVAILABLE"),
        15 => Some("DATA_LOSS"),
        _ => None,
    }
}

fn push(list: &mut Vec<StringValue>, text: impl FnOnce() -> StringValue) {
    if list.len() < LIST_MAX {
        list.push(text());
    }
}

fn bounded(text: &str) -> StringValue {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_end_at_their_bound_and_between_characters() {
        assert_eq!(bounded("shop").as_str(), "shop");
        assert_eq!(bounded(&"x".repeat(300)).as_str().len(), TEXT_BYTES_MAX);
        let odd = format!("x{}", "é".repeat(200));
        assert_eq!(bounded(&odd).as_str().len(), TEXT_BYTES_MAX - 1);
    }

    #[test]
    fn lists_and_calls_are_bounded() {
        let mut record = DecisionRecord::default();
        let call = StoreCall {
            store: "redis",
            place: None,
            charges: 1,
            error: None,
            took: std::time::Duration::ZERO,
            is_immediate: false,
        };
        for _ in 0..LIST_MAX + 10 {
            record.matched(&[Entry { key: "user", value: "ann" }], None, false);
            record.call_ended(call.clone(), SystemTime::UNIX_EPOCH);
        }
        assert_eq!((record.descriptors.len(), record.spans.len()), (LIST_MAX, CALLS_MAX));
        assert_eq!((record.unmatched, record.calls), (74, 74));
        assert_eq!(record.descriptors[0].as_str(), "user");
    }

    #[test]
    fn values_are_there_only_where_they_are_asked_for() {
        let entries = [Entry { key: "user", value: "ann" }, Entry { key: "path", value: "/" }];
        let mut record = DecisionRecord::default();
        record.matched(&entries, None, false);
        record.matched(&entries, None, true);
        let texts: Vec<&str> = record.descriptors.iter().map(StringValue::as_str).collect();
        assert_eq!(texts, ["user|path", "user=ann|path=/"]);
    }
}
