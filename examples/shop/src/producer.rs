//! The shop: writes orders into its outbox and sends them, each confirmed by the broker.
#![allow(clippy::print_stdout, reason = "the examples talk to a person")]

use std::time::Duration;

use futures_util::StreamExt;
use oncemq::{ErrorKind, Message, Publisher};

use crate::outbox::{self, Row};
use crate::settings::TOPIC;
use crate::{Error, database};

/// Rows sent between two looks at the table.
const BATCH: i64 = 200;
/// Messages whose confirms are waited for at once.
const UNCONFIRMED: usize = 32;

/// Adds so many orders, unless the last run left some unsent, and sends what is unsent.
///
/// # Errors
/// The database fails, or the broker refuses a message for good.
pub async fn run(publisher: &dyn Publisher, count: i64) -> Result<(), Error> {
    let pool = database::open().await?;
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
        let sends = rows.iter().map(|row| send(publisher, row));
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

/// How many orders the command line asks for, 1000 unless it says.
///
/// # Errors
/// It says something else than a number.
pub fn count() -> Result<i64, Error> {
    match std::env::args().nth(1) {
        Some(word) => word.parse().map_err(|_| format!("not a number of orders: {word:?}").into()),
        None => Ok(1000),
    }
}

/// Sends one row until the broker has it.
async fn send(publisher: &dyn Publisher, row: &Row) -> Result<i64, Error> {
    // The orders of one user stay in their order.
    let message = Message::new(row.body.clone())
        .with_id(row.message_id.as_str())
        .with_key(row.user_id.to_string())
        .with_content_type("application/json");
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
