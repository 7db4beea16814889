//! What the shop sends during the migration.
#![allow(clippy::print_stdout, reason = "the example talks to a person")]

use futures_util::stream::{self, StreamExt, TryStreamExt};
use oncemq::{Broker, Message};

use crate::Error;
use crate::service::{Brokers, NEW_ORDERS, ORDERS, PAYMENTS};

/// Messages whose confirms are waited for at once.
const UNCONFIRMED: usize = 32;

/// Ids of orders that nobody has used before.
pub(crate) fn new_run(count: u32) -> Vec<String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (1..=count).map(|number| format!("{}-{number}", now.as_millis())).collect()
}

/// Each order over RabbitMQ and over Kafka, each payment over RocketMQ, and every seventh of
/// them a second time, as producers do that saw no answer.
pub(crate) async fn send(brokers: &Brokers, ids: &[String]) -> Result<(), Error> {
    let order = |id: &String| format!(r#"{{"order_id":"{id}","points":10}}"#);
    let payment = |id: &String| format!(r#"{{"order_id":"{id}"}}"#);
    tokio::try_join!(
        send_to(&*brokers.rabbitmq, ORDERS, ids, order),
        send_to(&*brokers.kafka, NEW_ORDERS, ids, order),
        send_to(&*brokers.rocketmq, PAYMENTS, ids, payment),
    )?;
    Ok(())
}

async fn send_to(
    broker: &dyn Broker,
    topic: &str,
    ids: &[String],
    body: impl Fn(&String) -> String,
) -> Result<(), Error> {
    let publisher = broker.publisher().await?;
    let again = ids.iter().step_by(7);
    let sends = ids.iter().chain(again).map(|id| {
        let message = Message::new(body(id)).with_id(format!("{topic}-{id}")).with_key(id.clone());
        let publisher = &publisher;
        async move { publisher.publish(topic, &message.with_content_type("application/json")).await }
    });
    stream::iter(sends).buffer_unordered(UNCONFIRMED).try_collect::<()>().await?;
    publisher.close().await?;
    println!("{} messages confirmed in {topic}", ids.len() + ids.len().div_ceil(7));
    Ok(())
}
