//! Dead letters that are moved back.

use oncemq_core::sim::{Faults, SimStore};
use oncemq_core::{Shutdown, header};
use oncemq_memory::MemoryBroker;

use crate::ledger::dead_ids;
use crate::orders::{
    CONSUMER, Fate, Order, Runs, TOPIC, consumer, declare, in_virtual_time, nothing_left, publish,
};

fn brokers() -> [MemoryBroker; 2] {
    [MemoryBroker::queue(), MemoryBroker::log(2)]
}

fn runs_of(runs: &Runs, id: &str) -> u32 {
    runs.lock().unwrap().get(id).copied().unwrap_or(0)
}

/// Four failures, the handler is mended, the message is moved back with all its headers: a
/// fresh budget, and not taken for the failed one.
#[test]
fn er3_a_replayed_dead_letter_has_a_fresh_budget() {
    for broker in brokers() {
        in_virtual_time(async {
            let store = SimStore::new(1, Faults::default());
            let runs = Runs::default();
            // Fails as often as the ladder allows, and once more after the replay.
            let order = Order { id: "o".into(), fate: Fate::Flaky(5) };
            let shutdown = Shutdown::new();
            declare(consumer(&broker, store.clone(), &runs, 1)).await;
            let run =
                tokio::spawn(consumer(&broker, store.clone(), &runs, 1).shutdown(shutdown.clone()).run());
            publish(&broker, &[order.message(0)]).await;
            nothing_left(&broker).await;
            assert_eq!((runs_of(&runs, "o"), dead_ids(&broker).len()), (4, 1));
            broker.replay(CONSUMER, TOPIC);
            nothing_left(&broker).await;
            assert_eq!(runs_of(&runs, "o"), 6, "the replay did not get its own budget");
            assert_eq!(store.effects().values().sum::<i64>(), 1);
            assert!(dead_ids(&broker).is_empty());
            shutdown.stop();
            run.await.unwrap().unwrap();
        });
    }
}

/// A message that stays broken: each replay is at most one budget, and says how many there
/// were.
#[test]
fn er3_replays_of_a_broken_message_are_bounded_and_counted() {
    for broker in brokers() {
        in_virtual_time(async {
            let store = SimStore::new(1, Faults::default());
            let runs = Runs::default();
            let order = Order { id: "o".into(), fate: Fate::Flaky(u32::MAX) };
            let shutdown = Shutdown::new();
            declare(consumer(&broker, store.clone(), &runs, 1)).await;
            let run =
                tokio::spawn(consumer(&broker, store.clone(), &runs, 1).shutdown(shutdown.clone()).run());
            publish(&broker, &[order.message(0)]).await;
            nothing_left(&broker).await;
            for replay in 1..=3 {
                let before = runs_of(&runs, "o");
                broker.replay(CONSUMER, TOPIC);
                nothing_left(&broker).await;
                let ran = runs_of(&runs, "o") - before;
                assert!(ran <= 4, "replay {replay} ran {ran} times");
                let letters = broker.dead_letters(CONSUMER, TOPIC);
                assert_eq!(letters.len(), 1);
                let count = letters[0].headers().get_str(header::REPLAYS);
                assert_eq!(count, Some(replay.to_string().as_str()));
            }
            shutdown.stop();
            run.await.unwrap().unwrap();
        });
    }
}

/// A dead letter whose key was done meanwhile adds nothing.
#[test]
fn er3_a_replay_of_a_done_key_is_a_duplicate() {
    for broker in brokers() {
        in_virtual_time(async {
            let store = SimStore::new(1, Faults::default());
            let runs = Runs::default();
            let shutdown = Shutdown::new();
            declare(consumer(&broker, store.clone(), &runs, 1)).await;
            let run =
                tokio::spawn(consumer(&broker, store.clone(), &runs, 1).shutdown(shutdown.clone()).run());
            let bad = Order { id: "o".into(), fate: Fate::Poison };
            publish(&broker, &[bad.message(0)]).await;
            nothing_left(&broker).await;
            // The producer mends the event and sends it under the same key.
            let good = Order { id: "o".into(), fate: Fate::Good };
            publish(&broker, &[good.message(1)]).await;
            nothing_left(&broker).await;
            let before = runs_of(&runs, "o");
            broker.replay(CONSUMER, TOPIC);
            nothing_left(&broker).await;
            assert_eq!(runs_of(&runs, "o"), before, "the replay of a done key ran");
            assert!(broker.dead_letters(CONSUMER, TOPIC).is_empty());
            assert_eq!(store.effects().values().sum::<i64>(), 1);
            shutdown.stop();
            let summary = run.await.unwrap().unwrap();
            assert_eq!((summary.duplicates, summary.duplicates_that_differ), (1, 1));
        });
    }
}
