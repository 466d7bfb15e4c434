//! placeholder until merged
#![allow(missing_docs)]
use crate::engine::{Charge, Mode, Outcome};
use std::time::Instant;
pub struct DenyCache;
impl DenyCache {
    pub fn new(_: std::time::Duration, _: usize) -> Self {
        Self
    }
    pub fn generation(&self) -> u64 {
        0
    }
    pub fn answers(&self, _c: &[Charge<'_>], _m: Mode, _n: Instant) -> Option<Vec<Option<Outcome>>> {
        None
    }
    pub fn insert(&self, _c: &Charge<'_>, _o: &Outcome, _s: Instant, _r: Instant, _g: u64) {}
    pub fn forget(&self, _k: &str) {}
    pub fn forget_refunds(&self, _c: &[Charge<'_>]) -> u8 {
        0
    }
}
