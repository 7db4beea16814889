//! The shop: writes orders into its outbox and sends them, each confirmed by the broker.
//!
//! `producer [COUNT]` adds COUNT orders, 1000 unless given, unless the last run left some
//! unsent: those are sent first and nothing is added. Killed at any time and started again,
//! it sends what it saw no confirm for, under the same ids.

use rabbitmq_example::broker_url;
use shop_example::{Error, producer};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let count = producer::count()?;
    let publisher = oncemq::broker(&broker_url()?)?.publisher().await?;
    producer::run(&*publisher, count).await
}
