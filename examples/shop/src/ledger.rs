//! Is every point right? Asked of the database.
#![allow(clippy::print_stdout, reason = "the examples talk to a person")]

use std::process::ExitCode;

use sqlx::PgPool;

use crate::settings::{CONSUMER, TOPIC};
use crate::{Error, database};

const LOST: &str = "SELECT count(DISTINCT order_id) FROM outbox
    WHERE fate = 'booked' AND order_id NOT IN (SELECT order_id FROM ledger)";
const DOUBLED: &str =
    "SELECT count(*) FROM (SELECT order_id FROM ledger GROUP BY order_id HAVING count(*) > 1) AS twice";
const STRANGE: &str = "SELECT count(*) FROM ledger
    WHERE order_id NOT IN (SELECT order_id FROM outbox WHERE fate = 'booked')";
const BALANCE: &str = "SELECT coalesce(sum(points), 0)::bigint FROM account";
const BOOKED: &str = "SELECT coalesce(sum(points), 0)::bigint FROM ledger";
const EFFECTS: &str = "SELECT count(*) FROM ledger";
const GOOD: &str = "SELECT count(DISTINCT order_id) FROM outbox WHERE fate = 'booked'";
const REFUSED: &str = "SELECT count(DISTINCT message_id) FROM outbox WHERE fate <> 'booked'";
const UNSENT: &str = "SELECT count(*) FROM outbox WHERE confirmed_at IS NULL";

/// Compares and prints. Fails if anything is lost or doubled.
///
/// # Errors
/// The database does not answer, or there is no order to compare with.
pub async fn check() -> Result<ExitCode, Error> {
    let pool = database::open().await?;
    if number(&pool, GOOD).await? == 0 {
        return Err("there is no order in the database; let the shop complete some first".into());
    }
    let (lost, doubled, strange) =
        (number(&pool, LOST).await?, number(&pool, DOUBLED).await?, number(&pool, STRANGE).await?);
    let (balance, booked) = (number(&pool, BALANCE).await?, number(&pool, BOOKED).await?);
    let (effects, good) = (number(&pool, EFFECTS).await?, number(&pool, GOOD).await?);
    let (without_record, without_effect) = apart(&pool).await?;
    let rows = [
        ("every message is sent", number(&pool, UNSENT).await?, 0),
        ("effects = good orders", effects, good),
        ("effects of other messages", strange, 0),
        ("balance of all accounts = sum of the ledger", balance, booked),
        ("effects without a record", without_record, 0),
        ("records without an effect", without_effect, 0),
        ("lost", lost, 0),
        ("doubled", doubled, 0),
    ];
    for (what, found, wanted) in rows {
        println!("{} {what}: {found} of {wanted}", if found == wanted { "ok   " } else { "WRONG" });
    }
    println!("{} messages belong into the dead letters", number(&pool, REFUSED).await?);
    println!("lost {lost} doubled {doubled}");
    let right = rows.iter().all(|(_, found, wanted)| found == wanted);
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn number(pool: &PgPool, sql: &'static str) -> Result<i64, Error> {
    Ok(sqlx::query_scalar(sql).fetch_one(pool).await?)
}

/// Effect and record, compared row by row.
async fn apart(pool: &PgPool) -> Result<(i64, i64), Error> {
    let text = "SELECT
        (SELECT count(*) FROM ledger WHERE order_id NOT IN
          (SELECT key_text FROM oncemq_inbox WHERE consumer = $1 AND kind = $2)),
        (SELECT count(*) FROM oncemq_inbox WHERE consumer = $1 AND kind = $2 AND key_text NOT IN
          (SELECT order_id FROM ledger))";
    Ok(sqlx::query_as(text).bind(CONSUMER).bind(TOPIC).fetch_one(pool).await?)
}
