//! Crashes, cuts and lost answers under a consumer.

use oncemq_core::{Consumer, Context, ErrorKind, Failure, Health, Message};
use oncemq_memory::MemoryBroker;

use crate::common::publish;
use crate::{SECOND, Seen, brokers, drained, start, text, until};

#[tokio::test(start_paused = true)]
async fn a_crash_ends_the_run_and_the_next_one_does_the_rest() {
    for broker in brokers() {
        let seen = Seen::new();
        let consumer = || {
            let seen = seen.clone();
            let handler = move |_: Context, message: Message| {
                let seen = seen.clone();
                async move {
                    tokio::time::sleep(SECOND).await;
                    seen.add(text(&message));
                    Ok::<(), Failure>(())
                }
            };
            Consumer::new("points", broker.clone()).in_flight(4).topic("orders").unguarded(handler)
        };
        let running = start(consumer()).await;
        publish(&broker, "orders", &["a", "b", "c", "d", "e", "f"]).await;
        tokio::time::sleep(SECOND / 2).await;
        broker.crash("points");
        let error = running.task.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
        // Their effects are there, but no answer arrived.
        assert_eq!((seen.len(), broker.left("points")), (4, 6));
        let running = start(consumer()).await;
        drained(&broker, "points").await;
        assert_eq!(seen.len(), 10);
        assert_eq!(running.finish().await.handled, 6);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cut_is_waited_for_and_health_says_so() {
    for broker in brokers() {
        let seen = Seen::new();
        let handler = {
            let seen = seen.clone();
            move |_: Context, message: Message| {
                let seen = seen.clone();
                async move {
                    tokio::time::sleep(SECOND).await;
                    seen.add(text(&message));
                    Ok::<(), Failure>(())
                }
            }
        };
        let consumer = Consumer::new("points", broker.clone()).topic("orders").unguarded(handler);
        let health = consumer.health();
        assert_eq!(*health.borrow(), Health::Starting);
        let running = start(consumer).await;
        publish(&broker, "orders", &["a", "b"]).await;
        until("both run", || broker.outstanding("points") == 2).await;
        assert!(health.borrow().is_up());
        broker.disconnect();
        until("health says so", || matches!(*health.borrow(), Health::Degraded(_))).await;
        tokio::time::sleep(20 * SECOND).await;
        assert_eq!((seen.len(), broker.left("points")), (2, 2));
        broker.reconnect();
        drained(&broker, "points").await;
        assert!(health.borrow().is_up());
        // Delivered again, since their answers came too late.
        assert_eq!(seen.len(), 4);
        running.finish().await;
        assert!(matches!(*health.borrow(), Health::Down(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_the_broker_is_away_ends_in_time() {
    for broker in brokers() {
        let handler = |_: Context, _: Message| async { Ok::<(), Failure>(()) };
        let running = start(Consumer::new("points", broker.clone()).topic("orders").unguarded(handler)).await;
        tokio::time::sleep(SECOND).await;
        broker.disconnect();
        let begin = tokio::time::Instant::now();
        running.finish().await;
        assert!(begin.elapsed() < 2 * SECOND);
    }
}

#[tokio::test(start_paused = true)]
async fn er1_without_a_guard_every_lost_answer_is_another_effect() {
    for broker in brokers() {
        let seen = Seen::new();
        let handler = {
            let seen = seen.clone();
            move |_: Context, message: Message| {
                seen.add(text(&message));
                async { Ok::<(), Failure>(()) }
            }
        };
        let running = start(Consumer::new("points", broker.clone()).topic("orders").unguarded(handler)).await;
        broker.lose_acks(2);
        publish(&broker, "orders", &["a"]).await;
        drained(&broker, "points").await;
        assert_eq!(seen.names(), ["a", "a", "a"]);
        running.finish().await;
    }
}

/// Nobody brings back what retention took, so somebody must hear of it.
#[tokio::test(start_paused = true)]
async fn what_is_gone_before_it_is_read_is_counted() {
    let broker = MemoryBroker::log(1);
    let handler = |_: Context, _: Message| async {
        tokio::time::sleep(SECOND).await;
        Ok::<(), Failure>(())
    };
    let running =
        start(Consumer::new("points", broker.clone()).in_flight(1).topic("orders").unguarded(handler)).await;
    publish(&broker, "orders", &["0", "1", "2", "3", "4"]).await;
    tokio::time::sleep(SECOND / 2).await;
    broker.expire("orders", 0, 4);
    drained(&broker, "points").await;
    let summary = running.finish().await;
    assert_eq!((summary.handled, summary.gaps), (2, 1));
}
