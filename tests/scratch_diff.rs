//! Scratch.
mod support;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant};
use support::redis::RedisServer;
use weir::engine::observer::Silent;
use weir::engine::*;
use weir::store::{
    Clock, Store, Undo,
    memory::Memory,
    redis::{Redis, pipeline::Options, pool::Endpoint},
};

struct Manual(AtomicU64);
impl Clock for Manual {
    fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d049bb133111eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}
const BASE: u64 = 2_240_611_200_000_000;

#[tokio::test]
async fn all_the_same() {
    let server = RedisServer::start();
    let mut options = Options::new(Endpoint::parse(&server.url()).unwrap());
    options.connections = 1;
    let mut redis = Redis::start(options, "").at(BASE);
    let cases: u64 = std::env::var("CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(200);
    let seed0: u64 = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    for case in 0..cases {
        let seed = seed0 + case;
        let mut rng = Rng(seed * 7919);
        let clock = Arc::new(Manual(AtomicU64::new(BASE)));
        let memory = Memory::new(1_000_000, clock.clone(), Arc::new(Silent));
        let mut now = BASE + rng.below(10_000_000);
        // a few keys, each with a shape and several limits
        let window_us = rng.one(&[1_000u64, 50_000, 1_000_000, 60_000_000, 3_600_000_000, 366 * 86_400_000_000]);
        let back = rng.below(2) == 0;
        let nkeys = if back { 1 } else { 1 + rng.below(3) };
        let mut keys = Vec::new();
        for k in 0..nkeys {
            let window = Window::from_micros(window_us).unwrap();
            let kind = rng.below(9);
            let mut limits = Vec::new();
            let fixed = rng.one(&[1u32, 2, 3, 7, 1000]);
            for _ in 0..3 {
                let requests = rng.one(&[0u32, 1, 2, 3, 5, 7, 10, 100, 1000, 10_000, u32::MAX]);
                let burst = rng.one(&[1u32, 2, 3, 7, 10, 100]);
                let requests = if kind == 5 {
                    fixed
                } else if kind == 4 {
                    requests.min(10_000)
                } else {
                    requests
                };
                let alg = match kind {
                    0 => Algorithm::FIXED_WINDOW,
                    1 => Algorithm::FixedWindow { anchor: Anchor::FirstHit },
                    2 => Algorithm::SlidingWindowCounter,
                    3 => Algorithm::SlidingWindow { precision: Precision::new(window.us() / 5).unwrap() },
                    4 => Algorithm::SlidingWindowLog,
                    5 => Algorithm::TokenBucket { burst, refill: Refill::Interval },
                    6 => Algorithm::LeakyBucket { burst },
                    7 => Algorithm::FixedWindow { anchor: Anchor::Calendar(CalendarUnit::Day) },
                    _ => Algorithm::Gcra { burst },
                };
                let Ok(mut limit) = Limit::new(requests, window, alg) else { continue };
                limit.drain = rng.below(3) == 0;
                limit.post_paid = kind != 4 && rng.below(3) == 0;
                limits.push(limit);
            }
            if limits.is_empty() {
                limits.push(Limit::per_unit(3, Unit::Hour));
            }
            keys.push((format!("c{seed}k{k}"), limits));
        }
        let mut receipts: Vec<(usize, usize, Receipt)> = Vec::new();
        let mut log = Vec::new();
        for _step in 0..40 {
            let w = keys[rng.below(nkeys) as usize].1[0].window().us();
            now = match rng.below(12) {
                0..=2 => now,
                3 => now + 1,
                4 => now + w,
                5 if back => now - rng.below(2_000_000),
                6 if rng.below(4) == 0 && back && window_us > 10_000 => now - 3_600_000_000,
                7 => now + w * rng.below(4),
                _ => now + rng.below(w),
            };
            now = now.clamp(BASE / 2, 1 << 52);
            clock.0.store(now, Ordering::SeqCst);
            redis.set_now(now);
            let deadline = Instant::now() + Duration::from_secs(5);
            if rng.below(10) == 0 && !receipts.is_empty() {
                let i = rng.below(receipts.len() as u64) as usize;
                let (k, l, receipt) = receipts.swap_remove(i);
                let (key, limits) = &keys[k];
                let bounds = bounds(&limits[l], now);
                let undo = [Undo { key, limit: &limits[l], receipt, bounds }];
                log.push(format!("{now} undo {undo:?}"));
                memory.undo(&undo, deadline).get().await.unwrap();
                redis.undo(&undo, deadline).get().await.unwrap();
            } else {
                let n = 1 + rng.below(3);
                let mut charges = Vec::new();
                let mut who = Vec::new();
                for g in 0..n {
                    let k = rng.below(nkeys) as usize;
                    let l = rng.below(keys[k].1.len() as u64) as usize;
                    let limit = &keys[k].1[l];
                    let cap = limit.capacity();
                    let hits = rng.one(&[1, 1, 1, 2, 3, cap.max(1), (cap / 2).max(1), cap.saturating_add(1)]);
                    let take = match rng.below(8) {
                        0 => Take::Look,
                        1 => Take::Give(hits),
                        2 if !matches!(limit.algorithm(), Algorithm::SlidingWindowLog) => Take::Force(hits),
                        _ => Take::Take(hits),
                    };
                    let role = rng.one(&[Role::Enforced, Role::Enforced, Role::Shadow, Role::Quota]);
                    charges.push(Charge {
                        key: &keys[k].0,
                        limit,
                        take,
                        group: g as u16,
                        role,
                        share: 1,
                        bounds: bounds(limit, now),
                    });
                    who.push((k, l));
                }
                let mode = rng.one(&[Mode::Atomic, Mode::Atomic, Mode::Independent]);
                log.push(format!("{now} {mode:?} {charges:?}"));
                let a = memory.decide(&charges, mode, deadline).get().await;
                let b = redis.decide(&charges, mode, deadline).get().await;
                if a != b {
                    panic!(
                        "seed {seed}\n{}\nmemory {a:?}\nredis {b:?}",
                        log.iter().rev().take(3).rev().cloned().collect::<Vec<_>>().join("\n")
                    );
                }
                for (o, (k, l)) in a.unwrap().outcomes.iter().zip(who) {
                    if let Some(r) = o.receipt {
                        receipts.push((k, l, r));
                    }
                }
            }
            let ask: Vec<(&str, &Limit)> = keys.iter().map(|(k, l)| (k.as_str(), &l[0])).collect();
            let a = memory.peek(&ask, deadline).get().await.unwrap();
            let b = redis.peek(&ask, deadline).get().await.unwrap();
            if std::env::var("DBG").is_ok() {
                eprintln!("{}\n  {:?}\n  {:?}", log.last().unwrap(), a.states, b.states);
            }
            for ((a, b), (k, l)) in a.states.iter().zip(&b.states).zip(&keys) {
                let bo = bounds(&l[0], now);
                // an expired state may be gone in one and not in the other
                let dead = |s: &Option<State>| {
                    s.as_ref().is_none_or(|s| algorithm::seen(&l[0], Some(s), 0, bo, now).is_empty(now))
                };
                if a != b && !(dead(a) && dead(b)) {
                    panic!(
                        "seed {seed} state of {k}\n{}\nmemory {a:?}\nredis {b:?}",
                        log.iter().rev().take(3).rev().cloned().collect::<Vec<_>>().join("\n")
                    );
                }
            }
        }
    }
}
fn bounds(limit: &Limit, now: u64) -> Option<[u64; 4]> {
    matches!(limit.algorithm().anchor(), Anchor::Calendar(_)).then(|| {
        let d = 86_400_000_000;
        let b = now / d * d;
        [b - d, b, b + d, b + 2 * d]
    })
}
