//! The points service. SIGINT or SIGTERM stops it in order; SIGKILL does no harm.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use oncemq::prelude::*;
use rabbitmq_example::broker_url;
use shop_example::points::{add_points, show_health, show_summary};
use shop_example::settings::{CONSUMER, TOPIC};
use shop_example::{Error, database};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let inbox = Inbox::open(database::open().await?).await?;
    let consumer = Consumer::connect(CONSUMER, &broker_url()?)
        .await?
        .in_flight(64)
        .topic(TOPIC)
        .key(Key::json("/order_id"))
        .retry("1s 5s 30s dead-letter".parse()?)
        .handler(inbox.handler(add_points));
    println!("{}", consumer.plan().await?);
    show_health(&consumer);
    show_summary(&consumer.run().await?);
    Ok(())
}
