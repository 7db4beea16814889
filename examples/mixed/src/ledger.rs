//! What was booked.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use oncemq::Shutdown;
use sqlx::PgPool;

use crate::Error;

/// Makes the table. It has no unique key on purpose: an effect that happens twice must show.
pub(crate) async fn create(pool: &PgPool) -> Result<(), Error> {
    sqlx::query("CREATE TABLE IF NOT EXISTS mixed_ledger (event text, id text, points bigint)")
        .execute(pool)
        .await?;
    Ok(())
}

/// Until every order and every payment is there.
pub(crate) async fn wait_for(
    pool: &PgPool,
    ids: &[String],
    limit: Duration,
    shutdown: &Shutdown,
) -> Result<(), Error> {
    let begin = Instant::now();
    loop {
        let (orders, payments) = (distinct(pool, "order", ids).await?, distinct(pool, "payment", ids).await?);
        if orders == ids.len() && payments == ids.len() {
            return Ok(());
        }
        if begin.elapsed() > limit || shutdown.is_stopping() {
            return Err(format!("only {orders} orders and {payments} payments were booked").into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn distinct(pool: &PgPool, event: &str, ids: &[String]) -> Result<usize, Error> {
    let text = "SELECT count(DISTINCT id) FROM mixed_ledger WHERE event = $1 AND id = ANY ($2)";
    let found: i64 = sqlx::query_scalar(text).bind(event).bind(ids).fetch_one(pool).await?;
    Ok(usize::try_from(found)?)
}

/// Prints what was lost and what was booked twice.
pub(crate) async fn check(pool: &PgPool, ids: &[String]) -> Result<ExitCode, Error> {
    let mut right = true;
    for event in ["order", "payment"] {
        let text = "SELECT count(*) FROM mixed_ledger WHERE event = $1 AND id = ANY ($2)";
        let rows: i64 = sqlx::query_scalar(text).bind(event).bind(ids).fetch_one(pool).await?;
        let there = distinct(pool, event, ids).await?;
        let (lost, doubled) = (ids.len() - there, usize::try_from(rows)? - there);
        println!("{event}s: {there} of {}, lost {lost} doubled {doubled}", ids.len());
        right &= lost == 0 && doubled == 0;
    }
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
