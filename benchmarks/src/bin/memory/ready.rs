//! From receive to settle, with a handler that is ready at once.

use std::time::{Duration, Instant};

use oncemq_benchmarks::{Figure, Floor, median};
use oncemq_core::{Error, Shutdown};
use oncemq_memory::MemoryBroker;

use super::{CONSUMER, consumer, fill};
use crate::ALLOCATOR;

pub(crate) const NAMES: [&str; 2] = ["memory.ready.ns", "memory.ready.allocs"];

const MESSAGES: usize = 400_000;
const IN_FLIGHT: usize = 1024;
const ROUNDS: usize = 7;

struct Round {
    ns: f64,
    allocations: f64,
}

pub(crate) fn measure() -> Result<Vec<Figure>, Error> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        // A runtime a round: what a round leaves behind does not help the next.
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
            Error::with_source(oncemq_core::ErrorKind::Internal, "no runtime for the measurement", error)
        })?;
        rounds.push(runtime.block_on(round())?);
    }
    let ns = median(rounds.iter().map(|round| round.ns).collect());
    let allocations = median(rounds.iter().map(|round| round.allocations).collect());
    Ok(vec![
        Figure { name: NAMES[0], value: ns, unit: "ns", floor: Floor::AtMost(1000.0) },
        Figure { name: NAMES[1], value: allocations, unit: "allocations/message", floor: Floor::AtMost(0.0) },
    ])
}

/// The first quarter warms up: places, queues and tables reach their size.
async fn round() -> Result<Round, Error> {
    let broker = MemoryBroker::queue();
    fill(&broker, MESSAGES).await?;
    let shutdown = Shutdown::new();
    let run = tokio::spawn(consumer(&broker, IN_FLIGHT).shutdown(shutdown.clone()).run());
    let (warm, _) = wait_until(&broker, MESSAGES * 3 / 4).await;
    let (started, before) = (Instant::now(), ALLOCATOR.stats().allocations);
    // Stops before the last: shutting down is not what is measured.
    let (left, after) = wait_until(&broker, MESSAGES / 20).await;
    let elapsed = started.elapsed();
    shutdown.stop();
    let _ = run.await;
    let messages = (warm - left) as f64;
    Ok(Round {
        ns: elapsed.as_nanos() as f64 / messages,
        // The looking itself wakes a timer now and then; what is paid for each message is
        // what counts.
        allocations: (after.saturating_sub(before) as f64 / messages * 1000.0).round() / 1000.0,
    })
}

/// Returns when the broker owes at most `most`: how many it owes, and allocations so far.
async fn wait_until(broker: &MemoryBroker, most: usize) -> (usize, usize) {
    loop {
        let left = broker.left(CONSUMER);
        if left <= most {
            return (left, ALLOCATOR.stats().allocations);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
