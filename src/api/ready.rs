//! `/readyz`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::top::Store;

#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    pub ready: bool,
    pub phase: String,
    pub store: Store,
    pub policies: ReadyPolicies,
    pub overrides: ReadyOverrides,
    pub rows: ReadyInput,
    #[serde(default)]
    pub callers: ReadyInput,
    #[serde(default)]
    pub tokens: ReadyInput,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ReadyPolicies {
    pub domains: usize,
    pub rules: usize,
    /// The number of problems because of which changed policies are not in force.
    pub problem_count: usize,
    pub problem_kinds: Vec<String>,
    /// The texts, for those who may see them.
    #[serde(default)]
    pub problems: Vec<String>,
    /// The number of overlays that no limit meets.
    #[serde(default)]
    pub unmet_overlay_count: usize,
    /// The places of the first of them.
    #[serde(default)]
    pub unmet_overlays: Vec<String>,
    /// The state of the control plane, if policies come from one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<Value>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ReadyOverrides {
    pub in_force: usize,
    pub unused: usize,
    /// Whether the store was read for them.
    pub read: bool,
    pub problem: Option<String>,
}

/// Why the newest rows, callers or tokens are not in force.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ReadyInput {
    pub problem_count: usize,
    /// The first texts, for those who may see them.
    #[serde(default)]
    pub problems: Vec<String>,
}
