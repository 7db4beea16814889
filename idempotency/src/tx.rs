//! What a handler writes its effect with.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use futures_core::future::BoxFuture;
use futures_core::stream::BoxStream;
use oncemq_core::{Context, KeyValue, Message};
use sqlx::{Describe, Either, Execute, Executor, SqlStr};

use crate::dialect::Dialect;
use crate::error::refused;
use crate::execute::Statement;
use crate::flow::Flow;
use crate::lane::secret;
use crate::savepoint::Savepoint;
use crate::slot::{Hold, Slot};
use crate::sql_text;

/// The transaction of one message, on loan to a handler: what is written through it commits
/// together with "this key is done", or not at all.
///
/// Drop it before the handler returns, which an argument of an async function does by
/// itself. A handler that keeps it has failed: the transaction is rolled back, and further
/// use of the loan is an error. Do not wait for slow remote calls in it: the transaction
/// holds a connection and the key.
///
/// ```no_run
/// # #[cfg(feature = "postgres")] mod m {
/// use oncemq_core::Failure;
/// use oncemq_idempotency::Tx;
/// use sqlx::Postgres;
///
/// # struct OrderCompleted { user_id: i64, points: i64 }
/// async fn add_points(mut tx: Tx<Postgres>, m: OrderCompleted) -> Result<(), Failure> {
///     let n = sqlx::query("UPDATE account SET points = points + $1 WHERE user_id = $2")
///         .bind(m.points)
///         .bind(m.user_id)
///         .execute(tx.db())
///         .await?
///         .rows_affected();
///     if n == 0 {
///         return Err(Failure::business("unknown user"));
///     }
///     Ok(())
/// }
/// # }
/// ```
pub struct Tx<DB: Dialect> {
    slot: Arc<Slot<DB>>,
    context: Context,
}

impl<DB: Dialect> Tx<DB> {
    pub(crate) fn new(slot: Arc<Slot<DB>>, context: Context) -> Self {
        slot.lend();
        Self { slot, context }
    }

    /// The executor for statements: `.execute(tx.db())`.
    ///
    /// It sees every error. After a deadlock, a lost connection or, on PostgreSQL, any failed
    /// statement it refuses further ones, until a savepoint heals what can be healed. Texts
    /// that begin or end a transaction are refused before they are sent.
    ///
    /// Cancel safe: a cancelled statement is stopped on the server and its transaction can
    /// only be rolled back.
    pub fn db(&mut self) -> Db<'_, DB> {
        Db { slot: &self.slot }
    }

    /// The bare connection, for code that asks for one. Errors on it are not seen, nested
    /// transactions on it are savepoints, and a handler that ends the transaction with it
    /// has failed. Prefer [`db`](Self::db).
    ///
    /// # Errors
    /// The transaction failed or is over.
    pub fn conn(&mut self) -> Result<Conn<'_, DB>, sqlx::Error> {
        let mut hold = self.slot.hold()?;
        hold.lane()?.usable()?;
        if hold.lane_ref().and_then(|lane| lane.conn_ref()).is_none() {
            return Err(sqlx::Error::PoolClosed);
        }
        Ok(Conn { hold, _loan: std::marker::PhantomData })
    }

    /// A savepoint: what fails inside it can be taken back while the rest stays. Dropped
    /// without [`release`](Savepoint::release) it is taken back.
    ///
    /// # Errors
    /// The transaction failed or is over, or the database refuses.
    pub async fn savepoint(&mut self) -> Result<Savepoint<'_, DB>, sqlx::Error> {
        Savepoint::open(&self.slot, 1).await
    }

    /// The idempotency key. There always is one in a guarded handler.
    pub fn key(&self) -> Option<&KeyValue> {
        self.context.key()
    }

    /// Which charged run of this message it is, from 1.
    pub fn attempt(&self) -> u32 {
        self.context.attempt()
    }

    /// The message.
    pub fn message(&self) -> &Message {
        self.context.message()
    }
}

impl<DB: Dialect> Drop for Tx<DB> {
    fn drop(&mut self) {
        self.slot.give_back();
    }
}

impl<DB: Dialect> fmt::Debug for Tx<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("context", &self.context).finish_non_exhaustive()
    }
}

/// The executor of [`Tx::db`].
pub struct Db<'c, DB: Dialect> {
    slot: &'c Arc<Slot<DB>>,
}

impl<'c, DB: Dialect> Db<'c, DB> {
    pub(crate) fn new(slot: &'c Arc<Slot<DB>>) -> Self {
        Self { slot }
    }
}

impl<DB: Dialect> fmt::Debug for Db<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").finish_non_exhaustive()
    }
}

fn look_at(sql: &str) -> Result<sql_text::Kind, sqlx::Error> {
    sql_text::check(sql, secret()).map_err(|why| refused(&why))
}

impl<'c, DB: Dialect> Executor<'c> for Db<'c, DB> {
    type Database = DB;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<DB::QueryResult, DB::Row>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, DB>,
    {
        let statement = Statement::<DB>::of(query);
        let slot = self.slot.clone();
        Box::pin(Flow::new(move |mut out| async move {
            let statement = statement?;
            let kind = look_at(statement.text())?;
            let mut hold = slot.hold()?;
            hold.lane()?.run(statement, kind, &mut out).await
        }))
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<DB::Row>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, DB>,
    {
        let statement = Statement::<DB>::of(query);
        let slot = self.slot.clone();
        Box::pin(async move {
            let statement = statement?;
            let kind = look_at(statement.text())?;
            let mut hold = slot.hold()?;
            hold.lane()?.run_optional(statement, kind).await
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [DB::TypeInfo],
    ) -> BoxFuture<'e, Result<DB::Statement, sqlx::Error>>
    where
        'c: 'e,
    {
        let slot = self.slot.clone();
        Box::pin(async move {
            let kind = look_at(sql.as_str())?;
            let mut hold = slot.hold()?;
            hold.lane()?.prepare(sql, kind, parameters).await
        })
    }

    /// What sqlx's macros ask a database at compile time, and nobody a handler's transaction.
    fn describe<'e>(self, _sql: SqlStr) -> BoxFuture<'e, Result<Describe<DB>, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(async { Err(refused("the transaction of a handler describes no statement")) })
    }
}

/// The bare connection of a transaction, see [`Tx::conn`].
pub struct Conn<'c, DB: Dialect> {
    hold: Hold<DB>,
    _loan: std::marker::PhantomData<&'c mut Tx<DB>>,
}

impl<DB: Dialect> fmt::Debug for Conn<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn").finish_non_exhaustive()
    }
}

#[allow(clippy::expect_used, reason = "checked when it was made, and only dropping takes it away")]
impl<DB: Dialect> Deref for Conn<'_, DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        self.hold.lane_ref().and_then(|lane| lane.conn_ref()).expect("a held lane has a connection")
    }
}

#[allow(clippy::expect_used, reason = "checked when it was made, and only dropping takes it away")]
impl<DB: Dialect> DerefMut for Conn<'_, DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.hold.lane().and_then(|lane| lane.conn()).expect("a held lane has a connection")
    }
}
