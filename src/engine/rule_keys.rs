//! The keys of descriptors with their values in a rule. What `/policies`, `weir check` and `weir diff` show of a rule follows from
//! them, and whether two rules are the same.
//!
//! Not here: keys of its limits (limit.rs), and the key and the values that its path shows.

use super::charge::Role;
use super::limit::KeyValue::{self, Flag, Metadata, Names, Text};
use super::plans::Plans;
use super::policy::{Level, OnError, Rule, RuleSpec};
use super::weigh::Weigh;

impl Rule {
    /// The keys of its descriptor that apply to all of its limits.
    pub fn keys(&self) -> [(&'static str, KeyValue<'_>); 10] {
        // Each field is named, so that the compiler reports a new one.
        let RuleSpec {
            limits: _,
            unlimited,
            unlimited_name,
            role,
            is_quota,
            replaces,
            request_limit,
            on_error,
            metadata,
            rows,
            weigh,
        } = &self.spec;
        [
            ("unlimited", Flag(*unlimited)),
            ("name", Text(unlimited_name.as_deref())),
            ("shadow_mode", Flag(*role == Role::Shadow)),
            ("quota_mode", Flag(*is_quota)),
            ("rows", Text(rows.as_deref().map(Plans::default_plan))),
            ("metadata", Metadata(metadata.as_deref())),
            ("replaces", Names(replaces)),
            ("request_limit", Text(request_limit.text())),
            ("weigh", Text(weigh.as_deref().map(Weigh::text))),
            ("on_error", Text(on_error.map(OnError::name))),
        ]
    }
}

impl Level {
    /// The keys that a descriptor on the path has for itself.
    pub fn keys(&self) -> [(&'static str, KeyValue<'_>); 3] {
        let Self { key: _, value: _, share_threshold, detailed_metric, value_to_metric } = self;
        [
            ("share_threshold", Flag(*share_threshold)),
            ("detailed_metric", Flag(*detailed_metric)),
            ("value_to_metric", Flag(*value_to_metric)),
        ]
    }
}
