//! Servers that die, hang or come back under load. The consumer lives through it: nothing
//! is lost or doubled, and its health says what is wrong meanwhile.
//!
//! They take long and use servers of their own, so they run with `ONCEMQ_LONG=1`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use oncemq::core::Publisher;
use oncemq_integration_tests::event::{Act, Event};
use oncemq_integration_tests::outside::Outside;
use oncemq_integration_tests::process::Process;
use oncemq_integration_tests::proxy::Proxy;
use oncemq_integration_tests::scene::{PATIENCE, Scene};
use oncemq_integration_tests::suite::{self, BrokerKind, StoreKind, servers, url_of};
use oncemq_test_kit::{Instance, Server};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const SERVICE: &str = env!("CARGO_BIN_EXE_service");

fn main() {
    let mut tests = Vec::new();
    for &broker in BrokerKind::SERVERS {
        for store in StoreKind::ALL {
            let mut add = |what: &str, body: fn(Stage) -> Body| {
                let stage = Stage { broker, store };
                let name = format!("{}_{what}_{}", broker.name(), store.name());
                tests.push(suite::test(name, &servers(broker, store), move || body(stage)));
            };
            add("killed_under_load", |s| Box::pin(broker_killed(s)));
            add("stopped_for_20_s", |s| Box::pin(broker_stopped(s)));
            // Clients of Kafka and RocketMQ go to the address that the broker gives them.
            if broker == BrokerKind::RabbitMq {
                add("connection_cut", |s| Box::pin(broker_cut(s)));
            }
        }
        let mut add = |what: &str, body: fn(BrokerKind) -> Body| {
            let name = format!("postgres_{what}_{}", broker.name());
            tests.push(suite::test(name, &servers(broker, StoreKind::Postgres), move || body(broker)));
        };
        add("killed_under_load", |b| Box::pin(database_killed(b)));
        add("stopped_for_20_s", |b| Box::pin(database_stopped(b)));
        add("connection_cut", |b| Box::pin(database_cut(b)));
    }
    if !suite::is_long() {
        tests = tests.into_iter().map(|test| test.with_ignored_flag(true)).collect();
    }
    suite::main(tests, 1)
}

type Body = std::pin::Pin<Box<dyn Future<Output = ()>>>;

/// What a test runs on.
#[derive(Debug, Clone, Copy)]
struct Stage {
    broker: BrokerKind,
    store: StoreKind,
}

impl Stage {
    /// A stage on a broker of the test's own.
    async fn on(self, server: &str) -> Scene {
        let postgres = (self.store == StoreKind::Postgres).then(|| url_of("postgres"));
        Scene::on(SERVICE, self.broker.service_url(server), postgres).await
    }
}

/// A scene with a consumer at work and a producer that sends all the time.
struct Load {
    scene: Scene,
    consumer: Process,
    producer: JoinHandle<()>,
}

impl Load {
    async fn start(scene: Scene, count: usize) -> Self {
        scene.declare().await;
        let events: Vec<_> = (0..count)
            .map(|i| Event::new(format!("order-{i}"), if i % 20 == 3 { Act::Flaky(1) } else { Act::Quick }))
            .collect();
        scene.database.expect(&events).await.unwrap();
        let consumer = scene.consume(None);
        consumer.until_said("health up", PATIENCE).await;
        let (broker, topic) = (scene.spec.broker.clone(), scene.spec.topic.clone());
        let producer = tokio::spawn(async move {
            let publisher = oncemq::broker(&broker).unwrap().publisher().await.unwrap();
            for event in events {
                send(&*publisher, &topic, &event).await;
                sleep(Duration::from_millis(20)).await;
            }
            publisher.close().await.unwrap();
        });
        let load = Self { scene, consumer, producer };
        load.until_effects(20).await;
        load
    }

    async fn until_effects(&self, count: i64) {
        suite::until(&format!("{count} effects"), PATIENCE, async || self.effects().await >= count).await;
    }

    async fn effects(&self) -> i64 {
        self.scene.database.number("SELECT count(*) FROM effect").await.unwrap()
    }

    /// What the consumer said about its health since then.
    async fn until_degraded(&self) {
        self.consumer.until_said("health degraded", PATIENCE).await;
    }

    /// Everything arrives, by the same process, and the books are right.
    async fn end(self) -> Scene {
        self.producer.await.unwrap();
        self.scene.until_complete().await;
        suite::until("health up", PATIENCE, async || {
            let said = self.consumer.said();
            said.lines().rfind(|line| line.starts_with("health")) == Some("health up")
        })
        .await;
        self.consumer.stop(PATIENCE).await;
        // Taken by a dead connection and not seen yet, or on a rung.
        self.scene.settle(0).await;
        assert_eq!(Outside::of(&self.scene.spec).await.dead_letters().await.len(), 0);
        self.scene
    }
}

/// Sends until it is confirmed, under the same id.
async fn send(publisher: &dyn Publisher, topic: &str, event: &Event) {
    while publisher.publish(topic, &event.message()).await.is_err() {
        sleep(Duration::from_millis(200)).await;
    }
}

async fn broker_killed(stage: Stage) {
    let server = Instance::start(Server(stage.broker.name()), "outage");
    let load = Load::start(stage.on(&server.url()).await, 400).await;
    server.kill();
    load.until_degraded().await;
    server.again();
    load.end().await.close().await;
}

/// On Kafka that is longer than the session.
async fn broker_stopped(stage: Stage) {
    let server = Instance::start(Server(stage.broker.name()), "outage");
    let load = Load::start(stage.on(&server.url()).await, 400).await;
    server.pause();
    sleep(Duration::from_secs(20)).await;
    server.resume();
    load.end().await.close().await;
}

async fn broker_cut(stage: Stage) {
    let (proxy, through) = through_a_proxy(&url_of(stage.broker.name())).await;
    let load = Load::start(stage.on(&through).await, 400).await;
    for _ in 0..8 {
        sleep(Duration::from_millis(700)).await;
        proxy.cut();
    }
    load.until_degraded().await;
    load.end().await.close().await;
}

/// A stage on the shared broker and this PostgreSQL.
async fn on_postgres(broker: BrokerKind, postgres: String) -> Scene {
    Scene::on(SERVICE, broker.service_url(&url_of(broker.name())), Some(postgres)).await
}

async fn database_killed(broker: BrokerKind) {
    let server = Instance::start(Server("postgres"), "outage");
    let load = Load::start(on_postgres(broker, server.url()).await, 400).await;
    server.kill();
    load.until_degraded().await;
    sleep(Duration::from_secs(3)).await;
    server.again();
    load.end().await.close().await;
}

async fn database_stopped(broker: BrokerKind) {
    let server = Instance::start(Server("postgres"), "outage");
    let load = Load::start(on_postgres(broker, server.url()).await, 400).await;
    server.pause();
    sleep(Duration::from_secs(20)).await;
    server.resume();
    load.end().await.close().await;
}

async fn database_cut(broker: BrokerKind) {
    let (proxy, through) = through_a_proxy(&url_of("postgres")).await;
    let load = Load::start(on_postgres(broker, through).await, 400).await;
    for _ in 0..8 {
        sleep(Duration::from_millis(700)).await;
        proxy.cut();
    }
    load.end().await.close().await;
}

/// The same URL, with a cable in between.
async fn through_a_proxy(url: &str) -> (Proxy, String) {
    let (front, rest) = url.split_once('@').expect("a URL with a user");
    let (address, path) = rest.split_once('/').expect("a URL with a path");
    let proxy = Proxy::to(address.to_owned()).await;
    let through = format!("{front}@{}/{path}", proxy.address);
    (proxy, through)
}
