//! A service that books points for orders and payments, while its orders move from RabbitMQ to
//! Kafka and its payments come over RocketMQ: three consumers, one pool, one shutdown, one health.
//!
//! In such a migration the producer sends every order to both brokers for a while. `mixed COUNT`
//! does that for COUNT orders and payments, 500 unless given, consumes them meanwhile, and ends
//! when all have been booked. Its exit status is 1 if anything was lost or booked twice.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

mod ledger;
mod service;
mod traffic;

use std::process::ExitCode;
use std::time::Duration;

use oncemq::{Consumer, Health, Shutdown};
use sqlx::postgres::PgPoolOptions;

use service::Brokers;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<ExitCode, Error> {
    let count: u32 = std::env::args().nth(1).map_or(Ok(500), |word| word.parse())?;
    let brokers = Brokers::from_env()?;
    // For all three consumers together.
    let pool = PgPoolOptions::new().max_connections(20).connect(&variable("ONCEMQ_POSTGRES_URL")?).await?;
    ledger::create(&pool).await?;

    let shutdown = Shutdown::on_signals()?;
    let consumers = service::consumers(&brokers, &pool, &shutdown).await?;
    for consumer in &consumers {
        println!("{}", consumer.plan().await?);
    }
    show(Health::of_all(consumers.each_ref().map(Consumer::health)));

    let ids = traffic::new_run(count);
    let service = tokio::spawn(Consumer::run_all(consumers));
    traffic::send(&brokers, &ids).await?;
    let booked = ledger::wait_for(&pool, &ids, Duration::from_secs(120), &shutdown).await;
    // What was sent twice may still be on its way.
    tokio::time::sleep(Duration::from_secs(3)).await;
    if !shutdown.is_stopping() {
        shutdown.stop();
    }
    let names = ["orders over rabbitmq", "orders over kafka", "payments over rocketmq"];
    for (name, summary) in names.iter().zip(service.await??) {
        println!("{name}: {} booked, {} seen again", summary.handled, summary.duplicates);
    }
    booked?;
    ledger::check(&pool, &ids).await
}

/// Prints the health of the process whenever it changes.
fn show(mut health: tokio::sync::watch::Receiver<Health>) {
    tokio::spawn(async move {
        while health.changed().await.is_ok() {
            println!("health: {}", health.borrow_and_update().clone());
        }
    });
}

fn variable(name: &str) -> Result<String, Error> {
    std::env::var(name).map_err(|_| format!("set {name}; scripts/services env prints it").into())
}
