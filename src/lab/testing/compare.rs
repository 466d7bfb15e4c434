//! Compares answers with expectations.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;
use weir_engine::words::IN_FLIGHT;
use weir_engine::{Micros, Rule, Window, metadata};
use weir_limiter::{Answer, Status};
use weir_policies::test_file::{
    Ask, Expect, ExpectedHeader, ExpectedLimit, ExpectedStatus, Positioned, Range, Verdict,
};
use weir_rls::proto::rate_limit_response::DescriptorStatus;
use weir_rls::proto::{HeaderValue, RateLimitResponse};
use weir_text::spell;
use weir_text::yaml::Position;

use super::coverage::Load;
use super::{Decider, Difference};

pub(super) enum RequestResult {
    /// An answer, and the id of the rule that each descriptor met.
    Answer {
        answer: Box<Answer>,
        response: Box<RateLimitResponse>,
        rules: Vec<Option<u32>>,
        load: Rc<Load>,
        /// The verdict of limits on trial, if there are any.
        trial: Option<Verdict>,
    },
    Error(String),
}

impl RequestResult {
    /// Whether the request passes. None for an error.
    pub(super) const fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Answer { answer, .. } => Some(verdict(answer.denied)),
            Self::Error(_) => None,
        }
    }

    /// Whether the request was decided without any limit. A limit of the request counts as one.
    pub(super) fn meets_no_rule(&self, ask: &Ask) -> bool {
        let Self::Answer { rules, .. } = self else { return false };
        rules.iter().all(Option::is_none) && ask.descriptors.iter().all(|descriptor| descriptor.limit.is_none())
    }
}

pub(super) const fn verdict(is_over: bool) -> Verdict {
    if is_over { Verdict::Over } else { Verdict::Ok }
}

/// The word for an absent value, as in tests.
const NONE: &str = "none";

/// The differences of one answer. `step` is the place for expectations that the step does not state.
pub(super) fn compare(expect: &Expect, got: &RequestResult, step: Position) -> Vec<Difference> {
    let mut found = Differences::default();
    match (got, &expect.error) {
        (RequestResult::Error(text), Some(error)) => {
            found.check(error, "error", *text == error.value, Clone::clone, || text.clone());
        }
        (RequestResult::Error(text), None) => {
            let position = expect.answer.as_ref().map_or(step, |answer| answer.position);
            found.add(position, "answer", "an answer".to_owned(), format!("the error {text:?}"));
        }
        (RequestResult::Answer { answer, .. }, Some(error)) => {
            let got = format!("the answer {}", verdict(answer.denied).name());
            found.add(error.position, "error", format!("the error {:?}", error.value), got);
        }
        (RequestResult::Answer { answer, response, rules, load, trial }, None) => {
            found.answer(expect, answer, response);
            if let Some(expected) = &expect.trial {
                let word = |trial: &Option<Verdict>| trial.map_or(NONE, Verdict::name).to_owned();
                found.check(expected, "trial", *trial == expected.value, word, || word(trial));
            }
            let statuses = expect.statuses.iter().zip(answer.statuses.iter().zip(&response.statuses)).zip(rules);
            let is_single = answer.statuses.len() == 1;
            for (i, ((expected, status), rule)) in statuses.enumerate() {
                let prefix = if is_single { String::new() } else { format!("statuses[{i}].") };
                let rule = rule.and_then(|rule| load.policies.rules().get(rule as usize));
                let place = rule.and_then(|rule| load.places.get(rule.id as usize));
                found.status(&prefix, expected, status, rule, place.map(ToString::to_string).as_deref());
            }
        }
    }
    found.list
}

/// The limit that denied a request, or the one with the fewest remaining hits. None without a limit.
pub(super) fn decided_by(got: &RequestResult) -> Option<Decider> {
    let RequestResult::Answer { answer, rules, load, .. } = got else { return None };
    let limited = || answer.statuses.iter().zip(rules).filter(|(status, _)| status.limit.is_some());
    let denying = limited().find(|(status, _)| answer.denied && status.over && !status.is_quota);
    let (status, rule) = denying.or_else(|| limited().min_by_key(|(status, _)| status.remaining))?;
    let limit = status.limit.as_ref()?;
    let rule = rule.and_then(|rule| load.policies.rules().get(rule as usize));
    let unit = |hits: u64| limit.amount.as_ref().map_or_else(|| hits.to_string(), |unit| unit.text(hits));
    let path = rule.map_or("(request)", |rule| &*rule.path);
    let amount = amount(&unit(limit.requests), limit.window);
    Some(Decider {
        limit: match &limit.name {
            Some(name) => format!("{path} {amount} ({name})"),
            None => format!("{path} {amount}"),
        },
        place: rule.and_then(|rule| load.places.get(rule.id as usize)).map(ToString::to_string),
        remaining: status.remaining,
        left: unit(status.remaining),
        factor: status.detail.and_then(|detail| detail.factor),
        reset: status.until_reset.map_or_else(|| NONE.to_owned(), length),
    })
}

pub(super) fn count(expect: &Expect, passed: u64, denied: u64) -> Vec<Difference> {
    let mut found = Differences::default();
    for (what, expected, got) in [("passed", &expect.passed, passed), ("denied", &expect.denied, denied)] {
        if let Some(expected) = expected {
            found.check(expected, what, expected.value.has(got), ToString::to_string, || got.to_string());
        }
    }
    found.list
}

#[derive(Default)]
struct Differences {
    list: Vec<Difference>,
}

impl Differences {
    fn add(&mut self, position: Position, what: &str, expected: String, got: String) {
        self.list.push(Difference { position, what: what.to_owned(), expected, got });
    }

    fn check<T>(
        &mut self,
        expected: &Positioned<T>,
        what: &str,
        is_met: bool,
        written: impl Fn(&T) -> String,
        got: impl Fn() -> String,
    ) {
        if !is_met {
            self.add(expected.position, what, written(&expected.value), got());
        }
    }

    fn answer(&mut self, expect: &Expect, answer: &Answer, response: &RateLimitResponse) {
        if let Some(expected) = &expect.answer {
            let got = verdict(answer.denied);
            self.check(
                expected,
                "answer",
                got == expected.value,
                |word| word.name().to_owned(),
                || got.name().to_owned(),
            );
        }
        if let Some(expected) = &expect.retry_after {
            self.time(expected, "retry_after", answer.retry_after);
        }
        if let Some(expected) = &expect.delay {
            let is_met = expected.value.has(answer.wait);
            self.check(expected, "delay", is_met, |range| range.written(length), || length(answer.wait));
        }
        self.headers("headers", &expect.headers, &response.response_headers_to_add);
        self.headers("request_headers", &expect.request_headers, &response.request_headers_to_add);
        if let Some(expected) = &expect.metadata {
            let wanted = json_of_fields(&expected.value);
            let got = serde_json::to_value(&response.dynamic_metadata).unwrap_or(Value::Null);
            self.check(expected, "metadata", wanted == got, |_| wanted.to_string(), || got.to_string());
        }
    }

    fn headers(&mut self, what: &str, expected: &[ExpectedHeader], got: &[HeaderValue]) {
        for (name, expected) in expected {
            let got = got.iter().find(|header| header.key.eq_ignore_ascii_case(name)).map(|header| &header.value);
            let is_met = got == expected.value.as_ref();
            let shown = |value: Option<&String>| value.map_or_else(|| NONE.to_owned(), |value| format!("{value:?}"));
            self.check(expected, &format!("{what}.{name}"), is_met, |value| shown(value.as_ref()), || shown(got));
        }
    }

    fn status(
        &mut self,
        prefix: &str,
        expected: &ExpectedStatus,
        (status, sent): (&Status, &DescriptorStatus),
        rule: Option<&Rule>,
        place: Option<&str>,
    ) {
        if let Some(answer) = &expected.answer {
            let (what, got) = (format!("{prefix}answer"), verdict(status.over));
            self.check(answer, &what, got == answer.value, |word| word.name().to_owned(), || got.name().to_owned());
        }
        if let Some(path) = &expected.rule {
            let got = rule.map(|rule| &*rule.path);
            let is_met = got == path.value.as_deref();
            self.check(path, &format!("{prefix}rule"), is_met, or_none, || match (got, place) {
                (Some(path), Some(place)) => format!("{path}   {place}"),
                (got, _) => got.unwrap_or(NONE).to_owned(),
            });
        }
        if let Some(limit) = &expected.limit {
            let got = status.limit.as_ref().map(|limit| (limit.requests, limit.window));
            let text = |(requests, window): ExpectedLimit| amount(&requests.to_string(), window);
            let shown = |limit: &Option<ExpectedLimit>| limit.map_or_else(|| NONE.to_owned(), text);
            self.check(limit, &format!("{prefix}limit"), got == limit.value, shown, || shown(&got));
        }
        if let Some(name) = &expected.name {
            let got = sent.current_limit.as_ref().map(|limit| &*limit.name).filter(|name| !name.is_empty());
            let is_met = got == name.value.as_deref();
            self.check(name, &format!("{prefix}name"), is_met, or_none, || got.unwrap_or(NONE).to_owned());
        }
        if let Some(algorithm) = &expected.algorithm {
            let got = status.detail.map_or(NONE, |detail| detail.algorithm);
            self.check(algorithm, &format!("{prefix}algorithm"), got == algorithm.value, Clone::clone, || {
                got.to_owned()
            });
        }
        if let Some(remaining) = &expected.remaining {
            let is_met = remaining.value.has(status.remaining);
            let got = || status.remaining.to_string();
            self.check(remaining, &format!("{prefix}remaining"), is_met, ToString::to_string, got);
        }
        if let Some(reset) = &expected.reset {
            self.time(reset, &format!("{prefix}reset"), status.until_reset);
        }
    }

    fn time(&mut self, expected: &Positioned<Option<Range>>, what: &str, got: Option<Micros>) {
        let is_met = match (&expected.value, got) {
            (Some(range), Some(got)) => range.has(got),
            (expected, got) => expected.is_none() && got.is_none(),
        };
        let written = |range: &Option<Range>| range.map_or_else(|| NONE.to_owned(), |range| range.written(length));
        self.check(expected, what, is_met, written, || got.map_or_else(|| NONE.to_owned(), length));
    }
}

fn or_none(text: &Option<String>) -> String {
    text.clone().unwrap_or_else(|| NONE.to_owned())
}

fn length(us: Micros) -> String {
    spell(Duration::from_micros(us))
}

/// A limit in the short form of policies; `3 in flight` of requests.
fn amount(requests: &str, window: Option<Window>) -> String {
    match window.map(|window| (window, window.unit())) {
        None => format!("{requests} {IN_FLIGHT}"),
        Some((_, Some(unit))) => format!("{requests}/{}", unit.name()),
        Some((window, None)) => format!("{requests}/{}", length(window.us())),
    }
}

/// Metadata as JSON. All numbers are doubles, as in a protobuf struct.
fn json_of_fields(fields: &metadata::Fields) -> Value {
    let map: BTreeMap<String, Value> = fields.iter().map(|(name, value)| (name.to_string(), json_of(value))).collect();
    Value::Object(map.into_iter().collect())
}

fn json_of(value: &metadata::Value) -> Value {
    match value {
        metadata::Value::Null => Value::Null,
        metadata::Value::Bool(truth) => Value::Bool(*truth),
        metadata::Value::Number(digits) => digits.parse::<f64>().map_or(Value::Null, Value::from),
        metadata::Value::Text(text) => Value::String(text.to_string()),
        metadata::Value::List(items) => Value::Array(items.iter().map(json_of).collect()),
        metadata::Value::Map(fields) => json_of_fields(fields),
    }
}
