//! The tables: accounts and ledger of the consumer, outbox of the producer.

use std::time::Duration;

use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::{Error, settings};

/// Users 1 to this many have an account.
pub const USERS: i64 = 200;

/// Any number, the same in every process of the examples.
const SCHEMA_LOCK: i64 = 7_201_901;

/// Connects, and makes the tables where they are missing. The ledger has no unique key on
/// purpose: an effect that happens twice must show.
///
/// # Errors
/// The database does not answer or refuses.
pub async fn open() -> Result<PgPool, Error> {
    let pool = PgPoolOptions::new()
        .max_connections(10)
        .acquire_timeout(Duration::from_secs(10))
        .connect(&settings::database_url()?)
        .await?;
    let mut tx = pool.begin().await?;
    // Producer and consumer may start at the same time.
    sqlx::query("SELECT pg_advisory_xact_lock($1)").bind(SCHEMA_LOCK).execute(&mut *tx).await?;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS account (user_id bigint PRIMARY KEY, points bigint NOT NULL DEFAULT 0);
         CREATE TABLE IF NOT EXISTS ledger (
           order_id text NOT NULL, user_id bigint NOT NULL, points bigint NOT NULL,
           booked_at timestamptz NOT NULL DEFAULT now());
         CREATE TABLE IF NOT EXISTS outbox (
           position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, message_id text NOT NULL,
           user_id bigint NOT NULL, order_id text, fate text NOT NULL, body bytea NOT NULL, confirmed_at timestamptz);
         CREATE INDEX IF NOT EXISTS outbox_unsent ON outbox (position) WHERE confirmed_at IS NULL",
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query("INSERT INTO account (user_id) SELECT generate_series(1, $1) ON CONFLICT DO NOTHING")
        .bind(USERS)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(pool)
}
