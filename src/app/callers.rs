//! The callers and their rights: loaded at the start, and again when their file changes or an operator orders it.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::task::JoinHandle;
use weir_engine::callers::{Callers, Refusal};
use weir_http::ServiceState;
use weir_lifecycle::{Life, Reloads, on_own_thread};
use weir_limiter::callers::{CallerCounts, CallersInForce};
use weir_policies::{Listening, Problems, read_callers};
use weir_settings::{HTTP_LISTENER, Settings};
use weir_telemetry::metrics::{CALLER_ALLOWED, CALLER_REQUESTS, Metrics, Number};

use super::AppError;
use super::policies::of_load;
use super::watched::{Cause, WatchedFile, follow};

/// The most problems of one file in the log.
const PROBLEMS_LOGGED_MAX: usize = 20;

/// What callers can be known by, with these settings.
#[must_use]
pub fn listening(listen: &weir_settings::Listen) -> Listening {
    let grpc = listen.grpc.iter().map(|listener| listener.name.clone());
    Listening {
        listeners: grpc.chain([HTTP_LISTENER.to_owned()]).collect(),
        has_client_ca: listen.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some()),
    }
}

/// Watches the file of callers.
pub(super) struct CallerFile {
    file: WatchedFile,
    listening: Listening,
    in_force: Arc<CallersInForce>,
    /// 1 while the newest file is refused.
    refused: Number,
}

impl CallerFile {
    /// Reads the file that the settings name. None if they name none.
    ///
    /// # Errors
    /// All problems of the file.
    pub(super) async fn open(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Option<Self>, AppError> {
        let Some(path) = settings.callers_file.clone() else { return Ok(None) };
        let listening = listening(&settings.listen);
        let of_thread = listening.clone();
        let (file, read) = on_own_thread(move || {
            let file = WatchedFile::new(path);
            let read = read_callers(&file.path, Some(&of_thread));
            (file, read)
        })
        .await;
        let callers = read.map_err(|problems| AppError::Policies(of_load(&problems).lines()))?;
        log(&callers);
        let shown = metrics.clone();
        let show = Box::new(move |name: &str, counts: &Arc<CallerCounts>| show(&shown, name, counts));
        let in_force = Arc::new(CallersInForce::new(callers, settings.runtime.cores().get(), show));
        metrics.show("weir_callers", &[], &in_force, |in_force| in_force.count() as u64);
        let refused = metrics.number("weir_input_refused", &["callers"]);
        Ok(Some(Self { file, listening, in_force, refused }))
    }

    pub(super) const fn in_force(&self) -> &Arc<CallersInForce> {
        &self.in_force
    }

    /// Applies every change of the file, or logs its problems and keeps the callers in force.
    pub(super) async fn follow(self, report: Arc<ServiceState>, reloads: Reloads, life: Life) -> Result<(), String> {
        // A file system that does not answer blocks one thread.
        let ended = |reading: JoinHandle<Self>| reading.map(|read| read.map_err(|error| error.to_string()));
        follow(self, move |file, cause| file.look(&report, cause), ended, reloads, life).await
    }

    fn look(&mut self, report: &ServiceState, cause: Cause) {
        let Self { file, listening, in_force, refused } = self;
        let Some(read) = file.read_again(cause, |path| read_callers(path, Some(listening))) else { return };
        refused.set(u64::from(read.is_err()));
        report.callers_refused(read.as_ref().err().map(of_load).unwrap_or_default());
        match read {
            Ok(callers) => {
                log(&callers);
                in_force.replace(callers);
            }
            Err(_) if file.is_restless => {}
            Err(problems) => refuse(&problems),
        }
    }
}

fn log(callers: &Callers) {
    tracing::info!(callers = callers.list().len(), "callers loaded");
}

fn refuse(problems: &Problems) {
    for problem in problems.list().iter().take(PROBLEMS_LOGGED_MAX) {
        tracing::error!(%problem, "callers refused, the last good ones stay in force");
    }
    let more = problems.count().saturating_sub(PROBLEMS_LOGGED_MAX);
    if more > 0 {
        tracing::error!(more, "more problems of callers: weir check lists all");
    }
}

/// Shows the counts of a caller, of all further callers, or of requests without one.
fn show(metrics: &Metrics, name: &str, counts: &Arc<CallerCounts>) {
    let add = |result: &str, read: fn(&CallerCounts, Refusal) -> u64, refusal: Refusal| {
        metrics.show(CALLER_REQUESTS, &[name, result], counts, move |counts| read(counts, refusal));
    };
    let is_caller = |refusal: &Refusal| matches!(refusal, Refusal::Domain | Refusal::Right(_) | Refusal::Hits);
    let has_caller = name != weir_limiter::callers::UNLISTED;
    if has_caller {
        add(CALLER_ALLOWED, |counts, _| counts.allowed(), Refusal::Domain);
    }
    for refusal in Refusal::ALL.into_iter().filter(|refusal| is_caller(refusal) == has_caller) {
        add(refusal.name(), CallerCounts::refused, refusal);
    }
}
