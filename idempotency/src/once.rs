//! The inbox without a consumer: for HTTP handlers, scheduled jobs and hand-written loops.

use std::fmt;

use oncemq_core::{Claim, Entry, Error, ErrorKind, Identity, KeyValue, Message, Trail};
use sqlx::Transaction;

use crate::dialect::{Dialect, Value};
use crate::error::{bounded, store};
use crate::execute::collect;
use crate::inbox::Inbox;
use crate::key_bytes::of_entry;

/// Bytes of an outcome.
const OUTCOME_MAX: usize = 4096;

/// What [`Inbox::once`] found.
#[must_use = "the answer says whether the work is to be done"]
#[derive(Debug)]
pub enum Once<DB: Dialect> {
    /// Nobody did it. Do the work in the same transaction and commit it. A commit without
    /// [`finish`](First::finish) stores no outcome; a rollback leaves the key free.
    New(First<DB>),
    /// It is done. The outcome that was stored with it, if one was.
    Done(Option<String>),
    /// Another transaction is at it. Roll back, and try again a little later or tell the
    /// caller to: nothing may be done in this transaction.
    Busy,
}

/// The right to do the work of a new key.
pub struct First<DB: Dialect> {
    inbox: Inbox<DB>,
    key: Vec<u8>,
}

impl<DB: Dialect> Inbox<DB> {
    /// Claims a key in the caller's own transaction, so that the work and "this is done"
    /// commit together. `consumer` and `kind` separate keys as in a consumer: use the same
    /// names to share its memory.
    ///
    /// On SQLite begin the transaction with `BEGIN IMMEDIATE`; a plain `BEGIN` fails when
    /// another one writes. If the future is dropped, roll back.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn f(pool: sqlx::PgPool, inbox: oncemq_idempotency::Inbox<sqlx::Postgres>) -> Result<(), Box<dyn std::error::Error>> {
    /// use oncemq_idempotency::Once;
    ///
    /// let mut tx = pool.begin().await?;
    /// match inbox.once(&mut tx, "payments", "refund", "order-17").await? {
    ///     Once::New(first) => {
    ///         sqlx::query("INSERT INTO refund (order_id) VALUES ('order-17')").execute(&mut *tx).await?;
    ///         first.finish(&mut tx, "{\"refund\":1}").await?;
    ///         tx.commit().await?;
    ///     }
    ///     Once::Done(outcome) => println!("it was {outcome:?}"),
    ///     Once::Busy => tx.rollback().await?,
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The database refuses or does not answer. Roll back.
    pub async fn once(
        &self,
        tx: &mut Transaction<'_, DB>,
        consumer: &str,
        kind: &str,
        key: impl Into<Vec<u8>>,
    ) -> Result<Once<DB>, Error> {
        let message = Message::tombstone();
        let trail = Trail::read(&message, &consumer.into(), &kind.into(), Identity::Content);
        let mut entry = Entry::new(Some(KeyValue::business(key)), trail, [0; 32]);
        entry.trail.origin = "once".into();
        let Some(key) = of_entry(&entry) else {
            return Err(Error::new(ErrorKind::Internal, "a key got lost"));
        };
        let claim = DB::claim(tx, None, &self.inner.statements, std::slice::from_ref(&entry));
        let verdicts = bounded(DB::CALL_LIMIT, claim).await.map_err(|e| store("claim a key", e))?;
        match verdicts.first().map(|verdict| verdict.claim) {
            Some(Claim::New) => Ok(Once::New(First { inbox: self.clone(), key })),
            Some(Claim::Done { .. }) => Ok(Once::Done(self.outcome(tx, key).await?)),
            Some(Claim::Busy) => Ok(Once::Busy),
            None => Err(Error::new(ErrorKind::Internal, "the store gave no verdict for a claim")),
        }
    }

    async fn outcome(&self, tx: &mut Transaction<'_, DB>, key: Vec<u8>) -> Result<Option<String>, Error> {
        let statements = &self.inner.statements;
        let call = collect::<DB>(tx, &statements.done, vec![Value::Bytes(key)], statements.named);
        let read = async {
            let (rows, _) = call.await?;
            rows.first().map_or(Ok(None), |row| DB::text(row, 2))
        };
        bounded(DB::CALL_LIMIT, read).await.map_err(|e| store("read an outcome", e))
    }
}

impl<DB: Dialect> First<DB> {
    /// Stores a small outcome, which later callers of the key get. Commit afterwards.
    ///
    /// # Errors
    /// It is longer than 4 KiB or contains a NUL, the transaction is another one than the
    /// claim's, or the database refuses.
    pub async fn finish(self, tx: &mut Transaction<'_, DB>, outcome: &str) -> Result<(), Error> {
        if outcome.len() > OUTCOME_MAX || outcome.contains('\0') {
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("an outcome has up to {OUTCOME_MAX} bytes and no NUL; store a reference instead"),
            ));
        }
        let values = vec![Value::Bytes(self.key), Value::Text(outcome.to_owned())];
        let statements = &self.inbox.inner.statements;
        let call = collect::<DB>(tx, &statements.finish, values, statements.named);
        let (_, changed) = bounded(DB::CALL_LIMIT, call).await.map_err(|e| store("store an outcome", e))?;
        match changed {
            1 => Ok(()),
            _ => Err(Error::new(ErrorKind::Config, "finish belongs into the transaction of the claim")),
        }
    }
}

impl<DB: Dialect> fmt::Debug for First<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("First").finish_non_exhaustive()
    }
}
