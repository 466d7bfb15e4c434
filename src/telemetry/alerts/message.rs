//! An alert as the JSON for a webhook.
//!
//! The outer form is that of Standard Webhooks: `type`, `timestamp` and `data`.

use serde_json::{Value, json};
use weir_text::instant_text;

use super::alert::Alert;

const TYPE: &str = "weir.limit.share_crossed";

/// The body. The same bytes for each attempt.
pub(super) fn body(alert: &Alert) -> String {
    let entries: Vec<Value> = alert.entries.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
    let Alert { id, domain, rule, limit, role, descriptor, share, requests, used, amounts, .. } = alert;
    let mut body = json!({
        "type": TYPE,
        "timestamp": instant_text(alert.at),
        "data": {
            "id": id,
            "domain": domain,
            "rule": rule,
            "limit": limit,
            "role": role,
            "descriptor": descriptor,
            "entries": entries,
            "share": share,
            "used": used,
            "requests": requests,
            "window_start": instant_text(alert.window_start),
            "window_end": instant_text(alert.window_end),
        },
    });
    if let Some([used, requests]) = amounts {
        body["data"]["amount"] = json!({ "used": used, "requests": requests });
    }
    body.to_string()
}
