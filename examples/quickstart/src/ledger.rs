//! Is every point right? Asked of the database, not of the program.

use oncemq::Message;
use sqlx::SqlitePool;

use crate::Error;
use crate::orders::OrderCompleted;

/// Copies the ids of the dead letters into the database, so that the check is one of tables.
pub(crate) async fn note_dead_letters(pool: &SqlitePool, letters: &[Message]) -> Result<(), Error> {
    for letter in letters {
        let order: OrderCompleted = serde_json::from_slice(letter.body())?;
        sqlx::query("INSERT INTO dead_letter (order_id) VALUES ($1)")
            .bind(order.order_id)
            .execute(pool)
            .await?;
    }
    Ok(())
}

/// How many effects there are.
pub(crate) async fn effects(pool: &SqlitePool) -> Result<i64, Error> {
    count(pool, "SELECT count(*) FROM ledger").await
}

/// Prints the check and returns whether everything holds.
pub(crate) async fn check(pool: &SqlitePool, added_by_replay: i64) -> Result<bool, Error> {
    let good = count(pool, "SELECT count(*) FROM sent WHERE good").await?;
    let poison = count(pool, "SELECT count(*) FROM sent WHERE NOT good").await?;
    let dead = count(
        pool,
        "SELECT count(DISTINCT order_id) FROM dead_letter JOIN sent USING (order_id) WHERE NOT good",
    )
    .await?;
    let wrongly_dead =
        count(pool, "SELECT count(DISTINCT order_id) FROM dead_letter JOIN sent USING (order_id) WHERE good")
            .await?;
    let lost =
        count(pool, "SELECT count(*) FROM sent WHERE good AND order_id NOT IN (SELECT order_id FROM ledger)")
            .await?;
    let doubled = count(
        pool,
        "SELECT count(*) FROM (SELECT order_id FROM ledger GROUP BY order_id HAVING count(*) > 1)",
    )
    .await?;
    let effects = effects(pool).await?;
    let balance = count(pool, "SELECT sum(points) FROM account").await?;
    let booked = count(pool, "SELECT sum(points) FROM ledger").await?;
    let rows = [
        ("effects = good orders", effects == good, format!("{effects} = {good}")),
        (
            "dead letters = orders of unknown users",
            dead == poison && wrongly_dead == 0,
            format!("{dead} = {poison}"),
        ),
        ("effects added by replaying the dead letters", added_by_replay == 0, added_by_replay.to_string()),
        ("balance of all accounts = sum of the ledger", balance == booked, format!("{balance} = {booked}")),
        ("lost", lost == 0, lost.to_string()),
        ("doubled", doubled == 0, doubled.to_string()),
    ];
    println!("\n   Ledger");
    for (what, holds, value) in &rows {
        println!("   {} {what}: {value}", if *holds { "ok   " } else { "WRONG" });
    }
    println!("   lost {lost} doubled {doubled}");
    Ok(rows.iter().all(|(_, holds, _)| *holds))
}

async fn count(pool: &SqlitePool, sql: &'static str) -> Result<i64, Error> {
    Ok(sqlx::query_scalar(sql).fetch_one(pool).await?)
}
