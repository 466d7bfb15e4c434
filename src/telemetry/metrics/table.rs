//! Every metric: its name, type, labels and unit, and what it counts. docs/metrics.md is generated from those of weir's own.
//!
//! A metric that is not here cannot be registered. Not here: the numbers (the other files, and app), and how the statistics of
//! envoyproxy/ratelimit become metrics (mapped.rs).

mod callers;
mod ratelimit;

use std::fmt::Write as _;

use self::callers::CALLERS;
use self::ratelimit::RATELIMIT;

weir_engine::named! {
    pub enum FamilyKind {
        /// They only rise, starting at 0 when weir starts.
        Counter = "counter",
        Gauge = "gauge",
        /// Counts of observations at or below bounds.
        Histogram = "histogram",
        Summary = "summary",
    }
}

#[derive(Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: FamilyKind,
    /// Its labels, in alphabetical order.
    pub labels: &'static [&'static str],
    pub unit: &'static str,
    pub help: &'static str,
    /// More for docs/metrics.md: values of labels, and when to look at it.
    pub more: &'static str,
}

const fn counter(name: &'static str, labels: &'static [&'static str], unit: &'static str) -> Metric {
    Metric { name, kind: FamilyKind::Counter, labels, unit, help: "", more: "" }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], unit: &'static str) -> Metric {
    Metric { kind: FamilyKind::Gauge, ..counter(name, labels, unit) }
}

const fn histogram(name: &'static str, labels: &'static [&'static str], unit: &'static str) -> Metric {
    Metric { kind: FamilyKind::Histogram, ..counter(name, labels, unit) }
}

impl Metric {
    const fn help(self, help: &'static str) -> Self {
        Self { help, ..self }
    }

    const fn more(self, more: &'static str) -> Self {
        Self { more, ..self }
    }
}

#[derive(Debug)]
pub struct Section {
    pub title: &'static str,
    /// When these metrics exist.
    pub about: &'static str,
    pub metrics: &'static [Metric],
}

pub const SECTIONS: [Section; 14] = [
    REQUESTS,
    LIMITS,
    ALERTS_SECTION,
    STORES,
    REDIS,
    MEMORY,
    POLICIES,
    XDS,
    CALLERS,
    STATISTICS,
    METRICS_EXPORT,
    TRACES,
    TAPS,
    PROCESS,
];

pub const REQUESTS_TOTAL: &str = "weir_requests_total";
pub const UNMATCHED: &str = "weir_unmatched_descriptors_total";
pub const WEIGHED_BY_DEFAULT: &str = "weir_weighed_by_default_total";
pub const HOLDS: &str = "weir_holds_total";
pub const HOLD_HITS: &str = "weir_hold_hits_total";
pub const ALERTS: &str = "weir_alerts_total";
pub const DECISION_DURATION: &str = "weir_decision_duration_seconds";
pub const STORE_DURATION: &str = "weir_store_duration_seconds";

const REQUESTS: Section = Section {
    title: "Requests",
    about: "The label `domain` has the domains of the policies in force. `(unknown)` stands for all others.",
    metrics: &[
        counter(REQUESTS_TOTAL, &["domain", "result"], "requests")
            .help("Requests by domain and by how their decision ended.")
            .more("`result` is `ok`, `over_limit` or `store_failed` (by `on_error: error`; its other actions count as `ok` or \
                   `over_limit`). The domain `(unknown)` has four results of its own: `unknown_domain` (no policy has the domain; it \
                   is probably misspelt), `invalid` (the request breaks a bound or cannot be read), `no_policies` (no policies were \
                   loaded yet, only with `policies.source: xds`), `not_allowed` (with `callers.file`: its caller may not send it; \
                   `weir_caller_requests_total` has the reason)."),
        counter(UNMATCHED, &["domain"], "descriptors")
            .help("Descriptors that met no rule, by domain. They are not limited.")
            .more("A misspelt key, in a policy or in Envoy's configuration, shows here. So does a descriptor that is \
                   deliberately without a rule. A descriptor with a limit of the request is not counted. `(unknown)` has the \
                   descriptors of domains that no policy has."),
        counter(WEIGHED_BY_DEFAULT, &["domain"], "descriptors")
            .help("Descriptors whose hits were weighed by the default factor, by domain.")
            .more("Of domains with [`weigh`](policies.md#weighed-hits). The value is new, misspelt or absent, or is meant to have the \
                   default. `weir tap --values shown` has the values."),
        histogram(DECISION_DURATION, &[], "seconds")
            .help("Time from a decoded request to its answer.")
            .more("Its buckets have exemplars with trace ids where tracing is on and the reader asks for OpenMetrics."),
    ],
};

const LIMITS: Section = Section {
    title: "Limits",
    about: "One series for each limit of the policies in force. `rule` is the path of the rule (`plan=free|path`), `limit` the \
            name of the limit, or its id where it has none. A `|`, `=` or `\\` of a key, and a `|` or `\\` of a value, has a \
            backslash before it in a path. Limits that come with requests count as rule and limit `(request)` of their domain. \
            `metrics.per_rule: off` leaves all of these out.",
    metrics: &[
        counter("weir_hits_total", &["domain", "limit", "rule"], "hits")
            .help("Hits that requests asked of a limit."),
        counter("weir_within_limit_hits_total", &["domain", "limit", "rule"], "hits")
            .help("Hits that were charged to a limit and were within it.")
            .more("Hits that a limit would have admitted, but that were not charged because another limit denied the request, \
                   count in `weir_hits_total` only. Of a report to a post-paid limit: the hits below the limit."),
        counter("weir_over_limit_hits_total", &["domain", "limit", "rule"], "hits")
            .help("Hits above a limit.")
            .more("Of a report: the hits above the limit, which are charged too."),
        counter("weir_near_limit_hits_total", &["domain", "limit", "rule"], "hits")
            .help("Hits within a limit and above near_limit_ratio of it.")
            .more("Of a charge that crosses the limit: the part between that ratio and the limit."),
        counter("weir_shadow_hits_total", &["domain", "limit", "rule"], "hits")
            .help("Hits that a limit in shadow mode, or with `shadow: true`, would have denied."),
        counter("weir_unknown_limit_fields_total", &["source"], "messages")
            .help("Messages with limits that have a field that weir does not know, by source.")
            .more("weir ignores such a field, so the limit may mean something else to its sender: install a newer weir. `source`: `grpc` for \
                   requests with a limit, `xds` for descriptors and limits of the control plane. The log has the number of a field, at \
                   most once a minute."),
        counter("weir_unused_request_limits_total", &["reason"], "limits")
            .help("Limits of requests that had no effect on the limits of a rule, by reason.")
            .more("Of rules with [`request_limit`](policies.md#limits-of-the-request). The limits of the rule kept their numbers. `reason`: `ignored` \
                   by the policy, `unlimited` or `concurrency` for a limit without a rate, `not_in_force` for a limit outside of its term or \
                   replaced, `calendar` for another unit than that of the limit's calendar, `bound` for numbers that the algorithm cannot \
                   have, `same_state` if another limit in force would have the same state."),
    ],
};

const ALERTS_SECTION: Section = Section {
    title: "Alerts",
    about: "Of limits with [`alert_at`](policies.md#alerts). The metrics of the webhook are there if `alerts.webhook_url` is set.",
    metrics: &[
        counter(ALERTS, &["domain", "limit", "rule", "share"], "crossings")
            .help("Crossings of a share of a limit by a key in a window, on this replica.")
            .more("`share` is in percent. The sum over all replicas counts each crossing once, but for the \
                   [cases in which two replicas report it](semantics.md#alerts-al). `metrics.per_rule: off` leaves it out."),
        counter("weir_alert_lost_answers_total", &[], "charges")
            .help("Charges of limits with alerts whose answer was lost.")
            .more("Redis did not answer in time, or the caller went away. A share that such a charge crossed may \
                   [never be reported](semantics.md#alerts-al) in this window."),
        counter("weir_alerts_dropped_total", &[], "alerts")
            .help("Alerts that were counted and neither logged nor sent, because too many waited.")
            .more("At most 1,024 wait. Only simultaneous crossings of very many keys reach this."),
        counter("weir_alert_webhook_alerts_total", &["result"], "alerts")
            .help("Alerts for the webhook, by result.")
            .more("`result` is `delivered`, `given_up` (attempts or time were used up, or weir ended) or `dropped` (no room in \
                   the queue). [Alert on the share of the last two](operations.md#weiralertsundelivered)."),
        counter("weir_alert_webhook_failures_total", &[], "attempts")
            .help("Attempts to deliver an alert to the webhook that failed.")
            .more("Each is tried again until the alert is given up."),
        gauge("weir_alert_webhook_waiting", &[], "alerts")
            .help("Alerts that wait for the webhook or are being delivered.")
            .more("At most `alerts.webhook_queue` and four."),
    ],
};

const STORES: Section = Section {
    title: "Stores",
    about: "With `store: memory` the histogram is empty, and `weir_store_errors_total` has the kind `too_heavy` alone.",
    metrics: &[
        histogram(STORE_DURATION, &[], "seconds")
            .help("Time that a store outside this process took for a decision.")
            .more("From the decoded request to the answer of Redis or its failure, waiting in the queue included. A request that asks several \
                   Redis or slots is several calls. Where its refunds are a second round, their time includes the first."),
        counter("weir_store_errors_total", &["kind"], "calls")
            .help("Calls to the store that gave no decision, by reason.")
            .more("[Every kind](stores.md#every-kind-of-failure), and whether the call may have been charged, is on the page \
                   for operators."),
        counter("weir_on_error_total", &["action"], "descriptors")
            .help("Descriptors whose store gave no answer, by the applied on_error.")
            .more("`action` is `error`, `allow`, `deny` or `local`. [Alert on their share of the \
                   requests](stores.md#when-redis-is-in-trouble)."),
        counter("weir_undone_total", &["result"], "requests")
            .help("Requests over several stores or slots that took charges back, by confirmation in time.")
            .more("They were denied or failed after a part of them was charged. `result` is `confirmed` or `unconfirmed`: a \
                   charge may then remain, which can only admit less."),
        counter(HOLDS, &["domain", "result"], "holds")
            .help("Holds, by domain and result.")
            .more("Of the domains with holds. `opened`: an admitted request charged its estimate. `settled`: a settle has charged what was \
                   used instead. `late`: the settle came after the window of the hold had ended, and gave nothing back. `again`: the store had \
                   fewer hits than the settle had to give back; the hold was settled before, or Redis has lost its state. A second settle \
                   that finds enough hits of others takes them and counts as `settled`: weir keeps no receipts. `lost`: a settle failed, or named a hold of another process or of a key that it does not meet; the estimate stays charged. `reported`: \
                   settles without a receipt, such as those of denied requests. [Opened less settled](semantics.md#holds-hd) are holds \
                   whose settle has not come in time."),
        counter(HOLD_HITS, &["domain", "kind"], "hits")
            .help("Hits that holds charged or gave back.")
            .more("`held` were charged when holds were opened, `given_back` were taken out of the states by settles, and `excess` were used \
                   beyond what was held. `weir_hits_total` has the first and the last."),
        counter("weir_leases_total", &["result"], "calls")
            .help("Calls to the store that charge hits of a hot key ahead, by result.")
            .more("Of limits with a [`lease`](policies.md#leases). `result` is `taken`; `denied`, if they did not fit; or `failed`, if the store \
                   gave no answer."),
        counter("weir_lease_hits_total", &["kind"], "hits")
            .help("Hits that were charged ahead, by their use when the lease ended.")
            .more("`leased` were charged. Of these, `used` admitted requests; `given_back` were taken back by the store; `ended` were left when \
                   their window ended; `lost` count until the reset although they are unused, because the store did not confirm that they were \
                   taken back. `lost` makes limits [deny early](operations.md#a-limit-denies-early)."),
        counter("weir_rows_total", &["event"], "rows")
            .help("Rows, by event.")
            .more("`read`: the row of a request was not in the cache, and was read with one more call. `asked_again`: a row had changed since it \
                   was read, and the decision was made again. `unfit`: no policy has the plan or the limits of the row, and the default \
                   plan counted. `foreign`: the value at a row's key was not written by weir. `written` and `removed`: by this \
                   process, for [operators](rows.md)."),
        gauge("weir_rows_known", &[], "rows")
            .help("Rows in the cache of this process, including absent ones.")
            .more("With Redis a [bounded cache](bounds.md); with the memory store all rows."),
        gauge("weir_rows_stored", &["store"], "rows")
            .help("Rows of customers in a store.")
            .more("`store`: `memory` for this process, with the rows of files, or `redis`. While policies have rows, weir looks at 1,000 keys of \
                   Redis a second, and sets the number when it has looked at all. Until then the series is absent; it stays absent if the ACL \
                   user of Redis has no `+scan`. [Alert when it falls by half](operations.md#weirrowslost)."),
        counter("weir_deny_cache_hits_total", &[], "requests")
            .help("Requests that the cache of denials denied, without a store call.")
            .more("With a cache of denials only."),
        gauge("weir_deny_cache_entries", &[], "keys")
            .help("Keys in the cache of denials, including ended ones that were not dropped yet.")
            .more("With a cache of denials only."),
    ],
};

const REDIS: Section = Section {
    title: "Redis",
    about: "With `store: redis` only. The label `address` comes from the settings or from the map of a cluster. A node that has \
            left its cluster is not shown any more.",
    metrics: &[
        gauge("weir_redis_circuit_open", &["address"], "runtimes")
            .help("Runtimes whose circuit breaker for this Redis is open.")
            .more("weir has a runtime for each core and one for HTTP. See \
                   [when Redis is in trouble](stores.md#when-redis-is-in-trouble)."),
        counter("weir_redis_circuit_opened_total", &["address"], "times")
            .help("How often a runtime's circuit breaker for this Redis opened.")
            .more("If it opens often and briefly, Redis is near its limit, or `redis.timeout` is too close to the time that Redis takes."),
        gauge("weir_redis_clock_difference_seconds", &[], "seconds")
            .help("The largest difference between the clock of a Redis server and that of this replica, in whole seconds.")
            .more("weir asks once a minute. The log names the server. [Alert on any](operations.md#weirclocksdiffer)."),
        gauge("weir_redis_connections", &[], "connections")
            .help("Open connections to Redis, of all runtimes."),
        counter("weir_redis_dial_errors_total", &["kind"], "connections")
            .help("Connections to Redis that could not be made, by reason.")
            .more("The [kinds](stores.md#every-kind-of-failure) are those of failures."),
        gauge("weir_redis_evicting_servers", &[], "servers")
            .help("Redis servers that evict states in use when they are full, by their `maxmemory` and `maxmemory-policy`.")
            .more("weir asks once a minute. The log names each. With `allkeys-*` they evict [rows](rows.md#where-rows-are-kept) too. [Alert on \
                   any](operations.md#weirredisevicts)."),
        gauge("weir_redis_queue", &[], "calls")
            .help("Calls that wait to be sent to Redis.")
            .more("Near `redis.queue`: Redis is too slow."),
        counter("weir_redis_batches_total", &[], "round trips")
            .help("Round trips to Redis that were answered."),
        counter("weir_redis_batched_calls_total", &[], "calls")
            .help("Calls in the round trips to Redis that were answered.")
            .more("Divided by the round trips: how many calls share one."),
    ],
};

const MEMORY: Section = Section {
    title: "Memory store",
    about: "With `store: redis` it is the store of `on_error: local`.",
    metrics: &[
        gauge("weir_keys", &[], "states")
            .help("States in the memory store, including expired ones that were not dropped yet."),
        counter("weir_evictions_total", &[], "states")
            .help("States that still mattered and were dropped because the memory store was full."),
        counter("weir_evicted_hits_total", &[], "hits")
            .help("Hits in the states that the full memory store dropped. As many more may be admitted.")
            .more("[Alert on their share of the requests](operations.md#weirevictslivestate)."),
    ],
};

const POLICIES: Section = Section {
    title: "Policies",
    about: "With `policies.source: xds` a load is a response of the control plane.",
    metrics: &[
        counter("weir_config_loads_total", &[], "loads")
            .help("Policies that were loaded and put in force."),
        counter("weir_config_load_errors_total", &[], "loads")
            .help("Changed policies that were refused. The last good ones stay in force.")
            .more("`weir_input_refused` shows whether they still are."),
        gauge("weir_config_last_load_success_timestamp_seconds", &[], "seconds since 1970")
            .help("When policies were last put in force, in seconds since 1970."),
        gauge("weir_policy_overlays", &["state"], "overlays")
            .help("Overlays of the policies in force, by whether a limit meets them.")
            .more("`met` or `unmet`. Only with `policies.overlay`. An unmet overlay has no effect: \
                   [correct its patterns](policies.md#overlays)."),
        gauge("weir_overrides", &["state"], "overrides")
            .help("Overrides that operators have set, by whether they are in force.")
            .more("`in_force`, or `unused`: they fit no rule of the policies in force; [alert on \
                   any](operations.md#weiroverridesunused). See [overrides](overrides.md)."),
        gauge("weir_input_refused", &["input"], "0 or 1")
            .help("Whether weir refuses or cannot read the newest input. Then the last good input stays in force.")
            .more("`input`: `policies` of the directory, and their overlays; `control_plane` for the last response with `policies.source: xds`; \
                   `certificate` for the files of the gRPC listener's TLS; `callers` for `callers.file`; `overrides`, which the store does not give, or gives with \
                   lines that are not overrides; `rows` of the files beside the policies; `tokens` of `admin.token_file`. Also for a file of callers or overlays that keeps changing. It is 0 again when the input is corrected. [Alert on \
                   any](operations.md#weirpolicyloadfailed)."),
    ],
};

const XDS: Section = Section {
    title: "Control plane",
    about: "With `policies.source: xds` only.",
    metrics: &[
        gauge("weir_xds_connected", &[], "0 or 1")
            .help("Whether there is a connection to the control plane.")
            .more("Alert when it is 0 for minutes: changes do not arrive."),
        counter("weir_xds_connections_total", &[], "connections")
            .help("Connections to the control plane that were made."),
        counter("weir_xds_failures_total", &[], "failures")
            .help("Connections to the control plane that could not be made, and streams that ended."),
        counter("weir_xds_accepted_total", &[], "responses")
            .help("Responses of the control plane that were put in force."),
        counter("weir_xds_refused_total", &[], "responses")
            .help("Responses of the control plane that were refused. The last good policies stay in force.")
            .more("`weir_input_refused` shows whether the last one was."),
        gauge("weir_xds_accepted_timestamp_seconds", &[], "seconds since 1970")
            .help("When a response of the control plane was last accepted, in seconds since 1970. 0 before the first."),
    ],
};

const STATISTICS: Section = Section {
    title: "Statistics and log",
    about: "The [statistics](telemetry.md#statistics-of-envoyproxyratelimit) are those of envoyproxy/ratelimit.",
    metrics: &[
        gauge("weir_dynamic_series", &[], "names")
            .help("Names of statistics with values of requests.")
            .more("At most `metrics.dynamic_series`."),
        counter("weir_dynamic_series_refused_total", &[], "counts")
            .help("Counts of statistics that had no room within `metrics.dynamic_series`, of names from requests.")
            .more("Raise `metrics.dynamic_series`, or take `detailed_metric` off a rule."),
        counter("weir_statsd_dropped_lines_total", &[], "lines")
            .help("Lines of statistics that did not reach the StatsD server.")
            .more("The connection broke, or a datagram was refused."),
        counter("weir_log_lines_lost_total", &["reason"], "lines")
            .help("Lines of the log that were not written, by reason.")
            .more("`queue_full` (the target is stuck or too slow), `write_failed` (a closed pipe, a full disk), `call_site` (one \
                   line of code logged more than 100 times in 10 s). Alert on the first two: the log has a hole."),
    ],
};

const METRICS_EXPORT: Section = Section {
    title: "Metrics by OTLP",
    about: "With `metrics.exporter: otlp` only. Decisions do not wait for a collector.",
    metrics: &[counter("weir_metrics_exports_total", &["result"], "exports")
        .help("Exports of all metrics to the collector, by result.")
        .more(
            "`ok`, or `failed`: the collector did not accept all of it. The next export has the same counts and more. See \
             [metrics by OTLP](telemetry.md#metrics-by-otlp).",
        )],
};

const TRACES: Section = Section {
    title: "Traces",
    about: "With `tracing.exporter: otlp` only. Decisions do not wait for a collector.",
    metrics: &[
        counter("weir_traces_spans_exported_total", &[], "spans")
            .help("Spans that the collector accepted."),
        counter("weir_traces_spans_dropped_total", &["reason"], "spans")
            .help("Spans that were dropped, by reason.")
            .more("`queue_full` (more than `tracing.queue` waited), `export_failed` (the collector did not accept their batch), \
                   `shutdown`. See [traces](telemetry.md#traces)."),
    ],
};

const TAPS: Section = Section {
    title: "Taps",
    about: "A [tap](admin.md#weir-tap) shows live requests to an operator.",
    metrics: &[
        gauge("weir_taps", &[], "taps")
            .help("Taps that are open now.")
            .more("At most 4."),
        counter("weir_tap_records_total", &[], "records")
            .help("Requests that matched a tap and were recorded, counted for each tap."),
        counter("weir_tap_lost_records_total", &[], "records")
            .help("Requests that matched a tap and were not recorded.")
            .more("There were more than `tap.records_per_second`, the reader is slow, or the request has more than 64 KiB of text."),
    ],
};

const PROCESS: Section = Section {
    title: "Process",
    about: "Those that begin with `process_` have the names that all clients of Prometheus use. They are there on Linux, also with \
            `metrics.weir_names: off`.",
    metrics: &[
        gauge("weir_build_info", &["commit", "version"], "always 1")
            .help("Always 1. Its labels say which build this is."),
        counter("process_cpu_seconds_total", &[], "seconds")
            .help("CPU time that the process has used, in seconds.")
            .more("User and system time of all threads."),
        gauge("process_max_fds", &[], "file descriptors")
            .help("The most file descriptors that the process may have open.")
            .more("The soft limit. The metric is absent where there is no limit."),
        gauge("process_open_fds", &[], "file descriptors").help("File descriptors that the process has open."),
        gauge("process_resident_memory_bytes", &[], "bytes").help("Memory of the process that is in RAM, in bytes."),
        gauge("process_start_time_seconds", &[], "seconds since 1970")
            .help("When the process started, in seconds since 1970."),
        gauge("process_threads", &[], "threads").help("Threads of the process."),
        gauge("process_virtual_memory_bytes", &[], "bytes").help("Address space of the process, in bytes."),
    ],
};

#[must_use]
pub fn metric(name: &str) -> Option<&'static Metric> {
    const ALL: &[Section] = &SECTIONS;
    ALL.iter().flat_map(|section| section.metrics).chain(RATELIMIT).find(|metric| metric.name == name)
}

/// docs/metrics.md.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(INTRODUCTION);
    for section in &SECTIONS {
        // Writing to a string cannot fail.
        let _ = writeln!(page, "\n## {}\n\n{}\n", section.title, section.about);
        page.push_str("| metric | type | labels | unit | meaning |\n| --- | --- | --- | --- | --- |\n");
        for Metric { name, kind, labels, unit, help, more } in section.metrics {
            let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
            let space = if more.is_empty() { "" } else { " " };
            let (kind, labels) = (kind.name(), labels.join(", "));
            let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {unit} | {help}{space}{more} |");
        }
    }
    page
}

const INTRODUCTION: &str = "\
# Metrics

Every metric of weir's own. This page is generated from `src/telemetry/metrics/table.rs`; after a change there, run
`cargo test --test service -- --ignored write_docs_metrics_md`.

```sh
curl localhost:8080/metrics
```

- The metrics are at `/metrics` of both HTTP listeners, and at `metrics.path` of `listen.metrics` if that is set.
- The format is Prometheus' text format, or OpenMetrics 1.0.0 if the reader's `Accept` header prefers it, as Prometheus' does.
- Only OpenMetrics has exemplars. To keep them, start Prometheus with `--enable-feature=exemplar-storage`.
- Labels come from policies, settings and the map of a Redis Cluster, never from callers. The number of series does not
  depend on what callers send.
- weir makes the text while the reader takes it, so a scrape of 100,000 rules holds no copy of it. weir shows no series
  of single limits with `metrics.per_rule: off`.
- Every metric is reset when weir restarts. The series of a rule or a domain end when it leaves the policies.

Alert rules are in [deploy/prometheus](../deploy/README.md#alerts), a dashboard in [deploy/grafana](../deploy/README.md#dashboard).
Begin with [what to watch](telemetry.md#what-to-watch). Metrics with the names of envoyproxy/ratelimit:
[statistics](telemetry.md#statistics-of-envoyproxyratelimit).
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_keeps_the_conventions_of_prometheus() {
        let mut names = Vec::new();
        for metric in SECTIONS.iter().flat_map(|section| section.metrics) {
            let Metric { name, kind, labels, unit, help, .. } = metric;
            assert_eq!(name.ends_with("_total"), *kind == FamilyKind::Counter, "{name}");
            assert!(name.starts_with("weir_") || name.starts_with("process_"), "{name}");
            assert!(help.ends_with('.') && !unit.is_empty(), "{name}: {help}");
            assert!(labels.is_sorted(), "{name}: {labels:?}");
            for base in ["seconds", "bytes"] {
                let is_in_name = name.trim_end_matches("_total").ends_with(base);
                assert_eq!(unit.starts_with(base), is_in_name, "{name}: {unit}");
            }
            assert!(!names.contains(name), "{name} twice");
            names.push(name);
        }
    }
}
