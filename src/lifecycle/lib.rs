//! The life of the process: signals, the phases of a drain, tasks whose failure ends the process, memory that threads
//! return to the system, work off the runtime or in turns, and the service manager's protocol.
//!
//! Not here: what each listener does in a phase (grpc, http), and when the phases begin (app).

mod blocking;
pub mod give_way;
mod memory;
mod memory_limit;
mod open_files;
mod pulse;
mod service_manager;
mod turns;

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::{fmt, io};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

pub use self::blocking::{on_own_thread, on_runtime};
pub use self::give_way::give_way;
pub use self::memory::ThreadMemory;
pub use self::memory_limit::{MemoryPart, memory_limit};
pub use self::open_files::raise_open_files;
pub use self::pulse::{Heart, Pulse, pulse, stuck_for};
pub use self::service_manager::{AddressError, Notice, ServiceManager};
pub use self::turns::Turns;

/// A phase of the process. Phases follow each other in this order and never go back. Some can be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Serves, and reports that it is not ready.
    Starting,
    Serving,
    /// Serves, and reports that it will stop.
    Leaving,
    /// Accepts no more gRPC connections, and finishes the requests in flight.
    Draining,
    /// gRPC has ended. HTTP finishes too; until now it reported the drain.
    Ending,
}

#[derive(Debug)]
pub struct Phases(watch::Sender<Phase>);

impl Phases {
    pub fn starting() -> Self {
        Self(watch::Sender::new(Phase::Starting))
    }

    /// Announces a phase, unless a later one has begun.
    pub fn begin(&self, phase: Phase) {
        self.0.send_if_modified(|current| {
            let later = phase > *current;
            if later {
                *current = phase;
            }
            later
        });
    }

    pub fn watch(&self) -> Life {
        Life(self.0.subscribe())
    }
}

#[derive(Clone, Debug)]
pub struct Life(watch::Receiver<Phase>);

impl Life {
    pub fn phase(&self) -> Phase {
        *self.0.borrow()
    }

    /// Waits until this phase or a later one has begun. Also returns when the announcing side is dropped.
    pub async fn reached(&self, phase: Phase) {
        let mut receiver = self.0.clone();
        let _ = receiver.wait_for(|current| *current >= phase).await;
    }
}

/// Ignores signals that would end the process: SIGUSR1 and SIGUSR2, with which other programs reopen logs or print
/// states, and SIGXFSZ, so that a write beyond the limit of file sizes (`ulimit -f`, systemd's `LimitFSIZE`) fails
/// instead. Call it within a runtime. It is effective until the process ends.
///
/// # Errors
/// When the system refuses to deliver signals.
pub fn ignore_signals() -> io::Result<()> {
    for kind in [SignalKind::user_defined1(), SignalKind::user_defined2(), SignalKind::from_raw(libc::SIGXFSZ)] {
        drop(signal(kind)?);
    }
    Ok(())
}

/// Sends the orders to stop or to reload a server. Dropping it orders a stop.
#[derive(Debug)]
pub struct Stop {
    stops: watch::Sender<u32>,
    /// The number of the last order to reload.
    reloads: watch::Sender<u64>,
}

#[derive(Clone, Debug)]
pub struct Shutdown {
    stops: watch::Receiver<u32>,
    reloads: watch::Receiver<u64>,
    parts: Arc<Parts>,
}

/// Receives the orders to reload, for one part that keeps content of files.
#[derive(Debug)]
pub struct Reloads {
    orders: watch::Receiver<u64>,
    /// The last order that the part has received.
    heard: u64,
    /// The last order that the part has carried out.
    done: Arc<AtomicU64>,
    parts: Arc<Parts>,
}

impl Reloads {
    /// Waits for the next order to reload. Several orders since the last call count as one. Waits forever if no further
    /// order can come. A part that calls this again has carried out its last order.
    pub async fn next(&mut self) {
        if self.done.swap(self.heard, Relaxed) != self.heard {
            self.parts.changed.send_replace(());
        }
        if self.orders.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.heard = *self.orders.borrow_and_update();
    }
}

impl Drop for Reloads {
    fn drop(&mut self) {
        self.done.store(u64::MAX, Relaxed);
        self.parts.changed.send_replace(());
    }
}

/// Which orders to reload each part has carried out.
#[derive(Debug)]
struct Parts {
    /// The last order that each part has carried out.
    done: Mutex<Vec<Weak<AtomicU64>>>,
    /// Changes when a part has carried out an order or has ended.
    changed: watch::Sender<()>,
}

/// Receives the orders to reload, and waits until all parts have carried them out.
#[derive(Debug)]
pub struct Orders {
    orders: watch::Receiver<u64>,
    parts: Arc<Parts>,
}

impl Orders {
    /// Waits for the next order to reload. Several orders since the last call count as one. Waits forever if no further
    /// order can come.
    pub async fn next(&mut self) {
        if self.orders.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.orders.borrow_and_update();
    }

    /// Waits until each part has carried out the last order of [`Orders::next`], or has ended.
    pub async fn carried_out(&self) {
        let order = *self.orders.borrow();
        let mut changed = self.parts.changed.subscribe();
        // This holds the sender, so the wait cannot end early.
        let _ = changed.wait_for(|()| self.parts.all_past(order)).await;
    }
}

impl Parts {
    fn all_past(&self, order: u64) -> bool {
        let mut parts = self.done.lock();
        parts.retain(|part| part.strong_count() > 0);
        parts.iter().filter_map(Weak::upgrade).all(|done| done.load(Relaxed) >= order)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHangup {
    /// Reads policies, certificates and the log file again.
    Reload,
    /// Stops the server, like SIGTERM.
    Stop,
}

/// A connected pair of both.
pub fn shutdown() -> (Stop, Shutdown) {
    let (stops, stopped) = watch::channel(0);
    let (reloads, reloaded) = watch::channel(0);
    let parts = Arc::new(Parts { done: Mutex::default(), changed: watch::Sender::new(()) });
    (Stop { stops, reloads }, Shutdown { stops: stopped, reloads: reloaded, parts })
}

impl Stop {
    /// Orders a stop. Each further order ends the current wait of the drain.
    pub fn order(&self) {
        self.stops.send_modify(|times| *times = times.saturating_add(1));
    }

    pub fn reload(&self) {
        self.reloads.send_modify(|number| *number += 1);
    }
}

impl Shutdown {
    /// Stops on SIGTERM, SIGINT and SIGQUIT. Reloads or stops on SIGHUP. Must be called within a runtime, which receives
    /// the signals.
    ///
    /// # Errors
    /// When the system refuses to deliver signals.
    pub fn on_signals(on_hangup: OnHangup) -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut quit = signal(SignalKind::quit())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (stop, shutdown) = shutdown();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => tracing::info!(signal = "SIGTERM", "stop signal received"),
                    _ = interrupt.recv() => tracing::info!(signal = "SIGINT", "stop signal received"),
                    _ = quit.recv() => tracing::info!(signal = "SIGQUIT", "stop signal received"),
                    _ = hangup.recv() => match on_hangup {
                        OnHangup::Stop => tracing::info!(signal = "SIGHUP", "stop signal received"),
                        OnHangup::Reload => {
                            tracing::info!(signal = "SIGHUP", "reloading policies, certificates and the log file");
                            stop.reload();
                            continue;
                        }
                    },
                }
                stop.order();
            }
        });
        Ok(shutdown)
    }

    /// The orders to reload, for another part.
    pub fn reloads(&self) -> Reloads {
        let done = Arc::new(AtomicU64::new(0));
        self.parts.done.lock().push(Arc::downgrade(&done));
        Reloads { orders: self.reloads.clone(), heard: 0, done, parts: self.parts.clone() }
    }

    /// The orders to reload, and whether all parts have carried them out.
    pub fn orders(&self) -> Orders {
        Orders { orders: self.reloads.clone(), parts: self.parts.clone() }
    }

    pub async fn ordered(&self) {
        self.ordered_more_than(0).await;
    }

    /// Waits for one more order to stop, after those that have come.
    pub async fn ordered_again(&self) {
        let times = *self.stops.borrow();
        if self.stops.has_changed().is_err() {
            // The sender was dropped, so no second order can come.
            std::future::pending::<()>().await;
        }
        self.ordered_more_than(times).await;
    }

    async fn ordered_more_than(&self, times: u32) {
        let mut receiver = self.stops.clone();
        let _ = receiver.wait_for(|orders| *orders > times).await;
    }
}

/// A task that ended before the shutdown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    pub task: String,
    pub reason: String,
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended: {}", self.task, self.reason)
    }
}

/// Watches over tasks and threads that live as long as the server.
#[derive(Debug)]
pub struct Supervisor {
    life: Life,
    deaths: mpsc::UnboundedSender<Death>,
    // Unbounded, but never longer than the number of tasks: each dies once.
    heard: mpsc::UnboundedReceiver<Death>,
}

/// Completes when its task has ended.
#[derive(Debug)]
pub struct Done(Option<oneshot::Receiver<()>>);

impl Done {
    /// Waits for the end of the task. It is safe to call again after a dropped call.
    pub async fn wait(&mut self) {
        if let Some(ended) = &mut self.0 {
            let _ = ended.await;
            self.0 = None;
        }
    }
}

struct TaskExit {
    task: String,
    life: Life,
    deaths: mpsc::UnboundedSender<Death>,
    done: oneshot::Sender<()>,
}

impl TaskExit {
    fn end(self, result: Result<Result<(), String>, Box<dyn Any + Send>>) {
        let reason = match result {
            Ok(Ok(())) if self.life.phase() >= Phase::Draining => None,
            Ok(Ok(())) => Some("it ended before shutdown".to_owned()),
            Ok(Err(reason)) => Some(reason),
            Err(panic) => Some(format!("panic: {}", panic_text(&*panic))),
        };
        if let Some(reason) = reason {
            let _ = self.deaths.send(Death { task: self.task, reason });
        }
        let _ = self.done.send(());
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    if let Some(text) = panic.downcast_ref::<String>() {
        text
    } else if let Some(text) = panic.downcast_ref::<&str>() {
        text
    } else {
        "no message"
    }
}

impl Supervisor {
    /// Supervises tasks that may end from [`Phase::Draining`] on, and not before.
    pub fn new(life: Life) -> Self {
        let (deaths, heard) = mpsc::unbounded_channel();
        Self { life, deaths, heard }
    }

    fn exit_of(&self, task: &str) -> (TaskExit, Done) {
        let (done, ended) = oneshot::channel();
        let exit = TaskExit { task: task.to_owned(), life: self.life.clone(), deaths: self.deaths.clone(), done };
        (exit, Done(Some(ended)))
    }

    pub fn task(&self, name: &str, task: impl Future<Output = Result<(), String>> + Send + 'static) -> Done {
        self.task_on(&Handle::current(), name, task)
    }

    /// Starts the task on this runtime.
    pub fn task_on(
        &self,
        runtime: &Handle,
        name: &str,
        task: impl Future<Output = Result<(), String>> + Send + 'static,
    ) -> Done {
        let (exit, done) = self.exit_of(name);
        runtime.spawn(async move {
            let mut task = pin!(task);
            let ended =
                std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context))) {
                    Ok(Poll::Pending) => Poll::Pending,
                    Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
                    Err(panic) => Poll::Ready(Err(panic)),
                });
            exit.end(ended.await);
        });
        done
    }

    /// # Errors
    /// When the system cannot start a thread.
    pub fn thread(&self, name: &str, body: impl FnOnce() -> Result<(), String> + Send + 'static) -> io::Result<Done> {
        let (exit, done) = self.exit_of(name);
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || exit.end(catch_unwind(AssertUnwindSafe(body))))?;
        Ok(done)
    }

    /// Waits for the first task that dies.
    pub async fn death(&mut self) -> Death {
        match self.heard.recv().await {
            Some(death) => death,
            None => unreachable!("the supervisor holds a sender itself"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death_of(task: impl Future<Output = Result<(), String>> + Send + 'static) -> Death {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let phases = Phases::starting();
            let mut supervisor = Supervisor::new(phases.watch());
            let mut done = supervisor.task("work", task);
            let death = supervisor.death().await;
            done.wait().await;
            death
        })
    }

    #[test]
    fn a_task_that_ends_is_named_with_its_reason() {
        let texts = [
            death_of(async { Err("disk on fire".to_owned()) }).to_string(),
            death_of(async { Ok(()) }).to_string(),
            death_of(async { panic!("index {} of 3", 7) }).to_string(),
            death_of(async { panic!("plain") }).to_string(),
        ];
        assert_eq!(
            texts,
            [
                "work ended: disk on fire",
                "work ended: it ended before shutdown",
                "work ended: panic: index 7 of 3",
                "work ended: panic: plain",
            ]
        );
    }

    #[tokio::test]
    async fn a_thread_that_panics_is_named() {
        let phases = Phases::starting();
        let mut supervisor = Supervisor::new(phases.watch());
        let thread = supervisor.thread("core 0", || panic!("boom"));
        thread.unwrap().wait().await;
        assert_eq!(supervisor.death().await.to_string(), "core 0 ended: panic: boom");
    }

    #[tokio::test]
    async fn a_task_that_ends_when_told_is_no_death() {
        let phases = Phases::starting();
        let mut supervisor = Supervisor::new(phases.watch());
        let life = phases.watch();
        let mut done = supervisor.task("work", async move {
            life.reached(Phase::Draining).await;
            Ok(())
        });
        phases.begin(Phase::Draining);
        done.wait().await;
        assert!(supervisor.heard.try_recv().is_err());
    }

    #[test]
    fn phases_never_go_back() {
        let phases = Phases::starting();
        phases.begin(Phase::Leaving);
        phases.begin(Phase::Serving);
        assert_eq!(phases.watch().phase(), Phase::Leaving);
    }

    #[tokio::test]
    async fn each_order_to_stop_counts() {
        let (stop, shutdown) = shutdown();
        stop.order();
        shutdown.ordered().await;
        let mut again = pin!(shutdown.ordered_again());
        tokio::select! {
            biased;
            () = &mut again => panic!("there was one order"),
            () = std::future::ready(()) => {}
        }
        stop.order();
        again.await;
    }

    #[tokio::test]
    async fn each_part_hears_of_a_reload_once() {
        let (stop, shutdown) = shutdown();
        let (mut one, mut other) = (shutdown.reloads(), shutdown.reloads());
        stop.reload();
        stop.reload();
        one.next().await;
        other.next().await;
        let mut again = pin!(one.next());
        tokio::select! {
            biased;
            () = &mut again => panic!("it was told already"),
            () = std::future::ready(()) => {}
        }
        stop.reload();
        again.await;
        assert_eq!(*shutdown.stops.borrow(), 0, "a reload is no stop");
    }

    #[tokio::test]
    async fn an_order_is_carried_out_when_each_part_asks_for_the_next_one() {
        let (stop, shutdown) = shutdown();
        let (mut one, mut other, ended) = (shutdown.reloads(), shutdown.reloads(), shutdown.reloads());
        let mut orders = shutdown.orders();
        stop.reload();
        orders.next().await;
        drop(ended);
        one.next().await;
        other.next().await;
        let mut carried_out = pin!(orders.carried_out());
        assert!(now(&mut carried_out).await.is_none(), "both parts still work");
        assert!(now(one.next()).await.is_none());
        assert!(now(&mut carried_out).await.is_none(), "one part still works");
        assert!(now(other.next()).await.is_none());
        assert!(now(&mut carried_out).await.is_some());
    }

    #[tokio::test]
    async fn a_part_that_begins_later_owes_the_orders_before_it() {
        let (stop, shutdown) = shutdown();
        let mut orders = shutdown.orders();
        stop.reload();
        orders.next().await;
        assert!(now(orders.carried_out()).await.is_some(), "there is no part");
        let mut part = shutdown.reloads();
        assert!(now(orders.carried_out()).await.is_none());
        part.next().await;
        assert!(now(part.next()).await.is_none());
        assert!(now(orders.carried_out()).await.is_some());
    }

    async fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            output = future => Some(output),
            () = std::future::ready(()) => None,
        }
    }

    #[tokio::test]
    async fn who_drops_the_handle_stops_the_server() {
        let (stop, shutdown) = shutdown();
        drop(stop);
        shutdown.ordered().await;
    }
}
