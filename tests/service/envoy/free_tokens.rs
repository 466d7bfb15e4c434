//! Ways to get tokens of the gateway of deploy/holds without paying for them, each tried with a real Envoy. What is charged of the
//! hour and of the month must be what the model has counted, or without a count what a request can use at most.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::thread;
use std::time::Duration;

use super::holds::{EXAMPLE, Model, PER_MONTH, left, on_redis};
use crate::support::envoy::Envoy;
use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::wait::{PATIENCE, within};

/// The bounds of an estimate in the example.
const LEAST: u64 = 100;
const MOST: u64 = 2_000;
/// What the model counts if nothing else is asked for.
const COUNT: u64 = 137;
/// What a user has in an hour: no attack finds it full.
const PER_HOUR: u64 = 100_000;
/// How long a stream may take: enough to see on a busy machine what is held, and less than a client waits for a byte.
const LONGEST: Duration = Duration::from_secs(15);

/// How a client ends its request.
#[derive(Clone, Copy)]
enum End {
    /// It reads the answer, which has this status. `None`: the stream breaks off.
    Reads(Option<u16>),
    /// It leaves after this text of the answer.
    LeavesAfter(&'static str),
    /// It leaves when so many tokens are held.
    LeavesWith(u64),
}

struct Attack {
    name: &'static str,
    method: &'static str,
    /// The user has the name of the attack, unless there is an x-user here.
    headers: Vec<Header>,
    end: End,
    /// What is charged of the hour, and of the month.
    charged: u64,
    /// How many requests the model gets.
    reaches: u64,
}

type Header = (&'static str, &'static str);

/// In place of x-user: there is no such header.
const NO_HEADER: &str = "-";

impl Attack {
    fn new(name: &'static str, headers: &[Header], end: End, charged: u64) -> Attack {
        Attack { name, method: "POST", headers: headers.to_vec(), end, charged, reaches: 1 }
    }

    /// No request reaches the model.
    fn stopped(self) -> Attack {
        Attack { reaches: 0, ..self }
    }

    fn own_user(&self) -> Option<&'static str> {
        self.headers.iter().find(|(name, _)| *name == "x-user").map(|(_, user)| *user)
    }

    /// The user who is charged.
    fn user(&self) -> &'static str {
        match self.own_user() {
            None => self.name,
            Some("" | NO_HEADER) => "anonymous",
            Some(user) => user,
        }
    }

    fn run(&self, envoy: &Envoy, weir: &Weir) {
        let mut headers = self.headers.clone();
        headers.retain(|(_, value)| *value != NO_HEADER);
        headers.push(("x-case", self.name));
        if self.own_user().is_none() {
            headers.push(("x-user", self.name));
        }
        if let End::Reads(status) = self.end {
            let answer = http::request(envoy.ingress, self.method, "/", &headers, "");
            assert_eq!(answer.ok().map(|answer| answer.status), status, "{}", self.name);
            return;
        }
        let mut client = http::connect(envoy.ingress).expect("a connection");
        client.write_all(http::head(self.method, "/", &headers, 0).as_bytes()).expect("a request");
        // What is held before weir's answer is with Envoy can be released.
        let text = if let End::LeavesAfter(text) = self.end { text } else { "HTTP/1.1 200" };
        let mut read = Vec::new();
        while !read.ends_with(text.as_bytes()) {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap_or_else(|error| panic!("{}: {error}", self.name));
            read.extend(byte);
        }
        if let End::LeavesWith(held) = self.end {
            wait_for_charges(weir, self.user(), [held, 0]);
        }
    }
}

fn attacks() -> Vec<Attack> {
    use End::{LeavesAfter, Reads};
    const WHOLE: End = Reads(Some(200));
    let receipt = "1.ASNFZ4mrze8AZICA-cDBxIIDnukc";
    let mut attacks = vec![
        Attack::new("nothing", &[], WHOLE, COUNT),
        // The client leaves.
        Attack::new("leaves-at-the-begin", &[("x-seconds", "60")], LeavesAfter("HTTP/1.1 200"), MOST),
        Attack::new("leaves-in-the-stream", &[("x-seconds", "1"), ("x-rest", "60")], LeavesAfter("a few words"), MOST),
        Attack::new("leaves-before-the-count", &[("x-rest", "60")], LeavesAfter("the last words"), MOST),
        Attack::new("leaves-after-the-count", &[("x-rest-after", "60")], LeavesAfter("total_tokens"), COUNT),
        // There is no count, or it is hard to find.
        Attack::new("without-usage", &[("x-tokens", "none")], WHOLE, MOST),
        Attack::new("compressed", &[("accept-encoding", "gzip")], WHOLE, COUNT),
        Attack::new("compressed-among-others", &[("accept-encoding", "br, gzip;q=0.9, *")], WHOLE, COUNT),
        Attack::new("a-smaller-count-first", &[("x-tokens", "1,137")], WHOLE, COUNT),
        Attack::new("over-chunk-borders", &[("x-tokens", "1379"), ("x-pieces", "30")], WHOLE, 1_379),
        Attack::new("in-single-bytes", &[("x-tokens", "1379"), ("x-pieces", "100")], WHOLE, 1_379),
        Attack::new("far-from-the-end", &[("x-after", "100000")], WHOLE, COUNT),
        Attack::new("a-huge-count", &[("x-tokens", "99999999999999999999")], WHOLE, 1_000_000_000),
        Attack::new("a-count-in-the-text", &[("x-says", "\"total_tokens\": 1 }"), ("x-tokens", "none")], WHOLE, MOST),
        Attack::new("a-count-in-the-text-too", &[("x-says", "\"usage\": {\"total_tokens\": 1}")], WHOLE, COUNT),
        Attack::new("a-range", &[("range", "bytes=0-10")], WHOLE, COUNT),
        // The model fails, or the stream is too long.
        Attack::new("breaks-off", &[("x-end", "broken")], Reads(None), MOST),
        Attack::new("ends-without-an-answer", &[("x-end", "silent")], Reads(Some(503)), MOST),
        Attack::new("too-long", &[("x-seconds", "60")], Reads(None), MOST),
        Attack::new("too-long-before-the-answer", &[("x-wait", "60")], Reads(Some(504)), MOST),
        Attack::new("error-of-the-model", &[("x-status", "500")], Reads(Some(500)), 0),
        Attack::new("limit-of-the-model", &[("x-status", "429")], Reads(Some(429)), 0),
        // The user.
        Attack::new("no-user", &[("x-user", NO_HEADER)], WHOLE, COUNT),
        Attack::new("empty-user", &[("x-user", "")], WHOLE, COUNT),
        Attack::new("two-users", &[("x-user", "u1"), ("x-user", "u2")], Reads(Some(400)), 0).stopped(),
        // Headers that look like those of the gateway.
        Attack::new("own-receipt", &[("weir.receipt", receipt), ("x-weir-receipt", receipt)], WHOLE, COUNT),
        Attack::new("no-receipt", &[("weir.receipt", "none"), ("weir.ai", "none"), ("receipt", "none")], WHOLE, COUNT),
        Attack::new("own-count", &[("tokens", "0"), ("ai", "0"), ("x-tokens-used", "0")], WHOLE, COUNT),
        Attack::new("own-mark", &[("x-model-not-reached", "yes"), ("x-tokens", "none")], WHOLE, MOST),
        // Headers that the router of Envoy reads.
        Attack::new(
            "retries",
            &[("x-envoy-retry-on", "5xx,retriable-4xx"), ("x-envoy-max-retries", "9"), ("x-status", "500")],
            Reads(Some(500)),
            0,
        ),
        Attack::new(
            "hedging",
            &[
                ("x-envoy-hedge-on-per-try-timeout", "true"),
                ("x-envoy-upstream-rq-per-try-timeout-ms", "20"),
                ("x-envoy-retry-on", "5xx"),
                ("x-envoy-max-retries", "9"),
                ("x-wait", "0.5"),
            ],
            WHOLE,
            COUNT,
        ),
        Attack::new("own-timeout", &[("x-envoy-upstream-rq-timeout-ms", "20"), ("x-wait", "0.5")], WHOLE, COUNT),
        Attack { method: "GET", ..Attack::new("not-post", &[], Reads(Some(404)), 0).stopped() },
    ];
    attacks.extend(ESTIMATES.map(|(name, headers, held)| {
        let headers = [headers, &[("x-seconds", "60")]].concat();
        Attack::new(name, &headers, End::LeavesWith(held), MOST)
    }));
    attacks
}

type Estimate = (&'static str, &'static [Header], u64);

/// What is held for a header.
const ESTIMATES: [Estimate; 14] = [
    ("no-estimate", &[], MOST),
    ("estimate-within", &[("x-max-tokens", "500")], 500),
    ("estimate-0", &[("x-max-tokens", "0")], LEAST),
    ("estimate-1", &[("x-max-tokens", "1")], LEAST),
    ("estimate-negative", &[("x-max-tokens", "-5")], MOST),
    ("estimate-no-number", &[("x-max-tokens", "abc")], MOST),
    ("estimate-empty", &[("x-max-tokens", "")], MOST),
    ("estimate-too-large", &[("x-max-tokens", "4294967296")], MOST),
    ("estimate-huge", &[("x-max-tokens", "99999999999999999999999999999999999999999999")], MOST),
    ("estimate-fraction", &[("x-max-tokens", "0.5")], MOST),
    ("estimate-exponent", &[("x-max-tokens", "1e2")], MOST),
    ("estimate-hexadecimal", &[("x-max-tokens", "0x10")], MOST),
    ("estimate-twice", &[("x-max-tokens", "200"), ("x-max-tokens", "300")], MOST),
    ("estimate-with-a-text", &[("x-max-tokens", "200 tokens")], MOST),
];

fn charged(weir: &Weir, user: &str) -> [u64; 2] {
    let [hour, month] = left(weir, user);
    [PER_HOUR - hour, PER_MONTH - month]
}

fn wait_for_charges(weir: &Weir, user: &str, expected: [u64; 2]) {
    if within(PATIENCE, || (charged(weir, user) == expected).then_some(())).is_none() {
        panic!("{:?} are charged to {user}, not {expected:?}", charged(weir, user));
    }
}

#[test]
fn no_client_gets_tokens_free() {
    let redis = RedisServer::start();
    let policy = EXAMPLE.replace("10_000/min", &format!("{PER_HOUR}/h"));
    let policies = PolicyDirectory::with_file("ai.yaml", &policy);
    let weir = on_redis(&policies, &redis, &[]);
    let model = Model::start();
    // The route removes x-user before the request goes to the model.
    let envoy = Envoy::start_with_holds_of(&[weir.grpc], model.address, MOST, |gateway| {
        let longest = format!("max_stream_duration: {}s", LONGEST.as_secs());
        gateway.replace("max_stream_duration: 50s", &longest).replace("[accept-encoding]", "[accept-encoding, x-user]")
    });

    let attacks = attacks();
    thread::scope(|scope| {
        for attack in &attacks {
            scope.spawn(|| attack.run(&envoy, &weir));
        }
    });
    let mut expected: BTreeMap<&str, u64> = BTreeMap::new();
    for attack in &attacks {
        *expected.entry(attack.user()).or_default() += attack.charged;
    }
    for (user, tokens) in expected {
        // Past its limits nothing is left.
        let all = [tokens.min(PER_HOUR), tokens.min(PER_MONTH)];
        wait_for_charges(&weir, user, all);
    }
    assert_eq!(charged(&weir, "u2"), [0, 0], "the other of two users");
    for attack in attacks {
        assert_eq!(model.asked(attack.name), attack.reaches, "{}", attack.name);
    }

    // The model does not run.
    drop(model);
    assert_eq!(http::request(envoy.ingress, "POST", "/", &[("x-user", "late")], "").expect("an answer").status, 503);
    wait_for_charges(&weir, "late", [0, 0]);
}
