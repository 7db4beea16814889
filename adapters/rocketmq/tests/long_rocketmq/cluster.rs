//! Two brokers, of which one may be killed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use libtest_mimic::Trial;
use oncemq_core::{Consumer, Context, Decision, Failure, Health, Message, Ordering, Topology};
use oncemq_rocketmq::TransactionId;
use oncemq_test_kit::{Log, Running, logging, millis, secs, test_within, unique, until};
use tokio::time::sleep;

use crate::common::suite::read_all;
use crate::common::{counts, ladder, numbers};
use crate::{Server, stream};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test_within("cluster_two_brokers_share_the_work", secs(400), run)]
}

async fn run() {
    let server = Server::start("pair").await;
    for topology in [Topology::Declare, Topology::Verify] {
        added(&server, topology).await;
    }
    shared(&server).await;
    ordered(&server).await;
    transactions(&server).await;
    outages(&server).await;
    server.remove().await;
}

/// Does something to one of the brokers.
async fn second(server: &Server, what: &'static str) {
    server.blocking(move |instance| drop(instance.tool("ONCEMQ_ROCKETMQ_SECOND", &[what]))).await;
}

/// A topic comes to a broker that does not know the group yet.
async fn added(server: &Server, topology: Topology) {
    let (group, topic, places) = (unique("points"), unique("added"), Places::default());
    let consumer = |topology| {
        let places = places.clone();
        Consumer::new(group.as_str(), server.broker(""))
            .topology(topology)
            .topic(topic.as_str())
            .retry(ladder("1s dead-letter"))
            .unguarded(move |cx: Context, message: Message| {
                let again = cx.attempt() > 1;
                if again {
                    places.add(&message);
                }
                async move { if again { Ok(()) } else { Err(Failure::system("busy")) } }
            })
    };
    let brokers = server.admin("clusterList").await;
    let on = async |broker: &str, what: &str| {
        let line = brokers.lines().find(|line| line.contains(broker)).unwrap();
        let address = line.split_whitespace().nth(3).unwrap();
        server.admin(&format!("{what} -b {address}")).await;
    };
    let new = format!("updateTopic -t {topic} -r 1 -w 1");
    on("broker-a", &new).await;
    consumer(Topology::Declare).plan().await.unwrap();
    let mut running = Running::start(consumer(topology)).await;
    on("broker-b", &new).await;
    if topology == Topology::Verify {
        let health =
            running.until_health("told", |health| matches!(health, Health::Degraded(_))).await.to_string();
        assert!(health.contains("broker-b") && health.contains(&group), "{health}");
        on("broker-b", &format!("updateSubGroup -g {group}")).await;
    }
    server.publish(&topic, numbers(20).map(Message::new)).await;
    until("all have run again", secs(30), async || places.bodies().len() == 20).await;
    running.until_up().await;
    running.stop().await;
}

/// Retries and dead letters of both brokers.
async fn shared(server: &Server) {
    let (group, topic) = (unique("points"), unique("shared"));
    let (log, places) = (Log::default(), Places::default());
    let consumer = || {
        let places = places.clone();
        Consumer::new(group.as_str(), server.broker("start=latest"))
            .topic(topic.as_str())
            .retry(ladder("1s dead-letter"))
            .unguarded(logging(&log, move |cx: Context, message: Message| {
                places.add(&message);
                let number: u32 = String::from_utf8_lossy(message.body()).parse().unwrap();
                async move {
                    match number % 10 {
                        0 => Err(Failure::business("no such product")),
                        _ if cx.attempt() == 1 => Err(Failure::system("busy")),
                        _ => Ok(()),
                    }
                }
            }))
    };
    let (first, second) = (Running::start(consumer()).await, Running::start(consumer()).await);
    // They look at the lists in turn, and what moves while it is handled is repeated.
    sleep(secs(5)).await;
    server.publish(&topic, numbers(200).map(Message::new)).await;
    let done = |body: &str, runs: usize| runs >= if body.ends_with('0') { 1 } else { 2 };
    until("all have run", secs(60), async || {
        let counts = counts(&log);
        counts.len() == 200 && counts.iter().all(|(body, runs)| done(body, *runs))
    })
    .await;
    for member in [first, second] {
        let summary = member.stop().await;
        assert!(summary.handled > 20 && summary.retried > 20, "{summary:?}");
    }
    assert!(places.of("broker-a") > 20 && places.of("broker-b") > 20, "{places:?}");
    let letters = read_all(&server.broker(""), &format!("%DLQ%{group}")).await;
    let letters: BTreeSet<&[u8]> = letters.iter().map(Message::body).collect();
    assert_eq!(letters.len(), 20);
}

/// While one broker restarts, no two handlers of a message group overlap, and none is left out.
async fn ordered(server: &Server) {
    const KEYS: u32 = 16;
    const EACH: u32 = 40;
    let (group, topic, log) = (unique("points"), unique("ordered"), Log::default());
    let (running, wrong) = (Arc::new(Mutex::new(BTreeSet::new())), Arc::new(AtomicUsize::new(0)));
    let seen: Arc<Mutex<BTreeMap<Vec<u8>, u32>>> = Arc::default();
    let consumer = || {
        let (running, wrong, seen) = (running.clone(), wrong.clone(), seen.clone());
        Consumer::new(group.as_str(), server.broker(""))
            .topic(topic.as_str())
            .ordering(Ordering::Ordered)
            .unguarded(logging(&log, move |_, message: Message| {
                let (running, wrong, seen) = (running.clone(), wrong.clone(), seen.clone());
                async move {
                    let key = message.key().unwrap().to_vec();
                    let number: u32 = String::from_utf8_lossy(message.body()).parse().unwrap();
                    let alone = running.lock().unwrap().insert(key.clone());
                    let next = seen.lock().unwrap().get(&key).copied().unwrap_or(0);
                    // A repeat may begin anywhere, and goes on from there.
                    if !alone || number > next {
                        wrong.fetch_add(1, SeqCst);
                    }
                    sleep(millis(100)).await;
                    seen.lock().unwrap().insert(key.clone(), next.max(number + 1));
                    running.lock().unwrap().remove(&key);
                    Ok(())
                }
            }))
    };
    consumer().plan().await.unwrap();
    let message = |n: u32| Message::new((n / KEYS).to_string()).with_key(format!("key-{}", n % KEYS));
    server.publish(&topic, (0..KEYS * EACH).map(message)).await;
    let members = [Running::start(consumer()).await, Running::start(consumer()).await];
    until("work goes on", secs(20), async || log.len() > 60).await;
    second(server, "kill").await;
    sleep(secs(3)).await;
    second(server, "start").await;
    until("all are handled", secs(120), async || {
        let seen = seen.lock().unwrap();
        seen.len() == KEYS as usize && seen.values().all(|next| *next == EACH)
    })
    .await;
    for member in members {
        member.stop().await;
    }
    assert_eq!(wrong.load(SeqCst), 0, "overlapped, or left something out");
}

/// Each broker asks what became of the messages that it keeps back.
async fn transactions(server: &Server) {
    let (topic, places, noted) = (unique("halves"), Places::default(), Arc::new(Mutex::new(HashSet::new())));
    let consumer = Consumer::new(unique("points"), server.broker("")).topic(topic.as_str()).unguarded({
        let places = places.clone();
        move |_: Context, message: Message| {
            places.add(&message);
            async { Ok(()) }
        }
    });
    let running = Running::start(consumer).await;
    let check = {
        let noted = noted.clone();
        move |id: TransactionId| {
            let committed = noted.lock().unwrap().contains(&id);
            async move { Ok(if committed { Decision::Committed } else { Decision::RolledBack }) }
        }
    };
    let broker = server.broker("");
    let publisher = broker.transactions(&unique("producers"), &[&topic], check).await.unwrap();
    for number in 0..20 {
        let half = publisher.half(&topic, &Message::new(number.to_string())).await.unwrap();
        if number % 2 == 0 {
            noted.lock().unwrap().insert(half.id().clone());
        }
        // Nobody says how it ended.
        drop(half);
    }
    let committed: BTreeSet<String> = numbers(20).step_by(2).collect();
    until("those that are noted appear", secs(60), async || places.bodies() == committed).await;
    assert!(places.of("broker-a") > 0 && places.of("broker-b") > 0, "{places:?}");
    sleep(secs(5)).await;
    assert_eq!(places.bodies(), committed);
    publisher.close().await.unwrap();
    running.stop().await;
}

/// One broker is killed, and hangs: what the other one has goes on.
async fn outages(server: &Server) {
    let (group, topic, places) = (unique("points"), unique("pair"), Places::default());
    let consumer = Consumer::new(group.as_str(), server.broker("")).topic(topic.as_str()).unguarded({
        let places = places.clone();
        move |_: Context, message: Message| {
            places.add(&message);
            async { Ok(()) }
        }
    });
    let mut running = Running::start(consumer).await;
    let (stop, sending) = stream(server, &topic);
    let both = async || {
        let before = ["broker-a", "broker-b"].map(|broker| places.of(broker));
        until("messages of both are handled", secs(30), async || {
            places.of("broker-a") > before[0] && places.of("broker-b") > before[1]
        })
        .await;
    };
    for (ill, well) in [("kill", "start"), ("pause", "resume")] {
        both().await;
        second(server, ill).await;
        let before = places.of("broker-a");
        sleep(secs(20)).await;
        // A try at the one that is ill takes three seconds, and then it is left alone for a while.
        let more = places.of("broker-a") - before;
        assert!(more > 100, "{ill}: {more} messages in twenty seconds");
        // The name server forgets a broker as soon as its connection is gone.
        if ill == "pause" {
            let is_degraded = |health: &Health| matches!(health, Health::Degraded(_));
            let health = running.until_health("degraded", is_degraded).await;
            assert!(health.to_string().contains("broker-b"), "{health}");
        }
        second(server, well).await;
        running.until_up().await;
    }
    both().await;
    stop.store(true, SeqCst);
    let all: BTreeSet<String> = numbers(sending.await.unwrap()).collect();
    until("all are handled", secs(60), async || places.bodies().is_superset(&all)).await;
    running.stop().await;
}

/// What was handled, by the broker that had it.
#[derive(Debug, Clone, Default)]
struct Places(Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>);

impl Places {
    fn add(&self, message: &Message) {
        let broker = message.origin().server.as_deref().unwrap().to_owned();
        let body = String::from_utf8_lossy(message.body()).into_owned();
        self.0.lock().unwrap().entry(broker).or_default().insert(body);
    }

    fn of(&self, broker: &str) -> usize {
        self.0.lock().unwrap().get(broker).map_or(0, BTreeSet::len)
    }

    fn bodies(&self) -> BTreeSet<String> {
        self.0.lock().unwrap().values().flatten().cloned().collect()
    }
}
