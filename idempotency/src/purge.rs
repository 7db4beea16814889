//! Removing what is older than the retention, a little at a time.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use oncemq_core::Error;
use sqlx::Pool;
use tokio::sync::oneshot;

use crate::dialect::{Dialect, Value};
use crate::error::store;
use crate::inbox::{Inbox, Inner};

/// Between two looks while nothing is expired.
const PAUSE: Duration = Duration::from_secs(60);
/// Between two full steps at least. Claims come first: the purge takes a third of the time.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const SHARE: u32 = 2;

impl<DB: Dialect> Inbox<DB> {
    /// Removes one step's worth of expired rows, in a transaction of its own, and says how
    /// many it was. 0 means that nothing is expired, or that another process is at it. Age
    /// is measured by the database's clock.
    ///
    /// # Errors
    /// The database does not answer, or the account may not delete.
    pub async fn purge(&self) -> Result<u64, Error> {
        let age = i64::try_from(self.inner.retention.as_micros()).unwrap_or(i64::MAX);
        let batch = Value::Int(self.inner.batch.into());
        let mut removed = 0;
        for sql in [&self.inner.statements.purge_done, &self.inner.statements.purge_notes] {
            let values = vec![Value::Int(age), batch.clone()];
            let (_, rows) = self.aside(sql, values).await.map_err(|e| store("remove expired rows", e))?;
            removed += rows;
        }
        Ok(removed)
    }
}

/// Looks after a store until its last clone is gone or its pool is closed.
pub(crate) fn keep<T: Expires>(store: &Arc<T>, over: oneshot::Receiver<()>, purges: bool) {
    let weak = Arc::downgrade(store);
    let mut closed = store.pool().close_event();
    tokio::spawn(async move {
        tokio::select! {
            _ = over => {}
            () = &mut closed => {
                if let Some(store) = weak.upgrade() {
                    store.closing();
                }
            }
            () = purge(weak.clone(), purges) => {}
        }
    });
}

/// What has rows that expire.
pub(crate) trait Expires: Send + Sync + Sized + 'static {
    type DB: Dialect;
    fn pool(&self) -> &Pool<Self::DB>;
    /// The pool is being closed, which waits for all its connections.
    fn closing(&self) {}
    /// Rows of a step.
    fn batch(&self) -> u32;
    /// Removes one step's worth of expired rows.
    fn expire(self: Arc<Self>) -> impl Future<Output = Result<u64, Error>> + Send;
}

impl<DB: Dialect> Expires for Inner<DB> {
    type DB = DB;

    fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    fn closing(&self) {
        self.forget_lanes();
    }

    fn batch(&self) -> u32 {
        self.batch
    }

    async fn expire(self: Arc<Self>) -> Result<u64, Error> {
        Inbox { inner: self }.purge().await
    }
}

/// Purges for as long as somebody else holds the store.
async fn purge<T: Expires>(weak: Weak<T>, purges: bool) {
    if !purges {
        return std::future::pending().await;
    }
    loop {
        let Some(store) = weak.upgrade() else { return };
        let batch = store.batch();
        let started = Instant::now();
        let removed = store.expire().await;
        let pause = match removed {
            Ok(rows) if rows >= u64::from(batch) => (started.elapsed() * SHARE).max(PAUSE_MIN),
            // A store that does not answer is its user's to report; here it only waits.
            Ok(_) | Err(_) => PAUSE,
        };
        tokio::time::sleep(pause).await;
    }
}
