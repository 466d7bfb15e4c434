//! The composition root: binds, connects and starts all parts, runs until a stop signal, and ends in order.
//!
//! Here: the order of the start and of the shutdown. In server.rs: how the parts are made. Not here: the end of the
//! process (main).

mod alerts;
mod banner;
mod callers;
mod certificates;
mod exports;
mod listeners;
mod log;
mod metrics;
mod otlp;
mod overrides;
mod policies;
mod policy_changes;
mod ready;
mod redis;
mod redis_health;
mod row_count;
mod rows;
mod second_redis;
mod server;
mod service_manager;
mod stores;
mod traces;
mod watched;
mod xds;
mod xds_target;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_lifecycle::{Death, Done, Phase, Phases, ServiceManager, Shutdown};
use weir_policies::Limits;
use weir_policies::files::{FileKind, Source};
use weir_settings::{Endpoint, PolicySource, Settings};
use weir_telemetry::metrics::Metrics;
use weir_tls::files::FileError;
use weir_tls::server::ServerTls;

pub use weir_http::check_tokens;

use self::banner::Banner;
pub use self::banner::COMMIT;
use self::callers::CallerFile;
pub use self::callers::listening;
use self::exports::Exports;
pub use self::listeners::{Addresses, Listeners};
pub use self::log::{flush_log, set_up_log};
use self::server::Server;
use self::stores::Stores;

/// The time for HTTP requests in flight if gRPC has used up the grace.
const HTTP_GRACE_MIN: Duration = Duration::from_millis(250);
/// The time for threads to end after their connections were dropped.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);

/// Why weir did not start, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("cannot listen on {address} for {listener}: {reason}")]
    Bind { listener: String, address: Endpoint, reason: io::Error },
    /// The policies cannot be loaded. Each problem is one text.
    #[error("{}", .0.join("\n"))]
    Policies(Vec<String>),
    /// A TLS file of the gRPC listener or of the collector cannot be used.
    #[error("{0}")]
    Tls(#[from] FileError),
    #[error("{0}")]
    Redis(#[from] weir_store::redis::EndpointError),
    /// The system cannot start a thread or a runtime.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
    /// A mapping file or a pattern cannot be used: the setting, the place and the mistake.
    #[error("{0}")]
    Statistics(String),
    #[error("traces: {0}")]
    Traces(String),
    #[error("metrics export: {0}")]
    MetricsExport(String),
    /// The settings of alerts cannot be used: the setting and the mistake.
    #[error("{0}")]
    Alerts(String),
    /// A part of weir ended before the shutdown.
    #[error("{0}")]
    Died(Death),
}

/// Binds the listeners and serves; see [`serve`]. If policies come from xDS, binds after the first were loaded, unless
/// the settings say not to wait. Sends the state of the process, and an error at the end, to the service manager if
/// there is one.
///
/// # Errors
/// When an address cannot be bound; otherwise as [`serve`].
pub async fn run(settings: Settings, shutdown: Shutdown, manager: Option<Arc<ServiceManager>>) -> Result<(), AppError> {
    let serving = async {
        let waits = waits_for_policies(&settings);
        let listeners = if waits { None } else { Some(Listeners::bind(&settings.listen).await?) };
        serve_on(listeners, settings, shutdown, manager.clone()).await
    };
    let ended = serving.await;
    if let (Err(error), Some(manager)) = (&ended, &manager) {
        service_manager::failed(manager, &error.to_string()).await;
    }
    ended
}

/// Serves until a stop signal and the end of all requests in flight, or until a part dies.
///
/// Runs on the caller's runtime, which becomes the control runtime: handlers of HTTP, reloads and supervision. The listeners have their own
/// thread, and so has each core of gRPC.
///
/// # Errors
/// When the policies are invalid at the start, or when a part dies.
pub async fn serve(listeners: Listeners, settings: Settings, shutdown: Shutdown) -> Result<(), AppError> {
    serve_on(Some(listeners), settings, shutdown, None).await
}

/// Whether listeners stay closed until a server has sent the first policies.
fn waits_for_policies(settings: &Settings) -> bool {
    settings.policies.source == PolicySource::Xds && !settings.policies.xds.start_without_config
}

/// Serves, phase after phase. Binds listeners that are not bound yet when there are policies.
async fn serve_on(
    listeners: Option<Listeners>,
    settings: Settings,
    shutdown: Shutdown,
    manager: Option<Arc<ServiceManager>>,
) -> Result<(), AppError> {
    if settings.deny_cache.until_window_end.is_some() {
        tracing::warn!("deny_cache.until_window_end has no effect: remove it, the next version refuses it");
    }
    // Opens everything that the settings name: a mistake ends the start.
    let tls = certificates::open(&settings.listen).await?;
    let metrics = Arc::new(Metrics::new(metrics::options(&settings)?));
    let callers = CallerFile::open(&settings, &metrics).await?;
    let exports = Exports::open(&settings, &metrics).await?;
    let stores = Stores::new(&settings, &metrics)?;
    let mut server = Server::new(settings, metrics, stores, shutdown);
    let Some((policies, reload)) = server.first_policies(manager.as_deref()).await? else { return Ok(()) };
    let listeners = match listeners {
        Some(listeners) => listeners,
        None => Listeners::bind(&server.settings.listen).await?,
    };

    // Callers get answers from here on. Health is NOT_SERVING until the stores have answered.
    let banner = Banner::new(&server.settings, &listeners.addresses, &policies.current());
    let in_force = callers.as_ref().map(|file| file.in_force().clone());
    let mut serving = server.listen(listeners, tls.clone(), exports.tracer(), in_force, &policies).await?;
    server.follow_callers(callers);
    let first_rows = server.follow_changes(tls, policies, reload, serving.overrides.clone(), serving.rows.clone());
    let notified = manager.map(|manager| server.notify(manager, &mut serving));
    banner.show(server.settings.log.format);
    server.follow_stores(&serving, first_rows);
    let senders = exports.start(&server.supervisor, &server.metrics);
    tokio::select! {
        death = server.supervisor.death() => return Err(AppError::Died(death)),
        () = server.shutdown.ordered() => {}
    }

    // The shutdown of weir.
    let leaving = leave(&server.settings.shutdown, &server.shutdown, &server.phases, serving.grpc.done, serving.http);
    let left = tokio::select! {
        death = server.supervisor.death() => Err(AppError::Died(death)),
        () = leaving => Ok(()),
    };
    if let (Ok(()), Some(mut notified)) = (&left, notified) {
        // Until every phase of the shutdown is sent.
        notified.wait().await;
    }
    senders.finish().await;
    left
}

/// What [`check_files`] has found.
#[derive(Debug, Default)]
pub struct CheckedFiles {
    /// Files that are not on this machine.
    pub absent: Vec<PathBuf>,
    /// Mistakes with which [`serve`] starts.
    pub warnings: Vec<String>,
}

/// Reads the files of `listen.tls` and of tokens as [`serve`] does.
///
/// # Errors
/// A file with which [`serve`] does not start.
pub fn check_files(settings: &Settings) -> Result<CheckedFiles, AppError> {
    let mut checked = CheckedFiles::default();
    if let Some(files) = certificates::files(&settings.listen) {
        checked.absent.extend(files.paths().filter(|path| !path.exists()).map(Path::to_owned));
        if checked.absent.is_empty() {
            checked.warnings = ServerTls::new(files)?.expired();
        }
    }
    match settings.admin_token_file.as_deref() {
        Some(path) if !path.exists() => checked.absent.push(path.to_owned()),
        Some(path) => checked.warnings.extend(weir_http::check_tokens(path).err()),
        None => {}
    }
    Ok(checked)
}

/// Where the policies are, for a process that may use this many bytes of memory. A command gives `u64::MAX`, so that its
/// result does not depend on the machine.
#[must_use]
pub fn source(policies: &weir_settings::Policies, memory: u64) -> Source {
    Source {
        directory: policies.directory.clone(),
        kind: FileKind::Policies,
        all_files: policies.all_files,
        dot_files: policies.dot_files,
        beside: policies.beside,
        allow_empty: policies.allow_empty,
        overlay: policies.overlay.clone(),
        limits: Limits::of(policies, memory),
    }
}

/// Announces the shutdown, waits so that callers can react, and then finishes requests in flight: first gRPC, then HTTP. A
/// second signal ends the current wait.
async fn leave(
    times: &weir_settings::Shutdown,
    shutdown: &Shutdown,
    phases: &Phases,
    mut grpc: Vec<Done>,
    mut http: Vec<Done>,
) {
    phases.begin(Phase::Leaving);
    tracing::info!(pause = ?times.pause, "shutdown announced: still accepting requests during the pause");
    tokio::select! {
        () = tokio::time::sleep(times.pause) => {}
        () = shutdown.ordered_again() => {}
    }
    phases.begin(Phase::Draining);
    tracing::info!(grace = ?times.grace, "draining");
    let started = Instant::now();
    let end = started + times.grace;
    let drained = wait_for(&mut grpc, end, shutdown).await;
    phases.begin(Phase::Ending);
    let end = if drained { end } else { Instant::now() + HTTP_GRACE_MIN };
    let drained = wait_for(&mut http, end, shutdown).await && drained;
    // Dropping the rest takes almost no time. A thread that still runs is blocked.
    wait_for(&mut grpc, Instant::now() + THREADS_TIMEOUT, shutdown).await;
    if drained {
        tracing::info!(took = ?started.elapsed(), "stopped");
    } else {
        tracing::warn!(took = ?started.elapsed(), "stopped with requests or connections cut off");
    }
}

/// Returns whether all tasks ended in time.
async fn wait_for(tasks: &mut [Done], end: Instant, shutdown: &Shutdown) -> bool {
    let all = async {
        for task in tasks {
            task.wait().await;
        }
    };
    tokio::select! {
        () = all => true,
        () = tokio::time::sleep_until(end) => false,
        () = shutdown.ordered_again() => false,
    }
}
