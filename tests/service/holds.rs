//! Holds as callers meet them: receipts by gRPC and HTTP, bad ones, and callers that go away. Not in here: what a settle does to a
//! state (store/holds.rs).

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::process::Command;
use std::time::Duration;

use envoy_types::pb::google::protobuf::UInt64Value;
use envoy_types::pb::google::protobuf::value::Kind;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tonic::Code;

use crate::support::http;
use crate::support::process::binary;
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client, RateLimitRequest, RateLimitResponse};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000000, hold: true}}
";

/// A request of ann for so many hits, and with a receipt if it settles.
fn ann(hits: u64, receipt: Option<&str>) -> RateLimitRequest {
    let mut entries = vec![("user", "ann")];
    entries.extend(receipt.map(|receipt| ("weir.receipt", receipt)));
    let mut request = rls::request("shop", &entries);
    request.descriptors[0].hits_addend = Some(UInt64Value { value: hits });
    request
}

/// The receipt in the dynamic metadata of an answer.
fn receipt_of(answer: &RateLimitResponse) -> Option<String> {
    let ours = answer.dynamic_metadata.as_ref()?.fields.get("weir.shop")?;
    let Some(Kind::StructValue(ours)) = &ours.kind else { panic!("{ours:?}") };
    let Some(Kind::StringValue(receipt)) = &ours.fields.get("receipt")?.kind else { panic!("{ours:?}") };
    Some(receipt.clone())
}

fn remaining(answer: &RateLimitResponse) -> u32 {
    answer.statuses[0].limit_remaining
}

#[test]
fn a_receipt_comes_back_by_grpc_and_by_http() {
    let served = Served::start(POLICY, &[]);
    let mut client = Client::connect(served.at.grpc);
    let opened = client.ask(ann(2_000, None)).unwrap();
    assert_eq!(remaining(&opened), 998_000);
    let receipt = receipt_of(&opened).expect("an admitted request has one");
    let settled = client.ask(ann(37, Some(&receipt))).unwrap();
    assert_eq!((remaining(&settled), receipt_of(&settled)), (999_963, None));
    let post = |hits: u64, receipt: Option<&str>| {
        let mut entries = vec![json!({"key": "user", "value": "ann"})];
        entries.extend(receipt.map(|receipt| json!({"key": "weir.receipt", "value": receipt})));
        let body = json!({"domain": "shop", "descriptors": [{"entries": entries, "hitsAddend": hits}]});
        http::post_json(served.at.http, "/json", &body.to_string()).expect("an answer")
    };
    let opened: Value = serde_json::from_str(&post(100, None).body).unwrap();
    let settled: Value = serde_json::from_str(&post(0, opened["receipt"].as_str()).body).unwrap();
    assert_eq!((&settled["statuses"][0]["limitRemaining"], settled.get("receipt")), (&json!(999_963), None));
    let refused = post(1, Some("x"));
    assert_eq!(refused.status, 400);
    assert!(
        refused.body.starts_with("descriptors[0].entries[1].value: neither none nor a receipt"),
        "{}",
        refused.body
    );
    assert_eq!(served.metric("weir_holds_total{domain=\"shop\",result=\"settled\"}"), Some(2));
    assert_eq!(served.metric("weir_hold_hits_total{domain=\"shop\",kind=\"given_back\"}"), Some(2_063));
}

#[test]
fn a_hold_is_opened_and_settled_from_the_command_line() {
    let served = Served::start(POLICY, &[]);
    let ask = |more: &[&str]| {
        let server = served.at.grpc.to_string();
        let output = Command::new(binary()).args(["ask", &server, "shop", "user=ann"]).args(more).output();
        String::from_utf8(output.expect("weir runs").stdout).expect("text")
    };
    let opened = ask(&["--hits", "2000"]);
    assert!(opened.contains("998000 of 1000000 per year left"), "{opened}");
    let receipt = opened.lines().find_map(|line| line.strip_prefix("receipt ")).unwrap_or_else(|| panic!("{opened}"));
    let settled = ask(&["--settle", receipt, "--hits", "37"]);
    assert!(settled.contains("999963 of 1000000 per year left") && !settled.contains("receipt"), "{settled}");
    // All of another hold goes back.
    let opened = ask(&["--hits", "500"]);
    let receipt = opened.lines().find_map(|line| line.strip_prefix("receipt ")).unwrap_or_else(|| panic!("{opened}"));
    let released = ask(&["--settle", receipt, "--hits", "0"]);
    assert!(released.contains("999963 of 1000000 per year left"), "{released}");
}

/// A budget of ten million dollars was shown as `4294967295 of 4294967295`.
#[test]
fn a_budget_is_shown_in_dollars_on_the_command_line() {
    let policy = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/budgets/team.yaml")).unwrap();
    let ask = |settings: &[&str]| {
        let served = Served::start(&policy, settings);
        let server = served.at.grpc.to_string();
        let question = ["ask", &server, "ai", "team=search", "tokens=search", "--hits", "2500000", "--hits", "8000"];
        let output = Command::new(binary()).args(question).output().expect("weir runs");
        String::from_utf8(output.stdout).expect("text")
    };
    let exact = ask(&["response.dynamic_metadata=on"]);
    assert!(exact.contains("team=search   OK   9999997.50 of 10000000.00 usd per month left, resets in "), "{exact}");
    assert!(exact.contains("tokens=search   OK   192000 of 200000 per minute left"), "{exact}");
    let bounded = ask(&[]);
    assert!(bounded.contains("4294967295 or more of 4294967295 or more per month left"), "{bounded}");
    assert!(bounded.contains("; response.dynamic_metadata shows all digits\n"), "{bounded}");
}

#[test]
fn a_bad_receipt_is_refused_by_its_place_and_means_nothing_without_holds() {
    let served = Served::start(POLICY, &[]);
    let mut client = Client::connect(served.at.grpc);
    for bad in ["", "1.", "2.AAAA", &"x".repeat(5_000)] {
        let refused = client.ask(ann(1, Some(bad))).unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with("descriptors[0].entries[1].value: "), "{refused}");
    }
    assert_eq!(remaining(&client.ask(ann(0, Some("none"))).unwrap()), 1_000_000);
    let plain = Served::start(&POLICY.replace(", hold: true", ""), &[]);
    let answer = Client::connect(plain.at.grpc).ask(ann(1, Some("x"))).unwrap();
    assert_eq!(
        (receipt_of(&answer), &answer.statuses[0].current_limit),
        (None, &None),
        "it is an entry like any other"
    );
}

#[test]
fn a_setting_renames_the_entry_that_returns_a_receipt() {
    const KEY: &str = "gateway.receipt";
    let served = Served::start(POLICY, &[&format!("holds.receipt_key={KEY}")]);
    let mut client = Client::connect(served.at.grpc);
    let returned = |key: &str, receipt: &str| {
        let mut request = rls::request("shop", &[("user", "ann"), (key, receipt)]);
        request.descriptors[0].hits_addend = Some(UInt64Value { value: 0 });
        request
    };
    let open = |client: &mut Client| receipt_of(&client.ask(ann(100, None)).unwrap()).expect("a receipt");
    let receipt = open(&mut client);
    let other = client.ask(returned("weir.receipt", &receipt)).unwrap();
    assert_eq!(other.statuses[0].current_limit, None, "an entry like any other, which no rule meets");
    assert_eq!(remaining(&client.ask(returned(KEY, &receipt)).unwrap()), 1_000_000);
    let refused = client.ask(returned(KEY, "x")).unwrap_err();
    assert!(refused.message().starts_with("descriptors[0].entries[1].value: "), "{refused}");
    // By HTTP.
    let receipt = open(&mut client);
    let entries = json!([{"key": "user", "value": "ann"}, {"key": KEY, "value": receipt}]);
    let body = json!({"domain": "shop", "descriptors": [{"entries": entries, "hitsAddend": 0}]});
    let answer = http::post_json(served.at.http, "/json", &body.to_string()).expect("an answer");
    assert!(answer.body.contains(r#""limitRemaining":1000000"#), "{}", answer.body);
    // From the command line, which takes the key from its argument.
    let receipt = open(&mut client);
    let server = served.at.grpc.to_string();
    let mut command = Command::new(binary());
    command.args(["ask", &server, "shop", "user=ann", "--hits", "7", "--settle", &format!("{KEY}={receipt}")]);
    let output = command.output().expect("weir runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("999993 of 1000000 per year left"), "{text}");
    let count = |result: &str| served.metric(&format!("weir_holds_total{{domain=\"shop\",result=\"{result}\"}}"));
    assert_eq!([count("opened"), count("settled"), count("lost").or(Some(0))], [Some(3), Some(3), Some(0)]);
}

/// Every answer that a caller has read keeps its hit; of the others those that HTTP/2 had not taken are released. [hd-9]
#[test]
fn what_callers_opened_that_went_away_is_released() {
    const CALLS: u64 = 10_000;
    /// Calls of one connection: weir closes one whose caller cancels many more.
    const TOGETHER: u64 = 50;
    let redis = RedisServer::start();
    let settings = ["store=redis", &format!("redis.url={}", redis.url()), "redis.timeout=5s"];
    let served = Served::start(POLICY, &settings);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut answered, long) = (0, "x".repeat(20_000));
    runtime.block_on(async {
        for wave in 0..CALLS / TOGETHER {
            let channel = rls::channel(served.at.grpc).await;
            let calls = (0..TOGETHER).map(|call| {
                // From 0 to 2 ms: before the request is sent, while Redis is asked, and after the answer. One of ten waits.
                let timeout = Duration::from_micros((wave * TOGETHER + call) * 7 % 2_000);
                let patience = if call % 10 == 0 { PATIENCE } else { timeout };
                let mut request = ann(1, None);
                if call % 5 == 0 {
                    // It is decided on the thread for long messages.
                    request.descriptors.extend(rls::request("shop", &[("other", &long)]).descriptors);
                }
                tokio::time::timeout(patience, rls::ask(channel.clone(), request))
            });
            for answer in join_all(calls).await.into_iter().flatten() {
                answered += u64::from(receipt_of(&answer.expect("an answer")).is_some());
            }
        }
    });
    let count =
        |result: &str| served.metric(&format!("weir_holds_total{{domain=\"shop\",result=\"{result}\"}}")).unwrap();
    let mut client = Client::connect(served.at.grpc);
    // The last ones go on for a moment.
    let kept = until("all releases to end", PATIENCE, || {
        let used = 1_000_000 - u64::from(remaining(&client.ask(ann(0, None)).unwrap()));
        (used == count("opened") - count("settled")).then_some(used)
    });
    println!(
        "{CALLS} calls: {} opened, {answered} answers read, {} released, {kept} kept",
        count("opened"),
        count("settled")
    );
    assert!(answered >= CALLS / 10, "{answered}: those who wait are answered");
    assert!(kept >= answered, "an answer that was read was released: {kept} of {answered}");
    assert!(count("settled") > 0 && count("lost") == 0, "nothing was released");
}

/// Redis stands still until all callers have gone, so that none of them can have its answer. [hd-9]
#[test]
fn what_callers_of_json_opened_that_went_away_is_released() {
    const CALLS: u64 = 20;
    let redis = RedisServer::start();
    let settings = ["store=redis", &format!("redis.url={}", redis.url()), "redis.timeout=60s"];
    let served = Served::start(POLICY, &settings);
    let mut client = Client::connect(served.at.grpc);
    assert_eq!(remaining(&client.ask(ann(0, None)).unwrap()), 1_000_000);
    let body = json!({"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}).to_string();
    redis.freeze();
    let head = http::head("POST", "/json", &[("content-type", "application/json")], body.len());
    for _ in 0..CALLS {
        let mut caller = http::connect(served.at.http).expect("a connection");
        caller.write_all(format!("{head}{body}").as_bytes()).expect("a request");
        // Its handler has begun when a later one has ended: both run on one thread.
        http::get(served.at.http, "/metrics").expect("an answer");
        caller.shutdown(Shutdown::Write).expect("it was open");
        // weir takes that for the end of the caller, and closes the connection without an answer.
        assert_eq!(caller.read_to_end(&mut Vec::new()).expect("the end"), 0);
    }
    redis.thaw();
    let count =
        |result: &str| served.metric(&format!("weir_holds_total{{domain=\"shop\",result=\"{result}\"}}")).unwrap();
    until("all holds to be released", PATIENCE, || (count("settled") == CALLS).then_some(()));
    assert_eq!((count("opened"), count("lost")), (CALLS, 0));
    assert_eq!(remaining(&client.ask(ann(0, None)).unwrap()), 1_000_000);
}
