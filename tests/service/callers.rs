//! Callers and their rights: who is known by which certificate and listener, what each may do, and files that change.
//! The certificates are of the test's own authority.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::google::protobuf::UInt64Value;
use envoy_types::pb::google::protobuf::value::Kind;
use rcgen::{KeyPair, SanType};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use weir_engine::Receipt;
use weir_engine::callers::Callers;
use weir_limiter::HeldCharge;
use weir_tls::server::names_of;

use crate::support::authority::{Authority, Issued};
use crate::support::envoy::Envoy;
use crate::support::process::{LogLine, PolicyDirectory, Process, Weir, binary, serve};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, RateLimitRequest, RateLimitResponse, ask};
use crate::support::secured::{Address, Connector, config};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};
use crate::support::{http, served};

mod certificates;

const POLICY: &str = "\
domain: a
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1000, hold: true}}
";

/// Every right, each for a caller of its own by a Unix socket of its name.
const RIGHTS: &str = "\
callers:
- {name: charges, listeners: [charges], domains: [a], may: [charge], hits_max: 5}
- {name: peeks, listeners: [peeks, http], domains: [a], may: [peek]}
- {name: refunds, listeners: [refunds], domains: [a], may: [refund], hits_max: 5}
- {name: settles, listeners: [settles], domains: [a], may: [settle], hits_max: 5}
- {name: limits, listeners: [limits], domains: ['a*'], may: [charge, limits]}
- {name: others, listeners: [others], domains: [b, 'a/*'], may: [charge, peek, refund, settle, limits]}
";

const LISTENERS: [&str; 7] = ["charges", "peeks", "refunds", "settles", "limits", "others", "nobody"];

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A server with a file of callers, and a Unix socket for each listener.
struct Bench {
    served: Served,
    directory: TempDir,
}

impl Bench {
    fn start(callers: &str, settings: &[&str]) -> Self {
        Self::with_policy(POLICY, callers, settings)
    }

    fn with_policy(policy: &str, callers: &str, settings: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let file = directory.path().join("callers.yaml");
        fs::write(&file, format!("{callers}\n")).unwrap();
        let socket = |name: &&str| format!(",{name}=unix:{}", directory.path().join(name).display());
        let listeners = format!("listen.grpc=grpc=127.0.0.1:0{}", LISTENERS.iter().map(socket).collect::<String>());
        let file = format!("callers.file={}", file.display());
        let served = Served::start(policy, &[&[listeners.as_str(), &file], settings].concat());
        Self { served, directory }
    }

    fn connector(&self, listener: &str) -> Connector {
        Connector::new(Address::Unix(self.directory.path().join(listener)))
    }

    fn ask(&self, listener: &str, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        runtime().block_on(async {
            let channel = self.connector(listener).channel().await.expect("a connection");
            ask(channel, request).await
        })
    }

    /// Replaces the file of callers as a whole.
    fn replace(&self, text: &str) {
        replace(&self.directory.path().join("callers.yaml"), &format!("{text}\n"));
    }

    fn count(&self, caller: &str, result: &str) -> u64 {
        let series = format!("weir_caller_requests_total{{caller=\"{caller}\",result=\"{result}\"}}");
        self.served.metric(&series).unwrap_or_else(|| panic!("no {series}"))
    }
}

fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    fs::write(&next, text).unwrap();
    // Written long before it is renamed into place. So it is whole, and settles at once.
    let written = fs::File::options().write(true).open(&next).unwrap();
    written.set_modified(SystemTime::now() - Duration::from_secs(10)).unwrap();
    fs::rename(next, path).unwrap();
}

/// A request of ann in the domain, changed.
fn ann(domain: &str, hits: u64, change: impl Fn(&mut RateLimitRequest)) -> RateLimitRequest {
    let mut request = rls::request(domain, &[("user", "ann")]);
    request.descriptors[0].hits_addend = Some(UInt64Value { value: hits });
    change(&mut request);
    request
}

/// Adds the entry of a settle without a receipt.
fn settling(request: &mut RateLimitRequest) {
    let receipt = rls::request("a", &[("weir.receipt", "none")]);
    request.descriptors[0].entries.extend(receipt.descriptors[0].entries.clone());
}

fn refunding(request: &mut RateLimitRequest) {
    request.descriptors[0].is_negative_hits = true;
}

fn limited(request: &mut RateLimitRequest) {
    request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1_000, unit: 4 });
}

#[test]
fn each_right_is_needed_and_a_refused_request_is_not_charged_in_memory() {
    each_right_is_needed_and_a_refused_request_is_not_charged(&[]);
}

/// A right is no limit.
#[test]
fn each_right_is_needed_and_a_refused_request_is_not_charged_in_shadow_mode() {
    each_right_is_needed_and_a_refused_request_is_not_charged(&["shadow_mode=on"]);
}

fn each_right_is_needed_and_a_refused_request_is_not_charged(settings: &[&str]) {
    let bench = Bench::start(RIGHTS, settings);
    let nothing = |_: &mut RateLimitRequest| {};
    // A message of more than 16 KiB is decided on another thread.
    let long = |request: &mut RateLimitRequest| {
        let more = rls::request("a", &[("other", &"x".repeat(20_000))]).descriptors.remove(0);
        request.descriptors.push(more);
    };
    let mut refused = 0;
    for (request, lacks, allowed) in [
        (ann("a", 2, nothing), "charge", &["charges", "limits"][..]),
        (ann("a", 2, long), "charge", &["charges", "limits"]),
        (ann("a", 0, nothing), "peek", &["peeks"]),
        (ann("a", 2, refunding), "refund", &["refunds"]),
        (ann("a", 2, settling), "settle", &["settles"]),
        (ann("a", 0, settling), "settle", &["settles"]),
        (ann("a", 2, limited), "limits", &["limits"]),
    ] {
        for caller in &LISTENERS[..5] {
            match bench.ask(caller, request.clone()) {
                Ok(answer) => assert!(rls::admits(&answer) && allowed.contains(caller), "{caller}: {request:?}"),
                Err(status) => {
                    refused += 1;
                    assert_eq!(status.code(), Code::PermissionDenied, "{caller}: {status}");
                    assert!(!allowed.contains(caller), "{caller}: {status}");
                    // Who may not charge lacks that before limits of its own.
                    let is_named = [lacks, "charge"].iter().any(|right| {
                        status.message()
                            == format!("the caller {caller} lacks the right \"{right}\" (nothing was charged)")
                    });
                    assert!(is_named, "{status}");
                }
            }
        }
    }
    assert_eq!(refused, 26);
    let mut many = ann("a", 2, nothing);
    many.descriptors.extend(ann("a", 6, nothing).descriptors);
    for (caller, request, expected) in [
        (
            "charges",
            many,
            "the caller charges may charge or give back at most 5 hits of a descriptor (nothing was charged)",
        ),
        (
            "refunds",
            ann("a", 6, refunding),
            "the caller refunds may charge or give back at most 5 hits of a descriptor (nothing was charged)",
        ),
        (
            "settles",
            ann("a", 6, settling),
            "the caller settles may charge or give back at most 5 hits of a descriptor (nothing was charged)",
        ),
        ("others", ann("a", 1, nothing), "the caller others has no rights in this domain (nothing was charged)"),
        ("others", ann("a/", 1, nothing), ""),
        ("charges", ann("b", 1, nothing), "the caller charges has no rights in this domain (nothing was charged)"),
        (
            "nobody",
            ann("a", 1, nothing),
            "no caller of callers.file has this listener, and no certificate with a DNS name or a URI was shown (nothing was \
             charged)",
        ),
    ] {
        let answer = bench.ask(caller, request);
        assert_eq!(answer.as_ref().err().map_or("", Status::message), expected, "{caller}");
    }
    // 2 by each charge of `charges` and `limits`, and 2 less by the refund. A settle without a receipt charges a post-paid limit only.
    let left = bench.ask("peeks", ann("a", 0, nothing)).unwrap().statuses[0].limit_remaining;
    assert_eq!(left, 1_000 - 6);
    assert_eq!((bench.count("peeks", "allowed"), bench.count("peeks", "charge")), (2, 3));
    assert_eq!((bench.count("limits", "limits"), bench.count("others", "domain")), (0, 1));
    assert_eq!((bench.count("(unlisted)", "unlisted"), bench.count("charges", "hits")), (1, 1));
    let not_allowed = "weir_requests_total{domain=\"(unknown)\",result=\"not_allowed\"}";
    assert_eq!(bench.served.metric(not_allowed), Some(refused + 6));
    assert_eq!(bench.served.metric("weir_callers"), Some(6));
}

/// The line named the first caller of 10 s only.
#[test]
fn each_refused_caller_has_a_line_of_its_own() {
    let directory = TempDir::new().unwrap();
    let callers = directory.path().join("callers.yaml");
    let entry = |name: &str| format!("- {{name: {name}, listeners: [{name}], domains: [shop], may: [peek]}}\n");
    fs::write(&callers, format!("callers:\n{}{}", entry("one"), entry("two"))).unwrap();
    let socket = |name: &str| directory.path().join(name);
    let listeners: Vec<_> =
        ["one", "two", "three", "four"].iter().map(|name| format!("{name}=unix:{}", socket(name).display())).collect();
    let policies = PolicyDirectory::with_file("a.yaml", POLICY);
    let settings = [format!("callers.file={}", callers.display()), format!("grpc=127.0.0.1:0,{}", listeners.join(","))];
    let weir = Weir::start(&policies.path(), &["--set", &settings[0], "--grpc", &settings[1]]);
    for name in ["one", "two", "three", "four", "one"] {
        let answer = runtime().block_on(async {
            ask(Connector::new(Address::Unix(socket(name))).channel().await.unwrap(), ann("a", 1, |_| {})).await
        });
        assert_eq!(answer.unwrap_err().code(), Code::PermissionDenied);
    }
    let line = |name: &str, lacks: &str| {
        let (name, lacks) = (json!(name), json!(lacks));
        move |line: &LogLine| {
            line.message() == Some("refused requests that their caller may not send")
                && line.field("listener") == Some(&name)
                && line.field("lacks") == Some(&lacks)
        }
    };
    for (name, lacks) in [("one", "domain"), ("two", "domain"), ("three", "unlisted"), ("four", "unlisted")] {
        assert!(weir.wait_for_log(0, PATIENCE, line(name, lacks)), "{name}: {}", weir.written());
        assert_eq!(weir.count_in_log(line(name, lacks)), 1, "{name}: {}", weir.written());
    }
    assert!(weir.written().contains("none: no certificate with a DNS name or a URI"), "{}", weir.written());
}

/// [cr-4] [mt-12]
#[test]
fn the_most_hits_of_a_caller_are_weighed_hits() {
    let weigh = "weigh: {entry: model, by: {large: 3}, default: 1}";
    let policy = format!("domain: a\ndescriptors: [{{key: user, {weigh}, rate_limit: 1000/y}}]\n");
    let bench = Bench::with_policy(&policy, RIGHTS, &[]);
    let with_model = |hits, model: &str| {
        ann("a", hits, |request| {
            request.descriptors[0].entries.extend(rls::request("a", &[("model", model)]).descriptors.remove(0).entries);
        })
    };
    for (hits, model, is_allowed) in [(5, "small", true), (6, "small", false), (1, "large", true), (2, "large", false)]
    {
        let code = bench.ask("charges", with_model(hits, model)).err().map(|refused| refused.code());
        assert_eq!(code, (!is_allowed).then_some(Code::PermissionDenied), "{hits} hits of {model}");
    }
    let refused = bench.ask("limits", with_model(2, "large")).err();
    assert_eq!(refused.map(|refused| refused.code()), None, "a caller without hits_max");
    let left = bench.ask("peeks", ann("a", 0, |_| {})).unwrap().statuses[0].limit_remaining;
    assert_eq!(left, 1_000 - 5 - 3 - 6);
}

/// The receipt of an answer.
fn receipt_of(answer: &RateLimitResponse) -> String {
    let ours = &answer.dynamic_metadata.as_ref().expect("metadata").fields["weir.a"];
    let Some(Kind::StructValue(ours)) = &ours.kind else { panic!("{ours:?}") };
    let Some(Kind::StringValue(receipt)) = &ours.fields["receipt"].kind else { panic!("{ours:?}") };
    receipt.clone()
}

/// A settle of 0 hits gave back what any receipt said. [cr-4]
#[test]
fn a_receipt_gives_back_at_most_the_hits_that_its_caller_may_charge() {
    let bench = Bench::start(RIGHTS, &[]);
    let settle = |receipt: &str, descriptors: usize| {
        let mut settle = ann("a", 0, |request| {
            let entry = rls::request("a", &[("weir.receipt", receipt)]).descriptors.remove(0).entries;
            request.descriptors[0].entries.extend(entry);
        });
        settle.descriptors = vec![settle.descriptors[0].clone(); descriptors];
        bench.ask("settles", settle).map(drop).map_err(|status| (status.code(), status.message().to_owned()))
    };
    let left = || bench.ask("peeks", ann("a", 0, |_| {})).unwrap().statuses[0].limit_remaining;
    let too_many = "the caller settles may charge or give back at most 5 hits of a descriptor (nothing was charged)";
    let refused = Err((Code::PermissionDenied, too_many.to_owned()));
    let opened = receipt_of(&bench.ask("limits", ann("a", 100, |_| {})).unwrap());
    assert_eq!((settle(&opened, 1), left()), (refused.clone(), 900), "100 hits");
    let own = receipt_of(&bench.ask("charges", ann("a", 5, |_| {})).unwrap());
    assert_eq!(left(), 895);
    let made = |hits: &[u32]| {
        let held = weir_rls::receipts::parse(&own).expect("a receipt")[0];
        let holds = hits.iter().map(|hits| HeldCharge { receipt: Receipt { hits: *hits, ..held.receipt }, ..held });
        weir_rls::receipts::text(&holds.collect::<Vec<_>>())
    };
    // The hits of one key count together, for as many descriptors as settle.
    for (hits, descriptors) in [(&[6][..], 1), (&[3, 3], 1), (&[5, 5, 1], 2), (&[u32::MAX, u32::MAX], 64)] {
        assert_eq!((settle(&made(hits), descriptors), left()), (refused.clone(), 895), "{hits:?}");
    }
    assert_eq!((settle(&own, 1), left()), (Ok(()), 900));
    let mut two = ann("a", 5, |_| {});
    two.descriptors.push(two.descriptors[0].clone());
    let of_two = receipt_of(&bench.ask("charges", two).unwrap());
    assert_eq!((settle(&of_two, 2), left()), (Ok(()), 900), "5 hits of each of two descriptors");
    assert_eq!(bench.count("settles", "hits"), 5);
}

/// INVALID_ARGUMENT for a wrong receipt showed that a domain has holds, and the request was not counted. [cr-1]
#[test]
fn who_lacks_a_domain_does_not_learn_by_receipts_whether_it_has_holds() {
    let bench = Bench::start(RIGHTS, &[]);
    let with_receipt = |domain: &str, receipt: &str| {
        let mut request = ann(domain, 1, |_| {});
        let entry = rls::request("a", &[("weir.receipt", receipt)]).descriptors.remove(0).entries;
        request.descriptors[0].entries.extend(entry);
        request
    };
    // Too long for a value, and for a receipt.
    let long = "x".repeat(20_000);
    for receipt in ["garbage", "none", "", &long] {
        for (caller, reason) in [("nobody", "unlisted"), ("others", "domain")] {
            let name = if caller == "nobody" { "(unlisted)" } else { caller };
            let answers = ["a", "c"].map(|domain| {
                let before = bench.count(name, reason);
                let status = bench.ask(caller, with_receipt(domain, receipt)).unwrap_err();
                assert_eq!(bench.count(name, reason), before + 1, "{caller} {domain}");
                (status.code(), status.message().to_owned())
            });
            assert_eq!((&answers[0], answers[0].0), (&answers[1], Code::PermissionDenied), "{caller} {receipt:.9}");
        }
    }
    assert_eq!(bench.ask("settles", with_receipt("a", "garbage")).unwrap_err().code(), Code::InvalidArgument);
    // The caller of the listener http has the domain a only.
    let post = |domain: &str| {
        let entries = json!([{"key": "user", "value": "ann"}, {"key": "weir.receipt", "value": "garbage"}]);
        let body = json!({"domain": domain, "descriptors": [{"entries": entries}]});
        http::post_json(bench.served.at.http, "/json", &body.to_string()).unwrap().status
    };
    assert_eq!((post("a"), post("c"), post("")), (400, 403, 403));
}

/// What `on_error` gives is for requests that the caller may send.
#[test]
fn a_right_is_checked_before_the_store_is_asked() {
    let mut redis = RedisServer::start();
    let url = format!("redis.url={}", redis.url());
    let bench = Bench::start(RIGHTS, &["store=redis", &url, "on_error=allow"]);
    redis.kill();
    let refused = bench.ask("peeks", ann("a", 1, |_| {})).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let by_on_error = || bench.served.metric("weir_on_error_total{action=\"allow\"}");
    assert_eq!(by_on_error(), Some(0));
    assert!(rls::admits(&bench.ask("charges", ann("a", 1, |_| {})).unwrap()));
    assert_eq!(by_on_error(), Some(1));
}

#[test]
fn json_is_the_listener_http() {
    let bench = Bench::start(RIGHTS, &[]);
    let post = |domain: &str, hits: u64| {
        let body = json!({"domain": domain, "descriptors": [{"entries": [{"key": "user", "value": "ann"}], "hits_addend": hits}]});
        http::post_json(bench.served.at.http, "/json", &body.to_string()).unwrap()
    };
    assert_eq!(post("a", 0).status, 200);
    let refused = post("a", 1);
    assert_eq!(
        (refused.status, &*refused.body),
        (403, "the caller peeks lacks the right \"charge\" (nothing was charged)\n")
    );
    assert_eq!(post("b", 0).status, 403);
    let answer: serde_json::Value = serde_json::from_str(&post("a", 0).body).unwrap();
    assert_eq!(answer["statuses"][0]["limitRemaining"], 1_000);
}

#[test]
fn top_shows_the_requests_of_each_caller() {
    let bench = Bench::start(RIGHTS, &[]);
    let lines = until("requests of callers in weir top", PATIENCE, || {
        bench.ask("peeks", ann("a", 0, |_| {})).unwrap();
        bench.ask("peeks", ann("b", 0, |_| {})).unwrap_err();
        bench.ask("nobody", ann("a", 0, |_| {})).unwrap_err();
        let mut top = Command::new(binary());
        top.args(["top", "--once", "--by", "caller", "--server", &bench.served.at.admin.to_string()]);
        let lines = String::from_utf8(top.output().unwrap().stdout).unwrap();
        // Rates since the report before, which another request may have caused.
        let rate = |name: &str, column: usize| -> f64 {
            let line = lines.lines().find(|line| line.ends_with(&format!("\t{name}"))).expect("a line of the caller");
            line.split('\t').nth(column).unwrap().parse().unwrap_or_default()
        };
        let (peeks, unlisted) = ([2, 3].map(|at| rate("peeks", at)), [2, 3].map(|at| rate("(unlisted)", at)));
        (0.0 < peeks[0] && peeks[0] < peeks[1] && 0.0 < unlisted[0] && unlisted[0] == unlisted[1]).then_some(lines)
    });
    let kinds = lines.lines().map(|line| line.split('\t').nth(1).unwrap());
    assert_eq!(kinds.filter(|kind| *kind != "caller").collect::<Vec<_>>(), ["server"], "{lines}");
    assert_eq!(lines.lines().count(), 1 + 6 + 2, "each caller, (others) and (unlisted): {lines}");
}

#[test]
fn health_needs_no_caller() {
    let bench = Bench::start("callers: []", &[]);
    let status = runtime().block_on(async {
        let channel = bench.connector("nobody").channel().await.expect("a connection");
        let refused = ask(channel.clone(), ann("a", 1, |_| {})).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        HealthClient::new(channel).check(HealthCheckRequest::default()).await
    });
    status.expect("health is answered");
    assert_eq!(http::get(bench.served.at.http, "/readyz").unwrap().status, 200);
}

#[test]
fn a_changed_file_is_in_force_on_open_connections_and_a_wrong_one_is_not() {
    const FIRST: &str = "callers: [{name: first, listeners: [charges], domains: [a], may: [charge]}]";
    let bench = Bench::start(FIRST, &[]);
    let runtime = runtime();
    let connector = bench.connector("charges");
    let channel = runtime.block_on(connector.channel()).expect("a connection");
    let may = |channel: &tonic::transport::Channel| {
        let answer = runtime.block_on(ask(channel.clone(), ann("a", 1, |_| {})));
        answer.map(drop).map_err(|status| status.message().to_owned())
    };
    let refused = || bench.served.metric("weir_input_refused{input=\"callers\"}").unwrap();
    let shown = |address| -> Value { serde_json::from_str(&http::get(address, "/readyz").unwrap().body).unwrap() };
    assert_eq!((may(&channel), refused()), (Ok(()), 0));
    bench.replace(&FIRST.replace("charge]", "peek]").replace("first", "second"));
    let lacks = "the caller second lacks the right \"charge\" (nothing was charged)".to_owned();
    until("the new rights", PATIENCE, || (may(&channel) == Err(lacks.clone())).then_some(()));
    for wrong in [&FIRST[..40], "", "callers: [{name: x}]", &"- {}\n".repeat(100_000)] {
        bench.replace(wrong);
        until("the gauge", PATIENCE, || (refused() == 1).then_some(()));
        assert_eq!(may(&channel), Err(lacks.clone()), "{wrong:.80}");
        assert!(shown(bench.served.at.http)["callers"]["problem_count"].as_u64() > Some(0), "{wrong:.80}");
        assert_eq!(shown(bench.served.at.http)["callers"]["problems"], Value::Null, "a text can quote the file");
        let problem = shown(bench.served.at.admin)["callers"]["problems"][0].to_string();
        assert!(problem.contains("callers.yaml"), "{problem}");
        let checked = Command::new(binary()).args(["check", "--server", &bench.served.at.admin.to_string()]).output();
        let checked = checked.expect("weir runs");
        let error = String::from_utf8(checked.stderr).unwrap();
        assert!(checked.status.code() == Some(1) && error.contains("callers.yaml"), "{error}");
        bench.replace(&FIRST.replace("charge]", "peek]").replace("first", "second"));
        until("the gauge to fall", PATIENCE, || (refused() == 0).then_some(()));
        assert_eq!(shown(bench.served.at.admin)["callers"], json!({"problem_count": 0, "problems": []}));
    }
    fs::remove_file(bench.directory.path().join("callers.yaml")).unwrap();
    until("the gauge", PATIENCE, || (refused() == 1).then_some(()));
    assert_eq!(may(&channel), Err(lacks));
    bench.replace(FIRST);
    until("the first rights", PATIENCE, || (may(&channel) == Ok(())).then_some(()));
    assert_eq!(connector.count(), 1, "the connection stays open");
}
