//! Policies by the snapshot cache and the server of go-control-plane, the library that Envoy Gateway serves them with.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use super::{limit, policies, serving, wait_for_state};
use crate::support::process::end;
use crate::support::rls::Client;
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
