//! PostgreSQL: many units at once, each bounded on the server.

mod claim;
mod schema;

use std::time::Duration;

use futures_core::future::BoxFuture;
use oncemq_core::{Entry, Error, ErrorKind, Verdict};
use sqlx::{ConnectOptions, Connection, PgConnection, Pool, Postgres};

use crate::dialect::{DecisionTexts, Dialect, Statements, Trouble, accessors, sealed::Sealed};
use crate::error::{bounded, config, store};
use crate::execute::plain;
use crate::names::Names;
use crate::notes::Aside;
use crate::schema::Tables;

/// How long a claim may wait for an insert that nobody announced by its lock. Not reached
/// by inboxes among themselves; the claim itself lifts it for what the handler waits for.
const CLAIM_LOCK_LIMIT: Duration = Duration::from_secs(1);

/// What was learned about the server.
#[derive(Debug, Clone)]
pub struct Server {
    /// It can watch the client while a statement runs (from version 14, where the system
    /// supports it).
    watches_client: bool,
    /// The account may delete notes.
    may_delete: bool,
}

/// The server's side of a unit's connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reins {
    /// Its process and when its transaction began, so that nobody else's is ever ended.
    backend: Option<(i32, i64)>,
}

impl Sealed for Postgres {}

impl Dialect for Postgres {
    type Server = Server;
    type Reins = Reins;

    const STORE: &'static str = "postgres";
    const ONE_WRITER: bool = false;
    const CALL_LIMIT: Duration = Duration::from_secs(5);

    accessors!();

    fn units(pool_max: u32) -> usize {
        usize::try_from(pool_max.saturating_sub(1)).unwrap_or(usize::MAX)
    }

    async fn learn(pool: &Pool<Postgres>, names: &Names, tables: &Tables) -> Result<(Names, Server), Error> {
        let look = async {
            let mut aside = Aside::<Postgres>::take(pool).await?;
            let conn = aside.conn()?;
            let schema = schema::resolve(conn, names, tables).await?;
            let Some(schema) = schema else {
                aside.done();
                return Ok(None);
            };
            let names = names.in_schema(schema);
            let may_delete = schema::may_delete(conn, &names).await?;
            let watches_client = watches_client(conn).await?;
            aside.done();
            Ok(Some((names, Server { watches_client, may_delete })))
        };
        let found = bounded(Self::CALL_LIMIT, look).await.map_err(|e| match &e {
            sqlx::Error::Database(error) if error.code().is_some_and(|code| code.starts_with("28")) => {
                Error::with_source(
                    ErrorKind::Access,
                    "the database refused this account; check user and password of its URL",
                    e,
                )
            }
            _ => store("look at the database", e),
        })?;
        found.ok_or_else(|| {
            config("the connection has no current schema: name one with schema(), or set search_path")
        })
    }

    fn ddl(names: &Names, tables: &Tables) -> Vec<String> {
        schema::ddl(names, tables)
    }

    async fn create(pool: &Pool<Postgres>, names: &Names, tables: &Tables) -> Result<(), sqlx::Error> {
        schema::create(pool, names, tables).await
    }

    fn columns_sql(names: &Names, table: &str) -> String {
        schema::columns(names, table)
    }

    fn statements(names: &Names, server: &Server, named: bool) -> Statements {
        schema::statements(names, server.may_delete, named)
    }

    fn decisions(names: &Names) -> DecisionTexts {
        schema::decisions(names)
    }

    async fn harness(_: &mut PgConnection) -> Result<Reins, sqlx::Error> {
        Ok(Reins::default())
    }

    fn begin_text(server: &Server, secret: &str, limit: Duration) -> String {
        let millis = limit.as_millis().clamp(1, 2_000_000_000);
        let lock = CLAIM_LOCK_LIMIT.as_millis().min(millis);
        let watch = match server.watches_client {
            true => "SET LOCAL client_connection_check_interval = 1000; ",
            false => "",
        };
        // For this transaction only, so it works through a pooling proxy and leaves nothing
        // behind.
        format!(
            "BEGIN; SET LOCAL statement_timeout = {millis}; \
             SET LOCAL idle_in_transaction_session_timeout = {millis}; \
             SET LOCAL lock_timeout = {lock}; {watch}SAVEPOINT {secret}"
        )
    }

    fn allow_commit(_: &Reins, _: bool) {}

    // The server answers every statement of an aborted transaction with an error.
    fn rolled_back(_: &Reins) -> bool {
        false
    }

    fn unit_opens(_: &Reins, _: Duration) {}

    fn stop(reins: &Reins, pool: &Pool<Postgres>) -> BoxFuture<'static, ()> {
        let Some((pid, began)) = reins.backend else { return Box::pin(std::future::ready(())) };
        let options = pool.connect_options();
        Box::pin(async move {
            // Closing the socket alone ends nothing while a statement runs. Best effort: the
            // limits of the transaction end it too, only later.
            let terminate = async {
                let mut conn = options.connect().await?;
                // Behind a proxy, or a moment later, the process may work for someone else.
                let text = format!(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE pid = {pid} AND {} = {began}",
                    schema::micros("xact_start")
                );
                plain::<Postgres>(&mut conn, text).await?;
                conn.close().await
            };
            let _ = bounded(Self::CALL_LIMIT, terminate).await;
        })
    }

    async fn claim(
        conn: &mut PgConnection,
        reins: Option<&mut Reins>,
        statements: &Statements,
        entries: &[Entry],
    ) -> Result<Vec<Verdict>, sqlx::Error> {
        claim::claim(conn, reins, statements, entries).await
    }

    fn waited(error: &sqlx::Error) -> bool {
        error.as_database_error().and_then(|e| e.code()).as_deref() == Some("55P03")
    }

    fn judge(error: &sqlx::Error) -> Trouble {
        match error {
            sqlx::Error::Database(error) => judge_code(error.code().as_deref().unwrap_or("")),
            _ => crate::error::judge_client(error),
        }
    }
}

/// By SQLSTATE. Any error of the server aborts its transaction.
fn judge_code(code: &str) -> Trouble {
    match code {
        // Serialization failure, deadlock.
        "40001" | "40P01" => Trouble::Redo,
        // Connection exceptions; shutdown, crash, not yet up, database dropped, idle session;
        // limits that end the session.
        "57P01" | "57P02" | "57P03" | "57P04" | "57P05" | "25P03" | "25P04" => Trouble::Broken,
        _ if code.starts_with("08") => Trouble::Broken,
        _ => Trouble::Aborted,
    }
}

/// Whether a transaction may ask the server to watch the client.
async fn watches_client(conn: &mut PgConnection) -> Result<bool, sqlx::Error> {
    // In one text: behind a pooling proxy two texts may meet two servers.
    let try_it = "BEGIN; SET LOCAL client_connection_check_interval = 1000; ROLLBACK";
    let result = plain::<Postgres>(conn, try_it).await;
    match result {
        Ok(()) => Ok(true),
        // Unknown to an older server, or of no use on its system.
        Err(sqlx::Error::Database(_)) => plain::<Postgres>(conn, "ROLLBACK").await.map(|()| false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
