//! Small writes that outlive the run that wanted them.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

/// Tasks that the consumer waits for, for a moment, before it ends.
#[derive(Debug, Default)]
pub(crate) struct Late {
    tasks: Mutex<JoinSet<()>>,
}

impl Late {
    /// Starts a task if there is a runtime to start it on; else the write is given up.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            while tasks.try_join_next().is_some() {}
            tasks.spawn_on(task, &runtime);
        }
    }

    /// Waits for all of them, at most `limit`.
    pub(crate) async fn finish(&self, limit: Duration) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        let all = async { while tasks.join_next().await.is_some() {} };
        // What is not done by then was only wanted, not promised.
        let _ = tokio::time::timeout(limit, all).await;
    }
}
