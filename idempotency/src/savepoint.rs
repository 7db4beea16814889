//! Savepoints inside a handler's transaction.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::{Executor, SqlSafeStr};

use crate::dialect::Dialect;
use crate::slot::Slot;
use crate::tx::Db;

/// A savepoint of a [`Tx`](crate::Tx). Dropped without an end it is taken back before the
/// next statement.
pub struct Savepoint<'t, DB: Dialect> {
    slot: &'t Arc<Slot<DB>>,
    depth: usize,
    open: bool,
}

impl<'t, DB: Dialect> Savepoint<'t, DB> {
    pub(crate) async fn open(slot: &'t Arc<Slot<DB>>, depth: usize) -> Result<Self, sqlx::Error> {
        let mut savepoint = Self { slot, depth, open: false };
        savepoint.send(format!("SAVEPOINT {}", savepoint.name())).await?;
        savepoint.open = true;
        Ok(savepoint)
    }

    /// The executor for statements inside the savepoint.
    pub fn db(&mut self) -> Db<'_, DB> {
        Db::new(self.slot)
    }

    /// A savepoint inside this one.
    ///
    /// # Errors
    /// The transaction failed or is over, or the database refuses.
    pub fn savepoint(&mut self) -> BoxFuture<'_, Result<Savepoint<'_, DB>, sqlx::Error>> {
        Box::pin(Savepoint::open(self.slot, self.depth + 1))
    }

    /// Keeps what was done since.
    ///
    /// # Errors
    /// Something in it failed and was not taken back, or the database refuses.
    pub async fn release(mut self) -> Result<(), sqlx::Error> {
        self.send(format!("RELEASE SAVEPOINT {}", self.name())).await?;
        self.open = false;
        Ok(())
    }

    /// Takes back what was done since, and with it the failure of a statement. A deadlock
    /// or a lost connection cannot be taken back.
    ///
    /// # Errors
    /// The transaction is beyond that.
    pub async fn rollback(mut self) -> Result<(), sqlx::Error> {
        let name = self.name();
        self.open = false;
        self.send(format!("ROLLBACK TO SAVEPOINT {name}")).await?;
        self.send(format!("RELEASE SAVEPOINT {name}")).await
    }

    fn name(&self) -> String {
        format!("oncemq_savepoint_{}", self.depth)
    }

    async fn send(&self, text: String) -> Result<(), sqlx::Error> {
        Db::new(self.slot).execute(sqlx::AssertSqlSafe(text).into_sql_str()).await?;
        Ok(())
    }
}

impl<DB: Dialect> Drop for Savepoint<'_, DB> {
    fn drop(&mut self) {
        if self.open {
            self.slot.leave_savepoint(self.name());
        }
    }
}

impl<DB: Dialect> fmt::Debug for Savepoint<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Savepoint").field("depth", &self.depth).finish_non_exhaustive()
    }
}
