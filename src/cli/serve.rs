//! `weir serve`: settings, log and signals around [`weir_app::run`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use weir_app::AppError;
use weir_lifecycle::{OnHangup, ServiceManager, Shutdown};
use weir_settings::envoy_ratelimit::Note;
use weir_settings::otel::{self, TurnsOn};
use weir_settings::{Problems, Settings};

use super::args::ServeArguments;

/// The time for the last tasks of the control runtime, after all other parts have ended.
const REST_TIMEOUT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub enum ServeError {
    /// The settings are wrong: nothing was started.
    Settings(Problems),
    Failed(String),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(problems) => problems.fmt(f),
            Self::Failed(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<AppError> for ServeError {
    fn from(error: AppError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Serves until a signal stops it.
///
/// # Errors
/// If settings are wrong, or if the server cannot start or continue.
pub fn serve(arguments: &ServeArguments) -> Result<(), ServeError> {
    let settings = arguments.settings(std::env::vars_os()).map_err(ServeError::Settings)?;
    run(settings, OnHangup::Reload, || {
        for Note { variable, text } in otel::read(std::env::vars_os(), TurnsOn::Yes).notes {
            tracing::warn!("{variable} {text}");
        }
    })
}

/// Serves with these settings until a signal stops it. Calls `opening` when the log is ready.
pub(super) fn run(settings: Settings, on_hangup: OnHangup, opening: impl FnOnce()) -> Result<(), ServeError> {
    weir_lifecycle::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ServeError::Failed(format!("cannot start: {error}")))?;
    {
        let _within = runtime.enter();
        // Called before the first log line, because the log file can be at its size limit.
        weir_lifecycle::ignore_signals().map_err(|error| no_signals(&error))?;
    }
    weir_app::set_up_log(&settings.log).map_err(|error| ServeError::Failed(error.to_string()))?;
    opening();
    let manager = service_manager();
    let result = runtime.block_on(async {
        let shutdown = Shutdown::on_signals(on_hangup).map_err(|error| no_signals(&error))?;
        Ok(weir_app::run(settings, shutdown, manager).await?)
    });
    runtime.shutdown_timeout(REST_TIMEOUT);
    weir_app::flush_log();
    result
}

fn no_signals(error: &std::io::Error) -> ServeError {
    ServeError::Failed(format!("cannot listen to signals: {error}"))
}

/// The service manager that started this process, if any. A wrong address does not stop weir.
fn service_manager() -> Option<Arc<ServiceManager>> {
    match ServiceManager::from_environment(|name| std::env::var_os(name)) {
        Ok(manager) => manager.map(Arc::new),
        Err(error) => {
            tracing::warn!(%error, "the service manager is not notified");
            None
        }
    }
}
