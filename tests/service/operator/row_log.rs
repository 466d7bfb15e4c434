//! The lines of the log about changes of rows. Each change has one, also if the store does not answer, if the caller leaves, or
//! if there are thousands.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use super::rows::{POLICY, done, file, request};
use crate::support::process::{LogLine, Weir};
use crate::support::redis::RedisServer;
use crate::support::wait::{PATIENCE, until};

/// A server with a Redis of its own, and its policies.
fn with_redis() -> (RedisServer, Weir, TempDir) {
    let redis = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    let server =
        Weir::start(directory.path(), &["--set", "store=redis", "--set", &format!("redis.url={}", redis.url())]);
    (redis, server, directory)
}

/// Redis did not answer, and had written the row: it was in force, and no line of the log had it.
#[test]
fn a_row_that_was_written_without_an_answer_is_in_the_log() {
    let (redis, server, _policies) = with_redis();
    let row = r#"{"domain":"shop","descriptor":"tenant=acme","plan":"gold"}"#;
    let put = || request(server.admin, "PUT", "/rows", None, row);
    let logged = |message: &str| {
        server.count_in_log(|line| {
            let fields = ["by", "descriptor", "content"].map(|name| line.field(name).and_then(Value::as_str));
            line.message() == Some(message) && fields == [Some("anyone"), Some("tenant=acme"), Some("plan gold")]
        })
    };
    redis.freeze();
    let refused = put();
    let reset = request(server.admin, "DELETE", "/state?domain=shop&descriptor=plain=x", None, "");
    redis.thaw();
    assert!(refused.status == 503 && refused.body.contains("may have been written"), "{}", refused.body);
    until("the line", PATIENCE, || (logged("row may have been written") == 1).then_some(()));
    // The reset was sent, unless weir had already noticed that Redis does not answer.
    let is_unknown = reset.body.contains("may have been");
    let is_reset = |line: &LogLine| line.message() == Some("state may have been reset by the admin listener");
    assert_eq!(reset.status, 503, "{}", reset.body);
    until("the line", PATIENCE, || (server.count_in_log(is_reset) == usize::from(is_unknown)).then_some(()));
    // Redis goes on, and has written the row.
    let same = until("an answer", PATIENCE, || Some(put()).filter(|answer| answer.status == 200));
    let same: Value = serde_json::from_str(&same.body).unwrap();
    assert_eq!(same["result"], "same");
    until("the line", PATIENCE, || (logged("row found written") == 1).then_some(()));
    assert_eq!(put().status, 200);
    assert_eq!((logged("row set"), logged("row found written")), (0, 1), "only once");
}

/// A client that gave up took the line of its change with it.
#[test]
fn a_change_whose_caller_leaves_before_the_answer_is_in_the_log() {
    /// The caller waits for less than the store may take.
    const GIVES_UP_AFTER: Duration = Duration::from_millis(200);
    let (redis, server, _policies) = with_redis();
    let row = r#"{"domain":"shop","descriptor":"tenant=acme","plan":"gold"}"#;
    let head = format!("PUT /rows HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", row.len());
    redis.freeze();
    let is_logged = |line: &LogLine| line.message() == Some("row may have been written");
    until("the line of a change", PATIENCE, || {
        let mut caller = TcpStream::connect(server.admin).unwrap();
        caller.set_read_timeout(Some(GIVES_UP_AFTER)).unwrap();
        caller.write_all(format!("{head}{row}").as_bytes()).unwrap();
        // weir may refuse it at once, when it has seen that Redis does not answer.
        let _ = caller.read(&mut [0]);
        drop(caller);
        (server.count_in_log(is_logged) > 0).then_some(())
    });
    redis.thaw();
}

/// A prune logged no removal that Redis did not confirm.
#[test]
fn a_row_that_a_prune_may_have_removed_is_in_the_log() {
    let (redis, server, _policies) = with_redis();
    let row = r#"{"domain":"shop","descriptor":"tenant=acme","plan":"gold","until":"2020-01-01T00:00:00Z"}"#;
    assert_eq!(request(server.admin, "PUT", "/rows", None, row).status, 200);
    // Redis answers reads, and no writes.
    assert_eq!(redis.command(&["CLIENT", "PAUSE", "60000", "WRITE"]).unwrap().trim(), "OK");
    let refused = request(server.admin, "DELETE", "/rows?ended=true", None, "");
    assert_eq!(redis.command(&["CLIENT", "UNPAUSE"]).unwrap().trim(), "OK");
    assert!(refused.status == 503 && refused.body.contains("may have been written or removed"), "{}", refused.body);
    let logged = || {
        server.count_in_log(|line| {
            let fields = ["by", "domain", "descriptor"].map(|name| line.field(name).and_then(Value::as_str));
            line.message() == Some("row may have been removed")
                && fields == [Some("anyone"), Some("shop"), Some("tenant=acme")]
        })
    };
    until("the line", PATIENCE, || (logged() == 1).then_some(()));
}

/// Other log statements write 100 lines in 10 s.
#[test]
fn each_change_of_a_large_import_is_in_the_log() {
    const ROWS: usize = 3_000;
    let directory = tempfile::tempdir().unwrap();
    file(&directory, "shop.yaml", POLICY);
    let server = Weir::start(directory.path(), &[] as &[&str]);
    let lines: Vec<String> = (0..ROWS).map(|at| format!("shop,c{at},gold,2020-01-01\n")).collect();
    let path = file(&directory, "many.csv", &format!("domain,tenant,plan,until\n{}", lines.concat()));
    done(server.admin, &["import", &path]);
    assert!(server.wait_for_log(ROWS - 1, PATIENCE, |line| line.message() == Some("row set")), "{}", server.written());
    done(server.admin, &["prune"]);
    assert!(server.wait_for_log(ROWS - 1, PATIENCE, |line| line.message() == Some("row removed")));
}
