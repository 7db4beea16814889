//! How a run that waits for its ladder learns that its partition leaves.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Poll;

use crate::Ordering;

/// Whether the partition of a run leaves: said by its worker, asked for by the run.
///
/// Only runs whose ladder waits in place have it. Others go on to their end anyway, and a
/// message costs no allocation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leaving(Option<Arc<AtomicBool>>);

impl Leaving {
    /// For a run of a topic with this ordering.
    pub(crate) fn of(ordering: Ordering) -> Self {
        Self((ordering == Ordering::Ordered).then(Arc::default))
    }

    /// Says it. The run must be polled afterwards: nothing wakes it.
    pub(crate) fn say(&self) {
        if let Some(said) = &self.0 {
            said.store(true, SeqCst);
        }
    }

    /// Ends once it is said, also if that was before.
    pub(crate) async fn said(&self) {
        poll_fn(|_| match &self.0 {
            Some(said) if said.load(SeqCst) => Poll::Ready(()),
            _ => Poll::Pending,
        })
        .await;
    }
}
