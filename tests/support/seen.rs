//! What an operator sees of a weir: /readyz, /metrics and the log. Not in here: what it should show.

use std::time::Instant;

use serde_json::Value;

use super::process::{LogLine, Weir};
use super::{http, served};

/// The log line where decisions begin to go by `on_error`.
pub const TROUBLE_BEGINS: &str = "a store does not answer: on_error applies";

/// The log line where a store answers again.
pub const TROUBLE_ENDS: &str = "stores answer again";

/// What /readyz says about the store, of a weir that is ready: which it must be whatever its store does.
pub fn store_of_ready(weir: &Weir) -> Value {
    let answer = http::get(weir.http, "/readyz").expect("an answer");
    assert_eq!(answer.status, 200, "readiness must not drop: {}", answer.body);
    let told: Value = serde_json::from_str(&answer.body).expect("JSON");
    told["store"].clone()
}

/// The most script calls by which a weir has read its overrides since an instant: one every 500 ms.
pub fn override_reads_max(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX) / 500 + 2
}

/// The value of one line of /metrics, named with its labels; 0 where there is none.
pub fn metric(weir: &Weir, series: &str) -> u64 {
    served::metric(weir.http, series).unwrap_or(0)
}

/// Calls to the store that gave no answer, of one kind.
pub fn errors(weir: &Weir, kind: &str) -> u64 {
    metric(weir, &format!("weir_store_errors_total{{kind=\"{kind}\"}}"))
}

/// Descriptors that were decided by one `on_error`.
pub fn fallbacks(weir: &Weir, action: &str) -> u64 {
    metric(weir, &format!("weir_on_error_total{{action=\"{action}\"}}"))
}

/// How many lines of the log have this message.
pub fn logged(weir: &Weir, message: &str) -> usize {
    weir.count_in_log(|line| line.message() == Some(message))
}

/// Whether a line is a warning that contains `text`.
pub fn warns(line: &LogLine, text: &str) -> bool {
    line.level() == Some("WARN") && line.raw().contains(text)
}
