//! weir in the place of envoyproxy/ratelimit: started by its name, with its environment variables, and asked as it is
//! asked.
//!
//! Recorded answers of envoyproxy/ratelimit are in recorded.rs, what each variable becomes in environment.rs, the programs in
//! program.rs, the listeners in endpoints.rs, the ways to Redis in redis.rs, and how Envoy Gateway runs it in gateway.rs.

mod endpoints;
mod environment;
mod gateway;
mod program;
mod recorded;
mod redis;
pub(crate) mod started;
mod statistics;
