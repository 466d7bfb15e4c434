//! What the tests share: other processes, clients and waiting. Not in here: what weir itself should
//! answer.

#![allow(dead_code, unreachable_pub, reason = "a module of every test binary, each of which uses a part of it")]

pub mod authority;
pub mod envoy;
pub mod http;
pub mod load;
pub mod process;
pub mod proxy;
pub mod python;
pub mod redis;
pub mod rls;
pub mod seen;
pub mod sentinel;
pub mod served;
pub mod shop;
pub mod wait;
