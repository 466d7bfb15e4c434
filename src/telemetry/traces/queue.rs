//! Finished spans for a collector: a bounded queue that no decision waits for, and the task that empties it.
//!
//! Spans that do not fit, and batches that the collector does not accept, are dropped and counted. The task
//! takes spans at intervals and not one by one, so a decision that queues a span wakes no other thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::complaint::Complaint;
use crate::metrics::{Metrics, Number};

/// The timeout for sending the rest of the queue during shutdown.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// The shortest time between two log lines about a collector that accepts nothing.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

weir_engine::named! {
    /// Why spans were dropped.
    pub enum Dropped {
        QueueFull = "queue_full",
        /// The collector did not accept their batch.
        ExportFailed = "export_failed",
        /// weir ended before they were sent.
        Shutdown = "shutdown",
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Batches {
    /// The most waiting spans.
    pub queue: usize,
    pub batch_max: usize,
    /// How long spans wait for a full batch.
    pub delay: Duration,
    pub export_timeout: Duration,
}

#[derive(Debug)]
pub struct Spans {
    sender: SyncSender<Box<SpanData>>,
    /// How many spans wait. A span is counted before it is queued, so that the count never becomes negative.
    waiting: AtomicUsize,
    batch_max: usize,
    /// Notified when a whole batch waits.
    full_batch: Notify,
    /// Spans that the collector has accepted.
    exported: Number,
    dropped: [Number; Dropped::NAMES.len()],
}

/// The task at the other end of the queue.
#[derive(Debug)]
pub struct Exporting<E> {
    spans: Arc<Spans>,
    receiver: Receiver<Box<SpanData>>,
    batches: Batches,
    exporter: E,
    complaint: Complaint,
}

impl Spans {
    /// Both ends of an empty queue. Adds their numbers to the metrics.
    /// Panics when the metrics have them already.
    pub fn new<E: SpanExporter>(batches: Batches, exporter: E, metrics: &Metrics) -> (Arc<Self>, Exporting<E>) {
        let (sender, receiver) = sync_channel(batches.queue);
        let spans = Arc::new(Self {
            sender,
            waiting: AtomicUsize::new(0),
            batch_max: batches.batch_max,
            full_batch: Notify::new(),
            exported: metrics.number("weir_traces_spans_exported_total", &[]),
            dropped: metrics.each("weir_traces_spans_dropped_total", Dropped::NAMES),
        });
        let exporting =
            Exporting { spans: spans.clone(), receiver, batches, exporter, complaint: Complaint::new(COMPLAIN_EVERY) };
        (spans, exporting)
    }

    /// Queues a span. Drops it if the queue is full. Never waits.
    pub(super) fn push(&self, span: Box<SpanData>) {
        let waiting = self.waiting.fetch_add(1, Relaxed) + 1;
        if self.sender.try_send(span).is_err() {
            self.waiting.fetch_sub(1, Relaxed);
            self.drop_some(Dropped::QueueFull, 1);
        }
        // Even if this span did not fit: spans that were counted later may have filled the batch.
        if waiting == self.batch_max {
            self.full_batch.notify_one();
        }
    }

    fn drop_some(&self, why: Dropped, count: usize) {
        self.dropped[why as usize].add(count as u64);
    }
}

impl<E: SpanExporter> Exporting<E> {
    /// Sends batches until `stop` ends, then the rest for at most two seconds.
    ///
    /// # Errors
    /// None; the type is that of a supervised task.
    pub async fn run(mut self, stop: impl Future<Output = ()>) -> Result<(), String> {
        let mut stop = pin!(stop);
        let mut end: Option<Instant> = None;
        let spans = self.spans.clone();
        while end.is_none() {
            tokio::select! {
                () = &mut stop => end = Some(Instant::now() + FLUSH_MAX),
                () = spans.full_batch.notified() => {}
                () = sleep(self.batches.delay) => {}
            }
            loop {
                let batch = self.next_batch();
                if batch.is_empty() {
                    break;
                }
                let count = batch.len();
                let result = {
                    let mut exporting = pin!(timeout(self.batches.export_timeout, self.exporter.export(batch)));
                    if end.is_none() {
                        tokio::select! {
                            result = &mut exporting => Some(result),
                            () = &mut stop => {
                                let at = Instant::now() + FLUSH_MAX;
                                end = Some(at);
                                timeout_at(at, exporting).await.ok()
                            }
                        }
                    } else {
                        let at = end.unwrap_or_else(Instant::now);
                        timeout_at(at, exporting).await.ok()
                    }
                };
                match result {
                    Some(Ok(Ok(()))) => self.took(count),
                    Some(Ok(Err(error))) => self.failed(count, &error.to_string()),
                    Some(Err(_)) => self.failed(count, &format!("no answer within {:?}", self.batches.export_timeout)),
                    None => self.spans.drop_some(Dropped::Shutdown, count),
                }
                match end {
                    Some(end) if Instant::now() >= end => break,
                    None if self.spans.waiting.load(Relaxed) < self.batches.batch_max => break,
                    _ => {}
                }
            }
        }
        let left = self.receiver.try_iter().count();
        self.spans.drop_some(Dropped::Shutdown, left);
        let dropped = self.spans.dropped[Dropped::Shutdown as usize].get();
        if dropped > 0 {
            tracing::warn!(dropped, "spans dropped: the collector did not accept them before the shutdown ended");
        }
        Ok(())
    }

    fn next_batch(&mut self) -> Vec<SpanData> {
        let batch: Vec<SpanData> = self.receiver.try_iter().take(self.batches.batch_max).map(|span| *span).collect();
        self.spans.waiting.fetch_sub(batch.len(), Relaxed);
        batch
    }

    fn took(&mut self, count: usize) {
        self.spans.exported.add(count as u64);
        if let Some(dropped) = self.complaint.ended() {
            tracing::info!(dropped, "the collector accepts spans again");
        }
    }

    fn failed(&mut self, count: usize, reason: &str) {
        self.spans.drop_some(Dropped::ExportFailed, count);
        if let Some(dropped) = self.complaint.failed(count as u64) {
            tracing::warn!(dropped, reason, "the collector does not accept spans");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::SystemTime;

    use opentelemetry::InstrumentationScope;
    use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status};
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SpanEvents, SpanLinks};
    use parking_lot::Mutex;

    use super::*;
    use crate::metrics::Options;

    const BATCHES: Batches =
        Batches { queue: 8, batch_max: 4, delay: Duration::from_millis(5), export_timeout: Duration::from_millis(20) };
    /// A delay that is longer than any test.
    const NEVER: Duration = Duration::from_secs(3_600);
    /// Longer than anything here takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A collector that accepts batches, or does not answer.
    #[derive(Clone, Debug, Default)]
    struct Collector {
        batches: Arc<Mutex<Vec<usize>>>,
        is_silent: Arc<AtomicBool>,
    }

    impl SpanExporter for Collector {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            if self.is_silent.load(Relaxed) {
                std::future::pending::<()>().await;
            }
            self.batches.lock().push(batch.len());
            Ok(())
        }
    }

    fn span() -> Box<SpanData> {
        Box::new(SpanData {
            span_context: SpanContext::NONE,
            parent_span_id: SpanId::INVALID,
            parent_span_is_remote: false,
            span_kind: SpanKind::Server,
            name: "a".into(),
            start_time: SystemTime::UNIX_EPOCH,
            end_time: SystemTime::UNIX_EPOCH,
            attributes: Vec::new(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: InstrumentationScope::default(),
        })
    }

    fn queue(batches: Batches, collector: Collector) -> (Arc<Spans>, Exporting<Collector>) {
        Spans::new(batches, collector, &Metrics::new(Options::default()))
    }

    fn put(spans: &Spans, count: usize) {
        (0..count).for_each(|_| spans.push(span()));
    }

    async fn until(what: &str, mut look: impl FnMut() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !look() {
            assert!(Instant::now() < end, "waited in vain for {what}");
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn counts(spans: &Spans) -> (u64, [u64; 3]) {
        (spans.exported.get(), spans.dropped.each_ref().map(Number::get))
    }

    #[tokio::test]
    async fn what_finds_no_room_is_dropped_and_counted() {
        let collector = Collector::default();
        let (spans, exporting) = queue(BATCHES, collector.clone());
        put(&spans, 11);
        assert_eq!(counts(&spans), (0, [3, 0, 0]));
        exporting.run(std::future::ready(())).await.unwrap();
        assert_eq!(counts(&spans), (8, [3, 0, 0]), "the rest is sent at the end");
        assert_eq!(*collector.batches.lock(), [4, 4]);
    }

    #[test]
    fn a_span_that_is_taken_at_once_does_not_underflow_the_count() {
        const SPANS: usize = 300_000;
        let (spans, mut exporting) = queue(BATCHES, Collector::default());
        let pushing = std::thread::spawn({
            let spans = spans.clone();
            move || put(&spans, SPANS)
        });
        let mut most = 0;
        while !pushing.is_finished() {
            exporting.next_batch();
            // The spans in the queue, and one that is being queued.
            most = most.max(spans.waiting.load(Relaxed));
        }
        pushing.join().unwrap();
        assert!(most <= BATCHES.queue + 1, "{most} wait in a queue of {}", BATCHES.queue);
        while !exporting.next_batch().is_empty() {}
        assert_eq!(spans.waiting.load(Relaxed), 0);
    }

    #[tokio::test]
    async fn a_full_batch_goes_at_once() {
        let collector = Collector::default();
        let (spans, exporting) = queue(Batches { delay: NEVER, ..BATCHES }, collector.clone());
        let running = tokio::spawn(exporting.run(std::future::pending()));
        tokio::task::yield_now().await;
        put(&spans, 5);
        until("the full batch", || spans.exported.get() == 4).await;
        assert_eq!(*collector.batches.lock(), [4], "the fifth waits for more");
        running.abort();
    }

    #[tokio::test]
    async fn the_end_does_not_wait_for_a_collector_that_is_silent() {
        let collector = Collector::default();
        collector.is_silent.store(true, Relaxed);
        let (spans, exporting) = queue(Batches { export_timeout: NEVER, ..BATCHES }, collector);
        put(&spans, 7);
        timeout(PATIENCE, exporting.run(std::future::ready(()))).await.expect("it ends").unwrap();
        assert_eq!(counts(&spans), (0, [0, 0, 7]));
    }

    #[tokio::test]
    async fn the_end_cuts_a_batch_short_that_is_on_its_way() {
        let collector = Collector::default();
        collector.is_silent.store(true, Relaxed);
        let (spans, exporting) = queue(Batches { export_timeout: NEVER, ..BATCHES }, collector);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(exporting.run(async { drop(stopped.await) }));
        put(&spans, 4);
        until("the batch to be on its way", || spans.waiting.load(Relaxed) == 0).await;
        drop(stop);
        timeout(PATIENCE, running).await.expect("it ends").unwrap().unwrap();
        assert_eq!(counts(&spans), (0, [0, 0, 4]));
    }
}
