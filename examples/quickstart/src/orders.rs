//! The business: a completed order adds points to the user's account.

use oncemq::Message;
use oncemq::prelude::*;
use serde::{Deserialize, Serialize};
use sqlx::{Sqlite, SqliteConnection};

pub(crate) const TOPIC: &str = "order-completed";

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct OrderCompleted {
    pub(crate) order_id: String,
    pub(crate) user_id: i64,
    pub(crate) points: i64,
}

impl OrderCompleted {
    pub(crate) fn message(&self) -> Result<Message, serde_json::Error> {
        Ok(Message::new(serde_json::to_vec(self)?).with_id(format!("event-{}", self.order_id)))
    }
}

/// The handler of a service: what it writes and "this order is done" commit together.
pub(crate) async fn add_points(mut tx: Tx<Sqlite>, order: OrderCompleted) -> Result<(), Failure> {
    let changed = sqlx::query("UPDATE account SET points = points + $1 WHERE user_id = $2")
        .bind(order.points)
        .bind(order.user_id)
        .execute(tx.db())
        .await?
        .rows_affected();
    if changed == 0 {
        return Err(Failure::business(format!("user {} is unknown", order.user_id)));
    }
    sqlx::query("INSERT INTO ledger (order_id, user_id, points) VALUES ($1, $2, $3)")
        .bind(&order.order_id)
        .bind(order.user_id)
        .bind(order.points)
        .execute(tx.db())
        .await?;
    Ok(())
}

/// The same business as the usual consumer writes it: in a transaction of its own, which
/// knows nothing of the message.
pub(crate) async fn add_points_usually(
    connection: &mut SqliteConnection,
    order: &OrderCompleted,
) -> Result<(), sqlx::Error> {
    let mut tx = sqlx::Connection::begin(connection).await?;
    sqlx::query("UPDATE account SET points = points + $1 WHERE user_id = $2")
        .bind(order.points)
        .bind(order.user_id)
        .execute(&mut *tx)
        .await?;
    sqlx::query("INSERT INTO ledger (order_id, user_id, points) VALUES ($1, $2, $3)")
        .bind(&order.order_id)
        .bind(order.user_id)
        .bind(order.points)
        .execute(&mut *tx)
        .await?;
    tx.commit().await
}
