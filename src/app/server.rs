//! The parts of one server: made from the settings, and connected.
//!
//! Not here: the order of their start and end (lib.rs).

use std::sync::Arc;

use tokio::runtime::Handle;
use weir_grpc::health::Health;
use weir_http::{AdminOptions, ConnectionBounds, JsonOptions, Needs, ServiceState, Shared, Site};
use weir_lifecycle::{
    Done, Life, MemoryPart, Phase, Phases, Pulse, ServiceManager, Shutdown, Supervisor, memory_limit, stuck_for,
};
use weir_limiter::callers::{CallersInForce, Sender};
use weir_limiter::overrides::OverrideTable;
use weir_limiter::rows::RowTable;
use weir_limiter::{Limiter, Options, Policies};
use weir_policies::Dialect;
use weir_rls::configured;
use weir_settings::{HTTP_LISTENER, PolicySource, Settings};
use weir_store::SystemClock;
use weir_telemetry::metrics::{Metrics, Number, Protocol};
use weir_telemetry::shed::ShedReason;
use weir_telemetry::traces::Tracer;
use weir_tls::server::ServerTls;

use super::callers::CallerFile;
use super::certificates::Certificates;
use super::listeners::{Listeners, RuntimeThread};
use super::policies::{self, Reload};
use super::ready::{self, WarmUp};
use super::rows::{FirstRows, RowFiles};
use super::second_redis::SecondRedis;
use super::stores::{Opened, Stores};
use super::xds_target::PolicyTarget;
use super::{
    AppError, banner, log, metrics, overrides, row_count, rows, service_manager, source, waits_for_policies, xds,
};

/// The parts from which the others are made.
pub(super) struct Server {
    pub(super) settings: Settings,
    pub(super) metrics: Arc<Metrics>,
    pub(super) shutdown: Shutdown,
    pub(super) phases: Arc<Phases>,
    life: Life,
    pub(super) supervisor: Supervisor,
    report: Arc<ServiceState>,
    stores: Stores,
    control: Opened,
}

pub(super) struct Serving {
    pub(super) grpc: weir_grpc::Serving,
    pub(super) http: Vec<Done>,
    pub(super) overrides: Arc<OverrideTable>,
    pub(super) rows: Arc<RowTable>,
    warm_up: Arc<WarmUp>,
    _threads: [RuntimeThread; 2],
}

#[derive(Clone)]
struct Limiters {
    policies: Arc<Policies>,
    metrics: Arc<Metrics>,
    options: Options,
}

impl Limiters {
    fn limiter(&self, stores: &Opened, protocol: Protocol) -> Arc<Limiter> {
        let (store, per_second) = (stores.first.clone(), stores.per_second.clone());
        let options = Options { store, per_second, ..self.options.clone() };
        Arc::new(Limiter::new(self.policies.clone(), options, self.metrics.observer_of(protocol)))
    }
}

impl Server {
    /// Opens the stores of this runtime, and starts the task of the log.
    pub(super) fn new(settings: Settings, metrics: Arc<Metrics>, stores: Stores, shutdown: Shutdown) -> Self {
        let report = ServiceState::new(Needs { store: settings.health.redis, policies: settings.health.policies });
        report.circuit_is(stores.circuit());
        report.queue_is(stores.queue());
        let report = Arc::new(report);
        let phases = Arc::new(Phases::starting());
        let life = phases.watch();
        let supervisor = Supervisor::new(life.clone());
        log::count(&metrics);
        supervisor.task("log", {
            let (metrics, report, reloads, life) = (metrics.clone(), report.clone(), shutdown.reloads(), life.clone());
            async move { log::follow(&metrics, &report, reloads, life).await }
        });
        let control = stores.open();
        Self { settings, metrics, shutdown, phases, life, supervisor, report, stores, control }
    }

    /// The policies in force, and the task that watches their source. None if weir is stopped while it waits for a
    /// control plane.
    pub(super) async fn first_policies(
        &mut self,
        manager: Option<&ServiceManager>,
    ) -> Result<Option<(Arc<Policies>, Option<Reload>)>, AppError> {
        match self.settings.policies.source {
            PolicySource::Directory => {
                let (policies, reload) = self.policies_of_directory().await?;
                Ok(Some((policies, Some(reload))))
            }
            PolicySource::Xds => {
                let policies = self.policies_by_xds(manager).await?;
                Ok(policies.map(|policies| (policies, None)))
            }
        }
    }

    async fn policies_of_directory(&self) -> Result<(Arc<Policies>, Reload), AppError> {
        let settings = &self.settings.policies;
        let (files, dialect) = (source(settings, memory_limit()), Dialect::of(settings));
        let started = Reload::start(files, dialect, settings.isolate).await;
        let (reload, loaded) = started.map_err(|problems| AppError::Policies(problems.lines()))?;
        let policies = Arc::new(Policies::new(loaded.policies, self.metrics.observer()));
        self.report.loaded(policies.current(), loaded.places, loaded.kept, loaded.overlays);
        self.metrics.policies_loaded();
        policies::log(&policies.current(), loaded.files, loaded.took);
        Ok((policies, reload))
    }

    /// Follows a control plane. Waits for its first policies, unless the settings say not to.
    async fn policies_by_xds(&mut self, manager: Option<&ServiceManager>) -> Result<Option<Arc<Policies>>, AppError> {
        let settings = &self.settings.policies;
        let policies = Arc::new(Policies::none_yet(self.metrics.observer()));
        let life = self.life.clone();
        let (target, overlay) = PolicyTarget::new(settings, self.target(&policies))?;
        if let Some(overlay) = overlay {
            self.supervisor.task("overlays", overlay.follow(target.clone(), self.shutdown.reloads(), life.clone()));
        }
        let (subscription, mut first) = xds::subscribe(&settings.xds, target)?;
        self.supervisor.task("xds", async move {
            tokio::select! {
                () = life.reached(Phase::Draining) => Ok(()),
                never = subscription.follow() => match never {},
            }
        });
        if !waits_for_policies(&self.settings) {
            return Ok(Some(policies));
        }
        tracing::info!("waiting for the first policies");
        if let Some(manager) = manager {
            service_manager::waiting_for_policies(manager).await;
        }
        tokio::select! {
            death = self.supervisor.death() => Err(AppError::Died(death)),
            () = self.shutdown.ordered() => Ok(None),
            () = first.in_force() => Ok(Some(policies)),
        }
    }

    fn target(&self, policies: &Arc<Policies>) -> policies::Target {
        policies::Target { policies: policies.clone(), metrics: self.metrics.clone(), report: self.report.clone() }
    }

    pub(super) async fn listen(
        &self,
        listeners: Listeners,
        tls: Option<Arc<ServerTls>>,
        tracer: Option<Arc<Tracer>>,
        callers: Option<Arc<CallersInForce>>,
        policies: &Arc<Policies>,
    ) -> Result<Serving, AppError> {
        let Self { settings, metrics, supervisor, life, control, .. } = self;
        let local = control.local(settings, metrics);
        let deny_cache = control.deny_cache(settings);
        // The store in this process, if there is one.
        let embedded = Arc::downgrade(local.as_ref().unwrap_or(&control.first));
        let options = Options {
            mode: settings.charging,
            on_error: settings.on_error,
            modes: configured::modes(settings),
            budget: settings.redis.timeout,
            local,
            deny_cache: deny_cache.clone(),
            ..Options::new(control.first.clone())
        };
        let known_rows = options.rows.clone();
        let limiters = Limiters { policies: policies.clone(), metrics: metrics.clone(), options };
        let table = OverrideTable::new(control.first.clone(), policies.clone(), Arc::new(SystemClock));
        let table = Arc::new(table);
        let row_table = Arc::new(RowTable::new(
            control.first.clone(),
            policies.clone(),
            known_rows,
            Arc::new(SystemClock),
            metrics.observer(),
        ));
        let limiter = limiters.limiter(control, Protocol::Http);
        let site = Arc::new(self.site(limiter, table.clone(), row_table.clone(), tracer.clone(), callers.clone()));

        let listening = RuntimeThread::listeners(supervisor)?;
        let long = RuntimeThread::long(supervisor)?;
        let served = self.grpc_options(tls, tracer, callers, long.runtime.clone());
        let health = Health::starting().await;
        let dialled = settings.redis.connect_timeout + settings.redis.timeout;
        let warm_up = Arc::new(WarmUp::new(served.cores.get() * control.remote().count(), dialled));
        let of_core = {
            let (stores, warm_up) = (self.stores.clone(), warm_up.clone());
            move |_| {
                let opened = stores.open();
                warm_up.prepare(opened.remote());
                limiters.limiter(&opened, Protocol::Grpc)
            }
        };
        let on = &listening.runtime;
        let grpc = weir_grpc::start(supervisor, life, on, listeners.grpc, &served, &health, of_core)?;
        let pulses: Vec<_> = grpc.pulses.iter().map(Pulse::another).collect();
        self.report.stuck_for_is(move || stuck_for(&pulses).into_iter().max());
        let mut http = vec![
            supervisor.task_on(on, "http", weir_http::serve_public(listeners.http, &site)),
            supervisor.task_on(on, "admin", weir_http::serve_admin(listeners.admin, &site)),
        ];
        if let Some(listener) = listeners.metrics {
            let metrics = weir_http::serve_metrics(listener, &settings.metrics.path, &site);
            http.push(supervisor.task_on(on, "metrics", metrics));
        }
        supervisor.task("health", health.follow(life.clone(), self.report.fit()));

        for (listener, counts) in &grpc.shed {
            metrics::show_shed(metrics, listener, counts, [ShedReason::Full, ShedReason::Handover]);
        }
        metrics::show_shed(metrics, "http", &site.connections.shed, [ShedReason::Full, ShedReason::Peer]);
        metrics::show(metrics, &grpc, &embedded, deny_cache, settings.program);
        overrides::show(metrics, &table);
        metrics.show("weir_rows_known", &[], row_table.known(), |known| known.count() as u64);
        Ok(Serving { grpc, http, overrides: table, rows: row_table, warm_up, _threads: [listening, long] })
    }

    fn site(
        &self,
        limiter: Arc<Limiter>,
        overrides: Arc<OverrideTable>,
        rows: Arc<RowTable>,
        tracer: Option<Arc<Tracer>>,
        callers: Option<Arc<CallersInForce>>,
    ) -> Site {
        let settings = &self.settings;
        let tokens = settings.admin_token_file.clone().map(|path| Arc::new(weir_http::TokenFile::new(path)));
        if let Some(tokens) = &tokens {
            self.metrics.show("weir_admin_refused_total", &[], tokens, |tokens| tokens.refused());
            self.metrics.show("weir_input_refused", &["tokens"], tokens, |tokens| u64::from(tokens.is_unusable()));
            let following = tokens.clone().follow(self.life.clone());
            self.supervisor.task("tokens", async move {
                following.await;
                Ok(())
            });
        }
        Site {
            limiter,
            metrics: self.metrics.clone(),
            life: self.life.clone(),
            report: self.report.clone(),
            allowed_origins: settings.http.allowed_origins.clone(),
            handlers: Handle::current(),
            connections: ConnectionBounds { per_peer: settings.http.connections_per_peer, shed: Arc::default() },
            json: JsonOptions {
                bounds: configured::bounds(&settings.limits),
                extras: configured::extras(&settings.response),
                receipt_key: settings.holds.receipt_key.clone(),
                request_bytes: settings.limits.request_bytes,
                tracer,
                sender: callers.map(|callers| Sender::new(callers, HTTP_LISTENER.into(), Some(Box::default()))),
            },
            admin: AdminOptions {
                endpoints: settings.admin_endpoints,
                hosts: settings.http.admin_hosts.clone(),
                tokens,
                metrics_token: settings.admin_metrics_token,
                instance: banner::instance(settings),
                on_error: settings.on_error,
                overrides,
                rows,
                tap_max: settings.tap.max_duration,
            },
            shared: Shared::new(weir_lifecycle::memory_limit(), settings.limits.request_bytes),
        }
    }

    fn grpc_options(
        &self,
        tls: Option<Arc<ServerTls>>,
        tracer: Option<Arc<Tracer>>,
        callers: Option<Arc<CallersInForce>>,
        long: Handle,
    ) -> weir_grpc::Options {
        let Settings { grpc, holds, limits, listen, response, runtime, .. } = &self.settings;
        let (age, grace) = (listen.max_connection_age, listen.max_connection_age_grace);
        weir_grpc::Options {
            cores: runtime.cores(),
            messages: weir_grpc::Messages {
                request_bytes: limits.request_bytes,
                receive_timeout: grpc.receive_timeout,
                bounds: configured::bounds(limits),
                extras: configured::extras(response),
                receipt_key: holds.receipt_key.clone(),
                tracer,
            },
            bounds: weir_http2::Bounds {
                streams: grpc.max_streams,
                connection_bytes: grpc.connection_held_bytes,
                total_bytes: self.settings.grpc_held_bytes(memory_limit()),
                tables_bytes: MemoryPart::GRPC_CONNECTIONS.bytes(),
            },
            tls,
            max_age: (!age.is_zero()).then_some(weir_http2::MaxAge { age, grace }),
            callers,
            long,
        }
    }

    /// Starts the task that applies changes of the file of callers, if there is one.
    pub(super) fn follow_callers(&self, callers: Option<CallerFile>) {
        if let Some(callers) = callers {
            self.supervisor
                .task("callers", callers.follow(self.report.clone(), self.shutdown.reloads(), self.life.clone()));
        }
    }

    /// Starts the tasks for everything that can change at runtime: overrides, certificates, policies and files of rows. Returns when the last
    /// are in force.
    pub(super) fn follow_changes(
        &self,
        tls: Option<Arc<ServerTls>>,
        policies: Arc<Policies>,
        reload: Option<Reload>,
        overrides: Arc<OverrideTable>,
        rows: Arc<RowTable>,
    ) -> FirstRows {
        let Self { settings, metrics, supervisor, shutdown, life, report, .. } = self;
        let mut first_rows = self.rows_to_move(&policies);
        if rows.store().is_immediate() {
            metrics.show(row_count::METRIC, &["memory"], rows.known(), |known| known.count() as u64);
        } else {
            supervisor.task("counting rows", row_count::follow(rows.clone(), metrics.clone(), life.clone()));
        }
        if settings.policies.source == PolicySource::Directory {
            let policies = source(&settings.policies, memory_limit());
            if rows.store().is_immediate() {
                let files = RowFiles::new(rows, policies, report.clone(), metrics);
                first_rows = files.first();
                supervisor.task("rows", files.follow(shutdown.reloads(), life.clone()));
            } else {
                rows::warn_of_ignored(policies, rows.store().name());
            }
        }
        if settings.policies.overlay.is_some() {
            metrics.show("weir_policy_overlays", &["met"], report, |report| report.overlays().0 as u64);
            metrics.show("weir_policy_overlays", &["unmet"], report, |report| report.overlays().1 as u64);
        }
        supervisor.task("overrides", overrides::follow(overrides, settings.admin_values, life.clone()));
        if let Some(tls) = tls {
            let certificates = Certificates::new(tls, metrics);
            supervisor.task("certificates", certificates.follow(shutdown.reloads(), life.clone()));
        }
        if let Some(reload) = reload {
            let target = self.target(&policies);
            metrics.show("weir_input_refused", &["policies"], report, |report| u64::from(report.is_refused()));
            supervisor.task("reload", reload.follow(target, shutdown.reloads(), life.clone()));
        }
        supervisor.task("freeing policies", policies::free_unused(policies, life.clone()));
        first_rows
    }

    /// The rows that an operator must move from the second Redis. None if both settings name one Redis.
    fn rows_to_move(&self, policies: &Arc<Policies>) -> FirstRows {
        let redis = &self.settings.redis;
        let is_other = |second: &weir_settings::RedisServer| {
            let master = |server: &weir_settings::RedisServer| Some(server.sentinel.as_ref()?.master.clone());
            second.url != redis.server.url || master(second) != master(&redis.server)
        };
        let second = self.control.per_second.clone();
        match second.filter(|_| redis.per_second.as_ref().is_some_and(is_other)) {
            None => FirstRows::None,
            Some(second) => {
                let (report, observer) = (self.report.clone(), self.metrics.observer());
                FirstRows::ToMove(SecondRedis::new(second, policies.clone(), report, observer))
            }
        }
    }

    /// Notifies the service manager until every phase of the shutdown is sent.
    pub(super) fn notify(&self, manager: Arc<ServiceManager>, serving: &mut Serving) -> Done {
        let sources = service_manager::Sources {
            life: self.life.clone(),
            report: self.report.clone(),
            orders: self.shutdown.orders(),
            pulses: std::mem::take(&mut serving.grpc.pulses),
        };
        self.supervisor.task("service manager", service_manager::follow(manager, sources))
    }

    /// Makes weir ready when the stores have answered and `first_rows` are in force, and tracks whether the stores still answer.
    pub(super) fn follow_stores(&self, serving: &Serving, first_rows: FirstRows) {
        let stores = std::iter::once(&self.control.first).chain(&self.control.per_second).cloned().collect();
        let redis = &self.settings.redis;
        let times = ready::Times { ready_after: redis.ready_after, start_within: redis.start_within };
        let is_remote = self.control.remote().next().is_some();
        let number = |name| if is_remote { self.metrics.number(name, &[]) } else { Number::default() };
        let numbers = ready::FindingNumbers {
            evicting_servers: number("weir_redis_evicting_servers"),
            clock_difference_seconds: number("weir_redis_clock_difference_seconds"),
        };
        let values = self.settings.admin_values;
        let inputs = ready::Inputs { overrides: serving.overrides.clone(), values, first_rows, numbers };
        let warm_up = serving.warm_up.clone();
        let (phases, report, life) = (self.phases.clone(), self.report.clone(), self.life.clone());
        let following = ready::follow(stores, warm_up, times, phases, report, life, inputs);
        self.supervisor.task("store", following);
    }
}
