//! Processes that live, die and are started again over one broker and one store.

use std::future::Future;
use std::time::Duration;

use super::{SimStore, Steps};
use crate::{Consumer, Error, Shutdown, Summary};

/// How one process ended.
#[derive(Debug)]
pub enum Process {
    /// It died at a step. How many it had passed.
    Died(u64),
    /// It stopped when asked to.
    Stopped(Result<Summary, Error>),
}

/// A store that outlives processes.
#[derive(Debug, Clone)]
pub struct World {
    /// The store.
    pub store: SimStore,
}

impl World {
    /// A world around a store.
    pub fn new(store: SimStore) -> Self {
        Self { store }
    }

    /// Runs one process until it dies at step `dies_at` (0: never) or `until` completes,
    /// which stops it gently. `build` makes the consumer from the store as this process
    /// sees it; `cut` is called at a death before anything of the process is dropped, and
    /// must make the broker treat its connections as gone.
    ///
    /// Must be called on a current-thread runtime with a paused clock.
    pub async fn process(
        &self,
        dies_at: u64,
        build: impl FnOnce(SimStore) -> Consumer,
        until: impl Future<Output = ()>,
        cut: impl FnOnce(),
    ) -> Process {
        let steps = Steps::until(dies_at);
        steps.enter();
        let shutdown = Shutdown::new();
        let consumer = build(self.store.for_process(&steps)).shutdown(shutdown.clone());
        let run = tokio::spawn(consumer.run());
        let abort = run.abort_handle();
        tokio::pin!(run);
        let stopped = async {
            until.await;
            shutdown.stop();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = steps.died() => {}
            ended = &mut run => {
                let ended = ended.unwrap_or_else(|error| {
                    Err(Error::new(crate::ErrorKind::Internal, error.to_string()))
                });
                return Process::Stopped(ended);
            }
            () = stopped => {}
        }
        // First the world lets go of the process, then the process is taken apart: nothing
        // that its destructors say may be heard.
        cut();
        self.store.drop_open_units();
        abort.abort();
        // Its tasks are dropped when they are next scheduled.
        tokio::time::sleep(Duration::from_millis(1)).await;
        Process::Died(steps.passed())
    }
}
