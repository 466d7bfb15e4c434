//! `/overrides`.

use serde::{Deserialize, Serialize};

use super::numbers::JsonNumbers;
use super::{Answered, Kept};

/// An override to set.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object that is an override")]
pub struct NewOverride {
    pub domain: String,
    /// Entries as `k=v,k=v`.
    pub descriptor: String,
    pub limits: Vec<JsonNumbers>,
    /// A date or an instant.
    pub until: Option<String>,
    /// The duration, in place of `until`.
    pub for_us: Option<u64>,
    pub reason: String,
}

/// An override, and its effect under the policies in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShownOverride {
    pub domain: String,
    pub descriptor: String,
    /// The path of its rule.
    pub rule: Option<String>,
    /// Why the override has no effect.
    pub unused: Option<String>,
    pub limits: Vec<Answered<JsonNumbers>>,
    pub until: String,
    pub until_us: u64,
    pub set: String,
    pub by: String,
    pub reason: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct OverrideList {
    pub now: String,
    /// The time since the server last read its store. None before the first time.
    pub read_ms_ago: Option<u64>,
    pub store: String,
    /// In the order of domain and descriptor.
    pub overrides: Vec<ShownOverride>,
}

/// An override that was set or deleted.
#[derive(Debug, Serialize, Deserialize)]
pub struct OverrideChange {
    #[serde(flatten)]
    pub kept: Kept,
    /// Other descriptors that share it, as a descriptor with patterns.
    pub shared_with: Option<String>,
    #[serde(flatten)]
    pub changed: ShownOverride,
}
