//! The crash matrix: a process dies at every named place, on every broker and store, at an
//! early and at a later pass; the next process must make it right.
//!
//! The lists at the top are the matrix. One store and one pass run always, the rest with
//! `ONCEMQ_LONG=1`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;

use oncemq::Message;
use oncemq_integration_tests::event::{Act, Event};
use oncemq_integration_tests::outside::Outside;
use oncemq_integration_tests::scene::{PATIENCE, Scene};
use oncemq_integration_tests::suite::{self, BrokerKind, StoreKind, servers};

const SERVICE: &str = env!("CARGO_BIN_EXE_service");

/// Places in every guarded run.
const CORE: &[&str] =
    &["core.marked", "core.begun", "core.claimed", "core.ran", "core.ended", "core.decided", "core.noted"];

/// A broker and the places in its adapter.
const BROKERS: &[(BrokerKind, &[&str])] = &[
    (
        BrokerKind::RabbitMq,
        &[
            "rabbitmq.before_copy",
            "rabbitmq.published",
            "rabbitmq.copied",
            "rabbitmq.before_ack",
            "rabbitmq.acked",
        ],
    ),
    (
        BrokerKind::Kafka,
        &["kafka.before_copy", "kafka.published", "kafka.copied", "kafka.before_commit", "kafka.committed"],
    ),
    #[cfg(feature = "rocketmq")]
    (
        BrokerKind::RocketMq,
        &[
            "rocketmq.before_copy",
            "rocketmq.published",
            "rocketmq.copied",
            "rocketmq.before_commit",
            "rocketmq.committed",
        ],
    ),
];

/// A store and the places in it.
const STORES: &[(StoreKind, &[&str])] = &[
    (StoreKind::Sqlite, &["inbox.claimed", "inbox.committing", "inbox.committed"]),
    (StoreKind::Postgres, &["inbox.claimed", "inbox.committing", "inbox.committed"]),
];

/// At which pass the process dies.
const PASSES: &[u32] = &[1, 5];

fn main() {
    let mut tests = Vec::new();
    for (broker, in_adapter) in BROKERS {
        for (store, in_store) in STORES {
            for place in CORE.iter().chain(*in_adapter).chain(*in_store) {
                for pass in PASSES {
                    let cell = Cell { broker: *broker, store: *store, place, pass: *pass };
                    tests.push(cell.test());
                }
            }
        }
    }
    suite::main(tests, 4)
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    broker: BrokerKind,
    store: StoreKind,
    place: &'static str,
    pass: u32,
}

impl Cell {
    fn test(self) -> libtest_mimic::Trial {
        let name = format!(
            "killed_at_{}_pass_{}_{}_{}",
            self.place.replace('.', "_"),
            self.pass,
            self.broker.name(),
            self.store.name()
        );
        let always = self.store == StoreKind::Sqlite && self.pass == 1;
        let trial = suite::test(name, &servers(self.broker, self.store), move || self.run());
        if always || suite::is_long() { trial } else { trial.with_ignored_flag(true) }
    }

    async fn run(self) {
        let scene = Scene::new(SERVICE, self.broker, self.store).await;
        let traffic = Traffic::new();
        scene.declare().await;
        scene.send(&traffic.events).await;
        scene.send_raw(&traffic.broken).await;
        let failpoint = format!("{}=kill@{}", self.place, self.pass);
        // A place that is not passed so often would prove nothing.
        scene.consume(Some(&failpoint)).killed(PATIENCE).await;

        let dead = traffic.dead();
        scene.settle(u32::try_from(dead.len()).unwrap()).await;
        let found = Outside::of(&scene.spec).await.dead_letters().await;
        let text = |bodies: &BTreeSet<Vec<u8>>| -> Vec<String> {
            bodies.iter().map(|body| String::from_utf8_lossy(body).into_owned()).collect()
        };
        assert_eq!(text(&found), text(&dead));
        scene.close().await;
    }
}

/// Enough of everything that each place is passed five times.
struct Traffic {
    events: Vec<Event>,
    broken: Vec<Message>,
}

impl Traffic {
    fn new() -> Self {
        let mut events = Vec::new();
        for i in 0..6 {
            events.push(Event::new(format!("order-{i}"), Act::Quick));
            events.push(Event::new(format!("partner-away-{i}"), Act::Flaky(1)));
            events.push(Event::new(format!("unknown-product-{i}"), Act::Business));
            // Keys that only careless stores take for one.
            events.push(Event::new(format!("ORDER-{i}"), Act::Quick));
            events.push(Event::new(format!("order-{i}\u{1f600}"), Act::Quick));
        }
        // Resent by the producer.
        events.extend_from_within(0..8);
        let broken = ["{\"id\":\"cut-o", "\u{0}\u{1}", "{\"user\":7,\"points\":1}"];
        let broken = broken.iter().map(|body| Message::new(*body)).collect();
        Self { events, broken }
    }

    fn dead(&self) -> BTreeSet<Vec<u8>> {
        let failing = self.events.iter().filter(|event| !event.is_good());
        let failing = failing.map(|event| event.message().body().to_vec());
        failing.chain(self.broken.iter().map(|message| message.body().to_vec())).collect()
    }
}
