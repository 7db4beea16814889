//! The steps of a simulated process, at each of which it may die.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use tokio::sync::Notify;

thread_local! {
    /// The process that runs on this thread. A simulation has one thread, and several
    /// simulations run side by side in one test binary.
    static CURRENT: RefCell<Option<Steps>> = const { RefCell::new(None) };
}

/// Counts the steps of one process and ends it at a chosen one.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    passed: AtomicU64,
    /// The step at which the process dies; 0 means never.
    dies_at: AtomicU64,
    dead: AtomicBool,
    died: Notify,
}

impl Steps {
    /// A process that dies at this step, counted from 1; 0 means never.
    pub fn until(step: u64) -> Self {
        let steps = Self::default();
        steps.inner.dies_at.store(step, SeqCst);
        steps
    }

    /// Makes this the process of the current thread, for the places in core.
    pub fn enter(&self) {
        CURRENT.with(|current| *current.borrow_mut() = Some(self.clone()));
    }

    /// Passes a step: others may run, and the process may die here. A dead process never
    /// returns from it.
    pub async fn pass(&self) {
        let step = self.inner.passed.fetch_add(1, SeqCst) + 1;
        if step == self.inner.dies_at.load(SeqCst) {
            self.die();
        }
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Ends the process now.
    pub fn die(&self) {
        self.inner.dead.store(true, SeqCst);
        self.inner.died.notify_one();
    }

    /// Whether it is dead.
    pub fn is_dead(&self) -> bool {
        self.inner.dead.load(SeqCst)
    }

    /// Completes when it dies.
    pub async fn died(&self) {
        while !self.is_dead() {
            self.inner.died.notified().await;
        }
    }

    /// How many steps it has passed.
    pub fn passed(&self) -> u64 {
        self.inner.passed.load(SeqCst)
    }
}

/// The process of the current thread, if a simulation runs on it.
pub(crate) fn current() -> Option<Steps> {
    CURRENT.with(|current| current.borrow().clone())
}
