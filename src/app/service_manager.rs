//! Notifies the service manager: that weir is ready, reloads or stops, its state in one line, and that every runtime still runs.
//!
//! Not here: the protocol (lifecycle/service_manager.rs).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use weir_engine::words::counted;
use weir_http::{ServiceState, Summary};
use weir_lifecycle::{Life, Notice, Orders, Phase, Pulse, ServiceManager, stuck_for};

/// How often a changed state is sent.
const STATUS_PERIOD: Duration = Duration::from_secs(1);
/// weir reports a reload as complete after this time at the latest. Policies on a file system without answers have a
/// problem after 30 s.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(40);
/// How many times the runtimes are checked within the time of the watchdog.
const WATCHDOG_LOOKS: u32 = 4;

pub(super) struct Sources {
    pub(super) life: Life,
    pub(super) report: Arc<ServiceState>,
    pub(super) orders: Orders,
    pub(super) pulses: Vec<Pulse>,
}

/// Sends that weir waits for the policies of a control plane.
pub(super) async fn waiting_for_policies(manager: &ServiceManager) {
    manager.send(&[Notice::Status("waiting for the first policies")]).await;
}

/// Sends that weir is ending, and why.
pub(super) async fn failed(manager: &ServiceManager, reason: &str) {
    manager.send(&[Notice::Stopping, Notice::Status(&format!("failed: {reason}"))]).await;
}

pub(super) async fn follow(manager: Arc<ServiceManager>, sources: Sources) -> Result<(), String> {
    let Sources { life, report, orders, pulses } = sources;
    tokio::select! {
        () = announce(&manager, &life, &report, orders) => Ok(()),
        never = watch(&manager, &pulses) => match never {},
    }
}

async fn announce(manager: &ServiceManager, life: &Life, report: &ServiceState, mut orders: Orders) {
    manager.send(&[Notice::Status("starts")]).await;
    tokio::select! {
        () = life.reached(Phase::Leaving) => {}
        never = announce_service(manager, life, report, &mut orders) => match never {},
    }
    manager.send(&[Notice::Stopping, Notice::Status("stopping: still serves, health is NOT_SERVING")]).await;
    life.reached(Phase::Draining).await;
    manager.send(&[Notice::Status("draining: finishes requests in flight")]).await;
    life.reached(Phase::Ending).await;
}

/// Sends that weir is ready, when it is; then every reload and every change of state.
async fn announce_service(
    manager: &ServiceManager,
    life: &Life,
    report: &ServiceState,
    orders: &mut Orders,
) -> Infallible {
    life.reached(Phase::Serving).await;
    // Fails only if the sender is dropped. The report holds it.
    let _ = report.fit().wait_for(|fit| *fit).await;
    let mut ticks = interval(STATUS_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ready = false;
    let mut sent = String::new();
    loop {
        let status = status(report.summary());
        if !ready {
            // Sent again until it succeeds: without it a service manager would end weir.
            ready = manager.send(&[Notice::Ready, Notice::Status(&status)]).await;
        } else if status != sent {
            manager.send(&[Notice::Status(&status)]).await;
        }
        sent = status;
        tokio::select! {
            _ = ticks.tick() => {}
            () = orders.next() => {
                manager.send(&[Notice::Reloading, Notice::Status("reloads")]).await;
                if tokio::time::timeout(RELOAD_TIMEOUT, orders.carried_out()).await.is_err() {
                    tracing::warn!("a reload has taken more than {RELOAD_TIMEOUT:?} and continues");
                }
                ready = false;
            }
        }
    }
}

/// Resets the watchdog each time all runtimes have answered.
async fn watch(manager: &ServiceManager, pulses: &[Pulse]) -> Infallible {
    let Some(timeout) = manager.watchdog() else { return std::future::pending().await };
    let mut looks = interval((timeout / WATCHDOG_LOOKS).max(Duration::from_millis(1)));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut all_ran = true;
    loop {
        looks.tick().await;
        let stuck = stuck_for(pulses).len();
        if stuck == 0 {
            manager.send(&[Notice::Watchdog]).await;
        } else if all_ran {
            tracing::warn!(stuck, "blocked runtimes: weir does not reset the watchdog");
        }
        all_ran = stuck == 0;
    }
}

fn status(summary: Summary) -> String {
    let Summary { domains, rules, problems, store_answered } = summary;
    let mut text = format!("serves {}, {}", counted(domains, "domain"), counted(rules, "rule"));
    if problems > 0 {
        let problems = counted(problems, "problem");
        text.push_str(&format!("; changed policies are refused, {problems} (see /readyz)"));
    }
    if !store_answered {
        text.push_str("; the store does not answer");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::os::unix::net::UnixDatagram;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use weir_lifecycle::pulse;

    use super::*;

    /// A blocked runtime behaves like this: its task does not answer, and the others continue.
    #[tokio::test]
    async fn one_stuck_runtime_keeps_the_watchdog_from_being_reset() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let received = || {
            let mut bytes = [0; 64];
            socket.recv(&mut bytes).ok().map(|length| String::from_utf8_lossy(&bytes[..length]).into_owned())
        };
        let manager = ServiceManager::from_environment(|name| match name {
            "NOTIFY_SOCKET" => Some(path.clone().into()),
            "WATCHDOG_USEC" => Some(OsString::from("4000")),
            _ => None,
        });
        let manager = manager.unwrap().unwrap();

        let ((well, mut beating), (slow, mut stuck)) = (pulse(), pulse());
        let looks = Arc::new(AtomicUsize::new(0));
        let counted = looks.clone();
        tokio::spawn(async move {
            loop {
                beating.beat().await;
                counted.fetch_add(1, SeqCst);
            }
        });
        let pulses = [well, slow];
        let test = async {
            while looks.load(SeqCst) < 8 {
                tokio::task::yield_now().await;
            }
            assert_eq!(received().as_deref(), Some("WATCHDOG=1\n"), "at the first look nothing was asked before");
            assert_eq!(received(), None, "one runtime is stuck since");
            stuck.beat().await;
            while received().is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            never = watch(&manager, &pulses) => match never {},
            () = test => {}
        }
    }

    #[test]
    fn the_status_has_what_needs_a_look() {
        let well = Summary { domains: 2, rules: 7, problems: 0, store_answered: true };
        assert_eq!(status(well), "serves 2 domains, 7 rules");
        assert_eq!(
            status(Summary { problems: 3, store_answered: false, ..well }),
            "serves 2 domains, 7 rules; changed policies are refused, 3 problems (see /readyz); the store does not answer"
        );
    }
}
