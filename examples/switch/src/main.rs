//! A points service that knows no broker: `BROKER_URL` and a Cargo feature name it.
//!
//! ```text
//! cargo run -p switch-example --features rabbitmq -- serve
//! cargo run -p switch-example --features rabbitmq -- send 100
//! ```
//!
//! `serve` books points into a SQLite file, `points.db` unless `DATABASE_URL` names another, until
//! it is stopped; with a number it ends after so many points. `send` publishes orders, each of
//! them twice. Whatever happens in between, the sum that `serve` prints at its end is the number
//! of different orders.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use std::time::Duration;

use oncemq::prelude::*;
use oncemq::{Message, Shutdown};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{Sqlite, SqlitePool};

type Error = Box<dyn std::error::Error + Send + Sync>;

const TOPIC: &str = "switch-order-completed";

#[derive(serde::Deserialize)]
struct OrderCompleted {
    order_id: String,
    points: i64,
}

/// Points and "this order is done" commit together; only then is the message acknowledged.
async fn add_points(mut tx: Tx<Sqlite>, order: OrderCompleted) -> Result<(), Failure> {
    if order.points < 0 {
        return Err(Failure::business(format!("order {} takes points away", order.order_id)));
    }
    sqlx::query("INSERT INTO ledger (order_id, points) VALUES (?, ?)")
        .bind(&order.order_id)
        .bind(order.points)
        .execute(tx.db())
        .await?;
    Ok(())
}

async fn serve(wanted: Option<i64>) -> Result<(), Error> {
    let pool = database().await?;
    let inbox = Inbox::open(pool.clone()).await?;
    let consumer = Consumer::connect("switch-points-service", &broker_url()?)
        .await?
        .topic(TOPIC)
        .key(Key::json("/order_id"))
        .retry("1s 5s 30s dead-letter".parse()?)
        .handler(inbox.handler(add_points));
    println!("{}", consumer.plan().await?);
    let shutdown = Shutdown::on_signals()?;
    if let Some(wanted) = wanted {
        tokio::spawn(stop_at(wanted, pool.clone(), shutdown.clone()));
    }
    let summary = consumer.shutdown(shutdown).run().await?;
    println!("{} handled, {} duplicates, {} points", summary.handled, summary.duplicates, sum(&pool).await?);
    Ok(())
}

async fn stop_at(wanted: i64, pool: SqlitePool, shutdown: Shutdown) {
    while !sum(&pool).await.is_ok_and(|sum| sum >= wanted) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // What was sent twice may still be on its way.
    tokio::time::sleep(Duration::from_secs(2)).await;
    if !shutdown.is_stopping() {
        shutdown.stop();
    }
}

async fn sum(pool: &SqlitePool) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT coalesce(sum(points), 0) FROM ledger").fetch_one(pool).await
}

async fn send(count: u32) -> Result<(), Error> {
    let publisher = oncemq::broker(&broker_url()?)?.publisher().await?;
    for number in (1..=count).chain(1..=count) {
        let order = format!(r#"{{"order_id":"order-{number}","points":1}}"#);
        // The id of the event, and not of the sending: both sendings are one event.
        let message =
            Message::new(order).with_id(format!("order-{number}")).with_content_type("application/json");
        publisher.publish(TOPIC, &message).await?;
    }
    publisher.close().await?;
    println!("{count} orders sent twice");
    Ok(())
}

fn broker_url() -> Result<String, Error> {
    let forms =
        "amqp://user:password@host:5672/%2f, kafka://host:9092?partitions=4 or rocketmq://host:9876?queues=4";
    std::env::var("BROKER_URL").map_err(|_| format!("set BROKER_URL, for instance to {forms}").into())
}

async fn database() -> Result<SqlitePool, Error> {
    let url = std::env::var("DATABASE_URL").unwrap_or_else(|_| "sqlite:points.db".to_owned());
    let options: SqliteConnectOptions = url.parse()?;
    let pool = SqlitePool::connect_with(options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal))
        .await?;
    // No unique key on purpose: an effect that happens twice must show.
    sqlx::query("CREATE TABLE IF NOT EXISTS ledger (order_id TEXT NOT NULL, points INTEGER NOT NULL)")
        .execute(&pool)
        .await?;
    Ok(pool)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve"] => serve(None).await,
        ["serve", wanted] => serve(Some(wanted.parse()?)).await,
        ["send", count] => send(count.parse()?).await,
        _ => Err("say serve, serve POINTS or send COUNT".into()),
    }
}
