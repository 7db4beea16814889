//! The shop and its points service on RocketMQ, in one program because its client is large:
//!
//! - `rocketmq-example serve`: books points and follows the states of orders until SIGTERM
//! - `rocketmq-example shop [COUNT]`: completes COUNT orders, 1000 unless given
//! - `rocketmq-example ledger`: is every point right? Exit status 1 if not
//!
//! Each of them may be killed at any time and started again.

mod service;
mod shop;
mod states;

use std::process::ExitCode;

use oncemq::rocketmq::RocketmqBroker;
use shop_example::{Error, database, ledger, settings};

#[tokio::main]
async fn main() -> Result<ExitCode, Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve"] => service::run().await?,
        ["shop"] => shop::run(1000).await?,
        ["shop", count] => shop::run(count.parse()?).await?,
        ["ledger"] => {
            let in_order = states::check(&database::open().await?).await?;
            let booked = ledger::check().await?;
            return Ok(if in_order { booked } else { ExitCode::FAILURE });
        }
        _ => return Err("say serve, shop, shop COUNT or ledger".into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The cluster at `ONCEMQ_ROCKETMQ_URL`, or else `BROKER_URL`. A topic that is missing is made
/// with four queues.
fn broker() -> Result<RocketmqBroker, Error> {
    let url = settings::broker_url("ONCEMQ_ROCKETMQ_URL", "rocketmq://localhost:9876")?;
    Ok(RocketmqBroker::from_url(&url)?.queues(4))
}
