//! A consumer group that never comes to rest: members join, leave, die, hang and wake up every
//! one to three seconds, while messages whose handlers take half a second keep coming. Each
//! message has one effect in the end.
//!
//! One test for each way in which a group shares out its partitions. They take long, so they
//! run with `ONCEMQ_LONG=1`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "how much was repeated is worth knowing")]

#[cfg(feature = "rocketmq")]
mod backlog;

use std::fmt;
use std::time::Duration;

use oncemq_integration_tests::event::{Act, Event};
use oncemq_integration_tests::kafka;
use oncemq_integration_tests::process::{Counters, Process};
use oncemq_integration_tests::scene::{PATIENCE, Scene};
use oncemq_integration_tests::service::micros_now;
use oncemq_integration_tests::suite::{self, BrokerKind, StoreKind, servers, url_of};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const SERVICE: &str = env!("CARGO_BIN_EXE_service");
const STORM: Duration = Duration::from_secs(60);
/// Between two messages.
const PACE: Duration = Duration::from_millis(120);
const MEMBERS_MAX: usize = 5;

/// Broker, name and options of each way. The session of the new protocol is the broker's setting.
const PROTOCOLS: &[(BrokerKind, &str, &str)] = &[
    (
        BrokerKind::Kafka,
        "range",
        "partition.assignment.strategy=range&session.timeout.ms=2000&heartbeat.interval.ms=300",
    ),
    (
        BrokerKind::Kafka,
        "cooperative_sticky",
        "partition.assignment.strategy=cooperative-sticky&session.timeout.ms=2000&heartbeat.interval.ms=300",
    ),
    (BrokerKind::Kafka, "new_protocol", "group.protocol=consumer"),
    // Members are missed when their connections are gone; one that hangs keeps its queues.
    #[cfg(feature = "rocketmq")]
    (BrokerKind::RocketMq, "rocketmq", ""),
];

fn main() {
    let storms = PROTOCOLS.iter().map(|&(broker, name, options)| {
        let servers = servers(broker, StoreKind::Postgres);
        suite::test(format!("kf2_storm_{name}"), &servers, move || storm(broker, name, options))
    });
    #[cfg(feature = "rocketmq")]
    let storms = storms.chain([backlog::test()]);
    let tests = storms.map(|test| if suite::is_long() { test } else { test.with_ignored_flag(true) });
    suite::main(tests.collect(), 1)
}

async fn storm(broker: BrokerKind, name: &str, options: &str) {
    let server = url_of(broker.name());
    let broker = match broker {
        BrokerKind::Kafka => kafka::url_with(&server, 6, &format!("{options}&revoke_timeout=2s")),
        other => other.service_url_with(&server, 6),
    };
    let scene = Scene::on(SERVICE, broker, Some(url_of("postgres"))).await;
    scene.declare().await;
    let mut group = Group::new(&scene);
    group.join();
    group.members[0].process.until_said("health up", PATIENCE).await;
    let producer = produce(&scene).await;
    let end = Instant::now() + STORM;
    while Instant::now() < end {
        sleep(Duration::from_millis(group.dice.between(1_000, 3_000))).await;
        group.change().await;
    }
    let sent = producer.await.unwrap();
    let done = scene.database.number("SELECT count(*) FROM effect").await.unwrap();
    let mut counters = group.end().await;
    for (counter, count) in scene.settle(0).await {
        *counters.entry(counter).or_default() += count;
    }
    println!(
        "\nstorm {name}: {sent} messages, {done} of them done in {STORM:?} of {}; {} handler runs, redeliveries: {} \
         found done, {} not started",
        group.tally,
        scene.runs().len(),
        counters["duplicates"],
        counters["released"]
    );
    scene.close().await;
}

/// Sends until the storm is over; some messages need a second attempt. Returns how many.
async fn produce(scene: &Scene) -> JoinHandle<usize> {
    let count = usize::try_from(STORM.as_millis() / PACE.as_millis()).unwrap();
    let events: Vec<_> = (0..count)
        .map(|i| Event::new(format!("order-{i}"), if i % 20 == 3 { Act::Flaky(1) } else { Act::Slow(500) }))
        .collect();
    scene.database.expect(&events).await.unwrap();
    let (broker, topic) = (scene.spec.broker.clone(), scene.spec.topic.clone());
    tokio::spawn(async move {
        let publisher = oncemq::broker(&broker).unwrap().publisher().await.unwrap();
        for event in &events {
            publisher.publish(&topic, &event.message()).await.unwrap();
            sleep(PACE).await;
        }
        publisher.close().await.unwrap();
        events.len()
    })
}

/// The members of the group.
struct Group<'a> {
    scene: &'a Scene,
    members: Vec<Member>,
    /// Told to stop, and perhaps still at it.
    leaving: Vec<Process>,
    dice: Dice,
    tally: Tally,
}

struct Member {
    process: Process,
    /// It hangs until then.
    wakes: Option<Instant>,
}

impl<'a> Group<'a> {
    fn new(scene: &'a Scene) -> Self {
        let dice = Dice(u64::try_from(micros_now() % u128::from(u64::MAX)).unwrap());
        Self { scene, members: Vec::new(), leaving: Vec::new(), dice, tally: Tally::default() }
    }

    fn join(&mut self) {
        let process = self.scene.consume(None);
        self.members.push(Member { process, wakes: None });
        self.tally.joins += 1;
    }

    /// One change of the group, and the end of what hung long enough.
    async fn change(&mut self) {
        for member in &mut self.members {
            assert!(!member.process.has_ended(), "a member ended by itself: {}", member.process.said());
            if member.wakes.is_some_and(|wakes| wakes <= Instant::now()) {
                member.process.signal("CONT");
                member.wakes = None;
            }
        }
        let awake: Vec<_> = (0..self.members.len()).filter(|i| self.members[*i].wakes.is_none()).collect();
        // The last one that works stays.
        let chosen = match awake.len() {
            0 | 1 => None,
            many => Some(awake[usize::try_from(self.dice.below(many as u64)).unwrap()]),
        };
        match (self.dice.below(10), chosen) {
            (0..3, Some(chosen)) => {
                let member = self.members.swap_remove(chosen);
                member.process.terminate();
                self.leaving.push(member.process);
                self.tally.leaves += 1;
            }
            (3, Some(chosen)) => {
                self.members.swap_remove(chosen).process.kill();
                self.tally.deaths += 1;
            }
            (4..7, Some(chosen)) => {
                // Longer than the session, or not.
                let wakes = Instant::now() + Duration::from_millis(self.dice.between(1_000, 9_000));
                self.members[chosen].process.signal("STOP");
                self.members[chosen].wakes = Some(wakes);
                self.tally.stops += 1;
            }
            _ if self.members.len() < MEMBERS_MAX => self.join(),
            _ => {}
        }
    }

    /// Wakes and stops every member. Returns the counters of those that stopped in order.
    async fn end(&mut self) -> Counters {
        for member in self.members.drain(..) {
            member.process.signal("CONT");
            member.process.terminate();
            self.leaving.push(member.process);
        }
        let mut sum = Counters::new();
        for mut process in self.leaving.drain(..) {
            let status = process.ended(PATIENCE).await;
            assert!(status.success(), "{status}: {}", process.said());
            for (name, count) in process.summary() {
                *sum.entry(name).or_default() += count;
            }
        }
        sum
    }
}

/// What the group went through.
#[derive(Default)]
struct Tally {
    joins: u32,
    leaves: u32,
    deaths: u32,
    stops: u32,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { joins, leaves, deaths, stops } = self;
        write!(f, "{joins} joins, {leaves} leaves, {deaths} deaths, {stops} stops")
    }
}

/// Numbers that differ from run to run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low)
    }
}
