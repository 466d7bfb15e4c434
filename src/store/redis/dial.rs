//! From an address to one open connection: TCP, TLS and Unix sockets, the login, and the master from sentinels.
//!
//! Not here: when a connection is made and reused (transport/pool.rs), and what is sent on it (transport/worker.rs).

pub(super) mod command_buffer;
pub(super) mod connection;
pub(super) mod credentials;
pub(super) mod endpoint;
pub(in crate::redis) mod fuzz;
pub(super) mod handshake;
pub(super) mod host_port;
pub(super) mod meter;
mod replies;
mod resp;
pub(super) mod sentinel;
pub(super) mod target;
