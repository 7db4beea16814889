//! The shop: each order is a local transaction and a message, both or none of them.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use oncemq::idempotency::Decisions;
use oncemq::rocketmq::TransactionError;
use oncemq::{Broker, Message};
use shop_example::outbox::{self, Event};
use shop_example::settings::TOPIC;
use shop_example::{Error, database};

use crate::states;

/// Who is asked about half messages after a crash: a permanent name.
const GROUP: &str = "order-service";

/// Completes so many orders. Killed between a local transaction and its message, the broker asks
/// the next run what became of it, and finds the answer in the database.
pub(crate) async fn run(count: i64) -> Result<(), Error> {
    let pool = database::open().await?;
    let decisions = Decisions::open(pool.clone()).await?;
    let judge = decisions.clone();
    let broker = crate::broker()?;
    let orders = broker
        .transactions(GROUP, &[TOPIC], move |id| {
            let judge = judge.clone();
            async move { judge.decide(id.as_str()).await }
        })
        .await?;
    let plain = broker.publisher().await?;
    // Killed behind its commit, the last run has not told of every state. Twice is once.
    if let Some(number) = outbox::last_number(&pool).await? {
        states::tell(&*plain, number).await?;
    }
    let first = outbox::last(&pool).await? + 1;
    let mut sent = 0;
    for number in first..first + count {
        let event = Event::of(number)?;
        let message = Message::new(event.body.clone())
            .with_id(event.message_id.as_str())
            .with_key(event.user_id.to_string())
            .with_content_type("application/json");
        for _ in 0..event.copies() {
            let local = |id: oncemq::rocketmq::TransactionId| {
                let (pool, decisions, event) = (&pool, &decisions, &event);
                async move {
                    let mut tx = pool.begin().await?;
                    event.add(&mut tx, true).await?;
                    decisions.commit(tx, id.as_str()).await?;
                    Ok::<(), Error>(())
                }
            };
            orders.publish(TOPIC, &message, local).await.map_err(told)?;
            sent += 1;
        }
        states::tell(&*plain, number).await?;
        if number % 100 == 0 {
            println!("{sent} orders are committed, and so are their messages");
        }
    }
    orders.close().await?;
    plain.close().await?;
    println!("{sent} orders are committed, and so are their messages");
    Ok(())
}

fn told(error: TransactionError<Error>) -> Error {
    error.to_string().into()
}
