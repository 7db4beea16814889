//! Ten thousand messages wait in four queues, two processes share them, and one is killed.

use std::sync::Arc;

use libtest_mimic::Trial;
use oncemq_integration_tests::database::USERS;
use oncemq_integration_tests::event::{Act, Event};
use oncemq_integration_tests::ledger::Ledger;
use oncemq_integration_tests::scene::{PATIENCE, Scene};
use oncemq_integration_tests::suite::{self, BrokerKind, StoreKind, servers, until, url_of};

use crate::SERVICE;

const MESSAGES: usize = 10_000;
const QUEUES: u32 = 4;
/// So many messages lie before the ones that hang, one in each queue.
const BEFORE: usize = 400;
/// So many effects are there when the process dies.
const ENOUGH: i64 = 3_000;
/// So many publishes wait for their confirms at once.
const AT_ONCE: usize = 32;

pub(crate) fn test() -> Trial {
    let servers = servers(BrokerKind::RocketMq, StoreKind::Postgres);
    suite::test("ten_thousand_are_shared_and_one_dies_rocketmq_postgres", &servers, one_dies)
}

async fn one_dies() {
    let broker = BrokerKind::RocketMq.service_url_with(&url_of("rocketmq"), QUEUES);
    let mut scene = Scene::on(SERVICE, broker, Some(url_of("postgres"))).await;
    scene.spec.in_flight = 64;
    scene.declare().await;
    let events = events();
    scene.database.expect(&events).await.unwrap();
    publish(&scene, &events).await;
    let dies = scene.consume(None);
    // Offsets are committed up to these four, and what is done above them comes again.
    for event in events.iter().filter(|event| event.act == Act::HangsOnce) {
        scene.until_runs(&event.id, 1).await;
    }
    let stays = scene.consume(None);
    stays.until_said("health up", PATIENCE).await;
    until("some thousand are done", PATIENCE, async || effects(&scene).await >= ENOUGH).await;
    dies.kill();
    let done = effects(&scene).await;
    assert!((1..MESSAGES as i64).contains(&done), "{done} were done when the process was killed");

    scene.until_complete().await;
    let stayed = stays.stop(PATIENCE).await;
    let rest = scene.settle(0).await;
    // No message without its effect, none with two, and no other effects.
    let ledger = Ledger::read(&scene.database).await.unwrap();
    assert_eq!((ledger.effects, ledger.lost, ledger.doubled), (MESSAGES as i64, 0, 0), "{ledger}");

    assert_eq!(rest["handled"], 0, "all were done: {rest:?}");
    let by_the_dead = MESSAGES as u64 - stayed["handled"];
    assert!(stayed["handled"] > 0 && by_the_dead > 0, "both must have had a share: {stayed:?}");
    let again = stayed["duplicates"] + rest["duplicates"];
    assert!(again > 0, "no message came again: nobody was asked what is done");
    println!(
        "\nstorm backlog: one of two killed after {done} of {MESSAGES} effects, {by_the_dead} of them its own; {again} \
         messages came again and were found done"
    );
    scene.close().await;
}

/// Those that hang hold the locks on accounts that nobody else writes to.
fn events() -> Vec<Event> {
    let hanging = BEFORE..BEFORE + QUEUES as usize;
    let event = |i: usize| {
        let act = if hanging.contains(&i) { Act::HangsOnce } else { Act::Quick };
        let event = Event::new(format!("order-{i}"), act);
        let user = match act {
            Act::HangsOnce => 1 + i - hanging.start,
            _ => 1 + hanging.len() + i % (USERS as usize - hanging.len()),
        };
        Event { user: user as i64, ..event }
    };
    (0..MESSAGES).map(event).collect()
}

async fn effects(scene: &Scene) -> i64 {
    scene.database.number("SELECT count(*) FROM effect").await.unwrap()
}

/// Each until it is confirmed: up to those that hang one after another, so that each queue gets
/// one of them, and then many at once.
async fn publish(scene: &Scene, events: &[Event]) {
    let (first, others) = events.split_at(BEFORE + QUEUES as usize);
    scene.send_raw(&first.iter().map(Event::message).collect::<Vec<_>>()).await;
    let publisher = oncemq::broker(&scene.spec.broker).unwrap().publisher().await.unwrap();
    let senders: Vec<_> = others
        .chunks(others.len().div_ceil(AT_ONCE))
        .map(|share| {
            let (publisher, topic, share) =
                (Arc::clone(&publisher), scene.spec.topic.clone(), share.to_vec());
            tokio::spawn(async move {
                for event in share {
                    publisher.publish(&topic, &event.message()).await.unwrap();
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    publisher.close().await.unwrap();
}
