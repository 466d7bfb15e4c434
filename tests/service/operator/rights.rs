//! Tokens with rights and domains: each path and method of the admin listener for two teams, a token file that is bad or
//! replaced all the time, and the commands.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use weir_http::{Access, admin_endpoints};

use super::rows::request;
use crate::support::http::{self, Answer};
use crate::support::process::{LogLine, PolicyDirectory, Weir, binary};
use crate::support::rls::Client;
use crate::support::served::{self, Served};
use crate::support::wait::{PATIENCE, until};

/// The teams, each with its domain, the value of its caller, and its token.
const TEAMS: [Team; 2] = [
    Team { domain: "team-a/shop", value: "alice", token: "0123456789abcdef-a" },
    Team { domain: "team-b/shop", value: "bertha", token: "0123456789abcdef-b" },
];
const LOOKER: &str = "0123456789abcdef-looker";
const CHANGER: &str = "0123456789abcdef-changer";
const OPERATOR: &str = "0123456789abcdef-operator";

#[derive(Clone, Copy)]
struct Team {
    domain: &'static str,
    value: &'static str,
    token: &'static str,
}

impl Team {
    fn policy(&self) -> String {
        format!(
            "domain: {}\ndescriptors:\n- {{key: user, rate_limit: {{rate: 1/day, name: daily-{}}}}}\n\
             - {{key: tenant, rows: {{default: free}}, rate_limit: {{rate: 3/day, plans: {{gold: 7/day}}}}}}\n",
            self.domain, self.value
        )
    }

    /// Whether a text names this team's domain, rule or caller.
    fn is_named_in(&self, text: &str) -> bool {
        text.contains(self.domain) || text.contains(self.value)
    }

    fn row(&self, tenant: &str) -> String {
        json!({"domain": self.domain, "descriptor": format!("tenant={tenant}-{}", self.value), "plan": "gold"})
            .to_string()
    }

    fn new_override(&self) -> String {
        let limits = json!([{"requests": 9, "window_us": 86_400_000_000_u64}]);
        let descriptor = format!("user={}", self.value);
        json!({"domain": self.domain, "descriptor": descriptor, "limits": limits, "for_us": 3_600_000_000_u64, "reason": "x"})
            .to_string()
    }

    /// A request about this team for each method of each path: its query and its body. None for a path that is not known here.
    fn request(&self, method: &str, path: &str) -> Option<(String, String)> {
        let Team { domain, value, .. } = self;
        let one = |key: &str| format!("?domain={domain}&descriptor={key}={value}");
        let (query, body) = match (method, path) {
            ("GET", "/" | "/page.css" | "/page.js" | "/top" | "/policies" | "/policies/source" | "/overrides") => {
                (String::new(), String::new())
            }
            ("GET", "/metrics" | "/readyz") => (String::new(), String::new()),
            ("GET", "/limited" | "/states") => (format!("?domain={domain}&rule=user"), String::new()),
            ("GET", "/tap") => (format!("?domain={domain}&seconds=1&values=shown&notes=true"), String::new()),
            ("GET", "/rows") => (format!("?domain={domain}"), String::new()),
            ("GET" | "DELETE", "/state") | ("DELETE", "/overrides") => (one("user"), String::new()),
            ("PUT", "/overrides") => (String::new(), self.new_override()),
            ("PUT", "/rows") => (String::new(), self.row("put")),
            ("POST", "/rows") => (String::new(), self.row("post")),
            ("DELETE", "/rows") => (format!("?domain={domain}&descriptor=tenant=put-{value}"), String::new()),
            _ => return None,
        };
        Some((query, body))
    }
}

fn hashed(token: &str) -> String {
    let hash: String = Sha256::digest(token).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hash}")
}

/// The tokens of both teams and of three operators.
fn tokens() -> String {
    let [a, b] = TEAMS;
    format!(
        "a {} all team-a/*\nb {} all {}\nlooker {LOOKER} look *\nchanger {} change *\noperator {OPERATOR}\n",
        a.token,
        hashed(b.token),
        b.domain,
        hashed(CHANGER),
    )
}

fn start(tokens: &Path, more: &[&str]) -> (Weir, PolicyDirectory) {
    let files = TEAMS.map(|team| (format!("{}.yaml", team.value), team.policy()));
    let policies = PolicyDirectory::with_files(&files);
    let token_file = format!("admin.token_file={}", tokens.display());
    let settings = [&token_file].into_iter().map(String::as_str).chain(more.iter().copied());
    let arguments: Vec<&str> = settings.flat_map(|setting| ["--set", setting]).collect();
    (Weir::start(&policies.path(), &arguments), policies)
}

/// Each caller is denied once.
fn deny_both(grpc: SocketAddr) {
    let mut client = Client::connect(grpc);
    for team in TEAMS {
        for _ in 0..3 {
            client.admits(team.domain, "user", team.value);
        }
    }
}

fn ask(admin: SocketAddr, method: &str, path: &str, token: &str, (query, body): &(String, String)) -> Answer {
    request(admin, method, &format!("{path}{query}"), Some(token), body)
}

/// The answer to a HEAD without a token.
fn head(admin: SocketAddr, path: &str) -> String {
    let mut stream = http::connect(admin).unwrap();
    stream.write_all(http::head("HEAD", path, &[], 0).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn two_teams_see_and_change_their_own_only_by_each_path_and_method() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), tokens()).unwrap();
    let (weir, _policies) = start(file.path(), &["admin.metrics_token=on"]);
    let admin = weir.admin;
    deny_both(weir.grpc);
    for team in TEAMS {
        assert_eq!(request(admin, "PUT", "/overrides", Some(team.token), &team.new_override()).status, 200);
        assert_eq!(request(admin, "PUT", "/rows", Some(team.token), &team.row("first")).status, 200);
    }
    let mut seen = BTreeSet::new();
    for (method, path, access) in admin_endpoints() {
        let about = |team: Team| {
            team.request(method, path).unwrap_or_else(|| panic!("{method} {path}: this test has no request for it"))
        };
        let [a, b] = TEAMS;
        let status = |token: &str, team: Team| ask(admin, method, path, token, &about(team)).status;
        // What anyone gets, with no token or a wrong one.
        let without = request(admin, method, &format!("{path}{}", about(a).0), None, &about(a).1);
        let wrong = ask(admin, method, path, "0123456789abcdef-none", &about(a));
        if access == Access::Open {
            assert_eq!((without.status, wrong.status), (200, 200), "{method} {path}");
            assert!(TEAMS.iter().all(|team| !team.is_named_in(&without.body)), "{method} {path}: {}", without.body);
            continue;
        }
        assert_eq!((without.status, wrong.status), (401, 401), "{method} {path}");
        if method == "GET" {
            assert!(head(admin, path).starts_with("HTTP/1.1 401 "), "HEAD {path}");
        }
        // A token with the other right.
        let lacking = if access == Access::Change { LOOKER } else { CHANGER };
        assert_eq!(status(lacking, a), 403, "{method} {path}");
        if access == Access::Metrics {
            assert_eq!((status(a.token, a), status(LOOKER, a), status(OPERATOR, a)), (403, 200, 200));
            continue;
        }
        for (own, other) in [(a, b), (b, a)] {
            let answer = ask(admin, method, path, own.token, &about(other));
            // A list has only the caller's part. What is about a domain is refused.
            let (is_list, is_refused) = (about(own) == about(other), answer.status == 403);
            let each_is_refused = path == "/rows" && method == "POST" && answer.body.contains("is not for the domain");
            assert_eq!(is_refused || each_is_refused, !is_list, "{method} {path} for {}: {answer:?}", own.domain);
            assert!(is_list || !own.is_named_in(&answer.body), "{method} {path}: {answer:?}");
            let said =
                answer.body.replace(&format!("is not for the domain {:?}", other.domain).replace('"', "\\\""), "");
            assert!(!other.is_named_in(&said), "{method} {path} shows {} to {}: {answer:?}", other.domain, own.domain);
            let answer = ask(admin, method, path, own.token, &about(own));
            assert_eq!(answer.status, 200, "{method} {path} for {}: {answer:?}", own.domain);
            if own.is_named_in(&answer.body) && !other.is_named_in(&answer.body) {
                seen.insert((method, path));
            }
        }
    }
    // No answer above was empty for another reason.
    let silent: Vec<_> = admin_endpoints()
        .filter(|(method, path, access)| {
            matches!(access, Access::Look | Access::Change) && !seen.contains(&(*method, *path))
        })
        .map(|(method, path, _)| format!("{method} {path}"))
        .collect();
    assert_eq!(silent, ["GET /tap", "POST /rows"], "they show no values of a team");
    let refused = |line: &LogLine| {
        line.message() == Some("refused a request whose token lacks a right or a domain")
            || line.message() == Some("refused a request without a token of admin.token_file")
    };
    assert!(weir.wait_for_log(0, PATIENCE, refused), "{}", weir.written());
    // Each change has its author, and so has each look at values.
    for (message, domain) in
        ["override set", "override deleted", "row set", "row removed", "state reset by the admin listener"]
            .into_iter()
            .chain(["a tap with values is open"])
            .flat_map(|message| TEAMS.map(|team| (message, team.domain)))
    {
        let name = &domain[5..6];
        let own = |line: &LogLine| {
            let is = |field: &str, value: &str| line.field(field).and_then(Value::as_str) == Some(value);
            line.message() == Some(message) && is("domain", domain) && is("by", name) && is("target", "weir_audit")
        };
        assert!(weir.wait_for_log(0, PATIENCE, own), "{message} of {domain}: {}", weir.written());
    }
    let by_another = |line: &LogLine| {
        let field = |name: &str| line.field(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        field("target") == "weir_audit" && !field("domain").starts_with(&format!("team-{}", field("by")))
    };
    assert_eq!(weir.count_in_log(by_another), 0, "{}", weir.written());
    for secret in [LOOKER, CHANGER, OPERATOR].into_iter().chain(TEAMS.map(|team| team.token)) {
        assert!(!weir.written().contains(secret) && !weir.written().contains(&hashed(secret)), "{secret}");
    }
}

#[test]
fn what_concerns_all_domains_needs_a_token_for_all() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), tokens()).unwrap();
    let (weir, mut policies) = start(file.path(), &[]);
    let admin = weir.admin;
    let [team, other] = TEAMS;
    // Each token has a line of its own, with what it lacks and where.
    for (of, domain, path) in [(team, other.domain, "/limited"), (other, team.domain, "/states")] {
        let query = format!("{path}?domain={domain}&rule=user");
        assert_eq!(request(admin, "GET", &query, Some(of.token), "").status, 403);
        let name = &of.domain[5..6];
        let expected =
            [name, "GET", path, &*format!("the token {name} is not for the domain {domain:?}")].map(|text| json!(text));
        let is_it = |line: &LogLine| {
            line.message() == Some("refused a request whose token lacks a right or a domain")
                && ["token", "method", "path", "reason"].map(|field| line.field(field).cloned().unwrap_or_default())
                    == expected
                && line.field("refused") == Some(&json!(1))
        };
        assert!(weir.wait_for_log(0, PATIENCE, is_it), "{}", weir.written());
    }
    for (method, path) in [("GET", "/rows"), ("DELETE", "/rows?ended=true"), ("GET", "/tap?seconds=1")] {
        let answer = request(admin, method, path, Some(team.token), "");
        assert!(answer.status == 403 && answer.body.contains("name one of its own"), "{method} {path}: {answer:?}");
        assert_eq!(request(admin, method, path, Some(OPERATOR), "").status, 200, "{method} {path}");
    }
    // The hint about a misspelt domain names no domain of another team.
    let tapped = |token: &str, domain: &str| {
        request(admin, "GET", &format!("/tap?domain={domain}&seconds=1&notes=true"), Some(token), "").body
    };
    assert!(tapped(OPERATOR, "team-b/shp").contains(other.domain));
    assert!(tapped(team.token, "team-a/shp").contains(team.domain));
    let (only, _more) = start_with_one_domain(file.path());
    assert!(
        request(only.admin, "GET", "/tap?domain=team-a/shop&seconds=1&notes=true", Some(team.token), "")
            .body
            .contains("\"nearest\":null")
    );
    // Problems of files can quote those of other teams.
    policies.replace(&[("a.yaml".to_owned(), "domain: [secret-of-b]".to_owned())]);
    until("the problem", PATIENCE, || {
        let ready = request(admin, "GET", "/readyz", Some(OPERATOR), "");
        ready.body.contains("a.yaml").then_some(())
    });
    for token in [None, Some(team.token), Some(CHANGER), Some("none")] {
        let ready = request(admin, "GET", "/readyz", token, "");
        let ready: Value = serde_json::from_str(&ready.body).unwrap();
        assert_eq!((&ready["policies"]["problem_count"], &ready["policies"]["problems"]), (&json!(1), &Value::Null));
    }
    let source = |token| request(admin, "GET", "/policies/source", Some(token), "").body;
    assert!(source(OPERATOR).contains("a.yaml:1"));
    let of_team: Value = serde_json::from_str(&source(team.token)).unwrap();
    assert_eq!(of_team["problems"], json!(["newer policies: ask with a token for all domains"]));
    assert!(source(team.token).contains(team.value) && !source(team.token).contains(other.value));
}

/// A weir that has the other team's domain only.
fn start_with_one_domain(tokens: &Path) -> (Weir, PolicyDirectory) {
    let policies = PolicyDirectory::with_file("b.yaml", &TEAMS[1].policy());
    let token_file = format!("admin.token_file={}", tokens.display());
    (Weir::start(&policies.path(), &["--set", &token_file]), policies)
}

#[test]
fn overlays_concern_all_domains_so_sources_need_a_token_for_all() {
    let directory = tempfile::tempdir().unwrap();
    let (file, overlay) = (directory.path().join("tokens"), directory.path().join("o.overlay.yaml"));
    fs::write(&file, tokens()).unwrap();
    fs::write(&overlay, "overlays: [{domain: team-b/shop, descriptors: [user], on_error: deny}]").unwrap();
    let (weir, _policies) = start(&file, &[&format!("policies.overlay={}", overlay.display())]);
    let source = |token: &str| request(weir.admin, "GET", "/policies/source", Some(token), "");
    assert_eq!((source(TEAMS[0].token).status, source(OPERATOR).status), (403, 200));
}

#[test]
fn the_metrics_need_a_token_at_each_listener_if_the_setting_says_so() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), tokens()).unwrap();
    let token_file = format!("admin.token_file={}", file.path().display());
    let open = Served::start(&TEAMS[0].policy(), &[&token_file]);
    for address in [open.at.http, open.at.admin] {
        assert_eq!(http::get(address, "/metrics").unwrap().status, 200);
    }
    for (endpoints, paths) in [("weir", &["/metrics"][..]), ("ratelimit", &["/metrics", "/stats"])] {
        let endpoints = format!("admin.endpoints={endpoints}");
        let served = Served::start(&TEAMS[0].policy(), &[&token_file, "admin.metrics_token=on", &endpoints]);
        let mut asked: Vec<_> = paths.iter().map(|path| (served.at.admin, *path)).collect();
        asked.push((served.at.http, "/metrics"));
        for (address, path) in asked {
            let status = |token: Option<&str>| request(address, "GET", path, token, "").status;
            let statuses = [None, Some("none"), Some(TEAMS[0].token), Some(CHANGER), Some(LOOKER)].map(status);
            assert_eq!(statuses, [401, 401, 403, 403, 200], "{address} {path}");
            let refused = request(address, "GET", path, Some(TEAMS[0].token), "").body;
            assert!(refused.contains("is not for all domains, and the metrics are of all domains"), "{refused}");
        }
        for path in ["/healthz", "/readyz"] {
            assert_eq!(http::get(served.at.http, path).unwrap().status, 200);
        }
    }
    let refused = Command::new(binary())
        .args(["serve", "--policies", "/nowhere", "--set", "admin.metrics_token=on"])
        .output()
        .unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && error.contains("set admin.token_file too"), "{error}");
}

/// With a token that was revoked while the body of a change arrived, the row was written.
#[test]
fn a_token_that_is_removed_before_the_body_has_arrived_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    fs::write(&file, tokens()).unwrap();
    let (weir, _policies) = start(&file, &[]);
    let team = TEAMS[0];
    let put = |text: &str| {
        fs::write(file.with_extension("next"), text).unwrap();
        fs::rename(file.with_extension("next"), &file).unwrap();
    };
    let others: String = tokens().lines().skip(1).map(|line| format!("{line}\n")).collect();
    let looks = format!("a {} look team-a/*\n{others}", team.token);
    for (now, expected) in [(tokens(), 200), (others, 403), (looks, 403)] {
        for (method, path, body) in [
            ("PUT", "/rows", team.row("late")),
            ("POST", "/rows", team.row("late")),
            ("PUT", "/overrides", team.new_override()),
        ] {
            put(&tokens());
            let authorization = format!("Bearer {}", team.token);
            let headers = [("authorization", authorization.as_str()), ("expect", "100-continue")];
            let mut stream = http::connect(weir.admin).unwrap();
            stream.write_all(http::head(method, path, &headers, body.len()).as_bytes()).unwrap();
            // weir asks for the body after it has read the token.
            let mut asks = [0; 25];
            stream.read_exact(&mut asks).unwrap();
            assert_eq!(&asks, b"HTTP/1.1 100 Continue\r\n\r\n");
            put(&now);
            stream.write_all(body.as_bytes()).unwrap();
            let answer = http::read_answer(stream).unwrap();
            assert_eq!(answer.status, expected, "{method} {path}: {answer:?}");
            assert!(expected == 200 || answer.body.contains("was removed or changed before its request"), "{answer:?}");
        }
        let shown = |path: &str| {
            let path = format!("{path}?domain={}&descriptor=tenant=late-{}", team.domain, team.value);
            request(weir.admin, "GET", &path, Some(OPERATOR), "").status
        };
        assert_eq!(shown("/rows"), if expected == 200 { 200 } else { 404 });
        let row = format!("/rows?domain={}&descriptor=tenant=late-{}", team.domain, team.value);
        request(weir.admin, "DELETE", &row, Some(OPERATOR), "");
    }
}

#[test]
fn each_refused_request_is_counted_and_has_its_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), format!("a {} look,change team-a/*\n", TEAMS[0].token)).unwrap();
    let [own, other] = TEAMS;
    let refused = |admin: SocketAddr| served::metric(admin, "weir_admin_refused_total").expect("the metric");
    for (method, path, token, body, status) in [
        ("GET", "/tap?domain=team-a/shop&values=shown&seconds=1", own.token, String::new(), 403),
        ("POST", "/rows", own.token, format!("{}\n{}\n{0}", other.row("x"), own.row("x")), 200),
        ("POST", "/rows?remove=true", own.token, other.row("x"), 200),
        ("GET", "/readyz", "0123456789abcdef-none", String::new(), 200),
    ] {
        // One line in ten seconds.
        let (weir, _policies) = start(file.path(), &[]);
        let before = refused(weir.http);
        assert_eq!(request(weir.admin, method, path, Some(token), &body).status, status, "{method} {path}");
        assert_eq!(refused(weir.http), before + 1, "{method} {path}");
        let is_line = |line: &LogLine| {
            line.message().is_some_and(|message| message.starts_with("refused a request"))
                && line.field("peer").is_some()
        };
        assert!(weir.wait_for_log(0, PATIENCE, is_line), "{method} {path}: {}", weir.written());
        // Neither of these is refused.
        for token in [None, Some(own.token)] {
            assert_eq!(request(weir.admin, "GET", "/readyz", token, "").status, 200);
        }
        assert_eq!(refused(weir.http), before + 1, "{method} {path}");
    }
}

/// One token opened all taps, and the operator had none.
#[test]
fn a_token_of_some_domains_leaves_a_tap_for_those_of_all() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), tokens()).unwrap();
    let (weir, _policies) = start(file.path(), &[]);
    let open = |token: &str| {
        let authorization = format!("Bearer {token}");
        let path = format!("/tap?domain={}", TEAMS[0].domain);
        let mut stream = http::connect(weir.admin).unwrap();
        stream.write_all(http::head("GET", &path, &[("authorization", &authorization)], 0).as_bytes()).unwrap();
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).unwrap();
        (stream, String::from_utf8_lossy(&begun[9..]).into_owned())
    };
    let mut taps = Vec::new();
    for (token, status) in [(TEAMS[0].token, "200"); 3].into_iter().chain([(TEAMS[0].token, "503"), (OPERATOR, "200")])
    {
        let (tap, answered) = open(token);
        assert_eq!(answered, status, "{token}");
        taps.push(tap);
    }
}

/// The statistics have values of callers and all domains.
#[test]
fn the_statistics_of_the_debug_port_need_a_token_that_looks_at_all_domains() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), tokens()).unwrap();
    let (weir, _policies) = start(file.path(), &["admin.endpoints=ratelimit"]);
    let status = |path, token: Option<&str>| request(weir.admin, "GET", path, token, "").status;
    let tokens = [None, Some("none"), Some(TEAMS[0].token), Some(CHANGER), Some(LOOKER)];
    assert_eq!(tokens.map(|token| status("/stats", token)), [401, 401, 403, 403, 200]);
    assert_eq!(status("/metrics", None), 200);
}

/// A page of another site reads this port by a name of its own that has its address.
#[test]
fn the_debug_port_checks_the_host_where_names_are_set() {
    let status = |weir: &Weir, host: &str| {
        let mut stream = http::connect(weir.admin).unwrap();
        let head = format!("GET /rlconfig HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        http::read_answer(stream).unwrap().status
    };
    let policies = PolicyDirectory::with_file("a.yaml", &TEAMS[0].policy());
    let start = |more: &[&str]| {
        let settings = ["admin.endpoints=ratelimit"].iter().chain(more);
        Weir::start(&policies.path(), &settings.flat_map(|setting| ["--set", setting]).collect::<Vec<_>>())
    };
    let hosts = ["127.0.0.1:6070", "localhost", "ratelimit.mesh.svc:6070", "evil.example"];
    let open = start(&[]);
    assert_eq!(hosts.map(|host| status(&open, host)), [200; 4], "as envoyproxy/ratelimit");
    let named = start(&["http.admin_hosts=ratelimit.mesh.svc"]);
    assert_eq!(hosts.map(|host| status(&named, host)), [200, 200, 200, 403]);
}

#[test]
fn the_paths_of_the_debug_port_show_the_limits_of_a_caller() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), tokens()).unwrap();
    let (weir, _policies) = start(file.path(), &["admin.endpoints=ratelimit"]);
    let limits = |token: Option<&str>| request(weir.admin, "GET", "/rlconfig", token, "");
    assert_eq!((limits(None).status, limits(Some(CHANGER)).status), (401, 403));
    let [a, b] = TEAMS;
    for (own, other) in [(a, b), (b, a)] {
        let answer = limits(Some(own.token)).body;
        assert!(answer.contains(own.domain) && !answer.contains(other.domain), "{answer}");
    }
    assert_eq!(request(weir.admin, "GET", "/", None, "").status, 200);
}

/// Requests see the tokens before a change or after it, and no other ones.
#[test]
fn a_file_that_is_replaced_all_the_time_is_never_half_in_force() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens");
    let [a, b] = TEAMS;
    // The right of each token is always the same. A part of a line would give a token more rights, or no line at all.
    let whole = format!("a {} look team-a/*\nb {} look team-b/*\n", a.token, hashed(b.token));
    let shorter = format!("a {} look team-a/*\n", hashed(a.token));
    let bad: Vec<String> = (1..whole.len()).step_by(11).map(|end| whole[..end].to_owned()).collect();
    fs::write(&file, &whole).unwrap();
    let (weir, _policies) = start(&file, &[]);
    let admin = weir.admin;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let texts = bad.iter().flat_map(|bad| [&whole, bad, &shorter, bad]);
            for text in texts.cycle() {
                if is_over.load(Relaxed) {
                    return;
                }
                std::thread::park_timeout(Duration::from_millis(1));
                // Some are written in place, as an editor does.
                if text.len() % 2 == 0 {
                    let next = directory.path().join("next");
                    fs::write(&next, text).unwrap();
                    fs::rename(&next, &file).unwrap();
                } else {
                    fs::write(&file, text).unwrap();
                }
            }
        });
        for _ in 0..150 {
            let status = |method, path: &str, token| request(admin, method, path, Some(token), "").status;
            let state = format!("/state?domain={}&descriptor=user={}", a.domain, a.value);
            let others = format!("/state?domain={}&descriptor=user={}", b.domain, b.value);
            assert_eq!(status("GET", &state, a.token), 200);
            assert_eq!(status("DELETE", &state, a.token), 403, "it never has the right to change");
            assert_eq!(status("GET", &others, a.token), 403, "nor another domain");
            assert!([200, 401].contains(&status("GET", &others, b.token)));
            assert_eq!(status("GET", &state, &a.token[..17]), 401, "a part of a token is none");
        }
        is_over.store(true, Relaxed);
    });
    // A gauge shows a file that cannot be used, without any request for it.
    let unusable = |expected: u64| {
        until("the gauge", PATIENCE, || {
            let shown = served::metric(weir.http, "weir_input_refused{input=\"tokens\"}");
            (shown == Some(expected)).then_some(())
        });
    };
    until("the whole file", PATIENCE, || {
        fs::write(&file, &whole).unwrap();
        let state = format!("/state?domain={}&descriptor=user={}", b.domain, b.value);
        (request(admin, "GET", &state, Some(b.token), "").status == 200).then_some(())
    });
    let too_many: String = (0..100_000).map(|number| format!("n{number} 0123456789abcdef{number} look *\n")).collect();
    let (twice, short) = (format!("a {}\n", a.token).repeat(2), format!("a sha256:{}\n", "0".repeat(63)));
    for text in [&*too_many, "", &twice, &short] {
        fs::write(&file, &whole).unwrap();
        unusable(0);
        fs::write(&file, text).unwrap();
        unusable(1);
        let state = format!("/state?domain={}&descriptor=user={}", b.domain, b.value);
        assert_eq!(request(admin, "GET", &state, Some(b.token), "").status, 200, "the last good file");
    }
    let logged = |line: &LogLine| {
        line.message() == Some("token file refused")
            && line.field("effect").is_some_and(|effect| effect == "the last good tokens stay valid")
            && line.field("reason").and_then(Value::as_str).is_some_and(|reason| !reason.is_empty())
    };
    assert!(weir.wait_for_log(0, PATIENCE, logged), "{}", weir.written());
}

/// Each request to the admin listener in the runbook, as method and path.
fn drills() -> Vec<(&'static str, &'static str)> {
    let mut drills = Vec::new();
    for line in include_str!("../../../docs/operations.md").lines() {
        for (at, address) in line.match_indices("localhost:6070/") {
            let path = &line[at + address.len() - 1..];
            let end = path.find(|c: char| " '`|;".contains(c)).unwrap_or(path.len());
            let method = if line[..at].ends_with("-X DELETE '") { "DELETE" } else { "GET" };
            drills.push((method, &path[..end]));
        }
    }
    drills
}

#[test]
fn the_drills_of_the_runbook_work_with_the_right_that_it_names() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let tokens = file("tokens", &format!("looker {LOOKER} look *\nchanger {CHANGER} change *\n"));
    let policy = "domain: shop\ndescriptors:\n- {key: user, rate_limit: 9/day}\n\
                  - {key: tenant, rows: {default: free}, rate_limit: {rate: 3/day, plans: {gold: 7/day}}}\n";
    let served = Served::start(policy, &[&format!("admin.token_file={}", tokens.display())]);
    let admin = served.at.admin;
    let (drills, mut rights) = (drills(), BTreeSet::new());
    for (method, path) in &drills {
        let status = |token: Option<&str>| request(admin, method, path, token, "").status;
        let (right, other) = if *method == "GET" { (LOOKER, CHANGER) } else { (CHANGER, LOOKER) };
        let expected = if *path == "/readyz" { [200; 3] } else { [200, 403, 401] };
        assert_eq!([status(Some(right)), status(Some(other)), status(None)], expected, "{method} {path}");
        rights.insert(right);
    }
    assert!(rights.len() == 2 && drills.len() >= 6, "{drills:?}");
    let (looker, changer) = (file("looker", LOOKER), file("changer", CHANGER));
    let rows = file("rows.csv", "domain,tenant,plan\nshop,acme,gold\n");
    for (words, token) in [
        (&["top", "--once"][..], &looker),
        (&["explain", "shop", "user=ann"], &looker),
        (&["override", "list"], &looker),
        (&["tap", "--domain", "shop", "--for", "1s"], &looker),
        (&["tap", "--verdict", "error", "--for", "1s"], &looker),
        (&["rows", "import", rows.to_str().unwrap()], &changer),
        (&["override", "set", "shop", "user=ann", "--limit", "10/day", "--for", "1h", "--reason", "x"], &changer),
        (&["override", "delete", "shop", "user=ann"], &changer),
    ] {
        let output = run(admin, words, Some(token));
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}

#[test]
fn the_example_on_the_page_is_a_good_file() {
    let page = include_str!("../../../docs/admin.md");
    let (_, example) = page.split_once("has a token in each line:\n\n```text\n").expect("an example");
    let (example, _) = example.split_once("```").expect("its end");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), example).unwrap();
    let served = Served::start(&TEAMS[0].policy(), &[&format!("admin.token_file={}", file.path().display())]);
    let status = |token: &str, path: &str| request(served.at.admin, "GET", path, Some(token), "").status;
    let state = format!("/state?domain={}&descriptor=user=x", TEAMS[0].domain);
    for (token, expected) in [
        ("7Jq0mQ0y3n2mB4hT", 200),
        ("token-of-team-a-for-the-page", 200),
        ("token-of-ops-for-the-page", 200),
        ("token-of-nobody-for-the-page", 401),
    ] {
        assert_eq!(status(token, &state), expected, "{token}");
    }
    assert_eq!(status("token-of-team-a-for-the-page", "/state?domain=other&descriptor=user=x"), 403);
}

fn run(admin: SocketAddr, words: &[&str], token: Option<&Path>) -> Output {
    let mut command = Command::new(binary());
    command.args(words).args(["--server", &admin.to_string()]);
    if let Some(token) = token {
        command.arg("--token-file").arg(token);
    }
    command.output().expect("weir runs")
}

#[test]
fn each_command_sends_its_token_and_shows_the_domains_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let (file, token) = (directory.path().join("tokens"), directory.path().join("token"));
    fs::write(&file, tokens()).unwrap();
    let [a, b] = TEAMS;
    fs::write(&token, a.token).unwrap();
    let (weir, _policies) = start(&file, &[]);
    deny_both(weir.grpc);
    assert_eq!(request(weir.admin, "PUT", "/overrides", Some(a.token), &a.new_override()).status, 200);
    assert_eq!(request(weir.admin, "PUT", "/rows", Some(a.token), &a.row("x")).status, 200);
    assert_eq!(request(weir.admin, "PUT", "/overrides", Some(b.token), &b.new_override()).status, 200);
    for words in [
        &["top", "--once"][..],
        &["override", "list"],
        &["override", "list", "--json"],
        &["rows", "list", a.domain],
        &["rows", "export", a.domain],
        &["rows", "get", a.domain, "tenant=x-alice"],
        &["explain", a.domain, "user=alice"],
        &["check"],
        &["tap", "--domain", a.domain, "--for", "1s"],
    ] {
        let without = run(weir.admin, words, None);
        let error = String::from_utf8(without.stderr).unwrap();
        assert!(!without.status.success() && error.contains("--token-file FILE"), "{words:?}: {error}");
        let with = run(weir.admin, words, Some(&token));
        let shown = String::from_utf8(with.stdout).unwrap();
        assert!(with.status.success(), "{words:?}: {}", String::from_utf8_lossy(&with.stderr));
        assert!(words[0] == "tap" || a.is_named_in(&shown), "{words:?}: {shown}");
        assert!(!b.is_named_in(&shown), "{words:?}: {shown}");
    }
    let explained =
        String::from_utf8(run(weir.admin, &["explain", a.domain, "user=alice"], Some(&token)).stdout).unwrap();
    assert!(explained.contains("overridden until"), "{explained}");
    // It printed that requests of the other domain pass.
    let unseen = run(weir.admin, &["explain", b.domain, "user=alice"], Some(&token));
    let error = String::from_utf8(unseen.stderr).unwrap();
    assert!(unseen.status.code() == Some(1) && unseen.stdout.is_empty(), "{error}");
    assert!(error.contains("the token is only for team-a/*: it cannot see whether"), "{error}");
    let checked = String::from_utf8(run(weir.admin, &["check"], Some(&token)).stdout).unwrap();
    assert!(checked.ends_with("a part of the policies: the token is only for team-a/*\n"), "{checked}");
    let other = run(weir.admin, &["rows", "list", b.domain], Some(&token));
    let error = String::from_utf8(other.stderr).unwrap();
    assert!(error.contains("403") && error.contains("the token a is not for the domain"), "{error}");
}
