//! The configurations of docs/security.md with a real Envoy: mTLS from end to end, and which receipts a client can forge.

use serde_json::{Value, json};

use super::holds::{EXAMPLE, Model, left_of, on_redis};
use super::{ask_five_times, get, statuses};
use crate::support::authority::{Authority, Issued};
use crate::support::envoy::Envoy;
use crate::support::http;
use crate::support::process::{PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::served::metric;
use crate::support::wait::{PATIENCE, until};

const PAGE: &str = include_str!("../../../docs/security.md");
const POLICY: &str = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]\n";
/// The client of the page.
const CLIENT: &str = "spiffe://mesh/ns/edge/sa/envoy";

/// The block of YAML on the page that begins so.
fn block(begin: &str) -> &'static str {
    let blocks = PAGE.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks.into_iter().find(|block| block.starts_with(begin)).unwrap_or_else(|| panic!("no block {begin}"))
}

fn indented(block: &str, by: usize) -> String {
    block.lines().map(|line| format!("{:by$}{line}\n", "")).collect()
}

/// The `transport_socket` of the page with these files.
fn transport(authority: &Authority, client: &Issued) -> String {
    let path = |path: &std::path::Path| path.display().to_string();
    block("transport_socket:")
        .replace("/certs/tls.crt", &path(&client.certificate))
        .replace("/certs/tls.key", &path(&client.key))
        .replace("/certs/ca.crt", &path(&authority.file()))
}

fn weir_by_tls(policies: &PolicyDirectory, authority: &Authority, server: &Issued) -> Weir {
    let settings = [
        format!("listen.tls.cert_file={}", server.certificate.display()),
        format!("listen.tls.key_file={}", server.key.display()),
        format!("listen.tls.client_ca_file={}", authority.file().display()),
        format!("listen.tls.client_names={CLIENT}"),
    ];
    let arguments: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    Weir::start(&policies.path(), &arguments)
}

#[test]
fn envoy_asks_by_mtls_and_another_client_or_server_decides_nothing() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let weir = weir_by_tls(&policies, &ours, &ours.server("weir", &["weir.internal"]));
    let client = ours.client_named("envoy", &[], &[CLIENT]);
    let envoy = Envoy::start_with_transport(weir.grpc, &transport(&ours, &client));
    assert_eq!(statuses(&ask_five_times(&envoy, "ann")), [200, 200, 200, 429, 429]);

    let charged = || metric(weir.http, "weir_hits_total{domain=\"shop\"}");
    let before = charged();
    for other in [
        ours.client_named("other", &[], &["spiffe://mesh/ns/edge/sa/other"]),
        ours.client("nameless"),
        theirs.client_named("foreign", &[], &[CLIENT]),
    ] {
        let envoy = Envoy::start_with_transport(weir.grpc, &transport(&ours, &other));
        assert_eq!(get(&envoy, &[("x-user", "bob")]).status, 500, "{other:?}");
    }
    assert_eq!(charged(), before);
    // A server of the same authority with another name gets no request.
    let other = weir_by_tls(&policies, &ours, &ours.server("other-weir", &["other.internal"]));
    let envoy = Envoy::start_with_transport(other.grpc, &transport(&ours, &client));
    assert_eq!(get(&envoy, &[("x-user", "bob")]).status, 500);
    assert_eq!(metric(other.http, "weir_requests_total{result=\"ok\"}"), Some(0));
}

#[test]
fn a_receipt_of_a_header_can_be_forged_and_one_of_weirs_answer_cannot() {
    const PAID: u64 = 5_000;
    const PER_HOUR: u64 = 10_000;
    for (begin, is_forged) in [("- metadata:\n    descriptor_key: weir.receipt", false), ("- request_headers:", true)] {
        let redis = RedisServer::start();
        // The minute could end within the test: an hour in its place.
        let policies = PolicyDirectory::with_file("ai.yaml", &EXAMPLE.replace("10_000/min", "10_000/h"));
        let weir = on_redis(&policies, &redis, &[]);
        let model = Model::start();
        let envoy = Envoy::start_with_holds_of(&[weir.grpc], model.address, 2_000, |gateway| {
            let (head, rest) =
                gateway.split_once("                                    - metadata:\n                                        descriptor_key: weir.receipt").expect("the action");
            let (_, rest) = rest.split_once("                                  hits_addend:").expect("its end");
            format!("{head}{}                                  hits_addend:{rest}", indented(block(begin), 36))
        });
        // The client has paid 5,000. It knows the receipt of that, or makes one like it.
        let ask = |receipt: Option<&str>| {
            let mut entries = vec![json!({"key": "user", "value": "mallory"})];
            entries.extend(receipt.map(|receipt| json!({"key": "weir.receipt", "value": receipt})));
            let body = json!({"domain": "ai", "descriptors": [{"entries": entries, "hitsAddend": PAID}]});
            let answer = http::post_json(weir.http, "/json", &body.to_string()).unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
            serde_json::from_str::<Value>(&answer.body).unwrap()
        };
        let opened = ask(None);
        let receipt = opened["receipt"].as_str().expect("a receipt");
        ask(Some(receipt));
        assert_eq!(left_of(&weir, "ai", "mallory")[0], PER_HOUR - PAID);

        let headers = [("x-user", "mallory"), ("x-tokens", "137"), ("x-receipt", receipt)];
        assert_eq!(http::request(envoy.ingress, "POST", "/", &headers, "").unwrap().status, 200);
        // The hold of this request stays, and the one of the receipt comes back once more.
        let expected = if is_forged { PER_HOUR - PAID - 2_000 + PAID - 137 } else { PER_HOUR - PAID - 137 };
        until("the settle", PATIENCE, || (left_of(&weir, "ai", "mallory")[0] == expected).then_some(()));
    }
}
