//! What the tests share: other processes, and waiting. Not in here: what weir itself should answer.

#![allow(dead_code, unreachable_pub, reason = "each test binary includes this and uses a part of it")]

pub mod proxy;
pub mod redis;
pub mod wait;
