//! Records of `weir tap` and access logs: what is read, what is refused, and how lines out of order are sorted.

use std::fmt::Write as _;

use serde_json::json;
use weir_cli::simulate::SimulateArguments;
use weir_engine::Micros;
use weir_lab::simulation::traffic::{LINE_BYTES_MAX, Verdict, WAITING_MAX};

use super::{Written, all, short};

const HEADER: &str =
    "{\"weir_record\":1,\"started\":\"2026-12-01T10:00:00.000000Z\",\"sample\":1,\"values\":\"shown\"}\n";
/// 2026-12-01T10:00:00Z.
const TEN: Micros = 1_796_119_200_000_000;

/// A line of a record about a user, so many milliseconds after ten.
fn line(ms: u64, user: &str) -> String {
    format!(
        "{{\"time\":\"2026-12-01T10:{:02}:{:02}.{:03}Z\",\"domain\":\"shop\",\"hits\":1,\
         \"descriptors\":[{{\"entries\":[[\"user\",\"{user}\"]]}}],\"verdict\":\"ok\"}}\n",
        ms / 60_000,
        ms / 1_000 % 60,
        ms % 1_000
    )
}

#[test]
fn a_record_has_all_of_a_request() {
    let written = Written::new();
    let request = json!({
        "time": "2026-12-01T10:00:00.123456Z", "domain": "shop", "hits": 2, "later": {"members": ["mean nothing"]},
        "descriptors": [
            {"entries": [["user", "~3f9c01d2a47b"], ["path", "/a\"b"]], "hits": 3, "rule": "user_path", "verdict": "over",
             "remaining": 7, "limit": {"requests": 10, "unit": "minute"}, "refund": true},
            {"entries": [], "look": true},
        ],
        "verdict": "over", "lost": 12,
    });
    let path = written.write("r.jsonl", &format!("{HEADER}\n{request}\r\n{HEADER}"));
    let requests = all(&path).unwrap();
    let [request] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((request.time, request.verdict, request.lost), (TEN + 123_456, Some(Verdict::Over), 12));
    assert_eq!((request.message.domain.as_str(), request.message.hits_addend), ("shop", 2));
    assert_eq!(short(request), ["user=~3f9c01d2a47b,path=/a\"b", ""]);
    let [first, second] = &request.message.descriptors[..] else { panic!("{request:?}") };
    assert_eq!(first.hits_addend.as_ref().map(|hits| hits.value), Some(3));
    assert!(first.is_negative_hits && !second.is_negative_hits);
    let limit = first.limit.as_ref().map(|limit| (limit.requests_per_unit, limit.unit));
    assert_eq!(limit, Some((10, 2)), "a minute is 2 on the wire");
    assert_eq!(second.hits_addend.as_ref().map(|hits| hits.value), Some(0), "a look");
}

#[test]
fn a_line_that_cannot_be_used_has_its_place_and_its_member() {
    let written = Written::new();
    for (text, expected) in [
        ("", "1:1: no header"),
        ("{\"time\":1}", "2:9: time: invalid type: integer `1`, expected a time such as"),
        ("{\"time\":\"noon\"}", "2:14: time: invalid value: string \"noon\", expected a time such as"),
        ("{\"time\":\"1969-12-01T10:00:00Z\"}", "2:30: time: a time before 1970"),
        ("{\"domain\":\"d\",\"descriptors\":[]}", "2:1: time: a request has it"),
        ("{\"time\":\"2026-12-01T10:00:00Z\",\"domain\":\"d\"}", "2:1: descriptors: a request has it"),
        ("{\"descriptors\":[{\"entries\":[[\"a\"]]}]}", "2:33: descriptors[0].entries[0]: invalid length 1"),
        ("{\"descriptors\":[{}]}", "2:18: descriptors[0]: missing field `entries`"),
        (
            "{\"descriptors\":[{\"entries\":[],\"hits\":-1}]}",
            "2:39: descriptors[0].hits: invalid value: integer `-1`, expected u32",
        ),
        (
            "{\"descriptors\":[{\"entries\":[],\"limit\":{\"requests\":1,\"unit\":\"fortnight\"}}]}",
            "2:70: descriptors[0].limit.unit: unknown variant `fortnight`, expected one of `second`",
        ),
        ("{\"verdict\":\"maybe\"}", "2:18: verdict: unknown variant `maybe`, expected one of `ok`, `over`, `error`"),
        ("{\"time\":", "2:8: time: EOF while parsing a value"),
        ("time=noon", "2:2: expected ident"),
        ("{\"weir_record\":2}", "2:1: weir_record: a record of version 2, this weir reads version 1"),
        ("{\"weir_record\":1,\"values\":\"some\"}", "2:1: values: \"some\" is neither hidden nor shown"),
    ] {
        let text = if text.is_empty() { line(0, "ann") } else { format!("{HEADER}{text}\n") };
        let path = written.write("r.jsonl", &text);
        let error = written.shown(&all(&path).expect_err(&text).to_string());
        assert!(error.starts_with(&format!("r.jsonl:{expected}")), "{text}\n{error}");
    }
}

#[test]
fn lines_a_little_out_of_order_are_sorted_and_keep_their_order_where_they_are_equal() {
    let written = Written::new();
    let text = [line(5, "c"), line(1, "a"), line(3, "b1"), line(3, "b2"), line(9, "d")].concat();
    let path = written.write("r.jsonl", &format!("{HEADER}{text}"));
    let users: Vec<String> = all(&path).unwrap().iter().flat_map(short).collect();
    assert_eq!(users, ["user=a", "user=b1", "user=b2", "user=c", "user=d"]);
}

#[test]
fn a_line_that_comes_too_late_is_an_error_with_its_line() {
    let written = Written::new();
    let mut text = HEADER.to_owned();
    for number in 0..WAITING_MAX + 5 {
        let _ = write!(text, "{}", line(1_000 + number as u64, "ann"));
    }
    let in_order = written.write("r.jsonl", &text);
    assert_eq!(all(&in_order).unwrap().len(), WAITING_MAX + 5);
    let late = written.write("late.jsonl", &format!("{text}{}", line(0, "ann")));
    let error = written.shown(&all(&late).unwrap_err().to_string());
    let number = WAITING_MAX + 5 + 2;
    assert!(error.starts_with(&format!("late.jsonl:{number}:1: its time is")), "{error}");
    assert!(error.contains("sort the file by time"), "{error}");
}

#[test]
fn a_line_has_a_bound() {
    let written = Written::new();
    let path = written.write("r.jsonl", &format!("{HEADER}{}\n", "x".repeat(LINE_BYTES_MAX + 1)));
    let error = written.shown(&all(&path).unwrap_err().to_string());
    assert_eq!(error, format!("r.jsonl:2:{LINE_BYTES_MAX}: a line of more than 1 MiB"));
    assert!(all(&written.path("none.jsonl")).unwrap_err().to_string().contains("none.jsonl: No such file"));
    assert!(all(&written.path("policies")).unwrap_err().to_string().contains("a directory, not a file of traffic"));
}

#[test]
fn hidden_values_and_samples_are_noted_once() {
    let written = Written::new();
    let header = HEADER.replace("shown", "hidden").replace("\"sample\":1", "\"sample\":10");
    let lost = line(2, "~0123456789ab").replace("\"verdict\"", "\"lost\":4,\"verdict\"");
    let path = written.write("r.jsonl", &format!("{header}{}{lost}", line(1, "~0123456789ab")));
    let mut arguments = written.arguments(path);
    arguments.policies.push(written.path("policies"));
    let (report, notes) = written.ran(&arguments);
    assert_eq!(notes, "");
    assert!(!report.contains("could not tell"), "a user meets one rule with every name: {report}");
    assert!(
        report.contains("note: the record has one of 10 requests: limits are used less than they were\n"),
        "{report}"
    );
    assert!(report.contains("note: the record lacks 4 requests, lost as it was made\n"), "{report}");
    assert!(report.contains("recorded: 2 passed, 0 denied, 0 got an error\n"), "{report}");
}

/// A record of requests about entries, one each 100 ms, with hidden values.
fn hidden(entries: &[(&str, &str)]) -> String {
    let mut text = HEADER.replace("shown", "hidden");
    for (number, (key, value)) in entries.iter().enumerate() {
        text += &line(number as u64 * 100, value).replace("[\"user\"", &format!("[\"{key}\""));
    }
    text
}

const ANN: &str = "~0123456789ab";
const BOB: &str = "~ba9876543210";

/// Without values, weir counted ann's 9 requests under 2 a minute, although the policy gives her 9.
#[test]
fn requests_whose_rule_depends_on_a_hidden_value_are_counted_apart_and_sent_to_no_policies() {
    let written = Written::new();
    let named =
        "domain: shop\ndescriptors:\n- {key: user, rate_limit: 2/min}\n- {key: user, value: ann, rate_limit: 9/min}\n";
    let wildcard =
        "domain: shop\ndescriptors:\n- {key: user, rate_limit: 2/min}\n- {key: user, value: a*, rate_limit: 9/min}\n";
    let network = "domain: shop\ndescriptors:\n- {key: user, cidr: 10.0.0.0/8, rate_limit: 2/min}\n";
    let below = "domain: shop\ndescriptors:\n- {key: user, value: ann, descriptors: [{key: path, rate_limit: 1/s}]}\n";
    let alone =
        "domain: shop\ndescriptors:\n- {key: user, rate_limit: 2/min}\n- {key: path, value: /a, rate_limit: 1/s}\n";
    let entries = [[("user", ANN); 9].as_slice(), &[("user", BOB); 3]].concat();
    let path = written.write("r.jsonl", &hidden(&entries));
    for (policy, passed, may_meet) in [
        (named, 0, "user or user=ann"),
        (wildcard, 0, "user or user=a*"),
        (network, 0, "no rule or user=10.0.0.0/8"),
        (below, 12, ""),
        (alone, 4, ""),
    ] {
        written.write("policies/shop.yaml", policy);
        let json = written.path("out.json");
        let arguments = SimulateArguments { json: Some(json.clone()), ..written.arguments(path.clone()) };
        let report = written.ran(&arguments).0;
        let results: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
        let traffic = &results["traffic"];
        let left_out = if may_meet.is_empty() { 0 } else { 12 };
        assert_eq!((&traffic["requests"], &traffic["could_not_tell"]), (&json!(12), &json!(left_out)), "{policy}");
        let of_policies = &results["policies"][0];
        assert_eq!((&of_policies["passed"], &of_policies["denied"]), (&json!(passed), &json!(12 - left_out - passed)));
        let note = format!(
            "note: could not tell for 12 of 12 requests, because values are hidden: no result has them. The first may meet \
             {may_meet} in \"shop\". Record with values shown\n"
        );
        assert_eq!(report.contains(&note), left_out > 0, "{policy}\n{report}");
    }
}

/// A tap shows the values that have factors of their own, so a hidden one has the default. [mt-13]
#[test]
fn a_hidden_value_of_an_entry_that_weighs_has_the_default_factor() {
    let written = Written::new();
    let policy = "domain: shop\ndescriptors:\n\
        - {key: user, weigh: {entry: model, by: {large: 3}, default: 2}, rate_limit: 8/min}\n\
        - {key: model, value: large, descriptors: [{key: user, value: bob, rate_limit: 1/s}]}\n";
    written.write("policies/shop.yaml", policy);
    let text = hidden(&[("user", ANN); 5]).replace("[[\"user\"", &format!("[[\"model\",\"{BOB}\"],[\"user\""));
    let json = written.path("out.json");
    let path = written.write("r.jsonl", &text);
    written.ran(&SimulateArguments { json: Some(json.clone()), ..written.arguments(path) });
    let results: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    let of_policies = &results["policies"][0];
    assert_eq!(results["traffic"]["could_not_tell"], 0);
    assert_eq!((&of_policies["passed"], &of_policies["denied"]), (&json!(4), &json!(1)));
}

#[test]
fn each_of_the_policies_gets_the_requests_that_all_of_them_can_decide() {
    let written = Written::new();
    written
        .write("one.yaml", "domain: shop\ndescriptors: [{key: user, rate_limit: 9/min}, {key: ip, rate_limit: 9/min}]");
    written.write(
        "two.yaml",
        "domain: shop\ndescriptors: [{key: user, value: x, rate_limit: 1/min}, {key: ip, rate_limit: 1/min}]",
    );
    // A shown value, a domain without policies and a limit of the request leave no choice; nor does a record with shown values.
    let mut text = hidden(&[("user", ANN), ("user", "x"), ("ip", ANN), ("user", BOB)]);
    text += &line(400, ANN).replace("\"shop\"", "\"blog\"");
    text += &line(500, ANN).replace("]]}", "]],\"limit\":{\"requests\":1,\"unit\":\"minute\"}}");
    text += HEADER;
    text += &line(600, ANN);
    let json = written.path("out.json");
    let arguments = SimulateArguments {
        policies: vec![written.path("one.yaml"), written.path("two.yaml")],
        json: Some(json.clone()),
        ..written.arguments(written.write("r.jsonl", &text))
    };
    written.ran(&arguments);
    let results: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(results["traffic"]["could_not_tell"], 2);
    for policies in results["policies"].as_array().unwrap() {
        assert_eq!((&policies["passed"], &policies["unknown_domain"]), (&json!(5), &json!(1)), "{policies}");
    }
}

#[test]
fn an_access_log_is_read_by_the_meaning_of_its_fields() {
    let written = Written::new();
    let lines = [
        json!({"start_time": "2026-12-01T10:00:00.500Z", "x-user": "ann", "path": "/a", "request": {"bytes": 12}, "ok": true}),
        json!({"start_time": "2026-12-01T10:00:00.250Z", "x-user": null, "path": "/b", "request": {"bytes": 1.5}}),
        json!({"start_time": "2026-12-01T10:00:00.750Z", "x-user": "-", "path": "-"}),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    written.write("access.log", &text);
    let traffic = "domain: shop\naccess_log:\n  file: access.log\n  time: start_time\n  hits: 2\n  \
                   ask: [user=<x-user>, \"path=<path>,bytes=b<request.bytes>\", {descriptor: path=<path>, hits: 5}]\n";
    let path = written.write("log.traffic.yaml", traffic);
    let requests = all(&path).unwrap();
    let [second, first] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((second.time, first.time), (TEN + 250_000, TEN + 500_000));
    assert_eq!(short(first), ["user=ann", "path=/a,bytes=b12", "path=/a"]);
    assert_eq!(short(second), ["path=/b,bytes=b1.5", "path=/b"]);
    assert_eq!((first.message.domain.as_str(), first.message.hits_addend), ("shop", 2));
    assert_eq!(first.message.descriptors[2].hits_addend.as_ref().map(|hits| hits.value), Some(5));
    let (report, _) = written.ran(&written.arguments(path));
    assert!(report.contains("note: skipped: 1 line of the log without the fields of any descriptor\n"), "{report}");
}

#[test]
fn the_hits_of_a_request_are_those_of_a_field_of_the_log() {
    let written = Written::new();
    let lines = [
        json!({"at": 1, "user": "ann", "usage": {"total": 120}}),
        json!({"at": 2, "user": "ann", "usage": {"total": "7"}}),
        json!({"at": 3, "user": "ann", "usage": {"total": 0}}),
        json!({"at": 4, "user": "ann", "usage": {"total": "-"}}),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    written.write("access.log", &text);
    let traffic = "domain: shop\naccess_log: {file: access.log, time: at, time_format: unix_s, hits: usage.total, \
                   ask: [user=<user>, {descriptor: own=<user>, hits: 5}]}\n";
    let path = written.write("log.traffic.yaml", traffic);
    let requests = all(&path).unwrap();
    let own = |number: usize| {
        requests
            .iter()
            .map(move |request| request.message.descriptors[number].hits_addend.as_ref().map(|hits| hits.value))
    };
    assert_eq!(requests.iter().map(|request| request.message.hits_addend).collect::<Vec<_>>(), [120, 7, 0, 0]);
    // On the wire, 0 hits of a request mean 1, and those of a descriptor cost nothing.
    assert_eq!(own(0).collect::<Vec<_>>(), [None, None, Some(0), None]);
    assert_eq!(own(1).collect::<Vec<_>>(), [Some(5); 4]);
    let (report, _) = written.ran(&written.arguments(path));
    assert!(
        report.contains("note: 1 request of the log without a value in usage.total: counted as 1 hit each\n"),
        "{report}"
    );
}

#[test]
fn a_field_of_hits_with_another_value_has_its_place() {
    let written = Written::new();
    let traffic =
        "domain: shop\naccess_log: {file: access.log, time: at, time_format: unix_s, hits: tokens, ask: user=<user>}\n";
    let path = written.write("log.traffic.yaml", traffic);
    for (value, expected) in [
        ("\"many\"", "\"many\" is not a number of hits: a whole number from 0 to 4294967295"),
        ("1.5", "\"1.5\" is not a number of hits"),
        ("-1", "\"-1\" is not a number of hits"),
        ("\"+1\"", "\"+1\" is not a number of hits"),
        ("4294967296", "\"4294967296\" is not a number of hits"),
        ("true", "\"true\" is not a number of hits"),
        ("[1]", "a list or an object"),
    ] {
        let log = format!(
            "{{\"at\": 1, \"user\": \"a\", \"tokens\": 3}}\n{{\"at\": 2, \"user\": \"a\", \"tokens\": {value}}}\n"
        );
        written.write("access.log", &log);
        let error = written.shown(&all(&path).expect_err(value).to_string());
        assert!(error.starts_with(&format!("access.log:2:1: tokens: {expected}")), "{value}\n{error}");
    }
}

#[test]
fn a_line_of_a_log_that_cannot_be_used_has_its_place() {
    let written = Written::new();
    let traffic = "domain: <host>\naccess_log: {file: access.log, time: at, time_format: unix_ms, ask: user=<user>}\n";
    let path = written.write("log.traffic.yaml", traffic);
    for (line, expected) in [
        (
            "{\"at\": \"noon\", \"user\": \"ann\", \"host\": \"shop\"}",
            "2:1: at: \"noon\" is not a number for time_format",
        ),
        ("{\"user\": \"ann\", \"host\": \"shop\"}", "2:1: at: no such field, or no value"),
        ("{\"at\": 1, \"user\": [\"ann\"], \"host\": \"shop\"}", "2:1: user: a list or an object"),
        ("{\"at\": 1, \"user\": \"ann\"}", "2:1: the field of the domain has no value"),
        ("[2026]", "2:1: invalid type: sequence, expected an object, one for each line"),
        ("{\"at\": 1} x", "2:11: trailing characters"),
        ("127.0.0.1 - GET /", "2:5: invalid type: floating point"),
    ] {
        let good = "{\"at\": 1796119200000, \"user\": \"ann\", \"host\": \"shop\"}";
        written.write("access.log", &format!("{good}\n{line}\n"));
        let error = written.shown(&all(&path).expect_err(line).to_string());
        assert!(error.starts_with(&format!("access.log:{expected}")), "{line}\n{error}");
    }
}
