//! The service: points in any order, states in the order of each order.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use oncemq::prelude::*;
use shop_example::points::{add_points, show_health, show_summary};
use shop_example::settings::{CONSUMER, TOPIC};
use shop_example::{Error, database};

use crate::states::{self, STATES, advance};

pub(crate) async fn run() -> Result<(), Error> {
    let pool = database::open().await?;
    states::create(&pool).await?;
    let inbox = Inbox::open(pool).await?;
    let consumer = Consumer::new(CONSUMER, crate::broker()?)
        .in_flight(64)
        .topic(TOPIC)
        .key(Key::json("/order_id"))
        // Rungs are the broker's delay levels.
        .retry("1s 5s 30s dead-letter".parse()?)
        .handler(inbox.handler(add_points))
        .topic(STATES)
        .key(Key::all([Key::json("/order_id"), Key::json("/step")]))
        // A state that fails waits in place, and later states of the order behind it.
        .ordering(Ordering::Ordered)
        .retry("1s 2s dead-letter".parse()?)
        .handler(inbox.handler(advance));
    println!("{}", consumer.plan().await?);
    show_health(&consumer);
    show_summary(&consumer.run().await?);
    Ok(())
}
