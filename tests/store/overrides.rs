//! What Redis promises about the text of all overrides, also for several who share it.
//!
//! Not here: what the text says, and what becomes of it (the limiter, service/operator/overrides.rs).

use std::time::Instant;

use weir_store::redis::pipeline::Options;
use weir_store::redis::{Endpoint, Redis};
use weir_store::{Inspected as _, OVERRIDES_BYTES_MAX, StoredOverrides, Texts as _};

use crate::support::redis::RedisServer;
use crate::support::wait::PATIENCE;

fn stored(version: &str, text: &str) -> StoredOverrides {
    StoredOverrides { version: version.to_owned(), text: Some(text.to_owned()) }
}

async fn read(store: &Redis, known: &str) -> Option<StoredOverrides> {
    store.read_overrides(known, Instant::now() + PATIENCE).get().await.expect("the store answers")
}

async fn write(store: &Redis, known: &str, with: &StoredOverrides) -> bool {
    store.write_overrides(known, with, Instant::now() + PATIENCE).get().await.expect("the store answers")
}

async fn keeps_the_contract(one: &Redis, other: &Redis) {
    let name = one.name();
    assert_eq!(read(one, "").await, None, "{name}: nothing is there");
    let first = stored("1", "a\n\u{e9}");
    assert!(!write(one, "0", &first).await && write(one, "", &first).await, "{name}");
    assert_eq!(read(other, "").await.as_ref(), Some(&first), "{name}");
    assert_eq!(read(other, "1").await, None, "{name}: it is known");
    // Of two who have read the same, one is first.
    let (second, third) = (stored("2", "b"), stored("3", "c"));
    assert!(write(other, "1", &second).await && !write(one, "1", &third).await, "{name}");
    assert_eq!(read(one, "1").await, Some(second), "{name}");
    let largest = stored("4", &"x".repeat(OVERRIDES_BYTES_MAX));
    assert!(write(one, "2", &largest).await, "{name}");
    assert!(read(other, "2").await == Some(largest), "{name}: the largest is read whole");
    assert!(write(one, "4", &stored("5", "")).await, "{name}");
    assert_eq!(read(one, "").await, Some(stored("5", "")), "{name}");
}

#[tokio::test]
async fn redis_replaces_overrides_only_if_nobody_was_faster() {
    let server = RedisServer::start();
    let redis = |prefix: &str| Redis::start(Options::new(Endpoint::parse(&server.url()).unwrap()), prefix);
    keeps_the_contract(&redis("a:"), &redis("a:")).await;
    assert_eq!(read(&redis("b:"), "").await, None, "another prefix has others");
    // No key of these expires, so that no policy of eviction prefers them.
    assert_eq!(server.command(&["TTL", "a:w1:{weir}overrides-version"]).unwrap().trim(), "-1");
    assert_eq!(server.command(&["TTL", "a:w1:{weir}overrides"]).unwrap().trim(), "-1");
}

#[tokio::test]
async fn what_others_wrote_to_redis_is_bounded() {
    let server = RedisServer::start();
    let redis = Redis::start(Options::new(Endpoint::parse(&server.url()).unwrap()), "");
    let long = format!("return redis.call('SET', KEYS[1], string.rep('x', {}))", OVERRIDES_BYTES_MAX + 1);
    let (text, version) = ("w1:{weir}overrides", "w1:{weir}overrides-version");
    server.command(&["EVAL", &long, "1", text]).unwrap();
    server.command(&["SET", version, "7"]).unwrap();
    assert_eq!(read(&redis, "").await, Some(StoredOverrides { version: "7".to_owned(), text: None }));
    // A version that weir never makes stands for itself, and can be replaced.
    server.command(&["EVAL", &long, "1", version]).unwrap();
    let strange = read(&redis, "7").await.unwrap();
    assert!(strange.version.len() < 64 && strange.text.is_none());
    assert_eq!(read(&redis, &strange.version).await, None);
    assert!(write(&redis, &strange.version, &stored("8", "a")).await);
    assert_eq!(read(&redis, "7").await, Some(stored("8", "a")));
    server.command(&["DEL", version]).unwrap();
    server.command(&["RPUSH", version, "x"]).unwrap();
    let refused = redis.read_overrides("8", Instant::now() + PATIENCE).get().await.unwrap_err();
    assert_eq!(refused.kind(), "wrongtype");
}
