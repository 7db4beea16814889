//! A store that does not answer.

use std::sync::Arc;
use std::time::Duration;

use oncemq_core::sim::{Faults, SimStore, SimTx};
use oncemq_core::{Consumer, Failure, Guard, Health, Key, Shutdown};
use oncemq_memory::MemoryBroker;

use crate::ledger::check;
use crate::orders::{
    CONSUMER, Fate, Order, Runs, TOPIC, consumer, declare, in_virtual_time, nothing_left, publish,
};

#[test]
fn a_dead_store_pauses_intake_settles_nothing_charges_nothing_and_resumes_by_itself() {
    in_virtual_time(async {
        let broker = MemoryBroker::queue();
        let store = SimStore::new(1, Faults::default());
        let runs = Runs::default();
        let orders: Vec<_> = (0..50).map(|i| Order { id: format!("o{i}"), fate: Fate::Good }).collect();
        let messages: Vec<_> = orders.iter().map(|order| order.message(0)).collect();
        let shutdown = Shutdown::new();
        let service = consumer(&broker, store.clone(), &runs, 2).shutdown(shutdown.clone());
        let health = service.health();
        let run = tokio::spawn(service.run());
        tokio::time::sleep(Duration::from_secs(1)).await;
        store.set_down(true);
        publish(&broker, &messages).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(broker.left(CONSUMER), 50, "something was settled while the store was down");
        assert!(runs.lock().unwrap().is_empty(), "a handler ran while the store was down");
        assert!(
            matches!(&*health.borrow(), Health::Degraded(why) if why.contains("store")),
            "{:?}",
            health.borrow()
        );
        store.set_down(false);
        nothing_left(&broker).await;
        assert!(health.borrow().is_up());
        shutdown.stop();
        let summary = run.await.unwrap().unwrap();
        assert_eq!((summary.handled, summary.retried, summary.rejected), (50, 0, 0));
        check("outage", &orders, &store, &broker);
    });
}

#[test]
fn an_outage_in_the_middle_of_runs_charges_nothing() {
    in_virtual_time(async {
        let broker = MemoryBroker::queue();
        let store = SimStore::new(1, Faults::default());
        let runs = Runs::default();
        let orders: Vec<_> = (0..8).map(|i| Order { id: format!("o{i}"), fate: Fate::Slow }).collect();
        let messages: Vec<_> = orders.iter().map(|order| order.message(0)).collect();
        let shutdown = Shutdown::new();
        declare(consumer(&broker, store.clone(), &runs, 2)).await;
        publish(&broker, &messages).await;
        let run = tokio::spawn(consumer(&broker, store.clone(), &runs, 2).shutdown(shutdown.clone()).run());
        tokio::time::sleep(Duration::from_millis(150)).await;
        assert!(!runs.lock().unwrap().is_empty(), "nothing runs yet");
        store.set_down(true);
        tokio::time::sleep(Duration::from_secs(30)).await;
        store.set_down(false);
        nothing_left(&broker).await;
        shutdown.stop();
        let summary = run.await.unwrap().unwrap();
        assert_eq!((summary.handled, summary.retried, summary.rejected), (8, 0, 0), "{summary:?}");
        check("outage in runs", &orders, &store, &broker);
    });
}

/// Runs that wait for the store cannot end, so the grace is what ends them: before their
/// claim, and in the middle of a handler.
#[test]
fn a_stop_while_runs_wait_for_the_store_ends_in_time_and_charges_nothing() {
    for in_the_middle in [false, true] {
        in_virtual_time(async {
            let broker = MemoryBroker::queue();
            let store = SimStore::new(1, Faults::default());
            let runs = Runs::default();
            let orders: Vec<_> = (0..20).map(|i| Order { id: format!("o{i}"), fate: Fate::Slow }).collect();
            let messages: Vec<_> = orders.iter().map(|order| order.message(0)).collect();
            let service = |shutdown: &Shutdown| {
                consumer(&broker, store.clone(), &runs, 2).shutdown(shutdown.clone()).run()
            };
            let shutdown = Shutdown::new();
            declare(consumer(&broker, store.clone(), &runs, 2)).await;
            let run = tokio::spawn(service(&shutdown));
            tokio::time::sleep(Duration::from_secs(1)).await;
            store.set_down(!in_the_middle);
            publish(&broker, &messages).await;
            tokio::time::sleep(Duration::from_millis(150)).await;
            assert_eq!(runs.lock().unwrap().is_empty(), !in_the_middle);
            store.set_down(true);
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert!(broker.outstanding(CONSUMER) > 0, "nothing waits");
            shutdown.stop();
            let before = tokio::time::Instant::now();
            let summary = run.await.unwrap().unwrap();
            // The grace, and what is left for closing.
            assert!(before.elapsed() <= Duration::from_secs(32), "{:?}", before.elapsed());
            assert_eq!((summary.handled, summary.retried, summary.rejected), (0, 0, 0), "{summary:?}");
            assert_eq!((broker.left(CONSUMER), broker.outstanding(CONSUMER)), (20, 0));

            store.set_down(false);
            let shutdown = Shutdown::new();
            let run = tokio::spawn(service(&shutdown));
            nothing_left(&broker).await;
            shutdown.stop();
            let summary = run.await.unwrap().unwrap();
            assert_eq!((summary.handled, summary.retried, summary.rejected), (20, 0, 0), "{summary:?}");
            assert_eq!(store.marked(), 0, "a mark stayed");
            check("stop in an outage", &orders, &store, &broker);
        });
    }
}

/// A handler that always meets a deadlock is redone without a charge ten times, then it is
/// charged and climbs the ladder: no endless loop.
#[test]
fn endless_deadlocks_are_charged_in_the_end() {
    in_virtual_time(async {
        let broker = MemoryBroker::queue();
        let store = SimStore::new(1, Faults { deadlocks: 100, ..Faults::default() });
        let runs = Runs::default();
        let order = Order { id: "o".into(), fate: Fate::Good };
        let shutdown = Shutdown::new();
        declare(consumer(&broker, store.clone(), &runs, 1)).await;
        publish(&broker, &[order.message(0)]).await;
        let run = tokio::spawn(consumer(&broker, store.clone(), &runs, 1).shutdown(shutdown.clone()).run());
        nothing_left(&broker).await;
        shutdown.stop();
        let summary = run.await.unwrap().unwrap();
        assert_eq!((summary.retried, summary.rejected), (3, 1), "{summary:?}");
        assert_eq!(broker.dead_letters(CONSUMER, TOPIC).len(), 1);
        assert!(store.effects().is_empty());
    });
}

#[test]
fn a_second_stop_ends_at_once_and_the_message_comes_back() {
    in_virtual_time(async {
        let broker = MemoryBroker::queue();
        let store = SimStore::new(1, Faults::default());
        let stuck = |_tx: SimTx, _order: Order| async {
            std::future::pending::<()>().await;
            Ok::<(), Failure>(())
        };
        let shutdown = Shutdown::new();
        let service = Consumer::new(CONSUMER, broker.clone())
            .shutdown(shutdown.clone())
            .topic(TOPIC)
            .key(Key::json("/id"))
            .timeout(Duration::from_secs(3600))
            .handler(Guard::new(Arc::new(store.clone()), stuck));
        let order = Order { id: "o".into(), fate: Fate::Good };
        let runs = Runs::default();
        declare(consumer(&broker, store.clone(), &runs, 1)).await;
        publish(&broker, &[order.message(0)]).await;
        let run = tokio::spawn(service.run());
        tokio::time::sleep(Duration::from_secs(1)).await;
        shutdown.stop();
        shutdown.stop();
        let before = tokio::time::Instant::now();
        run.await.unwrap().unwrap();
        assert!(before.elapsed() < Duration::from_secs(2), "{:?}", before.elapsed());
        assert_eq!(broker.left(CONSUMER), 1);
    });
}

/// A stop does not wait for a ladder that waits in place: the message goes back, and the
/// next process counts on from its attempts.
#[test]
fn sh1_a_stop_ends_a_wait_of_the_ladder_at_once() {
    in_virtual_time(async {
        let broker = MemoryBroker::queue();
        let store = SimStore::new(1, Faults::default());
        let runs = Runs::default();
        let order = Order { id: "o".into(), fate: Fate::Flaky(3) };
        let service = |shutdown: &Shutdown| {
            let runs = runs.clone();
            let handler = move |tx: SimTx, order: Order| crate::orders::handle(tx, order, runs.clone());
            Consumer::new(CONSUMER, broker.clone())
                .shutdown(shutdown.clone())
                .topic(TOPIC)
                .key(Key::json("/id"))
                .ordering(oncemq_core::Ordering::Ordered)
                .retry("1h 1h 1h dead-letter".parse().unwrap())
                .handler(Guard::new(Arc::new(store.clone()), handler))
        };
        let shutdown = Shutdown::new();
        declare(service(&shutdown)).await;
        publish(&broker, &[order.message(0)]).await;
        for life in 0..3 {
            let shutdown = Shutdown::new();
            let run = tokio::spawn(service(&shutdown).run());
            tokio::time::sleep(Duration::from_secs(10)).await;
            shutdown.stop();
            let before = tokio::time::Instant::now();
            run.await.unwrap().unwrap();
            assert!(before.elapsed() < Duration::from_secs(1), "life {life} waited {:?}", before.elapsed());
            assert_eq!(broker.left(CONSUMER), 1);
        }
        let run = tokio::spawn(service(&shutdown).run());
        nothing_left(&broker).await;
        shutdown.stop();
        assert_eq!(run.await.unwrap().unwrap().handled, 1);
        assert_eq!(runs.lock().unwrap()["o"], 4, "attempts were charged or forgotten by a stop");
        check("stop in a wait", &[order], &store, &broker);
    });
}
