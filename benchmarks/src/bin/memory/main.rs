//! The runtime itself, over the broker in the process.

mod inflight;
mod ready;

use std::process::ExitCode;

use oncemq_core::{Broker, Consumer, Context, Error, Failure, Message};
use oncemq_memory::MemoryBroker;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<std::alloc::System> = &INSTRUMENTED_SYSTEM;

const TOPIC: &str = "ready";
const CONSUMER: &str = "bench";

fn main() -> ExitCode {
    oncemq_benchmarks::main(|printer| {
        printer.group(&ready::NAMES, || Ok(ready::measure()?))?;
        printer.group(&inflight::NAMES, || Ok(inflight::measure()?))
    })
}

/// The consumer under measurement: a handler that is ready at once.
fn consumer(broker: &MemoryBroker, in_flight: usize) -> Consumer {
    async fn ready(_cx: Context, _message: Message) -> Result<(), Failure> {
        Ok(())
    }
    Consumer::new(CONSUMER, broker.clone()).in_flight(in_flight).topic(TOPIC).unguarded(ready)
}

/// Publishes `n` messages of 200 bytes, without an order key.
async fn fill(broker: &MemoryBroker, n: usize) -> Result<(), Error> {
    consumer(broker, 1).plan().await?;
    let publisher = broker.publisher().await?;
    let message = Message::new(vec![b'x'; 200]).with_id("bench");
    for _ in 0..n {
        publisher.publish(TOPIC, &message).await?;
    }
    Ok(())
}
