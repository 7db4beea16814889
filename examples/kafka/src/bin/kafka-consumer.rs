//! The points service, as many times as you like: they share the partitions. SIGINT or SIGTERM
//! stops one in order; SIGKILL does no harm.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use kafka_example::broker_url;
use kafka_example::progress::Progress;
use oncemq::kafka::KafkaBroker;
use oncemq::prelude::*;
use shop_example::order::OrderCompleted;
use shop_example::points::{add_points, show_health, show_summary};
use shop_example::settings::{CONSUMER, TOPIC};
use shop_example::{Error, database};
use sqlx::Postgres;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let inbox = Inbox::open(database::open().await?).await?;
    let progress = Progress::every_second();
    let handler = move |tx: Tx<Postgres>, order: OrderCompleted| {
        progress.note(tx.message());
        add_points(tx, order)
    };
    // Made with so many partitions if it is missing.
    let broker = KafkaBroker::from_url(&broker_url()?)?.partitions(4);
    let consumer = Consumer::new(CONSUMER, broker)
        .in_flight(64)
        .topic(TOPIC)
        .key(Key::json("/order_id"))
        .retry("1s 5s 30s dead-letter".parse()?)
        .handler(inbox.handler(handler));
    println!("{}", consumer.plan().await?);
    show_health(&consumer);
    show_summary(&consumer.run().await?);
    Ok(())
}
