//! Random histories: deaths, lost acks, lost commits, deadlocks and hiccups together.

use std::sync::Arc;

use oncemq_core::sim::{Faults, Process, Rng, SimStore, World};
use oncemq_core::{Consumer, Guard, Key, Message, Ordering};
use oncemq_memory::MemoryBroker;

use crate::ledger::{check, dead_ids};
use crate::orders::{
    CONSUMER, Fate, Order, Runs, TOPIC, consumer, declare, handle, in_virtual_time, nothing_left, publish,
};

fn orders(rng: &mut Rng) -> Vec<Order> {
    (0..4 + rng.below(16))
        .map(|i| {
            let fate = match rng.below(20) {
                0 => Fate::Poison,
                1 => Fate::Panics,
                2..=4 => Fate::Slow,
                // Within the ladder of three, with room for what deaths charge.
                5..=7 => Fate::Flaky(1 + u32::try_from(rng.below(2)).unwrap()),
                _ => Fate::Good,
            };
            Order { id: format!("o{i}"), fate }
        })
        .collect()
}

fn messages(orders: &[Order], rng: &mut Rng) -> Vec<Message> {
    let mut messages: Vec<_> = orders
        .iter()
        .flat_map(|order| {
            let copies = if rng.chance(30) { 2 + rng.below(2) } else { 1 };
            (0..usize::try_from(copies).unwrap()).map(|resend| order.message(resend)).collect::<Vec<_>>()
        })
        .collect();
    for i in (1..messages.len()).rev() {
        messages.swap(i, usize::try_from(rng.below(i as u64 + 1)).unwrap());
    }
    messages
}

async fn history(seed: u64) {
    let mut rng = Rng::new(seed);
    let broker = match rng.below(3) {
        0 | 1 => MemoryBroker::queue(),
        _ => MemoryBroker::log(1 + u16::try_from(rng.below(4)).unwrap()),
    };
    let faults = Faults {
        lost_commits: rng.below(15),
        deadlocks: rng.below(15),
        broken: rng.below(5),
        hiccups: rng.below(5),
    };
    let orders = orders(&mut rng);
    let messages = messages(&orders, &mut rng);
    let workers = 1 + usize::try_from(rng.below(3)).unwrap();
    let store = SimStore::new(rng.draw(), faults);
    let world = World::new(store.clone());
    let runs = Runs::default();
    declare(consumer(&broker, store.clone(), &runs, workers)).await;
    publish(&broker, &messages).await;
    for life in (0..=rng.below(4)).rev() {
        let dies_at = if life == 0 { 0 } else { 1 + rng.below(400) };
        if life == 0 {
            store.calm();
        }
        broker.lose_acks(rng.below(4));
        broker.commit_late(rng.below(6));
        let build = |store| consumer(&broker, store, &runs, workers);
        let process = world.process(dies_at, build, nothing_left(&broker), || broker.crash(CONSUMER)).await;
        if let Process::Stopped(ended) = process {
            ended.unwrap_or_else(|error| panic!("seed {seed}: the run ended: {error}"));
            break;
        }
    }
    check(&format!("seed {seed}"), &orders, &store, &broker);
}

#[test]
fn random_histories_lose_nothing_and_double_nothing() {
    if let Ok(seed) = std::env::var("SIM_SEED") {
        return in_virtual_time(history(seed.parse().unwrap()));
    }
    let seeds = std::env::var("SIM_SEEDS").map_or(300, |n| n.parse().unwrap());
    for seed in 0..seeds {
        in_virtual_time(history(seed));
    }
}

#[test]
fn a_message_that_kills_its_process_ends_in_the_dead_letters() {
    for broker in [MemoryBroker::queue(), MemoryBroker::log(2)] {
        in_virtual_time(async {
            let orders: Vec<_> = (0..6)
                .map(|i| Order { id: format!("o{i}"), fate: if i == 2 { Fate::Kills } else { Fate::Good } })
                .collect();
            let messages: Vec<_> = orders.iter().map(|order| order.message(0)).collect();
            let store = SimStore::new(1, Faults::default());
            let world = World::new(store.clone());
            let runs = Runs::default();
            declare(consumer(&broker, store.clone(), &runs, 2)).await;
            publish(&broker, &messages).await;
            let mut deaths = 0;
            loop {
                let build = |store| consumer(&broker, store, &runs, 2);
                match world.process(0, build, nothing_left(&broker), || broker.crash(CONSUMER)).await {
                    Process::Died(_) => deaths += 1,
                    Process::Stopped(ended) => {
                        ended.unwrap();
                        break;
                    }
                }
                assert!(deaths < 10, "the killer is never given up");
            }
            assert!((2..=4).contains(&deaths), "{deaths} deaths");
            check("killer", &orders, &store, &broker);
            assert_eq!(dead_ids(&broker).len(), 1);
            assert_eq!(store.marked(), 0, "marks of a settled message stayed");
        });
    }
}

/// At each death its neighbours are at work too: they come back as suspects with a mark
/// that is not theirs, and must neither be blamed nor held up.
#[test]
fn a_process_killer_is_told_from_its_redelivered_neighbours() {
    for broker in [MemoryBroker::queue, || MemoryBroker::log(2)] {
        // Before, among and behind them; on as many workers, and on few.
        for (place, workers) in [(0, 1), (3, 1), (3, 2), (6, 4), (7, 8)] {
            let broker = broker();
            in_virtual_time(async {
                let fate = |i| if i == place { Fate::Kills } else { Fate::Slow };
                let orders: Vec<_> = (0..8).map(|i| Order { id: format!("o{i}"), fate: fate(i) }).collect();
                let messages: Vec<_> = orders.iter().map(|order| order.message(0)).collect();
                let store = SimStore::new(1, Faults::default());
                let world = World::new(store.clone());
                let runs = Runs::default();
                declare(consumer(&broker, store.clone(), &runs, workers)).await;
                publish(&broker, &messages).await;
                let mut deaths = 0;
                loop {
                    let build = |store| consumer(&broker, store, &runs, workers);
                    let cut = || broker.crash(CONSUMER);
                    match world.process(0, build, nothing_left(&broker), cut).await {
                        Process::Died(_) => deaths += 1,
                        Process::Stopped(ended) => {
                            ended.unwrap();
                            break;
                        }
                    }
                    assert!(deaths <= 4, "the killer is never given up");
                }
                check("killer among neighbours", &orders, &store, &broker);
                let dead: Vec<_> = dead_ids(&broker).into_iter().collect();
                assert_eq!(dead, [(format!("o{place}").into_bytes(), 1)], "{deaths} deaths");
                assert_eq!(store.marked(), 0, "marks of settled messages stayed");
                let again = runs.lock().unwrap().iter().filter(|(_, runs)| **runs > 1).count();
                assert!(place == 0 || again > 1, "no neighbour was at work when the process died");
            });
        }
    }
}

/// A process is killed from outside again and again, while few of its messages run and the
/// others wait for a place in the store.
#[test]
fn messages_that_wait_are_not_blamed_for_deaths() {
    const UNITS: usize = 2;
    for broker in [MemoryBroker::queue, || MemoryBroker::log(1)] {
        let broker = broker();
        in_virtual_time(async {
            let order = |i| Order { id: format!("o{i}"), fate: Fate::Slow };
            let orders: Vec<_> = (0..200).map(order).collect();
            let messages: Vec<_> = orders.iter().map(|order| order.message(0)).collect();
            let store = SimStore::new(1, Faults::default()).units(UNITS);
            let world = World::new(store.clone());
            let runs = Runs::default();
            let build = |store| consumer(&broker, store, &runs, 1).in_flight(200);
            declare(build(store.clone())).await;
            publish(&broker, &messages).await;
            for life in 1..=12 {
                let cut = || broker.crash(CONSUMER);
                // Late enough for whoever was alone to have finished.
                let process = world.process(150 + life * 13 % 60, build, nothing_left(&broker), cut).await;
                assert!(matches!(process, Process::Died(_)), "it ended in life {life}");
                assert!(store.marked() <= UNITS, "{} marks after {life} deaths", store.marked());
            }
            let process = world.process(0, build, nothing_left(&broker), || broker.crash(CONSUMER)).await;
            assert!(matches!(process, Process::Stopped(Ok(_))));
            check("killed from outside", &orders, &store, &broker);
            assert!(dead_ids(&broker).is_empty(), "{:?}", dead_ids(&broker));
            assert_eq!(store.marked(), 0);
        });
    }
}

/// Messages of an ordered topic wait for their rungs in the process, and it is killed meanwhile.
#[test]
fn messages_that_wait_for_a_rung_are_not_blamed_for_deaths() {
    let mut waited = 0;
    for dies_at in 1..120 {
        let broker = MemoryBroker::log(1);
        in_virtual_time(async {
            let order = |i| Order { id: format!("o{i}"), fate: Fate::Flaky(2) };
            let messages: Vec<_> = (0..6).map(|i| order(i).message(0)).collect();
            let store = SimStore::new(1, Faults::default()).units(1);
            let world = World::new(store.clone());
            let runs = Runs::default();
            let build = |store| {
                let runs = runs.clone();
                let guard = Guard::new(Arc::new(store), move |tx, order| handle(tx, order, runs.clone()));
                Consumer::new(CONSUMER, broker.clone())
                    .topic(TOPIC)
                    .ordering(Ordering::Ordered)
                    .key(Key::json("/id"))
                    .retry("1s 2s 4s dead-letter".parse().unwrap())
                    .handler(guard)
            };
            declare(build(store.clone())).await;
            publish(&broker, &messages).await;
            for dies_at in [10, dies_at] {
                world.process(dies_at, build, nothing_left(&broker), || broker.crash(CONSUMER)).await;
            }
            assert!(store.marked() <= 1, "{} marks after a death at {dies_at}", store.marked());
            waited = waited.max(runs.lock().unwrap().len());
        });
    }
    assert!(waited > 3, "only {waited} have run");
}
