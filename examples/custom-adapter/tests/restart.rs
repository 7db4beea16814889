//! What a dead process had out comes back, flagged.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::future::poll_fn;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use custom_adapter::FolderBroker;
use oncemq_core::{
    Ack, Broker, ConsumerSpec, Delivery, Error, Event, Message, Plan, Source, Subscription, Topology,
};

/// Set for the process that dies: the folder.
const VICTIM: &str = "CUSTOM_ADAPTER_VICTIM";

async fn subscribe(root: &Path) -> Result<(FolderBroker, Box<dyn Source>), Error> {
    let broker = FolderBroker::new(root);
    let spec = ConsumerSpec::new("shop", 8, Topology::Declare).with(Subscription::new("orders"));
    broker.prepare(&spec, &mut Plan::default()).await?;
    let source = broker.subscribe(&spec).await?;
    Ok((broker, source))
}

async fn take(source: &mut dyn Source, n: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < n {
        let mut events = Vec::new();
        let polled = poll_fn(|cx| source.poll_events(cx, n - taken.len(), &mut events));
        tokio::time::timeout(Duration::from_secs(20), polled).await.expect("nothing comes").unwrap();
        taken.extend(events.into_iter().filter_map(|event| match event {
            Event::Delivery(delivery) => Some(delivery),
            _ => None,
        }));
    }
    taken
}

/// Takes two of the three messages, accepts one, and dies without a word.
async fn die(root: &Path) {
    let (_broker, mut source) = subscribe(root).await.unwrap();
    let mut taken = take(&mut *source, 2).await;
    taken.remove(0).ack(Ack::Accept);
    assert!(source.flush(Duration::from_secs(10)).await);
    std::process::abort();
}

#[tokio::test]
async fn what_a_dead_process_had_out_comes_back_flagged() {
    if let Some(root) = std::env::var_os(VICTIM) {
        return die(root.as_ref()).await;
    }
    let root = tempfile::tempdir().unwrap();
    let (broker, mut source) = subscribe(root.path()).await.unwrap();
    let publisher = broker.publisher().await.unwrap();
    for body in ["accepted", "out", "never taken"] {
        publisher.publish("orders", &Message::new(body)).await.unwrap();
    }
    source.close(Duration::from_secs(10)).await.unwrap();

    let myself = std::env::current_exe().unwrap();
    let name = "what_a_dead_process_had_out_comes_back_flagged";
    let mut victim = Command::new(myself);
    let status = victim.args(["--exact", name, "--nocapture"]).env(VICTIM, root.path()).status().unwrap();
    assert!(!status.success(), "it was to die: {status}");

    let (_broker, mut source) = subscribe(root.path()).await.unwrap();
    let mut seen = Vec::new();
    for delivery in take(&mut *source, 2).await {
        let body = String::from_utf8(delivery.message().body().to_vec()).unwrap();
        seen.push((body, delivery.facts().redelivered));
        delivery.ack(Ack::Accept);
    }
    assert_eq!(seen, [("out".to_owned(), true), ("never taken".to_owned(), false)]);
    source.close(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn a_second_consumer_of_a_queue_waits_for_the_end_of_the_first() {
    let root = tempfile::tempdir().unwrap();
    let (broker, mut first) = subscribe(root.path()).await.unwrap();
    let publisher = broker.publisher().await.unwrap();
    publisher.publish("orders", &Message::new("a")).await.unwrap();
    let held = take(&mut *first, 1).await;
    publisher.publish("orders", &Message::new("b")).await.unwrap();
    let (_broker, mut second) = subscribe(root.path()).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(300), take(&mut *second, 1)).await;
    assert!(waiting.is_err(), "two consume one queue");
    first.close(Duration::from_secs(10)).await.unwrap();
    drop(held);
    let bodies: Vec<_> =
        take(&mut *second, 2).await.iter().map(|delivery| delivery.message().body().to_vec()).collect();
    assert_eq!(bodies, [b"a", b"b"]);
}

#[tokio::test]
async fn a_late_answer_of_a_closed_source_takes_nothing_from_the_next() {
    let root = tempfile::tempdir().unwrap();
    let (broker, mut first) = subscribe(root.path()).await.unwrap();
    broker.publisher().await.unwrap().publish("orders", &Message::new("a")).await.unwrap();
    let late = take(&mut *first, 1).await.remove(0);
    first.close(Duration::from_secs(10)).await.unwrap();
    let (_broker, mut second) = subscribe(root.path()).await.unwrap();
    let again = take(&mut *second, 1).await;
    late.ack(Ack::Accept);
    drop(first);
    // The second leaves it too, and the third finds it.
    drop((again, second));
    let (_broker, mut third) = subscribe(root.path()).await.unwrap();
    assert_eq!(take(&mut *third, 1).await[0].message().body(), b"a");
}

#[tokio::test]
async fn names_that_are_no_file_names_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let broker = FolderBroker::new(root.path());
    for name in ["", "../orders", "a/b", ".hidden", &"x".repeat(201)] {
        let spec = ConsumerSpec::new("shop", 8, Topology::Declare).with(Subscription::new(name));
        let error = broker.prepare(&spec, &mut Plan::default()).await.unwrap_err();
        assert_eq!(error.kind(), oncemq_core::ErrorKind::Config, "{name}: {error}");
    }
}
