//! store

pub mod redis;
