//! The service itself: what is consumed from where, and what it does.

use std::sync::Arc;

use oncemq::prelude::*;
use oncemq::{Broker, Shutdown};
use sqlx::{PgPool, Postgres};

use crate::{Error, variable};

/// The old name of the orders, on RabbitMQ, and what they are remembered as.
pub(crate) const ORDERS: &str = "mixed-order-completed";
/// Their new name, on Kafka.
pub(crate) const NEW_ORDERS: &str = "mixed-orders";
/// The payments, on RocketMQ.
pub(crate) const PAYMENTS: &str = "mixed-payment-received";

/// The permanent name, the same on every broker: it is the memory of what is done.
const NAME: &str = "mixed-points-service";

pub(crate) struct Brokers {
    pub(crate) rabbitmq: Arc<dyn Broker>,
    pub(crate) kafka: Arc<dyn Broker>,
    pub(crate) rocketmq: Arc<dyn Broker>,
}

impl Brokers {
    pub(crate) fn from_env() -> Result<Self, Error> {
        Ok(Self {
            rabbitmq: oncemq::broker(&variable("ONCEMQ_RABBITMQ_URL")?)?,
            kafka: oncemq::broker(&format!("{}?partitions=4", variable("ONCEMQ_KAFKA_URL")?))?,
            rocketmq: oncemq::broker(&format!("{}?queues=4", variable("ONCEMQ_ROCKETMQ_URL")?))?,
        })
    }
}

#[derive(serde::Deserialize)]
struct OrderCompleted {
    order_id: String,
    points: i64,
}

#[derive(serde::Deserialize)]
struct PaymentReceived {
    order_id: String,
}

/// The same for an order of either broker.
async fn add_points(mut tx: Tx<Postgres>, order: OrderCompleted) -> Result<(), Failure> {
    sqlx::query("INSERT INTO mixed_ledger (event, id, points) VALUES ('order', $1, $2)")
        .bind(&order.order_id)
        .bind(order.points)
        .execute(tx.db())
        .await?;
    Ok(())
}

/// A payment has an order's id too: it is another kind, and so another key.
async fn add_bonus(mut tx: Tx<Postgres>, payment: PaymentReceived) -> Result<(), Failure> {
    sqlx::query("INSERT INTO mixed_ledger (event, id, points) VALUES ('payment', $1, 1)")
        .bind(&payment.order_id)
        .execute(tx.db())
        .await?;
    Ok(())
}

/// One consumer for each broker, with one memory: the database of the pool.
pub(crate) async fn consumers(
    brokers: &Brokers,
    pool: &PgPool,
    shutdown: &Shutdown,
) -> Result<[Consumer; 3], Error> {
    let inbox = Inbox::open(pool.clone()).await?;
    let on = |broker: &Arc<dyn Broker>| {
        Consumer::with_broker(NAME, broker.clone()).in_flight(64).shutdown(shutdown.clone())
    };
    let ladder: RetryPolicy = "1s 5s dead-letter".parse()?;
    let old = on(&brokers.rabbitmq)
        .topic(ORDERS)
        .key(Key::json("/order_id"))
        .retry(ladder.clone())
        .handler(inbox.handler(add_points));
    // Without the kind, one order would be two keys: a record is kept under the topic's name.
    let new = on(&brokers.kafka)
        .topic(NEW_ORDERS)
        .kind(ORDERS)
        .key(Key::json("/order_id"))
        .retry(ladder.clone())
        .handler(inbox.handler(add_points));
    let payments = on(&brokers.rocketmq)
        .topic(PAYMENTS)
        .key(Key::json("/order_id"))
        .retry(ladder)
        .handler(inbox.handler(add_bonus));
    Ok([old, new, payments])
}
