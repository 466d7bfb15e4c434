//! Rows by `weir rows`, `/rows` and files: what they do to decisions, who sets them, and what wrong lines do.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::http::{self, Answer};
use crate::support::process::{LogLine, Process, Weir, binary};
use crate::support::redis::RedisServer;
use crate::support::rls::Client;
use crate::support::served::{Served, metric};
use crate::support::wait::{PATIENCE, until};

pub(super) const POLICY: &str = "\
domain: shop
descriptors:
  - key: tenant
    rows: {default: free}
    rate_limits:
      - {rate: 3/day, name: daily, plans: {gold: 7/day, max: unlimited}}
      - {rate: 9/h, name: hourly, plans: {max: unlimited}}
  - {key: plain, rate_limit: 4/h}
";

/// How many of the next requests of this tenant pass, up to `most`.
fn passes(grpc: SocketAddr, tenant: &str, most: usize) -> usize {
    let mut client = Client::connect(grpc);
    (0..most).take_while(|_| client.admits("shop", "tenant", tenant)).count()
}

fn weir(admin: SocketAddr, arguments: &[&str]) -> Output {
    let server = admin.to_string();
    let words = ["rows"].iter().chain(arguments).chain(&["--server"]);
    Command::new(binary()).args(words).arg(server).output().expect("weir runs")
}

/// What a command that succeeds prints.
pub(super) fn done(admin: SocketAddr, arguments: &[&str]) -> String {
    let output = weir(admin, arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The exit code and the error of a command that fails.
pub(super) fn failed(admin: SocketAddr, arguments: &[&str]) -> (Option<i32>, String) {
    let output = weir(admin, arguments);
    assert!(!output.status.success(), "{output:?}");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// What `weir explain` prints for a descriptor, from a server.
fn explained_row(admin: SocketAddr, descriptor: &str) -> String {
    let words = ["explain", "--server", &admin.to_string(), "shop", descriptor];
    String::from_utf8(Command::new(binary()).args(words).output().expect("weir runs").stdout).unwrap()
}

pub(super) fn request(admin: SocketAddr, method: &str, path: &str, token: Option<&str>, body: &str) -> Answer {
    let token = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = token.iter().map(|value| ("authorization", value.as_str())).collect();
    http::request(admin, method, path, &headers, body).unwrap()
}

pub(super) fn file(directory: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Writes a file in one step, so that a server never reads a part of it.
fn replace(directory: &tempfile::TempDir, name: &str, text: &str) {
    let new = file(directory, "new", text);
    fs::rename(new, directory.path().join(name)).unwrap();
}

#[test]
fn rows_are_imported_shown_changed_and_exported_with_either_store() {
    let redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    // A busy machine answers late.
    for (settings, kept) in [
        (&[][..], "kept in the memory of this server: lost when it stops, and not shared with other servers\n"),
        (
            &["store=redis", &url, "redis.timeout=5s"],
            "kept in redis: in force at the next decision of every server that shares it\n",
        ),
    ] {
        let served = Served::start(POLICY, settings);
        let (admin, grpc) = (served.at.admin, served.at.grpc);
        let directory = tempfile::tempdir().unwrap();
        let customers = file(
            &directory,
            "customers.csv",
            "domain,tenant,plan,limits,until,note\nshop,acme,gold,,,\nshop,\"a,b\",,daily=5/day,2041-01-01,\"by, contract\"\n\nshop,big,max,,,\n",
        );
        assert_eq!(done(admin, &["import", &customers]), "3 rows written, 0 were the same, 0 wrong\n");
        assert_eq!(done(admin, &["import", &customers]), "0 rows written, 3 were the same, 0 wrong\n");
        assert_eq!(
            (passes(grpc, "acme", 20), passes(grpc, "a,b", 20), passes(grpc, "big", 20), passes(grpc, "new", 20)),
            (7, 5, 20, 3),
            "{settings:?}"
        );
        let limited = http::get(admin, "/limited?domain=shop&rule=tenant").unwrap().body;
        let limited: Value = serde_json::from_str(&limited).unwrap();
        let row_of = |tenant: &str| {
            let keys = limited["limits"].as_array().unwrap().iter().flat_map(|limit| limit["keys"].as_array().unwrap());
            keys.filter(|key| key["descriptor"] == tenant).map(|key| key["row"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(row_of("tenant=acme"), [json!("plan gold")], "{limited}");
        assert_eq!(row_of("tenant=a\\,b"), [json!("daily=5/day")], "{limited}");
        assert_eq!(row_of("tenant=new"), [Value::Null], "{limited}");
        assert_eq!(done(admin, &["get", "shop", "tenant=acme"]), "shop tenant=acme   plan gold\n");
        let set = done(admin, &["set", "shop", "tenant=acme", "--limits", "daily=9/day", "--note", "paid"]);
        let changed = "written   shop tenant=acme   daily=9/day   paid\nbefore    shop tenant=acme   plan gold\n";
        assert_eq!(set, format!("{changed}{kept}"));
        assert_eq!(passes(grpc, "acme", 20), 2, "what was used stays");
        let state = http::get(admin, "/state?domain=shop&descriptor=tenant=acme").unwrap().body;
        assert!(state.contains("\"requests\":9"), "{state}");
        let exported = done(admin, &["export", "shop"]);
        let mut lines: Vec<&str> = exported.lines().collect();
        lines[1..].sort_unstable();
        assert_eq!(
            lines,
            [
                "domain,descriptor,plan,limits,until,note",
                "shop,\"tenant=a\\,b\",,daily=5/day,2041-01-01T00:00:00Z,\"by, contract\"",
                "shop,tenant=acme,,daily=9/day,,paid",
                "shop,tenant=big,max,,,",
            ]
        );
        let again = file(&directory, "again.csv", &exported);
        assert_eq!(done(admin, &["import", &again]), "0 rows written, 3 were the same, 0 wrong\n");
        let list = done(admin, &["list"]);
        assert!(list.contains("shop tenant=big   plan max\n"), "{list}");
        let removed = done(admin, &["remove", "shop", "tenant=big"]);
        assert_eq!(removed, "removed   shop tenant=big   plan max\nnow       no row: the default plan applies\n");
        assert_eq!(passes(grpc, "big", 20), 3);
        assert_eq!(failed(admin, &["get", "shop", "tenant=big"]).0, Some(1));
        done(admin, &["set", "shop", "tenant=old", "--plan", "gold", "--until", "2020-01-01"]);
        assert_eq!(passes(grpc, "old", 20), 3, "its row has ended");
        assert_eq!(failed(admin, &["get", "shop", "tenant=old"]).0, Some(1), "the decision has removed it");
        let ended = "shop tenant=older   plan gold   until 2020-01-01T00:00:00Z\n  not used: it has ended\n";
        let set = done(admin, &["set", "shop", "tenant=older", "--plan", "gold", "--until", "2020-01-01"]);
        assert_eq!(set, format!("written   {ended}{kept}"));
        assert_eq!(done(admin, &["get", "shop", "tenant=older"]), ended);
        let list = done(admin, &["list"]);
        assert!(list.contains(ended) && list.matches("not used").count() == 1, "{list}");
        let explained = explained_row(admin, "tenant=older");
        let row = "    row: shop tenant=older   plan gold   until 2020-01-01T00:00:00Z\n      not used: it has ended\n    on_error";
        assert!(explained.contains(row), "{explained}");
        let rows_at = |query: &str| -> Value {
            serde_json::from_str(&http::get(admin, &format!("/rows?domain=shop{query}")).unwrap().body).unwrap()
        };
        assert_eq!(rows_at("&descriptor=tenant=older")["unused"], "it has ended");
        assert_eq!(rows_at("&descriptor=tenant=acme").get("unused"), Some(&Value::Null));
        let page = rows_at("");
        let unused = |row: &&Value| row["unused"] == "it has ended" && row["descriptor"] == "tenant=older";
        assert_eq!(page["rows"].as_array().unwrap().iter().filter(unused).count(), 1, "{page}");
        assert_eq!(done(admin, &["prune"]), "removed 1 row\n");
        let explained = explained_row(admin, "tenant=acme");
        let row = "    row: shop tenant=acme   daily=9/day   paid
      9 per day   fixed_window, name daily
        key w1:{shop|tenant=acme}f86400s
      9 per hour   fixed_window, name hourly
        key w1:{shop|tenant=acme}f3600s
";
        assert!(explained.contains(row), "{explained}");
        for limit in [
            "3 per day   fixed_window, name daily, rows: default free, plans gold=7/day; max=unlimited\n",
            "9 per hour   fixed_window, name hourly, rows: default free, plans gold=9/hour; max=unlimited\n",
        ] {
            assert!(explained.contains(limit), "{explained}");
        }
        done(admin, &["set", "shop", "tenant=big", "--plan", "max"]);
        let explained = explained_row(admin, "tenant=big");
        let row = "    row: shop tenant=big   plan max\n      unlimited   name daily\n      unlimited   name hourly\n";
        assert!(explained.contains(row), "{explained}");
        let explained = explained_row(admin, "tenant=new");
        assert!(explained.contains("    row: none, so the default plan applies\n    on_error"), "{explained}");
        let policies: Value = serde_json::from_str(&http::get(admin, "/policies").unwrap().body).unwrap();
        let rows = &policies["domains"][0]["rules"][0]["rows"];
        assert_eq!((&rows["default"], &rows["plans"][1]["name"]), (&json!("free"), &json!("gold")));
        assert_eq!(served.metric("weir_rows_total{event=\"written\"}"), Some(7));
    }
}

/// `override set --limit rpm=20000/min` for a customer with the plan gold: its daily limit was the default plan's again.
/// [rw-3]
#[test]
fn an_override_of_one_limit_leaves_the_plan_of_the_other_limits() {
    let redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    for settings in [&[][..], &["store=redis", &url, "redis.timeout=5s"]] {
        let served = Served::start(POLICY, settings);
        let (admin, grpc) = (served.at.admin, served.at.grpc);
        let override_set = |tenant: &str, limits: &[&str]| {
            let server = admin.to_string();
            let descriptor = format!("tenant={tenant}");
            let mut words = vec!["override", "set", "shop", &descriptor, "--for", "1h", "--reason", "a launch"];
            limits.iter().for_each(|limit| words.extend(["--limit", limit]));
            let output = Command::new(binary()).args(words).args(["--server", &server]).output().expect("weir runs");
            assert!(output.status.success(), "{output:?}");
        };
        for (tenant, words) in [
            ("some", ["--plan", "gold"]),
            ("all", ["--plan", "gold"]),
            ("free", ["--plan", "max"]),
            ("twin", ["--limits", "daily=6/90s"]),
        ] {
            done(admin, &["set", "shop", &format!("tenant={tenant}"), words[0], words[1]]);
        }
        override_set("some", &["hourly=20/h"]);
        override_set("all", &["hourly=20/h", "daily=5/day"]);
        override_set("free", &["hourly=8/h"]);
        override_set("twin", &["hourly=4/90s"]);
        let limit_of = |tenant: &str| passes(grpc, tenant, 30);
        assert_eq!(limit_of("some"), 7, "gold has 7 a day, also with an override of the other limit: {settings:?}");
        assert_eq!(limit_of("all"), 5, "{settings:?}");
        assert_eq!(limit_of("free"), 8, "the daily limit stays unlimited: {settings:?}");
        assert_eq!(limit_of("twin"), 3, "two limits would share a state, so the row has no effect: {settings:?}");
        // The row is still compared: a change is in force at the next request.
        done(admin, &["set", "shop", "tenant=some", "--limits", "daily=9/day"]);
        assert_eq!(limit_of("some"), 2, "{settings:?}");
        // People see which limits are the override's.
        let shown = |tenant: &str| -> Value {
            let path = format!("/rows?domain=shop&descriptor=tenant={tenant}");
            serde_json::from_str(&http::get(admin, &path).unwrap().body).unwrap()
        };
        let until = |tenant: &str| {
            let end = shown(tenant)["override"]["until"].as_str().expect("an end").to_owned();
            format!("until {end}\n")
        };
        let some = format!("shop tenant=some   daily=9/day\n  override of hourly   {}", until("some"));
        let unused = "  not used: an override of all its limits is in force\n";
        let all = format!("shop tenant=all   plan gold\n{unused}  override of daily, hourly   {}", until("all"));
        let twin = "  not used: it has a limit of the same algorithm and window as an override in force\n";
        assert_eq!(done(admin, &["get", "shop", "tenant=some"]), some);
        assert_eq!(done(admin, &["get", "shop", "tenant=all"]), all);
        assert!(done(admin, &["get", "shop", "tenant=twin"]).contains(twin));
        let list = done(admin, &["list"]);
        assert!(list.contains(&some) && list.contains(&all), "{list}");
        assert_eq!(shown("some")["override"]["limits"], json!(["hourly"]));
        assert_eq!(shown("some").get("unused"), Some(&Value::Null));
        let state = http::get(admin, "/state?domain=shop&descriptor=tenant=some").unwrap().body;
        assert!(state.contains("\"requests\":9") && state.contains("\"requests\":20"), "{state}");
        let explained = explained_row(admin, "tenant=some");
        let parts = "      20 per hour   fixed_window, name hourly
        key w1:{shop|tenant=some}f3600s
    row: shop tenant=some   daily=9/day
      9 per day   fixed_window, name daily
        key w1:{shop|tenant=some}f86400s
    on_error";
        assert!(explained.contains(parts), "{explained}");
        // Without an override the row says nothing of one.
        let output = Command::new(binary())
            .args(["override", "delete", "shop", "tenant=some", "--server", &admin.to_string()])
            .output()
            .expect("weir runs");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(done(admin, &["get", "shop", "tenant=some"]), "shop tenant=some   daily=9/day\n");
        assert_eq!(shown("some").get("override"), Some(&Value::Null));
    }
}

#[test]
fn a_wrong_line_is_named_and_nothing_is_written_unless_it_is_skipped() {
    let served = Served::start(POLICY, &[]);
    let admin = served.at.admin;
    let directory = tempfile::tempdir().unwrap();
    let long = "x".repeat(9_000);
    let text = format!(
        "domain,tenant,plan,until\nshop,a,gold,\nshop,b,lead,\nshop,c,gold,soon\nshop,{long},gold,\nother,d,gold,\nshop,e,gold,\n"
    );
    let path = file(&directory, "wrong.csv", &text);
    let (code, error) = failed(admin, &["import", &path]);
    assert_eq!(code, Some(1));
    for wrong in [
        "4 wrong lines, nothing was written".to_owned(),
        format!("{path}:3:8: the rule has no plan \"lead\": there is free, gold, max"),
        format!("{path}:4:13: until: "),
        format!("{path}:5:1: a line has at most 8192 bytes"),
        format!("{path}:6:1: no policy has this domain"),
    ] {
        assert!(error.contains(&wrong), "{wrong}\n{error}");
    }
    assert_eq!(done(admin, &["list"]), "");
    let output = weir(admin, &["import", &path, "--skip"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "2 rows written, 0 were the same, 4 wrong\n");
    assert_eq!(done(admin, &["list"]).lines().count(), 2);
    let (code, error) = failed(admin, &["import", &file(&directory, "head.csv", "tenant,plan\n")]);
    assert!(code == Some(1) && error.contains("head.csv:1:1: no column domain"), "{error}");
    let surplus = file(&directory, "surplus.csv", "domain,tenant,email,plan\nshop,a,a@b,gold\n");
    let (_, error) = failed(admin, &["import", &surplus]);
    let column = format!(
        "{surplus}:2:8: the descriptor meets no rule: 1 of its entries match, but not the next one: the column \"email\"\n"
    );
    assert!(error.contains(&column), "{error}");
    let twice = file(&directory, "twice.csv", "domain,tenant,plan\nshop,z,gold\nshop,y,gold\nshop,z,max\n");
    let (_, error) = failed(admin, &["import", &twice]);
    assert!(error.contains(&format!("{twice}:4:6: the descriptor of line 2 once more\n")), "{error}");
    let (_, error) = failed(admin, &["set", "shop", "plain=x", "--plan", "gold"]);
    assert!(error.contains("the descriptor meets the rule plain, which has no rows"), "{error}");
}

#[test]
fn changes_need_a_token_and_are_logged_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let tokens = file(&directory, "tokens", "billing 0123456789abcdef0123\n");
    file(&directory, "shop.yaml", POLICY);
    let server = Weir::start(directory.path(), &["--set", &format!("admin.token_file={tokens}")]);
    let admin = server.admin;
    let row = r#"{"domain":"shop","descriptor":"tenant=acme","plan":"gold"}"#;
    for (method, path) in [("PUT", "/rows"), ("POST", "/rows"), ("DELETE", "/rows?domain=shop&descriptor=tenant=acme")]
    {
        assert_eq!(request(admin, method, path, None, row).status, 401, "{method}");
    }
    let token = Some("0123456789abcdef0123");
    assert_eq!(request(admin, "PUT", "/rows", token, row).status, 200);
    let many = format!("{row}\n{{}}\n{}\n", row.replace("gold", "lead"));
    let answer = request(admin, "POST", "/rows", token, &many);
    let results: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(results["results"][0], "same");
    assert!(results["results"][1]["refused"].as_str().unwrap().contains("missing field"), "{results}");
    assert!(results["results"][2]["refused"].as_str().unwrap().contains("no plan"), "{results}");
    assert_eq!(results["results"][2]["is_store"], false);
    let numbers = r#"{"domain":"shop","descriptor":"tenant=acme","limits":[{"name":"daily","requests":5,"window_us":7200000000}],"note":"by contract"}"#;
    assert_eq!(request(admin, "PUT", "/rows", token, numbers).status, 200);
    let path = "/rows?domain=shop&descriptor=tenant=acme";
    assert_eq!(request(admin, "DELETE", path, token, "").status, 200);
    for (message, [content, note], [before, before_note]) in [
        ("row set", [Some("plan gold"), Some("")], [None, None]),
        ("row set", [Some("daily=5/2h"), Some("by contract")], [Some("plan gold"), Some("")]),
        ("row removed", [None, None], [Some("daily=5/2h"), Some("by contract")]),
    ] {
        assert!(
            server.wait_for_log(0, PATIENCE, |line| {
                let fields = ["by", "domain", "descriptor", "content", "note", "before", "before_note"];
                let fields = fields.map(|name| line.field(name).and_then(Value::as_str));
                let by = [Some("billing"), Some("shop"), Some("tenant=acme")];
                line.message() == Some(message)
                    && fields == [&by[..], &[content, note, before, before_note]].concat()[..]
            }),
            "{message} {content:?}: {}",
            server.written()
        );
    }
    for (body, reason) in [
        (r#"{"domain":"shop","descriptor":"tenant=a"}"#, "either plan or limits"),
        (r#"{"domain":"shop","descriptor":"tenant=a","plan":"gold","more":1}"#, "unknown field"),
        ("[]", "an object that is a row"),
        (r#"{"domain":"shop","descriptor":"tenant","plan":"gold"}"#, "descriptor"),
    ] {
        let answer = request(admin, "PUT", "/rows", token, body);
        assert!(answer.status == 400 && answer.body.contains(reason), "{body}: {}", answer.body);
    }
    assert_eq!(request(admin, "GET", "/rows?descriptor=tenant=a", token, "").status, 400);
    assert_eq!(request(admin, "GET", "/rows?after=x", token, "").status, 400);
}

#[test]
fn files_beside_the_policies_are_in_force_with_the_memory_store_all_or_nothing() {
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    let replace = |text: &str| replace(&directory, "customers.rows.csv", text);
    replace("domain,tenant,plan\nshop,acme,gold\n");
    let server = Weir::start(directory.path(), &[] as &[&str]);
    let (admin, grpc) = (server.admin, server.grpc);
    let is_listed = |wanted: &str| {
        until(wanted, PATIENCE, || done(admin, &["list"]).contains(wanted).then_some(()));
    };
    // A server that is ready has read them.
    assert_eq!(passes(grpc, "acme", 20), 7);
    // A row of an operator comes first. Without it the file counts again, which an operator cannot change.
    done(admin, &["set", "shop", "tenant=acme", "--plan", "max"]);
    assert_eq!(passes(grpc, "acme", 20), 20);
    let removed = request(admin, "DELETE", "/rows?domain=shop&descriptor=tenant=acme", None, "");
    let body: Value = serde_json::from_str(&removed.body).unwrap();
    assert_eq!((removed.status, &body["plan"], &body["left"]["plan"]), (200, &json!("max"), &json!("gold")));
    assert_eq!(passes(grpc, "acme", 20), 0, "seven of seven are used");
    let (_, error) = failed(admin, &["remove", "shop", "tenant=acme"]);
    assert!(error.contains("the row comes from a file beside the policies"), "{error}");
    done(admin, &["set", "shop", "tenant=acme", "--plan", "max"]);
    let removed = done(admin, &["remove", "shop", "tenant=acme"]);
    assert!(removed.ends_with("now       shop tenant=acme   plan gold, from a file\n"), "{removed}");
    // Of two lines for one descriptor only the second is written and logged, with the row that was there before.
    done(admin, &["set", "shop", "tenant=twice", "--plan", "gold"]);
    let line = |plan: &str| json!({ "domain": "shop", "descriptor": "tenant=twice", "plan": plan });
    let answer = request(admin, "POST", "/rows", None, &format!("{}\n{}\n", line("free"), line("max")));
    let results: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(results["results"], json!(["replaced", "written"]));
    let is_set =
        |line: &LogLine| line.message() == Some("row set") && line.field("descriptor") == Some(&json!("tenant=twice"));
    let is_last = |line: &LogLine| is_set(line) && line.field("before") == Some(&json!("plan gold"));
    assert!(server.wait_for_log(0, PATIENCE, is_last));
    assert_eq!(server.count_in_log(is_set), 2);
    done(admin, &["remove", "shop", "tenant=twice"]);
    let is_refused = || metric(server.http, "weir_input_refused{input=\"rows\"}");
    assert_eq!(is_refused(), Some(0));
    // A mistake leaves the last good rows; then the next good file counts.
    replace("domain,tenant,plan\nshop,globex,gold\nshop,initech,lead\n");
    let refused = "the files of rows have a mistake: the last good rows stay in force";
    assert!(server.wait_for_log(0, PATIENCE, |line| {
        let problem = line.field("problem").and_then(Value::as_str);
        line.message() == Some(refused)
            && problem.is_some_and(|problem| problem.contains("customers.rows.csv:3:14: the rule has no plan"))
    }));
    let list = done(admin, &["list"]);
    assert!(list.contains("tenant=acme") && !list.contains("globex"), "{list}");
    assert_eq!(is_refused(), Some(1));
    replace("domain,tenant,plan\nshop,hooli,gold\n");
    is_listed("tenant=hooli   plan gold");
    assert_eq!(is_refused(), Some(0));
    assert!(!done(admin, &["list"]).contains("tenant=acme"));
}

#[test]
fn a_row_that_an_operator_sets_is_his_even_if_it_equals_that_of_the_file() {
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    let replace = |text: &str| replace(&directory, "customers.rows.csv", text);
    replace("domain,tenant,plan\nshop,acme,gold\n");
    let server = Weir::start(directory.path(), &[] as &[&str]);
    let admin = server.admin;
    let set = || done(admin, &["set", "shop", "tenant=acme", "--plan", "gold"]);
    assert!(set().starts_with("written   shop tenant=acme   plan gold\nbefore    shop tenant=acme   plan gold\n"));
    assert!(set().starts_with("same   shop tenant=acme   plan gold\n"));
    replace("domain,tenant,plan\nshop,acme,max\nshop,globex,max\n");
    until("the file is in force", PATIENCE, || done(admin, &["list"]).contains("tenant=globex").then_some(()));
    assert_eq!(done(admin, &["get", "shop", "tenant=acme"]), "shop tenant=acme   plan gold\n");
    let removed = done(admin, &["remove", "shop", "tenant=acme"]);
    assert_eq!(removed, "removed   shop tenant=acme   plan gold\nnow       shop tenant=acme   plan max, from a file\n");
}

/// It was taken, and no request had its value.
#[test]
fn a_row_at_the_text_of_a_wildcard_is_refused_at_each_door() {
    let policy = "\
domain: shop
descriptors:
  - {key: path, value: /x/*, rows: {default: free}, rate_limit: {rate: 3/day, plans: {gold: 7/day}}}
";
    let reason = "path=/x/* is the text of a wildcard: write a value that requests have";
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", policy);
    let csv = "domain,path,plan\nshop,/x/1,gold\nshop,/x/*,gold\n";
    let other = tempfile::tempdir().unwrap();
    let rows = file(&other, "all.csv", csv);
    let row = |path: &str| json!({ "domain": "shop", "descriptor": format!("path={path}"), "plan": "gold" });
    let redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    for settings in [&[][..], &["store=redis", &url, "redis.timeout=5s"]] {
        let served = Served::start(policy, settings);
        let server = served.at;
        let answer = request(server.admin, "PUT", "/rows", None, &row("/x/*").to_string());
        assert!(answer.status == 400 && answer.body.contains(reason), "{answer:?}");
        for check in ["", "?check=true"] {
            let answer = request(server.admin, "POST", &format!("/rows{check}"), None, &row("/x/*").to_string());
            let results: Value = serde_json::from_str(&answer.body).unwrap();
            let refused = json!({ "refused": reason, "field": { "entry": 0 }, "is_store": false });
            assert_eq!(results["results"], json!([refused]), "{check}");
        }
        let (code, error) = failed(server.admin, &["import", &rows]);
        assert!(code == Some(1) && error.contains(&format!("all.csv:3:6: {reason}")), "{error}");
        assert_eq!(request(server.admin, "PUT", "/rows", None, &row("/x/1").to_string()).status, 200);
    }
    file(&directory, "all.rows.csv", csv);
    let policies = directory.path().to_str().unwrap();
    let output = Command::new(binary()).args(["check", policies]).output().expect("weir runs");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains(&format!(".csv:3:6: {reason}")), "{error}");
}

#[test]
fn a_row_without_effect_is_shown_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    file(&directory, "customers.rows.csv", "domain,tenant,plan,until\nshop,globex,max,2020-01-01\n");
    let server = Weir::start(directory.path(), &[] as &[&str]);
    let admin = server.admin;
    done(admin, &["set", "shop", "tenant=globex", "--plan", "max"]);
    let removed = done(admin, &["remove", "shop", "tenant=globex"]);
    let left =
        "now       shop tenant=globex   plan max   until 2020-01-01T00:00:00Z, from a file\n  not used: it has ended\n";
    assert!(removed.ends_with(left), "{removed}");
    done(admin, &["set", "shop", "tenant=acme", "--plan", "gold"]);
    replace(&directory, "shop.yaml", &POLICY.replace("gold", "lead"));
    let unused = "shop tenant=acme   plan gold\n  not used: the rule has no plan \"gold\": there is free, lead, max\n";
    until("the policy to be in force", PATIENCE, || done(admin, &["list"]).contains(unused).then_some(()));
    assert_eq!(done(admin, &["get", "shop", "tenant=acme"]), unused);
    let explained = explained_row(admin, "tenant=acme");
    let (row, reason) = unused.split_once('\n').unwrap();
    assert!(explained.contains(&format!("    row: {row}\n    {reason}")), "{explained}");
}

/// An earlier version has kept rows in the Redis of limits per second. [rw-5]
#[test]
fn a_server_is_not_ready_before_rows_have_moved_from_the_second_redis() {
    const PER_SECOND: &str = "\
domain: shop
descriptors:
  - {key: tenant, rows: {default: free}, rate_limit: {rate: 3/s, plans: {gold: 7/s}}}
";
    let (redis, second) = (RedisServer::start(), RedisServer::start());
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", PER_SECOND);
    let settings = |redis: &RedisServer| {
        ["store=redis".to_owned(), format!("redis.url={}", redis.url()), "redis.timeout=5s".to_owned()]
    };
    let words = |settings: &[String]| -> Vec<String> {
        settings.iter().flat_map(|one| ["--set".to_owned(), one.clone()]).collect()
    };
    // That version, as far as the second Redis shows it.
    let earlier = Weir::start(directory.path(), &words(&settings(&second)));
    done(earlier.admin, &["set", "shop", "tenant=acme", "--plan", "gold"]);
    let exported = done(earlier.admin, &["export"]);
    let of_both = [settings(&redis).as_slice(), &[format!("redis.per_second.url={}", second.url())]].concat();
    let server = Weir::listening(Process::start(directory.path(), &words(&of_both), &[])).unwrap();
    let problem = "the second Redis has rows of an earlier version, as shop tenant=acme: export them by that version, import \
                   them by this one (weir rows export, import), and delete their keys from the second Redis";
    assert!(server.wait_for_log(0, PATIENCE, |line| line.field("problem") == Some(&json!(problem))));
    let status = || http::get(server.http, "/readyz").unwrap().status;
    let shown: Value = serde_json::from_str(&http::get(server.admin, "/readyz").unwrap().body).unwrap();
    assert_eq!((status(), &shown["rows"]["problems"]), (503, &json!([problem])));

    let customers = file(&directory, "customers.csv", &exported);
    done(server.admin, &["import", &customers]);
    let keys = |redis: &RedisServer| redis.command(&["KEYS", "*{shop|*"]).unwrap().split_whitespace().count();
    assert_eq!((keys(&redis), keys(&second), status()), (1, 1, 503));
    second.command(&["FLUSHDB"]).unwrap();
    until("the server to be ready", PATIENCE, || (status() == 200).then_some(()));
    let shown: Value = serde_json::from_str(&http::get(server.admin, "/readyz").unwrap().body).unwrap();
    assert_eq!(shown["rows"]["problems"], json!([]));
    assert_eq!(done(server.admin, &["get", "shop", "tenant=acme"]), "shop tenant=acme   plan gold\n");
    assert!(Client::connect(server.grpc).admits("shop", "tenant", "acme"));
    assert_eq!(keys(&second), 0, "the state is in the first Redis too");
}

/// [rw-5]
#[test]
fn a_server_that_cannot_search_the_second_redis_is_ready_and_logs_that() {
    let (redis, second) = (RedisServer::start(), RedisServer::start());
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    let start = |redis: &RedisServer, more: &[String]| {
        let url = format!("redis.url={}", redis.url());
        let settings = [&["store=redis".to_owned(), url, "redis.timeout=5s".to_owned()], more].concat();
        let words: Vec<&str> = settings.iter().flat_map(|one| ["--set", one.as_str()]).collect();
        Weir::start(directory.path(), &words)
    };
    done(start(&second, &[]).admin, &["set", "shop", "tenant=acme", "--plan", "gold"]);
    let per_second = format!("redis.per_second.url={}", second.url());
    let is_named = |line: &LogLine| line.message() == Some("rows in the second Redis have no effect");
    // It is ready without an answer, so it searches afterwards.
    let at_once = start(&redis, &[per_second.clone(), "redis.ready_after=0s".to_owned()]);
    assert!(at_once.wait_for_log(0, PATIENCE, is_named));
    assert_eq!(http::get(at_once.http, "/readyz").unwrap().status, 200);

    second.command(&["ACL", "SETUSER", "default", "-scan"]).unwrap();
    let refused = start(&redis, &[per_second]);
    let warning = "cannot search the second Redis for rows: if it has some, they have no effect";
    assert!(refused.wait_for_log(0, PATIENCE, |line| {
        let reason = line.field("reason").and_then(Value::as_str);
        line.message() == Some(warning) && reason.is_some_and(|reason| reason.contains("NOPERM"))
    }));
}

/// A server whose second Redis is its first one has its rows there.
#[test]
fn one_redis_for_both_is_not_searched_for_rows() {
    let redis = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    let url = redis.url();
    let settings = ["store=redis".to_owned(), format!("redis.url={url}"), format!("redis.per_second.url={url}")];
    let words = settings.each_ref().map(|one| ["--set", one.as_str()]).concat();
    let server = Weir::start(directory.path(), &words);
    done(server.admin, &["set", "shop", "tenant=acme", "--plan", "gold"]);
    drop(server);
    let server = Weir::start(directory.path(), &words);
    assert_eq!(done(server.admin, &["list"]), "shop tenant=acme   plan gold\n");
}

#[test]
fn a_server_is_not_ready_before_the_files_of_rows_are_in_force() {
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    file(&directory, "customers.rows.csv", "domain,tenant,plan\nshop,acme,lead\n");
    let server = Weir::listening(Process::start(directory.path(), &[] as &[&str], &[])).unwrap();
    assert!(server.wait_for_log(0, PATIENCE, |line| {
        line.field("problem").and_then(Value::as_str).is_some_and(|problem| problem.contains("customers.rows.csv:2"))
    }));
    let ready = || http::get(server.http, "/readyz").unwrap();
    let shown: Value = serde_json::from_str(&http::get(server.admin, "/readyz").unwrap().body).unwrap();
    let problem = format!("{}/customers.rows.csv:2:11: the rule has no plan \"lead\"", directory.path().display());
    let is_named = |problem_shown: &Value| problem_shown.as_str().unwrap().starts_with(&problem);
    assert!(is_named(&shown["rows"]["problems"][0]), "{shown}");
    let public: Value = serde_json::from_str(&ready().body).unwrap();
    assert_eq!(public["rows"], json!({"problem_count": 1}), "the text quotes a file");
    assert_eq!((ready().status, metric(server.http, "weir_input_refused{input=\"rows\"}")), (503, Some(1)));
    file(&directory, "customers.rows.csv", "domain,tenant,plan\nshop,acme,gold\n");
    until("the server to be ready", PATIENCE, || (ready().status == 200).then_some(()));
    assert_eq!(passes(server.grpc, "acme", 20), 7);
}

/// Each customer had the default plan, and no line said why.
#[test]
fn files_of_rows_that_redis_ignores_are_in_the_log() {
    let redis = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    let rows = file(&directory, "a.rows.csv", "domain,tenant,plan\nshop,acme,gold\n");
    let start = |settings: &[&str]| {
        let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", *setting]).collect();
        Weir::start(directory.path(), &settings)
    };
    let is_told = |line: &LogLine| {
        line.message() == Some("files of rows are ignored, because the store is redis: write them by weir rows import")
            && line.field("files") == Some(&json!(rows))
    };
    let server = start(&["store=redis", &format!("redis.url={}", redis.url())]);
    assert!(server.wait_for_log(0, PATIENCE, is_told));
    assert_eq!(passes(server.grpc, "acme", 20), 3);
    assert_eq!(start(&["store=memory"]).count_in_log(is_told), 0);
}

#[test]
fn check_reads_the_files_of_rows_beside_the_policies() {
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    let check = || {
        let output = Command::new(binary()).arg("check").arg(directory.path()).output().expect("weir runs");
        let [out, error] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), out, error)
    };
    file(&directory, "a.rows.csv", "domain,tenant,plan\nshop,acme,gold\nshop,globex,max\n");
    let (code, out, error) = check();
    let total = "\n2 rows in 1 file: in force with the memory store, ignored with Redis\n";
    assert!(code == Some(0) && out.ends_with(total), "{out}{error}");
    for (settings, total) in [
        ("store: memory", "2 rows in 1 file"),
        ("store: redis", "2 rows in 1 file: ignored with Redis, weir rows import writes them"),
    ] {
        let policies = directory.path().display();
        let settings = file(&directory, "settings", &format!("{settings}\npolicies: {{directory: {policies}}}\n"));
        let output = Command::new(binary()).args(["check", "--config", &settings]).output().expect("weir runs");
        let out = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(out.ends_with(&format!("\n{total}\n")), "{output:?}");
    }
    file(&directory, "b.rows.csv", "domain,tenant,plan\nshop,hooli,lead\nother,hooli,gold\n");
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (code, out, error) = check();
    let wrong = format!(
        "weir: {b}:2:12: the rule has no plan \"lead\": there is free, gold, max\nweir: {b}:3:1: no policy has this domain\n",
        b = path("b.rows.csv")
    );
    assert_eq!((code, &*out, error), (Some(1), "", wrong));
    file(&directory, "b.rows.csv", "tenant,domain,plan\nacme,shop,max\n");
    let twice = format!("weir: {}:2:1: the descriptor of {}:2 once more\n", path("b.rows.csv"), path("a.rows.csv"));
    assert_eq!(check(), (Some(1), String::new(), twice));
}

#[test]
fn a_server_is_ready_without_a_directory_in_which_files_of_rows_could_be() {
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    Weir::start(&directory.path().join("shop.yaml"), &[] as &[&str]);
    Weir::start(&directory.path().join("absent"), &["--set", "policies.allow_empty=on"]);
}

/// An operator finds by the log whose key another program uses.
#[test]
fn a_value_that_is_no_row_is_named_in_the_log_as_admin_values_allows() {
    let redis = RedisServer::start();
    redis.command(&["HSET", "w1:{shop|tenant=acme}row", "a", "b"]).expect("set");
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    for (values, descriptor) in [("shown", "tenant=acme"), ("hidden", "tenant=*")] {
        let url = format!("redis.url={}", redis.url());
        let settings = ["store=redis", &url, "redis.timeout=5s", &format!("admin.values={values}")];
        let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        let server = Weir::start(directory.path(), &arguments);
        assert!(Client::connect(server.grpc).admits("shop", "tenant", "acme"));
        let is_it = |line: &LogLine| {
            let fields = ["domain", "descriptor"].map(|name| line.field(name).and_then(Value::as_str));
            fields == [Some("shop"), Some(descriptor)] && line.field("count") == Some(&json!(1))
        };
        assert!(server.wait_for_log(0, PATIENCE, is_it), "{}", server.written());
        assert_eq!(metric(server.http, "weir_rows_total{event=\"foreign\"}"), Some(1));
        let refused = failed(server.admin, &["set", "shop", "tenant=acme", "--plan", "gold"]).1;
        assert!(refused.contains("w1:{shop|tenant=acme}row"), "{refused}");
    }
}

#[test]
fn a_redis_that_evicts_rows_is_a_warning_in_the_log_and_a_metric() {
    for (policy, servers) in [("allkeys-lru", 1), ("noeviction", 0)] {
        let redis = RedisServer::start_with(None, &["--maxmemory", "100mb", "--maxmemory-policy", policy]);
        let served = Served::start(POLICY, &["store=redis", &format!("redis.url={}", redis.url())]);
        let evicting = "weir_redis_evicting_servers";
        until(&format!("{servers} with {policy}"), PATIENCE, || {
            (served.metric(evicting) == Some(servers)).then_some(())
        });
    }
}

/// A Redis that started without its data lost all rows, and nothing showed it.
#[test]
fn rows_in_the_store_are_counted_and_a_redis_that_restarts_without_data_shows() {
    let stored = |served: &Served, store: &str| served.metric(&format!("weir_rows_stored{{store=\"{store}\"}}"));
    let wait = |served: &Served, store: &str, rows: u64| {
        until(&format!("{rows} rows in {store}"), PATIENCE, || (stored(served, store) == Some(rows)).then_some(()));
    };
    let mut redis = RedisServer::start();
    let served = Served::start(POLICY, &["store=redis", &format!("redis.url={}", redis.url())]);
    let admin = served.at.admin;
    for tenant in ["acme", "globex", "initech"] {
        done(admin, &["set", "shop", &format!("tenant={tenant}"), "--plan", "gold"]);
    }
    wait(&served, "redis", 3);
    assert_eq!(stored(&served, "memory"), None);
    redis.restart();
    wait(&served, "redis", 0);
    let served = Served::start(POLICY, &[]);
    assert_eq!(stored(&served, "memory"), Some(0));
    done(served.at.admin, &["set", "shop", "tenant=acme", "--plan", "gold"]);
    assert_eq!([stored(&served, "memory"), stored(&served, "redis")], [Some(1), None]);
}

#[test]
fn without_the_right_to_scan_rows_are_not_counted() {
    let redis = RedisServer::start();
    redis.command(&["ACL", "SETUSER", "default", "-scan"]).expect("set");
    let url = format!("redis.url={}", redis.url());
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    let server = Weir::start(directory.path(), &["--set", "store=redis", "--set", &url]);
    let is_it =
        |line: &LogLine| line.message() == Some("rows are not counted, because the user of redis has no right to SCAN");
    assert!(server.wait_for_log(0, PATIENCE, is_it), "{}", server.written());
    assert_eq!(metric(server.http, "weir_rows_stored{store=\"redis\"}"), None);
}
