//! The rights that an ACL user needs, as docs/stores.md gives them: enough for everything that weir asks of Redis,
//! and not one command more. Not in here: what becomes of a user with fewer (redis/errors.rs).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_engine::observer::Silent;
use weir_engine::{
    Algorithm, Anchor, Charge, Decision, Entry, Limit, Micros, Mode, OnError, Operation, Receipt, Row, RowContent, Unit,
};
use weir_limiter::rows::{Pruned, RowRefused, RowTable};
use weir_limiter::{DescriptorRequest, Limiter, Options as LimiterOptions, Policies, Query};
use weir_store::redis::pipeline::Options;
use weir_store::redis::{Endpoint, Redis};
use weir_store::{
    Deciding as _, Inspected as _, RowChange, RowChanged, RowRead, Store, StoreError, StoredOverrides, StoredRow,
    SystemClock, Texts as _, Undo,
};

use crate::support::redis::RedisServer;
use crate::support::vectors::{self, Action, ChargeUndo, Vector, VectorCharge};

/// Longer than any healthy call takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the page writes before the user's rights.
const BEFORE: &str = "ACL SETUSER weir ";

/// What this test itself runs on the server, and no user of weir's.
const OURS: [&str; 2] = ["info", "acl|setuser"];

fn page() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/stores.md")).unwrap()
}

/// The rights as the page writes them, word by word.
pub(crate) fn rights() -> Vec<String> {
    let page = page();
    let (_, after) = page.split_once(BEFORE).expect("the page gives the rights");
    let (rights, _) = after.split_once("```").expect("in a block");
    rights.split_whitespace().map(str::to_owned).collect()
}

/// What needs a right in addition, by the right, as the page lists it.
pub(crate) fn further_rights() -> BTreeMap<String, String> {
    let page = page();
    let (_, after) = page.split_once("the user needs more rights:\n\n").expect("the page gives further rights");
    let (list, _) = after.split_once("\n\n").expect("in a list");
    let list = list.replace("\n    ", " ");
    let item = |line: &str| {
        let (right, what) = line.strip_prefix("  - `")?.split_once("`: ")?;
        Some((right.to_owned(), what.to_owned()))
    };
    list.lines().map(|line| item(line).unwrap_or_else(|| panic!("one right and what needs it: {line}"))).collect()
}

#[test]
fn the_page_lists_each_further_right_with_what_needs_it() {
    let scan = [
        "[`GET /states`](admin.md#the-states-of-a-rule)",
        "`weir rows list`",
        "`weir rows export`",
        "`weir rows prune`",
        "the [count of rows](metrics.md#stores)",
        "and the search for rows in a second Redis",
    ];
    let expected = [
        ("+scan", scan.join(", ")),
        ("+info", "the warning about eviction".to_owned()),
        ("+select", "a database other than 0".to_owned()),
        ("+role", "sentinels".to_owned()),
        ("+cluster|slots", "a cluster".to_owned()),
        ("+cluster|info", "a cluster".to_owned()),
        ("+asking", "a cluster".to_owned()),
    ];
    assert_eq!(further_rights(), expected.map(|(right, what)| (right.to_owned(), what)).into());
}

/// Commands that the rights allow, as Redis counts them: `script|load`.
fn allowed(rights: &[String]) -> BTreeSet<String> {
    rights.iter().filter_map(|right| right.strip_prefix('+')).map(str::to_owned).collect()
}

/// Commands that a server has run since its start, by whomever, those in scripts included.
fn ran(server: &RedisServer) -> BTreeSet<String> {
    let stats = server.command(&["INFO", "commandstats"]).unwrap();
    let names = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
    names.map(|(name, _)| name.to_owned()).filter(|name| !OURS.contains(&name.as_str())).collect()
}

/// Makes the user with these rights, and returns the URL with which it connects.
fn with_user(server: &RedisServer, rights: &[String]) -> String {
    let mut order = vec!["ACL", "SETUSER", "weir"];
    order.extend(rights.iter().map(String::as_str));
    assert_eq!(server.command(&order).unwrap().trim(), "OK");
    let secret = rights.iter().find_map(|right| right.strip_prefix('>')).expect("a password");
    format!("redis://weir:{secret}@127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn the_rights_on_the_page_are_enough_for_everything_and_no_more() {
    let server = RedisServer::start();
    let rights = rights();
    let url = with_user(&server, &rights);

    for file in vectors::files() {
        for vector in vectors::read(&file) {
            replay(&vector, &url).await;
            // The next one begins with the same keys.
            assert_eq!(server.command(&["FLUSHALL"]).unwrap().trim(), "OK");
        }
    }
    let by_us = Redis::start(Options::new(Endpoint::parse(&url).unwrap()), "");
    by_us.ping(Instant::now() + PATIENCE).get().await.unwrap();
    by_us.read_states(&[], Instant::now() + PATIENCE).get().await.expect("the clock alone");
    let overrides = StoredOverrides { version: "1".to_owned(), text: Some("{}".to_owned()) };
    assert_eq!(by_us.write_overrides("", &overrides, Instant::now() + PATIENCE).get().await, Ok(true));
    assert_eq!(by_us.read_overrides("", Instant::now() + PATIENCE).get().await, Ok(Some(overrides)));

    let row = StoredRow { version: 7, until: None, text: "{}".into() };
    let (key, before) = ("w1:{api|tenant=a}row", RowRead::Absent);
    let deadline = || Instant::now() + PATIENCE;
    for (change, changed) in
        [(RowChange::Write(&row), RowChanged::Written { before }), (RowChange::Remove(&row), RowChanged::Removed)]
    {
        assert_eq!(by_us.change_rows(&[(key, change)], deadline()).get().await, Ok(vec![Ok(changed)]));
    }
    assert_eq!(by_us.read_rows(&[key], deadline()).get().await, Ok(vec![RowRead::Absent]));

    let mut ran = ran(&server);
    ran.remove("flushall");
    // With a password this is how a connection begins, and everybody may.
    assert!(ran.remove("auth"));
    assert_eq!(ran, allowed(&rights), "what was run, and what the page allows");

    // Who may not load scripts in advance is not kept from starting.
    assert_eq!(server.command(&["ACL", "SETUSER", "weir", "-script|load"]).unwrap().trim(), "OK");
    by_us.prepare(Instant::now() + PATIENCE).get().await.unwrap();
    assert_eq!(server.command(&["ACL", "SETUSER", "weir", "+script|load"]).unwrap().trim(), "OK");

    // The keys of others are not weir's to touch.
    let elsewhere = Redis::start(Options::new(Endpoint::parse(&url).unwrap()), "other:");
    let limit = Limit::new(5, Unit::Hour.window(), Algorithm::FixedWindow { anchor: Anchor::Clock }).unwrap();
    let charge = Charge::alone("w1:{shop|user=ann}", &limit, Operation::Consume(1));
    let refused = elsewhere.decide(&[charge], Mode::Atomic, Instant::now() + PATIENCE).get().await;
    assert_eq!(refused.unwrap_err().kind(), "noperm");
}

/// What docs/security.md promises of both users.
#[test]
fn the_users_of_the_pages_can_do_nothing_beyond_their_keys_and_commands() {
    let server = RedisServer::start();
    let of_weir = with_user(&server, &rights());
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/security.md")).unwrap();
    let (_, reader) = page.split_once("ACL SETUSER reader ").expect("the page gives the rights of a reader");
    let reader: Vec<&str> = reader.lines().next().expect("a line").split_whitespace().collect();
    assert_eq!(server.command(&[&["ACL", "SETUSER", "reader"], &*reader].concat()).unwrap().trim(), "OK");
    let of_reader = of_weir.replace("weir:", "reader:");
    for key in ["w1:{shop|user=ann}f60s", "session:ann"] {
        assert_eq!(server.command(&["SET", key, "1"]).unwrap().trim(), "OK");
    }
    let run = |url: &str, words: &[&str]| {
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query::<redis::Value>(&mut connection).map_err(|error| error.to_string())
    };
    let is_refused = |url: &str, words: &[&str]| {
        run(url, words).is_err_and(|error| error.contains("NOPERM") || error.contains("permission"))
    };
    for words in [
        &["FLUSHALL"][..],
        &["KEYS", "*"],
        &["CONFIG", "GET", "requirepass"],
        &["EVAL", "return redis.call('FLUSHALL')", "0"],
        &["ACL", "LIST"],
        &["SCRIPT", "FLUSH"],
        &["SHUTDOWN"],
        &["GET", "session:ann"],
        &["DEL", "session:ann"],
    ] {
        for url in [&of_weir, &of_reader] {
            assert!(is_refused(url, words), "{url} {words:?}: {:?}", run(url, words));
        }
    }
    for words in [&["GET", "w1:{shop|user=ann}f60s"][..], &["SCAN", "0"], &["PTTL", "w1:{shop|user=ann}f60s"]] {
        assert!(run(&of_reader, words).is_ok(), "{words:?}: {:?}", run(&of_reader, words));
    }
    for words in [
        &["SET", "w1:{shop|user=ann}f60s", "0"][..],
        &["DEL", "w1:{shop|user=ann}f60s"],
        &["INCRBY", "w1:{shop|user=ann}f60s", "1"],
        &["SCRIPT", "LOAD", "return 1"],
    ] {
        assert!(is_refused(&of_reader, words), "{words:?}");
    }
}

const CUSTOMERS: &str = "\
domain: shop
descriptors:
  - key: tenant
    rows: {default: free}
    rate_limit: {rate: 3/day, plans: {gold: 7/day}}
";

#[tokio::test]
async fn rows_need_no_more_rights_than_decisions_and_lists_of_rows_need_scan() {
    let server = RedisServer::start();
    let url = with_user(&server, &rights());

    let policies = weir_policies::parse(&[("shop.yaml", CUSTOMERS)]).expect("policies").policies;
    let policies = Arc::new(Policies::new(policies, Arc::new(Silent)));
    let store: Arc<dyn Store> = Arc::new(Redis::start(Options::new(Endpoint::parse(&url).unwrap()), ""));
    let options = LimiterOptions { budget: PATIENCE, on_error: OnError::Error, ..LimiterOptions::new(store.clone()) };
    let (known, clock) = (options.rows.clone(), Arc::new(SystemClock));
    let table = RowTable::new(store, policies.clone(), known, clock, Arc::new(Silent));
    let limiter = Limiter::new(policies, options, Arc::new(Silent));

    let row = |tenant: &str, until| Row {
        domain: "shop".into(),
        entries: Box::new([("tenant".into(), tenant.into())]),
        content: RowContent::Plan("gold".into()),
        until,
        note: "".into(),
    };
    let written = table.write(vec![row("acme", None), row("ended", Some(1)), row("gone", None)]).await;
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    let entries = |tenant| [Entry { key: "tenant", value: tenant }];
    assert_eq!(table.get("shop", &entries("acme")).await, Ok((row("acme", None), None)));
    table.remove("shop", &entries("gone")).await.expect("removed");
    let of_acme = entries("acme");
    let asked = DescriptorRequest { entries: &of_acme, operation: Operation::Consume(1), limit: None };
    let query = Query { domain: "shop", caller: None, descriptors: [asked].into_iter().collect(), settle: None };
    let answer = limiter.decide(&query, Instant::now(), None, None).await.expect("a decision");
    assert_eq!(answer.statuses[0].limit.as_ref().expect("a limit").requests, 7);
    assert_eq!(limiter.show_states("shop", &of_acme).await.expect("states").len(), 1);

    let is_noperm = |refused: &RowRefused| {
        let text = refused.to_string();
        // It is no write, so nothing is said about a change.
        text.starts_with("cannot read rows: ") && text.contains("NOPERM") && !text.contains("nothing has changed")
    };
    let listed = table.page(Some("shop"), None).await;
    assert!(listed.as_ref().is_err_and(is_noperm), "{listed:?}");
    let pruned = table.prune("ops", Some("shop"), None, &mut ()).await;
    assert!(pruned.as_ref().is_err_and(is_noperm), "{pruned:?}");
    assert_eq!(server.command(&["ACL", "SETUSER", "weir", "+scan"]).unwrap().trim(), "OK");
    let listed = table.page(Some("shop"), None).await.expect("a page");
    assert_eq!((listed.rows.len(), listed.next), (2, None));
    let pruned = table.prune("ops", Some("shop"), None, &mut ()).await.expect("a page");
    assert_eq!(pruned, Pruned { removed: vec![row("ended", Some(1))], ..Pruned::default() });
    assert!(limiter.states("shop", "tenant", weir_limiter::states::StatesPosition::default(), 10).await.is_ok());
}

/// Runs all that a vector asks for; that the answers are right, other tests say.
async fn replay(vector: &Vector, url: &str) {
    let limits = vector.keys();
    // The vectors' keys are short; with this they begin as all keys of weir's do.
    let store = Redis::start(Options::new(Endpoint::parse(url).unwrap()), "w1:").at(vector.base);
    let mut decisions: Vec<Option<Decision>> = Vec::new();
    for step in &vector.steps {
        store.set_now(step.now);
        let deadline = Instant::now() + PATIENCE;
        let mut made = None;
        match &step.action {
            Action::Decide(mode, asked) => {
                let charges: Vec<Charge<'_>> = asked.iter().map(|asked| charge(vector, asked, step.now)).collect();
                match store.decide(&charges, *mode, deadline).get().await {
                    Ok(decision) => made = Some(decision),
                    Err(StoreError::StaleBounds { .. }) => {}
                    Err(error) => panic!("{}: {error}", vector.title),
                }
            }
            Action::Undo(asked) => {
                let undos: Vec<Undo<'_>> =
                    asked.iter().map(|asked| undo(vector, *asked, &decisions, step.now)).collect();
                store.undo(&undos, deadline).get().await.unwrap_or_else(|error| panic!("{}: {error}", vector.title));
            }
            Action::Reset(keys) => {
                let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
                store.reset(&keys, deadline).get().await.unwrap_or_else(|error| panic!("{}: {error}", vector.title));
            }
            Action::Stored(_) => {}
        }
        let keys: Vec<(&str, &Limit)> = limits.iter().map(|(key, limit)| (*key, *limit)).collect();
        store.read_states(&keys, deadline).get().await.unwrap_or_else(|error| panic!("{}: {error}", vector.title));
        decisions.push(made);
    }
}

fn charge<'a>(vector: &'a Vector, asked: &'a VectorCharge, now: Micros) -> Charge<'a> {
    let limit = vector.limit(&asked.limit);
    let bounds = vector.bounds(limit, asked.by.unwrap_or(now));
    Charge { role: asked.role, bounds, ..Charge::alone(&asked.key, limit, asked.operation) }
}

fn undo<'a>(
    vector: &'a Vector,
    ChargeUndo { step, charge, hits }: ChargeUndo,
    decisions: &[Option<Decision>],
    now: Micros,
) -> Undo<'a> {
    let (Action::Decide(_, asked), Some(made)) = (&vector.steps[step].action, &decisions[step]) else {
        panic!("{}: step {} is no decision", vector.title, step + 1);
    };
    let limit = vector.limit(&asked[charge].limit);
    let receipt = Receipt { hits, ..made.outcomes[charge].receipt.expect("the vector undoes what was charged") };
    Undo { key: &asked[charge].key, limit, receipt, bounds: vector.bounds(limit, now) }
}
