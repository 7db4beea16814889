//! The shop: writes orders into its outbox and sends them, each confirmed by the broker.
//!
//! `producer [COUNT]` adds COUNT orders, 1000 unless given, unless the last run left some
//! unsent: those are sent first and nothing is added. Killed at any time and started again,
//! it sends what it saw no confirm for, under the same ids.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use std::time::Duration;

use futures_util::StreamExt;
use oncemq::{ErrorKind, Message, Publisher};
use rabbitmq_example::outbox::{self, Row};
use rabbitmq_example::settings::{TOPIC, broker_url};
use rabbitmq_example::{Error, database};

/// Rows sent between two looks at the table.
const BATCH: i64 = 200;
/// Messages whose confirms are waited for at once.
const UNCONFIRMED: usize = 32;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let count = match std::env::args().nth(1) {
        Some(word) => word.parse().map_err(|_| format!("not a number of orders: {word:?}"))?,
        None => 1000,
    };
    let pool = database::open().await?;
    let publisher = oncemq::broker(&broker_url()?)?.publisher().await?;
    if outbox::unsent(&pool, 1).await?.is_empty() {
        outbox::add_orders(&pool, count).await?;
    } else {
        println!("going on with what the last run left unsent");
    }
    let mut sent = 0;
    loop {
        let rows = outbox::unsent(&pool, BATCH).await?;
        if rows.is_empty() {
            break;
        }
        let sends = rows.iter().map(|row| send(&*publisher, row));
        // In one piece at its end: an error or a kill before only means sending again.
        let confirmed: Vec<_> =
            futures_util::stream::iter(sends).buffer_unordered(UNCONFIRMED).collect().await;
        let confirmed = confirmed.into_iter().collect::<Result<Vec<_>, _>>()?;
        outbox::confirmed(&pool, &confirmed).await?;
        sent += confirmed.len();
        println!("{sent} messages confirmed");
    }
    publisher.close().await?;
    println!("nothing is left in the outbox");
    Ok(())
}

/// Sends one row until the broker has it.
async fn send(publisher: &dyn Publisher, row: &Row) -> Result<i64, Error> {
    let message =
        Message::new(row.body.clone()).with_id(row.message_id.as_str()).with_content_type("application/json");
    loop {
        let why = match publisher.publish(TOPIC, &message).await {
            Ok(()) => return Ok(row.position),
            Err(error) if error.is_transient() => error.to_string(),
            Err(error) if error.kind() == ErrorKind::Unroutable => {
                format!("{error}; is the consumer running?")
            }
            Err(error) => return Err(error.into()),
        };
        println!("sending again in a second: {why}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
