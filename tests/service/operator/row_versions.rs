//! Changes of rows that name the version of the row which they replace, by HTTP and by files.

use serde_json::{Value, json};

use super::rows::{POLICY, done, failed, file};
use crate::support::http;
use crate::support::redis::RedisServer;
use crate::support::served::Served;

/// An old export overwrote what an operator had set since.
#[test]
fn a_change_with_a_version_replaces_only_that_row_with_either_store() {
    let redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    for settings in [&[][..], &["store=redis", &url, "redis.timeout=5s"]] {
        let served = Served::start(POLICY, settings);
        let admin = served.at.admin;
        let row = |tenant: &str, plan: &str| json!({ "domain": "shop", "descriptor": format!("tenant={tenant}"), "plan": plan });
        let send = |method: &str, path: &str, tag: Option<&str>, body: &str| {
            let headers: Vec<_> = tag.iter().map(|tag| ("if-match", *tag)).collect();
            let answer = http::request(admin, method, path, &headers, body).unwrap();
            (
                answer.status,
                serde_json::from_str::<Value>(&answer.body).unwrap(),
                answer.header("etag").map(str::to_owned),
            )
        };
        let put =
            |tenant: &str, plan: &str, tag: Option<&str>| send("PUT", "/rows", tag, &row(tenant, plan).to_string());
        // Nothing is there.
        for tag in ["*", "\"1\""] {
            let (status, body, _) = put("acme", "gold", Some(tag));
            assert_eq!((status, &body["error"]), (412, &json!("no row is there to match")));
        }
        let (status, body, tag) = put("acme", "gold", None);
        let tag = tag.expect("a tag");
        assert_eq!((status, &tag), (200, &format!("\"{}\"", body["version"])));
        let path = "/rows?domain=shop&descriptor=tenant=acme";
        assert_eq!(send("GET", path, None, "").2.as_ref(), Some(&tag));
        let (status, body, of_max) = put("acme", "max", Some(&format!("\"x\", {tag}")));
        assert_eq!((status, &body["result"], &body["before"]["plan"]), (200, &json!("written"), &json!("gold")));
        // The older version, a weak tag, and one that is none.
        for tag in [&tag, &format!("W/{}", of_max.as_ref().unwrap()), "\"x\""] {
            assert_eq!(put("acme", "free", Some(tag)).0, 412, "{tag}");
        }
        let (status, body, _) = put("acme", "free", Some("1"));
        assert!(status == 400 && body["error"].as_str().unwrap().starts_with("If-Match: give *"), "{body}");
        assert_eq!(put("acme", "max", Some(&tag)).1["result"], "same", "it is there already");
        assert_eq!(put("acme", "gold", Some("*")).0, 200);
        // Many rows: the header is for each, and a version in a line comes before it.
        let gold: u64 = tag.trim_matches('"').parse().unwrap();
        let mut lines = vec![row("acme", "max"), row("new", "max"), row("acme", "lead")];
        let body = |lines: &[Value]| lines.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
        let unmatched = |reason: &str| json!({ "refused": reason, "field": "version", "is_store": false });
        let (status, answer, _) = send("POST", "/rows", Some("\"1\""), &body(&lines[1..2]));
        assert_eq!((status, &answer["results"]), (412, &json!([unmatched("no row is there to match")])));
        lines[0]["version"] = json!(gold);
        lines.pop();
        assert_eq!(send("POST", "/rows?check=true", None, &body(&lines)).1["results"], json!(["ok", "ok"]));
        assert_eq!(send("POST", "/rows", None, &body(&lines)).1["results"], json!(["written", "written"]));
        lines[0] = row("acme", "free");
        lines[0]["version"] = json!(gold);
        let other = format!("the row has the version {}", of_max.unwrap().trim_matches('"'));
        for path in ["/rows?check=true", "/rows"] {
            let (status, answer, _) = send("POST", path, None, &body(&lines[..1]));
            assert_eq!((status, &answer["results"]), (200, &json!([unmatched(&other)])), "{path}");
        }
        // An export with versions replaces no row that has changed since.
        let directory = tempfile::tempdir().unwrap();
        let exported = done(admin, &["export", "--versions"]);
        assert!(exported.starts_with("domain,descriptor,plan,limits,until,note,version\n"), "{exported}");
        let export = file(&directory, "export.csv", &exported.replace(",max,", ",gold,"));
        done(admin, &["set", "shop", "tenant=new", "--plan", "free"]);
        let (code, error) = failed(admin, &["import", &export]);
        assert!(
            code == Some(1) && error.contains(": the row has the version ") && error.contains("nothing was written"),
            "{error}"
        );
        let (_, error) = failed(admin, &["import", "--skip", &export]);
        assert!(error.contains("1 wrong line, the other lines are written"), "{error}");
        assert_eq!(done(admin, &["get", "shop", "tenant=new"]), "shop tenant=new   plan free\n");
        assert_eq!(done(admin, &["get", "shop", "tenant=acme"]), "shop tenant=acme   plan gold\n");
        // A removal.
        assert_eq!(send("DELETE", path, Some("\"1\""), "").0, 412);
        assert_eq!(send("DELETE", "/rows?ended=true", Some("*"), "").0, 400);
        assert_eq!(send("DELETE", path, Some(&tag), "").0, 200);
    }
}
