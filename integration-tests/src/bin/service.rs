//! A consumer or a producer of the tests, to be killed.
//!
//! `service consume` handles events until SIGTERM; `service produce` sends what its outbox
//! has and ends. The settings come as JSON in a variable.
#![allow(clippy::print_stdout, reason = "the test reads what the process says")]

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use oncemq_core::failpoint;
use oncemq_integration_tests::database::Database;
use oncemq_integration_tests::event::Event;
use oncemq_integration_tests::service::{Spec, VARIABLE};

type Res<T> = Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Res<()> {
    let spec: Spec = serde_json::from_str(&std::env::var(VARIABLE)?)?;
    match std::env::args().nth(1).as_deref() {
        Some("consume") => consume(spec).await,
        Some("produce") => produce(&spec).await,
        _ => Err("usage: service consume|produce".into()),
    }
}

async fn consume(spec: Spec) -> Res<()> {
    let database = Database::open(&spec.store).await?;
    let consumer = spec.consumer(&database).await?;
    let mut health = consumer.health();
    tokio::spawn(async move {
        while health.changed().await.is_ok() {
            let now = health.borrow_and_update().clone();
            println!("health {now}");
        }
    });
    if spec.outbox.is_some() {
        // The queue must exist before anything is sent to it.
        consumer.plan().await?;
        let spec = spec.clone();
        tokio::spawn(async move {
            let sent = send_all(&spec).await;
            println!("sent everything: {}", sent.is_ok());
        });
    }
    let s = consumer.run().await?;
    println!(
        "summary handled={} duplicates={} retried={} rejected={} released={} redone={} deferred={}",
        s.handled, s.duplicates, s.retried, s.rejected, s.released, s.redone, s.deferred
    );
    Ok(())
}

async fn send_all(spec: &Spec) -> Res<()> {
    let publisher = oncemq::broker(&spec.broker)?.publisher().await?;
    for event in outbox(spec)? {
        publisher.publish(&spec.topic, &event.message()).await?;
    }
    Ok(())
}

/// Sends in order. An event is noted as sent only after its confirm, so that one whose
/// confirm was not seen is sent again, under the same id.
async fn produce(spec: &Spec) -> Res<()> {
    let publisher = oncemq::broker(&spec.broker)?.publisher().await?;
    let position = spec.outbox.as_ref().ok_or("no outbox")?.with_extension("sent");
    let done = std::fs::read_to_string(&position).unwrap_or_default().lines().count();
    for event in outbox(spec)?.iter().skip(done) {
        publisher.publish(&spec.topic, &event.message()).await?;
        failpoint!("producer.confirmed");
        note(&position, &event.id)?;
    }
    publisher.close().await?;
    println!("produced, {done} were sent before");
    Ok(())
}

fn outbox(spec: &Spec) -> Res<Vec<Event>> {
    let text = std::fs::read_to_string(spec.outbox.as_ref().ok_or("no outbox")?)?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn note(position: &Path, id: &str) -> std::io::Result<()> {
    OpenOptions::new().append(true).create(true).open(position)?.write_all(format!("{id}\n").as_bytes())
}
