//! What became of deliveries, until the source applies it.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::{Instant, sleep};

use crate::{Message, Token};

/// What became of a delivery, as far as its partition has to know.
#[derive(Debug)]
#[non_exhaustive]
pub enum Answer {
    /// Nothing is left to do with it. If a copy stands for it, the copy is confirmed.
    Done(Token),
    /// It is to be handed out again: at once because it was given back, or not before this time.
    Back(Token, Message, Option<Instant>),
}

impl Answer {
    /// Which delivery it is about.
    pub fn token(&self) -> Token {
        let (Answer::Done(token) | Answer::Back(token, ..)) = self;
        *token
    }
}

/// The answers that are not applied yet, how many deliveries are out, and the task that polls.
///
/// Answers come from any thread and wait for nobody: they are kept apart from the state of the
/// partitions, and the source takes all of them at once when it looks at that state.
#[derive(Debug, Default)]
pub struct Answers {
    given: Mutex<Vec<Answer>>,
    outstanding: AtomicUsize,
    copies: AtomicUsize,
    waker: AtomicWaker,
}

impl Answers {
    /// Takes over an answer, frees the place of its delivery and wakes the task that polls.
    pub fn give(&self, answer: Answer) {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
        self.free();
    }

    /// Every answer so far, in the order they came.
    pub fn take(&self) -> Vec<Answer> {
        std::mem::take(&mut *self.given.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// So many deliveries were handed out.
    pub fn handed_out(&self, count: usize) {
        self.outstanding.fetch_add(count, SeqCst);
    }

    /// The place of a delivery has become free without an answer: its copy failed for good, and
    /// the broker delivers it again. Wakes the task that polls.
    pub fn free(&self) {
        self.outstanding.fetch_sub(1, SeqCst);
        self.waker.wake();
    }

    /// Deliveries that are handed out and have no answer, see
    /// [`Source::outstanding`](crate::Source::outstanding).
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(SeqCst)
    }

    /// Copies that are asked for and not confirmed.
    pub fn copying(&self) -> usize {
        self.copies.load(SeqCst)
    }

    /// Waits until every copy is confirmed, but not beyond `end`. Whether they are.
    pub async fn copied(&self, end: Instant) -> bool {
        // They are confirmed one by one; a look now and then is enough at an end.
        while self.copying() > 0 {
            if Instant::now() >= end {
                return false;
            }
            sleep(Duration::from_millis(2)).await;
        }
        true
    }

    pub(super) fn copy_begun(&self) {
        self.copies.fetch_add(1, SeqCst);
    }

    pub(super) fn copy_ended(&self) {
        self.copies.fetch_sub(1, SeqCst);
    }

    /// The task to wake. To be called before the source looks for the last time.
    pub fn register(&self, waker: &Waker) {
        self.waker.register(waker);
    }

    /// Wakes the task that polls: there is something to see.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }

    #[test]
    fn an_answer_frees_its_place_wakes_the_task_and_is_taken_once() {
        let (answers, woken) = (Answers::default(), Arc::new(Woken::default()));
        let token = |id| Token { epoch: 1, scope: 0, id };
        answers.handed_out(3);
        answers.register(&woken.clone().into());
        answers.give(Answer::Done(token(7)));
        assert!(woken.0.swap(false, SeqCst));
        answers.give(Answer::Back(token(8), Message::new(""), None));
        assert!(!woken.0.load(SeqCst), "woken twice for one look");
        assert_eq!(answers.outstanding(), 1);
        let ids: Vec<_> = answers.take().iter().map(|answer| answer.token().id).collect();
        assert_eq!((ids, answers.take().len()), (vec![7, 8], 0));
        answers.register(&woken.clone().into());
        answers.free();
        assert!(woken.0.load(SeqCst));
        assert_eq!(answers.outstanding(), 0);
    }
}
