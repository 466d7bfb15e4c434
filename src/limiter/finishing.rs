//! Requests whose callers have disconnected. A request that may have charged a hold runs to its end. The holds of an
//! answer that is not sent are released. [hd-9]
//!
//! The listeners (grpc, http) detect that a caller has disconnected.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// Whether a request must run to its end, even if its caller disconnects.
#[derive(Clone, Debug, Default)]
pub struct MustFinish(Arc<AtomicBool>);

impl MustFinish {
    /// The request must run to its end from now on.
    pub fn set(&self) {
        self.0.store(true, Relaxed);
    }
}

/// A running request. If it is dropped before its end and must finish, it continues in its own task.
pub struct Finishing<T: 'static> {
    request: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    must_finish: MustFinish,
}

impl<T> Finishing<T> {
    pub fn new(request: Pin<Box<dyn Future<Output = T> + Send>>, must_finish: MustFinish) -> Self {
        Self { request: Some(request), must_finish }
    }
}

impl<T> Future for Finishing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(request) = &mut self.request else { return Poll::Pending };
        let polled = request.as_mut().poll(context);
        if polled.is_ready() {
            self.request = None;
        }
        polled
    }
}

impl<T> Drop for Finishing<T> {
    fn drop(&mut self) {
        let Some(request) = self.request.take().filter(|_| self.must_finish.0.load(Relaxed)) else { return };
        if let Ok(runtime) = Handle::try_current() {
            // The task drops the request's answer.
            runtime.spawn(async move { drop(request.await) });
        }
    }
}

/// The action if a listener does not send an answer, because the caller has disconnected.
#[derive(Default)]
pub struct Untaken(Option<Box<dyn FnOnce() + Send>>);

impl Untaken {
    /// Calls `act` if the answer is not sent.
    pub fn then(act: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(act)))
    }

    /// The listener sends the answer, so there is nothing to do.
    pub fn taken(mut self) {
        self.0 = None;
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_request_that_is_dropped_goes_on_only_if_it_must() {
        for must in [false, true] {
            let must_finish = MustFinish::default();
            let ((go_on, waits), (tell, ended)) = (oneshot::channel::<()>(), oneshot::channel());
            let begun = must_finish.clone();
            let request = async move {
                if must {
                    begun.set();
                }
                let _ = waits.await;
                let _ = tell.send(());
            };
            let mut finishing = Box::pin(Finishing::new(Box::pin(request), must_finish));
            assert!(finishing.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            drop(finishing);
            let _ = go_on.send(());
            assert_eq!(ended.await.is_ok(), must);
        }
    }
}
