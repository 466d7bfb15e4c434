//! Which store, and one for each runtime that needs its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::redis::{self, Place};
use crate::config::settings::{self, Settings, StoreKind};
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
    /// One for each runtime, which has connections of its own; and another for limits per second, if they have their own.
    Redis { main: Box<Opener>, per_second: Option<Box<Opener>> },
}

impl Stores {
    pub(super) fn new(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Self, EndpointError> {
        match settings.store {
            StoreKind::Memory => {
                let memory = Memory::new(settings.memory.max_keys, Arc::new(SystemClock), metrics.observer());
                Ok(Self::Shared(Arc::new(memory)))
            }
            StoreKind::Redis => {
                let observer: Arc<dyn pool::Observer> = Arc::new(Complaints::default());
                let (main, per_second) = redis::places(&settings.redis)?;
                let opener = |place| Box::new(Opener::new(&settings.redis, place, observer.clone()));
                Ok(Self::Redis { main: opener(main), per_second: per_second.map(opener) })
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

    /// The store of the runtime that this is called on, and its store for limits per second.
    pub(super) fn open(&self) -> (Arc<dyn Store>, Option<Arc<dyn Store>>) {
        match self {
            Self::Shared(store) => (store.clone(), None),
            Self::Redis { main, per_second } => (main.open(), per_second.as_ref().map(|per_second| per_second.open())),
        }
    }
}

/// Makes stores over one Redis.
#[derive(Clone)]
pub(super) struct Opener {
    place: Place,
    options: Options,
    key_prefix: Arc<str>,
}

impl Opener {
    fn new(settings: &settings::Redis, place: Place, observer: Arc<dyn pool::Observer>) -> Self {
        let options = redis::options(settings, &place, observer);
        Self { place, options, key_prefix: settings.key_prefix.as_str().into() }
    }

    fn open(&self) -> Arc<dyn Store> {
        let (options, key_prefix) = (self.options.clone(), &self.key_prefix);
        Arc::new(match &self.place {
            Place::Node(_) => Redis::start(options, key_prefix),
            Place::Cluster(seeds) => Redis::start_cluster(seeds.clone(), options, key_prefix),
        })
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
