//! `/top` and `/limited`.

use serde::{Deserialize, Serialize};

use super::numbers::JsonAmount;

/// `/top`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Top {
    #[serde(flatten)]
    pub limited: Limited,
    /// The limits that were over and are not in `limits`.
    pub limits_left_out: usize,
    pub instance: Instance,
    pub busiest: Busiest,
    #[serde(default)]
    pub leases: Leases,
    pub store: Store,
    /// How long the process has run.
    #[serde(default)]
    pub uptime_s: u64,
}

/// `/limited`: the denied keys of the last minutes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Limited {
    /// The time of the server's clock, in milliseconds since 1970.
    pub now_ms: u64,
    /// The minutes that it covers, including the current one.
    pub minutes: u64,
    /// The time of each number in `history`.
    pub step_ms: u64,
    /// How values of callers are shown.
    pub values: String,
    /// Denials by limits that are not listed.
    pub denials_left_out: u64,
    pub limits: Vec<LimitDenials>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct LimitDenials {
    pub domain: String,
    /// The path of the rule.
    pub rule: String,
    /// The name of the limit, or its id.
    pub limit: String,
    /// The role of the limit at the last denial.
    pub role: String,
    pub denials: u64,
    /// Denials by steps, oldest first.
    pub history: Vec<u64>,
    pub keys: Vec<KeyDenials>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct KeyDenials {
    pub descriptor: String,
    /// Whether the end of the descriptor is missing.
    pub cut: bool,
    pub denials_min: u64,
    pub denials_max: u64,
    pub first_ms: u64,
    pub last_ms: u64,
    /// The row behind the last denial; none for the default plan and rules without rows.
    pub row: Option<String>,
}

/// The name of the replica, if it has one, and its version.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Instance {
    /// `tracing.service_instance_id`, or the host name: in Kubernetes the name of the pod.
    pub name: Option<String>,
    pub version: String,
}

/// Requests and the limits with most hits, since the previous read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busiest {
    /// The time between the reads; 0 if there was no earlier read.
    pub interval_ms: u64,
    pub requests: Requests,
    /// The descriptors that `on_error` decided.
    #[serde(default)]
    pub on_error: ByOnError,
    /// The times in which half of the requests were decided, and 99 of 100; none without requests.
    #[serde(default)]
    pub p50_us: Option<u64>,
    #[serde(default)]
    pub p99_us: Option<u64>,
    pub limits: Vec<BusyLimit>,
    /// By name. Empty without `callers.file`, and for a token without all domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<BusyCaller>,
}

/// The requests of one caller of `callers.file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyCaller {
    pub caller: String,
    /// With the refused ones.
    pub requests: u64,
    /// The requests that the caller may not send.
    pub refused: u64,
}

/// Descriptors that `on_error` decided, by action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByOnError {
    pub error: u64,
    pub allow: u64,
    pub deny: u64,
    pub local: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    pub ok: u64,
    pub over_limit: u64,
    /// Requests that failed because a store failed.
    pub store_failed: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BusyLimit {
    pub domain: String,
    pub rule: String,
    pub limit: String,
    pub hits: u64,
    pub over_limit_hits: u64,
    /// The unit of the hits, if the limit has one. Older servers do not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<JsonAmount>,
}

/// The leases of the process now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leases {
    /// The keys with a lease.
    pub keys: u64,
    /// The hits that were charged ahead.
    pub charged: u64,
    /// How many of these hits requests have used.
    pub used: u64,
}

/// The state of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    pub name: String,
    /// Whether it answered the last question.
    pub answered: bool,
    /// The worst circuit state.
    pub circuit: String,
    /// The calls that wait for it. Only in `/top`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<u64>,
}
