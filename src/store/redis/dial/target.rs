//! The target of a pool: one fixed address, or the master that sentinels name.
//!
//! Not here: how an address is dialled (endpoint.rs), and how a master is found (sentinel.rs).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;
use super::endpoint::Endpoint;
use super::sentinel::Sentinels;
use crate::redis::base::dial_error::DialError;
use crate::redis::base::observer::RedisObserver;

/// The target of a pool: a fixed address, or the address that sentinels name at the time of the dial.
#[derive(Clone, Debug)]
pub enum RedisTarget {
    /// Always the same address.
    Fixed(Endpoint),
    /// The master. Each dial asks the sentinels for it.
    Sentinel(Arc<Sentinels>),
}

impl RedisTarget {
    /// Opens a connection. A fixed address has no time limit here; sentinels get `within` in total.
    ///
    /// # Errors
    ///
    /// When there is no connection, with the reason for people. Never shows a password.
    pub(crate) async fn open(
        &self,
        observer: &Arc<dyn RedisObserver>,
        within: Duration,
    ) -> Result<Connection, DialError> {
        match self {
            RedisTarget::Fixed(endpoint) => endpoint.open(observer).await,
            RedisTarget::Sentinel(sentinels) => sentinels.open(observer, within).await,
        }
    }

    /// The task that detects that sentinels name another master. It gives each question `within`, and never ends. None
    /// for a fixed address.
    pub(crate) fn watch(
        &self,
        observer: Arc<dyn RedisObserver>,
        within: Duration,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        match self {
            RedisTarget::Fixed(_) => None,
            RedisTarget::Sentinel(sentinels) => Some(sentinels.clone().watch(observer, within)),
        }
    }
}

impl From<Endpoint> for RedisTarget {
    fn from(endpoint: Endpoint) -> RedisTarget {
        RedisTarget::Fixed(endpoint)
    }
}

impl From<Sentinels> for RedisTarget {
    fn from(sentinels: Sentinels) -> RedisTarget {
        RedisTarget::Sentinel(Arc::new(sentinels))
    }
}

impl fmt::Display for RedisTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedisTarget::Fixed(endpoint) => endpoint.fmt(f),
            RedisTarget::Sentinel(sentinels) => sentinels.fmt(f),
        }
    }
}
