//! `weir tap` and `GET /tap`: what live requests look like, which are shown, and what is hidden.

use std::fs;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::http;
use crate::support::process::{LogLine, PolicyDirectory, Weir, binary};
use crate::support::rls::{self, Client, RateLimitRequest};
use crate::support::served::Served;
use crate::support::terminal::OnTerminal;
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {requests_per_unit: 2, unit: hour}}
  - {key: plan, value: free, rate_limit: {requests_per_unit: 9, unit: hour}}
  - {key: tier, values: [gold, silver], rate_limit: {requests_per_unit: 9, unit: hour}}
  - {key: watched, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: hour}}
  - {key: free, rate_limit: {unlimited: true}}
";
/// Would set the title of the terminal, clear it, and write from right to left.
const HOSTILE: &str = "\u{1b}]0;taken\u{7}\u{1b}[2J\u{202e}\n\"x";

/// A tap that is read by a test, line by line.
struct Tap(BufReader<TcpStream>);

impl Tap {
    /// Opens one, and reads its header.
    fn open(admin: SocketAddr, query: &str) -> (Tap, Value) {
        Tap::with_headers(admin, query, &[])
    }

    /// The same with a token.
    fn with_token(admin: SocketAddr, query: &str, token: &str) -> (Tap, Value) {
        Tap::with_headers(admin, query, &[("authorization", &format!("Bearer {token}"))])
    }

    fn with_headers(admin: SocketAddr, query: &str, headers: &[(&str, &str)]) -> (Tap, Value) {
        let mut stream = http::connect(admin).unwrap();
        stream.write_all(http::head("GET", &format!("/tap?{query}"), headers, 0).as_bytes()).unwrap();
        let mut tap = Tap(BufReader::new(stream));
        let mut line = String::new();
        tap.0.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200 "), "{line:?}");
        while line != "\r\n" {
            line.clear();
            tap.0.read_line(&mut line).unwrap();
        }
        let header = tap.next();
        (tap, header)
    }

    /// The next line with something in it. The lines of chunks are numbers, so a value of JSON is told from them by its brace.
    fn next(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the tap has ended");
            if line.starts_with('{') {
                return serde_json::from_str(&line).unwrap();
            }
        }
    }

    /// All that is left.
    fn rest(mut self) -> String {
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).unwrap();
        rest
    }
}

fn ask(served: &Served, key: &str, value: &str) {
    Client::connect(served.at.grpc).ask(rls::request("shop", &[(key, value)])).unwrap();
}

fn several(descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let mut request = rls::request("shop", descriptors[0]);
    request.descriptors =
        descriptors.iter().map(|entries| rls::request("shop", entries).descriptors.remove(0)).collect();
    request
}

/// Asserts the members that a line of the format has, and their types. Answers its descriptors.
fn checked(line: &Value) -> Vec<Value> {
    let object = line.as_object().unwrap();
    for (name, value) in object {
        let is_right = match name.as_str() {
            "time" => is_time(value),
            "domain" => value.is_string(),
            "hits" => value.is_u64(),
            "descriptors" => value.is_array(),
            "verdict" => ["ok", "over", "error"].contains(&value.as_str().unwrap()),
            "lost" => value.as_u64().unwrap() > 0,
            _ => false,
        };
        assert!(is_right, "{name}: {line}");
    }
    assert!(
        ["time", "domain", "hits", "descriptors", "verdict"].iter().all(|name| object.contains_key(*name)),
        "{line}"
    );
    let descriptors = line["descriptors"].as_array().unwrap();
    for descriptor in descriptors {
        for (name, value) in descriptor.as_object().unwrap() {
            let is_right = match name.as_str() {
                "entries" => value.as_array().unwrap().iter().all(|pair| {
                    pair.as_array().unwrap().len() == 2 && pair.as_array().unwrap().iter().all(Value::is_string)
                }),
                "hits" | "remaining" | "held" | "given_back" | "factor" => value.is_u64(),
                "limit" => {
                    let has_count = value.get("unit_multiplier").is_some_and(Value::is_u64);
                    let members = value.as_object().unwrap().len();
                    value["requests"].is_u64() && value["unit"].is_string() && members == 2 + usize::from(has_count)
                }
                "refund" | "look" | "settle" => *value == true,
                "rule" => value.is_string(),
                "verdict" => ["ok", "over", "shadow"].contains(&value.as_str().unwrap()),
                _ => false,
            };
            assert!(is_right, "{name}: {line}");
        }
        assert!(descriptor["entries"].is_array(), "{line}");
    }
    descriptors.clone()
}

/// `2026-12-01T10:00:00.123456Z`.
fn is_time(value: &Value) -> bool {
    let text = value.as_str().unwrap();
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00.000000Z"
}

fn is_hidden(value: &Value) -> bool {
    let text = value.as_str().unwrap();
    text.len() == 13 && text.starts_with('~') && text[1..].chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}

#[test]
fn each_request_is_a_line_of_the_format_and_values_are_hidden() {
    let served = Served::start(POLICY, &[]);
    let (mut tap, header) = Tap::open(served.at.admin, "");
    assert!(is_time(&header["started"]), "{header}");
    let rest = [&header["weir_record"], &header["sample"], &header["values"]];
    assert_eq!(rest, [&json!(1), &json!(1), &json!("hidden")]);
    assert_eq!(header.as_object().unwrap().len(), 4);

    let mut client = Client::connect(served.at.grpc);
    let request = several(&[
        &[("user", "ann")],
        &[("plan", "free")],
        &[("tier", "silver")],
        &[("nothing", "free")],
        &[("free", "free")],
    ]);
    client.ask(request).unwrap();
    let line = tap.next();
    let descriptors = checked(&line);
    assert_eq!((&line["domain"], &line["hits"], &line["verdict"]), (&json!("shop"), &json!(1), &json!("ok")));
    let ann = &descriptors[0]["entries"][0][1];
    assert!(is_hidden(ann), "{line}");
    assert_eq!(descriptors[0], json!({"entries": [["user", ann]], "rule": "user", "verdict": "ok", "remaining": 1}));
    let named = json!({"entries": [["plan", "free"]], "rule": "plan=free", "verdict": "ok", "remaining": 8});
    assert_eq!(descriptors[1], named);
    assert_eq!((&descriptors[2]["entries"], &descriptors[2]["verdict"]), (&json!([["tier", "silver"]]), &json!("ok")));
    // The value of another key has no name.
    assert!(is_hidden(&descriptors[3]["entries"][0][1]) && descriptors[3].as_object().unwrap().len() == 1, "{line}");
    assert_eq!((&descriptors[4]["rule"], &descriptors[4]["verdict"]), (&json!("free"), &json!("ok")));
    assert!(descriptors[4].get("remaining").is_none(), "{line}");

    // What equals looks equal, and only that.
    for (value, is_same) in [("ann", true), ("bob", false)] {
        client.ask(rls::request("shop", &[("user", value)])).unwrap();
        assert_eq!(checked(&tap.next())[0]["entries"][0][1] == *ann, is_same, "{value}");
    }
    // Over, in shadow, a look, a refund, hits, a limit of the request, an unknown domain.
    client.ask(rls::request("shop", &[("user", "ann")])).unwrap();
    let over = tap.next();
    assert_eq!((&over["verdict"], &checked(&over)[0]["verdict"]), (&json!("over"), &json!("over")));
    assert_eq!(over["descriptors"][0]["remaining"], 0);
    for verdict in ["ok", "shadow"] {
        client.ask(rls::request("shop", &[("watched", "w")])).unwrap();
        let line = tap.next();
        assert_eq!((&line["verdict"], &checked(&line)[0]["verdict"]), (&json!("ok"), &json!(verdict)));
    }
    client.ask(rls::look("shop", &[("user", "cleo")])).unwrap();
    let look = checked(&tap.next());
    assert_eq!((&look[0]["look"], &look[0]["remaining"]), (&json!(true), &json!(2)));
    let special = json!({"domain": "shop", "hitsAddend": 4, "descriptors": [
        {"entries": [{"key": "tier", "value": "gold"}], "hitsAddend": "3"},
        {"entries": [{"key": "user", "value": "dan"}], "isNegativeHits": true},
        {"entries": [{"key": "user", "value": "eve"}], "limit": {"requestsPerUnit": 50, "unit": "MINUTE"}},
    ]});
    client.ask(rls::request_from_json(&special).unwrap()).unwrap();
    let line = tap.next();
    let descriptors = checked(&line);
    assert_eq!((&line["hits"], &descriptors[0].get("hits")), (&json!(3), &None));
    assert_eq!((&descriptors[1]["hits"], &descriptors[1]["refund"]), (&json!(4), &json!(true)));
    assert_eq!(descriptors[2]["limit"], json!({"requests": 50, "unit": "minute"}));
    assert_eq!((&descriptors[2]["verdict"], &descriptors[2]["remaining"]), (&json!("ok"), &json!(46)));
    assert!(descriptors[2].get("rule").is_none());
    let of_request = json!({"requestsPerUnit": 50, "unit": "SECOND", "unitMultiplier": 90});
    let special = json!({"domain": "shop", "descriptors": [{"entries": [], "limit": of_request}]});
    assert_eq!(http::post_json(served.at.http, "/json", &special.to_string()).unwrap().status, 200);
    let limit = checked(&tap.next())[0]["limit"].clone();
    assert_eq!(limit, json!({"requests": 50, "unit": "second", "unit_multiplier": 90}));
    client.ask(rls::request("elsewhere", &[("plan", "free")])).unwrap();
    let line = tap.next();
    assert!(is_hidden(&checked(&line)[0]["entries"][0][1]), "{line}");
    assert_eq!((&line["domain"], &line["verdict"]), (&json!("elsewhere"), &json!("ok")));
}

/// Hits are those of the request. A value with a factor of its own is a value of the policies.
#[test]
fn weighed_hits_have_their_factor_and_their_errors() {
    let weigh = "weigh: {entry: model, by: {large: 30}, default: 10}";
    let policy = format!("domain: shop\ndescriptors: [{{key: plan, value: free, {weigh}, rate_limit: 100/h}}]\n");
    let served = Served::start(&policy, &[]);
    let (mut tap, _) = Tap::open(served.at.admin, "");
    let mut client = Client::connect(served.at.grpc);
    let asked = |model: &str, hits: u32| {
        json!({"domain": "shop", "hitsAddend": hits, "descriptors": [{"entries": [
            {"key": "model", "value": model}, {"key": "plan", "value": "free"},
        ]}]})
    };
    for (model, remaining, factor) in [("large", 40, 30), ("other", 20, 10)] {
        let answer = http::post_json(served.at.http, "/json?detail=true", &asked(model, 2).to_string()).unwrap();
        let answer: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(answer["statuses"][0]["detail"]["factor"], factor, "{answer}");
        let by_default = served.metric("weir_weighed_by_default_total{domain=\"shop\"}");
        assert_eq!(by_default, Some(u64::from(model == "other")), "a model without a factor of its own shows");
        let line = tap.next();
        let descriptor = &checked(&line)[0];
        let expected = json!({"entries": [["model", descriptor["entries"][0][1]], ["plan", "free"]], "factor": factor,
            "remaining": remaining, "rule": "plan=free", "verdict": "ok"});
        assert_eq!((&line["hits"], descriptor), (&json!(2), &expected));
        assert_eq!(is_hidden(&descriptor["entries"][0][1]), model == "other", "{line}");
    }
    let refused = client.ask(rls::request_from_json(&asked("large", 200_000_000)).unwrap()).unwrap_err();
    assert_eq!(
        (refused.code(), refused.message().starts_with("descriptors[0]: 200000000 hits")),
        (tonic::Code::InvalidArgument, true)
    );
    let body = asked("large", 200_000_000).to_string();
    assert_eq!(http::post_json(served.at.http, "/json", &body).unwrap().status, 400);
}

#[test]
fn filters_choose_requests() {
    let served = Served::start(POLICY, &["tap.values=shown"]);
    let admin = served.at.admin;
    let send = || {
        let mut client = Client::connect(served.at.grpc);
        client.ask(rls::request("other", &[("user", "nobody")])).unwrap();
        client.ask(rls::request("shop", &[("user", "ann"), ("x", "1")])).unwrap();
        client.ask(rls::request("shop", &[("plan", "free")])).unwrap();
        for _ in 0..3 {
            client.ask(rls::request("shop", &[("user", "ann,b")])).unwrap();
        }
        client.ask(rls::request("shop", &[("watched", "w")])).unwrap();
        client.ask(rls::request("shop", &[("watched", "w")])).unwrap();
    };
    let taps = [
        ("domain=other", vec!["nobody"]),
        ("rule=plan%3Dfree", vec!["free"]),
        ("descriptor=x=1,user=ann", vec!["ann"]),
        ("verdict=over&descriptor=user=ann%5C,b", vec!["ann,b"]),
    ];
    let open: Vec<_> = taps.iter().map(|(query, _)| Tap::open(admin, &format!("seconds=600&{query}")).0).collect();
    send();
    // The end of the server ends each tap, so that what came is all there was.
    served.stop().unwrap();
    for ((query, expected), tap) in taps.iter().zip(open) {
        let rest = tap.rest();
        let lines: Vec<Value> =
            rest.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect();
        let values: Vec<&str> =
            lines.iter().map(|line| line["descriptors"][0]["entries"][0][1].as_str().unwrap()).collect();
        assert_eq!(values, *expected, "{query}");
    }
}

#[test]
fn what_a_setting_or_a_failing_store_does_shows_in_the_verdict() {
    let served = Served::start(POLICY, &["shadow_mode=on"]);
    let (mut tap, _) = Tap::open(served.at.admin, "verdict=shadow");
    for _ in 0..3 {
        ask(&served, "user", "ann");
    }
    let line = tap.next();
    assert_eq!((&line["verdict"], &checked(&line)[0]["verdict"]), (&json!("ok"), &json!("shadow")));
    drop(served);

    // Nothing listens on that port.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let redis = format!("redis.url=redis://127.0.0.1:{port}");
    let served = Served::start(POLICY, &["store=redis", &redis, "redis.ready_after=0s", "on_error=error"]);
    let (mut tap, _) = Tap::open(served.at.admin, "verdict=error");
    let mut client = Client::connect(served.at.grpc);
    client.ask(rls::request("shop", &[("free", "x")])).unwrap();
    client.ask(rls::request("shop", &[("user", "ann")])).unwrap_err();
    let line = tap.next();
    let descriptors = checked(&line);
    assert_eq!((&line["verdict"], &descriptors[0]["rule"]), (&json!("error"), &json!("user")));
    assert!(descriptors[0].get("verdict").is_none() && descriptors[0].get("remaining").is_none(), "{line}");
}

#[test]
fn a_server_that_is_no_weir_is_named_with_what_it_sent() {
    for (body, expected) in [
        ("{}\n", "its first line is not a header of records"),
        ("", "its first line is not a header of records"),
        ("{\"weir_record\":2}\n", "its records have version 2"),
        ("{\"weir_record\":1}\n\u{1b}[31m\n", "a line is not a record: \\u{1b}[31m"),
        ("{\"weir_record\":1}\n", "has ended the tap without a reason"),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        let sender = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all([head.as_bytes(), body.as_bytes()].concat().as_slice()).unwrap();
        });
        let output = tap(server, &["--json"]).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(expected) && errors.contains(&server.to_string()), "{errors:?} is not {expected:?}");
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.chars().all(|c| c == '\n' || !c.is_control()), "{errors:?}");
        sender.join().unwrap();
    }
}

#[test]
fn a_sample_is_about_one_in_n() {
    let served = Served::start(POLICY, &["tap.records_per_second=1000000"]);
    let (tap, header) = Tap::open(served.at.admin, "sample=4&notes=true");
    assert_eq!(header["sample"], 4);
    let mut client = Client::connect(served.at.grpc);
    for _ in 0..1_000 {
        client.ask(rls::request("shop", &[("free", "x")])).unwrap();
    }
    served.stop().unwrap();
    let rest = tap.rest();
    let records = rest.lines().filter(|line| line.starts_with("{\"time\"")).count();
    // 250 in the middle; eight standard deviations to each side.
    assert!((140..360).contains(&records), "{records}");
    // What is not in the sample is not lost.
    assert!(rest.contains("\"lost\":0,\"note\":\"end\",\"reason\":\"shutdown\""), "{rest}");
}

#[test]
fn wrong_questions_are_answered_with_what_is_wrong() {
    let served = Served::start(POLICY, &["tap.max_duration=5s"]);
    for (query, expected) in [
        ("doman=shop", "did you mean \\\"domain\\\"?"),
        ("verdict=denied", "must be one of ok, over, shadow, error"),
        ("sample=0", "must be from 1 to 1000000"),
        ("seconds=6", "seconds = 6: at most 5 (tap.max_duration)"),
        ("descriptor=user", "has no"),
        ("domain=a&domain=b", "domain: given twice"),
        (
            "rule=usr",
            "no rule of the policies in force, see \\\"descriptor\\\" in /policies, did you mean \\\"user\\\"?",
        ),
        ("rule=user&domain=shp", "no rule of the policies in force, see \\\"descriptor\\\" in /policies\"}"),
    ] {
        let answer = http::get(served.at.admin, &format!("/tap?{query}")).unwrap();
        assert!(answer.status == 400 || answer.status == 404, "{query}: {answer:?}");
        assert!(answer.body.contains(expected), "{query}: {}", answer.body);
    }
    assert_eq!(http::get(served.at.http, "/tap").unwrap().status, 404, "the public listener has none of it");
    assert_eq!(served.metric("weir_taps"), Some(0));
}

#[test]
fn a_tap_needs_the_token_where_there_is_one() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "ann s3cret-s3cret-s3\n").unwrap();
    let served = Served::start(POLICY, &[&format!("admin.token_file={}", file.path().display())]);
    assert_eq!(http::get(served.at.admin, "/tap").unwrap().status, 401);
    let tap = |arguments: &[&str]| {
        let output = tap(served.at.admin, arguments).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, errors) = tap(&["--for", "1s"]);
    assert!(code == Some(1) && errors.contains("admin.token_file") && errors.contains("--token-file FILE"), "{errors}");
    let other = tempfile::NamedTempFile::new().unwrap();
    fs::write(other.path(), "other").unwrap();
    let (code, errors) = tap(&["--for", "1s", "--token-file", &other.path().display().to_string()]);
    assert!(code == Some(1) && errors.contains("the token of --token-file is not one of them"), "{errors}");
    fs::write(other.path(), "s3cret-s3cret-s3\n").unwrap();
    assert_eq!(tap(&["--for", "1s", "--token-file", &other.path().display().to_string()]).0, Some(0));
}

#[test]
fn values_are_shown_to_a_token_with_that_right_and_the_log_names_it() {
    const ANN: &str = "0123456789abcdef-ann";
    const BOB: &str = "0123456789abcdef-bob";
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("ann {ANN} tap-values\nbob {BOB}\n")).unwrap();
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = Weir::start(&policies.path(), &["--set", &format!("admin.token_file={}", file.path().display())]);
    let refused = |token: &str, expected: u16| {
        let headers = [("authorization", format!("Bearer {token}"))];
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        let answer = http::request(weir.admin, "GET", "/tap?values=shown", &headers, "").unwrap();
        assert_eq!(answer.status, expected, "{answer:?}");
        answer.body
    };
    assert!(refused(BOB, 403).contains("the right tap"));
    refused("other", 401);
    let opened = |line: &LogLine| line.message() == Some("a tap with values is open");
    assert_eq!(weir.count_in_log(opened), 0, "none was open");

    let (mut hidden, header) = Tap::with_token(weir.admin, "", BOB);
    assert_eq!(header["values"], "hidden");
    let (mut shown, header) = Tap::with_token(weir.admin, "values=shown&domain=shop&sample=1&seconds=60", ANN);
    assert_eq!(header["values"], "shown");
    Client::connect(weir.grpc).ask(rls::request("shop", &[("user", "carl")])).unwrap();
    assert_eq!(checked(&shown.next())[0]["entries"], json!([["user", "carl"]]));
    assert!(is_hidden(&checked(&hidden.next())[0]["entries"][0][1]), "another tap at the same time hides them");
    let by_ann = |line: &LogLine| {
        let fields = ["by", "domain", "seconds"].map(|name| line.field(name).cloned().unwrap_or_default());
        opened(line) && fields == [json!("ann"), json!("shop"), json!(60)]
    };
    assert!(weir.wait_for_log(0, PATIENCE, by_ann));
    assert_eq!(weir.count_in_log(opened), 1, "that of bob shows none");

    // Without a restart: bob gets the right, and loses it.
    fs::write(file.path(), format!("bob {BOB} tap-values\n")).unwrap();
    let (mut open, header) = Tap::with_token(weir.admin, "values=shown&notes=true", BOB);
    assert_eq!(header["values"], "shown");
    fs::write(file.path(), format!("bob {BOB}\n")).unwrap();
    refused(BOB, 403);
    // The tap that he has open ends too.
    let end = open.next();
    assert_eq!((&end["note"], &end["reason"]), (&json!("end"), &json!("token")), "{end}");
}

#[test]
fn without_a_file_of_tokens_no_tap_shows_what_the_setting_hides() {
    let served = Served::start(POLICY, &[]);
    assert_eq!(http::get(served.at.admin, "/tap?values=shown").unwrap().status, 403);
    let output = tap(served.at.admin, &["--for", "1s", "--values", "shown"]).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && errors.contains("the right tap"), "{errors}");
    let shown = Served::start(POLICY, &["tap.values=shown"]);
    assert_eq!(Tap::open(shown.at.admin, "").1["values"], "shown");
    assert_eq!(Tap::open(shown.at.admin, "values=hidden").1["values"], "hidden");
}

fn tap(server: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["tap", "--server", &server.to_string()]).args(arguments);
    command
}

fn piped(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until so many taps are open.
fn opened(served: &Served, taps: u64) {
    until("the tap", PATIENCE, || (served.metric("weir_taps") == Some(taps)).then_some(()));
}

#[test]
fn a_recording_is_new_whole_and_ends_as_it_should() {
    let served = Served::start(POLICY, &[]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("traffic.jsonl");
    let file = path.to_str().unwrap();
    let child = piped(tap(served.at.admin, &["--record", file, "--count", "3", "--rule", "user"]));
    opened(&served, 1);
    for value in ["ann", "bob", "ann", "never"] {
        ask(&served, "user", value);
        ask(&served, "plan", "free");
    }
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{errors}");
    assert_eq!(errors, format!("weir: 3 requests recorded in {file}, 0 lost\n"));
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["weir_record"], &lines[0]["values"]), (4, &json!(1), &json!("hidden")));
    let values: Vec<Value> = lines[1..].iter().map(|line| checked(line)[0]["entries"][0][1].clone()).collect();
    assert!(values[0] == values[2] && values[0] != values[1], "{text}");
    // What is there is kept, and replaced only where that is asked for.
    let refused = tap(served.at.admin, &["--record", file]).output().unwrap();
    let reason = String::from_utf8(refused.stderr).unwrap();
    assert_eq!((refused.status.code(), fs::read_to_string(&path).unwrap()), (Some(1), text));
    assert!(reason.contains("already exists: give another name, or --force"), "{reason}");
    let replaced = tap(served.at.admin, &["--record", file, "--force", "--for", "1s"]).output().unwrap();
    assert!(replaced.status.success(), "{replaced:?}");
    assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
}

#[test]
fn a_domain_that_no_policy_has_is_warned_of_and_shown_all_the_same() {
    let served = Served::start(POLICY, &[]);
    for (domain, expected) in [
        ("shpo", "has the domain \"shpo\", did you mean \"shop\"?\n"),
        ("other\u{1b}", "has the domain \"other\\u{1b}\"\n"),
    ] {
        let child = piped(tap(served.at.admin, &["--json", "--domain", domain, "--count", "1"]));
        opened(&served, 1);
        Client::connect(served.at.grpc).ask(rls::request(domain, &[("user", "ann")])).unwrap();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        let warning = format!("weir: warning: no policy of {} {expected}", served.at.admin);
        assert_eq!(errors, format!("{warning}weir: 1 request, 0 lost\n"));
        assert!(output.status.success() && output.stdout.iter().filter(|byte| **byte == b'\n').count() == 2);
        opened(&served, 0);
    }
    let output = tap(served.at.admin, &["--domain", "shop", "--for", "1s"]).output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "weir: 0 requests, 0 lost\n");
    // Readers who did not ask for notes get records alone.
    let (tap, _) = Tap::open(served.at.admin, "domain=shpo");
    served.stop().unwrap();
    assert!(!tap.rest().contains("note"));
}

#[test]
fn what_is_lost_after_the_last_record_is_counted_too() {
    let served = Served::start(POLICY, &["tap.records_per_second=1"]);
    let child = piped(tap(served.at.admin, &["--json", "--for", "2s"]));
    opened(&served, 1);
    for _ in 0..20 {
        ask(&served, "user", "ann");
    }
    let errors = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
    let numbers = ["weir_tap_records_total", "weir_tap_lost_records_total"].map(|name| served.metric(name).unwrap());
    let [recorded, lost] = numbers;
    assert!(recorded > 0 && lost > 0, "{numbers:?}");
    assert_eq!(errors, format!("weir: {recorded} request{}, {lost} lost\n", if recorded == 1 { "" } else { "s" }));
}

#[test]
fn a_recording_that_is_killed_has_what_came_before() {
    let served = Served::start(POLICY, &[]);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("traffic.jsonl");
    let mut child = piped(tap(served.at.admin, &["--record", path.to_str().unwrap()]));
    opened(&served, 1);
    ask(&served, "user", "ann");
    let lines = || fs::read_to_string(&path).unwrap_or_default().lines().count();
    until("the record", PATIENCE, || (lines() == 2).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(lines(), 2);
    // The place of one that went away without a word is free again.
    opened(&served, 0);
}

#[test]
fn an_interrupt_ends_a_tap_with_a_summary_and_the_end_of_the_server_is_an_error() {
    let served = Served::start(POLICY, &[]);
    let first = |child: &mut Child| {
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    };
    for signal in ["INT", "TERM"] {
        let mut child = piped(tap(served.at.admin, &["--json"]));
        assert!(first(&mut child).starts_with("{\"weir_record\":1,"));
        let status = Command::new("sh").args(["-c", &format!("kill -{signal} {}", child.id())]).status();
        assert!(status.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), errors.as_str()), (Some(0), "weir: 0 requests, 0 lost\n"), "{signal}");
        opened(&served, 0);
    }
    let mut child = piped(tap(served.at.admin, &["--json"]));
    first(&mut child);
    ask(&served, "user", "ann");
    let admin = served.at.admin;
    served.stop().unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors, format!("weir: 1 request, 0 lost\nweir: {admin} is stopping, which ends the tap\n"));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_terminal_shows_rows_and_no_text_controls_it() {
    let served = Served::start(POLICY, &["tap.values=shown"]);
    let mut shown = OnTerminal::start(tap(served.at.admin, &[]), 24, 120);
    shown.shows("DESCRIPTOR");
    for _ in 0..3 {
        ask(&served, "user", HOSTILE);
    }
    shown.shows("over     shop");
    shown.shows("user=\\u{1b}]0;taken\\u{7}\\u{1b}[2J\\u{202e}\\n\"x");
    let raw = shown.raw();
    for escape in ["\u{1b}]0;", "\u{7}", "\u{202e}", "\u{1b}[2J"] {
        assert!(!raw.windows(escape.len()).any(|window| window == escape.as_bytes()), "{escape:?}");
    }
    assert!(raw.windows(5).any(|window| window == b"\x1b[31m"), "colour on a terminal");
    shown.signal("INT");
    assert_eq!(shown.ended().code(), Some(0));
}

#[test]
fn a_tap_shows_what_holds_charge_and_settles_give_back() {
    let served = Served::start(
        "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 100, hold: true}}\n",
        &["holds.receipt_key=gateway.receipt"],
    );
    let (mut tap, _) = Tap::open(served.at.admin, "");
    let mut ask = |hits: u64, receipt: Option<&str>| -> (Value, Value) {
        let mut entries = vec![json!({"key": "user", "value": "ann"})];
        entries.extend(receipt.map(|receipt| json!({"key": "gateway.receipt", "value": receipt})));
        let body = json!({"domain": "shop", "descriptors": [{"entries": entries, "hitsAddend": hits}]});
        let answer = http::post_json(served.at.http, "/json", &body.to_string()).unwrap();
        let line = tap.next();
        checked(&line);
        (serde_json::from_str(&answer.body).unwrap(), line)
    };
    let shown = |line: &Value| {
        ["settle", "held", "given_back", "look", "remaining"].map(|name| line["descriptors"][0][name].clone())
    };
    let (opened, line) = ask(40, None);
    assert_eq!(
        (&line["hits"], shown(&line)),
        (&json!(40), [json!(null), json!(40), json!(null), json!(null), json!(60)])
    );
    let (_, line) = ask(7, opened["receipt"].as_str());
    assert_eq!(
        (&line["hits"], shown(&line)),
        (&json!(7), [json!(true), json!(null), json!(33), json!(null), json!(93)])
    );
    assert!(!line.to_string().contains("receipt"), "it is in no line: {line}");
    let (_, line) = ask(0, Some("none"));
    assert_eq!(
        (&line["hits"], shown(&line)),
        (&json!(0), [json!(true), json!(null), json!(null), json!(null), json!(93)])
    );
}

#[test]
fn a_tap_names_the_caller_if_callers_have_rights() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("callers.yaml");
    fs::write(&file, "callers: [{name: edge, listeners: [http], domains: [shop], may: [charge]}]\n").unwrap();
    let policy = "domain: shop\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 100}}\n";
    let served = Served::start(policy, &[&format!("callers.file={}", file.display())]);
    let (mut tap, _) = Tap::open(served.at.admin, "");
    let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]});
    assert_eq!(http::post_json(served.at.http, "/json", &body.to_string()).unwrap().status, 200);
    let line = tap.next();
    assert_eq!((&line["caller"], &line["verdict"]), (&json!("edge"), &json!("ok")), "{line}");
}

/// [hd-5]
#[test]
fn a_settle_on_a_full_limit_is_ok() {
    let policy = "domain: shop\ndescriptors:\n- key: user\n  rate_limits:\n  - {rate: 100/d, hold: true, name: h}\n\
                  \x20 - {rate: 1/d, algorithm: sliding_window, name: t}\n";
    for (settings, verdict) in [(&[][..], "ok"), (&["shadow_mode=on"], "shadow")] {
        let served = Served::start(policy, settings);
        let (mut tap, _) = Tap::open(served.at.admin, "");
        ask(&served, "user", "ann");
        assert_eq!(checked(&tap.next())[0]["verdict"], "ok");
        let settle = rls::request("shop", &[("user", "ann"), ("weir.receipt", "none")]);
        Client::connect(served.at.grpc).ask(settle).unwrap();
        assert_eq!(checked(&tap.next())[0]["verdict"], verdict, "{settings:?}");
    }
}
