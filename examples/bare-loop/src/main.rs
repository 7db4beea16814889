//! The inbox in a hand-written loop: no consumer, no ladder, no dead letters of ours, only
//! "this event is done" in the transaction of the effect.
//!
//! Publishes a hundred payments twice to a queue of its own, consumes until nothing comes
//! any more, and prints the effects: a hundred. Then it removes the queue. The exit status
//! is 1 if a payment was booked twice or not at all.
//!
//! ```text
//! ONCEMQ_RABBITMQ_URL=amqp://user:password@localhost:5672/%2f cargo run -p bare-loop
//! ```
//!
//! What a consumer would add: retries that wait on the broker, dead letters with their
//! reason, reconnection, a store that is away, shutdown, order by key. A loop like this one
//! has to bring its own.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicPublishOptions, BasicQosOptions,
    BasicRejectOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use oncemq::Inbox;
use oncemq::idempotency::Once;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Sqlite, SqlitePool};

type Error = Box<dyn std::error::Error + Send + Sync>;

const QUEUE: &str = "bare-loop.payments";
const PAYMENTS: i64 = 100;
const IDLE: Duration = Duration::from_secs(2);

#[derive(serde::Serialize, serde::Deserialize)]
struct Payment {
    payment_id: String,
    cents: i64,
}

/// What becomes of a delivery.
enum Fate {
    Booked,
    Duplicate,
    /// Another transaction has the key: later.
    Busy,
    /// It will never be readable.
    Hopeless,
}

#[tokio::main]
async fn main() -> Result<ExitCode, Error> {
    let folder = tempfile::tempdir()?;
    let options = SqliteConnectOptions::new().filename(folder.path().join("shop.db")).create_if_missing(true);
    let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await?;
    // No unique key: a payment that is booked twice must show.
    sqlx::raw_sql("CREATE TABLE booking (payment_id TEXT NOT NULL, cents INTEGER NOT NULL)")
        .execute(&pool)
        .await?;
    let inbox = Inbox::open(pool.clone()).await?;

    let url = std::env::var("ONCEMQ_RABBITMQ_URL").or_else(|_| std::env::var("BROKER_URL"));
    let url =
        url.map_err(|_| "set ONCEMQ_RABBITMQ_URL or BROKER_URL to amqp://user:password@host:5672/%2f")?;
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.queue_declare(QUEUE.into(), QueueDeclareOptions::durable(), FieldTable::default()).await?;
    publish_twice(&channel).await?;
    let (booked, duplicates) = consume(&channel, &pool, &inbox).await?;
    channel.queue_delete(QUEUE.into(), QueueDeleteOptions::default()).await?;
    connection.close(200, "done".into()).await?;

    let (effects, distinct): (i64, i64) =
        sqlx::query_as("SELECT count(*), count(DISTINCT payment_id) FROM booking").fetch_one(&pool).await?;
    println!("booked {booked}, duplicates {duplicates}, effects {effects} of {PAYMENTS} payments");
    let right = effects == PAYMENTS && distinct == PAYMENTS;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn publish_twice(channel: &Channel) -> Result<(), Error> {
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    for round in 0..2 {
        for number in 1..=PAYMENTS {
            let payment = Payment { payment_id: format!("payment-{number}"), cents: 100 * number };
            let body = serde_json::to_vec(&payment)?;
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let properties = BasicProperties::default().with_delivery_mode(2);
            let confirm = channel.basic_publish("".into(), QUEUE.into(), options, &body, properties).await?;
            if confirm.await? != Confirmation::Ack(None) {
                return Err(format!("payment {number} was not stored in round {round}").into());
            }
        }
    }
    Ok(())
}

/// The loop, until nothing comes for a while.
async fn consume(
    channel: &Channel,
    pool: &SqlitePool,
    inbox: &Inbox<Sqlite>,
) -> Result<(usize, usize), Error> {
    channel.basic_qos(20, BasicQosOptions::default()).await?;
    let (options, table) = (BasicConsumeOptions::default(), FieldTable::default());
    let mut consumer = channel.basic_consume(QUEUE.into(), "".into(), options, table).await?;
    let (mut booked, mut duplicates) = (0, 0);
    while let Ok(Some(delivery)) = tokio::time::timeout(IDLE, consumer.next()).await {
        let delivery = delivery?;
        match handle(pool, inbox, &delivery).await? {
            // Only now: whatever dies before this line lets the broker deliver again.
            Fate::Booked => {
                booked += 1;
                delivery.ack(BasicAckOptions::default()).await?;
            }
            Fate::Duplicate => {
                duplicates += 1;
                delivery.ack(BasicAckOptions::default()).await?;
            }
            Fate::Busy => {
                tokio::time::sleep(Duration::from_millis(100)).await;
                delivery.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await?;
            }
            Fate::Hopeless => {
                delivery.reject(BasicRejectOptions { requeue: false }).await?;
            }
        }
    }
    Ok((booked, duplicates))
}

/// One transaction: claim, effect, commit. An error drops it, which rolls back.
async fn handle(pool: &SqlitePool, inbox: &Inbox<Sqlite>, delivery: &Delivery) -> Result<Fate, Error> {
    let Ok(payment) = serde_json::from_slice::<Payment>(&delivery.data) else {
        return Ok(Fate::Hopeless);
    };
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    match inbox.once(&mut tx, "bare-loop", "payment", payment.payment_id.as_str()).await? {
        Once::New(first) => {
            sqlx::query("INSERT INTO booking (payment_id, cents) VALUES ($1, $2)")
                .bind(&payment.payment_id)
                .bind(payment.cents)
                .execute(&mut *tx)
                .await?;
            first.finish(&mut tx, "booked").await?;
            tx.commit().await?;
            Ok(Fate::Booked)
        }
        Once::Done(_) => {
            tx.rollback().await?;
            Ok(Fate::Duplicate)
        }
        Once::Busy => {
            tx.rollback().await?;
            Ok(Fate::Busy)
        }
    }
}
