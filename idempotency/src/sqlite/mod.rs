//! SQLite: one writer at a time, a file, no server.

mod claim;
mod schema;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_core::future::BoxFuture;
use oncemq_core::{Entry, Error, Verdict};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Pool, Sqlite, SqliteConnection};

use crate::dialect::{DecisionTexts, Dialect, Statements, Trouble, accessors, sealed::Sealed};
use crate::error::{config, store};
use crate::execute::rows;
use crate::inbox::Inbox;
use crate::names::Names;
use crate::notes::Aside;
use crate::schema::Tables;

/// Instructions between two looks at the reins: well below a millisecond.
const PROGRESS_STEP: i32 = 10_000;

/// Holds of a connection, shared with the hooks inside SQLite.
#[derive(Debug)]
pub struct Reins {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// A statement that runs is to stop.
    stop: AtomicBool,
    /// A commit is ours. Any other is turned into a rollback.
    may_commit: AtomicBool,
    /// The transaction was rolled back.
    rolled_back: AtomicBool,
    /// When a statement of this unit is stopped, in milliseconds since `born`.
    deadline: std::sync::atomic::AtomicU64,
    born: Instant,
}

impl Sealed for Sqlite {}

impl Dialect for Sqlite {
    type Server = ();
    type Reins = Reins;

    const STORE: &'static str = "sqlite";
    const ONE_WRITER: bool = true;
    // Another process may hold the file for as long as the busy timeout says.
    const CALL_LIMIT: Duration = Duration::from_secs(60);

    accessors!();

    fn units(pool_max: u32) -> usize {
        usize::from(pool_max > 1)
    }

    async fn learn(pool: &Pool<Sqlite>, names: &Names, _: &Tables) -> Result<(Names, ()), Error> {
        let what = "look at the database";
        let mut aside = Aside::<Sqlite>::take(pool).await.map_err(|e| store(what, e))?;
        let list: Arc<str> = format!(
            "SELECT coalesce(file, '') FROM pragma_database_list WHERE name = {}",
            schema::literal(names.schema().unwrap_or("main")),
        )
        .into();
        let conn = aside.conn().map_err(|e| store(what, e))?;
        let found = rows::<Sqlite>(conn, &list).await.map_err(|e| store(what, e))?;
        aside.done();
        let file = match found.first() {
            Some(row) => Self::text(row, 0).map_err(|e| store(what, e))?.unwrap_or_default(),
            None => return Err(config("no database of that name is attached; schema() names one")),
        };
        if file.is_empty() {
            return Err(config(
                "an SQLite database in memory cannot remember what is done: each connection may have its own, and it ends with the last one; use a file",
            ));
        }
        Ok((names.clone(), ()))
    }

    fn ddl(names: &Names, tables: &Tables) -> Vec<String> {
        schema::ddl(names, tables)
    }

    async fn create(pool: &Pool<Sqlite>, names: &Names, tables: &Tables) -> Result<(), sqlx::Error> {
        schema::create(pool, names, tables).await
    }

    fn columns_sql(names: &Names, table: &str) -> String {
        schema::columns(names, table)
    }

    fn statements(names: &Names, _: &(), named: bool) -> Statements {
        schema::statements(names, named)
    }

    fn decisions(names: &Names) -> DecisionTexts {
        schema::decisions(names)
    }

    async fn harness(conn: &mut SqliteConnection) -> Result<Reins, sqlx::Error> {
        Reins { shared: Arc::new(Shared::new()) }.put_on(conn).await
    }

    fn begin_text((): &(), secret: &str, _: Duration) -> String {
        // A transaction that begins as a reader fails at its first write if another wrote
        // meanwhile, busy timeout or not.
        format!("BEGIN IMMEDIATE; SAVEPOINT {secret}")
    }

    fn allow_commit(reins: &Reins, allow: bool) {
        reins.shared.may_commit.store(allow, Ordering::SeqCst);
    }

    fn rolled_back(reins: &Reins) -> bool {
        reins.shared.rolled_back.load(Ordering::SeqCst)
    }

    fn unit_opens(reins: &Reins, limit: Duration) {
        let shared = &reins.shared;
        shared.rolled_back.store(false, Ordering::SeqCst);
        let deadline = shared.born.elapsed().saturating_add(limit).as_millis();
        shared.deadline.store(u64::try_from(deadline).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    fn stop(reins: &Reins, _: &Pool<Sqlite>) -> BoxFuture<'static, ()> {
        reins.shared.stop.store(true, Ordering::SeqCst);
        Box::pin(std::future::ready(()))
    }

    async fn claim(
        conn: &mut SqliteConnection,
        _: Option<&mut Reins>,
        statements: &Statements,
        entries: &[Entry],
    ) -> Result<Vec<Verdict>, sqlx::Error> {
        claim::claim(conn, statements, entries).await
    }

    // The unit holds the only lock there is.
    fn waited(_: &sqlx::Error) -> bool {
        false
    }

    fn judge(error: &sqlx::Error) -> Trouble {
        judge(error)
    }
}

impl Shared {
    fn new() -> Self {
        Self {
            stop: AtomicBool::new(false),
            may_commit: AtomicBool::new(false),
            rolled_back: AtomicBool::new(false),
            deadline: u64::MAX.into(),
            born: Instant::now(),
        }
    }

    fn may_go_on(&self) -> bool {
        let now = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        !self.stop.load(Ordering::SeqCst) && now <= self.deadline.load(Ordering::SeqCst)
    }
}

impl Reins {
    /// Puts the hooks into a connection. They guard what no SQL text can: a dropped
    /// statement is stopped, and nothing on this connection commits but the unit's end,
    /// not even a statement after the transaction was rolled back behind our back.
    async fn put_on(self, conn: &mut SqliteConnection) -> Result<Self, sqlx::Error> {
        let mut handle = conn.lock_handle().await?;
        let shared = self.shared.clone();
        handle.set_progress_handler(PROGRESS_STEP, move || shared.may_go_on());
        let shared = self.shared.clone();
        handle.set_commit_hook(move || shared.may_commit.load(Ordering::SeqCst));
        let shared = self.shared.clone();
        handle.set_rollback_hook(move || shared.rolled_back.store(true, Ordering::SeqCst));
        drop(handle);
        Ok(self)
    }
}

/// By primary result code. SQLite undoes the failed statement alone, except where its
/// rollback hook says otherwise.
fn judge(error: &sqlx::Error) -> Trouble {
    let sqlx::Error::Database(error) = error else { return crate::error::judge_client(error) };
    let code: i32 = error.code().and_then(|code| code.parse().ok()).unwrap_or(0);
    match code & 0xff {
        // BUSY and LOCKED.
        5 | 6 => Trouble::Redo,
        // INTERNAL, PERM, NOMEM, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, PROTOCOL, NOTADB.
        2 | 3 | 7 | 8 | 10 | 11 | 13 | 14 | 15 | 26 => Trouble::Broken,
        // INTERRUPT: the unit's time is over.
        9 => Trouble::Aborted,
        _ => Trouble::Harmless,
    }
}

impl Inbox<Sqlite> {
    /// Opens an inbox in a file, which is created if it is missing, with a pool that fits:
    /// write-ahead log, every commit on disk, writers that wait up to five seconds. Effects go
    /// to the same file, through the [`pool`](Inbox::pool) where it is not a handler's.
    ///
    /// # Errors
    /// The file cannot be opened, or as for [`Inbox::open`].
    pub async fn sqlite_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .foreign_keys(true)
            .busy_timeout(Duration::from_secs(5));
        let pool = SqlitePoolOptions::new()
            .max_connections(4)
            .connect_with(options)
            .await
            .map_err(|e| store("open the database file", e))?;
        Self::open(pool).await
    }
}

#[cfg(test)]
mod tests;
