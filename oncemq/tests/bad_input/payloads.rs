//! Messages that no handler can take: kept as they are, and nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use oncemq::core::header;
use oncemq::memory::MemoryBroker;
use oncemq::{Broker, Consumer, Failure, Inbox, Key, Message, Shutdown, Summary, Tx};
use sqlx::Sqlite;

use crate::test;

pub(crate) fn tests(list: &mut Vec<Trial>) {
    list.push(test("payloads_that_cannot_be_handled_are_dead_lettered_as_they_are", kept));
    list.push(test("what_a_constraint_refuses_at_the_commit_is_dead_lettered_at_once", deferred));
}

#[derive(serde::Deserialize)]
struct Order {
    id: String,
    points: i64,
}

/// A payload, and a word of the reason on its dead letter.
const BROKEN: [(&[u8], &str); 9] = [
    (b"", "not JSON"),
    (b"\xff\xfe\x00", "not JSON"),
    (b"{\"id\":", "not JSON"),
    (b"{}", "key"),
    (b"{\"id\":null,\"points\":1}", "key"),
    (b"{\"id\":{\"x\":1},\"points\":1}", "key"),
    (b"[]", "key"),
    (b"{\"id\":\"a\",\"points\":\"many\"}", "undecodable"),
    (b"{\"id\":\"b\"} \r\n\t", "undecodable"),
];

async fn run(
    broker: &MemoryBroker,
    inbox: &Inbox<Sqlite>,
    runs: &Arc<AtomicUsize>,
    settled: usize,
) -> Summary {
    let (stop, runs) = (Shutdown::new(), runs.clone());
    let handler = move |mut tx: Tx<Sqlite>, order: Order| {
        runs.fetch_add(1, SeqCst);
        async move {
            let sql = "INSERT INTO effect (id, points) VALUES (?, ?)";
            sqlx::query(sql).bind(order.id).bind(order.points).execute(tx.db()).await?;
            Ok::<(), Failure>(())
        }
    };
    let consumer = Consumer::new("points", broker.clone())
        .shutdown(stop.clone())
        .topic("orders")
        .key(Key::json("/id"))
        .retry("10ms dead-letter".parse().unwrap())
        .handler(inbox.handler(handler));
    let running = tokio::spawn(consumer.run());
    let end = Instant::now() + Duration::from_secs(30);
    while broker.left("points") > 0 || broker.dead_letters("points", "orders").len() < settled {
        assert!(Instant::now() < end, "{} messages are left", broker.left("points"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.stop();
    running.await.unwrap().unwrap()
}

async fn kept() {
    let folder = tempfile::tempdir().unwrap();
    let inbox = Inbox::sqlite_file(folder.path().join("points.db")).await.unwrap();
    let table = "CREATE TABLE effect (id TEXT PRIMARY KEY, points INTEGER NOT NULL)";
    sqlx::query(table).execute(inbox.pool()).await.unwrap();
    let (broker, runs) = (MemoryBroker::queue(), Arc::new(AtomicUsize::new(0)));
    broker.bind("points.orders", "orders");
    let publisher = broker.publisher().await.unwrap();
    // A good one before, between and behind: none of them waits for a broken one.
    for (n, (payload, _)) in BROKEN.iter().enumerate() {
        publisher
            .publish("orders", &Message::new(format!("{{\"id\":\"good {n}\",\"points\":1}}")))
            .await
            .unwrap();
        let broken = Message::new(*payload).with_id(format!("m{n}")).with_header("tenant", "x");
        publisher.publish("orders", &broken).await.unwrap();
    }

    let summary = run(&broker, &inbox, &runs, BROKEN.len()).await;
    assert_eq!(summary.rejected, BROKEN.len() as u64, "{summary:?}");
    // No second try for what can never succeed, and no run at all.
    assert_eq!((summary.retried, runs.load(SeqCst)), (0, BROKEN.len()), "{summary:?}");
    let letters = broker.dead_letters("points", "orders");
    assert_eq!(letters.len(), BROKEN.len());
    for (n, (payload, reason)) in BROKEN.iter().enumerate() {
        let id = format!("m{n}");
        let letter = letters.iter().find(|letter| letter.id() == Some(&*id)).unwrap();
        assert_eq!(letter.body(), *payload, "the payload was touched");
        assert_eq!(letter.headers().get_str("tenant"), Some("x"));
        let why = letter.headers().get_str(header::REASON).unwrap();
        assert!(why.contains(reason) && !why.contains('\n'), "{why}");
        assert_eq!(letter.headers().get_str(header::CLASS), Some("business"));
    }
    ensure_effects(&inbox).await;

    // Replayed, they are dead letters again, and what was good stays single.
    assert_eq!(broker.replay("points", "orders"), BROKEN.len());
    let summary = run(&broker, &inbox, &runs, BROKEN.len()).await;
    assert_eq!((summary.handled, summary.rejected), (0, BROKEN.len() as u64), "{summary:?}");
    assert_eq!(runs.load(SeqCst), BROKEN.len());
    ensure_effects(&inbox).await;
}

async fn ensure_effects(inbox: &Inbox<Sqlite>) {
    let count = "SELECT count(*) FROM effect";
    let effects: i64 = sqlx::query_scalar(count).fetch_one(inbox.pool()).await.unwrap();
    assert_eq!(effects, BROKEN.len() as i64);
}

/// The points of an unknown user: the database says so only when it commits.
async fn deferred() {
    let folder = tempfile::tempdir().unwrap();
    let inbox = Inbox::sqlite_file(folder.path().join("points.db")).await.unwrap();
    for table in [
        "CREATE TABLE known (id TEXT PRIMARY KEY)",
        "CREATE TABLE effect (id TEXT REFERENCES known DEFERRABLE INITIALLY DEFERRED, points INTEGER)",
    ] {
        sqlx::query(table).execute(inbox.pool()).await.unwrap();
    }
    let (broker, runs) = (MemoryBroker::queue(), Arc::new(AtomicUsize::new(0)));
    broker.bind("points.orders", "orders");
    let message = Message::new(r#"{"id":"nobody","points":1}"#);
    broker.publisher().await.unwrap().publish("orders", &message).await.unwrap();

    let summary = run(&broker, &inbox, &runs, 1).await;
    assert_eq!((summary.retried, summary.rejected, runs.load(SeqCst)), (0, 1, 1), "{summary:?}");
    let letters = broker.dead_letters("points", "orders");
    assert_eq!(letters[0].headers().get_str(header::CLASS), Some("business"));
    let why = letters[0].headers().get_str(header::REASON).unwrap();
    assert!(why.contains("FOREIGN KEY"), "{why}");
}
