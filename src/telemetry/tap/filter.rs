//! The filter of a tap.

use weir_engine::Group;
use weir_engine::observer::{AnsweredRequest, DecisionResult, DescriptorVerdict};

pub const VERDICTS: [&str; 4] = ["ok", "over", "shadow", "error"];

/// The conditions of a tap. An unset part matches every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pub domain: Option<String>,
    /// The path of a rule that one of its descriptors matched.
    pub rule: Option<String>,
    /// Keys and values of one of its descriptors, all of them and in any order.
    pub entries: Vec<(String, String)>,
    /// One of [`VERDICTS`]. `shadow`: one of its descriptors is over, and shadow mode lets it pass.
    pub verdict: Option<&'static str>,
}

impl Filter {
    /// Whether a request matches. The cheapest part is checked first.
    pub(super) fn wants(&self, request: &dyn AnsweredRequest) -> bool {
        self.domain.as_deref().is_none_or(|domain| domain == request.domain())
            && self.verdict.is_none_or(|verdict| has_verdict(request, verdict))
            && (self.rule.is_none() && self.entries.is_empty()
                || Group::all(request.descriptors()).any(|group| self.wants_descriptor(request, group)))
    }

    fn wants_descriptor(&self, request: &dyn AnsweredRequest, group: Group) -> bool {
        let has_rule = |path: &str| request.rule(group).is_some_and(|rule| *rule.path == *path);
        let entries = request.entries(group);
        self.rule.as_deref().is_none_or(has_rule)
            && self.entries.iter().all(|(key, value)| {
                entries.iter().any(|entry| entry.key == key.as_str() && entry.value == value.as_str())
            })
    }
}

pub(super) const fn word(result: DecisionResult) -> &'static str {
    match result {
        DecisionResult::Ok | DecisionResult::UnknownDomain => "ok",
        DecisionResult::OverLimit => "over",
        DecisionResult::Invalid
        | DecisionResult::NoPolicies
        | DecisionResult::NotAllowed
        | DecisionResult::StoreFailed => "error",
    }
}

fn has_verdict(request: &dyn AnsweredRequest, verdict: &str) -> bool {
    let shadow = DescriptorVerdict::Shadow;
    if verdict == shadow.name() {
        return Group::all(request.descriptors()).any(|group| request.descriptor(group).verdict == Some(shadow));
    }
    word(request.result()) == verdict
}
