//! The exactly-once pipeline while processes die, stall and lose their partitions at named
//! places.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use common::child::{Job, was_child};
use common::copying::{Copying, Level, Place, assert_once, copy_to};
use common::{KAFKA, with};
use oncemq_core::failpoint;
use oncemq_kafka::Pipeline;
use oncemq_test_kit::{millis, secs, test, unique, until};
use tokio::sync::watch;
use tokio::time::sleep;

const WRITTEN: &str = "kafka.unit_written";
const WITH_OFFSETS: &str = "kafka.unit_with_offsets";
const COMMITTED: &str = "kafka.unit_committed";

fn main() {
    if was_child() {
        return;
    }
    KAFKA.main(vec![
        test("a_process_killed_before_its_offsets_doubles_nothing", || killed(WRITTEN, 200)),
        test("a_process_killed_before_its_commit_doubles_nothing", || killed(WITH_OFFSETS, 200)),
        test("a_process_killed_after_its_commit_doubles_nothing", || killed(COMMITTED, 400)),
        // Places belong to the whole process, so one test has them all.
        test("a_unit_that_stalls_doubles_nothing", || async {
            broker_ends_the_transaction(WRITTEN).await;
            broker_ends_the_transaction(WITH_OFFSETS).await;
            heir_before_the_offsets().await;
            heir_after_the_offsets().await;
        }),
    ]);
}

struct Scene {
    name: String,
    from: String,
    to: String,
    place: Place,
    wanted: Vec<String>,
}

impl Scene {
    async fn new() -> Self {
        let (place, name) = (Place::shared(), unique("faults"));
        let (from, to) = (format!("{name}-from"), format!("{name}-to"));
        place.create(&from, 2, &[]).await;
        place.create(&to, 2, &[]).await;
        let wanted: Vec<_> = (0..600).map(|n| format!("{n:06}")).collect();
        Self { name, from, to, place, wanted }
    }

    async fn fill(&self) {
        self.place.fill(&self.from, 2, self.wanted.iter().cloned()).await;
    }

    fn pipeline(&self, options: &str) -> Pipeline {
        let pipeline = with(options).pipeline(self.name.as_str()).topic(self.from.as_str());
        pipeline.output(self.to.as_str()).records(200)
    }

    async fn until_committed(&self, offset: i64) {
        let what = format!("{offset} records are committed");
        until(&what, secs(60), async || self.place.committed(&self.name, &self.from) >= offset).await;
    }

    async fn assert_once(&self) {
        // What is behind the transaction of a dead process is seen when the broker has ended it.
        let mut seen = Vec::new();
        until("everything is seen", secs(30), async || {
            seen = self.place.read(&self.to, Level::Committed);
            seen.len() >= self.wanted.len()
        })
        .await;
        assert_once(&seen, &self.wanted);
    }
}

async fn killed(place: &str, committed: i64) {
    let scene = Scene::new().await;
    scene.fill().await;
    let job = Job {
        url: format!("{}?session.timeout.ms=1500&heartbeat.interval.ms=300", KAFKA.url()),
        name: scene.name.clone(),
        from: scene.from.clone(),
        to: scene.to.clone(),
        delay: Duration::ZERO,
    };
    let mut first = job.start(Some(&format!("{place}=kill@2")));
    until("it is killed", secs(30), async || first.has_ended()).await;
    assert_eq!(scene.place.committed(&scene.name, &scene.from), committed);
    let second = job.start(None);
    scene.until_committed(600).await;
    drop(second);
    scene.assert_once().await;
}

/// Stalls the first that passes a place, until it is let go.
fn stall(place: &'static str) -> watch::Sender<bool> {
    let (go, stalled) = watch::channel(false);
    let first = AtomicBool::new(true);
    failpoint::arm(Some(Arc::new(move |passed| {
        let stays = passed == place && first.swap(false, SeqCst);
        let mut stalled = stalled.clone();
        Box::pin(async move {
            if stays {
                stalled.wait_for(|gone| *gone).await.unwrap();
            }
        })
    })));
    go
}

/// The broker's patience with a transaction ends while it is open.
async fn broker_ends_the_transaction(place: &'static str) {
    let (scene, go) = (Scene::new().await, stall(place));
    let pipeline = scene.pipeline("").transaction_timeout(secs(1));
    let running = Copying::start(pipeline, copy_to(&scene.to)).await;
    scene.fill().await;
    sleep(secs(3)).await;
    go.send_replace(true);
    scene.until_committed(600).await;
    let summary = running.stop().await;
    scene.assert_once().await;
    assert!(summary.handled == 600 && summary.aborted > 0, "{summary:?}");
}

const SHORT: &str = "session.timeout.ms=1000&heartbeat.interval.ms=300&max.poll.interval.ms=1500";

/// A member stalls in the middle of a unit, the group goes on without it and does everything,
/// and the member wakes: the broker refuses its offsets.
async fn heir_before_the_offsets() {
    let (scene, go) = (Scene::new().await, stall(WRITTEN));
    let zombie = Copying::start(scene.pipeline(SHORT), copy_to(&scene.to)).await;
    scene.fill().await;
    let heir = Copying::start(scene.pipeline(""), copy_to(&scene.to)).await;
    scene.until_committed(600).await;
    go.send_replace(true);
    sleep(millis(500)).await;
    let (heir, zombie) = (heir.stop().await, zombie.stop().await);
    scene.assert_once().await;
    assert!(heir.handled == 600 && zombie.handled == 0 && zombie.aborted > 0, "{heir:?} {zombie:?}");
}

/// The same when its offsets are in the transaction already: the heir waits for its end.
async fn heir_after_the_offsets() {
    let (scene, go) = (Scene::new().await, stall(WITH_OFFSETS));
    let zombie = Copying::start(scene.pipeline(SHORT), copy_to(&scene.to)).await;
    scene.fill().await;
    let heir = tokio::spawn(Copying::start(scene.pipeline(""), copy_to(&scene.to)));
    sleep(secs(3)).await;
    assert_eq!(scene.place.read(&scene.to, Level::Committed).len(), 0);
    go.send_replace(true);
    scene.until_committed(600).await;
    let (heir, zombie) = (heir.await.unwrap().stop().await, zombie.stop().await);
    scene.assert_once().await;
    assert!(zombie.handled >= 200 && zombie.handled + heir.handled == 600, "{heir:?} {zombie:?}");
}
