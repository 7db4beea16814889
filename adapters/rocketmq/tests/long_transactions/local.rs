//! Local transactions on either database: an effect, and the decision beside it.

use std::path::Path;
use std::time::Duration;

use oncemq_core::{Decision, Error};
use oncemq_idempotency::{Decisions, Dialect};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{PgPool, Postgres, Sqlite, SqlitePool, Transaction};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS effect (k VARCHAR(100) NOT NULL)";
const EFFECT: &str = "INSERT INTO effect VALUES ($1)";
const COUNT: &str = "SELECT count(*) FROM effect WHERE k = $1";

/// A database with effects in it, and what tells those of this test from others.
#[derive(Clone)]
pub(crate) struct Local {
    database: Database,
    space: String,
}

#[derive(Clone)]
enum Database {
    Postgres(PgPool, Decisions<Postgres>),
    Sqlite(SqlitePool, Decisions<Sqlite>),
}

/// A local transaction that has written its effect.
pub(crate) enum Open {
    Postgres(Transaction<'static, Postgres>),
    Sqlite(Transaction<'static, Sqlite>),
}

impl Local {
    /// A server's URL, or the path of a file.
    pub(crate) async fn open(address: &str, space: &str) -> Self {
        Self { database: Database::open(address).await, space: space.to_owned() }
    }

    fn key(&self, effect: &str) -> String {
        format!("{} {effect}", self.space)
    }

    pub(crate) async fn decide(&self, id: &str) -> Result<Decision, Error> {
        match &self.database {
            Database::Postgres(_, decisions) => decisions.decide(id).await,
            Database::Sqlite(_, decisions) => decisions.decide(id).await,
        }
    }

    /// Begins, and writes an effect.
    pub(crate) async fn begin(&self, effect: &str) -> Open {
        match &self.database {
            Database::Postgres(pool, _) => {
                let mut tx = pool.begin().await.unwrap();
                sqlx::query(EFFECT).bind(self.key(effect)).execute(&mut *tx).await.unwrap();
                Open::Postgres(tx)
            }
            Database::Sqlite(pool, _) => {
                let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
                sqlx::query(EFFECT).bind(self.key(effect)).execute(&mut *tx).await.unwrap();
                Open::Sqlite(tx)
            }
        }
    }

    /// Writes the decision first, and leaves the commit to `plainly`.
    pub(crate) async fn record(&self, open: &mut Open, id: &str) {
        match (&self.database, open) {
            (Database::Postgres(_, decisions), Open::Postgres(tx)) => decisions.record(tx, id).await.unwrap(),
            (Database::Sqlite(_, decisions), Open::Sqlite(tx)) => decisions.record(tx, id).await.unwrap(),
            _ => panic!("another database's transaction"),
        }
    }

    /// Commits with the decision.
    pub(crate) async fn commit(&self, open: Open, id: &str) -> Result<(), Error> {
        match (&self.database, open) {
            (Database::Postgres(_, decisions), Open::Postgres(tx)) => decisions.commit(tx, id).await,
            (Database::Sqlite(_, decisions), Open::Sqlite(tx)) => decisions.commit(tx, id).await,
            _ => panic!("another database's transaction"),
        }
    }

    pub(crate) async fn effects(&self, effect: &str) -> i64 {
        match &self.database {
            Database::Postgres(pool, _) => {
                sqlx::query_scalar(COUNT).bind(self.key(effect)).fetch_one(pool).await.unwrap()
            }
            Database::Sqlite(pool, _) => {
                sqlx::query_scalar(COUNT).bind(self.key(effect)).fetch_one(pool).await.unwrap()
            }
        }
    }
}

impl Database {
    async fn open(address: &str) -> Self {
        if address.starts_with("postgres") {
            let patience = Duration::from_secs(3);
            let pool = PgPoolOptions::new().acquire_timeout(patience).connect(address).await.unwrap();
            // Created at once by several processes, it may still be an error.
            let _ = sqlx::raw_sql(TABLE).execute(&pool).await;
            return Self::Postgres(pool.clone(), decisions(pool).await);
        }
        let options = SqliteConnectOptions::new()
            .filename(Path::new(address))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(1));
        let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
        sqlx::raw_sql(TABLE).execute(&pool).await.unwrap();
        Self::Sqlite(pool.clone(), decisions(pool).await)
    }
}

impl Open {
    /// Commits nothing but what is written.
    pub(crate) async fn plainly(self) {
        match self {
            Self::Postgres(tx) => tx.commit().await.unwrap(),
            Self::Sqlite(tx) => tx.commit().await.unwrap(),
        }
    }

    pub(crate) async fn rollback(self) {
        match self {
            Self::Postgres(tx) => tx.rollback().await.unwrap(),
            Self::Sqlite(tx) => tx.rollback().await.unwrap(),
        }
    }
}

async fn decisions<DB: Dialect>(pool: sqlx::Pool<DB>) -> Decisions<DB> {
    Decisions::open(pool).await.unwrap()
}
