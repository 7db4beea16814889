//! The gate before the intake: shut while a store does not answer.

use std::future::Future;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};

use crate::Error;

const WAIT_MIN: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Shut while at least one run waits for a store. Runs wait behind it and go on by
/// themselves; the intake takes nothing new meanwhile.
#[derive(Debug)]
pub(crate) struct Gate {
    waiting: AtomicUsize,
    /// One run asks the store, the others wait for its answer.
    asking: Semaphore,
    changed: Notify,
    reason: Mutex<String>,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            waiting: AtomicUsize::new(0),
            asking: Semaphore::new(1),
            changed: Notify::new(),
            reason: Mutex::default(),
        }
    }
}

/// Counts a waiting run as long as it lives, also if its future is dropped.
struct Waiting<'a>(&'a Gate);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, SeqCst) == 1 {
            self.0.changed.notify_waiters();
        }
    }
}

impl Gate {
    pub(crate) fn is_shut(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    /// Why it is shut.
    pub(crate) fn reason(&self) -> String {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Completes at the next change between shut and open, or of the reason.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    fn say(&self, error: &Error) {
        let text = error.to_string();
        let known = &mut *self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != text {
            *known = text;
            self.changed.notify_waiters();
        }
    }

    /// Shuts the gate, waits, and returns when the store answers again. `tries` counts the
    /// failures of the same step in a row, which stretch the wait: a store that answers the
    /// probe but refuses the step is not hammered.
    pub(crate) async fn wait<F, Fut>(&self, error: &Error, tries: u32, probe: F)
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<(), Error>>,
    {
        self.say(error);
        if self.waiting.fetch_add(1, SeqCst) == 0 {
            self.changed.notify_waiters();
        }
        let _waiting = Waiting(self);
        let mut wait = backoff(tries);
        loop {
            tokio::time::sleep(wait).await;
            // Closed never: the semaphore lives as long as the gate.
            let _turn = self.asking.acquire().await;
            match probe().await {
                Ok(()) => return,
                // Nearer to the cause than what the step met.
                Err(error) => self.say(&error),
            }
            wait = (wait * 2).min(WAIT_MAX);
        }
    }
}

fn backoff(tries: u32) -> Duration {
    WAIT_MIN.saturating_mul(2u32.saturating_pow(tries.min(16))).min(WAIT_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::ErrorKind;

    #[tokio::test(start_paused = true)]
    async fn runs_wait_until_the_store_answers_and_the_gate_opens_by_itself() {
        let gate = Arc::new(Gate::default());
        let up = Arc::new(AtomicBool::new(false));
        let waiters: Vec<_> = (0..10)
            .map(|_| {
                let (gate, up) = (gate.clone(), up.clone());
                tokio::spawn(async move {
                    let down = Error::new(ErrorKind::Store, "gone");
                    gate.wait(&down, 0, || async {
                        if up.load(SeqCst) { Ok(()) } else { Err(Error::new(ErrorKind::Store, "gone")) }
                    })
                    .await;
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(gate.is_shut() && gate.reason().contains("gone"));
        up.store(true, SeqCst);
        for waiter in waiters {
            waiter.await.unwrap();
        }
        assert!(!gate.is_shut());
    }

    #[tokio::test(start_paused = true)]
    async fn the_reason_is_what_the_last_probe_met_and_a_new_one_is_told() {
        let gate = Arc::new(Gate::default());
        let waiter = gate.clone();
        let task = tokio::spawn(async move {
            let late = Error::new(ErrorKind::Store, "no answer");
            waiter.wait(&late, 0, || async { Err(Error::new(ErrorKind::Store, "refused")) }).await;
        });
        let within = Duration::from_secs(1);
        assert!(tokio::time::timeout(within, gate.changed()).await.is_ok());
        assert_eq!(gate.reason(), "no answer");
        assert!(tokio::time::timeout(within, gate.changed()).await.is_ok());
        assert_eq!(gate.reason(), "refused");
        // The same again is no news.
        assert!(tokio::time::timeout(60 * within, gate.changed()).await.is_err());
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_wait_opens_the_gate() {
        let gate = Gate::default();
        let down = Error::new(ErrorKind::Store, "gone");
        let wait = gate.wait(&down, 0, || async { Err(Error::new(ErrorKind::Store, "gone")) });
        assert!(tokio::time::timeout(Duration::from_secs(1), wait).await.is_err());
        assert!(!gate.is_shut());
    }
}
