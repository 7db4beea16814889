//! A stream that is written as an async block.
//!
//! The block may keep a connection and a stream that borrows it side by side, which a
//! hand-written state machine cannot without unsafe code.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_core::future::BoxFuture;

/// Where the block puts its items.
pub(crate) struct Out<T> {
    cell: Arc<Mutex<Option<T>>>,
}

impl<T> Out<T> {
    /// Hands one item out and goes on when the next one is asked for.
    pub(crate) async fn item(&mut self, item: T) {
        *self.cell.lock().unwrap_or_else(PoisonError::into_inner) = Some(item);
        let mut asked_again = false;
        std::future::poll_fn(|_| {
            // Pending without a wake-up: the stream below returns the item, and its next
            // poll is what continues here.
            match std::mem::replace(&mut asked_again, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// The stream side of a block.
pub(crate) struct Flow<'e, T> {
    block: Option<BoxFuture<'e, Result<(), sqlx::Error>>>,
    cell: Arc<Mutex<Option<T>>>,
}

impl<'e, T: Send + 'e> Flow<'e, T> {
    pub(crate) fn new<F, Fut>(block: F) -> Self
    where
        F: FnOnce(Out<T>) -> Fut,
        Fut: Future<Output = Result<(), sqlx::Error>> + Send + 'e,
    {
        let cell = Arc::new(Mutex::new(None));
        let block = block(Out { cell: cell.clone() });
        Self { block: Some(Box::pin(block)), cell }
    }
}

impl<T> Stream for Flow<'_, T> {
    type Item = Result<T, sqlx::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(block) = &mut this.block else { return Poll::Ready(None) };
        let polled = block.as_mut().poll(cx);
        if let Poll::Ready(end) = polled {
            this.block = None;
            return Poll::Ready(end.err().map(Err));
        }
        match this.cell.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(item) => Poll::Ready(Some(Ok(item))),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test]
    async fn items_come_one_by_one_and_an_error_ends_the_stream() {
        let mut flow = Flow::new(|mut out| async move {
            out.item(1).await;
            tokio::task::yield_now().await;
            out.item(2).await;
            Err(sqlx::Error::RowNotFound)
        });
        assert_eq!(flow.next().await.unwrap().unwrap(), 1);
        assert_eq!(flow.next().await.unwrap().unwrap(), 2);
        assert!(flow.next().await.unwrap().is_err());
        assert!(flow.next().await.is_none());
    }
}
