//! `/states`: the states of one rule, page by page, in memory and in Redis.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weir_api::states::{DescriptorStates, StatePage};

use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::served::Served;

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, requests_per_unit: 3, unit: hour}}
  - {key: us, rate_limit: {requests_per_unit: 3, unit: hour}}
  - key: plan
    value: free
    rate_limit: {requests_per_unit: 10, unit: day}
    descriptors:
      - {key: path, rate_limit: {requests_per_unit: 10, unit: day, algorithm: token_bucket}}
  - {key: client, value: 10.*, share_threshold: true, rate_limit: {requests_per_unit: 7, unit: hour}}
  - {key: vip, rate_limit: {unlimited: true}}
";

fn ask(served: &Served, times: usize, entries: &[(&str, &str)]) {
    let mut client = Client::connect(served.at.grpc);
    for _ in 0..times {
        client.ask(rls::request("shop", entries)).unwrap();
    }
}

fn page(served: &Served, path: &str) -> Value {
    let answer = http::get(served.at.admin, path).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    let page: Value = serde_json::from_str(&answer.body).unwrap();
    let typed = match path.starts_with("/states") {
        true => serde_json::to_value(serde_json::from_str::<StatePage>(&answer.body).unwrap()),
        false => serde_json::to_value(serde_json::from_str::<DescriptorStates>(&answer.body).unwrap()),
    };
    assert_eq!(typed.unwrap(), page, "the types have all of it");
    page
}

/// All pages of a rule: used and remaining, by descriptor. And how many pages there were.
fn all(served: &Served, rule: &str, max: usize) -> (BTreeMap<String, (u64, u64)>, usize) {
    let (mut states, mut pages, mut from) = (BTreeMap::new(), 0, String::new());
    loop {
        let page = page(served, &format!("/states?domain=shop&rule={rule}&max={max}{from}"));
        pages += 1;
        for state in page["states"].as_array().unwrap() {
            let number = |name: &str| state[name].as_u64().unwrap();
            assert!(
                number("reset_after_us") > 0 && number("capacity") == number("used") + number("remaining"),
                "{state}"
            );
            let descriptor = state["descriptor"].as_str().unwrap().to_owned();
            states.insert(descriptor, (number("used"), number("remaining")));
        }
        match page["next"].as_str() {
            Some(next) => from = format!("&from={next}"),
            None => return (states, pages),
        }
        assert!(pages < 1_000);
    }
}

fn states_are_listed_by_rule(served: &Served) {
    ask(served, 2, &[("user", "ann")]);
    ask(served, 5, &[("user", "a,b*[?")]);
    ask(served, 1, &[("us", "er=ann")]);
    ask(served, 1, &[("plan", "free"), ("path", "/x")]);
    ask(served, 1, &[("plan", "free")]);
    ask(served, 2, &[("client", "10.0.0.1")]);
    ask(served, 2, &[("client", "10.0.0.2")]);
    let of = |rule: &str| all(served, rule, 100).0.into_iter().collect::<Vec<_>>();
    assert_eq!(of("user"), [("user=a\\,b*[?".into(), (3, 0)), ("user=ann".into(), (2, 1))]);
    assert_eq!(of("us"), [("us=er=ann".into(), (1, 2))]);
    assert_eq!(of("plan=free%7Cpath"), [("plan=free,path=/x".into(), (1, 9))]);
    assert_eq!(of("plan=free"), [("plan=free".into(), (1, 9))]);
    assert_eq!(of("client=10.*"), [("client=10.*".into(), (4, 3))]);
    assert_eq!(of("vip"), []);

    // A value that is too long for a key is cut, and the answer says so.
    ask(served, 1, &[("user", &"x".repeat(250))]);
    let page = page(served, "/states?domain=shop&rule=user");
    let cut: Vec<&Value> = page["states"].as_array().unwrap().iter().filter(|state| state["cut"] == true).collect();
    assert_eq!(cut.len(), 1, "{page}");
    assert!(cut[0]["descriptor"].as_str().unwrap().starts_with("user=xxxx") && cut[0]["used"] == 1, "{page}");
}

fn many_states_come_in_pages(served: &Served, states_max: usize) {
    let mut client = Client::connect(served.at.grpc);
    for number in 0..700 {
        client.ask(rls::request("shop", &[("user", &format!("u{number:03}"))])).unwrap();
    }
    let (states, pages) = all(served, "user", 50);
    assert_eq!(states.len(), 700);
    assert!(pages > 3, "{pages}");
    let first = page(served, "/states?domain=shop&rule=user&max=50");
    assert!(first["states"].as_array().unwrap().len() <= states_max, "{}", first["states"].as_array().unwrap().len());
}

#[test]
fn states_in_memory_are_listed_by_rule() {
    states_are_listed_by_rule(&Served::start(POLICY, &[]));
}

#[test]
fn many_states_in_memory_come_in_pages() {
    many_states_come_in_pages(&Served::start(POLICY, &["memory.max_keys=1000"]), 50 + 256);
}

#[test]
fn states_in_redis_are_listed_by_rule() {
    let redis = RedisServer::start();
    let settings = ["store=redis".to_owned(), format!("redis.url={}", redis.url()), "redis.timeout=2s".to_owned()];
    let served = Served::start(POLICY, &settings.each_ref().map(String::as_str));
    states_are_listed_by_rule(&served);
    many_states_come_in_pages(
        &Served::start(POLICY, &[&settings[0], &settings[1], &settings[2], "redis.key_prefix=e*:"]),
        50 + 256,
    );
}

const CUSTOMERS: &str = "\
domain: shop
descriptors:
  - key: tenant
    rows: {default: free}
    rate_limits:
      - {rate: 5/h, name: calls, plans: {gold: 500/h, weekly: 40/week, max: unlimited}}
      - {rate: 9/day, name: daily}
";

/// Sets the row of a tenant.
fn set_row(served: &Served, tenant: &str, mut row: Value) {
    row["domain"] = json!("shop");
    row["descriptor"] = json!(format!("tenant={tenant}"));
    let answer = http::request(served.at.admin, "PUT", "/rows", &[], &row.to_string()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
}

fn numbers_in_force_are_shown(served: &Served) {
    const HOUR_US: u64 = 3_600_000_000;
    // Many, so that a page reads rows in several batches.
    let tenants: Vec<String> = (0..40).map(|number| format!("t{number:02}")).collect();
    for (number, tenant) in tenants.iter().enumerate() {
        let requests = 100 + number;
        set_row(served, tenant, json!({"limits": [{"name": "calls", "requests": requests, "window_us": HOUR_US}]}));
    }
    set_row(served, "gold", json!({"plan": "gold"}));
    set_row(served, "weekly", json!({"plan": "weekly"}));
    set_row(served, "ended", json!({"plan": "gold", "until": "2020-01-01T00:00:00Z"}));
    for tenant in tenants.iter().map(String::as_str).chain(["gold", "weekly", "none", "later"]) {
        ask(served, 2, &[("tenant", tenant)]);
    }
    // From here on its limit by the hour is unlimited. What it has used stays.
    set_row(served, "later", json!({"plan": "max"}));
    let mut shown = BTreeMap::new();
    let mut from = String::new();
    loop {
        let page = page(served, &format!("/states?domain=shop&rule=tenant&max=10{from}"));
        for state in page["states"].as_array().unwrap() {
            let key = (state["descriptor"].as_str().unwrap()["tenant=".len()..].to_owned(), state["limit"].to_string());
            let numbers = ["capacity", "used", "remaining", "unlimited"].map(|name| state[name].clone());
            shown.insert(key, numbers);
        }
        match page["next"].as_str() {
            Some(next) => from = format!("&from={next}"),
            None => break,
        }
    }
    let of = |tenant: &str, limit: &str| shown[&(tenant.to_owned(), format!("\"{limit}\""))].clone();
    let limited = |capacity: usize| [json!(capacity), json!(2), json!(capacity - 2), json!(false)];
    for (number, tenant) in tenants.iter().enumerate() {
        assert_eq!(of(tenant, "calls"), limited(100 + number), "{tenant}");
    }
    assert_eq!((of("gold", "calls"), of("gold", "daily")), (limited(500), limited(9)));
    assert_eq!(of("weekly", "calls"), limited(40));
    assert_eq!(of("none", "calls"), limited(5));
    assert_eq!(of("later", "calls"), [Value::Null, json!(2), Value::Null, json!(true)]);
    assert_eq!(of("later", "daily"), limited(9));
    assert_eq!(shown.len(), 2 * 44, "two limits of each tenant that has asked");

    // An ended row has no numbers.
    ask(served, 1, &[("tenant", "ended")]);
    set_row(served, "ended", json!({"plan": "gold", "until": "2020-01-01T00:00:00Z"}));
    let ended = page(served, "/state?domain=shop&descriptor=tenant=ended");
    assert_eq!(ended["limits"][0]["requests"], 5, "{ended}");

    // The state of a limit that is unlimited at present is shown, and can be reset.
    set_row(served, "both", json!({"plan": "weekly"}));
    ask(served, 3, &[("tenant", "both")]);
    set_row(served, "both", json!({"plan": "max"}));
    let state = page(served, "/state?domain=shop&descriptor=tenant=both");
    let limits: Vec<Value> = state["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| {
            json!([
                limit["window_us"].as_u64().unwrap() / HOUR_US,
                limit["requests"],
                limit["remaining"],
                limit["stored"],
                limit["unlimited"]
            ])
        })
        .collect();
    let expected = json!([[24, 9, 6, true, false], [1, null, null, false, true], [168, null, null, true, true],]);
    assert_eq!(json!(limits), expected, "{state}");
    let reset = http::request(served.at.admin, "DELETE", "/state?domain=shop&descriptor=tenant=both", &[], "").unwrap();
    assert_eq!(reset.status, 200, "{}", reset.body);
    let reset: Value = serde_json::from_str(&reset.body).unwrap();
    assert_eq!((&reset["stored"], reset["keys"].as_array().unwrap().len()), (&json!(2), 3), "{reset}");
    assert_eq!(reset["unlimited"], json!(["w1:{shop|tenant=both}f3600s", "w1:{shop|tenant=both}f604800s"]));
    set_row(served, "both", json!({"plan": "weekly"}));
    let state = page(served, "/state?domain=shop&descriptor=tenant=both");
    assert_eq!((&state["limits"][0]["remaining"], &state["limits"][0]["stored"]), (&json!(40), &json!(false)));
}

#[test]
fn states_in_memory_have_the_numbers_in_force_under_a_row() {
    numbers_in_force_are_shown(&Served::start(CUSTOMERS, &[]));
}

#[test]
fn states_in_redis_have_the_numbers_in_force_under_a_row() {
    let redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    numbers_in_force_are_shown(&Served::start(CUSTOMERS, &["store=redis", &url, "redis.timeout=5s"]));
}

/// A token of one team read the values of another: the prefix of a rule whose key has a `*` lacked the end of the domain, and a
/// shortened key had no whole domain.
#[test]
fn a_rule_lists_no_state_of_a_domain_whose_name_begins_as_its_own() {
    let first = "d".repeat(128);
    let of = |domain: &str, key: &str| {
        let limit = "{requests_per_unit: 3, unit: hour}";
        (format!("{key}.yaml"), format!("domain: {domain}\ndescriptors: [{{key: '{key}', rate_limit: {limit}}}]\n"))
    };
    let (long, longer) = (format!("{first}x"), format!("{first}y"));
    let files = [of("team-a", "u*"), of("team-ab", "uid"), of(&first, "a*"), of(&long, "abc"), of(&longer, "abd")];
    let policies = PolicyDirectory::with_files(&files);
    let weir = Weir::start(&policies.path(), &["--set", "policies.compatible=on"]);
    let mut client = Client::connect(weir.grpc);
    for (domain, key) in [("team-a", "uvw"), ("team-ab", "uid"), (&*first, "abx"), (&*long, "abc"), (&*longer, "abd")] {
        for value in ["short", &"secret".repeat(50)] {
            client.ask(rls::request(domain, &[(key, value)])).unwrap();
        }
    }
    let listed = |domain: &str, rule: &str| -> Vec<String> {
        let answer = http::get(weir.admin, &format!("/states?domain={domain}&rule={rule}")).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        let page: StatePage = serde_json::from_str(&answer.body).unwrap();
        let mut keys: Vec<String> =
            page.states.iter().map(|state| state.descriptor[..state.descriptor.len().min(9)].to_owned()).collect();
        keys.sort_unstable();
        keys
    };
    assert_eq!(listed("team-a", "u*"), ["uvw=secre", "uvw=short"]);
    assert_eq!(listed("team-ab", "uid"), ["uid=secre", "uid=short"]);
    // Their shortened keys have no whole domain.
    assert_eq!(listed(&first, "a*"), ["abx=short"]);
    assert_eq!(listed(&long, "abc"), ["abc=short"]);
    assert_eq!(listed(&longer, "abd"), ["abd=short"]);
}

#[test]
fn wrong_questions_are_answered_with_what_is_wrong() {
    let served = Served::start(POLICY, &["admin.values=hidden"]);
    for (path, status, expected) in [
        ("/states?domain=shop&rule=usr", 404, "no rule of the policies in force"),
        ("/states?domain=shop&rule=user&max=257", 400, "max = 257: must be from 1 to 256"),
        ("/states?domain=shop&rule=user&from=x", 400, "from: must be the"),
        ("/states?domain=shop", 400, "the query has no rule: write ?rule=..."),
    ] {
        let answer = http::get(served.at.admin, path).unwrap();
        assert_eq!(answer.status, status, "{path}");
        assert!(answer.body.contains(expected), "{path}: {}", answer.body);
    }
    let far = page(&served, "/states?domain=shop&rule=user&from=0-4000000000-7");
    assert_eq!((far["states"].as_array().unwrap().len(), &far["next"]), (0, &Value::Null));
    ask(&served, 1, &[("user", "ann")]);
    let hidden = page(&served, "/states?domain=shop&rule=user");
    assert!(hidden["states"][0]["descriptor"] == "user=*" && !hidden.to_string().contains("ann"), "{hidden}");
}
