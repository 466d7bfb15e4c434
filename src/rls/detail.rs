//! Details of a decision without a field on the wire: exact waits, for each status. [dt-1]
//!
//! `/json?detail=true` and dynamic metadata use the same names. Strict clients refuse unknown fields, so both are off
//! by default. Not here: the statuses themselves (convert.rs).

use pbjson_types::Struct;
use pbjson_types::value::Kind;
use serde_json::{Map, Value, json};
use weir_engine::Hits;
use weir_limiter::{Answer, Status};

use super::proto::RateLimitResponse;

/// The field of a status, and the key of the metadata's list of statuses.
const DETAIL: &str = "detail";

/// The detail of one status, if it has a limit: waits in whole microseconds, with `null` for a wait that never ends, and
/// whether the hits of its descriptor were charged. `at_latest` is present if the first wait is an upper bound [cc-4], the
/// hits of the limit if its status cannot have them [lm-8], amounts if the limit has one [lm-9], and `factor` if its rule weighs
/// hits [mt-12].
fn fields(status: &Status) -> Option<impl Iterator<Item = (&'static str, Value)>> {
    let (detail, limit) = (status.detail.as_ref()?, status.limit.as_ref());
    let at_latest = detail.fits_after.is_some_and(|wait| wait.is_bound);
    let large = limit.filter(|limit| limit.requests > Hits::MAX.into());
    let amount = limit.and_then(|limit| limit.amount.as_ref());
    let own = [
        ("algorithm", json!(detail.algorithm)),
        ("fits_after_us", json!(detail.fits_after.map(|wait| wait.us))),
        ("reset_after_us", json!(detail.reset_after)),
        ("wait_us", json!(detail.wait)),
        ("charged", json!(detail.charged)),
    ]
    .into_iter()
    .chain(at_latest.then_some(("at_latest", Value::Bool(true))))
    .chain(detail.factor.map(|factor| ("factor", json!(factor))));
    let large = large.map(|limit| [("requests", json!(limit.requests)), ("remaining", json!(status.remaining))]);
    let amounts = limit.zip(amount).map(|(limit, amount)| {
        [("amount", json!(amount.text(status.remaining))), ("limit_amount", json!(amount.text(limit.requests)))]
    });
    Some(own.chain(large.into_iter().flatten()).chain(amounts.into_iter().flatten()))
}

/// The details of an answer, for [`add_to_json`].
pub fn of(answer: &Answer) -> Vec<Option<Map<String, Value>>> {
    let named = |status| Some(fields(status)?.map(|(name, value)| (name.to_owned(), value)).collect());
    answer.statuses.iter().map(named).collect()
}

/// Adds the detail of its limit to each status of a JSON response.
///
/// # Errors
/// When the body is not a response with as many statuses as there are details.
pub fn add_to_json(body: &[u8], details: Vec<Option<Map<String, Value>>>) -> serde_json::Result<Vec<u8>> {
    let mut response: Map<String, Value> = serde_json::from_slice(body)?;
    if let Some(Value::Array(statuses)) = response.get_mut("statuses") {
        for (status, detail) in statuses.iter_mut().zip(details) {
            if let (Value::Object(status), Some(detail)) = (status, detail) {
                status.insert(DETAIL.to_owned(), Value::Object(detail));
            }
        }
    }
    serde_json::to_vec(&response)
}

/// The details of an answer as dynamic metadata: `{"weir": {"detail": [..]}}`, one for each status in order, and `null`
/// for a status without a limit. Numbers of a Struct are doubles, which hold every wait exactly.
pub fn metadata(answer: &Answer) -> Struct {
    let details = answer.statuses.iter().map(|status| match fields(status) {
        None => Kind::NullValue(0),
        Some(fields) => Kind::StructValue(Struct {
            fields: fields.map(|(name, value)| (name.to_owned(), kind(&value).into())).collect(),
        }),
    });
    let list = Kind::ListValue(pbjson_types::ListValue { values: details.map(Into::into).collect() });
    let ours = Kind::StructValue(Struct { fields: [(DETAIL.to_owned(), list.into())].into_iter().collect() });
    Struct { fields: [("weir".to_owned(), ours.into())].into_iter().collect() }
}

/// What is left of the limit of a status, and its hits: in its amount, or as numbers if its status cannot have them. None if the
/// dynamic metadata of the response has neither.
pub fn exact(response: &RateLimitResponse, status: usize) -> Option<[String; 2]> {
    let metadata = serde_json::to_value(response.dynamic_metadata.as_ref()?).ok()?;
    let detail = metadata.pointer(&format!("/weir/{DETAIL}/{status}"))?;
    let text = |name: &str| match detail.get(name)? {
        Value::String(text) => Some(text.clone()),
        number => number.as_f64().map(|number| number.to_string()),
    };
    let both = |[left, of]: [&str; 2]| Some([text(left)?, text(of)?]);
    both(["amount", "limit_amount"]).or_else(|| both(["remaining", "requests"]))
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
    use std::sync::Arc;

    use weir_engine::{Denomination, Unit};
    use weir_limiter::{Detail, FitsAfter, LimitInfo};

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

    /// The last status has a limit that the protocol cannot show.
    fn answer() -> Answer {
        let usd = Denomination::new("usd", 1_000_000).ok().map(Arc::new);
        let window = Some(Unit::Month.window());
        let limit = LimitInfo { requests: 10_000_000_000_000, window, name: None, amount: usd };
        let mut statuses: Vec<Status> = DETAILS.map(|detail| Status { detail, ..Status::default() }).into();
        (statuses[3].limit, statuses[3].remaining) = (Some(limit), 9_999_999_999_999);
        Answer { wait: 749_999, statuses: statuses.into(), ..Answer::default() }
    }

    #[test]
    fn a_response_in_json_has_the_detail_of_each_limit() {
        let body = br#"{"overallCode":"OK","statuses":[{"code":"OK"},{"code":"OK"},{"code":"OVER_LIMIT"},{"code":"OVER_LIMIT"}]}"#;
        let with = add_to_json(body, of(&answer())).unwrap();
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
                "at_latest": true, "requests": 10_000_000_000_000_u64, "remaining": 9_999_999_999_999_u64,
                "amount": "9999999.999999 usd", "limit_amount": "10000000.00 usd",
            }},
        ]});
        assert_eq!(with, expected);
    }

    #[test]
    fn metadata_says_the_same() {
        let metadata = metadata(&answer());
        let metadata = serde_json::to_value(&metadata).unwrap();
        let expected = json!({"weir": {"detail": [
            {"algorithm": "leaky_bucket", "fits_after_us": 250_001.0, "reset_after_us": 1_000_000.0, "wait_us": 749_999.0,
             "charged": true},
            null,
            {"algorithm": "gcra", "fits_after_us": null, "reset_after_us": 0.0, "wait_us": 0.0, "charged": false},
            {"algorithm": "concurrency", "fits_after_us": 9.0, "reset_after_us": 9.0, "wait_us": 0.0, "charged": false,
             "at_latest": true, "requests": 1e13, "remaining": 9_999_999_999_999.0, "amount": "9999999.999999 usd",
             "limit_amount": "10000000.00 usd"},
        ]}});
        assert_eq!(metadata, expected);
    }
    #[test]
    fn a_response_has_exact_numbers_only_by_its_metadata() {
        let response = |answer: &Answer| RateLimitResponse {
            dynamic_metadata: Some(metadata(answer)),
            ..RateLimitResponse::default()
        };
        let amounts = ["9999999.999999 usd", "10000000.00 usd"].map(str::to_owned);
        assert_eq!(exact(&response(&answer()), 3), Some(amounts));
        let mut plain = answer();
        if let Some(limit) = &mut plain.statuses[3].limit {
            limit.amount = None;
        }
        assert_eq!(exact(&response(&plain), 3), Some(["9999999999999", "10000000000000"].map(str::to_owned)));
        for status in [0, 1, 4] {
            assert_eq!(exact(&response(&answer()), status), None, "{status}");
        }
        assert_eq!(exact(&RateLimitResponse::default(), 3), None);
    }
}
