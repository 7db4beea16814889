//! Crash marks: they tell a message that ends its process.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::patience::until_up;
use super::{End, Running};
use crate::fate::{MessageFate, RecordFate};
use crate::runtime::{Outcome, TopicEnv};
use crate::{Ack, Class, Marks, Record, TrailId};

impl<R: Record, H, C> Running<R, H, C> {
    /// Leaves a crash mark for a suspect, but only when it is about to run: whatever has a mark
    /// when the process ends is blamed for it. So there are as many marks as units at most, and
    /// one that was marked before waits for its turn alone first, without another mark.
    ///
    /// Returns how the delivery ends if it may not run.
    pub(super) async fn mark(&mut self) -> Option<Outcome> {
        if !self.suspect {
            return None;
        }
        let stopped = Outcome { ack: Ack::Release, tally: self.tally };
        let shared = self.parts.topic.shared.clone();
        // Closed never.
        let place = self.parts.places.clone().acquire_owned().await.ok();
        let lock = shared.alone.clone().read_owned().await;
        if shared.shutdown.is_stopping() {
            return Some(stopped);
        }
        if self.leave_mark(1, place).await {
            self.beside = Some(lock);
            return None;
        }
        drop(lock);
        self.alone = true;
        self.turn = Some(shared.alone.clone().write_owned().await);
        if shared.shutdown.is_stopping() {
            return Some(stopped);
        }
        if self.leave_mark(self.parts.topic.crash_ceiling, None).await {
            return None;
        }
        Some(self.too_many_deaths().await)
    }

    /// Whether there were fewer marks, so that one is left now. Attempts that were charged while
    /// the message waited in a process that is gone are learnt from its note.
    async fn leave_mark(&mut self, below: u32, place: Option<OwnedSemaphorePermit>) -> bool {
        let note = until_up!(self, self.parts.record.mark(&self.entry.trail.id, below));
        let Some(note) = note else { return false };
        self.entry.trail.attempt = self.entry.trail.attempt.max(note.attempts);
        self.mark = Some(MarkLeft {
            record: Some(self.parts.record.clone()),
            topic: self.parts.topic.clone(),
            id: self.entry.trail.id,
            _place: place,
        });
        true
    }

    pub(super) async fn take_marks(&mut self, marks: Marks) {
        if let Some(mut mark) = self.mark.take() {
            until_up!(self, self.parts.record.unmark(&self.entry.trail.id, marks));
            mark.record = None;
        }
    }

    /// Takes marks back as the outcome says, before the broker is told.
    pub(super) async fn unmark(&mut self, ack: &Ack) {
        let marks = match ack {
            Ack::Defer { .. } | Ack::Release => Marks::One,
            _ => Marks::All,
        };
        self.take_marks(marks).await;
    }

    async fn too_many_deaths(&mut self) -> Outcome {
        let ceiling = self.parts.topic.crash_ceiling;
        let reason = format!("its runs ended the process at least {ceiling} times");
        let end =
            End { message: MessageFate::Reject, record: RecordFate::Failed, class: Class::System, reason };
        let outcome = self.finish(end).await;
        until_up!(self, self.parts.record.unmark(&self.entry.trail.id, Marks::All));
        outcome
    }
}

/// A crash mark that this delivery left. When the run is dropped without an outcome, as at
/// the end of a shutdown's grace, the mark is taken back beside: the process did not die of
/// it.
pub(super) struct MarkLeft<R: Record> {
    record: Option<Arc<R>>,
    topic: Arc<TopicEnv>,
    id: TrailId,
    /// Among the suspects that may run at once.
    _place: Option<OwnedSemaphorePermit>,
}

impl<R: Record> Drop for MarkLeft<R> {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            let id = self.id;
            self.topic.shared.late.spawn(async move {
                // A store that does not answer keeps it, as it does after a crash.
                let _ = record.unmark(&id, Marks::One).await;
            });
        }
    }
}
