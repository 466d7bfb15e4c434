//! `/policies`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_engine::Count;

use super::overrides::ShownOverride;

/// The rules in force. The server writes the lists of domains and rules piece by piece.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RulesInForce {
    pub domains: Vec<DomainInForce>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct DomainInForce {
    pub domain: String,
    /// None: the server's.
    pub charging: Option<String>,
    pub on_error: OnErrorInForce,
    /// In the order of their files.
    pub rules: Vec<RuleInForce>,
}

/// What happens if the store does not answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct OnErrorInForce {
    pub action: String,
    /// Where it is set: `rule`, `domain` or `server`.
    pub from: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct RuleInForce {
    /// The path of the rule.
    pub descriptor: String,
    pub place: String,
    pub role: String,
    /// None for a rule without limits, which needs no store.
    pub on_error: Option<OnErrorInForce>,
    pub limits: Vec<LimitInForce>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<PlansInForce>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<ShownOverride>,
    /// The keys that are set on the descriptors of the path, the rule's own last. Older servers do not send it.
    #[serde(default)]
    pub entries: Vec<Map<String, Value>>,
    /// All other keys of the descriptor.
    #[serde(flatten)]
    pub keys: Map<String, Value>,
}

/// The plans that a row can name.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlansInForce {
    pub default: String,
    pub plans: Vec<PlanInForce>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct PlanInForce {
    pub name: String,
    /// For each limit of the rule the limit of the plan; none if the plan makes it unlimited.
    pub limits: Vec<Option<LimitInForce>>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct LimitInForce {
    pub name: Option<String>,
    pub algorithm: String,
    pub requests: Count,
    pub window_us: u64,
    pub capacity: Count,
    pub id: String,
    /// The keys of the limit, and the parameters that its algorithm has.
    #[serde(flatten)]
    pub keys: Map<String, Value>,
}
