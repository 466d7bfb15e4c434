//! The standard environment variables of OpenTelemetry, `OTEL_*`, as settings of weir.
//!
//! [`read`] makes a layer of settings below weir's own file, environment and command line. Only `OTEL_SDK_DISABLED`
//! overrides those. An empty variable counts as unset. An invalid value is a problem of the layer, except for
//! unsupported propagators: those are a note for the log. Not here: the settings (settings/traces.rs,
//! settings/metrics_export.rs).

use std::collections::BTreeMap;
use std::ffi::OsString;

use weir_text::percent_decoded;

use super::envoy_ratelimit::Note;
use super::traces::OWN_ATTRIBUTES;
use super::value::set;
use crate::Layer;

/// The result of reading the environment.
pub struct OtelVariables {
    /// The settings of the variables. weir's own settings override them.
    pub settings: Layer,
    /// The layer that overrides all others.
    pub last: Layer,
    /// Notes for the log.
    pub notes: Vec<Note>,
}

/// Whether the variables of OpenTelemetry alone can enable traces and the export of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnsOn {
    /// `OTEL_TRACES_EXPORTER` or the endpoint of a collector enables traces; `OTEL_METRICS_EXPORTER` enables the
    /// export.
    Yes,
    /// They cannot: for weir as `ratelimit`, `TRACING_ENABLED` decides.
    No,
}

const PREFIX: &str = "OTEL_";
/// Propagators that weir accepts and ignores. Decisions do not use baggage, and weir calls no service that could
/// receive it.
const PROPAGATORS_WITHOUT_EFFECT: [&str; 4] = ["baggage", "jaeger", "ottrace", "xray"];
/// The endpoint of all signals, and those of one signal, which win.
const ALL_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const METRICS_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
/// Of one signal, weir reads only the endpoint: signals share everything else.
const ONE_SIGNAL: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_METRICS_"];
/// Reads the environment of a process, [`std::env::vars_os`]. Variables of other names are ignored.
pub fn read(environment: impl IntoIterator<Item = (OsString, OsString)>, turns_on: TurnsOn) -> OtelVariables {
    let mut mapping = OtelMapping {
        given: BTreeMap::new(),
        reading: OtelVariables { settings: Layer::default(), last: Layer::default(), notes: Vec::new() },
    };
    for (name, text) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
        match text.into_string() {
            Ok(text) if text.trim().is_empty() => {}
            Ok(text) => drop(mapping.given.insert(name.to_owned(), text.trim().to_owned())),
            Err(_) => mapping.reading.settings.refuse(name, "not UTF-8"),
        }
    }
    if mapping.text("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        let mut last = Layer::default();
        last.flag("tracing.exporter", "none", "OTEL_SDK_DISABLED");
        last.flag("metrics.exporter", "none", "OTEL_SDK_DISABLED");
        return OtelVariables { settings: Layer::default(), last, notes: Vec::new() };
    }
    if turns_on == TurnsOn::Yes {
        mapping.exporter();
        mapping.metrics_exporter();
    }
    mapping.collector();
    mapping.metrics();
    mapping.resource();
    mapping.sampler();
    mapping.batches();
    mapping.propagators();
    mapping.reading
}

/// Maps the variables to settings.
struct OtelMapping {
    given: BTreeMap<String, String>,
    reading: OtelVariables,
}

impl OtelMapping {
    fn text(&self, name: &str) -> Option<&str> {
        self.given.get(name).map(String::as_str)
    }

    /// The name and text of the first of these variables that is set.
    fn first(&self, names: [&'static str; 2]) -> Option<(&'static str, String)> {
        names.into_iter().find_map(|name| Some((name, self.text(name)?.to_owned())))
    }

    fn put(&mut self, variable: &str, setting: &str, text: &str) {
        self.reading.settings.flag(setting, text, variable);
    }

    fn exporter(&mut self) {
        const EXPORTER: &str = "OTEL_TRACES_EXPORTER";
        if let Some(text) = self.text(EXPORTER).map(str::to_owned) {
            return self.put(EXPORTER, "tracing.exporter", &text);
        }
        if let Some((variable, _)) = self.first([TRACES_ENDPOINT, ALL_ENDPOINT]) {
            self.put(variable, "tracing.exporter", "otlp");
        }
    }

    fn collector(&mut self) {
        const TIMEOUT: &str = "OTEL_EXPORTER_OTLP_TIMEOUT";
        const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
        self.endpoint([TRACES_ENDPOINT, ALL_ENDPOINT], "tracing.otlp.endpoint", "/v1/traces");
        for (variable, setting) in [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "tracing.otlp.protocol"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "tracing.otlp.compression"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "tracing.otlp.tls.ca_file"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "tracing.otlp.tls.cert_file"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "tracing.otlp.tls.key_file"),
        ] {
            if let Some(text) = self.text(variable).map(str::to_owned) {
                self.put(variable, setting, &text);
            }
        }
        if let Some(text) = self.text(TIMEOUT).map(str::to_owned) {
            self.milliseconds(TIMEOUT, "tracing.otlp.timeout", &text);
        }
        if let Some(text) = self.text(HEADERS).map(str::to_owned) {
            self.headers(HEADERS, &text);
        }
        for name in self.given.keys() {
            let rest = ONE_SIGNAL.iter().find_map(|prefix| name.strip_prefix(prefix));
            if let Some(rest) = rest.filter(|rest| *rest != "ENDPOINT") {
                let text = format!("has no effect: set OTEL_EXPORTER_OTLP_{rest}, for traces and metrics");
                self.reading.notes.push(Note { variable: name.clone(), text });
            }
        }
    }

    fn endpoint(&mut self, names: [&'static str; 2], setting: &str, path: &str) {
        let Some((variable, text)) = self.first(names) else { return };
        let url = endpoint(variable, &text, self.text("OTEL_EXPORTER_OTLP_INSECURE"), path);
        self.put(variable, setting, &url);
    }

    /// `prometheus` is ignored: weir always serves /metrics.
    fn metrics_exporter(&mut self) {
        const EXPORTER: &str = "OTEL_METRICS_EXPORTER";
        let Some(text) = self.text(EXPORTER).map(str::to_owned) else { return };
        let mut others = text.split(',').map(str::trim).filter(|word| !word.is_empty() && *word != "prometheus");
        match (others.next(), others.next()) {
            (None, _) => self.put(EXPORTER, "metrics.exporter", "none"),
            (Some(exporter), None) => self.put(EXPORTER, "metrics.exporter", exporter),
            (Some(_), Some(_)) => self.put(EXPORTER, "metrics.exporter", &text),
        }
    }

    fn metrics(&mut self) {
        const INTERVAL: &str = "OTEL_METRIC_EXPORT_INTERVAL";
        if let Some(text) = self.text(INTERVAL).map(str::to_owned) {
            self.milliseconds(INTERVAL, "metrics.export_interval", &text);
        }
        // If only the endpoint of all signals is set, it becomes that of traces, from which that of metrics follows.
        if self.given.contains_key(METRICS_ENDPOINT) || self.given.contains_key(TRACES_ENDPOINT) {
            self.endpoint([METRICS_ENDPOINT, ALL_ENDPOINT], "metrics.otlp.endpoint", "/v1/metrics");
        }
    }

    fn headers(&mut self, variable: &'static str, text: &str) {
        let mut headers: Vec<(String, String)> = Vec::new();
        for (key, value) in pairs(text) {
            if value.contains(',') {
                // The value may be secret.
                return self.reading.settings.refuse(variable, &format!("the value of {key:?} contains a comma"));
            }
            set(&mut headers, key, value);
        }
        let headers: Vec<String> = headers.iter().map(|(key, value)| format!("{key}:{value}")).collect();
        self.put(variable, "tracing.otlp.headers", &headers.join(","));
    }

    fn resource(&mut self) {
        const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
        const NAME: &str = "OTEL_SERVICE_NAME";
        let name = self.text(NAME).map(str::to_owned);
        if let Some(name) = &name {
            self.put(NAME, "tracing.service_name", name);
        }
        let Some(text) = self.text(ATTRIBUTES).map(str::to_owned) else { return };
        let mut attributes: Vec<(String, String)> = Vec::new();
        for (key, value) in pairs(&text) {
            if value.contains(',') {
                let text = format!("skips {key:?}: its value contains a comma");
                self.reading.notes.push(Note { variable: ATTRIBUTES.to_owned(), text });
            } else {
                set(&mut attributes, key, value);
            }
        }
        for (attribute, setting) in OWN_ATTRIBUTES {
            let Some(at) = attributes.iter().position(|(key, _)| key == attribute) else { continue };
            let (_, value) = attributes.remove(at);
            if attribute != "service.name" || name.is_none() {
                self.put(ATTRIBUTES, setting, &value);
            }
        }
        if !attributes.is_empty() {
            let attributes: Vec<String> = attributes.iter().map(|(key, value)| format!("{key}={value}")).collect();
            self.put(ATTRIBUTES, "tracing.resource_attributes", &attributes.join(","));
        }
    }

    fn sampler(&mut self) {
        const SAMPLER: &str = "OTEL_TRACES_SAMPLER";
        const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
        let Some(sampler) = self.text(SAMPLER).map(str::to_owned) else { return };
        self.put(SAMPLER, "tracing.sampler", &sampler);
        if sampler.ends_with("traceidratio")
            && let Some(ratio) = self.text(ARGUMENT).map(str::to_owned)
        {
            self.put(ARGUMENT, "tracing.sample_ratio", &ratio);
        }
    }

    fn batches(&mut self) {
        for (variable, setting) in
            [("OTEL_BSP_SCHEDULE_DELAY", "tracing.delay"), ("OTEL_BSP_EXPORT_TIMEOUT", "tracing.export_timeout")]
        {
            if let Some(text) = self.text(variable).map(str::to_owned) {
                self.milliseconds(variable, setting, &text);
            }
        }
        for (variable, setting) in
            [("OTEL_BSP_MAX_QUEUE_SIZE", "tracing.queue"), ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "tracing.batch_max")]
        {
            if let Some(text) = self.text(variable).map(str::to_owned) {
                self.put(variable, setting, &text);
            }
        }
    }

    fn milliseconds(&mut self, variable: &'static str, setting: &str, text: &str) {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            self.put(variable, setting, &format!("{text}ms"));
        } else {
            self.reading.settings.refuse(variable, &format!("{text:?}: not a whole number of milliseconds"));
        }
    }

    fn propagators(&mut self) {
        const PROPAGATORS: &str = "OTEL_PROPAGATORS";
        let Some(text) = self.text(PROPAGATORS).map(str::to_owned) else { return };
        let mut used: Vec<&str> = Vec::new();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            // Both names of B3 enable both of its forms.
            let word = if word == "b3multi" { "b3" } else { word };
            if PROPAGATORS_WITHOUT_EFFECT.contains(&word) {
                let text = format!("names {word}, which weir does not read");
                self.reading.notes.push(Note { variable: PROPAGATORS.to_owned(), text });
            } else if !used.contains(&word) {
                used.push(word);
            }
        }
        let words = if used.is_empty() { "none".to_owned() } else { used.join(",") };
        self.put(PROPAGATORS, "tracing.propagators", &words);
    }
}

/// The URL of a signal: the endpoint of all signals with the signal's path, or the signal's own endpoint unchanged. An
/// endpoint without a scheme, which gRPC allows, uses TLS unless a variable makes it insecure.
fn endpoint(variable: &str, text: &str, insecure: Option<&str>, path: &str) -> String {
    let is_insecure = insecure.is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let scheme = match (text.contains("://"), is_insecure) {
        (true, _) => "",
        (false, true) => "http://",
        (false, false) => "https://",
    };
    let url = format!("{scheme}{text}");
    if variable == ALL_ENDPOINT {
        return format!("{}{path}", url.trim_end_matches('/'));
    }
    let authority = url.find("://").map_or(0, |at| at + 3);
    if url[authority..].contains('/') { url } else { format!("{url}/") }
}

/// `key=value` pairs, separated by commas, with values percent-encoded as in W3C Baggage. A part without a key is
/// skipped.
fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    text.split(',').filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        let key = key.trim();
        (!key.is_empty()).then(|| (key.to_owned(), percent_decoded(value.trim())))
    })
}

#[cfg(test)]
mod tests {
    use weir_engine::arith::Fraction;

    use super::*;
    use crate::{Sampler, Settings, Tracing};

    fn environment(variables: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        variables.iter().map(|(name, text)| (OsString::from(name), OsString::from(text))).collect()
    }

    fn loaded(variables: &[(&str, &str)], own: &[&str]) -> Result<(Tracing, Vec<String>), String> {
        let reading = read(environment(variables), TurnsOn::Yes);
        let mut layer = Layer::default();
        layer.set("policies.directory=policies");
        own.iter().for_each(|assignment| layer.set(assignment));
        let settings =
            Settings::load(&[reading.settings, layer, reading.last]).map_err(|problems| problems.to_string())?;
        let notes = reading.notes.iter().map(|note| format!("{} {}", note.variable, note.text)).collect();
        Ok((settings.tracing, notes))
    }

    fn tracing(variables: &[(&str, &str)]) -> Tracing {
        loaded(variables, &[]).unwrap().0
    }

    #[test]
    fn an_endpoint_or_the_exporter_turns_traces_on() {
        assert!(!tracing(&[]).enabled);
        assert!(!tracing(&[("OTEL_SERVICE_NAME", "limits")]).enabled);
        assert!(tracing(&[("OTEL_TRACES_EXPORTER", "otlp")]).enabled);
        assert!(tracing(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")]).enabled);
        assert!(tracing(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:4318")]).enabled);
        assert!(!tracing(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("OTEL_TRACES_EXPORTER", "none")]).enabled);
        assert!(!tracing(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]).enabled, "empty is unset");
        let reading = read(environment(&[("OTEL_TRACES_EXPORTER", "otlp")]), TurnsOn::No);
        assert_eq!(format!("{:?}", reading.settings), "{}");
    }

    #[test]
    fn the_switch_that_disables_wins_over_everything() {
        let variables =
            [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "what"), ("OTEL_BSP_MAX_QUEUE_SIZE", "x")];
        let (tracing, _) = loaded(&variables, &["tracing.exporter=otlp"]).unwrap();
        assert!(!tracing.enabled);
        let (tracing, _) = loaded(&[("OTEL_SDK_DISABLED", "no")], &["tracing.exporter=otlp"]).unwrap();
        assert!(tracing.enabled);
    }

    #[test]
    fn endpoints_become_urls_of_traces() {
        for (variable, text, url) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318", "http://c:4318/v1/traces"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/", "http://c:4318/v1/traces"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c/otlp/", "https://c/otlp/v1/traces"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317", "https://c:4317/v1/traces"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:4318", "http://c:4318/"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:4318/other", "http://c:4318/other"),
        ] {
            assert_eq!(tracing(&[(variable, text)]).otlp.endpoint.as_deref(), Some(url), "{variable}={text}");
        }
        let insecure = [("OTEL_EXPORTER_OTLP_ENDPOINT", "c:4317"), ("OTEL_EXPORTER_OTLP_INSECURE", "true")];
        assert_eq!(tracing(&insecure).otlp.endpoint.as_deref(), Some("http://c:4317/v1/traces"));
    }

    #[test]
    fn every_variable_has_its_setting_and_the_endpoint_of_traces_wins() {
        let tracing = tracing(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4318/v1/traces"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Basic%20eDp5, x-scope =7"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "cert.pem"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key.pem"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=no,service.namespace=edge,service.instance.id=i,k=a%20b,k2=c"),
            ("OTEL_SERVICE_NAME", "limits"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_BSP_SCHEDULE_DELAY", "1000"),
            ("OTEL_BSP_EXPORT_TIMEOUT", "2000"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "4096"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "64"),
            ("OTEL_PROPAGATORS", "b3multi"),
        ]);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let otlp = &tracing.otlp;
        assert_eq!(otlp.endpoint.as_deref(), Some("http://traces:4318/v1/traces"));
        assert!(otlp.is_grpc && otlp.gzip);
        assert_eq!(otlp.headers.0, [pair("authorization", "Basic eDp5"), pair("x-scope", "7")]);
        assert_eq!(otlp.timeout.as_millis(), 2_500);
        let files = [&otlp.ca_file, &otlp.cert_file, &otlp.key_file];
        assert_eq!(files.map(|file| file.as_deref().unwrap().to_str().unwrap()), ["ca.pem", "cert.pem", "key.pem"]);
        assert_eq!(tracing.service_name, "limits");
        assert_eq!(tracing.service_namespace.as_deref(), Some("edge"));
        assert_eq!(tracing.service_instance_id.as_deref(), Some("i"));
        assert_eq!(tracing.attributes, [pair("k", "a b"), pair("k2", "c")]);
        assert_eq!(tracing.sampler, Sampler { is_parent_based: false, ratio: Fraction::percent(25) });
        assert_eq!((tracing.delay.as_millis(), tracing.export_timeout.as_millis()), (1_000, 2_000));
        assert_eq!((tracing.queue, tracing.batch_max), (4_096, 64));
        assert_eq!((tracing.propagators.w3c, tracing.propagators.b3), (false, true));
    }

    #[test]
    fn an_argument_counts_only_for_a_ratio() {
        let sampler = |variables: &[(&str, &str)]| tracing(variables).sampler;
        let whole = Sampler { is_parent_based: true, ratio: Fraction::percent(100) };
        assert_eq!(sampler(&[("OTEL_TRACES_SAMPLER_ARG", "0.1")]), whole);
        assert_eq!(
            sampler(&[("OTEL_TRACES_SAMPLER", "parentbased_always_on"), ("OTEL_TRACES_SAMPLER_ARG", "0.1")]),
            whole
        );
        assert_eq!(sampler(&[("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")]), whole);
        let never = Sampler { is_parent_based: true, ratio: Fraction::percent(0) };
        assert_eq!(sampler(&[("OTEL_TRACES_SAMPLER", "parentbased_always_off")]), never);
    }

    #[test]
    fn weirs_own_settings_win() {
        let variables = [("OTEL_SERVICE_NAME", "theirs"), ("OTEL_BSP_MAX_QUEUE_SIZE", "4096")];
        let (tracing, _) = loaded(&variables, &["tracing.service_name=ours"]).unwrap();
        assert_eq!((tracing.service_name.as_str(), tracing.queue), ("ours", 4_096));
    }

    #[test]
    fn what_cannot_be_used_is_named_by_its_variable() {
        for (variable, text, expected) in [
            (
                "OTEL_EXPORTER_OTLP_PROTOCOL",
                "http/json",
                "OTEL_EXPORTER_OTLP_PROTOCOL: tracing.otlp.protocol = \"http/json\": must be grpc or http/protobuf",
            ),
            (
                "OTEL_EXPORTER_OTLP_TIMEOUT",
                "10s",
                "OTEL_EXPORTER_OTLP_TIMEOUT: \"10s\": not a whole number of milliseconds",
            ),
            (
                "OTEL_TRACES_EXPORTER",
                "zipkin",
                "OTEL_TRACES_EXPORTER: tracing.exporter = \"zipkin\": must be none or otlp",
            ),
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=secret%2Csecret",
                "OTEL_EXPORTER_OTLP_HEADERS: the value of \"authorization\" contains a comma",
            ),
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "ftp://c",
                "OTEL_EXPORTER_OTLP_ENDPOINT: tracing.otlp.endpoint: not a URL such as \
                 http://collector:4318",
            ),
            (
                "OTEL_BSP_MAX_QUEUE_SIZE",
                "0",
                "OTEL_BSP_MAX_QUEUE_SIZE: tracing.queue = \"0\": must be from 1 to 1000000 spans",
            ),
            (
                "OTEL_PROPAGATORS",
                "tracecontext,b4",
                "OTEL_PROPAGATORS: tracing.propagators = \"tracecontext,b4\": \"b4\" is not one of tracecontext, b3, none",
            ),
        ] {
            assert_eq!(loaded(&[(variable, text)], &[]).unwrap_err(), expected);
        }
    }

    #[test]
    fn propagators_and_attributes_that_weir_cannot_use_are_noted() {
        let (tracing, notes) = loaded(
            &[("OTEL_PROPAGATORS", "tracecontext,baggage,xray"), ("OTEL_RESOURCE_ATTRIBUTES", "a=1%2C2,b=3")],
            &[],
        )
        .unwrap();
        assert_eq!((tracing.propagators.w3c, tracing.propagators.b3), (true, false));
        assert_eq!(tracing.attributes, [("b".to_owned(), "3".to_owned())]);
        assert_eq!(
            notes,
            [
                "OTEL_RESOURCE_ATTRIBUTES skips \"a\": its value contains a comma",
                "OTEL_PROPAGATORS names baggage, which weir does not read",
                "OTEL_PROPAGATORS names xray, which weir does not read",
            ]
        );
    }

    fn metrics(variables: &[(&str, &str)]) -> (bool, Option<String>) {
        let reading = read(environment(variables), TurnsOn::Yes);
        let mut layer = Layer::default();
        layer.set("policies.directory=policies");
        let settings = Settings::load(&[reading.settings, layer, reading.last]).unwrap();
        (settings.metrics.export.enabled, settings.metrics.export.endpoint(&settings.tracing.otlp).unwrap())
    }

    #[test]
    fn the_exporter_of_metrics_turns_their_export_on() {
        const ON: (&str, &str) = ("OTEL_METRICS_EXPORTER", "otlp");
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/otlp");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:4318");
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "m:4318");
        for (variables, enabled, endpoint) in [
            (vec![], false, None),
            (vec![all], false, Some("http://c:4318/otlp/v1/metrics")),
            (vec![ON], true, None),
            (vec![("OTEL_METRICS_EXPORTER", "prometheus")], false, None),
            (vec![("OTEL_METRICS_EXPORTER", "prometheus,otlp")], true, None),
            (vec![ON, ("OTEL_SDK_DISABLED", "true")], false, None),
            (vec![ON, all], true, Some("http://c:4318/otlp/v1/metrics")),
            (vec![ON, all, traces], true, Some("http://c:4318/otlp/v1/metrics")),
            (vec![ON, traces], true, Some("http://t:4318/v1/metrics")),
            (vec![ON, all, traces, own], true, Some("https://m:4318/")),
            (vec![ON, own, ("OTEL_EXPORTER_OTLP_INSECURE", "true")], true, Some("http://m:4318/")),
        ] {
            assert_eq!(metrics(&variables), (enabled, endpoint.map(str::to_owned)), "{variables:?}");
        }
        let console = loaded(&[("OTEL_METRICS_EXPORTER", "console")], &[]).unwrap_err();
        assert_eq!(console, "OTEL_METRICS_EXPORTER: metrics.exporter = \"console\": must be none or otlp");
        let variables = [("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "a=b"), ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")];
        let (tracing, notes) = loaded(&variables, &[]).unwrap();
        assert_eq!(
            notes,
            [
                "OTEL_EXPORTER_OTLP_METRICS_HEADERS has no effect: set OTEL_EXPORTER_OTLP_HEADERS, for traces and metrics",
                "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT has no effect: set OTEL_EXPORTER_OTLP_TIMEOUT, for traces and metrics",
            ]
        );
        assert_eq!((tracing.otlp.headers.0.len(), tracing.otlp.timeout.as_secs()), (0, 10));
        let reading = read(environment(&[ON]), TurnsOn::No);
        let mut layer = Layer::default();
        layer.set("policies.directory=policies");
        assert!(!Settings::load(&[reading.settings, layer]).unwrap().metrics.export.enabled);
    }

    #[test]
    fn the_interval_of_metrics_is_in_milliseconds() {
        let reading = read(environment(&[("OTEL_METRIC_EXPORT_INTERVAL", "1500")]), TurnsOn::Yes);
        let mut layer = Layer::default();
        layer.set("policies.directory=policies");
        let settings = Settings::load(&[reading.settings, layer]).unwrap();
        assert_eq!(settings.metrics.export.interval, std::time::Duration::from_millis(1_500));
    }
}
