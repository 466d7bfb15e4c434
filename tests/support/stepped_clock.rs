//! A redis-server whose wall clock a test steps. It preloads a library, which needs a C compiler and a dynamic linker.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use tempfile::TempDir;

use super::redis::RedisServer;
use super::tools::{prepared, repository, skip, succeed};

/// The wall clock of one redis-server.
pub struct SteppedClock {
    /// How many seconds it is ahead, as the library reads it.
    ahead_s: File,
    _directory: TempDir,
}

impl SteppedClock {
    /// Starts a redis-server with a clock that is not stepped yet. None if it does not use the library; then the test is skipped.
    pub fn start() -> Option<(Self, RedisServer)> {
        let library = prepared("stepped-clock", |target| {
            let library = target.join("stepped_clock.so");
            let mut build = Command::new("cc");
            build.args(["-shared", "-fPIC", "-O2", "-o"]).arg(&library);
            build.arg(repository().join("tests/support/stepped_clock.c"));
            succeed(build);
            library
        });
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().join("ahead");
        let clock = Self { ahead_s: File::create_new(&path).expect("a new file"), _directory: directory };
        clock.set(0);
        let redis = RedisServer::start_in(&[("LD_PRELOAD", &library), ("STEPPED_CLOCK", &path)]);
        let seconds = || -> i64 {
            let time = redis.command(&["TIME"]).expect("redis answers TIME");
            time.lines().next().expect("two lines").parse().expect("seconds")
        };
        let before = seconds();
        clock.set(1_000_000);
        let is_stepped = seconds() >= before + 1_000_000;
        clock.set(0);
        if !is_stepped {
            skip("a redis-server that uses LD_PRELOAD");
        }
        is_stepped.then_some((clock, redis))
    }

    /// Sets how many seconds the clock is ahead of the machine's.
    pub fn set(&self, ahead_s: i64) {
        self.ahead_s.write_all_at(&ahead_s.to_ne_bytes(), 0).expect("a write to a small file");
    }
}
