//! The exactly-once pipeline, against a real cluster.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use common::copying::{Copying, Level, Place, Seen, assert_once, copy_to, sorted};
use common::raw::Raw;
use common::{KAFKA, broker, with};
use oncemq_core::{Context, ErrorKind, Failure, Message, Shutdown, Topology, header};
use oncemq_kafka::{KafkaBroker, Output, Pipeline, Start};
use oncemq_test_kit::{millis, secs, test, unique, until};
use tokio::time::sleep;

fn main() {
    KAFKA.main(vec![
        test("copies_every_record_once_and_in_order", copies),
        test("a_failing_record_climbs_its_ladder_and_ends_in_one_dead_letter", fails),
        test("a_member_that_joins_and_leaves_doubles_nothing", || rebalance("")),
        test("a_member_of_a_cooperative_group_doubles_nothing", || {
            rebalance("partition.assignment.strategy=cooperative-sticky")
        }),
        test("a_member_of_a_group_of_the_new_protocol_doubles_nothing", || {
            rebalance("group.protocol=consumer")
        }),
        test("an_aborted_unit_leaves_nothing_visible", aborted),
        test("an_output_that_does_not_fit_costs_its_own_record_only", too_large),
        test("a_stop_commits_what_runs", stop),
        test("a_stop_during_a_rebalance_ends_it", stop_in_rebalance),
        test("a_dropped_pipeline_leaves_nothing_behind", dropped),
        test("a_group_that_starts_at_the_end_loses_nothing_afterwards", latest),
        test("records_that_are_gone_are_a_gap_and_the_rest_goes_on", || gap("")),
        test("records_that_are_gone_from_a_cooperative_member_are_a_gap", || {
            gap("partition.assignment.strategy=cooperative-sticky")
        }),
        test("wrong_settings_are_one_clear_error", wrong),
    ]);
}

/// Names of topics that are there: one to read, one to write.
struct Topics {
    name: String,
    from: String,
    to: String,
    place: Place,
}

impl Topics {
    async fn new(partitions: i32) -> Self {
        let (place, name) = (Place::shared(), unique("pipeline"));
        let (from, to) = (format!("{name}-from"), format!("{name}-to"));
        place.create(&from, partitions, &[]).await;
        place.create(&to, partitions, &[]).await;
        Self { name, from, to, place }
    }

    fn pipeline(&self, broker: &KafkaBroker) -> Pipeline {
        broker.pipeline(self.name.as_str()).topic(self.from.as_str()).output(self.to.as_str())
    }

    fn committed(&self) -> Vec<Seen> {
        self.place.read(&self.to, Level::Committed)
    }

    fn dead(&self) -> Vec<Seen> {
        self.place.read(&format!("{}.{}.dead", self.name, self.from), Level::Committed)
    }

    async fn until_committed(&self, offset: i64) {
        let what = format!("{offset} records are committed");
        until(&what, secs(60), async || self.place.committed(&self.name, &self.from) >= offset).await;
    }
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| format!("{n:06}")).collect()
}

async fn copies() {
    let (topics, wanted) = (Topics::new(3).await, numbers(0..2_000));
    topics.place.fill(&topics.from, 3, wanted.iter().cloned()).await;
    // All into one partition, which shows the order.
    let to = topics.to.clone();
    let running = Copying::start(topics.pipeline(&broker()), move |_, message: Message| {
        let copy = Message::new(message.payload().unwrap().clone()).with_key("one");
        let output = Output::new(to.as_str(), copy.with_header("from", message.origin().to_string()));
        async move { Ok(vec![output]) }
    });
    let running = running.await;
    topics.until_committed(2_000).await;
    let summary = running.stop().await;
    let seen = topics.committed();
    assert_once(&seen, &wanted);
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    for one in &seen {
        let (partition, offset) = one.headers["from"].split_once('@').unwrap();
        let offset: i64 = offset.parse().unwrap();
        assert!(last.insert(partition.to_owned(), offset).is_none_or(|before| before < offset));
    }
    assert_eq!((summary.handled, summary.outputs, summary.rejected), (2_000, 2_000, 0));
    assert!(summary.transactions <= 40, "{summary:?}");
}

async fn fails() {
    let topics = Topics::new(2).await;
    let log = Arc::new(Mutex::new(Vec::new()));
    let (to, runs) = (topics.to.clone(), log.clone());
    let pipeline = topics.pipeline(&broker()).retry("200ms 300ms dead-letter".parse().unwrap());
    let running = Copying::start(pipeline, move |cx: Context, message: Message| {
        let body = String::from_utf8_lossy(message.body()).into_owned();
        runs.lock().unwrap().push((body.clone(), cx.attempt(), std::time::Instant::now()));
        let answer = match body.as_str() {
            "000004" => Err(Failure::system("the partner is away")),
            "000006" => Err(Failure::business("nobody knows it")),
            "000008" => panic!("it panics"),
            _ => Ok(vec![Output::new(to.as_str(), message)]),
        };
        async move { answer }
    });
    let running = running.await;
    topics.place.fill(&topics.from, 2, numbers(0..20).into_iter()).await;
    topics.until_committed(20).await;
    let summary = running.stop().await;
    let bad = ["000004", "000006", "000008"];
    let good: Vec<_> = numbers(0..20).into_iter().filter(|body| !bad.contains(&body.as_str())).collect();
    assert_once(&topics.committed(), &good);
    let dead = topics.dead();
    assert_eq!(sorted(&dead), bad);
    let letter = dead.iter().find(|one| one.body == "000004").unwrap();
    assert_eq!(letter.headers[header::ATTEMPTS], "3");
    assert_eq!(letter.headers[header::CLASS], "system");
    assert_eq!(letter.headers[header::REASON], "the partner is away");
    assert_eq!(letter.headers[header::CONSUMER], topics.name);
    assert_eq!(letter.headers[header::ORIGIN], format!("kafka/{}/0@2", topics.from));
    let letter = dead.iter().find(|one| one.body == "000008").unwrap();
    assert!(letter.headers[header::REASON].contains("it panics"), "{letter:?}");
    assert_eq!((summary.handled, summary.rejected, summary.failures, summary.panics), (17, 3, 7, 3));

    let log = log.lock().unwrap();
    let when = |wanted: &str| {
        let runs = log.iter().filter(|(body, ..)| body == wanted).map(|(_, attempt, at)| (*attempt, *at));
        runs.collect::<Vec<_>>()
    };
    let ladder = when("000004");
    assert_eq!(ladder.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(ladder[1].1 - ladder[0].1 >= millis(200) && ladder[2].1 - ladder[1].1 >= millis(300));
    // What stands behind it waits, the other partition does not.
    assert!(when("000010")[0].1 > ladder[2].1);
    assert!(when("000019")[0].1 < ladder[2].1);
}

async fn rebalance(options: &'static str) {
    let topics = Topics::new(4).await;
    let member = |handled: &Arc<AtomicU32>| {
        let (to, handled) = (topics.to.clone(), handled.clone());
        let pipeline = topics.pipeline(&with(options)).records(50).interval(millis(50));
        Copying::start(pipeline, move |_, message: Message| {
            let (to, handled) = (to.clone(), handled.clone());
            async move {
                sleep(millis(3)).await;
                handled.fetch_add(1, SeqCst);
                Ok(vec![Output::new(to, message)])
            }
        })
    };
    let (by_first, by_second): (_, Arc<AtomicU32>) = (Arc::default(), Arc::default());
    let first = member(&by_first).await;
    // There is work all the time, however long the second takes.
    let feed = async {
        let mut sent = 0;
        while by_second.load(SeqCst) < 100 {
            topics.place.fill(&topics.from, 4, numbers(sent..sent + 200).into_iter()).await;
            sent += 200;
            sleep(millis(100)).await;
        }
        sent
    };
    let (second, sent) = tokio::join!(member(&by_second), feed);
    let left = second.stop().await;
    topics.until_committed(sent.into()).await;
    let stayed = first.stop().await;
    assert_once(&topics.committed(), &numbers(0..sent));
    assert_eq!(left.handled + stayed.handled, u64::from(sent), "{left:?} {stayed:?}");
    // An eager group waits for the open unit; others go on, and refuse it.
    assert!(left.aborted + stayed.aborted == 0 || !options.is_empty(), "{left:?} {stayed:?}");
}

async fn aborted() {
    let topics = Topics::new(1).await;
    let broker = with("topic.metadata.propagation.max.ms=300");
    let pipeline = topics.pipeline(&broker).retry("100ms dead-letter".parse().unwrap());
    let to = topics.to.clone();
    let running = Copying::start(pipeline.interval(millis(400)), move |_, message: Message| {
        let topic = if message.body() == b"000003" { "is-not-there" } else { to.as_str() };
        let outputs = vec![Output::new(to.as_str(), message.clone()), Output::new(topic, message)];
        async move { Ok(outputs) }
    });
    let running = running.await;
    topics.place.fill(&topics.from, 1, numbers(0..6).into_iter()).await;
    topics.until_committed(6).await;
    let summary = running.stop().await;
    // Both outputs of each but one, of which nothing is left.
    let seen = topics.committed();
    let doubled: Vec<_> = ["000000", "000001", "000002", "000004", "000005"].repeat(2);
    let mut doubled: Vec<_> = doubled.into_iter().map(str::to_owned).collect();
    doubled.sort_unstable();
    assert_eq!(sorted(&seen), doubled);
    let dead = topics.dead();
    assert_eq!(sorted(&dead), ["000003"]);
    assert!(dead[0].headers[header::REASON].contains("is-not-there"), "{dead:?}");
    assert_eq!(dead[0].headers[header::ATTEMPTS], "2");
    assert!(summary.aborted >= 2 && summary.handled == 5, "{summary:?}");
    // It was written, so it is the abort that hides it.
    let written = topics.place.read(&topics.to, Level::Written);
    assert!(written.iter().filter(|one| one.body == "000003").count() >= 2, "{written:?}");
}

async fn too_large() {
    let topics = Topics::new(1).await;
    let small = format!("{}-small", topics.name);
    topics.place.create(&small, 1, &[("max.message.bytes", "2000")]).await;
    let pipeline = topics.pipeline(&broker()).retry("100ms dead-letter".parse().unwrap());
    let to = small.clone();
    let running = Copying::start(pipeline, move |_, message: Message| {
        let copy = match message.body() {
            b"000007" => Message::new(vec![b'x'; 4_000]),
            _ => message,
        };
        let output = Output::new(to.as_str(), copy);
        async move { Ok(vec![output]) }
    });
    let running = running.await;
    topics.place.fill(&topics.from, 1, numbers(0..20).into_iter()).await;
    topics.until_committed(20).await;
    running.stop().await;
    let good: Vec<_> = numbers(0..20).into_iter().filter(|body| body != "000007").collect();
    assert_once(&topics.place.read(&small, Level::Committed), &good);
    assert_eq!(sorted(&topics.dead()), ["000007"]);
}

async fn stop() {
    let topics = Topics::new(1).await;
    let (to, begun) = (topics.to.clone(), Arc::new(AtomicU32::new(0)));
    let started = begun.clone();
    let running = Copying::start(topics.pipeline(&broker()), move |_, message: Message| {
        started.fetch_add(1, SeqCst);
        let output = Output::new(to.as_str(), message);
        async move {
            sleep(millis(700)).await;
            Ok(vec![output])
        }
    });
    let running = running.await;
    topics.place.fill(&topics.from, 1, numbers(0..5).into_iter()).await;
    until("the second runs", secs(20), async || begun.load(SeqCst) == 2).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, begun.load(SeqCst)), (2, 2));
    assert_eq!(sorted(&topics.committed()), numbers(0..2));
    assert_eq!(topics.place.committed(&topics.name, &topics.from), 2);
}

async fn stop_in_rebalance() {
    let topics = Topics::new(2).await;
    let begun = Arc::new(AtomicU32::new(0));
    let member = || {
        let (to, begun) = (topics.to.clone(), begun.clone());
        Copying::start(topics.pipeline(&broker()).grace(millis(500)), move |_, message: Message| {
            let output = Output::new(to.as_str(), message);
            let first = begun.fetch_add(1, SeqCst) == 0;
            async move {
                if first {
                    sleep(secs(60)).await;
                }
                Ok(vec![output])
            }
        })
    };
    let first = member().await;
    topics.place.fill(&topics.from, 2, numbers(0..20).into_iter()).await;
    until("it runs", secs(20), async || begun.load(SeqCst) > 0).await;
    // The first waits for its run before it lets its partitions go.
    let (second, begin) = tokio::join!(member(), async {
        sleep(secs(1)).await;
        let begin = std::time::Instant::now();
        assert_eq!(first.stop().await.handled, 10);
        begin
    });
    assert!(begin.elapsed() < secs(8), "{:?}", begin.elapsed());
    topics.until_committed(20).await;
    second.stop().await;
    assert_once(&topics.committed(), &numbers(0..20));
}

async fn dropped() {
    let topics = Topics::new(1).await;
    let pipeline = topics.pipeline(&broker()).interval(secs(4));
    let running = Copying::start(pipeline, copy_to(&topics.to)).await;
    topics.place.fill(&topics.from, 1, numbers(0..5).into_iter()).await;
    until("it is written", secs(20), async || topics.place.read(&topics.to, Level::Written).len() == 5).await;
    assert!(topics.committed().is_empty());
    running.task.abort();
    let _ = running.task.await;

    let running = Copying::start(topics.pipeline(&broker()), copy_to(&topics.to)).await;
    topics.until_committed(5).await;
    let summary = running.stop().await;
    assert_eq!((summary.handled, summary.aborted), (5, 0));
    assert_once(&topics.committed(), &numbers(0..5));
}

async fn latest() {
    let topics = Topics::new(1).await;
    topics.place.fill(&topics.from, 1, numbers(0..5).into_iter()).await;
    let start = || topics.pipeline(&broker().start(Start::Latest));
    // It commits where it begins, although it handles nothing.
    let running = Copying::start(start(), copy_to(&topics.to)).await;
    assert_eq!(running.stop().await.handled, 0);
    topics.place.fill(&topics.from, 1, numbers(5..8).into_iter()).await;
    let running = Copying::start(start(), copy_to(&topics.to)).await;
    topics.until_committed(8).await;
    running.stop().await;
    assert_once(&topics.committed(), &numbers(5..8));
}

async fn gap(options: &'static str) {
    let topics = Topics::new(2).await;
    let start = async || {
        let to = topics.to.clone();
        Copying::start(topics.pipeline(&with(options)), move |_, message: Message| {
            // The other partition has work all the time.
            let slow = if message.origin().partition == Some(1) { millis(20) } else { millis(0) };
            let output = Output::new(to.as_str(), message);
            async move {
                sleep(slow).await;
                Ok(vec![output])
            }
        })
        .await
    };
    topics.place.fill(&topics.from, 2, numbers(0..10).into_iter()).await;
    let running = start().await;
    topics.until_committed(10).await;
    assert_eq!(running.stop().await.gaps, 0);
    topics.place.fill(&topics.from, 2, numbers(10..100).into_iter()).await;
    // The even ones are in partition 0: offsets 5 to 9 go, which are 10 to 18.
    Raw::new().truncate(&topics.from, 0, 10).await;
    let running = start().await;
    topics.until_committed(100).await;
    let summary = running.stop().await;
    assert_eq!((summary.gaps, summary.handled), (1, 85), "{summary:?}");
    let gone: Vec<_> = (10..20).step_by(2).map(|n| format!("{n:06}")).collect();
    let rest: Vec<_> = numbers(0..100).into_iter().filter(|body| !gone.contains(body)).collect();
    assert_once(&topics.committed(), &rest);
}

async fn wrong() {
    let topics = Topics::new(1).await;
    let broker = || KafkaBroker::from_url(&KAFKA.url()).unwrap();
    let option = |option: &str| KafkaBroker::from_url(&format!("{}?{option}", KAFKA.url())).unwrap();
    let other = |broker: KafkaBroker| broker.pipeline(topics.name.as_str());
    let nowhere = KafkaBroker::from_url("kafka://127.0.0.1:1?connect_timeout=1s").unwrap();
    let cases: Vec<(&str, ErrorKind, Pipeline)> = vec![
        ("no topic to read", ErrorKind::Config, other(broker())),
        ("added twice", ErrorKind::Config, topics.pipeline(&broker()).topic(topics.from.as_str())),
        ("0 records", ErrorKind::Config, topics.pipeline(&broker()).records(0)),
        ("twice the interval", ErrorKind::Config, topics.pipeline(&broker()).interval(secs(6))),
        ("timeout of pipeline", ErrorKind::Config, topics.pipeline(&broker()).timeout(secs(0))),
        ("isolation.level", ErrorKind::Config, topics.pipeline(&option("isolation.level=read_uncommitted"))),
        ("transaction_timeout", ErrorKind::Config, topics.pipeline(&option("transaction.timeout.ms=5000"))),
        ("socket.timeout.ms", ErrorKind::Config, topics.pipeline(&option("socket.timeout.ms=60000"))),
        ("does not fit Kafka", ErrorKind::Config, broker().pipeline("a b").topic(topics.from.as_str())),
        ("no topic missing-in", ErrorKind::Topology, other(broker()).topic("missing-in")),
        (
            "no topic missing-out",
            ErrorKind::Topology,
            topics.pipeline(&broker()).output("missing-out").topology(Topology::Declare),
        ),
        ("cannot be reached", ErrorKind::Connection, topics.pipeline(&nowhere)),
    ];
    for (text, kind, pipeline) in cases {
        let health = pipeline.health();
        let run = pipeline.shutdown(Shutdown::new()).run(copy_to(&topics.to));
        let error = tokio::time::timeout(secs(20), run).await.expect(text).expect_err(text);
        let said = error.to_string();
        assert!(error.kind() == kind && said.contains(text) && !said.contains('\n'), "{text}: {error:?}");
        assert!(health.borrow().to_string().contains(&said), "{}", *health.borrow());
    }
    let limited = KAFKA.get("SASL_URL").replace("oncemq:oncemq@", "limited:limited@");
    let limited = KafkaBroker::from_url(&limited).unwrap();
    let pipeline = topics.pipeline(&limited).topology(Topology::Trust).shutdown(Shutdown::new());
    let error = tokio::time::timeout(secs(20), pipeline.run(copy_to(&topics.to))).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Access, "{error:?}");
}
