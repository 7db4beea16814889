//! A database file of its own for each test.

use std::time::Duration;

use oncemq_idempotency::Inbox;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{Sqlite, SqlitePool};

pub struct Fixture {
    pub inbox: Inbox<Sqlite>,
    pub pool: SqlitePool,
    /// The files live as long as this.
    pub dir: tempfile::TempDir,
}

pub fn options(dir: &tempfile::TempDir, journal: SqliteJournalMode) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(dir.path().join("test.db"))
        .create_if_missing(true)
        .journal_mode(journal)
        .busy_timeout(Duration::from_secs(5))
}

pub async fn pool_in(dir: &tempfile::TempDir, journal: SqliteJournalMode) -> SqlitePool {
    let pool = SqlitePoolOptions::new().max_connections(8).connect_with(options(dir, journal)).await.unwrap();
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS account (user_id INTEGER PRIMARY KEY, points INTEGER NOT NULL);
         CREATE TABLE IF NOT EXISTS effect (k TEXT NOT NULL UNIQUE);",
    )
    .execute(&pool)
    .await
    .unwrap();
    pool
}

pub async fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool_in(&dir, SqliteJournalMode::Wal).await;
    let inbox = Inbox::open(pool.clone()).await.unwrap();
    Fixture { inbox, pool, dir }
}

impl Fixture {
    pub async fn count(&self, table: &'static str) -> i64 {
        let sql = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }
}
