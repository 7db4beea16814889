//! The inbox on SQLite passes the suite of every store.
#![allow(clippy::unwrap_used, reason = "a test program: what goes wrong ends the test")]

use std::process::ExitCode;

use oncemq_core::conformance::store::{StoreHarness, main as suite};
use oncemq_core::{Error, ErrorKind};
use oncemq_idempotency::{Inbox, Tx};
use sqlx::Sqlite;

/// Keeps the files of the stores it opened.
#[derive(Default)]
struct Files {
    open: std::sync::Mutex<Vec<tempfile::TempDir>>,
}

fn failed(error: sqlx::Error) -> Error {
    Error::with_source(ErrorKind::Store, "an effect failed", error)
}

impl StoreHarness for Files {
    type Record = Inbox<Sqlite>;

    async fn open(&self) -> Result<Inbox<Sqlite>, Error> {
        let dir = tempfile::tempdir().unwrap();
        let inbox = Inbox::sqlite_file(dir.path().join("store.db")).await?;
        self.open.lock().unwrap().push(dir);
        let sql = "CREATE TABLE effect (name TEXT PRIMARY KEY, n INTEGER NOT NULL)";
        sqlx::query(sql).execute(inbox.pool()).await.map_err(failed)?;
        Ok(inbox)
    }

    async fn add(&self, loan: &mut Tx<Sqlite>, name: &str) -> Result<(), Error> {
        let sql = "INSERT INTO effect VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1";
        sqlx::query(sql).bind(name).execute(loan.db()).await.map_err(failed)?;
        Ok(())
    }

    async fn effect(&self, record: &Inbox<Sqlite>, name: &str) -> Result<i64, Error> {
        let sql = "SELECT n FROM effect WHERE name = $1";
        let found = sqlx::query_scalar(sql).bind(name).fetch_optional(record.pool()).await.map_err(failed)?;
        Ok(found.unwrap_or(0))
    }
}

fn main() -> ExitCode {
    suite(Files::default())
}
