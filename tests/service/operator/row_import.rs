//! `weir rows import` into the Redis of a server, and imports by those who mean harm.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::rows::request;
use crate::support::process::{LogLine, Weir, binary};
use crate::support::redis::RedisServer;
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - key: tenant
    rows: {default: free}
    rate_limit: {rate: 3/day, plans: {gold: 7/day, max: unlimited}}
";

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.0.path().join(name), text).unwrap();
        self.path(name)
    }
}

fn rows_in(redis: &RedisServer) -> usize {
    redis.command(&["KEYS", "*row"]).unwrap().lines().filter(|key| !key.is_empty()).count()
}

/// A server with this Redis, and the arguments of an import by it.
fn serving(settings: &[&str]) -> (Served, [String; 2]) {
    // A busy machine answers late.
    let served = Served::start(POLICY, &[&["store=redis", "redis.timeout=5s"], settings].concat());
    let by_server = ["--server".to_owned(), served.at.admin.to_string()];
    (served, by_server)
}

fn import<S: AsRef<OsStr>>(file: &str, arguments: &[S]) -> Output {
    let mut command = Command::new(binary());
    command.args(["rows", "import", file]).args(arguments);
    command.output().expect("weir runs")
}

/// What an import that succeeds prints.
fn imported(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The exit code of an import that fails, and its error.
fn failed(output: &Output) -> (Option<i32>, String) {
    assert!(!output.status.success(), "{output:?}");
    (output.status.code(), String::from_utf8(output.stderr.clone()).unwrap())
}

/// Ctrl-C, and the end that a container or `timeout` sends.
#[test]
fn an_import_that_is_told_to_end_says_how_many_rows_are_written() {
    const ROWS: usize = 40_000;
    let files = Files::new();
    let lines: String = (0..ROWS).map(|number| format!("shop,t{number},gold\n")).collect();
    let customers = files.write("customers.csv", &format!("domain,tenant,plan\n{lines}"));
    for signal in ["INT", "TERM"] {
        let redis = RedisServer::start();
        let (_served, by_server) = serving(&[&format!("redis.url={}", redis.url())]);
        let mut command = Command::new(binary());
        command.args(["rows", "import", &customers]).args(by_server);
        let import = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs");
        until("the first row", PATIENCE, || (rows_in(&redis) > 0).then_some(()));
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(import.id().to_string()).status().unwrap();
        assert!(sent.success());
        let (code, error) = failed(&import.wait_with_output().unwrap());
        let written = rows_in(&redis);
        assert!(written < ROWS, "it ended by itself");
        assert_eq!(code, Some(1), "{signal}: {error}");
        let end = format!("interrupted\nweir: {written} rows written: import the file again\n");
        assert!(error.ends_with(&end), "{signal}, {written} rows: {error}");
    }
}

#[test]
fn an_import_takes_a_regular_file_only_and_does_not_wait_for_others() {
    let files = Files::new();
    let fifo = files.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (path, reason) in
        [(&*fifo, "not a regular file"), ("/dev/null", "not a regular file"), (&*files.path("."), "not a regular file")]
    {
        for skip in [&[][..], &["--skip"]] {
            let (code, error) = failed(&import(path, skip));
            assert_eq!((code, error), (Some(2), format!("weir: {path}: {reason}\n")), "{skip:?}");
        }
    }
    let mut shell = Command::new("bash");
    shell.args(["-c", "\"$0\" rows import <(printf 'domain,tenant,plan\\nshop,a,gold\\n')"]).arg(binary());
    let (code, error) = failed(&shell.output().expect("bash runs"));
    assert!(code == Some(2) && error.contains(": not a regular file"), "{error}");
}

/// An import in a process that gets no more memory than this.
fn imported_within(path: &Path, arguments: &[&str], address_space_kib: usize) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -v {address_space_kib} && exec \"$0\" \"$@\"")]).arg(binary());
    shell.args(["rows", "import"]).arg(path).args(arguments).output().expect("sh runs")
}

#[test]
fn a_hostile_file_of_any_size_needs_the_memory_of_a_line() {
    /// A line that has no end for so long, with holes that take no place on the disk. `WEIR_HOSTILE_MIB=1024` makes it a GiB.
    const MIB: u64 = 300;
    /// Less than the file, and enough for the program, its runtime and its libraries.
    const ADDRESS_SPACE_KIB: usize = 200 * 1_024;
    let served = Served::start(POLICY, &[]);
    let files = Files::new();
    let mib = std::env::var("WEIR_HOSTILE_MIB").map_or(MIB, |mib| mib.parse().expect("a number of MiB"));
    let path = files.write("hostile.csv", "domain,tenant,plan\nshop,acme,gold\n");
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.set_len(mib << 20).unwrap();
    file.write_all(b"\nshop,globex,gold\n").unwrap();
    let admin = served.at.admin.to_string();
    let output = imported_within(Path::new(&path), &["--server", &admin, "--skip"], ADDRESS_SPACE_KIB);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("hostile.csv:3:1: a line has at most 8192 bytes"), "{error}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "2 rows written, 0 were the same, 1 wrong\n");
}

fn listed(by_server: &[String]) -> Vec<String> {
    let mut command = Command::new(binary());
    let output = command.args(["rows", "export"]).args(by_server).output().expect("weir runs");
    let mut lines: Vec<String> = imported(&output).lines().skip(1).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn an_import_that_replaces_removes_what_is_not_in_the_file_and_nothing_if_a_line_is_wrong() {
    let redis = RedisServer::start();
    let files = Files::new();
    files.write("shop.yaml", POLICY);
    let policies = files.0.path();
    let settings = ["--set", "store=redis", "--set", &format!("redis.url={}", redis.url())];
    let weir = Weir::start(policies, &settings);
    let by_server = ["--server".to_owned(), weir.admin.to_string()];
    let first = files.write("first.csv", "domain,tenant,plan\nshop,a,gold\nshop,b,gold\nshop,c,max\n");
    imported(&import(&first, &by_server));
    let before = listed(&by_server);
    assert_eq!(before.len(), 3);
    let with = |file: &str, more: &[&str]| {
        let more: Vec<String> = more.iter().map(|one| (*one).to_owned()).collect();
        import(file, &[&by_server[..], &more].concat())
    };
    // A wrong line, and a file without rows, change nothing.
    let wrong = files.write("wrong.csv", "domain,tenant,plan\nshop,a,max\nshop,d,lead\n");
    let (code, error) = failed(&with(&wrong, &["--replace"]));
    assert!(code == Some(1) && error.contains("1 wrong line, nothing was written"), "{error}");
    let empty = files.write("empty.csv", "domain,tenant,plan\n");
    let (code, error) = failed(&with(&empty, &["--replace"]));
    assert!(code == Some(1) && error.contains("no row: --replace would remove all rows"), "{error}");
    let next = files.write("next.csv", "domain,tenant,plan\nshop,a,max\nshop,c,max\nshop,d,gold\n");
    let dry = imported(&with(&next, &["--replace", "--dry-run"]));
    assert_eq!(
        dry,
        "3 lines are right, nothing was written\nwould remove   shop tenant=b   plan gold\n1 row would be removed\n"
    );
    assert_eq!(imported(&with(&next, &["--dry-run"])), "3 lines are right, nothing was written\n");
    assert_eq!(listed(&by_server), before);
    let done = imported(&with(&next, &["--replace"]));
    assert_eq!(done, "2 rows written, 1 were the same, 0 wrong\n1 row removed\n");
    let after = listed(&by_server);
    assert!(after.len() == 3 && after.iter().all(|line| !line.contains("tenant=b")), "{after:?}");
    let removed = |line: &LogLine| {
        let fields = ["by", "descriptor", "before"].map(|name| line.field(name).and_then(Value::as_str));
        line.message() == Some("row removed") && fields == [Some("anyone"), Some("tenant=b"), Some("plan gold")]
    };
    until("the line", PATIENCE, || (weir.count_in_log(removed) == 1).then_some(()));
    let again = imported(&with(&next, &["--replace"]));
    assert_eq!(again, "0 rows written, 3 were the same, 0 wrong\n0 rows removed\n");
}

/// A row that another caller sets between the list and the removal has another version, and stays.
#[test]
fn a_removal_of_many_rows_keeps_those_of_other_versions_with_either_store() {
    let redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    for settings in [&["store=redis", "redis.timeout=5s", &*url][..], &[]] {
        let served = Served::start(POLICY, settings);
        let row =
            |tenant: &str, plan: &str| format!(r#"{{"domain":"shop","descriptor":"tenant={tenant}","plan":"{plan}"}}"#);
        let version = |tenant: &str| {
            let set = request(served.at.admin, "PUT", "/rows", None, &row(tenant, "gold"));
            serde_json::from_str::<Value>(&set.body).unwrap()["version"].as_u64().unwrap()
        };
        let lines: Vec<String> = ["a", "b", "c"]
            .map(|tenant| row(tenant, "gold").replace('}', &format!(r#","version":{}}}"#, version(tenant))))
            .into();
        assert_eq!(request(served.at.admin, "PUT", "/rows", None, &row("b", "max")).status, 200);
        assert_eq!(request(served.at.admin, "DELETE", "/rows?domain=shop&descriptor=tenant=c", None, "").status, 200);
        let post = |path| {
            let answer = request(served.at.admin, "POST", path, None, &lines.join("\n"));
            serde_json::from_str::<Value>(&answer.body).unwrap()["results"].clone()
        };
        for (path, word) in [("/rows?remove=true&check=true", "ok"), ("/rows?remove=true", "removed")] {
            let results = post(path);
            assert_eq!((&results[0], &results[2]), (&Value::from(word), &Value::from("absent")), "{path}");
            assert_eq!(results[1]["field"], "version", "{path}");
        }
        assert_eq!(post("/rows?remove=true")[0], "absent");
        assert_eq!(request(served.at.admin, "GET", "/rows?domain=shop&descriptor=tenant=b", None, "").status, 200);
    }
}
