//! Notes about messages. Each is a commit of its own, on a connection of its own.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use oncemq_core::{Class, Entry, Failed, Marks, Note, TrailId};
use sqlx::Pool;
use sqlx::pool::PoolConnection;

use crate::acquire::{Look, acquire};
use crate::dialect::{Dialect, Trouble, Value};
use crate::error::bounded;
use crate::execute::{collect, plain};
use crate::inbox::Inbox;
use crate::key_bytes::{REASON_MAX, TEXT_MAX, clean, of_entry};

/// Notes that met a deadlock or a busy file are tried this often.
const TRIES: u32 = 5;

/// A connection for one short call beside the units. It goes back to the pool only if the
/// call ended: a cancelled one may leave anything behind.
pub(crate) struct Aside<DB: Dialect> {
    conn: Option<PoolConnection<DB>>,
    runtime: tokio::runtime::Handle,
    clean: bool,
}

impl<DB: Dialect> Aside<DB> {
    pub(crate) async fn take(pool: &Pool<DB>) -> Result<Self, sqlx::Error> {
        Self::take_among(pool, &Look::default()).await
    }

    /// The same where others may wait for the pool, too.
    pub(crate) async fn take_among(pool: &Pool<DB>, look: &Look) -> Result<Self, sqlx::Error> {
        let conn = Some(acquire(pool, look).await?);
        Ok(Self { conn, runtime: tokio::runtime::Handle::current(), clean: false })
    }

    pub(crate) fn conn(&mut self) -> Result<&mut DB::Connection, sqlx::Error> {
        match &mut self.conn {
            Some(conn) => Ok(conn),
            None => Err(sqlx::Error::PoolClosed),
        }
    }

    pub(crate) fn done(mut self) {
        self.clean = true;
    }
}

impl<DB: Dialect> Drop for Aside<DB> {
    fn drop(&mut self) {
        let _inside = self.runtime.enter();
        if let Some(mut conn) = self.conn.take() {
            if !self.clean {
                conn.close_on_drop();
            }
            drop(conn);
        }
    }
}

impl<DB: Dialect> Inbox<DB> {
    /// Runs one statement beside the units, bounded in time.
    pub(crate) async fn aside(
        &self,
        sql: &Arc<str>,
        values: Vec<Value>,
    ) -> Result<(Vec<DB::Row>, u64), sqlx::Error> {
        let mut tries = 1;
        loop {
            // Where there is one writer it queues here, in order, and not at the file.
            let _place = match DB::ONE_WRITER {
                true => Some(self.inner.places.acquire().await.map_err(|_| sqlx::Error::PoolClosed)?),
                false => None,
            };
            let attempt = async {
                let mut aside = Aside::take_among(&self.inner.pool, &self.inner.look).await?;
                let named = self.inner.statements.named;
                if !named {
                    // Preparing and running are two messages, and outside a transaction a
                    // pooling proxy may send them to two servers.
                    plain::<DB>(aside.conn()?, "BEGIN").await?;
                }
                let found = collect::<DB>(aside.conn()?, sql, values.clone(), named).await?;
                if !named {
                    plain::<DB>(aside.conn()?, "COMMIT").await?;
                }
                aside.done();
                Ok(found)
            };
            match bounded(DB::CALL_LIMIT, attempt).await {
                Err(error) if DB::judge(&error) == Trouble::Redo && tries < TRIES => tries += 1,
                result => return result,
            }
        }
    }

    pub(crate) async fn add_mark(&self, id: &TrailId, below: u32) -> Result<Option<Note>, sqlx::Error> {
        let values = vec![bytes(id), Value::Int(below.into())];
        let (found, _) = self.aside(&self.inner.statements.mark, values).await?;
        found.first().map(|row| note::<DB>(row, 0)).transpose()
    }

    pub(crate) async fn take_marks(&self, id: &TrailId, marks: Marks) -> Result<(), sqlx::Error> {
        let count = match marks {
            Marks::All => i64::from(i32::MAX),
            Marks::One => 1,
        };
        let values = vec![bytes(id), Value::Int(count)];
        self.aside(&self.inner.statements.unmark, values).await?;
        Ok(())
    }

    pub(crate) async fn set_attempts(&self, id: &TrailId, attempt: u32) -> Result<(), sqlx::Error> {
        let values = vec![bytes(id), Value::Int(attempt.into())];
        self.aside(&self.inner.statements.charge, values).await?;
        Ok(())
    }

    pub(crate) async fn add_failed(&self, entry: &Entry, failed: &Failed) -> Result<bool, sqlx::Error> {
        let values = vec![
            bytes(&entry.trail.id),
            Value::MaybeBytes(of_entry(entry)),
            Value::Text(clean(&entry.trail.consumer, TEXT_MAX)),
            Value::Text(clean(&entry.trail.kind, TEXT_MAX)),
            Value::Text(failed.class.as_str().to_owned()),
            Value::Text(clean(&failed.reason, REASON_MAX)),
            Value::MaybeText(entry.key.as_ref().map(|key| clean(&key.text(), TEXT_MAX))),
        ];
        let (_, written) = self.aside(&self.inner.statements.fail, values).await?;
        Ok(written > 0)
    }
}

fn bytes(id: &TrailId) -> Value {
    Value::Bytes(id.as_bytes().to_vec())
}

/// Reads the five columns of a note: class, reason, time, attempts, marks.
pub(crate) fn note<DB: Dialect>(row: &DB::Row, at: usize) -> Result<Note, sqlx::Error> {
    let mut note = Note::default();
    if let Some(micros) = DB::int(row, at + 2)? {
        let class = DB::text(row, at)?.unwrap_or_default();
        let reason = DB::text(row, at + 1)?.unwrap_or_default();
        let mut failed = Failed::now(Class::parse(&class), reason);
        failed.at = time(micros);
        note.failed = Some(failed);
    }
    note.attempts = count(DB::int(row, at + 3)?);
    note.marks = count(DB::int(row, at + 4)?);
    Ok(note)
}

fn count(value: Option<i64>) -> u32 {
    u32::try_from(value.unwrap_or(0).max(0)).unwrap_or(u32::MAX)
}

fn time(micros: i64) -> SystemTime {
    let since = Duration::from_micros(u64::try_from(micros).unwrap_or(0));
    UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
}
