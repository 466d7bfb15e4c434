//! `/states` and `/state`.

use serde::{Deserialize, Serialize};
use weir_engine::Count;

/// `/states`: a page of the stored states of one rule.
#[derive(Debug, Serialize, Deserialize)]
pub struct StatePage {
    pub store: String,
    /// How values of callers are shown.
    pub values: String,
    pub states: Vec<StoredState>,
    /// Where the next page begins. None after the last page.
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct StoredState {
    pub descriptor: String,
    /// Whether the end of the descriptor is missing.
    pub cut: bool,
    /// The name of the limit, or its id.
    pub limit: String,
    /// The most hits that the limit can hold. None if it is unlimited at present.
    pub capacity: Option<Count>,
    pub used: Count,
    pub remaining: Option<Count>,
    /// The time until the state is empty.
    pub reset_after_us: u64,
    /// Whether the descriptor's row makes the limit unlimited at present.
    pub unlimited: bool,
}

/// `/state`: the limits of one descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub struct DescriptorStates {
    pub limits: Vec<DescriptorState>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct DescriptorState {
    pub key: String,
    pub algorithm: String,
    /// Hits per window. None if the limit is unlimited at present.
    pub requests: Option<Count>,
    pub window_us: u64,
    /// Whether the store has the key.
    pub stored: bool,
    pub remaining: Option<Count>,
    /// The time until the state is empty.
    pub reset_after_us: u64,
    pub unlimited: bool,
}
