//! The inbox on PostgreSQL passes the suite of every store.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "a test program: what goes wrong ends the test"
)]

use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;

use oncemq_core::conformance::store::{StoreHarness, main as suite};
use oncemq_core::{Error, ErrorKind};
use oncemq_idempotency::{Inbox, Tx};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Postgres};

#[path = "common/postgres.rs"]
mod server;

/// Makes a schema for each store, and drops them at the end.
#[derive(Default)]
struct Schemas {
    made: Mutex<Vec<String>>,
}

fn failed(error: sqlx::Error) -> Error {
    Error::with_source(ErrorKind::Store, "an effect failed", error)
}

impl StoreHarness for Schemas {
    type Record = Inbox<Postgres>;

    fn left_out(&self) -> Option<String> {
        server::left_out()
    }

    async fn open(&self) -> Result<Inbox<Postgres>, Error> {
        let url = server::url().map_err(|why| Error::new(ErrorKind::Config, why))?;
        let schema = server::unique("suite");
        let options = PgConnectOptions::from_str(&url).map_err(failed)?.options([("search_path", &schema)]);
        let pool = PgPoolOptions::new().max_connections(6).connect_with(options).await.map_err(failed)?;
        self.made.lock().unwrap().push(schema.clone());
        let sql = format!(
            "CREATE SCHEMA {schema}; \
             CREATE TABLE {schema}.effect (name text PRIMARY KEY, n bigint NOT NULL)"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await.map_err(failed)?;
        Inbox::open(pool).await
    }

    async fn add(&self, loan: &mut Tx<Postgres>, name: &str) -> Result<(), Error> {
        let sql = "INSERT INTO effect VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET n = effect.n + 1";
        sqlx::query(sql).bind(name).execute(loan.db()).await.map_err(failed)?;
        Ok(())
    }

    async fn effect(&self, record: &Inbox<Postgres>, name: &str) -> Result<i64, Error> {
        let sql = "SELECT n FROM effect WHERE name = $1";
        let found = sqlx::query_scalar(sql).bind(name).fetch_optional(record.pool()).await.map_err(failed)?;
        Ok(found.unwrap_or(0))
    }
}

impl Drop for Schemas {
    fn drop(&mut self) {
        let schemas = self.made.lock().unwrap().join(", ");
        let Ok(url) = server::url() else { return };
        if schemas.is_empty() {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let pool = PgPoolOptions::new().max_connections(1).connect(&url).await.unwrap();
            let sql = format!("DROP SCHEMA IF EXISTS {schemas} CASCADE");
            sqlx::raw_sql(AssertSqlSafe(sql)).execute(&pool).await.unwrap();
        });
    }
}

fn main() -> ExitCode {
    suite(Schemas::default())
}
