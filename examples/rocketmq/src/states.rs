//! The states of an order, which are followed in their order.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use oncemq::{Failure, Message, Publisher, Tx};
use shop_example::Error;
use sqlx::{PgPool, Postgres};

/// The topic.
pub(crate) const STATES: &str = "order-state";
/// What an order goes through.
const STEPS: [&str; 3] = ["placed", "paid", "shipped"];

/// An order has reached a state.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct StateReached {
    order_id: String,
    step: i64,
    state: String,
}

/// Makes the table.
pub(crate) async fn create(pool: &PgPool) -> Result<(), Error> {
    sqlx::query("CREATE TABLE IF NOT EXISTS order_state (order_id text PRIMARY KEY, step bigint NOT NULL)")
        .execute(pool)
        .await?;
    Ok(())
}

/// Tells of every state of an order. They have one key, so they have one message group: one
/// queue, and one after the other.
pub(crate) async fn tell(publisher: &dyn Publisher, number: i64) -> Result<(), Error> {
    let order_id = format!("order-{number}");
    for (step, state) in (1..).zip(STEPS) {
        let reached = StateReached { order_id: order_id.clone(), step, state: state.to_owned() };
        let message = Message::new(serde_json::to_vec(&reached)?)
            .with_id(format!("order-state/{number}/{step}"))
            .with_key(order_id.clone())
            .with_content_type("application/json");
        publisher.publish(STATES, &message).await?;
    }
    Ok(())
}

/// Takes an order one step further.
pub(crate) async fn advance(mut tx: Tx<Postgres>, reached: StateReached) -> Result<(), Failure> {
    let StateReached { order_id, step, state } = reached;
    if step == 2 && order_id.ends_with('8') && tx.attempt() == 1 {
        return Err(Failure::system("the payment provider does not answer"));
    }
    let changed = sqlx::query(
        "INSERT INTO order_state (order_id, step) SELECT $1, 1 WHERE $2 = 1
         ON CONFLICT (order_id) DO NOTHING",
    )
    .bind(&order_id)
    .bind(step)
    .execute(tx.db())
    .await?
    .rows_affected();
    let further =
        sqlx::query("UPDATE order_state SET step = $2 WHERE order_id = $1 AND step = $2 - 1 AND $2 > 1")
            .bind(&order_id)
            .bind(step)
            .execute(tx.db())
            .await?
            .rows_affected();
    if changed + further != 1 {
        return Err(Failure::business(format!("order {order_id} is not ready to be {state}")));
    }
    Ok(())
}

/// Every order that is committed, and the last state that it went to.
const ORDERS: &str = "SELECT count(*), count(*) FILTER (WHERE step = $1)
    FROM (SELECT DISTINCT 'order-' || split_part(message_id, '/', 2) AS order_id FROM outbox) AS completed
    LEFT JOIN order_state USING (order_id)";

/// Whether every order that the shop committed went all the way: one whose states overtook each
/// other is stuck, one that lost its first state is not there.
pub(crate) async fn check(pool: &PgPool) -> Result<bool, Error> {
    create(pool).await?;
    let (orders, done): (i64, i64) =
        sqlx::query_as(ORDERS).bind(i64::try_from(STEPS.len())?).fetch_one(pool).await?;
    let right = done == orders && orders > 0;
    println!(
        "{} orders that went through every state in order: {done} of {orders}",
        if right { "ok   " } else { "WRONG" }
    );
    Ok(right)
}
