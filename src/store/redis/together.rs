//! Waiting for several futures at once, in place of a crate for it: few of them, and each is asked again whenever one of
//! them may have moved.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// What all of them give, in their order.
pub(super) async fn all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut done = true;
        for (future, output) in running.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => done = false,
                }
            }
        }
        if done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

/// What the first of them to end gives. Without any it waits for ever.
pub(super) async fn first<F: Future>(futures: impl IntoIterator<Item = F>) -> F::Output {
    let mut running: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        for future in &mut running {
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                return Poll::Ready(value);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn after(ms: u64) -> u64 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        ms
    }

    #[tokio::test]
    async fn outputs_keep_the_order_of_their_futures() {
        assert_eq!(all([after(9), after(0), after(3)]).await, [9, 0, 3]);
        assert!(all(std::iter::empty::<std::future::Ready<u64>>()).await.is_empty());
    }

    #[tokio::test]
    async fn the_first_to_end_is_told() {
        assert_eq!(first([after(60_000), after(1), after(60_000)]).await, 1);
        let nobody = first(std::iter::empty::<std::future::Ready<u64>>());
        assert!(tokio::time::timeout(Duration::ZERO, nobody).await.is_err());
    }
}
