//! Work that may block, or that takes milliseconds, off the runtime.

use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinHandle};

/// Runs `work` on a thread for blocking work, so the runtime's other tasks continue. A panic propagates to the caller.
pub async fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    output(tokio::task::spawn_blocking(work).await).await
}

/// Runs `work` as a task of another runtime. A panic propagates to the caller.
///
/// Dropping this aborts the task, unless `left` has a permit for it. With a permit the task goes on to its end, so that
/// what follows a change, such as its line in a log, follows always.
pub async fn on_runtime<T: Send + 'static>(
    runtime: &Handle,
    left: Option<&Arc<Semaphore>>,
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    struct Leaves<'a, T: Send + 'static> {
        task: Option<JoinHandle<T>>,
        runtime: &'a Handle,
        left: Option<&'a Arc<Semaphore>>,
    }
    impl<T: Send + 'static> Drop for Leaves<'_, T> {
        fn drop(&mut self) {
            let Some(task) = self.task.take_if(|task| !task.is_finished()) else { return };
            match self.left.and_then(|left| left.clone().try_acquire_owned().ok()) {
                Some(permit) => drop(self.runtime.spawn(async move {
                    // Its caller does not see a panic.
                    let _ = task.await;
                    drop(permit);
                })),
                None => task.abort(),
            }
        }
    }
    let mut leaves = Leaves { task: Some(runtime.spawn(work)), runtime, left };
    match &mut leaves.task {
        Some(task) => output(task.await).await,
        None => pending().await,
    }
}

async fn output<T>(joined: Result<T, JoinError>) -> T {
    match joined {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is shutting down, and will drop this task.
            Err(_) => pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_change_goes_on_without_its_caller_up_to_a_bound() {
        let (runtime, left) = (Handle::current(), Arc::new(Semaphore::new(1)));
        let change = || {
            let ((ends, ended), (go, gone)) = (oneshot::channel(), oneshot::channel::<()>());
            let work = async move {
                gone.await.unwrap();
                ends.send(()).unwrap();
            };
            (go, work, ended)
        };
        let leave = async |work| {
            tokio::select! {
                () = on_runtime(&runtime, Some(&left), work) => unreachable!("it waits"),
                () = tokio::task::yield_now() => {}
            }
        };
        let (go, work, ended) = change();
        leave(work).await;
        let (_second, work, aborted) = change();
        leave(work).await;
        assert!(aborted.await.is_err(), "one at a time goes on alone");
        go.send(()).unwrap();
        ended.await.expect("the first has ended by itself");
        let _permit = left.acquire().await.expect("it gives its permit back");
        let (go, work, ended) = change();
        go.send(()).unwrap();
        on_runtime(&runtime, Some(&left), work).await;
        ended.await.expect("with its caller");
    }

    #[test]
    fn work_of_another_runtime_ends_when_nobody_waits_for_it() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (here, elsewhere, (stop, stopped)) = (runtime(), runtime(), oneshot::channel::<()>());
        let other = elsewhere.handle().clone();
        let thread = std::thread::spawn(move || elsewhere.block_on(stopped));
        here.block_on(async {
            let thread = std::thread::current().id();
            let moved = on_runtime(&other, None, async move { std::thread::current().id() != thread });
            assert!(moved.await);
            let ((begins, begun), (held, holds)) = (oneshot::channel(), oneshot::channel::<()>());
            let work = async move {
                let _held = held;
                begins.send(()).unwrap();
                pending::<()>().await;
            };
            tokio::select! {
                () = on_runtime(&other, None, work) => unreachable!("it does not end"),
                begun = begun => begun.unwrap(),
            }
            assert!(holds.await.is_err());
        });
        drop(stop);
        assert!(thread.join().unwrap().is_err(), "nothing was sent");
    }
}
