//! For tests only: parking_lot's mutex, and another thread can run before each lock and after each unlock. So shuttle
//! can try different schedules. In a test, a file uses it in place of parking_lot's.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

thread_local! {
    /// Whether shuttle schedules this thread. It runs its own threads here too.
    static EXPLORING: Cell<bool> = const { Cell::new(false) };
}

/// The number of schedules that a test tries.
const SCHEDULES: usize = 1_000;

/// Runs a test under random schedules. Prints a schedule that fails.
pub fn explore(test: impl Fn() + Send + Sync + 'static) {
    EXPLORING.set(true);
    shuttle::check_random(test, SCHEDULES);
    EXPLORING.set(false);
}

fn let_others_run() {
    if EXPLORING.get() && !std::thread::panicking() {
        shuttle::thread::yield_now();
    }
}

#[derive(Debug, Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        let_others_run();
        let guard = if EXPLORING.get() {
            // A thread that blocks in the mutex would prevent shuttle from running the thread that holds it.
            loop {
                match self.0.try_lock() {
                    Some(guard) => break guard,
                    None => let_others_run(),
                }
            }
        } else {
            self.0.lock()
        };
        MutexGuard(Some(guard))
    }
}

pub struct MutexGuard<'a, T>(Option<parking_lot::MutexGuard<'a, T>>);

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is locked until it is dropped")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("it is locked until it is dropped")
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.0 = None;
        let_others_run();
    }
}
