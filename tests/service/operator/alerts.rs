//! Alerts about the use of limits: in the log, in the metrics, and at a webhook.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::support::ads::secured;
use crate::support::authority::Authority;
use crate::support::process::{LogLine, PolicyDirectory, Weir};
use crate::support::redis::RedisServer;
use crate::support::rls::{self, Client};
use crate::support::served::Served;
use crate::support::wait::{PATIENCE, until};
use crate::support::webhook::{Does, Webhook};

/// Windows from the first hit do not turn while a test runs.
const POLICY: &str = "\
domain: shop
descriptors:
  - key: user
    rate_limit: {name: monthly, rate: 10/month, anchor: first_hit, alert_at: [80, 100]}
  - key: once
    rate_limit: {rate: 1/day, anchor: first_hit, alert_at: [100]}
  - key: plain
    rate_limit: {rate: 1/day, anchor: first_hit}
";

fn start(webhook: &Webhook, settings: &[&str]) -> Served {
    let own = webhook.settings();
    Served::start(POLICY, &[&own.each_ref().map(String::as_str)[..], settings].concat())
}

fn charge(client: &mut Client, key: &str, value: &str, hits: u32) -> bool {
    let mut request = rls::request("shop", &[(key, value)]);
    request.hits_addend = hits;
    rls::admits(&client.ask(request).unwrap())
}

fn alerts(served: &Served) -> u64 {
    served.metric("weir_alerts_total").unwrap_or_default()
}

#[test]
fn a_crossing_is_logged_counted_and_sent_once_and_signed() {
    let webhook = Webhook::start(Does::Take);
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let own = webhook.settings();
    let weir = Weir::start(&policies.path(), &["--set", &own[0], "--set", &own[1]]);
    let mut client = Client::connect(weir.grpc);
    for _ in 0..7 {
        assert!(charge(&mut client, "user", "ann", 1));
    }
    assert!(charge(&mut client, "plain", "ann", 1));
    // Denied, and charged nothing: 10 of 10 were not reached.
    assert!(!charge(&mut client, "user", "ann", 4));
    assert!(charge(&mut client, "user", "ann", 1));
    let first = webhook.taken(1).remove(0);
    assert!(first.is_signed(), "{first:?}");
    assert_eq!(first.target, "POST /hooks/weir?token=T0KEN");
    let sent: u64 = first.headers["webhook-timestamp"].parse().unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!(sent <= now && now - sent < 600, "{sent} {now}");
    assert_eq!(first.headers["content-type"], "application/json");
    let message: Value = serde_json::from_str(&first.body).unwrap();
    assert_eq!(message["type"], "weir.limit.share_crossed");
    let data = first.data();
    let times = [&data["window_start"], &message["timestamp"], &data["window_end"]];
    let times: Vec<&str> = times.into_iter().map(|time| time.as_str().unwrap()).collect();
    assert!(times.is_sorted() && times.iter().all(|time| time.ends_with('Z')), "{times:?}");
    let expected = json!({
        "id": first.id(),
        "domain": "shop",
        "rule": "user",
        "limit": "monthly",
        "role": "enforced",
        "descriptor": "user=ann",
        "entries": [{"key": "user", "value": "ann"}],
        "share": 80,
        "used": 8,
        "requests": 10,
        "window_start": data["window_start"],
        "window_end": data["window_end"],
    });
    assert_eq!(data, expected);
    assert!(first.id().len() == 64 && first.id().bytes().all(|byte| byte.is_ascii_hexdigit()), "{}", first.id());

    assert!(charge(&mut client, "user", "ann", 2));
    let second = webhook.taken(2).remove(1);
    assert_eq!((&second.data()["share"], &second.data()["used"]), (&json!(100), &json!(10)));
    assert_ne!(first.id(), second.id());
    let is_alert = |line: &LogLine| line.message() == Some("a key has used a share of its limit");
    let of = |share: u32, level: &str, id: &str| {
        weir.count_in_log(|line| {
            is_alert(line)
                && line.field("share") == Some(&json!(share))
                && line.level().is_some_and(|of| of.eq_ignore_ascii_case(level))
                && line.field("id") == Some(&json!(id))
                && line.field("key") == Some(&json!("user=ann"))
                && line.field("used").is_some_and(Value::is_number)
        })
    };
    until("the lines of both alerts", PATIENCE, || (weir.count_in_log(is_alert) >= 2).then_some(()));
    assert_eq!((of(80, "info", first.id()), of(100, "warn", second.id())), (1, 1), "{}", weir.written());
    assert_eq!(weir.count_in_log(is_alert), 2);
    assert!(!weir.written().contains("T0KEN"), "the path of a webhook can be a secret");
}

#[test]
fn a_count_that_steps_back_and_crosses_again_is_not_reported_again() {
    let webhook = Webhook::start(Does::Take);
    let served = start(&webhook, &[]);
    let mut client = Client::connect(served.at.grpc);
    assert!(charge(&mut client, "user", "ann", 9));
    for _ in 0..3 {
        let mut refund = rls::request("shop", &[("user", "ann")]);
        refund.descriptors[0].is_negative_hits = true;
        refund.hits_addend = 4;
        assert!(rls::admits(&client.ask(refund).unwrap()));
        assert!(charge(&mut client, "user", "ann", 4));
    }
    assert!(charge(&mut client, "user", "bob", 10));
    served.stop().unwrap();
    let mut shares: Vec<String> = webhook.deliveries().iter().map(|of| of.data()["descriptor"].to_string()).collect();
    shares.sort_unstable();
    assert_eq!(shares, ["\"user=ann\"", "\"user=bob\"", "\"user=bob\""]);
}

#[test]
fn what_the_webhook_does_not_take_is_sent_again_with_the_same_id() {
    let webhook = Webhook::start(Does::Take);
    webhook.plan(&[Does::Answer(500), Does::Answer(302), Does::Nothing], Does::Take);
    let served = start(&webhook, &["alerts.webhook_timeout=300ms"]);
    assert!(charge(&mut Client::connect(served.at.grpc), "once", "ann", 1));
    webhook.taken(1);
    let deliveries = webhook.deliveries();
    assert_eq!(deliveries.len(), 4);
    for delivery in &deliveries {
        assert!(delivery.is_signed(), "{delivery:?}");
        // A redirect is a failure, and is not followed.
        assert_eq!(
            (delivery.id(), &delivery.body, &delivery.target),
            (deliveries[0].id(), &deliveries[0].body, &deliveries[0].target)
        );
    }
    until("the counters", PATIENCE, || {
        (served.metric("weir_alert_webhook_alerts_total{result=\"delivered\"}") == Some(1)).then_some(())
    });
    assert_eq!(served.metric("weir_alert_webhook_failures_total"), Some(3));
    assert_eq!(served.metric("weir_alert_webhook_waiting"), Some(0));
}

#[test]
fn an_alert_is_given_up_after_its_attempts_and_an_endless_answer_is_not_read() {
    let webhook = Webhook::start(Does::Flood);
    webhook.plan(&[Does::Answer(500), Does::Close], Does::Flood);
    let served = start(&webhook, &["alerts.webhook_attempts=2"]);
    let mut client = Client::connect(served.at.grpc);
    assert!(charge(&mut client, "once", "ann", 1));
    let result = |result: &str| served.metric(&format!("weir_alert_webhook_alerts_total{{result=\"{result}\"}}"));
    until("the alert to be given up", PATIENCE, || (result("given_up") == Some(1)).then_some(()));
    assert!(charge(&mut client, "once", "bob", 1));
    until("the other to be delivered", PATIENCE, || (result("delivered") == Some(1)).then_some(()));
    assert_eq!(served.metric("weir_alert_webhook_failures_total"), Some(2));
    assert_eq!(webhook.deliveries().len(), 3);
}

#[test]
fn a_webhook_that_hangs_holds_a_bounded_queue_and_neither_a_decision_nor_the_end() {
    const KEYS: u64 = 100;
    let webhook = Webhook::start(Does::Nothing);
    let served = start(&webhook, &["alerts.webhook_queue=5", "alerts.webhook_timeout=60s"]);
    let mut client = Client::connect(served.at.grpc);
    for number in 0..KEYS {
        assert!(charge(&mut client, "once", &number.to_string(), 1));
    }
    assert_eq!(alerts(&served), KEYS);
    // Four are under way, five wait, and the others are dropped.
    let dropped = || served.metric("weir_alert_webhook_alerts_total{result=\"dropped\"}").unwrap();
    until("the rest to be dropped", PATIENCE, || (dropped() >= KEYS - 9).then_some(()));
    until("four requests", PATIENCE, || (webhook.deliveries().len() >= 4).then_some(()));
    let waiting = served.metric("weir_alert_webhook_waiting").unwrap();
    assert!(waiting <= 9 && waiting + dropped() == KEYS, "{waiting} wait, {} were dropped", dropped());
    assert_eq!(webhook.deliveries().len(), 4);
    served.stop().unwrap();
}

#[test]
fn alerts_that_are_refused_keep_no_others_from_being_sent() {
    const SLOTS: usize = 4;
    let webhook = Webhook::start(Does::Refuse("bad"));
    let served = start(&webhook, &[]);
    let mut client = Client::connect(served.at.grpc);
    for number in 0..2 * SLOTS {
        assert!(charge(&mut client, "once", &format!("bad{number}"), 1));
    }
    until("all to be refused", PATIENCE, || (webhook.deliveries().len() >= 2 * SLOTS).then_some(()));
    assert!(charge(&mut client, "once", "good", 1));
    assert_eq!(webhook.taken(1)[0].data()["descriptor"], "once=good");
    assert_eq!(served.metric("weir_alert_webhook_alerts_total{result=\"given_up\"}"), Some(0), "they are sent again");
}

#[test]
fn a_receiver_that_sends_100_continue_without_end_costs_no_core() {
    let webhook = Webhook::start(Does::Continue);
    let served = start(&webhook, &["alerts.webhook_timeout=60s", "alerts.webhook_attempts=2"]);
    assert!(charge(&mut Client::connect(served.at.grpc), "once", "ann", 1));
    // The bound on the answer ends an attempt, and not the time.
    until("the alert to be given up", PATIENCE, || {
        (served.metric("weir_alert_webhook_alerts_total{result=\"given_up\"}") == Some(1)).then_some(())
    });
    assert_eq!(webhook.deliveries().len(), 2);
}

#[test]
fn what_waits_is_sent_when_weir_ends() {
    let webhook = Webhook::start(Does::Answer(503));
    let served = start(&webhook, &[]);
    let mut client = Client::connect(served.at.grpc);
    for number in 0..20 {
        assert!(charge(&mut client, "once", &number.to_string(), 1));
    }
    until("failures", PATIENCE, || (webhook.deliveries().len() >= 4).then_some(()));
    webhook.plan(&[], Does::Take);
    served.stop().unwrap();
    let ids =
        webhook.deliveries().iter().filter(|it| it.done == Does::Take).map(|it| it.id().to_owned()).collect::<Vec<_>>();
    let distinct: std::collections::BTreeSet<&String> = ids.iter().collect();
    assert_eq!((ids.len(), distinct.len()), (20, 20));
}

#[test]
fn a_webhook_by_https_is_checked_against_the_authority() {
    let (authority, other) = (Authority::new("weir test"), Authority::new("another"));
    let server = authority.server("server", &["localhost"]);
    let webhook = Webhook::start_tls(Does::Take, &secured(&server, None));
    let ca = format!("alerts.webhook_ca_file={}", authority.file().display());
    let served = start(&webhook, &[&ca, "admin.values=hidden"]);
    assert!(charge(&mut Client::connect(served.at.grpc), "once", "ann", 1));
    let taken = webhook.taken(1).remove(0);
    assert!(taken.is_signed(), "{taken:?}");
    assert_eq!(taken.data()["descriptor"], "once=*");
    assert!(!taken.body.contains("ann"), "{}", taken.body);

    let ca = format!("alerts.webhook_ca_file={}", other.file().display());
    let served = start(&webhook, &[&ca, "alerts.webhook_attempts=1"]);
    assert!(charge(&mut Client::connect(served.at.grpc), "once", "ann", 1));
    until("the alert to be given up", PATIENCE, || {
        (served.metric("weir_alert_webhook_alerts_total{result=\"given_up\"}") == Some(1)).then_some(())
    });
    assert_eq!(webhook.deliveries().len(), 1);
}

#[test]
fn a_secret_that_cannot_be_used_ends_the_start() {
    let webhook = Webhook::start(Does::Take);
    let policies = PolicyDirectory::with_file("shop.yaml", POLICY);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hunter2").unwrap();
    let secret = format!("alerts.webhook_secret_file={}", file.path().display());
    let own = webhook.settings();
    let failed = Weir::try_start(&policies.path(), &["--set", &own[0], "--set", &secret], &[]);
    let Err(text) = failed else { panic!("it starts") };
    assert!(text.contains("alerts.webhook_secret_file") && text.contains("begins with whsec_"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

/// Many clients of three replicas on one Redis: each key, window and share is reported exactly once over all.
#[test]
fn three_replicas_report_each_crossing_once() {
    const REPLICAS: usize = 3;
    const CLIENTS: usize = 24;
    const KEYS: usize = 20;
    // Together 72 hits of each key of 40 in a window.
    const POLICY: &str = "\
domain: shop
charging: CHARGING
descriptors:
  - key: user
    rate_limits:
      - {name: watched, rate: 40/year, anchor: first_hit, alert_at: [1, 25, 50, 80, 100]}
      - {name: other, rate: 60/year, calendar: true, alert_at: [50]}
";
    for charging in ["atomic", "independent"] {
        let redis = RedisServer::start();
        let webhook = Webhook::start(Does::Take);
        let (url, own) = (format!("redis.url={}", redis.url()), webhook.settings());
        let settings = ["store=redis", &url, "redis.timeout=5s", &own[0], &own[1]];
        let policy = POLICY.replace("CHARGING", charging);
        let replicas: Vec<Served> = (0..REPLICAS).map(|_| Served::start(&policy, &settings)).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut clients = tokio::task::JoinSet::new();
            for client in 0..CLIENTS {
                let channel = rls::channel(replicas[client % REPLICAS].at.grpc).await;
                clients.spawn(async move {
                    for call in 0..KEYS * 2 {
                        let mut request = rls::request("shop", &[("user", &format!("u{}", call % KEYS))]);
                        // One hit the first time, two the second.
                        request.hits_addend = 1 + u32::from(call >= KEYS);
                        rls::ask(channel.clone(), request).await.expect("an answer");
                    }
                });
            }
            while let Some(ended) = clients.join_next().await {
                ended.unwrap();
            }
        });
        let expected = KEYS * 6;
        let counted: u64 = replicas.iter().map(alerts).sum();
        assert_eq!(counted, expected as u64, "{charging}");
        let reporting = replicas.iter().filter(|replica| alerts(replica) > 0).count();
        assert_eq!(reporting, REPLICAS, "a test of one replica");
        // Their end sends what waits.
        replicas.into_iter().for_each(|replica| replica.stop().unwrap());
        let mut reports: BTreeMap<String, usize> = BTreeMap::new();
        let mut ids = std::collections::BTreeSet::new();
        for delivery in webhook.deliveries() {
            let data = delivery.data();
            *reports.entry(format!("{} {} {}", data["descriptor"], data["limit"], data["share"])).or_default() += 1;
            ids.insert(delivery.id().to_owned());
            assert!(delivery.is_signed());
        }
        assert_eq!((reports.len(), ids.len()), (expected, expected), "{charging}");
        assert!(reports.values().all(|times| *times == 1), "{charging}: {reports:?}");
    }
}
