//! What differs between databases: their SQL, and what their errors mean.
//!
//! Everything outside a database's folder is written against [`Dialect`] alone.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use sqlx::{Database, Executor, Pool};

use crate::names::Names;
use crate::schema::Tables;
use oncemq_core::{Entry, Error, Verdict};

/// A database that can keep an inbox. Implemented here only.
pub trait Dialect: Database + sealed::Sealed {
    /// What a store learns about its server when it is opened.
    #[doc(hidden)]
    type Server: Send + Sync + Clone + std::fmt::Debug + 'static;
    /// What a connection for units keeps beside sqlx's own.
    #[doc(hidden)]
    type Reins: Send + Sync + 'static;

    /// The store's name.
    #[doc(hidden)]
    const STORE: &'static str;
    /// One writer at a time: notes and the purge queue with the units.
    #[doc(hidden)]
    const ONE_WRITER: bool;
    /// How long a short call may take before the server counts as down.
    #[doc(hidden)]
    const CALL_LIMIT: Duration;

    /// The driver's executor, without the bounds that every caller would have to repeat.
    #[doc(hidden)]
    fn executor<'c>(conn: &'c mut Self::Connection) -> impl Executor<'c, Database = Self>;
    /// Binds values in their order.
    #[doc(hidden)]
    fn arguments(values: Vec<Value>) -> Result<Self::Arguments, sqlx::Error>;
    /// A cell of a row.
    #[doc(hidden)]
    fn int(row: &Self::Row, at: usize) -> Result<Option<i64>, sqlx::Error>;
    /// A cell of a row.
    #[doc(hidden)]
    fn bytes(row: &Self::Row, at: usize) -> Result<Option<Vec<u8>>, sqlx::Error>;
    /// A cell of a row.
    #[doc(hidden)]
    fn text(row: &Self::Row, at: usize) -> Result<Option<String>, sqlx::Error>;
    /// Rows that a statement changed.
    #[doc(hidden)]
    fn affected(result: &Self::QueryResult) -> u64;

    /// How many units can be open at once with a pool of this size.
    #[doc(hidden)]
    fn units(pool_max: u32) -> usize;
    /// Looks at the server, resolves names, refuses what cannot work.
    #[doc(hidden)]
    fn learn(
        pool: &Pool<Self>,
        names: &Names,
        tables: &Tables,
    ) -> impl Future<Output = Result<(Names, Self::Server), Error>> + Send;
    /// The statements that make the tables, in order.
    #[doc(hidden)]
    fn ddl(names: &Names, tables: &Tables) -> Vec<String>;
    /// Runs the statements that make the tables, safe against other processes doing the
    /// same at this moment.
    #[doc(hidden)]
    fn create(
        pool: &Pool<Self>,
        names: &Names,
        tables: &Tables,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    /// Lists a table's columns, bound to no argument; no row where there is no such table.
    #[doc(hidden)]
    fn columns_sql(names: &Names, table: &str) -> String;
    /// The statements of a store.
    #[doc(hidden)]
    fn statements(names: &Names, server: &Self::Server, named: bool) -> Statements;
    /// The statements of a memory of decisions.
    #[doc(hidden)]
    fn decisions(names: &Names) -> DecisionTexts;

    /// Prepares a fresh connection for units.
    #[doc(hidden)]
    fn harness(conn: &mut Self::Connection) -> impl Future<Output = Result<Self::Reins, sqlx::Error>> + Send;
    /// The text that opens a unit, up to and with the savepoint.
    #[doc(hidden)]
    fn begin_text(server: &Self::Server, secret: &str, limit: Duration) -> String;
    /// Called before the text that commits is sent.
    #[doc(hidden)]
    fn allow_commit(reins: &Self::Reins, allow: bool);
    /// Whether the database rolled the unit back by itself.
    #[doc(hidden)]
    fn rolled_back(reins: &Self::Reins) -> bool;
    /// Called when a unit opens.
    #[doc(hidden)]
    fn unit_opens(reins: &Self::Reins, limit: Duration);
    /// Stops a statement that still runs on a connection that was given up. Called without
    /// the connection, which is being closed.
    #[doc(hidden)]
    fn stop(reins: &Self::Reins, pool: &Pool<Self>) -> BoxFuture<'static, ()>;
    /// Claims keys in the transaction that is open: a unit's, which has reins, or a caller's.
    #[doc(hidden)]
    fn claim(
        conn: &mut Self::Connection,
        reins: Option<&mut Self::Reins>,
        statements: &Statements,
        entries: &[Entry],
    ) -> impl Future<Output = Result<Vec<Verdict>, sqlx::Error>> + Send;

    /// Whether an error says that a claim waited in vain for another transaction.
    #[doc(hidden)]
    fn waited(error: &sqlx::Error) -> bool;
    /// What an error means for the transaction it came from.
    #[doc(hidden)]
    fn judge(error: &sqlx::Error) -> Trouble;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// What an error means for the transaction it came from.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The statement did nothing, and the transaction goes on.
    Harmless,
    /// The transaction can only be rolled back, or back to a savepoint.
    Aborted,
    /// A deadlock or a serialization failure: the whole unit is run again.
    Redo,
    /// The connection is gone, or the database file is.
    Broken,
}

/// A value to bind.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub enum Value {
    Int(i64),
    Bytes(Vec<u8>),
    Text(String),
    MaybeBytes(Option<Vec<u8>>),
    MaybeText(Option<String>),
}

/// The SQL texts of one store, made once. Arguments are numbered.
#[doc(hidden)]
#[derive(Debug)]
pub struct Statements {
    /// Claims in a unit; read by the dialect only.
    pub claim: Arc<str>,
    /// Claims in a caller's transaction, whose settings stay as they are.
    pub claim_beside: Arc<str>,
    /// The driver may keep prepared statements by name.
    pub named: bool,
    /// What is stored beside a done key, where the claim could not see it.
    pub done: Arc<str>,
    /// Answered by a store that works.
    pub probe: Arc<str>,
    /// A note by its id.
    pub note: Arc<str>,
    /// Adds a mark where there are fewer: id, than how many. Returns the note, or nothing.
    pub mark: Arc<str>,
    /// Takes marks back: id, how many.
    pub unmark: Arc<str>,
    /// Charged attempts: id, attempts.
    pub charge: Arc<str>,
    /// A failed note: id, key, consumer, kind, class, reason, key text.
    pub fail: Arc<str>,
    /// Removes expired done rows: age in microseconds, how many at most.
    pub purge_done: Arc<str>,
    /// Removes expired and empty notes: age in microseconds, how many at most.
    pub purge_notes: Arc<str>,
    /// Sets the outcome of a key: key, outcome.
    pub finish: Arc<str>,
}

/// The SQL texts of a memory of decisions.
#[doc(hidden)]
#[derive(Debug)]
pub struct DecisionTexts {
    /// Writes "committed" in a transaction of the caller: id. Fails where it is decided.
    pub commit: Arc<str>,
    /// The same in a unit.
    pub commit_in_unit: Arc<str>,
    /// Whether it was committed: id. No row if it is not decided.
    pub read: Arc<str>,
    /// Begins the transaction of `refuse`.
    pub begin: &'static str,
    /// Writes "rolled back" unless it is decided: id. Waits a while for a transaction that
    /// is deciding.
    pub refuse: Arc<str>,
    /// Removes expired rows: age in microseconds, how many at most.
    pub purge: Arc<str>,
}

/// The accessors that are the same text for every driver.
macro_rules! accessors {
    () => {
        fn executor<'c>(conn: &'c mut Self::Connection) -> impl sqlx::Executor<'c, Database = Self> {
            conn
        }

        fn arguments(values: Vec<$crate::dialect::Value>) -> Result<Self::Arguments, sqlx::Error> {
            use sqlx::Arguments as _;
            use $crate::dialect::Value;
            let mut arguments = Self::Arguments::default();
            for value in values {
                match value {
                    Value::Int(v) => arguments.add(v),
                    Value::Bytes(v) => arguments.add(v),
                    Value::Text(v) => arguments.add(v),
                    Value::MaybeBytes(v) => arguments.add(v),
                    Value::MaybeText(v) => arguments.add(v),
                }
                .map_err(sqlx::Error::Encode)?;
            }
            Ok(arguments)
        }

        fn int(row: &Self::Row, at: usize) -> Result<Option<i64>, sqlx::Error> {
            sqlx::Row::try_get(row, at)
        }

        fn bytes(row: &Self::Row, at: usize) -> Result<Option<Vec<u8>>, sqlx::Error> {
            sqlx::Row::try_get(row, at)
        }

        fn text(row: &Self::Row, at: usize) -> Result<Option<String>, sqlx::Error> {
            sqlx::Row::try_get(row, at)
        }

        fn affected(result: &Self::QueryResult) -> u64 {
            result.rows_affected()
        }
    };
}
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use accessors;
