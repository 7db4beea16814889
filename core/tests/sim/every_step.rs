//! One small history, ended at each of its steps in turn.

use oncemq_core::Message;
use oncemq_core::sim::{Faults, Process, SimStore, World};
use oncemq_memory::MemoryBroker;

use crate::ledger::check;
use crate::orders::{CONSUMER, Fate, Order, Runs, consumer, declare, in_virtual_time, nothing_left, publish};

fn orders() -> Vec<Order> {
    let fates = [Fate::Good, Fate::Flaky(1), Fate::Poison, Fate::Slow, Fate::Panics];
    fates.iter().enumerate().map(|(i, fate)| Order { id: format!("o{i}"), fate: *fate }).collect()
}

/// Every other order twice, as by a producer's resend. The rest once: a second copy would
/// repair what an acknowledgement before its commit has lost.
fn messages() -> Vec<Message> {
    let orders = orders().into_iter().enumerate();
    orders.flat_map(|(i, order)| (0..=i % 2).map(move |resend| order.message(resend))).collect()
}

/// Runs the history, ended once at `dies_at`, and returns how many steps it had.
async fn history(broker: MemoryBroker, dies_at: u64) -> u64 {
    let store = SimStore::new(1, Faults::default());
    let world = World::new(store.clone());
    let runs = Runs::default();
    declare(consumer(&broker, store.clone(), &runs, 1)).await;
    publish(&broker, &messages()).await;
    let mut steps = 0;
    for dies_at in [dies_at, 0] {
        let build = |store| consumer(&broker, store, &runs, 1);
        let process = world.process(dies_at, build, nothing_left(&broker), || broker.crash(CONSUMER)).await;
        match process {
            Process::Died(passed) => steps += passed,
            Process::Stopped(ended) => {
                ended.unwrap();
                break;
            }
        }
    }
    check(&format!("death at step {dies_at}"), &orders(), &store, &broker);
    steps
}

fn every_step(broker: fn() -> MemoryBroker) {
    // A death at a step that is never reached is none; the first such ends the search.
    let mut step = 1;
    while in_virtual_time(history(broker(), step)) > 0 {
        step += 1;
    }
    assert!(step > 100, "the history has only {step} steps");
}

#[test]
fn sh3_death_at_every_step_on_a_queue() {
    every_step(MemoryBroker::queue);
}

#[test]
fn sh3_death_at_every_step_on_a_log() {
    every_step(|| MemoryBroker::log(2));
}
