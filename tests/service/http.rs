//! The HTTP listeners as callers and operators see them: every path, and every status that it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};

use serde_json::{Value, json};
use weir_telemetry::metrics::table::SECTIONS;

use crate::support::authority::Authority;
use crate::support::http::{self, Answer};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2, name: per-user}
  - key: tenant
    value: acme
    descriptors:
      - key: path
        shadow_mode: true
        rate_limit: {unit: day, requests_per_unit: 5, algorithm: gcra, burst: 3}
  - key: staff
    rate_limit: {unlimited: true}
";

const ANN: &str = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;

fn get(address: SocketAddr, path: &str) -> Answer {
    http::get(address, path).expect("an answer")
}

fn json_of(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

#[test]
fn json_answers_200_and_then_429() {
    let served = Served::start(POLICY, &[]);
    let post = |body: &str| http::post_json(served.at.http, "/json", body).expect("an answer");
    for (status, code, remaining) in [(200, "OK", Some(1)), (200, "OK", None), (429, "OVER_LIMIT", None)] {
        let answer = post(ANN);
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let mut body = json_of(&answer);
        let told = body["statuses"][0].as_object_mut().expect("a status");
        let reset = told.remove("durationUntilReset").expect("a time");
        assert!(reset.as_str().is_some_and(|text| text.ends_with('s')), "{reset}");
        let limit = json!({"name": "per-user", "requestsPerUnit": 2, "unit": "YEAR"});
        let mut expected = json!({"code": code, "currentLimit": limit});
        if let Some(remaining) = remaining {
            expected["limitRemaining"] = json!(remaining);
        }
        assert_eq!(body, json!({"overallCode": code, "statuses": [expected]}));
    }
    let plain = http::request(served.at.http, "POST", "/json", &[("content-type", "text/plain")], ANN);
    assert_eq!(plain.expect("an answer").status, 429, "the content type does not matter");
}

#[test]
fn json_says_what_is_wrong_with_a_request() {
    let served = Served::start(POLICY, &[]);
    for (body, text) in [
        ("", "empty body"),
        ("{", "line 1 column 1"),
        (r#"{"domain":"shop","surprise":1}"#, "surprise"),
        (r#"{"domain":"shop"}"#, "rate limit descriptor list must not be empty"),
        (r#"{"descriptors":[{}]}"#, "rate limit domain must not be empty"),
        (
            r#"{"domain":"shop","descriptors":[{"limit":{"requestsPerUnit":1}}]}"#,
            "descriptors[0].limit.unit: unknown unit 0",
        ),
    ] {
        let answer = http::post_json(served.at.http, "/json", body).expect("an answer");
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        assert!(answer.body.contains(text), "{body}: {answer:?}");
    }
    assert_eq!(served.metric("weir_requests_total{result=\"invalid\"}"), Some(6));
}

/// A bucket, whose second hit waits for its turn, and a list with one.
const QUEUES: &str = "\
domain: all
descriptors:
  - {key: leaky_bucket, rate_limit: {algorithm: leaky_bucket, unit: day, requests_per_unit: 4}}
  - key: list
    rate_limits: [{rate: 4/year, algorithm: leaky_bucket}, {rate: 3/d}]
  - key: staff
    rate_limit: {unlimited: true}
";

const DAY_US: u64 = 86_400_000_000;

/// Asks for hits of one user of one rule in [`QUEUES`].
fn ask_detail(address: SocketAddr, query: &str, key: &str, hits: u64) -> Answer {
    let body = json!({
        "domain": "all",
        "descriptors": [{"entries": [{"key": key, "value": "ann"}], "hitsAddend": hits.to_string()}],
    });
    http::post_json(address, &format!("/json{query}"), &body.to_string()).expect("an answer")
}

/// The one status of an answer, in which `detail` is an object of exactly these numbers: when the request fits again, the
/// reset and the wait, in microseconds.
fn detail_of(answer: &Answer, algorithm: &str) -> (Option<u64>, u64, u64) {
    let body = json_of(answer);
    let detail = body["statuses"][0]["detail"].as_object().unwrap_or_else(|| panic!("no detail: {answer:?}"));
    let names: Vec<&str> = detail.keys().map(String::as_str).collect();
    assert_eq!(names, ["algorithm", "charged", "fits_after_us", "reset_after_us", "wait_us"], "{answer:?}");
    assert_eq!(detail["algorithm"], algorithm);
    let fits_after = &detail["fits_after_us"];
    assert!(fits_after.is_null() || fits_after.is_u64(), "{answer:?}");
    let number = |name: &str| detail[name].as_u64().unwrap_or_else(|| panic!("no {name}: {answer:?}"));
    (fits_after.as_u64(), number("reset_after_us"), number("wait_us"))
}

/// What the status rounds up to whole seconds.
#[test]
fn detail_tells_waits_to_the_microsecond() {
    let served = Served::start(QUEUES, &[]);
    let ask = |hits: u64| ask_detail(served.at.http, "?detail=true", "leaky_bucket", hits);
    assert_eq!(ask(1).status, 200);
    // A hit costs a quarter of a day; since the first, less than a minute of it has been paid.
    let (_, _, wait) = detail_of(&ask(2), "leaky_bucket");
    assert!((DAY_US / 4 - 60_000_000..=DAY_US / 4).contains(&wait), "{wait}");
    let denied = ask(2);
    let (again, _, wait) = detail_of(&denied, "leaky_bucket");
    assert_eq!((denied.status, wait), (429, 0), "who is denied has no turn");
    let seconds = format!("{}s", again.expect("it fits again").div_ceil(1_000_000));
    assert_eq!(json_of(&denied)["statuses"][0]["durationUntilReset"], json!(seconds));
    assert_eq!(detail_of(&ask(5), "leaky_bucket").0, None, "more than the limit ever holds");
}

/// A descriptor of several limits fits when all of them do, and waits for the slowest.
#[test]
fn detail_of_a_list_is_about_all_of_its_limits() {
    let served = Served::start(QUEUES, &[]);
    let ask = |hits: u64| ask_detail(served.at.http, "?detail=true", "list", hits);
    detail_of(&ask(1), "fixed_window");
    // The status speaks of the window, which has less left; the bucket is what takes longer, and what makes it wait.
    let (fits_after, reset_after, wait) = detail_of(&ask(2), "fixed_window");
    assert!(reset_after <= DAY_US, "{reset_after}");
    assert!(fits_after.is_some_and(|us| us > 80 * DAY_US), "{fits_after:?}");
    assert!((90 * DAY_US..92 * DAY_US).contains(&wait), "{wait}");
}

#[test]
fn detail_is_only_where_it_is_asked_for_and_where_there_is_a_limit() {
    let served = Served::start(QUEUES, &[]);
    for query in ["", "?", "?detail=false"] {
        let body = json_of(&ask_detail(served.at.http, query, "leaky_bucket", 1));
        let status = body["statuses"][0].as_object().expect("a status");
        let known = ["code", "currentLimit", "durationUntilReset", "limitRemaining"];
        assert!(status.keys().all(|name| known.contains(&name.as_str())), "{query}: {body}");
        let top: Vec<&String> = body.as_object().expect("an object").keys().collect();
        assert_eq!(top, ["overallCode", "statuses"], "{query}: {body}");
    }
    for key in ["staff", "nobody"] {
        let body = json_of(&ask_detail(served.at.http, "?detail=true", key, 1));
        assert_eq!(body["statuses"][0].get("detail"), None, "{body}");
    }
}

/// A paced limit whose next hit fits a minute after the one before, and one of the year.
const CLIENTS: &str = "\
domain: shop
descriptors:
  - {key: paced, rate_limit: {unit: minute, requests_per_unit: 1, algorithm: gcra}}
  - {key: year, rate_limit: {unit: year, requests_per_unit: 4, name: 'say \"hi\" \\ é'}}
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 100, post_paid: true}}
  - {key: watched, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
";

/// Asks about descriptors, each a key with more fields.
fn ask_about(address: SocketAddr, descriptors: &[(&str, Value)]) -> Answer {
    let descriptor = |(key, fields): &(&str, Value)| {
        let mut descriptor = fields.clone();
        descriptor["entries"] = json!([{"key": key, "value": "ann"}]);
        descriptor
    };
    let descriptors: Vec<Value> = descriptors.iter().map(descriptor).collect();
    let body = json!({"domain": "shop", "descriptors": descriptors}).to_string();
    http::post_json(address, "/json", &body).expect("an answer")
}

/// The headers for the caller's client.
fn client_headers(answer: &Answer) -> Vec<String> {
    let body = json_of(answer);
    let Some(headers) = body["responseHeadersToAdd"].as_array() else { return Vec::new() };
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    headers.iter().map(|header| format!("{}: {}", text(&header["key"]), text(&header["value"]))).collect()
}

/// A number after this text in a header.
fn number_after(header: &str, text: &str) -> u64 {
    let rest = header.split_once(text).unwrap_or_else(|| panic!("no {text} in {header}")).1;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number after {text} in {header}"))
}

#[test]
fn a_429_has_the_wait_where_a_wait_helps() {
    let served = Served::start(CLIENTS, &[]);
    let ask = |key: &str, fields: Value| ask_about(served.at.http, &[(key, fields)]);
    let first = ask("paced", json!({}));
    assert_eq!((first.status, first.header("retry-after")), (200, None));
    let denied = ask("paced", json!({}));
    let wait = number_after(&format!("retry-after: {}", denied.header("retry-after").expect("a wait")), ": ");
    assert_eq!(denied.status, 429);
    assert!((1..=60).contains(&wait), "{denied:?}");
    assert_eq!(json_of(&denied)["statuses"][0]["durationUntilReset"], format!("{wait}s"));
    assert_eq!(client_headers(&denied), [""; 0], "only by the setting");

    let look = ask("paced", json!({"hitsAddend": 0}));
    assert!(look.status == 429 && look.header("retry-after").is_some(), "a look tells it too: {look:?}");
    let never = ask("year", json!({"hitsAddend": 5}));
    assert_eq!((never.status, never.header("retry-after")), (429, None), "no wait makes 5 fit into 4");
}

#[test]
fn a_denial_has_a_problem_body_that_names_the_limits_by_a_setting() {
    let body =
        json!({ "domain": "shop", "descriptors": [{ "entries": [{ "key": "paced", "value": "ann" }] }] }).to_string();
    let ask = |served: &Served, accept: &str| {
        http::request(served.at.http, "POST", "/json", &[("accept", accept)], &body).unwrap()
    };
    let served = Served::start(CLIENTS, &["response.problem_body=on"]);
    let problem = "text/html, application/problem+json;q=0.5";
    assert_eq!(ask(&served, problem).header("content-type"), Some("application/json"), "it is admitted");
    let denied = ask(&served, problem);
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")), "{denied:?}");
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    let expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": ["paced"],
    });
    assert_eq!(serde_json::from_str::<Value>(&denied.body).unwrap(), expected);
    // Envoy gets it with its type.
    let answer = Client::connect(served.at.grpc).ask(rls::request("shop", &[("paced", "ann")])).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&answer.raw_body).unwrap(), expected);
    let headers: Vec<_> = answer.response_headers_to_add.iter().map(|one| (&*one.key, &*one.value)).collect();
    assert_eq!(headers, [("Content-Type", "application/problem+json")]);
    let json = ask(&served, "*/*");
    assert_eq!((json.status, json.header("content-type")), (429, Some("application/json")), "{json:?}");
    let without = Served::start(CLIENTS, &[]);
    ask(&without, problem);
    assert_eq!(ask(&without, problem).header("content-type"), Some("application/json"));
    let answer = Client::connect(without.at.grpc).ask(rls::request("shop", &[("paced", "ann")])).unwrap();
    assert!(answer.raw_body.is_empty() && answer.response_headers_to_add.is_empty(), "{answer:?}");
}

#[test]
fn headers_for_the_client_are_there_by_a_setting() {
    let served = Served::start(CLIENTS, &["response.ietf_headers=on"]);
    let ask = |descriptors: &[(&str, Value)]| client_headers(&ask_about(served.at.http, descriptors));
    let name = r#""say \"hi\" \\ %C3%A9""#;
    let year = |headers: &[String]| number_after(&headers[headers.len() - 2], &format!("RateLimit: {name};r="));

    let admitted = ask(&[("year", json!({})), ("watched", json!({})), ("paced", json!({})), ("none", json!({}))]);
    assert_eq!(admitted.len(), 2, "{admitted:?}");
    assert!(admitted[0].starts_with(&format!("RateLimit: {name};r=3;t=")), "{admitted:?}");
    assert!(admitted[0].ends_with(", \"paced\";r=0;t=60"), "{admitted:?}");
    assert_eq!(admitted[1], format!("RateLimit-Policy: {name};q=4;w=31536000, \"paced\";q=1;w=60"));

    let denied = ask(&[("year", json!({})), ("paced", json!({}))]);
    assert_eq!(denied.len(), 3, "{denied:?}");
    let wait = number_after(&denied[0], "Retry-After: ");
    assert!(denied[1].ends_with(&format!(", \"paced\";r=0;t={wait}")), "{denied:?}");
    assert_eq!((year(&denied), &denied[2]), (3, &admitted[1]), "nothing was charged");

    // A look, what is given back, and more than ever fits.
    assert_eq!(year(&ask(&[("year", json!({"hitsAddend": 0}))])), 3);
    assert_eq!(year(&ask(&[("year", json!({"isNegativeHits": true}))])), 4);
    let never = ask(&[("year", json!({"hitsAddend": 5}))]);
    assert_eq!((never.len(), year(&never)), (2, 4), "{never:?}");
    // A report is charged whole; the next one finds the limit used up.
    let report = ask(&[("tokens", json!({"hitsAddend": 150}))]);
    assert!(report.len() == 2 && report[0].starts_with("RateLimit: \"tokens\";r=0;t="), "{report:?}");
    let next = ask(&[("tokens", json!({"hitsAddend": 1}))]);
    assert!(next.len() == 3 && number_after(&next[0], "Retry-After: ") > 0, "{next:?}");
    // A rule that only watches, and no rule.
    for key in ["watched", "none"] {
        assert_eq!(ask(&[(key, json!({}))]), [""; 0]);
    }
}

#[test]
fn where_nothing_is_enforced_clients_hear_of_no_limit() {
    let served = Served::start(CLIENTS, &["response.ietf_headers=on", "shadow_mode=on"]);
    for _ in 0..2 {
        let answer = ask_about(served.at.http, &[("paced", json!({}))]);
        assert_eq!((answer.status, answer.header("retry-after")), (200, None), "{answer:?}");
        assert_eq!(client_headers(&answer), [""; 0]);
    }
}

#[test]
fn a_question_that_json_does_not_know_is_told_so_and_counted() {
    let served = Served::start(QUEUES, &[]);
    let cases = [
        ("?detail=maybe", "detail: \"maybe\" is not true or false\n"),
        ("?detail=", "detail: \"\" is not true or false\n"),
        ("?details=true", "no parameter \"details\", only detail\n"),
        ("?detail=true&surprise", "no parameter \"surprise\", only detail\n"),
        ("?detail=true&detail=true", "detail: given twice\n"),
    ];
    for (query, text) in cases {
        let answer = ask_detail(served.at.http, query, "leaky_bucket", 1);
        assert_eq!((answer.status, answer.body.as_str()), (400, text), "{query}");
    }
    assert_eq!(served.metric("weir_requests_total{result=\"invalid\"}"), Some(cases.len() as u64));
    // Nothing was charged.
    let fresh = json_of(&ask_detail(served.at.http, "", "leaky_bucket", 1));
    assert_eq!(fresh["statuses"][0]["limitRemaining"], 3);
}

#[test]
fn an_unlimited_rule_passes_whatever_replaces_its_name() {
    let policy = "\
domain: shop
descriptors:
  - key: staff
    rate_limit: {unlimited: true, name: basic}
  - key: user
    rate_limit: {unit: year, requests_per_unit: 2, name: basic}
  - key: plan
    rate_limit: {unit: year, requests_per_unit: 9, replaces: [{name: basic}]}
";
    let served = Served::start(policy, &[]);
    let asked = ["staff", "user", "plan"].map(|key| json!({"entries": [{"key": key, "value": "ann"}]}));
    let body = json!({"domain": "shop", "descriptors": asked}).to_string();
    let answer = http::post_json(served.at.http, "/json", &body).expect("an answer");
    let statuses = &json_of(&answer)["statuses"];
    assert_eq!(statuses[0], json!({"code": "OK", "limitRemaining": u32::MAX}), "{answer:?}");
    assert_eq!(statuses[1], json!({"code": "OK"}), "{answer:?}");
    assert_eq!(statuses[2]["limitRemaining"], json!(8), "{answer:?}");
}

#[test]
fn a_value_that_is_the_text_of_a_pattern_meets_that_pattern_and_its_count() {
    let policy = "\
domain: shop
descriptors:
  - {key: path, value: \"*\", rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: path, value: /pay/*, share_threshold: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: path, value: /p*, rate_limit: {unit: year, requests_per_unit: 5}}
";
    let served = Served::start(policy, &[]);
    let remaining = |value: &str| {
        let asked = json!([{"entries": [{"key": "path", "value": value}]}]);
        let body = json!({"domain": "shop", "descriptors": asked}).to_string();
        let answer = http::post_json(served.at.http, "/json", &body).expect("an answer");
        json_of(&answer)["statuses"][0]["limitRemaining"].as_u64()
    };
    assert_eq!(remaining("/pay/1"), Some(8), "the first in file order");
    assert_eq!(remaining("/pay/*"), Some(1), "as written");
    assert_eq!(remaining("/p*"), Some(4), "as written");
    assert_eq!(remaining("/pay/**"), Some(8), "matched only");
    assert_eq!(remaining("*"), Some(8), "as written");
}

#[test]
fn a_store_that_is_not_there_is_503_and_told() {
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port");
    let url = format!("redis.url=redis://{nobody}");
    let served = Served::starting(POLICY, &["store=redis", &url]);
    let answer = http::post_json(served.at.http, "/json", ANN).expect("an answer");
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.contains("nothing was charged"), "{answer:?}");
    let state = get(served.at.admin, "/state?domain=shop&descriptor=user=ann");
    assert_eq!(state.status, 503, "{state:?}");

    // Not ready before the store has had its time to answer, and alive all the same.
    let ready = get(served.at.http, "/readyz");
    assert_eq!(ready.status, 503, "{ready:?}");
    let detail = json_of(&ready);
    assert_eq!((&detail["ready"], &detail["phase"]), (&json!(false), &json!("starting")));
    assert_eq!(detail["store"], json!({"name": "redis", "answered": false, "circuit": "open"}));
    assert_eq!(get(served.at.http, "/healthcheck").status, 500);
    assert_eq!(get(served.at.http, "/healthz").status, 200);
}

#[test]
fn health_is_told_on_every_path_that_somebody_asks() {
    let served = Served::start(POLICY, &[]);
    let live = get(served.at.http, "/healthz");
    assert_eq!((live.status, live.body.as_str()), (200, "ok\n"));
    let reference = get(served.at.http, "/healthcheck");
    assert_eq!((reference.status, reference.body.as_str()), (200, "OK"));
    for address in [served.at.http, served.at.admin] {
        let ready = get(address, "/readyz");
        assert_eq!(ready.status, 200, "{ready:?}");
        let input = json!({"problem_count": 0});
        let mut expected = json!({
            "ready": true,
            "phase": "serving",
            "store": {"name": "memory", "answered": true, "circuit": "closed"},
            "policies": {"domains": 1, "rules": 3, "problem_count": 0, "problem_kinds": [], "unmet_overlay_count": 0},
            "overrides": {"in_force": 0, "unused": 0, "read": true, "problem": null},
            "rows": input, "callers": input, "tokens": input,
        });
        if address == served.at.admin {
            expected["policies"]["problems"] = json!([]);
            expected["policies"]["unmet_overlays"] = json!([]);
            ["rows", "callers", "tokens"].iter().for_each(|input| expected[*input]["problems"] = json!([]));
        }
        assert_eq!(json_of(&ready), expected);
    }
}

#[test]
fn who_leaves_says_so_and_still_answers() {
    let mut served = Served::start(POLICY, &["shutdown.pause=5m"]);
    let stop = served.stop.take().expect("it is running");
    stop.order();
    until("/readyz to say 503", PATIENCE, || (get(served.at.http, "/readyz").status == 503).then_some(()));
    assert_eq!(json_of(&get(served.at.http, "/readyz"))["phase"], "leaving");
    assert_eq!(get(served.at.http, "/healthcheck").status, 500);
    assert_eq!(get(served.at.http, "/healthz").status, 200);
    assert_eq!(http::post_json(served.at.http, "/json", ANN).expect("an answer").status, 200);
    // Told once more, it waits no longer.
    stop.order();
    served.stop().expect("it ends well");
}

#[test]
fn other_paths_and_methods_are_told_what_there_is() {
    let served = Served::start(POLICY, &[]);
    let public = get(served.at.http, "/policies");
    assert_eq!(public.status, 404);
    assert_eq!(
        public.body,
        "no /policies, only POST /json, GET /healthcheck, GET /healthz, GET /metrics, GET /readyz\n"
    );
    let admin = get(served.at.admin, "/json");
    assert_eq!(admin.status, 404);
    assert!(admin.body.contains("DELETE /state?domain=D&descriptor=K=V,K=V"), "{admin:?}");
    for (address, method, path) in [
        (served.at.http, "GET", "/json"),
        (served.at.http, "POST", "/metrics"),
        (served.at.admin, "POST", "/state"),
        (served.at.admin, "DELETE", "/policies"),
    ] {
        let answer = http::request(address, method, path, &[], "").expect("an answer");
        assert_eq!((answer.status, answer.body), (405, format!("no {method} on {path}\n")));
    }
}

#[test]
fn metrics_count_by_domain_rule_and_limit() {
    let served = Served::start(POLICY, &[]);
    for _ in 0..3 {
        http::post_json(served.at.http, "/json", ANN).expect("an answer");
    }
    let labels = "{domain=\"shop\",limit=\"per-user\",rule=\"user\"}";
    let count = |name: &str| served.metric(&format!("{name}{labels}"));
    assert_eq!(count("weir_hits_total"), Some(3));
    assert_eq!(count("weir_within_limit_hits_total"), Some(2));
    assert_eq!(count("weir_near_limit_hits_total"), Some(1));
    assert_eq!(count("weir_over_limit_hits_total"), Some(1));
    assert_eq!(count("weir_shadow_hits_total"), Some(0));
    assert_eq!(served.metric("weir_requests_total{result=\"ok\"}"), Some(2));
    assert_eq!(served.metric("weir_requests_total{result=\"over_limit\"}"), Some(1));
    assert_eq!(served.metric("weir_decision_duration_seconds_count"), Some(3));
    assert_eq!(served.metric("weir_keys"), Some(1));
    assert_eq!(served.metric("weir_config_loads_total"), Some(1));
    assert_eq!(served.metric("weir_config_load_errors_total"), Some(0));
    let answer = get(served.at.admin, "/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    assert!(answer.body.contains("weir_build_info{commit="), "{}", answer.body);
}

/// Every sample has a type, a help and a label set of its own: what Prometheus refuses a scrape for.
#[test]
fn metrics_are_well_formed() {
    let served = Served::start(POLICY, &[]);
    http::post_json(served.at.http, "/json", ANN).expect("an answer");
    let text = get(served.at.http, "/metrics").body;
    let mut typed = Vec::new();
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().expect("a name");
            assert!(!typed.contains(&name.to_owned()), "{name} has two types");
            typed.push(name.to_owned());
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(seen.insert(series.to_owned()), "{series} twice");
            let name = series.split('{').next().expect("a name");
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            let last = typed.last().expect("a type before");
            assert!(last == base || last == name, "{series} under the type of {last}");
        }
    }
    assert!(typed.len() > 15, "{typed:?}");
}

/// What docs/metrics.md has of each metric: its name, its labels, and with which stores it is there. Those of a control plane
/// are in tests/service/xds.rs.
#[test]
fn metrics_are_those_of_the_page_about_them() {
    let documented = documented_metrics();
    let memory = Served::start(POLICY, &[]);
    http::post_json(memory.at.http, "/json", ANN).expect("an answer");
    let mut expected = documented.clone();
    expected.retain(|name, _| {
        let absent =
            "weir_redis_ weir_deny_cache_ weir_tls_ weir_certificate_ weir_admin_ weir_policy_overlays weir_weighed";
        !absent.split(' ').any(|prefix| name.starts_with(prefix))
    });
    assert_eq!(shown_metrics(memory.at.http), expected);

    let mut redis = RedisServer::start();
    let authority = Authority::new("ours");
    let issued = authority.server("grpc", &["localhost"]);
    let settings = [
        "store=redis".to_owned(),
        format!("redis.url={}", redis.url()),
        format!("listen.tls.cert_file={}", issued.certificate.display()),
        format!("listen.tls.key_file={}", issued.key.display()),
        "admin.token_file=/nowhere/token".to_owned(),
    ];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let served = Served::start(POLICY, &settings);
    http::post_json(served.at.http, "/json", ANN).expect("an answer");
    redis.kill();
    // A kind of dial error has its line once it has happened.
    let shown = until("a dial that fails", PATIENCE, || {
        let shown = shown_metrics(served.at.http);
        shown.contains_key("weir_redis_dial_errors_total").then_some(shown)
    });
    let mut expected = documented;
    // Redis is counted while policies have rows (operator/rows.rs).
    expected.remove("weir_rows_stored");
    // As are overlays while there is a file of them (reload.rs), and default factors while rules weigh (operator/tap.rs).
    expected.remove("weir_policy_overlays");
    expected.remove("weir_weighed_by_default_total");
    assert_eq!(shown, expected);
}

/// The names of metrics, and those of their labels.
type Labels = BTreeMap<String, BTreeSet<String>>;

/// The page is made of the same table.
fn documented_metrics() -> Labels {
    let rows = SECTIONS.iter().flat_map(|section| section.metrics).filter(|row| {
        // With settings and policies that have tests of their own: tests/service/callers.rs, xds.rs, traces.rs, operator/alerts.rs
        // and holds.rs.
        let others = "weir_caller weir_xds_ weir_traces_ weir_metrics_ weir_alerts_total weir_alert_webhook_ weir_hold";
        !others.split(' ').any(|prefix| row.name.starts_with(prefix))
    });
    rows.map(|row| (row.name.to_owned(), row.labels.iter().map(|label| (*label).to_owned()).collect())).collect()
}

fn shown_metrics(address: SocketAddr) -> Labels {
    let text = get(address, "/metrics").body;
    let mut metrics = Labels::new();
    let mut name = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            name = rest.split(' ').next().expect("a name");
        } else if !line.starts_with('#') {
            let labels = metrics.entry(name.to_owned()).or_default();
            let (series, _) = line.rsplit_once(' ').expect("a value");
            let mut parts: Vec<&str> = series.split("=\"").collect();
            parts.pop();
            // Each ends in a label, behind the brace or the value of the one before.
            let names = parts.iter().filter_map(|part| part.rsplit(['{', ',']).next());
            labels.extend(names.filter(|label| *label != "le").map(str::to_owned));
        }
    }
    metrics
}

#[test]
fn the_operator_sees_the_policies_with_their_places() {
    let served = Served::start(POLICY, &[]);
    let answer = get(served.at.admin, "/policies");
    assert_eq!(answer.status, 200);
    let policies = json_of(&answer);
    let rules = policies["domains"][0]["rules"].as_array().expect("a list");
    assert_eq!(policies["domains"][0]["domain"], "shop");
    let descriptors: Vec<_> = rules.iter().map(|rule| &rule["descriptor"]).collect();
    assert_eq!(descriptors, ["user", "tenant=acme|path", "staff"]);
    assert!(rules[0]["place"].as_str().is_some_and(|place| place.ends_with("policy.yaml:3:5")), "{}", rules[0]);
    assert_eq!(rules[1]["role"], "shadow");
    let limit = json!({
        "name": null, "algorithm": "gcra", "requests": 5, "window_us": 86_400_000_000_u64, "capacity": 3, "id": "g86400s",
        "drain": false, "post_paid": false, "hold": false, "at_least": null, "amount": null, "alert_at": [], "lease_us": null, "shadow": false, "from_us": null, "until_us": null,
        "during": null, "counts": "hits",
    });
    assert_eq!(rules[1]["limits"], json!([limit]));
    let of_server = json!({"action": "error", "from": "server"});
    assert_eq!((&policies["domains"][0]["on_error"], &rules[0]["on_error"]), (&of_server, &of_server));
    assert_eq!(rules[2]["on_error"], json!(null), "no store is asked");
    assert_eq!((&rules[2]["unlimited"], &rules[2]["limits"]), (&json!(true), &json!([])));
}

#[test]
fn the_operator_sees_every_parameter_of_a_limit() {
    let policy = "\
domain: shop
charging: independent
descriptors:
  - {key: a, rate_limit: {rate: 5/h, anchor: first_hit}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 5, calendar: true, timezone: Europe/Berlin}}
  - {key: c, rate_limit: {rate: 5/h, algorithm: sliding_window, precision: 10m}}
  - {key: d, rate_limit: {rate: 5/h, algorithm: token_bucket, refill: interval, drain: true, post_paid: true}}
";
    let served = Served::start(policy, &[]);
    let policies = json_of(&get(served.at.admin, "/policies"));
    let domain = &policies["domains"][0];
    assert_eq!(domain["charging"], "independent");
    let limit = |rule: usize| &domain["rules"][rule]["limits"][0];
    assert_eq!(limit(0)["anchor"], "first_hit");
    assert_eq!(limit(1)["calendar"], json!({"unit": "day", "timezone": "Europe/Berlin"}));
    assert_eq!(limit(2)["precision_us"], 600_000_000);
    assert_eq!(
        (&limit(3)["refill"], &limit(3)["drain"], &limit(3)["post_paid"]),
        (&json!("interval"), &json!(true), &json!(true))
    );
}

#[test]
fn the_operator_sees_what_becomes_of_a_failed_charge_and_who_says_so() {
    let policy = |domain: &str| {
        format!(
            "domain: shop\n{domain}descriptors: [{{key: a, on_error: local, rate_limit: 5/h}}, {{key: b, rate_limit: 5/h}}]\n"
        )
    };
    let check = |domain: &str, expected: [(&str, &str); 3]| {
        let served = Served::start(&policy(domain), &["on_error=allow"]);
        let policies = json_of(&get(served.at.admin, "/policies"));
        let domain = &policies["domains"][0];
        let shown = [&domain["on_error"], &domain["rules"][0]["on_error"], &domain["rules"][1]["on_error"]];
        for (shown, (action, from)) in shown.into_iter().zip(expected) {
            assert_eq!(shown, &json!({"action": action, "from": from}));
        }
    };
    check("", [("allow", "server"), ("local", "rule"), ("allow", "server")]);
    check("on_error: deny\n", [("deny", "domain"), ("local", "rule"), ("deny", "domain")]);
}

/// What docs/stores.md promises of each word, by the example that has them all. [st-4]
#[test]
fn without_redis_each_rule_answers_as_its_on_error_says() {
    let example = std::fs::read_to_string("examples/on_error/shop.yaml").expect("the example is there");
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("an address");
    let url = format!("redis.url=redis://{nobody}");
    let served = Served::starting(&example, &["store=redis", &url, "redis.timeout=50ms"]);
    let ask = |entries: &[(&str, &str)]| {
        let descriptors: Vec<_> =
            entries.iter().map(|(key, value)| json!({"entries": [{"key": key, "value": value}]})).collect();
        let body = json!({"domain": "shop", "descriptors": descriptors}).to_string();
        http::post_json(served.at.http, "/json", &body).expect("an answer")
    };
    let passed = json!({"code": "OK"});
    let denied = json!({"code": "OVER_LIMIT"});
    let client = ("client", "10.0.0.1");

    let answer = ask(&[("card", "4711"), client]);
    assert_eq!((answer.status, &json_of(&answer)["statuses"]), (429, &json!([denied, passed])), "nothing is charged");
    for _ in 0..2 {
        let answer = ask(&[client, ("path", "/help/a")]);
        let statuses = &json_of(&answer)["statuses"];
        assert_eq!((answer.status, &statuses[1]), (200, &passed));
        assert_eq!(statuses[0]["currentLimit"]["requestsPerUnit"], 20, "decided by the embedded store: {answer:?}");
    }
    let answer = ask(&[("job", "a"), ("card", "4711"), client]);
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.contains("nothing was charged"), "{answer:?}");

    let count = |action: &str| served.metric(&format!("weir_on_error_total{{action=\"{action}\"}}"));
    assert_eq!(["error", "allow", "deny", "local"].map(count), [1, 2, 2, 4].map(Some));
    assert_eq!(served.metric("weir_requests_total{result=\"store_failed\"}"), Some(1));
}

#[test]
fn the_operator_sees_and_resets_the_state_of_a_descriptor() {
    let served = Served::start(POLICY, &[]);
    let path = "/state?domain=shop&descriptor=user=ann";
    let limit = || json_of(&get(served.at.admin, path))["limits"][0].clone();
    let fresh = limit();
    assert_eq!((&fresh["stored"], &fresh["remaining"]), (&json!(false), &json!(2)));
    for _ in 0..2 {
        http::post_json(served.at.http, "/json", ANN).expect("an answer");
    }
    let used = limit();
    assert_eq!(used["key"], "w1:{shop|user=ann}f31536000s");
    assert_eq!(
        (&used["algorithm"], &used["stored"], &used["remaining"]),
        (&json!("fixed_window"), &json!(true), &json!(0))
    );
    let year_us = 31_536_000_000_000_u64;
    assert!(used["reset_after_us"].as_u64().is_some_and(|us| (1..=year_us).contains(&us)), "{used}");

    let reset = http::request(served.at.admin, "DELETE", path, &[], "").expect("an answer");
    assert_eq!(reset.status, 200, "{reset:?}");
    assert_eq!(json_of(&reset), json!({"keys": ["w1:{shop|user=ann}f31536000s"], "stored": 1, "unlimited": []}));
    assert_eq!(limit()["remaining"], 2);
    let again = http::request(served.at.admin, "DELETE", path, &[], "").expect("an answer");
    assert_eq!(json_of(&again)["stored"], 0);
}

#[test]
fn the_operator_is_told_what_is_wrong_with_a_question() {
    let served = Served::start(POLICY, &[]);
    for (query, status, text) in [
        ("", 400, "domain"),
        ("?domain=shop", 400, "descriptor"),
        ("?domain=shop&descriptor=user", 400, "\"user\" has no \"=\""),
        ("?domain=shop&descriptor==x", 400, "has no key"),
        ("?domain=shop&descriptor=user=ann&descripter=x", 400, "descripter"),
        ("?domain=nowhere&descriptor=user=ann", 404, "no limit"),
        ("?domain=shop&descriptor=nobody=x", 404, "no limit"),
        ("?domain=shop&descriptor=staff=1", 404, "no limit"),
    ] {
        for method in ["GET", "DELETE"] {
            let answer = http::request(served.at.admin, method, &format!("/state{query}"), &[], "").expect("an answer");
            assert_eq!(answer.status, status, "{method} {query}: {answer:?}");
            let error = json_of(&answer)["error"].as_str().expect("an error").to_owned();
            assert!(error.contains(text), "{method} {query}: {error}");
        }
    }
}
