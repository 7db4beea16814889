//! The points service. SIGINT or SIGTERM stops it in order; SIGKILL does no harm.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use oncemq::prelude::*;
use rabbitmq_example::order::OrderCompleted;
use rabbitmq_example::settings::{CONSUMER, TOPIC, broker_url};
use rabbitmq_example::{Error, database};
use sqlx::Postgres;

/// Points and "this order is done" commit together; only then is the message acknowledged.
async fn add_points(mut tx: Tx<Postgres>, order: OrderCompleted) -> Result<(), Failure> {
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

#[tokio::main]
async fn main() -> Result<(), Error> {
    let inbox = Inbox::open(database::open().await?).await?;
    let consumer = Consumer::connect(CONSUMER, &broker_url()?)
        .await?
        .in_flight(64)
        .topic(TOPIC)
        .key(Key::json("/order_id"))
        .retry("1s 5s 30s dead-letter".parse()?)
        .handler(inbox.handler(add_points));
    println!("{}", consumer.plan().await?);
    let mut health = consumer.health();
    tokio::spawn(async move {
        while health.changed().await.is_ok() {
            let now = health.borrow_and_update().clone();
            println!("health: {now}");
        }
    });
    let summary = consumer.run().await?;
    println!(
        "handled {}, duplicates {}, retried {}, dead letters {}, given back {}",
        summary.handled, summary.duplicates, summary.retried, summary.rejected, summary.released
    );
    Ok(())
}
