//! One report: the answers of `/top` and `/readyz` as limits and keys.
//!
//! Names and values can come from callers, so every text is escaped for the terminal here.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use weir_api::ready::Ready;
use weir_api::top::{BusyCaller, BusyLimit, ByOnError, LimitDenials, Requests, Top};
pub(super) use weir_api::top::{Leases, Store};
use weir_engine::words::printable;
use weir_engine::{Denomination, Role};

use crate::admin::{AdminServer, Bounds, Expected, NoAnswer, encoded};
use crate::token::Token;

/// `/top` answers with less than 2 MiB, and `/readyz` with 100 problems at most.
const BOUNDS: Bounds = Bounds { bytes_max: 8 << 20, timeout: Duration::from_secs(5) };
/// The longest text of a cell, in characters.
const CELL_CHARS_MAX: usize = 256;
const TOP: &str = "/top?limits=64&keys=16";
const READYZ: &str = "/readyz";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// The time of the server's clock, in milliseconds since 1970.
    pub(super) now_ms: u64,
    /// `ready`, or the phase.
    pub(super) state: String,
    pub(super) is_ready: bool,
    pub(super) store: Store,
    /// Domains, rules and problems of the policies.
    pub(super) policies: [usize; 3],
    pub(super) overrides: usize,
    pub(super) leases: Leases,
    /// The interval of the rates; 0 if there was no earlier report.
    pub(super) interval_ms: u64,
    /// Requests that passed, were over a limit, and failed.
    pub(super) requests: [Rate; 3],
    /// Descriptors that `on_error: local` decided, and those that nothing decided.
    pub(super) local: Rate,
    pub(super) nobody: Rate,
    /// p50 and p99 of the times of decisions, in microseconds.
    pub(super) times_us: [Option<u64>; 2],
    pub(super) uptime_s: u64,
    pub(super) limits: Vec<ShownLimit>,
    pub(super) keys: Vec<ShownKey>,
    pub(super) callers: Vec<ShownCaller>,
    /// The interval of denials, in minutes.
    pub(super) minutes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShownLimit {
    pub(super) name: Name,
    pub(super) hits: Rate,
    pub(super) denied: Rate,
    /// Requests over the limit in the last minutes.
    pub(super) denials: u64,
    /// The last of them passed: the limit is in shadow mode.
    pub(super) is_shadow: bool,
    /// The unit in which people read its hits.
    pub(super) amount: Option<Denomination>,
}

impl ShownLimit {
    /// A rate of its hits: in tenths, or as an amount.
    pub(super) fn rate(&self, rate: Rate) -> String {
        match (&self.amount, rate.0) {
            (Some(amount), Some(tenths)) => amount.text(tenths / 10),
            _ => rate.to_string(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShownCaller {
    pub(super) name: String,
    pub(super) requests: Rate,
    pub(super) refused: Rate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShownKey {
    pub(super) name: Name,
    pub(super) descriptor: String,
    /// The row behind its last denial; empty for the default plan and rules without rows.
    pub(super) row: String,
    /// The lower and the upper bound of its denials.
    pub(super) denials: [u64; 2],
    /// The time since its last denial.
    pub(super) last_ms: u64,
    pub(super) is_shadow: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) domain: String,
    pub(super) rule: String,
    pub(super) limit: String,
}

/// A rate in tenths per second. None if it is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rate(pub(super) Option<u64>);

/// Asks for a report. The server filters too, because it has more keys than it sends.
/// Fails if there is no usable answer.
pub(super) async fn ask(server: &AdminServer, token: &Token, filter: &str) -> Result<Report, NoAnswer> {
    let path = if filter.is_empty() { TOP.to_owned() } else { format!("{TOP}&filter={}", encoded(filter)) };
    let top: Top = server.json(&path, token, Expected::Ok, BOUNDS).await?;
    let ready: Ready = server.json(READYZ, token, Expected::OkOrUnready, BOUNDS).await?;
    Ok(Report::new(top, &ready))
}

impl Report {
    fn new(top: Top, ready: &Ready) -> Self {
        let interval_ms = top.busiest.interval_ms;
        let rate = |count| Rate::of(count, interval_ms);
        // By full names, because displayed names may be cut.
        let mut limits: BTreeMap<[String; 3], ShownLimit> = BTreeMap::new();
        for BusyLimit { domain, rule, limit, hits, over_limit_hits, amount } in top.busiest.limits {
            let name = Name::new(&domain, &rule, &limit);
            let amount = amount.and_then(|amount| Denomination::new(&amount.unit, amount.scale).ok());
            let (hits, denied) = (rate(hits), rate(over_limit_hits));
            let shown = ShownLimit { name, hits, denied, amount, ..ShownLimit::default() };
            limits.insert([domain, rule, limit], shown);
        }
        let mut keys = Vec::new();
        for limited in top.limited.limits {
            let name = Name::new(&limited.domain, &limited.rule, &limited.limit);
            let is_shadow = limited.role == Role::Shadow.name();
            for key in limited.keys {
                keys.push(ShownKey {
                    name: name.clone(),
                    descriptor: cell(&key.descriptor),
                    row: cell(key.row.as_deref().unwrap_or_default()),
                    denials: [key.denials_min, key.denials_max],
                    last_ms: top.limited.now_ms.saturating_sub(key.last_ms),
                    is_shadow,
                });
            }
            // The rate of an idle limit is 0.
            let idle = || ShownLimit { name, hits: rate(0), denied: rate(0), ..ShownLimit::default() };
            let LimitDenials { domain, rule, limit, denials, .. } = limited;
            let shown = limits.entry([domain, rule, limit]).or_insert_with(idle);
            (shown.denials, shown.is_shadow) = (denials, is_shadow);
        }
        keys.sort_by(|one, other| other.denials.cmp(&one.denials).then_with(|| one.descriptor.cmp(&other.descriptor)));
        let of_caller = |BusyCaller { caller, requests, refused }| ShownCaller {
            name: cell(&caller),
            requests: rate(requests),
            refused: rate(refused),
        };
        let callers = top.busiest.callers.into_iter().map(of_caller).collect();
        let Requests { ok, over_limit, store_failed } = top.busiest.requests;
        let ByOnError { error, allow, deny, local } = top.busiest.on_error;
        let Store { name, answered, circuit, queue } = top.store;
        Self {
            now_ms: top.limited.now_ms,
            state: if ready.ready { "ready".to_owned() } else { cell(&ready.phase) },
            is_ready: ready.ready,
            store: Store { name: cell(&name), answered, circuit: cell(&circuit), queue },
            policies: [ready.policies.domains, ready.policies.rules, ready.policies.problem_count],
            overrides: ready.overrides.in_force,
            leases: top.leases,
            interval_ms,
            requests: [ok, over_limit, store_failed].map(rate),
            local: rate(local),
            nobody: rate(error + allow + deny),
            times_us: [top.busiest.p50_us, top.busiest.p99_us],
            uptime_s: top.uptime_s,
            limits: limits.into_values().collect(),
            keys,
            callers,
            minutes: top.limited.minutes,
        }
    }

    /// Removes the rates. In a first report they are averages since the last report for any client.
    pub(super) fn without_rates(mut self) -> Self {
        self.interval_ms = 0;
        self.requests = Default::default();
        (self.local, self.nobody, self.times_us) = Default::default();
        for limit in &mut self.limits {
            (limit.hits, limit.denied) = Default::default();
        }
        for caller in &mut self.callers {
            (caller.requests, caller.refused) = Default::default();
        }
        self
    }

    /// The time of the server in UTC, such as `12:03:04`.
    pub(super) fn clock(&self) -> String {
        let seconds = self.now_ms / 1_000 % 86_400;
        format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
    }
}

impl Name {
    fn new(domain: &str, rule: &str, limit: &str) -> Self {
        Self { domain: cell(domain), rule: cell(rule), limit: cell(limit) }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.domain, self.rule, self.limit)
    }
}

impl Rate {
    /// The rate of a count in an interval, rounded down to tenths.
    fn of(count: u64, interval_ms: u64) -> Self {
        Self(count.saturating_mul(10_000).checked_div(interval_ms))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(tenths) => f.pad(&format!("{}.{}", tenths / 10, tenths % 10)),
            None => f.pad("-"),
        }
    }
}

/// A text as one cell: cut, with control characters escaped.
fn cell(text: &str) -> String {
    match text.char_indices().nth(CELL_CHARS_MAX) {
        Some((end, _)) => format!("{}...", printable(&text[..end])),
        None => printable(text),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in super::super) fn sample(value: &str, interval_ms: u64) -> Report {
        let busy = |domain: &str, rule: &str, limit: &str, hits: u64, over: u64| json!({ "domain": domain, "rule": rule, "limit": limit, "hits": hits, "over_limit_hits": over });
        let top = json!({
            "now_ms": 1_800_000_123_456_u64,
            "minutes": 5,
            "step_ms": 5_000,
            "values": "shown",
            "denials_left_out": 0,
            "limits_left_out": 0,
            "limits": [
                { "domain": "shop", "rule": "user", "limit": "per-user", "role": "enforced", "denials": 1_234, "history": [],
                  "keys": [
                    { "descriptor": format!("user={value}"), "cut": false, "denials_min": 1_200, "denials_max": 1_234,
                      "first_ms": 1_800_000_000_000_u64, "last_ms": 1_800_000_123_000_u64 },
                    { "descriptor": "user=bob", "row": format!("plan {value}"), "cut": false, "denials_min": 34, "denials_max": 34,
                      "first_ms": 1_800_000_000_000_u64, "last_ms": 1_800_000_058_000_u64 },
                  ] },
                { "domain": "blog", "rule": "idle", "limit": "f60s", "role": "shadow", "denials": 7, "history": [],
                  "keys": [{ "descriptor": "idle=", "cut": false, "denials_min": 7, "denials_max": 7,
                             "first_ms": 1_800_000_000_000_u64, "last_ms": 1_799_999_900_000_u64 }] },
            ],
            "busiest": {
                "interval_ms": interval_ms,
                "requests": { "ok": 3_020, "over_limit": 155, "store_failed": 0 },
                "on_error": { "error": 1, "allow": 2, "deny": 0, "local": 24 },
                "p50_us": 100,
                "p99_us": 1_500,
                "limits": [
                    busy("shop", "tenant", "f3600s", 4_000, 0),
                    busy("shop", "user", "per-user", 302, 155),
                    busy("blog", value, "f60s", 9, 1),
                ],
                "callers": [
                    { "caller": "(others)", "requests": 0, "refused": 0 },
                    { "caller": "idle-team", "requests": 20, "refused": 0 },
                    { "caller": value, "requests": 3_015, "refused": 15 },
                ],
            },
            "instance": { "name": null, "version": "0.1.0" },
            "store": { "name": "redis", "answered": true, "circuit": "closed", "queue": 3 },
            "leases": { "keys": 1, "charged": 700, "used": 580 },
            "uptime_s": 97_500,
        });
        let ready = json!({
            "ready": true, "phase": "serving", "store": { "name": "redis", "answered": true, "circuit": "closed" },
            "policies": { "domains": 2, "rules": 4, "problem_count": 0, "problem_kinds": [], "problems": [] },
            "overrides": { "in_force": 2, "unused": 1, "read": true, "problem": null },
            "rows": { "problem_count": 0, "problems": [] },
        });
        Report::new(serde_json::from_value(top).unwrap(), &serde_json::from_value(ready).unwrap())
    }

    #[test]
    fn limits_asked_and_limits_over_are_joined() {
        let report = sample("ann", 2_000);
        let limits: Vec<_> = report
            .limits
            .iter()
            .map(|limit| format!("{} {} {} {}", limit.name.rule, limit.hits, limit.denied, limit.denials))
            .collect();
        assert_eq!(limits, ["ann 4.5 0.5 0", "idle 0.0 0.0 7", "tenant 2000.0 0.0 0", "user 151.0 77.5 1234"]);
        let keys: Vec<_> = report.keys.iter().map(|key| (key.descriptor.as_str(), key.denials, key.last_ms)).collect();
        assert_eq!(
            keys,
            [("user=ann", [1_200, 1_234], 456), ("user=bob", [34, 34], 65_456), ("idle=", [7, 7], 223_456)]
        );
        assert_eq!(report.clock(), "08:02:03");
        assert_eq!(sample("ann", 0).requests, [Rate(None); 3], "nothing to compare with");
        assert_eq!(Rate::of(u64::MAX, 1), Rate(Some(u64::MAX)));
        let amount = Denomination::new("usd", 1_000_000).ok();
        let dollars = ShownLimit { amount, ..ShownLimit::default() };
        assert_eq!((dollars.rate(Rate(Some(125_000_009))), dollars.rate(Rate(None))), ("12.50 usd".into(), "-".into()));
    }

    #[test]
    fn a_first_report_has_no_rates_since_somebody_last_looked() {
        let report = sample("ann", 40_000).without_rates();
        assert_eq!((report.interval_ms, report.requests), (0, [Rate(None); 3]));
        assert!(report.limits.iter().all(|limit| limit.hits == Rate(None) && limit.denied == Rate(None)));
        assert_eq!(
            report.limits.iter().map(|limit| limit.denials).max(),
            Some(1_234),
            "denials are of the last minutes"
        );
    }

    #[test]
    fn a_text_is_cut_and_cannot_control_a_terminal() {
        let report = sample("\u{1b}]0;taken\u{7}\u{202e}\u{9b}2J\t\n", 1_000);
        let limit = report.limits.iter().find(|one| one.name.limit == "f60s" && one.denials == 0).unwrap();
        assert_eq!(limit.name.rule, "\\u{1b}]0;taken\\u{7}\\u{202e}\\u{9b}2J\\t\\n");
        assert_eq!(cell(&"\u{1b}".repeat(1_000)).len(), CELL_CHARS_MAX * 6 + 3);
    }
}
