//! Messages of transactions, whose notes are kept here. Crashes are in a long part.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use libtest_mimic::Trial;
use oncemq_core::{Decision, Error, ErrorKind, Message, Subscription};
use oncemq_rocketmq::{RocketmqBroker, TransactionError, TransactionId, TransactionalPublisher};
use oncemq_test_kit::{Bare, millis, secs, test, unique};
use tokio::time::{sleep, timeout};

use crate::common::broker;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("a_message_appears_if_its_transaction_is_noted", || fates(broker())),
        #[cfg(feature = "tls")]
        test("over_tls_a_message_appears_with_its_transaction", || fates(crate::tls::trusted())),
        test("what_no_transaction_can_have_is_refused", refused),
    ]
}

/// Transactions that are committed.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<HashSet<TransactionId>>>);

impl Notes {
    fn write(&self, id: TransactionId) {
        self.0.lock().unwrap().insert(id);
    }

    async fn publisher(&self, broker: &RocketmqBroker, topic: &str) -> TransactionalPublisher {
        let notes = self.clone();
        let check = move |id| {
            let committed = notes.0.lock().unwrap().contains(&id);
            async move { Ok(if committed { Decision::Committed } else { Decision::RolledBack }) }
        };
        broker.transactions(&unique("producers"), &[topic], check).await.unwrap()
    }
}

async fn fates(broker: RocketmqBroker) {
    let mut bare = Bare::of(broker.clone(), Subscription::new(unique("orders")), 10).await;
    let (notes, topic) = (Notes::default(), bare.topic.clone());
    let publisher = notes.publisher(&broker, &topic).await;
    let error =
        publisher.publish(&topic, &Message::new("no"), async |_| Err::<(), _>("no")).await.unwrap_err();
    assert!(
        matches!(error, TransactionError::Local { error: "no", decision: Decision::RolledBack }),
        "{error:?}"
    );
    let error =
        publisher.publish(&topic, &Message::new("unnoted"), async |_| Ok::<_, Error>(())).await.unwrap_err();
    assert!(matches!(error, TransactionError::NotCommitted), "{error:?}");
    let message = Message::new("yes").with_id("order-17").with_key("k").with_header("tenant", "t");
    let half = publisher.half(&topic, &message).await.unwrap();
    notes.write(half.id().clone());
    assert_eq!(half.settle().await.unwrap(), Decision::Committed);
    let delivery = bare.next().await;
    let seen = delivery.message();
    assert_eq!((seen.body(), seen.id()), (&b"yes"[..], Some("order-17")));
    assert_eq!(seen.key().map(|key| &key[..]), Some(&b"k"[..]));
    assert_eq!((seen.headers().len(), seen.headers().get_str("tenant")), (1, Some("t")));
    // Nothing else comes, neither now nor when the broker would ask.
    sleep(secs(7)).await;
    let more = timeout(millis(100), bare.next()).await;
    assert!(more.is_err(), "{:?}", more.map(|delivery| delivery.message().clone()));
    publisher.close().await.unwrap();
    bare.source.close(secs(5)).await.unwrap();
}

async fn refused() {
    let check = |_| async { Ok(Decision::Open) };
    for (group, topics, kind) in [
        ("a group", vec!["orders"], ErrorKind::Config),
        ("group", vec![], ErrorKind::Config),
        ("group", vec!["or ders"], ErrorKind::Config),
        ("group", vec!["no-such-topic"], ErrorKind::Topology),
    ] {
        let error = broker().transactions(group, &topics, check).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{group} {topics:?}: {error}");
    }
    let begin = Instant::now();
    let nowhere = RocketmqBroker::from_url("rocketmq://127.0.0.1:1").unwrap();
    let error = nowhere.transactions("group", &["orders"], check).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connection, "{error}");
    assert!(begin.elapsed() < secs(15));

    let mut bare = Bare::of(broker(), Subscription::new(unique("orders")), 10).await;
    let publisher = Notes::default().publisher(&broker(), &bare.topic).await;
    let kind =
        async |topic: &str, message: Message| publisher.half(topic, &message).await.unwrap_err().kind();
    let topic = bare.topic.as_str();
    assert_eq!(kind("others", Message::new("x")).await, ErrorKind::Config);
    assert_eq!(kind(topic, Message::new("x").with_header("DELAY", "3")).await, ErrorKind::Unsupported);
    assert_eq!(kind(topic, Message::tombstone()).await, ErrorKind::Unsupported);
    assert_eq!(kind(topic, Message::new(vec![0; 5 << 20])).await, ErrorKind::TooLarge);
    publisher.close().await.unwrap();
    publisher.close().await.unwrap();
    assert_eq!(kind(topic, Message::new("x")).await, ErrorKind::Closed);
    let mut ran = false;
    let message = Message::new("x");
    let closed = publisher.publish(topic, &message, async |_| {
        ran = true;
        Ok::<_, Error>(())
    });
    let error = closed.await.unwrap_err();
    assert!(matches!(error, TransactionError::NotSent(_)) && !ran, "{error:?}");
    bare.source.close(secs(5)).await.unwrap();
}
