//! Where a consumer's deliveries come from.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use oncemq_core::{Error, Event, Settle, Source, Timer};

use crate::error;
use crate::hub::Hub;
use crate::state::Filled;

/// Names a source for as long as the broker lives; never given twice.
pub(crate) type SourceId = u32;

/// The deliveries of one consumer. Dropped without a close it is a lost connection: what is
/// out comes back flagged.
#[derive(Debug)]
pub(crate) struct MemorySource {
    hub: Arc<Hub>,
    id: SourceId,
    consumer: Arc<str>,
    settle: Arc<dyn Settle>,
    outstanding: Arc<AtomicUsize>,
    timer: Timer,
}

impl MemorySource {
    pub(crate) fn new(
        hub: Arc<Hub>,
        id: SourceId,
        consumer: Arc<str>,
        settle: Arc<dyn Settle>,
        outstanding: Arc<AtomicUsize>,
    ) -> Self {
        Self { hub, id, consumer, settle, outstanding, timer: Timer::default() }
    }
}

#[async_trait]
impl Source for MemorySource {
    fn poll_events(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
        events: &mut Vec<Event>,
    ) -> Poll<Result<(), Error>> {
        loop {
            let filled = self.hub.with(|state, wakes| {
                let filled = state.fill(self.id, max, events, &self.settle, wakes);
                if let Filled::Nothing { .. } = filled {
                    // Under the same lock, so that nothing that comes next is missed.
                    state.sleep(self.id, cx.waker());
                }
                filled
            });
            match filled {
                Filled::Something => return Poll::Ready(Ok(())),
                Filled::Ended => return Poll::Ready(Err(error::closed(&self.consumer))),
                Filled::Nothing { next_due } => {
                    if self.timer.poll(cx, next_due).is_pending() {
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    fn outstanding(&self) -> usize {
        self.outstanding.load(SeqCst)
    }

    async fn flush(&mut self, _limit: Duration) -> bool {
        // An answer is applied inside the hand-off.
        true
    }

    async fn close(&mut self, _limit: Duration) -> Result<(), Error> {
        self.hub.with(|state, wakes| state.detach(self.id, true, wakes));
        self.timer = Timer::default();
        Ok(())
    }
}

impl Drop for MemorySource {
    fn drop(&mut self) {
        self.hub.with(|state, wakes| state.detach(self.id, false, wakes));
    }
}
