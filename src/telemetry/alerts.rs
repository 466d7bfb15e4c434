//! Alerts: a key has used a share of its limit.
//!
//! The decision that crosses a share makes an [`Alert`] and puts it into a bounded queue. A task on another runtime logs it and
//! passes it to the webhook (alerts/webhook.rs). The id of a crossing is the same on all replicas and in each report.
//! Not here: which decision crosses a share (the engine), and the counters by rule (metrics/alerts.rs).

pub mod alert;
mod message;
pub mod signature;
pub mod webhook;

use std::future::Future;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use weir_engine::observer::{Crossed, LimitOf};
use weir_settings::ShownValues;

use self::alert::Alert;
use self::webhook::Outbox;
use super::metrics::registry::Number;

/// The most alerts that wait to be logged.
pub const ALERTS_WAITING_MAX: usize = 1_024;
/// The most crossings that a replica stores as reported. Beyond that, a new one replaces another.
pub const REPORTED_MAX: usize = 16_384;

#[derive(Debug)]
pub struct Alerts {
    values: ShownValues,
    /// The first bytes of the reported ids. They also select the index. 0 is empty.
    reported: OnceLock<Box<[AtomicU64]>>,
    sender: mpsc::Sender<Alert>,
    receiver: Mutex<Option<mpsc::Receiver<Alert>>>,
    /// Alerts that were neither logged nor sent, because too many waited.
    dropped: Number,
}

impl Alerts {
    /// No alerts yet. `values` determines how values of descriptors are printed.
    pub(super) fn new(values: ShownValues, dropped: Number) -> Self {
        let (sender, receiver) = mpsc::channel(ALERTS_WAITING_MAX);
        let receiver = Mutex::new(Some(receiver));
        Self { values, reported: OnceLock::new(), sender, receiver, dropped }
    }

    /// Reports a crossing of a rule's limit. Returns whether it is new to this replica. Never waits.
    pub(super) fn report(&self, crossed: &Crossed<'_>) -> bool {
        let LimitOf::Rule(rule, _) = crossed.limit else { return false };
        let id = alert::id(&rule.path, crossed);
        if !self.is_new(&id) {
            return false;
        }
        let alert = Alert::new(&id, rule, crossed, self.values);
        if let Err(error) = self.sender.try_send(alert) {
            self.dropped.add(1);
            let id = error.into_inner().id;
            tracing::warn!(id, "alert dropped: too many alerts are waiting");
        }
        true
    }

    /// The alerts, for the one task that handles them. None on the second call.
    #[must_use]
    pub fn take(&self) -> Option<mpsc::Receiver<Alert>> {
        self.receiver.lock().take()
    }

    fn is_new(&self, id: &[u8; 32]) -> bool {
        let reported = self.reported.get_or_init(|| (0..REPORTED_MAX).map(|_| AtomicU64::new(0)).collect());
        let mut start = [0; 8];
        start.copy_from_slice(&id[..8]);
        let start = u64::from_be_bytes(start).max(1);
        let place = usize::try_from(start % reported.len() as u64).unwrap_or_default();
        // If two threads report the same crossing at once, only one gets true.
        reported[place].swap(start, Relaxed) != start
    }
}

/// Logs alerts, and puts them into the outbox of the webhook if there is one. When `stop` ends, handles the waiting
/// alerts, and returns.
///
/// # Errors
/// None; the type is that of a supervised task.
pub async fn follow(
    mut alerts: mpsc::Receiver<Alert>,
    outbox: Option<Outbox>,
    stop: impl Future<Output = ()>,
) -> Result<(), String> {
    let take = |alert: Alert| {
        alert.log();
        if let Some(outbox) = &outbox {
            outbox.put(alert);
        }
    };
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(alert) = alerts.recv() => take(alert),
        }
    }
    while let Ok(alert) = alerts.try_recv() {
        take(alert);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use weir_engine::algorithm::CountedWindow;
    use weir_engine::charge::Origin;
    use weir_engine::policy::{DomainSpec, NodeSpec, RuleKind, RuleSpec};
    use weir_engine::{Algorithm, Anchor, Charge, Denomination, Limit, Operation, PolicySet, Role, Unit};

    use super::*;

    const WINDOW: CountedWindow = CountedWindow { start: 1_999_998_000_000_000, end: 2_000_001_600_000_000, count: 8 };

    fn policies(requests: u32) -> PolicySet {
        let limits = vec![Limit::per_unit(requests, Unit::Hour)];
        let rule = Some(RuleSpec::of(RuleKind::Limits(limits)));
        let descriptors = vec![NodeSpec { key: "user".to_owned(), rule, ..NodeSpec::default() }];
        let domain = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors };
        PolicySet::compile(vec![domain]).unwrap()
    }

    fn report(alerts: &Alerts, policies: &PolicySet, key: &str, share: u8, window: CountedWindow) -> bool {
        let rule = &policies.rules()[0];
        let (limit, operation) = (&rule.limits[0], Operation::Consume(1));
        let origin = Origin { shown_role: Role::Shadow, ..Origin::NONE };
        let charge = Charge { origin, ..Charge::alone(key, limit, operation) };
        let limit = LimitOf::Rule(rule, 0);
        alerts.report(&Crossed { limit, charge: &charge, share, window, at: 2_000_000_000_000_000 })
    }

    fn taken(alerts: &Alerts) -> Vec<Alert> {
        let mut receiver = alerts.take().expect("the first time");
        std::iter::from_fn(|| receiver.try_recv().ok()).collect()
    }

    #[test]
    fn a_crossing_is_reported_once_with_an_id_of_its_own() {
        let (alerts, ten) = (Alerts::new(ShownValues::Hidden, Number::default()), policies(10));
        let ann = "w1:{shop|user=ann}f3600s";
        assert!(report(&alerts, &ten, ann, 80, WINDOW));
        assert!(!report(&alerts, &ten, ann, 80, CountedWindow { count: 9, ..WINDOW }));
        let others = [
            report(&alerts, &ten, ann, 100, WINDOW),
            report(&alerts, &ten, "w1:{shop|user=bob}f3600s", 80, WINDOW),
            report(&alerts, &ten, ann, 80, CountedWindow { start: WINDOW.end, ..WINDOW }),
            report(&alerts, &policies(11), ann, 80, WINDOW),
        ];
        assert_eq!(others, [true; 4]);
        let taken = taken(&alerts);
        // sha256 of the version, the path and the key, each after its length, the hits, the start and the share.
        assert_eq!(taken[0].id, "786695a4f61132beffd684f66a5a6386edbeb216c0fdf4a8412a36238af5f464");
        assert_eq!((&*taken[0].descriptor, taken[0].role, taken[0].used), ("user=*", "shadow", 8));
        let ids: std::collections::BTreeSet<&str> = taken.iter().map(|alert| &*alert.id).collect();
        assert_eq!((taken.len(), ids.len()), (5, 5));
        let replica = Alerts::new(ShownValues::Shown, Number::default());
        assert!(report(&replica, &ten, ann, 80, WINDOW));
        assert_eq!(self::taken(&replica)[0].id, taken[0].id);
    }

    #[test]
    fn an_alert_of_a_limit_with_an_amount_has_it() {
        let algorithm = Algorithm::FixedWindow { anchor: Anchor::FirstHit };
        let mut limit = Limit::new(10_000_000_000_000, Unit::Day.window(), algorithm).unwrap();
        limit.amount = Denomination::new("usd", 1_000_000).ok().map(Into::into);
        let rule = Some(RuleSpec::of(RuleKind::Limits(vec![limit])));
        let descriptors = vec![NodeSpec { key: "user".to_owned(), rule, ..NodeSpec::default() }];
        let domain = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors };
        let (alerts, dollars) =
            (Alerts::new(ShownValues::Shown, Number::default()), PolicySet::compile(vec![domain]).unwrap());
        let window = CountedWindow { count: 8_000_000_500_000, ..WINDOW };
        assert!(report(&alerts, &dollars, "w1:{shop|user=ann}h86400s", 80, window));
        let body: serde_json::Value = serde_json::from_str(&message::body(&taken(&alerts)[0])).unwrap();
        let data = &body["data"];
        assert_eq!((&data["used"], &data["requests"]), (&8_000_000_500_000_u64.into(), &10_000_000_000_000_u64.into()));
        assert_eq!(data["amount"], serde_json::json!({ "used": "8000000.50 usd", "requests": "10000000.00 usd" }));
    }

    /// Each alert, and each message to the webhook, kept the whole path: 50 KB for each alert that waited.
    #[test]
    fn an_alert_of_a_rule_with_long_values_is_small() {
        let rule = Some(RuleSpec::of(RuleKind::Limits(vec![Limit::per_unit(10, Unit::Hour)])));
        let mut node = NodeSpec { key: "user".to_owned(), rule, ..NodeSpec::default() };
        for level in 0..12 {
            let descriptors = vec![node];
            node = NodeSpec { key: format!("{level}{}", "\u{e9}".repeat(2_000)), descriptors, ..NodeSpec::default() };
        }
        let domain = DomainSpec { name: "shop".into(), mode: None, on_error: None, descriptors: vec![node] };
        let (alerts, long) =
            (Alerts::new(ShownValues::Shown, Number::default()), PolicySet::compile(vec![domain]).unwrap());
        assert!(long.rules()[0].path.len() > 48_000);
        // The longest key of a state: a longer one has a hash in it.
        let key = format!("w1:{{shop|user={}}}f3600s", "%00".repeat(80));
        for share in [80, 100] {
            assert!(report(&alerts, &long, &key, share, WINDOW));
        }
        for alert in taken(&alerts) {
            assert!(alert.rule.ends_with('\u{2026}') && alert.descriptor.starts_with("user="), "{alert:?}");
            assert!(message::body(&alert).len() < 4_096, "{}", message::body(&alert));
        }
    }

    #[test]
    fn any_number_of_crossings_has_bounded_room() {
        const CROSSINGS: usize = 2 * REPORTED_MAX;
        let (alerts, ten) = (Alerts::new(ShownValues::Shown, Number::default()), policies(10));
        for number in 0..CROSSINGS {
            assert!(report(&alerts, &ten, &format!("w1:{{shop|user={number}}}f3600s"), 80, WINDOW));
        }
        assert_eq!(alerts.dropped.get(), (CROSSINGS - ALERTS_WAITING_MAX) as u64);
        assert_eq!(taken(&alerts).len(), ALERTS_WAITING_MAX);
        assert!(alerts.take().is_none());
        assert_eq!(alerts.reported.get().map(|reported| reported.len()), Some(REPORTED_MAX));
    }
}
