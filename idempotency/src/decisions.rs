//! How local transactions ended, for brokers that keep a message back until they know.

mod builder;
mod local;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use oncemq_core::{Decision, Error};
use sqlx::{Pool, Transaction};

use crate::acquire::Look;
use crate::dialect::{DecisionTexts, Dialect, Trouble, Value};
use crate::error::{bounded, config, store};
use crate::execute::{collect, plain};
use crate::names::Names;
use crate::notes::Aside;
use crate::purge::Expires;
use crate::schema::DECISIONS;

pub use builder::DecisionsBuilder;
pub use local::LocalTransaction;

/// Bytes of an id; an index entry has a limit in every database.
const ID_MAX: usize = 512;

/// Remembers how local transactions ended, in the database that they write to.
///
/// A row that says "committed" is part of the local transaction, so it is there if and only if
/// the transaction is. Whoever asks later, with [`decide`](Self::decide), gets an answer that
/// stays true: where no row is found, one that says "rolled back" takes its place, and a
/// transaction that is still at work can commit no more. One question is enough to tell a
/// transaction that is late from one that is dead, since both are answered alike.
///
/// Clones share everything. Unless it is switched off, a task of the current runtime removes
/// what is older than the retention; it ends with the last clone.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn f(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use oncemq_core::Decision;
/// use oncemq_idempotency::Decisions;
///
/// let decisions = Decisions::open(pool.clone()).await?;
///
/// let mut tx = pool.begin().await?;
/// sqlx::query("INSERT INTO orders (id) VALUES (17)").execute(&mut *tx).await?;
/// decisions.commit(tx, "transaction-1").await?;
///
/// // Later, or in another process.
/// assert_eq!(decisions.decide("transaction-1").await?, Decision::Committed);
/// assert_eq!(decisions.decide("transaction-2").await?, Decision::RolledBack);
/// # Ok(()) }
/// ```
pub struct Decisions<DB: Dialect> {
    inner: Arc<Inner<DB>>,
}

struct Inner<DB: Dialect> {
    pool: Pool<DB>,
    look: Look,
    names: Names,
    texts: DecisionTexts,
    /// The driver may keep prepared statements by name.
    named: bool,
    retention: Duration,
    batch: u32,
    /// Tells the purge that nobody needs it any more, by being dropped.
    _alive: tokio::sync::oneshot::Sender<()>,
}

impl<DB: Dialect> Decisions<DB> {
    /// Opens the memory of a pool with the usual settings, and creates its tables where they
    /// are missing; safe while other processes do the same.
    ///
    /// # Errors
    /// The database does not answer, the account may not create the tables, they were made by
    /// a version that this one cannot read, or the database cannot remember anything.
    pub async fn open(pool: Pool<DB>) -> Result<Self, Error> {
        DecisionsBuilder::new(pool).open().await
    }

    /// Opens it with other settings.
    pub fn builder(pool: Pool<DB>) -> DecisionsBuilder<DB> {
        DecisionsBuilder::new(pool)
    }

    /// The statements that make the tables, for people who run migrations themselves and open
    /// with `Topology::Verify`.
    pub fn schema(&self) -> String {
        crate::schema::text::<DB>(&self.inner.names, &DECISIONS)
    }

    /// Commits a local transaction and "it is committed" together. `id` names the transaction:
    /// up to 512 bytes, unique for every try.
    ///
    /// Cancel safe in that [`decide`](Self::decide) tells afterwards what became of it.
    ///
    /// # Errors
    /// Nothing is committed: it was decided meanwhile that the transaction is rolled back, the
    /// id was used before, a statement of the transaction failed before, or the database
    /// refuses. If the answer to the commit was lost it may be committed all the same. So ask
    /// [`decide`](Self::decide) after any error, and do not conclude.
    pub async fn commit(&self, mut tx: Transaction<'_, DB>, id: &str) -> Result<(), Error> {
        self.record(&mut tx, id).await?;
        bounded(DB::CALL_LIMIT, tx.commit()).await.map_err(|e| store("commit, or its answer was lost", e))
    }

    /// Writes "it is committed" into a transaction that somebody else commits: one of sqlx, or
    /// the [`Tx`](crate::Tx) of a handler. A check that comes meanwhile is answered with
    /// [`Open`](Decision::Open), so a long transaction writes this first.
    ///
    /// On SQLite begin the transaction with `BEGIN IMMEDIATE`. If the future is dropped, roll
    /// back.
    ///
    /// # Errors
    /// As for [`commit`](Self::commit). Roll back; a transaction that is committed after an
    /// error may be one that is taken for rolled back. A commit that follows a failed statement
    /// rolls back on PostgreSQL without an error: [`decide`](Self::decide) is not deceived.
    pub async fn record(&self, tx: &mut impl LocalTransaction<DB>, id: &str) -> Result<(), Error> {
        let id = stored(id)?;
        let write = tx.write(&self.inner.texts, vec![id], self.inner.named);
        bounded(DB::CALL_LIMIT, write)
            .await
            .map_err(|e| store("write that a local transaction is committed; it is rolled back", e))
    }

    /// How the transaction ended. Where that is open it is rolled back for good: a transaction
    /// that is still at work cannot commit afterwards.
    ///
    /// [`Open`](Decision::Open) is the answer only while a transaction that has written its
    /// decision is neither committed nor rolled back, for longer than a second on PostgreSQL;
    /// on SQLite while any other transaction writes, for longer than the pool's busy timeout.
    ///
    /// Cancel safe: asked again, it tells.
    ///
    /// # Errors
    /// The database refuses or does not answer; then nothing is known. A server that only
    /// reads, such as a standby, is no judge: what it does not know it cannot decide.
    pub async fn decide(&self, id: &str) -> Result<Decision, Error> {
        let id = stored(id)?;
        let failed = |e| store("decide a local transaction", e);
        if let Some(decision) = self.read(&id).await.map_err(failed)? {
            return Ok(decision);
        }
        match bounded(DB::CALL_LIMIT, self.refuse(&id)).await {
            Ok(true) => return Ok(Decision::RolledBack),
            // It was decided meanwhile.
            Ok(false) => {}
            Err(e) if DB::waited(&e) || DB::judge(&e) == Trouble::Redo => return Ok(Decision::Open),
            Err(e) => return Err(failed(e)),
        }
        Ok(self.read(&id).await.map_err(failed)?.unwrap_or(Decision::Open))
    }

    /// What is written. A row never changes, so any answer but none is final.
    async fn read(&self, id: &Value) -> Result<Option<Decision>, sqlx::Error> {
        let (rows, _) = self.aside(&self.inner.texts.read, vec![id.clone()]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(match DB::int(row, 0)? {
            Some(1) => Decision::Committed,
            _ => Decision::RolledBack,
        }))
    }

    /// Writes "rolled back" unless something is written, and says whether it did.
    async fn refuse(&self, id: &Value) -> Result<bool, sqlx::Error> {
        let inner = &self.inner;
        let mut aside = Aside::<DB>::take_among(&inner.pool, &inner.look).await?;
        plain::<DB>(aside.conn()?, inner.texts.begin).await?;
        let (_, written) =
            collect::<DB>(aside.conn()?, &inner.texts.refuse, vec![id.clone()], inner.named).await?;
        plain::<DB>(aside.conn()?, "COMMIT").await?;
        aside.done();
        Ok(written == 1)
    }

    /// Removes one step's worth of expired rows, and says how many it was. 0 means that nothing
    /// is expired, or that another process is at it. Age is measured by the database's clock.
    ///
    /// # Errors
    /// The database does not answer, or the account may not delete.
    pub async fn purge(&self) -> Result<u64, Error> {
        let age = i64::try_from(self.inner.retention.as_micros()).unwrap_or(i64::MAX);
        let values = vec![Value::Int(age), Value::Int(self.inner.batch.into())];
        let (_, removed) = self
            .aside(&self.inner.texts.purge, values)
            .await
            .map_err(|e| store("remove expired decisions", e))?;
        Ok(removed)
    }

    /// Runs one statement on a connection of its own, bounded in time.
    async fn aside(&self, sql: &Arc<str>, values: Vec<Value>) -> Result<(Vec<DB::Row>, u64), sqlx::Error> {
        let inner = &self.inner;
        let call = async {
            let mut aside = Aside::<DB>::take_among(&inner.pool, &inner.look).await?;
            if !inner.named {
                // Preparing and running are two messages, which a pooling proxy may send to
                // two servers outside a transaction.
                plain::<DB>(aside.conn()?, "BEGIN").await?;
            }
            let found = collect::<DB>(aside.conn()?, sql, values, inner.named).await?;
            if !inner.named {
                plain::<DB>(aside.conn()?, "COMMIT").await?;
            }
            aside.done();
            Ok(found)
        };
        bounded(DB::CALL_LIMIT, call).await
    }
}

/// An id as it is stored.
fn stored(id: &str) -> Result<Value, Error> {
    if id.is_empty() || id.len() > ID_MAX {
        return Err(config(format!("the id of a local transaction has 1 to {ID_MAX} bytes")));
    }
    Ok(Value::Bytes(id.as_bytes().to_vec()))
}

impl<DB: Dialect> Expires for Inner<DB> {
    type DB = DB;

    fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    fn batch(&self) -> u32 {
        self.batch
    }

    async fn expire(self: Arc<Self>) -> Result<u64, Error> {
        Decisions { inner: self }.purge().await
    }
}

impl<DB: Dialect> Clone for Decisions<DB> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<DB: Dialect> fmt::Debug for Decisions<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decisions")
            .field("store", &DB::STORE)
            .field("names", &self.inner.names)
            .field("retention", &self.inner.retention)
            .finish_non_exhaustive()
    }
}
