//! `weir rows import` into a Redis without a server, and imports by those who mean harm.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::cluster::{Plan, RedisCluster};
use crate::support::process::binary;
use crate::support::redis::RedisServer;
use crate::support::rls::Client;
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};

const POLICY: &str = "\
domain: shop
descriptors:
  - key: tenant
    rows: {default: free}
    rate_limit: {rate: 3/day, plans: {gold: 7/day, max: unlimited}}
";
const CUSTOMERS: &str =
    "domain,tenant,plan,limits,until\nshop,acme,gold,,\nshop,hooli,,5/day,2041-01-01\nshop,big,max,,\n";

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        fs::create_dir(files.0.path().join("policies")).unwrap();
        files.write("policies/shop.yaml", POLICY);
        files
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.0.path().join(name), text).unwrap();
        self.path(name)
    }
}

fn import(file: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(binary());
    command.args(["rows", "import", file]).args(arguments).envs(environment.iter().copied());
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

#[test]
fn a_file_goes_into_the_redis_of_the_settings_without_a_server() {
    let redis = RedisServer::start_with(Some("hunter2"), &[]);
    let files = Files::new();
    let password = files.write("password", "hunter2\n");
    let (url, policies) = (format!("redis://127.0.0.1:{}", redis.port()), files.path("policies"));
    let settings = files.write(
        "weir.yaml",
        &format!(
            "store: redis\nredis: {{url: {url}, password_file: {password}, key_prefix: 'a:'}}\npolicies: {{directory: {policies}}}\n"
        ),
    );
    let customers = files.write("customers.csv", CUSTOMERS);
    let by_settings = ["--config", &settings];
    assert_eq!(imported(&import(&customers, &by_settings, &[])), "3 rows written, 0 were the same, 0 wrong\n");
    assert_eq!(imported(&import(&customers, &by_settings, &[])), "0 rows written, 3 were the same, 0 wrong\n");
    let mut keys: Vec<String> = redis.command(&["KEYS", "*"]).unwrap().lines().map(str::to_owned).collect();
    keys.sort_unstable();
    let key = |tenant: &str| format!("a:w1:{{shop|tenant={tenant}}}row");
    assert_eq!(keys, ["acme", "big", "hooli"].map(key));

    // By the flags and the environment, under another prefix.
    let environment = [("WEIR__REDIS__PASSWORD_FILE", &*password), ("WEIR__REDIS__KEY_PREFIX", "b:")];
    let by_flags = ["--redis", &url, "--policies", &policies];
    assert_eq!(imported(&import(&customers, &by_flags, &environment)), "3 rows written, 0 were the same, 0 wrong\n");
    let served = Served::start(
        POLICY,
        &[
            "store=redis",
            &format!("redis.url={url}"),
            &format!("redis.password_file={password}"),
            "redis.key_prefix=b:",
            // A busy machine answers late.
            "redis.timeout=5s",
        ],
    );
    let passes = |tenant: &str| {
        let mut client = Client::connect(served.at.grpc);
        (0..20).take_while(|_| client.admits("shop", "tenant", tenant)).count()
    };
    assert_eq!((passes("acme"), passes("hooli"), passes("big"), passes("other")), (7, 5, 20, 3));
}

#[test]
fn a_wrong_line_stops_an_import_into_redis_before_the_first_row() {
    let redis = RedisServer::start();
    let files = Files::new();
    let (url, policies) = (redis.url(), files.path("policies"));
    let wrong = files.write(
        "wrong.csv",
        "domain,tenant,plan,until\nshop,a,gold,\nshop,b,lead,\nshop,c,gold,soon\nother,d,gold,\nshop,e,max,\n",
    );
    let direct = ["--redis", &url, "--policies", &policies];
    let (code, error) = failed(&import(&wrong, &direct, &[]));
    assert_eq!(code, Some(1));
    for line in [
        "3 wrong lines, nothing was written".to_owned(),
        format!("{wrong}:3:8: the rule has no plan \"lead\": there is free, gold, max"),
        format!("{wrong}:4:13: until: "),
        format!("{wrong}:5:1: no policy has this domain"),
    ] {
        assert!(error.contains(&line), "{line}\n{error}");
    }
    assert_eq!(redis.command(&["DBSIZE"]).unwrap().trim(), "0");
    let skipped = import(&wrong, &[&direct[..], &["--skip"]].concat(), &[]);
    assert_eq!(skipped.status.code(), Some(1));
    assert_eq!(String::from_utf8(skipped.stdout).unwrap(), "2 rows written, 0 were the same, 3 wrong\n");
    assert_eq!(redis.command(&["DBSIZE"]).unwrap().trim(), "2");
}

/// Ctrl-C, and the end that a container or `timeout` sends.
#[test]
fn an_import_that_is_told_to_end_says_how_many_rows_are_written() {
    const ROWS: usize = 200_000;
    let files = Files::new();
    let lines: String = (0..ROWS).map(|number| format!("shop,t{number},gold\n")).collect();
    let customers = files.write("customers.csv", &format!("domain,tenant,plan\n{lines}"));
    for signal in ["INT", "TERM"] {
        let redis = RedisServer::start();
        let size = || redis.command(&["DBSIZE"]).unwrap().trim().parse::<usize>().unwrap();
        let mut command = Command::new(binary());
        command.args(["rows", "import", &customers, "--redis", &redis.url(), "--policies", &files.path("policies")]);
        let import = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir runs");
        until("the first row", PATIENCE, || (size() > 0).then_some(()));
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(import.id().to_string()).status().unwrap();
        assert!(sent.success());
        let (code, error) = failed(&import.wait_with_output().unwrap());
        let written = size();
        assert!(written < ROWS, "it ended by itself");
        assert_eq!(code, Some(1), "{signal}: {error}");
        let end = format!("interrupted\nweir: {written} rows written: import the file again\n");
        assert!(error.ends_with(&end), "{signal}, {written} rows: {error}");
    }
}

#[test]
fn an_import_without_a_redis_or_with_contradicting_arguments_says_why() {
    let files = Files::new();
    let (customers, policies) = (files.write("customers.csv", CUSTOMERS), files.path("policies"));
    let memory = files.write("memory.yaml", &format!("policies: {{directory: {policies}}}\n"));
    let no_redis = ["--redis", "redis://127.0.0.1:1", "--policies", &policies];
    let broken = files.write("broken.yaml", "domain: shop\ndescriptors: [{key: tenant, rate_limit: x}]\n");
    for (arguments, code, reason) in [
        (&no_redis[..], 1, "127.0.0.1:1"),
        (&["--config", &memory], 1, "the settings use the memory store: only its server can set rows"),
        (&["--redis", "redis://127.0.0.1:1"], 2, "policies.directory: required"),
        (&["--redis", "http://x", "--policies", &policies], 2, "--redis: redis.url"),
        (&["--redis", "redis://127.0.0.1:1", "--policies", &broken], 1, "broken.yaml:2:"),
        (&["--redis", "redis://127.0.0.1:1", "--server", "localhost"], 2, "cannot be used with"),
        (&["--policies", &policies], 2, "required"),
    ] {
        let (found, error) = failed(&import(&customers, arguments, &[]));
        assert!(found == Some(code) && error.contains(reason), "{arguments:?}: {found:?} {error}");
    }
    let (code, error) = failed(&import("absent.csv", &no_redis, &[]));
    assert!(code == Some(1) && error.contains("127.0.0.1:1"), "{error}");
}

#[test]
fn an_import_takes_a_regular_file_only_and_does_not_wait_for_others() {
    let files = Files::new();
    let fifo = files.path("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (path, reason) in [
        (&*fifo, "not a regular file"),
        ("/dev/null", "not a regular file"),
        (&*files.path("policies"), "not a regular file"),
    ] {
        for skip in [&[][..], &["--skip"]] {
            let (code, error) = failed(&import(path, skip, &[]));
            assert_eq!((code, error), (Some(2), format!("weir: {path}: {reason}\n")), "{skip:?}");
        }
    }
    let mut shell = Command::new("bash");
    shell.args(["-c", "\"$0\" rows import <(printf 'domain,tenant,plan\\nshop,a,gold\\n')"]).arg(binary());
    let (code, error) = failed(&shell.output().expect("bash runs"));
    assert!(code == Some(2) && error.contains(": not a regular file"), "{error}");
}

#[test]
fn rows_go_to_the_node_of_their_states_in_a_cluster() {
    const ROWS: usize = 60;
    let cluster = RedisCluster::start(&Plan::of(3));
    let files = Files::new();
    let lines: String = (0..ROWS).map(|number| format!("shop,t{number},gold\n")).collect();
    let customers = files.write("customers.csv", &format!("domain,tenant,plan\n{lines}"));
    let (url, policies) = (cluster.nodes[0].url(), files.path("policies"));
    let (direct, environment) = (["--redis", &url, "--policies", &policies], [("WEIR__REDIS__TOPOLOGY", "cluster")]);
    assert_eq!(
        imported(&import(&customers, &direct, &environment)),
        format!("{ROWS} rows written, 0 were the same, 0 wrong\n")
    );
    let counts = cluster.nodes.iter().map(|node| node.command(&["DBSIZE"]).unwrap().trim().parse::<usize>().unwrap());
    let counts: Vec<usize> = counts.collect();
    assert!(counts.iter().sum::<usize>() == ROWS && counts.iter().all(|count| *count > 0), "{counts:?}");
    assert_eq!(
        imported(&import(&customers, &direct, &environment)),
        format!("0 rows written, {ROWS} were the same, 0 wrong\n")
    );
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
    let redis = RedisServer::start();
    let files = Files::new();
    let (url, policies) = (redis.url(), files.path("policies"));
    let mib = std::env::var("WEIR_HOSTILE_MIB").map_or(MIB, |mib| mib.parse().expect("a number of MiB"));
    let path = files.write("hostile.csv", "domain,tenant,plan\nshop,acme,gold\n");
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.set_len(mib << 20).unwrap();
    file.write_all(b"\nshop,globex,gold\n").unwrap();
    let direct = ["--redis", &url, "--policies", &policies, "--skip"];
    let output = imported_within(Path::new(&path), &direct, ADDRESS_SPACE_KIB);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("hostile.csv:3:1: a line has at most 8192 bytes"), "{error}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "2 rows written, 0 were the same, 1 wrong\n");
}
