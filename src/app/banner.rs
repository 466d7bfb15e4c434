//! The banner that weir prints at the start.

use std::fmt;

use weir_engine::PolicySet;
use weir_engine::words::counted;
use weir_http::Instance;
use weir_settings::{LogFormat, PolicySource, Settings, StoreKind};
use weir_telemetry::logging;

use super::Addresses;

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit of this build; `unknown` if the build could not determine it. build.rs sets it.
pub const COMMIT: &str = env!("WEIR_COMMIT");

/// The name of this replica. In Kubernetes the host name is that of the pod.
pub(super) fn instance(settings: &Settings) -> Instance {
    let host = || {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        Some(name.trim().to_owned()).filter(|name| !name.is_empty())
    };
    let given = settings.tracing.service_instance_id.clone();
    Instance { name: given.or_else(host), version: VERSION.to_owned() }
}

pub(super) struct Banner {
    listeners: Vec<(String, String)>,
    store: String,
    charging: &'static str,
    cores: usize,
    policies: String,
    domains: usize,
    rules: usize,
}

impl Banner {
    pub(super) fn new(settings: &Settings, addresses: &Addresses, policies: &PolicySet) -> Self {
        let store = match settings.store {
            StoreKind::Memory => {
                format!(
                    "memory (at most {}, lost at the end)",
                    counted(settings.memory_keys(weir_lifecycle::memory_limit()), "key")
                )
            }
            StoreKind::Redis => {
                format!("redis ({}, at most {:?} a decision)", settings.redis.server.url, settings.redis.timeout)
            }
        };
        let tls = match &settings.listen.tls {
            None => "",
            Some(tls) if tls.client_ca_file.is_some() => " (TLS, clients need a certificate)",
            Some(_) => " (TLS)",
        };
        let grpc = addresses.grpc.iter().map(|listener| {
            (listener.name.clone(), format!("{}{}", listener.endpoint, if listener.is_plain { "" } else { tls }))
        });
        let others = [("http", Some(addresses.http)), ("admin", Some(addresses.admin)), ("metrics", addresses.metrics)];
        let others = others.into_iter().filter_map(|(name, address)| Some((name.to_owned(), address?.to_string())));
        let listeners = grpc.chain(others).collect();
        Self {
            listeners,
            store,
            charging: settings.charging.name(),
            cores: settings.runtime.cores().get(),
            policies: match (settings.policies.source, &settings.policies.xds.server) {
                (PolicySource::Xds, Some((host, port))) => format!("xds {host}:{port}"),
                _ => settings.policies.directory.display().to_string(),
            },
            domains: policies.domains().len(),
            rules: policies.rules().len(),
        }
    }

    /// Prints the banner if the log format is text; otherwise logs it as one event. Then logs an event for each
    /// listener.
    pub(super) fn show(&self, format: LogFormat) {
        match format {
            LogFormat::Text => logging::write(&self.to_string()),
            LogFormat::Json | LogFormat::JsonAt => tracing::info!(
                version = VERSION,
                commit = COMMIT,
                store = self.store,
                charging = self.charging,
                cores = self.cores,
                policies = self.policies,
                domains = self.domains,
                rules = self.rules,
                "starting"
            ),
        }
        for (listener, address) in &self.listeners {
            // The banner shows TLS. The address in the event does not, because programs read it.
            let address = address.split(' ').next();
            tracing::info!(listener, address, "listening");
        }
    }
}

impl fmt::Display for Banner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "weir {VERSION} (commit {COMMIT})")?;
        for (listener, address) in &self.listeners {
            writeln!(f, "  {listener:<9} {address}")?;
        }
        writeln!(f, "  store     {}", self.store)?;
        writeln!(f, "  charging  {}", self.charging)?;
        writeln!(f, "  cores     {}", self.cores)?;
        let (domains, rules) = (counted(self.domains, "domain"), counted(self.rules, "rule"));
        writeln!(f, "  policies  {} ({domains}, {rules})", self.policies)
    }
}
