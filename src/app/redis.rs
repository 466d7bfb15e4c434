//! The options of Redis from the settings: the address of each server, and how it is dialled.
//!
//! Not here: which limits go to which server, and the stores (stores.rs).

use std::sync::Arc;

use weir_settings::{RedisServer, RedisTls, Secret, Topology};
use weir_store::redis::pipeline::Options;
use weir_store::redis::turns::Turns;
use weir_store::redis::{Endpoint, RedisObserver, RedisTarget, Sentinels, breaker};
use weir_telemetry::metrics::Metrics;
use weir_tls::TlsFiles;

use super::{AppError, certificates};

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

#[derive(Clone)]
pub(super) enum Deployment {
    /// One server at a time.
    Node(RedisTarget),
    /// One address in front of a cluster.
    Proxy(RedisTarget),
    /// A cluster, found by these nodes.
    Cluster(Vec<Endpoint>),
}

/// The first Redis, and the Redis for limits per second if there is one. Reads their files once.
///
/// # Errors
/// With the first unusable address or file.
pub(super) fn deployments(
    redis: &weir_settings::Redis,
    metrics: &Metrics,
) -> Result<(Deployment, Option<Deployment>), AppError> {
    let open = |server, used_for| deployment(server, &redis.tls, used_for, metrics);
    let first = open(&redis.server, "redis")?;
    let second = redis.per_second.as_ref().map(|server| open(server, "redis_per_second")).transpose()?;
    Ok((first, second))
}

/// How a Redis is dialled and used: the same for all servers, and for every node of a cluster.
pub(super) fn options(
    redis: &weir_settings::Redis,
    deployment: &Deployment,
    turns: &Turns,
    observer: Arc<dyn RedisObserver>,
) -> Options {
    let mut options = Options::new(match deployment {
        Deployment::Node(target) | Deployment::Proxy(target) => target.clone(),
        Deployment::Cluster(seeds) => seeds[0].clone().into(),
    });
    // Each setting is named, so that the compiler reports a new one.
    let weir_settings::Redis {
        server: _,
        tls: _,
        per_second: _,
        timeout,
        connect_timeout,
        pool_size,
        queue,
        batch_max,
        merge_max,
        key_prefix: _,
        breaker,
        ready_after: _,
        start_within: _,
    } = redis;
    let &weir_settings::Breaker { error_percent, calls, window, probe } = breaker;
    options.connections = *pool_size;
    options.connect_timeout = *connect_timeout;
    options.queue_max = *queue;
    options.batch_max = *batch_max;
    options.merge_max = *merge_max;
    options.breaker = breaker::BreakerSettings { window, calls, error_percent, probe, timeout: *timeout };
    options.turns = turns.clone();
    options.observer = observer;
    options
}

fn deployment(
    server: &RedisServer,
    tls: &RedisTls,
    used_for: &'static str,
    metrics: &Metrics,
) -> Result<Deployment, AppError> {
    let username = server.username.as_ref().map(Secret::expose);
    let password = server.password.as_ref().map(Secret::expose);
    let mut endpoint = Endpoint::parse(server.url.expose())?.with_tls(tls_files(tls)).with_login(username, password);
    if let Some(path) = &server.password_file {
        endpoint = endpoint.with_password_file(path);
    }
    if let Some(tls) = endpoint.tls() {
        certificates::show(used_for, tls.validity(), metrics);
    }
    endpoint.check()?;
    match (server.topology, &server.sentinel) {
        (Topology::Cluster, _) => {
            let places = server.url.places(REDIS_PORT);
            Ok(Deployment::Cluster(places.iter().map(|(host, port)| endpoint.at(host, *port)).collect()))
        }
        (_, Some(sentinel)) => {
            let username = sentinel.username.as_ref().map(Secret::expose);
            let password = sentinel.password.as_ref().map(Secret::expose);
            let mut asked = endpoint.clone().without_login().with_login(username, password);
            if let Some(path) = &sentinel.password_file {
                asked = asked.with_password_file(path);
            }
            asked.check()?;
            let places = server.url.places(SENTINEL_PORT);
            let sentinels = places.iter().map(|(host, port)| asked.at(host, *port)).collect();
            Ok(Deployment::Node(Sentinels::new(&sentinel.master, sentinels, endpoint).into()))
        }
        (Topology::Proxy, None) => Ok(Deployment::Proxy(endpoint.into())),
        (_, None) => Ok(Deployment::Node(endpoint.into())),
    }
}

fn tls_files(tls: &RedisTls) -> TlsFiles {
    let RedisTls { ca_file, cert_file, key_file, server_name, system_store_always, skip_hostname_verification } = tls;
    TlsFiles {
        system_store_always: *system_store_always,
        any_name: *skip_hostname_verification,
        server_name: server_name.clone(),
        ..TlsFiles::of(ca_file.clone(), cert_file.clone(), key_file.clone())
    }
}
