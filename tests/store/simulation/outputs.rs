//! The program's outputs: results on standard output, and Ctrl-C while the reader of an output stalls.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;

use super::Written;
use crate::support::process::binary;
use crate::support::wait::{PATIENCE, until};

/// Many keys: the results and the report are each longer than a pipe holds.
const TRAFFIC: &str = "duration: 10m
domain: shop
sources:
  - {ask: user=a-user-with-a-name-of-some-length-<n>, rate: 10/s, keys: 1000}
";

/// `weir simulate` with several policies and these options.
fn simulate(written: &Written, options: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.current_dir(written.path(".")).stdin(Stdio::null());
    command.args(["simulate", "--traffic"]).arg(written.write("shop.traffic.yaml", TRAFFIC));
    command.args(["--keys", "1000"]).args(options).args(["policies"; 4]);
    command
}

fn is_report(text: &str) -> bool {
    text.contains("a-user-with-a-name-of-some-length-1000") && !text.contains("weir_simulation")
}

fn assert_results(json: &str) {
    let results: Value = serde_json::from_str(json).expect("one document");
    assert_eq!(results["weir_simulation"], 1);
}

#[test]
fn results_on_standard_output_are_alone_there() {
    let written = Written::new();
    for path in ["/dev/stdout", "/proc/self/fd/1", "out.json"] {
        let out = File::create(written.path("out.json")).expect("a file");
        let output = simulate(&written, &["--json", path]).stdout(out).output().expect("weir runs");
        let report = String::from_utf8(output.stderr).expect("a text");
        assert!(output.status.success() && is_report(&report), "{path}: {report}");
        assert_results(&fs::read_to_string(written.path("out.json")).expect("results"));
    }
    let output = simulate(&written, &["--json", "/dev/stdout"]).output().expect("weir runs");
    assert!(is_report(&String::from_utf8(output.stderr).expect("a text")));
    assert_results(&String::from_utf8(output.stdout).expect("a text"));

    // The report is where it always is if the results are elsewhere.
    let output = simulate(&written, &["--json", "other.json"]).output().expect("weir runs");
    assert!(is_report(&String::from_utf8(output.stdout).expect("a text")) && output.stderr.is_empty());

    let two = ["--html", "/dev/stdout", "--json", "/dev/stdout"];
    let output = simulate(&written, &two).output().expect("weir runs");
    let refused = String::from_utf8(output.stderr).expect("a text");
    assert_eq!(output.status.code(), Some(2));
    assert!(refused.contains("--json and --html name one file"), "{refused}");
}

#[test]
fn the_exit_code_says_that_some_requests_could_not_be_decided() {
    let written = Written::new();
    let header = "{\"weir_record\":1,\"values\":\"hidden\"}";
    for (key, code) in [("user", 0), ("path", 3)] {
        let request = format!(
            "{{\"time\":\"2026-12-01T10:00:00Z\",\"domain\":\"shop\",\
             \"descriptors\":[{{\"entries\":[[\"{key}\",\"~0123456789ab\"]]}}]}}"
        );
        let record = written.write("r.jsonl", &format!("{header}\n{request}\n"));
        let mut command = Command::new(binary());
        command.args(["simulate", "--traffic"]).arg(record).arg(written.path("policies"));
        let output = command.output().expect("weir runs");
        assert_eq!(output.status.code(), Some(code), "{key}");
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{output:?}");
    }
}

fn interrupt(child: &Child) {
    let status = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status();
    assert!(status.is_ok_and(|status| status.success()));
}

/// How the program ended, and what it wrote to standard error.
fn ended(child: &mut Child) -> (ExitStatus, String) {
    let status = until("weir to end", PATIENCE, || child.try_wait().expect("a child"));
    let mut told = String::new();
    child.stderr.take().expect("standard error").read_to_string(&mut told).expect("a text");
    (status, told)
}

fn names(directory: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name().into_string().expect("text");
    let mut names: Vec<String> = fs::read_dir(directory).expect("a directory").map(name).collect();
    names.sort();
    names
}

#[test]
fn an_interrupt_ends_it_while_the_reader_of_a_pipe_stalls() {
    let written = Written::new();
    let pipe = written.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let mut reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).expect("a reader");
    let mut command = simulate(&written, &["--html", "out.html", "--json", "pipe"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("weir runs");
    until("the results to begin", PATIENCE, || match reader.read(&mut [0]) {
        Ok(bytes) => (bytes == 1).then_some(()),
        Err(error) => (error.kind() != ErrorKind::WouldBlock).then(|| panic!("{error}")),
    });
    interrupt(&child);
    let (status, told) = ended(&mut child);
    assert_eq!((status.code(), told.as_str()), (Some(130), "weir: interrupted: no files are written\n"));
    assert_eq!(names(&written.path(".")), ["pipe", "policies", "shop.traffic.yaml"]);
}

#[test]
fn an_interrupt_ends_it_while_the_reader_of_standard_output_stalls() {
    let written = Written::new();
    let mut command = simulate(&written, &["--json", "out.json"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs");
    until("the files to be written", PATIENCE, || written.path("out.json").exists().then_some(()));
    interrupt(&child);
    let (status, told) = ended(&mut child);
    assert_eq!(
        (status.code(), told.as_str()),
        (Some(130), "weir: interrupted: files are written, the output is incomplete\n")
    );
    assert_results(&fs::read_to_string(written.path("out.json")).expect("results"));
}
