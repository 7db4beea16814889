//! The business database: accounts, and a ledger of every change to them.

use std::path::Path;
use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use crate::Error;

/// Users 1 to this many have an account.
pub(crate) const USERS: i64 = 100;

/// Opens a new database file with accounts. The ledger has no unique key on purpose: an
/// effect that happens twice must show.
pub(crate) async fn open(file: &Path) -> Result<SqlitePool, Error> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(Duration::from_secs(5));
    let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await?;
    sqlx::raw_sql(
        "CREATE TABLE account (user_id INTEGER PRIMARY KEY, points INTEGER NOT NULL DEFAULT 0);
         CREATE TABLE ledger (order_id TEXT NOT NULL, user_id INTEGER NOT NULL, points INTEGER NOT NULL);
         CREATE TABLE sent (order_id TEXT NOT NULL, good INTEGER NOT NULL);
         CREATE TABLE dead_letter (order_id TEXT NOT NULL)",
    )
    .execute(&pool)
    .await?;
    for user in 1..=USERS {
        sqlx::query("INSERT INTO account (user_id) VALUES ($1)").bind(user).execute(&pool).await?;
    }
    Ok(pool)
}
