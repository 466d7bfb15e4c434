//! Details of a decision without a field on the wire: exact waits, for each status. [dt-1]
//!
//! `/json?detail=true` and dynamic metadata use the same names. Strict clients refuse unknown fields, so both are off
//! by default. Not here: the statuses themselves (convert.rs).

use pbjson_types::Struct;
use pbjson_types::value::Kind;
use serde_json::{Map, Value, json};
use weir_limiter::{Answer, Detail};

/// The field of a status, and the key of the metadata's list of statuses.
const DETAIL: &str = "detail";

/// The detail of one status: waits in whole microseconds, with `null` for a wait that never ends, and whether the hits
/// of its descriptor were charged. `at_latest` is present if the first wait is an upper bound [cc-4], and
/// `factor` if its rule weighs hits [mt-12].
fn fields(detail: &Detail) -> impl Iterator<Item = (&'static str, Value)> {
    let at_latest = detail.fits_after.is_some_and(|wait| wait.is_bound);
    [
        ("algorithm", json!(detail.algorithm)),
        ("fits_after_us", json!(detail.fits_after.map(|wait| wait.us))),
        ("reset_after_us", json!(detail.reset_after)),
        ("wait_us", json!(detail.wait)),
        ("charged", json!(detail.charged)),
    ]
    .into_iter()
    .chain(at_latest.then_some(("at_latest", Value::Bool(true))))
    .chain(detail.factor.map(|factor| ("factor", json!(factor))))
}

/// Adds the detail of its limit to each status of a JSON response.
///
/// # Errors
/// When the body is not a response with as many statuses as there are details.
pub fn add_to_json(body: &[u8], details: &[Option<Detail>]) -> serde_json::Result<Vec<u8>> {
    let mut response: Map<String, Value> = serde_json::from_slice(body)?;
    if let Some(Value::Array(statuses)) = response.get_mut("statuses") {
        for (status, detail) in statuses.iter_mut().zip(details) {
            if let (Value::Object(status), Some(detail)) = (status, detail) {
                let fields = fields(detail).map(|(name, value)| (name.to_owned(), value));
                status.insert(DETAIL.to_owned(), Value::Object(fields.collect()));
            }
        }
    }
    serde_json::to_vec(&response)
}

/// The details of an answer as dynamic metadata: `{"weir": {"detail": [..]}}`, one for each status in order, and `null`
/// for a status without a limit. Numbers of a Struct are doubles, which hold every wait exactly.
pub fn metadata(answer: &Answer) -> Struct {
    let details = answer.statuses.iter().map(|status| match &status.detail {
        None => Kind::NullValue(0),
        Some(detail) => Kind::StructValue(Struct {
            fields: fields(detail).map(|(name, value)| (name.to_owned(), kind(&value).into())).collect(),
        }),
    });
    let list = Kind::ListValue(pbjson_types::ListValue { values: details.map(Into::into).collect() });
    let ours = Kind::StructValue(Struct { fields: [(DETAIL.to_owned(), list.into())].into_iter().collect() });
    Struct { fields: [("weir".to_owned(), ours.into())].into_iter().collect() }
}

fn kind(value: &Value) -> Kind {
    match value {
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        _ => Kind::NullValue(0),
    }
}

#[cfg(test)]
mod tests {
    use weir_limiter::{FitsAfter, Status};

    use super::*;

    const DETAILS: [Option<Detail>; 4] = [
        Some(Detail {
            algorithm: "leaky_bucket",
            fits_after: Some(FitsAfter { us: 250_001, is_bound: false }),
            reset_after: 1_000_000,
            wait: 749_999,
            charged: true,
            factor: None,
        }),
        None,
        Some(Detail { algorithm: "gcra", fits_after: None, reset_after: 0, wait: 0, charged: false, factor: None }),
        Some(Detail {
            algorithm: "concurrency",
            fits_after: Some(FitsAfter { us: 9, is_bound: true }),
            reset_after: 9,
            wait: 0,
            charged: false,
            factor: None,
        }),
    ];

    #[test]
    fn a_response_in_json_has_the_detail_of_each_limit() {
        let body = br#"{"overallCode":"OK","statuses":[{"code":"OK"},{"code":"OK"},{"code":"OVER_LIMIT"},{"code":"OVER_LIMIT"}]}"#;
        let with = add_to_json(body, &DETAILS).unwrap();
        let with: Value = serde_json::from_slice(&with).unwrap();
        let expected = json!({"overallCode": "OK", "statuses": [
            {"code": "OK", "detail": {
                "algorithm": "leaky_bucket", "fits_after_us": 250_001, "reset_after_us": 1_000_000, "wait_us": 749_999,
                "charged": true,
            }},
            {"code": "OK"},
            {"code": "OVER_LIMIT", "detail": {
                "algorithm": "gcra", "fits_after_us": null, "reset_after_us": 0, "wait_us": 0, "charged": false,
            }},
            {"code": "OVER_LIMIT", "detail": {
                "algorithm": "concurrency", "fits_after_us": 9, "reset_after_us": 9, "wait_us": 0, "charged": false,
                "at_latest": true,
            }},
        ]});
        assert_eq!(with, expected);
    }

    #[test]
    fn metadata_says_the_same() {
        let statuses = DETAILS.map(|detail| Status { detail, ..Status::default() }).into_iter().collect();
        let metadata = metadata(&Answer { wait: 749_999, statuses, ..Answer::default() });
        let metadata = serde_json::to_value(&metadata).unwrap();
        let expected = json!({"weir": {"detail": [
            {"algorithm": "leaky_bucket", "fits_after_us": 250_001.0, "reset_after_us": 1_000_000.0, "wait_us": 749_999.0,
             "charged": true},
            null,
            {"algorithm": "gcra", "fits_after_us": null, "reset_after_us": 0.0, "wait_us": 0.0, "charged": false},
            {"algorithm": "concurrency", "fits_after_us": 9.0, "reset_after_us": 9.0, "wait_us": 0.0, "charged": false,
             "at_latest": true},
        ]}});
        assert_eq!(metadata, expected);
    }
}
