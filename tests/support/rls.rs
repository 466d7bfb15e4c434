//! The rate limit service as a client sees it, through messages and a client that are not weir's:
//! the crate `envoy-types` is made from Envoy's own definitions. With them the translation between
//! messages and the proto3 JSON in which cases are written down.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
pub use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{DescriptorStatus, RateLimit};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
pub use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::{self, UInt64Value, value::Kind};
use serde_json::{Map, Value, json};
use tonic::transport::{Channel, Endpoint};

use super::wait::within;

/// How long a call may take before the client gives up.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection is kept alive between two looks.
const A_MOMENT: Duration = Duration::from_millis(5);

/// A client on one connection, for tests that are not asynchronous.
#[derive(Debug)]
pub struct Client {
    runtime: tokio::runtime::Runtime,
    service: RateLimitServiceClient<Channel>,
}

impl Client {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Client {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let channel = runtime.block_on(channel(address));
        let service = RateLimitServiceClient::new(channel);
        Client { runtime, service }
    }

    /// Asks once.
    pub fn ask(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
        let answer = self.runtime.block_on(self.service.should_rate_limit(request));
        answer.map(tonic::Response::into_inner)
    }

    /// Keeps the connection alive without asking anything, until `done` or for `timeout`; false if
    /// it was not done by then.
    pub fn drive_until(&mut self, timeout: Duration, mut done: impl FnMut() -> bool) -> bool {
        within(timeout, || {
            self.runtime.block_on(async { tokio::time::sleep(A_MOMENT).await });
            done().then_some(())
        })
        .is_some()
    }

    /// Asks once, about one descriptor of one entry, and says whether the request may pass.
    pub fn admits(&mut self, domain: &str, key: &str, value: &str) -> bool {
        match self.ask(request(domain, &[(key, value)])) {
            Ok(answer) => admits(&answer),
            Err(status) => panic!("{domain} {key}={value}: {status}"),
        }
    }
}

/// Asks once, on a connection that is there.
pub async fn ask(channel: Channel, request: RateLimitRequest) -> Result<RateLimitResponse, tonic::Status> {
    let mut service = RateLimitServiceClient::new(channel);
    let answer = service.should_rate_limit(request).await;
    answer.map(tonic::Response::into_inner)
}

/// A connection to a gRPC listener.
pub async fn channel(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a valid address");
    let endpoint = endpoint.connect_timeout(CALL_TIMEOUT).timeout(CALL_TIMEOUT);
    match endpoint.connect().await {
        Ok(channel) => channel,
        Err(error) => panic!("cannot connect to {address}: {error:?}"),
    }
}

/// A request about one descriptor with these entries.
pub fn request(domain: &str, entries: &[(&str, &str)]) -> RateLimitRequest {
    let mut descriptor = RateLimitDescriptor::default();
    for (key, value) in entries {
        descriptor.entries.push(Entry { key: (*key).to_owned(), value: (*value).to_owned() });
    }
    RateLimitRequest { domain: domain.to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// The same, which takes nothing: hits of 0 only look.
pub fn look(domain: &str, entries: &[(&str, &str)]) -> RateLimitRequest {
    let mut request = request(domain, entries);
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = Some(UInt64Value { value: 0 });
    }
    request
}

/// Whether this answer lets the request pass; panics when it says neither.
pub fn admits(answer: &RateLimitResponse) -> bool {
    match answer.overall_code() {
        Code::Ok => true,
        Code::OverLimit => false,
        Code::Unknown => panic!("an answer without a code: {answer:?}"),
    }
}

/// The name of a gRPC code as the specification spells it, `INVALID_ARGUMENT`.
pub fn code_name(code: tonic::Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

/// Reads a request in proto3 JSON. A field that it does not know is an error: the case would
/// otherwise be played without it.
pub fn request_from_json(value: &Value) -> Result<RateLimitRequest, String> {
    let mut request = RateLimitRequest::default();
    for (name, value) in object(value)? {
        match name.as_str() {
            "domain" => request.domain = text(value)?,
            "hitsAddend" => request.hits_addend = number(value)?,
            "descriptors" => {
                for descriptor in list(value)? {
                    request.descriptors.push(descriptor_from_json(descriptor)?);
                }
            }
            _ => return Err(format!("unknown field of a request: {name}")),
        }
    }
    Ok(request)
}

fn descriptor_from_json(value: &Value) -> Result<RateLimitDescriptor, String> {
    let mut descriptor = RateLimitDescriptor::default();
    for (name, value) in object(value)? {
        match name.as_str() {
            "entries" => {
                for entry in list(value)? {
                    descriptor.entries.push(entry_from_json(entry)?);
                }
            }
            "limit" => descriptor.limit = Some(override_from_json(value)?),
            "hitsAddend" => {
                let value = number(value)?;
                descriptor.hits_addend = Some(UInt64Value { value });
            }
            "isNegativeHits" => {
                let flag = value.as_bool();
                descriptor.is_negative_hits = flag.ok_or(format!("not a flag: {value}"))?;
            }
            _ => return Err(format!("unknown field of a descriptor: {name}")),
        }
    }
    Ok(descriptor)
}

fn entry_from_json(value: &Value) -> Result<Entry, String> {
    let mut entry = Entry::default();
    for (name, value) in object(value)? {
        match name.as_str() {
            "key" => entry.key = text(value)?,
            "value" => entry.value = text(value)?,
            _ => return Err(format!("unknown field of an entry: {name}")),
        }
    }
    Ok(entry)
}

fn override_from_json(value: &Value) -> Result<RateLimitOverride, String> {
    let mut limit = RateLimitOverride::default();
    for (name, value) in object(value)? {
        match name.as_str() {
            "requestsPerUnit" => limit.requests_per_unit = number(value)?,
            "unit" => limit.unit = unit_from_json(value)?,
            _ => return Err(format!("unknown field of a limit: {name}")),
        }
    }
    Ok(limit)
}

/// A unit by its name, or by its number for units that the message has no name for.
fn unit_from_json(value: &Value) -> Result<i32, String> {
    match value.as_str() {
        Some(name) => {
            let unit = RateLimitUnit::from_str_name(name);
            unit.map(i32::from).ok_or(format!("unknown unit: {name}"))
        }
        None => number(value),
    }
}

fn object(value: &Value) -> Result<&Map<String, Value>, String> {
    value.as_object().ok_or(format!("not an object: {value}"))
}

fn list(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or(format!("not a list: {value}"))
}

fn text(value: &Value) -> Result<String, String> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or(format!("not a text: {value}"))
}

/// A number; proto3 JSON writes those of 64 bits as texts.
fn number<N: TryFrom<i64>>(value: &Value) -> Result<N, String> {
    let number = match value.as_str() {
        Some(text) => text.parse().ok(),
        None => value.as_i64(),
    };
    number.and_then(|number| N::try_from(number).ok()).ok_or(format!("not a number that fits: {value}"))
}

/// Writes an answer in proto3 JSON: fields at their default are left out.
pub fn response_to_json(response: &RateLimitResponse) -> Value {
    let mut fields = Fields::default();
    fields.put_code("overallCode", response.overall_code);
    fields.put_list("statuses", response.statuses.iter().map(status_to_json).collect());
    let headers = response.response_headers_to_add.iter();
    fields.put_list("responseHeadersToAdd", headers.map(header_to_json).collect());
    let headers = response.request_headers_to_add.iter();
    fields.put_list("requestHeadersToAdd", headers.map(header_to_json).collect());
    if !response.raw_body.is_empty() {
        fields.put("rawBody", json!(response.raw_body));
    }
    if let Some(metadata) = &response.dynamic_metadata {
        fields.put("dynamicMetadata", struct_to_json(metadata));
    }
    if let Some(quota) = &response.quota {
        fields.put("quota", json!(format!("{quota:?}")));
    }
    fields.finish()
}

fn status_to_json(status: &DescriptorStatus) -> Value {
    let mut fields = Fields::default();
    fields.put_code("code", status.code);
    if let Some(limit) = &status.current_limit {
        fields.put("currentLimit", limit_to_json(limit));
    }
    if status.limit_remaining != 0 {
        fields.put("limitRemaining", json!(status.limit_remaining));
    }
    if let Some(duration) = &status.duration_until_reset {
        let mut text = duration.seconds.to_string();
        if duration.nanos != 0 {
            text.push_str(&format!(".{:09}", duration.nanos));
        }
        text.push('s');
        fields.put("durationUntilReset", json!(text));
    }
    if let Some(quota) = &status.quota {
        fields.put("quota", json!(format!("{quota:?}")));
    }
    fields.finish()
}

fn limit_to_json(limit: &RateLimit) -> Value {
    let mut fields = Fields::default();
    if !limit.name.is_empty() {
        fields.put("name", json!(limit.name));
    }
    if limit.requests_per_unit != 0 {
        fields.put("requestsPerUnit", json!(limit.requests_per_unit));
    }
    match Unit::try_from(limit.unit) {
        Ok(Unit::Unknown) => {}
        Ok(unit) => fields.put("unit", json!(unit.as_str_name())),
        Err(_) => fields.put("unit", json!(limit.unit)),
    }
    fields.finish()
}

fn header_to_json(header: &HeaderValue) -> Value {
    let mut fields = Fields::default();
    fields.put("key", json!(header.key));
    if !header.value.is_empty() {
        fields.put("value", json!(header.value));
    }
    if !header.raw_value.is_empty() {
        fields.put("rawValue", json!(header.raw_value));
    }
    fields.finish()
}

fn struct_to_json(value: &protobuf::Struct) -> Value {
    let mut fields = Fields::default();
    let sorted: BTreeMap<_, _> = value.fields.iter().collect();
    for (name, value) in sorted {
        fields.put(name, value_to_json(value));
    }
    fields.finish()
}

fn value_to_json(value: &protobuf::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(flag)) => json!(flag),
        Some(Kind::StructValue(fields)) => struct_to_json(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(value_to_json).collect(),
    }
}

/// The fields of one object.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    fn put_list(&mut self, name: &str, values: Vec<Value>) {
        if !values.is_empty() {
            self.put(name, Value::Array(values));
        }
    }

    fn put_code(&mut self, name: &str, code: i32) {
        match Code::try_from(code) {
            Ok(Code::Unknown) => {}
            Ok(code) => self.put(name, json!(code.as_str_name())),
            Err(_) => self.put(name, json!(code)),
        }
    }

    fn finish(self) -> Value {
        Value::Object(self.0)
    }
}
