//! How items reach workers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

use super::Item;
use crate::Scope;

/// What a worker is told.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A delivery whose order key belongs to this worker.
    Item(Item),
    /// Queued deliveries of this scope are given back.
    Revoke(Scope),
    /// Nothing new is started; what runs may finish.
    Stop,
}

/// One worker's mailbox. Taken whole; only a sleeping worker is woken.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Vec<Mail>>,
    waker: Mutex<Option<Waker>>,
    asleep: AtomicBool,
}

impl Mailbox {
    pub(crate) fn push(&self, mail: Mail) {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner).push(mail);
    }

    pub(crate) fn extend(&self, mail: &mut Vec<Mail>) {
        if !mail.is_empty() {
            self.mail.lock().unwrap_or_else(PoisonError::into_inner).append(mail);
            self.wake();
        }
    }

    /// Swaps everything into `into`, which must be empty.
    pub(crate) fn take(&self, into: &mut Vec<Mail>) {
        std::mem::swap(&mut *self.mail.lock().unwrap_or_else(PoisonError::into_inner), into);
    }

    /// Wakes the worker if it sleeps. Returns whether it did.
    pub(crate) fn wake(&self) -> bool {
        if !self.asleep.swap(false, SeqCst) {
            return false;
        }
        if let Some(waker) = &*self.waker.lock().unwrap_or_else(PoisonError::into_inner) {
            waker.wake_by_ref();
        }
        true
    }

    /// Called by the worker before it looks for work the last time in a poll: anything that
    /// comes later wakes it.
    pub(crate) fn fall_asleep(&self, waker: &Waker) {
        let mut slot = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        match &*slot {
            Some(known) if known.will_wake(waker) => {}
            _ => *slot = Some(waker.clone()),
        }
        drop(slot);
        self.asleep.store(true, SeqCst);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

/// Places that an empty queue keeps.
const ROOM_KEPT: usize = 4096;

/// The queue of deliveries that nothing orders. A worker takes a few when it has room, so a
/// blocked worker holds none of them.
#[derive(Debug, Default)]
pub(crate) struct SharedQueue {
    items: Mutex<VecDeque<Item>>,
}

impl SharedQueue {
    pub(crate) fn extend(&self, items: &mut Vec<Item>) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).extend(items.drain(..));
    }

    /// Moves at most `most` items into `into`.
    pub(crate) fn take(&self, most: usize, into: &mut Vec<Item>) {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let n = most.min(items.len());
        into.extend(items.drain(..n));
        if items.is_empty() && items.capacity() > ROOM_KEPT {
            // A burst must not hold its memory for ever.
            items.shrink_to(ROOM_KEPT);
        }
    }

    /// Removes what belongs to a scope and returns it, to be dropped outside the lock.
    pub(crate) fn revoke(&self, scope: &Scope) -> Vec<Item> {
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        for item in std::mem::take(&mut *items) {
            if scope.contains(item.delivery.message().origin()) {
                gone.push(item);
            } else {
                items.push_back(item);
            }
        }
        gone
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
