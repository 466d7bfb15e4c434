//! The composition root: it binds, connects and starts all parts, runs until a stop signal, and ends in order.
//!
//! Not here: what any part does by itself, and the end of the process (main).

mod alerts;
mod banner;
mod certificates;
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
mod service_manager;
mod stores;
mod traces;
mod xds;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_grpc::health::Health;
use weir_http::{Endpoints, Needs, ServiceState, Site};
use weir_lifecycle::{Death, Done, Phase, Phases, ServiceManager, Shutdown, Supervisor};
use weir_limiter::overrides::OverrideTable;
use weir_limiter::{Limiter, Options, Policies};
use weir_policies::Dialect;
use weir_policies::watch::Source;
use weir_rls::configured;
use weir_settings::{Endpoint, PolicySource, Settings};
use weir_store::SystemClock;
use weir_telemetry::alerts::follow;
use weir_telemetry::metrics::{Door, Metrics};
use weir_telemetry::shed::ShedReason;
use weir_telemetry::statsd;
use weir_tls::files::FileError;

pub use self::banner::COMMIT;
use self::certificates::Certificates;
pub use self::listeners::{Addresses, Listeners};
pub use self::log::{flush_log, set_up_log};
use self::policies::Reload;
use self::stores::{Opened, Stores};

/// The time in which HTTP finishes requests in flight if gRPC has used up the grace.
const HTTP_GRACE_MIN: Duration = Duration::from_millis(250);
/// How long the threads may take to end once everything they serve is dropped.
const THREADS_TIMEOUT: Duration = Duration::from_secs(1);

/// Why weir did not start, or why it ended.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A listener has no address to listen on.
    #[error("cannot listen on {address} for {listener}: {reason}")]
    Bind {
        /// Which one.
        listener: &'static str,
        /// The address from the settings.
        address: Endpoint,
        /// The error of the system.
        reason: io::Error,
    },
    /// The policies cannot be put in force. Each problem is a text of its own.
    #[error("{}", .0.join("\n"))]
    Policies(Vec<String>),
    /// A file of the TLS of the gRPC listener, or of the collector, cannot be used.
    #[error("{0}")]
    Tls(#[from] FileError),
    /// The address of Redis cannot be used.
    #[error("{0}")]
    Redis(#[from] weir_store::redis::EndpointError),
    /// The system gives no thread or no runtime.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
    /// The metrics contradict each other.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A mapping file, or a pattern, cannot be used: the setting, the place and what is wrong.
    #[error("{0}")]
    Statistics(String),
    /// Traces cannot be exported as the settings have it.
    #[error("traces: {0}")]
    Traces(String),
    /// Metrics cannot be exported as the settings have it.
    #[error("metrics export: {0}")]
    MetricsExport(String),
    /// Alerts cannot be sent as the settings have it: the setting, and what is wrong.
    #[error("{0}")]
    Alerts(String),
    /// A part of weir ended before the shutdown.
    #[error("{0}")]
    Died(Death),
}

/// Binds the listeners and serves; see [`serve`]. Where policies come by xDS, it binds when the first are in force, unless
/// the settings say not to wait for them. Sends the state of the process, and an error at the end, to the service manager if
/// there is one.
///
/// # Errors
/// When an address is taken, and those of [`serve`].
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

/// Serves until a stop signal and the end of all requests in flight, or until a part of it dies.
///
/// Runs on the caller's runtime, which then is the control runtime: HTTP, reloading and supervision. gRPC has threads
/// of its own.
///
/// # Errors
/// When the policies are wrong at the start, or when a part dies.
pub async fn serve(listeners: Listeners, settings: Settings, shutdown: Shutdown) -> Result<(), AppError> {
    serve_on(Some(listeners), settings, shutdown, None).await
}

/// Whether listeners stay closed until a server has sent the first policies.
fn waits_for_policies(settings: &Settings) -> bool {
    settings.policies.source == PolicySource::Xds && !settings.policies.xds.start_without_config
}

/// Binds the listeners if they are not bound yet, as soon as there is something to serve.
async fn serve_on(
    listeners: Option<Listeners>,
    settings: Settings,
    shutdown: Shutdown,
    manager: Option<Arc<ServiceManager>>,
) -> Result<(), AppError> {
    let tls = certificates::open(&settings.listen).await?;
    let metrics = Arc::new(Metrics::new(metrics::options(&settings)?)?);
    let (statsd, sent) = (metrics::statsd(&settings)?, metrics.clone());
    let resource = otlp::resource(&settings.tracing);
    let (tracer, exporting) = traces::open(&settings.tracing, &resource, &metrics).await?.unzip();
    let exporter = metrics::export(&settings, &resource, &metrics).await?;
    let (outbox, webhook) = alerts::open(&settings.alerts, &metrics).await?.unzip();
    let stores = Stores::new(&settings, &metrics)?;
    let control = stores.open();
    let needs = Needs { store: settings.health.redis, policies: settings.health.policies };
    let report = Arc::new(ServiceState::new(needs));
    report.circuit_is(stores.circuit());
    report.queue_is(stores.queue());
    let dialect = Dialect::of(&settings.policies);
    let phases = Phases::starting();
    let life = phases.watch();
    let mut supervisor = Supervisor::new(life.clone());
    log::count(&metrics)?;
    supervisor.task("log", {
        let (metrics, reloads, life) = (metrics.clone(), shutdown.reloads(), life.clone());
        async move { log::follow(&metrics, reloads, life).await }
    });

    let (policies, reload) = match settings.policies.source {
        PolicySource::Directory => {
            let (reload, loaded) = Reload::start(source(&settings.policies), dialect, control.first.clone())
                .await
                .map_err(|problems| AppError::Policies(problems.lines()))?;
            let policies = Arc::new(Policies::new(loaded.policies, metrics.observer()));
            report.loaded(policies.current(), loaded.places, loaded.kept);
            metrics.policies_loaded();
            policies::log(&policies.current(), loaded.files, loaded.took);
            (policies, Some(reload))
        }
        PolicySource::Xds => {
            let policies = Arc::new(Policies::none_yet(metrics.observer()));
            let (store, metrics, report) = (control.first.clone(), metrics.clone(), report.clone());
            let load = policies::Target { policies: policies.clone(), metrics, report };
            let target = xds::Target { load, dialect, store };
            let (subscription, mut first) = xds::subscribe(&settings.policies.xds, target)?;
            let life = life.clone();
            supervisor.task("xds", async move {
                tokio::select! {
                    () = life.reached(Phase::Draining) => Ok(()),
                    never = subscription.follow() => match never {},
                }
            });
            if waits_for_policies(&settings) {
                tracing::info!("waiting for the first policies");
                if let Some(manager) = &manager {
                    service_manager::waiting_for_policies(manager).await;
                }
                tokio::select! {
                    death = supervisor.death() => return Err(AppError::Died(death)),
                    () = shutdown.ordered() => return Ok(()),
                    () = first.in_force() => {}
                }
            }
            (policies, None)
        }
    };
    let listeners = match listeners {
        Some(listeners) => listeners,
        None => Listeners::bind(&settings.listen).await?,
    };

    let crossed = metrics.alerts().take();
    let local = control.local(&settings, &metrics);
    let deny_cache = control.deny_cache(&settings);
    // The one in this process, if there is one.
    let embedded = Arc::downgrade(local.as_ref().unwrap_or(&control.first));
    let limiter = {
        let (metrics, policies) = (metrics.clone(), policies.clone());
        let options = Options {
            mode: settings.charging,
            on_error: settings.on_error,
            modes: configured::modes(&settings),
            budget: settings.redis.timeout,
            local,
            deny_cache: deny_cache.clone(),
            ..Options::new(control.first.clone())
        };
        move |opened: &Opened, door: Door| {
            let (store, per_second) = (opened.first.clone(), opened.per_second.clone());
            let options = Options { store, per_second, ..options.clone() };
            Arc::new(Limiter::new(policies.clone(), options, metrics.observer_of(door)))
        }
    };
    let table = OverrideTable::new(control.first.clone(), policies.clone(), Arc::new(SystemClock));
    let table = Arc::new(table);
    let bounds = configured::bounds(&settings.limits);
    let extras = configured::extras(&settings.response);
    let request_bytes = settings.limits.request_bytes;
    let tokens = settings.admin_token_file.clone().map(|path| Arc::new(weir_http::TokenFile::new(path)));
    if let Some(tokens) = tokens.clone() {
        metrics.counter("weir_admin_refused_total", &[], move || tokens.refused())?;
    }
    let site = Arc::new(Site {
        limiter: limiter(&control, Door::Http),
        on_error: settings.on_error,
        metrics: metrics.clone(),
        life: life.clone(),
        report: report.clone(),
        bounds,
        extras: extras.clone(),
        request_bytes,
        bodies: weir_http::Bodies::default(),
        scrapes: weir_http::Scrapes::default(),
        rule_orders: weir_http::RuleOrders::default(),
        admin_hosts: settings.http.admin_hosts.clone(),
        allowed_origins: settings.http.allowed_origins.clone(),
        connections_per_peer: settings.http.connections_per_peer,
        shed: Arc::default(),
        endpoints: match settings.admin_endpoints {
            weir_settings::Endpoints::Weir => Endpoints::Operator,
            weir_settings::Endpoints::Ratelimit => Endpoints::Debug,
        },
        tracer: tracer.clone(),
        instance: banner::instance(&settings),
        looks: weir_http::Looks::default(),
        pages: tokio::sync::Mutex::default(),
        token_file: tokens,
        overrides: table.clone(),
        tap_max: settings.tap.max_duration,
        named_values: weir_http::NamedValues::default(),
    });

    let banner = banner::Banner::new(&settings, &listeners.addresses, &policies.current());
    let health = Health::starting().await;
    let served = weir_grpc::Options {
        cores: settings.runtime.cores(),
        request_bytes,
        bounds,
        extras,
        held: held(&settings.grpc),
        tls: tls.clone(),
        max_age: max_age(&settings.listen),
        tracer,
    };
    let dialled = settings.redis.connect_timeout + settings.redis.timeout;
    let warm_up = Arc::new(ready::WarmUp::new(served.cores.get() * control.remote().count(), dialled));
    let of_core = {
        let warm_up = warm_up.clone();
        move |_| {
            let opened = stores.open();
            warm_up.prepare(opened.remote());
            limiter(&opened, Door::Grpc)
        }
    };
    let grpc = weir_grpc::start(&supervisor, &life, listeners.grpc, &served, &health, of_core)?;
    metrics::add_shed(&metrics, "grpc", &grpc.shed, [ShedReason::Full, ShedReason::Handover])?;
    metrics::add_shed(&metrics, "http", &site.shed, [ShedReason::Full, ShedReason::Peer])?;
    metrics::add_gauges(&metrics, &grpc, embedded, deny_cache, settings.deny_cache.until_window_end)?;
    overrides::add_gauges(&metrics, &table)?;
    supervisor.task("overrides", overrides::follow(table.clone(), life.clone()));
    let mut http = vec![
        supervisor.task("http", weir_http::serve_public(listeners.http, &site)),
        supervisor.task("admin", weir_http::serve_admin(listeners.admin, &site)),
    ];
    if let Some(listener) = listeners.metrics {
        http.push(supervisor.task("metrics", weir_http::serve_metrics(listener, &settings.metrics.path, &site)));
    }
    if let Some(tls) = tls {
        supervisor.task("certificates", Certificates::new(tls, &metrics)?.follow(shutdown.reloads(), life.clone()));
    }
    supervisor.task("health", health.follow(life.clone(), report.fit()));
    supervisor.task("freeing policies", policies::free_unused(policies.clone(), life.clone()));
    if let Some(reload) = reload {
        let target = policies::Target { policies, metrics, report: report.clone() };
        target.add_gauge()?;
        supervisor.task("reload", reload.follow(target, shutdown.reloads(), life.clone()));
    }
    if let Some(manager) = manager {
        let sources = service_manager::Sources {
            life: life.clone(),
            report: report.clone(),
            orders: shutdown.orders(),
            pulses: grpc.pulses,
        };
        supervisor.task("service manager", service_manager::follow(manager, sources));
    }
    banner.show(settings.log.format);

    let phases = Arc::new(phases);
    let both = std::iter::once(control.first).chain(control.per_second).collect();
    let times = ready::Times { ready_after: settings.redis.ready_after, start_within: settings.redis.start_within };
    supervisor.task("store", ready::follow(both, warm_up, times, phases.clone(), report.clone(), life.clone(), table));

    let (sending, stop_sending) = tokio::sync::watch::channel(());
    let stop = |mut stop_sending: tokio::sync::watch::Receiver<()>| async move {
        while stop_sending.changed().await.is_ok() {}
    };
    let mut senders = Vec::new();
    if let Some(options) = statsd {
        senders.push(supervisor.task("statsd", statsd::run(options, sent, stop(stop_sending.clone()))));
    }
    if let Some(exporting) = exporting {
        senders.push(supervisor.task("traces", exporting.run(stop(stop_sending.clone()))));
    }
    if let Some(exporter) = exporter {
        senders.push(supervisor.task("metrics export", exporter.run(stop(stop_sending.clone()))));
    }
    if let Some(crossed) = crossed {
        senders.push(supervisor.task("alerts", follow(crossed, outbox, stop(stop_sending))));
    }
    if let Some(webhook) = webhook {
        senders.push(supervisor.task("webhook", webhook.run()));
    }
    tokio::select! {
        death = supervisor.death() => return Err(AppError::Died(death)),
        () = shutdown.ordered() => {}
    }
    let leaving = leave(&settings.shutdown, &shutdown, &phases, grpc.done, http);
    let left = tokio::select! {
        death = supervisor.death() => Err(AppError::Died(death)),
        () = leaving => Ok(()),
    };
    drop(sending);
    for mut sender in senders {
        // Each bounds its own time, and they send what is left at the same time.
        sender.wait().await;
    }
    left
}

fn max_age(listen: &weir_settings::Listen) -> Option<weir_grpc::MaxAge> {
    let age = listen.max_connection_age;
    (!age.is_zero()).then_some(weir_grpc::MaxAge { age, grace: listen.max_connection_age_grace })
}

/// Where policy files are, and which files are policies.
#[must_use]
pub fn source(policies: &weir_settings::Policies) -> Source {
    Source {
        directory: policies.directory.clone(),
        all_files: policies.all_files,
        dot_files: policies.dot_files,
        beside: policies.beside,
        allow_empty: policies.allow_empty,
    }
}

fn held(grpc: &weir_settings::Grpc) -> weir_grpc::HeldBounds {
    weir_grpc::HeldBounds {
        streams: grpc.max_streams,
        receive_timeout: grpc.receive_timeout,
        connection_bytes: grpc.connection_held_bytes,
        total_bytes: grpc.held_bytes,
    }
}

/// Announces that weir leaves, waits until callers have noticed, and then finishes requests in flight: gRPC, then HTTP.
/// A further order to stop ends the current wait.
async fn leave(
    times: &weir_settings::Shutdown,
    shutdown: &Shutdown,
    phases: &Phases,
    mut grpc: Vec<Done>,
    mut http: Vec<Done>,
) {
    phases.begin(Phase::Leaving);
    tracing::info!(pause = ?times.pause, "leaving");
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
    // Dropping the rest takes almost no time, so a thread that is still there is stuck.
    wait_for(&mut grpc, Instant::now() + THREADS_TIMEOUT, shutdown).await;
    if drained {
        tracing::info!(took = ?started.elapsed(), "stopped");
    } else {
        tracing::warn!(took = ?started.elapsed(), "stopped with requests or connections cut off");
    }
}

/// Whether all of them ended in time.
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
