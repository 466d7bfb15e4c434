//! Which store, and one for each runtime that needs its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::redis::{self, Place};
use crate::config::settings::{Settings, StoreKind};
use crate::limiter::deny_cache::DenyCache;
use crate::store::memory::Memory;
use crate::store::redis::Redis;
use crate::store::redis::pipeline::Options;
use crate::store::redis::pool::{self, DialError, EndpointError, FileError};
use crate::store::{Store, SystemClock};
use crate::telemetry::metrics::Metrics;

/// How often, at most, it is logged that Redis cannot be reached.
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// Makes stores.
#[derive(Clone)]
pub(super) enum Stores {
    /// One that all runtimes share.
    Shared(Arc<dyn Store>),
    /// One for each runtime, which has connections of its own.
    Redis { options: Box<Options>, key_prefix: Arc<str> },
}

impl Stores {
    pub(super) fn new(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Self, EndpointError> {
        match settings.store {
            StoreKind::Memory => {
                let memory = Memory::new(settings.memory.max_keys, Arc::new(SystemClock), metrics.observer());
                Ok(Self::Shared(Arc::new(memory)))
            }
            StoreKind::Redis => {
                let (place, _) = redis::places(&settings.redis)?;
                let Place::Node(target) = place else {
                    return Err(EndpointError::Url("a cluster is not reached by this version".into()));
                };
                let options = redis::options(&settings.redis, target, Arc::new(Complaints::default()));
                Ok(Self::Redis { options: Box::new(options), key_prefix: settings.redis.key_prefix.as_str().into() })
            }
        }
    }

    /// The store that carries on where the policies say so: an embedded one, and none where nothing else can fail.
    pub(super) fn local(&self, settings: &Settings, metrics: &Arc<Metrics>) -> Option<Arc<dyn Store>> {
        match self {
            Self::Shared(_) => None,
            Self::Redis { .. } => {
                Some(Arc::new(Memory::new(settings.memory.max_keys, Arc::new(SystemClock), metrics.observer())))
            }
        }
    }

    /// What keeps denials at hand, where asking the store costs a round trip.
    pub(super) fn deny_cache(&self, settings: &Settings) -> Option<Arc<DenyCache>> {
        let settings = &settings.deny_cache;
        match self {
            Self::Redis { .. } if !settings.max_age.is_zero() => {
                Some(Arc::new(DenyCache::new(settings.max_age, settings.max_keys)))
            }
            _ => None,
        }
    }

    /// A store for the runtime that this is called on.
    pub(super) fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Shared(store) => store.clone(),
            Self::Redis { options, key_prefix } => Arc::new(Redis::start((**options).clone(), key_prefix)),
        }
    }
}

/// Logs what keeps weir from Redis, seldom: the metrics tell how often.
#[derive(Default)]
struct Complaints {
    last: Mutex<Option<Instant>>,
    last_file: Mutex<Option<Instant>>,
}

impl pool::Observer for Complaints {
    fn dial_failed(&self, error: &DialError) {
        let mut last = self.last.lock();
        if last.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY) {
            *last = Some(Instant::now());
            tracing::warn!(store = "redis", "{error}");
        }
    }

    fn file_refused(&self, error: &FileError) {
        let mut last = self.last_file.lock();
        if last.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY) {
            *last = Some(Instant::now());
            tracing::warn!(store = "redis", "{error}; what it held before stays in force");
        }
    }

    fn connection_dropped(&self, reason: &str) {
        tracing::debug!(store = "redis", reason, "connection dropped");
    }
}
