//! Crash marks: they tell a message that ends its process.

use std::sync::Arc;

use super::patience::until_up;
use super::{End, Running};
use crate::fate::{MessageFate, RecordFate};
use crate::runtime::{Outcome, TopicEnv};
use crate::{Ack, Class, Marks, Note, Record, TrailId};

impl<R: Record, H, C> Running<R, H, C> {
    /// Leaves a crash mark for a suspect. One that was marked before waits for its turn
    /// alone first: a mark that it left while it waits would blame it for what another one
    /// does meanwhile.
    pub(super) async fn mark(&mut self) -> Note {
        if !self.suspect {
            return Note::default();
        }
        let shared = self.parts.topic.shared.clone();
        let beside = shared.alone.read().await;
        let note = self.leave_mark().await;
        if note.marks <= 1 || note.marks > self.parts.topic.crash_ceiling {
            return note;
        }
        self.take_marks(Marks::One).await;
        drop(beside);
        self.alone = true;
        self.turn = Some(shared.alone.clone().write_owned().await);
        self.leave_mark().await
    }

    async fn leave_mark(&mut self) -> Note {
        let note = until_up!(self, self.parts.record.mark(&self.entry.trail.id));
        self.mark = Some(MarkLeft {
            record: Some(self.parts.record.clone()),
            topic: self.parts.topic.clone(),
            id: self.entry.trail.id,
        });
        note
    }

    async fn take_marks(&mut self, marks: Marks) {
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

    pub(super) async fn too_many_deaths(&mut self, marks: u32) -> Outcome {
        // The last mark is of this time, and the first run may have left none.
        let reason = format!("its runs ended the process at least {} times", marks.saturating_sub(1));
        let end =
            End { message: MessageFate::Reject, record: RecordFate::Failed, class: Class::System, reason };
        self.finish(end).await
    }
}

/// A crash mark that this delivery left. When the run is dropped without an outcome, as at
/// the end of a shutdown's grace, the mark is taken back beside: the process did not die of
/// it.
pub(super) struct MarkLeft<R: Record> {
    record: Option<Arc<R>>,
    topic: Arc<TopicEnv>,
    id: TrailId,
}

impl<R: Record> Drop for MarkLeft<R> {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            let id = self.id;
            self.topic.shared.late.spawn(async move {
                // A mark that stays makes the next run careful, nothing more.
                let _ = record.unmark(&id, Marks::One).await;
            });
        }
    }
}
