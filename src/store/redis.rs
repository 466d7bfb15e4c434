//! The store on Redis.

pub mod pipeline;
pub mod pool;
