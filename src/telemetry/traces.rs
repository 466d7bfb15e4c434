//! Traces: which decisions are traced, the attributes of their spans, and where the spans are sent.
//!
//! The sampling decision comes first, from the headers alone: a request that is not sampled has no [`Trace`] and
//! allocates nothing. Spans are built by hand and not with `tracing` (ADR 18). In traces/: the caller's context
//! (context.rs), the sampler (sampler.rs), the spans (span.rs), and the queue with its exporter (queue.rs). Not here:
//! the connection to the collector (otlp.rs), and the events of a decision, which the limiter reports.

mod context;
mod queue;
mod sampler;
mod span;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{IdGenerator as _, RandomIdGenerator};
use parking_lot::Mutex;
use tonic::codegen::http::HeaderMap;
use weir_engine::arith::Fraction;
use weir_engine::observer::{
    self, AnsweredRequest, Charged, DecisionResult, HoldHits, HoldResult, Silent, StoreCall, Tally, Tap, TraceIds,
};
use weir_engine::{Domain, Observer, OnError, PolicySet};
use weir_settings::PropagatorFormats;

use self::context::{Caller, tracestate};
pub use self::queue::{Batches, Exporting, Spans};
pub use self::sampler::Sampler;
use self::span::DecisionRecord;
use crate::metrics::Protocol;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The headers that the caller's context is read from.
    pub propagators: PropagatorFormats,
    /// Which decisions are sampled.
    pub sampler: Sampler,
    pub descriptor_values: bool,
}

/// Starts the traces of decisions. One for the process.
#[derive(Debug)]
pub struct Tracer {
    options: Options,
    ids: RandomIdGenerator,
    scope: InstrumentationScope,
    spans: Arc<Spans>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Grpc(i32),
    Http(u16),
    Cancelled,
}

impl Tracer {
    /// Puts the spans of sampled decisions into `spans`.
    #[must_use]
    pub fn new(options: Options, spans: Arc<Spans>) -> Self {
        let scope = InstrumentationScope::builder("weir").with_version(env!("CARGO_PKG_VERSION")).build();
        Self { options, ids: RandomIdGenerator::default(), scope, spans }
    }

    /// The trace of a request with these headers, if it is sampled.
    #[must_use]
    pub fn begin(self: &Arc<Self>, protocol: Protocol, headers: &HeaderMap) -> Option<Arc<Trace>> {
        let caller = Caller::of(headers, self.options.propagators);
        let mut own = None;
        let sampled = self.options.sampler.samples(caller.sampled, || match caller.ids {
            Some(ids) => ids.trace,
            None => *own.insert(u128::from_be_bytes(self.ids.new_trace_id().to_bytes())),
        });
        if !sampled {
            return None;
        }
        let trace = match caller.ids {
            Some(ids) => TraceId::from(ids.trace),
            None => own.map_or_else(|| self.ids.new_trace_id(), TraceId::from),
        };
        let state = if caller.is_w3c { tracestate(headers) } else { TraceState::NONE };
        Some(Arc::new(Trace {
            tracer: self.clone(),
            protocol,
            context: SpanContext::new(trace, self.ids.new_span_id(), TraceFlags::SAMPLED, false, state),
            parent: caller.ids.map_or(SpanId::INVALID, |ids| SpanId::from(ids.span)),
            began_at: SystemTime::now(),
            began: Instant::now(),
            record: Mutex::default(),
            ended: OnceLock::new(),
        }))
    }
}

/// The trace of one sampled decision. When dropped, its spans go to the queue.
pub struct Trace {
    tracer: Arc<Tracer>,
    protocol: Protocol,
    context: SpanContext,
    parent: SpanId,
    began_at: SystemTime,
    began: Instant,
    record: Mutex<DecisionRecord>,
    ended: OnceLock<Ended>,
}

impl Trace {
    /// Sets the domain of the request. Not called for a request that cannot be read.
    pub fn domain(&self, domain: &str) {
        self.record.lock().domain(domain);
    }

    /// Sets the name of the caller.
    pub fn caller(&self, caller: Option<&str>) {
        self.record.lock().caller(caller);
    }

    /// Sets how the request has ended, which happens once.
    pub fn end_grpc(&self, code: i32) {
        let _ = self.ended.set(Ended::Grpc(code));
    }

    /// Sets how the request has ended, which happens once.
    pub fn end_http(&self, status: u16) {
        let _ = self.ended.set(Ended::Http(status));
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let ended = self.ended.take().unwrap_or(Ended::Cancelled);
        let record = std::mem::take(self.record.get_mut());
        // By the monotonic clock, because the time of day can be set in between.
        let end = self.began_at + self.began.elapsed();
        for span in span::spans(self, record, ended, end) {
            self.tracer.spans.push(Box::new(span));
        }
    }
}

impl observer::Trace for Trace {
    fn ids(&self) -> TraceIds {
        TraceIds {
            trace: u128::from_be_bytes(self.context.trace_id().to_bytes()),
            span: u64::from_be_bytes(self.context.span_id().to_bytes()),
        }
    }

    fn call_ended(&self, call: StoreCall) {
        let at = self.began_at + self.began.elapsed();
        self.record.lock().call_ended(call, at);
    }
}

impl Observer for Trace {
    /// The tally of its one decision is the trace itself.
    fn loaded(&self, _policies: &PolicySet) -> Arc<dyn Tally> {
        Arc::new(Silent)
    }

    fn fell_back(&self, action: OnError, kind: &'static str) {
        self.record.lock().fell_back(action, kind);
    }

    fn decided(&self, result: DecisionResult, _took: &dyn Fn() -> Duration, _trace: Option<TraceIds>) {
        self.record.lock().decided(result);
    }
}

impl Tally for Trace {
    fn charged(&self, charged: &Charged<'_>) {
        self.record.lock().charged(charged);
    }

    fn holds(&self, _domain: &Domain, result: HoldResult, count: u64) {
        self.record.lock().holds(result, count);
    }

    fn hold_hits(&self, _domain: &Domain, kind: HoldHits, hits: u64) {
        self.record.lock().hold_hits(kind, hits);
    }
}

impl Tap for Trace {
    fn answered(&self, request: &dyn AnsweredRequest) {
        self.record.lock().answered(request, self.tracer.options.descriptor_values);
    }
}

/// The attributes that all spans of this process have.
#[derive(Clone, Debug)]
pub struct Service {
    /// `service.name`.
    pub name: String,
    /// `service.namespace`.
    pub namespace: Option<String>,
    /// `service.instance.id`. None: a random UUID.
    pub instance_id: Option<String>,
    pub attributes: Vec<(String, String)>,
}

impl Service {
    /// The resource of spans. The named attributes override the list, except `service.version`.
    #[must_use]
    pub fn resource(&self) -> Resource {
        let listed = self.attributes.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
        let instance = self.instance_id.clone().unwrap_or_else(random_uuid);
        let mut named = vec![
            KeyValue::new("telemetry.sdk.name", "opentelemetry"),
            KeyValue::new("telemetry.sdk.language", "rust"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.name", self.name.clone()),
            KeyValue::new("service.instance.id", instance),
        ];
        named.extend(self.namespace.clone().map(|namespace| KeyValue::new("service.namespace", namespace)));
        // The version of the build, unless the list has another.
        if self.attributes.iter().any(|(key, _)| key == "service.version") {
            named.retain(|pair| pair.key.as_str() != "service.version");
        }
        Resource::builder_empty().with_attributes(listed).with_attributes(named).build()
    }
}

/// A UUID of version 4.
fn random_uuid() -> String {
    let random = u128::from_be_bytes(RandomIdGenerator::default().new_trace_id().to_bytes());
    let uuid = random & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let hex = format!("{uuid:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

impl Sampler {
    /// The sampler that keeps this part of all traces.
    #[must_use]
    pub fn ratio(ratio: Fraction, is_parent_based: bool) -> Self {
        Self::new(u64::from(ratio.billionths()), is_parent_based)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_uuid_has_the_form_of_version_4() {
        let uuid = random_uuid();
        let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{uuid}");
        assert_eq!(&uuid[14..15], "4", "{uuid}");
        assert!("89ab".contains(&uuid[19..20]), "{uuid}");
        assert_ne!(uuid, random_uuid());
    }

    #[test]
    fn the_resource_has_what_is_named_and_what_is_listed() {
        let list = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let service = Service {
            name: "limits".into(),
            namespace: Some("edge".into()),
            instance_id: Some("one".into()),
            attributes: list(&[
                ("k8s.pod.name", "weir-0"),
                ("service.instance.id", "listed"),
                ("service.version", "9"),
            ]),
        };
        let resource = service.resource();
        let value = |key: &'static str| resource.get(&opentelemetry::Key::new(key)).map(|value| value.to_string());
        for (key, expected) in [
            ("service.name", "limits"),
            ("service.namespace", "edge"),
            ("service.instance.id", "one"),
            ("service.version", "9"),
            ("k8s.pod.name", "weir-0"),
        ] {
            assert_eq!(value(key).as_deref(), Some(expected), "{key}");
        }
    }
}
