//! The handler, and what its consumer says while it runs.
#![allow(clippy::print_stdout, reason = "the examples talk to a person")]

use oncemq::{Consumer, Failure, Summary, Tx};
use sqlx::Postgres;

use crate::order::OrderCompleted;

/// Points and "this order is done" commit together; only then is the message acknowledged.
///
/// # Errors
/// The order is wrong, names nobody, or the database fails.
pub async fn add_points(mut tx: Tx<Postgres>, order: OrderCompleted) -> Result<(), Failure> {
    let points = order.points().map_err(Failure::business)?;
    let changed = sqlx::query("UPDATE account SET points = points + $1 WHERE user_id = $2")
        .bind(points)
        .bind(order.user_id)
        .execute(tx.db())
        .await?
        .rows_affected();
    if changed == 0 {
        return Err(Failure::business(format!("order {} names an unknown user", order.order_id)));
    }
    sqlx::query("INSERT INTO ledger (order_id, user_id, points) VALUES ($1, $2, $3)")
        .bind(&order.order_id)
        .bind(order.user_id)
        .bind(points)
        .execute(tx.db())
        .await?;
    // After the writes, so that the rollback has something to take back.
    if order.provider_is_flaky && tx.attempt() == 1 {
        return Err(Failure::system("the payment provider does not answer"));
    }
    Ok(())
}

/// Prints the health of a consumer whenever it changes.
pub fn show_health(consumer: &Consumer) {
    let mut health = consumer.health();
    tokio::spawn(async move {
        while health.changed().await.is_ok() {
            let now = health.borrow_and_update().clone();
            println!("health: {now}");
        }
    });
}

/// Prints what a consumer did.
pub fn show_summary(summary: &Summary) {
    println!(
        "handled {}, duplicates {}, retried {}, dead letters {}, given back {}",
        summary.handled, summary.duplicates, summary.retried, summary.rejected, summary.released
    );
}
