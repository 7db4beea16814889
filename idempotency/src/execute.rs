//! Statements on their way to the driver.

use std::sync::Arc;

use futures_util::TryStreamExt;
use sqlx::error::BoxDynError;
use sqlx::{AssertSqlSafe, Either, Execute, Executor, SqlSafeStr, SqlStr};

use crate::dialect::{Dialect, Value};

/// A statement taken apart, so that its text can be looked at before it is sent.
pub(crate) struct Statement<DB: Dialect> {
    sql: SqlStr,
    arguments: Option<DB::Arguments>,
    persistent: bool,
}

impl<DB: Dialect> Statement<DB> {
    /// Takes a caller's statement apart.
    pub(crate) fn of<'q, E: Execute<'q, DB>>(mut query: E) -> Result<Self, sqlx::Error> {
        let arguments = query.take_arguments().map_err(sqlx::Error::Encode)?;
        let persistent = query.persistent();
        Ok(Self { sql: query.sql(), arguments, persistent })
    }

    pub(crate) fn bound(sql: &Arc<str>, values: Vec<Value>, named: bool) -> Result<Self, sqlx::Error> {
        let arguments = Some(DB::arguments(values)?);
        Ok(Self { sql: AssertSqlSafe(sql.clone()).into_sql_str(), arguments, persistent: named })
    }

    /// The same, never kept prepared under a name.
    pub(crate) fn unnamed(mut self) -> Self {
        self.persistent = false;
        self
    }

    /// Text without arguments, which may hold several statements.
    pub(crate) fn plain(sql: impl Into<String>) -> Self {
        Self { sql: AssertSqlSafe(sql.into()).into_sql_str(), arguments: None, persistent: false }
    }

    pub(crate) fn text(&self) -> &str {
        self.sql.as_str()
    }
}

impl<'q, DB: Dialect> Execute<'q, DB> for Statement<DB> {
    fn sql(self) -> SqlStr {
        self.sql
    }

    // The driver finds a prepared statement again by its text.
    fn statement(&self) -> Option<&DB::Statement> {
        None
    }

    fn take_arguments(&mut self) -> Result<Option<DB::Arguments>, BoxDynError> {
        Ok(self.arguments.take())
    }

    fn persistent(&self) -> bool {
        self.persistent
    }
}

/// Runs one statement without arguments and collects its rows.
pub(crate) async fn rows<DB: Dialect>(
    conn: &mut DB::Connection,
    sql: &Arc<str>,
) -> Result<Vec<DB::Row>, sqlx::Error> {
    DB::executor(conn).fetch_all(Statement::<DB>::plain(sql.to_string())).await
}

/// Runs one statement of ours, collects its rows and counts the rows it changed.
pub(crate) async fn collect<DB: Dialect>(
    conn: &mut DB::Connection,
    sql: &Arc<str>,
    values: Vec<Value>,
    named: bool,
) -> Result<(Vec<DB::Row>, u64), sqlx::Error> {
    let mut stream = DB::executor(conn).fetch_many(Statement::<DB>::bound(sql, values, named)?);
    let (mut rows, mut changed) = (Vec::new(), 0);
    while let Some(item) = stream.try_next().await? {
        match item {
            Either::Left(result) => changed += DB::affected(&result),
            Either::Right(row) => rows.push(row),
        }
    }
    Ok((rows, changed))
}

/// Runs plain text.
pub(crate) async fn plain<DB: Dialect>(
    conn: &mut DB::Connection,
    sql: impl Into<String>,
) -> Result<(), sqlx::Error> {
    DB::executor(conn).execute(Statement::<DB>::plain(sql)).await?;
    Ok(())
}
