//! The stores: shared ones, and those of each runtime.
//!
//! Not here: how a Redis is dialled (redis.rs), and the reports about it (redis_health.rs).

use std::sync::Arc;

use weir_limiter::deny_cache::DenyCache;
use weir_settings::{Program, Settings, StoreKind};
use weir_store::memory::Memory;
use weir_store::redis::Redis;
use weir_store::redis::breaker::Circuit;
use weir_store::redis::turns::Turns;
use weir_store::{Store, SystemClock};
use weir_telemetry::metrics::Metrics;

use super::AppError;
use super::redis::{self, Deployment};
use super::redis_health::{Pool, RedisHealth};

#[derive(Clone)]
pub(super) enum Stores {
    Memory(Arc<dyn Store>),
    /// Stores for each runtime, which have their own connections.
    Redis(Box<Servers>),
}

#[derive(Clone)]
pub(super) struct Servers {
    settings: weir_settings::Redis,
    first: Deployment,
    per_second: Option<Deployment>,
    health: Arc<RedisHealth>,
    /// The turns of heavy calls, for all runtimes.
    turns: Turns,
}

#[derive(Clone)]
pub(super) struct Opened {
    pub(super) first: Arc<dyn Store>,
    /// The store of single limits per second, if it is a separate one.
    pub(super) per_second: Option<Arc<dyn Store>>,
}

impl Opened {
    pub(super) fn remote(&self) -> impl Iterator<Item = &Arc<dyn Store>> {
        std::iter::once(&self.first).chain(&self.per_second).filter(|store| !store.is_immediate())
    }
}

impl Stores {
    pub(super) fn new(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Self, AppError> {
        match settings.store {
            StoreKind::Memory => Ok(Self::Memory(memory(settings, metrics))),
            StoreKind::Redis => {
                let (first, per_second) = redis::deployments(&settings.redis, metrics)?;
                let health = RedisHealth::new(metrics);
                health.show_statistics(metrics, Pool::First);
                if per_second.is_some() {
                    health.show_statistics(metrics, Pool::PerSecond);
                }
                let settings = settings.redis.clone();
                Ok(Self::Redis(Box::new(Servers { settings, first, per_second, health, turns: Turns::default() })))
            }
        }
    }

    pub(super) fn open(&self) -> Opened {
        match self {
            Self::Memory(store) => Opened { first: store.clone(), per_second: None },
            Self::Redis(servers) => Opened {
                first: servers.open(&servers.first, Pool::First),
                per_second: servers.per_second.as_ref().map(|second| servers.open(second, Pool::PerSecond)),
            },
        }
    }

    /// A function that returns the worst circuit state of all runtimes.
    pub(super) fn circuit(&self) -> impl Fn() -> &'static str + Send + Sync + 'static {
        let health = match self {
            Self::Memory(_) => None,
            Self::Redis(servers) => Some(servers.health.clone()),
        };
        move || health.as_ref().map_or(Circuit::Closed, |health| health.circuit()).name()
    }

    /// A function that returns the number of calls that wait for Redis.
    pub(super) fn queue(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let health = match self {
            Self::Memory(_) => None,
            Self::Redis(servers) => Some(servers.health.clone()),
        };
        move || health.as_ref().map_or(0, |health| health.waiting())
    }
}

impl Opened {
    /// The memory store for `on_error: local`. None if the first store is the memory store.
    pub(super) fn local(&self, settings: &Settings, metrics: &Arc<Metrics>) -> Option<Arc<dyn Store>> {
        (!self.first.is_immediate()).then(|| memory(settings, metrics))
    }

    /// The cache of denials. None if the store is immediate.
    pub(super) fn deny_cache(&self, settings: &Settings) -> Option<Arc<DenyCache>> {
        let weir_settings::DenyCache { max_age, max_keys, .. } = settings.deny_cache;
        if self.first.is_immediate() || max_age.is_zero() {
            return None;
        }
        Some(Arc::new(match settings.program {
            Program::Weir => DenyCache::new(max_age, max_keys),
            Program::Ratelimit => DenyCache::of_complete_answers(max_age, max_keys),
        }))
    }
}

fn memory(settings: &Settings, metrics: &Arc<Metrics>) -> Arc<dyn Store> {
    let keys_max = settings.memory_keys(weir_lifecycle::memory_limit());
    let memory = Memory::new(keys_max, Arc::new(SystemClock), metrics.observer());
    Arc::new(memory.with_bytes_max(weir_lifecycle::MemoryPart::KEYS.bytes()))
}

impl Servers {
    fn open(&self, deployment: &Deployment, pool: Pool) -> Arc<dyn Store> {
        let prefix = &self.settings.key_prefix;
        let listener = self.health.listener(pool, matches!(deployment, Deployment::Cluster(_)));
        let options = redis::options(&self.settings, deployment, &self.turns, listener);
        Arc::new(match deployment {
            Deployment::Node(_) => Redis::start(options, prefix),
            Deployment::Proxy(_) => Redis::start_proxy(options, prefix),
            Deployment::Cluster(seeds) => Redis::start_cluster(seeds.clone(), options, prefix),
        })
    }
}
