//! The business database of the service, on every store there is.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};

use crate::event::Event;

/// Users 1 to this many have an account.
pub const USERS: i64 = 20;

/// Which database a service works on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Store {
    /// A file.
    Sqlite {
        /// Its path.
        file: PathBuf,
    },
    /// A schema of its own on a server.
    Postgres {
        /// The server.
        url: String,
        /// The schema.
        schema: String,
    },
}

/// A pool on a [`Store`].
#[derive(Debug, Clone)]
pub enum Database {
    /// On SQLite.
    Sqlite(SqlitePool),
    /// On PostgreSQL.
    Postgres(PgPool),
}

/// Runs the same code on whichever pool it is.
macro_rules! on {
    ($database:expr, $pool:ident => $code:expr) => {
        match $database {
            Database::Sqlite($pool) => $code,
            Database::Postgres($pool) => $code,
        }
    };
}

impl Database {
    /// Connects.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn open(store: &Store) -> Result<Self, sqlx::Error> {
        match store {
            Store::Sqlite { file } => {
                let options = SqliteConnectOptions::new()
                    .filename(file)
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .busy_timeout(Duration::from_secs(10));
                let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await?;
                Ok(Self::Sqlite(pool))
            }
            Store::Postgres { url, schema } => {
                let options = PgConnectOptions::from_str(url)?.options([("search_path", schema)]);
                let pool = PgPoolOptions::new()
                    .max_connections(8)
                    .acquire_timeout(Duration::from_secs(10))
                    .connect_with(options)
                    .await?;
                Ok(Self::Postgres(pool))
            }
        }
    }

    /// Makes schema, tables and accounts. The table of effects has no unique key on
    /// purpose: an effect that happens twice must show.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn create(store: &Store) -> Result<Self, sqlx::Error> {
        let database = Self::open(store).await?;
        if let (Store::Postgres { schema, .. }, Self::Postgres(pool)) = (store, &database) {
            let text = format!("CREATE SCHEMA {schema}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(pool).await?;
        }
        let tables = "CREATE TABLE account (user_id BIGINT PRIMARY KEY, points BIGINT NOT NULL);
             CREATE TABLE effect (id TEXT NOT NULL, user_id BIGINT NOT NULL, points BIGINT NOT NULL);
             CREATE TABLE expected (id TEXT NOT NULL PRIMARY KEY)";
        on!(&database, pool => sqlx::raw_sql(tables).execute(pool).await.map(drop))?;
        for user in 1..=USERS {
            let text = "INSERT INTO account (user_id, points) VALUES ($1, 0)";
            on!(&database, pool => sqlx::query(text).bind(user).execute(pool).await.map(drop))?;
        }
        Ok(database)
    }

    /// Notes which effects are to be there in the end.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn expect(&self, events: &[Event]) -> Result<(), sqlx::Error> {
        let text = "INSERT INTO expected (id) VALUES ($1) ON CONFLICT DO NOTHING";
        on!(self, pool => {
            let mut tx = pool.begin().await?;
            for event in events.iter().filter(|event| event.is_good()) {
                sqlx::query(text).bind(event.id.as_str()).execute(&mut *tx).await?;
            }
            tx.commit().await
        })
    }

    /// One number.
    ///
    /// # Errors
    /// The database refuses or does not answer.
    pub async fn number(&self, sql: &'static str) -> Result<i64, sqlx::Error> {
        on!(self, pool => sqlx::query_scalar(sql).fetch_one(pool).await)
    }

    /// Committed effects of one event.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub async fn effects_of(&self, id: &str) -> Result<i64, sqlx::Error> {
        let text = "SELECT count(*) FROM effect WHERE id = $1";
        on!(self, pool => sqlx::query_scalar(text).bind(id).fetch_one(pool).await)
    }

    /// Closes the pool, and drops the schema where there is one.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn remove(self, store: &Store) -> Result<(), sqlx::Error> {
        if let (Store::Postgres { schema, .. }, Self::Postgres(pool)) = (store, &self) {
            let text = format!("DROP SCHEMA {schema} CASCADE");
            sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(pool).await?;
        }
        on!(self, pool => pool.close().await);
        Ok(())
    }
}
