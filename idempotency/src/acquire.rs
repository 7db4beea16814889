//! Connections of a pool, and why there is none.

use std::io;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{ConnectOptions, Connection, Pool};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::dialect::Dialect;

/// How long a pool may be silent before its server is asked directly.
const SILENCE: Duration = Duration::from_millis(500);
/// How long a server that was there counts as being there.
const SEEN: Duration = Duration::from_secs(1);

/// A connection of the pool, or why there is none, before a call is given up. A pool whose
/// server refuses connections tries again until its time is up and says nothing, so a silent
/// one is looked behind.
pub(crate) async fn acquire<DB: Dialect>(
    pool: &Pool<DB>,
    look: &Look,
) -> Result<PoolConnection<DB>, sqlx::Error> {
    tokio::select! {
        biased;
        acquired = pool.acquire() => acquired,
        cause = cause_of_silence(pool, look) => Err(cause),
    }
}

/// One looks behind the pool for all that wait: a login costs time of both sides, and many at
/// once would keep busy what the pool waits for.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// When the server was last seen.
    seen: Mutex<Option<Instant>>,
}

async fn cause_of_silence<DB: Dialect>(pool: &Pool<DB>, look: &Look) -> sqlx::Error {
    tokio::time::sleep(SILENCE).await;
    let mut seen = look.seen.lock().await;
    if seen.is_none_or(|seen| seen.elapsed() >= SEEN) {
        if let Err(error) = server_of(pool).await {
            return error;
        }
        *seen = Some(Instant::now());
    }
    drop(seen);
    // The server is there: all connections of the pool are at work.
    tokio::time::sleep(DB::CALL_LIMIT.saturating_sub(2 * SILENCE)).await;
    sqlx::Error::PoolTimedOut
}

/// Asks the server itself whether it takes connections.
async fn server_of<DB: Dialect>(pool: &Pool<DB>) -> Result<(), sqlx::Error> {
    match pool.connect_options().connect().await {
        Err(sqlx::Error::Io(error)) => {
            let text = format!("{error}; check host and port of the database and whether it runs");
            return Err(sqlx::Error::Io(io::Error::new(error.kind(), text)));
        }
        // Full, or the pool's own to tell.
        Err(_) => {}
        Ok(connection) => drop(connection.close().await),
    }
    Ok(())
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};

    use super::*;

    #[tokio::test]
    async fn one_looks_for_all_that_wait() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let logins = Arc::new(AtomicUsize::new(0));
        let counted = logins.clone();
        tokio::spawn(async move {
            let mut silent = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, SeqCst);
                silent.push(stream);
            }
        });
        let options = PgConnectOptions::new()
            .host("127.0.0.1")
            .port(port)
            .username("nobody")
            .password("none")
            .ssl_mode(PgSslMode::Disable);
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
        let look = Look::default();
        let waiting = futures_util::future::join_all((0..50).map(|_| acquire(&pool, &look)));
        assert!(tokio::time::timeout(SILENCE * 3, waiting).await.is_err());
        let logins = logins.load(SeqCst);
        assert!((1..=2).contains(&logins), "{logins} logins");
    }
}
