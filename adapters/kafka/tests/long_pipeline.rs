//! A copy of 100,000 records while its processes and the broker are killed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "figures of a long run")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use common::KAFKA;
use common::child::{Job, was_child};
use common::copying::{Copying, Level, Place, assert_once, copy_to};
use oncemq_kafka::KafkaBroker;
use oncemq_test_kit::{Instance, millis, secs, test, unique, until};
use tokio::time::{Instant, sleep};

const RECORDS: usize = 100_000;
const PARTITIONS: i32 = 6;
/// Process kills between two kills of the broker.
const KILLS: usize = 4;
const BROKER_KILLS: usize = 2;

fn main() {
    if was_child() {
        return;
    }
    KAFKA.main_alone("pipeline", true, |instance| {
        let other = instance.clone();
        vec![
            test("a_stop_while_the_broker_is_away_ends_in_time", || stop_without_broker(other)),
            test("a_copy_under_kills_of_processes_and_broker_doubles_nothing", || copy(instance)),
        ]
    });
}

/// Members that are gone are missed soon.
fn url(instance: &Instance) -> String {
    format!("{}?session.timeout.ms=2000&heartbeat.interval.ms=500", instance.url())
}

async fn copy(instance: Arc<Instance>) {
    let place = Place::at(&instance.url());
    let job = Job {
        url: url(&instance),
        name: unique("copy"),
        from: unique("from"),
        to: unique("to"),
        delay: Duration::from_micros(500),
    };
    place.create(&job.from, PARTITIONS, &[]).await;
    place.create(&job.to, PARTITIONS, &[]).await;
    let filler = "x".repeat(150);
    let wanted: Vec<_> = (0..RECORDS).map(|n| format!("{n:06} {filler}")).collect();
    place.fill(&job.from, PARTITIONS, wanted.iter().cloned()).await;

    // A reader that is there all the time.
    let (over, reader) = (Arc::new(AtomicBool::new(false)), place.reader(&job.to, Level::Committed));
    let is_over = over.clone();
    let live = std::thread::spawn(move || {
        let mut seen = Vec::new();
        while !is_over.load(SeqCst) {
            seen.extend(reader.read_for(millis(500)));
        }
        seen.extend(reader.read_for(secs(5)));
        seen
    });

    let begin = Instant::now();
    let mut members = [job.start(None), job.start(None)];
    for kill in 0..=KILLS * (BROKER_KILLS + 1) {
        sleep(secs(3)).await;
        if kill > 0 && kill % KILLS == 0 && kill / KILLS <= BROKER_KILLS {
            instance.kill();
            sleep(secs(2)).await;
            instance.again();
        } else {
            let member = &mut members[kill % 2];
            member.kill();
            *member = job.start(None);
        }
    }
    let done = place.committed(&job.name, &job.from);
    println!("{done} of {RECORDS} at the last kill, after {:?}", begin.elapsed());
    assert!(done > 0 && done < RECORDS as i64, "all was over before the last kill");
    let all = RECORDS as i64;
    until("everything is committed", secs(100), async || place.committed(&job.name, &job.from) == all).await;
    println!("all committed after {:?}", begin.elapsed());
    drop(members);
    over.store(true, SeqCst);

    assert_once(&place.read(&job.to, Level::Committed), &wanted);
    println!("the topic has every record once");
    assert_once(&tokio::task::spawn_blocking(|| live.join().unwrap()).await.unwrap(), &wanted);
    let written = place.read(&job.to, Level::Written).len();
    println!("{} outputs were written and aborted", written - RECORDS);
    assert!(written > RECORDS, "no transaction was ever cut");
}

async fn stop_without_broker(instance: Arc<Instance>) {
    let (place, url) = (Place::at(&instance.url()), url(&instance));
    let (name, from, to) = (unique("away"), unique("from"), unique("to"));
    place.create(&from, 1, &[]).await;
    place.create(&to, 1, &[]).await;
    let begin = async || {
        let pipeline = KafkaBroker::from_url(&url).unwrap().pipeline(name.as_str()).topic(from.as_str());
        Copying::start(pipeline.interval(secs(4)), copy_to(&to)).await
    };
    let mut running = begin().await;
    let wanted: Vec<_> = (0..100).map(|n| n.to_string()).collect();
    place.fill(&from, 1, wanted.iter().cloned()).await;
    until("it is written", secs(20), async || place.read(&to, Level::Written).len() == 100).await;
    instance.kill();
    running.health.wait_for(|health| !health.is_up()).await.unwrap();
    let (stop, stopped) = (Instant::now(), running.stop.clone());
    let ended = tokio::spawn(running.task);
    stopped.stop();
    sleep(secs(1)).await;
    // A second time: nothing is waited for.
    stopped.stop();
    let summary = ended.await.unwrap().unwrap().unwrap();
    println!("ended {:?} after the first stop: {summary:?}", stop.elapsed());
    assert!(stop.elapsed() < secs(15) && summary.handled == 0, "{:?} {summary:?}", stop.elapsed());
    instance.again();
    let running = begin().await;
    until("all is committed", secs(60), async || place.committed(&name, &from) == 100).await;
    running.stop().await;
    assert_once(&place.read(&to, Level::Committed), &wanted);
}
