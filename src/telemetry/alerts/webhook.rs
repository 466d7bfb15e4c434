//! Delivers alerts to a webhook, each as one signed POST of Standard Webhooks.
//!
//! Alerts wait in a bounded queue, and a few are delivered at a time. An attempt fails if its
//! answer is not 2xx, or does not arrive in time. The alert is then sent again after a pause, with the same id, until its
//! attempts or its time are used up.
//! A pausing alert does not delay others. Each attempt has its own connection, follows no redirect and reads no body of
//! an answer. Not here: the content of the message (message.rs), and its signature (signature.rs).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::Request;
use hyper::header::{CONTENT_TYPE, USER_AGENT};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::codegen::http::Uri;
use weir_tls::Tls;
use weir_tls::backoff::{doubled, jittered};
use weir_tls::causes::innermost;
use weir_tls::dial::{Dial, NoResponse, USER_AGENT as WEIR};
use weir_tls::files::{self, OneAtATime};

use super::alert::Alert;
use super::message;
use super::signature::Secret;
use crate::complaint::Complaint;
use crate::metrics::registry::Number;

/// How many alerts are sent at a time.
pub const DELIVERIES_MAX: usize = 4;
/// How long weir delivers waiting alerts during shutdown.
pub const DRAIN_MAX: Duration = Duration::from_secs(5);
/// The largest head of an answer, in bytes, including each 100 Continue before it.
const ANSWER_BYTES_MAX: usize = 16 * 1_024;
/// The pause after the first failure; it doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The shortest time between two log lines about a webhook that accepts nothing.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Options {
    /// The URL, `http` or `https`. It can contain a secret, so only its host is logged.
    pub url: Uri,
    /// The file of the secret. Each attempt reads it, so you can replace it.
    pub secret_file: PathBuf,
    /// TLS, for a URL with `https`.
    pub tls: Option<Arc<Tls>>,
    pub timeout: Duration,
    pub attempts: u32,
    /// For how long after its first attempt an alert is sent again.
    pub retry_for: Duration,
    /// How many alerts can wait to be sent, and how many can wait for another attempt.
    pub queue: usize,
}

#[derive(Clone, Debug)]
pub struct Deliveries {
    pub delivered: Number,
    /// Alerts that were given up: attempts or time were used up, too many were pausing, or weir ended.
    pub given_up: Number,
    /// Alerts that did not fit into the queue.
    pub dropped: Number,
    /// Failed attempts.
    pub failed: Number,
    pub waiting: Number,
}

/// Receives alerts for the webhook. After it is dropped, the webhook delivers waiting alerts for a bounded time.
#[derive(Debug)]
pub struct Outbox {
    sender: mpsc::Sender<Alert>,
    deliveries: Deliveries,
    /// Dropped with the outbox, which ends all pauses.
    _open: watch::Sender<()>,
}

impl Outbox {
    /// Puts an alert into the queue. Drops it if the queue is full. Never waits.
    pub(super) fn put(&self, alert: Alert) {
        self.deliveries.waiting.add(1);
        if let Err(error) = self.sender.try_send(alert) {
            self.deliveries.waiting.take_one();
            self.deliveries.dropped.add(1);
            let id = error.into_inner().id;
            tracing::warn!(id, "alert not sent: too many alerts are waiting for the webhook");
        }
    }
}

/// Delivers the alerts of an [`Outbox`].
#[derive(Debug)]
pub struct Webhook {
    options: Options,
    queue: mpsc::Receiver<Alert>,
    sender: Sender,
    is_open: watch::Receiver<()>,
}

impl Webhook {
    /// A webhook and its outbox. `secret` is the current content of the file.
    ///
    /// # Panics
    /// With a queue of 0.
    pub fn new(options: Options, secret: Secret, deliveries: Deliveries) -> (Outbox, Self) {
        let (sender, queue) = mpsc::channel(options.queue);
        let (open, is_open) = watch::channel(());
        let sending = Sender {
            deliveries: deliveries.clone(),
            secret: Mutex::new(secret),
            gate: OneAtATime::default(),
            complaint: Mutex::new(Complaint::new(COMPLAIN_EVERY)),
        };
        (Outbox { sender, deliveries, _open: open }, Self { options, queue, sender: sending, is_open })
    }

    /// Delivers alerts until the outbox is dropped, and then the waiting ones, for at most [`DRAIN_MAX`].
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub async fn run(self) -> Result<(), String> {
        let Self { options, mut queue, sender, is_open } = self;
        let deliver_all = async {
            let mut under_way = FuturesUnordered::new();
            let mut paused = Paused::new(options.queue);
            let mut ending = pin!(closed(is_open.clone()));
            let (mut is_more, mut is_ending) = (true, false);
            while is_more || !under_way.is_empty() || !paused.is_empty() {
                let has_room = under_way.len() < DELIVERIES_MAX;
                tokio::select! {
                    biased;
                    Some((delivery, result)) = under_way.next() => {
                        if let Some((due, delivery)) = sender.look(&options, delivery, result, is_ending)
                            && let Some(oldest) = paused.put(due, delivery)
                        {
                            sender.give_up(&oldest);
                        }
                    }
                    () = &mut ending, if !is_ending => {
                        is_ending = true;
                        paused.end();
                    }
                    // New alerts have priority over failed ones.
                    alert = queue.recv(), if is_more && has_room => match alert {
                        Some(alert) => under_way.push(sender.send(&options, Delivery::new(&alert))),
                        None => is_more = false,
                    },
                    delivery = paused.next(), if !paused.is_empty() && has_room => {
                        under_way.push(sender.send(&options, delivery));
                    }
                }
            }
        };
        let out_of_time = async {
            closed(is_open.clone()).await;
            sleep(DRAIN_MAX).await;
        };
        tokio::select! {
            () = deliver_all => {}
            () = out_of_time => {
                let lost = sender.deliveries.waiting.get();
                sender.deliveries.waiting.set(0);
                sender.deliveries.given_up.add(lost);
                tracing::warn!(lost, "shutdown ended before the webhook accepted all alerts");
            }
        }
        Ok(())
    }
}

/// Waits until the outbox is dropped.
async fn closed(mut is_open: watch::Receiver<()>) {
    while is_open.changed().await.is_ok() {}
}

#[derive(Debug)]
struct Delivery {
    id: String,
    body: String,
    /// The time of the first attempt.
    started: Instant,
    attempts: u32,
}

impl Delivery {
    fn new(alert: &Alert) -> Self {
        Self { id: alert.id.clone(), body: message::body(alert), started: Instant::now(), attempts: 0 }
    }
}

/// The alerts that wait for another attempt.
#[derive(Debug)]
struct Paused {
    /// By due time, then by order.
    waiting: BTreeMap<(Instant, u64), Delivery>,
    put: u64,
    max: usize,
    /// Whether weir is shutting down: then all are due.
    is_ending: bool,
}

impl Paused {
    const fn new(max: usize) -> Self {
        Self { waiting: BTreeMap::new(), put: 0, max, is_ending: false }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds an alert. If there is no space, returns the alert whose first attempt was earliest.
    fn put(&mut self, due: Instant, delivery: Delivery) -> Option<Delivery> {
        self.put += 1;
        self.waiting.insert((due, self.put), delivery);
        if self.waiting.len() <= self.max {
            return None;
        }
        let (&oldest, _) = self.waiting.iter().min_by_key(|(_, delivery)| delivery.started)?;
        self.waiting.remove(&oldest)
    }

    fn end(&mut self) {
        self.is_ending = true;
    }

    /// Waits until the next alert is due. Call it only while there is one.
    async fn next(&mut self) -> Delivery {
        let Some(first) = self.waiting.first_entry() else { return std::future::pending().await };
        if !self.is_ending {
            sleep_until(first.key().0).await;
        }
        first.remove()
    }
}

#[derive(Debug)]
struct Sender {
    deliveries: Deliveries,
    /// The last readable secret.
    secret: Mutex<Secret>,
    gate: OneAtATime,
    complaint: Mutex<Complaint>,
}

impl Sender {
    async fn send(&self, options: &Options, mut delivery: Delivery) -> (Delivery, Result<(), String>) {
        delivery.attempts += 1;
        let result = match timeout(options.timeout, self.attempt(options, &delivery.id, &delivery.body)).await {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {:?}", options.timeout)),
        };
        (delivery, result)
    }

    /// Handles the result of an attempt. Returns the alert and the time of the next attempt, if there is one.
    fn look(
        &self,
        options: &Options,
        delivery: Delivery,
        result: Result<(), String>,
        is_ending: bool,
    ) -> Option<(Instant, Delivery)> {
        let Err(reason) = result else {
            self.deliveries.waiting.take_one();
            self.deliveries.delivered.add(1);
            self.succeeded();
            return None;
        };
        self.failed(options, &reason);
        let pause = pause(delivery.attempts);
        let is_over = delivery.attempts >= options.attempts || delivery.started.elapsed() + pause > options.retry_for;
        // During shutdown, each alert has one more attempt, without a pause.
        if is_over || is_ending {
            self.give_up(&delivery);
            return None;
        }
        Some((Instant::now() + pause, delivery))
    }

    fn give_up(&self, delivery: &Delivery) {
        let Delivery { id, started, attempts, .. } = delivery;
        self.deliveries.waiting.take_one();
        self.deliveries.given_up.add(1);
        let after = started.elapsed();
        tracing::warn!(id, attempts, ?after, "alert given up: the webhook does not accept it");
    }

    async fn attempt(&self, options: &Options, id: &str, body: &str) -> Result<(), String> {
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let signature = self.secret(options).await.sign(id, timestamp, body);
        let path = options.url.path_and_query().map_or("/", |path| path.as_str());
        let request = Request::post(path)
            .header(USER_AGENT, WEIR)
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signature)
            .body(body.to_owned())
            .map_err(|error| error.to_string())?;
        let (tls, trouble) = (options.tls.clone(), Arc::default());
        let dial = Dial { tls, trouble, answer_bytes_max: ANSWER_BYTES_MAX };
        let answered = dial.send(&options.url, request).await.map_err(|error| match error {
            NoResponse::Connect(error) => format!("no connection: {error}"),
            NoResponse::Broken(error) => format!("no answer: {}", innermost(&error)),
        })?;
        let status = answered.response.status();
        if status.is_success() { Ok(()) } else { Err(format!("HTTP {status}")) }
    }

    /// The secret in the file, or the last good one.
    async fn secret(&self, options: &Options) -> Secret {
        let path = options.secret_file.clone();
        match files::off_the_runtime(&self.gate, move || Secret::read(&path)).await {
            Ok(secret) => *self.secret.lock() = secret,
            Err(reason) => {
                tracing::warn!(reason, "the secret of the webhook cannot be read; the last one stays in use");
            }
        }
        self.secret.lock().clone()
    }

    fn failed(&self, options: &Options, reason: &str) {
        self.deliveries.failed.add(1);
        if let Some(failed) = self.complaint.lock().failed(1) {
            let host = options.url.host().unwrap_or_default();
            tracing::warn!(host, failed, reason, "the webhook does not accept alerts");
        }
    }

    fn succeeded(&self) {
        if let Some(failed) = self.complaint.lock().ended() {
            tracing::info!(failed, "the webhook accepts alerts again");
        }
    }
}

/// The pause after this many failures of one alert. Up to half of it is cut at random, so that replicas do not retry at
/// the same time.
fn pause(failures: u32) -> Duration {
    jittered(doubled(PAUSE_FIRST, failures - 1, PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn alerts_that_pause_are_bounded_and_the_oldest_is_given_up() {
        const MAX: usize = 3;
        let (mut paused, begun) = (Paused::new(MAX), Instant::now());
        let delivery = |number: u32| Delivery {
            id: number.to_string(),
            body: String::new(),
            started: begun + Duration::from_secs(number.into()),
            attempts: 1,
        };
        // All are due. A later alert has waited longer.
        let due = |number: u32| begun - Duration::from_millis(number.into());
        for number in 0..10 {
            let given_up = paused.put(due(number), delivery(number));
            let expected = (number as usize).checked_sub(MAX).map(|number| number.to_string());
            assert_eq!(given_up.map(|delivery| delivery.id), expected);
        }
        for expected in ["9", "8", "7"] {
            assert_eq!(paused.next().await.id, expected);
        }
        assert!(paused.is_empty());
        assert!(paused.put(begun + Duration::from_secs(3_600), delivery(10)).is_none());
        let waits = tokio::time::timeout(Duration::ZERO, paused.next()).await;
        assert!(waits.is_err() && !paused.is_empty(), "it is not due");
        paused.end();
        assert_eq!(paused.next().await.id, "10", "at the end none waits");
    }

    #[test]
    fn pauses_double_up_to_a_minute() {
        for (failures, most) in [(1, 500), (2, 1_000), (3, 2_000), (7, 32_000), (8, 60_000), (9, 60_000), (99, 60_000)]
        {
            let most = Duration::from_millis(most);
            let pauses: Vec<Duration> = (0..100).map(|_| pause(failures)).collect();
            assert!(pauses.iter().all(|pause| (most / 2..=most).contains(pause)), "{failures}: {pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]), "{failures}");
        }
    }
}
