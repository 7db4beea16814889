//! Servers that die, hang or come back under load. The consumer lives through it: nothing
//! is lost or doubled, and its health says what is wrong meanwhile.
//!
//! They take long and use servers of their own, so they run with `ONCEMQ_LONG=1`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use oncemq::core::Publisher;
use oncemq_integration_tests::event::{Act, Event};
use oncemq_integration_tests::process::Process;
use oncemq_integration_tests::proxy::Proxy;
use oncemq_integration_tests::rabbit::Rabbit;
use oncemq_integration_tests::scene::{PATIENCE, Scene};
use oncemq_integration_tests::server::Server;
use oncemq_integration_tests::suite::{self, StoreKind, url_of};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const SERVICE: &str = env!("CARGO_BIN_EXE_service");
const BOTH: &[&str] = &["rabbitmq", "postgres"];

fn main() {
    let mut tests = Vec::new();
    for store in StoreKind::ALL {
        let name = |what: &str| format!("{what}_{}", store.name());
        let servers = suite::servers(suite::BrokerKind::RabbitMq, store);
        tests.push(suite::test(name("rabbitmq_killed_under_load"), &servers, move || broker_killed(store)));
        tests.push(suite::test(name("rabbitmq_stopped_for_20_s"), &servers, move || broker_stopped(store)));
        tests.push(suite::test(name("rabbitmq_connection_cut"), &servers, move || broker_cut(store)));
    }
    tests.push(suite::test("postgres_killed_under_load", BOTH, database_killed));
    tests.push(suite::test("postgres_stopped_for_20_s", BOTH, database_stopped));
    tests.push(suite::test("postgres_connection_cut", BOTH, database_cut));
    if !suite::is_long() {
        tests = tests.into_iter().map(|test| test.with_ignored_flag(true)).collect();
    }
    suite::main(tests, 1)
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
        let rabbit = Rabbit::connect(&self.scene.spec.broker).await;
        assert_eq!(rabbit.dead_letters(&self.scene.spec).await.len(), 0);
        self.scene
    }
}

/// Sends until it is confirmed, under the same id.
async fn send(publisher: &dyn Publisher, topic: &str, event: &Event) {
    while publisher.publish(topic, &event.message()).await.is_err() {
        sleep(Duration::from_millis(200)).await;
    }
}

fn postgres_of(store: StoreKind) -> Option<String> {
    (store == StoreKind::Postgres).then(|| url_of("postgres"))
}

async fn broker_killed(store: StoreKind) {
    let server = Server::start("rabbitmq", "outage").await;
    let scene = Scene::on(SERVICE, server.url.clone(), postgres_of(store)).await;
    let load = Load::start(scene, 400).await;
    server.make("kill").await;
    load.until_degraded().await;
    server.make("start").await;
    load.end().await.close().await;
}

async fn broker_stopped(store: StoreKind) {
    let server = Server::start("rabbitmq", "outage").await;
    let scene = Scene::on(SERVICE, server.url.clone(), postgres_of(store)).await;
    let load = Load::start(scene, 400).await;
    server.make("pause").await;
    sleep(Duration::from_secs(20)).await;
    server.make("resume").await;
    load.end().await.close().await;
}

async fn broker_cut(store: StoreKind) {
    let url = url_of("rabbitmq");
    let (proxy, through) = through_a_proxy(&url).await;
    let scene = Scene::on(SERVICE, through, postgres_of(store)).await;
    let load = Load::start(scene, 400).await;
    for _ in 0..8 {
        sleep(Duration::from_millis(700)).await;
        proxy.cut();
    }
    load.until_degraded().await;
    load.end().await.close().await;
}

async fn database_killed() {
    let server = Server::start("postgres", "outage").await;
    let scene = Scene::on(SERVICE, url_of("rabbitmq"), Some(server.url.clone())).await;
    let load = Load::start(scene, 400).await;
    server.make("kill").await;
    load.until_degraded().await;
    sleep(Duration::from_secs(3)).await;
    server.make("start").await;
    let scene = load.end().await;
    scene.close().await;
}

async fn database_stopped() {
    let server = Server::start("postgres", "outage").await;
    let scene = Scene::on(SERVICE, url_of("rabbitmq"), Some(server.url.clone())).await;
    let load = Load::start(scene, 400).await;
    server.make("pause").await;
    sleep(Duration::from_secs(20)).await;
    server.make("resume").await;
    load.end().await.close().await;
}

async fn database_cut() {
    let (proxy, through) = through_a_proxy(&url_of("postgres")).await;
    let scene = Scene::on(SERVICE, url_of("rabbitmq"), Some(through)).await;
    let load = Load::start(scene, 400).await;
    for _ in 0..8 {
        sleep(Duration::from_millis(700)).await;
        proxy.cut();
    }
    let scene = load.end().await;
    scene.close().await;
}

/// The same URL, with a cable in between.
async fn through_a_proxy(url: &str) -> (Proxy, String) {
    let (front, rest) = url.split_once('@').expect("a URL with a user");
    let (address, path) = rest.split_once('/').expect("a URL with a path");
    let proxy = Proxy::to(address.to_owned()).await;
    let through = format!("{front}@{}/{path}", proxy.address);
    (proxy, through)
}
