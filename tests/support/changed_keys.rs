//! A change of each key of a rate limit, for tests that each key is shown.

/// A rate limit before and after a change of one key, for each key of a rate limit.
pub const CHANGED_KEYS: [(&str, &str, &str); 23] = [
    ("unit", "unit: hour, requests_per_unit: 5", "unit: day, requests_per_unit: 5"),
    ("requests_per_unit", "unit: hour, requests_per_unit: 5", "unit: hour, requests_per_unit: 6"),
    ("window", "requests_per_unit: 5, window: 1h", "requests_per_unit: 5, window: 2h"),
    ("rate", "rate: 5/h", "rate: 6/h"),
    ("algorithm", "rate: 5/h", "rate: 5/h, algorithm: gcra"),
    ("burst", "rate: 5/h, algorithm: gcra, burst: 2", "rate: 5/h, algorithm: gcra, burst: 3"),
    ("refill", "rate: 5/h, algorithm: token_bucket", "rate: 5/h, algorithm: token_bucket, refill: interval"),
    ("precision", "rate: 5/h, algorithm: sliding_window", "rate: 5/h, algorithm: sliding_window, precision: 30m"),
    ("anchor", "rate: 5/h", "rate: 5/h, anchor: first_hit"),
    ("calendar", "rate: 5/month", "rate: 5/month, calendar: true"),
    ("timezone", "rate: 5/day, calendar: true", "rate: 5/day, calendar: true, timezone: Europe/Berlin"),
    ("shadow", "rate: 5/h", "rate: 5/h, shadow: true"),
    ("from", "rate: 5/h", "rate: 5/h, from: 2030-01-01T00:00:00Z"),
    ("until", "rate: 5/h", "rate: 5/h, until: 2030-01-01T00:00:00Z"),
    ("drain", "rate: 5/h", "rate: 5/h, drain: true"),
    ("post_paid", "rate: 5/h", "rate: 5/h, post_paid: true"),
    ("hold", "rate: 5/h", "rate: 5/h, hold: true"),
    ("alert_at", "rate: 5/h", "rate: 5/h, alert_at: [80]"),
    ("lease", "rate: 5000/h", "rate: 5000/h, lease: 1s"),
    ("plans", "rate: 5/h, name: all", "rate: 5/h, name: all, plans: {gold: 9/h}"),
    ("unlimited", "rate: 5/h", "unlimited: true"),
    ("name", "rate: 5/h", "rate: 5/h, name: all"),
    ("replaces", "rate: 5/h", "rate: 5/h, replaces: [{name: other}]"),
];

/// A descriptor with this rate limit, as a line of a policy.
pub fn limited(key: &str, changed: &str, limit: &str) -> String {
    let rows = if changed == "plans" { ", rows: {default: free}" } else { "" };
    format!("  - {{key: {key}{rows}, rate_limit: {{{limit}}}}}\n")
}
