//! Policies by the snapshot cache and the server of go-control-plane, the library that Envoy Gateway serves them with.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::{limit, metric, policies, serving, wait_for_state};
use crate::support::http;
use crate::support::process::end;
use crate::support::rls::{self, Client};
use crate::support::tools;
use crate::support::wait::PATIENCE;

/// tests/go-control-plane, whose page says what it reads and prints.
struct ControlPlane {
    child: Child,
    snapshots: ChildStdin,
    printed: Receiver<String>,
}

impl ControlPlane {
    fn start() -> Self {
        let program = tools::go_build("go-control-plane", &tools::repository().join("tests/go-control-plane"));
        let mut command = Command::new(program);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a control plane");
        let snapshots = child.stdin.take().expect("its standard input");
        let lines = BufReader::new(child.stdout.take().expect("its standard output")).lines();
        let (sender, printed) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, snapshots, printed }
    }

    fn set(&mut self, snapshot: &str) {
        writeln!(self.snapshots, "{snapshot}").expect("the control plane reads");
    }

    fn next(&self) -> String {
        self.printed.recv_timeout(PATIENCE).expect("a line of the control plane")
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

#[test]
fn snapshots_of_go_control_plane_are_put_in_force_or_refused_whole() {
    if tools::is_missing("go", &["version"]) {
        return;
    }
    let mut plane = ControlPlane::start();
    let address = plane.next().strip_prefix("listening ").expect("where it listens").to_owned();
    plane.set("v1 shop 2");
    let weir = serving(&address, &["policies.xds.node_id=weir"]);
    assert_eq!(plane.next(), "accepted v1");
    let mut client = Client::connect(weir.grpc);
    let admitted = [(); 3].map(|()| client.admits("shop", "user", "ann"));
    assert_eq!(admitted, [true, true, false]);

    plane.set("v2 shop 5 forum 7");
    assert_eq!(plane.next(), "accepted v2");
    assert_eq!((limit(&mut client, "shop"), limit(&mut client, "forum")), (Some(5), Some(7)));
    assert!(client.admits("shop", "user", "ann"), "two of five are used");

    plane.set("v3 shop 1 - 9");
    let refused = plane.next();
    assert!(refused.starts_with("refused v3: policies of : domain is empty"), "{refused}");
    assert_eq!((limit(&mut client, "shop"), limit(&mut client, "forum")), (Some(5), Some(7)));
    assert_eq!(policies(&weir)["problems"].as_array().map(Vec::len), Some(1));

    plane.set("v4 forum 3");
    // A version that was refused may come again before the next one.
    let answer = std::iter::repeat_with(|| plane.next()).find(|line| !line.starts_with("refused v3"));
    assert_eq!(answer.as_deref(), Some("accepted v4"));
    assert_eq!((limit(&mut client, "shop"), limit(&mut client, "forum")), (None, Some(3)));

    drop(plane);
    wait_for_state(&weir, "without its server", |state| state["server"]["connected"] == false);
    assert_eq!(limit(&mut client, "forum"), Some(3), "the last policies stay");
}

/// The overlays of the example, on what Envoy Gateway sends.
#[test]
fn limits_of_envoy_gateway_run_by_the_algorithms_of_an_overlay() {
    if tools::is_missing("go", &["version"]) {
        return;
    }
    let mut plane = ControlPlane::start();
    let address = plane.next().strip_prefix("listening ").expect("where it listens").to_owned();
    plane.set("v1 default/eg/http 3600");
    let overlay = tools::repository().join("examples/overlays/gateway.overlay.yaml");
    let overlay = format!("policies.overlay={}", overlay.display());
    let weir = serving(&address, &["policies.xds.node_id=weir", &overlay]);
    assert_eq!(plane.next(), "accepted v1");

    let answer = http::get(weir.admin, "/policies").expect("an answer");
    let shown: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    let rules: Vec<_> =
        shown["domains"][0]["rules"].as_array().expect("rules").iter().map(ToString::to_string).collect();
    let has = |path: &str, texts: &[&str]| {
        let of_path = rules.iter().find(|rule| rule.contains(path)).unwrap_or_else(|| panic!("no {path}: {rules:?}"));
        assert!(texts.iter().all(|text| of_path.contains(text)), "{of_path}");
    };
    has("users/rule/0/match/0/*|rule-0-match-0", &["sliding_window", "lease", "local", "3600"]);
    has("rule-0-match--1", &["gcra", "20"]);
    has("remote_address", &["fixed_window", "10"]);

    let mut client = Client::connect(weir.grpc);
    let route = "httproute/default/orders/rule/0/match/0/*";
    let order = [(route, route), ("rule-0-match--1", "rule-0-match--1")];
    let answers: Vec<_> =
        (0..21).map(|_| client.ask(rls::request("default/eg/http", &order)).expect("an answer")).collect();
    let admitted = answers.iter().filter(|answer| rls::admits(answer)).count();
    assert!((20..=21).contains(&admitted), "a burst of 20, and one more each second: {admitted}");
    assert_eq!(metric(&weir, "weir_policy_overlays{state=\"met\"}"), 3);

    // What the control plane gives must not be what the overlay gives.
    plane.set("v2 default/eg/http 10");
    let refused = plane.next();
    assert!(refused.starts_with("refused v2: ") && refused.contains("gateway.overlay.yaml:"), "{refused}");
    assert!(refused.contains("lease on a limit of 10") && refused.contains("policies of default/eg/http"), "{refused}");
}
