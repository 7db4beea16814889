//! Orders that say what happens to them, and the consumer that handles them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncemq_core::sim::{SimStore, SimTx};
use oncemq_core::{Broker, Consumer, Failure, Guard, Key, Message};
use oncemq_memory::MemoryBroker;
use serde::{Deserialize, Serialize};

pub(crate) const CONSUMER: &str = "points";
pub(crate) const TOPIC: &str = "orders";

/// What happens when an order is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fate {
    Good,
    /// Waits a little inside the transaction.
    Slow,
    /// Fails this often by the world's fault, then succeeds.
    Flaky(u32),
    /// Is refused for good.
    Poison,
    /// Panics every time.
    Panics,
    /// Ends the process every time.
    Kills,
}

impl Fate {
    pub(crate) fn is_good(self) -> bool {
        matches!(self, Fate::Good | Fate::Slow | Fate::Flaky(_))
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) id: String,
    pub(crate) fate: Fate,
}

impl Order {
    pub(crate) fn message(&self, resend: usize) -> Message {
        let body = serde_json::to_vec(self).unwrap();
        Message::new(body).with_id(format!("{}-{resend}", self.id)).with_key(self.id.clone().into_bytes())
    }
}

/// How often each order was run, over all processes.
pub(crate) type Runs = Arc<Mutex<BTreeMap<String, u32>>>;

/// The consumer under test, as one process builds it.
pub(crate) fn consumer(broker: &MemoryBroker, store: SimStore, runs: &Runs, workers: usize) -> Consumer {
    let runs = runs.clone();
    let handle = move |tx: SimTx, order: Order| handle(tx, order, runs.clone());
    let guard = Guard::new(Arc::new(store), handle);
    Consumer::new(CONSUMER, broker.clone())
        .in_flight(8)
        .workers(workers)
        .grace(Duration::from_secs(30))
        .topic(TOPIC)
        .key(Key::json("/id"))
        .retry("1s 2s 4s dead-letter".parse().unwrap())
        .handler(guard)
}

pub(crate) async fn handle(mut tx: SimTx, order: Order, runs: Runs) -> Result<(), Failure> {
    let run = {
        let mut runs = runs.lock().unwrap();
        let run = runs.entry(order.id.clone()).or_default();
        *run += 1;
        *run
    };
    // Before the outcome is known: an effect that is undone must leave nothing.
    tx.add(order.id.as_bytes()).await;
    match order.fate {
        Fate::Good => Ok(()),
        Fate::Slow => {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Ok(())
        }
        Fate::Flaky(times) if run <= times => Err(Failure::system("the partner is away")),
        Fate::Flaky(_) => Ok(()),
        Fate::Poison => Err(Failure::business("unknown user")),
        Fate::Panics => panic!("a defect in the handler"),
        Fate::Kills => {
            tx.kill_process().await;
            Ok(())
        }
    }
}

/// Declares what the consumer needs.
pub(crate) async fn declare(consumer: Consumer) {
    consumer.plan().await.unwrap();
}

pub(crate) async fn publish(broker: &MemoryBroker, messages: &[Message]) {
    let publisher = broker.publisher().await.unwrap();
    for message in messages {
        publisher.publish(TOPIC, message).await.unwrap();
    }
}

/// Completes when the broker owes nothing any more. Fails after an hour of virtual time.
pub(crate) async fn nothing_left(broker: &MemoryBroker) {
    for _ in 0..36_000 {
        if broker.left(CONSUMER) == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{} messages are owed after an hour", broker.left(CONSUMER));
}

/// Runs a history on a clock of its own, on this thread alone.
pub(crate) fn in_virtual_time<T>(history: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(history)
}
