//! The log: set up before [`serve`](super::serve), reopened at runtime, and flushed at the end.

use std::time::Duration;

use strum::VariantArray as _;
use tokio::time::MissedTickBehavior;
use weir_http::ServiceState;
use weir_lifecycle::{Life, Phase, Reloads};
use weir_telemetry::logging::{self, InitError, LostBy};
use weir_telemetry::metrics::Metrics;

/// How long the end of the process waits for queued lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Sets up the log of the process. It also logs panics.
///
/// # Errors
/// When the level is invalid, the file cannot be opened, or there is already a log.
pub fn set_up_log(log: &weir_settings::Log) -> Result<(), InitError> {
    logging::init(log)?;
    logging::log_panics();
    Ok(())
}

/// Waits until the log is written, for a bounded time: a blocked target does not stop the process from ending.
pub fn flush_log() {
    logging::report_lost();
    logging::flush(FLUSH_TIMEOUT);
}

pub(super) fn count(metrics: &Metrics) {
    for &by in LostBy::VARIANTS {
        metrics.show("weir_log_lines_lost_total", &[by.into()], &(), move |()| logging::lost(by));
    }
}

/// Logs outages of stores and lost lines. Opens the log file again after each order to reload.
pub(super) async fn follow(
    metrics: &Metrics,
    report: &ServiceState,
    mut reloads: Reloads,
    life: Life,
) -> Result<(), String> {
    let mut reports = tokio::time::interval(logging::CALL_SITE_PERIOD);
    reports.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let work = async {
        loop {
            tokio::select! {
                _ = reports.tick() => logging::report_lost(),
                () = reloads.next() => logging::reopen(),
            }
        }
    };
    tokio::select! {
        () = life.reached(Phase::Ending) => Ok(()),
        () = metrics.log_outages(|| report.summary().store_answered) => Ok(()),
        () = work => Ok(()),
    }
}
