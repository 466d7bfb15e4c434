//! What weir serves at the ports of envoyproxy/ratelimit.

use super::started::{Environment, Ratelimit, Runtime};
use crate::support::http;

const SHOP: [(&str, &str); 1] =
    [("shop.yaml", "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: 2}\n")];

fn start(more: &[(&str, &str)]) -> (Runtime, Ratelimit) {
    let runtime = Runtime::with(SHOP);
    let environment = more.iter().fold(runtime.variables(), |all: Environment, (name, text)| all.with(name, text));
    let started = Ratelimit::try_start(&environment).unwrap_or_else(|problem| panic!("{problem}"));
    (runtime, started)
}

#[test]
fn the_http_port_has_health_and_decisions() {
    let (_runtime, started) = start(&[]);
    let health = http::get(started.http, "/healthcheck").unwrap();
    assert_eq!((health.status, health.body.as_str()), (200, "OK"));
    let ask = |body: &str| http::post_json(started.http, "/json", body).unwrap().status;
    let good = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
    assert_eq!([ask(good), ask(good), ask(good)], [200, 200, 429]);
    assert_eq!([ask("{"), ask(r#"{"domain": "shop", "surprise": 1}"#), ask("")], [400, 400, 400]);
}

#[test]
fn the_debug_port_shows_and_changes_nothing() {
    let (_runtime, started) = start(&[]);
    let get = |path: &str| http::get(started.debug, path).unwrap();
    let index = get("/");
    assert_eq!(index.status, 200);
    for line in index.body.lines() {
        let (path, shows) = line.split_once(": ").expect("a path and what it shows");
        assert!(!shows.is_empty(), "{line}");
        assert_eq!(get(path).status, 200, "{path}");
    }
    assert!(index.body.contains("/rlconfig: ") && index.body.contains("/metrics: "), "{}", index.body);
    assert_eq!(
        get("/rlconfig").body,
        "shop.user: unit=HOUR requests_per_unit=2, shadow_mode: false, quota_mode: false\n"
    );
    assert!(get("/metrics").body.contains("weir_build_info"), "{}", get("/metrics").body);
    for path in ["/policies", "/state?domain=shop&descriptor=user=ann", "/readyz", "/debug/pprof/"] {
        assert_eq!(get(path).status, 404, "{path}");
    }
    let reset = http::request(started.debug, "DELETE", "/state?domain=shop&descriptor=user=ann", &[], "").unwrap();
    assert_eq!(reset.status, 404);
    // Prometheus asks by the name of a service.
    let stream = http::connect(started.debug).unwrap();
    let head = "GET /metrics HTTP/1.1\r\nhost: ratelimit.mesh.svc:6070\r\nconnection: close\r\n\r\n";
    std::io::Write::write_all(&mut &stream, head.as_bytes()).unwrap();
    assert_eq!(http::read_answer(stream).unwrap().status, 200);
}

#[test]
fn prometheus_has_its_own_port_and_path() {
    let (_runtime, mut started) =
        start(&[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "127.0.0.1:0"), ("PROMETHEUS_PATH", "/prom")]);
    let address = started.process.address_of("metrics").unwrap();
    let metrics = http::get(address, "/prom").unwrap();
    assert_eq!(metrics.status, 200);
    assert!(metrics.body.contains("weir_build_info"), "{}", metrics.body);
    assert_eq!(http::get(address, "/metrics").unwrap().status, 404);
}

#[tokio::test]
async fn grpc_health_is_known_by_their_name() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;
    let (_runtime, started) = tokio::task::spawn_blocking(|| start(&[])).await.unwrap();
    let channel = crate::support::rls::channel(started.grpc).await;
    for service in ["", "ratelimit"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{service:?}");
    }
}
