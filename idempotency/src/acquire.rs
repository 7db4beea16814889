//! Connections of a pool, and why there is none.

use std::io;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{ConnectOptions, Connection, Pool};

use crate::dialect::Dialect;

/// How long a pool may be silent before its server is asked directly.
const SILENCE: Duration = Duration::from_millis(500);

/// A connection of the pool, or why there is none, before a call is given up. A pool whose
/// server refuses connections tries again until its time is up and says nothing, so a silent
/// one is looked behind.
pub(crate) async fn acquire<DB: Dialect>(pool: &Pool<DB>) -> Result<PoolConnection<DB>, sqlx::Error> {
    tokio::select! {
        biased;
        acquired = pool.acquire() => acquired,
        cause = cause_of_silence(pool) => Err(cause),
    }
}

async fn cause_of_silence<DB: Dialect>(pool: &Pool<DB>) -> sqlx::Error {
    tokio::time::sleep(SILENCE).await;
    match pool.connect_options().connect().await {
        Err(sqlx::Error::Io(error)) => {
            let text = format!("{error}; check host and port of the database and whether it runs");
            return sqlx::Error::Io(io::Error::new(error.kind(), text));
        }
        // Full, or the pool's own to tell.
        Err(_) => {}
        Ok(connection) => drop(connection.close().await),
    }
    // The server is there: all connections of the pool are at work.
    tokio::time::sleep(DB::CALL_LIMIT.saturating_sub(2 * SILENCE)).await;
    sqlx::Error::PoolTimedOut
}
