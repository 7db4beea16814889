//! Errors of the store, with the driver's own text behind them.

use std::future::Future;
use std::time::Duration;

use oncemq_core::{Error, ErrorKind};

/// A call on the store failed. No driver error carries a URL or a password.
pub(crate) fn store(what: &str, error: sqlx::Error) -> Error {
    Error::with_source(ErrorKind::Store, format!("the record store failed to {what}"), error)
}

/// A settings error.
pub(crate) fn config(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Config, text)
}

/// A refusal that a handler sees as a database error.
pub(crate) fn refused(text: &str) -> sqlx::Error {
    sqlx::Error::InvalidArgument(text.to_owned())
}

/// Bounds a call: a server that hangs counts as one that is down.
pub(crate) async fn bounded<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => Err(sqlx::Error::Io(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            format!("no answer within {limit:?}; check host and port of the database and whether it runs"),
        ))),
    }
}

/// What an error means that the server did not send.
pub(crate) fn judge_client(error: &sqlx::Error) -> crate::dialect::Trouble {
    use crate::dialect::Trouble;
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => Trouble::Broken,
        // Raised by the driver or by us before or after the database did its part.
        _ => Trouble::Harmless,
    }
}
