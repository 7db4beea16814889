//! How answers reach the broker.
//!
//! Most of them only move the watermark of their partition. Copies go through a task of
//! their own, and move it once they are confirmed.

mod copies;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use oncemq_core::partitions::Answer;
use oncemq_core::{Ack, Message, Settle, Token};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(crate) use copies::{Job, Purpose, run as run_copies};

use crate::source::Shared;

/// The side of the source that deliveries keep.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) shared: Arc<Shared>,
    pub(crate) jobs: mpsc::UnboundedSender<Job>,
}

impl Settle for Link {
    fn settle(&self, token: Token, message: Message, ack: Ack) {
        let purpose = match ack {
            Ack::Accept | Ack::Discard { .. } => return self.shared.answers.give(Answer::Done(token)),
            Ack::Retry(retry) => Purpose::Retry(retry),
            Ack::Reject(reject) => Purpose::Reject(reject),
            Ack::Defer { after } => {
                let due = Instant::now() + after;
                return self.shared.answers.give(Answer::Back(token, message, Some(due)));
            }
            // Also a word that this version does not know: nothing may be lost by it.
            _ => return self.shared.answers.give(Answer::Back(token, message, None)),
        };
        self.shared.copies.fetch_add(1, SeqCst);
        if self.jobs.send(Job::new(token, message, purpose)).is_err() {
            // Closed: the offset stays where it is, and the message comes again.
            self.shared.copies.fetch_sub(1, SeqCst);
            self.shared.answers.free();
        }
    }
}
