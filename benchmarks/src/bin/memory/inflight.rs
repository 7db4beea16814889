//! What a message in flight costs beside its body and headers.

use std::time::Duration;

use oncemq_benchmarks::{Figure, Floor};
use oncemq_core::{Consumer, Context, Error, Failure, Message, Shutdown};
use oncemq_memory::MemoryBroker;

use super::{CONSUMER, TOPIC, fill};
use crate::ALLOCATOR;

pub(crate) const NAMES: [&str; 1] = ["memory.inflight.bytes"];

/// Just below a power of two: tables that double are then full, not half empty.
const MESSAGES: usize = 65_000;

pub(crate) fn measure() -> Result<Vec<Figure>, Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| {
        Error::with_source(oncemq_core::ErrorKind::Internal, "no runtime for the measurement", error)
    })?;
    let value = runtime.block_on(bytes_per_message())?;
    Ok(vec![Figure { name: NAMES[0], value, unit: "bytes", floor: Floor::AtMost(300.0) }])
}

/// Live bytes with every message at a handler that waits, less those with every message
/// still at the broker.
async fn bytes_per_message() -> Result<f64, Error> {
    let broker = MemoryBroker::queue();
    fill(&broker, MESSAGES).await?;
    let started = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let seen = started.clone();
    let waiting = move |_cx: Context, _message: Message| {
        seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        std::future::pending::<Result<(), Failure>>()
    };
    let shutdown = Shutdown::new();
    let consumer = Consumer::new(CONSUMER, broker.clone())
        .in_flight(MESSAGES)
        // One table, full: with two each may be half empty, which is not a cost of a message.
        .workers(1)
        .shutdown(shutdown.clone())
        .topic(TOPIC)
        .timeout(Duration::from_secs(3600))
        .unguarded(waiting);
    let before = live_bytes();
    let run = tokio::spawn(consumer.run());
    while started.load(std::sync::atomic::Ordering::Relaxed) < MESSAGES {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let after = live_bytes();
    shutdown.stop();
    shutdown.stop();
    let _ = run.await;
    Ok((after - before) / MESSAGES as f64)
}

fn live_bytes() -> f64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as f64 - stats.bytes_deallocated as f64
}
