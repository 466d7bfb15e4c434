//! An upgrade on one Redis: this version continues what the version before has written, and writes the same bytes, so that the version
//! before continues them too.
//!
//! tests/data/upgrade.txt is a recording: steps, and for each step the answer and the changed keys of Redis, byte for byte. The test begins
//! each step with a new process on a Redis that has the recorded keys, so every step is an upgrade. Then it compares the answer, with its
//! receipts, and each key with its expiry. The clock is that of the test.
//!
//! The recording is from commit 854d5e8a; the steps about keys and all after them are from the version that added them. A new format
//! gets steps at the end, and no step goes: each has what some version wrote. To record another version, put this file and
//! tests/support/worlds.rs into its tree, run `WEIR_RECORD_UPGRADE=1 cargo test --test store upgrade::` there, and copy
//! tests/data/upgrade.txt. One process then plays the steps, and a
//! second one those that begin with `there`. The test plays only the first ones: what is left in leases of another process is recorded.
//!
//! Not in here: two processes at the same time, and what [rw-5] says of rows in a second Redis.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use weir_engine::overrides::Numbers;
use weir_engine::{Micros, Mode, Operation, Row, RowContent, Unit};
use weir_limiter::{Answer, Settle};
use weir_rls::receipts;

use crate::support::redis::RedisServer;
use crate::support::worlds::{World, Worlds};

const RECORDING: &str = "tests/data/upgrade.txt";

const POLICY: &str = "\
domain: shop
descriptors:
  - {key: fixed, rate_limit: {rate: 5/hour, alert_at: [80]}}
  - {key: first_hit, rate_limit: {rate: 5/hour, anchor: first_hit}}
  - {key: calendar, rate_limit: {rate: 5/day, calendar: true, timezone: Europe/Berlin}}
  - {key: counter, rate_limit: {rate: 5/hour, algorithm: sliding_window_counter}}
  - {key: sliding, rate_limit: {rate: 5/hour, algorithm: sliding_window, precision: 1m}}
  - {key: log, rate_limit: {rate: 5/hour, algorithm: sliding_window_log}}
  - {key: bucket, rate_limit: {rate: 5/hour, algorithm: token_bucket, burst: 7}}
  - {key: interval, rate_limit: {rate: 5/hour, algorithm: token_bucket, refill: interval}}
  - {key: leaky, rate_limit: {rate: 7/hour, algorithm: leaky_bucket}}
  - {key: gcra, rate_limit: {rate: 7/hour, algorithm: gcra}}
  - {key: in_flight, rate_limit: {algorithm: concurrency, requests_per_unit: 3, window: 60s}}
  - {key: held, rate_limit: {rate: 20/hour, hold: true}}
  - {key: held_first_hit, rate_limit: {rate: 20/hour, anchor: first_hit, hold: true}}
  - {key: held_calendar, rate_limit: {rate: 20/month, calendar: true, hold: true}}
  - {key: held_counter, rate_limit: {rate: 20/hour, algorithm: sliding_window_counter, hold: true}}
  - {key: held_sliding, rate_limit: {rate: 20/hour, algorithm: sliding_window, hold: true}}
  - {key: held_until, rate_limit: {rate: 20/day, hold: true, until: \"2041-01-03T05:00:00Z\"}}
  - {key: paid_later, rate_limit: {rate: 5/hour, post_paid: true}}
  - {key: drained, rate_limit: {rate: 5/hour, drain: true}}
  - {key: until, rate_limit: {rate: 5/hour, until: \"2041-01-03T03:00:00Z\"}}
  - {key: from, rate_limit: {rate: 5/hour, algorithm: gcra, from: \"2041-01-03T03:00:00Z\"}}
  - {key: hot, rate_limit: {rate: 100_000/day, lease: 1s}}
  - key: user
    rate_limits: [{rate: 5/hour, name: rph}, {rate: 9/day, algorithm: sliding_window, name: rpd}]
  - key: tenant
    rows: {default: free}
    rate_limits:
      - {rate: 3/min, algorithm: gcra, name: rpm, plans: {gold: 7/min, max: unlimited}}
      - {rate: 5/hour, name: rph, plans: {gold: 11/hour, max: unlimited}}
  - {key: path, value: /a/*/b, share_threshold: true, rate_limit: 5/hour}
  - {key: listed, values: [x, y], share_threshold: true, rate_limit: 5/hour}
  - {key: named, rate_limits: [{rate: 9/hour, name: wide}, {rate: 5/hour, name: tight}]}
  - {key: tried, rate_limits: [{rate: 9/hour}, {rate: 5/hour, name: tight, shadow: true}]}
  - {key: large, rate_limit: {rate: 100_000/hour, algorithm: sliding_window}}
";

/// So many requests make a key hot, and leave hits in a lease.
const BURST: u32 = 50;

/// The first word says what is done. `open NAME` keeps the receipt, which `settle NAME` returns.
const STEPS: &[&str] = &[
    // Every algorithm: a charge, more a little later, a denial, and a refund.
    "ask fixed=a:2 first_hit=a:2 calendar=a:2 counter=a:2 sliding=a:2 log=a:2 bucket=a:2 interval=a:2 leaky=a:2 gcra=a:2",
    "wait 61000001",
    "ask fixed=a:1 first_hit=a:1 calendar=a:1 counter=a:1 sliding=a:1 log=a:1 bucket=a:1 interval=a:1 leaky=a:1 gcra=a:1",
    "ask fixed=a:9 first_hit=a:1",
    "ask fixed=a:-1 first_hit=a:-1 calendar=a:-1 counter=a:-1 sliding=a:-1 log=a:-1 bucket=a:-1 interval=a:-1 leaky=a:-1 gcra=a:-1",
    "ask fixed=a:0 first_hit=a:0 calendar=a:0 counter=a:0 sliding=a:0 log=a:0 bucket=a:0 interval=a:0 leaky=a:0 gcra=a:0",
    "ask paid_later=a:9 fixed=b:1",
    "ask paid_later=a:1",
    "ask drained=a:3",
    "ask drained=a:4",
    // Requests in flight.
    "ask in_flight=a:1",
    "open permit in_flight=a:1 fixed=c:1",
    "ask in_flight=a:1",
    "ask in_flight=a:1",
    "settle permit in_flight=a:1 fixed=c:1",
    "ask in_flight=a:2",
    // Holds: less used than held, more used, nothing used, twice, and in the next window.
    "open first held=a:7 held_first_hit=a:7 held_calendar=a:7 held_counter=a:7 held_sliding=a:7",
    "open second held=a:5 held_first_hit=a:5 held_calendar=a:5 held_counter=a:5 held_sliding=a:5",
    "open third held=a:4 held_first_hit=a:4 held_calendar=a:4 held_counter=a:4 held_sliding=a:4",
    "settle first held=a:3 held_first_hit=a:3 held_calendar=a:3 held_counter=a:3 held_sliding=a:3",
    "wait 130000000",
    "settle second held=a:8 held_first_hit=a:8 held_calendar=a:8 held_counter=a:8 held_sliding=a:8",
    "settle second held=a:0 held_first_hit=a:0 held_calendar=a:0 held_counter=a:0 held_sliding=a:0",
    "wait 3500000000",
    "settle third held=a:1 held_first_hit=a:1 held_calendar=a:1 held_counter=a:1 held_sliding=a:1",
    "ask held=a:1 held_first_hit=a:1 held_calendar=a:1 held_counter=a:1 held_sliding=a:1",
    // Terms. One limit has ended, the other has begun.
    "open early until=a:2 from=a:2 held_until=a:6",
    "open late until=a:2 from=a:9 held_until=a:3",
    "wait 7200000000",
    "ask until=a:9 from=a:2",
    "settle early until=a:1 from=a:1 held_until=a:2",
    "wait 7200000000",
    "settle late until=a:1 from=a:1 held_until=a:2",
    "ask until=a:1 from=a:1 held_until=a:30",
    // Rows.
    "ask tenant=acme:2",
    "row acme gold",
    "ask tenant=acme:2",
    "row acme own",
    "ask tenant=acme:3",
    "row other max",
    "ask tenant=other:50 tenant=acme:1",
    "remove acme",
    "ask tenant=acme:1",
    // Overrides.
    "ask user=ann:3",
    "override rph 8 hour",
    "ask user=ann:3",
    "wait 1000000",
    "override rpd 20 day",
    "ask user=ann:4",
    "wait 1000000",
    "delete",
    "ask user=ann:1",
    "wait 1000000",
    "override rph 7 minute",
    "ask user=ann:1",
    // Leases: hits that are taken ahead and given back; hits that the version before holds while this version decides.
    "burst then leave",
    "there burst",
    "ask hot=a:1",
    "there leave",
    "ask hot=a:1",
    // Keys: a value that is escaped, a long one, values that share a state, and limits that have names.
    "ask fixed=a|b{c}%=*\u{e9}:1",
    "ask fixed=0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\
     0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\
     01234567890123456789012345678901234567890123456789012345678901234567890123456789:1",
    "ask path=/a/x/b:1 path=/a/y/b:1 listed=x:1 listed=y:1 named=a:1 tried=a:1",
    // Counts of one, two and four bytes.
    "ask large=a:200",
    "ask large=a:300",
    "ask large=a:70000",
    // A row with every field, and an override of two limits.
    "row dated full",
    "ask tenant=dated:2",
    "wait 60000000",
    "ask tenant=dated:3",
    "override both 8 hour",
    "ask user=ann:1",
];

/// The recorded keys of Redis, as text.
type Keys = BTreeMap<String, String>;

/// A step of the recording.
struct Step {
    text: String,
    answer: String,
    /// The keys after it.
    keys: Keys,
}

/// Redis, and what was recorded of it so far.
struct Recorder<'s> {
    server: &'s RedisServer,
    connection: redis::Connection,
    /// The receipts of the version before, by name.
    receipts: BTreeMap<String, String>,
}

impl<'s> Recorder<'s> {
    fn new(server: &'s RedisServer) -> Self {
        let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        Self { server, connection, receipts: BTreeMap::new() }
    }

    /// Each key with its expiry and its value.
    fn keys(&mut self) -> Keys {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut self.connection).unwrap();
        keys.into_iter().map(|key| (key.clone(), self.value(&key))).collect()
    }

    fn value(&mut self, key: &str) -> String {
        let kind: String = redis::cmd("TYPE").arg(key).query(&mut self.connection).unwrap();
        let expires: i64 = redis::cmd("PEXPIRETIME").arg(key).query(&mut self.connection).unwrap();
        match kind.as_str() {
            "string" => {
                let value: Vec<u8> = redis::cmd("GET").arg(key).query(&mut self.connection).unwrap();
                format!("{expires} {}", value.escape_ascii())
            }
            "zset" => {
                let mut ask = redis::cmd("ZRANGE");
                ask.arg(key).arg("0").arg("-1").arg("WITHSCORES");
                let members: Vec<(Vec<u8>, String)> = ask.query(&mut self.connection).unwrap();
                let member = |bytes: &[u8]| bytes.escape_ascii().to_string().replace(' ', "\\x20");
                let members = members.iter().map(|(bytes, score)| format!(" {score}={}", member(bytes)));
                format!("{expires} zset{}", members.collect::<String>())
            }
            kind => panic!("{key} is a {kind}"),
        }
    }

    /// Puts recorded keys in place of all keys.
    fn load(&mut self, keys: &Keys) {
        self.server.command(&["FLUSHALL"]).unwrap();
        for (key, text) in keys {
            let (expires, value) = text.split_once(' ').unwrap();
            match value.strip_prefix("zset") {
                None => redis::cmd("SET").arg(key).arg(unescaped(value)).exec(&mut self.connection).unwrap(),
                Some(members) => {
                    for member in members.split_terminator(' ').skip(1) {
                        let (score, member) = member.split_once('=').unwrap();
                        redis::cmd("ZADD")
                            .arg(key)
                            .arg(score)
                            .arg(unescaped(member))
                            .exec(&mut self.connection)
                            .unwrap();
                    }
                }
            }
            if expires != "-1" {
                redis::cmd("PEXPIREAT").arg(key).arg(expires).exec(&mut self.connection).unwrap();
            }
        }
    }

    /// Does a step, and returns its answer.
    fn play(&self, world: &World<'_>, step: &str) -> String {
        let (word, rest) = step.split_once(' ').unwrap_or((step, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        match (word, &words[..]) {
            ("there", _) => self.play(world, rest),
            ("wait", _) => "done".to_owned(),
            ("ask", _) => answered(&world.ask_for(&asked(&words), None)),
            ("open", [_, words @ ..]) => answered(&world.ask_for(&asked(words), None)),
            ("settle", [name, words @ ..]) => {
                let holds = receipts::parse(&self.receipts[*name]).expect("a receipt");
                let settle = Settle { descriptors: (1 << words.len()) - 1, holds };
                answered(&world.ask_for(&asked(words), Some(settle)))
            }
            ("row", [tenant, "own"]) => {
                let numbers =
                    Numbers { name: Some("rpm".into()), requests: 9, window: Unit::Minute.window(), burst: None };
                world.set_row("tenant", tenant, RowContent::Own([numbers].into()));
                "done".to_owned()
            }
            ("row", [tenant, "full"]) => {
                let numbers =
                    |name: &str, window, burst| Numbers { name: Some(name.into()), requests: 9, window, burst };
                let limits =
                    [numbers("rpm", Unit::Minute.window(), Some(12)), numbers("rph", Unit::Hour.window(), None)];
                world.write_row(Row {
                    domain: "shop".into(),
                    entries: [("tenant".into(), (*tenant).into())].into(),
                    content: RowContent::Own(limits.into()),
                    until: Some(world.now() + 30_000_000),
                    note: "a sale".into(),
                });
                "done".to_owned()
            }
            ("row", [tenant, plan]) => {
                world.set_row("tenant", tenant, RowContent::Plan((*plan).into()));
                "done".to_owned()
            }
            ("remove", [tenant]) => {
                world.remove_row("tenant", tenant);
                "done".to_owned()
            }
            ("override", [name, requests, unit]) => {
                let window = Unit::ALL.into_iter().find(|one| one.name() == *unit).unwrap().window();
                let requests = requests.parse().unwrap();
                let names = if *name == "both" { &["rph", "rpd"][..] } else { &[*name] };
                let numbers = |name: &&str| Numbers { name: Some((*name).into()), requests, window, burst: None };
                world.set_override(&names.iter().map(numbers).collect::<Vec<_>>());
                "done".to_owned()
            }
            ("delete", _) => {
                world.delete_override();
                "done".to_owned()
            }
            ("burst", _) => {
                let admitted =
                    (0..BURST).filter(|_| !world.ask_for(&[("hot", "a", Operation::Consume(1))], None).denied).count();
                if rest == "then leave" {
                    world.leave();
                }
                format!("{admitted} admitted")
            }
            ("leave", _) => {
                world.leave();
                "done".to_owned()
            }
            _ => panic!("no step: {step}"),
        }
    }

    /// Keeps the receipt of an answer, if the step has a name for it.
    fn keep_receipt(&mut self, step: &str, answer: &str) {
        if let (Some(rest), Some((_, receipt))) = (step.strip_prefix("open "), answer.split_once("receipt ")) {
            let name = rest.split(' ').next().unwrap_or_default();
            self.receipts.insert(name.to_owned(), receipt.to_owned());
        }
    }
}

fn answered(answer: &Answer) -> String {
    let mut text = if answer.denied { "denied".to_owned() } else { "admitted".to_owned() };
    for status in &answer.statuses {
        let over = if status.over { "over" } else { "within" };
        write!(text, ", {over} {} {}", status.remaining, status.until_reset.map_or(-1, u64::cast_signed)).unwrap();
    }
    if !answer.holds.is_empty() {
        write!(text, ", receipt {}", receipts::text(&answer.holds)).unwrap();
    }
    text
}

fn asked<'t>(words: &[&'t str]) -> Vec<(&'t str, &'t str, Operation)> {
    let one = |word: &&'t str| {
        let (key, rest) = word.split_once('=').unwrap();
        let (value, hits) = rest.split_once(':').unwrap();
        let hits: i32 = hits.parse().unwrap();
        let operation = match hits {
            0 => Operation::Peek,
            1.. => Operation::Consume(hits.unsigned_abs()),
            _ => Operation::Refund(hits.unsigned_abs()),
        };
        (key, value, operation)
    };
    words.iter().map(one).collect()
}

/// The bytes of a text by `escape_ascii`.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        let (byte, length) = match (first, others) {
            (b'\\', [b'x', high, low, ..]) => {
                let digits = [*high, *low];
                (u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap(), 4)
            }
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [other, ..]) => (*other, 2),
            _ => (*first, 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    bytes
}

/// How far a step moves the clock, in microseconds.
fn moved(step: &str) -> Micros {
    step.strip_prefix("wait ").map_or(0, |us| us.parse().unwrap())
}

fn read(recording: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in recording.lines().filter(|line| !line.starts_with('#')) {
        let keys = steps.last().map(|step| step.keys.clone()).unwrap_or_default();
        match (line.split_once(' ').unwrap(), steps.last_mut()) {
            (("step", text), _) => steps.push(Step { text: text.to_owned(), answer: String::new(), keys }),
            (("answer", text), Some(step)) => text.clone_into(&mut step.answer),
            (("key", text), Some(step)) => {
                let (key, value) = text.split_once(' ').unwrap();
                step.keys.insert(key.to_owned(), value.to_owned());
            }
            (("gone", key), Some(step)) => {
                step.keys.remove(key);
            }
            _ => panic!("{RECORDING}: {line}"),
        }
    }
    steps
}

fn record(server: &RedisServer) {
    let worlds = [Worlds::of(Some(server)), Worlds::of(Some(server))];
    let [world, other] = worlds.each_ref().map(|worlds| worlds.with(POLICY, Mode::Atomic));
    let mut recorder = Recorder::new(server);
    let mut text = "# The recording of tests/store/upgrade.rs, which says how it was made.\n".to_owned();
    let mut before = Keys::new();
    for step in STEPS {
        world.step(moved(step));
        other.step(moved(step));
        let by = if step.starts_with("there") { &other } else { &world };
        let answer = recorder.play(by, step);
        recorder.keep_receipt(step, &answer);
        writeln!(text, "step {step}\nanswer {answer}").unwrap();
        let after = recorder.keys();
        for (key, value) in &after {
            if before.get(key) != Some(value) {
                writeln!(text, "key {key} {value}").unwrap();
            }
        }
        for key in before.keys().filter(|key| !after.contains_key(*key)) {
            writeln!(text, "gone {key}").unwrap();
        }
        before = after;
    }
    fs::write(RECORDING, text).unwrap();
}

/// A version of overrides without its writers, which are random. [ov-3]
fn without_writers(mut keys: Keys) -> Keys {
    for (key, value) in &mut keys {
        if key.ends_with("overrides-version") {
            let (expires, version) = value.split_once(' ').unwrap();
            let times = version.as_bytes().chunks(16).map(|number| number[..11].escape_ascii().to_string());
            *value = format!("{expires} {}", times.collect::<Vec<_>>().join(" "));
        }
    }
    keys
}

#[test]
fn every_step_continues_what_the_version_before_has_written_and_writes_the_same() {
    let server = RedisServer::start();
    if std::env::var_os("WEIR_RECORD_UPGRADE").is_some() {
        return record(&server);
    }
    let recording = read(&fs::read_to_string(RECORDING).unwrap());
    assert_eq!(recording.iter().map(|step| step.text.as_str()).collect::<Vec<_>>(), STEPS);
    let mut recorder = Recorder::new(&server);
    let (mut before, mut since) = (Keys::new(), 0);
    for (number, step) in recording.into_iter().enumerate() {
        since += moved(&step.text);
        if step.text.starts_with("there") {
            before = step.keys;
            continue;
        }
        recorder.load(&before);
        let worlds = Worlds::of(Some(&server));
        let world = worlds.with(POLICY, Mode::Atomic);
        world.step(since);
        world.read_overrides();
        assert_eq!(recorder.play(&world, &step.text), step.answer, "step {number}: {}", step.text);
        let (found, expected) = (without_writers(recorder.keys()), without_writers(step.keys.clone()));
        assert_eq!(found, expected, "step {number}: {}", step.text);
        recorder.keep_receipt(&step.text, &step.answer);
        before = step.keys;
    }
}
