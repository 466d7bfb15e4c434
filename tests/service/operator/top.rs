//! `weir top`: the real program on a terminal and in a pipe, against real servers and against ones that misbehave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;

use crate::support::http;
use crate::support::process::binary;
use crate::support::proxy::Proxy;
use crate::support::rls::{self, Client};
use crate::support::served::Served;
use crate::support::terminal::OnTerminal;
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per-user, requests_per_unit: 2, unit: hour}}
  - {key: tenant, rate_limit: {requests_per_unit: 1000, unit: hour}}
";
/// Would set the title of the terminal, clear it, and write from right to left.
const HOSTILE: &str = "\u{1b}]0;taken\u{7}\u{1b}[2J\u{202e}\tx";
const SHOWN: &str = "user=\\u{1b}]0;taken\\u{7}\\u{1b}[2J\\u{202e}\\tx";

fn ask(served: &Served, times: usize, key: &str, value: &str) {
    let mut client = Client::connect(served.at.grpc);
    for _ in 0..times {
        client.ask(rls::request("shop", &[(key, value)])).unwrap();
    }
}

/// A server that has denied something, as its admin listener knows.
fn serving() -> Served {
    let served = Served::start(POLICY, &[]);
    ask(&served, 9, "user", HOSTILE);
    ask(&served, 3, "user", "bob");
    ask(&served, 5, "tenant", "acme");
    until("the denials", PATIENCE, || {
        let top = http::get(served.at.admin, "/top").unwrap().body;
        (top.contains("taken") && top.contains("user=bob")).then_some(())
    });
    served
}

fn top(server: SocketAddr, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(["top", "--server", &server.to_string()]).args(arguments).stdin(Stdio::null());
    command
}

fn once(server: SocketAddr) -> Output {
    top(server, &["--once"]).output().unwrap()
}

/// A listener that does this with each connection.
fn misbehaving(act: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, act) = (stream.unwrap(), act.clone());
            thread::spawn(move || act(stream));
        }
    });
    address
}

/// Reads a request up to its empty line.
fn read_head(stream: &TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
}

#[test]
fn a_terminal_shows_who_is_denied_and_answers_keys() {
    let served = serving();
    let mut shown = OnTerminal::start(top(served.at.admin, &[]), 24, 120);
    shown.shows(SHOWN);
    for text in ["limits by denied", "shop", "per-user", "user=bob", "store memory answers", "circuit closed", "q quit"]
    {
        shown.shows(text);
    }
    assert!(!shown.is_given_back());
    let raw = shown.raw();
    for escape in ["\u{1b}]0;", "\u{7}", "\u{202e}"] {
        assert!(!raw.windows(escape.len()).any(|window| window == escape.as_bytes()), "{escape:?}");
    }
    shown.press("s");
    shown.shows("limits by hits");
    shown.press("/bob\r");
    shown.shows("from 1 of 1, with \"bob\"");
    assert!(!shown.screen().contains("taken"), "{}", shown.screen());
    shown.press("\u{1b}");
    shown.shows("taken");
    shown.press("p");
    shown.shows("paused");
    shown.resize(8, 40);
    until("a picture of that size", PATIENCE, || {
        let screen = shown.screen();
        let last = screen.lines().nth(7).filter(|_| screen.lines().count() == 8);
        last.is_some_and(|line| line.starts_with("q quit")).then_some(())
    });
    assert!(!shown.screen().contains("taken"), "{}", shown.screen());
    shown.press("q");
    assert_eq!(shown.ended().code(), Some(0));
    shown.gives_back();
}

#[test]
fn the_terminal_is_given_back_however_it_ends() {
    let served = serving();
    for end in ["TERM", "INT", "HUP", "\u{3}"] {
        let mut shown = OnTerminal::start(top(served.at.admin, &[]), 24, 120);
        shown.shows("limits by denied");
        assert!(!shown.is_given_back());
        match end {
            "\u{3}" => shown.press(end),
            signal => shown.signal(signal),
        }
        assert_eq!(shown.ended().code(), Some(0), "{end:?}");
        shown.gives_back();
    }
}

#[test]
fn a_terminal_without_a_keyboard_is_an_error_and_given_back() {
    let served = serving();
    let mut command = Command::new("setsid");
    let run = format!("exec {} top --server {} </dev/null", binary().display(), served.at.admin);
    command.args(["--wait", "sh", "-c", &run]);
    let mut shown = OnTerminal::start(command, 24, 120);
    assert_eq!(shown.ended().code(), Some(1));
    shown.shows("weir: cannot use the terminal: ");
    shown.gives_back();
}

#[test]
fn a_stopped_process_gives_the_terminal_back_and_takes_it_again() {
    let served = serving();
    let mut shown = OnTerminal::start(top(served.at.admin, &[]), 24, 120);
    shown.shows("limits by denied");
    shown.press("\u{1a}");
    until("the process to stop", PATIENCE, || shown.is_stopped().then_some(()));
    shown.gives_back();
    shown.signal("CONT");
    until("the terminal to be taken again", PATIENCE, || (!shown.is_given_back()).then_some(()));
    shown.shows("limits by denied");
    shown.press("q");
    assert_eq!(shown.ended().code(), Some(0));
    shown.gives_back();
}

#[test]
fn a_server_that_goes_away_is_asked_until_it_is_back() {
    let served = serving();
    let proxy = Proxy::start(served.at.admin.port());
    let through = SocketAddr::from(([127, 0, 0, 1], proxy.port()));
    let mut shown = OnTerminal::start(top(through, &[]), 24, 200);
    shown.shows("user=bob");
    // It stalls: the keyboard does not, and what was known is still there.
    proxy.silence(true);
    shown.press("s");
    shown.shows("limits by hits");
    shown.shows("trying again: no answer from");
    shown.shows("user=bob");
    proxy.silence(false);
    shown.shows("ready");
    // It dies.
    served.stop().unwrap();
    shown.shows("trying again");
    shown.press("s");
    shown.shows("limits by name");
    shown.press("q");
    assert_eq!(shown.ended().code(), Some(0));
}

#[test]
fn a_pipe_gets_lines_of_fields() {
    let served = serving();
    let output = once(served.at.admin);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let of =
        |kind: &str| lines.iter().filter(|fields| fields[1] == kind).map(|fields| &fields[2..]).collect::<Vec<_>>();
    let [server] = of("server")[..] else { panic!("{text}") };
    assert_eq!(
        (server[0], &server[4..15]),
        ("ready", &["memory", "answers", "closed", "0", "1", "2", "0", "0", "0", "0", "0"][..])
    );
    // Nobody has asked since the first look.
    assert_eq!(server[15..19], ["0.0", "0.0", "-", "-"]);
    assert!(server.len() == 20 && server[19].parse::<u64>().is_ok(), "{server:?}");
    let limit = of("limit").into_iter().find(|fields| fields[4] == "user").unwrap();
    assert_eq!(limit[2..], ["8", "shop", "user", "per-user", "enforced"]);
    let keys: Vec<_> = of("key").into_iter().map(|fields| (fields[0], fields[1], fields.len(), fields[6])).collect();
    assert_eq!(keys, [("7", "7", 9, SHOWN), ("1", "1", 9, "user=bob")]);
    assert!(text.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()), "{text:?}");
}

#[test]
fn lines_follow_each_other_until_nobody_reads_them() {
    let served = serving();
    let mut child = top(served.at.admin, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let (mut line, mut reports) = (String::new(), 0);
    while reports < 2 {
        line.clear();
        reader.read_line(&mut line).unwrap();
        reports += usize::from(line.contains("\tserver\t"));
    }
    drop(reader);
    let status = until("the end", PATIENCE, || child.try_wait().unwrap());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!((status.code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn a_server_that_misbehaves_is_named_with_what_it_did() {
    let answer = |text: &'static str| {
        misbehaving(move |mut stream| {
            read_head(&stream);
            let _ = stream.write_all(text.as_bytes());
        })
    };
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (server, expected) in [
        (closed, "cannot connect to ADDR: Connection refused"),
        (answer(""), "ADDR does not answer GET /top?limits=64&keys=16 by HTTP"),
        (answer("\u{1b}[31mSSH-2.0\r\n\r\n"), "ADDR does not answer GET /top?limits=64&keys=16 by HTTP"),
        (
            answer("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"),
            "ADDR is not a weir of this version: GET /top?limits=64&keys=16: missing field",
        ),
        (
            answer("HTTP/1.1 403 No\r\ncontent-length: 24\r\n\r\n{\"error\":\"no \\u001b[1m\"}"),
            "ADDR answers GET /top?limits=64&keys=16 with 403 Forbidden: no \\u{1b}[1m",
        ),
        (answer("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"), "ADDR does not answer"),
    ] {
        let output = once(server);
        let errors = String::from_utf8(output.stderr).unwrap();
        let expected = format!("weir: {}", expected.replace("ADDR", &server.to_string()));
        assert!(errors.starts_with(&expected) && errors.lines().count() == 1, "{errors:?} is not {expected:?}");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{errors}");
        assert!(errors.trim_end().chars().all(|c| !c.is_control()), "{errors:?}");
    }
}

#[test]
fn a_server_that_stalls_or_never_ends_is_left() {
    let stalls = misbehaving(|stream| {
        // Until the other side closes.
        let _ = stream.try_clone().unwrap().read_to_end(&mut Vec::new());
    });
    let (sender, sent) = mpsc::channel();
    let floods = misbehaving(move |mut stream| {
        read_head(&stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n");
        let mut bytes = 0;
        while bytes < 104_857_600 && stream.write_all(&[b' '; 65_536]).is_ok() {
            bytes += 65_536;
        }
        let _ = sender.send(bytes);
    });
    for (server, expected) in [
        (stalls, "no answer from ADDR to GET /top?limits=64&keys=16 within 5s"),
        (floods, "the answer of ADDR to GET /top?limits=64&keys=16 is larger than 8388608 bytes"),
    ] {
        let output = once(server);
        let expected = format!("weir: {}\n", expected.replace("ADDR", &server.to_string()));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    }
    let bytes: usize = sent.recv_timeout(PATIENCE).unwrap();
    assert!(bytes < 104_857_600, "all of it was read");
}
